"""One SELECT of the union: FROM, WHERE and the SELECT list, bound to the catalog.

Input: a parsed SELECT. Output: a `BoundSelect`, in which every condition is either a predicate of one
table or an equality of two one-table expressions, and every output belongs to one table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from sqlglot import exp

from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.advice import CLAUSES, JOINS, NO_WAY, TWO_TABLES
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.expression import and_parts, column_text
from tablepuppet.sql.place import SqlText
from tablepuppet.sql.scope import Bound, Scope, ScopedTable

_COMPARISONS = (exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeNEQ, exp.Between)


@dataclass(frozen=True)
class Equality:
    """A join condition: one expression of one table equals one of another."""

    sides: tuple[Bound, Bound]
    node: exp.Expr


@dataclass(frozen=True)
class SelectedColumn:
    """One column of the SELECT list."""

    name: str
    bound: Bound
    from_star: bool

    @property
    def alias(self) -> str:
        """The table that owns the column."""
        return self.bound.alias


Side = Literal["INNER", "LEFT", "RIGHT", "FULL"]


@dataclass
class Conditions:
    """What ON or WHERE demands: equalities between tables, and predicates of one table."""

    equalities: list[Equality] = field(default_factory=list)
    filters: list[tuple[str, Bound]] = field(default_factory=list)  # (alias, predicate)


@dataclass
class BoundJoin:
    """One JOIN of FROM: the rows so far meet those of a table, as ON demands."""

    side: Side
    alias: str
    on: Conditions
    node: exp.Expr
    is_cross: bool = False  # by an explicit CROSS JOIN


@dataclass
class BoundSelect:
    """A SELECT whose names are resolved."""

    scope: Scope
    joins: list[BoundJoin] = field(default_factory=list)
    where: Conditions = field(default_factory=Conditions)
    outputs: list[SelectedColumn] = field(default_factory=list)

    @property
    def equalities(self) -> list[Equality]:
        """Those of ON, then those of WHERE."""
        return [each for on in (*(join.on for join in self.joins), self.where) for each in on.equalities]


def bind_select(select: exp.Select, sql: SqlText, catalog: Catalog) -> BoundSelect:
    """Resolve one SELECT against the catalog, or raise the QueryError that says why not."""
    refuse_clauses(select, sql)
    bound = BoundSelect(Scope(sql, catalog))
    if select.args.get("from_") is None:
        raise sql.error("a FROM clause is missing; name the tables to learn over", select)
    bound.scope.output_names = {item.alias.lower() for item in select.expressions if isinstance(item, exp.Alias)}
    bound.scope.add(select.args["from_"].this)
    for join in select.args.get("joins") or ():
        _bind_join(join, bound)
    if select.args.get("where"):
        _place_conditions(select.args["where"].this, bound.scope, bound.where)
    for item in select.expressions:
        bound.outputs += _bind_output(item, bound.scope)
    if not bound.outputs:
        raise sql.error("no column is left to select; EXCLUDE fewer", select.expressions[0])
    return bound


def refuse_clauses(node: exp.Expr, sql: SqlText) -> None:
    """Raise for any clause beyond SELECT, FROM, JOIN and WHERE."""
    allowed = {"expressions", "from_", "joins", "where", "this", "expression"}
    if isinstance(node, exp.SetOperation):
        allowed |= {"distinct", "by_name", "side", "kind", "on"}
    for clause, value in node.args.items():
        if value and clause not in allowed:
            word = clause.rstrip("_").upper()
            keyword, message = CLAUSES.get(clause, (word, f"{word} is not supported, and {NO_WAY}"))
            place = value[-1] if isinstance(value, list) else value
            raise sql.error(message, place, "FETCH" if isinstance(value, exp.Fetch) else keyword)


def _bind_join(join: exp.Join, bound: BoundSelect) -> None:
    """Add a joined table to the scope, and its conditions: ON sees the tables so far, USING and NATURAL equate."""
    scope, sql = bound.scope, bound.scope.sql
    words = {str(join.args.get(key) or "").upper() for key in ("side", "kind", "method")} - {""}
    other = sorted(words - {"INNER", "CROSS", "NATURAL", "OUTER", *get_args(Side)})
    if other:
        advice = JOINS.get(other[0], NO_WAY)
        raise sql.error(f"{other[0]} joins are not supported; {advice}", join.this, other[0])
    side: Side = next((each for each in get_args(Side) if each in words), "INNER")
    before = list(scope.uses.values())
    right = scope.add(join.this)
    made = BoundJoin(side, right.alias, Conditions(), join.this, is_cross="CROSS" in words)
    bound.joins.append(made)
    if "NATURAL" in words:
        for name in _common_columns(before, right, scope, join):
            _equate_by_name(name, before, right, scope, made, join.this)
    elif join.args.get("using"):
        for node in join.args["using"]:
            _equate_by_name(node.name, before, right, scope, made, node)
    elif join.args.get("on"):
        _place_conditions(join.args["on"], scope, made.on)


def _common_columns(before: list[ScopedTable], right: ScopedTable, scope: Scope, join: exp.Join) -> list[str]:
    visible = {name.lower() for use in before for name in use.table.columns}
    common = [name for name in right.table.columns if name.lower() in visible]
    if not common:
        raise scope.sql.error(f"NATURAL JOIN: {right.alias} shares no column with the tables before it", join.this)
    return common


def _equate_by_name(
    name: str, before: list[ScopedTable], right: ScopedTable, scope: Scope, join: BoundJoin, at: exp.Expr
) -> None:
    """USING (name): the column of the tables before equals that of the right one, and both become one."""
    owners = [use for use in scope.owners(name) if use in before]
    there = right.table.find(name)
    if not owners or there is None:
        known = did_you_mean(name, right.table.columns)
        where = f"{right.alias} has no column {name}{known}" if owners else f"no table before it has a column {name}"
        raise scope.sql.error(f"USING: {where}", at)
    if len(owners) > 1:
        choices = " or ".join(f"{use.alias}.{name}" for use in owners)
        raise scope.sql.error(f"column {name} is ambiguous in USING; write ON with {choices}", at)
    here = owners[0].table.find(name)
    assert here is not None
    left_column, right_column = _column(owners[0].alias, here, at), _column(right.alias, there, at)
    join.on.equalities.append(Equality((left_column, right_column), at))
    if join.side == "FULL":
        scope.either.add(name.lower())
    else:
        scope.merge(name, owners[0] if join.side == "RIGHT" else right)


def _column(alias: str, name: str, at: exp.Expr) -> Bound:
    """A column that USING, NATURAL or a star at ``at`` means."""
    return Bound(column_text(name), frozenset({alias}), frozenset({(alias, name)}), at)


def _place_conditions(node: exp.Expr, scope: Scope, found: Conditions) -> None:
    for condition in and_parts(node):
        _place_condition(condition, scope, found)


def _place_condition(condition: exp.Expr, scope: Scope, found: Conditions) -> None:
    """A condition over one table is a filter of that table; an equality of two tables is a join key."""
    whole = scope.bind(condition)
    if len(whole.aliases) <= 1:  # a condition over no table holds for all rows or for none: the first table's filter
        alias = next(iter(whole.aliases), next(iter(scope.uses)))
        found.filters.append((alias, whole))
        return
    if isinstance(condition, exp.EQ):
        left, right = scope.bind(condition.left), scope.bind(condition.right)
        if len(left.aliases) == len(right.aliases) == 1:
            found.equalities.append(Equality((left, right), condition))
            return
        advice = f"bring each table's columns to one side of the equality, else {NO_WAY}"
        raise scope.sql.error(f"{_two_tables('each side of a join condition must', whole)}; {advice}", condition)
    if isinstance(condition, exp.NullSafeEQ):
        raise scope.sql.error(
            "IS NOT DISTINCT FROM is not supported between tables; join on =, and by UNION ALL add a SELECT with a "
            "CROSS JOIN of the rows that are NULL on both sides",
            condition,
        )
    if isinstance(condition, _COMPARISONS):
        raise scope.sql.error(f"only equality joins are supported, for other comparisons {NO_WAY}", condition)
    if condition.find(exp.Or):
        raise scope.sql.error(
            "OR between conditions of two tables is not supported; write one SELECT for each case, joined by UNION: a "
            "combination of rows that several of them find counts once",
            condition,
        )
    start = _two_tables("a condition must be an equality of two tables or", whole)
    raise scope.sql.error(f"{start}; {NO_WAY}, unless it can be written as equalities, with UNION for OR", condition)


def _two_tables(start: str, bound: Bound) -> str:
    return f"{start} use one table only; this one uses {' and '.join(sorted(bound.aliases))}"


def _bind_output(item: exp.Expr, scope: Scope) -> list[SelectedColumn]:
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        return _expand_star(item, scope)
    expression = item.this if isinstance(item, exp.Alias) else item
    bound = scope.bind(expression)
    if not bound.aliases:
        raise scope.sql.error("a constant is not a feature; leave it out, the model has an intercept", item)
    if len(bound.aliases) > 1:
        raise scope.sql.error(f"{_two_tables('an expression must', bound)}; {TWO_TABLES}", item)
    name = item.alias if isinstance(item, exp.Alias) else _default_name(expression, bound)
    return [SelectedColumn(name, bound, from_star=False)]


def _default_name(expression: exp.Expr, bound: Bound) -> str:
    if isinstance(expression, exp.Column):
        return next(iter(bound.columns))[1]
    return bound.text


def _expand_star(item: exp.Expr, scope: Scope) -> list[SelectedColumn]:
    star = item if isinstance(item, exp.Star) else item.this
    for unsupported in ("replace", "rename"):
        if star.args.get(unsupported):
            raise scope.sql.error(
                f"* {unsupported.upper()} is not supported; EXCLUDE the column, and select it AS another", item
            )
    one_table = scope.use(item.table, item) if isinstance(item, exp.Column) else None
    uses = [one_table] if one_table else list(scope.uses.values())
    excluded: set[tuple[str, str]] = set()
    for node in star.args.get("except_") or ():
        excluded |= _excluded(node, uses, scope)
    return [
        SelectedColumn(name, _column(use.alias, name, item), from_star=True)
        for use in uses
        for name in use.table.columns
        if (use.alias, name) not in excluded
        and (one_table or (use.alias, name.lower()) not in scope.hidden)  # USING and NATURAL made one column of two
    ]


def _excluded(node: exp.Expr, uses: list[ScopedTable], scope: Scope) -> set[tuple[str, str]]:
    """(alias, column) pairs that one name in EXCLUDE takes away."""
    qualifier = node.table if isinstance(node, exp.Column) else ""
    chosen = [scope.use(qualifier, node)] if qualifier else uses
    found = {(use.alias, name) for use in chosen if (name := use.table.find(node.name))}
    if not found:
        known = did_you_mean(node.name, dict.fromkeys(name for use in chosen for name in use.table.columns))
        raise scope.sql.error(f"EXCLUDE: no column {node.name}{known}", node)
    return found
