"""Statistics of columns under feature privacy: from what a policy says about them, or with noise.

Statistics count every row once, however often it is joined, so a row changes a histogram by one. If a party's policy
gives the bounds of a number, or lists the categories of a column, nothing is released and nothing is charged.

- A number without bounds: noisy counts of rows between powers of two give its range; noisy sums of values and squares
  within that range give its mean and scale.
- A category is released if its noisy count is so high that noise alone would reach it once in 10^12 times; others
  count as missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.arguments import List, Multiplier
from tablepuppet.party.blind import Blinded, blind
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Asked, Digests, Numbers, Plain, Wrong
from tablepuppet.prep.columns.rows_once import RowsOnce, Times, are_groups, check_noise, is_group
from tablepuppet.prep.columns.statistics import (
    CategorySummary,
    KeyFamily,
    NumberSummary,
    check_family,
    key_family,
    merge_categories,
)
from tablepuppet.prep.encode.frame import codes_of
from tablepuppet.privacy.clip import blocks
from tablepuppet.privacy.noise import gaussian_sigma
from tablepuppet.privacy.noise_plan import TAIL, TAIL_DELTA
from tablepuppet.sql.query import OutputColumn

MOMENTS, CATEGORIES = "private.moments", "private.categories"
SMALLEST, LARGEST = -32, 63  # powers of two between which ranges are looked for
BINS = 2 * (LARGEST - SMALLEST + 1) + 1  # negative ones, zero, positive ones
SURE = 5.0  # standard deviations above zero at which a bin is taken to have rows
FARTHEST_BOUND = 1e100  # of a policy's bounds
MOST_LISTED = 1_000_000  # categories of a column
UNIFORM = math.sqrt(12)  # the width of an even spread, in standard deviations


@dataclass(frozen=True)
class KnownBounds:
    """For each column the policy's bounds, a lower and a higher number, or NaN twice."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        Numbers(("columns", 2), finite=False).check(value, asked, reply)
        value = value.astype(np.float64)
        open_, bounded = np.isnan(value).all(axis=1), (np.abs(value) <= FARTHEST_BOUND).all(axis=1)
        if not (open_ | (bounded & (value[:, 1] - value[:, 0] >= 1 / FARTHEST_BOUND))).all():
            raise Wrong("has bounds that are no lower and higher number")


@dataclass(frozen=True)
class DistinctDigests:
    """How many digests there are."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is their number."""
        Plain(int, 0).check(value, asked, reply)
        Digests(MOST_LISTED).check(reply["digests"], asked, reply)
        if value != len(reply["digests"]):
            raise Wrong("is not the number of digests")


@op(
    "private.ranges",
    asked="encoders with `feature_epsilon`",
    releases=Release.STATISTICS | Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"known": KnownBounds(), "counts": Numbers(("columns", BINS))},
)
def ranges(table: LocalTable, view: str, columns: Sequence[str], multiplier: Multiplier) -> Values:
    """The policy's bounds of columns, or NaN and noisy counts of rows by powers of two."""
    check_noise(table, [name for name in columns if table.grant.outputs[name].rule.bounds is None], multiplier)
    rows = RowsOnce.of(table, view, columns)
    known, counts = np.full((len(columns), 2), np.nan), np.zeros((len(columns), BINS))
    for place, name in enumerate(columns):
        bounds = table.grant.outputs[name].rule.bounds
        if bounds is not None:
            known[place] = bounds
            continue

        def found(name: str = name) -> Iterator[Array]:
            values, present = rows.values(name)
            yield np.bincount(bins_of(values[present]), minlength=BINS).astype(np.float64)

        noisy = table.noisy(found, (BINS,), 1.0, multiplier, "ranges")
        counts[place] = noisy if is_group(table, noisy) else 0.0
    return {"known": known, "counts": counts}


def bins_of(values: Array) -> NDArray[np.int64]:
    """The bin of every value: its sign and power of two.

    >>> (bins_of(np.array([-1.0, 0.0, 1.0, 3.0])) - BINS // 2).tolist()
    [-34, 0, 34, 35]
    """
    power = np.clip(np.frexp(values)[1], SMALLEST, LARGEST) - SMALLEST + 1
    return np.asarray(BINS // 2 + np.sign(values).astype(np.int64) * power)


def range_of(counts: Array, noise: float) -> tuple[float, float] | None:
    """The range of the bins that surely have rows; None if none has."""
    sure = np.flatnonzero(counts > SURE * noise) - BINS // 2
    if not len(sure):
        return None

    def edge(place: int, outward: int) -> float:
        if place == 0:
            return 0.0
        power = abs(place) - 1 + SMALLEST
        return float(np.sign(place)) * 2.0 ** (power if place * outward > 0 else power - 1)

    return edge(int(sure[0]), -1), edge(int(sure[-1]), 1)


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
    table: LocalTable,
    view: str,
    columns: Sequence[str],
    lows: List,
    highs: List,
    multiplier: Multiplier,
    times: Times = 1,
) -> Values:
    """Noisy counts, sums and sums of squares of columns, where lows and highs are -1 and 1.

    A row counts as often as it is joined, and at most ``times`` times.
    """
    if lows.shape != (len(columns),) or highs.shape != lows.shape or not (lows < highs).all():
        raise PartyError(
            f"party {table.grant.party!r}: private.moments needs a low and a higher number for each column"
        )
    check_noise(table, columns, multiplier)  # with bounds close together, a sum is a count of the rows below them
    rows, sums = RowsOnce.of(table, view, columns, times), np.zeros((len(columns), 3))
    for place, (name, low, high) in enumerate(zip(columns, lows, highs, strict=True)):

        def found(name: str = name, low: float = low, high: float = high) -> Iterator[Array]:
            values, present = rows.values(name)
            for block in blocks(len(values)):
                inside = np.clip((values[block] - low) / (high - low) * 2 - 1, -1.0, 1.0)  # overflows are clipped
                inside, weights = inside[present[block]], rows.weights[block][present[block]]
                weighted = weights * inside
                yield np.array([weights.sum(), weighted.sum(), weighted @ inside])

        noisy = table.noisy(found, (3,), math.sqrt(3.0) * times, multiplier, "moments")
        sums[place] = noisy if is_group(table, noisy[:1], times) else 0.0
    return {"sums": sums}


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
        counts = np.bincount(codes[rows.kept], rows.weights[rows.kept], minlength=size + 1)
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


@dataclass
class EncoderNoise:
    """The noise multipliers of statistics by table; ``used`` counts the releases that had noise."""

    multipliers: Mapping[str, float]
    used: dict[str, int] = field(default_factory=dict)

    def use(self, alias: str) -> None:
        """Count one release."""
        self.used[alias] = self.used.get(alias, 0) + 1


def ask_categories(client: Client, column: OutputColumn, blinding: str, noise: EncoderNoise) -> Pending:
    """Ask for the categories of a text that policies list, or that enough rows have."""
    asked = {"column": column.name, "family": key_family(column), "blinding": blinding}
    given = {**asked, "multiplier": noise.multipliers[column.alias]}
    return client.ask(CATEGORIES, lambda alias, _: given if alias == column.alias else None)


def read_categories(asked: Pending, column: OutputColumn, noise: EncoderNoise) -> CategorySummary:
    """These categories over all shards; how many rows have none is not known, some may. Noise is counted as used."""
    replies = asked.read()[column.alias]
    if not all(reply["known"] for reply in replies):
        noise.use(column.alias)
    return replace(merge_categories([{**reply, "missing": 0.0, "top": 0.0} for reply in replies]), missing=1.0)


def spread_evenly(rows: float, low: float, high: float) -> NumberSummary:
    """Statistics of numbers that are spread evenly between bounds."""
    return summary_of(rows, (low + high) / 2, (high - low) / UNIFORM, low, high)


def summary_of(rows: float, mean: float, scale: float, low: float, high: float) -> NumberSummary:
    """Statistics of numbers of which these are known; which are missing is not."""
    return NumberSummary(rows, mean, rows * scale**2, 0.0, rows, low, high)


def fit_numbers(
    client: Client, columns: Sequence[OutputColumn], rows: float, noise: EncoderNoise
) -> dict[str, NumberSummary | None]:
    """By name, from policies' bounds or with noise; None for a column whose range noise hides.

    Minimum and maximum are bounds between which values are expected.
    """
    by_alias: dict[str, list[OutputColumn]] = {}
    for column in columns:
        by_alias.setdefault(column.alias, []).append(column)
    asked = {
        alias: {"columns": [column.name for column in listed], "multiplier": noise.multipliers[alias]}
        for alias, listed in by_alias.items()
    }
    replies = client.ask("private.ranges", lambda alias, _: asked.get(alias)).read()
    found: dict[str, NumberSummary | None] = {}
    open_: dict[str, list[tuple[OutputColumn, float, float]]] = {}
    for alias, listed in by_alias.items():
        for place, column in enumerate(listed):
            bounds = [reply["known"][place] for reply in replies[alias]]
            ranges = [(float(low), float(high)) for low, high in bounds if not math.isnan(low + high)]
            is_known = len(ranges) == len(bounds)  # else some shard has returned noisy counts
            if not is_known:
                noise.use(alias)
                counts = np.sum([reply["counts"][place] for reply in replies[alias]], axis=0)
                seen = range_of(counts, noise.multipliers[alias] * math.sqrt(len(bounds)))
                ranges += [] if seen is None else [seen]
            low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
            if is_known:
                found[column.name] = spread_evenly(rows, low, high)
            elif low == high:
                found[column.name] = None
            else:
                open_.setdefault(alias, []).append((column, low, high))
    return found | _fit_moments(client, open_, rows, noise)


def mean_and_spread(count: float, total: float, squares: float, sigma: float) -> tuple[float, float]:
    """Mean and scale of values between -1 and 1 from their sums, each with noise of standard deviation ``sigma``.

    The variance is a small difference of noisy numbers, and counts as no less than its own noise: a scale that is too
    large makes a column weak, one that is too small would make its values huge.

    >>> mean_and_spread(1000.0, 0.0, 250.0, sigma=0.0)
    (0.0, 0.5)
    """
    rows = max(count, sigma, 1.0)
    mean = float(min(max(total / rows, -1.0), 1.0))
    variance = max(squares / rows - mean**2, 0.0)
    noise = sigma / rows * math.sqrt(1 + 4 * mean**2 + (variance - mean**2) ** 2)  # of the variance, to first order
    return mean, math.sqrt(min(max(variance, noise, 1e-4), 1.0))


def _fit_moments(
    client: Client, columns: Mapping[str, Sequence[tuple[OutputColumn, float, float]]], rows: float, noise: EncoderNoise
) -> dict[str, NumberSummary | None]:
    asked = {
        alias: {
            "columns": [column.name for column, _, _ in listed],
            "lows": np.array([low for _, low, _ in listed]),
            "highs": np.array([high for _, _, high in listed]),
            "multiplier": noise.multipliers[alias],
        }
        for alias, listed in columns.items()
    }
    replies = client.ask(MOMENTS, lambda alias, _: asked.get(alias)).read()
    found: dict[str, NumberSummary | None] = {}
    for alias, listed in columns.items():
        sums = np.sum([reply["sums"] for reply in replies[alias]], axis=0)
        sigma = math.sqrt(3.0 * len(replies[alias])) * noise.multipliers[alias]
        for (column, low, high), (count, total, squares) in zip(listed, sums, strict=True):
            noise.use(alias)
            mean, spread = mean_and_spread(count, total, squares, sigma)
            half = (high - low) / 2
            found[column.name] = summary_of(rows, low + half * (1 + mean), half * spread, low, high)
    return found
