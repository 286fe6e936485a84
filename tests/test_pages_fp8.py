"""Blocks of the page about the FP8 KV cache."""

from __future__ import annotations

from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_launch, a_pass, a_record, answer
from samebytes import published
from samebytes.pages import fp8
from samebytes.record import Record


def roomy(**changes: object) -> Record:
    """A run with twice the baseline's pool and two other answers."""
    launch = a_launch("fp8", kv_cache_tokens=2000, **changes)
    return a_record("fp8", ids=IDS, launches=[launch], texts={"rag/0": "other", "creative/0": "other"})


def test_the_conclusion_weighs_room_against_words(house: Path) -> None:
    said = text(fp8.conclusion(measured(house, [*baselines(), roomy()])))
    assert said.startswith("a cpu : 2.00 × the tokens in the KV pool; answers: 7 of 9 the same, 2 differ.")
    assert "Many requests" not in said, "no leg, no figure"


def test_a_cache_that_the_engine_refuses_is_a_result(house: Path) -> None:
    refused = a_record("fp8", status="failed", reason="needs <AVX-512>", passes=[], launches=[])
    study = measured(house, [*baselines(), refused])
    assert text(fp8.conclusion(study)) == "a cpu : it does not run: needs &lt;AVX-512&gt;"
    assert fp8.trade([study]) == ""
    assert fp8.conclusion(measured(house, baselines(), "none")) == ""


def test_room_and_words_are_a_mark_each(house: Path) -> None:
    study = measured(house, [*baselines(), roomy(), a_record("ngram", ids=IDS)])
    rows = fp8.trade_rows([study])
    assert [(row["config"], row["room"], row["same"], row["judged"]) for row in rows] == [
        ("ngram", 1.0, 9, 9),
        ("fp8", 2.0, 7, 9),
    ]
    assert fp8.trade([study]).count('aria-roledescription="point"') == 2


def test_what_was_published_stands_apart_as_printed() -> None:
    (path,) = ROOT.glob("results/*/published.yaml")
    said = text(fp8.published(published.load(path)))
    assert "from 33,760 to 65,536 tokens, 12 ( 14 by its other figures) of 24 answers kept" in said
    assert said.endswith("from 635.9 to 656 tok/s.")


def test_kernels_are_named_where_the_flag_changed_them_too(house: Path) -> None:
    first, second = baselines()
    for found in (first, second):
        found.launches[0].attention_backend = "A"
    other = measured(house, [first, second, roomy(attention_backend="B <x>")])
    assert "the baseline ran A and fp8 ran B &lt;x&gt;" in text(fp8.backends(other))
    assert "B &lt;x&gt;" in fp8.room_table(other)
    same = measured(house, [first, second, roomy(attention_backend="A")], "same")
    assert "both configs ran A" in text(fp8.backends(same))
    assert "does not tell" in text(fp8.backends(measured(house, [*baselines(), roomy()], "mute")))


def test_room_under_load(house: Path) -> None:
    def study(name: str, preemptions: float) -> str:
        first, second = baselines()
        leg = a_pass([answer(key) for key in IDS], kind="concurrent", peak_kv_usage=0.5)
        leg.metrics["preemptions"] = preemptions
        first.passes = [*first.passes, leg]
        found = measured(house, [first, second], name)
        assert "baseline 16 9 of 9" in text(fp8.load_table(found))
        return text(fp8.load_conclusion(found))

    assert "at most 50.0 % full; preemptions: 0 . So room was never short" in study("calm", 0.0)
    assert "So room was short" in study("tight", 3.0)
    alone = measured(house, baselines(), "alone")
    assert fp8.load_table(alone) == fp8.load_conclusion(alone) == ""
