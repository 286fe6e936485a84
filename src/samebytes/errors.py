"""Errors meant for the person at the keyboard: each names the thing and the valid choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


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


def invalid(error: ValidationError, valid: Mapping[str, Iterable[str]]) -> str:
    """Return the first validation error as a sentence that names the key and, for an unknown one, the valid keys.

    Parameters
    ----------
    error : pydantic.ValidationError
        What the file's model says of it.
    valid : mapping of str to iterable of str
        The file's own keys under ``""``; those inside a key under that key's name.
    """
    # A misspelt key is the cause of the missing one.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    *outer, last = first["loc"] or ("file",)
    within = "".join(f"{part}." for part in outer)
    if first["type"] == "extra_forbidden":
        owner = next((str(part) for part in reversed(outer) if part in valid), "")
        return str(unknown("key", last, valid[owner], within=within))
    return f"{within}{last}: {first['msg'].removeprefix('Value error, ')}"
