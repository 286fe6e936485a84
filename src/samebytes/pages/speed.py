"""Speed by workload: medians, ratios and the spread over the prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from samebytes import charts, definitions
from samebytes.bookdata import Measured
from samebytes.findings import Ratio, RunRow, WorkloadSpeed
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, table, times


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
    head = ["config", *map(common.workload_name, workloads), *(["concurrent leg"] if loaded else [])]
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
            common.speed_ratio(found, pair, by[w])
            if w in by
            else common.speed_ratio(found, pair, Ratio(w, 0, None, None))
            for w in workloads
        ]
        name = html("{} <small>against {}</small>", code(pair.candidate), code(pair.reference))
        rows.append([name, *cells, common.same_bytes(found, pair)])
    if not rows:
        return Html()
    return table(
        html(
            "Measured: each config against a reference. Geometric mean of the ratios prompt by prompt; under it, "
            "its {} interval.",
            common.level(),
        ),
        ["config", *map(common.workload_name, workloads), "bytes"],
        rows,
        words=(len(workloads) + 1,),
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
        common.provenance(found),
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
