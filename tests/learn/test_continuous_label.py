"""Labels that are measurements are no classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.relations import federation


def test_measurements_are_no_classes(tmp_path: Path) -> None:
    """Many numbers that are not whole are refused; whole ones, and a few others, are classes."""
    rng, row = np.random.default_rng(0), np.arange(136)
    table = pa.table(
        {"x": rng.normal(size=136), "y": rng.normal(size=136), "stars": row % 5 / 2, "ids": row % 30 * 1.0}
    )
    fed = federation(tmp_path, {"p": {"t": table}}, wire="float64")
    measured = fed.sql("SELECT x, y FROM t", label="y")
    with pytest.raises(tp.LearnError, match=r"136 values that are not whole numbers, .* use a regressor"):
        tp.LogisticRegression().fit(measured)
    with pytest.raises(tp.LearnError, match="multilogreg: y has 136 values that are not whole numbers"):
        tp.linalg.multilogreg(measured.matrix(), measured.label())
    for label, classes in (("stars", 5), ("ids", 30)):
        learner = tp.LogisticRegression(l2=1.0).fit(fed.sql(f"SELECT x, {label} FROM t", label=label))
        assert len(learner.classes_) == classes
