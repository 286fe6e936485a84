"""Facts of the machine, foreign load, room for a run, and GPU telemetry (NVML's interface, where there is no GPU)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import samebytes
from samebytes import engine, machine, telemetry
from samebytes.errors import UsageError

GIB = 2**30


@contextmanager
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process that uses one core, or what it can get of it."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            time.sleep(0.2)
            yield process
        finally:
            process.kill()


def test_facts_of_this_machine() -> None:
    found = machine.info()
    assert found.cpu
    assert found.cpu_cores == os.cpu_count()
    assert (found.memory_bytes or 0) > GIB
    assert (found.os or "").startswith("Linux ")
    flags = Path("/proc/cpuinfo").read_text()
    assert found.cpu_isa == [name for name in machine.ISA if f" {name} " in flags]


def test_another_process_is_foreign_load_and_our_own_is_not() -> None:
    with busy() as process:
        began = time.process_time()
        foreign, ours = machine.HostMeter([os.getpid()]), machine.HostMeter([os.getpid(), process.pid])
        # Our own child by descent; read it as foreign through a meter that knows no process of ours at all.
        strangers = machine.HostMeter([])
        time.sleep(1.5)
        loads = [meter.read() for meter in (foreign, ours, strangers)]
        used = time.process_time() - began
    assert used < 1
    as_child, as_root, as_stranger = (load.load or 0.0 for load in loads)
    # The child of a root is ours without being named; a busy machine may give it less than a whole core.
    assert as_stranger - as_child > 0.1
    assert as_child == pytest.approx(as_root, abs=0.15)
    for load in loads:
        assert 0 <= (load.steal or 0.0) <= 1


def test_a_process_that_ended_meanwhile_is_no_trouble() -> None:
    with busy() as process:
        meter = machine.HostMeter([process.pid])
    time.sleep(0.3)
    assert meter.read().load is not None


# -- room --------------------------------------------------------------------------------------------------------------


def test_memory_is_weights_and_cache(tmp_path: Path) -> None:
    machine.check_room(tmp_path / "not" / "yet", GIB // 8, kv_bytes=GIB // 8, needs_gpu=False)
    machine.check_room(tmp_path, None, kv_bytes=10**15, needs_gpu=False)
    for weights, cache in ((10**13, 0), (1, 10**13)):
        with pytest.raises(UsageError, match=r"only [\d.]+ GiB of memory free; weights and KV cache need [\d.]+ GiB"):
            machine.check_room(tmp_path, weights, kv_bytes=cache, needs_gpu=False)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = types.SimpleNamespace(free=5 * 2**20)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UsageError, match="only 5 MiB of disk free"):
        machine.check_room(tmp_path, None, kv_bytes=0, needs_gpu=False)


# -- versions ----------------------------------------------------------------------------------------------------------


def git(folder: Path, *argv: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *argv], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder without version control."""
    for name in ("configs", "studies", "workloads", "src", "results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("1\n")
    (tmp_path / "_config.yml").write_text("title: t\n")
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    monkeypatch.delenv("SAMEBYTES_COMMIT", raising=False)
    return tmp_path


def test_the_commit_and_whether_the_code_differs(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.git() == (None, None)
    monkeypatch.setenv("SAMEBYTES_COMMIT", "abc")
    assert machine.git() == ("abc", None)
    git(clone, "init", "-q")
    assert machine.git() == (None, None)
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "first")
    head, dirty = machine.git()
    assert len(head or "") == 40
    assert dirty is False
    (clone / "results" / "file").write_text("2\n")
    assert machine.git() == (head, False)
    (clone / "configs" / "new.yaml").write_text("why: w\n")
    assert machine.git() == (head, True)


def test_versions_of_a_running_server_are_only_what_it_says() -> None:
    found = machine.versions(None, "0.20.0")
    assert (found.vllm, found.torch, found.python) == ("0.20.0", None, None)
    assert found.samebytes == samebytes.__version__
    ours = engine.Engine("python", ("python",), True, "a test", "3.12.1", "0.20.0", "2.11.0+cu130")
    found = machine.versions(ours, None)
    assert (found.vllm, found.torch, found.python) == ("0.20.0", "2.11.0+cu130", "3.12.1")


# -- telemetry ---------------------------------------------------------------------------------------------------------


class NVMLError(Exception):
    """As pynvml's."""


def nvml(count: int = 1) -> types.ModuleType:
    """Return a module with pynvml's interface: one H200 whose clocks are not to be read."""
    module = types.ModuleType("pynvml")

    def refuse(*_: object) -> None:
        raise NVMLError("Not Supported")

    memory = types.SimpleNamespace(total=139 * GIB, used=9 * GIB, free=130 * GIB)
    functions = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetMemoryInfo": lambda _: memory,
        "nvmlDeviceGetPowerUsage": lambda _: 123_456,
        "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=55),
        "nvmlDeviceGetTemperature": lambda *_: 41,
        "nvmlDeviceGetClockInfo": refuse,
    }
    for name, value in functions.items():
        setattr(module, name, value)
    module.memory = memory  # type: ignore[attr-defined]
    return module


def test_a_gpu_is_sampled_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert telemetry.gpu() == telemetry.Gpu("NVIDIA H200", 1, 139 * GIB, "580.1")
    assert machine.info().gpu == "NVIDIA H200"
    with telemetry.Sampler(time.monotonic()) as sampler:
        time.sleep(1.0)
    samples = sampler.samples or []
    assert 6 <= len(samples) <= 11
    assert [s.t_s for s in samples] == sorted(s.t_s for s in samples)
    assert samples[0].t_s < 0.5
    assert samples[-1].t_s > 0.7
    first = samples[0]
    assert (first.power_w, first.gpu_util, first.temperature_c, first.mem_used_bytes) == (123.456, 0.55, 41, 9 * GIB)
    # what the card refuses, and what this library does not even have
    assert (first.sm_clock_mhz, first.mem_clock_mhz, first.throttle_reasons) == (None, None, None)


def test_memory_counts_as_back_within_half_a_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    is_back = telemetry.memory_watch()
    assert is_back is not None
    assert is_back()
    fake.memory.free -= 2 * GIB
    assert not is_back()
    fake.memory.free += 2 * GIB - 400 * 2**20
    assert is_back()


@pytest.mark.parametrize("module", [None, nvml(count=0)], ids=["no NVML", "no device"])
def test_without_a_gpu_everything_is_none(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert telemetry.gpu() is None
    assert telemetry.free_memory() is None
    assert telemetry.memory_watch() is None
    with telemetry.Sampler(time.monotonic()) as sampler:
        time.sleep(0.05)
    assert sampler.samples is None
