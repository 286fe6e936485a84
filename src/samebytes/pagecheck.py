"""What is wrong with the article's pages: with their text before they are built, and with the site that came out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from samebytes import strictyaml
from samebytes.errors import UsageError

PAGE_BYTES = 1_500_000
"""So much a page and its scripts and styles should weigh, without Vega, which is loaded once for all pages."""

SHARED = "_static/vega/vega.js"

NAMES = re.compile(
    r"(?<!\w)(UTF-8|SHA-256|CC-BY-4\.0|FP8|FP16|BF16|bfloat16|E4M3|AVX2|AVX-512|H200|RTX 5090|Qwen3-32B"
    r"|SmolLM2-135M)(?!\w)"
)
"""Names with a digit that is no figure: they may be typed."""

_CELLS = re.compile(r"^```+\{code-cell\}", re.MULTILINE)
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_BARE = re.compile(r"[\s\d.,%×+–-]*\d[\s\d.,%×+–-]*")


class Page(HTMLParser):
    """A built page, read for what is asked of it.

    Attributes
    ----------
    links : list of (str, str)
        Elements and what they refer to.
    scripts : list of (str or None, str)
        Types and bodies.
    figures : list of (str, str)
        Figures of `samebytes.prose`: where each comes from, and what is shown.
    prose : list of str
        Text of the article outside of figures, code and pictures, and what is read out instead of a picture.
    """

    VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
    NOT_PROSE = ("data", "pre", "script", "style", "svg", "nav", "template")
    COUNTED = ("section-number", "caption-number")
    """Classes of what Sphinx numbers."""
    SPOKEN = ("alt", "aria-label", "aria-description", "placeholder")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.figures: list[tuple[str, str]] = []
        self.prose: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._code: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [(tag, value) for name, value in attrs if name in ("href", "src", "xlink:href") and value]
        if self._in_prose(tag):
            self.prose += [value for name, value in attrs if name in self.SPOKEN and value]
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
        if tag == "data" and self._open:
            self.figures.append((dict(attrs).get("title") or "", ""))
        if tag not in self.VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        if tag == "code":
            code, self._code = "".join(self._code), []
            if _BARE.fullmatch(code):  # a name in code may have digits; a number in code is a number
                self.prose.append(code)

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if tags and tags[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        if "data" in tags:
            self.figures[-1] = (self.figures[-1][0], self.figures[-1][1] + data)
        if self._in_prose():
            (self._code if "code" in tags else self.prose).append(data)

    def _in_prose(self, *more: str) -> bool:
        tags = {tag for tag, _ in self._open} | set(more)
        classes = {name for _, attrs in self._open for name in (attrs.get("class") or "").split()}
        return "article" in tags and not tags & set(self.NOT_PROSE) and not classes & set(self.COUNTED)

    def figure(self, *words: str) -> list[str]:
        """Return what is shown of the figures whose source has all these words."""
        return [shown for source, shown in self.figures if all(word in source for word in words)]

    def typed_digits(self) -> list[str]:
        """Return the pieces of prose with a digit that did not come through `samebytes.prose`."""
        return [piece.strip() for piece in self.prose if re.search(r"\d", NAMES.sub("", piece))]


def check_sources(root: Path, pages: Sequence[str]) -> None:
    """Check that the cells of every page will run.

    Raises
    ------
    UsageError
        For a page that is missing, and for one whose front matter does not make it a notebook: its cells would be
        shown and never run, without an error.
    """
    for page in pages:
        if (root / f"{page}.ipynb").is_file():
            continue
        path = root / f"{page}.md"
        if not path.is_file():
            raise UsageError(f"_toc.yml lists {page}, but there is no {page}.md")
        text = path.read_text(encoding="utf-8")
        front = _FRONT.match(text)
        try:
            matter = strictyaml.load(front[1]) if front else None
        except yaml.YAMLError as error:
            raise UsageError(f"{page}.md: its front matter is not valid YAML: {error}") from None
        if _CELLS.search(text) and not _executable(matter):
            raise UsageError(
                f"{page}.md has cells that would not run: its front matter needs `jupytext: text_representation:` "
                "with `extension: .md` and `format_name: myst`, and a `kernelspec`"
            )


def _executable(front: Any) -> bool:
    match front:
        case {"jupytext": {"text_representation": {"extension": ".md", "format_name": "myst"}}, "kernelspec": {}}:
            return True
    return False


def problems(site: Path, pages: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a site.

    A page, its title or what its cells show are missing; a number in its prose was typed.
    """
    for name in pages:
        path = site / f"{name}.html"
        if not path.exists():
            yield f"{name}.html is missing"
            continue
        page, text = Page(path), path.read_text(encoding="utf-8")
        if "<h1>" not in text:
            yield f"{name}.html has no title"
        if not page.figures and 'class="cell_output' not in text:
            yield f"{name}.html has no figure and no output (did its cells run?)"
        for piece in page.typed_digits():
            yield f"{name}: a number that was typed, not computed: {piece!r}"


def heavy(site: Path, pages: Sequence[str]) -> Iterator[str]:
    """Yield which pages are slow to load: each study adds to them, so that this is said and does not fail a build."""
    for name in pages:
        path = site / f"{name}.html"
        size = weight(site, path, Page(path))
        if size > PAGE_BYTES:
            yield f"{name}.html weighs {size:,} bytes with its scripts and styles, over {PAGE_BYTES:,}"


def weight(site: Path, path: Path, page: Page) -> int:
    """Return the bytes of a page and of the scripts and styles that it loads, Vega aside."""
    loaded = {
        (path.parent / unquote(urlsplit(link).path)).resolve()
        for tag, link in page.links
        if (tag == "script" or link.partition("?")[0].endswith(".css")) and not urlsplit(link).netloc
    }
    loaded -= {(site / SHARED).resolve()}
    return path.stat().st_size + sum(file.stat().st_size for file in loaded if file.is_file())
