"""The ops about rows themselves: blinded keys for the join, who takes part, and a repeatable sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import mark
from tablepuppet.errors import PartyError
from tablepuppet.party.ops import LocalTable, Values, View, op
from tablepuppet.party.release import Release


@op("keys.blind", releases=Release.KEY_DIGESTS)
def blind_keys(table: LocalTable) -> Values:
    """Digests and codes of every join key, and for each filter of a union the rows that pass."""
    reply: Values = {}
    for number, blinded in enumerate(table.snapshot.blind_keys(table.secret, table.run)):
        reply[f"digests{number}"] = blinded.digests
        reply[f"codes{number}"] = blinded.codes
    for number, passes in enumerate(table.snapshot.passes):
        if passes is not None:
            reply[f"passes{number}"] = np.packbits(table.snapshot.by_row_id(passes))
    return reply


@op("rows.use", releases=Release.COUNTS)
def use_rows(table: LocalTable, view: str, chosen: NDArray[np.integer] | None, counts: NDArray[np.integer]) -> Values:
    """Remember which rows take part in a relation and how often: ``chosen`` are all of them if it is None, those with a
    bit set if it is bytes, else those with these row ids.
    """
    rows = _row_ids(table, chosen)
    _check_rows(table, rows, counts)
    table.views[view] = View(rows, counts)
    return {}


def _row_ids(table: LocalTable, chosen: NDArray[np.integer] | None) -> NDArray[np.integer]:
    if chosen is None:
        return np.arange(table.snapshot.rows, dtype=np.int32)
    if isinstance(chosen, np.ndarray) and chosen.dtype == np.uint8 and chosen.ndim == 1:
        bits = np.unpackbits(chosen.view(np.uint8), count=table.snapshot.rows)
        return np.flatnonzero(bits).astype(np.int32)
    return chosen


def _check_rows(table: LocalTable, row_ids: NDArray[np.integer], counts: NDArray[np.integer]) -> None:
    """Rows that take part are rows of the snapshot, are joined some number of times, and are not too few."""
    where = f"party {table.grant.party!r}: table {table.grant.table!r}"
    for array in (row_ids, counts):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 1:
            raise PartyError(f"{where}: chosen rows and counts must be arrays of whole numbers")
    if len(row_ids) != len(counts):
        raise PartyError(f"{where}: there are {len(row_ids):,} row ids and {len(counts):,} counts")
    if len(row_ids) and (row_ids.min() < 0 or row_ids.max() >= table.snapshot.rows or counts.min() < 0):
        raise PartyError(f"{where}: row ids must be below {table.snapshot.rows:,}, and counts at least 0")
    if table.grant.rules.min_rows:
        table.grant.check_rows(int(np.count_nonzero(mark(table.snapshot.rows, row_ids[counts > 0]))))


@op("rows.sample", releases=Release.COUNTS)
def sample_rows(table: LocalTable, view: str, ranks: NDArray[np.integer]) -> Values:
    """Which of a relation's rows stand at ``ranks`` in the order of the source.

    The coordinator draws ranks from a seed, so that the same source rows are chosen on every day the data is
    the same, whatever the row ids of the day are.
    """
    row_ids = table.view(view).row_ids
    order = np.argsort(table.snapshot.place(row_ids))
    chosen = np.zeros(len(row_ids), bool)
    if ranks.ndim != 1 or (len(ranks) and (ranks.min() < 0 or ranks.max() >= len(order))):
        raise PartyError(f"party {table.grant.party!r}: ranks must be below the {len(order):,} rows that take part")
    chosen[order[ranks]] = True
    return {"chosen": np.packbits(chosen)}
