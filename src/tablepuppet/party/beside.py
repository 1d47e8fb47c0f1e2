"""Other columns of a snapshot's table, for the same rows that a session has read.

Input: a snapshot, and names of columns that it need not contain. The same scan is read again with these columns and
compared with the snapshot. Output, for code of the same party only: the columns, in the snapshot's order; or an error
if the table has changed. Rows that are equal in everything that was read may be exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.database import Database
from tablepuppet.party.databases.names import find_names, find_table
from tablepuppet.party.snapshot import NOWHERE, Snapshot, content_hash, take_snapshot
from tablepuppet.sql.expression import column_text
from tablepuppet.sql.plan import Scan
from tablepuppet.sql.types import Family, family


def columns_beside(snapshot: Snapshot, columns: Sequence[str], database: Database) -> pa.Table:
    """Columns of the snapshot's table, named as asked, one value for each of its rows in its own order.

    Raises PartyError if a column is not there or cannot be read, or if the rows are no longer those that were read.
    """
    places = [f"beside {number}" for number in range(len(columns))]
    scan = _wider(snapshot.scan, dict(zip(places, columns, strict=True)), database)
    with database.reader() as reader:
        # as a session of a caller elsewhere reads it: with NULL where an expression would fail
        now = take_snapshot(scan, reader, None, total=not snapshot.in_source_order)
    order = _order(snapshot, now)
    found = now.outputs.select(places).rename_columns(list(columns))
    return found if order is None else found.take(pa.array(order))


def _wider(scan: Scan, wanted: dict[str, str], database: Database) -> Scan:
    """The scan with more outputs, each a column in the type that the database gives it."""
    stored = {table.name: table for table in database.tables([scan.table])}
    table = stored[find_table(scan.party, stored, scan.table)]
    spelled = find_names(scan.party, table.name, table.columns, wanted.values())
    known = {name.lower(): name for name in scan.columns}
    columns, outputs = dict(scan.columns), dict(scan.outputs)
    for output, name in zip(wanted, spelled, strict=True):
        declared = table.columns[name]
        if family(declared) is Family.OTHER:
            raise PartyError(
                f"party {scan.party!r}: table {scan.table!r}, column {name!r} is {declared}, which cannot be sent; "
                "publish a SELECT that casts it"
            )
        read = known.setdefault(name.lower(), name)
        columns.setdefault(read, declared)
        outputs[output] = column_text(read)
    return replace(scan, columns=columns, outputs=outputs)


def _order(before: Snapshot, now: Snapshot) -> NDArray[np.int64] | None:
    """The position of each row of a snapshot in a new one; None: the same.

    A source without an order is sorted by the columns that are read, so that more columns may change the order.
    """
    old, new = _content(before, before.scan), _content(now, before.scan)
    if _is_same(before.positions, now.positions) and _is_alike(old, new):
        return None
    if len(old) == len(new) and old.schema.types == new.schema.types:
        sorted_old, sorted_new = _sorted(old), _sorted(new)
        if _is_alike(old.take(pa.array(sorted_old)), new.take(pa.array(sorted_new))):
            order = np.empty(len(old), np.int64)
            order[sorted_old] = sorted_new
            return order
    raise PartyError(
        f"party {before.scan.party!r}: table {before.scan.table!r} has changed since the relation was opened; open it "
        "again with fed.sql, and predict again"
    )


def _content(snapshot: Snapshot, scan: Scan) -> pa.Table:
    """All that a scan read, as one table."""
    outputs = [snapshot.outputs[name] for name in scan.outputs]
    passes = [pa.chunked_array([pa.array(each)]) for each in snapshot.passes if each is not None]
    holds = [pa.chunked_array([pa.array(each)]) for each in snapshot.holds]
    columns = [*outputs, *snapshot.keys.columns, *passes, *holds]
    names = [f"c{number}" for number in range(len(columns) + 1)]
    is_missing = pa.array(np.arange(snapshot.rows) == snapshot.missing_row)  # it is none of the shard's rows
    return pa.table([*columns, is_missing], names=names)


def _is_same(before: NDArray[np.int64] | None, now: NDArray[np.int64] | None) -> bool:
    return (before is None) == (now is None) and (before is None or np.array_equal(before, now))  # type: ignore[arg-type]


def _sorted(table: pa.Table) -> NDArray[np.int64]:
    keys = [(name, "ascending") for name in table.column_names]
    order: NDArray[np.int64] = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
    return order


def _is_alike(old: pa.Table, new: pa.Table) -> bool:
    return len(old) == len(new) and content_hash(old.columns) == content_hash(new.columns)


# Where the rows of a snapshot are in the whole table, of which its filters, or its database, left out the others.
# Input: a snapshot, and a function that reads its table now. Everything here reads all rows of the table, so it is done
# only where it is needed. Output, for code of the same party only: positions; and the state of a column, from which
# noise that must repeat is drawn. Two relations with different filters over the same data have the same state of a
# column, and their rows the same positions in it; changed data has another state.


Read = Callable[[Scan], Snapshot]  # takes a snapshot of the party's database as it is now
Positions = NDArray[np.int64]


class ColumnState(NamedTuple):
    """A hash of a column, and the positions in it of a snapshot's rows, in the snapshot's own order."""

    fingerprint: str
    positions: Positions


def column_state(snapshot: Snapshot, output: str, read: Read) -> ColumnState:
    """The state of an output over the whole table; if that cannot be computed, over the snapshot.

    This happens if the expression fails on rows that the filters leave out, or if the data has changed meanwhile.
    """
    read_rows = snapshot.without_missing()
    if "" in snapshot.scan.filters:  # nothing was left out
        return ColumnState(_fingerprint(read_rows, output), _positions(snapshot))
    try:
        whole, places = _located(read_rows, [output], read)
    except PartyError:
        return ColumnState(_fingerprint(read_rows, output), _positions(snapshot))
    return ColumnState(_fingerprint(whole, output), _also_missing(snapshot, _positions(whole)[places]))


def positions_now(snapshot: Snapshot, read: Read) -> Positions:
    """The positions of a snapshot's rows in the source, NOWHERE for the missing row; PartyError if its table has
    changed since it was read.
    """
    if snapshot.is_located:
        return _positions(snapshot)
    whole, places = _located(snapshot.without_missing(), list(snapshot.scan.outputs), read)
    return _also_missing(snapshot, _positions(whole)[places])


def _also_missing(snapshot: Snapshot, positions: Positions) -> Positions:
    return np.append(positions, NOWHERE) if snapshot.scan.missing else positions


def _located(snapshot: Snapshot, outputs: Sequence[str], read: Read) -> tuple[Snapshot, NDArray[np.intp]]:
    """All rows of the table, and the places among them of the snapshot's rows."""
    scan = snapshot.scan
    wanted = {name: scan.outputs[name] for name in outputs}
    rest = replace(scan, keys=(), branches=(), pushed=(), conditions=())
    whole = read(replace(rest, outputs=wanted, filters=(*scan.filters, "")))
    passes = [each for each in whole.passes[:-1] if each is not None]
    places = np.flatnonzero(np.logical_or.reduce(passes))
    if len(places) == snapshot.rows:
        found = [whole.outputs[name].take(places) for name in outputs]
        if content_hash(found) == content_hash([snapshot.outputs[name] for name in outputs]):
            return whole, places
    raise PartyError(
        f"party {scan.party!r}: table {scan.table!r} has changed since the relation was opened; open it again with "
        "fed.sql"
    )


def _fingerprint(snapshot: Snapshot, output: str) -> str:
    about = (snapshot.scan.table.lower(), snapshot.scan.outputs[output], snapshot.rows, *_among(snapshot))
    return content_hash([snapshot.outputs[output]], about, snapshot.positions)


def _among(snapshot: Snapshot) -> list[str]:
    return [] if snapshot.is_located else [snapshot.about_positions]


def _positions(snapshot: Snapshot) -> Positions:
    if snapshot.positions is not None:
        return snapshot.positions
    return _also_missing(snapshot, np.arange(snapshot.own_rows))
