"""Blocks of the page about speed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from bookhouse import IDS, baselines, measured, text
from recordfactory import a_pass, a_record, answer, failed
from samebytes import bookdata
from samebytes.pages import speed


def test_the_ratio_of_medians_and_the_paired_ratio_stand_apart(house: Path) -> None:
    rates = {"rag/0": 10.0, "rag/1": 20.0, "rag/2": 90.0}
    study = measured(house, [*baselines(), a_record("ngram", ids=IDS, rate=20.0, rates=rates)])
    assert "ngram 20.0 2.00 × 20.0 2.00 × 20.0 2.00 ×" in text(speed.speed_table(study))
    assert "ngram against baseline 2.00 × [ 2.00 , 2.00 ] 2.62 ×" in text(speed.comparison_table(study))


def test_a_config_that_cannot_run_is_a_row_with_the_engines_words(house: Path) -> None:
    fp8 = a_record("fp8", status="failed", reason="needs <AVX-512>", passes=[], launches=[])
    block = speed.speed_table(measured(house, [*baselines(), fp8, a_record("ngram", status="partial")]))
    assert "fp8 – – – – failed: needs &lt;AVX-512&gt;" in text(block)
    assert "ngram – – – – partial" in text(block)
    assert block.count('title="needs &lt;AVX-512&gt;">–</data>') == 4


def test_the_concurrent_leg_has_a_column_where_a_run_has_one(house: Path) -> None:
    leg = a_pass([answer(key) for key in IDS], kind="concurrent")
    alone = a_record("ngram", ids=IDS)
    first, second = baselines()
    first.passes = [*first.passes, leg]
    block = speed.speed_table(measured(house, [first, second, alone]))
    assert "concurrent leg" in block
    (rate,) = [c.aggregate_tok_s for c in bookdata.studies()[0].summary.config("baseline").concurrent]
    assert f'<data value="{rate}"' in block
    assert 'title="not measured for this config">–' in block


def test_no_speed_for_short_answers_only(house: Path) -> None:
    short = {key: answer(key, n=8) for key in IDS if key.startswith("rag")}
    block = speed.speed_table(measured(house, baselines(replace=short)))
    assert 'title="no answer of 32 tokens or more">–' in block


def test_the_chart_has_a_mark_for_each_timed_prompt_and_a_table_of_the_same(house: Path) -> None:
    ngram = a_record("ngram", ids=IDS, rate=math.pi, replace={"rag/0": failed("rag/0")})
    block = speed.speed_chart(measured(house, [*baselines(), ngram]))
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)[1])  # type: ignore[index]
    (rows,) = spec["datasets"].values()
    assert len(rows) == 17
    assert block.count('aria-roledescription="point"') == 17
    assert "$schema" not in spec
    assert "ngram: code_edit 3.1, rag 3.1, creative 3.1" in spec["description"]
    assert text(block[block.index("<details") :]).count("3.1") == 8
