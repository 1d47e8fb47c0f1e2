"""Bounds of columns after fitted steps, computed from the bounds before them, without data.

With noise, the result of a step is scaled by these bounds and not by statistics, each of which would cost a release.
The bounds need not hold for every value: parties clip values far outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce, singledispatch

import numpy as np

from tablepuppet.prep.frame import date_part, power
from tablepuppet.prep.given_bounds import Bounds
from tablepuppet.prep.specs import (
    Clipped,
    Exponent,
    Fill,
    FittedStep,
    Logarithm,
    Lookup,
    Missing,
    Outside,
    Part,
    Product,
    Scale,
    StepSpec,
    Without,
)

FARTHEST = 1e140  # sums of squares of it are ordinary numbers
FLAG = (0.0, 1.0)
LOG_SPAN = 6 * math.log(10)  # below the highest logarithm, where the lowest number has none
PARTS: Mapping[str, Bounds] = {
    "quarter": (1, 4), "month": (1, 12), "week": (1, 53), "day": (1, 31), "weekday": (0, 6), "yearday": (1, 366),
    "hour": (0, 23), "minute": (0, 59), "second": (0, 59),
}  # fmt: skip
Known = Mapping[str, Bounds]


def bounds_after(steps: Iterable[StepSpec], known: Known) -> dict[str, Bounds]:
    """Bounds by column after steps; ``known`` are the bounds of numeric columns as they are read.

    >>> bounds_after([Scale("x", 2.0, 4.0), Clipped("x", 0.0, 9.0)], {"x": (-2.0, 10.0)})
    {'x': (0.0, 2.0)}
    """
    found = dict(known)
    for step in steps:
        bounds = _after(step, found)
        if bounds is not None:
            low, high = (min(max(each, -FARTHEST), FARTHEST) for each in bounds)
            found[step.writes] = (low, high)
    return found


@singledispatch
def _after(step: FittedStep, known: Known) -> Bounds | None:
    """Bounds of the column that a step writes; None where it holds no numbers then."""
    return None


@_after.register
def _fill(step: Fill, known: Known) -> Bounds:
    low, high = known[step.column]
    return min(low, step.value), max(high, step.value)


@_after.register(Missing)
@_after.register(Outside)
def _flag(step: Missing | Outside, known: Known) -> Bounds:
    return FLAG


@_after.register
def _scale(step: Scale, known: Known) -> Bounds:
    low, high = known[step.column]
    return (low - step.centre) / step.scale, (high - step.centre) / step.scale


@_after.register(Clipped)
@_after.register(Without)
def _clip(step: Clipped | Without, known: Known) -> Bounds:
    low, high = known[step.column]
    return min(max(low, step.low), step.high), max(min(high, step.high), step.low)


@_after.register
def _logarithm(step: Logarithm, known: Known) -> Bounds:
    low, high = (each + step.offset for each in known[step.column])
    if high <= 0:  # no number has one
        return FLAG
    return math.log(low) if low > 0 else math.log(high) - LOG_SPAN, math.log(high)


@_after.register
def _exponent(step: Exponent, known: Known) -> Bounds:
    with np.errstate(over="ignore"):
        low, high = power(np.array(known[step.column]), step.exponent).tolist()
    return low, high


@_after.register
def _lookup(step: Lookup, known: Known) -> Bounds:
    values = [*step.values, *(each for each in (step.other, step.missing) if each is not None)]
    return min(values, default=0.0), max(values, default=1.0)


@_after.register
def _product(step: Product, known: Known) -> Bounds:
    def times(one: Bounds, other: Bounds) -> Bounds:
        ends = [a * b for a in one for b in other]
        return max(min(ends), -FARTHEST), min(max(ends), FARTHEST)

    return reduce(times, [known[name] for name in step.factors])


@_after.register
def _part(step: Part, known: Known) -> Bounds:
    if step.part in PARTS:
        return PARTS[step.part]
    low, high = date_part(np.array(known[step.column]), step.part).tolist()
    return (low, high) if not math.isnan(low + high) else (1900.0, 2100.0)
