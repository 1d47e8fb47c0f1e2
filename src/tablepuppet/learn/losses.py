"""Losses over joined rows, as the coordinator computes them: values, gradients, curvature, proximal steps.

Scores are (joined_rows,) for one output, (joined_rows, classes) for softmax. Means are over joined rows, so
gradients carry the factor 1 / joined_rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, wrightomega

from tablepuppet.privacy.label_correction import backward_targets, inverse_transition, true_shares

Scores = NDArray[np.float64]
Rows = NDArray[np.intp] | slice
Images = NDArray[np.float64]  # (directions, outputs, joined_rows)
NEWTON_STEPS = 30
LOGSUMEXP_STEPS = 200
LOGS_AT_ONCE = 32  # numbers up to 2 ** 32 whose product is still a number


class Loss(Protocol):
    """A convex loss of scores against labels."""

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        ...

    @property
    def labels(self) -> NDArray[Any]:
        """Numbers, or class numbers, of the joined rows."""
        ...

    def value(self, scores: Scores) -> float:
        """The mean loss."""
        ...

    def gradient(self, scores: Scores) -> Scores:
        """The gradient of the mean loss by scores."""
        ...

    def hessian(self, scores: Scores) -> Hessian:
        """The second derivative of the mean loss at scores."""
        ...

    def proximal(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """argmin over z of loss(z) + rho / 2 * |z - target|^2, row by row (Eq. 7); ``look`` is that at the start."""
        ...

    def pull(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """How far the loss pulls scores from their target: target - proximal(target)."""
        ...

    def best_constant(self) -> NDArray[np.float64]:
        """The constant scores, (outputs,), with the least loss."""
        ...

    def look(self, scores: Scores) -> Look:
        """Value, gradient and hessian from one pass."""
        ...

    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""
        ...

    @property
    def quadratic(self) -> bool:
        """Whether the second derivative is the same everywhere."""
        ...

    @property
    def most_curvature(self) -> float:
        """An upper bound of the second derivative by one score."""
        ...


Form = NDArray[np.float64]  # (directions, directions) or (directions, outputs)


class Hessian(Protocol):
    """The second derivative of a mean loss, a small block per joined row."""

    def form(self, images: Images) -> tuple[Form, Form]:
        """Its quadratic form on pairs of directions, and on a direction and a constant of one output."""
        ...

    def on_constants(self) -> NDArray[np.float64]:
        """(outputs, outputs): its quadratic form on directions that are the same in every row."""
        ...

    def mean(self) -> float:
        """The mean curvature over rows and outputs."""
        ...


@dataclass(frozen=True)
class Look:
    """A mean loss at some scores, with its derivatives."""

    value: float
    gradient: Scores
    hessian: Hessian


@dataclass(frozen=True)
class EqualWeights:
    """The second derivative of the mean of half the squares: 1 / joined_rows for each."""

    rows: int

    def form(self, images: Images) -> tuple[Form, Form]:
        """Mean products and means."""
        flat = images[:, 0]
        return flat @ flat.T / self.rows, (flat @ np.ones(self.rows))[:, None] / self.rows

    def on_constants(self) -> Form:
        """One."""
        return np.ones((1, 1))

    def mean(self) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class RowWeights:
    """A diagonal second derivative: one weight per joined row."""

    weights: Scores

    def form(self, images: Images) -> tuple[Form, Form]:
        """Weighted products and sums."""
        weighted = images[:, 0] * self.weights
        return weighted @ images[:, 0].T, (images[:, 0] @ self.weights)[:, None]

    def on_constants(self) -> NDArray[np.float64]:
        """The sum of all weights."""
        return np.array([[self.weights.sum()]])

    def mean(self) -> float:
        """The sum of weights, which carry 1 / joined_rows."""
        return float(self.weights.sum())


def sum_of_logs(values: Scores) -> float:
    """Of numbers from 1 to 2 ** 32; a product takes less time than a logarithm."""
    products = np.multiply.reduceat(values, np.arange(0, len(values), LOGS_AT_ONCE))
    return float(np.log(products).sum())


def small_step(loss: Loss, rho: float) -> float:
    """The step of a proximal problem's Newton method after which it is solved to about 1e-12.

    An error e becomes at most e^2 / (2 rho). If rho does not outweigh the loss, a step may be far from the error.
    """
    return 1e-6 * float(np.sqrt(rho)) if rho > 2 * loss.most_curvature else 1e-12


class Squared:
    """Half the squared error."""

    outputs = 1
    quadratic = True
    most_curvature = 1.0

    def __init__(self, labels: Scores):
        self.labels = labels

    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""
        return Squared(self.labels[rows])

    def look(self, scores: Scores) -> Look:
        """From the errors."""
        error = scores - self.labels
        value = 0.5 * float(error @ error) / len(error)
        error /= len(error)
        return Look(value, error, self.hessian(scores))

    def value(self, scores: Scores) -> float:
        """Half the mean squared error."""
        error = scores - self.labels
        return 0.5 * float(error @ error) / len(error)

    def gradient(self, scores: Scores) -> Scores:
        """Error by joined rows."""
        return (scores - self.labels) / len(self.labels)

    def hessian(self, scores: Scores) -> Hessian:
        """One for every row."""
        return EqualWeights(len(self.labels))

    def proximal(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """In closed form."""
        return target - self.pull(target, rho, start)

    def pull(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """In closed form."""
        pulled = target - self.labels
        pulled *= 1 / (1 + rho)
        return pulled

    def best_constant(self) -> NDArray[np.float64]:
        """The mean label."""
        return np.array([self.labels.mean()])


class Logistic:
    """Log loss of two classes; labels are 0 and 1, the score is the log odds of class 1.

    Where labels are the true ones only with probability ``keep``, ``targets`` stand in for them: the mean of the loss
    over that noise is the loss of the true labels. They lie outside of 0 and 1, so that only a penalty bounds scores.
    """

    outputs = 1
    quadratic = False
    most_curvature = 0.25

    def __init__(self, labels: Scores, keep: float = 1.0):
        self.labels, self.keep = labels, keep
        self.targets = labels if keep == 1 else backward_targets(labels.astype(np.int64), 2, keep)[:, 1]

    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""
        return Logistic(self.labels[rows], self.keep)

    def look(self, scores: Scores) -> Look:
        """Mean of log(1 + exp(z)) - y z; probability minus label; p (1 - p)."""
        unlikely, whole = _unlikely(scores)
        value = sum_of_logs(whole) + float(np.maximum(scores, 0).sum()) - float(self.targets @ scores)
        gradient, weights = self._derivatives(scores, unlikely)
        gradient /= len(scores)
        weights /= len(scores)
        return Look(value / len(scores), gradient, RowWeights(weights))

    def _derivatives(self, scores: Scores, unlikely: Scores) -> tuple[Scores, Scores]:
        """(probability minus label, p (1 - p)) from the probability of the less likely class, which is used up."""
        gradient = 0.5 - unlikely
        np.copysign(gradient, scores, out=gradient)
        gradient += 0.5
        gradient -= self.targets
        unlikely -= unlikely * unlikely
        return gradient, unlikely

    def value(self, scores: Scores) -> float:
        """Mean of log(1 + exp(z)) - y z."""
        return self.look(scores).value

    def gradient(self, scores: Scores) -> Scores:
        """Probability minus label."""
        return self.look(scores).gradient

    def hessian(self, scores: Scores) -> Hessian:
        """p (1 - p) for every row."""
        return self.look(scores).hessian

    def proximal(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """Newton's method in every row.

        Where the loss may outweigh rho, steps stop at zero, where the slope bends: from there they cannot overshoot.
        """
        z, enough = start.copy(), small_step(self, rho) * (1 + np.abs(target).max(initial=0.0))
        for number in range(NEWTON_STEPS):
            if number == 0 and look is not None and isinstance(look.hessian, RowWeights):
                step, bend = look.gradient * len(z), look.hessian.weights * len(z)
            else:
                step, bend = self._derivatives(z, _unlikely(z)[0])
            away = z - target
            away *= rho
            step += away
            bend += rho
            step /= bend
            if rho <= 2 * self.most_curvature:
                over = z * (z - step) < 0
                step[over] = z[over]
            z -= step
            if np.abs(step, out=step).max(initial=0.0) < enough:
                break
        return z

    def pull(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """By Newton's method."""
        return target - self.proximal(target, rho, start, look)

    def best_constant(self) -> NDArray[np.float64]:
        """The log odds of class 1."""
        share = self.targets.mean()
        if self.keep < 1:
            share = np.clip(share, 1 / (len(self.targets) + 1), 1 - 1 / (len(self.targets) + 1))
        return np.array([np.log(share) - np.log1p(-share)])


def _unlikely(scores: Scores) -> tuple[Scores, Scores]:
    """(p, 1 / (1 - p)) for the less likely of two classes."""
    small = np.copysign(scores, -1.0)
    np.exp(small, out=small)
    whole = 1 + small
    small /= whole
    return small, whole


@dataclass(frozen=True)
class SoftmaxHessian:
    """diag(p) - p p^T for every row."""

    probability: Scores

    def form(self, images: Images) -> tuple[Form, Form]:
        """Mean of sum_c p_c d_c e_c - (sum_c p_c d_c) (sum_c p_c e_c)."""
        probability, rows = self.probability.T, len(self.probability)
        weighted = images * probability  # (directions, outputs, rows)
        means = weighted.sum(axis=1)  # (directions, rows)
        pairs = sum(a @ b.T for a, b in zip(weighted.swapaxes(0, 1), images.swapaxes(0, 1), strict=True))
        return (pairs - means @ means.T) / rows, (weighted.sum(axis=2) - means @ probability.T) / rows

    def on_constants(self) -> NDArray[np.float64]:
        """Mean of diag(p) - p p^T."""
        rows = len(self.probability)
        outer: NDArray[np.float64] = self.probability.T @ self.probability
        return (np.diag(self.probability.sum(axis=0)) - outer) / rows

    def mean(self) -> float:
        """The mean of p (1 - p) over rows and classes."""
        return float((self.probability * (1 - self.probability)).mean())


def _probabilities(scores: Scores, out: Scores | None = None) -> tuple[Scores, Scores, Scores]:
    """(softmax, the highest score, the sum that its exponentials were divided by) of every row."""
    highest = scores.max(axis=1, keepdims=True)
    probability = np.subtract(scores, highest, out=out)
    np.exp(probability, out=probability)
    total = probability.sum(axis=1, keepdims=True)
    probability /= total
    return probability, highest, total


def _by_logsumexp(high: Scores, rho: float) -> Scores:
    """z with z = high - softmax(z) / rho, by the one unknown s = logsumexp(z) of every row.

    With omega(x) + log(omega(x)) = x: softmax(z) = rho omega(high - log(rho) - s), which must add up to one.
    That sum falls with s and is convex, so Newton's method climbs to the solution from below.
    """
    s = logsumexp(high, axis=1, keepdims=True) - 1 / rho
    for _ in range(LOGSUMEXP_STEPS):
        omega = wrightomega(high - np.log(rho) - s)
        step = (rho * omega.sum(axis=1, keepdims=True) - 1) / (rho * (omega / (1 + omega)).sum(axis=1, keepdims=True))
        s += step
        if np.abs(step).max(initial=0.0) < 1e-14 * (1 + np.abs(s).max(initial=0.0)):
            break
    return np.asarray(high - wrightomega(high - np.log(rho) - s))


class Softmax:
    """Log loss of several classes; labels are class numbers; for ``keep`` see `Logistic`."""

    quadratic = False
    most_curvature = 0.5

    def __init__(self, labels: NDArray[np.integer], classes: int, keep: float = 1.0):
        self.labels, self.outputs, self.keep = labels, classes, keep
        # of a row's own class and of the others, where labels are true ones: 1 and 0
        self._targets = inverse_transition(classes, keep)[0, :2] if keep < 1 else np.array([1.0, 0.0])

    def at(self, rows: Rows) -> Loss:
        """The loss over some of the joined rows."""
        return Softmax(self.labels[rows], self.outputs, self.keep)

    def look(self, scores: Scores) -> Look:
        """Mean of logsumexp(z) - z_y; probabilities minus the label's one; from the probabilities."""
        probability, highest, total = _probabilities(scores)
        own = self._wanted()
        value = sum_of_logs(total.ravel()) + float(highest.sum()) - float((scores * own).sum())
        gradient = probability - own
        gradient /= len(gradient)
        return Look(value / len(scores), gradient, SoftmaxHessian(probability))

    def _own(self) -> NDArray[np.bool_]:
        """(joined_rows, classes): where the label's class is."""
        return np.asarray(self.labels == np.arange(self.outputs, dtype=self.labels.dtype)[:, None]).T

    def _wanted(self) -> NDArray[np.bool_] | Scores:
        """The same; with noise, targets that stand in for it."""
        return self._own() if self.keep == 1 else np.where(self._own(), *self._targets)

    def value(self, scores: Scores) -> float:
        """Mean of logsumexp(z) - z_y."""
        return self.look(scores).value

    def gradient(self, scores: Scores) -> Scores:
        """Probabilities minus the label's one."""
        return self.look(scores).gradient

    def hessian(self, scores: Scores) -> Hessian:
        """From the probabilities."""
        return self.look(scores).hessian

    def proximal(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """Newton's method in every row: (diag(p + rho) - p p^T) is solved by the Sherman-Morrison formula.

        The solution is z = high - p / rho. Rows where Newton's method does not come to rest, as may happen for a small
        rho, are solved for their logsumexp instead.
        """
        high, clipped = target.copy(order="K"), rho <= 2 * self.most_curvature
        if self.keep == 1:
            np.add(high, 1 / rho, out=high, where=self._own())
        else:
            high += self._wanted() / rho
        z: Scores = np.clip(start, high - 1 / rho, high) if clipped else start.copy(order="K")
        enough = small_step(self, rho) * (1 + np.abs(target).max(initial=0.0))
        step, probability, spread = np.empty_like(z), np.empty_like(z), np.empty_like(z)
        for number in range(NEWTON_STEPS):
            if number == 0 and not clipped and look is not None and isinstance(look.hessian, SoftmaxHessian):
                probability[:] = look.hessian.probability
            else:
                _probabilities(z, probability)
            whole = np.add(probability, rho, out=spread)
            np.subtract(z, high, out=step)  # becomes the gradient over p + rho: (p + rho (z - high)) / (p + rho)
            step *= rho
            step += probability
            step /= whole
            np.divide(probability, whole, out=spread)
            probability *= step
            spread *= probability.sum(axis=1, keepdims=True) / (rho * spread.sum(axis=1, keepdims=True))
            step += spread
            z -= step
            if np.abs(step, out=step).max(initial=0.0) < enough:
                break
        else:
            moving = step.max(axis=1) >= enough
            z[moving] = _by_logsumexp(high[moving], rho)
        return z

    def pull(self, target: Scores, rho: float, start: Scores, look: Look | None = None) -> Scores:
        """By Newton's method."""
        return target - self.proximal(target, rho, start, look)

    def best_constant(self) -> NDArray[np.float64]:
        """Log shares of the classes, centred."""
        shares = np.bincount(self.labels, minlength=self.outputs) / len(self.labels)
        least = 1e-300
        if self.keep < 1:
            shares, least = true_shares(shares, self.keep), 1 / (len(self.labels) + 1)
        constant: NDArray[np.float64] = log_softmax(np.log(np.maximum(shares, least)))
        return np.asarray(constant - constant.mean())
