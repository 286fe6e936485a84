"""Blocks of the page about the wall: bounds against measured and published speeds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bookhouse import IDS, measured, text
from profilefactory import a_profile, keep
from recordfactory import a_record
from samebytes import published, roofline
from samebytes.bookdata import Measured
from samebytes.pages import wall
from samebytes.record import MachineInfo, ModelInfo, Record

ARTICLE = published.load(Path(__file__).parents[1] / "results/rtx5090-qwen3-32b-awq/published.yaml")
MODEL = "qwen3-32b-awq-shape"


def on(gpu: str | None, label: str = "baseline", model: str = MODEL, **changes: object) -> Record:
    machine = MachineInfo(gpu=gpu, cpu="a cpu", cpu_cores=2, memory_bytes=2**33)
    return a_record(label, ids=IDS, rate=81.0, machine=machine, model=ModelInfo(id=model), **changes)  # type: ignore[arg-type]


def study(house: Path, *records: Record) -> Measured:
    return measured(house, list(records), name="toy")


def test_a_card_gives_the_vendors_bandwidth(house: Path) -> None:
    (case,) = wall.cases([study(house, on("NVIDIA H200"))])
    assert (case.bytes_per_s, case.given_by) == (4.8e12, "the vendor")
    assert case.context == 20 + 64 / 2
    bound = case.bound
    assert bound is not None
    # by hand: 17.769 GB of weights and 52 tokens of 262,144 bytes at 4.8 TB/s
    assert bound.bound_tok_s == pytest.approx(4.8e12 / (17_769_474_048 + 52 * 262_144))
    assert bound.reached == pytest.approx(0.30, abs=0.005)
    assert "30 % of the bound. Something else sets the pace." in text(wall.conclusion([case], {}))
    assert "17.77 0.014 4.800 the vendor 270 81.0 30 %" in text(wall.bounds_table([case]))


def test_fp8_reads_half_the_keys_and_values(house: Path) -> None:
    base, fp8 = wall.cases(
        [study(house, on("NVIDIA H200"), on("NVIDIA H200", "fp8", flags=["--kv-cache-dtype", "fp8"]))]
    )
    assert base.bound is not None
    assert fp8.bound is not None
    assert fp8.bound.kv_bytes == base.bound.kv_bytes / 2


def test_without_a_vendors_figure_a_measured_one_counts_and_none_is_told(house: Path) -> None:
    records = on(None)
    unknown = study(house, records)
    (case,) = wall.cases([unknown])
    assert case.bound is None
    assert "this machine’s bandwidth is not known" in wall.bounds_table([case])
    assert wall.conclusion([case], {}) == ""
    assert wall.chart([case], {}) == ""
    keep(house, a_profile("baseline", copy={"copy_bytes_per_s": 1.5e12, "read_bytes_per_s": 2.0e12}))
    (case,) = wall.cases([unknown])
    assert (case.bytes_per_s, case.given_by) == (2.0e12, "a measurement")
    assert "72 % of the bound. The wall is what it stands at." in text(wall.conclusion([case], {}))


def test_models_of_unknown_shape_and_wide_weights_are_left_out(house: Path) -> None:
    wide = on("NVIDIA H200", flags=["--dtype", "float32"])
    assert wall.cases([study(house, on("NVIDIA H200", model="some/other"))]) == []
    assert wall.cases([study(house, wide)]) == []
    assert "no bound" in text(wall.bounds_table([]))


def test_published_figures_stand_in_a_table_of_their_own(house: Path) -> None:
    block = text(wall.published_table("rtx5090", ARTICLE))
    assert "As published, not measured by this project" in block
    assert "code edits 17 1.79 105.4 75.2 71 %" in block
    assert "as published: 71 % of the bound. The wall is what it stands at." in text(
        wall.conclusion([], {"rtx5090": ARTICLE})
    )


def test_the_chart_tells_published_from_measured(house: Path) -> None:
    block = wall.chart(wall.cases([study(house, on("NVIDIA H200"))]), {"rtx5090": ARTICLE})
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)[1])  # type: ignore[index]
    rows = [row for found in spec["datasets"].values() for row in found]
    assert {row["by"] for row in rows if "by" in row} == {"measured", "published"}
    lines = [row for row in rows if "memory" in row]
    assert {row["memory"] for row in lines} == {"NVIDIA H200", "GeForce RTX 5090"}
    assert all(
        row["tok_s"] * row["gb"] * 1e9 == pytest.approx(4.8e12) for row in lines if row["memory"] != "GeForce RTX 5090"
    )


def test_random_weights_are_said_beside_every_figure(house: Path) -> None:
    found = wall.cases([study(house, on("NVIDIA H200", note="random weights"))])
    for block in (wall.conclusion(found, {}), wall.bounds_table(found), wall.chart(found, {})):
        assert "(random weights)" in text(block).replace("( random weights )", "(random weights)")


def test_from_where_on_it_is_called_the_wall() -> None:
    assert "From 50 % reached" in text(wall.formula())


def test_every_card_has_a_source() -> None:
    assert all(card.source in wall.cards() for card in roofline.CARDS)
