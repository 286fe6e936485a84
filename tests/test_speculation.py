"""Speculation in records: counters held against the replay, the cost of a step, predicted speeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ngramfactory import BASELINE_S, FULL_S, NONE_S, PART_S, pair
from recordfactory import a_record
from samebytes import analysis, replay, speculation
from samebytes import record as records
from samebytes.errors import UsageError
from samebytes.record import Record, Request
from samebytes.replay import ARTICLE, Answer, Settings
from samebytes.speculation import StepCost, StepTime, Timing

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "fixtures" / "replay"


def committed(folder: Path) -> list[Path]:
    """Return the complete runs of a folder that speculated by n-gram."""
    found = []
    for path in sorted(folder.glob("*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("status") == "complete" and '"ngram"' in " ".join(raw["config"]["argv"]):
            found.append(path)
    return found


STUDIES = [FIXTURES, *sorted(path.parent for path in (ROOT / "results").glob("*/baseline.json"))]
RUNS = [path for study in STUDIES for path in committed(study)]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


# --- exactness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_study_speculated(study: Path) -> None:
    assert committed(study), f"{study.name} has a baseline and no n-gram run: nothing proves the replay there"


@pytest.mark.parametrize("path", RUNS, ids=named)
def test_counters_are_replayed_from_the_answers(path: Path) -> None:
    """Drafts and draft tokens of every prompt; accepted tokens but for what the last draft leaves open."""
    found = records.load(path)
    checks = speculation.check(found)
    assert [c.id for c in checks] == [r.id for r in found.sequential() if r.status == "ok" and r.drafts is not None]
    assert len(checks) > 0
    wrong = [c for c in checks if not c.exact or not c.steps_agree]
    assert wrong == []


@pytest.mark.parametrize("path", RUNS, ids=named)
def test_a_baseline_alone_predicts_the_counters(path: Path) -> None:
    """Without any speculation recorded: exact wherever the speculating server gave the same answer."""
    reference = path.parent / path.name.replace("ngram", "baseline")
    if not reference.exists():
        reference = path.parent / "baseline.json"
    checks = [c for c in speculation.check(records.load(path), records.load(reference)) if c.same_answer]
    assert len(checks) > 0
    assert [c.id for c in checks if not c.exact] == []


def test_other_counters_are_no_match() -> None:
    found = records.load(FIXTURES / "ngram.json")
    request = found.passes[0].requests[2]
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        wrong = found.model_copy(deep=True)
        setattr(wrong.passes[0].requests[2], name, getattr(request, name) + 1)
        assert [c.id for c in speculation.check(wrong) if not c.exact] == [request.id]
    wrong = found.model_copy(deep=True)
    wrong.passes[0].requests[2].accepted_per_pos = [5, 5, 3, 1, 1]
    assert [c.id for c in speculation.check(wrong) if not c.exact] == [request.id]
    wrong = found.model_copy(deep=True)
    (t0, one), (t1, _), *rest = request.chunks
    wrong.passes[0].requests[2].chunks = [(t0, one), (t1, 2), *rest]
    assert [c.id for c in speculation.check(wrong) if not c.steps_agree] == [request.id]


def test_a_run_that_did_not_speculate_is_refused() -> None:
    with pytest.raises(UsageError, match="did not speculate"):
        speculation.check(records.load(FIXTURES / "baseline.json"))
    with pytest.raises(UsageError, match="did not speculate"):
        speculation.timings(records.load(FIXTURES / "baseline.json"))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["--speculative-config", json.dumps(ARTICLE.flag())], ARTICLE),
        (["--speculative-config=" + json.dumps(ARTICLE.flag())], ARTICLE),
        (["--speculative-config", '{"method": "ngram_gpu", "num_speculative_tokens": 5}'], None),
    ],
)
def test_settings_are_read_from_the_command_line(argv: list[str], expected: Settings | None) -> None:
    found = a_record("any", flags=argv)
    assert speculation.settings_of(found) == expected
    assert speculation.speculates(found) == bool(argv)


@pytest.mark.parametrize(
    ("vllm", "gpu", "expected"),
    [("0.20.0", "H200", "v1"), ("0.32.0", None, "v1"), ("0.32.1+cu130", "H200", "v2"), (None, "H200", "v1")],
)
def test_the_rule_is_the_servers(vllm: str | None, gpu: str | None, expected: replay.Runner) -> None:
    found = a_record("any")
    found.versions.vllm, found.machine.gpu = vllm, gpu
    assert speculation.runner_of(found) == expected


@pytest.mark.parametrize(
    "changes", [{"status": "timeout"}, {"token_ids": None}, {"prompt_token_ids": None}, {"completion_tokens": 121}]
)
def test_only_whole_answers_are_replayed(changes: dict[str, Any]) -> None:
    request = pair()[0].passes[0].requests[0]
    assert speculation.replayable(request)
    assert not speculation.replayable(Request.model_validate(request.model_dump() | changes))


# --- cost of a step ------------------------------------------------------------------------------


def timing(key: str, *spans: tuple[dict[str, int], int, float]) -> Timing:
    """Return a timing of (steps in a span, spans, seconds)."""
    return Timing(key, {tuple(sorted(steps.items())): (times, seconds) for steps, times, seconds in spans})  # type: ignore[misc]


@pytest.mark.parametrize("changed", [None, 2])
def test_step_times_are_found_from_the_chunks(changed: int | None) -> None:
    """Also where a prompt's chunks hold two steps each, of one kind or of two."""
    _, speculated = pair(changed)
    found = speculation.timings(speculated)
    if changed is not None:
        assert {sum(n for _, n in key) for key in found[changed].spans} >= {2}
        assert any(len(key) == 2 for key in found[changed].spans)
    times = speculation.step_times(found)
    assert times["none"].mean_s == pytest.approx(NONE_S)
    assert times["full"].mean_s == pytest.approx(FULL_S)
    steps = [
        step
        for r in speculated.sequential()
        for step in Answer(r.prompt_token_ids or (), r.token_ids or ()).steps(ARTICLE)[1:]
    ]
    assert times["full"].steps == sum(step.drafted == 5 for step in steps)
    assert times["none"].steps == sum(step.drafted == 0 for step in steps)
    assert times["part"] == StepTime(sum(0 < step.drafted < 5 for step in steps), times["part"].mean_s)


def test_time_adds_up() -> None:
    """A mean, not a median: what a rare slow step takes is paid; the sum of all parts is the sum of all time."""
    found = [
        timing("a", ({"none": 1}, 3, 0.03), ({"none": 1, "full": 1}, 1, 0.06)),
        timing("b", ({"none": 1}, 1, 0.17), ({"full": 2}, 1, 0.20)),
    ]
    # alone: none 0.2 / 4 = 0.05, full 0.2 / 2 = 0.1; the mixed 0.06 is shared 1 : 2
    times = speculation.step_times(found)
    assert times["none"] == StepTime(5, pytest.approx(0.22 / 5))
    assert times["full"] == StepTime(3, pytest.approx(0.24 / 3))
    assert times["part"] == StepTime(0, None)


def test_mixed_time_of_a_kind_never_seen_alone_is_left_out() -> None:
    times = speculation.step_times([timing("a", ({"none": 1}, 2, 0.02), ({"none": 1, "part": 1}, 1, 0.5))])
    assert times["none"] == StepTime(2, pytest.approx(0.01))
    assert times["part"] == StepTime(0, None)


def test_a_token_of_a_run_that_does_not_speculate() -> None:
    baseline, _ = pair()
    merged = baseline.passes[0].requests[0]
    merged.chunks = [merged.chunks[0], (merged.chunks[2][0], 2), *merged.chunks[3:]]
    found = speculation.token_time(baseline)
    assert found == StepTime(6 * 119, pytest.approx(BASELINE_S))
    assert speculation.token_time(a_record("empty", ids=[])) == StepTime(0, None)


def test_a_chunk_of_unknown_size_times_nothing() -> None:
    baseline, speculated = pair()
    for record in (baseline, speculated):
        unknown = record.passes[0].requests[1]
        unknown.chunks = [(t, None) for t, _ in unknown.chunks]
    assert speculation.token_time(baseline).steps == 5 * 119
    assert len(speculation.timings(speculated)) == 5


def test_prompts_whose_chunks_are_no_steps_of_the_replay_are_left_out() -> None:
    _, speculated = pair()
    broken = speculated.passes[0].requests[0]
    first, second, *rest = [n for _, n in broken.chunks]
    moved = [first, (second or 0) + 1, *rest]
    broken.chunks = [(t, n) for (t, _), n in zip(broken.chunks, moved, strict=True)]
    assert {t.id for t in speculation.timings(speculated)} == {r.id for r in speculated.sequential()[1:]}


def test_without_enough_steps_there_is_no_cost() -> None:
    assert speculation.step_cost([], 5) is None
    _, few = pair(once=True)
    assert speculation.step_times(speculation.timings(few))["full"].steps > 0
    assert speculation.step_cost(speculation.timings(few)[:4], 5) is None
    assert speculation.pool([]) is None


def test_what_was_not_measured_is_taken_from_what_was() -> None:
    full = [timing("a", ({"full": 1}, 20, 0.4))]
    assert speculation.step_cost(full, 5, 0.01, 0.015) == StepCost(0.01, 0.015, 0.015, ((5, pytest.approx(0.02)),), n=1)
    bare = speculation.step_cost(full, 5)
    assert bare is not None
    assert bare.none_s == bare.single_s == bare.baseline_s == pytest.approx(0.02)
    both = [*full, timing("b", ({"none": 1}, 20, 0.8))]
    alone = speculation.step_cost(both, 5)
    assert alone == StepCost(
        pytest.approx(0.04), pytest.approx(0.04), pytest.approx(0.04), ((5, pytest.approx(0.02)),), n=2
    )


def test_full_drafts_run_straight_from_a_single_token() -> None:
    cost = StepCost(1.0, 1.0, 1.1, ((2, 1.2), (5, 1.5)))
    assert [cost.full_s(k) for k in (1, 2, 3, 5)] == pytest.approx([1.1, 1.2, 1.3, 1.5])
    assert cost.full_s(10) == pytest.approx(2.0)
    assert cost.reach == 5
    # a full draft measured quicker than a single token: more tokens never take less time
    assert [StepCost(1.0, 1.0, 1.0, ((5, 0.9),)).full_s(k) for k in (1, 5, 10)] == pytest.approx([0.9] * 3)


def test_a_short_draft_costs_no_less_than_none() -> None:
    graphs = StepCost(1.0, 1.0, 4.0, ((5, 1.5),))
    assert [graphs.step_s(d, 5) for d in (0, 1, 4, 5)] == pytest.approx([4.0, 4.0, 4.0, 1.5])
    # what is a full draft hangs on k
    assert graphs.step_s(3, 3) == pytest.approx(1.3)
    rows = StepCost(1.0, 1.0, 1.1, ((5, 1.5),))
    assert [rows.step_s(d, 5) for d in (0, 1, 4, 5)] == pytest.approx([1.1, 1.1, 1.4, 1.5])


def test_speed_up_by_hand() -> None:
    # prompt's step, one without a draft, and one that verifies five tokens of which two are accepted: 5 tokens
    found = Answer([7, 1, 2, 3, 4, 9, 8], [1, 2, 3, 4, 5]).replay(ARTICLE)
    assert (found.steps, found.drafts, found.accepted_tokens) == (3, 1, 2)
    cost = StepCost(0.010, 0.011, 0.030, ((5, 0.014),))
    assert cost.seconds(found) == pytest.approx(0.044)
    assert cost.speed_up(found) == pytest.approx(4 * 0.010 / 0.044)
    # the same draft is short of k=8: priced as such
    longer = Answer([7, 1, 2, 3, 4, 9, 8], [1, 2, 3, 4, 5]).replay(Settings(8, 2, 4))
    assert longer.drafts_of[8] == 0
    assert cost.seconds(longer) == pytest.approx(0.030 + max(0.030, cost.full_s(longer.draft_tokens)))


def test_an_assumed_cost_is_in_baseline_steps() -> None:
    found = Answer([7, 1, 2, 3, 4, 9, 8], [1, 2, 3, 4, 5]).replay(ARTICLE)
    assert speculation.assumed().speed_up(found) == pytest.approx(4 / 2)
    assert speculation.assumed(1.5).speed_up(found) == pytest.approx(4 / 2.5)
    assert speculation.assumed().n == 0


def test_pooled_runs_count_alike() -> None:
    found = speculation.pool(
        [
            StepCost(1.0, 1.0, 2.0, ((5, 1.0),), n=6),
            StepCost(1.0, 3.0, 4.0, ((5, 2.0),), n=4),
            StepCost(1.0, 2.0, 3.0, ((3, 1.0),), n=6),
        ]
    )
    assert found == StepCost(1.0, 2.0, 3.0, ((3, 1.0), (5, 1.5)), n=6)


def test_what_a_run_is_held_against() -> None:
    baseline, speculated = pair()
    again = baseline.model_copy(deep=True)
    again.label = "baseline-2"
    for request in again.passes[0].requests:
        request.decode_tok_s = 4 * (request.decode_tok_s or 0)
        request.chunks = [(t / 4, n) for t, n in request.chunks]
    sync = pair()[0].model_copy(deep=True)
    sync.config.name, sync.label = "baseline_sync", "baseline_sync"
    for request in sync.passes[0].requests:
        request.chunks = [(2 * t, n) for t, n in request.chunks]
    elsewhere = pair()[0]
    elsewhere.config.env = {"VLLM_BATCH_INVARIANT": "1"}
    for record in (baseline, again):
        record.launches[0].async_scheduling = True
    for record in (sync, speculated):
        record.launches[0].async_scheduling = False
    found = speculation.plain_of(speculated, [baseline, again, sync, elsewhere, speculated])
    assert found.baseline_s == pytest.approx(BASELINE_S * (1 + 1 / 4) / 2)
    assert found.single_s == pytest.approx(2 * BASELINE_S)
    key = baseline.sequential()[0].id
    assert found.tok_s[key] == pytest.approx(2 / BASELINE_S)
    assert found.answers[key] == baseline.sequential()[0].token_ids
    nothing = speculation.plain_of(speculated, [elsewhere])
    assert (nothing.baseline_s, nothing.single_s, nothing.tok_s, nothing.answers) == (None, None, {}, {})


# --- predicted against measured speed ------------------------------------------------------------


def predicted(speculated: Record, baseline: Record, costs: Record | None = None) -> list[speculation.Prediction]:
    return speculation.predict(speculated, speculation.plain_of(speculated, [baseline]), costs)


def test_predicted_speed_is_the_measured_one_where_the_model_holds() -> None:
    baseline, speculated = pair()
    found = predicted(speculated, baseline)
    assert [p.id for p in found] == [r.id for r in baseline.sequential()]
    for p in found:
        assert p.error == pytest.approx(0, abs=1e-9)
        assert p.speed_up == pytest.approx(p.measured_speed_up)
        assert p.step_cost is not None
        assert p.speed_up == pytest.approx(p.tokens_per_step / p.step_cost)
        assert p.speed_up == pytest.approx(p.tok_s * BASELINE_S)
        assert p.interval is not None
        assert p.interval.low <= p.tok_s * (1 + 1e-9)
        assert p.same_answer
    # the prompts' mixes of steps differ: one cost for all cannot be right
    assert max(abs(p.one_cost_tok_s / p.measured_tok_s - 1) for p in found) > 0.05


def test_a_prompt_does_not_predict_itself() -> None:
    """A prompt whose own steps were ten times as slow is predicted from the others, in either run."""
    baseline, speculated = pair()
    honest = predicted(speculated, baseline)[0]
    slow = speculated.passes[0].requests[0]
    slow.chunks = [(t * 10, n) for t, n in slow.chunks]
    assert predicted(speculated, baseline)[0].tok_s == pytest.approx(honest.tok_s)
    assert predicted(pair()[1], baseline, speculated)[0].tok_s == pytest.approx(honest.tok_s)


def test_one_runs_cost_predicts_another_with_other_settings() -> None:
    baseline, costs = pair()
    _, other = pair(settings=Settings(3, 1, 4))
    for p in predicted(other, baseline, costs):
        counters = Answer(*_ids(other, p.id)).replay(Settings(3, 1, 4))
        full = BASELINE_S + (FULL_S - BASELINE_S) * 3 / 5
        seconds = counters.drafts_of[3] * full + (counters.steps - 1 - counters.drafts_of[3]) * NONE_S
        assert p.tok_s == pytest.approx((counters.tokens - 1) / seconds)
    assert speculation.forecast(other, costs, speculation.plain_of(other, [baseline])).run_to_run is None  # type: ignore[union-attr]


def _ids(record: Record, key: str) -> tuple[list[int], list[int]]:
    request = next(r for r in record.sequential() if r.id == key)
    return request.prompt_token_ids or [], request.token_ids or []


def test_short_and_untimed_answers_are_not_predicted() -> None:
    baseline, speculated = pair()
    untimed, blind = speculated.passes[0].requests[:2]
    untimed.decode_tok_s, blind.prompt_token_ids = None, None
    assert len(predicted(speculated, baseline)) == 4
    short = speculated.passes[0].requests[2]
    short.completion_tokens, short.token_ids = 31, (short.token_ids or [])[:31]
    assert len(predicted(speculated, baseline)) == 3


def test_without_a_baseline_there_is_a_speed_and_no_speed_up() -> None:
    _, speculated = pair()
    for p in speculation.predict(speculated, speculation.plain_of(speculated, [])):
        assert p.error == pytest.approx(0, abs=1e-9)
        assert (p.speed_up, p.measured_speed_up, p.step_cost, p.same_answer) == (None, None, None, None)


def test_another_answer_than_the_baselines_is_told() -> None:
    baseline, speculated = pair()
    changed = baseline.passes[0].requests[3]
    changed.token_ids = [*(changed.token_ids or [])[:-1], 77]
    assert [p.same_answer for p in predicted(speculated, baseline)] == [True, True, True, False, True, True]


def test_errors_of_a_forecast_by_hand() -> None:
    baseline, speculated = pair()
    other = speculated.model_copy(deep=True)
    other.label = "ngram-2"
    requests = other.passes[0].requests
    for request, factor in zip(requests, (1.0, 1.0, 1.0, 1.1, 1.25, 2.0), strict=True):
        request.decode_tok_s = factor * (request.decode_tok_s or 0)
    plain = speculation.plain_of(other, [baseline])
    own, crossed = (speculation.forecast(other, costs, plain) for costs in (other, speculated))
    assert own is not None
    assert crossed is not None
    # predicted over measured: 1, 1, 1, 1/1.1, 0.8, 0.5
    assert own.by_kind.median == pytest.approx((0 + 1 - 1 / 1.1) / 2)
    assert own.by_kind.worst == pytest.approx(0.5)
    assert own.run_to_run is None
    assert crossed.run_to_run is not None
    assert crossed.run_to_run.median == pytest.approx(own.by_kind.median)
    assert crossed.run_to_run.worst == pytest.approx(0.5)
    assert own.within == (5, 6)
    assert (crossed.label, crossed.costs) == ("ngram-2", "ngram")


def test_a_forecast_needs_something_to_predict() -> None:
    baseline, few = pair(once=True)
    few.passes[0].requests[4:] = []
    assert speculation.forecast(few, few, speculation.plain_of(few, [baseline])) is None


def test_a_study_is_predicted_run_by_run() -> None:
    baseline, speculated = pair()
    again, invariant, gpu, broken = (speculated.model_copy(deep=True) for _ in range(4))
    again.label, invariant.label, gpu.label, broken.label = "ngram-2", "ngram_bi", "ngram_gpu", "broken"
    invariant.config.env = {"VLLM_BATCH_INVARIANT": "1"}
    gpu.config.argv = ["--speculative-config", '{"method": "ngram_gpu", "num_speculative_tokens": 5}']
    broken.status = "failed"
    study = [baseline, speculated, again, invariant, gpu, broken]
    found = speculation.forecasts(study, ["baseline"])
    assert [(f.label, f.costs) for f in found] == [
        ("ngram", "ngram"),
        ("ngram", "ngram-2"),
        ("ngram-2", "ngram-2"),
        ("ngram-2", "ngram"),
        ("ngram_bi", "ngram_bi"),
    ]
    assert found[0].predictions[0].speed_up is not None
    assert found[4].predictions[0].speed_up is None
    rows = speculation.rows(study, ["baseline"])
    assert [(r.label, r.k) for r in rows] == [("baseline", None), ("ngram", 5), ("ngram-2", 5), ("ngram_bi", 5)]
    assert [r.baseline_s for r in rows] == [pytest.approx(BASELINE_S)] * 3 + [None]
    assert rows[0].none == StepTime(6 * 119, pytest.approx(BASELINE_S))
    assert rows[1].full.mean_s == pytest.approx(FULL_S)
    assert rows[1].part == StepTime(rows[1].part.steps, pytest.approx(PART_S) if rows[1].part.steps else None)


@pytest.mark.parametrize("study", [s for s in STUDIES if s != FIXTURES], ids=lambda path: path.name)
def test_a_cost_for_each_kind_predicts_better_than_one(study: Path) -> None:
    found = analysis.load(study)
    own = [f for f in speculation.forecasts(found, ["baseline", "baseline_batch_invariant"]) if f.label == f.costs]
    assert own
    for forecast in own:
        assert forecast.by_kind.median <= max(0.15, forecast.one_cost.median)
