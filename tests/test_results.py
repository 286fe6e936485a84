"""What is committed under results/: whole records, honest sums, tables that are what the records say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from samebytes import analysis, fairness, margins, paths, probe, settings, summary, workloads
from samebytes.record import Record

STUDIES = sorted(
    folder.name
    for folder in paths.results().iterdir()
    if (folder / "summary.json").is_file() and folder.name != "quick"
)


def records(study: str) -> list[Record]:
    return analysis.load(paths.results() / study)


def test_there_are_committed_studies() -> None:
    assert STUDIES


@pytest.mark.parametrize("study", STUDIES)
def test_every_derived_table_is_what_the_records_say(study: str) -> None:
    assert summary.verify(paths.results() / study) == []


@pytest.mark.parametrize("study", STUDIES)
def test_every_record_is_whole_or_says_why_not(study: str) -> None:
    for found in records(study):
        assert found.status == "complete" or (found.status == "failed" and found.reason and not found.passes)
        if found.status == "complete":
            assert [r.id for r in found.sequential()] == [p.id for p in found.prompts]
            asked = settings.study(study)
            prompts = workloads.load(paths.workloads(), asked.workloads, asked.limit)
            assert [p.id for p in found.prompts] == [p.id for p in prompts]


@pytest.mark.parametrize("study", STUDIES)
def test_the_identities_hold_on_every_pass(study: str) -> None:
    passes = analysis.summarise(records(study)).passes
    assert passes
    for row in passes:
        assert all(identity.holds for identity in row.identities), (row.label, row.identities)


@pytest.mark.parametrize("study", STUDIES)
def test_only_the_flag_under_test_differs(study: str) -> None:
    complete = [found for found in records(study) if found.status == "complete"]
    for found in complete:
        unfair = [d for d in fairness.differences(complete[0], found) if not d.fair]
        assert unfair == [], (found.label, unfair)
        assert all(launch.prefix_caching is False for launch in found.launches)


@pytest.mark.parametrize("study", STUDIES)
def test_every_probe_is_whole_and_of_the_server_that_was_measured(study: str) -> None:
    folder = paths.results() / study
    measured = {found.label: found for found in records(study)}
    for path in folder.glob(f"{probe.FOLDER}/*.json"):
        found, recorded = probe.load(path), measured[path.stem]
        assert (found.status, found.label, found.study) == ("complete", path.stem, study)
        assert [p.id for p in found.prompts] == [p.id for p in recorded.prompts]
        assert (found.model, found.sampling) == (recorded.model, recorded.sampling)
        assert found.config.env == recorded.config.env
        assert (found.machine.gpu, found.machine.cpu) == (recorded.machine.gpu, recorded.machine.cpu)
        assert found.versions.vllm == recorded.versions.vllm
        added = fairness.options(found.config.argv).items() - fairness.options(recorded.config.argv).items()
        assert {name for name, _ in added} <= {"--logprobs-mode", probe.MEMORY}
        for prompt, request in zip(found.prompts, recorded.sequential(), strict=True):
            assert prompt.reproduces_until == margins.parts_at(prompt.token_ids, request.token_ids or [])


def test_nothing_committed_names_a_folder_of_the_machine_it_was_measured_on() -> None:
    tracked = subprocess.run(
        ["git", "-C", str(paths.root()), "ls-files", "-z", "results"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, tracked):
        text = Path(paths.root(), name).read_text(encoding="utf-8")
        assert "/home/" not in text, name
        assert str(Path.home()) not in text or str(Path.home()) == "/", name
