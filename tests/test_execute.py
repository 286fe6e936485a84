"""Executing a notebook: what reaches the notebook, and what the terminal."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from samebytes import execute
from samebytes.errors import SamebytesError

BOTH_STREAMS = """\
import subprocess, sys
print("of Python", file=sys.stderr)
done = subprocess.run(["sh", "-c", "echo of a child >&2"], check=True)
"""
AT_ITS_END = "import atexit, os; _ = atexit.register(os.write, 2, b'ERROR:tornado.general:Uncaught exception')"


def executed(folder: Path, code: str) -> list[nbformat.NotebookNode]:
    """Execute one cell and return its outputs."""
    cells = [nbformat.v4.new_code_cell("", metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell(code)]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    source, output = folder / "source.ipynb", folder / "output.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), source)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, a kernel does not capture what a child writes
        execute.notebook(source, output, {}, quiet=True)
    return list(nbformat.read(output, as_version=4).cells[-1].outputs)


def test_a_cells_stderr_is_in_the_notebook(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = "".join(output.text for output in executed(tmp_path, BOTH_STREAMS))
    assert set(said.splitlines()) == {"of Python", "of a child"}
    assert capfd.readouterr() == ("", "")


def test_a_kernel_takes_no_ports_that_another_could_take_first(tmp_path: Path) -> None:
    asked = "from ipykernel.connect import get_connection_info as info; print(info(unpack=True)['transport'])"
    assert [output.text for output in executed(tmp_path, asked)] == ["ipc\n"]


def test_what_the_kernel_says_when_it_ends_does_not_reach_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    executed(tmp_path, AT_ITS_END)
    assert capfd.readouterr() == ("", "")


def test_a_kernel_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ipykernel_launcher.py").write_text("raise ImportError('libzmq.so.5: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SamebytesError) as refused:
        executed(tmp_path, "")
    assert str(refused.value) == (
        "the notebook's kernel did not start: Kernel died before replying to kernel_info\n"
        "  its last words: ImportError: libzmq.so.5: cannot open"
    )
