"""Blocks of the page about data."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bookhouse import baselines, measured, text
from conftest import ROOT
from recordfactory import a_record
from samebytes import record
from samebytes.pages import data


def test_every_record_is_listed_with_its_status(house: Path) -> None:
    fp8 = a_record("fp8", status="failed", reason="no", passes=[], launches=[])
    block = data.records(measured(house, [*baselines(), fp8]))
    assert "baseline.json baseline complete 9 of 9 – 2026-11-29 10:00:00" in text(block)
    assert "fp8.json fp8 failed – – –" in text(block)
    assert '<a href="../results/toy/fp8.json" download>' in block


def test_tables_and_schema_are_linked_where_they_are(house: Path) -> None:
    study = measured(house, baselines())
    assert "none; write them with samebytes summary toy" in text(data.tables([study]))
    (study.folder / "summary.csv").touch()
    assert '<a href="../results/toy/summary.csv" download>' in data.tables([study])
    assert "<a" not in data.schema_link()
    (house / "results/record.schema.json").touch()
    assert '<a href="../results/record.schema.json" download>' in data.schema_link()


def test_every_field_that_the_page_explains_is_one(house: Path) -> None:
    page = (ROOT / "book/data.md").read_text(encoding="utf-8")
    section = page.partition("## What a record holds")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_0-9]+)`", section))
    assert len(named) > 20
    known = set(re.findall(r'"([a-z_0-9]+)": \{', json.dumps(record.json_schema())))
    assert named <= known


def test_a_citation_is_there_where_the_project_has_one(house: Path) -> None:
    assert "There is no CITATION.cff" in text(data.citation())
    (house / "CITATION.cff").write_text("title: <mine>\nauthors: [{name: me}]\n")
    assert "title = {{&lt;mine&gt;}}" in data.citation()
