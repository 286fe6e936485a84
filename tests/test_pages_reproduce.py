"""Blocks of the page on how to reproduce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookhouse import IDS, measured, text
from conftest import ROOT
from recordfactory import a_record
from samebytes.pages import reproduce
from test_pages_cells import run


def test_times_and_disk_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^make (report|test) .*?(\d+) minutes on (\d+) cores, ([\d.]+) GB", readme, re.MULTILINE)
    cores = str(reproduce.CORES)
    assert found == [
        ("report", str(reproduce.REPORT_MINUTES), cores, str(reproduce.REPORT_GB)),
        ("test", str(reproduce.TEST_MINUTES), cores, str(reproduce.TEST_GB)),
    ]
    assert text(reproduce.report_cost()) == (
        f"{reproduce.REPORT_MINUTES} minutes on {cores} cores and {reproduce.REPORT_GB} GB of disk"
    )


def test_what_a_study_took_is_summed_over_its_servers(house: Path) -> None:
    block = text(reproduce.durations([measured(house, [a_record("baseline", ids=IDS), a_record("ngram", ids=IDS)])]))
    # two servers of 58 s, loading for 30 s each; 18 answers of 64 tokens
    assert "toy a cpu 2 " in block
    assert " 1.0 1,152 0.00 " in block


def test_without_records_it_says_how_to_make_some(house: Path) -> None:
    assert "samebytes study NAME" in reproduce.durations([])


def test_the_page_counts_studies_that_are_not_compared_too(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(house, [a_record("baseline", ids=IDS), a_record("fp8", ids=IDS)], name="answers")
    measured(house, [a_record("baseline", ids=IDS, note="random <weights>")], name="shape")
    page = text(run("reproduce", monkeypatch))
    assert "What each study took" in page
    assert "answers a cpu" in page
    assert "shape a cpu" in page


def test_a_study_file_is_shown_as_it_stands(house: Path) -> None:
    path = house / "studies/mine.yaml"
    path.write_text("title: <mine>\nmodel: m\nmax_tokens: 8\nruns: [{config: baseline}]\n")
    assert "title: &lt;mine&gt;" in reproduce.study_file("mine")
    assert "There is no studies/other.yaml" in text(reproduce.study_file("other"))
    assert "samebytes study mine : &lt;mine&gt;" in text(reproduce.studies())
