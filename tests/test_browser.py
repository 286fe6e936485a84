"""The built site in headless Chromium, every other host unreachable; and cells run in the page through `make live`.

Leaves pictures of every page, 1280 and 390 pixels wide, in ``_build/screens``.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Response,
    sync_playwright,
)

from conftest import ROOT
from liveserver import Live, serving
from samebytes import bookbuild, bookdata, pagecheck, pdf, record

pytestmark = pytest.mark.slow

PAGES = bookbuild.pages(ROOT)
SCREENS = ROOT / "_build" / "screens"
FLAGS = (
    # nothing but this machine has an address
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # small in containers
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}

DRAWN = (
    """() => [...document.querySelectorAll("figure.chart")].every((f) => f.querySelector(".chart-live svg.marks"))"""
)
CHARTS = """() => [...document.querySelectorAll("figure.chart")].map((figure) => ({
    name: figure.id,
    marks: figure.querySelectorAll(".chart-live svg.marks .role-mark :is(path, rect, line, text)").length,
    height: figure.querySelector(".chart-live svg.marks").getBoundingClientRect().height,
    ink: getComputedStyle(figure.querySelector(".chart-live svg.marks .role-axis text")).fill,
    page: getComputedStyle(document.querySelector("article")).color,
}))"""
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll("article *")]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre, .chart-static"))
    .map((e) => `${e.tagName}.${e.className}#${e.id} ${Math.round(e.getBoundingClientRect().right)}`)
    .concat(`the page is ${document.documentElement.scrollWidth} pixels wide`)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=pdf.browser(), args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def wide(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport=WIDE, color_scheme="light") as found:
        yield found


@pytest.fixture(scope="module")
def narrow(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport=NARROW, color_scheme="light") as found:
        yield found


@pytest.fixture(scope="module")
def without_scripts(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport=WIDE, java_script_enabled=False) as found:
        yield found


class Visit:
    """An open page, with all that went wrong on it."""

    def __init__(self, context: BrowserContext, url: str, *, drawn: bool = True) -> None:
        self.problems: list[str] = []
        self.requested: list[str] = []
        self.host = urlsplit(url).netloc
        self.page: Page = context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("response", self._response)
        self.page.goto(url)
        if drawn:
            self.page.wait_for_function(DRAWN)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != "csp":  # a script, where scripts are off
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def elsewhere(self) -> list[str]:
        """Return what was asked of another host."""
        web = [url for url in self.requested if urlsplit(url).scheme not in ("data", "blob")]
        return [url for url in web if urlsplit(url).netloc != self.host]

    def picture(self, name: str, width: int, theme: str = "") -> None:
        """Keep a picture of the whole page."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENS / f"{Path(name).name}-{width}{theme}.png", full_page=True)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


# -- the published site -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_whole_and_its_charts_are_drawn_in_both_themes(site: str, wide: BrowserContext, name: str) -> None:
    with Visit(wide, f"{site}/{name}.html") as visit:
        page = visit.page
        light = page.evaluate(CHARTS)
        visit.picture(name, WIDE["width"])
        html = page.locator("html")
        for _ in range(3):  # the switch goes through light, dark and the system's own
            page.locator("button.theme-switch-button:visible").first.click()
            if html.get_attribute("data-theme") == "dark":
                break
        assert html.get_attribute("data-theme") == "dark"
        page.wait_for_function(DRAWN)
        dark = page.evaluate(CHARTS)
        visit.picture(name, WIDE["width"], "-dark")
        assert page.evaluate(TOO_WIDE) == []
        page.evaluate("localStorage.clear()")
        assert visit.problems == []
        assert visit.elsewhere() == []
    for chart in (*light, *dark):
        assert chart["marks"] > 0, chart
        assert chart["height"] > 50, chart
        assert chart["ink"] == chart["page"], f"a chart's text has the page's colour: {chart}"
    assert [chart["ink"] for chart in light if chart["ink"] in {chart["ink"] for chart in dark}] == []


@pytest.mark.parametrize("name", PAGES)
def test_on_a_phone_a_table_scrolls_and_not_the_page(site: str, narrow: BrowserContext, name: str) -> None:
    with Visit(narrow, f"{site}/{name}.html") as visit:
        visit.picture(name, NARROW["width"])
        assert visit.page.evaluate(TOO_WIDE) == []
        assert visit.problems == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_without_scripts(site: str, without_scripts: BrowserContext, name: str) -> None:
    with Visit(without_scripts, f"{site}/{name}.html", drawn=False) as visit:
        article = visit.page.locator("article")
        assert len(article.inner_text()) > 1000
        for figure in article.locator("figure.chart").all():
            box = figure.locator(".chart-static svg").first.bounding_box()
            assert box is not None
            assert box["width"] > 200
            assert box["height"] > 50
            assert not figure.locator(".chart-live").is_visible()
        for figure in article.locator("figure.interactive").all():
            assert len(figure.inner_text()) > 100, figure.get_attribute("id")
        assert visit.problems == []


def test_no_page_is_heavy(built: Path) -> None:
    if bookdata.this_machine() is not None:
        pytest.skip("this machine's own study is on the pages, too")
    assert list(pagecheck.heavy(built, PAGES)) == []


def test_a_mark_shows_its_details_on_hover(site: str, wide: BrowserContext) -> None:
    with Visit(wide, f"{site}/{PAGES[0]}.html") as visit:
        mark = visit.page.locator("figure.chart .chart-live svg.marks .mark-symbol path").first
        mark.hover(force=True)
        tooltip = visit.page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        assert tooltip.locator("tr").count() > 1


CONTROLS = {
    "button:visible:enabled": "Enter",
    "input[type=range]:visible:enabled": "ArrowRight",
    "select:visible:enabled": "ArrowDown",
}
"""Controls of an interactive figure, and the key that moves each."""


def responds(figure: Locator, control: Locator, key: str | None) -> bool:
    """Tell whether a figure says something else after a key was pressed on one of its controls, or a click."""
    before = figure.inner_text()
    if key is None:
        control.click()
    else:
        control.focus()
        control.press(key)
    return figure.inner_text() != before


def operate(figure: Locator) -> None:
    """Fail where an interactive figure does not respond to a key, or to no click on any of its buttons."""
    called = figure.get_attribute("id")
    found = [(control, key) for kind, key in CONTROLS.items() for control in figure.locator(kind).all()]
    assert found, f"{called} has nothing to operate"
    assert any(responds(figure, control, key) for control, key in found), f"{called}: no key does anything"
    buttons = figure.locator("button:visible:enabled").all()
    assert not buttons or any(responds(figure, button, None) for button in buttons), f"{called}: no click does anything"


def interactive(built: Path) -> list[str]:
    """Return the pages with an interactive figure."""
    mark = 'class="exhibit interactive"'
    found = [name for name in PAGES if mark in (built / f"{name}.html").read_text(encoding="utf-8")]
    assert found
    return found


def test_an_interactive_figure_responds_to_clicks_and_keys(site: str, built: Path, wide: BrowserContext) -> None:
    for name in interactive(built):
        with Visit(wide, f"{site}/{name}.html") as visit:
            for figure in visit.page.locator("figure.interactive").all():
                operate(figure)
            assert visit.problems == [], name


def test_the_published_page_says_how_to_run_it_and_gives_its_notebook(
    site: str, built: Path, wide: BrowserContext
) -> None:
    with Visit(wide, f"{site}/{PAGES[0]}.html") as visit:
        page = visit.page
        page.get_by_text("Run this page").click()
        assert page.locator("details.live code", has_text="make live").is_visible()
        assert page.locator("button.live-run").count() == 0
        with page.expect_download() as download:
            page.get_by_text("this page as a notebook").click()
        assert Path(download.value.path()).read_bytes() == (built / f"{PAGES[0]}.ipynb").read_bytes()
        assert [url for url in visit.requested if "thebe-core" in url] == []


# -- the figures that read records ------------------------------------------------------------------------------------


def page_with(built: Path, mark: str) -> str:
    """Return the one page whose text has a mark."""
    (found,) = [name for name in PAGES if mark in (built / f"{name}.html").read_text(encoding="utf-8")]
    return found


def given(page: Page, figure: str) -> list[dict[str, Any]]:
    """Return what a figure's script was given."""
    return list(json.loads(page.locator(f"[{figure}] > script").inner_text()))


def answers(study: str, label: str) -> dict[str, record.Request]:
    found = record.load(ROOT / "results" / study / f"{label}.json")
    return {request.id: request for request in found.sequential()}


def test_stepping_through_an_answer_ends_at_its_text_and_at_the_servers_counters(
    site: str, built: Path, wide: BrowserContext
) -> None:
    with Visit(wide, f"{site}/{page_with(built, 'data-stepper')}.html") as visit:
        page = visit.page
        offered = given(page, "data-stepper")
        assert offered
        for number, each in enumerate(offered):
            page.select_option("[data-do=answer]", str(number))
            request = answers(*each["source"].split("/"))[each["prompt"]]
            page.locator(".stepper-live").press("End")
            counted = {name: page.inner_text(f"[data-counter={name}]") for name in ("tokens", "drafts", "draft_tokens")}
            assert counted == {
                "tokens": str(request.completion_tokens),
                "drafts": str(request.drafts),
                "draft_tokens": str(request.draft_tokens),
            }
            assert "the same" in page.inner_text(".stepper-equal")
            shown = page.locator(".stepper-text").last.text_content() or ""
            assert shown.startswith(request.text), "the end-of-turn token comes after it"
            last = page.get_attribute(".stepper-live", "data-step")
            assert last == str(len(each["steps"]))
            page.click("[data-do=back]")
            assert page.get_attribute(".stepper-live", "data-step") == str(len(each["steps"]) - 1)
            page.click("[data-do=first]")
            assert page.get_attribute(".stepper-live", "data-step") == "1"
            assert page.locator("[data-counter=tokens]").inner_text() == "1"
        page.click("[data-do=play]")
        page.wait_for_selector(".stepper-live[data-step='3']")
        page.click("[data-do=play]")
        assert page.inner_text("[data-do=play]") == "play"
        assert visit.problems == []


def test_the_explorer_shows_both_answers_and_marks_where_they_part(
    site: str, built: Path, wide: BrowserContext
) -> None:
    address = f"{site}/{page_with(built, 'data-explorer')}.html"
    with Visit(wide, address) as visit:
        page = visit.page
        checked = 0
        for study in given(page, "data-explorer"):
            for pair in study["pairs"]:
                parted = [key for key, found in pair["prompts"].items() if "char" in (found["sides"] or [{}])[0]]
                for key in parted[:1] + parted[-1:]:
                    page.goto(f"{address}#{study['name']}/{pair['config']}@{pair['reference']}/{key}")
                    page.wait_for_selector(f".explorer-list [data-prompt='{key}'][aria-pressed=true]")
                    side = pair["prompts"][key]["sides"][0]
                    at = side["char"]
                    said = f"character {at}, byte {side['byte']}, token {side['token']}"
                    assert said in page.inner_text(".explorer-said")
                    panes = page.locator(".explorer-panes pre")
                    for i, (config, answer) in enumerate([(pair["reference"], side["a"]), (pair["config"], side["b"])]):
                        (prompt,) = [prompt for prompt in study["prompts"] if prompt["id"] == key]
                        label = next(run for run in study["configs"][config] if prompt["runs"][run] == answer)
                        text = answers(study["name"], label)[key].text
                        assert panes.nth(i).locator(".explorer-common").text_content() == text[:at]
                        if text[at : at + 1].strip():
                            assert panes.nth(i).locator("mark").text_content() == text[at]
                            assert panes.nth(i).text_content() == text
                    checked += 1
        assert checked
        shown = page.locator(".explorer-list button").count()
        page.check("[data-do=only]")
        assert page.locator(".explorer-list button").count() <= shown
        assert page.locator(".explorer-list button[data-verdict^=same]").count() == 0
        page.locator(".explorer-list button").first.press("ArrowDown")
        assert page.locator(".explorer-list button").nth(1).get_attribute("aria-pressed") == "true"
        assert page.url.endswith(page.inner_text(".explorer-name"))
        assert visit.problems == []


# -- the page that runs -----------------------------------------------------------------------------------------------

EDITED = """
import altair
from samebytes import charts, prose
# {names}: from cells that the page does not show
rows = [{{"a": i, "b": i * i}} for i in range({n})]
bars = altair.Chart(altair.InlineData(values=rows)).mark_bar().encode(x="a:O", y="b:Q")
drawing = charts.drawing(bars, "squares", label="edited")
prose.join([
    prose.grid(["a", "b"], [[row["a"], row["b"]] for row in rows], label="edited"),
    prose.html('<figure class="chart" id="edited">{{}}</figure>', drawing),
    prose.count(len([{names}]), source="names"),
])
"""


@pytest.fixture(scope="module")
def live(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(ROOT, "live", tmp_path_factory.mktemp("live")) as found:
        yield found


def hidden_names(notebook: Path) -> list[str]:
    """Return the names that a page's first cell imports or sets."""
    first = next(c for c in nbformat.read(notebook, as_version=4).cells if "remove-input" in c.metadata.get("tags", []))
    found: list[str] = []
    for node in ast.parse(first.source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [alias.asname or alias.name for alias in node.names]
        if isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    assert found
    return found


class Runner:
    """A page whose cells run."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.bar = page.locator(".live-bar")
        self.bar.wait_for()

    def done(self, state: str = "done") -> str:
        """Wait until nothing runs any more and return what the page says of it."""
        self.page.wait_for_function("!document.querySelector('.live-run:disabled')", timeout=90_000)
        assert self.bar.get_attribute("data-state") == state, self.bar.inner_text()
        return self.bar.inner_text()

    def run(self, cell: Locator, code: str, state: str = "done") -> str:
        """Put code into a cell's place, run it from the keyboard, and return what the page says."""
        editor = cell.locator("textarea")
        editor.fill(code)
        editor.press("Control+Enter")
        return self.done(state)


def test_a_reader_edits_a_cell_and_table_and_chart_change_in_place(
    live: Live, built: Path, wide: BrowserContext
) -> None:
    names = ", ".join(hidden_names(built / f"{PAGES[0]}.ipynb"))
    with Visit(wide, live.first) as visit:
        page, runner = visit.page, Runner(visit.page)
        shown = page.locator("div.cell.tag_hide-input", has=page.locator("figure.chart")).first
        cell = page.locator(f"#{shown.get_attribute('id')}")
        as_built = cell.locator(".cell_output").inner_text()
        cell.locator("> details.hide > summary").click()
        source = cell.locator("textarea").input_value()
        for n in (3, 5):
            runner.run(cell, EDITED.format(names=names, n=n))
            page.wait_for_function(DRAWN)
            assert cell.locator(".cell_output tbody tr").count() == n
            assert cell.locator(".chart-live svg.marks .mark-rect path").count() == n
            assert cell.locator(".chart-static").is_hidden()
        visit.picture("running", WIDE["width"])

        assert "failed" in runner.run(cell, "1 / 0", "error")
        assert "ZeroDivisionError" in cell.locator(".cell_output").inner_text()
        runner.run(cell, "print('<b>&')")
        assert cell.locator(".cell_output").inner_text().strip() == "<b>&"

        cell.get_by_role("button", name="Reset", exact=True).click()
        assert cell.locator("textarea").input_value() == source
        cell.get_by_role("button", name="Run", exact=True).click()
        runner.done()
        page.wait_for_function(DRAWN)
        assert cell.locator(".cell_output").inner_text() == as_built
        assert visit.problems == []
        assert visit.elsewhere() == []
        assert len(live.get("api/kernels")) == 1

        page.goto(live.first.replace(PAGES[0], PAGES[-1]))
        end = time.monotonic() + 20
        while live.get("api/kernels") and time.monotonic() < end:
            page.wait_for_timeout(200)
        assert live.get("api/kernels") == [], "a page that is left keeps no kernel"


def test_figures_of_a_page_that_was_run_can_be_operated(live: Live, built: Path, wide: BrowserContext) -> None:
    for name in interactive(built):
        with Visit(wide, live.first.replace(PAGES[0], name)) as visit:
            runner = Runner(visit.page)
            visit.page.get_by_role("button", name="Run all cells").click()
            runner.done()
            for figure in visit.page.locator("figure.interactive").all():
                operate(figure)
            assert visit.problems == [], name


def test_a_page_whose_server_is_gone_says_so_and_how_to_start_it(
    built: Path, wide: BrowserContext, tmp_path: Path
) -> None:
    with serving(ROOT, "live", tmp_path) as server, Visit(wide, server.first) as visit:
        runner = Runner(visit.page)
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        visit.page.get_by_role("button", name="Run all cells").click()
        assert "No server answers" in runner.done("error")
        assert runner.bar.locator("code").inner_text() == "make live"


def test_lab_opens_the_first_page_as_a_notebook(wide: BrowserContext, tmp_path: Path) -> None:
    with serving(ROOT, "lab", tmp_path) as server, Visit(wide, server.first, drawn=False) as visit:
        visit.page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
        assert visit.page.locator(".jp-Dialog").count() == 0
        assert visit.elsewhere() == []
