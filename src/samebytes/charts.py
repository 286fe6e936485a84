"""Charts of a study: an interactive Vega-Lite chart over a static SVG that stands where no script runs, and in print.

    python -m samebytes.charts STUDY    writes results/STUDY/speed.svg

Text and lines take the page's own colour, so that a chart reads on a light and on a dark page without being told.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import altair
import vl_convert

from samebytes import bookdata
from samebytes.bookdata import Measured
from samebytes.errors import UsageError
from samebytes.prose import Html, html, plain
from samebytes.record import write_atomic
from samebytes.tune import Sweep

WIDTH = 620
"""Width of the static picture's plot in pixels; on a page the chart is as wide as its column."""

CELL = 24
"""Side of a heat map's cell in pixels."""

LINE = 24
"""Height of one config's line of one workload in pixels."""

PALETTE = ("#1f7fc4", "#d55e00", "#109a6e", "#a366c9", "#b8860b")
"""Colours with a contrast of 3:1 or more against white and against the dark page, apart for colour-blind readers."""

Chart = (
    altair.Chart
    | altair.LayerChart
    | altair.FacetChart
    | altair.ConcatChart
    | altair.HConcatChart
    | altair.VConcatChart
)

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")


def theme(ink: str = "currentColor") -> dict[str, Any]:
    """Return the Vega-Lite config that every chart shares.

    Parameters
    ----------
    ink : str
        Colour of text and lines; by default the page's own.
    """
    lines = {"gridColor": ink, "gridOpacity": 0.15, "domainColor": ink, "tickColor": ink, "labelLimit": 240}
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {**text, **lines},
        "legend": {**text, "orient": "top", "title": None, "symbolSize": 90},
        "tick": {"color": ink},
        "rule": {"color": ink},
        "title": {"color": ink, "fontSize": 13, "fontWeight": "normal"},
        "range": {"category": list(PALETTE), "symbol": list(SHAPES)},
    }


def speed(study: Measured, names: Mapping[str, str] | None = None) -> Chart:
    """Return the chart of decode throughput per prompt, by config and workload, with each workload's median.

    Parameters
    ----------
    names : mapping, optional
        What a workload is called; any other by its own name.
    """
    called = {workload: (names or {}).get(workload, workload) for workload in study.workloads}
    rows = [
        {
            "config": config.name,
            "workload": called[p.workload],
            "prompt": p.id,
            "tok_s": p.decode_tok_s,
            "runs": len(p.tokens),
        }
        for config in study.timed
        for p in config.prompts
        if p.decode_tok_s is not None
    ]
    workload = list(called.values())
    base = altair.Chart(altair.InlineData(values=rows)).encode(
        y=altair.Y("config:N", title=None, sort=None),
        yOffset=altair.YOffset("workload:N", sort=workload),
    )
    points = base.mark_point(filled=True, size=55, opacity=0.85).encode(
        x=altair.X("tok_s:Q", title="decode throughput, tok/s", scale=altair.Scale(zero=True)),
        color=altair.Color("workload:N", scale=altair.Scale(domain=workload), title=None),
        shape=altair.Shape("workload:N", scale=altair.Scale(domain=workload), title=None),
        tooltip=[
            altair.Tooltip("prompt:N"),
            altair.Tooltip("config:N"),
            altair.Tooltip("tok_s:Q", title="tok/s", format=",.1f"),
            altair.Tooltip("runs:Q"),
        ],
    )
    medians = base.mark_tick(thickness=2, size=17).encode(
        x=altair.X("median(tok_s):Q"),
        detail="workload:N",
        tooltip=[
            altair.Tooltip("config:N"),
            altair.Tooltip("workload:N"),
            altair.Tooltip("median(tok_s):Q", title="median tok/s", format=",.1f"),
        ],
    )
    lines = len(study.timed) * len(workload)
    return altair.layer(points, medians).properties(height=LINE * lines)


def tuning(sweep: Sweep) -> Chart:
    """Return a sweep as heat maps: predicted speed-up by draft length and shortest lookup, a map per workload.

    The longest lookup of a cell is the best one.
    """
    fields = ("workload", "k", "min_n", "max_n", "speed_up", "acceptance_rate", "tokens_per_step")
    best: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in sweep.rows():
        key = row["workload"], row["k"], row["min_n"]
        if key not in best or row["speed_up"] > best[key]["speed_up"]:
            best[key] = {field: row[field] for field in fields}
    speed_ups = [row["speed_up"] for row in best.values()]
    scale = altair.Scale(scheme="viridis", domain=[min(speed_ups), max(speed_ups)])
    maps = [
        altair.Chart(altair.InlineData(values=[row for (name, *_), row in best.items() if name == workload]))
        .mark_rect(aria=False)  # a label for each cell would be most of the picture; the rows are in a table
        .encode(
            x=altair.X("k:O", title="num_speculative_tokens", axis=altair.Axis(labelAngle=0)),
            y=altair.Y("min_n:O", title="prompt_lookup_min", sort="descending"),
            color=altair.Color(
                "speed_up:Q",
                scale=scale,
                # squares, not a gradient: one that another picture on the page names too is drawn by neither
                legend=altair.Legend(title="predicted speed-up", format=".1f", type="symbol", symbolType="square"),
            ),
            tooltip=[
                altair.Tooltip("k:O", title="num_speculative_tokens"),
                altair.Tooltip("min_n:O", title="prompt_lookup_min"),
                altair.Tooltip("max_n:O", title="prompt_lookup_max"),
                altair.Tooltip("speed_up:Q", title="predicted speed-up", format=".2f"),
                altair.Tooltip("acceptance_rate:Q", title="acceptance rate", format=".0%"),
                altair.Tooltip("tokens_per_step:Q", title="tokens per step", format=".2f"),
            ],
        )
        .properties(title=workload, width=CELL * 10, height=CELL * 5)
        for workload in dict.fromkeys(name for name, *_ in best)
    ]
    return altair.concat(*maps, columns=2)


def spec(chart: Chart, ink: str = "currentColor", **properties: Any) -> dict[str, Any]:
    """Return a chart's Vega-Lite spec under the common theme, without the URL of its schema.

    Raises
    ------
    ValueError
        For NaN or an infinity in the data.
    """
    found: dict[str, Any] = chart.to_dict()
    found.pop("$schema")
    found = {**found, **properties, "config": theme(ink)}
    json.dumps(found, allow_nan=False)
    return found


def svg(found: dict[str, Any]) -> str:
    """Return a spec as a static SVG."""
    return str(vl_convert.vegalite_to_svg(json.dumps(found, allow_nan=False)))


def rows(chart: Chart) -> list[dict[str, Any]]:
    """Return the rows of data that a chart carries."""
    return [row for found in chart.to_dict().get("datasets", {}).values() for row in found]


def drawing(chart: Chart, description: str, *, label: str) -> Html:
    """Return a chart: the static picture, which a script replaces by the interactive chart, and its description.

    A chart of one plot is as wide as its column; one of several keeps its width and scrolls where that is too wide.

    Parameters
    ----------
    description : str
        What the chart shows, in words, for those who do not see it; its numbers as `Html` of `samebytes.prose`.
    label : str
        ``id`` of the description, unique on the page.
    """
    single = isinstance(chart, (altair.Chart, altair.LayerChart))
    live = spec(chart, description=plain(description), **_width("container", single))
    picture = svg(spec(chart, **_width(WIDTH, single)))
    picture = re.sub(r' aria-label="[^"]*"| role="[^"]*"', "", picture)  # the description is read instead
    picture = re.sub(r"(\.\d{2})\d{4,}", r"\1", picture)  # a hundredth of a pixel is enough
    static = picture.replace("<svg ", '<svg aria-hidden="true" ', 1)
    data = json.dumps(live, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return html(
        '<p class="visually-hidden" id="{}">{}</p>'
        '<div class="chart-static" role="img" aria-labelledby="{}">{}</div>'
        '<div class="chart-live"></div><script type="application/json">{}</script>',
        label,
        description,
        label,
        Html(static),
        Html(data),
    )


def _width(width: object, single: bool) -> dict[str, Any]:
    return {"width": width} if single else {}


def picture(study: Measured) -> str:
    """Return a study's chart as an SVG that stands on its own, in ink on white."""
    room = {
        "left": 36,
        "top": 12,
        "right": 12,
        "bottom": 12,
    }  # the reader's font may be wider than the one measured with
    return svg(spec(speed(study), ink="#222", width=WIDTH, background="white", padding=room))


def main(names: Sequence[str]) -> None:
    """Write the picture of each study."""
    for name in names:
        study = bookdata.measured(name)
        if study is None:
            raise UsageError(f"study {name!r} has no records in results/")
        write_atomic(study.folder / "speed.svg", picture(study) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
