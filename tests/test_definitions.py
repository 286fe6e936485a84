"""Each definition against numbers worked out by hand."""

from __future__ import annotations

import pytest

from samebytes import definitions as d


def test_ttft() -> None:
    assert d.ttft(10.0, 10.4) == pytest.approx(0.4)
    assert d.ttft(10.0, None) is None
    assert d.ttft(None, 10.4) is None


@pytest.mark.parametrize(
    ("share", "lag", "bound"),
    [
        (0.81, 0.001, True),
        (0.1, 0.0051, True),
        (0.8, 0.005, False),
        (None, 0.006, True),
        (0.9, None, True),
        (None, None, False),
    ],
)
def test_a_busy_or_a_late_client_may_have_limited_a_pass(share: float | None, lag: float | None, bound: bool) -> None:
    assert d.client_bound(share, lag) is bound


def test_decode_rate_leaves_the_first_chunk_out() -> None:
    assert d.decode_tok_s(12, 3, 0.5, 1.4) == pytest.approx(10.0)


def test_decode_rate_without_k1_is_the_classic_form() -> None:
    assert d.decode_tok_s(12, None, 0.5, 1.6) == pytest.approx(10.0)
    assert d.decode_tok_s(12, 1, 0.5, 1.6) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("n", "k1", "first", "finish"),
    [
        (16, 16, 1.0, 1.1),  # all of N in the first text-bearing chunk
        (1, None, 1.0, 1.1),
        (16, 3, 1.0, 1.0),  # no time passed
        (None, 1, 1.0, 2.0),
        (16, 1, None, 2.0),
        (16, 1, 1.0, None),
    ],
)
def test_decode_rate_is_null_never_zero_or_infinite(
    n: int | None, k1: int | None, first: float | None, finish: float | None
) -> None:
    assert d.decode_tok_s(n, k1, first, finish) is None


def test_a_short_answer_counts_for_bytes_only() -> None:
    assert [d.counts_for_speed(n) for n in (None, 31, 32)] == [False, False, True]


def test_gaps_are_per_chunk() -> None:
    assert d.inter_chunk_latencies([1.0, 1.25, 1.75]) == [0.25, 0.5]
    assert d.inter_chunk_latencies([1.0]) == []


def test_makespan_is_first_send_to_last_end_of_all() -> None:
    assert d.makespan([2.0, 1.0, None], [5.0, None, 9.0]) == 8.0
    assert d.makespan([None], [1.0]) is None
    assert d.makespan([], []) is None


def test_aggregate_is_over_the_makespan_and_never_partial() -> None:
    assert d.aggregate_tok_s([100, 300], 4.0) == 100.0
    assert d.aggregate_tok_s([100, None], 4.0) is None
    assert d.aggregate_tok_s([], 4.0) is None
    assert d.aggregate_tok_s([100], None) is None


def test_speculation_ratios() -> None:
    assert d.acceptance_rate(4, 5) == 0.8
    assert d.acceptance_rate(0, 0) is None
    assert d.acceptance_rate(None, 5) is None
    assert d.mean_acceptance_length(4, 1) == 5.0
    assert d.mean_acceptance_length(0, 0) is None


def test_tokens_per_step_counts_the_steps_that_drafted_nothing() -> None:
    assert d.tokens_per_step(8, [1, 1, 1, 5]) == 2.0
    assert d.tokens_per_step(16, [4, 4, 4, 4]) == 4.0
    assert d.tokens_per_step(8, [1, 1, 1, 5, 0]) == 2.0  # a finish chunk without a token is no step
    assert d.tokens_per_step(8, []) is None
    assert d.tokens_per_step(None, [1]) is None


def test_overrun_is_what_was_accepted_beyond_the_end() -> None:
    assert d.overrun(8, [1, 1, 1, 5], 4) == 0
    assert d.overrun(6, [1, 1, 1, 3], 4) == 2  # five tokens came of the last step, three were kept
    assert d.overrun(6, [1, 5], None) is None
