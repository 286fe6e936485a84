"""Charts: what goes into a spec and into a picture."""

from __future__ import annotations

import math
import re
from pathlib import Path

import altair
import pytest

from bookhouse import baselines, measured
from conftest import ROOT
from samebytes import bookdata, charts
from samebytes.errors import UsageError


def test_a_chart_refuses_what_is_not_a_number() -> None:
    data = altair.InlineData(values=[{"x": math.nan}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        charts.spec(altair.layer(altair.Chart(data).mark_point().encode(x="x:Q")))


def test_text_in_a_spec_cannot_end_its_script() -> None:
    data = altair.InlineData(values=[{"x": "</script><script>alert(1)"}])
    block = charts.drawing(altair.layer(altair.Chart(data).mark_point().encode(x="x:N")), "<d>", label="name")
    assert block.count("</script>") == 1
    assert '<p class="visually-hidden" id="name">&lt;d&gt;</p>' in block


def test_the_static_picture_holds_no_more_than_is_drawn() -> None:
    data = altair.InlineData(values=[{"x": 1 / 3, "y": "a name"}, {"x": 0.12345, "y": "b"}])
    marks = altair.Chart(data).mark_point().encode(x="x:Q", y="y:N", text="x:Q")
    block = charts.drawing(altair.layer(marks, marks.mark_text()), "d", label="name")
    static = block[block.index('<div class="chart-static"') : block.index('<div class="chart-live"')]
    assert "a name" in static
    assert ">0.12345<" in static
    assert "aria-label=" not in static
    assert not re.search(r"\.\d{6,}", re.sub(r">[^<]*<", "><", static))


def test_the_picture_is_drawn_in_ink_on_white(house: Path) -> None:
    study = measured(house, baselines())
    charts.main(["toy"])
    picture = (study.folder / "speed.svg").read_text(encoding="utf-8")
    assert 'fill="white"' in picture
    assert "currentColor" not in picture
    with pytest.raises(UsageError, match="'nothing' has no records"):
        charts.main(["nothing"])


def points(picture: str) -> list[str]:
    return re.findall(r'aria-roledescription="point"[^>]* transform="([^"]+)"', picture)


def test_the_pictures_in_the_readme_show_the_records(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBYTES_ROOT", str(ROOT))
    pictures = re.findall(
        r"!\[[^]]+\]\((results/([^/]+)/speed\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert pictures
    for path, name in pictures:
        study = bookdata.measured(name)
        assert study is not None
        marks = points(charts.picture(study))
        assert len(marks) > 20
        assert points((ROOT / path).read_text(encoding="utf-8")) == marks, f"python -m samebytes.charts {name}"
