"""Blocks of the page about data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import probefactory
import profilefactory
from bookhouse import baselines, measured, text
from conftest import ROOT
from recordfactory import a_record
from samebytes import analysis, bookdata, paths, record
from samebytes.pages import data


def test_every_record_is_listed_with_its_status(house: Path) -> None:
    fp8 = a_record("fp8", status="failed", reason="no", passes=[], launches=[])
    block = data.records(measured(house, [*baselines(), fp8]))
    assert "baseline.json baseline complete 9 of 9 – 2026-11-29 10:00:00" in text(block)
    assert "fp8.json fp8 failed – – –" in text(block)
    assert '<a href="../results/toy/fp8.json" download>' in block


def test_probes_and_profiles_are_linked_where_they_are(house: Path) -> None:
    runs = baselines()
    study = measured(house, runs)
    assert text(data.beside([study], "probes")) == "There are no probes yet."
    probefactory.save(probefactory.a_probe(runs[0]), study.folder)
    profilefactory.keep(house, profilefactory.a_profile("fp8"))
    (study.folder / "probes" / ".baseline.json.tmp").touch()
    probes, profiles = data.beside([study], "probes"), data.beside([study], "profiles")
    assert re.findall('href="([^"]+)" download', probes) == ["../results/toy/probes/baseline.json"]
    assert re.findall('href="([^"]+)" download', profiles) == ["../results/toy/profiles/fp8.json"]


def test_every_committed_file_of_measurements_is_on_the_page() -> None:
    everything = bookdata.studies()
    blocks = [data.beside(everything, "probes"), data.beside(everything, "profiles")]
    blocks += [data.records(study) for study in everything]
    linked = set(re.findall(r'href="\.\./(results/[^"]+)" download', "".join(blocks)))
    folders = [paths.results() / study.name for study in everything]
    found = {p.relative_to(paths.root()).as_posix() for folder in folders for p in folder.rglob("*.json")}
    assert found - linked == {p for p in found if Path(p).name in analysis.DERIVED}


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


@pytest.mark.slow
def test_the_pdf_is_linked_where_there_is_one(built: Path, published: Path) -> None:
    assert (published / "samebytes.pdf").is_file()
    assert '<a href="../samebytes.pdf">one PDF</a>' in (published / "book" / "data.html").read_text(encoding="utf-8")
    assert "samebytes.pdf" not in (built / "book" / "data.html").read_text(encoding="utf-8")
