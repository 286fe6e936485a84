"""Exhibits: what stands under each figure and table, and the files with its data."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import altair
import pandas
import pytest
from sphinx.errors import ExtensionError

from bookhouse import IDS, baselines, measured, text
from conftest import ROOT
from recordfactory import a_record
from samebytes import charts, exhibit, prose, published, sphinxext
from samebytes.errors import UsageError
from samebytes.exhibit import Origin

ORIGIN = Origin(("results/toy/a.json",), "a <card>", "0.1", "2026-01-01", "abc", "samebytes book")
NASTY = "</script><script>alert(1)</script> {{ secret }}"
ROWS: list[dict[str, object]] = [
    {"prompt": NASTY, "tok_s": 1 / 3, "n": 65536, "same": True, "note": None},
    {"prompt": 'a,"b"\nc', "tok_s": 2.0, "n": 0, "same": False, "note": "é"},
]


def a_table(name: str = "a-table", rows: Any = ROWS) -> str:
    return exhibit.table(name, "A <caption>", ["prompt", "tok/s"], [["a", "b"]], ORIGIN, data=rows)


def files(house: Path, block: str) -> tuple[Path, Path]:
    name = re.search(r'data-exhibit="([^"]+)"', block)[1]  # type: ignore[index]
    folder = house / "_build/exhibits"
    return folder / f"{name}.csv", folder / f"{name}.json"


def a_chart(rows: list[dict[str, object]]) -> altair.LayerChart:
    marks = altair.Chart(altair.InlineData(values=rows)).mark_point().encode(x="tok_s:Q", y="prompt:N")
    return altair.layer(marks)


# -- data -------------------------------------------------------------------------------------------------------------


def test_the_files_hold_the_raw_values(house: Path) -> None:
    as_csv, as_json = files(house, a_table())
    with as_csv.open(encoding="utf-8", newline="") as stream:
        first, second = csv.DictReader(stream)
    assert first == {"prompt": NASTY, "tok_s": repr(1 / 3), "n": "65536", "same": "true", "note": ""}
    assert second["prompt"] == 'a,"b"\nc'
    found = json.loads(as_json.read_text(encoding="utf-8"))
    assert found["rows"] == ROWS
    assert found["records"] == ["results/toy/a.json"]
    assert found["exhibit"] == "a-table"
    assert pandas.read_csv(as_csv)["tok_s"].tolist() == [1 / 3, 2.0]


def test_other_data_have_other_files_and_the_same_data_the_same(house: Path) -> None:
    first, again = files(house, a_table()), files(house, a_table())
    changed = files(house, a_table(rows=[{**ROWS[0], "n": 1}]))
    assert first == again
    assert {path.name for path in (house / "_build/exhibits").iterdir()} == {p.name for p in (*first, *changed)}
    assert len({*first, *changed}) == 4


def test_no_rows_are_an_empty_table(house: Path) -> None:
    as_csv, as_json = files(house, a_table(rows=[]))
    assert as_csv.read_text() == ""
    assert json.loads(as_json.read_text())["rows"] == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": 1}, {"y": 1}], r"exhibit 'a-table': row 2 has the keys \['y'\], the first one \['x'\]"),
        ([{"x": 1}, {"x": 1, "y": 1}], r"row 2 has the keys \['x', 'y'\]"),
        ([{"x": 1.0}, {"x": math.nan}], r"exhibit 'a-table': row 2: 'x' is nan"),
        ([{"x": -math.inf}], r"row 1: 'x' is -inf"),
        ([{"x": [1]}], r"exhibit 'a-table': row 1: 'x' is a list"),
    ],
)
def test_what_cannot_be_published_is_named(house: Path, rows: list[dict[str, object]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        a_table(rows=rows)
    assert not (house / "_build/exhibits").exists()


@pytest.mark.parametrize("name", ["", "../a", "A", "a b", "-a"])
def test_a_name_that_is_no_files_name_is_refused(house: Path, name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(name))):
        a_table(name)


# -- origin -----------------------------------------------------------------------------------------------------------


def test_the_origin_of_some_configs_are_their_records(house: Path) -> None:
    ngram = a_record("ngram", ids=IDS)
    ngram.versions.git_commit = "0123456789abcdef"
    study = measured(house, [*baselines(), ngram])
    found = exhibit.origin(study, "ngram")
    assert found.records == ("results/toy/ngram.json",)
    assert found.commit == "0123456789"
    assert found.command == "samebytes study toy && samebytes book"
    whole = exhibit.origin(study, command="make report")
    assert whole.records == tuple(f"results/toy/{label}.json" for label in ("baseline", "baseline-2", "ngram"))
    assert whole.date == study.started
    assert whole.command == "make report"
    with pytest.raises(UsageError, match=r"unknown config with a record in results/toy 'fp8'.*baseline, ngram"):
        exhibit.origin(study, "fp8")


def test_several_machines_days_and_commits_are_all_listed(house: Path) -> None:
    first, second = baselines()
    second.machine.gpu, second.versions.vllm, second.versions.git_commit = "another card", "9.9", "f" * 40
    second.launches[0].started = "2031-02-03T00:00:00+00:00"
    found = exhibit.origin(measured(house, [first, second]))
    assert found.machine == f"{first.machine.cpu}; another card"
    assert found.vllm == f"{first.versions.vllm}; 9.9"
    assert found.date == f"{first.launches[0].started[:10]} to 2031-02-03"
    assert found.commit is not None
    assert found.commit.endswith("ffffffffff")
    both = exhibit.together([ORIGIN, found, replace(ORIGIN, commit=None)])
    assert both.records == ("results/toy/a.json", *found.records)
    assert both.machine == f"a <card>; {found.machine}"
    assert both.commit == f"abc; {found.commit}"
    assert both.command == "samebytes book"


def test_published_figures_come_from_their_file() -> None:
    (path,) = ROOT.glob("results/*/published.yaml")
    found = exhibit.printed(path.parent.name, published.load(path))
    assert found.records == (str(path.relative_to(ROOT)),)
    assert (ROOT / found.records[0]).is_file()
    assert found.machine is not None
    assert "RTX 5090" in found.machine
    assert found.vllm == "0.20.0"
    assert found.commit is None


def test_under_a_table_stand_origin_and_data(house: Path) -> None:
    block = a_table()
    assert '<a href="../exhibits/a-table.csv" download>' in block
    assert '<a href="../exhibits/a-table.json" download>' in block
    assert '<a href="../results/toy/a.json" download>' in block
    assert "from a &lt;card&gt;, vLLM 0.1, 2026-01-01" in text(block)
    assert "measured 2026-01-01 commit abc again samebytes book" in text(block)
    assert "A &lt;caption&gt;" in block
    (label,) = re.findall(r'role="region" aria-labelledby="([^"]+)"', block)
    assert f'<figcaption id="{label}">' in block


def test_many_records_are_folded_away_and_what_was_not_recorded_is_a_dash(house: Path) -> None:
    many = Origin(tuple(f"results/toy/{i}.json" for i in range(4)), None, None, None, None, "c")
    block = exhibit.table("t", "c", ["a"], [["b"]], many, data=[{"a": 1}])
    assert re.search(r"<details><summary><data [^>]*>4</data> records</summary><a href", block)
    assert text(block).count("–") == 4
    assert exhibit.table("t", "c", ["a"], [["b"]], replace(many, records=()), data=[{"a": 1}]).count("none") == 1


# -- charts and other figures -----------------------------------------------------------------------------------------


def test_a_chart_has_words_a_picture_and_a_table_of_its_figures(house: Path) -> None:
    rows = [{"prompt": f"p{i}", "tok_s": i + 0.12345} for i in range(exhibit.TWIN_ROWS + 2)]
    said = prose.html("Rates up to {} tok/s", prose.number(201.1, source="s"))
    block = exhibit.chart("a-chart", a_chart(rows), said, "caption", ORIGIN)
    assert '<p class="visually-hidden" id="a-chart-description">Rates up to <data value="201.1"' in block
    assert 'role="img" aria-labelledby="a-chart-description"><svg' in block
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', block, re.DOTALL)[1])  # type: ignore[index]
    assert spec["description"] == "Rates up to 201.1 tok/s"
    twin = block[block.index('<details class="twin"') :]
    assert '<th scope="row"><data value="p0">p0</data></th><td class="n"><data value="0.12345">0.1235</data>' in twin
    assert twin.count("<tr>") == exhibit.TWIN_ROWS + 1
    assert "2 further rows are in the files." in text(twin)
    assert json.loads(files(house, block)[1].read_text())["rows"] == rows


def test_hostile_text_is_text_in_every_part_of_a_chart(house: Path) -> None:
    block = exhibit.chart("a-chart", a_chart([{"prompt": NASTY, "tok_s": 1.0}]), NASTY, NASTY, ORIGIN)
    assert "<script>alert" not in block
    assert block.count("</script>") == 1
    assert block.count("&lt;script&gt;alert(1)&lt;/script&gt; {{ secret }}") >= 4


def test_a_chart_with_what_is_no_number_is_named(house: Path) -> None:
    bad = a_chart([{"prompt": "p", "tok_s": math.nan}])
    with pytest.raises(UsageError, match="exhibit 'a-chart': row 1: 'tok_s' is nan"):
        exhibit.chart("a-chart", bad, "d", "c", ORIGIN)
    with pytest.raises(UsageError, match="exhibit 'a-chart': a value in its chart is no number"):
        exhibit.chart("a-chart", bad, "d", "c", ORIGIN, data=[{"x": 1}])


def test_a_chart_of_several_plots_keeps_its_own_width(house: Path) -> None:
    one = a_chart([{"prompt": "p", "tok_s": 1.0}])
    assert '"width":"container"' in exhibit.chart("a", one, "d", "c", ORIGIN)
    assert '"width":"container"' not in exhibit.chart("b", altair.hconcat(one, one), "d", "c", ORIGIN)


def test_any_other_figure(house: Path) -> None:
    block = exhibit.figure("steps", prose.html("<p>{}</p>", NASTY), "c", ORIGIN, data=ROWS)
    assert block.startswith('<figure class="exhibit interactive" id="steps"')
    assert json.loads(files(house, block)[1].read_text(encoding="utf-8"))["rows"] == ROWS


# -- the site ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site/book").mkdir(parents=True)
    return tmp_path / "site"


def publish(house: Path, site: Path, **pages: str) -> set[str]:
    for name, body in pages.items():
        (site / f"book/{name}.html").write_text(body, encoding="utf-8")
    sphinxext.publish_exhibits(house / "_build/exhibits", site, [f"book/{name}" for name in pages])
    return {path.name for path in (site / "exhibits").glob("*")}


def test_the_site_has_the_data_that_its_pages_show_and_no_other(house: Path, site: Path) -> None:
    old, other = a_table(), a_table("other", rows=[{"y": 1}])
    assert publish(house, site, one=old, two=other) == {"a-table.csv", "a-table.json", "other.csv", "other.json"}
    assert (site / "exhibits/a-table.csv").read_text().startswith("prompt,")
    new = a_table(rows=[{"x": 1}])
    assert publish(house, site, one=new) == {"a-table.csv", "a-table.json"}
    assert (site / "exhibits/a-table.csv").read_text() == "x\n1\n"
    assert set((house / "_build/exhibits").iterdir()) == set(files(house, new)), "what no page shows is removed"


def test_a_name_that_is_used_twice_is_refused_with_both_pages(house: Path, site: Path) -> None:
    block = a_table()
    with pytest.raises(ExtensionError, match="book/two: the exhibit 'a-table' is also on book/one"):
        publish(house, site, one=block, two=block)
    with pytest.raises(ExtensionError, match="book/one: the exhibit 'a-table' is also on book/one"):
        publish(house, site, one=block + block)


def test_an_exhibit_without_its_data_is_refused(house: Path, site: Path) -> None:
    block = a_table()
    files(house, block)[0].unlink()
    with pytest.raises(ExtensionError, match=r"no data of the exhibit 'a-table': a-table\.[0-9a-f]+\.csv is missing"):
        publish(house, site, one=block)


def test_an_origin_is_in_the_json_as_it_is(house: Path) -> None:
    found = json.loads(files(house, a_table())[1].read_text(encoding="utf-8"))
    assert {key: found[key] for key in asdict(ORIGIN)} == {**asdict(ORIGIN), "records": list(ORIGIN.records)}


# -- theme ------------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("page", ["#ffffff", "#121212", "#14181e"])
@pytest.mark.parametrize("colour", charts.PALETTE)
def test_every_colour_stands_out_from_the_page(colour: str, page: str) -> None:
    light, dark = sorted((luminance(colour), luminance(page)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3
