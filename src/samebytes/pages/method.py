"""How it is measured: what is held equal, machines and versions."""

from __future__ import annotations

from collections.abc import Sequence

from samebytes import fairness
from samebytes.bookdata import Measured
from samebytes.pages import common
from samebytes.prose import Html, code, given, table
from samebytes.record import Record


def differences(found: Measured) -> Html:
    """Return what a study's configs do not share with ``baseline``; versions of this project aside."""
    rows = []
    for pair in found.pairs("baseline"):
        source = common.pair_source(found, pair)
        for d in pair.differences:
            if d.name not in fairness.PROJECT:
                sides = (None if side is None else side or "set" for side in (d.a, d.b))
                shown = (given(side, source=source, missing="not set") for side in sides)
                rows.append([code(pair.candidate), d.kind, code(d.name), *shown])
    head = ["config", "kind", "name", "baseline has", "config has"]
    return table(given(found.title, source=f"studies/{found.name}.yaml"), head, rows, words=range(1, len(head)))


def machines(found: Sequence[Measured]) -> Html:
    """Return machines and versions, a column per combination that a study's records name."""
    columns = []
    for each in found:
        kinds = {tuple(_stack(record).items()): record for record in reversed(each.records)}
        for stack, record in kinds.items():
            source = f"results/{each.name}/{record.label}.json"
            columns.append((each.name, {fact: given(value, source=source) for fact, value in stack}))
    facts = columns[0][1] if columns else {}
    return table(
        "Machines and versions, from the records",
        ["", *(code(name) for name, _ in columns)],
        [[fact, *(shown[fact] for _, shown in columns)] for fact in facts],
        words=range(1, len(columns) + 1),
    )


def _stack(record: Record) -> dict[str, str | None]:
    m, v = record.machine, record.versions
    return {
        "model": record.model.id,
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
