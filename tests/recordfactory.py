"""Small synthetic records: what a run of so many prompts would have left."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from samebytes.record import (
    ConfigInfo,
    HostLoad,
    Launch,
    MachineInfo,
    ModelInfo,
    Pass,
    PromptInfo,
    Record,
    Request,
    Sampling,
    Versions,
)

ARGV = ("vllm", "serve", "some/model", "--max-model-len", "4096", "--no-enable-prefix-caching")
TTFT = 0.2


def digest(text: str) -> str:
    """SHA-256 of the UTF-8 text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def prompt_ids(per_workload: int = 2) -> list[str]:
    """Return ids in sending order."""
    return [f"{w}/{i}" for w in ("code_edit", "rag", "creative") for i in range(per_workload)]


def answer(key: str, text: str = "", rate: float = 10.0, n: int = 64, at: float = 0.0, **changes: Any) -> Request:
    """Return a successful request of ``n`` tokens, one a chunk, decoded at ``rate`` tok/s after `TTFT` seconds."""
    text = text or f"the answer to {key}"
    chunks = [(at + TTFT + i / rate, 1) for i in range(n)]
    values: dict[str, Any] = {
        "id": key,
        "workload": key.split("/")[0],
        "status": "ok",
        "text": text,
        "sha256": digest(text),
        "token_ids": [ord(c) for c in text],
        "prompt_tokens": 20,
        "completion_tokens": n,
        "first_chunk_tokens": 1,
        "finish_reason": "stop",
        "scheduled_s": at,
        "sent_s": at,
        "first_chunk_s": at + TTFT,
        "first_text_s": at + TTFT,
        "visible_s": at + TTFT,
        "ttft_s": TTFT,
        "finish_s": chunks[-1][0],
        "decode_tok_s": rate if n > 1 else None,
        "chunks": chunks,
    }
    return Request.model_validate(values | changes)


def failed(key: str, error: str = "EngineCore died", status: str = "error") -> Request:
    """Return a request that failed."""
    return Request.model_validate(
        {"id": key, "workload": key.split("/")[0], "status": status, "error": error, "scheduled_s": 0.0, "sent_s": 0.0}
    )


def a_pass(requests: Sequence[Request], launch: int = 0, kind: str = "sequential", **changes: Any) -> Pass:
    """Return a complete pass whose counters agree with its requests."""
    ok = [r for r in requests if r.status == "ok"]
    ends = [r.finish_s for r in ok if r.finish_s is not None]
    values: dict[str, Any] = {
        "kind": kind,
        "launch": launch,
        "concurrency": 1 if kind == "sequential" else 16,
        "complete": True,
        "started": f"2026-11-29T10:0{launch}:40Z",
        "started_mono": 100.0 * launch + 40.0,
        "finished": f"2026-11-29T10:0{launch}:55Z",
        "makespan_s": max(ends, default=None),
        "metrics": {
            "generation_tokens": float(sum(r.completion_tokens or 0 for r in ok)),
            "prompt_tokens": float(sum(r.prompt_tokens or 0 for r in ok)),
            "prompt_tokens_cached": 0.0,
            "preemptions": 0.0,
            "drafts": None,
            "draft_tokens": None,
            "accepted_tokens": None,
        },
        "host": HostLoad(load=0.1, steal=0.0),
        "requests": list(requests),
    }
    return Pass.model_validate(values | changes)


def a_launch(name: str, index: int = 0, **changes: Any) -> Launch:
    """Return a server start that was stopped again."""
    values: dict[str, Any] = {
        "started_by": "samebytes",
        "served_model_name": name,
        "base_url": f"http://127.0.0.1:{40000 + len(name)}",
        "started": f"2026-11-29T10:0{index}:00Z",
        "started_mono": 100.0 * index,
        "ready": f"2026-11-29T10:0{index}:30Z",
        "ready_mono": 100.0 * index + 30.0,
        "warmed": f"2026-11-29T10:0{index}:35Z",
        "warmed_mono": 100.0 * index + 35.0,
        "stopped": f"2026-11-29T10:0{index}:58Z",
        "stopped_mono": 100.0 * index + 58.0,
        "kv_cache_tokens": 1000,
        "kv_cache_bytes": 2**30,
        "max_concurrency": 2.0,
        "prefix_caching": False,
        "process_start_time": 1000.0 + index,
    }
    return Launch.model_validate(values | changes)


def a_record(
    label: str,
    config: str | None = None,
    *,
    ids: Sequence[str] | None = None,
    texts: Mapping[str, str] | None = None,
    rate: float = 10.0,
    rates: Mapping[str, float] | None = None,
    replace: Mapping[str, Request] | None = None,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **changes: Any,
) -> Record:
    """Return a complete record of one launch and one sequential pass.

    Parameters
    ----------
    texts, rates : mapping, optional
        Answers and decode rates by prompt id that depart from the usual ones.
    replace : mapping, optional
        Whole requests by prompt id.
    flags : sequence of str
        The config's own flags.
    changes
        Any field of `Record`, set last.
    """
    ids = list(ids) if ids is not None else prompt_ids()
    texts, rates, replace = texts or {}, rates or {}, replace or {}
    requests = [
        replace.get(key) or answer(key, texts.get(key, ""), rates.get(key, rate), at=10.0 * i)
        for i, key in enumerate(ids)
    ]
    name = f"sb-{label}"
    port = str(40000 + len(label))
    values: dict[str, Any] = {
        "status": "complete",
        "label": label,
        "study": "toy",
        "config": ConfigInfo(
            name=config or label,
            why="a test",
            argv=[*ARGV, *flags, "--port", port, "--served-model-name", name],
            env=dict(env or {}),
        ),
        "model": ModelInfo(id="some/model", revision="abc", sha256="00", weight_bytes=10, n_params=5),
        "machine": MachineInfo(cpu="a cpu", cpu_cores=2, memory_bytes=2**33),
        "versions": Versions(vllm="0.32.0", samebytes="0", client_python="3.11", openai="2.34"),
        "sampling": Sampling(max_tokens=64),
        "prompts": [PromptInfo(id=key, workload=key.split("/")[0], sha256=digest(key)) for key in ids],
        "launches": [a_launch(name)],
        "passes": [a_pass(requests)],
    }
    return Record.model_validate(values | changes)


def resumed(label: str, config: str | None = None, **changes: Any) -> Record:
    """Return a record whose first prompt comes from one server start and the rest from another."""
    whole = a_record(label, config, **changes)
    requests = whole.passes[0].requests
    whole.launches = [a_launch(f"{label}-a", 0), a_launch(f"{label}-b", 1)]
    whole.passes = [a_pass(requests[:1], 0, complete=False), a_pass(requests[1:], 1)]
    return whole
