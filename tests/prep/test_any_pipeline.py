"""Any steps in any order: what parties encode is what pandas and NumPy make of the materialised join.

`Frame` does the steps over the joined rows, in the plain way. Where the order of equally frequent categories decides,
or a value at the edge of a bin, nothing is compared. Tolerance: 1e-7 of the largest value of a column.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from itertools import combinations, combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.party.policy import Policy, TableRule
from tablepuppet.prep.pipelines.pipeline import foresee
from tests.relations import Parties, federation, materialised
from tests.wire.services import calling, served

Values = NDArray[Any]
SQL = "SELECT s.x, s.w, s.n, s.k, s.b, s.d, s.c, s.e, s.q, s.h, i.v, i.g, s.y FROM sales s JOIN items i USING (item)"
COLUMNS = dict.fromkeys("xwnkbdceqhy", "s") | {"v": "i", "g": "i"}
TEXTS = ("c", "e", "q", "g")
REFUSALS = (
    r"quantiles are not known", r"which there is already", r"put it before Impute", r"put DateParts first",
    r"put strategy='mode' first", r"is no date or timestamp", r"and the step needs", r"needs a number as fill",
    r"has categories: strategy is", r"has too many different numbers", r"values that are not finite",
    r"squares overflow", r"differ by next to nothing", r"is no column",
)  # fmt: skip


class Unclear(Exception):  # noqa: N818 - nothing is compared
    """Ties or rounding decide."""


def shop(seed: int, rows: int = 160, items: int = 25) -> Parties:
    """Sales in two shards, and items: numbers, booleans, dates, texts and numbers as categories, with missing ones."""
    draw = np.random.default_rng(seed)

    def some(values: Iterable[Any], share: float, kind: pa.DataType | None = None) -> pa.Array:
        listed = list(values)
        return pa.array([None if draw.random() < share else each for each in listed], kind)

    def sales(size: int) -> pa.Table:
        return pa.table(
            {
                "item": draw.integers(0, items + 2, size),
                "x": some(draw.normal(1.0, 3.0, size).tolist(), 0.2),
                "w": draw.gamma(1.0, 9.0, size),
                "n": some(draw.integers(-3, 9, size).tolist(), 0.1),
                "k": some([4.0] * size, 0.3),
                "b": some((draw.random(size) < 0.3).tolist(), 0.1),
                "d": some([date(2020, 1, 1) + timedelta(int(day)) for day in draw.integers(0, 900, size)], 0.15),
                "c": some(draw.choice(list("aaaaaaaabbbbbcccd"), size).tolist(), 0.15),
                "e": some(["same"] * size, 0.0),
                "q": some(draw.choice([9, 9, 9, 9, 10, 10, 10, 100, 100, -2], size).tolist(), 0.1),
                "h": some(draw.normal(0.0, 1.0, size).tolist(), 0.65),
                "y": draw.integers(0, 2, size),
            }
        )

    catalog = {"item": range(items), "v": draw.normal(50.0, 5.0, items), "g": draw.choice(list("ppppqqqr"), items)}
    return {
        "p0": {"sales": sales(rows // 3)},
        "p1": {"sales": sales(rows - rows // 3)},
        "p2": {"items": pa.table(catalog)},
    }


@dataclass
class Plain:
    """A column of the joined rows: numbers with NaN, or objects with None; codes are objects too."""

    alias: str
    kind: str
    values: Values
    is_date: bool = False
    is_changed: bool = False
    pooled: frozenset[Any] = frozenset()  # categories that share a column

    @property
    def present(self) -> Values:
        return np.asarray(self.values[~pd.isna(self.values)])


class Frame:
    """The joined rows, and what each step makes of them."""

    def __init__(self, joined: pd.DataFrame, label: Values):
        self.label, self.columns = label, dict[str, Plain]()
        for name in joined:
            if name in TEXTS:
                values = joined[name].astype(object).where(joined[name].notna(), None).to_numpy()
                self.columns[name] = Plain(COLUMNS[name], "text", values)
            else:
                days = name == "d"
                listed = [
                    math.nan if each is None else float((each - date(1970, 1, 1)).days if days else each)
                    for each in joined[name].tolist()
                ]
                self.columns[name] = Plain(COLUMNS[name], "number", np.array(listed), is_date=days)

    def run(self, step: Any) -> None:
        """One step over its columns."""
        kinds = {
            "Impute": ("number", "text"), "DropConstant": ("number", "flag", "text"), "DropMissing": ("number", "text"),
            **dict.fromkeys(("OneHot", "Recode", "Ordinal", "Hash"), ("text",)),
            **dict.fromkeys(("TargetEncode", "WOE"), ("text", "coded")),
        }.get(step.name, ("number", "flag"))  # fmt: skip
        if step.name == "Map":
            self.columns["w_twice"] = Plain("s", "number", self.columns["w"].values * 2)
            if not step.keep:
                del self.columns["w"]
            return
        if step.columns is not None:
            if any(self.columns[name].kind == "hashed" for name in step.columns if name in self.columns):
                raise Unclear
            named = [name for name in self.columns if name in step.columns and self.columns[name].kind in kinds]
        else:
            usual = {"Impute": ("number",), **dict.fromkeys(("TargetEncode", "WOE"), ("text",))}.get(step.name, kinds)
            usual = tuple(kind for kind in usual if kind != "flag" or step.name == "DropConstant")
            if step.name == "Impute" and step.strategy == "mode":
                usual = ("number", "text")
            if step.name == "Impute" and isinstance(step.fill, str):
                usual = ("text",)
            named = [name for name, each in self.columns.items() if each.kind in usual]
            if step.name == "DateParts":
                named = [name for name in named if self.columns[name].is_date]
        if step.name in ("Polynomial", "Interactions"):
            self._products(step, named)
            return
        for name in named:
            column = self.columns[name]
            if not len(column.present) and step.name not in ("Clip", "Power", "Hash"):
                del self.columns[name]
                continue
            getattr(self, step.name)(step, name, column)
            column.is_changed |= step.name not in ("DropConstant", "DropMissing")

    # Numbers

    def Impute(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802 - named like the steps
        missing = pd.isna(column.values)
        if step.indicator:
            self._flag(f"{name}_missing", column, missing)
        if column.kind == "text":
            if step.strategy == "mode":
                fill = untied(column.present).index[0]
            else:
                fill = int(step.fill) if name == "q" else step.fill
        else:
            values = column.present
            fill = np.median(values) if step.strategy == "median" else values.mean()
            fill = fill if step.fill is None else step.fill
            if step.strategy == "mode":
                counts = pd.Series(values).value_counts()
                fill = counts[counts == counts.max()].index.min()
        column.values = np.array(
            [fill if gone else each for each, gone in zip(column.values, missing, strict=True)], column.values.dtype
        )

    def _scale(self, column: Plain, centre: float, scale: float) -> None:
        column.values = (column.values - centre) / (scale or 1.0)

    def Standardize(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        values = column.present
        self._scale(column, values.mean(), 0.0 if values.min() == values.max() else values.std())

    def MinMax(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        low, high = column.present.min(), column.present.max()
        scale = (high - low) / (step.high - step.low) or 1.0
        self._scale(column, low - step.low * scale, scale)

    def Robust(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        low, middle, high = np.quantile(column.present, [0.25, 0.5, 0.75])
        self._scale(column, middle, high - low)

    def Clip(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        column.values = np.clip(column.values, step.low, step.high)

    def Winsorize(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        column.values = np.clip(column.values, *np.quantile(column.present, [step.low, step.high]))

    def Outliers(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        values = column.present
        if step.method == "sd":
            reach = step.factor * values.std(ddof=1)
            low, high = values.mean() - reach, values.mean() + reach
        else:
            first, third = np.quantile(values, [0.25, 0.75])
            low, high = first - step.factor * (third - first), third + step.factor * (third - first)
        if step.action == "clip":
            column.values = np.clip(column.values, low, high)
            return
        apart(values, [low, high])
        outside = (column.values < low) | (column.values > high)
        if step.action == "null":
            column.values = np.where(outside, math.nan, column.values)
        else:
            self._flag(f"{name}_outlier", column, outside)

    def Log(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        moved = column.values + step.offset
        apart(moved, [0.0])
        column.values = np.log(np.where(moved > 0, moved, math.nan))

    def Power(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        column.values = np.sign(column.values) * np.abs(column.values) ** step.exponent

    def Bin(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        values = column.present
        if step.how == "width":
            edges = np.linspace(values.min(), values.max(), step.n + 1)
        else:
            edges = np.quantile(values, np.linspace(0, 1, step.n + 1))
        edges = np.unique(edges)
        if len(edges) < 2:
            del self.columns[name]
            return
        if column.is_changed or step.how == "height":
            apart(values, edges[1:-1], or_equal=step.how == "height" and not column.is_changed)
            apart(edges, edges, or_equal=True)
        bins = np.searchsorted(edges[1:-1], column.values, side="right").astype(float)
        column.values = np.where(np.isnan(column.values), math.nan, bins)
        if step.encode == "onehot":
            column.kind = "coded"
            column.values = np.array([None if math.isnan(each) else int(each) for each in column.values], object)

    def DateParts(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        days = pd.to_datetime(pd.Series(column.values), unit="D", origin="unix")
        for part in step.parts:
            found = getattr(days.dt, part).to_numpy(float)
            self._make(f"{name}_{part}", Plain(column.alias, "number", found))
        if not step.keep:
            del self.columns[name]

    def _products(self, step: Any, named: list[str]) -> None:
        for alias in dict.fromkeys(self.columns[name].alias for name in named):
            here = [name for name in named if self.columns[name].alias == alias]
            choose = combinations if step.interaction_only else combinations_with_replacement
            for degree in range(2, step.degree + 1):
                for factors in choose(here, degree):
                    powers = {each: factors.count(each) for each in dict.fromkeys(factors)}
                    made = "*".join(each if power == 1 else f"{each}^{power}" for each, power in powers.items())
                    found = np.prod([self.columns[each].values for each in factors], axis=0)
                    self._make(made, Plain(alias, "number", found))

    def _flag(self, name: str, like: Plain, is_set: Values) -> None:
        self._make(name, Plain(like.alias, "flag", is_set.astype(float)))

    def _make(self, name: str, column: Plain) -> None:
        self.columns[name] = column

    # Columns that are left out

    def DropConstant(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        present = column.present
        if column.kind == "text":
            is_same = len(set(present)) == 1 and len(present) == len(column.values)
        else:
            apart(np.array([present.var()]), [step.variance or -1.0])
            is_same = present.min() == present.max() or present.var() <= step.variance
        if is_same:
            del self.columns[name]

    def DropMissing(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        if pd.isna(column.values).mean() > step.share:
            del self.columns[name]

    # Categories

    def OneHot(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        counts, kept = pd.Series(column.present).value_counts(), None
        if step.min_count is not None:
            kept = int((counts >= step.min_count).sum())
        if step.max_categories is not None and len(counts) > step.max_categories:
            kept = step.max_categories - 1
        if kept is not None:
            column.pooled = frozenset(untied(column.present).index[kept:])
        column.kind = "coded"

    def Recode(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        self._lookup(column, {each: place for place, each in enumerate(untied(column.present).index)})

    def Ordinal(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        self._lookup(column, {each: place for place, each in enumerate(sorted(set(column.present)))})

    def TargetEncode(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        prior, keys = self.label.mean(), pd.Series([key_of(column, each) for each in column.values])
        groups = pd.Series(self.label).groupby(keys)
        share = groups.count() / (groups.count() + step.smooth)
        found = prior + share * (groups.mean() - prior)
        column.kind, column.values = "number", keys.map(found).to_numpy(float)

    def WOE(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        keys = pd.Series([key_of(column, each) for each in column.values])
        shares = []
        for kind in (1.0, 0.0):
            here = pd.Series(self.label == kind, dtype=float)
            shares.append((here.groupby(keys).sum() + step.smooth) / (here.sum() + 2 * step.smooth))
        column.kind, column.values = "number", keys.map(np.log(shares[0]) - np.log(shares[1])).to_numpy(float)

    def _lookup(self, column: Plain, numbers: dict[Any, int]) -> None:
        found = [math.nan if each is None else float(numbers[each]) for each in column.values]
        column.kind, column.values = "number", np.array(found)

    def Hash(self, step: Any, name: str, column: Plain) -> None:  # noqa: N802
        column.kind = "hashed"

    def finish(self) -> None:
        """What becomes of columns after the last step."""
        for name, column in list(self.columns.items()):
            if column.kind == "text":
                if not len(column.present) or (
                    len(set(column.present)) == 1 and len(column.present) == len(self.label)
                ):
                    del self.columns[name]
                column.kind = "coded"
            elif column.kind in ("number", "flag"):
                if not len(column.present):
                    del self.columns[name]
                column.values = np.where(
                    np.isnan(column.values), np.nanmean([0.0, *column.present][1:] or [0.0]), column.values
                )


def key_of(column: Plain, value: Any) -> str:
    """A category as it is counted: pooled ones are one, and so are those missing."""
    return "missing" if value is None else "pooled" if value in column.pooled else f"={value}"


def untied(values: Values) -> pd.Series[int]:
    """Categories by frequency."""
    counts = pd.Series(values).value_counts()
    if counts.duplicated().any():
        raise Unclear
    return counts


def apart(values: Values, edges: Iterable[float], or_equal: bool = False) -> None:
    """`Unclear` if rounding decides on which side of an edge a value is."""
    known = values[np.isfinite(values.astype(float))]
    size = 1e-9 * max(np.abs(known).max(initial=0.0), 1e-9)
    for edge in edges:
        near = np.abs(known - edge) < size
        if (near & ~((known == edge) & or_equal)).any():
            raise Unclear


def drawn(draw: np.random.Generator) -> list[Any]:
    """Some steps, in any order."""

    def one(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    def some(names: str) -> Any:
        chosen = [each for each in names if draw.random() < 0.4]
        return one(None, chosen or [names[0]])

    numbers, texts = "xwnkbdhv", "ceqg"
    make: list[Callable[[], Any]] = [
        lambda: prep.Impute(one("mean", "median"), indicator=one(False, True), columns=some(numbers)),
        lambda: prep.Impute("mode", columns=one(["n"], ["b", "k"], ["c"], ["q", "g"], ["c", "n"])),
        lambda: prep.Impute("constant", fill=one(0.0, -2.5), columns=some(numbers)),
        lambda: prep.Impute("constant", fill=one("b", "zz"), indicator=one(False, True), columns=one(["c"], [*"cg"])),
        lambda: prep.Impute("constant", fill=one("9", "7", 100), columns=["q"]),
        lambda: prep.Standardize(columns=some(numbers)),
        lambda: prep.MinMax(*one((0.0, 1.0), (-1.0, 2.0)), columns=some(numbers)),
        lambda: prep.Robust(columns=some(numbers)),
        lambda: prep.Clip(one(None, -1.0), one(3.0, 40.0), columns=some(numbers)),
        lambda: prep.Winsorize(0.1, 0.8, columns=some(numbers)),
        lambda: prep.Outliers(one("iqr", "sd"), one("flag", "clip", "null"), one(0.7, 1.5), columns=some("xwnhv")),
        lambda: prep.Log(one(0.0, 0.5, 60.0), columns=some("xwnhv")),
        lambda: prep.Power(one(0.5, 2.0), columns=some("xwnhv")),
        lambda: prep.Bin(one(2, 3, 5), one("width", "height"), one("onehot", "ordinal"), columns=some(numbers)),
        lambda: prep.DateParts(("year", "month"), keep=one(False, True)),
        lambda: prep.Polynomial(2, columns=one(["x", "w"], ["h"], ["v", "n"], ["x", "x_outlier"])),
        lambda: prep.Interactions(2, columns=one(["x", "n"], ["w", "k", "h"])),
        lambda: prep.DropConstant(one(0.0, 0.3), columns=some(numbers + texts)),
        lambda: prep.DropMissing(one(0.05, 0.12, 0.5), columns=some(numbers + texts)),
        lambda: prep.OneHot(columns=some(texts)),
        lambda: prep.OneHot(min_count=one(20, 40), columns=some(texts)),
        lambda: prep.OneHot(max_categories=one(1, 2), columns=some(texts)),
        lambda: prep.Recode(columns=some(texts)),
        lambda: prep.Ordinal(columns=some(texts)),
        lambda: prep.Hash(4, columns=some(texts)),
        lambda: prep.TargetEncode(folds=1, smooth=5.0, columns=some(texts + "n")),
        lambda: prep.WOE(columns=some(texts + "n")),
    ]  # fmt: skip
    first = [prep.Map("x * 2", "twice", one(False, True), columns=["w"])] if draw.random() < 0.1 else []
    return [*first, *(make[int(draw.integers(len(make)))]() for _ in range(draw.integers(1, 7)))]


def compare(frame: Frame, features: pd.DataFrame, order: Callable[[Values], Values]) -> None:
    """The encoded columns are those of the frame; ``order`` makes rows comparable."""
    numbers = {f"{each.alias}.{name}" for name, each in frame.columns.items() if each.kind in ("number", "flag")}
    blocks = {f"{each.alias}.{name}" for name, each in frame.columns.items()} - numbers
    assert {re.sub(r"=\d+$", "", name) for name in features} == numbers | blocks
    for name, column in frame.columns.items():
        full = f"{column.alias}.{name}"
        if column.kind in ("number", "flag"):
            size = max(1.0, float(np.abs(column.values).max()))
            np.testing.assert_allclose(
                order(features[full].to_numpy()), order(column.values), 0, 1e-7 * size, err_msg=full
            )
            continue
        found = features[[each for each in features if re.fullmatch(re.escape(full) + r"=\d+", each)]].to_numpy()
        if column.kind == "hashed":
            assert found.sum() == len(column.present)
            continue
        keys = [key_of(column, each) for each in column.values]
        wanted = [order(np.array([each == key for each in keys], float)) for key in {*keys} - {"missing"}]
        assert sorted(map(tuple, wanted)) == sorted(map(tuple, (order(each) for each in found.T if each.any()))), full


def joined_rows(relation: tp.Relation, parties: Parties) -> tuple[pd.DataFrame, Values]:
    """The features before any step, and the label, row by row."""
    found = pd.DataFrame(
        {name: pd.Series(materialised(relation, parties, alias, name), dtype=object) for name, alias in COLUMNS.items()}
    )
    return found, found.pop("y").to_numpy(float)


@cache
def opened() -> tuple[tp.Federation, Parties, Path, pd.DataFrame, Values]:
    parties, folder = shop(1), Path(tempfile.mkdtemp(prefix="tablepuppet-any-"))
    fed = federation(folder, parties, wire="float64")
    return fed, parties, folder, *joined_rows(fed.sql(SQL, label="y", categorical=["q"]), parties)


def selected(fed: tp.Federation, seed: int) -> tp.Relation:
    """The relation with some steps."""
    steps = drawn(np.random.default_rng(seed))
    return fed.sql(SQL, label="y", categorical=["q"], prep=prep.Pipeline(steps))


def fitted(fed: tp.Federation, seed: int) -> tuple[tp.Relation, pd.DataFrame] | None:
    """The relation with some steps, and its features; None if they are refused, with a reason that is known.

    Means and mean squares of numbers are those of the features, and no more trips were made than were foreseen.
    """
    try:
        relation = selected(fed, seed)
        before = fed.engine.traffic.trips
        matrix = relation.matrix()
        trips = fed.engine.traffic.trips - before
    except tp.LearnError as error:
        if not any(re.search(each, str(error)) for each in REFUSALS):
            raise
        return None
    assert trips <= foresee(relation.prep, relation.plan, 256).trips
    features = pd.DataFrame(matrix @ np.eye(matrix.shape[1]), columns=matrix.columns)
    for each in (each for listed in matrix.source.encoding.numbers.values() for each in listed):
        values = features[each.column.qualified].to_numpy()
        size = max(1.0, float(np.abs(values).max()))
        assert each.centre == pytest.approx(values.mean(), abs=1e-7 * size)
        assert each.square == pytest.approx((values**2).mean(), abs=1e-7 * size**2)
    return relation, features


def is_as_expected(fed: tp.Federation, seed: int, order: Callable[[Values], Values]) -> bool:
    """Whether some steps could be fitted and compared."""
    found = fitted(fed, seed)
    if found is None:
        return False
    _, _, _, joined, label = opened()
    frame = Frame(joined, label)
    try:
        with np.errstate(all="ignore"):
            for step in found[0].prep:
                frame.run(step)
            frame.finish()
    except Unclear:
        return False
    compare(frame, found[1], order)
    return True


def test_any_steps_in_any_order() -> None:
    """The features of a relation are those of the same steps on the materialised join, or the steps are refused."""
    fed, *_ = opened()
    assert sum(is_as_expected(fed, seed, lambda values: values) for seed in range(40)) >= 10


def test_over_services() -> None:
    """Parties elsewhere, whose rows have an order of their own, have the same features."""
    _, parties, folder, *_ = opened()
    policy = Policy(others=TableRule(matrix=True, cross_statistics=True, label_means=True))
    with served({name: f"parquet://{folder / name}" for name in parties}, policy=policy) as servers:
        fed = calling(servers, wire="float64")
        assert sum(is_as_expected(fed, seed, np.sort) for seed in range(100, 112)) >= 3


@pytest.mark.parametrize("least", [3, 12])
def test_statistics_are_those_of_the_features(least: int) -> None:
    """Whatever ``min_group`` hides: a party encodes the rows of a fit as it has counted them for the fit."""
    _, parties, folder, *_ = opened()
    policy = Policy(others=TableRule(matrix=True, cross_statistics=True, label_means=True, min_group=least))
    with served({name: f"parquet://{folder / name}" for name in parties}, policy=policy) as servers:
        fed = calling(servers, wire="float64")
        assert sum(fitted(fed, seed) is not None for seed in range(130, 142)) >= 3


def test_a_saved_model_prepares_alike(tmp_path: Path) -> None:
    """Another federation over the same tables predicts with it what the one that has fitted it does."""
    fed, parties, folder, *_ = opened()
    other = tp.Federation({name: f"parquet://{folder / name}" for name in parties}, wire="float64")
    again, done = other.sql(SQL, label="y", categorical=["q"]), 0
    for seed in range(160, 168):
        found = fitted(fed, seed)
        if found is None or found[0].prep.maps:
            continue
        model = tp.LinearRegression(rounds=3, l2=1.0).fit(found[0])
        model.save(tmp_path / str(seed))
        size = np.abs(model.predict(found[0])).max()
        loaded = tp.load(tmp_path / str(seed), other).predict(again)
        np.testing.assert_allclose(loaded, model.predict(found[0]), atol=1e-9 * size)
        done += 1
    assert done >= 2
