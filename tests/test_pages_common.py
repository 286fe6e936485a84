"""Blocks that several pages share."""

from __future__ import annotations

from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_record, digest
from samebytes.bookdata import Measured
from samebytes.pages import common


def control(study: Measured) -> str:
    found = study.control("baseline")
    assert found is not None
    return text(common.control(study, found))


def test_a_control_that_holds_blames_the_config(house: Path) -> None:
    said = control(measured(house, baselines()))
    assert said == (
        "Control: over 2 server starts of baseline , 9 of 9 prompts gave the same bytes each time. "
        "So a difference that another config repeats is its doing."
    )


def test_a_control_that_does_not_hold_names_the_prompts(house: Path) -> None:
    said = control(measured(house, baselines(texts={"rag/1": "otherwise"})))
    assert "8 of 9 prompts" in said
    assert said.endswith("Not attributable to any config: differences in rag/1 .")


def test_one_start_is_no_control(house: Path) -> None:
    said = control(measured(house, [a_record("baseline", ids=IDS)]))
    assert said.startswith("Control: there is none.")


def test_what_the_answers_are_worth_where_they_can_be_checked(house: Path) -> None:
    study = measured(house, baselines())
    assert common.worth(study) == "", "no answer is to a prompt at hand"
    prompt = house / "workloads/rag/0.md"
    prompt.write_text("Quote.\n<passage>\nthe answer to rag/0 stands here\n</passage>\n")
    prompt.with_name("0.check.yaml").write_text("kind: quote\nmust_quote: ['the answer to rag/0']\n")
    records = baselines()
    for found in records:
        found.prompts = [
            p.model_copy(update={"sha256": digest(prompt.read_text())}) if p.id == "rag/0" else p for p in found.prompts
        ]
    said = text(common.worth(measured(house, records)))
    assert "baseline are worth: 2 of 2 did what was asked" in said
    assert "0 of 2 end in a repetition" in said
    assert said.endswith("0 of 2 were cut off at the token limit.")
