"""`NoisePlan`: which values tables release with noise, with how much, and how often. Every figure is computed from it.

`Shares` divides a promise among a table's releases. Input: rows of releases, those that are planned or those that were
made. Output: the epsilon that is stated for a person with rows in some tables, and what parties' ledgers are charged at
most. It uses no data. All noise is Gaussian, and without sampling releases of multipliers s_1, s_2, ... are together
exactly as private as one of (1 / s_1^2 + 1 / s_2^2 + ...)^(-1/2) (Dong, Roth, Su 2022): shares of 1 / s^2 add up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tablepuppet.privacy.accountant import Spending, addable, gaussian_epsilon, group_epsilon, noise_multiplier
from tablepuppet.privacy.noise import sampling_epsilon
from tablepuppet.runs.figures import number

PREDICTIONS, LABELS = "predictions", "labels"
SLACK = 1e-6  # of epsilon, for what `sampling_epsilon` adds: enough for 8 million noisy numbers
TAIL = 7.04  # standard deviations that Gaussian noise exceeds with probability 1e-12
TAIL_DELTA = 1e-12
TableCosts = Mapping[tuple[str, str], Spending]
"""What is charged, by party and table."""


@dataclass(frozen=True)
class Shares:
    """A promise of ``epsilon`` at ``delta`` for every row of a table. ``tails`` are releases that depend on noise not
    exceeding `TAIL`, such as lists of the categories that are frequent enough; each takes `TAIL_DELTA` of delta.
    """

    epsilon: float
    delta: float
    tails: int = 0

    @property
    def _whole(self) -> float:
        """The multiplier of a single release that uses all of it."""
        return noise_multiplier(self.epsilon - min(SLACK, self.epsilon / 2), self.delta - self.tails * TAIL_DELTA)

    def multiplier(self, share: float) -> float:
        """The noise of a release that uses a share of it.

        >>> round(Shares(1.0, 1e-5).multiplier(0.25) / Shares(1.0, 1e-5).multiplier(1.0), 6)
        2.0
        """
        return addable(self._whole / math.sqrt(share), self.epsilon, self.delta)


def tail_delta(rows: int, multiplier: float) -> float:
    """The delta of one noisy list of categories for somebody with this number of rows in a table.

    A category is listed whose noisy count is above 1 + TAIL noises; at worst all rows have one that nobody else has, or
    each has its own.

    >>> tail_delta(1, 10.0) < TAIL_DELTA < tail_delta(2, 10.0)
    True
    """
    return rows * math.erfc((TAIL - (rows - 1) / multiplier) / math.sqrt(2)) / 2


@dataclass(frozen=True)
class NoisyRelease:
    """Values of one kind that a table releases ``times`` times, with Gaussian noise.

    ``multiplier`` is the noise's standard deviation divided by what a row may add. ``lists`` counts lists of frequent
    categories, each of which takes `TAIL_DELTA` of delta. What a ledger is charged also depends on ``numbers``: how
    many there are in all these releases together.
    """

    alias: str  # of a table's use: one promise is for each
    what: str
    times: int
    multiplier: float
    sampling: float | None = None  # the probability with which a row is in a step; None: there are no steps
    lists: int = 0
    numbers: int = 1
    table: str = ""  # its name
    parties: tuple[str, ...] = ()  # each of them makes these releases

    @property
    def precision(self) -> float:
        """The sum of 1 / multiplier^2: without sampling, costs add up as such sums."""
        return self.times / self.multiplier**2

    @property
    def noise(self) -> str:
        """The noise, for people."""
        return f"Gaussian, {number(self.multiplier, 3)} times what a row may add"

    @property
    def spending(self) -> Spending:
        """The cost of the noise alone."""
        return Spending.of_gaussian(self.multiplier, self.times, self.sampling) if self.times else Spending()

    @property
    def charge(self) -> Spending:
        """What a ledger is charged at most: the errors of samplers, and of lists, count too."""
        rounding = Spending.of_pure(sampling_epsilon(max(self.numbers, 1))) if self.times else Spending()
        return self.spending + replace(rounding, tail=self.lists * TAIL_DELTA)


@dataclass(frozen=True)
class NoisyLabels:
    """Labels that their table releases once, with noise of a pure epsilon. ``noise`` is for people."""

    table: str
    parties: tuple[str, ...]
    noise: str
    epsilon: float
    what: str = LABELS
    times: int = 1
    multiplier: None = None
    sampling: None = None

    @property
    def charge(self) -> Spending:
        """What a ledger is charged, once, however often they are asked for."""
        return Spending.of_pure(self.epsilon)


@dataclass(frozen=True)
class NoisePlan:
    """The releases of all tables whose features get noise, and the delta at which epsilons are stated.

    ``slack`` is added to epsilon for each table: it covers the errors of samplers.
    """

    delta: float
    releases: tuple[NoisyRelease, ...]
    slack: float = SLACK

    def without_predictions(self) -> NoisePlan:
        """The plan where predictions are treated as public (the paper's accounting)."""
        kept = tuple(each for each in self.releases if each.what != PREDICTIONS)
        return NoisePlan(self.delta, kept, self.slack)

    def epsilon(self, aliases: Collection[str], rows: int = 1, *, quick: bool = False) -> float:
        """The epsilon, at one delta, of a person with ``rows`` rows in each of these tables.

        Without steps it is exact. With steps, Renyi divergences of several tables are added per order (FedOnce, Theorem
        4); so are those of one table if it has to be ``quick``, which gives a slightly larger figure. k rows change a
        sum by up to k times the bound of one; predictions are a number per row, and change by sqrt(k) times theirs.
        """
        made = [each for each in self.releases if each.alias in aliases]
        delta = self.delta - sum(
            each.lists * (TAIL_DELTA if rows == 1 else tail_delta(rows, each.multiplier)) for each in made
        )
        if delta <= 0:
            return math.inf
        slack = rows * len(aliases) * self.slack
        steps = [each for each in made if each.sampling is not None and each.times]
        others = [each for each in made if each.sampling is None]
        beside = sum(each.precision * (rows if each.what == PREDICTIONS else rows**2) for each in others)
        if not steps:
            return gaussian_epsilon(beside**-0.5, delta) + slack if beside else 0.0
        if rows > 1:
            counts = tuple((each.multiplier, each.times, each.sampling) for each in steps)
            return group_epsilon(counts, delta, rows, beside) + slack
        is_sampled = any(each.sampling != 1 for each in steps)
        if len(aliases) > 1 or (quick and is_sampled):
            return sum((each.spending for each in made), Spending()).epsilon(delta) + slack
        [step] = steps
        return gaussian_epsilon(step.multiplier, delta, step.times, step.sampling, beside) + slack


def charges(releases: Iterable[NoisyRelease | NoisyLabels]) -> TableCosts:
    """What each party is charged for a table, at most."""
    return added({(party, each.table): each.charge} for each in releases for party in each.parties)


def added(costs: Iterable[TableCosts]) -> TableCosts:
    """The sum of costs."""
    found: dict[tuple[str, str], Spending] = {}
    for each in costs:
        for key, cost in each.items():
            found[key] = found[key] + cost if key in found else cost
    return found
