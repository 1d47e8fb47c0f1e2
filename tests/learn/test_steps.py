"""A solver's step is one class: parties take it as an op, the coordinator with what shards return, and both agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.steps import Facts, RowGradients, Update, by_itself, by_rows, step
from tablepuppet.party.arguments import NotNegative
from tablepuppet.party.ops import REGISTRY, find_op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROW_OUTPUTS, SQUARE
from tablepuppet.prep.encode.encode import Encoding
from tests.learn.materialised import JOIN, PLAIN, shop
from tests.relations import federation

Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Ops that a test registers are gone after it."""
    yield
    for name in ("downhill.step", "quiet.step"):
        REGISTRY.pop(name, None)


def downhill() -> type[Update]:
    """Plain gradient descent: all that a new solver writes at the tables."""

    @step(
        "downhill.step",
        by_rows,
        asked="a test",
        releases=Release.PREDICTIONS,
        returns={"outputs": ROW_OUTPUTS, "square": SQUARE},
    )
    @dataclass(frozen=True)
    class Down(Update):
        """A step along the gradient."""

        lr: NotNegative
        shrink: NotNegative = 1.0

        def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
            part.theta = self.shrink * part.theta - self.lr * sums
            return {"square": part.square}

        def shown(self, part: TableParameters) -> dict[str, Any]:
            return {"theta": part.theta}

    return Down


def started(folder: Path, shards: int) -> tuple[tp.Relation, FederatedModel]:
    """A linear model of the shop's tables; the relation keeps its session open."""
    folder.mkdir()
    relation = federation(folder, shop(shards), wire="float64").sql(f"SELECT {PLAIN}, o.paid {JOIN}", label="paid")
    encoding: Encoding = tp.LinearRegression(rounds=1).fit(relation).encoding_
    rows = relation.client.rows.of_scores(1)
    model = FederatedModel(relation.client, rows, encoding, relation.wire, Linear(1), 0.0)
    model.begin(0)
    return relation, model


def test_one_class_is_a_step_whoever_holds_parameters(tmp_path: Path) -> None:
    """Descent over one shard and over three gives the same parameters, predictions and facts."""
    kind: Any = downhill()
    found = []
    for shards in (1, 3):
        relation, model = started(tmp_path / str(shards), shards)
        assert model.lou.client is relation.client
        assert bool(model.alone) == (shards == 1)
        rows = {alias: np.ones(model.rows(alias)) for alias in model.tables}
        for number in range(3):
            stepped = model.step({alias: kind(0.1, 1.0 - 0.1 * number) for alias in model.tables}, RowGradients(rows))
        sums = {alias: float(each.sum()) for alias, each in stepped.predictions.items()}
        found.append((model.parameters(), {alias: facts["square"] for alias, facts in stepped.facts.items()}, sums))
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for alias in one:
            np.testing.assert_allclose(other[alias], one[alias], rtol=1e-9, atol=1e-12)
    assert max(float(np.abs(theta).max()) for theta in found[0][0].values()) > 0.1


def test_tables_without_an_update_stay(tmp_path: Path) -> None:
    """Only tables that are given an update take a step."""
    kind: Any = downhill()
    for shards in (1, 2):
        relation, model = started(tmp_path / str(shards), shards)
        assert model.lou.client is relation.client
        alias, *others = model.tables
        model.step({alias: kind(0.1)}, RowGradients({alias: np.ones(model.rows(alias))}))
        thetas = model.parameters()
        assert np.any(thetas[alias])
        assert not any(np.any(thetas[other]) for other in others)


def test_fields_are_arguments_of_the_op() -> None:
    """A party checks an update's numbers as it checks any argument, and its releases are declared."""
    op = find_op(downhill().op)
    needed, known = op.parameters.names
    assert needed == {"view", "encoding", "model", "rows", "lr"}
    assert known == {*needed, "shrink"}
    assert op.releases is Release.PREDICTIONS
    given = {"view": "v", "encoding": "e", "model": "m", "rows": np.ones(3)}
    for wrong in ({"lr": -1.0}, {"lr": "fast"}, {}, {"lr": 1.0, "more": 1}):
        with pytest.raises(tp.PartyError, match=r"op 'downhill\.step'"):
            op.parameters.read(given | wrong)
    assert op.parameters.read({**given, "lr": 0.5})["lr"] == 0.5


def test_only_fields_that_differ_travel() -> None:
    """What has its default is not sent."""

    @step("quiet.step", by_itself, asked="a test", releases=Release.COUNTS, returns={})
    @dataclass(frozen=True)
    class Quiet(Update):
        """It does nothing."""

        lr: float
        other: float | None = None

    assert Quiet(1.0).arguments == {"lr": 1.0}
    assert Quiet(1.0, 2.0).arguments == {"lr": 1.0, "other": 2.0}
