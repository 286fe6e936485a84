"""A small project for the pages' blocks: studies of synthetic records, and what a reader sees of a block."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from recordfactory import a_record, prompt_ids
from samebytes import bookdata, record
from samebytes.bookdata import Measured
from samebytes.record import Record

IDS = prompt_ids(3)


def make(root: Path) -> Path:
    """Make a project with one prompt, three configs and no study file."""
    (root / "_config.yml").touch()
    for name in ("configs", "studies", "workloads/rag", "results"):
        (root / name).mkdir(parents=True)
    (root / "workloads/rag/one.md").write_text("A prompt.\n")
    for name in ("baseline", "ngram", "fp8"):
        (root / "configs" / f"{name}.yaml").write_text(f"why: the reason for <{name}>\n")
    return root


def measured(house: Path, records: Sequence[Record], name: str = "toy") -> Measured:
    for found in records:
        record.save(found, house / "results" / name / f"{found.label}.json")
    study = bookdata.measured(name)
    assert study is not None
    return study


def text(block: str) -> str:
    """Return what a reader sees of a block."""
    return " ".join(re.sub(r"<[^>]+>", " ", block.replace("<wbr>", "")).split())


def baselines(**second: object) -> list[Record]:
    return [a_record("baseline", ids=IDS), a_record("baseline-2", "baseline", ids=IDS, **second)]  # type: ignore[arg-type]
