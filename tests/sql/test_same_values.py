"""Every function and operator that is allowed, in random expressions: a party computes what DuckDB makes of the text.

The arguments of a function are drawn for each of its signatures in DuckDB's own list: columns, literals, and
expressions of them. What DuckDB itself refuses, or fails on, is left out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

import tablepuppet as tp
from tablepuppet.errors import QueryError
from tablepuppet.sql.catalog import Catalog, Shard
from tablepuppet.sql.expression import FUNCTIONS
from tablepuppet.sql.parse import parse
from tests.sql.test_advice import rows_of

COLUMNS = {
    "i": "INTEGER", "j": "BIGINT", "x": "DOUBLE", "f": "FLOAT", "d": "DECIMAL(8,2)", "s": "VARCHAR", "u": "VARCHAR",
    "unit": "VARCHAR", "b": "BOOLEAN", "dt": "DATE", "ts": "TIMESTAMP", "tz": "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip
ROWS = """
(1, 2, 0.1, 0.1, 1.50, 'abc', 'abd', 'month', true, '2024-02-29', '2024-02-29 23:59:59.999999', '2024-02-29 23:59+05'),
(-3, 3, -2.5, -2.5, -0.01, '  aBa ', '', 'year', false, '2023-01-01', '1969-12-31 00:00:00.5', '2023-01-01 00:00+00'),
(NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'day', NULL, NULL, NULL, NULL),
(2, 1, 4, 4, 999.99, 'it''s', 'é😀', 'week', true, '2001-01-01', '2024-12-31 12:00:00', '2024-07-01 12:00-04'),
(7, 7, 30, 30, 2.5, 'a%b', 'ABC', 'hour', true, '2024-12-30', '2000-02-29 00:00:00', '2000-01-01 00:00+00')
"""
GIVEN = {
    "number": ("i", "j", "x", "d", "2", "0.5", "-i", "j + 1", "abs(x)"),
    "text": ("s", "u", "unit", "'a'", "'month'", "s || u", "upper(u)", "'%Y'", "'Europe/Berlin'"),
    "time": ("dt", "ts", "tz", "DATE '2024-06-01'", "ts + INTERVAL 1 DAY", "INTERVAL '2 hours'"),
    "truth": ("b", "i > 1", "s IS NULL", "i IN (1, 2)", "NOT b"),
}
OPERATORS = {
    "number": ("+", "-", "*", "/", "//", "%", "^", "**", "&", "|", "<<"),
    "text": ("||",),
    "truth": ("AND", "OR", "=", "<>", "<", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"),
}
COMPARED = (
    "{n} < {n}", "{n} IN ({n}, 2)", "{n} NOT IN (1, {n})", "{n} BETWEEN 1 AND {n}", "{n} NOT BETWEEN {n} AND 5",
    "{n} IS NOT NULL", "{s} LIKE {s}", "{s} NOT LIKE 'a%'", "{s} ILIKE 'A%'", "{s} GLOB 'a*'", "{s} SIMILAR TO 'a.*'",
    "{s} ~ 'a'", "{s} < {s}", "{t} IS NULL", "{t} IS NOT TRUE", "NOT {t}", "{s} NOT IN ('abc', {s})",
)  # fmt: skip
FORM = {
    "cast": ("CAST({n} AS VARCHAR)", "CAST({n} AS INTEGER)", "{n}::DECIMAL(12, 3)", "{n}::DOUBLE ^ 2", "dt::TIMESTAMP"),
    "try_cast": ("TRY_CAST({s} AS INTEGER)", "TRY_CAST({s} AS DATE)"),
    "coalesce": ("coalesce({n}, 3)", "coalesce({s}, {s}, 'x')"),
    "nullif": ("nullif({n}, {n})", "nullif({s}, 'abc')"),
    "if": ("if({t}, {n}, {n})",),
    "ifnull": ("ifnull({n}, 0)",),
    "date": ("date(ts)", "date({s})"),
    "extract": ("extract(dow FROM dt)", "extract(year FROM ts) - 1", "extract('month' FROM tz)"),
    "split_part": ("split_part({s}, 'b', 1)",),
    "substring": ("substring({s} FROM 2 FOR 2)", "substring({s} FROM 2)"),
    "trim": ("trim(BOTH 'a' FROM {s})", "trim(LEADING FROM {s})", "trim(TRAILING 'c' FROM {s})"),
    "position": ("position('b' IN {s})",),
    "case": ("CASE WHEN {t} THEN {n} ELSE {n} END", "CASE {n} WHEN 1 THEN {s} END"),
    "zone": ("ts AT TIME ZONE 'Europe/Berlin'", "tz AT TIME ZONE 'UTC' + INTERVAL (i) DAY"),
    "hamming": ("hamming(s, s)",),
    "strptime": ("strptime('31/1/24', '%d/%-m/%y')", "try_strptime({s}, '%Y')"),
    "bucket": (
        "time_bucket(INTERVAL '1 day', tz, 'Europe/Berlin')",
        "time_bucket(INTERVAL 1 DAY, ts, DATE '2024-01-01')",
    ),
    "unit": ("date_trunc(unit, ts)", "date_diff(unit, dt, DATE '2024-06-01')", "date_part(unit, ts)"),
    "lost": ("jaro_winkler_similarity({s}, {s}, 0.5)", "log2(abs({n}) + 1)", "log(3, abs({n}) + 1)"),
    "@": ("@{n}", "-{n} ^ 2", "- -{n}", "~i"),
}
KINDS = {
    "VARCHAR": "text", "BOOLEAN": "truth", "DATE": "time", "TIME": "time", "INTERVAL": "time", "ANY": "number",
}  # fmt: skip
UNDECIDED = (
    "could be read in two ways",
    "in a simpler way",
    "cannot be a feature",
    "how long the text becomes",
    "letters",
    "a constant",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[duckdb.DuckDBPyConnection, tp.Federation]]:
    """The same small table in DuckDB and at a party."""
    path = tmp_path_factory.mktemp("party") / "p.duckdb"
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    for place in (str(path), ":memory:"):
        connection = duckdb.connect(place)
        connection.execute(f"SET TimeZone = 'UTC'; CREATE TABLE t ({columns}); INSERT INTO t VALUES {ROWS}")
        if place != ":memory:":
            connection.close()
    with connection:
        yield connection, tp.Federation({"p": f"duckdb:///{path}"})


def filled(draw: random.Random, template: str) -> str:
    """A template with arguments in its places."""
    names = {"{n}": "number", "{s}": "text", "{t}": "truth"}
    while place := next((each for each in names if each in template), None):
        template = template.replace(place, draw.choice(GIVEN[names[place]]), 1)
    return template


def calls(draw: random.Random, each: int) -> Iterator[str]:
    """Calls of all functions, by their signatures."""
    columns = "function_name, parameter_types, varargs"
    rows = duckdb.execute(
        f"SELECT {columns} FROM duckdb_functions() WHERE function_type = 'scalar' ORDER BY ALL"
    ).fetchall()
    for name in sorted(FUNCTIONS):
        signatures = [(types, more) for known, types, more in rows if known == name]
        for types, more in draw.sample(signatures, min(each, len(signatures))) + draw.choices(signatures, k=2):
            given = [*types, *([more] * draw.randint(0, 2) if more else [])]
            kinds = [KINDS.get(kind, "time" if kind.startswith("TIMESTAMP") else "number") for kind in given]
            kinds = [draw.choice(list(GIVEN)) if draw.random() < 0.1 else kind for kind in kinds]
            yield f"{name}({', '.join(draw.choice(GIVEN[kind]) for kind in kinds)})"


def chains(draw: random.Random, count: int) -> Iterator[str]:
    """Operators side by side, mostly without brackets."""
    for _ in range(count):
        kind = draw.choice(list(OPERATORS))
        whole = draw.choice(GIVEN[kind])
        for _ in range(draw.randint(1, 4)):
            part = draw.choice(GIVEN[kind]) if draw.random() < 0.6 else filled(draw, draw.choice(COMPARED))
            part = f"({part})" if draw.random() < 0.2 else part
            whole = f"{whole} {draw.choice(OPERATORS[kind])} {part}"
        yield f"({whole}) = {draw.choice(GIVEN[kind])}" if draw.random() < 0.1 else whole


def evaluated(connection: duckdb.DuckDBPyConnection, expressions: list[str]) -> dict[str, list[Any]]:
    """What DuckDB makes of each expression; those that it refuses, or fails on, are left out."""
    found = {}
    for text in expressions:
        try:
            found[text] = [
                row["it"] for row in connection.sql(f"SELECT {text} AS it FROM t").to_arrow_table().to_pylist()
            ]
        except duckdb.Error:
            continue
    return found


@pytest.mark.parametrize("seed", [0])
def test_parties_compute_what_duckdb_does(table: tuple[duckdb.DuckDBPyConnection, tp.Federation], seed: int) -> None:
    """Types and values are those of the text as it was written, in DuckDB."""
    connection, fed = table
    draw = random.Random(seed)
    forms = [filled(draw, template) for templates in FORM.values() for template in templates for _ in range(2)]
    compared = [filled(draw, template) for template in COMPARED for _ in range(2)]
    texts = list(dict.fromkeys([*calls(draw, 2), *forms, *compared, *chains(draw, 200)]))
    expected = evaluated(connection, texts)
    catalog = Catalog([Shard("p", "t", COLUMNS, 5)])
    taken, refused = [], Counter[str]()
    for text in expected:
        try:
            parse(f"SELECT {text} AS it FROM t", catalog)
            taken.append(text)
        except QueryError as error:
            [reason] = [each for each in UNDECIDED if each in str(error)] or [f"{text}: {error}"]
            refused[reason] += 1
    assert set(refused) <= set(UNDECIDED)
    assert len({text.partition("(")[0] for text in taken} & FUNCTIONS) > 0.8 * len(FUNCTIONS)
    assert refused["could be read in two ways"] < len(taken) / 20
    for start in range(0, len(taken), 100):
        chosen = taken[start : start + 100]
        relation = fed.sql("SELECT " + ", ".join(f"{text} AS c{n}" for n, text in enumerate(chosen)) + " FROM t")
        rows = rows_of(relation)
        assert {t: repr(rows[f"c{n}"].to_pylist()) for n, t in enumerate(chosen)} == {
            t: repr(expected[t]) for t in chosen
        }
