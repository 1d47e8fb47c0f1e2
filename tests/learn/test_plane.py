"""The search of the plane: what it keeps of earlier images is right, and it ends at the lowest point."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from tablepuppet import pieces
from tablepuppet.learn.linear.images import Images
from tablepuppet.learn.linear.plane import FEWEST_PIECES, Bend, Plane
from tablepuppet.learn.loss.logistic import Logistic
from tablepuppet.learn.loss.losses import Loss, Squared
from tablepuppet.learn.loss.softmax import Softmax

Array = NDArray[np.float64]
ROWS = 400


def made(outputs: int, directions: int, seed: int = 0) -> Images:
    images, rng = Images.of(directions, outputs, ROWS), np.random.default_rng(seed)
    for _ in range(directions):
        images.new()[:] = rng.normal(size=(ROWS,) if outputs == 1 else (ROWS, outputs))
        images.mix(slice(0, ROWS), np.eye(len(images))[0])
        images.order[0] = images.spare
    return images


def losses() -> list[Loss]:
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 3, ROWS)
    return [Squared(rng.normal(size=ROWS)), Logistic((classes > 1).astype(float)), Softmax(classes, 3)]


every_loss = pytest.mark.parametrize("loss", losses(), ids=["squared", "logistic", "softmax"])


def scores_of(loss: Loss) -> Array:
    return np.zeros(ROWS if loss.outputs == 1 else (ROWS, loss.outputs), order="F") + loss.best_constant()


@every_loss
def test_lowest_point(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other point of the plane is lower, also where only some pieces of the rows tell how the loss bends first."""
    monkeypatch.setattr(pieces.pieces, "__defaults__", (1, 6))
    assert len(pieces.pieces(ROWS, loss.outputs)) > 2 * FEWEST_PIECES
    images, scores = made(loss.outputs, 3), scores_of(loss)
    plane = Plane(loss, scores, images, 1e-3, np.diag([1.0, 2.0, 3.0, 4.0]))
    plane.at(np.zeros(3 + loss.outputs), bend=Bend(images.all))
    _, end = plane.lowest({})

    def objective(point: Array) -> tuple[float, Array]:
        place = plane.at(point)
        return place.objective, place.slope

    best = minimize(objective, end.point, jac=True, method="BFGS").fun
    assert end.objective == pytest.approx(best, rel=1e-3)


def test_products_of_steps_are_kept() -> None:
    """After many steps products, of which only the newest's were found each time, are those of the images."""
    images, rng, loss = Images.of(4, 1, ROWS), np.random.default_rng(2), losses()[0]
    scores = scores_of(loss)
    for _ in range(9):
        images.new()[:] = rng.normal(size=ROWS)
        known = len(images)
        plane = Plane(loss, scores, images, 0.0, np.eye(known + 1))
        plane.at(np.zeros(known + 1), bend=Bend(images.fresh))
        found = np.vstack([images.slots[images.order, 0], np.ones(ROWS)])
        np.testing.assert_allclose(images.ordered_products(), found @ found.T / ROWS, atol=1e-13)
        weights = rng.normal(size=known)
        images.mix(slice(0, ROWS), weights)
        images.keep_step(weights)


def test_a_small_difference_is_found_anew() -> None:
    """Products of a step that large images nearly cancel in are not taken from theirs."""
    images, rng, loss = Images.of(2, 1, ROWS), np.random.default_rng(3), losses()[0]
    first = rng.normal(size=ROWS)
    for image in (first, first + 1e-7 * rng.normal(size=ROWS)):
        images.new()[:] = image
        plane = Plane(loss, scores_of(loss), images, 0.0, np.eye(len(images) + 1))
        plane.at(np.zeros(len(images) + 1), bend=Bend(images.fresh))
        weights = np.array([1.0, -1.0])[: len(images)]
        images.mix(slice(0, ROWS), weights)
        images.keep_step(weights)
    assert images.unknown == 2


def test_memory_is_used_again() -> None:
    """With all slots used, the newest takes that of the oldest, and images keep their values and their order."""
    images = Images.of(3, 2, ROWS)
    for number in range(8):
        images.new()[:] = number
        weights = np.eye(len(images))[0]
        images.mix(slice(0, ROWS), weights)
        images.keep_step(weights)
        assert [images.slots[slot, 0, 0] for slot in images.order] == list(range(number, max(number - 3, -1), -1))


@pytest.mark.parametrize("positive", [0.7, 0.9])
def test_rare_rows_do_not_lead_far_astray(positive: float) -> None:
    """Without a penalty, a first step that overshoots is shortened: the objective falls."""
    rows, rng = 20_000, np.random.default_rng(5)
    rare = rng.random(rows) < 0.01
    labels = (rng.random(rows) < np.where(rare, positive, 0.003)).astype(float)
    loss, images = Logistic(labels), Images.of(1, 1, rows)
    images.new()[:] = rare
    plane = Plane(loss, np.zeros(rows) + loss.best_constant(), images, 0.0, np.eye(2))
    begin, end = plane.lowest({})
    assert end.objective < begin.objective
