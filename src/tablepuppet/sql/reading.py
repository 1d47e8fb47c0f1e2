"""DuckDB's own reading of SQL: its syntax trees of two texts are compared, and the first difference has a place.

Input: texts. Output: whether they mean the same, whatever brackets they have, and names that DuckDB itself takes for
another. What sqlglot writes is compared here with what it stands for. No data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from tablepuppet.sql.quiet_duckdb import scratch

Tree = Any  # what json.loads returns
Span = tuple[int, int]  # start and length, in bytes of UTF-8
_AT, _LONG = "query_location", "query_location_length"
_FAR = 1 << 62  # what has no place has a larger one
_PLACES = re.compile(r'"query_location(?:_length)?":\d+,?')  # in a text of the SQL, quotes would have a backslash
_COLUMNS = re.compile(r'"column_names":')
_UNTOLD = frozenset((_AT, _LONG, "is_operator", "qualified_name"))
"""Keys that say nothing about values; the last repeats a name that another key has."""
_OPPOSITES = {"OPERATOR_IS_NULL": "OPERATOR_IS_NOT_NULL", "COMPARE_NOT_DISTINCT_FROM": "COMPARE_DISTINCT_FROM"}


class Unread(Exception):  # noqa: N818 - who asks turns it into an error of theirs
    """DuckDB cannot read a text as one SELECT, or one union of SELECTs."""


def difference(select: str, other: str) -> Span | None:
    """None where DuckDB reads both texts alike; else the place in ``select`` of the first expression that differs.

    >>> difference("SELECT a ^ 2, b::TEXT", "SELECT power(a, 2), CAST((b) AS VARCHAR)")
    >>> difference("SELECT a - (b - c)", "SELECT a - b - c")
    (7, 10)
    """
    return _difference(*_readings([select, other]))


def are_read_alike(expressions: Sequence[str], columns: set[str] | None = None) -> bool:
    """Whether DuckDB reads all of these expressions alike, and as an expression of these columns, if they are given.

    >>> are_read_alike(["NOT a IS NULL", "a IS NOT NULL"]), are_read_alike(["a % b ^ c", "(a % b) ^ c"])
    (True, False)
    >>> are_read_alike(['lower("A")', 'LOWER(("A"))'], {"A"}), are_read_alike(["t.a", "(t.a)"], {"a"})
    (True, False)
    """
    first, *others = _readings([f"SELECT {text}" for text in expressions])
    if columns is not None and _columns(first) != columns:
        return False
    return all(_difference(first, other) is None for other in others)


def _readings(selects: Sequence[str]) -> list[str]:
    """DuckDB's trees as JSON."""
    with scratch() as connection:
        rows = connection.execute("SELECT json_serialize_sql(unnest(?::VARCHAR[]))", [list(selects)]).fetchall()
    if any(not found.startswith('{"error":false,') for (found,) in rows):
        raise Unread
    return [found for (found,) in rows]


def _columns(reading: str) -> set[str]:
    decode = json.JSONDecoder().raw_decode
    return {".".join(decode(reading, found.end())[0]) for found in _COLUMNS.finditer(reading)}


def _difference(reading: str, other: str) -> Span | None:
    if _PLACES.sub("", reading) == _PLACES.sub("", other):
        return None
    waiting: list[tuple[Tree, Tree, Tree]] = [(json.loads(reading), json.loads(other), None)]
    while waiting:  # trees are deep: no recursion
        one, two, around = waiting.pop()
        if isinstance(one, dict) and isinstance(two, dict):
            own = one if "class" in one else around
            one, two = _plain(one), _plain(two)
            if one.keys() != two.keys() or one.get("type") != two.get("type"):
                return _place(around or own)
            waiting += [(value, two[key], own) for key, value in reversed(one.items())]
        elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
            waiting += [(*pair, around) for pair in reversed(list(zip(one, two, strict=True)))]
        elif one != two:
            return _place(around)
    return None


def _nodes(tree: Tree) -> Iterator[dict[str, Tree]]:
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _place(node: Tree) -> Span:
    """From the first to the last place below a node: DuckDB gives some operators that of their sign only."""
    places = [(part[_AT], part[_LONG]) for part in _nodes(node) if _LONG in part and part[_AT] < _FAR]
    start = min((at for at, _ in places), default=0)
    return start, max((at + length for at, length in places), default=0) - start


def _plain(node: dict[str, Tree]) -> dict[str, Tree]:
    """A node without what does not change its value."""
    node = {key: value for key, value in node.items() if key not in _UNTOLD}
    kind = node.get("class")
    if node.get("type") == "OPERATOR_NOT" and node["children"][0].get("type") in _OPPOSITES:
        inner = _plain(node["children"][0])
        return inner | {"type": _OPPOSITES[inner["type"]], "alias": node["alias"]}
    if kind == "CONJUNCTION":
        return node | {"children": _flat(node["children"], node["type"])}
    if kind == "FUNCTION":
        name = str(_synonyms().get(node["function_name"], node["function_name"]))
        return node | {"function_name": name, "arguments": _plain_unit(node["arguments"], name)}
    if kind == "TYPE":
        return _plain_type(node)
    if node.get("kind") in ("INTEGER", "NUMERIC"):
        return node | {"text": _plain_number(node["text"])}
    return node


def _flat(children: Sequence[dict[str, Tree]], kind: str) -> list[dict[str, Tree]]:
    """a AND (b AND c) is a AND b AND c."""
    waiting, found = list(reversed(children)), []
    while waiting:
        child = waiting.pop()
        if child.get("type") == kind:
            waiting += reversed(child["children"])
        else:
            found.append(child)
    return found


def _plain_unit(arguments: list[Tree], name: str) -> list[Tree]:
    """EXTRACT(year FROM x) is date_part('YEAR', x): the case of a unit does not matter."""
    first = arguments[0]["expression"] if name == "date_part" and arguments else {}
    if first.get("literal", {}).get("kind") != "STRING":
        return arguments
    unit = first | {"literal": first["literal"] | {"text": first["literal"]["text"].lower()}}
    return [arguments[0] | {"expression": unit}, *arguments[1:]]


def _plain_type(node: dict[str, Tree]) -> dict[str, Tree]:
    """A type by the name that DuckDB gives it. It ignores the length of a text; a decimal without a size has one."""
    name = _types().get(node["type_name"].lower(), node["type_name"].upper())
    sizes = [child.get("literal", child) for child in node["children"]]
    if name == "DECIMAL":
        sizes += [{"kind": "INTEGER", "text": text} for text in ("18", "3" if not sizes else "0")[len(sizes) :]]
    return node | {"type_name": name, "children": [] if name == "VARCHAR" else sizes}


def _plain_number(text: str) -> str:
    """A number in the spelling of sqlglot.

    >>> _plain_number("1_000"), _plain_number(".5"), _plain_number("1E3")
    ('1000', '0.5', '1e3')
    """
    sign, digits = text[: text.startswith("-")], text.removeprefix("-").replace("_", "").lower()
    return f"{sign}0{digits}" if digits.startswith(".") else sign + digits


def _pairs(query: str) -> list[tuple[str, str]]:
    with scratch() as connection:
        return [(str(name), str(other)) for name, other in connection.execute(query).fetchall()]


@cache
def _synonyms() -> dict[str, str]:
    """Names of scalar functions and operators that are another name of one."""
    return dict(
        _pairs(
            "SELECT function_name, alias_of FROM duckdb_functions() WHERE function_type = 'scalar' AND alias_of <> ''"
        )
    )


@cache
def _types() -> dict[str, str]:
    return dict(_pairs("SELECT lower(type_name), logical_type FROM duckdb_types() WHERE lower(type_name) <> 'json'"))


@cache
def aggregates() -> frozenset[str]:
    """Names of DuckDB's aggregate functions."""
    query = "SELECT function_name, function_type FROM duckdb_functions() WHERE function_type = 'aggregate'"
    return frozenset(name for name, _ in _pairs(query))
