"""A snapshot: what a party read of its shard, once, for one table use of one relation.

Input: a `Scan` and an open database. It holds the selected columns in the stable order of the source. It releases
nothing; ops work on it. Row ids are positions under a permutation that only the party knows. The permutation differs by
caller and state of the data, so a row id does not reveal the row's position in the source. A party in the coordinator's
own process keeps the order of the source, since the coordinator may ask for positions there anyway.

For a remote caller an expression never fails on a row: its value is NULL instead, since an error would reveal that such
a row exists. In the analyst's own process it is an error that says what to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlglot import exp

from tablepuppet.arrays import Scalar, take
from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_time, current
from tablepuppet.party.blind import Blinded, blind, derive_key
from tablepuppet.party.database import POSITION, Reader, Source, UnavailableError
from tablepuppet.pieces import cores
from tablepuppet.privacy.noise import SecureStream
from tablepuppet.sql.expression import checked, column_text, columns_of, is_column, render
from tablepuppet.sql.growth import MOST_IN_SCAN, letters, letters_of_all
from tablepuppet.sql.plan import KeySpec, Scan, conjuncts


class EvaluationError(PartyError):
    """An expression fails on some rows; the failure itself reveals something about them."""


class Order(NamedTuple):
    """A hash of a snapshot's rows, and the order of row ids that follows from it and a secret."""

    fingerprint: str
    places: RowIds  # row id -> place in source order


RowIds = NDArray[np.int32]
MOST_ROWS = 2**31 - 1
BATCH = 1 << 16  # rows
NOWHERE = -1  # the position of the missing row
FAILURES = (duckdb.Error, pa.ArrowException, OSError)  # DuckDB's own; as Arrow hands them on while batches are read
_BACKGROUND = ThreadPoolExecutor(max(2, cores()), thread_name_prefix="tablepuppet-snapshot")


@dataclass
class Snapshot:
    """The rows of one shard that pass a filter of the query; where the scan asks for it, the missing row after them."""

    scan: Scan
    rows: int  # with the missing row
    _cells: pa.Table  # one column per output name, in source order
    passes: tuple[NDArray[np.bool_] | None, ...]  # per filter of the scan; None: every row of the snapshot
    positions: NDArray[np.int64] | None  # in the source; None: 0, 1, 2, ..., or not known
    is_located: bool  # whether positions are known; else the source itself has left out rows
    ordered: Future[Order] | None  # None: row ids are places in source order
    keys: pa.Table  # raw join keys
    _nulls: pa.Table  # per column that a computed output reads: whether its cell is NULL
    holds: tuple[NDArray[np.bool_], ...] = ()  # per condition of the scan
    look: Callable[[], None] = lambda: None  # called before cells are seen
    _blinded: list[Blinded] | None = None

    @property
    def outputs(self) -> pa.Table:
        """The cells of all rows, one column per output name, in source order."""
        self.look()
        return self._cells

    def type_of(self, output: str) -> pa.DataType:
        """The type of an output: no cell is seen."""
        return self._cells.schema.field(output).type

    def nothing_of(self, output: str) -> pa.ChunkedArray:
        """A column as an output, without a row: no cell is seen."""
        return self._cells[output].slice(0, 0)

    def watched(self, look: Callable[[], None]) -> Snapshot:
        """A view of these rows that calls ``look`` before cells are seen."""
        return replace(self, look=look)

    @property
    def own_rows(self) -> int:
        """Rows of the shard: all but the missing row."""
        return self.rows - self.scan.missing

    @property
    def missing_row(self) -> int:
        """The row id of the missing row, and its place; -1 if there is none."""
        return self.rows - 1 if self.scan.missing else -1

    def without_missing(self) -> Snapshot:
        """The rows of the shard alone, in source order, for code that compares them with what is read again."""
        if not self.scan.missing:
            return self
        own = self.own_rows
        return replace(
            self, scan=replace(self.scan, missing=False), rows=own, _cells=self._cells.slice(0, own), ordered=None,
            keys=self.keys.slice(0, own), _nulls=self._nulls.slice(0, own), holds=tuple(h[:own] for h in self.holds),
            passes=tuple(None if each is None else each[:own] for each in self.passes), _blinded=None,
            positions=None if self.positions is None else self.positions[:own],
        )  # fmt: skip

    @property
    def in_source_order(self) -> bool:
        """Whether row ids are positions in source order: only where the order need not be hidden."""
        return self.ordered is None

    @property
    def nbytes(self) -> int:
        """Memory that it takes, with row ids and the codes of its keys."""
        places = 0 if self.positions is None else self.positions.nbytes
        return int(self._cells.nbytes + self.keys.nbytes + self._nulls.nbytes + places + self._beside * self.rows)

    @property
    def public_nbytes(self) -> int:
        """Bytes by what is public: the number of rows, and for texts the letters that expressions may make."""
        types = [column.type for table in (self._cells, self.keys) for column in table.columns]
        return self.rows * (self._beside + 8 + row_bytes(self.scan, types))

    @property
    def _beside(self) -> int:
        """Bytes of each row for row ids and the codes of keys."""
        return 4 * ((self.ordered is not None) + len(self.scan.keys)) + len(self.passes) + len(self.holds)

    def place(self, row_ids: NDArray[np.integer]) -> NDArray[np.integer]:
        """The positions of rows in the snapshot's order."""
        return row_ids if self.ordered is None else take(self.ordered.result().places, row_ids)

    def by_row_id(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values in source order, put in the order of row ids."""
        return values if self.ordered is None else take(values, self.ordered.result().places)

    def position(self, row_ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """The positions of rows in the source; they stay at the party. Of one that is not located, in the snapshot; of
        the missing row, `NOWHERE`.
        """
        places: NDArray[np.int64] = self.place(row_ids).astype(np.int64)
        if self.positions is not None:
            return np.take(self.positions, places)
        return np.where(places == self.missing_row, NOWHERE, places) if self.scan.missing else places

    @property
    def about_positions(self) -> str:
        """What `position` is a position among: two rows are the same if both are. Empty: all rows of the table."""
        return "" if self.is_located else repr(self.scan.filters)

    def is_null(self, outputs: Iterable[str]) -> NDArray[np.bool_]:
        """Whether every cell that these outputs are computed from is NULL, in source order."""
        self.look()
        found = np.ones(self.rows, bool)
        for name in outputs:
            if is_column(self.scan.outputs[name]):
                found &= self._cells[name].is_null().to_numpy()
                continue
            for column in columns_of(self.scan.outputs[name]):
                found &= self._nulls[column].to_numpy()
        return found

    def blind_keys(self, run_key: bytes) -> list[Blinded]:
        """The join keys as digests and codes by row id; ``run_key`` is of this run only."""
        if self._blinded is not None:
            return self._blinded
        columns = iter(self.keys.columns)
        specs = [(spec, [next(columns) for _ in spec.expressions]) for spec in self.scan.keys]

        def blind_one(spec: KeySpec, values: list[pa.ChunkedArray]) -> Blinded:
            found = blind(values, spec.families, derive_key(run_key, "join key", spec.label))
            return Blinded(found.digests, self.by_row_id(found.codes))

        self._blinded = [future.result() for future in [_BACKGROUND.submit(blind_one, *each) for each in specs]]
        return self._blinded

    def again(self) -> Snapshot:
        """These rows for another run, which blinds their keys again."""
        return replace(self, _blinded=None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what was read: the same in every process as long as the data is."""
        if self.ordered is not None:
            return self.ordered.result().fingerprint
        return _hash(self.scan, (self._cells, self.keys, self._nulls), self.positions)


def row_bytes(scan: Scan, types: Sequence[pa.DataType]) -> int:
    """Bytes that a row is counted as where the lengths of texts are private; ``types`` are of outputs, then of keys.

    A text counts as the letters that its expression may make of columns as `sql/growth.py` takes them.
    """
    total = len(_cells(scan))
    for text, kind in zip([*scan.outputs.values(), *_keys(scan)], types, strict=True):
        is_fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind)
        total += 16 if is_fixed else 16 + letters(checked(text))
    return total


def _keys(scan: Scan) -> list[str]:
    return [text for spec in scan.keys for text in spec.expressions]


def _hash(scan: Scan, tables: Sequence[pa.Table], positions: NDArray[np.int64] | None) -> str:
    about = (scan.outputs, scan.filters, [len(table) for table in tables])
    return content_hash([column for table in tables for column in table.columns], about, positions)


def content_hash(
    columns: Iterable[pa.ChunkedArray], about: object = None, positions: NDArray[np.int64] | None = None
) -> str:
    """A hash of what columns hold, however they are cut into chunks, and of what else is said about them."""
    digest = hashlib.sha256(repr(about).encode())
    digest.update(b"" if positions is None else positions.tobytes())
    for column in columns:
        digest.update(np.packbits(column.is_valid().to_numpy()).tobytes())
        for batch in pa.table({"it": column.drop_null().combine_chunks()}).to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()


def take_snapshot(
    scan: Scan, reader: Reader, secret: bytes | None, total: bool = False, hides: bool = False
) -> Snapshot:
    """Read a shard once, as the scan asks; ``secret``, of the party and one caller, orders its row ids.

    With ``total`` an expression is NULL where it would fail. Else, and where that does not help, it is EvaluationError.
    If it ``hides`` the lengths of texts, whether there is room for them follows from `row_bytes`.
    """
    source = reader.source(scan.table, scan.columns, scan.pushed)
    table, positions = _in_source_order(_read(source, scan, total, hides))
    positions = positions if source.of_all else None
    if scan.missing:
        table = pa.concat_tables([table, _missing_row(source, scan, table.schema, total)])
        positions = None if positions is None else np.append(positions, NOWHERE)
    if len(table) > MOST_ROWS:
        raise PartyError(f"party {scan.party!r}: table {scan.table!r} has {len(table):,} rows, more than 2^31 - 1")
    passes = tuple(
        table[f"f{i}"].to_numpy() if f"f{i}" in table.column_names else None for i in range(len(scan.filters))
    )
    outputs = table.select([f"o{i}" for i in range(len(scan.outputs))]).rename_columns(list(scan.outputs))
    keys = table.select([name for name in table.column_names if name.startswith("k")])
    cells = _cells(scan)
    nulls = table.select([f"n{i}" for i in range(len(cells))]).rename_columns(cells)
    holds = tuple(table[f"h{i}"].to_numpy() for i in range(len(scan.conditions)))
    ordered = None if secret is None else _BACKGROUND.submit(_ordered, scan, (outputs, keys, nulls), positions, secret)
    return Snapshot(scan, len(table), outputs, passes, positions, source.of_all, ordered, keys, nulls, holds)


def _missing_row(source: Source, scan: Scan, schema: pa.Schema, total: bool) -> pa.Table:
    """The missing row: expressions and conditions over a row of NULLs; it passes no filter and has no key."""
    items = [name for name in schema.names if name[0] in "onh"]
    asked = ", ".join(f"{text} AS {name}" for name, text in _items(scan, total).items() if name in items)
    nothing = f"(SELECT 1) AS one LEFT JOIN (SELECT * FROM {source.sql} LIMIT 0) AS source ON FALSE"
    found = source.connection.sql(f"SELECT {asked or '1 AS one'} FROM {nothing}").to_arrow_table()
    known = {"f": pa.array([False]), "_": pa.array([NOWHERE], pa.int64())}
    cells = [
        found[name].cast(kind) if name in items else known.get(name[0], pa.nulls(1, kind))
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.table(cells, schema=schema)


def _cells(scan: Scan) -> list[str]:
    """The columns that computed outputs read; of an output that is a column itself, NULLs are seen in its values."""
    computed = [text for text in scan.outputs.values() if not is_column(text)]
    return list(dict.fromkeys(column for text in computed for column in columns_of(text)))


def _ordered(scan: Scan, tables: Sequence[pa.Table], positions: NDArray[np.int64] | None, secret: bytes) -> Order:
    fingerprint, own = _hash(scan, tables, positions), len(tables[0]) - scan.missing
    places = permutation(own, derive_key(secret, "rows", scan.table, scan.alias, fingerprint))
    return Order(fingerprint, np.append(places, np.int32(own)) if scan.missing else places)


def _read(source: Source, scan: Scan, total: bool, hides: bool) -> pa.Table:
    """Evaluate the scan's expressions and filters in DuckDB over the source's rows."""
    filters = [_condition(text, scan, total) if text else "TRUE" for text in scan.filters]
    where = "" if "TRUE" in filters else f" WHERE {' OR '.join(f'({text})' for text in filters)}"
    _check_growth(scan, [*scan.outputs.values(), *filter(None, scan.filters), *_keys(scan), *scan.conditions])
    items = [f"{text} AS {name}" for name, text in _items(scan, total).items()]
    if len(filters) > 1:
        items += [f"coalesce({text}, FALSE) AS f{i}" for i, text in enumerate(filters)]
    if where or not source.in_order or not items:
        items.append(f'"{POSITION}"')
    query = f"SELECT {', '.join(items)} FROM {source.sql} AS source{where}"
    try:
        return _within_bytes(source.connection.sql(query), scan, hides)
    except FAILURES as error:
        check_time()
        if isinstance(error, duckdb.OutOfMemoryException) and "bad allocation" in str(error):
            raise MemoryError from None  # the machine's memory, not what a request may have of it
        if isinstance(error, duckdb.OutOfMemoryException) and (allowance := current()) is not None:
            raise allowance.too_much(scan.table) from None
        _check_readable(source, scan)
        raise _failure(source, scan, query, where, None if total else type(error).__name__) from None


def _items(scan: Scan, total: bool) -> dict[str, str]:
    """What is evaluated of each row: outputs, whether cells are NULL, keys, conditions."""
    found = {f"o{i}": _evaluable(text, scan, total) for i, text in enumerate(scan.outputs.values())}
    for i, name in enumerate(_cells(scan)):
        found[f"n{i}"] = f"({exp.column(name, quoted=True).sql('duckdb')} IS NULL)"
    found |= {f"k{i}": _evaluable(text, scan, total) for i, text in enumerate(_keys(scan))}
    return found | {f"h{i}": f"coalesce({_condition(t, scan, total)}, FALSE)" for i, t in enumerate(scan.conditions)}


def _check_readable(source: Source, scan: Scan) -> None:
    """UnavailableError if the columns themselves cannot be read, as from a damaged file: then no expression fails."""
    columns = ", ".join(exp.column(name, quoted=True).sql("duckdb") for name in scan.columns) or "1"
    try:
        for _ in source.connection.sql(f"SELECT {columns} FROM {source.sql} AS source").to_arrow_reader(BATCH):
            check_time()
    except FAILURES as error:
        raise UnavailableError(
            f"party {scan.party!r}: table {scan.table!r} cannot be read ({type(error).__name__}): its file or database "
            "is damaged, or was changed while it was read; write it again, or restore it"
        ) from None


def _check_growth(scan: Scan, texts: Sequence[str]) -> None:
    """All expressions are evaluated at once: together their results for a row must not be too long."""
    allowance = current()
    bounded = allowance is not None and allowance.limits.expression_bytes is not None
    if bounded and letters_of_all(checked(text) for text in texts if not is_column(text)) > MOST_IN_SCAN:
        raise PartyError(
            f"party {scan.party!r}: the expressions over table {scan.table!r} make more than {MOST_IN_SCAN:,} letters "
            "of a row; select fewer of them, or let the party's operator compute them in a view"
        )


def _within_bytes(rows: duckdb.DuckDBPyRelation, scan: Scan, hides: bool) -> pa.Table:
    """All rows, if they do not take more memory than the request may, by what they are counted as too."""
    allowance = current()
    if allowance is None or allowance.limits.expression_bytes is None:
        return rows.to_arrow_table()
    reader, batches, size, counted = rows.to_arrow_reader(BATCH), [], 0, 0
    types = [field.type for kind in "ok" for field in reader.schema if field.name.startswith(kind)]
    each = row_bytes(scan, types) if hides else 0
    for batch in reader:
        size, counted = size + batch.nbytes, counted + each * len(batch)
        if max(size, counted) > allowance.limits.expression_bytes:
            raise allowance.too_much(scan.table)
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _failure(source: Source, scan: Scan, query: str, kept: str, kind: str | None) -> PartyError:
    """The error for expressions that fail. DuckDB's message may quote a value of a row: it must not travel with it.

    With a ``kind``, in one's own process, it names DuckDB's error and the expression.
    """
    where = f"party {scan.party!r}: an expression over table {scan.table!r}"
    try:
        source.connection.sql(f"SELECT * FROM ({query}) LIMIT 0").to_arrow_table()
    except duckdb.Error as error:  # no row was read, so it reveals none
        reason = f"cannot be evaluated ({type(error).__name__}); try it in DuckDB, over columns of the same types"
        return PartyError(f"{where} {reason}")
    advice = "use TRY_CAST, or filter the rows it does not fit"
    if kind is None:
        return EvaluationError(f"{where} fails on its rows; {advice}")
    failing = _failing(source, scan, kept) or "an expression"
    return EvaluationError(
        f"party {scan.party!r}: {failing} over table {scan.table!r} fails on its rows ({kind}); {advice}"
    )


def _failing(source: Source, scan: Scan, kept: str) -> str:
    """The expression that fails, as text: filters over all rows, others over those that are kept. Nothing if it cannot
    be found, as in a source that is read once.
    """
    tried = [(text, "") for text in filter(None, scan.filters)]
    tried += [(text, kept) for text in [*scan.outputs.values(), *_keys(scan), *scan.conditions]]
    for text, where in tried:
        try:
            item = _evaluable(text, scan, total=False)
            source.connection.sql(f"SELECT min(hash({item})) FROM {source.sql} AS source{where}").fetchall()
        except duckdb.Error:
            return text
    return ""


def _condition(text: str, scan: Scan, total: bool) -> str:
    """A filter. A part that compares a column with values of its type cannot fail: the source may skip rows by it."""
    whole = _evaluable(text, scan, total=False)
    if not total:
        return whole
    parts = conjuncts(text, scan.columns)
    return " AND ".join(f"({part})" if plain else _never_failing(checked(part)) for part, plain in parts)


def _evaluable(text: str, scan: Scan, total: bool) -> str:
    """The expression, after checking once more that it is one a party evaluates, over columns that are read.

    A name that is no column could mean something else to DuckDB, such as ``user``.
    """
    strange = [name for name in columns_of(text) if name not in scan.columns]
    if strange:
        raise PartyError(
            f"party {scan.party!r}: the plan for {scan.table!r} uses {min(strange)!r}, which it does not read"
        )
    if is_column(text):
        return f"({column_text(*columns_of(text))})"
    node = checked(text).unnest()
    return _never_failing(node) if total else f"({render(node)})"


def _never_failing(node: exp.Expr) -> str:
    """The expression with NULL for rows on which it fails. TRY takes long where it fails often, as casts may."""
    whole = exp.Paren(this=node.copy())
    for cast in [part for part in whole.find_all(exp.Cast) if type(part) is exp.Cast]:
        cast.replace(exp.TryCast(**cast.args))
    return f"TRY{render(whole)}"


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


def permutation(rows: int, key: bytes) -> RowIds:
    """A random order of the rows, drawn from a key: random numbers, sorted with their places."""
    words = SecureStream.keyed(key).words(np.arange(-(-rows // 2)), 0, 1)
    keyed = words.ravel().view(np.uint32)[:rows].astype(np.uint64)
    keyed <<= np.uint64(32)
    keyed |= np.arange(rows, dtype=np.uint64)
    keyed.sort()
    return keyed.astype(np.uint32).view(np.int32)
