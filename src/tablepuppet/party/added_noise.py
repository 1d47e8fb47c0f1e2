"""The noise that a caller asks for, as the argument of an op: an op is private when it is given.

Each says how much a row may add to what leaves, and the standard deviation of the noise in units of that.
"""

from __future__ import annotations

from msgspec import Struct

from tablepuppet.party.arguments import Bound, Multiplier, Positive, Sampling


class GramNoise(Struct, frozen=True):
    """Of a Gram matrix, over a table of so many rows."""

    table_rows: Positive
    multiplier: Multiplier


class SumNoise(Struct, frozen=True):
    """Of a gradient: a row adds at most ``clip`` to the sum over a table of so many rows."""

    table_rows: Positive
    clip: Bound
    multiplier: Multiplier


class SampleNoise(Struct, frozen=True):
    """Of a gradient over a sample, in which each row is with probability ``sampling``."""

    table_rows: Positive
    clip: Bound
    multiplier: Multiplier
    sampling: Sampling


class PredictionNoise(Struct, frozen=True):
    """Of predictions: each is cut to ``bound``; without one, to what a noisy Gram matrix says is large."""

    multiplier: Multiplier
    bound: Bound | None = None
