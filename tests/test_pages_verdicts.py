"""Blocks about same bytes: control, verdicts, and where answers part."""

from __future__ import annotations

import re
from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_launch, a_pass, a_record, answer
from samebytes import published
from samebytes.bookdata import Measured
from samebytes.pages import verdicts
from samebytes.record import Record

NASTY = "</script><script>alert(1)</script>"


def parted(house: Path) -> Measured:
    """A study with a control, a config that changes two answers, and one that changes its mind."""
    return measured(
        house,
        [
            *baselines(),
            a_record("ngram", ids=IDS, texts={"rag/0": f"the answer {NASTY}", "creative/2": "other"}),
            a_record("fp8", ids=IDS, texts={"rag/1": "once"}),
            a_record("fp8-2", "fp8", ids=IDS, launches=[a_launch("again", 1)]),
        ],
    )


def row(block: str, start: str) -> str:
    """Return what a reader sees of the table's row that starts so."""
    body = block[block.index("<tbody>") : block.index("</tbody>")]
    (found,) = [text(found) for found in re.findall(r"<tr>.*?</tr>", body) if text(found).startswith(start)]
    return found


def test_the_conclusion_has_control_and_configs(house: Path) -> None:
    said = text(verdicts.conclusion([parted(house)]))
    assert said.startswith("a cpu : the baseline repeats 9 of 9 answers byte for byte.")
    assert "ngram 7 of 9 the same, 2 differ" in said
    assert "fp8 8 of 9 the same, 1 changes from start to start" in said
    alone = measured(house, [a_record("baseline", ids=IDS)], "alone")
    assert verdicts.conclusion([alone]) == ""


def test_a_conclusion_without_a_control_says_so(house: Path) -> None:
    once = [a_record("baseline", ids=IDS), a_record("ngram", ids=IDS, texts={"rag/0": "other"})]
    said = text(verdicts.conclusion([measured(house, once)]))
    assert said.startswith("a cpu : there is no control, for no prompt was answered in two server starts")
    assert "Against it: ngram 8 of 9 the same, 1 differs without a control." in said


def test_a_control_has_its_interval_and_names_what_changes(house: Path) -> None:
    block = verdicts.control_table(measured(house, baselines(texts={"rag/1": "otherwise"})))
    assert row(block, "baseline ") == "baseline 2 8 of 9 [ 0.57 , 0.98 ] rag/1"
    alone = verdicts.control_table(measured(house, [a_record("baseline", ids=IDS)], "alone"))
    assert row(alone, "baseline ") == "baseline 1 – – no control"


def test_verdicts_are_told_by_workload_with_the_interval_of_the_share(house: Path) -> None:
    block = verdicts.verdict_table(parted(house))
    assert row(block, "ngram ").startswith(
        "ngram against baseline , started once 7 of 9 [ 0.45 , 0.94 ] 2 differ 3 of 3"
    )
    assert row(block, "fp8 ").startswith("fp8 against baseline 8 of 9 [ 0.57 , 0.98 ] 1 intermittent")


def test_a_reference_that_was_started_once_is_called_so(house: Path) -> None:
    records: list[Record] = [a_record("baseline", ids=IDS), a_record("ngram", ids=IDS, texts={"rag/0": "other"})]
    block = verdicts.verdict_table(measured(house, records))
    assert "against baseline , no control, started once" in row(block, "ngram ")


def test_the_map_has_a_cell_for_each_prompt_and_config(house: Path) -> None:
    study = parted(house)
    assert verdicts.verdict_chart(study).count('aria-roledescription="rect mark"') == 18
    rows = verdicts.verdict_rows(study)
    assert len(rows) == 18
    assert [(r["prompt"], r["character"]) for r in rows if r["config"] == "ngram" and r["character"] is not None] == [
        ("rag/0", len("the answer ")),
        ("creative/2", 0),
    ]
    assert verdicts.verdict_chart(measured(house, [a_record("baseline", ids=IDS)], "alone")) == ""


def test_where_answers_part_is_a_row_with_character_and_token(house: Path) -> None:
    block = verdicts.divergence_table(parted(house))
    assert row(block, "rag/0 ") == "rag/0 – 11 token 11"
    assert row(block, "rag/1 ") == "rag/1 0 token 0 intermittent –"
    assert "alert(1)" not in block
    same = verdicts.divergence_table(measured(house, [*baselines(), a_record("ngram", ids=IDS)], "same"))
    assert "No answer parts" in text(same)


def test_first_characters_of_free_prose_beside_the_published_ones(house: Path) -> None:
    (path,) = ROOT.glob("results/*/published.yaml")
    said = text(verdicts.first_characters([parted(house)], {"paper": published.load(path)}))
    assert "published, one RTX 5090, 32 GB : 189 , 274 , 496 , 684 , 1,208 , 1,410" in said
    assert said.endswith("a cpu : 0")


def test_load_can_change_bytes_without_any_flag(house: Path) -> None:
    first, second = baselines()
    leg = [answer(key, copy_index=i, text="crowded" if (key, i) == ("rag/0", 1) else "") for key in IDS for i in (0, 1)]
    first.passes = [*first.passes, a_pass(leg, kind="concurrent", dup=2)]
    study = measured(house, [first, second])
    assert row(verdicts.load_table(study), "baseline ") == "baseline 16 8 of 9 17 of 18"
    assert "17 of 18 answers have the bytes" in text(verdicts.load_conclusion(study))
    assert "changes words too" in text(verdicts.load_conclusion(study))
    alone = measured(house, baselines(), "alone")
    assert verdicts.load_table(alone) == verdicts.load_conclusion(alone) == ""
