"""Join conditions of one SELECT become key classes: which expressions must be equal across its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tablepuppet.sql.place import SqlText
from tablepuppet.sql.query import KeyClass
from tablepuppet.sql.scope import Bound
from tablepuppet.sql.select import Equality
from tablepuppet.sql.types import KEY_LIKE, Family, family, joinable

Member = tuple[str, str]  # (alias, expression)


def key_classes(
    equalities: Sequence[Equality], sql: SqlText, rename: Mapping[str, str], type_of: Callable[[str, Bound], str]
) -> tuple[tuple[KeyClass, ...], dict[str, list[str]]]:
    """The key classes of inner joins, and the filters they imply, in the aliases that ``rename`` gives.

    Two expressions of one table in one class (a.x = b.p AND a.y = b.p) imply a filter (a.x = a.y). Classes
    over exactly the same tables travel as one composite key, so that its parts cannot be distinguished.
    """
    pairs, types = _members(equalities, sql, rename, type_of)
    implied: dict[str, list[str]] = {}
    by_tables: dict[frozenset[str], list[dict[str, str]]] = {}
    for group in _groups(pairs):
        first: dict[str, str] = {}
        for alias, expression in group:
            if alias in first:
                implied.setdefault(alias, []).append(f"{_operand(first[alias])} = {_operand(expression)}")
            else:
                first[alias] = expression
        by_tables.setdefault(frozenset(first), []).append(first)
    classes = []
    for tables, parts in by_tables.items():
        if len(tables) > 1:
            order = sorted(parts, key=lambda part: sorted(part.items()))
            members = {alias: tuple(part[alias] for part in order) for alias in sorted(tables)}
            classes.append(KeyClass(members, tuple(_key_family(types[next(iter(part.items()))]) for part in order)))
    return tuple(sorted(classes, key=lambda key: key.label)), implied


def keys_between(
    equalities: Sequence[Equality], sql: SqlText, rename: Mapping[str, str], type_of: Callable[[str, Bound], str]
) -> tuple[KeyClass, ...]:
    """The keys of an outer join: one for each two tables that it equates, since nothing follows for others."""
    pairs, types = _members(equalities, sql, rename, type_of)
    by_tables: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for pair in pairs:
        part = dict(sorted(pair))
        parts = by_tables.setdefault(tuple(part), [])
        if part not in parts:
            parts.append(part)
    classes = []
    for tables, parts in by_tables.items():
        order = sorted(parts, key=lambda part: sorted(part.items()))
        members = {alias: tuple(part[alias] for part in order) for alias in tables}
        classes.append(KeyClass(members, tuple(_key_family(types[next(iter(part.items()))]) for part in order)))
    return tuple(sorted(classes, key=lambda key: key.label))


def _members(
    equalities: Sequence[Equality], sql: SqlText, rename: Mapping[str, str], type_of: Callable[[str, Bound], str]
) -> tuple[list[list[Member]], dict[Member, str]]:
    """What is equated, pair by pair, and the type of each; QueryError if two do not join."""
    types: dict[Member, str] = {}
    pairs: list[list[Member]] = []
    for equality in equalities:
        pair = [(rename[side.alias], side.text) for side in equality.sides]
        found = [type_of(rename[side.alias], side) for side in equality.sides]
        _check_types(equality, found, sql)
        types.update(zip(pair, found, strict=True))
        pairs.append(pair)
    return pairs, types


def _groups(pairs: list[list[Member]]) -> list[list[Member]]:
    """Union-find over pairs that are equal; members in order of appearance."""
    parent: dict[Member, Member] = {}

    def root(member: Member) -> Member:
        parent.setdefault(member, member)
        while parent[member] != member:
            member = parent[member]
        return member

    for pair in pairs:
        left, right = map(root, pair)
        parent[right] = left
    groups: dict[Member, list[Member]] = {}
    for member in list(parent):
        groups.setdefault(root(member), []).append(member)
    return list(groups.values())


def _operand(expression: str) -> str:
    return expression if expression.isidentifier() else f"({expression})"


def _check_types(equality: Equality, types: list[str], sql: SqlText) -> None:
    for side, type_name in zip(equality.sides, types, strict=True):
        what = f"{side.alias}.{side.text} is {type_name}"
        if family(type_name) is Family.FLOAT:
            raise sql.error(
                f"{what}: floats do not join, equal values may differ in the last bit; "
                f"join on CAST({side.text} AS BIGINT) or AS DECIMAL(18,2), whichever loses no digit",
                equality.node,
            )
        if family(type_name) not in KEY_LIKE:
            advice = "which cannot be a join key; cast it to text, or to what else it is compared with"
            raise sql.error(f"{what}, {advice}", equality.node)
    if not joinable(*types):
        left, right = (f"{side.alias}.{side.text}" for side in equality.sides)
        raise sql.error(
            f"joined keys differ in type: {left} is {types[0]}, {right} is {types[1]}; {_cast(equality, types)}",
            equality.node,
        )


_CAST_FIRST = (Family.TEXT, Family.BOOLEAN, Family.DATE)
"""Families whose values DuckDB casts to the type of the other side, the first of them first."""


def _cast(equality: Equality, types: list[str]) -> str:
    """The cast that DuckDB makes by itself where it compares the two."""
    families = [family(type_name) for type_name in types]
    chosen = next((families.index(each) for each in _CAST_FIRST if each in families), 0)
    side = equality.sides[chosen]
    return f"cast one of them; DuckDB would compare CAST({side.alias}.{side.text} AS {types[1 - chosen]})"


def _key_family(type_name: str) -> str:
    """The family under which values are encoded before blinding: whole numbers and decimals are one."""
    found = family(type_name)
    return "number" if found in (Family.INTEGER, Family.DECIMAL) else found.value
