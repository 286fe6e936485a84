"""The statistics of the report, standard library only, each with its formula."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.95
"""Confidence level of every interval."""
RESAMPLES = 2000
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A confidence interval at `LEVEL`."""

    low: float
    high: float


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio of two configs over the same prompts.

    Attributes
    ----------
    n : int
        Number of prompts (pairs).
    ratio_of_medians : float
        Median of the numerators over the median of the denominators.
    geometric_mean : float
        ``exp(mean(log(a_i / b_i)))``.
    t_interval : Interval or None
        ``exp(m ± t(n-1) s / sqrt(n))`` on the logs; None for a single prompt.
    bootstrap_interval : Interval or None
        Percentiles of the geometric mean over `RESAMPLES` seeded resamples of the prompts; None for a single prompt.
    """

    n: int
    ratio_of_medians: float
    geometric_mean: float
    t_interval: Interval | None
    bootstrap_interval: Interval | None

    @property
    def excludes_one(self) -> bool | None:
        """Whether the t interval excludes 1; None where there is no interval."""
        if self.t_interval is None:
            return None
        return self.t_interval.low > 1 or self.t_interval.high < 1


def percentile(values: Sequence[float], q: float) -> float:
    """Return the ``q``-th percentile by linear interpolation between the two nearest order statistics.

    Position ``q / 100 * (n - 1)`` in the sorted values (Hyndman and Fan's type 7, NumPy's default).

    Raises
    ------
    ValueError
        For no values, or ``q`` outside 0 to 100.
    """
    if not values or not 0 <= q <= 100:
        raise ValueError("a percentile needs values, and q between 0 and 100")
    ordered = sorted(values)
    position = q / 100 * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float:
    """Return the median (the mean of the middle two for an even number of values)."""
    return percentile(values, 50)


def wilson(k: int, n: int, level: float = LEVEL) -> Interval | None:
    """Return Wilson's score interval for a proportion of ``k`` in ``n``; None for ``n`` = 0.

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)`` with ``p = k/n`` (Wilson 1927).
    """
    if n == 0:
        return None
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no proportion")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p = k / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Exactly 0 and 1 at the ends, where rounding would leave 1e-17.
    return Interval(0.0 if k == 0 else (centre - half) / scale, 1.0 if k == n else (centre + half) / scale)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function by Lentz's method (Numerical Recipes 6.4)."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1) < 1e-15:
            return result
    raise ArithmeticError("the incomplete beta function did not converge")


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) for 0 <= x <= 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def t_cdf(t: float, df: int) -> float:
    """Return Student's t distribution function: ``1 - I_{df/(df+t²)}(df/2, 1/2) / 2`` for t >= 0."""
    tail = incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2
    return 1 - tail if t >= 0 else tail


def t_quantile(p: float, df: int) -> float:
    """Return the ``p``-quantile of Student's t distribution by bisection of `t_cdf`.

    Raises
    ------
    ValueError
        For ``p`` outside (0, 1) or fewer than one degree of freedom.
    """
    if not 0 < p < 1 or df < 1:
        raise ValueError("a t quantile needs 0 < p < 1 and at least one degree of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return Student's t interval of the mean; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile(0.5 + level / 2, n - 1) * sd / math.sqrt(n)
    return Interval(mean - half, mean + half)


def prediction_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return Student's t interval of one more value, ``m ± t(n-1) s sqrt(1 + 1/n)``; None for fewer than two values."""
    n, around = len(values), mean_interval(values, level)
    if around is None:
        return None
    middle, half = (around.low + around.high) / 2, (around.high - around.low) / 2 * math.sqrt(n + 1)
    return Interval(middle - half, middle + half)


def bootstrap_interval(
    values: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """Return the percentile bootstrap interval of the mean; None for fewer than two values.

    The generator is seeded and draws through ``random()`` alone, the one method whose sequence Python keeps.
    """
    n = len(values)
    if n < 2:
        return None
    draw = random.Random(seed).random  # noqa: S311 - resampling, not a secret
    means = [math.fsum(values[int(draw() * n)] for _ in range(n)) / n for _ in range(resamples)]
    return Interval(percentile(means, 50 * (1 - level)), percentile(means, 50 * (1 + level)))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, ``exp(mean(log(v)))``, of positive values (exactly the value where all are equal)."""
    if min(values) == max(values):
        return values[0]
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> RatioEstimate | None:
    """Estimate the ratio of two configs from values paired by prompt; None for no pairs.

    Parameters
    ----------
    numerators, denominators : sequence of float, same length
        One positive value per prompt and side.
    """
    logs = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
    if not logs:
        return None

    def unlog(interval: Interval | None) -> Interval | None:
        return None if interval is None else Interval(math.exp(interval.low), math.exp(interval.high))

    return RatioEstimate(
        n=len(logs),
        ratio_of_medians=median(numerators) / median(denominators),
        geometric_mean=math.exp(math.fsum(logs) / len(logs)),
        t_interval=unlog(mean_interval(logs)),
        bootstrap_interval=unlog(bootstrap_interval(logs)),
    )


def spread(values: Sequence[float]) -> float | None:
    """Return the launch-to-launch spread of one prompt, ``max / min - 1``; None for fewer than two launches."""
    return max(values) / min(values) - 1 if len(values) > 1 else None
