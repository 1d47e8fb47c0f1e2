"""The ops about rows themselves: blinded keys for the join, who takes part, and a repeatable sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
def use_rows(table: LocalTable, view: str, row_ids: NDArray[np.integer] | None, counts: NDArray[np.integer]) -> Values:
    """Remember which rows take part in a relation, all of them if ``row_ids`` is None, and how often."""
    rows = np.arange(table.snapshot.rows, dtype=np.int32) if row_ids is None else row_ids
    table.views[view] = View(rows, counts)
    return {}


@op("rows.sample", releases=Release.COUNTS)
def sample_rows(table: LocalTable, view: str, ranks: NDArray[np.integer]) -> Values:
    """Which of a relation's rows stand at ``ranks`` in the order of the source.

    The coordinator draws ranks from a seed, so that the same source rows are chosen on every day the data is
    the same, whatever the row ids of the day are.
    """
    row_ids = table.view(view).row_ids
    order = np.argsort(table.snapshot.place(row_ids))
    chosen = np.zeros(len(row_ids), bool)
    chosen[order[ranks]] = True
    return {"chosen": np.packbits(chosen)}
