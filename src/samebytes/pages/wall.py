"""The wall of memory bandwidth: where decode speed stands at it, where it does not, and what a step is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samebytes import exhibit, fairness, profile, prose, roofline, stats
from samebytes.bookdata import Measured
from samebytes.pages import common
from samebytes.prose import Html, code, given, html, join, number, paragraph, percent
from samebytes.published import Published
from samebytes.roofline import Bound, Shape

if TYPE_CHECKING:
    from samebytes.charts import Chart

CONFIGS = ("baseline", "baseline_sync", "fp8")
"""Configs whose steps give one token a request: what they read is known."""

AT_THE_WALL = 0.5
"""From this share of the bound up, reading takes most of a step's time."""

GB, TB = 1e-9, 1e-12


@dataclass(frozen=True)
class Case:
    """A config's decode speed, and what bandwidth allows it.

    Attributes
    ----------
    tok_s : float
        Median over the prompts.
    context : float
        Mean tokens of context over the decode steps.
    bytes_per_s, given_by : float, str, or None
        Bandwidth, and whose figure it is; None: not known.
    """

    study: Measured
    config: str
    tok_s: float
    context: float
    shape: Shape
    bytes_per_s: float | None
    given_by: str | None

    @property
    def bound(self) -> Bound | None:
        """What bandwidth allows; None where it is not known."""
        if self.bytes_per_s is None:
            return None
        element = 1 if self.config == "fp8" else 2
        return roofline.bound(self.shape, self.bytes_per_s, self.tok_s, context=self.context, element=element)

    @property
    def source(self) -> str:
        """Where the speed comes from."""
        return self.study.files(self.config)


def cases(found: Sequence[Measured]) -> list[Case]:
    """Return every case of the studies whose model's shape is known and whose weights are 16-bit or packed."""
    return [case for study in found for name in CONFIGS if (case := _case(study, name)) is not None]


def _case(study: Measured, config: str) -> Case | None:
    result = next((c for c in study.summary.configs if c.name == config), None)
    records = [r for r in study.records if r.config.name == config and r.status == "complete"]
    shape = roofline.SHAPES.get(records[0].model.id) if records else None
    if result is None or shape is None or fairness.options(records[0].config.argv).get("--dtype") == "float32":
        return None
    rates = [p.decode_tok_s for p in result.prompts if p.decode_tok_s is not None]
    if not rates:
        return None
    lengths = [
        request.prompt_tokens + (request.completion_tokens or 0) / 2
        for found in records
        for request in found.sequential()
        if request.prompt_tokens is not None
    ]
    bytes_per_s, given_by = bandwidth(study)
    return Case(study, config, stats.median(rates), sum(lengths) / len(lengths), shape, bytes_per_s, given_by)


def bandwidth(study: Measured) -> tuple[float | None, str | None]:
    """Return a machine's bandwidth: its vendor's figure, else what torch measured there."""
    card = roofline.card(study.records[0].machine.gpu)
    if card is not None:
        return card.bytes_per_s, "the vendor"
    measured = [p.copy_ for p in profile.of_study(study.folder).values() if p.copy_ is not None]
    if not measured:
        return None, None
    return max(max(c.copy_bytes_per_s, c.read_bytes_per_s) for c in measured), "a measurement"


# -- the bound --------------------------------------------------------------------------------------------------------


def conclusion(
    found: Sequence[Case], articles: Mapping[str, Published], hints: Mapping[str, Html] | None = None
) -> Html:
    """Return in which cases reading takes most of a step's time, and in which it does not.

    Parameters
    ----------
    hints : mapping of str to Html, optional
        What a study's profiles say of it, by the study's name.
    """
    lines = [line for article in articles.values() if (line := _published_line(article))]
    for case in found:
        bound = case.bound
        if bound is None or case.config != "baseline":
            continue
        machine = common.machine(case.study)
        lines.append(
            html(
                "{}{} on {}, measured here: {} of the bound. {}{}",
                given(case.study.records[0].model.id, source=case.source),
                common.note(case.study),
                machine,
                percent(bound.reached, 0, source=_bound_source(case)),
                _verdict(bound.reached),
                (hints or {}).get(case.study.name, ""),
            )
        )
    return prose.bullets(lines)


def _verdict(reached: float) -> str:
    return "The wall is what it stands at." if reached >= AT_THE_WALL else "Something else sets the pace."


def _bound_source(case: Case) -> str:
    return f"measured tok/s over bandwidth / bytes a token reads: {case.source}"


def _published(article: Published) -> tuple[list[float], float, roofline.Card] | None:
    """Return an article's baseline rates, its bytes of weights and its card; None where one is not known."""
    names = [f"{workload}.baseline" for workload in common.WORKLOADS]
    rates = [rate for name in names if (rate := common.value_as_printed(article, name)) is not None]
    weights = common.value_as_printed(article, "weights")
    card = roofline.card(article.setup.get("gpu"))
    return None if not rates or weights is None or card is None else (rates, weights / GB, card)


def _published_line(article: Published) -> Html | None:
    known = _published(article)
    if known is None:
        return None
    rates, weights, card = known
    reached = Bound(weights, 0, card.bytes_per_s, stats.median(rates)).reached
    return html(
        "{} on {}, as published: {} of the bound. {}",
        given(article.setup.get("model"), source=article.title),
        given(card.name, source=card.source),
        percent(reached, 0, source=f"published tok/s over bandwidth / published bytes of weights: {article.title}"),
        _verdict(reached),
    )


def published_table(name: str, article: Published) -> Html:
    """Return the bound of an article's figures."""
    known = _published(article)
    if known is None:
        return Html()
    _, weights, card = known
    rows, data = [], []
    for workload in common.WORKLOADS:
        rate = common.value_as_printed(article, f"{workload}.baseline")
        if rate is None:
            continue
        bound = Bound(weights, 0, card.bytes_per_s, rate)
        source = f"{article.title}; bandwidth: {card.source}"
        rows.append(
            [
                common.workload_name(workload),
                common.as_printed(article, "weights"),
                number(card.bytes_per_s, 2, source=card.source, scale=TB),
                number(bound.bound_tok_s, source=source),
                common.as_printed(article, f"{workload}.baseline"),
                percent(bound.reached, 0, source=source),
            ]
        )
        data.append({"workload": workload, "published_tok_s": rate, **_bound_row(bound)})
    return exhibit.table(
        f"wall-published-{name}",
        "As published, not measured by this project: the article’s baseline against what its card’s bandwidth allows.",
        ["workload", "weights, GB", "bandwidth, TB/s", "bound, tok/s", "published tok/s", "reached"],
        rows,
        exhibit.printed(name, article),
        data=data,
    )


def _bound_row(bound: Bound) -> dict[str, float]:
    return {
        "weight_bytes": bound.weight_bytes,
        "kv_bytes": bound.kv_bytes,
        "bytes_per_s": bound.bytes_per_s,
        "bound_tok_s": bound.bound_tok_s,
        "reached": bound.reached,
    }


def bounds_table(found: Sequence[Case]) -> Html:
    """Return the bound of every measured case."""
    if not found:
        return paragraph("No study here has a model whose shape and weights are known, so there is no bound.")
    rows, data = [], []
    for case in found:
        bound = case.bound
        source = _bound_source(case)
        element = 1 if case.config == "fp8" else 2
        kv = case.context * case.shape.kv_bytes(element)
        missing = "this machine’s bandwidth is not known: samebytes profile measures it"
        rows.append(
            [
                html("{} <small>{}{}</small>", code(case.config), code(case.study.name), common.note(case.study)),
                number(case.shape.read_bytes, 2, source="samebytes.roofline.SHAPES", scale=GB),
                number(kv, 3, source=f"mean context {case.context:.0f} tokens: {case.source}", scale=GB),
                number(case.bytes_per_s, 3, source=case.given_by or "", missing=missing, scale=TB),
                given(case.given_by, source="samebytes.roofline", missing=missing),
                number(bound.bound_tok_s if bound else None, 0, source=source, missing=missing),
                number(case.tok_s, source=f"median over the prompts: {case.source}"),
                percent(bound.reached if bound else None, 0, source=source, missing=missing),
            ]
        )
        none = dict.fromkeys(("weight_bytes", "kv_bytes", "bytes_per_s", "bound_tok_s", "reached"))
        data.append(
            {
                "study": case.study.name,
                "config": case.config,
                "context_tokens": case.context,
                "measured_tok_s": case.tok_s,
                **(_bound_row(bound) if bound else none),
            }
        )
    head = ["config", "weights read, GB", "KV read, GB", "bandwidth, TB/s", "by", "bound, tok/s", "measured tok/s"]
    return exhibit.table(
        "wall-bounds",
        "Measured here, one request at a time: what a token reads, what the memory’s bandwidth would allow, and what "
        "came of it.",
        [*head, "reached"],
        rows,
        exhibit.together(exhibit.origin(case.study, case.config) for case in found),
        data=data,
        words=(4,),
    )


def formula() -> Html:
    """Return how the bound is computed."""
    return paragraph(
        "{} = bandwidth / (bytes of weights read + context × bytes of keys and values a token); {} = measured tok/s / "
        "bound. From {} reached, reading at full rate takes most of a step, and the wall is called what a case stands "
        "at.",
        html("<em>bound</em>"),
        html("<em>reached</em>"),
        percent(AT_THE_WALL, 0, source="samebytes.pages.wall.AT_THE_WALL"),
    )


def cards() -> Html:
    """Return the vendors' figures for memory bandwidth."""
    return prose.bullets(
        [
            html(
                '{}: {}, by <a href="{}">its vendor</a>',
                given(card.name, source="samebytes.roofline.CARDS"),
                number(card.bytes_per_s, 3, "TB/s", source=card.source, scale=TB),
                card.source,
            )
            for card in roofline.CARDS
        ]
    )


def chart(found: Sequence[Case], articles: Mapping[str, Published]) -> Html:
    """Return the roofline: tokens a second against the bytes that each reads, under each memory's line."""
    known = [(case, bound) for case in found if (bound := case.bound) is not None]
    points: list[dict[str, Any]] = []
    lines = {}
    origins = []
    for case, bound in known:
        machine = case.study.summary.machine
        total = bound.weight_bytes + bound.kv_bytes
        noted = f" ({case.study.note})" if case.study.note else ""
        points.append(
            {
                "point": f"{case.study.name}, {case.config}{noted}",
                "by": "measured",
                "gb": total * GB,
                "tok_s": case.tok_s,
            }
        )
        lines[machine] = bound.bytes_per_s
        origins.append(exhibit.origin(case.study, case.config))
    for name, article in articles.items():
        if (figures := _published(article)) is not None:
            rates, weights, card = figures
            point = {"point": f"{name}, baseline", "by": "published", "gb": weights * GB, "tok_s": stats.median(rates)}
            points.append(point)
            lines[card.name] = card.bytes_per_s
            origins.append(exhibit.printed(name, article))
    if not points:
        return Html()
    said = [
        html(
            "{}, {}: {} with {} a token",
            given(row["point"], source="results"),
            row["by"],
            number(row["tok_s"], 0, "tok/s", source="results"),
            number(row["gb"], 2, "GB", source="results"),
        )
        for row in points
    ]
    return exhibit.chart(
        "wall-roofline",
        _roofline(points, lines),
        html(
            "Tokens a second against gigabytes read for each; a line for each memory’s bandwidth. {}.", join(said, "; ")
        ),
        "Each line is what one memory’s bandwidth allows; a point’s distance below its line is time that reading does "
        "not explain. Both axes are logarithmic. Published figures are drawn apart from measured ones.",
        exhibit.together(origins),
        data=points,
    )


def _roofline(points: Sequence[Mapping[str, Any]], lines: Mapping[str, float]) -> Chart:
    import altair

    ends = min(row["gb"] for row in points) / 2, max(row["gb"] for row in points) * 2
    roofs = [
        {"memory": name, "gb": gb, "tok_s": bandwidth * GB / gb} for name, bandwidth in lines.items() for gb in ends
    ]
    x = altair.X("gb:Q", title="read for each token, GB", scale=altair.Scale(type="log", nice=False))
    y = altair.Y("tok_s:Q", title="decode throughput, tok/s", scale=altair.Scale(type="log"))
    roof = (
        altair.Chart(altair.InlineData(values=roofs))
        .mark_line(strokeDash=[6, 3])
        .encode(x=x, y=y, color=altair.Color("memory:N", title=None, scale=altair.Scale(domain=list(lines))))
    )
    marks = (
        altair.Chart(altair.InlineData(values=list(points)))
        .mark_point(filled=True, size=80, color="currentColor")
        .encode(
            x=x,
            y=y,
            shape=altair.Shape("by:N", title=None, scale=altair.Scale(domain=["measured", "published"])),
            tooltip=[
                altair.Tooltip("point:N"),
                altair.Tooltip("by:N"),
                altair.Tooltip("gb:Q", title="GB a token", format=".3f"),
                altair.Tooltip("tok_s:Q", title="tok/s", format=",.1f"),
            ],
        )
    )
    return altair.layer(roof, marks).properties(height=300)
