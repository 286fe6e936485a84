"""Verdicts on hand-made traces: a tie, a push, a real change, a prefix, a probe that strays, a token out of sight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebytes import margins
from samebytes.compare import Comparison
from samebytes.margins import Explanation, Gap, Moves, Trace

A, B, C, EOS = 1, 2, 3, 0


def trace(rows: Sequence[dict[int, float]], key: str = "rag/x", until: int | None = None) -> Trace:
    """Return a trace whose tokens are the first of each row; a row is token to score."""
    tokens = tuple(next(iter(row)) for row in rows)
    return Trace(key, key.split("/")[0], tokens, tuple(tuple(row.items()) for row in rows), until)


def sure(n: int = 4) -> list[dict[int, float]]:
    """Return rows that nothing will turn over."""
    return [{A: 30.0, B: 20.0, C: 10.0}] * n


def yardstick(*values: float) -> Moves:
    return Moves(tuple(sorted(values)), 0, 1, 0)


def explain(
    one: Trace, two: Trace, at: int | None, cls: Any = "differs", by: Moves | None = None, others: int = 0
) -> Explanation:
    """Explain one prompt; ``others`` further prompts agree, and move by 1 at each token."""
    ours, theirs = {one.id: one}, {two.id: two}
    comparisons = {one.id: Comparison(cls, cls, "same", token_index=at)}
    for i in range(others):
        key = f"rag/{i}"
        ours[key] = trace(sure(), key)
        theirs[key] = trace([{A: 29.0, B: 20.0, C: 10.0}] * 4, key)
        comparisons[key] = Comparison("same", "same", "same")
    return margins.explain(ours, theirs, comparisons, by)


def test_a_tie_broken_by_rounding() -> None:
    one = trace([*sure(2), {A: 20.125, B: 20.0, C: 5.0}])
    two = trace([*sure(2), {B: 20.125, A: 20.0, C: 5.0}])
    found = explain(one, two, 2, by=yardstick(0.0, 0.125, 0.25))
    (divergence,) = found.divergences
    assert divergence.verdict == "tie broken by rounding"
    assert (divergence.token_a, divergence.token_b, divergence.at) == (A, B, 2)
    assert (divergence.ours, divergence.theirs, divergence.move) == (Gap(0.125), Gap(0.125), Gap(0.25))
    assert divergence.rank == pytest.approx(1 / 3)
    assert divergence.step == 0.125
    assert found.digits == 8
    assert found.counts["tie broken by rounding"] == found.reproduced == 1


def test_an_exact_tie_is_a_case_of_its_own_and_needs_no_yardstick_on_its_side() -> None:
    one = trace([{A: 20.0, B: 20.0, C: 5.0}])
    two = trace([{B: 20.125, A: 20.0, C: 5.0}])
    assert explain(one, two, 0, by=yardstick(0.125)).divergences[0].verdict == "exact tie"
    assert explain(one, two, 0, by=yardstick(0.0), others=1).divergences[0].verdict == "pushed over by this config"


def test_pushed_over_by_what_the_config_does_everywhere() -> None:
    one = trace([*sure(2), {A: 20.5, B: 20.0, C: 5.0}])
    two = trace([*sure(2), {B: 20.25, A: 20.0, C: 5.0}])
    found = explain(one, two, 2, by=yardstick(0.0, 0.125), others=30)
    (divergence,) = found.divergences
    assert divergence.verdict == "pushed over by this config"
    assert divergence.limit == 1.0
    assert divergence.move == Gap(0.75)


def test_a_real_change_moves_further_than_the_config_does_elsewhere() -> None:
    one = trace([*sure(2), {A: 22.0, B: 20.0, C: 5.0}])
    two = trace([*sure(2), {B: 22.0, A: 20.0, C: 5.0}])
    (divergence,) = explain(one, two, 2, by=yardstick(0.0, 0.125), others=30).divergences
    assert divergence.verdict == "a real change"
    assert divergence.move == Gap(4.0)


def test_the_place_itself_is_no_evidence_of_what_the_config_does_elsewhere() -> None:
    one, two = trace([{A: 22.0, B: 20.0, C: 5.0}]), trace([{B: 22.0, A: 20.0, C: 5.0}])
    found = explain(one, two, 0, by=yardstick(0.125))
    assert found.config.values == (4.0,)
    assert found.divergences[0].limit is None
    found = explain(one, two, 0, by=yardstick(0.125), others=1)
    assert found.divergences[0].limit == 1.0
    assert found.divergences[0].verdict == "a real change"


def test_one_that_ends_where_the_other_goes_on_parts_at_the_end_token() -> None:
    one = trace([*sure(2), {EOS: 20.125, B: 20.0, C: 5.0}])
    two = trace([*sure(2), {B: 20.125, EOS: 20.0, C: 5.0}, *sure(1)])
    (divergence,) = explain(one, two, 2, "length", by=yardstick(0.25)).divergences
    assert (divergence.cls, divergence.verdict) == ("length", "tie broken by rounding")
    assert (divergence.token_a, divergence.token_b) == (EOS, B)


def test_one_that_has_no_token_there_is_not_explained() -> None:
    (divergence,) = explain(trace(sure(2)), trace(sure(4)), 2, "length", by=yardstick(0.25)).divergences
    assert divergence.verdict == "probe does not reproduce"


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("until", "explained"), [(1, False), (2, False), (3, True)])
def test_a_probe_that_leaves_its_record_explains_nothing_from_there_on(side: int, until: int, explained: bool) -> None:
    rows = [*sure(2), {A: 20.125, B: 20.0, C: 5.0}], [*sure(2), {B: 20.125, A: 20.0, C: 5.0}]
    one, two = (trace(r, until=until if i == side else None) for i, r in enumerate(rows))
    found = explain(one, two, 2, by=yardstick(0.25))
    assert (found.divergences[0].verdict == "probe does not reproduce") is not explained
    assert found.reproduced == explained
    if not explained:
        assert found.divergences[0].ours is None


def test_a_token_out_of_sight_gives_a_bound() -> None:
    one = trace([{A: 20.125, C: 20.0, 4: 19.5}])
    two = trace([{B: 20.125, A: 20.0, C: 5.0}])
    (divergence,) = explain(one, two, 0, by=yardstick(1.0), others=30).divergences
    assert divergence.ours == Gap(0.625, bound=True)
    assert divergence.move == Gap(0.75, bound=True)
    assert divergence.verdict == "outside the candidates"
    # Moved by more than elsewhere whatever its score was.
    one = trace([{A: 22.0, C: 20.0, 4: 19.5}])
    assert explain(one, two, 0, by=yardstick(1.0), others=30).divergences[0].verdict == "a real change"


def test_equal_text_from_other_tokens_parts_too() -> None:
    one, two = trace([{A: 20.125, B: 20.0}]), trace([{B: 20.125, A: 20.0}])
    (divergence,) = explain(one, two, 0, "same bytes, other tokens", by=yardstick(0.25)).divergences
    assert divergence.cls == "same bytes, other tokens"


def test_answers_that_were_not_compared_are_left_out() -> None:
    one, two = trace([{A: 20.125, B: 20.0}]), trace([{B: 20.125, A: 20.0}])
    found = explain(one, two, 0, "missing", by=yardstick(0.25))
    assert (found.divergences, found.workloads) == ((), ())


# -- the pieces --------------------------------------------------------------------------------------------------------


def test_parts_at() -> None:
    assert margins.parts_at([1, 2], [1, 2]) is None
    assert margins.parts_at([1, 2], [1, 3]) == 1
    assert margins.parts_at([1, 2], [1]) == 1
    assert margins.parts_at([], [1]) == 0


def test_gaps_are_those_of_the_reference_s_tokens_up_to_the_first_other_one() -> None:
    one = trace([{A: 20.0, B: 19.0, C: 1.0}, {A: 20.0, C: 18.0}, {A: 20.0, B: 19.5}, *sure(1)])
    two = trace([{A: 20.0, B: 19.5, C: 1.0}, {A: 20.0, B: 18.0}, {B: 20.0, A: 19.5}, *sure(1)])
    assert margins.gaps(one, two) == [0.5, None, -0.5]
    assert margins.gaps(one, one) == list(one.margins)
    moved = margins.between([(one, two), (one, one)])
    assert moved == Moves((0.0, 0.0, 0.0, 0.0, 0.5, 1.0), unseen=1, answers=2, parted=1)
    assert moved.still == pytest.approx(4 / 6)
    assert moved.without(0.5).values == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert moved.without(0.7) == moved


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_the_step_is_the_distance_to_the_next_number_of_the_type(x: float) -> None:
    assert margins.step(x, 53) == math.ulp(x)
    assert margins.step(-x, 8) == margins.step(x, 8) == math.ldexp(math.ulp(x), 53 - 8)


def test_the_step_of_a_bfloat16_logit() -> None:
    assert margins.step(20.0, 8) == 0.125
    assert margins.step(16.0, 8) == 0.125
    assert margins.step(15.9375, 8) == 0.0625
    assert margins.step(-33.25, 8) == 0.25
    assert margins.step(0.0, 8) == 0.0
    assert margins.digits([trace([{A: 20.125, B: -0.0078125}])]) == 8
    assert margins.digits([trace([{A: 20.125, B: 20.0001}])]) == 24


def test_how_probable_a_flip_is() -> None:
    moved = yardstick(0.0, 0.0, 0.25, 0.5)
    # Half of the moves go towards the runner-up; of those as large as the margin, half.
    assert moved.flips(0.3) == 1 / 8
    assert moved.flips(0.25) == (1 + 0.5) / 8
    assert moved.flips(0.5) == 0.5 / 8
    assert moved.flips(1.0) == 0.0
    # At an exact tie any move towards it will do, and no move changes nothing.
    assert moved.flips(0.0) == 2 / 8
    assert yardstick().flips(0.0) == 0.0


def test_expected_and_observed_are_counted_by_prompt() -> None:
    one = trace([{A: 20.0, B: 20.0}, {A: 20.0, B: 19.75}])
    two = trace([{B: 20.0, A: 19.75}, {A: 20.0, B: 19.75}])
    found = explain(one, two, 0, by=yardstick(0.0, 0.5), others=1)
    (workload,) = found.workloads
    # p = 1/4 at both tokens of the one prompt, 0 at the four of the other, whose margins are 10.
    assert workload.expected == pytest.approx(1 - (3 / 4) ** 2)
    assert (workload.prompts, workload.parted, workload.ties) == (2, 1, 1)
    assert workload.margins == (0.0, 0.25, 10.0, 10.0, 10.0, 10.0)
    assert workload.within == 2


def test_without_a_yardstick_only_the_config_s_own_moves_are_left() -> None:
    one, two = trace([{A: 20.125, B: 20.0}]), trace([{B: 20.125, A: 20.0}])
    found = explain(one, two, 0, others=3)
    assert found.threshold is None
    assert found.divergences[0].verdict == "pushed over by this config"
    assert found.workloads[0].expected is None
    assert found.workloads[0].within is None
    assert found.workloads[0].expected_config is not None
