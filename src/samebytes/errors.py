"""Errors meant for the person at the keyboard: each names the thing and the valid choices."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SamebytesError(Exception):
    """Base of every error that is reported as one message, without a traceback."""


class UsageError(SamebytesError):
    """A parameter, name, key or file that is not valid."""


class EngineError(SamebytesError):
    """The engine did not start, died, or refused the config.

    Parameters
    ----------
    message : str
        Root cause, in the engine's own words where it gave one.
    log_path : str or None
        Where the engine's whole log lies.
    """

    def __init__(self, message: str, log_path: str | None = None) -> None:
        super().__init__(message if log_path is None else f"{message}\n  log: {log_path}")
        self.reason = message
        self.log_path = log_path


class RecordError(SamebytesError):
    """A record that cannot be read, resumed or compared."""


def unknown(kind: str, name: object, valid: Iterable[str], *, within: str = "") -> UsageError:
    """Return the error for an unknown name, with the valid ones and the nearest match.

    Parameters
    ----------
    kind : str
        What was named: ``"config"``, ``"study"``, ``"key in configs/ngram.yaml"``, ...
    name : object
        The name that is not known.
    valid : iterable of str
        The names that are.
    within : str
        Where the name stands, as it is shown before it: ``"runs.0."`` of ``runs.0.confg``.
    """
    choices = sorted(valid)
    near = get_close_matches(str(name), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(choices) if choices else "(none)"
    return UsageError(f"unknown {kind} {within + str(name)!r}.{hint} Valid: {listed}")
