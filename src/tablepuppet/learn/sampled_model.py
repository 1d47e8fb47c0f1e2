"""The coordinator's side of models whose parties take noisy steps (private_sgd.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.image_noise import believed, calmed, left_in_mean
from tablepuppet.learn.placed import PlacedModel
from tablepuppet.learn.private_sgd import NoisyPart, new_part, parameters_of
from tablepuppet.learn.stored import KeptNoise
from tablepuppet.learn.table_network import TableNetwork
from tablepuppet.mapping.table_mapping import Floats
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.prep.encode import Encoding

Array = NDArray[np.float64]


@dataclass
class StepNoise:
    """The noise of a fit, and how often it was drawn."""

    clip: float
    multipliers: Mapping[str, float]  # by table, of steps
    samplings: Mapping[str, float]  # by table
    image: float | None = None  # of predictions: all tables alike
    steps: int = 0
    images: int = 0


@dataclass(frozen=True)
class Pace:
    """How fast the tables go in one round."""

    rates: Mapping[str, Array]  # by table, the learning rate of each step
    momentum: float

    @property
    def steps(self) -> int:
        """Of the round."""
        return len(next(iter(self.rates.values()), ()))


class SampledModel(PlacedModel[NoisyPart]):
    """The coordinator's side of a model whose parties take noisy steps."""

    hidden: list[int] | None = None

    def __init__(
        self, client: Client, encoding: Encoding, wire: str, outputs: int, hidden: Sequence[int] | None, l2: float,
        seed: int, unit: float, model: str, noise: StepNoise,
    ):  # fmt: skip
        super().__init__(client, encoding, wire, outputs, l2, model)
        self.hidden = None if hidden is None else [int(size) for size in hidden]
        self._unit, self.noise = unit, noise
        self._squares: dict[str, float] = {}
        self.lou.ask("private.begin", self.alone, encoding=encoding.id, model=model, seed=seed, **self.whole_shape)
        self._shared = {
            alias: new_part(seed, alias, len(encoding.numbers[alias]), len(encoding.names(alias)), self.hidden, outputs)
            for alias in self.together
        }

    @property
    def shared(self) -> dict[str, NoisyPart]:
        """Parts of the tables in `together`."""
        return self._shared

    @property
    def unit(self) -> float:
        """The label's unit: scores are learned in it."""
        return self._unit

    @property
    def whole_shape(self) -> dict[str, Any]:
        """Hidden layers, if it is a network, and outputs."""
        return {"hidden": self.hidden, "outputs": self.outputs}

    @property
    def sizes(self) -> dict[str, int]:
        """Parameters by table."""
        return {
            alias: parameters_of(len(self.encoding.names(alias)), self.hidden, self.outputs) for alias in self.tables
        }

    @property
    def square(self) -> float:
        """|theta|^2."""
        shared = sum(float(np.vdot(part.theta, part.theta)) for part in self._shared.values())
        return shared + sum(self._squares.values())

    @property
    def believed_mean(self) -> float:
        """The share of the mean prediction that the intercept shall answer: less, the more of it is noise."""
        left = max((left_in_mean(self.loj.mapping, alias) for alias in self.tables), default=0.0)
        return believed(1.0, self._image_ratio * left)

    @property
    def _image_ratio(self) -> float:
        """The mean square of noise in units of that of predictions, which are likely to be about as large as parameters
        and no larger than their bound.
        """
        if self.noise.image is None:
            return 0.0
        most = len(self.tables) * self.noise.clip**2
        return most * self.noise.image**2 / max(min(self.square, most), 1e-300)

    def step(self, wanted: Array, pull: float, pace: Pace) -> Array:
        """The sum over tables of their predictions, after steps that answer ``wanted``."""
        rows = self.loj.scatter(wanted, self.tables)
        replies = self._ask_steps(rows, pull, pace)
        for number in range(pace.steps):
            self._step_shared(None if number else rows, pull, pace, number)
        self.noise.steps += pace.steps
        self.noise.images += 1
        predictions = self.gathered(replies)
        self._squares = {alias: replies[alias][0]["square"] for alias in self.alone}
        return predictions

    def _ask_steps(self, rows: Mapping[str, Floats], pull: float, pace: Pace) -> Replies:
        told = self._by_alias(self.alone)
        for alias in self.alone:
            told[alias]["rates"] = pace.rates[alias]
        return self.lou.ask(
            "private.descend" if self.noise.image is None else "private.noisy_descend", self.alone, rows,
            by_alias=told, encoding=self.encoding.id, model=self.model, pull=pull, momentum=pace.momentum, l2=self.l2,
            **self._image_noise,
        )  # fmt: skip

    def _step_shared(self, rows: Mapping[str, Floats] | None, pull: float, pace: Pace, number: int) -> None:
        if not self.together:
            return
        told = self._by_alias(self.together)
        for alias, part in self._shared.items():
            told[alias]["theta"] = part.theta
        sums = self.lou.ask(
            "private.sampled_gradient", self.together, rows, told, encoding=self.encoding.id, model=self.model,
            pull=pull, bounds=self._largest, **self.whole_shape,
        )  # fmt: skip
        for alias, part in self._shared.items():
            rate = float(pace.rates[alias][number])
            part.descend(self.lou.add(sums[alias], "sums"), rate, pace.momentum, self.l2)

    def _largest(self, alias: str) -> dict[str, float]:
        """No noisy sum over a table's rows is larger, almost surely."""
        noise, rows = self.noise, self.lou.client.mapping.tables[alias].rows
        drawn = 10 * noise.multipliers[alias] * self.lou.shards(alias) / rows
        return {"sums": noise.clip * (1.0 + drawn) / noise.samplings[alias]}

    def noise_length(self, alias: str) -> float:
        """About the length of the noise in a table's gradient."""
        noise, rows = self.noise, self.lou.client.mapping.tables[alias].rows
        numbers = self.sizes[alias] * self.lou.shards(alias)
        return noise.multipliers[alias] * noise.clip * math.sqrt(numbers) / (noise.samplings[alias] * rows)

    def _by_alias(self, aliases: Iterable[str]) -> dict[str, dict[str, Any]]:
        noise, tables = self.noise, self.lou.client.mapping.tables
        return {
            alias: {
                "table_rows": tables[alias].rows, "clip": noise.clip, "multiplier": noise.multipliers[alias],
                "sampling": noise.samplings[alias],
            }
            for alias in aliases
        }  # fmt: skip

    @property
    def _image_noise(self) -> dict[str, Any]:
        return {} if self.noise.image is None else {"bound": self.noise.clip, "image_multiplier": self.noise.image}

    def _ask_told(self, lou: LearningOverUnion, thetas: Mapping[str, Array], instead: Instead | None) -> Replies:
        if self.noise.image is None:
            return super()._ask_told(lou, thetas, instead)
        told = {alias: {"theta": theta} for alias, theta in thetas.items()}
        return lou.ask(
            "private.image_within", told, by_alias=told, encoding=self.encoding.id, **self.whole_shape,
            **self._image_noise,
        )  # fmt: skip

    def _ask_held(self, lou: LearningOverUnion, aliases: list[str], instead: Instead | None) -> Replies:
        if self.noise.image is None:
            return super()._ask_held(lou, aliases, instead)
        return lou.ask(
            "private.predict_within", aliases, encoding=self.encoding.id, model=self.model, **self._image_noise
        )

    def _ask_parameters(self, aliases: list[str]) -> Replies:
        return self.lou.ask("private.parameters", aliases, model=self.model)

    def scores(self, client: Client, *, learning: bool = False) -> Array:
        """The sum over tables for the rows of a relation, in the label's own units."""
        self.noise.images += 1
        found = super().scores(client, learning=learning)
        return self.unit * (found if self.noise.image is None else calmed(found, self.mean, self._image_ratio))

    def noise_to_keep(self) -> KeptNoise | None:
        """As that of predictions now, in the label's own units."""
        if self.noise.image is None:
            return None
        bounds = dict.fromkeys(self.tables, self.noise.clip * self.unit)
        return KeptNoise(self.noise.image, bounds, tuple((self.unit * self.mean).tolist()), self._image_ratio)

    def parameters(self, aliases: Iterable[str] | None = None) -> dict[str, Array]:
        """Parameters by table, in the label's own units."""
        found = super().parameters(aliases)
        return {alias: self._rescaled(alias, theta) for alias, theta in found.items()}

    def _rescaled(self, alias: str, theta: Array) -> Array:
        if self.hidden is None:
            return theta * self.unit
        network = TableNetwork.over(len(self.encoding.names(alias)), self.hidden, self.outputs)
        return network.rescaled(theta, self.unit)


class SampledLinear(SampledModel):
    """A linear model by noisy steps."""

    family = "linear"


class SampledNetwork(SampledModel):
    """Networks by noisy steps."""

    family = "network"

    @property
    def shape(self) -> dict[str, Any]:
        """Hidden layers and outputs."""
        return self.whole_shape
