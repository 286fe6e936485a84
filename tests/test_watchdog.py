"""The watchdog process by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from samebytes import watchdog

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"]


@contextmanager
def launched(nonce: str, session: bool = True, argv: list[str] = SLEEP) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, watchdog.MARKER: nonce}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=session) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


@contextmanager
def watching(nonce: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-I", "-S", watchdog.__file__, nonce, "1"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


def test_it_imports_in_an_isolated_interpreter_and_quickly() -> None:
    start = time.monotonic()
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(sorted(m for m in sys.modules if 'pydantic' in m))"
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, watchdog.__file__], check=True, capture_output=True, text=True
    )
    assert out.stdout == "[]\n"
    assert time.monotonic() - start < 1.0


def test_members_are_found_by_marker_and_by_session() -> None:
    with launched("m1") as one, launched("m2") as two:
        assert watchdog.members("m1", None) == [one.pid]
        assert watchdog.members("m1", two.pid) == sorted([one.pid, two.pid])
        assert watchdog.members("m", None) == []  # a whole value, not its beginning
        one.kill()
        one.wait()
        assert watchdog.members("m1", None) == []


def test_a_zombie_does_not_live() -> None:
    with launched("m3") as process:
        process.kill()
        deadline = time.monotonic() + 5
        while watchdog.members("m3", process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        # not waited for: its entry is still there
        assert os.path.exists(f"/proc/{process.pid}/stat")
        assert watchdog.members("m3", process.pid) == []


def test_end_asks_before_it_kills() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(9)"
    with launched("m4", argv=[sys.executable, "-I", "-S", "-c", code]) as process:
        assert watchdog.end("m4", process.pid, grace_s=5) == []
        assert process.wait() == 7


def test_end_kills_what_does_not_listen() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with launched("m5", argv=[sys.executable, "-I", "-S", "-c", code]) as process:
        start = time.monotonic()
        assert watchdog.end("m5", process.pid, grace_s=0.4) == []
        assert 0.4 <= time.monotonic() - start < 2
        assert process.wait() == -signal.SIGKILL


def test_done_means_go_away_and_touch_nothing() -> None:
    with launched("m6") as server, watching("m6") as dog:
        assert dog.stdin is not None
        dog.stdin.write(f"session {server.pid}\ndone\n".encode())
        dog.stdin.flush()
        assert dog.wait(2) == 0
        assert server.poll() is None


def test_end_of_file_means_end_the_server() -> None:
    with launched("m7") as server, watching("m7") as dog:
        assert dog.stdin is not None
        dog.stdin.close()  # the session was never told: the marker has to do
        assert server.wait(5) == -signal.SIGTERM
        assert dog.wait(5) == 0


def test_a_server_that_appears_just_after_the_end_of_file_is_ended_too() -> None:
    with watching("m8") as dog:
        assert dog.stdin is not None
        dog.stdin.close()
        with launched("m8") as server:
            assert server.wait(5) == -signal.SIGTERM
        assert dog.wait(5) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ignores_what_is_meant_for_others(number: signal.Signals) -> None:
    with launched("m9") as server, watching("m9") as dog:
        time.sleep(0.3)
        dog.send_signal(number)
        time.sleep(0.2)
        assert dog.poll() is None
        assert dog.stdin is not None
        dog.stdin.close()
        assert server.wait(5) == -signal.SIGTERM
