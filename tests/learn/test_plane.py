"""The search of the plane: what it keeps of earlier directions is right, and it ends at the lowest point."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from tablepuppet import pieces
from tablepuppet.learn.linear.plane import DIRECTIONS, FEWEST_BLOCKS, Directions, HessianPairs, Plane
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Logistic, Squared
from tablepuppet.learn.loss.softmax import Softmax
from tablepuppet.mapping.joined_rows import Column, JoinedRows
from tests.learn.labelled import Labelled

Array = NDArray[np.float64]
ROWS = 400


def write(rows: JoinedRows, column: Column, values: Array) -> None:
    rows.each(lambda block: block[column].__setitem__(slice(None), values[block.part]))


def mix(rows: JoinedRows, directions: Directions, weights: Array) -> None:
    rows.each(directions.in_blocks.mix, weights)


def made(rows: JoinedRows, count: int, seed: int = 0) -> Directions:
    directions, rng = Directions(rows, count), np.random.default_rng(seed)
    for _ in range(count):
        write(rows, directions.new(), rng.normal(size=(ROWS,) if rows.outputs == 1 else (ROWS, rows.outputs)))
        mix(rows, directions, np.eye(len(directions))[0])
        directions.order[0] = directions.spare
    return directions


def losses() -> list[Labelled]:
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 3, ROWS)
    return [
        Labelled(Squared(), rng.normal(size=ROWS)),
        Labelled(Logistic(), (classes > 1).astype(np.int8)),
        Labelled(Softmax(3), classes),
    ]


every_loss = pytest.mark.parametrize("labelled", losses(), ids=["squared", "logistic", "softmax"])


def at_constant(labelled: Labelled) -> JoinedLoss:
    loss = labelled.joined()
    loss.set_constant(loss.best_constant())
    return loss


def slots_of(rows: JoinedRows) -> Array:
    return np.concatenate(rows.each(lambda block: block.stored[DIRECTIONS]), axis=2)


@every_loss
def test_lowest_point(labelled: Labelled, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other point of the plane is lower, also where only some blocks of the rows tell the first Hessian."""
    monkeypatch.setattr(pieces.pieces, "__defaults__", (1, 6))
    loss = at_constant(labelled)
    assert loss.rows.blocks > 2 * FEWEST_BLOCKS
    directions = made(loss.rows, 3)
    plane = Plane(loss, directions, 1e-3, np.diag([1.0, 2.0, 3.0, 4.0]))
    plane.at(np.zeros(3 + loss.outputs), pairs=HessianPairs(directions.all))
    _, end = plane.lowest()

    def objective(point: Array) -> tuple[float, Array]:
        place = plane.at(point)
        return place.objective, place.slope

    best = minimize(objective, end.weights, jac=True, method="BFGS").fun
    assert end.objective == pytest.approx(best, rel=1e-3)


@every_loss
def test_known_evaluations_change_nothing(labelled: Labelled) -> None:
    """A search from scores whose evaluation the rows keep ends where one without it ends, bit for bit."""
    ends = []
    for is_known in (False, True):
        loss = at_constant(labelled)
        known = loss.evaluate() if is_known else None
        plane = Plane(loss, made(loss.rows, 2), 1e-3, np.diag([1.0, 2.0, 3.0]))
        ends.append(plane.lowest(known)[1])
    np.testing.assert_array_equal(ends[0].weights, ends[1].weights)
    assert ends[0].objective == ends[1].objective


def test_products_of_steps_are_kept() -> None:
    """After many steps products, of which only the newest's were computed each time, are those of the directions."""
    rng, loss = np.random.default_rng(2), at_constant(losses()[0])
    directions = Directions(loss.rows, 4)
    for _ in range(9):
        write(loss.rows, directions.new(), rng.normal(size=ROWS))
        known = len(directions)
        plane = Plane(loss, directions, 0.0, np.eye(known + 1))
        plane.at(np.zeros(known + 1), pairs=HessianPairs(directions.fresh))
        found = np.vstack([slots_of(loss.rows)[directions.order, 0], np.ones(ROWS)])
        np.testing.assert_allclose(directions.ordered_products(), found @ found.T / ROWS, atol=1e-13)
        weights = rng.normal(size=known)
        mix(loss.rows, directions, weights)
        directions.keep_step(weights)


def test_a_small_difference_is_computed_anew() -> None:
    """Products of a step that large directions nearly cancel in are not taken from theirs."""
    rng, loss = np.random.default_rng(3), at_constant(losses()[0])
    directions, first = Directions(loss.rows, 2), rng.normal(size=ROWS)
    for values in (first, first + 1e-7 * rng.normal(size=ROWS)):
        write(loss.rows, directions.new(), values)
        plane = Plane(loss, directions, 0.0, np.eye(len(directions) + 1))
        plane.at(np.zeros(len(directions) + 1), pairs=HessianPairs(directions.fresh))
        weights = np.array([1.0, -1.0])[: len(directions)]
        mix(loss.rows, directions, weights)
        directions.keep_step(weights)
    assert directions.unknown == 2


def test_memory_is_used_again() -> None:
    """With all slots used, the newest takes that of the oldest, and directions keep their values and their order."""
    rows = losses()[2].joined().rows
    directions = Directions(rows, 3)
    for number in range(8):
        write(rows, directions.new(), np.full((ROWS, 3), float(number)))
        weights = np.eye(len(directions))[0]
        mix(rows, directions, weights)
        directions.keep_step(weights)
        slots = slots_of(rows)
        assert [slots[slot, 0, 0] for slot in directions.order] == list(range(number, max(number - 3, -1), -1))


@pytest.mark.parametrize("positive", [0.7, 0.9])
def test_rare_rows_do_not_lead_far_astray(positive: float) -> None:
    """Without a penalty, a first step that overshoots is shortened: the objective falls."""
    rows, rng = 20_000, np.random.default_rng(5)
    rare = rng.random(rows) < 0.01
    labels = (rng.random(rows) < np.where(rare, positive, 0.003)).astype(np.int8)
    loss = at_constant(Labelled(Logistic(), labels))
    directions = Directions(loss.rows, 1)
    write(loss.rows, directions.new(), rare.astype(float))
    begin, end = Plane(loss, directions, 0.0, np.eye(2)).lowest()
    assert end.objective < begin.objective
