"""The coordinator's half of DP-SGD: models whose parties take noisy steps (steps.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.noise.predictions import believed, left_in_mean
from tablepuppet.learn.private.steps import NoisyRound, NoisySums
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.over_shards import RowGradients
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.prep.encode.encode import Encoding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pace:
    """The learning rates of one round."""

    rates: Mapping[str, Array]  # by table, the learning rate of each step
    momentum: float

    @property
    def steps(self) -> int:
        """The number of steps in the round."""
        return len(next(iter(self.rates.values()), ()))


class SampledModel(FederatedModel):
    """A model whose parties take noisy steps. At the start all predictions are zero."""

    noise: StepNoise

    def __init__(
        self, client: Client, rows: JoinedRows, encoding: Encoding, wire: str, spec: Spec, l2: float, seed: int,
        unit: float, noise: StepNoise,
    ):  # fmt: skip
        super().__init__(client, rows, encoding, wire, spec, l2, unit, noise)
        self.square = 0.0  # |theta|^2
        self.begin(seed, zero=True)
        self.over = NoisySums(self.lou, dict(self.shared), {"spec": spec, **self.at_party})

    @property
    def believed_mean(self) -> float:
        """The share of the mean prediction that the intercept absorbs: the noisier it is, the smaller."""
        left = max((left_in_mean(self.loj.rows, alias) for alias in self.tables), default=0.0)
        return believed(1.0, self.noise_ratio * left)

    @property
    def noise_ratio(self) -> float:
        """The mean square of noise relative to predictions: these are about as large as parameters, and bounded."""
        if self.noise.image is None:
            return 0.0
        most = len(self.tables) * self.noise.clip**2
        return most * self.noise.image**2 / max(min(self.square, most), 1e-300)

    def prediction_bound(self, alias: str, theta: Array | None) -> float | None:
        """The bound of predictions; it does not depend on the rows."""
        return self.noise.clip

    def kept_bounds(self) -> dict[str, float]:
        """The same for all tables."""
        return dict.fromkeys(self.tables, self.noise.clip)

    def take_round(self, column: str, proximal: float, pace: Pace, into: str) -> None:
        """Let tables take steps with the sums of ``column``; write the new predictions into the column ``into``."""
        rounds = {
            alias: NoisyRound(
                rates=rates, noise=self.noise.of_sums(alias, self.rows(alias)), proximal=proximal,
                momentum=pace.momentum, l2=self.l2, prediction_noise=self.noise.of_predictions(self.noise.clip),
            )
            for alias, rates in pace.rates.items()
        }  # fmt: skip
        found = self.step(rounds, RowGradients(self.loj.scatter(column, self.tables)))
        self.noise.steps += pace.steps
        self.noise.images += 1
        self.set_scores(found.predictions, into=into)
        self.square = sum(float(square) for square in found.listed("square"))

    def noise_length(self, alias: str) -> float:
        """The approximate norm of the noise in a table's gradient."""
        numbers = math.prod(self.spec.theta_shape(self.width(alias))) * self.lou.shards(alias)
        return self.noise.length(alias, numbers, self.rows(alias))
