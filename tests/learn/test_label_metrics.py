"""Metrics computed by the label's party: those of the true labels, without a label leaving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.learn.test_private_labels import Bank
from tests.relations import federation, record_wire

ROWS = 200


def tables(shards: int = 1, joins: int = 1) -> dict[str, dict[str, pa.Table]]:
    """Labels at banks, and a table that every row of theirs joins so many times."""
    row = np.arange(ROWS)
    cards = pa.table(
        {"id": row, "x": np.sin(row), "two": row % 3 == 0, "three": [f"c{i * 7 // 3 % 3}" for i in row], "y": row % 11}
    )
    part = -(-ROWS // shards)
    banks = {f"bank{i}": {"cards": cards.slice(i * part, part)} for i in range(shards)}
    ids = np.repeat(row, joins)
    return banks | {"shop": {"sales": pa.table({"id": ids, "f": np.cos(np.arange(len(ids)))})}}


@pytest.mark.parametrize(("shards", "joins"), [(1, 1), (1, 3), (2, 1)])
@pytest.mark.parametrize("label", ["two", "three", "y"])
def test_they_are_those_of_the_true_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str, shards: int, joins: int
) -> None:
    """Equal to metrics over the joined rows, and a constant's; the area where rows join once. No label leaves."""
    fed = federation(tmp_path, tables(shards, joins), wire="float64")
    relation = fed.sql(f"SELECT c.x, s.f, c.{label} FROM cards c JOIN sales s ON c.id = s.id", label=label)
    make = tp.LinearRegression if label == "y" else tp.LogisticRegression
    model = make(rounds=5).fit(relation)
    expected = model.evaluate(relation)
    messages = record_wire(monkeypatch)
    found = model.evaluate(relation, at_party=True)
    assert model.evaluated_on_ == "true labels, at their party"
    if shards * joins > 1 and "auc" in expected:
        assert np.isnan(found["auc"])
        del found["auc"], expected["auc"]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found.constant == pytest.approx(expected.constant, rel=1e-9)
    assert not [message for message in messages if message.request.op in ("label.numbers", "label.classes")]
    longest = [
        value.shape[0] for m in messages for value in m.request.arguments.values() if isinstance(value, np.ndarray)
    ]
    assert max(longest) <= ROWS


def test_a_table_that_demands_noise_tells_none(tmp_path: Path) -> None:
    """They have no noise, so with require_dp they are refused."""
    bank = Bank(tmp_path, "require_dp = true")
    relation = bank.relation("k.f, c.score", "score")
    privacy = tp.Privacy(label_epsilon=1.0, label_bounds=(0.0, 10.0))
    model = tp.LinearRegression(rounds=1, privacy=privacy).fit(relation)
    with pytest.raises(tp.PrivacyError, match=r"METRICS only with noise.*require_dp"):
        model.evaluate(relation, at_party=True)


def test_a_model_with_noisy_labels_is_measured_on_true_ones(tmp_path: Path) -> None:
    """Without require_dp a model of noisy labels can be measured at the party: its error is that on true labels."""
    bank = Bank(tmp_path)
    relation = bank.relation("k.f, c.score", "score")
    privacy = tp.Privacy(label_epsilon=0.5, label_bounds=(0.0, 10.0))
    model = tp.LinearRegression(rounds=5, privacy=privacy).fit(relation)
    noisy, true = model.evaluate(relation), model.evaluate(relation, at_party=True)
    assert true["rmse"] < 5 < 20 < noisy["rmse"]


def test_labels_that_are_missing(tmp_path: Path) -> None:
    """A LearnError that names the label and no row."""
    rows = pa.table({"x": np.arange(20.0), "y": [None, *np.arange(19.0)], "z": ["a"] * 10 + ["b"] * 9 + ["c"]})
    fed = federation(tmp_path, {"bank": {"t": rows}})
    model = tp.LinearRegression(rounds=1).fit(fed.sql("SELECT x, y FROM t WHERE y IS NOT NULL", label="y"))
    with pytest.raises(tp.LearnError, match="table 't', label 'y': a label is missing"):
        model.evaluate(fed.sql("SELECT x, y FROM t", label="y"), at_party=True)
    model = tp.LogisticRegression(rounds=1).fit(fed.sql("SELECT x, z FROM t WHERE x < 19", label="z"))
    with pytest.raises(tp.LearnError, match="of no class that the model knows"):
        model.evaluate(fed.sql("SELECT x, z FROM t", label="z"), at_party=True)
