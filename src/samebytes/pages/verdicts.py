"""Same bytes or not: the control, the verdict on every config, and where answers part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebytes import exhibit, prose
from samebytes.bookdata import Measured
from samebytes.compare import PromptVerdict
from samebytes.findings import ALL, ByteCount, Pair
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph
from samebytes.published import Published

if TYPE_CHECKING:
    from samebytes.charts import Chart

NAMES = {
    "same": "same",
    "differs": "differ",
    "differs (no control)": "differ, no control",
    "intermittent": "intermittent",
    "not attributable": "not attributable",
    "missing": "not answered",
}
"""What a verdict is called on a page."""

COLOURS = ("#1f7fc4", "#d55e00", "#e8a06a", "#a366c9", "#8a8a8a", "#c9c9c9")
"""A colour per verdict, in the order of `NAMES`."""


def conclusion(found: Sequence[Measured]) -> Html:
    """Return, per study, what the control says and what each config changed."""
    items = [item for study in found if (item := _conclusion(study))]
    return prose.bullets(items)


def _conclusion(found: Measured) -> Html:
    pairs = [pair for pair in found.pairs("baseline") if common.byte_count(pair) is not None]
    judged = found.control("baseline")
    if judged is None or not pairs:
        return Html()
    have = judged.agrees + judged.disagrees
    said = [html("{} {}", code(pair.candidate), common.same_bytes(found, pair)) for pair in pairs]
    control = (
        html("the baseline repeats {} answers byte for byte", of(judged.agrees, have, source=found.files("baseline")))
        if have
        else "there is no control, for no prompt was answered in two server starts of the baseline"
    )
    return html("{}: {}. Against it: {}.", common.machine(found), control, join(said, "; "))


# -- the control ------------------------------------------------------------------------------------------------------


def control_table(found: Measured) -> Html:
    """Return whether each reference agrees with itself from one server start to another."""
    rows, data = [], []
    for control in found.summary.controls:
        source = found.files(control.config)
        have = control.agrees + control.disagrees
        rate = control.agree_rate
        rows.append(
            [
                code(control.config),
                count(control.starts, source=source),
                of(control.agrees, have, source=source)
                if have
                else number(None, source=source, missing="one server start only"),
                prose.between(rate, source=f"Wilson: {source}", missing="one server start only"),
                join(map(code, control.disagreeing), ", ") or ("none" if have else "no control"),
            ]
        )
        data.append(
            {
                "config": control.config,
                "starts": control.starts,
                "agrees": control.agrees,
                "disagrees": control.disagrees,
                "low": rate.low if rate else None,
                "high": rate.high if rate else None,
            }
        )
    return exhibit.table(
        f"control-{found.name}",
        html(
            "Prompts whose answer is the same in every start of a baseline, with the {} interval of that share.",
            common.level(),
        ),
        ["baseline", "server starts", "same each time", "interval", "prompts that change"],
        rows,
        exhibit.origin(found, *(control.config for control in found.summary.controls)),
        data=data,
        words=(4,),
    )


# -- the verdicts -----------------------------------------------------------------------------------------------------


def verdict_table(found: Measured) -> Html:
    """Return the verdict on every config against every baseline, by workload."""
    pairs = [pair for pair in found.summary.pairs if pair.bytes]
    if not pairs:
        return Html()
    names = [ALL, *found.workloads]
    rows, data = [], []
    for pair in pairs:
        by = {c.workload: c for c in pair.bytes}
        alone = ", no control" if pair.baseline_starts < 2 else ""
        once = ", started once" if pair.candidate_starts < 2 else ""
        title = html("{} <small>against {}{}{}</small>", code(pair.candidate), code(pair.reference), alone, once)
        rows.append([title, *(_count_cell(found, pair, by[name]) for name in names if name in by)])
        data += [_count_row(pair, by[name]) for name in names if name in by]
    return exhibit.table(
        f"bytes-{found.name}",
        html(
            "Answers with the reference’s bytes; under it the {} interval of that share and the verdict on the others.",
            common.level(),
        ),
        ["config", *(common.workload_name(name) if name != ALL else "all prompts" for name in names)],
        rows,
        exhibit.origin(found, *dict.fromkeys(name for p in pairs for name in (p.reference, p.candidate))),
        data=data,
    )


def _count_cell(found: Measured, pair: Pair, counts: ByteCount) -> Html:
    source = f"same bytes ({counts.workload}): {common.pair_source(found, pair)}"
    if not counts.judged:
        return number(None, source=source, missing="no prompt was answered on both sides")
    rest = [
        html("<small>{} {}</small>", count(n, source=source), _said(verdict, n))
        for verdict, n in counts.counts.items()
        if n and verdict != "same"
    ]
    return html(
        "{} <small>{}</small>{}",
        of(counts.counts["same"], counts.judged, source=source),
        prose.between(counts.same_rate, source=f"Wilson: {source}", missing="not independent"),
        join(rest),
    )


def _said(verdict: str, n: int) -> str:
    if verdict.startswith("differs"):
        return "differs" if n == 1 else "differ"
    return NAMES[verdict]


def _count_row(pair: Pair, counts: ByteCount) -> dict[str, object]:
    rate = counts.same_rate
    return {
        "config": pair.candidate,
        "against": pair.reference,
        "workload": counts.workload,
        "judged": counts.judged,
        **{verdict: counts.counts[verdict] for verdict in counts.counts},
        "low": rate.low if rate else None,
        "high": rate.high if rate else None,
    }


# -- every prompt -----------------------------------------------------------------------------------------------------


def verdict_rows(found: Measured, reference: str = "baseline") -> list[dict[str, Any]]:
    """Return the verdict on every prompt and config, with where the answers part."""
    return [
        {
            "config": pair.candidate,
            "prompt": v.id,
            "workload": v.workload,
            "verdict": NAMES[v.verdict],
            "character": v.comparison.char_index,
            "byte": v.comparison.byte_offset,
            "token": v.comparison.token_index,
            "control": v.control,
            "repeat": v.repeat,
        }
        for pair in found.pairs(reference)
        if pair.refused is None
        for v in pair.verdicts
    ]


def verdict_chart(found: Measured) -> Html:
    """Return the map of verdicts: a cell per prompt and config, with the character at which the answers part."""
    rows = verdict_rows(found)
    if not rows:
        return Html()
    pairs = [pair for pair in found.pairs("baseline") if pair.refused is None]
    said = [html("{}: {}", code(pair.candidate), common.same_bytes(found, pair)) for pair in pairs]
    return exhibit.chart(
        f"verdicts-{found.name}",
        _verdict_chart(rows),
        html("The verdict on every prompt under every config. {}.", join(said, "; ")),
        "A row per prompt, a column per config. The number is the character at which the answer first parts from the "
        "baseline’s; none where both are the same.",
        exhibit.origin(found, "baseline", *(pair.candidate for pair in pairs)),
        data=[{key: row[key] for key in ("config", "prompt", "verdict", "character", "token")} for row in rows],
    )


def _verdict_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    import altair

    from samebytes import charts

    keys = ("config", "prompt", "verdict", "character", "token")
    drawn = [{key: row[key] for key in keys if row[key] is not None} for row in rows]
    prompts = list(dict.fromkeys(row["prompt"] for row in drawn))
    configs = list(dict.fromkeys(row["config"] for row in drawn))
    seen = [name for name in NAMES.values() if any(row["verdict"] == name for row in drawn)]
    colours = [COLOURS[list(NAMES.values()).index(name)] for name in seen]
    base = altair.Chart(altair.InlineData(values=drawn)).encode(
        x=altair.X(
            "config:N",
            title=None,
            sort=configs,
            axis=altair.Axis(orient="top", labelAngle=30, labelAlign="right", domain=False, ticks=False),
            scale=altair.Scale(paddingInner=0.06),
        ),
        y=altair.Y(
            "prompt:N",
            title=None,
            sort=prompts,
            axis=altair.Axis(labelFontSize=11, labelExpr="split(datum.label, '/')[1]", domain=False, ticks=False),
            scale=altair.Scale(paddingInner=0.15),
        ),
    )
    cells = base.mark_rect(opacity=0.6, cornerRadius=2).encode(
        color=altair.Color("verdict:N", scale=altair.Scale(domain=seen, range=colours), title=None),
        tooltip=["prompt:N", "config:N", "verdict:N", "character:Q", "token:Q"],
    )
    parted = base.transform_filter("isValid(datum.character)")
    labels = parted.mark_text(fontSize=11, color="currentColor").encode(text="character:Q")
    return altair.layer(cells, labels).properties(height=charts.LINE * 0.85 * len(prompts))


def divergence_table(found: Measured) -> Html:
    """Return where each answer first parts from the baseline's, a column per config."""
    pairs = [pair for pair in found.pairs("baseline") if pair.refused is None]
    by = {pair.candidate: {v.id: v for v in pair.verdicts} for pair in pairs}
    prompts = [p.id for p in found.records[0].prompts]
    parted = [key for key in prompts if any(_parts(found_by.get(key)) for found_by in by.values())]
    if not parted:
        return paragraph("No answer parts from the baseline’s under any config.")
    configs = [name for name, verdicts in by.items() if any(map(_parts, verdicts.values()))]
    rows = [[code(key), *(_where(found, by[name].get(key), name) for name in configs)] for key in parted]
    return exhibit.table(
        f"divergences-{found.name}",
        "Where an answer first parts from the baseline’s: the character, and under it the token. Configs that change "
        "nothing have no column.",
        ["prompt", *map(code, configs)],
        rows,
        exhibit.origin(found, "baseline", *configs),
        data=[row for row in verdict_rows(found) if row["config"] in configs and row["prompt"] in parted],
    )


def _parts(verdict: PromptVerdict | None) -> bool:
    return verdict is not None and verdict.comparison.char_index is not None


def _where(found: Measured, verdict: PromptVerdict | None, config: str) -> Html:
    source = f"first difference: {found.files(config)} against {found.files('baseline')}"
    if verdict is None or verdict.comparison.char_index is None:
        return number(None, source=source, missing="the same")
    at = verdict.comparison
    token = html(" <small>token {}</small>", count(at.token_index, source=source, missing="tokens not recorded"))
    odd = "" if verdict.verdict == "differs" else html(" <small>{}</small>", NAMES[verdict.verdict])
    return html("{}{}{}", count(at.char_index, source=source), token, odd)


def first_characters(found: Sequence[Measured], articles: Mapping[str, Published], config: str = "ngram") -> Html:
    """Return at which character free prose parts from the baseline's: as published, and in each study."""
    items = []
    for article in articles.values():
        figure = article.figures.get(f"{config}.creative.characters")
        if figure is not None:
            source = f"{article.title}: {figure.place}"
            shown = [prose.printed(text, source=source) for text in figure.printed]
            card = given(article.setup.get("gpu"), source=source)
            items.append(html("published, {}: {}", card, join(shown, ", ")))
    for study in found:
        pair = common.pair(study, config)
        places = [
            v.comparison.char_index
            for v in (pair.verdicts if pair else ())
            if v.workload == "creative" and v.comparison.char_index is not None
        ]
        if pair is not None:
            source = f"first difference: {common.pair_source(study, pair)}"
            shown = [count(at, source=source) for at in sorted(places)]
            machine = common.machine(study)
            items.append(html("{}: {}", machine, join(shown, ", ") or "none"))
    return prose.bullets(items)


# -- many requests at once --------------------------------------------------------------------------------------------


def load_table(found: Measured) -> Html:
    """Return whether answers keep their bytes when many requests share the server."""
    rows, data = [], []
    for config in found.summary.configs:
        for leg in config.concurrent:
            source = f"the concurrent leg of results/{found.name}/{leg.label}.json"
            rows.append(
                [
                    common.run(leg),
                    count(leg.concurrency, source=source),
                    of(*leg.copies_agree, source=source),
                    of(*leg.same_as_sequential, source=source),
                ]
            )
            data.append(
                {
                    "run": leg.label,
                    "in_flight": leg.concurrency,
                    "prompts_whose_copies_agree": leg.copies_agree[0],
                    "prompts": leg.copies_agree[1],
                    "answers_as_alone": leg.same_as_sequential[0],
                    "answers": leg.same_as_sequential[1],
                }
            )
    if not rows:
        return Html()
    return exhibit.table(
        f"bytes-load-{found.name}",
        "The same prompts, many at once: prompts whose copies all have the same bytes, and answers with the bytes that "
        "the same server gave when it had that prompt alone.",
        ["run", "in flight", "copies agree", "as when alone"],
        rows,
        exhibit.origin(found, *(config.name for config in found.summary.configs if config.concurrent)),
        data=data,
    )


def load_conclusion(found: Measured) -> Html:
    """Return what load alone does to the baseline's bytes."""
    config = next((c for c in found.summary.configs if c.name == "baseline" and c.concurrent), None)
    if config is None:
        return Html()
    leg = config.concurrent[0]
    same, answers = leg.same_as_sequential
    source = f"the concurrent leg of results/{found.name}/{leg.label}.json"
    return paragraph(
        "{}: with {} requests in flight and no flag at all, {} answers have the bytes that the same server gave the "
        "prompt alone. {}",
        common.machine(found),
        count(leg.concurrency, source=source),
        of(same, answers, source=source),
        "So which requests share a batch changes words too: a single-user test says nothing about a busy server."
        if same < answers
        else "Sharing a batch changed nothing.",
    )
