"""What the article did not capture: what it says of each, what is recorded here, and where it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from samebytes import exhibit, prose
from samebytes.bookdata import Measured
from samebytes.findings import ALL
from samebytes.pages import common
from samebytes.prose import Html, code, count, html, join, number, of, percent
from samebytes.published import Published


def gaps(found: Sequence[Measured], articles: Mapping[str, Published]) -> Html:
    """Return the gaps that the article names itself, each with what is recorded here."""
    rows = [
        ["Acceptance per workload", _blend(articles), _acceptance(found), common.page("speed", "Speed by workload")],
        [
            "Repeats",
            "only the baseline was run twice, so what a config does from start to start is not known",
            _repeats(found),
            common.page("determinism", "The determinism test"),
        ],
        [
            "Power, clocks, temperature",
            "no telemetry",
            _telemetry(found),
            common.page("speed", "Speed by workload"),
        ],
        [
            "Why free prose changes",
            "inferred from where the answers part, not instrumented",
            _explanation(found),
            common.page("why", "Why the bytes differ"),
        ],
    ]
    keys = ("what", "in_the_article", "here", "shown_under")
    cells = [[html("{} <small>{}</small>", what, page), there, here] for what, there, here, page in rows]
    return exhibit.table(
        "missing-gaps",
        "What the article says that it did not capture",
        ["what, and where it is shown", "in the article", "here"],
        cells,
        exhibit.together(exhibit.origin(study) for study in found),
        data=[{key: prose.plain(cell) for key, cell in zip(keys, row, strict=True)} for row in rows],
        words=range(1, 3),
    )


def _lines(parts: Iterable[object]) -> Html:
    return join(html("<div>{}</div>", part) for part in parts)


def _blend(articles: Mapping[str, Published]) -> Html:
    shown = [common.as_printed(article, "acceptance") for article in articles.values()]
    rate = html(": {}\N{NO-BREAK SPACE}%", join(shown, ", ")) if shown else Html()
    return html("one rate over all prompts{}", rate)


def _acceptance(found: Sequence[Measured]) -> Html:
    """Return the acceptance rate of ``ngram`` by workload."""
    parts = []
    for study in found:
        config = next((c for c in study.summary.configs if c.name == "ngram"), None)
        rates = {w: a.rate for w, a in config.acceptance.items() if w != ALL} if config else {}
        if config is not None and any(rate is not None for rate in rates.values()):
            source = f"accepted / drafted tokens, counters read around each prompt: {study.files('ngram')}"
            shown = [html("{} {}", common.workload_name(w), percent(r, source=source)) for w, r in rates.items()]
            parts.append(html("{}: {}", common.machine(study), join(shown, ", ")))
    return _lines(["the server’s counters are read around each prompt", *parts])


def _repeats(found: Sequence[Measured]) -> Html:
    """Return how many server starts each config of the article has."""
    parts = []
    for study in found:
        configs = [c for c in study.summary.configs if c.name in common.ARTICLE_CONFIGS]
        shown = [html("{} {}", code(c.name), count(len(c.labels), source=study.files(c.name))) for c in configs]
        parts.append(html("{}: {}", common.machine(study), join(shown, ", ")))
    return _lines(["server starts of each config", *parts])


def _telemetry(found: Sequence[Measured]) -> Html:
    """Return how many samples of the card were taken, and what a token costs."""
    parts = []
    for study in found:
        samples = sum(len(p.telemetry or ()) for record in study.records for p in record.passes)
        source = f"telemetry of results/{study.name}/*.json"
        energy = {c.name: c.energy[ALL] for c in study.summary.configs if ALL in c.energy}
        if not samples:
            parts.append(html("{}: no card to ask", common.machine(study)))
            continue
        shown = [
            html("{} {}", code(name), number(energy[name].joules_per_token, 2, source=source))
            for name in common.ARTICLE_CONFIGS
            if name in energy
        ]
        taken = count(samples, source=source)
        parts.append(html("{}: {} samples; joules per token: {}", common.machine(study), taken, join(shown, ", ")))
    return _lines(["sampled throughout every pass", *parts])


def _explanation(found: Sequence[Measured]) -> Html:
    """Return what kernels whose sums do not depend on the batch's shape leave of the difference."""
    parts = []
    for study in found:
        pair = common.pair(study, "ngram_batch_invariant", "baseline_batch_invariant")
        total = common.byte_count(pair) if pair else None
        if pair is not None and total is not None:
            source = common.pair_source(study, pair)
            same = of(total.counts["same"], total.judged, source=source)
            parts.append(html("{}: {} the same with such kernels", common.machine(study), same))
    return _lines(["tested: kernels whose sums do not depend on the shape of the batch", *parts])


# -- what else --------------------------------------------------------------------------------------------------------


def texts(found: Sequence[Measured]) -> Html:
    """Return how many answers, chunks and tokens the records hold."""
    requests = [r for study in found for record in study.records for p in record.passes for r in p.requests]
    source = f"results: {', '.join(study.name for study in found)}"
    return html(
        "{} answers with their text, {} arrival times and {} token ids",
        count(len([r for r in requests if r.status == "ok"]), source=source),
        count(sum(len(r.chunks) for r in requests), source=source),
        count(sum(len(r.token_ids or ()) for r in requests), source=source),
    )


def scheduling(found: Sequence[Measured]) -> Html:
    """Return what switching asynchronous scheduling off does alone."""
    parts = []
    for study in found:
        pair = common.pair(study, "baseline_sync")
        if pair is not None:
            shown = [html("{} {}", common.workload_name(r.workload), _ratio(study, r.workload)) for r in pair.ratios]
            parts.append(html("{}: {}", common.machine(study), join(shown, ", ")))
    return join(parts, "; ") or html("not measured")


def _ratio(study: Measured, workload: str) -> Html:
    pair = common.pair(study, "baseline_sync")
    assert pair is not None
    return common.speed_ratio(study, pair, next(r for r in pair.ratios if r.workload == workload))


def worth(found: Sequence[Measured]) -> Html:
    """Return what the baseline's answers are worth in each study."""
    return join(html("{}{}", common.heading(study, "worth"), common.worth(study)) for study in found)
