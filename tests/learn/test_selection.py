"""`cross_validate` and `GridSearch`: the scores of scikit-learn on the same folds of the materialised join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score, root_mean_squared_error
from sklearn.preprocessing import StandardScaler

import tablepuppet as tp
from tablepuppet.learn.selection.folds import Folding
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.relations import federation, places, record_wire

SQL = "SELECT o.price, o.code, i.size, o.{} FROM orders o JOIN items i USING (item)"


def tables(rows: int = 240) -> dict[str, dict[str, pa.Table]]:
    rng, row = np.random.default_rng(0), np.arange(rows)
    price, size = rng.normal(size=rows), rng.normal(size=12)
    paid = 2 * price + size[row % 12] + rng.normal(size=rows)
    orders = pa.table(
        {"item": row % 12, "price": price, "code": row % 9, "paid": paid, "returned": (paid > 1).astype(np.int64)}
    )
    items = pa.table({"item": [*range(12), 3, 4], "size": [*size, 0.5, -0.5]})  # some orders are joined twice
    return {"east": {"orders": orders.slice(0, 100)}, "west": {"orders": orders.slice(100)}, "shop": {"items": items}}


def frame_of(relation: tp.Relation, parties: dict[str, dict[str, pa.Table]]) -> pd.DataFrame:
    """The joined rows in the relation's order."""
    found: dict[str, list[Any]] = {name: [] for name in ("price", "code", "size", "paid", "returned", "order")}
    sides = {party: {name: t.to_pylist() for name, t in published.items()} for party, published in parties.items()}
    for (owner, row), (shop, item) in places(relation):
        order = sides[owner]["orders"][row]
        for name in ("price", "code", "paid", "returned"):
            found[name].append(order[name])
        found["size"].append(sides[shop]["items"][item]["size"])
        found["order"].append((owner, row))
    return pd.DataFrame(found)


def test_scores_are_those_of_scikit_learn(tmp_path: Path) -> None:
    """Each fold's train and test scores, to 1e-6; every order is in one fold's test, with all its joined rows."""
    parties = tables()
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("paid"), label="paid")
    found = tp.cross_validate(tp.LinearRegression(l2=0.01), relation, folds=4, seed=3)
    assert found.column_names == ["fold", "train_rmse", "train_r2", "test_rmse", "test_r2", "seconds"]
    assert found.to_arrow().num_rows == len(found) == 4
    seen: list[Any] = []
    for row, (train, test) in zip(found, Folding(relation, 4, 3).sides(), strict=True):
        sides = [frame_of(side, parties) for side in (train, test)]
        scale = StandardScaler().fit(sides[0][["price", "code", "size"]].to_numpy())
        x, held = (scale.transform(side[["price", "code", "size"]].to_numpy()) for side in sides)
        model = Ridge(alpha=0.01 * len(x)).fit(x, sides[0]["paid"])
        assert row["train_r2"] == pytest.approx(r2_score(sides[0]["paid"], model.predict(x)), abs=1e-6)
        assert row["test_r2"] == pytest.approx(r2_score(sides[1]["paid"], model.predict(held)), abs=1e-6)
        assert row["test_rmse"] == pytest.approx(
            root_mean_squared_error(sides[1]["paid"], model.predict(held)), abs=1e-6
        )
        assert not set(sides[0]["order"]) & set(sides[1]["order"])
        seen += sorted(set(sides[1]["order"]))
    assert len(seen) == len(set(seen)) == 240
    assert "4 folds" in str(found)
    assert "<table" in found._repr_html_()


def test_folds_by_groups_and_by_classes(tmp_path: Path) -> None:
    """Rows of one code stay together; classes are dealt evenly; the same seed gives the same folds."""
    parties = tables()
    relation = federation(tmp_path, parties).sql(SQL.format("returned"), label="returned")
    for train, test in Folding(relation, 3, 0, groups="code").sides():
        sides = [frame_of(side, parties) for side in (train, test)]
        assert not set(sides[0]["code"]) & set(sides[1]["code"])
        assert sides[1]["code"].nunique() == 3
    whole = frame_of(relation, parties).drop_duplicates("order")["returned"].mean()
    first = [places(test) for _, test in Folding(relation, 5, 1, stratified=True).sides()]
    again = [places(test) for _, test in Folding(relation, 5, 1, stratified=True).sides()]
    assert first == again
    for _, test in Folding(relation, 5, 1, stratified=True).sides():
        share = frame_of(test, parties).drop_duplicates("order")["returned"].mean()
        assert share == pytest.approx(whole, abs=1 / 40)
    found = tp.cross_validate(tp.LogisticRegression(), relation, folds=3, stratified=True)
    assert {"train_auc", "test_auc", "test_accuracy", "test_log_loss"} <= set(found.column_names)
    assert (found["test_auc"] > 0.7).all()


def test_search_finds_the_best_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of all candidates are those of separate runs; tables are read and encoders fitted once for all of them."""
    parties = tables()
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("returned"), label="returned")
    len(relation)
    messages = record_wire(monkeypatch)
    search = tp.GridSearch(tp.LogisticRegression(), {"l2": [1e-6, 0.1, 100.0]}, folds=3).fit(relation)
    asked = [each.request.op for each in messages if each.party == "east"]
    assert "open" not in asked
    assert asked.count("encode.build") == 3 + 3 + 1  # both sides of each fold, and the whole: not once per candidate
    assert asked.count("statistics.numbers") == 3 + 1
    monkeypatch.undo()
    for row in search.results_:
        alone = tp.cross_validate(tp.LogisticRegression(l2=row["l2"]), relation, folds=3)
        assert row["mean_test_accuracy"] == pytest.approx(alone["test_accuracy"].mean(), abs=1e-9)
        assert row["mean_test_log_loss"] == pytest.approx(alone["test_log_loss"].mean(), abs=1e-6)
    assert search.best_params_ == {"l2": search.results_["l2"][0]}
    assert search.best_params_["l2"] != 100.0
    assert search.best_score_ == max(search.results_["mean_test_accuracy"])
    frame = frame_of(relation, parties)
    scale = StandardScaler().fit(frame[["price", "code", "size"]].to_numpy())
    x = scale.transform(frame[["price", "code", "size"]].to_numpy())
    reference = LogisticRegression(C=1 / (search.best_params_["l2"] * len(x)), tol=1e-10, max_iter=1000)
    expected = accuracy_score(frame["returned"], reference.fit(x, frame["returned"]).predict(x))
    assert search.evaluate(relation)["accuracy"] == pytest.approx(expected, abs=0.01)
    assert len(search.predict(relation)) == len(relation)
    by_loss = tp.GridSearch(tp.LogisticRegression(), {"l2": [0.1, 100.0]}, folds=3, metric="log_loss").fit(relation)
    assert by_loss.best_params_ == {"l2": 0.1}


def test_what_cannot_be_searched(tmp_path: Path) -> None:
    """Folds, seeds, groups, metrics and settings that are none are errors that say what would do."""
    relation = federation(tmp_path, tables(12)).sql(SQL.format("returned"), label="returned")
    learner = tp.LogisticRegression()
    for wrong in (1, 0, 2.5, True):
        with pytest.raises(tp.LearnError, match="folds is a whole number from 2"):
            tp.cross_validate(learner, relation, folds=wrong)  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match="has 12 rows in the relation, fewer than 13 folds"):
        tp.cross_validate(learner, relation, folds=13)
    with pytest.raises(tp.LearnError, match="'code' has 9 groups, fewer than 10 folds"):
        tp.cross_validate(learner, relation, folds=10, groups="code")
    with pytest.raises(tp.LearnError, match=r"stratified: a class has \d rows, fewer than 11 folds"):
        tp.cross_validate(learner, relation, folds=11, stratified=True)
    with pytest.raises(tp.LearnError, match="groups or stratified"):
        tp.cross_validate(learner, relation, groups="code", stratified=True)
    with pytest.raises(tp.LearnError, match="'round' is no setting of the learner; did you mean 'rounds'"):
        tp.GridSearch(learner, {"round": [1]}).fit(relation)
    with pytest.raises(tp.LearnError, match="give a list of values to try for 'l2'"):
        tp.GridSearch(learner, {"l2": 1e-6}).fit(relation)  # type: ignore[dict-item]
    with pytest.raises(tp.LearnError, match="l2 must be"):
        tp.GridSearch(learner, {"l2": [1e-6, -1.0]}).fit(relation)
    with pytest.raises(NotFittedError, match="GridSearch is not fitted"):
        tp.GridSearch(learner, {"l2": [1]}).predict(relation)


def test_a_fold_without_a_class_is_an_error(tmp_path: Path) -> None:
    """It says which fold, and what helps."""
    table = pa.table({"x": np.arange(12.0), "y": [1] + [0] * 11})
    relation = federation(tmp_path, {"p0": {"t": table}}).sql("SELECT x, y FROM t", label="y")
    with pytest.raises(tp.LearnError, match=r"fold \d: .*stratified=True deals every class to all folds"):
        tp.cross_validate(tp.LogisticRegression(rounds=2), relation, folds=3)


def test_groups_and_classes_need_what_policies_allow(tmp_path: Path) -> None:
    """Codes of single rows are sent only by tables that say so."""
    relation = policed(open_party(write_file(tmp_path))).sql("SELECT region, credit, fraud FROM cards", label="fraud")
    with pytest.raises(tp.PrivacyError, match=r"groups: .*column 'region'.*rule cross_statistics"):
        tp.cross_validate(tp.LogisticRegression(), relation, groups="region")


def test_a_metric_that_a_fold_does_not_have(tmp_path: Path) -> None:
    """A class with one order is in one fold's test only: a search by auc is refused, one by accuracy is not."""
    parties = tables()
    rare = np.zeros(240, np.int64)
    rare[[3, 30]] = 1
    for party, part in (("east", slice(0, 100)), ("west", slice(100, 240))):
        parties[party]["orders"] = parties[party]["orders"].append_column("rare", pa.array(rare[part]))
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("rare"), label="rare")
    with pytest.raises(tp.LearnError, match="auc cannot be measured on every fold"):
        tp.GridSearch(tp.LogisticRegression(), {"l2": [0.1, 1.0]}, folds=6, metric="auc").fit(relation)
    found = tp.GridSearch(tp.LogisticRegression(), {"l2": [0.1, 1.0]}, folds=6).fit(relation)
    assert np.isnan(found.results_["mean_test_auc"]).all()


def test_searches_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, learners and names of arguments, before anything is asked; results are there after `fit`."""
    relation = federation(tmp_path, tables(60)).sql(SQL.format("returned"), label="returned")
    messages = record_wire(monkeypatch)
    search = tp.GridSearch(tp.LogisticRegression(), {"l2": [0.1]}, metric="roc_au")
    with pytest.raises(tp.LearnError, match="'roc_au' is no metric of a classifier; did you mean"):
        search.fit(relation)
    with pytest.raises(
        tp.LearnError, match=r"cross_validate takes a learner, such as LogisticRegression\(\), not the cl"
    ):
        tp.cross_validate(tp.LogisticRegression, relation)  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match=r"GridSearch takes a learner"):
        tp.GridSearch(tp.LogisticRegression, {"l2": [0.1]}).fit(relation)  # type: ignore[arg-type]
    assert not messages
    with pytest.raises(NotFittedError, match="GridSearch is not fitted"):
        _ = search.results_
    assert not hasattr(search, "best_model_")
    with pytest.raises(TypeError, match=r"GridSearch has no argument 'scoring'; here it is 'metric'"):
        tp.GridSearch(tp.LogisticRegression(), {}, scoring="auc")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["lr", "solver__lr"])
def test_settings_of_solvers_are_searched(tmp_path: Path, name: str) -> None:
    """What a learner takes beside its own settings, or as a part's, a search takes too."""
    relation = federation(tmp_path, tables()).sql(SQL.format("returned"), label="returned")
    solver: Any = tp.SGD(batch_size=60) if "__" in name else "sgd"
    found = tp.GridSearch(tp.LogisticRegression(solver=solver, rounds=3), {name: [0.1, 1e-6]}, folds=2).fit(relation)
    assert found.best_params_ == {name: 0.1}
    with pytest.raises(tp.LearnError, match="'lrr' is no setting of the learner; did you mean 'lr'"):
        tp.GridSearch(tp.LogisticRegression(), {"lrr": [0.1]}).fit(relation)
