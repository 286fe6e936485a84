from __future__ import annotations

import pytest

from recordfactory import answer, failed
from samebytes.acceptance import Acceptance, summarise
from samebytes.record import Request


def drafted(
    key: str, n: int, chunks: int, drafts: int, drafted: int, accepted: int, positions: list[int] | None = None
) -> Request:
    return answer(
        key,
        n=n,
        chunks=[(0.1 * i, None) for i in range(chunks)],
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        accepted_per_pos=positions,
    )


def test_one_request_by_hand() -> None:
    # 1 prefill step, then 3 steps of which 2 carried drafts of 5: 4 and 3 accepted. 11 emitted, the last one cut.
    found = summarise([drafted("rag/0", n=10, chunks=4, drafts=2, drafted=10, accepted=7, positions=[2, 2, 2, 1, 0])])
    assert found == Acceptance(
        n=1,
        drafts=2,
        draft_tokens=10,
        accepted_tokens=7,
        rate=0.7,
        mean_length=4.5,
        tokens_per_step=2.5,
        overrun=1,
        per_position=(1.0, 1.0, 1.0, 0.5, 0.0),
    )


def test_sums_come_before_ratios() -> None:
    found = summarise(
        [drafted("rag/0", 100, 20, 20, 100, 80), drafted("creative/0", 100, 100, 1, 5, 0), failed("rag/1")]
    )
    assert found.n == 2
    assert found.rate == pytest.approx(80 / 105)
    assert found.mean_length == pytest.approx(1 + 80 / 21)
    assert found.tokens_per_step == pytest.approx(200 / 120)
    assert found.overrun == 0
    assert found.per_position is None


def test_a_config_without_speculation_has_nulls_but_its_tokens_per_step() -> None:
    found = summarise([answer("rag/0", n=64)])
    assert found == Acceptance(n=0, tokens_per_step=1.0)


def test_speculation_that_never_drafted_has_no_rate() -> None:
    found = summarise([drafted("creative/0", 64, 64, 0, 0, 0, [0, 0])])
    assert (found.n, found.drafts, found.accepted_tokens) == (1, 0, 0)
    assert (found.rate, found.mean_length, found.per_position) == (None, None, None)
    assert found.overrun == 0


def test_merged_chunks_leave_the_overrun_unknown() -> None:
    assert summarise([drafted("rag/0", n=50, chunks=5, drafts=8, drafted=40, accepted=30)]).overrun is None


def test_nothing_is_null() -> None:
    assert summarise([]) == Acceptance(n=0)


def test_a_sum_over_some_requests_only_is_not_told() -> None:
    known = drafted("rag/0", 10, 4, 2, 10, 7, [2, 2, 2, 1, 0])
    assert summarise([known, drafted("rag/1", 10, 4, 2, 10, 7)]).per_position is None
    uncounted = drafted("rag/1", 10, 4, 2, 10, 7, [2, 2, 2, 1, 0])
    uncounted.completion_tokens = None
    assert summarise([known, uncounted]).overrun is None
