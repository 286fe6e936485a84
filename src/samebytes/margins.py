"""Why two answers part: by how much the chosen token had won, and by how much such a gap moves without any flag.

A *gap* is the score of one token less that of another at one place; the *margin* of a token is its gap to the best
other one. What may be called rounding is not decided by the differences themselves but by a *yardstick*: how far the
same gaps move where the same server computes the same prompt in another shape.

Scores are logits where the engine gives them. All gaps are taken after the same tokens, so that only the arithmetic
can differ.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

from samebytes.stats import percentile

if TYPE_CHECKING:
    from samebytes.compare import Comparison

YARDSTICK_QUANTILE = 99.0
"""Percentile of the yardstick's moves up to which a margin counts as a tie: a move that large happens at one token in a
hundred, a few times in every answer, so it needs no flag; the very largest would be a matter of how long one looked."""

CONFIG_QUANTILE = 99.0
"""Percentile of a config's moves at other places up to which a move is what the config does everywhere; the same as for
the yardstick, so that neither side is judged more mildly."""

Verdict = Literal[
    "exact tie",
    "tie broken by rounding",
    "pushed over by this config",
    "a real change",
    "outside the candidates",
    "probe does not reproduce",
]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

TIES: tuple[Verdict, ...] = ("exact tie", "tie broken by rounding")

Candidate = tuple[int, float]
"""Token id and score."""


@dataclass(frozen=True)
class Gap:
    """How much one token is ahead of another.

    Attributes
    ----------
    value : float
        Difference of the scores.
    bound : bool
        Whether it is at least ``value``: the other token is not among the candidates, and no better than the last.
    """

    value: float
    bound: bool = False

    def __add__(self, other: Gap) -> Gap:
        return Gap(self.value + other.value, self.bound or other.bound)


@dataclass(frozen=True)
class Trace:
    """One answer with the candidates of each of its tokens.

    Attributes
    ----------
    id, workload : str
        The prompt.
    tokens : tuple of int
        The chosen tokens.
    top : tuple of tuple of (int, float)
        Per token the candidates: the chosen one, then the others, best first; two or more.
    reproduces_until : int or None
        First token that is not the one of the recorded run; None: all are.
    """

    id: str
    workload: str
    tokens: tuple[int, ...]
    top: tuple[tuple[Candidate, ...], ...]
    reproduces_until: int | None = None

    def score(self, at: int, token: int) -> float | None:
        """Return a token's score at one place; None where it is not among the candidates."""
        return next((score for candidate, score in self.top[at] if candidate == token), None)

    def gap(self, at: int, other: int) -> Gap:
        """Return how much the chosen token is ahead of another one."""
        chosen, score = self.top[at][0][1], self.score(at, other)
        return Gap(chosen - self.top[at][-1][1], bound=True) if score is None else Gap(chosen - score)

    @cached_property
    def margins(self) -> tuple[float, ...]:
        """How much each token is ahead of the best other one; 0 is an exact tie."""
        return tuple(row[0][1] - row[1][1] for row in self.top)

    def reproduces(self, at: int) -> bool:
        """Return whether every token up to and with this one is the recorded one."""
        return self.reproduces_until is None or self.reproduces_until > at


def parts_at(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first place where two sequences of tokens differ, or where the shorter one ends; None: equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def gaps(reference: Trace, other: Trace) -> list[float | None]:
    """Return the gap between the reference's token and its runner-up in another answer to the same prompt.

    One for each token up to and with the first that differs: all of these come after the same tokens. None where one
    of the two is not among the other's candidates.
    """
    at = parts_at(reference.tokens, other.tokens)
    shared = len(reference.tokens) if at is None else min(at + 1, len(reference.tokens), len(other.tokens))
    found: list[float | None] = []
    for i, row in enumerate(reference.top[:shared]):
        chosen, runner_up = other.score(i, row[0][0]), other.score(i, row[1][0])
        found.append(None if chosen is None or runner_up is None else chosen - runner_up)
    return found


def digits(traces: Iterable[Trace]) -> int:
    """Return how many binary digits the scores have: 8 where each is a bfloat16 number, else 24 (float32)."""
    scores = (score for trace in traces for row in trace.top for _, score in row)
    return 8 if all(struct.pack("<f", score)[:2] == b"\0\0" for score in scores) else 24


def step(score: float, significant: int) -> float:
    """Return the distance from a floating-point number to the next, ``2^(floor(log2 |x|) + 1 - digits)``; 0 for 0."""
    return math.ldexp(1.0, math.frexp(score)[1] - significant) if score else 0.0


# -- how far gaps move ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moves:
    """How far the gap between a token and its runner-up moved from one asking to another.

    Attributes
    ----------
    values : tuple of float
        Distances, smallest first.
    unseen : int
        Places where one of the two tokens was no candidate the second time, so that no distance is known.
    answers, parted : int
        Answers that were compared, and how many of them left the reference's tokens.
    """

    values: tuple[float, ...]
    unseen: int
    answers: int
    parted: int

    @property
    def still(self) -> float | None:
        """Share of places where nothing moved at all."""
        return bisect_right(self.values, 0.0) / len(self.values) if self.values else None

    def quantile(self, q: float) -> float | None:
        """Return the ``q``-th percentile; None where there is no move."""
        return percentile(self.values, q) if self.values else None

    def without(self, value: float) -> Moves:
        """Return all moves but one of this size."""
        at = bisect_left(self.values, value)
        there = at < len(self.values) and self.values[at] == value
        return (
            Moves(self.values[:at] + self.values[at + 1 :], self.unseen, self.answers, self.parted) if there else self
        )

    def flips(self, margin: float) -> float:
        """Return how probable it is that a move of this kind lets the runner-up win.

        ``(P(|d| > m) + P(|d| = m) / 2) / 2``: half of all moves go towards the runner-up; one that is just as large as
        the margin makes an exact tie, of which the runner-up wins half. At an exact tie (m = 0) any move towards it
        will do, and no move changes nothing: ``P(|d| > 0) / 2``.
        """
        if not self.values:
            return 0.0
        low, high = bisect_left(self.values, margin), bisect_right(self.values, margin)
        equal = (high - low) if margin else 0
        return (len(self.values) - high + equal / 2) / len(self.values) / 2


def moves(answers: Iterable[tuple[Trace, Sequence[float | None], bool]]) -> Moves:
    """Collect moves.

    Parameters
    ----------
    answers : iterable of (Trace, sequence of float or None, bool)
        A reference, its gaps in another answer as `gaps` returns them, and whether that answer has other tokens.
    """
    values: list[float] = []
    unseen = compared = parted = 0
    for reference, others, differs in answers:
        compared += 1
        parted += differs
        for margin, gap in zip(reference.margins, others, strict=False):
            if gap is None:
                unseen += 1
            else:
                values.append(abs(gap - margin))
    return Moves(tuple(sorted(values)), unseen, compared, parted)


def between(pairs: Iterable[tuple[Trace, Trace]]) -> Moves:
    """Return how far gaps moved from an answer to another one to the same prompt."""
    return moves((one, gaps(one, two), one.tokens != two.tokens) for one, two in pairs)


# -- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Divergence:
    """Where a config's recorded answer parts from the reference's, and why.

    Attributes
    ----------
    id, workload : str
        The prompt.
    cls : str
        What became of the text (`samebytes.compare.Class`).
    at : int
        First token that differs.
    verdict : Verdict
        ``"exact tie"``: both tokens had the same score on one side, and the margin on the other is within the
        yardstick. ``"tie broken by rounding"``: the margins of both sides are within the yardstick. ``"pushed over by
        this config"``: one is beyond it, but the gap moved by no more than this config moves gaps at other places.
        ``"a real change"``: one is beyond it, or only bounded, and the gap moved by more. ``"outside the candidates"``:
        only a bound is known, which leaves it open. ``"probe does not reproduce"``: a probe left its recorded tokens,
        so it explains nothing here.
    token_a, token_b : int or None
        The token of the reference and that of the config.
    ours, theirs : Gap or None
        How much the reference preferred its token to the config's, and the config its own to the reference's.
    move : Gap or None
        How far the gap between the two moved: their sum.
    limit : float or None
        What this config moves gaps by at other places (`CONFIG_QUANTILE`).
    rank : float or None
        Share of the workload's tokens in the reference that won by no more than ``ours``.
    step : float or None
        Distance between neighbouring numbers of the scores' type at the reference's score.
    """

    id: str
    workload: str
    cls: str
    at: int
    verdict: Verdict
    token_a: int | None = None
    token_b: int | None = None
    ours: Gap | None = None
    theirs: Gap | None = None
    move: Gap | None = None
    limit: float | None = None
    rank: float | None = None
    step: float | None = None


@dataclass(frozen=True)
class WorkloadMargins:
    """How decided one workload's tokens are, and how many answers should part if only rounding were at work.

    Attributes
    ----------
    workload : str
    margins : tuple of float
        Of all tokens of the reference, smallest first.
    ties : int
        Tokens whose runner-up had exactly the same score.
    within : int or None
        Tokens that won by no more than the yardstick; None without one.
    prompts, parted : int
        Prompts on both sides, and how many of the recorded answers part.
    expected, expected_config : float or None
        Sum over the prompts of ``1 - prod(1 - p)``, where ``p`` is each token's `Moves.flips` by the yardstick's moves,
        and by the config's own at other places. Assumes that moves do not depend on the margin, on the place, or on
        one another.
    """

    workload: str
    margins: tuple[float, ...]
    ties: int
    within: int | None
    prompts: int
    parted: int
    expected: float | None
    expected_config: float | None


@dataclass(frozen=True)
class Explanation:
    """Why a config's answers part from a reference's.

    Attributes
    ----------
    divergences : tuple of Divergence
        One per prompt whose recorded tokens differ, in sending order.
    workloads : tuple of WorkloadMargins
    yardstick : Moves or None
        The reference in another shape; None where it was not probed so.
    threshold : float or None
        The yardstick's `YARDSTICK_QUANTILE`.
    config : Moves
        The config against the reference, at every place after the same tokens.
    digits : int
        Binary digits of the scores.
    """

    divergences: tuple[Divergence, ...]
    workloads: tuple[WorkloadMargins, ...]
    yardstick: Moves | None
    threshold: float | None
    config: Moves
    digits: int

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of divergences per verdict."""
        found = Counter(d.verdict for d in self.divergences)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def reproduced(self) -> int:
        """Number of divergences that the probes reproduced."""
        return len(self.divergences) - self.counts["probe does not reproduce"]


def explain(
    reference: Mapping[str, Trace],
    candidate: Mapping[str, Trace],
    comparisons: Mapping[str, Comparison],
    yardstick: Moves | None,
) -> Explanation:
    """Explain each prompt whose recorded tokens differ.

    Parameters
    ----------
    reference, candidate : mapping of str to Trace
        The probes of both sides, by prompt.
    comparisons : mapping of str to Comparison
        Of the recorded answers, by prompt; those that were not compared are left out.
    yardstick : Moves or None
        How far the reference's gaps move without any flag; without it nothing is called a tie but an exact one.
    """
    judged = {key: c for key, c in comparisons.items() if key in reference and key in candidate and c.cls != "missing"}
    threshold = yardstick.quantile(YARDSTICK_QUANTILE) if yardstick else None
    config = between((reference[key], candidate[key]) for key in reference if key in candidate)
    significant = digits((*reference.values(), *candidate.values()))
    names = list(dict.fromkeys(reference[key].workload for key in judged))
    ordered = {
        name: tuple(sorted(m for key in judged if reference[key].workload == name for m in reference[key].margins))
        for name in names
    }
    divergences = []
    for key, comparison in judged.items():
        if comparison.token_index is not None:
            one, two, at = reference[key], candidate[key], comparison.token_index
            found = _divergence(one, two, at, comparison.cls, threshold or 0.0, config, significant)
            if found.ours is not None:
                below = bisect_right(ordered[one.workload], found.ours.value)
                found = replace(found, rank=below / len(ordered[one.workload]))
            divergences.append(found)
    return Explanation(
        divergences=tuple(divergences),
        workloads=tuple(
            _workload(
                name, [reference[key] for key in judged], ordered[name], divergences, yardstick, threshold, config
            )
            for name in names
        ),
        yardstick=yardstick,
        threshold=threshold,
        config=config,
        digits=significant,
    )


def _divergence(
    one: Trace, two: Trace, at: int, cls: str, threshold: float, config: Moves, significant: int
) -> Divergence:
    if not (one.reproduces(at) and two.reproduces(at)) or at >= min(len(one.tokens), len(two.tokens)):
        return Divergence(one.id, one.workload, cls, at, "probe does not reproduce")
    a, b = one.tokens[at], two.tokens[at]
    ours, theirs = one.gap(at, b), two.gap(at, a)
    move = ours + theirs
    # This place itself is no evidence of what the config does elsewhere.
    gap = gaps(one, two)[at]
    elsewhere = config if gap is None else config.without(abs(gap - one.margins[at]))
    limit = elsewhere.quantile(CONFIG_QUANTILE)
    return Divergence(
        id=one.id,
        workload=one.workload,
        cls=cls,
        at=at,
        verdict=_verdict(ours, theirs, threshold, limit),
        token_a=a,
        token_b=b,
        ours=ours,
        theirs=theirs,
        move=move,
        limit=limit,
        step=step(one.top[at][0][1], significant),
    )


def _verdict(ours: Gap, theirs: Gap, threshold: float, limit: float | None) -> Verdict:
    move = ours + theirs
    if not move.bound and max(ours.value, theirs.value) <= threshold:
        return "exact tie" if min(ours.value, theirs.value) == 0 else "tie broken by rounding"
    if limit is not None and move.value > limit:
        return "a real change"
    return "outside the candidates" if move.bound else "pushed over by this config"


def _workload(
    name: str,
    traces: Sequence[Trace],
    ordered: tuple[float, ...],
    divergences: Sequence[Divergence],
    yardstick: Moves | None,
    threshold: float | None,
    config: Moves,
) -> WorkloadMargins:
    mine = [trace for trace in traces if trace.workload == name]
    return WorkloadMargins(
        workload=name,
        margins=ordered,
        ties=bisect_right(ordered, 0.0),
        within=None if threshold is None else bisect_right(ordered, threshold),
        prompts=len(mine),
        parted=sum(d.workload == name for d in divergences),
        expected=None if yardstick is None else math.fsum(_parts(trace, yardstick) for trace in mine),
        expected_config=math.fsum(_parts(trace, config) for trace in mine),
    )


def _parts(trace: Trace, by: Moves) -> float:
    """Return how probable it is that an answer parts somewhere."""
    return 1 - math.prod(1 - by.flips(margin) for margin in trace.margins)
