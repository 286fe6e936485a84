"""Why the bytes differ, from end to end on the CPU engine: float32 against bfloat16, a pair that must part."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest

from samebytes import compare, margins, probe, record
from standin_project import BIN, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

STUDY = "cpu-dtype"
LABELS = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, engine_python: Path, embedded_model: Path) -> Path:
    """A project with both runs recorded and the notebook executed on them, which starts both servers again."""
    root = tmp_path_factory.mktemp("divergence")
    for name in ("configs", "studies", "workloads", "notebooks"):
        shutil.copytree(ROOT / name, root / name)
    (root / "_config.yml").touch()
    (root / "results").mkdir()
    env = {**os.environ, "SAMEBYTES_ROOT": str(root), "SAMEBYTES_ENGINE_PYTHON": str(engine_python)}
    # Two at a time: nothing here is about speed, and most of a start is spent on one core.
    runs = [
        subprocess.Popen([BIN / "samebytes", "run", label, "--study", STUDY], cwd=root, env=env) for label in LABELS
    ]
    assert [run.wait(timeout=600) for run in runs] == [0, 0]
    notebook = ["notebooks/divergence.ipynb", "out.ipynb", "--no-progress-bar", "-p", "study", STUDY]
    notebook += ["-p", "reference", LABELS[0], "-p", "candidate", LABELS[1]]
    subprocess.run([BIN / "papermill", *notebook], cwd=root, env=env, check=True, timeout=600)
    return root


def test_the_probes_reproduce_what_was_recorded(root: Path) -> None:
    folder = root / "results" / STUDY
    for label, digits in zip(LABELS, (24, 8), strict=True):
        found, recorded = probe.load(probe.path_of(folder, label)), record.load(folder / f"{label}.json")
        assert found.status == "complete"
        assert found.dtype == label
        assert [p.token_ids for p in found.prompts] == [r.token_ids for r in recorded.sequential()]
        assert [p.reproduces_until for p in found.prompts] == [None, None]
        traces = found.traces()
        # The scores are the model's own logits: as coarse as the type that it computes in.
        assert margins.digits(traces.values()) == digits
        assert all(margin >= 0 for trace in traces.values() for margin in trace.margins)
        assert [len(p.copies) for p in found.prompts] == [probe.COPIES if label == LABELS[0] else 0] * 2


def test_each_difference_has_a_verdict_and_rounding_to_16_bits_is_more_than_a_tie(root: Path) -> None:
    folder = root / "results" / STUDY
    e = probe.explain(folder, *LABELS)
    recorded = compare.compare_records(*(record.load(folder / f"{label}.json") for label in LABELS))
    parted = {p.id: p.comparison.token_index for p in recorded.prompts if not p.comparison.same_bytes}
    assert parted, "float32 and bfloat16 must part on these prompts"
    assert {d.id: d.at for d in e.found.divergences} == parted
    assert e.found.reproduced == len(parted)
    for d in e.found.divergences:
        assert d.ours is not None
        assert d.theirs is not None
        assert d.ours.value >= 0 <= d.theirs.value
        assert d.token_a != d.token_b
    # In float32 another shape moves a logit in its last digits only; sixteen bits move it a thousand times as far.
    assert e.found.threshold is not None
    assert 1000 * e.found.threshold < (e.found.config.quantile(50) or 0)
    assert e.found.counts["tie broken by rounding"] == 0


def test_the_executed_notebook_shows_them(root: Path) -> None:
    nb = nbformat.read(root / "out.ipynb", as_version=4)
    shown = nb.cells[-1].outputs[0].data["text/markdown"]
    e = probe.explain(root / "results" / STUDY, *LABELS)
    assert shown.startswith(f"bfloat16 against float32 in {STUDY}: {len(e.found.divergences)} answers part: ")
    for d in e.found.divergences:
        assert f"| {d.id} | {d.at} | '#{d.token_a}' | '#{d.token_b}' | {d.verdict} |" in shown
