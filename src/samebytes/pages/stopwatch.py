"""How much of a measurement is the stopwatch: the bench's result, and real engines' own clocks beside the client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebytes import definitions, exhibit, paths, prose, stats, stopwatch
from samebytes.bookdata import Measured
from samebytes.exhibit import Origin
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, paragraph, percent
from samebytes.record import Pass, Request
from samebytes.stopwatch import CPU, OURS, RATE, TTFT, Bench, Cell, Quantity

if TYPE_CHECKING:
    from samebytes.charts import Chart

SOURCE = f"results/bench/{stopwatch.FILE}"

CLIENTS = {
    "floor": "a reader in C that does nothing else",
    "samebytes": "this project’s client",
    "vllm": "the request function of vllm bench serve",
    "aiohttp": "bare aiohttp on uvloop, parsed afterwards",
    "openai": "ordinary streaming with openai",
    "guidellm": "GuideLLM",
    "aiperf": "AIPerf",
}


def measured() -> Bench | None:
    """Return the bench's result; None where it was not run, or only as a trial."""
    found = stopwatch.load(paths.bench() / stopwatch.FILE)
    return None if found is None or found.quick else found


def conclusion(bench: Bench | None) -> Html:
    """Return how far this project's client was off on the fullest load, beside the best of the others."""
    if bench is None:
        return paragraph("Not measured yet. To measure it: {}.", code("make bench"))
    cell = max(bench.cells, key=lambda c: (c.streams, -c.stagger_s, c.tokens == "1"))
    late = bench.medians(cell, TTFT.of)
    rate, cpu, after = (
        bench.medians(cell, of).get(OURS) for of in (RATE.of, CPU.of, lambda p: p.after_cpu_per_chunk_s)
    )
    if OURS not in late:
        return Html()
    return paragraph(
        "With {} at once, this project’s client is {} off in the TTFT of the worst of a hundred streams, and {} "
        "in the decode rate of the worst one (medians of {} repetitions). {} The server itself was {} late, the worst "
        "time in a hundred.{}",
        html("{} streams", count(cell.streams, source=SOURCE)),
        _shown(late[OURS], TTFT),
        _shown(rate, RATE),
        count(len(bench.values(cell, OURS, TTFT.of)), source=SOURCE),
        html(
            "It spends {} of CPU on a chunk while they run, and {} on parsing it afterwards.",
            _shown(cpu, CPU),
            _shown(after, CPU),
        )
        if cpu is not None
        else Html(),
        _shown(bench.lateness(cell), TTFT),
        _others(late),
    )


def _shown(value: float | None, quantity: Quantity) -> Html:
    return number(value, quantity.digits, quantity.unit, source=SOURCE, scale=quantity.scale)


def _others(late: Mapping[str, float]) -> Html:
    """Return how far the floor and the best of the other clients are off in the TTFT, of the medians by client."""
    others = {name: value for name, value in late.items() if name not in ("floor", OURS)}
    best = min(others, key=lambda name: others[name], default=None)
    parts = []
    if best is not None:
        parts.append(html(" The best of the others, {}, is {} off there.", code(best), _shown(others[best], TTFT)))
    if "floor" in late:
        parts.append(html(" A reader that does nothing else is {} off.", _shown(late["floor"], TTFT)))
    return join(parts)


def who(bench: Bench | None) -> Html:
    """Return who was compared, in which version, and who could not be."""
    if bench is None:
        return Html()
    items = [
        html("{}: {} {}", code(name), CLIENTS[name], _versions(bench.versions.get(name, {})))
        for name in sorted({p.client for p in bench.passes}, key=list(CLIENTS).index)
    ]
    items += [
        html("{}: not measured: {}", code(name), given(why, source=SOURCE)) for name, why in bench.missing.items()
    ]
    unfinished = Html() if bench.complete else paragraph("This run was not brought to its end.")
    return join([unfinished, prose.bullets(items), disturbed(bench)])


def disturbed(bench: Bench) -> Html:
    """Return how many passes were set aside, and which count although they were disturbed too."""
    nevertheless = stopwatch.disturbed(bench)
    items = [
        html(
            "{}: {}, repetitions: {}",
            code(client),
            given(stopwatch.title(cell), source=SOURCE),
            count(n, source=SOURCE),
        )
        for (client, cell), n in nevertheless.items()
    ]
    return join(
        [
            paragraph(
                "A pass is disturbed where the server itself was later than a chunk’s interval one time in a hundred: "
                "the machine did something else. It is then set aside and repeated, once: {} passes were. {}",
                prose.of(len(bench.set_aside), len(bench.passes), source=SOURCE),
                "Disturbed again, and counted all the same:" if nevertheless else "None of those that count is.",
            ),
            prose.bullets(items),
        ]
    )


def _versions(found: dict[str, str]) -> Html:
    return html("({})", given(stopwatch.versions(found), source=SOURCE)) if found else Html()


def goals(bench: Bench | None) -> Html:
    """Return each goal that was set beforehand with what was measured and whether it was reached."""
    if bench is None:
        return Html()
    rows, data = [], []
    for found in (stopwatch.judge(bench, goal) for goal in stopwatch.GOALS):
        goal, quantity = found.goal, found.goal.quantity
        limit, others, floor, slack = (
            _shown(value, quantity) for value in (found.limit, found.others, found.floor, found.slack)
        )
        to_reach = html("at most {}", limit)
        if goal.limit is None:
            whose = code(goal.against) if goal.against else "the best of the others"
            to_reach = html("{} <small>half of {}</small>", to_reach, whose)
        rows.append(
            [
                html("{}, {}", quantity.text, html("{} streams", count(goal.streams, source=SOURCE))),
                html("<strong>{}</strong>", found.verdict),
                _spread(found.ours, quantity.digits, quantity.scale, quantity.unit),
                to_reach,
                html("{} <small>{}</small>", others, code(found.other) if found.other else ""),
                floor,
                slack if found.slack else "",
            ]
        )
        data.append(
            {"goal": quantity.text, "streams": goal.streams, "limit": found.limit, "other": found.other}
            | {"samebytes": stats.median(found.ours) if found.ours else None, "others": found.others}
            | {"floor": found.floor, "server_late": found.slack, "verdict": found.verdict}
        )
    return exhibit.table(
        "stopwatch-goals",
        "Goals that were set before the measurement: all requests at one instant, one token a chunk. Not decided: "
        "repetitions lie on both sides of the limit, or the server’s own lateness could be the difference. That "
        "lateness is of all clients’ passes (worst of a hundred chunks, median); of a decode rate it is what one end "
        "of a stream so late makes.",
        ["goal", "verdict", "this project’s client", "to reach", "of the others", "the floor", "the server’s lateness"],
        rows,
        _origin(bench),
        data=data,
        words={1},
    )


def tables(bench: Bench | None) -> Html:
    """Return a table for each kind of load."""
    if bench is None:
        return Html()
    return join([paragraph(stopwatch.LEGEND), *(_table(bench, i, cell) for i, cell in enumerate(bench.cells))])


def chart(bench: Bench | None) -> Html:
    """Return how late each client reports the first token when all requests come at one instant, by their number."""
    if bench is None or not bench.at_once:
        return Html()
    rows: list[dict[str, Any]] = []
    for cell in bench.at_once:
        for client in bench.clients(cell):
            values = bench.values(cell, client, TTFT.of)
            # a logarithmic axis has no zero
            low, mid, high = _extent([1000 * max(value, 1e-6) for value in values])
            rows.append({"client": client, "streams": cell.streams, "least_ms": low, "ms": mid, "most_ms": high})
    said = [
        html(
            "{}: {}",
            code(client),
            join(
                (
                    html("{} with {}", number(r["ms"], 1, "ms", source=SOURCE), count(r["streams"], source=SOURCE))
                    for r in rows
                    if r["client"] == client
                ),
                ", ",
            ),
        )
        for client in dict.fromkeys(row["client"] for row in rows)
    ]
    return exhibit.chart(
        "stopwatch-ttft",
        _drawn(rows),
        html("TTFT error in the worst of a hundred streams, by how many were sent at once. {}.", join(said, "; ")),
        "How far off each client’s TTFT is in the worst of a hundred streams, all sent at one instant: medians over "
        "the repetitions, and from least to most. The axis is logarithmic.",
        _origin(bench),
        data=rows,
    )


def _drawn(rows: Sequence[Mapping[str, Any]]) -> Chart:
    import altair

    source = altair.InlineData(values=[{**row, "streams": str(row["streams"])} for row in rows])
    levels = [str(n) for n in sorted({row["streams"] for row in rows})]
    order = sorted({row["client"] for row in rows}, key=list(CLIENTS).index)
    y = altair.Y("client:N", title=None, sort=order)
    scale = altair.Scale(domain=levels)
    bars = (
        altair.Chart(source)
        .mark_rule()
        .encode(
            y=y,
            x=altair.X("least_ms:Q", title="TTFT error, ms", scale=altair.Scale(type="log")),
            x2="most_ms:Q",
            color=altair.Color("streams:N", title="streams", scale=scale),
        )
    )
    marks = (
        altair.Chart(source)
        .mark_point(filled=True, size=70)
        .encode(
            y=y,
            x=altair.X("ms:Q", title="TTFT error, ms"),
            color=altair.Color("streams:N", title="streams", scale=scale),
            shape=altair.Shape("streams:N", title="streams", scale=scale),
            tooltip=[
                altair.Tooltip("client:N"),
                altair.Tooltip("streams:N"),
                altair.Tooltip("ms:Q", title="ms", format=".2f"),
                altair.Tooltip("least_ms:Q", title="least, ms", format=".2f"),
                altair.Tooltip("most_ms:Q", title="most, ms", format=".2f"),
            ],
        )
    )
    return altair.layer(bars, marks).properties(height=30 * len(order) + 30)


def _table(bench: Bench, index: int, cell: Cell) -> Html:
    rows, data = [], []
    for client in bench.clients(cell):
        shown, raw = [], {}
        for name, of, digits, scale in stopwatch.COLUMNS:
            values = bench.values(cell, client, of)
            shown.append(_spread(values, digits, scale))
            raw[name] = stats.median(values) if values else None
        rows.append([code(client), *shown])
        data.append({"client": client, **raw})
    return exhibit.table(
        f"stopwatch-{index}",
        given(stopwatch.title(cell), source=SOURCE),
        ["client", *(name for name, *_ in stopwatch.COLUMNS)],
        rows,
        _origin(bench),
        data=data,
    )


def _spread(values: Sequence[float], digits: int, scale: float, unit: str = "") -> Html:
    if not values:
        return number(None, source=SOURCE, missing="not measured for the client alone")
    least, median, most = _extent(values)
    mid = number(median, digits, unit, source=SOURCE, scale=scale)
    low, high = (number(value, digits, source=SOURCE, scale=scale) for value in (least, most))
    return html("{} <small>{} to {}</small>", mid, low, high) if len(values) > 1 else mid


def _extent(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), stats.median(values), max(values)


def _origin(bench: Bench) -> Origin:
    return Origin(
        records=(SOURCE,),
        machine=", ".join(str(value) for value in bench.machine.values()),
        vllm=bench.versions.get("vllm", {}).get("vllm"),
        date=bench.date[:10],
        commit=bench.commit,
        command="make bench",
    )


# -- a real engine's own clock ----------------------------------------------------------------------------------------


def agreement(found: Measured) -> Html:
    """Return what the client timed beside what the engine's own histograms hold, for every pass of a study.

    Means over a pass, since a histogram's sum and count give no more. Passes with a request that failed are left out:
    the engine counts it and the client does not.
    """
    rows, data = [], []
    for record in found.records:
        for p in record.passes:
            clocks = both(p)
            if clocks is None:
                continue
            source = f"results/{found.name}/{record.label}.json"
            ttft, engine_ttft, decode, engine_decode = clocks
            rows.append(
                [
                    html("{} <small>{}</small>", code(record.label), p.kind),
                    count(len(p.requests), source=source),
                    number(ttft, 2, source=source, scale=1000),
                    number(engine_ttft, 2, source=f"vllm:time_to_first_token_seconds: {source}", scale=1000),
                    number(ttft - engine_ttft, 2, source=source, scale=1000),
                    number(decode, 3, source=source),
                    number(engine_decode, 3, source=f"vllm:request_decode_time_seconds: {source}"),
                    percent(decode / engine_decode - 1, 3, source=source),
                ]
            )
            data.append(
                {"run": record.label, "kind": p.kind, "requests": len(p.requests), "ttft_s": ttft}
                | {"engine_ttft_s": engine_ttft, "decode_s": decode, "engine_decode_s": engine_decode}
            )
    if not rows:
        return Html()
    return exhibit.table(
        f"clocks-{found.name}",
        html(
            "{}: means over each pass by the client’s clock and by the engine’s own",
            given(found.title, source=f"studies/{found.name}.yaml"),
        ),
        ["pass", "requests", "TTFT, ms", "engine’s", "difference", "decode, s", "engine’s", "difference"],
        rows,
        exhibit.origin(found),
        data=data,
    )


def both(p: Pass) -> tuple[float, float, float, float] | None:
    """Return a pass's mean TTFT and decode time in seconds, each by the client and by the engine; None where unknown.

    The engine's are its histograms' sums over their counts.
    """
    waits = [r.ttft_s for r in p.requests]
    times = [decode_s(r) for r in p.requests]
    if p.voided is not None or any(r.status != "ok" for r in p.requests):
        return None
    sides: list[float] = []
    for values, name in ((waits, "ttft"), (times, "decode_time")):
        known = [value for value in values if value is not None]
        total, counted = p.metrics.get(f"{name}_sum"), p.metrics.get(f"{name}_count")
        if not known or len(known) != len(values) or not total or counted != len(known):
            return None
        sides += [sum(known) / len(known), total / counted]
    return sides[0], sides[1], sides[2], sides[3]


def decode_s(request: Request) -> float | None:
    """Return the time from the first text to the chunk with the finish reason, in seconds."""
    if request.finish_s is None or request.first_text_s is None:
        return None
    return request.finish_s - request.first_text_s


def agreed(found: Sequence[Measured]) -> Html:
    """Return how far the two clocks are apart over all passes."""
    by_study = [[c for record in study.records for p in record.passes if (c := both(p)) is not None] for study in found]
    clocks = [c for each in by_study for c in each]
    if not clocks:
        return Html()
    source = f"every whole pass of results/{', '.join(study.name for study in found)}"
    apart = [1000 * (ttft - engine) for ttft, engine, _, _ in clocks]
    rates = [abs(decode / engine - 1) for *_, decode, engine in clocks]
    return paragraph(
        "On real engines, over {} passes of {} studies: the mean TTFT that the client reports differs from the "
        "engine’s own by {} to {} ms (median {}), and the mean decode time is at most {} from it.",
        count(len(clocks), source=source),
        count(sum(map(bool, by_study)), source=source),
        number(min(apart), 1, source=source),
        number(max(apart), 1, source=source),
        number(stats.median(apart), 1, source=source),
        percent(max(rates), 3, source=source),
    )


def limits() -> Html:
    """Return when a pass is called client-bound, and which passes are."""
    return paragraph(
        "A pass in which the client used more than {} of one core, or in which its loop was more than {} late one time "
        "in a hundred, is marked client-bound: its figures may be the client’s, not the server’s.",
        percent(definitions.CLIENT_BUSY, 0, source="samebytes.definitions.CLIENT_BUSY"),
        number(definitions.CLIENT_LATE_S, 0, "ms", source="samebytes.definitions.CLIENT_LATE_S", scale=1000),
    )


def bound(found: Sequence[Measured]) -> Html:
    """Return how many passes are client-bound, and which."""
    passes = [(study, row) for study in found for row in study.summary.passes]
    marked = [(study, row) for study, row in passes if row.client_bound]
    source = "every pass"
    return join(
        [
            paragraph("Of the passes shown on these pages: {}.", prose.of(len(marked), len(passes), source=source)),
            prose.bullets([html("{} in {}", common.run(row), code(study.name)) for study, row in marked]),
        ]
    )
