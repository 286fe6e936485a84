"""Figures as HTML: the one way by which a number, a name or a text from a record gets into the article.

Each becomes a ``<data>`` element: what is shown, the exact value, and on hover where it comes from. A digit on a page
that stands in no such element did not come from the records, which is how typed numbers are found.
"""

from __future__ import annotations

import html as markup
import math
import re
from collections.abc import Container, Iterable, Sequence

from samebytes.stats import Interval

NONE = "–"
"""What is shown where there is no value."""


class Html(str):
    """Text that is HTML already. Any other text is escaped on its way into a page."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return self


def safe(part: object) -> Html:
    """Return ``part`` as HTML: escaped, unless it is HTML already."""
    return part if isinstance(part, Html) else Html(markup.escape(str(part)))


def html(template: str, *parts: object) -> Html:
    """Fill a template's ``{}`` with parts, each escaped unless it is HTML already."""
    return Html(template.format(*(safe(part) for part in parts)))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """Join parts, each escaped unless it is HTML already."""
    return Html(safe(separator).join(safe(part) for part in parts))


def plain(part: object) -> str:
    """Return HTML as plain text, for an attribute or a chart's own description."""
    return markup.unescape(re.sub(r"<[^>]*>", "", safe(part)))


# -- figures ----------------------------------------------------------------------------------------------------------


def number(
    value: float | None,
    digits: int = 1,
    unit: str = "",
    *,
    source: str,
    missing: str = "not measured",
    scale: float = 1,
) -> Html:
    """Return a number as it is shown.

    Parameters
    ----------
    value : float or None
        None, NaN and infinities are shown as a dash with the reason.
    digits : int
        Decimals.
    unit : str
        Shown after the number, and not broken from it.
    source : str
        What it is and which records it comes from; shown on hover.
    missing : str
        Why there is no value, where there is none.
    scale : float
        Factor between the value and what is shown (100 for percent, 1000 for milliseconds).
    """
    if value is None:
        return _none(missing)
    if not math.isfinite(value):
        return _none("not a finite number")
    after = f"\N{NO-BREAK SPACE}{unit}" if unit else ""
    return html('<data value="{}" title="{}">{}</data>{}', value, source, f"{value * scale:,.{digits}f}", after)


def _none(reason: str) -> Html:
    return html('<data value="" title="{}">{}</data>', reason, NONE)


def count(value: float | None, unit: str = "", *, source: str, missing: str = "not measured") -> Html:
    """Return a whole number."""
    return number(value, 0, unit, source=source, missing=missing)


def percent(value: float | None, digits: int = 1, *, source: str, missing: str = "not measured") -> Html:
    """Return a share in percent."""
    return number(value, digits, "%", source=source, missing=missing, scale=100)


def times(value: float | None, *, source: str, missing: str = "not measured") -> Html:
    """Return a ratio as ``1.25×``."""
    shown = number(value, 2, source=source, missing=missing)
    return shown if value is None or not math.isfinite(value) else Html(shown + "×")


def between(found: Interval | None, digits: int = 2, *, source: str, missing: str = "a single value") -> Html:
    """Return a confidence interval as ``[0.98, 1.02]``."""
    if found is None:
        return _none(missing)
    low, high = (number(end, digits, source=source) for end in (found.low, found.high))
    return html("[{}, {}]", low, high)


def of(k: int, n: int, *, source: str) -> Html:
    """Return ``23 of 24``."""
    return html("{} of {}", count(k, source=source), count(n, source=source))


def given(text: str | None, *, source: str, missing: str = "not recorded") -> Html:
    """Return a text from a record (a name, a version, an engine's message) as it stands there."""
    if text is None:
        return _none(missing)
    return html('<data class="given" value="{}" title="{}">{}</data>', text, source, text)


def printed(text: str, unit: str = "", *, source: str) -> Html:
    """Return a number that somebody published, in the digits that were printed."""
    after = f"\N{NO-BREAK SPACE}{unit}" if unit else ""
    return html('<data value="{}" title="{}">{}</data>{}', text.replace(",", ""), source, text, after)


# -- blocks -----------------------------------------------------------------------------------------------------------


def code(text: str) -> Html:
    """Return a name or a command as code, which may break after an underscore."""
    return Html(html("<code>{}</code>", text).replace("_", "_<wbr>"))


def heading(anchor: str, text: object, level: int = 3) -> Html:
    """Return a heading inside of a cell; `samebytes.sphinxext` lists it in the page's contents.

    Parameters
    ----------
    anchor : str
        ``id``, unique on the page.
    text : object
        What it says.
    level : int
        1 is the page's title.
    """
    link = html('<a class="headerlink" href="#{}" title="Link to this heading">#</a>', anchor)
    return html('<h{} id="{}">{}{}</h{}>', level, anchor, text, link, level)


def paragraph(template: str, *parts: object) -> Html:
    """Return a paragraph, filled like `html`."""
    return html("<p>{}</p>", html(template, *parts))


def bullets(items: Sequence[object]) -> Html:
    """Return a list; nothing for no items."""
    return html("<ul>{}</ul>", join(html("<li>{}</li>", item) for item in items)) if items else Html()


def grid(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    words: Container[int] = (),
    *,
    label: str | None = None,
) -> Html:
    """Return a table that scrolls on its own where the page is narrow.

    Parameters
    ----------
    header : sequence
        Column heads.
    rows : iterable of sequence
        Cells; the first of each row is its head.
    words : container of int
        Columns of text, set flush left; the others hold numbers.
    label : str or None
        ``id`` of the element that names it.
    """
    aligned = [Html("" if i == 0 or i in words else ' class="n"') for i in range(len(header))]
    head = join(html('<th scope="col"{}>{}</th>', at, cell) for at, cell in zip(aligned, header, strict=True))
    body = join(html("<tr>{}</tr>", _row(aligned, row)) for row in rows)
    # whoever has no mouse scrolls what has the focus
    region = html(' role="region" aria-labelledby="{}"', label) if label else Html()
    return html(
        '<div class="scroll" tabindex="0"{}><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>',
        region,
        head,
        body,
    )


def _row(aligned: Sequence[Html], row: Sequence[object]) -> Html:
    first, *others = row
    cells = (html("<td{}>{}</td>", at, cell) for at, cell in zip(aligned[1:], others, strict=True))
    return join([html('<th scope="row">{}</th>', first), *cells])


def figure(name: str, value: Html) -> None:
    """Make a figure available to the page's text, where ``{glue:}`name``` shows it."""
    from myst_nb import glue  # imports Sphinx: only where a page is executed

    glue(name, value, display=False)
