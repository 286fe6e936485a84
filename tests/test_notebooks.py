"""The notebooks that read records, executed as a reader does."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from samebytes import paths, settings, summary, tune

STUDY = "h200-smollm2-135m"
COMMITTED = paths.results() / STUDY


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project's plain files with the records of one committed study, its tables left out."""
    for name in ("configs", "studies", "workloads", "notebooks"):
        shutil.copytree(paths.root() / name, tmp_path / name)
    shutil.copy(paths.root() / "_config.yml", tmp_path)
    records = tmp_path / "results" / STUDY
    records.mkdir(parents=True)
    for path in COMMITTED.glob("*.json"):
        if path.name not in summary.FILES:
            shutil.copy(path, records)
    monkeypatch.setenv("SAMEBYTES_ROOT", str(tmp_path))
    return tmp_path


def execute(name: str, parameters: dict[str, object], folder: Path) -> nbformat.NotebookNode:
    nb = parameterize_notebook(load_notebook_node(str(folder / "notebooks" / f"{name}.ipynb")), parameters)
    return NotebookClient(nb, timeout=120, resources={"metadata": {"path": str(folder / "notebooks")}}).execute()


def shown(nb: nbformat.NotebookNode) -> str:
    return "\n".join(
        output.data.get("text/markdown", "")
        for cell in nb.cells
        for output in cell.get("outputs", [])
        if output.output_type in ("execute_result", "display_data")
    )


def test_analyze_writes_the_committed_tables(project: Path) -> None:
    nb = execute("analyze", {"study": STUDY}, project)
    for name in summary.FILES:
        assert (project / "results" / STUDY / name).read_bytes() == (COMMITTED / name).read_bytes()
    assert "## Speed-up" in shown(nb)


def test_determinism_shows_the_control_first_and_both_texts(project: Path) -> None:
    text = shown(execute("determinism", {"study": STUDY, "reference": "baseline", "candidates": "fp8"}, project))
    assert text.index("## Control") < text.index("## Same bytes") < text.index("## Where answers part")
    assert "### fp8 (+) against baseline (-)" in text
    assert "ngram" not in text


def test_tune_shows_the_best_settings_and_a_map(project: Path) -> None:
    nb = execute("tune", {"study": STUDY}, project)
    best = tune.of_records([project / "results" / STUDY]).best()
    assert f"| all | 24 | {' | '.join(str(value) for value in best.settings)} |" in shown(nb)
    printed = "".join(o.text for c in nb.cells for o in c.get("outputs", []) if o.output_type == "stream")
    assert tune.flag(best.settings) in printed
    pictures = [
        o.data["image/svg+xml"] for c in nb.cells for o in c.get("outputs", []) if "image/svg+xml" in o.get("data", {})
    ]
    assert len(pictures) == 1
    assert "prompt_lookup_min" in pictures[0]


@pytest.mark.parametrize(
    ("study", "candidate", "said"),
    [
        ("cpu-smollm2-135m", "ngram", "19 answers part: exact tie 17"),
        (STUDY, "fp8", "23 answers part: exact tie 4"),
    ],
)
def test_divergence_reads_committed_probes_and_needs_no_engine(
    project: Path, monkeypatch: pytest.MonkeyPatch, study: str, candidate: str, said: str
) -> None:
    shutil.copytree(COMMITTED.parent / study, project / "results" / study, dirs_exist_ok=True)
    monkeypatch.setenv("SAMEBYTES_ENGINE_PYTHON", "no-such-python")
    text = shown(execute("divergence", {"study": study, "candidate": candidate}, project))
    assert text.startswith(f"{candidate} against baseline in {study}: {said}")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"candidat": "fp8"}, "unknown parameter 'candidat'. Did you mean 'candidate'?"),
        ({"candidate": "fp9"}, f"unknown record in results/{STUDY} 'fp9'. Did you mean 'fp8'?"),
    ],
)
def test_divergence_starts_nothing_for_a_wrong_parameter(
    project: Path, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(CellExecutionError) as caught:
        execute("divergence", {"study": STUDY, **parameters}, project)
    assert message in str(caught.value)
    assert not (project / "results" / STUDY / "logs").exists()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"study": "nosuch"}, f"unknown study with records 'nosuch'. Valid: {STUDY}"),
        ({"studdy": STUDY}, "unknown parameter 'studdy'. Did you mean 'study'?"),
        ({"study": STUDY, "reference": "base"}, "unknown config with a complete run 'base'"),
    ],
)
def test_a_wrong_parameter_stops_with_the_valid_choices(
    project: Path, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(CellExecutionError) as caught:
        execute("analyze", parameters, project)
    assert message in str(caught.value)


def test_the_parameters_cells_are_those_that_are_checked() -> None:
    for name, known in (
        ("analyze", settings.ANALYSIS),
        ("determinism", settings.ANALYSIS),
        ("tune", settings.TUNING),
        ("divergence", settings.DIVERGENCE),
    ):
        nb = load_notebook_node(str(paths.notebooks() / f"{name}.ipynb"))
        cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
        assert cell.source.splitlines() == [
            f'{key}: str = "{default}"  # {text}' for key, (_, default, text) in known.items()
        ]
