"""Ops of noisy statistics: how many rows have a value, and how many are in bins between bounds that the caller chose.

Input: columns, bounds and noise. Output: noisy counts. A row counts as often as it is joined, at most ``times`` times,
and is in one bin, so it changes a count, or a histogram, by at most ``times``. `private.moments` (private_encode.py)
returns means and variances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.arguments import List, Multiplier
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Numbers
from tablepuppet.prep.columns.rows_once import RowsOnce, Times, check_noise, is_group
from tablepuppet.prep.explore.histograms import Bins
from tablepuppet.privacy.clip import blocks

COUNTS, BINS = "private.counts", "private.bins"
ASKED = "`describe`, `histogram`, `quantile`, `profile` with `feature_epsilon`"


@op(
    BINS,
    asked=ASKED,
    releases=Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"counts": Numbers(("columns", "bins"))},
)
def count_bins(
    table: LocalTable,
    view: str,
    columns: Sequence[str],
    lows: List,
    highs: List,
    bins: Bins,
    multiplier: Multiplier,
    times: Times = 1,
) -> Values:
    """Noisy counts of rows in equally wide bins; a value beyond the bounds is in the first or last bin."""
    if lows.shape != (len(columns),) or highs.shape != lows.shape or not (lows < highs).all():
        raise PartyError(f"party {table.grant.party!r}: private.bins needs a low and a higher number for each column")
    check_noise(table, columns, multiplier)
    rows, counts = RowsOnce.of(table, view, columns, times), np.zeros((len(columns), bins))
    for place, name in enumerate(columns):
        inner = np.linspace(lows[place], highs[place], bins + 1)[1:-1]

        def found(name: str = name, inner: NDArray[np.float64] = inner) -> Iterator[NDArray[np.float64]]:
            values, present = rows.values(name)
            for block in blocks(len(values)):
                places = np.searchsorted(inner, values[block][present[block]], side="right")
                yield np.asarray(np.bincount(places, rows.weights[block][present[block]], minlength=bins), np.float64)

        noisy = table.noisy(found, (bins,), float(times), multiplier, "bins")
        counts[place] = noisy if is_group(table, noisy.sum(keepdims=True), times) else 0.0
    return {"counts": counts}


@op(
    COUNTS,
    asked=ASKED,
    releases=Release.HISTOGRAMS,
    columns=("columns",),
    use=Use.FEATURE,
    private=True,
    returns={"counts": Numbers(("columns",))},
)
def count_values(
    table: LocalTable, view: str, columns: Sequence[str], multiplier: Multiplier, times: Times = 1
) -> Values:
    """Noisy counts of the rows that have a value, of columns of any type."""
    rows, counts = RowsOnce.of_any(table, view, columns, times), np.zeros(len(columns))
    for place, name in enumerate(columns):

        def found(name: str = name) -> Iterator[NDArray[np.float64]]:
            present = rows.present(name)
            for block in blocks(len(present)):
                yield np.array([rows.weights[block][present[block]].sum()])

        noisy = table.noisy(found, (1,), float(times), multiplier, "counts")
        counts[place] = noisy[0] if is_group(table, noisy, times) else 0.0
    return {"counts": counts}
