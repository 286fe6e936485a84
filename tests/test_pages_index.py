"""Blocks of the first page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_launch, a_record, failed
from samebytes import published
from samebytes.errors import UsageError
from samebytes.pages import common, index
from samebytes.record import Record

ARTICLE = published.load(ROOT / "results/rtx5090-qwen3-32b-awq/published.yaml")
NASTY = "<script>alert(1)</script>"


def ngram(**changes: object) -> Record:
    """A run twice as fast as the baseline."""
    return a_record("ngram", ids=IDS, rate=20.0, **changes)  # type: ignore[arg-type]


def row(block: str, config: str) -> str:
    """Return what a reader sees of a table's row."""
    rows = [text(found) for found in re.findall(r"<tr>.*?</tr>", block)]
    (found,) = [found for found in rows if found.split(" ")[0] == config]
    return found


# -- in short ---------------------------------------------------------------------------------------------------------


def test_the_headline_tells_speed_and_bytes(house: Path) -> None:
    slow = {f"creative/{i}": 8.0 + i / 100 for i in range(3)}
    unclear = {"rag/0": 5.0, "rag/1": 40.0, "rag/2": 9.0}
    changed = ngram(rates=slow | unclear, texts={"creative/0": "other words"})
    said = text(index.headline(measured(house, [*baselines(), changed])))
    assert "faster with code edits 2.00 × [ 2.00 , 2.00 ]" in said
    assert re.search(r"no clear change: quoting a passage \S+ × \[ \S+ , \S+ \]", said)
    assert "slower with free prose 0.80 × [ 0.80 , 0.80 ]" in said
    assert said.endswith("Answers: 8 of 9 the same, 1 differs.")


def test_a_config_that_does_not_run_is_in_the_headline_with_the_engines_words(house: Path) -> None:
    fp8 = a_record("fp8", status="failed", reason=NASTY, passes=[], launches=[])
    block = index.headline(measured(house, [*baselines(), fp8]))
    assert f"fp8 (an FP8 KV cache) does not run here: {NASTY.replace('<', '&lt;').replace('>', '&gt;')}" in text(block)
    assert "<script" not in block


def test_a_failed_request_is_not_counted_as_answered(house: Path) -> None:
    said = text(index.headline(measured(house, [*baselines(), ngram(replace={"rag/0": failed("rag/0")})])))
    assert said.endswith("8 of 9 the same, 1 was not answered.")


@pytest.mark.parametrize(
    ("one", "two", "moral"),
    [
        ({}, {}, "No answer changed."),
        ({}, {"rag/0": "other"}, "is not up to the flag alone"),
        ({"rag/1": "other"}, {"rag/0": "other"}, "On none of these machines"),
    ],
)
def test_the_lead_draws_the_conclusion_that_the_records_allow(
    house: Path, one: dict[str, str], two: dict[str, str], moral: str
) -> None:
    found = [measured(house, [*baselines(), ngram(texts=texts)], name) for name, texts in (("one", one), ("two", two))]
    said = text(index.lead(found))
    assert "up to 2.00 × as fast" in said
    assert f"{9 - len(one)} of 9 on a cpu and {9 - len(two)} of 9 on a cpu" in said
    assert moral in said


def test_a_lead_without_a_clear_speed_up_claims_none(house: Path) -> None:
    said = text(index.lead([measured(house, [*baselines(), a_record("ngram", ids=IDS)])]))
    assert "made no kind of prompt clearly faster" in said
    assert index.lead([measured(house, baselines(), "alone")]) == ""


def test_a_lead_without_a_measured_drift_says_so(house: Path) -> None:
    once = measured(house, [baselines()[0], ngram()], "once")
    said = text(index.lead([once]))
    assert "how far two starts of one config drift apart was not measured on a cpu" in said
    assert "clearly faster" not in said
    assert "Answers that kept every byte: 9 of 9 (no control) on a cpu ." in said
    twice = measured(house, [*baselines(), ngram()], "twice")
    both = text(index.lead([once, twice]))
    assert "up to 2.00 × as fast" in both
    assert "9 of 9 (no control) on a cpu and 9 of 9 on a cpu" in both


def test_there_is_no_lead_without_studies() -> None:
    assert index.lead([]) == ""


# -- charts and tables ------------------------------------------------------------------------------------------------


def test_measured_and_published_speed_ups_share_no_chart_and_no_data(house: Path) -> None:
    study = measured(house, [*baselines(), ngram(texts={"rag/0": "other"})])
    block = index.overview([study], {"paper": ARTICLE})
    specs = [json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', block)]
    rows = [row for spec in specs for row in spec["datasets"].values()]
    assert [{row["machine"] for row in found} for found in rows] == [{"a cpu"}, {"one RTX 5090, 32 GB"}]
    assert {row["line"] for row in rows[0]} == {"ngram|a cpu|8 of 9 the same"}
    assert all(row["low"] is None for row in rows[1])
    scales = [layer["encoding"]["x"]["scale"]["domain"] for spec in specs for layer in spec["layer"][2:]]
    assert len(scales) == 2
    assert scales[0] == scales[1]


def test_a_published_speed_up_is_the_same_in_the_chart_and_in_the_table(house: Path) -> None:
    rows = {(row["config"], row["workload"]): row for row in index.published_rows(ARTICLE)}
    ngram_rows = [rows["ngram", workload] for workload in common.WORKLOADS]
    table = row(index.published("paper", ARTICLE), "ngram")
    assert all(f" {each['speed_up']} ×" in table and each["as_printed"] for each in ngram_rows)
    fp8 = rows["fp8", "rag"]  # no speed-up of fp8 was printed
    assert fp8["speed_up"] == pytest.approx(76.1 / 75.3, 1e-3)
    assert not fp8["as_printed"]


def test_without_anything_there_is_no_chart(house: Path) -> None:
    assert index.overview([], {}) == ""


def test_the_three_configs_stand_in_the_articles_columns(house: Path) -> None:
    unclear = {"rag/0": 5.0, "rag/1": 40.0, "rag/2": 9.0}
    fp8 = a_record("fp8", status="failed", reason="needs <AVX-512>", passes=[], launches=[])
    block = index.three_configs(measured(house, [*baselines(), ngram(rates=unclear), fp8]))
    assert "9 of 9 with itself 10.0 10.0 10.0" in row(block, "baseline")
    assert "9 of 9 20.0 2.00 × [ 2.00 , 2.00 ] 9.0 ≈ " in row(block, "ngram")
    assert row(block, "fp8") == "fp8 did not run: needs &lt;AVX-512&gt; – – – – – –"


def test_published_figures_stand_as_printed_and_those_that_do_not_follow_are_named(house: Path) -> None:
    block = index.published("paper", ARTICLE)
    assert row(block, "ngram").startswith("ngram 18 of 24 349.8 4.65 × 181 2.41 × 71.9 0.95 × – –")
    assert row(block, "fp8").startswith("fp8 12 ( 14 by its other figures) of 24 76.1 76.1 76.7 656 65,536")
    assert "not measured by this project" in text(block)
    bad = [check.id for check in ARTICLE.checks() if not check.consistent]
    assert bad
    assert all(f"{name} is printed as" in text(block) for name in bad)


def test_configs_are_listed_with_their_reasons(house: Path) -> None:
    assert "the reason for &lt;fp8&gt;" in index.configs()


def test_random_weights_are_no_answer_to_the_question(house: Path) -> None:
    measured(house, [*baselines(), ngram()], "real")
    measured(house, [*baselines(), ngram(note="random weights")], "dummy")
    measured(house, [a_record("baseline", ids=IDS), a_record("eager", ids=IDS)], "other")
    assert [study.name for study in common.compared()] == ["real"]


# -- a day ------------------------------------------------------------------------------------------------------------


def test_a_day_is_the_sum_of_what_its_tokens_take(house: Path) -> None:
    half = {f"creative/{i}": 5.0 for i in range(3)}
    study = measured(house, [*baselines(), ngram(rates=half, texts={"creative/0": "other", "rag/0": "other"})])
    block = index.day({"code_edit": 0.5, "creative": 0.5}, 12_000, [study], {"paper": ARTICLE})
    # 6,000 tokens each: at 10 and 10 tok/s, and at 20 and 5
    assert "a cpu 20.0 min 25.0 min -5.0 min 0.80 × 17 %" in text(block)
    seconds = 6000 / 75.2 + 6000 / 75.5, 6000 / 349.8 + 6000 / 71.9
    assert f"32 GB {seconds[0] / 60:.1f} min {seconds[1] / 60:.1f} min" in text(block)
    assert block.count("<figure") == 2, "measured and published stand apart"


def test_a_mix_is_whole(house: Path) -> None:
    with pytest.raises(UsageError, match=r"sum to 1, these to 0\.9"):
        index.day({"code_edit": 0.9}, 1000, [])
    assert index.day({"code_edit": 1.0}, 1000, [], {}) == ""


def test_a_study_without_the_workload_has_no_day(house: Path) -> None:
    study = measured(house, [*baselines(), ngram()])
    assert index.day({"poems": 1.0}, 1000, [study], {}) == ""


def test_a_study_shows_what_has_to_be_known_first(house: Path) -> None:
    resumed = ngram()
    resumed.launches = [a_launch("other", started_by="base_url")]
    said = text(index.study(measured(house, [*baselines(), resumed])))
    before, after = said.index("Before the figures"), said.index("Measured: toy")
    assert before < said.index("Control: over 2 server starts") < after
