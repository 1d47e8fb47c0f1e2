"""A snapshot: what a party read of its shard, once, for one table use of one relation.

Comes in: a `Scan` and an open database. Stays here: the selected columns in the stable order of the source.
Goes out: nothing of itself; ops work on it. Row ids are places under a permutation that only the party knows, so
that a row id says nothing about where the row stands in the source; a party inside the coordinator's own process,
which may ask for the places anyway, keeps the order of the source.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.arrays import Scalar, take
from tablepuppet.errors import PartyError
from tablepuppet.party.blind import Blinded, blind, derive_key
from tablepuppet.party.database import POSITION, Reader, Source
from tablepuppet.sql.expression import checked, columns_of, render
from tablepuppet.sql.plan import KeySpec, Scan


class Digest(Protocol):
    """A hash that more bytes can be added to."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""


RowIds = NDArray[np.int32]
MOST_ROWS = 2**31 - 1
_BACKGROUND = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="tablepuppet-snapshot")


@dataclass
class Snapshot:
    """The rows of one shard that pass a filter of the query."""

    scan: Scan
    rows: int
    outputs: pa.Table  # one column per output name, in source order
    passes: tuple[NDArray[np.bool_] | None, ...]  # per filter of the scan; None: every row of the snapshot
    positions: NDArray[np.int64] | None  # in the source; None: 0, 1, 2, ...
    shuffled: Future[RowIds] | None  # row id -> place in source order; None: they are the same
    keys: pa.Table  # raw join keys
    _blinded: list[Blinded] | None = None

    @property
    def in_source_order(self) -> bool:
        """Whether row ids are places in source order, as where there is nobody to hide the order from."""
        return self.shuffled is None

    def place(self, row_ids: NDArray[np.integer]) -> NDArray[np.integer]:
        """Where rows stand in the snapshot's own order."""
        return row_ids if self.shuffled is None else take(self.shuffled.result(), row_ids)

    def by_row_id(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values in source order, put in the order of row ids."""
        return values if self.shuffled is None else take(values, self.shuffled.result())

    def position(self, row_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where rows stand in the source; for the party's own eyes."""
        places: NDArray[np.int64] = self.place(row_ids).astype(np.int64)
        return places if self.positions is None else np.take(self.positions, places)

    def blind_keys(self, secret: bytes, run: str) -> list[Blinded]:
        """The join keys as digests and codes by row id."""
        if self._blinded is not None:
            return self._blinded
        columns = iter(self.keys.columns)
        specs = [(spec, [next(columns) for _ in spec.expressions]) for spec in self.scan.keys]

        def blind_one(spec: KeySpec, values: list[pa.ChunkedArray]) -> Blinded:
            found = blind(values, spec.families, derive_key(secret, run, spec.label))
            return Blinded(found.digests, self.by_row_id(found.codes))

        self._blinded = [future.result() for future in [_BACKGROUND.submit(blind_one, *each) for each in specs]]
        return self._blinded

    def again(self) -> Snapshot:
        """The same rows for another run, whose keys are blinded anew."""
        return replace(self, _blinded=None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what was read: the same in every process as long as the data is."""
        return _hash(self.scan, (self.outputs, self.keys), self.positions)


def _hash(scan: Scan, tables: Sequence[pa.Table], positions: NDArray[np.int64] | None) -> str:
    digest = hashlib.sha256(repr((scan.outputs, scan.filters, [len(table) for table in tables])).encode())
    digest.update(b"" if positions is None else positions.tobytes())
    for column in (column for table in tables for column in table.columns):
        add_column(digest, column)
    return digest.hexdigest()


def add_column(digest: Digest, column: pa.ChunkedArray) -> None:
    """Add what a column holds to a hash, however it is cut into chunks."""
    digest.update(np.packbits(column.is_valid().to_numpy()).tobytes())
    for batch in pa.table({"it": column.drop_null().combine_chunks()}).to_batches():
        digest.update(batch.serialize())


def take_snapshot(scan: Scan, reader: Reader, secret: bytes | None) -> Snapshot:
    """Read a shard once, as the scan asks; ``secret`` orders its row ids."""
    table, positions = _in_source_order(_read(reader.source(scan.table, scan.columns, scan.pushed), scan))
    if len(table) > MOST_ROWS:
        raise PartyError(f"party {scan.party!r}: table {scan.table!r} has {len(table):,} rows, more than 2^31 - 1")
    shuffled = None if secret is None else _BACKGROUND.submit(permutation, len(table), secret, scan)
    passes = tuple(
        table[f"f{i}"].to_numpy() if f"f{i}" in table.column_names else None for i in range(len(scan.filters))
    )
    outputs = table.select([f"o{i}" for i in range(len(scan.outputs))]).rename_columns(list(scan.outputs))
    keys = table.select([name for name in table.column_names if name.startswith("k")])
    return Snapshot(scan, len(table), outputs, passes, positions, shuffled, keys)


def _read(source: Source, scan: Scan) -> pa.Table:
    """Evaluate the scan's expressions and filters in DuckDB over the source's rows."""
    filters = [_evaluable(text, scan) if text else "TRUE" for text in scan.filters]
    where = "" if "TRUE" in filters else f" WHERE {' OR '.join(f'({text})' for text in filters)}"
    keys = [text for spec in scan.keys for text in spec.expressions]
    items = [f"{_evaluable(text, scan)} AS o{i}" for i, text in enumerate(scan.outputs.values())]
    items += [f"{_evaluable(text, scan)} AS k{i}" for i, text in enumerate(keys)]
    if len(filters) > 1:
        items += [f"coalesce({text}, FALSE) AS f{i}" for i, text in enumerate(filters)]
    if where or not source.in_order or not items:
        items.append(f'"{POSITION}"')
    connection = source.connection
    try:
        return connection.sql(f"SELECT {', '.join(items)} FROM {source.sql} AS source{where}").to_arrow_table()
    except duckdb.Error as error:
        # DuckDB's message may quote a value of a row: it must not travel with the error
        raise PartyError(
            f"party {scan.party!r}: an expression over table {scan.table!r} fails on its rows "
            f"({type(error).__name__}); use TRY_CAST, or filter the rows it does not fit"
        ) from None


def _evaluable(text: str, scan: Scan) -> str:
    """The expression, after checking once more that it is one a party evaluates, over columns that are read.

    A name that is no column could mean something else to DuckDB, such as ``user``.
    """
    strange = set(columns_of(text)) - set(scan.columns)
    if strange:
        raise PartyError(
            f"party {scan.party!r}: the plan for {scan.table!r} uses {min(strange)!r}, which it does not read"
        )
    return f"({render(checked(text))})"


def _in_source_order(table: pa.Table) -> tuple[pa.Table, NDArray[np.int64] | None]:
    """The rows in the order of the source, and their positions unless these are 0, 1, 2, ..."""
    if POSITION not in table.column_names:
        return table, None
    positions = table[POSITION].to_numpy()
    if np.any(positions[1:] < positions[:-1]):
        order = np.argsort(positions, kind="stable")
        table, positions = table.take(pa.array(order)), positions[order]
    plain = len(positions) == 0 or (positions[0] == 0 and positions[-1] == len(positions) - 1)
    return table.drop_columns([POSITION]) if table.num_columns > 1 else table, None if plain else positions


def permutation(rows: int, secret: bytes, scan: Scan) -> RowIds:
    """A random order of the rows, drawn from the party's secret: random numbers, sorted with their places."""
    seed = hmac.digest(secret, f"{scan.table}\0{scan.alias}\0{rows}".encode(), "sha256")
    random = np.random.default_rng(int.from_bytes(seed, "big"))
    keyed = random.integers(0, 1 << 32, rows, dtype=np.uint32).astype(np.uint64)
    keyed <<= np.uint64(32)
    keyed |= np.arange(rows, dtype=np.uint64)
    keyed.sort()
    return keyed.astype(np.uint32).view(np.int32)
