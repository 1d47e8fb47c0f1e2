"""`Map`: a DuckDB SQL expression over each of some columns, evaluated where the column is read.

It becomes part of the SELECT list before a party reads, so the same checks apply as to the query's SQL. Nothing is
learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from sqlglot import exp

from tablepuppet.errors import LearnError, QueryError
from tablepuppet.prep.pipelines.draft import Column, Draft, Kind
from tablepuppet.prep.pipelines.steps.step import PrepStep
from tablepuppet.sql.catalog import VerticalTable
from tablepuppet.sql.expression import checked, render
from tablepuppet.sql.infer import type_of
from tablepuppet.sql.query import OutputColumn, Query
from tablepuppet.sql.types import Family, family

PLACE = "x"  # stands for the column in an expression


@dataclass(frozen=True)
class Map(PrepStep):
    """An expression in which ``x`` is the column, such as ``length(x)``.

    The new column is called like the expression with the column's name in it, ``length(c)``, or
    ``<column>_<name_as>``. The column itself is left out unless ``keep`` says otherwise.
    """

    takes: ClassVar[tuple[Kind, ...]] = ("number", "text")
    usual: ClassVar[tuple[Kind, ...]] = ("number", "text")
    advice: ClassVar[str] = ""

    expression: str = PLACE
    name_as: str | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need(isinstance(self.expression, str), "expression is a text, such as 'length(x)'")
        self.need(self.columns is not None, "name its columns, as columns=[...]")
        try:
            found = {each.name.lower() for each in checked(self.expression).find_all(exp.Column)}
        except QueryError as error:
            raise LearnError(f"Map: {self.expression!r}: {error}") from error
        self.need(found == {PLACE}, f"{self.expression!r} is an expression of one column, which is called x in it")

    def selected(self, draft: Draft) -> list[Column]:
        """None: it has been evaluated when columns were read, and the columns that it made were selected."""
        return []

    def mapped(self, draft: Draft) -> list[OutputColumn]:
        """The columns of a SELECT list that it works on."""
        return [each.column for each in draft.select(self.columns, self.takes, self.usual)]

    def over(self, column: OutputColumn, table: VerticalTable) -> OutputColumn:
        """The column with the expression applied; QueryError if DuckDB cannot evaluate it."""

        def text(inner: exp.Expr) -> str:
            whole = checked(self.expression).transform(
                lambda node: inner.copy() if isinstance(node, exp.Column) else node
            )
            return render(whole)

        inner = checked(column.expression)
        written = text(inner if isinstance(inner, exp.Column) else exp.Paren(this=inner))
        plain = column.name.removeprefix(f"{column.alias}.")
        name = f"{plain}_{self.name_as}" if self.name_as else text(exp.column(plain)).replace('"', "")
        try:
            kind = type_of(table, written)
        except ValueError as error:
            raise QueryError(f"Map: {self.expression!r} over column {column.qualified}: {error}") from error
        if family(kind) is Family.OTHER:
            raise QueryError(f"Map: {self.expression!r} over column {column.qualified} is {kind}, which is no feature")
        return OutputColumn(name, column.alias, written, kind)


def with_maps(query: Query, tables: dict[str, VerticalTable], maps: Iterable[Map], draft: Draft) -> Query:
    """A query that selects what maps make; LearnError if two columns would have one name."""
    outputs = list(query.outputs)
    for step in maps:
        draft.step = step.name
        for column in step.mapped(draft):
            made = step.over(column, tables[column.alias])
            if any(each.name.lower() == made.name.lower() for each in outputs):
                raise LearnError(
                    f"Map: it would make a column {made.name!r}, which there is already; give another name_as"
                )
            place = outputs.index(column)
            outputs[place : place + 1] = [column, made] if step.keep else [made]
            draft.replace(column, made, keep=step.keep)
    return replace(query, outputs=tuple(outputs))
