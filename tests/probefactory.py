"""Small synthetic probes: what a probe of a synthetic record would have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samebytes import margins, probe
from samebytes.probe import Copy, Probe, ProbePrompt
from samebytes.record import Record, Request, write_atomic

OTHERS = (1001, 1002, 1003, 1004)
"""Tokens that no answer holds."""


def sure(token: int, lead: float = 10.0) -> list[tuple[int, float]]:
    """Return the candidates of a token that won by ``lead``."""
    return [(token, 20.0), *((other, 20.0 - lead - i) for i, other in enumerate(OTHERS))]


def close(token: int, rival: int, lead: float) -> list[tuple[int, float]]:
    """Return the candidates of a token that won by ``lead`` over a certain other one."""
    return [(token, 20.0), (rival, 20.0 - lead), *((other, 5.0 - i) for i, other in enumerate(OTHERS[:3]))]


def a_prompt(
    request: Request, rows: Mapping[int, Sequence[tuple[int, float]]], copies: Sequence[Copy] = (), lead: float = 10.0
) -> ProbePrompt:
    """Return a prompt that reproduces its record; ``rows`` holds the candidates of some places."""
    tokens = request.token_ids or []
    top = [row for i, token in enumerate(tokens) for row in rows.get(i, sure(token, lead))]
    return ProbePrompt(
        id=request.id,
        workload=request.workload,
        sha256="0",
        finish_reason=request.finish_reason,
        token_ids=tokens,
        reproduces_until=None,
        top_ids=[token for token, _ in top],
        top_scores=[score for _, score in top],
        copies=list(copies),
    )


def a_probe(
    record: Record,
    rows: Mapping[str, Mapping[int, Sequence[tuple[int, float]]]] | None = None,
    moved: float | None = None,
    lead: float = 10.0,
    **changes: Any,
) -> Probe:
    """Return a complete probe of a record.

    Parameters
    ----------
    rows : mapping of str to mapping, optional
        Candidates by prompt and place.
    moved : float or None
        How far each gap moves in the one copy; None: no copies.
    lead : float
        How much every other token won by.
    """
    prompts = [a_prompt(request, (rows or {}).get(request.id, {}), lead=lead) for request in record.sequential()]
    values: dict[str, Any] = {
        "status": "complete",
        "label": record.label,
        "study": record.study,
        "mode": "raw_logits",
        "copies": 0 if moved is None else 1,
        **{name: getattr(record, name) for name in ("config", "model", "machine", "versions", "sampling", "launches")},
        "prompts": prompts,
    }
    found = Probe.model_validate(values | changes)
    if moved is not None:
        for prompt, trace in zip(found.prompts, found.traces().values(), strict=True):
            gaps = [margin + moved for margin in margins.gaps(trace, trace) if margin is not None]
            prompt.copies = [Copy(parts_at=None, token=None, gaps=list(gaps))]
    return found


def save(found: Probe, folder: Path) -> None:
    """Write a probe where its study's folder keeps it."""
    write_atomic(probe.path_of(folder, found.label), probe.dumps(found))
