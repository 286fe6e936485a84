from __future__ import annotations

import math

import pytest

from samebytes import prose
from samebytes.prose import Html, html
from samebytes.stats import Interval


def test_a_number_carries_its_value_and_its_source() -> None:
    shown = prose.number(1234.5678, unit="tok/s", source="a <record>")
    assert shown == '<data value="1234.5678" title="a &lt;record&gt;">1,234.6</data>\N{NO-BREAK SPACE}tok/s'
    assert isinstance(shown, Html)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (prose.count(65536, source="s"), ">65,536<"),
        (prose.count(0, source="s"), ">0<"),
        (prose.percent(0.51265, source="s"), ">51.3</data>\N{NO-BREAK SPACE}%"),
        (prose.times(4.649, source="s"), ">4.65</data>×"),
        (prose.number(0.7286, 0, "ms", scale=1000, source="s"), ">729<"),
        (prose.printed("1,410", source="s"), 'value="1410" title="s">1,410<'),
        (prose.given("FP8 <KV>", source="s"), ">FP8 &lt;KV&gt;<"),
    ],
)
def test_formats(shown: Html, text: str) -> None:
    assert text in shown


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash_with_the_reason(value: float | None) -> None:
    for shown in (
        prose.number(value, unit="tok/s", source="s"),
        prose.times(value, source="s"),
        prose.percent(value, source="s"),
        prose.count(value, source="s"),
    ):
        reason = "not measured" if value is None else "not a finite number"
        assert shown.startswith(f'<data value="" title="{reason}">–</data>')
        assert "nan" not in shown
        assert "×" not in shown


def test_an_interval_and_a_share() -> None:
    assert prose.between(None, source="s", missing="a single prompt") == (
        '<data value="" title="a single prompt">–</data>'
    )
    assert prose.between(Interval(0.5, 2), source="s").count("<data ") == 2
    assert prose.of(18, 24, source="s").count("<data ") == 2


def test_text_is_escaped_and_html_is_not() -> None:
    nasty = "<script>{}</script>"
    assert html("<p>{} {}</p>", nasty, Html("<b>x</b>")) == "<p>&lt;script&gt;{}&lt;/script&gt; <b>x</b></p>"
    assert prose.join([nasty, Html("<i>")], " < ") == "&lt;script&gt;{}&lt;/script&gt; &lt; <i>"
    assert prose.join(["a", "b"], Html("<br>")) == "a<br>b"
    assert "<script" not in prose.grid([nasty], [[nasty]])
    assert "<script" not in prose.code(nasty)


def test_a_table_sets_numbers_right_and_words_left() -> None:
    found = prose.grid(["config", "tok/s", "status"], [["a", "1", "b"]], words=(2,))
    assert '<th scope="col">config</th><th scope="col" class="n">tok/s</th><th scope="col">status</th>' in found
    assert '<th scope="row">a</th><td class="n">1</td><td>b</td>' in found


def test_a_table_refuses_a_row_of_another_width() -> None:
    with pytest.raises(ValueError, match="zip"):
        prose.grid(["a", "b"], [["1"]])


def test_a_heading_can_be_linked_to() -> None:
    found = prose.heading("of-a", prose.given("A <study>", source="s"), 2)
    assert found.startswith('<h2 id="of-a"><data class="given" value="A &lt;study&gt;"')
    assert found.endswith('<a class="headerlink" href="#of-a" title="Link to this heading">#</a></h2>')


def test_html_as_plain_text() -> None:
    assert prose.plain(html("up to {} &", prose.times(2.5, source="a > b"))) == "up to 2.50× &"
    assert prose.plain("<b> & c") == "<b> & c"


def test_a_table_that_scrolls_can_be_reached_from_the_keyboard_and_has_a_name() -> None:
    assert prose.grid(["a"], [["b"]], label="x").startswith(
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="x"><table>'
    )
    assert prose.grid(["a"], [["b"]]).startswith('<div class="scroll" tabindex="0"><table>')
