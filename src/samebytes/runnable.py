"""Sphinx extension of the article: what a reader needs to execute a page again.

- Each page lies beside itself as a notebook without outputs, whose first cell finds the project.
- Each cell of a page has the id of that notebook's cell: `_static/live.js` sends the notebook's cells to a kernel, the
  hidden ones too, and puts each output where the built one was. It does so only where `samebytes.live` serves the page.
- Under each page's title stands how to do either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from sphinx.application import Sphinx

from samebytes import __version__
from samebytes.prose import Html, html

FIND_PROJECT = """\
# Finds the project: SAMEBYTES_ROOT, or the clone that this notebook lies in.
import os, pathlib, sys
here = pathlib.Path.cwd()
named = os.environ.get("SAMEBYTES_ROOT")
folders = [pathlib.Path(named)] if named else [here, *here.parents]
root = next((folder.resolve() for folder in folders if (folder / "src/samebytes").is_dir()), None)
if root is None:
    raise SystemExit("put this notebook into a clone of samebytes, or set SAMEBYTES_ROOT to one")
os.environ["SAMEBYTES_ROOT"] = str(root)
if str(root / "src") not in sys.path:
    sys.path.insert(0, str(root / "src"))"""
"""First cell of a page's notebook. Plain Python: it runs before anything of the project can be imported."""

FIND_ID = "find-project"


def cell_id(index: int) -> str:
    """Return the id of a page's code cell, in its notebook and in the page."""
    return f"cell-{index}"


def notebook(text: str) -> nbformat.NotebookNode:
    """Return a page's source as a notebook: prose and code without outputs, after a cell that finds the project.

    Parameters
    ----------
    text : str
        MyST Markdown with code cells.
    """
    found: nbformat.NotebookNode = read_myst_markdown_notebook(text, config=MdParserConfig())
    for index, cell in enumerate(found.cells):
        cell.id = cell_id(index)
    found.cells.insert(0, nbformat.v4.new_code_cell(FIND_PROJECT, id=FIND_ID))  # type: ignore[no-untyped-call]
    found.metadata = {"kernelspec": found.metadata["kernelspec"], "language_info": {"name": "python"}}
    found.nbformat, found.nbformat_minor = 4, 5  # the minor version that brought the ids
    nbformat.validate(found)
    return found


def number_cells(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Give each cell of a page its id."""
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code":
            node["ids"].append(cell_id(node["cell_index"]))


def invitation(name: str) -> Html:
    """Return what stands under a page's title: how to execute the page again.

    Parameters
    ----------
    name : str
        File name of its notebook.
    """
    return html(
        '<details class="live d-print-none" data-notebook="{0}"><summary>Run this page</summary>'
        "<p>In a clone of this project, <code>make live</code> serves these pages with their cells to edit and to run "
        "in place, and <code>make lab</code> opens them in JupyterLab. "
        'Or take <a href="{0}" download>this page as a notebook</a>: it runs beside the clone.</p></details>',
        name,
    )


def offer(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Put the invitation under the title of each page that has cells."""
    styles = context.get("css_files", [])
    styles[:] = [style for style in styles if "thebe" not in str(style.filename)]  # the list that others still add to
    body = context.get("body", "")
    if 'class="cell ' not in body:
        return
    head, title, rest = body.partition("</h1>")
    context["body"] = head + title + invitation(f"{Path(page).name}.ipynb") + rest
    app.add_css_file("live.css")
    app.add_js_file("live.js", loading_method="defer")


def write_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Put each page's notebook beside the page."""
    if exception is not None or app.builder.format != "html":
        return
    for page in sorted(app.env.found_docs):
        text = Path(app.env.doc2path(page)).read_text(encoding="utf-8")
        if "{code-cell}" in text:
            target = Path(app.outdir, f"{page}.ipynb")
            target.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook(text), target)  # type: ignore[no-untyped-call]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", number_cells)
    app.connect("html-page-context", offer)
    app.connect("build-finished", write_notebooks)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
