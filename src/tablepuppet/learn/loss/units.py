"""Train on y / std(y); undo it in reports. So parameters are of size 1, whatever the label's unit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.losses import Squared
from tablepuppet.learn.rounds import Round
from tablepuppet.operators.joined_rows import Block, JoinedRows


def in_units(loss: JoinedLoss) -> tuple[JoinedLoss, float]:
    """The loss of labels in units of their standard deviation, and the unit."""
    if not isinstance(loss.pointwise, Squared):
        return loss, 1.0
    unit = label_deviation(loss.rows) or 1.0
    return JoinedLoss(loss.pointwise, loss.rows.with_labels(_in_units, unit)), unit


def _in_units(block: Block, unit: float) -> NDArray[np.float64]:
    return np.asarray(block.labels / unit)


def label_deviation(rows: JoinedRows) -> float:
    """The standard deviation of labels over joined rows."""
    mean = rows.total(lambda block: block.labels.sum()) / len(rows)
    return math.sqrt(rows.total(_squares_around, mean) / len(rows))


def _squares_around(block: Block, mean: float) -> float:
    away = block.labels - mean
    return float((away * away).sum())


def out_of_units(done: Round, unit: float) -> Round:
    """The result of a round, in the label's own units."""
    if unit == 1.0:
        return done
    square = unit**2
    return replace(done, objective=done.objective * square, loss=done.loss * square, intercept=done.intercept * unit)
