"""The whole article as one PDF: every page's article in one, printed by a browser without a window.

The print page lies beside the site's pages while it is printed, loads their styles and no script: charts are there as
their static pictures.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from samebytes import __version__
from samebytes.errors import SamebytesError

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

TIMEOUT_S = 240.0

STYLE = """
@page { size: A4; margin: 17mm 15mm 19mm; @bottom-center { content: counter(page); font: 9pt sans-serif; } }
@page :first { @bottom-center { content: none; } }
html { font-size: 9.5pt; --pst-font-size-base: 9.5pt; }
body { background: none; margin: 0; }
main.print { max-width: none; padding: 0; }
.print > article { break-before: page; max-width: none; }
.print h1 { font-size: 20pt; margin-top: 0; }
.print h2 { font-size: 14pt; }
.print h3 { font-size: 11.5pt; }
.print h1, .print h2, .print h3, .print h4, .print figcaption { break-after: avoid; }
/* room that a heading needs below it, for Chromium leaves one alone above what cannot be broken */
.print h2, .print h3 { break-inside: avoid; }
.print article h2::after, .print article h3::after { content: ""; display: block; height: 35mm; margin-bottom: -35mm; }
.print :is(h2:has(+ .cell figure.chart), h3:has(+ figure.chart))::after { height: 105mm; margin-bottom: -105mm; }
.print .cover { min-height: 60vh; padding-top: 25vh; }
.print .cover h1 { font-size: 30pt; }
.print nav ol { columns: 2; }
.print div.cell, .print div.cell_output, .print div.output, .print figure { display: block; overflow: visible; }
.print p, .print li { orphans: 3; widows: 3; }
.print figure, .print blockquote { break-inside: auto; margin: 0 0 1.2em; }
.print tr, .print svg, .print pre, .print dt { break-inside: avoid; }
.print thead { display: table-header-group; }
.print .scroll, .print pre { overflow: visible; white-space: normal; }
.print pre, .print pre code { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 8pt; }
.print table { font-size: 7.5pt; width: 100%; }
.print th, .print td { min-width: 0 !important; padding: 2pt 3pt !important; overflow-wrap: anywhere; }
.print svg { max-width: 100%; height: auto; }
.print .headerlink, .print .downloads, .print .twin, .print details.hide, .print .toggle-details, .print button,
.print .chart-live, .print script, .print .origin dd, .print .origin dt { display: none !important; }
.print a { color: inherit; text-decoration: none; }
"""


def write(site: Path, pages: Sequence[str], target: Path, base: str | None = None) -> Path:
    """Print a site's pages into one PDF.

    Parameters
    ----------
    site : Path
        The built site.
    pages : sequence of str
        The pages in their order, as paths without ``.html``; all in one folder.
    target : Path
        The PDF.
    base : str or None
        Address of the site: where links to its files lead. Without one these are plain text.

    Raises
    ------
    SamebytesError
        Where there is no browser, or it prints nothing.
    """
    program = browser()
    folder = (site / pages[0]).parent
    with tempfile.TemporaryDirectory() as work:
        page = folder / "print-all.html"
        page.write_text(combined(site, pages, base), encoding="utf-8")
        try:
            done = subprocess.run(
                [
                    *(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"),
                    *(f"--user-data-dir={work}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"),
                    *(f"--print-to-pdf={work}/out.pdf", page.resolve().as_uri()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SamebytesError(f"{program} printed nothing within {TIMEOUT_S:.0f} s") from None
        finally:
            page.unlink()
        made = Path(work) / "out.pdf"
        if done.returncode or not made.is_file():
            said = done.stdout.strip().splitlines()[-1:] or ["no output"]
            raise SamebytesError(f"{program} printed nothing: {said[0]}")
        shutil.copyfile(made, target)
    return target


def browser() -> str:
    """Return the browser to print with: ``CHROMIUM``, or the first that is found.

    Raises
    ------
    SamebytesError
        Where there is none.
    """
    names = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else BROWSERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise SamebytesError(f"no browser to print the PDF with (tried {', '.join(names)}): make browser")
    return found


# -- the print page ---------------------------------------------------------------------------------------------------


def combined(site: Path, pages: Sequence[str], base: str | None = None) -> str:
    """Return one page with the articles of all, their anchors and the links between them kept apart by page."""
    names = [Path(page).name for page in pages]
    texts = [(site / f"{page}.html").read_text(encoding="utf-8") for page in pages]
    articles = [_article(text, page, names, base) for text, page in zip(texts, pages, strict=True)]
    styles = dict.fromkeys(tag for text in texts for tag in _STYLES.findall(text))
    titles = [_TITLE.sub("", re.search(r"<h1>(.*?)</h1>", text, re.DOTALL)[1]) for text in texts]  # type: ignore[index]
    contents = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in zip(names, titles, strict=True))
    return (
        '<!DOCTYPE html>\n<html lang="en" data-theme="light" data-mode="light">\n<head><meta charset="utf-8">'
        f"<title>samebytes {escape(__version__)}</title>\n{''.join(styles)}<style>{STYLE}</style></head>\n<body>"
        f'<main class="print bd-article"><section class="cover"><h1>{titles[0]}</h1>'
        f"<p>samebytes {escape(__version__)}: what a serving flag does to a language model's speed and to its output "
        f"bytes.</p><nav><ol>{contents}</ol></nav></section>\n{''.join(articles)}</main></body></html>\n"
    )


_STYLES = re.compile(r'<link[^>]*rel="stylesheet"[^>]*>')
_TITLE = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)
_ARTICLE = re.compile(r"<article[^>]*>(.*)</article>", re.DOTALL)
_SCRIPT = re.compile(r"<script.*?</script>", re.DOTALL)
_NAMED = re.compile(r'(?<=\s)(id|for|aria-labelledby|aria-describedby|aria-controls)="([^"]+)"')
_LINKED = re.compile(r'((?:xlink:)?href)="([^"]*)"')


def _article(text: str, page: str, names: Sequence[str], base: str | None) -> str:
    """Return a page's article with its anchors under the page's name, and its links within the print page."""
    name = Path(page).name
    found = _ARTICLE.search(text)
    if found is None:
        raise SamebytesError(f"{page}.html has no article to print")
    body = _SCRIPT.sub("", found[1])
    body = _NAMED.sub(lambda m: f'{m[1]}="{" ".join(f"{name}--{one}" for one in m[2].split())}"', body)
    body = body.replace("url(#", f"url(#{name}--")

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        to = path.removesuffix(".html") if path else name
        if to in names and (not path or path.endswith(".html")):
            return f'{match[1]}="#{to}{"--" if mark else ""}{anchor}"'
        if urlsplit(match[2]).scheme:
            return match[0]
        # a relative link would print the address of a folder of this machine
        return f'{match[1]}="{urljoin(urljoin(base, page), match[2])}"' if base else ""

    return f'<article id="{name}">{_LINKED.sub(link, body)}</article>\n'
