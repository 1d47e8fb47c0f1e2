"""Sums of columns with noise, computed where the rows are: each op of `prep` that adds noise.

Party: columns, bounds and noise in, noisy numbers out, for encoders (pipelines/noisy_answers.py) and for statistics
(explore/noisy_statistics.py). A row is listed once. It counts as often as it is joined, but at most ``times`` times, so
it changes a count by no more than that. How often rows are joined is public; ``times`` is an argument. Where a policy
gives the bounds of a number, or lists the categories of a column, encoders release nothing, and nothing is charged.

- A number without bounds: noisy counts of rows between powers of two give its range; noisy sums of values and squares
  within that range give its mean and scale; counts in bins between bounds give its distribution.
- A category is released if its noisy count is so high that noise alone would reach it once in 10^12 times; others
  count as missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.party.arguments import List, Multiplier
from tablepuppet.party.blind import Blinded, blind
from tablepuppet.party.grant import refusal
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Level, Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Asked, Digests, Numbers, Plain, Wrong
from tablepuppet.prep.columns.statistics import Bins, KeyFamily, check_family, codes_of
from tablepuppet.prep.columns.values import numbers
from tablepuppet.privacy.clip import blocks
from tablepuppet.privacy.noise import gaussian_sigma
from tablepuppet.privacy.noise_plan import TAIL, TAIL_DELTA

RANGES, MOMENTS, CATEGORIES = "private.ranges", "private.moments", "private.categories"
COUNTS, BINS = "private.counts", "private.bins"
STATISTICS = "`describe`, `histogram`, `quantile`, `profile` with `feature_epsilon`"
SMALLEST, LARGEST = -32, 63  # powers of two between which ranges are looked for
POWERS = 2 * (LARGEST - SMALLEST + 1) + 1  # bins of these: negative ones, zero, positive ones
SURE = 5.0  # standard deviations above zero at which a bin is taken to have rows
FARTHEST_BOUND = 1e100  # of a policy's bounds
MOST_LISTED = 1_000_000  # categories of a column
MOST_TIMES = 2**21  # so that sums of 2^31 rows are exact
Times = Annotated[int, Meta(ge=1, le=MOST_TIMES)]
"""How often a row counts at most."""
LEAST_NOISE = 0.5
"""Of counts and sums whose column is not public or has a ``min_group``: between bounds of the caller's choice, cut
until they hold single rows, these are hidden by noise only."""


@dataclass(frozen=True)
class RowsOnce:
    """The rows of a relation. Null records of ``columns`` count as rows without a value, whatever an expression makes
    of NULL.
    """

    table: LocalTable
    view: str
    columns: Sequence[str]
    times: int = 1

    @classmethod
    def of(cls, table: LocalTable, view: str, columns: Sequence[str], times: int = 1) -> RowsOnce:
        """Refuse, by types alone, columns that hold no numbers, and rows that are listed twice."""
        found = cls.of_any(table, view, columns, times)
        for name in columns:
            numbers(table.snapshot.nothing_of(name))
        return found

    @classmethod
    def of_any(cls, table: LocalTable, view: str, columns: Sequence[str], times: int = 1) -> RowsOnce:
        """Columns of any type; refuse rows that are listed twice."""
        table.rows_once(view)
        return cls(table, view, columns, times)

    @cached_property
    def not_null(self) -> NDArray[np.bool_]:
        """Which rows are no null records."""
        return ~self.table.null_rows(self.columns, self.view)

    @cached_property
    def weights(self) -> Array:
        return np.asarray(np.minimum(self.table.rows_once(self.view).counts, self.times), np.float64)

    def values(self, name: str) -> tuple[Array, NDArray[np.bool_]]:
        """(the numbers of a column, which rows have a finite one and are no null records)."""
        values, present = numbers(self.table.column(name, self.view))
        return values, present & self.not_null & np.isfinite(values)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value of any type and are no null records."""
        return np.asarray(pc.is_valid(self.table.column(name, self.view)).to_numpy()) & self.not_null


def is_group(table: LocalTable, counts: Array, times: int = 1) -> bool:
    """Whether a column with these noisy counts may be released: with almost no noise, ``min_group`` still applies.

    A group of fewer rows than that counts at most ``times`` (``min_group`` - 1).
    """
    return bool(are_groups(table, counts, times).any())


def are_groups(table: LocalTable, counts: Array, times: int = 1) -> NDArray[np.bool_]:
    """Which of some groups, with such noisy counts, may be released."""
    least = table.grant.rules.min_group
    return np.asarray(counts > times * (least - 1) + 0.5) if least else np.ones(counts.shape, bool)


def check_noise(table: LocalTable, columns: Sequence[str], multiplier: float) -> None:
    """PrivacyError for next to no noise on counts by group of columns whose small groups the policy hides."""
    for name in columns if multiplier < LEAST_NOISE else ():
        if table.grant.rules.min_group or table.level(name) is not Level.PUBLIC:
            reason = "has counts of single groups only with noise of half a row's part or more; use a smaller epsilon"
            raise refusal(table.grant.party, "min_group", reason, table.grant.table, [name])


@dataclass(frozen=True)
class _Sums:
    """Adds up functions of a part of the rows, of their numbers and how often each counts, with noise."""

    table: LocalTable
    rows: RowsOnce
    multiplier: float
    what: str

    def of(
        self, name: str, of_part: Callable[[Array, Array], Array], shape: tuple[int, ...], sensitivity: float,
        count: Callable[[Array], Array],
    ) -> Array:  # fmt: skip
        """The noisy sums of a column; zeros where their ``count`` of rows is that of a small group."""

        def found() -> Iterator[Array]:
            values, present = self.rows.values(name)
            for block in blocks(len(values)):
                yield of_part(values[block][present[block]], self.rows.weights[block][present[block]])

        noisy = self.table.noisy(found, shape, sensitivity * self.rows.times, self.multiplier, self.what)
        return noisy if is_group(self.table, count(noisy), self.rows.times) else np.zeros(shape)


@dataclass(frozen=True)
class KnownBounds:
    """For each column the policy's bounds, a lower and a higher number, or NaN twice."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        Numbers(("columns", 2), finite=False).check(value, asked, reply)
        value = value.astype(np.float64)
        open_, bounded = np.isnan(value).all(axis=1), (np.abs(value) <= FARTHEST_BOUND).all(axis=1)
        if not (open_ | (bounded & (value[:, 1] - value[:, 0] >= 1 / FARTHEST_BOUND))).all():
            raise Wrong("has bounds that are no lower and higher number")


@dataclass(frozen=True)
class DistinctDigests:
    """How many digests there are."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        Plain(int, 0).check(value, asked, reply)
        Digests(MOST_LISTED).check(reply["digests"], asked, reply)
        if value != len(reply["digests"]):
            raise Wrong("is not the number of digests")


@op(
    RANGES,
    asked="encoders with `feature_epsilon`",
    releases=Release.STATISTICS | Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"known": KnownBounds(), "counts": Numbers(("columns", POWERS))},
)
def ranges(table: LocalTable, view: str, columns: Sequence[str], multiplier: Multiplier) -> Values:
    """The policy's bounds of columns, or NaN and noisy counts of rows by powers of two."""
    given = {name: table.grant.outputs[name].rule.bounds for name in columns}
    check_noise(table, [name for name in columns if given[name] is None], multiplier)
    known, counts = np.full((len(columns), 2), np.nan), np.zeros((len(columns), POWERS))
    sums = _Sums(table, RowsOnce.of(table, view, columns), multiplier, "ranges")

    def by_power(values: Array, _: Array) -> Array:
        return np.bincount(bins_of(values), minlength=POWERS).astype(np.float64)

    for place, name in enumerate(columns):
        bounds = given[name]
        if bounds is not None:
            known[place] = bounds
        else:
            counts[place] = sums.of(name, by_power, (POWERS,), 1.0, lambda noisy: noisy)
    return {"known": known, "counts": counts}


def bins_of(values: Array) -> NDArray[np.int64]:
    """The bin of every value: its sign and power of two.

    >>> (bins_of(np.array([-1.0, 0.0, 1.0, 3.0])) - POWERS // 2).tolist()
    [-34, 0, 34, 35]
    """
    power = np.clip(np.frexp(values)[1], SMALLEST, LARGEST) - SMALLEST + 1
    return np.asarray(POWERS // 2 + np.sign(values).astype(np.int64) * power)


def range_of(counts: Array, noise: float) -> tuple[float, float] | None:
    """The range of the bins that surely have rows; None if none has."""
    sure = np.flatnonzero(counts > SURE * noise) - POWERS // 2
    if not len(sure):
        return None

    def edge(place: int, outward: int) -> float:
        if place == 0:
            return 0.0
        power = abs(place) - 1 + SMALLEST
        return float(np.sign(place)) * 2.0 ** (power if place * outward > 0 else power - 1)

    return edge(int(sure[0]), -1), edge(int(sure[-1]), 1)


def _check_bounds(table: LocalTable, op_name: str, columns: Sequence[str], lows: Array, highs: Array) -> None:
    if lows.shape != (len(columns),) or highs.shape != lows.shape or not (lows < highs).all():
        raise PartyError(f"party {table.grant.party!r}: {op_name} needs a low and a higher number for each column")


@op(
    MOMENTS,
    asked="encoders and statistics with `feature_epsilon`",
    releases=Release.STATISTICS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"sums": Numbers(("columns", 3))},
)
def moments(
    table: LocalTable, view: str, columns: Sequence[str], lows: List, highs: List, multiplier: Multiplier,
    times: Times = 1,
) -> Values:  # fmt: skip
    """Noisy counts, sums and sums of squares of columns, where lows and highs are -1 and 1."""
    _check_bounds(table, MOMENTS, columns, lows, highs)
    check_noise(table, columns, multiplier)  # with bounds close together, a sum is a count of the rows below them
    sums, found = _Sums(table, RowsOnce.of(table, view, columns, times), multiplier, "moments"), []
    for name, low, high in zip(columns, lows, highs, strict=True):

        def powers(values: Array, weights: Array, low: float = low, high: float = high) -> Array:
            inside = np.clip((values - low) / (high - low) * 2 - 1, -1.0, 1.0)  # overflows are clipped
            weighted = weights * inside
            return np.array([weights.sum(), weighted.sum(), weighted @ inside])

        found.append(sums.of(name, powers, (3,), math.sqrt(3.0), lambda noisy: noisy[:1]))
    return {"sums": np.array(found).reshape(-1, 3)}


@op(
    BINS,
    asked=STATISTICS,
    releases=Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"counts": Numbers(("columns", "bins"))},
)
def bins_between(
    table: LocalTable, view: str, columns: Sequence[str], lows: List, highs: List, bins: Bins, multiplier: Multiplier,
    times: Times = 1,
) -> Values:  # fmt: skip
    """Noisy counts of rows in equally wide bins; a value beyond the bounds is in the first or last bin."""
    _check_bounds(table, BINS, columns, lows, highs)
    check_noise(table, columns, multiplier)
    sums, found = _Sums(table, RowsOnce.of(table, view, columns, times), multiplier, "bins"), []
    for name, low, high in zip(columns, lows, highs, strict=True):
        inner = np.linspace(low, high, bins + 1)[1:-1]

        def by_bin(values: Array, weights: Array, inner: Array = inner) -> Array:
            places = np.searchsorted(inner, values, side="right")
            return np.asarray(np.bincount(places, weights, minlength=bins), np.float64)

        found.append(sums.of(name, by_bin, (bins,), 1.0, lambda noisy: noisy.sum(keepdims=True)))
    return {"counts": np.array(found).reshape(-1, bins)}


@op(
    COUNTS,
    asked=STATISTICS,
    releases=Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"counts": Numbers(("columns",))},
)
def count_values(
    table: LocalTable, view: str, columns: Sequence[str], multiplier: Multiplier, times: Times = 1
) -> Values:
    """Noisy counts of the rows that have a value, of columns of any type."""
    rows, counts = RowsOnce.of_any(table, view, columns, times), np.zeros(len(columns))
    for place, name in enumerate(columns):

        def found(name: str = name) -> Iterator[Array]:
            present = rows.present(name)
            for block in blocks(len(present)):
                yield np.array([rows.weights[block][present[block]].sum()])

        noisy = table.noisy(found, (1,), float(times), multiplier, "counts")
        counts[place] = noisy[0] if is_group(table, noisy, times) else 0.0
    return {"counts": counts}


@op(
    CATEGORIES,
    asked="encoders and statistics with `feature_epsilon`",
    releases=Release.KEY_DIGESTS | Release.HISTOGRAMS,
    columns=("column",),
    use=Use.FEATURE,
    private=True,
    returns={
        "distinct": DistinctDigests(),
        "digests": Digests(MOST_LISTED),
        "weights": Numbers(("digests",)),
        "known": Plain(bool),
    },
)
def categories(
    table: LocalTable,
    view: str,
    column: str,
    family: KeyFamily,
    blinding: str,
    multiplier: Multiplier,
    times: Times = 1,
    counted: bool = False,
) -> Values:
    """Digests of the categories that the policy lists, or of those that enough rows have, with noisy counts.

    Noise and cost are those of one category for each row, so they do not reveal how many there are. Listed categories
    are counted only if ``counted``. A row counts as often as it is joined, and at most ``times`` times.
    """
    rows = RowsOnce.of_any(table, view, [column], times)
    check_family(table, column, family)
    key, listed = table.category_key(blinding, column), table.grant.outputs[column].rule.categories

    @cache
    def found() -> Blinded:
        return blind([table.column(column, view)], [family], key)

    def by_category(size: int, codes: NDArray[np.integer]) -> Array:
        counts = np.bincount(codes[rows.not_null], rows.weights[rows.not_null], minlength=size + 1)
        return np.asarray(counts[:size], np.float64)

    if listed is not None:
        digests = blind([_as_column(table, column, listed)], [family], key).digests
        weights, reply = np.ones(len(digests)), {"distinct": len(digests), "digests": digests, "known": True}
        if counted:

            def of_listed() -> Iterator[Array]:
                places = np.append(codes_of(found().digests, digests), -1)[found().codes]
                yield by_category(len(digests), np.where(places < 0, len(digests), places))

            check_noise(table, [column], multiplier)
            weights = table.noisy(of_listed, (len(digests),), float(times), multiplier, "categories")
            weights = np.where(are_groups(table, weights, times), weights, 0.0)
        return {**reply, "weights": weights}

    def of_all() -> Iterator[Array]:
        yield by_category(len(found().digests), found().codes)

    most = len(rows.weights)
    noisy = table.noisy(of_all, (most,), float(times), multiplier, "categories", tail=TAIL_DELTA, is_most=True)
    others = max(1, table.grant.rules.min_group - 1)  # rows that a category may have that is not listed
    kept = noisy > times * others + TAIL * gaussian_sigma(multiplier, float(times), most)
    return {"distinct": int(kept.sum()), "digests": found().digests[kept], "weights": noisy[kept], "known": False}


def _as_column(table: LocalTable, column: str, listed: Sequence[Any]) -> pa.ChunkedArray:
    kind = table.snapshot.type_of(column)
    try:
        return pa.chunked_array([pa.array(listed).cast(kind)])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise PrivacyError(
            f"party {table.grant.party!r}, table {table.grant.table!r}, column {column!r}: the categories in its "
            f"policy are not {kind}"
        ) from None
