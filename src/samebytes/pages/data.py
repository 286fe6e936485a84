"""Data: records and tables to download."""

from __future__ import annotations

from collections.abc import Sequence

from samebytes import paths, prose
from samebytes.bookdata import Measured
from samebytes.pages import common
from samebytes.prose import Html, code, given, html, join, number, of, table


def records(found: Measured) -> Html:
    """Return a study's records with the status of each."""
    rows = []
    runs = {run.label: run for run in found.summary.runs}
    for record in found.records:
        source = f"results/{found.name}/{record.label}.json"
        run = runs[record.label]
        answered = (
            of(*share, source=source) if share else number(None, source=source, missing="no such pass")
            for share in (run.sequential, run.concurrent)
        )
        started = record.launches[0].started[:19].replace("T", " ") if record.launches else None
        size = (found.folder / f"{record.label}.json").stat().st_size
        rows.append(
            [
                common.record_link(found, record.label),
                code(record.config.name),
                record.status,
                *answered,
                given(started, source=source, missing="no server started"),
                number(size / 1000, 0, source=source),
            ]
        )
    return table(
        html("{}: {}", code(f"results/{found.name}"), given(found.title, source=f"studies/{found.name}.yaml")),
        ["record", "config", "status", "answered", "answered, concurrent leg", "started (UTC)", "kB"],
        rows,
        words=(1, 2),
    )


def tables(found: Sequence[Measured]) -> Html:
    """Return links to each study's tables, where they were written."""
    items = []
    for each in found:
        names = [name for name in ("summary.md", "summary.csv", "summary.json") if (each.folder / name).exists()]
        links = join((html('<a href="../results/{}/{}" download>{}</a>', each.name, n, n) for n in names), ", ")
        items.append(
            html(
                "{}: {}",
                code(each.name),
                links or html("none; write them with {}", code(f"samebytes summary {each.name}")),
            )
        )
    return prose.bullets(items)


def schema_link() -> Html:
    """Return a link to the schema of a record."""
    name = "record.schema.json"
    there = (paths.results() / name).exists()
    return html('<a href="../results/{}" download>{}</a>', name, name) if there else code(name)
