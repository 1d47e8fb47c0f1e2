"""Train on y / std(y), or on y - mean(y); undo it in reports.

So parameters of networks are of size 1, whatever the label's unit. Errors of linear models keep their digits where the
mean is many times the standard deviation: scores as large as the mean would be rounded like it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Squared
from tablepuppet.learn.rounds import Round
from tablepuppet.mapping.joined_rows import Block, JoinedRows

FAR = 1e3  # standard deviations between mean and zero, beyond which digits of errors are lost


def in_units(loss: JoinedLoss) -> tuple[JoinedLoss, float]:
    """The loss of labels in units of their standard deviation, and the unit."""
    if not isinstance(loss.pointwise, Squared):
        return loss, 1.0
    unit = label_deviation(loss.rows) or 1.0
    return JoinedLoss(loss.pointwise, loss.rows.with_labels(_in_units, unit)), unit


def _in_units(block: Block, unit: float) -> NDArray[np.float64]:
    return np.asarray(block.labels / unit)


def around_mean(loss: JoinedLoss) -> tuple[JoinedLoss, float]:
    """The loss of labels minus their mean, and the mean; the same loss and 0 if the mean is not far from zero."""
    if not isinstance(loss.pointwise, Squared):
        return loss, 0.0
    mean = float(loss.best_constant()[0])
    if abs(mean) <= FAR * label_deviation(loss.rows):
        return loss, 0.0
    return JoinedLoss(loss.pointwise, loss.rows.with_labels(_around, mean)), mean


def _around(block: Block, mean: float) -> NDArray[np.float64]:
    return np.asarray(block.labels - mean)


def label_deviation(rows: JoinedRows) -> float:
    """The standard deviation of labels over joined rows."""
    mean = float(JoinedLoss(Squared(), rows).best_constant()[0])
    return math.sqrt(rows.total(_squares_around, mean) / rows.joined)


def _squares_around(block: Block, mean: float) -> float:
    away = block.labels - mean
    return float(away @ away if block.weights is None else block.weights @ (away * away))


def out_of_units(done: Round, unit: float) -> Round:
    """The result of a round, in the label's own units."""
    if unit == 1.0:
        return done
    square = unit**2
    return replace(done, objective=done.objective * square, loss=done.loss * square, intercept=done.intercept * unit)
