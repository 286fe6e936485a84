"""Blocks of the timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_launch, a_pass, a_record, answer, resumed
from samebytes.pages import timeline


def test_phases_follow_from_the_launches_and_passes(house: Path) -> None:
    record = a_record("baseline", ids=IDS)
    record.passes[0].requests = record.passes[0].requests[:1]  # ends after 0.2 s and 63 steps at 10 tok/s
    found = timeline.spans(measured(house, [record]))
    assert [(s.phase, s.start_s, round(s.end_s, 3)) for s in found] == [
        ("loading", 0.0, 30.0),
        ("warm-up", 30.0, 35.0),
        ("other", 35.0, 40.0),
        ("sequential pass", 40.0, 46.5),
        ("other", 46.5, 58.0),
    ]
    assert timeline.total(found) == pytest.approx(58.0)
    assert timeline.total(found, "loading", "warm-up") == pytest.approx(35.0)


def test_the_conclusion_and_the_table_say_the_same(house: Path) -> None:
    study = measured(house, [a_record("baseline", ids=IDS[:1]), a_record("ngram", ids=IDS[:1])])
    said = text(timeline.conclusion(study))
    assert said.startswith(
        "a cpu : 2 server starts took 1.9 min in all. 52 % of it went into starting the engine, 11 %"
    )
    table = text(timeline.table(study))
    assert "Seconds of each server start, 2026-11-29" in table
    assert "baseline 10:00:00 30 5 6 – 16 58" in table


def test_each_start_of_a_resumed_run_has_its_bar(house: Path) -> None:
    block = timeline.study(measured(house, [resumed("baseline", ids=IDS)]))
    assert "baseline, start 1" in block
    assert "baseline, start 2" in block


def test_a_concurrent_pass_is_a_phase_of_its_own(house: Path) -> None:
    record = a_record("baseline", ids=IDS[:1])
    record.passes.append(a_pass([answer(IDS[0])], kind="concurrent", started_mono=48.0))
    found = timeline.spans(measured(house, [record]))
    (span,) = [span for span in found if span.phase == "concurrent pass"]
    assert (span.start_s, round(span.end_s, 1)) == (48.0, 54.5)


def test_a_run_that_never_started_takes_no_time(house: Path) -> None:
    failed = a_record("fp8", status="failed", reason="no", passes=[], launches=[])
    study = measured(house, [failed])
    assert timeline.spans(study) == []
    assert timeline.conclusion(study) == timeline.chart(study) == timeline.table(study) == ""


def test_a_server_that_died_while_loading_has_what_is_known(house: Path) -> None:
    launch = a_launch("fp8", ready=None, ready_mono=None, warmed=None, warmed_mono=None)
    failed = a_record("fp8", status="failed", reason="no", passes=[], launches=[launch])
    (span,) = timeline.spans(measured(house, [failed, *baselines()]))[:1]
    assert (span.run, span.phase, span.end_s) == ("baseline", "loading", 30.0)
    died = [span for span in timeline.spans(measured(house, [failed, *baselines()])) if span.run == "fp8"]
    assert [(span.phase, span.end_s) for span in died] == [("loading", 58.0)]
