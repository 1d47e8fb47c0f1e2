"""Forward selection by Akaike's criterion: of all columns, add the one that lowers it most, until none does.

Everything follows from the Gram matrix A of centred columns and their products c with the label:

    column j lowers the residual squares by c_j^2 / A_jj
    then what it explains is taken out of the others:   A -= a_j a_j^T / A_jj,   c -= a_j c_j / A_jj
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import LEAST, Design, centred_gram
from tablepuppet.algebra.linalg.lm import LM, fit_of
from tablepuppet.algebra.linalg.program import check_numbers, check_rows, program
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.arrays import Array


@dataclass(frozen=True, repr=False)
class StepLM(LM):
    """A least-squares fit of selected columns; the others have coefficients of zero."""

    selected: list[str]  # in the order in which they were added
    criteria: list[float]  # the criterion without columns, and after each that was added


@program
def steplm(X: LazyArray, y: ArrayLike, folder: str | Path | None = None) -> StepLM:
    """Least squares on the columns of X that forward selection finds; trips as `lm`, however many columns there are.

    With a ``folder`` it continues after a crash: the Gram matrix, from which everything is computed, is stored there.
    """
    design, y = Design(X), check_numbers("steplm", y, X.shape[0])
    check_rows("steplm", design.shape[0], 2)
    left = y - y.mean()
    gram, products = design.equations(left, Progress(folder, "steplm", X, y))
    centred, rows = centred_gram(gram), design.shape[0]
    order, criteria = _selected(centred, products[1:], float(np.sum(left**2)), rows, LEAST * np.diag(gram)[1:])
    chosen = design.only(sorted(order))
    places = [0, *(place + 1 for place in sorted(order))]
    inverse = chosen.inverse(gram[np.ix_(places, places)], "steplm")
    found = inverse @ products[places]
    fit = fit_of(chosen, y, found, left - chosen.times(found, exact=True), inverse)
    return StepLM(**vars(fit), selected=[design.names[place + 1] for place in order], criteria=criteria)


def _selected(gram: Array, products: Array, squares: float, rows: int, least: Array) -> tuple[list[int], list[float]]:
    """(columns in the order in which they are added, the criterion before and after each)."""
    order: list[int] = []
    criteria = [_criterion(squares, rows, 1)]
    while len(order) < min(len(gram), rows - 3):
        spread = np.diag(gram)
        free = spread > least
        free[order] = False
        gains = np.where(free, products**2 / np.where(free, spread, 1.0), 0.0)
        best = int(np.argmax(gains))
        left = squares - gains[best]
        criterion = _criterion(left, rows, len(order) + 2)
        if not free[best] or not criterion < criteria[-1]:
            break
        column = gram[:, best] / gram[best, best]
        products, gram = products - column * products[best], gram - np.outer(column, gram[best])
        squares = left
        order.append(best)
        criteria.append(criterion)
    return order, criteria


def _criterion(squares: float, rows: int, parameters: int) -> float:
    """As in `LM.aic`."""
    with np.errstate(divide="ignore"):
        return float(rows * (np.log(2 * np.pi * max(squares, 0.0) / rows) + 1) + 2 * parameters)
