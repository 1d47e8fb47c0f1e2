"""Every example runs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import sqlglot

import tablepuppet as tp

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NETWORKS = sorted((FOLDER / "networks").glob("*.toml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path, tmp_path: Path) -> None:
    """It ends well, with something to read."""
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("file", NETWORKS, ids=lambda path: path.stem)
def test_networks(file: Path) -> None:
    """Every file of a data set names learners with settings that they take, and tables that a party has."""
    pytest.importorskip("pytorch_tabnet", reason="networks need the extra `deep`")
    settings = tomllib.loads(file.read_text(encoding="utf-8"))
    for learner in settings["learners"].values():
        given = {name: value for name, value in learner.items() if name != "kind"}
        getattr(tp, learner["kind"]).of_plain(given).check_settings()
    tables = {table for party in settings["parties"].values() for table in party}
    used = {each.name for each in sqlglot.parse_one(settings["sql"], dialect="duckdb").find_all(sqlglot.exp.Table)}
    assert tables == used
