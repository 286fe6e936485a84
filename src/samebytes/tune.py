"""Which n-gram settings suit recorded answers: replayed counters and the cost of a step, over a grid of settings.

`samebytes.replay` says what steps an answer takes with any settings, `samebytes.speculation` what a step costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from samebytes import analysis, definitions, speculation, stats
from samebytes import record as records
from samebytes.errors import UsageError
from samebytes.record import Record
from samebytes.replay import ARTICLE, Answer, Conversation, Replay, Settings
from samebytes.speculation import StepCost, answer_of, assumed, replayable

GRID = tuple(
    Settings(k, shortest, longest) for k in range(1, 11) for shortest in range(1, 6) for longest in range(shortest, 11)
)
"""Every setting of a sweep: 400."""


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
    notes: tuple[str, ...] = ()
    """What the records say must stand beside their figures, such as that the weights are random."""

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

    @cached_property
    def _logs(self) -> dict[Settings, list[float]]:
        return {settings: [math.log(value) for value in values] for settings, values in self.speed_ups.items()}

    def speed_up(self, settings: Settings, workload: str | None = None) -> float:
        """Return the geometric mean of the speed-ups of a workload's prompts, or of all."""
        return stats.geometric_mean([self.speed_ups[settings][i] for i in self._which(workload)])

    def best(self, workload: str | None = None, lengths: Container[int] | None = None) -> Choice:
        """Return the settings of the greatest speed-up; of equals those that draft least.

        Parameters
        ----------
        workload : str or None
            None: all.
        lengths : container of int or None
            Draft lengths (k) to choose from, say those whose cost was measured; None: all.
        """
        which = self._which(workload)
        grid = [settings for settings in self.grid if lengths is None or settings.k in lengths]
        sums = {settings: math.fsum(self._logs[settings][i] for i in which) for settings in grid}
        settings = _greatest(sums, len(which))
        held_out = None
        if len(which) > 1:
            gains = []
            for i in which:
                rest = {settings: total - self._logs[settings][i] for settings, total in sums.items()}
                chosen = _greatest(rest, len(which) - 1)
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

    def rows(self, grid: Sequence[Settings] | None = None) -> list[dict[str, Any]]:
        """Return one row per workload (``all`` too) and settings: what is predicted, for charts and tables.

        Parameters
        ----------
        grid : sequence of Settings or None
            Of the swept ones; None: all.
        """
        rows = []
        for workload in (None, *self.workloads):
            which = self._which(workload)
            for settings in self.grid if grid is None else grid:
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


def _greatest(sums: Mapping[Settings, float], n: int) -> Settings:
    """Return the settings of the greatest sum of ``n`` logs; of equals those that draft least."""
    return max(sums, key=lambda settings: (round(sums[settings] / n, 9), -settings.k, settings.min_n, -settings.max_n))


def flag(settings: Settings) -> str:
    """Return the argument of ``vllm serve`` to paste into a shell."""
    return f"--speculative-config '{json.dumps(settings.flag())}'"


def text(sweep: Sweep) -> str:
    """Return a sweep as text for a terminal: the best settings per workload and overall, and the flag to paste."""
    cost = sweep.cost
    lines = [
        *(f"note: {note}" for note in sweep.notes),
        f"{len(sweep.samples)} answers, {sum(s.answer.n_answer for s in sweep.samples):,} tokens",
        _cost_line(cost),
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
    known = cost.known(overall.settings.k)
    if cost.n and known != "measured":
        lines += ["", f"the cost of {overall.settings.k} drafted tokens is {known}: measure before you trust it"]
    if overall.speed_up > 1:
        lines += ["", flag(overall.settings)]
    else:
        lines += ["", "no settings are faster than no speculation: leave it off"]
    return "\n".join(lines)


def _cost_line(cost: StepCost) -> str:
    if not cost.n:
        ((k, ratio),) = cost.full
        return f"a step that verifies {k} drafted tokens takes {ratio:.2f} baseline steps (assumed, not measured)"
    full = ", ".join(f"{1000 * seconds:.2f} ms if it verifies {k} drafted tokens" for k, seconds in cost.full)
    return (
        f"a step takes {full}, {1000 * cost.none_s:.2f} ms if it drafted nothing (measured on {cost.n} "
        f"prompts); speed-ups are over {1000 * cost.baseline_s:.2f} ms a token"
    )


def _triple(settings: Settings) -> str:
    return ",".join(str(value) for value in settings)


RATIOS = (0.001, 1000.0)
"""Least and greatest cost that may be assumed; far beyond them a speed-up is no number any more."""


def _assumed(ratio: float) -> StepCost:
    """Return the cost that somebody assumes; raises `UsageError` for one that no step can have."""
    least, greatest = RATIOS
    if not least <= ratio <= greatest:  # so is nan
        raise UsageError(f"--cost {ratio:g}: a finite number above 0 is needed, from {least:g} to {greatest:g}")
    return assumed(ratio)


def of_records(paths: Sequence[Path], ratio: float | None = None) -> Sweep:
    """Sweep over the answers of records.

    Parameters
    ----------
    paths : sequence of Path
        Records, or folders of them; of these the complete ones.
    ratio : float or None
        See `over`.

    Raises
    ------
    UsageError
        Where no record has answers with token ids, or ``ratio`` is outside `RATIOS`.
    RecordError
        Where a named file is no record, and as `analysis.load` for a folder.
    """
    return over(list(_load(paths)), ratio)


def over(found: Sequence[Record], ratio: float | None = None, grid: Sequence[Settings] = GRID) -> Sweep:
    """Sweep over the answers of complete runs.

    The answers are those of the first run that does not speculate, else of the first that does; the step cost is the
    mean of all runs that speculate by n-gram and share its model, machine and environment variables.

    Parameters
    ----------
    found : sequence of Record
        The runs.
    ratio : float or None
        Cost of a step that verifies five tokens, in baseline steps, instead of a measured one. With neither,
        verification counts as free.
    grid : sequence of Settings
        The settings to try.

    Raises
    ------
    UsageError
        Where no run has answers with token ids, or ``ratio`` is outside `RATIOS`.
    """
    plain = [r for r in found if not speculation.speculates(r)]
    speculated = [r for r in found if speculation.settings_of(r) is not None]
    source = next((r for r in (*plain, *speculated) if samples(r)), None)
    if source is None:
        raise UsageError("no complete record with the token ids of prompts and answers among those named")
    notes = tuple(dict.fromkeys(r.note for r in (source, *speculated) if r.note))
    if ratio is not None:
        return Sweep(samples(source), _assumed(ratio), grid, notes)
    alike = [r for r in speculated if speculation.circumstances(r) == speculation.circumstances(source)]
    costs = [speculation.cost_of(r, speculation.plain_of(r, plain, source.config.name)) for r in alike]
    cost = speculation.pool([c for c in costs if c is not None]) or assumed()
    return Sweep(samples(source), cost, grid, notes)


def _load(paths: Iterable[Path]) -> Iterator[Record]:
    for path in paths:
        for found in analysis.load(path) if path.is_dir() else [records.load(path)]:
            if found.status == "complete":
                yield found


# --- what came of it -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """Settings that were measured, or shall be, against what replay says of them without their own runs.

    Attributes
    ----------
    config : str
    settings : Settings
    cost : StepCost
        Of the other configs' runs.
    over : str
        The config that the ratios are to.
    workload : str or None
        None: all.
    predicted : float
        Ratio of decode rates: geometric mean over the prompts that were timed with both configs, or so far with the
        other one.
    measured : RatioEstimate or None
        The same of the measured rates, each prompt's the geometric mean over its config's runs; None before the
        measurement.
    """

    config: str
    settings: Settings
    cost: StepCost
    over: str
    workload: str | None
    predicted: float
    measured: stats.RatioEstimate | None

    @property
    def held(self) -> bool | None:
        """Whether the measured ratio's interval holds the predicted one; None where there is no interval."""
        found = None if self.measured is None else self.measured.t_interval
        return None if found is None else found.low <= self.predicted <= found.high


def trials(
    found: Sequence[Record],
    planned: Mapping[str, Settings] | None = None,
    *,
    baseline: str = "baseline",
    usual: str = "ngram",
) -> list[Trial]:
    """Hold every config with other n-gram settings than the article's against its prediction.

    Parameters
    ----------
    found : sequence of Record
        A study's runs.
    planned : mapping of str to Settings or None
        Configs that may have no run yet.
    baseline, usual : str
        Configs that the ratios are to.

    Returns
    -------
    list of Trial
        By config, then over the baseline and over ``usual``, then by workload and over all. Without those that no other
        config in the same `speculation.circumstances` gives a step cost for.
    """
    complete = speculation.complete(found)
    first = next((r for r in complete if r.config.name == usual), None)
    if first is None or speculation.settings_of(first) is None:
        return []
    alike = [r for r in complete if speculation.circumstances(r) == speculation.circumstances(first)]
    ran = {r.config.name: flag for r in alike if (flag := speculation.settings_of(r)) is not None}
    rates = {name: _rates(r for r in alike if r.config.name == name) for name in (baseline, *ran)}
    result: list[Trial] = []
    for config, settings in {**(planned or {}), **ran}.items():
        if settings == ARTICLE:
            continue
        sweep = over([r for r in alike if r.config.name != config], None, (settings, ran[usual]))
        if not sweep.cost.n:
            continue
        chosen, others = sweep.speed_ups[settings], sweep.speed_ups[ran[usual]]
        ratios = {baseline: chosen, usual: [a / b for a, b in zip(chosen, others, strict=True)]}
        for reference, workload in product(ratios, (*sweep.workloads, None)):
            timed = rates[reference].keys() & rates.get(config, rates[reference]).keys()
            predicted = {
                sample.id: ratio
                for sample, ratio in zip(sweep.samples, ratios[reference], strict=True)
                if sample.id in timed and workload in (None, sample.workload)
            }
            if predicted:
                measured = None
                if config in rates:
                    pairs = ([rates[name][key] for key in predicted] for name in (config, reference))
                    measured = stats.paired_ratio(*pairs)
                mean = stats.geometric_mean(list(predicted.values()))
                result.append(Trial(config, settings, sweep.cost, reference, workload, mean, measured))
    return result


def _rates(runs: Iterable[Record]) -> dict[str, float]:
    """Return decode tok/s by prompt: the geometric mean over runs, of answers that count for speed."""
    found: dict[str, list[float]] = {}
    for request in (request for run in runs for request in run.sequential()):
        if request.decode_tok_s and definitions.counts_for_speed(request.completion_tokens):
            found.setdefault(request.id, []).append(request.decode_tok_s)
    return {key: stats.geometric_mean(values) for key, values in found.items()}


# --- own traffic ---------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One answer of a transcript.

    Attributes
    ----------
    id : str
        The line's number and, from 1 on, the answer's own in that line.
    workload : str
    prompt : str
        What precedes it, from the answer before on where the line has one.
    answer : str
    first : bool
        Whether no answer of its line precedes it.
    """

    id: str
    workload: str
    prompt: str
    answer: str
    first: bool


def turns(path: Path) -> list[Turn]:
    """Read own traffic.

    Each line is a JSON object: ``{"messages": [...]}`` as OpenAI's chat has it, every assistant message an answer to
    what precedes it, or ``{"messages": [...], "answer": "..."}``, or ``{"prompt": "...", "response": "..."}``. An
    optional ``workload`` groups lines.

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
            found += [Turn(f"{number}.{i}", workload, *pair, first=i == 1) for i, pair in enumerate(_pairs(said), 1)]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{path}, line {number}: neither {{messages}}, {{messages, answer}} nor {{prompt, response}}"
            ) from None
    return found


def _pairs(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (what precedes it from the answer before on, answer) of one line; roles head their messages."""
    if "messages" not in said:
        yield _plain(said["prompt"]), _plain(said["response"])
        return
    before = ""
    for message in said["messages"]:
        content = _plain(message.get("content") or "")
        if message["role"] == "assistant" and before and "answer" not in said:
            yield f"{before}assistant\n", content
            before = "\n"
        else:
            before += f"{message['role']}\n{content}\n"
    if "answer" in said:
        yield f"{before}assistant\n", _plain(said["answer"])


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
        raise UsageError("own transcripts need the tokenizers package: pip install 'samebytes[tune]'") from None
    if not tokenizer.is_file():
        raise UsageError(f"no tokenizer file at {tokenizer}: name the tokenizer.json of a Hugging Face model")
    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception:  # the package raises no narrower one, and quotes the file in its message
        raise UsageError(f"{tokenizer} is no tokenizer.json of a Hugging Face model") from None
    found, conversation = [], Conversation()
    for turn in said:
        prompt, answer = (loaded.encode(text, add_special_tokens=False).ids for text in (turn.prompt, turn.answer))
        if turn.first:
            conversation = Conversation()
        if conversation.tokens or prompt:
            sample = Sample(turn.id, turn.workload, Answer(prompt, answer, conversation=conversation))
            found += [sample] if len(answer) > 1 else []
    if not found:
        raise UsageError(f"{path} holds no answer of two tokens or more")
    return found


def of_transcripts(path: Path, tokenizer: Path, paths: Sequence[Path] = (), ratio: float | None = None) -> Sweep:
    """Sweep over own traffic; the step cost is that of records of one's own machine, a given ratio, or none at all."""
    cost = assumed() if ratio is None else _assumed(ratio)
    answers = transcripts(path, tokenizer)
    if paths and ratio is None:
        cost = of_records(paths).cost
    return Sweep(answers, cost)
