"""Corner cases of names, types and orders that a user may well meet."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tests.relations import party_of


def make(folder: Path, **parties: str) -> dict[str, str]:
    """A DuckDB file per party, filled by SQL."""
    urls = {}
    for name, sql in parties.items():
        with duckdb.connect(str(folder / f"{name}.duckdb")) as connection:
            connection.execute(sql)
        urls[name] = f"duckdb:///{folder / f'{name}.duckdb'}"
    return urls


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("DECIMAL(2,2)", "DECIMAL(3,2)", ["0.50", "0.00", "-0.25"]),
        ("DECIMAL(2,2)", "DECIMAL(38,38)", ["0.50", "0.00"]),
        ("DECIMAL(4,2)", "INTEGER", ["3.00", "-7.00", "0.00"]),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", ["infinity", "-infinity", "2024-01-01 00:00:00"]),
        ("DATE", "DATE", ["infinity", "-infinity", "2024-01-01"]),
    ],
)
def test_equal_keys_of_different_types_meet_once(tmp_path: Path, left: str, right: str, joined: list[str]) -> None:
    """Each value meets itself and nothing else, however its column is declared."""
    values = ", ".join(f"('{value}')" for value in joined)
    urls = make(
        tmp_path,
        a=f"CREATE TABLE a AS SELECT CAST(column0 AS {left}) AS k, 1 AS x FROM (VALUES {values}) v(column0)",
        b=f"CREATE TABLE b AS SELECT CAST(column0 AS {right}) AS k, 2 AS y FROM (VALUES {values}) v(column0)",
    )
    rows = tp.Federation(urls).sql("SELECT a.x, b.y FROM a JOIN b ON a.k = b.k").rows()
    assert rows["a.row"].to_pylist() == rows["b.row"].to_pylist() == list(range(len(joined)))


def test_columns_keep_the_place_where_they_are_first_selected(tmp_path: Path) -> None:
    """A column that is selected twice counts once, at its first place."""
    fed = tp.Federation(make(tmp_path, a="CREATE TABLE t AS SELECT 1 AS p, 2 AS q, 3 AS r"))
    assert fed.sql("SELECT q, p, q FROM t").columns == ["q", "p"]
    assert fed.sql("SELECT r, t.* FROM t").columns == ["r", "p", "q"]


def test_a_star_over_using_has_the_key_once(tmp_path: Path) -> None:
    """As in DuckDB, so that the key can be the label by its plain name."""
    urls = make(tmp_path, a="CREATE TABLE a AS SELECT 1 AS k, 2 AS x", b="CREATE TABLE b AS SELECT 1 AS k, 3 AS y")
    relation = tp.Federation(urls).sql("SELECT * FROM a JOIN b USING (k)", label="k")
    assert relation.columns == ["x", "y"]
    assert relation.query.label is not None
    assert relation.query.label.qualified == "a.k"


def test_an_acyclic_join_needs_no_more_memory_than_its_answer(tmp_path: Path) -> None:
    """Tables are attached by the number of keys they share, not by size alone."""
    urls = make(
        tmp_path,
        a="CREATE TABLE a AS SELECT i AS x, 0 AS y, i AS z FROM range(2000) t(i)",
        b="CREATE TABLE b AS SELECT i AS x, 0 AS y FROM range(2020) t(i)",
        c="CREATE TABLE c AS SELECT 0 AS y, i AS z FROM range(2010) t(i)",
    )
    sql = "SELECT a.x FROM a JOIN b ON a.x = b.x AND a.y = b.y JOIN c ON a.y = c.y AND a.z = c.z"
    assert len(tp.Federation(urls, memory_limit=1_000_000).sql(sql)) == 2000


@pytest.mark.parametrize("sql", ["SELECT x FROM a", "SELECT a.x FROM a JOIN b ON a.k = b.k"])
def test_the_memory_limit_holds_for_every_kind_of_join(tmp_path: Path, sql: str) -> None:
    """One table, or one to one: a mapping over the limit is refused, with its size and the limit."""
    table = "SELECT i AS k, i AS x FROM range(100) t(i)"
    urls = make(tmp_path, a=f"CREATE TABLE a AS {table}", b=f"CREATE TABLE b AS {table}")
    relation = tp.Federation(urls, memory_limit=10).sql(sql)
    with pytest.raises(tp.MappingError, match=r"100 rows; their mapping takes .* kB, 10 B are allowed by memory_limit"):
        len(relation)


def test_sqlite_views_publish_the_types_of_their_values(tmp_path: Path) -> None:
    """A column without a declared type, as an aggregate in a view, is a number if its values are."""
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("CREATE TABLE t (k TEXT, r REAL)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [("a", 1.5), ("a", 2.0), ("b", 3.5)])
        connection.execute(
            "CREATE VIEW v AS SELECT k, count(*) AS n, avg(r) AS mean, max(k) || '' AS last FROM t GROUP BY k"
        )
    connection.close()
    catalog = tp.Federation({"s": f"sqlite:///{tmp_path / 's.sqlite'}"}).catalog()
    assert dict(catalog.table("v").columns) == {"k": "VARCHAR", "n": "BIGINT", "mean": "DOUBLE", "last": "VARCHAR"}


def test_party_names_ignore_case_in_sql(tmp_path: Path) -> None:
    """As all names in SQL do; two parties may not differ in case only."""
    urls = make(tmp_path, Shop="CREATE TABLE t AS SELECT 1 AS x")
    assert len(tp.Federation(urls).sql("SELECT SHOP.t.x FROM shop.t")) == 1
    with pytest.raises(tp.ConfigError, match="same name except for case"):
        tp.Federation({"a": "csv:///x", "A": "csv:///y"})


def test_a_named_shard_has_the_columns_in_the_order_of_the_table(tmp_path: Path) -> None:
    """So that the branches of a union may both say *."""
    urls = make(tmp_path, p="CREATE TABLE t AS SELECT 1 AS id, 2 AS v", q="CREATE TABLE t AS SELECT 2 AS v, 1 AS id")
    fed = tp.Federation(urls)
    assert fed.sql("SELECT * FROM q.t").columns == ["id", "v"]
    assert len(fed.sql("SELECT * FROM p.t UNION ALL SELECT * FROM q.t")) == 2


def test_split_does_not_depend_on_the_order_of_parties(tmp_path: Path) -> None:
    """One seed picks the same source rows, however the federation lists its parties."""
    urls = make(
        tmp_path,
        p="CREATE TABLE t AS SELECT i AS x FROM range(10) t(i)",
        q="CREATE TABLE t AS SELECT i AS x FROM range(12) t(i)",
    )
    chosen = []
    for order in (["p", "q"], ["q", "p"]):
        rows = tp.Federation({name: urls[name] for name in order}).sql("SELECT x FROM t").split(0.3, seed=1)[1].rows()
        chosen.append(sorted(zip(rows["t.party"].to_pylist(), rows["t.row"].to_pylist(), strict=True)))
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((None,), {}), (("SELECT x FROM t", 3), {}), (("SELECT x FROM t",), {"drop": "x"}), ((b"SELECT",), {})],
)
def test_wrong_arguments_are_query_errors(tmp_path: Path, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Not a crash of the parser."""
    fed = tp.Federation(make(tmp_path, a="CREATE TABLE t AS SELECT 1 AS x"))
    with pytest.raises(tp.QueryError):
        fed.sql(*arguments, **options)


def test_a_private_column_of_a_federation_file_is_not_told(tmp_path: Path) -> None:
    """A private column can be joined and filtered by; whatever would tell more of it is a PrivacyError."""
    [url] = make(tmp_path, a="CREATE TABLE t AS SELECT 1 AS x, 2.0 AS y").values()
    fed = tp.Federation({"a": PartyEntry(url, {"t.x": "private"})})
    assert fed.sql("SELECT y FROM t WHERE x = 1").describe().to_arrow()["mean"].to_pylist() == [2.0]
    with pytest.raises(tp.PrivacyError, match=r"party 'a', table 't', column 'x'.*private.*policy rule level"):
        fed.sql("SELECT x + y AS z FROM t").describe()
    whole = tp.Federation({"a": PartyEntry(url, {"t": "private"})})
    with pytest.raises(tp.PrivacyError, match=r"table 't', column 'y'.*private.*policy rule level"):
        whole.sql("SELECT y FROM t").describe()


def test_fingerprints_tell_whether_the_data_changed(tmp_path: Path) -> None:
    """The same data has the same fingerprint in every federation; another key, cell or row another."""
    found = []
    for number, table in enumerate(
        ["SELECT 1 AS k, 5 AS x", "SELECT 1 AS k, 5 AS x", "SELECT 2 AS k, 5 AS x", "SELECT 1 AS k, 6 AS x"]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        fed = tp.Federation(make(folder, a=f"CREATE TABLE t AS {table}", b="CREATE TABLE u AS SELECT 1 AS k"))
        relation = fed.sql("SELECT t.x FROM t JOIN u USING (k)")
        party = party_of(fed.engine, "a")
        found.append(party.table(relation.client.session, "t").snapshot.fingerprint)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_model_lives_on_without_the_variable_of_its_relation(tmp_path: Path) -> None:
    """The learner keeps what its parameters need."""
    sql = "CREATE TABLE t AS SELECT i AS x, 2.0 * i + i % 3 AS y FROM range(50) t(i)"
    fed = tp.Federation(make(tmp_path, a=sql))
    model = tp.LinearRegression().fit(fed.sql("SELECT x, y FROM t", label="y"))
    assert set(model.coef_) == {"t.x"}
