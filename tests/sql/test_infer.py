"""What a party publishes reaches DuckDB at the coordinator as names and types, never as a statement."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tablepuppet.errors import QueryError
from tablepuppet.sql.catalog import Catalog, Shard, VerticalTable
from tablepuppet.sql.infer import _inferred
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan
from tablepuppet.sql.quiet_duckdb import scratch
from tablepuppet.sql.types import Family, family, is_plain

INSIDE = "INTEGER) AS x LIMIT 0); {}; SELECT x AS it FROM (SELECT CAST(NULL AS INTEGER"
STATEMENTS = (
    "CREATE OR REPLACE MACRO main.written(x) AS x + 41",
    "CREATE TABLE written AS SELECT 1 AS x",
    "SET GLOBAL TimeZone = 'Asia/Tokyo'",
)


def of_type(kind: str, name: str = "x") -> Catalog:
    return Catalog([Shard("bank", "t", {name: kind, "y": "INTEGER"}, 3)])


def state() -> list[tuple[Any, ...]]:
    """What statements could have changed in the database that all inference shares."""
    with scratch() as connection:
        return connection.execute(
            "SELECT current_setting('TimeZone'), (SELECT count(*) FROM duckdb_tables()), "
            "(SELECT count(*) FROM duckdb_functions() WHERE NOT internal)"
        ).fetchall()


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("sql", ["SELECT x, y FROM t", "SELECT x + 1 AS z, y FROM t", "SELECT y FROM t WHERE x > 1"])
def test_a_type_cannot_be_a_statement(statement: str, sql: str) -> None:
    """The type of a column, which a party writes, runs nothing at the coordinator."""
    before, catalog = state(), of_type(INSIDE.format(statement))
    with pytest.raises(QueryError, match=r"x is INTEGER\) AS x"):
        parse(sql, catalog)
    assert state() == before


def test_an_expression_is_one_statement() -> None:
    """Whatever got past all other checks would still have to be one SELECT."""
    table = VerticalTable("t", {"x": "INTEGER"}, ())
    before = state()
    with pytest.raises(ValueError, match="several statements"):
        _inferred(f"1; {STATEMENTS[0]}; SELECT 1", tuple(table.columns.items()))
    assert state() == before


@pytest.mark.parametrize(
    "kind",
    ["DECIMAL", "DECIMAL(50,2)", "DECIMAL(2,3)", "DECIMAL(0,0)", "DECIMAL(9,2) ", "DECIMAL(9,2); SELECT 1", "ENUM",
     "ENUM()", "ENUM('a'); SELECT 1", "ENUM('a') || '", "ENUM('a' 'b')", "INTEGER ", "integer", "VARCHAR\n",
     "DECIMAL(٣,٢)"],
)  # fmt: skip
def test_a_type_is_known_as_a_whole_or_not_at_all(kind: str) -> None:
    """What only begins like a type is of no family, and a table that has it is no error."""
    assert family(kind) is Family.OTHER
    assert not is_plain(kind)
    assert of_type(kind).tables()[0].columns["x"] == kind
    with pytest.raises(QueryError, match="cannot be a feature"):
        parse("SELECT x, y FROM t", of_type(kind))


def test_types_of_no_family_can_be_turned_into_others() -> None:
    """An expression over times and documents has a type; lists and structs are for views at the party."""
    hour = parse("SELECT hour(x) AS h, y FROM t", of_type("TIME")).outputs[0]
    assert hour.type == "BIGINT"
    with pytest.raises(QueryError, match=r"x is VARCHAR\[\], which no expression can use"):
        parse("SELECT len(x) AS n, y FROM t", of_type("VARCHAR[]"))


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(" \"'`;-/*\\[]()%$"), min_size=1)


@given(PRINTABLE)
@example('x"; DROP TABLE t; --')
@example('"')
@example("/* x */")
@example("x\\")
@example("$$")
@example("select")
def test_any_name_of_a_column_is_only_a_name(name: str) -> None:
    """Whatever can be printed may be the name of a column: it is quoted, and means that column."""
    before, catalog = state(), of_type("DOUBLE", name)
    quoted = name.replace('"', '""')
    for sql in ("SELECT * FROM t", f'SELECT "{quoted}" + 1 AS z, y FROM t WHERE "{quoted}" > 1'):
        try:
            found = plan(parse(sql, catalog), catalog)
        except QueryError:
            continue  # two names that differ in case only, or that sqlglot does not read
        assert set(found.scans[0].columns) <= {name, "y"}
    assert state() == before
