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
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.mapping.table_mapping import Floats
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.joined_rows import JoinedRows
from tablepuppet.party.spec import Spec
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
        self._squares: dict[str, float] = {}
        self.begin(seed, zero=True)

    @property
    def square(self) -> float:
        """|theta|^2."""
        return sum(part.square for part in self.shared.values()) + sum(self._squares.values())

    @property
    def believed_mean(self) -> float:
        """The share of the mean prediction that the intercept absorbs: the noisier it is, the smaller."""
        left = max((left_in_mean(self.loj.mapping, alias) for alias in self.tables), default=0.0)
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

    def step(self, column: str, pull: float, pace: Pace, into: str) -> None:
        """Let tables take steps with the sums of ``column``; write the new predictions into the column ``into``."""
        rows = self.loj.scatter(column, self.tables)
        stepped = self._ask_steps(rows, pull, pace)
        for number in range(pace.steps):
            self._step_shared(None if number else rows, pull, pace, number)
        self.noise.steps += pace.steps
        self.noise.images += 1
        self.gather(stepped, into=into)
        replies = stepped.read()
        self._squares = {alias: replies[alias][0]["square"] for alias in self.alone}

    def _ask_steps(self, rows: Mapping[str, Floats], pull: float, pace: Pace) -> Pending:
        arguments = {alias: {"rates": pace.rates[alias], **self._sum_noise(alias)} for alias in self.alone}
        if self.noise.image is not None:
            noise = self.noise.of_predictions(self.noise.clip)
            arguments = {alias: {**each, "prediction_noise": noise} for alias, each in arguments.items()}
        return self.lou.ask(
            "steps.descend", self.alone, rows, by_alias=arguments, encoding=self.encoding.id, model=self.name,
            pull=pull, momentum=pace.momentum, l2=self.l2,
        )  # fmt: skip

    def _sum_noise(self, alias: str) -> dict[str, Any]:
        return {"noise": self.noise.of_sums(alias, self.rows(alias))}

    def _step_shared(self, rows: Mapping[str, Floats] | None, pull: float, pace: Pace, number: int) -> None:
        if not self.together:
            return
        arguments = {alias: {"theta": part.theta, **self._sum_noise(alias)} for alias, part in self.shared.items()}
        sums = self.lou.ask(
            "steps.gradient", self.together, rows, arguments, encoding=self.encoding.id, model=self.name,
            spec=self.spec, pull=pull, bounds=self._largest,
        ).read()  # fmt: skip
        for alias, part in self.shared.items():
            rate = float(pace.rates[alias][number])
            part.descend(self.lou.add(sums[alias], "sums"), rate, pace.momentum, self.l2)

    def _largest(self, alias: str) -> dict[str, float]:
        """Bound of a noisy sum over a table's rows, almost surely."""
        noise = self.noise
        drawn = 10 * noise.multipliers[alias] * self.lou.shards(alias) / self.rows(alias)
        return {"sums": noise.clip * (1.0 + drawn) / noise.samplings[alias]}

    def noise_length(self, alias: str) -> float:
        """The approximate norm of the noise in a table's gradient."""
        numbers = math.prod(self.spec.theta_shape(self.width(alias))) * self.lou.shards(alias)
        return self.noise.length(alias, numbers, self.rows(alias))
