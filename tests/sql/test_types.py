"""Types: families, which types agree, which keys may meet."""

from __future__ import annotations

from itertools import permutations

import duckdb
import pytest

from tablepuppet.sql.types import Family, family, joinable, widest

INTEGERS = ("TINYINT", "UTINYINT", "SMALLINT", "USMALLINT", "INTEGER", "UINTEGER", "BIGINT", "UBIGINT", "HUGEINT")


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("TINYINT", Family.INTEGER),
        ("HUGEINT", Family.INTEGER),
        ("DECIMAL(18,3)", Family.DECIMAL),
        ("FLOAT", Family.FLOAT),
        ("DOUBLE", Family.FLOAT),
        ("BOOLEAN", Family.BOOLEAN),
        ("VARCHAR", Family.TEXT),
        ("ENUM('a', 'DATE')", Family.TEXT),
        ("DATE", Family.DATE),
        ("TIMESTAMP_NS", Family.TIMESTAMP),
        ("TIMESTAMP WITH TIME ZONE", Family.TIMESTAMP),
        ("UUID", Family.UUID),
        ("JSON", Family.OTHER),
        ("BLOB", Family.OTHER),
        ("TIME", Family.OTHER),
        ("INTERVAL", Family.OTHER),
        ("VARCHAR[]", Family.OTHER),
        ("DECIMAL(9,2)[]", Family.OTHER),
        ("ENUM('a')[]", Family.OTHER),
        ("STRUCT(a DATE)", Family.OTHER),
    ],
)
def test_every_type_has_a_family(type_name: str, expected: Family) -> None:
    """A type is of the family of its values; nested and unknown types are of none."""
    assert family(type_name) is expected


@pytest.mark.parametrize("pair", list(permutations(INTEGERS, 2)), ids=" ".join)
def test_two_integers_have_the_type_of_duckdb(pair: tuple[str, str]) -> None:
    """The type that holds both is the one DuckDB's UNION gives."""
    union = " UNION ALL ".join(f"SELECT CAST(0 AS {name}) AS it" for name in pair)
    [(type_name,)] = duckdb.execute(f"SELECT DISTINCT typeof(it) FROM ({union})").fetchall()
    assert widest(pair) == type_name


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["DECIMAL(6,0)", "DECIMAL(4,2)"], "DECIMAL(8,2)"),
        (["DECIMAL(38,0)", "DECIMAL(38,10)"], None),
        (["FLOAT", "DOUBLE"], "DOUBLE"),
        (["FLOAT", "FLOAT"], "FLOAT"),
        (["VARCHAR", "ENUM('a')"], "VARCHAR"),
        (["TIMESTAMP", "TIMESTAMP_MS"], "TIMESTAMP"),
        (["TIMESTAMP", "TIMESTAMP WITH TIME ZONE"], "TIMESTAMP WITH TIME ZONE"),
        (["TIMESTAMP_NS", "TIMESTAMP"], None),
        (["TIMESTAMP_NS", "TIMESTAMP_NS"], "TIMESTAMP_NS"),
        (["INTEGER", "DECIMAL(4,2)"], None),
        (["INTEGER", "DOUBLE"], None),
        (["INTEGER", "VARCHAR"], None),
        (["DATE", "TIMESTAMP"], None),
        (["BLOB", "BLOB"], "BLOB"),
        (["BLOB", "JSON"], None),
    ],
)
def test_shards_agree_on_the_widest_type(types: list[str], expected: str | None) -> None:
    """Types of one family agree on the one that holds all their values, if there is one."""
    assert widest(types) == expected
    assert widest(reversed(types)) == expected


@pytest.mark.parametrize(
    ("left", "right", "meet"),
    [
        ("TINYINT", "HUGEINT", True),
        ("INTEGER", "DECIMAL(9,2)", True),
        ("VARCHAR", "ENUM('a')", True),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", True),
        ("DATE", "TIMESTAMP", False),
        ("VARCHAR", "UUID", False),
        ("BOOLEAN", "INTEGER", False),
        ("DOUBLE", "DOUBLE", False),
        ("BLOB", "BLOB", False),
    ],
)
def test_keys_meet_within_a_family(left: str, right: str, meet: bool) -> None:
    """Keys join if their values can be written alike; floats never do."""
    assert joinable(left, right) is meet
    assert joinable(right, left) is meet
