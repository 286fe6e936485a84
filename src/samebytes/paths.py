"""The only module that knows where things lie."""

from __future__ import annotations

import os
from pathlib import Path

from samebytes.errors import UsageError

MARKERS = ("_config.yml", "configs", "studies", "workloads")


def root() -> Path:
    """Return the project's root: the first folder at or above the working directory that holds the house.

    Falls back to the checkout that this package is installed from. ``SAMEBYTES_ROOT`` overrides both.

    Raises
    ------
    UsageError
        Where none of them is a samebytes project.
    """
    override = os.environ.get("SAMEBYTES_ROOT")
    here = Path.cwd()
    candidates = [Path(override)] if override else [here, *here.parents, Path(__file__).resolve().parents[2]]
    for folder in candidates:
        if all((folder / marker).exists() for marker in MARKERS):
            return folder.resolve()
    raise UsageError(
        f"no samebytes project at {candidates[0]}: a folder with {', '.join(MARKERS)} is needed "
        "(run inside a clone, or set SAMEBYTES_ROOT)"
    )


def configs() -> Path:
    """Return the folder of server configs."""
    return root() / "configs"


def studies() -> Path:
    """Return the folder of studies."""
    return root() / "studies"


def workloads() -> Path:
    """Return the folder of prompts."""
    return root() / "workloads"


def results() -> Path:
    """Return the folder of records, a folder per study."""
    return root() / "results"


def bench() -> Path:
    """Return the folder of what `make bench` measured: the one in results/ that is no study."""
    return results() / "bench"


def notebooks() -> Path:
    """Return the folder of source notebooks."""
    return root() / "notebooks"


def exhibits() -> Path:
    """Return the folder for the data of figures and tables, written while the book is built."""
    return root() / "_build" / "exhibits"


def cache() -> Path:
    """Return the folder for what can be made again (the embedded model). ``SAMEBYTES_CACHE`` overrides it."""
    override = os.environ.get("SAMEBYTES_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "samebytes"


def engine_venv() -> Path:
    """Return the CPU engine's virtual environment that ``make engine`` sets up."""
    return root() / ".venv" / "engine"


def neutral(text: str) -> str:
    """Return text with this machine's folders named by what they are: ``.`` for the project, ``~`` for home.

    Records are published; where somebody's home lies is nobody's business and differs between machines.
    """
    for folder, name in ((str(root()), "."), (str(cache()), "~/.cache/samebytes"), (str(Path.home()), "~")):
        if folder != "/":
            text = text.replace(folder, name)
    return text
