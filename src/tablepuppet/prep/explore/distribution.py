"""The distribution of a column over joined rows, refined only where this is needed.

A party counts its rows in buckets of the ordered words of values (ordered.py); each trip refines by 8 bits. The
coordinator asks only for buckets that may contain a wanted rank, so at most eight trips are needed. Fewer are enough if
a bucket of a public column has few distinct values, which are then listed.

How a party divides a bucket into cells is in cells.py. It counts how many columns and sets of rows are refined
(``limits.max_refinements``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Mask, Words
from tablepuppet.errors import PartyError
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.allowance import check_reply, check_time
from tablepuppet.party.groups import all_grouped
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Level
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, Asked, Numbers, OfGroups, Returns, Wrong
from tablepuppet.prep.columns.ordered import DEPTHS, FAN, INFINITY, Bucket, values_of, words_of
from tablepuppet.prep.explore.cells import GROUPS, NEXT_NONE, Cells, ColumnWords, no_cells
from tablepuppet.sql.query import OutputColumn

Depth = Annotated[int, Meta(ge=0, le=DEPTHS - 1)]
MOST_BUCKETS = 1 << 16  # that one request may ask for
UNCUT = -1  # the depth of a cell that cannot be cut


@dataclass(frozen=True)
class DisjointCells:
    """The least words of cells, rising within each bucket, with the largest ones in ``highs``; none overlap."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        highs, sizes = reply["highs"], np.asarray(reply["sizes"])
        for each in (value, highs):
            if not isinstance(each, np.ndarray) or each.dtype != np.uint64 or each.ndim != 1:
                raise Wrong("is no array of words")
        if len(value) != len(highs) or int(sizes.sum()) != len(value) or (value > highs).any():
            raise Wrong("has cells that are none")
        follows = np.ones(len(value), bool)
        starts = np.cumsum(sizes) - sizes
        follows[starts[(sizes > 0)]] = False
        if (value[1:][follows[1:]] <= highs[:-1][follows[1:]]).any():
            raise Wrong("has cells that overlap")


CELLS: Returns = {
    "sizes": OfGroups(Numbers(("places",), "i", least=0)), "lows": OfGroups(DisjointCells()),
    "highs": OfGroups(Numbers(("lows",), "u")),
    "nexts": OfGroups(Numbers(("lows",), "i", least=NEXT_NONE, most=FAN - 1)),
    "weights": OfGroups(Numbers(("lows",), least=0.0, most=JOINED)),
}  # fmt: skip


@op(
    "statistics.buckets",
    asked="`describe`, `quantile`, `histogram`",
    releases=Release.STATISTICS | Release.HISTOGRAMS,
    columns=("columns",),
    returns=CELLS,
)
def buckets(
    table: LocalTable, view: str, columns: Sequence[str], places: NDArray[np.integer], prefixes: NDArray[np.integer],
    depth: Depth,
) -> Values:  # fmt: skip
    """Joined rows by cells of buckets: bucket i is of column ``places[i]``, all words that begin with ``prefixes[i]``.

    A column with a value in fewer rows than the policy's ``min_group`` has no cells.
    """
    is_list = places.shape == prefixes.shape == (len(places),) and len(places) <= MOST_BUCKETS
    if not is_list or (len(places) and not 0 <= places.min() <= places.max() < len(columns)):
        raise PartyError(f"party {table.grant.party!r}: name up to {MOST_BUCKETS:,} buckets of the columns named")
    asked = [Bucket(int(prefix), depth) for prefix in prefixes]
    if any(not 0 <= bucket.prefix < FAN**depth for bucket in asked):
        raise PartyError(f"party {table.grant.party!r}: a bucket's prefix has {depth} bytes")
    if len(set(zip(places.tolist(), asked, strict=True))) < len(asked):
        raise PartyError(f"party {table.grant.party!r}: name each bucket once")
    if depth:
        _count_refined(table, view, [columns[place] for place in np.unique(places)])
    numbers: dict[int, list[int]] = {}  # of the buckets of each column
    for number, place in enumerate(places.tolist()):
        numbers.setdefault(place, []).append(number)
    found: list[Cells] = [no_cells()] * len(places)
    size = 0
    for place, of_column in numbers.items():
        values = ColumnWords.of(table, view, columns[place], [asked[number] for number in of_column])
        for number in of_column:
            check_time()
            found[number] = values.cells(asked[number])
            check_reply(size := size + sum(each.nbytes for each in found[number].values()))
    cells = {name: np.concatenate([none, *(each[name] for each in found)]) for name, none in no_cells().items()}
    groups = cells.pop(GROUPS)
    return all_grouped({"sizes": np.array([len(each["lows"]) for each in found], np.int32), **cells}, groups)


def _count_refined(table: LocalTable, view: str, columns: Sequence[str]) -> None:
    """Count the columns that are not public, each with the rows that it is refined over."""
    hidden = [name for name in columns if table.level(name) is not Level.PUBLIC]
    if hidden and not table.is_repeat:
        mark = mark_of_rows(table, view)
        table.refine([f"{table.snapshot.scan.outputs[name]} {mark}" for name in hidden])


def mark_of_rows(table: LocalTable, view: str) -> str:
    """A text that is the same for the same rows, each joined as often, however they are listed."""
    rows = table.view(view)
    positions = table.snapshot.position(rows.row_ids)
    order = np.lexsort((rows.counts, positions))  # a count belongs to its row
    mark = hashlib.sha256(table.snapshot.about_positions.encode() + positions[order].tobytes())
    mark.update(rows.counts[order].astype(np.int64).tobytes())
    return mark.hexdigest()


CELL = np.dtype(
    [("shards", np.intp), ("lows", np.uint64), ("highs", np.uint64), ("weights", np.float64), ("prefixes", np.uint64),
     ("depths", np.int8)]
)  # fmt: skip
KnownCells = NDArray[np.void]
"""Cells of shards, each a `CELL`: its shard, least and largest word, joined rows, and prefix and depth of the bucket by
which it can be cut; the depth is `UNCUT` if it cannot."""


_InOrder = tuple[tuple[Words, Array], tuple[Words, Array]]


@dataclass
class Distribution:
    """What the coordinator knows about one column: the cells of all its shards, in no order."""

    column: OutputColumn
    shards: list[ShardRows]
    cells: KnownCells = field(init=False)
    _in_order: _InOrder | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.cells = np.zeros(len(self.shards), CELL)  # until it is asked, one for all rows of a shard
        self.cells["shards"], self.cells["highs"] = np.arange(len(self.shards)), Bucket().high

    @property
    def total(self) -> float:
        """Joined rows with a value."""
        return float(self.cells["weights"].sum())

    @property
    def highest(self) -> int:
        """A word that none is above."""
        return int(self.cells["highs"].max(initial=0))

    @property
    def may_have_nan(self) -> bool:
        """Whether a cell reaches above infinity, where NaN is."""
        return bool(self.cells["highs"].max(initial=0) > INFINITY)

    def bucket(self, place: int) -> Bucket | None:
        """The bucket by which a cell can be cut; None if it cannot."""
        depth = int(self.cells["depths"][place])
        return None if depth == UNCUT else Bucket(int(self.cells["prefixes"][place]), depth)

    def around(self, ranks: Iterable[float]) -> tuple[Words, Words]:
        """The least and largest words that the values at ranks (from 0) may have, in rising order of joined rows."""
        (lows, below_lows), (highs, below_highs) = self._in_order or self._sort()
        wanted = np.array(list(ranks), np.float64)
        return lows[below_lows.searchsorted(wanted, "right")], highs[below_highs.searchsorted(wanted, "right")]

    def open_around(self, ranks: Iterable[float]) -> Iterable[int]:
        """The places of the cells that may hold the values at ranks which are not known yet."""
        lows, highs = self.around(ranks)
        for low, high in set(zip(lows.tolist(), highs.tolist(), strict=True)):
            if low != high:
                yield from self.open_cells(low, high)

    def _sort(self) -> _InOrder:
        """Ends of cells in their order, with the joined rows up to each; many ranks are looked up in them."""
        lows, highs, weights = self.all_cells()
        by_low, by_high = np.argsort(lows, kind="stable"), np.argsort(highs, kind="stable")
        self._in_order = (lows[by_low], np.cumsum(weights[by_low])), (highs[by_high], np.cumsum(weights[by_high]))
        return self._in_order

    def all_cells(self) -> tuple[Words, Words, Array]:
        """Least words, largest words and joined rows of the cells."""
        return self.cells["lows"], self.cells["highs"], self.cells["weights"]

    def values(self, ranks: Sequence[float] | Array) -> tuple[Array, Mask]:
        """(the value at each rank, whether it is exact); else rows are taken to lie evenly in their cells."""
        lows, highs = self.around(ranks)
        exact = lows == highs
        for place in np.flatnonzero(~exact).tolist():
            low, high = int(lows[place]), int(highs[place])
            points, below = self.curve(low, high)
            lows[place] = min(low + int(np.interp(ranks[place] + 0.5, below, points)), high)
        return values_of(lows), exact

    def curve(self, low: int, high: int) -> tuple[Array, Array]:
        """(distances from ``low``, joined rows that lie below them) at all ends of cells between two words."""
        lows, highs, weights = self.all_cells()
        near = self.open_cells(low, high)
        base = float(weights[highs < np.uint64(low)].sum())
        starts = np.array([float(int(each) - low) for each in lows[near]])
        ends = np.array([float(int(each) - low) + 1.0 for each in highs[near]])
        points = np.unique(np.clip([*starts, *ends, 0.0], 0.0, None))
        inside = np.clip((points[:, None] - starts) / np.maximum(ends - starts, 1.0), 0.0, 1.0)
        return points, base + inside @ weights[near]

    def open_cells(self, low: int, high: int) -> NDArray[np.intp]:
        """The places of the cells that have a word between two, both included."""
        lows, highs, _ = self.all_cells()
        return np.flatnonzero((highs >= np.uint64(low)) & (lows <= np.uint64(high)))

    def replace(self, parts: Mapping[int, KnownCells]) -> None:
        """Put in the place of some cells those that they were cut into; PartyError if these are other cells."""
        for place, new in parts.items():
            cell = self.cells[place]
            if not cell["depths"]:
                continue
            fits = len(new) and cell["lows"] <= new["lows"][0] and new["highs"][-1] <= cell["highs"]
            if not (fits and new["weights"].sum() == cell["weights"]):
                raise PartyError(
                    f"party {self.shards[cell['shards']].party!r}, column {self.column.name!r}: it counts other rows "
                    "in a bucket than before; ask its operator"
                )
        self.cells = np.concatenate([np.delete(self.cells, list(parts)), *parts.values()])
        self._in_order = None


def _cut_by(shards: Sequence[int], buckets: Sequence[Bucket], reply: Mapping[str, Any]) -> list[KnownCells]:
    """The cells of each bucket, which is of one shard each, with the buckets by which they can be cut."""
    sizes, nexts = reply["sizes"], reply["nexts"].astype(np.int16)
    depth = buckets[0].depth + 1  # they have one depth
    above = np.repeat(np.array([bucket.prefix for bucket in buckets], np.uint64), sizes) << np.uint64(8)
    found = np.empty(len(nexts), CELL)
    found["shards"] = np.repeat(np.array(shards, np.intp), sizes)
    found["lows"], found["highs"], found["weights"] = reply["lows"], reply["highs"], reply["weights"]
    found["prefixes"] = above | (nexts & (FAN - 1)).astype(np.uint64)
    found["depths"] = np.where(nexts == NEXT_NONE, UNCUT, depth if depth < DEPTHS else UNCUT)
    return np.split(found, np.cumsum(sizes)[:-1])


Wanted = Callable[[Distribution], Iterable[int]]
"""The places of cells that are to be cut, as far as they can be."""


Listed = dict[tuple[str, str], list[tuple[str, int]]]
"""By alias and party: cells to cut, each by its column and place."""


class Distributions:
    """The distributions of several columns: asked for when made, refined all at once."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn]):
        self._client = client
        self._columns = {column.name: Distribution(column, client.shards(column.alias)) for column in columns}
        self._asked = self._ask({name: range(len(each.shards)) for name, each in self._columns.items()})

    def read(self) -> dict[str, Distribution]:
        parts: dict[str, dict[int, KnownCells]] = {}
        for listed, pending in self._asked:
            replies = pending.read()
            for alias in {alias for alias, _ in listed}:
                asked = [shard for shard in self._client.shards(alias) if (alias, shard.party) in listed]
                for shard, reply in zip(asked, replies[alias], strict=True):
                    places = listed[alias, shard.party]
                    numbers = [self._columns[name].cells["shards"][place] for name, place in places]
                    divided = _cut_by(numbers, self._buckets(places), reply)
                    for (name, place), part in zip(places, divided, strict=True):
                        parts.setdefault(name, {})[place] = part
        for name, of_column in parts.items():
            self._columns[name].replace(of_column)
        self._asked = []
        return self._columns

    def refine(self, wanted: Wanted) -> None:
        """Cut the cells that ``wanted`` names of each column, trip by trip, until it names none that can be cut."""
        while self.cut({name: list(dict.fromkeys(map(int, wanted(each)))) for name, each in self.read().items()}):
            pass

    def cut(self, places: Mapping[str, Iterable[int]]) -> bool:
        """Ask for the parts of the cells at some places of columns; False if none of them can be cut."""
        known = self.read()
        able = {name: [at for at in each if known[name].cells["depths"][at] != UNCUT] for name, each in places.items()}
        if not any(able.values()):
            return False
        self._asked = self._ask(able)
        return True

    def _ask(self, places: Mapping[str, Iterable[int]]) -> list[tuple[Listed, Pending]]:
        """Ask for the cells into which those at some places of columns are cut: one op for each depth of buckets."""
        by_depth: dict[int, Listed] = {}
        for name, each in self._columns.items():
            for place in places[name]:
                owner = each.column.alias, each.shards[each.cells["shards"][place]].party
                depth = int(each.cells["depths"][place])
                by_depth.setdefault(depth, {}).setdefault(owner, []).append((name, place))
        ask = self._client.ask
        return [(listed, ask("statistics.buckets", partial(self._arguments, listed))) for listed in by_depth.values()]

    def _buckets(self, places: Iterable[tuple[str, int]]) -> list[Bucket]:
        """The buckets by which cells of columns are cut; they can be, since they are asked for."""
        return [bucket for name, place in places if (bucket := self._columns[name].bucket(place))]

    def _arguments(self, listed: Listed, alias: str, shard: ShardRows) -> dict[str, Any] | None:
        """The arguments for one shard; the buckets that cells are cut by have one depth."""
        cells = listed.get((alias, shard.party))
        if cells is None:
            return None
        columns = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in cells))}
        cut_by = self._buckets(cells)
        return {
            "columns": list(columns),
            "places": np.array([columns[name] for name, _ in cells], np.int32),
            "prefixes": np.array([bucket.prefix for bucket in cut_by], np.uint64),
            "depth": cut_by[0].depth,
        }


@dataclass(frozen=True)
class Below:
    """Joined rows of one column by values: below each, and up to it."""

    below: Array
    up_to: Array
    total: float
    exact: bool


def rows_below(asked: Distributions, values: Mapping[str, Sequence[float]]) -> dict[str, Below]:
    """Rows below the values that are listed for each column."""
    words = {name: [int(word) for word in words_of(np.array(listed, float))] for name, listed in values.items()}

    def cells_at(known: Distribution) -> Iterable[int]:
        for word in words[known.column.name]:
            yield from known.open_cells(word, word)

    asked.refine(cells_at)
    return {name: _counted(each, words[name]) for name, each in asked.read().items()}


def _counted(known: Distribution, words: Sequence[int]) -> Below:
    below, up_to = [_count(known, word) for word in words], [_count(known, word + 1) for word in words]
    exact = all(is_exact for _, is_exact in below + up_to)
    return Below(np.array([count for count, _ in below]), np.array([count for count, _ in up_to]), known.total, exact)


def _count(known: Distribution, word: int) -> tuple[float, bool]:
    """(joined rows whose words are lower, whether no cell reaches across)."""
    lows, highs, weights = known.all_cells()
    lower = highs < np.uint64(word)
    across = ~lower & (lows < np.uint64(word))
    count = float(weights[lower].sum())
    for low, high, weight in zip(lows[across].tolist(), highs[across].tolist(), weights[across].tolist(), strict=True):
        count += weight * (word - low) / (high - low + 1)
    return count, not across.any()
