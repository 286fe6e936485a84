"""The published folder: links, descriptions, what a host needs, the PDF; and the project's own site, published."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import sync_playwright

from conftest import BASE_URL, ROOT
from samebytes import bookbuild, pdf, publish
from samebytes.errors import SamebytesError, UsageError

PAGES = bookbuild.pages(ROOT)


def page(body: str, head: str = "") -> str:
    return f"<html><head><title>T</title>{head}</head><body><article class='x'>{body}</article></body></html>"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of two pages that is in order."""
    (tmp_path / "book").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a b.json").write_text("{}")
    (tmp_path / "book" / "one.html").write_text(
        page(
            '<section id="top"><h1>One<a class="headerlink" href="#top">#</a></h1><p>Text.</p></section>'
            '<a href="two.html#here">two</a> <a href="../results/a%20b.json">data</a> <a href="https://example.org">x</a>'
            '<svg><clipPath id="c"></clipPath><g clip-path="url(#c)"></g></svg><p aria-labelledby="top c"></p>'
        )
    )
    (tmp_path / "book" / "two.html").write_text(
        page('<h1>Two</h1><p id="here">There.</p><a href="one.html">one</a><script>1</script>')
    )
    return tmp_path


# -- links -------------------------------------------------------------------------------------------------------------


def test_a_site_in_order_has_no_problems(small: Path) -> None:
    assert list(publish.problems(small)) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('<a href="three.html">', "three.html: there is no such file"),
        ('<a href="two.html#gone">', "two.html#gone: there is no such anchor"),
        ('<a href="#gone">', "#gone: there is no such anchor"),
        ('<a href="/book/two.html">', "/book/two.html: begins at the host's root"),
        ('<a href="../../x.html">', "../../x.html: leads out of the site"),
        ('<img src="gone.png">', "gone.png: there is no such file"),
        ('<script src="https://example.org/x.js"></script>', "a part of the page on another host (script)"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "a part of the page on another host (link)"),
    ],
)
def test_a_link_that_leads_nowhere_is_named_with_its_page(small: Path, body: str, words: str) -> None:
    (small / "book" / "two.html").write_text(page(f'<p id="here">{body}</p>'))
    (found,) = publish.problems(small)
    assert found.startswith("book/two.html: ")
    assert words in found


# -- what a page says of itself, and what a host needs -----------------------------------------------------------------


def test_a_description_is_the_first_paragraph_cut_at_a_word() -> None:
    folded = "<details><summary>Run</summary><p>Not this.</p></details><p> </p>"
    assert publish.description(page(f"{folded}<p>Is it\n <b>fast</b> &amp; right?</p><p>Later.</p>")) == (
        "Is it fast & right?"
    )
    long = publish.description(page(f"<p>{'words, ' * 60}</p>"))
    assert long.endswith("words…")
    assert 150 < len(long) <= 160


def test_a_sitemap_has_every_page_at_its_address() -> None:
    found = ElementTree.fromstring(publish.sitemap(["book/a", "book/b"], "https://example.org/x&y/"))
    (space,) = {child.tag.partition("}")[0] + "}" for child in found}
    assert space == "{http://www.sitemaps.org/schemas/sitemap/0.9}"
    assert [url.findtext(f"{space}loc") for url in found] == [
        "https://example.org/x&y/book/a.html",
        "https://example.org/x&y/book/b.html",
    ]


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org/", "https://example.org/?x=1", ""])
def test_a_base_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"must be like https://NAME\.github\.io/PROJECT/"):
        publish.publish(tmp_path, tmp_path / "site", url)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no published site"):
        publish.publish(ROOT, tmp_path)
    assert (tmp_path / "thesis.txt").exists()


# -- the print page ----------------------------------------------------------------------------------------------------


def test_the_print_page_keeps_anchors_apart_and_links_together(small: Path) -> None:
    text = pdf.combined(small, ["book/one", "book/two"])
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert sorted(ids) == ["one", "one--c", "one--top", "two", "two--here"]
    links = re.findall(r'href="([^"]*)"', text)
    assert set(links) == {"#one", "#two", "#one--top", "#two--here", "https://example.org"}
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert 'clip-path="url(#one--c)"' in text
    assert 'aria-labelledby="one--top one--c"' in text
    assert "<script" not in text
    assert ">2. " not in text
    assert text.count("<article") == 2


def test_links_to_files_lead_to_the_published_site_or_nowhere(small: Path) -> None:
    assert 'href="https://example.org/x/results/a%20b.json"' in pdf.combined(
        small, ["book/one", "book/two"], "https://example.org/x/"
    )
    assert "results" not in pdf.combined(small, ["book/one", "book/two"])


def test_without_a_browser_it_says_how_to_get_one(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(SamebytesError, match="no browser to print the PDF with .*: make browser"):
        pdf.write(small, ["book/one", "book/two"], small / "out.pdf")
    monkeypatch.setenv("CHROMIUM", "/bin/false")
    with pytest.raises(SamebytesError, match="/bin/false printed nothing"):
        pdf.write(small, ["book/one", "book/two"], small / "out.pdf")
    assert not (small / "book" / "print-all.html").exists()


def pages_of(path: Path) -> int:
    """Return the number of pages of a PDF, which Chromium writes with its page objects in the clear."""
    return len(re.findall(rb"/Type\s*/Page\b", path.read_bytes()))


@pytest.mark.slow
def test_the_pdf_begins_each_page_of_the_site_on_a_page_of_its_own(small: Path) -> None:
    pdf.write(small, ["book/one", "book/two"], small / "out.pdf")
    assert pages_of(small / "out.pdf") == 3, "the cover and two articles"
    assert b"file:" not in (small / "out.pdf").read_bytes()


# -- the project's own site --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_published_folder_has_what_a_host_needs(published: Path) -> None:
    assert (published / ".nojekyll").exists()
    assert 'href="/samebytes/"' in (published / "404.html").read_text(encoding="utf-8")
    located = re.findall(r"<loc>(.*?)</loc>", (published / "sitemap.xml").read_text(encoding="utf-8"))
    assert located == [f"{BASE_URL}{name}.html" for name in PAGES]
    assert pages_of(published / "samebytes.pdf") > len(PAGES)
    assert not list(published.rglob("print-all.html"))


@pytest.mark.slow
def test_every_page_has_a_title_a_description_and_an_address_of_its_own(published: Path) -> None:
    texts = {name: (published / f"{name}.html").read_text(encoding="utf-8") for name in PAGES}
    for pattern in (r"<title>(.*?)</title>", r'<meta name="description" content="(.+?)">'):
        found = [re.findall(pattern, text.partition("</head>")[0], re.DOTALL) for text in texts.values()]
        assert all(len(one) == 1 for one in found)
        assert len({one[0] for one in found}) == len(PAGES)
    for name, text in texts.items():
        assert f'<link rel="canonical" href="{BASE_URL}{name}.html">' in text


@pytest.mark.slow
def test_search_works_below_the_root_with_no_other_host(site: str) -> None:
    flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=pdf.browser(), args=flags)
        found = browser.new_page()
        found.goto(f"{site}/search.html?q=speculation")
        link = found.locator("#search-results li a").first
        link.wait_for()
        found.locator("#search-results").get_by_text(re.compile(r"\d+ page")).first.wait_for()  # the last thing it says
        link.click()
        found.wait_for_url(f"{site}/book/*")
        assert found.locator("h1").first.inner_text()
        found.goto(f"{site}/")
        found.wait_for_url(f"{site}/book/index.html")
        browser.close()
