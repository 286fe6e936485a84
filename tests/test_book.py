"""The article as it is built: pages, figures, failures. Each build runs `jupyter-book` and real kernels.

Every build here runs where Python can neither reach another host nor import an engine.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from conftest import ROOT
from recordfactory import a_record, prompt_ids
from samebytes import bookbuild, bookdata, paths, record
from samebytes.errors import SamebytesError, UsageError
from samebytes.lock import locked
from samebytes.pagecheck import Page

pytestmark = pytest.mark.slow

HOUSE = ("_config.yml", "_toc.yml", "book", "configs", "studies", "workloads")
IDS = prompt_ids(3)
NASTY = "<script>alert(document.title)</script> {{ secret }} {glue:}`level` {ref}`x` `` <data> & $$x$$ </div>"

GUARD = """
import os, sys

HERE = (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", os.uname().nodename)

def refuse(what):
    with open(os.environ["GUARD"], "a") as stream:
        stream.write(what + "\\n")
    raise PermissionError(f"not while the book is built: {what}")

def guard(event, args):
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in HERE:
        refuse(f"connect {args[1]}")
    elif event == "socket.getaddrinfo" and args[0] not in HERE:
        refuse(f"look up {args[0]}")
    elif event == "import" and args[0].partition(".")[0] in ("vllm", "torch", "pynvml"):
        refuse(f"import {args[0]}")

sys.addaudithook(guard)
"""
"""Python's sitecustomize: what a build may not do is refused, and noted."""

FRONT = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# A page
"""

TINY = (
    FRONT
    + """
```{code-cell} ipython3
import json, pathlib
from samebytes import prose
found = json.loads(pathlib.Path("../results/toy/value.json").read_text())
prose.count(found["value"], source="toy")
```
"""
)

MADE = (
    FRONT
    + """
## Measured

```{code-cell} ipython3
from samebytes import bookdata, charts, exhibit, prose
(study,) = bookdata.studies()
config = study.summary.config("ngram")
said = study.records[-1].passes[0].requests[-1].text
rate = prose.number(config.speed[0].decode_tok_s, source="speed of ngram")
rows = [{"prompt": p.id, "tok_s": p.decode_tok_s} for p in config.prompts]
prose.join([
    prose.heading("one-study", prose.given(study.name, source="s")),
    rate,
    prose.given(said, source="answer"),
    exhibit.chart("rates", charts.speed(study), prose.html("Rates: {}", rate), said, exhibit.origin(study)),
    exhibit.table("table", said, ["prompt"], [[said]], exhibit.origin(study, "ngram"), data=rows),
])
```
"""
)
"""A page with a chart and a table of a study, and a hostile answer everywhere."""


# -- the projects that are built --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no build reach another host or import an engine."""
    folder = tmp_path_factory.mktemp("guard")
    (folder / "sitecustomize.py").write_text(GUARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))
        patch.setenv("GUARD", str(folder / "refused"))
        yield
        assert not (folder / "refused").exists(), (folder / "refused").read_text()


def copy(root: Path, *names: str) -> None:
    for name in names:
        source = ROOT / name
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, root / name)


def save(root: Path, rate: float = 20.0) -> None:
    records = [
        a_record("baseline", ids=IDS),
        a_record("baseline-2", "baseline", ids=IDS),
        a_record("fp8", status="failed", reason=NASTY, passes=[], launches=[]),
        a_record("ngram", ids=IDS, rate=rate, texts=dict.fromkeys(IDS, NASTY)),
    ]
    for found in records:
        record.save(found, root / "results" / "toy" / f"{found.label}.json")


def a_small_project(root: Path, text: str) -> Path:
    """Make a project of one page, under the project's own configuration."""
    copy(root, "_config.yml", "book/_static")
    for name in paths.MARKERS[1:]:
        (root / name).mkdir()
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\n")
    (root / "book/index.md").write_text(text)
    return root


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own pages over a small study with hostile answers, built."""
    root = tmp_path_factory.mktemp("project")
    copy(root, *HOUSE, "results/record.schema.json", "results/rtx5090-qwen3-32b-awq/published.yaml")
    (root / "studies" / "toy.yaml").write_text(
        f"title: {json.dumps(NASTY)}\nmodel: m\nmax_tokens: 64\n"
        "runs: [{config: baseline}, {config: baseline_sync}]\n"
    )
    save(root)
    assert bookbuild.build(root) == root / "_build/html/book/index.html"
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one page over a small study with hostile answers, built."""
    root = a_small_project(tmp_path_factory.mktemp("made"), MADE)
    copy(root, "workloads/rag")
    save(root)
    bookbuild.build(root)
    return root


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A project of one page with one cell that shows one number."""
    put(a_small_project(tmp_path, TINY), 41)
    return tmp_path


def put(root: Path, value: int | None) -> None:
    (root / "results/toy").mkdir(parents=True, exist_ok=True)
    (root / "results/toy/value.json").write_text("{}" if value is None else json.dumps({"value": value}))


def page(root: Path, name: str = "index") -> Page:
    return Page(root / f"_build/html/book/{name}.html")


def source(root: Path, name: str = "index") -> str:
    return (root / f"_build/html/book/{name}.html").read_text(encoding="utf-8")


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
        assert "mathjax" not in path.read_text(encoding="utf-8").lower(), path
    for path in (project / "_build/html/_static").rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_every_link_within_the_site_leads_somewhere(project: Path) -> None:
    for path in site(project):
        for _, link in Page(path).links:
            parts = urlsplit(link)
            if parts.path and not parts.scheme and not parts.netloc:
                assert (path.parent / unquote(parts.path)).exists(), f"{path.name}: {link}"


def test_texts_from_records_are_escaped_on_every_page(project: Path) -> None:
    shown = []
    for path in site(project):
        found = Page(path)
        assert [
            body for kind, body in found.scripts if kind != "application/json" and "alert(document.title)" in body
        ] == [], path
        for body in (body for kind, body in found.scripts if kind == "application/json"):
            json.loads(body)
        assert "pending" not in path.read_text(encoding="utf-8").lower(), path
        if "&lt;script&gt;alert(document.title)&lt;/script&gt; {{ secret }} {glue:}`level`" in path.read_text("utf-8"):
            shown.append(path.stem)
    assert set(shown) >= {"index", "answers", "determinism"}, (
        "the engine's message and the answers are shown as they are"
    )


def test_every_exhibit_has_its_data(project: Path) -> None:
    names = [
        name for path in site(project) for name in re.findall(r'data-exhibit="(.+?)\.[0-9a-f]{16}"', path.read_text())
    ]
    assert names
    folder = project / "_build/html/exhibits"
    assert {path.name for path in folder.iterdir()} == {f"{name}.{end}" for name in names for end in ("csv", "json")}


def test_records_can_be_downloaded(project: Path) -> None:
    there = project / "_build/html/results/toy/ngram.json"
    assert there.read_bytes() == (project / "results/toy/ngram.json").read_bytes()
    assert ("a", "../results/toy/ngram.json") in page(project, "data").links


# -- a page from records to files -------------------------------------------------------------------------------------


def test_a_hostile_answer_is_shown_as_text(made: Path) -> None:
    found = page(made)
    assert found.figure("answer") == [NASTY]
    assert "<script>alert" not in source(made)
    assert (
        source(made).count("&lt;script&gt;alert(document.title)&lt;/script&gt; {{ secret }} {glue:}`level` {ref}`x`")
        > 3
    )


def test_the_heading_of_a_cell_is_in_the_contents(made: Path) -> None:
    contents = source(made).partition('<nav id="pst-page-toc-nav"')[2].partition("</nav>")[0]
    entry = r'href="#measured">Measured</a><ul [^>]*>\s*<li [^>]*><a class="reference internal nav-link" '
    assert re.search(entry + r'href="#one-study">toy</a>', contents), contents


def test_a_chart_is_there_with_and_without_scripts(made: Path) -> None:
    text = source(made)
    static = text[text.index('<div class="chart-static"') : text.index('<div class="chart-live"')]
    assert "decode throughput, tok/s" in static
    assert static.count('aria-roledescription="point"') == 2 * len(IDS)
    assert "vega/vega.js" in text


def test_a_page_loads_the_icons_that_it_names_and_not_all_there_are(made: Path) -> None:
    icons = (made / "_build/html/_static/scripts/fontawesome.js").read_text(encoding="utf-8")
    assert len(icons) < 100_000
    named = set(re.findall(r"fa-(?:solid|regular|brands) fa-([a-z-]+)", source(made)))
    assert len(named) > 5
    assert [name for name in named if f'{name}":[' not in icons and f"{name}:[" not in icons] == []


def test_a_changed_record_changes_number_chart_and_files_and_an_unchanged_one_executes_nothing(made: Path) -> None:
    assert seen(made) == ({"20.0"}, {10.0, 20.0}, "Rates: 20.0", {"20.0"}, {20.0})
    before = (made / "_build/html/book/index.html").stat().st_mtime_ns
    bookbuild.build(made)
    assert (made / "_build/html/book/index.html").stat().st_mtime_ns == before
    save(made, rate=30.0)
    bookbuild.build(made)
    assert seen(made) == ({"30.0"}, {10.0, 30.0}, "Rates: 30.0", {"30.0"}, {30.0})


def seen(root: Path) -> tuple[object, ...]:
    """Return what the page, its chart and its files say of the rate."""
    found = page(root)
    (spec,) = [json.loads(body) for kind, body in found.scripts if kind == "application/json"]
    (rows,) = spec["datasets"].values()
    folder = root / "_build/html/exhibits"
    with (folder / "table.csv").open(encoding="utf-8", newline="") as stream:
        as_csv = {row["tok_s"] for row in csv.DictReader(stream)}
    as_json = {row["tok_s"] for row in json.loads((folder / "table.json").read_text())["rows"]}
    return set(found.figure("speed of ngram")), {row["tok_s"] for row in rows}, spec["description"], as_csv, as_json


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_cell_fails_every_build_until_it_is_mended(tiny: Path) -> None:
    bookbuild.build(tiny)
    assert page(tiny).figure("toy") == ["41"]
    assert "vega/vega.js" not in source(tiny)
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


def test_warnings_and_formulas_fail_every_build(tiny: Path) -> None:
    (tiny / "book/index.md").write_text(TINY + "\n[](nowhere.md)\n\n```{math}\nx^2\n```\n")
    for _ in ("clean", "incremental"):
        with pytest.raises(SamebytesError, match=r"book/index\.md:15: WARNING: .*nowhere\.md") as failure:
            bookbuild.build(tiny)
        assert "index.md:17: WARNING: a formula would load MathJax from another host" in str(failure.value)


def test_a_typed_number_fails_every_build(tiny: Path) -> None:
    (tiny / "book/index.md").write_text(TINY + "\n## The 3 configs\n\nIt is 4.65 times as fast on an H200.\n")
    for _ in ("clean", "incremental"):
        with pytest.raises(SamebytesError, match="book/index: a number that was typed.*'The 3 configs'\n.*'It is 4.65"):
            bookbuild.build(tiny)


def test_a_page_whose_cells_would_not_run_is_refused(tiny: Path) -> None:
    (tiny / "book/index.md").write_text(TINY.replace("format_name: myst", ""))
    with pytest.raises(UsageError, match=r"book/index\.md has cells that would not run"):
        bookbuild.build(tiny)
    assert not (tiny / "_build").exists()


def test_a_second_build_at_the_same_time_is_refused(tiny: Path) -> None:
    with locked(tiny / "_build/.book.lock", "held"):
        with pytest.raises(UsageError, match="another build is writing"):
            bookbuild.build(tiny)


def test_what_a_build_may_not_do_is_refused_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD", str(tmp_path / "refused"))
    for attempt in ("import socket; socket.create_connection(('192.0.2.1', 80))", "import vllm"):
        done = subprocess.run([sys.executable, "-c", attempt], stderr=subprocess.PIPE, encoding="utf-8", check=False)
        assert "not while the book is built" in done.stderr
    assert len((tmp_path / "refused").read_text().splitlines()) == 2


def test_the_fingerprint_knows_names_and_contents(tiny: Path) -> None:
    first = bookdata.fingerprint(tiny)
    assert bookdata.fingerprint(tiny) == first
    put(tiny, 42)
    found = {first, bookdata.fingerprint(tiny)}
    (tiny / "results/toy/value.json").rename(tiny / "results/toy/other.json")
    found.add(bookdata.fingerprint(tiny))
    for name in ("results/toy/.value.json.part", "results/toy/run.log", "results/toy/notebooks/a.ipynb"):
        (tiny / name).parent.mkdir(exist_ok=True)
        (tiny / name).touch()
    found.add(bookdata.fingerprint(tiny))
    assert len(found) == 3
    changed = ("results/toy/probes/a.json", "book/_static/charts.js", "workloads/rag/a.check.yaml", "_config.yml")
    for name in changed:
        (tiny / name).parent.mkdir(parents=True, exist_ok=True)
        with (tiny / name).open("a") as stream:
            stream.write("\n")
        found.add(bookdata.fingerprint(tiny))
    assert len(found) == 3 + len(changed)
