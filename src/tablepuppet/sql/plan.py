"""A `Query` becomes a `Plan`: for each party and table use, one `Scan` that says what to read and blind.

Filters, expressions and column lists go to their owners; columns that nothing uses are never read. A scan
is what `open` carries to a party: names and checked expressions, no data. A plan also says which columns of a table a
query uses in several ways: features may be filters, join keys and labels too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sql.catalog import Catalog, Shard, VerticalTable
from tablepuppet.sql.expression import and_parts, checked, column_text, columns_of, render
from tablepuppet.sql.query import Branch, Comparison, KeyClass, Operator, Query
from tablepuppet.sql.types import Family, family, is_day


@dataclass(frozen=True)
class KeySpec:
    """A join key to blind: its expressions, how values are encoded, and the class its secret is derived for."""

    label: str
    expressions: tuple[str, ...]
    families: tuple[str, ...]


@dataclass(frozen=True)
class BranchScan:
    """What one branch of the union uses of a scan: a filter and the keys, by number."""

    filter: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Scan:
    """What one party reads of one shard for one table use."""

    party: str
    alias: str
    table: str
    columns: Mapping[str, str]  # the columns read, with the vertical table's types
    outputs: Mapping[str, str]  # output name -> expression: features and label
    filters: tuple[str, ...]  # distinct predicates of the branches; "" keeps every row
    keys: tuple[KeySpec, ...]
    branches: tuple[BranchScan | None, ...]  # None: this branch does not read this shard
    pushed: tuple[Comparison, ...]  # what the source database itself may filter by
    conditions: tuple[str, ...] = ()  # predicates whose outcome is told for each row that is read, in outer joins
    missing: bool = False  # whether the shard has the missing row: one row of NULLs, after all others


def text_of(scan: Scan) -> str:
    """What a party is asked for by a scan, in words of SQL; for its operator, who may approve it.

    A caller may have written the scan itself. So expressions are shown as they are read, without comments, and names
    that are more than a word stand in quotes: no name can be taken for a filter.
    """
    selected = [_named(_shown(text), name) for name, text in scan.outputs.items()]
    filters = [f" WHERE {_shown(text)}" if text else " all rows" for text in scan.filters]
    where = "" if filters == [" all rows"] else " and, in another part of a union,".join(filters)
    keys = [", ".join(map(_shown, key.expressions)) for key in scan.keys]
    joined = f" JOINED BY {'; '.join(keys)}" if keys else ""
    joined += f" TOLD OF EACH ROW {'; '.join(map(_shown, scan.conditions))}" if scan.conditions else ""
    table = f"{column_text(scan.table)} AS {column_text(scan.alias)}"
    return f"SELECT {', '.join(selected) or 'nothing'} FROM {table}{where}{joined}"


def _named(text: str, name: str) -> str:
    return text if text == column_text(name) else f"{text} AS {column_text(name)}"


def _shown(text: str) -> str:
    """An expression as it is read; one that nobody reads, in quotes."""
    try:
        return render(checked(text), copy=False)
    except QueryError:
        return repr(text)


@dataclass(frozen=True)
class Plan:
    """All scans of a query, and the vertical tables they belong to."""

    query: Query
    tables: Mapping[str, VerticalTable]  # by alias
    scans: tuple[Scan, ...]

    def of_alias(self, alias: str) -> tuple[Scan, ...]:
        """The shards of one table use, in catalog order."""
        return tuple(scan for scan in self.scans if scan.alias == alias)

    def of_party(self, party: str) -> tuple[Scan, ...]:
        """What one party reads."""
        return tuple(scan for scan in self.scans if scan.party == party)

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that take part, in order of first use."""
        return tuple(dict.fromkeys(scan.party for scan in self.scans))


def plan(query: Query, catalog: Catalog) -> Plan:
    """Send every part of the query to the party that owns the rows."""
    tables = {
        use.alias: catalog.table(use.table, {branch.shards[use.alias] for branch in query.branches})
        for use in query.tables
    }
    scans = [_scan(query, alias, table, shard) for alias, table in tables.items() for shard in table.shards]
    return Plan(query, tables, tuple(scans))


def _scan(query: Query, alias: str, table: VerticalTable, shard: Shard) -> Scan:
    """What a shard reads; the first one of a table that rows may lack has the missing row."""
    outputs = {column.name: column.expression for column in query.outputs if column.alias == alias}
    readers = [b if b.shards[alias] in (None, shard.party) else None for b in query.branches]
    filters = tuple(dict.fromkeys(b.filters.get(alias, "") for b in readers if b))
    keys = tuple(dict.fromkeys(_spec(key, alias) for b in readers if b for key in _keys(b, alias)))
    branches = tuple(
        BranchScan(filters.index(b.filters.get(alias, "")), tuple(keys.index(_spec(k, alias)) for k in _keys(b, alias)))
        if b
        else None
        for b in readers
    )
    told = (text for b in query.branches for own, text in b.joined.conditions if own == alias)
    conditions = tuple(dict.fromkeys(told))
    used = [
        *outputs.values(), *filter(None, filters), *(text for key in keys for text in key.expressions), *conditions,
    ]  # fmt: skip
    names = dict.fromkeys(name for text in used for name in columns_of(text))
    pushed = pushable(filters[0], table.columns) if len(filters) == 1 and filters[0] else ()
    columns = {name: table.columns[name] for name in names}
    missing = alias in query.may_miss and shard is table.shards[0]
    return Scan(shard.party, alias, shard.name, columns, outputs, filters, keys, branches, pushed, conditions, missing)


def _keys(branch: Branch, alias: str) -> Iterable[KeyClass]:
    return (key for key in branch.keys if alias in key.members)


def _spec(key: KeyClass, alias: str) -> KeySpec:
    return KeySpec(key.label, key.members[alias], key.families)


_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_MIRRORED: dict[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def pushable(predicate: str, types: Mapping[str, str]) -> tuple[Comparison, ...]:
    """The conjuncts of a filter that mean the same in every source database.

    >>> pushable("(a >= 3) AND (b IN ('x', 'y')) AND (c LIKE 'z%')", {"a": "BIGINT", "b": "VARCHAR", "c": "VARCHAR"})
    (Comparison(column='a', operator='>=', values=(3,)), Comparison(column='b', operator='in', values=('x', 'y')))
    >>> pushable("(d < DATE '2024-03-01') AND (t = DATE '2024-03-01')", {"d": "DATE", "t": "VARCHAR"})
    (Comparison(column='d', operator='<', values=('2024-03-01',)),)
    """
    return tuple(c for part in and_parts(checked(predicate)) for c in _comparisons(part, types) if c is not None)


def conjuncts(predicate: str, types: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    """The parts of a filter that AND connects, and whether each compares a column with values of its own type.

    >>> conjuncts("(a >= 3) AND (b LIKE 'z%')", {"a": "BIGINT", "b": "VARCHAR"})
    (('a >= 3', True), ("b LIKE 'z%'", False))
    """
    parts = and_parts(checked(predicate))
    return tuple((render(part), None not in _comparisons(part, types)) for part in parts)


def _comparisons(node: exp.Expr, types: Mapping[str, str]) -> list[Comparison | None]:
    """A conjunct as plain comparisons, two for BETWEEN; None for one that cannot be pushed."""
    parts = [node]
    if isinstance(node, exp.Between):
        low, high = node.args["low"], node.args["high"]
        parts = [exp.GTE(this=node.this, expression=low), exp.LTE(this=node.this, expression=high)]
    found = map(_comparison, parts)
    return [_plain(c) if c is not None and _same_everywhere(c, types[c.column]) else None for c in found]


class _Day(str):
    """A text that was written as a date: it is compared with dates only."""


def _plain(comparison: Comparison) -> Comparison:
    values = tuple(str(value) if isinstance(value, _Day) else value for value in comparison.values)
    return replace(comparison, values=values)


def _comparison(node: exp.Expr) -> Comparison | None:
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
        inner = _comparison(node.this)
        return Comparison(inner.column, "is not null") if inner else None
    if isinstance(node, exp.Is) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Null):
        return Comparison(node.this.name, "is null")
    if isinstance(node, exp.In) and isinstance(node.this, exp.Column) and node.expressions:
        values = [_literal(item) for item in node.expressions]
        plain = tuple(value for value in values if value is not None)
        return Comparison(node.this.name, "in", plain) if len(plain) == len(values) else None
    operator = _OPERATORS.get(type(node))
    if operator is None or not isinstance(node, exp.Binary):
        return None
    for column, other, name in ((node.left, node.right, operator), (node.right, node.left, _MIRRORED[operator])):
        value = _literal(other)
        if isinstance(column, exp.Column) and value is not None:
            return Comparison(column.name, name, (value,))
    return None


def _literal(node: exp.Expr) -> int | float | str | None:
    if isinstance(node, exp.Neg):
        value = _literal(node.this)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, exp.Cast) and node.is_type("DATE") and isinstance(node.this, exp.Literal):
        return _Day(node.this.this) if node.this.is_string else None
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return str(node.this)
    return int(node.this) if node.is_int else float(node.this)


def _same_everywhere(comparison: Comparison, type_name: str) -> bool:
    """Whole numbers, doubles and dates compare alike in every database, text only if equal; FLOAT rounds otherwise."""
    kinds = {type(value) if isinstance(value, str) else float for value in comparison.values}
    if family(type_name) is Family.TEXT:
        return kinds <= {str} and comparison.operator not in ("<", "<=", ">", ">=")
    if type_name == "DATE":
        return bool(kinds) and kinds <= {str, _Day} and all(is_day(str(value)) for value in comparison.values)
    return kinds <= {float} and (family(type_name) is Family.INTEGER or type_name == "DOUBLE")


def known_of_features(plan: Plan) -> list[str]:
    """Features whose columns the query uses in another way too, as sentences."""
    found: dict[str, None] = {}
    for feature in plan.query.features:
        table, own = plan.tables[feature.alias].name, set(columns_of(feature.expression))
        for how, text in uses_of_table(plan, table):
            for column in sorted(own & set(columns_of(text)) if how != "feature" else ()):
                found[
                    f"Column {column!r} of table {table!r} is a feature and a {how}: what that use reveals is known."
                ] = None
    return list(found)


def uses_of_table(plan: Plan, name: str) -> Iterator[tuple[str, str]]:
    """(how, expression) for all that a query does with a table, under whatever alias."""
    query = plan.query
    for alias in (alias for alias, other in plan.tables.items() if other.name.lower() == name.lower()):
        yield from (("feature", column.expression) for column in query.features if column.alias == alias)
        for branch in query.branches:
            if branch.filters.get(alias):
                yield "filter", branch.filters[alias]
            yield from (("filter", text) for own, text in branch.joined.conditions if own == alias)
            yield from (("join key", text) for key in branch.keys for text in key.members.get(alias, ()))
        if query.label is not None and query.label.alias == alias:
            yield "label", query.label.expression
