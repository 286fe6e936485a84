"""Sphinx extension of the article: what a reader needs to execute a page again.

- Each page lies beside itself as a notebook without outputs, whose first cell finds the project.
- Each cell of a page has the id of that notebook's cell: `_static/live.js` sends the notebook's cells to a kernel, the
  hidden ones too, and puts each output where the built one was. It does so only where `samebytes.live` serves the page.
- Under each page's title stands how to do either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

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

THEBE = ('<script type="text/x-thebe-config">', "<script>kernelName")


def cell_id(index: int) -> str:
    """Return the id of a page's code cell, in its notebook and in the page."""
    return f"cell-{index}"


def notebook(text: str, glued: Mapping[str, str] = MappingProxyType({})) -> nbformat.NotebookNode:
    """Return a page's source as a notebook: prose and code without outputs, after a cell that finds the project.

    Parameters
    ----------
    text : str
        MyST Markdown with code cells.
    glued : mapping of str to str
        HTML of the figures that the prose shows by name: Jupyter has no such names.
    """
    found: nbformat.NotebookNode = read_myst_markdown_notebook(text, config=MdParserConfig())
    for index, cell in enumerate(found.cells):
        cell.id = cell_id(index)
        if cell.cell_type == "markdown":
            cell.source = _plain(cell.source, glued)
    found.cells.insert(0, nbformat.v4.new_code_cell(FIND_PROJECT, id=FIND_ID))  # type: ignore[no-untyped-call]
    found.metadata = {"kernelspec": found.metadata["kernelspec"], "language_info": {"name": "python"}}
    found.nbformat, found.nbformat_minor = 4, 5  # the minor version that brought the ids
    nbformat.validate(found)
    return found


def _plain(source: str, glued: Mapping[str, str]) -> str:
    """Return prose as Jupyter understands it: figures in place of their names, links to the other notebooks."""
    source = re.sub(r"^```\{glue:\} (\S+)\n```$", lambda found: glued[found[1]], source, flags=re.MULTILINE)
    source = re.sub(r"\{glue:\}`([^`]+)`", lambda found: re.sub(r"<[^>]*>", "", glued[found[1]]), source)
    source = re.sub(r"\[\]\(([\w-]+)\.md", r"[\1](\1.md", source)
    return re.sub(r"(\]\([\w-]+)\.md\b", r"\1.ipynb", source)


def figures(page: Path) -> dict[str, str]:
    """Return the HTML of the figures that an executed page made available to its prose.

    Parameters
    ----------
    page : Path
        The executed page, without a suffix; MyST-NB leaves the figures beside it.
    """
    kept = page.with_name(f"{page.name}.glue.json")
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    return {name: value["data"]["text/html"] for name, value in found.items()}


def prepare_cells(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Give each cell of a page its id, and take out what sphinx-thebe leaves for a server of somebody else's."""
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code":
            node["ids"].append(cell_id(node["cell_index"]))
    for node in [child for child in doctree.children if isinstance(child, nodes.raw)]:
        if node.astext().lstrip().startswith(THEBE):
            doctree.remove(node)


def invitation(name: str, binder: str | None = None) -> Html:
    """Return what stands under a page's title: how to execute the page again.

    Parameters
    ----------
    name : str
        File name of its notebook.
    binder : str or None
        Where Binder opens the page; None: no repository is configured.
    """
    launch = html(' Without a clone: <a href="{}">open it on Binder</a>.', binder) if binder else ""
    return html(
        '<details class="live d-print-none" data-notebook="{0}"><summary>Run this page</summary>'
        "<p>In a clone of this project, <code>make live</code> serves these pages with their cells to edit and to run "
        "in place, and <code>make lab</code> opens them in JupyterLab. "
        'Or take <a href="{0}" download>this page as a notebook</a>: it runs beside the clone.{1}</p></details>',
        name,
        launch,
    )


def binder_url(repository: str, branch: str, page: str) -> str:
    """Return where Binder opens a page of a repository in JupyterLab.

    Parameters
    ----------
    repository : str
        Address of the repository, as `_config.yml` has it.
    branch : str
        Branch, tag or commit.
    page : str
        Path of the page's source in the repository.
    """
    on_github = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(\.git)?/?", repository)
    place = f"gh/{on_github[1]}/{on_github[2]}" if on_github else f"git/{quote(repository, safe='')}"
    return f"https://mybinder.org/v2/{place}/{quote(branch, safe='')}?urlpath={quote(f'lab/tree/{page}', safe='/')}"


def offer(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Put the invitation under the title of each page that has cells."""
    styles = context.get("css_files", [])
    styles[:] = [style for style in styles if "thebe" not in str(style.filename)]  # the list that others still add to
    body = context.get("body", "")
    if 'class="cell ' not in body:
        return
    head, title, rest = body.partition("</h1>")
    options = app.config.html_theme_options
    repository = options.get("repository_url")
    branch = options.get("repository_branch") or "HEAD"
    binder = binder_url(repository, branch, f"{page}.md") if repository else None
    context["body"] = head + title + invitation(f"{Path(page).name}.ipynb", binder) + rest
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
            executed = Path(app.outdir).parent / "jupyter_execute" / page
            nbformat.write(notebook(text, figures(executed)), target)  # type: ignore[no-untyped-call]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", prepare_cells, priority=900)  # after sphinx-thebe
    app.connect("html-page-context", offer)
    app.connect("build-finished", write_notebooks)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
