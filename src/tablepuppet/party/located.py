"""Where the rows of a snapshot are in the whole table, of which its filters, or its database, left out the others.

Input: a snapshot, and a function that reads its table now. Everything here reads all rows of the table, so it is done
only where it is needed. Output, for code of the same party only: positions; and the state of a column, from which noise
that must repeat is drawn. Two relations with different filters over the same data have the same state of a column, and
their rows the same positions in it; changed data has another state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.snapshot import NOWHERE, Snapshot, content_hash
from tablepuppet.sql.plan import Scan

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
    whole = read(
        replace(scan, outputs=wanted, filters=(*scan.filters, ""), keys=(), branches=(), pushed=(), conditions=())
    )
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
