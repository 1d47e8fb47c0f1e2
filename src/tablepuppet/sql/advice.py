"""What a refusal advises. Each advice returns what was asked for, or says that there is no way yet.

A test tries every one: `tests/sql/test_advice.py` runs what is advised and compares it with DuckDB over the raw tables.
"""

from __future__ import annotations

NO_WAY = "there is no way yet"

VIEW = "compute the value in a view at the party"
"""For what depends on one row only: each shard's party publishes the same view."""

AGGREGATING_VIEW = (
    "compute it in a view at the party, if that has all rows of a group; over several shards each view would sum up "
    f"its own rows only, and {NO_WAY}"
)

IN_SUBQUERY = (
    "aggregate one table in a subquery of FROM: (SELECT key, count(*) AS n FROM t GROUP BY key) AS name; for other "
    f"groups publish a view at the party that has all their rows, else {NO_WAY}"
)

AS_JOIN = (
    "between ANDs write IN, = ANY and EXISTS as JOIN (SELECT DISTINCT key FROM t) AS name, NOT EXISTS as LEFT JOIN t "
    "with WHERE t.key IS NULL, an aggregate as LEFT JOIN (SELECT key, count(*) AS n FROM t GROUP BY key) AS name. Such "
    f"a subquery is over one shard; over several JOIN t, if it has its key once at most; for all else {NO_WAY}"
)

INLINED = (
    "write its tables and conditions into this SELECT, if it does not aggregate or compare rows; else publish it as a "
    "view at the party that has all its rows"
)

PUBLISHED = "FROM takes published tables only, as table or party.table; a party can publish other rows as a view"

TWO_TABLES = (
    f"{NO_WAY} to compute with columns of two tables. A linear model weighs columns that are selected by themselves: "
    "that replaces a sum or difference of features, but no product, no ratio and no label"
)

JOINS = {
    "SEMI": "JOIN (SELECT DISTINCT key FROM t) AS name returns the same over one shard, a plain JOIN where the right "
    f"table has its key once at most; else {NO_WAY}",
    "ANTI": "write LEFT JOIN t with WHERE t.key IS NULL, which keeps the rows without a partner",
}
"""By the word before JOIN; for all others there is no way yet."""

CLAUSES = {
    "with_": ("WITH", "WITH stands before the whole statement; write it there"),
    "distinct": (
        "DISTINCT",
        "SELECT DISTINCT compares values; write it in a subquery of FROM over one table, or publish it as a view at "
        f"the party that has all its rows, else {NO_WAY}",
    ),
    "group": ("GROUP", f"GROUP BY is not supported: the learner works on rows; {IN_SUBQUERY}"),
    "having": ("HAVING", f"HAVING is not supported; {IN_SUBQUERY}"),
    "qualify": ("QUALIFY", f"QUALIFY is not supported; {AGGREGATING_VIEW}"),
    "windows": ("WINDOW", f"WINDOW is not supported; {AGGREGATING_VIEW}"),
    "order": (
        "ORDER",
        "ORDER BY is not supported: joined rows have an order of their own, see rows(); leave it out, the rows are the "
        "same",
    ),
    "limit": ("LIMIT", f"LIMIT is not supported, and {NO_WAY}; for fewer rows use WHERE, or split()"),
    "offset": ("OFFSET", f"OFFSET is not supported, and {NO_WAY}; for fewer rows use WHERE, or split()"),
    "sample": ("SAMPLE", f"sampling is not supported in SQL, and {NO_WAY}; split() draws a share of the rows"),
}
"""Clauses of a SELECT beyond FROM, JOIN and WHERE, by sqlglot's name: the keyword, and the refusal."""
