"""Blocks about a decode step: what it is made of, and what more rows cost it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookhouse import measured, text
from profilefactory import a_profile, keep
from recordfactory import answer
from samebytes.bookdata import Measured
from samebytes.pages import step, wall
from samebytes.record import ModelInfo, Record
from test_pages_wall import ARTICLE, on, study


@pytest.fixture
def toy(house: Path) -> Measured:
    return study(house, on("NVIDIA H200"))


def test_the_parts_of_a_step_add_up_to_it() -> None:
    rows = step.parts(a_profile("baseline"))
    assert [row["part"] for row in rows] == list(step.PARTS)
    by = {row["part"]: row["ms"] for row in rows}
    assert by["everything else"] == pytest.approx(0.2 + 0.1 + 0.5)
    # of a step without the profiler, which makes the gaps longer
    assert by["nothing runs"] == pytest.approx(11.0 - 10.8)
    assert sum(by.values()) == pytest.approx(11.0)
    untimed = {row["part"]: row["ms"] for row in step.parts(a_profile("baseline", rows=[]))}
    assert untimed["nothing runs"] == pytest.approx(1.2)
    assert step.parts(a_profile("baseline", trace=None)) == []


def test_profiles_of_a_study_the_baseline_first(house: Path, toy: Measured) -> None:
    assert step.profiles([toy]) == []
    for name in ("marlin", "baseline", "eager"):
        keep(house, a_profile(name))
    ((found, several),) = step.profiles([toy])
    assert found is toy
    assert [each.config.name for each in several] == ["baseline", "eager", "marlin"]


def test_what_keeps_a_step_from_the_bound(house: Path, toy: Measured) -> None:
    found = [a_profile("baseline"), a_profile("marlin", steps={1: 0.0088})]
    said = text(step.reason(toy, found))
    # 17.769 GB at 4.8 TB/s; 8.4 ms in matrices, 0.9 x 12 - 8.4 elsewhere
    assert "would take 3.70 ms. A step takes 11.00 ms, which makes 90.9 tok/s." in said
    # packed: 16.212 GB in 8 ms; plain: 2 x 151,936 x 5,120 bytes in 0.4 ms
    assert (
        "take 8.40 ms of it: 42 % of the bandwidth for the packed weights and 81 % of the bandwidth for the plain"
        in said
    )
    # what the profiler adds to the gaps between kernels is not counted: 11 - 10.8
    assert "Everything else that runs takes 2.40 ms; for 0.20 ms nothing runs" in said
    assert "marlin : 8.80 ms a step, 1.25 × the speed; kernels run for 10.80 ms of it." in said
    assert step.reason(toy, [a_profile("baseline", trace=None)]) == ""
    block = text(step.breakdown(toy, found[:1]))
    assert "MacheteLinearKernel 11.00 12.00 90 % 2.03 3.89 – –" in block
    assert "packed matrices 8.00 ms, matrices 0.40 ms" in block
    assert step.breakdown(toy, [a_profile("baseline", trace=None)]) == ""


def test_a_study_in_a_few_words(house: Path, toy: Measured) -> None:
    found = step.hints([(toy, [a_profile("baseline"), a_profile("marlin")])])
    words = "The kernels that read the packed weights do so at 42 % of the bandwidth; 6 rows in one step cost 1.20 × a"
    assert words in text(found["toy"])
    assert words in text(wall.conclusion(wall.cases([toy]), {}, found))
    waits = step.hints([(toy, [a_profile("baseline", steps={1: 0.0216, 6: 0.022})])])
    assert "at 42 % of the bandwidth, and for 50 % of a step nothing runs; 6 rows" in text(waits["toy"])
    noisy = a_profile("baseline", steps={1: 0.01, 6: 0.012})
    for row in noisy.rows:
        row.step_s = {1: [0.010, 0.012], 6: [0.012, 0.018]}[row.rows]
    said = text(step.hints([(toy, [noisy])])["toy"])
    assert said.endswith("6 rows in one step cost 1.36 × a step of one (single rounds: 1.00 × to 1.80 ×).")
    assert step.hints([(toy, [a_profile("marlin")]), (toy, [a_profile("baseline", trace=None)])]) == {}


def test_what_reads_the_weights_of_a_model_that_is_not_packed() -> None:
    small = a_profile("baseline").model_copy(update={"model": ModelInfo(id="smollm2-135m-instruct")})
    assert step.reading(small) == {"matrices": (269_030_016, pytest.approx(0.0004))}
    assert step.reading(small.model_copy(update={"model": ModelInfo(id="some/other")})) == {}


def test_what_was_not_profiled_is_named() -> None:
    assert "Not profiled, for want of time on the machine: eager and baseline_sync ." in text(
        step.unprofiled([a_profile("baseline"), a_profile("marlin")])
    )
    assert step.unprofiled([a_profile(name) for name in step.TELLING]) == ""
    assert step.unprofiled([a_profile("baseline", launch=None)]) == ""


def test_a_kernels_name_is_text(toy: Measured) -> None:
    block = step.kernels(toy, [a_profile("baseline")])
    assert "&lt;unknown&gt;" in block
    assert "<unknown>" not in block


def test_rows_in_steps_of_one_row(toy: Measured) -> None:
    found = [a_profile("baseline"), a_profile("marlin", steps={1: 0.008})]
    block = text(step.rows_table(toy, found))
    assert "baseline 11.00 1.00 × 13.20 1.20 × marlin 8.00 1.00 × – –" in block
    assert step.rows_table(toy, [a_profile("baseline", rows=[])]) == ""


def test_tokens_per_step_behind_published_speed_ups() -> None:
    low, high = step.published_cost(ARTICLE) or (0, 0)
    assert (low, high) == (pytest.approx(1 / 0.95), pytest.approx(6 / 4.65))
    by = step.published_tokens(ARTICLE)
    assert by["code_edit"] == (pytest.approx(4.65 / 0.95), pytest.approx(6))
    assert by["creative"] == (pytest.approx(1), pytest.approx(0.95 * 6 / 4.65))
    assert step.mean_length(ARTICLE) == pytest.approx(1 + 5 * 0.513)


def speculated(rate: float) -> Record:
    """Return an n-gram run whose steps all verify a full draft, ``rate`` steps a second."""
    flag = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
    answers = {}
    for request in on(None).sequential():
        chunks = [(0.2, 1), *((0.2 + i / rate, 6) for i in range(1, 11))]
        counted = {"drafts": 10, "draft_tokens": 50, "accepted_tokens": 50, "completion_tokens": 61, "chunks": chunks}
        tokens = {"token_ids": [7] * 61, "prompt_token_ids": [7] * 20}
        answers[request.id] = answer(request.id, rate=6 * rate, **counted, **tokens)
    return on("NVIDIA H200", "ngram", replace=answers, flags=["--speculative-config", flag], note="random weights")


def test_the_articles_speed_ups_beside_those_here(house: Path, toy: Measured) -> None:
    both = [a_profile("baseline"), a_profile("marlin")]
    block = text(step.transfers_here([(toy, both)], "rtx5090", ARTICLE))
    assert block.count("by the cost of 6 rows in one step ( 1.20 × (single rounds: 1.20 × to 1.20 ×))") == 1
    assert "code edits 4.65 × 4.89 to 6.00 4.08 to 5.00 –" in block
    assert "51.3 % accepted 3.56 2.97 –" in block
    assert step.transfers_here([(toy, [a_profile("baseline", steps={1: 0.01})])], "rtx5090", ARTICLE) == ""
    ran = study(house, on("NVIDIA H200"), speculated(54.0))  # a plain step takes 1/81 s
    assert step.cost_here(ran, both[0], ARTICLE) == step.Cost(pytest.approx(1.2), pytest.approx(1.5))
    assert "51.3 % accepted 3.56 2.97 2.38" in text(step.transfer_table(ran, both[0], "rtx5090", ARTICLE))


def test_the_ceiling_is_told_with_its_warning(house: Path) -> None:
    plain = study(house, on("NVIDIA H200", note="random weights"), speculated(54.0))
    block = text(step.ceiling([plain]))
    assert "( random weights ): 100 % of the drafted tokens accepted, 4.00 × the baseline’s speed" in block
    assert "A step that verifies a full draft took 18.52 ms; a plain one – without" in block
    assert "and 12.35 ms with it" in block
    assert step.ceiling([measured(house, [on("NVIDIA H200")], name="plain")]) == ""
