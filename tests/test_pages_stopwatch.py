"""Blocks of the page about the stopwatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_pass, a_record, answer, failed
from samebytes import paths, stopwatch
from samebytes.pages import stopwatch as page
from samebytes.record import ClientLoad
from samebytes.stopwatch import Bench
from test_stopwatch import FULL, SPREAD, a_bench, three
from test_stopwatch import a_pass as a_measurement


def written(bench: Bench) -> None:
    stopwatch.write(paths.bench() / stopwatch.FILE, bench)


@pytest.mark.usefixtures("house")
def test_without_a_result_the_page_says_so() -> None:
    assert page.measured() is None
    written(a_bench(*three(), quick=True))  # a trial is none
    assert page.measured() is None
    assert text(page.conclusion(None)) == "Not measured yet. To measure it: make bench ."
    assert (page.who(None), page.chart(None), page.tables(None)) == ("", "", "")


def test_the_bench_is_no_study(house: Path) -> None:
    written(a_bench(*three()))
    measured(house, baselines())
    from samebytes import bookdata

    assert [study.name for study in bookdata.studies()] == ["toy"]


@pytest.mark.usefixtures("house")
def test_the_conclusion_is_the_fullest_load() -> None:
    others = [a_measurement("vllm", ttft_error_p99_s=-0.004), a_measurement("floor", ttft_error_p99_s=0.001)]
    others.append(a_measurement("openai", ttft_error_p99_s=0.9))
    written(a_bench(*three(), a_measurement("samebytes", cell=SPREAD, ttft_error_p99_s=9.0), *others))
    bench = page.measured()
    assert bench is not None
    said = text(page.conclusion(bench))
    assert "With 256 streams at once, this project’s client is 4.00 ms off in the TTFT of the worst" in said
    assert "0.200 % in the decode rate of the worst one (medians of 3 repetitions). It spends 15.0 µs of CPU" in said
    assert "and 90.0 µs on parsing it afterwards." in said
    assert "The server itself was 0.50 ms late" in said
    assert "The best of the others, vllm , is 4.00 ms off there." in said
    assert said.endswith("A reader that does nothing else is 1.00 ms off.")


@pytest.mark.usefixtures("house")
def test_tables_and_who_was_compared() -> None:
    bench = a_bench(*three(), a_measurement("guidellm", cpu_per_chunk_s=None), a_measurement("floor", cell=SPREAD))
    said = text(page.tables(bench))
    assert "256 streams at one instant, one token a chunk, a chunk every 20 ms" in said
    assert "samebytes 1.00 1.00 to 1.00 4.00 2.00 to 6.00" in said
    assert "guidellm 1.00 4.00 -0.10 -0.20 – 90.0 0.20" in said
    assert "16 streams spread over 1 s" in said
    assert "aiperf : not measured: does &lt;not&gt; start" in text(page.who(bench))
    assert [cell.streams for cell in bench.cells] == [FULL.streams, SPREAD.streams]


def test_the_engines_clock_beside_the_clients(house: Path) -> None:
    record = a_record("baseline", ids=IDS)
    p = record.passes[0]
    times = [page.decode_s(r) for r in p.requests]
    p.metrics |= {"ttft_sum": 0.19 * len(IDS), "ttft_count": float(len(IDS))}
    p.metrics |= {"decode_time_sum": 2 * sum(filter(None, times)), "decode_time_count": float(len(IDS))}
    study = measured(house, [record])
    assert "baseline sequential 9 200.00 190.00 10.00 6.300 12.600 -50.000 %" in text(page.agreement(study))
    assert (
        "over 1 passes of 1 studies: the mean TTFT that the client reports differs from the engine’s own by 10.0"
        in text(page.agreed([study]))
    )


def test_passes_that_the_engine_counts_otherwise_are_left_out(house: Path) -> None:
    assert page.agreement(measured(house, baselines())) == ""  # histograms not read
    one = a_pass([answer(IDS[0]), failed(IDS[1])])
    one.metrics |= {"ttft_sum": 1.0, "ttft_count": 2.0, "decode_time_sum": 1.0, "decode_time_count": 2.0}
    assert page.both(one) is None
    assert page.agreed([]) == ""


def test_client_bound_passes_are_counted_and_named(house: Path) -> None:
    busy = a_record("ngram", ids=IDS)
    busy.passes[0].client = ClientLoad(cpu_share=0.81)
    said = text(page.bound([measured(house, [*baselines(), busy])]))
    assert said == "Of the passes shown on these pages: 1 of 3 . ngram client-bound in toy"
    assert "more than 80 % of one core" in text(page.limits())


@pytest.mark.usefixtures("house")
def test_goals_stand_with_their_verdicts() -> None:
    assert page.goals(None) == ""
    bench = a_bench(*three(), a_measurement("vllm", rate_error_worst=0.014), a_measurement("floor"))
    said = text(page.goals(bench))
    assert "a hundred, 256 streams met 4.00 ms 2.00 to 6.00 at most 10.00 ms 4.00 ms vllm 4.00 ms 0.50 ms" in said
    assert "worst of a hundred, 16 streams not measured" in said
    assert "at most 0.700 % half of vllm" in said


@pytest.mark.usefixtures("house")
def test_the_chart_is_of_requests_at_one_instant() -> None:
    at_once = [*three(), a_measurement("vllm", ttft_error_p99_s=-0.012), a_measurement("floor", ttft_error_p99_s=0.0)]
    said = text(page.chart(a_bench(*at_once, a_measurement("vllm", cell=SPREAD, ttft_error_p99_s=9.0))))
    assert "samebytes : 4.0 ms with 256" in said
    assert "vllm : 12.0 ms with 256" in said  # a first token that seems early is an error too
    assert "floor : 0.0 ms with 256" in said
    assert page.chart(a_bench(a_measurement("vllm", cell=SPREAD))) == ""


@pytest.mark.usefixtures("house")
def test_an_interrupted_run_says_so() -> None:
    bench = a_bench(*three())
    assert "not brought to its end" not in text(page.who(bench))
    assert "not brought to its end" in text(page.who(bench.model_copy(update={"complete": False})))


@pytest.mark.usefixtures("house")
def test_disturbed_passes_are_counted_and_those_that_count_are_named() -> None:
    assert "repeated, once: 0 of 3 passes were. None of those that count is." in text(page.who(a_bench(*three())))
    bad = [a_measurement("vllm", server_late_p99_s=0.021) for _ in range(2)]
    said = text(page.who(a_bench(*three(), *bad)))
    assert "repeated, once: 1 of 5 passes were. Disturbed again, and counted all the same: vllm :" in said
    assert "a chunk every 20 ms , repetitions: 1" in said
