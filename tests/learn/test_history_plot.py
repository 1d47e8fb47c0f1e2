"""`model.plot()`: loss and metric by round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.relations import federation


def relation_of(folder: Path) -> tp.Relation:
    """Two columns and a label."""
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=300), "z": rng.normal(size=300), "y": rng.random(300) < 0.4})
    return federation(folder, {"p": {"t": table}}).sql("SELECT x, z, y FROM t", label="y")


def lines(axis: Any) -> dict[str, list[float]]:
    """What is drawn by the words of the legend."""
    return {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}


def test_plot_draws_the_history(tmp_path: Path) -> None:
    """The lines are the numbers of `history_`, of validation rows too if there are some; `dir` has it."""
    train, held_out = relation_of(tmp_path).split(test=0.3)
    model = tp.LogisticRegression(solver="lbfgs")
    assert "plot" in dir(model)
    with pytest.raises(tp.LearnError, match="fit"):
        model.plot()
    figure: Any = model.fit(train).plot()
    loss, metric = figure.axes
    assert (loss.get_ylabel(), metric.get_ylabel()) == ("loss", "accuracy")
    drawn, share = lines(loss), train.label().mean()
    assert drawn.pop("rows learned from") == [row["loss"] for row in model.history_]
    [(words, constant)] = drawn.items()  # the loss of a constant is known exactly: that of the shares of the classes
    assert constant == pytest.approx([-share * np.log(share) - (1 - share) * np.log(1 - share)] * 2)
    assert words == f"a constant: {constant[0]:.4f}"
    assert lines(metric)[f"a constant: {1 - share:.4f}"] == pytest.approx([1 - share] * 2)
    assert figure._repr_png_().startswith(b"\x89PNG")
    model.fit(train, validation=held_out)
    loss, metric = model.plot().axes  # type: ignore[union-attr]
    assert lines(loss)["rows held out"] == [row["validation_loss"] for row in model.history_]
    assert lines(metric)["rows held out"] == [row["validation_metric"] for row in model.history_]


@pytest.mark.parametrize("kind", [tp.LinearRegression, tp.MLPRegressor, tp.LogisticRegression, tp.MLPClassifier])
def test_a_constant_is_drawn_beside_loss_and_metric(kind: Any) -> None:
    """It is that of `evaluate` on the same rows, in the label's own units."""
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=300), "y": rng.integers(0, 3, 300) * 1000})
    relation = tp.Federation({"mine": {"t": table}}).sql("SELECT x, y FROM t", label="y")
    model = kind(solver="lbfgs", rounds=2).fit(relation)
    known = model.evaluate(relation).constant
    for axis, name in zip(model.plot().axes, ("log_loss", model.metric_name), strict=True):
        [drawn] = [line for words, line in lines(axis).items() if words.startswith("a constant: ")]
        expected = known[name] if name in known else known["rmse"] ** 2 / 2  # half the squared error is minimised
        assert drawn == pytest.approx([expected] * 2)


def test_plot_writes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path gets a picture and nothing is returned; other kinds, and no matplotlib, are errors that say what to do."""
    model = tp.LogisticRegression(solver="lbfgs").fit(relation_of(tmp_path))
    assert model.plot(tmp_path / "fit.svg") is None
    assert "<svg" in (tmp_path / "fit.svg").read_text()
    with pytest.raises(tp.LearnError, match=r"plot writes \.png"):
        model.plot("fit.txt")
    with pytest.raises(tp.LearnError, match="cannot be written"):
        model.plot(tmp_path / "no" / "fit.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(tp.LearnError, match="plot needs matplotlib"):
        model.plot()
