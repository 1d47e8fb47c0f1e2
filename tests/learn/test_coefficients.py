"""`coef_` and the relation as a matrix agree, however a table is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation


@pytest.mark.parametrize("shards", [1, 2])
def test_coefficients_are_in_the_order_of_columns(tmp_path: Path, shards: int) -> None:
    """X @ coef_ + intercept_ is what the model predicts, also of one that was loaded."""
    fed = federation(tmp_path, shop(shards), wire="float64")
    relation = fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
    model = tp.LinearRegression().fit(relation)
    model.save(tmp_path / "model")
    x = relation.matrix()
    for each in (model, tp.load(tmp_path / "model", fed)):
        assert list(each.coef_) == list(x.columns)
        np.testing.assert_allclose(x @ np.asarray(each.coef_) + each.intercept_, model.predict(relation), atol=1e-9)
