"""Names in one SELECT: which table uses FROM makes visible, and which of them a column belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from tablepuppet.errors import CatalogError
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.advice import AGGREGATING_VIEW, CLAUSES, INLINED, NO_WAY, PUBLISHED
from tablepuppet.sql.catalog import Catalog, VerticalTable
from tablepuppet.sql.expression import Refused, check, column_text, identifier, written
from tablepuppet.sql.place import SqlText
from tablepuppet.sql.subquery import Subquery, subquery_of, view_of
from tablepuppet.sql.view import View, view_table


@dataclass(frozen=True)
class ScopedTable:
    """One table in FROM as the scope sees it."""

    alias: str
    table: VerticalTable
    party: str | None
    node: exp.Expr
    view: View | None = None  # what is made of the rows of the table of this name

    @property
    def described(self) -> str:
        """Its name in errors."""
        if self.view:
            return f"subquery {self.alias}"
        return f"table {self.table.name}" + f" ({self.alias})" * (self.alias != self.table.name)


@dataclass(frozen=True)
class Bound:
    """An expression whose columns are resolved and stripped of qualifiers."""

    text: str
    aliases: frozenset[str]
    columns: frozenset[tuple[str, str]]
    node: exp.Expr

    @property
    def alias(self) -> str:
        """The table of a one-table expression."""
        [alias] = self.aliases
        return alias


@dataclass
class Scope:
    """The table uses of one SELECT, in FROM order."""

    sql: SqlText
    catalog: Catalog
    uses: dict[str, ScopedTable] = field(default_factory=dict)
    hidden: set[tuple[str, str]] = field(default_factory=set)  # (alias, column) that USING / NATURAL merged away
    named: Mapping[str, exp.CTE] = field(default_factory=dict)  # subqueries of WITH, by name in lower case
    either: set[str] = field(
        default_factory=set
    )  # columns that USING of a FULL JOIN takes of whichever table has a row
    output_names: set[str] = field(default_factory=set)  # lower-case names that AS gives in the SELECT list

    def add(self, node: exp.Expr) -> ScopedTable:
        """Make a table of FROM visible under its alias."""
        if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            return self._add_view(node, subquery_of(node, node.alias, self.sql))
        if isinstance(node, exp.Table) and not node.db and node.name.lower() in self.named:
            self._refuse_other_than_table(node)
            named = self.named[node.name.lower()]
            return self._add_view(node, subquery_of(named, node.alias or named.alias, self.sql))
        self._refuse_other_than_table(node)
        assert isinstance(node, exp.Table)
        return self._add_table(node, node, node.alias or node.name)

    def _add_view(self, node: exp.Expr, found: Subquery) -> ScopedTable:
        """Make the rows of a subquery visible under its name."""
        if not found.table.db and found.table.name.lower() in self.named:
            raise self.sql.error(f"a subquery over another one is not supported, and {NO_WAY}", found.table)
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            raise self.sql.error("renaming columns in FROM is not supported; use AS in the SELECT list", node)
        inner = Scope(self.sql, self.catalog)
        base = inner.add(found.table)
        view = view_of(found, base.table, lambda column: inner.resolve(column)[1], self.sql)
        try:
            table = view_table(base.table, view)
        except ValueError as error:
            raise self.sql.error(f"DuckDB cannot evaluate this: {error}", found.select) from None
        if view.is_grouped and len(base.table.shards) > 1:
            owners = ", ".join(base.table.parties)
            raise self.sql.error(
                f"{base.table.name} has shards at {owners}, and each would make groups of its own rows only: a group "
                f"with rows at two of them would be there twice, and {NO_WAY}; name one shard, as in "
                f"{base.table.parties[0]}.{base.table.name}, if its rows are meant",
                found.table,
            )
        if any(found.name.lower() == known.lower() for known in self.uses):
            raise self.sql.error(f"two tables are called {found.name}; give each use an alias of its own", node)
        self.uses[found.name] = ScopedTable(found.name, table, base.party, node, view)
        return self.uses[found.name]

    def _add_table(self, node: exp.Table, at: exp.Expr, alias: str) -> ScopedTable:
        party = self._party(node)
        if any(alias.lower() == known.lower() for known in self.uses):
            raise self.sql.error(f"two tables are called {alias}; give each use an alias of its own", node)
        try:
            table = self.catalog.table(node.name, [party])
        except CatalogError as error:
            if node.name.lower() in map(str.lower, self.catalog.names) and party is None:
                raise  # the table is there, its shards do not agree
            raise self.sql.error(str(error), node) from error
        self.uses[alias] = ScopedTable(alias, table, party, at)
        return self.uses[alias]

    def _party(self, node: exp.Table) -> str | None:
        if not node.db:
            return None
        parties = self.catalog.parties
        self.catalog.check_answered(node.db)
        found = next((party for party in parties if party.lower() == node.db.lower()), None)
        if found is None:
            raise self.sql.error(
                f"{node.db!r} is not a party that publishes tables{did_you_mean(node.db, parties)}", node.args["db"]
            )
        return found

    def _refuse_other_than_table(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            raise self.sql.error("nested joins are not supported; write one JOIN after the other, no brackets", node)
        if isinstance(node, exp.Query | exp.Lateral):
            raise self.sql.error(f"a subquery in FROM is not supported yet; {INLINED}", node)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise self.sql.error(PUBLISHED, node)
        if node.args.get("joins"):
            raise self.sql.error("nested joins are not supported; write one JOIN after the other, no brackets", node)
        if node.catalog:
            raise self.sql.error("a table is named as table or party.table", node)
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            raise self.sql.error("renaming columns in FROM is not supported; use AS in the SELECT list", node)
        extra = next((key for key, value in node.args.items() if value and key not in ("this", "db", "alias")), None)
        if extra:
            if extra == "sample":
                raise self.sql.error(CLAUSES["sample"][1], node)
            raise self.sql.error(f"only a table and its alias can stand here; {AGGREGATING_VIEW}", node)

    def use(self, name: str, at: exp.Expr) -> ScopedTable:
        """The table use of that alias."""
        for alias, use in self.uses.items():
            if alias.lower() == name.lower():
                return use
        raise self.sql.error(f"no table is called {name}{did_you_mean(name, self.uses)}", at)

    def owners(self, column: str) -> list[ScopedTable]:
        """The table uses that have a column of that name; one only if USING or NATURAL merged it."""
        lower = column.lower()
        found = [use for use in self.uses.values() if use.table.find(column)]
        return [use for use in found if (use.alias, lower) not in self.hidden]

    def merge(self, column: str, other: ScopedTable) -> None:
        """Record that USING or NATURAL made one column of two: that of the ``other`` table is not seen any more."""
        self.hidden.add((other.alias, column.lower()))

    def resolve(self, column: exp.Column) -> tuple[str, str]:
        """(alias, column name) that a column of the SQL means."""
        if column.table:
            use = self.use(column.table, column)
            if column.args.get("db") and (use.party or "").lower() != column.args["db"].name.lower():
                raise self.sql.error(f"no table is called {column.args['db'].name}.{column.table}", column)
            name = use.table.find(column.name)
            if name is None:
                known = did_you_mean(column.name, use.table.columns)
                raise self.sql.error(f"{use.described} has no column {column.name}{known}", column)
            return use.alias, name
        owners = self.owners(column.name)
        if not owners:
            known = did_you_mean(column.name, dict.fromkeys(c for u in self.uses.values() for c in u.table.columns))
            if column.name.lower() in self.output_names:
                known = "; it is a name of the SELECT list, write its expression here"
            only = next(iter(self.uses.values())) if len(self.uses) == 1 else None
            nobody = f"{only.described} has no" if only else "no table has a"
            raise self.sql.error(f"{nobody} column {column.name}{known}", column)
        if len(owners) > 1:
            choices = " or ".join(f"{use.alias}.{column.name}" for use in owners)
            if column.name.lower() in self.either:
                reason = f"is that of whichever table has a row, and {NO_WAY} for it; one table's is {choices}"
                raise self.sql.error(f"column {column.name} of a FULL JOIN {reason}", column)
            raise self.sql.error(f"column {column.name} is ambiguous; write {choices}", column)
        name = owners[0].table.find(column.name)
        assert name is not None
        return owners[0].alias, name

    def bind(self, node: exp.Expr) -> Bound:
        """Resolve every column of an expression; QueryError for what no party would evaluate."""
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier):
            alias, name = self.resolve(node)
            return Bound(column_text(name), frozenset({alias}), frozenset({(alias, name)}), node)
        try:
            check(node)
        except Refused as refused:
            raise self.sql.error(str(refused), refused.node or node) from None
        resolved: set[tuple[str, str]] = set()

        def strip(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            alias, name = self.resolve(part)
            resolved.add((alias, name))
            return exp.column(identifier(name))

        stripped = node.copy().transform(strip)
        try:
            text = written(stripped)
        except Refused as refused:
            raise self.sql.error(str(refused), node) from None
        return Bound(text, frozenset(alias for alias, _ in resolved), frozenset(resolved), node)
