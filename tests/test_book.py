"""The article as it is built: pages, figures, failures. Each build runs `jupyter-book` and real kernels."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from conftest import ROOT
from recordfactory import a_record, prompt_ids
from samebytes import bookbuild, bookdata, paths, record
from samebytes.errors import SamebytesError

pytestmark = pytest.mark.slow

HOUSE = ("_config.yml", "_toc.yml", "book", "configs", "studies", "workloads")
IDS = prompt_ids(3)
NASTY = "<script>alert(1)</script> {{ secret }} {glue:}`level` `` <data> &"
ALLOWED = re.compile(r"\b(UTF-8|CC-BY-4\.0|FP8|H200|RTX 5090|Qwen3-32B|SmolLM2-135M)\b")
"""Names with a digit that is no figure."""

TINY = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# A page

```{code-cell} ipython3
import json, pathlib
from samebytes import prose
found = json.loads(pathlib.Path("../results/toy/value.json").read_text())
prose.count(found["value"], source="toy")
```
"""


# -- reading a page ---------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a test asks of a page: links, scripts, figures, and the prose that stands outside of figures."""

    VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
    NOT_PROSE = ("data", "code", "pre", "script", "style", "svg", "nav")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.figures: list[tuple[str, str]] = []
        self.prose: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [(tag, value) for name, value in attrs if name in ("href", "src", "xlink:href") and value]
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        if tag not in self.VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if tags and tags[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        if tags and tags[-1] == "data":
            self.figures.append((self._open[-1][1].get("title") or "", data))
        if "article" in tags and not set(tags) & set(self.NOT_PROSE):
            self.prose.append(data)

    def figure(self, *words: str) -> list[str]:
        """Return what is shown of the figures whose source has all these words."""
        return [shown for source, shown in self.figures if all(word in source for word in words)]


def typed_digits(prose: list[str]) -> list[str]:
    """Return the pieces of prose with a digit that did not come through `samebytes.prose`."""
    return [piece.strip() for piece in prose if re.search(r"\d", ALLOWED.sub("", piece))]


# -- the projects that are built --------------------------------------------------------------------------------------


def save(root: Path, **ngram: float) -> None:
    records = [
        a_record("baseline", ids=IDS),
        a_record("baseline-2", "baseline", ids=IDS),
        a_record("ngram", ids=IDS, rate=ngram.get("rate", 20.0), texts={"creative/0": "other words"}),
        a_record("fp8", status="failed", reason=NASTY, passes=[], launches=[], note=NASTY),
    ]
    for found in records:
        record.save(found, root / "results" / "toy" / f"{found.label}.json")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own pages over a small study, built."""
    root = tmp_path_factory.mktemp("project")
    for name in HOUSE:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, root / name)
    for name in ("record.schema.json", "rtx5090-qwen3-32b-awq/published.yaml"):
        (root / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "results" / name, root / "results" / name)
    (root / "studies" / "toy.yaml").write_text(
        f"title: {json.dumps(NASTY)}\nmodel: m\nmax_tokens: 64\n"
        "runs: [{config: baseline}, {config: baseline_sync}]\n"
    )
    save(root)
    assert bookbuild.build(root) == root / "_build/html/book/index.html"
    return root


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A project of one page with one cell, under the project's own configuration."""
    for name in ("_config.yml", "book/_static"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, tmp_path / name)
    for name in paths.MARKERS[1:]:
        (tmp_path / name).mkdir()
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/index\n")
    (tmp_path / "book/index.md").write_text(TINY)
    put(tmp_path, 41)
    return tmp_path


def put(root: Path, value: int | None) -> None:
    (root / "results/toy").mkdir(parents=True, exist_ok=True)
    (root / "results/toy/value.json").write_text("{}" if value is None else json.dumps({"value": value}))


def page(root: Path, name: str = "index") -> Page:
    return Page(root / f"_build/html/book/{name}.html")


def site(root: Path) -> Iterator[Path]:
    """Every page; not the theme's templates among its static files."""
    built = root / "_build/html"
    return (path for path in built.rglob("*.html") if "_static" not in path.relative_to(built).parts)


# -- the article ------------------------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_entry_of_the_toc_and_no_other(project: Path) -> None:
    found = {str(path.relative_to(project / "_build/html").with_suffix("")) for path in site(project)}
    assert found - {"index", "genindex", "search"} == set(bookbuild.pages(project))


def test_no_page_asks_another_host_for_anything(project: Path) -> None:
    for path in site(project):
        found = Page(path)
        assert [link for tag, link in found.links if tag != "a" and urlsplit(link).netloc] == [], path
        scripts = [body for kind, body in found.scripts if kind in (None, "module", "text/javascript")]
        assert [body for body in scripts if re.search(r"https?://", body)] == [], path
    for path in (project / "_build/html/_static").rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_every_link_within_the_site_leads_somewhere(project: Path) -> None:
    for path in site(project):
        for _, link in Page(path).links:
            parts = urlsplit(link)
            if parts.path and not parts.scheme and not parts.netloc:
                assert (path.parent / unquote(parts.path)).exists(), f"{path.name}: {link}"


@pytest.mark.parametrize("name", ["index", "method", "data"])
def test_every_digit_in_prose_comes_from_a_record_or_from_the_code(project: Path, name: str) -> None:
    found = page(project, name)
    assert len(found.prose) > 20
    assert typed_digits(found.prose) == []


def test_a_typed_digit_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<p>7</p><article><p>4.65 times <data value="1">75.2</data> on an H200 <code>k1</code></p><p>FP81</p></article>'
    )
    assert typed_digits(Page(tmp_path / "page.html").prose) == ["4.65 times", "FP81"]


def test_texts_from_records_are_escaped(project: Path) -> None:
    text = (project / "_build/html/book/index.html").read_text(encoding="utf-8")
    shown = "".join(data for _, data in page(project).figures)
    assert NASTY in shown, "the engine's message is shown as it is"
    assert "<script>alert" not in text
    assert "pending" not in text.lower()


def test_figures_are_those_of_the_records(project: Path) -> None:
    found = page(project)
    assert set(found.figure("median decode tok/s", "rag", "ngram.json")) == {"20.0"}
    assert set(found.figure("median decode tok/s", "rag", "baseline.json, results/toy/baseline-2.json")) == {"10.0"}
    assert "349.8" in found.figure("Results by config, row code edit, column n-gram")
    prose = " ".join("".join(found.prose).split())
    assert "So a difference that another config repeats is its doing." in prose
    assert "Nothing was measured on the machine that built this page." in prose
    assert "not measured" in prose, "a run that the study asks for and that has no record"


def test_a_chart_is_there_with_and_without_scripts(project: Path) -> None:
    found = page(project)
    (spec,) = [json.loads(body) for kind, body in found.scripts if kind == "application/json"]
    assert "ngram: code_edit 20.0" in spec["description"]
    text = (project / "_build/html/book/index.html").read_text(encoding="utf-8")
    static = text[text.index('<div class="chart-static"') : text.index('<div class="chart-live"')]
    assert "decode throughput, tok/s" in static
    assert static.count('aria-roledescription="point"') == 2 * len(IDS)
    assert "vega/vega.js" in text
    assert "vega/vega.js" not in (project / "_build/html/book/data.html").read_text(encoding="utf-8")


def test_records_can_be_downloaded(project: Path) -> None:
    there = project / "_build/html/results/toy/ngram.json"
    assert there.read_bytes() == (project / "results/toy/ngram.json").read_bytes()
    assert ("a", "../results/toy/ngram.json") in page(project, "data").links


def test_a_changed_record_changes_the_page_and_an_unchanged_one_executes_nothing(project: Path) -> None:
    before = (project / "_build/html/book/index.html").stat().st_mtime_ns
    bookbuild.build(project)
    assert (project / "_build/html/book/index.html").stat().st_mtime_ns == before
    save(project, rate=30.0)
    bookbuild.build(project)
    found = page(project)
    assert set(found.figure("median decode tok/s", "rag", "ngram.json")) == {"30.0"}
    assert "3.00" in found.figure("paired by prompt (rag)", "ngram.json against")
    (spec,) = [json.loads(body) for kind, body in found.scripts if kind == "application/json"]
    assert "30.0" in spec["description"]
    (rows,) = spec["datasets"].values()
    assert {row["tok_s"] for row in rows} == {10.0, 30.0}


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_cell_fails_every_build_until_it_is_mended(tiny: Path) -> None:
    bookbuild.build(tiny)
    assert page(tiny).figure("toy") == ["41"]
    put(tiny, None)
    for _ in ("incremental", "incremental again"):
        with pytest.raises(SamebytesError, match=r"book/index\.md: KeyError: 'value'\n  log: .*book\.log"):
            bookbuild.build(tiny)
    shutil.rmtree(tiny / "_build")
    with pytest.raises(SamebytesError, match=r"index\.md: KeyError: 'value'"):
        bookbuild.build(tiny)
    put(tiny, 42)
    bookbuild.build(tiny)
    assert page(tiny).figure("toy") == ["42"]


def test_a_warning_fails_every_build(tiny: Path) -> None:
    (tiny / "book/index.md").write_text(TINY + "\n[](nowhere.md)\n")
    for _ in ("clean", "incremental"):
        with pytest.raises(SamebytesError, match=r"built: book/index\.md:15: WARNING: .*nowhere\.md"):
            bookbuild.build(tiny)


def test_a_page_whose_cells_do_not_run_is_refused(tiny: Path) -> None:
    (tiny / "book/index.md").write_text("# A page\n\nWithout a cell.\n")
    with pytest.raises(SamebytesError, match=r"book/index\.html has no figure from the records"):
        bookbuild.build(tiny)


def test_the_fingerprint_knows_names_and_contents(tiny: Path) -> None:
    first = bookdata.fingerprint(tiny)
    assert bookdata.fingerprint(tiny) == first
    put(tiny, 42)
    second = bookdata.fingerprint(tiny)
    (tiny / "results/toy/value.json").rename(tiny / "results/toy/other.json")
    (tiny / "results/toy/.value.json.part").touch()
    (tiny / "results/toy/run.log").touch()
    assert len({first, second, bookdata.fingerprint(tiny)}) == 3
