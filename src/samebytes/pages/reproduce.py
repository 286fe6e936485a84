"""Reproduce it: what a measurement takes, from the records of those that were made."""

from __future__ import annotations

from collections.abc import Sequence

from samebytes import exhibit, paths, prose, settings
from samebytes.bookdata import Measured
from samebytes.pages import common, timeline
from samebytes.prose import Html, code, count, given, html, number

REPORT_MINUTES, REPORT_GB = 7, 3.4
"""What ``make report`` takes on two cores, as README.md says too: minutes of a first call, and disk."""
TEST_MINUTES, TEST_GB = 26, 4.6
"""What ``make test`` takes on two cores."""
CORES = 2
"""Cores of the machine on which these were measured."""


def cost(minutes: int, gigabytes: float) -> Html:
    """Return time and disk of a make target."""
    source = "measured on two cores; README.md"
    return html(
        "{} on {} and {} of disk",
        count(minutes, "minutes", source=source),
        count(CORES, "cores", source=source),
        number(gigabytes, 1, "GB", source=source),
    )


def report_cost() -> Html:
    """Return what `make report` takes."""
    return cost(REPORT_MINUTES, REPORT_GB)


def test_cost() -> Html:
    """Return what `make test` takes."""
    return cost(TEST_MINUTES, TEST_GB)


def durations(found: Sequence[Measured]) -> Html:
    """Return what each study took, from its records."""
    rows: list[Sequence[object]] = []
    data: list[dict[str, object]] = []
    for study in found:
        spans = timeline.spans(study)
        source = f"the launches and passes of results/{study.name}/*.json"
        model = study.records[0].model
        requests = [r for record in study.records for p in record.passes for r in p.requests]
        tokens = sum(r.completion_tokens or 0 for r in requests)
        size = sum(path.stat().st_size for path in study.folder.glob("*.json"))
        starts = len({(span.run, span.launch) for span in spans})
        total, loading = timeline.total(spans), timeline.total(spans, "loading")
        rows.append(
            [
                html("{} <small>{}</small>", code(study.name), given(study.summary.machine, source=source)),
                count(starts, source=source),
                number(total, 1, source=source, scale=1 / 60),
                number(loading, 1, source=source, scale=1 / 60),
                count(tokens, source=source),
                number(model.weight_bytes, 2, source=source, scale=1e-9, missing=study.note or "not recorded"),
                number(size, 1, source=source, scale=1e-6),
            ]
        )
        data.append(
            {
                "study": study.name,
                "machine": study.summary.machine,
                "server_starts": starts,
                "total_s": total,
                "loading_s": loading,
                "tokens": tokens,
                "weight_bytes": model.weight_bytes,
                "record_bytes": size,
            }
        )
    if not rows:
        return common.nothing_measured()
    return exhibit.table(
        "reproduce-durations",
        "What each study took, from its own records: minutes from the first moment of every server to its end.",
        ["study", "server starts", "minutes", "of them loading", "tokens", "weights, GB", "records, MB"],
        rows,
        exhibit.together(exhibit.origin(study) for study in found),
        data=data,
    )


def study_file(name: str) -> Html:
    """Return a study's file as it stands; that there is none, where there is none."""
    path = paths.studies() / f"{name}.yaml"
    if name not in settings.names(paths.studies()):
        return prose.paragraph("There is no {}.", code(f"studies/{name}.yaml"))
    return html('<pre class="file">{}</pre>', path.read_text(encoding="utf-8"))


def studies() -> Html:
    """Return the study files that are here, each with its title."""
    items = []
    for name in settings.names(paths.studies()):
        title = given(settings.study(name).title, source=f"studies/{name}.yaml")
        items.append(html("{}: {}", code(f"samebytes study {name}"), title))
    return prose.bullets(items)
