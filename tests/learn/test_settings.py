"""Settings of learners and solvers: declared once, checked before a fit, carried by clones, jobs and saved models."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone

import tablepuppet as tp
from tablepuppet.jobs import make_learner
from tablepuppet.learn.learners import LEARNERS
from tablepuppet.learn.settings import COUNT, NUMBER, Configured, setting, settings_table
from tablepuppet.learn.solve.solvers import SHORT_FORMS, SOLVERS
from tests.relations import federation

API = Path(__file__).resolve().parents[2] / "docs" / "api.md"


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    rng = np.random.default_rng(0)
    visits = pa.table({"person": np.arange(120) % 30, "x": rng.normal(size=120), "score": rng.normal(size=120)})
    people = pa.table({"id": np.arange(30), "age": rng.normal(size=30)})
    return federation(tmp_path_factory.mktemp("visits"), {"a": {"visits": visits}, "b": {"people": people}})


@pytest.fixture(scope="module")
def relation(fed: tp.Federation) -> tp.Relation:
    return fed.sql("SELECT v.x, p.age, v.score FROM visits v JOIN people p ON v.person = p.id", label="score")


def test_settings_of_other_solvers_are_named(relation: tp.Relation) -> None:
    """With "auto" any solver may be chosen, and the usual value changes nothing: neither is warned of."""
    for settings, unused in (
        ({"solver": "lbfgs", "rho": 0.1, "momentum": 0.5}, ["rho", "momentum"]),
        ({"solver": "lbfgs", "rho": "auto", "inner_rounds": 2}, None),
        ({"solver": "auto", "rho": 0.1}, None),
        ({"solver": "admm", "rho": 0.1}, None),
    ):
        seen: list[tp.Event] = []
        tp.LinearRegression(**settings, callbacks=[seen.append]).fit(relation)  # type: ignore[arg-type]
        found = [event for event in seen if event.name == "fit.unused"]
        assert [event.fields["settings"] for event in found] == ([unused] if unused else [])
        assert all("solver='lbfgs' does not use rho=0.1, momentum=0.5" in event.message for event in found)


# Solver objects


@pytest.mark.parametrize("make", [each for each in LEARNERS.values() if "solver" in each.declared])
def test_a_solver_object_is_a_setting(make: Any) -> None:
    """clone, pickle, get_params, set_params and repr reach into it; the constructor is short."""
    model = make(solver=tp.ADMM(rho=0.5))
    assert model.get_params()["solver__rho"] == 0.5
    copy = clone(model).set_params(solver__rho=2.0, l2=0.5)
    assert (copy.solver, copy.l2) == (tp.ADMM(rho=2.0), 0.5)
    assert model.solver == tp.ADMM(rho=0.5) != tp.ADMM()
    assert pickle.loads(pickle.dumps(model)).solver == model.solver
    assert repr(model) == f"{make.__name__}(solver=ADMM(rho=0.5))"
    assert len(inspect.signature(make).parameters) <= 13
    with pytest.raises(ValueError, match="Invalid parameter 'solver__rho'"):
        make(solver="admm").set_params(solver__rho=2.0)
    both = make(solver="admm").set_params(solver__rho=2.0, solver=tp.ADMM())  # in whatever order a search has them
    assert both.solver == tp.ADMM(rho=2.0)


@pytest.mark.parametrize(
    ("solver", "short"),
    [
        (tp.SGD(batch_size=30, lr=0.1, momentum=0.5), {"solver": "sgd", "batch_size": 30, "lr": 0.1, "momentum": 0.5}),
        (tp.ADMM(rho=3.0), {"solver": "admm", "rho": 3.0}),
        (tp.LBFGS(inner_rounds=2), {"inner_rounds": 2}),
    ],
)
def test_short_forms(relation: tp.Relation, solver: Any, short: dict[str, Any]) -> None:
    """A solver's settings may stand beside the learner's own: the same model, bit by bit. They come back."""
    one = tp.LinearRegression(solver=solver, rounds=3).fit(relation)
    two = tp.LinearRegression(rounds=3, **short).fit(relation)
    np.testing.assert_array_equal(one.predict(relation), two.predict(relation))
    assert one.solver_ == two.solver_ == solver.name
    assert short.items() <= clone(two).get_params(deep=False).items()
    assert set(SHORT_FORMS) <= set(tp.LinearRegression().get_params())


def test_settings_of_other_solvers_are_not_used(relation: tp.Relation) -> None:
    """A short form that the chosen solver does not have changes nothing, but must be in range."""
    plain = tp.LinearRegression().fit(relation)
    np.testing.assert_array_equal(
        tp.LinearRegression(batch_size=7).fit(relation).predict(relation), plain.predict(relation)
    )
    with pytest.raises(tp.LearnError, match="batch_size must be 'auto' or a whole number"):
        tp.LinearRegression(batch_size=0).fit(relation)


def test_refusals_name_what_to_write(relation: tp.Relation) -> None:
    """A setting that a solver does not have, that is out of range inside it, or that is given twice."""
    with pytest.raises(tp.LearnError, match=r"^SGD has no setting 'rho'; there are: batch_size"):
        tp.SGD(rho=1.0)  # type: ignore[call-arg]
    with pytest.raises(tp.LearnError, match=r"^ADMM has no setting 'inner_round'; did you mean 'inner_rounds'"):
        tp.ADMM(inner_round=1)  # type: ignore[call-arg]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"solver": tp.ADMM(rho=0.0)}, "rho must be 'auto' or a number above 0, not 0.0"),
        ({"solver": 3}, "solver=3 is not known; use one of auto, admm, sgd, lbfgs"),
        ({"solver": tp.SGD(), "lr": 0.1}, r"write SGD\(lr=...\)"),
    ]
    for settings, told in wrong:
        with pytest.raises(tp.LearnError, match=told):
            tp.LinearRegression(**settings).fit(relation)


# Files


def test_jobs_carry_solver_objects() -> None:
    """A job names a solver, or has a section for it."""
    solver = {"kind": "admm", "rho": 0.5}
    found = make_learner({"kind": "LinearRegression", "solver": solver, "privacy": {"label_epsilon": 1.0}})
    assert found.solver == tp.ADMM(rho=0.5)
    assert found.privacy == tp.Privacy(label_epsilon=1.0)
    assert make_learner({"kind": "LinearRegression", "solver": "sgd", "lr": 0.5}).get_params()["lr"] == 0.5
    for wrong, told in [
        ({"kind": "adm"}, r"solver kind 'adm' is none of admm, sgd, lbfgs; did you mean 'admm'"),
        ({"kind": "sgd", "rho": 1}, "SGD has no setting 'rho'"),
        ({"kind": "sgd", "lr": -1.0}, "lr must be"),
    ]:
        with pytest.raises(tp.TablePuppetError, match=told):
            make_learner({"kind": "LinearRegression", "solver": wrong})
    with pytest.raises(tp.ConfigError, match="no setting 'callbacks'"):
        make_learner({"kind": "LinearRegression", "callbacks": []})


def test_saved_models_carry_solver_objects(relation: tp.Relation, fed: tp.Federation, tmp_path: Path) -> None:
    """What comes back from a folder has the settings that were saved, and predicts the same."""
    model = tp.LinearRegression(solver=tp.SGD(batch_size=40, lr=0.1), rounds=2).fit(relation)
    model.save(tmp_path / "model")
    again = tp.load(tmp_path / "model", fed)
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.predict(relation), model.predict(relation))


# Declarations


class Small(Configured):
    """A class with two settings."""

    size: int = setting(default=3, kind=COUNT, help="how many")
    weight: float = setting(default=0.0, kind=NUMBER, help="how much")


class Large(Small):
    """One that has another default, and a setting of its own."""

    size: int = setting(default=9, kind=COUNT, help="how many")
    name: float = setting(default=1.0, kind=NUMBER, help="its own")


def test_a_declaration_is_all_there_is() -> None:
    """The constructor, its signature and the table in the docs follow from it; a class's own settings stand first."""
    assert list(inspect.signature(Large).parameters) == ["size", "name", "weight"]
    assert Large(weight=2.0).get_params() == {"size": 9, "name": 1.0, "weight": 2.0}
    assert Small().size == 3
    with pytest.raises(tp.LearnError, match="size must be a whole number, at least 1, not 0"):
        Large(size=0).check_settings()
    assert "| `size=3` | a whole number, at least 1 | how many |" in settings_table(Small)


@pytest.mark.parametrize(
    ("mark", "classes"),
    [
        ("settings of learners", [LEARNERS["LinearRegression"], LEARNERS["MLPRegressor"]]),
        ("settings of trees", [LEARNERS["GradientBoostingRegressor"], LEARNERS["GradientBoostingClassifier"]]),
        ("settings of forests", [LEARNERS["RandomForestRegressor"], LEARNERS["RandomForestClassifier"]]),
        ("settings of solvers", list(SOLVERS.values())),
    ],
)
def test_the_docs_have_all_settings(mark: str, classes: list[type[Configured]]) -> None:
    """The tables in docs/api.md are those that the classes declare, line by line."""
    text = API.read_text(encoding="utf-8")
    inside = text.split(f"<!-- {mark} -->")[1].split(f"<!-- end of {mark} -->")[0].strip()
    assert inside == settings_table(*classes), "print tablepuppet.learn.settings.settings_table(...) anew"
