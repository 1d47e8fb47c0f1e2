"""Losses: values by their definitions, derivatives by finite differences, proximal steps by a general minimiser."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from tablepuppet.learn.loss.losses import Logistic, Squared
from tablepuppet.learn.loss.softmax import Softmax
from tests.learn.labelled import Labelled

Array = NDArray[np.float64]
ROWS = 7


def squared() -> Labelled:
    return Labelled(Squared(), np.linspace(-2, 3, ROWS))


def logistic() -> Labelled:
    return Labelled(Logistic(), np.array([0, 1, 1, 0, 1, 0, 1], np.int8))


def softmax_two() -> Labelled:
    return Labelled(Softmax(2), np.array([0, 1, 1, 0, 1, 0, 1], np.int8))


def softmax_five() -> Labelled:
    return Labelled(Softmax(5), np.array([0, 4, 2, 3, 1, 4, 0]))


def logistic_noisy() -> Labelled:
    return Labelled(Logistic(keep=0.9), np.array([0, 1, 1, 0, 1, 0, 1]))


def softmax_noisy() -> Labelled:
    return Labelled(Softmax(3, keep=0.9), np.array([0, 2, 2, 1, 1, 1, 0]))


LOSSES: list[Callable[[], Labelled]] = [squared, logistic, softmax_two, softmax_five, logistic_noisy, softmax_noisy]
every_loss = pytest.mark.parametrize("make", LOSSES)


def scores_for(loss: Labelled, seed: int = 0, size: float = 2.0) -> Array:
    shape = (ROWS,) if loss.outputs == 1 else (ROWS, loss.outputs)
    return np.random.default_rng(seed).normal(scale=size, size=shape)


def proximal(loss: Labelled, target: Array, rho: float, start: Array) -> Array:
    """The z with the least loss(z) + rho / 2 |z - target|^2."""
    pulled = target - start
    loss.loss.proximal_step(start, pulled, rho, loss.labels)
    return target - pulled


def test_squared_value() -> None:
    """Half the mean squared error."""
    assert Squared().value(np.array([0.0, 4.0]), np.array([1.0, 2.0])) == pytest.approx((1 + 4) / 4)


def test_log_loss_values() -> None:
    """Minus the mean log probability of the label; two classes by softmax are the logistic loss."""
    scores, labels = np.array([0.3, -1.2, 2.0]), np.array([1, 0, 0])
    chance = 1 / (1 + np.exp(-scores))
    expected = -np.mean(np.log(np.where(labels == 1, chance, 1 - chance)))
    assert Logistic().value(scores, labels) == pytest.approx(expected, rel=1e-14)
    wide = np.stack([np.zeros(3), scores], axis=1)
    assert Softmax(2).value(wide, labels) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("classes", [2, 3])
def test_rows_that_are_right_by_far_add_nothing(classes: int) -> None:
    """Beside rows whose scores are right and as large as 1e9, the loss of the others keeps its digits."""
    rng = np.random.default_rng(0)
    labels, near = rng.integers(0, classes, 500), rng.normal(size=(500, classes))
    near[1, labels[1]] = -40.0  # a row that is wrong by far
    scores = near.copy()
    scores[5:] += 1e9 * rng.random((495, 1)) * np.eye(classes)[labels[5:]]
    if classes == 2:
        near, scores = near[:, 1] - near[:, 0], scores[:, 1] - scores[:, 0]
    loss = Logistic() if classes == 2 else Softmax(3)
    for weights in (None, np.ones(500)):
        some = loss.evaluate(near[:5], labels[:5], weights=None if weights is None else weights[:5]).value
        assert loss.evaluate(scores, labels, weights=weights).value == pytest.approx(some, rel=1e-14)


@every_loss
def test_gradient_is_the_slope_of_the_value(make: Callable[[], Labelled]) -> None:
    """By central differences, in every score."""
    loss = make()
    scores = scores_for(loss)
    gradient = loss.gradient(scores)
    for place in np.ndindex(scores.shape):
        away = np.zeros_like(scores)
        away[place] = 1e-5
        slope = (loss.value(scores + away) - loss.value(scores - away)) / 2e-5
        assert gradient[place] == pytest.approx(slope, abs=1e-9)


@every_loss
def test_hessian_is_the_slope_of_the_gradient(make: Callable[[], Labelled]) -> None:
    """Products with directions, form on constants and mean all come from the matrix of second differences."""
    loss = make()
    scores = scores_for(loss)
    hessian, size = loss.evaluate(scores).hessian, scores.size
    units = np.eye(size).reshape(size, *scores.shape)
    rows = [loss.gradient(scores + 1e-5 * unit) - loss.gradient(scores - 1e-5 * unit) for unit in units]
    matrix = np.array(rows).reshape(size, size) / 2e-5
    directions = np.stack([scores_for(loss, seed=seed).ravel() for seed in (1, 2)])  # (2, rows * outputs)
    images = directions.reshape(2, ROWS, loss.outputs).swapaxes(1, 2)
    turned = hessian.times(images).swapaxes(1, 2).reshape(2, size)
    np.testing.assert_allclose(turned, ROWS * directions @ matrix, atol=1e-8)
    constants = np.kron(np.ones((ROWS, 1)), np.eye(loss.outputs))  # (rows * outputs, outputs)
    np.testing.assert_allclose(hessian.on_constants(), ROWS * constants.T @ matrix @ constants, atol=1e-8)
    assert hessian.trace() == pytest.approx(ROWS * np.trace(matrix), abs=1e-8)
    assert np.linalg.eigvalsh(matrix).max() * ROWS <= loss.loss.most_curvature + 1e-9


@every_loss
def test_derivatives_stay_finite_far_out(make: Callable[[], Labelled]) -> None:
    """At scores of 1e4 nothing overflows, and the loss is what its linear part says."""
    loss = make()
    scores = scores_for(loss, size=1e4)
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(loss.value(scores))
        assert np.isfinite(loss.gradient(scores)).all()
        assert np.isfinite(loss.evaluate(scores).hessian.on_constants()).all()


@every_loss
def test_best_constant_has_no_slope(make: Callable[[], Labelled]) -> None:
    """At the best constant the gradient adds up to zero, in every output."""
    loss = make()
    constant = loss.best_constant()
    assert constant.shape == (loss.outputs,)
    scores = np.zeros(ROWS) + constant if loss.outputs == 1 else np.zeros((ROWS, loss.outputs)) + constant
    np.testing.assert_allclose(loss.gradient(scores).sum(axis=0), 0, atol=1e-14)
    if loss.outputs > 1:
        assert constant.sum() == pytest.approx(0, abs=1e-12)


def test_best_constant_without_a_class() -> None:
    """A class that no row has gets a score that is finite and very low."""
    constant = Labelled(Softmax(3), np.array([0, 2, 2])).best_constant()
    assert np.isfinite(constant).all()
    assert constant[1] < -100


@every_loss
def test_at_is_the_loss_of_some_rows(make: Callable[[], Labelled]) -> None:
    """Losses of parts, weighted by their rows, add up to the whole."""
    loss = make()
    scores, order = scores_for(loss), np.random.default_rng(2).permutation(ROWS)
    parts = [order[:3], order[3:]]
    total = sum(loss.at(part).value(scores[part]) * len(part) for part in parts) / ROWS
    assert total == pytest.approx(loss.value(scores), rel=1e-14)
    for part in parts:
        np.testing.assert_allclose(
            loss.at(part).gradient(scores[part]) * len(part), loss.gradient(scores)[part] * ROWS, atol=1e-14
        )


@pytest.mark.parametrize("rho", [1e-3, 0.1, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("size", [0.5, 50.0])
@every_loss
def test_proximal_is_a_minimum(make: Callable[[], Labelled], rho: float, size: float) -> None:
    """Row by row the slope of loss + rho / 2 |z - target|^2 vanishes, from a start at the target or far from it."""
    loss = make()
    target = scores_for(loss, seed=3, size=size)
    for start in (target, np.zeros_like(target), scores_for(loss, seed=4, size=size)):
        found = proximal(loss, target, rho, start)
        slope = loss.gradient(found) * ROWS + rho * (found - target)
        np.testing.assert_allclose(slope, 0, atol=1e-10 * max(1.0, rho * size))


@every_loss
def test_proximal_equals_a_general_minimiser(make: Callable[[], Labelled]) -> None:
    """The same point that scipy finds, for each row alone."""
    loss, rho = make(), 0.3
    target = scores_for(loss, seed=3)
    found = proximal(loss, target, rho, np.zeros_like(target))
    for row in range(ROWS):
        part, goal = loss.at(np.array([row])), target[row]

        def height(z: Array, part: Labelled = part, goal: Array = goal) -> float:
            scores = np.reshape(z, (1,) if part.outputs == 1 else (1, -1))
            return part.value(scores) + rho / 2 * float(np.sum((z - goal) ** 2))

        if loss.outputs == 1:
            best = minimize_scalar(height, bracket=(goal - 5, goal + 5), tol=1e-12).x
        else:
            best = minimize(height, goal, method="BFGS", options={"gtol": 1e-9}).x
        np.testing.assert_allclose(found[row], best, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_mean_over_noise_is_the_true_loss(classes: int) -> None:
    """Over all noisy labels, each as likely as it is, the corrected loss is that of the true label."""
    keep, true = 0.7, np.array([1])
    scores = np.array([0.8]) if classes == 2 else np.array([[0.8, -0.5, 0.2]])

    def loss(label: int, keep: float) -> float:
        labels = np.array([label])
        return (Logistic(keep) if classes == 2 else Softmax(3, keep)).value(scores, labels)

    chances = [keep if label == true[0] else (1 - keep) / (classes - 1) for label in range(classes)]
    mean = sum(chance * loss(label, keep) for label, chance in enumerate(chances))
    assert mean == pytest.approx(loss(true[0], 1.0), rel=1e-12)


@every_loss
def test_what_is_kept_gives_the_same_derivatives(make: Callable[[], Labelled]) -> None:
    """Gradient, Hessian and proximal steps from what an evaluation kept are those of the evaluation, bit for bit."""
    case = make()
    scores, kept = scores_for(case), np.empty((case.loss.kept, 2 * ROWS))[:, :ROWS]
    made = case.loss.evaluate(scores, case.labels, kept)
    again = case.loss.evaluated(scores, case.labels, kept)
    np.testing.assert_array_equal(again.gradient, made.gradient)
    np.testing.assert_array_equal(again.hessian.on_constants(), made.hessian.on_constants())
    steps = [np.ones_like(scores) for _ in range(2)]
    for away, known in zip(steps, (None, again), strict=True):
        case.loss.proximal_step(scores, away, 3.0, case.labels, known)
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-12)
