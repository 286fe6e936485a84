"""The record: one JSON file per run, the only truth about what was measured.

Times inside a pass are seconds from the pass's start on one monotonic clock. A value that was not measured is
``None``, never 0.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samebytes.errors import RecordError

_Model = TypeVar("_Model", bound=BaseModel)

SCHEMA = 1

Chunk = tuple[float, int | None]
"""Arrival of one text-bearing or finishing chunk in seconds, and its completion tokens (None: not reported)."""


class Part(BaseModel):
    """Base of every part of a record: unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, ser_json_inf_nan="null", use_attribute_docstrings=True
    )


class ConfigInfo(Part):
    """The server config under test."""

    name: str
    """Name of the file in ``configs/``."""
    why: str
    """Why the config exists, as its file says."""
    argv: list[str]
    """Full command line of the server; port and random model name as they were."""
    env: dict[str, str]
    """Environment variables that the config and the study set."""


class ModelInfo(Part):
    """The model that answered."""

    id: str
    """Name of the model: embedded, local folder or hub id."""
    revision: str | None = None
    """Revision on the hub, or the package that ships the weights. Null: a folder that does not tell."""
    sha256: str | None = None
    """Digest of the weight file. Null: there is not a single one."""
    weight_bytes: int | None = None
    """Size of the weight files. Null: the files are not here."""
    n_params: int | None = None
    """Parameters. Null: the weight files do not tell."""


class MachineInfo(Part):
    """The machine that was measured."""

    gpu: str | None = None
    """Name of the card. Null: there is none."""
    gpu_count: int | None = None
    """Cards of this name. Null: there is none."""
    gpu_memory_bytes: int | None = None
    """Memory of one card. Null: there is none."""
    driver: str | None = None
    """Version of the card's driver. Null: there is no card."""
    cpu: str | None = None
    """Name of the processor. Null: the system does not tell."""
    cpu_cores: int | None = None
    """Logical cores of the machine. Null: not told."""
    cpu_isa: list[str] = Field(default_factory=list)
    """Vector extensions of the CPU: they decide which kernels exist (FP8 KV needs AVX-512)."""
    memory_bytes: int | None = None
    """Main memory. Null: not told."""
    os: str | None = None
    """Operating system and kernel. Null: not told."""


class Versions(Part):
    """Versions of everything in the measuring path."""

    vllm: str | None = None
    """Version of vLLM. Null: a running server was measured that does not tell."""
    torch: str | None = None
    """Version of torch beside vLLM. Null: the engine's Python is not ours to ask."""
    python: str | None = None
    """Python of the engine. Null: not ours to ask."""
    samebytes: str
    """Version of this project."""
    git_commit: str | None = None
    """Commit of this project's checkout. Null: not a checkout."""
    git_dirty: bool | None = None
    """Whether that checkout had changes. Null: not a checkout."""
    client_python: str
    """Python of the measuring client."""
    openai: str
    """Version of the client library."""


class Sampling(Part):
    """What every request of the run asked for."""

    temperature: float = 0.0
    """Sampling temperature; zero takes the likeliest token."""
    seed: int = 0
    """Seed that each request carried."""
    max_tokens: int
    """Longest answer in tokens."""
    thinking: bool = False
    """Whether the chat template was asked for thinking."""
    token_ids: bool | None = None
    """Whether the server gave token ids. Null: the warm-up did not get to find out."""
    chunk_usage: bool | None = None
    """Whether each chunk carried its usage. Null: the warm-up did not get to find out."""


class PromptInfo(Part):
    """One prompt of the run, in sending order."""

    id: str
    """Workload and file name without its ending."""
    workload: str
    """Name of the prompt's folder."""
    sha256: str
    """Digest of the prompt's file."""


class Launch(Part):
    """One server start."""

    started_by: Literal["samebytes", "base_url"]
    """Whether this project started the server, or a running one was measured (``base_url``)."""
    served_model_name: str
    """Random name of this start: only the server that was started here answers to it."""
    base_url: str
    """Where the server listened."""
    started: str
    """When the process was started, UTC."""
    started_mono: float
    """The same on the monotonic clock of the run."""
    ready: str | None = None
    """When the server first answered, UTC. Null: it never did."""
    ready_mono: float | None = None
    """The same on the monotonic clock. Null: it never did."""
    warmed: str | None = None
    """When the warm-up had ended, UTC. Null: it did not."""
    warmed_mono: float | None = None
    """The same on the monotonic clock. Null: it did not."""
    stopped: str | None = None
    """When the last process of the server was gone, UTC. Null: a running server was measured, or the run was killed."""
    stopped_mono: float | None = None
    """The same on the monotonic clock. Null: as there."""
    kv_cache_tokens: int | None = None
    """Tokens that the KV pool holds. Null: the server did not tell."""
    max_concurrency: float | None = None
    """Requests of full length that the KV pool holds. Null: the server did not tell."""
    kv_cache_bytes: int | None = None
    """Size of the KV pool. Null: the server did not tell."""
    graph_bytes: int | None = None
    """Memory of the captured graphs. Null: none were captured, or the server did not tell."""
    model_bytes: int | None = None
    """Memory of the loaded weights of one rank, by the engine's log. Null: the log does not tell."""
    linear_kernel: str | None = None
    """Kernel chosen for matrices of packed weights, by the engine's log. Null: the log does not tell."""
    attention_backend: str | None = None
    """Attention kernels, by the engine's log. Null: the log has no such line."""
    async_scheduling: bool | None = None
    """Whether the next step was scheduled while one ran. Null: the log does not tell."""
    prefix_caching: bool | None = None
    """Whether equal beginnings were cached, by the server's metrics. Null: not exported."""
    process_start_time: float | None = None
    """Start of the server's process by its metrics, seconds since the epoch. Null: not exported."""
    log_excerpt: list[str] = Field(default_factory=list)
    """Lines of the engine's log that the values above were read from."""


class ClientLoad(Part):
    """What the measuring process itself used during a pass."""

    cpu_share: float | None = None
    """CPU seconds of the client per second of the pass's requests; one is a full core. Null: not measured."""
    lag_p99_s: float | None = None
    """Lateness of the event loop that one reading in a hundred exceeds. Null: the pass was too short."""


class HostLoad(Part):
    """Foreign load on the host during a pass."""

    load: float | None = None
    """CPU seconds per second used by processes that are neither ours nor the engine's. Null: not measured."""
    steal: float | None = None
    """Share of CPU time that the hypervisor took. Null: the system does not tell."""


class TelemetrySample(Part):
    """One NVML sample."""

    t_s: float
    """When, from the pass's start."""
    power_w: float | None = None
    """Power draw of the card. Null: the card does not tell."""
    sm_clock_mhz: int | None = None
    """Clock of the multiprocessors. Null: the card does not tell."""
    mem_clock_mhz: int | None = None
    """Clock of the memory. Null: the card does not tell."""
    temperature_c: int | None = None
    """Temperature of the card. Null: the card does not tell."""
    gpu_util: float | None = None
    """Share of time in which a kernel ran. Null: the card does not tell."""
    mem_used_bytes: int | None = None
    """Memory in use on the card. Null: the card does not tell."""
    throttle_reasons: int | None = None
    """NVML's bits for why the clocks were held down. Null: the card does not tell."""


RequestStatus = Literal["ok", "error", "truncated", "timeout"]


class Request(Part):
    """One request and its answer."""

    id: str
    """The prompt."""
    workload: str
    """Its workload."""
    copy_index: int = 0
    """Which of ``dup`` copies of the prompt this is."""
    status: RequestStatus
    """Whether an answer came: whole, with an error, cut off in the middle, or not in time."""
    error: str | None = None
    """What went wrong. Null: nothing."""
    text: str = ""
    """The answer as it came."""
    reasoning: str | None = None
    """Reasoning text, kept apart. Null: there was none."""
    sha256: str | None = None
    """Digest of the answer's UTF-8. Null: no answer."""
    token_ids: list[int] | None = None
    """Tokens of the whole answer. Null: the server did not give them."""
    prompt_token_ids: list[int] | None = None
    """Tokens of the prompt behind the chat template. Null: the server did not give them."""
    prompt_tokens: int | None = None
    """Number of prompt tokens, by the server's usage. Null: not reported."""
    completion_tokens: int | None = None
    """Number of tokens of the answer (N), by the server's usage. Null: not reported."""
    first_chunk_tokens: int | None = None
    """Completion tokens up to and with the first text-bearing chunk (``k1``). Null: not reported."""
    finish_reason: str | None = None
    """Why the answer ended, in the server's word. Null: it did not end."""
    scheduled_s: float
    """When the client meant to send it."""
    sent_s: float | None = None
    """Just before the last byte of the request was handed to the socket. Null: it was not sent."""
    first_chunk_s: float | None = None
    """Arrival of the first chunk of any kind. Null: none came."""
    first_text_s: float | None = None
    """Arrival of the first chunk with text, reasoning text or a tool-call delta. Null: none came."""
    visible_s: float | None = None
    """Arrival of the first chunk with answer text (not reasoning). Null: none came."""
    ttft_s: float | None = None
    """Time to first token: from sent to first text. Null: no text came."""
    finish_s: float | None = None
    """Arrival of the chunk with the finish reason. Null: none came."""
    decode_tok_s: float | None = None
    """Decode throughput. Null: all tokens came in one chunk, or a part of the formula is null."""
    chunks: list[Chunk] = Field(default_factory=list)
    """Arrival of each text-bearing or finishing chunk in seconds, and its completion tokens (null: not reported)."""
    drafts: int | None = None
    """Times that tokens were drafted for this prompt. Null: the server does not speculate, or the leg is concurrent."""
    draft_tokens: int | None = None
    """Tokens drafted. Null: as there."""
    accepted_tokens: int | None = None
    """Drafted tokens accepted. Null: as there."""
    accepted_per_pos: list[int] | None = None
    """Accepted tokens by their position in the draft. Null: as there."""
    preemptions: int | None = None
    """Times that a request was preempted meanwhile. Null: not exported, or the leg is concurrent."""


class Pass(Part):
    """Requests measured on one launch under one regime."""

    kind: Literal["sequential", "concurrent"]
    """One request at a time, or several in flight."""
    launch: Annotated[int, Field(ge=0)]
    """Which of the launches, counted from zero."""
    concurrency: Annotated[int, Field(ge=1)]
    """Requests in flight."""
    dup: Annotated[int, Field(ge=1)] = 1
    """Times that each prompt was sent."""
    complete: bool = False
    """Whether the pass ended; a sequential pass cut short goes on in a further pass on another launch."""
    started: str
    """When, UTC."""
    started_mono: float
    """The same on the monotonic clock of the run."""
    finished: str | None = None
    """When it ended, UTC. Null: it did not."""
    makespan_s: float | None = None
    """From the first send to the last finish. Null: nothing was answered."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Counter name to its increase over the pass; null where it is not exported."""
    peak_kv_usage: float | None = None
    """Largest share of the KV pool in use that a scrape saw. Null: not exported."""
    peak_running: float | None = None
    """Most requests running that a scrape saw. Null: not exported."""
    telemetry: list[TelemetrySample] | None = None
    """Samples of the card. Null: there is no card."""
    client: ClientLoad = Field(default_factory=ClientLoad)
    """What the measuring process itself used."""
    host: HostLoad = Field(default_factory=HostLoad)
    """Foreign load on the host."""
    voided: str | None = None
    """Why the pass counts for nothing (the server restarted within it, foreign load). Null: it counts."""
    requests: list[Request] = Field(default_factory=list)
    """The requests, in sending order."""


class Record(Part):
    """One run: a config on a model on a machine."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    """Version of this schema."""
    status: Literal["partial", "complete", "failed"]
    """Whether every pass ended, the run goes on, or the engine refused or died."""
    reason: str | None = None
    """Why it failed. Null: it did not."""
    label: str
    """Name of the record: its file's name without the ending."""
    study: str
    """The study it belongs to."""
    note: str | None = None
    """A warning that goes wherever the run is shown (random weights, say). Null: none."""
    config: ConfigInfo
    """The server config under test."""
    model: ModelInfo
    """The model that answered."""
    machine: MachineInfo
    """The machine that was measured."""
    versions: Versions
    """Versions of everything in the measuring path."""
    sampling: Sampling
    """What every request asked for."""
    prompts: list[PromptInfo]
    """The prompts in sending order."""
    leg_prompts: list[PromptInfo] | None = None
    """Prompts of the concurrent leg where it has any that the sequential pass has not. Null: it has none."""
    warmup_sha256: list[str] = Field(default_factory=list)
    """Digests of the warm-up prompts."""
    launches: list[Launch] = Field(default_factory=list)
    """Server starts."""
    passes: list[Pass] = Field(default_factory=list)
    """What was measured on them."""

    model_config = ConfigDict(populate_by_name=True)

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
    data = read_json(path, "record")
    if not isinstance(data, dict) or "schema" not in data:
        raise RecordError(f"{path} is not a record: it has no 'schema'")
    if data["schema"] != SCHEMA:
        raise RecordError(f"{path} has record schema {data['schema']!r}; this version of samebytes reads {SCHEMA}")
    return validated(path, data, Record, "record")


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file that should hold a ``what``.

    Raises
    ------
    RecordError
        Where it is missing, cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"no {what} at {path}") from None
    except OSError as error:
        raise RecordError(f"{path} is no file with a {what}: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None


def validated(path: Path, data: object, model: type[_Model], what: str) -> _Model:
    """Return a file's content as the model of a ``what``.

    Raises
    ------
    RecordError
        Naming the first field that does not fit.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"{path} is not a valid {what}: {where}: {first['msg']}") from None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a record."""
    return Record.model_json_schema(by_alias=True)
