"""Sums of the label by the categories of a column, over joined rows: `TargetEncode` and `WOE` learn from them.

The label is in one table and the category often in another, so the coordinator computes the sums. The label's table
sends labels (label.py); the category's table sends codes, one small number per base row, if its policy allows that
(``cross_statistics``). The results are sent to the category's table as the numbers of a step, if the label's policy
allows that (``label_means``).

A group whose mean is sent has at least ``min_group`` distinct base rows in both tables. The same holds for the pooled
rest and for the parts of folds. Categories with fewer rows are pooled and have no mean of their own. If a row of the
label's table is joined with several categories, groups overlap, and differences of their sums may concern fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, mark
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.mapping.table_mapping import TableRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.dealing import deal
from tablepuppet.party.allowance import check_reply
from tablepuppet.party.groups import Grouped, rows_by
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Asked, Numbers, OfGroups, OfNoCell, Plain, Wrong
from tablepuppet.prep.columns.label import ask_classes, ask_numbers, joined_classes, joined_numbers
from tablepuppet.prep.columns.statistics import KeyFamily
from tablepuppet.prep.encode.program import (
    check_steps,
    needed_for,
    read_frame,
    run,
)
from tablepuppet.prep.encode.specs import FittedStep, fold_numbers
from tablepuppet.prep.pipelines.derived import wanted_codes
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import NUMERIC, family

NO_CODE = -1  # of a category that is not listed


@dataclass(frozen=True)
class DerivedCodes:
    """The code of each wanted column for every row: `NO_CODE`, a listed code, or one code more if it is missing."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        Numbers((ROWS, "wanted"), "i", least=NO_CODE).check(value, asked, reply)
        sizes = np.array(list(wanted_codes(asked.arguments).values()))
        if value.size and (value.max(axis=0) > sizes).any():
            raise Wrong("has codes that were not asked for")


@op(
    "prep.codes",
    asked="pipelines with `TargetEncode` or `WOE`",
    releases=Release.COLUMNS | Release.HISTOGRAMS,
    columns=("columns", "categories"),
    use=Use.FEATURE,
    returns={"codes": OfGroups(DerivedCodes()), "least": OfNoCell(Plain(int, 0))},
)
def sent_codes(
    table: LocalTable, view: str, blinding: str, columns: Sequence[str], categories: Sequence[tuple[str, KeyFamily]],
    wanted: Sequence[str], steps: Sequence[FittedStep] = (), **digests: NDArray[np.uint8],
) -> Values:  # fmt: skip
    """The codes of ``wanted`` columns after ``steps``, for every row that takes part; and the policy's ``min_group``.

    A code that fewer rows have is sent as one that is not listed.
    """
    steps = needed_for(steps, wanted)
    frame, shapes = read_frame(table, "prep.codes", view, blinding, columns, categories, steps, digests, learned=True)
    if len(set(wanted)) < len(wanted) or not set(wanted) <= shapes.coded.keys():
        raise PartyError(f"party {table.grant.party!r}: prep.codes takes names of columns of codes, each once")
    rows = table.view(view)
    check_reply(4 * len(rows.row_ids) * len(wanted))
    check_steps(steps, frame)
    run(steps, frame)
    found, sent = np.empty((len(rows.row_ids), len(wanted)), np.int32), [np.zeros(0, np.int64)]
    for place, name in enumerate(wanted):
        column, size = frame.coded(name), shapes.coded[name]
        codes = np.where(column.missing, np.int32(size), column.codes)
        groups = rows_by(rows, codes, size + 1)
        few = np.append(~table.grant.is_group(groups), False)  # the last is NO_CODE
        found[:, place] = np.where(few[codes], np.int32(NO_CODE), codes)
        sent.append(rows_by(rows, found[:, place], size + 1))
    return {"codes": Grouped(found, np.concatenate(sent)), "least": table.grant.rules.min_group}


@dataclass(frozen=True)
class Folds:
    """How base rows are dealt to folds; one fold: they are not."""

    count: int
    seed: int = 0
    shuffle: bool = True


@dataclass(frozen=True)
class ColumnCodes:
    """The codes of a column over the base rows of its table, and the rows that its policy asks of a group."""

    alias: str
    codes: NDArray[np.int64]  # (rows,): those missing have the code ``size``, those not listed ``size + 1``
    size: int
    least: int


@dataclass(frozen=True)
class LabelSums:
    """Joined rows, mean of the label and squares about it, by category; the last is for missing categories.

    The first line is over all rows. Then, if there are folds, there is one line for each, over the rows of the others.
    Categories that are pooled have no rows here. ``prior_*`` are over all categories, those pooled too.
    """

    counts: Array  # (lines, size + 1)
    means: Array
    squares: Array
    prior_counts: Array  # (lines,)
    prior_means: Array
    prior_squares: Array
    weights: Array  # (folds, size + 2): all joined rows, by fold of their base row; those not listed are last
    has_two_values: bool  # the label; it is 0 or 1 then


class AskedLabels:
    """The labels of a relation, asked for when made."""

    def __init__(self, client: Client, label: OutputColumn):
        self._client, self.label = client, label
        self._is_number = family(label.type) in NUMERIC
        self._asked: Pending = (ask_numbers if self._is_number else ask_classes)(client, label)
        self._sums: dict[str, tuple[Array, Array]] = {}
        self._dealt: dict[tuple[str, Folds], Callable[[], NDArray[np.int64]]] = {}

    @cached_property
    def _found(self) -> tuple[Array, bool]:
        """(the label of every joined row, whether it has two values); of two the larger one is 1, the other 0."""
        if not self._is_number:
            classes = joined_classes(self._client, self.label, self._asked)
            if len(classes.values) > 2:
                raise LearnError(
                    f"label {self.label.qualified} has {len(classes.values)} classes, and its mean by category needs "
                    "two, or numbers; learn one class against the others: SELECT label = 'class' AS label"
                )
            return classes.numbers.astype(np.float64), True
        values = joined_numbers(self._client, self.label, self._asked)
        low, high = values.min(), values.max()
        if low < high and ((values == low) | (values == high)).all():
            return (values == high).astype(np.float64), True
        return values, False

    def of(self, column: ColumnCodes, folds: Folds) -> LabelSums:
        """The label's sums by category of a column."""
        values, has_two = self._found
        self.deal(column.alias, folds)
        fold = self._dealt[column.alias, folds]()
        parts = self._parts(column, fold, folds.count)
        weights = self._client.tables[column.alias].counts.astype(np.float64)
        mean = float(values.mean())
        sums, squares = self._at_base_rows(column.alias, values - mean)
        cells, shape = column.codes * folds.count + fold, (column.size + 2, folds.count)
        size = shape[0] * shape[1]
        grid: list[Array] = [
            np.bincount(cells, each, size).reshape(shape).astype(np.float64) for each in (weights, sums, squares)
        ]
        left = _left(parts, folds.count)  # (lines, size + 1, folds)
        count, total, square = [np.einsum("cf,lcf->lc", each[:-1], left) for each in grid]
        means, about = _centred(count, total, square)
        whole = [each.sum(axis=0) for each in grid]  # by fold
        apart = np.ones((len(left), folds.count))  # the folds of each line: all, then all but one
        if folds.count > 1 and self.least(column) <= 1:
            apart[1:] -= np.eye(folds.count)
        prior_count, prior_total, prior_square = [apart @ each for each in whole]
        prior_means, prior_about = _centred(prior_count, prior_total, prior_square)
        return LabelSums(
            count, mean + means, about, prior_count, mean + prior_means, prior_about, grid[0].T, has_two
        )  # fmt: skip

    def deal(self, alias: str, folds: Folds) -> None:
        """Ask for the folds of a table's rows, unless it was done before."""
        if (alias, folds) not in self._dealt:
            self._dealt[alias, folds] = cache(fold_of_rows(self._client, alias, folds))

    def least(self, column: ColumnCodes) -> int:
        """Different base rows that a group must have, in the tables of the label and of the category."""
        shards = self._client.plan.tables[self.label.alias].shards
        return max(column.least, *(shard.min_group for shard in shards))

    def _at_base_rows(self, alias: str, values: Array) -> tuple[Array, Array]:
        """(sums of the values, sums of their squares) at the base rows of a table."""
        if alias not in self._sums:
            scatter = self._client.rows.sums
            self._sums[alias] = scatter(alias, values), scatter(alias, values**2)
        return self._sums[alias]

    def _parts(self, column: ColumnCodes, fold: NDArray[np.int64], folds: int) -> NDArray[np.intp]:
        """Into how many parts the folds of each category are put together; 0 if it is pooled.

        As many as possible so that each part has enough different base rows, in both tables, or none at all.
        """
        least, codes = self.least(column), column.codes
        parts = np.full(column.size + 1, folds)
        if least <= 1:
            return parts
        parts[:] = 0
        for count in range(folds, min(folds, 2) - 1, -1):
            shape = (column.size + 2, count)
            grids = self._different_rows(column.alias, codes * count + fold % count, shape)
            fits = np.all([(grid == 0) | (grid >= least) for grid in grids], axis=(0, 2))[:-1]
            parts[(parts == 0) & fits] = count
        rows = np.min(self._different_rows(column.alias, codes, (column.size + 2,)), axis=0)[:-1]
        while True:
            pooled = np.append(parts == 0, True)[codes].astype(np.int64)
            rest = [int(grid[1]) for grid in self._different_rows(column.alias, pooled, (2,))]
            kept = np.flatnonzero((parts > 0) & (rows > 0))
            if not len(kept) or all(each == 0 or each >= least for each in rest):
                return parts
            parts[kept[np.argmin(rows[kept])]] = 0  # what is left of all rows would reveal the few that are pooled

    def _different_rows(self, alias: str, cells: NDArray[np.int64], shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
        """How many different base rows there are by cell, in the category's table and in the label's."""
        client, size = self._client, int(np.prod(shape))
        pairs = [(base_rows(client.tables[alias]), cells)]
        if alias != self.label.alias:
            met = client.rows.meetings(alias, cells, size, self.label.alias)
            pairs.append((base_rows(client.tables[self.label.alias])[met.rows], met.groups.astype(np.int64)))
        found = [np.unique(rows * size + each) % size for rows, each in pairs]
        return [np.bincount(each, minlength=size).reshape(shape) for each in found]


def base_rows(table: TableRows) -> NDArray[np.int64]:
    """A number for the base row at each position of a table; a row may be listed several times."""
    found, start = np.empty(table.rows, np.int64), 0
    for shard in table.shards:
        known, places = np.unique(shard.row_ids, return_inverse=True)
        found[shard.slice] = start + places
        start += len(known)
    return found


def fold_of_rows(client: Client, alias: str, folds: Folds) -> Callable[[], NDArray[np.int64]]:
    """Ask for the fold of each base row of a table, as its parties find it by the places of rows in their sources.

    Parties say which rows are in which fold: that counts as splits. The result reads them.
    """
    table = client.tables[alias]
    if folds.count == 1:
        return lambda: np.zeros(table.rows, np.int64)
    rows = base_rows(table)
    _, first = np.unique(rows, return_index=True)
    again = ~mark(table.rows, first)  # rows that are listed before
    parts = [len(np.unique(shard.row_ids)) for shard in sorted(client.shards(alias), key=lambda shard: shard.party)]
    listed = [fold_numbers(np.arange(size), folds.count, folds.seed, folds.shuffle) for size in parts]
    numbers = np.concatenate([np.zeros(0, np.int64), *listed, np.zeros(np.count_nonzero(again), np.int64)])
    asked = deal(client, alias, numbers, again.astype(np.int64) if again.any() else None)
    return lambda: asked()[first][rows]


def _left(parts: NDArray[np.intp], folds: int) -> Array:
    """For each line and category the folds that count, (lines, categories, folds): all folds, then the other folds."""
    numbers, some = np.arange(folds), np.maximum(parts, 1)[None, :, None]
    others = numbers[None, None, :] % some != numbers[:, None, None] % some
    whole = np.ones((1, len(parts), folds), bool)
    lines = whole if folds == 1 else np.concatenate([whole, others])
    return (lines & (parts > 0)[None, :, None]).astype(np.float64)


def _centred(count: Array, total: Array, square: Array) -> tuple[Array, Array]:
    """(mean, squares about it) of sums and sums of squares; 0 without rows."""
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return mean, np.maximum(square - count * mean**2, 0.0)


def read_codes(client: Client, alias: str, replies: Sequence[Mapping[str, Any]], place: int, size: int) -> ColumnCodes:
    """One of the columns that shards have sent, over all of them."""
    found, least = np.empty(client.tables[alias].rows, np.int64), 0
    for shard, reply in zip(client.shards(alias), replies, strict=True):
        codes = reply["codes"][:, place].astype(np.int64)
        found[shard.slice] = np.where(codes == NO_CODE, size + 1, codes)
        least = max(least, reply["least"])
    return ColumnCodes(alias, found, size, least)
