"""The measuring client: a process of its own, driven over standard input by :mod:`samebytes.client`.

It does one thing while the clock runs: stamp each read with CLOCK_MONOTONIC and keep the bytes. Requests are built
and connections opened before, and everything is parsed after; garbage collection is off in between. ``openai`` builds
and authenticates the requests; what carries them is a bare asyncio protocol, because on a busy machine the usual
streaming clients are late by tens of milliseconds and report the server as that much slower.

Standard input and output carry one JSON object a line: the endpoint, then a batch at a time, answered by ``finished``
counts and the results. The process ends when its standard input closes: a killed kernel leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import platform
import re
import resource
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import h11
import openai

from samebytes import sse, stream

MAX_OPEN = 512
"""Connections held open ahead of need (more where the concurrency wants more)."""
TICK_S = 0.01
"""Period of the event-loop lag sampler."""
QUIET_S = 0.05
"""How long after what looks like the end a server may take to close before the end is verified, and for how long
hanging up is put off."""
CONNECT_TIMEOUT_S = 30.0


class _Built(BaseException):
    """Raised in openai's request hook, so that a request is built and not sent. No error: nothing may retry it."""


@dataclass(frozen=True)
class Wire:
    """One request as it goes out."""

    host: str
    port: int
    tls: bool
    data: bytes


class Builder:
    """Builds requests with ``openai``: its URL, headers, authentication and body.

    Parameters
    ----------
    base_url : str
        With ``/v1``.
    api_key : str
    model : str
    """

    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        self._model = model
        self._request: Any = None
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            # one response a connection, its bytes as the engine wrote them
            default_headers={"Connection": "close", "Accept-Encoding": "identity"},
            http_client=openai.DefaultHttpxClient(event_hooks={"request": [self._keep]}),
        )

    def _keep(self, request: Any) -> None:
        self._request = request
        raise _Built

    def build(self, **parameters: Any) -> Wire:
        """Return the request for one streamed chat completion, as bytes.

        Parameters
        ----------
        **parameters
            Of ``openai.OpenAI().chat.completions.create``, without ``model`` and ``stream``.
        """
        with contextlib.suppress(_Built):
            self._client.chat.completions.create(model=self._model, stream=True, **parameters)
        request = self._request
        writer = h11.Connection(h11.CLIENT)
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        parts = [writer.send(head), writer.send(h11.Data(data=request.content)), writer.send(h11.EndOfMessage())]
        tls = request.url.scheme == "https"
        port = request.url.port or (443 if tls else 80)
        return Wire(request.url.host, port, tls, b"".join(part or b"" for part in parts))


@dataclass
class Response:
    """One HTTP response, its body in stamped pieces."""

    status: int | None = None
    body: Sequence[tuple[float, bytes]] = ()
    complete: bool = False
    error: str | None = None


def parse(reads: Sequence[tuple[float, bytes]], *, closed: bool) -> Response:
    """Return the HTTP response that stamped reads hold; body bytes keep the stamp of the read that brought them.

    Parameters
    ----------
    reads : sequence of (float, bytes)
        Every read of the connection with its arrival.
    closed : bool
        Whether the server closed the connection after them.
    """
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
    reader.send(h11.EndOfMessage())
    response = Response()
    body: list[tuple[float, bytes]] = []
    response.body = body
    try:
        for t, data in [*reads, (0.0, b"")] if closed else reads:
            reader.receive_data(data)
            while (event := reader.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    response.status = event.status_code
                elif isinstance(event, h11.Data):
                    body.append((t, bytes(event.data)))
                elif isinstance(event, h11.EndOfMessage):
                    response.complete = True
                    return response
                elif isinstance(event, h11.ConnectionClosed):
                    return response
    except h11.RemoteProtocolError as error:
        response.error = str(error)
    return response


class Exchange(asyncio.Protocol):
    """One connection: a request out, its response in, nothing parsed.

    Attributes
    ----------
    reads : list of (float, bytes)
        Every read with its arrival.
    scheduled, sent, ended : float or None
        CLOCK_MONOTONIC: when it was due, when the last byte was about to be handed to the socket, when it was over.
    failure : str or None
        Why there was no exchange at all.
    """

    def __init__(self, wire: Wire, timeout_s: float, batch: Batch) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.scheduled = 0.0
        self.sent: float | None = None
        self.ended: float | None = None
        self.closed = False
        self.timed_out = False
        self.failure: str | None = None
        self._wire = wire
        self._timeout_s = timeout_s
        self._batch = batch
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tail = b""
        self._length: int | None = None  # of the whole response, where the server says it beforehand
        self._received = 0

    # before the clock starts

    def open(self) -> asyncio.Task[None]:
        """Start opening the connection; a failure shows when the request is due."""
        self._opening = self._batch.loop.create_task(self._connect())
        return self._opening

    async def _connect(self) -> None:
        wire = self._wire
        tls = ssl.create_default_context() if wire.tls else None
        connecting = self._batch.loop.create_connection(lambda: self, wire.host, wire.port, ssl=tls)
        try:
            await asyncio.wait_for(connecting, min(CONNECT_TIMEOUT_S, self._timeout_s))
        except OSError as error:  # a time-out is one too
            self.failure = f"no connection to {wire.host}:{wire.port}: {str(error) or type(error).__name__}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)  # resume_writing then means: the last byte is handed over
        self._transport = transport
        self.failure = None

    # while the clock runs

    def start(self, scheduled: float) -> None:
        """Send the request, on the connection opened beforehand where the server still holds it."""
        self.scheduled = scheduled
        self._timer = self._batch.loop.call_later(self._timeout_s, self._time_out)
        if self._transport is not None:
            self._write(self._transport)
        else:
            self._batch.keep(self._batch.loop.create_task(self._reopen()))

    async def _reopen(self) -> None:
        if self._opening is not None:
            await self._opening
        if self._transport is None:
            await self._connect()
        if self._transport is not None:
            self._write(self._transport)
        else:
            self._end()

    def _write(self, transport: asyncio.Transport) -> None:
        self.reads.clear()
        # Before the call: a server that it wakes may take this core at once, and a stamp taken afterwards would be late
        # by that server's turn, which would be missing in the time to first token.
        handed_over = time.monotonic()
        transport.write(self._wire.data)
        if transport.get_write_buffer_size() == 0:
            self.sent = handed_over

    def resume_writing(self) -> None:
        """Stamp a request that did not fit into the socket at once."""
        self.sent = time.monotonic()

    def data_received(self, data: bytes) -> None:
        """Stamp and keep one read."""
        self.reads.append((time.monotonic(), data))
        if self._received == 0:
            self._length = _announced_length(data)
        self._received += len(data)
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n" or self._received == self._length:
            # Probably the end. A server that was asked to close does so now; for one that does not, look closer.
            if self._transport is not None and self._batch.winding_down:
                # Hanging up takes longer than reading a chunk, and no request waits for this slot: the last chunks of
                # other answers, which may be due at this very moment, come first.
                self._transport.pause_reading()
                self._batch.loop.call_later(QUIET_S, self._hang_up)
            else:
                self._batch.loop.call_later(QUIET_S, self._verify_end, self._received)

    def _hang_up(self) -> None:
        if self.ended is None and self._transport is not None:
            self._transport.resume_reading()
            self._batch.loop.call_later(QUIET_S, self._verify_end, self._received)

    def _verify_end(self, received: int) -> None:
        if self.ended is None and self._received == received and parse(self.reads, closed=False).complete:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a running exchange; a connection lost before its request was due is opened again then."""
        self._transport = None
        if self._timer is not None:
            self.closed = True
            self._end()

    def _time_out(self) -> None:
        self.timed_out = True
        self._end()

    def _end(self) -> None:
        if self.ended is not None:
            return
        self.ended = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._batch.on_end()


def _announced_length(first_read: bytes) -> int | None:
    """Return the bytes of a response whose head lies in one read and says ``Content-Length``."""
    head, blank, _ = first_read.partition(b"\r\n\r\n")
    found = re.search(rb"\r\ncontent-length:[ \t]*(\d+)", head, re.IGNORECASE) if blank else None
    return len(head) + len(blank) + int(found[1]) if found else None


class Batch:
    """A closed loop of exchanges: the next request is sent when one of ``concurrency`` slots is free.

    Parameters
    ----------
    wires : sequence of Wire
        In the order of sending.
    concurrency : int
    timeout_s : float
        Per request, from when it was due.
    on_finish : callable
        Called with the number of finished requests, at most once a second.

    Attributes
    ----------
    cpu_s, wall_s : float
        CPU seconds of this process and wall seconds, from the first request to the end of the last.
    lag_p99_s : float or None
        99th percentile of how late the event loop was for a timer due every 10 ms (its resolution is 1 ms); None
        where the batch was over before the first.
    """

    def __init__(self, wires: Sequence[Wire], concurrency: int, timeout_s: float, on_finish: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.exchanges = [Exchange(wire, timeout_s, self) for wire in wires]
        self.cpu_s = 0.0
        self.wall_s = 0.0
        self.lag_p99_s: float | None = None
        self._concurrency = concurrency
        self._on_finish = on_finish
        self._told = 0.0
        self._started = 0
        self._opened = 0
        self._finished = 0
        self._all_done = self.loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Open connections, then send everything and wait for the last answer."""
        ahead = self._open(max(MAX_OPEN, 2 * self._concurrency))
        for i in range(0, len(ahead), 64):  # a listener's backlog is finite
            await asyncio.gather(*ahead[i : i + 64])
        gc.collect()
        gc.disable()
        lags: list[float] = []
        begin = self._told = time.monotonic()
        cpu = time.process_time()
        sampler = self.loop.create_task(_sample_lag(lags, begin))
        self.start_first(begin)
        try:
            await self._all_done
        finally:
            self.cpu_s = time.process_time() - cpu
            self.wall_s = time.monotonic() - begin
            sampler.cancel()
            gc.enable()
        if lags:
            lags.sort()
            self.lag_p99_s = lags[int(0.99 * (len(lags) - 1))]

    def start_first(self, begin: float) -> None:
        """Fill the slots."""
        for exchange in self.exchanges[: self._concurrency]:
            self._started += 1
            exchange.start(begin)

    def _open(self, count: int) -> list[asyncio.Task[None]]:
        exchanges = self.exchanges[self._opened : self._opened + count]
        self._opened += len(exchanges)
        tasks = [exchange.open() for exchange in exchanges]
        for task in tasks:
            self.keep(task)
        return tasks

    @property
    def winding_down(self) -> bool:
        """Whether no request waits for a slot, and more than one answer is on its way."""
        return self._started == len(self.exchanges) and self._started - self._finished > 1

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it is done (the event loop itself keeps weak references only)."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_end(self) -> None:
        """Take the slot that an exchange freed."""
        self._finished += 1
        now = time.monotonic()
        if self._started < len(self.exchanges):
            self._started += 1
            self.exchanges[self._started - 1].start(now)
            self._open(1)
        if self._finished == len(self.exchanges):
            self._all_done.set_result(None)
        elif now - self._told >= 1.0:
            self._told = now
            self._on_finish(self._finished)


async def _sample_lag(lags: list[float], due: float) -> None:
    while True:
        due += TICK_S
        await asyncio.sleep(due - time.monotonic())  # overdue ticks are sampled too, each with its own lateness
        lags.append(time.monotonic() - due)


def result(exchange: Exchange, spec: dict[str, Any]) -> stream.StreamResult:
    """Return what an exchange brought, parsed."""
    found = stream.StreamResult(
        id=spec["id"],
        workload=spec["workload"],
        copy_index=spec["copy_index"],
        scheduled=exchange.scheduled,
        sent=exchange.sent,
        ended=exchange.ended,
    )
    if exchange.failure is not None:
        found.status, found.error = "error", exchange.failure
        return found
    response = parse(exchange.reads, closed=exchange.closed)
    if response.status is not None and response.status != 200:
        found.status = "error"
        found.error = f"HTTP {response.status}: {_refusal(b''.join(piece for _, piece in response.body))}"
        found.http_status = response.status
        return found
    try:
        stream.read(sse.decode(response.body), found, complete=response.complete)
    except (AttributeError, TypeError) as error:
        found.status, found.error = "error", f"a chunk of a shape that openai does not know: {error}"
    if found.status == "truncated" and exchange.timed_out:
        found.status, found.error = "timeout", f"no end after {exchange._timeout_s:g} s"
    elif found.status == "truncated" and response.status is None:
        found.status, found.error = "error", response.error or "the server closed the connection without an answer"
    return found


def _refusal(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        return stream.error_message(json.loads(text)) or text[:500]
    except ValueError:
        return text[:500]


class Commands:
    """JSON lines from standard input, whose end is the end of this process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = b""

    def next(self) -> dict[str, Any]:
        """Wait for the next command."""
        while b"\n" not in self._buffer:
            self.pull()
        line, _, self._buffer = self._buffer.partition(b"\n")
        command: dict[str, Any] = json.loads(line)
        return command

    def pull(self) -> None:
        """Read what is there; leave at once where the other side is gone."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            os._exit(0)
        self._buffer += data


async def serve(commands: Commands, out: TextIO) -> None:
    """Answer commands until standard input closes."""

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message, default=vars) + "\n")
        out.flush()

    endpoint = commands.next()
    timeout_s = endpoint.pop("timeout_s")
    builder = Builder(**endpoint)
    say({"python": platform.python_version(), "openai": openai.__version__})
    loop = asyncio.get_running_loop()
    while True:
        command = commands.next()
        specs = command["specs"]
        wires = [builder.build(**spec["parameters"]) for spec in specs]
        batch = Batch(wires, command["concurrency"], timeout_s, lambda count: say({"finished": count}))
        loop.add_reader(commands.fd, commands.pull)
        await batch.run()
        loop.remove_reader(commands.fd)
        results = [result(exchange, spec) for exchange, spec in zip(batch.exchanges, specs, strict=True)]
        say({"results": results, "cpu_s": batch.cpu_s, "wall_s": batch.wall_s, "lag_p99_s": batch.lag_p99_s})


def main() -> None:
    """Serve commands on standard input; whatever a library prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(Commands(sys.stdin.fileno()), out))


if __name__ == "__main__":
    main()
