"""Stopping early: what is measured on a validation relation, which round is kept, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.runs.figures import metric
from tests.learn.materialised import (
    ALL,
    JOIN,
    Array,
    JoinedTable,
    class_numbers,
    learner,
    objective,
    shards_of,
    shop,
    side_by_side,
    theta_of,
)
from tests.relations import federation

Parties = dict[str, dict[str, pa.Table]]
CLASSES = [None, 2, 3]
SETTINGS: dict[str, dict[str, Any]] = {
    "lbfgs": {},
    "admm": {},
    "sgd": {"batch_size": 20, "lr": 0.3, "rounds": 60},
}
tasks = pytest.mark.parametrize("classes", CLASSES, ids=["numbers", "two classes", "three classes"])
solvers = pytest.mark.parametrize("solver", SETTINGS)


def noisy(classes: int | None, shards: int) -> tuple[Parties, str]:
    """Tables with many columns for few rows; with shards the first is cut, the others stay whole."""
    parties, sql = side_by_side(tables=3, columns=16, rows=160, correlation=0.0, seed=3, classes=classes)
    rng, table = np.random.default_rng(4), parties["p0"]["t0"]
    other = table["y"].to_numpy()[rng.permutation(len(table))]
    wrong = rng.random(len(table)) < 0.3
    label = pa.array(np.where(wrong, other, table["y"].to_numpy()))
    table = table.set_column(table.schema.get_field_index("y"), "y", label)
    if shards == 1:
        parties["p0"]["t0"] = table
    else:
        parties |= {f"p0{number}": {"t0": part} for number, part in enumerate(shards_of(table, shards))}
        del parties["p0"]
    return parties, sql


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[Any, Any]:
    """By task: (parties, train, validation) of a noisy relation."""
    found = {}
    for classes in CLASSES:
        parties, sql = noisy(classes, request.param)
        fed = federation(tmp_path_factory.mktemp("noisy"), parties, wire="float64")
        found[classes] = (parties, *fed.sql(sql, label="y").split(test=0.4, seed=1))
    return found


def measured(scores: Array, labels: Any, classes: int | None) -> tuple[float, float]:
    """(loss, metric) of scores."""
    if classes is None:
        loss = objective(scores, labels, None)
        return loss, float(np.sqrt(2 * loss))
    numbers = class_numbers(labels)[1]
    guess = scores > 0 if classes == 2 else scores.argmax(axis=1)
    return objective(scores, numbers, classes), float(np.mean(guess == numbers))


# What is kept


@tasks
@solvers
def test_the_best_round_is_kept(worlds: Mapping[Any, Any], classes: int | None, solver: str) -> None:
    """Learning stops `patience` rounds after the best; what is kept is an undisturbed run stopped at that round.

    Loss and metric of that round are those of the materialised validation rows.
    """
    parties, train, validation = worlds[classes]
    settings = {"solver": solver, "l2": 1e-6, **SETTINGS[solver]}
    model = learner(classes, **settings, patience=3).fit(train, validation)
    losses = [entry["validation_loss"] for entry in model.history_]
    best = int(np.argmin(losses)) + 1
    assert (model.best_round_, model.stopped_, model.converged_) == (best, "early stop", False)
    assert len(losses) == best + 3
    assert losses[best - 1] < losses[-1]
    short = learner(classes, **settings | {"rounds": best}).fit(train)
    table = JoinedTable(train, parties)
    theta = theta_of(model, table.names)
    np.testing.assert_array_equal(theta, theta_of(short, table.names))
    np.testing.assert_array_equal(model.intercept_, short.intercept_)
    assert [entry["loss"] for entry in model.history_[:best]] == [entry["loss"] for entry in short.history_]
    scores = table.encode(validation) @ theta + model.intercept_
    loss, metric = measured(scores, JoinedTable(validation, parties).labels, classes)
    entry = model.history_[best - 1]
    assert (entry["validation_loss"], entry["validation_metric"]) == pytest.approx((loss, metric), abs=1e-10)
    whole = learner(classes, **settings).fit(train)
    last = measured(
        table.encode(validation) @ theta_of(whole, table.names) + whole.intercept_,
        JoinedTable(validation, parties).labels,
        classes,
    )
    assert loss < last[0]


@tasks
@pytest.mark.parametrize("solver", ["lbfgs", "admm", "sgd"])
def test_networks_keep_the_best_round(worlds: Mapping[Any, Any], classes: int | None, solver: Any) -> None:
    """The same for networks: the kept parameters do on the validation rows what the best round did."""
    pytest.importorskip("torch", reason="networks need the extra `deep`")
    _, train, validation = worlds[classes]
    make = tp.MLPRegressor if classes is None else tp.MLPClassifier
    settings: dict[str, Any] = {"hidden": (4,), "solver": solver, "batch_size": 40, "lr": 0.1, "local_steps": 10}
    model = make(**settings, rounds=25, patience=4).fit(train, validation)
    losses = [entry["validation_loss"] for entry in model.history_]
    best = int(np.argmin(losses)) + 1
    assert (model.best_round_, model.stopped_) == (best, "early stop")
    assert len(losses) == best + 4
    told = model.evaluate(validation)
    kept = told["rmse"] ** 2 / 2 if classes is None else told["log_loss"]
    assert kept == pytest.approx(losses[best - 1], rel=1e-9)
    metric = told["rmse"] if classes is None else told["accuracy"]
    assert metric == pytest.approx(model.history_[best - 1]["validation_metric"])
    if solver != "sgd":  # its rates depend on the number of rounds
        short = make(**settings, rounds=best).fit(train)
        np.testing.assert_array_equal(model.predict(validation), short.predict(validation))


@solvers
def test_without_reduction(worlds: Mapping[Any, Any], solver: str) -> None:
    """The baselines stop at the same round with the same parameters."""
    _, train, validation = worlds[2]
    settings: Any = {"solver": solver, **SETTINGS[solver]}
    model, baseline = (
        tp.LogisticRegression(**settings, reduce=reduce).fit(train, validation) for reduce in (True, False)
    )
    assert baseline.best_round_ == model.best_round_
    np.testing.assert_allclose(baseline.predict_proba(validation), model.predict_proba(validation), atol=1e-8)


def test_a_run_that_converges_first(worlds: Mapping[Any, Any]) -> None:
    """With much patience the solver ends by its tolerance; the best round is still the one that is kept."""
    _, train, validation = worlds[None]
    model = tp.LinearRegression(patience=100, tol=1e-8).fit(train, validation)
    losses = [entry["validation_loss"] for entry in model.history_]
    assert (model.stopped_, model.converged_) == ("converged", True)
    assert model.best_round_ == int(np.argmin(losses)) + 1 < len(losses)
    assert model.evaluate(validation)["rmse"] ** 2 / 2 == pytest.approx(min(losses))
    used_up = tp.LinearRegression(patience=100, rounds=2).fit(train, validation)
    assert (used_up.stopped_, used_up.converged_) == ("rounds used up", False)


def test_without_validation(worlds: Mapping[Any, Any]) -> None:
    """The last round is kept; history says that nothing was held out."""
    _, train, _ = worlds[2]
    model = tp.LogisticRegression(rounds=3).fit(train)
    assert (model.best_round_, model.stopped_) == (3, "rounds used up")
    assert {(entry["validation_loss"], entry["validation_metric"]) for entry in model.history_} == {(None, None)}


def test_saved_as_kept(worlds: Mapping[Any, Any], tmp_path: Path) -> None:
    """`save` writes the parameters of the best round, though nothing was asked since fitting ended."""
    parties, train, validation = worlds[2]
    model = tp.LogisticRegression().fit(train, validation)
    model.save(tmp_path / "model")
    fed = federation(tmp_path, parties, wire="float64")
    loaded = tp.load(tmp_path / "model", fed)
    assert (loaded.best_round_, loaded.stopped_) == (model.best_round_, "early stop")
    other = fed.sql(noisy(2, 1)[1], label="y").split(test=0.4, seed=1)[1]
    best = model.history_[model.best_round_ - 1]["validation_loss"]
    assert loaded.evaluate(other)["log_loss"] == pytest.approx(best, rel=1e-9)


def test_told_in_events(worlds: Mapping[Any, Any]) -> None:
    """Progress has the validation loss in message and fields; the last event says how it ended."""
    _, train, validation = worlds[2]
    events: list[tp.Event] = []
    stop = train.events.subscribe(events.append)
    own: list[tp.Event] = []
    try:
        model = tp.LogisticRegression(callbacks=[own.append]).fit(train, validation)
    finally:
        stop()
    progress = [event for event in events if event.name == "fit"]
    assert [event.fields for event in progress] == [event.fields for event in own if event.name == "fit"]
    for event, entry in zip(progress, model.history_, strict=True):
        assert entry.items() <= dict(event.fields).items()
        assert f"validation loss {metric('loss', entry['validation_loss'])}" in event.message
    (fitted,) = (event for event in events if event.name == "fitted")
    assert (fitted.fields["stopped"], fitted.fields["best_round"]) == ("early stop", model.best_round_)
    assert "stopped early after" in fitted.message
    assert f"those of round {model.best_round_}" in fitted.message


# What it costs


@pytest.mark.parametrize(("shards", "a_round"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
def test_one_more_trip_a_round(tmp_path: Path, shards: int, a_round: int, solver: Any) -> None:
    """Labels, categories and encoding of the validation rows travel with those of the others; scores are a trip."""
    fed = federation(tmp_path, shop(shards))
    train, validation = fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned").split(test=0.3)
    before = fed.engine.traffic.trips
    settings: dict[str, Any] = {"solver": solver, "rounds": 4, "tol": 0.0, "patience": 9}
    tp.LogisticRegression(**settings).fit(train, validation)
    assert fed.engine.traffic.trips - before == 1 + 4 * (a_round + 1)
    before = fed.engine.traffic.trips
    tp.LogisticRegression(**settings).fit(train)
    assert fed.engine.traffic.trips - before == 1 + 4 * a_round


def test_parameters_stay_where_they_are(tmp_path: Path) -> None:
    """Where one table has shards and others do not, no party lets parameters out to measure or to keep."""
    parties, sql = noisy(2, 2)
    fed = federation(tmp_path, parties)
    model = tp.LogisticRegression().fit(*fed.sql(sql, label="y").split(test=0.4, seed=1))
    assert model.best_round_ < len(model.history_)
    assert not [entry for entry in fed.traffic if entry["release"] == "PARAMETERS"]


# Other relations


def test_a_relation_of_its_own_query(tmp_path: Path) -> None:
    """The validation relation may be another query; categories it has more of than allowed for fitting are none."""
    parties = shop(1)
    fed = federation(tmp_path, parties, wire="float64")
    text = f"SELECT {ALL}, o.returned {JOIN}"
    train = fed.sql(f"{text} WHERE o.quantity < 4 AND i.colour <> 'blue'", label="returned", max_categories=2)
    validation = fed.sql(f"{text} WHERE o.quantity >= 4", label="returned", max_categories=2)
    model = tp.LogisticRegression(patience=1).fit(train, validation)
    table = JoinedTable(train, parties)
    scores = table.encode(validation) @ theta_of(model, table.names) + model.intercept_
    loss, _ = measured(scores, JoinedTable(validation, parties).labels, 2)
    assert min(entry["validation_loss"] for entry in model.history_) == pytest.approx(loss, abs=1e-10)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(1))


@pytest.mark.parametrize(
    ("sql", "label", "told"),
    [
        (f"SELECT {ALL} {JOIN}", None, r"needs the label .*o\.grade.* has none"),
        (f"SELECT {ALL}, o.returned {JOIN}", "returned", r"o\.grade.* but has o\.returned"),
        (f"SELECT {ALL}, upper(o.grade) AS grade {JOIN}", "grade", "needs the label"),
        (f"SELECT o.price, o.grade {JOIN}", "grade", r"same columns .*c\.age, c\.credit"),
        (f"SELECT {ALL}, o.day, o.grade {JOIN}", "grade", r"otherwise: o\.day"),
        (f"SELECT {ALL.replace('o.price', 'o.price / 2 AS price')}, o.grade {JOIN}", "grade", r"otherwise: o\.price"),
        (f"SELECT {ALL}, o.grade {JOIN} WHERE o.quantity > 99", "grade", "no joined rows"),
        (f"SELECT {ALL}, o.grade {JOIN}", "grade", "1 classes in the validation relation that the model was not"),
    ],
)
def test_refusals(fed: tp.Federation, sql: str, label: str | None, told: str) -> None:
    """A validation relation must have rows, and the columns, label and classes of the other."""
    train = fed.sql(f"SELECT {ALL}, o.grade {JOIN} WHERE o.grade <> 'top'", label="grade")
    with pytest.raises(tp.LearnError, match=told):
        tp.LogisticRegression().fit(train, fed.sql(sql, label=label))


def test_another_federation(fed: tp.Federation, tmp_path: Path) -> None:
    """Both relations must be of one federation."""
    text = f"SELECT {ALL}, o.grade {JOIN}"
    elsewhere = federation(tmp_path, shop(1)).sql(text, label="grade")
    with pytest.raises(tp.LearnError, match="another federation"):
        tp.LogisticRegression().fit(fed.sql(text, label="grade"), elsewhere)


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    """A feature that is infinite among the validation rows is refused, as it is among the others."""
    rows = pa.table({"x": [0.0, 1.0, 2.0, 3.0, np.inf], "y": [0.1, 0.9, 2.2, 2.9, 4.0]})
    odd = federation(tmp_path, {"p": {"t": rows}})
    train = odd.sql("SELECT x, y FROM t WHERE y < 3", label="y")
    with pytest.raises(tp.LearnError, match="not finite"):
        tp.LinearRegression().fit(train, odd.sql("SELECT x, y FROM t WHERE y > 2", label="y"))
