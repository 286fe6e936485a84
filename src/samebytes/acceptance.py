"""What speculation drafted and what of it was accepted: per request, and summed.

A config that does not speculate has nulls here, never zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebytes import definitions

if TYPE_CHECKING:
    from samebytes.record import Request


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over one or more requests.

    Attributes
    ----------
    n : int
        Requests behind the figures: successful ones whose counters were read.
    drafts, draft_tokens, accepted_tokens : int or None
        Verification steps that carried a draft, tokens drafted, tokens accepted (the server's counters).
    rate : float or None
        ``accepted / drafted``; None where nothing was drafted.
    mean_length : float or None
        Mean acceptance length, ``1 + accepted / drafts`` (vLLM's convention); None where nothing was drafted.
    tokens_per_step : float or None
        ``N / chunks``: counts the steps that drafted nothing too.
    overrun : int or None
        ``steps + accepted - N``: tokens that the server's counter took as accepted beyond the end of the answers.
        None where chunks were merged on the way (it would be negative), for the steps are not known then.
    per_position : tuple of float or None
        Accepted at position k (from 0) per draft.
    """

    n: int
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    rate: float | None = None
    mean_length: float | None = None
    tokens_per_step: float | None = None
    overrun: int | None = None
    per_position: tuple[float, ...] | None = None


def _steps(request: Request) -> list[int | None]:
    return [tokens for _, tokens in request.chunks]


def summarise(requests: Sequence[Request]) -> Acceptance:
    """Sum acceptance over requests (token-weighted: sums first, then ratios).

    Parameters
    ----------
    requests : sequence of Request
        Failed requests, and those whose counters were not read, are left out.
    """
    ok = [r for r in requests if r.status == "ok"]
    timed = [r for r in ok if r.completion_tokens is not None and definitions.steps(_steps(r))]
    tokens = sum(r.completion_tokens or 0 for r in timed)
    per_step = tokens / sum(definitions.steps(_steps(r)) for r in timed) if timed else None
    counted = [r for r in ok if None not in (r.drafts, r.draft_tokens, r.accepted_tokens)]
    if not counted:
        return Acceptance(n=0, tokens_per_step=per_step)
    drafts = sum(r.drafts or 0 for r in counted)
    drafted = sum(r.draft_tokens or 0 for r in counted)
    accepted = sum(r.accepted_tokens or 0 for r in counted)
    return Acceptance(
        n=len(counted),
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        rate=definitions.acceptance_rate(accepted, drafted),
        mean_length=definitions.mean_acceptance_length(accepted, drafts),
        tokens_per_step=per_step,
        overrun=_overrun(counted),
        per_position=_per_position(counted, drafts),
    )


def _overrun(counted: Sequence[Request]) -> int | None:
    each = [definitions.overrun(r.completion_tokens, _steps(r), r.accepted_tokens) for r in counted]
    known = [overrun for overrun in each if overrun is not None]
    return sum(known) if len(known) == len(each) and min(known) >= 0 else None


def _per_position(counted: Sequence[Request], drafts: int) -> tuple[float, ...] | None:
    positions = [r.accepted_per_pos for r in counted if r.accepted_per_pos is not None]
    if len(positions) < len(counted) or not drafts:
        return None
    longest = max(len(p) for p in positions)
    return tuple(sum(p[k] for p in positions if k < len(p)) / drafts for k in range(longest))
