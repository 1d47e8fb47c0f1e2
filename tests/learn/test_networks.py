"""Networks over relations: the same as one autograd graph on the materialised join, however tables are cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import tablepuppet as tp
from tablepuppet.baselines import Centralized, joined_tables
from tablepuppet.learn.network.lbfgs import two_loop
from tablepuppet.learn.tables.dense import Network
from tablepuppet.prep.columns.label import ask_classes, ask_numbers, joined_classes, joined_numbers
from tests.learn.materialised import ALL, JOIN, Array, shop, side_by_side
from tests.relations import federation, record_wire

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")

TASKS: dict[str, int | None] = {"paid": None, "returned": 2, "grade": 4}
SIZE, SEED = 37, 5
tasks = pytest.mark.parametrize("label", TASKS)
SGD: dict[str, Any] = {"solver": "sgd", "rounds": 2, "batch_size": SIZE, "lr": 0.05, "l2": 1e-3, "seed": SEED}


@pytest.fixture(scope="module", params=[1, 2], ids=["one shard", "two shards"])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param), wire="float64")


def relation_of(fed: tp.Federation, label: str) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.{label} {JOIN}", label=label)


def learner(label: str, **settings: Any) -> Any:
    return (tp.MLPRegressor if TASKS[label] is None else tp.MLPClassifier)(**settings)


class Joined:
    """The networks of a fitted learner as torch modules over the materialised join, at their first parameters."""

    def __init__(self, relation: tp.Relation, model: Any, label: str):
        client, asked = relation.client, relation.query.label
        assert asked is not None
        tables = joined_tables(relation.client, model.encoding_)
        self.tables = {alias: torch.tensor(table.matrix()) for alias, table in tables.items()}
        outputs = len(model.intercept_)
        self.unit = 1.0
        if TASKS[label] is None:
            labels = joined_numbers(client, asked, ask_numbers(client, asked))
            self.unit = float(labels.std())
            self.labels = torch.tensor(labels / self.unit)
            begin = np.array([labels.mean() / self.unit])
        else:
            numbers = joined_classes(client, asked, ask_classes(client, asked)).numbers
            self.labels = torch.tensor(numbers.astype(np.int64 if outputs > 1 else np.float64))
            logs = np.log(np.bincount(numbers) / len(numbers))
            begin = np.array([logs[1] - logs[0]]) if outputs == 1 else logs - logs.mean()
        self.intercept = torch.tensor(begin, requires_grad=True)
        self.modules = {}
        for alias, table in tables.items():
            network = Network(model.hidden, outputs).over(table.width)
            theta = network.start(model.seed, alias, table.dense.shape[1])
            self.modules[alias] = _module(network.layers(theta))

    def parameters(self, alias: str) -> list[Any]:
        return list(self.modules[alias].parameters())

    def loss(self, rows: Any) -> Any:
        """The mean loss of some joined rows."""
        scores = sum(self.modules[alias](table[rows]) for alias, table in self.tables.items()) + self.intercept
        if self.labels.dtype == torch.int64:
            return torch.nn.functional.cross_entropy(scores, self.labels[rows])
        if self.unit != 1.0:
            return 0.5 * torch.nn.functional.mse_loss(scores[:, 0], self.labels[rows])
        return torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], self.labels[rows])

    def as_learned(self, parts: list[Any]) -> list[Array]:
        """Parameters or gradients of a module as `coefs_` has them: inputs first, the output in the label's units."""
        plain = [part.detach().numpy().T if part.ndim == 2 else part.detach().numpy() for part in parts]
        return [*plain[:-1], plain[-1] * self.unit]


def _module(layers: list[Any]) -> Any:
    parts: list[Any] = []
    for weights, bias in layers:
        linear = torch.nn.Linear(*weights.shape, bias=bias is not None, dtype=torch.float64)
        linear.weight.data = torch.tensor(weights.T.copy())
        if bias is not None:
            linear.bias.data = torch.tensor(bias)
        parts += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*parts[:-1])


@tasks
def test_gradient_of_a_batch(fed: tp.Federation, label: str) -> None:
    """One step of length 1 without momentum moves parameters by autograd's gradient on the joined rows, to 1e-10."""
    relation = relation_of(fed, label)
    model = learner(
        label, hidden=(5, 3), solver="sgd", rounds=1, batch_size=10_000, lr=1.0, momentum=0.0, l2=0.0, seed=SEED
    ).fit(relation)
    joined = Joined(relation, model, label)
    joined.loss(slice(None)).backward()
    for alias, learned in model.coefs_.items():
        gradient = joined.as_learned([part.grad for part in joined.parameters(alias)])
        begin = joined.as_learned(joined.parameters(alias))
        for now, before, slope in zip(learned, begin, gradient, strict=True):
            np.testing.assert_allclose(before - now, slope, rtol=0, atol=1e-10)
    moved = (joined.intercept - joined.intercept.grad).detach().numpy() * joined.unit
    np.testing.assert_allclose(model.intercept_, moved, rtol=0, atol=1e-10)


@tasks
def test_trajectory_of_sgd(fed: tp.Federation, label: str) -> None:
    """After two epochs of mini-batches, parameters are those of torch.optim.SGD on the joined rows, to 1e-8."""
    relation = relation_of(fed, label)
    model = learner(label, **SGD).fit(relation)
    joined = Joined(relation, model, label)
    weights = [part for alias in joined.modules for part in joined.parameters(alias)]
    groups = [{"params": weights, "weight_decay": 1e-3}, {"params": [joined.intercept]}]
    optimiser = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    for epoch in (1, 2):
        for group in optimiser.param_groups:
            group["lr"] = 0.05 * (1 - (epoch - 1) / 2)
        order = np.random.default_rng([SEED, epoch]).permutation(len(relation))
        for start in range(0, len(order), SIZE):
            optimiser.zero_grad()
            joined.loss(order[start : start + SIZE]).backward()
            optimiser.step()
    for alias, learned in model.coefs_.items():
        for now, wanted in zip(learned, joined.as_learned(joined.parameters(alias)), strict=True):
            np.testing.assert_allclose(now, wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, joined.intercept.detach().numpy() * joined.unit, rtol=0, atol=1e-8)


@tasks
def test_centralized_takes_the_same_steps(fed: tp.Federation, label: str) -> None:
    """The baseline trains the same function from the same first parameters with the same batches, to 1e-8."""
    relation = relation_of(fed, label)
    model, pooled = learner(label, **SGD).fit(relation), Centralized(learner(label, **SGD)).fit(relation)
    found, wanted = (m._model.scores(relation.client) for m in (model, pooled.learner_))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)
    assert model.evaluate(relation) == pytest.approx(pooled.evaluate(relation), abs=1e-8)


@pytest.mark.parametrize("solver", ["sgd", "lbfgs", "admm"])
def test_without_reduction(fed: tp.Federation, solver: str) -> None:
    """reduce=False: the same steps, with more bytes."""
    relation = relation_of(fed, "grade")
    settings: dict[str, Any] = {"solver": solver, "rounds": 2, "batch_size": SIZE, "seed": SEED, "local_steps": 3}
    reduced, whole = (tp.MLPClassifier(**settings, reduce=reduce).fit(relation) for reduce in (True, False))
    np.testing.assert_allclose(whole.predict_proba(relation), reduced.predict_proba(relation), rtol=0, atol=1e-7)
    assert whole.history_[1]["bytes_up"] > 1.1 * reduced.history_[1]["bytes_up"]


@tasks
def test_close_to_the_centralised_optimum(fed: tp.Federation, label: str) -> None:
    """The objective falls, and comes within 3 % of what L-BFGS finds on the materialised join."""
    relation = relation_of(fed, label)
    settings: dict[str, Any] = {"hidden": (4,), "l2": 1e-2, "seed": SEED}
    pooled = Centralized(learner(label, rounds=1000, **settings)).fit(relation)
    name = "rmse" if TASKS[label] is None else "log_loss"
    for solver, rounds in (("admm", 30), ("lbfgs", 60)):
        model = learner(label, solver=solver, rounds=rounds, **settings).fit(relation)
        assert model.history_[-1]["objective"] < model.history_[0]["objective"]
        assert model.evaluate(relation)[name] < 1.03 * pooled.evaluate(relation)[name], solver


@pytest.mark.parametrize("correlation", [0.0, 0.95])
def test_admm_on_correlated_tables(tmp_path: Path, correlation: float) -> None:
    """Tables that say the same do not drive each other apart; a network learns what a linear model cannot."""
    parties, sql = side_by_side(4, 3, 400, correlation, classes=None)
    relation = federation(tmp_path, parties, wire="float32").sql(sql, label="y")
    model = tp.MLPRegressor(hidden=(6,), rounds=25, l2=1e-3, solver="admm").fit(relation)
    pooled = Centralized(tp.MLPRegressor(hidden=(6,), rounds=1000, l2=1e-3)).fit(relation)
    assert model.evaluate(relation)["rmse"] < 1.05 * pooled.evaluate(relation)["rmse"]
    assert model.evaluate(relation)["rmse"] < tp.LinearRegression().fit(relation).evaluate(relation)["rmse"]


@pytest.mark.parametrize("solver", ["sgd", "lbfgs", "admm"])
def test_one_seed_one_result(fed: tp.Federation, solver: str) -> None:
    """Two fits with one seed agree; another seed begins elsewhere. torch gets its threads back."""
    relation, before = relation_of(fed, "paid"), torch.get_num_threads()
    settings: dict[str, Any] = {"solver": solver, "rounds": 3, "batch_size": 100, "local_steps": 5}
    model = tp.MLPRegressor(**settings, seed=1)
    first, again, other = (
        m.fit(relation).predict(relation) for m in (model, clone(model), clone(model).set_params(seed=2))
    )
    np.testing.assert_allclose(again, first, rtol=0, atol=1e-9)
    assert np.abs(other - first).max() > 1e-3
    assert torch.get_num_threads() == before


def test_first_parameters_do_not_depend_on_shards(tmp_path: Path) -> None:
    """Cut into shards or not, every table begins with the same parameters."""
    begin = []
    for shards in (1, 3):
        (tmp_path / str(shards)).mkdir()
        relation = relation_of(federation(tmp_path / str(shards), shop(shards)), "paid")
        begin.append(tp.MLPRegressor(solver="sgd", rounds=1, lr=1e-300).fit(relation).coefs_)
    for alias, layers in begin[0].items():
        for one, three in zip(layers, begin[1][alias], strict=True):
            np.testing.assert_allclose(one, three, rtol=1e-12)


@pytest.mark.parametrize("solver", ["sgd", "lbfgs", "admm"])
def test_nothing_as_long_as_the_join_travels(fed: tp.Federation, solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages have at most one entry per base row, and items and cards repeat in the join."""
    relation = relation_of(fed, "paid")
    messages = record_wire(monkeypatch)
    learner("paid", solver=solver, rounds=2, batch_size=100, local_steps=2).fit(relation)
    rows = {alias: table.rows for alias, table in relation.mapping.tables.items()}
    sent = [m for m in messages if m.request.op.split(".")[0] in ("model", "sgd", "lbfgs", "proximal")]
    assert sent
    assert max(rows["i"], rows["c"]) < len(relation) / 5
    for message in sent:
        for name in ("rows", "places", "next_places", "outputs"):
            for values in (message.request.arguments, message.reply or {}):
                if values.get(name) is not None:
                    assert len(values[name]) <= rows[message.request.table]


@tasks
def test_history_and_predictions(fed: tp.Federation, label: str) -> None:
    """A round's loss and metric are in the label's own units; probabilities add up to one."""
    relation = relation_of(fed, label)
    seen: list[tp.Event] = []
    model = learner(label, rounds=5, callbacks=[seen.append]).fit(relation)
    done = [event.fields["done"] for event in seen if event.name == "fit"]
    assert [entry["round"] for entry in model.history_] == [1, 2, 3, 4, 5] == done
    last = model.history_[-1]
    assert last["solver"] == "lbfgs"
    assert last["bytes_up"] > 0
    if TASKS[label] is None:
        assert last["loss"] == pytest.approx(last["metric"] ** 2 / 2)
        assert last["metric"] == pytest.approx(model.evaluate(relation)["rmse"])
    else:
        chances = model.predict_proba(relation)
        assert chances.shape == (len(relation), TASKS[label])
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        assert last["metric"] == pytest.approx(model.evaluate(relation)["accuracy"])
        assert last["loss"] == pytest.approx(model.evaluate(relation)["log_loss"])


def test_units_of_the_label_do_not_matter(fed: tp.Federation) -> None:
    """A label a million times as large gives predictions a million times as large."""
    small = relation_of(fed, "paid")
    large = fed.sql(f"SELECT {ALL}, o.paid * 1e6 AS paid {JOIN}", label="paid")
    for solver in ("sgd", "lbfgs", "admm"):
        model = learner("paid", solver=solver, rounds=3, batch_size=100, local_steps=5)
        found = clone(model).fit(large).predict(large)
        np.testing.assert_allclose(found / 1e6, model.fit(small).predict(small), rtol=1e-6, atol=1e-6)


@tasks
def test_save_and_load(fed: tp.Federation, label: str, tmp_path: Path) -> None:
    """A saved model predicts the same in another object, for all rows and for some."""
    relation = relation_of(fed, label)
    train, test = relation.split(0.3)
    model = learner(label, rounds=3, hidden=(4, 3)).fit(train)
    model.save(tmp_path / "m.tpm")
    loaded: Any = tp.load(tmp_path / "m.tpm", fed)
    assert type(loaded) is type(model)
    for side in (train, test):
        found, wanted = (m.predict(side) if TASKS[label] is None else m.predict_proba(side) for m in (loaded, model))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
        assert loaded.evaluate(side) == pytest.approx(model.evaluate(side))
    names = {path.name.partition("-")[0] for path in (tmp_path / "m.tpm").iterdir()}
    assert names == {"model.json", "content"}


def test_no_hidden_layer_is_linear_regression(fed: tp.Federation) -> None:
    """hidden=() leaves a linear model, and L-BFGS finds its least squares."""
    relation = relation_of(fed, "paid")
    network = tp.MLPRegressor(hidden=(), solver="lbfgs", rounds=300, tol=1e-12).fit(relation)
    linear = tp.LinearRegression().fit(relation)
    assert network.evaluate(relation)["rmse"] == pytest.approx(linear.evaluate(relation)["rmse"], rel=1e-6)


def test_two_loop_recursion() -> None:
    """In coefficients, L-BFGS gives the direction that its recursion gives in vectors."""
    rng = np.random.default_rng(0)
    bend = rng.normal(size=(6, 6))
    bend = bend @ bend.T + np.eye(6)
    steps, gradient = rng.normal(size=(3, 6)), rng.normal(size=6)
    changes = steps @ bend
    vectors = np.concatenate([steps, changes, gradient[None]])
    direction, shares = gradient.copy(), []
    for step, change in zip(steps, changes, strict=True):
        shares.append(step @ direction / (step @ change))
        direction -= shares[-1] * change
    direction *= steps[0] @ changes[0] / (changes[0] @ changes[0])
    for step, change, share in reversed(list(zip(steps, changes, shares, strict=True))):
        direction += (share - change @ direction / (step @ change)) * step
    np.testing.assert_allclose(two_loop(vectors @ vectors.T) @ vectors, -direction, rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"hidden": (4, 0)}, "hidden"), ({"local_steps": 0}, "local_steps"), ({"solver": "adam"}, "solver='adam'")],
)
def test_wrong_settings(fed: tp.Federation, settings: dict[str, Any], said: str) -> None:
    """A setting that makes no network is a LearnError that names it."""
    with pytest.raises(tp.LearnError, match=said):
        tp.MLPRegressor(**settings).fit(relation_of(fed, "paid"))


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, NoTorch())
import tablepuppet as tp
fed = tp.Federation({"store": sys.argv[1]})
rel = fed.sql("SELECT o.price, o.paid FROM orders o", label="paid")
tp.LinearRegression().fit(rel)
tp.MLPRegressor(rounds=2).fit(rel)
try:
    tp.SplitNNRegressor().fit(rel)
except tp.LearnError as error:
    print(error)
"""


def test_error_without_torch(tmp_path: Path) -> None:
    """Without torch a sum of networks works too; a network across parties says what to install."""
    federation(tmp_path, {"store": shop(1)["store0"]})
    command = [sys.executable, "-c", WITHOUT_TORCH, f"parquet:///{tmp_path}/store"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "pip install 'tablepuppet[deep]'" in done.stdout
