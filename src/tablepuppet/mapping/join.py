"""Which rows meet: the join of blinded keys.

Input: for every shard its key digests and a code per row. Output: a `TableMapping`. Digests are merged into
one numbering per key class, so that the join itself runs on small integers: rows that cannot join are struck
out first, then the tables are attached one after the other to the largest, in the order of its rows. Every
intermediate result of an acyclic join is then no larger than the answer, sizes are known before memory is
taken, and the answer comes out ordered by row ids without a sort. Outer joins follow in the order of the query: rows
without a partner meet the missing row of a table, one more row of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Codes, Digests, Places, mark, take
from tablepuppet.errors import MappingError, PartyError
from tablepuppet.mapping.table_mapping import MappedTable, TableMapping, compact, one_after_another
from tablepuppet.pieces import available_memory
from tablepuppet.runs.figures import readable

SHARE = 0.8  # of what is free; the rest is for the rounds that follow


def number_digests(lists: Sequence[Digests]) -> tuple[list[NDArray[np.int32]], int]:
    """(a number per digest of each list, how many numbers there are); numbers follow first appearance.

    >>> a, b = np.zeros((1, 16), np.uint8), np.ones((1, 16), np.uint8)
    >>> [numbers.tolist() for numbers in number_digests([np.concatenate([a, b]), b])[0]]
    [[0, 1], [1]]
    """
    items = pa.concat_arrays([_as_binary(digests) for digests in lists]).dictionary_encode()
    ends = np.cumsum([len(digests) for digests in lists])[:-1]
    return list(np.split(items.indices.to_numpy(), ends)), len(items.dictionary)


def _as_binary(digests: Digests) -> pa.Array:
    if digests.dtype != np.uint8 or digests.shape[1:] != (16,):  # Arrow would read beyond the end of shorter ones
        raise PartyError("digests must be rows of 16 bytes")
    buffer = pa.py_buffer(np.ascontiguousarray(digests))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(digests), [None, buffer])


def require_memory(joined_rows: int, tables: int, limit: int | None, what: str) -> None:
    """Raise MappingError, with the size, if a mapping of so many rows would not fit."""
    needed = joined_rows * 4 * (tables + 2)  # one index per table, and two more while joining
    allowed = int(available_memory() * SHARE) if limit is None else limit
    if needed > allowed:
        source = "are free" if limit is None else "are allowed by memory_limit"
        raise MappingError(
            f"joining {what} gives {joined_rows:,} rows; their mapping takes {readable(needed)}, {readable(allowed)} "
            f"{source}; filter rows, join on a more selective key, or run where there is more memory"
        )


@dataclass(frozen=True)
class ShardKeys:
    """What a party sent about one shard: rows, and per key its digests and codes."""

    party: str
    rows: int
    digests: Mapping[str, NDArray[np.uint8]]  # key class -> (distinct, 16)
    codes: Mapping[str, NDArray[np.integer]]  # key class -> (rows,); len(digests) is NULL
    has_missing: bool = False  # whether its last row is the missing row of outer joins


@dataclass(frozen=True)
class JoinBranch:
    """Tables joined inner: the key classes that are equated and the rows of each table that are read; then outer joins.

    No table reads its missing row.
    """

    keys: Mapping[str, frozenset[str]]  # key class -> aliases
    rows: Mapping[str, NDArray[np.bool_] | None]  # alias -> which rows of the vertical table; None: all
    steps: Sequence[AttachRows | KeepRows] = ()


@dataclass(frozen=True)
class AttachRows:
    """An outer join: see `sql.query.Attach`. ``holds`` says of the rows of a table which hold its condition."""

    right: JoinBranch
    keys: Mapping[str, frozenset[str]]  # key class -> an alias of each side
    holds: Mapping[str, NDArray[np.bool_]]
    keeps_right: bool


@dataclass(frozen=True)
class KeepRows:
    """Only joined rows whose base rows hold their table's condition."""

    holds: Mapping[str, NDArray[np.bool_]]


def join(
    tables: Mapping[str, Sequence[ShardKeys]],
    branches: Sequence[JoinBranch],
    distinct: bool = False,
    memory_limit: int | None = None,
) -> TableMapping:
    """Join the tables of every branch and unite the results."""
    columns, sizes = _merge_codes(tables)
    rows = {alias: sum(shard.rows for shard in shards) for alias, shards in tables.items()}
    order = sorted(rows, key=lambda alias: -rows[alias])  # the largest first; others keep the order of FROM
    keyed = _Keyed(rows, columns, sizes, order, _missing_rows(tables), memory_limit)
    parts = [_joined(branch, keyed) for branch in branches]
    if len(parts) > 1:
        united = sum(len(part[order[0]]) for part in parts)
        require_memory(united, len(order), memory_limit, f"the {len(parts)} SELECTs of the union")
    indexes = parts[0] if len(parts) == 1 else _unite(parts, order, distinct)
    mapped = {}
    for alias, shards in tables.items():
        row_ids = ((shard.party, np.arange(shard.rows, dtype=np.int32)) for shard in shards)
        mapped[alias] = MappedTable(indexes[alias], one_after_another(row_ids))
    return compact(mapped, len(indexes[order[0]]))


def _missing_rows(tables: Mapping[str, Sequence[ShardKeys]]) -> dict[str, int]:
    """Where the missing row of each table that has one stands among its rows."""
    found = {}
    for alias, shards in tables.items():
        end = 0
        for shard in shards:
            end += shard.rows
            if shard.has_missing:
                found[alias] = end - 1
    return found


@dataclass(frozen=True)
class _Keyed:
    """What all branches join: tables with their keys."""

    rows: Mapping[str, int]
    columns: Mapping[tuple[str, str], KeyColumn]
    sizes: Mapping[str, int]
    order: Sequence[str]
    missing: Mapping[str, int]  # the place of a table's missing row
    memory_limit: int | None


def _joined(branch: JoinBranch, keyed: _Keyed) -> dict[str, Places]:
    """For each row of a branch, its row in each table."""
    own = [alias for alias in keyed.order if alias in branch.rows]
    joined = _Join(branch, keyed.rows, keyed.columns, keyed.sizes, own, keyed.memory_limit).run()
    for step in branch.steps:
        if isinstance(step, KeepRows):
            joined = _taken(joined, _holds(joined, step.holds))
        else:
            joined = _attached(joined, _joined(step.right, keyed), step, keyed)
    return joined


def _taken(joined: Mapping[str, Places], chosen: NDArray[np.bool_] | Places) -> dict[str, Places]:
    return {alias: index[chosen] for alias, index in joined.items()}


def _holds(joined: Mapping[str, Places], holds: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Which joined rows hold the conditions of their tables; those of other tables are not theirs."""
    found = np.ones(len(next(iter(joined.values()))), bool)
    for alias, own in holds.items():
        if alias in joined:
            found &= take(own, joined[alias])
    return found


def _attached(
    left: Mapping[str, Places], right: Mapping[str, Places], step: AttachRows, keyed: _Keyed
) -> dict[str, Places]:
    """The rows of ``left``, each with every row of ``right`` that has its keys, or with missing rows if none has.

    They keep the order of ``left``; rows of ``right`` that nobody meets come after them, where these are kept.
    """
    here, there, size = _codes_of_both(left, right, step, keyed)  # the code ``size`` meets nobody
    meets = there < size
    per_code = np.bincount(there[meets], minlength=size + 1)
    found = take(per_code, here)
    repeats, alone = np.maximum(found, 1), found == 0
    total, what = int(repeats.sum(dtype=np.int64)), f"{', '.join(left)} and {', '.join(right)}"
    require_memory(total, len(left) + len(right), keyed.memory_limit, what)
    starts = np.cumsum(per_code) - per_code  # where the rows of each code begin, in the order of codes
    by_code = np.flatnonzero(meets)[np.argsort(there[meets], kind="stable")].astype(np.int64)
    nobody = len(there)
    by_code = np.append(by_code, nobody)
    first = np.where(alone, len(by_code) - 1, starts[here])
    place = np.repeat(first - (np.cumsum(repeats) - repeats), repeats) + np.arange(total)
    partner = by_code[place]  # (rows,) of ``right``
    joined = {alias: np.repeat(index, repeats) for alias, index in left.items()}
    joined |= {alias: np.append(index, np.int32(keyed.missing[alias]))[partner] for alias, index in right.items()}
    if not step.keeps_right:
        return joined
    rest = _taken(right, ~mark(len(there) + 1, partner)[:-1])
    size = len(next(iter(rest.values())))
    require_memory(total + size, len(joined), keyed.memory_limit, what)
    for alias, index in joined.items():
        more = rest[alias] if alias in rest else np.full(size, keyed.missing[alias], np.int32)
        joined[alias] = np.concatenate([index, more])
    return joined


def _codes_of_both(
    left: Mapping[str, Places], right: Mapping[str, Places], step: AttachRows, keyed: _Keyed
) -> tuple[NDArray[np.integer], NDArray[np.integer], int]:
    """(code of each row of ``left``, of ``right``, number of codes): rows that may meet nobody have a code of none."""
    known = [_holds(left, step.holds), _holds(right, step.holds)]
    parts: list[list[NDArray[np.integer]]] = [[], []]
    for key, members in step.keys.items():
        for rows, found, side in zip((left, right), parts, range(2), strict=True):
            [alias] = [each for each in members if each in rows]
            codes = take(keyed.columns[alias, key].codes, rows[alias])
            known[side] &= codes < keyed.sizes[key]
            found.append(codes)
    sizes = [keyed.sizes[key] + 1 for key in step.keys]
    if len(sizes) == 1:
        [here], [there], size = *parts, sizes[0] - 1
    else:
        both = _mixed([np.concatenate(pair) for pair in zip(*parts, strict=True)], sizes)
        distinct, numbered = np.unique(both[len(parts[0][0]) :], return_inverse=True)
        place = np.searchsorted(distinct, both[: len(parts[0][0])])
        size = len(distinct)
        known[0] &= np.append(distinct, -1)[place] == both[: len(parts[0][0])]
        here, there = place, numbered
    return np.where(known[0], here, size), np.where(known[1], there, size), size


@dataclass(frozen=True)
class KeyColumn:
    """A key of one vertical table: a code per row, and which codes occur."""

    codes: NDArray[np.integer]  # (rows,); the number of codes is NULL
    occurs: NDArray[np.bool_]  # (number of codes,)
    has_null: bool


def _merge_codes(
    tables: Mapping[str, Sequence[ShardKeys]],
) -> tuple[dict[tuple[str, str], KeyColumn], dict[str, int]]:
    """One numbering of the digests of each key class over all shards: (key columns, number of codes)."""
    classes = dict.fromkeys(key for shards in tables.values() for shard in shards for key in shard.digests)
    columns: dict[tuple[str, str], KeyColumn] = {}
    sizes: dict[str, int] = {}
    for key in classes:
        holders = [(alias, shard) for alias, shards in tables.items() for shard in shards if key in shard.digests]
        holders.sort(key=lambda holder: -holder[1].rows)  # the largest shard's own numbering is taken over as it is
        lists, size = number_digests([shard.digests[key] for _, shard in holders])
        numbers = {(alias, shard.party): found for (alias, shard), found in zip(holders, lists, strict=True)}
        sizes[key] = size
        for alias, shards in tables.items():
            if any(key in shard.digests for shard in shards):
                found = [numbers.get((alias, shard.party)) for shard in shards]
                columns[alias, key] = _key_column(shards, key, found, size)
    return columns, sizes


def _key_column(
    shards: Sequence[ShardKeys], key: str, numbers: Sequence[NDArray[np.int32] | None], size: int
) -> KeyColumn:
    occurs, has_null = np.zeros(size, bool), False
    parts: list[Codes] = []
    for shard, found in zip(shards, numbers, strict=True):
        if found is None:  # a shard that no branch joins by this key
            parts.append(np.full(shard.rows, size, np.int32))
            has_null = has_null or shard.rows > 0
            continue
        occurs[found] = True
        null_here = bool(shard.rows) and int(shard.codes[key].max()) == len(found)
        has_null = has_null or null_here
        taken_over = not null_here and np.array_equal(found, np.arange(len(found)))
        place = np.append(found, np.int32(size))
        parts.append(shard.codes[key] if taken_over else take(place, shard.codes[key]))
    return KeyColumn(parts[0] if len(parts) == 1 else np.concatenate(parts), occurs, has_null)


class _Join:
    """The inner joins of one branch."""

    def __init__(
        self,
        branch: JoinBranch,
        rows: Mapping[str, int],
        columns: Mapping[tuple[str, str], KeyColumn],
        sizes: Mapping[str, int],
        order: Sequence[str],
        memory_limit: int | None,
    ):
        self.branch, self.rows, self.columns, self.sizes = branch, rows, columns, sizes
        self.order, self.memory_limit = list(order), memory_limit
        self.alive: dict[str, NDArray[np.bool_] | None] = dict(branch.rows)  # None: every row
        self.in_place = False  # whether joined row j is row j of the first table

    def run(self) -> dict[str, Places]:
        """For each row of the inner joins, its row in each table; ordered by the rows of the largest table, then the
        next.
        """
        self._strike_out()
        alive = self.alive[self.order[0]]
        first = self.rows[self.order[0]] if alive is None else int(np.count_nonzero(alive))
        require_memory(first, 1, self.memory_limit, self.order[0])
        joined = {self.order[0]: self._rows_of(self.order[0])}
        self.in_place = self.alive[self.order[0]] is None
        while len(joined) < len(self.order):
            alias, shared = self._next(joined)
            self._attach(joined, alias, shared)
        return joined

    def _rows_of(self, alias: str) -> Places:
        alive = self.alive[alias]
        if alive is None:
            return np.arange(self.rows[alias], dtype=np.int32)
        return np.flatnonzero(alive).astype(np.int32)

    def _keys_of(self, alias: str) -> list[str]:
        return [key for key, members in self.branch.keys.items() if alias in members]

    def _strike_out(self) -> None:
        """Strike out rows whose key no other table has, until nothing changes (Yannakakis' reduction)."""
        pending = list(self.branch.keys)
        while pending:
            key = pending.pop(0)
            members = self.branch.keys[key]
            common = np.logical_and.reduce([self._present(alias, key) for alias in members])
            for alias in members:
                if self._keep(alias, key, common):
                    pending += [other for other in self._keys_of(alias) if other not in (key, *pending)]

    def _present(self, alias: str, key: str) -> NDArray[np.bool_]:
        """Which codes of a key class occur among the rows of a table still alive."""
        column, alive = self.columns[alias, key], self.alive[alias]
        if alive is None:
            return column.occurs
        return mark(self.sizes[key] + 1, column.codes[alive])[:-1]

    def _keep(self, alias: str, key: str, common: NDArray[np.bool_]) -> bool:
        """Keep only rows with a common code; whether any row was struck out."""
        column, alive = self.columns[alias, key], self.alive[alias]
        if alive is None and not column.has_null and not np.any(column.occurs & ~common):
            return False
        keep = take(np.append(common, False), column.codes)
        if alive is not None:
            keep &= alive
        before = self.rows[alias] if alive is None else int(np.count_nonzero(alive))
        if int(np.count_nonzero(keep)) == before:
            return False
        self.alive[alias] = keep
        return True

    def _next(self, joined: Mapping[str, Places]) -> tuple[str, list[str]]:
        """The next table: the one that shares the most keys with those already joined.

        For an acyclic join this is an order of its join tree, in which no intermediate result exceeds the answer.
        """
        known = {key for alias in joined for key in self._keys_of(alias)}
        shared = {a: [key for key in self._keys_of(a) if key in known] for a in self.order if a not in joined}
        alias = max(shared, key=lambda name: len(shared[name]))  # the first of several: the larger table
        return alias, shared[alias]

    def _attach(self, joined: dict[str, Places], alias: str, shared: list[str]) -> None:
        """Extend every joined row by each row of ``alias`` that has the same keys."""
        rows = self._rows_of(alias)
        here, there, size = self._common_codes(joined, alias, rows, shared)
        what = f"{', '.join(joined)} and {alias}"
        per_code = np.bincount(there, minlength=size)
        if size and per_code.max(initial=0) <= 1:
            require_memory(len(here), len(joined) + 1, self.memory_limit, what)
            row_of = np.full(size, -1, np.int32)
            row_of[there] = rows
            found = take(row_of, here)
            keep = found >= 0
            if not keep.all():
                self.in_place = False
                found = found[keep]
                joined.update({name: index[keep] for name, index in joined.items()})
            joined[alias] = found
            return
        matches = take(per_code.astype(np.int32), here)
        total = int(matches.sum(dtype=np.int64))
        require_memory(total, len(joined) + 1, self.memory_limit, what)
        self.in_place = False
        kind = np.int32 if total < 2**31 else np.int64
        first = (np.cumsum(per_code) - per_code).astype(kind)
        # the k-th repetition of a joined row takes the k-th row of its group
        shift = take(first, here) - (np.cumsum(matches, dtype=kind) - matches.astype(kind))
        place = np.repeat(shift, matches)
        place += np.arange(total, dtype=kind)
        joined[alias] = take(rows[np.argsort(there, kind="stable")], place)
        del shift, place
        for name in [name for name in joined if name != alias]:
            joined[name] = np.repeat(joined[name], matches)

    def _common_codes(
        self, joined: Mapping[str, Places], alias: str, rows: Places, shared: list[str]
    ) -> tuple[NDArray[np.integer], NDArray[np.integer], int]:
        """(code of each joined row, code of each row of ``alias``, number of codes) over the shared keys."""
        anchor = self.order[0]
        if not shared:  # an explicit cross join: every row has the same key
            return np.zeros(len(joined[anchor]), np.int8), np.zeros(len(rows), np.int8), 1
        pairs = [self._pair(joined, alias, rows, key) for key in shared]
        if len(pairs) == 1:
            return *pairs[0], self.sizes[shared[0]]
        both = _mixed([np.concatenate(pair) for pair in pairs], [self.sizes[key] for key in shared])
        here, there = both[: -len(rows) or None], both[len(both) - len(rows) :]
        distinct, numbered = np.unique(there, return_inverse=True)
        place = np.searchsorted(distinct, here)
        known = np.append(distinct, -1)[place] == here
        return np.where(known, place, len(distinct)), numbered, len(distinct) + 1  # the last code is nobody's

    def _pair(self, joined: Mapping[str, Places], alias: str, rows: Places, key: str) -> tuple[Codes, Codes]:
        """The codes of one key for the joined rows and for the rows of ``alias``."""
        holder = next(name for name in joined if name in self.branch.keys[key])
        codes = self.columns[holder, key].codes
        here = codes if self.in_place and holder == self.order[0] else take(codes, joined[holder])
        there = self.columns[alias, key].codes
        return here, there if self.alive[alias] is None else there[rows]


def _mixed(codes: Sequence[NDArray[np.integer]], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Several codes per row as one number."""
    mixed, span = codes[0].astype(np.int64), max(1, sizes[0])
    for part, size in zip(codes[1:], sizes[1:], strict=True):
        if span * max(1, size) >= 2**62:  # renumber before the product leaves 64 bits
            distinct, mixed = np.unique(mixed, return_inverse=True)
            span = len(distinct)
        mixed = mixed * max(1, size) + part
        span *= max(1, size)
    return mixed


def _unite(parts: Sequence[Mapping[str, Places]], order: Sequence[str], distinct: bool) -> dict[str, Places]:
    """The rows of all branches, ordered by row ids; with UNION an equal combination counts once."""
    joined = {alias: np.concatenate([part[alias] for part in parts]) for alias in order}
    places = np.lexsort([joined[alias] for alias in reversed(order)])
    joined = {alias: index[places] for alias, index in joined.items()}
    if distinct and len(places):
        differs = np.logical_or.reduce([index[1:] != index[:-1] for index in joined.values()])
        keep = np.append(True, differs)
        joined = {alias: index[keep] for alias, index in joined.items()}
    return joined
