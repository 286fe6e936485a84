"""Sphinx extension of the article: what the pages depend on besides their own text, and what lies beside them.

- A page is executed again when a record, a prompt, a config, a study, the code or the lock changed: Sphinx itself only
  looks at the page's text.
- Charts get Vega from this site: no page asks another host for anything.
- Headings that cells make are in a page's contents.
- Records, tables and the data of each figure can be downloaded from the site.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

from samebytes import __version__, bookdata, prose

VEGA = "vega/vega.js"

_LOG = logging.getLogger(__name__)


def outdated(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return every page where the fingerprint is another than at the last build that succeeded."""
    found = bookdata.fingerprint(Path(app.srcdir))
    if getattr(env, "samebytes_fingerprint", None) == found:
        return []
    env.samebytes_fingerprint = found  # type: ignore[attr-defined]
    return sorted(env.found_docs)


def write_vega(app: Sphinx) -> None:
    """Put Vega, Vega-Lite and Vega-Embed into the site, from the bundle that vl-convert brings.

    Wrapped in a function: the bundle's top-level ``_`` would clash with the one of Sphinx's own scripts.
    """
    if app.builder.format != "html":
        return
    import vl_convert  # starts a JavaScript engine: only where a site is built

    mark = f"/* the bundle of vl-convert-python {metadata.version('vl-convert-python')} */\n"
    path = Path(app.outdir, "_static", VEGA)
    if path.exists() and path.read_text(encoding="utf-8").startswith(mark):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    path.write_text(f"{mark}(function () {{\n{bundle}\n}})();\n", encoding="utf-8")


def list_headings(app: Sphinx, doctree: nodes.document) -> None:
    """Add the headings that cells make to the page's contents: Sphinx knows those of the page's text only."""
    page = app.env.docname
    entries = {link["anchorname"]: link.parent.parent for link in app.env.tocs[page].findall(nodes.reference)}
    above: list[tuple[int, Any]] = []  # levels and entries that the next heading may stand under
    for raw in doctree.findall(nodes.raw):
        for level, anchor, text in _HEADING.findall(raw.astext()):
            top = entries.get(f"#{_section(raw)['ids'][0]}") or entries[""]
            if not above or above[0][1] is not top:
                above = [(0, top)]
            while above[-1][0] >= int(level):
                above.pop()
            title = prose.plain(prose.Html(_LINK.sub("", text)))
            link = nodes.reference("", title, internal=True, refuri=page, anchorname=f"#{anchor}")
            entry = nodes.list_item("", addnodes.compact_paragraph("", "", link))
            if not isinstance(above[-1][1][-1], nodes.bullet_list):
                above[-1][1].append(nodes.bullet_list())
            above[-1][1][-1].append(entry)
            above.append((int(level), entry))


def _section(node: Any) -> Any:
    """Return the section that a node stands in."""
    return node if isinstance(node, nodes.section) else _section(node.parent)


_HEADING = re.compile(r'<h([2-6]) id="([^"]+)">(.*?)</h\1>', re.DOTALL)

_LINK = re.compile(r'<a class="headerlink".*?</a>')


def trim_icons(site: Path, whole: str) -> None:
    """Keep of the theme's icons those that some page names: all of them would weigh more than any page.

    Parameters
    ----------
    site : Path
        The built site.
    whole : str
        Font Awesome's script, as the theme brings it.
    """
    named: set[str] = set()
    for path in [*site.rglob("*.html"), site / "_static/scripts/pydata-sphinx-theme.js"]:
        named.update(re.findall(r"fa-([a-z0-9-]+)", path.read_text(encoding="utf-8")))

    def kept(icon: re.Match[str]) -> str:
        return icon[0] if {icon["name"], *re.findall(r'"([a-z0-9-]+)"', icon["aliases"])} & named else ""

    trimmed = _ICON.sub(kept, whole)
    (site / ICONS).write_text(trimmed, encoding="utf-8")


ICONS = "_static/scripts/fontawesome.js"

_ICON = re.compile(r'"?(?P<name>[a-z0-9-]+)"?:\[\d+,\d+,(?P<aliases>\[[^\]]*\]),"[0-9a-f]+","[^"]*"\],?')
"""One icon: its name, size, other names, code point and outline."""


ASSETS = {
    'class="chart-live"': (VEGA, "charts.js"),
    "data-stepper": ("stepper.js", "interactive.css"),
    "data-explorer": ("explorer.js", "interactive.css"),
    "data-tuner": ("tuner.js", "tuner.css"),
}
"""Scripts and styles, beside those of every page, that a page with such a mark loads."""


def page_assets(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Load what a page's figures need; nothing of thebe, which would come from another host, nor what is not used."""
    wanted = [names for mark, names in ASSETS.items() if mark in context.get("body", "")]
    for name in dict.fromkeys(name for names in wanted for name in names):
        if name.endswith(".css"):
            app.add_css_file(name)
        else:
            app.add_js_file(name, loading_method="defer")
    unused = ["thebe", "THEBE_JS_URL"]
    if 'class="sd-' not in context.get("body", ""):
        unused += ["sphinx-design", "design-tabs"]
    for kind in ("script_files", "css_files"):
        context[kind] = [
            file
            for file in context.get(kind, [])
            if not any(word in f"{file.filename} {file.attributes.get('body', '')}" for word in unused)
        ]


def publish(app: Sphinx, exception: Exception | None) -> None:
    """Finish the site: what it offers for download (records, tables, the data of each exhibit), and its icons."""
    if exception is not None or app.builder.format != "html":
        return
    root, site = Path(app.srcdir), Path(app.outdir)
    shutil.rmtree(site / "results", ignore_errors=True)
    for path in bookdata.files(root):
        copy = site / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    theme = resources.files("pydata_sphinx_theme") / "theme/pydata_sphinx_theme/static"
    trim_icons(site, (theme / "scripts/fontawesome.js").read_text(encoding="utf-8"))
    publish_exhibits(root / "_build" / "exhibits", site, sorted(app.env.found_docs))


def refuse_maths(app: Sphinx, doctree: nodes.document) -> None:
    """Warn of a formula: to show it, Sphinx would load MathJax from another host. Warnings fail the build."""
    for node in doctree.findall(lambda node: isinstance(node, (nodes.math, nodes.math_block))):
        _LOG.warning("a formula would load MathJax from another host: write it as code", location=node)


def publish_exhibits(source: Path, site: Path, pages: Sequence[str]) -> None:
    """Copy into the site the data of the exhibits that its pages show, and of no other; what none shows is removed.

    Pages that were not built anew count as well: they say themselves which data are theirs.

    Raises
    ------
    ExtensionError
        For a name that is used twice, and for an exhibit without its data.
    """
    shown: dict[str, str] = {}
    used: set[Path] = set()
    target = site / "exhibits"
    shutil.rmtree(target, ignore_errors=True)
    for page in pages:
        for name, digest in _EXHIBIT.findall((site / f"{page}.html").read_text(encoding="utf-8")):
            if name in shown:
                raise ExtensionError(f"{page}: the exhibit {name!r} is also on {shown[name]}: names are unique")
            shown[name] = page
            for ending in ("csv", "json"):
                path = source / f"{name}.{digest}.{ending}"
                if not path.is_file():
                    raise ExtensionError(f"{page}: no data of the exhibit {name!r}: {path.name} is missing")
                target.mkdir(exist_ok=True)
                shutil.copyfile(path, target / f"{name}.{ending}")
                used.add(path)
    for path in set(source.glob("*")) - used:
        path.unlink()


_EXHIBIT = re.compile(r'<figure class="exhibit [a-z]+" id="[^"]*" data-exhibit="([^"]+)\.([0-9a-f]{16})">')


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_css_file("book.css")
    app.connect("env-get-outdated", outdated)
    app.connect("builder-inited", write_vega)
    app.connect("doctree-read", refuse_maths)
    app.connect("doctree-read", list_headings, priority=900)  # after Sphinx has read the page's own
    app.connect("html-page-context", page_assets, priority=900)
    app.connect("build-finished", publish)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
