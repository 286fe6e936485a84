"""A record as text: what was measured, one row per prompt."""

from __future__ import annotations

from statistics import median

from samebytes.definitions import counts_for_speed
from samebytes.record import Launch, Record, Request


def number(value: float | None, digits: int = 1) -> str:
    """Return a number with its digits, or a dash where it was not measured."""
    return "–" if value is None else f"{value:,.{digits}f}"


def text(record: Record) -> str:
    """Return a record as text for a terminal or a notebook's output."""
    requests = record.sequential()
    ok = [request for request in requests if request.status == "ok"]
    lines = [
        f"{record.study} / {record.label}: {record.status}" + (f" ({record.reason})" if record.reason else ""),
        *([f"note: {record.note}"] if record.note else []),
        f"config {record.config.name}: {record.config.why}",
        f"model {record.model.id}, vLLM {record.versions.vllm}, {record.machine.gpu or record.machine.cpu}",
        f"{len(ok)}/{len(record.prompts)} prompts answered in the sequential pass",
        *[_launch(i, launch) for i, launch in enumerate(record.launches)],
    ]
    if requests:
        width = max(len(request.id) for request in requests)
        lines += ["", f"{'prompt':{width}}  status     tokens  TTFT ms  tok/s  drafted  accepted"]
        lines += [_row(request, width) for request in requests]
        for workload in dict.fromkeys(request.workload for request in requests):
            timed = [r for r in ok if r.workload == workload and counts_for_speed(r.completion_tokens)]
            rates = [r.decode_tok_s for r in timed if r.decode_tok_s is not None]
            if rates:
                lines.append(f"median {workload}: {number(median(rates))} tok/s over {len(rates)} prompts")
    leg = record.concurrent()
    if leg is not None:
        done = [request for request in leg.requests if request.status == "ok"]
        tokens = sum(request.completion_tokens or 0 for request in done)
        rate = tokens / leg.makespan_s if leg.makespan_s else None
        lines.append(
            f"concurrent leg, {leg.concurrency} in flight: {len(done)}/{len(leg.requests)} answered, "
            f"{number(rate)} tok/s aggregate, makespan {number(leg.makespan_s)} s, "
            f"preemptions {number(leg.metrics.get('preemptions'), 0)}"
        )
    return "\n".join(lines)


def _launch(index: int, launch: Launch) -> str:
    loaded = None if launch.ready_mono is None else launch.ready_mono - launch.started_mono
    return (
        f"launch {index}: {launch.started}, ready after {number(loaded, 0)} s, "
        f"KV pool {number(launch.kv_cache_tokens, 0)} tokens"
    )


def _row(request: Request, width: int) -> str:
    ttft = None if request.ttft_s is None else request.ttft_s * 1000
    return (
        f"{request.id:{width}}  {request.status:9}  {number(request.completion_tokens, 0):>6}  {number(ttft):>7}  "
        f"{number(request.decode_tok_s):>5}  {number(request.draft_tokens, 0):>7}  "
        f"{number(request.accepted_tokens, 0):>8}"
    )
