"""The commands that read records and start nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recordfactory import a_record, answer, failed, prompt_ids
from samebytes import paths, record
from samebytes.cli import app
from samebytes.record import Record

IDS = prompt_ids(8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records of a baseline with its control, and of candidates of every kind."""
    made = {
        "baseline": a_record("baseline", ids=IDS),
        "baseline-2": a_record("baseline-2", "baseline", ids=IDS),
        "ngram": a_record("ngram", ids=IDS),
        "other-words": a_record("other-words", "ngram", ids=IDS, replace={"rag/3": answer("rag/3", "else")}),
        "one-failed": a_record("one-failed", "ngram", ids=IDS, replace={"rag/3": failed("rag/3")}),
        "unsteady": a_record("unsteady", "baseline", ids=IDS, replace={"rag/3": answer("rag/3", "or so")}),
    }
    for label, found in made.items():
        record.save(found, tmp_path / f"{label}.json")
    return tmp_path


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("candidate", "control", "options", "code", "words"),
    [
        ("ngram", "baseline-2", [], 0, "24/24 prompts judged: same 24"),
        ("other-words", "baseline-2", [], 10, "differs 1"),
        ("other-words", None, [], 11, "differs (no control) 1"),
        ("other-words", "unsteady", [], 11, "not attributable 1"),
        ("ngram", "baseline-2", ["--repeat", "other-words"], 11, "intermittent 1"),
        ("one-failed", "baseline-2", [], 12, "23/24 prompts judged: same 23, missing 1"),
        ("one-failed", "baseline-2", ["--allow-failures"], 0, "23/24 prompts judged"),
    ],
)
def test_strict_comparison_ends_with_its_code(
    folder: Path, candidate: str, control: str | None, options: list[str], code: int, words: str
) -> None:
    arguments = [folder / "baseline.json", folder / f"{candidate}.json"]
    options = [str(folder / f"{o}.json") if (folder / f"{o}.json").exists() else o for o in options]
    controls = [] if control is None else ["--control", folder / f"{control}.json"]
    ended, out, _ = invoke("compare", *arguments, *controls, *options, "--strict")
    assert words in out
    assert ended == code
    # without --strict a difference is a result, not a failure
    assert invoke("compare", *arguments, *controls, *(o for o in options if o != "--allow-failures"))[0] == 0


def change(path: Path, found: Record) -> Path:
    record.save(found, path)
    return path


def test_what_cannot_be_compared_names_the_fields(folder: Path) -> None:
    other = record.load(folder / "ngram.json")
    other.model.sha256 = "another"
    other.sampling.max_tokens = 7
    theirs = change(folder / "theirs.json", other)
    for options, code in ([], 1), (["--strict"], 12):
        ended, _, err = invoke("compare", folder / "baseline.json", theirs, *options)
        assert ended == code
        assert "sha256" in err
        assert "max_tokens" in err
    assert invoke("compare", folder / "baseline.json", folder / "none.json", "--strict")[0] == 12


def test_a_difference_is_shown_with_both_contexts(folder: Path) -> None:
    _, out, _ = invoke("compare", folder / "baseline.json", folder / "other-words.json")
    assert "  - 'the answer to rag/3'\n  + 'else'" in out


def test_what_a_record_says_of_itself_stands_before_the_comparison(folder: Path) -> None:
    other = record.load(folder / "ngram.json")
    other.note = "random weights"
    _, out, _ = invoke("compare", folder / "baseline.json", change(folder / "theirs.json", other))
    assert out.startswith("note: random weights\n")
    assert "note" not in invoke("compare", folder / "baseline.json", folder / "ngram.json")[1]


@pytest.fixture
def study(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one study's records, and its folder of results."""
    root = tmp_path / "project"
    for name in ("configs", "studies", "workloads"):
        shutil.copytree(paths.root() / name, root / name)
    shutil.copy(paths.root() / "_config.yml", root)
    results = root / "results" / "mine"
    results.mkdir(parents=True)
    for label in ("baseline", "baseline-2", "ngram"):
        shutil.copy(folder / f"{label}.json", results)
    monkeypatch.setenv("SAMEBYTES_ROOT", str(root))
    return results


def test_summary_writes_tables_that_verify_recomputes(study: Path) -> None:
    code, out, _ = invoke("summary", "mine")
    assert code == 0
    assert [Path(line).name for line in out.splitlines()] == ["summary.md", "summary.csv", "summary.json"]
    assert invoke("verify", "mine")[0] == 0
    figures = json.loads((study / "summary.json").read_text())
    assert figures["controls"][0]["agrees"] == 24


def test_verify_fails_where_a_table_is_not_what_the_records_say(study: Path) -> None:
    invoke("summary", "mine")
    path = study / "summary.md"
    path.write_text(path.read_text().replace("24/24", "24/25", 1))
    code, _, err = invoke("verify", "mine")
    assert code == 1
    assert "summary.md" in err


def test_verify_fails_where_a_record_contradicts_itself(study: Path) -> None:
    path = study / "ngram.json"
    found = record.load(path)
    found.passes[0].requests[0].decode_tok_s = 99.0
    found.passes[0].requests[1].text += "!"
    record.save(found, path)
    invoke("summary", "mine")
    code, _, err = invoke("verify", "mine")
    assert code == 1
    first, second = IDS[:2]
    assert f"ngram.json: {first}: decode_tok_s is 99.0, but the request's own data give 10.0" in err
    assert f"ngram.json: {second}: sha256 is " in err


@pytest.mark.parametrize("n", [20, 21, 1234])
def test_verify_prints_twenty_differences_and_counts_the_rest(study: Path, n: int) -> None:
    invoke("summary", "mine")
    path = study / "summary.json"
    path.write_text(path.read_text() + "\n" * n)
    code, out, err = invoke("verify", "mine")
    assert (code, out) == (1, "")
    lines = err.splitlines()
    assert all(line.startswith("summary.json:") for line in lines[:20])
    if n == 20:
        assert len(lines) == 20
    else:
        # the records' prompts are no files of this project
        (last,) = lines[20:]
        assert last.startswith(f"... and {n - 20:,} more: put back what was changed (prompts whose file is not the one")
        assert ": code_edit/0, code_edit/1, code_edit/2, code_edit/3, code_edit/4 and 19 more)" in last
        assert last.endswith("samebytes summary mine")


@pytest.mark.parametrize("command", ["summary", "verify"])
def test_a_study_without_records_is_named_with_those_that_have(study: Path, command: str) -> None:
    code, _, err = invoke(command, "min")
    assert code == 1
    assert "unknown study with records 'min'. Did you mean 'mine'?" in err


def test_a_study_that_was_not_measured_yet_says_so(study: Path) -> None:
    code, out, err = invoke("verify", "h200-smollm2-135m")
    assert (code, out) == (1, "")
    assert "study 'h200-smollm2-135m' has no records yet: samebytes study h200-smollm2-135m. With records: mine" in err


def test_tune_prints_the_flag_to_paste() -> None:
    code, out, _ = invoke("tune", paths.results() / "h200-smollm2-135m" / "ngram.json")
    assert code == 0
    assert "--speculative-config '{" in out


def test_tune_takes_a_study_as_the_other_commands_do() -> None:
    study = "h200-smollm2-135m"
    code, out, _ = invoke("tune", study)
    assert code == 0
    assert out == invoke("tune", paths.results() / study)[1]
    code, _, err = invoke("tune", "h200-smollm2")
    assert code == 1
    assert f"unknown study with records 'h200-smollm2'. Did you mean '{study}'? Valid: cpu-smollm2-135m, " in err
    code, _, err = invoke("tune", paths.results() / study / "none.json")
    assert code == 1
    assert "none.json" in err


@pytest.mark.parametrize("cost", ["inf", "nan", "0", "-1", "1e308", "1e-320"])
def test_tune_refuses_a_cost_that_no_step_has(cost: str) -> None:
    code, out, err = invoke("tune", paths.results() / "h200-smollm2-135m" / "ngram.json", "--cost", cost)
    assert (code, out) == (1, "")
    assert f"--cost {float(cost):g}: a finite number above 0 is needed, from 0.001 to 1000" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a study with records"),
        (["--transcripts", "mine.jsonl"], "--transcripts needs --tokenizer"),
        (["cpu-smollm2-135m", "--tokenizer", "x"], "--tokenizer needs --transcripts"),
    ],
)
def test_tune_says_what_it_lacks(arguments: list[str], words: str) -> None:
    code, _, err = invoke("tune", *arguments)
    assert code == 1
    assert words in err
