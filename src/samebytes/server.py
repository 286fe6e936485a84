"""A vLLM server for the length of a ``with`` block, and not a moment longer; or a server that already runs.

A context manager ends the server after an exception, a time-out and Ctrl-C; `samebytes.watchdog` ends it when this
process is killed.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from samebytes import interrupt, serverlog, watchdog
from samebytes.errors import EngineError, UsageError, unknown
from samebytes.httpget import get

HOST = "127.0.0.1"
POLL_S = 0.25
MEMORY_BACK_S = 10.0
"""Seconds that the driver gets to hand back a dead process's GPU memory."""

# Write ends of the watchdogs' pipes. Popen closes them in every program it starts; a plain fork must not keep one open
# either, or the watchdog would wait for that child too.
_pipes: set[int] = set()


def _close_pipes() -> None:
    while _pipes:
        os.close(_pipes.pop())


os.register_at_fork(after_in_child=_close_pipes)


def utc_now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on.

    Below the range from which Linux gives ports out by itself where possible: an engine takes its port only after many
    seconds, and until then any connection of any process could be given it.
    """
    for _ in range(100):
        port = 20000 + secrets.randbelow(32768 - 20000)
        if port_is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier server that still fade out (TIME_WAIT) do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def check_port(port: int) -> None:
    """Refuse a port that is taken, before anything else is started.

    Raises
    ------
    UsageError
        Naming the port and a free one.
    """
    if not 1 <= port <= 65535:
        raise UsageError(f"port {port} is not a port: valid are 1 to 65535; one that is free now: {free_port()}")
    if not port_is_free(port):
        raise UsageError(f"port {port} is in use by another process; one that is free now: {free_port()}")


@dataclass(frozen=True)
class ServerSpec:
    """What to start."""

    argv: Sequence[str]
    """Full command line; it makes the server listen on `port` and answer to `served_model_name`."""
    env: Mapping[str, str]
    """Environment variables on top of this process's own."""
    port: int
    served_model_name: str
    log_path: Path
    """File for the server's output and errors; an older one is overwritten."""


class Server:
    """A server that was started here. Made by `serve`.

    Attributes
    ----------
    base_url : str
        Address without ``/v1``.
    pid : int or None
        Process id, also that of its session and process group.
    started, ready, stopped : str or None
        UTC, ISO 8601.
    started_mono, ready_mono, stopped_mono : float or None
        The same moments by ``time.monotonic()``.
    log_path : pathlib.Path
        The server's whole output.
    """

    def __init__(
        self, spec: ServerSpec, grace_s: float = 10.0, memory_is_back: Callable[[], bool] | None = None
    ) -> None:
        self.spec = spec
        self.base_url = f"http://{HOST}:{spec.port}"
        self.served_model_name = spec.served_model_name
        self.log_path = spec.log_path
        self.pid: int | None = None
        self.started: str | None = None
        self.started_mono: float | None = None
        self.ready: str | None = None
        self.ready_mono: float | None = None
        self.stopped: str | None = None
        self.stopped_mono: float | None = None
        self._grace_s = grace_s
        self._memory_is_back = memory_is_back
        self._nonce = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def start(self) -> None:
        """Start the watchdog, then the server.

        Raises
        ------
        EngineError
            Where the program does not exist or may not be run.
        """
        self._start_watchdog()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # SPT_NOENV: vLLM names its processes, and setproctitle would write the name over the marker.
        env = {**os.environ, **self.spec.env, watchdog.MARKER: self._nonce, "SPT_NOENV": "1"}
        self.started, self.started_mono = utc_now(), time.monotonic()
        with self.log_path.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    list(self.spec.argv),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"cannot start {self.spec.argv[0]!r}: {error.strerror}") from None
        self.pid = self._process.pid
        self._tell_watchdog(f"session {self.pid}")

    def wait_ready(self, timeout_s: float, on_wait: Callable[[float], None] | None = None) -> None:
        """Wait until the server answers, and answers to the name it was given.

        Parameters
        ----------
        timeout_s : float
            Seconds from the start.
        on_wait : callable or None
            Called with the seconds waited, about four times a second.

        Raises
        ------
        EngineError
            Where the server exits (with its root cause), is not ready in time, or another server answers here.
        """
        assert self.started_mono is not None
        while not self._healthy():
            self.check_alive()
            waited = time.monotonic() - self.started_mono
            if waited > timeout_s:
                raise EngineError(
                    f"the engine was not ready after {timeout_s:g} s; last log lines:\n{serverlog.tail(self.log())}",
                    str(self.log_path),
                )
            if on_wait is not None:
                on_wait(waited)
            time.sleep(POLL_S)
        names = _model_names(self.base_url)
        if self.served_model_name not in names:
            raise EngineError(
                f"another server answers at {self.base_url}: it serves {', '.join(names) or 'no model'}, "
                f"not {self.served_model_name}",
                str(self.log_path),
            )
        self.ready, self.ready_mono = utc_now(), time.monotonic()

    def check_alive(self) -> None:
        """Make sure that the server runs.

        Raises
        ------
        EngineError
            With the root cause from the log, where it does not.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            raise EngineError(serverlog.root_cause(self.log(), code), str(self.log_path))

    def log(self) -> str:
        """Return the server's output so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def pids(self) -> list[int]:
        """Return the ids of the server's living processes."""
        return watchdog.members(self._nonce, self.pid)

    def stop(self) -> None:
        """End every process of the server; a second call does nothing. Ctrl-C meanwhile only shortens the wait.

        Raises
        ------
        EngineError
            Where a process lives on, the port stays taken, or the GPU's memory does not come back.
        KeyboardInterrupt
            After the end, where Ctrl-C came meanwhile.
        """
        if self.stopped is not None:
            return
        with interrupt.afterwards() as interrupted:
            crashed = self._process is not None and self._process.poll() is not None
            # What is left of a server that ended by itself has nothing to tidy up.
            grace_s = min(self._grace_s, 1.0) if crashed else self._grace_s
            alive = watchdog.end(self._nonce, self.pid, grace_s, hurry=interrupted)
            if self._process is not None and self.pid not in alive:
                self._process.wait()
            self.stopped, self.stopped_mono = utc_now(), time.monotonic()
            self._dismiss_watchdog(done=not alive)
            if alive:
                raise EngineError(f"processes of the engine could not be ended: {alive}", str(self.log_path))
            # Only a server that answered had the port; else it may be the one that stood in the way.
            if self.ready is not None and not port_is_free(self.spec.port):
                raise EngineError(f"port {self.spec.port} is still in use after the engine's end: another server's")
            if self._memory_is_back is not None:
                _wait_for(self._memory_is_back, "the GPU's memory is not back after the engine's end")

    def _healthy(self) -> bool:
        try:
            return get(f"{self.base_url}/health", timeout=1.0).status == 200
        except OSError:
            return False

    def _start_watchdog(self) -> None:
        reading, self._pipe = os.pipe()
        _pipes.add(self._pipe)
        try:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, self._nonce, str(self._grace_s)],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(reading)

    def _tell_watchdog(self, line: str) -> None:
        assert self._pipe is not None
        try:
            os.write(self._pipe, f"{line}\n".encode())
        except BrokenPipeError:
            raise EngineError("the watchdog process is gone: the engine would outlive a killed run") from None

    def _dismiss_watchdog(self, done: bool) -> None:
        if self._pipe is None:
            return
        pipe, self._pipe = self._pipe, None
        try:
            if done:
                os.write(pipe, b"done\n")
        except BrokenPipeError:
            pass
        finally:
            _pipes.discard(pipe)
            os.close(pipe)
        if self._watchdog is not None and done:
            self._watchdog.wait()


@contextmanager
def serve(
    spec: ServerSpec,
    ready_timeout_s: float = 1800.0,
    grace_s: float = 10.0,
    on_wait: Callable[[float], None] | None = None,
    memory_is_back: Callable[[], bool] | None = None,
) -> Iterator[Server]:
    """Run a server for the length of a ``with`` block.

    Parameters
    ----------
    spec : ServerSpec
        What to start.
    ready_timeout_s : float
        Seconds that it may take to answer.
    grace_s : float
        Seconds from SIGTERM to SIGKILL at the end (8 at most where this process was killed).
    on_wait : callable or None
        Called with the seconds waited while the server loads.
    memory_is_back : callable or None
        Asked after the end until it says true, for 10 s at most: whether the GPU's memory is free again.

    Yields
    ------
    Server
        Ready for requests.

    Raises
    ------
    UsageError
        At once, where the port is taken.
    EngineError
        Where the server does not start (within two seconds of its exit, with the root cause), or does not end.
    """
    check_port(spec.port)
    server = Server(spec, grace_s, memory_is_back)
    try:
        server.start()
        server.wait_ready(ready_timeout_s, on_wait)
        yield server
    finally:
        server.stop()


@dataclass(frozen=True)
class ConnectedServer:
    """A server that already ran: nothing was started, nothing will be stopped."""

    base_url: str
    served_model_name: str
    api_key: str | None = field(default=None, repr=False)
    started: str = field(default_factory=utc_now)
    """When it was first asked, as nobody here knows when it started."""
    started_mono: float = field(default_factory=time.monotonic)

    def check_alive(self) -> None:
        """Make sure that the server answers.

        Raises
        ------
        EngineError
            Where it does not.
        """
        check_health(self.base_url, self.api_key)


def connect(base_url: str, model: str | None = None, api_key: str | None = None) -> ConnectedServer:
    """Find out what a running server serves.

    Parameters
    ----------
    base_url : str
        Its address, with or without ``/v1``.
    model : str or None
        The served model to use; needed only where there are several.
    api_key : str or None
        Sent as a bearer token.

    Raises
    ------
    UsageError
        Where the address is none, the model is not served, or several are and none was chosen.
    EngineError
        Where nothing answers.
    """
    address = base_url.rstrip("/").removesuffix("/v1").rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise UsageError(f"base_url {base_url!r} is not an address: it starts with http:// or https://")
    check_health(address, api_key)
    names = _model_names(address, api_key)
    if model is not None and model not in names:
        raise unknown(f"model at {address}", model, names)
    if model is None and len(names) != 1:
        raise UsageError(f"{address} serves {len(names)} models; choose one: {', '.join(names) or '(none)'}")
    return ConnectedServer(address, model or names[0], api_key)


def check_health(base_url: str, api_key: str | None = None) -> None:
    """Make sure that a server answers and does not call itself dead.

    Raises
    ------
    EngineError
        Where it does not.
    """
    try:
        status = get(f"{base_url}/health", api_key).status
    except (OSError, ValueError) as error:
        raise EngineError(f"no server answers at {base_url}: {error}") from None
    # Other engines have no such page; those that do use the 500s for a dead engine.
    if status >= 500:
        raise EngineError(f"the server at {base_url} says that it is not healthy (status {status})")


def _model_names(base_url: str, api_key: str | None = None) -> list[str]:
    url = f"{base_url}/v1/models"
    try:
        answer = get(url, api_key)
        if answer.status in (401, 403):
            raise UsageError(f"{url} answered {answer.status}: it wants an API key")
        return [str(model["id"]) for model in json.loads(answer.body)["data"]]
    except OSError as error:
        raise EngineError(f"no answer from {url}: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise EngineError(f"{url} does not list models: this is not an OpenAI-compatible server") from None


def _wait_for(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + MEMORY_BACK_S
    while not condition():
        if time.monotonic() > deadline:
            raise EngineError(failure)
        time.sleep(POLL_S)
