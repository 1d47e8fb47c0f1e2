"""What all learners share: scikit-learn's manner, history and traffic, refusals that say what to do."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import tablepuppet as tp
from tablepuppet.baselines import Centralized
from tests.learn.materialised import (
    ALL,
    JOIN,
    PLAIN,
    JoinedTable,
    expected,
    learner,
    predictions,
    shop,
    solved,
    theta_of,
)
from tests.relations import collect_garbage, federation, record_wire

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
KEYS = {
    "round", "seconds", "loss", "objective", "metric", "validation_loss", "validation_metric", "bytes_up", "bytes_down",
    "messages", "epsilon", "solver", "converged", "lost",
}  # fmt: skip
every_solver = pytest.mark.parametrize("solver", ["auto", "lbfgs", "admm", "sgd"])


@pytest.fixture(scope="module")
def parties() -> dict[str, dict[str, pa.Table]]:
    return shop(2, together=True)


@pytest.fixture(scope="module")
def fed(parties: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), parties, wire="float64")


@pytest.fixture(scope="module")
def returned(fed: tp.Federation) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")


def total(fed: tp.Federation, direction: str | None = None) -> tuple[int, int]:
    entries = [entry for entry in fed.traffic if direction in (None, entry["direction"])]
    return sum(entry["bytes"] for entry in entries), sum(entry["messages"] for entry in entries)


# scikit-learn's manner


def test_init_only_stores() -> None:
    """Settings come back as they were given; clone copies them and nothing else."""
    model = tp.LogisticRegression(solver="admm", l2=0.5, rounds=7)
    assert model.get_params()["l2"] == 0.5
    assert model.set_params(l2=0.25) is model
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy is not model
    assert repr(model) == "LogisticRegression(l2=0.25, rounds=7, solver='admm')"
    assert not [name for name in vars(model) if name.endswith("_")]
    with pytest.raises(ValueError, match="Invalid parameter"):
        model.set_params(penalty="l1")


@pytest.mark.parametrize("make", [tp.LinearRegression, tp.LogisticRegression, tp.MLPRegressor, tp.MLPClassifier])
def test_a_misspelt_setting(make: Any) -> None:
    """The error names the class that was written and the closest setting; it is one of ours, and Python's own kind."""
    with pytest.raises(tp.LearnError, match=rf"^{make.__name__} has no setting 'seeds'; did you mean 'seed'\?$"):
        make(seeds=1)
    with pytest.raises(TypeError, match=rf"^{make.__name__} takes settings by name"):
        make(0.1)
    assert pickle.loads(pickle.dumps(make(seed=3))).seed == 3
    assert clone(make(seed=3)).seed == 3


@pytest.mark.parametrize(
    ("make", "setting", "told"),
    [
        (tp.GradientBoostingClassifier, "reg_lambda", "here it is 'l2_regularization'$"),
        (tp.GradientBoostingClassifier, "rounds", "here it is 'max_iter'$"),
        (tp.GradientBoostingRegressor, "num_leaves", "here it is 'max_leaf_nodes'$"),
        (tp.RandomForestClassifier, "max_iter", "here it is 'n_estimators'$"),
        (tp.LogisticRegression, "reg_lambda", "here it is 'l2': l2 = reg_lambda / N"),
    ],
)
def test_settings_have_other_names_elsewhere(make: Any, setting: str, told: str) -> None:
    """A setting of XGBoost, LightGBM or another learner is answered with the one that the learner has."""
    with pytest.raises(tp.LearnError, match=told):
        make(**{setting: 1})


def test_what_trees_have_instead_of_coefficients() -> None:
    """Trees without a fit say so; of parameters of linear models they say what they have."""
    model = tp.RandomForestClassifier()
    with pytest.raises(NotFittedError):
        model.feature_importances_  # noqa: B018
    for name in ("coef_", "summary", "contribution_names_"):
        with pytest.raises(AttributeError, match=rf"^RandomForestClassifier has no {name}: .*contributions"):
            getattr(model, name)
    assert not hasattr(model, "anything_else")


def test_fit_returns_self_and_ends_in_underscores(returned: tp.Relation) -> None:
    """`fit` gives the learner back; a clone of a fitted one is not fitted; fitting again starts anew."""
    model = tp.LogisticRegression()
    assert model.fit(returned) is model
    assert model.n_features_in_ == len(returned.columns)
    with pytest.raises(NotFittedError):
        clone(model).predict(returned)
    first = predictions(model, returned)
    rounds = len(model.history_)
    np.testing.assert_array_equal(predictions(model.fit(returned), returned), first)
    assert len(model.history_) == rounds


@pytest.mark.parametrize("make", [tp.LinearRegression, tp.LogisticRegression])
def test_not_fitted(make: Any, returned: tp.Relation, tmp_path: Path) -> None:
    """Whatever needs parameters says that there are none yet."""
    model = make()
    for name in ("predict", "evaluate"):
        with pytest.raises(NotFittedError):
            getattr(model, name)(returned)
        with pytest.raises(tp.LearnError, match=f"this {make.__name__} is not fitted yet: call fit"):
            getattr(model, name)(returned)
    with pytest.raises(NotFittedError):
        model.coef_  # noqa: B018
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_shapes(fed: tp.Federation, returned: tp.Relation) -> None:
    """Probabilities are (joined rows, classes) for two classes, too, and rows add up to one; classes are sorted."""
    model = tp.LogisticRegression().fit(returned)
    chance = model.predict_proba(returned)
    assert chance.shape == (len(returned), 2)
    np.testing.assert_allclose(chance.sum(axis=1), 1)
    assert model.classes_.tolist() == [False, True]
    assert model.intercept_.shape == (1,)
    assert all(np.shape(value) == () for value in model.coef_.values())
    assert (model.predict(returned) == (chance[:, 1] > 0.5)).all()
    grades = fed.sql(f"SELECT {ALL}, o.grade {JOIN}", label="grade")
    four = tp.LogisticRegression().fit(grades)
    assert four.predict_proba(grades).shape == (len(grades), 4)
    assert four.classes_.tolist() == ["bad", "fair", "good", "top"]
    assert all(np.shape(value) == (4,) for value in four.coef_.values())
    assert set(four.evaluate(grades)) == set(model.evaluate(returned)) == {"accuracy", "auc", "log_loss"}
    paid = fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
    assert set(tp.LinearRegression().fit(paid).evaluate(paid)) == {"rmse", "r2"}


@every_solver
def test_same_seed_same_result(returned: tp.Relation, solver: Any) -> None:
    """Two runs with one seed give the same numbers, bit by bit; another seed changes only SGD."""
    settings: dict[str, Any] = {"solver": solver, "rounds": 3, "batch_size": 40}
    one, two = (tp.LogisticRegression(**settings, seed=1).fit(returned) for _ in range(2))
    np.testing.assert_array_equal(one.predict_proba(returned), two.predict_proba(returned))
    assert [entry["loss"] for entry in one.history_] == [entry["loss"] for entry in two.history_]
    other = tp.LogisticRegression(**settings, seed=2).fit(returned)
    same = bool((other.predict_proba(returned) == one.predict_proba(returned)).all())
    assert same == (solver != "sgd")


# History, events, traffic


@every_solver
@pytest.mark.parametrize("label", TASKS)
def test_history(fed: tp.Federation, solver: str, label: str) -> None:
    """One entry per round; its loss and metric are those of the joined rows, its bytes those that were metered."""
    relation = fed.sql(f"SELECT {PLAIN}, o.{label} {JOIN}", label=label)
    seen: list[tuple[int, int, int]] = []

    def callback(event: tp.Event) -> None:
        if event.name == "fit":
            seen.append((*total(fed), event.fields["done"]))

    settings = {"rounds": 3, "batch_size": 60} if solver == "sgd" else {}
    model = learner(TASKS[label], solver=solver, callbacks=[callback], **settings).fit(relation)
    history = model.history_
    assert [entry["round"] for entry in history] == list(range(1, len(history) + 1)) == [done for *_, done in seen]
    assert all(set(entry) == KEYS for entry in history)
    assert {entry["solver"] for entry in history} == {"lbfgs" if solver == "auto" else solver} == {model.solver_}
    for entry, before, after in zip(history[1:], seen, seen[1:], strict=False):
        assert entry["bytes_up"] + entry["bytes_down"] == after[0] - before[0]
        assert entry["messages"] == after[1] - before[1]
        assert entry["seconds"] > 0
        assert entry["epsilon"] is None
    assert [entry["converged"] for entry in history[:-1]] == [False] * (len(history) - 1)
    assert history[-1]["converged"] is model.converged_ is (solver != "sgd")
    if solver != "sgd":
        told = model.evaluate(relation)
        last = told["rmse"] if TASKS[label] is None else told["accuracy"]
        assert history[-1]["metric"] == pytest.approx(last, abs=1e-9)
        loss = told["rmse"] ** 2 / 2 if TASKS[label] is None else told["log_loss"]
        assert history[-1]["loss"] == pytest.approx(loss, rel=1e-6)


def test_bytes_of_all_rounds(fed: tp.Federation, returned: tp.Relation) -> None:
    """What history says in sum is what the meter grew by, from the first round to the last."""
    marks: list[int] = []
    model = tp.LogisticRegression(
        callbacks=[lambda event: marks.append(total(fed)[0]) if event.name != "fit.begins" else None]
    )
    before = total(fed)[0]
    model.fit(returned)
    spent = sum(entry["bytes_up"] + entry["bytes_down"] for entry in model.history_)
    assert marks[-1] - before >= spent
    assert spent - (model.history_[0]["bytes_up"] + model.history_[0]["bytes_down"]) == marks[-1] - marks[0]


def test_converged_or_not(fed: tp.Federation, returned: tp.Relation) -> None:
    """Too few rounds are said in history_, converged_ and the final event; so is success."""
    events: list[tp.Event] = []
    stop = fed.events.subscribe(events.append)
    try:
        short, full = tp.LogisticRegression(rounds=1).fit(returned), tp.LogisticRegression().fit(returned)
    finally:
        stop()
    assert not short.converged_
    assert not short.history_[-1]["converged"]
    assert full.converged_
    ends = [event for event in events if event.name == "fitted"]
    assert [event.fields["converged"] for event in ends] == [False, True]
    assert [event.fields["rounds"] for event in ends] == [1, len(full.history_)]
    assert [event.fields["solver"] for event in ends] == ["lbfgs", "lbfgs"]
    assert "not converged after 1 round" in ends[0].message
    progress = [event for event in events if event.name == "fit"]
    assert len(progress) == 1 + len(full.history_)


def test_a_looser_tolerance_needs_fewer_rounds(returned: tp.Relation) -> None:
    """`tol` bounds the decrease that a further round promises, as a share of the objective."""
    rounds, best = [], tp.LogisticRegression().fit(returned).history_[-1]["objective"]
    for tol in (1e-2, 1e-5, 1e-15):
        history = tp.LogisticRegression(tol=tol).fit(returned).history_
        rounds.append(len(history))
        assert history[-1]["objective"] <= best * (1 + tol) + 1e-12
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[2]


def test_nothing_of_joined_length_reaches_a_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With reduction no array that travels is as long as the join."""
    fed = federation(tmp_path, shop(2, orders=80, together=True))
    relation = fed.sql(
        f"SELECT {ALL}, q.price AS other, o.grade {JOIN} JOIN orders q ON q.card_id = o.card_id", label="grade"
    )
    longest = max(table.rows for table in relation.mapping.tables.values())
    assert len(relation) > 2 * longest
    messages = record_wire(monkeypatch)
    for solver in ("auto", "admm"):
        tp.LogisticRegression(solver=solver, rounds=3).fit(relation).evaluate(relation)
    assert messages
    for message in messages:
        for value in (*message.request.arguments.values(), *(message.reply or {}).values()):
            assert np.shape(value)[:1] <= (longest,)


# Predicting elsewhere


def test_another_filter(fed: tp.Federation, parties: Mapping[str, Any]) -> None:
    """A model predicts over another relation of its federation, by the encoders it was fitted with."""
    for label, classes in TASKS.items():
        train = fed.sql(f"SELECT {ALL}, o.{label} {JOIN} WHERE o.quantity < 4", label=label)
        test = fed.sql(f"SELECT {ALL}, o.{label} {JOIN} WHERE o.quantity >= 4", label=label)
        model = learner(classes, l2=1e-3).fit(train)
        table = JoinedTable(train, parties)
        best, _ = solved(table, 1e-3, classes)
        wanted = expected(best, table.encode(test), classes)
        np.testing.assert_allclose(predictions(model, test), wanted, atol=1e-6)


def test_an_unseen_category_is_all_zeros(fed: tp.Federation, parties: Mapping[str, Any]) -> None:
    """A category that the training rows did not have counts as none."""
    train = fed.sql(f"SELECT {ALL}, o.paid {JOIN} WHERE i.colour <> 'blue'", label="paid")
    test = fed.sql(f"SELECT {ALL}, o.paid {JOIN} WHERE i.colour = 'blue'", label="paid")
    model = tp.LinearRegression(l2=1e-3).fit(train)
    table = JoinedTable(train, parties)
    best, _ = solved(table, 1e-3, None)
    np.testing.assert_allclose(model.predict(test), best.scores(table.encode(test)), atol=1e-6)


def test_other_shards(fed: tp.Federation, parties: Mapping[str, Any]) -> None:
    """Fitted on one party's shard, a model predicts for the rows of another's, which is told the parameters."""
    only = JOIN.replace("FROM orders", "FROM owner1.orders")
    train = fed.sql(f"SELECT {ALL}, o.paid {only}", label="paid")
    model = tp.LinearRegression(l2=1e-3).fit(train)
    table = JoinedTable(train, parties)
    best, _ = solved(table, 1e-3, None)
    np.testing.assert_allclose(theta_of(model, table.names), best.theta, atol=1e-6)
    for owner in ("owner0.orders", "orders"):
        test = fed.sql(f"SELECT {ALL}, o.paid {JOIN.replace('FROM orders', f'FROM {owner}')}", label="paid")
        np.testing.assert_allclose(model.predict(test), best.scores(table.encode(test)), atol=1e-6)


def test_split_sides(fed: tp.Federation, parties: Mapping[str, Any], returned: tp.Relation) -> None:
    """Both sides of a split: fitted on one, evaluated on the other."""
    train, test = returned.split(test=0.3, seed=1)
    model = tp.LogisticRegression(l2=1e-3).fit(train)
    table = JoinedTable(train, parties)
    best, _ = solved(table, 1e-3, 2)
    np.testing.assert_allclose(model.predict_proba(test), best.probability(table.encode(test)), atol=1e-6)
    assert set(model.evaluate(test)) == {"accuracy", "auc", "log_loss"}


def test_more_columns_than_the_model_needs(fed: tp.Federation) -> None:
    """Columns that were not there for fitting are not looked at; a relation to predict over needs no label."""
    train = fed.sql(f"SELECT {PLAIN}, o.paid {JOIN}", label="paid")
    model = tp.LinearRegression().fit(train)
    wider = fed.sql(f"SELECT {ALL}, o.quantity * 2 AS twice {JOIN}")
    np.testing.assert_allclose(model.predict(wider), model.predict(train), atol=1e-9)


# Refusals


def refused(fed: tp.Federation, sql: str, label: str | None, make: Any = tp.LinearRegression, **settings: Any) -> str:
    """The message of the LearnError that fitting ends in."""
    with pytest.raises(tp.LearnError) as caught:
        make(**settings).fit(fed.sql(sql, label=label))
    return str(caught.value)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    """Tables with everything that cannot be learned from."""
    rows = 12
    left = pa.table(
        {
            "id": np.arange(rows),
            "x": np.linspace(0, 1, rows),
            "infinite": np.append(np.inf, np.linspace(0, 1, rows - 1)),
            "nan": np.append(np.nan, np.linspace(0, 1, rows - 1)),
            "word": pa.array(["yes", "no"] * 6),
            "gaps": pa.array([None, 1.0, 2.0] * 4),
            "gaps_class": pa.array([None, "a", "b"] * 4),
            "one": np.ones(rows),
            "one_class": pa.array(["same"] * rows),
            "unique": pa.array([f"u{number}" for number in range(rows)]),
        }
    )
    right = pa.table({"id": np.arange(rows), "z": np.arange(rows) % 5})
    return federation(tmp_path_factory.mktemp("odd"), {"a": {"l": left}, "b": {"r": right}})


ODD = "FROM l JOIN r ON l.id = r.id"


def test_no_label(odd: tp.Federation) -> None:
    assert "label=" in refused(odd, f"SELECT l.x, r.z {ODD}", None)


def test_no_joined_rows(odd: tp.Federation) -> None:
    for make in (tp.LinearRegression, tp.LogisticRegression):
        message = refused(odd, f"SELECT l.x, r.z {ODD} WHERE l.x > 5", "x", make)
        assert "no joined rows" in message
        assert "explain()" in message


def test_an_empty_train_side(odd: tp.Federation) -> None:
    train, test = odd.sql(f"SELECT l.x, r.z {ODD}", label="x").split(test=1.0)
    assert len(test)
    with pytest.raises(tp.LearnError, match="no joined rows"):
        tp.LinearRegression().fit(train)


def test_one_class(odd: tp.Federation) -> None:
    for label in ("one_class", "one"):
        message = refused(odd, f"SELECT l.x, r.z, l.{label} {ODD}", label, tp.LogisticRegression)
        assert f"l.{label} has one class only" in message
        assert "two or more" in message


def test_null_labels(odd: tp.Federation) -> None:
    message = refused(odd, f"SELECT l.x, r.z, l.gaps {ODD}", "gaps")
    assert "l.gaps is NULL in 4 rows" in message
    assert "IS NOT NULL" in message
    message = refused(odd, f"SELECT l.x, r.z, l.gaps_class {ODD}", "gaps_class", tp.LogisticRegression)
    assert "l.gaps_class is NULL in 4 rows" in message
    kept = odd.sql(f"SELECT l.x, r.z, l.gaps {ODD} WHERE l.gaps IS NOT NULL", label="gaps")
    assert tp.LinearRegression().fit(kept).converged_


def test_a_text_label_for_regression(odd: tp.Federation) -> None:
    message = refused(odd, f"SELECT l.x, r.z, l.word {ODD}", "word")
    assert "l.word is VARCHAR" in message
    assert "classifier" in message


def test_labels_that_are_not_finite(odd: tp.Federation) -> None:
    for label in ("infinite", "nan"):
        assert f"l.{label} has values that are not finite" in refused(odd, f"SELECT r.z, l.{label} {ODD}", label)


def test_features_that_are_not_finite(odd: tp.Federation) -> None:
    for name in ("infinite", "nan"):
        message = refused(odd, f"SELECT l.{name}, l.x, r.z {ODD}", "x")
        assert f"l.{name} has values that are not finite" in message
        assert "CASE" in message


def test_very_many_classes(tmp_path: Path) -> None:
    many = pa.table({"x": np.arange(1100.0), "y": np.arange(1100)})
    fed = federation(tmp_path, {"a": {"t": many}})
    message = refused(fed, "SELECT t.x, t.y FROM t", "y", tp.LogisticRegression)
    assert "more than 1000 classes" in message
    assert "regressor" in message


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"solver": "newton"}, "auto, admm, sgd, lbfgs"),
        ({"rounds": 0}, "at least 1"),
        ({"rounds": 2.5}, "whole number"),
        ({"seed": -1}, "seed"),
        ({"l2": -1.0}, "0 or more"),
        ({"l2": float("nan")}, "0 or more"),
        ({"tol": -1.0}, "tol"),
        ({"batch_size": 0, "solver": "sgd"}, "batch_size"),
        ({"lr": 0.0, "solver": "sgd"}, "lr"),
        ({"lr": "fast", "solver": "sgd"}, "lr"),
        ({"momentum": 1.0, "solver": "sgd"}, "momentum"),
        ({"rho": 0.0, "solver": "admm"}, "rho"),
        ({"rho": "large", "solver": "admm"}, "rho"),
        ({"patience": 0}, "patience"),
    ],
)
def test_settings_out_of_range(odd: tp.Federation, settings: dict[str, Any], told: str) -> None:
    """Refused before anything is asked of a party, with what would be allowed."""
    relation = odd.sql(f"SELECT l.x, r.z {ODD}", label="x")
    collect_garbage()  # relations of other tests close their sessions now, not below
    before = total(odd)
    with pytest.raises(tp.LearnError) as caught:
        tp.LinearRegression(**settings).fit(relation)
    assert told in str(caught.value)
    assert total(odd) == before


@pytest.mark.parametrize("make", [tp.LinearRegression, tp.LogisticRegression, tp.MLPRegressor, tp.MLPClassifier])
def test_privacy_is_refused(odd: tp.Federation, make: Any) -> None:
    """A promise that nobody keeps is refused before anything is asked of a party."""
    relation = odd.sql(f"SELECT l.x, r.z {ODD}", label="x")
    before = total(odd)
    with pytest.raises(tp.PrivacyError, match="set feature_epsilon too"):
        make(privacy=tp.Privacy(prediction_epsilon=1.0)).fit(relation)
    with pytest.raises(tp.PrivacyError, match=r"privacy must be tp.Privacy\(...\) or None"):
        make(privacy=object()).fit(relation)
    for empty in (tp.Privacy(), tp.Privacy(delta=1e-6, clip_norm=2.0)):
        with pytest.raises(tp.PrivacyError, match=r"this tp\.Privacy promises nothing: set label_epsilon"):
            make(privacy=empty).fit(relation)
    assert total(odd) == before


def test_nothing_is_promised(returned: tp.Relation, fed: tp.Federation, tmp_path: Path) -> None:
    """Without privacy the model says plainly that no epsilon holds; so does one loaded from a folder."""
    model = tp.LogisticRegression(rounds=1).fit(returned)
    model.save(tmp_path / "model")
    for promise in (model.privacy_, tp.load(tmp_path / "model", fed).privacy_):
        assert promise["epsilon"] == promise["epsilon_given_messages"] == np.inf
        assert promise["delta"] is None
        assert not promise["secure_sum"]
        assert promise["assumptions"].startswith("No epsilon is promised")


CONTRACT = (
    "solver rounds batch_size lr l2 rho inner_rounds inner_rho local_steps tol reduce seed privacy callbacks".split()
)


@pytest.mark.parametrize("make", [tp.LinearRegression, tp.LogisticRegression, tp.MLPRegressor, tp.MLPClassifier])
def test_settings_that_all_learners_have(make: Any) -> None:
    """The names of the public contract."""
    assert set(CONTRACT) <= set(make().get_params())


def test_a_relation_of_another_federation(odd: tp.Federation, returned: tp.Relation) -> None:
    model = tp.LogisticRegression().fit(returned)
    with pytest.raises(tp.LearnError, match="another federation"):
        model.predict(odd.sql(f"SELECT l.x, r.z {ODD}", label="x"))


def test_a_relation_that_lacks_columns(fed: tp.Federation, returned: tp.Relation) -> None:
    model = tp.LogisticRegression().fit(returned)
    narrow = fed.sql(f"SELECT o.price, i.weight, o.returned {JOIN}", label="returned")
    with pytest.raises(tp.LearnError, match=r"lacks columns .*o\.quantity.*c\.age"):
        model.predict(narrow)


def test_evaluating_without_what_it_needs(fed: tp.Federation, returned: tp.Relation) -> None:
    """No label, no rows, a class that the model does not know: each is said. A missing class is not an error."""
    model = tp.LogisticRegression().fit(returned)
    with pytest.raises(tp.LearnError, match="no label"):
        model.evaluate(fed.sql(f"SELECT {ALL} {JOIN}"))
    with pytest.raises(tp.LearnError, match="no joined rows"):
        model.evaluate(fed.sql(f"SELECT {ALL}, o.returned {JOIN} WHERE o.quantity > 99", label="returned"))
    only = model.evaluate(fed.sql(f"SELECT {ALL}, o.returned {JOIN} WHERE o.returned", label="returned"))
    assert np.isnan(only["auc"])
    assert 0 <= only["accuracy"] <= 1
    grades = fed.sql(f"SELECT {ALL}, o.grade {JOIN} WHERE o.grade <> 'top'", label="grade")
    three = tp.LogisticRegression().fit(grades)
    with pytest.raises(tp.LearnError, match="1 classes here that the model was not fitted on"):
        three.evaluate(fed.sql(f"SELECT {ALL}, o.grade {JOIN}", label="grade"))


def test_predicting_no_rows(fed: tp.Federation, returned: tp.Relation) -> None:
    """No joined rows, no predictions."""
    model = tp.LogisticRegression().fit(returned)
    empty = fed.sql(f"SELECT {ALL}, o.returned {JOIN} WHERE o.quantity > 99", label="returned")
    assert model.predict_proba(empty).shape == (0, 2)
    assert model.predict(empty).shape == (0,)


def test_a_failed_fit_leaves_the_federation_usable(odd: tp.Federation) -> None:
    """After a refusal the same relation can be fitted with other settings."""
    relation = odd.sql(f"SELECT l.x, r.z, l.word {ODD}", label="word")
    with pytest.raises(tp.LearnError):
        tp.LinearRegression().fit(relation)
    assert tp.LogisticRegression().fit(relation).converged_


def test_a_notebook_draws_a_fitted_learner_without_asking_parties(
    fed: tp.Federation, returned: tp.Relation, tmp_path: Path
) -> None:
    """scikit-learn's HTML lists what is known here: no party is asked, also not for parameters that it keeps."""
    model = tp.LogisticRegression(rounds=2).fit(returned)
    model.save(tmp_path / "model")
    for fitted in (model, tp.load(tmp_path / "model", fed), Centralized(tp.LogisticRegression()).fit(returned)):
        before = total(fed)
        html = fitted._repr_html_()
        assert total(fed) == before
        assert "coef_" not in html
    assert "stopped_" in model._repr_html_()
