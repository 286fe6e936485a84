"""The blocks of the article, as HTML: each is computed from the records of a study, or from published figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from samebytes import bookdata, charts, definitions, fairness, paths, prose, settings
from samebytes.bookdata import Measured
from samebytes.findings import ALL, Control, Pair, Ratio, RunRow, WorkloadSpeed
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent, table, times
from samebytes.published import Published
from samebytes.record import Record
from samebytes.stats import LEVEL

WORKLOADS = {"code_edit": "code edits", "rag": "quoting a passage", "creative": "free prose"}
"""What a workload is called in a table's head; any other by its own name."""

ARTICLE_CONFIGS = ("baseline", "ngram", "fp8")


def workload_name(workload: str) -> str:
    """Return what a workload is called in prose."""
    return WORKLOADS.get(workload, workload)


def level(digits: int = 0) -> Html:
    """Return the confidence level of every interval."""
    return percent(LEVEL, digits, source="samebytes.stats.LEVEL")


def minimum_tokens() -> Html:
    """Return how many tokens an answer must have to count for speed."""
    return count(definitions.MIN_SPEED_TOKENS, source="samebytes.definitions.MIN_SPEED_TOKENS")


def configs(names: Sequence[str] = ARTICLE_CONFIGS) -> Html:
    """Return the configs with the flags that each adds, and why each exists."""
    items = []
    for name in names:
        config = settings.config(name)
        flags = " ".join(settings.arguments(config.flags))
        why = given(config.why.strip(), source=f"configs/{name}.yaml")
        items.append(html("<dt>{} {}</dt><dd>{}</dd>", code(name), code(flags) if flags else "", why))
    return html('<dl class="configs">{}</dl>', join(items))


# -- what was published -----------------------------------------------------------------------------------------------


def published(article: Published) -> Html:
    """Return what an article printed, and whether its figures follow from one another."""
    return join([published_setup(article), published_table(article), published_checks(article)])


def published_table(article: Published) -> Html:
    """Return an article's table of results as printed."""
    workloads = [w for w in WORKLOADS if f"{w}.baseline" in article.figures]
    total = article.figures["prompts"].printed
    rows = []
    for config in ARTICLE_CONFIGS:
        row: list[object] = [code(config)]
        row += [_with_speed_up(article, workload, config) for workload in workloads]
        row.append(as_printed(article, f"aggregate.{config}"))
        row.append(as_printed(article, f"kv_pool.{config}"))
        same = as_printed(article, "control.same" if config == "baseline" else f"{config}.same")
        row.append(html("{} of {}", same, prose.printed(str(total), source=article.figures["prompts"].place)))
        rows.append(row)
    return table(
        html("Published figures in tok/s, not measured by this project: “{}”", article.title),
        ["config", *map(workload_name, workloads), "concurrent leg", "KV pool, tokens", "same bytes as baseline"],
        rows,
    )


def _with_speed_up(article: Published, workload: str, config: str) -> Html:
    """Return a rate as printed and, under it, the speed-up that was printed for it (only ``ngram`` has one)."""
    shown = as_printed(article, f"{workload}.{config}")
    if config != "ngram":
        return shown
    return html("{} <small>{}×</small>", shown, as_printed(article, f"speedup.{workload}"))


def as_printed(article: Published, name: str) -> Html:
    """Return one figure of the article, given or derived, in its own digits."""
    figure = article.figures.get(name)
    if figure is not None and isinstance(figure.printed, str):
        return prose.printed(figure.printed, source=f"{article.title}: {figure.place}")
    derived = next((d for d in article.derived if d.id == name), None)
    if derived is not None:
        return prose.printed(derived.printed, source=f"{article.title}: {derived.place}")
    return number(None, source="", missing="not published")


def published_setup(article: Published) -> Html:
    """Return what was measured, on what, and when."""
    source = f"{article.title}: methodology"
    parts = [html("{}: {}", _LABELS.get(key, key), given(text, source=source)) for key, text in article.setup.items()]
    parts.append(html("measured: {}", given(article.measured, source=f"{article.title}: last line")))
    return paragraph("{}.", join(parts, "; "))


_LABELS = {
    "model": "Model",
    "gpu": "card",
    **{config: html("the flag of {}", code(config)) for config in ARTICLE_CONFIGS},
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


# -- what was measured ------------------------------------------------------------------------------------------------


def study(found: Measured) -> Html:
    """Return everything the first page shows of a study."""
    return join(
        [
            html('<h3 id="study-{}">{}</h3>', found.name, given(found.title, source=f"studies/{found.name}.yaml")),
            setup(found),
            banners(found),
            *(control(found, c) for c in found.summary.controls if c.config == "baseline"),
            worth(found),
            speed_table(found),
            comparison_table(found),
            speed_chart(found),
        ]
    )


def setup(found: Measured) -> Html:
    """Return what was measured, on what, with which engine, and when."""
    first = found.records[0]
    source = f"results/{found.name}/{first.label}.json"
    return paragraph(
        "{} on {}, vLLM {}; {} prompts, answers of at most {} tokens, temperature {}, seed {}. Measured from {} on.",
        given(first.model.id, source=source),
        given(found.summary.machine, source=source),
        given(first.versions.vllm, source=source),
        count(found.summary.prompts, source=source),
        count(found.summary.max_tokens, source=source),
        number(first.sampling.temperature, 0, source=source),
        count(first.sampling.seed, source=source),
        given(found.started, source=source),
    )


def banners(found: Measured) -> Html:
    """Return what has to be known before any figure of a study."""
    source = f"results/{found.name}"
    notes = prose.bullets([given(banner, source=source) for banner in found.summary.banners])
    return html('<div class="banners"><p>Before the figures:</p>{}</div>', notes) if notes else Html()


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
    parts = [html("{} {} ({})", workload_name(r.workload), _ratio(found, pair, r), verdict(r)) for r in pair.ratios]
    return html(
        "{}: {}. Answers against {}: {}.",
        code(pair.candidate),
        join(parts, "; "),
        code(pair.reference),
        same_bytes(found, pair),
    )


def verdict(ratio: Ratio) -> str:
    """Return what a ratio of decode rates is called.

    One whose interval includes 1 shows no change; one no larger than between two server starts of the same config is
    not the flag's.
    """
    decode = ratio.decode
    if decode is None:
        return "not timed"
    if decode.excludes_one is None:
        return "a single prompt"
    if not decode.excludes_one:
        return "no clear change"
    if ratio.within_drift:
        return "within the drift of server starts"
    return "speed-up" if decode.geometric_mean > 1 else "slow-down"


def same_bytes(found: Measured, pair: Pair) -> Html:
    """Return how many answers kept the bytes of the reference, and what became of the others."""
    counts = next((c for c in pair.bytes if c.workload == ALL), None)
    if counts is None:
        return number(None, source="", missing=pair.refused or "nothing to compare")
    source = _pair_source(found, pair)
    rest = [
        html("{} {}", count(n, source=source), _VERDICTS.get(verdict, verdict))
        for verdict, n in counts.counts.items()
        if n and verdict != "same"
    ]
    return join([html("{} the same", of(counts.counts["same"], counts.prompts, source=source)), *rest], ", ")


_VERDICTS = {
    "differs": "differ",
    "differs (no control)": "differ without a control",
    "intermittent": "change from start to start",
    "missing": "were not answered",
}


def _pair_source(found: Measured, pair: Pair) -> str:
    return f"{found.files(pair.candidate)} against {found.files(pair.reference)}"


def control(found: Measured, judged: Control) -> Html:
    """Return what the control says: whether the reference agrees with itself."""
    source = found.files(judged.config)
    have = judged.agrees + judged.disagrees
    if not have:
        return paragraph(
            "Control: there is none. {} was started only once, so a difference in another config cannot be told from "
            "one that the baseline has with itself.",
            code(judged.config),
        )
    verdict = (
        html("Not attributable to any config: differences in {}.", join(map(code, judged.disagreeing), ", "))
        if judged.disagrees
        else "So a difference that another config repeats is its doing."
    )
    return paragraph(
        "Control: over {} server starts of {}, {} prompts gave the same bytes each time. {}",
        count(judged.starts, source=source),
        code(judged.config),
        of(judged.agrees, have, source=source),
        verdict,
    )


def worth(found: Measured, name: str = "baseline") -> Html:
    """Return what a config's answers are worth: a model that repeats itself is easy to speed up."""
    config = next((c for c in found.summary.configs if c.name == name), None)
    answers = [v for v in config.validity if v.answers] if config else []
    if not answers:
        return Html()
    source = f"samebytes.validity on {found.files(name)}"
    checked, total = sum(v.checked for v in answers), sum(v.answers for v in answers)
    return paragraph(
        "What the answers of {} are worth: {} did what was asked (of those that can be checked); {} end in a "
        "repetition, which is easy to draft; {} were cut off at the token limit.",
        code(name),
        of(sum(v.valid for v in answers), checked, source=source),
        of(sum(v.loops for v in answers), total, source=source),
        of(sum(v.cut_off for v in answers), total, source=source),
    )


def speed_table(found: Measured) -> Html:
    """Return medians per workload and config, and every config that did not run here."""
    workloads = found.workloads
    loaded = any(config.concurrent for config in found.summary.configs)
    rows: list[Sequence[object]] = []
    for config in found.summary.configs:
        by = {s.workload: s for s in config.speed}
        source = found.files(config.name)
        row: list[object] = [code(config.name)]
        row += [_median(found, config.name, workload, by.get(workload)) for workload in workloads]
        if loaded:
            rates = [c.aggregate_tok_s for c in config.concurrent]
            row.append(_several(rates, 1, f"aggregate tok/s of the concurrent leg: {source}"))
        row.append(_several(config.memory.kv_cache_tokens, 0, f"KV pool: {source}"))
        runs = len(config.labels)
        row.append(count(runs, "run" if runs == 1 else "runs", source=source))
        rows.append(row)
    columns = len(workloads) + 1 + loaded
    rows += [_not_run(found, run, columns) for run in found.summary.runs if run.status != "complete"]
    head = ["config", *map(workload_name, workloads), *(["concurrent leg"] if loaded else [])]
    return table(
        "Measured: decode throughput in tok/s, one request at a time. Median over the prompts of a workload; "
        "under it, its ratio to the baseline’s.",
        [*head, "KV pool, tokens", "status"],
        rows,
        words=(len(head) + 1,),
    )


def _median(found: Measured, config: str, workload: str, speed: WorkloadSpeed | None) -> Html:
    """Return a median rate and, under it, its ratio to the baseline's."""
    files = found.files(config)
    shown = number(
        speed.decode_tok_s if speed else None,
        source=f"median decode tok/s over the prompts of {workload}: {files}",
        missing=f"no answer of {definitions.MIN_SPEED_TOKENS} tokens or more",
    )
    ratios = [
        r.decode for p in found.pairs("baseline") if p.candidate == config for r in p.ratios if r.workload == workload
    ]
    if not ratios or ratios[0] is None:
        return shown
    ratio = times(
        ratios[0].ratio_of_medians, source=f"ratio of medians ({workload}): {files} over {found.files('baseline')}"
    )
    return html("{} <small>{}</small>", shown, ratio)


def _several(values: Iterable[float | None], digits: int, source: str) -> Html:
    """Return the values of several runs or server starts."""
    shown = [number(value, digits, source=source) for value in values]
    return join(shown, Html("<br>")) if shown else number(None, source=source, missing="not measured for this config")


def _not_run(found: Measured, run: RunRow, columns: int) -> list[object]:
    """Return the row of a run without figures: that it cannot run here is a result."""
    source = f"results/{found.name}/{run.label}.json"
    dashes = [number(None, source=source, missing=run.reason or run.status) for _ in range(columns)]
    said = given(run.reason, source=source) if run.reason else Html()
    return [code(run.label), *dashes, html("{}{}", run.status, html(": {}", said) if said else "")]


def comparison_table(found: Measured) -> Html:
    """Return each config against each reference: ratio of decode rates per workload, and bytes."""
    workloads = found.workloads
    rows = []
    for pair in found.summary.pairs:
        if pair.refused is not None:
            continue
        by = {r.workload: r for r in pair.ratios}
        cells = [
            _ratio(found, pair, by[w]) if w in by else _ratio(found, pair, Ratio(w, 0, None, None)) for w in workloads
        ]
        name = html("{} <small>against {}</small>", code(pair.candidate), code(pair.reference))
        rows.append([name, *cells, same_bytes(found, pair)])
    if not rows:
        return Html()
    return table(
        html(
            "Measured: each config against a reference. Geometric mean of the ratios prompt by prompt; under it, "
            "its {} interval.",
            level(),
        ),
        ["config", *map(workload_name, workloads), "bytes"],
        rows,
        words=(len(workloads) + 1,),
    )


def _ratio(found: Measured, pair: Pair, ratio: Ratio) -> Html:
    source = f"decode tok/s, paired by prompt ({ratio.workload}): {_pair_source(found, pair)}"
    decode = ratio.decode
    if decode is None:
        return times(None, source=source, missing="no prompt is timed on both sides")
    return html(
        "{} <small>{}</small>",
        times(decode.geometric_mean, source=source),
        prose.between(decode.t_interval, source=source, missing="a single prompt has no interval"),
    )


def speed_chart(found: Measured) -> Html:
    """Return the chart of decode throughput per prompt, with its data as a table."""
    if not found.summary.configs:
        return Html()
    medians = "; ".join(
        f"{config.name}: "
        + ", ".join(f"{s.workload} {s.decode_tok_s:.1f}" for s in config.speed if s.decode_tok_s is not None)
        for config in found.summary.configs
    )
    caption = html(
        "Each mark is a prompt (geometric mean over the config’s runs), each bar the median of a workload. {}{}",
        provenance(found),
        prompt_table(found),
    )
    return charts.embed(charts.speed(found), f"Decode throughput per prompt in tok/s. Medians: {medians}.", caption)


def prompt_table(found: Measured) -> Html:
    """Return decode throughput per prompt and config, folded away."""
    names = [config.name for config in found.summary.configs]
    by = {(c.name, p.id): p.decode_tok_s for c in found.summary.configs for p in c.prompts}
    prompts = dict.fromkeys(p.id for c in found.summary.configs for p in c.prompts)
    rows = [
        [code(key), *(number(by.get((name, key)), source=f"decode tok/s: {found.files(name)}") for name in names)]
        for key in prompts
    ]
    shown = table("Decode throughput per prompt, tok/s", ["prompt", *(code(name) for name in names)], rows)
    return html('<details class="data"><summary>Data of this chart</summary>{}</details>', shown)


def provenance(found: Measured) -> Html:
    """Return where a study's figures come from and how to measure them again."""
    links = join((record_link(found, record.label) for record in found.records), ", ")
    commits = list(dict.fromkeys(r.versions.git_commit for r in found.records if r.versions.git_commit))
    source = f"results/{found.name}"
    at = join((given(commit[:10], source=source) for commit in commits), ", ") or given(None, source=source)
    return html(
        '<span class="provenance">Records: {}; measured at commit {}; again with {}.</span>',
        links,
        at,
        code(f"samebytes study {found.name}"),
    )


def record_link(found: Measured, label: str) -> Html:
    """Return a link to a record in the site."""
    return html('<a href="../results/{}/{}.json" download><code>{}</code></a>', found.name, label, label)


def nothing_measured() -> Html:
    """Return what stands where no study has records."""
    return paragraph("No study has records yet. To measure one: {}.", code("samebytes study NAME"))


def this_machine(found: Measured | None) -> Html:
    """Return what `make report` measured here, or how to measure it."""
    if found is None:
        return paragraph("Nothing was measured on the machine that built this page. To do it: {}.", code("make report"))
    return study(found)


# -- data and method --------------------------------------------------------------------------------------------------


def records(found: Measured) -> Html:
    """Return a study's records with the status of each."""
    rows = []
    runs = {run.label: run for run in found.summary.runs}
    for record in found.records:
        source = f"results/{found.name}/{record.label}.json"
        run = runs[record.label]
        answered = (
            of(*share, source=source) if share else number(None, source=source, missing="no such pass")
            for share in (run.sequential, run.concurrent)
        )
        started = record.launches[0].started[:19].replace("T", " ") if record.launches else None
        size = (found.folder / f"{record.label}.json").stat().st_size
        rows.append(
            [
                record_link(found, record.label),
                code(record.config.name),
                record.status,
                *answered,
                given(started, source=source, missing="no server started"),
                number(size / 1000, 0, source=source),
            ]
        )
    return table(
        html("{}: {}", code(f"results/{found.name}"), given(found.title, source=f"studies/{found.name}.yaml")),
        ["record", "config", "status", "answered", "answered, concurrent leg", "started (UTC)", "kB"],
        rows,
        words=(1, 2),
    )


def tables(found: Sequence[Measured]) -> Html:
    """Return links to each study's tables, where they were written."""
    items = []
    for each in found:
        names = [name for name in ("summary.md", "summary.csv", "summary.json") if (each.folder / name).exists()]
        links = join((html('<a href="../results/{}/{}" download>{}</a>', each.name, n, n) for n in names), ", ")
        items.append(
            html(
                "{}: {}",
                code(each.name),
                links or html("none; write them with {}", code(f"samebytes summary {each.name}")),
            )
        )
    return prose.bullets(items)


def machines(found: Sequence[Measured]) -> Html:
    """Return machines and versions, a column per combination that a study's records name."""
    columns = []
    for each in found:
        kinds = {tuple(_stack(record).items()): record for record in reversed(each.records)}
        for stack, record in kinds.items():
            source = f"results/{each.name}/{record.label}.json"
            columns.append((each.name, {fact: given(value, source=source) for fact, value in stack}))
    facts = columns[0][1] if columns else {}
    return table(
        "Machines and versions, from the records",
        ["", *(code(name) for name, _ in columns)],
        [[fact, *(shown[fact] for _, shown in columns)] for fact in facts],
        words=range(1, len(columns) + 1),
    )


def _stack(record: Record) -> dict[str, str | None]:
    m, v = record.machine, record.versions
    return {
        "model": record.model.id,
        "GPU": m.gpu,
        "driver": m.driver,
        "CPU": m.cpu,
        "cores": None if m.cpu_cores is None else str(m.cpu_cores),
        "operating system": m.os,
        "vLLM": v.vllm,
        "torch": v.torch,
        "Python of the engine": v.python,
        "Python of the client": v.client_python,
        "openai": v.openai,
    }


def differences(found: Measured) -> Html:
    """Return what a study's configs do not share with ``baseline``; versions of this project aside."""
    rows = []
    for pair in found.pairs("baseline"):
        source = _pair_source(found, pair)
        for d in pair.differences:
            if d.name not in fairness.PROJECT:
                sides = (None if side is None else side or "set" for side in (d.a, d.b))
                shown = (given(side, source=source, missing="not set") for side in sides)
                rows.append([code(pair.candidate), d.kind, code(d.name), *shown])
    head = ["config", "kind", "name", "baseline has", "config has"]
    return table(given(found.title, source=f"studies/{found.name}.yaml"), head, rows, words=range(1, len(head)))


def everything() -> list[Measured]:
    """Read every study, the one of this machine last."""
    here = bookdata.this_machine()
    return [*bookdata.studies(), *([here] if here else [])]


def schema_link() -> Html:
    """Return a link to the schema of a record."""
    name = "record.schema.json"
    there = (paths.results() / name).exists()
    return html('<a href="../results/{}" download>{}</a>', name, name) if there else code(name)
