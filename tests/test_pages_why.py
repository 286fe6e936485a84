"""Blocks of the page that says why the bytes differ, and the notebook's tables of the same."""

from __future__ import annotations

import html
import json
import re
import struct
from pathlib import Path

import pytest

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from probefactory import a_probe, close, save
from recordfactory import a_record
from samebytes import margins, markdown, probe
from samebytes.bookdata import Measured
from samebytes.pages import why
from samebytes.record import Record

AT = 4
E, R = ord("a"), ord("R")
"""The token of the baseline at that place ("the answer ..."), and the one of the config."""


def changed(label: str, keys: list[str], config: str | None = None, **changes: object) -> Record:
    """Return a run whose answers to some prompts part at token `AT`."""
    texts = {key: f"the RRR to {key}" for key in keys}
    return a_record(label, config, ids=IDS, texts=texts, **changes)  # type: ignore[arg-type]


def probed(house: Path) -> Measured:
    """A study with a tie, a push, a real change and a prompt whose probe strays."""
    keys = ["creative/0", "creative/1", "creative/2", "rag/0"]
    first, second = baselines()
    ngram = changed("ngram", keys)
    study = measured(house, [first, second, ngram])
    leads = {"creative/0": (0.125, 0.125), "creative/1": (0.5, 0.25), "creative/2": (4.0, 4.0), "rag/0": (0.125, 0.0)}
    ours = {key: {AT: close(E, R, lead)} for key, (lead, _) in leads.items()}
    theirs = {key: {AT: close(R, E, lead)} for key, (_, lead) in leads.items()}
    save(a_probe(first, ours, moved=0.125), study.folder)
    save(a_probe(second, ours), study.folder)
    candidate = a_probe(ngram, theirs, lead=9.0)
    candidate.prompts[IDS.index("rag/0")].reproduces_until = 2
    save(candidate, study.folder)
    return study


def test_without_a_probe_it_says_how_to_make_one(house: Path) -> None:
    study = measured(house, [*baselines(), changed("ngram", ["rag/0"])])
    assert why.explanations(study) == []
    block = why.answer(study, [])
    assert "toy has not been probed yet" in text(block)
    assert "samebytes probe toy baseline --copies 6" in text(block)


def test_every_difference_has_a_verdict(house: Path) -> None:
    study = probed(house)
    (e,) = why.explanations(study)
    shown = {d.id: d.verdict for d in e.found.divergences}
    assert shown == {
        "creative/0": "tie broken by rounding",
        "creative/1": "pushed over by this config",
        "creative/2": "a real change",
        "rag/0": "probe does not reproduce",
    }
    assert "ngram 4 of 9 0 1 1 1 0 1" in text(why.verdicts(study, [e]))
    said = html.unescape(text(why.answer(study, [e])))
    assert "ngram : 4 of 9 answers part from the baseline’s, where rounding alone should part 0.5 ; the probes" in said
    assert "the probes reproduced 3 of these." in said
    assert (
        "1 of 3 were ties that rounding can break ( 1 pushed over by this config, 1 a real change): the explanation "
        "did not hold for most." in said
    )
    assert "code edits 0.0 %, quoting a passage 1.8 %, free prose 1.4 %" in said
    assert "Against free prose, only code edits has fewer close calls" in said
    assert "Words changed not in free prose alone, against what the article says: code edits 0 of 3 , quoting" in said
    lead = "near-ties within the reach of rounding account for 1 of 3 on a cpu ."
    assert text(why.conclusion([[e], []])) == f"Of the differences that n-gram speculation makes, {lead}"
    assert "Another start of the same server moves 0 of 204 gaps: without a flag" in said


def test_the_steps_of_a_bfloat16() -> None:
    assert text(why.spacing()) == "0.0625 from 8 on, 0.1250 from 16 on, 0.2500 from 32 on"
    for size in (8, 16, 32):
        (bits,) = struct.unpack("<I", struct.pack("<f", size))  # a bfloat16 is the upper half of a float
        (following,) = struct.unpack("<f", struct.pack("<I", bits + 2**16))
        assert margins.step(size, why.BFLOAT16) == following - size


def test_what_is_no_tie_is_defined_by_the_yardstick_too() -> None:
    for verdict in ("pushed over by this config", "a real change"):
        assert f"{verdict} a margin is beyond the yardstick" in text(why.meanings())


def test_no_word_of_the_page_comes_before_its_meaning() -> None:
    page = (ROOT / "book/why.md").read_text(encoding="utf-8")
    answer = page.index("why.answer(")
    for word in ("*probe*", "*gap*", "*copies*", "*yardstick*", "(what-a-probe-measures)"):
        assert -1 < page.find(word) < answer


def test_the_table_shows_both_tokens_and_escapes_them(house: Path) -> None:
    study = probed(house)
    vocabulary = {"model": "m", "special": [], "text": {str(E): "<b>", str(R): "a|b\n"}, "bytes": {}}
    (study.folder / "tokens.json").write_text(json.dumps(vocabulary))
    (e,) = why.explanations(study)
    block = why.differences(study, e)
    assert "<b>" not in block
    assert "creative/0 4 '&lt;b&gt;' 'a|b\\n' tie broken by rounding 0.125 0.125 0.250 1.000" in text(block).replace(
        "&#x27;", "'"
    )
    assert "rag/0 4 – – probe does not reproduce – – – – –" in text(block)
    shown = markdown.divergence(e, probe.speller(study.folder))
    assert "| creative/0 | 4 | '<b>' | 'a\\|b\\n' | tie broken by rounding | 0.125 | 0.125 | 0.250 | 1.000 |" in shown
    assert "ngram against baseline in toy: 4 answers part: tie broken by rounding 1" in shown
    assert "| another server start |" in shown


def test_the_moves_and_the_margins(house: Path) -> None:
    study = probed(house)
    found = why.explanations(study)
    moves = text(why.yardstick(study, found))
    assert "1 copies at once" in moves
    assert "0.0 % 0.125 0.125 0.125 0 of 9" in moves
    assert "another start of the same server" in moves
    assert "100.0 % 0.000 0.000 0.000 0 of 9" in moves
    table = text(why.workloads(study, found))
    assert "free prose 72 0.00 % 1.4 % 10.00 10.00 10.00 0.2 3 of 3" in table


def test_the_chart_marks_each_reproduced_difference_on_its_curve(house: Path) -> None:
    study = probed(house)
    block = why.margins_chart(study, why.explanations(study))
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)[1])  # type: ignore[index]
    rows = [row for data in spec["datasets"].values() for row in data]
    marks = [row for row in rows if row.get("answers")]
    assert [(m["prompts"], m["answers"], m["margin"]) for m in marks] == [("0", 1, 0.125), ("1", 1, 0.5), ("2", 1, 4.0)]
    curve = {row["margin"]: row["share"] for row in rows if row.get("workload") == "creative" and "answers" not in row}
    assert all(mark["share"] == curve[mark["margin"]] for mark in marks)
    assert [row for row in rows if "yardstick" in row] == [{"yardstick": 0.125}]


@pytest.mark.parametrize(
    ("ties", "reproduced", "said"),
    [
        (0, 0, "could not be tested"),
        (3, 3, "held for every one"),
        (2, 3, "held for most"),
        (1, 2, "did not hold for most"),
        (0, 2, "held for none"),
    ],
)
def test_how_far_the_explanation_held(ties: int, reproduced: int, said: str) -> None:
    assert why.held(ties, reproduced) == said


def test_equal_answers_leave_nothing_to_explain(house: Path) -> None:
    first, second = baselines()
    ngram = a_record("ngram", ids=IDS)
    study = measured(house, [first, second, ngram])
    save(a_probe(first), study.folder)
    save(a_probe(ngram), study.folder)
    (e,) = why.explanations(study)
    said = text(why.answer(study, [e]))
    assert (
        "ngram : all 9 answers have the baseline’s tokens, so there is nothing to explain; 0 of 204 gaps moved" in said
    )
    assert "to the bit" in said
    assert why.conclusion([[e]]) == why.conclusion([[]]) == ""
    assert "so there is no yardstick for what is close" in said
    assert why.differences(study, e) == ""


# -- the intervention --------------------------------------------------------------------------------------------------


def switched(house: Path, usual: list[str], kept: list[str], kernels: list[str]) -> Measured:
    """Return a study in which speculation changes ``usual``, with the switch ``kept``, and the switch ``kernels``."""
    env = {"VLLM_BATCH_INVARIANT": "1"}
    invariant = changed("baseline_batch_invariant", kernels, env=env, rate=5.0)
    speculating = changed("ngram_batch_invariant", [*kernels, *kept], env=env)
    runs = [a_record("baseline_sync", ids=IDS), changed("ngram", usual), invariant, speculating]
    return measured(house, [*baselines(), *runs])


def test_where_nothing_changed_the_switch_proves_nothing(house: Path) -> None:
    study = switched(house, [], [], ["rag/0", "rag/1"])
    said = text(why.outcome([study]))
    assert "9 of 9 answers keep their bytes with the usual kernels, and 9 of 9 with batch-invariant ones" in said
    assert "the switch had nothing to take away" in said
    assert "leaves 7 of 9 answers as they were" in said
    assert "a decode throughput of 0.50 × [ 0.50 , 0.50 ] that of baseline_sync" in said
    assert "ngram_batch_invariant baseline_batch_invariant 9 of 9 [ 70 , 100 ]" in text(why.intervention([study]))


def test_where_the_differences_vanish_the_order_did_it(house: Path) -> None:
    said = text(why.outcome([switched(house, ["rag/0"], [], [])]))
    assert "With the switch the differences are gone: the order of the sums did it." in said
    assert "The switch itself" not in said


def test_where_differences_are_left_the_switch_does_not_cover_them(house: Path) -> None:
    said = text(why.outcome([switched(house, ["rag/0", "rag/1"], ["rag/0"], [])]))
    assert "With the switch differences are left" in said


def test_without_the_switch_nothing_was_intervened_upon(house: Path) -> None:
    study = measured(house, [*baselines(), a_record("baseline_sync", ids=IDS), changed("ngram", ["rag/0"])])
    assert "8 of 9 answers keep their bytes" in text(why.outcome([study]))
    assert "nothing was intervened upon" in text(why.outcome([study]))
    assert why.outcome([measured(house, baselines(), name="other")]) == ""
