"""The page on settings: what it predicts against the sweep, what is measured against what is not, and what it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

import ngramfactory
from bookhouse import measured, text
from conftest import ROOT
from samebytes import bookdata, pdf, tune
from samebytes.bookdata import Measured
from samebytes.pagecheck import Page
from samebytes.pages import tuning
from samebytes.pages.tuning import Tuned
from samebytes.replay import ARTICLE, Settings
from test_browser import FLAGS

TUNED = Settings(5, 1, 10)
FLAG_NAMES = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
FLAG = "{method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 10, prompt_lookup_min: 1}"


def toy(house: Path, *, ran: bool = True, machine: str = "a machine", slower: float = 1.0) -> Measured:
    """Return a study of a baseline, the article's settings, and others: measured, or only planned."""
    (house / "configs/ngram_tuned.yaml").write_text(f"why: other settings\nflags: {{speculative-config: {FLAG}}}\n")
    (house / "studies/toy.yaml").write_text(
        "title: A <toy>\nmodel: tiny\nmax_tokens: 64\nworkloads: [rag]\n"
        "runs: [{config: baseline}, {config: ngram}, {config: ngram_tuned}]\n"
    )
    plain, usual = ngramfactory.pair()
    _, chosen = ngramfactory.pair(settings=TUNED)
    chosen.label = chosen.config.name = "ngram_tuned"
    for request in chosen.passes[0].requests:
        request.decode_tok_s = (request.decode_tok_s or 0) / slower
    runs = [plain, usual, *([chosen] if ran else [])]
    for run in runs:
        run.machine.cpu = machine
    return measured(house, runs)


def swept(house: Path, **how: Any) -> Tuned:
    (found,) = tuning.tuned([toy(house, **how)])
    return found


def content(block: str) -> dict[str, Any]:
    """Return what the script is given."""
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)
    return dict(json.loads(found))


def blocks(found: list[Tuned]) -> list[str]:
    parts = [tuning.tuner(found), tuning.flags(found), tuning.trial_result(found), tuning.cost_result(found)]
    each = (
        tuning.best_table,
        tuning.heat_map,
        tuning.cost_table,
        tuning.trial_table,
        tuning.forecast_table,
        tuning.prompt_table,
    )
    return [*parts, *(block(one) for one in found for block in each)]


# -- the figure -------------------------------------------------------------------------------------------------------


def test_the_script_is_given_the_sweep(house: Path) -> None:
    found = swept(house)
    given = content(tuning.tuner([found]))
    (study,) = given["studies"]
    assert [Settings(*settings) for settings in given["grid"]] == list(tune.GRID)
    assert Settings(*given["start"]) == ARTICLE
    assert set(study["groups"]) == {"all", "code_edit", "rag"}
    for settings in (ARTICLE, TUNED, Settings(10, 5, 5)):
        at = tune.GRID.index(settings)
        for group, lists in study["groups"].items():
            workload = None if group == "all" else group
            assert lists["speed_up"][at] == pytest.approx(found.sweep.speed_up(settings, workload), abs=1e-3)
            replays = [
                r
                for r, sample in zip(found.sweep.replays[settings], found.sweep.samples, strict=True)
                if workload in (None, sample.workload)
            ]
            drafted = sum(r.draft_tokens for r in replays)
            accepted = sum(r.accepted_tokens for r in replays)
            assert lists["acceptance_rate"][at] == pytest.approx(accepted / drafted, abs=1e-3)
            assert lists["tokens_per_step"][at] == pytest.approx(
                sum(r.tokens for r in replays) / sum(r.steps for r in replays), abs=1e-2
            )
    assert study["known"] == ["interpolated"] * 4 + ["measured"] + ["extrapolated"] * 5
    assert Settings(*study["best"]) == found.sweep.best().settings
    assert Settings(*study["sure"]) == found.sweep.best(lengths=[5]).settings


def test_without_a_script_it_shows_the_articles_settings(house: Path) -> None:
    found = swept(house)
    block = tuning.tuner([found])
    assert "<input" not in block
    assert '<div class="tuner-live" hidden></div>' in block
    shown = dict(re.findall(r'data-at="0\.(\w+)\.speed_up"><data value="([^"]+)"', block))
    assert {key: float(value) for key, value in shown.items()} == {
        "code_edit": pytest.approx(found.sweep.speed_up(ARTICLE, "code_edit"), abs=1e-4),
        "rag": pytest.approx(found.sweep.speed_up(ARTICLE, "rag"), abs=1e-4),
        "all": pytest.approx(found.sweep.speed_up(ARTICLE), abs=1e-4),
    }
    assert "cost of a full draft of 5 tokens: measured" in text(block)
    assert "A &lt;toy&gt;" in block


def test_a_record_cannot_end_the_script(house: Path) -> None:
    block = tuning.tuner([swept(house, machine="</script><script>alert(1)")])
    assert block.count("</script>") == 1
    assert content(block)["studies"][0]["machine"].startswith("</script>")


def test_its_data_are_all_that_it_can_show(house: Path) -> None:
    rows = tuning.rows(swept(house))
    assert len(rows) == 3 * len(tune.GRID)
    assert {row["cost"] for row in rows} == {"measured", "interpolated", "extrapolated"}
    assert all((row["cost"] == "measured") == (row["num_speculative_tokens"] == 5) for row in rows)


@pytest.mark.slow
def test_sliders_and_buttons_show_what_the_sweep_says(house: Path) -> None:
    """In a browser, by keyboard: each figure is the sweep's, and what is read out and pasted agrees."""
    found = swept(house)
    script = (ROOT / "book/_static/tuner.js").read_text(encoding="utf-8")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=pdf.browser(), args=FLAGS) as browser,
    ):
        page = browser.new_page()
        page.set_content(f"<article>{tuning.tuner([found])}</article><script>{script}</script>")
        sliders = page.get_by_role("slider")
        assert [page.get_by_label(name).count() for name in FLAG_NAMES] == [1, 1, 1]

        def agrees(settings: Settings) -> None:
            assert tuple(int(slider.input_value()) for slider in sliders.all()) == settings
            for group in ("all", "code_edit", "rag"):
                shown = page.locator(f'[data-at="0.{group}.speed_up"]').inner_text()
                assert shown == f"{found.sweep.speed_up(settings, None if group == 'all' else group):.2f}×"
            assert page.locator("[data-known]").inner_text() == found.sweep.cost.known(settings.k)
            assert page.locator("[data-flag]").inner_text() == tune.flag(settings)
            said = page.get_by_role("status")
            expect(said).to_contain_text(f"k {settings.k}, min {settings.min_n}, max {settings.max_n}.")
            expect(said).to_contain_text(f"{found.sweep.speed_up(settings):.2f} times the baseline")

        agrees(ARTICLE)
        sliders.nth(0).press("ArrowRight")
        agrees(Settings(6, 2, 4))
        sliders.nth(1).press("End")  # the longest lookup is taken along
        agrees(Settings(6, 5, 5))
        sliders.nth(2).press("Home")  # and so is the shortest
        agrees(Settings(6, 1, 1))
        page.get_by_role("button", name="best on a machine of measured lengths").press("Enter")
        agrees(found.sweep.best(lengths=[5]).settings)
        page.get_by_role("button", name="the article’s").press("Enter")
        agrees(ARTICLE)


# -- predicted against measured ---------------------------------------------------------------------------------------


def test_a_prediction_stands_before_its_measurement_and_is_then_judged(house: Path) -> None:
    before = swept(house, ran=False)
    said = text(tuning.trial_result([before]))
    assert "the cost of its drafts being measured; not measured yet." in said
    assert text(tuning.trial_table(before)).count("stands before the measurement") == 6

    after = swept(house)
    assert [t.predicted for t in after.trials] == [t.predicted for t in before.trials]
    assert "the prediction held" in text(tuning.trial_result([after]))
    assert text(tuning.trial_table(after)).count("lies within the interval") == 6

    slow = swept(house, slower=2.0)
    assert [t.predicted for t in slow.trials] == [t.predicted for t in before.trials]
    assert "the prediction did not hold" in text(tuning.trial_result([slow]))
    assert text(tuning.trial_table(slow)).count("lies outside the interval") == 6


def test_the_cost_of_each_length_says_how_it_is_known(house: Path) -> None:
    said = text(tuning.cost_table(swept(house)))
    for k, known in ((1, "interpolated"), (5, "measured"), (6, "extrapolated")):
        assert re.search(rf"a full draft, k = {k} [\d.]+ [\d.]+ × {known}", said)
    assert f"nothing drafted {1000 * ngramfactory.NONE_S:.2f}" in said


@pytest.mark.parametrize(
    ("none_s", "gpu", "words"),
    [
        (0.010, None, "It grows with the tokens"),
        (0.0121, None, "cost next to nothing"),
        (0.030, None, "It decides the settings there"),
        (0.030, "a card", "The likely reason is that graphs"),
    ],
)
def test_how_a_step_grows_is_said_of_what_was_measured(house: Path, none_s: float, gpu: str | None, words: str) -> None:
    found = swept(house)
    found.study.records[0].machine.gpu = gpu
    cost = replace(found.sweep.cost, none_s=none_s, full=((5, 0.012),))
    said = text(tuning.cost_result([replace(found, sweep=replace(found.sweep, cost=cost))]))
    assert f"a step takes {1000 * none_s:.2f} ms where it drafted nothing, and 12.00 ms" in said
    assert words in said
    assert ("graphs of whole steps" in said) == (gpu is not None)


def test_the_page_types_no_claim_about_a_machine() -> None:
    """What a machine does is computed: the book may hold studies of one kind of machine alone."""
    page = (ROOT / "book/tuning.md").read_text(encoding="utf-8")
    assert re.findall(r"[Oo]n (?:a|the) (?:CPU|GPU)", page) == []


def test_both_tables_say_which_answers_they_count(house: Path) -> None:
    found = swept(house)
    assert "Every recorded answer counts, also those of fewer than 32 tokens" in text(tuning.best_table(found))
    assert "Answers of fewer than 32 tokens are left out on both sides" in text(tuning.trial_table(found))


def test_the_flag_is_left_off_where_nothing_is_faster(house: Path) -> None:
    study = toy(house, ran=False)
    assert "num_speculative_tokens" in text(tuning.flags(tuning.tuned([study])))
    plain = study.records[0]
    for request in plain.passes[0].requests:  # a baseline so fast that no step of a speculating server keeps up
        request.chunks = [(request.chunks[0][0] + (t - request.chunks[0][0]) / 100, n) for t, n in request.chunks]
    slow = Measured("toy", "A toy", study.folder, (plain, *study.records[1:]), study.summary)
    assert "leave it off" in text(tuning.flags(tuning.tuned([slow])))


def test_a_single_prompt_is_enough_for_every_block(house: Path) -> None:
    """A study as small as a first look on a machine: intervals are missing, nothing fails."""
    study = toy(house)
    for run in study.records:
        run.passes[0].requests = run.passes[0].requests[:1]
    found = tuning.tuned([measured(house, study.records)])
    assert len(found[0].sweep.samples) == 1
    assert "a single prompt decides nothing" in text(tuning.trial_result(found))
    *shown, forecasts, prompts = blocks(found)
    assert all(shown)
    assert forecasts == prompts == ""  # a prompt is predicted by the cost of the others


def test_answers_that_mean_nothing_predict_nothing(house: Path) -> None:
    study = toy(house)
    for run in study.records:
        run.note = "random weights"
    assert tuning.tuned([measured(house, study.records)]) == []


def test_without_speculation_there_is_nothing_to_predict_from(house: Path) -> None:
    plain, _ = ngramfactory.pair()
    assert tuning.tuned([measured(house, [plain])]) == []
    assert "nothing to predict from" in text(tuning.tuner([]))
    assert blocks([]) == [tuning.nothing(), "", "", ""]


# -- what is committed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def committed() -> list[Tuned]:
    return tuning.tuned(bookdata.studies())


def test_every_committed_study_measured_or_plans_other_settings(committed: list[Tuned]) -> None:
    assert {"cpu-smollm2-135m", "h200-smollm2-135m"} <= {found.name for found in committed}
    for found in committed:
        assert {trial.workload for trial in found.trials} == {*found.sweep.workloads, None}


def test_no_figure_of_the_page_was_typed(committed: list[Tuned], tmp_path: Path) -> None:
    page = tmp_path / "tuning.html"
    page.write_text(f"<article>{''.join(blocks(committed))}</article>", encoding="utf-8")
    assert Page(page).typed_digits() == []
