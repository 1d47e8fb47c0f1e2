"""`slice_finder`: the worst slices that a search over every slice of the materialised join finds."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.learn.selection.slice_lattice import Counts, Key, Lattice, Scoring
from tablepuppet.learn.selection.slices import Slice
from tests.party.policed import COLUMNS, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import federation, materialised, record_wire

SQL = "SELECT o.price, o.kind, o.paid, i.size, i.town, o.{} FROM orders o JOIN items i USING (item)"
ROUNDING = 1e-12  # a score of 0 may come out as less than this


def brute(
    codes: list[NDArray[Any]], sizes: list[int], errors: NDArray[np.float64], tables: list[NDArray[Any]],
    label: NDArray[Any], least_rows: int, least: int, alpha: float, levels: int,
) -> dict[Key, float]:  # fmt: skip
    """The score of every slice that may be reported, by its definition."""
    everything, mean = np.ones(len(errors), bool), errors.mean()
    found: dict[Key, float] = {}
    for level in range(1, levels + 1):
        for columns in combinations(range(len(codes)), level):
            for values in product(*(range(sizes[column]) for column in columns)):
                key = tuple(zip(columns, values, strict=True))
                chosen = {pair: codes[pair[0]] == pair[1] for pair in key}
                inside = np.logical_and.reduce(list(chosen.values()))
                around = [
                    np.logical_and.reduce([everything, *(chosen[pair] for pair in key if pair != left)]) for left in key
                ]
                size = int(inside.sum())
                involved = [label, *(tables[column] for column in columns)]
                parts = [inside, *(outer & ~inside for outer in around)]
                enough = all(len(np.unique(index[part])) >= max(least_rows, 1) for index in involved for part in parts)
                if size < least or not enough:
                    continue
                score = alpha * (errors[inside].mean() / mean - 1) - (1 - alpha) * (len(errors) / size - 1)
                if score > ROUNDING:
                    found[key] = score
    return found


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_worst_slices_are_those_of_a_search_over_all(data: st.DataObject) -> None:
    """Scores of the best k are those of every slice's, whatever was pruned; each is reported with its own score."""
    rows, columns = data.draw(st.integers(4, 40)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    sizes = [int(rng.integers(1, 4)) for _ in range(columns)]
    base = [rng.integers(0, max(2, rows // 2), rows) for _ in range(2)]
    codes = [rng.integers(0, size, rows) for size in sizes]
    errors = rng.integers(0, 3, rows) * rng.choice([0.5, 1.0], rows)
    if not errors.sum():
        errors[0] = 1.0
    owner = [int(rng.integers(0, 2)) for _ in range(columns)]
    least_rows, least = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 5))
    alpha, k, levels = data.draw(st.sampled_from([0.5, 0.9, 1.0])), data.draw(st.integers(1, 6)), 3
    lattice = Lattice(codes, sizes, errors, base, owner, least_rows)
    scoring = Scoring(rows, float(errors.sum()), alpha, least)
    found = lattice.worst(k, scoring, levels)
    found = [each for each in found if each.score > ROUNDING]
    tables = [base[each] for each in owner]
    expected = brute(codes, sizes, errors, tables, base[0], least_rows, least, alpha, min(levels, columns))
    np.testing.assert_allclose(
        [each.score for each in found], sorted(expected.values(), reverse=True)[:k], rtol=1e-9, atol=1e-12
    )
    for each in found:
        assert each.score == pytest.approx(expected[each.pairs], rel=1e-9, abs=1e-12)
        assert each.counts.size == len(lattice.rows(each.pairs))
        assert each.counts.error == pytest.approx(errors[lattice.rows(each.pairs)].sum())


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(0, 10), min_size=3, max_size=30), st.integers(1, 5), st.floats(0.05, 1.0),
    st.lists(st.booleans(), min_size=30, max_size=30),
)  # fmt: skip
def test_no_slice_is_above_the_bound_of_one_around_it(
    errors: list[float], least: int, alpha: float, inside: list[bool]
) -> None:
    """Of any part of a slice that is large enough."""
    whole = np.array([*errors, 1.0])
    part = whole[np.array(inside[: len(whole)] + [True] * (len(whole) - 30))]
    if len(part) < least:
        return
    scoring = Scoring(len(whole) + 5, float(whole.sum()) + 1.0, alpha, least)
    bound = scoring.bound(Counts(len(whole), float(whole.sum()), float(whole.max())))
    assert scoring.score(len(part), float(part.sum())) <= bound + 1e-9


def tables(rows: int = 400) -> dict[str, dict[str, pa.Table]]:
    """Orders in two shards and items; orders of kind b of items of town t1 have a label that nothing explains."""
    rng, row = np.random.default_rng(0), np.arange(rows)
    price, kind = rng.normal(size=rows), np.array(["a", "b", "c"])[row % 3]
    odd = (kind == "b") & (row % 16 % 4 == 1)
    paid = 2 * price + np.where(odd, rng.choice([-8.0, 8.0], rows), 0.1 * rng.normal(size=rows))
    orders = pa.table({
        "item": row % 16, "price": price, "kind": [None if i % 29 == 0 else str(kind[i]) for i in row.tolist()],
        "paid": pa.array([None if i % 17 == 0 else float(i % 5) for i in row.tolist()], pa.float64()),
        "cost": paid, "dear": paid > 1,
    })  # fmt: skip
    items = pa.table({
        "item": [*range(16), 3], "size": [*np.linspace(-1, 1, 16), 0.5], "town": [f"t{i % 4}" for i in [*range(16), 3]],
    })  # fmt: skip
    return {"east": {"orders": orders.slice(0, 150)}, "west": {"orders": orders.slice(150)}, "hall": {"items": items}}


def frame_of(relation: tp.Relation, parties: dict[str, dict[str, pa.Table]]) -> pd.DataFrame:
    named = {"o": ["price", "kind", "paid", "cost", "dear"], "i": ["size", "town"]}
    return pd.DataFrame(
        {name: materialised(relation, parties, alias, name) for alias, names in named.items() for name in names}
    )


def masks(found: Slice, frame: pd.DataFrame) -> NDArray[np.bool_]:
    """The joined rows that a slice's own words name."""
    inside = np.ones(len(frame), bool)
    for column, condition in found.conditions.items():
        values = frame[column]
        for part in condition.split(" and "):
            sign, _, given_ = part.partition(" ")
            if part == "is missing":
                inside &= values.isna().to_numpy()
            elif sign == "=":
                inside &= (values.astype(object) == given_).to_numpy()
            else:
                inside &= ((values >= float(given_)) if sign == ">=" else (values < float(given_))).to_numpy()
    return inside


@pytest.mark.parametrize("label", ["cost", "dear"])
def test_slices_across_tables(tmp_path: Path, label: str) -> None:
    """The planted slice is found; sizes and mean errors are those of the rows that a slice names, on the join."""
    parties = tables()
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format(label), label=label)
    learner: Any = tp.LinearRegression(l2=0.01) if label == "cost" else tp.LogisticRegression(l2=0.01)
    model = learner.fit(relation)
    found = tp.slice_finder(model, relation, k=6, min_size=8)
    if label == "cost":
        assert found[0].conditions == {"kind": "= b", "town": "= t1"}
        assert "kind = b, town = t1" in str(found)
    frame = frame_of(relation, parties)
    predicted = model.predict(relation)
    errors = (frame[label] - predicted) ** 2 if label == "cost" else (frame[label] != predicted).astype(float)
    assert found.mean_error == pytest.approx(errors.mean(), rel=1e-9)
    assert found.rows == len(frame)
    for each in found:
        inside = masks(each, frame)
        assert each.size == inside.sum() >= 8
        assert each.mean_error == pytest.approx(errors[inside].mean(), rel=1e-9)
        expected = 0.95 * (errors[inside].mean() / errors.mean() - 1) - 0.05 * (len(frame) / inside.sum() - 1)
        assert each.score == pytest.approx(expected, rel=1e-9)
    table = found.to_arrow()
    assert table.column_names == ["slice", "size", "mean_error", "score"]
    assert table["score"].to_pylist() == sorted(table["score"].to_pylist(), reverse=True)
    assert "<table" in found._repr_html_()


def test_other_errors_columns_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named columns only, one column at a time, other errors; nothing as long as the joined rows travels."""
    parties = tables()
    relation = federation(tmp_path, parties).sql(SQL.format("cost"), label="cost")
    model = tp.LinearRegression().fit(relation)
    messages = record_wire(monkeypatch)
    found = tp.slice_finder(model, relation, columns=["kind", "i.size"], max_columns=1, error="absolute", min_size=1)
    assert all(len(each.conditions) == 1 and set(each.conditions) <= {"kind", "size"} for each in found)
    assert "absolute error" in str(found)
    longest = max(
        len(value) for each in messages for value in (each.reply or {}).values() if isinstance(value, np.ndarray)
    )
    assert longest <= 250 < len(relation)
    (tmp_path / "again").mkdir()
    classes = federation(tmp_path / "again", parties).sql(SQL.format("dear"), label="dear")
    by_loss = tp.slice_finder(tp.LogisticRegression().fit(classes), classes, error="log_loss")
    assert by_loss.kind == "log_loss"
    assert len(by_loss)


def test_a_model_without_errors_has_no_slices(tmp_path: Path) -> None:
    """A label that the features explain: no slice is worse than the whole."""
    table = pa.table({"x": [0.0, 1.0] * 50, "c": ["u", "v"] * 50, "y": [0, 1] * 50})
    relation = federation(tmp_path, {"p0": {"t": table}}).sql("SELECT x, c, y FROM t", label="y")
    found = tp.slice_finder(tp.LogisticRegression().fit(relation), relation)
    assert (len(found), found.mean_error) == (0, 0.0)
    assert found.to_arrow().num_rows == 0


def test_what_cannot_be_sliced(tmp_path: Path) -> None:
    """Settings, columns and models that are none are errors that say what would do."""
    relation = federation(tmp_path, tables()).sql(SQL.format("cost"), label="cost")
    model = tp.LinearRegression(rounds=2).fit(relation)
    for wrong in ({"k": 0}, {"max_columns": 1.5}, {"min_size": True}, {"bins": 1}, {"alpha": 0}, {"alpha": "a"}):
        with pytest.raises(tp.LearnError, match=f"slice_finder: {next(iter(wrong))} is"):
            tp.slice_finder(model, relation, **wrong)
    with pytest.raises(tp.LearnError, match="'wrong' is no error of a joined row"):
        tp.slice_finder(model, relation, error="wrong")
    with pytest.raises(tp.LearnError, match="'kin' is no selected column; did you mean 'kind'"):
        tp.slice_finder(model, relation, columns=["kin"])
    with pytest.raises(tp.LearnError, match="columns is a list"):
        tp.slice_finder(model, relation, columns="kind")
    with pytest.raises(tp.LearnError, match="takes a learner that was fitted, not a str"):
        tp.slice_finder("model", relation)  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match="not fitted"):
        tp.slice_finder(tp.LinearRegression(), relation)


def test_policies_hold(tmp_path: Path) -> None:
    """Refused without ``cross_statistics``; with it no slice or rest of few rows is told, and no hidden name."""
    sql = "SELECT region, town, credit, open, fraud FROM cards"
    closed = policed(open_party(write_file(tmp_path))).sql(sql, label="fraud")
    model = tp.LogisticRegression(rounds=3).fit(closed)
    with pytest.raises(tp.PrivacyError, match=r"slice_finder: .*column 'region'.*rule cross_statistics"):
        tp.slice_finder(model, closed)
    folder = tmp_path / "open"
    folder.mkdir()
    table = "cross_statistics = true\nmin_group = 7"
    relation = policed(open_party(write_file(folder, table=table, columns=COLUMNS))).sql(sql, label="fraud")
    model = tp.LogisticRegression(rounds=3).fit(relation)
    found = tp.slice_finder(model, relation, k=50, min_size=1)
    assert len(found)
    assert all(7 <= each.size <= 60 - 7 for each in found)
    assert "canary" not in str(found)
    assert not any(condition.startswith("= region") for each in found for condition in each.conditions.values())
