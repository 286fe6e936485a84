"""N-gram speculation as records hold it: counters held against the replay, what a step costs, predicted speeds.

Time adds up, so a kind of step costs its total time over its count. Three kinds: a step that drafted nothing, one that
verified a full draft of k tokens, and one that verified a shorter draft. For an answer of N tokens

    predicted decode tok/s = (N - 1) / (sum over the steps after the prompt's of their kind's seconds)
    predicted speed-up     = tokens per step / relative step cost

where the relative step cost is the mean of those seconds in seconds that the baseline takes for a token of the same
answer: the second line is the first over the baseline's decode tok/s. Assumed: a step's time does not depend on what is
accepted, and a kind costs the same in all prompts.

Which kind is dear hangs on the machine, so each is measured. On a CPU a step grows with the tokens that it verifies. On
an H200 with vLLM 0.20 a step that verifies a full draft takes less than half of one that drafts less or nothing; likely
because CUDA graphs of whole steps exist for the full draft's shape alone, but that is inferred from the times.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import Any, Literal

from samebytes import definitions, stats
from samebytes.errors import UsageError
from samebytes.record import Record, Request
from samebytes.replay import Answer, Replay, Runner, Settings, Step

Kind = Literal["none", "part", "full"]
"""What a step drafted: nothing, fewer than k tokens, k tokens."""
Steps = tuple[tuple[Kind, int], ...]
"""How many steps of which kind."""
MIN_STEPS = 10
"""Steps of a kind that a run needs for their mean to count."""


# --- what a record holds -------------------------------------------------------------------------


def _option(argv: Sequence[str], name: str) -> str | None:
    """Return the value of a command line's option, given as two arguments or as one with ``=``; the last one counts."""
    found = None
    for i, argument in enumerate(argv):
        if argument == name and i + 1 < len(argv):
            found = argv[i + 1]
        elif argument.startswith(f"{name}="):
            found = argument.removeprefix(f"{name}=")
    return found


def settings_of(record: Record) -> Settings | None:
    """Return the n-gram settings that a run's server had, or None where it did not speculate by n-gram."""
    flag = _option(record.config.argv, "--speculative-config")
    if flag is None:
        return None
    value = json.loads(flag)
    return Settings.of(value) if value.get("method") == "ngram" else None


def _settings(record: Record) -> Settings:
    settings = settings_of(record)
    if settings is None:
        raise UsageError(f"{record.label} did not speculate by n-gram: {' '.join(record.config.argv)}")
    return settings


def speculates(record: Record) -> bool:
    """Return whether a run's server speculated at all."""
    return _option(record.config.argv, "--speculative-config") is not None


def runner_of(record: Record) -> Runner:
    """Return whose rule a server's ``ngram`` follows (see `samebytes.replay`).

    On a GPU vLLM 0.32 runs its second model runner, on a CPU and in 0.20 the first. Versions between the two are taken
    for the first, unexamined.
    """
    version = [int(part) for part in (record.versions.vllm or "0").split("+")[0].split(".")[:2] if part.isdigit()]
    return "v2" if record.machine.gpu is not None and version >= [0, 32] else "v1"


def _limit(record: Record) -> int | None:
    value = _option(record.config.argv, "--max-model-len")
    return int(value) if value is not None and value.isdigit() else None


def replayable(request: Request) -> bool:
    """Return whether a request holds all of its prompt's and its answer's token ids."""
    return (
        request.status == "ok"
        and bool(request.prompt_token_ids)
        and bool(request.token_ids)
        and len(request.token_ids or ()) == request.completion_tokens
    )


def answer_of(record: Record, request: Request, *, max_k: int = 10, max_n: int = 10) -> Answer:
    """Return a request's prompt and answer for replay, under its server's rule and limit."""
    return Answer(
        request.prompt_token_ids or (),
        request.token_ids or (),
        runner=runner_of(record),
        max_model_len=_limit(record),
        max_k=max_k,
        max_n=max_n,
    )


# --- predicted against counted -------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A prompt's counters, predicted by replay and as the server counted them.

    Attributes
    ----------
    id, workload : str
    same_answer : bool
        Whether the answer replayed is token for token the one that the counters belong to.
    predicted : Replay
    drafts, draft_tokens, accepted_tokens : int
        The server's.
    accepted_per_pos : tuple of int or None
        The server's; None where it gave none.
    steps_agree : bool or None
        Whether every chunk ends where one of the replay's steps ends; None for another answer.
    """

    id: str
    workload: str
    same_answer: bool
    predicted: Replay
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_pos: tuple[int, ...] | None
    steps_agree: bool | None

    @property
    def exact(self) -> bool:
        """Whether drafts and draft tokens are equal, and accepted tokens but for what the last draft leaves open."""
        found = self.predicted
        return (
            (self.drafts, self.draft_tokens) == (found.drafts, found.draft_tokens)
            and found.accepted_tokens <= self.accepted_tokens <= found.accepted_tokens + found.overrun
            and (
                self.accepted_per_pos is None
                or all(
                    low <= n <= low + 1 for low, n in zip(found.accepted_per_pos, self.accepted_per_pos, strict=True)
                )
            )
        )


def check(speculated: Record, answers: Record | None = None) -> list[Check]:
    """Replay a run that speculated by n-gram and put its counters beside.

    Parameters
    ----------
    speculated : Record
        The run whose counters are compared.
    answers : Record or None
        The run whose answers are replayed, say a baseline that never speculated; None: the same run's.

    Raises
    ------
    UsageError
        Where ``speculated`` did not speculate by n-gram.
    """
    settings = _settings(speculated)
    source = {request.id: request for request in (answers or speculated).sequential()}
    found = []
    for counted in speculated.sequential():
        replayed = source.get(counted.id)
        if replayed is None or not (replayable(counted) and replayable(replayed)):
            continue
        if counted.drafts is None or counted.draft_tokens is None or counted.accepted_tokens is None:
            continue
        # The rule is the counting server's, whoever gave the answer.
        whole = answer_of(speculated, replayed, max_k=settings.k, max_n=settings.max_n)
        same = (replayed.prompt_token_ids, replayed.token_ids) == (counted.prompt_token_ids, counted.token_ids)
        step_ends = ends(step.tokens for step in whole.steps(settings))
        found.append(
            Check(
                id=counted.id,
                workload=counted.workload,
                same_answer=same,
                predicted=whole.replay(settings),
                drafts=counted.drafts,
                draft_tokens=counted.draft_tokens,
                accepted_tokens=counted.accepted_tokens,
                accepted_per_pos=None if counted.accepted_per_pos is None else tuple(counted.accepted_per_pos),
                steps_agree=set(ends(n for _, n in counted.chunks)) <= set(step_ends) if same else None,
            )
        )
    return found


# --- what a step costs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class StepTime:
    """Steps of one kind: how many, and their mean in seconds (None: there are none whose time is known)."""

    steps: int
    mean_s: float | None


@dataclass(frozen=True)
class Timing:
    """The steps of one answer after its first chunk.

    Attributes
    ----------
    id : str
    spans : mapping of Steps to (int, float)
        What lay between one chunk and the next: one step, or several where chunks were merged on the way; how often,
        and the seconds of all those times.
    """

    id: str
    spans: Mapping[Steps, tuple[int, float]]


def timings(speculated: Record) -> list[Timing]:
    """Return the step times of a run that speculated by n-gram; the replay says which step drafted how much.

    A prompt whose chunks do not end where the replay's steps end is left out.

    Raises
    ------
    UsageError
        Where ``speculated`` did not speculate by n-gram.
    """
    settings = _settings(speculated)
    found = []
    for request in speculated.sequential():
        if replayable(request):
            steps = answer_of(speculated, request, max_k=settings.k, max_n=settings.max_n).steps(settings)
            if spans := _spans(steps, request, settings.k):
                found.append(Timing(request.id, spans))
    return found


def ends(tokens: Iterable[int | None]) -> list[int]:
    """Return at how many answer tokens each step or chunk ends; one of unknown size ends the list."""
    return list(accumulate(takewhile(lambda n: n is not None, tokens)))  # type: ignore[arg-type]


def _kind(drafted: int, k: int) -> Kind:
    return "none" if not drafted else "full" if drafted == k else "part"


def _spans(steps: Sequence[Step], request: Request, k: int) -> dict[Steps, tuple[int, float]]:
    number = {end: i for i, end in enumerate(ends(step.tokens for step in steps))}
    chunk_ends = ends(tokens for _, tokens in request.chunks)
    if len(chunk_ends) != len(request.chunks) or not number.keys() >= set(chunk_ends):
        return {}
    found: dict[Steps, tuple[int, float]] = {}
    for (before, after), ((t0, _), (t1, _)) in zip(pairwise(chunk_ends), pairwise(request.chunks), strict=True):
        between = steps[number[before] + 1 : number[after] + 1]
        key = tuple(sorted(Counter(_kind(step.drafted, k) for step in between).items()))
        times, seconds = found.get(key, (0, 0.0))
        found[key] = times + 1, seconds + t1 - t0
    return found


def step_times(found: Iterable[Timing]) -> dict[Kind, StepTime]:
    """Return each kind's mean, total time over steps.

    Time in which steps of several kinds passed is shared among them in proportion to their means without it.
    """
    counts: Counter[Steps] = Counter()
    seconds: dict[Steps, float] = {}
    for key, (times, span_s) in (item for timing in found for item in timing.spans.items()):
        counts[key] += times
        seconds[key] = seconds.get(key, 0.0) + span_s
    n: Counter[Kind] = Counter()
    total: dict[Kind, float] = {"none": 0.0, "part": 0.0, "full": 0.0}
    for key in (key for key in counts if len(key) == 1):
        ((kind, steps_each),) = key
        n[kind] += steps_each * counts[key]
        total[kind] += seconds[key]
    means = {kind: total[kind] / n[kind] for kind in n}
    for key in (key for key in counts if len(key) > 1 and means.keys() >= {kind for kind, _ in key}):
        unit = sum(means[kind] * steps_each for kind, steps_each in key)
        for kind, steps_each in key:
            n[kind] += steps_each * counts[key]
            total[kind] += seconds[key] * means[kind] * steps_each / unit
    return {kind: StepTime(n[kind], total[kind] / n[kind] if n[kind] else None) for kind in total}


def token_time(plain: Record) -> StepTime:
    """Return the steps of a run that does not speculate, one a token: those after the first chunk of each answer."""
    tokens, seconds = 0, 0.0
    for request in plain.sequential():
        sizes = [n for _, n in request.chunks]
        if request.status == "ok" and len(sizes) > 1 and None not in sizes:
            tokens += sum(n or 0 for n in sizes[1:])
            seconds += request.chunks[-1][0] - request.chunks[0][0]
    return StepTime(tokens, seconds / tokens if tokens else None)


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step by what it drafted (or baseline steps, where ``baseline_s`` is 1).

    Attributes
    ----------
    baseline_s : float
        Of the baseline, which does not speculate: what a speed-up is over.
    single_s : float
        Of a server that does not speculate and schedules as the speculating one does: vLLM switches async scheduling
        off for n-gram speculation.
    none_s : float
        Of the speculating server, where it drafted nothing.
    full : tuple of (int, float)
        Of the speculating server where it verified a full draft, by k, ascending: what was measured.
    n : int
        Prompts behind it; 0: assumed.
    """

    baseline_s: float
    single_s: float
    none_s: float
    full: tuple[tuple[int, float], ...]
    n: int = 0

    def full_s(self, k: int) -> float:
        """Return the time of a step that verifies a full draft of ``k`` tokens.

        Between what was measured the time runs straight, starting from a single token's; beyond it runs on along the
        line from there through the last. More tokens never take less time.
        """
        start = min(self.single_s, *(seconds for _, seconds in self.full))
        x0, y0 = 0, start
        for x1, y1 in self.full:
            if k <= x1:
                return y0 + (y1 - y0) * (k - x0) / (x1 - x0)
            x0, y0 = x1, y1
        return start + (y0 - start) * k / x0

    def step_s(self, drafted: int, k: int) -> float:
        """Return the time of a step that drafts ``drafted`` tokens of at most ``k``.

        A draft of fewer than k costs what as many tokens of a full draft cost, and no less than no draft: it has the
        shape that full drafts are not.
        """
        if not drafted:
            return self.none_s
        return self.full_s(k) if drafted == k else max(self.none_s, self.full_s(drafted))

    @property
    def reach(self) -> int:
        """Most drafted tokens whose cost is measured; beyond it the cost is extrapolated."""
        return self.full[-1][0]

    def known(self, k: int) -> Literal["measured", "interpolated", "extrapolated"]:
        """Return how the time of a full draft of ``k`` tokens is known."""
        return "measured" if k in dict(self.full) else "interpolated" if k < self.reach else "extrapolated"

    def seconds(self, found: Replay) -> float:
        """Return how long the steps after the prompt's take."""
        k = len(found.drafts_of) - 1
        drafted = sum(count * self.step_s(n, k) for n, count in enumerate(found.drafts_of) if count)
        return (found.steps - 1 - found.drafts) * self.none_s + drafted

    def speed_up(self, found: Replay) -> float:
        """Return the speed-up of an answer of at least two tokens over the baseline."""
        return (found.tokens - 1) * self.baseline_s / self.seconds(found)


def assumed(ratio: float = 1.0, drafted: int = 5) -> StepCost:
    """Return a cost that nobody measured here: a step that verifies ``drafted`` tokens takes ``ratio`` baseline steps.

    With 1.0 verification is free: an upper bound.
    """
    return StepCost(baseline_s=1.0, single_s=1.0, none_s=1.0, full=((drafted, ratio),))


def step_cost(
    found: Sequence[Timing], k: int, baseline_s: float | None = None, single_s: float | None = None
) -> StepCost | None:
    """Return the cost measured by a run that drafted up to ``k`` tokens.

    Parameters
    ----------
    found : sequence of Timing
        The run's, or those of some of its prompts.
    baseline_s, single_s : float or None
        See `StepCost`. Without them a step that drafts nothing stands for both.

    Returns
    -------
    StepCost or None
        None where fewer than `MIN_STEPS` steps verified a full draft. Where fewer drafted nothing, such a step is taken
        to cost what ``single_s`` says, else what a full draft costs.
    """
    times = step_times(found)
    full_s, none_s = times["full"].mean_s, times["none"].mean_s
    if full_s is None or times["full"].steps < MIN_STEPS:
        return None
    if none_s is None or times["none"].steps < MIN_STEPS:
        none_s = full_s if single_s is None else single_s
    baseline_s = none_s if baseline_s is None else baseline_s
    single_s = baseline_s if single_s is None else single_s
    return StepCost(baseline_s, single_s, none_s, ((k, full_s),), n=len(found))


def pool(costs: Sequence[StepCost]) -> StepCost | None:
    """Return the mean over runs of each kind's cost, full drafts by their k; None for no runs."""
    if not costs:
        return None
    by_k: dict[int, list[float]] = {}
    for cost in costs:
        for k, seconds in cost.full:
            by_k.setdefault(k, []).append(seconds)

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    return StepCost(
        baseline_s=mean([c.baseline_s for c in costs]),
        single_s=mean([c.single_s for c in costs]),
        none_s=mean([c.none_s for c in costs]),
        full=tuple((k, mean(values)) for k, values in sorted(by_k.items())),
        n=max(c.n for c in costs),
    )


def circumstances(record: Record) -> tuple[Any, ...]:
    """Return what runs must share for one's step cost to hold for the other."""
    return record.model.id, record.machine.gpu, record.machine.cpu, record.config.env


def _async(record: Record) -> bool | None:
    return record.launches[0].async_scheduling if record.launches else None


@dataclass(frozen=True)
class Plain:
    """What a run that speculates is held against: runs that do not, in the same `circumstances`.

    Attributes
    ----------
    baseline_s, single_s : float or None
        See `StepCost`; means over the runs.
    tok_s : mapping of str to float
        The baseline's decode tok/s by prompt: geometric mean over its runs.
    answers : mapping of str to list of int
        The baseline's token ids by prompt, of its first run.
    """

    baseline_s: float | None
    single_s: float | None
    tok_s: Mapping[str, float]
    answers: Mapping[str, Sequence[int] | None]


def plain_of(speculated: Record, plain: Iterable[Record], baseline: str = "baseline") -> Plain:
    """Return what to hold a run that speculates against.

    Parameters
    ----------
    speculated : Record
        The run.
    plain : iterable of Record
        Any runs. A baseline without async scheduling, as the speculating server has it, gives ``single_s``.
    baseline : str
        Config that a speed-up is over.
    """
    found = [r for r in plain if circumstances(r) == circumstances(speculated) and not speculates(r)]
    over = [r for r in found if r.config.name == baseline]
    alike = [r for r in found if r.config.name.startswith("baseline") and _async(r) == _async(speculated)]
    rates: dict[str, list[float]] = {}
    for request in (request for r in over for request in r.sequential()):
        if request.status == "ok" and request.decode_tok_s:
            rates.setdefault(request.id, []).append(request.decode_tok_s)
    return Plain(
        baseline_s=_mean_token_s(over),
        single_s=_mean_token_s(alike),
        tok_s={key: stats.geometric_mean(values) for key, values in rates.items()},
        answers={r.id: r.token_ids for r in over[0].sequential()} if over else {},
    )


def _mean_token_s(plain: Sequence[Record]) -> float | None:
    known = [seconds for r in plain if (seconds := token_time(r).mean_s) is not None]
    return math.fsum(known) / len(known) if known else None


def cost_of(speculated: Record, plain: Plain) -> StepCost | None:
    """Return the step cost that a run measured, see `step_cost`; raises as `timings`."""
    return step_cost(timings(speculated), _settings(speculated).k, plain.baseline_s, plain.single_s)


# --- predicted against measured speed ------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """A prompt's predicted decode speed and the measured one.

    Attributes
    ----------
    id, workload : str
    same_answer : bool or None
        Whether the answer is token for token the baseline's; None without a baseline.
    tokens_per_step : float
        Of the steps after the prompt's: ``(N - 1) / (steps - 1)``.
    step_cost : float or None
        Predicted mean of a step, in seconds that the baseline takes for a token of this prompt's answer.
    tok_s : float
        Predicted decode tok/s.
    one_cost_tok_s : float
        Predicted where all steps cost the same.
    interval : Interval or None
        Where the measured tok/s is expected, from how far the other prompts' predictions were off.
    measured_tok_s : float
    speed_up, measured_speed_up : float or None
        Over the baseline; None without its speed.
    """

    id: str
    workload: str
    same_answer: bool | None
    tokens_per_step: float
    step_cost: float | None
    tok_s: float
    one_cost_tok_s: float
    interval: stats.Interval | None
    measured_tok_s: float
    speed_up: float | None
    measured_speed_up: float | None

    @property
    def error(self) -> float:
        """Predicted over measured tok/s, minus 1."""
        return self.tok_s / self.measured_tok_s - 1


def predict(speculated: Record, plain: Plain, costs: Record | None = None) -> list[Prediction]:
    """Predict a run's speed from its answers, each prompt by the step cost of the other prompts.

    Where an answer is the baseline's, the baseline's record alone predicts the same: nothing of the run enters but
    answers and, without ``costs``, the other prompts' step times.

    Parameters
    ----------
    speculated : Record
        A run that speculated by n-gram.
    plain : Plain
        See `plain_of`.
    costs : Record or None
        The run that gives the step cost; None: the same.

    Raises
    ------
    UsageError
        Where a run did not speculate by n-gram.
    """
    settings, measured = _settings(speculated), costs or speculated
    k, found = _settings(measured).k, timings(measured)
    predictions = []
    for request in speculated.sequential():
        rate = request.decode_tok_s
        if not (replayable(request) and rate and definitions.counts_for_speed(request.completion_tokens)):
            continue
        others = [timing for timing in found if timing.id != request.id]
        cost = step_cost(others, k, plain.baseline_s, plain.single_s)
        if cost is None:
            continue
        counters = answer_of(speculated, request, max_k=settings.k, max_n=settings.max_n).replay(settings)
        predictions.append(_prediction(request, rate, counters, cost, _mean_step_s(others), plain))
    errors = [math.log(p.measured_tok_s / p.tok_s) for p in predictions]
    return [replace(p, interval=_around(p.tok_s, errors[:i] + errors[i + 1 :])) for i, p in enumerate(predictions)]


def _prediction(
    request: Request, rate: float, counters: Replay, cost: StepCost, mean_s: float, plain: Plain
) -> Prediction:
    steps, seconds = counters.steps - 1, cost.seconds(counters)
    tok_s = (counters.tokens - 1) / seconds
    reference = plain.tok_s.get(request.id)
    return Prediction(
        id=request.id,
        workload=request.workload,
        same_answer=request.token_ids == plain.answers[request.id] if request.id in plain.answers else None,
        tokens_per_step=(counters.tokens - 1) / steps,
        step_cost=None if reference is None else seconds / steps * reference,
        tok_s=tok_s,
        one_cost_tok_s=(counters.tokens - 1) / (steps * mean_s),
        interval=None,
        measured_tok_s=rate,
        speed_up=None if reference is None else tok_s / reference,
        measured_speed_up=None if reference is None else rate / reference,
    )


def _mean_step_s(found: Sequence[Timing]) -> float:
    spans = [item for timing in found for item in timing.spans.items()]
    steps = sum(times * sum(n for _, n in key) for key, (times, _) in spans)
    return math.fsum(seconds for _, (_, seconds) in spans) / steps


def _around(value: float, errors: Sequence[float]) -> stats.Interval | None:
    found = stats.prediction_interval(errors)
    return None if found is None else stats.Interval(value * math.exp(found.low), value * math.exp(found.high))


@dataclass(frozen=True)
class Errors:
    """Absolute errors of several predictions, relative to what was measured."""

    median: float
    worst: float


def _errors(pairs: Iterable[tuple[float, float]]) -> Errors | None:
    """Return the errors of (predicted, measured)."""
    found = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return Errors(stats.median(found), max(found)) if found else None


@dataclass(frozen=True)
class Forecast:
    """The predictions of one run by the step cost of a run, and how far they were off.

    Attributes
    ----------
    label, costs : str
        The run predicted, and the one that gave the step cost.
    by_kind, one_cost : Errors
        With a cost for each kind of step, and with one for all.
    run_to_run : Errors or None
        The other run's measured speeds taken as the prediction, where it gave the same answers with the same settings:
        as near as any cost of steps can come.
    within : int
        Predictions whose interval holds the measured speed, of those that have one.
    """

    label: str
    costs: str
    predictions: tuple[Prediction, ...]
    by_kind: Errors
    one_cost: Errors
    run_to_run: Errors | None
    within: tuple[int, int]


def forecast(speculated: Record, costs: Record, plain: Plain) -> Forecast | None:
    """Predict a run and say how far that was off, see `predict`; None where nothing can be predicted."""
    found = predict(speculated, plain, costs)
    by_kind = _errors((p.tok_s, p.measured_tok_s) for p in found)
    one_cost = _errors((p.one_cost_tok_s, p.measured_tok_s) for p in found)
    if by_kind is None or one_cost is None:
        return None
    bounds = [(p.interval, p.measured_tok_s) for p in found if p.interval is not None]
    return Forecast(
        label=speculated.label,
        costs=costs.label,
        predictions=tuple(found),
        by_kind=by_kind,
        one_cost=one_cost,
        run_to_run=None if costs.label == speculated.label else _run_to_run(costs, speculated),
        within=(sum(bound.low <= rate <= bound.high for bound, rate in bounds), len(bounds)),
    )


def _run_to_run(a: Record, b: Record) -> Errors | None:
    if settings_of(a) != settings_of(b):
        return None
    there = {request.id: request for request in a.sequential()}
    return _errors(
        (there[r.id].decode_tok_s or 0, r.decode_tok_s)
        for r in b.sequential()
        if definitions.counts_for_speed(r.completion_tokens)
        and r.decode_tok_s
        and r.id in there
        and there[r.id].decode_tok_s
        and there[r.id].token_ids == r.token_ids
    )


# --- a study -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepRow:
    """What the steps of one run took.

    Attributes
    ----------
    k : int or None
        Most tokens of a draft; None: the run does not speculate, and its steps are all ``none``.
    none, part, full : StepTime
        Steps that drafted nothing, fewer than k tokens, and k tokens.
    baseline_s : float or None
        A step of the config that it is compared with.
    """

    label: str
    config: str
    k: int | None
    none: StepTime
    part: StepTime
    full: StepTime
    baseline_s: float | None


def rows(found: Sequence[Record], references: Sequence[str]) -> list[StepRow]:
    """Return what a step took in every complete run, in the order given.

    Parameters
    ----------
    found : sequence of Record
        A study's; one that speculates in another way than by n-gram is passed over.
    references : sequence of str
        Configs to compare with: for each run the first that has its `circumstances`.
    """
    nothing = StepTime(0, None)
    result = []
    for record in complete(found):
        settings = settings_of(record)
        over = plain_of(record, found, _reference(record, found, references)).baseline_s
        if settings is not None:
            times = step_times(timings(record))
            row = StepRow(
                record.label, record.config.name, settings.k, times["none"], times["part"], times["full"], over
            )
            result.append(row)
        elif not speculates(record):
            result.append(StepRow(record.label, record.config.name, None, token_time(record), nothing, nothing, over))
    return result


def forecasts(found: Sequence[Record], references: Sequence[str]) -> list[Forecast]:
    """Predict every complete n-gram run by its own step cost and by that of each other one in its `circumstances`."""
    ran = [record for record in complete(found) if settings_of(record) is not None]
    result = []
    for record in ran:
        plain = plain_of(record, complete(found), _reference(record, found, references))
        others = [r for r in ran if r is not record and circumstances(r) == circumstances(record)]
        result += [forecast(record, costs, plain) for costs in (record, *others)]
    return [one for one in result if one is not None]


def complete(found: Iterable[Record]) -> list[Record]:
    """Return the complete ones of several runs."""
    return [record for record in found if record.status == "complete"]


def _reference(record: Record, found: Sequence[Record], references: Sequence[str]) -> str:
    alike = {r.config.name for r in found if circumstances(r) == circumstances(record)}
    return next((name for name in references if name in alike), "")
