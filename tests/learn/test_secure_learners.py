"""Learners with secure sums find the models that they find without, in every solver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.jobs import make_learner
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.relations import federation

SECURE = tp.Privacy(secure_sum=True)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(3, together=True), wire="float64")


def parameters(model: Any) -> Array:
    """All of them, in one array."""
    return np.concatenate([np.ravel(theta) for theta in model._model.parameters().values()])


def both(fed: tp.Federation, make: type, label: str, **settings: Any) -> tuple[Any, Any]:
    """(the model without secure sums, the one with), over sessions of their own."""
    relations = [fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label) for _ in range(2)]
    plain, secure = (make(privacy=each, **settings) for each in (None, SECURE))
    return plain.fit(relations[0]), secure.fit(relations[1])


@pytest.mark.parametrize("reduce", [True, False], ids=["reduced", "not reduced"])
@pytest.mark.parametrize(
    ("make", "label", "settings"),
    [
        (tp.LinearRegression, "paid", {}),
        (tp.LinearRegression, "paid", {"solver": "admm"}),
        (tp.LinearRegression, "paid", {"solver": "sgd", "rounds": 3, "batch_size": 40}),
        (tp.LogisticRegression, "returned", {}),
        (tp.LogisticRegression, "grade", {}),
        (tp.LogisticRegression, "grade", {"solver": "sgd", "rounds": 3, "batch_size": 40}),
    ],
)
def test_linear_models_are_the_same(fed: tp.Federation, make: Any, label: str, settings: Any, reduce: bool) -> None:
    """Sums of words are exact: coefficients agree to 1e-9, and rounds are as many."""
    plain, secure = both(fed, make, label, reduce=reduce, **settings)
    np.testing.assert_allclose(parameters(secure), parameters(plain), atol=1e-9)
    assert len(secure.history_) == len(plain.history_)


@pytest.mark.parametrize(("make", "label"), [(tp.LinearRegression, "paid"), (tp.LogisticRegression, "grade")])
@pytest.mark.parametrize("inner_rounds", [1, 4])
def test_consensus_is_the_same(fed: tp.Federation, make: Any, label: str, inner_rounds: int) -> None:
    """Shards that agree on parameters tell those masked, too: coefficients agree to 1e-5."""
    plain, secure = both(fed, make, label, inner_rounds=inner_rounds, rounds=300)
    assert plain.converged_
    assert secure.converged_
    np.testing.assert_allclose(parameters(secure), parameters(plain), atol=1e-5)


@pytest.mark.parametrize("solver", ["lbfgs", "sgd", "admm"])
@pytest.mark.parametrize(("make", "label"), [(tp.MLPRegressor, "paid"), (tp.MLPClassifier, "grade")])
def test_networks_are_the_same(fed: tp.Federation, make: Any, label: str, solver: str) -> None:
    """Gradients and parameters of networks: after some rounds they agree to 1e-7."""
    plain, secure = both(fed, make, label, solver=solver, rounds=4, hidden=(6,), batch_size=60)
    np.testing.assert_allclose(parameters(secure), parameters(plain), atol=1e-7)


@pytest.mark.parametrize("factor", [1e-9, 1e12])
def test_labels_of_any_size_are_learned(tmp_path: Path, factor: float) -> None:
    """The scale follows what the coordinator asks for: labels may be tiny or huge, no digits are lost."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=300)
    label = factor * (3 * x + rng.normal(size=300))
    parts = np.array_split(np.arange(300), 3)
    tables = {f"p{n}": {"t": pa.table({"x": x[rows], "label": label[rows]})} for n, rows in enumerate(parts)}
    fed = federation(tmp_path, tables, wire="float64")
    plain, secure = (
        tp.LinearRegression(privacy=each).fit(fed.sql("SELECT x, label FROM t", label="label"))
        for each in (None, SECURE)
    )
    np.testing.assert_allclose(parameters(secure), parameters(plain), rtol=1e-9)


def test_a_job_asks_for_secure_sums() -> None:
    """`privacy = { secure_sum = true }` in a job file is what `tp.Privacy(secure_sum=True)` is in Python."""
    assert make_learner({"kind": "LinearRegression", "privacy": {"secure_sum": True}}).privacy == SECURE
    with pytest.raises(tp.PrivacyError, match="no setting 'secure'"):
        make_learner({"kind": "LinearRegression", "privacy": {"secure": True}})


def test_with_noisy_labels(fed: tp.Federation, tmp_path: Path) -> None:
    """Both promises hold in one fit: the model is that of noisy labels alone, and says both, also when loaded."""
    noisy = tp.Privacy(label_epsilon=3.0, label_classes=(False, True))
    noise, masked = (
        tp.LogisticRegression(privacy=each, label_correction=True, l2=0.1).fit(
            fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
        )
        for each in (noisy, replace(noisy, secure_sum=True))
    )
    np.testing.assert_allclose(parameters(masked), parameters(noise), atol=1e-9)
    masked.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    assert loaded.privacy == masked.privacy
    assert loaded.privacy_ == masked.privacy_
    assert (noise.privacy_["secure_sum"], masked.privacy_["secure_sum"]) == (False, True)
    assert masked.privacy_["label_epsilon"] == 3.0
    assert masked.privacy_["assumptions"].startswith(noise.privacy_["assumptions"])
