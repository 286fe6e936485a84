"""Why the bytes differ: what each token had won by, how far rounding moves that, and a verdict on each difference."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebytes import compare, exhibit, margins, probe, prose, stats
from samebytes.bookdata import Measured
from samebytes.exhibit import Origin
from samebytes.margins import TIES, VERDICTS, Divergence, Gap, Moves, WorkloadMargins
from samebytes.pages import common
from samebytes.probe import Explained
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent
from samebytes.stats import percentile

if TYPE_CHECKING:
    from samebytes.charts import Chart

REFERENCE = "baseline"

SWITCH = "batch_invariant"
"""Ending of the configs whose kernels sum in the same order whatever the shape of the batch."""

MEANING: Mapping[str, str] = {
    "exact tie": "both tokens had the very same score on one side, and the other side’s margin is within the yardstick",
    "tie broken by rounding": "the margins of both sides are within the yardstick",
    "pushed over by this config": "a margin is beyond the yardstick, but the gap moved by no more than this config "
    "moves gaps at other places",
    "a real change": "a margin is beyond the yardstick, or only its least size is known, and the gap moved by more "
    "than this config moves gaps at other places",
    "outside the candidates": "one token was not among the candidates that were kept, and the bound leaves it open",
    "probe does not reproduce": "a probe left its recorded tokens before, so it explains nothing here",
}


def explanations(found: Measured) -> list[Explained]:
    """Return why each probed config of a study parts from the baseline; nothing where the baseline was not probed."""
    probes = probe.complete(found.folder)
    if REFERENCE not in probes:
        return []
    configs = {label: made.config.name for label, made in probes.items()}
    known = {record.label for record in found.records}
    labels = sorted(label for label, config in configs.items() if config != REFERENCE and label in known)
    first = [config for config in common.ARTICLE_CONFIGS if config in labels]
    labels = [*first, *(label for label in labels if label not in first)]
    return [probe.explain(found.folder, REFERENCE, label, probes) for label in labels]


def quantile() -> Html:
    """Return which percentile of the yardstick's moves a tie may not exceed."""
    return html("{}th percentile", count(margins.YARDSTICK_QUANTILE, source="samebytes.margins.YARDSTICK_QUANTILE"))


def copies() -> Html:
    """Return how many copies of a request are in flight for the yardstick."""
    return count(probe.COPIES, source="samebytes.probe.COPIES")


def top() -> Html:
    """Return how many candidates of a token are kept."""
    return count(probe.TOP, source="samebytes.probe.TOP")


BFLOAT16 = 8
"""Significant bits of a bfloat16."""


def spacing() -> Html:
    """Return how far the next bfloat16 is from a logit of the usual sizes."""
    source = "samebytes.margins.step"
    sizes = (8, 16, 32)
    shown = [
        html(
            "{} from {} on",
            number(margins.step(size, BFLOAT16), 4, source=source),
            count(size, source=source),
        )
        for size in sizes
    ]
    return join(shown, ", ")


def meanings() -> Html:
    """Return what each verdict says."""
    rows = (html("<dt>{}</dt><dd>{}</dd>", verdict, MEANING[verdict]) for verdict in VERDICTS)
    return html('<dl class="configs">{}</dl>', join(rows))


def nothing_probed(found: Measured) -> Html:
    """Return what stands where a study has no probe."""
    command = f"samebytes probe {found.name} {REFERENCE} --copies {probe.COPIES}"
    return paragraph(
        "{} has not been probed yet, so nothing can be said about its margins. {} does it.",
        given(found.title, source=f"studies/{found.name}.yaml"),
        code(command),
    )


def _source(e: Explained, *labels: str) -> str:
    return ", ".join(f"results/{e.study}/{probe.FOLDER}/{label}.json" for label in labels or (e.reference, e.candidate))


def _origin(found: Measured, explained: Sequence[Explained]) -> Origin:
    made = [explained[0].reference_probe, *(e.candidate_probe for e in explained)]
    days = sorted({launch.started[:10] for each in made for launch in each.launches})
    first = made[0]
    return Origin(
        records=tuple(f"results/{found.name}/{probe.FOLDER}/{each.label}.json" for each in made),
        machine=first.machine.gpu or first.machine.cpu,
        vllm=first.versions.vllm,
        date=" to ".join(dict.fromkeys(days[:1] + days[-1:])) or None,
        commit=(first.versions.git_commit or "")[:10] or None,
        command=f"papermill notebooks/divergence.ipynb out.ipynb -p study {found.name} && samebytes book",
    )


# -- the answer -------------------------------------------------------------------------------------------------------


def conclusion(explained: Sequence[Sequence[Explained]]) -> Html:
    """Return for how many differences rounding accounts, config by config and machine by machine."""
    said = []
    for config in common.ARTICLE_CONFIGS[1:]:
        cases = [e for study in explained for e in study if e.candidate == config]
        parted = [html("{} on {}", _ties(e), _machine(e)) for e in cases if e.found.divergences]
        none = [html("on {}", _machine(e)) for e in cases if not e.found.divergences]
        if parted:
            accounts = "Of the differences that {} makes, near-ties within the reach of rounding account for {}{}."
            rest = html(" ({} it makes none)", common.listed(none)) if none else ""
            said.append(html(accounts, common.config_name(config), common.listed(parted), rest))
    return html('<p class="lead">{}</p>', join(said, " ")) if said else Html()


def _ties(e: Explained) -> Html:
    ties = sum(e.found.counts[verdict] for verdict in TIES)
    return of(ties, e.found.reproduced, source=_source(e))


def _machine(e: Explained) -> Html:
    made = e.reference_probe.machine
    return given(made.gpu or made.cpu, source=_source(e, e.reference))


def answer(found: Measured, explained: Sequence[Explained]) -> Html:
    """Return in words whether rounding that flips near-ties explains what was measured."""
    if not explained:
        return nothing_probed(found)
    return join(
        [
            paragraph("{}:", common.machine(found)),
            prose.bullets([_answer(e) for e in explained]),
            paragraph(
                "{} {} {}",
                _decided(explained[0]),
                join(_flips(e) for e in explained if e.candidate == "ngram"),
                _again(explained[0]),
            ),
        ]
    )


def _answer(e: Explained) -> Html:
    source = _source(e)
    counts, n = e.found.counts, len(e.found.divergences)
    prompts = sum(w.prompts for w in e.found.workloads)
    if not n:
        return html(
            "{}: all {} answers have the baseline’s tokens, so there is nothing to explain{}.",
            code(e.candidate),
            count(prompts, source=source),
            _moved(e),
        )
    ties, reproduced = sum(counts[verdict] for verdict in TIES), e.found.reproduced
    parts = [
        html("{} {}", count(counts[verdict], source=source), verdict)
        for verdict in VERDICTS
        if counts[verdict] and verdict not in (*TIES, "probe does not reproduce")
    ]
    return html(
        "{}: {} answers part from the baseline’s{}; the probes reproduced {} of these. {} were ties that rounding can "
        "break{}: the explanation {}.",
        code(e.candidate),
        of(n, prompts, source=source),
        _expected(e),
        count(reproduced, source=source),
        of(ties, reproduced, source=source),
        html(" ({})", join(parts, ", ")) if parts else "",
        held(ties, reproduced),
    )


def _moved(e: Explained) -> Html:
    """Return how many gaps a config without differences moved, beside the copies."""
    source = _source(e)
    moved, n = sum(value > 0 for value in e.found.config.values), len(e.found.config.values)
    copies = e.found.yardstick
    beside = (
        html(" (the copies moved {})", percent(1 - copies.still, source=_source(e, e.reference)))
        if copies is not None and copies.still is not None
        else ""
    )
    bits = ": its steps compute here, to the bit, what the baseline’s compute" if not moved else ""
    return html("; {} gaps moved{}{}", of(moved, n, source=source), beside, bits)


def _expected(e: Explained) -> Html:
    """Return how many answers rounding alone should have parted."""
    known = [w.expected for w in e.found.workloads if w.expected is not None]
    if not known:
        return Html()
    source = f"sum of 1 - prod(1 - p): {_source(e, e.reference)}"
    return html(", where rounding alone should part {}", number(sum(known), 1, source=source))


def held(ties: int, reproduced: int) -> str:
    """Return how far an explanation held that covers so many of so many cases."""
    if reproduced == 0:
        return "could not be tested"
    if ties == reproduced:
        return "held for every one"
    if ties == 0:
        return "held for none"
    return "held for most" if 2 * ties > reproduced else "did not hold for most"


def _flips(e: Explained) -> Html:
    """Return in which kinds of prompts speculation changed words."""
    source = _source(e)
    kinds = [w for w in e.found.workloads if w.workload in common.WORKLOADS]
    if not e.found.divergences:
        return Html()
    shown = [html("{} {}", common.workload_name(w.workload), of(w.parted, w.prompts, source=source)) for w in kinds]
    alone = not any(w.parted for w in kinds if w.workload != "creative")
    said = "in free prose alone, as" if alone else "not in free prose alone, against what"
    return html("Words changed {} the article says: {} answers.", said, common.listed(shown))


def _again(e: Explained) -> Html:
    """Return whether another start of the same server moves anything."""
    if e.launches is None:
        return Html()
    moved = sum(value > 0 for value in e.launches.values)
    source = f"results/{e.study}/{probe.FOLDER}: repeats of {e.reference}"
    said = html("Another start of the same server moves {} gaps", of(moved, len(e.launches.values), source=source))
    return html("{}{}.", said, "" if moved else ": without a flag and in the same shape nothing moves at all")


def _decided(e: Explained) -> Html:
    """Return how the kinds of prompts differ in how close their tokens are."""
    source = _source(e, e.reference)
    shares = [
        html("{} {}", common.workload_name(w.workload), percent(w.within / len(w.margins), source=source))
        for w in e.found.workloads
        if w.within is not None and w.margins
    ]
    if not shares:
        return html("The baseline was not probed in copies, so there is no yardstick for what is close.")
    within = {w.workload: w.within / len(w.margins) for w in e.found.workloads if w.within is not None and w.margins}
    return html(
        "Tokens that won by no more than the yardstick of {}: {}. {}",
        number(e.found.threshold, 3, source=_source(e, e.reference)),
        join(shares, ", "),
        _ranked(within),
    )


def _ranked(within: Mapping[str, float]) -> str:
    prose_share = within.get("creative")
    others = {name: share for name, share in within.items() if name != "creative"}
    if prose_share is None or not others:
        return ""
    lower = [name for name, share in others.items() if share < prose_share]
    if len(lower) == len(others):
        return "Free prose is the closest call, as the article says."
    if not lower:
        return "Free prose is not the closest call here, against what the article says."
    said = common.listed([common.workload_name(name) for name in lower])
    return f"Against free prose, only {said} has fewer close calls; the article says that code and quotation do."


# -- figures ----------------------------------------------------------------------------------------------------------


def verdicts(found: Measured, explained: Sequence[Explained]) -> Html:
    """Return the table of verdicts, a row per config."""
    rows, data = [], []
    for e in explained:
        source, n = _source(e), len(e.found.divergences)
        counts = e.found.counts
        rows.append(
            [
                code(e.candidate),
                of(n, sum(w.prompts for w in e.found.workloads), source=source),
                *(count(counts[verdict], source=source) for verdict in VERDICTS),
            ]
        )
        data.append(
            {
                "config": e.candidate,
                "parted": n,
                "reproduced": e.found.reproduced,
                **{str(v): k for v, k in counts.items()},
            }
        )
    return exhibit.table(
        f"why-verdicts-{found.name}",
        "Answers that part from the baseline’s, by verdict.",
        ["config", "answers that part", *VERDICTS],
        rows,
        _origin(found, explained),
        data=data,
    )


def yardstick(found: Measured, explained: Sequence[Explained]) -> Html:
    """Return the table of how far gaps move: in copies, in another server start, and under each config."""
    first = explained[0]
    asked: list[tuple[str, Moves, str]] = []
    if first.found.yardstick is not None:
        name = f"{first.reference_probe.copies} copies at once"
        asked.append((name, first.found.yardstick, _source(first, first.reference)))
    if first.launches is not None:
        asked.append(("another start of the same server", first.launches, f"results/{found.name}/{probe.FOLDER}"))
    asked += [(e.candidate, e.found.config, _source(e)) for e in explained]
    rows = [
        [
            given(name, source=source),
            count(len(m.values), source=source),
            percent(m.still, source=source),
            *(number(m.quantile(q), 3, source=source) for q in (50, margins.YARDSTICK_QUANTILE, 100)),
            of(m.parted, m.answers, source=source),
        ]
        for name, m, source in asked
    ]
    data = [
        {
            "against_the_baseline": name,
            "gaps": len(m.values),
            "unmoved": m.still,
            "median": m.quantile(50),
            "p99": m.quantile(margins.YARDSTICK_QUANTILE),
            "largest": m.quantile(100),
            "parted": m.parted,
            "answers": m.answers,
        }
        for name, m, _ in asked
    ]
    return exhibit.table(
        f"why-moves-{found.name}",
        "How far the gap between a token and its runner-up moves, at the same place after the same tokens. "
        "The copies are the yardstick.",
        ["against the baseline", "gaps", "unmoved", "median", quantile(), "largest", "answers that part"],
        rows,
        _origin(found, explained),
        data=data,
    )


def workloads(found: Measured, explained: Sequence[Explained]) -> Html:
    """Return the table of margins by workload, with the answers expected to part from rounding alone."""
    first = explained[0]
    source = _source(first, first.reference)
    rows, data = [], []
    for w in first.found.workloads:
        n = len(w.margins)
        parted = {e.candidate: _of(e, w.workload) for e in explained}
        rows.append(
            [
                common.workload_name(w.workload),
                count(n, source=source),
                percent(w.ties / n, 2, source=source),
                percent(None if w.within is None else w.within / n, source=source, missing="no yardstick"),
                *(number(percentile(w.margins, q), 2, source=source) for q in (5, 25, 50)),
                number(w.expected, 1, source=f"{source}: sum of 1 - prod(1 - p)", missing="no yardstick"),
                *(of(p.parted, p.prompts, source=_source(e)) for e, p in zip(explained, parted.values(), strict=True)),
            ]
        )
        data.append(
            {
                "workload": w.workload,
                "tokens": n,
                "exact_ties": w.ties,
                "within_yardstick": w.within,
                **{f"p{q}": percentile(w.margins, q) for q in (5, 25, 50)},
                "expected": w.expected,
                **{f"parted_{name}": p.parted for name, p in parted.items()},
                **{f"expected_{name}": p.expected_config for name, p in parted.items()},
            }
        )
    head = ["", "tokens", "exact ties", "within the yardstick", "margin, 5th percentile", "quartile", "median"]
    head[4] = html("margin, {}th percentile", count(5, source="a low percentile of the margins"))
    return exhibit.table(
        f"why-margins-{found.name}",
        "By how much the baseline’s tokens won, and how many answers part: expected from rounding alone, and observed.",
        [*head, "expected to part", *(code(e.candidate) for e in explained)],
        rows,
        _origin(found, explained),
        data=data,
    )


def _of(e: Explained, workload: str) -> WorkloadMargins:
    return next(w for w in e.found.workloads if w.workload == workload)


def margins_chart(found: Measured, explained: Sequence[Explained]) -> Html:
    """Return the chart of how many tokens won by how little, with every answer that parts marked on it."""
    first = explained[0]
    rows = [row for w in first.found.workloads for row in _curve(w)]
    rows += [row for e in explained for row in _marks(e)]
    source = _source(first, first.reference)
    said = [
        html(
            "{}: median margin {}, {} tokens tied exactly",
            common.workload_name(w.workload),
            number(percentile(w.margins, 50), 2, source=source),
            count(w.ties, source=source),
        )
        for w in first.found.workloads
    ]
    return exhibit.chart(
        f"why-chart-{found.name}",
        _chart(rows, first),
        html("Share of the baseline’s tokens that won by no more than a margin, by workload. {}.", join(said, "; ")),
        html(
            "Each line is a kind of prompt: the share of its tokens that won by no more than a margin. Each mark is "
            "answers that part, at the margin by which the baseline had preferred its own token; the more of them, the "
            "larger. Left of the upright line, mere reshaping moves a gap that far{}. A click on a config in the "
            "legend shows its marks alone.",
            "" if first.found.threshold is None else html(" ({})", number(first.found.threshold, 3, source=source)),
        ),
        _origin(found, explained),
        data=rows,
    )


_ROW: Mapping[str, Any] = {
    "kind": "tokens",
    "workload": None,
    "margin": None,
    "share": None,
    "config": None,
    "answers": None,
    "prompts": None,
    "verdicts": None,
}


def _curve(w: WorkloadMargins) -> list[dict[str, Any]]:
    """Return the share of tokens up to each margin, in steps of a sixteenth up to one and of a half above."""
    fine, coarse = (i / 16 for i in range(16)), (1 + i / 2 for i in range(math.ceil(2 * w.margins[-1]) - 1))
    shares = ((value, bisect_right(w.margins, value) / len(w.margins)) for value in (*fine, *coarse))
    return [{**_ROW, "workload": w.workload, "margin": value, "share": share} for value, share in shares]


def _marks(e: Explained) -> list[dict[str, Any]]:
    """Return where answers part, those of one workload and margin together; without those not reproduced."""
    together: dict[tuple[str, float], list[Divergence]] = {}
    for d in e.found.divergences:
        if d.ours is not None:
            together.setdefault((d.workload, d.ours.value), []).append(d)
    return [
        {
            **_ROW,
            "kind": "answers that part",
            "workload": workload,
            "margin": margin,
            "share": group[0].rank,
            "config": e.candidate,
            "answers": len(group),
            "prompts": ", ".join(d.id.removeprefix(f"{workload}/") for d in group),
            "verdicts": ", ".join(dict.fromkeys(d.verdict for d in group)),
        }
        for (workload, margin), group in together.items()
    ]


def _chart(rows: Sequence[Mapping[str, Any]], first: Explained) -> Chart:
    import altair

    names = [w.workload for w in first.found.workloads]
    known = [{name: value for name, value in row.items() if value is not None} for row in rows]
    base = altair.Chart(altair.InlineData(values=known))
    x = altair.X("margin:Q", title="margin, in logits", scale=altair.Scale(type="symlog", constant=0.5))
    y = altair.Y("share:Q", title="share of tokens", axis=altair.Axis(format="%"))
    colour = altair.Color("workload:N", scale=altair.Scale(domain=names), title=None)
    chosen = altair.selection_point(fields=["config"], bind="legend")
    curves = base.transform_filter("datum.kind == 'tokens'").mark_line(interpolate="step-after").encode(x, y, colour)
    marks = (
        base.transform_filter("datum.kind != 'tokens'")
        .mark_point(filled=True)
        .encode(
            x,
            y,
            colour,
            shape=altair.Shape("config:N", title=None),
            size=altair.Size("answers:Q", scale=altair.Scale(range=[50, 300]), legend=None),
            opacity=altair.condition(chosen, altair.value(0.85), altair.value(0.08)),
            tooltip=[
                altair.Tooltip("config:N"),
                altair.Tooltip("answers:Q"),
                altair.Tooltip("margin:Q", format=".3f"),
                altair.Tooltip("verdicts:N"),
                altair.Tooltip("prompts:N"),
            ],
        )
        .add_params(chosen)
    )
    layers = [curves, marks]
    if first.found.threshold is not None:
        rule = altair.Chart(altair.InlineData(values=[{"yardstick": first.found.threshold}]))
        layers.append(rule.mark_rule(strokeDash=[4, 4]).encode(x=altair.X("yardstick:Q")))
    return altair.layer(*layers).properties(height=320)


def differences(found: Measured, e: Explained) -> Html:
    """Return the table of one config's differences, each with its verdict."""
    if not e.found.divergences:
        return Html()
    source, spell = _source(e), probe.speller(found.folder)
    rows = [
        [
            code(d.id),
            count(d.at, source=source),
            *(_token(token, spell, source) for token in (d.token_a, d.token_b)),
            html("{}{}", d.verdict, " (one ends where the other goes on)" if d.cls == "length" else ""),
            *(_gap(gap, source) for gap in (d.ours, d.theirs, d.move)),
            number(d.limit, 3, source=source),
            percent(d.rank, source=source),
        ]
        for d in e.found.divergences
    ]
    return exhibit.table(
        f"why-{found.name}-{e.candidate}".replace("_", "-"),
        html(
            "{}: where each answer parts from the baseline’s. Margin: how much each side preferred its own token. "
            "Usual move: the {} of what the config moves gaps by at other places.",
            code(e.candidate),
            quantile(),
        ),
        [
            "prompt",
            "at token",
            "baseline",
            "config",
            "verdict",
            "baseline’s margin",
            "config’s margin",
            "moved by",
            "usual move",
            "tokens won by less",
        ],
        rows,
        _origin(found, [e]),
        data=[_plain(d, spell) for d in e.found.divergences],
        words=(2, 3, 4),
    )


def _token(token: int | None, spell: Callable[[int], str], source: str) -> Html:
    return given(None if token is None else repr(spell(token)), source=source, missing="not reproduced")


def _gap(gap: Gap | None, source: str) -> Html:
    if gap is None:
        return number(None, source=source, missing="not reproduced")
    return html("{}{}", "≥ " if gap.bound else "", number(gap.value, 3, source=source))


def _plain(d: Divergence, spell: Callable[[int], str]) -> dict[str, Any]:
    return {
        "prompt": d.id,
        "token": d.at,
        "class": d.cls,
        "verdict": d.verdict,
        "baseline_token": None if d.token_a is None else spell(d.token_a),
        "config_token": None if d.token_b is None else spell(d.token_b),
        "baseline_margin": d.ours and d.ours.value,
        "config_margin": d.theirs and d.theirs.value,
        "moved_by": d.move and d.move.value,
        "bound": d.move and d.move.bound,
        "usual_move": d.limit,
        "rank": d.rank,
        "step": d.step,
    }


# -- the intervention -------------------------------------------------------------------------------------------------

PAIRS = (
    ("ngram", "baseline_sync"),
    (f"ngram_{SWITCH}", f"baseline_{SWITCH}"),
    (f"baseline_{SWITCH}", "baseline_sync"),
)
"""What is held together: with the usual kernels, with batch-invariant ones, and the kernels alone; each time without
asynchronous scheduling on either side."""


def intervention(found: Sequence[Measured]) -> Html:
    """Return the table of what becomes of n-gram speculation's differences where the kernels keep their order."""
    rows, data, origins = [], [], []
    for study in found:
        for candidate, reference in PAIRS:
            kept = _kept(study, candidate, reference)
            if kept is None:
                continue
            same, n, source = kept
            rows.append(
                [
                    common.machine(study),
                    code(candidate),
                    code(reference),
                    of(same, n, source=source),
                    prose.between(_percents(stats.wilson(same, n)), 0, source=f"Wilson: {source}"),
                ]
            )
            data.append({"study": study.name, "config": candidate, "against": reference, "same": same, "prompts": n})
            origins.append(exhibit.origin(study, candidate, reference))
    if not rows:
        return Html()
    return exhibit.table(
        "why-intervention",
        html("Same bytes with usual and with batch-invariant kernels; the share in percent at {}.", common.level()),
        ["machine", "config", "against", "same bytes", "interval of the share"],
        rows,
        exhibit.together(origins),
        data=data,
        words=(1, 2),
    )


def _percents(found: stats.Interval | None) -> stats.Interval | None:
    return None if found is None else stats.Interval(100 * found.low, 100 * found.high)


def _kept(study: Measured, candidate: str, reference: str) -> tuple[int, int, str] | None:
    """Return how many answers of a config have the bytes of another's, of how many; None where one has no run."""
    complete = [r for r in study.records if r.status == "complete"]
    groups = [[r for r in complete if r.config.name == name] for name in (reference, candidate)]
    if not all(groups):
        return None
    judged = compare.compare_groups(*groups)
    return judged.counts["same"], judged.judged, f"{study.files(candidate)} against {study.files(reference)}"


def outcome(found: Sequence[Measured]) -> Html:
    """Return what the intervention says, study by study."""
    return join(part for study in found if (part := _outcome(study)))


def _outcome(study: Measured) -> Html:
    usual, switched, kernels = (_kept(study, *pair) for pair in PAIRS)
    machine = common.machine(study)
    if usual is None:
        return Html()
    if switched is None:
        return paragraph(
            "{}: {} answers keep their bytes under speculation with the usual kernels; the switch was not measured "
            "there, so nothing was intervened upon.",
            machine,
            of(*usual[:2], source=usual[2]),
        )
    (same, n, source), (same_switched, n_switched, source_switched) = usual, switched
    if same == n:
        said = (
            "With the usual kernels speculation changed nothing, so the switch had nothing to take away: that it "
            "changed nothing either confirms the explanation no more than it refutes it."
        )
    elif same_switched == n_switched:
        said = "With the switch the differences are gone: the order of the sums did it."
    else:
        said = "With the switch differences are left: it does not cover every shape, or something else is at work."
    parts = [
        paragraph(
            "{}: under speculation {} answers keep their bytes with the usual kernels, and {} with batch-invariant "
            "ones. {}",
            machine,
            of(same, n, source=source),
            of(same_switched, n_switched, source=source_switched),
            said,
        )
    ]
    if kernels is not None and kernels[0] < kernels[1]:
        parts.append(
            paragraph(
                "The switch itself, with no speculation at all, leaves {} answers as they were: on this machine "
                "another way to compute the same sums does change words.",
                of(*kernels[:2], source=kernels[2]),
            )
        )
    return join([*parts, _cost(study)])


def _cost(study: Measured) -> Html:
    """Return what the switch costs: its speeds stand in no other table."""
    ours, theirs = (
        {p.id: p.decode_tok_s for p in study.summary.config(name).prompts if p.decode_tok_s}
        for name in (f"baseline_{SWITCH}", "baseline_sync")
    )
    both = [key for key in ours if key in theirs]
    ratio = stats.paired_ratio([ours[key] for key in both], [theirs[key] for key in both])
    if ratio is None:
        return Html()
    source = f"decode tok/s, prompt by prompt: {study.files(f'baseline_{SWITCH}')} over {study.files('baseline_sync')}"
    return paragraph(
        "What it costs: a decode throughput of {} {} that of {}, prompt by prompt.",
        prose.times(ratio.geometric_mean, source=source),
        prose.between(ratio.t_interval, source=source),
        code("baseline_sync"),
    )
