"""Blocks of the page about another machine."""

from __future__ import annotations

import json
from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_record
from samebytes import bookdata, paths
from samebytes.pages import changes
from samebytes.record import MachineInfo, ModelInfo, Record, Versions

CARD = MachineInfo(gpu="a <card>", cpu="a cpu", cpu_cores=2, memory_bytes=2**33)


def on_a_card(label: str, config: str | None = None, **changed: object) -> Record:
    versions = Versions(vllm="0.40.0", samebytes="0", client_python="3.11", openai="2.34")
    given = {"ids": IDS, "machine": CARD, "versions": versions} | changed
    return a_record(label, config, **given)  # type: ignore[arg-type]


def two(house: Path) -> str:
    measured(house, [*baselines(), a_record("ngram", ids=IDS, rate=20.0)], "here")
    there = [
        on_a_card("baseline", texts={"rag/0": "<b>another</b>"}, rate=40.0),
        on_a_card("ngram", rate=40.0, texts={"rag/0": "<b>another</b>"}),
    ]
    measured(house, there, "there")
    (pair,) = changes.blocks(bookdata.studies())
    parts = (
        pair.lead(),
        pair.bytes(),
        pair.prompts(),
        pair.speeds(),
        pair.effects(),
        pair.memory(),
        pair.differences(),
    )
    return "".join(parts)


def test_a_pair_of_studies_is_read_from_the_cpu_to_the_card(house: Path) -> None:
    block = text(two(house))
    assert block.startswith("A is here : some/model on a cpu")
    assert ". B is there : some/model on a &lt;card&gt;" in block
    assert "With no flag at all, 8 of 9 answers came out the same on a &lt;card&gt; as on a cpu ; 0 more are" in block
    assert "On a cpu alone, these keep the bytes of the baseline: ngram 9 of 9 ." in block
    assert "On a &lt;card&gt; alone, these keep the bytes of the baseline: ngram 9 of 9 (no control)." in block
    assert "rag/0 differs, 0 differs (no control), 0" in block
    assert "vllm versions 0.32.0 0.40.0 all" in block
    assert "gpu machine – a &lt;card&gt; all" in block


def test_speeds_and_gains_stand_with_their_ratios(house: Path) -> None:
    block = text(two(house))
    assert "baseline code edits 10.0 40.0 4.00 × [ 4.00 , 4.00 ] 1.00 × faster" in block
    assert "ngram baseline code edits 2.00 × [ 2.00 , 2.00 ] 1.00 × [ 1.00 , 1.00 ] 0.50 ×" in block
    assert "gains less" in block


def test_each_table_has_its_data_under_a_name_of_the_pair(house: Path) -> None:
    block = two(house)
    (path,) = paths.exhibits().glob("changes-bytes-here-there.*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [(row["config"], row["same"], row["differs"]) for row in rows] == [("baseline", 8, 1), ("ngram", 8, 0)]
    assert block.count("<figure") == 6
    assert "samebytes diff here there" in text(block)


def test_pairs_of_one_machine_are_told_apart_by_their_studies(house: Path) -> None:
    for name, rate in (("one", 20.0), ("three", 21.0), ("two", 22.0)):
        measured(house, [*baselines(), a_record("ngram", ids=IDS, rate=rate)], name)
    found = changes.blocks(bookdata.studies())
    headings = [pair.heading("bytes") for pair in found]
    assert [text(heading) for heading in headings] == [
        "one (A) and three (B) #",
        "one (A) and two (B) #",
        "three (A) and two (B) #",
    ]
    assert 'id="bytes-one-two"' in headings[1]
    for pair, ends in zip(
        found, ("A is one , B is three .", "A is one , B is two .", "A is three , B is two ."), strict=True
    ):
        for block in (pair.bytes(), pair.prompts(), pair.speeds(), pair.effects()):
            assert text(block.split("</figcaption>")[0]).endswith(ends)


def test_what_does_not_differ_is_no_empty_table(house: Path) -> None:
    for name, rate in (("one", 10.0), ("two", 11.0)):
        measured(house, baselines(rate=rate), name)
    (pair,) = changes.blocks(bookdata.studies())
    assert text(pair.differences()).startswith("Nothing: the first runs of both have the same machine")
    assert text(pair.effects()).startswith("Nothing to compare")
    assert "<table" not in pair.differences() + pair.effects()


def test_studies_that_share_no_model_or_no_prompt_are_no_pair(house: Path) -> None:
    measured(house, baselines(), "here")
    other = ModelInfo(id="another/model")
    measured(house, [on_a_card("baseline", model=other)], "other-model")
    measured(house, [on_a_card("baseline", ids=["rag/9"])], "other-prompts")
    assert changes.blocks(bookdata.studies()) == []
