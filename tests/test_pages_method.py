"""Blocks of the page about the method."""

from __future__ import annotations

from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_record
from samebytes.pages import method


def test_differences_leave_out_the_projects_own_version(house: Path) -> None:
    other = a_record("ngram", ids=IDS, flags=["--speculative-config", "{}"])
    other.versions.git_commit = "abc"
    other.versions.torch = "2"
    block = text(method.differences(measured(house, [*baselines(), other])))
    assert "ngram argv --speculative-config – {}" in block
    assert "ngram versions torch – 2" in block
    assert "abc" not in block
