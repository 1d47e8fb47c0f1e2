"""Edges of learning: poor settings, odd columns and labels, fits that fail. Each is right, or one clear error."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.relations import federation


@pytest.mark.parametrize("rho", [1e-4, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("learner", [tp.LinearRegression, tp.LogisticRegression])
def test_admm_converges_whatever_rho(tmp_path: Path, learner: Any, rho: float) -> None:
    """With a poor rho a round of ADMM may promise little; it is not called converged before the gradient says so."""
    rng = np.random.default_rng(1)
    common = rng.normal(size=(300, 1))
    tables = {f"t{i}": common + 0.3 * rng.normal(size=(300, 3)) for i in range(3)}
    score = sum(values @ rng.normal(size=3) for values in tables.values()) + rng.normal(size=300)
    parties: dict[str, Any] = {
        name: {name: pa.table({"k": np.arange(300)} | {f"{name}x{j}": values[:, j] for j in range(3)})}
        for name, values in tables.items()
    }
    parties["label"] = {"y": pa.table({"k": np.arange(300), "y": score, "c": score > 0})}
    label = "y" if learner is tp.LinearRegression else "c"
    sql = f"SELECT t0.*, t1.*, t2.*, y.{label} FROM y JOIN t0 USING (k) JOIN t1 USING (k) JOIN t2 USING (k)"
    relation = federation(tmp_path, parties, wire="float64").sql(sql, label=label)
    best = learner(l2=1e-3).fit(relation).history_[-1]["objective"]
    found = learner(l2=1e-3, solver="admm", rho=rho, rounds=500).fit(relation)
    assert found.converged_
    assert found.history_[-1]["objective"] == pytest.approx(best, abs=1e-9)


def tiny(tmp_path: Path, **settings: Any) -> tp.Federation:
    return federation(tmp_path, {"p": {"t": tiny_table()}}, **settings)


def tiny_table() -> pa.Table:
    return pa.table(
        {
            "x": np.arange(20.0),
            "text": ["a", "b"] * 10,
            "one": [1] * 20,
            "half": [0.5, 1.0, 1.5, 2.0] * 5,
            "day": [date(2024, 1, 1 + i % 2) for i in range(20)],
            "holes": [None if i % 4 == 0 else float(i) for i in range(20)],
            "nan": [np.nan if i == 3 else float(i % 2) for i in range(20)],
        }
    )


def test_a_fit_that_fails_leaves_the_model(tmp_path: Path) -> None:
    """After a fit on bad input the learner predicts as before."""
    fed = tiny(tmp_path)
    good = fed.sql("SELECT x, text FROM t", label="text")
    model = tp.LogisticRegression().fit(good)
    before = model.predict_proba(good)
    with pytest.raises(tp.LearnError, match="one class"):
        model.fit(fed.sql("SELECT x, one FROM t", label="one"))
    assert np.array_equal(model.predict_proba(good), before)


def test_missing_numbers_are_filled_then_standardised(tmp_path: Path) -> None:
    """The scale is the standard deviation over all joined rows, those without a value at the mean (ddof 0)."""
    relation = tiny(tmp_path).sql("SELECT holes, x FROM t", label="x")
    values = np.array([np.nan if i % 4 == 0 else float(i) for i in range(20)])
    filled = np.where(np.isnan(values), np.nanmean(values), values)
    [encoder] = relation.fit_encoding().numbers["t"]
    assert (encoder.mean, encoder.scale) == pytest.approx((filled.mean(), filled.std()))


def test_predicting_other_kinds_of_columns(tmp_path: Path) -> None:
    """Text where the model knows a number, and values that are not finite, are LearnErrors without a value."""
    fed = tiny(tmp_path)
    model = tp.LinearRegression().fit(fed.sql("SELECT x, half FROM t", label="half"))
    with pytest.raises(tp.LearnError, match=r"t\.x is VARCHAR here; the model was fitted on DOUBLE"):
        model.predict(fed.sql("SELECT text AS x FROM t"))
    with pytest.raises(tp.LearnError, match="not finite"):
        model.predict(fed.sql("SELECT nan AS x FROM t"))
    with pytest.raises(tp.LearnError, match=r"label t\.nan has values that are not finite"):
        tp.LogisticRegression().fit(fed.sql("SELECT x, nan FROM t", label="nan"))


def test_columns_that_were_left_out_are_not_needed(tmp_path: Path) -> None:
    """A model predicts over a query without the columns and tables that its fit left out, also when it was loaded; of
    those that it needs, the error says that aliases count.
    """
    flat = {"u": pa.table({"k": [1] * 20, "flat": [1.0] * 20})}
    fed = federation(tmp_path, {"p": {"t": tiny_table()}, "q": flat})
    fitted = tp.LinearRegression().fit(
        fed.sql("SELECT t.x AS a, t.one, u.flat, t.half FROM t JOIN u ON t.one = u.k", label="half")
    )
    fitted.save(tmp_path / "model")
    for model in (fitted, tp.load(tmp_path / "model", fed)):
        assert model.n_features_in_ == 1
        assert len(model.predict(fed.sql("SELECT x AS a FROM t"))) == 20
        assert len(model.predict(fed.sql("SELECT t.x AS a, v.flat FROM t JOIN u v ON t.one = v.k"))) == 400
        with pytest.raises(tp.LearnError, match=r"t\.a\. A query .* with the same aliases as in the fit"):
            model.predict(fed.sql("SELECT s.x AS a FROM t s"))


@pytest.mark.parametrize("columns", ["one", ""])
def test_no_feature_is_left(tmp_path: Path, columns: str) -> None:
    """A fit without any feature warns that the model is a constant, and why."""
    warned: list[tp.Event] = []
    fed = tiny(tmp_path, callbacks=[lambda event: warned.append(event) if event.kind == "warning" else None])
    model = tp.LinearRegression().fit(fed.sql(f"SELECT {columns}{columns and ','} half FROM t", label="half"))
    assert warned[-1].name == "features.none"
    assert ("all of one were left out" if columns else "selects no column but the label") in warned[-1].message
    assert set(model.predict(fed.sql("SELECT one, x FROM t")).round(5)) == {1.25}


@pytest.mark.parametrize("label", ["half", "day"])
def test_classes_of_all_kinds(tmp_path: Path, label: str) -> None:
    """Classes that are fractions or dates are measured, and are the same after saving and loading."""
    fed = tiny(tmp_path)
    relation = fed.sql(f"SELECT x, text, {label} FROM t", label=label)
    model = tp.LogisticRegression().fit(relation)
    assert set(model.evaluate(relation)) == {"accuracy", "auc", "log_loss"}
    model.save(tmp_path / "model.tpm")
    assert tp.load(tmp_path / "model.tpm", fed).classes_.tolist() == model.classes_.tolist()


def test_many_classes_measured_on_rows_of_few(tmp_path: Path) -> None:
    """Rows that have some of 200 classes are measured by the numbers of all 200, as validation and after the fit."""
    classes = np.repeat(np.arange(200), 3)
    fed = federation(tmp_path, {"p": {"t": pa.table({"x": classes / 50.0, "y": classes})}})
    every = fed.sql("SELECT x, y FROM t", label="y")
    few = fed.sql("SELECT x, y FROM t WHERE y >= 190", label="y")
    model = tp.LogisticRegression(rounds=2).fit(every, validation=few)
    wanted = float(np.mean(model.predict(few) == np.repeat(np.arange(190, 200), 3)))
    assert wanted > 0
    assert model.evaluate(few)["accuracy"] == pytest.approx(wanted)
    assert model.history_[model.best_round_ - 1]["validation_metric"] == pytest.approx(wanted)


def test_callbacks_hear_the_end(tmp_path: Path) -> None:
    """A learner's own readers get every round, and the event that says how it ended."""
    heard: list[tp.Event] = []
    tp.LinearRegression(callbacks=[heard.append]).fit(tiny(tmp_path).sql("SELECT x, half FROM t", label="half"))
    assert [event.name for event in heard[-2:]] == ["fit", "fitted"]
    assert heard[-1].fields["converged"]


def test_a_model_needs_only_its_own_parties(tmp_path: Path) -> None:
    """A federation without the parties that a model never met can load it."""
    rows = {"t": pa.table({"x": [1.0, 2.0, 3.0], "c": ["a", "b", "a"], "y": [0.0, 1.0, 1.0]})}
    other = {"u": pa.table({"z": [1.0]})}
    fed = federation(tmp_path, {"p": rows, "q": other})
    tp.LinearRegression().fit(fed.sql("SELECT x, c, y FROM t", label="y")).save(tmp_path / "model.tpm")
    assert tp.load(tmp_path / "model.tpm", tp.Federation({"p": f"parquet:///{tmp_path / 'p'}"}))


@pytest.mark.parametrize("shards", [1, 2])
def test_values_whose_squares_overflow(tmp_path: Path, shards: int) -> None:
    """A column or a label too large to be squared is a LearnError that names it; a large one that can be is learned."""
    steps = np.arange(20.0)
    whole = pa.table({"x": steps * 1e200, "big": steps * 1e140, "y": steps % 3, "z": steps * 1e150})
    parties = {f"p{i}": {"t": whole.slice(i * (20 // shards), 20 // shards)} for i in range(shards)}
    fed = federation(tmp_path, parties, wire="float64")
    with pytest.raises(tp.LearnError, match=r"column t\.x has values so large that their squares overflow"):
        tp.LinearRegression().fit(fed.sql("SELECT x, y FROM t", label="y"))
    with pytest.raises(tp.LearnError, match=r"label t\.z has values beyond 1e\+100"):
        tp.LinearRegression().fit(fed.sql("SELECT y, z FROM t", label="z"))
    assert tp.LinearRegression().fit(fed.sql("SELECT big, y FROM t", label="y")).converged_


def test_no_rows_to_measure(tmp_path: Path) -> None:
    """Measuring a model on a relation without rows is a LearnError, not a number."""
    fed = tiny(tmp_path)
    model = tp.LinearRegression().fit(fed.sql("SELECT x, half FROM t", label="half"))
    with pytest.raises(tp.LearnError, match="the relation has no joined rows; check"):
        model.evaluate(fed.sql("SELECT x, half FROM t WHERE x > 99", label="half"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"callbacks": None}, "callbacks must be"),
        ({"reduce": "x"}, "reduce must be"),
        ({"rounds": True}, "rounds must be"),
    ],
)
def test_odd_settings(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """A setting that cannot be is a LearnError that names it."""
    relation = tiny(tmp_path).sql("SELECT x, half FROM t", label="half")
    with pytest.raises(tp.LearnError, match=message):
        tp.LinearRegression(**settings).fit(relation)
    with pytest.raises(tp.LearnError, match="fit takes a relation"):
        tp.LinearRegression().fit(np.zeros((3, 2)))  # type: ignore[arg-type]
