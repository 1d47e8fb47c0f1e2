"""The joins of one SELECT become a tree: tables that are joined inner, and outer joins in order.

Input: joins and conditions with their names bound. Output: a `JoinTree`, and the filters that decide which rows are
read at all. An outer join of whose missing row nothing can be left is an inner join: a later equality or a condition of
WHERE that NULLs do not hold strikes it out. So most filters still go to the source, and a condition over a table that
may be missing is decided on joined rows only where DuckDB would see a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from tablepuppet.errors import QueryError
from tablepuppet.sql.advice import NO_WAY
from tablepuppet.sql.expression import with_alias
from tablepuppet.sql.keys import key_classes, keys_between
from tablepuppet.sql.place import SqlText
from tablepuppet.sql.query import Attach, JoinTree, Keep, KeyClass
from tablepuppet.sql.scope import Bound
from tablepuppet.sql.select import BoundJoin, BoundSelect, Equality

TypeOf = Callable[[str, Bound], str]  # the type of an expression of an alias
OverNulls = Callable[[str, Bound], Any]  # its value over a row of NULLs


@dataclass(frozen=True)
class _Pair:
    """A join as it is written: all tables before it, and the next."""

    left: _Pair | str
    join: BoundJoin

    @property
    def aliases(self) -> frozenset[str]:
        return _aliases(self.left) | {self.join.alias}


def _aliases(joined: _Pair | str) -> frozenset[str]:
    return frozenset({joined}) if isinstance(joined, str) else joined.aliases


@dataclass
class _Attached:
    right: _Tree
    join: BoundJoin
    conditions: list[tuple[str, Bound]]


@dataclass
class _Tree:
    """A `JoinTree` whose conditions are still those of the text."""

    tables: list[str]
    equalities: list[Equality] = field(default_factory=list)
    steps: list[_Attached | list[tuple[str, Bound]]] = field(default_factory=list)  # a list is what rows must hold
    crossed: list[str] = field(default_factory=list)

    @property
    def aliases(self) -> frozenset[str]:
        attached = (step.right.aliases for step in self.steps if isinstance(step, _Attached))
        return frozenset(self.tables).union(*attached)

    @property
    def is_whole(self) -> bool:
        """Whether each of its rows has a row of each of its ``tables``."""
        return not any(isinstance(step, _Attached) and step.join.side == "FULL" for step in self.steps)

    @property
    def certain(self) -> frozenset[str]:
        """Tables of which each of its rows has a row."""
        return frozenset(self.tables) if self.is_whole else frozenset()


class JoinTrees:
    """Makes the tree of a SELECT, and gathers the filters of rows that are read on the way."""

    def __init__(self, select: BoundSelect, rename: Mapping[str, str], type_of: TypeOf, over_nulls: OverNulls):
        self._select, self._rename, self._type_of, self._over_nulls = select, rename, type_of, over_nulls
        self.filters: dict[str, list[str]] = {}

    @property
    def _sql(self) -> SqlText:
        return self._select.scope.sql

    def tree(self) -> JoinTree:
        """The tree; ``filters`` are complete after it."""
        joined: _Pair | str = next(iter(self._select.scope.uses))
        for join in self._select.joins:
            joined = _Pair(joined, join)
        where = self._select.where
        needed = self._rejecting(where.equalities, where.filters)
        tree = self._made(self._simplified(joined, needed))
        self._join_inner(tree, where.equalities, where.filters)
        return self._bound(tree)

    # Which outer joins are inner ones.

    def _rejecting(self, equalities: Iterable[Equality], filters: Iterable[tuple[str, Bound]]) -> frozenset[str]:
        """Tables whose missing row these conditions strike out."""
        found = {side.alias for each in equalities for side in each.sides if self._is_null(side)}
        return frozenset(found | {alias for alias, each in filters if self._over_nulls(alias, each) in (None, False)})

    def _is_null(self, side: Bound) -> bool:
        return self._over_nulls(side.alias, side) is None

    def _simplified(self, joined: _Pair | str, needed: frozenset[str]) -> _Pair | str:
        """The joins, if every row must have a row of the ``needed`` tables."""
        if isinstance(joined, str):
            return joined
        join, before = joined.join, _aliases(joined.left)
        left_needed, right_needed = bool(needed & before), join.alias in needed
        side = join.side
        if side == "FULL" and left_needed:
            side = "LEFT"
        elif side == "FULL" and right_needed:
            side = "RIGHT"
        if (side == "LEFT" and right_needed) or (side == "RIGHT" and left_needed):
            side = "INNER"
        on = self._rejecting(join.on.equalities, join.on.filters) & before
        inner = {"INNER": needed | on, "LEFT": needed, "RIGHT": on, "FULL": frozenset[str]()}[side]
        return _Pair(self._simplified(joined.left, inner & before), replace(join, side=side))

    # From joins as they are written to trees.

    def _made(self, joined: _Pair | str) -> _Tree:
        if isinstance(joined, str):
            return _Tree([joined])
        left, join = self._made(joined.left), joined.join
        right = _Tree([join.alias])
        if join.side == "INNER":
            if not left.is_whole:
                raise self._sql.error(
                    f"a FULL JOIN cannot be followed by a join of all its rows with {join.alias}, and {NO_WAY}",
                    join.node,
                )
            left.tables.append(join.alias)
            left.crossed += [join.alias] * join.is_cross
            self._join_inner(left, join.on.equalities, join.on.filters)
            return left
        kept, other = (right, left) if join.side == "RIGHT" else (left, right)
        self._check_equalities(join, left.aliases)
        conditions = []
        for alias, predicate in join.on.filters:
            if join.side != "FULL" and alias in other.certain:
                self._filter(alias, predicate)  # a row that fails it is nobody's partner: it need not be read
            else:
                conditions.append((alias, predicate))
        kept.steps.append(_Attached(other, join, conditions))
        return kept

    def _join_inner(self, tree: _Tree, equalities: Iterable[Equality], filters: Iterable[tuple[str, Bound]]) -> None:
        """Add conditions that every row of a tree must hold."""
        for equality in equalities:
            for side in equality.sides:
                if side.alias not in tree.certain:
                    raise self._has_value(side, equality)
            tree.equalities.append(equality)
        later = [(alias, predicate) for alias, predicate in filters if alias not in tree.certain]
        for alias, predicate in filters:
            if alias in tree.certain:
                self._filter(alias, predicate)
        if later:
            tree.steps.append(later)

    def _has_value(self, side: Bound, equality: Equality) -> QueryError:
        return self._sql.error(
            f"{with_alias(side.text, side.alias)} has a value where {side.alias} has no row, and nothing joins by it: "
            f"{NO_WAY}; join by the column itself",
            equality.node,
        )

    def _check_equalities(self, join: BoundJoin, before: frozenset[str]) -> None:
        """Each equality of an outer join is between its table and one before it, and there is one."""
        for equality in join.on.equalities:
            left, right = (side.alias for side in equality.sides)
            if (left in before) == (right in before):
                raise self._sql.error(
                    f"ON of a {join.side} JOIN equates {join.alias} with tables before it; this equates two of those, "
                    f"and {NO_WAY}",
                    equality.node,
                )
        if not join.on.equalities:
            raise self._sql.error(
                f"a {join.side} JOIN needs an equality between {join.alias} and a table before it, else every row "
                f"would join every row, and {NO_WAY}",
                join.node,
            )

    def _filter(self, alias: str, predicate: Bound) -> None:
        self._require_boolean(alias, predicate)
        self.filters.setdefault(self._rename[alias], []).append(predicate.text)

    def _require_boolean(self, alias: str, predicate: Bound) -> None:
        found = self._type_of(self._rename[alias], predicate)
        if found not in ("BOOLEAN", '"NULL"', "NULL"):
            raise self._sql.error(
                f"a condition must be true or false; this is {found}: compare it, or CAST it AS BOOLEAN", predicate.node
            )

    # From the text's conditions to those of a query.

    def _bound(self, tree: _Tree) -> JoinTree:
        """The tree in the aliases of the first SELECT of a union."""
        keys, implied = key_classes(tree.equalities, self._sql, self._rename, self._type_of)
        for alias, texts in implied.items():
            self.filters.setdefault(alias, []).extend(texts)
        self._require_connected(tree, keys)
        steps: list[Attach | Keep] = []
        for step in tree.steps:
            if isinstance(step, list):
                steps.append(Keep(self._conditions(step)))
                continue
            right = self._bound(step.right)
            here = JoinTree(tuple(self._rename[alias] for alias in tree.tables), keys, tuple(steps))
            self._check_missing_keys(step.join, here.may_miss | right.may_miss)
            between = keys_between(step.join.on.equalities, self._sql, self._rename, self._type_of)
            steps.append(Attach(right, between, self._conditions(step.conditions), step.join.side == "FULL"))
        return JoinTree(tuple(self._rename[alias] for alias in tree.tables), keys, tuple(steps))

    def _conditions(self, listed: Iterable[tuple[str, Bound]]) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for alias, predicate in listed:
            self._require_boolean(alias, predicate)
            found.setdefault(self._rename[alias], []).append(predicate.text)
        return {alias: " AND ".join(f"({text})" for text in texts) for alias, texts in found.items()}

    def _check_missing_keys(self, join: BoundJoin, missing: frozenset[str]) -> None:
        """A missing row has no key: QueryError for an expression that gives it one."""
        for equality in join.on.equalities:
            for side in equality.sides:
                if self._rename[side.alias] in missing and not self._is_null(side):
                    raise self._has_value(side, equality)

    def _require_connected(self, tree: _Tree, keys: tuple[KeyClass, ...]) -> None:
        """Raise for an accidental cross product: tables that neither a key nor a CROSS JOIN connects."""
        names = [self._rename[alias] for alias in tree.tables]
        links = [set(key.members) for key in keys]
        links += [{names[0], self._rename[crossed]} for crossed in tree.crossed]
        reached = {names[0]}
        while grown := [link for link in links if link & reached and not link <= reached]:
            reached = reached.union(*grown)
        lost = next((alias for alias in tree.tables if self._rename[alias] not in reached), None)
        if lost is not None:
            raise self._sql.error(
                f"nothing joins {lost} to {tree.tables[0]}: every row would join every row; "
                f"add an equality, or write CROSS JOIN if that is meant",
                self._node(lost),
            )

    def _node(self, alias: str) -> exp.Expr:
        return self._select.scope.uses[alias].node
