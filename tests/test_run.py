"""A run's record, on the stand-in engine: what it holds, what ends it early, and how it goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samebytes import analysis, compare, paths, record, run, server, settings, show, workloads
from samebytes.errors import EngineError, RecordError, UsageError
from samebytes.record import Pass, Record
from standin_project import PROMPTS, ROOT, STANDIN, Project, project

WARMUPS = 2
"""Requests that a run sends before the first prompt."""
Measure = Callable[..., Record]


def measuring(here: Project, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Return a call that measures in this process; its first arguments are the stand-in's options."""
    monkeypatch.setenv("SAMEBYTES_ROOT", str(here.root))

    def call(*options: str, **parameters: Any) -> Record:
        for name in ("SAMEBYTES_ENGINE_PYTHON", "STANDIN_OPTIONS"):
            monkeypatch.setenv(name, here.environment(*options)[name])
        said.clear()
        return run.measure(settings.plan(parameters), said.append)

    return call


@pytest.fixture
def said() -> list[str]:
    """What the run says."""
    return []


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Project]:
    with project(tmp_path / "project") as made:
        yield made


@pytest.fixture
def measure(here: Project, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Measure:
    return measuring(here, said, monkeypatch)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project that has measured baseline and ngram; tests leave these two records as they are."""
    with project(tmp_path_factory.mktemp("done") / "project") as made:
        with pytest.MonkeyPatch.context() as monkeypatch:
            for config in ("baseline", "ngram"):
                measuring(made, [], monkeypatch)(config=config)
        yield made


@pytest.fixture
def measure_more(done: Project, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Measure:
    return measuring(done, said, monkeypatch)


def assert_identities(measured: Pass) -> None:
    """Tokens of the answers are the server's tokens; what prompts drafted is what the pass drafted."""
    ok = [r for r in measured.requests if r.status == "ok"]
    assert ok
    assert measured.metrics["generation_tokens"] == sum(r.completion_tokens or 0 for r in ok)
    assert measured.metrics["prompt_tokens"] == sum(r.prompt_tokens or 0 for r in ok)
    assert measured.metrics["prompt_tokens_cached"] == 0
    if measured.kind == "sequential":
        for name in ("drafts", "draft_tokens", "accepted_tokens", "preemptions"):
            counted = [getattr(r, name) for r in measured.requests]
            if measured.metrics[name] is None:
                assert counted == [None] * len(counted)
            else:
                assert measured.metrics[name] == sum(counted)


# -- a whole run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["baseline", "ngram"])
def test_a_run_leaves_a_whole_record(done: Project, config: str) -> None:
    found = done.record(config)
    assert (found.status, found.reason, found.label, found.study) == ("complete", None, config, "quick")

    (launch,) = found.launches
    assert launch.started_by == "samebytes"
    assert launch.served_model_name in found.config.argv
    assert launch.kv_cache_tokens == 93184
    assert launch.max_concurrency == 22.75
    assert launch.prefix_caching is False
    assert launch.ready_mono is not None
    assert launch.warmed_mono is not None
    assert launch.stopped_mono is not None
    (measured,) = found.passes
    assert launch.started_mono < launch.ready_mono < launch.warmed_mono < measured.started_mono < launch.stopped_mono
    assert measured.complete
    assert measured.voided is None
    assert measured.makespan_s is not None
    assert measured.host.load is not None
    assert measured.client.cpu_share is not None

    assert [r.id for r in measured.requests] == [p.id for p in found.prompts]
    assert len(found.prompts) == PROMPTS
    for request in measured.requests:
        assert request.status == "ok"
        assert request.sha256 == hashlib.sha256(request.text.encode()).hexdigest()
        assert request.token_ids is not None
        assert len(request.token_ids) == request.completion_tokens
        assert request.prompt_token_ids is not None
        assert len(request.prompt_token_ids) == request.prompt_tokens
        assert request.ttft_s is not None
        assert request.decode_tok_s is not None
    assert {r.finish_reason for r in measured.requests} == {"stop", "length"}
    assert (found.sampling.token_ids, found.sampling.chunk_usage) == (True, True)
    assert_identities(measured)
    assert (done.record_path(config).parent / "logs" / f"{config}-0.log").exists()


def test_speculation_is_counted_per_prompt_and_left_null_without_it(done: Project) -> None:
    baseline, ngram = done.record("baseline"), done.record("ngram")
    assert [r.text for r in baseline.sequential()] == [r.text for r in ngram.sequential()]
    for request in ngram.sequential():
        assert request.drafts
        assert request.accepted_tokens
        assert request.accepted_per_pos is not None
        assert sum(request.accepted_per_pos) == request.accepted_tokens
        assert len(request.chunks) < (request.completion_tokens or 0)
    written = json.loads(done.record_path("baseline").read_text())
    for request in written["passes"][0]["requests"]:
        for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_pos", "reasoning", "error"):
            assert request[name] is None
    metrics = written["passes"][0]["metrics"]
    assert {metrics[name] for name in ("drafts", "draft_tokens", "accepted_tokens", "ttft_sum")} == {None}
    assert {written["launches"][0][name] for name in ("graph_bytes", "attention_backend", "async_scheduling")} == {None}


def test_the_concurrent_leg(here: Project, measure: Measure) -> None:
    here.study("legs", runs=[{"config": "ngram", "concurrent": {"concurrency": 4, "dup": 16}}])
    found = measure("--step-s", "0.03", config="ngram", study="legs", limit=1, max_tokens=12)
    sequential, leg = found.passes
    assert (sequential.kind, leg.kind, leg.launch, leg.concurrency, leg.dup) == ("sequential", "concurrent", 0, 4, 16)
    prompts = [p.id for p in found.prompts if p.workload in ("code_edit", "rag")]
    assert [(r.id, r.copy_index) for r in leg.requests] == [(p, copy) for copy in range(16) for p in prompts]
    assert leg.peak_running == 4
    assert_identities(sequential)
    assert_identities(leg)
    assert {r.drafts for r in leg.requests} == {None}
    assert "concurrent leg, 4 in flight: 32/32 answered" in show.text(found)


def test_a_leg_with_prompts_of_its_own(here: Project, measure: Measure) -> None:
    leg = {"concurrency": 4, "dup": 2, "workloads": ["rag", "long_context"]}
    here.study("legs", runs=[{"config": "baseline", "concurrent": leg}])
    found = measure(study="legs", limit=1, max_tokens=4)
    _, measured = found.passes
    own = [p.id for p in workloads.load(paths.workloads(), ["long_context"])]
    first = [p.id for p in found.prompts if p.workload == "rag"]
    assert {p.workload for p in found.prompts} == {"code_edit", "rag", "creative"}
    assert [r.id for r in measured.requests] == [*first, *own] * 2
    assert [p.id for p in found.leg_prompts or ()] == [*first, *own]
    assert measure(study="legs", limit=1, max_tokens=4) == found  # complete: nothing is measured again
    assert compare.compare_concurrent([found], [found]).prompts[0].workload == "rag"
    assert analysis.summarise([found]).configs[0].concurrent[0].answered == (10, 10)
    found.leg_prompts = [p.model_copy(update={"sha256": "0"}) for p in found.leg_prompts or ()]
    record.save(found, here.record_path("baseline", "legs"))
    with pytest.raises(RecordError, match="prompts of the concurrent leg"):
        measure(study="legs", limit=1, max_tokens=4)


def test_a_leg_that_is_asked_for_later_is_all_that_is_measured(
    done: Project, measure_more: Measure, tmp_path: Path
) -> None:
    before = done.record("baseline")
    record.save(before, tmp_path / "quick" / "baseline.json")
    after = measure_more(config="baseline", concurrency=2, dup=1, results_dir=str(tmp_path))
    assert after.sequential() == before.sequential()
    assert [(p.kind, p.launch) for p in after.passes] == [("sequential", 0), ("concurrent", 1)]
    assert not after.resumed
    with pytest.raises(RecordError, match="concurrent leg"):
        measure_more(config="baseline", concurrency=3, dup=1, results_dir=str(tmp_path))


# -- nothing twice, nothing lost ---------------------------------------------------------------------------------------


def test_a_complete_record_is_not_measured_again(done: Project, measure_more: Measure, said: list[str]) -> None:
    written, engines = done.record_path("baseline").read_bytes(), done.engine_pids()
    measure_more(config="baseline")
    assert done.record_path("baseline").read_bytes() == written
    assert done.engine_pids() == engines
    assert "is complete; nothing to measure" in said[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": 16}, "max_tokens: 48 there, 16 here"),
        ({"limit": 1}, "prompts"),
        ({"workloads": "rag"}, r"prompts: \['code_edit/.*'\] there, \[\] here"),
        ({"study": "other", "label": "baseline"}, r"flags: \['--seed 0'\] there, \['--seed 1'\] here"),
        ({"config": "ngram", "label": "baseline", "study": "any"}, "config: 'baseline' there, 'ngram' here"),
        ({"model": "OTHER"}, "model"),
    ],
    ids=["max_tokens", "fewer prompts", "fewer workloads", "a flag", "another config", "another model"],
)
def test_a_record_of_other_settings_is_refused_and_kept(
    done: Project, measure_more: Measure, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    done.study("other", flags={**settings.study("quick").flags, "seed": 1})
    done.study("any", runs=[{"config": "fp8"}])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{ }\n")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    if "model" in changes:
        changes = {"model": str(tmp_path / "model")}
    parameters = {"config": "baseline", "results_dir": str(tmp_path), **changes}
    path = tmp_path / parameters.get("study", "quick") / "baseline.json"
    record.save(done.record("baseline"), path)
    written, engines = path.read_bytes(), done.engine_pids()
    with pytest.raises(RecordError, match=words) as caught:
        measure_more(**parameters)
    assert "another label" in str(caught.value)
    assert path.read_bytes() == written
    assert done.engine_pids() == engines


def test_a_record_that_lacks_only_its_last_word_starts_nothing(
    done: Project, measure_more: Measure, tmp_path: Path
) -> None:
    found = done.record("baseline")
    found.status = "partial"
    record.save(found, tmp_path / "quick" / "baseline.json")
    engines = done.engine_pids()
    assert measure_more(config="baseline", results_dir=str(tmp_path)).status == "complete"
    assert done.engine_pids() == engines


# -- before anything starts --------------------------------------------------------------------------------------------


def test_a_busy_port_stops_before_a_model_is_looked_at(here: Project, measure: Measure) -> None:
    with server.socket.socket() as taken:
        taken.bind((server.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is in use") as caught:
            measure(config="baseline", port=port, model="no/such model")
    assert "free now" in str(caught.value)
    assert here.engine_pids() == []
    assert not here.record_path("baseline").exists()


def test_a_missing_model_stops_before_anything_starts(here: Project, measure: Measure) -> None:
    with pytest.raises(UsageError, match=r"unknown model '\./nowhere'\. Valid: a folder with config\.json"):
        measure(config="baseline", model="./nowhere")
    assert here.engine_pids() == []
    assert not here.record_path("baseline").exists()


def test_a_study_for_a_gpu_names_those_for_any_machine(here: Project, measure: Measure) -> None:
    here.study("big", device="gpu")
    with pytest.raises(UsageError, match=r"needs a GPU .*: cpu-dtype, cpu-smollm2-135m, quick"):
        measure(config="baseline", study="big")
    assert here.engine_pids() == []


def test_too_little_memory_is_told_in_numbers(here: Project, measure: Measure) -> None:
    (here.root / "model" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    here.study("greedy", env={"VLLM_CPU_KVCACHE_SPACE": "9999"})
    with pytest.raises(UsageError, match=r"only .* GiB of memory free; weights and KV cache need 9,?999"):
        measure(config="baseline", study="greedy")
    assert here.engine_pids() == []


def test_a_leg_without_prompts_is_refused(measure: Measure) -> None:
    with pytest.raises(UsageError, match="the concurrent leg takes code_edit, rag, but this run has only creative"):
        measure(config="baseline", workloads="creative", concurrency=2)


def test_a_wrong_check_stops_before_anything_starts(here: Project, measure: Measure) -> None:
    (here.root / "workloads").unlink()
    shutil.copytree(ROOT / "workloads", here.root / "workloads")
    (here.root / "workloads" / "rag" / "bakery-starter.check.yaml").write_text("kind: quote\nmust_qoute: [a]\n")
    measured = settings.plan({"config": "baseline", "workloads": "code_edit"})
    assert len(run.load_prompts(measured)[0]) == 2
    for parameters in ({}, {"workloads": "code_edit,rag", "concurrency": 2}):
        with pytest.raises(UsageError, match=r"bakery-starter\.check\.yaml: unknown key 'must_qoute'"):
            measure(config="baseline", **parameters)
    assert here.engine_pids() == []
    assert not here.record_path("baseline").exists()


# -- engines that refuse or die ----------------------------------------------------------------------------------------


def test_an_engine_that_refuses_the_config_is_a_failed_record(here: Project, measure: Measure) -> None:
    with pytest.raises(EngineError, match="FP8 KV cache on CPU requires x86 with AVX-512 or AMX") as caught:
        measure(config="fp8")
    assert "logs/fp8-0.log" in str(caught.value)
    found = here.record("fp8")
    assert found.status == "failed"
    assert found.reason == "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
    assert found.passes == []
    (launch,) = found.launches
    assert launch.ready is None
    assert launch.stopped is not None
    assert launch.log_excerpt
    assert here.engines_alive() == []


def test_what_was_refused_once_may_work_the_next_time(here: Project, measure: Measure) -> None:
    with pytest.raises(EngineError, match="exited with code 3"):
        measure("--exit-code", "3", config="baseline")
    assert here.record("baseline").status == "failed"
    found = measure(config="baseline")
    assert (found.status, found.reason) == ("complete", None)
    assert [launch.ready is None for launch in found.launches] == [True, False]
    assert found.passes[0].launch == 1


def test_an_engine_that_is_never_ready_is_given_up(here: Project, measure: Measure) -> None:
    here.study("hasty", ready_timeout_s=1)
    with pytest.raises(EngineError, match="not ready after 1 s"):
        measure("--never-ready", config="baseline", study="hasty")
    assert "still compiling" in (here.record("baseline", "hasty").reason or "")
    assert here.engines_alive() == []


@pytest.mark.parametrize("linger_s", ["0", "1.5"], ids=["at once", "API server outlives it"])
def test_an_engine_that_dies_costs_only_the_prompt_it_died_on(
    here: Project, measure: Measure, said: list[str], linger_s: str
) -> None:
    with pytest.raises(EngineError, match="RuntimeError: the stand-in was told to die"):
        measure("--die-after", str(WARMUPS + 2), "--linger-s", linger_s, config="ngram")
    broken = here.record("ngram")
    assert (broken.status, broken.reason) == ("failed", "RuntimeError: the stand-in was told to die")
    (cut,) = broken.passes
    assert [r.status for r in cut.requests] == ["ok", "ok"]
    assert not cut.complete
    assert_identities(cut)
    assert here.engines_alive() == []

    found = measure(config="ngram")
    assert f"resuming {here.record_path('ngram')}: 2 of 6 prompts are kept, 4 left" in said
    assert (found.status, found.reason) == ("complete", None)
    assert len(found.launches) == 2
    first, second = found.passes
    assert (first.launch, second.launch) == (0, 1)
    assert first.requests == cut.requests
    assert [r.id for r in second.requests] == [p.id for p in found.prompts][2:]
    assert [r.id for r in found.sequential()] == [p.id for p in found.prompts]
    assert found.resumed
    assert_identities(first)
    assert_identities(second)


def test_an_interrupt_while_counters_are_summed_up_leaves_them_as_sums_of_the_requests(
    here: Project, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, calls = run.clients.load, list[int]()

    def interrupted(batches: list[run.Batch]) -> record.ClientLoad:
        calls.append(len(batches))
        if len(batches) == 2:
            signal.raise_signal(signal.SIGINT)
        return load(batches)

    monkeypatch.setattr(run.clients, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(config="baseline")
    broken = here.record("baseline").passes[0]
    assert calls == [1, 2]
    assert len(broken.requests) == 2
    assert broken.metrics["generation_tokens"] == sum(r.completion_tokens or 0 for r in broken.requests)


def test_a_death_before_the_first_answer_leaves_a_control_whole(here: Project, measure: Measure) -> None:
    with pytest.raises(EngineError, match="told to die"):
        measure("--die-after", str(WARMUPS), config="baseline")
    found = measure(config="baseline")
    assert [len(p.requests) for p in found.passes] == [0, PROMPTS]
    assert not found.resumed


def test_a_death_in_the_concurrent_leg_keeps_the_sequential_pass(here: Project, measure: Measure) -> None:
    leg = {"config": "baseline", "concurrency": 2, "dup": 1}
    with pytest.raises(EngineError, match="told to die"):
        measure("--die-after", str(WARMUPS + PROMPTS + 3), **leg)
    found = measure(**leg)
    assert [(p.kind, p.launch, p.complete) for p in found.passes] == [
        ("sequential", 0, True),
        ("concurrent", 0, False),
        ("concurrent", 1, True),
    ]
    assert not found.resumed
    concurrent = found.concurrent()
    assert concurrent is not None
    assert_identities(concurrent)


def test_counters_that_start_again_void_the_pass(here: Project, measure: Measure) -> None:
    with pytest.raises(EngineError, match=r"counter .* fell from .*: the server restarted"):
        measure("--reset-after", str(WARMUPS + 3), config="baseline")
    broken = here.record("baseline")
    assert broken.status == "failed"
    assert "the server restarted" in (broken.passes[0].voided or "")
    assert broken.sequential() == []
    found = measure(config="baseline")
    assert found.status == "complete"
    assert [len(p.requests) for p in found.passes] == [3, PROMPTS]
    assert not found.resumed
    assert_identities(found.passes[1])


def test_a_refused_prompt_is_an_error_of_that_prompt(here: Project, measure: Measure) -> None:
    # "sourdough" stands in one prompt only
    found = measure("--refuse", "sourdough", config="ngram")
    assert found.status == "complete"
    (broken,) = [r for r in found.sequential() if r.status != "ok"]
    assert (broken.id, broken.status) == ("rag/bakery-starter", "error")
    assert broken.error == "HTTP 400: this stand-in refuses prompts that hold 'sourdough'"
    assert (broken.ttft_s, broken.decode_tok_s, broken.completion_tokens) == (None, None, None)
    assert_identities(found.passes[0])
    assert "5/6 prompts answered" in show.text(found)
    assert "rag/bakery-starter                    error" in show.text(found)


def test_what_failed_is_asked_again_when_a_run_goes_on(here: Project, measure: Measure) -> None:
    with pytest.raises(EngineError, match="told to die"):
        measure("--refuse", "sourdough", "--die-after", str(WARMUPS + 3), config="baseline")
    broken = here.record("baseline")
    assert [r.status for r in broken.sequential()] == ["ok", "ok", "error", "ok"]
    found = measure(config="baseline")
    ids = [p.id for p in found.prompts]
    assert [r.id for r in found.passes[1].requests] == [ids[2], ids[4], ids[5]]
    assert [(r.id, r.status) for r in found.sequential()] == [(prompt, "ok") for prompt in ids]


# -- other load on the machine -----------------------------------------------------------------------------------------


def test_a_disturbed_pass_is_measured_again(here: Project, measure: Measure, said: list[str]) -> None:
    here.study("strict", max_foreign_load=0.001)
    # no child of this process: its own children count as the run's
    busy = f"'{sys.executable}' -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    foreign = int(subprocess.run(["sh", "-c", busy], capture_output=True, text=True, check=True).stdout)
    try:
        found = measure(config="baseline", study="strict")
    finally:
        os.kill(foreign, signal.SIGKILL)
    assert found.status == "complete"
    assert len(found.passes) == run.ATTEMPTS
    *voided, last = found.passes
    for measured in voided:
        assert (measured.voided or "").startswith("disturbed: foreign load ")
    assert last.voided is None
    assert (last.host.load or 0) > 0.3
    assert found.sequential() == last.requests
    assert len([line for line in said if "measuring this pass again" in line]) == 2
    assert any("kept after 3 tries" in line for line in said)


def test_a_disturbed_part_of_a_pass_is_not_gone_on_with(here: Project, measure: Measure) -> None:
    here.study("strict", max_foreign_load=1000)
    with pytest.raises(EngineError):
        measure("--die-after", str(WARMUPS + 2), config="baseline", study="strict")
    broken = here.record("baseline", "strict")
    broken.passes[0].host.load = 2000.0
    record.save(broken, here.record_path("baseline", "strict"))
    found = measure(config="baseline", study="strict")
    assert "disturbed" in (found.passes[0].voided or "")
    assert len(found.passes[1].requests) == PROMPTS


# -- a server that already runs ----------------------------------------------------------------------------------------


@pytest.fixture
def running(here: Project) -> Iterator[Callable[..., str]]:
    """Return a call that starts a stand-in by hand and gives its address."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> str:
        port = server.free_port()
        argv = [sys.executable, str(STANDIN), "--port", str(port), "--served-model-name", "theirs", *options]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(argv, **quiet, start_new_session=True))
        while server.port_is_free(port):
            assert started[-1].poll() is None
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_running_server_is_measured_and_left_alone(
    here: Project, measure: Measure, running: Callable[..., str]
) -> None:
    address = running("--speculative-config", "{}")
    found = measure(config="baseline", label="theirs", base_url=f"{address}/v1/")
    server.check_health(address)
    (launch,) = found.launches
    assert (launch.started_by, launch.base_url, launch.served_model_name) == ("base_url", address, "theirs")
    assert launch.stopped is None
    assert (found.config.argv, found.config.env, found.model.id) == ([], {}, "theirs")
    assert found.versions.vllm == "0.32.0"
    assert (found.versions.torch, found.versions.python) == (None, None)
    assert found.passes[0].metrics["drafts"]
    assert_identities(found.passes[0])
    assert here.engine_pids() == []
    with pytest.raises(RecordError, match="flags"):
        measure(config="baseline", label="theirs")


def test_a_running_server_that_dies_is_named(here: Project, measure: Measure, running: Callable[..., str]) -> None:
    address = running("--die-after", str(WARMUPS + 1))
    with pytest.raises(EngineError, match=f"no server answers at {address}"):
        measure(config="baseline", base_url=address)
    found = here.record("baseline")
    assert found.status == "failed"
    assert len(found.sequential()) == 1


def test_a_running_server_that_wants_a_key(here: Project, measure: Measure, running: Callable[..., str]) -> None:
    address = running("--api-key", "secret")
    with pytest.raises(UsageError, match=r"/v1/models answered 401: it wants an API key"):
        measure(config="baseline", base_url=address)


def test_an_address_where_nothing_answers(here: Project, measure: Measure) -> None:
    with pytest.raises(EngineError, match="no server answers at"):
        measure(config="baseline", base_url=f"http://127.0.0.1:{server.free_port()}")
    assert not here.record_path("baseline").exists()
