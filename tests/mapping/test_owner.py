"""`JoinedRows` is the only owner of the joined rows: nobody else sees an index, and what it is sent could travel."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.mapping.joined_rows import JoinedRows

PACKAGE = Path(tp.__file__).parent
ROOMS = ("operators", "prep", "algebra", "learn", "cli", "demo")
FILES = ("baselines.py",)
INSIDE = {"index", "scatter_sum", "mapping"}  # of a mapping and its tables
SIZE = 60  # rows of a table
SQL = "SELECT a.x, a.kind, b.y, a.z {} FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"


def reaches_inside(path: Path) -> Iterator[str]:
    """Where a module uses what belongs to a mapping, as text for people."""
    tree, where = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(PACKAGE)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}  # such as a list's own index
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in INSIDE
            and not (node.attr == "index" and id(node) in called)
        ):
            yield f"{where}:{node.lineno}: .{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == "tablepuppet.mapping.table_mapping":
            inside = {name.name for name in node.names} & {"MappedTable", "TableMapping"}
            yield from (f"{where}:{node.lineno}: {name}" for name in inside)


def test_nobody_else_uses_the_index() -> None:
    """Above mapping/ there is no index of joined rows, nor a mapping that has one; `rel.mapping` is for users."""
    paths = [PACKAGE / file for file in FILES] + [path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    assert [found for path in paths for found in reaches_inside(path)] == []


@pytest.fixture
def pairs(tmp_path: Path) -> tp.Federation:
    """Three small tables, of which every row of one meets many of the others: far more joined rows than base rows."""
    columns = {
        "a": "i % 3 AS k, (i * 37 % 101) / 101.0 AS x, i % 4 AS kind, i % 7 AS z, i % 2 = 0 AS two, i % 3 AS three",
        "b": "i % 3 AS k, (i * 31 % 97) / 97.0 AS y",
        "c": "i % 3 AS k",
    }
    for name, listed in columns.items():
        with duckdb.connect(tmp_path / f"{name}.duckdb") as database:
            database.execute(f"CREATE TABLE {name} AS SELECT {listed} FROM range({SIZE}) t(i)")
    return tp.Federation({name: f"duckdb://{tmp_path}/{name}.duckdb" for name in columns})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every function that joined rows are sent, with its arguments."""
    sizes: list[int] = []
    depth = [0]

    def watched(name: str, place: int) -> None:
        run: Any = getattr(JoinedRows, name)

        def watch(rows: JoinedRows, *given: Any, **named: Any) -> Any:
            depth[0] += 1
            try:
                if depth[0] == 1:  # what joined rows send to themselves stays with them
                    sizes.append(len(pickle.dumps((given[place:], named))))
                return run(rows, *given, **named)
            finally:
                depth[0] -= 1

        monkeypatch.setattr(JoinedRows, name, watch)

    for name, place in dict.fromkeys(("each", "total", "at_once", "with_labels"), 0).items():
        watched(name, place)
    for name in ("some", "one_by_one", "sums_at"):
        watched(name, 1)
    return sizes


SOLVERS = [(learner, solver) for learner in ("Linear", "Logistic", "MLP") for solver in ("admm", "lbfgs", "sgd")]


@pytest.mark.parametrize(("learner", "solver"), SOLVERS)
@pytest.mark.parametrize("classes", ["two", "three"])
def test_solvers_send_small_functions(
    pairs: tp.Federation, sent: list[int], learner: str, solver: str, classes: str
) -> None:
    """Whatever a solver asks of joined rows can be pickled, and is smaller than a column of them."""
    label = "z" if learner == "Linear" else f"{classes} AS label"
    relation = pairs.sql(SQL.format("" if learner == "Linear" else f", a.{label}"), label=label.split()[-1])
    made: Any = {
        "Linear": tp.LinearRegression, "Logistic": tp.LogisticRegression, "MLP": tp.MLPClassifier,
    }[learner]  # fmt: skip
    made(solver=solver, rounds=2).fit(relation).evaluate(relation)
    check_small(sent, relation)


@pytest.mark.parametrize("learner", ["SplitNN", "FedOnce", "TabVFL"])
def test_split_learners_send_small_functions(pairs: tp.Federation, sent: list[int], learner: str) -> None:
    """So do learners with a network over embeddings: it travels, and nothing that grows with the joined rows."""
    relation, largest = pairs.sql(SQL.format(""), label="z"), []
    for side in (relation.split(0.75)[0], relation):
        getattr(tp, f"{learner}Regressor")(epochs=1).fit(side)
        largest.append(max(sent))
        sent.clear()
    assert largest[1] - largest[0] < 8 * 32 * 3 * SIZE  # embeddings of base rows


def test_noise_and_programs_send_small_functions(pairs: tp.Federation, sent: list[int]) -> None:
    """So do fits with noise, programs over the matrix, and statistics of columns of two tables."""
    relation = pairs.sql(SQL.format(""), label="z")
    tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=5.0)).fit(relation)
    tp.linalg.kmeans(relation.matrix(), k=3)
    relation.correlation()
    check_small(sent, relation)


def check_small(sent: list[int], relation: tp.Relation) -> None:
    column, base = 8 * len(relation), 8 * 3 * SIZE
    assert sent
    assert max(sent) < column / 4
    assert np.median(sent) < 4 * base
