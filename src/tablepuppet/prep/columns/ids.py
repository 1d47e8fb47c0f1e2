"""Columns that identify rows instead of describing them: a model learns rows by heart from them, or their order.

Of text, the number of categories shows it. Of numbers, each party answers whether those of its rows are whole and all
different: one bit per column, over no other rows than its sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.operators.client import Client
from tablepuppet.party.groups import Grouped, rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Numbers, OfGroups
from tablepuppet.prep.columns.statistics import AskedColumns, released_numbers
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

ID_ROWS, ID_SHARE = 50, 0.95  # text with more distinct values than this share of its base rows is an id, not a category
FEW = 64  # values that are looked at before all of them
ID_HELP = f"{ID_SHARE:.0%} or more of its rows have a value of their own; list it in categorical to keep it"
NUMBERED = (Family.INTEGER, Family.DECIMAL, Family.FLOAT)  # families in which ids are kept


def is_id(distinct: int, rows: int) -> bool:
    """Whether text with this number of distinct values identifies rows instead of grouping them.

    >>> is_id(200, 200), is_id(49, 49), is_id(90, 100)
    (True, False, False)
    """
    return rows >= ID_ROWS and distinct >= ID_SHARE * rows


@op(
    "statistics.ids",
    asked="`profile`, encoders without privacy",
    releases=Release.STATISTICS,
    columns=("columns",),
    returns={"ids": OfGroups(Numbers(("columns",), "b"))},
)
def number_ids(table: LocalTable, view: str, columns: Sequence[str]) -> Values:
    """Whether each column has a whole number of its own in every row that takes part; never of fewer than `ID_ROWS`.

    A column with a value in fewer rows than the policy's ``min_group`` counts as one without any.
    """
    firsts = table.view(view).firsts
    if np.count_nonzero(firsts) < ID_ROWS:
        return {"ids": Grouped(np.zeros(len(columns), bool), 0)}
    found = np.array([_names_rows(table, view, name, firsts) for name in columns], bool)
    return {"ids": Grouped(found, rows_of(table.view(view), firsts) if found.any() else 0)}  # then all rows have one


def _names_rows(table: LocalTable, view: str, name: str, firsts: NDArray[np.bool_]) -> bool:
    values, present = released_numbers(table, view, name)
    some = values[:FEW]
    if (
        not np.array_equal(some, np.floor(some)) or not present.all()
    ):  # of most columns that are no ids, a few are enough
        return False
    low, high = values.min(), values.max()
    rounded = 2 * np.spacing(max(abs(low), abs(high)))
    if high - low + rounded < np.count_nonzero(firsts) - 1 or not np.array_equal(values, np.floor(values)):
        return False  # too narrow a range for all to differ, or no whole numbers
    column = table.column(name, view)
    stored = column.to_numpy() if pa.types.is_integer(column.type) else values  # float64 rounds long integers
    ordered = np.sort(stored[firsts])
    return bool(np.all(ordered[1:] > ordered[:-1]))


class NumberIds:
    """Which columns of numbers identify rows: asked for when made; `read` may make a trip."""

    def __init__(self, client: Client, columns: Iterable[OutputColumn]):
        self._client = client
        numbered = [column for column in columns if family(column.type) in NUMBERED]
        self._asked = AskedColumns(client, "statistics.ids", numbered)

    def read(self) -> frozenset[str]:
        """Their names: columns that every shard of their table with many rows says it of."""
        found = set[str]()
        for alias, listed, replies in self._asked.by_table("ids"):
            many = [len(shard.row_ids) >= ID_ROWS for shard in self._client.shards(alias)]
            if any(many):
                said = np.all([reply for reply, counts in zip(replies, many, strict=True) if counts], axis=0)
                found.update(column.name for column, is_id_ in zip(listed, said.tolist(), strict=True) if is_id_)
        return frozenset(found)


def about_id(column: OutputColumn) -> str:
    """What is wrong with a column that identifies rows, and what to do."""
    return (
        f"is a different whole number in every row of {column.alias}, as an id is: a model would learn rows by heart, "
        f"or their order; unless it is a measure, leave it out: drop=[{column.qualified!r}]"
    )
