"""The divergence explorer: which answers are put side by side, and that their texts get onto the page as they are."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_record, answer, digest, failed
from samebytes import tokens
from samebytes.bookdata import Measured
from samebytes.pages import explorer
from samebytes.record import Record

HOSTILE = "\n<script>alert(1)</script> {{ secret }} {glue:}`level` `` </pre> <data> &amp; \r\n\t naïve 🙂"


def differing(**texts: str) -> list[Record]:
    """Return two baselines and two runs of a config whose answers to ``rag/0`` are these."""
    runs = [a_record(f"fp8{suffix}", "fp8", ids=IDS, texts={"rag/0": said}) for suffix, said in texts.items()]
    return [*baselines(), *runs]


def content(block: str) -> list[dict[str, Any]]:
    """Return what the script is given beside the texts."""
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)
    return list(json.loads(found))


def relation(study: Measured, reference: str, config: str, prompt: str = "rag/0") -> dict[str, Any]:
    (index,) = content(explorer.explorer([study]))
    (pair,) = [p for p in index["pairs"] if (p["reference"], p["config"]) == (reference, config)]
    return dict(pair["prompts"][prompt])


def texts(block: str) -> dict[tuple[str, ...], str]:
    """Return the texts on the page, by study, prompt, answer and part, as a browser reads them."""
    found = {}
    for attributes, body in re.findall(r'<pre tabindex="0"((?: data-\w+="[^"]*")+)>\n(.*?)</pre>', block, re.DOTALL):
        assert "\r" not in body, "a parser would make a line break of it"
        key = tuple(re.findall(r'="([^"]*)"', attributes))
        found[key] = html.unescape(re.sub(r"</?mark>", "", body).replace("&#13;", "\r"))
    return found


# -- what is compared -------------------------------------------------------------------------------------------------


def test_the_first_difference_is_the_comparisons(house: Path) -> None:
    study = measured(house, differing(a="the answer to räg/0", b="the answer to räg/0"))
    found = relation(study, "baseline", "fp8")
    assert found["verdict"] == "differs"
    (side,) = found["sides"]
    assert (side["a"], side["b"]) == (0, 1)
    assert (side["char"], side["byte"], side["token"], side["part"]) == (15, 15, 15, "text")
    assert relation(study, "baseline", "fp8", "rag/1") == {"verdict": "same bytes", "sides": [{"a": 0, "b": 0}]}


def test_a_config_that_does_not_repeat_itself_shows_both_answers(house: Path) -> None:
    study = measured(house, differing(a="the answer to rag/0", b="another"))
    found = relation(study, "baseline", "fp8")
    assert found["verdict"] == "intermittent"
    assert [(side["a"], side["b"], side.get("char")) for side in found["sides"]] == [(0, 1, 0), (0, 0, None)]
    itself = relation(study, "fp8", "fp8")
    assert (itself["verdict"], [(side["a"], side["b"]) for side in itself["sides"]]) == ("differs", [(0, 1)])
    assert relation(study, "baseline", "baseline")["verdict"] == "same bytes"


def test_verdicts_have_their_names(house: Path) -> None:
    replace = {
        "rag/1": answer("rag/1", token_ids=[1, 2, 3]),
        "rag/2": failed("rag/2"),
        "creative/0": answer("creative/0", "the answer"),
    }
    study = measured(house, [*baselines(), a_record("fp8", ids=IDS, replace=replace)])
    verdicts = {key: relation(study, "baseline", "fp8", key)["verdict"] for key in IDS}
    assert verdicts == dict.fromkeys(IDS, "same bytes") | {
        "rag/1": "same bytes, other tokens",
        "rag/2": "not answered",
        "creative/0": "differs in length",
    }
    assert relation(study, "baseline", "fp8", "rag/2")["sides"] == []


@pytest.mark.parametrize(("count", "verdict"), [(1, "differs, no control"), (2, "not attributable")])
def test_without_a_control_that_holds_nothing_is_the_configs_doing(house: Path, count: int, verdict: str) -> None:
    runs = baselines(texts={"rag/0": "otherwise"})[:count]
    study = measured(house, [*runs, a_record("fp8", ids=IDS, texts={"rag/0": "again otherwise"})])
    assert relation(study, "baseline", "fp8")["verdict"] == verdict


def test_the_tokens_at_the_difference_are_named_where_they_are_known(house: Path) -> None:
    records = differing(a="the answer")
    assert relation(measured(house, records), "baseline", "fp8")["sides"][0].get("tokens") is None
    vocabulary = tokens.Vocabulary({ord(c): c.encode() for c in "the answr o g/0"}, frozenset())
    (house / "results/toy" / tokens.FILE).write_text(tokens.to_json(vocabulary, vocabulary.spelt))
    assert relation(measured(house, records), "baseline", "fp8")["sides"][0]["tokens"] == [" ", ""]


def test_reasoning_is_compared_and_shown_apart(house: Path) -> None:
    thinking = answer("rag/0", reasoning="hmm <b>")
    study = measured(house, [*baselines(), a_record("fp8", ids=IDS, replace={"rag/0": thinking})])
    side = relation(study, "baseline", "fp8")["sides"][0]
    assert (side["part"], side["char"], side["a"], side["b"]) == ("reasoning", 0, 0, 1)
    shown = texts(explorer.explorer([study]))
    assert shown["toy", "rag/0", "1", "reasoning"] == "hmm <b>"
    assert shown["toy", "rag/0", "1", "text"] == shown["toy", "rag/0", "0", "text"]


# -- the texts --------------------------------------------------------------------------------------------------------


def test_hostile_texts_stand_on_the_page_as_text(house: Path) -> None:
    block = explorer.explorer([measured(house, differing(a=HOSTILE))])
    shown = texts(block)
    assert shown["toy", "rag/0", "1", "text"] == HOSTILE
    assert block.count("<script") == block.count("</script") == 1
    assert block.count("<pre") == block.count("</pre") == len(shown)
    assert "<data>" not in block


def test_each_distinct_answer_stands_once_with_its_runs(house: Path) -> None:
    block = explorer.explorer([measured(house, differing(a="other", b="other"))])
    assert [key for key in texts(block) if key[1] == "rag/0"] == [("toy", "rag/0", str(i), "text") for i in (0, 1)]
    assert "<p><code>fp8a</code>, <code>fp8b</code></p>" in block
    assert "rag/0 : 2 answers" in text(block)
    assert "rag/1 : 1 answer " in text(block)


def test_the_first_difference_is_marked_without_a_script(house: Path) -> None:
    block = explorer.explorer([measured(house, differing(a="the answer to räg/0"))])
    assert "the answer to r<mark>ä</mark>g/0" in block
    shorter = explorer.explorer([measured(house, differing(a="the answer"))])
    assert "the answer<mark>∎</mark>" in shorter


def test_what_no_file_can_hold_is_replaced(house: Path) -> None:
    assert "a?b" in explorer._preformatted("a\ud800b")


def test_the_table_has_every_divergence_from_the_first_reference(house: Path) -> None:
    block = explorer.explorer([measured(house, differing(a="the answer to rug/0", b="the answer to rug/0"))])
    (table,) = re.findall(r"<table>(.*?)</table>", block, re.DOTALL)
    assert table.count("<tr>") == 2
    assert "rag/0 fp8 differs 15 15 15 the answer to rag/0 the answer to rug/0" in text(table)
    same = explorer.explorer([measured(house, baselines(), "same")])
    assert "No answer differs" in same


def test_the_prompts_are_shown_where_the_runs_sent_them(house: Path) -> None:
    runs = baselines()
    assert "A prompt." not in explorer.explorer([measured(house, runs)])
    sent = digest((house / "workloads/rag/one.md").read_text())
    for run in runs:
        run.prompts = [p.model_copy(update={"sha256": sent}) if p.id == "rag/0" else p for p in run.prompts]
    block = explorer.explorer([measured(house, runs)])
    assert texts(block)[sent,] == "A prompt."
    assert [prompt["id"] for prompt in content(block)[0]["prompts"] if prompt["sha256"] == sent] == ["rag/0"]


def test_the_answers_of_a_study_too_large_for_the_page_are_in_a_file(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = measured(house, baselines(), "small"), measured(house, differing(a=HOSTILE), "large")
    monkeypatch.setattr(explorer, "BUDGET", explorer.view(small).size)
    block = explorer.explorer([large, small])
    assert [index.get("data") for index in content(block)] == ["../exhibits/answers-large.json", None]
    assert {key[0] for key in texts(block) if len(key) > 1} == {"small"}
    assert '<figure class="exhibit interactive" id="answers-large"' in block
    (path,) = (house / "_build/exhibits").glob("answers-large.*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == len(IDS) + 1
    assert {"study": "large", "prompt": "rag/0", "answer": 1, "text": HOSTILE, "reasoning": ""} in rows
    assert "rag/0 fp8a" not in text(block)
    assert "fp8 differs" in text(block), "the table of divergences is on the page all the same"


def test_without_answers_there_is_nothing_to_compare(house: Path) -> None:
    failed_only = measured(house, [a_record("baseline", status="failed", reason="no", passes=[], launches=[])])
    assert text(explorer.explorer([failed_only])) == "There are no answers to compare."
    random = measured(house, [a_record("baseline", note="random weights")], "random")
    assert text(explorer.explorer([random])) == "There are no answers to compare."
    assert text(explorer.explorer([])) == "There are no answers to compare."


def test_the_data_have_a_row_per_pair_and_prompt(house: Path) -> None:
    explorer.explorer([measured(house, differing(a="other"))])
    (path,) = (house / "_build/exhibits").glob("answers.*.json")
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 2 * len(IDS), "fp8 against baseline, and baseline's own repeats"
    (row,) = [row for row in rows if row["prompt"] == "rag/0" and row["config"] == "fp8"]
    assert (row["verdict"], row["char_index"], row["context_config"]) == ("differs", 0, "other")
