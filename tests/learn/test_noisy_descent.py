"""Learning by noisy steps end to end: close to learning without noise at a large epsilon, worse at a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet as tp
from tablepuppet.learn.loss.losses import Squared
from tablepuppet.learn.loss.softmax import Softmax
from tablepuppet.learn.private.descent import Gradient
from tests.learn.labelled import Labelled
from tests.learn.test_step_promise import DELTA, federation_of, relation, relation_of, stated
from tests.relations import record_wire

pytest.importorskip("torch", reason="private networks need the extra `deep`")

LARGE, SMALL = 1e4, 0.05
pytestmark = pytest.mark.usefixtures("known_noise")
shards = pytest.mark.parametrize("shards", [1, 3])


def network(label: str, epsilon: float, **settings: Any) -> Any:
    """A network with feature privacy."""
    kind = tp.MLPRegressor if label == "score" else tp.MLPClassifier
    return kind(privacy=tp.Privacy(feature_epsilon=epsilon, delta=DELTA, clip_norm=3.0), **settings)


@pytest.mark.parametrize(("shards", "solver"), [(1, "auto"), (3, "auto"), (3, "admm")])
def test_networks_learn_and_noise_costs(tmp_path: Path, shards: int, solver: str) -> None:
    """With a large epsilon a network comes close to one without noise; with a small one it does not."""
    rel = relation(tmp_path, shards)
    plain = tp.MLPRegressor(rounds=30).fit(rel).evaluate(rel)["r2"]
    found = {
        epsilon: network("score", epsilon, solver=solver, rounds=8).fit(rel).evaluate(rel)["r2"]
        for epsilon in (LARGE, SMALL)
    }
    assert plain > 0.95
    assert found[LARGE] > plain - 0.1
    assert found[SMALL] < found[LARGE] - 0.1


def test_classes(tmp_path: Path) -> None:
    """Classifiers learn by noisy steps too."""
    rel = relation(tmp_path, label="good")
    model = network("good", LARGE, rounds=8).fit(rel)
    assert model.solver_ == "sgd"
    assert model.evaluate(rel)["accuracy"] > 0.9
    assert stated(model, "people") <= LARGE


@shards
def test_linear_models(tmp_path: Path, shards: int) -> None:
    """solver="sgd" of linear learners comes close to the exact solution, and tells parameters in the label's units."""
    rel = relation(tmp_path, shards)
    exact = tp.LinearRegression().fit(rel)
    privacy = tp.Privacy(feature_epsilon=LARGE, delta=DELTA, clip_norm=10.0)
    model = tp.LinearRegression(solver="sgd", privacy=privacy, rounds=10).fit(rel)
    assert model.evaluate(rel)["r2"] > exact.evaluate(rel)["r2"] - 0.02
    assert model.coef_["p.z"] == pytest.approx(exact.coef_["p.z"], rel=0.15)


def test_samples_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round asks for all rows and hears of all rows: nothing on the wire depends on a sample but noisy sums."""
    rel = relation(tmp_path)
    messages = record_wire(monkeypatch)
    network("score", 5.0, rounds=2, local_steps=2, batch_size=50).fit(rel)
    told = [message for message in messages if message.request.op == "steps.descend"]
    assert len(told) == 4
    for message in told:
        assert message.reply is not None
        assert set(message.reply) == {"outputs", "square"}
        assert len(message.reply["outputs"]) == len(message.request.arguments["rows"])


def test_secure_sums(tmp_path: Path) -> None:
    """Noisy sums of three shards may reach the coordinator as their sum only."""
    rel = relation(tmp_path, 3)
    privacy = tp.Privacy(feature_epsilon=LARGE, delta=DELTA, clip_norm=3.0, secure_sum=True)
    model = tp.MLPRegressor(privacy=privacy, rounds=8).fit(rel)
    assert model.evaluate(rel)["r2"] > 0.85


def test_no_private_form(tmp_path: Path) -> None:
    """L-BFGS of networks is refused."""
    with pytest.raises(tp.PrivacyError, match=r"lbfgs.*has no private form"):
        network("score", 1.0, solver="lbfgs").fit(relation(tmp_path))


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A model by noisy steps is saved as any other."""
    fed = federation_of(tmp_path)
    rel = relation_of(fed)
    model = network("score", LARGE, rounds=2).fit(rel)
    model.save(tmp_path / "model.tpm")
    loaded = tp.load(tmp_path / "model.tpm", fed)
    np.testing.assert_allclose(loaded.predict(rel), model.predict(rel), atol=1e-5)


@pytest.mark.parametrize("tables", [1, 3])
def test_what_tables_minimise_is_never_below_the_loss(tables: int) -> None:
    """The gradient with its proximal bounds the loss from above, whatever the tables do together."""
    rng = np.random.default_rng(0)
    cases = (Labelled(Squared(), rng.normal(size=20)), Labelled(Softmax(3), rng.integers(0, 3, 20)))
    for loss, shape in zip(cases, ((20,), (20, 3)), strict=True):
        scores, moves = rng.normal(size=shape), rng.normal(size=(tables, *shape))
        joined = loss.joined()
        joined.rows.set_scores(scores)
        value, wish = joined.evaluate(), Gradient(joined, tables)
        wanted = np.concatenate(joined.rows.each(lambda block, column: block[column], wish.column()))
        bound = value + np.vdot(wanted, moves.sum(axis=0)) + 0.5 * wish.proximal * np.vdot(moves, moves)
        assert loss.value(scores + moves.sum(axis=0)) <= bound + 1e-12
