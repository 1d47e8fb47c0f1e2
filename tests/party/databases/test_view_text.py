"""Views that make one row of several are found by their definitions."""

from __future__ import annotations

import pytest

from tablepuppet.party.databases.view_text import aggregating

AGGREGATES = [
    "SELECT a, sum(b) FROM t GROUP BY a",
    "SELECT count(*) FROM t",
    "select Max (b) from t",
    "SELECT DISTINCT a FROM t",
    "SELECT a, row_number() OVER (ORDER BY b) AS n FROM t",
    "SELECT a FROM t ORDER BY b LIMIT 3",
    "SELECT a FROM t UNION SELECT a FROM u",
    "SELECT a FROM t EXCEPT SELECT a FROM u",
]
PLAIN = [
    "SELECT a, b + 1 AS c FROM t WHERE a IS DISTINCT FROM b",
    "SELECT t.count, 'GROUP BY' AS words FROM t",
    "SELECT a FROM t UNION ALL SELECT a FROM u",
    "SELECT a FROM t JOIN u USING (id) -- DISTINCT",
]


@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "sqlite", "mysql"])
def test_definitions_that_aggregate(dialect: str) -> None:
    """Aggregates, groups, windows and whatever compares rows count; other words do not, nor those in a text."""
    for select in AGGREGATES:
        assert aggregating({"v": f"CREATE VIEW v AS {select}"}, dialect) == {"v"}, select
    for select in PLAIN:
        assert not aggregating({"v": f"CREATE VIEW v AS {select}"}, dialect), select
