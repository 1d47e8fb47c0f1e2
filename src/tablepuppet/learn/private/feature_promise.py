"""What a fit with feature privacy may tell of each table, and what it came to.

A table's promise is shared: `ENCODERS` for the statistics of encoders, `GRAM` for its Gram matrix, the rest for the
gradients of a number of rounds that is fixed before the first. Predictions have a promise of their own. What was not
used, as when a policy gives bounds, or descent ends early, is not spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import FeatureNoise, Noise
from tablepuppet.prep.private_encode import EncoderNoise, is_category
from tablepuppet.privacy.settings import Privacy
from tablepuppet.privacy.shares import SLACK, TAIL_DELTA, Shares, epsilon_of, tail_delta
from tablepuppet.sql.query import OutputColumn

ENCODERS, GRAM = 0.2, 0.2
ROUNDS = 3  # more would need more noise in each
NOISY_ROUNDS = 1  # where predictions have noise: the next round would learn from it
RELEASES = {"number": 2, "category": 1}  # of a column's statistics


@dataclass
class FeaturePromise:
    """The noise of a fit, by table, and how much of it was used."""

    privacy: Privacy
    columns: tuple[OutputColumn, ...]
    categorical: frozenset[str]
    asked_rounds: int | None  # None: as many as are best
    known: frozenset[str] = field(default=frozenset(), kw_only=True)  # columns that policies of all parties describe

    @property
    def rounds(self) -> int:
        """That noise is planned for."""
        return self.asked_rounds or (ROUNDS if self.privacy.prediction_epsilon is None else NOISY_ROUNDS)

    def within(self, most: int | None) -> Self:
        """The same with no more rounds than these, where their number was left open."""
        if most is None or self.asked_rounds is not None or self.privacy.prediction_epsilon is not None:
            return self
        return self if self.rounds <= most else replace(self, asked_rounds=max(1, most))

    @property
    def is_sampled(self) -> bool:
        """Whether epsilon is lower since parties used samples of their rows."""
        return False

    @property
    def _feature_epsilon(self) -> float:
        if self.privacy.feature_epsilon is None:
            raise PrivacyError("prediction_epsilon is about predictions only: set feature_epsilon too")
        return self.privacy.feature_epsilon

    @cached_property
    def planned(self) -> Counter[str]:
        """Releases of statistics by table that noise is shared among."""
        found: Counter[str] = Counter()
        for column in self.columns:
            found[column.alias] += RELEASES["category" if is_category(column, self.categorical) else "number"]
        return found

    @cached_property
    def expected(self) -> dict[str, int]:
        """Those of them that will be made at most: policies that give bounds or categories save the others."""
        found = dict.fromkeys(self.planned, 0)
        for column in self.columns:
            if column.name not in self.known:
                found[column.alias] += RELEASES["category" if is_category(column, self.categorical) else "number"]
        return found

    @cached_property
    def lists(self) -> Counter[str]:
        """Lists of categories by table: they need a little of delta."""
        return Counter(column.alias for column in self.columns if is_category(column, self.categorical))

    def _shares(self, alias: str) -> Shares:
        return Shares(self._feature_epsilon, self.privacy.delta, self.lists[alias])

    @cached_property
    def encoders(self) -> EncoderNoise:
        """The noise of statistics."""
        return EncoderNoise(
            {alias: self._shares(alias).multiplier(ENCODERS / count) for alias, count in self.planned.items()}
        )

    @cached_property
    def noise(self) -> FeatureNoise:
        """The noise of rounds: all tables alike, so that of the one with most lists."""
        shares = Shares(self._feature_epsilon, self.privacy.delta, max(self.lists.values(), default=0))
        image = None
        if self.privacy.prediction_epsilon is not None:
            image = Shares(self.privacy.prediction_epsilon, self.privacy.delta).multiplier(1 / self.rounds)
        step = shares.multiplier((1 - ENCODERS - GRAM) / self.rounds)
        return FeatureNoise(self.privacy.clip_norm, shares.multiplier(GRAM), step, image)

    @property
    def spent(self) -> Noise:
        """Where predictions are counted."""
        return self.noise

    def to_keep(self) -> dict[str, Any]:
        """The noise of a saved model, and how much of it was used."""
        return {"encoders": asdict(self.encoders), "noise": asdict(self.noise)}

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Count on from what a saved model has."""
        self.encoders = EncoderNoise(**kept["encoders"])
        self.noise = FeatureNoise(**kept["noise"])

    def _precision(self, alias: str) -> float:
        """The sum of 1 / multiplier^2 of what was told of a table but predictions."""
        noise, told = self.noise, self.encoders.used.get(alias, 0) / self.encoders.multipliers[alias] ** 2
        return told + 1 / noise.gram**2 + noise.steps / noise.step**2

    def given_messages(self, alias: str) -> float:
        """The epsilon of a table's rows if predictions are taken as known (the paper's accounting)."""
        return min(epsilon_of(self._precision(alias), self._delta(alias)), self._feature_epsilon)

    def so_far(self, alias: str) -> float:
        """The same while it is learned."""
        return self.given_messages(alias)

    def epsilon(self, alias: str) -> float:
        """The epsilon of a table's rows for all that was told: infinite if predictions had no noise."""
        noise = self.noise
        if noise.image is None:
            return math.inf
        return epsilon_of(self._precision(alias) + noise.images / noise.image**2, self._delta(alias))

    def together(self, aliases: Sequence[str], *, given_messages: bool = False, rows: int = 1) -> float:
        """The epsilon at one delta of somebody with a row, or several, in each of these tables.

        Noise is Gaussian everywhere: adding up divergences of all orders (FedOnce, Theorem 4) is adding up precisions.
        """
        if rows > 1:
            return self._of_group(aliases, rows, given_messages)
        if len(aliases) < 2:
            return sum(map(self.given_messages if given_messages else self.epsilon, aliases))
        noise, precision = self.noise, sum(map(self._precision, aliases))
        if not given_messages:
            if noise.image is None:
                return math.inf
            precision += len(aliases) * noise.images / noise.image**2
        return epsilon_of(precision, self._delta_of(aliases)) + (len(aliases) - 1) * SLACK

    def _delta(self, alias: str) -> float:
        return self._delta_of([alias])

    def _delta_of(self, aliases: Sequence[str]) -> float:
        """What lists of categories leave of it."""
        return self.privacy.delta - sum(self.lists[alias] for alias in aliases) * TAIL_DELTA

    def _of_group(self, aliases: Sequence[str], rows: int, given_messages: bool) -> float:
        """The same for somebody with several rows in each table, which change a sum by as many times the bound of one.

        Predictions are a number for each row: those of k rows change by the root of k times the bound.
        """
        lists = ((self.lists[alias], self.encoders.multipliers[alias]) for alias in aliases)
        delta = self.privacy.delta - sum(count * tail_delta(rows, multiplier) for count, multiplier in lists)
        image = self._image
        if delta <= 0 or (not given_messages and image is None):
            return math.inf
        images = 0.0 if given_messages or image is None else rows * len(aliases) * self.spent.images / image**2
        return self._group_epsilon(aliases, rows, images, delta)

    @property
    def _image(self) -> float | None:
        """The multiplier of predictions."""
        return self.noise.image

    def _group_epsilon(self, aliases: Sequence[str], rows: int, images: float, delta: float) -> float:
        """``images`` is the sum of 1 / multiplier^2 of predictions."""
        precision = rows**2 * sum(map(self._precision, aliases)) + images
        return epsilon_of(precision, delta) + (len(aliases) * rows - 1) * SLACK
