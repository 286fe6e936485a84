"""The record: one JSON file per run, the only truth about what was measured.

Times inside a pass are seconds from the pass's start on one monotonic clock. A value that was not measured is
``None``, never 0.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samebytes.errors import RecordError

SCHEMA = 1

Chunk = tuple[float, int | None]
"""Arrival of one text-bearing or finishing chunk in seconds, and its completion tokens (None: not reported)."""


class Part(BaseModel):
    """Base of every part of a record: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, ser_json_inf_nan="null")


class ConfigInfo(Part):
    """The server config under test."""

    name: str
    why: str
    argv: list[str]
    """Full command line of the server; port and random model name as they were."""
    env: dict[str, str]
    """Environment variables that the config and the study set."""


class ModelInfo(Part):
    """The model that answered."""

    id: str
    revision: str | None = None
    sha256: str | None = None
    """Digest of the weight file where there is a single one."""
    weight_bytes: int | None = None
    n_params: int | None = None


class MachineInfo(Part):
    """The machine that was measured."""

    gpu: str | None = None
    gpu_count: int | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    cpu: str | None = None
    cpu_cores: int | None = None
    cpu_isa: list[str] = Field(default_factory=list)
    """Vector extensions of the CPU: they decide which kernels exist (FP8 KV needs AVX-512)."""
    memory_bytes: int | None = None
    os: str | None = None


class Versions(Part):
    """Versions of everything in the measuring path."""

    vllm: str | None = None
    torch: str | None = None
    python: str | None = None
    """Python of the engine where it is ours to ask, else null."""
    samebytes: str
    git_commit: str | None = None
    git_dirty: bool | None = None
    client_python: str
    openai: str


class Sampling(Part):
    """What every request of the run asked for."""

    temperature: float = 0.0
    seed: int = 0
    max_tokens: int
    thinking: bool = False
    token_ids: bool | None = None
    """Whether the server gave token ids; None before the warm-up found out."""
    chunk_usage: bool | None = None
    """Whether each chunk carried its usage; None before the warm-up found out."""


class PromptInfo(Part):
    """One prompt of the run, in sending order."""

    id: str
    workload: str
    sha256: str


class Launch(Part):
    """One server start."""

    started_by: Literal["samebytes", "base_url"]
    """``base_url``: a running server was measured; nothing was started or stopped."""
    served_model_name: str
    base_url: str
    started: str
    """UTC, ISO 8601."""
    started_mono: float
    ready: str | None = None
    ready_mono: float | None = None
    warmed: str | None = None
    warmed_mono: float | None = None
    stopped: str | None = None
    stopped_mono: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    kv_cache_bytes: int | None = None
    graph_bytes: int | None = None
    model_bytes: int | None = None
    """Memory of the loaded weights of one rank, by the engine's log."""
    linear_kernel: str | None = None
    """Kernel chosen for matrices of packed weights, by the engine's log."""
    attention_backend: str | None = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
    process_start_time: float | None = None
    log_excerpt: list[str] = Field(default_factory=list)


class ClientLoad(Part):
    """What the measuring process itself used during a pass."""

    cpu_share: float | None = None
    """CPU seconds of the client per second of the pass's requests (1.0 is one full core)."""
    lag_p99_s: float | None = None
    """99th percentile of the event loop's lateness."""


class HostLoad(Part):
    """Foreign load on the host during a pass."""

    load: float | None = None
    """CPU seconds per second used by processes that are neither ours nor the engine's."""
    steal: float | None = None
    """Share of CPU time that the hypervisor took."""


class TelemetrySample(Part):
    """One NVML sample."""

    t_s: float
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    gpu_util: float | None = None
    mem_used_bytes: int | None = None
    throttle_reasons: int | None = None


RequestStatus = Literal["ok", "error", "truncated", "timeout"]


class Request(Part):
    """One request and its answer."""

    id: str
    workload: str
    copy_index: int = 0
    """Which of ``dup`` copies of the prompt this is."""
    status: RequestStatus
    error: str | None = None
    text: str = ""
    reasoning: str | None = None
    sha256: str | None = None
    """SHA-256 of the UTF-8 text."""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_chunk_tokens: int | None = None
    """Completion tokens up to and with the first text-bearing chunk (k1)."""
    finish_reason: str | None = None
    scheduled_s: float
    sent_s: float | None = None
    first_chunk_s: float | None = None
    first_text_s: float | None = None
    """Arrival of the first chunk with text, reasoning text or a tool-call delta."""
    visible_s: float | None = None
    """Arrival of the first chunk with answer text (not reasoning)."""
    ttft_s: float | None = None
    finish_s: float | None = None
    decode_tok_s: float | None = None
    chunks: list[Chunk] = Field(default_factory=list)
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_pos: list[int] | None = None
    preemptions: int | None = None


class Pass(Part):
    """Requests measured on one launch under one regime."""

    kind: Literal["sequential", "concurrent"]
    launch: Annotated[int, Field(ge=0)]
    """Index into ``launches``."""
    concurrency: Annotated[int, Field(ge=1)]
    dup: Annotated[int, Field(ge=1)] = 1
    complete: bool = False
    """Whether the pass ended; a sequential pass cut short goes on in a further pass on another launch."""
    started: str
    started_mono: float
    finished: str | None = None
    makespan_s: float | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Counter name to its increase over the pass; None: not exported."""
    peak_kv_usage: float | None = None
    peak_running: float | None = None
    telemetry: list[TelemetrySample] | None = None
    client: ClientLoad = Field(default_factory=ClientLoad)
    host: HostLoad = Field(default_factory=HostLoad)
    voided: str | None = None
    """Why the pass counts for nothing (the server restarted within it, foreign load), else null."""
    requests: list[Request] = Field(default_factory=list)


class Record(Part):
    """One run: a config on a model on a machine."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    status: Literal["partial", "complete", "failed"]
    reason: str | None = None
    label: str
    study: str
    note: str | None = None
    """A warning that goes wherever the run is shown (random weights, say)."""
    config: ConfigInfo
    model: ModelInfo
    machine: MachineInfo
    versions: Versions
    sampling: Sampling
    prompts: list[PromptInfo]
    leg_prompts: list[PromptInfo] | None = None
    """Prompts of the concurrent leg where it has any that the sequential pass has not, else null."""
    warmup_sha256: list[str] = Field(default_factory=list)
    launches: list[Launch] = Field(default_factory=list)
    passes: list[Pass] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", validate_assignment=True, populate_by_name=True)

    @property
    def resumed(self) -> bool:
        """Whether the sequential requests come from more than one server start (no control then)."""
        launches = {r.id: p.launch for p in self._sequential() for r in p.requests}
        return len(set(launches.values())) > 1

    def _sequential(self) -> list[Pass]:
        return [p for p in self.passes if p.kind == "sequential" and p.voided is None]

    def sequential(self) -> list[Request]:
        """Return the sequential requests that count, in prompt order, at most one per prompt (the last)."""
        found = {r.id: r for p in self._sequential() for r in p.requests}
        return [found[p.id] for p in self.prompts if p.id in found]

    def concurrent(self) -> Pass | None:
        """Return the last complete concurrent pass that counts, or None."""
        passes = [p for p in self.passes if p.kind == "concurrent" and p.complete and p.voided is None]
        return passes[-1] if passes else None


def dumps(record: Record) -> str:
    """Return the record as JSON text: keys in the model's order, one request's lists kept on one line each."""
    data = record.model_dump(mode="json", by_alias=True)
    return _compact(data) + "\n"


def _compact(value: Any, indent: int = 0) -> str:
    """Indent objects; keep lists of numbers (tokens, chunks, telemetry) on one line, so that diffs stay readable."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        rows = [f"{pad} {json.dumps(k, ensure_ascii=False)}: {_compact(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{pad}}}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        rows = [f"{pad} {_compact(v, indent + 1)}" for v in value]
        return "[\n" + ",\n".join(rows) + f"\n{pad}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def save(record: Record, path: Path) -> None:
    """Write a record atomically: a reader sees the old file or the new one, never a part.

    Raises
    ------
    ValueError
        Where a number is NaN or infinite.
    """
    write_atomic(path, dumps(record))


def write_atomic(path: Path, text: str) -> None:
    """Write text to a temporary file beside ``path`` and move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: Path) -> Record:
    """Read a record.

    Raises
    ------
    RecordError
        Where the file is missing, not JSON, of another schema, or not a record.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"no record at {path}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise RecordError(f"{path} is not a record: it has no 'schema'")
    if data["schema"] != SCHEMA:
        raise RecordError(f"{path} has record schema {data['schema']!r}; this version of samebytes reads {SCHEMA}")
    try:
        return Record.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{path} is not a valid record: {where}: {first['msg']}") from None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a record."""
    return Record.model_json_schema(by_alias=True)
