"""What changed between two runs of the same study: another card, another engine, another day.

Both sides are paired config by config and prompt by prompt. Speeds get the same paired ratio, interval and drift as two
configs of one study, bytes the same verdicts; what else differs (versions, machine, flags, settings) is listed, for any
of it may be the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from samebytes import analysis, compare, fairness, paths, settings, stats
from samebytes.compare import Comparison
from samebytes.errors import UsageError, unknown
from samebytes.fairness import Difference
from samebytes.findings import ALL, ConfigResult, Memory, PromptResult, Ratio, Summary
from samebytes.markdown import NONE, interval, section, table
from samebytes.record import Record, Request
from samebytes.show import number
from samebytes.stats import Interval, RatioEstimate

UP_TO_THE_LIMIT = "same up to the limit"
"""The shorter answer was cut off by its own token limit, and is how the longer one begins."""

OUTCOMES = ("same", UP_TO_THE_LIMIT, *(verdict for verdict in compare.VERDICTS if verdict != "same"))


@dataclass(frozen=True)
class Side:
    """One of the two: a study's records, and its figures where they are computed already."""

    name: str
    records: tuple[Record, ...]
    known: Summary | None = None

    @cached_property
    def summary(self) -> Summary:
        """The study's figures."""
        return self.known or analysis.summarise(self.records)


@dataclass(frozen=True)
class Changed:
    """One field that the two sides do not share.

    Attributes
    ----------
    configs : tuple of str
        The configs whose first runs differ in it; empty: all of them, in the same way.
    """

    difference: Difference
    configs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcomes:
    """How the answers of the two sides relate, counted over the prompts of one workload, or `ALL`.

    Attributes
    ----------
    judged : int
        Prompts that every run of both sides answered.
    counts : dict of str to int
        By outcome, see `OUTCOMES`.
    same_rate : Interval or None
        Wilson interval of (same + same up to the limit) / judged.
    """

    workload: str
    prompts: int
    judged: int
    counts: dict[str, int]
    same_rate: Interval | None


@dataclass(frozen=True)
class PromptChange:
    """The answers of one config to one prompt on both sides.

    Attributes
    ----------
    outcome : str
        One of `OUTCOMES`.
    comparison : Comparison
        Where they part.
    """

    id: str
    workload: str
    outcome: str
    comparison: Comparison


@dataclass(frozen=True)
class ConfigChange:
    """One config on both sides.

    Attributes
    ----------
    labels_a, labels_b : tuple of str
        The records.
    speeds : tuple of (str, float or None, float or None)
        Workload and both medians of decode tok/s over the shared prompts.
    ratios : tuple of Ratio
        B over A by workload, paired by prompt; drift is the larger of the two sides' own.
    aggregate_tok_s : tuple of (float or None, float or None), or None
        Geometric mean over the concurrent passes of each side; None where they are not of the same shape.
    """

    config: str
    labels_a: tuple[str, ...]
    labels_b: tuple[str, ...]
    speeds: tuple[tuple[str, float | None, float | None], ...]
    ratios: tuple[Ratio, ...]
    aggregate_tok_s: tuple[float | None, float | None] | None
    bytes: tuple[Outcomes, ...]
    prompts: tuple[PromptChange, ...]
    memory_a: Memory
    memory_b: Memory


@dataclass(frozen=True)
class Effect:
    """What a flag does to decode throughput on either side, and whether that changed.

    Attributes
    ----------
    a, b : RatioEstimate or None
        The speed-up of ``config`` over ``reference`` on each side, from the shared prompts.
    change : RatioEstimate or None
        B's speed-up over A's, paired by prompt: above 1 the flag gains more (or costs less) on B.
    """

    config: str
    reference: str
    workload: str
    a: RatioEstimate | None
    b: RatioEstimate | None
    change: RatioEstimate | None


@dataclass(frozen=True)
class Changes:
    """All that changed from side A to side B.

    Attributes
    ----------
    a, b : str
        Names of the sides.
    prompts : tuple of str
        Ids of the prompts that both sides sent, byte for byte.
    cautions : tuple of str
        What has to be known before any figure.
    """

    a: str
    b: str
    setup_a: str
    setup_b: str
    prompts: tuple[str, ...]
    cautions: tuple[str, ...]
    changed: tuple[Changed, ...]
    configs: tuple[ConfigChange, ...]
    effects: tuple[Effect, ...]


def read(text: str) -> Side:
    """Read one side.

    Parameters
    ----------
    text : str
        A study with records in ``results/``, or a folder of records.

    Raises
    ------
    UsageError
        Where it is neither.
    RecordError
        Where a record cannot be read.
    """
    folder = Path(text)
    known = (paths.results() / text).is_dir() and "/" not in text
    if known or not folder.is_dir():
        folder = settings.records_folder(text)
    return Side(folder.resolve().name, tuple(analysis.load(folder)))


def compute(a: Side, b: Side, configs: Sequence[str] = ()) -> Changes:
    """Compute what changed from ``a`` to ``b``.

    Parameters
    ----------
    configs : sequence of str
        Only these configs; none: all that both sides measured.

    Raises
    ------
    UsageError
        Where both sides are the same records, have no config or no prompt in common, or a config is not shared.
    """
    ours, theirs, prompts = shared(a, b)
    both = [name for name in ours if name in theirs]
    for name in configs:
        if name not in both:
            raise unknown("config that both have", name, both)
    chosen = [name for name in both if not configs or name in configs]
    return Changes(
        a=a.name,
        b=b.name,
        setup_a=_setup(a),
        setup_b=_setup(b),
        prompts=tuple(prompts),
        cautions=tuple(_cautions(a, b, ours, theirs, prompts)),
        changed=tuple(_changed({name: (ours[name][0], theirs[name][0]) for name in chosen})),
        configs=tuple(_config(name, (a, ours[name]), (b, theirs[name]), prompts) for name in chosen),
        effects=tuple(_effects(a, b, both, chosen, prompts)),
    )


def shared(a: Side, b: Side) -> tuple[dict[str, list[Record]], dict[str, list[Record]], list[str]]:
    """Return the complete runs of each side by config, and the ids of the prompts that both sent, byte for byte.

    Raises
    ------
    UsageError
        Where both are the same records, or have no config or no prompt in common.
    """
    if list(a.records) == list(b.records):
        raise UsageError(f"{a.name} and {b.name} are the same records: name two runs of a study")
    ours, theirs = analysis.groups(a.records), analysis.groups(b.records)
    if not ours.keys() & theirs.keys():
        raise UsageError(
            f"{a.name} and {b.name} have no config with a complete run in common: "
            f"{a.name} has {_listed(ours)}; {b.name} has {_listed(theirs)}"
        )
    first, *others = [{p.id: p.sha256 for p in group[0].prompts} for side in (ours, theirs) for group in side.values()]
    prompts = [key for key, digest in first.items() if all(other.get(key) == digest for other in others)]
    if not prompts:
        one, two = (sorted({p.id for group in side.values() for p in group[0].prompts}) for side in (ours, theirs))
        raise UsageError(
            f"{a.name} and {b.name} have no prompt in common (same name, same bytes): "
            f"{a.name} sent {_listed(one)}; {b.name} sent {_listed(two)}"
        )
    return ours, theirs, prompts


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "(none)"


def _setup(side: Side) -> str:
    found = side.summary
    starts = sorted(launch.started for record in side.records for launch in record.launches)
    began = f", from {starts[0][:10]}" if starts else ""
    return f"{found.model} on {found.machine}, vLLM {found.vllm or NONE}{began}"


def _cautions(
    a: Side,
    b: Side,
    ours: Mapping[str, Sequence[Record]],
    theirs: Mapping[str, Sequence[Record]],
    prompts: Sequence[str],
) -> Iterator[str]:
    for side, mine, other, others in ((a, ours, b, theirs), (b, theirs, a, ours)):
        sent = {p.id for group in mine.values() for p in group[0].prompts}
        left_out = sorted(sent.difference(prompts))
        if left_out:
            yield f"{side.name} sent {len(left_out)} prompts that {other.name} did not: {_listed(left_out)}"
        alone = [name for name in mine if name not in others]
        for name in alone:
            reason = next((r.reason for r in other.records if r.config.name == name and r.reason), "not measured")
            yield f"{name} is complete in {side.name} only; {other.name}: {' '.join(reason.split())}"
        yield from (f"{side.name}: {banner}" for banner in side.summary.banners)


# -- what else differs ------------------------------------------------------------------------------------------------


def _settings(a: Record, b: Record) -> Iterator[Difference]:
    """Yield differences of model and sampling: with one of these the two are not the same study any more."""
    for kind in ("model", "sampling"):
        one, two = getattr(a, kind), getattr(b, kind)
        for name in type(one).model_fields:
            values = [getattr(side, name) for side in (one, two)]
            if values[0] != values[1]:
                x, y = (None if value is None else str(value) for value in values)
                yield Difference(kind, name, x, y, fair=False)


def _changed(firsts: Mapping[str, tuple[Record, Record]]) -> Iterator[Changed]:
    found: dict[Difference, list[str]] = {}
    for name, (one, two) in firsts.items():
        for difference in (*_settings(one, two), *fairness.differences(one, two)):
            found.setdefault(difference, []).append(name)
    for difference, names in found.items():
        yield Changed(difference, () if len(names) == len(firsts) else tuple(names))


# -- one config -------------------------------------------------------------------------------------------------------


def _config(
    name: str, a: tuple[Side, Sequence[Record]], b: tuple[Side, Sequence[Record]], prompts: Sequence[str]
) -> ConfigChange:
    (side_a, ours), (side_b, theirs) = a, b
    one, two = side_a.summary.config(name), side_b.summary.config(name)
    mine, other = _only(one, prompts), _only(two, prompts)
    workloads = list(dict.fromkeys(p.workload for p in mine))
    changes = _prompt_changes(ours, theirs, prompts)
    return ConfigChange(
        config=name,
        labels_a=one.labels,
        labels_b=two.labels,
        speeds=tuple((w, _median(mine, w), _median(other, w)) for w in workloads),
        ratios=tuple(replace(analysis.ratio(w, mine, other), drift=analysis.drift(w, ours, theirs)) for w in workloads),
        aggregate_tok_s=_aggregate(one, two),
        bytes=tuple(_count(changes, w) for w in (*workloads, ALL)),
        prompts=tuple(changes),
        memory_a=one.memory,
        memory_b=two.memory,
    )


def _only(config: ConfigResult, prompts: Sequence[str]) -> list[PromptResult]:
    return [p for p in config.prompts if p.id in prompts]


def _median(prompts: Iterable[PromptResult], workload: str) -> float | None:
    rates = [p.decode_tok_s for p in prompts if p.workload == workload and p.decode_tok_s is not None]
    return stats.median(rates) if rates else None


def _aggregate(a: ConfigResult, b: ConfigResult) -> tuple[float | None, float | None] | None:
    if {(c.concurrency, c.dup, c.answered[1]) for c in a.concurrent} != {
        (c.concurrency, c.dup, c.answered[1]) for c in b.concurrent
    } or not a.concurrent:
        return None
    rates = [[c.aggregate_tok_s for c in side.concurrent if c.aggregate_tok_s] for side in (a, b)]
    one, two = (stats.geometric_mean(found) if found else None for found in rates)
    return one, two


def _prompt_changes(ours: Sequence[Record], theirs: Sequence[Record], prompts: Sequence[str]) -> list[PromptChange]:
    sides = [[compare.sequential_answers(found) for found in side] for side in (ours, theirs)]
    workloads = {p.id: p.workload for p in ours[0].prompts}
    found = []
    for key in prompts:
        one, two = ([answers[key] for answers in side] for side in sides)
        verdict = compare.judge(key, workloads[key], one, two)
        outcome: str = verdict.verdict
        # Each side agrees with itself where the verdict is that they differ: its first answer stands for all.
        if outcome.startswith("differs") and _cut_off(one[0].request, two[0].request):
            outcome = UP_TO_THE_LIMIT
        found.append(PromptChange(key, verdict.workload, outcome, verdict.comparison))
    return found


def _cut_off(a: Request | None, b: Request | None) -> bool:
    """Whether one answer is the beginning of the other and ended at its token limit."""
    found = compare.compare_answers(a, b)
    if a is None or b is None or found.cls != "length" or found.part != "text":
        return False
    return min(a, b, key=lambda request: len(request.text)).finish_reason == "length"


def _count(changes: Sequence[PromptChange], workload: str) -> Outcomes:
    chosen = [p.outcome for p in changes if workload in (ALL, p.workload)]
    counts = {outcome: chosen.count(outcome) for outcome in OUTCOMES}
    judged = len(chosen) - counts["missing"]
    same = counts["same"] + counts[UP_TO_THE_LIMIT]
    return Outcomes(workload, len(chosen), judged, counts, stats.wilson(same, judged))


# -- what a flag does on either side ----------------------------------------------------------------------------------


def _effects(
    a: Side, b: Side, references: Sequence[str], configs: Sequence[str], prompts: Sequence[str]
) -> Iterator[Effect]:
    there = {(pair.reference, pair.candidate) for pair in b.summary.pairs if pair.refused is None}
    for pair in a.summary.pairs:
        names = (pair.reference, pair.candidate)
        if pair.refused is not None or names not in there:
            continue
        if pair.reference not in references or pair.candidate not in configs:
            continue
        base, ours = (_rates(a.summary.config(name), prompts) for name in names)
        their_base, theirs = (_rates(b.summary.config(name), prompts) for name in names)
        workload_of = {p.id: p.workload for p in a.summary.config(pair.candidate).prompts}
        for workload in dict.fromkeys(workload_of[key] for key in prompts):
            keys = [key for key in prompts if workload_of[key] == workload]
            one = {k: ours[k] / base[k] for k in keys if k in ours and k in base}
            two = {k: theirs[k] / their_base[k] for k in keys if k in theirs and k in their_base}
            both = [k for k in one if k in two]
            yield Effect(
                config=pair.candidate,
                reference=pair.reference,
                workload=workload,
                a=stats.paired_ratio([ours[k] for k in one], [base[k] for k in one]),
                b=stats.paired_ratio([theirs[k] for k in two], [their_base[k] for k in two]),
                change=stats.paired_ratio([two[k] for k in both], [one[k] for k in both]),
            )


def _rates(config: ConfigResult, prompts: Sequence[str]) -> dict[str, float]:
    return {p.id: p.decode_tok_s for p in _only(config, prompts) if p.decode_tok_s is not None}


# -- to read ----------------------------------------------------------------------------------------------------------


def text(found: Changes) -> str:
    """Return the changes as Markdown, each table with its definition."""
    lines = [
        f"# {found.b} against {found.a}",
        "",
        f"A: {found.setup_a}.",
        f"B: {found.setup_b}.",
        f"{len(found.prompts)} prompts and {len(found.configs)} configs in common.",
        "",
    ]
    for caution in found.cautions:
        lines += [f"> **Note.** {' '.join(caution.split())}", ">"]
    lines += [""] if found.cautions else []
    for part in (_changed_table, _speed_table, _effect_table, _bytes_table, _prompt_table, _memory_table):
        lines += part(found)
    return "\n".join(lines).rstrip("\n") + "\n"


def _changed_table(found: Changes) -> list[str]:
    rows = [
        [c.difference.kind, c.difference.name, *(value(v) for v in (c.difference.a, c.difference.b)), _where(c)]
        for c in found.changed
    ]
    return section(
        "What differs besides the figures",
        table(["kind", "name", "A", "B", "configs"], rows),
        "Between the first runs of both sides. Each of these may be the cause of any change below.",
    )


def value(text: str | None) -> str:
    """Return a value that may not be given (a dash) or be a bare flag (``set``)."""
    return NONE if text is None else text or "set"


def _where(changed: Changed) -> str:
    return ", ".join(changed.configs) or ALL


def _estimate(found: RatioEstimate | None) -> list[str]:
    return [number(found.geometric_mean if found else None, 2), interval(found.t_interval if found else None)]


def _speed_table(found: Changes) -> list[str]:
    rows: list[list[object]] = []
    for config in found.configs:
        for (workload, a, b), ratio in zip(config.speeds, config.ratios, strict=True):
            timed = f"{ratio.decode.n if ratio.decode else 0}/{ratio.prompts}"
            paired = [*_estimate(ratio.decode), number(ratio.drift, 2), ratio.called, " ".join(_estimate(ratio.ttft))]
            rows.append([config.config, workload, timed, number(a), number(b), *paired])
        if config.aggregate_tok_s is not None:
            a, b = config.aggregate_tok_s
            cells = [number(a), number(b), number(b / a if a and b else None, 2)]
            rows.append([config.config, "concurrent leg", NONE, *cells, NONE, NONE, "one value a pass", NONE])
    header = ["config", "workload", "prompts", "A tok/s", "B tok/s", "B / A", "interval", "drift", "called"]
    return section(
        "Speed",
        table([*header, "TTFT B / A"], rows),
        "A and B: medians of decode tok/s. B / A: geometric mean of the ratios paired by prompt, with its t interval. "
        "Drift: the largest such ratio between two server starts of this config on one side. The concurrent leg has "
        "aggregate tok/s.",
    )


def _effect_table(found: Changes) -> list[str]:
    rows = [
        [e.config, e.reference, e.workload, *_estimate(e.a), *_estimate(e.b), *_estimate(e.change), gains(e)]
        for e in found.effects
    ]
    header = ["config", "against", "workload", "A", "interval", "B", "interval", "B / A", "interval", "on B the flag"]
    return section(
        "What the flag gains",
        table(header, rows),
        "Speed-up of the config over its reference on each side, paired by prompt; B / A: the ratio of both, paired "
        "again.",
    )


def gains(effect: Effect) -> str:
    """Return how a flag's effect on B compares with that on A."""
    if effect.change is None or effect.change.excludes_one is None:
        return "cannot be told"
    if not effect.change.excludes_one:
        return "no clear change"
    return "gains more" if effect.change.geometric_mean > 1 else "gains less"


def _bytes_table(found: Changes) -> list[str]:
    rows = [
        [config.config, n.workload, f"{n.judged}/{n.prompts}", *n.counts.values(), interval(n.same_rate)]
        for config in found.configs
        for n in config.bytes
    ]
    return section(
        "Bytes",
        table(["config", "workload", "judged", *OUTCOMES, "same, interval"], rows),
        "A is the reference: not attributable, where A disagrees with itself; intermittent, where B does. Same up to "
        "the limit: the shorter answer was cut off at its own token limit and is how the longer one begins. Interval: "
        "Wilson, of both kinds of same.",
    )


def _prompt_table(found: Changes) -> list[str]:
    rows = []
    for key in found.prompts:
        cells = []
        for config in found.configs:
            change = next(p for p in config.prompts if p.id == key)
            at = change.comparison.char_index
            cells.append(change.outcome if at is None else f"{change.outcome} (character {at})")
        rows.append([key, *cells])
    return section(
        "Bytes by prompt",
        table(["prompt", *(config.config for config in found.configs)], rows),
        "In brackets the first character (code point) at which the two part.",
    )


def memory(found: Memory) -> dict[str, str]:
    """Return what the servers said about memory and kernels as words; several values are those of several starts."""
    words = {True: "on", False: "off"}

    def several(values: Iterable[str]) -> str:
        return " / ".join(values) or NONE

    return {
        "KV pool tokens": several(f"{v:,}" for v in found.kv_cache_tokens),
        "KV pool GiB": several(f"{v / 2**30:.2f}" for v in found.kv_cache_bytes),
        "full-length requests": several(f"{v:.2f}" for v in found.max_concurrency),
        "graphs GiB": several(f"{v / 2**30:.2f}" for v in found.graph_bytes),
        "attention backend": several(found.attention_backend),
        "async scheduling": several(words[v] for v in found.async_scheduling),
        "prefix caching": several(words[v] for v in found.prefix_caching),
    }


def _memory_table(found: Changes) -> list[str]:
    rows = []
    for config in found.configs:
        a, b = memory(config.memory_a), memory(config.memory_b)
        rows += [[config.config, name, a[name], b[name]] for name in a if (a[name], b[name]) != (NONE, NONE)]
    return section(
        "KV pool and kernels",
        table(["config", "what", "A", "B"], rows),
        "As the servers told it; several values are those of several starts, a dash was not told.",
    )
