"""Real vLLM on the CPU: one server start for baseline, one for ngram, one for fp8; a refused flag; a killed kernel.

Study ``quick``: two prompts per workload, 48 tokens.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest

from samebytes import machine, record, server
from samebytes.record import Record
from standin_project import BIN, ROOT, Done, finished, wait_until

pytestmark = pytest.mark.engine

TTFT_TOLERANCE_S = 0.015
"""Mean TTFT here minus vLLM's own: the way through two sockets, and what a busy machine adds to it."""
DECODE_TOLERANCE = 0.01
"""Of the time from first to last token, over the pass."""
GONE_S = 15.0


class Here:
    """This project's own configs and prompts on the real engine, records going to a folder of the tests."""

    def __init__(self, folder: Path, engine: Path) -> None:
        self.results = folder / "results"
        self.executed = folder / "executed.ipynb"
        self.mark = secrets.token_hex(8)
        self.environment = {**os.environ, "SAMEBYTES_ENGINE_PYTHON": str(engine), "TEST_ENGINE": self.mark}

    def start(self, *command: str, root: Path = ROOT) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, root: Path = ROOT) -> Done:
        began = time.monotonic()
        process = self.start(*command, root=root)
        out, err = process.communicate(timeout=400)
        return Done(process.returncode, out, err, time.monotonic() - began)

    def papermill(self, **parameters: object) -> tuple[str, ...]:
        given = {"results_dir": self.results, **parameters}
        words = [word for name, value in given.items() for word in ("-p", name, str(value))]
        return ("papermill", "notebooks/run_config.ipynb", str(self.executed), "--no-progress-bar", *words)

    def samebytes(self, config: str, *options: str) -> tuple[str, ...]:
        return ("samebytes", "run", config, "--results-dir", str(self.results), *options)

    def alive(self) -> list[psutil.Process]:
        """Return the living processes of all that was started here, by what they inherited."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get("TEST_ENGINE") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def engine(self) -> dict[str, psutil.Process]:
        """Return the living processes of the engine by name."""
        return {p.name(): p for p in self.alive() if p.name().startswith("VLLM::")}

    def record(self, label: str) -> Record:
        return record.load(self.results / "quick" / f"{label}.json")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, engine_python: Path, embedded_model: Path) -> Iterator[Here]:
    source = ROOT / "notebooks" / "run_config.ipynb"
    before = source.read_bytes()
    yield Here(tmp_path_factory.mktemp("engine"), engine_python)
    assert source.read_bytes() == before


@pytest.fixture(scope="module")
def baseline(here: Here) -> Record:
    done = here.run(*here.papermill(config="baseline"))
    assert done.code == 0, done
    return here.record("baseline")


@pytest.fixture(scope="module")
def ngram(here: Here) -> Record:
    done = here.run(*here.samebytes("ngram"))
    assert done.code == 0, done
    return here.record("ngram")


@pytest.fixture(params=["baseline", "ngram"])
def found(request: pytest.FixtureRequest) -> Record:
    """Either record."""
    return request.getfixturevalue(request.param)


def test_the_record_is_whole(found: Record) -> None:
    assert (found.status, found.reason) == ("complete", None)
    (launch,), (measured,) = found.launches, found.passes
    assert [r.id for r in measured.requests] == [p.id for p in found.prompts]
    assert [p.workload for p in found.prompts] == ["code_edit"] * 2 + ["rag"] * 2 + ["creative"] * 2
    assert {r.status for r in measured.requests} == {"ok"}
    assert re.fullmatch("samebytes-[0-9a-f]{8}", launch.served_model_name)
    assert launch.served_model_name in found.config.argv
    assert (launch.kv_cache_tokens or 0) > 4096
    assert launch.kv_cache_bytes == 2 * 2**30
    assert launch.process_start_time is not None
    assert found.model.id == "smollm2-135m-instruct"
    assert found.versions.vllm == "0.32.0"
    assert (found.versions.torch or "").endswith("+cpu")
    assert str(Path.home()) not in " ".join([*found.config.argv, *launch.log_excerpt])


def test_the_identities_hold(found: Record) -> None:
    (measured,) = found.passes
    requests = measured.requests
    assert measured.metrics["generation_tokens"] == sum(r.completion_tokens or 0 for r in requests)
    assert measured.metrics["prompt_tokens"] == sum(r.prompt_tokens or 0 for r in requests)
    assert measured.metrics["requests_finished"] == len(requests)
    assert measured.metrics["preemptions"] == sum(r.preemptions or 0 for r in requests) == 0
    for request in requests:
        assert sum(tokens or 0 for _, tokens in request.chunks) == request.completion_tokens


def test_prefix_caching_is_off_by_the_servers_own_word(found: Record) -> None:
    assert found.launches[0].prefix_caching is False
    assert found.passes[0].metrics["prompt_tokens_cached"] == 0


def test_what_was_asked_for_and_what_the_server_gave(found: Record) -> None:
    sampling = found.sampling
    assert (sampling.temperature, sampling.seed, sampling.max_tokens, sampling.thinking) == (0.0, 0, 48, False)
    assert (sampling.token_ids, sampling.chunk_usage) == (True, True)
    for request in found.sequential():
        assert request.token_ids is not None
        assert len(request.token_ids) == request.completion_tokens
        assert request.prompt_token_ids is not None
        assert len(request.prompt_token_ids) == request.prompt_tokens
        assert request.finish_reason in ("length", "stop")
        assert request.first_chunk_tokens == 1


def test_the_stopwatch_agrees_with_the_servers_own(found: Record) -> None:
    (measured,) = found.passes
    requests, metrics = measured.requests, measured.metrics
    assert metrics["ttft_count"] == metrics["decode_time_count"] == len(requests)
    ours = sum(r.ttft_s or 0 for r in requests) / len(requests)
    theirs = (metrics["ttft_sum"] or 0) / len(requests)
    assert ours == pytest.approx(theirs, abs=TTFT_TOLERANCE_S)
    ours = sum((r.finish_s or 0) - (r.first_text_s or 0) for r in requests)
    assert ours == pytest.approx(metrics["decode_time_sum"], rel=DECODE_TOLERANCE)


def test_speculation_drafts_and_the_baseline_does_not(baseline: Record, ngram: Record) -> None:
    assert {r.drafts for r in baseline.sequential()} == {None}
    assert baseline.passes[0].metrics["drafts"] is None
    metrics = ngram.passes[0].metrics
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        total = sum(getattr(r, name) for r in ngram.sequential())
        assert total == metrics[name]
        assert total > 0
    for request in ngram.sequential():
        assert sum(request.accepted_per_pos or []) == request.accepted_tokens
    assert ngram.launches[0].async_scheduling is False
    assert baseline.launches[0].served_model_name != ngram.launches[0].served_model_name


def test_the_executed_notebooks_lie_beside_the_records(here: Here, baseline: Record, ngram: Record) -> None:
    for path in (here.executed, here.results / "quick" / "notebooks" / "ngram.ipynb"):
        executed = nbformat.read(path, as_version=4)
        assert "6/6 prompts answered" in str(executed.cells[-1].outputs)
    assert here.alive() == []


def test_fp8_is_refused_or_doubles_the_pool(here: Here, baseline: Record) -> None:
    done = here.run(*here.samebytes("fp8"))
    fp8 = here.record("fp8")
    if set(machine.info().cpu_isa) & {"avx512f", "amx_tile"}:
        assert done.code == 0, done
        assert fp8.status == "complete"
        pools = [found.launches[0].kv_cache_tokens or 0 for found in (fp8, baseline)]
        assert pools[0] == pytest.approx(2 * pools[1], rel=0.1)
    else:
        assert done.code == 1, done
        assert fp8.status == "failed"
        assert "FP8 KV cache on CPU requires x86 with AVX-512 or AMX" in (fp8.reason or "")
        assert fp8.reason in done.err
        assert fp8.passes == []


def test_an_unknown_flag_fails_in_the_engines_own_words(here: Here, tmp_path: Path) -> None:
    for name in ("configs", "studies", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "workloads").symlink_to(ROOT / "workloads")
    (tmp_path / "_config.yml").write_text("title: a test\n")
    (tmp_path / "configs" / "typo.yaml").write_text("why: a test\nflags: {kv-cash-dtype: fp8}\n")
    done = here.run(*here.samebytes("typo"), root=tmp_path)
    assert done.code == 1, done
    assert "error: unrecognized arguments: --kv-cash-dtype" in done.err
    assert "Traceback" not in done.err
    assert done.seconds < 60
    typo = here.record("typo")
    assert typo.status == "failed"
    assert "unrecognized arguments" in (typo.reason or "")


def in_the_middle(process: subprocess.Popen[str], path: Path, prompts: int) -> None:
    """Wait until a run has so many prompts in its record."""

    def there() -> bool:
        assert process.poll() is None, process.communicate()
        return finished(path) >= prompts

    wait_until(there, 240, f"prompt {prompts}")


def test_a_killed_kernel_leaves_nothing_alive_and_the_next_run_goes_on(here: Here) -> None:
    port = server.free_port()
    given = {"config": "baseline", "label": "killed", "limit": 1, "port": port}
    path = here.results / "quick" / "killed.json"
    process = here.start(*here.papermill(**given))
    try:
        in_the_middle(process, path, 1)
        assert "VLLM::EngineCore" in here.engine()
        commands = psutil.Process(process.pid).children(recursive=True)
        (kernel,) = [p for p in commands if "ipykernel_launcher" in " ".join(p.cmdline())]
        kernel.kill()
        wait_until(lambda: process.poll() is not None and not here.alive(), GONE_S, "the end of all")
        assert server.port_is_free(port)
        assert process.returncode != 0
    finally:
        process.kill()
        process.communicate()
    assert here.record("killed").status == "partial"
    kept = here.record("killed").sequential()
    assert 1 <= len(kept) < 3

    done = here.run(*here.papermill(**given))
    assert done.code == 0, done
    executed = here.executed.read_text(encoding="utf-8")
    assert f"{len(kept)} of 3 prompts are kept, {3 - len(kept)} left" in executed
    whole = here.record("killed")
    assert (whole.status, whole.reason) == ("complete", None)
    assert whole.sequential()[: len(kept)] == kept
    assert [p.launch for p in whole.passes] == [0, 1]
    for measured in whole.passes:
        assert measured.metrics["generation_tokens"] == sum(r.completion_tokens or 0 for r in measured.requests)
    assert whole.resumed


@pytest.mark.slow
def test_a_killed_engine_fails_the_run_and_keeps_what_was_answered(here: Here) -> None:
    process = here.start(*here.samebytes("baseline", "--label", "dead"))
    try:
        in_the_middle(process, here.results / "quick" / "dead.json", 1)
        here.engine()["VLLM::EngineCore"].kill()
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1
    assert err.startswith("samebytes: EngineError: EngineDeadError: EngineCore encountered an issue.")
    assert here.alive() == []
    found = here.record("dead")
    assert found.status == "failed"
    assert 1 <= len(found.sequential()) < 6
    assert {r.status for r in found.sequential()} == {"ok"}
