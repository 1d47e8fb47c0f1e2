"""SQL text becomes a `Query`: a union of conjunctive queries bound to the catalog, or a QueryError.

Reads top down: `parse` takes the SELECTs of the union (statement.py), binds each (select.py), lines them up with
the first, finds the join keys (keys.py), and checks that the tables hang together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlglot.errors import SqlglotError

from tablepuppet.errors import QueryError
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql import infer
from tablepuppet.sql.advice import NO_WAY
from tablepuppet.sql.catalog import Catalog, VerticalTable
from tablepuppet.sql.expression import with_alias
from tablepuppet.sql.join_tree import JoinTrees
from tablepuppet.sql.parameters import Parameters, with_values
from tablepuppet.sql.place import SqlText
from tablepuppet.sql.query import Branch, OutputColumn, Query, TableUse
from tablepuppet.sql.scope import Bound
from tablepuppet.sql.select import BoundSelect, SelectedColumn, bind_select
from tablepuppet.sql.statement import require_read_alike, selects_of, tree_of, unread
from tablepuppet.sql.types import KEY_LIKE, Family, family


def parse(
    text: str,
    catalog: Catalog,
    label: str | None = None,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    *,
    params: Parameters | None = None,
    where_selected: bool = False,
) -> Query:
    """The `Query` that ``text`` means over ``catalog``, with values for its parameters.

    With ``where_selected``, label, ``categorical``, ``drop`` and ``params`` count where the text has them.
    Raises QueryError, with the place underlined, for everything that is no union of conjunctive queries.
    """
    sql = SqlText(text)
    try:
        tree = tree_of(sql)
        selects, distinct = selects_of(with_values(tree, sql, params or {}, where_named=where_selected), sql)
        bound = [bind_select(select, sql, catalog) for select in selects]
        require_read_alike(sql, tree)
        union = _Union(sql, catalog, bound)
        branches = tuple(union.branch(*each) for each in union.selects)
        outputs = union.outputs(label)
    except (SqlglotError, RecursionError) as error:
        raise unread(sql, error) from None
    if where_selected:
        label = label if label is not None and _among(outputs, label) else None
        categorical, drop = ([name for name in names if _among(outputs, name)] for names in (categorical, drop))
    dropped = [_find(outputs, name, "drop:") for name in drop]
    columns = tuple(column for column in outputs if column not in dropped)
    chosen = _find(columns, label, "label") if label is not None else None
    tables = tuple(TableUse(use.alias, use.table.name) for use in bound[0].scope.uses.values())
    query = Query(text, tables, columns, chosen, branches, distinct, _categorical(columns, categorical))
    if chosen is not None and chosen.alias in query.may_miss:
        _require_label(chosen, union.tables[chosen.alias])
    return query


def _line_up(first: BoundSelect, other: BoundSelect) -> dict[str, str]:
    """Alias in ``other`` -> alias of the same vertical table in ``first``."""
    here = [(use.alias, use.table.name.lower()) for use in first.scope.uses.values()]
    there = [(use.alias, use.table.name.lower(), use.node) for use in other.scope.uses.values()]
    renames: dict[str, str] = {}
    free = dict(here)
    for alias, table, _ in sorted(there, key=lambda use: free.get(use[0]) != use[1]):  # same alias first, then order
        match = alias if free.get(alias) == table else next((a for a, t in free.items() if t == table), None)
        if match is not None:
            renames[alias] = match
            del free[match]
    if free or len(renames) < len(there):
        odd = next((node for alias, _, node in there if alias not in renames), there[-1][2])
        tables = ", ".join(table for _, table in here)
        raise first.scope.sql.error(
            f"the SELECTs of a UNION must be over the same tables; the first is over {tables}; for others {NO_WAY}", odd
        )
    return renames


class _Union:
    """Bound SELECTs, each with its aliases as they are in the first: they become branches, and one SELECT list."""

    def __init__(self, sql: SqlText, catalog: Catalog, bound: list[BoundSelect]):
        self.sql = sql
        self.selects = [(select, _line_up(bound[0], select)) for select in bound]
        parties: dict[str, set[str | None]] = {alias: set() for alias in bound[0].scope.uses}
        for select, rename in self.selects:
            for use in select.scope.uses.values():
                parties[rename[use.alias]].add(use.party)
        self.tables = {
            alias: catalog.table(use.table.name, parties[alias]) for alias, use in bound[0].scope.uses.items()
        }
        sides = [(side, rename) for select, rename in self.selects for each in select.equalities for side in each.sides]
        self.key_columns = {(rename[alias], column) for side, rename in sides for alias, column in side.columns}

    def type_of(self, alias: str, bound: Bound) -> str:
        """The type of an expression of the table that is called ``alias`` in the first SELECT."""
        try:
            return infer.type_of(self.tables[alias], bound.text)
        except ValueError as error:
            raise self.sql.error(f"DuckDB cannot evaluate this: {error}", bound.node) from None

    def branch(self, select: BoundSelect, rename: dict[str, str]) -> Branch:
        """One SELECT as a branch."""
        trees = JoinTrees(select, rename, self.type_of, lambda alias, bound: self.over_nulls(rename[alias], bound))
        joined = trees.tree()
        return Branch(
            shards={rename[use.alias]: use.party for use in select.scope.uses.values()},
            filters={alias: " AND ".join(f"({part})" for part in parts) for alias, parts in trees.filters.items()},
            joined=joined,
        )

    def over_nulls(self, alias: str, bound: Bound) -> Any:
        """The value of an expression over a row of NULLs; Ellipsis if DuckDB cannot say it."""
        self.type_of(alias, bound)
        return infer.over_nulls(self.tables[alias], bound.text)

    def outputs(self, label: str | None) -> list[OutputColumn]:
        """The SELECT list of the first SELECT, after checking that every other says the same."""
        first = self._features(*self.selects[0], label)
        for select, rename in self.selects[1:]:
            other = self._features(select, rename, label)
            if len(other) != len(first):
                last = other[-1].bound.node if other else None
                counts = f"{len(first)} and {len(other)}"
                raise self.sql.error(f"the SELECTs of a UNION have {counts} columns; select the same", last)
            for here, there in zip(first, other, strict=True):
                if (here.alias, here.bound.text) != (rename[there.alias], there.bound.text):
                    raise self.sql.error(
                        f"each output column of a UNION must be the same expression; in the first SELECT "
                        f"{here.name} is {here.alias}.{here.bound.text}; for others {NO_WAY}",
                        there.bound.node,
                    )
        return self._named(first)

    def _features(self, select: BoundSelect, rename: dict[str, str], label: str | None) -> list[SelectedColumn]:
        """Outputs without the join columns that only a star selected (unless one is the label)."""
        wanted = (label or "").lower()

        def keep(output: SelectedColumn) -> bool:
            column = next(iter(output.bound.columns))[1]
            named = wanted in (output.name.lower(), f"{rename[output.alias]}.{output.name}".lower())
            return not output.from_star or named or (rename[output.alias], column) not in self.key_columns

        return [output for output in select.outputs if keep(output)]

    def _named(self, outputs: list[SelectedColumn]) -> list[OutputColumn]:
        """Each distinct output once; a name that two tables use gets its alias in front."""
        distinct: dict[tuple[str, str, str], SelectedColumn] = {}
        for output in outputs:
            distinct.setdefault((output.name.lower(), output.alias, output.bound.text), output)
        uses = Counter(name for name, _, _ in distinct)
        columns: list[OutputColumn] = []
        taken: set[str] = set()
        for output in distinct.values():
            name = output.name if uses[output.name.lower()] == 1 else f"{output.alias}.{output.name}"
            if name.lower() in taken:
                message = f"two output columns are called {output.name}; rename one with AS"
                raise self.sql.error(message, output.bound.node)
            type_name = self.type_of(output.alias, output.bound)
            if family(type_name) is Family.OTHER:
                raise self.sql.error(
                    f"column {output.alias}.{output.name} is {type_name}, which cannot be a feature; "
                    "leave it out, or turn it into a number, text or date in a view at the party",
                    output.bound.node,
                )
            columns.append(OutputColumn(name, output.alias, output.bound.text, type_name))
            taken.add(name.lower())
        return columns


def _among(columns: Sequence[OutputColumn], name: str) -> OutputColumn | None:
    """The output column of that name, plain or with its alias; None if it is not selected."""
    return next((each for each in columns if name.lower() in (each.name.lower(), each.qualified.lower())), None)


def _find(columns: Sequence[OutputColumn], name: str, what: str) -> OutputColumn:
    """The output column of that name; QueryError if it is not selected."""
    found = _among(columns, name)
    if found is None:
        known = did_you_mean(name, [column.name for column in columns])
        raise QueryError(f"{what} {name!r} is not among the selected columns{known}")
    return found


def _require_label(label: OutputColumn, table: VerticalTable) -> None:
    """QueryError if rows without a row of the label's table have no label."""
    if infer.over_nulls(table, label.expression) is None:
        shown = with_alias(label.expression, label.alias)
        raise QueryError(
            f"label {label.qualified}: an outer join keeps rows without a row of {label.alias}, and these have no "
            f"label; add WHERE {shown} IS NOT NULL, or make {label.alias} the table whose rows are kept"
        )


def _categorical(columns: Sequence[OutputColumn], names: Sequence[str]) -> frozenset[str]:
    chosen = [_find(columns, name, "categorical:") for name in names]
    for column in chosen:
        if family(column.type) not in KEY_LIKE:
            raise QueryError(f"categorical: {column.name!r} is {column.type}; cast it to an integer or text first")
    return frozenset(column.name for column in chosen)
