"""What ``min_group`` hides, of statistics and of the rows that a model learns from, over services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LinearRegression

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.policy import Policy, TableRule
from tablepuppet.party.service import Party
from tablepuppet.prep.encode.specs import Clipped, Fill, Without
from tests.relations import Parties, federation, in_process
from tests.wire.services import KEY, calling, served

RULE = TableRule(min_group=5, matrix=True, cross_statistics=True, label_means=True)


@contextmanager
def services(folder: Path, parties: Parties) -> Iterator[tp.Federation]:
    """The parties as services that hide groups of fewer than 5 rows."""
    federation(folder, parties)
    with served({name: f"parquet://{folder / name}" for name in parties}, policy=Policy(others=RULE)) as servers:
        yield calling(servers, wire="float64")


def shards(seed: int = 3) -> Parties:
    """A large shard that lists all categories, and a small one that has few rows of most of them."""
    draw, kinds = np.random.default_rng(seed), 16
    effects = draw.normal(0.0, 5.0, kinds)

    def table(rows: int, common: float) -> pa.Table:
        shares = np.array([common, *[1.0] * (kinds - 1)])
        codes = draw.choice(kinds, rows, p=shares / shares.sum())
        return pa.table(
            {
                "c": pa.array([f"k{code}" for code in codes], mask=draw.random(rows) < 0.1),
                "x": draw.normal(0.0, 1.0, rows),
                "y": effects[codes] + draw.normal(0.0, 1.0, rows) + 20.0,
            }
        )

    return {"p0": {"t": table(200, 2.0)}, "p1": {"t": table(60, 6.0)}}


@pytest.mark.parametrize(
    "steps", [[], [prep.Impute("mode")], [prep.Impute("constant", fill="none", columns=["c"], indicator=True)]]
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_fit_is_the_optimum(tmp_path: Path, steps: list[Any], count: int) -> None:
    """Of the features that parties hold, with categories of which a shard has fewer rows than it may tell of."""
    parties = dict(list(shards().items())[:count])
    with services(tmp_path, parties) as fed:
        relation = fed.sql("SELECT c, x, y FROM t", label="y", prep=prep.Pipeline(steps))
        matrix, label = relation.matrix(), relation.label()
        features = matrix @ np.eye(matrix.shape[1])
        best = LinearRegression().fit(features, label).score(features, label)
        model = tp.LinearRegression().fit(relation)
        assert model.converged_
        assert model.evaluate(relation)["r2"] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "step",
    [
        prep.Recode(),
        prep.Ordinal(),
        prep.TargetEncode(folds=1),
        prep.TargetEncode(folds=2),
        prep.Impute(indicator=True),
    ],
)
def test_standardised_columns(tmp_path: Path, step: Any, count: int) -> None:
    """They have mean 0 and deviation 1, with categories of which a shard has fewer rows than it may tell of."""
    parties = dict(list(shards().items())[:count])
    with services(tmp_path, parties) as fed:
        pipeline = prep.Pipeline([step, prep.Impute(), prep.Standardize(columns=[prep.numbers, prep.flags])])
        matrix = fed.sql("SELECT c, x, y FROM t", label="y", prep=pipeline).matrix()
        numbers = matrix.source.is_number
        features = (matrix @ np.eye(matrix.shape[1]))[:, numbers]
        np.testing.assert_allclose(features.mean(axis=0), 0.0, atol=1e-9)
        np.testing.assert_allclose(features.std(axis=0), np.ptp(features, axis=0) > 0, atol=1e-9)


def test_few_numbers_are_missing_where_a_model_learns(tmp_path: Path) -> None:
    """A party with fewer values than ``min_group`` encodes them as missing in the rows of a fit, as it counts them
    there, and as they are in rows to predict, each by itself.
    """
    values = np.arange(20.0)
    few = pa.array([1e6, 2e6, *[None] * 18], pa.float64())
    parties = {"p0": {"t": pa.table({"x": values})}, "p1": {"t": pa.table({"x": few})}}
    with services(tmp_path, parties) as fed:
        matrix = fed.sql("SELECT x FROM t", prep=prep.Pipeline([prep.Standardize()])).matrix()
        learned = (matrix @ np.eye(1))[:, 0]
        assert np.abs(learned).max() < 3.0
        assert learned.mean() == pytest.approx(0.0, abs=1e-9)
        again = (fed.sql("SELECT x FROM t").matrix(like=matrix) @ np.eye(1))[:, 0]
        assert np.sort(again)[-2:] == pytest.approx((np.array([1e6, 2e6]) - values.mean()) / values.std())


def test_a_filled_column_does_not_tell_none_from_few(tmp_path: Path) -> None:
    """The sums of a column after a fill are the same if no row has a value, and if fewer than ``min_group`` have."""
    columns = {"none": [None] * 20, "few": [7.0, 8.0, *[None] * 18], "all": list(range(20))}
    table = pa.table({name: pa.array(each, pa.float64()) for name, each in columns.items()})
    with services(tmp_path, {"p0": {"t": table}}) as fed:
        relation, told = fed.sql("SELECT * FROM t"), {}
        for name in columns:
            for steps in ([Fill(name, 3.0)], [Without(name, 0.0, 2.5), Fill(name, 3.0), Clipped(name, 0.0, 5.0)]):
                asked = {"blinding": "x", "columns": [name], "categories": [], "wanted": [name], "steps": steps}
                [reply] = relation.client.ask_table("prep.sums", "t", asked)
                told[name, len(steps)] = reply["sums"].tolist()
        assert told["none", 1] == told["few", 1] != told["all", 1]
        assert told["none", 3] == told["few", 3] == told["all", 3]


def few_of_many(seed: int) -> Parties:
    """Two shards of a few categories, of which some have fewer rows than ``min_group`` in one of them or in both."""
    draw = np.random.default_rng([24, seed])
    names = np.array([f"k{each}" for each in range(int(draw.integers(3, 8)))])

    def table(rows: int) -> pa.Table:
        cells = draw.choice(names, rows, p=draw.dirichlet(np.full(len(names), 0.7)))
        cells = np.concatenate([np.resize(names[:2], 12), cells])  # two that are surely listed
        gone = draw.random(len(cells)) < draw.choice([0.0, 0.1])
        return pa.table(
            {"c": pa.array(cells, mask=gone), "x": draw.normal(size=len(cells)), "y": draw.normal(size=len(cells))}
        )

    return {f"p{number}": {"t": table(int(draw.integers(10, 60)))} for number in range(2)}


def at_one_place(folder: Path, parties: Parties) -> tp.Federation:
    """The same parties in this process, with the same policy."""
    made = {
        name: Party(name, open_database(name, f"parquet://{folder / name}"), KEY, Policy(others=RULE), name.encode())
        for name in parties
    }
    fed = tp.Federation(dict.fromkeys(parties, "parquet:///unused"), wire="float64")
    fed.engine = in_process(made, "analyst")
    return fed


def filled(cells: list[list[str | None]], name: str) -> dict[str, float]:
    """The rows of a category after a fill with it: a shard adds its rows without a value, unless these are few."""
    total = 0
    for each in cells:
        listed = each.count(name) if each.count(name) >= RULE.min_group else 0
        total += listed + each.count(None) if listed + each.count(None) >= RULE.min_group else 0
    return {name: float(total)}


@pytest.mark.parametrize("seed", range(6))
def test_one_definition_of_missing(tmp_path: Path, seed: int) -> None:
    """A cell whose category is rare in its shard counts as missing wherever cells are counted, has none of the listed
    categories, and is not filled: the same for the coordinator's statistics and the parties' rows, in one process and
    over services.
    """
    parties = few_of_many(seed)
    cells = [tables["t"]["c"].to_pylist() for tables in parties.values()]
    rows, null = sum(map(len, cells)), sum(each.count(None) for each in cells)
    listed: Counter[str] = Counter()
    for each in cells:
        listed += Counter({name: count for name, count in Counter(each).items() if name and count >= RULE.min_group})
    hidden = rows - null - listed.total()
    often = max(listed.values())
    pipelines: dict[str, list[Any]] = {
        "plain": [],
        "filled": [prep.Impute("mode", columns=["c"])],
        "other": [prep.Impute("constant", fill="none", columns=["c"])],
        "dropped": [prep.DropMissing(max((null + hidden - 0.5) / rows, 0.0))],
        "kept": [prep.DropMissing(min((null + hidden + 0.5) / rows, 1.0))],
        "filled, dropped": [prep.Impute("mode", columns=["c"]), prep.DropMissing(0.0)],
        "ordinal": [prep.Ordinal(), prep.Impute(), prep.Standardize(columns=[prep.numbers])],
        "recoded": [prep.Recode(), prep.Impute(), prep.Standardize(columns=[prep.numbers])],
        "target": [prep.TargetEncode(folds=1), prep.Impute(), prep.Standardize(columns=[prep.numbers])],
    }
    found: list[dict[str, Any]] = []
    with services(tmp_path, parties) as served_:
        for fed in (served_, at_one_place(tmp_path, parties)):
            [told] = [each for each in fed.sql("SELECT c, x, y FROM t").describe() if each["column"] == "c"]
            assert (told["count"], told["missing"]) == (listed.total(), null + hidden)
            assert (told["distinct"], told["top_share"]) == (len(listed), pytest.approx(often / listed.total()))
            features: dict[str, Any] = {}
            for name, steps in pipelines.items():
                X = fed.sql("SELECT c, x, y FROM t", label="y", prep=prep.Pipeline(steps)).matrix()
                made = X @ np.eye(X.shape[1])
                np.testing.assert_allclose(np.asarray(X.mean(axis=0)), made.mean(axis=0), atol=1e-9)
                if X.categories:
                    columns = [place for place, column in enumerate(X.columns) if "=" in column]
                    counted = dict(zip(X.categories["t.c"], made[:, columns].sum(axis=0), strict=True))
                    features[name] = counted
                else:
                    features[name] = np.sort(made, axis=0)
            plain = {name: float(count) for name, count in listed.items()}
            assert features["plain"] == plain
            assert features["filled"] in [plain | filled(cells, name) for name in plain if plain[name] == often]
            other = [count for each in cells if (count := each.count(None)) >= RULE.min_group]
            assert sum(features["other"].values()) == listed.total() + sum(other)
            assert isinstance(features["dropped"], dict) == (null + hidden == 0)
            assert features["kept"] == plain
            assert isinstance(features["filled, dropped"], dict) == (hidden == 0)
            for name in ("ordinal", "recoded", "target"):
                np.testing.assert_allclose(features[name].mean(axis=0), 0.0, atol=1e-9)
                np.testing.assert_allclose(features[name].std(axis=0), 1.0, atol=1e-9)
            found.append(features)
    for name in pipelines:
        if isinstance(found[0][name], dict):
            assert found[0][name] == found[1][name], name
        else:
            np.testing.assert_allclose(found[0][name], found[1][name], atol=1e-9, err_msg=name)
