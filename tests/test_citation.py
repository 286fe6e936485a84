"""How to cite: a valid citation file, and its BibTeX."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from conftest import ROOT
from samebytes import __version__, citation
from samebytes.errors import UsageError

SCHEMA = json.loads((ROOT / "tests" / "fixtures" / "cff-1.2.0.schema.json").read_text(encoding="utf-8"))
"""The Citation File Format's own, version 1.2.0, as cffconvert 2.0.0 brings it."""
CITED = citation.load(ROOT)


def problems(cited: dict[str, object]) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(cited)]


def test_the_citation_file_is_valid_and_of_this_version() -> None:
    assert problems(CITED) == []
    assert problems({**CITED, "authors": []}) != [], "the schema finds what is wrong"
    assert (CITED["version"], CITED["license"]) == (__version__, "MIT")


def test_the_licences_of_code_and_data_are_stated() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License")
    assert "results/ and the prompts in workloads/" in text
    assert "CC-BY-4.0" in text


def test_bibtex_keeps_the_authors_together_and_the_titles_capitals() -> None:
    assert citation.bibtex(CITED) == (
        "@misc{samebytes,\n"
        "  author = {{The samebytes authors}},\n"
        "  title = {{samebytes: what a serving flag does to a language model's speed and to its output bytes}},\n"
        f"  version = {{{__version__}}},\n"
        "}\n"
    )


def test_bibtex_of_people_with_a_date_and_a_place() -> None:
    cited = {
        "title": "T",
        "authors": [{"family-names": "Roe", "given-names": "Ann"}, {"family-names": "Li"}],
        "date-released": "2027-02-03",
        "doi": "10.5281/zenodo.1",
    }
    assert citation.bibtex(cited, "https://example.org/x") == (
        "@misc{samebytes,\n  author = {Roe, Ann and Li},\n  title = {{T}},\n  year = {2027},\n"
        "  doi = {10.5281/zenodo.1},\n  url = {https://example.org/x},\n}\n"
    )


@pytest.mark.parametrize(("text", "words"), [(None, "no CITATION.cff"), ("title: T\n", "needs authors and a title")])
def test_a_citation_file_that_says_too_little_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / citation.FILE).write_text(text)
        assert yaml.safe_load(text)
    with pytest.raises(UsageError, match=words):
        citation.load(tmp_path)
