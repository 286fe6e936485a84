"""Blocks of the first page."""

from __future__ import annotations

import re
from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_record, failed
from samebytes import published
from samebytes.pages import index


def test_the_headline_tells_speed_and_bytes(house: Path) -> None:
    slow = {f"creative/{i}": 8.0 + i / 100 for i in range(3)}
    unclear = {"rag/0": 5.0, "rag/1": 40.0, "rag/2": 9.0}
    ngram = a_record("ngram", ids=IDS, rate=20.0, rates=slow | unclear, texts={"creative/0": "other words"})
    said = text(index.headline(measured(house, [*baselines(), ngram])))
    assert "code edits 2.00 × [ 2.00 , 2.00 ] (speed-up)" in said
    assert re.search(r"quoting a passage \S+ × \[ \S+ , \S+ \] \(no clear change\)", said)
    assert "free prose 0.80 × [ 0.80 , 0.80 ] (slow-down)" in said
    assert said.endswith("Answers against baseline : 8 of 9 the same, 1 differ.")


def test_a_failed_request_is_not_counted_as_answered(house: Path) -> None:
    ngram = a_record("ngram", ids=IDS, replace={"rag/0": failed("rag/0")})
    said = text(index.headline(measured(house, [*baselines(), ngram])))
    assert said.endswith("8 of 9 the same, 1 were not answered.")


def test_published_figures_stand_as_printed_and_those_that_do_not_follow_are_named() -> None:
    (found,) = [published.load(path) for path in ROOT.glob("results/*/published.yaml")]
    said = text(index.published(found))
    assert "ngram 349.8 4.65 × 181 2.41 × 71.9 0.95 × – – 18 of 24" in said
    assert "fp8 76.1 76.1 76.7 656 65,536 12 of 24" in said
    assert "not measured by this project" in said
    bad = [check.id for check in found.checks() if not check.consistent]
    assert bad
    assert all(f"{name} is printed as" in said for name in bad)


def test_configs_are_listed_with_their_reasons(house: Path) -> None:
    assert "the reason for &lt;fp8&gt;" in index.configs()
