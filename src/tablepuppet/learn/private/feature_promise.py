"""The feature-privacy promise of a fit: which noise each table adds, how often, and the epsilon that was spent.

This is the plan of a fit's noise, as numbers only: budgets, reports and warnings are computed from it. A table's
promise is divided: the share `ENCODERS` for encoder statistics, the rest for the rounds, whose number is fixed before
the first. Rounds use noisy sums or noisy steps (round_promises.py). Predictions have a separate promise. What is not
used, for instance if descent ends early, is not spent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import Noise, NoisyReleases
from tablepuppet.learn.private.encoder_releases import EncoderReleases
from tablepuppet.prep.encode.private_encode import EncoderNoise
from tablepuppet.privacy.accountant import Spending, gaussian_epsilon, group_epsilon
from tablepuppet.privacy.settings import Privacy
from tablepuppet.privacy.shares import SLACK, TAIL_DELTA, Shares, epsilon_of, tail_delta

ENCODERS = 0.2  # of a table's promise


@dataclass
class FeaturePromise(ABC):
    """The noise of a fit, by table, and how much of it was used. Statistics and rounds count what they release."""

    privacy: Privacy
    statistics: Mapping[str, EncoderReleases]  # by alias of a table with features
    asked_rounds: int | None  # None: chosen automatically
    slack: float = field(default=SLACK, init=False)  # of epsilon: covers the errors of samplers

    prediction_size: ClassVar[float] = 1.0  # the bound of predictions that have noise, in units of their usual size

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """The noise of rounds and predictions, with counts of the releases made so far."""

    @property
    @abstractmethod
    def usual_rounds(self) -> int:
        """The number of rounds if it is not set and predictions have no noise."""

    @property
    def rounds(self) -> int:
        """The number of rounds that the budget is divided over; a second one would fit the noise of predictions."""
        return self.asked_rounds or (self.usual_rounds if self.privacy.prediction_epsilon is None else 1)

    @property
    def steps(self) -> int:
        """The number of noisy gradients of a table in all rounds."""
        return self.rounds

    @property
    def is_sampled(self) -> bool:
        """Whether sampling of rows lowers epsilon."""
        return False

    def choose(self, parameters: Mapping[str, int]) -> Noise:
        """The noise of rounds, for this number of parameters by table."""
        return self.noise

    def within(self, most: int | None) -> Self:
        """The same promise with at most ``most`` rounds, if their number was not set; nothing is spent yet."""
        if most is None or self.asked_rounds is not None or self.privacy.prediction_epsilon is not None:
            return self
        return self if self.rounds <= most else replace(self, asked_rounds=max(1, most))

    def spend_all(self, parameters: Mapping[str, int], predictions: int) -> None:
        """Count all planned releases as made, and ``predictions`` more after the fit."""
        self.encoders.used.update({alias: each.expected for alias, each in self.statistics.items()})
        noise = self.choose(parameters)
        noise.steps, noise.images = self.steps, self.rounds + predictions

    # Noise

    @property
    def whole(self) -> float:
        """The epsilon that was asked for, of a table's rows."""
        if self.privacy.feature_epsilon is None:
            raise PrivacyError("prediction_epsilon is about predictions only: set feature_epsilon too")
        return self.privacy.feature_epsilon

    @cached_property
    def encoders(self) -> EncoderNoise:
        """The noise of encoder statistics."""
        shares = {alias: ENCODERS / each.planned for alias, each in self.statistics.items()}
        return EncoderNoise({a: self._shares(self.statistics[a].lists).multiplier(s) for a, s in shares.items()})

    @property
    def tables(self) -> list[str]:
        """Aliases of tables with features."""
        return list(self.statistics)

    def _shares(self, lists: int) -> Shares:
        """How the promise is divided for a table with this number of lists of categories."""
        return Shares(self.whole, self.privacy.delta, lists)

    @property
    def prediction_multiplier(self) -> float | None:
        """The noise multiplier of predictions; their promise is divided over the rounds."""
        if self.privacy.prediction_epsilon is None:
            return None
        return Shares(self.privacy.prediction_epsilon, self.privacy.delta).multiplier(1 / self.rounds)

    def row_noise(self, alias: str) -> float:
        """Noise in a table's parameters after all rounds, relative to the bound of one row; 0 without rounds."""
        for gradients in self.noise.of_rounds(alias)[-1:]:
            return gradients.multiplier / ((gradients.sampling or 1.0) * math.sqrt(self.steps))
        return 0.0

    # What was spent

    def given_messages(self, alias: str) -> float:
        """The epsilon of a table's rows if predictions are treated as public (the paper's accounting)."""
        return min(self._epsilon(alias, 0.0), self.whole)

    @property
    def so_far(self) -> float:
        """The largest of these epsilons during the fit; with samples, a slightly larger one that is fast to compute."""
        return max(map(self._so_far, self.tables), default=0.0)

    def epsilon(self, alias: str) -> float:
        """The epsilon of a table's rows for all releases: infinite if predictions had no noise."""
        return math.inf if self.noise.image is None else self._epsilon(alias, self._predictions)

    def together(self, aliases: Sequence[str], *, given_messages: bool = False, rows: int = 1) -> float:
        """The epsilon, at one delta, for a person with ``rows`` rows in each of these tables.

        Renyi divergences are added per order (FedOnce, Theorem 4).
        """
        if rows > 1:
            return self._of_group(aliases, rows, given_messages)
        alone = self.given_messages if given_messages else self.epsilon
        if len(aliases) < 2 or math.isinf(alone(aliases[0])):
            return sum(map(alone, aliases))
        return self._total(aliases, 0.0 if given_messages else self._predictions)

    def precision(self, alias: str, releases: int | None = None) -> float:
        """The sum of 1 / multiplier^2 over ``releases`` statistics of encoders, or over those that were made."""
        made = self.encoders.used.get(alias, 0) if releases is None else releases
        return float(made / self.encoders.multipliers[alias] ** 2)

    def delta_left(self, aliases: Sequence[str], rows: int = 1) -> float:
        """The delta that is left after lists of categories, for a person with ``rows`` rows in each of these tables."""
        lists = {alias: self.statistics[alias].lists for alias in aliases}
        if rows == 1:
            return self.privacy.delta - sum(lists.values()) * TAIL_DELTA
        noise = self.encoders.multipliers
        return self.privacy.delta - sum(lists[alias] * tail_delta(rows, noise[alias]) for alias in aliases)

    @property
    def _predictions(self) -> float:
        """The sum of 1 / multiplier^2 over noisy predictions so far."""
        return sum(each.precision for each in self.noise.predictions)

    def _made(self, alias: str) -> list[NoisyReleases]:
        """What a table has released in rounds."""
        return [each for each in self.noise.of_rounds(alias) if each.count]

    def _epsilon(self, alias: str, predictions: float) -> float:
        """The epsilon of all releases of a table; ``predictions`` is the sum of 1 / multiplier^2 of predictions."""
        beside, delta, made = self.precision(alias) + predictions, self.delta_left([alias]), self._made(alias)
        if not made:
            return epsilon_of(beside, delta)
        *others, last = made
        beside += sum(each.precision for each in others)
        return gaussian_epsilon(last.multiplier, delta, last.count, last.sampling, beside) + self.slack

    def _so_far(self, alias: str) -> float:
        if all(each.sampling is None for each in self._made(alias)):
            return self.given_messages(alias)
        return min(self._spending(alias, 0.0).epsilon(self.delta_left([alias])) + self.slack, self.whole)

    def _total(self, aliases: Sequence[str], predictions: float) -> float:
        """The same as `_epsilon` for several tables at one delta; ``predictions`` is per table."""
        costs = (self._spending(alias, predictions) for alias in aliases)
        return sum(costs, Spending()).epsilon(self.delta_left(aliases)) + len(aliases) * self.slack

    def _spending(self, alias: str, predictions: float) -> Spending:
        """The same as a cost that adds up."""
        beside = self.precision(alias) + predictions
        cost = Spending.of_gaussian(beside**-0.5) if beside else Spending()
        made = (Spending.of_gaussian(each.multiplier, each.count, each.sampling) for each in self._made(alias))
        return sum(made, cost)

    def _of_group(self, aliases: Sequence[str], rows: int, given_messages: bool) -> float:
        """The same for several rows per table: k rows change a sum by up to k times the bound of one row.

        Predictions are separate numbers per row: those of k rows change by sqrt(k) times the bound.
        """
        delta = self.delta_left(aliases, rows)
        if delta <= 0 or (not given_messages and self.noise.image is None):
            return math.inf
        predictions = 0.0 if given_messages else rows * len(aliases) * self._predictions
        beside = rows**2 * sum(map(self.precision, aliases)) + predictions
        made = [each for alias in aliases for each in self._made(alias)]
        if not made:
            return epsilon_of(beside, delta)
        steps = tuple((each.multiplier, each.count, each.sampling) for each in made)
        return group_epsilon(steps, delta, rows, beside) + len(aliases) * rows * self.slack

    def to_keep(self) -> dict[str, Any]:
        """What a saved model stores of it: settings, noise, and how much was used."""
        return {
            "privacy": asdict(self.privacy),
            "tables": {alias: asdict(each) for alias, each in self.statistics.items()},
            "rounds": self.asked_rounds,
            "encoders": asdict(self.encoders),
            "noise": asdict(self.noise),
        }
