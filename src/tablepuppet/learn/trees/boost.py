"""Gradient boosting over joined rows: a tree for each score follows the gradient of the loss at the scores so far.

The trees of a forest all follow that at constant scores, and are averaged.

Scores, gradients and the nodes of joined rows are columns of `JoinedRows`; leaves get their values here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes
from tablepuppet.learn.loss.growing import Quantile, Shares
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Loss, Squared
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.trees.grow import CURVATURES, NODES, SAMPLED, SLOPES, Grower, Growth, tree_of
from tablepuppet.learn.trees.model import TreeModel
from tablepuppet.learn.trees.splits import stored
from tablepuppet.learn.trees.tree import add_scores
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows

SUMMED = "sum of trees"


@dataclass(frozen=True)
class Sample:
    """The rows of one table that a round learns from: drawn anew in each."""

    alias: str
    draw: Callable[[int], NDArray[np.integer | np.bool_]]  # by round: how often each base row is taken


def first_scores(loss: JoinedLoss) -> Array:
    """The constant scores that boosting begins with, (outputs,)."""
    pointwise = loss.pointwise
    if isinstance(pointwise, Quantile):
        return np.array([loss.rows.at_once(_quantile_of_labels, pointwise.quantile)])
    return loss.best_constant()


def boost(
    model: TreeModel, loss: JoinedLoss, growth: Growth, rounds: int, seed: int, report: Callable[[Round], bool],
    sample: Sample | None = None, may_ask: Callable[[], bool] = lambda: True,
) -> tuple[Array, bool]:  # fmt: skip
    """Learn up to ``rounds`` rounds, as long as parties allow one level more (``may_ask``), after those that there are.

    The constant scores are returned, and whether it ended since nothing can be gained.
    """
    rows, outputs, stuck = loss.rows, loss.outputs, False
    constant = first_scores(loss) if model.done.constant is None else model.done.constant
    loss.set_constant(constant)
    loss.reserve()
    grower = Grower(
        model.lou, rows, model.name, model.encoding.id, model.tables, model.binned, _widths(model), growth,
        model.bits_of, sampled=sample is not None, may_ask=may_ask,
    )  # fmt: skip
    for column in (SLOPES, CURVATURES):
        rows.reserve(column, outputs)
    if model.is_mean:
        rows.reserve(SUMMED, outputs)
        rows.each(_begin_sum)
    if model.forest:
        bits, firsts = model.bits(model.lou.client)()
        add_scores(rows, model.forest, model.aliases, bits, firsts)
        if model.is_mean:
            rows.each(_move_sum, constant)
    for number in range(len(model.forest), rounds):
        if not may_ask():
            break
        if model.is_mean:
            loss.set_constant(constant)
        if sample is None:
            rows.each(_derive, loss.pointwise)
        else:
            rows.reserve(SAMPLED, 1)
            rows.each(_derive_sampled, loss.pointwise, sample.alias, sample.draw(number)[:, None])
        chosen, leaves = grower.grow(outputs, seed + number)
        won = grower.keep(chosen, model.splits_of)
        values = _leaf_values(loss, grower, leaves)
        places = {
            node.number: model.splits_of(alias) + place
            for alias, nodes in won.items()
            for place, node in enumerate(nodes)
        }
        trees = [
            tree_of(inner, own, places, values, list(model.aliases), grower.value, grower._nodes)
            for inner, own in zip(chosen, leaves, strict=True)
        ]
        shared = {
            alias: stored([node.split for node in won[alias] if node.split is not None], model.binned[alias])
            for alias in model.together
        }
        model.add(trees, shared)
        for output, own in enumerate(leaves):
            scores = np.array([values.get(n, 0.0) for n in range(len(own))])
            rows.each(_add_leaves, SUMMED if model.is_mean else SCORES, output, own, scores)
        if model.is_mean:
            rows.each(_take_mean, constant, number + 1)
        value = loss.evaluate()
        stuck = not any(chosen) and not model.is_mean
        if report(Round(number + 1, value, value, constant, converged=stuck)) or stuck:
            break
    return constant, stuck


def _widths(model: TreeModel) -> Mapping[str, int]:
    return {alias: model.encoding.columns(alias) for alias in model.tables}


def _leaf_values(loss: JoinedLoss, grower: Grower, leaves: list[Codes]) -> dict[int, float]:
    """The scores of leaves, by node, times the learning rate."""
    rate, found = grower.growth.learning_rate, dict[int, float]()
    for output, own in enumerate(leaves):
        numbers = np.unique(own[own >= 0])
        if isinstance(loss.pointwise, Quantile):
            made = loss.rows.at_once(_leaf_quantiles, output, own, loss.pointwise.quantile, grower.sampled)
            limits = [(grower._nodes[number].low, grower._nodes[number].high) for number in numbers]
            found |= {
                int(number): rate * float(np.clip(made.get(int(number), 0.0), *limit))
                for number, limit in zip(numbers, limits, strict=True)
            }
        else:
            found |= {int(number): rate * grower.value(grower._nodes[number]) for number in numbers}
    return found


# What is computed in a block of the joined rows


def _derive(block: Block, loss: Loss) -> None:
    found = loss.evaluate(block[SCORES], block.labels, weights=block.weights)
    gradient, hessian = found.gradient, found.hessian.diagonal()
    block.stored[SLOPES][:] = gradient[None] if gradient.ndim == 1 else gradient.T
    block.stored[CURVATURES][:] = hessian[None] if hessian.ndim == 1 else hessian.T


def _derive_sampled(block: Block, loss: Loss, alias: str, chosen: NDArray[np.integer | np.bool_]) -> None:
    _derive(block, loss)
    inside = block.taken(alias, chosen)[:, 0]
    for column in (SLOPES, CURVATURES):
        block.stored[column][:] *= inside
    block.stored[SAMPLED][:] = inside


def _begin_sum(block: Block) -> None:
    block.stored[SUMMED][:] = 0.0


def _move_sum(block: Block, constant: Array) -> None:
    block.stored[SUMMED][:] = block.stored[SCORES] - constant[:, None]


def _take_mean(block: Block, constant: Array, trees: int) -> None:
    np.divide(block.stored[SUMMED], trees, out=block.stored[SCORES])
    block.stored[SCORES][:] += constant[:, None]


def _add_leaves(block: Block, column: str, output: int, leaves: Codes, values: Array) -> None:
    scores = block.stored[column, output]
    scores += values.take(leaves.take(block.stored[NODES, output]))


def _quantile_of_labels(block: Block, quantile: float) -> float:
    return _weighted_quantile(block.labels.astype(np.float64), block.weights, quantile)


def _leaf_quantiles(block: Block, output: int, leaves: Codes, quantile: float, sampled: bool) -> dict[int, float]:
    """The quantile of what is left of labels, by leaf."""
    own = leaves.take(block.stored[NODES, output])
    left = block.labels - block.stored[SCORES, output]
    weights = block.weights
    if sampled:
        inside = block.stored[SAMPLED, 0] > 0
        own, left, weights = own[inside], left[inside], None if weights is None else weights[inside]
    order = np.argsort(own, kind="stable")
    numbers, starts = np.unique(own[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {
        int(number): _weighted_quantile(left[part], None if weights is None else weights[part], quantile)
        for number, part in zip(numbers, parts, strict=True)
    }


def _weighted_quantile(values: Array, weights: Array | None, quantile: float) -> float:
    """The quantile by scikit-learn's rules: NumPy's without weights, else the first value that has enough below it."""
    if weights is None:
        return float(np.quantile(values, quantile)) if len(values) else 0.0
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    if not len(values) or not below[-1]:
        return 0.0
    return float(values[order[min(int(np.searchsorted(below, quantile * below[-1])), len(values) - 1)]])


def constant_hessian(rows: JoinedRows, loss: Loss) -> bool:
    """Whether Hessians are 1 for every row, so that they need not be sent."""
    return isinstance(loss, Squared | Quantile | Shares) and rows.at_once(_has_no_weights)


def _has_no_weights(block: Block) -> bool:
    return block.weights is None
