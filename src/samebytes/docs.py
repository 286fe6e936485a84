"""Documents that the code itself knows: the commands, the fields of a record, and its JSON schema.

``python -m samebytes.docs`` (``make docs``) writes them; a test holds what is committed to what is written.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import click
import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from samebytes import cli, paths, record
from samebytes.record import Part, Record, write_atomic

WIDTH = 88
"""Columns of a help text."""

UNITS = {
    "tok_s": "tokens/s",
    "_mono": "s",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_mhz": "MHz",
    "_s": "s",
    "_w": "W",
    "_c": "°C",
}
"""A field's unit by how its name ends; the first that fits."""

_HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

% written by `make docs`: do not edit

"""

_COMMANDS = """# Commands

```{code-cell} ipython3
:tags: [remove-input]
import samebytes
from samebytes import prose

prose.figure("version", prose.given(samebytes.__version__, source="samebytes.__version__"))
```

What each command of samebytes {glue:}`version` prints with `--help`.

"""

_SCHEMA = """# The record

```{code-cell} ipython3
:tags: [remove-input]
from samebytes import prose, record

prose.figure("schema-version", prose.count(record.SCHEMA, source="samebytes.record.SCHEMA"))
```

One run leaves one record, a JSON file. This is its schema, version {glue:}`schema-version`. Times inside a pass are
seconds from the pass's start on one monotonic clock. A value that was not measured is null, never zero; each field says
when that is so. A key that is not listed is refused.

"""


def render() -> dict[str, str]:
    """Return every generated document by its path from the project's root."""
    return {
        "book/commands.md": _HEAD + _COMMANDS + commands(),
        "book/schema.md": _HEAD + _SCHEMA + schema(),
        "results/record.schema.json": json.dumps(record.json_schema(), indent=1) + "\n",
    }


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Return a section for the command and for each of its subcommands: the help text, as it is printed."""
    group = typer.main.get_command(cli.app)
    names = sorted(group.commands)  # type: ignore[attr-defined]
    sections = [_command("samebytes", group)]
    sections += [_command(f"samebytes {name}", group.commands[name]) for name in names]  # type: ignore[attr-defined]
    return "\n".join(sections)


def _command(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## {name}\n\n```text\n{text}\n```\n"


# -- the record -------------------------------------------------------------------------------------------------------


def schema() -> str:
    """Return a section for each part of a record: its fields with type, unit, meaning, and when one is null."""
    return "\n".join(_part(part) for part in parts(Record))


def parts(model: type[Part]) -> Iterator[type[Part]]:
    """Yield a part of a record and, depth first, every part within it, each once."""
    found: dict[type[Part], None] = {}

    def visit(one: type[Part]) -> None:
        if one not in found:
            found[one] = None
            for field in one.model_fields.values():
                for inner in _models(field.annotation):
                    visit(inner)

    visit(model)
    return iter(found)


def _models(annotation: Any) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _part(part: type[Part]) -> str:
    head = ["| field | type | unit | what it is | null means |", "| --- | --- | --- | --- | --- |"]
    rows = [_row(field.alias or name, field) for name, field in part.model_fields.items()]
    summary = (part.__doc__ or "").strip().splitlines()[0]
    return "\n".join([f"({_target(part)})=", f"## {part.__name__}", "", _words(summary), "", *head, *rows, ""])


def _row(name: str, field: FieldInfo) -> str:
    meaning, null = split(field.description or "")
    cells = (f"`{name}`", kind(field.annotation), unit(name), _words(meaning), _words(null))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def split(description: str) -> tuple[str, str]:
    """Return what a field is, and when it is null."""
    meaning, _, null = " ".join(description.split()).partition(" Null: ")
    return meaning, null


def unit(name: str) -> str:
    """Return a field's unit, which the house's names end in."""
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def kind(annotation: Any) -> str:
    """Return a type in JSON's words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(kind(one) for one in arguments)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(one)}`" for one in arguments)
    if origin is list:
        return f"list of {kind(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(kind(one) for one in arguments)}]"
    if origin is dict:
        return f"object of {kind(arguments[1])}"
    if origin is typing.Annotated:
        return kind(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{_target(annotation)})"
    return {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}[annotation]


def _target(part: type[BaseModel]) -> str:
    return f"record-{part.__name__.lower()}"


def _words(text: str) -> str:
    """Turn reStructuredText's code into Markdown's."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


def write(root: Path) -> list[Path]:
    """Write every generated document and return their paths."""
    for name, text in render().items():
        write_atomic(root / name, text)
    return [root / name for name in render()]


if __name__ == "__main__":
    for path in write(paths.root()):
        click.echo(path)
