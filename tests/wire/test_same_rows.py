"""Splits, folds and first networks over services: the same source rows as in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.selection.folds import Folding
from tablepuppet.party.policy import CallerLimits, Policy
from tablepuppet.prep.columns.sent_columns import SentColumns
from tests.relations import write_party
from tests.wire.services import calling, served

SQL = "SELECT s.c, s.x, i.g, i.v, s.{label} FROM sales s JOIN items i ON s.item = i.item"


def sales(seed: int, rows: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    item, x, c = draw.integers(0, 30, rows), draw.normal(size=rows), draw.choice(list("abcdefghij"), rows)
    y = x + (c < "e") + item % 3 + 0.3 * draw.normal(size=rows)
    return pa.table(
        {"item": item, "x": x, "c": c, "y": y, "b": np.array(["no", "yes", "maybe"])[np.digitize(y, [1, 3])]}
    )


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Sales in two shards whose names are not in the order in which the federation has them."""
    folder, draw = tmp_path_factory.mktemp("parties"), np.random.default_rng(5)
    items = pa.table({"item": np.arange(30), "g": draw.choice(list("pqr"), 30), "v": draw.normal(size=30)})
    tables = {"west": {"sales": sales(0, 70)}, "goods": {"items": items}, "east": {"sales": sales(1, 50)}}
    return {name: write_party(folder, name, listed) for name, listed in tables.items()}


@contextmanager
def both(urls: dict[str, str], **settings: Any) -> Iterator[tuple[tp.Federation, tp.Federation]]:
    """The parties in this process, and as services."""
    with served(urls, **settings) as servers:
        yield tp.Federation(urls, wire="float64"), calling(servers, wire="float64")


def values(relation: tp.Relation, name: str = "x") -> list[float]:
    """The numbers of a column in the base rows that take part, which name them."""
    column = next(each for each in relation.query.outputs if each.name == name)
    return sorted(SentColumns(relation.client).numbers(column).values.tolist())


def sides_of(relation: tp.Relation, **how: Any) -> list[list[float]]:
    return [values(side) for fold in Folding(relation, 4, 3, **how).sides(0.7) for side in fold]


WAYS: dict[str, Callable[[tp.Relation], Any]] = {
    "split": lambda relation: [values(side) for side in relation.split(0.3, seed=2)],
    "split by groups": lambda relation: [values(side) for side in relation.split(0.3, seed=2, by="c")],
    "split by a key": lambda relation: [values(side) for side in relation.split(0.3, seed=2, by="s.item")],
    "split by a table": lambda relation: [values(side) for side in relation.split(0.3, seed=2, by="i")],
    "split of classes": lambda relation: [values(side) for side in relation.split(0.3, seed=2, stratify=True)],
    "split by time": lambda relation: [values(side) for side in relation.split(by="v", after=0.1)],
    "rows": sides_of,
    "time": lambda relation: sides_of(relation, time="v"),
    "classes": lambda relation: sides_of(relation, stratified=True),
    "groups": lambda relation: sides_of(relation, groups="c"),
    "groups of another table": lambda relation: sides_of(relation, groups="v"),
}


@pytest.mark.parametrize("way", WAYS)
def test_splits_and_folds(urls: dict[str, str], way: str) -> None:
    """Whatever deals them, rows of both sides are the same, over tables with one shard and with two."""
    with both(urls) as federations:
        label = "b" if "classes" in way else "y"
        sql = SQL.format(label=label)
        sql = sql.replace("i.v", "CAST(i.v * 1000 AS INT) AS v") if way == "groups of another table" else sql
        here, there = (WAYS[way](fed.sql(sql, label=label)) for fed in federations)
        assert here == there


def test_classes_are_dealt_evenly(urls: dict[str, str]) -> None:
    """Over services too: the rows of a class, and all rows, differ by one at most between folds."""
    with both(urls) as (_, fed):
        relation = fed.sql(SQL.format(label="b"), label="b")
        sides = [test for _, test in Folding(relation, 4, 3, stratified=True).sides()]
        tables = [side.mapping.tables["s"] for side in sides]
        assert np.ptp([table.rows for table in tables]) <= 1
        firsts = [np.unique(table.index, return_index=True)[1] for table in tables]
        labels = [side.label()[first] for side, first in zip(sides, firsts, strict=True)]
        for kind in ("no", "yes", "maybe"):
            assert np.ptp([np.count_nonzero(each == kind) for each in labels]) <= 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_folds_of_target_encoding(urls: dict[str, str], shuffle: bool) -> None:
    """Rows to learn from are encoded as in one process: the matrix is the same, row by row."""
    steps = [
        tp.prep.TargetEncode(folds=4, seed=1, shuffle=shuffle, columns=["c"]),
        tp.prep.TargetEncode(folds=3, shuffle=shuffle, columns=["g"]),
    ]
    found = []
    with both(urls) as federations:
        for fed in federations:
            relation = fed.sql(SQL.format(label="y"), label="y", prep=tp.prep.Pipeline(steps))
            cells = relation.matrix() @ np.eye(4)
            found.append(cells[np.lexsort(np.round(cells, 9).T)])
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)


def test_scores(urls: dict[str, str]) -> None:
    """Cross-validation and searches have the scores of one process, by rows, groups and classes."""
    prep = tp.prep.Pipeline([tp.prep.TargetEncode(), tp.prep.Standardize()])
    found: list[list[float]] = []
    with both(urls) as federations:
        for fed in federations:
            relation = fed.sql(SQL.format(label="y"), label="y", prep=prep)
            classes = fed.sql(SQL.format(label="b"), label="b")
            learner = tp.LinearRegression(l2=0.01)
            scores = [
                tp.cross_validate(learner, relation, folds=3)["test_r2"],
                tp.cross_validate(learner, relation, folds=3, groups="c")["test_r2"],
                tp.cross_validate(tp.LogisticRegression(l2=0.1), classes, folds=3, stratified=True)["test_accuracy"],
                tp.GridSearch(learner, {"l2": [0.01, 1.0]}, folds=3, groups="c").fit(relation).results_["mean_test_r2"],
            ]
            found.append(np.concatenate(scores).tolist())
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_folds_count_as_splits(urls: dict[str, str], tmp_path: Path) -> None:
    """k folds count as log2(k) splits, rounded up, by groups as one more; the same folds again as none, also in another
    session, where row ids and digests are others.
    """
    limits = CallerLimits(max_splits=6)
    with both(urls, policy=Policy(limits=limits), state=tmp_path) as (_, fed):
        for select in ("s.c, s.x", "s.x, s.c, i.g", "i.v, s.c"):
            sql = f"SELECT {select}, s.y FROM sales s JOIN items i ON s.item = i.item"
            relation = fed.sql(sql, label="y")
            Folding(relation, 4, 3)  # 2
            Folding(relation, 5, 3, groups="c")  # 4
        with pytest.raises(tp.PrivacyError, match="used 6 distinct splits"):
            Folding(relation, 5, 4, groups="c")


@pytest.mark.parametrize("kind", [tp.SplitNNRegressor, tp.MLPRegressor])
def test_the_first_network(urls: dict[str, str], tmp_path: Path, kind: Any) -> None:
    """It follows from the seed and the tables, not from how many shards a table has, nor from who runs them."""
    pooled = write_party(tmp_path, "all", {"sales": pa.concat_tables([sales(0, 70), sales(1, 50)])})
    whole = {"goods": urls["goods"], "all": pooled}
    still: dict[Any, dict[str, Any]] = {
        tp.SplitNNRegressor: {"epochs": 1, "lr": 1e-12}, tp.MLPRegressor: {"rounds": 1, "solver": tp.SGD(lr=1e-12)},
    }  # fmt: skip
    found = []
    with both(urls) as federations:
        for fed in (*federations, tp.Federation(whole, wire="float64")):
            relation = fed.sql(SQL.format(label="y"), label="y")
            found.append(np.sort(kind(seed=4, **still[kind]).fit(relation).predict(relation)))
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=1e-6)
    assert np.ptp(found[0]) > 0.01
