"""The timeline: what each run spent its time on, from its server start on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from samebytes import exhibit
from samebytes.bookdata import Measured
from samebytes.findings import Moment
from samebytes.pages import common
from samebytes.prose import Html, code, given, html, join, number, paragraph, percent

if TYPE_CHECKING:
    from samebytes.charts import Chart

PHASES = ("loading", "warm-up", "sequential pass", "concurrent pass", "other")
"""What a run's time is spent on."""

_PHASE = {
    "server start": "loading",
    "ready": "warm-up",
    "sequential pass begins": "sequential pass",
    "concurrent pass begins": "concurrent pass",
}
"""The phase that begins with an event; any other event begins the last one."""


@dataclass(frozen=True)
class Span:
    """A phase of one server start, in seconds from it."""

    run: str
    launch: int
    started: str | None
    phase: str
    start_s: float
    end_s: float


def spans(found: Measured) -> list[Span]:
    """Return the phases of every server start, in the order in which the servers were started.

    An event whose time is not known ends no phase and begins none.
    """
    starts: dict[tuple[str, int], list[Moment]] = {}
    for moment in found.summary.timeline:
        starts.setdefault((moment.label, moment.launch), []).append(moment)
    result = []
    for (run, launch), moments in sorted(starts.items(), key=lambda item: item[1][0].at or ""):
        known = [(m.event, m.t_s) for m in moments if m.t_s is not None]
        for (event, start_s), (_, end_s) in pairwise(known):
            if end_s > start_s:
                phase = _PHASE.get(event, PHASES[-1])
                result.append(Span(run, launch, moments[0].at, phase, start_s, end_s))
    return result


def total(found: Sequence[Span], *phases: str) -> float:
    """Return the seconds spent in some phases, in all if none is named."""
    return sum(span.end_s - span.start_s for span in found if not phases or span.phase in phases)


def conclusion(found: Measured) -> Html:
    """Return how much of a study's time was spent on measuring."""
    known = spans(found)
    if not known:
        return Html()
    source = f"the launches and passes of results/{found.name}/*.json"
    whole = total(known)
    servers = len({(span.run, span.launch) for span in known})
    return paragraph(
        "{}: {} server starts took {} in all. {} of it went into starting the engine, {} into answering the prompts "
        "one at a time, {} into many at once.",
        common.machine(found),
        number(servers, 0, source=source),
        number(whole, 1, "min", source=source, scale=1 / 60),
        percent(total(known, "loading") / whole, 0, source=source),
        percent(total(known, "sequential pass") / whole, 0, source=source),
        percent(total(known, "concurrent pass") / whole, 0, source=source),
    )


def chart(found: Measured) -> Html:
    """Return the chart of phases, a bar for each server start."""
    known = spans(found)
    if not known:
        return Html()
    source = f"the launches and passes of results/{found.name}/*.json"
    totals = [
        html("{} {}", phase, number(total(known, phase), 0, "s", source=source))
        for phase in PHASES
        if total(known, phase)
    ]
    rows = [
        {"run": _name(span, known), "phase": span.phase, "start_s": span.start_s, "end_s": span.end_s} for span in known
    ]
    return exhibit.chart(
        f"timeline-{found.name}",
        _chart(rows),
        html("What each server’s time was spent on. Over all of them: {}.", join(totals, ", ")),
        "A bar per server start, in the order in which they ran; seconds from the moment its process was started.",
        exhibit.origin(found, *dict.fromkeys(r.config.name for r in found.records if r.launches)),
        data=rows,
    )


def _name(span: Span, known: Sequence[Span]) -> str:
    several = any(other.run == span.run and other.launch != span.launch for other in known)
    return f"{span.run}, start {span.launch + 1}" if several else span.run


def _chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    import altair

    from samebytes import charts

    drawn = [dict(row) | {"seconds": row["end_s"] - row["start_s"]} for row in rows]
    runs = list(dict.fromkeys(row["run"] for row in drawn))
    phases = [phase for phase in PHASES if any(row["phase"] == phase for row in drawn)]
    colours = [colour for phase, colour in zip(PHASES, _COLOURS, strict=True) if phase in phases]
    bars = (
        altair.Chart(altair.InlineData(values=drawn))
        .mark_bar(height=14)
        .encode(
            y=altair.Y("run:N", title=None, sort=runs),
            x=altair.X("start_s:Q", title="seconds", axis=altair.Axis(tickCount=8)),
            x2="end_s:Q",
            color=altair.Color("phase:N", scale=altair.Scale(domain=phases, range=colours), title=None, sort=phases),
            tooltip=[altair.Tooltip("run:N"), altair.Tooltip("phase:N"), altair.Tooltip("seconds:Q", format=".1f")],
        )
    )
    return altair.layer(bars).properties(height=charts.LINE * len(runs))


_COLOURS = ("#8a8a8a", "#b8860b", "#1f7fc4", "#109a6e", "#c9c9c9")


def table(found: Measured) -> Html:
    """Return the phases of every server start as a table."""
    known = spans(found)
    if not known:
        return Html()
    starts = dict.fromkeys((span.run, span.launch, span.started) for span in known)
    days = sorted({(started or "")[:10] for *_, started in starts})
    one_day = len(days) == 1
    rows, data = [], []
    for run, launch, started in starts:
        mine = [span for span in known if (span.run, span.launch) == (run, launch)]
        source = f"results/{found.name}/{run}.json"
        seconds = {phase: total(mine, phase) or None for phase in PHASES}
        cells = [number(seconds[phase], 0, source=source, missing="no such phase") for phase in PHASES]
        at = given(started and (started[11:19] if one_day else started[:19].replace("T", " ")), source=source)
        rows.append([code(_name(mine[0], known)), at, *cells, number(total(mine), 0, source=source)])
        data.append({"run": run, "start": launch + 1, "started": started, **seconds, "total": total(mine)})
    return exhibit.table(
        f"timeline-table-{found.name}",
        html(
            "Seconds of each server start, {}",
            given(" to ".join(dict.fromkeys((days[0], days[-1]))), source=f"results/{found.name}"),
        ),
        ["run", "started (UTC)", *PHASES, "total"],
        rows,
        exhibit.origin(found, *dict.fromkeys(r.config.name for r in found.records if r.launches)),
        data=data,
    )


def study(found: Measured) -> Html:
    """Return a study's timeline: chart and table."""
    return join([common.heading(found, "timeline"), chart(found), table(found)])
