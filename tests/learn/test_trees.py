"""Boosted trees over relations: split by split those of a plain reference on the materialised join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

import tablepuppet as tp
from tablepuppet.learn.trees.model import TreeModel
from tablepuppet.learn.trees.splits import LEAST_CATEGORY, LEAST_HESSIAN, SMOOTH, SplitRule, best_split
from tablepuppet.learn.trees.tree import Tree
from tests.learn.materialised import JOIN, shop
from tests.relations import Parties, federation, materialised

Array = NDArray[np.float64]
COLUMNS = ("o.price", "o.quantity", "i.weight", "i.height", "i.kind", "i.colour", "c.credit", "c.age")
SELECT = f"SELECT {', '.join(COLUMNS)}, o.{{0}} {JOIN}"
UNION = f"{SELECT} WHERE o.quantity > 2 UNION ALL {SELECT} WHERE o.price > 6"


class Reference:
    """The joined rows as columns, and the best gain of any node, by loops over columns and bins."""

    def __init__(self, relation: tp.Relation, parties: Parties, model: Any, bins: int):
        self.columns = {
            name: materialised(relation, parties, *name.split(".")) for name in COLUMNS
        }
        self.labels = np.array(materialised(relation, parties, "o", relation.query.label.name))  # type: ignore[union-attr]
        self.categories = {"i.kind", "i.colour"}
        self.cuts: dict[str, Array] = {}
        trees: TreeModel = model._model
        for name in COLUMNS:
            if name in self.categories:
                continue
            alias = name.split(".")[0]
            if alias in trees.binned:
                names = [each.column.qualified for each in model.encoding_.numbers[alias]]
                self.cuts[name] = trees.binned[alias].cuts[names.index(name)]
                continue
            values = np.sort([value for value in self.columns[name] if value is not None])
            distinct = np.unique(values)
            below = distinct[:-1]
            if len(distinct) > bins:
                wanted = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
                below = np.intersect1d(wanted, distinct[:-1])
            after = distinct[np.searchsorted(distinct, below) + 1]
            self.cuts[name] = (below + after) / 2

    def best(self, name: str, inside: NDArray[np.bool_], slopes: Array, bends: Array, rule: SplitRule) -> float:
        """The largest gain by one column of the rows of a node."""
        values = [self.columns[name][row] for row in np.flatnonzero(inside)]
        sums = np.stack([slopes[inside], bends[inside], np.ones(len(values))])
        missing = np.array([value is None for value in values])
        groups: list[NDArray[np.bool_]] = []  # left sides, missing values apart
        if name in self.categories:
            found = {value: np.array([each == value for each in values]) for value in {*values} - {None}}
            kept = {value: mask for value, mask in found.items() if mask.sum() >= LEAST_CATEGORY}
            missing = ~np.logical_or.reduce([np.zeros(len(values), bool), *kept.values()])
            key = {value: sums[0, mask].sum() / (sums[1, mask].sum() + SMOOTH) for value, mask in kept.items()}
            order = sorted(kept, key=key.__getitem__)
            groups = [np.logical_or.reduce([kept[each] for each in order[: n + 1]]) for n in range(len(order))]
        else:
            numbers = np.array([np.nan if value is None else float(value) for value in values])
            groups = [numbers <= cut for cut in [*self.cuts[name], np.inf]]
        gain = -np.inf
        for group in groups:
            for left in (group, group | missing):
                sides = [sums[:, left].sum(axis=1), sums[:, ~left].sum(axis=1)]
                if all(side[2] >= rule.min_leaf and side[1] >= LEAST_HESSIAN for side in sides):
                    whole = sums.sum(axis=1)
                    parts = [side[0] ** 2 / (side[1] + rule.l2) for side in (*sides, whole)]
                    gain = max(gain, parts[0] + parts[1] - parts[2])
        return gain


def nodes_of(tree: Tree, model: Any, relation: tp.Relation) -> list[NDArray[np.bool_]]:
    """Which joined rows are in each node, by the bits that parties answer with."""
    bits, _ = model._model.bits(relation.client)()
    inside = [np.zeros(len(relation), bool) for _ in tree.tables]
    inside[0][:] = True
    for node in tree.inner:
        alias, split = model._model.aliases[tree.tables[node]], int(tree.splits[node])
        left = (bits[alias][:, split >> 3] >> (split & 7) & 1).astype(bool)
        at = relation.joined_rows.mapping.gather(alias, left)
        inside[tree.left[node]], inside[tree.right[node]] = inside[node] & at, inside[node] & ~at
    return inside


def check(model: Any, relation: tp.Relation, parties: Parties, rule: SplitRule, bins: int) -> None:
    """Every split has the largest gain of all columns and bins, nodes are split best first, leaves have their values."""
    known = Reference(relation, parties, model, bins)
    outputs, rate = len(model.intercept_), model.learning_rate
    scores = np.tile(model.intercept_, (len(relation), 1))
    for trees in model._model.forest:
        slopes, bends = derivatives(model, known.labels, scores)
        for output, tree in enumerate(trees):
            inside = nodes_of(tree, model, relation)
            best = [
                max(known.best(name, here, slopes[:, output], bends[:, output], rule) for name in COLUMNS)
                for here in inside
            ]
            depth = np.zeros(len(inside), int)
            for node in tree.inner:
                depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
                assert tree.gains[node] == pytest.approx(best[node], rel=1e-9)
            for node, here in enumerate(inside):
                assert tree.counts[node] == here.sum()
            parent = {int(child): int(n) for n in tree.inner for child in (tree.left[n], tree.right[n])}
            for leaf in tree.leaves:
                here = inside[leaf]
                value = -slopes[here, output].sum() / (bends[here, output].sum() + rule.l2)
                assert tree.values[leaf] == pytest.approx(rate * value, rel=1e-9, abs=1e-12)
                scores[here, output] += tree.values[leaf]
                if model.max_depth is None or depth[leaf] < model.max_depth:
                    later = tree.gains[[n for n in tree.inner if n > parent.get(int(leaf), -1)]]
                    full = model.max_leaf_nodes is not None and len(tree.leaves) == model.max_leaf_nodes
                    assert best[leaf] <= (later.min(initial=np.inf) if full else 0.0) + 1e-9
    np.testing.assert_allclose(model._scores(relation).reshape(scores.shape), scores, rtol=1e-9)
    assert outputs == scores.shape[1]


def derivatives(model: Any, labels: NDArray[Any], scores: Array) -> tuple[Array, Array]:
    """Gradient and Hessian of each row and score."""
    if not hasattr(model, "classes_"):
        return (scores[:, 0] - labels)[:, None], np.ones_like(scores)
    numbers = np.searchsorted(model.classes_, labels)
    chance = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    wanted = (numbers == 1)[:, None] if scores.shape[1] == 1 else np.eye(scores.shape[1])[numbers]
    return chance - wanted, chance * (1 - chance)


@pytest.mark.parametrize(
    ("shards", "sql", "label", "settings"),
    [
        (1, SELECT, "paid", {"max_leaf_nodes": 9}),
        (1, UNION, "grade", {"max_depth": 2}),
        (3, SELECT, "returned", {"max_leaf_nodes": 5, "l2_regularization": 2.0}),
        (3, UNION, "paid", {"max_leaf_nodes": None, "max_depth": 3}),
    ],
)
def test_trees_are_those_of_the_joined_table(
    tmp_path: Path, shards: int, sql: str, label: str, settings: dict[str, Any]
) -> None:
    """Over duplicates, shards, unions, missing values and categories, for numbers, two and several classes."""
    parties = shop(shards, together=shards > 1, orders=240)
    fed = federation(tmp_path, parties, wire="float64")
    relation = fed.sql(sql.format(label), label=label)
    made: Any = tp.GradientBoostingRegressor if label == "paid" else tp.GradientBoostingClassifier
    model = made(max_iter=3, max_bins=12, min_samples_leaf=7, **settings).fit(relation)
    check(model, relation, parties, SplitRule(settings.get("l2_regularization", 0.0), 7, 0.0), 12)
    importances = model.feature_importances_
    assert set(importances) == set(COLUMNS)
    assert sum(importances.values()) == pytest.approx(1.0)
    assert all(node["column"] is None or node["column"] in COLUMNS for tree in model.trees_ for node in tree)
    before = model.predict(relation)
    model.save(tmp_path / "model")
    again: Any = tp.load(tmp_path / "model", fed)
    np.testing.assert_array_equal(again.predict(relation), before)
    assert again.feature_importances_ == importances
    again.save(tmp_path / "again")
    assert tp.load(tmp_path / "again", fed).predict(relation).tolist() == before.tolist()
