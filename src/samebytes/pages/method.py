"""How it is measured: what is held equal, what was checked, machines and versions."""

from __future__ import annotations

from collections.abc import Sequence

from samebytes import exhibit, fairness, prose
from samebytes.bookdata import Measured
from samebytes.findings import PassRow
from samebytes.pages import common
from samebytes.prose import Html, code, count, given, html, join, number, of, paragraph, percent
from samebytes.record import Record


def differences(found: Measured) -> Html:
    """Return what a study's configs do not share with ``baseline``; versions of this project aside."""
    rows, data = [], []
    for pair in found.pairs("baseline"):
        source = common.pair_source(found, pair)
        for d in pair.differences:
            if d.name not in fairness.PROJECT:
                sides = [None if side is None else side or "set" for side in (d.a, d.b)]
                shown = (given(side, source=source, missing="not set") for side in sides)
                rows.append([code(pair.candidate), d.kind, code(d.name), *shown])
                data.append(
                    {"config": pair.candidate, "kind": d.kind, "name": d.name, "baseline": sides[0], "own": sides[1]}
                )
    if not rows:
        return Html()
    head = ["config", "kind", "name", "baseline has", "config has"]
    return exhibit.table(
        f"differences-{found.name}",
        html(
            "{}: everything in which a config’s run differs from the baseline’s",
            given(found.title, source=f"studies/{found.name}.yaml"),
        ),
        head,
        rows,
        exhibit.origin(found, "baseline", *dict.fromkeys(row["config"] for row in data if row["config"])),
        data=data,
        words=range(1, len(head)),
    )


def fair(found: Sequence[Measured]) -> Html:
    """Return whether anything but flags and environment differs anywhere."""
    pairs = [(study, pair) for study in found for pair in study.pairs("baseline") if pair.refused is None]
    unfair = [(study, pair, d) for study, pair in pairs for d in pair.differences if not d.fair]
    source = "command line, environment, versions and machine of every record"
    text = paragraph(
        "{} configs are compared with a baseline. In {} of them something other than the config’s own flags and "
        "environment differs.",
        count(len(pairs), source=source),
        count(len({(study.name, pair.candidate) for study, pair, _ in unfair}), source=source),
    )
    return join([text, prose.bullets([_unfair(study, pair.candidate, d.name) for study, pair, d in unfair])])


def _unfair(study: Measured, config: str, name: str) -> Html:
    return html("{} in {}: {}", code(config), code(study.name), code(name))


def conclusion(found: Sequence[Measured]) -> Html:
    """Return whether the passes of all studies can be trusted: sums that agree, passes that count, foreign load."""
    passes = [row for study in found for row in study.summary.passes]
    if not passes:
        return Html()
    held = [identity.holds for row in passes for identity in row.identities if identity.holds is not None]
    loads = [row.host_load for row in passes if row.host_load is not None]
    source = f"every pass of results/{', '.join(study.name for study in found)}"
    return paragraph(
        "{} passes over the prompts were measured in the {} studies that are compared here. Of the sums over their "
        "requests, {} agree with the server’s own counters. Passes that were voided: {}. Other "
        "processes used at most {} CPU cores meanwhile.",
        count(len(passes), source=source),
        count(len(found), source=source),
        of(sum(held), len(held), source=source),
        count(sum(row.voided is not None for row in passes), source=source),
        number(max(loads, default=None), 2, source=source),
    )


def checks(found: Measured) -> Html:
    """Return how every pass was checked: sums against the server's counters, foreign load, the client's own."""
    rows, data = [], []
    for row in found.summary.passes:
        source = f"results/{found.name}/{row.label}.json"
        held = [identity.holds for identity in row.identities if identity.holds is not None]
        rows.append(
            [
                html("{} <small>{}</small>", common.run(row), row.kind),
                of(*row.answered, source=source),
                of(sum(held), len(held), source=source)
                if held
                else number(None, source=source, missing="the counters were not read"),
                number(row.host_load, 2, source=source),
                percent(row.host_steal, source=source),
                number(row.client_cpu_share, 2, source=source),
                number(row.client_lag_p99_s, 1, source=source, scale=1000),
                given(row.voided, source=source, missing="it counts"),
            ]
        )
        data.append(_pass_row(row, held))
    if not rows:
        return Html()
    return exhibit.table(
        f"checks-{found.name}",
        html(
            "{}: every pass. Sums over the requests that agree with the server’s own counters; CPU cores that other "
            "processes used; CPU time that the hypervisor took; CPU cores that the client used; how late its loop ran, "
            "in the worst of a hundred turns.",
            given(found.title, source=f"studies/{found.name}.yaml"),
        ),
        ["pass", "answered", "sums agree", "foreign load", "steal", "client CPU", "client lag, ms", "voided"],
        rows,
        exhibit.origin(found),
        data=data,
        words=(7,),
    )


def _pass_row(row: PassRow, held: Sequence[bool]) -> dict[str, object]:
    return {
        "run": row.label,
        "kind": row.kind,
        "answered": row.answered[0],
        "requests": row.answered[1],
        "sums_checked": len(held),
        "sums_agree": sum(held),
        "host_load": row.host_load,
        "host_steal": row.host_steal,
        "client_cpu_share": row.client_cpu_share,
        "client_lag_p99_s": row.client_lag_p99_s,
        "voided": row.voided,
    }


def machines(found: Sequence[Measured]) -> Html:
    """Return machines and versions, a column per combination that a study's records name."""
    columns, data = [], []
    for each in found:
        kinds = {tuple(_stack(record).items()): record for record in reversed(each.records)}
        for stack, record in kinds.items():
            source = f"results/{each.name}/{record.label}.json"
            columns.append((each.name, {fact: given(value, source=source) for fact, value in stack}))
            data.append({"study": each.name, **dict(stack)})
    if not columns:
        return Html()
    return exhibit.table(
        "method-machines",
        "Machines and versions, from the records",
        ["", *(code(name) for name, _ in columns)],
        [[fact, *(shown[fact] for _, shown in columns)] for fact in columns[0][1]],
        exhibit.together(exhibit.origin(study) for study in found),
        data=data,
        words=range(1, len(columns) + 1),
    )


def _stack(record: Record) -> dict[str, str | None]:
    m, v = record.machine, record.versions
    return {
        "model": record.model.id,
        "model's revision": record.model.revision,
        "GPU": m.gpu,
        "driver": m.driver,
        "CPU": m.cpu,
        "cores": None if m.cpu_cores is None else str(m.cpu_cores),
        "operating system": m.os,
        "vLLM": v.vllm,
        "torch": v.torch,
        "Python of the engine": v.python,
        "Python of the client": v.client_python,
        "openai": v.openai,
    }
