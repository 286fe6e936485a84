"""A study's figures as Markdown: tables to read, each with its definition under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from samebytes.compare import VERDICTS, PromptVerdict, RecordComparison
from samebytes.definitions import CLIENT_BUSY, CLIENT_LATE_S
from samebytes.findings import ALL, ByteCount, Concurrent, ConfigResult, Moment, Pair, PassRow, Ratio, Summary
from samebytes.margins import YARDSTICK_QUANTILE, Divergence, WorkloadMargins
from samebytes.replay import ARTICLE
from samebytes.show import number
from samebytes.speculation import Errors
from samebytes.stats import LEVEL, RESAMPLES, Interval, percentile
from samebytes.tune import Sweep

if TYPE_CHECKING:
    from samebytes.probe import Explained

NONE = "–"
"""What was not measured."""


def to_markdown(summary: Summary) -> str:
    """Return the study's tables as Markdown, each with its definition."""
    sections = (
        _head,
        _overview,
        _runs,
        _speed,
        _ratios,
        _control,
        _bytes,
        _divergences,
        _acceptance,
        _step_costs,
        _predictions,
        _concurrent,
        _energy,
        _memory,
        _validity,
        _differences,
        _passes,
        _timeline,
    )
    lines = [line for part in sections for line in part(summary)]
    return "\n".join(lines).rstrip("\n") + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a table's lines, cells escaped; nothing for no rows."""
    assert all(len(row) == len(header) for row in rows)
    body = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    if not body:
        return []
    return [_line(header), _line(["---"] * len(header)), *(_line(row) for row in body), ""]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def section(title: str, rows: Sequence[str], *notes: str) -> list[str]:
    """Return a table's lines under a title, with its notes; nothing for no rows."""
    return [f"## {title}", "", *rows, *[line for note in notes for line in (note, "")]] if rows else []


def of(count: tuple[int, int] | None) -> str:
    """Return ``23/24``, or a dash."""
    return NONE if count is None else f"{count[0]}/{count[1]}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share in percent, or a dash."""
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def run(found: PassRow | Concurrent) -> str:
    """Return the name of a pass's run, marked where the client may have limited it."""
    return f"{found.label} (client-bound)" if found.client_bound else found.label


def interval(found: Interval | None, digits: int = 2) -> str:
    """Return ``[low, high]``, or a dash."""
    return NONE if found is None else f"[{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _head(summary: Summary) -> Iterator[str]:
    yield f"# {summary.study}"
    yield ""
    yield (
        f"{summary.model}, vLLM {summary.vllm or NONE}, {summary.machine}; {summary.prompts} prompts, "
        f"at most {summary.max_tokens} tokens an answer."
    )
    yield ""
    for banner in summary.banners:
        yield f"> **Note.** {' '.join(banner.split())}"
        yield ">"
    if summary.banners:
        yield ""


def _overview(summary: Summary) -> list[str]:
    names = _workload_names(summary)
    rows = [
        [
            control.config,
            f"itself, {control.starts} starts" if control.starts > 1 else "itself, 1 start: no control",
            *([control.agrees, control.disagrees] if control.starts > 1 else [NONE, NONE]),
            NONE,
            interval(control.agree_rate),
            *[NONE] * (len(names) + 1),
            *_room(summary.config(control.config)),
            NONE,
        ]
        for control in summary.controls
    ]
    for pair in summary.pairs:
        count = next((c for c in pair.bytes if c.workload == ALL), None)
        by = {r.workload: r for r in pair.ratios}
        counts = count.counts if count else {}
        ratios = [by.get(name) for name in names]
        rows.append(
            [
                pair.candidate,
                pair.reference,
                counts.get("same", NONE),
                sum(n for verdict, n in counts.items() if verdict.startswith("differs")) if count else NONE,
                counts.get("intermittent", NONE),
                interval(count.same_rate if count else None),
                *(_decode_ratio(ratio) for ratio in ratios),
                " / ".join(number(r.ttft.geometric_mean if r and r.ttft else None, 2) for r in ratios) or NONE,
                *_room(summary.config(pair.candidate)),
                number(pair.aggregate_ratio, 2),
            ]
        )
    header = ["config", "against", "same", "differs", "intermittent", "same, interval", *(f"{n} ×" for n in names)]
    return section(
        "At a glance",
        table([*header, "TTFT ×", "KV pool tokens", "graphs GiB", "concurrent tok/s", "concurrent ×"], rows),
        "Same, differs and intermittent are prompts, over all workloads; a reference's row is its control: whether its "
        f"own starts agree. × is a ratio to the reference: decode rates with their t interval at {LEVEL:.0%}, TTFT by "
        "workload in the same order (above 1: later). †: called neither speed-up nor slow-down, see the table of "
        "speed-ups. Each is explained below.",
    )


def _decode_ratio(ratio: Ratio | None) -> str:
    """Return a paired ratio with its interval, marked where it is called neither speed-up nor slow-down."""
    if ratio is None or ratio.decode is None:
        return NONE
    found = f"{number(ratio.decode.geometric_mean, 2)} {interval(ratio.decode.t_interval)}"
    return found if ratio.called in ("faster", "slower") else f"{found} †"


def _room(config: ConfigResult) -> list[str]:
    """Return a config's KV pool, its graphs and its concurrent throughput; several values are several starts."""
    memory = config.memory
    return [
        " / ".join(f"{tokens:,}" for tokens in memory.kv_cache_tokens) or NONE,
        " / ".join(f"{size / 2**30:.2f}" for size in memory.graph_bytes) or NONE,
        " / ".join(number(leg.aggregate_tok_s) for leg in config.concurrent) or NONE,
    ]


def _runs(summary: Summary) -> list[str]:
    return section(
        "Runs",
        table(
            ["run", "config", "status", "sequential answered", "concurrent answered", "server starts"],
            [(r.label, r.config, r.status, of(r.sequential), of(r.concurrent), r.starts) for r in summary.runs],
        ),
    )


def _workload_names(summary: Summary) -> list[str]:
    return list(dict.fromkeys(s.workload for c in summary.configs for s in c.speed))


def _speed(summary: Summary) -> list[str]:
    names = _workload_names(summary)
    rows = []
    for config in summary.configs:
        by = {s.workload: s for s in config.speed}
        cells = [config.name, str(len(config.labels))]
        for name in names:
            s = by.get(name)
            cells.append(NONE if s is None else f"{number(s.decode_tok_s)} ({s.timed}/{s.prompts})")
            cells.append(
                NONE
                if s is None
                else f"{number(None if s.ttft_s is None else 1000 * s.ttft_s)} ({s.answered}/{s.prompts})"
            )
        spreads = [s.spread_median for s in config.speed if s.spread_median is not None]
        largest = [s.spread_max for s in config.speed if s.spread_max is not None]
        cells += [percent(max(spreads, default=None)), percent(max(largest, default=None))]
        rows.append(cells)
    header = ["config", "runs"]
    for name in names:
        header += [f"{name} tok/s", f"{name} TTFT ms"]
    return section(
        "Speed, one request at a time",
        table([*header, "spread, median", "spread, largest"], rows),
        "Medians over prompts; in brackets the prompts behind a figure, of how many. A prompt's value is the geometric "
        "mean over the runs; a prompt with a failed request counts in none. Decode tok/s = (N − k1) / (t_finish − "
        "t_first), not for answers under 32 tokens; TTFT = t_first − t_sent. Spread = max / min − 1 of a prompt's "
        "decode rate from run to run: the largest over the workloads of its median, and the largest of all.",
    )


def _ratios(summary: Summary) -> list[str]:
    rows = []
    for pair in summary.pairs:
        shares = summary.config(pair.candidate).acceptance
        for r in pair.ratios:
            d, t = r.decode, r.ttft
            rows.append(
                [
                    pair.candidate,
                    pair.reference,
                    r.workload,
                    f"{d.n if d else 0}/{r.prompts}",
                    number(d.ratio_of_medians if d else None, 2),
                    number(d.geometric_mean if d else None, 2),
                    interval(d.t_interval if d else None),
                    interval(d.bootstrap_interval if d else None),
                    number(r.drift, 2),
                    r.effect,
                    f"{number(t.geometric_mean if t else None, 2)} {interval(t.t_interval if t else None)}",
                    percent(shares[r.workload].rate),
                    number(shares[r.workload].tokens_per_step, 2),
                ]
            )
    header = ["config", "against", "workload", "prompts", "ratio of medians", "paired ratio", "t interval", "bootstrap"]
    return section(
        "Speed-up",
        table([*header, "drift", "called", "TTFT ratio", "acceptance", "tokens per step"], rows),
        f"Decode tok/s of the config over that of the reference. Paired ratio = geometric mean over prompts; intervals "
        f"at {LEVEL:.0%} over prompts: Student's t on the logs, and the percentiles of {RESAMPLES} seeded resamples. "
        "Drift = the largest paired ratio between two server starts of either config: with no flag changed, the speed "
        "moves by so much, and a smaller effect is not the flag's, nor any where no drift was measured. No clear "
        "change: the t interval includes 1. A TTFT ratio above 1 is a later first token.",
    )


def _control(summary: Summary) -> list[str]:
    return section(
        "Control",
        table(
            ["config", "server starts", "agrees", "disagrees", "no control", "agreement", "disagreeing prompts"],
            [
                [
                    c.config,
                    c.starts,
                    f"{c.agrees}/{c.agrees + c.disagrees + c.none}",
                    c.disagrees,
                    c.none,
                    interval(c.agree_rate),
                    ", ".join(c.disagreeing) or NONE,
                ]
                for c in summary.controls
            ],
        ),
        "Whether a reference gives a prompt the same bytes from one server start to another. Agreement: Wilson "
        f"interval at {LEVEL:.0%} over the prompts that have a control.",
    )


def _bytes(summary: Summary) -> list[str]:
    rows = [
        [pair.candidate, pair.reference, *_byte_cells(count), interval(count.same_rate)]
        for pair in summary.pairs
        for count in pair.bytes
    ]
    header = ["config", "against", *_BYTE_HEADER, "same, interval"]
    return section("Same bytes", table(header, rows), _BYTE_NOTE)


_BYTE_HEADER = ["workload", "judged", *VERDICTS]
_BYTE_NOTE = (
    "Same: every answer of both sides has the same UTF-8. Differs: each side agrees with itself and they differ. "
    "Without a second server start of the reference a difference has no control. Not attributable: the reference "
    "disagrees with itself. Intermittent: the config does. Missing: a request of either side failed. Interval: Wilson, "
    "over the judged prompts."
)


def _byte_cells(count: ByteCount) -> list[object]:
    return [count.workload, f"{count.judged}/{count.prompts}", *count.counts.values()]


def _divergences(summary: Summary) -> list[str]:
    rows = [
        [pair.candidate, pair.reference, *_divergence(v)] for pair in summary.pairs for v in pair.verdicts if _parts(v)
    ]
    return section("Where answers part", table(["config", "against", *_DIVERGENCE_HEADER], rows), _DIVERGENCE_NOTE)


_DIVERGENCE_HEADER = [
    "prompt",
    "verdict",
    "class",
    "part",
    "character",
    "byte",
    "token",
    "reference's starts",
    "config's starts",
]
_DIVERGENCE_NOTE = (
    "First differing code point, where it starts in the UTF-8, and first differing token. Length: one answer is a "
    "strict prefix of the other."
)


def _parts(verdict: PromptVerdict) -> bool:
    return verdict.verdict != "same" or verdict.comparison.cls != "same"


def _divergence(verdict: PromptVerdict) -> list[str]:
    c = verdict.comparison
    where = [NONE if at is None else str(at) for at in (c.char_index, c.byte_offset, c.token_index)]
    return [verdict.id, verdict.verdict, c.cls, c.part or NONE, *where, verdict.control, verdict.repeat]


def comparison(found: RecordComparison) -> str:
    """Return one comparison of records as text: counts, then every prompt whose answers part, with both contexts."""
    counts = ", ".join(f"{verdict} {n}" for verdict, n in found.counts.items() if n)
    starts = f"{found.baseline_starts} server start{'' if found.baseline_starts == 1 else 's'}"
    sides = f"{', '.join(found.candidate)} against {', '.join(found.baseline)} ({starts})"
    lines = [
        f"{sides}: {found.judged}/{len(found.prompts)} prompts judged: {counts}",
        *[f"not proved to be equal: {field}" for field in found.unproved],
        "",
        *table(_DIVERGENCE_HEADER, [_divergence(v) for v in found.prompts if _parts(v)]),
    ]
    lines += _contexts(found.prompts)
    return "\n".join(lines).rstrip("\n") + "\n"


def _contexts(verdicts: Iterable[PromptVerdict]) -> Iterator[str]:
    """Yield, for every prompt whose answers part, the text around that place in both, as Python writes it."""
    for v in verdicts:
        if v.comparison.context_a is not None:
            yield from (v.id, f"  - {v.comparison.context_a!r}", f"  + {v.comparison.context_b!r}")


def determinism(summary: Summary) -> str:
    """Return the determinism test as Markdown: the control, each config's verdicts, and both texts where they part."""
    lines = [*_control(summary), *_bytes(summary), *_divergences(summary)]
    for pair in summary.pairs:
        contexts = list(_contexts(pair.verdicts))
        if contexts:
            lines += [f"### {pair.candidate} (+) against {pair.reference} (-)", "", "```", *contexts, "```", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def divergence(found: Explained, spell: Callable[[int], str]) -> str:
    """Return why a run's answers part from another's as Markdown: the yardstick, the margins, and each verdict.

    Parameters
    ----------
    found : Explained
    spell : callable
        Returns a token's text.
    """
    e = found.found
    said = ", ".join(f"{verdict} {n}" for verdict, n in e.counts.items() if n) or "none"
    lines = [
        f"{found.candidate} against {found.reference} in {found.study}: {len(e.divergences)} answers part: {said}",
        "",
        *section("How far gaps move", table(_MOVES_HEADER, _moves(found)), _MOVES_NOTE),
        *section("Margins", table(_MARGINS_HEADER, [_margins(w) for w in e.workloads]), _MARGINS_NOTE),
        *section("Where answers part", table(_WHY_HEADER, [_why(d, spell) for d in e.divergences]), _WHY_NOTE),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


_MOVES_HEADER = [
    "against the reference",
    "gaps",
    "unmoved",
    "median",
    "99th percentile",
    "largest",
    "answers that part",
]
_MOVES_NOTE = (
    "A gap is the score of a token less that of its runner-up, at the same place after the same tokens. The 99th "
    "percentile of the copies is the yardstick for what rounding does."
)
_MARGINS_HEADER = ["workload", "tokens", "exact ties", "within the yardstick", "5th percentile", "quartile", "median"]
_MARGINS_HEADER += ["prompts", "part", "expected from rounding", "expected from this config"]
_MARGINS_NOTE = (
    "Expected: the sum over the prompts of 1 - prod(1 - p), p being the chance that a move of that kind turns a token "
    "over; it assumes moves that depend neither on the margin nor on one another."
)
_WHY_HEADER = [
    "prompt",
    "token",
    "reference's",
    "config's",
    "verdict",
    "margin",
    "the other way",
    "moved by",
    "here up to",
]
_WHY_HEADER += ["rank", "step"]
_WHY_NOTE = (
    "Margin: how much the reference preferred its token to the config's; margin there: how much the config preferred "
    "its own; move: their sum. Usual move: what the config moves gaps by at other places (99th percentile). Rank: "
    "share of the workload's tokens that won by no more. Step: distance between neighbouring scores of that size. "
    "≥: at least, for the other token is not among the candidates."
)


def _moves(found: Explained) -> list[list[str]]:
    e = found.found
    copies = f"{found.reference_probe.copies} copies at once"
    rows = ((copies, e.yardstick), ("another server start", found.launches), (found.candidate, e.config))
    return [
        [
            name,
            str(len(moves.values)),
            percent(moves.still),
            *(number(moves.quantile(q), 3) for q in (50, YARDSTICK_QUANTILE, 100)),
            of((moves.parted, moves.answers)),
        ]
        for name, moves in rows
        if moves is not None
    ]


def _margins(w: WorkloadMargins) -> list[str]:
    n = len(w.margins)
    return [
        w.workload,
        str(n),
        percent(w.ties / n),
        percent(None if w.within is None else w.within / n),
        *(number(percentile(w.margins, q), 3) for q in (5, 25, 50)),
        str(w.prompts),
        str(w.parted),
        number(w.expected, 1),
        number(w.expected_config, 1),
    ]


def _why(d: Divergence, spell: Callable[[int], str]) -> list[str]:
    tokens = (NONE if token is None else repr(spell(token)) for token in (d.token_a, d.token_b))
    gaps = (
        NONE if gap is None else f"{'≥ ' if gap.bound else ''}{gap.value:.3f}" for gap in (d.ours, d.theirs, d.move)
    )
    return [d.id, str(d.at), *tokens, d.verdict, *gaps, number(d.limit, 3), percent(d.rank), number(d.step, 4)]


def _acceptance(summary: Summary) -> list[str]:
    rows = []
    for config in summary.configs:
        for workload, a in config.acceptance.items():
            if a.n:
                positions = NONE if a.per_position is None else " ".join(f"{p:.2f}" for p in a.per_position)
                rows.append(
                    [
                        config.name,
                        workload,
                        a.n,
                        number(a.draft_tokens, 0),
                        number(a.accepted_tokens, 0),
                        percent(a.rate),
                        number(a.mean_length, 2),
                        number(a.tokens_per_step, 2),
                        number(a.overrun, 0),
                        positions,
                    ]
                )
    header = [
        "config",
        "workload",
        "answers",
        "drafted",
        "accepted",
        "rate",
        "mean length",
        "tokens per step",
        "overrun",
    ]
    return section(
        "Acceptance",
        table([*header, "per position"], rows),
        "Rate = accepted / drafted tokens. Mean acceptance length = 1 + accepted / drafts. Tokens per step = N / "
        "chunks, steps without a draft included. Overrun = steps + accepted − N: accepted beyond the end of the "
        "answer. Per position: accepted per draft.",
    )


def _step_costs(summary: Summary) -> list[str]:
    if not summary.forecasts:
        return []
    rows = []
    for r in summary.steps:
        kinds = (r.none, r.part, r.full)
        cells = [NONE if t.mean_s is None else f"{number(1000 * t.mean_s, 2)} ({number(t.steps, 0)})" for t in kinds]
        relative = [None if t.mean_s is None or r.baseline_s is None else t.mean_s / r.baseline_s for t in kinds]
        rows.append([r.label, r.config, NONE if r.k is None else r.k, *cells, *(number(x, 2) for x in relative)])
    header = ["run", "config", "k", "nothing drafted, ms", "fewer than k, ms", "k drafted, ms"]
    errors = [
        [
            f.label,
            f.costs,
            len(f.predictions),
            *_errors(f.by_kind),
            *_errors(f.one_cost),
            *_errors(f.run_to_run),
            of(f.within),
        ]
        for f in summary.forecasts
    ]
    off = ["median error", "worst", "one cost: median", "worst", "other run's speed: median", "worst"]
    return [
        *section(
            "What a step costs",
            table([*header, "nothing, in baseline steps", "fewer", "k"], rows),
            "Total time between chunks over the steps in it, the prompt's own step left out; in brackets the steps. "
            "The replay of the answer says what each step drafted, k being the most. A run that does not speculate "
            "drafts nothing, and its steps give a token each. Baseline steps: of the config that it is compared with.",
        ),
        *table(["predicted run", "by the step cost of", "prompts", *off, "within the interval"], errors),
        _FORECAST_NOTE,
        "",
    ]


_FORECAST_NOTE = (
    "Predicted decode tok/s = (N − 1) / (sum over the steps after the prompt's of what their kind costs), from the "
    "answer and the step cost of the other prompts; error = |predicted / measured − 1|. One cost: all steps cost their "
    "mean. Other run's speed: the prompt's own speed in the other run as the prediction, for the same steps. What that "
    "misses is how far the machine's speed went from run to run, which no cost of steps knows. Interval: where the "
    f"other prompts' errors expect {LEVEL:.0%} of prompts."
)


def _errors(found: Errors | None) -> tuple[str, str]:
    return (NONE, NONE) if found is None else (percent(found.median), percent(found.worst))


def _predictions(summary: Summary) -> list[str]:
    rows = []
    for config in summary.configs:
        forecasts = summary.own_forecasts(config.name)
        for key in dict.fromkeys(p.id for f in forecasts for p in f.predictions):
            found = [p for f in forecasts for p in f.predictions if p.id == key]
            rows.append(
                [
                    config.name,
                    key,
                    _several(number(p.tokens_per_step, 2) for p in found),
                    _several(number(p.step_cost, 2) for p in found),
                    _several(number(p.speed_up, 2) for p in found),
                    _several(number(p.measured_speed_up, 2) for p in found),
                    _several(f"{number(p.tok_s, 0)} {interval(p.interval, 0)}" for p in found),
                    _several(number(p.measured_tok_s, 0) for p in found),
                    _several(f"{round(100 * p.error):+d} %" for p in found),
                    _several({True: "yes", False: "no", None: NONE}[p.same_answer] for p in found),
                ]
            )
    header = ["config", "prompt", "tokens per step", "step cost", "predicted speed-up", "measured", "predicted tok/s"]
    return section(
        "Predicted against measured",
        table([*header, "measured tok/s", "error", "baseline's answer"], rows),
        "Predicted speed-up = tokens per step / step cost. Tokens per step = (N − 1) / (steps − 1), without the "
        "prompt's own. Step cost: the mean over its steps of what their kind costs in the run's other prompts, in the "
        "time that the baseline takes for a token of this answer. Several values are those of several runs.",
    )


def tuning(sweep: Sweep) -> str:
    """Return the best settings of a sweep by workload and over all, as a table."""
    rows = []
    for workload in (*sweep.workloads, None):
        best = sweep.best(workload)
        rows.append(
            [
                workload or ALL,
                best.n,
                *best.settings,
                number(best.speed_up, 2),
                number(best.article, 2),
                number(best.gain, 2),
                number(best.held_out, 2),
            ]
        )
    header = ["workload", "prompts", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "speed-up"]
    header += ["article's settings", "gain", "gain on unseen prompts"]
    note = (
        "Predicted speed-up over the baseline, geometric mean over prompts; gain: over the article's "
        f"({', '.join(str(value) for value in ARTICLE)}). On unseen prompts: each with the settings that are best for "
        "the others."
    )
    return "\n".join([*table(header, rows), note]) + "\n"


def _several(values: Iterable[str]) -> str:
    """Put the values of several runs into one cell; equal ones once."""
    found = list(values)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _energy(summary: Summary) -> list[str]:
    rows = []
    for config in summary.configs:
        legs = [(f"{c.concurrency} in flight ({c.label})", c.energy) for c in config.concurrent if c.energy]
        for name, e in (*config.energy.items(), *legs):
            rows.append(
                [
                    config.name,
                    name,
                    of((e.measured, e.requests)),
                    number(e.joules_per_token, 3),
                    number(e.power_w, 0),
                    number(e.sm_clock_mhz, 0),
                    percent(e.gpu_util, 0),
                    number(e.temperature_c, 0),
                    NONE if e.throttle_reasons is None else ", ".join(e.throttle_reasons) or "none",
                ]
            )
    header = ["config", "workload", "requests", "J per token", "power W", "SM clock MHz", "utilisation", "highest °C"]
    return section(
        "Energy and clocks",
        table([*header, "throttled by"], rows),
        "J per token = sum over requests of the integral of the card's power from send to finish (trapezoids), over "
        "the sum of N; in flight together: from first send to last finish. Idle power is part of it, not subtracted. "
        "Power, SM clock and utilisation are means over the same time. Requests: with power from end to end, of those "
        "answered.",
    )


def _concurrent(summary: Summary) -> list[str]:
    rows = [
        [
            run(c),
            c.concurrency,
            of(c.answered),
            number(c.aggregate_tok_s),
            number(c.makespan_s),
            *(number(None if t is None else 1000 * t, 0) for t in (c.ttft_p50_s, c.ttft_p90_s, c.ttft_p99_s)),
            number(c.preemptions, 0),
            percent(c.peak_kv_usage),
            number(None if c.client_lag_p99_s is None else 1000 * c.client_lag_p99_s),
            of(c.copies_agree),
            of(c.same_as_sequential),
        ]
        for config in summary.configs
        for c in config.concurrent
    ]
    header = [
        "run",
        "in flight",
        "answered",
        "aggregate tok/s",
        "makespan s",
        "TTFT p50 ms",
        "p90",
        "p99",
        "preemptions",
    ]
    pairs = [p for p in summary.pairs if p.concurrent_bytes is not None]
    return [
        *section(
            "Concurrent leg",
            table([*header, "peak KV usage", "client lag p99 ms", "copies agree", "as sequential"], rows),
            "Aggregate tok/s = sum of N over successful requests / (last finish − first send). Copies agree: prompts "
            "whose copies all have the same bytes. As sequential: copies with the bytes of the run's own sequential "
            "answer.",
        ),
        *section(
            "Same bytes in the concurrent leg, copy by copy",
            table(
                ["config", "against", "aggregate ratio", *_BYTE_HEADER],
                [_concurrent_pair(p, p.concurrent_bytes) for p in pairs if p.concurrent_bytes is not None],
            ),
            "Which requests share a batch depends on timing: a difference here says less about the config.",
        ),
    ]


def _concurrent_pair(pair: Pair, count: ByteCount) -> list[object]:
    return [pair.candidate, pair.reference, number(pair.aggregate_ratio, 2), *_byte_cells(count)]


def _memory(summary: Summary) -> list[str]:
    def several(values: Iterable[object]) -> str:
        return " / ".join(str(v) for v in values) or NONE

    def gib(values: Iterable[int]) -> str:
        return several(f"{v / 2**30:.2f}" for v in values)

    rows = []
    for config in summary.configs:
        m = config.memory
        rows.append(
            [
                config.name,
                several(f"{v:,}" for v in m.kv_cache_tokens),
                gib(m.kv_cache_bytes),
                several(f"{v:.2f}" for v in m.max_concurrency),
                gib(m.graph_bytes),
                several(m.attention_backend),
                several({True: "on", False: "off"}[v] for v in m.async_scheduling),
                several({True: "on", False: "off"}[v] for v in m.prefix_caching),
            ]
        )
    header = ["config", "KV pool tokens", "KV pool GiB", "full-length requests", "graphs GiB", "attention backend"]
    return section(
        "Memory and kernels",
        table([*header, "async scheduling", "prefix caching"], rows),
        "As the server told it; several values are those of several server starts, a dash was not told.",
    )


def _validity(summary: Summary) -> list[str]:
    rows = [
        [c.name, v.workload, v.answers, f"{v.valid}/{v.checked}" if v.checked else NONE, v.loops, v.cut_off]
        for c in summary.configs
        for v in c.validity
        if v.answers
    ]
    return section(
        "What the answers are worth",
        table(["config", "workload", "answers", "valid", "loops", "cut off"], rows),
        "Valid: the asked edit and nothing else, or quotations that stand in the passage. Loops: ends in a repetition. "
        "Cut off: reached the token limit. Over all runs.",
    )


def _differences(summary: Summary) -> list[str]:
    rows = [
        [p.candidate, p.reference, d.kind, d.name, *(NONE if v is None else v or "set" for v in (d.a, d.b))]
        for p in summary.pairs
        for d in p.differences
    ]
    return section(
        "What else differs",
        table(["config", "against", "kind", "name", "reference has", "config has"], rows),
        "Between the first runs of both: command line, environment, versions and machine; port and served name aside.",
    )


def _passes(summary: Summary) -> list[str]:
    rows = []
    for p in summary.passes:
        cells: list[object] = [
            run(p),
            p.number,
            p.kind,
            of(p.answered),
            number(p.makespan_s),
            number(p.host_load, 2),
            percent(p.host_steal),
            number(p.client_cpu_share, 2),
            number(None if p.client_lag_p99_s is None else 1000 * p.client_lag_p99_s),
        ]
        for identity in p.identities[:3]:
            word = {True: "holds", False: "BROKEN", None: "not checked"}[identity.holds]
            cells.append(f"{word}: {identity.note}" if identity.note else word)
        rows.append([*cells, p.voided or NONE])
    header = [
        "run",
        "pass",
        "kind",
        "answered",
        "makespan s",
        "foreign load",
        "steal",
        "client CPU",
        "client lag p99 ms",
    ]
    return section(
        "Passes and identity checks",
        table([*header, "sum of N", "sum of prompt tokens", "nothing cached", "voided"], rows),
        "Sums over the requests against the server's own counters. Foreign load: CPU cores used by other processes.",
        *([_CLIENT_BOUND] if any(p.client_bound for p in summary.passes) else []),
    )


_CLIENT_BOUND = (
    f"Client-bound: the client used over {CLIENT_BUSY} of a core, or its loop was over {1000 * CLIENT_LATE_S:g} ms "
    "late one time in a hundred: speeds may be its own, not the server's."
)


def _timeline(summary: Summary) -> list[str]:
    starts: dict[tuple[str, int], list[Moment]] = {}
    for moment in summary.timeline:
        starts.setdefault((moment.label, moment.launch), []).append(moment)
    rows = []
    for (label, launch), moments in starts.items():
        events = [f"{m.event} {number(m.t_s, 0)}" for m in moments[1:]]
        rows.append([label, launch, moments[0].at or NONE, ", ".join(events)])
    return section(
        "Timeline",
        table(["run", "server start", "at (UTC)", "then, in seconds from there"], rows),
    )
