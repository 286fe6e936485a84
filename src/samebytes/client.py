"""The measuring client as a notebook sees it: plain blocking calls, which work inside a running event loop too.

The measuring itself is done by a process of its own (:mod:`samebytes.client_process`): a notebook's kernel answers
heartbeats, draws progress bars and collects garbage, and each would show up as the server's latency.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, cast

from samebytes import definitions
from samebytes.errors import EngineError, SamebytesError
from samebytes.record import ClientLoad
from samebytes.stream import StreamResult

Message = dict[str, str]

REFUSALS = (400, 422)
"""HTTP statuses with which servers refuse a parameter that they do not know."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server.

    Attributes
    ----------
    base_url : str
        Without ``/v1``, as for ``/metrics`` and ``/health``.
    model : str
        Its served model name.
    api_key : str or None
        Goes to the measuring process through a pipe and to the server; it is never shown or written.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Features:
    """Extensions of vLLM: those that a client asks for, or those that a server gave.

    Attributes
    ----------
    token_ids : bool
        ``return_token_ids``: the token ids of prompt and answer.
    chunk_usage : bool
        ``stream_options.continuous_usage_stats``: usage in each chunk, without which k1 is unknown.
    template_kwargs : bool
        ``chat_template_kwargs``: thinking switched on or off.
    """

    token_ids: bool = True
    chunk_usage: bool = True
    template_kwargs: bool = True


@dataclass(frozen=True)
class RequestSpec:
    """One chat completion to ask for.

    Attributes
    ----------
    id, workload, copy_index
        What the answer is filed under.
    messages : sequence of dict
        ``[{"role": "user", "content": ...}]``, verbatim.
    max_tokens, temperature, seed
        Sampling; greedy by default.
    extra_body : dict
        Further members of the JSON body.
    """

    id: str
    workload: str
    messages: Sequence[Message]
    max_tokens: int
    copy_index: int = 0
    temperature: float = 0.0
    seed: int = 0
    extra_body: dict[str, Any] = field(default_factory=dict)


_WIRE_NAMES = {
    "token_ids": "return_token_ids",
    "chunk_usage": "continuous_usage_stats",
    "template_kwargs": "chat_template_kwargs",
}


@dataclass(frozen=True)
class Batch:
    """The answers to one :meth:`Client.send`, and what the client itself cost.

    Attributes
    ----------
    results : list of StreamResult
        In the order of the specs; times are seconds of CLOCK_MONOTONIC.
    cpu_s, wall_s : float
        CPU seconds of the measuring process over the wall seconds from the first request to the last end.
    lag_p99_s : float or None
        99th percentile of its event loop's lateness; None for a batch shorter than 10 ms.
    """

    results: list[StreamResult]
    cpu_s: float
    wall_s: float
    lag_p99_s: float | None

    @property
    def cpu_share(self) -> float:
        """CPU seconds of the client per second (1.0 is one full core)."""
        return self.cpu_s / self.wall_s

    @property
    def makespan_s(self) -> float | None:
        """Last finish minus first send over all requests; a failed one finished when it ended."""
        return definitions.makespan(
            (r.sent for r in self.results), (r.ended if r.finish is None else r.finish for r in self.results)
        )


def load(batches: Sequence[Batch]) -> ClientLoad:
    """Return the client's load over a pass: CPU seconds per second of its requests, and the worst batch's lag."""
    wall = sum(batch.wall_s for batch in batches)
    return ClientLoad(
        cpu_share=sum(batch.cpu_s for batch in batches) / wall if wall else None,
        lag_p99_s=max((batch.lag_p99_s for batch in batches if batch.lag_p99_s is not None), default=None),
    )


class Client:
    """Handle of the measuring process; a context manager that ends it.

    Parameters
    ----------
    endpoint : Endpoint
    timeout_s : float
        Per request, from when it is due until its response has ended.

    thinking : bool
        Whether the model is asked to think (``chat_template_kwargs``).

    Attributes
    ----------
    features : Features
        What requests ask for: everything until :meth:`negotiate` has learnt what the server refuses.
    versions : dict of str
        ``python`` and ``openai`` of the measuring process.

    Raises
    ------
    SamebytesError
        Where the measuring process does not start or dies.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = 900.0, thinking: bool = False) -> None:
        self.endpoint = endpoint
        self.features = Features()
        self._thinking = thinking
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "samebytes.client_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # a Ctrl-C is for the kernel, which then ends this process itself
            start_new_session=True,
            # openai reads keys, organisations and headers from here; this server is none of theirs
            env={name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
        )
        try:
            self._tell(
                {
                    "base_url": endpoint.base_url.rstrip("/") + "/v1",
                    "api_key": endpoint.api_key or "EMPTY",
                    "model": endpoint.model,
                    "timeout_s": timeout_s,
                }
            )
            self.versions = cast("dict[str, str]", self._hear())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the measuring process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()  # it holds nothing but open sockets
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # a command that was still to be written
                pipe.close()

    def send(
        self,
        specs: Sequence[RequestSpec],
        *,
        concurrency: int = 1,
        on_finish: Callable[[int], None] | None = None,
    ) -> Batch:
        """Send requests in order, ``concurrency`` at a time, and wait for all answers.

        Parameters
        ----------
        specs : sequence of RequestSpec
        concurrency : int
            The next request is sent when one of so many slots is free.
        on_finish : callable, optional
            Called with the number of finished requests, at most once a second.

        Returns
        -------
        Batch
            A request that failed has its own status there; it raises nothing.

        Raises
        ------
        SamebytesError
            Where the measuring process died.
        """
        command = {
            "concurrency": concurrency,
            "specs": [
                {
                    "id": spec.id,
                    "workload": spec.workload,
                    "copy_index": spec.copy_index,
                    "parameters": self._parameters(spec),
                }
                for spec in specs
            ],
        }
        try:
            self._tell(command)
            while "results" not in (answer := self._hear()):
                if on_finish is not None:
                    on_finish(answer["finished"])
        except BaseException:
            self.close()  # interrupted: nobody will read the rest
            raise
        results = [StreamResult(**result) for result in answer["results"]]
        for result in results:
            result.chunks = [(t, tokens) for t, tokens in result.chunks]
        return Batch(results, answer["cpu_s"], answer["wall_s"], answer["lag_p99_s"])

    def negotiate(self, messages: Sequence[Message], *, max_tokens: int = 16) -> Features:
        """Send a warm-up request; leave out what the server refuses, now and in the requests to come.

        Where a refusal (HTTP 400 or 422) names an extension that one is dropped, else token ids, per-chunk usage and
        template arguments in this order.

        Returns
        -------
        Features
            What the server gave: ``token_ids`` and ``chunk_usage`` only where the answer carried them.

        Raises
        ------
        EngineError
            With the server's message, where it refuses even the plain request or fails.
        """
        spec = RequestSpec("warmup", "warmup", messages, max_tokens)
        while True:
            result = self.send([spec]).results[0]
            if result.status == "ok":
                return replace(self.features, token_ids=result.token_ids is not None, chunk_usage=result.chunk_usage)
            asked = [name for name in _WIRE_NAMES if getattr(self.features, name)]
            if result.http_status not in REFUSALS or not asked:
                raise EngineError(f"the warm-up request failed: {result.error}")
            named = [name for name in asked if _WIRE_NAMES[name] in (result.error or "")]
            self.features = replace(self.features, **{(named or asked)[0]: False})

    def _parameters(self, spec: RequestSpec) -> dict[str, Any]:
        """Return the arguments of openai's ``chat.completions.create``."""
        options: dict[str, Any] = {"include_usage": True}
        extra: dict[str, Any] = {}
        if self.features.chunk_usage:
            options["continuous_usage_stats"] = True
        if self.features.token_ids:
            extra["return_token_ids"] = True
        if self.features.template_kwargs:
            extra["chat_template_kwargs"] = {"enable_thinking": self._thinking}
        return {
            "messages": list(spec.messages),
            "max_tokens": spec.max_tokens,
            "temperature": spec.temperature,
            "seed": spec.seed,
            "stream_options": options,
            "extra_body": {**extra, **spec.extra_body},
        }

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._death()
        message: dict[str, Any] = json.loads(line)
        return message

    def _death(self) -> SamebytesError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        return SamebytesError(f"the measuring client died with exit code {code}: {said[-2000:] or 'it said nothing'}")
