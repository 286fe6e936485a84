"""What a vLLM server's log says: facts for the record, and the reason of a failed start.

Every function takes the log's text and touches nothing else.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

GIB = 2**30
LINE_LIMIT = 400
"""Characters kept of one line."""
EXCERPT_LINES = 60

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PROCESS = re.compile(r"^\((?P<process>[A-Za-z][\w-]*) pid=\d+\) ?")
_HEADER = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?P<where>[^\]]*)\] ?")
_UVICORN = re.compile(r"^(?P<level>INFO|WARNING|ERROR|CRITICAL): {2,}")


class _Line(NamedTuple):
    process: str
    """``"APIServer"``, ``"EngineCore"``, ``"EngineCore_DP1"``, ``"Worker"``, ...; empty where the line names none."""
    level: str
    where: str
    """Source file and line."""
    text: str


def _lines(text: str) -> Iterator[_Line]:
    # A progress bar rewrites its line with carriage returns.
    for raw in _ANSI.sub("", text).replace("\r", "\n").split("\n"):
        process = _PROCESS.match(raw)
        rest = raw[process.end() :] if process else raw
        header = _HEADER.match(rest) or _UVICORN.match(rest)
        found = header.groupdict() if header else {}
        yield _Line(
            process["process"] if process else "",
            found.get("level", ""),
            found.get("where", ""),
            rest[header.end() :] if header else rest,
        )


# -- facts -------------------------------------------------------------------------------------------------------------

_KV_SIZE = re.compile(r"\b(?:GPU|CPU) KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_V0_BLOCKS = re.compile(r"# GPU blocks: (\d+)")
_KV_MEMORY = re.compile(
    r"Available KV cache memory: ([\d.]+) GiB|(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"
    r"|reserved ([\d.]+) GiB memory for KV Cache as specified by kv_cache_memory_bytes"
)
_GRAPH_POOL = re.compile(r"CUDA graph pool memory: ([\d.]+) GiB \(actual\)")
_GRAPH_CAPTURE = re.compile(r"Graph capturing finished in .*?, took ([\d.]+) GiB")
_BACKEND = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Za-z0-9_]+) attention backend\b"
    r"|Using AttentionBackendEnum\.(\w+) backend\b"
    r"|Using ((?:Flash Attention|FlashInfer|Triton|XFormers|FlashMLA|Triton MLA)) backend\b"
)
_FLASH_VERSION = re.compile(r"Using FlashAttention version (\d+)")
_ASYNC_ON = re.compile(r"Asynchronous scheduling is enabled")
_ASYNC_OFF = re.compile(r"Asynchronous scheduling is disabled|Async scheduling not supported .*will be disabled")
_VERSION = re.compile(r"\bversion (\d+\.\d+\S*)|LLM engine \(v(\d+\.\d+[^)\s]*)\)")
_ARGS = re.compile(r"non-default args: (\{.*\})")
_SCHEDULED = re.compile(r"max_num_scheduled_tokens is set to (\d+)")
_MODEL = re.compile(r"Model loading took ([\d.]+) GiB")
_LINEAR = re.compile(r"Using (\w+LinearKernel) for ")
_SIGNIFICANT = (
    _KV_SIZE,
    _CONCURRENCY,
    _V0_BLOCKS,
    _KV_MEMORY,
    _GRAPH_POOL,
    _GRAPH_CAPTURE,
    _BACKEND,
    _FLASH_VERSION,
    _ASYNC_ON,
    _ASYNC_OFF,
    re.compile(r"LLM engine \(v"),
    _ARGS,
    _SCHEDULED,
    _MODEL,
    _LINEAR,
    re.compile(r"to store kv cache|init engine \(|Resolved architecture"),
)


@dataclass(frozen=True)
class LogFacts:
    """What the log says; None where it says nothing."""

    kv_cache_tokens: list[int] | None = None
    """KV pool in tokens, one entry per engine (several with data parallelism).

    V0 engines (to 0.8) log blocks; tokens are then blocks times the block size.
    """
    max_concurrency: list[float] | None = None
    """Requests of the full context length that the pool holds (not ``max_num_seqs``), one entry per engine."""
    kv_cache_bytes: int | None = None
    """Memory of the KV pool of one rank; the smallest where ranks differ, for it decides the number of blocks."""
    graph_bytes: int | None = None
    """Memory of the captured CUDA graphs of one rank (the largest)."""
    attention_backend: str | None = None
    """``"FLASH_ATTN (FlashAttention 3)"``, ``"TRITON_ATTN"``, ..."""
    async_scheduling: bool | None = None
    vllm_version: str | None = None
    max_num_scheduled_tokens: int | None = None
    """Scheduler's budget per step where speculation lowered it."""
    model_bytes: int | None = None
    """Memory of the loaded weights of one rank."""
    linear_kernel: str | None = None
    """Kernel chosen for matrices of packed weights: ``"MacheteLinearKernel"``, ``"MarlinLinearKernel"``, ..."""


def facts(text: str, block_size: int = 16) -> LogFacts:
    """Gather the facts of one server start.

    Parameters
    ----------
    text : str
        The log, with or without colours and process prefixes.
    block_size : int
        Tokens per KV block, needed only for the V0 form ``# GPU blocks: N``.
    """
    lines = list(_lines(text))
    tokens = _per_engine(lines, _KV_SIZE, 1) or _per_engine(lines, _V0_BLOCKS, 1)
    scale = 1 if _per_engine(lines, _KV_SIZE, 1) else block_size
    concurrency = _per_engine(lines, _CONCURRENCY, 2)
    memory = _numbers(lines, _KV_MEMORY)
    graphs = _numbers(lines, _GRAPH_CAPTURE) or _numbers(lines, _GRAPH_POOL)
    scheduled, model = _numbers(lines, _SCHEDULED), _numbers(lines, _MODEL)
    return LogFacts(
        kv_cache_tokens=[int(value) * scale for value in tokens] or None,
        max_concurrency=concurrency or None,
        kv_cache_bytes=round(min(memory) * GIB) if memory else None,
        graph_bytes=round(max(graphs) * GIB) if graphs else None,
        attention_backend=_backend(lines),
        async_scheduling=_async_scheduling(lines),
        vllm_version=_first(lines, _VERSION),
        max_num_scheduled_tokens=int(scheduled[0]) if scheduled else None,
        model_bytes=round(max(model) * GIB) if model else None,
        linear_kernel=_first(lines, _LINEAR),
    )


def _first(lines: list[_Line], pattern: re.Pattern[str]) -> str | None:
    for line in lines:
        if match := pattern.search(line.text):
            return next(group for group in match.groups() if group is not None)
    return None


def _numbers(lines: list[_Line], pattern: re.Pattern[str]) -> list[float]:
    matches = (pattern.search(line.text) for line in lines)
    return [float(next(group for group in m.groups() if group is not None)) for m in matches if m]


def _per_engine(lines: list[_Line], pattern: re.Pattern[str], group: int) -> list[float]:
    """One number per engine process; an engine that logs one per rank (0.8, 0.9) has the smallest of them."""
    named: dict[str, float] = {}
    unnamed: list[float] = []
    for line in lines:
        if match := pattern.search(line.text):
            value = float(match[group].replace(",", ""))
            if line.process.startswith("EngineCore"):
                named[line.process] = min(value, named.get(line.process, value))
            else:
                unnamed.append(value)
    return [*named.values(), *unnamed]


def _backend(lines: list[_Line]) -> str | None:
    name = _first(lines, _BACKEND)
    version = _first(lines, _FLASH_VERSION)
    is_flash = name is not None and name.upper().replace(" ", "_").startswith("FLASH_ATT")
    return f"{name} (FlashAttention {version})" if is_flash and version else name


def _async_scheduling(lines: list[_Line]) -> bool | None:
    if any(_ASYNC_OFF.search(line.text) for line in lines):
        return False
    if any(_ASYNC_ON.search(line.text) for line in lines):
        return True
    # The CPU engine logs neither; a flag that switched it off is still among the arguments. One that asked for it
    # proves nothing, for the engine may refuse.
    arguments = _first(lines, _ARGS)
    return False if arguments and "'async_scheduling': False" in arguments else None


# -- excerpt -----------------------------------------------------------------------------------------------------------

_HOME = re.compile(r"/(?:home|Users)/[^/\s'\",:)]+|/root(?=[/\s'\",:)]|$)")
_SECRET = re.compile(r"\b(?:hf|sk)[_-][A-Za-z0-9_-]{8,}|(?<='api_key': )(?:'[^']*'|\[[^\]]*\])")


def neutral(line: str) -> str:
    """Return a line without home folders and keys, at most `LINE_LIMIT` characters."""
    line = _SECRET.sub("***", _HOME.sub("~", line)).strip()
    return line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 1] + "…"


def excerpt(text: str) -> list[str]:
    """Return the lines worth keeping in a record: those that `facts` reads, and warnings up to the start's end.

    Process ids and times are dropped, so that two starts of one config can be compared; repeats are dropped.
    """
    kept: dict[str, None] = {}
    started = False
    for line in _lines(text):
        started = started or "Application startup complete" in line.text
        warns = line.level == "WARNING" and not started
        if warns or (not started and any(pattern.search(line.text) for pattern in _SIGNIFICANT)):
            head = f"{line.level} [{line.where}] " if line.where else ""
            kept[neutral(head + line.text)] = None
    return list(kept)[:EXCERPT_LINES]


def tail(text: str, lines: int = 30) -> str:
    """Return the last lines that hold something, each at most `LINE_LIMIT` characters."""
    filled = [line for line in _ANSI.sub("", text).replace("\r", "\n").split("\n") if line.strip()]
    return "\n".join(neutral(line) for line in filled[-lines:])


# -- root cause --------------------------------------------------------------------------------------------------------

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_]\w*(?:\.\w+)*)(?:: (?P<message>.*)|:?)$")
# One process reporting that another one failed.
_WRAPPER = re.compile(
    r"Engine core initialization failed|Worker failed with error|WorkerProc initialization failed"
    r"|EngineDeadError|Engine process failed to start|[Ss]ee (?:the )?(?:root cause|stack trace)"
    r"|EngineCore (?:failed to start|encountered)|proc \S+ died unexpectedly|AsyncLLM output_handler failed"
    r"|Error in \w+(?: \w+)* stream generator"
)
_ENDED_BY_US = re.compile(r"^(?:KeyboardInterrupt|SystemExit|CancelledError|GeneratorExit)\b")
# argparse, and Python itself where it has no such module.
_USAGE = re.compile(
    r"^\S+(?: \w+)*: error: .+|^\S*python[\d.]*: (?:No module named|Error while finding module|can't open) .+"
)
_FATAL = re.compile(r"^Fatal Python error: .+|^\S*: symbol lookup error: .+|^terminate called after throwing .+")
_DIED = re.compile(r"(?:Worker|Engine core) proc \S+ died unexpectedly(?: \(exit code: -?\d+\))?")
_PYDANTIC_TAIL = re.compile(r"\s*\[type=.*?input_type=\w+\]|\s*For further information visit \S+")


class _Failure(NamedTuple):
    depth: int
    position: int
    text: str


def root_cause(text: str, returncode: int | None = None) -> str:
    """Return why a server did not start or died, in the engine's own words.

    A failure in a worker is reported again by the engine core and again by the API server; the first exception of the
    deepest process counts, and of a chain of exceptions in one traceback the last.

    Parameters
    ----------
    text : str
        The log.
    returncode : int or None
        The server's exit code as `subprocess.Popen` gives it (negative: a signal), told where the log names no cause.

    Returns
    -------
    str
        One line, such as ``"NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."``; several
        where there is nothing but the log's last lines.
    """
    lines = list(_lines(text))
    for line in lines:
        if not line.level and _USAGE.match(line.text):
            return neutral(line.text)
    failures = sorted(_failures(lines))
    own = [f for f in failures if not _WRAPPER.search(f.text) and not _ENDED_BY_US.match(f.text)]
    if own:
        return own[0].text
    for pattern in (_FATAL, _DIED):
        for line in lines:
            if match := pattern.search(line.text):
                return neutral(match[0])
    for line in lines:
        if line.level in ("ERROR", "CRITICAL") and line.text.strip() and not _reports(line):
            return neutral(line.text)
    if failures:
        return failures[0].text
    last = tail(text, 10)
    return f"the engine {_ending(returncode)} without naming a cause; " + (
        f"last log lines:\n{last}" if last else "its log is empty"
    )


def _reports(line: _Line) -> bool:
    """Whether an error line belongs to a traceback or only passes on another process's failure."""
    if line.text.startswith((_TRACEBACK, " ")):
        return True
    return bool(_WRAPPER.search(line.text) or _ENDED_BY_US.match(line.text))


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "stopped"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _depth(process: str) -> int:
    """Workers report to an engine core, and it to the API server."""
    if "worker" in process.lower():
        return 0
    return 1 if process.startswith("EngineCore") else 2


def _failures(lines: list[_Line]) -> Iterator[_Failure]:
    """Yield the exception that ends each traceback, of chained ones the last."""
    streams: dict[str, list[tuple[int, _Line]]] = {}
    for position, line in enumerate(lines):
        streams.setdefault(line.process, []).append((position, line))
    for process, stream in streams.items():
        pending: _Failure | None = None
        chained = False
        index = 0
        while index < len(stream):
            position, line = stream[index]
            index += 1
            chained = chained or line.text in _CHAINED
            # A warning with a traceback is something the engine lived with.
            if line.text != _TRACEBACK or line.level not in ("", "ERROR", "CRITICAL"):
                continue
            if pending and not chained:
                yield pending
                pending = None
            while index < len(stream) and _is_frame(stream[index][1], line):
                index += 1
            if index == len(stream):
                break
            message, index = _message(stream, index)
            if pending is None or not _WRAPPER.search(message):
                pending = _Failure(_depth(process), position, message)
            chained = False
        if pending:
            yield pending


def _is_frame(line: _Line, head: _Line) -> bool:
    return line.level == head.level and (line.text.startswith(" ") or not line.text)


def _message(stream: list[tuple[int, _Line]], index: int) -> tuple[str, int]:
    """Return the exception at ``index`` as one line, and the index behind its message (which may have several)."""
    first = stream[index][1]
    match = _EXCEPTION.match(first.text)
    parts = [f"{match['type'].rpartition('.')[2]}: {match['message'] or ''}" if match else first.text]
    index += 1
    while index < len(stream):
        line = stream[index][1]
        if (line.level, line.where) != (first.level, first.where) or not line.text.strip():
            break
        if line.text == _TRACEBACK or line.text in _CHAINED or (not first.level and _EXCEPTION.match(line.text)):
            break
        parts.append(line.text.strip())
        index += 1
    joined = _PYDANTIC_TAIL.sub("", " ".join(parts))
    return neutral(joined.rstrip(": ") if joined.endswith(": ") else joined), index
