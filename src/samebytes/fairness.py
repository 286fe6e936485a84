"""What differs between two runs besides the flag under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from samebytes.record import Record

PER_LAUNCH = ("--port", "--served-model-name", "--model", "--host", "--api-key")
"""Options that each run sets for itself; the model is compared by its identity, not by where it lies."""

STACK = ("vllm", "torch", "python", "client_python", "openai")
"""Versions that take part in the measurement."""

PROJECT = ("samebytes", "git_commit", "git_dirty")
"""Versions of this project: shown, and no reason to doubt a comparison."""


@dataclass(frozen=True)
class Difference:
    """One field that two runs do not share.

    Attributes
    ----------
    kind : {"argv", "env", "versions", "machine"}
    name : str
        The option, variable or field.
    a, b : str or None
        Both values; None: not given.
    fair : bool
        Whether it may be what the config is about (argv, env) or is of no effect; False for another machine or
        another version of the measuring stack.
    """

    kind: str
    name: str
    a: str | None
    b: str | None
    fair: bool


def options(argv: Sequence[str]) -> dict[str, str]:
    """Return a server's command line as option to value, without what each run sets for itself.

    A bare flag has the value ``""``; an option given twice keeps its last value, as vLLM's parser does. Whatever
    stands before the first option (the program, ``serve``, the model) is left out.
    """
    found: dict[str, str] = {}
    name = None
    for word in argv:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        elif name is not None:
            found[name] = f"{found[name]} {word}".strip()
    return {name: value for name, value in found.items() if name not in PER_LAUNCH}


def differences(a: Record, b: Record) -> tuple[Difference, ...]:
    """Return every difference between two runs in argv, environment, versions and machine."""
    machine = tuple(type(a.machine).model_fields)
    sides: list[dict[str, Mapping[str, str | None]]] = [
        {
            "argv": options(record.config.argv),
            "env": record.config.env,
            "versions": {name: _text(getattr(record.versions, name)) for name in (*STACK, *PROJECT)},
            "machine": {name: _text(getattr(record.machine, name)) for name in machine},
        }
        for record in (a, b)
    ]
    found = []
    for kind in sides[0]:
        one, two = sides[0][kind], sides[1][kind]
        for name in sorted(one.keys() | two.keys()):
            if one.get(name) != two.get(name):
                fair = kind in ("argv", "env") or name in PROJECT
                found.append(Difference(kind, name, one.get(name), two.get(name), fair))
    return tuple(found)


def _text(value: object) -> str | None:
    if value is None:
        return None
    return " ".join(value) if isinstance(value, list) else str(value)
