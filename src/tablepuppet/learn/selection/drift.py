"""`drift`: how much the distribution of each column differs between two relations, by PSI and Kolmogorov-Smirnov.

For PSI numbers are counted in bins that contain about equally many rows of the first relation; parties release
histograms only (distribution.py). Categories are counted under digests, which are the same in both relations. Rows
without a value are a separate bin.

The distance of Kolmogorov and Smirnov is the largest |F1(x) - F2(x)| over all x. Both distribution functions are known
at the ends of cells. Within cells they are known to lie between two bounds: rows whose cell ends at or below x are
certainly up to x, those whose cell begins above x certainly not. So

    low(x)  = max(L1 - U2, L2 - U1)  <=  |F1(x) - F2(x)|  <=  max(U1 - L2, U2 - L1) = high(x)

for L and U of both relations. Cells are cut where high(x) is above the largest low(x), those with the largest bound
first: so few are, and the distance is exact though most values stay unknown. It is an estimate where cells cannot be
cut, in columns that are not public, and where two distributions are so alike that too many would have to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Words
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.settings import check_whole
from tablepuppet.mapping.join import number_digests
from tablepuppet.prep.columns.selected import check_without_noise, find_column, is_category
from tablepuppet.prep.columns.statistics import CategoryStatistics
from tablepuppet.prep.explore.distribution import UNCUT, Distribution, Distributions, rows_below
from tablepuppet.prep.explore.pooled import check_number
from tablepuppet.prep.explore.quantiles import quantiles_of
from tablepuppet.relation import Relation
from tablepuppet.runs.figures import NOT_APPLICABLE, fixed
from tablepuppet.runs.table_view import TableResult, TableView
from tablepuppet.spelling import names_checked, unknown_key
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, family

STEP = "drift"
LEAST_SHARE = 1e-4  # of a bin: an empty one would make the index infinite
SOME, LARGE = 0.1, 0.25  # of the index, by a common rule of thumb
MOST_BINS = 1000
Pair = tuple[OutputColumn, OutputColumn]


@dataclass(frozen=True)
class ColumnDrift:
    """Of one column: ``psi``, and of numbers ``ks``; joined rows by bin in both relations, the last those missing."""

    column: str
    psi: float
    ks: float | None
    counts: tuple[Array, Array]
    exact: bool

    @property
    def verdict(self) -> str:
        """``none``, ``some`` (an index from 0.1) or ``large`` (from 0.25)."""
        return "none" if self.psi < SOME else "some" if self.psi < LARGE else "large"


class Drift(TableResult):
    """Drift by column, the largest index first: ``found["price"].psi``."""

    def __init__(self, found: Sequence[ColumnDrift]):
        self._found = sorted(found, key=lambda each: -each.psi)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[ColumnDrift]:
        return iter(self._found)

    def __getitem__(self, column: str) -> ColumnDrift:
        for each in self._found:
            if column == each.column:
                return each
        raise unknown_key("drift", column, [each.column for each in self])

    def to_arrow(self) -> pa.Table:
        """One row per column."""
        return pa.table(
            {
                "column": pa.array([each.column for each in self], pa.string()),
                "psi": pa.array([each.psi for each in self], pa.float64()),
                "ks": pa.array([each.ks for each in self], pa.float64()),
                "drift": pa.array([each.verdict for each in self], pa.string()),
                "exact": pa.array([each.exact for each in self], pa.bool_()),
            }
        )

    def table_view(self) -> TableView:
        rows = [[each.column, _cell(each.psi), _cell(each.ks), each.verdict] for each in self]
        return TableView("Drift", {"column": "left", "PSI": "right", "KS": "right", "drift": "left"}, rows)


def _cell(distance: float | None) -> str:
    """A distance of two distributions; of categories there is no KS.

    >>> _cell(0.00003838), _cell(None)
    ('0.0000', '-')
    """
    return NOT_APPLICABLE if distance is None else fixed(distance, 4)


@names_checked
def drift(first: Relation, second: Relation, columns: Sequence[str] | None = None, bins: int = 10) -> Drift:
    """How far ``second`` is distributed differently from ``first``, column by column.

    ``psi`` is the population stability index, sum of (p - q) ln(p / q) over shares of bins or categories; ``ks`` the
    distance of Kolmogorov and Smirnov, the largest one of the two distribution functions. Both are ``exact`` for public
    columns, unless distributions are so alike that too many rows would have to be told apart. Columns are those of one
    name and kind in both; without ``columns`` all of them, except texts of too many values.
    """
    for relation in (first, second):
        need_relation(relation, STEP)
    if first.client.engine is not second.client.engine:
        raise LearnError(f"{STEP}: the relations are of two federations; open both in one")
    check_whole(f"{STEP}: bins", bins, 2, MOST_BINS)
    for relation, which in ((first, "first"), (second, "second")):
        if not len(relation):
            raise LearnError(f"{STEP}: the {which} relation has no joined rows")
    pairs = _pairs(first, second, columns)
    for place, relation in enumerate((first, second)):
        check_without_noise(relation.plan, [pair[place] for pair in pairs], STEP)
    categories = [pair for pair in pairs if _is_category(first, pair[0]) or _is_category(second, pair[1])]
    numbers = [pair for pair in pairs if pair not in categories]
    asked = _Categories(first, second, categories)
    found = _numbers(first, second, numbers, int(bins))
    return Drift([*found, *asked.read(named=columns is not None)])


def _pairs(first: Relation, second: Relation, names: Sequence[str] | None) -> list[Pair]:
    """Columns of both relations by name; LearnError if one is named that does not fit."""
    if isinstance(names, str):
        raise LearnError(f"{STEP}: columns is a list of names, such as columns=[{names!r}]")
    if names is None:
        others = {column.name: column for column in second.query.outputs}
        pairs = [(column, others[column.name]) for column in first.query.outputs if column.name in others]
        found = [pair for pair in pairs if not _misfit(pair)]
        _tell_left_out(first, second, found)
        if not found:
            raise LearnError(f"{STEP}: the relations have no column of one name and kind")
        return found
    found = list(
        dict.fromkeys((find_column(first.plan, name, STEP), find_column(second.plan, name, STEP)) for name in names)
    )
    for pair in found:
        if reason := _misfit(pair):
            raise LearnError(f"{STEP}: column {pair[0].name!r} {reason}; CAST it in SELECT")
    return found


def _tell_left_out(first: Relation, second: Relation, found: Sequence[Pair]) -> None:
    """A warning for each column of either relation that is not compared."""
    compared = {column.name for column, _ in found}
    sides = [{column.name: column for column in relation.query.outputs} for relation in (first, second)]
    for name in [each for each in sides[0] | sides[1] if each not in compared]:
        if name in sides[0] and name in sides[1]:
            reason = _misfit((sides[0][name], sides[1][name]))
        else:
            reason = f"is in the {'first' if name in sides[0] else 'second'} relation only"
        _tell(first, name, reason)


def _tell(relation: Relation, name: str, reason: str) -> None:
    why = f"{reason}, so {STEP} leaves it out"
    relation.events.emit("warning", "column.dropped", f"{name}: {why}", column=name, reason=why)


def _misfit(pair: Pair) -> str:
    """Why two columns cannot be compared; nothing if they can."""
    kinds = [family(column.type) for column in pair]
    if all(kind in NUMERIC for kind in kinds):
        return ""
    if kinds[0] != kinds[1]:
        return f"is {pair[0].type} in one relation and {pair[1].type} in the other"
    return "" if kinds[0] in KEY_LIKE else f"is {pair[0].type}, which has neither numbers nor categories"


def _is_category(relation: Relation, column: OutputColumn) -> bool:
    return is_category(column, relation.query.categorical) and family(column.type) in KEY_LIKE


def _numbers(first: Relation, second: Relation, pairs: Sequence[Pair], bins: int) -> list[ColumnDrift]:
    """Numbers in bins of the first relation's quantiles; edges are rows of the bin above them."""
    clients = first.client, second.client
    sides = [Distributions(client, [pair[place] for pair in pairs]) for place, client in enumerate(clients)]
    cuts = quantiles_of(sides[0], (np.arange(1, bins) / bins).tolist())
    edges = {name: np.unique([cut.value for cut in found]) for name, found in cuts.items()}
    edges = {name: cuts_[np.isfinite(cuts_)] for name, cuts_ in edges.items()}
    counted = [rows_below(side, {name: listed.tolist() for name, listed in edges.items()}) for side in sides]
    found, apart = [], distances(*sides)
    for column, _ in pairs:
        below = [side[column.name] for side in counted]
        if any(each.total and math.isnan(cut.value) for each, cut in zip(below[:1], cuts[column.name], strict=False)):
            raise LearnError(f"{STEP}: column {column.name!r} has NaN values; filter them in WHERE")
        counts = [
            np.append(np.diff(each.below, prepend=0.0, append=each.total), len(relation) - each.total)
            for each, relation in zip(below, (first, second), strict=True)
        ]
        ks, exact = apart[column.name], all(each.exact for each in below)
        if ks is not None:
            exact = exact and ks.exact
        value = None if ks is None else ks.value
        found.append(ColumnDrift(column.name, _psi(*counts), value, (counts[0], counts[1]), exact))
    return found


class _Categories:
    """Counts of categories in both relations: asked for when made. The same digests stand for the same values."""

    def __init__(self, first: Relation, second: Relation, pairs: Sequence[Pair]):
        self._sizes, self._most = (len(first), len(second)), first.max_categories
        self._first, self._pairs, blinding = first, pairs, first.client.new_name()
        self._asked = [
            [CategoryStatistics(relation.client, pair[place], blinding, None) for pair in pairs]
            for place, relation in enumerate((first, second))
        ]

    def read(self, *, named: bool) -> list[ColumnDrift]:
        found = []
        for pair, *sides in zip(self._pairs, *self._asked, strict=True):
            categories = [side.read() for side in sides]
            [numbers], size = number_digests([np.concatenate([each.digests for each in categories])])
            if named:
                check_number(pair[0], size, self._most, STEP)
            if size > self._most:
                _tell(self._first, pair[0].name, f"has {size:,} categories, more than {self._most:,}")
                continue
            parts = np.split(numbers, [len(categories[0].digests)])
            counts = [
                np.append(np.bincount(part, each.weights, minlength=size), rows - each.weights.sum())
                for part, each, rows in zip(parts, categories, self._sizes, strict=True)
            ]
            found.append(ColumnDrift(pair[0].name, _psi(*counts), None, (counts[0], counts[1]), exact=True))
        return found


def _psi(first: Array, second: Array) -> float:
    """The index of two lists of counts; bins that are empty in both say nothing."""
    some = (first + second) > 0
    p, q = (np.maximum(each[some] / each.sum(), LEAST_SHARE) for each in (first, second))
    return float(np.sum((p - q) * np.log(p / q)))


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
