"""Blocks of the page about speed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_record, answer, failed
from samebytes import published
from samebytes.pages import speed
from samebytes.record import Record, TelemetrySample
from samebytes.speculation import StepRow, StepTime


def drafting(rates: Mapping[str, float] | None = None) -> Record:
    """A run whose drafts were counted: two in three tokens accepted."""
    replace = {
        key: answer(key, rate=(rates or {}).get(key, 20.0), drafts=12, draft_tokens=60, accepted_tokens=40)
        for key in IDS
    }
    return a_record("ngram", ids=IDS, replace=replace)


# -- the conclusion and every prompt ----------------------------------------------------------------------------------


def test_the_conclusion_names_the_slowest_and_the_fastest_prompt(house: Path) -> None:
    study = measured(house, [*baselines(), drafting({"creative/1": 5.0, "code_edit/0": 40.0})])
    said = text(speed.conclusion(study))
    assert "from 0.50 × ( creative/1 , 1.00 tokens a step) to 4.00 × ( code_edit/0 , 1.00 tokens a step)" in said
    assert "1 of 9 prompts came slower" in said
    assert speed.conclusion(measured(house, baselines(), "other")) == ""


def test_the_chart_has_a_mark_for_each_timed_prompt_and_a_table_of_the_same(house: Path) -> None:
    ngram = a_record("ngram", ids=IDS, rate=math.pi, replace={"rag/0": failed("rag/0")})
    block = speed.speed_chart(measured(house, [*baselines(), ngram]))
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)[1])  # type: ignore[index]
    (rows,) = spec["datasets"].values()
    assert len(rows) == 17
    assert block.count('aria-roledescription="point"') == 17
    assert "$schema" not in spec
    assert "ngram: code edits 3.1, quoting a passage 3.1, free prose 3.1" in spec["description"]
    assert text(block[block.index("<details") :]).count("3.142") == 8


def test_batch_invariant_kernels_stand_beside_their_own_alone(house: Path) -> None:
    env = {"VLLM_BATCH_INVARIANT": "1"}
    slow = [
        a_record("baseline_batch_invariant", ids=IDS, rate=5.0, env=env),
        a_record("ngram_batch_invariant", ids=IDS, rate=15.0, env=env),
    ]
    study = measured(house, [*baselines(), drafting(), *slow])
    for block in (speed.speed_chart(study), speed.speed_table(study), speed.ttft_table(study)):
        shown = block.partition('class="origin"')[0]
        assert "ngram" in shown
        assert "invariant" not in shown
    ratios = text(speed.ratio_table(study))
    assert "ngram_batch_invariant against baseline_batch_invariant 3.00 ×" in ratios
    assert ratios.count("invariant against") == 1


def test_the_published_spread_stands_as_printed(house: Path) -> None:
    (path,) = ROOT.glob("results/*/published.yaml")
    block = text(speed.published_spread("paper", published.load(path)))
    assert "code edits 198 349.8 381" in block
    assert "free prose 70.8 71.9 73.7" in block


# -- ratios -----------------------------------------------------------------------------------------------------------


def test_the_ratio_of_medians_and_the_paired_ratio_stand_apart(house: Path) -> None:
    rates = {"rag/0": 10.0, "rag/1": 20.0, "rag/2": 90.0}
    study = measured(house, [*baselines(), a_record("ngram", ids=IDS, rate=20.0, rates=rates)])
    assert "ngram 20.0 2.00 × 20.0 2.00 × 20.0 2.00 ×" in text(speed.speed_table(study))
    assert "ngram against baseline 2.00 × [ 2.00 , 2.00 ] speed-up drift 1.00 × 2.62 ×" in text(
        speed.ratio_table(study)
    )


def test_a_ratio_within_the_drift_is_called_so(house: Path) -> None:
    wobbly = [a_record("baseline", ids=IDS), a_record("baseline-2", "baseline", ids=IDS, rate=13.0)]
    block = text(speed.ratio_table(measured(house, [*wobbly, a_record("ngram", ids=IDS, rate=12.0)])))
    assert block.count("within drift 1.30 ×") == 3
    assert "speed-up" not in block.split("data:")[0].partition("ngram")[2]


def test_a_ratio_of_configs_that_were_started_once_is_no_speed_up(house: Path) -> None:
    once = [a_record("baseline", ids=IDS), a_record("ngram", ids=IDS, rate=20.0)]
    shown = text(speed.ratio_table(measured(house, once))).split("data:")[0]
    assert shown.count("2.00 × [ 2.00 , 2.00 ] drift not measured –") == 3
    assert "speed-up" not in shown.partition("ngram")[2]


def test_both_baselines_are_references(house: Path) -> None:
    sync = a_record("baseline_sync", ids=IDS, rate=5.0)
    block = text(speed.ratio_table(measured(house, [*baselines(), sync, drafting()])))
    assert "ngram against baseline 2.00 ×" in block
    assert "ngram against baseline_sync 4.00 ×" in block


def test_a_config_that_cannot_run_is_a_row_with_the_engines_words(house: Path) -> None:
    fp8 = a_record("fp8", status="failed", reason="needs <AVX-512>", passes=[], launches=[])
    block = speed.speed_table(measured(house, [*baselines(), fp8, a_record("ngram", status="partial")]))
    assert "fp8 – – – failed: needs &lt;AVX-512&gt;" in text(block)
    assert "ngram – – – partial" in text(block)
    assert block.count('title="needs &lt;AVX-512&gt;">–</data>') == 3


def test_no_speed_for_short_answers_only(house: Path) -> None:
    short = {key: answer(key, n=8) for key in IDS if key.startswith("rag")}
    block = speed.speed_table(measured(house, baselines(replace=short)))
    assert 'title="no answer of 32 tokens or more">–' in block


def test_the_first_token_has_its_own_ratio(house: Path) -> None:
    late = {key: answer(key, ttft_s=0.3) for key in IDS}
    block = text(speed.ttft_table(measured(house, [*baselines(), a_record("ngram", ids=IDS, replace=late)])))
    assert "baseline 200.0 200.0 200.0" in block
    assert "ngram 300.0 1.50 × [ 1.50 , 1.50 ]" in block


# -- what is behind them ----------------------------------------------------------------------------------------------


def test_acceptance_is_told_by_workload(house: Path) -> None:
    study = measured(house, [*baselines(), drafting()])
    block = text(speed.acceptance_table(study))
    assert "ngram code edits 180 120 66.7 % 4.33 1.00" in block
    assert "ngram all 540 360 66.7 %" in block
    assert "of 540 tokens that ngram drafted, 360 were" in text(speed.drafted(study))
    assert "baseline" not in block.split("data:")[0], "what does not speculate has no drafts"
    plain = measured(house, baselines(), "other")
    assert speed.acceptance_table(plain) == speed.drafted(plain) == ""
    chart = speed.acceptance_chart(study)
    assert "0 of 9 prompts lie below the line" in text(chart)
    assert chart.count('aria-roledescription="point"') == 9
    assert speed.acceptance_chart(measured(house, baselines(), "third")) == ""


def test_speed_up_over_steps_is_taken_over_the_baseline_with_the_same_scheduling(house: Path) -> None:
    sync = a_record("baseline_sync", ids=IDS, rate=40.0)
    chart = text(speed.acceptance_chart(measured(house, [*baselines(), sync, drafting()])))
    assert "9 of 9 prompts lie below the line" in chart
    assert "Speed-up of ngram over baseline_sync" in chart


def test_steps_are_called_dear_only_where_they_are(house: Path) -> None:
    def said(none: float, full: float) -> str:
        row = StepRow("ngram", "ngram", 5, StepTime(10, none), StepTime(0, None), StepTime(10, full), 0.01)
        study = measured(house, [*baselines(), drafting()])
        summary = study.summary.__class__(**(vars(study.summary) | {"steps": (row,)}))
        return text(speed.steps_conclusion(study.__class__(**(vars(study) | {"summary": summary}))))

    assert "full draft takes 1.20 × of a plain step, one that found nothing to draft 4.00 ×" in said(0.04, 0.012)
    assert said(0.04, 0.012).endswith("a prompt with little to copy pays for them.")
    assert said(0.011, 0.012).endswith("makes little difference to what it takes.")
    assert said(0.01, 0.04).endswith("So it is verifying a draft that costs.")


def test_drift_is_shown_for_what_was_started_twice(house: Path) -> None:
    twice = [a_record("baseline", ids=IDS), a_record("baseline-2", "baseline", ids=IDS, rate=12.0)]
    block = text(speed.drift_table(measured(house, [*twice, drafting()])))
    assert "baseline 20.0 % largest 20.0 %" in block
    assert "ngram" not in block.split("data:")[0]
    once = measured(house, [a_record("baseline", ids=IDS)], "once")
    assert "No config was started twice" in text(speed.drift_table(once))


def test_energy_where_power_was_sampled(house: Path) -> None:
    found = baselines()
    end = found[0].passes[0].makespan_s or 0.0
    found[0].passes[0].telemetry = [
        TelemetrySample(t_s=i / 2, power_w=100.0, sm_clock_mhz=1000, temperature_c=40, gpu_util=0.5)
        for i in range(-2, int(2 * end) + 4)
    ]
    block = text(speed.energy_table(measured(house, found)))
    # 6.5 s (TTFT and 63 steps at 10 tok/s) at 100 W over 64 tokens
    assert "baseline 10.156 10.156 10.156 10.156 100 50 % 40" in block
    assert "no card whose power" in text(speed.energy_table(measured(house, baselines(), "dark")))
