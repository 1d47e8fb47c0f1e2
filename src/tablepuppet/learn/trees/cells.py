"""Columns as trees take them: numbers as they are, NaN where missing, and codes of categories; and their bins.

A table with one shard chooses its cuts by itself, and nothing leaves. Shards of one table need the same cuts: the
coordinator finds them from histograms that shards refine, as quantiles are found, and sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.learn.trees.splits import Binned
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_memory, check_time
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.prep.columns.ordered import values_of
from tablepuppet.prep.columns.statistics import KeyFamily
from tablepuppet.prep.encode.encode import Encoding, read_arguments
from tablepuppet.prep.encode.program import check_steps, read_frame, run
from tablepuppet.prep.encode.specs import FittedStep
from tablepuppet.prep.explore.distribution import Distribution, Distributions

MOST_BINS = 255  # and one for missing values: a bin is a byte
Bins = Annotated[int, Meta(ge=2, le=MOST_BINS)]


@dataclass(frozen=True)
class TreeCells:
    """A party's rows of one relation for trees."""

    numbers: Array  # (rows, columns of numbers), NaN where missing
    codes: tuple[NDArray[np.int32], ...]  # by column of categories, -1 for none
    sizes: tuple[int, ...]
    view: RelationRows
    learned: bool  # whether they are without what ``min_group`` hides


@dataclass(frozen=True)
class BinnedRows:
    """The bins of a party's rows, (rows, columns), and how often each row is joined."""

    bins: NDArray[np.uint8]
    binned: Binned
    view: RelationRows


# The coordinator's half


def read_cells(client: Client, encoding: Encoding, *, learned: bool = False) -> None:
    """Let parties read the columns of an encoding for trees; it travels with the next trip."""

    def arguments(alias: str, _: ShardRows) -> Mapping[str, Any] | None:
        if not encoding.names(alias):
            return None
        return {"encoding": encoding.id, "learned": learned, **read_arguments(encoding.table(alias))}

    client.ask("trees.read", arguments)


def binned_over_shards(client: Client, encoding: Encoding, aliases: Iterable[str], max_bins: int) -> dict[str, Binned]:
    """The bins of tables with several shards, by quantiles over the joined rows; LearnError if steps hide these."""
    listed = list(aliases)
    for alias in listed:
        if alias in encoding.steps and encoding.numbers[alias]:
            raise LearnError(
                f"table {alias!r} has several shards {client.owners(alias)}, and trees find common bins of its columns "
                "as they are selected: leave out the prep steps of its numbers, or write them in SELECT"
            )
    columns = [encoder.column for alias in listed for encoder in encoding.numbers[alias]]
    cells = Distributions(client, columns)
    cells.refine(lambda known: np.flatnonzero(known.cells["weights"] * max_bins > known.total))
    cuts = {name: _cuts_between(each, max_bins) for name, each in cells.read().items()} if columns else {}
    return {
        alias: Binned(
            tuple(cuts[encoder.column.name] for encoder in encoding.numbers[alias]),
            tuple(min(encoder.size, max_bins) for encoder in encoding.categories[alias]),
            max_bins,
        )
        for alias in listed
    }


def _cuts_between(known: Distribution, max_bins: int) -> Array:
    """Cuts at ends of cells, so that each bin has about its share of the joined rows where cells are as fine."""
    ends, where = np.unique(known.cells["highs"], return_inverse=True)
    below = np.cumsum(np.bincount(where, known.cells["weights"], len(ends)))
    if len(ends) > max_bins:
        targets = below[-1] * np.arange(1, max_bins) / max_bins
        ends = ends[np.unique(np.searchsorted(below, targets, side="left"))]
    values = values_of(ends[ends < max(ends, default=0)])
    return np.asarray(values[np.isfinite(values)])


def padded(cuts: Sequence[Array]) -> Array:
    """Cuts of columns as one array, (columns, most cuts): the last cut stands for those that are not there."""
    most = max([1, *map(len, cuts)])
    return np.array([np.append(each, np.full(most - len(each), each[-1] if len(each) else 0.0)) for each in cuts])


# The party's half


@op(
    "trees.read",
    asked="trees, `predict` with them",
    releases=Release.COUNTS,
    columns=("columns", "categories"),
    use=Use.FEATURE,
    returns={},
)
def read(
    table: LocalTable, view: str, encoding: str, columns: Sequence[str], categories: Sequence[tuple[str, KeyFamily]],
    learned: bool = False, steps: Sequence[FittedStep] = (), **digests: NDArray[np.uint8],
) -> Values:  # fmt: skip
    """Run ``steps`` over the rows of a relation and keep what they leave, for the ops of trees.

    Rows that a model learns from (``learned``) are without what ``min_group`` hides from statistics.
    """
    frame, shapes = read_frame(
        table, "trees.read", view, encoding, columns, categories, steps, digests, learned=learned
    )
    found = table.view(view)
    check_memory(len(found.row_ids) * (8 * len(shapes.numbers) + 4 * len(shapes.coded)))
    check_steps(steps, frame)
    run(steps, frame)
    numbers = np.empty((len(found.row_ids), len(shapes.numbers)))
    for place, name in enumerate(shapes.numbers):
        column = frame.number(name)
        numbers[:, place] = np.where(column.present, column.values, np.nan)
    codes = tuple(frame.coded(name).codes for name in shapes.coded)
    cells = TreeCells(numbers, codes, tuple(shapes.coded.values()), found, learned)
    table.state[f"{view}/{encoding}/cells"] = cells
    return {}


@op("trees.bin", asked="trees", releases=Release.COUNTS, returns={})
def bin_rows(table: LocalTable, view: str, encoding: str, max_bins: Bins, cuts: Array | None = None) -> Values:
    """Bin the rows of a relation: by ``cuts``, (columns of numbers, cuts), or by quantiles over their joined rows."""
    cells = cells_of(table, view, encoding)
    if not cells.learned:  # each row to predict is as it is, so that sums over them tell what `min_group` hides
        raise PartyError(f"party {table.grant.party!r}: rows that were read to predict have no bins; fit the model")
    if cuts is not None and (cuts.ndim != 2 or len(cuts) != cells.numbers.shape[1]):
        raise PartyError(f"party {table.grant.party!r}: trees.bin needs cuts for each of its columns")
    if cuts is not None and (np.diff(cuts, axis=1) < 0).any():
        raise PartyError(f"party {table.grant.party!r}: cuts must rise")
    rows, numbers = cells.numbers.shape
    check_memory(rows * (numbers + len(cells.codes)))
    bins = np.empty((rows, numbers + len(cells.codes)), np.uint8)
    found = []
    for column, values in enumerate(cells.numbers.T):
        check_time()
        own = np.unique(cuts[column])[: max_bins - 1] if cuts is not None else cuts_of(values, cells.view, max_bins)
        placed = np.searchsorted(own, values, side="left")
        bins[:, column] = np.where(np.isnan(values), max_bins, placed)
        found.append(own)
    sizes = tuple(min(size, max_bins) for size in cells.sizes)
    for place, codes in enumerate(cells.codes):
        bins[:, numbers + place] = np.where((codes < 0) | (codes >= max_bins), max_bins, codes)
    binned = Binned(tuple(found), sizes, max_bins)
    table.state[f"{view}/{encoding}/bins"] = BinnedRows(bins, binned, cells.view)
    return {}


def cuts_of(values: Array, rows: RelationRows, max_bins: int) -> Array:
    """Cuts halfway between neighbouring values: all, or at quantiles over the joined rows if there are too many."""
    present = ~np.isnan(values)
    distinct, where = np.unique(values[present], return_inverse=True)
    if len(distinct) > max_bins:
        below = np.cumsum(np.bincount(where, rows.counts[present]))
        targets = below[-1] * np.arange(1, max_bins) / max_bins
        ends = np.unique(np.searchsorted(below, targets * (1 - 1e-12), side="left"))
        ends = ends[ends < len(distinct) - 1]
    else:
        ends = np.arange(len(distinct) - 1)
    low, high = distinct[ends], distinct[ends + 1]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = low + (high - low) / 2
    return np.asarray(np.where((middle >= low) & (middle < high), middle, low))


def cells_of(table: LocalTable, view: str, encoding: str) -> TreeCells:
    """What trees.read has kept of a relation's rows; PartyError if it has not."""
    found = table.state.get(f"{view}/{encoding}/cells")
    if not isinstance(found, TreeCells) or found.view is not table.view(view):
        raise PartyError(f"party {table.grant.party!r} has not read the rows of this relation; fit the model again")
    return found


def bins_of(table: LocalTable, view: str, encoding: str) -> BinnedRows:
    """What trees.bin has kept of a relation's rows; PartyError if it has not."""
    found = table.state.get(f"{view}/{encoding}/bins")
    if not isinstance(found, BinnedRows) or found.view is not table.view(view):
        raise PartyError(f"party {table.grant.party!r} has not binned the rows of this relation; fit the model again")
    return found
