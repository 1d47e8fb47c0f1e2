"""Steps of pipelines: what parties hold, gathered to joined rows, is scikit-learn's, pandas' or NumPy's on the join.

Tolerances: 1e-9 of the largest value of a column; bins, categories and flags are equal.
"""

from __future__ import annotations

import math
import tempfile
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.prep.columns.values import DatePart
from tablepuppet.prep.encode.program import Shapes
from tablepuppet.prep.encode.specs import Missing, Product
from tablepuppet.prep.pipelines.pipeline import foresee
from tablepuppet.prep.pipelines.steps.bins import How
from tablepuppet.prep.pipelines.steps.bounds import Method
from tests.relations import Parties, federation, materialised, warnings_of

Floats = NDArray[np.float64]
SQL = "SELECT s.x, s.w, s.c, s.d, i.v, i.g FROM sales s JOIN items i USING (item)"
COLUMNS = {"x": "s", "w": "s", "c": "s", "d": "s", "v": "i", "g": "i"}


def shop(seed: int, rows: int, items: int) -> Parties:
    """Sales in two shards with missing values and skew, and items of which some sell more often than others."""
    draw = np.random.default_rng(seed)

    def sales(size: int) -> pa.Table:
        days = [datetime(2020, 1, 1) + timedelta(hours=int(h)) for h in draw.integers(0, 40_000, size)]
        return pa.table(
            {
                "item": pa.array(draw.integers(0, items + 2, size)),
                "x": pa.array(np.round(draw.normal(5.0, 3.0, size), 2), mask=draw.random(size) < 0.2),
                "w": pa.array(draw.gamma(1.0, 9.0, size)),
                "c": pa.array(draw.choice(list("aaaabbbccd"), size), mask=draw.random(size) < 0.1),
                "d": pa.array(days, pa.timestamp("us")),
            }
        )

    catalog = pa.table(
        {"item": range(items), "v": draw.normal(-1e3, 1.0, items), "g": draw.choice(["p", "q", "r"], items)}
    )
    cut = max(1, rows // 3)
    return {"p0": {"sales": sales(cut)}, "p1": {"sales": sales(rows - cut)}, "p2": {"items": catalog}}


class Prepared:
    """A relation with a pipeline: its features by name, and the joined columns to compare with."""

    def __init__(self, parties: Parties, fed: tp.Federation, steps: list[Any], **settings: Any):
        self.fed = fed
        self.relation = self.fed.sql(SQL, prep=prep.Pipeline(steps), **settings)
        self.joined = pd.DataFrame(
            {name: pd.Series(materialised(self.relation, parties, alias, name)) for name, alias in COLUMNS.items()}
        )
        before = self.fed.engine.traffic.trips
        self.matrix = self.relation.matrix()
        self.trips = self.fed.engine.traffic.trips - before
        values = self.matrix @ np.eye(self.matrix.shape[1])
        self.features = pd.DataFrame(values, columns=self.matrix.columns)

    def column(self, name: str) -> Floats:
        """A joined column as numbers, NaN where it is missing."""
        return np.asarray(self.joined[name].to_numpy(np.float64))

    def block(self, name: str) -> Floats:
        """The 0/1 columns of a feature."""
        return np.asarray(self.features[[each for each in self.features if each.startswith(f"{name}=")]])


@lru_cache(maxsize=1)
def opened(seed: int, rows: int, items: int) -> tuple[Parties, tp.Federation]:
    parties = shop(seed, rows, items)
    return parties, federation(Path(tempfile.mkdtemp(prefix="tablepuppet-steps-")), parties, wire="float64")


def prepared(seed: int, steps: list[Any], rows: int = 120, items: int = 9, **settings: Any) -> Prepared:
    return Prepared(*opened(seed, rows, items), steps, **settings)


def close(found: Any, expected: Any) -> None:
    wanted = np.asarray(expected, np.float64)
    np.testing.assert_allclose(np.asarray(found), wanted, 1e-9, 1e-9 * max(1.0, float(np.abs(wanted).max(initial=0.0))))


def filled(values: Floats, strategy: str = "mean") -> Floats:
    return np.asarray(SimpleImputer(strategy=strategy).fit_transform(values[:, None])[:, 0])


seeds = given(st.integers(0, 10_000), st.integers(30, 150), st.integers(2, 12))
few = settings(max_examples=4, deadline=None)


@few
@seeds
def test_impute(seed: int, rows: int, items: int) -> None:
    """Mean, median and constant, with an indicator, as SimpleImputer; categories by the most frequent one."""
    for strategy in ("mean", "median"):
        found = prepared(seed, [prep.Impute(strategy, indicator=True, columns=["x"])], rows, items)
        close(found.features["s.x"], filled(found.column("x"), strategy))
        assert found.features["s.x_missing"].tolist() == np.isnan(found.column("x")).astype(float).tolist()
    found = prepared(seed, [prep.Impute("constant", fill=-7.5)], rows, items)
    close(found.features["s.x"], np.nan_to_num(found.column("x"), nan=-7.5))
    found = prepared(seed, [prep.Impute("mode", columns=["x", "c"], indicator=True)], rows, items)
    close(found.features["s.x"], filled(found.column("x"), "most_frequent"))
    missing = found.joined["c"].isna().to_numpy()
    assert found.features["s.c_missing"].tolist() == missing.astype(float).tolist()
    assert (found.block("s.c")[missing][:, 0] == 1).all()
    assert (found.block("s.c").sum(axis=1) == 1).all()


@few
@seeds
def test_scalers(seed: int, rows: int, items: int) -> None:
    """StandardScaler, MinMaxScaler and RobustScaler after an imputation, of all numbers at once."""
    cases = [
        (prep.Standardize(), StandardScaler()),
        (prep.MinMax(), MinMaxScaler()),
        (prep.MinMax(-1, 3), MinMaxScaler((-1, 3))),
        (prep.Robust(), RobustScaler()),
        (prep.Robust((10, 80)), RobustScaler(quantile_range=(10, 80))),
    ]
    for strategy in ("mean", "median"):
        for step, reference in cases:
            found = prepared(seed, [prep.Impute(strategy), step], rows, items)
            for name in ("x", "w", "v"):
                expected = reference.fit_transform(filled(found.column(name), strategy)[:, None])[:, 0]
                close(found.features[f"{COLUMNS[name]}.{name}"], expected)


@few
@seeds
def test_bins(seed: int, rows: int, items: int) -> None:
    """KBinsDiscretizer by width and by height; missing is in no bin."""
    cases: tuple[tuple[How, str], ...] = (("width", "uniform"), ("height", "quantile"))
    for how, strategy in cases:
        method = {"quantile_method": "linear"} if strategy == "quantile" else {}
        found = prepared(
            seed, [prep.Bin(4, how, columns=["w"]), prep.Bin(3, how, "ordinal", columns=["v"])], rows, items
        )
        known = KBinsDiscretizer(4, encode="onehot-dense", strategy=strategy, subsample=None, **method)
        assert found.block("s.w").tolist() == known.fit_transform(found.column("w")[:, None]).tolist()
        known = KBinsDiscretizer(3, encode="ordinal", strategy=strategy, subsample=None, **method)
        if len(np.unique(found.column("v"))) > 3:
            assert found.features["i.v"].tolist() == known.fit_transform(found.column("v")[:, None])[:, 0].tolist()
        found = prepared(seed, [prep.Bin(4, how, columns=["x"])], rows, items)
        assert not found.block("s.x")[np.isnan(found.column("x"))].any()
        assert (found.block("s.x")[~np.isnan(found.column("x"))].sum(axis=1) == 1).all()


@few
@seeds
def test_bounds(seed: int, rows: int, items: int) -> None:
    """Clip, Winsorize and Outliers by quartiles and by deviations: flagged, clipped and made missing."""
    found = prepared(seed, [prep.Clip(2.0, 20.0, columns=["w"]), prep.Winsorize(0.1, 0.8, columns=["v"])], rows, items)
    close(found.features["s.w"], np.clip(found.column("w"), 2.0, 20.0))
    close(found.features["i.v"], np.clip(found.column("v"), *np.quantile(found.column("v"), [0.1, 0.8])))
    w = found.column("w")
    first, third = np.quantile(w, [0.25, 0.75])
    ends: dict[Method, tuple[float, float]] = {
        "iqr": (first - 1.5 * (third - first), third + 1.5 * (third - first)),
        "sd": (w.mean() - 3 * w.std(ddof=1), w.mean() + 3 * w.std(ddof=1)),
    }
    for method, (low, high) in ends.items():
        outside = (w < low) | (w > high)
        flagged = prepared(seed, [prep.Outliers(method, "flag", columns=["w"])], rows, items)
        assert flagged.features["s.w_outlier"].tolist() == outside.astype(float).tolist()
        clipped = prepared(seed, [prep.Outliers(method, "clip", columns=["w"])], rows, items)
        close(clipped.features["s.w"], np.clip(w, low, high))
        nulled = prepared(seed, [prep.Outliers(method, "null", columns=["w"]), prep.Impute("median")], rows, items)
        kept = np.where(outside, np.median(w[~outside]), w)
        close(nulled.features["s.w"], kept)
        steps = [prep.Outliers(method, "null", columns=["w"]), prep.Impute("median"), prep.MinMax(columns=["w"])]
        scaled = prepared(seed, steps, rows, items)
        close(scaled.features["s.w"], (kept - kept.min()) / (kept.max() - kept.min()))


@few
@seeds
def test_statistics_follow_earlier_steps(seed: int, rows: int, items: int) -> None:
    """Sums and quantiles after fills, scalings, bounds, logarithms and powers are those of the changed columns."""
    found = prepared(
        seed,
        [prep.Log(columns=["w"]), prep.Power(1.5, columns=["v"]), prep.Impute("median"), prep.Robust()],
        rows,
        items,
    )
    close(found.features["s.w"], RobustScaler().fit_transform(np.log(found.column("w"))[:, None])[:, 0])
    bent = np.sign(found.column("v")) * np.abs(found.column("v")) ** 1.5
    close(found.features["i.v"], RobustScaler().fit_transform(bent[:, None])[:, 0])
    close(found.features["s.x"], RobustScaler().fit_transform(filled(found.column("x"), "median")[:, None])[:, 0])
    found = prepared(
        seed, [prep.Log(columns=["x"]), prep.Impute("median"), prep.Clip(0.5, 1.5, columns=["x"]), prep.Standardize()],
        rows, items,
    )  # fmt: skip
    raw = found.column("x")
    robust = prepared(seed, [prep.Log(columns=["x"]), prep.Impute("median"), prep.Robust()], rows, items)
    lost = filled(np.log(np.where(raw > 0, raw, np.nan)), "median")
    close(robust.features["s.x"], RobustScaler().fit_transform(lost[:, None])[:, 0])
    logs = np.log(np.where(raw > 0, raw, np.nan))
    expected = StandardScaler().fit_transform(np.clip(filled(logs, "median"), 0.5, 1.5)[:, None])[:, 0]
    close(found.features["s.x"], expected)


@few
@seeds
def test_categories(seed: int, rows: int, items: int) -> None:
    """OneHotEncoder with rare categories pooled, OrdinalEncoder, codes by frequency, and hashes."""
    found = prepared(seed, [prep.OneHot(max_categories=3, columns=["c"]), prep.Ordinal(columns=["g"])], rows, items)
    known = found.joined["c"].dropna()
    counts = known.value_counts()
    reference = OneHotEncoder(max_categories=3, sparse_output=False).fit(known.to_frame())
    expected = reference.transform(known.to_frame()).sum(axis=0)
    if len(set(counts)) == len(counts):  # else it depends on the order of names which one is pooled
        assert sorted(found.block("s.c").sum(axis=0)) == sorted(expected)
    assert not found.block("s.c")[found.joined["c"].isna().to_numpy()].any()
    assert found.features["i.g"].tolist() == OrdinalEncoder().fit_transform(found.joined[["g"]])[:, 0].tolist()
    found = prepared(seed, [prep.OneHot(min_count=8, columns=["c"]), prep.Recode(columns=["g"])], rows, items)
    kept = [count for count in counts if count >= 8]
    rest = [] if len(kept) == len(counts) else [counts.sum() - sum(kept)]
    assert found.block("s.c").sum(axis=0).tolist() == [*kept, *rest]
    ranks = found.joined["g"].map(found.joined["g"].value_counts().rank(method="first", ascending=False) - 1)
    assert sorted(np.bincount(found.features["i.g"].astype(int))) == sorted(np.bincount(ranks.astype(int)))
    assert pd.crosstab(found.joined["g"], found.features["i.g"]).gt(0).sum().max() == 1
    hashed = prepared(seed, [prep.Hash(5, columns=["c"])], rows, items)
    assert hashed.block("s.c").shape[1] == 5
    assert hashed.block("s.c").sum(axis=1).tolist() == hashed.joined["c"].notna().astype(float).tolist()
    places = pd.Series(hashed.block("s.c").argmax(axis=1))[hashed.joined["c"].notna()]
    assert places.groupby(hashed.joined["c"]).nunique().max() == 1


@few
@seeds
def test_dates_and_products(seed: int, rows: int, items: int) -> None:
    """Parts of timestamps as pandas has them, and PolynomialFeatures within each table."""
    parts: tuple[DatePart, ...] = (
        "year",
        "quarter",
        "month",
        "week",
        "day",
        "weekday",
        "yearday",
        "hour",
        "minute",
        "second",
    )
    steps = [prep.DateParts(parts), prep.Impute(), prep.Polynomial(3, columns=["x", "w"])]
    found = prepared(seed, steps, rows, items)
    dates = pd.to_datetime(found.joined["d"]).dt
    told = {"week": dates.isocalendar().week, "yearday": dates.day_of_year, "weekday": dates.day_of_week}
    for part in parts:
        expected = told[part] if part in told else getattr(dates, part)
        assert found.features[f"s.d_{part}"].tolist() == expected.astype(float).tolist(), part
    assert "s.d" not in found.features
    pair = np.stack([filled(found.column("x")), found.column("w")], 1)
    names = ["s.x", "s.w", "s.x^2", "s.x*w", "s.w^2", "s.x^3", "s.x^2*w", "s.x*w^2", "s.w^3"]
    close(found.features[names], PolynomialFeatures(3, include_bias=False).fit_transform(pair))
    found = prepared(seed, [prep.Impute(), prep.Interactions(columns=["x", "w", "v"])], rows, items)
    assert [name for name in found.features if "*" in name] == ["s.x*w"]


@few
@seeds
def test_what_is_known_of_encoded_columns(seed: int, rows: int, items: int) -> None:
    """Means and mean squares of all encoded columns, which solvers use, are those of the features."""
    steps = [
        prep.DateParts(keep=True), prep.Outliers("sd", "flag", columns=["w"]), prep.Bin(3, columns=["v"]),
        prep.Impute("median", indicator=True, columns=["x", "w", "d"]),
        prep.Hash(3, columns=["g"]), prep.OneHot(max_categories=2, columns=["c"]), prep.Power(columns=["w"]),
        prep.Polynomial(columns=["x", "w"]),
    ]  # fmt: skip
    found = prepared(seed, steps, rows, items)
    encoding = found.matrix.source.encoding
    means = np.concatenate([encoding.means(alias) for alias in encoding.numbers])
    squares = np.concatenate([encoding.squares(alias) for alias in encoding.numbers])
    close(means, found.features.mean())
    close(squares, (found.features**2).mean())


def test_drops() -> None:
    """Columns with too little variance, or too many values missing, are left out with a warning."""
    parties = {
        "p0": {
            "t": pa.table({"a": [1.0, 1.0, 1.1], "b": [None, None, 3.0], "e": ["x", "x", "x"], "f": [1.0, 2.0, 4.0]})
        }
    }
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), parties)
        warned = warnings_of(fed)
        relation = fed.sql("SELECT * FROM t", prep=prep.Pipeline([prep.DropMissing(0.5), prep.DropConstant(0.1)]))
        assert relation.matrix().columns == ["t.f"]
    reasons = {event.fields["column"]: event.fields["reason"] for event in warned if event.name == "column.dropped"}
    assert reasons["t.b"] == "lacks a value in 67% of the joined rows"
    assert reasons["t.a"].startswith("has a variance of 0.002")
    assert reasons["t.e"] == "has one value only"


def test_drops_after_a_fill() -> None:
    """They look at the column as the steps before have left it: filled, nothing is missing, and it may be constant."""
    some = [None, "a", "a", None, "b"]
    table = {"c": some, "e": [None, "a", "a", "a", "a"], "n": [None, 2, 2, 3, None], "x": [1.0, 2.0, 3.0, None, None]}
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), {"p0": {"t": pa.table(table)}})
        steps = [prep.Impute("mode", columns=["c", "e"]), prep.Impute("median", columns=["x"])]
        for drop, left in ((prep.DropMissing(0.1), {"c", "e", "x"}), (prep.DropConstant(), {"c", "n", "x"})):
            relation = fed.sql("SELECT * FROM t", prep=prep.Pipeline([*steps, drop]))
            encoding = relation.fit_encoding()
            kept = {each.name for each in encoding.encoded}
            assert kept == left - ({"e"} if drop.name == "DropMissing" else set())  # one value: dropped at the end


def test_a_fill_that_is_a_category() -> None:
    """Missing becomes that category, not a second one of its name; numbers as categories are compared as numbers."""
    table = {"c": ["a", None, "b", "b", "a", "a"], "q": [10, 10, 10, 9, 9, None]}
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), {"p0": {"t": pa.table(table)}}, wire="float64")
        steps: list[Any] = [prep.Impute("constant", fill="b", columns=["c"])]
        for fill, sums in ((9.0, [3.0, 3.0]), ("9", [3.0, 3.0]), ("none", [3.0, 2.0, 1.0])):
            pipeline = prep.Pipeline([*steps, prep.Impute("constant", fill=fill, columns=["q"])])
            matrix = fed.sql("SELECT * FROM t", categorical=["q"], prep=pipeline).matrix()
            assert (matrix @ np.eye(matrix.shape[1])).sum(axis=0).tolist() == [3.0, 3.0, *sums]


def test_numbers_as_categories_have_the_order_of_numbers() -> None:
    """`Ordinal` of a number that is listed in ``categorical`` sorts by value, a fill among the others."""
    table = {"q": [100, 9, 10, -2, None, 9], "f": [2, 1, 3, None, 1, 1]}
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), {"p0": {"t": pa.table(table)}}, wire="float64")
        steps = [prep.Impute("constant", fill=50, columns=["q"]), prep.Impute("mode", columns=["f"]), prep.Ordinal()]
        matrix = fed.sql("SELECT q, f FROM t", categorical=["q", "f"], prep=prep.Pipeline(steps)).matrix()
        assert (matrix @ np.eye(2)).T.tolist() == [[4.0, 1.0, 2.0, 0.0, 3.0, 1.0], [1.0, 0.0, 2.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "steps",
    [
        [prep.Log(columns=["x"]), prep.MinMax(columns=["x"])],
        [prep.DropMissing(0.05), prep.Impute("median")],
        [prep.DropMissing(0.05), prep.Impute("mode", columns=["w"])],
        [prep.DropConstant(20.0, columns=["x"]), prep.Winsorize(columns=["x"])],
        [prep.Outliers("iqr", "null", 0.1, columns=["x"]), prep.MinMax(columns=["x"])],
        [prep.DropConstant(columns=["c"]), prep.OneHot(max_categories=2, columns=["c"])],
        [prep.Clip(3.0, 3.5, columns=["x"]), prep.Bin(4, "height", columns=["x"]), prep.Bin(2, columns=["w"])],
        [prep.Recode(columns=["c"]), prep.Bin(2, columns=["c"])],
    ],
)  # fmt: skip
def test_steps_that_need_statistics_of_steps(steps: list[Any]) -> None:
    """They are asked for, in no more trips than foreseen: every column is a feature, or is left out for a reason."""
    found = prepared(4, steps)
    assert np.isfinite(found.features.to_numpy()).all()
    assert found.trips <= foresee(found.relation.prep, found.relation.plan, 256).trips
    with pytest.raises(tp.LearnError, match="is no column"):
        prepared(4, [*steps, prep.Standardize(columns=["nothing"])])


def test_a_constant_is_only_centred() -> None:
    """As in scikit-learn, a column without variance becomes zeros if no step drops it."""
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), {"p0": {"t": pa.table({"a": [3.0, 3.0], "b": [1.0, 2.0]})}})
        for step in (prep.Standardize(), prep.MinMax(), prep.Robust()):
            matrix = fed.sql("SELECT a, b FROM t", prep=prep.Pipeline([step])).matrix()
            assert (matrix @ np.eye(2))[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["x", "w"])
def test_inverse(name: str) -> None:
    """Scalings, logarithms and powers are undone."""
    found = prepared(3, [prep.Impute(), prep.Log(offset=50.0), prep.Power(2.0), prep.MinMax(columns=["x", "w"])])
    values = found.matrix.source.encoding.inverse(f"s.{name}", found.features[f"s.{name}"])
    close(values, filled(found.column(name)))
    with pytest.raises(tp.LearnError, match="one category of several"):
        found.matrix.source.encoding.inverse("s.c=0", [1.0])
    with pytest.raises(tp.LearnError, match=r"'s.y' is no encoded column"):
        found.matrix.source.encoding.inverse("s.y", [1.0])
    assert not math.isnan(values.sum())


def test_a_step_makes_a_new_column_or_none() -> None:
    """An output that is there already is refused, that of the column itself too; one without letters is a name."""
    for step in (Missing("x", "x"), Product(["x", "w"], "x"), Product(["x", "w"], "w")):
        with pytest.raises(tp.PartyError, match="which is there already"):
            Shapes.of(["x", "w"], {}, [step])
    assert Shapes.of(["x", "w"], {}, [Product(["x", "w"], "")]).numbers == ["x", "w", ""]


def test_a_fill_that_no_row_needs_takes_no_place(tmp_path: Path) -> None:
    """`Ordinal` numbers the categories that rows have, as scikit-learn does; a filled row to predict is between two."""
    names = ["z", "a", "m", None]
    table = pa.table({"c": names * 3, "w": [1.0, 2.0, 3.0, 4.0] * 3})
    fed = federation(tmp_path, {"p": {"t": table}}, wire="float64")
    steps = prep.Pipeline([prep.Impute("constant", fill="b"), prep.Ordinal()])
    found = [fed.sql(f"SELECT c FROM t{where}", prep=steps).matrix() for where in (" WHERE w < 4", "")]
    for matrix, places in zip(found, ([2.0, 0.0, 1.0] * 3, [3.0, 0.0, 2.0, 1.0] * 3), strict=True):
        assert (matrix @ np.eye(1))[:, 0].tolist() == places
    rel = fed.sql("SELECT c, w FROM t WHERE w < 4", label="w", prep=steps)
    model = tp.LinearRegression(l2=0.0).fit(rel)
    assert model.predict(fed.sql("SELECT c, w FROM t", label="w")).tolist() == pytest.approx([1.5, 2.5, 2.0, 2.25] * 3)
