"""Records and tables as one file to deposit (at Zenodo, say): the same bytes each time, with a manifest of digests.

``python -m samebytes.archive`` (``make archive``) writes ``dist/samebytes-VERSION-records.zip``.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from samebytes import __version__, bookdata, paths, summary
from samebytes.errors import SamebytesError

CONTENTS = (
    "results/*.json",
    "results/*/*.json",
    "results/*/*.yaml",
    "results/*/summary.*",
    "results/*/probes/*.json",
    "results/*/profiles/*.json",
    "configs/*.yaml",
    "studies/*.yaml",
    "workloads/*/*.md",
    "workloads/*/*.yaml",
    "CITATION.cff",
    "LICENSE",
)
"""What goes in: records with the tables computed from them, and what was sent to which server."""

MANIFEST = "SHA256SUMS"
"""In the format of ``sha256sum``: unpack, then ``sha256sum -c SHA256SUMS``."""

README = """Records of samebytes {version}

results/STUDY/LABEL.json   one run each: every answer, every chunk's time, machine, versions, command line
results/STUDY/summary.*    tables computed from them
results/STUDY/probes       the same prompts asked again, with the candidates of every token
results/STUDY/profiles     what a decode step takes, by rows and by kernel
results/record.schema.json the JSON schema of a record
configs, studies           the servers' flags, and which runs make a study
workloads                  the prompts, verbatim
SHA256SUMS                 sha256sum -c SHA256SUMS

Records, tables and prompts are under CC-BY-4.0, code under the MIT licence: see LICENSE. How to cite: CITATION.cff.
"""

_STAMP = (1980, 1, 1, 0, 0, 0)
"""The date of every file in the archive (the earliest that the format knows): nothing in it depends on the day."""


def files(root: Path) -> list[Path]:
    """Return what goes into the archive, sorted by path; what was measured on this machine only stays out."""
    found = {path for pattern in CONTENTS for path in root.glob(pattern) if not path.name.startswith(".")}
    here = root / "results" / bookdata.THIS_MACHINE
    return sorted(path for path in found if here not in path.parents)


def members(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every member in its order, the manifest last."""
    found = [("README.txt", README.format(version=__version__).encode())]
    found += [(path.relative_to(root).as_posix(), path.read_bytes()) for path in files(root)]
    yield from found
    lines = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in found)
    yield MANIFEST, "".join(lines).encode()


def build(root: Path, folder: Path) -> Path:
    """Write the archive into ``folder`` and return its path.

    Raises
    ------
    SamebytesError
        Where a committed table is not what its records say, or there are no records.
    """
    studies = sorted({path.parent for path in files(root) if path.name == "summary.json"})
    for study in studies:
        differences = summary.verify(study)
        if differences:
            raise SamebytesError(f"{study.name}: {differences[0]} (samebytes summary {study.name})")
    if not studies:
        raise SamebytesError(f"no study with tables in {root / 'results'}: nothing to archive")
    name = f"samebytes-{__version__}-records"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for member, content in members(root):
            info = zipfile.ZipInfo(f"{name}/{member}", _STAMP)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, whatever writes it
            info.external_attr = 0o644 << 16
            archive.writestr(info, content, compresslevel=9)
    return path


if __name__ == "__main__":
    made = build(paths.root(), paths.root() / "dist")
    print(made, hashlib.sha256(made.read_bytes()).hexdigest())  # noqa: T201
