from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebytes import stats

positive = st.floats(min_value=1e-3, max_value=1e4, allow_nan=False)


@pytest.mark.parametrize(
    ("df", "p", "table"),
    [
        # Student's t table, three decimals.
        (1, 0.975, 12.706),
        (2, 0.975, 4.303),
        (5, 0.95, 2.015),
        (7, 0.975, 2.365),
        (7, 0.995, 3.499),
        (23, 0.975, 2.069),
        (30, 0.975, 2.042),
        (120, 0.975, 1.980),
        (10, 0.5, 0.0),
        (7, 0.025, -2.365),
    ],
)
def test_t_quantiles_are_the_tables(df: int, p: float, table: float) -> None:
    assert stats.t_quantile(p, df) == pytest.approx(table, abs=5e-4)


@given(st.integers(1, 200), st.floats(0.01, 0.99))
def test_t_quantile_inverts_the_distribution_function(df: int, p: float) -> None:
    assert stats.t_cdf(stats.t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


def test_t_with_one_degree_of_freedom_is_cauchy() -> None:
    for p in (0.6, 0.9, 0.999):
        assert stats.t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)


def test_incomplete_beta_against_closed_forms() -> None:
    for x in (0.0, 0.01, 0.3, 0.5, 0.9, 1.0):
        assert stats.incomplete_beta(1, 1, x) == pytest.approx(x)
        assert stats.incomplete_beta(2, 3, x) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        # Newcombe 1998, table I: method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (24, 24, 0.8620, 1.0),
    ],
)
def test_wilson_intervals_are_the_published_ones(k: int, n: int, low: float, high: float) -> None:
    interval = stats.wilson(k, n)
    assert interval is not None
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_wilson_of_nothing_is_none_and_of_nonsense_refused() -> None:
    assert stats.wilson(0, 0) is None
    with pytest.raises(ValueError, match="5 of 4"):
        stats.wilson(5, 4)


def test_percentiles_interpolate_linearly() -> None:
    assert stats.percentile([4, 1, 3, 2], 50) == 2.5
    assert stats.percentile([1, 2, 3, 4, 5], 90) == pytest.approx(4.6)
    assert stats.percentile([7], 99) == 7
    assert stats.percentile([1, 2], 0) == 1
    assert stats.percentile([1, 2], 100) == 2
    with pytest.raises(ValueError, match="needs values"):
        stats.percentile([], 50)


@given(st.lists(positive, min_size=2, max_size=24))
def test_a_run_against_itself_is_exactly_one(values: list[float]) -> None:
    estimate = stats.paired_ratio(values, values)
    one = stats.Interval(1.0, 1.0)
    assert estimate == stats.RatioEstimate(len(values), 1.0, 1.0, one, one)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=12))
def test_a_ratio_turned_round_is_its_reciprocal(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    forth, back = stats.paired_ratio(a, b), stats.paired_ratio(b, a)
    assert forth is not None
    assert back is not None
    assert forth.t_interval is not None
    assert back.t_interval is not None
    assert forth.geometric_mean == pytest.approx(1 / back.geometric_mean, rel=1e-9)
    assert forth.t_interval.low == pytest.approx(1 / back.t_interval.high, rel=1e-6)
    assert forth.t_interval.low <= forth.geometric_mean <= forth.t_interval.high


def test_paired_ratio_by_hand() -> None:
    estimate = stats.paired_ratio([20.0, 80.0], [10.0, 10.0])
    assert estimate is not None
    assert estimate.t_interval is not None
    assert estimate.bootstrap_interval is not None
    assert estimate.ratio_of_medians == 5.0
    assert estimate.geometric_mean == pytest.approx(4.0)
    # logs: ln 2 and ln 8, so s / sqrt(2) = ln 2, and t(0.975, 1) = 12.7062
    assert estimate.t_interval.high == pytest.approx(4 * 2**12.7062, rel=1e-4)
    assert (estimate.bootstrap_interval.low, estimate.bootstrap_interval.high) == (pytest.approx(2), pytest.approx(8))
    assert estimate.excludes_one is False


def test_one_prompt_has_no_interval_and_none_has_no_ratio() -> None:
    estimate = stats.paired_ratio([3.0], [2.0])
    assert estimate == stats.RatioEstimate(1, 1.5, estimate.geometric_mean if estimate else 0, None, None)
    assert estimate.excludes_one is None
    assert stats.paired_ratio([], []) is None


def test_the_bootstrap_is_seeded() -> None:
    values = [math.sqrt(i) for i in range(8)]
    assert stats.bootstrap_interval(values) == stats.bootstrap_interval(values)
    assert stats.bootstrap_interval(values) != stats.bootstrap_interval(values, seed=1)


def test_the_bootstrap_is_near_the_normal_interval_for_many_values() -> None:
    values = [math.sin(i) for i in range(400)]
    interval = stats.bootstrap_interval(values)
    assert interval is not None
    half = 1.96 * math.sqrt(0.5 / 400)  # the variance of a sine is 1/2
    mean = sum(values) / 400
    assert (interval.low - mean, interval.high - mean) == (
        pytest.approx(-half, rel=0.08),
        pytest.approx(half, rel=0.08),
    )


def test_spread_needs_two_launches() -> None:
    assert stats.spread([10.0]) is None
    assert stats.spread([10.0, 11.0]) == pytest.approx(0.1)


def test_prediction_interval_by_hand() -> None:
    # mean 2, sd 1, t(0.975, 2) = 4.3027, times sqrt(1 + 1/3)
    found = stats.prediction_interval([1.0, 2.0, 3.0])
    assert found is not None
    half = 4.302653 * math.sqrt(4 / 3)
    assert (found.low, found.high) == (pytest.approx(2 - half, rel=1e-6), pytest.approx(2 + half, rel=1e-6))
    assert stats.prediction_interval([1.0]) is None
