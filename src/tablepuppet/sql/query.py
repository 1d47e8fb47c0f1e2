"""A `Query`: a union of conjunctive queries over vertical tables, bound to a catalog.

What `parse` makes and everything after it reads. It holds names, types and expressions, never data.
Expressions are canonical DuckDB SQL over the columns of one table, without qualifiers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "in", "is null", "is not null"]


@dataclass(frozen=True)
class Comparison:
    """A plain comparison of one column that any source database understands the same way."""

    column: str
    operator: Operator
    values: tuple[int | float | str, ...] = ()


@dataclass(frozen=True)
class TableUse:
    """One use of a vertical table in FROM; a table used twice has two, under two aliases."""

    alias: str
    table: str


@dataclass(frozen=True)
class OutputColumn:
    """One column of the SELECT list: an expression over the columns of one table."""

    name: str
    alias: str
    expression: str
    type: str

    @property
    def qualified(self) -> str:
        """The name in ``coef_``: ``alias.column``."""
        return self.name if self.name.startswith(f"{self.alias}.") else f"{self.alias}.{self.name}"


@dataclass(frozen=True)
class KeyClass:
    """Expressions that the query equates, one tuple per table; several expressions are one composite key."""

    members: Mapping[str, tuple[str, ...]]
    families: tuple[str, ...]

    @property
    def label(self) -> str:
        """A name that is the same whenever the same columns are joined: keys are derived from it."""
        parts = sorted(f"{alias}({', '.join(expressions)})" for alias, expressions in self.members.items())
        return " = ".join(parts)


@dataclass(frozen=True)
class Branch:
    """One conjunctive query of the union."""

    shards: Mapping[str, str | None]  # alias -> the one party named, or None for all
    filters: Mapping[str, str]  # alias -> predicate; absent: every row
    keys: tuple[KeyClass, ...]


@dataclass(frozen=True)
class Query:
    """A union of conjunctive queries with its SELECT list."""

    sql: str
    tables: tuple[TableUse, ...]
    outputs: tuple[OutputColumn, ...]
    label: OutputColumn | None
    branches: tuple[Branch, ...]
    distinct: bool = False
    categorical: frozenset[str] = field(default_factory=frozenset)

    @property
    def features(self) -> tuple[OutputColumn, ...]:
        """The SELECT list without the label."""
        return tuple(column for column in self.outputs if column is not self.label)
