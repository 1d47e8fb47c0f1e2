"""The ops about rows themselves: blinded keys for the join, who takes part, and a repeatable sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import mark
from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.party.local_table import LocalTable, RefusedRows, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import BITS, Bytes

MOST_COUNT = 2**53  # joined rows of one row: more are no whole numbers in sums


@op("keys.blind", asked="every relation", releases=Release.KEY_DIGESTS)
def blind_keys(table: LocalTable) -> Values:
    """Digests and codes of every join key, and for each filter of a union the rows that pass; for each condition of an
    outer join the rows that hold it.
    """
    reply: Values = {}
    for number, blinded in enumerate(table.snapshot.blind_keys(table.run_key)):
        reply[f"digests{number}"] = blinded.digests
        reply[f"codes{number}"] = blinded.codes
    for number, passes in enumerate(table.snapshot.passes):
        if passes is not None:
            reply[f"passes{number}"] = np.packbits(table.snapshot.by_row_id(passes))
    for number, holds in enumerate(table.snapshot.holds):
        reply[f"holds{number}"] = np.packbits(table.snapshot.by_row_id(holds))
    return reply


@op("rows.use", asked="every relation", releases=Release.COUNTS, returns={})
def use_rows(table: LocalTable, view: str, chosen: NDArray[np.integer] | None, counts: NDArray[np.integer]) -> Values:
    """Remember which rows take part in a relation and how often: ``chosen`` are all of them if it is None, those with a
    bit set if it is bytes, else those with these row ids.
    """
    rows = _row_ids(table, chosen)
    _check_rows(table, rows, counts)
    try:
        _check_enough(table, rows)
    except PrivacyError as error:
        table.views[view] = RefusedRows(str(error), error.rule)  # for whoever asks about the relation again
        raise
    table.views[view] = RelationRows(rows, counts, table.snapshot.missing_row)
    return {}


def _row_ids(table: LocalTable, chosen: NDArray[np.integer] | None) -> NDArray[np.integer]:
    if chosen is None:
        return np.arange(table.snapshot.rows, dtype=np.int32)
    if isinstance(chosen, np.ndarray) and chosen.dtype == np.uint8 and chosen.ndim == 1:
        bits = np.unpackbits(chosen.view(np.uint8), count=table.snapshot.rows)
        return np.flatnonzero(bits).astype(np.int32)
    return chosen


def _check_rows(table: LocalTable, row_ids: NDArray[np.integer], counts: NDArray[np.integer]) -> None:
    """Rows that take part are rows of the snapshot, and are joined at least once each.

    A row that is joined no time would be learned of without counting among those that it hides among.
    """
    where = f"party {table.grant.party!r}: table {table.grant.table!r}"
    for array in (row_ids, counts):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 1:
            raise PartyError(f"{where}: chosen rows and counts must be arrays of whole numbers")
    if len(row_ids) != len(counts):
        raise PartyError(f"{where}: there are {len(row_ids):,} row ids and {len(counts):,} counts")
    if len(row_ids) and (row_ids.min() < 0 or row_ids.max() >= table.snapshot.rows):
        raise PartyError(f"{where}: row ids must be below {table.snapshot.rows:,}")
    if len(counts) and not 1 <= counts.min() <= counts.max() <= MOST_COUNT:
        raise PartyError(f"{where}: a row that takes part is joined once or more, so counts must be at least 1")


def _check_enough(table: LocalTable, row_ids: NDArray[np.integer]) -> None:
    """Rows that take part are not too few to hide among; the missing row hides nobody."""
    if table.grant.rules.min_rows:
        table.grant.check_rows(int(np.count_nonzero(mark(table.snapshot.rows, row_ids)[: table.snapshot.own_rows])))


@op(
    "rows.sample",
    asked="`split`, rows that are held out, folds (also of `TargetEncode` and `WOE`)",
    releases=Release.COUNTS,
    returns={"chosen": Bytes((BITS,), ones="ranks")},
)
def sample_rows(
    table: LocalTable, view: str, ranks: NDArray[np.integer], classes: NDArray[np.integer] | None = None
) -> Values:
    """Which of a relation's rows are at ``ranks`` in the order of the source; with ``classes``, a number for each row,
    in the order of classes and, within a class, of the source.

    The coordinator draws ranks from a seed, so that the same source rows are chosen as long as the data is the same,
    whatever the row ids are. Each choice reveals one bit of every row's place, or as many as a row is listed times,
    so choices are counted.
    """
    row_ids = table.view(view).row_ids
    places = table.snapshot.place(row_ids)
    where = f"party {table.grant.party!r}"
    if classes is not None and classes.shape != row_ids.shape:
        raise PartyError(f"{where}: there must be a class for each of the {len(row_ids):,} rows that take part")
    order = np.argsort(places, kind="stable")
    ranked = order if classes is None else order[np.argsort(classes[order], kind="stable")]
    chosen = np.zeros(len(row_ids), bool)
    if ranks.ndim != 1 or len(ranks) > len(order) or (len(ranks) and (ranks.min() < 0 or ranks.max() >= len(order))):
        raise PartyError(f"{where}: ranks must be below the {len(order):,} rows that take part, and no more")
    chosen[ranked[ranks]] = True
    table.count_split(view, chosen, classes)
    return {"chosen": np.packbits(chosen)}
