"""Blocks of the page about what was not captured."""

from __future__ import annotations

from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_record, answer
from samebytes import published
from samebytes.pages import missing
from samebytes.record import TelemetrySample

ARTICLE = published.load(next(ROOT.glob("results/*/published.yaml")))


def test_each_gap_is_filled_from_the_records(house: Path) -> None:
    drafting = {key: answer(key, drafts=12, draft_tokens=60, accepted_tokens=30) for key in IDS}
    invariant = {"env": {"VLLM_BATCH_INVARIANT": "1"}, "ids": IDS}
    found = baselines()
    found[0].passes[0].telemetry = [TelemetrySample(t_s=0.0, power_w=100.0)]
    study = measured(
        house,
        [
            *found,
            a_record("ngram", ids=IDS, replace=drafting),
            a_record("baseline_batch_invariant", **invariant),  # type: ignore[arg-type]
            a_record("ngram_batch_invariant", texts={"rag/0": "other"}, **invariant),  # type: ignore[arg-type]
        ],
    )
    said = text(missing.gaps([study], {"paper": ARTICLE}))
    assert "one rate over all prompts: 51.3 %" in said
    assert "code edits 50.0 %, quoting a passage 50.0 %" in said
    assert "server starts of each config a cpu : baseline 2 , ngram 1" in said
    assert "1 samples" in said
    assert "8 of 9 the same with such kernels" in said


def test_without_studies_the_gaps_are_still_named(house: Path) -> None:
    said = text(missing.gaps([], {}))
    assert "Acceptance per workload" in said
    assert "no telemetry" in said
    assert text(missing.scheduling([])) == "not measured"
    assert text(missing.texts([])).startswith("0 answers")


def test_what_scheduling_does_alone(house: Path) -> None:
    study = measured(house, [*baselines(), a_record("baseline_sync", ids=IDS, rate=9.0)])
    assert "a cpu : code edits 0.90 × [ 0.90 , 0.90 ]" in text(missing.scheduling([study]))


def test_texts_are_counted(house: Path) -> None:
    study = measured(house, baselines())
    tokens = 2 * sum(len(f"the answer to {key}") for key in IDS)
    said = text(missing.texts([study]))
    assert said == f"18 answers with their text, {18 * 64:,} arrival times and {tokens} token ids"
