"""The site as a folder that any static host serves, at its root or below: ``python -m samebytes.publish``.

The pages are those of `samebytes.bookbuild`, with what only a published site needs: descriptions, canonical addresses,
a sitemap, a page for what is not found, and the whole article as one PDF. Every link and every anchor is followed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from samebytes import bookbuild, paths, pdf
from samebytes.errors import SamebytesError, UsageError
from samebytes.pagecheck import Page

BASE_URL = "SAMEBYTES_BASE_URL"
"""Environment variable with the address that the site will have."""

NOT_SERVED = (".buildinfo", ".buildinfo.bak", "objects.inv")
"""What Sphinx leaves in its output for itself."""

PDF = "samebytes.pdf"
"""The whole article, in the site's folder."""

SHOWN = 10
"""So many broken links are listed."""

DESCRIPTION = 160
"""Characters of a description; search engines show no more."""

_NOT_FOUND = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Not found: samebytes</title>
<style>
:root {{ color-scheme: light dark; --ink: #14181e; --page: #fff; --link: #00517a; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #ced6dd; --page: #14181e; --link: #7fc4e8; }} }}
a {{ color: var(--link); }}
body {{ color: var(--ink); background: var(--page); }}
body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; padding: 0 1rem; }}
</style>
</head>
<body>
<main>
<h1>There is no such page</h1>
<p>It may have been moved or renamed. <a href="{home}">To the first page</a>.</p>
</main>
</body>
</html>
"""


def publish(root: Path, target: Path, base_url: str | None = None) -> Path:
    """Build the site and write it to a folder of its own.

    Parameters
    ----------
    root : Path
        The project.
    target : Path
        Folder to write; what an earlier call left there is replaced.
    base_url : str or None
        Address that the site will have, for the sitemap and the canonical addresses; without one there are none, and
        the links back from a page that was not found lead to the host's root.

    Returns
    -------
    Path
        ``target``.

    Raises
    ------
    UsageError
        For a base URL that is none, and for a folder that holds something else.
    SamebytesError
        Where the book cannot be built, a link leads nowhere, or no browser prints the PDF.
    """
    base = None if base_url is None else _base(base_url)
    if target.exists() and any(target.iterdir()) and not (target / ".nojekyll").exists():
        raise UsageError(f"{target} is not empty and holds no published site: name another folder")
    bookbuild.build(root)
    pages = bookbuild.pages(root)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / "_build" / "html", target, ignore=shutil.ignore_patterns(*NOT_SERVED))
    (target / ".nojekyll").touch()  # GitHub Pages would leave out every folder that begins with an underscore
    for page in pages:
        _describe(target / f"{page}.html", page, base)
    home = urlsplit(base).path if base else "/"
    (target / "404.html").write_text(_NOT_FOUND.format(home=escape(home)), encoding="utf-8")
    if base is not None:
        (target / "sitemap.xml").write_text(sitemap(pages, base), encoding="utf-8")
    pdf.write(target, pages, target / PDF, base)
    _link_pdf(target, pages)
    broken = list(problems(target))
    if broken:
        listed = "\n  ".join(broken[:SHOWN])
        raise SamebytesError(f"{len(broken)} broken links in {target}:\n  {listed}")
    return target


def _base(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"the base URL must be like https://NAME.github.io/PROJECT/, got {url!r}")
    return url.rstrip("/") + "/"


def sitemap(pages: list[str], base: str) -> str:
    """Return a sitemap of the pages at their addresses."""
    urls = "".join(f"<url><loc>{escape(urljoin(base, f'{page}.html'))}</loc></url>\n" for page in pages)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}</urlset>\n'
    )


# -- what a page says of itself ---------------------------------------------------------------------------------------


def _describe(path: Path, page: str, base: str | None) -> None:
    """Give a page its description, from its own first paragraph, and its address."""
    text = path.read_text(encoding="utf-8")
    tags = f'<meta name="description" content="{escape(description(text))}">\n'
    if base is not None:
        tags += f'<link rel="canonical" href="{escape(urljoin(base, f"{page}.html"))}">\n'
    path.write_text(text.replace("</head>", f"{tags}</head>", 1), encoding="utf-8")


def _link_pdf(site: Path, pages: list[str]) -> None:
    """Make a page's words for the PDF a link to it: a site that was only built has none to link to."""
    for page in pages:
        path = site / f"{page}.html"
        to = Path(os.path.relpath(site / PDF, path.parent)).as_posix()
        text = path.read_text(encoding="utf-8")
        path.write_text(_AS_PDF.sub(rf'<a href="{to}">\1</a>', text), encoding="utf-8")


_AS_PDF = re.compile(r'<span class="as-pdf">(.*?)</span>', re.DOTALL)


def description(page: str) -> str:
    """Return a page's first paragraph, cut at a word's end."""
    article = page.partition("<article")[2]
    found = _FirstParagraph()
    found.feed(article)
    words = " ".join("".join(found.text).split())
    if len(words) <= DESCRIPTION:
        return words
    return words[: DESCRIPTION - 1].rpartition(" ")[0].rstrip(",;:") + "…"


class _FirstParagraph(HTMLParser):
    """Collects the text of the first paragraph that is not empty and stands in no folded part."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._folded = 0
        self._inside = False
        self._done = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._folded += tag == "details"
        self._inside = self._inside or (tag == "p" and not self._folded)

    def handle_endtag(self, tag: str) -> None:
        self._folded -= tag == "details"
        if tag == "p":
            self._inside = False
            self._done = bool("".join(self.text).strip())

    def handle_data(self, data: str) -> None:
        if self._inside and not self._done:
            self.text.append(data)


# -- links ------------------------------------------------------------------------------------------------------------


class _Anchors(HTMLParser):
    """Collects what a link can lead to within a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.update(value for name, value in attrs if value and (name == "id" or (tag, name) == ("a", "name")))


def problems(site: Path) -> Iterator[str]:
    """Yield every link that leads nowhere, to another host for a part of the page, or to the host's own root.

    A link with the host's root breaks where the site lies below it.
    """
    anchors: dict[Path, set[str]] = {}
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html" or "_static" in path.relative_to(site).parts:
            continue
        where = path.relative_to(site)
        for tag, link in dict.fromkeys(Page(path).links):
            problem = _problem(path, site, tag, link, anchors)
            if problem is not None:
                yield f"{where}: {link}: {problem}"


def _problem(path: Path, site: Path, tag: str, link: str, anchors: dict[Path, set[str]]) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        allowed = tag == "a" or parts.scheme == "data" or 'rel="canonical"' in _line(path, link)
        return None if allowed else f"a part of the page on another host ({tag})"
    if parts.path.startswith("/"):
        return "begins at the host's root"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.is_relative_to(site.resolve()):
        return "leads out of the site"
    if not target.is_file():
        return "there is no such file"
    if not parts.fragment or target.suffix != ".html":
        return None
    if target not in anchors:
        reader = _Anchors()
        reader.feed(target.read_text(encoding="utf-8"))
        anchors[target] = reader.found
    return None if unquote(parts.fragment) in anchors[target] else "there is no such anchor"


def _line(path: Path, link: str) -> str:
    """Return the tag that holds a link."""
    found = re.search(rf"<link[^>]*{re.escape(escape(link))}[^>]*>", path.read_text(encoding="utf-8"))
    return found[0] if found else ""


def main() -> None:
    """Publish the project's site, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m samebytes.publish", description="Write the site to a folder.")
    parser.add_argument("--folder", type=Path, default=paths.root() / "dist" / "site")
    parser.add_argument("--base-url", default=os.environ.get(BASE_URL) or None)
    given = parser.parse_args()
    try:
        print(publish(paths.root(), given.folder, given.base_url))  # noqa: T201
    except SamebytesError as error:
        raise SystemExit(f"samebytes: {error}") from None


if __name__ == "__main__":
    main()
