"""A server held by a notebook, and every way in which a papermill run dies: nothing may be left.

The engine is the stand-in tree, with a worker that left the session.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from samebytes.server import free_port, port_is_free
from test_papermill import ctrl_c, kill_kernel, send

HERE = Path(__file__).parent
LIMIT_S = 15.0


def nothing(_: psutil.Process) -> None:
    """The run's own time limit does it."""


@pytest.mark.parametrize(
    ("act", "options"),
    [
        pytest.param(kill_kernel, [], id="SIGKILL of the kernel"),
        pytest.param(send(signal.SIGTERM), [], id="SIGTERM of papermill"),
        pytest.param(send(signal.SIGKILL), [], id="SIGKILL of papermill"),
        pytest.param(send(signal.SIGINT), [], id="SIGINT of papermill"),
        pytest.param(ctrl_c, [], id="Ctrl-C"),
        pytest.param(nothing, ["--execution-timeout", "4"], id="execution timeout"),
    ],
)
def test_nothing_is_left(tmp_path: Path, act: Callable[[psutil.Process], None], options: list[str]) -> None:
    port = free_port()
    parameters = {
        "standin": str(HERE / "standin_engine.py"),
        "port": str(port),
        "pids": str(tmp_path / "pids"),
        "log": str(tmp_path / "server.log"),
    }
    command = [sys.executable, "-m", "papermill", str(HERE / "notebooks" / "hold_server.ipynb")]
    command += [str(tmp_path / "out.ipynb"), "--no-progress-bar", *options]
    for name, value in parameters.items():
        command += ["-p", name, value]
    with (tmp_path / "papermill.log").open("wb") as log:
        papermill = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=tmp_path,
            start_new_session=True,
            # Started from a background job, SIGINT would be ignored, and every child would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    started: list[psutil.Process] = []
    try:
        ready = tmp_path / "ready"
        deadline = time.monotonic() + 30
        while not ready.exists() or len((tmp_path / "pids").read_text().split()) < 3:
            assert papermill.poll() is None, (tmp_path / "papermill.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "papermill.log").read_text()
            time.sleep(0.05)
        started = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
        held = psutil.Process(papermill.pid).children(recursive=True)
        assert any("watchdog.py" in " ".join(p.cmdline()) for p in held)
        started += [p for p in held if p not in started]
        act(psutil.Process(papermill.pid))
        if act is nothing:
            papermill.wait(20)
        end = time.monotonic() + LIMIT_S
        while alive(started) or papermill.poll() is None:
            assert time.monotonic() < end, f"after {LIMIT_S} s there are left: {alive(started)}"
            time.sleep(0.1)
        assert papermill.returncode != 0
        assert port_is_free(port)
    finally:
        papermill.kill()
        papermill.wait()
        for process in alive(started):
            process.kill()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    # is_running() compares start times: an id that was given away again is another process.
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
