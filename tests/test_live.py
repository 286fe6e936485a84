"""The servers behind `make lab` and `make live`: started for real, in JupyterLab's own environment."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from conftest import ROOT
from liveserver import Live, serving
from samebytes import bookbuild, runnable

pytestmark = pytest.mark.slow

PAGE = "book/method"
ASK = "import samebytes, samebytes.paths\nprint(samebytes.__file__, samebytes.paths.root(), sep='\\n')"
HOUSE = (
    "_config.yml",
    "configs",
    "studies",
    "workloads",
    "src",
    "results/h200-smollm2-135m",
    "results/rtx5090-qwen3-32b-awq",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(ROOT, "lab", tmp_path_factory.mktemp("lab")) as found:
        yield found


@pytest.fixture(scope="module")
def live(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(ROOT, "live", tmp_path_factory.mktemp("live")) as found:
        yield found


# -- make lab ---------------------------------------------------------------------------------------------------------


def test_lab_opens_on_the_first_page_and_asks_no_other_host_for_news(lab: Live) -> None:
    assert "/lab/tree/book/index.md?token=" in lab.first
    status, page = lab.ask("lab", Authorization=f"token {lab.token}")
    assert status == 200
    assert re.search(r'"news": \{"disabled": true\}', page)
    settings = lab.get("lab/api/settings/@jupyterlab/docmanager-extension:plugin")
    properties = settings["schema"]["properties"]
    assert properties["defaultViewers"]["default"]["markdown"] == "Jupytext Notebook"
    assert properties["autosave"]["default"] is False


def test_lab_lists_every_notebook_and_every_page_as_one(lab: Live) -> None:
    for folder, pattern in (("notebooks", "*.ipynb"), ("book", "*.md")):
        listed = {item["name"]: item["type"] for item in lab.get(f"api/contents/{folder}")["content"]}
        expected = {path.name for path in (ROOT / folder).glob(pattern)}
        assert expected
        assert expected <= {name for name, kind in listed.items() if kind == "notebook"}


def test_a_page_opened_in_lab_runs_in_the_report_environment(lab: Live) -> None:
    page = lab.get(f"api/contents/{PAGE}.md?type=notebook&content=1")["content"]
    codes = ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code"]
    assert len(codes) > 1
    probe = "import os, sys; print(os.getcwd(), sys.prefix, sep='\\n')"
    published = lab.run(lab.start_kernel(f"{PAGE}.md"), *codes, probe)
    assert [each["content"]["evalue"] for each in published if each["msg_type"] == "error"] == []
    shown = [each["content"]["data"] for each in published if each["msg_type"] in ("execute_result", "display_data")]
    assert any("<data " in data.get("text/html", "") for data in shown)
    printed = "".join(each["content"]["text"] for each in published if each["msg_type"] == "stream")
    folder, environment = printed.splitlines()[-2:]
    assert (folder, Path(environment).resolve()) == (str(ROOT / "book"), (ROOT / ".venv/report").resolve())


# -- make live --------------------------------------------------------------------------------------------------------


def test_live_listens_on_this_machine_alone(live: Live) -> None:
    places = {c.laddr.ip for c in psutil.Process(live.process.pid).net_connections("tcp") if c.status == "LISTEN"}
    assert places == {"127.0.0.1"}


@pytest.mark.parametrize("path", [f"site/{PAGE}.html", "site/_static/live.js", "api/kernels", "api/contents"])
def test_live_shows_nothing_without_the_token(live: Live, path: str) -> None:
    for wrong in ("", "?token=guess"):
        status, text = live.ask(path + wrong)
        assert status in (302, 403), path
        assert live.token not in text
    assert live.ask(f"{path}?token={live.token}")[0] == 200


def test_live_refuses_the_name_of_another_host(live: Live) -> None:
    status, text = live.ask(f"site/{PAGE}.html?token={live.token}", Host="elsewhere.example")
    assert (status, live.token in text) == (403, False)


def test_live_refuses_what_lies_outside_of_the_site(live: Live) -> None:
    for path in ("site/../../_config.yml", "site/%2e%2e/%2e%2e/_config.yml", f"site//{ROOT}/_config.yml"):
        assert live.ask(f"{path}?token={live.token}")[0] in (403, 404), path


def test_only_the_served_page_knows_a_server(live: Live, built: Path) -> None:
    status, text = live.ask(f"site/{PAGE}.html?token={live.token}")
    assert status == 200
    assert f'"path": "{PAGE}.ipynb"' in text
    published = (built / f"{PAGE}.html").read_text(encoding="utf-8")
    assert "live-server" not in published
    assert "thebe" not in published
    assert "<code>make live</code>" in published


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_no_kernel_outlives_its_server(built: Path, tmp_path: Path, name: str) -> None:
    with serving(ROOT, "live", tmp_path) as server:
        server.run(server.start_kernel(f"{PAGE}.ipynb"), "1 + 1")
        kernels = psutil.Process(server.process.pid).children(recursive=True)
        assert kernels
        os.killpg(server.process.pid, getattr(signal, name))
        server.process.wait(20)
        assert psutil.wait_procs(kernels, timeout=10)[1] == []


# -- a page as a notebook ---------------------------------------------------------------------------------------------


def test_each_page_with_cells_has_its_notebook_with_the_ids_of_the_page(built: Path) -> None:
    for page in bookbuild.pages(ROOT):
        text = (built / f"{page}.html").read_text(encoding="utf-8")
        notebook = nbformat.read(built / f"{page}.ipynb", as_version=4)
        nbformat.validate(notebook)
        first, *codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert first.id == runnable.FIND_ID
        prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert "{glue" not in prose
        assert ".md)" not in prose
        assert codes
        assert [cell.id for cell in codes if f'id="{cell.id}"' not in text] == []
        assert all(cell.outputs == [] and cell.execution_count is None for cell in (first, *codes))
        assert f'href="{Path(page).name}.ipynb" download' in text


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone holds of use to a page."""
    root = tmp_path_factory.mktemp("clone")
    for name in HOUSE:
        source = ROOT / name
        (root / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, root / name)
    return root


def downloaded(built: Path, folder: Path) -> nbformat.NotebookNode:
    """Execute a downloaded page in a folder and return it, with a last cell that says what it found."""
    notebook = nbformat.read(built / f"{PAGE}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(ASK))
    return NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.mark.parametrize("beside", ["in the clone", "named"])
def test_a_downloaded_page_runs_beside_a_clone(
    built: Path, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    folder = clone / "somewhere" / "below" if beside == "in the clone" else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    if beside == "named":
        monkeypatch.setenv("SAMEBYTES_ROOT", str(clone))
    found = downloaded(built, folder)
    assert found.cells[-1].outputs[0].text.splitlines() == [str(clone / "src/samebytes/__init__.py"), str(clone)]
    shown = [output.data for cell in found.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("<data " in data.get("text/html", "") for data in shown)


def test_a_downloaded_page_elsewhere_says_what_it_needs(built: Path, tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="put this notebook into a clone of samebytes, or set SAMEBYTES_ROOT"):
        downloaded(built, tmp_path)
