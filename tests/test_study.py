"""A study on the stand-in engine: what it measures, what it leaves alone, and how it goes on after a death."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebytes import record, settings, study
from standin_project import Project, finished, project, wait_until

REFUSAL = "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Project]:
    with project(tmp_path / "project") as made:
        yield made


def states(here: Project, monkeypatch: pytest.MonkeyPatch, name: str = "quick") -> dict[str, str]:
    """Return what each run's record says so far."""
    monkeypatch.setenv("SAMEBYTES_ROOT", str(here.root))
    return {step.run.label: step.state for step in study.steps(settings.study(name))}


# -- a whole study, measured once for the tests below, which put back what they change -----------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str]]:
    """A project whose study ``quick`` was measured on a terminal, and what that showed."""
    with project(tmp_path_factory.mktemp("study") / "project") as made:
        made.study("quick", limit=1)
        first = made.on_terminal("samebytes", "study", "quick")
        assert first.code == 0, first
        yield made, first.out


@pytest.fixture
def done(measured: tuple[Project, str]) -> Project:
    return measured[0]


def test_every_run_has_its_record_the_control_first(done: Project) -> None:
    found = {label: done.record(label) for label in ("baseline", "baseline-2", "ngram", "fp8")}
    assert [r.status for r in found.values()] == ["complete", "complete", "complete", "failed"]
    assert [r.config.name for r in found.values()] == ["baseline", "baseline", "ngram", "fp8"]
    starts = [r.launches[0].started_mono for r in found.values()]
    assert starts == sorted(starts)
    names = {r.launches[0].served_model_name for r in found.values()}
    assert len(names) == 4
    assert found["fp8"].reason == REFUSAL
    assert {p.name for p in (done.record_path("fp8").parent / "notebooks").iterdir()} == {f"{n}.ipynb" for n in found}


def test_a_terminal_sees_the_progress_and_the_refusal(measured: tuple[Project, str]) -> None:
    _, shown = measured
    assert "study quick: 4 runs, 0 done, 4 to measure" in shown
    assert "[1/4] baseline\n" in shown
    assert " s left)\n" in shown.split("[3/4] ngram (about ")[1]
    assert "[3/3] creative/" in shown
    assert f"the engine refused this config here: {REFUSAL}" in shown
    assert "quick: 3 measured, 0 complete already" in shown
    assert f"fp8: cannot run here: {REFUSAL}" in shown
    assert "Traceback" not in shown


def test_a_second_call_measures_nothing(done: Project) -> None:
    engines = done.engine_pids()
    again = done.run("samebytes", "study", "quick")
    assert again.code == 0, again
    assert again.out == f"quick: 0 measured, 3 complete already\nfp8: cannot run here: {REFUSAL}\n"
    assert again.err == ""
    assert done.engine_pids() == engines
    dry = done.run("samebytes", "study", "quick", "--dry-run")
    assert [line.split()[0] for line in dry.out.splitlines()] == ["complete", "complete", "complete", "failed"]


def test_records_of_other_settings_are_told_and_left_alone(done: Project) -> None:
    engines, written = done.engine_pids(), done.record_path("ngram").read_bytes()
    done.study("quick", limit=1, max_tokens=16)
    try:
        again = done.run("samebytes", "study", "quick", options=("--exit-code", "1"))
    finally:
        done.study("quick", limit=1)
    assert again.code == 1, again
    assert "ngram: not measured:" in again.err
    assert "was measured with other settings (max_tokens: 48 there, 16 here); move it away" in again.err
    assert done.record_path("ngram").read_bytes() == written
    # fp8 has no measurement to lose: it was tried again, and refused again
    assert len(done.engine_pids()) > len(engines)
    assert done.record("fp8").sampling.max_tokens == 16


def test_another_machines_refusal_is_not_this_ones(done: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = done.record("baseline")
    path = done.record_path("fp8")
    before = path.read_bytes()
    try:
        for cpu, expected in ((kept.machine.cpu, "failed here"), ("another CPU", "to measure")):
            foreign = done.record("fp8")
            foreign.machine.cpu = cpu
            foreign.sampling = kept.sampling
            record.save(foreign, path)
            assert states(done, monkeypatch)["fp8"] == expected
    finally:
        path.write_bytes(before)


def test_a_leg_that_the_study_gained_is_to_be_measured(done: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    done.study("quick", limit=1, runs=[{"config": "baseline", "concurrent": {"concurrency": 2}}, {"config": "ngram"}])
    try:
        assert states(done, monkeypatch) == {"baseline": "to resume", "ngram": "complete"}
    finally:
        done.study("quick", limit=1)


# -- studies that meet trouble -----------------------------------------------------------------------------------------


def test_what_the_engine_refused_is_tried_again_on_demand(here: Project) -> None:
    here.study("quick", limit=1, runs=[{"config": "fp8"}])
    for options, launches in (((), 1), (("--retry-failed",), 2)):
        done = here.run("samebytes", "study", "quick", *options)
        assert done.code == 0, done
        assert f"fp8: cannot run here: {REFUSAL}" in done.out
        assert len(here.record("fp8").launches) == launches


def test_an_engine_that_dies_stops_only_its_own_run(here: Project) -> None:
    here.config("ngram", {"die-after": 3})
    here.study("quick", limit=1, runs=[{"config": "ngram"}, {"config": "baseline"}])
    done = here.run("samebytes", "study", "quick")
    assert done.code == 1, done
    assert "quick: 1 measured, 0 complete already" in done.out
    assert "ngram: not measured: EngineError: RuntimeError: the stand-in was told to die" in done.err
    assert "Traceback" not in done.err
    assert here.record("ngram").status == "failed"
    assert len(here.record("ngram").sequential()) == 1
    assert here.record("baseline").status == "complete"


def test_two_studies_into_one_folder_the_second_refuses(here: Project) -> None:
    here.study("quick", limit=1, runs=[{"config": "baseline"}])
    with here.start("samebytes", "study", "quick", options=("--never-ready",)) as first:
        try:
            wait_until(here.record_path("baseline").exists, 20, "the first study's first record")
            second = here.run("samebytes", "study", "quick")
        finally:
            first.kill()
            first.communicate()
    assert second.code == 1, second
    assert f"another study is running into {here.record_path('baseline').parent}" in second.err
    wait_until(lambda: not here.engines_alive(), 15, "the end of the first")


def test_interrupted_in_the_middle_it_stops_and_then_measures_only_what_is_missing(
    done: Project, here: Project
) -> None:
    record.save(done.record("baseline"), here.record_path("baseline"))
    before = here.record_path("baseline").read_bytes()
    here.config("ngram", {"speculative-config": {"method": "ngram"}, "step-s": 0.02})
    here.study("quick", limit=1, runs=[{"config": "baseline"}, {"config": "ngram"}, {"config": "baseline_sync"}])
    process = here.start("samebytes", "study", "quick")
    try:
        wait_until(lambda: finished(here.record_path("ngram")) >= 1, 60, "the second run's first prompt")
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: process.poll() is not None and not here.engines_alive(), 15, "the end of all")
    finally:
        process.kill()
        _, err = process.communicate()
    assert process.returncode != 0
    assert "Traceback" not in err
    assert not here.record_path("baseline_sync").exists()
    kept = here.record("ngram").sequential()
    assert 1 <= len(kept) < 3

    again = here.run("samebytes", "study", "quick")
    assert again.code == 0, again
    assert again.out == "quick: 2 measured, 1 complete already\n"
    assert here.record_path("baseline").read_bytes() == before
    whole = here.record("ngram")
    assert whole.status == "complete"
    assert whole.sequential()[: len(kept)] == kept
    assert [(p.launch, len(p.requests)) for p in whole.passes] == [(0, len(kept)), (1, 3 - len(kept))]


def test_a_time_limit_starts_no_run_that_would_end_later(here: Project) -> None:
    here.study("quick", limit=1, runs=[{"config": "baseline"}, {"config": "ngram"}])
    done = here.run("samebytes", "study", "quick", "--time-limit", "0.05")
    assert done.code == 0, done
    assert "quick: 1 measured, 0 complete already\nleft for the next time: ngram\n" in done.out
    assert not here.record_path("ngram").exists()
