"""What a decode step of a config takes, and why: step times by rows in flight, a profiler's trace, copy bandwidth.

One server start apart from the study's runs, for a profiled step is slower than one that is not: the step times are
taken before the profiler is started, the trace after. The result is ``results/STUDY/profiles/CONFIG.json``.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from samebytes import engine, httpget, machine, metrics, model, paths, server, serverlog, settings, trace, workloads
from samebytes.client import Client, Endpoint, RequestSpec
from samebytes.errors import EngineError, RecordError, UsageError
from samebytes.record import (
    ConfigInfo,
    HostLoad,
    Launch,
    MachineInfo,
    ModelInfo,
    Part,
    Versions,
    read_json,
    validated,
    write_atomic,
)
from samebytes.run import check_machine, describe, identity
from samebytes.stream import to_request

SCHEMA = 1
ROWS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Requests in flight: up to six rows are what a draft of five tokens makes of one."""
ROUNDS = 2
TOKENS = 96
"""Tokens of each request; all of them, whatever the model would like."""
TRACED_TOKENS = 40
KEPT = 40
"""Names of kernels that are kept, the longest first."""
NAME_LIMIT = 160
STOP_TIMEOUT_S = 240.0
"""Seconds that the engine gets to write its trace."""

Say = Callable[[str], None]


class RowTime(Part):
    """Step time at so many rows in flight."""

    rows: int
    step_s: list[float]
    """Per round: seconds a token of one request, the median over the requests."""


class KernelTime(Part):
    """What ran under one name in a decode step."""

    name: str
    calls: float
    """Per step."""
    seconds: float
    """Per step; on a CPU without what it called."""


class Trace(Part):
    """Decode steps of one request under the profiler."""

    steps: int
    step_s: float
    device: str
    busy: float
    """Share of a step in which anything ran on the device."""
    kernels: list[KernelTime]
    others_s: float
    """Seconds a step in kernels of other names."""

    @property
    def busy_s(self) -> float:
        """Seconds of a step in which anything ran on the device."""
        return self.busy * self.step_s


class Copy(Part):
    """Bandwidth of the memory that holds the weights, measured with torch."""

    device: str
    buffer_bytes: int
    copy_bytes_per_s: float
    """Bytes read and bytes written per second by a copy from one buffer to another."""
    read_bytes_per_s: float
    """Bytes read per second by a sum over a buffer."""


class Profile(Part):
    """One config's decode step."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    study: str
    note: str | None = None
    config: ConfigInfo
    model: ModelInfo
    machine: MachineInfo
    versions: Versions
    launch: Launch | None = None
    tokens: int = TOKENS
    rows: list[RowTime] = Field(default_factory=list)
    host: HostLoad = Field(default_factory=HostLoad)
    """Foreign load while the step times were taken."""
    trace: Trace | None = None
    copy_: Copy | None = Field(default=None, alias="copy")
    missing: dict[str, str] = Field(default_factory=dict)
    """Part to the reason why it is null."""

    def step_s(self) -> dict[int, float]:
        """Return the step time by rows, the median over the rounds."""
        return {found.rows: statistics.median(found.step_s) for found in self.rows}


def path_of(folder: Path, config: str) -> Path:
    """Return where a study's profile of a config lies."""
    return folder / "profiles" / f"{config}.json"


def load(path: Path) -> Profile:
    """Read a profile.

    Raises
    ------
    RecordError
        Where the file is missing, not JSON or no profile of this schema.
    """
    data = read_json(path, "profile")
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise RecordError(f"{path} has profile schema {schema!r}; this version reads {SCHEMA}")
    return validated(path, data, Profile, "profile")


def of_study(folder: Path) -> dict[str, Profile]:
    """Return a study's profiles by config, in the order of their names."""
    return {path.stem: load(path) for path in sorted((folder / "profiles").glob("*.json"))}


def measure(study: str, config: str, results_dir: Path | None = None, say: Say = print) -> Path:
    """Profile one config of a study and return the file that was written.

    The file is written after each part, so that what was measured is kept where a later part fails.

    Raises
    ------
    UsageError
        Before anything starts: an unknown name, a config that speculates, a machine that cannot run the study.
    EngineError
        Where the server does not start or a request fails.
    """
    given = {"study": study, "config": config, **({"results_dir": str(results_dir)} if results_dir else {})}
    plan = settings.plan(given)
    if "speculative-config" in plan.flags:
        raise UsageError(f"config {config!r} speculates: a profile is of plain decode steps")
    found = engine.resolve()
    resolved = model.resolve(plan.model)
    here, versions, info = machine.info(), machine.versions(found, None), identity(resolved)
    check_machine(plan, here, versions, info)
    port, name = server.free_port(), f"samebytes-{secrets.token_hex(4)}"
    path = path_of(plan.results_dir / plan.study.name, config)
    with tempfile.TemporaryDirectory(prefix="samebytes-trace-") as traces:
        flags = {**plan.flags, "profiler-config": _profiler(traces)}
        ours = ["--host", server.HOST, "--port", str(port), "--served-model-name", name]
        argv = found.argv(resolved.path_or_id, [*settings.arguments(flags), *ours])
        profile = Profile(
            study=plan.study.name,
            note=plan.study.note,
            config=ConfigInfo(
                name=config,
                why=plan.config.why,
                argv=[paths.neutral(word).replace(traces, "TRACES") for word in argv],
                env=plan.env,
            ),
            model=info,
            machine=here,
            versions=versions,
        )
        say(f"measuring copy bandwidth with {found.python}")
        _try(profile, "copy", lambda: _copy(profile, found.python))
        log = plan.results_dir / plan.study.name / "logs" / f"profile-{config}.log"
        spec = server.ServerSpec(argv=argv, env=plan.env, port=port, served_model_name=name, log_path=log)
        say(f"starting vLLM {versions.vllm} with config {config!r} (log: {log})")
        with server.serve(spec, ready_timeout_s=plan.study.ready_timeout_s) as running:
            say("  ready")
            profile.launch = _launch(running)
            endpoint = Endpoint(base_url=running.base_url, model=name)
            with Client(endpoint, timeout_s=plan.study.request_timeout_s) as client:
                host = machine.HostMeter([*running.pids(), os.getpid()])
                _rows(profile, client, path, say)
                profile.host = host.read()
                say("profiling one request")
                _try(profile, "trace", lambda: _trace(profile, client, running.base_url, Path(traces)))
        _save(profile, path)
    return path


def _save(profile: Profile, path: Path) -> None:
    write_atomic(path, json.dumps(profile.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False) + "\n")


def _try(profile: Profile, part: str, measure: Callable[[], None]) -> None:
    """Measure a part without which the others are still worth keeping."""
    try:
        measure()
    except (EngineError, OSError, ValueError, subprocess.SubprocessError) as error:
        profile.missing[part] = paths.neutral(str(error))[:500]


def _profiler(folder: str) -> dict[str, Any]:
    return {
        "profiler": "torch",
        "torch_profiler_dir": folder,
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }


def _launch(running: server.Server) -> Launch:
    assert running.started is not None
    assert running.started_mono is not None
    launch = Launch(
        started_by="samebytes",
        served_model_name=running.served_model_name,
        base_url=running.base_url,
        started=running.started,
        started_mono=running.started_mono,
        ready=running.ready,
        ready_mono=running.ready_mono,
        log_excerpt=[paths.neutral(line) for line in serverlog.excerpt(running.log())],
    )
    describe(launch, serverlog.facts(running.log()), metrics.fetch(running.base_url))
    return launch


def _request(tokens: int) -> RequestSpec:
    prompt = workloads.warmup(paths.workloads())[0]
    return RequestSpec(
        prompt.id, prompt.workload, [{"role": "user", "content": prompt.text}], tokens, extra_body={"ignore_eos": True}
    )


def _send(client: Client, rows: int, tokens: int) -> list[float]:
    """Send equal requests at once and return the seconds a token of each."""
    batch = client.send([_request(tokens)] * rows, concurrency=rows)
    rates = [to_request(result, 0.0).decode_tok_s for result in batch.results]
    failed = next((result.error or result.status for result in batch.results if result.status != "ok"), None)
    if failed is not None:
        raise EngineError(f"a request of the profile failed: {failed}")
    return [1 / rate for rate in rates if rate]


def _rows(profile: Profile, client: Client, path: Path, say: Say) -> None:
    prompt = workloads.warmup(paths.workloads())[0]
    client.negotiate([{"role": "user", "content": prompt.text}], max_tokens=TOKENS)
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    _send(client, max(ROWS), TOKENS // 3)
    for _ in range(ROUNDS):
        for rows in ROWS:
            seconds = _send(client, rows, TOKENS)
            if seconds:
                times[rows].append(statistics.median(seconds))
        profile.rows = [RowTime(rows=rows, step_s=found) for rows, found in times.items() if found]
        _save(profile, path)
    say("  ms a step: " + ", ".join(f"{rows} rows {1000 * s:.2f}" for rows, s in profile.step_s().items()))


def _trace(profile: Profile, client: Client, base_url: str, folder: Path) -> None:
    _post(f"{base_url}/start_profile")
    _send(client, 1, TRACED_TOKENS)
    _post(f"{base_url}/stop_profile")
    found = trace.steps(_events(folder), TRACED_TOKENS)
    kept = found.work[:KEPT]
    profile.trace = Trace(
        steps=found.count,
        step_s=found.step_s,
        device=found.device,
        busy=found.busy,
        kernels=[KernelTime(name=w.name[:NAME_LIMIT], calls=w.calls, seconds=w.seconds) for w in kept],
        others_s=sum(w.seconds for w in found.work[KEPT:]),
    )


def _post(url: str) -> None:
    answer = httpget.ask("POST", url, timeout=STOP_TIMEOUT_S)
    if answer.status != 200:
        raise EngineError(f"{url} answered {answer.status}: {answer.body[:200]}")


def _events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of the worker's trace; it may still be on its way to the disk."""
    deadline = time.monotonic() + 30
    while not (files := sorted(folder.glob("**/*.pt.trace.json*"))):
        if time.monotonic() > deadline:
            raise EngineError("the profiler left no trace")
        time.sleep(0.5)
    largest = max(files, key=lambda file: file.stat().st_size)
    raw = largest.read_bytes()
    text = gzip.decompress(raw) if largest.suffix == ".gz" else raw
    return list(json.loads(text)["traceEvents"])


_COPY = """
import json, time, torch
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
size = 2**31 if gpu else 2**28
a = torch.ones(size // 4, dtype=torch.float32, device=device)
b = torch.empty_like(a)
def best(work, repeats):
    found = []
    for _ in range(repeats):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(4):
            work()
        if gpu:
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / 4)
    return min(found[1:])
name = torch.cuda.get_device_name() if gpu else "cpu"
copy, read = best(lambda: b.copy_(a), 8), best(lambda: a.sum(), 8)
print(json.dumps({"device": name, "buffer_bytes": size, "copy_bytes_per_s": 2 * size / copy,
                  "read_bytes_per_s": size / read}))
"""


def _copy(profile: Profile, python: str) -> None:
    done = subprocess.run(
        [python, "-c", _COPY], capture_output=True, text=True, timeout=180, check=False, env={**os.environ}
    )
    if done.returncode != 0:
        raise EngineError((done.stderr.strip().splitlines() or ["torch said nothing"])[-1])
    profile.copy_ = Copy.model_validate(json.loads(done.stdout.splitlines()[-1]))
