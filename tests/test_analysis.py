from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recordfactory import a_launch, a_pass, a_record, answer, failed, prompt_ids, resumed
from samebytes import analysis, record
from samebytes.errors import RecordError, UsageError
from samebytes.findings import ALL, PassRow, Ratio, Summary, WorkloadSpeed
from samebytes.record import ClientLoad, Pass, Record, Sampling
from samebytes.stats import Interval, paired_ratio
from samebytes.validity import Validity

IDS = prompt_ids(8)


def study(**ngram: Any) -> list[Record]:
    """A baseline from two server starts and an ngram that is twice as fast."""
    return [
        a_record("baseline", ids=IDS),
        a_record("baseline-2", "baseline", ids=IDS),
        a_record("ngram", ids=IDS, **({"rate": 20.0} | ngram)),
    ]


def speed(summary: Summary, config: str, workload: str) -> WorkloadSpeed:
    return next(s for s in summary.config(config).speed if s.workload == workload)


def test_speed_up_is_the_ratio_over_the_same_prompts() -> None:
    summary = analysis.summarise(study(rates={"rag/0": 80.0}))
    assert summary.references == ("baseline",)
    assert [(p.reference, p.candidate) for p in summary.pairs] == [("baseline", "ngram")]
    code, rag, _ = summary.pair("baseline", "ngram").ratios
    assert code.decode is not None
    assert (code.decode.n, code.decode.ratio_of_medians, code.decode.geometric_mean) == (8, 2.0, pytest.approx(2.0))
    assert rag.decode is not None
    assert rag.decode.ratio_of_medians == 2.0
    assert rag.decode.geometric_mean == pytest.approx((2**7 * 8) ** (1 / 8))
    assert rag.ttft is not None
    assert rag.ttft.geometric_mean == 1.0
    assert speed(summary, "ngram", "rag").decode_tok_s == pytest.approx(20.0)


def test_a_config_against_a_copy_of_itself_is_one() -> None:
    rates = {key: 10.0 + i for i, key in enumerate(IDS)}
    records = [a_record("baseline", ids=IDS, rates=rates), a_record("again", ids=IDS, rates=rates)]
    for ratio in analysis.summarise(records).pair("baseline", "again").ratios:
        assert ratio.decode is not None
        assert ratio.decode.geometric_mean == 1.0
        assert ratio.decode.ratio_of_medians == 1.0
        assert ratio.decode.t_interval == Interval(1.0, 1.0) == ratio.decode.bootstrap_interval


def test_a_prompts_rate_is_the_geometric_mean_over_its_launches_and_the_spread_stands_apart() -> None:
    records = study()
    records.append(a_record("ngram-2", "ngram", ids=IDS, rates=dict.fromkeys(IDS, 45.0)))
    summary = analysis.summarise(records)
    assert summary.config("ngram").labels == ("ngram", "ngram-2")
    code = speed(summary, "ngram", "code_edit")
    assert code.decode_tok_s == pytest.approx(30.0)
    assert (code.spread_median, code.spread_max) == (pytest.approx(1.25), pytest.approx(1.25))
    assert speed(summary, "baseline", "code_edit").spread_median == 0.0
    ratio = summary.pair("baseline", "ngram").ratios[0].decode
    assert ratio is not None
    assert (ratio.n, ratio.geometric_mean) == (8, pytest.approx(3.0)), "the prompt is the sample, not the launch"


def test_a_single_launch_has_no_spread() -> None:
    assert speed(analysis.summarise(study()), "ngram", "rag").spread_max is None


def test_short_answers_count_for_bytes_not_for_speed() -> None:
    short = answer("rag/2", "a short one", n=31)
    summary = analysis.summarise(study(replace={"rag/2": short}))
    rag = speed(summary, "ngram", "rag")
    assert (rag.prompts, rag.answered, rag.timed, rag.failures) == (8, 8, 7, 0)
    pair = summary.pair("baseline", "ngram")
    assert pair.ratios[1].decode is not None
    assert pair.ratios[1].decode.n == 7
    assert pair.ratios[1].ttft is not None
    assert pair.ratios[1].ttft.n == 8
    assert {v.id: v.verdict for v in pair.verdicts}["rag/2"] == "differs"
    assert pair.bytes[-1].judged == 24


def test_one_failure_is_23_of_24_everywhere_and_leaves_both_sides() -> None:
    fast = {"rag/3": 1000.0}
    records = [
        a_record("baseline", ids=IDS, rates=fast),
        a_record("baseline-2", "baseline", ids=IDS, rates=fast),
        a_record("ngram", ids=IDS, replace={"rag/3": failed("rag/3")}),
    ]
    summary = analysis.summarise(records)
    run = next(r for r in summary.runs if r.label == "ngram")
    assert run.sequential == (23, 24)
    assert summary.passes[-1].answered == (23, 24)
    assert "ngram: 23/24 sequential requests answered" in summary.banners
    rag = speed(summary, "ngram", "rag")
    assert (rag.answered, rag.timed, rag.prompts, rag.failures) == (7, 7, 8, 1)
    pair = summary.pair("baseline", "ngram")
    everything = pair.bytes[-1]
    assert (everything.workload, everything.judged, everything.prompts) == (ALL, 23, 24)
    assert everything.counts["missing"] == 1
    ratio = pair.ratios[1]
    assert ratio.decode is not None
    assert (ratio.decode.n, ratio.decode.geometric_mean) == (7, pytest.approx(1.0)), "the 1000 tok/s went too"
    assert ratio.ttft is not None
    assert ratio.ttft.n == 7


def test_a_failure_in_one_of_two_runs_leaves_the_prompt_out_of_that_config() -> None:
    records = study()
    records[1] = a_record("baseline-2", "baseline", ids=IDS, replace={"rag/3": failed("rag/3")})
    summary = analysis.summarise(records)
    prompt = next(p for p in summary.config("baseline").prompts if p.id == "rag/3")
    assert (prompt.answered, prompt.decode_tok_s, prompt.ttft_s, prompt.tokens) == (False, None, None, (64, None))
    assert summary.pair("baseline", "ngram").bytes[-1].judged == 23
    assert (summary.controls[0].agrees, summary.controls[0].none) == (23, 1)


def test_control_and_verdicts_with_their_intervals() -> None:
    records = study(texts={"creative/0": "other words", "creative/1": "more"})
    records[1] = a_record("baseline-2", "baseline", ids=IDS, texts={"creative/1": "it wavers"})
    summary = analysis.summarise(records)
    control = summary.controls[0]
    assert (control.config, control.starts, control.agrees, control.disagrees) == ("baseline", 2, 23, 1)
    assert control.disagreeing == ("creative/1",)
    assert control.agree_rate is not None
    assert control.agree_rate.high == pytest.approx(0.9926, abs=1e-4)
    pair = summary.pair("baseline", "ngram")
    creative, everything = pair.bytes[2], pair.bytes[3]
    assert (creative.counts["same"], creative.counts["differs"], creative.counts["not attributable"]) == (6, 1, 1)
    assert everything.counts["same"] == 22
    assert everything.same_rate is not None
    assert everything.same_rate.low == pytest.approx(0.7415, abs=1e-4)


def test_a_resumed_baseline_is_no_control_and_says_so() -> None:
    records = [a_record("baseline", ids=IDS), resumed("baseline-2", "baseline", ids=IDS), a_record("fp8", ids=IDS)]
    summary = analysis.summarise(records)
    assert (summary.controls[0].starts, summary.controls[0].none, summary.controls[0].agree_rate) == (1, 24, None)
    assert any("no control" in banner for banner in summary.banners)
    assert next(r for r in summary.runs if r.label == "baseline-2").starts == 2


def test_a_voided_pass_is_told_and_counts_for_nothing() -> None:
    records = study()
    noise = a_pass([answer(key, "noise", rate=1.0) for key in IDS], voided="disturbed: foreign load 1.5 cores")
    records[2].passes = [noise, *records[2].passes]
    noise.metrics["generation_tokens"] = 1.0
    summary = analysis.summarise(records)
    assert [banner for banner in summary.banners if banner.startswith("ngram: pass 0")] == [
        "ngram: pass 0 voided: disturbed: foreign load 1.5 cores"
    ]
    assert summary.pair("baseline", "ngram").bytes[-1].counts["same"] == 24
    assert speed(summary, "ngram", "rag").decode_tok_s == pytest.approx(20.0)


def test_runs_that_failed_or_are_missing_are_listed_with_their_reason() -> None:
    reason = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
    records = [*study(), a_record("fp8", status="failed", reason=reason, passes=[], launches=[])]
    records.append(a_record("late", ids=IDS, status="partial", note="random weights"))
    summary = analysis.summarise(records, planned=[("baseline", "baseline"), ("ngram-gpu", "ngram_gpu")])
    states = {r.label: (r.config, r.status, r.reason) for r in summary.runs}
    assert states["fp8"] == ("fp8", "failed", reason)
    assert states["ngram-gpu"] == ("ngram_gpu", "not measured", None)
    assert states["late"][1] == "partial"
    assert f"fp8 failed: {reason}" in summary.banners
    assert "late: random weights" in summary.banners
    assert {c.name for c in summary.configs} == {"baseline", "ngram"}, "only complete runs have figures"


def test_a_study_of_failures_only_still_has_a_summary() -> None:
    summary = analysis.summarise([a_record("fp8", status="failed", reason="no", passes=[], launches=[])])
    assert (summary.configs, summary.pairs, summary.controls) == ((), (), ())


def test_each_reference_is_compared_with_and_numerics_are_never_mixed() -> None:
    invariant = {"VLLM_BATCH_INVARIANT": "1"}
    records = [
        *study(),
        a_record("baseline_sync", ids=IDS),
        a_record("baseline_batch_invariant", ids=IDS, env=invariant),
        a_record("ngram_batch_invariant", ids=IDS, env=invariant),
    ]
    summary = analysis.summarise(records)
    assert [(p.reference, p.candidate) for p in summary.pairs] == [
        ("baseline", "baseline_sync"),
        ("baseline", "ngram"),
        ("baseline_batch_invariant", "ngram_batch_invariant"),
        ("baseline_sync", "ngram"),
    ]
    chosen = analysis.summarise(records, references=["baseline_sync"], candidates=["ngram"])
    assert [(p.reference, p.candidate) for p in chosen.pairs] == [("baseline_sync", "ngram")]


def test_an_unknown_reference_candidate_or_pair_names_the_valid_ones() -> None:
    with pytest.raises(UsageError, match=r"'basline'.*'baseline'.*ngram"):
        analysis.summarise(study(), references=["basline"])
    with pytest.raises(UsageError, match="'fp8'"):
        analysis.summarise(study(), candidates=["fp8"])
    with pytest.raises(UsageError, match="ngram against baseline"):
        analysis.summarise(study()).pair("ngram", "baseline")


def test_a_candidate_that_asked_something_else_is_refused_and_the_rest_goes_on() -> None:
    records = [*study(), a_record("fp8", ids=IDS, sampling=Sampling(max_tokens=48))]
    summary = analysis.summarise(records)
    refused = summary.pair("baseline", "fp8").refused
    assert refused is not None
    assert "sampling.max_tokens (64 / 48)" in refused
    assert any("sampling.max_tokens" in banner for banner in summary.banners)
    assert summary.pair("baseline", "ngram").refused is None


def test_runs_of_one_config_must_have_asked_the_same() -> None:
    records = [
        a_record("baseline", ids=IDS),
        a_record("baseline-2", "baseline", ids=IDS, sampling=Sampling(max_tokens=48)),
    ]
    with pytest.raises(RecordError, match=r"sampling\.max_tokens"):
        analysis.summarise(records)


# -- acceptance and validity ------------------------------------------------------------------------------------------


def drafting(key: str) -> record.Request:
    # 44 steps, 64 tokens
    return answer(
        key,
        drafts=10,
        draft_tokens=50,
        accepted_tokens=21,
        accepted_per_pos=[9, 6, 3, 2, 1],
        chunks=[(float(i), None) for i in range(44)],
    )


def test_acceptance_per_prompt_workload_and_overall() -> None:
    summary = analysis.summarise(study(replace={"rag/0": drafting("rag/0"), "code_edit/0": drafting("code_edit/0")}))
    ngram = summary.config("ngram")
    assert ngram.acceptance["rag"].rate == pytest.approx(0.42)
    assert (ngram.acceptance[ALL].n, ngram.acceptance[ALL].overrun) == (2, 2)
    assert ngram.acceptance["creative"].n == 0
    assert ngram.acceptance["creative"].rate is None
    assert next(p for p in ngram.prompts if p.id == "rag/0").acceptance.mean_length == pytest.approx(3.1)
    assert summary.config("baseline").acceptance[ALL].drafts is None


def test_acceptance_leaves_out_a_prompt_that_failed_in_another_run() -> None:
    records = study(replace={"rag/0": drafting("rag/0")})
    records.append(a_record("ngram-2", "ngram", ids=IDS, replace={"rag/0": failed("rag/0")}))
    assert analysis.summarise(records).config("ngram").acceptance[ALL].n == 0


def test_validity_is_counted_over_all_runs() -> None:
    def check(request: record.Request) -> Validity | None:
        if request.workload == "creative":
            return None
        status = "invalid" if request.id == "rag/0" else "valid"
        return Validity(status, (), (), request.finish_reason, None, None, None)

    cut = answer("code_edit/1", finish_reason="length")
    summary = analysis.summarise(study(replace={"rag/1": failed("rag/1"), "code_edit/1": cut}), check=check)
    code, rag, creative = summary.config("ngram").validity
    assert (rag.answers, rag.checked, rag.valid) == (7, 7, 6)
    assert (code.valid, code.cut_off) == (8, 1)
    assert (creative.answers, creative.checked) == (0, 0)
    assert summary.config("baseline").validity[1].valid == 14


# -- the concurrent leg -----------------------------------------------------------------------------------------------


def leg(*texts: str, **changes: Any) -> Pass:
    """Copies of rag/0, sent half a second apart, 64 tokens in 10 s each."""
    copies = [answer("rag/0", text, rate=6.4, at=0.5 * i, copy_index=i) for i, text in enumerate(texts)]
    return a_pass(copies, kind="concurrent", dup=len(texts), **changes)


def test_the_concurrent_leg() -> None:
    records = study()
    same = "the answer to rag/0"
    records[0].passes = [*records[0].passes, leg(same, same, peak_kv_usage=0.5, client=ClientLoad(lag_p99_s=0.001))]
    slow = answer("rag/0", "other", rate=3.2, at=0.5, ttft_s=0.6, copy_index=1)
    failing = a_pass([answer("rag/0", rate=3.2), slow, failed("rag/0")], kind="concurrent", dup=2)
    failing.metrics["preemptions"] = 3.0
    records[2].passes = [*records[2].passes, failing]
    summary = analysis.summarise(records)
    (base,) = summary.config("baseline").concurrent
    assert base.makespan_s == pytest.approx(0.5 + 0.2 + 63 / 6.4)
    assert base.aggregate_tok_s == pytest.approx(128 / (0.7 + 63 / 6.4))
    assert (base.answered, base.copies_agree, base.same_as_sequential) == ((2, 2), (1, 1), (2, 2))
    assert (base.peak_kv_usage, base.client_lag_p99_s, base.preemptions) == (0.5, 0.001, 0.0)
    (ngram,) = summary.config("ngram").concurrent
    assert (ngram.answered, ngram.copies_agree, ngram.same_as_sequential) == ((2, 3), (0, 1), (1, 2))
    assert ngram.preemptions == 3.0
    assert (ngram.ttft_p50_s, ngram.ttft_p90_s) == (pytest.approx(0.4), pytest.approx(0.56))
    pair = summary.pair("baseline", "ngram")
    assert pair.bytes[-1].counts["same"] == 24, "the sequential verdicts know nothing of the concurrent texts"
    assert pair.concurrent_bytes is not None
    assert pair.concurrent_bytes.counts["differs (no control)"] == 1
    assert pair.aggregate_ratio == pytest.approx((128 / (0.7 + 63 / 3.2)) / (128 / (0.7 + 63 / 6.4)))
    assert "ngram: 2/3 concurrent requests answered" in summary.banners


def test_legs_of_other_shapes_are_not_compared() -> None:
    records = study()
    records[0].passes = [*records[0].passes, leg("a", "b")]
    records[2].passes = [*records[2].passes, leg("a", "b", "c")]
    pair = analysis.summarise(records).pair("baseline", "ngram")
    assert (pair.concurrent_bytes, pair.aggregate_ratio) == (None, None)


# -- what the figures rest on -----------------------------------------------------------------------------------------


def identities(p: Pass) -> dict[str, tuple[bool | None, str | None]]:
    (row,) = passes(p)
    return {i.name: (i.holds, i.note) for i in row.identities}


def passes(p: Pass) -> tuple[PassRow, ...]:
    ids = [r.id for r in p.requests]
    return analysis.summarise([a_record("baseline", ids=ids, passes=[p])]).passes


def test_identities_hold() -> None:
    assert identities(a_pass([answer("rag/0")])) == {
        "generation_tokens": (True, None),
        "prompt_tokens": (True, None),
        "prompt_tokens_cached": (True, None),
    }


@pytest.mark.parametrize(
    ("name", "value"), [("generation_tokens", 65.0), ("prompt_tokens", 19.0), ("prompt_tokens_cached", 16.0)]
)
def test_identities_break(name: str, value: float) -> None:
    p = a_pass([answer("rag/0")])
    p.metrics[name] = value
    assert identities(p)[name] == (False, None)
    banners = analysis.summarise([a_record("baseline", ids=["rag/0"], passes=[p])]).banners
    assert any(name in banner for banner in banners)


def test_counters_that_are_not_exported_are_not_zero() -> None:
    p = a_pass([answer("rag/0")], metrics={"generation_tokens": 64.0, "prompt_tokens": None})
    assert identities(p)["prompt_tokens"] == (None, "not exported")
    assert identities(p)["prompt_tokens_cached"] == (None, "not exported")
    cut = a_pass([answer("rag/0")], metrics={}, complete=False)
    assert identities(cut)["generation_tokens"] == (None, "the pass was cut short; its counters were not read")


def test_failures_may_leave_tokens_over_but_never_too_few() -> None:
    p = a_pass([answer("rag/0"), failed("rag/1")])
    p.metrics["generation_tokens"] = 70.0
    assert identities(p)["generation_tokens"] == (True, "6 more, put down to requests that failed (1)")
    p.metrics["generation_tokens"] = 60.0
    assert identities(p)["generation_tokens"][0] is False


def test_an_answer_without_a_token_count_cannot_be_summed() -> None:
    p = a_pass([answer("rag/0", completion_tokens=None)])
    assert identities(p)["generation_tokens"] == (None, "not known for 1 requests")


def test_drafts_per_prompt_add_up_to_the_servers() -> None:
    p = a_pass([drafting("rag/0"), drafting("rag/1")])
    p.metrics |= {"drafts": 20.0, "draft_tokens": 100.0, "accepted_tokens": 43.0}
    found = identities(p)
    assert (found["drafts"][0], found["draft_tokens"][0], found["accepted_tokens"][0]) == (True, True, False)


def test_memory_has_the_distinct_values_of_the_server_starts() -> None:
    def launched(label: str, **facts: Any) -> Record:
        return a_record(label, "baseline", launches=[a_launch(label, **facts)])

    records = [
        launched("baseline", kv_cache_tokens=33760, graph_bytes=5, async_scheduling=True),
        launched("baseline-2", kv_cache_tokens=33744, graph_bytes=5, attention_backend="FLASH_ATTN"),
    ]
    memory = analysis.summarise(records).config("baseline").memory
    assert memory.kv_cache_tokens == (33744, 33760)
    assert (memory.graph_bytes, memory.attention_backend, memory.async_scheduling) == ((5,), ("FLASH_ATTN",), (True,))
    assert memory.prefix_caching == (False,)


def test_timeline_has_every_event_of_every_server_start() -> None:
    summary = analysis.summarise([resumed("baseline")])
    events = [(m.launch, m.event, m.t_s) for m in summary.timeline]
    end = pytest.approx(40 + 0.2 + 6.3)
    assert events[:6] == [
        (0, "server start", 0.0),
        (0, "ready", 30.0),
        (0, "warmed up", 35.0),
        (0, "sequential pass begins", 40.0),
        (0, "sequential pass ends", end),
        (0, "server stopped", 58.0),
    ]
    assert events[6:8] == [(1, "server start", 0.0), (1, "ready", 30.0)]
    assert summary.timeline[0].at == "2026-11-29T10:00:00Z"


def test_a_server_that_never_got_ready_has_no_such_event() -> None:
    launch = a_launch("x", ready=None, ready_mono=None, warmed=None, warmed_mono=None)
    failing = a_record("fp8", status="failed", reason="no", passes=[], launches=[launch])
    assert [m.event for m in analysis.summarise([failing]).timeline] == ["server start", "server stopped"]


def test_another_machine_is_said_at_the_top() -> None:
    records = study()
    records[2].versions.vllm = "0.33.0"
    banners = analysis.summarise(records).banners
    assert "ngram against baseline: more than the config differs: vllm" in banners


def test_a_repeat_under_other_flags_is_said_at_the_top() -> None:
    records = [a_record("baseline"), a_record("baseline-2", "baseline", flags=["--enforce-eager"])]
    assert "baseline-2 is no repeat of baseline: they differ in --enforce-eager" in analysis.summarise(records).banners
    records[1] = a_record("baseline-2", "baseline")
    records[1].versions.git_commit = "abc"
    assert analysis.summarise(records).banners == ()


def test_a_running_server_is_said_at_the_top() -> None:
    joined = a_record("baseline", launches=[a_launch("m", started_by="base_url")])
    assert any("a running server was measured" in banner for banner in analysis.summarise([joined]).banners)


# -- files ------------------------------------------------------------------------------------------------------------


def test_load_reads_records_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no records in"):
        analysis.load(tmp_path)
    for found in study():
        record.save(found, tmp_path / f"{found.label}.json")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / ".half.json").write_text("{")
    assert [r.label for r in analysis.load(tmp_path)] == ["baseline", "baseline-2", "ngram"]
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(RecordError, match=r"broken\.json is not JSON"):
        analysis.load(tmp_path)


def test_load_refuses_a_copied_record(tmp_path: Path) -> None:
    found = a_record("baseline")
    record.save(found, tmp_path / "baseline.json")
    record.save(found, tmp_path / "baseline-2.json")
    with pytest.raises(RecordError, match=r"baseline-2\.json has the label 'baseline'"):
        analysis.load(tmp_path)


def test_a_ratio_no_larger_than_between_two_server_starts_is_within_the_drift() -> None:
    records = [
        a_record("baseline", ids=IDS, rate=10.0),
        a_record("baseline-2", "baseline", ids=IDS, rate=12.0),
        a_record("fp8", ids=IDS, rate=11.5),
        a_record("ngram", ids=IDS, rate=20.0),
    ]
    summary = analysis.summarise(records)
    for name, called in (("fp8", "within the drift"), ("ngram", "faster")):
        for ratio in summary.pair("baseline", name).ratios:
            assert ratio.drift == pytest.approx(1.2)
            assert ratio.called == called
    alone = analysis.summarise([records[0], records[2]]).pair("baseline", "fp8").ratios[0]
    assert (alone.drift, alone.called) == (None, "drift not measured")


@pytest.mark.parametrize(
    ("rates", "drift", "called"),
    [
        ([], 1.2, "not timed"),
        ([20.0], 1.2, "a single prompt"),
        ([8.0, 12.0], 1.2, "no clear change"),
        ([8.0, 12.0], None, "no clear change"),
        ([20.0, 20.1], None, "drift not measured"),
        ([5.0, 5.1], None, "drift not measured"),
        ([20.0, 20.1], 2.1, "within the drift"),
        ([5.0, 5.1], 2.1, "within the drift"),
        ([20.0, 20.1], 1.9, "faster"),
        ([5.0, 5.1], 1.9, "slower"),
    ],
)
def test_a_ratio_is_called_faster_or_slower_only_beyond_a_drift_that_was_measured(
    rates: list[float], drift: float | None, called: str
) -> None:
    assert Ratio("rag", 2, paired_ratio(rates, [10.0] * len(rates)), None, drift).called == called


def test_foreign_load_is_said_before_any_figure() -> None:
    records = study()
    records[0].passes[0].host.load = 0.8
    records[1].passes[0].host.load = 0.1
    (said,) = [banner for banner in analysis.summarise(records).banners if "CPU cores" in banner]
    assert said == "baseline: pass 0: other processes used 0.80 CPU cores meanwhile; speeds suffer"
