"""Blocks about a decode step: what it is made of, and what more rows cost it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookhouse import text
from profilefactory import a_profile, keep
from recordfactory import answer
from samebytes.bookdata import Measured
from samebytes.pages import step
from test_pages_wall import ARTICLE, on, study


@pytest.fixture
def toy(house: Path) -> Measured:
    return study(house, on("NVIDIA H200"))


def test_the_parts_of_a_step_add_up_to_it() -> None:
    rows = step.parts(a_profile("baseline"))
    assert [row["part"] for row in rows] == list(step.PARTS)
    by = {row["part"]: row["ms"] for row in rows}
    assert by["everything else"] == pytest.approx(0.2 + 0.1 + 0.5)
    assert by["nothing runs"] == pytest.approx(1.2)
    assert sum(by.values()) == pytest.approx(12.0)
    assert step.parts(a_profile("baseline", trace=None)) == []


def test_profiles_of_a_study_the_baseline_first(house: Path, toy: Measured) -> None:
    assert step.profiles([toy]) == []
    for name in ("marlin", "baseline", "eager"):
        keep(house, a_profile(name))
    ((found, several),) = step.profiles([toy])
    assert found is toy
    assert [each.config.name for each in several] == ["baseline", "eager", "marlin"]


def test_what_keeps_a_step_from_the_bound(house: Path, toy: Measured) -> None:
    found = [a_profile("baseline")]
    said = text(step.reason(toy, found))
    # 17.769 GB at 4.8 TB/s; 8.4 ms in matrices, 12 - 8.4 - 1.2 elsewhere
    assert "would take 3.70 ms of a step" in said
    assert "take 8.40 ms; everything else that runs takes 2.40 ms; for 1.20 ms nothing runs" in said
    assert step.reason(toy, [a_profile("baseline", trace=None)]) == ""
    block = text(step.breakdown(toy, found))
    assert "MacheteLinearKernel 11.00 12.00 90 % 8.40 2.12 – –" in block
    assert "packed matrices 8.00 ms, matrices 0.40 ms" in block
    assert step.breakdown(toy, [a_profile("baseline", trace=None)]) == ""


def test_a_kernels_name_is_text(toy: Measured) -> None:
    block = step.kernels(toy, [a_profile("baseline")])
    assert "&lt;unknown&gt;" in block
    assert "<unknown>" not in block


def test_rows_in_steps_of_one_row(toy: Measured) -> None:
    found = [a_profile("baseline"), a_profile("marlin", steps={1: 0.008})]
    block = text(step.rows_table(toy, found))
    assert "baseline 11.00 1.00 × 13.20 1.20 × marlin 8.00 1.00 × – –" in block
    assert step.rows_table(toy, [a_profile("baseline", rows=[])]) == ""


def test_published_speed_ups_carried_over() -> None:
    low, high = step.published_cost(ARTICLE) or (0, 0)
    assert (low, high) == (pytest.approx(1 / 0.95), pytest.approx(6 / 4.65))
    by = {each.workload: each for each in step.transfers(ARTICLE, 1.2)}
    edit, prose = by["code_edit"], by["creative"]
    assert edit.tokens == (pytest.approx(4.65 / 0.95), pytest.approx(6))
    assert prose.tokens == (pytest.approx(1), pytest.approx(0.95 * 6 / 4.65))
    assert edit.here == (pytest.approx(edit.tokens[0] / 1.2), pytest.approx(5))
    assert step.mean_length(ARTICLE) == pytest.approx(1 + 5 * 0.513)


def test_the_articles_speed_ups_beside_those_here(toy: Measured) -> None:
    block = text(step.transfers_here([(toy, [a_profile("baseline"), a_profile("marlin")])], "rtx5090", ARTICLE))
    assert block.count("a step of 6 rows costs 1.20 × a step of one row") == 1
    assert "code edits 4.65 × 4.89 to 6.00 4.08 to 5.00" in block
    assert "51.3 % accepted 3.56 2.97" in block
    assert step.transfers_here([(toy, [a_profile("baseline", steps={1: 0.01})])], "rtx5090", ARTICLE) == ""


def test_the_ceiling_is_told_with_its_warning(house: Path) -> None:
    counted = {"drafts": 10, "draft_tokens": 50, "accepted_tokens": 50}
    ids = [request.id for request in on(None).sequential()]
    fast = {key: answer(key, rate=405.0, **counted) for key in ids}
    note = {"note": "random weights"}
    plain = study(house, on("NVIDIA H200", **note), on("NVIDIA H200", "ngram", replace=fast, **note))
    block = text(step.ceiling([plain]))
    assert "( random weights ): 100 % of the drafted tokens accepted, 5.00 × the baseline’s speed" in block
    assert step.ceiling([study(house, on("NVIDIA H200"), on("NVIDIA H200", "ngram", replace=fast))]) == ""
