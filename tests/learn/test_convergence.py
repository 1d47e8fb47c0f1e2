"""Defaults reach the centralised optimum on relations made to be hard: correlated, doubled, wide, separable."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.learn.materialised import (
    JoinedTable,
    expected,
    learner,
    one_to_one,
    predictions,
    shards_of,
    side_by_side,
    solved,
)
from tests.relations import Parties, federation

every_task = pytest.mark.parametrize("classes", [None, 2, 3])
SOLVERS = ["auto", "admm"]


def in_shards(parties: Parties, shards: int) -> dict[str, dict[str, pa.Table]]:
    """Every table cut into shards of parties of their own."""
    return {
        f"{party}_{number}": {name: part}
        for party, tables in parties.items()
        for name, table in tables.items()
        for number, part in enumerate(shards_of(table, shards))
    }


def converges(
    folder: Path, parties: Parties, sql: str, classes: int | None, l2: float = 1e-6,
    inner_rounds: int | str = "auto", within: float = 1e-6, **named: Any,
) -> None:  # fmt: skip
    """Every solver says that it converged; objective and predictions are those of the direct solve; the objective
    never rose.
    """
    relation = federation(folder, parties, wire="float64").sql(sql, label="y", **named)
    table = JoinedTable(relation, parties)
    best, value = solved(table, l2, classes)
    wanted = expected(best, table.matrix, classes)
    for solver in SOLVERS:
        model = learner(classes, solver=solver, l2=l2, inner_rounds=inner_rounds).fit(relation)
        reached = [entry["objective"] for entry in model.history_]
        assert model.converged_, solver
        assert reached[-1] == pytest.approx(value, rel=1e-6, abs=1e-9), solver
        assert all(later <= earlier + 1e-9 for earlier, later in pairwise(reached)), solver
        np.testing.assert_allclose(predictions(model, relation), wanted, rtol=0, atol=within, err_msg=solver)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("tables", [2, 8])
@every_task
def test_correlated_tables(tmp_path: Path, classes: int | None, tables: int, correlation: float) -> None:
    """Where Eq. 9 as printed diverges."""
    parties, sql = side_by_side(tables, 4, 200, correlation, classes=classes)
    converges(tmp_path, parties, sql, classes)


@every_task
def test_correlated_tables_in_shards(tmp_path: Path, classes: int | None) -> None:
    """Eight tables of two shards each, whose sums add up."""
    parties, sql = side_by_side(8, 4, 200, 0.95, classes=classes)
    converges(tmp_path, in_shards(parties, 2), sql, classes)


@every_task
def test_correlated_tables_by_consensus(tmp_path: Path, classes: int | None) -> None:
    """The same without sums: predictions to 1e-5, since shards agree to a tolerance of 1e-12 in the objective."""
    parties, sql = side_by_side(8, 4, 200, 0.95, classes=classes)
    converges(tmp_path, in_shards(parties, 2), sql, classes, l2=1e-4, inner_rounds=5, within=1e-5)


@every_task
def test_duplicated_columns(tmp_path: Path, classes: int | None) -> None:
    """The same columns in four tables: only L2 decides how they share the weight."""
    parties, _ = side_by_side(4, 3, 200, 0.3, classes=classes)
    first = parties["p0"]["t0"]
    for number in (1, 2, 3):
        parties[f"p{number}"] = {f"t{number}": first.select(["id", "x0", "x1", "x2"])}
    converges(tmp_path, parties, one_to_one(4, 3), classes)


@pytest.mark.parametrize("l2", [1e-3, 1e-6])
@pytest.mark.parametrize(
    ("classes", "tables", "columns", "rows"),
    [(None, 2, 20, 25), (2, 2, 20, 25), (3, 2, 20, 25), (None, 4, 40, 100), (2, 4, 40, 100)],
)
def test_wide_tables(tmp_path: Path, classes: int | None, tables: int, columns: int, rows: int, l2: float) -> None:
    """More columns than rows, which can fit every label."""
    parties, sql = side_by_side(tables, columns, rows, 0.2, classes=classes)
    converges(tmp_path, parties, sql, classes, l2=l2)


@pytest.mark.parametrize("l2", [1e-2, 1e-4])
@pytest.mark.parametrize("classes", [2, 3])
def test_separable_labels(tmp_path: Path, classes: int, l2: float) -> None:
    """Classes that planes divide: without L2 there would be no optimum."""
    parties, sql = side_by_side(3, 3, 200, 0.3, classes=classes)
    drive = np.asarray(parties["p0"]["t0"]["x0"]) + np.asarray(parties["p1"]["t1"]["x1"])
    label = np.digitize(drive, np.quantile(drive, np.arange(1, classes) / classes))
    first = parties["p0"]["t0"]
    parties["p0"]["t0"] = first.set_column(first.schema.get_field_index("y"), "y", pa.array(label))
    converges(tmp_path, parties, sql, classes, l2=l2)


def test_rare_classes_and_many_categories(tmp_path: Path) -> None:
    """A category for every ten rows in each of three tables, and a class of one in a hundred."""
    rng = np.random.default_rng(5)
    rows = 400
    parties = {
        f"p{number}": {
            f"t{number}": pa.table(
                {"id": np.arange(rows), "x0": rng.integers(0, 40, rows), "x1": rng.exponential(size=rows)}
            )
        }
        for number in range(3)
    }
    rare = (rng.random(rows) < 0.01).astype(int)
    parties["p0"]["t0"] = parties["p0"]["t0"].append_column("y", pa.array(rare))
    converges(tmp_path, parties, one_to_one(3, 2), 2, l2=1e-4, categorical=["t0.x0", "t1.x0", "t2.x0"])
