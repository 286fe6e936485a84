"""The bench's result: written, read, and shown as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samebytes import stopwatch
from samebytes.errors import RecordError
from samebytes.stopwatch import Bench, Cell, Pass

FULL = Cell(streams=256, interval_s=0.02, chunks=200, stagger_s=0.0, tokens="1")
SPREAD = Cell(streams=16, interval_s=0.005, chunks=200, stagger_s=1.0, tokens="1-6")


def a_pass(client: str, repeat: int = 0, cell: Cell = FULL, **changes: Any) -> Pass:
    values: dict[str, Any] = {
        "client": client,
        "cell": cell,
        "repeat": repeat,
        "ttft_error_p50_s": 0.001,
        "ttft_error_p99_s": 0.004,
        "rate_error_p50": -0.001,
        "rate_error_worst": -0.002,
        "cpu_per_chunk_s": 15e-6,
        "after_cpu_per_chunk_s": 90e-6,
        "cpu_share": 0.2,
        "lag_p99_s": None,
        "send_delay_p99_s": 0.003,
        "server_late_p50_s": 1e-6,
        "server_late_p99_s": 0.0005,
        "server_stalls": 0,
    }
    return Pass(**(values | changes))


def a_bench(*passes: Pass, quick: bool = False) -> Bench:
    return Bench(
        date="2026-11-30T01:00:00+00:00",
        quick=quick,
        complete=True,
        commit="0123456789",
        machine={"cpu": "a cpu", "cores": 2, "os": "Linux"},
        versions={"samebytes": {"samebytes": "0.1", "openai": "3.0"}, "floor": {}},
        missing={"aiperf": "does <not> start"},
        passes=list(passes),
    )


def three() -> list[Pass]:
    return [a_pass("samebytes", i, ttft_error_p99_s=t) for i, t in enumerate((0.006, 0.002, 0.004))]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    bench = a_bench(*three(), a_pass("guidellm", cell=SPREAD, cpu_per_chunk_s=None))
    stopwatch.write(tmp_path / "bench" / stopwatch.FILE, bench)
    assert stopwatch.load(tmp_path / "bench" / stopwatch.FILE) == bench
    assert stopwatch.load(tmp_path / "none") is None
    lines = (tmp_path / "bench" / stopwatch.FILE).read_text().splitlines()
    assert sum('"client":' in line for line in lines) == 4  # a pass a line


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"passes": []}')
    with pytest.raises(RecordError, match=r"x\.json is no result of the bench"):
        stopwatch.load(tmp_path / "x.json")


def test_a_figure_is_the_median_with_the_least_and_the_most() -> None:
    bench = a_bench(*three(), a_pass("floor"))
    text = stopwatch.markdown(bench)
    assert "## 256 streams at one instant, one token a chunk, a chunk every 20 ms" in text
    assert "| samebytes | 1.00 (1.00 to 1.00) | 4.00 (2.00 to 6.00) | -0.10 (-0.10 to -0.10) |" in text
    assert "| floor | 1.00 | 4.00 | -0.10 | -0.20 | 15.0 | 90.0 | 0.20 | – | 3.00 | 0.001 | 0.500 |" in text
    assert text.index("| floor |") < text.index("| samebytes |")
    assert "- samebytes: samebytes 0.1, openai 3.0" in text
    assert "- aiperf: not measured: does <not> start" in text


def test_what_was_not_measured_is_a_dash_and_a_trial_says_so() -> None:
    text = stopwatch.markdown(a_bench(a_pass("guidellm", cell=SPREAD, cpu_per_chunk_s=None), quick=True))
    assert "## 16 streams spread over 1 s, 1-6 tokens a chunk, a chunk every 5 ms" in text
    assert "| -0.20 | – | 90.0 | 0.20 |" in text
    assert "these figures are no result" in text
    assert "these figures are no result" not in stopwatch.markdown(a_bench(a_pass("floor")))


def test_the_servers_own_lateness_is_over_all_clients() -> None:
    late = [a_pass(name, server_late_p99_s=t) for name, t in (("floor", 0.001), ("samebytes", 0.002), ("vllm", 0.009))]
    assert a_bench(*late, a_pass("floor", cell=SPREAD)).lateness(FULL) == 0.002


def test_a_disturbed_pass_is_set_aside_for_its_repetition() -> None:
    bad = {"server_late_p99_s": 0.021, "ttft_error_p99_s": 0.5}  # a chunk is due every 0.020 s
    bench = a_bench(a_pass("samebytes", **bad), a_pass("samebytes"), a_pass("samebytes", 1), a_pass("floor"))
    assert bench.passes[0].disturbed
    assert bench.set_aside == bench.passes[:1]
    assert bench.values(FULL, "samebytes", lambda p: p.ttft_error_p99_s) == [0.004, 0.004]
    assert bench.lateness(FULL) == 0.0005
    assert stopwatch.judge(bench, TTFT_256).verdict == stopwatch.MET
    text = stopwatch.markdown(bench)
    assert "- set aside as disturbed, and repeated at once: 1 of 4 passes" in text
    assert "although disturbed" not in text


def test_where_the_repetition_is_disturbed_too_it_counts_and_is_named() -> None:
    bad = {"server_late_p99_s": 0.021}
    bench = a_bench(a_pass("vllm", ttft_error_p99_s=0.5, **bad), a_pass("vllm", ttft_error_p99_s=0.3, **bad))
    assert bench.values(FULL, "vllm", lambda p: p.ttft_error_p99_s) == [0.3]
    assert stopwatch.disturbed(bench) == {("vllm", FULL): 1}
    assert f"- vllm, {stopwatch.title(FULL)}: counted although disturbed: 1" in stopwatch.markdown(bench)


def test_heads_are_told_apart_and_hold_no_typed_number() -> None:
    heads = [name for name, *_ in stopwatch.COLUMNS]
    assert len(set(heads)) == len(heads)
    assert not any(letter.isdigit() for letter in "".join(heads) + stopwatch.LEGEND)


TTFT_16, TTFT_256, RATE_64, _, RATE_256, RATE_256_VLLM, CPU = stopwatch.GOALS


def judged(goal: stopwatch.Goal, *passes: Pass) -> stopwatch.Judged:
    return stopwatch.judge(a_bench(*passes), goal)


def ours(*ttft: float, late: float = 0.0005) -> list[Pass]:
    return [a_pass("samebytes", i, ttft_error_p99_s=t, server_late_p99_s=late) for i, t in enumerate(ttft)]


def test_a_goal_is_met_missed_or_not_decided() -> None:
    assert judged(TTFT_256, *ours(0.009, 0.004, 0.008)).verdict == stopwatch.MET
    assert judged(TTFT_256, *ours(0.013, 0.012, 0.011)).verdict == stopwatch.MISSED
    assert judged(TTFT_256, *ours(0.009, 0.004, 0.011)).verdict == stopwatch.OPEN  # on both sides
    # above the limit by less than the server itself was late
    assert judged(TTFT_256, *ours(0.013, 0.012, 0.011, late=0.003)).verdict == stopwatch.OPEN
    assert judged(TTFT_256, *ours(-0.013, -0.012, -0.011)).verdict == stopwatch.MISSED  # too early is wrong too
    assert judged(TTFT_16, *ours(0.0001)).verdict == stopwatch.ABSENT  # another load


def test_half_of_the_best_of_the_others() -> None:
    def rate(client: str, error: float, late: float = 0.0) -> Pass:
        return a_pass(client, rate_error_worst=error, server_late_p99_s=late)

    others = [rate("floor", 0.0), rate("vllm", 0.02), rate("aiperf", -0.01)]
    found = judged(RATE_256, rate("samebytes", -0.004), *others)
    assert (found.verdict, found.other, found.others, found.limit) == (stopwatch.MET, "aiperf", 0.01, 0.005)
    assert judged(RATE_256, rate("samebytes", 0.006), *others).verdict == stopwatch.MISSED
    assert judged(RATE_256_VLLM, rate("samebytes", 0.006), *others).verdict == stopwatch.MET
    # 0.04 s of lateness over a stream of 3.98 s: one percent, by which this client and the best do not differ
    late = [rate("samebytes", 0.004, 0.04), rate("aiperf", 0.01, 0.04)]
    assert judged(RATE_256, *late).verdict == stopwatch.OPEN
    assert judged(RATE_256, rate("samebytes", 0.004)).verdict == stopwatch.ABSENT  # nobody to be held against
    assert judged(RATE_64, rate("samebytes", 0.004), *others).verdict == stopwatch.ABSENT


def test_the_servers_lateness_excuses_no_cpu() -> None:
    assert judged(CPU, a_pass("samebytes", cpu_per_chunk_s=21e-6, server_late_p99_s=1.0)).verdict == stopwatch.MISSED
    assert judged(CPU, a_pass("samebytes", cpu_per_chunk_s=15e-6)).verdict == stopwatch.MET
