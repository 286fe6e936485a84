"""A decode step's profile, on the stand-in engine: what it holds, and what it says of parts that failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebytes import profile
from samebytes.errors import RecordError, UsageError
from standin_project import Project, project


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project(tmp_path / "project") as made:
        monkeypatch.setenv("SAMEBYTES_ROOT", str(made.root))
        for name in ("SAMEBYTES_ENGINE_PYTHON", "STANDIN_OPTIONS"):
            monkeypatch.setenv(name, made.environment("--step-s", "0.002")[name])
        monkeypatch.setattr(profile, "ROWS", (1, 3))
        yield made


def test_a_profile_of_one_config(here: Project) -> None:
    said: list[str] = []
    path = profile.measure("quick", "baseline", say=said.append)
    assert path == here.root / "results/quick/profiles/baseline.json"
    found = profile.load(path)
    assert (found.study, found.config.name, [row.rows for row in found.rows]) == ("quick", "baseline", [1, 3])
    assert {len(row.step_s) for row in found.rows} == {profile.ROUNDS}
    assert all(seconds > 0.002 for seconds in found.step_s().values())
    assert found.trace is not None
    assert (found.trace.device, found.trace.steps) == ("gpu", 35)
    assert found.trace.step_s == pytest.approx(0.001)
    assert found.trace.busy == pytest.approx(0.6)
    assert [(k.name, k.calls) for k in found.trace.kernels] == [("machete::kernel", 1)]
    assert found.launch is not None
    assert found.launch.kv_cache_tokens == 93184
    # the stand-in's Python has no torch
    assert found.copy_ is None
    assert "torch" in found.missing["copy"]
    assert str(here.root) not in path.read_text()
    assert profile.of_study(path.parents[1]) == {"baseline": found}
    assert here.engines_alive() == []


def test_an_engine_without_a_profiler_leaves_the_step_times(here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    options = here.environment("--step-s", "0.002", "--no-profiler")["STANDIN_OPTIONS"]
    monkeypatch.setenv("STANDIN_OPTIONS", options)
    found = profile.load(profile.measure("quick", "baseline", say=lambda _: None))
    assert found.trace is None
    assert "start_profile answered 404" in found.missing["trace"]
    assert found.rows


def test_a_config_that_speculates_is_refused(here: Project) -> None:
    with pytest.raises(UsageError, match="config 'ngram' speculates"):
        profile.measure("quick", "ngram")
    assert here.engine_pids() == []


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    with pytest.raises(RecordError, match="no profile at"):
        profile.load(path)
    for text, message in (
        ("{", "is not JSON"),
        ('{"schema": 7}', "has profile schema 7; this version reads 1"),
        ("[]", "has profile schema None; this version reads 1"),
        ('{"schema": 1, "study": "x"}', "is not a valid profile"),
    ):
        path.write_text(text)
        with pytest.raises(RecordError, match=message):
            profile.load(path)
    assert profile.of_study(tmp_path) == {}
    assert json.loads(path.read_text())["study"] == "x"
