"""What the article is computed from: the studies that have records here, and figures that somebody published.

Every page is executed in a process of its own, and to compute a study's figures takes seconds: they are kept in
``_build/`` under a fingerprint of all that they depend on.
"""

from __future__ import annotations

import hashlib
import os
import pickle  # of files that this project wrote into its own build folder
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from samebytes import analysis, paths, published, settings, summary
from samebytes.findings import ConfigResult, Control, Pair, Summary
from samebytes.published import Published
from samebytes.record import Record

THIS_MACHINE = "quick"
"""The study that `make report` measures; its records are not committed and are shown apart."""

PUBLISHED = "published.yaml"
"""Figures of a study that were published without records."""


DEPENDENCIES = (
    "_config.yml",
    "book/_static/*",
    "configs/*.yaml",
    "requirements/report.lock",
    "studies/*.yaml",
    "workloads/**/*",
)
"""What the pages are computed from, besides ``results/`` and this package."""

NO_RECORDS = (".ipynb", ".log", ".lock")
"""Endings of what a run leaves in ``results/`` besides its records."""


@dataclass(frozen=True)
class Measured:
    """A study with records here.

    Attributes
    ----------
    title : str
        The study file's title; the name where there is no file.
    folder : Path
        ``results/STUDY``.
    namesake : bool
        Whether another of the studies that it stands beside was measured on a machine of the same name.
    """

    name: str
    title: str
    folder: Path
    records: tuple[Record, ...]
    summary: Summary
    namesake: bool = False

    def files(self, config: str) -> str:
        """Return the records of one config, as a text that says where its figures come from."""
        labels = self.summary.config(config).labels
        return ", ".join(f"results/{self.name}/{label}.json" for label in labels)

    def control(self, config: str) -> Control | None:
        """Return whether a reference agrees with itself; None where it has no complete run."""
        return next((c for c in self.summary.controls if c.config == config), None)

    @property
    def timed(self) -> list[ConfigResult]:
        """Configs whose speeds may stand side by side; batch-invariant kernels stand beside their like alone."""
        usual = {r.config.name for r in self.records if analysis.numerics(r) == "0"}
        return [config for config in self.summary.configs if config.name in usual]

    def pairs(self, reference: str) -> list[Pair]:
        """Return every config that is compared with a reference."""
        return [pair for pair in self.summary.pairs if pair.reference == reference]

    @property
    def workloads(self) -> list[str]:
        """Workloads in sending order."""
        return list(dict.fromkeys(p.workload for found in self.records for p in found.prompts))

    @property
    def started(self) -> str | None:
        """Day (UTC) of the first server start."""
        starts = sorted(launch.started for found in self.records for launch in found.launches)
        return starts[0][:10] if starts else None

    @property
    def gpu(self) -> bool:
        """Whether it was measured on a GPU."""
        return any(found.machine.gpu for found in self.records)

    @property
    def where(self) -> str:
        """Machine that it was measured on, with the study where another has a machine of the same name."""
        return f"{self.summary.machine} ({self.name})" if self.namesake else self.summary.machine

    @property
    def note(self) -> str | None:
        """What limits its figures, as "random weights": its answers mean nothing then; None for an ordinary study."""
        return next((found.note for found in self.records if found.note), None)


def has_records(folder: Path) -> bool:
    """Return whether a folder holds anything that should be a record."""
    return any(p.name not in analysis.DERIVED and not p.name.startswith(".") for p in folder.glob("*.json"))


def measured(name: str) -> Measured | None:
    """Read one study; None where it has no record.

    Raises
    ------
    RecordError
        Where a record cannot be read.
    """
    folder = paths.results() / name
    if not has_records(folder):
        return None
    kept = paths.root() / "_build" / "studies" / f"{name}.pickle"
    key = fingerprint(paths.root(), name)
    found = _read(kept, key)
    if found is None:
        found = _compute(name, folder)
        _write(kept, key, found)
    return found


def _compute(name: str, folder: Path) -> Measured:
    known = name in settings.names(paths.studies())
    return Measured(
        name=name,
        title=settings.study(name).title if known else name,
        folder=folder,
        records=tuple(analysis.load(folder)),
        summary=summary.build(folder),
    )


def _read(path: Path, key: str) -> Measured | None:
    """Return what is kept under a key; None where that is something else, or was never finished."""
    try:
        with path.open("rb") as stream:
            if stream.readline().decode().strip() == key:
                found = pickle.load(stream)  # noqa: S301
                return found if isinstance(found, Measured) else None
    except (OSError, ValueError, EOFError, pickle.UnpicklingError):
        pass
    return None


def _write(path: Path, key: str, found: Measured) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as stream:
        stream.write(f"{key}\n".encode())
        pickle.dump(found, stream, protocol=5)
    os.replace(stream.name, path)


def studies() -> list[Measured]:
    """Read every study with records but `THIS_MACHINE`, those on a GPU first, each group by name."""
    others = (THIS_MACHINE, paths.bench().name)
    names = sorted(p.name for p in paths.results().iterdir() if p.is_dir() and p.name not in others)
    found = [study for name in names if (study := measured(name)) is not None]
    return told_apart(sorted(found, key=lambda study: not study.gpu))


def told_apart(found: Sequence[Measured]) -> list[Measured]:
    """Return studies that stand side by side, with it noted where a machine's name alone does not tell which is meant.

    A study with a warning is told by that wherever it stands.
    """
    usual = Counter(study.summary.machine for study in found if study.note is None)
    return [replace(study, namesake=study.note is None and usual[study.summary.machine] > 1) for study in found]


def this_machine() -> Measured | None:
    """Read what `make report` measured here; None where it has not."""
    return measured(THIS_MACHINE)


def articles() -> dict[str, Published]:
    """Read the published figures, by the study that they belong to."""
    found = sorted(paths.results().glob(f"*/{PUBLISHED}"))
    return {path.parent.name: published.load(path) for path in found}


# -- what it depends on -----------------------------------------------------------------------------------------------


def files(root: Path, study: str = ".") -> Iterator[Path]:
    """Return the records and tables in ``results/``, of one study where it is named: what can be downloaded."""
    results = root / "results"
    for path in sorted((results / study).rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(results).parts)
        if path.is_file() and not hidden and path.suffix not in NO_RECORDS:
            yield path


def fingerprint(root: Path, study: str = ".") -> str:
    """Return a digest of all that the pages are computed from, or one study's figures: names and contents."""
    found = (sorted(path for path in root.glob(pattern) if path.is_file()) for pattern in DEPENDENCIES)
    return _digest([*(path for paths in found for path in paths), *files(root, study)], _CODE)


def _digest(found: Iterable[Path], start: str) -> str:
    digest = hashlib.sha256(start.encode())
    for path in found:
        digest.update(f"\0{path}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


_CODE = _digest(sorted(Path(__file__).parent.rglob("*.py")), sys.version)
"""Of this process: files that change while it runs are not what it computes with."""
