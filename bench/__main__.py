"""How much of a measurement is the stopwatch: streaming clients against a server that keeps an exact schedule.

``make bench`` runs all of it; ``python -m bench --quick`` a minute of it. Every client measures the same streams, one
after another within each cell and in an order drawn anew for each, so that what the machine does meanwhile, and what
the client before has left, falls on all. What a client says is compared, stream by stream, with what the server really
did; how late the server itself was stands beside it. Results go to results/bench/stopwatch.json and stopwatch.md, those
of a trial to _build/bench.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.tools import TOOLS, Broken, Tool
from samebytes import client_process, machine, sse, stats, stopwatch, stream
from samebytes.record import write_atomic
from samebytes.stopwatch import Bench, Cell, Pass

HERE = Path(__file__).parent
ROOT = HERE.parent
ENGINE = ROOT / ".venv" / "engine" / "bin" / "python"
FIRST_S = 0.05
CHUNKS = 200
TOKENS = {"1": "1", "1-6": "1,3,6,1,2,1,1,4"}
INTERVALS_S = {1: 0.005, 16: 0.005, 64: 0.01, 256: 0.02}
STAGGER_S = 1.0
CPUS = Path("/sys/devices/system/cpu")
CLIENTS = ("floor", "samebytes", "vllm", "aiohttp", "openai", *TOOLS)

Measured = dict[str, Any]


@dataclass(frozen=True)
class Cores:
    """Where server and clients run: apart, where there is more than one core."""

    client: int | None
    server: int | None

    @classmethod
    def here(cls) -> Cores:
        """Return two CPUs of this process, of different cores where it has them."""
        first, *others = sorted(os.sched_getaffinity(0))
        if not others:
            return cls(None, None)
        return cls(first, next((cpu for cpu in others if siblings(cpu) != siblings(first)), others[0]))


def siblings(cpu: int) -> str:
    """Return the CPUs that are one core with this one, as Linux lists them; empty where it does not say."""
    try:
        return (CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return ""


def compiled(folder: Path) -> dict[str, Path]:
    """Compile server and floor.

    Raises
    ------
    Broken
        Where there is no C compiler.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Broken(
            "the schedule server is written in C; install a compiler (Debian, Ubuntu: apt-get install gcc libc6-dev)"
        )
    built = {}
    for name in ("server", "floor"):
        built[name] = folder / name
        command = [compiler, "-O2", "-Wall", "-o", str(built[name]), str(HERE / f"{name}.c")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Broken(f"{name}.c does not compile (it needs Linux 5.11 and glibc 2.35): {done.stderr[-500:]}")
    return built


@contextlib.contextmanager
def serving(program: Path, cell: Cell, cores: Cores) -> Iterator[int]:
    """Run the schedule server for one cell and yield its port."""
    plan = [f"{FIRST_S * 1e6:.0f}", f"{cell.interval_s * 1e6:.0f}", str(cell.chunks), TOKENS[cell.tokens]]
    pinned = [] if cores.server is None else [str(cores.server)]
    with subprocess.Popen(
        [program, *plan, *pinned], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def forget(port: int) -> Measured:
    """Return the server's log and empty it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/forget") as answer:
        log: Measured = json.loads(answer.read())
    return log


class Peer:
    """A client in a process of its own, pinned to its core and kept for the whole run."""

    def __init__(self, name: str, cores: Cores) -> None:
        python, path = Path(sys.executable), ""
        if name != "samebytes":
            if not ENGINE.exists():
                raise Broken("needs the engine's environment: make engine")
            python = ENGINE
        if name == "vllm":
            found = sorted(
                ENGINE.parents[1].glob("lib/python*/site-packages/vllm/benchmarks/lib/endpoint_request_func.py")
            )
            if not found:
                raise Broken("this vLLM has no benchmarks/lib/endpoint_request_func.py")
            path = str(found[0])
        # not inherited: OPENAI_API_KEY and the like, which openai and vLLM read
        env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [python, HERE / "peers.py", name, *([path] if path else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env,
        )
        if cores.client is not None:
            os.sched_setaffinity(self._process.pid, {cores.client})
        try:
            self.versions: dict[str, str] = self._hear()
        except BaseException:
            self.close()
            raise

    def measure(self, cell: Cell, port: int) -> Measured:
        """Measure one pass."""
        assert self._process.stdin is not None
        told = {"port": port, "streams": cell.streams, "stagger_s": cell.stagger_s}
        with contextlib.suppress(BrokenPipeError):  # it ended in an earlier pass: said below
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            raise Broken(f"{self.name} ended: {said[-1] if said else 'it said nothing'}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Floor:
    """The C reader, read out with this project's own parser."""

    name = "floor"

    def __init__(self, program: Path, cores: Cores) -> None:
        self.versions: dict[str, str] = {}
        self._program = program
        self._pinned = [] if cores.client is None else [str(cores.client)]

    def measure(self, cell: Cell, port: int) -> Measured:
        """Measure one pass."""
        command = [self._program, str(port), str(cell.streams), f"{cell.stagger_s * 1e6:.0f}", *self._pinned]
        done = subprocess.run(command, capture_output=True)
        if done.returncode:
            raise Broken(f"exit code {done.returncode}: {done.stderr.decode('utf-8', 'replace').strip()[-200:]}")
        first, *rest = done.stdout.split(b"\n", cell.streams + 1)
        found: Measured = json.loads(first)
        heads = [json.loads(line) for line in rest[:-1]]
        data, at_byte = rest[-1], 0
        found["streams"] = []
        for head in heads:
            reads = []
            for at, size in head["reads"]:
                reads.append((at, data[at_byte : at_byte + size]))
                at_byte += size
            result = stream.StreamResult(id="p", workload="w", scheduled=head["scheduled"], sent=head["sent"])
            response = client_process.parse(reads, closed=True)
            stream.read(sse.decode(response.body), result, complete=response.complete)
            request = stream.to_request(result, result.scheduled)
            found["streams"].append(
                {"stream": head["stream"], "scheduled": head["scheduled"], "ttft_s": request.ttft_s}
                | {"decode_tok_s": request.decode_tok_s}
            )
        return found

    def close(self) -> None:
        """Nothing is kept."""


def judged(cell: Cell, client: str, repeat: int, measured: Measured, log: Measured) -> Pass:
    """Compare what a client said with what the server did."""
    tokens = [int(count) for count in TOKENS[cell.tokens].split(",")]
    total = sum(tokens[i % len(tokens)] for i in range(cell.chunks))
    first, rate = {}, {}
    streams = [one for one in log["streams"] if one["stream"] >= 0]  # the others are a tool's own probes
    sent = [len(one["sends"]) for one in streams]
    if sent != [cell.chunks] * cell.streams:
        raise Broken(f"the server sent {sum(sent)} chunks on {len(sent)} streams, not {cell.chunks} on {cell.streams}")
    for one in streams:
        first[one["stream"]] = one["sends"][0] - one["received"]
        rate[one["stream"]] = (total - tokens[0]) / (one["sends"][-1] - one["sends"][0])
    if len(first) != cell.streams:
        raise Broken(f"the server saw {len(first)} prompts on {cell.streams} streams")
    # a whole tool does not say which stream an answer was: it is held against the middle one
    middle = (stats.median(list(first.values())), stats.median(list(rate.values())))
    ttft, rates = [], []
    for said in measured["streams"]:
        number = said.get("stream")
        true_first, true_rate = middle if number is None else (first[number], rate[number])
        if said["ttft_s"] is None or said["decode_tok_s"] is None:
            raise Broken("an answer without a time to first token or a decode rate")
        ttft.append(said["ttft_s"] - true_first)
        rates.append(said["decode_tok_s"] / true_rate - 1)
    late = [
        at - one["received"] - FIRST_S - i * cell.interval_s for one in streams for i, at in enumerate(one["sends"])
    ]
    received = {one["stream"]: one["received"] for one in streams}
    delays = [received[said["stream"]] - said["scheduled"] for said in measured["streams"] if "scheduled" in said]
    cpu_s, wall_s = measured["cpu_s"], measured["wall_s"]

    def _each(spent_s: float | None) -> float | None:
        return None if spent_s is None else spent_s / (cell.streams * cell.chunks)

    return Pass(
        client=client,
        cell=cell,
        repeat=repeat,
        ttft_error_p50_s=stats.median(ttft),
        ttft_error_p99_s=stats.percentile(ttft, 99),
        rate_error_p50=stats.median(rates),
        rate_error_worst=max(rates, key=abs),
        cpu_per_chunk_s=_each(cpu_s),
        after_cpu_per_chunk_s=_each(measured.get("after_cpu_s")),
        cpu_share=None if cpu_s is None else cpu_s / wall_s,
        lag_p99_s=measured.get("lag_p99_s"),
        send_delay_p99_s=stats.percentile(delays, 99) if delays else None,
        server_late_p50_s=stats.median(late),
        server_late_p99_s=stats.percentile(late, 99),
        server_stalls=log["stalls"],
    )


KINDS: dict[str, tuple[float, str]] = {"once": (0.0, "1"), "spread": (STAGGER_S, "1"), "several": (0.0, "1-6")}
"""Arrivals and tokens of a chunk, by the name of the option."""


def cells(streams: Sequence[int], kinds: Sequence[str], chunks: int) -> list[list[Cell]]:
    """Return what is measured, kind after kind."""
    return [
        [
            Cell.model_validate(
                {
                    "streams": n,
                    "interval_s": INTERVALS_S[n],
                    "chunks": chunks,
                    "stagger_s": KINDS[kind][0],
                    "tokens": KINDS[kind][1],
                }
            )
            for n in streams
        ]
        for kind in kinds
    ]


class Run:
    """One run of the bench, whose result is complete up to the last finished repetition at any time.

    Attributes
    ----------
    bench : Bench
        What was measured so far.
    """

    def __init__(self, programs: Mapping[str, Path], clients: Sequence[str], folder: Path, *, quick: bool) -> None:
        self._programs = programs
        self._cores = Cores.here()
        self._peers: list[Peer | Floor] = []
        self._tools: list[Tool] = []
        self._failed: set[tuple[str, Cell]] = set()
        this = machine.info()
        commit, dirty = machine.git()
        self.bench = Bench(
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            quick=quick,
            complete=False,
            commit=commit and f"{commit[:10]}{' with changes' if dirty else ''}",
            machine={"cpu": this.cpu, "cores": this.cpu_cores, "os": this.os},
            versions={},
            missing={},
            passes=[],
        )
        for name in clients:
            try:
                if name in TOOLS:
                    self._tools.append(Tool(name, ROOT, folder))
                elif name == "floor":
                    self._peers.append(Floor(programs["floor"], self._cores))
                else:
                    self._peers.append(Peer(name, self._cores))
            except Broken as error:
                self.bench.missing[name] = str(error)
        for client in (*self._peers, *self._tools):
            self.bench.versions[client.name] = client.versions

    def close(self) -> None:
        """End the clients' processes."""
        for peer in self._peers:
            peer.close()

    def measure(self, groups: Sequence[Sequence[Cell]], repeats: int, save: Callable[[Bench], None]) -> None:
        """Measure group after group, a few repetitions each.

        Within a repetition all clients measure a cell before the next one begins. The whole tools come last, since
        what they start would disturb the others.
        """
        every = [cell for group in groups for cell in group]
        total = repeats * len(every) * (len(self._peers) + len(self._tools))
        with tqdm(total=total, unit="pass", mininterval=1) as progress:
            for group in groups:
                for repeat in range(repeats):
                    self._repetition(group, self._peers, repeat, progress)
                    save(self.bench)
            for repeat in range(repeats):
                self._repetition(every, self._tools, repeat, progress)
                save(self.bench)
        self.bench.complete = True
        save(self.bench)

    def _repetition(
        self, group: Sequence[Cell], clients: Sequence[Peer | Floor | Tool], repeat: int, progress: tqdm[Any]
    ) -> None:
        for cell in group:
            with serving(self._programs["server"], cell, self._cores) as port:
                # nobody always has the fresh server, or always follows the same client
                order = random.Random(f"{repeat}, {cell!r}").sample(clients, len(clients))  # noqa: S311 - repeatable
                for client in order:
                    progress.set_description(f"{cell.streams} streams, {client.name}")
                    # a disturbed pass is repeated once, and both are kept
                    if self._pass(client, cell, repeat, port):
                        self._pass(client, cell, repeat, port)
                    progress.update()

    def _pass(self, client: Peer | Floor | Tool, cell: Cell, repeat: int, port: int) -> bool:
        """Measure one pass, unless the client failed on this load before, and return whether it was disturbed."""
        if (client.name, cell) in self._failed:
            return False
        forget(port)
        try:
            measured = client.measure(cell, port)
            found = judged(cell, client.name, repeat, measured, forget(port))
        except Broken as error:
            # not tried again on this load; another may still go well
            self._failed.add((client.name, cell))
            self.bench.missing.setdefault(client.name, f"{stopwatch.title(cell)}: {error}")
            return False
        self.bench.passes.append(found)
        return found.disturbed


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(prog="make bench BENCH=... (python -m bench)", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a trial: 16 streams at once, 40 chunks, one repetition")
    parser.add_argument("--streams", type=int, nargs="+", choices=INTERVALS_S, help="levels; default: all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="at once, spread, several tokens; default: all")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS, help="default: all")
    parser.add_argument("--repeats", type=int, help="default: 3, with --quick 1")
    parser.add_argument(
        "--out", type=Path, help="folder for the result; default: results/bench, of a trial _build/bench"
    )
    told = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does, and the clients with it
    streams = told.streams or ([16] if told.quick else list(INTERVALS_S))
    kinds = told.kinds or (["once"] if told.quick else list(KINDS))
    groups = cells(streams, kinds, 40 if told.quick else CHUNKS)
    out = told.out or ROOT / ("_build" if told.quick else "results") / "bench"

    def save(bench: Bench) -> None:
        stopwatch.write(out / stopwatch.FILE, bench)
        write_atomic(out / "stopwatch.md", stopwatch.markdown(bench))

    with tempfile.TemporaryDirectory() as folder:
        try:
            run = Run(compiled(Path(folder)), told.clients, Path(folder), quick=told.quick)
        except Broken as error:
            sys.exit(f"bench: {error}")
        with contextlib.closing(run):
            try:
                run.measure(groups, told.repeats or (1 if told.quick else 3), save)
            except KeyboardInterrupt:
                sys.exit(f"bench: interrupted; whole repetitions, if there were any, are in {out / stopwatch.FILE}")
    print(stopwatch.markdown(run.bench))
    print(f"written: {out / stopwatch.FILE}")


if __name__ == "__main__":
    main()
