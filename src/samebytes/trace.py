"""What a trace of the engine's profiler says about a decode step: how long it takes, and what runs in it.

A trace is a list of events in Chrome's format, times in microseconds. In a steady row of decode steps the time between
the starts of two of them holds one step's work, whichever step it belongs to (the host runs ahead of the device); so
sums over such a window, divided by its steps, are a step's. Standard library only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from samebytes.errors import EngineError

DECODE = re.compile(r"^execute_context_0\(0\)_generation_\d+\(\d+\)$")
"""Name of the range that vLLM puts around a step that only decodes."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what runs on a GPU."""
EDGE = 2
"""Steps left out at each end: the first follows a prompt, the last is cut off."""


class Span(NamedTuple):
    """Something that ran, in microseconds."""

    start: float
    end: float
    name: str


@dataclass(frozen=True)
class Work:
    """What ran under one name, per step.

    Attributes
    ----------
    calls : float
        How often.
    seconds : float
        Time in it; on a CPU without the time of what it called.
    """

    name: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Steps:
    """A window of decode steps.

    Attributes
    ----------
    count : int
        Steps in the window.
    step_s : float
        Seconds from one step's start to the next one's.
    device : str
        ``"gpu"``, or ``"cpu"`` where the trace has no GPU work.
    busy : float
        Share of the window in which anything ran.
    work : tuple of Work
        By name, the longest first.
    """

    count: int
    step_s: float
    device: str
    busy: float
    work: tuple[Work, ...]


def steps(events: Sequence[Mapping[str, Any]], tokens: int) -> Steps:
    """Sum up the decode steps of one request.

    Parameters
    ----------
    events : sequence of mapping
        ``traceEvents`` of the file.
    tokens : int
        Tokens of the request: what happens once a token tells the steps apart where the engine does not name them.

    Raises
    ------
    EngineError
        Where the trace has too few steps.
    """
    complete = [event for event in events if event.get("ph") == "X"]
    marks = sorted(e["ts"] for e in complete if e.get("cat") == "user_annotation" and DECODE.match(e["name"]))
    calls = ran = sorted(_span(e) for e in complete if e.get("cat") in DEVICE)
    device = "gpu" if ran else "cpu"
    if not ran:
        calls = _busiest_thread(complete)
        ran = own(calls)
    marks = marks or _once_a_token(calls, tokens)
    if len(marks) < 2 * EDGE + 2:
        raise EngineError(f"the profiler's trace holds {len(marks)} decode steps, too few to sum up")
    start, end = marks[EDGE], marks[-1 - EDGE]
    count = len(marks) - 2 * EDGE - 1
    inside = [Span(max(s.start, start), min(s.end, end), s.name) for s in ran if s.end > start and s.start < end]
    seconds: dict[str, float] = {}
    for span in inside:
        seconds[span.name] = seconds.get(span.name, 0.0) + (span.end - span.start) / 1e6
    often = Counter(s.name for s in calls if start <= s.start < end)
    work = [Work(name, often[name] / count, total / count) for name, total in seconds.items()]
    work.sort(key=lambda w: -w.seconds)
    return Steps(count, (end - start) / 1e6 / count, device, covered(inside) / (end - start), tuple(work))


def _span(event: Mapping[str, Any]) -> Span:
    return Span(event["ts"], event["ts"] + event["dur"], event["name"])


def covered(spans: Iterable[Span]) -> float:
    """Return the time in which any of several spans ran.

    >>> covered([Span(0, 4, "a"), Span(2, 6, "b"), Span(8, 9, "a")])
    7.0
    """
    total, until = 0.0, float("-inf")
    for start, end, _ in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def own(calls: Iterable[Span]) -> list[Span]:
    """Cut the calls of one thread to the times in which nothing that they called ran.

    >>> own([Span(0, 10, "outer"), Span(2, 5, "inner")])
    [Span(start=0, end=2, name='outer'), Span(start=2, end=5, name='inner'), Span(start=5, end=10, name='outer')]
    """
    found: list[Span] = []
    stack: list[Span] = []
    at = 0.0

    def until(end: float) -> None:
        nonlocal at
        if stack and end > at:
            found.append(Span(at, end, stack[-1].name))
        at = end

    for call in sorted(calls, key=lambda s: (s.start, -s.end)):
        while stack and stack[-1].end <= call.start:
            until(stack[-1].end)
            stack.pop()
        until(call.start)
        stack.append(call)
    while stack:
        until(stack[-1].end)
        stack.pop()
    return found


def _busiest_thread(events: Iterable[Mapping[str, Any]]) -> list[Span]:
    """Return the operations of the thread that ran most of them."""
    threads: dict[tuple[Any, Any], list[Span]] = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            threads.setdefault((event.get("pid"), event.get("tid")), []).append(_span(event))
    return max(threads.values(), key=len, default=[])


def _once_a_token(calls: Sequence[Span], tokens: int) -> list[float]:
    """Return the starts of the operation that ran once a token and longest, empty where none did."""
    often = Counter(call.name for call in calls)
    seconds: dict[str, float] = {}
    for call in calls:
        if often[call.name] == tokens:
            seconds[call.name] = seconds.get(call.name, 0.0) + call.end - call.start
    name = max(seconds, key=lambda key: seconds[key], default=None)
    return sorted(call.start for call in calls if call.name == name)
