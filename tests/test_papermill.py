"""The notebook through papermill: every way to call it, every mistake, every way of dying in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from samebytes import run, server, settings
from samebytes.record import Record
from standin_project import Done, Project, finished, project, wait_until

AT_ONCE_S = 10.0
"""What "at once" means through papermill, the kernel's start included."""
GONE_S = 15.0
"""Seconds after a death in which all of it has to be over."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with project(tmp_path_factory.mktemp("papermill") / "project") as made:
        source = made.source.read_bytes()
        yield made
        assert made.source.read_bytes() == source, "the source notebook was written to"
        assert not list(made.source.parent.glob("*-checkpoint*"))


# -- ways to call it ---------------------------------------------------------------------------------------------------


def test_as_written_on_a_terminal_it_asks_for_an_output_path_and_runs_nothing(here: Project) -> None:
    done = here.on_terminal("papermill", "run_config.ipynb", "-p", "config", "ngram", cwd="notebooks")
    assert done.code == 2, done
    assert "Missing argument 'OUTPUT_PATH'" in done.out
    assert not here.record_path("ngram").exists()
    assert here.engine_pids() == []


def test_piped_it_runs_and_writes_the_notebook_to_the_pipe(here: Project) -> None:
    done = here.run("papermill", "run_config.ipynb", "-p", "config", "ngram", "-p", "label", "piped", cwd="notebooks")
    assert done.code == 0, done
    executed = json.loads(done.out)
    assert "6/6 prompts answered" in str(executed["cells"][-1]["outputs"])
    assert here.record("piped").status == "complete"


def test_with_a_pipe_as_input_it_takes_the_notebook_for_its_output(here: Project) -> None:
    """That is papermill's rule, and the source is the output then: without a notebook in the pipe nothing is done."""
    with here.start(
        *("papermill", "run_config.ipynb", "-p", "config", "ngram"), cwd="notebooks", stdin=subprocess.PIPE
    ) as process:
        out, _ = process.communicate("", timeout=30)
    assert process.returncode != 0
    assert out == ""


def test_the_full_command(here: Project) -> None:
    done = here.run(
        *("papermill", "notebooks/run_config.ipynb", "results/notebooks/{config}.ipynb"),
        *("-p", "config", "ngram", "-p", "label", "full"),
    )
    assert done.code == 0, done
    assert here.record("full").status == "complete"
    executed = json.loads((here.root / "results" / "notebooks" / "ngram.ipynb").read_text(encoding="utf-8"))
    assert "6/6 prompts answered" in str(executed["cells"][-1]["outputs"])


def test_the_short_command_on_a_terminal_shows_the_run(here: Project) -> None:
    done = here.on_terminal("samebytes", "run", "ngram")
    assert done.code == 0, done
    assert "starting vLLM 0.32.0 with config 'ngram'" in done.out
    assert "[6/6] creative/" in done.out
    assert "IPKernelApp" not in done.out
    assert str(here.record_path("ngram")) in done.out
    assert here.record("ngram").status == "complete"
    assert (here.record_path("ngram").parent / "notebooks" / "ngram.ipynb").exists()


def test_the_notebook_tells_its_parameters(here: Project) -> None:
    done = here.run("papermill", "--help-notebook", "notebooks/run_config.ipynb")
    # papermill ends with 1 here, and with 0 where there are no parameters to tell
    assert done.code in (0, 1), done
    for name, (kind, default, text) in settings.PARAMETERS.items():
        assert f"{name}: {kind.__name__} (default {json.dumps(default)})" in done.out
        assert text in " ".join(done.out.split())


# -- mistakes ----------------------------------------------------------------------------------------------------------


MISTAKES = {
    "unknown config": (["-p", "config", "ngramm"], ["unknown config 'ngramm'", "Did you mean 'ngram'?", "baseline"]),
    "unknown parameter": (["-p", "confg", "ngram"], ["unknown parameter 'confg'", "Did you mean 'config'?", "study"]),
    "wrong type": (["-p", "limit", "two"], ["'limit' must be a whole number, got 'two' of type str"]),
    "a float": (["-p", "max_tokens", "1e3"], ["'max_tokens' must be a whole number, got 1000.0 of type float"]),
    "unknown study": (["-p", "study", "qick"], ["unknown study 'qick'", "Did you mean 'quick'?", "cpu-smollm2-135m"]),
    "busy port": (["-p", "port", "PORT"], ["port PORT is in use", "free now"]),
    "missing model": (["-p", "model", "nowhere"], ["unknown model 'nowhere'", "a folder with config.json"]),
}


@pytest.fixture(scope="module")
def mistakes(here: Project) -> dict[str, tuple[Done, int]]:
    """Make every mistake, two at a time; returned with the port that was taken."""
    with socket.create_server((server.HOST, 0)) as listener, ThreadPoolExecutor(2) as pool:
        port = listener.getsockname()[1]

        def make(mistake: str) -> tuple[Done, int]:
            arguments = [str(port) if word == "PORT" else word for word in MISTAKES[mistake][0]]
            output = str(here.root / f"{mistake}.ipynb")
            return here.run("papermill", "notebooks/run_config.ipynb", output, *arguments), port

        before = here.engine_pids()
        made = dict(zip(MISTAKES, pool.map(make, MISTAKES), strict=True))
    assert here.engine_pids() == before
    return made


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_at_once_and_names_the_valid_choices(
    here: Project, mistakes: dict[str, tuple[Done, int]], mistake: str
) -> None:
    done, port = mistakes[mistake]
    assert done.code == 1, done
    assert done.seconds < AT_ONCE_S
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("UsageError: ")
    for word in MISTAKES[mistake][1]:
        assert word.replace("PORT", str(port)) in last
    assert not here.record_path("baseline").exists()


# -- deaths ------------------------------------------------------------------------------------------------------------


def kernel_of(command: psutil.Process) -> psutil.Process:
    return next(p for p in command.children(recursive=True) if "ipykernel_launcher" in " ".join(p.cmdline()))


def kill_kernel(command: psutil.Process) -> None:
    kernel_of(command).kill()


def send(number: signal.Signals) -> Callable[[psutil.Process], None]:
    return lambda command: command.send_signal(number)


def ctrl_c(command: psutil.Process) -> None:
    """What a terminal does."""
    os.killpg(command.pid, signal.SIGINT)


def wait_for_time_limit(command: psutil.Process) -> None:
    """The run's own time limit does it. (`psutil.Process.wait` would take the exit code away.)"""
    wait_until(lambda: not alive(command), 40, "the time limit")


PAPERMILL = ("papermill", "notebooks/run_config.ipynb", "OUT")
SAMEBYTES = ("samebytes", "run", "ngram")
DEATHS: dict[str, tuple[tuple[str, ...], Callable[[psutil.Process], None]]] = {
    "kernel-sigkill": (PAPERMILL, kill_kernel),
    "papermill-sigterm": (PAPERMILL, send(signal.SIGTERM)),
    "papermill-sigkill": (PAPERMILL, send(signal.SIGKILL)),
    "papermill-ctrl-c": (PAPERMILL, ctrl_c),
    "papermill-time-limit": ((*PAPERMILL, "--execution-timeout", "10"), wait_for_time_limit),
    "samebytes-ctrl-c": (SAMEBYTES, ctrl_c),
    "samebytes-sigterm": (SAMEBYTES, send(signal.SIGTERM)),
    "samebytes-kernel-sigkill": (SAMEBYTES, kill_kernel),
}


def parameters(label: str) -> dict[str, Any]:
    """Return a run's parameters; the one with a time limit has many short prompts, so that it ends in their middle."""
    many = {"limit": 8, "max_tokens": 16} if "time-limit" in label else {}
    return {"config": "ngram", "label": label, **many}


@dataclass
class Death:
    """A run that was ended in the middle: what it left, and how it went on."""

    code: int
    err: str
    gone_s: float
    left: list[psutil.Process]
    port_free: bool
    broken: Record
    said: list[str]
    resumed: Record


@pytest.fixture(scope="module")
def deaths(here: Project) -> dict[str, Death]:
    """Let eight runs die side by side, each on a port and a label of its own, then go on with each."""
    commands: dict[str, subprocess.Popen[str]] = {}
    ports = {label: server.free_port() for label in DEATHS}
    seen: dict[str, list[psutil.Process]] = {}
    ended: dict[str, float] = {}
    try:
        for label, (command, _) in DEATHS.items():
            words = [str(here.root / f"{label}.ipynb") if word == "OUT" else word for word in command]
            given = {**parameters(label), "port": ports[label]}
            if command[0] == "papermill":
                words += [word for name, value in given.items() for word in ("-p", name, str(value))]
            else:
                words += ["--label", label, "--port", str(ports[label])]
            commands[label] = here.start(*words, options=("--step-s", "0.08"))
            if command[0] == "papermill":
                # Its kernel's ports are chosen before they are taken: one that starts meanwhile may be quicker.
                log = here.record_path(label).parent / "logs" / f"{label}-0.log"
                wait_until(log.exists, 30, f"the engine of {label}")
        for label, (_, act) in DEATHS.items():
            process = commands[label]

            def in_the_middle(label: str = label, process: subprocess.Popen[str] = process) -> bool:
                assert process.poll() is None, process.communicate()
                return finished(here.record_path(label)) >= 2

            if act is not wait_for_time_limit:
                wait_until(in_the_middle, 60, f"two prompts of {label}")
            main = psutil.Process(process.pid)
            seen[label] = [main, *main.children(recursive=True)]
            act(main)
            ended[label] = time.monotonic()
        outcome = {}
        for label, process in commands.items():
            living = [p for p in seen[label] if alive(p)]
            while living and time.monotonic() < ended[label] + GONE_S:
                process.poll()
                living = [p for p in living if alive(p)]
                time.sleep(0.05)
            outcome[label] = (time.monotonic() - ended[label], living, server.port_is_free(ports[label]))
    except BaseException:
        for process in commands.values():
            process.kill()
            process.communicate()  # an open pipe would be another test's failure
        raise

    def go_on(label: str) -> Death:
        commands[label].kill()  # what has not ended by now never would
        _, err = commands[label].communicate(timeout=10)
        broken, said = here.record(label), list[str]()
        resumed = run.measure(settings.plan(parameters(label)), said.append)
        return Death(commands[label].returncode, err, *outcome[label], broken, said, resumed)

    with pytest.MonkeyPatch.context() as monkeypatch, ThreadPoolExecutor(3) as pool:
        for name, value in {**here.environment(), "SAMEBYTES_ROOT": str(here.root)}.items():
            monkeypatch.setenv(name, value)
        return dict(zip(DEATHS, pool.map(go_on, DEATHS), strict=True))


def alive(process: psutil.Process) -> bool:
    # is_running() compares start times: an id that was given away again is another process.
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("label", DEATHS)
def test_nothing_lives_on_and_the_next_run_goes_on(here: Project, deaths: dict[str, Death], label: str) -> None:
    death = deaths[label]
    assert death.code != 0
    assert death.left == [], f"after {death.gone_s:.0f} s there are left: {death.left}"
    assert death.port_free

    kept = death.broken.sequential()
    assert death.broken.status == "partial"
    total = len(death.broken.prompts)
    assert 1 <= len(kept) < total
    assert {r.status for r in kept} == {"ok"}
    assert f"{len(kept)} of {total} prompts are kept, {total - len(kept)} left" in death.said[0]

    after = death.resumed
    assert after.status == "complete"
    assert len(after.launches) == 2
    first, second = after.passes
    assert (first.launch, second.launch) == (0, 1)
    assert first.requests == kept
    assert first.metrics["generation_tokens"] == sum(r.completion_tokens or 0 for r in kept)
    assert [r.id for r in second.requests] == [p.id for p in after.prompts][len(kept) :]
    assert second.metrics["generation_tokens"] == sum(r.completion_tokens or 0 for r in second.requests)
    assert after.resumed
    if after.launches[0].stopped is None:
        assert after.launches[0].log_excerpt[-1] == "samebytes: this launch was cut short"


def test_a_death_is_told_in_one_line(deaths: dict[str, Death]) -> None:
    killed, interrupted = deaths["samebytes-kernel-sigkill"], deaths["samebytes-ctrl-c"]
    assert "samebytes: the notebook's kernel died; what was measured is kept\n  notebook: " in killed.err
    assert "Traceback" not in killed.err
    assert interrupted.code == 130
    assert interrupted.err == "samebytes: interrupted; the same command goes on with what is kept\n"
