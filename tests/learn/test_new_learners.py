"""What ARCHITECTURE.md says of adding a learner: one file is enough, with a label or without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

import tablepuppet as tp
from tablepuppet.jobs import make_learner
from tablepuppet.learn.learners.estimator import Estimator
from tablepuppet.learn.learners.network import NetworkLearner
from tablepuppet.learn.learners.tasks import Regressor
from tablepuppet.learn.registry import LEARNERS, learner
from tablepuppet.learn.settings import COUNT, setting
from tablepuppet.learn.tables.stored import Held
from tablepuppet.operators.loj import LearningOverJoin
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.spec import Linear, Network
from tablepuppet.prep.encode import apply_encoding
from tablepuppet.relation import Relation
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


def kmeans() -> type[Estimator]:
    """k-means over the encoded columns, by products with X alone; it has no label."""

    @learner
    class KMeans(Estimator):
        """Lloyd's algorithm: |x - c|^2 = |x|^2 - 2 x c + |c|^2, and |x|^2 is the same for all centres."""

        k: int = setting(default=2, kind=COUNT, help="how many centres")
        rounds: int = setting(default=10, kind=COUNT, help="rounds")

        def _learn(self, relation: Relation) -> Held:
            rng, aliases = np.random.default_rng(self.seed), list(relation.mapping.tables)
            centres = {a: rng.normal(size=(len(self.encoding_.names(a)), self.k)) for a in aliases}
            lou = LearningOverUnion(relation.client, relation.wire)
            for number in range(self.rounds):
                nearest = self._nearest(relation, centres)
                members = np.eye(self.k)[nearest]  # (joined rows, k)
                rows = {a: relation.mapping.scatter_sum(a, members) for a in aliases}
                told = {a: {"theta": np.zeros_like(centres[a])} for a in aliases}
                sums = lou.ask("model.gradient", aliases, rows, told, encoding=self.encoding_.id, spec=Linear(self.k))
                counts = np.maximum(members.sum(axis=0), 1)
                centres = {a: lou.add(sums[a], "sums") / counts for a in aliases}
                self.emit(relation, "progress", "fit", f"round {number + 1}", {"done": number + 1})
            return Held(centres)

        def _nearest(self, relation: Relation, centres: dict[str, NDArray[Any]]) -> NDArray[Any]:
            lou = LearningOverUnion(relation.client, relation.wire)
            told = {alias: {"theta": theta} for alias, theta in centres.items()}
            images = lou.ask("model.apply", told, by_alias=told, encoding=self.encoding_.id, spec=Linear(self.k))
            products = {alias: lou.concatenate(images[alias], "image") for alias in told}
            lengths = sum((theta**2).sum(axis=0) for theta in centres.values())
            return np.asarray(
                (lengths - 2 * LearningOverJoin(relation.mapping).gather(products, self.k)).argmin(axis=1)
            )

        def predict(self, relation: Relation) -> NDArray[Any]:
            """The nearest centre of every joined row."""
            self.check_relation(relation, "predict")
            apply_encoding(relation.client, self.encoding_)
            return self._nearest(relation, self.model_.parameters())

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
