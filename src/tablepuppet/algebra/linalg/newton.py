"""Newton's method for a loss of scores D B plus an L2 penalty: products with X only, several outputs side by side.

    f(B)      = mean loss of D B + l2/2 |B / s|^2     D = [1, (X - offsets) / s]; the intercept has no penalty
    H(B) step = -gradient                             by conjugate gradients, two trips a step

B / s are the coefficients of X. Gradients and D step travel exactly: what conjugate gradients lose on the wire, the
next step corrects.

Over one table of services a step takes one trip, since what is between the two products stays there (`kept.py`).
D step is known then, so the length of the step is found without a trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import Design
from tablepuppet.algebra.linalg.program import check_positive, check_whole
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError

ENOUGH = 1e-4  # the share of the expected decrease that a step must bring
HALVINGS = 30
LOSSES = 2  # sums of scores that a step reads, about
ROUNDING = 1e-7  # derivatives that rounding of the loss may leave


class NewtonLoss(Protocol):
    """A convex loss of scores, (rows, outputs).

    If it ``is_elementwise``, it is made of NumPy's elementwise functions and sums: scores may be at the parties then.
    """

    is_elementwise: ClassVar[bool]

    def value(self, scores: Array) -> float:
        """The mean over rows."""

    def slopes(self, scores: Array) -> Array:
        """Derivatives of each row's loss by its scores."""

    def curvature(self, scores: Array) -> Callable[[Array], Array]:
        """What multiplies each row's second derivatives with a change of its scores."""


@dataclass(frozen=True)
class Minimum:
    """Where the penalised loss is least."""

    coef: Array  # (columns, outputs)
    intercept: Array  # (outputs,)
    scores: Any  # (rows, outputs); at the parties, if the plan has left them there
    objective: float


def minimise(
    program: str, X: LazyArray, loss: NewtonLoss, numbers: NDArray[np.intp], outputs: int, l2: float, tol: float,
    max_iter: int, folder: str | Path | None,
) -> Minimum:  # fmt: skip
    """The least penalised loss of all columns of X, for classes with these ``numbers``.

    Ends when no derivative is above ``tol``, or when rounding hides all decrease; LearnError after ``max_iter`` steps.
    With a ``folder`` it continues after a crash.
    """
    design, progress = Design(X, all_columns=True), Progress(folder, program, X, numbers, l2=l2)
    rows, shape = design.shape[0], (design.shape[1], outputs)

    def times(directions: Array) -> Any:
        if loss.is_elementwise and design.is_kept(LOSSES):
            return design.kept_times(directions, LOSSES)
        return design.times(directions, exact=True)

    def minimum() -> Minimum:
        own = design.own_units(found)
        return Minimum(own[1:], own[0], scores, value)

    penalty = np.append(0.0, l2 / design.scales**2)[:, None]
    found, scores, steps = np.zeros(shape), np.zeros((rows, outputs)), 0
    if state := progress.read():
        found, steps = state["coefficients"], int(state["steps"])
        scores = times(found)
    value = loss.value(scores) + float(np.sum(penalty * found**2)) / 2
    for number in range(min(steps, max_iter - 1), max_iter):
        gradient = design.transposed_times(loss.slopes(scores), exact=True) / rows + penalty * found
        largest = float(np.abs(gradient).max())
        if largest <= tol:
            return minimum()
        step = _newton_step(design, loss, scores, penalty, gradient, min(0.1, largest))
        product, slope, share = times(step), float(np.sum(gradient * step)), 1.0
        for _ in range(HALVINGS):
            moved, there = found + share * step, scores + share * product
            reached = loss.value(there) + float(np.sum(penalty * moved**2)) / 2
            if reached <= value + ENOUGH * share * slope:
                break
            share /= 2
        else:
            if largest > max(tol, ROUNDING):
                raise LearnError(f"{program}: a derivative is {largest:.1e}, but no step lowers the loss; raise l2")
            return minimum()  # rounding is larger than what a step brings
        found, scores, value = moved, there, reached
        progress.write(coefficients=found, steps=number + 1)
    raise LearnError(
        f"{program}: a derivative is still {largest:.1e} after {max_iter:,} steps; raise max_iter, tol or l2"
    )


def _newton_step(
    design: Design, loss: NewtonLoss, scores: Any, penalty: Array, gradient: Array, tol: float
) -> Array:  # fmt: skip
    """A step that solves H step = -gradient to ``tol`` of the gradient."""
    rows, shape, curvature = design.shape[0], gradient.shape, loss.curvature(scores)

    def times(flat: Array) -> Array:
        step = flat.reshape(shape)
        product = design.kept_times(step) if loss.is_elementwise else design.times(step)
        return np.ravel(design.transposed_times(curvature(product)) / rows + penalty * step)

    operator = LinearOperator((gradient.size, gradient.size), times, dtype=np.float64)
    return np.reshape(cg(operator, -gradient.ravel(), rtol=tol, maxiter=gradient.size)[0], shape)


def check_settings(program: str, l2: float, tol: float, max_iter: int) -> None:
    """Raise LearnError if a setting is out of range."""
    check_positive(program, "l2", l2, zero=True)
    check_positive(program, "tol", tol)
    check_whole(program, "max_iter", max_iter)
