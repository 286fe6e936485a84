"""A decode step from a profiler's trace, on traces made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from samebytes import trace
from samebytes.errors import EngineError
from samebytes.trace import Span

STEP = "execute_context_0(0)_generation_1(1)"


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}


def on_gpu(steps: int = 12, lag: float = 300.0) -> list[dict[str, Any]]:
    """Return steps of 1 ms in which the GPU works 600 us, its work ``lag`` behind the host's."""
    found = [event("user_annotation", "execute_context_1(20)_generation_0(0)", -5000, 4000)]
    for i in range(steps):
        at = 1000.0 * i
        found += [
            event("user_annotation", STEP, at, 200),
            event("cpu_op", "aten::launch", at, 100),
            event("kernel", "gemm", at + lag, 400),
            event("kernel", "gemm", at + lag + 400, 100),
            event("kernel", "attention", at + lag + 450, 150),  # beside the second gemm for 50 us
            event("gpu_memcpy", "Memcpy DtoH", at + lag + 600, 0),
        ]
    return found


def test_a_step_on_a_gpu() -> None:
    found = trace.steps(on_gpu(), tokens=13)
    assert (found.count, found.device) == (7, "gpu")
    assert found.step_s == pytest.approx(0.001)
    assert found.busy == pytest.approx(0.6)
    by_name = {work.name: work for work in found.work}
    assert list(by_name)[:2] == ["gemm", "attention"]
    assert (by_name["gemm"].calls, by_name["attention"].calls) == (2, 1)
    assert by_name["gemm"].seconds == pytest.approx(0.0005)
    assert by_name["attention"].seconds == pytest.approx(0.00015)


@pytest.mark.parametrize("lag", [0.0, 700.0, 1500.0])
def test_how_far_the_host_runs_ahead_changes_nothing(lag: float) -> None:
    found = trace.steps(on_gpu(lag=lag), tokens=13)
    assert found.busy == pytest.approx(0.6)
    assert sum(work.seconds for work in found.work) == pytest.approx(0.00065)


def on_cpu(tokens: int) -> list[dict[str, Any]]:
    """Return steps of 1 ms on a CPU: a linear that calls a product, a sampling, and another thread."""
    found = []
    for i in range(tokens):
        at = 1000.0 * i
        found += [
            event("cpu_op", "linear", at, 700),
            event("cpu_op", "mm", at + 100, 500),
            event("cpu_op", "linear", at + 700, 100),
            event("cpu_op", "argmax", at + 800, 50),
            event("cpu_op", "elsewhere", at, 1, tid=2),
        ]
    return found


def test_a_step_on_a_cpu_is_told_by_what_happens_once_a_token() -> None:
    found = trace.steps(on_cpu(10), tokens=10)
    assert (found.count, found.device) == (5, "cpu")
    assert found.step_s == pytest.approx(0.001)
    assert found.busy == pytest.approx(0.85)
    by_name = {work.name: work for work in found.work}
    assert set(by_name) == {"mm", "linear", "argmax"}
    assert by_name["mm"].seconds == pytest.approx(0.0005)
    assert by_name["linear"].seconds == pytest.approx(0.0003)
    assert by_name["linear"].calls == 2


@pytest.mark.parametrize(("events", "count"), [([], 0), (on_gpu(5), 5), (on_cpu(10), 0)])
def test_a_trace_without_steps_is_refused(events: list[dict[str, Any]], count: int) -> None:
    with pytest.raises(EngineError, match=f"holds {count} decode steps"):
        trace.steps(events, tokens=99)


def test_own_time_of_nested_calls() -> None:
    calls = [Span(0, 10, "a"), Span(0, 4, "b"), Span(4, 4, "empty"), Span(6, 8, "b"), Span(12, 13, "c")]
    found = trace.own(calls)
    assert found == [Span(0, 4, "b"), Span(4, 6, "a"), Span(6, 8, "b"), Span(8, 10, "a"), Span(12, 13, "c")]
    assert sum(s.end - s.start for s in found) == trace.covered(calls) == 11
