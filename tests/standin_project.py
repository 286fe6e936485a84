"""A project folder of its own, with the stand-in engine installed as its vLLM.

Configs, prompts and the notebook are this project's; study ``quick`` has a model folder without weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from samebytes import record
from samebytes.record import Record

HERE = Path(__file__).parent
ROOT = HERE.parent
STANDIN = HERE / "standin_engine.py"
FP8_LOG = HERE / "fixtures" / "vllm-0.32.0-cpu" / "fp8-unsupported.log"
BIN = Path(sys.executable).parent
PROMPTS = 6
"""Prompts of study ``quick``."""


def install_engine(folder: Path) -> Path:
    """Install the stand-in as ``vllm`` for a Python of its own, and return that Python."""
    package = folder / "site" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(f"import runpy\nrunpy.run_path({str(STANDIN)!r}, run_name='__main__')\n")
    for name, version in (("vllm", "0.32.0"), ("torch", "2.13.0+cpu")):
        info = folder / "site" / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder / "site"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


class Project:
    """A small copy of this project, and ways to run something in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in ("configs", "studies", "notebooks"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        (folder / "results" / "notebooks").mkdir(parents=True)
        shutil.copy(ROOT / "results" / "notebooks" / ".gitkeep", folder / "results" / "notebooks")
        (folder / "_config.yml").write_text("title: a test\n")
        (folder / "workloads").symlink_to(ROOT / "workloads")
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}\n")
        self.config("fp8", {"kv-cache-dtype": "fp8", "exit-code": 1, "exit-log": str(FP8_LOG)})
        self.study("quick")
        self.engine = install_engine(folder / "engine")
        self.source = folder / "notebooks" / "run_config.ipynb"
        self.pids = folder / "pids"

    def config(self, name: str, flags: Mapping[str, Any]) -> None:
        """Write a config."""
        (self.root / "configs" / f"{name}.yaml").write_text(yaml.safe_dump({"why": "a test", "flags": dict(flags)}))

    def study(self, name: str, **changes: Any) -> None:
        """Write a study: the committed ``quick`` on the model folder, with changes."""
        text = (ROOT / "studies" / "quick.yaml").read_text(encoding="utf-8")
        data = {**yaml.safe_load(text), "model": str(self.root / "model"), **changes}
        (self.root / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(data, sort_keys=False))

    def environment(self, *options: str) -> dict[str, str]:
        """Return the environment of a command in this project; ``options`` are the stand-in's."""
        ours = {
            "SAMEBYTES_ENGINE_PYTHON": str(self.engine),
            "STANDIN_OPTIONS": " ".join(["--pids", str(self.pids), *options]),
        }
        return {**os.environ, **ours}

    def start(self, *command: str, cwd: str = ".", options: tuple[str, ...] = (), **how: Any) -> subprocess.Popen[str]:
        """Start a command of this environment in a folder of the project, in a session of its own."""
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.root / cwd,
            env=self.environment(*options),
            text=True,
            start_new_session=True,
            # Started from a background job, SIGINT would be ignored, and every child would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **{**streams, **how},
        )

    def run(self, *command: str, cwd: str = ".", options: tuple[str, ...] = ()) -> Done:
        """Run a command to its end."""
        began = time.monotonic()
        process = self.start(*command, cwd=cwd, options=options)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err, time.monotonic() - began)

    def on_terminal(self, *command: str, cwd: str = ".") -> Done:
        """Run a command to its end with a terminal on all three streams; what it shows is its standard output."""
        ours, theirs = pty.openpty()
        began = time.monotonic()
        process = self.start(*command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the last process that held the terminal is gone
            while piece := os.read(ours, 65536):
                seen += piece
        os.close(ours)
        code = process.wait(30)
        return Done(code, seen.decode("utf-8", "replace").replace("\r\n", "\n"), "", time.monotonic() - began)

    def record(self, label: str, study: str = "quick") -> Record:
        """Read a record."""
        return record.load(self.record_path(label, study))

    def record_path(self, label: str, study: str = "quick") -> Path:
        """Return where a record lies."""
        return self.root / "results" / study / f"{label}.json"

    def engine_pids(self) -> list[int]:
        """Return the ids of all engine processes that were ever started here."""
        return [int(line) for line in self.pids.read_text().split()] if self.pids.exists() else []

    def engines_alive(self) -> list[psutil.Process]:
        """Return the engine processes that live; an id may have been given away again."""
        found = []
        for pid in self.engine_pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE and str(STANDIN) in " ".join(process.cmdline()):
                    found.append(process)
        return found


class Done:
    """An ended command."""

    def __init__(self, code: int, out: str, err: str, seconds: float) -> None:
        self.code = code
        self.out = out
        self.err = err
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@contextmanager
def project(folder: Path) -> Iterator[Project]:
    """Make a project; afterwards none of its engines may live."""
    made = Project(folder)
    yield made
    left = made.engines_alive()
    for process in left:
        process.kill()
    assert not left, f"the test left engines behind: {left}"


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Wait, or fail."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


def finished(path: Path) -> int:
    """Return how many sequential requests a record holds so far."""
    if not path.exists():
        return 0
    return sum(len(p["requests"]) for p in json.loads(path.read_text(encoding="utf-8"))["passes"])
