"""Same bytes or not: two answers, two runs, and whether a difference is the config's doing.

Text is compared as it came: nothing is normalised, stripped or re-tokenised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal, get_args

from samebytes.errors import RecordError

if TYPE_CHECKING:
    from samebytes.record import Record, Request

CONTEXT = 40
"""Characters shown on each side of a divergence."""

Class = Literal["same", "same bytes, other tokens", "length", "differs", "missing"]
Verdict = Literal["same", "differs", "differs (no control)", "not attributable", "intermittent", "missing"]
Agreement = Literal["agrees", "disagrees", "none"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

_SAME_BYTES = ("same", "same bytes, other tokens")


@dataclass(frozen=True)
class Comparison:
    """How two answers to one prompt relate.

    Attributes
    ----------
    cls : Class
        ``"same"``; ``"same bytes, other tokens"``; ``"length"``: one is a strict prefix of the other;
        ``"differs"``; ``"missing"``: one of them is not a successful answer.
    text, reasoning : Class
        The same for the answer's text and for its reasoning text, each on its own (without the token class).
    part : {"text", "reasoning"} or None
        Where the first divergence lies; reasoning comes before text. None: same bytes, or missing.
    char_index : int or None
        First differing code point of that part, or the length of the prefix.
    byte_offset : int or None
        Where that code point starts in the part's UTF-8.
    token_index : int or None
        First differing token of the whole answer. None: same tokens, or not recorded on both sides.
    context_a, context_b : str or None
        `CONTEXT` characters before the divergence and from it on.
    """

    cls: Class
    text: Class
    reasoning: Class
    part: Literal["text", "reasoning"] | None = None
    char_index: int | None = None
    byte_offset: int | None = None
    token_index: int | None = None
    context_a: str | None = None
    context_b: str | None = None

    @property
    def same_bytes(self) -> bool:
        """Whether the bytes of text and reasoning are equal."""
        return self.cls in _SAME_BYTES


MISSING = Comparison("missing", "missing", "missing")


def divergence(a: str, b: str) -> int | None:
    """Return the index of the first differing code point; the prefix's length where one is a prefix; None if equal."""
    if a == b:
        return None
    return _first_difference(a, b)


def _first_difference(a: Sequence[object], b: Sequence[object]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


def _classify(a: str, b: str) -> Class:
    if a == b:
        return "same"
    return "length" if a.startswith(b) or b.startswith(a) else "differs"


def compare_answers(a: Request | None, b: Request | None) -> Comparison:
    """Compare two answers to one prompt.

    Parameters
    ----------
    a, b : Request or None
        None, or a status other than ``ok``, makes the comparison ``"missing"``.
    """
    if a is None or b is None or a.status != "ok" or b.status != "ok":
        return MISSING
    text = _classify(a.text, b.text)
    thoughts = (a.reasoning or "", b.reasoning or "")
    reasoning = _classify(*thoughts)
    token_index = None
    if a.token_ids is not None and b.token_ids is not None and a.token_ids != b.token_ids:
        token_index = _first_difference(a.token_ids, b.token_ids)
    if text == "same" and reasoning == "same":
        cls: Class = "same" if token_index is None else "same bytes, other tokens"
        return Comparison(cls, text, reasoning, token_index=token_index)
    part: Literal["text", "reasoning"] = "text" if reasoning == "same" else "reasoning"
    one, two = (a.text, b.text) if part == "text" else thoughts
    at = _first_difference(one, two)
    return Comparison(
        cls="differs" if "differs" in (text, reasoning) else "length",
        text=text,
        reasoning=reasoning,
        part=part,
        char_index=at,
        byte_offset=len(one[:at].encode("utf-8", "surrogatepass")),
        token_index=token_index,
        context_a=one[max(0, at - CONTEXT) : at + CONTEXT],
        context_b=two[max(0, at - CONTEXT) : at + CONTEXT],
    )


@dataclass(frozen=True)
class Answer:
    """One answer and the server start that gave it.

    ``start`` is None where the answer cannot count as a server start of its own (a resumed run).
    """

    request: Request | None
    start: str | None


@dataclass(frozen=True)
class PromptVerdict:
    """Whether a config changed the answer to one prompt.

    Attributes
    ----------
    verdict : Verdict
        ``"same"``: every answer of both sides has the same bytes. ``"differs"``: each side agrees with itself and
        they differ. ``"differs (no control)"``: they differ, and the baseline has one server start only.
        ``"not attributable"``: the baseline disagrees with itself. ``"intermittent"``: the candidate does.
        ``"missing"``: an answer of either side failed.
    comparison : Comparison
        Baseline against candidate: the first pair that differs, else the first pair.
    control, repeat : Agreement
        Whether the baseline's, and the candidate's, server starts agree; ``"none"`` with fewer than two.
    control_comparison, repeat_comparison : Comparison or None
        The first pair within the baseline, and within the candidate, that differs.
    finish_a, finish_b : str or None
        Finish reasons of the compared pair.
    """

    id: str
    workload: str
    verdict: Verdict
    comparison: Comparison
    control: Agreement
    repeat: Agreement
    control_comparison: Comparison | None = None
    repeat_comparison: Comparison | None = None
    finish_a: str | None = None
    finish_b: str | None = None


def agreement(answers: Sequence[Answer]) -> tuple[Agreement, Comparison | None]:
    """Say whether a config's answers to one prompt agree, and show the first pair that does not.

    A disagreement always counts; agreement counts only between two server starts.
    """
    for one, two in combinations(answers, 2):
        comparison = compare_answers(one.request, two.request)
        if comparison.cls == "missing":
            continue
        if not comparison.same_bytes:
            return "disagrees", comparison
    starts = {a.start for a in answers if a.start is not None and a.request is not None and a.request.status == "ok"}
    return ("agrees" if len(starts) > 1 else "none"), None


def judge(key: str, workload: str, baseline: Sequence[Answer], candidate: Sequence[Answer]) -> PromptVerdict:
    """Judge one prompt from all answers of the baseline and all answers of the candidate."""
    control, control_comparison = agreement(baseline)
    repeat, repeat_comparison = agreement(candidate)
    pairs = [(a.request, b.request) for a in baseline for b in candidate]
    comparisons = [compare_answers(a, b) for a, b in pairs]
    verdict: Verdict
    if not comparisons or any(c.cls == "missing" for c in comparisons):
        verdict, shown = "missing", None
    else:
        shown = next((i for i, c in enumerate(comparisons) if not c.same_bytes), 0)
        if control == "disagrees":
            verdict = "not attributable"
        elif repeat == "disagrees":
            verdict = "intermittent"
        elif comparisons[shown].same_bytes:
            verdict = "same"
        else:
            verdict = "differs" if control == "agrees" else "differs (no control)"
    a, b = pairs[shown] if shown is not None else (None, None)
    return PromptVerdict(
        id=key,
        workload=workload,
        verdict=verdict,
        comparison=MISSING if shown is None else comparisons[shown],
        control=control,
        repeat=repeat,
        control_comparison=control_comparison,
        repeat_comparison=repeat_comparison,
        finish_a=a.finish_reason if a else None,
        finish_b=b.finish_reason if b else None,
    )


@dataclass(frozen=True)
class RecordComparison:
    """The verdict on a candidate against a baseline, prompt by prompt.

    Attributes
    ----------
    baseline, candidate : tuple of str
        Labels of the records on each side.
    baseline_starts, candidate_starts : int
        Server starts that count on each side (a resumed run counts for none).
    prompts : tuple of PromptVerdict
        In sending order.
    unproved : tuple of str
        Fields that must be equal but that a record leaves null, so that equality is not proved.
    """

    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    baseline_starts: int
    candidate_starts: int
    prompts: tuple[PromptVerdict, ...]
    unproved: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of prompts per verdict."""
        found = Counter(p.verdict for p in self.prompts)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def judged(self) -> int:
        """Number of prompts that every record answered."""
        return len(self.prompts) - self.counts["missing"]

    def strict_code(self, allow_failures: bool = False) -> int:
        """Return the exit code of a strict comparison.

        0: same bytes; 10: differs; 11: not attributable, intermittent, or differs without a control; 12: cannot
        compare: a request failed (unless ``allow_failures``), or no prompt is left.
        """
        counts = self.counts
        if self.judged == 0 or (counts["missing"] and not allow_failures):
            return 12
        if counts["differs"]:
            return 10
        if counts["same"] < self.judged:
            return 11
        return 0


def comparable(a: Record, b: Record) -> tuple[str, ...]:
    """Check that two records asked the same model the same thing.

    Returns
    -------
    tuple of str
        Fields that one of them leaves null, so that they could not be compared.

    Raises
    ------
    RecordError
        Where the model, the prompts or the sampling differ; every differing field is named with both values.
    """
    differing: list[str] = []
    unproved: list[str] = []
    if a.model.id != b.model.id:
        differing.append(f"model.id ({a.model.id} / {b.model.id})")
    for field in ("revision", "sha256", "weight_bytes"):
        one, two = getattr(a.model, field), getattr(b.model, field)
        if one is None or two is None:
            unproved += [f"model.{field}"] if (one, two) != (None, None) else []
        elif one != two:
            differing.append(f"model.{field} ({one} / {two})")
    for field in ("temperature", "seed", "max_tokens", "thinking"):
        one, two = getattr(a.sampling, field), getattr(b.sampling, field)
        if one != two:
            differing.append(f"sampling.{field} ({one} / {two})")
    ours, theirs = ({p.id: p.sha256 for p in record.prompts} for record in (a, b))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            where = f"only in {a.label if key in ours else b.label}" if (key in ours) != (key in theirs) else "sha256"
            differing.append(f"prompt {key} ({where})")
    if differing:
        raise RecordError(f"{a.label} and {b.label} cannot be compared; they differ in: {', '.join(differing)}")
    return tuple(unproved)


def start_of(record: Record, launch: int) -> str:
    """Return what tells one server start from another.

    Servers we started have a random served model name; for a running server there is only its process start time,
    and without that all passes on one address count as one start.
    """
    found = record.launches[launch]
    if found.started_by == "samebytes":
        return f"{found.served_model_name} {found.started}"
    return f"{found.base_url} {found.process_start_time}"


def sequential_answers(record: Record) -> dict[str, Answer]:
    """Return a record's sequential answers by prompt id, each with its server start (none for a resumed run).

    Every prompt of the record is there; one without a request has none.
    """
    starts = {
        r.id: start_of(record, p.launch)
        for p in record.passes
        if p.kind == "sequential" and p.voided is None
        for r in p.requests
    }
    none = {p.id: Answer(None, None) for p in record.prompts}
    return none | {r.id: Answer(r, None if record.resumed else starts[r.id]) for r in record.sequential()}


def concurrent_answers(record: Record) -> dict[str, Answer]:
    """Return the answers of a record's concurrent pass by prompt id and copy (``id#copy``)."""
    found = record.concurrent()
    if found is None:
        return {}
    return {f"{r.id}#{r.copy_index}": Answer(r, start_of(record, found.launch)) for r in found.requests}


def _compare(
    baseline: Sequence[Record], candidate: Sequence[Record], answers: Callable[[Record], Mapping[str, Answer]]
) -> RecordComparison:
    for record in (*baseline, *candidate):
        if record.status != "complete":
            reason = f": {record.reason}" if record.reason else ""
            raise RecordError(f"{record.label} cannot be compared: its status is {record.status}{reason}")
    first, *others = (*baseline, *candidate)
    unproved = sorted({field for other in others for field in comparable(first, other)})
    ours, theirs = [answers(record) for record in baseline], [answers(record) for record in candidate]
    for record, found in zip((*baseline, *candidate), (*ours, *theirs), strict=True):
        if not any(answer.request for answer in found.values()):
            raise RecordError(f"{record.label} cannot be compared: it has no such pass")
    known = {p.id: p.workload for p in (*first.prompts, *(first.leg_prompts or ()))}
    order = {key: i for i, key in enumerate(known)}
    ids = sorted({key for found in (*ours, *theirs) for key in found}, key=lambda key: (order[key.split("#")[0]], key))
    none = Answer(None, None)
    verdicts = tuple(
        judge(key, known[key.split("#")[0]], [a.get(key, none) for a in ours], [b.get(key, none) for b in theirs])
        for key in ids
    )

    def starts(side: Sequence[Mapping[str, Answer]]) -> int:
        return len({a.start for found in side for a in found.values() if a.start is not None})

    return RecordComparison(
        baseline=tuple(r.label for r in baseline),
        candidate=tuple(r.label for r in candidate),
        baseline_starts=starts(ours),
        candidate_starts=starts(theirs),
        prompts=verdicts,
        unproved=tuple(unproved),
    )


def compare_groups(baseline: Sequence[Record], candidate: Sequence[Record]) -> RecordComparison:
    """Judge a candidate's runs against a baseline's, from the sequential answers of all of them.

    Parameters
    ----------
    baseline, candidate : sequence of Record
        One record per server start; a config's repeat is a further record.

    Raises
    ------
    RecordError
        Where a record is not complete, or they differ in model, prompts or sampling.
    """
    return _compare(baseline, candidate, sequential_answers)


def compare_concurrent(baseline: Sequence[Record], candidate: Sequence[Record]) -> RecordComparison:
    """Judge the answers of the concurrent passes, copy by copy (``id#copy``), apart from the sequential ones.

    Under load the batch a request meets depends on timing, so a difference here says less about the config.
    """
    return _compare(baseline, candidate, concurrent_answers)


def compare_records(a: Record, b: Record, control: Record | Sequence[Record] | None = None) -> RecordComparison:
    """Judge run ``b`` against baseline run ``a``, with further baseline runs as the control.

    Raises
    ------
    RecordError
        As `compare_groups`.
    """
    controls = [] if control is None else list(control) if isinstance(control, Sequence) else [control]
    return compare_groups([a, *controls], [b])
