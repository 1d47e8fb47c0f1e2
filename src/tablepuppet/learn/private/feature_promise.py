"""What a fit with feature privacy may tell of each table: which noise, how often, for what promise; what it came to.

A table's promise is shared: a part for the statistics of encoders (encoder_promise.py), the rest for the rounds, whose
number is fixed before the first. Their noise is that of sums (sum_promise.py) or of steps (step_promise.py).
Predictions have a promise of their own. What was not used, as when descent ends early, is not spent. No model is here:
numbers only.
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
    """Noisy values of one kind that a table releases."""

    what: str
    releases: int
    multiplier: float
    sampling: float | None = None  # None: every row is in each of them


@dataclass
class FeaturePromise(ABC):
    """The noise of a fit, by table, and how much of it was used."""

    privacy: Privacy
    statistics: EncoderPromise
    asked_rounds: int | None  # None: as many as are best

    prediction_size: ClassVar[float] = 1.0  # the bound of predictions that have noise, in units of their usual size

    @property
    @abstractmethod
    def rounds(self) -> int:
        """That noise is planned for."""

    @property
    @abstractmethod
    def spent(self) -> Noise:
        """The noise of rounds, where releases are counted."""

    @abstractmethod
    def planned_noise(self, alias: str) -> Iterator[PlannedNoise]:
        """What a table releases in all rounds that are counted, beside predictions."""

    @abstractmethod
    def spend_all(self, parameters: Mapping[str, int], predictions: int) -> None:
        """Count all releases as if they had been made, and ``predictions`` after the fit."""

    @abstractmethod
    def row_noise(self, alias: str) -> float:
        """Noise in a table's parameters after all rounds, in units of what one row may add; 0 if it takes none."""

    @abstractmethod
    def _epsilon(self, alias: str, predictions: float) -> float:
        """Of all that was told of a table, with predictions of which 1 / multiplier^2 adds up to ``predictions``."""

    @abstractmethod
    def _total(self, aliases: Sequence[str], predictions: float) -> float:
        """The same of several tables at one delta; ``predictions`` of each."""

    @abstractmethod
    def _group_epsilon(self, aliases: Sequence[str], rows: int, predictions: float, delta: float) -> float:
        """The same of somebody with several rows; ``predictions`` of all."""

    @property
    def is_sampled(self) -> bool:
        """Whether epsilon is lower since parties used samples of their rows."""
        return False

    def within(self, most: int | None) -> Self:
        """The same with no more rounds than these, where their number was left open."""
        if most is None or self.asked_rounds is not None or self.privacy.prediction_epsilon is not None:
            return self
        return self if self.rounds <= most else replace(self, asked_rounds=max(1, most))

    @property
    def encoders(self) -> EncoderNoise:
        """The noise of encoders' statistics."""
        return self.statistics.noise

    @property
    def tables(self) -> list[str]:
        """Aliases of tables with features."""
        return list(self.statistics.tables)

    @property
    def prediction_multiplier(self) -> float | None:
        """Of the noise in predictions, which is shared among rounds."""
        if self.privacy.prediction_epsilon is None:
            return None
        return Shares(self.privacy.prediction_epsilon, self.privacy.delta).multiplier(1 / self.rounds)

    def given_messages(self, alias: str) -> float:
        """The epsilon of a table's rows if predictions are taken as known (the paper's accounting)."""
        return min(self._epsilon(alias, 0.0), self.statistics.epsilon)

    def so_far(self, alias: str) -> float:
        """The same while it is learned."""
        return self.given_messages(alias)

    @property
    def most_so_far(self) -> float:
        """That of the table with least left."""
        return max(map(self.so_far, self.tables), default=0.0)

    def epsilon(self, alias: str) -> float:
        """The epsilon of a table's rows for all that was told: infinite if predictions had no noise."""
        return math.inf if self.spent.image is None else self._epsilon(alias, self.spent.prediction_precision)

    def together(self, aliases: Sequence[str], *, given_messages: bool = False, rows: int = 1) -> float:
        """The epsilon at one delta of somebody with a row, or several, in each of these tables.

        Divergences of all orders are added up (FedOnce, Theorem 4).
        """
        if rows > 1:
            return self._of_group(aliases, rows, given_messages)
        alone = self.given_messages if given_messages else self.epsilon
        if len(aliases) < 2 or math.isinf(alone(aliases[0])):
            return sum(map(alone, aliases))
        return self._total(aliases, 0.0 if given_messages else self.spent.prediction_precision)

    def _of_group(self, aliases: Sequence[str], rows: int, given_messages: bool) -> float:
        """The same for somebody with several rows in each table, which change a sum by as many times the bound of one.

        Predictions are a number for each row: those of k rows change by the root of k times the bound.
        """
        delta = self.statistics.delta_left(aliases, rows)
        if delta <= 0 or (not given_messages and self.spent.image is None):
            return math.inf
        predictions = 0.0 if given_messages else rows * len(aliases) * self.spent.prediction_precision
        return self._group_epsilon(aliases, rows, predictions, delta)

    def to_keep(self) -> dict[str, Any]:
        """What a saved model has of it: the settings, the noise, and how much of it was used."""
        return {
            "privacy": asdict(self.privacy),
            "tables": {alias: asdict(each) for alias, each in self.statistics.tables.items()},
            "rounds": self.asked_rounds,
            "encoders": asdict(self.encoders),
            "noise": asdict(self.spent),
        }
