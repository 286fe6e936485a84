"""What a decode step is made of, what more rows cost it, and what that makes of speculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebytes import exhibit, profile, prose, roofline, speculation, stats
from samebytes.bookdata import Measured
from samebytes.exhibit import Origin
from samebytes.findings import ALL
from samebytes.pages import common, wall
from samebytes.profile import Profile
from samebytes.prose import Html, code, count, given, html, join, number, paragraph, percent, times
from samebytes.published import Published

TB, MS = wall.TB, 1000

IDLE_COLOUR = "#8c8c8c"


def profiles(found: Sequence[Measured]) -> list[tuple[Measured, list[Profile]]]:
    """Return the studies that have profiles, each with them: the baseline's first."""
    result = []
    for study in found:
        here = profile.of_study(study.folder)
        if here:
            result.append((study, sorted(here.values(), key=lambda p: (p.config.name != "baseline", p.config.name))))
    return result


def no_profile() -> Html:
    """Return what stands where no step was profiled yet."""
    return paragraph("No decode step was profiled yet. To do it: {}.", code("samebytes profile STUDY CONFIG"))


def origin(found: Sequence[Profile]) -> Origin:
    """Return where figures of profiles come from."""
    return exhibit.together(
        [
            Origin(
                records=(_file(each),),
                machine=each.machine.gpu or each.machine.cpu,
                vllm=each.versions.vllm,
                date=each.launch.started[:10] if each.launch else None,
                commit=each.versions.git_commit and each.versions.git_commit[:10],
                command=f"samebytes profile {each.study} {each.config.name}",
            )
            for each in found
        ],
        command=f"samebytes profile {found[0].study} {' '.join(each.config.name for each in found)} && samebytes book",
    )


def _file(found: Profile) -> str:
    return f"results/{found.study}/profiles/{found.config.name}.json"


def breakdown(study: Measured, found: Sequence[Profile]) -> Html:
    """Return what a decode step's time goes into, by config: as a chart, and its shares as a table."""
    rows = [row for each in found for row in parts(each)]
    if not rows:
        return Html()
    return join([_breakdown_chart(study, found, rows), _breakdown_table(study, found)])


IDLE, REST = "nothing runs", "everything else"
PARTS = ("packed matrices", "matrices", "attention", "norms, rotary, activation", REST, IDLE)
"""What a step's time is split into: kinds of kernels, see `samebytes.roofline.kind`."""


def parts(found: Profile) -> list[dict[str, Any]]:
    """Return a step's time by `PARTS`, in milliseconds: kernels as profiled, gaps as `idle`. Empty without a trace."""
    step = found.trace
    if step is None:
        return []
    seconds = dict.fromkeys(PARTS, 0.0)
    for kernel in step.kernels:
        kind = roofline.kind(kernel.name)
        seconds[kind if kind in PARTS else REST] += kernel.seconds
    seconds[REST] += step.others_s
    waiting = idle(found)
    seconds[IDLE] = (1 - step.busy) * step.step_s if waiting is None else waiting
    return [{"config": found.config.name, "part": part, "ms": seconds[part] * MS} for part in PARTS if seconds[part]]


def _breakdown_chart(study: Measured, found: Sequence[Profile], rows: Sequence[Mapping[str, Any]]) -> Html:
    import altair

    from samebytes import charts

    colours = altair.Scale(domain=list(PARTS), range=[*charts.PALETTE, IDLE_COLOUR])
    drawn = (
        altair.Chart(altair.InlineData(values=list(rows)))
        .mark_bar()
        .encode(
            y=altair.Y("config:N", title=None, sort=None),
            x=altair.X("ms:Q", title="a decode step, ms"),
            color=altair.Color("part:N", title=None, scale=colours, legend=altair.Legend(columns=3, labelLimit=320)),
            order=altair.Order("order:Q"),
            tooltip=[altair.Tooltip("config:N"), altair.Tooltip("part:N"), altair.Tooltip("ms:Q", format=".3f")],
        )
        .transform_calculate(order=f"indexof({list(PARTS)!r}, datum.part)")
    )
    said = [
        html(
            "{}: {}",
            code(each.config.name),
            join(
                (html("{} {}", r["part"], number(r["ms"], 2, "ms", source=_file(each))) for r in parts(each)),
                ", ",
            ),
        )
        for each in found
        if each.trace
    ]
    return exhibit.chart(
        f"wall-step-{study.name}",
        altair.layer(drawn).properties(height=40 + 34 * len(said)),
        html("What a decode step’s time goes into. {}.", join(said, "; ")),
        html(
            "{}: one request’s decode step, time under the engine’s profiler by what the kernels’ names say they do, "
            "and what is left of a step without the profiler.",
            given(study.title, source=study.name),
        ),
        origin(found),
        data=list(rows),
    )


def reading(found: Profile) -> dict[str, tuple[float, float]]:
    """Return what a profiled step's matrices read and how long that takes, by kind: bytes and seconds.

    Empty without a trace, and for a model of unknown shape.
    """
    shape = roofline.SHAPES.get(found.model.id)
    by = {row["part"]: row["ms"] / MS for row in parts(found)}
    if shape is None or "matrices" not in by:
        return {}
    if shape.bits is None:
        return {"matrices": (shape.read_bytes, by["matrices"])}
    if "packed matrices" not in by:
        return {}
    return {
        "packed matrices": (shape.matrix_bytes, by["packed matrices"]),
        "matrices": (2 * shape.embedding_params, by["matrices"]),
    }


def _breakdown_table(study: Measured, found: Sequence[Profile]) -> Html:
    rows, data = [], []
    for each in found:
        step, copy = each.trace, each.copy_
        source = _file(each)
        alone = each.step_s().get(1)
        missing = each.missing.get("trace", "no trace")
        kernel = each.launch.linear_kernel if each.launch else None
        rates = {kind: size / seconds for kind, (size, seconds) in reading(each).items()}
        measured = {
            "step_s": alone,
            "profiled_step_s": step.step_s if step else None,
            "busy": step.busy if step else None,
            "packed_bytes_per_s": rates.get("packed matrices"),
            "matrices_bytes_per_s": rates.get("matrices"),
            "copy_bytes_per_s": copy.copy_bytes_per_s if copy else None,
            "sum_bytes_per_s": copy.read_bytes_per_s if copy else None,
        }
        rows.append(
            [
                code(each.config.name),
                given(kernel, source=source, missing="not told by the log"),
                number(alone, 2, source=f"without the profiler: {source}", scale=MS),
                number(measured["profiled_step_s"], 2, source=source, missing=missing, scale=MS),
                percent(measured["busy"], 0, source=source, missing=missing),
                number(measured["packed_bytes_per_s"], 2, source=source, missing="no packed matrices", scale=TB),
                number(measured["matrices_bytes_per_s"], 2, source=source, missing=missing, scale=TB),
                number(measured["copy_bytes_per_s"], 2, source=f"torch: {source}", scale=TB),
                number(measured["sum_bytes_per_s"], 2, source=f"torch: {source}", scale=TB),
            ]
        )
        data.append({"config": each.config.name, "linear_kernel": kernel, **measured})
    return exhibit.table(
        f"wall-kernels-{study.name}",
        html(
            "{}: a decode step of one request, how long the device works in it, and at what rate its kernels read the "
            "weights, packed to a few bits and plain. Beside it what a plain copy and a plain sum reach there.",
            given(study.title, source=study.name),
        ),
        [
            "config",
            "kernel for packed weights",
            "step, ms",
            "step profiled, ms",
            "device busy",
            "packed, TB/s",
            "plain, TB/s",
            "copy, TB/s",
            "sum, TB/s",
        ],
        rows,
        origin(found),
        data=data,
        words=(1,),
    )


def idle(found: Profile) -> float | None:
    """Return for how many seconds of a step nothing runs; None where the step or its kernels were not timed.

    The step is the one without the profiler: that makes the host slower, and with it the gaps between kernels longer,
    while a kernel takes what it takes.
    """
    alone = found.step_s().get(1)
    return None if alone is None or found.trace is None else max(alone - found.trace.busy_s, 0.0)


def reason(study: Measured, found: Sequence[Profile]) -> Html:
    """Return in words what keeps a step from the bound: reading below full rate, other kernels, idle time."""
    base = next((each for each in found if each.trace is not None), None)
    bandwidth, _ = wall.bandwidth(study)
    read = reading(base) if base else {}
    if base is None or base.trace is None or bandwidth is None or not read:
        return Html()
    source = _file(base)
    alone = base.step_s().get(1)
    matrices = sum(seconds for _, seconds in read.values())
    total = sum(size for size, _ in read.values())
    said = paragraph(
        "{}, {}: reading the weights at full bandwidth would take {}. A step takes {}, which makes {}. The kernels "
        "that read the weights take {} of it: {}. Everything else that runs takes {}; for {} nothing runs.",
        given(study.title, source=study.name),
        code(base.config.name),
        number(total / bandwidth, 2, "ms", source=f"weights read / bandwidth: {source}", scale=MS),
        number(alone, 2, "ms", source=f"without the profiler: {source}", scale=MS),
        number(1 / alone if alone else None, 1, "tok/s", source=f"1 / step without the profiler: {source}"),
        number(matrices, 2, "ms", source=source, scale=MS),
        common.listed(
            [
                html(
                    "{} of the bandwidth{}",
                    percent(size / seconds / bandwidth, 0, source=f"bytes / time / bandwidth: {source}"),
                    f" for {READ[kind]}" if len(read) > 1 else "",
                )
                for kind, (size, seconds) in read.items()
            ]
        ),
        number(base.trace.busy_s - matrices, 2, "ms", source=source, scale=MS),
        number(idle(base), 2, "ms", source=f"step without the profiler, less the kernels: {source}", scale=MS),
    )
    return join([said, prose.bullets([_against(base, each) for each in found if each is not base])])


def hints(found: Sequence[tuple[Measured, list[Profile]]]) -> dict[str, Html]:
    """Return in a few words, by study, how fast the baseline's kernels read the weights, and what more rows cost."""
    result = {}
    for study, several in found:
        base = next((each for each in several if each.config.name == "baseline"), None)
        bandwidth, _ = wall.bandwidth(study)
        read = reading(base) if base else {}
        cost = roofline.step_cost(base.step_s(), ROWS) if base else None
        if base is None or bandwidth is None or cost is None or not read:
            continue
        kind, (size, seconds) = max(read.items(), key=lambda item: item[1][1])
        result[study.name] = html(
            " The kernels that read {} do so at {} of the bandwidth{}; {} rows in one step cost {} a step of one{}.",
            READ[kind] if len(read) > 1 else "the weights",
            percent(size / seconds / bandwidth, 0, source=f"bytes / time / bandwidth: {_file(base)}"),
            _waiting(base),
            count(ROWS, source="samebytes.pages.step.ROWS"),
            times(cost, source=_file(base)),
            _rounds(base, ROWS),
        )
    return result


def _rounds(found: Profile, rows: int) -> Html:
    """Return between what the rounds of a profile put the cost of so many rows, in brackets."""
    rounds = {row.rows: row.step_s for row in found.rows}
    one, many = rounds.get(1), rounds.get(rows)
    if not one or not many:
        return Html()
    ends = (times(value, source=_file(found)) for value in (min(many) / max(one), max(many) / min(one)))
    return html(" (single rounds: {} to {})", *ends)


def _waiting(found: Profile) -> Html:
    """Return for how much of a step nothing runs, where that is much."""
    waiting, alone = idle(found), found.step_s().get(1)
    if waiting is None or alone is None or waiting < MUCH * alone:
        return Html()
    source = f"step without the profiler, less the kernels: {_file(found)}"
    return html(", and for {} of a step nothing runs", percent(waiting / alone, 0, source=source))


MUCH = 0.2
"""From this share of a step up, waiting is told beside reading."""

ROWS = 6
"""Rows that a draft of five tokens makes of one."""

READ = {"packed matrices": "the packed weights", "matrices": "the plain ones"}


def _against(base: Profile, other: Profile) -> Html:
    """Return what another config's step takes."""
    ours, theirs = base.step_s().get(1), other.step_s().get(1)
    ratio = None if ours is None or theirs is None else ours / theirs
    source = f"{_file(base)} over {_file(other)}"
    work = other.trace.busy_s if other.trace else None
    return html(
        "{}: {} a step, {} the speed{}. {}",
        code(other.config.name),
        number(theirs, 2, "ms", source=f"without the profiler: {_file(other)}", scale=MS),
        times(ratio, source=source),
        Html() if work is None else html("; kernels run for {} of it", number(work, 2, "ms", source=source, scale=MS)),
        given(other.config.why, source=f"configs/{other.config.name}.yaml"),
    )


def unprofiled(found: Sequence[Profile]) -> Html:
    """Return which configs that would tell more of a step with packed weights were not profiled."""
    missing = [name for name in TELLING if name not in {each.config.name for each in found}]
    packed = any(each.launch and each.launch.linear_kernel for each in found)
    if not missing or not packed:
        return Html()
    return paragraph("Not profiled, for want of time on the machine: {}.", common.listed([code(n) for n in missing]))


TELLING = ("baseline", "marlin", "eager", "baseline_sync")
"""Configs whose steps differ in one thing each: the kernel, compiled graphs, asynchronous scheduling."""


def kernels(study: Measured, found: Sequence[Profile], most: int = 12) -> Html:
    """Return the kernels of a step by name, the longest first."""
    rows, data = [], []
    for each in found:
        for kernel in (each.trace.kernels if each.trace else [])[:most]:
            source = _file(each)
            rows.append(
                [
                    code(each.config.name),
                    given(kernel.name, source=source),
                    roofline.kind(kernel.name),
                    number(kernel.calls, 0, source=source),
                    number(kernel.seconds, 3, source=source, scale=MS),
                ]
            )
            data.append({"config": each.config.name, "kernel": kernel.name, "calls": kernel.calls, "s": kernel.seconds})
    if not rows:
        return Html()
    shown = exhibit.table(
        f"wall-names-{study.name}",
        html("{}: the longest kernels of a decode step, by name.", given(study.title, source=study.name)),
        ["config", "kernel", "taken for", "calls a step", "ms a step"],
        rows,
        origin(found),
        data=data,
        words=(1, 2),
    )
    return html("<details><summary>Kernels by name</summary>{}</details>", shown)


# -- verification -----------------------------------------------------------------------------------------------------


def rows_table(study: Measured, found: Sequence[Profile]) -> Html:
    """Return what a step costs by rows in flight."""
    sizes = sorted({row.rows for each in found for row in each.rows})
    if not sizes:
        return Html()
    rows, data = [], []
    for each in found:
        times_s = each.step_s()
        source = f"without the profiler: {_file(each)}"
        cells = [
            html(
                "{} <small>{}</small>",
                number(times_s.get(size), 2, source=source, scale=MS),
                times(roofline.step_cost(times_s, size), source=source),
            )
            for size in sizes
        ]
        rows.append([code(each.config.name), *cells])
        data += [
            {"config": each.config.name, "rows": size, "step_s": times_s[size]} for size in sizes if size in times_s
        ]
    heads = [html("{} in flight", count(size, source="samebytes.profile.ROWS")) for size in sizes]
    return exhibit.table(
        f"wall-rows-{study.name}",
        html(
            "{}: milliseconds a decode step by requests in flight, each a row of the step’s batch (the median of {} "
            "rounds); under each, what that costs in steps of one row.",
            given(study.title, source=study.name),
            count(max(len(row.step_s) for each in found for row in each.rows), source="samebytes.profile.ROUNDS"),
        ),
        ["config", *heads],
        rows,
        origin(found),
        data=data,
    )


def published_cost(article: Published) -> tuple[float, float] | None:
    """Return what a speculating step cost on the article's machine, in plain steps: at least and at most.

    A step gives one token at least and one more than it drafts at most. So the cost is at least 1 over the smallest
    speed-up, and at most that many tokens over the largest; the cost is taken to be the same for all workloads.
    """
    speed_ups = [common.value_as_printed(article, f"speedup.{workload}") for workload in common.WORKLOADS]
    known = [value for value in speed_ups if value is not None]
    most = common.value_as_printed(article, "verified_tokens")
    return None if not known or most is None else (1 / min(known), most / max(known))


def published_tokens(article: Published) -> dict[str, tuple[float, float]]:
    """Return the tokens per step behind each published speed-up, at the least and the most of `published_cost`."""
    allowed = published_cost(article)
    found = {}
    for workload in common.WORKLOADS:
        printed = common.value_as_printed(article, f"speedup.{workload}")
        if allowed is not None and printed is not None:
            low, high = (roofline.tokens_per_step(printed, end) for end in allowed)
            found[workload] = (low, high)
    return found


def mean_length(article: Published) -> float | None:
    """Return the tokens per step with a full draft that an article's acceptance rate makes."""
    rate, k = (common.value_as_printed(article, name) for name in ("acceptance", "num_speculative_tokens"))
    return None if rate is None or k is None else 1 + k * rate / 100


@dataclass(frozen=True)
class Cost:
    """What a step that verifies a full draft costs in steps of the baseline; None: not measured.

    Attributes
    ----------
    kernels : float or None
        A step of as many rows, by the baseline's profile: nothing but more rows.
    run : float or None
        A step of the run with n-gram speculation: drafting, and scheduling that is not asynchronous, with it.
    """

    kernels: float | None
    run: float | None


def cost_here(study: Measured, base: Profile, article: Published) -> Cost:
    """Return what verifying the article's drafts costs on a study's machine."""
    most = common.value_as_printed(article, "verified_tokens")
    plain = next((r.none.mean_s for r in speculation.rows(study.records, []) if r.config == "baseline"), None)
    full = next((r.full.mean_s for r in speculation.rows(study.records, []) if r.config == "ngram"), None)
    return Cost(kernels=roofline.step_cost(base.step_s(), int(most or 0)), run=full / plain if full and plain else None)


def transfer_table(study: Measured, base: Profile, name: str, article: Published) -> Html:
    """Return the article's speed-ups beside what its acceptance would give with the step costs measured here."""
    cost = cost_here(study, base, article)
    if cost.kernels is None:
        return Html()
    source = f"{_file(base)}, {study.name} and {article.title}"
    taken: list[tuple[str, Html, tuple[float, float]]] = [
        (common.workload_name(workload), html("{}×", common.as_printed(article, f"speedup.{workload}")), tokens)
        for workload, tokens in published_tokens(article).items()
    ]
    mean = mean_length(article)
    if mean is not None:
        accepted = html("{} % accepted", common.as_printed(article, "acceptance"))
        taken.append(("all, steps with a full draft", accepted, (mean, mean)))
    rows, data = [], []
    for what, printed, tokens in taken:
        here = [None if c is None else tuple(roofline.speed_up(n, c) for n in tokens) for c in (cost.kernels, cost.run)]
        rows.append([what, printed, _range(tokens, source), *(_range(ends, source) for ends in here)])
        row: dict[str, object] = {"workload": what, "tokens_per_step_low": tokens[0], "tokens_per_step_high": tokens[1]}
        for key, ends in zip(("kernels", "run"), here, strict=True):
            row |= {f"speed_up_{key}_low": ends and ends[0], f"speed_up_{key}_high": ends and ends[1]}
        data.append(row)
    return exhibit.table(
        f"wall-transfer-{study.name}",
        html(
            "Published speed-ups, the tokens per step that they took (computed from them, not published), and what "
            "these would give on the machine of “{}”: by the cost of {} rows in one step ({}{}), and by that of a full "
            "draft’s step as n-gram speculation ran there ({}), drafting and synchronous scheduling with it.",
            given(study.title, source=study.name),
            common.as_printed(article, "verified_tokens"),
            times(cost.kernels, source=_file(base)),
            _rounds(base, int(common.value_as_printed(article, "verified_tokens") or 0)),
            times(cost.run, source=f"results/{study.name}", missing="n-gram speculation did not run"),
        ),
        ["workload", "published", "tokens per step there", "speed-up by rows", "speed-up as it runs"],
        rows,
        exhibit.together([exhibit.printed(name, article), origin([base]), exhibit.origin(study)]),
        data=data,
    )


def transfers_here(found: Sequence[tuple[Measured, list[Profile]]], name: str, article: Published) -> Html:
    """Return `transfer_table` of every study's baseline."""
    bases = [(study, each) for study, several in found for each in several if each.config.name == "baseline"]
    return join(transfer_table(study, each, name, article) for study, each in bases)


def _range(ends: tuple[float, ...] | None, source: str) -> Html:
    if ends is None:
        return number(None, source=source)
    return join((number(end, 2, source=source) for end in dict.fromkeys(ends)), " to ")


def article_cost(article: Published) -> Html:
    """Return what the article's own figures say of its step's cost."""
    allowed = published_cost(article)
    if allowed is None:
        return Html()
    return paragraph(
        "The article’s figures bound what a verifying step cost on its card: no step gives less than one token, so its "
        "{}× on prose means a cost of at least {}; none gives more than {}, so its {}× on code edits means at most {}.",
        common.as_printed(article, "speedup.creative"),
        times(allowed[0], source=f"1 / the smallest speed-up: {article.title}"),
        common.as_printed(article, "verified_tokens"),
        common.as_printed(article, "speedup.code_edit"),
        times(allowed[1], source=f"tokens of a full draft / the largest speed-up: {article.title}"),
    )


def ceiling(found: Sequence[Measured]) -> Html:
    """Return what speculation came to where random weights made every draft right: a ceiling, not a result."""
    lines = []
    for study in found:
        pair = common.pair(study, "ngram")
        note = study.note
        if pair is None or note is None:
            continue
        config = study.summary.config("ngram")
        total = config.acceptance.get(ALL)
        ratios = [r.decode.geometric_mean for r in pair.ratios if r.decode is not None]
        if not ratios:
            continue
        source = common.pair_source(study, pair)
        lines.append(
            html(
                "{} ({}): {} of the drafted tokens accepted, {} the baseline’s speed.{}",
                given(study.title, source=study.name),
                given(note, source=study.name),
                percent(total.rate if total else None, 0, source=source),
                times(stats.geometric_mean(ratios), source=f"geometric mean over workloads: {source}"),
                _full_draft(study),
            )
        )
    return prose.bullets(lines)


def _full_draft(study: Measured) -> Html:
    """Return what a step that verifies a full draft took, beside plain ones without and with async scheduling."""
    rows = {row.config: row for row in speculation.rows(study.records, [])}
    steps = [rows["ngram"].full.mean_s if "ngram" in rows else None]
    steps += [rows[name].none.mean_s if name in rows else None for name in ("baseline_sync", "baseline")]
    if steps[0] is None:
        return Html()
    source = f"results/{study.name}: ngram, baseline_sync, baseline"
    return html(
        " A step that verifies a full draft took {}; a plain one {} without asynchronous scheduling and {} with it.",
        *(number(seconds, 2, "ms", source=source, scale=MS) for seconds in steps),
    )


def no_ceiling() -> Html:
    """Return what stands where no study of random weights speculated yet."""
    return paragraph("No study of random weights has run with speculation yet.")
