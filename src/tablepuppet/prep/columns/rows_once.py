"""The rows of a relation as noisy statistics count them: each listed once, without null records.

A row counts as often as it is joined, but at most ``times`` times, so it changes a count by no more than that. How
often rows are joined is public; ``times`` is an argument. Nothing here is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import pyarrow.compute as pc
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.party.grant import refusal
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.policy import Level
from tablepuppet.prep.columns.values import numbers

MOST_TIMES = 2**21  # so that sums of 2^31 rows are exact
Times = Annotated[int, Meta(ge=1, le=MOST_TIMES)]
"""How often a row counts at most."""
LEAST_NOISE = 0.5
"""Of counts and sums whose column is not public or has a ``min_group``: between bounds of the caller's choice, cut
until they hold single rows, these are hidden by noise only."""


@dataclass(frozen=True)
class RowsOnce:
    """The rows of a relation. Null records of ``columns`` count as rows without a value, whatever an expression makes
    of NULL.
    """

    table: LocalTable
    view: str
    columns: Sequence[str]
    times: int = 1

    @classmethod
    def of(cls, table: LocalTable, view: str, columns: Sequence[str], times: int = 1) -> RowsOnce:
        """Refuse, by types alone, columns that hold no numbers, and rows that are listed twice."""
        found = cls.of_any(table, view, columns, times)
        for name in columns:
            numbers(table.snapshot.nothing_of(name))
        return found

    @classmethod
    def of_any(cls, table: LocalTable, view: str, columns: Sequence[str], times: int = 1) -> RowsOnce:
        """Columns of any type; refuse rows that are listed twice."""
        table.rows_once(view)
        return cls(table, view, columns, times)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """Which rows are no null records."""
        return ~self.table.null_rows(self.columns, self.view)

    @cached_property
    def weights(self) -> Array:
        """How often each row counts."""
        return np.asarray(np.minimum(self.table.rows_once(self.view).counts, self.times), np.float64)

    def values(self, name: str) -> tuple[Array, NDArray[np.bool_]]:
        """(the numbers of a column, which rows have a finite one and are no null records)."""
        values, present = numbers(self.table.column(name, self.view))
        return values, present & self.kept & np.isfinite(values)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value of any type and are no null records."""
        return np.asarray(pc.is_valid(self.table.column(name, self.view)).to_numpy()) & self.kept


def is_group(table: LocalTable, counts: Array, times: int = 1) -> bool:
    """Whether a column with these noisy counts may be released: with almost no noise, ``min_group`` still applies.

    A group of fewer rows than that counts at most ``times`` (``min_group`` - 1).
    """
    return bool(are_groups(table, counts, times).any())


def are_groups(table: LocalTable, counts: Array, times: int = 1) -> NDArray[np.bool_]:
    """Which of some groups, with such noisy counts, may be released."""
    least = table.grant.rules.min_group
    return np.asarray(counts > times * (least - 1) + 0.5) if least else np.ones(counts.shape, bool)


def check_noise(table: LocalTable, columns: Sequence[str], multiplier: float) -> None:
    """PrivacyError for next to no noise on counts by group of columns whose small groups the policy hides."""
    for name in columns if multiplier < LEAST_NOISE else ():
        if table.grant.rules.min_group or table.level(name) is not Level.PUBLIC:
            reason = "has counts of single groups only with noise of half a row's part or more; use a smaller epsilon"
            raise refusal(table.grant.party, "min_group", reason, table.grant.table, [name])
