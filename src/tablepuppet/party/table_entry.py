"""A table in the party file: its columns and their uses, what may be released of it, and the rule that this spells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tablepuppet.errors import ConfigError, QueryError
from tablepuppet.party.blind import named_key
from tablepuppet.party.delivery import PredictionsEntry
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import ColumnRule, Count, Embeddings, Level, TableRule, Use, check_values
from tablepuppet.sql.expression import columns_of


class ColumnEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A column in full; ``"feature"`` and ``["key", "filter"]`` are short for its uses."""

    uses: Annotated[list[str], Meta(description="what it may be used for")]
    level: Annotated[str, Meta(description="how much of it may be released")] = "aggregate"
    bounds: Annotated[
        tuple[float, float] | None, Meta(description="least and largest number, for noise; others are clipped to them")
    ] = None
    categories: Annotated[
        list[str | int | float | bool] | None, Meta(description="all values that are allowed, for noise")
    ] = None


class TableEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A published table."""

    columns: Annotated[
        dict[str, str | list[str] | ColumnEntry],
        Meta(description="what each column may be used for, and its level; others are hidden"),
    ]
    sql: Annotated[
        str | None, Meta(description="a SELECT over the database to publish; if absent, the table of this name")
    ] = None
    allow: Annotated[
        list[str] | None, Meta(description="callers that may use this table; if absent, all that the party allows")
    ] = None
    min_rows: Annotated[Count, Meta(description="the fewest rows that may take part in a relation; none may")] = 10
    min_group: Annotated[
        Count, Meta(description="rows that a category, or the values of a column, must have to be released")
    ] = 5
    secure_sum: Annotated[
        bool, Meta(description="sums over its rows leave only within the sum of three or more peers' shards")
    ] = False
    matrix: Annotated[
        bool,
        Meta(
            description="callers may multiply the table with vectors of their choice, by which they can have its cells"
        ),
    ] = False
    embeddings: Annotated[
        Embeddings | None,
        Meta(
            description="embeddings of its rows may be released, for networks across parties: `max_width` numbers per "
            "row, that of one row at most `max_epochs` times in a session; absent: none"
        ),
    ] = None
    keys: Annotated[
        tuple[str, ...], Meta(description="expressions that may be joined by, beside columns whose use is key")
    ] = ()
    budget: Annotated[Budget, Meta(description="how much privacy may be spent on the table")] = Budget()
    deliver: Annotated[
        list[str] | None,
        Meta(description="parties that may get predictions made with its features; if absent, those of the party"),
    ] = None
    cross_statistics: Annotated[
        bool,
        Meta(
            description="its columns may be sent, one number per row, for statistics across tables, and for splits and "
            "folds by groups or time"
        ),
    ] = False
    label_means: Annotated[
        bool,
        Meta(
            description="means of its labels may reach other parties, as the numbers that stand for categories there "
            "(`TargetEncode`, `WOE`)"
        ),
    ] = False
    require_approval: Annotated[
        bool | None,
        Meta(description="read it only for jobs that the operator has approved; if absent, as the party says"),
    ] = None
    predictions: Annotated[
        PredictionsEntry | None, Meta(description="where predictions about its rows are written; if absent, nowhere")
    ] = None

    def anchored(self, folder: Path) -> TableEntry:
        """This entry, with the path for predictions taken from a folder."""
        place = self.predictions and self.predictions.anchored(folder)
        return msgspec.structs.replace(self, predictions=place)

    def problems(self, name: str) -> list[str]:
        """Everything in which the entry contradicts itself, column by column."""
        checks: list[Callable[[], object]] = [
            partial(_column_rule, f"tables.{name}.columns.{column}", entry) for column, entry in self.columns.items()
        ]
        found = [str(error) for error in map(_error, checks) if error is not None]
        whole = None if found else _error(lambda: self.rule(name, ()))
        return found if whole is None else [str(whole)]

    def rule(self, name: str, deliver: tuple[str, ...], *, approval: bool = False) -> TableRule:
        """The rule for a table of this name; ConfigError if the entry contradicts itself."""
        if not self.columns:
            raise ConfigError(f"tables.{name}.columns: name at least one column")
        if len({column.lower() for column in self.columns}) < len(self.columns):
            raise ConfigError(f"tables.{name}.columns: two have the same name except for case; rename one in sql")
        columns = {c.lower(): _column_rule(f"tables.{name}.columns.{c}", entry) for c, entry in self.columns.items()}
        return TableRule(
            columns,
            others=None,
            allow=None if self.allow is None else frozenset(self.allow),
            min_rows=self.min_rows,
            min_group=self.min_group,
            secure_sum=self.secure_sum,
            matrix=self.matrix,
            keys=frozenset(_key(f"tables.{name}.keys", text, columns) for text in self.keys),
            budget=self.budget,
            deliver=frozenset(deliver if self.deliver is None else self.deliver),
            cross_statistics=self.cross_statistics,
            label_means=self.label_means,
            require_approval=approval if self.require_approval is None else self.require_approval,
            embeddings=self.embeddings,
        )


def _error(check: Callable[[], object]) -> ConfigError | None:
    try:
        check()
    except ConfigError as error:
        return error
    return None


def _key(where: str, text: str, columns: Mapping[str, ColumnRule]) -> str:
    """An expression to join by, in the spelling in which those of queries are compared with it."""
    try:
        read = columns_of(text)
    except QueryError as error:
        raise ConfigError(f"{where}: {text!r}: {error}") from error
    wrong = [name for name in read if name.lower() not in columns or not columns[name.lower()].uses & Use.KEY]
    if wrong or not read:
        raise ConfigError(f"{where}: {text!r} must read columns of the table that have the use key, and no other")
    return named_key(text)


def _column_rule(where: str, given: str | list[str] | ColumnEntry) -> ColumnRule:
    entry = given if isinstance(given, ColumnEntry) else ColumnEntry([given] if isinstance(given, str) else given)
    levels = {level.name.lower(): level for level in Level}
    if entry.level not in levels:
        raise ConfigError(f"{where}.level: {entry.level!r} must be one of {', '.join(levels)}")
    known = {(use.name or "").lower(): use for use in Use}
    uses = Use(0)
    for use in entry.uses:
        if use not in known:
            raise ConfigError(f"{where}.uses: {use!r} must be one of {', '.join(known)}")
        uses |= known[use]
    if not uses:
        raise ConfigError(f"{where}.uses: name at least one of {', '.join(known)}, or leave the column out")
    categories = None if entry.categories is None else tuple(entry.categories)
    check_values(where, entry.bounds, categories)
    return ColumnRule(uses, levels[entry.level], entry.bounds, categories)
