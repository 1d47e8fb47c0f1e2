"""Statistics of columns over the joined rows, computed where the rows are.

A party weights each row by how often it is joined and returns a few sums per column, centred at its own mean so that no
digits are lost. The coordinator adds the sums of shards (Chan, Golub and LeVeque 1983; Pébay 2008). Categories
are counted under digests, so that no text leaves a party.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.mapping.join import number_digests
from tablepuppet.operators.client import Client
from tablepuppet.party.blind import Blinded, blind, canonical, check_families, digest_order, factorise
from tablepuppet.party.groups import Grouped, all_grouped, rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Level
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, ROWS, Asked, Digests, Numbers, OfGroups, Plain, Returns, Wrong
from tablepuppet.prep.columns.values import numbers
from tablepuppet.privacy.cmac import cmac
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

KeyFamily = Literal["number", "float", "text", "date", "timestamp", "boolean", "uuid"]  # as `blind` knows them
ORDER = b"the order of equal frequencies.."  # a key that everybody knows: public categories have one order everywhere
NO_DIGESTS = np.zeros((0, 16), np.uint8)
NO_TIES = np.zeros(0, np.uint64)
MOST_BINS = 10_000
Bins = Annotated[int, Meta(ge=1, le=MOST_BINS)]
SUMS, SHAPE = 8, 2  # numbers that are returned of a column, and of its shape


@dataclass(frozen=True)
class NumberSums:
    """Sums of columns as `number_statistics` returns them: counts are of the joined rows, squares are not negative."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        check_sums(value, "columns", asked, reply)


def check_sums(value: Any, columns: int | str, asked: Asked, reply: Mapping[str, Any]) -> None:
    """Raise `Wrong` unless an array holds sums of this number of columns."""
    has_shape = asked.arguments.get("shape", False)
    Numbers((columns, SUMS + SHAPE if has_shape else SUMS), finite=False).check(value, asked, reply)
    count, _, _, squares, odd, rows, low, high = value.T[:SUMS]
    if not ((odd >= 0) & (count >= odd) & (rows >= count) & (count == np.rint(count))).all():
        raise Wrong("has counts that are no counts of rows")
    if asked.joined is not None and not (rows == asked.joined).all():
        raise Wrong("has counts of other rows than those that are joined")
    if (squares < 0).any() or (low > high).any() or (has_shape and (value[:, -1] < 0).any()):
        raise Wrong("has squares below 0, or a minimum above the maximum")


@dataclass(frozen=True)
class CategoryWeights:
    """The weights of all categories: with missing rows they add up to the joined rows. Empty if there are too many."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        Numbers(("digests",), least=0.0, most=JOINED).check(value, asked, reply)
        distinct, most = reply["distinct"], asked.arguments["most"]
        is_listed = most is None or distinct <= most
        top = min(distinct, 1) if is_listed or asked.arguments.get("top", True) else 0
        if len(value) != (distinct if is_listed else 0) or len(reply["top_digest"]) != top:
            raise Wrong("has more or fewer categories than there are")
        if not is_listed:
            return
        if value.max(initial=0.0) != reply["top"] or asked.joined not in (None, value.sum() + reply["missing"]):
            raise Wrong("has counts of other rows than those that are joined")


CATEGORIES: Returns = {
    "distinct": OfGroups(Plain(int, 0, ROWS)), "top": OfGroups(Plain(float, 0.0, JOINED)),
    "missing": OfGroups(Plain(float, 0.0, JOINED)), "top_digest": OfGroups(Digests(1)), "digests": OfGroups(Digests()),
    "weights": OfGroups(CategoryWeights()),
    "ties": OfGroups(Numbers(("digests",), "u", or_none=True)),  # by which equally frequent ones have an order
}  # fmt: skip


@op(
    "statistics.numbers",
    asked="`describe`, encoders without privacy",
    releases=Release.STATISTICS,
    columns=("columns",),
    returns={"sums": OfGroups(NumberSums())},
)
def number_statistics(table: LocalTable, view: str, columns: Sequence[str], shape: bool = False) -> Values:
    """Count, mean and centred sum of squares of numeric columns; extremes only of public ones.

    With ``shape`` also sums of the third and fourth power about the mean. A column with a value in fewer rows than the
    policy's ``min_group`` counts as one without any.
    """
    joined = float(table.view(view).counts.sum())
    rows, groups = [], []
    for name in columns:
        values, weights, group = present_numbers(table, view, name)
        groups.append(group)
        found = centred_sums(values, weights)
        public = len(values) and table.level(name) is Level.PUBLIC
        rows.append([*found, joined, *((values.min(), values.max()) if public else (math.nan, math.nan))])
        rows[-1] += _shape_sums(values, weights, *found[1:3]) if shape else []
    sums = np.array(rows, np.float64).reshape(-1, SUMS + SHAPE if shape else SUMS)
    return {"sums": Grouped(sums, np.array(groups, np.int64))}


def _shape_sums(values: NDArray[np.float64], weights: NDArray[np.float64], mean: float, rest: float) -> list[float]:
    """Sums of the third and fourth power about the mean; NaN where there is none."""
    with np.errstate(over="ignore", invalid="ignore"):
        centred = (values - mean) - rest
        squares = centred**2
        return [float(weights @ (squares * centred)), float(weights @ squares**2)]


def released_numbers(table: LocalTable, view: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(the numbers of a column, which rows have one); none has if fewer than ``min_group`` different rows have."""
    values, present = numbers(table.column(name, view))
    return values, shown(table, view, present)


def shown(table: LocalTable, view: str, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows have a number, for statistics; none has if fewer than ``min_group`` different rows have."""
    if table.grant.rules.min_group <= 1 or table.grant.is_group(rows_of(table.view(view), present)):
        return present
    return np.zeros_like(present)


def present_numbers(table: LocalTable, view: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """(numbers, how often each is joined, how many different rows) of those that `released_numbers` has one of."""
    values, present = released_numbers(table, view, name)
    rows = table.view(view)
    weights, group = rows.counts.astype(np.float64), rows_of(rows, present)
    return (values, weights, group) if present.all() else (values[present], weights[present], group)


def centred_sums(values: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float, float, float, float]:
    """(weight, mean, what the mean lost to rounding, sum of squares about the mean, weight of values not finite)."""
    total = float(weights.sum())
    low, high = (float(values.min()), float(values.max())) if len(values) else (math.nan, math.nan)
    odd = 0.0 if math.isfinite(low - high) else float(weights[~np.isfinite(values)].sum())
    if not total or odd:
        return total, math.nan, math.nan, math.nan, odd
    if low == high:  # exactly constant, whatever the sums would round to
        return total, float(values[0]), 0.0, 0.0, odd
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is returned as infinity or NaN
        mean = float(weights @ values) / total
        mean += float(weights @ (values - mean)) / total
        centred = values - mean
        rest = float(weights @ centred) / total
        return total, mean, rest, float(weights @ (centred - rest) ** 2), odd


@op(
    "statistics.categories",
    asked="`describe`, encoders without privacy",
    releases=Release.KEY_DIGESTS | Release.HISTOGRAMS,
    columns=("column",),
    returns=CATEGORIES,
)
def category_statistics(
    table: LocalTable, view: str, column: str, family: KeyFamily, blinding: str, most: int | None, ties: bool = False,
    top: bool = True,
) -> Values:  # fmt: skip
    """How often each category occurs, by digest; of a column with more than ``most`` categories only the digest of its
    ``top`` one, the most frequent, if that is asked for.

    With ``ties``, of a public column, also a hash of each category's name that is the same in every fit.
    """
    check_family(table, column, family)
    found, rows = factorise(table.column(column, view)), table.view(view)
    codes, size = found.codes, len(found.distinct)
    listed = np.bincount(codes if rows.are_all_first else codes[rows.firsts], minlength=size + 1)
    kept = table.grant.is_group(listed[:-1])
    is_plain = rows.are_all_first and rows.is_each_joined_once
    weights = (listed if is_plain else np.bincount(codes, rows.counts, minlength=size + 1)).astype(np.float64)
    missing, weights = float(weights[-1] + weights[:-1][~kept].sum()), np.where(kept, weights[:-1], 0.0)
    distinct = int(np.count_nonzero(kept))
    is_listed, groups = most is None or distinct <= max(most, 0), listed[:-1][weights > 0]
    if not is_listed and not top:
        counts = {"distinct": distinct, "top": float(weights.max(initial=0.0)), "missing": missing}
        no_names = {"top_digest": NO_DIGESTS, "digests": NO_DIGESTS, "weights": np.zeros(0), "ties": NO_TIES}
        return all_grouped(counts | no_names, groups)
    chosen = np.flatnonzero(kept) if is_listed else np.array([weights.argmax()])  # only these are blinded
    texts = canonical([found.distinct.take(pa.array(chosen))], [family])
    digests = cmac(table.category_key(blinding, column), texts)
    order = digest_order(digests)
    digests, listed = digests[order], weights[chosen[order]]
    has_ties = ties and is_listed and table.level(column) is Level.PUBLIC  # other names are nobody's business
    reply = {
        "distinct": distinct,
        "top": float(weights.max(initial=0.0)),
        "missing": missing,
        "top_digest": digests[listed.argmax()][None] if distinct else digests,
        "digests": digests if is_listed else digests[:0],
        "weights": listed if is_listed else listed[:0],
        "ties": cmac(ORDER, texts)[order, :8].copy().view("<u8").ravel() if has_ties else NO_TIES,
    }
    return all_grouped(reply, groups)


def check_family(table: LocalTable, column: str, family: str) -> None:
    """PartyError unless values of a column's type can be written as those of a family, whichever they are."""
    try:
        check_families([table.snapshot.nothing_of(column)], [family])
    except PartyError as error:
        where = f"party {table.grant.party!r}, table {table.grant.table!r}, column {column!r}"
        raise PartyError(f"{where}: {error}") from None


def categories_of(table: LocalTable, view: str, column: str, family: str, blinding: str) -> Blinded:
    """A column's categories as digests; one with fewer rows than the policy's ``min_group`` counts as missing."""
    check_family(table, column, family)
    blinded = blind([table.column(column, view)], [family], table.category_key(blinding, column))
    rows = np.bincount(blinded.codes[table.view(view).firsts], minlength=len(blinded.digests) + 1)[:-1]
    kept = table.grant.is_group(rows)
    if kept.all():
        return blinded
    place = np.full(len(kept) + 1, np.count_nonzero(kept))
    place[:-1][kept] = np.arange(np.count_nonzero(kept))
    return Blinded(blinded.digests[kept], place[blinded.codes])


@dataclass(frozen=True)
class NumberSummary:
    """Weighted statistics of one numeric column over all joined rows."""

    count: float
    mean: float
    squares: float  # sum of squares about the mean
    not_finite: float
    rows: float
    minimum: float
    maximum: float
    third: float = math.nan  # sums of the third and fourth power about the mean, if they were asked for
    fourth: float = math.nan

    @property
    def missing(self) -> int:
        """Joined rows without a value."""
        return round(self.rows - self.count)

    @property
    def skew(self) -> float:
        """Skew without bias, as pandas; NaN where rows are too few, constant or not finite."""
        n, m2 = self.count, self.squares
        if n < 3 or not (math.isfinite(self.third) and 1e-200 < m2 < math.inf):  # below, cubes are no numbers
            return math.nan
        return float(n * math.sqrt(n - 1) / (n - 2) * (self.third / m2 / math.sqrt(m2)))  # m2^1.5 may be no number

    @property
    def kurtosis(self) -> float:
        """Excess kurtosis without bias, as pandas; NaN where rows are too few, constant or not finite.

        >>> round(merge_numbers([np.array([4.0, 2.5, 0.0, 5.0, 0.0, 4.0, 1.0, 4.0, 0.0, 10.25])]).kurtosis, 6)
        -1.2
        """
        n, m2 = self.count, self.squares
        if n < 4 or not (math.isfinite(self.fourth) and 1e-150 < m2 < math.inf):
            return math.nan
        return (n * (n + 1) * (n - 1) * (self.fourth / m2 / m2) - 3 * (n - 1) ** 2) / ((n - 2) * (n - 3))

    def std(self, ddof: int) -> float:
        """Standard deviation; NaN where it has none."""
        return math.sqrt(self.squares / (self.count - ddof)) if self.count > ddof else math.nan


@dataclass(frozen=True)
class CategorySummary:
    """Weighted counts of one column's distinct values over all joined rows."""

    distinct: int
    top: float
    missing: float
    digests: NDArray[np.uint8]  # (listed, 16) in digest order; empty if there are too many
    weights: NDArray[np.float64]
    top_digest: NDArray[np.uint8]  # (1, 16), of the most frequent; empty where it is not known
    ties: NDArray[np.uint64]  # (listed,): a word for each, the same in every fit; none if the column is not public


class AskedColumns:
    """An op on columns, asked of all shards of their tables when this is made.

    ``more`` are further arguments for the columns of one table.
    """

    def __init__(
        self, client: Client, op: str, columns: Iterable[OutputColumn],
        more: Callable[[Sequence[OutputColumn]], Mapping[str, Any]] = lambda _: {},
    ):  # fmt: skip
        self.by_alias: dict[str, list[OutputColumn]] = {}
        for column in columns:
            self.by_alias.setdefault(column.alias, []).append(column)
        given = {
            alias: {"columns": [c.name for c in listed], **more(listed)} for alias, listed in self.by_alias.items()
        }
        self.replies = client.ask(op, given)

    def read(self, value: str) -> dict[str, list[Any]]:
        """By name of a column: what each shard has returned of it."""
        return {
            column.name: [reply[place] for reply in replies]
            for _, listed, replies in self.by_table(value)
            for place, column in enumerate(listed)
        }

    def by_table(self, value: str) -> Iterator[tuple[str, list[OutputColumn], list[Any]]]:
        """The alias of each table, its columns, and what each shard has returned of all of them."""
        replies = self.replies.read()
        for alias, listed in self.by_alias.items():
            yield alias, listed, [reply[value] for reply in replies[alias]]


class NumberStatistics:
    """Statistics of numeric columns: asked for when made; `read` may make a trip."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn], shape: bool = False):
        """With ``shape`` they have skew and kurtosis."""
        self._asked = AskedColumns(client, "statistics.numbers", columns, lambda _: {"shape": True} if shape else {})

    def read(self) -> dict[str, NumberSummary]:
        return {
            column.name: summary
            for _, listed, shards in self._asked.by_table("sums")
            for column, summary in zip(listed, merge_all_numbers(shards, len(listed)), strict=True)
        }


def merge_numbers(shards: Sequence[NDArray[np.float64]]) -> NumberSummary:
    """Statistics of a column from those of its shards."""
    return merge_all_numbers([each[None] for each in shards], 1)[0]


def merge_all_numbers(shards: Sequence[NDArray[np.float64]], columns: int) -> list[NumberSummary]:
    """Statistics of the columns of a table from those of its shards, (columns, sums) each; all columns at once."""
    if not shards:
        return [NumberSummary(0.0, math.nan, math.nan, 0.0, 0.0, math.nan, math.nan)] * columns
    sums = np.full((len(shards), columns, SUMS + SHAPE), math.nan)
    for all_, each in zip(sums, shards, strict=True):
        all_[:, : each.shape[1]] = each
    odd, rows, has = sums[:, :, 4].sum(axis=0), sums[:, :, 5].sum(axis=0), sums[:, :, 0] > 0
    ends = [np.where(has, sums[:, :, place], empty) for place, empty in ((6, math.inf), (7, -math.inf))]
    sums[~has] = 0.0
    weights, means, rests, second, _, _, _, _, third, fourth = np.moveaxis(sums, 2, 0)  # (shards, columns)
    count, origin = weights.sum(axis=0), means[has.argmax(axis=0), np.arange(means.shape[1])]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        means = np.where(has, (means - origin) + rests, 0.0)  # from a shard's mean: none of their digits is lost
        shift = np.sum(weights * means, axis=0) / count
        away = np.where(has, means - shift, 0.0)
        m2 = np.sum(second + weights * away**2, axis=0)
        m3 = np.sum(third + 3 * away * second + weights * away**3, axis=0)
        m4 = np.sum(fourth + 4 * away * third + 6 * away**2 * second + weights * away**4, axis=0)
    found = np.stack([count, origin + shift, m2, odd, rows, ends[0].min(axis=0), ends[1].max(axis=0), m3, m4])
    is_known = np.array([True, False, False, True, True, False, False, False, False])  # of a column without a value
    found[np.outer(~is_known, ~has.any(axis=0))] = math.nan
    return [NumberSummary(*each) for each in found.T.tolist()]


class CategoryStatistics:
    """Distinct values of one column: asked for when made; `read` may make a trip."""

    def __init__(
        self, client: Client, column: OutputColumn, blinding: str, most: int | None, ties: bool = False,
        top: bool = True,
    ):  # fmt: skip
        asked = {"column": column.name, "family": key_family(column), "blinding": blinding, "most": most}
        asked |= ({"ties": True} if ties else {}) | ({} if top else {"top": False})
        self.column, self.blinding = column, blinding
        self._pending = client.ask("statistics.categories", {column.alias: asked})

    def read(self) -> CategorySummary:
        return merge_categories(self._pending.read()[self.column.alias])


def merge_categories(shards: Sequence[Mapping[str, Any]]) -> CategorySummary:
    """The categories of a column, from its shards: equal digests are one category."""
    missing, distinct, top, is_listed = 0.0, 0, 0.0, bool(shards)
    for reply in shards:
        missing += float(reply["missing"])
        if reply["distinct"] > distinct:
            distinct, top = reply["distinct"], reply["top"]  # of the shard that has most
        is_listed = is_listed and len(reply["digests"]) >= reply["distinct"]
    if not is_listed:
        only = shards[0].get("top_digest", NO_DIGESTS) if len(shards) == 1 else NO_DIGESTS
        return CategorySummary(distinct, top, missing, NO_DIGESTS, np.zeros(0), only, NO_TIES)
    digests = np.concatenate([reply["digests"] for reply in shards])
    [numbers], size = number_digests([digests])
    reported = np.concatenate([reply["weights"] for reply in shards])
    weights = np.bincount(numbers, reported, minlength=size).astype(np.float64)
    first = np.unique(numbers, return_index=True)[1]
    most = digests[first][weights.argmax()][None] if size else digests[:0]
    all_ties = np.concatenate([NO_TIES, *(reply.get("ties", NO_TIES) for reply in shards)])
    ties = all_ties[first] if len(all_ties) == len(digests) else NO_TIES
    return CategorySummary(size, float(weights.max(initial=0.0)), missing, digests[first], weights, most, ties)


def codes_of(digests: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The code of each digest among the known ones, which differ; -1 where it is new."""
    (_, numbers_here), _ = number_digests([known, digests])
    return np.where(numbers_here < len(known), numbers_here, -1).astype(np.int32)


def key_family(column: OutputColumn) -> str:
    """The family under which a column's values are blinded."""
    found = family(column.type)
    return "number" if found in (Family.INTEGER, Family.DECIMAL) else found.value
