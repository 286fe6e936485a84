"""Data: records and tables to download, and how to cite them."""

from __future__ import annotations

from collections.abc import Sequence

from samebytes import bookdata, exhibit, paths, prose
from samebytes import citation as citations
from samebytes.bookdata import Measured
from samebytes.errors import UsageError
from samebytes.prose import Html, code, given, html, join, number, of


def records(found: Measured) -> Html:
    """Return a study's records with the status of each."""
    rows: list[Sequence[object]] = []
    data: list[dict[str, object]] = []
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
                html('<a href="../{}" download><code>{}</code></a>', source, f"{record.label}.json"),
                code(record.config.name),
                record.status,
                *answered,
                given(started, source=source, missing="no server started"),
                number(size / 1000, 0, source=source),
            ]
        )
        data.append(
            {
                "record": source,
                "config": record.config.name,
                "status": record.status,
                "answered": run.sequential[0] if run.sequential else None,
                "answered_concurrent": run.concurrent[0] if run.concurrent else None,
                "started": started,
                "bytes": size,
            }
        )
    return exhibit.table(
        f"data-{found.name}",
        html("{}: {}", code(f"results/{found.name}"), given(found.title, source=f"studies/{found.name}.yaml")),
        ["record", "config", "status", "answered", "answered, concurrent leg", "started (UTC)", "kB"],
        rows,
        exhibit.origin(found),
        data=data,
        words=(1, 2),
    )


def beside(found: Sequence[Measured], kind: str) -> Html:
    """Return links to each study's ``probes`` or ``profiles``; that nobody made one, where that is so."""
    items = []
    for study in found:
        files = [path for path in bookdata.files(paths.root(), study.name) if path.parent == study.folder / kind]
        if files:
            links = (exhibit.record_link(path.relative_to(paths.root()).as_posix()) for path in files)
            items.append(html("{}: {}", code(study.name), join(links, ", ")))
    return prose.bullets(items) or prose.paragraph("There are no {} yet.", kind)


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


def published() -> Html:
    """Return links to the figures that somebody published without records."""
    files = sorted(paths.results().glob("*/published.yaml"))
    return prose.bullets([exhibit.record_link(f"results/{path.parent.name}/{path.name}") for path in files])


def schema_link() -> Html:
    """Return a link to the schema of a record."""
    name = "record.schema.json"
    there = (paths.results() / name).exists()
    return html('<a href="../results/{}" download>{}</a>', name, name) if there else code(name)


def citation() -> Html:
    """Return how to cite, as BibTeX; that nobody wrote it down, where there is no citation file."""
    try:
        cited = citations.load(paths.root())
    except UsageError:
        return prose.paragraph("There is no {} here.", code(citations.FILE))
    return html('<pre class="bibtex">{}</pre>', citations.bibtex(cited))
