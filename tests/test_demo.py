"""The demonstration on real data: what it shows is what DuckDB says of the same data pooled."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tablepuppet.demo import LABEL, build_databases


def test_demo(tmp_path: Path) -> None:
    """The federated model equals the centralised one; joined rows are those of the pooled tables; a curve is drawn."""
    command = [sys.executable, "-m", "tablepuppet.cli", "demo", "--folder", "demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    with duckdb.connect() as pooled:
        pooled.execute(f"ATTACH '{tmp_path}/demo/airline.duckdb' AS airline (READ_ONLY)")
        weather = f"read_parquet('{tmp_path}/demo/weather_*/weather.parquet')"
        tails = [row["tailnum"] for row in _planes(tmp_path / "demo" / "registry.sqlite")]
        pooled.execute("CREATE TABLE planes (tailnum VARCHAR)")
        pooled.executemany("INSERT INTO planes VALUES (?)", [[tail] for tail in tails])
        [(joined, share)] = pooled.execute(
            "SELECT count(*), avg((arr_delay >= 15)::INT) FROM airline.flights f JOIN planes USING (tailnum) "
            f"JOIN {weather} w ON f.origin = w.origin AND f.time_hour = w.time_hour WHERE arr_delay IS NOT NULL"
        ).fetchall()
    assert shown["joined_rows"] == joined
    late = next(row for row in shown["describe"] if row["column"] == LABEL)
    assert late["mean"] == pytest.approx(share, rel=1e-12)
    federated, centralised = (shown["results"][name] for name in ("federated", "centralised"))
    assert federated["log_loss"] == pytest.approx(centralised["log_loss"], rel=1e-4)
    assert federated["auc"] == pytest.approx(centralised["auc"], abs=1e-3)
    assert federated["bytes_moved"] < centralised["bytes_moved"]
    assert (tmp_path / shown["curve"]).read_bytes().startswith(b"\x89PNG")


def test_databases_are_built_once(tmp_path: Path) -> None:
    """A folder that has them is left as it is."""
    build_databases(tmp_path / "demo")
    assert {path.name for path in tmp_path.iterdir()} == {"demo"}


def _planes(path: Path) -> list[dict[str, str]]:
    with sqlite3.connect(path) as connection:
        return [{"tailnum": row[0]} for row in connection.execute("SELECT tailnum FROM planes")]
