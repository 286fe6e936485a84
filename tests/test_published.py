from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from samebytes import published
from samebytes.errors import UsageError
from samebytes.published import Published, Range, combine, rounded

FILE = Path(__file__).parents[1] / "results" / "rtx5090-qwen3-32b-awq" / "published.yaml"


@pytest.fixture(scope="module")
def article() -> Published:
    return published.load(FILE)


def test_every_derived_figure_follows_but_the_one_that_is_noted(article: Published) -> None:
    checks = {check.id: check for check in article.checks()}
    assert len(checks) == len(article.derived), "an id stands twice"
    broken = [check for check in checks.values() if not check.consistent]
    assert [check.id for check in broken] == ["fp8.same"]
    assert broken[0].note is not None
    assert broken[0].note.startswith("Does not hold")


@pytest.mark.parametrize(
    ("key", "printed", "low", "high"),
    [
        ("speedup.code_edit", "4.65", 349.75 / 75.25, 349.85 / 75.15),
        ("speedup.rag", "2.41", 180.5 / 75.35, 181.5 / 75.25),
        ("speedup.creative", "0.95", 71.85 / 75.55, 71.95 / 75.45),
        ("acceptance", "51.3", 263500 / 5140, 263500 / 5140),
        ("conversations.fp8", "4", 4, 4),
        ("conversations.baseline", "2", 2, 2),
        ("aggregate.baseline", "636", 635.85, 635.95),
        ("fp8.change.creative", "1", 100 * (76.65 / 75.55 - 1), 100 * (76.75 / 75.45 - 1)),
        ("slowdown.creative", "5", 100 * (1 - 71.95 / 75.45), 100 * (1 - 71.85 / 75.55)),
        ("concurrent.requests", "64", 64, 64),
        ("fp8.same", "12", 14, 14),
    ],
)
def test_intervals_by_hand(article: Published, key: str, printed: str, low: float, high: float) -> None:
    (check,) = [c for c in article.checks() if c.id == key]
    assert check.printed == printed
    assert (check.low, check.high) == (pytest.approx(low), pytest.approx(high))


def test_figures_that_only_just_follow_are_noted(article: Published) -> None:
    """Where the printed inputs, taken at their face, round to another number, the file says so."""
    for derived, check in zip(article.derived, article.checks(), strict=True):
        if derived.rule == "within":
            continue
        middle = Fraction((check.low + check.high) / 2)
        if not rounded(derived.printed, derived.exact).meets(Range(middle, middle)):
            assert check.note, check.id


def test_the_article_is_dated_and_every_figure_has_its_place(article: Published) -> None:
    assert article.measured == "2026-07-21"
    assert "0.20.0" in article.setup["engine"]
    assert "RTX 5090" in article.setup["gpu"]
    assert all(figure.place for figure in (*article.figures.values(), *article.derived))
    assert article.value("draft_tokens") == 5140


@pytest.mark.parametrize(
    ("change", "expected"),
    [("4.65", True), ("4.67", False), ("4.7", True), ("4.64", False)],
)
def test_a_wrong_figure_is_found(tmp_path: Path, change: str, expected: bool) -> None:
    data = yaml.safe_load(FILE.read_text())
    (row,) = [row for row in data["derived"] if row["id"] == "speedup.code_edit"]
    row["printed"] = change
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump(data))
    (check,) = [c for c in published.load(path).checks() if c.id == "speedup.code_edit"]
    assert check.consistent is expected


def test_printed_numbers() -> None:
    assert rounded("0.95") == Range(Fraction(945, 1000), Fraction(955, 1000))
    assert rounded("1,410") == Range(Fraction(2819, 2), Fraction(2821, 2))
    assert rounded("181.0") == Range(Fraction(18095, 100), Fraction(18105, 100))
    assert rounded("2,635", exact=True) == Range(Fraction(2635), Fraction(2635))
    with pytest.raises(UsageError, match="'about one'"):
        rounded("about one")


positive = st.decimals(min_value="0.5", max_value="500", places=3)


@given(positive, positive, st.integers(0, 2), st.integers(0, 2))
def test_a_true_ratio_always_meets_its_printed_inputs(a: object, b: object, a_places: int, b_places: int) -> None:
    """Whatever the true values are: round inputs and result honestly, and the check passes."""
    one, two = Fraction(str(a)), Fraction(str(b))
    inputs = [rounded(f"{float(x):.{places}f}") for x, places in ((one, a_places), (two, b_places))]
    if inputs[1].low <= 0:
        return
    for rule, value in (("ratio", one / two), ("change_percent", 100 * (one / two - 1))):
        allowed = combine(rule, inputs)  # type: ignore[arg-type]
        assert allowed.low <= value <= allowed.high


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("derived: [", "not valid YAML"),
        ("title: x", "measured"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "published.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        published.load(path)


def write(tmp_path: Path, rule: str, of: list[str]) -> Path:
    head = {"title": "t", "measured": "2026-01-01", "setup": {}}
    figures = {"a": {"printed": "1", "unit": "x", "place": "here"}}
    derived = [{"id": "d", "printed": "1", "rule": rule, "of": of, "place": "there"}]
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump({**head, "figures": figures, "derived": derived}))
    return path


def test_a_derived_figure_names_figures_that_exist_and_enough_of_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown figure 'b'"):
        published.load(write(tmp_path, "ratio", ["a", "b"]))
    with pytest.raises(UsageError, match="takes two figures"):
        published.load(write(tmp_path, "ratio", ["a"]))
    with pytest.raises(UsageError, match="takes one figure"):
        published.load(write(tmp_path, "same", ["a", "a"]))
    with pytest.raises(UsageError, match="figure 'a' is no list"):
        published.load(write(tmp_path, "smallest", ["a"]))
    path = write(tmp_path, "same", ["a"])
    assert [check.consistent for check in published.load(path).checks()] == [True]
    path.write_text(path.read_text() + "extra: 1\n")
    with pytest.raises(UsageError, match="extra: Extra inputs"):
        published.load(path)
    with pytest.raises(UsageError, match="no published figures at"):
        published.load(tmp_path / "none.yaml")
