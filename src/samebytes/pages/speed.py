"""Speed by workload: every prompt, ratios with their intervals, first tokens, acceptance, steps, drift and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebytes import exhibit, prose
from samebytes.bookdata import Measured
from samebytes.findings import ALL, ConfigResult, Pair, Ratio, RunRow
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent, times
from samebytes.published import Published
from samebytes.speculation import StepRow, StepTime

if TYPE_CHECKING:
    from samebytes.charts import Chart

# -- the conclusion ---------------------------------------------------------------------------------------------------


def conclusion(found: Measured, config: str = "ngram") -> Html:
    """Return how far a config's speed-up goes apart from prompt to prompt, and what goes with it."""
    pair = common.pair(found, config)
    rows = [row for row in prompt_rows(found, config) if row["speed_up"] is not None] if pair else []
    if pair is None or not rows:
        return Html()
    source = f"decode tok/s, prompt by prompt: {common.pair_source(found, pair)}"
    low, high = (pick(rows, key=lambda row: row["speed_up"]) for pick in (min, max))
    ends = [
        html("{} ({}{})", times(row["speed_up"], source=source), code(row["prompt"]), _steps_of(row, source))
        for row in (low, high)
    ]
    slower = sum(row["speed_up"] < 1 for row in rows)
    return paragraph(
        "{}: from prompt to prompt the speed-up of {} goes from {} to {}. {} prompts came slower than under the "
        "baseline.",
        common.machine(found),
        code(config),
        *ends,
        of(slower, len(rows), source=source),
    )


def _steps_of(row: Mapping[str, Any], source: str) -> Html:
    if row["tokens_per_step"] is None:
        return Html()
    return html(", {} tokens a step", number(row["tokens_per_step"], 2, source=source))


def prompt_rows(found: Measured, config: str, reference: str = "baseline") -> list[dict[str, Any]]:
    """Return a config's speed-up over a reference for each prompt, with what it drafted."""
    base = {p.id: p for p in found.summary.config(reference).prompts}
    return [
        {
            "prompt": p.id,
            "workload": p.workload,
            "tok_s": p.decode_tok_s,
            "baseline_tok_s": base[p.id].decode_tok_s,
            "speed_up": p.decode_tok_s / rate if p.decode_tok_s and (rate := base[p.id].decode_tok_s) else None,
            "acceptance_rate": p.acceptance.rate,
            "tokens_per_step": p.acceptance.tokens_per_step,
        }
        for p in found.summary.config(config).prompts
        if p.id in base
    ]


def drafted(found: Measured, config: str = "ngram") -> Html:
    """Return what became of a config's drafts over all prompts."""
    a = next((c.acceptance[ALL] for c in speculating(found) if c.name == config), None)
    if a is None or a.draft_tokens is None:
        return Html()
    source = f"the server’s counters: {found.files(config)}"
    return paragraph(
        "{}: of {} tokens that {} drafted, {} were what the model would have said itself ({}), so that a step of the "
        "engine gave {} tokens on average.",
        common.machine(found),
        count(a.draft_tokens, source=source),
        code(config),
        count(a.accepted_tokens, source=source),
        percent(a.rate, source=source),
        number(a.tokens_per_step, 2, source=source),
    )


# -- every prompt -----------------------------------------------------------------------------------------------------


def speed_chart(found: Measured) -> Html:
    """Return the chart of decode throughput per prompt."""
    from samebytes import charts  # altair: only on pages with a chart

    if not found.timed:
        return Html()
    source = f"results/{found.name}"
    medians = [
        html(
            "{}: {}",
            code(config.name),
            join(
                (
                    html("{} {}", common.workload_name(s.workload), number(s.decode_tok_s, source=source))
                    for s in config.speed
                    if s.decode_tok_s is not None
                ),
                ", ",
            ),
        )
        for config in found.timed
    ]
    return exhibit.chart(
        f"speed-{found.name}",
        charts.speed(found, common.WORKLOADS),
        html("Decode throughput per prompt in tok/s. Medians: {}.", join(medians, "; ")),
        "Each mark is a prompt (geometric mean over the config’s runs), each bar the median of a kind of prompt.",
        exhibit.origin(found, *_names(found)),
    )


def _names(found: Measured) -> list[str]:
    return [config.name for config in found.timed]


def published_spread(name: str, article: Published) -> Html:
    """Return the slowest and the fastest prompt of each workload under ``ngram``, where an article printed them."""
    workloads = [w for w in common.WORKLOADS if f"{w}.ngram.lowest" in article.figures]
    columns = ("ngram.lowest", "ngram", "ngram.highest")
    rows = [
        [common.workload_name(w), *(common.as_printed(article, f"{w}.{column}") for column in columns)]
        for w in workloads
    ]
    data = [
        {"workload": w, **{column: common.value_as_printed(article, f"{w}.{column}") for column in columns}}
        for w in workloads
    ]
    return exhibit.table(
        f"speed-spread-{name}",
        html("Published, tok/s under n-gram speculation: “{}”", article.title),
        ["prompts", "slowest printed", "median", "fastest printed"],
        rows,
        exhibit.printed(name, article),
        data=data,
    )


# -- medians ----------------------------------------------------------------------------------------------------------


def speed_table(found: Measured) -> Html:
    """Return medians per workload and config, and every config that did not run here."""
    workloads = found.workloads
    rows: list[Sequence[object]] = []
    data: list[dict[str, object]] = []
    for config in found.timed:
        by = {s.workload: s for s in config.speed}
        row: list[object] = [code(config.name)]
        row += [_median(found, config.name, workload, by) for workload in workloads]
        runs = len(config.labels)
        row.append(count(runs, "run" if runs == 1 else "runs", source=found.files(config.name)))
        rows.append(row)
        rates = {f"{w}_tok_s": by[w].decode_tok_s if w in by else None for w in workloads}
        data.append({"config": config.name, **rates, "runs": runs, "status": "complete"})
    for run in found.summary.runs:
        if run.status != "complete":
            rows.append(_not_run(found, run, len(workloads)))
            rates = {f"{w}_tok_s": None for w in workloads}
            data.append({"config": run.label, **rates, "runs": 0, "status": _status(run)})
    return exhibit.table(
        f"speed-medians-{found.name}",
        "Decode throughput in tok/s, one request at a time: median over the prompts of a kind; under it, its ratio to "
        "the baseline’s.",
        ["config", *map(common.workload_name, workloads), "status"],
        rows,
        exhibit.origin(found),
        data=data,
        words=(len(workloads) + 1,),
    )


def _median(found: Measured, config: str, workload: str, by: Mapping[str, Any]) -> Html:
    """Return a median rate and, under it, its ratio to the baseline's."""
    shown = common.median(found, config, workload, by.get(workload))
    pair = common.pair(found, config)
    ratios = [r.decode for r in pair.ratios if r.workload == workload] if pair else []
    if not ratios or ratios[0] is None:
        return shown
    files, base = found.files(config), found.files("baseline")
    ratio = times(ratios[0].ratio_of_medians, source=f"ratio of medians ({workload}): {files} over {base}")
    return html("{} <small>{}</small>", shown, ratio)


def _status(run: RunRow) -> str:
    return f"{run.status}: {run.reason}" if run.reason else run.status


def _not_run(found: Measured, run: RunRow, columns: int) -> list[object]:
    """Return the row of a run without figures: that it cannot run here is a result."""
    source = f"results/{found.name}/{run.label}.json"
    dashes = [number(None, source=source, missing=run.reason or run.status) for _ in range(columns)]
    said = given(run.reason, source=source) if run.reason else Html()
    return [code(run.label), *dashes, html("{}{}", run.status, html(": {}", said) if said else "")]


# -- speed-up ---------------------------------------------------------------------------------------------------------


def ratio_table(found: Measured) -> Html:
    """Return each config against each baseline: the paired ratio per workload, its interval, and what it is called."""
    workloads = found.workloads
    pairs = [pair for pair in found.summary.pairs if pair.refused is None]
    if not pairs:
        return Html()
    rows, data = [], []
    for pair in pairs:
        by = {r.workload: r for r in pair.ratios}
        name = html("{} <small>against {}</small>", code(pair.candidate), code(pair.reference))
        rows.append([name, *(_ratio_cell(found, pair, by.get(w)) for w in workloads)])
        data += [_ratio_row(pair, ratio) for ratio in pair.ratios]
    return exhibit.table(
        f"speed-up-{found.name}",
        html(
            "Speed-up of each config over each baseline: geometric mean of the ratios prompt by prompt; under it the "
            "{} interval, what the ratio is called, and how far two starts of one config lie apart (drift).",
            common.level(),
        ),
        ["config", *map(common.workload_name, workloads)],
        rows,
        exhibit.origin(found, *dict.fromkeys(name for p in pairs for name in (p.reference, p.candidate))),
        data=data,
    )


def _ratio_cell(found: Measured, pair: Pair, ratio: Ratio | None) -> Html:
    ratio = ratio or Ratio("", 0, None, None)
    shown = common.speed_ratio(found, pair, ratio)
    if ratio.decode is None:
        return shown
    source = f"largest ratio between two starts of one config ({ratio.workload}): {common.pair_source(found, pair)}"
    drift = times(ratio.drift, source=source, missing="neither config was started twice")
    if ratio.called == "within the drift":
        return html("{} <small>within drift {}</small>", shown, drift)
    if ratio.called == "drift not measured":
        return html("{} <small>drift not measured {}</small>", shown, drift)
    return html("{} <small>{}</small> <small>drift {}</small>", shown, ratio.effect, drift)


def _ratio_row(pair: Pair, ratio: Ratio) -> dict[str, object]:
    decode, ttft = ratio.decode, ratio.ttft
    interval = decode.t_interval if decode else None
    wait = ttft.t_interval if ttft else None
    return {
        "config": pair.candidate,
        "against": pair.reference,
        "workload": ratio.workload,
        "prompts": decode.n if decode else 0,
        "ratio_of_medians": decode.ratio_of_medians if decode else None,
        "speed_up": decode.geometric_mean if decode else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "drift": ratio.drift,
        "called": ratio.effect,
        "ttft_ratio": ttft.geometric_mean if ttft else None,
        "ttft_low": wait.low if wait else None,
        "ttft_high": wait.high if wait else None,
    }


# -- the first token --------------------------------------------------------------------------------------------------


def ttft_table(found: Measured) -> Html:
    """Return the median time to the first token per workload and config, and its paired ratio to the baseline's."""
    workloads = found.workloads
    rows, data = [], []
    for config in found.timed:
        pair = common.pair(found, config.name)
        ratios = {r.workload: r.ttft for r in pair.ratios} if pair else {}
        cells: list[object] = [code(config.name)]
        for speed in config.speed:
            source = f"TTFT ({speed.workload}): {found.files(config.name)}"
            shown = number(speed.ttft_s, 1, source=f"median {source}", scale=1000)
            ratio = ratios.get(speed.workload)
            if ratio is not None:
                shown = html(
                    "{} <small>{} {}</small>",
                    shown,
                    times(ratio.geometric_mean, source=f"paired {source}"),
                    prose.between(ratio.t_interval, source=f"paired {source}"),
                )
            cells.append(shown)
            interval = ratio.t_interval if ratio else None
            data.append(
                {
                    "config": config.name,
                    "workload": speed.workload,
                    "ttft_s": speed.ttft_s,
                    "ratio": ratio.geometric_mean if ratio else None,
                    "low": interval.low if interval else None,
                    "high": interval.high if interval else None,
                }
            )
        rows.append(cells)
    return exhibit.table(
        f"speed-ttft-{found.name}",
        "Time to first token in milliseconds: median over the prompts of a kind; under it, the paired ratio to the "
        "baseline (above one: later) with its interval.",
        ["config", *map(common.workload_name, workloads)],
        rows,
        exhibit.origin(found, *_names(found)),
        data=data,
    )


# -- acceptance -------------------------------------------------------------------------------------------------------


def speculating(found: Measured) -> list[ConfigResult]:
    """Return the configs whose drafts were counted."""
    return [config for config in found.summary.configs if any(a.n for a in config.acceptance.values())]


def acceptance_table(found: Measured) -> Html:
    """Return what was drafted and accepted, per config and workload."""
    rows, data = [], []
    for config in speculating(found):
        source = f"the server’s counters, read around each prompt: {found.files(config.name)}"
        for workload, a in config.acceptance.items():
            name = "all" if workload == ALL else common.workload_name(workload)
            rows.append(
                [
                    code(config.name),
                    name,
                    count(a.draft_tokens, source=source),
                    count(a.accepted_tokens, source=source),
                    percent(a.rate, source=source),
                    number(a.mean_length, 2, source=source),
                    number(a.tokens_per_step, 2, source=source),
                    count(a.overrun, source=source, missing="chunks were merged on the way"),
                ]
            )
            data.append(
                {
                    "config": config.name,
                    "workload": workload,
                    "answers": a.n,
                    "drafts": a.drafts,
                    "draft_tokens": a.draft_tokens,
                    "accepted_tokens": a.accepted_tokens,
                    "acceptance_rate": a.rate,
                    "mean_acceptance_length": a.mean_length,
                    "tokens_per_step": a.tokens_per_step,
                    "overrun": a.overrun,
                }
            )
    if not rows:
        return Html()
    return exhibit.table(
        f"speed-acceptance-{found.name}",
        "Draft tokens and what became of them, over all runs of a config.",
        [
            "config",
            "prompts",
            "drafted",
            "accepted",
            "acceptance rate",
            "mean acceptance length",
            "tokens per step",
            "overrun",
        ],
        rows,
        exhibit.origin(found, *(config.name for config in speculating(found))),
        data=data,
        words=(1,),
    )


def acceptance_chart(found: Measured, config: str = "ngram") -> Html:
    """Return the chart of speed-up over tokens per step, a mark for each prompt."""
    if common.pair(found, config) is None or config not in [c.name for c in speculating(found)]:
        return Html()
    reference = _like(found, config)
    rows = [
        row
        for row in prompt_rows(found, config, reference)
        if row["speed_up"] is not None and row["tokens_per_step"] is not None
    ]
    if not rows:
        return Html()
    below = sum(row["speed_up"] < row["tokens_per_step"] for row in rows)
    source = f"{found.files(config)} over {found.files(reference)}"
    return exhibit.chart(
        f"speed-steps-{found.name}",
        _acceptance_chart(rows, reference),
        html(
            "Speed-up of {} over {} against tokens per step, prompt by prompt. {} prompts lie below the line on which "
            "a step costs what a step of the baseline does.",
            code(config),
            code(reference),
            of(below, len(rows), source=source),
        ),
        html(
            "Each mark is a prompt. On the dashed line its steps cost, on average, what a step of {} does; the further "
            "below it, the dearer they are.",
            code(reference),
        ),
        exhibit.origin(found, config, reference),
        data=rows,
    )


def _like(found: Measured, config: str) -> str:
    """Return the baseline with the config's scheduling where there is one, else the plain one."""
    return "baseline_sync" if common.pair(found, config, "baseline_sync") is not None else "baseline"


def _acceptance_chart(rows: Sequence[Mapping[str, Any]], reference: str) -> Chart:
    import altair

    drawn = [dict(row) | {"workload": common.workload_name(row["workload"])} for row in rows]
    names = list(dict.fromkeys(row["workload"] for row in drawn))
    most = max(max(row["speed_up"], row["tokens_per_step"]) for row in drawn) * 1.05
    scale = altair.Scale(domain=[0, most], nice=False)
    base = altair.Chart(altair.InlineData(values=drawn))
    line = base.mark_rule(strokeDash=[4, 4], opacity=0.25).encode(
        x=altair.datum(0), y=altair.datum(0), x2=altair.datum(most), y2=altair.datum(most)
    )
    points = base.mark_point(filled=True, size=70, opacity=0.85).encode(
        x=altair.X("tokens_per_step:Q", title="tokens per step", scale=scale),
        y=altair.Y("speed_up:Q", title=f"speed-up over {reference}", scale=scale),
        color=altair.Color("workload:N", scale=altair.Scale(domain=names), title=None),
        shape=altair.Shape("workload:N", scale=altair.Scale(domain=names), title=None),
        tooltip=[
            altair.Tooltip("prompt:N"),
            altair.Tooltip("tokens_per_step:Q", title="tokens per step", format=".2f"),
            altair.Tooltip("speed_up:Q", title="speed-up", format=".2f"),
            altair.Tooltip("acceptance_rate:Q", title="acceptance rate", format=".0%"),
        ],
    )
    return altair.layer(line, points).properties(height=340)


# -- what a step costs ------------------------------------------------------------------------------------------------


def steps_conclusion(found: Measured, config: str = "ngram") -> Html:
    """Return what a step with a draft and one without cost, in steps of the baseline with the same scheduling."""
    rows = [row for row in found.summary.steps if row.config == config and row.k is not None and row.baseline_s]
    if not rows:
        return Html()
    none, full = (_pooled([kind(row) for row in rows]) for kind in (_none, _full))
    base = sum(row.baseline_s or 0 for row in rows) / len(rows)
    if none is None or full is None:
        return Html()
    source = f"time between chunks, by what the step drafted (replayed): {found.files(config)}"
    dear = none > 1.5 * full
    return paragraph(
        "{}: a step of {} that verifies a full draft takes {} of a plain step, one that found nothing to draft {}. {}",
        common.machine(found),
        code(config),
        times(full / base, source=source),
        times(none / base, source=source),
        "So it is the steps without a draft that are dear here, and a prompt with little to copy pays for them."
        if dear
        else "Whether a step carries a draft makes little difference to what it takes."
        if none > full / 1.5
        else "So it is verifying a draft that costs.",
    )


def _none(row: StepRow) -> StepTime:
    return row.none


def _full(row: StepRow) -> StepTime:
    return row.full


def _pooled(found: Sequence[StepTime]) -> float | None:
    """Return the mean over all steps of several runs, in seconds."""
    known = [(t.steps, t.mean_s) for t in found if t.steps and t.mean_s is not None]
    steps = sum(n for n, _ in known)
    return sum(n * mean for n, mean in known) / steps if steps else None


def steps_table(found: Measured) -> Html:
    """Return what a step takes, by what it drafted, in every run."""
    steps = [row for row in found.summary.steps if row.config in _names(found)]
    if not any(row.k is not None for row in steps):
        return Html()
    rows, data = [], []
    for row in steps:
        source = f"results/{found.name}/{row.label}.json"
        cells: list[object] = [code(row.label)]
        values: dict[str, object] = {"run": row.label, "config": row.config, "k": row.k, "baseline_s": row.baseline_s}
        for kind, found_time in (("none", row.none), ("part", row.part), ("full", row.full)):
            cells.append(_step_cell(found_time, row.baseline_s, source))
            values |= {f"{kind}_steps": found_time.steps, f"{kind}_s": found_time.mean_s}
        rows.append(cells)
        data.append(values)
    return exhibit.table(
        f"speed-step-costs-{found.name}",
        "Milliseconds of a step, by what it drafted; under it, in steps of the baseline with the same scheduling. "
        "A config that does not speculate drafts nothing.",
        ["run", "nothing drafted", "a part of a draft", "a full draft"],
        rows,
        exhibit.origin(found, *_names(found)),
        data=data,
    )


def _step_cell(found: StepTime, baseline_s: float | None, source: str) -> Html:
    if not found.steps:
        return number(None, source=source, missing="no such step")
    what = f"mean over {found.steps:,} steps: {source}"
    shown = number(found.mean_s, 2, source=what, missing="their time is not known", scale=1000)
    if found.mean_s is None or not baseline_s:
        return shown
    return html("{} <small>{}</small>", shown, times(found.mean_s / baseline_s, source=what))


# -- drift ------------------------------------------------------------------------------------------------------------


def drift_table(found: Measured) -> Html:
    """Return how far a prompt's decode rate goes from one start of a config to another."""
    rows, data = [], []
    for config in found.summary.configs:
        if len(config.labels) < 2:
            continue
        source = f"max / min − 1 of a prompt’s decode rate over runs: {found.files(config.name)}"
        rows.append(
            [
                code(config.name),
                *(
                    html(
                        "{} <small>largest {}</small>",
                        percent(s.spread_median, source=source),
                        percent(s.spread_max, source=source),
                    )
                    for s in config.speed
                ),
            ]
        )
        data += [
            {"config": config.name, "workload": s.workload, "median": s.spread_median, "largest": s.spread_max}
            for s in config.speed
        ]
    if not rows:
        return paragraph("No config was started twice here, so the drift between starts is not known.")
    names = [config.name for config in found.summary.configs if len(config.labels) > 1]
    return exhibit.table(
        f"speed-drift-{found.name}",
        "The same config, started again: by how much a prompt’s decode rate moves with no flag changed. Median over "
        "the prompts of a kind; under it, the largest.",
        ["config", *map(common.workload_name, found.workloads)],
        rows,
        exhibit.origin(found, *names),
        data=data,
    )


# -- energy -----------------------------------------------------------------------------------------------------------


def energy_table(found: Measured) -> Html:
    """Return joules per token and the card's state, where power was sampled; else that it was not."""
    measured = [config for config in found.timed if ALL in config.energy]
    if not measured:
        return paragraph(
            "{}: {}.",
            common.machine(found),
            "the card’s power was not sampled" if found.gpu else "there is no card whose power could be sampled",
        )
    workloads = [ALL, *found.workloads]
    rows, data = [], []
    for config in measured:
        source = f"the card’s power, integrated from send to finish: {found.files(config.name)}"
        joules = {w: config.energy[w].joules_per_token if w in config.energy else None for w in workloads}
        whole = config.energy[ALL]
        throttled = None if whole.throttle_reasons is None else ", ".join(whole.throttle_reasons) or "nothing"
        rows.append(
            [
                code(config.name),
                *(number(joules[w], 3, source=source) for w in workloads),
                number(whole.power_w, 0, source=source),
                percent(whole.gpu_util, 0, source=source),
                count(whole.temperature_c, source=source),
                given(throttled, source=source),
            ]
        )
        data.append(
            {
                "config": config.name,
                **{f"{w}_joules_per_token": joules[w] for w in workloads},
                "power_w": whole.power_w,
                "sm_clock_mhz": whole.sm_clock_mhz,
                "utilisation": whole.gpu_util,
                "temperature_c": whole.temperature_c,
                "throttled_by": throttled,
            }
        )
    head = ["config", *("all" if w == ALL else common.workload_name(w) for w in workloads)]
    return exhibit.table(
        f"speed-energy-{found.name}",
        "Joules per generated token by kind of prompt, and the card’s state over the same time. The card’s idle power "
        "is part of it.",
        [*head, "power, W", "utilisation", "highest °C", "throttled by"],
        rows,
        exhibit.origin(found, *(config.name for config in measured)),
        data=data,
        words=(len(head) + 3,),
    )
