"""Energy and clocks from hand-made telemetry."""

from __future__ import annotations

from typing import Any

import pytest

from recordfactory import a_pass, a_record, answer, failed, resumed
from samebytes import energy
from samebytes.energy import Window
from samebytes.record import TelemetrySample


def sample(t_s: float, power_w: float | None = 100.0, **values: Any) -> TelemetrySample:
    return TelemetrySample(t_s=t_s, power_w=power_w, **values)


def window(telemetry: list[TelemetrySample] | None, start: float = 0.0, end: float = 1.0, tokens: int = 10) -> Window:
    return Window(start, end, tokens, 1, telemetry)


def test_trapezoids_by_hand() -> None:
    points = [(0.0, 100.0), (1.0, 200.0), (2.0, 200.0)]
    assert energy.integral(points, 0.0, 2.0) == pytest.approx(150 + 200)
    # within one interval: the mean of its two ends, 125 and 175
    assert energy.integral(points, 0.25, 0.75) == pytest.approx(150 * 0.5)
    # across a sample: 175 for half a second, then 200 for a quarter
    assert energy.integral(points, 0.5, 1.25) == pytest.approx(175 * 0.5 + 200 * 0.25)


@pytest.mark.parametrize(
    ("points", "start", "end"),
    [
        ([], 0.0, 1.0),
        ([(0.0, 100.0)], 0.0, 1.0),
        ([(0.1, 100.0), (1.0, 100.0)], 0.0, 1.0),
        ([(0.0, 100.0), (0.9, 100.0)], 0.0, 1.0),
        ([(0.0, 100.0), (0.4, 100.0), (1.5, 100.0)], 0.0, 1.0),  # a hole
        ([(0.0, 100.0), (1.0, 100.0)], 0.5, 0.5),
    ],
)
def test_what_samples_do_not_cover_is_not_measured(points: list[tuple[float, float]], start: float, end: float) -> None:
    assert energy.integral(points, start, end) is None


def test_a_hole_elsewhere_does_not_matter() -> None:
    assert energy.integral([(0.0, 100.0), (5.0, 100.0), (6.0, 100.0)], 5.0, 6.0) == pytest.approx(100)


def test_sums_first_then_the_ratio() -> None:
    telemetry = [sample(0.0), sample(1.0), sample(1.5, 300.0), sample(2.5, 300.0)]
    found = energy.over([window(telemetry), window(telemetry, 1.5, 2.0, tokens=40)])
    assert found is not None
    assert found.joules_per_token == pytest.approx((100 + 150) / 50)
    assert found.power_w == pytest.approx(250 / 1.5)
    assert (found.measured, found.requests) == (2, 2)


def test_a_request_without_its_power_counts_on_neither_side() -> None:
    telemetry = [sample(0.0), sample(1.0), sample(1.1, None, temperature_c=70), sample(9.0, None)]
    found = energy.over([window(telemetry), window(telemetry, 1.05, 2.0, tokens=1000), window(None, tokens=1000)])
    assert found is not None
    assert (found.joules_per_token, found.measured, found.requests) == (pytest.approx(10), 1, 3)
    assert found.temperature_c == 70
    assert found.sm_clock_mhz is None
    assert found.throttle_reasons is None


def test_clocks_temperature_and_reasons_while_requests_ran() -> None:
    telemetry = [
        sample(0.0, sm_clock_mhz=1000, temperature_c=40, gpu_util=0.5, throttle_reasons=0),
        sample(0.5, sm_clock_mhz=2000, temperature_c=50, gpu_util=1.0, throttle_reasons=0x4),
        sample(1.0, sm_clock_mhz=1000, temperature_c=45, gpu_util=0.5, throttle_reasons=0x40),
        sample(1.5, sm_clock_mhz=1, temperature_c=99, gpu_util=0.0, throttle_reasons=0x1),
    ]
    found = energy.over([window(telemetry)])
    assert found is not None
    assert (found.sm_clock_mhz, found.gpu_util, found.temperature_c) == (pytest.approx(1500), pytest.approx(0.75), 50)
    assert found.throttle_reasons == ("power cap (software)", "thermal (hardware)")
    quiet = energy.over([window([sample(0.0, throttle_reasons=0), sample(1.0, throttle_reasons=0)])])
    assert quiet is not None
    assert quiet.throttle_reasons == ()


def test_an_unknown_reason_is_not_dropped() -> None:
    assert energy.throttle_reasons(0x1 | 0x8000) == ("idle", "0x8000")


def test_without_telemetry_there_is_nothing() -> None:
    assert energy.over([]) is None
    assert energy.over([window(None), window([])]) is None


def test_windows_of_a_record() -> None:
    found = a_record("baseline", replace={"rag/0": failed("rag/0")})
    windows = energy.sequential(found)
    assert list(windows) == [r.id for r in found.sequential() if r.status == "ok"]
    first = found.sequential()[1]
    assert (windows[first.id].start_s, windows[first.id].end_s) == (first.sent_s, first.finish_s)
    assert windows[first.id].tokens == first.completion_tokens


def test_each_pass_has_its_own_clock() -> None:
    found = resumed("baseline")
    ends = [r.finish_s or 0.0 for r in found.sequential()]
    found.passes[0].telemetry = [sample(0.0, 100.0), sample(ends[0] / 2, 100.0), sample(ends[0], 100.0)]
    found.passes[1].telemetry = [sample(t / 2, 200.0) for t in range(200)]
    each = [energy.over([w]) for w in energy.sequential(found).values()]
    powers = [e.power_w for e in each if e is not None]
    assert powers == [None, *[pytest.approx(200)] * 5]  # samples three seconds apart measure nothing


def test_only_telemetry_around_a_request_is_kept() -> None:
    found = a_record("baseline")
    found.passes[0].telemetry = [sample(t / 10) for t in range(1000)]
    request = found.sequential()[2]
    kept = energy.sequential(found)[request.id].telemetry
    assert kept is not None
    assert request.sent_s is not None
    assert request.finish_s is not None
    assert kept[0].t_s == pytest.approx(request.sent_s - energy.MAX_GAP_S, abs=0.11)
    assert kept[-1].t_s == pytest.approx(request.finish_s + energy.MAX_GAP_S, abs=0.11)


def test_a_concurrent_pass_is_one_window() -> None:
    leg = a_pass([answer("rag/0", at=1.0), answer("rag/1", at=2.0), failed("rag/0")], kind="concurrent")
    leg.telemetry = [sample(float(t)) for t in range(12)]
    found = energy.concurrent(leg)
    assert found is not None
    last = leg.requests[1].finish_s
    assert last is not None
    assert (found.start_s, found.end_s, found.tokens, found.requests) == (1.0, last, 128, 2)
    summed = energy.over([found])
    assert summed is not None
    assert summed.joules_per_token == pytest.approx(100 * (last - 1.0) / 128)
    assert energy.concurrent(a_pass([failed("rag/0")], kind="concurrent")) is None
