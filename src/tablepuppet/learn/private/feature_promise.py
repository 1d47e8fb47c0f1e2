"""The feature-privacy promise of a fit: which noise each table adds, how often, and the epsilon that was spent.

A table's promise is divided: one share for encoder statistics (encoder_promise.py), the rest for the rounds, whose
number is fixed before the first. Rounds use noisy sums (sum_promise.py) or noisy steps (step_promise.py). Predictions
have a separate promise. What is not used, for instance if descent ends early, is not spent. This module contains
numbers only, no models.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from tablepuppet.learn.noise.plan import Noise
from tablepuppet.learn.private.encoder_promise import EncoderPromise
from tablepuppet.prep.private_encode import EncoderNoise
from tablepuppet.privacy.settings import Privacy
from tablepuppet.privacy.shares import Shares


@dataclass(frozen=True)
class PlannedNoise:
    """The noisy releases of one kind that a table makes."""

    what: str
    releases: int
    multiplier: float
    sampling: float | None = None  # None: every row is in each of them


@dataclass
class FeaturePromise(ABC):
    """The noise of a fit, by table, and how much of it was used."""

    privacy: Privacy
    statistics: EncoderPromise
    asked_rounds: int | None  # None: chosen automatically

    prediction_size: ClassVar[float] = 1.0  # the bound of predictions that have noise, in units of their usual size

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The number of rounds that the budget is divided over."""

    @property
    @abstractmethod
    def spent(self) -> Noise:
        """The noise of the rounds, with counts of the releases made so far."""

    @abstractmethod
    def planned_noise(self, alias: str) -> Iterator[PlannedNoise]:
        """The releases of a table in all counted rounds, without predictions."""

    @abstractmethod
    def spend_all(self, parameters: Mapping[str, int], predictions: int) -> None:
        """Count all planned releases as made, and ``predictions`` more after the fit."""

    @abstractmethod
    def row_noise(self, alias: str) -> float:
        """Noise in a table's parameters after all rounds, relative to the bound of one row; 0 without rounds."""

    @abstractmethod
    def _epsilon(self, alias: str, predictions: float) -> float:
        """The epsilon of all releases of a table; ``predictions`` is the sum of 1 / multiplier^2 of predictions."""

    @abstractmethod
    def _total(self, aliases: Sequence[str], predictions: float) -> float:
        """The same for several tables at one delta; ``predictions`` is per table."""

    @abstractmethod
    def _group_epsilon(self, aliases: Sequence[str], rows: int, predictions: float, delta: float) -> float:
        """The same for a person with several rows; ``predictions`` is for all tables together."""

    @property
    def is_sampled(self) -> bool:
        """Whether sampling of rows lowers epsilon."""
        return False

    def within(self, most: int | None) -> Self:
        """The same promise with at most ``most`` rounds, if their number was not set."""
        if most is None or self.asked_rounds is not None or self.privacy.prediction_epsilon is not None:
            return self
        return self if self.rounds <= most else replace(self, asked_rounds=max(1, most))

    @property
    def encoders(self) -> EncoderNoise:
        """The noise of encoder statistics."""
        return self.statistics.noise

    @property
    def tables(self) -> list[str]:
        """Aliases of tables with features."""
        return list(self.statistics.tables)

    @property
    def prediction_multiplier(self) -> float | None:
        """The noise multiplier of predictions; their promise is divided over the rounds."""
        if self.privacy.prediction_epsilon is None:
            return None
        return Shares(self.privacy.prediction_epsilon, self.privacy.delta).multiplier(1 / self.rounds)

    def given_messages(self, alias: str) -> float:
        """The epsilon of a table's rows if predictions are treated as public (the paper's accounting)."""
        return min(self._epsilon(alias, 0.0), self.statistics.epsilon)

    def so_far(self, alias: str) -> float:
        """The same during the fit."""
        return self.given_messages(alias)

    @property
    def most_so_far(self) -> float:
        """The largest of these epsilons over tables."""
        return max(map(self.so_far, self.tables), default=0.0)

    def epsilon(self, alias: str) -> float:
        """The epsilon of a table's rows for all releases: infinite if predictions had no noise."""
        return math.inf if self.spent.image is None else self._epsilon(alias, self.spent.prediction_precision)

    def together(self, aliases: Sequence[str], *, given_messages: bool = False, rows: int = 1) -> float:
        """The epsilon, at one delta, for a person with ``rows`` rows in each of these tables.

        Renyi divergences are added per order (FedOnce, Theorem 4).
        """
        if rows > 1:
            return self._of_group(aliases, rows, given_messages)
        alone = self.given_messages if given_messages else self.epsilon
        if len(aliases) < 2 or math.isinf(alone(aliases[0])):
            return sum(map(alone, aliases))
        return self._total(aliases, 0.0 if given_messages else self.spent.prediction_precision)

    def _of_group(self, aliases: Sequence[str], rows: int, given_messages: bool) -> float:
        """The same for several rows per table: k rows change a sum by up to k times the bound of one row.

        Predictions are separate numbers per row: those of k rows change by sqrt(k) times the bound.
        """
        delta = self.statistics.delta_left(aliases, rows)
        if delta <= 0 or (not given_messages and self.spent.image is None):
            return math.inf
        predictions = 0.0 if given_messages else rows * len(aliases) * self.spent.prediction_precision
        return self._group_epsilon(aliases, rows, predictions, delta)

    def to_keep(self) -> dict[str, Any]:
        """What a saved model stores of it: settings, noise, and how much was used."""
        return {
            "privacy": asdict(self.privacy),
            "tables": {alias: asdict(each) for alias, each in self.statistics.tables.items()},
            "rounds": self.asked_rounds,
            "encoders": asdict(self.encoders),
            "noise": asdict(self.spent),
        }
