"""Encoders under feature privacy: nothing is told where a policy knows, noisy statistics are near the truth."""

from __future__ import annotations

import math
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
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.policy import ColumnRule, Policy, TableRule
from tablepuppet.party.service import Party
from tablepuppet.prep.columns import noisy_sums
from tablepuppet.prep.columns.noisy_sums import POWERS, bins_of, range_of
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.prep.pipelines.noisy_answers import EncoderNoise, mean_and_spread
from tablepuppet.privacy.noise_plan import TAIL
from tests.privacy.bounded import KEY, bounded_federation
from tests.relations import Parties, in_process, party_of, record_wire, warnings_of

ROWS = 4000
CELLS = st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.none(), min_size=1, max_size=8)


def people() -> pa.Table:
    """Ages, an amount of another size, a town that most have and one that four have."""
    rng = np.random.default_rng(2)
    town = np.where(rng.random(ROWS) < 0.7, "north", "south").astype(object)
    town[:4] = "hamlet"
    columns = {"age": rng.uniform(18, 90, ROWS), "debt": -rng.uniform(1e5, 3e5, ROWS), "town": town.tolist()}
    return pa.table({**columns, "y": rng.normal(size=ROWS)})


def halves() -> Parties:
    """The same at two parties."""
    table = people()
    return {"p": {"people": table.slice(0, ROWS // 2)}, "q": {"people": table.slice(ROWS // 2)}}


def fitted(fed: tp.Federation, multiplier: float) -> tuple[Encoding, EncoderNoise]:
    """Encoders with that noise."""
    relation = fed.sql("SELECT age, debt, town, y FROM people", label="y")
    noise = EncoderNoise({"people": multiplier})
    return relation.fit_private_encoding(noise), noise


KNOWN = {
    "age": ColumnRule(bounds=(0.0, 120.0)),
    "debt": ColumnRule(bounds=(-1e6, 0.0)),
    "town": ColumnRule(categories=("hamlet", "north", "south", "west")),
}


@pytest.mark.parametrize("shards", [1, 2])
def test_what_a_policy_knows_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """With bounds and categories from the policy, nothing of a row is told: encoders are the same for other rows."""
    parties = halves() if shards == 2 else {"p": {"people": people()}}
    messages = record_wire(monkeypatch)
    encoding, noise = fitted(bounded_federation(tmp_path, parties, KNOWN), 1e-3)
    assert noise.used == {}
    age, debt = encoding.numbers["people"]
    assert [age.mean, age.scale] == pytest.approx([60.0, 120 / math.sqrt(12)])
    assert [debt.mean, debt.scale] == pytest.approx([-5e5, 1e6 / math.sqrt(12)])
    assert len(encoding.categories["people"][0].digests) == 4
    told = [message.reply for message in messages if message.request.op == "private.ranges" and message.reply]
    assert len(told) == shards
    assert not any(reply["counts"].any() for reply in told)


@pytest.mark.parametrize("shards", [1, 2])
def test_noisy_statistics_are_near_the_truth(tmp_path: Path, shards: int) -> None:
    """With little noise means and scales are those of the rows, and every release is counted."""
    parties = halves() if shards == 2 else {"p": {"people": people()}}
    encoding, noise = fitted(bounded_federation(tmp_path, parties, {}), 0.05)
    table = people()
    for encoder in encoding.numbers["people"]:
        values = table[encoder.column.name].to_numpy()
        assert encoder.mean == pytest.approx(values.mean(), rel=0.01)
        assert encoder.scale == pytest.approx(values.std(), rel=0.05)
    assert noise.used == {"people": 2 + 2 + 1}  # a range and moments of each number, a list of categories


@pytest.mark.parametrize("bounded", ["p", "q"])
def test_a_shard_without_bounds_is_paid_for(tmp_path: Path, bounded: str) -> None:
    """If one shard's policy has bounds and the other's has not, in either order, what the latter told is counted."""
    fed = bounded_federation(tmp_path, halves(), {})
    fed.engine = in_process(
        {
            name: Party(
                name, open_database(name, f"parquet:///{tmp_path / name}"), KEY, Policy(others=TableRule(rules))
            )
            for name, rules in {"p": KNOWN if bounded == "p" else {}, "q": KNOWN if bounded == "q" else {}}.items()
        }
    )
    encoding, noise = fitted(fed, 0.05)
    assert noise.used == {"people": 2 + 2 + 1}
    assert encoding.numbers["people"][0].mean == pytest.approx(people()["age"].to_numpy().mean(), rel=0.05)


def test_ids_are_not_looked_for_under_privacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that differs in every row is a feature if the policy lists its categories: whether it names rows would be
    told of the data, so nobody looks, and nothing without noise is asked.
    """
    names = [f"n{number}" for number in range(60)]
    parties = {"p": {"people": pa.table({"town": names, "y": np.arange(60.0)})}}
    fed = bounded_federation(tmp_path, parties, {"town": ColumnRule(categories=tuple(names))})
    messages = record_wire(monkeypatch)
    encoding = fed.sql("SELECT town, y FROM people", label="y").fit_private_encoding(EncoderNoise({"people": 1.0}))
    assert len(encoding.categories["people"][0].digests) == 60
    assert not [message for message in messages if message.request.op.startswith("statistics.")]


def test_rare_categories_are_not_told(tmp_path: Path) -> None:
    """A category that fewer rows have than the threshold is missing; the frequent ones are all there."""
    encoding, _ = fitted(bounded_federation(tmp_path, {"p": {"people": people()}}, {}), 1.0)
    assert 1 + TAIL * 1.0 > 4
    assert len(encoding.categories["people"][0].digests) == 2


def test_columns_that_drown_are_left_out(tmp_path: Path) -> None:
    """Where noise hides every range and category there is no encoder, and a warning says so; it was paid for."""
    fed = bounded_federation(tmp_path, {"p": {"people": people()}}, {})
    warned = warnings_of(fed)
    encoding, noise = fitted(fed, 1e5)
    assert not encoding.numbers["people"]
    assert not encoding.categories["people"]
    assert len(warned) == 3
    assert noise.used == {"people": 3}


class Told:
    """Stands in for a party's table with one column: statistics without noise, and what noise was asked for."""

    def __init__(self, values: pa.Array):
        self.values, self.asked = values, []
        rule = SimpleNamespace(bounds=None, categories=None)
        self.grant = SimpleNamespace(outputs={"x": SimpleNamespace(rule=rule)}, rules=SimpleNamespace(min_group=0))

    asked: list[tuple[NDArray[Any], float]]

    def rows_once(self, view: str) -> RelationRows:
        rows = np.arange(len(self.values))
        return RelationRows(rows, np.ones_like(rows))

    def null_rows(self, outputs: Any, view: str) -> NDArray[np.bool_]:
        return np.asarray(self.values.is_null(), bool)

    def column(self, name: str, view: str) -> pa.ChunkedArray:
        return pa.chunked_array([self.values])

    @property
    def snapshot(self) -> Any:
        empty = self.column("x", "").slice(0, 0)
        return SimpleNamespace(nothing_of=lambda _: empty, type_of=lambda _: empty.type)

    def noisy(
        self, parts: Any, shape: tuple[int, ...], sensitivity: float, multiplier: float, purpose: str
    ) -> NDArray[Any]:
        values: NDArray[Any] = np.asarray(np.sum([np.zeros(shape), *parts()], axis=0))
        self.asked.append((values, sensitivity))
        return values


def moved(cells: list[float | None], row: int, ask: Any) -> tuple[float, float]:
    """(how far statistics differ when a row's cell is missing, the sensitivity that noise is for)."""
    found = []
    for values in (cells, [*cells[:row], None, *cells[row + 1 :]]):
        table = Told(pa.array(values, pa.float64()))
        ask(cast(LocalTable, table))
        found.append(table.asked[0])
    return float(np.linalg.norm(found[0][0] - found[1][0])), found[0][1]


@settings(max_examples=150, deadline=None)
@given(CELLS, st.data(), st.floats(-100, 100), st.floats(1e-3, 100))
def test_a_row_changes_statistics_by_their_bound(
    cells: list[float | None], data: st.DataObject, low: float, width: float
) -> None:
    """A cell that goes missing changes a histogram by one and sums by the root of three, whatever it was."""
    row = data.draw(st.integers(0, len(cells) - 1))
    change, allowed = moved(cells, row, lambda table: noisy_sums.ranges(table, "v", ["x"], 1.0))
    assert change <= allowed == 1.0
    edges = {"lows": np.array([low]), "highs": np.array([low + width])}
    change, allowed = moved(cells, row, lambda table: noisy_sums.moments(table, "v", ["x"], multiplier=1.0, **edges))
    assert change <= allowed * (1 + 1e-9)
    assert allowed == math.sqrt(3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e15, 1e15).filter(lambda value: value == 0 or abs(value) > 1e-6), min_size=1, max_size=20))
def test_ranges_hold_their_values(values: list[float]) -> None:
    """The range of bins that have rows holds all values, and is at most twice as wide on each side."""
    found = range_of(np.bincount(bins_of(np.array(values)), minlength=POWERS).astype(float), 1e-3)
    assert found is not None
    low, high = found
    assert low <= min(values) <= max(values) <= high
    assert max(abs(low), abs(high)) <= 2 * max(map(abs, values))


@pytest.mark.parametrize("solver", ["auto", "sgd"])
def test_strange_numbers_are_no_error(tmp_path: Path, solver: Any) -> None:
    """NaN and infinity count as NULL, numbers out of bounds as the bound: an error would tell that there is one."""
    table = people()
    strange = table["age"].to_numpy().copy()
    strange[:4] = [np.nan, np.inf, -np.inf, 1e308]
    tables = {"p": {"people": table.set_column(0, "age", pa.array(strange))}}
    fed = bounded_federation(tmp_path, tables, {"age": ColumnRule(bounds=(0.0, 120.0))})
    relation = fed.sql("SELECT age, debt, town, y FROM people", label="y")
    privacy = tp.Privacy(feature_epsilon=5.0, prediction_epsilon=5.0)
    model = tp.LinearRegression(solver=solver, privacy=privacy).fit(relation)
    assert math.isfinite(model.evaluate(relation)["rmse"])
    party = party_of(fed.engine, "p")
    client = relation.client
    ages = party.table(client.session, "people").state[f"{client.view}/{model.encoding_.id}"].data.open().dense[:4, 0]
    np.testing.assert_allclose(ages, [0.0, 0.0, 0.0, math.sqrt(3)])


def test_huge_numbers_without_bounds(tmp_path: Path) -> None:
    """A number so large that its square is none is taken as one that is far off."""
    table = people()
    huge = table["age"].to_numpy().copy()
    huge[0] = 1e308
    fed = bounded_federation(tmp_path, {"p": {"people": table.set_column(0, "age", pa.array(huge))}}, {})
    relation = fed.sql("SELECT age, debt, town, y FROM people", label="y")
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=5.0)).fit(relation)
    assert math.isfinite(model.evaluate(relation)["rmse"])


@pytest.mark.parametrize("sums", [(1000.0, 880.0, 700.0), (3.0, 50.0, -20.0), (-5.0, 1.0, 1e3)])
def test_no_scale_is_below_its_noise(sums: tuple[float, float, float]) -> None:
    """Sums that noise has made impossible give a mean within the range and a scale that noise could not have made."""
    mean, spread = mean_and_spread(*sums, sigma=60.0)
    assert -1 <= mean <= 1
    assert math.sqrt(60.0 / max(sums[0], 60.0)) <= spread <= 1
