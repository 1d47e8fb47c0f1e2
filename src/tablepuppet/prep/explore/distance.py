"""The Kolmogorov-Smirnov distance of a column in two relations: the largest |F1(x) - F2(x)| over all x.

Both distribution functions are known at the ends of cells (distribution.py). Within cells they are known to lie between
two bounds: rows whose cell ends at or below x are certainly up to x, those whose cell begins above x certainly not. So

    low(x)  = max(L1 - U2, L2 - U1)  <=  |F1(x) - F2(x)|  <=  max(U1 - L2, U2 - L1) = high(x)

for L and U of both relations. Cells are cut where high(x) is above the largest low(x), those with the largest bound
first: so few are, and the distance is exact though most values stay unknown. It is an estimate where cells cannot be
cut, in columns that are not public, and where two distributions are so alike that too many would have to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Words
from tablepuppet.prep.explore.distribution import UNCUT, Distribution, Distributions

MOST_CUT = 1 << 12  # cells of a column that are cut in one trip
TRIPS = 12
ROUNDING = 1e-12  # of shares of rows


@dataclass(frozen=True)
class Distance:
    """The largest distance of two distribution functions, and whether it is exact."""

    value: float
    exact: bool


def distances(first: Distributions, second: Distributions) -> dict[str, Distance | None]:
    """By column; None if one relation has no value of it. At most twelve trips for all columns of both."""
    for _ in range(TRIPS):
        sides = first.read(), second.read()
        pairs = {name: (sides[0][name], sides[1][name]) for name in sides[0]}
        wanted = {name: _to_cut(*pair) for name, pair in pairs.items()}
        places = [{name: both[place] for name, both in wanted.items()} for place in (0, 1)]
        if not any([first.cut(places[0]), second.cut(places[1])]):  # both are asked before either is read
            break
    sides = first.read(), second.read()
    return {name: _distance(sides[0][name], sides[1][name]) for name in sides[0]}


@dataclass(frozen=True)
class _Bounds:
    """Bounds of |F1(x) - F2(x)| at all words x where they may change, and an estimate between them."""

    words: Words
    low: Array
    high: Array
    middle: Array


def _bounds(first: Distribution, second: Distribution) -> _Bounds:
    sides = [each.all_cells() for each in (first, second)]
    words = np.unique(np.concatenate([ends for lows, highs, _ in sides for ends in (lows, highs)]))
    (most1, least1), (most2, least2) = (_shares(words, *side) for side in sides)
    low = np.maximum(np.maximum(least1 - most2, least2 - most1), 0.0)
    middle = np.abs(most1 + least1 - most2 - least2) / 2
    return _Bounds(words, low, np.maximum(most1 - least2, most2 - least1), middle)


def _shares(words: Words, lows: Words, highs: Words, weights: Array) -> list[Array]:
    """[the most, the least share of rows up to each word]."""
    found = []
    for ends in (lows, highs):
        order = np.argsort(ends, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(weights[order])])
        found.append(sums[np.searchsorted(ends[order], words, side="right")] / weights.sum())
    return found


def _to_cut(first: Distribution, second: Distribution) -> tuple[list[int], list[int]]:
    """The places of cells of either that reach across a word where the distance may be the largest."""
    if not (first.total and second.total):
        return [], []
    bounds = _bounds(first, second)
    best = bounds.low.max() + ROUNDING
    across = []
    for side in (first, second):
        lows, highs, _ = side.all_cells()
        starts, ends = (np.searchsorted(bounds.words, each, side="left") for each in (lows, highs))
        can_cut = side.cells["depths"] != UNCUT
        across.append((_largest_between(bounds.high, starts, ends), can_cut))
    reached = [np.where(can_cut, largest, -np.inf) for largest, can_cut in across]
    every = np.sort(np.concatenate([each[each > best] for each in reached]))
    least = every[-MOST_CUT] if len(every) > MOST_CUT else best
    chosen = [np.flatnonzero((each > best) & (each >= least))[:MOST_CUT].tolist() for each in reached]
    return chosen[0], chosen[1]


def _largest_between(values: Array, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Array:
    """The largest of ``values[start:end]`` for each pair; -inf for none."""
    found = np.full(len(starts), -np.inf)
    some = ends > starts
    if some.any():
        padded = np.append(values, -np.inf)
        pairs = np.column_stack([starts[some], ends[some]]).ravel()
        found[some] = np.maximum.reduceat(padded, pairs)[::2]
    return found


def _distance(first: Distribution, second: Distribution) -> Distance | None:
    if not (first.total and second.total):
        return None
    bounds = _bounds(first, second)
    best = float(bounds.low.max())
    if bounds.high.max() <= best + ROUNDING:
        return Distance(best, exact=True)
    return Distance(max(best, float(bounds.middle.max())), exact=False)
