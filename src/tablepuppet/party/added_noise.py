"""The noise of an op, as one of its arguments: an op that gets one is private.

Each Struct holds the bound that a row's contribution is clipped to, and the noise multiplier: the standard deviation of
the noise divided by that bound.
"""

from __future__ import annotations

from msgspec import Struct

from tablepuppet.party.arguments import Bound, Multiplier, Positive, Sampling


class GramNoise(Struct, frozen=True):
    """The noise of a Gram matrix over a table of ``table_rows`` rows; a row adds at most the number of columns."""

    table_rows: Positive
    multiplier: Multiplier


class SumNoise(Struct, frozen=True):
    """The noise of a gradient: a row adds at most ``clip`` to the sum over a table of ``table_rows`` rows."""

    table_rows: Positive
    clip: Bound
    multiplier: Multiplier


class SampleNoise(Struct, frozen=True):
    """The noise of a gradient over a sample that contains each row with probability ``sampling``."""

    table_rows: Positive
    clip: Bound
    multiplier: Multiplier
    sampling: Sampling


class PredictionNoise(Struct, frozen=True):
    """The noise of predictions: each is clipped to ``bound``; if None, to a bound from the noisy Gram matrix."""

    multiplier: Multiplier
    bound: Bound | None = None
