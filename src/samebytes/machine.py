"""Facts of the machine, and what else was running on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import samebytes
from samebytes import paths, telemetry
from samebytes.engine import Engine
from samebytes.errors import UsageError
from samebytes.record import HostLoad, MachineInfo, Versions

ISA = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile", "asimd", "sve", "bf16")
COMMIT = "SAMEBYTES_COMMIT"


def info() -> MachineInfo:
    """Return what this machine is; the GPU's fields are None where there is none."""
    model, flags = _cpuinfo()
    gpu = telemetry.gpu()
    return MachineInfo(
        gpu=gpu.name if gpu else None,
        gpu_count=gpu.count if gpu else None,
        gpu_memory_bytes=gpu.memory_bytes if gpu else None,
        driver=gpu.driver if gpu else None,
        cpu=model,
        cpu_cores=os.cpu_count(),
        cpu_isa=[name for name in ISA if name in flags],
        memory_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()}",
    )


def _cpuinfo() -> tuple[str | None, set[str]]:
    model, flags = None, set[str]()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None, flags
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and model is None:
            model = value.strip()
        elif key.strip() in ("flags", "Features") and not flags:
            flags = set(value.split())
    return model, flags


def versions(engine: Engine | None, served_version: str | None) -> Versions:
    """Return the versions of everything in the measuring path.

    Parameters
    ----------
    engine : Engine or None
        None for a running server; its Python and torch are not ours to ask then.
    served_version : str or None
        What the server says of itself; wins over the installed package's version.
    """
    commit, dirty = git()
    return Versions(
        vllm=served_version or (engine.vllm if engine else None),
        torch=engine.torch if engine else None,
        python=engine.python_version if engine else None,
        samebytes=samebytes.__version__,
        git_commit=commit,
        git_dirty=dirty,
        client_python=platform.python_version(),
        openai=importlib.metadata.version("openai"),
    )


def git() -> tuple[str | None, bool | None]:
    """Return the project's commit and whether the code differs from it.

    Records and the book's build do not count as a difference: they are what a run writes. ``SAMEBYTES_COMMIT`` stands
    in for a copy of the tree that travels without its ``.git``.
    """
    root = paths.root()
    code = ["src", "bench", "configs", "studies", "workloads", "notebooks"]
    if (root / ".git").exists() and shutil.which("git"):
        try:
            head = _git(root, "rev-parse", "HEAD")
            return head, bool(_git(root, "status", "--porcelain", "--", *code))
        except subprocess.CalledProcessError:
            return None, None
    return os.environ.get(COMMIT) or None, None


def _git(root: Path, *argv: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *argv], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check_room(results: Path, weight_bytes: int | None, *, kv_bytes: int, needs_gpu: bool) -> None:
    """Stop before any model loads where disk or memory cannot suffice.

    Parameters
    ----------
    results : Path
        Folder that records go to.
    weight_bytes : int or None
        Size of the weights; None where it is not known before the download.
    kv_bytes : int
        Room for the KV cache that was asked for in bytes (CPU engine), else 0.
    needs_gpu : bool
        Whether the weights go to a GPU.

    Raises
    ------
    UsageError
        Naming what there is and what is needed.
    """
    folder = next(p for p in [results, *results.parents] if p.exists())
    free_disk = shutil.disk_usage(folder).free
    if free_disk < 200 * 2**20:
        raise UsageError(f"only {free_disk / 2**20:.0f} MiB of disk free at {folder}; a run needs 200 MiB")
    if weight_bytes is None:
        return
    if needs_gpu:
        free = telemetry.free_memory()
        where = "GPU memory"
    else:
        free = psutil.virtual_memory().available
        where = "memory"
    need = int(weight_bytes * 1.1) + kv_bytes
    if free is not None and free < need:
        raise UsageError(
            f"only {free / 2**30:.1f} GiB of {where} free; weights and KV cache need {need / 2**30:.1f} GiB"
        )


@dataclass
class HostMeter:
    """CPU time on the host between two moments, split into ours and foreign.

    Parameters
    ----------
    pids : list of int
        Roots of our own process trees: their children count as ours too.
    """

    pids: list[int]
    _wall: float = field(init=False)
    _busy: float = field(init=False)
    _steal: float = field(init=False)
    _total: float = field(init=False)
    _ours: dict[int, float] = field(init=False)

    def __post_init__(self) -> None:
        self._wall = time.monotonic()
        self._busy, self._steal, self._total = _host_times()
        self._ours = self._own_times()

    def _own_times(self) -> dict[int, float]:
        times: dict[int, float] = {}
        for pid in self.pids:
            try:
                root = psutil.Process(pid)
                for process in [root, *root.children(recursive=True)]:
                    used = process.cpu_times()
                    times[process.pid] = used.user + used.system
            except psutil.NoSuchProcess:
                continue
        return times

    def read(self) -> HostLoad:
        """Return the load since the start: foreign cores in use, and the share of CPU time that was stolen."""
        wall = time.monotonic() - self._wall
        busy, steal, total = _host_times()
        own = sum(used - self._ours.get(pid, 0.0) for pid, used in self._own_times().items())
        if wall <= 0 or total <= self._total:
            return HostLoad()
        return HostLoad(
            load=round(max(0.0, (busy - self._busy) - own) / wall, 4),
            steal=round((steal - self._steal) / (total - self._total), 4),
        )


def _host_times() -> tuple[float, float, float]:
    """Return busy, stolen and total CPU seconds of the host since boot."""
    times = psutil.cpu_times()
    steal = getattr(times, "steal", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    # guest time is already counted in user time
    total = times.user + times.nice + times.system + idle + getattr(times, "irq", 0) + getattr(times, "softirq", 0)
    return total - idle, steal, total + steal
