"""The server's life, on a stand-in process tree; every way of dying is tried for real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from samebytes import server as server_module
from samebytes.errors import EngineError, UsageError
from samebytes.server import Server, ServerSpec, check_port, connect, free_port, port_is_free, serve
from siteserver import answering

HERE = Path(__file__).parent
STANDIN = HERE / "standin_engine.py"
FP8_LOG = HERE / "fixtures" / "vllm-0.32.0-cpu" / "fp8-unsupported.log"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Return the seconds it took, or fail."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"not within {timeout_s} s"
        time.sleep(0.05)
    return time.monotonic() - start


class Tree:
    """A stand-in to be started, and the ids that its processes wrote down."""

    def __init__(self, folder: Path) -> None:
        self.pid_file = folder / "pids"
        self.port = free_port()
        self.log_path = folder / "logs" / "server.log"

    def spec(self, *options: str) -> ServerSpec:
        argv = [sys.executable, "-I", "-S", str(STANDIN), "--port", str(self.port), "--served-model-name", "abc123"]
        return ServerSpec([*argv, "--pids", str(self.pid_file), *options], {}, self.port, "abc123", self.log_path)

    def pids(self) -> list[int]:
        return [int(line) for line in self.pid_file.read_text().split()] if self.pid_file.exists() else []

    def complete(self) -> bool:
        return len(self.pids()) == 3

    def gone(self) -> bool:
        return not any(alive(pid) for pid in self.pids())


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    left = [pid for pid in tree.pids() if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "the test left processes behind"


@pytest.fixture(autouse=True)
def no_children_left() -> Iterator[None]:
    """Nothing started here may survive its test, the watchdog included."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) == before


def test_runs_for_the_block_and_ends(tree: Tree) -> None:
    waits: list[float] = []
    with serve(tree.spec("--load-s", "0.6"), on_wait=waits.append) as server:
        wait_until(tree.complete, 5)
        server.check_alive()
        assert sorted(server.pids()) == sorted(tree.pids())
        assert server.pid == tree.pids()[0]
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
        assert server.started_mono is not None
        assert server.ready_mono is not None
        assert 0.6 <= server.ready_mono - server.started_mono < 5
        assert server.started is not None
        assert server.started.endswith("+00:00")
        assert server.stopped is None
        assert "core runs" in server.log()
    assert waits
    assert waits == sorted(waits)
    assert server.stopped is not None
    assert tree.gone()
    assert port_is_free(tree.port)
    server.stop()  # a second time does nothing


def test_several_launches_in_a_row_use_the_same_port(tree: Tree) -> None:
    for _ in range(2):
        with serve(tree.spec()):
            pass
    assert tree.gone()


def test_an_exception_in_the_block_passes_and_ends_the_server(tree: Tree) -> None:
    with pytest.raises(ZeroDivisionError), serve(tree.spec()):
        _ = 1 / 0
    assert tree.gone()


def test_two_servers_at_once_end_apart(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Tree(tmp_path / "other")
    with serve(other.spec()):
        wait_until(other.complete, 5)
        with serve(tree.spec()):
            wait_until(tree.complete, 5)
        assert tree.gone()
        assert all(alive(pid) for pid in other.pids())
    assert other.gone()


def test_exit_during_load_names_the_cause_within_two_seconds(tree: Tree) -> None:
    spec = tree.spec("--load-s", "0.5", "--exit-code", "1", "--exit-log", str(FP8_LOG))
    exited: list[float] = []

    def watch(_: float) -> None:
        if tree.pids() and not alive(tree.pids()[0]) and not exited:
            exited.append(time.monotonic())

    start = time.monotonic()
    with pytest.raises(EngineError) as caught, serve(spec, on_wait=watch):
        pytest.fail("it was never ready")
    took = time.monotonic() - (exited[0] if exited else start + 0.5)
    assert took < 2.0
    assert caught.value.reason == "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
    assert str(tree.log_path) in str(caught.value)
    assert tree.gone()  # the engine core and the worker, which did not exit


def test_death_by_a_signal_without_a_word(tree: Tree) -> None:
    with pytest.raises(EngineError, match="was killed by SIGKILL without naming a cause"):
        with serve(tree.spec("--exit-code", "-9")):
            pytest.fail("it was never ready")


def test_death_while_measuring_is_told(tree: Tree) -> None:
    with serve(tree.spec()) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="killed by SIGKILL"):
            wait_until(server.check_alive, 2)  # it returns nothing while the server lives
    assert tree.gone()


def test_missing_program(tree: Tree) -> None:
    spec = ServerSpec(["no-such-vllm", "serve"], {}, tree.port, "abc123", tree.log_path)
    with pytest.raises(EngineError, match="cannot start 'no-such-vllm': No such file"), serve(spec):
        pytest.fail("it was never ready")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_busy_port_stops_at_once_before_anything_starts(tree: Tree, host: str) -> None:
    with socket.socket() as holder:
        holder.bind((host, tree.port))
        holder.listen()
        start = time.monotonic()
        with pytest.raises(UsageError, match=rf"port {tree.port} is in use .* free now: \d+"), serve(tree.spec()):
            pytest.fail("it was never ready")
        assert time.monotonic() - start < 1.0
    assert not tree.log_path.exists()
    assert tree.pids() == []


def test_a_port_just_left_is_free(tree: Tree) -> None:
    """Connections that the server closed first stay in TIME_WAIT for a minute; they are in nobody's way."""
    with socket.create_server(("127.0.0.1", tree.port)) as listener:
        client = socket.create_connection(("127.0.0.1", tree.port))
        accepted, _ = listener.accept()
        accepted.close()
        client.close()
    check_port(tree.port)


def test_port_out_of_range() -> None:
    with pytest.raises(UsageError, match="port 70000 is not a port"):
        check_port(70000)


def test_another_servers_model_is_refused(tree: Tree) -> None:
    with pytest.raises(EngineError, match=r"another server answers .* serves someone-else, not abc123"):
        with serve(tree.spec("--wrong-name")):
            pytest.fail("it was never ready")
    assert tree.gone()


def test_not_ready_in_time(tree: Tree) -> None:
    with pytest.raises(EngineError, match=r"(?s)not ready after 0.7 s; last log lines:.*still compiling"):
        with serve(tree.spec("--never-ready"), ready_timeout_s=0.7):
            pytest.fail("it was never ready")
    assert tree.gone()


def test_a_tree_that_ignores_sigterm_is_killed(tree: Tree) -> None:
    with serve(tree.spec("--ignore-sigterm"), grace_s=0.5) as server:
        wait_until(tree.complete, 5)
        start = time.monotonic()
    assert 0.5 <= time.monotonic() - start < 3.0
    assert server.stopped is not None
    assert tree.gone()


def test_a_child_that_left_the_session_is_found(tree: Tree) -> None:
    with serve(tree.spec("--escape", "--ignore-sigterm"), grace_s=0.3) as server:
        wait_until(tree.complete, 5)
        escaped = [pid for pid in tree.pids() if os.getsid(pid) != server.pid]
        assert len(escaped) == 1
        assert escaped[0] in server.pids()
    assert tree.gone()


def test_processes_of_others_live_on(tree: Tree) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={"SAMEBYTES_LAUNCH": "x"})
    try:
        with serve(tree.spec()):
            wait_until(tree.complete, 5)
        assert tree.gone()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_environment_and_input(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "1")
    names = "['FROM_HERE'], ['OF_CONFIG'], ['SPT_NOENV']"
    code = f"import os, sys; print(*(os.environ[n] for [n] in [{names}]), sys.stdin.read()); sys.exit(3)"
    spec = ServerSpec([sys.executable, "-c", code], {"OF_CONFIG": "2"}, tree.port, "abc123", tree.log_path)
    with pytest.raises(EngineError, match="exited with code 3"), serve(spec):
        pytest.fail("it was never ready")
    assert tree.log_path.read_text() == "1 2 1 \n"  # the third: vLLM's process titles must not overwrite the marker


def test_memory_that_comes_back_late_is_waited_for(tree: Tree) -> None:
    answers = iter([False, False, True])
    with serve(tree.spec(), memory_is_back=lambda: next(answers)):
        pass
    assert next(answers, "asked until true") == "asked until true"


def test_memory_that_stays_away_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MEMORY_BACK_S", 0.3)
    with pytest.raises(EngineError, match="memory is not back"), serve(tree.spec(), memory_is_back=lambda: False):
        pass
    assert tree.gone()


def test_ctrl_c_while_loading(tree: Tree) -> None:
    def press(waited: float) -> None:
        if waited > 0.3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), serve(tree.spec("--never-ready"), on_wait=press):
        pytest.fail("it was never ready")
    assert tree.gone()


def test_ctrl_c_while_stopping_shortens_the_wait_and_is_raised_after_it(tree: Tree) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), serve(tree.spec("--ignore-sigterm"), grace_s=30) as server:
        wait_until(tree.complete, 5)
        presses = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        presses.start()
        start = time.monotonic()
    assert time.monotonic() - start < 4.0
    assert server.stopped is not None
    assert tree.gone()
    assert signal.getsignal(signal.SIGINT) is before


def test_works_outside_the_main_thread(tree: Tree) -> None:
    seen: list[str | None] = []

    def work() -> None:
        with serve(tree.spec()) as server:
            pass
        seen.append(server.stopped)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen
    assert seen[0] is not None


HOLDER = """
import json, sys, time
from pathlib import Path
from samebytes.server import ServerSpec, serve
argv, port, log, grace_s = json.loads(sys.argv[1])
with serve(ServerSpec(argv, {}, port, "abc123", Path(log)), grace_s=grace_s):
    print("ready", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(
    tree: Tree, *options: str, grace_s: float = 10
) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """A process that holds a server, and the processes it started, with the watchdog."""
    spec = tree.spec(*options)
    argument = json.dumps([list(spec.argv), spec.port, str(spec.log_path), grace_s])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, argument],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ.copy(),
        # Under nohup SIGHUP would be ignored, from a background job SIGINT, and every child would inherit that.
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(tree.complete, 5)
        started = psutil.Process(process.pid).children(recursive=True)
        assert any("watchdog.py" in " ".join(p.cmdline()) for p in started)
        yield process, started
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_outlives_the_process_that_started_it(tree: Tree, number: signal.Signals) -> None:
    with holder(tree, "--escape") as (process, started):
        process.send_signal(number)
        process.wait(15)
        wait_until(lambda: not any(alive(p.pid) for p in started), 15)
    assert tree.gone()
    assert port_is_free(tree.port)


def test_a_killed_holder_of_a_stubborn_tree(tree: Tree) -> None:
    with holder(tree, "--ignore-sigterm", grace_s=1.5) as (process, started):
        process.kill()
        took = wait_until(lambda: not any(alive(p.pid) for p in started), 15)
    assert took >= 1.5, "it was given its grace"
    assert tree.gone()
    assert port_is_free(tree.port)


def test_a_holder_killed_while_its_server_stops(tree: Tree) -> None:
    with holder(tree, "--ignore-sigterm", grace_s=2) as (process, started):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None, "it waits for the server's end"
        process.kill()
        wait_until(lambda: not any(alive(p.pid) for p in started), 15)
    assert tree.gone()


def test_a_group_signal_does_not_reach_the_watchdog(tree: Tree) -> None:
    with holder(tree) as (process, started):
        os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(p.pid) for p in started), 15)
    assert tree.gone()


def test_a_fork_of_the_holder_does_not_keep_the_pipe_open(tree: Tree) -> None:
    """A worker forked by the holder (multiprocessing) must not make the watchdog believe that it lives."""
    server = Server(tree.spec())
    server.start()
    try:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.fstat(server._pipe)  # type: ignore[arg-type]
                os.write(write, b"open")
            except OSError:
                os.write(write, b"closed")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        assert os.read(read, 10) == b"closed"
        os.close(read)
        os.fstat(server._pipe)  # type: ignore[arg-type]  # still open here
    finally:
        server.stop()


def page(pages: dict[str, tuple[int, str]]) -> AbstractContextManager[str]:
    """A server that has just these pages."""
    return answering(lambda path, _: pages.get(path, (404, "not found")))


def models(*names: str) -> tuple[int, str]:
    return 200, json.dumps({"data": [{"id": name} for name in names]})


def test_connect_takes_the_only_model_and_stops_nothing(tree: Tree) -> None:
    with serve(tree.spec()) as server:
        for base_url in (server.base_url, f"{server.base_url}/v1", f"{server.base_url}/v1/"):
            found = connect(base_url)
            assert (found.base_url, found.served_model_name) == (server.base_url, "abc123")
        found.check_alive()
        server.check_alive()
    with pytest.raises(EngineError, match="no server answers at"):
        found.check_alive()


def test_connect_to_a_server_without_a_health_page() -> None:
    with page({"/v1/models": models("one")}) as base_url:
        assert connect(base_url).served_model_name == "one"


def test_connect_to_several_models() -> None:
    with page({"/health": (200, ""), "/v1/models": models("one", "two")}) as base_url:
        assert connect(base_url, "two").served_model_name == "two"
        with pytest.raises(UsageError, match="2 models; choose one: one, two"):
            connect(base_url)
        with pytest.raises(UsageError, match=r"unknown model .*'tow'. Did you mean 'two'\? Valid: one, two"):
            connect(base_url, "tow")


def test_connect_refuses_what_is_no_server() -> None:
    with pytest.raises(UsageError, match="not an address"):
        connect("localhost:8000")
    with pytest.raises(EngineError, match="no server answers"):
        connect(f"http://127.0.0.1:{free_port()}")
    with page({"/health": (200, ""), "/v1/models": (200, "<html>")}) as base_url:
        with pytest.raises(EngineError, match="not an OpenAI-compatible server"):
            connect(base_url)
    with page({"/health": (503, "")}) as base_url, pytest.raises(EngineError, match="not healthy"):
        connect(base_url)
    with page({"/v1/models": (401, "")}) as base_url, pytest.raises(UsageError, match="API key"):
        connect(base_url)
