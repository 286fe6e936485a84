"""The probe on the stand-in engine: what it keeps, what it refuses, how it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from samebytes import probe, run, settings
from samebytes.cli import app
from samebytes.errors import EngineError, RecordError, SamebytesError, UsageError
from standin_project import Project, project

CONFIGS = ("baseline", "ngram")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with two recorded runs."""
    with project(tmp_path_factory.mktemp("probe") / "project") as made, pytest.MonkeyPatch.context() as patch:
        for name, value in {**made.environment(), "SAMEBYTES_ROOT": str(made.root)}.items():
            patch.setenv(name, value)
        for config in CONFIGS:
            run.measure(settings.plan({"config": config, "max_tokens": 12}), lambda _: None)
        yield made


@pytest.fixture
def here(measured: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name, value in {**measured.environment(), "SAMEBYTES_ROOT": str(measured.root)}.items():
        monkeypatch.setenv(name, value)
    yield measured
    for path in folder(measured).glob("probes/*"):
        path.unlink()


def folder(here: Project) -> Path:
    return here.root / "results" / "quick"


def make(config: str = "baseline", said: list[str] | None = None, **how: Any) -> probe.Probe:
    plan = settings.plan({"config": config, "max_tokens": 12})
    return probe.make(plan, say=(said if said is not None else []).append, **how)


def options(monkeypatch: pytest.MonkeyPatch, here: Project, *words: str) -> None:
    monkeypatch.setenv("STANDIN_OPTIONS", " ".join(["--pids", str(here.pids), *words]))


def test_it_keeps_the_candidates_of_every_token_and_reproduces_the_record(here: Project) -> None:
    said: list[str] = []
    found = make(said=said, copies=3)
    recorded = here.record("baseline")
    assert found.status == "complete"
    assert [p.id for p in found.prompts] == [p.id for p in recorded.prompts]
    for prompt, request in zip(found.prompts, recorded.sequential(), strict=True):
        assert prompt.token_ids == request.token_ids
        assert prompt.reproduces_until is None
        assert prompt.finish_reason == request.finish_reason
        trace = found.traces()[prompt.id]
        assert [row[0][0] for row in trace.top] == prompt.token_ids
        assert all(len(row) == probe.TOP for row in trace.top)
        assert trace.margins[:5] == (0.0, 0.125, 0.25, 0.375, 0.0)
        assert [copy.parts_at for copy in prompt.copies] == [None] * 3
        assert prompt.copies[0].gaps == list(trace.margins)
    yardstick = found.yardstick()
    assert yardstick is not None
    assert (yardstick.answers, yardstick.parted, yardstick.still) == (3 * len(found.prompts), 0, 1.0)
    assert said[-1].endswith("tokens, reproduced; 0 of 3 copies part")
    assert probe.load(folder(here) / "probes" / "baseline.json") == found


def test_the_server_is_the_recorded_one_but_for_scores_and_memory(here: Project) -> None:
    found = make(kv_cache_bytes=2**30)
    theirs = here.record("baseline").config
    extra = [word for word in found.config.argv if word not in theirs.argv]
    assert extra[:4] == ["--logprobs-mode", "raw_logits", "--kv-cache-memory-bytes", str(2**30)]
    assert found.config.env == theirs.env
    assert found.launches[0].stopped is not None


def test_a_complete_probe_is_kept_and_memory_is_no_setting(here: Project) -> None:
    make()
    before = here.engine_pids()
    said: list[str] = []
    make(said=said, kv_cache_bytes=2**30)
    assert here.engine_pids() == before
    assert said == [f"{folder(here)}/probes/baseline.json is complete; nothing to probe"]


@pytest.mark.parametrize(("how", "named"), [({"copies": 2}, "copies"), ({"mode": "raw_logprobs"}, "flags, mode")])
def test_a_probe_of_other_settings_is_refused_and_named(here: Project, how: dict[str, Any], named: str) -> None:
    make()
    with pytest.raises(RecordError, match=rf"made with other settings \({named}\); move it away"):
        make(**how)


def test_a_time_limit_leaves_a_partial_probe_and_the_next_call_goes_on(here: Project) -> None:
    said: list[str] = []
    found = make(said=said, time_limit_s=0.0)
    assert (found.status, found.prompts) == ("partial", [])
    assert said[-1] == "time limit: 0 of 6 prompts probed"
    found = make()
    assert (found.status, len(found.prompts), len(found.launches)) == ("complete", 6, 2)


def test_what_is_done_is_not_asked_again(here: Project) -> None:
    whole = make()
    path = folder(here) / "probes" / "baseline.json"
    part = whole.model_copy(update={"status": "partial", "prompts": whole.prompts[:4]})
    path.write_text(probe.dumps(part), encoding="utf-8")
    said: list[str] = []
    again = make(said=said)
    assert [line.split("]")[0] for line in said[1:]] == ["  [5/6", "  [6/6"]
    assert again.prompts == whole.prompts


def test_a_probe_that_strays_says_where(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    options(monkeypatch, here, "--stray", "4")
    found = make()
    assert {p.reproduces_until for p in found.prompts} == {4}


def test_where_the_engine_dies_a_failed_probe_keeps_its_root_cause(
    here: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    options(monkeypatch, here, "--refuse", "function")
    with pytest.raises(EngineError, match="this stand-in refuses prompts"):
        make()
    left = probe.load(folder(here) / "probes" / "baseline.json")
    assert left.status == "failed"
    assert left.reason is not None
    assert "this stand-in refuses prompts" in left.reason
    options(monkeypatch, here)
    assert make().status == "complete"


def test_it_needs_the_record_as_it_was_measured(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="no record at"):
        probe.make(settings.plan({"config": "fp8"}))
    with pytest.raises(RecordError, match="measured with other settings .*max_tokens"):
        probe.make(settings.plan({"config": "baseline", "max_tokens": 13}))
    monkeypatch.setattr(probe.machine, "info", lambda: here.record("baseline").machine.model_copy(update={"cpu": "Z"}))
    with pytest.raises(UsageError, match="this machine has Z, whose rounding is its own"):
        make()


# -- what the server says ----------------------------------------------------------------------------------------------


def choice(**changes: Any) -> dict[str, Any]:
    top = [{"token": f"token_id:{7 + i}", "logprob": 3.0 - i} for i in range(5)]
    return {"token_ids": [7], "logprobs": {"content": [{"token": "token_id:7", "top_logprobs": top}]}, **changes}


def test_the_chosen_token_stands_first_among_equals() -> None:
    tied = choice(token_ids=[9])
    tied["logprobs"]["content"][0]["token"] = "token_id:9"
    for one in tied["logprobs"]["content"][0]["top_logprobs"][:3]:
        one["logprob"] = 3.0
    assert probe.read(tied) == ([9], [[(9, 3.0), (7, 3.0), (8, 3.0), (10, 0.0), (11, -1.0)]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": None}, "gave no token ids or no candidates"),
        ({"logprobs": None}, "gave no token ids or no candidates"),
        ({"token_ids": [7, 8]}, "candidates of 1 tokens for an answer of 2"),
        ({"token_ids": [8]}, "at token 0 belong to 'token_id:7', not to token 8"),
        ({"logprobs": {"content": [{"token": "seven", "top_logprobs": []}]}}, "named a token 'seven', not by its id"),
        ({"logprobs": {"content": [{"token": "token_id:7", "top_logprobs": []}]}}, "is not one of 5 candidates"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        probe.read(choice(**changes))


# -- on disk, and together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("{}", "probe schema None"), ('{"schema": 1}', "is not a valid probe: status")],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=message):
        probe.load(path)
    with pytest.raises(RecordError, match="no probe at"):
        probe.load(tmp_path / "none.json")


def test_the_missing_probes_are_made_and_explain_two_equal_runs(here: Project) -> None:
    # Both runs were recorded with a shorter answer than the study's.
    here.study("quick", max_tokens=12)
    probe.make_missing(folder(here), "baseline", "ngram", lambda _: None)
    before = here.engine_pids()
    probe.make_missing(folder(here), "baseline", "ngram", lambda _: None)
    assert here.engine_pids() == before
    found = probe.explain(folder(here), "baseline", "ngram")
    here.study("quick")
    assert dataclasses.astuple(found.found)[0] == ()
    assert [w.parted for w in found.found.workloads] == [0, 0, 0]
    assert found.found.threshold == 0.0
    assert found.launches is None
    with pytest.raises(SamebytesError, match="unknown record in results/quick 'ngra'. Did you mean 'ngram'"):
        probe.make_missing(folder(here), "baseline", "ngra")


def test_the_command_names_the_modes(here: Project) -> None:
    done = CliRunner().invoke(app, ["probe", "quick", "baseline", "--mode", "logits"])
    assert done.exit_code == 1
    assert "unknown mode 'logits'. Did you mean 'raw_logits'? Valid: raw_logits, raw_logprobs" in done.stderr
