"""Tables in and out: DataFrames and Arrow tables are parties, and every result goes into pandas, Polars and Arrow."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.learners.estimator import ELSEWHERE
from tablepuppet.learn.learners.predictions import PredictionTable

DOCS = "".join(path.read_text(encoding="utf-8") for path in (Path(__file__).parents[1] / "docs").glob("*.md"))
JOIN = "FROM orders o JOIN items i USING (item_id)"


def tables() -> tuple[pd.DataFrame, pa.Table]:
    rng = np.random.default_rng(5)
    orders = pd.DataFrame(
        {
            "item_id": rng.integers(0, 9, 120),
            "price": rng.normal(100, 9, 120),
            "day": pd.date_range("2024-01-01", periods=120, freq="D"),
            "note": pd.Categorical(rng.choice(["a", "b"], 120)),
            "returned": rng.random(120) < 0.4,
        },
        index=pd.Index(range(500, 620), name="order_id"),
    )
    orders.loc[501, "price"] = np.nan
    return orders, pa.table({"item_id": range(9), "kind": [f"kind {i % 3}" for i in range(9)]})


@pytest.fixture(scope="module")
def relation() -> tp.Relation:
    orders, items = tables()
    fed = tp.Federation({"mine": {"orders": orders}, "theirs": {"items": items}})
    orders.loc[:, "price"] = 0.0  # the federation has a copy
    return fed.sql(f"SELECT o.price, o.day, o.note, i.kind, o.returned {JOIN}", label="returned")


def test_frames_are_parties(relation: tp.Relation) -> None:
    """The joined rows are those of pandas' merge; a named index is a column, NaN of pandas is missing."""
    orders, items = tables()
    joined = orders.reset_index().merge(items.to_pandas(), on="item_id")
    described = relation.describe().to_pandas().set_index("column")
    assert len(relation) == len(joined)
    assert described.loc["price", "mean"] == pytest.approx(joined["price"].mean(), abs=1e-9)
    assert described.loc["price", "missing"] == joined["price"].isna().sum() > 0
    found = tp.LogisticRegression().fit(relation).predict(relation, ids=["o.order_id"])
    assert sorted(found["o.order_id"].to_pylist()) == sorted(joined["order_id"])


@pytest.mark.parametrize("form", [pl.from_arrow, lambda table: table.to_pydict(), lambda table: table])
def test_kinds_of_frames(form: Any) -> None:
    """Polars, dicts of columns and Arrow tables are the same party."""
    orders, items = tables()
    fed = tp.Federation({"mine": {"orders": orders, "items": form(items)}})
    assert fed.catalog().table("items").columns == {"item_id": "BIGINT", "kind": "VARCHAR"}
    assert len(fed.sql(f"SELECT o.price, i.kind {JOIN}")) == 120


def test_results_go_into_other_libraries(relation: tp.Relation) -> None:
    """pandas, Polars and Arrow take every result as it is, with the same columns and rows."""
    model = tp.LogisticRegression().fit(relation)
    results: list[Any] = [
        relation.describe(), relation.quantile([0.1, 0.5]), relation.correlation(), relation.crosstab("note", "kind"),
        relation.histogram("price", 5), relation.group_means("price", "kind"), relation.outlier_by_iqr(),
        tp.cross_validate(model, relation, folds=2), model.predict(relation, ids=["o.order_id"]),
    ]  # fmt: skip
    for result in results:
        table = result.to_arrow()
        assert pa.table(result).equals(table)
        assert pl.DataFrame(result).shape == table.shape
        assert len(pl.from_arrow(result)) == table.num_rows  # a series of structs, as of any stream
        assert list(pd.DataFrame(result).columns) == table.column_names
        assert len(pd.DataFrame(result)) == len(result.to_pandas()) == table.num_rows
    for records in (model.history_, tp.cross_validate(model, relation, folds=2)):
        assert pl.DataFrame(records).height == len(pd.DataFrame(records)) == len(records)
    drift = tp.drift(relation, relation)
    assert pl.DataFrame(drift).columns == drift.to_arrow().column_names
    assert pd.DataFrame(drift)["psi"].max() == 0


def test_predictions_show_as_a_table(relation: tp.Relation) -> None:
    """`predict(ids=)` prints as a table, of which a notebook shows the first rows, and is typed."""
    found = tp.LogisticRegression().fit(relation).predict(relation, ids=["o.order_id"])
    assert_type(found, PredictionTable)
    assert "120 joined rows; these are the first 10" in str(found)
    assert found._repr_html_().count("<tr>") == 11
    assert found.num_rows == len(found) == len(found.to_pylist())


def test_dir_has_public_names(relation: tp.Relation) -> None:
    """Completion offers what users call, settings and what was learned; nothing that the package has for itself."""
    model = tp.LogisticRegression().fit(relation)
    assert {"fit", "predict", "predict_proba", "evaluate", "save", "l2", "coef_", "history_"} <= set(dir(model))
    assert not {"check_plan", "declared", "facts", "store_fit", "emit"} & set(dir(model))
    assert {"describe", "split", "matrix", "columns"} <= set(dir(relation))
    assert not {"client", "fit_encoding", "funds"} & set(dir(relation))
    search = tp.GridSearch(tp.LogisticRegression(), {"l2": [1.0]}, folds=2).fit(relation)
    assert {"fit", "grid", "results_", "best_model_"} <= set(dir(search))
    for thing in (model, relation, search):
        assert [name for name in dir(thing) if not re.search(rf"\b{name}\b", DOCS)] == []
        assert all(not name.startswith("_") for name in dir(thing))
        assert inspect.getmembers(type(thing))  # which reads what dir of the class has
    learners = [getattr(tp, name)() for name in tp.__all__ if name.endswith(("Regression", "Classifier", "Regressor"))]
    for name in set(re.findall(r"\bmodel\.([a-z]\w*)\(", DOCS)):
        assert [type(each).__name__ for each in learners if hasattr(each, name) and name not in dir(each)] == [], name


def test_dir_of_results_and_settings(relation: tp.Relation) -> None:
    """Results, the matrix, solvers, privacy and modules have no names either that the package has for itself."""
    own = {
        "table_view",
        "table_views",
        "of_plain",
        "check_settings",
        "ask_moments",
        "recipe",
        "emit_trip",
        "check_rows",
    }
    things: list[Any] = [relation.describe(), relation.quantile([0.5]), relation.matrix(), tp.Privacy(), tp.ADMM()]
    things += [
        tp.prep.Pipeline([tp.prep.Standardize()]),
        tp.Federation({"mine": {"t": {"a": [1]}}}).events,
        tp.bottom,
        tp,
    ]
    things += [tp.cross_validate(tp.LogisticRegression(), relation, folds=2)]
    for thing in things:
        assert {name for name in dir(thing) if name in own or name.startswith("_")} <= {"__version__"}
    assert set(dir(tp.bottom)) == {"cnn", "mlp", "register", "registered", "tabnet"}
    assert set(dir(tp)) == {*tp.__all__, "__version__"}
    assert set(dir(tp.prep)) == set(tp.prep.__all__)


def test_dir_of_models_of_linalg(relation: tp.Relation) -> None:
    """Names of models are in the docs, or numbers of the fit; those of the package itself begin with an underscore."""
    assert set(dir(tp.linalg)) == set(tp.linalg.__all__)
    X, y = relation.matrix(), relation.label().astype(float)
    models: list[Any] = [tp.linalg.lm(X, y), tp.linalg.glm(X, y, family="binomial"), tp.linalg.l2svm(X, y)]
    models += [tp.linalg.multilogreg(X, y), tp.linalg.lasso(X, y), tp.linalg.steplm(X, y), tp.linalg.naive_bayes(X, y)]
    models += [tp.linalg.kmeans(X, k=2, seed=0), tp.linalg.pca(X), tp.linalg.lasso(X, y).models[0]]
    for model in models:
        assert all(not name.startswith("_") for name in dir(model))
        assert {"preparation", "facts", "kinds", "title", "parameters"}.isdisjoint(dir(model)), type(model)
        assert {"save"} < set(dir(model))
    for model in models[2:4]:
        most = max(y.mean(), 1 - y.mean())
        assert model.constant == pytest.approx(most)
        assert f"(constant {most:.4f})" in str(model.summary())


def test_values_of_rows_are_no_counts() -> None:
    """Beside predictions an id and a year have no commas, and a class is written as in the name of its probability."""
    orders, items = tables()
    orders = orders.assign(number=np.arange(120) + 500_000, year=2010 + np.arange(120) % 15)
    fed = tp.Federation({"mine": {"orders": orders}, "theirs": {"items": items}})
    rel = fed.sql(f"SELECT o.price, i.kind, o.returned {JOIN}", label="returned")
    found = tp.LogisticRegression().fit(rel).predict(rel, ids=["o.number", "o.year"])
    [number, year, said, *chances] = found.table_view().rows[0]
    assert (number, year) == tuple(str(found[name][0]) for name in ("o.number", "o.year"))
    assert said in ("False", "True")
    names = [name.removeprefix("probability=") for name in found.table_view().columns][-2:]
    assert said == max(zip(chances, names, strict=True))[1]


def test_small_numbers_are_readable(relation: tp.Relation) -> None:
    """Correlations have three decimals, distances of distributions four, whatever their size; what cannot be is `-`."""
    cells = [cell for row in relation.correlation().table_view().rows for cell in row[1:]]
    assert all(re.fullmatch(r"-?[01]\.\d{3}", cell) for cell in cells)
    first, second = relation.split(test=0.5, seed=1)
    rows = {row[0]: row for row in tp.drift(first, second).table_view().rows}
    assert all(re.fullmatch(r"\d+\.\d{4}", row[1]) for row in rows.values())
    assert rows["kind"][2] == "-"
    assert re.fullmatch(r"\d\.\d{4}", rows["price"][2])


def test_a_cross_validation_ends_with_its_means(relation: tp.Relation) -> None:
    """Not with its last fold: its last event has the means over folds, beside those of a constant."""
    heard: list[tp.Event] = []
    stop = relation.events.subscribe(heard.append)
    found = tp.cross_validate(tp.LogisticRegression(), relation, folds=3)
    stop()
    end = heard[-1]
    assert end.name == "validated"
    assert end.fields["auc"] == pytest.approx(found["test_auc"].mean())
    figure = r"\d\.\d{4} \(constant \d\.\d{4}\)"
    assert re.fullmatch(
        rf"LogisticRegression, mean of 3 folds: accuracy {figure}, AUC {figure}, log loss {figure}", end.message
    )


def test_no_private_name_is_advised() -> None:
    """What is said of attributes that users of other libraries try has public names only."""
    assert [text for text in ELSEWHERE.values() if re.search(r"\._[a-z]", text)] == []


def test_metrics_are_a_table(relation: tp.Relation) -> None:
    """Metrics are a dict of numbers, and a table with those of a constant beside them."""
    found = tp.LogisticRegression().fit(relation).evaluate(relation)
    frame = found.to_pandas()
    assert dict(zip(frame["metric"], frame["model"], strict=True)) == dict(found)
    assert frame["constant"].tolist() == list(found.constant.values())
    assert pd.DataFrame([found]).to_dict("records") == [dict(found)]
