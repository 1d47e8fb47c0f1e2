"""Correlation, crosstabs and group means: those of pandas, SciPy and scikit-learn on the materialised join."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2_contingency
from sklearn.metrics import mutual_info_score

import tablepuppet as tp
from tablepuppet.prep.explore.pooled import OTHER, Grid, rare
from tests.party.policed import audit_lines, open_party, write_file
from tests.party.policed import federation as policed
from tests.prep.test_describe import as_number
from tests.prep.test_distribution import joined_values
from tests.relations import World, federation, record_wire, warnings_of, worlds, write_party
from tests.wire.services import calling, served

RANDOM = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def frame_of(world: World) -> pd.DataFrame:
    """The joined rows; numbers as floats."""
    columns = {}
    for name, values in joined_values(world).items():
        if name.endswith("_c"):
            columns[name] = pd.Series(values, dtype=object)
        else:
            columns[name] = pd.Series(
                [None if v is None or isinstance(v, str) else as_number(v) for v in values], dtype=float
            )
    return pd.DataFrame(columns)


def table_of(found: Any) -> pd.DataFrame:
    return pd.DataFrame(found.counts, index=found.rows, columns=found.columns)


def check_crosstab(found: Any, first: pd.Series, second: pd.Series) -> None:
    """Counts exactly; what follows from them to 1e-9."""
    expected = pd.crosstab(first, second)
    assert sorted(found.rows) == sorted(expected.index)
    assert sorted(found.columns) == sorted(expected.columns)
    told = table_of(found).loc[list(expected.index), list(expected.columns)] if expected.size else expected
    assert (told.to_numpy() == expected.to_numpy()).all()
    assert found.to_arrow()["count"].to_numpy().sum() == expected.to_numpy().sum()
    if min(expected.shape, default=0) < 2:
        assert np.isnan(found.chi2)
        return
    chi2, p, dof, _ = chi2_contingency(expected, correction=False)
    assert (found.chi2, found.p_value, found.dof) == (pytest.approx(chi2, 1e-9, 1e-9), pytest.approx(p, 1e-9), dof)
    assert found.cramers_v == pytest.approx(np.sqrt(chi2 / expected.to_numpy().sum() / (min(expected.shape) - 1)))
    both = first.notna() & second.notna()
    assert found.mutual_information == pytest.approx(mutual_info_score(first[both], second[both]), 1e-9, 1e-12)


def check_groups(found: Any, values: pd.Series, by: pd.Series) -> None:
    """Counts exactly; means and deviations to 1e-9."""
    expected = values.groupby(by).agg(["count", "mean", "std"])
    told = found.to_arrow().to_pandas().set_index(found.by)
    assert sorted(told.index) == sorted(expected.index)
    told = told.loc[list(expected.index)]
    assert told["count"].tolist() == expected["count"].tolist()
    np.testing.assert_allclose(told["mean"].to_numpy(float), expected["mean"], 1e-9)
    np.testing.assert_allclose(told["std"].to_numpy(float), expected["std"], 1e-9, 1e-6)


@RANDOM
@given(worlds(most_tables=3))
def test_pairs_are_those_of_the_join(world: World) -> None:
    """Over random shards, joins and unions, with values missing on both sides, within tables and across them."""
    frame = frame_of(world)
    numbers = [f"{alias}_x" for alias in world.aliases]
    with world.urls() as urls:
        relation = world.relation(urls)
        covariance = relation.covariance(numbers)
        assert covariance.columns == numbers
        expected = frame[numbers].cov().to_numpy()
        spread = np.sqrt(np.nan_to_num(np.diag(expected)))
        assert (np.isnan(covariance.values) == np.isnan(expected)).all()
        far = np.nan_to_num(np.abs(covariance.values - expected))
        assert (far <= 1e-9 * np.outer(spread, spread) + 1e-12).all()
        told = relation.correlation()
        names = [name for name in numbers if name in told.columns]
        wanted = frame[names].corr().to_numpy()
        places = [told.columns.index(name) for name in names]
        found = told.values[np.ix_(places, places)]
        some = ~np.isnan(found)
        np.testing.assert_allclose(found[some], wanted[some], 1e-7, 1e-7)
        for name in {"a0_c", f"{world.aliases[-1]}_c"}:
            check_groups(relation.group_means("a0_x", name), frame["a0_x"], frame[name])
        if len(world.aliases) > 1:
            check_crosstab(relation.crosstab("a0_c", "a1_c"), frame["a0_c"], frame["a1_c"])


def shop(folder: Path, rows: int = 400, **settings_: Any) -> tuple[tp.Relation, pd.DataFrame, tp.Federation]:
    """Sales in two shards and shops, with values missing here and there; and the join."""
    rng = np.random.default_rng(0)
    row = np.arange(rows)
    sales = pa.table(
        {
            "shop": row % 30, "price": rng.normal(size=rows), "paid": pa.array([None if i % 7 == 0 else i % 13 for i in row.tolist()], pa.float64()),  # noqa: E501
            "kind": [None if i % 11 == 0 else "abc"[i % 3] for i in row.tolist()],
            "size": ["SML"[i * i % 3] for i in row.tolist()], "one": [1.0] * rows,
        }
    )  # fmt: skip
    shops = pa.table(
        {
            "shop": np.arange(40),
            "area": rng.normal(size=40),
            "town": [None if i % 9 == 0 else f"t{i % 4}" for i in range(40)],
        }
    )
    parties = {"east": {"sales": sales.slice(0, 250)}, "west": {"sales": sales.slice(250)}, "hall": {"shops": shops}}
    fed = federation(folder, parties, **settings_)
    relation = fed.sql(
        "SELECT s.price, s.paid, s.kind, s.size, s.one, h.area, h.town FROM sales s JOIN shops h USING (shop)"
    )
    return relation, sales.to_pandas().merge(shops.to_pandas(), on="shop"), fed


def test_pairs_of_one_table_and_of_two(tmp_path: Path) -> None:
    """Categories and numbers of a table in two shards, and of two tables."""
    relation, frame, _ = shop(tmp_path)
    check_crosstab(relation.crosstab("kind", "size"), frame["kind"], frame["size"])
    check_crosstab(relation.crosstab("s.kind", "town"), frame["kind"], frame["town"])
    check_groups(relation.group_means("paid", "kind"), frame["paid"], frame["kind"])
    check_groups(relation.group_means("paid", "town"), frame["paid"], frame["town"])
    names = ["price", "paid", "area"]
    np.testing.assert_allclose(relation.correlation(names).values, frame[names].corr(), 1e-12, 1e-12)
    within = relation.correlation(names, across=False)
    assert np.isnan([within["price", "area"], within["paid", "area"]]).all()
    assert within["price", "paid"] == pytest.approx(frame["price"].corr(frame["paid"]), rel=1e-12)
    for shown in (within, relation.crosstab("kind", "size"), relation.group_means("paid", "kind")):
        assert "<table" in shown._repr_html_()
        assert len(str(shown).splitlines()) > 3


def far_means(folder: Path, size: float) -> tuple[dict[str, str], pd.DataFrame, str]:
    """Two shards and another table whose values are ``size`` apart from each other where another one is missing."""
    rng = np.random.default_rng(3)
    row = np.arange(3_000)
    some = row % 3 == 0
    x, y, area = rng.normal(size=3_000), rng.normal(size=3_000), rng.normal(size=60)
    sales = pa.table(
        {
            "shop": row % 60,
            "same": pa.array(size + x + y),
            "far": pa.array(np.where(some, x, size * (1 + x))),
            "near": pa.array(y + area[row % 60] + x, mask=~some),
            "still": pa.array(np.where(some, 0.1, x * size), mask=row % 7 == 1),
        }
    )
    shops = pa.table(
        {
            "shop": np.arange(60),
            "area": pa.array(size + area, mask=np.arange(60) % 5 == 0),
            "tiny": pa.array(np.where(np.arange(60) % 3 == 0, area, -size)),
        }
    )
    parties = {
        "east": {"sales": sales.slice(0, 1_000)},
        "west": {"sales": sales.slice(1_000)},
        "hall": {"shops": shops},
    }
    sql = "SELECT s.same, s.far, s.near, s.still, h.area, h.tiny FROM sales s JOIN shops h USING (shop)"
    joined = sales.to_pandas().merge(shops.to_pandas(), on="shop").drop(columns="shop")
    return {name: write_party(folder, name, tables, "parquet") for name, tables in parties.items()}, joined, sql


def exact_covariance(frame: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(covariances, correlations) of rows with both values, in longer numbers: pandas itself loses digits at 1e9."""
    values = frame.to_numpy(np.longdouble)
    covariances = np.full((len(values.T),) * 2, np.nan, np.longdouble)
    correlations = covariances.copy()
    for i, j in product(range(len(values.T)), repeat=2):
        both = values[~np.isnan(values[:, i] + values[:, j])][:, [i, j]]
        x, y = (both - both.mean(axis=0)).T
        covariances[i, j] = x @ y / (len(x) - 1)
        if both.min(axis=0)[0] < both.max(axis=0)[0] and both.min(axis=0)[1] < both.max(axis=0)[1]:
            correlations[i, j] = x @ y / np.sqrt((x @ x) * (y @ y))
    return covariances.astype(np.float64), correlations.astype(np.float64)


@pytest.mark.parametrize("size", [0.0, 1e6, 1e9])
def test_means_are_those_of_the_pair(tmp_path: Path, size: float) -> None:
    """A pair's rows may have another mean than the column, by up to 1e9 deviations: no digit is lost by that, within a
    table, across tables and over services. A column that is constant in a pair's rows has no correlation there.
    """
    urls, frame, sql = far_means(tmp_path, size)
    covariances, expected = exact_covariance(frame)
    assert np.isnan(expected).sum() == 2  # still, where there is a near
    np.testing.assert_allclose(frame.corr(), expected, 0, 1e-7)
    found = tp.Federation(urls).sql(sql)
    np.testing.assert_allclose(found.correlation().values, expected, 0, 1e-9)
    unit = np.sqrt(np.outer(np.diag(covariances), np.diag(covariances)))
    np.testing.assert_allclose(found.covariance().values / unit, covariances / unit, 0, 1e-9)
    with served(urls) as servers:
        np.testing.assert_allclose(calling(servers).sql(sql).correlation().values, expected, 0, 1e-9)


def test_trips_and_what_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A correlation takes one trip, a crosstab two (counts, names); nothing is as long as the joined rows."""
    relation, _, _ = shop(tmp_path)
    joined = len(relation)
    relation.client.ask_table("statistics.numbers", "s", {"columns": ["price"]})
    messages = record_wire(monkeypatch)
    relation.correlation(["price", "paid", "area"])
    assert sum(each.last for each in messages if each.party == "hall") == 1
    messages.clear()
    relation.crosstab("kind", "town")
    assert sum(each.last for each in messages if each.party == "hall") == 2
    base = {"east": 250, "west": 150, "hall": 30}
    for each in messages:
        values = [*each.request.arguments.values(), *(each.reply or {}).values()]
        assert all(np.size(value) <= 16 * base[each.party] < 16 * joined for value in values)


def test_what_cannot_be_correlated(tmp_path: Path) -> None:
    """A constant column that is named is an error, else it is left out with a warning; text is no number."""
    relation, _, fed = shop(tmp_path)
    with pytest.raises(tp.LearnError, match="correlation: column 'one' is constant or empty"):
        relation.correlation(["price", "one"])
    warnings = warnings_of(fed)
    assert "one" not in relation.correlation().columns
    assert [each.fields["column"] for each in warnings] == ["one"]
    assert relation.covariance(["price", "one"])["one", "price"] == 0.0
    with pytest.raises(tp.LearnError, match="'kind' is VARCHAR, which is no number"):
        relation.correlation(["kind"])
    with pytest.raises(tp.LearnError, match="'price' is DOUBLE, which has no categories"):
        relation.crosstab("price", "kind")
    with pytest.raises(tp.LearnError, match="two different columns"):
        relation.crosstab("kind", "kind")
    many = fed.sql("SELECT s.kind, s.shop, s.price FROM sales s", max_categories=20)
    with pytest.raises(tp.LearnError, match=r"column 'shop' has 30 categories or more, and 20 may be counted"):
        many.crosstab("kind", "shop")
    with pytest.raises(tp.LearnError, match=r"group_means: column 'shop' has 30 categories"):
        many.group_means("price", "shop")


@settings(deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(0, 9), min_size=columns, max_size=columns), min_size=1, max_size=6
        )
    ),
    st.integers(2, 8),
)
def test_no_cell_is_small(cells: list[list[int]], least: int) -> None:
    """Pooled cells have enough rows or none, unless one category is left; pools have two categories or more."""
    grid = np.array(cells)
    pools = rare([Grid(grid)], least)
    totals = [grid[:-1].sum(axis=1), grid[:, :-1].sum(axis=0)]
    kept = [
        int(np.count_nonzero(~pool & (total > 0))) + bool(pool.any()) for pool, total in zip(pools, totals, strict=True)
    ]
    found = Grid(grid).pooled(pools)
    small = (found > 0) & (found < least)
    small[-1, -1] = False
    assert all(np.count_nonzero(pool) != 1 for pool in pools)
    for row, column in np.argwhere(small):
        assert kept[0] <= 1 or row == len(found) - 1 or kept[1] <= 1 or column == found.shape[1] - 1
        assert kept[1] <= 1 if row == len(found) - 1 else kept[0] <= 1
    assert found.sum() == grid.sum()


def test_small_groups_are_pooled(tmp_path: Path) -> None:
    """At a party with a min_group, no cell or group has fewer different rows, however often they are joined, and shards
    tell of the same categories; the sums are still those of the join.
    """
    file = write_file(tmp_path, table="min_group = 8")
    relation = policed(open_party(file)).sql("SELECT region, town, credit FROM cards WHERE day < 6")
    found = relation.crosstab("region", "town")
    assert ((found.counts >= 8) | (found.counts == 0)).all()
    means = relation.group_means("credit", "town")
    assert (means.counts >= 8).all()
    assert OTHER in means.groups
    assert "canary" not in str(found) + str(means)


def test_policies_hold(tmp_path: Path) -> None:
    """Columns of two tables are compared only if both tables say so: refused before anything is asked. A coordinator
    that asks all the same is refused by the party.
    """
    party = open_party(write_file(tmp_path))
    fed = policed(party)
    relation = fed.sql("SELECT a.credit, a.region, b.open, b.town FROM cards a JOIN cards b ON a.card = b.card")
    len(relation)
    before = len(audit_lines(tmp_path))
    steps: dict[str, Callable[[], Any]] = {
        "correlation": lambda: relation.correlation(["credit", "open"]),
        "crosstab": lambda: relation.crosstab("region", "town"),
        "group_means": lambda: relation.group_means("open", "region"),
    }
    for step, ask in steps.items():
        with pytest.raises(
            tp.PrivacyError, match=rf"{step}: party 'bank', table 'cards'.*rule cross_statistics"
        ) as told:
            ask()
        assert told.value.rule == "cross_statistics"
    assert len(audit_lines(tmp_path)) == before
    with pytest.raises(
        tp.PrivacyError, match=r"column 'credit': is not sent, one number per row.*rule cross_statistics"
    ):
        relation.client.ask_table("columns.numbers", "a", {"columns": ["credit"]})
    assert relation.correlation(["credit", "open"], across=False)["credit", "credit"] == 1.0
    allowed = policed(open_party(write_file(tmp_path, table="cross_statistics = true")))
    open_ = allowed.sql("SELECT a.credit, b.open FROM cards a JOIN cards b ON a.card = b.card")
    credit = np.round(np.sin(np.arange(60)) * 1000) + 0.25
    expected = np.corrcoef(credit, np.arange(60) * 1.5)[0, 1]
    assert open_.correlation()["credit", "open"] == pytest.approx(expected, rel=1e-12)
