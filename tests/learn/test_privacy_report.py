"""``model.privacy_``: a dict for programs, one line and a small table for people, and figures for several rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.private.report import PrivacyReport
from tablepuppet.privacy.accountant import gaussian_epsilon
from tablepuppet.privacy.noise_plan import PREDICTIONS
from tests.relations import federation

DELTA = 1e-5
LABELS = {"label_epsilon": 2.0, "label_bounds": [-4.0, 4.0]}
FEATURES = {"feature_epsilon": 1.0, "delta": DELTA}


@pytest.fixture
def relation(tmp_path: Path) -> tp.Relation:
    """Orders with a label, and items; text of which everybody has one of two values."""
    rng = np.random.default_rng(0)
    orders = pa.table({"k": rng.integers(0, 200, 2000), "x": rng.normal(size=2000), "y": rng.normal(size=2000)})
    items = pa.table({"k": np.arange(200), "w": rng.normal(size=200), "c": ["a", "b"] * 100})
    fed = federation(tmp_path, {"store": {"orders": orders}, "supplier": {"items": items}})
    return fed.sql("SELECT o.x, i.w, i.c, o.y FROM orders o JOIN items i USING (k)", label="y")


def fitted(relation: tp.Relation, **privacy: Any) -> Any:
    return tp.LinearRegression(rounds=1, privacy=tp.Privacy(**privacy) if privacy else None).fit(relation)


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({}, ["Nothing is promised: the model was fitted without privacy."]),
        (LABELS, ["Labels (orders): all that left, the model included, changes the odds of anybody but the owner about "
                  "the label of any one row by a factor of 7.4 at most (epsilon 2).",
                  "Features (orders, items): nothing is promised."]),
        (FEATURES, ["Labels (orders): nothing is promised.",
                    "Features (orders, items): nothing is promised against the coordinator, who saw predictions",
                    "by more than a factor of 2.7 (epsilon_given_messages 1)"]),
        (FEATURES | {"prediction_epsilon": 1.0},
         ["the values of any one row by a factor of ", "but for a chance of 1e-05."]),
    ],
)  # fmt: skip
def test_one_line_says_for_whom_what_holds(relation: tp.Relation, privacy: dict[str, Any], expected: list[str]) -> None:
    """``promise`` says it in one line, which is the first that is printed; a bare infinity is nowhere."""
    report = fitted(relation, **privacy).privacy_
    assert "\n" not in report["promise"]
    assert all(part in report["promise"] for part in expected)
    for shown in (str(report), repr(report)):
        assert shown.replace("\n", " ").startswith(report["promise"][:100])
        assert "inf" not in shown


def test_it_is_a_dict_and_prints_a_table(relation: tp.Relation) -> None:
    """Keys are there as ever, also in JSON; printed it is a table by label and features, in a notebook one in HTML."""
    report = fitted(relation, **LABELS, **FEATURES, prediction_epsilon=1.0).privacy_
    assert isinstance(report, dict)
    assert isinstance(report, PrivacyReport)
    keys = "epsilon epsilon_given_messages delta label_epsilon secure_sum tables parties total assumptions".split()
    assert set(keys) <= set(report)
    assert json.loads(json.dumps(report)) == report
    lines = [line.split("│") for line in str(report).splitlines() if line.startswith("│")]
    cells = {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}
    assert cells["labels of orders"] == ["2", "4", "20", "-", "0"]
    features = report["tables"]["items"]
    assert cells["features of items"][0] == f"{features['epsilon']:.4g}"
    assert cells["features of items"][3:] == [f"{features['epsilon_given_messages']:.4g}", "1e-05"]
    assert cells["features and label of all tables"][0] == f"{report['total']['features_and_label']:.4g}"
    page = PrivacyReport._repr_html_(report)
    assert page.count("<table") == 1
    assert "factor of 7.4" in page
    assert "for_rows(k)" in page


def test_rows_given_predictions(relation: tp.Relation) -> None:
    """Where predictions had no noise, the figures for several rows are those given predictions."""
    report = fitted(relation, **LABELS, **FEATURES).privacy_
    lines = [line.split("│") for line in str(report).splitlines() if line.startswith("│")]
    cells = {line[1].strip(): [cell.strip() for cell in line[2:-1]] for line in lines}
    assert cells["labels of orders"] == ["2", "-", "4", "20", "0"]
    given = [
        each["tables"]["items"]["epsilon_given_messages"] for each in (report, report.for_rows(2), report.for_rows(10))
    ]
    assert cells["features of items"] == ["no promise", *(f"{value:.4g}" for value in given), "1e-05"]
    heads = next(line for line in str(report).splitlines() if line.startswith("┃")).split("┃")
    assert [head.strip() for head in heads[2:-1]] == ["epsilon", "given predictions", "2 rows", "10 rows", "delta"]


def test_what_is_not_promised_has_no_delta(relation: tp.Relation) -> None:
    """With noise on labels alone nothing is promised of features, and a delta of 0 would read as more than that."""
    rows = fitted(relation, **LABELS).privacy_.table_view().rows
    assert {row[0]: row[-1] for row in rows} == {
        "labels of orders": "0", "features of orders": "-", "features of items": "-",
        "features and label of all tables": "-",
    }  # fmt: skip


def test_features_and_label_of_one_row_together(relation: tp.Relation) -> None:
    """``total`` adds the label to what features cost together; it is infinite if either has no noise."""
    both = fitted(relation, **LABELS, **FEATURES, prediction_epsilon=1.0).privacy_["total"]
    assert both["features_and_label"] == both["moments"] + 2.0 < math.inf
    assert both["features_and_label_given_messages"] == both["moments_given_messages"] + 2.0
    for privacy in (LABELS, FEATURES | {"prediction_epsilon": 1.0}):
        assert fitted(relation, **privacy).privacy_["total"]["features_and_label"] == math.inf


def test_several_rows_of_one_person(relation: tp.Relation) -> None:
    """k labels cost k times as much; sums over k rows are counted with noise k times smaller, predictions with noise
    smaller by the root of k; one row is the report itself.
    """
    model = fitted(relation, **LABELS, **FEATURES, prediction_epsilon=1.0)
    noise, promise = model._promise.noise, model._promise
    assert model.privacy_.for_rows(1) is model.privacy_
    assert model.privacy_["rows"] == 1
    found = model.privacy_.for_rows(5)
    assert (found["rows"], found["label_epsilon"], found["delta"]) == (5, 10.0, DELTA)
    assert found["tables"]["orders"]["label"] == 10.0
    told = 25 * sum(each.precision for each in promise.releases("o") if each.what != PREDICTIONS)
    expected = gaussian_epsilon(told**-0.5, DELTA)
    assert found["tables"]["orders"]["epsilon_given_messages"] == pytest.approx(expected, rel=1e-4)
    whole = gaussian_epsilon((told + 5 / noise.prediction**2) ** -0.5, DELTA)
    assert found["tables"]["orders"]["epsilon"] == pytest.approx(whole, rel=1e-4)
    assert "somebody with 5 rows in each table" in found["promise"]
    assert found["total"]["features_and_label"] == found["total"]["moments"] + 10.0
    for rows in (0, -1, 1.5, True, "2", 2**31, 10**400):
        with pytest.raises(tp.PrivacyError, match="rows must be a whole number of at least 1"):
            model.privacy_.for_rows(rows)


def test_many_rows_in_one_category(relation: tp.Relation) -> None:
    """A list of categories hides one row's rare category, not one that hundreds of rows of a person have: then nothing
    is promised at this delta. A table without such a list has an epsilon still.
    """
    tables = fitted(relation, **FEATURES).privacy_.for_rows(500)["tables"]
    assert tables["items"]["epsilon_given_messages"] == math.inf
    assert tables["orders"]["epsilon_given_messages"] < math.inf


def test_several_rows_of_a_loaded_model(relation: tp.Relation, tmp_path: Path) -> None:
    """A model that was saved and loaded says the same, for one row and for several."""
    model = fitted(relation, **LABELS, **FEATURES, prediction_epsilon=1.0)
    model.save(tmp_path / "model")
    loaded = tp.load(
        tmp_path / "model", tp.Federation({name: f"parquet:///{tmp_path / name}" for name in ("store", "supplier")})
    )
    assert loaded.privacy_ == model.privacy_
    assert str(loaded.privacy_) == str(model.privacy_)
    assert loaded.privacy_.for_rows(3) == model.privacy_.for_rows(3)


@pytest.mark.parametrize("batch_size", [10_000, 100])
def test_several_rows_with_samples(relation: tp.Relation, batch_size: int) -> None:
    """By noisy steps too: more rows cost more, and with samples less than if every row were in every step."""
    privacy = tp.Privacy(feature_epsilon=4.0, delta=DELTA)
    learner = tp.LinearRegression(solver="sgd", rounds=1, local_steps=5, batch_size=batch_size, privacy=privacy)
    report = learner.fit(relation).privacy_
    two = report.for_rows(2)
    promise: Any = learner._promise
    steps = promise.noise
    for name, alias in (("orders", "o"), ("items", "i")):
        one, both = (each["tables"][name]["epsilon_given_messages"] for each in (report, two))
        beside = 4 * promise.releases(alias)[0].precision
        all_in = gaussian_epsilon(steps.multipliers[alias] / 2, DELTA, 5, None, beside)
        assert one < both <= all_in + 1e-3
    assert ("2 rows" in str(report)) == (batch_size != 100)
