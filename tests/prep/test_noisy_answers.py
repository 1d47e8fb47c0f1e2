"""Pipelines under feature privacy: steps learn from policies or from noise, and null records stay all zeros."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import ColumnRule, Policy, TableRule
from tablepuppet.prep.columns.values import date_part
from tablepuppet.prep.encode.program import bounds_after
from tablepuppet.prep.encode.specs import (
    Clipped,
    Exponent,
    Fill,
    Logarithm,
    Lookup,
    Missing,
    Part,
    Product,
    Scale,
    Without,
)
from tablepuppet.prep.pipelines.noisy_answers import EncoderNoise
from tablepuppet.prep.pipelines.pipeline import STEPS, refuse_with_noise
from tests.privacy.bounded import bounded_federation
from tests.relations import Parties, federation, party_of, record_wire, warnings_of

ROWS = 3000
SQL = "SELECT age, paid, town, note, day, y FROM people"
KNOWN = {
    "age": ColumnRule(bounds=(0.0, 120.0)),
    "paid": ColumnRule(bounds=(0.0, 1000.0)),
    "town": ColumnRule(categories=("north", "south", "west")),
    "day": ColumnRule(bounds=(17_000.0, 20_000.0)),
}
WHOLE = prep.Pipeline(
    [
        prep.Map("length(x)", name_as="letters", columns=["note"]),
        prep.DateParts(["month", "year"]),
        prep.Log(offset=1, columns=["paid"]),
        prep.Impute("mean", indicator=True, columns=["paid"]),
        prep.Clip(0, 90, columns=["age"]),
        prep.MinMax(columns=["age"]),
        prep.Bin(4, columns=["note_letters"]),
        prep.OneHot(max_categories=3, columns=["town"]),
        prep.Standardize(columns=["paid", "day_*"]),
    ]
)


def people(**cells: Any) -> pa.Table:
    """Ages, payments of which some are missing, towns, notes, days, and a label that depends on some of them."""
    rng = np.random.default_rng(5)
    age, paid = rng.uniform(18, 90, ROWS), rng.gamma(2, 60, ROWS)
    columns: dict[str, Any] = {
        "age": age, "paid": pa.array(np.where(rng.random(ROWS) < 0.2, np.nan, paid), from_pandas=True),
        "town": rng.choice(["north", "south"], ROWS, p=[0.7, 0.3]), "note": ["n" * (i % 7) for i in range(ROWS)],
        "day": pa.array(rng.integers(17_000, 20_000, ROWS).astype(np.int32)).cast(pa.date32()),
        "y": age / 10 + 2 * np.log1p(paid) + rng.normal(size=ROWS) / 4,
    }  # fmt: skip
    return pa.table(columns | cells)


def shards(count: int) -> Parties:
    """The same at one party or two."""
    table = people()
    half = ROWS // 2
    return {"p": {"people": table[:half]}, "q": {"people": table[half:]}} if count == 2 else {"p": {"people": table}}


@pytest.mark.parametrize("count", [1, 2])
def test_what_policies_say_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """With bounds and categories in policies only the Map, which is no plain column, needs noise; what steps make is
    scaled by the bounds.
    """
    fed = bounded_federation(tmp_path, shards(count), KNOWN)
    relation = fed.sql(SQL, label="y", prep=WHOLE)
    messages = record_wire(monkeypatch)
    noise = EncoderNoise({"people": 0.1})
    encoding = relation.fit_private_encoding(noise)
    assert encoding.private
    assert noise.used == {"people": 2}  # the range and the sums of note_letters
    asked = {message.request.op for message in messages}
    assert asked <= {
        "keys.blind",
        "rows.use",
        "private.ranges",
        "private.moments",
        "private.categories",
        "encode.build",
    }
    numbers = {encoder.column.name: encoder for encoder in encoding.numbers["people"]}
    assert list(numbers) == ["age", "paid", "day_month", "day_year", "paid_missing"]
    assert Scale("age", 0.0, 90.0) in encoding.steps["people"].steps  # MinMax between the bounds of Clip
    logs = math.log(1001) / 2, math.log(1001) / math.sqrt(12)
    assert (numbers["paid"].mean, numbers["paid"].scale) == pytest.approx(logs)
    assert Scale("day_month", 6.5, 11 / math.sqrt(12)) in encoding.steps["people"].steps
    sizes = {encoder.column.name: encoder.size for encoder in encoding.categories["people"]}
    assert sizes == {"town": 3, "note_letters": 4}


def test_a_model_with_noise_is_nearly_that_without(tmp_path: Path) -> None:
    """At epsilon 3 a pipeline keeps nearly all of the model's quality, saved and loaded, and costs no more than stated;
    the same pipeline without noise is the yardstick.
    """
    fed = federation(tmp_path, {"p": {"people": people()}})
    train, test = fed.sql(SQL, label="y", prep=WHOLE).split()
    plain = tp.LinearRegression().fit(train).evaluate(test)["r2"]
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=3.0)).fit(train)
    assert model.evaluate(test)["r2"] > plain - 0.1
    assert 2.0 < model.privacy_["epsilon_given_messages"] <= 3.0
    model.save(tmp_path / "m.tpm")
    loaded = tp.load(tmp_path / "m.tpm", fed)
    np.testing.assert_allclose(loaded.predict(test), model.predict(test), rtol=1e-6)
    assert model.encoding_.described == loaded.encoding_.described == tuple(map(str, WHOLE))


def test_null_records_are_all_zeros(tmp_path: Path) -> None:
    """A row whose cells are all NULL has zeros in every column, though Impute would fill and flag it; what steps
    make infinite is zero too.
    """
    table = people()
    for name in ("age", "paid", "town", "note", "day"):
        cells = table[name].to_pylist()
        cells[0] = None
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(cells, table[name].type))
    fed = bounded_federation(tmp_path, {"p": {"people": table}}, KNOWN)
    steps = [
        prep.Impute("constant", fill=7.0, indicator=True, columns=["age", "paid"]),
        prep.Impute("constant", fill="none", columns=["town"]),
        prep.Power(1000.0, columns=["paid"]),
        prep.Hash(8, columns=["note"]),
    ]
    relation = fed.sql(SQL, label="y", prep=prep.Pipeline(steps))
    encoding = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=5.0)).fit(relation).encoding_
    client = relation.client
    data = party_of(fed.engine, "p").table(client.session, "people").state[f"{client.view}/{encoding.id}"].data.open()
    assert not data.dense[0].any()
    assert all(codes[0] == -1 for codes in data.codes)
    assert np.isfinite(data.dense).all()
    assert np.abs(data.dense).max() <= 1e6


REFUSED = {
    "Robust": prep.Robust(), "Winsorize": prep.Winsorize(), "Ordinal": prep.Ordinal(), "Bin": prep.Bin(3, "height"),
    "DropConstant": prep.DropConstant(), "DropMissing": prep.DropMissing(), "Impute": prep.Impute("median"),
    "Outliers": prep.Outliers("iqr"),
}  # fmt: skip
ALLOWED = {
    "Bin", "Clip", "DateParts", "Hash", "Impute", "Interactions", "Log", "Map", "MinMax", "OneHot", "Outliers",
    "Polynomial", "Power", "Recode", "Standardize",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_steps_are_refused_by_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked, with what to write instead."""
    relation = federation(tmp_path, {"p": {"people": people()}}).sql(
        SQL, label="y", prep=prep.Pipeline([REFUSED[name]])
    )
    len(relation)
    messages = record_wire(monkeypatch)
    with pytest.raises(tp.PrivacyError, match=rf"prep, step {name}: it has no form with noise .*: (use|leave|names)"):
        tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)
    assert not messages


def test_a_step_that_nobody_has_looked_at_is_refused() -> None:
    """Steps are allowed one by one: all others, new ones too, have no form with noise."""
    assert set(REFUSED) | ALLOWED <= set(STEPS)
    for name in set(STEPS) - ALLOWED - set(REFUSED):
        step = object.__new__(STEPS[name])
        with pytest.raises(tp.PrivacyError, match=f"prep, step {name}: it has no form with noise"):
            refuse_with_noise(prep.Pipeline([step]))


def test_columns_that_drown_are_left_out(tmp_path: Path) -> None:
    """A column whose range noise hides is no feature, and a warning says so; steps that name it do without."""
    fed = federation(tmp_path, {"p": {"people": people()}})
    warned = warnings_of(fed)
    relation = fed.sql(SQL, label="y", prep=prep.Pipeline([prep.Standardize(columns=["age"])]))
    encoding = relation.fit_private_encoding(EncoderNoise({"people": 1e5}))
    assert not encoding.numbers["people"]
    assert {each.name for each in warned} == {"column.dropped"}
    assert len(warned) == 5


def test_tables_that_demand_noise_take_pipelines(tmp_path: Path) -> None:
    """Under require_dp a pipeline is fitted with noise, and refused without."""
    fed = bounded_federation(tmp_path, {"p": {"people": people()}}, KNOWN)
    rules = TableRule(KNOWN, budget=Budget(require_dp=True))
    party_of(fed.engine, "p")._guard.policy = Policy(others=rules)
    relation = fed.sql("SELECT age, paid, town, y FROM people", label="y", prep=prep.Pipeline([prep.Standardize()]))
    everything = tp.Privacy(feature_epsilon=5.0, prediction_epsilon=5.0, label_epsilon=5.0, label_bounds=(0, 30))
    model = tp.LinearRegression(privacy=everything).fit(relation)
    assert math.isfinite(model.privacy_["epsilon"])
    with pytest.raises(tp.PrivacyError, match="require_dp"):
        tp.LinearRegression().fit(relation)


BOUNDS = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(BOUNDS, st.floats(0, 1), st.floats(0, 1))
def test_bounds_after_steps_hold_for_values(bounds: tuple[float, float], share: float, other: float) -> None:
    """A value between bounds is between the bounds after every step that changes numbers."""
    value, second = (bounds[0] + each * (bounds[1] - bounds[0]) for each in (share, other))
    slack = 1e-9
    cases: list[tuple[Any, float]] = [
        (Scale("x", 3.0, 2.5), (value - 3.0) / 2.5), (Clipped("x", -5.0, 5.0), min(max(value, -5.0), 5.0)),
        (Fill("x", 2.0), 2.0), (Exponent("x", 0.5), Exponent("x", 0.5).value(value)),
        (Exponent("x", 3.0), Exponent("x", 3.0).value(value)), (Lookup("x", [4.0, -2.0], 1.0, None), -2.0),
    ]  # fmt: skip
    if bounds[0] > 0:
        cases.append((Logarithm("x", 1.0), Logarithm("x", 1.0).value(value)))
    for step, after in cases:
        low, high = bounds_after([step], {"x": bounds})["x"]
        assert low - slack * max(1, abs(low)) <= after <= high + slack * max(1, abs(high)), step
    low, high = bounds_after([Product(["x", "z"], "p")], {"x": bounds, "z": bounds})["p"]
    assert low - slack * max(1, abs(low)) <= value * second <= high + slack * max(1, abs(high))
    assert bounds_after([Missing("x", "m"), Without("x", -1.0, 1.0)], {"x": bounds})["m"] == (0.0, 1.0)
    parts = bounds_after([Part("x", "year", "year")], {"x": (0.0, 20_000.0)})["year"]
    assert parts[0] <= date_part(np.array([abs(value) % 20_000]), "year")[0] <= parts[1]
