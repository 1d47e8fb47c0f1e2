"""Default settings: sgd ends where lbfgs does, networks converge, and a fit that stops short says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.neural_network import MLPRegressor

import tablepuppet as tp
from benchmarks.learning.movielens import objective
from benchmarks.learning.synthetic import LABELS, Shape, synthetic, write_synthetic
from tablepuppet.learn.solve.plateau import EARLY, WINDOW, Plateau
from tablepuppet.learn.solve.schedule import Usual, epochs_that_fit
from tablepuppet.runs.events import Event
from tests.relations import federation

USUAL = Usual(batches=5, epochs=40, long_epochs=20, steps=200)


def linear(task: str, **settings: Any) -> Any:
    """The linear learner of a task."""
    return tp.LinearRegression(**settings) if task == "regression" else tp.LogisticRegression(**settings)


@pytest.mark.parametrize("task", list(LABELS))
@pytest.mark.parametrize("shards", [1, 2])
def test_sgd_ends_where_lbfgs_does(tmp_path: Path, task: str, shards: int) -> None:
    """The objective is within 0.5 %, or 0.001, over joins with duplicates, correlated columns and rare categories.

    It says that it is near the optimum, and not that it has converged: it has not, to what this means for others.
    """
    relation = synthetic(tp.Federation(write_synthetic(tmp_path, Shape(1500, shards))), task)
    best = objective(linear(task).fit(relation), relation)
    model = linear(task, solver="sgd").fit(relation)
    assert objective(model, relation) <= max(1.005 * best, best + 0.001)
    assert (model.stopped_, model.converged_) == ("near the optimum", False)


def test_sgd_stands_rows_far_from_all_others(tmp_path: Path) -> None:
    """With columns whose largest value is a hundred standard deviations from the mean sgd still finds the optimum."""
    rng = np.random.default_rng(0)
    table = pa.table({"a": np.exp(2 * rng.normal(size=3000)), "b": np.exp(2 * rng.normal(size=3000))})
    label = np.log(table["a"].to_numpy()) + rng.normal(size=3000)
    fed = federation(tmp_path, {"p": {"t": table.append_column("y", pa.array(label))}})
    relation = fed.sql("SELECT a, b, y FROM t", label="y")
    best = objective(tp.LinearRegression().fit(relation), relation)
    assert objective(tp.LinearRegression(solver="sgd").fit(relation), relation) <= 1.005 * best


def test_consensus_needs_no_gram_matrix_for_good_steps(tmp_path: Path) -> None:
    """Where shards return no Gram matrix, steps fit the columns' mean squares; the end is as good."""
    relation = synthetic(tp.Federation(write_synthetic(tmp_path, Shape(1500, 2))), "binary")
    best = objective(tp.LogisticRegression().fit(relation), relation)
    model = tp.LogisticRegression(solver="sgd", inner_rounds=1).fit(relation)
    assert objective(model, relation) <= max(1.005 * best, best + 0.001)


@pytest.mark.parametrize("settings", [{"rounds": 1}, {"rounds": 5, "lr": 0.001}])
def test_a_fit_that_stops_short_says_so(tmp_path: Path, settings: dict[str, Any]) -> None:
    """It is not called converged, and a warning says what to change."""
    relation = synthetic(tp.Federation(write_synthetic(tmp_path, Shape(1000))), "binary")
    seen: list[Event] = []
    model = tp.LogisticRegression(solver="sgd", callbacks=[seen.append], **settings).fit(relation)
    assert (model.stopped_, model.converged_) == ("rounds used up", False)
    [warning] = [event for event in seen if event.kind == "warning"]
    assert warning.name == "fit.short"
    assert "LogisticRegression by sgd stopped short of the optimum" in warning.message
    assert "set rounds above" in warning.message


def test_a_fit_that_has_converged_or_nearly_does_not_warn(tmp_path: Path) -> None:
    """Neither by lbfgs nor by sgd."""
    relation = synthetic(tp.Federation(write_synthetic(tmp_path, Shape(1000))), "regression")
    seen: list[Event] = []
    for solver in ("lbfgs", "sgd"):
        tp.LinearRegression(solver=solver, callbacks=[seen.append]).fit(relation)
    assert "fit.short" not in {event.name for event in seen}


@pytest.mark.parametrize(
    ("rows", "rounds", "size", "found"),
    [
        (1_000, "auto", "auto", (40, 200)),
        (2_000_000, "auto", "auto", (20, 200_000)),
        (1_000_000, 3, "auto", (3, 14_926)),
        (15_000, "auto", 256, (10, 256)),
        (50, "auto", "auto", (40, 50)),
        (15_000, 7, 100, (7, 100)),
    ],
)
def test_epochs_and_batches_follow_the_rows(rows: int, rounds: Any, size: Any, found: tuple[int, int]) -> None:
    """What is set is taken; what is "auto" makes some two hundred steps of a fifth of the rows each."""
    from tablepuppet.learn.solve.schedule import RoundAllowance

    made = epochs_that_fit(rows, rounds, size, USUAL, lambda _: RoundAllowance(()), {})
    assert (made.rounds, made.batch_size) == found


def test_an_objective_is_flat_when_it_hardly_falls() -> None:
    """Not in the first rounds, nor while it falls, nor when it has just risen."""
    flat, falling, risen = (Plateau(1e-4, constant=2.0) for _ in range(3))
    assert [flat.is_flat(1.0) for _ in range(EARLY)] == [False] * (EARLY - 1) + [True]
    assert not any(falling.is_flat(0.99**number) for number in range(EARLY + WINDOW))
    assert not any(risen.is_flat(1.0 if number < EARLY - 1 else 2.0) for number in range(EARLY))


def test_an_objective_of_noisy_labels_is_flat_later() -> None:
    """A fall counts beside what was learned so far: where a constant is nearly as good, that is little."""
    falls = [1.0 - 1e-5 * number for number in range(EARLY)]
    learned, noisy, nothing = Plateau(1e-4, constant=2.0), Plateau(1e-4, constant=1.01), Plateau(1e-4, constant=1.0)
    assert [learned.is_flat(fall) for fall in falls][-1]
    assert not any(noisy.is_flat(fall) for fall in falls)
    assert [nothing.is_flat(1.0) for _ in falls][-1]


def additive(folder: Path, shards: int) -> tuple[tp.Relation, tp.Relation, Any]:
    """A label that is a sum of curves of two tables' columns: both sides of a split, and the joined columns."""
    rng = np.random.default_rng(3)
    rows, people = 2000, 300
    owner, a = rng.integers(0, people, rows), rng.normal(size=rows)
    b, c = rng.normal(size=people), rng.normal(size=people)
    label = np.sin(2 * a) + (b**2 - b * c)[owner] + 0.5 * rng.normal(size=rows)
    whole = pa.table({"id": np.arange(people), "b": b, "c": c})
    size = -(-people // shards)
    parties = {f"p{number}": {"people": whole.slice(number * size, size)} for number in range(shards)}
    fed = federation(folder, parties | {"facts": {"f": pa.table({"id": owner, "a": a, "y": label})}})
    relation = fed.sql("SELECT f.a, p.b, p.c, f.y FROM f JOIN people p USING (id)", label="y")
    return *relation.split(test=0.25, seed=1), np.stack([a, b[owner], c[owner], label], axis=1)


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")
@pytest.mark.parametrize("shards", [1, 2])
def test_networks_converge_by_default(tmp_path: Path, shards: int) -> None:
    """A default fit ends as converged, within a few percent of scikit-learn's network with as many units."""
    train, test, joined = additive(tmp_path, shards)
    model = tp.MLPRegressor(hidden=(8,)).fit(train)
    assert model.stopped_ == "converged"
    pooled = MLPRegressor(hidden_layer_sizes=(16,), activation="tanh", solver="lbfgs", max_iter=500, random_state=0)
    pooled.fit(joined[:1500, :-1], joined[:1500, -1])
    error = np.sqrt(np.mean((pooled.predict(joined[1500:, :-1]) - joined[1500:, -1]) ** 2))
    assert model.evaluate(test)["rmse"] <= 1.1 * error


@pytest.mark.parametrize("task", ["regression", "binary"])
@pytest.mark.parametrize("shards", [1, 2])
def test_small_relations_end_by_rows_held_out(tmp_path: Path, shards: int, task: str) -> None:
    """A default network over 1,000 rows converges before it knows them by heart, and does better on unseen rows."""
    fed = tp.Federation(write_synthetic(tmp_path, Shape(1000, shards, curved=True)))
    train, test = synthetic(fed, task).split(test=0.2, seed=1)
    seen: list[Event] = []
    learner: Any = tp.MLPRegressor if task == "regression" else tp.MLPClassifier
    model = learner(callbacks=[seen.append]).fit(train)
    assert (model.stopped_, model.converged_, model.history_[-1]["converged"]) == ("converged", True, True)
    assert "fit.short" not in {event.name for event in seen}
    [ended] = [event.message for event in seen if event.name == "fitted"]
    assert f"those of round {model.best_round_}, the best on the rows held out" in ended
    losses = [entry["validation_loss"] for entry in model.history_]
    assert int(np.argmin(losses)) + 1 == model.best_round_ < len(losses) < 400
    long = learner(rounds=150, solver="lbfgs").fit(train)
    assert long.history_[-1]["validation_loss"] is None  # whoever says how many rounds gets these, of all rows
    name = "rmse" if task == "regression" else "log_loss"
    assert model.evaluate(test)[name] < 0.97 * long.evaluate(test)[name]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"rounds": 2}, {"rounds": 2, "rho": 0.5}])
def test_networks_take_lbfgs(
    tmp_path: Path, shards: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "auto" is the solver that is mostly first at a given loss, whatever the rows, the shards and other settings."""
    monkeypatch.setattr("tablepuppet.learn.learners.network.SMALL", 1000)  # the relation has more rows
    train, _, _ = additive(tmp_path, shards)
    model = tp.MLPRegressor(hidden=(2,), tol=1e-2, **settings).fit(train)
    assert (model.solver_, model.history_[-1]["validation_loss"]) == ("lbfgs", None)


def test_networks_with_noise_take_sgd() -> None:
    """The solvers that "auto" may take depend on what has a form with noise; a solver that is named is taken."""
    noise = tp.Privacy(feature_epsilon=1.0, delta=1e-5, clip_norm=1.0)
    for make in (tp.MLPRegressor, tp.MLPClassifier):
        chosen = [each._chosen_solver() for each in (make(), make(privacy=noise), make(privacy=noise, solver="admm"))]
        assert chosen == ["lbfgs", "sgd", "admm"]


def test_a_class_among_the_rows_held_out_only(tmp_path: Path) -> None:
    """Where one side would lack a class, nothing is held out: the model knows all classes."""
    rng = np.random.default_rng(0)
    classes = ["rare" if row == 7 else "yes" if row % 2 else "no" for row in range(200)]
    fed = federation(tmp_path, {"p": {"f": pa.table({"a": rng.normal(size=200), "y": classes})}})
    relation = fed.sql("SELECT a, y FROM f", label="y")
    held_out = {seed: relation.split(0.1, seed)[1] for seed in range(30)}
    with_it = [seed for seed, side in held_out.items() if 7 in side.rows()["f.row"].to_pylist()]
    model = tp.MLPClassifier(hidden=(2,), seed=with_it[0], tol=1e-2).fit(relation)
    assert list(model.classes_) == ["no", "rare", "yes"]
    assert model.history_[-1]["validation_loss"] is None


def test_an_error_of_the_rows_is_one_error(tmp_path: Path) -> None:
    """Rows are not held out where labels are missing; the error is that of a fit from all rows, and no other."""
    table = pa.table({"a": np.arange(200.0), "y": [None if row == 7 else row % 2 for row in range(200)]})
    relation = federation(tmp_path, {"p": {"f": table}}).sql("SELECT a, y FROM f", label="y")
    with pytest.raises(tp.LearnError, match=r"label f\.y is NULL in 1 rows") as caught:
        tp.MLPClassifier(hidden=(2,)).fit(relation)
    assert caught.value.__context__ is None


def test_networks_stop_by_validation(tmp_path: Path) -> None:
    """Where validation rows are given, learning ends when they say so."""
    train, test, _ = additive(tmp_path, 1)
    model = tp.MLPRegressor(hidden=(8,)).fit(train, validation=test)
    assert model.stopped_ in ("early stop", "converged")
    assert model.best_round_ <= len(model.history_)
