"""Trees in XGBoost's JSON, where policies release thresholds; categories are the codes that parties know them by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.learn.trees.splits import categories_of
from tablepuppet.learn.trees.tree import Forest, Tree

VERSION = [3, 0, 0]  # of XGBoost, whose format it is
NO_PARENT = 2**31 - 1


@dataclass(frozen=True)
class Columns:
    """The columns of all tables in the order of the exported model."""

    names: Sequence[str]
    sizes: Sequence[int]  # codes of categories; 0 for numbers
    first: Mapping[str, int]  # place of a table's first column


def xgboost_json(
    forest: Forest, aliases: Sequence[str], thetas: Mapping[str, Array], columns: Columns, objective: str,
    constant: Array,
) -> str:  # fmt: skip
    """The model as XGBoost's JSON. The constant is in the leaves of the first trees, since XGBoost has one for all."""
    outputs = len(constant)
    listed = [tree for trees in forest for tree in trees] or [_leaf()] * outputs
    trees = [
        _tree(number, tree, aliases, thetas, columns, float(constant[number]) if number < outputs else 0.0)
        for number, tree in enumerate(listed)
    ]
    margin_of_zero = {"binary:logistic": 0.5, "multi:softprob": 0.5, "count:poisson": 1.0, "reg:gamma": 1.0}
    types = ["c" if size else "float" for size in columns.sizes]
    booster = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, outputs)),
        "tree_info": [number % outputs for number in range(len(trees))],
        "trees": trees,
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
    }
    learner = {
        "attributes": {},
        "feature_names": list(columns.names),
        "feature_types": types,
        "gradient_booster": {"model": booster, "name": "gbtree"},
        "learner_model_param": {
            "base_score": f"{margin_of_zero.get(objective, 0.0):E}",
            "boost_from_average": "0",
            "num_class": str(outputs if outputs > 1 else 0),
            "num_feature": str(len(columns.names)),
            "num_target": "1",
        },
        "objective": {"name": objective} | _parameters(objective, outputs),
    }
    return json.dumps({"learner": learner, "version": VERSION})


def _leaf() -> Tree:
    none, zero = np.array([-1], np.int32), np.zeros(1)
    return Tree(none, none, none, none, none, zero, zero, zero)


def _parameters(objective: str, outputs: int) -> dict[str, Any]:
    if objective == "multi:softprob":
        return {"softmax_multiclass_param": {"num_class": str(outputs)}}
    if objective == "count:poisson":
        return {"poisson_regression_param": {"max_delta_step": "0.7"}}
    return {"reg_loss_param": {"scale_pos_weight": "1"}}


def _tree(
    number: int, tree: Tree, aliases: Sequence[str], thetas: Mapping[str, Array], columns: Columns, constant: float
) -> dict[str, Any]:
    """One tree: numbers below a threshold go left, categories that are listed go right."""
    tree, nodes = _with_neighbours(tree), len(tree.tables)
    parents = np.full(nodes, NO_PARENT)
    parents[tree.left[tree.inner]] = parents[tree.right[tree.inner]] = tree.inner
    conditions, indices = np.where(tree.tables < 0, tree.values + constant, 0.0), np.zeros(nodes, int)
    default_left, kinds = np.zeros(nodes, int), np.zeros(nodes, int)
    categories, segments, sizes, of_nodes = list[int](), list[int](), list[int](), list[int]()
    for node in tree.inner:
        alias = aliases[tree.tables[node]]
        row = thetas[alias][tree.splits[node]]
        indices[node] = columns.first[alias] + tree.columns[node]
        default_left[node] = int(row[2])
        if row[3]:
            size = columns.sizes[indices[node]]
            right = np.setdiff1d(np.arange(size), categories_of(row))
            right = right if len(right) else np.array([size])  # a list may not be empty: a code that no row has
            kinds[node] = 1
            of_nodes.append(int(node))
            segments.append(len(categories))
            sizes.append(len(right))
            categories += right.tolist()
        else:
            conditions[node] = _above(float(row[1]))
    return {
        "base_weights": tree.values.tolist(),
        "categories": categories, "categories_nodes": of_nodes, "categories_segments": segments,
        "categories_sizes": sizes,
        "default_left": default_left.tolist(), "id": number,
        "left_children": tree.left.tolist(), "right_children": tree.right.tolist(), "parents": parents.tolist(),
        "loss_changes": tree.gains.tolist(), "sum_hessian": tree.counts.tolist(),
        "split_conditions": conditions.tolist(), "split_indices": indices.tolist(), "split_type": kinds.tolist(),
        "tree_param": {
            "num_deleted": "0", "num_feature": str(len(columns.names)), "num_nodes": str(nodes),
            "size_leaf_vector": "1",
        },
    }  # fmt: skip


def _with_neighbours(tree: Tree) -> Tree:
    """The tree with its nodes in another order: XGBoost takes the node after a left child for the right one."""
    order = [0]
    for node in order:
        order += [int(tree.left[node]), int(tree.right[node])] if tree.tables[node] >= 0 else []
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    moved = {each.name: getattr(tree, each.name)[order] for each in fields(tree)}
    for side in ("left", "right"):
        moved[side] = np.where(moved["tables"] >= 0, place[moved[side]], -1)
    return Tree(**moved)


def _above(threshold: float) -> float:
    """The least number of XGBoost's precision that is above a threshold: it sends left what is less.

    >>> _above(0.5) > 0.5, np.float32(_above(0.5)) == np.nextafter(np.float32(0.5), np.float32(1))
    (True, np.True_)
    """
    with np.errstate(over="ignore"):
        rounded = np.float32(threshold)
        rounded = rounded if rounded > threshold else np.nextafter(rounded, np.float32(np.inf))
    return float(rounded) if np.isfinite(rounded) else float(np.copysign(np.finfo(np.float32).max, threshold))
