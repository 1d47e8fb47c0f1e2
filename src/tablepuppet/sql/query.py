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
class JoinTree:
    """Tables joined inner by their keys; then ``steps`` attach others to these rows, or drop some, one after the other.

    Of a table that is attached, rows without a partner have the missing row: one row of NULLs.
    """

    tables: tuple[str, ...]
    keys: tuple[KeyClass, ...]
    steps: tuple[Attach | Keep, ...] = ()

    @property
    def aliases(self) -> frozenset[str]:
        """All tables of its rows."""
        attached = (step.right.aliases for step in self.steps if isinstance(step, Attach))
        return frozenset(self.tables).union(*attached)

    @property
    def may_miss(self) -> frozenset[str]:
        """The tables of which a row of it may have the missing row."""
        found: frozenset[str] = frozenset()
        here = frozenset(self.tables)
        for step in self.steps:
            if isinstance(step, Attach):
                found |= step.right.aliases | (here if step.keeps_right else frozenset())
                here |= step.right.aliases
        return found

    @property
    def all_keys(self) -> tuple[KeyClass, ...]:
        """Its keys and those of what is attached, in order."""
        attached = (key for s in self.steps if isinstance(s, Attach) for key in (*s.right.all_keys, *s.keys))
        return (*self.keys, *attached)

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """(alias, predicate) of everything that is decided row by row after rows were read."""
        found = dict[tuple[str, str], None]()
        for step in self.steps:
            found |= dict.fromkeys(step.conditions.items())
            if isinstance(step, Attach):
                found |= dict.fromkeys(step.right.conditions)
        return tuple(found)


@dataclass(frozen=True)
class Attach:
    """An outer join: each row meets the rows of ``right`` with equal keys, or the missing row if there are none.

    A key has one table of each side. A row that fails a condition of its table meets nobody. With ``keeps_right`` (a
    FULL JOIN) rows of ``right`` that nobody meets are rows too, with the missing rows of the other side.
    """

    right: JoinTree
    keys: tuple[KeyClass, ...]
    conditions: Mapping[str, str]  # alias -> predicate
    keeps_right: bool = False


@dataclass(frozen=True)
class Keep:
    """Only rows whose tables hold these predicates, the missing row evaluated like any other."""

    conditions: Mapping[str, str]  # alias -> predicate


@dataclass(frozen=True)
class Branch:
    """One conjunctive query of the union."""

    shards: Mapping[str, str | None]  # alias -> the one party named, or None for all
    filters: Mapping[str, str]  # alias -> predicate on the rows that are read; absent: every row
    joined: JoinTree

    @property
    def keys(self) -> tuple[KeyClass, ...]:
        """All keys that it joins by."""
        return self.joined.all_keys


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

    @property
    def may_miss(self) -> frozenset[str]:
        """Tables that joined rows may have no row of: in an outer join, their row is the missing row then."""
        return frozenset().union(*(branch.joined.may_miss for branch in self.branches))
