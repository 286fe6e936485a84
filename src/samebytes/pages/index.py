"""The result: what was published, and what each study measured."""

from __future__ import annotations

from collections.abc import Sequence

from samebytes import prose, settings
from samebytes.bookdata import Measured
from samebytes.findings import Pair
from samebytes.pages import common, speed
from samebytes.prose import Html, code, count, given, html, join, number, paragraph, table
from samebytes.published import Published


def configs(names: Sequence[str] = common.ARTICLE_CONFIGS) -> Html:
    """Return the configs with the flags that each adds, and why each exists."""
    items = []
    for name in names:
        config = settings.config(name)
        flags = " ".join(settings.arguments(config.flags))
        why = given(config.why.strip(), source=f"configs/{name}.yaml")
        items.append(html("<dt>{} {}</dt><dd>{}</dd>", code(name), code(flags) if flags else "", why))
    return html('<dl class="configs">{}</dl>', join(items))


def published(article: Published) -> Html:
    """Return what an article printed, and whether its figures follow from one another."""
    return join([published_setup(article), published_table(article), published_checks(article)])


def published_table(article: Published) -> Html:
    """Return an article's table of results as printed."""
    workloads = [w for w in common.WORKLOADS if f"{w}.baseline" in article.figures]
    total = article.figures["prompts"].printed
    rows = []
    for config in common.ARTICLE_CONFIGS:
        row: list[object] = [code(config)]
        row += [_with_speed_up(article, workload, config) for workload in workloads]
        row.append(common.as_printed(article, f"aggregate.{config}"))
        row.append(common.as_printed(article, f"kv_pool.{config}"))
        same = common.as_printed(article, "control.same" if config == "baseline" else f"{config}.same")
        row.append(html("{} of {}", same, prose.printed(str(total), source=article.figures["prompts"].place)))
        rows.append(row)
    return table(
        html("Published figures in tok/s, not measured by this project: “{}”", article.title),
        [
            "config",
            *map(common.workload_name, workloads),
            "concurrent leg",
            "KV pool, tokens",
            "same bytes as baseline",
        ],
        rows,
    )


def _with_speed_up(article: Published, workload: str, config: str) -> Html:
    """Return a rate as printed and, under it, the speed-up that was printed for it (only ``ngram`` has one)."""
    shown = common.as_printed(article, f"{workload}.{config}")
    if config != "ngram":
        return shown
    return html("{} <small>{}×</small>", shown, common.as_printed(article, f"speedup.{workload}"))


def published_setup(article: Published) -> Html:
    """Return what was measured, on what, and when."""
    source = f"{article.title}: methodology"
    parts = [html("{}: {}", _LABELS.get(key, key), given(text, source=source)) for key, text in article.setup.items()]
    parts.append(html("measured: {}", given(article.measured, source=f"{article.title}: last line")))
    return paragraph("{}.", join(parts, "; "))


_LABELS = {
    "model": "Model",
    "gpu": "card",
    **{config: html("the flag of {}", code(config)) for config in common.ARTICLE_CONFIGS},
}


def published_checks(article: Published) -> Html:
    """Return how many of the printed figures follow from the others, and which do not."""
    checks = article.checks()
    bad = [check for check in checks if not check.consistent]
    source = "samebytes.published: each derived figure computed again from the printed ones"
    text = paragraph(
        "Of the printed figures, {} follow from others; computed again within their rounding, {} of these hold.",
        count(len(checks), source=source),
        count(len(checks) - len(bad), source=source),
    )
    notes = [
        html(
            "{} is printed as {}, and the others give {}. {}",
            code(check.id),
            prose.printed(check.printed, source=check.place),
            _range(check.low, check.high, source),
            given(check.note, source=source, missing="no note"),
        )
        for check in bad
    ]
    return join([text, prose.bullets(notes)])


def _range(low: float, high: float, source: str) -> Html:
    digits = 0 if low.is_integer() and high.is_integer() else 2
    ends = [number(value, digits, source=source) for value in dict.fromkeys((low, high))]
    return join(ends, " to ")


def headline(found: Measured) -> Html:
    """Return one line per config that is compared with ``baseline``: speed by workload, and bytes."""
    lines = [_headline(found, pair) for pair in found.pairs("baseline") if pair.refused is None]
    return join(
        [
            paragraph(
                "{}, vLLM {}",
                html('<a href="#study-{}">{}</a>', found.name, given(found.title, source=found.name)),
                given(found.summary.vllm, source=f"results/{found.name}"),
            ),
            prose.bullets(lines),
        ]
    )


def _headline(found: Measured, pair: Pair) -> Html:
    parts = [
        html("{} {} ({})", common.workload_name(r.workload), common.speed_ratio(found, pair, r), common.verdict(r))
        for r in pair.ratios
    ]
    return html(
        "{}: {}. Answers against {}: {}.",
        code(pair.candidate),
        join(parts, "; "),
        code(pair.reference),
        common.same_bytes(found, pair),
    )


def study(found: Measured) -> Html:
    """Return everything the first page shows of a study."""
    return join(
        [
            html('<h3 id="study-{}">{}</h3>', found.name, given(found.title, source=f"studies/{found.name}.yaml")),
            common.setup(found),
            common.banners(found),
            *(common.control(found, c) for c in found.summary.controls if c.config == "baseline"),
            common.worth(found),
            speed.speed_table(found),
            speed.comparison_table(found),
            speed.speed_chart(found),
        ]
    )


def this_machine(found: Measured | None) -> Html:
    """Return what `make report` measured here, or how to measure it."""
    if found is None:
        return paragraph("Nothing was measured on the machine that built this page. To do it: {}.", code("make report"))
    return study(found)
