"""Blocks of the page about room: pools, conversations that fit, and a load that needs the room."""

from __future__ import annotations

import re
from pathlib import Path

from bookhouse import IDS, measured, text
from recordfactory import a_launch, a_pass, a_record, answer
from samebytes.bookdata import Measured
from samebytes.pages import capacity, fp8
from samebytes.record import Record
from test_pages_wall import ARTICLE


def with_leg(config: str, pool: int, waits: float, preemptions: float, peak: float, **changes: object) -> Record:
    requests = [
        answer(key, at=float(i), ttft_s=waits * (i + 1), copy_index=0, prompt_tokens=100 * (i + 1))
        for i, key in enumerate(("long/a", "long/b"))
    ]
    leg = a_pass(requests, kind="concurrent", peak_kv_usage=peak, peak_running=2.0)
    leg.metrics = {**leg.metrics, "preemptions": preemptions, "queue_time_sum": 2 * waits, "queue_time_count": 2.0}
    found = a_record(config, ids=IDS, launches=[a_launch(f"sb-{config}", kv_cache_tokens=pool)], **changes)  # type: ignore[arg-type]
    found.passes = [*found.passes, leg]
    found.leg_prompts = [
        p.model_copy(update={"id": r.id, "workload": "long"}) for p, r in zip(found.prompts, requests, strict=False)
    ]
    return found


def toy(house: Path, **changes: object) -> Measured:
    base = with_leg("baseline", 33_760, 4.0, 3.0, 0.99, **changes)
    fp8 = with_leg("fp8", 67_520, 1.0, 0.0, 0.7, flags=["--kv-cache-dtype", "fp8"], **changes)
    return measured(house, [base, fp8])


def test_conversations_are_whole_ones(house: Path) -> None:
    study = toy(house)
    base, fp8 = capacity.rooms(study)
    assert (base.pool, base.longest, base.fit(16_384), fp8.fit(16_384)) == (33_760, 4096, 2, 4)
    said = text(capacity.conclusion(study))
    assert "from 33,760 to 67,520 tokens ( 2.00 ×); conversations of 4,096 tokens that fit: from 8 to 16" in said
    assert "measured here" in said
    assert "baseline 33,760 1.00 31.1 4,096 8" in text(capacity.room_table(study))
    assert "8 of 4,096 tokens" in text(capacity.fit_chart(study))


def test_a_study_without_both_pools_has_no_place(house: Path) -> None:
    alone = measured(house, [a_record("baseline", ids=IDS), a_record("ngram", ids=IDS)], name="alone")
    assert capacity.studies([alone]) == []
    assert "No study has measured both pools yet" in text(capacity.conclusions([]))
    assert "samebytes study h200-qwen3-32b-shape" in text(capacity.shape_missing([alone]))
    assert capacity.shape_missing([alone], "alone") == ""


def test_a_load_that_needs_the_room(house: Path) -> None:
    study = toy(house)
    said = text(capacity.load_conclusion(study))
    assert said.startswith(
        "With the baseline’s pool room was short. In the queue, in the first run of each: 4.00 s with the baseline’s "
        "pool, 1.00 s with the FP8 one"
    )
    assert "preemptions: 3 and 0" in said
    block = text(capacity.load_table(study))
    assert "baseline 2 of 2 100 to 200 2" in block
    assert "4,000.00 6.00 3 99 %" in block
    assert "4.0" in text(capacity.waiting_chart(study))


def test_waits_of_less_than_a_second_are_told_in_milliseconds(house: Path) -> None:
    study = measured(
        house, [with_leg("baseline", 33_760, 0.000015, 0.0, 0.01), with_leg("fp8", 67_520, 0.002, 0.0, 0.01)]
    )
    said = text(capacity.load_conclusion(study))
    assert said.startswith(
        "With the baseline’s pool room was never short. In the queue, in the first run of each: 0.02 ms"
    )


def test_what_room_brought_is_told_of_the_loads_that_ran_short_of_it(house: Path) -> None:
    wide = measured(
        house, [with_leg("baseline", 33_760, 0.1, 0.0, 0.01), with_leg("fp8", 67_520, 0.1, 0.0, 0.01)], "wide"
    )
    alone = measured(house, [a_record("baseline", ids=IDS)], "alone")
    assert capacity.where_short([wide, alone]) == ""
    said = text(capacity.where_short([wide, toy(house, note="random <weights>"), alone]))
    assert re.search(r"over the baseline’s was: toy \( random &lt;weights&gt; \): \d\.\d\d ×$", said)


def test_room_is_short_where_any_leg_says_so_and_unknown_where_none_does(house: Path) -> None:
    base = [with_leg("baseline", 33_760, 0.1, *told) for told in ((0.0, 0.5), (5.0, 0.99))]
    base[1].label = "baseline-2"
    study = measured(house, [*base, with_leg("fp8", 67_520, 0.1, 0.0, 0.5)])
    assert text(capacity.load_conclusion(study)).startswith("With the baseline’s pool room was short.")
    assert "1.00 ×" in text(capacity.where_short([study]))
    assert "at most 99.0 % full; preemptions: 5 . So room was short" in text(fp8.load_conclusion(study))
    unknown = with_leg("baseline", 33_760, 0.1, 0.0, 0.5)
    unknown.passes[1].peak_kv_usage = unknown.passes[1].metrics["preemptions"] = None
    study = measured(house, [unknown, with_leg("fp8", 67_520, 0.1, 0.0, 0.5)], "unknown")
    assert text(capacity.load_conclusion(study)).startswith("In the queue")
    assert capacity.where_short([study]) == ""


def test_the_longest_wait_is_that_of_a_request(house: Path) -> None:
    study = measured(house, [with_leg("baseline", 33_760, 40.0, 3.0, 0.99), with_leg("fp8", 67_520, 10.0, 0.0, 0.7)])
    # the waits are 40 s and 80 s, 10 s and 20 s; their 99th percentiles would be 79.6 s and 19.8 s
    said = text(capacity.waiting_chart(study))
    assert "baseline : median 60.0 s, longest 80.0 s; fp8 : median 15.0 s, longest 20.0 s" in said


def test_without_a_leg_nothing_is_said_of_load(house: Path) -> None:
    study = measured(house, [a_record("baseline", ids=IDS), a_record("fp8", ids=IDS)])
    assert [capacity.load_conclusion(study), capacity.load_table(study), capacity.waiting_chart(study)] == ["", "", ""]
    assert "many requests" not in capacity.conclusion(study)


def test_a_warning_stands_by_every_figure(house: Path) -> None:
    study = toy(house, note="random <weights>")
    for block in (capacity.conclusion(study), capacity.room_table(study), capacity.load_table(study)):
        assert "random &lt;weights&gt;" in block


def test_published_figures_stand_in_a_table_of_their_own(house: Path) -> None:
    block = text(capacity.published_table("rtx5090", ARTICLE))
    assert "As published, not measured by this project" in block
    assert "baseline 33,760 2 635.9 0 fp8 65,536 4 656 0" in block
