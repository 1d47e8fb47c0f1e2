"""Forward selection and correlations equal brute force and NumPy on the materialised join."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.algebra.test_regression import design
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.relations import federation, record_wire


@pytest.fixture(scope="module", params=[1, 3])
def relation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Relation:
    parties = shop(request.param, together=True)
    fed = federation(tmp_path_factory.mktemp("shop"), parties, wire="float64")
    return fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")


@pytest.fixture(scope="module")
def matrix(relation: tp.Relation) -> Any:
    return relation.matrix()


def criterion(full: Array, y: Array, places: list[int]) -> float:
    """Akaike's, of a least-squares fit with an intercept and some columns."""
    columns = full[:, [0, *places]]
    squares = np.sum((y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]) ** 2)
    return float(len(y) * (np.log(2 * np.pi * squares / len(y)) + 1) + 2 * columns.shape[1])


def test_selection_is_that_of_brute_force(relation: tp.Relation, matrix: Any) -> None:
    """Each column is the best of all at its turn, until none lowers the criterion; the fit is least squares on them."""
    y, (full, kept) = relation.label(), design(matrix)
    model = tp.linalg.steplm(matrix, y)
    chosen: list[int] = []
    best = criterion(full, y, chosen)
    criteria = [best]
    while left := [place for place in range(1, full.shape[1]) if place not in chosen]:
        found = min(left, key=lambda place: criterion(full, y, [*chosen, place]))
        if criterion(full, y, [*chosen, found]) >= best:
            break
        chosen.append(found)
        best = criterion(full, y, chosen)
        criteria.append(best)
    assert 0 < len(chosen) < len(kept)
    assert model.selected == [matrix.columns[kept[place - 1]] for place in chosen]
    np.testing.assert_allclose(model.criteria, criteria, rtol=1e-9)
    assert model.aic == pytest.approx(best)
    known = np.linalg.lstsq(full[:, [0, *chosen]], y, rcond=None)[0]
    np.testing.assert_allclose([model.coef[name] for name in model.selected], known[1:], atol=1e-8)
    assert model.intercept == pytest.approx(known[0])
    assert np.count_nonzero(model.coef) == len(chosen)
    np.testing.assert_allclose(model.predict(matrix), full[:, [0, *chosen]] @ known, atol=1e-8)
    assert model.selected[0] in str(model.summary())


def test_categories_are_compared_with_all_that_were_not_selected(tmp_path: Path) -> None:
    """Of a group of which one column was selected, the others are the reference; groups without one are not named."""
    rng = np.random.default_rng(0)
    kind, colour = np.repeat(["a", "b", "c"], (30, 20, 10)), rng.choice(["red", "blue"], 60)
    table = pa.table({"kind": kind, "colour": colour, "y": (kind == "c") + 0.01 * rng.normal(size=60)})
    relation = federation(tmp_path, {"p": {"t": table}}, wire="float64").sql("SELECT kind, colour, y FROM t", label="y")
    x = relation.matrix()
    model = tp.linalg.steplm(x[:, "kind"], relation.label())
    others = [name for name in x[:, "kind"].columns if name not in model.selected]
    assert len(model.selected) == 1
    assert f"Categories are compared with {' or '.join(others)}" in " ".join(str(model.summary()).split())
    assert "colour" not in str(tp.linalg.steplm(x, relation.label()).summary()).partition("compared with")[2]


def test_selection_takes_three_trips(relation: tp.Relation, matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many columns are tried."""
    y, messages = relation.label(), record_wire(monkeypatch)
    tp.linalg.steplm(matrix, y)
    assert max(Counter(message.party for message in messages if message.last).values()) == 3


def test_columns_that_depend_on_each_other(tmp_path: Path) -> None:
    """The second of two is never added; nor is one for a label that nothing explains."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 50))
    table = pa.table({"a": x, "b": 3 * x - 1, "y": x + 0.1 * noise, "same": np.full(50, 2.0)})
    fed = federation(tmp_path, {"p": {"t": table}}, wire="float64")
    relation = fed.sql("SELECT a, b, y FROM t", label="y")
    assert len(tp.linalg.steplm(relation.matrix(), relation.label()).selected) == 1
    assert tp.linalg.steplm(relation.matrix(), np.full(50, 2.0)).selected == []
    with pytest.raises(tp.LearnError, match=r"steplm: y has shape \(3,\)"):
        tp.linalg.steplm(relation.matrix(), np.ones(3))


def test_correlations_are_numpys(matrix: Any) -> None:
    """Within and across tables, to 1e-12."""
    dense = matrix @ np.eye(matrix.shape[1])
    np.testing.assert_allclose(tp.linalg.cor(matrix), np.corrcoef(dense.T), atol=1e-12)


def test_correlations_of_few_rows(tmp_path: Path) -> None:
    """One row has none; a column with one value in these rows has NaN."""
    fed = federation(tmp_path, {"p": {"t": pa.table({"a": [1.0, 2.0, 3.0], "b": [1.0, 1.0, 4.0]})}}, wire="float64")
    whole = fed.sql("SELECT a, b FROM t").matrix()
    found = tp.linalg.cor(fed.sql("SELECT a, b FROM t WHERE a < 3").matrix(like=whole))
    assert np.isnan(found).tolist() == [[False, True], [True, True]]
    with pytest.raises(tp.LearnError, match="two joined rows or more, and X has 1"):
        tp.linalg.cor(fed.sql("SELECT a, b FROM t WHERE a < 2").matrix(like=whole))
