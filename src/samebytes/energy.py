"""Energy, clocks and throttling over stretches of a pass, from its telemetry. Pure: the standard library alone.

Power is the whole card's, idle share included: nothing is subtracted. NVML's reading is itself a mean over the second
before it (from Ampere on, but for GA100), so that short requests share in what ran before them. A value whose samples
are missing is ``None``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from samebytes.record import Pass, Record, Request, TelemetrySample

MAX_GAP_S = 1.0
"""Samples farther apart than this leave what lies between unmeasured."""

THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap (software)",
    0x8: "slowdown (hardware)",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake (hardware)",
    0x100: "display clocks",
}
"""Bits of NVML's ``nvmlDeviceGetCurrentClocksThrottleReasons`` (``nvmlClocksThrottleReason*`` in ``nvml.h``)."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Return the names of the bits that are set; one without a name as a hexadecimal number."""
    known = tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)
    rest = bits & ~sum(THROTTLE_REASONS)
    return (*known, hex(rest)) if rest else known


def integral(points: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """Return the integral of a sampled quantity over time, by trapezoids.

    Parameters
    ----------
    points : sequence of (float, float)
        (seconds, value), ascending in time. The value runs straight from one to the next.
    start, end : float
        Seconds.

    Returns
    -------
    float or None
        In the value's unit times seconds; None where samples do not reach from ``start`` to ``end``, or lie more than
        `MAX_GAP_S` apart in between.
    """
    if not points or not points[0][0] <= start < end <= points[-1][0]:
        return None
    total = 0.0
    for (t0, v0), (t1, v1) in pairwise(points):
        a, b = max(t0, start), min(t1, end)
        if a < b:
            if t1 - t0 > MAX_GAP_S:
                return None
            middle = v0 + (v1 - v0) * ((a + b) / 2 - t0) / (t1 - t0)
            total += middle * (b - a)
    return total


@dataclass(frozen=True)
class Energy:
    """Several requests' energy, and the card's state while they ran.

    Attributes
    ----------
    measured, requests : int
        Requests whose power was measured from end to end, of how many answered.
    joules_per_token : float or None
        Sum of the energy over these requests, from send to finish, over the sum of their completion tokens.
    power_w, sm_clock_mhz, gpu_util : float or None
        Means over the same time; utilisation is the share of time in which a kernel ran.
    temperature_c : int or None
        Highest.
    throttle_reasons : tuple of str or None
        Every reason seen; empty: there was none. None: the card does not tell.
    """

    measured: int
    requests: int
    joules_per_token: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    gpu_util: float | None
    temperature_c: int | None
    throttle_reasons: tuple[str, ...] | None


@dataclass(frozen=True)
class Window:
    """A stretch of time in which so many tokens were generated, and the telemetry that covers it."""

    start_s: float
    end_s: float
    tokens: int
    requests: int
    telemetry: Sequence[TelemetrySample] | None


def over(windows: Iterable[Window]) -> Energy | None:
    """Sum energy over windows; None where none of them has telemetry."""
    found = list(windows)
    if not any(window.telemetry for window in found):
        return None
    powers = [(w, _integral(w, lambda sample: sample.power_w)) for w in found]
    measured = [(w, joules) for w, joules in powers if joules is not None]
    joules, tokens = sum(j for _, j in measured), sum(w.tokens for w, _ in measured)
    samples = [s for w in found for s in w.telemetry or () if w.start_s <= s.t_s <= w.end_s]
    bits = [s.throttle_reasons for s in samples if s.throttle_reasons is not None]
    return Energy(
        measured=sum(w.requests for w, _ in measured),
        requests=sum(w.requests for w in found),
        joules_per_token=joules / tokens if tokens else None,
        power_w=_mean(found, lambda sample: sample.power_w),
        sm_clock_mhz=_mean(found, lambda sample: sample.sm_clock_mhz),
        gpu_util=_mean(found, lambda sample: sample.gpu_util),
        temperature_c=max((s.temperature_c for s in samples if s.temperature_c is not None), default=None),
        throttle_reasons=throttle_reasons(_union(bits)) if bits else None,
    )


def _union(bits: Iterable[int]) -> int:
    seen = 0
    for each in bits:
        seen |= each
    return seen


def _integral(window: Window, value: Callable[[TelemetrySample], float | None]) -> float | None:
    points = [(s.t_s, v) for s in window.telemetry or () if (v := value(s)) is not None]
    return integral(points, window.start_s, window.end_s)


def _mean(windows: Iterable[Window], value: Callable[[TelemetrySample], float | None]) -> float | None:
    """Return the mean over the time of the windows that were measured."""
    known = [(found, w.end_s - w.start_s) for w in windows if (found := _integral(w, value)) is not None]
    return sum(found for found, _ in known) / sum(seconds for _, seconds in known) if known else None


def sequential(record: Record) -> dict[str, Window]:
    """Return the window of every answered sequential request, from send to finish, by prompt."""
    chosen = {id(request) for request in record.sequential()}
    return {
        request.id: _window([request], one)
        for one in record.passes
        for request in one.requests
        if id(request) in chosen and _timed(request)
    }


def concurrent(one: Pass) -> Window | None:
    """Return the window of a concurrent pass, first send to last finish; None where nothing was answered."""
    answered = [request for request in one.requests if _timed(request)]
    return _window(answered, one) if answered else None


def _timed(request: Request) -> bool:
    return request.status == "ok" and None not in (request.sent_s, request.finish_s, request.completion_tokens)


def _window(requests: Sequence[Request], one: Pass) -> Window:
    start, end = min(r.sent_s or 0.0 for r in requests), max(r.finish_s or 0.0 for r in requests)
    telemetry = one.telemetry
    if telemetry is not None:
        first = bisect_left(telemetry, start - MAX_GAP_S, key=lambda sample: sample.t_s)
        last = bisect_right(telemetry, end + MAX_GAP_S, key=lambda sample: sample.t_s)
        telemetry = telemetry[first:last]
    tokens = sum(r.completion_tokens or 0 for r in requests)
    return Window(start, end, tokens, len(requests), telemetry)
