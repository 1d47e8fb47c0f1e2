"""The two promises of a fit, by noisy sums and by noisy steps; creates that of a fit, and reads that of a saved model.

The noise of both follows from the catalog alone, so a whole fit can be compared with a budget before its first release.
The number of rounds is fixed before the first. Rounds that are not run cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.linear.ridge import LARGE
from tablepuppet.learn.noise.plan import FeatureNoise, StepNoise
from tablepuppet.learn.private.encoder_releases import EncoderReleases, known_columns, statistics_of
from tablepuppet.learn.private.feature_promise import ENCODERS, FeaturePromise
from tablepuppet.learn.solve.solvers import Stepping
from tablepuppet.prep.encode.private_encode import EncoderNoise
from tablepuppet.privacy.accountant import addable, noise_multiplier
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.privacy.settings import Privacy
from tablepuppet.privacy.shares import SLACK, epsilon_of
from tablepuppet.sql.plan import Plan

GRAM = 0.2  # the share of a promise by sums for the Gram matrix; gradients get what this and encoders leave
FEW_ROUNDS, MANY_ROUNDS = 5, 40  # by steps
GRAIN = 1e-4  # of epsilon: sampler errors are rounded up to it, so noise does not depend on the exact size
USUAL_BATCH = 10_000  # rows of a table in the sample of a step


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
        """The same for all tables: as the table with most lists of categories needs it."""
        shares = self._shares(max((each.lists for each in self.statistics.values()), default=0))
        step = shares.multiplier((1 - ENCODERS - GRAM) / self.rounds)
        return FeatureNoise(self.privacy.clip_norm, shares.multiplier(GRAM), step, image=self.prediction_multiplier)

    def _total(self, aliases: Sequence[str], predictions: float) -> float:
        """Exact, since there are no samples."""
        made = sum(each.precision for alias in aliases for each in self._made(alias))
        precision = sum(map(self.precision, aliases)) + made + len(aliases) * predictions
        return epsilon_of(precision, self.delta_left(aliases)) + (len(aliases) - 1) * SLACK


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
        return StepNoise(self.privacy.clip_norm, multipliers, self.samplings, image=self.prediction_multiplier)

    def choose(self, parameters: Mapping[str, int]) -> StepNoise:
        """Compute the noise of steps, for this number of parameters by table. It may take seconds."""
        grain = GRAIN * self.whole
        errors = SLACK + self.steps * sampling_epsilon(max(parameters.values(), default=1))
        self.slack = grain * math.ceil(errors / grain)
        self.step_noise = self._noise_of({alias: self._multiplier(alias) for alias in parameters})
        return self.step_noise

    def _multiplier(self, alias: str) -> float:
        epsilon, delta, sampling = self.whole - self.slack, self.delta_left([alias]), self.samplings[alias]
        if epsilon <= 0:
            raise PrivacyError(f"feature_epsilon {self.whole:g} is too small for {self.steps:,} steps: use more")
        beside = self.precision(alias, self.statistics[alias].expected)
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
    found: SumPromise | StepPromise
    if steps := kept.get("steps"):
        found = StepPromise(privacy, statistics, kept["rounds"], steps["local_steps"], steps["samplings"])
        found.step_noise, found.slack = StepNoise(**kept["noise"]), steps["slack"]
    else:
        found = SumPromise(privacy, statistics, kept["rounds"])
        found.noise = FeatureNoise(**kept["noise"])
    found.encoders = EncoderNoise(**kept["encoders"])
    return found
