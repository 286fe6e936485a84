"""Prompts from plain files: ``workloads/WORKLOAD/NAME.md`` is one user message.

A new prompt is a new file and a new workload is a new folder; nothing else has to change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samebytes.errors import UsageError, unknown

WORKLOADS = ("code_edit", "rag", "creative")
"""The workloads that go first, in sending order; other folders come after them, sorted by name."""

ON_REQUEST = ("long_context",)
"""Workloads that only who names them gets: prompts longer than the context that most studies serve."""

WARMUP = "warmup"
"""Folder of the prompts that are sent before the clock starts and never measured."""

CHECK_SUFFIX = ".check.yaml"
"""Ending of the optional file beside a prompt that says how its answer is checked (``samebytes.validity``)."""

_NAME = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")


@dataclass(frozen=True)
class Prompt:
    """One user message.

    Attributes
    ----------
    id : str
        Workload and file name without ``.md``: ``"code_edit/rename-function-graph"``. The key of everything measured.
    workload : str
        Name of the folder.
    text : str
        What is sent: the file's content without the newline that ends it.
    sha256 : str
        SHA-256 of the file's bytes, so that ``sha256sum FILE`` gives the same.
    """

    id: str
    workload: str
    text: str
    sha256: str


def names(folder: Path) -> list[str]:
    """Return the workloads in ``folder`` in sending order: `WORKLOADS` first, then the other folders by name.

    Raises
    ------
    UsageError
        Where ``folder`` is not a folder.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder of workloads at {folder}")
    found = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")} - {WARMUP}
    return [name for name in WORKLOADS if name in found] + sorted(found.difference(WORKLOADS))


def defaults(folder: Path) -> list[str]:
    """Return the workloads of who names none: all but `ON_REQUEST`."""
    return [name for name in names(folder) if name not in ON_REQUEST]


def load(folder: Path, workloads: Sequence[str] | None = None, limit: int | None = None) -> list[Prompt]:
    """Return the prompts to measure, in sending order: by workload (see `names`), then by id.

    Parameters
    ----------
    folder : Path
        Folder that holds a folder per workload.
    workloads : sequence of str, optional
        Which workloads; all but `ON_REQUEST` where it is None. Their order here does not matter.
    limit : int, optional
        At most this many prompts per workload, the first by id.

    Raises
    ------
    UsageError
        For an unknown workload (the valid ones are listed), none at all, a limit below 1, a folder without prompts,
        and a file that is no prompt: not UTF-8, empty, with carriage returns, not ended by one newline, oddly named.
    """
    valid = names(folder)
    if workloads is None:
        wanted = defaults(folder)
    else:
        for name in workloads:
            if name not in valid:
                raise unknown("workload", name, valid)
        wanted = [name for name in valid if name in workloads]
    if not wanted:
        raise UsageError(f"no workload to load from {folder}. Valid: {', '.join(valid) or '(none)'}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1 prompt per workload, not {limit}")
    return [prompt for name in wanted for prompt in _read_folder(folder / name)[:limit]]


def warmup(folder: Path) -> list[Prompt]:
    """Return the warm-up prompts, ordered by id.

    Raises
    ------
    UsageError
        Where there is none, or a file is no prompt (see `load`).
    """
    path = folder / WARMUP
    if not path.is_dir():
        raise UsageError(f"no warm-up prompts at {path}")
    return _read_folder(path)


def _read_folder(folder: Path) -> list[Prompt]:
    """Return every prompt of one workload; a file that is neither a prompt nor a prompt's check is refused."""
    files = {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}
    files.pop("README.md", None)
    prompts = [_read(path) for name, path in files.items() if name.endswith(".md")]
    if not prompts:
        raise UsageError(f"no prompts in {folder}: each is a file NAME.md")
    for name, path in files.items():
        if name.endswith(CHECK_SUFFIX):
            owner = name.removesuffix(CHECK_SUFFIX) + ".md"
            if owner not in files:
                raise UsageError(f"{path} belongs to no prompt: {owner} is missing")
        elif not name.endswith(".md"):
            raise UsageError(f"{path} is neither a prompt (NAME.md) nor a check (NAME{CHECK_SUFFIX})")
    return sorted(prompts, key=lambda prompt: prompt.id)


def _read(path: Path) -> Prompt:
    name, workload = path.name.removesuffix(".md"), path.parent.name
    for part in (workload, name):
        if not _NAME.fullmatch(part):
            raise UsageError(f"{path}: {part!r} is no name for an id; use a-z, 0-9 and single '-' or '_' between them")
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: byte {error.start}: {error.reason}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise UsageError(f"{path} is empty")
    # One spelling of each message, so that the same words cannot have two digests.
    if "\r" in text:
        raise UsageError(f"{path} has carriage returns: lines end in LF")
    if not text.endswith("\n") or text.endswith("\n\n"):
        raise UsageError(f"{path} must end in one newline (it is not sent)")
    if text.startswith("\ufeff"):
        raise UsageError(f"{path} begins with a byte order mark: save it without")
    return Prompt(f"{workload}/{name}", workload, text[:-1], hashlib.sha256(data).hexdigest())
