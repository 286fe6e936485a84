"""Documents that are written from the code: what is committed is what would be written, and it leaves nothing out."""

from __future__ import annotations

import re
from types import NoneType
from typing import get_args

import pytest
import typer.main

from conftest import ROOT
from samebytes import cli, docs, record
from samebytes.record import Record

PARTS = list(docs.parts(Record))


@pytest.mark.parametrize("name", docs.render())
def test_what_is_committed_is_what_would_be_written(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == docs.render()[name], "run make docs"


def test_every_command_and_each_of_its_options_is_described() -> None:
    group = typer.main.get_command(cli.app)
    sections = dict(
        re.findall(r"^## samebytes (\w+)\n\n```text\n(.*?)^```$", docs.commands(), re.DOTALL | re.MULTILINE)
    )
    assert sections.keys() == group.commands.keys()  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert "Example: samebytes " in sections[name]
        for parameter in command.params:
            shown = [*parameter.opts, parameter.metavar or "", parameter.name.upper()]
            assert any(word and word in sections[name] for word in shown), f"{name}: {parameter.name}"


def test_the_help_is_as_wide_on_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow = docs.commands()
    monkeypatch.setenv("COLUMNS", "200")
    assert docs.commands() == narrow


def test_every_part_of_a_record_has_a_section() -> None:
    assert PARTS[0] is Record
    assert {part.__name__ for part in PARTS} == {
        one.__name__ for one in vars(record).values() if isinstance(one, type) and issubclass(one, record.Part)
    } - {"Part"}
    assert re.findall(r"^## (\w+)$", docs.schema(), re.MULTILINE) == [part.__name__ for part in PARTS]


@pytest.mark.parametrize("part", PARTS)
def test_every_field_says_what_it_is_and_when_it_is_null(part: type[record.Part]) -> None:
    for name, field in part.model_fields.items():
        meaning, null = docs.split(field.description or "")
        assert meaning, name
        assert bool(null) == (NoneType in get_args(field.annotation)), f"{part.__name__}.{name}"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("decode_tok_s", "tokens/s"),
        ("ttft_s", "s"),
        ("started_mono", "s"),
        ("weight_bytes", "bytes"),
        ("sm_clock_mhz", "MHz"),
        ("temperature_c", "°C"),
        ("status", ""),
    ],
)
def test_a_unit_is_read_from_the_name(name: str, unit: str) -> None:
    assert docs.unit(name) == unit


def test_types_are_in_the_words_of_json() -> None:
    fields = record.Request.model_fields
    assert docs.kind(fields["chunks"].annotation) == "list of [number, whole number or null]"
    assert docs.kind(fields["status"].annotation) == '`"ok"` or `"error"` or `"truncated"` or `"timeout"`'
    assert docs.kind(record.Pass.model_fields["metrics"].annotation) == "object of number or null"
