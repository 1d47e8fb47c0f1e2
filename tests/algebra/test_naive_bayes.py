"""Naive Bayes over the joined matrix equals scikit-learn's on the materialised join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import naive_bayes

import tablepuppet as tp
from tests.learn.materialised import JOIN, shop
from tests.relations import federation

NUMBERS = "o.price, o.quantity, i.weight, c.credit"


@pytest.fixture(scope="module", params=[1, 3])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param, together=True), wire="float64")


def test_numbers_and_categories_are_scikit_learns(fed: tp.Federation) -> None:
    """Numbers alone are its GaussianNB, a category alone its CategoricalNB; together, their product. To 1e-8."""
    found, known = {}, {}
    for name, select in (("numbers", NUMBERS), ("category", "i.colour"), ("both", f"{NUMBERS}, i.colour")):
        relation = fed.sql(f"SELECT {select}, o.grade {JOIN}", label="grade")
        matrix, y = relation.matrix(), relation.label()
        model = tp.linalg.naive_bayes(matrix, y)
        found[name] = model.predict_proba(matrix)
        dense: Any = matrix @ np.eye(matrix.shape[1])
        if name == "numbers":
            known[name] = naive_bayes.GaussianNB().fit(dense, y).predict_proba(dense)
        elif name == "category":
            codes = np.argmax(dense, axis=1)[:, None]
            known[name] = naive_bayes.CategoricalNB(alpha=1.0).fit(codes, y).predict_proba(codes)
        else:
            product = known["numbers"] * known["category"] / model.priors
            known[name] = product / product.sum(axis=1)[:, None]
            assert np.array_equal(model.predict(relation), model.classes[np.argmax(known[name], axis=1)])
        np.testing.assert_allclose(found[name], known[name], atol=1e-8)


def test_predictions_for_another_relation(fed: tp.Federation) -> None:
    """One that has no label."""
    relation = fed.sql(f"SELECT {NUMBERS}, i.kind, o.grade {JOIN}", label="grade")
    model = tp.linalg.naive_bayes(relation.matrix(), relation.label())
    other = fed.sql(f"SELECT {NUMBERS}, i.kind {JOIN} WHERE o.quantity > 3")
    assert model.predict(other).shape == (len(other),)


@pytest.mark.parametrize(
    ("y", "alpha", "message"),
    [(["a"], 1.0, "one class only"), (["a"], 0, "alpha is a number above 0, not 0"), ([np.nan], 1.0, "not finite")],
)
def test_what_does_not_fit(fed: tp.Federation, y: list[Any], alpha: Any, message: str) -> None:
    """Labels and settings: an error says what would."""
    matrix = fed.sql(f"SELECT {NUMBERS} {JOIN}").matrix()
    with pytest.raises(tp.LearnError, match=f"naive_bayes: .*{message}"):
        tp.linalg.naive_bayes(matrix, y * matrix.shape[0], alpha=alpha)
