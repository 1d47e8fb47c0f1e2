"""Columns that parties send to the coordinator, one number per base row, to be compared across tables.

Only tables whose policy says ``cross_statistics`` send them (release COLUMNS). A sent column has one number for each
row that takes part; the coordinator gathers it to joined rows with the mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.mapping.join import number_digests
from tablepuppet.mapping.joined_rows import Meetings
from tablepuppet.operators.client import Client, Pending
from tablepuppet.party.allowance import check_reply
from tablepuppet.party.groups import Grouped, all_grouped, rows_by, rows_of
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Codes, Digests, Numbers, OfGroups, OfNoCell, Plain
from tablepuppet.prep.columns.statistics import (
    NO_DIGESTS,
    AskedColumns,
    KeyFamily,
    categories_of,
    key_family,
    released_numbers,
)
from tablepuppet.sql.query import OutputColumn

ASKED = (
    "`correlation`, `crosstab`, `group_means`, columns of two tables; splits and folds by groups or time, "
    "`slice_finder`"
)


@op(
    "columns.numbers",
    asked=ASKED,
    releases=Release.COLUMNS,
    columns=("columns",),
    returns={"values": OfGroups(Numbers((ROWS, "columns"), finite=False)), "least": OfNoCell(Plain(int, 0))},
)
def sent_numbers(table: LocalTable, view: str, columns: Sequence[str]) -> Values:
    """The numbers of columns for every row that takes part, NaN where there is none; and the policy's ``min_group``."""
    rows = table.view(view)
    check_reply(8 * len(rows.row_ids) * len(columns))
    values = np.full((len(rows.row_ids), len(columns)), np.nan, order="F")  # a column after another
    groups = np.zeros(len(columns), np.int64)
    for place, name in enumerate(columns):
        found, present = released_numbers(table, view, name)
        np.copyto(values[:, place], found, where=present)
        groups[place] = rows_of(rows, present)
    return {"values": Grouped(values, groups), "least": table.grant.rules.min_group}


@op(
    "columns.codes",
    asked=ASKED,
    releases=Release.COLUMNS | Release.KEY_DIGESTS | Release.HISTOGRAMS,
    columns=("column",),
    returns={
        "digests": OfGroups(Digests(ROWS)),
        "codes": OfGroups(Codes("digests", more=1)),
        "least": OfNoCell(Plain(int, 0)),
    },
)
def sent_codes(table: LocalTable, view: str, column: str, family: KeyFamily, blinding: str) -> Values:
    """The category of every row that takes part as a number, with digests in their order; the last one is missing."""
    found = categories_of(table, view, column, family, blinding)
    groups = rows_by(table.view(view), found.codes, len(found.digests))
    sent = all_grouped({"digests": found.digests, "codes": found.codes.astype(np.int32)}, groups)
    return {**sent, "least": table.grant.rules.min_group}


@dataclass(frozen=True)
class SentColumn:
    """A column over all base rows of a table, and how many of them a group must have."""

    column: OutputColumn
    values: NDArray[np.float64]
    least: int


@dataclass(frozen=True)
class SentCategories:
    """The category of every base row; those at ``len(digests)`` are missing."""

    column: OutputColumn
    codes: NDArray[np.int64]
    digests: NDArray[np.uint8]
    least: int
    blinding: str  # the name that digests are made under


class SentColumns:
    """Columns that are sent once, however many statistics need them: asked for at first, read on first use."""

    def __init__(self, client: Client):
        self._client = client
        self._asked_numbers: dict[str, AskedColumns] = {}
        self._asked_codes: dict[str, tuple[str, Pending]] = {}  # with the name that digests are made under
        self._numbers: dict[str, SentColumn] = {}
        self._codes: dict[str, SentCategories] = {}
        self._meetings: dict[tuple[str, str], Meetings] = {}

    def ask_numbers(self, columns: Iterable[OutputColumn]) -> None:
        """Ask for numeric columns that have not been asked for."""
        new = [column for column in columns if column.name not in self._asked_numbers]
        if new:
            asked = AskedColumns(self._client, "columns.numbers", new)
            self._asked_numbers |= dict.fromkeys((column.name for column in new), asked)

    def ask_codes(self, columns: Iterable[OutputColumn]) -> None:
        """Ask for categories that have not been asked for; digests of each column have a blinding of their own."""
        for column in columns:
            if column.name not in self._asked_codes:
                self._asked_codes[column.name] = self._ask_codes(column)

    def _ask_codes(self, column: OutputColumn) -> tuple[str, Pending]:
        blinding = self._client.new_name()
        given = {"column": column.name, "family": key_family(column), "blinding": blinding}
        return blinding, self._client.ask("columns.codes", {column.alias: given})

    def numbers(self, column: OutputColumn) -> SentColumn:
        self.ask_numbers([column])
        if column.name not in self._numbers:
            asked, alias = self._asked_numbers[column.name], column.alias
            replies, place = asked.replies.read()[alias], asked.by_alias[alias].index(column)
            parts = [np.zeros(0), *(reply["values"][:, place] for reply in replies)]  # of shards in their order
            values = parts[1] if len(parts) == 2 else np.concatenate(parts)
            self._numbers[column.name] = SentColumn(column, values, _least(replies))
        return self._numbers[column.name]

    def codes(self, column: OutputColumn) -> SentCategories:
        """The categories of a column over all shards: equal digests are one category."""
        self.ask_codes([column])
        if column.name not in self._codes:
            blinding, pending = self._asked_codes[column.name]
            replies = pending.read()[column.alias]
            lists = [NO_DIGESTS, *(reply["digests"] for reply in replies)]
            numbers, size = number_digests(lists)
            found = np.full(self._client.tables[column.alias].rows, size, np.int64)
            for shard, reply, known in zip(self._client.shards(column.alias), replies, numbers[1:], strict=True):
                found[shard.slice] = np.append(known, size)[reply["codes"]]
            first = np.unique(np.concatenate(numbers), return_index=True)[1]
            digests = np.concatenate(lists)[first]
            self._codes[column.name] = SentCategories(column, found, digests, _least(replies), blinding)
        return self._codes[column.name]

    def meetings(self, column: OutputColumn, alias: str) -> Meetings:
        """The categories of a column, the missing one too, and the base rows of another table that they are joined to.

        Statistics of any column of that table follow from it, without another pass over the joined rows.
        """
        if (column.name, alias) not in self._meetings:
            found = self.codes(column)
            met = self._client.rows.meetings(column.alias, found.codes, len(found.digests) + 1, alias)
            self._meetings[column.name, alias] = met
        return self._meetings[column.name, alias]


def _least(replies: Sequence[Mapping[str, Any]]) -> int:
    """The largest ``min_group`` of shards."""
    return max((reply["least"] for reply in replies), default=0)
