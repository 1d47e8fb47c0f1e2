"""Outliers and drift: those of NumPy and pandas on the materialised join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from scipy.stats import ks_2samp

import tablepuppet as tp
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.prep.test_distribution import joined_values, numbers_of
from tests.relations import World, federation, record_wire, worlds

RANDOM = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def check(found: Any, values: np.ndarray[Any, Any], low: float, high: float, rel: float) -> None:
    """Bounds to a tolerance; counts exactly, by the bounds that are told."""
    assert found.count == len(values)
    assert (found.low, found.high) == (pytest.approx(low, rel, 1e-9), pytest.approx(high, rel, 1e-9))
    assert (found.below, found.above) == ((values < found.low).sum(), (values > found.high).sum())
    assert found.exact


@RANDOM
@given(worlds(most_tables=3))
def test_outliers_are_those_of_the_join(world: World) -> None:
    """Over random shards, joins and unions: bounds of quartiles to the last bit, of deviations to 1e-9."""
    joined = joined_values(world)
    with world.urls() as urls:
        relation = world.relation(urls)
        by_iqr, by_sd = relation.outlier_by_iqr(k=0.5), relation.outlier_by_sd(k=1.0)
        assert by_iqr.columns == by_sd.columns
        for name in by_iqr.columns:
            values = numbers_of(joined[name])
            if not len(values):
                assert by_iqr[name].count == by_sd[name].outliers == 0
                continue
            low, high = np.quantile(values, [0.25, 0.75])
            check(by_iqr[name], values, low - 0.5 * (high - low), high + 0.5 * (high - low), 0.0)
            width = pd.Series(values).std() if len(values) > 1 else 0.0
            check(by_sd[name], values, values.mean() - width, values.mean() + width, 1e-9)
        assert by_iqr.to_arrow().num_rows == len(by_iqr.columns)
        assert "IQR" in str(by_iqr)


def two_months(folder: Path) -> tuple[tp.Federation, pd.DataFrame]:
    """Sales of two months in two shards; prices, kinds and missing values change from one to the other."""
    rng, rows = np.random.default_rng(0), 600
    month = np.arange(rows) % 2
    sales = pa.table({
        "month": month, "price": rng.normal(size=rows) + 0.5 * month,
        "same": rng.normal(size=rows), "shop": rng.integers(0, 20, rows),
        "tax": pa.array([None if rng.random() < 0.1 + 0.3 * m else float(rng.integers(0, 4)) for m in month.tolist()], pa.float64()),  # noqa: E501
        "kind": ["abc"[min(2, int(rng.integers(0, 2 + m)))] if i % 9 else None for i, m in enumerate(month.tolist())],
    })  # fmt: skip
    shops = pa.table({"shop": np.arange(20), "size": np.arange(20) % 5})
    fed = federation(
        folder, {"east": {"sales": sales.slice(0, 250)}, "west": {"sales": sales.slice(250)}, "hall": {"shops": shops}}
    )
    return fed, sales.to_pandas().merge(shops.to_pandas(), on="shop")


SQL = "SELECT s.price, s.same, s.tax, s.kind, h.size FROM sales s JOIN shops h USING (shop) WHERE s.month = {}"


def psi(p: Any, q: Any) -> float:
    some = (p + q) > 0
    p, q = (np.maximum(each[some] / each.sum(), 1e-4) for each in (p, q))
    return float(((p - q) * np.log(p / q)).sum())


def test_drift_is_that_of_the_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index by bins of the first month's octiles, and SciPy's distance, to 1e-12; categories by their counts."""
    fed, frame = two_months(tmp_path)
    first, second = fed.sql(SQL.format(0)), fed.sql(SQL.format(1))
    len(first), len(second)
    messages = record_wire(monkeypatch)
    found = tp.drift(first, second, bins=8)
    assert {m.request.op for m in messages} == {"rows.use", "statistics.buckets", "statistics.categories"}
    sides = [frame[frame["month"] == month] for month in (0, 1)]
    for name in ("price", "same", "tax", "size"):
        values = [side[name].dropna().to_numpy(float) for side in sides]
        edges = np.unique(np.quantile(values[0], np.arange(1, 8) / 8))
        counts = [
            np.append(
                np.bincount(np.searchsorted(edges, v, "right"), minlength=len(edges) + 1), side[name].isna().sum()
            )
            for v, side in zip(values, sides, strict=True)
        ]
        assert found[name].psi == pytest.approx(psi(*counts), rel=1e-12)
        assert found[name].ks == pytest.approx(ks_2samp(*values).statistic, abs=1e-12)
        assert found[name].exact
        for told, expected in zip(found[name].counts, counts, strict=True):
            assert told.tolist() == expected.tolist()
    kinds = [side["kind"].fillna("none").value_counts() for side in sides]
    names = sorted(set(kinds[0].index) | set(kinds[1].index))
    by_kind = [each.reindex(names).fillna(0).to_numpy(float) for each in kinds]
    assert found["kind"].psi == pytest.approx(psi(*by_kind), rel=1e-12)
    assert found["kind"].ks is None
    assert [each.verdict for each in found if each.column in ("kind", "same")] == ["large", "none"]
    assert found.to_arrow()["psi"].to_pylist() == sorted((each.psi for each in found), reverse=True)
    assert "large" in str(found)
    same = tp.drift(first, first)
    assert all(each.psi == 0 for each in same)


@pytest.mark.parametrize("shift", [0.0, 0.02, 3.0])
def test_the_distance_is_that_of_all_values(tmp_path: Path, shift: float) -> None:
    """Of two shards with thousands of different values: SciPy's, which bins would miss; few cells are divided."""
    rng, rows = np.random.default_rng(1), 4000
    month = np.repeat([0, 1], rows)
    values = np.round(rng.normal(size=2 * rows) * 50 + 300, 4) + 50 * shift * month
    order, tables = rng.permutation(2 * rows), {}
    for name, part in (("north", order[:1000]), ("south", order[1000:])):
        tables[name] = {"t": pa.table({"month": month[part], "x": values[part]})}
    fed = federation(tmp_path, tables)
    first, second = (fed.sql(f"SELECT x FROM t WHERE month = {each}") for each in (0, 1))
    found = tp.drift(first, second)["x"]
    assert found.exact
    assert found.ks == pytest.approx(ks_2samp(values[month == 0], values[month == 1]).statistic, abs=1e-12)


def test_the_step_and_the_count_have_one_rule(tmp_path: Path) -> None:
    """`prep.Outliers("sd")` flags the rows that `outlier_by_sd` counts, also between both kinds of deviation."""
    values = [0.0] * 9 + [1.0] * 2 + [4.0]
    mean, biased, unbiased = np.mean(values), np.std(values), np.std(values, ddof=1)
    factor = float((4.0 - mean) / (biased + unbiased) * 2)  # the last row is beyond it by ddof 0, and not by ddof 1
    fed = federation(tmp_path, {"p": {"t": pa.table({"x": values})}})
    counted = fed.sql("SELECT x FROM t").outlier_by_sd(k=factor)["x"]
    steps = tp.prep.Pipeline([tp.prep.Outliers("sd", "flag", factor=factor)])
    flags = fed.sql("SELECT x FROM t", prep=steps).matrix()[:, "t.x_outlier"]
    assert counted.outliers == flags.sum() == 0


def test_what_has_no_outliers_or_drift(tmp_path: Path) -> None:
    """Wrong numbers, columns that do not fit and empty relations are errors that say what would do."""
    fed, _ = two_months(tmp_path)
    first, second = fed.sql(SQL.format(0)), fed.sql(SQL.format(1))
    for wrong in (-1, "a", True, np.nan):
        with pytest.raises(tp.LearnError, match="outlier_by_iqr: k is a number from 0"):
            first.outlier_by_iqr(k=wrong)  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match="'kind' is VARCHAR, which is no number"):
        first.outlier_by_sd(columns=["kind"])
    with pytest.raises(tp.LearnError, match="bins is a whole number"):
        tp.drift(first, second, bins=1)
    with pytest.raises(tp.LearnError, match="no selected column; did you mean 'price'"):
        tp.drift(first, second, columns=["pric"])
    other = fed.sql("SELECT CAST(price AS VARCHAR) AS price FROM sales")
    with pytest.raises(tp.LearnError, match="column 'price' is DOUBLE in one relation and VARCHAR in the other"):
        tp.drift(first, other, columns=["price"])
    with pytest.raises(tp.LearnError, match="no column of one name and kind"):
        tp.drift(first, other)
    with pytest.raises(tp.LearnError, match="the second relation has no joined rows"):
        tp.drift(first, fed.sql(SQL.format(7)))
    (tmp_path / "again").mkdir()
    with pytest.raises(tp.LearnError, match="of two federations"):
        tp.drift(first, two_months(tmp_path / "again")[0].sql(SQL.format(1)))
    odd = pa.table({"x": [1.0, float("nan"), 3.0], "y": [1.0, 2.0, float("inf")]})
    (tmp_path / "odd").mkdir()
    strange = federation(tmp_path / "odd", {"p0": {"t": odd}}).sql("SELECT x, y FROM t")
    with pytest.raises(tp.LearnError, match="'x' has NaN or infinite values"):
        strange.outlier_by_iqr(columns=["x"])
    with pytest.raises(tp.LearnError, match="'y' has NaN or infinite values"):
        strange.outlier_by_sd(columns=["y"])


def test_policies_hold(tmp_path: Path) -> None:
    """Of columns that are not public counts are estimates; a table that demands noise refuses."""
    relation = policed(open_party(write_file(tmp_path))).sql("SELECT credit, open, region FROM cards")
    found = relation.outlier_by_iqr(k=0.2)
    assert found["open"].exact
    assert not found["credit"].exact
    assert "≈" in str(found)
    assert all(each.psi == pytest.approx(0.0, abs=1e-12) for each in tp.drift(relation, relation))
    private = tmp_path / "private"
    (private / "state").mkdir(parents=True)
    file = write_file(private, top='state_dir = "state"', more="[tables.cards.budget]\nrequire_dp = true")
    noisy = policed(open_party(file)).sql("SELECT credit, region FROM cards")
    for ask in (noisy.outlier_by_iqr, noisy.outlier_by_sd, lambda: tp.drift(noisy, noisy)):
        with pytest.raises(tp.PrivacyError, match=r"column 'credit'.*rule require_dp"):
            ask()


def test_drift_tells_what_it_leaves_out(tmp_path: Path) -> None:
    """A column that is in one relation only, or of another kind in the other, is a warning."""
    fed, _ = two_months(tmp_path)
    seen: list[tp.Event] = []
    fed.events.subscribe(seen.append)
    second = fed.sql("SELECT price, CAST(same AS VARCHAR) AS same, tax AS levy FROM sales")
    found = tp.drift(fed.sql("SELECT price, same, tax FROM sales"), second)
    assert [each.column for each in found] == ["price"]
    told = {event.fields["column"]: event.fields["reason"] for event in seen if event.name == "column.dropped"}
    assert told == {
        "same": "is DOUBLE in one relation and VARCHAR in the other, so drift leaves it out",
        "tax": "is in the first relation only, so drift leaves it out",
        "levy": "is in the second relation only, so drift leaves it out",
    }
