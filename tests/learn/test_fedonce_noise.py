"""FedOnce with noise on features (L1): what it states is what the accountant says, and what parties charge."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.learn.private.feature_promise import StepPromise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.privacy.accountant import Spending, gaussian_epsilon
from tablepuppet.privacy.noise_plan import TAIL_DELTA
from tests.learn.materialised import ALL, JOIN, predictions, shop, side_by_side
from tests.relations import federation

torch: Any = pytest.importorskip("torch", reason="networks need the extra `deep`")

DELTA = 1e-4
SETTINGS: dict[str, Any] = {"bottom": tp.bottom.mlp(hidden=(6,)), "embedding": 3, "top": (4,), "epochs": 2, "seed": 1}


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> tp.Relation:
    parties, sql = side_by_side(3, 3, 400, 0.3)
    return federation(tmp_path_factory.mktemp("tables"), parties).sql(sql, label="y")


def fitted(relation: tp.Relation, **privacy: Any) -> Any:
    return tp.FedOnceClassifier(**SETTINGS, privacy=tp.Privacy(delta=DELTA, **privacy)).fit(relation)


def test_stated_figures_are_the_accountants(relation: tp.Relation) -> None:
    """Epsilon is infinite; given messages it is that of every table's noisy steps and encoder statistics; for somebody
    with a row in every table, Renyi divergences are added (moments division).
    """
    model = fitted(relation, feature_epsilon=2.0)
    promise, report = model._promise, model.privacy_
    assert isinstance(promise, StepPromise)
    assert math.isinf(report["epsilon"])
    taken = promise.steps
    assert promise.noise.steps == taken == 40
    costs = []
    for alias in promise.tables:
        multiplier, beside = promise.noise.multipliers[alias], promise.releases(alias)[0].precision
        left = DELTA - promise.statistics[alias].lists * TAIL_DELTA
        exact = gaussian_epsilon(multiplier, left, taken, None, beside)
        assert report["tables"][alias]["epsilon_given_messages"] == pytest.approx(exact, rel=2e-3)
        assert report["tables"][alias]["epsilon_given_messages"] <= 2.0
        costs.append(Spending.of_gaussian(multiplier, taken) + Spending.of_gaussian(beside**-0.5))
    lists = sum(each.lists for each in promise.statistics.values())
    together = sum(costs, Spending()).epsilon(DELTA - lists * TAIL_DELTA)
    assert report["total"]["moments_given_messages"] == pytest.approx(together, rel=2e-3)
    assert report["total"]["moments_given_messages"] < report["total"]["epsilon_given_messages"]


def test_parties_charge_what_is_stated(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every noisy step of guests and host is charged, with the multiplier of its table, before anything is computed."""
    charged: dict[str, list[tuple[Spending, str]]] = {}

    def charge(table: LocalTable, cost: Spending, purpose: str, *_: Any) -> None:
        charged.setdefault(table.snapshot.scan.alias, []).append((cost, purpose))

    monkeypatch.setattr(LocalTable, "charge", charge)
    model = fitted(relation, feature_epsilon=2.0)
    for alias, multiplier in model._promise.noise.multipliers.items():
        costs = [cost for cost, purpose in charged[alias] if purpose == "gradient"]
        assert len(costs) == 40
        for cost in costs:
            np.testing.assert_allclose(cost.gaussian, Spending.of_gaussian(multiplier).gaussian)
        assert not any(purpose == "predictions" for _, purpose in charged[alias])


def test_epsilon_is_finite_where_representations_have_noise_too(relation: tp.Relation, tmp_path: Path) -> None:
    """All releases are counted, also those of predictions after the fit and of a model that was loaded."""
    model = fitted(relation, feature_epsilon=4.0, prediction_epsilon=4.0)
    first = model.privacy_["epsilon"]
    assert first < math.inf
    assert first > model.privacy_["epsilon_given_messages"]
    one, other = predictions(model, relation), predictions(model, relation)
    assert (one != other).any(), "each has noise of its own"
    assert model.privacy_["epsilon"] > first


def test_shards_of_a_table_add_up_noisy_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every shard is charged for every step, with the multiplier of its table; the model predicts, also once loaded."""
    charged: dict[tuple[str, str], list[Spending]] = {}

    def charge(table: LocalTable, cost: Spending, purpose: str, *_: Any) -> None:
        if purpose == "gradient":
            charged.setdefault((table.snapshot.scan.alias, table.grant.party), []).append(cost)

    monkeypatch.setattr(LocalTable, "charge", charge)
    fed = federation(tmp_path, shop(2), wire="float64")
    relation = fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
    privacy = tp.Privacy(feature_epsilon=200.0, prediction_epsilon=200.0, delta=DELTA)
    model = tp.FedOnceClassifier(**SETTINGS, wire="float16", privacy=privacy).fit(relation)
    promise = model._promise
    assert isinstance(promise, StepPromise)
    assert len(charged) == 6, "two shards of three tables"
    for (alias, _), costs in charged.items():
        stated = np.array(Spending.of_gaussian(promise.noise.multipliers[alias]).gaussian)
        np.testing.assert_allclose(np.array([cost.gaussian for cost in costs]), np.tile(stated, (promise.steps, 1)))
    assert max(table["epsilon_given_messages"] for table in model.privacy_["tables"].values()) <= 200.0
    assert model.history_[-1]["loss"] < math.log(2)
    model.save(tmp_path / "model")
    assert predictions(tp.load(tmp_path / "model", fed), relation).shape == predictions(model, relation).shape


def test_it_learns(relation: tp.Relation) -> None:
    """With little noise it is better than a constant on its rows; epsilon grows round by round."""
    privacy = tp.Privacy(delta=DELTA, feature_epsilon=50.0)
    model = tp.FedOnceClassifier(**SETTINGS | {"epochs": 6}, privacy=privacy).fit(relation)
    assert model.history_[-1]["loss"] < 0.9 * math.log(2)
    assert [entry["epsilon"] for entry in model.history_] == sorted(entry["epsilon"] for entry in model.history_)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "pca"}, "method='pca'"),
        ({"rounds": 3}, "cannot have noise on features with rounds=3: leave one of them out"),
        ({"noise": 0.5}, "prediction_epsilon"),
        ({"bottom": tp.bottom.cnn(shape=(1, 3), channels=())}, "other than mlp.*has no bound"),
        ({"lag": 5.0}, "lag=5"),
    ],
)
def test_what_has_no_form_with_noise_is_refused(relation: tp.Relation, settings: Any, match: str) -> None:
    """Before anything is asked, and the error says what to leave out."""
    privacy = tp.Privacy(feature_epsilon=1.0, delta=DELTA)
    with pytest.raises((tp.PrivacyError, tp.LearnError), match=match):
        tp.FedOnceClassifier(**SETTINGS | settings, privacy=privacy).fit(relation)
