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

from tablepuppet.errors import PartyError
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.allowance import check_reply, check_time
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Level
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, Asked, Numbers, Returns, Wrong
from tablepuppet.prep.columns.ordered import DEPTHS, FAN, INFINITY, Bucket, Words, values_of
from tablepuppet.prep.explore.cells import CELL, NEXT_NONE, Cells, ColumnWords
from tablepuppet.sql.query import OutputColumn

Depth = Annotated[int, Meta(ge=0, le=DEPTHS - 1)]
MOST_BUCKETS = 1 << 16  # that one request may ask for
COLUMNS = ("lows", "highs", "nexts", "weights")  # of cells, as they are sent


@dataclass(frozen=True)
class DisjointCells:
    """The least words of cells, rising within each bucket, with the largest ones in ``highs``; none overlap."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless they are such cells."""
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
    "sizes": Numbers(("places",), "i", least=0), "lows": DisjointCells(), "highs": Numbers(("lows",), "u"),
    "nexts": Numbers(("lows",), "i", least=NEXT_NONE, most=FAN - 1),
    "weights": Numbers(("lows",), least=0.0, most=JOINED),
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
    found: list[Cells] = [np.zeros(0, CELL)] * len(places)
    size = 0
    for place in np.unique(places).tolist():
        numbered = np.flatnonzero(places == place).tolist()
        values = ColumnWords.of(table, view, columns[place], [asked[number] for number in numbered])
        for number in numbered:
            check_time()
            found[number] = values.cells(asked[number])
            check_reply(size := size + found[number].nbytes)
    cells = np.concatenate([np.zeros(0, CELL), *found])
    sizes = np.array([len(each) for each in found], np.int32)
    return {"sizes": sizes, **{name: np.ascontiguousarray(cells[name]) for name in COLUMNS}}


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


KNOWN = np.dtype(
    [
        ("shards", np.intp),
        ("lows", np.uint64),
        ("highs", np.uint64),
        ("weights", np.float64),
        ("buckets", np.object_),
    ]
)
"""A cell of a shard, and the `Bucket` by which it can be cut; None if it cannot."""


_InOrder = tuple[tuple[Words, NDArray[np.float64]], tuple[Words, NDArray[np.float64]]]


@dataclass
class Distribution:
    """What the coordinator knows about one column: the cells of all its shards, in no order."""

    column: OutputColumn
    shards: list[ShardRows]
    cells: NDArray[np.void] = field(init=False)
    _in_order: _InOrder | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.cells = np.zeros(len(self.shards), KNOWN)  # until it is asked, one for all rows of a shard
        self.cells["shards"], self.cells["highs"] = np.arange(len(self.shards)), Bucket().high
        self.cells["buckets"] = Bucket()

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
        return self.highest > INFINITY

    def around(self, rank: float) -> tuple[int, int]:
        """The least and largest word that the value at a rank (from 0) may have, in rising order of joined rows."""
        (lows, below_lows), (highs, below_highs) = self._in_order or self._sort()
        first, last = (int(each.searchsorted(rank, side="right")) for each in (below_lows, below_highs))
        return int(lows[first]), int(highs[last])

    def _sort(self) -> _InOrder:
        """Ends of cells in their order, with the joined rows up to each; many ranks are looked up in them."""
        lows, highs, weights = self.all_cells()
        by_low, by_high = np.argsort(lows, kind="stable"), np.argsort(highs, kind="stable")
        self._in_order = (lows[by_low], np.cumsum(weights[by_low])), (highs[by_high], np.cumsum(weights[by_high]))
        return self._in_order

    def all_cells(self) -> tuple[Words, Words, NDArray[np.float64]]:
        """Least words, largest words and joined rows of the cells."""
        return self.cells["lows"], self.cells["highs"], self.cells["weights"]

    def value(self, rank: float) -> tuple[float, bool]:
        """(the value at a rank, whether it is exact); else rows are taken to lie evenly in their cells."""
        low, high = self.around(rank)
        if low != high:
            points, below = self.curve(low, high)
            low = min(low + int(np.interp(rank + 0.5, below, points)), high)
            return float(values_of(np.array([low], np.uint64))[0]), False
        return float(values_of(np.array([low], np.uint64))[0]), True

    def curve(self, low: int, high: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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

    def replace(self, parts: Mapping[int, NDArray[np.void]]) -> None:
        """Put in the place of some cells those that they were cut into; PartyError if these are other cells."""
        for place, new in parts.items():
            old = self.cells[place]
            fits = len(new) and old["lows"] <= new["lows"][0] and new["highs"][-1] <= old["highs"]
            if old["buckets"].depth and not (fits and new["weights"].sum() == old["weights"]):
                raise PartyError(
                    f"party {self.shards[old['shards']].party!r}, column {self.column.name!r}: it counts other rows in "
                    "a bucket than before; ask its operator"
                )
        self.cells = np.concatenate([np.delete(self.cells, list(parts)), *parts.values()])
        self._in_order = None


def _cut_by(shard: int, bucket: Bucket, cells: Cells) -> NDArray[np.void]:
    """The cells of a bucket of a shard, each with the bucket by which it can be cut."""
    found = np.zeros(len(cells), KNOWN)
    for name in ("lows", "highs", "weights"):
        found[name] = cells[name]
    is_last = bucket.depth + 1 >= DEPTHS
    nexts = cells["nexts"].tolist()
    found["buckets"] = [None if is_last or byte == NEXT_NONE else bucket.child(byte) for byte in nexts]
    found["shards"] = shard
    return found


Wanted = Callable[[Distribution], Iterable[int]]
"""The places of cells that are to be cut, as far as they can be."""


Listed = dict[tuple[str, str], list[tuple[str, int]]]
"""By alias and party: cells to cut, each by its column and place."""


class Distributions:
    """The distributions of several columns: asked for when made, refined all at once."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn]):
        self._client = client
        self._columns = {column.name: Distribution(column, client.shards(column.alias)) for column in columns}
        self._asked = self._ask({name: range(len(each.cells)) for name, each in self._columns.items()})

    def read(self) -> dict[str, Distribution]:
        """By column."""
        parts: dict[str, dict[int, NDArray[np.void]]] = {}
        for listed, pending in self._asked:
            replies = pending.read()
            for alias in {alias for alias, _ in listed}:
                asked = [shard for shard in self._client.shards(alias) if (alias, shard.party) in listed]
                for shard, reply in zip(asked, replies[alias], strict=True):
                    cells = np.rec.fromarrays([reply[name] for name in COLUMNS], dtype=CELL)
                    divided = np.split(cells, np.cumsum(reply["sizes"])[:-1])
                    for (name, place), part in zip(listed[alias, shard.party], divided, strict=True):
                        old = self._columns[name].cells[place]
                        parts.setdefault(name, {})[place] = _cut_by(old["shards"], old["buckets"], part)
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
        able = {n: [place for place in p if known[n].cells["buckets"][place] is not None] for n, p in places.items()}
        if not any(able.values()):
            return False
        self._asked = self._ask(able)
        return True

    def _ask(self, places: Mapping[str, Iterable[int]]) -> list[tuple[Listed, Pending]]:
        """Ask for the cells into which those at some places of columns are cut: one op for each depth of buckets."""
        by_depth: dict[int, Listed] = {}
        for name, each in self._columns.items():
            for place in places[name]:
                cell = each.cells[place]
                owner = each.column.alias, each.shards[cell["shards"]].party
                by_depth.setdefault(cell["buckets"].depth, {}).setdefault(owner, []).append((name, place))
        ask = self._client.ask
        return [(listed, ask("statistics.buckets", partial(self._arguments, listed))) for listed in by_depth.values()]

    def _arguments(self, listed: Listed, alias: str, shard: ShardRows) -> dict[str, Any] | None:
        """The arguments for one shard; the buckets that cells are cut by have one depth."""
        cells = listed.get((alias, shard.party))
        if cells is None:
            return None
        columns = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in cells))}
        cut_by = [self._columns[name].cells["buckets"][place] for name, place in cells]
        return {
            "columns": list(columns),
            "places": np.array([columns[name] for name, _ in cells], np.int32),
            "prefixes": np.array([bucket.prefix for bucket in cut_by], np.uint64),
            "depth": cut_by[0].depth,
        }
