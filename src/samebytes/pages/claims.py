"""The article's claims, each held against a measured study: does it hold there, and by which figures.

A claim holds or does not hold by a rule that is stated with it; a ratio whose interval includes 1, or that is no larger
than what two server starts of one config differ by, decides nothing, nor does one where that was not measured. An
answer that is missing, or differs where no control puts it down to the config, decides nothing either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from samebytes import exhibit, prose
from samebytes.bookdata import Measured
from samebytes.findings import ALL, Called, Pair, Ratio
from samebytes.pages import common
from samebytes.prose import Html, html, join
from samebytes.published import Published
from samebytes.stats import RatioEstimate

HOLDS, FAILS, OPEN, ABSENT = "holds", "does not hold", "not decided", "not measured"

ABOUT = 0.02
"""How far "about the same" may lie from 1: the article's own widest such figure is 76.7 over 75.5."""
TWICE = (1.9, 2.1)
"""What "twice" means; the article's own pool grew 1.94 times."""
NO_COST = 0.99
"""Share of the baseline's KV pool that must be left for a config to have cost no memory."""


@dataclass(frozen=True)
class Claim:
    """One claim of the article on one study.

    Attributes
    ----------
    text : Html
        The claim in our words, and the rule that decides.
    published, measured : Html
        The article's figure and the study's.
    verdict : str
        `HOLDS`, `FAILS`, `OPEN` (an interval includes 1, the drift of server starts is as large or not known, or
        answers are missing or differ without its being the config's doing) or `ABSENT` (the study lacks the runs).
    """

    text: Html
    published: Html
    measured: Html
    verdict: str


def above(ratio: Ratio | None) -> str:
    """Return the verdict on "the ratio of decode rates is above 1": by what it is called, see `Ratio.called`."""
    return ABSENT if ratio is None else _ABOVE.get(ratio.called, OPEN)


_ABOVE: dict[Called, str] = {"not timed": ABSENT, "a single prompt": ABSENT, "faster": HOLDS, "slower": FAILS}


def judge(study: Measured, published: Published) -> list[Claim]:
    """Return every claim with its verdict on a study, in the article's order."""
    pairs = {pair.candidate: pair for pair in study.pairs("baseline") if pair.refused is None}
    ngram, fp8 = pairs.get("ngram"), pairs.get("fp8")
    return [
        *_speeds(study, published, ngram),
        _first_token(study, ngram),
        _room_for_drafts(study),
        _control(study, published),
        _copied(study, ngram),
        _drift(study, published, ngram),
        _twice(study, published),
        _fp8_speed(study, fp8),
        _fp8_bytes(study, published, fp8),
        _fp8_aggregate(study, published, fp8),
    ]


def _source(study: Measured, *configs: str) -> str:
    return " and ".join(study.files(name) for name in configs)


def _estimate(found: RatioEstimate | None, source: str, digits: int = 2) -> Html:
    if found is None:
        return prose.times(None, source=source)
    return html(
        "{} {}",
        prose.times(found.geometric_mean, source=source),
        prose.between(found.t_interval, digits, source=source, missing="a single prompt has no interval"),
    )


def _speeds(study: Measured, published: Published, ngram: Pair | None) -> Iterator[Claim]:
    for workload in ("code_edit", "rag", "creative"):
        ratio = next((r for r in ngram.ratios if r.workload == workload), None) if ngram else None
        verdict = above(ratio)
        source = "" if ngram is None else f"decode tok/s, {workload}: {_source(study, 'ngram', 'baseline')}"
        faster = workload != "creative"
        yield Claim(
            html(
                "N-gram speculation makes {} {} (the interval of the paired ratio lies {} one, and the ratio "
                "beyond the drift of server starts).",
                common.workload_name(workload),
                "faster" if faster else "slower",
                "above" if faster else "below",
            ),
            html("{}×", common.as_printed(published, f"speedup.{workload}")),
            _estimate(ratio.decode if ratio else None, source),
            verdict if faster else {HOLDS: FAILS, FAILS: HOLDS}.get(verdict, verdict),
        )


def _first_token(study: Measured, ngram: Pair | None) -> Claim:
    ratios = [r for r in ngram.ratios if r.ttft is not None] if ngram else []
    source = "" if ngram is None else f"TTFT: {_source(study, 'ngram', 'baseline')}"
    shown = join((html("{} {}", common.workload_name(r.workload), _estimate(r.ttft, source)) for r in ratios), "; ")
    intervals = [r.ttft.t_interval for r in ratios if r.ttft is not None and r.ttft.t_interval is not None]
    if not intervals:
        verdict = ABSENT
    elif any(interval.low > 1 for interval in intervals):
        verdict = FAILS
    else:
        verdict = HOLDS if all(interval.high < 1 for interval in intervals) else OPEN
    return Claim(
        html(
            "The first token comes earlier with n-gram speculation (for every workload the interval of the TTFT ratio "
            "lies below one; one that lies above it decides against)."
        ),
        html("slightly earlier"),
        shown or prose.times(None, source=source),
        verdict,
    )


def _room_for_drafts(study: Measured) -> Claim:
    pools = {name: _pool(study, name) for name in ("baseline", "ngram")}
    ratio = _over(pools["ngram"], pools["baseline"])
    source = "" if ratio is None else f"KV pool in tokens: {_source(study, 'ngram', 'baseline')}"
    memory = Html()
    if ratio is not None and study.gpu:
        memory = html("; graphs {} → {}", *(_graphs(study, name) for name in ("baseline", "ngram")))
    return Claim(
        html(
            "Speculation costs no memory on the card (the KV pool keeps {} of the baseline’s).",
            prose.percent(NO_COST, 0, source="samebytes.claims.NO_COST"),
        ),
        html("none"),
        html("{} of the pool{}", prose.percent(ratio, source=source), memory),
        ABSENT if ratio is None else HOLDS if ratio >= NO_COST else FAILS,
    )


def _pool(study: Measured, name: str) -> float | None:
    config = next((c for c in study.summary.configs if c.name == name), None)
    return None if config is None else min(config.memory.kv_cache_tokens, default=None)


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _graphs(study: Measured, name: str) -> Html:
    found = max(study.summary.config(name).memory.graph_bytes, default=None)
    return prose.number(found, 2, "GiB", source=f"graph memory: {study.files(name)}", scale=2**-30)


def _control(study: Measured, published: Published) -> Claim:
    found = study.control("baseline")
    have = found.agrees + found.disagrees if found else 0
    return Claim(
        html("The baseline repeats its own bytes from one server start to the next (all prompts)."),
        _same_printed(published, "control"),
        prose.of(found.agrees, have, source=study.files("baseline"))
        if found and have
        else prose.number(None, source="", missing="one server start only"),
        ABSENT if found is None or not have else HOLDS if found.agrees == have else FAILS,
    )


def _same_printed(published: Published, what: str) -> Html:
    return html("{} of {}", common.as_printed(published, f"{what}.same"), common.as_printed(published, "prompts"))


@dataclass(frozen=True)
class _Answers:
    """How many answers of a config keep the baseline's bytes, how many the config changes, and of how many prompts."""

    same: int
    differs: int
    judged: int
    prompts: int
    shown: Html

    @property
    def all_same(self) -> str:
        """The verdict on "all keep their bytes": what is missing or not the config's doing decides nothing."""
        if not self.judged:
            return ABSENT
        return HOLDS if self.same == self.prompts else FAILS if self.differs else OPEN

    @property
    def some_differ(self) -> str:
        """The verdict on "the config changes some"."""
        return {HOLDS: FAILS, FAILS: HOLDS}.get(self.all_same, self.all_same)


def _answers(study: Measured, pair: Pair | None, *workloads: str) -> _Answers:
    """Return what became of the answers of some workloads."""
    counts = [c for c in pair.bytes if c.workload in workloads] if pair else []
    if pair is None or not any(c.judged for c in counts):
        return _Answers(0, 0, 0, 0, prose.number(None, source="", missing="not measured"))
    same, differs = (sum(c.counts[verdict] for c in counts) for verdict in ("same", "differs"))
    judged, prompts = sum(c.judged for c in counts), sum(c.prompts for c in counts)
    return _Answers(same, differs, judged, prompts, common.same_bytes(study, pair, *workloads))


def _copied(study: Measured, ngram: Pair | None) -> Claim:
    found = _answers(study, ngram, "code_edit", "rag")
    return Claim(
        html("Code edits and quoted answers keep the baseline’s bytes under n-gram speculation (all of them)."),
        html("all the same"),
        found.shown,
        found.all_same,
    )


def _drift(study: Measured, published: Published, ngram: Pair | None) -> Claim:
    found = _answers(study, ngram, "creative")
    return Claim(
        html("Some free prose changes under n-gram speculation (at least one answer parts from the baseline’s)."),
        html("{} the same", _same_printed(published, "ngram")),
        found.shown,
        found.some_differ,
    )


def _twice(study: Measured, published: Published) -> Claim:
    ratio = _over(_pool(study, "fp8"), _pool(study, "baseline"))
    source = "" if ratio is None else f"KV pool in tokens: {_source(study, 'fp8', 'baseline')}"
    low, high = (prose.number(edge, 1, source="samebytes.claims.TWICE") for edge in TWICE)
    return Claim(
        html("An FP8 KV cache holds about twice the tokens (between {} and {} times).", low, high),
        html(
            "{} → {}",
            common.as_printed(published, "kv_pool.baseline"),
            common.as_printed(published, "kv_pool.fp8"),
        ),
        prose.times(ratio, source=source),
        ABSENT if ratio is None else HOLDS if TWICE[0] <= ratio <= TWICE[1] else FAILS,
    )


def _fp8_speed(study: Measured, fp8: Pair | None) -> Claim:
    ratios = [r for r in fp8.ratios if r.decode is not None and r.decode.t_interval is not None] if fp8 else []
    source = "" if fp8 is None else f"decode tok/s: {_source(study, 'fp8', 'baseline')}"
    shown = join(
        (html("{} {}", common.workload_name(r.workload), _estimate(r.decode, source, 3)) for r in ratios), "; "
    )
    low, high = 1 - ABOUT, 1 + ABOUT
    known = [(r, r.decode.t_interval) for r in ratios if r.decode and r.decode.t_interval]
    if not known:
        verdict = ABSENT
    elif any((i.high < low or i.low > high) and r.called in ("faster", "slower") for r, i in known):
        verdict = FAILS
    else:
        within = all(low <= i.low and i.high <= high and r.drift is not None and r.drift <= high for r, i in known)
        verdict = HOLDS if within else OPEN
    return Claim(
        html(
            "An FP8 KV cache leaves the speed of a single request about as it was (every interval and the "
            "drift of server starts within {} of one; an interval outside it decides against, beyond the drift).",
            prose.percent(ABOUT, 0, source="samebytes.claims.ABOUT"),
        ),
        html("about one percent"),
        shown or prose.times(None, source=source),
        verdict,
    )


def _fp8_bytes(study: Measured, published: Published, fp8: Pair | None) -> Claim:
    each = [_answers(study, fp8, workload).some_differ for workload in ("code_edit", "rag", "creative")]
    return Claim(
        html("An FP8 KV cache changes words, code edits and quotations included (some of each)."),
        html("{} the same", _same_printed(published, "fp8")),
        _answers(study, fp8, ALL).shown,
        next(verdict for verdict in (FAILS, ABSENT, OPEN, HOLDS) if verdict in each),
    )


def _fp8_aggregate(study: Measured, published: Published, fp8: Pair | None) -> Claim:
    ratio = fp8.aggregate_ratio if fp8 else None
    source = "" if ratio is None else f"aggregate tok/s of the concurrent legs: {_source(study, 'fp8', 'baseline')}"
    base = next((config for config in study.summary.configs if config.name == "baseline"), None)
    full = prose.percent(base.peak_kv_usage if base else None, source=source, missing="an unknown share")
    return Claim(
        html("An FP8 KV cache raises the aggregate of many requests at once (above one; no interval)."),
        html(
            "{} → {}",
            common.as_printed(published, "aggregate.baseline"),
            common.as_printed(published, "aggregate.fp8"),
        ),
        prose.times(ratio, source=source, missing="no concurrent leg")
        if ratio is None
        else html("{}; of the baseline’s pool {} was in use at most", prose.times(ratio, source=source), full),
        ABSENT if ratio is None else HOLDS if ratio > 1 else FAILS,
    )


def conclusion(found: Sequence[Measured], published: Published) -> Html:
    """Return how many claims hold on every study that decides them, on none, and on some only; the last by name."""
    judged = [judge(study, published) for study in found]
    if not judged:
        return Html()
    groups: dict[str, list[Claim]] = {"everywhere": [], "nowhere": [], "apart": [], "open": []}
    for claims in zip(*judged, strict=True):
        decided = {claim.verdict for claim in claims} & {HOLDS, FAILS}
        kind = {frozenset({HOLDS}): "everywhere", frozenset({FAILS}): "nowhere", frozenset(): "open"}
        groups[kind.get(frozenset(decided), "apart")].append(claims[0])
    source = f"samebytes.pages.claims on {', '.join(study.name for study in found)}"
    total, everywhere, nowhere, apart, undecided = (
        prose.count(n, source=source) for n in (len(judged[0]), *(len(group) for group in groups.values()))
    )
    text = prose.paragraph(
        "Of {} claims, {} hold on every study that decides them, {} on none, and {} on one machine and not on another. "
        "The rest, {}, no study decides.",
        total,
        everywhere,
        nowhere,
        apart,
        undecided,
    )
    split = prose.bullets([claim.text for claim in groups["apart"]])
    return join([text, html("<p>On one and not on another:</p>{}", split)]) if split else text


def overview(found: Sequence[Measured], published: Published) -> Html:
    """Return every claim with its verdict on every study, side by side."""
    judged = [judge(study, published) for study in found]
    if not judged:
        return Html()
    names = [common.machine(study) for study in found]
    rows = [[claims[0].text, *(claim.verdict for claim in claims)] for claims in zip(*judged, strict=True)]
    data = [
        {"claim": prose.plain(claims[0].text)}
        | {study.name: claim.verdict for study, claim in zip(found, claims, strict=True)}
        for claims in zip(*judged, strict=True)
    ]
    return exhibit.table(
        "claims",
        "Every claim of the article, with the rule that decides it, and its verdict on each machine",
        ["claim", *names],
        rows,
        exhibit.together(exhibit.origin(study) for study in found),
        data=data,
        words=range(1, len(found) + 1),
    )


def table(study: Measured, name: str, published: Published) -> Html:
    """Return the claims as a table: the article's figure, the study's, and the verdict.

    Parameters
    ----------
    study : Measured
        The study.
    name : str
        Name of the article's own study.
    published : Published
        The article.
    """
    found = judge(study, published)
    return join(
        [
            prose.heading(f"claims-{study.name}", prose.given(study.title, source=f"studies/{study.name}.yaml"), 3),
            common.setup(study),
            common.worth(study),
            exhibit.table(
                f"claims-table-{study.name}",
                "Each claim, the article’s figure (published, not measured here) and this study’s",
                ["claim", "published", "measured", "verdict"],
                [[claim.text, claim.published, claim.measured, claim.verdict] for claim in found],
                exhibit.together([exhibit.origin(study), exhibit.printed(name, published)]),
                data=[{key: prose.plain(text) for key, text in vars(claim).items()} for claim in found],
                words=(1, 2, 3),
            ),
            tally(study, published),
        ]
    )


def tally(study: Measured, published: Published) -> Html:
    """Return how many claims hold on a study."""
    verdicts = [claim.verdict for claim in judge(study, published)]
    source = f"samebytes.claims on results/{study.name}"
    held, failed, undecided, absent = (
        prose.count(verdicts.count(verdict), source=source) for verdict in (HOLDS, FAILS, OPEN, ABSENT)
    )
    return prose.paragraph(
        "Of {} claims: {} hold, {} do not; not decided: {}; not measured: {}.",
        prose.count(len(verdicts), source=source),
        held,
        failed,
        undecided,
        absent,
    )
