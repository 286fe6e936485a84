"""How much of a measurement is the stopwatch: what `make bench` writes.

Pure. The bench (bench/) measures streaming clients against a server that keeps an exact schedule; the report reads what
it left in results/bench/stopwatch.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from samebytes import stats
from samebytes.errors import RecordError
from samebytes.record import Part, write_atomic

FILE = "stopwatch.json"
"""What `make bench` writes into results/bench."""


class Cell(BaseModel):
    """One kind of load: so many streams that a server answers on one schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    streams: int
    interval_s: float
    """From one text chunk to the next."""
    chunks: int
    """Text chunks of an answer."""
    stagger_s: float
    """Over how long the requests are spread evenly; 0: all at one instant."""
    tokens: Literal["1", "1-6"]
    """Tokens of a chunk."""


class Pass(Part):
    """What one client measured once, against what the server did. Errors: what the client says, less the truth."""

    client: str
    cell: Cell
    repeat: int
    ttft_error_p50_s: float
    ttft_error_p99_s: float
    """Over the streams, each against its own request's arrival and first text at the server."""
    rate_error_p50: float
    rate_error_worst: float
    """Decode rate over the true one, less one: median, and that of the stream which is furthest off."""
    cpu_per_chunk_s: float | None
    """CPU of the client while the streams ran. Null: not measured for it alone."""
    after_cpu_per_chunk_s: float | None
    """CPU of the client when they were over, for parsing what it kept. Null: not measured for it alone."""
    cpu_share: float | None
    """CPU seconds of the client per second. Null: not measured for it alone."""
    lag_p99_s: float | None
    """Lateness of its event loop. Null: only samebytes samples it."""
    send_delay_p99_s: float | None
    """From when a request was due to when the server had it. Null: the client does not say when that was."""
    server_late_p50_s: float
    server_late_p99_s: float
    """How late the server itself sent, against its schedule."""
    server_stalls: int
    """How often a socket was full, because the client did not read."""

    @property
    def disturbed(self) -> bool:
        """Whether the machine did something else meanwhile: the server was later than a chunk's interval, p99."""
        return self.server_late_p99_s > self.cell.interval_s


class Bench(Part):
    """One run of the bench."""

    date: str
    """UTC."""
    quick: bool
    """Whether it was cut short for a trial."""
    complete: bool
    """Whether it came to its end; else it holds the repetitions that were finished."""
    commit: str | None
    """Of this project."""
    machine: dict[str, str | int | float | None]
    versions: dict[str, dict[str, str]]
    """By client."""
    missing: dict[str, str]
    """Clients that could not run, or not on every load, each with its first failure."""
    passes: list[Pass]
    """In the order of measuring. A disturbed one was repeated at once: both stand here, under one repetition."""

    @property
    def counted(self) -> list[Pass]:
        """Passes that figures are taken from: of each client's repetition the last, which may be disturbed too."""
        return list({(p.client, p.cell, p.repeat): p for p in self.passes}.values())

    @property
    def set_aside(self) -> list[Pass]:
        """Disturbed passes that were repeated."""
        counted = {id(p) for p in self.counted}
        return [p for p in self.passes if id(p) not in counted]

    @property
    def at_once(self) -> list[Cell]:
        """Kinds of load with all requests at one instant and one token a chunk, which the goals are about."""
        return [cell for cell in self.cells if not cell.stagger_s and cell.tokens == "1"]

    @property
    def cells(self) -> list[Cell]:
        """Kinds of load in the order of measuring."""
        return list(dict.fromkeys(p.cell for p in self.passes))

    def clients(self, cell: Cell) -> list[str]:
        """Return who measured a cell, the floor first."""
        return sorted({p.client for p in self.passes if p.cell == cell}, key=lambda name: (name != "floor", name))

    def values(self, cell: Cell, client: str, of: Callable[[Pass], float | None]) -> list[float]:
        """Return one quantity of a client's repetitions, those in which it was measured."""
        found = (of(p) for p in self.counted if p.client == client and p.cell == cell)
        return [value for value in found if value is not None]

    def medians(self, cell: Cell, of: Callable[[Pass], float | None]) -> dict[str, float]:
        """Return one quantity's median over the repetitions by client, of those for which it was measured."""
        found = {client: self.values(cell, client, of) for client in self.clients(cell)}
        return {client: stats.median(values) for client, values in found.items() if values}

    def lateness(self, cell: Cell) -> float:
        """Return the server's own p99 lateness in a cell: the median over all passes that count."""
        return stats.median([p.server_late_p99_s for p in self.counted if p.cell == cell])


# -- goals ------------------------------------------------------------------------------------------------------------

OURS = "samebytes"
MET, MISSED, OPEN, ABSENT = "met", "not met", "not decided", "not measured"


@dataclass(frozen=True)
class Quantity:
    """What a goal is about, the smaller the better.

    Attributes
    ----------
    text : str
        In words.
    of : callable
        That of a pass; None where it was not measured.
    slack : callable
        What the server's own lateness on a load, in seconds, can make of it.
    unit, digits, scale
        How it is shown.
    """

    text: str
    of: Callable[[Pass], float | None]
    slack: Callable[[float, Cell], float]
    unit: str
    digits: int
    scale: float


TTFT = Quantity(
    "TTFT error, worst of a hundred", lambda p: abs(p.ttft_error_p99_s), lambda late_s, cell: late_s, "ms", 2, 1e3
)
RATE = Quantity(
    "decode-rate error, worst stream",
    lambda p: abs(p.rate_error_worst),
    lambda late_s, cell: late_s / ((cell.chunks - 1) * cell.interval_s),  # one end of a stream as late as that
    "%",
    3,
    1e2,
)
CPU = Quantity("CPU a chunk while the streams run", lambda p: p.cpu_per_chunk_s, lambda late_s, cell: 0.0, "µs", 1, 1e6)


@dataclass(frozen=True)
class Goal:
    """What this project's client was to reach, set before it was measured: requests at one instant, a token a chunk.

    Attributes
    ----------
    quantity : Quantity
    streams : int
    limit : float or None
        At most this; None: at most half of the client that it is held against.
    against : str or None
        That client; None: the best of the others, whole tools included.
    """

    quantity: Quantity
    streams: int
    limit: float | None = None
    against: str | None = None


@dataclass(frozen=True)
class Judged:
    """A goal with what was measured.

    Attributes
    ----------
    goal : Goal
    ours : list of float
        Of the repetitions.
    limit : float or None
        What was to be reached.
    other : str or None
        The best of the others, or the one that the goal names.
    others, floor : float or None
        Its median and the floor's.
    slack : float
        The server's own lateness, in the unit of the quantity; 0 for CPU.
    verdict : str
    """

    goal: Goal
    ours: list[float]
    limit: float | None
    other: str | None
    others: float | None
    floor: float | None
    slack: float
    verdict: str


GOALS = (
    Goal(TTFT, 16, limit=0.001),
    Goal(TTFT, 256, limit=0.010),
    *(Goal(RATE, n, against=name) for n in (64, 256) for name in (None, "vllm")),
    Goal(CPU, 256, limit=20e-6),
)


def judge(bench: Bench, goal: Goal) -> Judged:
    """Return whether a goal was reached.

    Met: the median of the repetitions is at most the limit; not met: it is above. Not decided where repetitions lie on
    both sides of the limit, and where the server's own lateness could be the difference: between an error and a limit
    that it is above (lateness within the server adds to an error and takes nothing from it), or between this client and
    the one that it is held against.
    """
    cell = next((c for c in bench.at_once if c.streams == goal.streams), None)
    if cell is None:
        return Judged(goal, [], goal.limit, goal.against, None, None, 0.0, ABSENT)
    medians = bench.medians(cell, goal.quantity.of)
    floor, mine = medians.pop("floor", None), medians.pop(OURS, None)
    other = goal.against or min(medians, key=lambda name: medians[name], default=None)
    others = None if other is None else medians.get(other)
    slack = goal.quantity.slack(bench.lateness(cell), cell)
    limit = goal.limit
    if limit is None and others is not None:
        limit = others / 2
    ours = bench.values(cell, OURS, goal.quantity.of)
    if mine is None or limit is None:
        verdict = ABSENT
    elif min(ours) <= limit < max(ours):
        verdict = OPEN
    elif mine > limit:
        verdict = OPEN if mine - limit < slack else MISSED
    else:
        verdict = OPEN if goal.limit is None and others is not None and others - mine < slack else MET
    return Judged(goal, ours, limit, other, others, floor, slack, verdict)


# -- the file and its tables ------------------------------------------------------------------------------------------


def load(path: Path) -> Bench | None:
    """Read a bench's result; None where there is none.

    Raises
    ------
    RecordError
        Where the file holds something else.
    """
    if not path.is_file():
        return None
    try:
        return Bench.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise RecordError(f"{path.name} is no result of the bench: {error}") from None


def write(path: Path, bench: Bench) -> None:
    """Write a bench's result, a pass a line."""
    head = bench.model_copy(update={"passes": []}).model_dump_json(indent=1)
    passes = ",\n".join(f"  {p.model_dump_json()}" for p in bench.passes)
    write_atomic(path, head.replace('"passes": []', f'"passes": [\n{passes}\n ]') + "\n")


def spread(values: Sequence[float], digits: int, scale: float = 1, sign: str = "") -> str:
    """Return a median with the least and the most, as text."""
    if not values:
        return "–"
    low, mid, high = (f"{scale * v:{sign}.{digits}f}" for v in (min(values), stats.median(values), max(values)))
    return mid if len(values) == 1 else f"{mid} ({low} to {high})"


def markdown(bench: Bench) -> str:
    """Return a bench's result as Markdown tables, one for each kind of load."""
    trial = " **A short trial: these figures are no result.**" if bench.quick else ""
    trial += "" if bench.complete else " **Not run to its end.**"
    lines = [
        "# How much of this is the stopwatch",
        "",
        f"{bench.date}, {', '.join(str(value) for value in bench.machine.values())}.{trial}",
        "",
        LEGEND,
        "",
        *(f"- {name}: {versions(found)}" for name, found in bench.versions.items() if found),
        *(f"- {name}: not measured: {why}" for name, why in bench.missing.items()),
        f"- set aside as disturbed, and repeated at once: {len(bench.set_aside)} of {len(bench.passes)} passes",
        *(f"- {name}, {title(cell)}: counted although disturbed: {n}" for (name, cell), n in disturbed(bench).items()),
    ]
    for cell in bench.cells:
        lines += ["", f"## {title(cell)}", "", f"| client | {' | '.join(name for name, *_ in COLUMNS)} |"]
        lines.append("| --- |" + " ---: |" * len(COLUMNS))
        for client in bench.clients(cell):
            shown = (spread(bench.values(cell, client, of), digits, scale) for _, of, digits, scale in COLUMNS)
            lines.append(f"| {client} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def disturbed(bench: Bench) -> dict[tuple[str, Cell], int]:
    """Return how many of a client's passes that count were disturbed nevertheless, by load, where there are any."""
    return dict(Counter((p.client, p.cell) for p in bench.counted if p.disturbed))


LEGEND = (
    "Each figure: the median over repetitions (least to most). TTFT error and decode-rate error: what the client says "
    "less what the server did, over the streams of one pass. CPU: while the streams ran; afterwards: for parsing what "
    "was kept. Sent late: from when a request was due to when the server had it. "
    "Server late: how late the server itself sent."
)


def versions(found: dict[str, str]) -> str:
    """Return versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in found.items())


def title(cell: Cell) -> str:
    """Return what a cell is, in words."""
    arrivals = f"spread over {cell.stagger_s:g} s" if cell.stagger_s else "at one instant"
    tokens = "one token" if cell.tokens == "1" else f"{cell.tokens} tokens"
    streams = "one stream" if cell.streams == 1 else f"{cell.streams} streams"
    return f"{streams} {arrivals}, {tokens} a chunk, a chunk every {1000 * cell.interval_s:g} ms"


COLUMNS: tuple[tuple[str, Callable[[Pass], float | None], int, float], ...] = (
    ("TTFT error, ms, median", lambda p: p.ttft_error_p50_s, 2, 1e3),
    ("TTFT error, ms, worst of a hundred", lambda p: p.ttft_error_p99_s, 2, 1e3),
    ("decode-rate error, %, median", lambda p: p.rate_error_p50, 2, 1e2),
    ("decode-rate error, %, worst stream", lambda p: p.rate_error_worst, 2, 1e2),
    ("CPU a chunk, µs", lambda p: p.cpu_per_chunk_s, 1, 1e6),
    ("CPU a chunk afterwards, µs", lambda p: p.after_cpu_per_chunk_s, 1, 1e6),
    ("CPU cores", lambda p: p.cpu_share, 2, 1),
    ("event loop late, ms, worst of a hundred", lambda p: p.lag_p99_s, 2, 1e3),
    ("sent late, ms, worst of a hundred", lambda p: p.send_delay_p99_s, 2, 1e3),
    ("server late, ms, median", lambda p: p.server_late_p50_s, 3, 1e3),
    ("server late, ms, worst of a hundred", lambda p: p.server_late_p99_s, 3, 1e3),
)
"""Quantities: head, how it is found, digits, scale."""
