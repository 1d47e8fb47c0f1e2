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
from tablepuppet.prep.cells import NEXT_NONE, Cells, ColumnWords
from tablepuppet.prep.ordered import DEPTHS, FAN, INFINITY, Bucket, Words, values_of
from tablepuppet.sql.query import OutputColumn

Depth = Annotated[int, Meta(ge=0, le=DEPTHS - 1)]
MOST_BUCKETS = 1 << 16  # that one request may ask for
KINDS = {"lows": np.uint64, "highs": np.uint64, "nexts": np.int16, "weights": np.float64}


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
    found: list[Cells] = [Cells.of([])] * len(places)
    size = 0
    for place in np.unique(places).tolist():
        numbered = np.flatnonzero(places == place).tolist()
        values = ColumnWords.of(table, view, columns[place], [asked[number] for number in numbered])
        for number in numbered:
            check_time()
            found[number] = values.cells(asked[number])
            check_reply(size := size + found[number].nbytes)
    return {
        "sizes": np.array([len(each.lows) for each in found], np.int32),
        **{name: _joined([getattr(each, name) for each in found], kind) for name, kind in KINDS.items()},
    }


def _joined(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *parts]).astype(kind)


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
    mark = hashlib.sha256(positions[order].tobytes())
    mark.update(rows.counts[order].astype(np.int64).tobytes())
    return mark.hexdigest()


@dataclass
class Distribution:
    """What the coordinator knows about one column: the cells of its shards that were asked for."""

    column: OutputColumn
    shards: list[ShardRows]
    cells: list[Cells] = field(default_factory=list)  # one per shard
    heavy: list[list[Bucket | None]] = field(default_factory=list)  # the bucket by which each cell can be cut

    @property
    def total(self) -> float:
        """Joined rows with a value."""
        return float(sum(each.weights.sum() for each in self.cells))

    @property
    def highest(self) -> int:
        """A word that none is above."""
        return max((int(each.highs[-1]) for each in self.cells if len(each.highs)), default=0)

    def around(self, rank: float) -> tuple[int, int]:
        """The least and largest word that the value at a rank (from 0) may have, in rising order of joined rows."""
        lows, highs, weights = self.all_cells()
        by_low, by_high = np.argsort(lows, kind="stable"), np.argsort(highs, kind="stable")
        first = int(np.searchsorted(np.cumsum(weights[by_low]), rank, side="right"))
        last = int(np.searchsorted(np.cumsum(weights[by_high]), rank, side="right"))
        return int(lows[by_low[first]]), int(highs[by_high[last]])

    def all_cells(self) -> tuple[Words, Words, NDArray[np.float64]]:
        """Least words, largest words and joined rows of the cells of all shards."""
        return (
            _joined([each.lows for each in self.cells], np.uint64),
            _joined([each.highs for each in self.cells], np.uint64),
            _joined([each.weights for each in self.cells], np.float64),
        )

    def value(self, rank: float) -> tuple[float, bool]:
        """(the value at a rank, whether it is exact); else rows are taken to lie evenly in their cells."""
        low, high = self.around(rank)
        if low != high:
            low += self._offset(rank + 0.5, low, high)
            return float(values_of(np.array([min(low, high)], np.uint64))[0]), False
        return float(values_of(np.array([low], np.uint64))[0]), True

    def _offset(self, count: float, low: int, high: int) -> int:
        """The distance above a word up to which this many rows are below."""
        points, below = self.curve(low, high)
        return int(np.interp(count, below, points))

    def curve(self, low: int, high: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(distances from ``low``, joined rows that lie below them) at all ends of cells between two words."""
        lows, highs, weights = self.all_cells()
        near = (highs >= np.uint64(low)) & (lows <= np.uint64(high))
        base = float(weights[highs < np.uint64(low)].sum())
        starts = np.array([float(int(each) - low) for each in lows[near]])
        ends = np.array([float(int(each) - low) + 1.0 for each in highs[near]])
        points = np.unique(np.clip([*starts, *ends, 0.0], 0.0, None))
        inside = np.clip((points[:, None] - starts) / np.maximum(ends - starts, 1.0), 0.0, 1.0)
        return points, base + inside @ weights[near]

    def open_cells(self, low: int, high: int) -> Iterable[tuple[int, int]]:
        """(shard, place) of the cells between two words that can be cut."""
        for shard, cells in enumerate(self.cells):
            near = np.flatnonzero((cells.highs >= np.uint64(low)) & (cells.lows <= np.uint64(high)))
            yield from ((shard, place) for place in near.tolist() if self.heavy[shard][place] is not None)

    def begin(self, replies: Sequence[Cells]) -> None:
        """The cells of the whole column."""
        self.cells = list(replies)
        self.heavy = [[_below(Bucket(), byte) for byte in each.nexts.tolist()] for each in replies]

    def replace(self, shard: int, parts: Mapping[int, tuple[Bucket, Cells]]) -> None:
        """Put what a shard says of some of its cells in their place; PartyError if that is another cell."""
        old, heavy, start = self.cells[shard], self.heavy[shard], 0
        pieces: list[Cells] = []
        buckets_: list[Bucket | None] = []
        for place in sorted(parts):
            bucket, new = parts[place]
            fits = len(new.lows) and old.lows[place] <= new.lows[0] and new.highs[-1] <= old.highs[place]
            if not fits or float(new.weights.sum()) != float(old.weights[place]):
                raise PartyError(
                    f"party {self.shards[shard].party!r}, column {self.column.name!r}: it counts other rows in a "
                    "bucket than before; ask its operator"
                )
            pieces += [_part(old, slice(start, place)), new]
            buckets_ += [*heavy[start:place], *(_below(bucket, byte) for byte in new.nexts.tolist())]
            start = place + 1
        pieces.append(_part(old, slice(start, None)))
        self.heavy[shard] = [*buckets_, *heavy[start:]]
        self.cells[shard] = Cells(
            *(_joined([getattr(each, name) for each in pieces], kind) for name, kind in KINDS.items())
        )


def _below(bucket: Bucket, byte: int) -> Bucket | None:
    """The bucket that a cell can be cut by; None if it cannot."""
    return None if byte == NEXT_NONE or bucket.depth + 1 >= DEPTHS else bucket.child(byte)


def _part(cells: Cells, part: slice) -> Cells:
    return Cells(cells.lows[part], cells.highs[part], cells.nexts[part], cells.weights[part])


Wanted = Callable[[Distribution], Iterable[tuple[int, int]]]
Named = tuple[str, int, Bucket]  # a bucket of a column at a shard


class Distributions:
    """The distributions of several columns: asked for when made, refined all at once."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn]):
        self._client = client
        self.columns = {column.name: Distribution(column, client.shards(column.alias)) for column in columns}
        self._first = self._ask([(name, n, Bucket()) for name, each in self.columns.items() for n in _numbers(each)])

    def read(self) -> dict[str, Distribution]:
        """By column."""
        for name, each in self.columns.items():
            if len(each.cells) < len(each.shards):
                each.begin([self._first.read()[name, number, Bucket()] for number in _numbers(each)])
        return self.columns

    def refine(self, wanted: Wanted) -> None:
        """Cut the cells that ``wanted`` names of each column, trip by trip, until it names none that can be cut."""
        self.read()
        while True:
            cells = {name: list(dict.fromkeys(wanted(each))) for name, each in self.columns.items()}
            named = {(name, *cell): self._bucket(name, *cell) for name, listed in cells.items() for cell in listed}
            if not named:
                return
            by_depth: dict[int, list[Named]] = {}
            for (name, shard, _), bucket in named.items():
                by_depth.setdefault(bucket.depth, []).append((name, shard, bucket))
            asked = [self._ask(buckets_) for buckets_ in by_depth.values()]
            found = {key: of_key for each in asked for key, of_key in each.read().items()}
            by_shard: dict[tuple[str, int], dict[int, tuple[Bucket, Cells]]] = {}
            for (name, shard, place), bucket in named.items():
                by_shard.setdefault((name, shard), {})[place] = (bucket, found[name, shard, bucket])
            for (name, shard), parts in by_shard.items():
                self.columns[name].replace(shard, parts)

    def _bucket(self, name: str, shard: int, place: int) -> Bucket:
        found = self.columns[name].heavy[shard][place]
        assert found is not None, "only cells that can be cut are named"
        return found

    def _ask(self, named: Sequence[Named]) -> _Asked:
        """Ask for buckets of one depth."""
        listed: dict[tuple[str, str], list[Named]] = {}  # by alias and party
        for name, shard, bucket in named:
            each = self.columns[name]
            listed.setdefault((each.column.alias, each.shards[shard].party), []).append((name, shard, bucket))
        replies = self._client.ask(
            "statistics.buckets", lambda alias, shard: _arguments(listed.get((alias, shard.party)))
        )
        return _Asked(self._client, listed, replies)


def _numbers(distribution: Distribution) -> range:
    return range(len(distribution.shards))


def _arguments(items: Sequence[Named] | None) -> dict[str, Any] | None:
    if not items:
        return None
    columns = list(dict.fromkeys(name for name, _, _ in items))
    return {
        "columns": columns,
        "places": np.array([columns.index(name) for name, _, _ in items], np.int32),
        "prefixes": np.array([bucket.prefix for _, _, bucket in items], np.uint64),
        "depth": items[0][2].depth,
    }


@dataclass
class _Asked:
    """Buckets that were asked for; read once."""

    client: Client
    listed: Mapping[tuple[str, str], Sequence[Named]]
    replies: Pending
    found: dict[Named, Cells] | None = None

    def read(self) -> dict[Named, Cells]:
        """The cells of each bucket."""
        if self.found is None:
            self.found = {}
            for alias in {alias for alias, _ in self.listed}:
                asked = [shard for shard in self.client.shards(alias) if (alias, shard.party) in self.listed]
                for shard, reply in zip(asked, self.replies.read()[alias], strict=True):
                    ends = np.cumsum(reply["sizes"])
                    for place, named in enumerate(self.listed[alias, shard.party]):
                        part = slice(int(ends[place] - reply["sizes"][place]), int(ends[place]))
                        self.found[named] = Cells(*(reply[each][part] for each in KINDS))
        return self.found


def has_odd(distribution: Distribution) -> bool:
    """Whether the column may have NaN."""
    return distribution.highest > INFINITY
