"""Expressions: what a party evaluates, and that the canonical text means what the analyst wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from sqlglot import exp, parse_one
from sqlglot.dialects.duckdb import DuckDB

from tablepuppet.errors import QueryError
from tablepuppet.sql.dialect import AsWritten
from tablepuppet.sql.expression import (
    FORMS,
    FUNCTIONS,
    checked,
    column_text,
    columns_of,
    identifier,
    is_column,
    is_reserved,
    render,
)

GOLDEN = Path(__file__).parent / "golden"
EXPRESSIONS = (GOLDEN / "expressions.txt").read_text().splitlines()

ROWS = r"""
(1, 2, 0.1, 0.1, 1.50, 'abc', 'abd', true, '2024-02-29', '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59+05', 'x'),
(-3, 3, -2.5, -2.5, -0.01, '  aBa ', '', false, '2023-01-01', '1969-12-31 00:00:00.5', '2023-01-01 00:00:00+00', 'y'),
(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
(2, 0, 'nan', 'nan', 999.99, 'it''s', 'é😀', true, '0001-01-01', '2024-12-31 12:00:00', '2024-07-01 12:00:00-04', 'x'),
(0, 1, 'inf', '-inf', 0, E'a\nb', 'a%', false, '9999-01-01', '2024-01-01 10:00:00', '2024-01-01 10:00+02', 'x'),
(7, 7, 1e300, 1e30, 2.5, 'a\nb', 'ABC', true, '2024-12-30', '2000-02-29 00:00:00', '2000-01-01 00:00:00+00', 'y')
"""


@pytest.fixture(scope="module")
def table() -> Iterator[duckdb.DuckDBPyConnection]:
    """A small table of awkward values: NULL, NaN, infinity, quotes, newlines, emoji, leap days, far years."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            "CREATE TABLE t (i INTEGER, j BIGINT, x DOUBLE, f FLOAT, d DECIMAL(8,2), s VARCHAR, u VARCHAR, b BOOLEAN, "
            "dt DATE, ts TIMESTAMP, tz TIMESTAMPTZ, en ENUM('x', 'y'))"
        )
        connection.execute(f"INSERT INTO t VALUES {ROWS}")
        yield connection


def evaluated(connection: duckdb.DuckDBPyConnection, expression: str) -> list[str]:
    """The type and the value for each row; a row on which DuckDB fails gives the kind of error."""
    found = []
    for row in range(6):
        try:
            relation = connection.sql(f"SELECT {expression} AS it FROM (SELECT * FROM t LIMIT 1 OFFSET {row})")
            found.append(f"{relation.types[0]} {relation.fetchall()}")
        except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_canonical_text_means_the_same(expression: str, table: duckdb.DuckDBPyConnection) -> None:
    """DuckDB gives the same type and values for the canonical text as for what was written."""
    canonical = render(checked(expression))
    assert evaluated(table, canonical) == evaluated(table, expression)
    assert render(checked(canonical)) == canonical


def test_every_function_is_a_consistent_scalar_of_duckdb() -> None:
    """The allow-list names only what DuckDB has and what gives one answer for its arguments, always."""
    rows = duckdb.execute("SELECT function_name, function_type, stability FROM duckdb_functions()").fetchall()
    known = {name for name, kind, stability in rows if kind == "scalar" and stability == "CONSISTENT"}
    changing = {name for name, kind, stability in rows if kind == "scalar" and stability != "CONSISTENT"}
    assert known >= FUNCTIONS
    assert not changing & FUNCTIONS
    macros = {name for name, kind, _ in rows if kind == "macro"}
    assert FORMS - macros == {"cast", "coalesce", "date", "extract", "ifnull", "try_cast"}


def test_every_other_function_is_refused() -> None:
    """No other function of DuckDB passes, nor one of another dialect that sqlglot would write in DuckDB's terms."""
    rows = duckdb.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    names = {str(name) for (name,) in rows} | {
        name.lower() for name in (*exp.FUNCTION_BY_NAME, *DuckDB.Parser.FUNCTIONS)
    }
    passed = set()
    for name in filter(str.isidentifier, names - FUNCTIONS - FORMS):
        for arguments in ("", "x", "x, y", "x, y, z", "'day', x, y", "1, 2", "x AS y", "x FROM y"):
            try:
                checked(f"{name}({arguments})")
            except QueryError:
                continue
            passed.add(name)
    assert passed == set()


@pytest.mark.parametrize("expression", ["", *(GOLDEN / "refused_expressions.txt").read_text().splitlines()])
def test_what_a_party_does_not_evaluate(expression: str) -> None:
    """Nothing that reads the environment, settings, files, time or chance passes, however it is spelled."""
    with pytest.raises(QueryError):
        checked(expression)


def test_columns_named_like_anything_are_read_back() -> None:
    """A column may be called like any keyword, function or type of DuckDB, or hold any character."""
    keywords = [str(name) for (name,) in duckdb.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()]
    awkward = ["two words", 'quo"te', "größe", "a.b", "", " ", "1st", "x;y", "--", "/*", "It's", "大", "lower", "_"]
    for name in [*keywords, *awkward, "current_schema", "localtime", "rowid", "date", "uuid"]:
        if not name:
            continue
        quoted = identifier(name).sql(dialect="duckdb")
        for text in (quoted, f"lower({quoted}) = 'a' AND {quoted} IS NULL", f"{quoted} || 'x'"):
            assert columns_of(text) == (name,)
            canonical = render(checked(text))
            name_in_sql = name.replace('"', '""')
            duckdb.sql(f'SELECT {canonical} AS it FROM (SELECT CAST(NULL AS VARCHAR) AS "{name_in_sql}")')


def test_a_name_that_is_not_reserved_is_a_column() -> None:
    """Nobody parses it: so both parsers read every word that they or DuckDB know as that column, or it is reserved."""
    queries = (
        "keyword_name FROM duckdb_keywords",
        "function_name FROM duckdb_functions",
        "type_name FROM duckdb_types",
    )
    known = {str(name) for query in queries for (name,) in duckdb.execute(f"SELECT DISTINCT {query}()").fetchall()}
    known |= set(AsWritten.Tokenizer.KEYWORDS) | {name for each in exp.ALL_FUNCTIONS for name in each.sql_names()}
    known |= {*AsWritten.Parser.FUNCTION_PARSERS, *AsWritten.Parser.NO_PAREN_FUNCTION_PARSERS}
    for word in sorted(known | {name.lower() for name in known} | {"x1", "_"}):
        text = column_text(word)
        assert text == render(exp.column(identifier(word)))
        assert is_column(text)
        assert columns_of(text) == (word,)
        assert parse_one(text, dialect=AsWritten) == exp.column(identifier(word))
    plain = sorted(name for name in known if not is_reserved(name))
    [(read,)] = duckdb.execute("SELECT json_serialize_sql(?)", [f"SELECT {', '.join(plain)}"]).fetchall()
    assert re.findall(r'"column_names":\["(\w+)"\]', read) == plain


def test_columns_come_in_order_of_use() -> None:
    """Every column once, as the expression first uses it."""
    assert columns_of("CASE WHEN b > a THEN upper(c) ELSE b || a END") == ("b", "a", "c")
    assert columns_of("1 = 1") == ()


def test_every_function_is_tried() -> None:
    """The list of expressions above calls each function of the allow-list."""
    called = {name.lower() for text in EXPRESSIONS for name in re.findall(r"(\w+)\(", text)}
    assert called >= FUNCTIONS | FORMS - {"cast"}
