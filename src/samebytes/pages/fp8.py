"""The FP8 KV cache: room against words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebytes import exhibit, stats
from samebytes.bookdata import Measured
from samebytes.findings import Concurrent, ConfigResult
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent, times
from samebytes.published import Published

if TYPE_CHECKING:
    from samebytes.charts import Chart

GIB = 2**-30


def conclusion(found: Measured) -> Html:
    """Return what an FP8 KV cache brings and costs on a study's machine, or why it does not run there."""
    machine = common.machine(found)
    reason = common.failure(found, "fp8")
    if reason is not None:
        return paragraph("{}: it does not run: {}", machine, given(reason, source=f"results/{found.name}"))
    pair = common.pair(found, "fp8")
    if pair is None:
        return Html()
    room = pool_ratio(found)
    source = common.pair_source(found, pair)
    aggregate = Html()
    if pair.aggregate_ratio is not None:
        what = f"aggregate tok/s of one concurrent leg each: {source}"
        aggregate = html(" Many requests at once: {} the throughput.", times(pair.aggregate_ratio, source=what))
    return paragraph(
        "{}: {} the tokens in the KV pool; answers: {}. One request at a time: {}.{}",
        machine,
        times(room, source=f"KV pool in tokens: {source}", missing="the pool’s size was not told"),
        common.same_bytes(found, pair),
        common.listed(
            [html("{} {}", common.workload_name(r.workload), common.speed_ratio(found, pair, r)) for r in pair.ratios]
        ),
        aggregate,
    )


def pool_ratio(found: Measured) -> float | None:
    """Return how many times the baseline's tokens the pool of ``fp8`` holds (each config's smallest pool)."""
    pools = [min(_config(found, name).memory.kv_cache_tokens, default=None) for name in ("fp8", "baseline")]
    return None if None in pools or not pools[1] else (pools[0] or 0) / pools[1]


def _config(found: Measured, name: str) -> ConfigResult:
    return found.summary.config(name)


# -- room against words -----------------------------------------------------------------------------------------------


def trade_rows(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return room and unchanged answers of every config of the article, relative to the baseline."""
    rows = []
    for study in found:
        base = next((c for c in study.summary.configs if c.name == "baseline"), None)
        pool = min(base.memory.kv_cache_tokens, default=None) if base else None
        for name in common.ARTICLE_CONFIGS[1:]:
            pair = common.pair(study, name)
            total = common.byte_count(pair) if pair else None
            mine = min(_config(study, name).memory.kv_cache_tokens, default=None) if pair else None
            if total is not None and pool and mine:
                row = _trade(name, study.where, mine / pool, total.counts["same"], total.judged)
                rows.append(row)
    return rows


def published(article: Published) -> Html:
    """Return what an article printed of room and words."""
    pools = [common.value_as_printed(article, f"kv_pool.{name}") for name in ("fp8", "baseline")]
    if None in pools or not pools[1]:
        return Html()
    return paragraph(
        "Published, not measured here ({}): the pool went from {} to {} tokens, {} of {} answers kept the baseline’s "
        "bytes, and throughput with many requests at once went from {} to {} tok/s.",
        given(article.setup.get("gpu"), source=article.title),
        *(common.as_printed(article, name) for name in _PRINTED),
    )


_PRINTED = ("kv_pool.baseline", "kv_pool.fp8", "fp8.same", "prompts", "aggregate.baseline", "aggregate.fp8")


def _trade(config: str, machine: str, room: float, same: float, judged: float) -> dict[str, Any]:
    rate = stats.wilson(int(same), int(judged))
    return {
        "config": config,
        "machine": machine,
        "room": round(room, 4),
        "same": int(same),
        "judged": int(judged),
        "share": same / judged,
        "low": rate.low if rate else None,
        "high": rate.high if rate else None,
    }


def trade(found: Sequence[Measured]) -> Html:
    """Return the chart of room against words."""
    rows = trade_rows(found)
    if not rows:
        return Html()
    said = [
        html(
            "{} on {}: {} the room, {} answers the same",
            code(row["config"]),
            given(row["machine"], source="results"),
            times(row["room"], source="KV pool in tokens over the baseline’s"),
            of(row["same"], row["judged"], source="same bytes"),
        )
        for row in rows
    ]
    return exhibit.chart(
        "fp8-trade",
        _trade_chart(rows),
        html("Answers with the baseline’s bytes against tokens in the KV pool. {}.", join(said, "; ")),
        html(
            "Right: more room than the baseline. Up: more answers with its bytes (with the {} interval of that share).",
            common.level(),
        ),
        exhibit.together(exhibit.origin(study, *_ran(study)) for study in found),
        data=rows,
    )


def _ran(study: Measured) -> list[str]:
    return [c.name for c in study.summary.configs if c.name in common.ARTICLE_CONFIGS]


def _trade_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    import altair

    drawn = [dict(row) for row in rows]
    machines = list(dict.fromkeys(row["machine"] for row in drawn))
    configs = list(dict.fromkeys(row["config"] for row in drawn))
    widest = max(2.2, *(row["room"] * 1.1 for row in drawn))
    base = altair.Chart(altair.InlineData(values=drawn)).encode(
        x=altair.X(
            "room:Q",
            title="tokens in the KV pool, times the baseline’s",
            axis=altair.Axis(tickCount=5),
            scale=altair.Scale(domain=[0.5, widest], nice=False),
        ),
        color=altair.Color("config:N", scale=altair.Scale(domain=configs), title=None),
    )
    spans = base.mark_rule(opacity=0.6).encode(y="low:Q", y2="high:Q")
    points = base.mark_point(filled=False, size=120, strokeWidth=2.5).encode(
        y=altair.Y(
            "share:Q",
            title="answers with the baseline’s bytes",
            axis=altair.Axis(format="%", tickCount=5),
            scale=altair.Scale(domain=[0, 1]),
        ),
        shape=altair.Shape("machine:N", scale=altair.Scale(domain=machines), title=None),
        tooltip=[
            altair.Tooltip("config:N"),
            altair.Tooltip("machine:N"),
            altair.Tooltip("room:Q", title="pool, times baseline", format=".2f"),
            altair.Tooltip("same:Q"),
            altair.Tooltip("judged:Q"),
        ],
    )
    return altair.layer(spans, points).properties(height=280)


# -- room -------------------------------------------------------------------------------------------------------------


def room_table(found: Measured) -> Html:
    """Return what the servers of every config said about their memory and kernels."""
    rows, data = [], []
    for config in found.summary.configs:
        memory = config.memory
        source = f"the server’s log: {found.files(config.name)}"
        untold = "the log does not tell"
        rows.append(
            [
                code(config.name),
                common.several(memory.kv_cache_tokens, 0, source, untold),
                common.several([size * GIB for size in memory.kv_cache_bytes], 2, source, untold),
                common.several(memory.max_concurrency, 1, source, untold),
                common.several([size * GIB for size in memory.graph_bytes], 2, source, untold),
                given(", ".join(memory.attention_backend) or None, source=source, missing=untold),
                given(_switch(memory.async_scheduling), source=source, missing=untold),
            ]
        )
        data.append(
            {
                "config": config.name,
                "kv_pool_tokens": min(memory.kv_cache_tokens, default=None),
                "kv_pool_bytes": min(memory.kv_cache_bytes, default=None),
                "full_length_requests": min(memory.max_concurrency, default=None),
                "graph_bytes": max(memory.graph_bytes, default=None),
                "attention_backend": ", ".join(memory.attention_backend) or None,
                "scheduling": _switch(memory.async_scheduling),
            }
        )
    return exhibit.table(
        f"fp8-room-{found.name}",
        "Memory and kernels, as each server’s log told them. Several values are those of several starts.",
        [
            "config",
            "KV pool, tokens",
            "KV pool, GiB",
            "requests of full length",
            "graphs, GiB",
            "attention backend",
            "scheduling",
        ],
        rows,
        exhibit.origin(found, *(config.name for config in found.summary.configs)),
        data=data,
        words=(5, 6),
    )


def _switch(values: Sequence[bool]) -> str | None:
    return ", ".join("asynchronous" if value else "synchronous" for value in values) or None


def backends(found: Measured) -> Html:
    """Return whether ``fp8`` also changed the attention kernels."""
    names = {c.name: c.memory.attention_backend for c in found.summary.configs if c.name in ("baseline", "fp8")}
    machine = common.machine(found)
    if len(names) < 2 or not all(names.values()):
        return paragraph("{}: the engine’s log does not tell which attention kernels ran.", machine)
    source = f"the server’s log: {found.files('baseline')} and {found.files('fp8')}"
    ours, theirs = (given(", ".join(names[name]), source=source) for name in ("baseline", "fp8"))
    if names["baseline"] == names["fp8"]:
        return paragraph(
            "{}: both configs ran {}, so the cache’s numbers are all that changed between them.", machine, ours
        )
    return paragraph(
        "{}: the baseline ran {} and {} ran {}, so the flag changed the kernels too, and what it does to speed and "
        "words cannot be put down to the smaller numbers alone.",
        machine,
        ours,
        code("fp8"),
        theirs,
    )


# -- load -------------------------------------------------------------------------------------------------------------


def load_table(found: Measured) -> Html:
    """Return the concurrent legs: throughput, waiting, preemptions and how full the pool got."""
    legs = [(config.name, leg) for config in found.summary.configs for leg in config.concurrent]
    if not legs:
        return Html()
    return exhibit.table(
        f"fp8-load-{found.name}",
        "Many requests at once: throughput over all of them, time to first token (median and worst of a hundred), "
        "preemptions, and the largest share of the KV pool in use.",
        [
            "run",
            "in flight",
            "answered",
            "aggregate tok/s",
            "makespan, s",
            "TTFT, ms",
            "worst TTFT, ms",
            "preemptions",
            "pool in use",
        ],
        [_leg_cells(found, leg) for _, leg in legs],
        exhibit.origin(found, *dict.fromkeys(name for name, _ in legs)),
        data=[_leg_row(name, leg) for name, leg in legs],
    )


def _leg_cells(found: Measured, leg: Concurrent) -> list[object]:
    source = f"the concurrent leg of results/{found.name}/{leg.label}.json"
    return [
        common.run(leg),
        count(leg.concurrency, source=source),
        of(*leg.answered, source=source),
        number(leg.aggregate_tok_s, 0, source=source),
        number(leg.makespan_s, 1, source=source),
        number(leg.ttft_p50_s, 0, source=f"median: {source}", scale=1000),
        number(leg.ttft_p99_s, 0, source=f"99th percentile: {source}", scale=1000),
        count(leg.preemptions, source=source),
        percent(leg.peak_kv_usage, source=source),
    ]


def _leg_row(config: str, leg: Concurrent) -> dict[str, object]:
    return {
        "run": leg.label,
        "config": config,
        "in_flight": leg.concurrency,
        "answered": leg.answered[0],
        "requests": leg.answered[1],
        "aggregate_tok_s": leg.aggregate_tok_s,
        "makespan_s": leg.makespan_s,
        "ttft_p50_s": leg.ttft_p50_s,
        "ttft_p99_s": leg.ttft_p99_s,
        "preemptions": leg.preemptions,
        "peak_kv_usage": leg.peak_kv_usage,
    }


def load_conclusion(found: Measured) -> Html:
    """Return whether the room of ``fp8`` was ever needed under load."""
    base = next((config for config in found.summary.configs if config.name == "baseline"), None)
    legs = [leg for leg in base.concurrent if leg.peak_kv_usage is not None] if base else []
    if base is None or not legs:
        return Html()
    leg = max(legs, key=lambda leg: (leg.preemptions or 0, leg.peak_kv_usage))
    source = f"the concurrent leg of results/{found.name}/{leg.label}.json"
    return paragraph(
        "{}: with {} requests in flight the baseline’s pool was at most {} full; preemptions: {}. {}",
        common.machine(found),
        count(leg.concurrency, source=source),
        percent(leg.peak_kv_usage, source=source),
        count(leg.preemptions, source=source),
        "So room was short, and more of it is worth something here."
        if base.short_of_room
        else "So room was never short here, and more of it could not make this load any faster.",
    )
