"""What the article is computed from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bookhouse import baselines, measured, text
from recordfactory import a_record
from samebytes import bookdata, summary
from samebytes.errors import RecordError
from samebytes.pages import common, index


def test_studies_are_those_with_records_on_a_gpu_first_and_this_machine_apart(house: Path) -> None:
    with_gpu = a_record("baseline").machine.model_copy(update={"gpu": "a card"})
    measured(house, [a_record("baseline")], "a-cpu")
    measured(house, [a_record("baseline", machine=with_gpu)], "b-gpu")
    measured(house, [a_record("baseline")], bookdata.THIS_MACHINE)
    (house / "results/published-only").mkdir()
    (house / "results/published-only/summary.json").write_text("{}")
    assert [study.name for study in bookdata.studies()] == ["b-gpu", "a-cpu"]
    assert [study.name for study in common.everything()] == ["b-gpu", "a-cpu", "quick"]
    here = bookdata.this_machine()
    assert here is not None
    assert text(index.this_machine(here)).startswith("quick # some/model on a cpu")


def test_studies_on_machines_of_one_name_are_told_apart_by_their_own(house: Path) -> None:
    warned = a_record("baseline").model_copy(update={"note": "random weights"})
    for name, found in (("one", a_record("baseline")), ("warned", warned)):
        measured(house, [found], name)
    assert {study.name: study.where for study in bookdata.studies()} == {"one": "a cpu", "warned": "a cpu"}
    measured(house, [a_record("baseline")], "two")
    one, two, _ = bookdata.studies()
    assert [text(common.machine(study)) for study in (one, two)] == ["a cpu (one)", "a cpu (two)"]
    shutil.rmtree(house / "results/two")
    measured(house, [a_record("baseline")], bookdata.THIS_MACHINE)
    assert [study.where for study in common.everything()] == ["a cpu (one)", "a cpu", "a cpu (quick)"]


def test_a_record_that_cannot_be_read_stops_the_page(house: Path) -> None:
    measured(house, baselines())
    (house / "results/toy/ngram.json").write_text('{"schema": 99}')
    with pytest.raises(RecordError, match="schema 99"):
        bookdata.studies()


def test_without_records_the_page_says_how_to_measure(house: Path) -> None:
    assert bookdata.studies() == []
    assert text(common.nothing_measured()).endswith("samebytes study NAME .")
    assert text(index.this_machine(bookdata.this_machine())).endswith("make report .")


def test_a_study_is_computed_once_until_something_that_it_depends_on_changes(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Path] = []
    build = summary.build
    monkeypatch.setattr(summary, "build", lambda folder: computed.append(folder) or build(folder))
    first = measured(house, baselines())
    assert bookdata.measured("toy") == first
    assert len(computed) == 1
    measured(house, baselines(), "another")
    assert bookdata.measured("toy") == first
    assert len(computed) == 2
    changed = measured(house, baselines(rate=33.0))
    assert changed != first
    (house / "workloads/rag/one.md").write_text("Another prompt.\n")
    bookdata.measured("toy")
    assert len(computed) == 4


@pytest.mark.parametrize("damage", [lambda kept: kept[:-9], lambda kept: b"", lambda kept: b"key\n" + kept])
def test_what_was_kept_and_is_damaged_is_computed_again(house: Path, damage: Callable[[bytes], bytes]) -> None:
    first = measured(house, baselines())
    kept = house / "_build/studies/toy.pickle"
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert bookdata.measured("toy") == first
    assert kept.read_bytes() == whole
