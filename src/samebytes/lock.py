"""Locks between processes: a file that one of them holds."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from samebytes.errors import UsageError


@contextlib.contextmanager
def locked(lock: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock file for the length of a ``with`` block, its folder made where it is missing.

    The kernel releases it however the process ends.

    Parameters
    ----------
    refusal : str or None
        What is said, at once, where another process holds it; None: wait for that one.

    Raises
    ------
    UsageError
        With ``refusal``.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX if refusal is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(refusal) from None
        yield
