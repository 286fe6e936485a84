"""GPU telemetry through NVML. Everything here is None where there is no NVIDIA GPU."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from samebytes.record import TelemetrySample

HZ = 10.0


@dataclass(frozen=True)
class Gpu:
    """The GPU that serves: the first one visible."""

    name: str
    count: int
    memory_bytes: int
    driver: str


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Yield the initialised NVML module, or None where it is missing or has no device."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml if nvml.nvmlDeviceGetCount() > 0 else None
    finally:
        nvml.nvmlShutdown()


def gpu() -> Gpu | None:
    """Return the first GPU, or None."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        return Gpu(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            count=nvml.nvmlDeviceGetCount(),
            memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
        )


def free_memory() -> int | None:
    """Return the free memory of the first GPU in bytes, or None."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).free)


def memory_watch(slack_bytes: int = 512 * 2**20) -> Callable[[], bool] | None:
    """Return a check that the first GPU's memory is as free as now, to within ``slack_bytes``; None without a GPU."""
    before = free_memory()
    if before is None:
        return None
    return lambda: (free_memory() or 0) >= before - slack_bytes


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Sampler:
    """Samples the first GPU ten times a second in a thread of its own.

    Use as a context manager; `samples` is None where there is no GPU. A quantity that the card does not report is
    None in its sample.
    """

    def __init__(self, start_mono: float, hz: float = HZ) -> None:
        self.samples: list[TelemetrySample] | None = None
        self._start = start_mono
        self._period = 1.0 / hz
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        with _nvml() as nvml:
            if nvml is None:
                return
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            self.samples = []
            due = time.monotonic()
            while not self._stop.is_set():
                self.samples.append(_sample(nvml, handle, time.monotonic() - self._start))
                due = max(due + self._period, time.monotonic())
                self._stop.wait(due - time.monotonic())


def _sample(nvml: Any, handle: Any, t_s: float) -> TelemetrySample:
    def ask(call: str, *args: Any) -> Any:
        try:
            return getattr(nvml, call)(handle, *args)
        except (nvml.NVMLError, AttributeError):
            return None

    power = ask("nvmlDeviceGetPowerUsage")
    utilisation = ask("nvmlDeviceGetUtilizationRates")
    memory = ask("nvmlDeviceGetMemoryInfo")
    return TelemetrySample(
        t_s=round(t_s, 4),
        power_w=None if power is None else power / 1000.0,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        mem_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        gpu_util=None if utilisation is None else utilisation.gpu / 100.0,
        mem_used_bytes=None if memory is None else memory.used,
        throttle_reasons=ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )
