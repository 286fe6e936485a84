"""The result: what was published, what each study measured, and what that makes of a day's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebytes import bookdata, exhibit, prose, settings
from samebytes.bookdata import Measured
from samebytes.errors import UsageError
from samebytes.findings import ALL, ConfigResult, Pair, Ratio
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent, times
from samebytes.published import Published

if TYPE_CHECKING:
    from samebytes.charts import Chart


def configs(names: Sequence[str] = common.ARTICLE_CONFIGS) -> Html:
    """Return the configs with the flags that each adds, and why each exists."""
    items = []
    for name in names:
        config = settings.config(name)
        flags = " ".join(settings.arguments(config.flags))
        why = given(config.why.strip(), source=f"configs/{name}.yaml")
        items.append(html("<dt>{} {}</dt><dd>{}</dd>", code(name), code(flags) if flags else "", why))
    return html('<dl class="configs">{}</dl>', join(items))


# -- in short ---------------------------------------------------------------------------------------------------------


def lead(found: Sequence[Measured]) -> Html:
    """Return the result in a sentence or two: the greatest clear speed-up, and the bytes on each machine."""
    pairs = [(study, pair) for study in found if (pair := common.pair(study, "ngram")) is not None]
    if not pairs:
        return Html()
    parts = [_greatest(pairs), *_kept(pairs)]
    return html('<p class="lead">{}</p>', join(parts, " "))


def _greatest(pairs: Sequence[tuple[Measured, Pair]]) -> Html:
    clear = [
        (ratio.decode.geometric_mean, study, pair, ratio)
        for study, pair in pairs
        for ratio in pair.ratios
        if ratio.decode is not None and ratio.called == "faster"
    ]
    if not clear:
        return _no_clear_speed_up(pairs)
    mean, study, pair, ratio = max(clear, key=lambda row: row[0])
    return html(
        "One serving flag, n-gram speculation, made a language model write up to {} as fast ({}, {}).",
        times(mean, source=common.ratio_source(study, pair, ratio.workload)),
        common.workload_name(ratio.workload),
        common.machine(study),
    )


def _no_clear_speed_up(pairs: Sequence[tuple[Measured, Pair]]) -> Html:
    """Return that nothing was clearly faster, or where no one can tell."""
    untold = [study for study, pair in pairs if any(ratio.called == "drift not measured" for ratio in pair.ratios)]
    if not untold:
        return prose.safe("One serving flag, n-gram speculation, made no kind of prompt clearly faster here.")
    return html(
        "Whether one serving flag, n-gram speculation, made any kind of prompt faster is not told here: how far two "
        "starts of one config drift apart was not measured on {}.",
        common.listed([common.machine(study) for study in untold]),
    )


def _kept(pairs: Sequence[tuple[Measured, Pair]]) -> list[Html]:
    """Return how many answers kept their bytes on each machine, and what follows."""
    counts = [(study, pair, total) for study, pair in pairs if (total := common.byte_count(pair)) is not None]
    if not counts:
        return []
    shown = [
        html(
            "{}{} on {}",
            of(total.counts["same"], total.judged, source=common.pair_source(study, pair)),
            common.uncontrolled(pair),
            common.machine(study),
        )
        for study, pair, total in counts
    ]
    kept = [total.counts["same"] == total.judged for _, _, total in counts]
    if all(kept):
        moral = "No answer changed."
    elif any(kept):
        moral = "Whether the words stay is not up to the flag alone: it takes a test on each machine."
    else:
        moral = "On none of these machines did every answer stay the same."
    return [html("Answers that kept every byte: {}.", common.listed(shown)), prose.safe(moral)]


def headline(found: Measured) -> Html:
    """Return a study's result: a sentence per config that is compared with ``baseline``."""
    lines = [_headline(found, pair) for name in common.ARTICLE_CONFIGS[1:] if (pair := common.pair(found, name))]
    lines += [_did_not_run(found, name) for name in common.ARTICLE_CONFIGS[1:] if common.failure(found, name)]
    title = html('<a href="#study-{}">{}</a>', found.name, given(found.title, source=f"studies/{found.name}.yaml"))
    return join([paragraph("{}, vLLM {}:", title, _version(found)), prose.bullets(lines)])


def _version(found: Measured) -> Html:
    return given(found.summary.vllm, source=f"results/{found.name}")


def _headline(found: Measured, pair: Pair) -> Html:
    groups: dict[str, list[Html]] = {"speed-up": [], "slow-down": []}
    for ratio in pair.ratios:
        shown = html("{} {}", common.workload_name(ratio.workload), common.speed_ratio(found, pair, ratio))
        groups.setdefault(ratio.effect, []).append(shown)
    said = [
        html("{} {}", _CALLED.get(name, f"{name}:"), common.listed(shown)) for name, shown in groups.items() if shown
    ]
    return html(
        "{} ({}): {}. Answers: {}.",
        code(pair.candidate),
        common.config_name(pair.candidate),
        join(said, "; ") or "no speed was measured",
        common.same_bytes(found, pair),
    )


_CALLED = {"speed-up": "faster with", "slow-down": "slower with"}


def _did_not_run(found: Measured, name: str) -> Html:
    reason = given(common.failure(found, name), source=f"results/{found.name}", missing="no reason recorded")
    return html("{} ({}) does not run here: {}", code(name), common.config_name(name), reason)


# -- the chart --------------------------------------------------------------------------------------------------------


def measured_rows(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the ratio of each config of the article to the baseline, by study and workload."""
    rows = []
    for study in found:
        for name in common.ARTICLE_CONFIGS[1:]:
            pair = common.pair(study, name)
            if pair is not None:
                rows += [_measured_row(study, pair, ratio) for ratio in pair.ratios if ratio.decode is not None]
    return rows


def _measured_row(study: Measured, pair: Pair, ratio: Ratio) -> dict[str, Any]:
    assert ratio.decode is not None
    total = common.byte_count(pair)
    interval = ratio.decode.t_interval
    return {
        "study": study.name,
        "machine": study.where,
        "config": pair.candidate,
        "workload": ratio.workload,
        "speed_up": ratio.decode.geometric_mean,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "same": total.counts["same"] if total else None,
        "judged": total.judged if total else None,
    }


def published_rows(article: Published) -> list[dict[str, Any]]:
    """Return the speed-ups of an article, as printed or else of its printed medians; no interval was printed."""
    rows = []
    for name in common.ARTICLE_CONFIGS[1:]:
        for workload in common.WORKLOADS:
            speed_up, as_printed = _published_speed_up(article, name, workload)
            if speed_up is not None:
                rows.append(
                    {
                        "article": article.title,
                        "machine": article.setup.get("gpu", "published"),
                        "config": name,
                        "workload": workload,
                        "speed_up": speed_up,
                        "as_printed": as_printed,
                        "low": None,
                        "high": None,
                        "same": _whole(article, f"{name}.same"),
                        "judged": _whole(article, "prompts"),
                    }
                )
    return rows


def _published_speed_up(article: Published, config: str, workload: str) -> tuple[float | None, bool]:
    """Return a speed-up over the baseline, and whether it was printed: that of printed medians is rounded twice."""
    # the speed-ups that an article derives are those of ``ngram``
    printed = common.value_as_printed(article, f"speedup.{workload}") if config == "ngram" else None
    if printed is not None:
        return printed, True
    rates = [common.value_as_printed(article, f"{workload}.{name}") for name in (config, "baseline")]
    return (None if rates[0] is None or not rates[1] else round(rates[0] / rates[1], 3)), False


def _whole(article: Published, name: str) -> int | None:
    value = common.value_as_printed(article, name)
    return None if value is None else int(value)


def overview(found: Sequence[Measured], articles: Mapping[str, Published]) -> Html:
    """Return the charts of speed-ups, a line per config and machine with its bytes beside: measured, and published.

    Both have the same scale, and each its own data.
    """
    measured = measured_rows(found)
    printed = {name: rows for name, article in articles.items() if (rows := published_rows(article))}
    values = [row[key] for rows in (measured, *printed.values()) for row in rows for key in ("speed_up", "low", "high")]
    known = [value for value in values if value is not None]
    if not known:
        return Html()
    domain = [min(*known, 1) / 1.06, max(*known, 1) * 1.06]
    blocks = []
    if measured:
        caption = html(
            "Measured: decode throughput over the baseline’s, on a logarithmic scale. Each mark is the geometric mean "
            "over the prompts of a kind, with its {} interval. Under each config: how many answers kept every byte.",
            common.level(),
        )
        origin = exhibit.together(exhibit.origin(study, *_ran(study)) for study in found)
        blocks.append(_overview("result-speed-up", measured, domain, caption, origin))
    for name, rows in printed.items():
        caption = html(
            "Published, not measured here, on the same scale: each speed-up as “{}” printed it, which may stem from "
            "medians before they were rounded; where it printed none, the ratio of its printed medians. No interval "
            "was published.",
            articles[name].title,
        )
        origin = exhibit.printed(name, articles[name])
        blocks.append(_overview(f"result-speed-up-{name}", rows, domain, caption, origin))
    return join(blocks)


def _overview(
    name: str, rows: Sequence[Mapping[str, Any]], domain: Sequence[float], caption: Html, origin: exhibit.Origin
) -> Html:
    said = [
        html(
            "{} on {}, {}: {}",
            code(row["config"]),
            given(row["machine"], source=name),
            common.workload_name(row["workload"]),
            times(row["speed_up"], source=name),
        )
        for row in rows
    ]
    return exhibit.chart(
        name,
        _overview_chart(rows, domain),
        html("Speed-up over the baseline by config, machine and kind of prompt. {}.", join(said, "; ")),
        caption,
        origin,
        data=rows,
    )


def _ran(study: Measured) -> list[str]:
    return [c.name for c in study.summary.configs if c.name in common.ARTICLE_CONFIGS]


def _overview_chart(rows: Sequence[Mapping[str, Any]], domain: Sequence[float]) -> Chart:
    import altair

    from samebytes import charts

    drawn = [dict(row) | {"line": _line(row), "workload": common.workload_name(row["workload"])} for row in rows]
    names = list(dict.fromkeys(row["workload"] for row in drawn))
    lines = list(dict.fromkeys(row["line"] for row in drawn))
    scale = altair.Scale(type="log", domain=list(domain), nice=False)
    data = altair.InlineData(values=drawn)
    base = altair.Chart(data).encode(
        y=altair.Y(
            "line:N",
            title=None,
            sort=lines,
            axis=altair.Axis(labelExpr="split(datum.label, '|')", ticks=False, domain=False),
            scale=altair.Scale(paddingInner=0.3),
        ),
        yOffset=altair.YOffset("workload:N", sort=names),
        tooltip=[
            altair.Tooltip("config:N"),
            altair.Tooltip("machine:N"),
            altair.Tooltip("workload:N"),
            altair.Tooltip("speed_up:Q", title="times baseline", format=".2f"),
            altair.Tooltip("low:Q", format=".2f"),
            altair.Tooltip("high:Q", format=".2f"),
        ],
    )
    colour = altair.Color("workload:N", scale=altair.Scale(domain=names), title=None)
    one = altair.Chart(data).mark_rule(opacity=0.35).encode(x=altair.datum(1))
    spans = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q", color=colour)
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=altair.X("speed_up:Q", title="times the baseline", scale=scale, axis=altair.Axis(tickCount=6)),
        color=colour,
        shape=altair.Shape("workload:N", scale=altair.Scale(domain=names), title=None),
    )
    return altair.layer(one, spans, points).properties(height=charts.LINE * 2.6 * len(lines))


def _line(row: Mapping[str, Any]) -> str:
    same = f"{row['same']} of {row['judged']} the same" if row["judged"] else "bytes not judged"
    return f"{row['config']}|{row['machine']}|{same}"


# -- what was published -----------------------------------------------------------------------------------------------


def published(name: str, article: Published) -> Html:
    """Return what an article printed, and whether its figures follow from one another."""
    return join([published_setup(article), published_table(name, article), published_checks(article)])


def published_table(name: str, article: Published) -> Html:
    """Return an article's table of results as printed."""
    workloads = [w for w in common.WORKLOADS if f"{w}.baseline" in article.figures]
    total = article.figures["prompts"].printed
    rows, data = [], []
    for config in common.ARTICLE_CONFIGS:
        same = "control.same" if config == "baseline" else f"{config}.same"
        rows.append(
            [
                code(config),
                html(
                    "{} of {}",
                    common.as_printed(article, same),
                    prose.printed(str(total), source=article.figures["prompts"].place),
                ),
                *(_with_speed_up(article, workload, config) for workload in workloads),
                common.as_printed(article, f"aggregate.{config}"),
                common.as_printed(article, f"kv_pool.{config}"),
            ]
        )
        data.append(
            {"config": config}
            | {f"{w}_tok_s": common.value_as_printed(article, f"{w}.{config}") for w in workloads}
            | {
                f"{w}_speed_up": common.value_as_printed(article, f"speedup.{w}") if config == "ngram" else None
                for w in workloads
            }
            | {
                "concurrent_tok_s": common.value_as_printed(article, f"aggregate.{config}"),
                "kv_pool_tokens": _whole(article, f"kv_pool.{config}"),
                "same_bytes": _whole(article, same),
                "prompts": _whole(article, "prompts"),
            }
        )
    return exhibit.table(
        f"result-{name}",
        html("Published figures in tok/s, not measured by this project: “{}”", article.title),
        [
            "config",
            "same bytes",
            *map(common.workload_name, workloads),
            "concurrent leg",
            "KV pool, tokens",
        ],
        rows,
        exhibit.printed(name, article),
        data=data,
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
            common.implied(check),
            given(check.note, source=source, missing="no note"),
        )
        for check in bad
    ]
    return join([text, prose.bullets(notes)])


# -- what was measured ------------------------------------------------------------------------------------------------


def sizes(found: Sequence[Measured]) -> Html:
    """Return how many parameters the studies' models have."""
    known = {record.model.n_params: record.model.id for study in found for record in study.records}
    shown = [
        number(size, 0, "million", source=f"model {name}", missing="an unknown number of", scale=1e-6)
        for size, name in known.items()
    ]
    return common.listed(shown) or number(None, source="", missing="nothing was measured")


def study(found: Measured) -> Html:
    """Return a study's three configs, with all that has to be known before its figures."""
    return join(
        [
            common.heading(found, "study"),
            common.setup(found),
            common.banners(found),
            *(common.control(found, c) for c in found.summary.controls if c.config == "baseline"),
            common.worth(found),
            three_configs(found),
        ]
    )


def three_configs(found: Measured) -> Html:
    """Return the article's table for a study: its configs in the same columns."""
    workloads = found.workloads
    known = {config.name: config for config in found.summary.configs}
    rows, data = [], []
    for name in common.ARTICLE_CONFIGS:
        if name in known:
            rows.append(_config_cells(found, known[name], workloads))
            data.append(_config_row(found, known[name], workloads))
        elif (reason := common.failure(found, name)) is not None:
            dash = number(None, source=f"results/{found.name}", missing=reason)
            why = given(reason, source=f"results/{found.name}")
            first = html("{} <small>did not run: {}</small>", code(name), why)
            rows.append([first, *[dash] * (len(workloads) + 3)])
            data.append(_config_row(found, None, workloads) | {"config": name, "failed": reason})
    names = [record.config.name for record in found.records if record.config.name in common.ARTICLE_CONFIGS]
    return exhibit.table(
        f"result-{found.name}",
        html(
            "Measured: {}. Decode throughput in tok/s, median over the prompts of a kind; under it the speed-up over "
            "the baseline prompt by prompt, with its {} interval. “≈” marks one that is not told from no change.",
            given(found.title, source=f"studies/{found.name}.yaml"),
            common.level(),
        ),
        ["config", "same bytes", *map(common.workload_name, workloads), "concurrent leg", "KV pool, tokens"],
        rows,
        exhibit.origin(found, *dict.fromkeys(names)),
        data=data,
    )


def _config_cells(found: Measured, config: ConfigResult, workloads: Sequence[str]) -> list[object]:
    source = found.files(config.name)
    pair = common.pair(found, config.name)
    by = {s.workload: s for s in config.speed}
    cells: list[object] = [code(config.name), _bytes_cell(found, config, pair)]
    for workload in workloads:
        shown = common.median(found, config.name, workload, by.get(workload))
        ratio = next((r for r in pair.ratios if r.workload == workload), None) if pair else None
        if pair is not None and ratio is not None and ratio.decode is not None:
            mark = "" if ratio.called in ("faster", "slower") else "≈ "
            shown = html("{} <small>{}{}</small>", shown, mark, common.speed_ratio(found, pair, ratio))
        cells.append(shown)
    rates = [c.aggregate_tok_s for c in config.concurrent]
    cells.append(common.several(rates, 0, f"aggregate tok/s of the concurrent leg: {source}"))
    cells.append(common.several(config.memory.kv_cache_tokens, 0, f"KV pool: {source}"))
    return cells


def _bytes_cell(found: Measured, config: ConfigResult, pair: Pair | None) -> Html:
    """Return how many answers kept the baseline's bytes; of the baseline itself, what its control says."""
    if pair is not None:
        return common.same_over_rest(found, pair)
    control = found.control(config.name)
    have = control.agrees + control.disagrees if control else 0
    source = found.files(config.name)
    if control is None or not have:
        return number(None, source=source, missing="started once: no control")
    return html("{} <small>with itself</small>", of(control.agrees, have, source=source))


def _config_row(found: Measured, config: ConfigResult | None, workloads: Sequence[str]) -> dict[str, object]:
    """Return the raw values of a config; of one that did not run, None throughout."""
    pair = common.pair(found, config.name) if config else None
    speed = {s.workload: s.decode_tok_s for s in config.speed} if config else {}
    ratios = {r.workload: r.decode for r in pair.ratios} if pair else {}
    total = common.byte_count(pair) if pair else None
    row: dict[str, object] = {"config": config.name if config else None}
    for workload in workloads:
        estimate = ratios.get(workload)
        interval = estimate.t_interval if estimate else None
        row |= {
            f"{workload}_tok_s": speed.get(workload),
            f"{workload}_speed_up": estimate.geometric_mean if estimate else None,
            f"{workload}_low": interval.low if interval else None,
            f"{workload}_high": interval.high if interval else None,
        }
    legs = [c.aggregate_tok_s for c in config.concurrent if c.aggregate_tok_s is not None] if config else []
    return row | {
        "concurrent_tok_s": legs[0] if legs else None,
        "kv_pool_tokens": min(config.memory.kv_cache_tokens, default=None) if config else None,
        "same_bytes": total.counts["same"] if total else None,
        "judged": total.judged if total else None,
        "failed": None,
    }


def this_machine(found: Measured | None) -> Html:
    """Return what `make report` measured here, or how to measure it."""
    if found is None:
        return paragraph("Nothing was measured on the machine that built this page. To do it: {}.", code("make report"))
    return study(found)


# -- a day ------------------------------------------------------------------------------------------------------------


def day(
    mix: Mapping[str, float], tokens: int, found: Sequence[Measured], articles: Mapping[str, Published] | None = None
) -> Html:
    """Return how long an agent's day of generated tokens takes to decode, without and with n-gram speculation.

    ``sum over workloads of share * tokens / rate``, with the median decode rate of each workload.

    Parameters
    ----------
    mix : mapping of str to float
        Share of the day's tokens by workload; they sum to 1.
    tokens : int
        Tokens generated in a day.
    found : sequence of Measured
        Studies.
    articles : mapping, optional
        Published figures, by name; None: those of the project.

    Raises
    ------
    UsageError
        Where the shares do not sum to 1.
    """
    if abs(sum(mix.values()) - 1) > 1e-9:
        raise UsageError(f"the shares of a mix sum to 1, these to {sum(mix.values()):g}: {dict(mix)}")
    articles = bookdata.articles() if articles is None else articles
    days = [(study, row) for study in found if (row := _measured_day(mix, tokens, study)) is not None]
    origin = exhibit.together(exhibit.origin(study, "baseline", "ngram") for study, _ in days)
    shares = [
        html("{} {}", percent(share, 0, source="the mix above"), common.workload_name(workload))
        for workload, share in mix.items()
    ]
    caption = html(
        "Estimated from measured rates: {} generated tokens, of them {}. Time = sum of share × tokens / median decode "
        "rate; reading the prompts is not in it. Last column: answers in other bytes than the baseline’s, if answers "
        "mix like tokens.",
        count(tokens, source="the tokens above"),
        common.listed(shares),
    )
    blocks = [_day_table("result-day", [row for _, row in days], caption, origin)]
    for name, article in articles.items():
        published = [row for row in (_published_day(mix, tokens, article),) if row is not None]
        caption = html("The same estimate from published rates: “{}”", article.title)
        blocks.append(_day_table(f"result-day-{name}", published, caption, exhibit.printed(name, article)))
    return join(blocks)


def _day_table(name: str, data: Sequence[Day], caption: Html, origin: exhibit.Origin) -> Html:
    if not data:
        return Html()
    rows = [
        [
            given(str(row["machine"]), source=name),
            number(row["baseline_s"], 1, "min", source=f"{name}: baseline", scale=1 / 60),
            number(row["ngram_s"], 1, "min", source=f"{name}: ngram", scale=1 / 60),
            number(row["saved_s"], 1, "min", source=name, scale=1 / 60),
            times(row["speed_up"], source=name),
            percent(row["changed"], 0, source=f"{name}: answers in other bytes", missing="not published"),
        ]
        for row in data
    ]
    head = ["machine", "without", "with n-gram speculation", "saved", "speed-up", "answers changed"]
    return exhibit.table(name, caption, head, rows, origin, data=data)


Day = dict[str, Any]


def _a_day(
    mix: Mapping[str, float], tokens: int, rates: Mapping[str, Mapping[str, float | None]]
) -> tuple[float, float] | None:
    """Return the seconds of a day under ``baseline`` and ``ngram``; None where a rate is missing."""
    seconds = []
    for config in ("baseline", "ngram"):
        known = [(share, rates[config].get(workload)) for workload, share in mix.items() if share]
        if any(not rate for _, rate in known):
            return None
        seconds.append(sum(share * tokens / rate for share, rate in known if rate))
    return seconds[0], seconds[1]


def _row(machine: str, seconds: tuple[float, float], changed: float | None) -> Day:
    without, with_it = seconds
    return {
        "machine": machine,
        "baseline_s": without,
        "ngram_s": with_it,
        "saved_s": without - with_it,
        "speed_up": without / with_it,
        "changed": changed,
    }


def _measured_day(mix: Mapping[str, float], tokens: int, study: Measured) -> Day | None:
    pair = common.pair(study, "ngram")
    if pair is None:
        return None
    speeds = {name: study.summary.config(name).speed for name in ("baseline", "ngram")}
    rates = {name: {s.workload: s.decode_tok_s for s in found} for name, found in speeds.items()}
    seconds = _a_day(mix, tokens, rates)
    counts = {c.workload: c for c in pair.bytes if c.workload != ALL and c.judged}
    changed = None
    if all(workload in counts for workload, share in mix.items() if share):
        changed = sum(
            share * (1 - counts[workload].counts["same"] / counts[workload].judged)
            for workload, share in mix.items()
            if share
        )
    return None if seconds is None else _row(study.where, seconds, changed)


def _published_day(mix: Mapping[str, float], tokens: int, article: Published) -> Day | None:
    rates = {name: {w: common.value_as_printed(article, f"{w}.{name}") for w in mix} for name in ("baseline", "ngram")}
    seconds = _a_day(mix, tokens, rates)
    if seconds is None:
        return None
    return _row(article.setup.get("gpu", article.title), seconds, _published_changed(mix, article))


def _published_changed(mix: Mapping[str, float], article: Published) -> float | None:
    """Return the share of answers that changed, as the article lists them: free prose alone."""
    listed = article.figures.get("ngram.creative.characters")
    each = common.value_as_printed(article, "prompts_per_workload")
    if listed is None or not each or common.value_as_printed(article, "ngram.differing") != len(listed.printed):
        return None
    return mix.get("creative", 0.0) * len(listed.printed) / each
