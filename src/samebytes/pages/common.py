"""What several pages say: names, sources, and the blocks that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from samebytes import bookdata, definitions, paths, prose
from samebytes.bookdata import Measured
from samebytes.findings import ALL, ByteCount, Concurrent, Control, Pair, PassRow, Ratio, WorkloadSpeed
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent, times
from samebytes.published import Check, Published
from samebytes.stats import LEVEL

WORKLOADS = {"code_edit": "code edits", "rag": "quoting a passage", "creative": "free prose"}
"""What a workload is called in a table's head; any other by its own name."""

CONFIGS = {"ngram": "n-gram speculation", "fp8": "an FP8 KV cache", "baseline_sync": "no asynchronous scheduling"}
"""What a config's flags do, in prose; any other config by its own name."""

ARTICLE_CONFIGS = ("baseline", "ngram", "fp8")
"""The configs of the article that this report follows."""


def workload_name(workload: str) -> str:
    """Return what a workload is called in prose."""
    return WORKLOADS.get(workload, workload)


def config_name(config: str) -> Html:
    """Return what a config does, in prose."""
    return prose.safe(CONFIGS[config]) if config in CONFIGS else code(config)


def listed(parts: Sequence[object]) -> Html:
    """Return ``a, b and c``."""
    if len(parts) < 2:
        return join(parts)
    return html("{} and {}", join(parts[:-1], ", "), parts[-1])


def page(name: str, words: str) -> Html:
    """Return a link to a page of the book; the words alone where there is no such page."""
    there = (paths.root() / "book" / f"{name}.md").is_file()
    return html('<a href="{}.html">{}</a>', name, words) if there else prose.safe(words)


def level(digits: int = 0) -> Html:
    """Return the confidence level of every interval."""
    return percent(LEVEL, digits, source="samebytes.stats.LEVEL")


def minimum_tokens() -> Html:
    """Return how many tokens an answer must have to count for speed."""
    return count(definitions.MIN_SPEED_TOKENS, source="samebytes.definitions.MIN_SPEED_TOKENS")


def everything() -> list[Measured]:
    """Read every study, the one of this machine last."""
    here = bookdata.this_machine()
    return bookdata.told_apart([*bookdata.studies(), *([here] if here else [])])


def compared() -> list[Measured]:
    """Read the studies of the article's question: a baseline, and a config of the article that was run against it.

    A study of random weights says nothing about an answer and is left out.
    """
    found = []
    for study in bookdata.studies():
        names = {record.config.name for record in study.records}
        if "baseline" in names and names & set(ARTICLE_CONFIGS[1:]) and study.note is None:
            found.append(study)
    return found


def machine(study: Measured) -> Html:
    """Return the machine that a study was measured on, with the study's name where that alone does not tell it."""
    return given(study.where, source=f"results/{study.name}")


def note(study: Measured) -> Html:
    """Return a study's own warning, in brackets; nothing where it has none."""
    found = study.note
    return html(" ({})", given(found, source=f"studies/{study.name}.yaml")) if found else Html()


def pair(found: Measured, candidate: str, reference: str = "baseline") -> Pair | None:
    """Return a config against a reference, where both ran and can be compared."""
    pairs = (p for p in found.pairs(reference) if p.candidate == candidate and p.refused is None)
    return next(pairs, None)


def uncontrolled(pair: Pair) -> str:
    """Return the mark of a count that no control stands behind: the reference was started once."""
    return " (no control)" if pair.baseline_starts < 2 else ""


def heading(found: Measured, page: str) -> Html:
    """Return a study's title as a heading that can be linked to."""
    return prose.heading(f"{page}-{found.name}", given(found.title, source=f"studies/{found.name}.yaml"), 3)


def nothing_measured() -> Html:
    """Return what stands where no study can be shown: none has records, or none of those that have ran the article's.

    The pages follow the article's configs; another config stands beside them where its study ran them, too.
    """
    if not everything():
        return paragraph("No study has records yet. To measure one: {}.", code("samebytes study NAME"))
    return paragraph(
        "No study here ran {} and, besides, {}: the pages follow these, and a config of your own stands beside them.",
        code("baseline"),
        join(map(code, ARTICLE_CONFIGS[1:]), " or "),
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


def run(found: PassRow | Concurrent) -> Html:
    """Return the name of a pass's run, marked where the client may have limited it."""
    return html("{} <small>client-bound</small>", code(found.label)) if found.client_bound else code(found.label)


def banners(found: Measured) -> Html:
    """Return what has to be known before any figure of a study."""
    source = f"results/{found.name}"
    notes = prose.bullets([given(banner, source=source) for banner in found.summary.banners])
    return html('<div class="banners"><p>Before the figures:</p>{}</div>', notes) if notes else Html()


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


def byte_count(pair: Pair, workload: str = ALL) -> ByteCount | None:
    """Return a pair's verdicts on one workload, by default on all prompts; None where no prompt was judged."""
    return next((c for c in pair.bytes if c.workload == workload and c.judged), None)


def failure(found: Measured, config: str) -> str | None:
    """Return why a config has no complete run although one was tried; None where it has one, or none was tried."""
    runs = [run for run in found.summary.runs if run.config == config and run.status in ("failed", "partial")]
    complete = any(c.name == config for c in found.summary.configs)
    return None if complete or not runs else runs[0].reason or runs[0].status


def median(found: Measured, config: str, workload: str, speed: WorkloadSpeed | None) -> Html:
    """Return a config's median decode rate on a workload."""
    return number(
        speed.decode_tok_s if speed else None,
        source=f"median decode tok/s over the prompts of {workload}: {found.files(config)}",
        missing=f"no answer of {definitions.MIN_SPEED_TOKENS} tokens or more",
    )


def several(
    values: Iterable[float | None], digits: int, source: str, missing: str = "not measured for this config"
) -> Html:
    """Return the values of several runs or server starts, equal ones once."""
    shown = [number(value, digits, source=source) for value in dict.fromkeys(values)]
    return join(shown, Html("<br>")) if shown else number(None, source=source, missing=missing)


def same_bytes(found: Measured, pair: Pair, *workloads: str) -> Html:
    """Return how many answers kept the bytes of the reference, and what became of the others, in a line.

    Parameters
    ----------
    workloads : str
        Those that count; all where none is named.
    """
    same, rest = _same_and_rest(found, pair, *workloads)
    return same if rest is None else join([html("{} the same", same), *rest], ", ")


def same_over_rest(found: Measured, pair: Pair) -> Html:
    """Return the same as a narrow cell, what became of the others in lines of their own."""
    same, rest = _same_and_rest(found, pair)
    return join([same, *(html("<small>{}</small>", item) for item in rest or ())], " ")


def _same_and_rest(found: Measured, pair: Pair, *workloads: str) -> tuple[Html, list[Html] | None]:
    chosen = [c for c in pair.bytes if c.workload in (workloads or (ALL,))]
    if not chosen:
        return number(None, source="", missing=pair.refused or "nothing to compare"), None
    source = pair_source(found, pair)
    counts = {verdict: sum(c.counts[verdict] for c in chosen) for verdict in chosen[0].counts}
    rest = [
        html("{} {}", count(n, source=source), _VERDICTS.get(verdict, (verdict, verdict))[n > 1])
        for verdict, n in counts.items()
        if n and verdict != "same"
    ]
    return of(counts["same"], sum(c.prompts for c in chosen), source=source), rest


_VERDICTS = {
    "differs": ("differs", "differ"),
    "differs (no control)": ("differs without a control", "differ without a control"),
    "intermittent": ("changes from start to start", "change from start to start"),
    "missing": ("was not answered", "were not answered"),
}
"""What is said of one such answer, and of several."""


def pair_source(found: Measured, pair: Pair) -> str:
    """Return the records of both sides of a pair, as a text that says where a figure comes from."""
    return f"{found.files(pair.candidate)} against {found.files(pair.reference)}"


def ratio_source(found: Measured, pair: Pair, workload: str) -> str:
    """Return where a paired ratio of decode rates comes from."""
    return f"decode tok/s, paired by prompt ({workload}): {pair_source(found, pair)}"


def speed_ratio(found: Measured, pair: Pair, ratio: Ratio) -> Html:
    """Return a paired ratio of decode rates with, under it, its t interval."""
    source = ratio_source(found, pair, ratio.workload)
    decode = ratio.decode
    if decode is None:
        return times(None, source=source, missing="no prompt is timed on both sides")
    return html(
        "{} <small>{}</small>",
        times(decode.geometric_mean, source=source),
        prose.between(decode.t_interval, source=source, missing="a single prompt has no interval"),
    )


def text_as_printed(article: Published, name: str) -> str | None:
    """Return one figure of the article, given or derived, in its own digits; None where it printed none."""
    figure = article.figures.get(name)
    if figure is not None:
        return figure.printed if isinstance(figure.printed, str) else None
    return next((d.printed for d in article.derived if d.id == name), None)


def value_as_printed(article: Published, name: str) -> float | None:
    """Return one printed figure, given or derived, as a number."""
    printed = text_as_printed(article, name)
    return None if printed is None else float(printed.replace(",", ""))


def as_printed(article: Published, name: str) -> Html:
    """Return one figure of the article, given or derived, in its own digits; with what contradicts it beside it."""
    figure = article.figures.get(name)
    if figure is not None and isinstance(figure.printed, str):
        return prose.printed(figure.printed, source=f"{article.title}: {figure.place}")
    check = next((c for c in article.checks() if c.id == name), None)
    if check is None:
        return number(None, source="", missing="not published")
    shown = prose.printed(check.printed, source=f"{article.title}: {check.place}")
    return shown if check.consistent else html("{} <small>({} by its other figures)</small>", shown, implied(check))


def implied(check: Check) -> Html:
    """Return what the figures that a printed one follows from make it, within their rounding."""
    source = "samebytes.published: each derived figure computed again from the printed ones"
    digits = 0 if check.low.is_integer() and check.high.is_integer() else 2
    ends = [number(value, digits, source=source) for value in dict.fromkeys((check.low, check.high))]
    return join(ends, " to ")
