"""Exhibits: the figures and tables of the article, each with where it comes from and its data to download.

Under each stand the records, the machine, the engine, the date, the commit and the command that computes it again, and
its data as CSV and JSON: raw values, not the rounded ones that are shown. The files are written when the cell runs,
under a name with the digest of their contents, which the page also carries: `samebytes.sphinxext` publishes those that
some page shows, so that a page never offers other data than its own.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samebytes import paths, prose
from samebytes.bookdata import Measured
from samebytes.errors import UsageError, unknown
from samebytes.prose import Html, code, given, html, join
from samebytes.published import Published
from samebytes.record import write_atomic

FEW = 3
"""So many records are listed in the open; more are folded away."""

TWIN_ROWS = 200
"""So many rows of a chart's data are shown under it; more are in the files only."""

Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Origin:
    """Where an exhibit comes from.

    Attributes
    ----------
    records : tuple of str
        Files in ``results/``, as paths from the project's root.
    machine, vllm, date, commit : str or None
        Of the records; several are joined. None: not recorded.
    command : str
        What computes it again.
    """

    records: tuple[str, ...]
    machine: str | None
    vllm: str | None
    date: str | None
    commit: str | None
    command: str


def origin(study: Measured, *configs: str, command: str | None = None) -> Origin:
    """Return the origin of figures that come from a study's records.

    Parameters
    ----------
    study : Measured
        The study.
    configs : str
        Configs whose records they come from; all of the study's if none is named.
    command : str or None
        What computes them again; by default what measures the study and builds the book.

    Raises
    ------
    UsageError
        For a config that has no record.
    """
    known = {record.config.name for record in study.records}
    for name in configs:
        if name not in known:
            raise unknown(f"config with a record in results/{study.name}", name, known)
    records = [record for record in study.records if not configs or record.config.name in configs]
    days = sorted({launch.started[:10] for record in records for launch in record.launches})
    return Origin(
        records=tuple(f"results/{study.name}/{record.label}.json" for record in records),
        machine=_several(record.machine.gpu or record.machine.cpu for record in records),
        vllm=_several(record.versions.vllm for record in records),
        date=" to ".join(dict.fromkeys(days[:1] + days[-1:])) or None,
        commit=_several(record.versions.git_commit and record.versions.git_commit[:10] for record in records),
        command=command or f"samebytes study {study.name} && samebytes book",
    )


def printed(name: str, article: Published, command: str = "samebytes book") -> Origin:
    """Return the origin of figures that somebody published.

    Parameters
    ----------
    name : str
        The study's name: its folder in ``results/``.
    article : Published
        The figures.
    command : str
        What computes them again.
    """
    return Origin(
        records=(f"results/{name}/published.yaml",),
        machine=article.setup.get("gpu"),
        vllm=(article.setup.get("engine") or "").removeprefix("vLLM ") or None,
        date=article.measured,
        commit=None,
        command=command,
    )


def together(origins: Iterable[Origin], command: str = "samebytes book") -> Origin:
    """Return the origin of figures that come from several studies; all that contributed is listed."""
    found = list(origins)
    return Origin(
        records=tuple(dict.fromkeys(path for each in found for path in each.records)),
        machine=_several(each.machine for each in found),
        vllm=_several(each.vllm for each in found),
        date=_several(each.date for each in found),
        commit=_several(each.commit for each in found),
        command=command,
    )


def _several(values: Iterable[str | None]) -> str | None:
    """Return the distinct values as one text; None where there is none."""
    return "; ".join(dict.fromkeys(value for value in values if value)) or None


# -- exhibits ---------------------------------------------------------------------------------------------------------


def table(
    name: str,
    caption: object,
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    origin: Origin,
    *,
    data: Rows,
    words: Container[int] = (),
) -> Html:
    """Return a table.

    Parameters
    ----------
    name : str
        Unique over the site: its anchor, and the name of its files.
    caption : object
        What it shows.
    header, rows, words
        As in `prose.grid`.
    origin : Origin
        Where it comes from.
    data : sequence of mapping
        The same figures, raw: every row with the same keys; text, numbers, truth values and None.

    Raises
    ------
    UsageError
        For a name, a row or a value that cannot be published.
    """
    return _exhibit("figures", name, prose.grid(header, rows, words, label=f"{name}-caption"), caption, origin, data)


def chart(
    name: str, chart: Any, description: str, caption: object, origin: Origin, *, data: Rows | None = None
) -> Html:
    """Return a chart: interactive, as a static picture, in words and as a table.

    Parameters
    ----------
    name, caption, origin
        As in `table`.
    chart : altair chart
        The chart.
    description : str
        What it shows, in words, for those who do not see it; its numbers as `Html` of `samebytes.prose`.
    data : sequence of mapping or None
        The rows behind it; by default those of the chart itself.
    """
    from samebytes import charts  # altair: only on pages with a chart

    rows = charts.rows(chart) if data is None else data
    _check(name, rows)
    try:
        body = charts.drawing(chart, description, label=f"{name}-description")
    except ValueError as error:
        raise UsageError(f"exhibit {name!r}: a value in its chart is no number: {error}") from None
    return _exhibit("chart", name, body, caption, origin, rows, twin="The figures of this chart")


def figure(name: str, body: Html, caption: object, origin: Origin, *, data: Rows) -> Html:
    """Return any other figure, interactive through a script of its own in ``book/_static``.

    Parameters
    ----------
    body : Html
        The figure as it reads without a script.
    name, caption, origin, data
        As in `table`.
    """
    return _exhibit("interactive", name, body, caption, origin, data)


def _exhibit(
    kind: str, name: str, body: Html, caption: object, origin: Origin, data: Rows, twin: str | None = None
) -> Html:
    digest = write(name, origin, data)
    said = html('<figcaption id="{}-caption">{}</figcaption>', name, caption)
    return html(
        '<figure class="exhibit {}" id="{}" data-exhibit="{}.{}">{}{}{}</figure>',
        kind,
        name,
        name,
        digest,
        join([said, body] if kind == "figures" else [body, said]),
        _twin(name, twin, data) if twin else "",
        _source(name, origin),
    )


# -- what stands under each -------------------------------------------------------------------------------------------


def _source(name: str, found: Origin) -> Html:
    """Return the downloads and, folded away but for one line, the origin."""
    short = ", ".join(
        part for part in (found.machine, found.vllm and f"vLLM {found.vllm}", found.date) if part is not None
    )
    facts: list[tuple[str, object]] = [
        ("records", _records(found.records)),
        ("machine", given(found.machine, source=name)),
        ("engine", given(found.vllm and f"vLLM {found.vllm}", source=name)),
        ("measured", given(found.date, source=name)),
        ("commit", given(found.commit, source=name)),
        ("again", code(found.command)),
    ]
    return html(
        '<div class="origin"><span class="downloads">data: <a href="../exhibits/{}.csv" download>csv</a> '
        '<a href="../exhibits/{}.json" download>json</a></span>'
        "<details><summary>{}</summary><dl>{}</dl></details></div>",
        name,
        name,
        html("from {}", given(short, source=name)) if short else "origin",
        join(html("<dt>{}</dt><dd>{}</dd>", fact, shown) for fact, shown in facts),
    )


def _records(files: Sequence[str]) -> Html:
    links = join((record_link(path) for path in files), ", ")
    if len(files) <= FEW:
        return links or html("none")
    number = prose.count(len(files), source="records of this exhibit")
    return html("<details><summary>{} records</summary>{}</details>", number, links)


def record_link(path: str) -> Html:
    """Return a link to a file of ``results/`` in the site.

    Parameters
    ----------
    path : str
        From the project's root: ``results/STUDY/LABEL.json``.
    """
    return html('<a href="../{}" download>{}</a>', path, code(path.removeprefix("results/")))


def _twin(name: str, title: str, data: Rows) -> Html:
    """Return a chart's rows as a table, folded away."""
    columns = list(data[0]) if data else []
    words = [i for i, key in enumerate(columns) if any(isinstance(row[key], str) for row in data)]
    rows = ([_shown(row[key]) for key in columns] for row in data[:TWIN_ROWS])
    more = len(data) - TWIN_ROWS
    rest = html("<p>{} further rows are in the files.</p>", prose.count(more, source=name)) if more > 0 else ""
    return html(
        '<details class="twin"><summary>{}</summary><div class="figures">{}{}</div></details>',
        title,
        prose.grid([code(key) for key in columns], rows, words, label=f"{name}-caption"),
        rest,
    )


def _shown(value: object) -> Html:
    """Return a raw value as a table's cell: a number with four significant digits."""
    if value is None:
        return html('<data value="">{}</data>', prose.NONE)
    shown = value
    if isinstance(value, float):
        shown = f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}" if value else "0"
    return html('<data value="{}">{}</data>', value, shown)


# -- data -------------------------------------------------------------------------------------------------------------


def write(name: str, origin: Origin, data: Rows) -> str:
    """Write an exhibit's data as CSV and JSON, and return the digest that is in the files' names.

    Raises
    ------
    UsageError
        For a name that is no file's name, for a row with other keys than the first, and for a value that is no text,
        number, truth value or None; NaN and infinities are none.
    """
    _check(name, data)
    document = {"exhibit": name, **asdict(origin), "rows": [dict(row) for row in data]}
    as_json = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    digest = hashlib.sha256(as_json.encode()).hexdigest()[:16]
    folder = paths.exhibits()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{name}.{digest}.json", as_json)
    write_atomic(folder / f"{name}.{digest}.csv", to_csv(data))
    return digest


def _check(name: str, data: Rows) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise UsageError(f"exhibit {name!r}: a name has small letters, digits, dots, dashes and underscores")
    for number, row in enumerate(data, 1):
        if list(row) != list(data[0]):
            raise UsageError(f"exhibit {name!r}: row {number} has the keys {list(row)}, the first one {list(data[0])}")
        for key, value in row.items():
            if not (value is None or isinstance(value, (str, int, float))):
                raise UsageError(f"exhibit {name!r}: row {number}: {key!r} is a {type(value).__name__}, not a value")
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"exhibit {name!r}: row {number}: {key!r} is {value}; write None for no value")


def to_csv(data: Rows) -> str:
    """Return rows as CSV: a head, ``true`` and ``false``, nothing for None."""
    stream = io.StringIO()
    out = csv.writer(stream, lineterminator="\n")
    if data:
        out.writerow(data[0])
        out.writerows([str(v).lower() if isinstance(v, bool) else v for v in row.values()] for row in data)
    return stream.getvalue()
