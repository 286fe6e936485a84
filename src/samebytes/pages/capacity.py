"""The room that an FP8 cache buys: conversations that fit, and what a load that needs the room makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samebytes import exhibit, fairness, prose
from samebytes.bookdata import Measured
from samebytes.findings import Concurrent
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent, times
from samebytes.published import Published
from samebytes.record import Pass, Record

if TYPE_CHECKING:
    from samebytes.charts import Chart

CONFIGS = ("baseline", "fp8")

LENGTHS = (1024, 2048, 4096, 8192, 16384)
"""Lengths of a conversation in tokens, for which the chart counts how many fit."""


@dataclass(frozen=True)
class Room:
    """One config's KV pool.

    Attributes
    ----------
    pool : int
        Tokens: the smallest of its server starts.
    longest : int or None
        Tokens of a request of full length; None where the server was not told.
    """

    config: str
    pool: int
    longest: int | None

    def fit(self, length: int) -> int:
        """Return how many conversations of a length fit at once."""
        return self.pool // length


def studies(found: Sequence[Measured]) -> list[Measured]:
    """Return the studies that know the pool of a baseline and of an FP8 cache."""
    return [study for study in found if len(rooms(study)) == len(CONFIGS)]


def rooms(study: Measured) -> list[Room]:
    """Return the pools of the baseline and of ``fp8``, as far as they are known."""
    result = []
    for name in CONFIGS:
        config = next((c for c in study.summary.configs if c.name == name), None)
        pool = min(config.memory.kv_cache_tokens, default=None) if config else None
        if pool is not None:
            longest = fairness.options(_records(study, name)[0].config.argv).get("--max-model-len", "")
            result.append(Room(name, pool, int(longest) if longest.isdigit() else None))
    return result


def _records(study: Measured, config: str) -> list[Record]:
    return [r for r in study.records if r.config.name == config and r.status == "complete"]


def conclusion(study: Measured) -> Html:
    """Return what the room came to in one study: tokens, conversations, throughput, waiting, preemptions."""
    base, fp8 = rooms(study)
    source = f"KV pool in tokens: {study.files('baseline')} and {study.files('fp8')}"
    parts = [
        html(
            "the pool went from {} to {} tokens ({})",
            count(base.pool, source=source),
            count(fp8.pool, source=source),
            times(fp8.pool / base.pool, source=source),
        )
    ]
    if base.longest and fp8.longest:
        parts.append(
            html(
                "conversations of {} tokens that fit: from {} to {}",
                count(base.longest, source=f"--max-model-len: {source}"),
                count(base.fit(base.longest), source=source),
                count(fp8.fit(fp8.longest), source=source),
            )
        )
    pair = common.pair(study, "fp8")
    if pair is not None and pair.aggregate_ratio is not None:
        ratio = times(pair.aggregate_ratio, source=f"aggregate tok/s of the concurrent leg: {source}")
        parts.append(html("many requests at once: {} the throughput", ratio))
    return paragraph(
        "{}{}, measured here: {}.",
        given(study.title, source=f"studies/{study.name}.yaml"),
        common.note(study),
        join(parts, "; "),
    )


def nothing_yet() -> Html:
    """Return what stands where no study has both pools."""
    return paragraph("No study has measured both pools yet. To do it: {}.", code("samebytes study NAME"))


# -- as published -----------------------------------------------------------------------------------------------------


def published_table(name: str, article: Published) -> Html:
    """Return pools, conversations and throughput as an article printed them."""
    rows, data = [], []
    for config in CONFIGS:
        figures = {key: f"{key}.{config}" for key in ("kv_pool", "conversations", "aggregate")}
        cells = [common.as_printed(article, figure) for figure in figures.values()]
        rows.append([code(config), *cells, common.as_printed(article, "preemptions")])
        values = {key: common.value_as_printed(article, figure) for key, figure in figures.items()}
        preemptions = common.value_as_printed(article, "preemptions")
        data.append({"config": config, **values, "preemptions": preemptions})
    return exhibit.table(
        f"capacity-published-{name}",
        html("As published, not measured by this project: “{}”.", article.title),
        ["config", "KV pool, tokens", "conversations of full length", "aggregate tok/s", "preemptions"],
        rows,
        exhibit.printed(name, article),
        data=data,
    )


# -- as measured ------------------------------------------------------------------------------------------------------


def room_table(study: Measured) -> Html:
    """Return the pools of a study and the conversations that fit."""
    rows, data = [], []
    found = rooms(study)
    for room in found:
        source = f"the server’s log: {study.files(room.config)}"
        sizes = study.summary.config(room.config).memory.kv_cache_bytes
        each = min(sizes, default=None)
        rows.append(
            [
                code(room.config),
                count(room.pool, source=source),
                number(each, 2, source=source, scale=2**-30, missing="the log does not tell"),
                number(each and each / room.pool, 1, source=source, scale=2**-10, missing="the log does not tell"),
                count(room.longest, source=f"--max-model-len: {source}"),
                count(room.longest and room.fit(room.longest), source=source),
            ]
        )
        data.append(
            {
                "config": room.config,
                "kv_pool_tokens": room.pool,
                "kv_pool_bytes": each,
                "longest_request_tokens": room.longest,
                "conversations": room.longest and room.fit(room.longest),
            }
        )
    return exhibit.table(
        f"capacity-room-{study.name}",
        html("Measured: the KV pool{}.", common.note(study)),
        ["config", "KV pool, tokens", "GiB", "KiB a token", "longest request, tokens", "of these fit"],
        rows,
        exhibit.origin(study, *(room.config for room in found)),
        data=data,
    )


def fit_chart(study: Measured) -> Html:
    """Return the chart of how many conversations fit, by their length."""
    found = rooms(study)
    longest = max((room.longest or 0 for room in found), default=0)
    lengths = [length for length in LENGTHS if length <= longest]
    rows = [{"config": r.config, "tokens": length, "conversations": r.fit(length)} for r in found for length in lengths]
    if not rows:
        return Html()
    said = [
        html(
            "{}: {}",
            code(room.config),
            common.listed(
                [
                    html("{} of {} tokens", count(room.fit(n), source=study.name), count(n, source=study.name))
                    for n in lengths
                ]
            ),
        )
        for room in found
    ]
    return exhibit.chart(
        f"capacity-fit-{study.name}",
        _fit_chart(rows),
        html("Conversations that fit into the KV pool at once, by their length. {}.", join(said, "; ")),
        "Whole conversations that fit at once: the pool’s tokens over a conversation’s.",
        exhibit.origin(study, *(room.config for room in found)),
        data=rows,
    )


def _fit_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    import altair

    drawn = (
        altair.Chart(altair.InlineData(values=list(rows)))
        .mark_line(point=altair.OverlayMarkDef(size=60, filled=True))
        .encode(
            x=altair.X("tokens:O", title="tokens of a conversation", axis=altair.Axis(labelAngle=0, format=",d")),
            y=altair.Y("conversations:Q", title="fit at once"),
            color=altair.Color("config:N", title=None, scale=altair.Scale(domain=list(CONFIGS))),
            tooltip=[altair.Tooltip("config:N"), altair.Tooltip("tokens:O"), altair.Tooltip("conversations:Q")],
        )
    )
    return altair.layer(drawn).properties(height=220)


@dataclass(frozen=True)
class Load:
    """One concurrent leg.

    Attributes
    ----------
    queue_s : float or None
        Mean seconds that a request waited in the engine's queue before its prompt was first worked on.
    """

    config: str
    record: Record
    leg: Pass
    found: Concurrent

    @property
    def queue_s(self) -> float | None:
        """See the class."""
        total, waited = (self.leg.metrics.get(f"queue_time_{part}") for part in ("sum", "count"))
        return None if total is None or not waited else total / waited

    @property
    def prompt_tokens(self) -> list[int]:
        """Lengths of the prompts, each once, the shortest first."""
        return sorted({r.prompt_tokens for r in self.leg.requests if r.prompt_tokens is not None})


def loads(study: Measured) -> list[Load]:
    """Return the concurrent legs of the baseline and of ``fp8``."""
    result = []
    for name in CONFIGS:
        config = next((c for c in study.summary.configs if c.name == name), None)
        by_label = {leg.label: leg for leg in config.concurrent} if config else {}
        for record in _records(study, name):
            leg = record.concurrent()
            if leg is not None and record.label in by_label:
                result.append(Load(name, record, leg, by_label[record.label]))
    return result


def load_table(study: Measured) -> Html:
    """Return the concurrent legs: throughput, waiting, preemptions, how full the pool got."""
    found = loads(study)
    if not found:
        return Html()
    rows, data = [], []
    for load in found:
        source = f"the concurrent leg of results/{study.name}/{load.record.label}.json"
        leg = load.found
        lengths = load.prompt_tokens
        rows.append(
            [
                common.run(leg),
                of(*leg.answered, source=source),
                join((count(end, source=source) for end in dict.fromkeys(lengths[:1] + lengths[-1:])), " to "),
                count(leg.peak_running, source=f"scraped twice a second: {source}"),
                number(leg.aggregate_tok_s, source=source),
                number(leg.makespan_s, source=source),
                number(load.queue_s, 2, source=f"vllm:request_queue_time_seconds, mean: {source}", scale=1000),
                number(leg.ttft_p50_s, 2, source=source),
                count(leg.preemptions, source=source),
                percent(leg.peak_kv_usage, 0, source=source),
            ]
        )
        data.append(
            {
                "run": load.record.label,
                "config": load.config,
                "in_flight": leg.concurrency,
                "answered": leg.answered[0],
                "requests": leg.answered[1],
                "shortest_prompt_tokens": lengths[0] if lengths else None,
                "longest_prompt_tokens": lengths[-1] if lengths else None,
                "peak_running": leg.peak_running,
                "aggregate_tok_s": leg.aggregate_tok_s,
                "makespan_s": leg.makespan_s,
                "queue_s_mean": load.queue_s,
                "ttft_p50_s": leg.ttft_p50_s,
                "preemptions": leg.preemptions,
                "peak_kv_usage": leg.peak_kv_usage,
            }
        )
    return exhibit.table(
        f"capacity-load-{study.name}",
        html(
            "Measured: {} requests in flight{}. In the queue: the mean wait before the engine first works on a "
            "request; first token: the median.",
            count(found[0].found.concurrency, source=study.name),
            common.note(study),
        ),
        [
            "run",
            "answered",
            "prompts, tokens",
            "running at most",
            "aggregate tok/s",
            "makespan, s",
            "in the queue, ms",
            "first token, s",
            "preemptions",
            "pool in use",
        ],
        rows,
        exhibit.origin(study, *dict.fromkeys(load.config for load in found)),
        data=data,
    )


def waiting_chart(study: Measured) -> Html:
    """Return the chart of each request's wait for its first token, in sending order."""
    found = _first_legs(study)
    if found is None:
        return Html()
    rows: list[dict[str, Any]] = [
        {
            "config": load.config,
            "request": number_,
            "prompt_tokens": request.prompt_tokens,
            "ttft_s": request.ttft_s,
        }
        for load in reversed(found)
        for number_, request in enumerate(sorted(load.leg.requests, key=lambda r: r.scheduled_s), 1)
        if request.ttft_s is not None
    ]
    if len({row["config"] for row in rows}) < len(CONFIGS):
        return Html()
    said = [
        html(
            "{}: median {}, longest {}",
            code(load.config),
            number(load.found.ttft_p50_s, 1, "s", source=study.name),
            number(
                max((row["ttft_s"] for row in rows if row["config"] == load.config), default=None),
                1,
                "s",
                source=study.name,
            ),
        )
        for load in found
    ]
    return exhibit.chart(
        f"capacity-waiting-{study.name}",
        _waiting_chart(rows),
        html("Seconds until the first token of each request of the concurrent leg. {}.", join(said, "; ")),
        "Each mark is a request, in the order in which they were sent; it waits for a place in the batch, for room in "
        "the pool, and for its own prompt to be read.",
        exhibit.origin(study, *CONFIGS),
        data=rows,
    )


def _waiting_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    import altair

    scale = altair.Scale(domain=list(CONFIGS))
    drawn = (
        altair.Chart(altair.InlineData(values=list(rows)))
        .mark_point(filled=True, size=70)
        .encode(
            x=altair.X("request:Q", title="request, in sending order"),
            y=altair.Y("ttft_s:Q", title="first token after, s"),
            color=altair.Color("config:N", title=None, scale=scale),
            shape=altair.Shape("config:N", title=None, scale=scale),
            tooltip=[
                altair.Tooltip("config:N"),
                altair.Tooltip("request:Q"),
                altair.Tooltip("prompt_tokens:Q", title="prompt, tokens", format=",d"),
                altair.Tooltip("ttft_s:Q", title="first token, s", format=".2f"),
            ],
        )
    )
    return altair.layer(drawn).properties(height=240)


def load_conclusion(study: Measured) -> Html:
    """Return whether this load needed the room, and what it made of it."""
    found = _first_legs(study)
    if found is None:
        return Html()
    base, fp8 = found
    source = f"the concurrent legs of {study.files('baseline')} and {study.files('fp8')}"
    waits = [load.queue_s for load in found if load.queue_s is not None]
    unit, scale = ("s", 1) if max(waits, default=0) >= 1 else ("ms", 1000)
    return paragraph(
        "{} In the queue, in the first run of each: {} with the baseline’s pool, {} with the FP8 one; preemptions: {} "
        "and {}; all answers, {} and {} tokens of them, after {} and {}.",
        _ROOM[study.summary.config("baseline").short_of_room],
        *(number(load.queue_s, 2, unit, source=source, scale=scale) for load in found),
        count(base.found.preemptions, source=source),
        count(fp8.found.preemptions, source=source),
        *(count(sum(r.completion_tokens or 0 for r in load.leg.requests), source=source) for load in found),
        number(base.found.makespan_s, 1, "s", source=source),
        number(fp8.found.makespan_s, 1, "s", source=source),
    )


_ROOM = {
    True: "With the baseline’s pool room was short.",
    False: "With the baseline’s pool room was never short.",
    None: "",
}


def _first_legs(study: Measured) -> tuple[Load, Load] | None:
    """Return the first concurrent leg of the baseline and of ``fp8``; None where one is missing."""
    found = {load.config: load for load in reversed(loads(study))}
    return (found["baseline"], found["fp8"]) if len(found) == len(CONFIGS) else None


def where_short(found: Sequence[Measured]) -> Html:
    """Return what FP8 made of the throughput wherever many requests at once ran short of room."""
    lines = []
    for study in found:
        pair = common.pair(study, "fp8")
        if pair is None or pair.aggregate_ratio is None or not study.summary.config("baseline").short_of_room:
            continue
        source = f"aggregate tok/s of the concurrent legs: {study.files('baseline')} and {study.files('fp8')}"
        title = given(study.title, source=f"studies/{study.name}.yaml")
        lines.append(html("{}{}: {}", title, common.note(study), times(pair.aggregate_ratio, source=source)))
    if not lines:
        return Html()
    head = paragraph("Where a load did run short of room, FP8’s throughput over the baseline’s was:")
    return join([head, prose.bullets(lines)])


def study(found: Measured) -> Html:
    """Return everything about one study's room."""
    return join(
        [
            common.heading(found, "capacity"),
            conclusion(found),
            room_table(found),
            fit_chart(found),
            load_conclusion(found),
            load_table(found),
            waiting_chart(found),
        ]
    )


def conclusions(found: Sequence[Measured]) -> Html:
    """Return the conclusion of every study, or that there is none."""
    return join(conclusion(each) for each in found) if found else nothing_yet()


def shape_missing(found: Sequence[Measured], name: str = "h200-qwen3-32b-shape") -> Html:
    """Return that the study of the article's size has not run, where it has not."""
    if any(each.name == name for each in found):
        return Html()
    return prose.paragraph(
        "The article’s size has not been measured yet. To do it: {}.", code(f"samebytes study {name}")
    )
