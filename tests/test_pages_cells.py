"""The cells of every page, run as they stand over small projects: without records, and with what can go wrong.

What the built site looks like is for `test_book`; this is the quick half, without Sphinx and without a kernel.
"""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

from bookhouse import IDS
from conftest import ROOT
from recordfactory import a_record, answer, failed
from samebytes import bookbuild, prose, record

NASTY = "</script><script>alert(1)</script> {{ x }} <b>"
PAGES = [page.removeprefix("book/") for page in bookbuild.pages(ROOT) if (ROOT / f"{page}.md").is_file()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with this one's pages, configs, studies and prompts, and without results."""
    for name in ("_config.yml", "_toc.yml", "README.md", "book", "configs", "studies", "workloads"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, tmp_path / name)
    (tmp_path / "results/rtx5090-qwen3-32b-awq").mkdir(parents=True)
    shutil.copy(ROOT / "results/rtx5090-qwen3-32b-awq/published.yaml", tmp_path / "results/rtx5090-qwen3-32b-awq")
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    return tmp_path


def run(page: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the cells of a page show, and what they glue into its text."""
    shown: list[str] = []
    monkeypatch.setattr(prose, "figure", lambda name, value: shown.append(value))
    names: dict[str, object] = {}
    text = (ROOT / f"book/{page}.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for cell in cells:
        body = ast.parse("\n".join(line for line in cell.split("\n") if not line.startswith(":")))
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, page, "exec"), names)  # the project's own pages
        if isinstance(last, ast.Expr):
            shown.append(str(eval(compile(ast.Expression(last.value), page, "eval"), names)))
    return "\n".join(shown)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_without_any_record(project: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    run(page, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_over_ones_own_config_and_without_the_article(
    project: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    shutil.rmtree(project / "results/rtx5090-qwen3-32b-awq")
    for found in (a_record("baseline", ids=IDS), a_record("mine", ids=IDS, rate=20.0)):
        record.save(found, project / "results/toy" / f"{found.label}.json")
    assert "No study has records yet" not in run(page, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_takes_what_a_record_says_as_data(project: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    texts = {"rag/0": f"an answer {NASTY}", "creative/1": NASTY}
    hostile = a_record("ngram", ids=IDS, rate=20.0, texts=texts, replace={"code_edit/0": failed("code_edit/0", NASTY)})
    hostile.machine.cpu = NASTY
    short = {key: answer(key, n=2) for key in IDS}
    records = [
        a_record("baseline", ids=IDS, note=None),
        a_record("baseline-2", "baseline", ids=IDS, texts={"rag/2": NASTY}),
        hostile,
        a_record("ngram-2", "ngram", ids=IDS, replace=short),
        a_record("fp8", status="failed", reason=NASTY, passes=[], launches=[]),
        a_record("baseline_sync", status="partial"),
    ]
    for found in records:
        record.save(found, project / "results/toy" / f"{found.label}.json")
    (project / "studies/toy.yaml").write_text(
        'title: "<i>toy</i>"\nmodel: m\nmax_tokens: 64\nruns: [{config: baseline}, {config: ngram_gpu}]\n'
    )
    shown = run(page, monkeypatch)
    assert "<script>alert" not in shown
    assert "<i>toy" not in shown
    if page in ("index", "determinism", "timeline"):
        assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; {{ x }} &lt;b&gt;" in shown, "it is shown as it is"
