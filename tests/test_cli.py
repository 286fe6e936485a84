"""The ``samebytes`` command: help with examples, mistakes in one message, what each command shows."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import samebytes
from recordfactory import a_record
from samebytes import record, server, settings
from samebytes.cli import app
from standin_project import ROOT, STANDIN, Project, project, wait_until

AT_ONCE_S = 5.0
"""A mistake costs no kernel start: about one second, more on a busy machine."""
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project(tmp_path / "project") as made:
        monkeypatch.setenv("SAMEBYTES_ROOT", str(made.root))
        monkeypatch.setenv("SAMEBYTES_ENGINE_PYTHON", str(made.engine))
        yield made


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout, done.stderr


# -- help --------------------------------------------------------------------------------------------------------------


def test_the_help_lists_every_command() -> None:
    code, out, _ = invoke("--help")
    assert code == 0
    assert {"doctor", "list", "run", "show", "study"} <= set(COMMANDS)
    for command in COMMANDS:
        assert f"\n  {command} " in out
    assert invoke("--version") == (0, f"{samebytes.__version__}\n", "")


def parse(line: str) -> str:
    """Parse a command line without running it (an unknown option or a missing argument raises); return its command."""
    _, name, *arguments = shlex.split(line, comments=True)
    typer.main.get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
    return name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_that_is_understood(command: str) -> None:
    code, out, _ = invoke(command, "--help")
    assert code == 0
    example = re.search(r"Example: (samebytes .*)", out)
    assert example, out
    assert parse(example[1]) == command


def test_the_readmes_commands_are_understood() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(samebytes .*)$|`(samebytes [^`]+)`", text, re.MULTILINE)
    assert {parse(fenced or inline) for fenced, inline in lines} >= {"run", "study", "doctor"}
    # tests/test_papermill.py runs it
    assert "\npapermill notebooks/run_config.ipynb 'results/notebooks/{config}.ipynb' -p config ngram\n" in text


def test_run_takes_every_parameter_of_the_notebook() -> None:
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    assert {parameter.name for parameter in run.params} - {"help"} == set(settings.PARAMETERS)


# -- mistakes ----------------------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown config": (["ngramm"], ["unknown config 'ngramm'", "Did you mean 'ngram'?", "baseline"]),
    "unknown option": (["ngram", "--studdy", "quick"], ["No such option", "--study"]),
    "wrong type": (["ngram", "--limit", "two"], ["--limit", "valid integer"]),
    "unknown study": (["ngram", "--study", "qick"], ["unknown study 'qick'", "Did you mean 'quick'?"]),
    "busy port": (["ngram", "--port", "PORT"], ["port PORT is in use", "free now"]),
    "missing model": (["ngram", "--model", "nowhere"], ["unknown model 'nowhere'", "a folder with config.json"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_at_once(here: Project, mistake: str) -> None:
    arguments, words = MISTAKES[mistake]
    with socket.create_server((server.HOST, 0)) as listener:
        port = str(listener.getsockname()[1])
        done = here.run("samebytes", "run", *(port if word == "PORT" else word for word in arguments))
    assert done.code in (1, 2), done
    assert done.seconds < AT_ONCE_S, done
    assert "Traceback" not in done.err
    assert done.out == ""
    for word in words:
        assert word.replace("PORT", port) in done.err
    assert here.engine_pids() == []
    assert not (here.root / "results" / "quick" / "ngram.json").exists()


def test_a_refused_config_is_one_message_with_the_log(here: Project) -> None:
    done = here.run("samebytes", "run", "fp8")
    assert (done.code, done.out) == (1, "")
    first, *more = done.err.splitlines()
    assert first == "samebytes: EngineError: NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
    log, notebook = (Path(line.split(": ", 1)[1]) for line in more)
    assert log == here.record_path("fp8").parent / "logs" / "fp8-0.log"
    assert log.exists()
    assert notebook.exists()
    assert here.record("fp8").status == "failed"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["run", "ngram"], "; the same command goes on with what is kept"), (["list"], "")],
)
def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, arguments: list[str], hint: str) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(settings, "plan", press)
    monkeypatch.setattr(settings, "names", press)
    assert invoke(*arguments) == (130, "", f"samebytes: interrupted{hint}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "qick"], "unknown study 'qick'. Did you mean 'quick'? Valid: cpu-dtype, cpu-smollm2-135m, "),
        (["doctor", "--study", "qick"], "unknown study 'qick'"),
        (["show", "results/quick/nothing.json"], "no record at results/quick/nothing.json"),
        (["show", "_config.yml"], "_config.yml is not JSON"),
        (["show", "results"], "results is no file with a record: Is a directory"),
        (["study", "quick", "--results-dir", "_config.yml"], "_config.yml/quick: Not a directory"),
    ],
)
def test_other_commands_say_it_as_briefly(
    here: Project, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(here.root)
    code, out, err = invoke(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("samebytes: ")
    assert words in err


def test_outside_a_project_the_checkout_is_taken_and_a_wrong_root_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("list")[0] == 0
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    code, _, err = invoke("list")
    assert code == 1
    assert f"no samebytes project at {tmp_path}" in err


# -- commands ----------------------------------------------------------------------------------------------------------


def test_list_tells_why_each_config_exists() -> None:
    _, out, _ = invoke("list")
    for name in ("baseline", "baseline_sync", "fp8", "ngram"):
        assert f"config {name}: {settings.config(name).why.strip()}" in out
    assert f"study quick: {settings.study('quick').title}" in out


def test_list_names_each_broken_file_and_lists_the_rest(here: Project) -> None:
    listed = invoke("list")
    assert listed[0] == 0
    (here.root / "configs" / "aaa.yaml").write_text("whi: no reason\n")
    (here.root / "configs" / "bbb.yaml").write_text("why: [\n")
    (here.root / "configs" / "ccc.yaml").symlink_to("gone")
    (here.root / "studies" / "ccc.yaml").mkdir()
    here.study("aaa", runs=[{"confg": "ngram"}])
    here.study("zzz", runs=[{"config": "aaa"}])
    code, out, err = invoke("list")
    assert (code, out) == (1, listed[1])
    begins = [line for line in err.splitlines() if line.startswith("samebytes: ")]
    for line, words in zip(
        begins,
        [
            "config aaa: aaa.yaml: unknown key 'whi'. Did you mean 'why'?",
            "config bbb: bbb.yaml is not valid YAML",
            "config ccc: ccc.yaml cannot be read: No such file or directory",
            "study aaa: aaa.yaml: unknown key 'runs.0.confg'. Did you mean 'config'?",
            "study ccc: ccc.yaml cannot be read: Is a directory",
            "study zzz: aaa.yaml: unknown key 'whi'",
        ],
        strict=True,
    ):
        assert words in line


def test_show_gives_one_row_a_prompt(tmp_path: Path) -> None:
    found = a_record("ngram")
    found.note = "random weights"
    record.save(found, tmp_path / "ngram.json")
    code, out, _ = invoke("show", str(tmp_path / "ngram.json"))
    assert code == 0
    assert "toy / ngram: complete" in out
    assert "note: random weights" in out
    assert "6/6 prompts answered" in out
    for request in found.sequential():
        assert re.search(rf"^{request.id} +ok +64 +200.0 +10.0 +– +–$", out, re.MULTILINE)
    assert "median rag: 10.0 tok/s over 2 prompts" in out


def test_a_dry_run_starts_and_writes_nothing(here: Project) -> None:
    (here.root / "results" / "notebooks" / ".gitkeep").unlink()
    (here.root / "results" / "notebooks").rmdir()
    (here.root / "results").rmdir()
    here.study("quick", runs=[{"config": "baseline", "concurrent": {"concurrency": 16}}, {"config": "baseline"}])
    code, out, _ = invoke("study", "quick", "--dry-run")
    assert code == 0
    first, second = out.splitlines()
    assert re.fullmatch(r"to measure +baseline: --dtype bfloat16 .* \+ 16-way leg", first)
    assert second.split()[:3] == ["to", "measure", "baseline-2:"]
    assert here.engine_pids() == []
    assert not (here.root / "results").exists()


def own_workload(here: Project, check: str | None) -> None:
    """Give study ``quick`` a workload of its own; without a check it holds no prompt either."""
    (here.root / "workloads").unlink()
    for name in ("mine", "warmup"):
        (here.root / "workloads" / name).mkdir(parents=True)
    (here.root / "workloads" / "warmup" / "a.md").write_text("Hello.\n")
    if check is not None:
        (here.root / "workloads" / "mine" / "a.md").write_text("Quote.\n<passage>\nthe words\n</passage>\n")
        (here.root / "workloads" / "mine" / "a.check.yaml").write_text(check)
    here.study("quick", workloads=["mine"], runs=[{"config": "baseline"}, {"config": "ngram"}])


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (
            "kind: quote\nmust_qoute: [the words]\n",
            "a.check.yaml: unknown key 'must_qoute'. Did you mean 'must_quote'?",
        ),
        ("kind: quoted\n", "Did you mean 'quote'? Valid: code, quote"),
        ("kind: quote\nmust_quote: the words\n", "a.check.yaml: must_quote: Input should be a valid list"),
        ("kind: quote\nmust_quote: [other words]\n", "mine/a: its check names 'other words'"),
        (None, "no prompts in "),
    ],
)
def test_prompts_that_could_not_be_judged_stop_before_anything_starts(
    here: Project, check: str | None, words: str
) -> None:
    own_workload(here, check)
    code, out, _ = invoke("doctor")
    assert code == 1
    assert [words in line for line in out.splitlines() if line.startswith("MISSING")] == [True]
    assert "MISSING prompts: " in out
    for arguments in (["study", "quick", "--dry-run"], ["study", "quick"], ["run", "baseline"]):
        code, out, err = invoke(*arguments)
        assert (code, out) == (1, ""), arguments
        assert err.count(words) == 1, arguments
    assert here.engine_pids() == []
    assert not (here.root / "results" / "quick").exists()


def test_two_runs_on_one_label_the_second_refuses(here: Project) -> None:
    with here.start("samebytes", "run", "baseline", options=("--never-ready",)) as first:
        try:
            wait_until(here.record_path("baseline").exists, 20, "the first run's record")
            second = here.run("samebytes", "run", "baseline")
            assert first.poll() is None
        finally:
            first.kill()
            first.communicate()
    assert second.code == 1, second
    assert f"another run is writing {here.record_path('baseline')}" in second.err
    wait_until(lambda: not here.engines_alive(), 15, "the end of the first")


def test_the_results_folder_is_the_callers_and_a_key_is_written_nowhere(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-this-is-a-secret"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    port = server.free_port()
    argv = [sys.executable, str(STANDIN), "--port", str(port), "--served-model-name", "theirs", "--api-key", key]
    (here.root / "elsewhere").mkdir()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as theirs:
        try:
            wait_until(lambda: not server.port_is_free(port), 10, "the server")
            given = ("--base-url", f"http://127.0.0.1:{port}", "--limit", "1", "--results-dir", "mine")
            done = here.run("samebytes", "run", "baseline", *given, cwd="elsewhere")
            assert theirs.poll() is None
        finally:
            os.killpg(theirs.pid, 9)
    mine = here.root / "elsewhere" / "mine" / "quick"
    assert (done.code, done.out, done.err) == (0, f"{mine / 'baseline.json'}\n", "")
    found = record.load(mine / "baseline.json")
    assert (found.status, found.launches[0].started_by) == ("complete", "base_url")
    written = [path for path in mine.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} >= {".json", ".ipynb"}
    for path in written:
        assert key not in path.read_text(encoding="utf-8"), path
    assert not list((here.root / "notebooks").glob("mine"))


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_finds_all_that_a_run_needs(here: Project) -> None:
    code, out, _ = invoke("doctor")
    assert code == 0, out
    assert "MISSING" not in out
    assert "engine: vLLM 0.32.0, torch 2.13.0+cpu, Python 3." in out
    assert re.search(r"^ok +port: \d+ is free$", out, re.MULTILINE)
    assert re.search(r"^ok +prompts: 6 and their checks can be read$", out, re.MULTILINE)
    for name in ("GPU", "CPU", "model", "room"):
        assert re.search(rf"^ok +{name}: .", out, re.MULTILINE)
    assert here.engine_pids() == []


def test_doctor_says_what_is_missing_and_how_to_get_it(
    here: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SAMEBYTES_ENGINE_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path))
    here.study("big", device="gpu", model="smollm2-135m-instruct")
    with socket.create_server((server.HOST, 0)) as listener:
        port = listener.getsockname()[1]
        code, out, _ = invoke("doctor", "--study", "big", "--port", str(port))
    assert code == 1
    missing = dict(re.findall(r"^MISSING (\w+): (.*)$", out, re.MULTILINE))
    assert set(missing) == {"engine", "GPU", "port", "model"}
    assert "environment.yml" in missing["engine"]
    assert "make engine" in missing["engine"]
    assert "SAMEBYTES_ENGINE_PYTHON" in missing["engine"]
    assert "environment.yml" in missing["GPU"]
    assert f"port {port} is in use" in missing["port"]
    assert "make model" in missing["model"]
    assert not (tmp_path / "cache").exists()


def test_doctor_tells_too_little_memory(here: Project) -> None:
    (here.root / "model" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    here.study("quick", env={"VLLM_CPU_KVCACHE_SPACE": "9999"})
    code, out, _ = invoke("doctor")
    assert code == 1
    assert re.search(r"^MISSING room: only .* GiB of memory free", out, re.MULTILINE)


# -- which engine ------------------------------------------------------------------------------------------------------


def test_vllm_on_the_path_is_started_as_vllm_serve(
    here: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SAMEBYTES_ENGINE_PYTHON")
    console = tmp_path / "bin" / "vllm"
    console.parent.mkdir()
    console.write_text(f"#!{here.engine}\n")
    console.chmod(0o755)
    monkeypatch.setenv("PATH", str(console.parent), prepend=os.pathsep)
    found = samebytes.cli.doctor.engine.resolve()
    assert found.argv("some/model", ["--port", "1"]) == [str(console), "serve", "some/model", "--port", "1"]
    assert (found.vllm, found.torch) == ("0.32.0", "2.13.0+cpu")


def test_a_setting_that_is_no_python_is_named(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBYTES_ENGINE_PYTHON", "/nowhere/python")
    code, out, _ = invoke("doctor")
    assert code == 1
    assert "SAMEBYTES_ENGINE_PYTHON='/nowhere/python' is not a Python that can be run" in out
