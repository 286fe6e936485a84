"""What is wrong with pages: before they are built, and in the site that came out."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT
from samebytes import bookbuild, pagecheck
from samebytes.errors import UsageError
from samebytes.pagecheck import Page

FRONT = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {name: python3}
---
"""
CELL = "\n```{code-cell} ipython3\n1\n```\n"


def article(tmp_path: Path, body: str) -> Page:
    (tmp_path / "page.html").write_text(f"<p>7</p><article>{body}</article>", encoding="utf-8")
    return Page(tmp_path / "page.html")


@pytest.mark.parametrize(
    "typed",
    [
        "<p>4.65 times</p>",
        "<h2>The 3 configs</h2>",
        "<figure><figcaption>Over 24 prompts</figcaption></figure>",
        "<table><tr><th>p99</th></tr></table>",
        "<p><em>2</em></p>",
        '<img alt="rates up to 349" src="x">',
        '<div role="img" aria-label="rates up to 349"></div>',
        "<summary>7 records</summary>",
        "<p>FP81</p>",
        "<p>XH200</p>",
        "<p><code>4.65</code> times</p>",
        "<p><code>1,410 × 2</code></p>",
        '<p><code><span class="pre">1,410</span> <span class="pre">×</span></code></p>',
        '<p><data value="1">1</data>2</p>',
    ],
)
def test_a_typed_digit_is_found_wherever_it_stands(tmp_path: Path, typed: str) -> None:
    assert len(article(tmp_path, typed).typed_digits()) == 1


@pytest.mark.parametrize(
    "body",
    [
        '<p><data value="75.2">75.2</data> on an H200, FP8 or UTF-8, with Qwen3-32B, SmolLM2-135M on an RTX 5090</p>',
        '<p><data value="x"><b>75</b>.2</data></p>',
        "<p>in <code>prompts[0]</code>, <code>--port 8000</code>, <code>k1</code>",
        '<code class="x"><span class="pre">1</span> <span class="pre">−</span> <span class="pre">p</span></code>',
        "<pre>$ sleep 3</pre>",
        "<script>let x = 1;</script><style>p { margin: 1rem }</style>",
        '<svg aria-label="5"><text>400</text></svg>',
        '<a href="#3" title="3">here</a>',
        '<h2><span class="section-number">2. </span>Why</h2><span class="caption-number x">Listing 1</span>',
    ],
)
def test_figures_names_code_and_pictures_are_no_typed_digits(tmp_path: Path, body: str) -> None:
    page = article(tmp_path, body)
    assert page.typed_digits() == []


def test_a_figure_is_found_by_where_it_comes_from(tmp_path: Path) -> None:
    page = article(tmp_path, '<data value="1" title="rate of a.json">1<b>0</b></data><data title="rate of b">20</data>')
    assert page.figure("rate", "a.json") == ["10"]
    assert page.figure("rate") == ["10", "20"]


# -- before a page is built -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "front",
    [
        "",
        "---\nkernelspec: {name: python3}\n---\n",
        FRONT.replace("format_name: myst", "format_name: light"),
        FRONT.replace("kernelspec", "kernel"),
    ],
)
def test_a_page_whose_cells_would_not_run_is_refused_by_name(tmp_path: Path, front: str) -> None:
    (tmp_path / "one.md").write_text(FRONT + CELL)
    (tmp_path / "two.md").write_text(front + CELL)
    with pytest.raises(UsageError, match=r"two\.md has cells that would not run: its front matter needs `jupytext:"):
        pagecheck.check_sources(tmp_path, ["one", "two"])
    (tmp_path / "two.md").write_text(front + "# No cell\n")
    pagecheck.check_sources(tmp_path, ["one", "two"])


def test_a_page_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"_toc\.yml lists book/a, but there is no book/a\.md"):
        pagecheck.check_sources(tmp_path, ["book/a"])


def test_the_cells_of_every_page_of_the_book_will_run() -> None:
    pagecheck.check_sources(ROOT, bookbuild.pages(ROOT))


# -- the site ---------------------------------------------------------------------------------------------------------


def test_what_a_site_lacks_is_listed_page_by_page(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text("<article><h1>A</h1><p>7 and <data>8</data></p></article>")
    (tmp_path / "two.html").write_text("<article><p>No title</p></article>")
    (tmp_path / "no-study.html").write_text('<article><h1>A</h1><div class="cell_output docutils">None</div></article>')
    assert list(pagecheck.problems(tmp_path, ["one", "two", "no-study", "three"])) == [
        "one: a number that was typed, not computed: '7 and'",
        "two.html has no title",
        "two.html has no figure and no output (did its cells run?)",
        "three.html is missing",
    ]


def test_a_page_weighs_its_scripts_and_styles_but_not_vega(tmp_path: Path) -> None:
    (tmp_path / "_static/vega").mkdir(parents=True)
    (tmp_path / "_static/vega/vega.js").write_text("v" * pagecheck.PAGE_BYTES)
    (tmp_path / "_static/a b.js").write_text("s" * 1000)
    (tmp_path / "_static/a.css").write_text("c" * 100)
    (tmp_path / "book").mkdir()
    page = tmp_path / "book/page.html"
    loads = (
        '<link href="../_static/a.css?v=1"><script src="../_static/a%20b.js"></script>'
        '<script src="../_static/vega/vega.js"></script><a href="../_static/vega/vega.js">bundle</a>'
        "<article><h1>A</h1><data>8</data></article>"
    )
    page.write_text(loads)
    assert pagecheck.weight(tmp_path, page, Page(page)) == len(loads) + 1100
    assert list(pagecheck.heavy(tmp_path, ["book/page"])) == []
    (tmp_path / "_static/a.css").write_text("c" * pagecheck.PAGE_BYTES)
    (heavy,) = pagecheck.heavy(tmp_path, ["book/page"])
    assert heavy.startswith("book/page.html weighs 1,501,")
    assert list(pagecheck.problems(tmp_path, ["book/page"])) == [], "more studies make a page heavier, not wrong"
