"""Feature privacy of linear models: what a row may change, what a fit states, spends and refuses."""

from __future__ import annotations

import itertools
import math
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.algebra import ops as matrix_ops
from tablepuppet.baselines import Centralized
from tablepuppet.learn.tables import ops as model_ops
from tablepuppet.learn.tables.linear import Linear, LinearRows
from tablepuppet.learn.tables.noisy import noisy_predictions
from tablepuppet.party.arguments import GramNoise, SumNoise
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.policy import ColumnRule
from tablepuppet.prep.encode.encode import EncodedShard
from tablepuppet.prep.encode.encoded_table import EncodedTable, SealedTable
from tablepuppet.privacy.accountant import gaussian_epsilon
from tests.privacy.bounded import bounded_federation
from tests.relations import federation, multipliers, party_of, record_wire, warnings_of
from tests.test_canary import Net, assert_unseen

ROWS = 3000
DELTA = 1e-5
JOIN = "FROM orders o JOIN clients c ON o.client = c.id"
SELECT = f"SELECT o.size, o.kind, c.age, c.town, {{label}} {JOIN}"
LABELS = {"squared": "o.price", "logistic": "o.late", "softmax": "o.grade"}


class Exact:
    """Stands in for a party's table: values without noise, and the sensitivity that noise was asked for."""

    wire = "float64"

    def __init__(self, data: EncodedTable):
        rows = np.arange(len(data.dense))
        self.rows = RelationRows(rows, np.ones_like(rows))
        self.snapshot = SimpleNamespace(scan=SimpleNamespace(alias="t"))
        self.state = {"v/e": EncodedShard(SealedTable.of(data), self.rows, private=True)}
        self.values, self.sensitivity = np.zeros(0), 0.0

    def view(self, name: str) -> RelationRows:
        return self.rows

    rows_once = view

    def noisy(
        self, parts: Any, shape: tuple[int, ...], sensitivity: float, multiplier: float, purpose: str
    ) -> NDArray[Any]:
        self.values, self.sensitivity = np.sum([np.zeros(shape), *parts()], axis=0), sensitivity
        return self.values


@st.composite
def tables(draw: st.DrawFn) -> tuple[EncodedTable, EncodedTable, int]:
    """A table, its neighbour with one row of missing values, and which row."""
    rows, numbers, lists = draw(st.integers(1, 6)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    value = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0, -1.0, 1e-300])
    dense = np.array(draw(st.lists(value, min_size=rows * numbers, max_size=rows * numbers))).reshape(rows, numbers)
    code = st.integers(-1, 2)
    codes = [np.array(draw(st.lists(code, min_size=rows, max_size=rows)), np.int32) for _ in range(lists)]
    row = draw(st.integers(0, rows - 1))
    bare, missing = dense.copy(), [column.copy() for column in codes]
    bare[row] = 0.0
    for column in missing:
        column[row] = -1
    sizes = (3,) * lists
    return EncodedTable(dense, tuple(codes), sizes), EncodedTable(bare, tuple(missing), sizes), row


def change(asked: Any, here: EncodedTable, there: EncodedTable) -> tuple[float, float]:
    """(how far what is noised differs between neighbours, the sensitivity that noise is for)."""
    one, other = Exact(here), Exact(there)
    asked(cast(LocalTable, one))
    asked(cast(LocalTable, other))
    assert one.sensitivity == other.sensitivity
    return float(np.linalg.norm(one.values - other.values)), one.sensitivity


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(1, 10_000))
def test_a_row_changes_the_gram_matrix_by_its_bound(pair: tuple[EncodedTable, EncodedTable, int], rows: int) -> None:
    """Replacing a row by missing values changes K by at most columns / n."""
    here, there, _ = pair
    moved, allowed = change(lambda table: matrix_ops.gram(table, "v", "e", rows, GramNoise(rows, 1.0)), here, there)
    assert allowed == max(here.columns, 1) / rows
    assert moved <= allowed * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    tables(), st.integers(1, 10_000), st.floats(1e-3, 1e3), st.floats(-1e6, 1e6), st.sampled_from([1, 3]),
    st.integers(1, 10_000),
)  # fmt: skip
def test_a_row_changes_the_gradient_by_its_bound(
    pair: tuple[EncodedTable, EncodedTable, int], rows: int, clip: float, wanted: float, outputs: int, joined: int
) -> None:
    """By at most clip / n, however often it is joined, whatever the coordinator wants of it and of others."""
    here, there, row = pair
    values = np.linspace(-1, 1, len(here.dense) * outputs).reshape(-1, outputs)
    values[row] = wanted * joined
    told = values[:, 0] if outputs == 1 else values
    spec, noise = Linear(outputs), SumNoise(rows, clip, 1.0)
    moved, allowed = change(lambda table: model_ops.gradient(table, "v", "e", spec, told, noise=noise), here, there)
    assert allowed == clip / rows
    assert moved <= allowed * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5), st.floats(1e-6, 1e3), st.floats(1e-100, 1e100))
def test_a_row_changes_predictions_by_its_bound(values: list[float], bound: float, theta: float) -> None:
    """A prediction is clipped to the bound, that of a row of missing values is exactly zero."""
    data = EncodedTable(np.array([*values, 0.0])[:, None], (), ())
    table = Exact(data)
    noisy_predictions(cast(LocalTable, table), SealedTable.of(data), LinearRows(), np.array([theta]), bound, 1.0)
    assert table.sensitivity == bound
    assert np.abs(table.values).max() <= bound * (1 + 1e-9)
    assert table.values[-1] == 0.0


def test_missing_values_add_exactly_nothing() -> None:
    """The null record of the neighbours is all zeros in every sum."""
    null = cast(LocalTable, Exact(EncodedTable(np.zeros((4, 2)), (np.full(4, -1, np.int32),), (3,))))
    assert not matrix_ops.gram(null, "v", "e", 4, GramNoise(4, 1.0))["gram"].any()
    told = model_ops.gradient(null, "v", "e", Linear(1), np.ones(4), noise=SumNoise(4, 1.0, 1.0))
    assert not told["sums"].any()


def test_one_row_joined_ten_thousand_times_counts_once(tmp_path: Path) -> None:
    """Its part of the gradient is the same as if it were joined twice: both are clipped to clip / n."""
    found = []
    for often in (2, 10_000):
        rows = often + 10
        keys = np.concatenate([np.zeros(often, np.int64), np.arange(1, 11)])
        a = pa.table({"k": keys, "y": np.full(rows, 100.0)})
        b = pa.table({"k": np.arange(11), "z": [1.0, *[0.0] * 10]})
        rules = {"z": ColumnRule(bounds=(-1.0, 1.0))}
        fed = bounded_federation(tmp_path / str(often), {"p": {"a": a}, "q": {"b": b}}, rules)
        relation = fed.sql("SELECT b.z, a.y FROM a JOIN b USING (k)", label="y")
        model = tp.LinearRegression(rounds=1, privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)
        party, client = party_of(fed.engine, "q"), relation.client
        kept = party.table(client.session, "b").state[f"{client.view}/{model.encoding_.id}"]
        table = Exact(cast(EncodedShard, kept).data.open())
        wanted = np.bincount(relation.mapping.tables["b"].index) * -100.0 / rows
        noise = SumNoise(11, 1.0, 1.0)
        model_ops.gradient(cast(LocalTable, table), "v", "e", Linear(1), wanted, noise=noise)
        found.append(float(table.values[0]))
    assert found[0] == pytest.approx(-1 / 11) == found[1]


def world(folder: Path, shards: int = 1) -> tp.Federation:
    """Orders and clients, each at one party or cut in two."""
    rng = np.random.default_rng(5)
    client = rng.integers(0, ROWS // 3, ROWS)
    age, town = rng.normal(40, 12, ROWS // 3), rng.integers(0, 3, ROWS // 3)
    size, kind = rng.normal(2, 1, ROWS), rng.integers(0, 2, ROWS)
    score = (age[client] - 40) / 12 + town[client] - size + kind + rng.normal(0, 0.5, ROWS)
    orders = pa.table(
        {
            "client": client, "size": size, "kind": [f"kind{i}" for i in kind], "price": score,
            "late": score > 0, "grade": np.digitize(score, (-1.0, 1.0)),
        }
    )  # fmt: skip
    clients = pa.table({"id": np.arange(ROWS // 3), "age": age, "town": [f"town{i}" for i in town]})
    parties = {}
    for table, name in ((orders, "orders"), (clients, "clients")):
        step = -(-len(table) // shards)
        for shard in range(shards):
            parties[f"{name}{shard}"] = {name: table.slice(shard * step, step)}
    return federation(folder, parties)


def learner(kind: str, **settings: Any) -> Any:
    """The learner of a loss."""
    return tp.LinearRegression(**settings) if kind == "squared" else tp.LogisticRegression(**settings)


def relation_of(fed: tp.Federation, kind: str) -> tp.Relation:
    """The relation with the label of a loss."""
    return fed.sql(SELECT.format(label=f"{LABELS[kind]} AS y"), label="y")


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("solver", ["lbfgs", "admm"])
@pytest.mark.parametrize("kind", LABELS)
def test_little_noise_is_the_model_without(tmp_path: Path, kind: str, solver: str, shards: int) -> None:
    """At an epsilon of 10,000 with a wide clip, a fit of some rounds is close to the model without privacy."""
    relation = relation_of(world(tmp_path, shards), kind)
    privacy = tp.Privacy(feature_epsilon=1e4, clip_norm=100.0)
    model = learner(kind, solver=solver, rounds=15, privacy=privacy).fit(relation)
    bare = learner(kind).fit(relation)
    metric = "rmse" if kind == "squared" else "log_loss"
    assert model.evaluate(relation)[metric] <= bare.evaluate(relation)[metric] * 1.05


@pytest.mark.parametrize("predictions", [None, 2.0])
@pytest.mark.parametrize("shards", [1, 2])
def test_what_is_stated_is_what_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, predictions: float | None
) -> None:
    """The stated epsilons are those of the multipliers that parties were told, and within what was asked for."""
    relation = relation_of(world(tmp_path, shards), "squared")
    messages = record_wire(monkeypatch)
    privacy = tp.Privacy(feature_epsilon=1.0, prediction_epsilon=predictions, delta=DELTA)
    model = tp.LinearRegression(privacy=privacy).fit(relation)
    given, images = {"o": 0.0, "c": 0.0}, {"o": 0.0, "c": 0.0}
    for message in messages:
        told, alias = message.request.arguments, message.request.table
        if message.party.endswith("1"):
            continue  # shards are alike: their rows are others
        releases = len(told["columns"]) if message.request.op in ("private.ranges", "private.moments") else 1
        sums, predicted = multipliers(told)
        given[alias] += 0.0 if sums is None else releases / sums**2
        images[alias] += 0.0 if predicted is None else predicted**-2
    for alias, name in (("o", "orders"), ("c", "clients")):
        stated = model.privacy_["tables"][name]
        drawn = gaussian_epsilon(given[alias] ** -0.5, DELTA)
        assert stated["epsilon_given_messages"] == pytest.approx(drawn, rel=1e-4)
        assert stated["epsilon_given_messages"] <= 1.0
        if predictions is None:
            assert stated["epsilon"] == math.inf
        else:
            whole = gaussian_epsilon((given[alias] + images[alias]) ** -0.5, DELTA)
            assert stated["epsilon"] == pytest.approx(whole, rel=1e-4)


def test_what_a_model_says(tmp_path: Path) -> None:
    """``privacy_`` by table, party and in total: predictions without noise have no epsilon, and say why."""
    relation = relation_of(world(tmp_path), "squared")
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)
    promise = model.privacy_
    assert (promise["epsilon"], promise["delta"], promise["label_epsilon"]) == (math.inf, 1e-5, None)
    assert promise["tables"]["orders"]["label"] == math.inf
    assert promise["tables"]["clients"]["label"] is None
    assert promise["tables"]["clients"]["parties"] == ["clients0"]
    parts = [table["epsilon_given_messages"] for table in promise["tables"].values()]
    assert promise["epsilon_given_messages"] == max(parts) <= 1.0
    assert promise["total"]["epsilon_given_messages"] == pytest.approx(sum(parts))
    assert promise["total"]["sum_delta"] == 2e-5
    assert max(parts) < promise["total"]["moments_given_messages"] < 0.85 * sum(parts)  # about the root of two times
    assert promise["total"]["moments"] == math.inf
    assert "Predictions left without noise" in promise["assumptions"]
    assert [entry["epsilon"] for entry in model.history_] == sorted(entry["epsilon"] for entry in model.history_)


def test_every_prediction_is_counted(tmp_path: Path) -> None:
    """With noise on predictions epsilon is finite, and grows with each evaluation, of the rows learned from too."""
    relation = relation_of(world(tmp_path), "squared")
    train, test = relation.split()
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0, prediction_epsilon=1.0)).fit(train)
    seen = [model.privacy_["epsilon"]]
    assert 1.0 < seen[0] < 1.6
    for side in (test, train, train):
        model.evaluate(side)
        seen.append(model.privacy_["epsilon"])
    assert all(after > before for before, after in itertools.pairwise(seen))
    assert model.privacy_["epsilon_given_messages"] <= 1.0


@pytest.mark.parametrize(
    ("settings", "privacy", "message"),
    [
        ({}, {"delta": 1e-3}, r"delta 0\.001 is not below one over the .* rows"),
        ({"inner_rounds": 3}, {}, "inner_rounds: consensus releases parameters without noise"),
        ({"reduce": False}, {}, "reduce=False releases a row as often"),
        ({}, {"feature_epsilon": None, "prediction_epsilon": 1.0}, "set feature_epsilon too"),
    ],
)
def test_settings_that_cannot_be_kept(
    tmp_path: Path, settings: dict[str, Any], privacy: dict[str, Any], message: str
) -> None:
    """A PrivacyError before anything is told."""
    relation = relation_of(world(tmp_path), "squared")
    with pytest.raises(tp.PrivacyError, match=message):
        tp.LinearRegression(**settings, privacy=tp.Privacy(**{"feature_epsilon": 1.0, **privacy})).fit(relation)


@pytest.mark.parametrize(
    "settings",
    [{"feature_epsilon": 0.0}, {"feature_epsilon": -1.0}, {"feature_epsilon": 1.0, "clip_norm": 0.0}],
)
def test_settings_that_are_none(settings: dict[str, Any]) -> None:
    """An epsilon or clip of 0 or below is refused where it is written."""
    with pytest.raises(tp.PrivacyError, match="must be a number from 1e-"):
        tp.Privacy(**settings)


@pytest.mark.parametrize(
    ("sql", "column", "how"),
    [
        (f"SELECT o.size, o.client, o.price AS y {JOIN}", "client", "join key"),
        (f"SELECT o.size, c.id + 1 AS id, o.price AS y {JOIN}", "id", "join key"),
        (f"SELECT o.size, c.age, o.price AS y {JOIN} WHERE c.age > 30", "age", "filter"),
        (f"SELECT o.size, c.age * 2 AS a, o.price AS y {JOIN} WHERE c.age IS NOT NULL", "age", "filter"),
        (f"SELECT o.size, o.price > 1 AS dear, o.price AS y {JOIN}", "price", "label"),
        (f"SELECT o.size, d.age, o.price AS y {JOIN} JOIN clients d ON d.id = c.id WHERE c.age > 30", "age", "filter"),
    ],
)
def test_a_cell_that_is_known_otherwise(tmp_path: Path, sql: str, column: str, how: str) -> None:
    """A feature's column that is a key, filter or label too, by itself or in an expression, is warned of and among the
    assumptions; without feature privacy it is not.
    """
    fed = world(tmp_path)
    warned = warnings_of(fed)
    relation = fed.sql(sql, label="y")
    tp.LinearRegression(rounds=1).fit(relation)
    assert "privacy.known" not in {event.name for event in warned}
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)
    expected = rf"Column '{column}' of table '\w+' is a feature and a {how}: what that use reveals is known\."
    assert re.search(expected, model.privacy_["assumptions"])
    assert any(re.match(expected, event.message) for event in warned if event.name == "privacy.known")


def test_validation_would_tell_more(tmp_path: Path) -> None:
    """Noisy predictions of validation rows after every round are more than was promised; without them it works."""
    train, test = relation_of(world(tmp_path), "squared").split()
    both = tp.Privacy(feature_epsilon=1.0, prediction_epsilon=1.0)
    with pytest.raises(tp.PrivacyError, match="fit without validation"):
        tp.LinearRegression(privacy=both).fit(train, validation=test)
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0)).fit(train, validation=test)
    assert all(entry["validation_loss"] for entry in model.history_)


def test_noise_costs_little_where_rows_are_many(tmp_path: Path) -> None:
    """With label and feature noise at once a model learns still: far better than a constant."""
    relation = relation_of(world(tmp_path), "logistic")
    privacy = tp.Privacy(feature_epsilon=8.0, label_epsilon=3.0, label_classes=(False, True))
    model = tp.LogisticRegression(privacy=privacy).fit(relation)
    assert Centralized(tp.LogisticRegression()).fit(relation).evaluate(relation)["accuracy"] > 0.8
    assert model.evaluate(relation, at_party=True)["accuracy"] > 0.7
    assert "Labels were noised" in model.privacy_["assumptions"]


@pytest.mark.parametrize("shards", [1, 2])
def test_no_cell_is_in_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    """With noise on everything no message, in either direction, and no log holds a planted number or category."""
    caplog.set_level("DEBUG")
    rows = 400
    cells = 48151623.4208 + np.arange(rows)
    words = [f"canary-{i % 2}" for i in range(rows)]
    table = pa.table({"cell": cells, "word": words, "y": np.sin(np.arange(rows))})
    step = rows // shards
    fed = federation(tmp_path, {f"p{i}": {"t": table.slice(i * step, step)} for i in range(shards)})
    net = Net(record_wire(monkeypatch))
    fed.events.subscribe(net.events.append)
    privacy = tp.Privacy(feature_epsilon=50.0, prediction_epsilon=50.0, label_epsilon=5.0, label_bounds=(-1.0, 1.0))
    relation = fed.sql("SELECT cell, word, y FROM t", label="y")
    model = tp.LinearRegression(privacy=privacy).fit(relation)
    net.texts += [
        str(model.privacy_),
        str(dict(model.privacy_)),
        str(model.coef_),
        str(model.evaluate(relation)),
        caplog.text,
    ]
    planted = {
        str(cell): [struct.pack("<d", cell), struct.pack("<f", cell), repr(float(cell)).encode()] for cell in cells
    }
    assert len(model.coef_) == 3  # both columns were learned from
    assert_unseen(net.catch(), planted | {"a category": [b"canary-"]})
