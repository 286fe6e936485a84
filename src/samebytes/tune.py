"""Which n-gram settings suit recorded answers: replayed counters, a model of a step's cost, a sweep.

A decode step that verifies d drafted tokens runs d + 1 rows through the model and takes ``ratio(d)`` plain steps of the
same server; a plain step of a speculating server takes ``overhead`` baseline steps (vLLM switches async scheduling off
for it, and looks for n-grams after every step). So, for an answer of N tokens,

    speed-up = (N - 1) / (overhead × (plain steps + sum over drafts of ratio(drafted)))

and predicted decode tok/s = speed-up × the baseline's. Assumed: a step's time does not depend on what is accepted, the
first step after the prompt is like the others, a ratio holds for all prompts of the machine, more rows never take less
time, and between the measured numbers of drafted tokens, and beyond them, the ratio runs straight.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from samebytes import record as records
from samebytes import stats
from samebytes.errors import RecordError, UsageError
from samebytes.record import Record, Request
from samebytes.replay import ARTICLE, Answer, Replay, Runner, Settings, Step

GRID = tuple(
    Settings(k, shortest, longest) for k in range(1, 11) for shortest in range(1, 6) for longest in range(shortest, 11)
)
"""Every setting of a sweep: 400."""
MIN_STEPS = 3
"""Steps of a kind that a prompt needs for its median to count."""
MIN_PROMPTS = 3
"""Prompts that a number of drafted tokens needs for its ratio to count."""


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


def answer_of(record: Record, request: Request, **largest: int) -> Answer:
    """Return a request's prompt and answer for replay, under its server's rule and limit."""
    return Answer(
        request.prompt_token_ids or (),
        request.token_ids or (),
        runner=runner_of(record),
        max_model_len=_limit(record),
        **largest,
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
    settings = settings_of(speculated)
    if settings is None:
        raise UsageError(f"{speculated.label} did not speculate by n-gram: {' '.join(speculated.config.argv)}")
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
class Timing:
    """A prompt's step times in a run that speculated, as ratios of medians.

    Attributes
    ----------
    id : str
    overhead : float or None
        Plain step over the baseline's step; None without a baseline's.
    ratios : mapping of int to float
        Step that verified d drafted tokens over plain step, by d.
    """

    id: str
    overhead: float | None
    ratios: Mapping[int, float]


@dataclass(frozen=True)
class StepCost:
    """Cost of a step in baseline steps; see the module's formula.

    Attributes
    ----------
    overhead : float
        Plain step of the speculating server over the baseline's step; 1 where no baseline is there to compare with.
    ratios : tuple of (int, float)
        Measured (drafted tokens, step over plain step), ascending.
    n : int
        Prompts behind it; 0: assumed.
    """

    overhead: float
    ratios: tuple[tuple[int, float], ...]
    n: int = 0

    def ratio(self, drafted: int) -> float:
        """Return a step's time over a plain step's, straight between (0, 1) and the measured points.

        Beyond the last point it runs on along the line from (0, 1) through that point. Never below 1: a smaller median
        is noise.
        """
        x0, y0 = 0, 1.0
        for x1, y1 in self.ratios:
            if drafted <= x1:
                return max(1.0, y0 + (y1 - y0) * (drafted - x0) / (x1 - x0))
            x0, y0 = x1, y1
        return max(1.0, 1 + (y0 - 1) * drafted / x0)

    @property
    def reach(self) -> int:
        """Most drafted tokens whose cost is measured; beyond it the ratio is extrapolated."""
        return self.ratios[-1][0]

    def speed_up(self, found: Replay) -> float:
        """Return the speed-up of an answer of at least two tokens over plain decoding."""
        plain = found.steps - 1 - found.drafts
        verified = sum(count * self.ratio(drafted) for drafted, count in enumerate(found.drafts_of) if count)
        return (found.tokens - 1) / (self.overhead * (plain + verified))


def assumed(ratio: float = 1.0, drafted: int = ARTICLE.k) -> StepCost:
    """Return a cost that nobody measured here: a step that verifies ``drafted`` tokens takes ``ratio`` plain steps.

    With 1.0 verification is free: an upper bound.
    """
    return StepCost(overhead=1.0, ratios=((drafted, ratio),))


def timings(speculated: Record, baseline: Record | None = None) -> list[Timing]:
    """Return the step times of a run that speculated by n-gram; the replay says which step verified how much.

    A step's time is that between its chunk and the one before. A chunk that several steps were merged into on the way
    is no step's; a prompt whose chunks do not end where the replay's steps end is left out.

    Raises
    ------
    UsageError
        Where ``speculated`` did not speculate by n-gram.
    """
    settings = settings_of(speculated)
    if settings is None:
        raise UsageError(f"{speculated.label} did not speculate by n-gram")
    plain = {} if baseline is None else {r.id: _gaps(r) for r in baseline.sequential() if replayable(r)}
    found = []
    for request in speculated.sequential():
        if not replayable(request):
            continue
        steps = answer_of(speculated, request, max_k=settings.k, max_n=settings.max_n).steps(settings)
        by_drafted = _times(steps, request)
        medians = {d: stats.median(gaps) for d, gaps in sorted(by_drafted.items()) if len(gaps) >= MIN_STEPS}
        if 0 not in medians:
            continue
        step_s = medians.pop(0)
        reference = plain.get(request.id, [])
        found.append(
            Timing(
                id=request.id,
                overhead=step_s / stats.median(reference) if len(reference) >= MIN_STEPS else None,
                ratios={drafted: median / step_s for drafted, median in medians.items()},
            )
        )
    return found


def ends(tokens: Iterable[int | None]) -> list[int]:
    """Return at how many answer tokens each step or chunk ends; one of unknown size ends the list."""
    return list(accumulate(takewhile(lambda n: n is not None, tokens)))  # type: ignore[arg-type]


def _times(steps: Sequence[Step], request: Request) -> dict[int, list[float]]:
    """Return the times of an answer's steps but the prompt's by how much they verified; empty where chunks disagree."""
    number = {end: i for i, end in enumerate(ends(step.tokens for step in steps))}
    chunk_ends = ends(tokens for _, tokens in request.chunks)
    if len(chunk_ends) != len(request.chunks) or not number.keys() >= set(chunk_ends):
        return {}
    by_drafted: dict[int, list[float]] = {}
    for (before, after), gap in zip(pairwise(chunk_ends), _gaps(request), strict=True):
        if number[after] == number[before] + 1:
            by_drafted.setdefault(steps[number[after]].drafted, []).append(gap)
    return by_drafted


def _gaps(request: Request) -> list[float]:
    return [after - before for (before, _), (after, _) in pairwise(request.chunks)]


def pool(found: Sequence[Timing]) -> StepCost | None:
    """Return the median over prompts of each ratio; None where no number of drafted tokens has `MIN_PROMPTS`."""
    by_drafted: dict[int, list[float]] = {}
    for timing in found:
        for drafted, ratio in timing.ratios.items():
            by_drafted.setdefault(drafted, []).append(ratio)
    ratios = tuple((d, stats.median(values)) for d, values in sorted(by_drafted.items()) if len(values) >= MIN_PROMPTS)
    overheads = [timing.overhead for timing in found if timing.overhead is not None]
    if not ratios:
        return None
    return StepCost(overhead=stats.median(overheads) if overheads else 1.0, ratios=ratios, n=len(found))


def resampled(found: Sequence[Timing], resamples: int = stats.RESAMPLES, seed: int = stats.SEED) -> list[StepCost]:
    """Return the pooled costs of seeded bootstrap resamples of the prompts (those that allow a cost)."""
    draw = random.Random(seed).random  # noqa: S311 - resampling, not a secret
    n = len(found)
    drawn = (pool([found[int(draw() * n)] for _ in range(n)]) for _ in range(resamples))
    return [cost for cost in drawn if cost is not None]


@dataclass(frozen=True)
class Prediction:
    """A prompt's predicted decode speed and, where it was measured, the measured one.

    Attributes
    ----------
    id, workload : str
    speed_up : float
        Predicted, over the baseline.
    interval : Interval or None
        Of the step cost (bootstrap over prompts); what varies from prompt to prompt is not in it.
    tok_s : float or None
        Predicted decode tok/s; None without a baseline's.
    measured_tok_s, measured_speed_up : float or None
    same_answer : bool
        Whether the speculating run gave the very answer that was replayed; where not, the measured speed is another
        answer's.
    """

    id: str
    workload: str
    speed_up: float
    interval: stats.Interval | None
    tok_s: float | None
    measured_tok_s: float | None
    measured_speed_up: float | None
    same_answer: bool

    @property
    def error(self) -> float | None:
        """Predicted over measured tok/s, minus 1."""
        return None if self.tok_s is None or not self.measured_tok_s else self.tok_s / self.measured_tok_s - 1


def predict(baseline: Record, speculated: Record, settings: Settings | None = None) -> list[Prediction]:
    """Predict a speculating run's speed from a baseline's answers, each prompt by the step cost of the others.

    Parameters
    ----------
    baseline : Record
        Whose answers are replayed, and whose speed is multiplied.
    speculated : Record
        A run that speculated by n-gram: its chunks give the step cost, its speeds are compared where ``settings`` are
        its own.
    settings : Settings or None
        What to predict; None: the settings of ``speculated``.

    Raises
    ------
    UsageError
        Where ``speculated`` did not speculate by n-gram.
    """
    own = settings_of(speculated)
    chosen = settings or own
    found = timings(speculated, baseline)
    costs = resampled(found)
    ran = {r.id: r for r in speculated.sequential() if r.status == "ok"}
    predictions = []
    for request in baseline.sequential():
        cost = pool([timing for timing in found if timing.id != request.id])
        if cost is None or chosen is None or not replayable(request) or (request.completion_tokens or 0) < 2:
            continue
        counters = answer_of(speculated, request, max_k=chosen.k, max_n=chosen.max_n).replay(chosen)
        speed_up, rate = cost.speed_up(counters), request.decode_tok_s
        spread = [other.speed_up(counters) for other in costs]
        counted = ran.get(request.id)
        real = counted.decode_tok_s if counted is not None and chosen == own else None
        predictions.append(
            Prediction(
                id=request.id,
                workload=request.workload,
                speed_up=speed_up,
                interval=_interval(spread),
                tok_s=None if rate is None else speed_up * rate,
                measured_tok_s=real,
                measured_speed_up=real / rate if real is not None and rate else None,
                same_answer=counted is not None and counted.token_ids == request.token_ids,
            )
        )
    return predictions


def _interval(values: Sequence[float]) -> stats.Interval | None:
    tail = 50 * (1 - stats.LEVEL)
    return stats.Interval(stats.percentile(values, tail), stats.percentile(values, 100 - tail)) if values else None


# --- the sweep -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A prompt and its answer, whoever recorded them."""

    id: str
    workload: str
    answer: Answer


def samples(record: Record) -> list[Sample]:
    """Return the answers of a record's sequential pass that can be replayed and have a second token."""
    return [
        Sample(request.id, request.workload, answer_of(record, request))
        for request in record.sequential()
        if replayable(request) and (request.completion_tokens or 0) > 1
    ]


@dataclass(frozen=True)
class Choice:
    """The best settings of a sweep for some prompts.

    Attributes
    ----------
    workload : str or None
        None: all of them.
    n : int
        Prompts.
    settings : Settings
    speed_up, article : float
        Geometric mean over the prompts, with these settings and with the article's.
    held_out : float or None
        Gain over the article's on prompts that the choice did not see: each prompt's settings are chosen on the others.
        None for a single prompt.
    """

    workload: str | None
    n: int
    settings: Settings
    speed_up: float
    article: float
    held_out: float | None

    @property
    def gain(self) -> float:
        """Speed-up over the article's settings, on the prompts that the choice was made on."""
        return self.speed_up / self.article


@dataclass(frozen=True)
class Sweep:
    """Every setting of a grid replayed on every answer."""

    samples: Sequence[Sample]
    cost: StepCost
    grid: Sequence[Settings] = GRID

    @cached_property
    def replays(self) -> dict[Settings, list[Replay]]:
        """Counters by settings, in the order of the samples."""
        return {settings: [s.answer.replay(settings) for s in self.samples] for settings in self.grid}

    @cached_property
    def speed_ups(self) -> dict[Settings, list[float]]:
        """Predicted speed-ups by settings, in the order of the samples."""
        return {settings: [self.cost.speed_up(r) for r in found] for settings, found in self.replays.items()}

    @property
    def workloads(self) -> list[str]:
        """Workloads in the order of the samples."""
        return list(dict.fromkeys(sample.workload for sample in self.samples))

    def _which(self, workload: str | None) -> list[int]:
        return [i for i, sample in enumerate(self.samples) if workload in (None, sample.workload)]

    def speed_up(self, settings: Settings, workload: str | None = None) -> float:
        """Return the geometric mean of the speed-ups of a workload's prompts, or of all."""
        return stats.geometric_mean([self.speed_ups[settings][i] for i in self._which(workload)])

    def best(self, workload: str | None = None) -> Choice:
        """Return the settings of the greatest speed-up; of equals those that draft least."""
        which = self._which(workload)
        settings = self._best(which)
        held_out = None
        if len(which) > 1:
            gains = []
            for i in which:
                chosen = self._best([j for j in which if j != i])
                gains.append(self.speed_ups[chosen][i] / self.speed_ups[ARTICLE][i])
            held_out = stats.geometric_mean(gains)
        return Choice(
            workload=workload,
            n=len(which),
            settings=settings,
            speed_up=self.speed_up(settings, workload),
            article=self.speed_up(ARTICLE, workload),
            held_out=held_out,
        )

    def _best(self, which: Sequence[int]) -> Settings:
        def merit(settings: Settings) -> tuple[float, int, int, int]:
            mean = stats.geometric_mean([self.speed_ups[settings][i] for i in which])
            return round(mean, 9), -settings.k, settings.min_n, -settings.max_n

        return max(self.grid, key=merit)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per workload (``all`` too) and settings: what is predicted, for charts and tables."""
        rows = []
        for workload in (None, *self.workloads):
            which = self._which(workload)
            for settings in self.grid:
                found = [self.replays[settings][i] for i in which]
                drafts = sum(r.drafts for r in found)
                drafted = sum(r.draft_tokens for r in found)
                accepted = sum(r.accepted_tokens for r in found)
                steps = sum(r.steps for r in found)
                rows.append(
                    {
                        "workload": workload or "all",
                        **settings._asdict(),
                        "speed_up": round(self.speed_up(settings, workload), 4),
                        "drafts": drafts,
                        "draft_tokens": drafted,
                        "accepted_tokens": accepted,
                        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
                        "tokens_per_step": round(sum(r.tokens for r in found) / steps, 4),
                        "accepted_from_prompt": sum(r.accepted_from_prompt for r in found),
                    }
                )
        return rows


def flag(settings: Settings) -> str:
    """Return the argument of ``vllm serve`` to paste into a shell."""
    return f"--speculative-config '{json.dumps(settings.flag())}'"


def text(sweep: Sweep) -> str:
    """Return a sweep as text for a terminal: the best settings per workload and overall, and the flag to paste."""
    cost = sweep.cost
    points = ", ".join(f"{ratio:.2f} for {drafted} drafted" for drafted, ratio in cost.ratios)
    where = f"measured on {cost.n} prompts" if cost.n else "assumed, not measured"
    lines = [
        f"{len(sweep.samples)} answers, {sum(s.answer.n_answer for s in sweep.samples):,} tokens",
        f"a verifying step in plain steps: {points}; a plain step in baseline steps: {cost.overhead:.2f} ({where})",
        "",
        f"{'workload':12}  prompts   k  min  max  speed-up  with {_triple(ARTICLE)}  gain  gain on unseen prompts",
    ]
    for workload in (*sweep.workloads, None):
        best = sweep.best(workload)
        unseen = "–" if best.held_out is None else f"{best.held_out:.2f}"
        lines.append(
            f"{workload or 'all':12}  {best.n:7}  {best.settings.k:2}  {best.settings.min_n:3}  {best.settings.max_n:3}"
            f"  {best.speed_up:8.2f}  {best.article:10.2f}  {best.gain:4.2f}  {unseen:>22}"
        )
    overall = sweep.best()
    if overall.settings.k > cost.reach:
        lines += ["", f"the cost of more than {cost.reach} drafted tokens is extrapolated: measure before you trust it"]
    if overall.speed_up > 1:
        lines += ["", flag(overall.settings)]
    else:
        lines += ["", "no settings are faster than no speculation: leave it off"]
    return "\n".join(lines)


def _triple(settings: Settings) -> str:
    return ",".join(str(value) for value in settings)


def of_records(paths: Sequence[Path], ratio: float | None = None) -> Sweep:
    """Sweep over the answers of records.

    Parameters
    ----------
    paths : sequence of Path
        Records, or folders of them. The answers are those of the first complete run that does not speculate, else of
        the first that does; the step cost is that of all runs that speculate by n-gram and share its model, machine and
        environment variables.
    ratio : float or None
        Cost of a step that verifies five tokens, in plain steps, instead of a measured one. With neither, verification
        counts as free.

    Raises
    ------
    UsageError
        Where no record has answers with token ids.
    RecordError
        Where a named file is no record.
    """
    found = list(_load(paths))
    plain = [r for r in found if not speculates(r)]
    speculated = [r for r in found if settings_of(r) is not None]
    source = next((r for r in (*plain, *speculated) if samples(r)), None)
    if source is None:
        raise UsageError("no complete record with the token ids of prompts and answers among those named")
    if ratio is not None:
        return Sweep(samples(source), assumed(ratio))
    baseline = None if speculates(source) else source
    measured = [t for r in speculated if _circumstances(r) == _circumstances(source) for t in timings(r, baseline)]
    return Sweep(samples(source), pool(measured) or assumed())


def _circumstances(record: Record) -> tuple[Any, ...]:
    return record.model.id, record.machine.gpu, record.machine.cpu, record.config.env


def _load(paths: Iterable[Path]) -> Iterator[Record]:
    for path in paths:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        for file in files:
            try:
                found = records.load(file)
            except RecordError:
                if path.is_dir():
                    continue
                raise
            if found.status == "complete":
                yield found


# --- own traffic ---------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One answer of a transcript and all that precedes it."""

    id: str
    workload: str
    prompt: str
    answer: str


def turns(path: Path) -> list[Turn]:
    """Read own traffic.

    Each line is a JSON object: ``{"messages": [...]}`` as OpenAI's chat has it, every assistant message an answer to
    what precedes it, or ``{"messages": [...], "answer": "..."}``, or ``{"prompt": "...", "response": "..."}``. An
    optional ``workload`` groups lines. A turn's id is its line's number and its own in that line.

    Raises
    ------
    UsageError
        Where the file is missing or a line is none of these; its number is named, never its text.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # a JSON string may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {type(error).__name__}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            workload = str(said.get("workload", "transcripts"))
            found += [Turn(f"{number}.{i}", workload, *pair) for i, pair in enumerate(_pairs(said), 1)]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{path}, line {number}: neither {{messages}}, {{messages, answer}} nor {{prompt, response}}"
            ) from None
    return found


def _pairs(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (prompt, answer) of one line."""
    if "messages" not in said:
        yield _plain(said["prompt"]), _plain(said["response"])
        return
    before = ""
    for message in said["messages"]:
        content = _plain(message.get("content") or "")
        if message["role"] == "assistant" and before and "answer" not in said:
            yield before, content
        before += f"{message['role']}\n{content}\n"
    if "answer" in said:
        yield before, _plain(said["answer"])


def _plain(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts of which the text ones count."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def transcripts(path: Path, tokenizer: Path) -> list[Sample]:
    """Read and tokenise own traffic (see `turns`); of its text nothing is kept.

    An approximation: the chat template is not applied, and a model may have made its answer of other tokens than the
    tokenizer makes of its text.

    Parameters
    ----------
    path : Path
        JSON Lines, UTF-8.
    tokenizer : Path
        ``tokenizer.json`` of a Hugging Face model.

    Raises
    ------
    UsageError
        Where ``path`` or ``tokenizer`` cannot be read, no answer has two tokens, or the ``tokenizers`` package is
        missing.
    """
    said = turns(path)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("own transcripts need the tokenizers package: pip install tokenizers") from None
    if not tokenizer.is_file():
        raise UsageError(f"no tokenizer file at {tokenizer}: name the tokenizer.json of a Hugging Face model")
    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the package raises no narrower one
        raise UsageError(f"{tokenizer} is no tokenizer.json: {error}") from None
    found = []
    for turn in said:
        prompt, answer = (loaded.encode(text, add_special_tokens=False).ids for text in (turn.prompt, turn.answer))
        if prompt and len(answer) > 1:
            found.append(Sample(turn.id, turn.workload, Answer(prompt, answer)))
    if not found:
        raise UsageError(f"{path} holds no answer of two tokens or more")
    return found


def of_transcripts(path: Path, tokenizer: Path, paths: Sequence[Path] = (), ratio: float | None = None) -> Sweep:
    """Sweep over own traffic; the step cost is that of records of one's own machine, a given ratio, or none at all."""
    answers = transcripts(path, tokenizer)
    cost = assumed() if ratio is None else assumed(ratio)
    if paths and ratio is None:
        cost = of_records(paths).cost
    return Sweep(answers, cost)
