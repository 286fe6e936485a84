"""Which settings: n-gram speculation predicted for any settings, and what became of the predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from samebytes import exhibit, paths, prose, settings, speculation, tune
from samebytes.bookdata import Measured
from samebytes.exhibit import Origin
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, paragraph, percent, times
from samebytes.replay import ARTICLE, Settings
from samebytes.speculation import Errors, Forecast, Prediction
from samebytes.tune import Choice, Sweep, Trial

OVER = "baseline"
"""The config that a predicted speed-up is over."""

USUAL = "ngram"
"""The config with the article's settings."""


@dataclass(frozen=True)
class Tuned:
    """A study with its answers swept over all settings.

    Attributes
    ----------
    sweep : Sweep
        Of the baseline's answers, at the step cost of all of the study's runs with n-gram speculation.
    trials : tuple of Trial
        Other settings than the article's, measured or planned, each predicted without its own runs.
    """

    study: Measured
    sweep: Sweep
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        """The study's name."""
        return self.study.name

    @property
    def title(self) -> Html:
        """The study's title."""
        return given(self.study.title, source=f"studies/{self.name}.yaml")

    @property
    def source(self) -> str:
        """Where its predictions come from."""
        return f"replay of {self.study.files(OVER)} at the step cost of results/{self.name}"

    @property
    def measured_lengths(self) -> dict[int, float]:
        """Seconds of a step by the length of a full draft, where measured."""
        return dict(self.sweep.cost.full)

    @property
    def costs(self) -> list[str]:
        """The configs whose runs gave the step cost, and the one that it is relative to."""
        first = next(r for r in self.study.records if r.config.name == OVER)
        alike = [
            r.config.name
            for r in speculation.complete(self.study.records)
            if speculation.circumstances(r) == speculation.circumstances(first) and speculation.settings_of(r)
        ]
        return list(dict.fromkeys((OVER, *alike)))

    def origin(self) -> Origin:
        """Return the origin of its predictions."""
        return exhibit.origin(self.study, *self.costs, command=f"samebytes tune results/{self.name}")


def tuned(studies: Sequence[Measured]) -> list[Tuned]:
    """Sweep every study that has a baseline and a measured step cost, but none whose answers mean nothing."""
    found = []
    for study in (study for study in studies if study.note is None):
        complete = speculation.complete(study.records)
        if not any(r.config.name == OVER and tune.samples(r) for r in complete):
            continue
        # the answers are those of the first run that does not speculate
        runs = sorted(complete, key=lambda r: r.config.name != OVER)
        sweep = tune.over(runs)
        if sweep.cost.n:
            trials = tune.trials(complete, planned(study.name), baseline=OVER, usual=USUAL)
            found.append(Tuned(study, sweep, tuple(trials)))
    return found


def planned(study: str) -> dict[str, Settings]:
    """Return the n-gram settings of the configs that a study's file lists, run or not."""
    if study not in settings.names(paths.studies()):
        return {}
    found = {}
    for run in settings.study(study).runs:
        config = settings.config(run.config)
        flag = config.flags.get("speculative-config")
        if isinstance(flag, dict) and flag.get("method") == "ngram" and not config.env:
            found[run.config] = Settings.of(flag)
    return found


def nothing() -> Html:
    """Return what the page says where nothing can be predicted."""
    return paragraph(
        "There is nothing to predict from: it takes a run of {} and one of {} with the token ids of their answers.",
        code(OVER),
        code(USUAL),
    )


def settings_count() -> Html:
    """Return how many settings are tried."""
    return count(len(tune.GRID), source="samebytes.tune.GRID")


def articles_settings() -> Html:
    """Return the article's settings."""
    return _triple(ARTICLE, "samebytes.replay.ARTICLE")


# -- the figure -------------------------------------------------------------------------------------------------------


def tuner(found: Sequence[Tuned]) -> Html:
    """Return the figure in which a reader sets k, min and max; without a script it shows the article's settings."""
    if not found:
        return nothing()
    parts = [_study(i, each) for i, each in enumerate(found)]
    content = json.dumps(_content(found), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    body = html(
        '<div class="tuner" data-tuner><div class="tuner-live" hidden></div>{}'
        '<p class="tuner-flag"><span>To paste after {}:</span><code data-flag>{}</code></p>'
        '<script type="application/json">{}</script></div>',
        join(parts),
        code("vllm serve MODEL"),
        given(tune.flag(ARTICLE), source="samebytes.replay.ARTICLE"),
        Html(content.replace("<", "\\u003c")),
    )
    caption = html(
        "Predicted for the recorded answers, by workload. Speed-up over {}: geometric mean over the prompts. Without a "
        "script, at the article’s settings.",
        code(OVER),
    )
    origin = exhibit.together((each.origin() for each in found), "samebytes tune results/STUDY")
    return exhibit.figure("tuning", body, caption, origin, data=[row for each in found for row in rows(each)])


def _study(index: int, found: Tuned) -> Html:
    k = ARTICLE.k
    shown = []
    for workload in (*found.sweep.workloads, None):
        group = workload or "all"
        row = next(r for r in found.sweep.rows([ARTICLE]) if r["workload"] == group)
        cells: list[object] = [common.workload_name(workload) if workload else "all prompts"]
        for key, value in (
            ("speed_up", times(row["speed_up"], source=found.source)),
            ("acceptance_rate", percent(row["acceptance_rate"], 0, source=found.source, missing="nothing drafted")),
            ("tokens_per_step", number(row["tokens_per_step"], 2, source=found.source)),
        ):
            cells.append(html('<span data-at="{}.{}.{}">{}</span>', index, group, key, value))
        shown.append(cells)
    return html(
        '<div class="figures" data-study="{}"><p class="tuner-study"><strong>{}</strong> '
        "<span>cost of a full draft of <span data-k>{}</span> tokens: <em data-known>{}</em></span></p>{}</div>",
        index,
        found.title,
        count(k, source="samebytes.replay.ARTICLE"),
        found.sweep.cost.known(k),
        prose.grid(["predicted", "speed-up", "acceptance", "tokens per step"], shown),
    )


def _content(found: Sequence[Tuned]) -> dict[str, Any]:
    """Return what the script needs: for each study and group three lists in the order of the settings."""
    studies = []
    for each in found:
        groups: dict[str, dict[str, list[float | None]]] = {}
        for row in each.sweep.rows():
            lists = groups.setdefault(row["workload"], {key: [] for key in _SHOWN})
            for key, digits in _SHOWN.items():
                lists[key].append(None if row[key] is None else round(row[key], digits))
        best, sure = each.sweep.best(), each.sweep.best(lengths=each.measured_lengths)
        studies.append(
            {
                "machine": each.study.where,
                "known": [each.sweep.cost.known(k) for k in range(1, LONGEST + 1)],
                "groups": groups,
                "best": best.settings,
                "sure": sure.settings,
            }
        )
    return {"grid": tune.GRID, "start": ARTICLE, "studies": studies}


_SHOWN = {"speed_up": 3, "acceptance_rate": 3, "tokens_per_step": 2}


LONGEST = max(chosen.k for chosen in tune.GRID)
"""The longest draft that is tried."""


def rows(found: Tuned) -> list[dict[str, object]]:
    """Return the figure's data: a row per workload and settings."""
    return [
        {
            "study": found.name,
            "workload": row["workload"],
            "num_speculative_tokens": row["k"],
            "prompt_lookup_min": row["min_n"],
            "prompt_lookup_max": row["max_n"],
            "predicted_speed_up": row["speed_up"],
            "acceptance_rate": row["acceptance_rate"],
            "tokens_per_step": row["tokens_per_step"],
            "cost": found.sweep.cost.known(row["k"]),
        }
        for row in found.sweep.rows()
    ]


# -- the best settings ------------------------------------------------------------------------------------------------


def best_table(found: Tuned) -> Html:
    """Return the best settings by workload, of all and of those whose step cost was measured."""
    shown: list[list[object]] = []
    data = []
    scopes = {"any draft length": None, "lengths whose cost was measured": found.measured_lengths}
    for scope, lengths in scopes.items():
        for workload in (*found.sweep.workloads, None):
            choice = found.sweep.best(workload, lengths)
            shown.append([*_head(workload, scope), *_choice(found, choice)])
            data.append(
                {
                    "workload": workload or "all",
                    "choice": scope,
                    "prompts": choice.n,
                    **dict(zip(_NAMES, choice.settings, strict=True)),
                    "predicted_speed_up": choice.speed_up,
                    "with_the_articles_settings": choice.article,
                    "gain": choice.gain,
                    "gain_on_unseen_prompts": choice.held_out,
                }
            )
    caption = html(
        "{}: the settings with the greatest predicted speed-up over {}, against the article’s {}. A choice is judged "
        "by the prompts that it is made on, which flatters it; on unseen prompts: each prompt with the settings that "
        "are best for the others. Every recorded answer counts, also those of fewer than {} tokens, which are too "
        "short to be timed.",
        found.title,
        code(OVER),
        _triple(ARTICLE, "samebytes.replay.ARTICLE"),
        common.minimum_tokens(),
    )
    head = ["workload", "settings", "speed-up", "the article’s", "gain", "on unseen prompts"]
    return exhibit.table(f"tuning-best-{found.name}", caption, head, shown, found.origin(), data=data, words=(1,))


_NAMES = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")


def _head(workload: str | None, scope: str) -> list[object]:
    return [html("{} <small>{}</small>", common.workload_name(workload) if workload else "all prompts", scope)]


def _triple(chosen: Settings, source: str) -> Html:
    """Return settings as k, min, max."""
    return join([html("{} {}", name, count(value, source=source)) for name, value in _named(chosen)], ", ")


def _named(chosen: Settings) -> list[tuple[str, int]]:
    return [("k", chosen.k), ("min", chosen.min_n), ("max", chosen.max_n)]


def _choice(found: Tuned, choice: Choice) -> list[object]:
    source = found.source
    return [
        _triple(choice.settings, source),
        times(choice.speed_up, source=source),
        times(choice.article, source=source),
        times(choice.gain, source=source),
        times(choice.held_out, source=source, missing="a single prompt"),
    ]


def flags(found: Sequence[Tuned]) -> Html:
    """Return, for each study, the flag with the best settings whose step cost was measured, to paste."""
    items = []
    for each in found:
        choice = each.sweep.best(lengths=each.measured_lengths)
        title = each.title
        if choice.speed_up <= 1:
            items.append(html("{}: no settings are predicted to be faster than no speculation; leave it off", title))
            continue
        pasted = given(tune.flag(choice.settings), source=each.source)
        items.append(html("{}: {}", title, html("<code>{}</code>", pasted)))
    return prose.bullets(items)


# -- the map ----------------------------------------------------------------------------------------------------------


def heat_map(found: Tuned) -> Html:
    """Return the map of predicted speed-ups by draft length and shortest lookup."""
    from samebytes import charts  # altair: only on pages with a chart

    best = found.sweep.best()
    described = html(
        "Heat maps of the predicted speed-up on {}, one for all prompts and one per workload: draft length against "
        "shortest lookup, each cell with its best longest lookup. Over all prompts the greatest is {} at {}; the "
        "article’s settings come to {}.",
        found.title,
        times(best.speed_up, source=found.source),
        _triple(best.settings, found.source),
        times(best.article, source=found.source),
    )
    known = [f"{k}" for k in sorted(found.measured_lengths)]
    caption = html(
        "{}: predicted speed-up by draft length and shortest lookup, each with its best longest lookup. The cost of a "
        "step was measured for drafts of {} tokens; everything else is computed along a line through it.",
        found.title,
        common.listed([count(int(k), source=found.source) for k in known]),
    )
    chart = charts.tuning(found.sweep)
    return exhibit.chart(f"tuning-map-{found.name}", chart, described, caption, found.origin())


# -- what a step costs ------------------------------------------------------------------------------------------------


def cost_table(found: Tuned) -> Html:
    """Return what a step costs by the length of its draft, and how that is known."""
    cost, source = found.sweep.cost, f"step times of {', '.join(found.costs)} in results/{found.name}"
    shown: list[list[object]] = [["the baseline’s", *_cost(cost.baseline_s, cost.baseline_s, source), "measured"]]
    shown.append(["nothing drafted", *_cost(cost.none_s, cost.baseline_s, source), "measured"])
    data: list[dict[str, object]] = [
        {"step": "baseline", "drafted": None, "seconds": cost.baseline_s, "known": "measured"},
        {"step": "speculating", "drafted": 0, "seconds": cost.none_s, "known": "measured"},
    ]
    for k in range(1, LONGEST + 1):
        seconds, known = cost.full_s(k), cost.known(k)
        shown.append(
            [html("a full draft, k = {}", count(k, source=source)), *_cost(seconds, cost.baseline_s, source), known]
        )
        data.append({"step": "speculating", "drafted": k, "seconds": seconds, "known": known})
    caption = html(
        "{}: what a step takes, by what it drafted. Measured means: the mean over such steps of {} prompts.",
        found.title,
        count(cost.n, source=source),
    )
    head = ["step", "ms", "in baseline tokens", "how known"]
    return exhibit.table(
        f"tuning-cost-{found.name}",
        caption,
        head,
        shown,
        exhibit.origin(found.study, *found.costs),
        data=data,
        words=(3,),
    )


ALIKE = 0.05
"""Share by which two step times may differ and still be called alike."""


def cost_result(found: Sequence[Tuned]) -> Html:
    """Return, in a sentence per study, whether a step grows with what it verifies."""
    return prose.bullets([_grows(each) for each in found])


def _grows(found: Tuned) -> Html:
    cost, source = found.sweep.cost, f"step times of {', '.join(found.costs)} in results/{found.name}"
    k, full_s = cost.full[-1]
    said = html(
        "{}: a step takes {} where it drafted nothing, and {} where it verifies a full draft of {} tokens.",
        common.machine(found.study),
        number(cost.none_s, 2, "ms", source=source, scale=1000),
        number(full_s, 2, "ms", source=source, scale=1000),
        count(k, source=source),
    )
    if full_s > cost.none_s * (1 + ALIKE):
        return html("{} It grows with the tokens that it verifies.", said)
    if full_s >= cost.none_s * (1 - ALIKE):
        return html("{} The tokens that it verifies cost next to nothing.", said)
    reason = (
        " The likely reason is that graphs of whole steps exist for the full draft’s shape alone; that is inferred "
        "from the times, not read from the engine."
        if found.study.gpu
        else ""
    )
    return html(
        "{} Drafting nothing is the dearer one.{} It decides the settings there: what pays is less the accepted tokens "
        "than to draft something at every step.",
        said,
        reason,
    )


def _cost(seconds: float, baseline_s: float, source: str) -> list[object]:
    return [number(seconds, 2, source=source, scale=1000), times(seconds / baseline_s, source=source)]


# -- predicted against measured ---------------------------------------------------------------------------------------


def trial_table(found: Tuned) -> Html:
    """Return the settings that were named by replay, against what they measured."""
    if not found.trials:
        return Html()
    shown, data = [], []
    for trial in found.trials:
        shown.append(_trial(found, trial))
        result = trial.measured
        bounds = result.t_interval if result else None
        data.append(
            {
                "config": trial.config,
                **dict(zip(_NAMES, trial.settings, strict=True)),
                "over": trial.over,
                "workload": trial.workload or "all",
                "cost": trial.cost.known(trial.settings.k),
                "predicted": trial.predicted,
                "measured": result.geometric_mean if result else None,
                "low": bounds.low if bounds else None,
                "high": bounds.high if bounds else None,
                "prompts": result.n if result else None,
                "within_the_interval": trial.held,
            }
        )
    configs = list(dict.fromkeys(trial.config for trial in found.trials))
    ran = [name for name in (*found.costs, *configs) if any(r.config.name == name for r in found.study.records)]
    caption = html(
        "{}: other settings than the article’s, predicted from the other configs’ runs alone, and measured. Ratios of "
        "decode throughput, geometric mean over the prompts; under a measured one its {} interval. Answers of fewer "
        "than {} tokens are left out on both sides; the choice of the best settings counts them too, and knows the "
        "step cost of all runs, so it predicts another speed-up for the same settings.",
        found.title,
        common.level(),
        common.minimum_tokens(),
    )
    head = ["prompts", "predicted", "measured", "the prediction"]
    return exhibit.table(
        f"tuning-trials-{found.name}",
        caption,
        head,
        shown,
        exhibit.origin(found.study, *dict.fromkeys(ran)),
        data=data,
        words=(3,),
    )


def _trial(found: Tuned, trial: Trial) -> list[object]:
    result = trial.measured
    source = f"decode tok/s, paired by prompt: {trial.config} over {trial.over}, results/{found.name}"
    predicted = f"replay of {found.study.files(OVER)} without any run of {trial.config}"
    measured: object = number(None, source=source, missing="not measured yet")
    if result is not None:
        measured = html(
            "{} <small>{}</small>",
            times(result.geometric_mean, source=source),
            prose.between(result.t_interval, source=source),
        )
    workload = common.workload_name(trial.workload) if trial.workload else "all prompts"
    return [
        html("{} <small>{} over {}</small>", workload, code(trial.config), code(trial.over)),
        times(trial.predicted, source=predicted),
        measured,
        _JUDGED[trial.held] if result is not None else "stands before the measurement",
    ]


_JUDGED = {True: "lies within the interval", False: "lies outside the interval", None: "cannot be judged"}


def trial_result(found: Sequence[Tuned]) -> Html:
    """Return, in a sentence per config, whether the prediction held over all prompts."""
    return prose.bullets([_result(each, trial) for each in found for trial in each.trials if _over_usual(trial)])


def _over_usual(trial: Trial) -> bool:
    return trial.workload is None and trial.over == USUAL


def _result(found: Tuned, trial: Trial) -> Html:
    source = f"decode tok/s, paired by prompt: {trial.config} over {trial.over}, results/{found.name}"
    known = trial.cost.known(trial.settings.k)
    start = html(
        "{} ({}) on {}: predicted {} the speed of {}, the cost of its drafts being {};",
        code(trial.config),
        _triple(trial.settings, f"configs/{trial.config}.yaml"),
        common.machine(found.study),
        times(trial.predicted, source=source),
        code(USUAL),
        known,
    )
    if trial.measured is None:
        return html("{} not measured yet.", start)
    bounds = trial.measured.t_interval
    verdict = "the prediction held" if trial.held else "the prediction did not hold"
    if bounds is not None and bounds.low <= 1 <= bounds.high:
        verdict += ", and the settings make no clear difference"
    return html(
        "{} measured {} {}: {}.",
        start,
        times(trial.measured.geometric_mean, source=source),
        prose.between(bounds, source=source),
        verdict if bounds is not None else "a single prompt decides nothing",
    )


def forecast_table(found: Tuned) -> Html:
    """Return how far predictions of decode throughput were off, by run and by the run that gave the step cost."""
    forecasts = found.study.summary.forecasts
    if not forecasts:
        return Html()
    shown, data = [], []
    for each in forecasts:
        source = f"results/{found.name}/{each.label}.json by the step cost of results/{found.name}/{each.costs}.json"
        shown.append(
            [
                html("{} <small>cost of {}</small>", code(each.label), code(each.costs)),
                prose.of(*each.within, source=source),
                *_errors(each.by_kind, source),
                *_errors(each.one_cost, source),
                *_errors(each.run_to_run, source),
            ]
        )
        data.append(
            {
                "run": each.label,
                "cost_of": each.costs,
                "within_interval": each.within[0],
                "with_interval": each.within[1],
                **_raw("by_kind", each.by_kind),
                **_raw("one_cost", each.one_cost),
                **_raw("run_to_run", each.run_to_run),
            }
        )
    caption = html(
        "{}: how far predicted decode throughput was from the measured one, per prompt. A run by its own cost: each "
        "prompt by that of the others.",
        found.title,
    )
    head = ["run", "within their interval", "median error", "worst", "one cost for all steps: median", "worst"]
    head += ["another run as the prediction: median", "worst"]
    origin = exhibit.origin(found.study, command=f"samebytes summary {found.name}")
    return exhibit.table(f"tuning-errors-{found.name}", caption, head, shown, origin, data=data)


def _errors(found: Errors | None, source: str) -> list[object]:
    missing = "no other run with the same settings and answers"
    return [
        percent(value, 0, source=source, missing=missing)
        for value in ((found.median, found.worst) if found else (None, None))
    ]


def _raw(name: str, found: Errors | None) -> dict[str, float | None]:
    return {f"{name}_median": found.median if found else None, f"{name}_worst": found.worst if found else None}


def prompt_table(found: Tuned) -> Html:
    """Return predicted and measured speed-up per prompt, of each config's first run that was predicted."""
    forecasts = _first_runs(found)
    if not forecasts:
        return Html()
    by = {f.label: {p.id: p for p in f.predictions} for f in forecasts}
    prompts = list(dict.fromkeys(p.id for f in forecasts for p in f.predictions))
    shown = [
        [code(key), *(cell for f in forecasts for cell in _pair(found, f, by[f.label].get(key)))] for key in prompts
    ]
    data = [
        {
            "run": f.label,
            "prompt": p.id,
            "same_answer_as_baseline": p.same_answer,
            "tokens_per_step": p.tokens_per_step,
            "step_cost": p.step_cost,
            "predicted_speed_up": p.speed_up,
            "measured_speed_up": p.measured_speed_up,
            "predicted_tok_s": p.tok_s,
            "low_tok_s": p.interval.low if p.interval else None,
            "high_tok_s": p.interval.high if p.interval else None,
            "measured_tok_s": p.measured_tok_s,
            "error": p.error,
        }
        for f in forecasts
        for p in f.predictions
    ]
    caption = html(
        "{}: predicted and measured speed-up over the baseline, per prompt, each by the step cost of the run’s other "
        "prompts. Answers of fewer than {} tokens are left out.",
        found.title,
        common.minimum_tokens(),
    )
    head: list[object] = ["prompt"]
    for f in forecasts:
        head += [html("{} <small>predicted</small>", code(f.label)), "measured"]
    origin = exhibit.origin(found.study, command=f"samebytes summary {found.name}")
    return exhibit.table(f"tuning-prompts-{found.name}", caption, head, shown, origin, data=data)


def _first_runs(found: Tuned) -> list[Forecast]:
    names = [config.name for config in found.study.summary.configs]
    own = [found.study.summary.own_forecasts(name) for name in names]
    return [forecasts[0] for forecasts in own if forecasts]


def _pair(found: Tuned, forecast: Forecast, prediction: Prediction | None) -> list[object]:
    source = f"results/{found.name}/{forecast.label}.json"
    missing = "too short, or cut short"
    values = (prediction.speed_up, prediction.measured_speed_up) if prediction else (None, None)
    return [times(value, source=source, missing=missing) for value in values]
