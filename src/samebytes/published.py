"""Figures that somebody published, as data, and whether those that follow from others do follow.

A printed number stands for every value that rounds to it. What is derived from printed numbers is therefore an
interval, and a printed result is consistent where its own interval meets that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from samebytes import strictyaml
from samebytes.errors import UsageError, unknown

Rule = Literal[
    "same",
    "ratio",
    "percent",
    "change_percent",
    "loss_percent",
    "whole_times",
    "within",
    "smallest",
    "sum",
    "difference",
    "product",
]


@dataclass(frozen=True)
class Range:
    """All values from ``low`` to ``high``, as exact fractions."""

    low: Fraction
    high: Fraction

    def meets(self, other: Range) -> bool:
        """Return whether the two ranges have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def map(self, function: Callable[[Fraction], Fraction]) -> Range:
        """Return the range under a function that is monotonic on it."""
        ends = sorted((function(self.low), function(self.high)))
        return Range(ends[0], ends[1])


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Figure(_Part):
    """A number, or a list of them, as printed."""

    printed: str | list[str]
    unit: str
    place: str
    """Where it stands."""
    exact: bool = False
    note: str | None = None


class Derived(_Part):
    """A printed number that follows from figures.

    ``same``: the figure, rounded further. ``ratio``: a / b. ``percent``: 100 a / b.
    ``change_percent``: 100 (a / b − 1). ``loss_percent``: 100 (1 − a / b). ``whole_times``: how often b fits into a.
    ``within``: between a and b. ``smallest``: of a list. ``sum``, ``product``: of all. ``difference``: the first less
    the others.
    """

    id: str
    printed: str
    rule: Rule
    of: list[str]
    place: str
    exact: bool = False
    note: str | None = None

    @model_validator(mode="after")
    def _has_its_inputs(self) -> Derived:
        one = self.rule in ("same", "smallest")
        if one != (len(self.of) == 1) or not self.of:
            raise ValueError(f"{self.id}: rule {self.rule!r} takes {'one figure' if one else 'two figures or more'}")
        return self


@dataclass(frozen=True)
class Check:
    """A derived figure, computed again.

    Attributes
    ----------
    low, high : float
        What the rounding of the inputs allows.
    consistent : bool
        Whether some of it rounds to what is printed.
    """

    id: str
    printed: str
    low: float
    high: float
    consistent: bool
    place: str
    note: str | None


class Published(_Part):
    """An article's figures."""

    title: str
    measured: str
    setup: dict[str, str]
    figures: dict[str, Figure]
    derived: list[Derived]

    def value(self, name: str) -> float:
        """Return one figure as a number."""
        return float(number(self._single(name)))

    def checks(self) -> list[Check]:
        """Compute every derived figure again, in the file's order."""
        return [self._check(derived) for derived in self.derived]

    def _figure(self, name: str) -> Figure:
        if name not in self.figures:
            raise unknown("figure", name, self.figures)
        return self.figures[name]

    def _single(self, name: str) -> str:
        printed = self._figure(name).printed
        if isinstance(printed, list):
            raise UsageError(f"figure {name!r} is a list")
        return printed

    def _range(self, name: str) -> Range:
        figure = self._figure(name)
        if isinstance(figure.printed, list):
            return Range(Fraction(len(figure.printed)), Fraction(len(figure.printed)))
        return rounded(figure.printed, figure.exact)

    def _check(self, derived: Derived) -> Check:
        if derived.rule == "smallest":
            printed = self._figure(derived.of[0]).printed
            if isinstance(printed, str):
                raise UsageError(f"figure {derived.of[0]!r} is no list")
            smallest = min(number(text) for text in printed)
            allowed = Range(smallest, smallest)
        else:
            allowed = combine(derived.rule, [self._range(name) for name in derived.of])
        return Check(
            id=derived.id,
            printed=derived.printed,
            low=float(allowed.low),
            high=float(allowed.high),
            consistent=rounded(derived.printed, derived.exact).meets(allowed),
            place=derived.place,
            note=derived.note,
        )


def number(printed: str) -> Fraction:
    """Return the number that a text like ``1,410`` or ``0.95`` shows.

    Raises
    ------
    UsageError
        Where it shows none.
    """
    try:
        return Fraction(printed.replace(",", ""))
    except ValueError:
        raise UsageError(f"{printed!r} is not a number as printed") from None


def rounded(printed: str, exact: bool = False) -> Range:
    """Return every value that a printed number may stand for: half a unit of its last digit to either side."""
    value = number(printed)
    _, _, decimals = printed.partition(".")
    half = Fraction(0) if exact else Fraction(1, 2 * 10 ** len(decimals))
    return Range(value - half, value + half)


def combine(rule: Rule, of: list[Range]) -> Range:
    """Return the range of a rule over positive ranges (each rule is monotonic in each of them)."""
    first, *others = of
    if rule == "same":
        return first
    if rule == "within":
        return Range(first.low, others[0].high)
    if rule in ("sum", "difference"):
        low, high = first.low, first.high
        for other in others:
            low, high = (low + other.low, high + other.high) if rule == "sum" else (low - other.high, high - other.low)
        return Range(low, high)
    if rule == "product":
        low, high = first.low, first.high
        for other in others:
            low, high = low * other.low, high * other.high
        return Range(low, high)
    ratio = Range(first.low / others[0].high, first.high / others[0].low)
    change: dict[str, Callable[[Fraction], Fraction]] = {
        "ratio": lambda r: r,
        "percent": lambda r: 100 * r,
        "change_percent": lambda r: 100 * (r - 1),
        "loss_percent": lambda r: 100 * (1 - r),
        "whole_times": lambda r: Fraction(floor(r)),
    }
    return ratio.map(change[rule])


def load(path: Path) -> Published:
    """Read published figures.

    Raises
    ------
    UsageError
        Where the file is missing or not valid, or a derived figure names one that does not exist.
    """
    try:
        data = strictyaml.load(path.read_text(encoding="utf-8"))
        found = Published.model_validate(data)
    except FileNotFoundError:
        raise UsageError(f"no published figures at {path}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path.name} is not valid YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path.name}: {where}: {first['msg']}") from None
    found.checks()
    return found
