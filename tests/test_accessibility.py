"""What keeps a page from those who do not see or do not point, by axe-core: nothing serious is of our making.

The whole finding is left in ``_build/axe.json``; ``tests/axe.json`` is the one of the last time that it was committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from conftest import ROOT
from samebytes import bookbuild, pdf

pytestmark = pytest.mark.slow

AXE = ROOT / ".venv" / "npm" / "axe-core" / "axe.min.js"
PAGES = [*bookbuild.pages(ROOT), "search", "404"]
SERIOUS = ("serious", "critical")
OTHERS = {
    ".search-button-field": "pydata-sphinx-theme: named Search, shows the keys as well",
    ".theme-switch-button": "pydata-sphinx-theme: named Color mode, shows the mode as well",
    'summary[aria-label="Toggle hidden content"]': "myst-nb: the name of a folded cell is not what it shows",
}
"""Elements that the theme and the notebook extension make, by selector, with what axe finds wrong with them."""

RUN = """async ([others, rules]) => {
    const found = await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
    const theirs = (node) => others.some((selector) => document.querySelector(node.target.at(-1))?.matches(selector));
    return found.violations.flatMap((rule) => rule.nodes.map((node) => ({
        rule: rule.id, impact: rule.impact, element: node.target.join(" "), ours: !theirs(node),
    })));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=pdf.browser(), args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def violations(browser: Browser, url: str, scheme: Any) -> list[dict[str, Any]]:
    """Return what axe finds on a page whose charts are drawn."""
    assert AXE.exists(), "axe-core is missing: make axe"
    with browser.new_context(color_scheme=scheme, reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(url)
        page.wait_for_function('() => !document.querySelector("figure.chart:not(.chart-drawn)")')
        page.wait_for_function(
            '() => [...document.querySelectorAll(".chart-live")].every((c) => c.querySelector("summary"))'
        )
        page.evaluate(AXE.read_text(encoding="utf-8"))
        # the colours are all that the dark theme changes
        return list(page.evaluate(RUN, [list(OTHERS), ["color-contrast"] if scheme == "dark" else None]))


@pytest.fixture(scope="module")
def findings(site: str, browser: Browser) -> dict[str, list[dict[str, Any]]]:
    """What axe finds on every page, in both themes, once for each element."""
    found = {}
    for name in PAGES:
        both = [one for scheme in ("light", "dark") for one in violations(browser, f"{site}/{name}.html", scheme)]
        found[name] = [json.loads(text) for text in sorted({json.dumps(one, sort_keys=True) for one in both})]
    report = ROOT / "_build" / "axe.json"
    report.parent.mkdir(exist_ok=True)
    report.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious_on_a_page_is_ours(findings: dict[str, list[dict[str, Any]]], name: str) -> None:
    assert [one for one in findings[name] if one["ours"] and one["impact"] in SERIOUS] == []


def test_what_is_left_to_others_is_still_there(findings: dict[str, list[dict[str, Any]]]) -> None:
    """An exception that nothing needs any more is taken out."""
    theirs = " ".join(one["element"] for found in findings.values() for one in found if not one["ours"])
    for selector in OTHERS:
        assert selector in theirs


def test_a_barrier_is_found(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<html lang="en"><title>T</title><main><h1>T</h1><img src="data:,"><p style="color:#ccc">pale</p></main>'
    )
    found = violations(browser, (tmp_path / "page.html").as_uri(), "light")
    assert {one["rule"] for one in found if one["ours"] and one["impact"] in SERIOUS} == {"image-alt", "color-contrast"}
