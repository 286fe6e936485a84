"""The guide to a study of one's own, followed to the letter: its files are written, its commands are run."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from conftest import ROOT
from samebytes.cli import app
from standin_project import Project, project

GUIDE = (ROOT / "book" / "your-own.md").read_text(encoding="utf-8")
BUILD = "samebytes book"
"""The one command that is left to `test_book.py`, which builds the pages over other studies."""


@dataclass(frozen=True)
class Block:
    """A code block: a file's content under its path, or commands."""

    path: str | None
    text: str


def blocks(text: str) -> list[Block]:
    """Return the guide's code blocks in order."""
    found = re.findall(r"(?:^`(\S+)`:\n\n)?^```\{code-block\} (\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert all((language == "shell") == (path == "") for path, language, _ in found)
    return [Block(path or None, body) for path, _, body in found]


FILES = [block for block in blocks(GUIDE) if block.path]
COMMANDS = [line for block in blocks(GUIDE) if not block.path for line in block.text.splitlines()]
STUDY = yaml.safe_load(next(block.text for block in FILES if block.path == "studies/minutes.yaml"))


def write(root: Path) -> None:
    for block in FILES:
        assert block.path is not None
        path = root / block.path
        assert not path.exists(), f"the guide overwrites {block.path}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")


def follow(here: Project, line: str) -> None:
    """Run one of the guide's lines: what measures as a shell would, the rest in this process, which starts faster."""
    program, *arguments = shlex.split(line)
    assert program == "samebytes"
    if arguments[0] in ("run", "study") and "--dry-run" not in arguments:
        done = here.run("samebytes", *arguments)
        assert done.code == 0, f"{line}: {done}"
    else:
        ended = CliRunner().invoke(app, arguments)
        assert ended.exit_code == 0, f"{line}: {ended.output}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project(tmp_path / "clone") as made:
        monkeypatch.chdir(made.root)
        monkeypatch.setenv("SAMEBYTES_ENGINE_PYTHON", str(made.engine))
        (made.root / "workloads").unlink()
        shutil.copytree(ROOT / "workloads", made.root / "workloads")
        write(made.root)
        yield made


def test_the_guide_adds_a_flag_prompts_and_a_model_and_touches_no_code() -> None:
    assert {str(block.path).split("/")[0] for block in FILES} == {"configs", "workloads", "studies"}
    assert [run["config"] for run in STUDY["runs"]].count("baseline") == 2
    assert COMMANDS[-1] == BUILD
    assert len(COMMANDS) == GUIDE.count("\nsamebytes ")


def test_what_the_guide_says_is_what_happens(here: Project) -> None:
    for line in COMMANDS:
        if line != BUILD:
            follow(here, line)
    found = [here.record(label, "minutes") for label in ("baseline", "baseline-2", "ngram_long")]
    for one in found:
        assert one.status == "complete"
        assert one.model.id == STUDY["model"]
        assert [p.id for p in one.prompts] == ["minutes/decisions", "minutes/letter"]
        assert one.sampling.max_tokens == STUDY["max_tokens"]
        assert one.config.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    argv = found[2].config.argv
    assert '"num_speculative_tokens": 8' in argv[argv.index("--speculative-config") + 1]
    assert "--speculative-config" not in found[0].config.argv
    text = (here.root / "results" / "minutes" / "summary.md").read_text(encoding="utf-8")
    assert "| ngram_long | baseline | minutes |" in text


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        ("configs/ngram_long.yaml", "  speculative-config", "  --speculative-config", "without the leading dashes"),
        ("studies/minutes.yaml", "config: ngram_long", "config: ngram_lang", "Did you mean 'ngram_long'?"),
        ("studies/minutes.yaml", "max_tokens", "max_token", "Did you mean 'max_tokens'?"),
        ("studies/minutes.yaml", "[minutes]", "[minuts]", "Did you mean 'minutes'?"),
    ],
)
def test_a_slip_on_the_way_stops_before_anything_is_measured(
    here: Project, path: str, old: str, new: str, words: str
) -> None:
    file = here.root / path
    assert old in file.read_text(encoding="utf-8")
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    done = CliRunner().invoke(app, ["study", "minutes", "--dry-run"])
    assert done.exit_code == 1, done.output
    assert words in done.stderr
    assert here.engine_pids() == []


@pytest.mark.engine
def test_the_guides_first_run_on_the_real_engine(
    tmp_path: Path, engine_python: Path, embedded_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide says, but with the model that comes with the project: the guide's own is a download."""
    with project(tmp_path / "clone") as made:
        (made.root / "workloads").unlink()
        shutil.copytree(ROOT / "workloads", made.root / "workloads")
        write(made.root)
        study = made.root / "studies" / "minutes.yaml"
        study.write_text(study.read_text().replace(STUDY["model"], "smollm2-135m-instruct"))
        monkeypatch.setenv("SAMEBYTES_ROOT", str(made.root))
        made.engine = engine_python
        (line,) = [command for command in COMMANDS if command.startswith("samebytes run ")]
        follow(made, line)
        found = made.record("ngram_long", "minutes")
        assert found.status == "complete"
        assert [r.status for r in found.sequential()] == ["ok", "ok"]
        assert sum(r.draft_tokens or 0 for r in found.sequential()) > 0
