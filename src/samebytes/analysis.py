"""From a study's records to its figures: speed, bytes, acceptance, memory, and whether they can be trusted.

Everything here is computed from records alone; `samebytes.summary` renders and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from samebytes import acceptance, compare, definitions, energy, fairness, record, speculation, stats
from samebytes.compare import RecordComparison
from samebytes.energy import Energy
from samebytes.errors import RecordError, unknown
from samebytes.findings import (
    ALL,
    ByteCount,
    Concurrent,
    ConfigResult,
    Control,
    Identity,
    Memory,
    Moment,
    Pair,
    PassRow,
    PromptResult,
    Ratio,
    RunRow,
    Summary,
    ValidityCount,
    WorkloadSpeed,
)
from samebytes.record import Pass, Record, Request
from samebytes.stats import RatioEstimate
from samebytes.validity import Validity

Check = Callable[[Request], Validity | None]
"""Says what an answer is worth; None where its prompt is not at hand."""

LOADED = 0.25
"""CPU cores in use by other processes above which a pass's speeds carry a warning."""

DERIVED = ("summary.json", "tokens.json")
"""JSON files beside the records that are not records."""


def load(folder: Path) -> list[Record]:
    """Read a study's records, ``folder/*.json``, in the order of their labels.

    Raises
    ------
    RecordError
        Where there is none, one cannot be read, or one lies under another name than its label.
    """
    records = [record.load(path) for path in _files(folder)]
    if not records:
        raise RecordError(f"no records in {folder}")
    for path, found in zip(_files(folder), records, strict=True):
        if found.label != path.stem:
            raise RecordError(f"{path} has the label {found.label!r}: a copied record would be counted as a run")
    return records


def _files(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("*.json") if p.name not in DERIVED and not p.name.startswith(".")]
    return sorted(found, key=lambda path: path.stem)


def summarise(
    records: Sequence[Record],
    references: Sequence[str] | None = None,
    candidates: Sequence[str] | None = None,
    planned: Sequence[tuple[str, str]] = (),
    check: Check = lambda request: None,
) -> Summary:
    """Compute a study's figures.

    Parameters
    ----------
    records : sequence of Record
        The study's records, of any status; only complete ones enter a figure.
    references : sequence of str or None
        Configs to compare against; None: every complete config whose name starts with ``baseline``.
    candidates : sequence of str or None
        Configs to compare; None: all. Only configs with the same ``VLLM_BATCH_INVARIANT`` are paired.
    planned : sequence of (label, config)
        The runs the study asks for, so that those without a record are listed.
    check : callable
        Says what an answer is worth.

    Raises
    ------
    RecordError
        Where the runs of one config are not of the same model, prompts and sampling.
    UsageError
        For a reference or candidate that has no complete run.
    """
    by_config = groups(records)
    if references is None:
        references = [name for name in by_config if name.startswith("baseline")]
    for name in (*references, *(candidates or ())):
        if name not in by_config:
            raise unknown("config with a complete run", name, by_config)
    wanted = candidates if candidates is not None else list(by_config)
    pairs = []
    for i, reference in enumerate(references):
        for name in wanted:
            if name not in references[: i + 1] and numerics(by_config[name][0]) == numerics(by_config[reference][0]):
                pairs.append(_pair(reference, by_config[reference], name, by_config[name]))
    rows = [_run_row(r) for r in records]
    measured = {r.label for r in records}
    rows += [RunRow(label, config, "not measured") for label, config in planned if label not in measured]
    first = next((group[0] for group in by_config.values()), records[0])
    return Summary(
        study=first.study,
        model=first.model.id,
        revision=first.model.revision,
        machine=first.machine.gpu or first.machine.cpu or "unknown",
        vllm=first.versions.vllm,
        max_tokens=first.sampling.max_tokens,
        references=tuple(references),
        candidates=tuple(wanted),
        prompts=len(first.prompts),
        banners=_banners(rows, pairs, by_config),
        runs=tuple(rows),
        configs=tuple(_config(name, group, check) for name, group in by_config.items()),
        controls=tuple(_control(name, by_config[name]) for name in references),
        pairs=tuple(pairs),
        steps=tuple(speculation.rows(records, references)),
        forecasts=tuple(speculation.forecasts(records, references)),
        passes=tuple(_pass_row(r, i) for r in records for i in range(len(r.passes))),
        timeline=tuple(moment for r in records for moment in _moments(r)),
    )


def groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group complete runs by config: ``baseline`` first, other baselines, then the rest by name."""
    found: dict[str, list[Record]] = {}
    complete = [r for r in records if r.status == "complete" and r.sequential()]
    for one in sorted(complete, key=lambda r: (r.launches[0].started, r.label)):
        found.setdefault(one.config.name, []).append(one)
    for group in found.values():
        for other in group[1:]:
            compare.comparable(group[0], other)
    order = sorted(found, key=lambda name: (name != "baseline", not name.startswith("baseline"), name))
    return {name: found[name] for name in order}


def numerics(found: Record) -> str:
    """Return which family of kernels a run used: speeds with batch-invariant kernels are never mixed with others."""
    return found.config.env.get("VLLM_BATCH_INVARIANT", "0")


# -- runs and passes --------------------------------------------------------------------------------------------------


def _answered(requests: Iterable[Request], total: int) -> tuple[int, int]:
    return sum(r.status == "ok" for r in requests), total


def _run_row(found: Record) -> RunRow:
    leg = found.concurrent()
    warnings = [found.note] if found.note else []
    if found.resumed:
        warnings.append("resumed: its answers come from more than one server start, so it is no control")
    warnings += [f"pass {i} voided: {p.voided}" for i, p in enumerate(found.passes) if p.voided]
    if any(launch.started_by == "base_url" for launch in found.launches):
        warnings.append("a running server was measured; its flags are not known from here")
    for i, p in enumerate(found.passes):
        broken = [identity.name for identity in _identities(p) if identity.holds is False]
        if broken and p.voided is None:
            warnings.append(f"pass {i}: {', '.join(broken)} of the requests and of the server do not agree")
        if p.voided is None and p.host.load is not None and p.host.load > LOADED:
            warnings.append(f"pass {i}: other processes used {p.host.load:.2f} CPU cores meanwhile; speeds suffer")
        if definitions.client_bound(p.client.cpu_share, p.client.lag_p99_s):
            warnings.append(f"pass {i}: client-bound; the client was too busy or too late to tell the server's speed")
    sequential = found.sequential()
    return RunRow(
        label=found.label,
        config=found.config.name,
        status=found.status,
        reason=found.reason,
        sequential=_answered(sequential, len(found.prompts)) if sequential else None,
        concurrent=_answered(leg.requests, len(leg.requests)) if leg else None,
        starts=len({compare.start_of(found, p.launch) for p in found.passes}),
        resumed=found.resumed,
        warnings=tuple(warnings),
    )


def _banners(rows: Sequence[RunRow], pairs: Sequence[Pair], groups: Mapping[str, Sequence[Record]]) -> tuple[str, ...]:
    """Return what the reader has to know before any figure."""
    found = []
    for row in rows:
        if row.status == "failed":
            found.append(f"{row.label} failed: {row.reason or 'no reason recorded'}")
        elif row.status != "complete":
            found.append(f"{row.label}: {row.status}")
        for kind, count in (("sequential", row.sequential), ("concurrent", row.concurrent)):
            if row.status == "complete" and count is not None and count[0] < count[1]:
                found.append(f"{row.label}: {count[0]}/{count[1]} {kind} requests answered")
        found += [f"{row.label}: {warning}" for warning in row.warnings]
    for first, *repeats in groups.values():
        for other in repeats:
            names = [d.name for d in fairness.differences(first, other) if d.name not in fairness.PROJECT]
            if names:
                found.append(f"{other.label} is no repeat of {first.label}: they differ in {', '.join(names)}")
    for pair in pairs:
        name = f"{pair.candidate} against {pair.reference}"
        if pair.refused:
            found.append(f"{name}: {pair.refused}")
        unfair = [d.name for d in pair.differences if not d.fair]
        if unfair:
            found.append(f"{name}: more than the config differs: {', '.join(unfair)}")
        if pair.unproved:
            found.append(f"{name}: not proved to be equal: {', '.join(pair.unproved)}")
    return tuple(dict.fromkeys(found))


def _identities(p: Pass) -> tuple[Identity, ...]:
    """Check the sums over a pass's requests against the server's counters."""
    ok = [r for r in p.requests if r.status == "ok"]
    failures = len(p.requests) - len(ok)
    found = [
        _identity(p, "generation_tokens", [r.completion_tokens for r in ok], failures),
        _identity(p, "prompt_tokens", [r.prompt_tokens for r in ok], failures),
        _identity(p, "prompt_tokens_cached", [0], 0),
    ]
    if p.kind == "sequential":
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            if p.metrics.get(name) is not None:
                found.append(_identity(p, name, [getattr(r, name) for r in p.requests], 0))
    return tuple(found)


def _identity(p: Pass, name: str, values: Sequence[int | None], failures: int) -> Identity:
    known = [v for v in values if v is not None]
    expected = float(sum(known)) if len(known) == len(values) else None
    counted = p.metrics.get(name)
    if counted is None:
        note = "not exported" if p.complete else "the pass was cut short; its counters were not read"
        return Identity(name, expected, None, None, note)
    if expected is None:
        return Identity(name, None, counted, None, f"not known for {len(values) - len(known)} requests")
    if failures and counted >= expected:
        rest = f"{counted - expected:.0f} more, put down to requests that failed ({failures})"
        return Identity(name, expected, counted, True, rest)
    return Identity(name, expected, counted, counted == expected)


def _pass_row(found: Record, number: int) -> PassRow:
    p = found.passes[number]
    return PassRow(
        label=found.label,
        number=number,
        kind=p.kind,
        launch=p.launch,
        answered=_answered(p.requests, len(p.requests)),
        makespan_s=p.makespan_s,
        preemptions=p.metrics.get("preemptions"),
        host_load=p.host.load,
        host_steal=p.host.steal,
        client_cpu_share=p.client.cpu_share,
        client_lag_p99_s=p.client.lag_p99_s,
        voided=p.voided,
        identities=_identities(p),
    )


def _moments(found: Record) -> list[Moment]:
    """Return a run's events in order; each server start has a clock of its own (a resumed run may span a reboot)."""
    moments = []
    for i, launch in enumerate(found.launches):
        events = [
            ("server start", launch.started, launch.started_mono),
            ("ready", launch.ready, launch.ready_mono),
            ("warmed up", launch.warmed, launch.warmed_mono),
        ]
        for p in found.passes:
            if p.launch == i:
                ends = [r.finish_s for r in p.requests if r.finish_s is not None]
                end = p.started_mono + max(ends) if ends else None
                events.append((f"{p.kind} pass begins", p.started, p.started_mono))
                events.append((f"{p.kind} pass ends", p.finished, end))
        events.append(("server stopped", launch.stopped, launch.stopped_mono))
        moments += [
            Moment(found.label, i, event, at, None if mono is None else mono - launch.started_mono)
            for event, at, mono in events
            if at is not None
        ]
    return moments


# -- one config -------------------------------------------------------------------------------------------------------


def _config(name: str, group: Sequence[Record], check: Check) -> ConfigResult:
    prompts = _prompts(group, check)
    of = {p.id: p.workload for p in prompts}
    workloads = list(dict.fromkeys(of.values()))
    requests = [r for found in group for r in found.sequential()]
    counted = {p.id for p in prompts if p.answered}
    windows = [item for found in group for item in energy.sequential(found).items() if item[0] in counted]
    by_workload = {w: [one for key, one in windows if w in (ALL, of[key])] for w in (*workloads, ALL)}
    return ConfigResult(
        name=name,
        why=group[0].config.why,
        labels=tuple(found.label for found in group),
        speed=tuple(_workload_speed(w, [p for p in prompts if p.workload == w], requests) for w in workloads),
        prompts=tuple(prompts),
        validity=tuple(_validity_count(w, [p for p in prompts if p.workload == w]) for w in workloads),
        acceptance={
            w: acceptance.summarise([r for r in requests if r.id in counted and w in (ALL, r.workload)])
            for w in (*workloads, ALL)
        },
        energy={w: found for w, some in by_workload.items() if (found := energy.over(some)) is not None},
        memory=_memory(group),
        concurrent=tuple(c for found in group if (c := _concurrent(found)) is not None),
    )


def _prompts(group: Sequence[Record], check: Check = lambda request: None) -> list[PromptResult]:
    answers = [{r.id: r for r in found.sequential()} for found in group]
    windows = [energy.sequential(found) for found in group]
    return [
        _prompt(
            p.id,
            p.workload,
            [found.get(p.id) for found in answers],
            energy.over(found[p.id] for found in windows if p.id in found),
            check,
        )
        for p in group[0].prompts
    ]


def _prompt(
    key: str, workload: str, found: Sequence[Request | None], used: Energy | None, check: Check
) -> PromptResult:
    ok = [r for r in found if r is not None and r.status == "ok"]
    answered = len(ok) == len(found)
    rates = [r.decode_tok_s for r in ok if definitions.counts_for_speed(r.completion_tokens) and r.decode_tok_s]
    timed = len(rates) == len(found)
    waits = [r.ttft_s for r in ok if r.ttft_s]
    return PromptResult(
        id=key,
        workload=workload,
        answered=answered,
        timed=timed,
        tokens=tuple(r.completion_tokens if r else None for r in found),
        finish_reasons=tuple(r.finish_reason if r else None for r in found),
        decode_tok_s=stats.geometric_mean(rates) if timed else None,
        ttft_s=stats.geometric_mean(waits) if len(waits) == len(found) else None,
        spread=stats.spread(rates) if timed else None,
        acceptance=acceptance.summarise(ok if answered else []),
        joules_per_token=used.joules_per_token if used and answered else None,
        validity=tuple(check(r) if r is not None and r.status == "ok" else None for r in found),
    )


def _validity_count(workload: str, prompts: Sequence[PromptResult]) -> ValidityCount:
    answers = [v for p in prompts for v in p.validity if v is not None]
    return ValidityCount(
        workload=workload,
        answers=len(answers),
        checked=sum(v.status != "unchecked" for v in answers),
        valid=sum(v.status == "valid" for v in answers),
        loops=sum(v.loop is not None for v in answers),
        cut_off=sum(v.finish_reason == "length" for v in answers),
    )


def _workload_speed(workload: str, prompts: Sequence[PromptResult], requests: Sequence[Request]) -> WorkloadSpeed:
    spreads = [p.spread for p in prompts if p.spread is not None]
    return WorkloadSpeed(
        workload=workload,
        prompts=len(prompts),
        answered=sum(p.answered for p in prompts),
        timed=sum(p.timed for p in prompts),
        failures=sum(r.workload == workload and r.status != "ok" for r in requests),
        decode_tok_s=_median(p.decode_tok_s for p in prompts),
        ttft_s=_median(p.ttft_s for p in prompts),
        tokens=sum(n or 0 for p in prompts if p.answered for n in p.tokens),
        spread_median=_median(spreads),
        spread_max=max(spreads, default=None),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return stats.median(known) if known else None


def _memory(group: Sequence[Record]) -> Memory:
    launches = [launch for found in group for launch in found.launches]

    def distinct(name: str) -> tuple[Any, ...]:
        return tuple(sorted({v for launch in launches if (v := getattr(launch, name)) is not None}))

    return Memory(
        kv_cache_tokens=distinct("kv_cache_tokens"),
        kv_cache_bytes=distinct("kv_cache_bytes"),
        max_concurrency=distinct("max_concurrency"),
        graph_bytes=distinct("graph_bytes"),
        attention_backend=distinct("attention_backend"),
        async_scheduling=distinct("async_scheduling"),
        prefix_caching=distinct("prefix_caching"),
    )


def _concurrent(found: Record) -> Concurrent | None:
    leg = found.concurrent()
    if leg is None:
        return None
    ok = [r for r in leg.requests if r.status == "ok"]
    makespan = definitions.makespan((r.sent_s for r in leg.requests), (r.finish_s for r in leg.requests))
    waits = [r.ttft_s for r in ok if r.ttft_s is not None]

    def wait(q: float) -> float | None:
        return stats.percentile(waits, q) if waits else None

    copies: dict[str, list[Request]] = {}
    for request in ok:
        copies.setdefault(request.id, []).append(request)
    several = [group for group in copies.values() if len(group) > 1]
    alone = {r.id: r for r in found.sequential()}
    against = [compare.compare_answers(alone.get(r.id), r) for r in ok]
    return Concurrent(
        label=found.label,
        concurrency=leg.concurrency,
        dup=leg.dup,
        answered=_answered(leg.requests, len(leg.requests)),
        aggregate_tok_s=definitions.aggregate_tok_s((r.completion_tokens for r in ok), makespan),
        makespan_s=makespan,
        ttft_p50_s=wait(50),
        ttft_p90_s=wait(90),
        ttft_p99_s=wait(99),
        preemptions=leg.metrics.get("preemptions"),
        peak_kv_usage=leg.peak_kv_usage,
        peak_running=leg.peak_running,
        client_cpu_share=leg.client.cpu_share,
        client_lag_p99_s=leg.client.lag_p99_s,
        copies_agree=(
            sum(all(compare.compare_answers(group[0], r).same_bytes for r in group) for group in several),
            len(several),
        ),
        same_as_sequential=(sum(c.same_bytes for c in against), sum(c.cls != "missing" for c in against)),
        energy=energy.over([window]) if (window := energy.concurrent(leg)) else None,
    )


# -- one config against another ---------------------------------------------------------------------------------------


def _control(name: str, group: Sequence[Record]) -> Control:
    answers = [compare.sequential_answers(found) for found in group]
    none = compare.Answer(None, None)
    found = {p.id: compare.agreement([a.get(p.id, none) for a in answers])[0] for p in group[0].prompts}
    values = list(found.values())
    agrees, disagrees = values.count("agrees"), values.count("disagrees")
    return Control(
        config=name,
        starts=len({a.start for side in answers for a in side.values() if a.start is not None}),
        agrees=agrees,
        disagrees=disagrees,
        none=values.count("none"),
        agree_rate=stats.wilson(agrees, agrees + disagrees),
        disagreeing=tuple(key for key, value in found.items() if value == "disagrees"),
    )


def _pair(reference: str, base: Sequence[Record], candidate: str, group: Sequence[Record]) -> Pair:
    try:
        judged = compare.compare_groups(base, group)
    except RecordError as error:
        return Pair(reference, candidate, refused=str(error))
    legs = [[r for r in side if r.concurrent() is not None] for side in (base, group)]
    shapes = {(leg.concurrency, leg.dup) for side in legs for r in side if (leg := r.concurrent()) is not None}
    under_load = compare.compare_concurrent(*legs) if all(legs) and len(shapes) == 1 else None
    workloads = list(dict.fromkeys(p.workload for p in judged.prompts))
    return Pair(
        reference=reference,
        candidate=candidate,
        baseline_starts=judged.baseline_starts,
        candidate_starts=judged.candidate_starts,
        unproved=judged.unproved,
        bytes=tuple(_byte_count(judged, workload) for workload in (*workloads, ALL)),
        verdicts=judged.prompts,
        ratios=tuple(
            replace(ratio(w, _prompts(base), _prompts(group)), drift=drift(w, base, group)) for w in workloads
        ),
        concurrent_bytes=replace(_byte_count(under_load, ALL), same_rate=None) if under_load else None,
        aggregate_ratio=aggregate_ratio(*legs) if under_load else None,
        differences=fairness.differences(base[0], group[0]),
    )


def _byte_count(judged: RecordComparison, workload: str) -> ByteCount:
    chosen = [p.verdict for p in judged.prompts if workload in (ALL, p.workload)]
    counts = {verdict: chosen.count(verdict) for verdict in compare.VERDICTS}
    answered = len(chosen) - counts["missing"]
    return ByteCount(workload, len(chosen), answered, counts, stats.wilson(counts["same"], answered))


def ratio(workload: str, base: Sequence[PromptResult], group: Sequence[PromptResult]) -> Ratio:
    """Return candidate over reference on one workload; both sides have the same prompts."""
    ours = {p.id: p for p in base if p.workload == workload}
    theirs = {p.id: p for p in group if p.workload == workload}

    def estimate(value: Callable[[PromptResult], float | None]) -> RatioEstimate | None:
        # A prompt that failed on either side has no value there, and is left out of both.
        pairs = [(value(theirs[key]), value(ours[key])) for key in ours]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        return stats.paired_ratio([a for a, _ in known], [b for _, b in known])

    return Ratio(workload, len(ours), estimate(lambda p: p.decode_tok_s), estimate(lambda p: p.ttft_s))


def drift(workload: str, *sides: Sequence[Record]) -> float | None:
    """Return the largest paired ratio of decode rates between two runs of one config, from 1 up."""
    found = [
        decode.geometric_mean
        for side in sides
        for a, b in combinations(side, 2)
        if (decode := ratio(workload, _prompts([a]), _prompts([b])).decode) is not None
    ]
    return max((max(mean, 1 / mean) for mean in found), default=None)


def aggregate_ratio(base: Sequence[Record], group: Sequence[Record]) -> float | None:
    """Return the ratio of the geometric means of aggregate tok/s over the concurrent passes."""
    rates = [[c.aggregate_tok_s for r in side if (c := _concurrent(r)) and c.aggregate_tok_s] for side in (base, group)]
    return None if not all(rates) else stats.geometric_mean(rates[1]) / stats.geometric_mean(rates[0])
