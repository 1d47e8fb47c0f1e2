"""Labels in units of their standard deviation, so that what is learned from them is about 1."""

from __future__ import annotations

from dataclasses import replace

from tablepuppet.learn.loss.losses import Loss, Squared
from tablepuppet.learn.rounds import Round


def in_units(loss: Loss) -> tuple[Loss, float]:
    """The loss with labels in units of their standard deviation, and the unit: what is learned is then about 1."""
    if not isinstance(loss, Squared):
        return loss, 1.0
    unit = float(loss.labels.std()) or 1.0
    return Squared(loss.labels / unit), unit


def out_of_units(done: Round, unit: float) -> Round:
    """What a round ends with, in the label's own units."""
    if unit == 1.0:
        return done
    square = unit**2
    return replace(
        done, objective=done.objective * square, loss=done.loss * square,
        scores=done.scores * unit, intercept=done.intercept * unit,
    )  # fmt: skip
