"""The demonstration on real data: what it shows is what DuckDB says of the same data pooled."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from tablepuppet.demo import LABEL, build_databases
from tablepuppet.demo.parties import OWNERS, write_party_files
from tablepuppet.party.report import inspect
from tests import warm
from tests.terminal import on_terminal


def test_demo(tmp_path: Path) -> None:
    """The federated model equals the centralised one; joined rows are those of the pooled tables; a curve is drawn."""
    command = [sys.executable, "-m", "tablepuppet", "demo", "--folder", "demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("writing the databases of the four owners, once: done")  # it is not silent meanwhile
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


DEMO = [sys.executable, "-m", "tablepuppet", "demo"]
PARTIES = [*DEMO, "--parties", "--json", "--folder", "demo"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demonstration has the flights of a few days."""
    folder = tmp_path_factory.mktemp("small")
    build_databases(folder / "demo")
    with duckdb.connect(str(folder / "demo" / "airline.duckdb")) as airline:
        airline.execute("DELETE FROM flights WHERE month > 1 OR day > 5")
    return folder


def test_demo_with_parties(small: Path) -> None:
    """Four processes and mutual TLS: the same model as pooled, every party's log tells of it, and none is left."""
    done = subprocess.run(PARTIES, cwd=small, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("starting a party for each owner: done")
    shown = json.loads(done.stdout)
    federated, centralised = (shown["results"][name] for name in ("federated", "centralised"))
    assert federated["log_loss"] == pytest.approx(centralised["log_loss"], rel=0.05)  # rare categories are not told
    assert federated["bytes_moved"] < centralised["bytes_moved"]  # of a few days; of the whole year far fewer
    assert {row["min"] for row in shown["describe"]} == {None}  # no value of a row: columns are not public
    for name in OWNERS:
        lines = [json.loads(line) for line in (small / "demo/services" / name / "audit.jsonl").read_text().splitlines()]
        assert {(line["caller"], line["outcome"]) for line in lines} == {("analyst", "ok")}
        assert lines[-1]["verb"] == "close"
    assert _running(small) == []


def test_parties_of_the_demo_are_checked(small: Path) -> None:
    """Its party files are good ones: airports are few keys, and no column is told as it is but for the label."""
    write_party_files(small / "demo" / "services")
    for name in OWNERS:
        (small / "demo/services" / name / "state").mkdir(mode=0o700)
        found = inspect(small / "demo/services" / name / "party.toml")
        assert (found.problems, [each for each in found.warnings if ": a key with " not in each]) == ([], [])
        columns = [column for table in found.tables for column in table.columns]
        assert {column.level for column in columns} == {"aggregate"}
        assert [column.name for column in columns if "LABELS" in column.releases] == ["arr_delay"] * (name == "airline")


def check_screen(shown: str, columns: int, *expected: str) -> None:
    """What is expected is there, each below the one before; nothing is cut or written over something else."""
    place = 0
    for text in expected:
        found = shown.find(text, place)
        assert found >= 0, f"{text!r} is not where it should be in\n{shown}"
        place = found
    for line in shown.splitlines():
        assert len(line) <= columns
        assert "…" not in line
        if line[:1] in "│┃" and line:  # a row of a table or a panel is whole
            assert line[-1] == line[0], line


@pytest.mark.parametrize("columns", [80, 110])
def test_the_demo_on_a_terminal(small: Path, columns: int) -> None:
    """Five steps of at most twelve lines each, in their order; the last line says what they have come to, and the
    command of the first works as typed.
    """
    code, shown = on_terminal([*DEMO, "--folder", "demo"], columns, 40, small)
    assert code == 0, shown
    check_screen(
        shown, columns, "Will a flight arrive late?",
        "1 Four owners, four databases", "│ weather_queens │", "Their columns, with types:",
        "2 One query over all of them", "WHERE f.arr_delay IS NOT NULL",
        "joined rows of 16 features", "3 The plan", "A training round moves", "4 Statistics",
        "│ built ", "5 Learn", "LogisticRegression: converged after", "│ federated   │", "│ centralised │",
        "The learning curve is in demo/curve.png; the databases stay there.",
    )  # fmt: skip
    parts = re.split(r"^\d (?=[A-Z])", shown, flags=re.MULTILINE)[1:]
    steps = [[line for line in part.rstrip().splitlines() if not line.startswith("warning: ")] for part in parts]
    assert [len(step) <= 12 for step in steps] == [True] * 5
    assert re.fullmatch(
        r"(Same model: AUC 0\.\d{4} = 0\.\d{4}|Nearly the same model: AUC 0\.\d{4} and 0\.\d{4}); "
        r"\S+ MB moved, not \S+",
        steps[-1][-1],
    )
    command = steps[0][steps[0].index("Their columns, with types:") + 1 :]
    typed = " ".join("".join(command).split())  # the terminal itself may break it
    assert typed.endswith("-m tablepuppet catalog demo/federation.toml")
    done = subprocess.run(typed, shell=True, cwd=small, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "weather_queens" in done.stdout


def test_the_demo_in_detail(small: Path) -> None:
    """With `--verbose` all columns, the whole plan and all statistics are printed; a pipe gets results only."""
    done = warm.run([*DEMO, "--folder", "demo", "--verbose"], cwd=small, timeout=300)
    assert done.returncode == 0, done.stderr
    check_screen(
        done.stdout, 120, "sched_dep_time", "scan at weather_queens", "Joined rows: numbers", "│ visib ",
        "Joined rows: categories", "│ manufacturer ", "MB moved, not",
    )  # fmt: skip
    assert "training on the pooled join, to compare: done" in done.stderr


def test_the_demo_with_parties_on_a_narrow_terminal(small: Path) -> None:
    """What does not fit comes below; both results, what each party has sent and the closing lines are there."""
    code, shown = on_terminal([*DEMO, "--parties", "--folder", "demo"], 60, 24, small)
    assert code == 0, shown
    check_screen(
        shown, 60, "1 Four owners", "2 One query", "3 The plan", "4 Statistics", "5 Learn",
        "federated   │", "centralised │", "6 What crossed the wire, by mutual TLS", "│ weather_queens │",
        "The parties have ended.", "certificates stay in", "The learning curve is in demo/curve.png;", "MB moved,",
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_no_party_is_left_behind(small: Path, how: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end the parties too."""
    (small / "demo/services/airline").mkdir(parents=True, exist_ok=True)
    audit = small / "demo/services/airline/audit.jsonl"
    audit.unlink(missing_ok=True)
    analyst = warm.start(PARTIES, cwd=small, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not audit.exists() and analyst.poll() is None:
        time.sleep(0.05)
    assert len(_running(small)) == len(OWNERS)
    analyst.send_signal(how)
    _, said = analyst.communicate(timeout=120)
    assert analyst.returncode == 128 + how, said
    assert said.splitlines()[-1] == "stopped"
    assert "Traceback" not in said
    assert _running(small) == []


def test_a_party_without_its_database(small: Path) -> None:
    """It serves, and says that the database is not there; the demonstration ends, and with it all parties."""
    (small / "demo/registry.sqlite").rename(small / "away")
    try:
        done = warm.run(PARTIES, cwd=small, timeout=300)
    finally:
        (small / "away").rename(small / "demo/registry.sqlite")
    assert done.returncode == 1
    assert "party 'registry': database not available, reference" in done.stderr
    assert "error: " in done.stderr
    assert _running(small) == []


def _running(folder: Path) -> list[int]:
    """The processes that serve parties of a folder's demonstration."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            serves = b"party\0serve\0demo/services/" in (process / "cmdline").read_bytes()
            if serves and os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
        except OSError:  # it has ended
            continue
    return found


def _planes(path: Path) -> list[dict[str, str]]:
    with sqlite3.connect(path) as connection:
        return [{"tailnum": row[0]} for row in connection.execute("SELECT tailnum FROM planes")]
