"""The bench: a schedule server that keeps its schedule, and the whole comparison on a few streams."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from bench import __main__ as bench
from bench import tools

from samebytes import stats, stopwatch
from samebytes.stopwatch import Bench, Cell

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the schedule server needs a C compiler")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return bench.compiled(tmp_path_factory.mktemp("bench"))


def cell(streams: int = 4, stagger_s: float = 0.0, tokens: str = "1") -> Cell:
    return Cell.model_validate(
        {"streams": streams, "interval_s": 0.005, "chunks": 20, "stagger_s": stagger_s, "tokens": tokens}
    )


def test_the_server_keeps_its_schedule_and_says_when_it_sent(programs: dict[str, Path]) -> None:
    cores = bench.Cores.here()
    floor = bench.Floor(programs["floor"], cores)
    with bench.serving(programs["server"], cell(tokens="1-6"), cores) as port:
        measured = floor.measure(cell(tokens="1-6"), port)
        log = bench.forget(port)
        assert bench.forget(port)["streams"] == []
    assert sorted(one["stream"] for one in log["streams"]) == [0, 1, 2, 3]
    for one in log["streams"]:
        assert len(one["sends"]) == 20
        late = [at - one["received"] - bench.FIRST_S - 0.005 * i for i, at in enumerate(one["sends"])]
        assert min(late) >= 0  # never early
        assert stats.median(late) < 0.005
    # 1, 3, 6, 1, 2, 1, 1, 4 tokens in turn: 49 in 20 chunks, the first of which is prefill
    found = bench.judged(cell(tokens="1-6"), "floor", 0, measured, log)
    assert abs(found.rate_error_p50) < 0.5  # 48 in 19 intervals; counted as chunks, 19
    assert found.ttft_error_p50_s > -1e-4


def measured(programs: dict[str, Path], wanted: list[Cell], clients: list[str], repeats: int, folder: Path) -> Bench:
    run = bench.Run(programs, clients, folder, quick=True)
    saved: list[int] = []
    with contextlib.closing(run):
        run.measure([wanted], repeats, lambda found: saved.append(len(found.passes)))
    assert saved[-1] == len(run.bench.passes)  # an interrupted run keeps its whole repetitions
    return run.bench


def test_clients_are_measured_on_the_same_streams(programs: dict[str, Path], tmp_path: Path) -> None:
    wanted = [cell(), cell(stagger_s=0.1), cell(streams=1, tokens="1-6")]
    found = measured(programs, wanted, ["floor", "samebytes"], 2, tmp_path)
    assert found.cells == wanted
    assert len(found.counted) == 12
    first = {p.client for p in found.counted[::2]}
    assert first == {"floor", "samebytes"}  # not always the same one
    assert found.complete
    for p in found.counted:
        assert p.ttft_error_p50_s > -1e-4  # no client can have a token before it is sent
        assert p.cpu_per_chunk_s is not None
    # a busy machine may spoil some passes, not most
    assert stats.median([p.ttft_error_p50_s for p in found.counted]) < 0.05
    assert stats.median([abs(p.rate_error_p50) for p in found.counted]) < 0.1
    assert "openai" in found.versions["samebytes"]
    stopwatch.write(tmp_path / stopwatch.FILE, found)
    assert stopwatch.load(tmp_path / stopwatch.FILE) == found


def test_a_client_that_cannot_run_is_named_with_its_reason(
    programs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ENGINE", tmp_path / "none")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    found = measured(programs, [cell()], ["floor", "vllm", "aiperf"], 1, tmp_path)
    assert found.missing == {
        "vllm": "needs the engine's environment: make engine",
        "aiperf": "not installed: tools/venv.sh aiperf",
    }
    assert {p.client for p in found.passes} == {"floor"}


def test_a_disturbed_pass_is_repeated_once_and_both_are_kept(programs: dict[str, Path], tmp_path: Path) -> None:
    # a schedule of a microsecond a chunk, which no server keeps
    hopeless = Cell(streams=2, interval_s=1e-6, chunks=400, stagger_s=0.0, tokens="1")
    found = measured(programs, [hopeless], ["floor"], 2, tmp_path)
    assert [(p.repeat, p.disturbed) for p in found.passes] == [(0, True), (0, True), (1, True), (1, True)]
    assert found.counted == found.passes[1::2]


@pytest.mark.parametrize(
    ("usable", "listed", "expected"),
    [
        ({0, 1, 2, 3}, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, (0, 2)),
        ({4, 6}, {4: "4", 6: "6"}, (4, 6)),
        ({0, 1}, {0: "0-1", 1: "0-1"}, (0, 1)),  # one core: its two threads
        ({0, 1}, {}, (0, 1)),  # Linux does not say
        ({3}, {3: "3"}, (None, None)),
    ],
)
def test_server_and_clients_run_on_cores_of_their_own(
    usable: set[int],
    listed: dict[int, str],
    expected: tuple[int | None, int | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cpu, text in listed.items():
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    monkeypatch.setattr(bench, "CPUS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: usable)
    assert bench.Cores.here() == bench.Cores(*expected)


def test_levels_and_kinds_of_load() -> None:
    once, spread, several = bench.cells([1, 256], ["once", "spread", "several"], 200)
    assert [(c.streams, c.interval_s, c.stagger_s, c.tokens) for c in once] == [
        (1, 0.005, 0.0, "1"),
        (256, 0.02, 0.0, "1"),
    ]
    assert (spread[0].stagger_s, several[0].tokens) == (1.0, "1-6")


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(bench.Broken, match="apt-get install gcc"):
        bench.compiled(tmp_path)


def test_a_client_that_dies_does_not_end_the_run(programs: dict[str, Path], tmp_path: Path) -> None:
    run = bench.Run(programs, ["floor", "samebytes"], tmp_path, quick=True)
    with contextlib.closing(run):
        ours = next(peer for peer in run._peers if isinstance(peer, bench.Peer))
        ours._process.kill()
        run.measure([[cell(), cell(tokens="1-6")]], 1, lambda found: None)
    assert {p.client for p in run.bench.passes} == {"floor"}
    assert len(run.bench.counted) == 2
    assert "samebytes ended" in run.bench.missing["samebytes"]
    assert run.bench.complete


def test_whole_tools_are_asked_for_the_same_arrivals(tmp_path: Path) -> None:
    def asked(build: tools.Command, wanted: Cell) -> str:
        return " ".join(build(tmp_path / "tool", 8000, wanted, tmp_path)[0])

    at_once, spread = cell(16), cell(16, stagger_s=0.5)
    assert "--profile kind=concurrent,streams=16 --constraint kind=max_requests,count=16 " in asked(
        tools.guidellm, at_once
    )
    assert "--profile kind=constant,rate=32.0 --constraint kind=max_requests,count=16 " in asked(tools.guidellm, spread)
    assert "--concurrency 16 --request-count 16 " in asked(tools.aiperf, at_once)
    assert "--request-rate 32.0 --arrival-pattern constant --request-count 16 " in asked(tools.aiperf, spread)
    assert "--concurrency" not in asked(tools.aiperf, spread)
