"""Published tables: what the party file names is there, in every kind of database, and nothing else."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from adbc_driver_postgresql import dbapi

import tablepuppet as tp
from tablepuppet.party.database import SourceTable
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.published import Published, PublishedTable
from tests.relations import write_party

CARDS = pa.table({"Card": [1, 2, 3, 4], "credit": [1.5, 2.5, 3.5, 4.5], "pin": ["p", "q", "r", "s"]})
TOWNS = pa.table({"card": [1, 1, 2, 9], "town": ["x", "y", "x", "z"]})
SELECT = """
    SELECT cards.card, count(*) AS towns, sum(credit) AS total -- a comment
    FROM cards JOIN towns AS t USING (card) WHERE town <> 'z' GROUP BY cards.card
"""


def database(folder: Path, kind: str, postgres_url: str) -> str:
    """The URL of a database with both tables."""
    if kind == "sqlite":
        with sqlite3.connect(folder / "p.sqlite") as connection:
            connection.execute("CREATE TABLE cards (Card INTEGER, credit REAL, pin TEXT)")
            connection.execute("CREATE TABLE towns (card INTEGER, town TEXT)")
            for name, rows in (("cards", CARDS), ("towns", TOWNS)):
                marks = ", ".join("?" * rows.num_columns)
                values = [tuple(row.values()) for row in rows.to_pylist()]
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        return f"sqlite:///{folder}/p.sqlite"
    if kind == "postgresql":
        with dbapi.connect(postgres_url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in (
                "DROP SCHEMA IF EXISTS published CASCADE",
                "CREATE SCHEMA published",
                'CREATE TABLE published.cards ("Card" BIGINT, credit FLOAT8, pin TEXT, spare JSON)',
                "INSERT INTO published.cards VALUES (1,1.5,'p'), (2,2.5,'q'), (3,3.5,'r'), (4,4.5,'s')",
                "CREATE TABLE published.towns (card BIGINT, town TEXT)",
                "INSERT INTO published.towns VALUES (1,'x'), (1,'y'), (2,'x'), (9,'z')",
            ):
                cursor.execute(statement)
        return f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Dpublished"
    return write_party(folder, "p", {"cards": CARDS, "towns": TOWNS}, kind)


def published(url: str, **tables: tuple[tuple[str, ...], str | None]) -> Published:
    """A database of which only these tables and columns are published."""
    entries = [PublishedTable(name, columns, sql) for name, (columns, sql) in tables.items()]
    return Published("bank", open_database("bank", url), entries)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "duckdb", "sqlite", "postgresql"])
def test_tables_and_selects(tmp_path: Path, kind: str, postgres_url: str) -> None:
    """A table shows its named columns only, a SELECT means the same over every kind of database."""
    found = published(
        database(tmp_path, kind, postgres_url),
        cards=(("card", "credit"), None),
        spread=(("card", "towns", "total"), SELECT),
        everything=(
            ("town", "credit"),
            "WITH towns AS (FROM towns) SELECT * FROM towns, cards WHERE towns.card = cards.card",
        ),
    )
    told = found.tables()
    assert [(table.name, list(table.columns), table.rows) for table in told] == [
        ("cards", ["Card", "credit"], 4),
        ("spread", ["Card", "towns", "total"], 2),
        ("everything", ["town", "credit"], 3),
    ]
    with found.reader() as reader:
        for table, columns, rows in (
            ("CARDS", {"card": "BIGINT"}, [(1,), (2,), (3,), (4,)]),
            ("spread", {"total": "DOUBLE", "towns": "BIGINT"}, [(2.5, 1), (3.0, 2)]),
            ("spread", {"card": "BIGINT"}, [(1,), (2,)]),
            ("everything", {"town": "VARCHAR"}, [("x",), ("x",), ("y",)]),
        ):
            source = reader.source(table, columns)
            told_rows = source.connection.sql(f"FROM {source.sql}").fetchall()
            assert sorted(row[:-1] for row in told_rows) == rows
            assert sorted(row[-1] for row in told_rows) == list(range(len(rows)))


def test_what_is_hidden_cannot_be_read(tmp_path: Path) -> None:
    """A table or column that is not named is not there, and no error lists what is hidden."""
    url = write_party(tmp_path, "p", {"cards": CARDS, "towns": TOWNS})
    found = published(url, cards=(("card",), None))
    with found.reader() as reader:
        for table, columns in (("towns", {"card": "BIGINT"}), ("cards", {"pin": "VARCHAR"})):
            with pytest.raises(tp.PartyError) as caught:
                reader.source(table, columns)
            assert "credit" not in str(caught.value)
    for tables in (
        {"cards": (("card", "nowhere"), None)},
        {"nowhere": (("card",), None)},
        {"view": (("card",), "SELECT card FROM nowhere")},
        {"view": (("nowhere",), "SELECT card, credit FROM cards")},
        {"view": (("card",), "SELECT card FROM cards WHERE nowhere > 3")},
    ):
        with pytest.raises(tp.PartyError, match="its operator can see more with 'tablepuppet party check'") as failed:
            published(url, **tables).tables()
        assert not [name for name in ("credit", "pin", "towns") if name in str(failed.value)]
        assert "nowhere" in str(failed.value.__cause__)


def test_a_select_that_fails_on_its_rows_tells_no_value(tmp_path: Path) -> None:
    """DuckDB quotes the value it cannot cast; what callers and the operator see does not."""
    url = write_party(tmp_path, "p", {"cards": CARDS})
    with pytest.raises(tp.PartyError, match="cannot be evaluated") as caught:
        published(
            url, view=(("n",), "SELECT CAST(pin AS INTEGER) AS n FROM cards WHERE CAST(pin AS INTEGER) > 0")
        ).tables()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DROP TABLE cards", "only a SELECT"),
        ("COPY cards TO 'x.csv'", "only a SELECT"),
        ("WITH a AS (INSERT INTO cards VALUES (1) RETURNING card) SELECT card FROM a", "only a SELECT"),
        ("SELECT card FROM cards; SELECT 1", "not one SELECT"),
        ("SELECT card FROM", "not one SELECT"),
        ("", "not one SELECT|only a SELECT"),
        ("SELECT 1 AS card", "reads no table"),
        ("SELECT * FROM read_csv('/etc/passwd')", "name tables of the database only"),
        ("SELECT content AS card FROM cards, read_text('/etc/passwd')", "name tables of the database only"),
        ("SELECT card FROM main.cards", "name tables of the database only"),
    ],
)
def test_only_a_select_over_the_database_is_published(tmp_path: Path, sql: str, message: str) -> None:
    """No statement that changes anything, no file, no other schema."""
    with pytest.raises(tp.ConfigError, match=rf"party 'bank', tables\.view\.sql: .*({message})"):
        published(write_party(tmp_path, "p", {"cards": CARDS}), view=(("card",), sql or " "))


def test_a_file_is_no_table(tmp_path: Path) -> None:
    """A path in quotes, which DuckDB would open, is a table that the database does not have."""
    with pytest.raises(tp.PartyError, match="has not all that published table 'view' needs"):
        published(write_party(tmp_path, "p", {"cards": CARDS}), view=(("a",), "SELECT * FROM '/etc/passwd'")).tables()


def test_a_schema_that_changes_is_seen(tmp_path: Path) -> None:
    """What is published follows the database: a column of a SELECT gets the type that it has now."""
    url = write_party(tmp_path, "p", {"cards": CARDS})
    found = published(url, view=(("card",), "SELECT card FROM cards"))
    assert found.tables() == [SourceTable("view", {"Card": "BIGINT"}, 4)]
    pa.parquet.write_table(pa.table({"card": ["a"]}), tmp_path / "p" / "cards.parquet")
    assert found.tables() == [SourceTable("view", {"card": "VARCHAR"}, 1)]
