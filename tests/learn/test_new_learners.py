"""What ARCHITECTURE.md says of adding a learner: one file is enough, with a label or without."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import tablepuppet as tp
from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.source import MatrixSource
from tablepuppet.jobs import make_learner
from tablepuppet.learn.learners.estimator import Estimator
from tablepuppet.learn.learners.network import NetworkLearner
from tablepuppet.learn.learners.tasks import Regressor
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.registry import LEARNERS, learner
from tablepuppet.learn.settings import COUNT, setting
from tablepuppet.learn.solve.schedule import Cost, Costs, RoundAllowance, Schedule
from tablepuppet.learn.solve.sgd import Stochastic, descend_by_batches
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.linear import Linear, LinearTable
from tablepuppet.learn.tables.model import Spec
from tablepuppet.party.arguments import Some
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.relation import Relation
from tablepuppet.store.parts import Held
from tests.relations import federation


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The registry, when a test is over."""
    before = dict(LEARNERS)
    yield
    LEARNERS.clear()
    LEARNERS.update(before)


@pytest.fixture
def fed(tmp_path: Path) -> tp.Federation:
    rng = np.random.default_rng(1)
    group = np.arange(40) % 2
    people = pa.table({"id": np.arange(40), "age": rng.normal(size=40) + 20 * group})
    visits = pa.table({"person": np.arange(200) % 40, "x": rng.normal(size=200) + 20 * group[np.arange(200) % 40]})
    visits = visits.append_column("score", pa.array(np.sin(visits["x"].to_numpy())))
    return federation(tmp_path, {"a": {"visits": visits}, "b": {"people": people}}, wire="float64")


JOIN = "FROM visits v JOIN people p ON v.person = p.id"


def _nearest(matrix: LazyArray, centres: NDArray[Any]) -> NDArray[Any]:
    """The nearest of the centres, (columns, k), by joined row."""
    return np.asarray(((centres**2).sum(axis=0) - 2 * matrix.times(centres)).argmin(axis=1))


def kmeans() -> type[Estimator]:
    """k-means over the encoded columns, by products with X alone; it has no label."""

    @learner
    class KMeans(Estimator):
        """Lloyd's algorithm: |x - c|^2 = |x|^2 - 2 x c + |c|^2, and |x|^2 is the same for all centres."""

        k: int = setting(default=2, kind=COUNT, help="how many centres")
        rounds: int = setting(default=10, kind=COUNT, help="rounds")

        def _learn(self, relation: Relation) -> Held:
            matrix = LazyArray(MatrixSource(relation.client, self.encoding_, relation.wire))
            centres = np.random.default_rng(self.seed).normal(size=(matrix.shape[1], self.k))
            for number in range(self.rounds):
                members = np.eye(self.k)[_nearest(matrix, centres)]  # (joined rows, k)
                centres = matrix.transposed_times(members) / np.maximum(members.sum(axis=0), 1)
                self.emit(relation, "progress", "fit", f"round {number + 1}", {"done": number + 1})
            return Held({alias: centres[block] for alias, block in matrix.source.blocks.items()})

        def predict(self, relation: Relation) -> NDArray[Any]:
            """The nearest centre of every joined row."""
            self.check_relation(relation, "predict")
            matrix = LazyArray(MatrixSource(relation.client, self.encoding_, relation.wire))
            thetas = self._model.parameters()
            return _nearest(matrix, np.concatenate([thetas[alias] for alias in matrix.source.blocks]))

    return KMeans


def test_a_learner_without_a_label(fed: tp.Federation, tmp_path: Path) -> None:
    """Settings, columns, events, saving and loading are there; nothing of a label or of a score is needed."""
    seen: list[tp.Event] = []
    model: Any = kmeans()(rounds=5, callbacks=[seen.append])
    relation = fed.sql(f"SELECT v.x, p.age {JOIN}")
    assert clone(model).get_params()["k"] == 2
    found = model.fit(relation).predict(relation)
    groups = fed.sql(f"SELECT v.x, p.age {JOIN} WHERE p.age > 10")
    assert len(set(found)) == 2
    assert len(set(model.predict(groups))) == 1
    assert [event.fields["done"] for event in seen] == [1, 2, 3, 4, 5]
    model.save(tmp_path / "centres")
    again: Any = tp.load(tmp_path / "centres", fed)
    np.testing.assert_array_equal(again.predict(relation), found)
    assert again.plain_settings() == model.plain_settings()
    assert model.privacy_["delta"] is None
    with pytest.raises(tp.LearnError, match="KMeans has no setting 'kk'; did you mean"):
        type(model)(kk=1)
    with pytest.raises(tp.LearnError, match="k must be a whole number"):
        clone(model).set_params(k=0).fit(relation)
    with pytest.raises(tp.LearnError, match="lacks columns"):
        model.predict(fed.sql(f"SELECT v.x {JOIN}"))
    with pytest.raises(tp.PrivacyError, match="KMeans has no private form yet"):
        clone(model).set_params(privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)


def test_a_learner_with_a_spec_of_its_own(fed: tp.Federation, tmp_path: Path) -> None:
    """A class in one file with a setting and a spec: jobs can name it, `load` finds it, and it learns."""

    @learner
    class DeepRegressor(Regressor, NetworkLearner):
        """Networks of several layers of one width."""

        depth: int = setting(default=2, kind=COUNT, help="hidden layers")

        def spec(self, outputs: int) -> Network:
            return Network((4,) * self.depth, outputs)

    relation = fed.sql(f"SELECT v.x, p.age, v.score {JOIN}", label="score")
    pytest.importorskip("torch", reason="networks need the extra `deep`")
    model: Any = make_learner({"kind": "DeepRegressor", "depth": 3, "rounds": 2})
    model.fit(relation).save(tmp_path / "deep")
    again = tp.load(tmp_path / "deep", fed)
    assert again.get_params()["depth"] == 3
    np.testing.assert_allclose(again.predict(relation), model.predict(relation), rtol=1e-12)


class Squares(Spec, frozen=True, tag_field="kind", tag="squares"):
    """A table model of another kind: the squares of a table's numbers, times parameters."""

    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        return Linear(self.outputs).theta_shape(width)

    def over(self, width: int, alias: str = "") -> SquaresTable:
        return SquaresTable(width, cast(Any, self))


class SquaresTable(LinearTable):
    """What parties compute."""

    spec: Any

    def predict(self, theta: NDArray[Any], table: EncodedTable) -> NDArray[Any]:
        return super().predict(theta, squared(table))

    def gradient(self, theta: NDArray[Any], table: EncodedTable, row_gradients: NDArray[Any]) -> NDArray[Any]:
        return super().gradient(theta, squared(table), row_gradients)


def squared(table: EncodedTable) -> EncodedTable:
    return EncodedTable(table.dense**2, table.codes, table.sizes)


def test_a_learner_with_a_table_model_of_its_own(fed: tp.Federation, tmp_path: Path) -> None:
    """A spec and its model in one file: ops of predictions, gradients and saving take them as their own."""

    @learner
    class SquaresRegressor(Regressor, NetworkLearner):
        """Least squares on squares."""

        def spec(self, outputs: int) -> Any:
            return Squares(outputs)

    relation = fed.sql(f"SELECT v.x, p.age, v.x * v.x AS score {JOIN}", label="score")
    model: Any = SquaresRegressor(solver="lbfgs", rounds=200, tol=1e-12, l2=0.0)
    model.fit(relation).save(tmp_path / "squares")
    again = tp.load(tmp_path / "squares", fed)
    np.testing.assert_allclose(again.predict(relation), model.predict(relation), rtol=1e-12)
    pooled = np.column_stack([relation.matrix().times(np.eye(2)) ** 2, np.ones(len(relation))])
    left = np.linalg.lstsq(pooled, relation.label(), rcond=None)[1][0]
    np.testing.assert_allclose(((relation.label() - model.predict(relation)) ** 2).sum(), left, rtol=1e-6)


def test_a_table_model_with_another_spec(fed: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be stored as what it is not, and loaded as that: it is refused before it is trained."""

    @learner
    class CarelessRegressor(Regressor, NetworkLearner):
        """Least squares on squares, by a model that says that it is linear."""

        def spec(self, outputs: int) -> Any:
            return Squares(outputs)

    monkeypatch.setattr(Squares, "over", lambda spec, width, alias="": SquaresTable(width, Linear(spec.outputs)))
    with pytest.raises(tp.LearnError, match="SquaresTable has another spec than the Squares that it is made from"):
        CarelessRegressor(solver="lbfgs", rounds=2).fit(fed.sql(f"SELECT v.x, p.age {JOIN}", label="age"))


def falling_regressor() -> type[Regressor]:
    """Linear regression by plain gradient steps: it has a label, and no solver that a user could choose."""

    @learner
    class FallingRegressor(Regressor):
        """Steps of one length along the mean gradient."""

        steps: int = setting(default=3, kind=COUNT, help="steps over all rows")

        def spec(self, outputs: int) -> Linear:
            return Linear(outputs)

        def _costs(self, batches: int) -> Costs:
            return Costs(Cost(1, 1), Cost(1, 2))

        def plan_rounds(self, rows: int, allowed: Callable[[int], RoundAllowance]) -> None:
            allowed(1).check(self.steps, {"steps": self.steps}, "lower steps")
            self._schedule = Schedule(self.steps, rows)

        def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> Any:
            model = FederatedModel(
                relation.client, loss.rows, self.encoding_, relation.wire, self.spec(1), self.l2, 1.0
            )
            model.begin(self.seed)
            rates, rows = [0.1] * self.steps, self._schedule.batch_size
            return model, descend_by_batches(Stochastic(model, 0.0), loss, rates, rows, self.seed, watch.of(model))

    return FallingRegressor


def test_a_learner_without_a_solver(fed: tp.Federation, tmp_path: Path) -> None:
    """It has the settings that it declares and those of every learner of a label; nothing says that it has a solver."""
    seen: list[tp.Event] = []
    model: Any = falling_regressor()(callbacks=[seen.append])
    own = ["steps", "l2", "patience", "seed", "privacy", "callbacks"]
    assert list(model.get_params()) == own == list(inspect.signature(type(model)).parameters)
    for name in ("solver", "rounds", "tol", "reduce", "label_correction", "batch_size"):
        with pytest.raises(tp.LearnError, match=f"FallingRegressor has no setting '{name}'"):
            type(model)(**{name: 1})
    relation = fed.sql(f"SELECT v.x, p.age, v.score {JOIN}", label="score")
    model.fit(relation)
    assert [entry["solver"] for entry in model.history_] == [None] * 3
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert {event.fields["solver"] for event in seen} == {None}
    assert [event.message for event in seen if event.name == "fit.short"] == [
        "FallingRegressor stopped short of the optimum after 3 rounds: it needs more rounds"
    ]
    model.save(tmp_path / "falling")
    again: Any = tp.load(tmp_path / "falling", fed)
    assert again.solver_ is None
    np.testing.assert_array_equal(again.predict(relation), model.predict(relation))
    for text in (repr(model), model._repr_html_(), str([event.message for event in seen])):
        assert "lbfgs" not in text


def test_noise_is_refused_unless_a_learner_allows_it(fed: tp.Federation) -> None:
    """A learner with its own training gets no promise for features by accident: nothing is asked of the parties."""

    class Own(Regressor):
        """It says nothing of noise."""

        def spec(self, outputs: int) -> Network:
            return Network((), outputs)

        def _costs(self, batches: int) -> Costs:
            return Costs(Cost(1, 1), Cost(1, 1))

        def plan_rounds(self, rows: int, allowed: Callable[[int], RoundAllowance]) -> None:
            raise AssertionError("no rounds are planned")

        def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> Any:
            raise AssertionError("it is not trained")

    relation = fed.sql(f"SELECT v.x, p.age, v.score {JOIN}", label="score")
    with pytest.raises(tp.PrivacyError, match="Own cannot be fitted with noise on features"):
        Own(privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)


def test_a_learner_that_is_not_registered(fed: tp.Federation, tmp_path: Path) -> None:
    """It learns, but is refused when it is saved: nothing could load it. One that is not imported is named."""

    class Mine(tp.LinearRegression):
        """Somebody's own."""

    relation = fed.sql(f"SELECT v.x, p.age, v.score {JOIN}", label="score")
    model = Mine(rounds=2).fit(relation)
    with pytest.raises(tp.LearnError, match="Mine could not be loaded again: decorate the class with @learner"):
        model.save(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    learner(Mine)
    model.save(tmp_path / "mine")
    del LEARNERS["Mine"]
    with pytest.raises(tp.LearnError, match=r"the model is a Mine, which is no learner.*import the module"):
        tp.load(tmp_path / "mine", fed)

    Other = type("LinearRegression", (tp.LinearRegression,), {"__module__": "somewhere.else"})
    with pytest.raises(AssertionError, match="has a learner of the name LinearRegression"):
        learner(Other)
