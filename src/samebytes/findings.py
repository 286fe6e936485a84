"""The figures of a study as types: what `samebytes.analysis` computes and `samebytes.summary` renders."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from samebytes import definitions
from samebytes.acceptance import Acceptance
from samebytes.compare import PromptVerdict, Verdict
from samebytes.energy import Energy
from samebytes.errors import unknown
from samebytes.fairness import Difference
from samebytes.speculation import Forecast, StepRow
from samebytes.stats import Interval, RatioEstimate
from samebytes.validity import Validity

ALL = "all"
"""Stands for every workload together."""

Called = Literal[
    "not timed", "a single prompt", "no clear change", "drift not measured", "within the drift", "faster", "slower"
]
"""What a ratio of decode rates may be called, see `Ratio.called`."""


@dataclass(frozen=True)
class RunRow:
    """One record, or one run of the study that has none.

    Attributes
    ----------
    status : str
        ``complete``, ``partial``, ``failed`` (with its reason), or ``not measured``.
    sequential, concurrent : tuple of (int, int) or None
        Requests answered, of how many; None: no such pass.
    warnings : tuple of str
        What has to be said wherever the run is shown.
    """

    label: str
    config: str
    status: str
    reason: str | None = None
    sequential: tuple[int, int] | None = None
    concurrent: tuple[int, int] | None = None
    starts: int = 0
    resumed: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """A sum over requests held against the server's own counter.

    Attributes
    ----------
    expected, counted : float or None
        Sum over the requests, and the counter's increase over the pass.
    holds : bool or None
        None where it could not be checked; ``note`` says why.
    """

    name: str
    expected: float | None
    counted: float | None
    holds: bool | None
    note: str | None = None


@dataclass(frozen=True)
class PassRow:
    """One pass: its load, its counters and whether they add up."""

    label: str
    number: int
    kind: str
    launch: int
    answered: tuple[int, int]
    makespan_s: float | None
    preemptions: float | None
    host_load: float | None
    host_steal: float | None
    client_cpu_share: float | None
    client_lag_p99_s: float | None
    voided: str | None
    identities: tuple[Identity, ...]

    @property
    def client_bound(self) -> bool:
        """Whether the client may have limited it: see `definitions.client_bound`."""
        return definitions.client_bound(self.client_cpu_share, self.client_lag_p99_s)


@dataclass(frozen=True)
class Moment:
    """One event of a run: in UTC, and in seconds from its own server start."""

    label: str
    launch: int
    event: str
    at: str | None
    t_s: float | None


@dataclass(frozen=True)
class WorkloadSpeed:
    """A config's speed on one workload.

    Attributes
    ----------
    prompts, answered, timed : int
        Prompts of the workload; those answered in every run; of these, those long enough for a decode rate.
    failures : int
        Requests that failed, over all runs.
    decode_tok_s, ttft_s : float or None
        Median over prompts; a prompt's value is the geometric mean over the runs.
    tokens : int
        Completion tokens of the answered prompts, over all runs.
    spread_median, spread_max : float or None
        Launch-to-launch spread of a prompt's decode rate, ``max / min - 1``: median and largest over the prompts.
    """

    workload: str
    prompts: int
    answered: int
    timed: int
    failures: int
    decode_tok_s: float | None
    ttft_s: float | None
    tokens: int
    spread_median: float | None
    spread_max: float | None


@dataclass(frozen=True)
class PromptResult:
    """A config on one prompt: values over its runs, in the order of its labels.

    A prompt with a failed request in any run has no figures: it is left out of every comparison.
    """

    id: str
    workload: str
    answered: bool
    timed: bool
    tokens: tuple[int | None, ...]
    finish_reasons: tuple[str | None, ...]
    decode_tok_s: float | None
    ttft_s: float | None
    spread: float | None
    acceptance: Acceptance
    joules_per_token: float | None
    validity: tuple[Validity | None, ...]
    """None: failed, or the prompt's text is not at hand."""


@dataclass(frozen=True)
class ValidityCount:
    """What the answers of a config to one workload are worth, over all its runs.

    Attributes
    ----------
    checked : int
        Answers whose prompt is at hand and declares a check.
    valid : int
        Of these, answers that did what was asked.
    loops, cut_off : int
        Of all ``answers``: those that end in a repetition, and those that reached the token limit.
    """

    workload: str
    answers: int
    checked: int
    valid: int
    loops: int
    cut_off: int


@dataclass(frozen=True)
class Memory:
    """What the servers of a config said about memory and kernels: the distinct values over its server starts."""

    kv_cache_tokens: tuple[int, ...]
    kv_cache_bytes: tuple[int, ...]
    max_concurrency: tuple[float, ...]
    graph_bytes: tuple[int, ...]
    attention_backend: tuple[str, ...]
    async_scheduling: tuple[bool, ...]
    prefix_caching: tuple[bool, ...]


@dataclass(frozen=True)
class Concurrent:
    """One concurrent pass.

    Attributes
    ----------
    aggregate_tok_s, makespan_s : float or None
        `definitions.aggregate_tok_s` and `definitions.makespan` of its requests.
    copies_agree : tuple of (int, int)
        Prompts whose answered copies all have the same bytes, of the prompts with two or more.
    same_as_sequential : tuple of (int, int)
        Copies with the bytes of the run's own sequential answer, of those that can be compared.
    energy : Energy or None
        From the first send to the last finish; None without telemetry.
    """

    label: str
    concurrency: int
    dup: int
    answered: tuple[int, int]
    aggregate_tok_s: float | None
    makespan_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    preemptions: float | None
    peak_kv_usage: float | None
    peak_running: float | None
    client_cpu_share: float | None
    client_lag_p99_s: float | None
    copies_agree: tuple[int, int]
    same_as_sequential: tuple[int, int]
    energy: Energy | None

    @property
    def client_bound(self) -> bool:
        """Whether the client may have limited it: see `definitions.client_bound`."""
        return definitions.client_bound(self.client_cpu_share, self.client_lag_p99_s)

    @property
    def short_of_room(self) -> bool | None:
        """Whether requests were preempted, or the KV pool was so full that they waited; None where neither is known."""
        if self.preemptions is None and self.peak_kv_usage is None:
            return None
        return bool(self.preemptions) or (self.peak_kv_usage or 0) > definitions.POOL_FULL


@dataclass(frozen=True)
class ConfigResult:
    """Everything about one config, over its complete runs."""

    name: str
    why: str
    labels: tuple[str, ...]
    speed: tuple[WorkloadSpeed, ...]
    prompts: tuple[PromptResult, ...]
    validity: tuple[ValidityCount, ...]
    acceptance: dict[str, Acceptance]
    """By workload, and `ALL`."""
    energy: dict[str, Energy]
    """By workload, and `ALL`; none without telemetry."""
    memory: Memory
    concurrent: tuple[Concurrent, ...]

    @property
    def peak_kv_usage(self) -> float | None:
        """The largest share of the KV pool that was in use in a concurrent pass."""
        return max((leg.peak_kv_usage for leg in self.concurrent if leg.peak_kv_usage is not None), default=None)

    @property
    def short_of_room(self) -> bool | None:
        """Whether any of its concurrent passes ran short of room; None where none tells."""
        return max((leg.short_of_room for leg in self.concurrent if leg.short_of_room is not None), default=None)


@dataclass(frozen=True)
class Control:
    """Whether a reference config agrees with itself from server start to server start, per prompt.

    Attributes
    ----------
    agrees, disagrees, none : int
        Prompts; ``none``: answered by fewer than two server starts.
    agree_rate : Interval or None
        Wilson interval of agrees / (agrees + disagrees).
    """

    config: str
    starts: int
    agrees: int
    disagrees: int
    none: int
    agree_rate: Interval | None
    disagreeing: tuple[str, ...]


@dataclass(frozen=True)
class ByteCount:
    """Verdicts over the prompts of one workload, or `ALL`; in a concurrent leg over the copies of the prompts.

    Attributes
    ----------
    judged : int
        Prompts that every run of both sides answered.
    same_rate : Interval or None
        Wilson interval of same / judged: the prompt is the unit. None for copies, which are not independent.
    """

    workload: str
    prompts: int
    judged: int
    counts: dict[Verdict, int]
    same_rate: Interval | None


@dataclass(frozen=True)
class Ratio:
    """Candidate over reference on one workload, from the prompts that count on both sides.

    Attributes
    ----------
    decode : RatioEstimate or None
        Speed-up (of decode tok/s): below 1 it is a slow-down.
    ttft : RatioEstimate or None
        Of TTFT: above 1 the first token comes later.
    prompts : int
        Prompts of the workload.
    drift : float or None
        How far decode tok/s moves with no flag changed: the largest ratio (from 1 up) between two server starts of
        either side, paired as `decode` is. None where neither side was started twice.
    """

    workload: str
    prompts: int
    decode: RatioEstimate | None
    ttft: RatioEstimate | None
    drift: float | None = None

    @property
    def called(self) -> Called:
        """What the ratio of decode rates is called.

        One whose interval includes 1 shows no clear change. One no larger than between two server starts of one config
        is not put down to what differs; nor is one where that is not known: a drift that was not measured is not none.
        """
        if self.decode is None:
            return "not timed"
        if self.decode.excludes_one is None:
            return "a single prompt"
        if not self.decode.excludes_one:
            return "no clear change"
        if self.drift is None:
            return "drift not measured"
        if abs(math.log(self.decode.geometric_mean)) <= math.log(self.drift):
            return "within the drift"
        return "faster" if self.decode.geometric_mean > 1 else "slower"

    @property
    def effect(self) -> str:
        """`called`, in the words for what a flag does: where the two sides are one config each."""
        return _EFFECTS.get(self.called, self.called)


_EFFECTS: dict[Called, str] = {
    "faster": "speed-up",
    "slower": "slow-down",
    "within the drift": "within the drift of server starts",
}


@dataclass(frozen=True)
class Pair:
    """A candidate config against a reference config.

    ``refused`` says why they cannot be compared; nothing else is set then.
    """

    reference: str
    candidate: str
    refused: str | None = None
    baseline_starts: int = 0
    candidate_starts: int = 0
    unproved: tuple[str, ...] = ()
    bytes: tuple[ByteCount, ...] = ()
    verdicts: tuple[PromptVerdict, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    concurrent_bytes: ByteCount | None = None
    aggregate_ratio: float | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A study's figures."""

    study: str
    model: str
    revision: str | None
    machine: str
    vllm: str | None
    max_tokens: int
    references: tuple[str, ...]
    candidates: tuple[str, ...]
    prompts: int
    banners: tuple[str, ...]
    runs: tuple[RunRow, ...]
    configs: tuple[ConfigResult, ...]
    controls: tuple[Control, ...]
    pairs: tuple[Pair, ...]
    steps: tuple[StepRow, ...]
    forecasts: tuple[Forecast, ...]
    passes: tuple[PassRow, ...]
    timeline: tuple[Moment, ...]

    def config(self, name: str) -> ConfigResult:
        """Return one config's result."""
        found = next((c for c in self.configs if c.name == name), None)
        if found is None:
            raise unknown("config", name, (c.name for c in self.configs))
        return found

    def own_forecasts(self, name: str) -> list[Forecast]:
        """Return the predictions of a config's runs, each by its own step cost."""
        return [f for f in self.forecasts if f.label == f.costs and f.label in self.config(name).labels]

    def pair(self, reference: str, candidate: str) -> Pair:
        """Return one candidate against one reference."""
        found = {f"{p.candidate} against {p.reference}": p for p in self.pairs}
        name = f"{candidate} against {reference}"
        if name not in found:
            raise unknown("pair", name, found)
        return found[name]
