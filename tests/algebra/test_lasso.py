"""Paths of the lasso over the joined matrix equal scikit-learn's on the materialised join."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import linear_model

import tablepuppet as tp
from tests.learn.materialised import JOIN, PLAIN, shop
from tests.relations import federation, record_wire


@pytest.fixture(scope="module", params=[1, 3])
def relation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Relation:
    parties = shop(request.param, together=True)
    fed = federation(tmp_path_factory.mktemp("shop"), parties, wire="float64")
    return fed.sql(f"SELECT {PLAIN}, o.paid {JOIN}", label="paid")


@pytest.fixture(scope="module")
def matrix(relation: tp.Relation) -> Any:
    return relation.matrix()


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
def test_paths_are_scikit_learns(relation: tp.Relation, matrix: Any, l1_ratio: float) -> None:
    """Penalties to 1e-9, coefficients to 1e-6; the first model has no coefficient, later ones have more."""
    y, dense = relation.label(), matrix @ np.eye(matrix.shape[1])
    path = tp.linalg.lasso(matrix, y, alphas=20, l1_ratio=l1_ratio)
    alphas, coefs, _ = linear_model.enet_path(
        dense - dense.mean(axis=0), y - y.mean(), l1_ratio=l1_ratio, alphas=20, tol=1e-12, max_iter=100_000
    )
    np.testing.assert_allclose(path.alphas, alphas, rtol=1e-9)
    np.testing.assert_allclose(path.coefs, coefs.T, atol=1e-6)
    sizes = np.count_nonzero(path.coefs, axis=1)
    assert sizes[0] == 0
    assert sizes[-1] == matrix.shape[1]
    known = linear_model.ElasticNet(path.alphas[9], l1_ratio=l1_ratio, tol=1e-12, max_iter=100_000).fit(dense, y)
    model = path.at(1.01 * path.alphas[9])
    assert model.alpha == path.alphas[9]
    assert model.intercept == pytest.approx(known.intercept_, abs=1e-6)
    np.testing.assert_allclose(model.predict(relation.matrix(like=model)), known.predict(dense), atol=1e-6)


def test_a_path_takes_two_trips(relation: tp.Relation, matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many penalties there are; those that are given are sorted."""
    y, messages = relation.label(), record_wire(monkeypatch)
    path = tp.linalg.lasso(matrix, y, alphas=[0.01, 0.1])
    assert max(Counter(message.party for message in messages if message.last).values()) == 2
    assert path.alphas.tolist() == [0.1, 0.01]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alphas": 0}, "alphas are numbers above 0, or how many"),
        ({"alphas": [0.1, -1]}, "alphas are numbers above 0"),
        ({"alphas": "many"}, "alphas are numbers above 0"),
        ({"l1_ratio": 0.0}, r"l1_ratio is a number above 0, not 0\.0"),
        ({"l1_ratio": 1.5}, "l1_ratio is at most 1"),
        ({"eps": 1.0}, "eps below 1"),
        ({"label": np.ones(2)}, r"y has shape \(2,\)"),
        ({"label": None}, "no column has to do with y"),
    ],
)
def test_what_does_not_fit(matrix: Any, settings: dict[str, Any], message: str) -> None:
    """Settings and labels: an error says what would."""
    label = settings.get("label", np.arange(float(matrix.shape[0])))
    others = {name: value for name, value in settings.items() if name != "label"}
    with pytest.raises(tp.LearnError, match=f"lasso: .*{message}"):
        tp.linalg.lasso(matrix, np.zeros(matrix.shape[0]) if label is None else label, **others)


def test_zeros_are_zeros(tmp_path: Path) -> None:
    """Of two opposite categories at most one has a coefficient; predictions are scikit-learn's to 1e-6."""
    rng = np.random.default_rng(0)
    price, member = rng.normal(size=300), rng.choice(["no", "yes"], 300)
    paid = 3 * price + 0.3 * (member == "yes") + rng.normal(size=300)
    tables = {"a": {"orders": pa.table({"price": price, "member": member, "paid": paid})}}
    relation = federation(tmp_path, tables, wire="float64").sql("SELECT price, member, paid FROM orders", label="paid")
    matrix, y = relation.matrix(), relation.label()
    centred = (matrix - matrix.means) @ np.eye(matrix.shape[1])
    path = tp.linalg.lasso(matrix, y, alphas=50)
    _, known, _ = linear_model.enet_path(centred, y - y.mean(), l1_ratio=1.0, alphas=path.alphas, tol=1e-12)
    assert np.all(np.count_nonzero(path.coefs[:, 1:], axis=1) <= 1)
    np.testing.assert_allclose(centred @ path.coefs.T, centred @ known, atol=1e-6)
    assert np.abs(path.coefs[path.coefs != 0]).min() > 1e-8


def test_penalties_outside_of_the_path(relation: tp.Relation, matrix: Any) -> None:
    """Its ends are inside; others are refused, since no model of theirs was fitted."""
    path = tp.linalg.lasso(matrix, relation.label(), alphas=[0.1, 0.01])
    assert [path.at(alpha).alpha for alpha in (0.1, 0.01)] == [0.1, 0.01]
    for alpha in (0.2, 0.001):
        with pytest.raises(tp.LearnError, match=r"the path has penalties from 0\.01 to 0\.1, not"):
            path.at(alpha)
