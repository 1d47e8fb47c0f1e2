"""Generalised linear models over the joined matrix equal those of NumPy and scikit-learn on the materialised join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.optimize import minimize
from sklearn import linear_model

import tablepuppet as tp
from tests.algebra.test_regression import design
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.relations import federation

POWER = 1.4
INVERSE: dict[str, Callable[[Array], Array]] = {
    "log": np.exp, "identity": np.array, "inverse": np.reciprocal, "logit": lambda eta: 1 / (1 + np.exp(-eta)),
}  # fmt: skip


@pytest.fixture(scope="module", params=[1, 3])
def relation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Relation:
    parties = shop(request.param, together=True)
    fed = federation(tmp_path_factory.mktemp("shop"), parties, wire="float64")
    return fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")


@pytest.fixture(scope="module")
def matrix(relation: tp.Relation) -> Any:
    return relation.matrix()


def label_of(family: str, paid: Array) -> Array:
    """A label that the family can have."""
    rng = np.random.default_rng(3)
    drawn = {
        "gaussian": paid,
        "binomial": (paid > 0.3).astype(float),
        "poisson": rng.poisson(np.exp(0.4 * paid)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(0.3 * paid)),
        "tweedie": rng.poisson(np.exp(0.3 * paid)) * rng.gamma(2.0, 1.0, len(paid)),
    }
    return drawn[family]


def known_mean(family: str, link: str, full: Array, y: Array, offset: Array) -> tuple[Array, Array, Array]:
    """(coefficients, means, the inverse of the information matrix) by Fisher scoring with dense solves."""
    power = {"gaussian": 0, "poisson": 1, "gamma": 2, "tweedie": POWER}.get(family)
    b = np.zeros(full.shape[1])
    b[0] = {"log": np.log(y.mean()), "identity": y.mean(), "inverse": 1 / y.mean()}.get(link, 0.0)
    for _ in range(200):
        eta = full @ b + offset
        mu = INVERSE[link](eta)
        slope = {"log": mu, "identity": np.ones_like(mu), "inverse": -(mu**2), "logit": mu * (1 - mu)}[link]
        variance = mu * (1 - mu) if power is None else mu**power
        information = full.T @ ((slope**2 / variance)[:, None] * full)
        b = b + 0.5 * np.linalg.solve(information, full.T @ (slope * (y - mu) / variance))
    return b, mu, np.asarray(np.linalg.inv(information), np.float64)


@pytest.mark.parametrize(
    ("family", "link", "shifted"),
    [
        ("gaussian", None, False), ("binomial", None, False), ("poisson", None, True), ("gamma", None, False),
        ("gamma", "inverse", False), ("tweedie", None, True), ("binomial", None, True),
    ],
)  # fmt: skip
def test_models_are_those_of_fisher_scoring(
    relation: tp.Relation, matrix: Any, family: Any, link: Any, shifted: bool
) -> None:
    """Coefficients to 1e-6, standard errors to 1e-5 of themselves, with and without an offset."""
    y, (full, kept) = label_of(family, relation.label()), design(matrix)
    offset = np.linspace(-0.5, 0.5, len(y)) if shifted else None
    model = tp.linalg.glm(matrix, y, family=family, link=link, power=POWER, offset=offset)
    assert model.link == (link or {"gaussian": "identity", "binomial": "logit"}.get(family, "log"))
    b, mu, inverse = known_mean(family, model.link, full, y, np.zeros(len(y)) if offset is None else offset)
    np.testing.assert_allclose(np.asarray(model.coef)[kept], b[1:], atol=1e-6)
    assert model.intercept == pytest.approx(b[0], abs=1e-6)
    np.testing.assert_allclose(model.predict(matrix, offset), mu, rtol=1e-5)
    variance = (
        mu * (1 - mu) if family == "binomial" else mu ** {"gaussian": 0, "poisson": 1, "gamma": 2}.get(family, POWER)
    )
    pearson = np.sum((y - mu) ** 2 / variance)
    dispersion = 1.0 if family in ("binomial", "poisson") else pearson / (len(y) - full.shape[1])
    assert (model.pearson, model.dispersion) == pytest.approx((pearson, dispersion), rel=1e-5)
    np.testing.assert_allclose(model.estimates.errors, np.sqrt(dispersion * np.diag(inverse)), rtol=1e-5)
    z = b / model.estimates.errors
    np.testing.assert_allclose(model.estimates.p_values, 2 * stats.norm.sf(np.abs(z)), atol=1e-5)
    assert model.deviance < model.null_deviance
    for word in ("deviance", family, "P>|z|", "o.price"):
        assert word in str(model.summary())


@pytest.mark.parametrize("family", ["poisson", "gamma", "tweedie"])
def test_models_are_scikit_learns(relation: tp.Relation, matrix: Any, family: Any) -> None:
    """Predictions to 1e-4 of themselves, which is as far as scikit-learn goes; deviances by its own formula."""
    from sklearn.metrics import mean_tweedie_deviance

    y, (full, _) = label_of(family, relation.label()), design(matrix)
    power = {"poisson": 1.0, "gamma": 2.0}.get(family, POWER)
    known = linear_model.TweedieRegressor(power=power, link="log", alpha=0.0, tol=1e-8, max_iter=2000)
    model = tp.linalg.glm(matrix, y, family=family, power=POWER)
    np.testing.assert_allclose(model.predict(matrix), known.fit(full[:, 1:], y).predict(full[:, 1:]), rtol=1e-4)
    assert model.deviance == pytest.approx(len(y) * mean_tweedie_deviance(y, model.predict(matrix), power=power))
    constant = np.full(len(y), y.mean())
    assert model.null_deviance == pytest.approx(len(y) * mean_tweedie_deviance(y, constant, power=power))


def test_an_offset_is_part_of_the_null_model(relation: tp.Relation, matrix: Any) -> None:
    """Its intercept is the best one beside the offset."""
    y = label_of("poisson", relation.label())
    offset = np.linspace(-1, 1, len(y))
    model = tp.linalg.glm(matrix, y, family="poisson", offset=offset)

    def deviance(a: Array) -> float:
        mu = np.exp(a[0] + offset)
        return float(2 * np.sum(np.where(y > 0, y * np.log(np.maximum(y, 1) / mu), 0) - y + mu))

    assert model.null_deviance == pytest.approx(minimize(deviance, [0.0]).fun, rel=1e-6)


def test_products_only(relation: tp.Relation, matrix: Any) -> None:
    """Coefficients without a Gram matrix: the same, with the same standard errors."""
    y = label_of("poisson", relation.label())
    model, known = (tp.linalg.glm(matrix, y, family="poisson", solver=solver) for solver in ("cg", "gram"))
    np.testing.assert_allclose(np.asarray(model.coef), np.asarray(known.coef), atol=1e-6)
    np.testing.assert_allclose(model.estimates.errors, known.estimates.errors, rtol=1e-6)


@pytest.mark.parametrize(
    ("y", "settings", "message"),
    [
        ([-1.0], {"family": "poisson"}, "y of family 'poisson' must be numbers from 0"),
        ([0.0], {"family": "gamma"}, "y of family 'gamma' must be numbers above 0"),
        ([2.0], {"family": "binomial"}, "y of family 'binomial' must be numbers from 0 to 1"),
        ([1.0], {"family": "cox"}, "family is one of 'gaussian', .*, not 'cox'"),
        ([1.0], {"family": "tweedie", "power": 2.0}, r"lies between 1 \(poisson\) and 2 \(gamma\)"),
        ([1.0], {"family": "poisson", "link": "logit"}, "link is one of 'log', 'identity', not 'logit'"),
        ([0.0], {"family": "poisson"}, "y is 0 in every row"),
        ([1.0], {"family": "binomial"}, "y is 1 in every row"),
        ([1.0], {"offset": [1.0]}, r"offset has shape \(1,\)"),
        ([1.0], {"tol": -1}, "tol is a number above 0, not -1"),
        ([1.0], {"max_iter": 0}, "max_iter is a whole number from 1, not 0"),
        (["a"], {}, "y must be numbers"),
    ],
)
def test_what_does_not_fit(matrix: Any, y: list[Any], settings: dict[str, Any], message: str) -> None:
    """Labels, settings, offsets: an error says what would."""
    with pytest.raises(tp.LearnError, match=message):
        tp.linalg.glm(matrix, y * matrix.shape[0], **settings)


def test_classes_that_a_column_tells_apart(tmp_path: Path) -> None:
    """Coefficients would grow without end."""
    x = np.arange(20.0)
    table = pa.table({"x": x, "y": x > 9})
    relation = federation(tmp_path, {"p": {"t": table}}, wire="float64").sql("SELECT x, y FROM t", label="y")
    with pytest.raises(tp.LearnError, match="separate the two classes exactly"):
        tp.linalg.glm(relation.matrix(), relation.label(), family="binomial")


def test_singular_models_name_their_columns(tmp_path: Path) -> None:
    """As least squares does."""
    x = np.arange(20.0)
    table = pa.table({"a": x, "b": 2 * x + 1, "y": x % 3})
    relation = federation(tmp_path, {"p": {"t": table}}, wire="float64").sql("SELECT a, b, y FROM t", label="y")
    with pytest.raises(tp.LearnError, match=r"glm: these columns depend .*: t\.a, t\.b\."):
        tp.linalg.glm(relation.matrix(), relation.label(), family="poisson")
