"""The feature-privacy promise of a fit: how it is divided among noisy releases, and how many of them were made.

A table's promise is divided: the share `ENCODERS` for encoder statistics, the rest for the rounds, whose number is
fixed before the first. Rounds use noisy sums or noisy steps. Predictions have a separate promise. All of it follows
from the catalog alone, so a whole fit can be compared with a budget before its first release. What is not used, for
instance if descent ends early, is not spent. The releases are rows of a `NoisePlan`, which computes all figures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.linear.ridge import LARGE
from tablepuppet.learn.noise.plan import FeatureNoise, Noise, StepNoise
from tablepuppet.learn.solve.solvers import Stepping
from tablepuppet.prep.columns.selected import is_category
from tablepuppet.prep.pipelines.noisy_answers import EncoderNoise
from tablepuppet.privacy.accountant import addable, noise_multiplier
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.privacy.noise_plan import SLACK, TAIL_DELTA, NoisePlan, NoisyRelease, Shares
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.catalog import described
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn

STATISTICS = "encoders' statistics"
ENCODERS = 0.2  # of a table's promise
GRAM = 0.2  # the share of a promise by sums for the Gram matrix; gradients get what this and encoders leave
FEW_ROUNDS, MANY_ROUNDS = 5, 40  # by steps
STORED = {"prediction": "image", "predicted": "images"}  # names of the noise's fields in saved models
GRAIN = 1e-4  # of epsilon: sampler errors are rounded up to it, so noise does not depend on the exact size
USUAL_BATCH = 10_000  # rows of a table in the sample of a step
OF_COLUMN = {"number": 2, "category": 1}  # noisy releases: a range and moments, or a list


@dataclass(frozen=True)
class EncoderReleases:
    """Noisy statistics of one table's columns."""

    planned: int = 0  # releases among which the promise is divided
    expected: int = 0  # releases that will be made at most: policies with bounds or categories save the others
    lists: int = 0  # lists of categories: each needs a little of delta

    def __add__(self, other: EncoderReleases) -> EncoderReleases:
        return EncoderReleases(self.planned + other.planned, self.expected + other.expected, self.lists + other.lists)


def statistics_of(
    columns: Iterable[OutputColumn], categorical: frozenset[str], known: frozenset[str] = frozenset()
) -> dict[str, EncoderReleases]:
    """The statistics that some columns need, by table; for ``known`` columns all policies give the values."""
    found: dict[str, EncoderReleases] = {}
    for column in columns:
        is_list = is_category(column, categorical)
        count = OF_COLUMN["category" if is_list else "number"]
        one = EncoderReleases(count, 0 if column.name in known else count, int(is_list))
        found[column.alias] = found.get(column.alias, EncoderReleases()) + one
    return found


def known_columns(plan: Plan) -> frozenset[str]:
    """Features whose bounds or categories are given by the policies of all their parties."""
    found = set()
    for column in plan.query.features:
        what = "categories" if is_category(column, plan.query.categorical) else "bounds"
        shards = plan.tables[column.alias].shards
        if all(described(column.expression, getattr(shard, what)) is not None for shard in shards):
            found.add(column.name)
    return frozenset(found)


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
        """The promise divided over at most ``most`` rounds, if their number was not set; nothing is spent yet."""
        if most is None or self.asked_rounds is not None or self.privacy.prediction_epsilon is not None:
            return self
        return self if self.rounds <= most else replace(self, asked_rounds=max(1, most))

    def spend_all(self, parameters: Mapping[str, int], predictions: int) -> None:
        """Count all planned releases as made, and ``predictions`` more after the fit."""
        self.encoders.used.update({alias: each.expected for alias, each in self.statistics.items()})
        noise = self.choose(parameters)
        noise.steps, noise.predicted = self.steps, self.rounds + predictions

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

    def releases(self, alias: str) -> list[NoisyRelease]:
        """The releases that a table has made so far; lists of categories take of delta even if they had no noise."""
        made, multiplier = self.encoders.used.get(alias, 0), self.encoders.multipliers[alias]
        statistics = NoisyRelease(alias, STATISTICS, made, multiplier, lists=self.statistics[alias].lists)
        return [statistics, *self.noise.of_rounds(alias), *self.noise.predictions(alias)]

    @property
    def made(self) -> NoisePlan:
        """All releases so far."""
        return NoisePlan(self.privacy.delta, tuple(r for a in self.tables for r in self.releases(a)), self.slack)

    def epsilon(self, aliases: Sequence[str], *, given_messages: bool = False, rows: int = 1) -> float:
        """The epsilon of all releases, at one delta, for a person with ``rows`` rows in each of these tables.

        It is infinite if predictions had no noise, unless these are treated as public (``given_messages``).
        """
        if given_messages:
            found = self.made.without_predictions().epsilon(aliases, rows)
            return min(found, self.whole) if len(aliases) == rows == 1 else found
        return math.inf if self.noise.prediction is None else self.made.epsilon(aliases, rows)

    @property
    def so_far(self) -> float:
        """The largest epsilon of a table during the fit, given messages; with samples, slightly larger but quick."""
        made = self.made.without_predictions()
        return max((min(made.epsilon([alias], quick=True), self.whole) for alias in self.tables), default=0.0)

    def to_keep(self) -> dict[str, Any]:
        """What a saved model stores of it: settings, noise, and how much was used."""
        return {
            "privacy": asdict(self.privacy),
            "tables": {alias: asdict(each) for alias, each in self.statistics.items()},
            "rounds": self.asked_rounds,
            "encoders": asdict(self.encoders),
            "noise": {STORED.get(name, name): value for name, value in asdict(self.noise).items()},
        }


@dataclass
class SumPromise(FeaturePromise):
    """Noise on Gram matrices and gradients. All of it is Gaussian, so costs add up as sums of 1 / multiplier^2."""

    prediction_size = LARGE

    @property
    def usual_rounds(self) -> int:
        """Few: more rounds would need more noise in each."""
        return 3

    @cached_property
    def noise(self) -> FeatureNoise:
        """One noise for all tables: as the table with most lists of categories needs it."""
        shares = self._shares(max((each.lists for each in self.statistics.values()), default=0))
        step = shares.multiplier((1 - ENCODERS - GRAM) / self.rounds)
        return FeatureNoise(
            self.privacy.clip_norm, shares.multiplier(GRAM), step, prediction=self.prediction_multiplier
        )


@dataclass
class StepPromise(FeaturePromise):
    """Gaussian noise on the steps that a table takes by itself, each on a sample of its rows (steps.py).

    Steps use what encoder statistics leave of a table's promise.
    """

    local_steps: int
    samplings: Mapping[str, float]
    step_noise: StepNoise = field(init=False)

    def __post_init__(self) -> None:
        self.step_noise = self._noise_of({})  # no steps yet

    @property
    def noise(self) -> StepNoise:
        """The noise that was chosen."""
        return self.step_noise

    @property
    def steps_of_round(self) -> int:
        """If there is only one round, it has the steps of all rounds."""
        whole = self.asked_rounds is None and self.privacy.prediction_epsilon is not None
        return self.local_steps * (self.usual_rounds if whole else 1)

    @property
    def steps(self) -> int:
        """The number of steps of a table in all rounds."""
        return self.rounds * self.steps_of_round

    @property
    def is_sampled(self) -> bool:
        """Whether sampling of rows lowers epsilon."""
        return any(sampling < 1 for sampling in self.samplings.values())

    @property
    def usual_rounds(self) -> int:
        """More rounds for less noise: 5 for an epsilon of 1 or less, 20 for 10. Measured on MovieLens."""
        return min(MANY_ROUNDS, round(FEW_ROUNDS * math.pow(max(1.0, self.whole), 0.6)))

    def _noise_of(self, multipliers: Mapping[str, float]) -> StepNoise:
        return StepNoise(self.privacy.clip_norm, multipliers, self.samplings, prediction=self.prediction_multiplier)

    def choose(self, parameters: Mapping[str, int]) -> StepNoise:
        """Compute the noise of steps, for this number of parameters by table. It may take seconds."""
        grain = GRAIN * self.whole
        errors = SLACK + self.steps * sampling_epsilon(max(parameters.values(), default=1))
        self.slack = grain * math.ceil(errors / grain)
        self.step_noise = self._noise_of({alias: self._multiplier(alias) for alias in parameters})
        return self.step_noise

    def _multiplier(self, alias: str) -> float:
        statistics, epsilon, sampling = self.statistics[alias], self.whole - self.slack, self.samplings[alias]
        if epsilon <= 0:
            raise PrivacyError(f"feature_epsilon {self.whole:g} is too small for {self.steps:,} steps: use more")
        delta = self.privacy.delta - statistics.lists * TAIL_DELTA
        beside = statistics.expected / self.encoders.multipliers[alias] ** 2
        found = noise_multiplier(epsilon, delta, self.steps, None if sampling >= 1 else sampling, beside)
        return addable(found, self.whole, delta)

    def to_keep(self) -> dict[str, Any]:
        """What a saved model stores of it: settings, noise, and how much was used."""
        steps = {"local_steps": self.local_steps, "samplings": self.samplings, "slack": self.slack}
        return super().to_keep() | {"steps": steps}


def sampling_of(batch_size: int | str, rows: Mapping[str, int]) -> dict[str, float]:
    """The sampling probability of a row, by table, such that a sample has ``batch_size`` rows on average.

    With the default size, smaller tables use all rows. PrivacyError if a size was set that is larger than a table.

    >>> sampling_of(100, {"a": 1000})
    {'a': 0.1}
    """
    batch_size = USUAL_BATCH if isinstance(batch_size, str) else batch_size
    alias = min(rows, key=rows.__getitem__, default="")
    if rows and batch_size > rows[alias] and batch_size != USUAL_BATCH:
        raise PrivacyError(
            f"batch_size {batch_size:,} is larger than the {rows[alias]:,} rows of table {alias!r}: with "
            "feature_epsilon it counts the rows that a table samples for a step; use so many or less, or leave it at "
            "its default"
        )
    return {alias: min(1.0, batch_size / max(count, 1)) for alias, count in rows.items()}


def new_promise(
    privacy: Privacy, plan: Plan, rounds: int | None, rows: Mapping[str, int], steps: Stepping | None
) -> FeaturePromise:
    """The promise for ``rows`` rows by table; with ``steps``, for noisy steps with these settings."""
    statistics = statistics_of(plan.query.features, plan.query.categorical, known_columns(plan))
    if steps is None:
        return SumPromise(privacy, statistics, rounds)
    return StepPromise(privacy, statistics, rounds, steps.local_steps, sampling_of(steps.batch_size, rows))


def read_promise(kept: Mapping[str, Any]) -> FeaturePromise:
    """The promise that `FeaturePromise.to_keep` stored, with its counts: later predictions are added to them."""
    privacy = Privacy.of_settings(kept["privacy"])
    statistics = {alias: EncoderReleases(**each) for alias, each in kept["tables"].items()}
    names = {stored: name for name, stored in STORED.items()}
    noise = {names.get(stored, stored): value for stored, value in kept["noise"].items()}
    found: SumPromise | StepPromise
    if steps := kept.get("steps"):
        found = StepPromise(privacy, statistics, kept["rounds"], steps["local_steps"], steps["samplings"])
        found.step_noise, found.slack = StepNoise(**noise), steps["slack"]
    else:
        found = SumPromise(privacy, statistics, kept["rounds"])
        found.noise = FeatureNoise(**noise)
    found.encoders = EncoderNoise(kept["encoders"]["multipliers"], kept["encoders"]["used"])
    return found
