"""The coordinator's half of DP-SGD: models whose parties take noisy steps (steps.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.noise.plan import StepNoise
from tablepuppet.learn.noise.predictions import believed, left_in_mean
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.over_shards import NOTHING, Facts, RowGradients, Update
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.added_noise import SampleNoise
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


@dataclass(frozen=True)
class NoisyRound:
    """A noisy step for each learning rate; then predictions, and |theta|^2. Rates and noise are arguments by table."""

    proximal: float  # weight of the proximal term
    momentum: float
    l2: float
    op = "steps.descend"

    @property
    def arguments(self) -> dict[str, Any]:
        """As `steps.descend` takes them."""
        return {"proximal": self.proximal, "momentum": self.momentum, "l2": self.l2}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """What is returned of a table whose steps are taken."""
        return {"square": part.square}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Predictions with the new parameters."""
        return {"theta": part.theta}


@dataclass
class NoisySums:
    """Each shard returns a noisy sum for every step; the coordinator adds them, and takes the step."""

    model: SampledModel
    parts: dict[str, TableParameters]
    lou: LearningOverUnion
    pace: Pace | None = None  # of the round

    def step(self, update: Update, rows: RowGradients | None) -> dict[str, Facts]:
        """The steps of a round, a trip each; the first begins the round at the shards."""
        assert isinstance(update, NoisyRound), "the only one of this solver"
        assert rows is not None, "a round begins with gradients"
        assert self.pace is not None, "`SampledModel.step` sets it"
        for number in range(self.pace.steps if self.parts else 0):
            thetas = {a: {"theta": part.theta, "noise": self.model.sum_noise(a)} for a, part in self.parts.items()}
            sums = self.lou.ask(
                "steps.gradient", self.parts, None if number else rows.values, thetas, spec=self.model.spec,
                proximal=update.proximal, bounds=self._largest, **self.model.at_party,
            ).read()  # fmt: skip
            for alias, part in self.parts.items():
                rate = float(self.pace.rates[alias][number])
                part.descend(self.lou.add(sums[alias], "sums"), rate, update.momentum, update.l2)
        return {alias: update.take(part, NOTHING, NOTHING) for alias, part in self.parts.items()}

    def _largest(self, alias: str) -> dict[str, float]:
        """Bound of a noisy sum over a table's rows, almost surely."""
        noise = self.model.noise
        drawn = 10 * noise.multipliers[alias] * self.lou.shards(alias) / self.model.rows(alias)
        return {"sums": noise.clip * (1.0 + drawn) / noise.samplings[alias]}


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
        self.over: NoisySums = NoisySums(self, dict(self.shared), self.lou)

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
        self.over.pace, added = pace, dict[str, Any]()
        if self.noise.image is not None:
            added = {"prediction_noise": self.noise.of_predictions(self.noise.clip)}
        by_table = {a: {"rates": pace.rates[a], "noise": self.sum_noise(a), **added} for a in self.tables}
        rows = RowGradients(self.loj.scatter(column, self.tables))
        found = self.step(NoisyRound(proximal, pace.momentum, self.l2), rows, by_table=by_table)
        self.noise.steps += pace.steps
        self.noise.images += 1
        self.set_scores(found.predictions, into=into)
        self.square = sum(float(square) for square in found.listed("square"))

    def sum_noise(self, alias: str) -> SampleNoise:
        """The noise of a table's sums."""
        return self.noise.of_sums(alias, self.rows(alias))

    def noise_length(self, alias: str) -> float:
        """The approximate norm of the noise in a table's gradient."""
        numbers = math.prod(self.spec.theta_shape(self.width(alias))) * self.lou.shards(alias)
        return self.noise.length(alias, numbers, self.rows(alias))
