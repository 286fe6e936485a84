"""A study's figures as files: ``summary.md`` to read, ``summary.csv`` per prompt, ``summary.json`` with everything.

The same records always give the same three files, byte for byte, so that they can be verified.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebytes import analysis, definitions, paths, settings, validity, workloads
from samebytes.errors import RecordError
from samebytes.findings import Summary
from samebytes.markdown import to_markdown
from samebytes.record import Record, Request, write_atomic
from samebytes.validity import Validity

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FILES = ("summary.md", "summary.csv", "summary.json")


def build(folder: Path, references: Sequence[str] | None = None, candidates: Sequence[str] | None = None) -> Summary:
    """Compute the figures of the study whose records lie in ``folder``.

    Where the project has the study's file, runs that it asks for and that have no record are listed; where it has the
    prompts (the same bytes), answers are checked.

    Parameters
    ----------
    folder : Path
        ``results/STUDY``.
    references, candidates : sequence of str or None
        As in `analysis.summarise`.

    Raises
    ------
    RecordError, UsageError
        As `analysis.load` and `analysis.summarise`.
    """
    records = analysis.load(folder)
    planned = []
    if (paths.studies() / f"{folder.name}.yaml").is_file():
        planned = [(run.label, run.config) for run in settings.study(folder.name).runs]
    return analysis.summarise(records, references, candidates, planned, checker(records))


def checker(records: Sequence[Record]) -> analysis.Check:
    """Return what checks an answer, for the prompts whose file is the very one that the records' runs sent."""
    folder = paths.workloads()
    sent = _sent(records)
    known = {
        prompt.id: (prompt, validity.load_check(folder, prompt.id))
        for prompt in workloads.load(folder)
        if sent.get(prompt.id) == {prompt.sha256}
    }

    def check(request: Request) -> Validity | None:
        if request.id not in known:
            return None
        prompt, declared = known[request.id]
        return validity.check(prompt, declared, request.text, request.finish_reason)

    return check


def render(summary: Summary) -> dict[str, str]:
    """Return the three files' contents by name."""
    return dict(zip(FILES, (to_markdown(summary), to_csv(summary), to_json(summary)), strict=True))


def write(folder: Path, summary: Summary) -> list[Path]:
    """Write the three files into ``folder`` and return their paths."""
    for name, text in render(summary).items():
        write_atomic(folder / name, text)
    return [folder / name for name in FILES]


def verify(folder: Path) -> list[str]:
    """Compute a study's tables again from its records, with the references and candidates they were made with.

    Returns
    -------
    list of str
        One line per difference, naming file and line, and per value of a record that its own data contradict; empty
        where everything agrees.

    Raises
    ------
    RecordError
        Where a record or ``summary.json`` cannot be read.
    """
    missing = [f"{name} is missing" for name in FILES if not (folder / name).is_file()]
    if missing:
        return missing
    try:
        made_with = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        references, candidates = made_with["references"], made_with["candidates"]
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{folder / 'summary.json'} does not say what it was made with; write it again") from None
    found = [line for record in analysis.load(folder) for line in _contradictions(record)]
    for name, text in render(build(folder, references, candidates)).items():
        there = (folder / name).read_text(encoding="utf-8")
        for line, (old, new) in enumerate(zip_longest(there.split("\n"), text.split("\n")), 1):
            if old != new:
                found.append(f"{name}:{line}: {old!r}, but the records give {new!r}")
    return found


def edited(folder: Path) -> list[str]:
    """Return the ids of the prompts whose file is missing, or is not the one that the study's records sent."""
    return sorted(key for key, digests in _sent(analysis.load(folder)).items() if digests != {_file_sha256(key)})


def _file_sha256(prompt_id: str) -> str | None:
    # alone, not through `workloads.load`: that refuses a folder from which the last prompt is gone
    path = paths.workloads() / f"{prompt_id}.md"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _sent(records: Iterable[Record]) -> dict[str, set[str]]:
    """Return the digests of the files that records' prompts were sent from, by prompt."""
    sent: dict[str, set[str]] = {}
    for found in records:
        for info in found.prompts:
            sent.setdefault(info.id, set()).add(info.sha256)
    return sent


def _contradictions(found: Record) -> Iterator[str]:
    """Yield where a record's derived values are not what its own times, tokens and texts say."""
    for request in (r for p in found.passes for r in p.requests if r.status == "ok"):
        derived = {
            "sha256": (request.sha256, hashlib.sha256(request.text.encode()).hexdigest()),
            "ttft_s": (request.ttft_s, definitions.ttft(request.sent_s, request.first_text_s)),
            "decode_tok_s": (
                request.decode_tok_s,
                definitions.decode_tok_s(
                    request.completion_tokens, request.first_chunk_tokens, request.first_text_s, request.finish_s
                ),
            ),
        }
        for name, (there, here) in derived.items():
            if isinstance(there, float) and isinstance(here, float):
                same = math.isclose(there, here, rel_tol=1e-3, abs_tol=1e-5)  # times are kept to the microsecond
            else:
                same = there == here
            if not same:
                yield f"{found.label}.json: {request.id}: {name} is {there!r}, but the request's own data give {here!r}"


# -- JSON and CSV -----------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Round floats to six significant digits: what a last-bit difference of a maths library cannot change."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def to_json(found: DataclassInstance) -> str:
    """Return a study's figures, or what changed between two, as JSON with sorted keys."""
    return json.dumps(_plain(asdict(found)), ensure_ascii=False, allow_nan=False, indent=1, sort_keys=True) + "\n"


def csv_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return one row per config and prompt, with the verdict against each reference. Null is None."""
    verdicts = {(p.reference, p.candidate): {v.id: v for v in p.verdicts} for p in summary.pairs}
    rows = []
    for config in summary.configs:
        forecasts = [{p.id: p for p in f.predictions} for f in summary.own_forecasts(config.name)]
        predicted = {p.id: [found.get(p.id) for found in forecasts] for p in config.prompts}
        for prompt in config.prompts:
            row: dict[str, Any] = {
                "study": summary.study,
                "config": config.name,
                "workload": prompt.workload,
                "prompt": prompt.id,
                "runs": len(config.labels),
                "answered": prompt.answered,
                "timed": prompt.timed,
                "tokens": _join(prompt.tokens),
                "finish_reason": _join(prompt.finish_reasons),
                "validity": _join(v.status if v else None for v in prompt.validity),
                "loops": _join(None if v is None else v.loop is not None for v in prompt.validity),
                "decode_tok_s": prompt.decode_tok_s,
                "decode_spread": prompt.spread,
                "ttft_s": prompt.ttft_s,
                "drafts": prompt.acceptance.drafts,
                "draft_tokens": prompt.acceptance.draft_tokens,
                "accepted_tokens": prompt.acceptance.accepted_tokens,
                "acceptance_rate": prompt.acceptance.rate,
                "mean_acceptance_length": prompt.acceptance.mean_length,
                "tokens_per_step": prompt.acceptance.tokens_per_step,
                "overrun": prompt.acceptance.overrun,
                "predicted_decode_tok_s": _join(_plain(p.tok_s) if p else None for p in predicted[prompt.id]),
                "predicted_speed_up": _join(_plain(p.speed_up) if p else None for p in predicted[prompt.id]),
                "measured_speed_up": _join(_plain(p.measured_speed_up) if p else None for p in predicted[prompt.id]),
                "joules_per_token": prompt.joules_per_token,
            }
            for reference in summary.references:
                verdict = verdicts.get((reference, config.name), {}).get(prompt.id)
                comparison = verdict.comparison if verdict else None
                row |= {
                    f"verdict_{reference}": verdict.verdict if verdict else None,
                    f"class_{reference}": comparison.cls if comparison else None,
                    f"char_index_{reference}": comparison.char_index if comparison else None,
                    f"byte_offset_{reference}": comparison.byte_offset if comparison else None,
                    f"token_index_{reference}": comparison.token_index if comparison else None,
                }
            rows.append(_plain(row))
    return rows


def _join(values: Iterable[object]) -> str:
    """Put the values of several runs into one cell; a run without one keeps its place."""
    return ";".join("" if value is None else str(value) for value in values)


def to_csv(summary: Summary) -> str:
    """Return `csv_rows` as CSV; null is an empty cell."""
    rows = csv_rows(summary)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
