"""Answers the questions of a fit under feature privacy: from what policies say about columns, or with noise.

What is asked is the same whatever the steps are: a range and sums for a number without bounds in the policy, a list
for a text without categories there (noisy_sums.py). The results of steps are scaled by bounds (`bounds_after`),
which costs nothing. A step is a function of a row's own cells, and after the last step parties set null records to
zero: so sensitivities are the same as without steps.

Statistics count every row once, however often it is joined, so a row changes a histogram by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.prep.columns.noisy_sums import CATEGORIES, MOMENTS, RANGES, range_of
from tablepuppet.prep.columns.selected import is_category
from tablepuppet.prep.columns.statistics import CategorySummary, NumberSummary, key_family, merge_categories
from tablepuppet.prep.encode.program import bounds_after
from tablepuppet.prep.pipelines.needs import Categories, Question, Sums, SumsAfter, WeightsAfter
from tablepuppet.sql.query import OutputColumn

HIDDEN = "has no range that noise does not hide, or one value only"
RARE = "has no category that enough rows have"
_EVEN = math.sqrt(12)  # the width of an even spread, in standard deviations


@dataclass
class EncoderNoise:
    """The noise multipliers of statistics by table; ``used`` counts the releases that had noise."""

    multipliers: Mapping[str, float]
    used: dict[str, int] = field(default_factory=dict)

    def use(self, alias: str) -> None:
        """Count one release."""
        self.used[alias] = self.used.get(alias, 0) + 1


class NoisyAnswers:
    """Answers from policies, or with noise; after steps, from bounds."""

    ids: frozenset[str] = frozenset()  # the check would depend on the data

    def __init__(
        self, client: Client, blinding: str, rows: float, questions: Iterable[Question[Any]], noise: EncoderNoise
    ):
        query = client.plan.query
        texts = [each.column for each in questions if isinstance(each, Categories)]
        numbers = [column for column in query.features if not is_category(column, query.categorical)]
        self._rows, self._noise = rows, noise
        self._texts = {column.name: self._ask_categories(client, column, blinding) for column in texts}
        self._numbers = fit_numbers(client, numbers, rows, noise)

    def answer(self, questions: Sequence[Question[Any]]) -> None:
        """From what parties were asked when this was made; nobody is asked again."""
        for each in questions:
            match each:
                case Sums():
                    known = self._numbers[each.column.name]
                    each.drop(each.column, HIDDEN) if known is None else each.answer(known)
                case Categories():
                    found = self._categories(each.column)
                    each.answer(found) if found.distinct else each.drop(each.column, RARE)
                case SumsAfter():
                    self._spread(each)
                case WeightsAfter():  # as if all codes were as frequent
                    size = each.size or 0
                    each.answer(np.full(size, self._rows / max(size, 1)))
                case _:
                    raise PrivacyError(
                        "a statistic has no form with noise, and the steps that ask for it were not refused"
                    )

    def _ask_categories(self, client: Client, column: OutputColumn, blinding: str) -> Pending:
        """Ask for the categories of a text that policies list, or that enough rows have."""
        asked = {"column": column.name, "family": key_family(column), "blinding": blinding}
        given = {**asked, "multiplier": self._noise.multipliers[column.alias]}
        return client.ask(CATEGORIES, {column.alias: given})

    def _categories(self, column: OutputColumn) -> CategorySummary:
        """These categories over all shards; how many rows have none is not known, some may."""
        replies = self._texts[column.name].read()[column.alias]
        if not all(reply["known"] for reply in replies):
            self._noise.use(column.alias)
        return replace(merge_categories([{**reply, "missing": 0.0, "top": 0.0} for reply in replies]), missing=1.0)

    def _spread(self, question: SumsAfter) -> None:
        """As if values were spread evenly between the bounds that follow from those of columns that are read."""
        table = question.table()
        read = {column.name: self._numbers[column.name] for column in table.numbers}
        known = {name: (found.minimum, found.maximum) for name, found in read.items() if found is not None}
        if len(known) < len(read):
            question.drop(question.column, HIDDEN)
        else:
            question.answer(spread_evenly(self._rows, *bounds_after(table.steps, known)[question.column.name]))


def spread_evenly(rows: float, low: float, high: float) -> NumberSummary:
    """Statistics of numbers that are spread evenly between bounds."""
    return summary_of(rows, (low + high) / 2, (high - low) / _EVEN, low, high)


def summary_of(rows: float, mean: float, scale: float, low: float, high: float) -> NumberSummary:
    """Statistics of numbers of which these are known; which are missing is not."""
    return NumberSummary(rows, mean, rows * scale**2, 0.0, rows, low, high)


def fit_numbers(
    client: Client, columns: Sequence[OutputColumn], rows: float, noise: EncoderNoise
) -> dict[str, NumberSummary | None]:
    """By name, from policies' bounds or with noise; None for a column whose range noise hides.

    Minimum and maximum are bounds between which values are expected.
    """
    by_alias: dict[str, list[OutputColumn]] = {}
    for column in columns:
        by_alias.setdefault(column.alias, []).append(column)
    asked = {
        alias: {"columns": [column.name for column in listed], "multiplier": noise.multipliers[alias]}
        for alias, listed in by_alias.items()
    }
    replies = client.ask(RANGES, asked).read()
    found: dict[str, NumberSummary | None] = {}
    open_: dict[str, list[tuple[OutputColumn, float, float]]] = {}
    for alias, listed in by_alias.items():
        for place, column in enumerate(listed):
            bounds = [reply["known"][place] for reply in replies[alias]]
            ranges = [(float(low), float(high)) for low, high in bounds if not math.isnan(low + high)]
            is_known = len(ranges) == len(bounds)  # else some shard has returned noisy counts
            if not is_known:
                noise.use(alias)
                counts = np.sum([reply["counts"][place] for reply in replies[alias]], axis=0)
                seen = range_of(counts, noise.multipliers[alias] * math.sqrt(len(bounds)))
                ranges += [] if seen is None else [seen]
            low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
            if is_known:
                found[column.name] = spread_evenly(rows, low, high)
            elif low == high:
                found[column.name] = None
            else:
                open_.setdefault(alias, []).append((column, low, high))
    return found | _fit_moments(client, open_, rows, noise)


def mean_and_spread(count: float, total: float, squares: float, sigma: float) -> tuple[float, float]:
    """Mean and scale of values between -1 and 1 from their sums, each with noise of standard deviation ``sigma``.

    The variance is a small difference of noisy numbers, and counts as no less than its own noise: a scale that is too
    large makes a column weak, one that is too small would make its values huge.

    >>> mean_and_spread(1000.0, 0.0, 250.0, sigma=0.0)
    (0.0, 0.5)
    """
    rows = max(count, sigma, 1.0)
    mean = float(min(max(total / rows, -1.0), 1.0))
    variance = max(squares / rows - mean**2, 0.0)
    noise = sigma / rows * math.sqrt(1 + 4 * mean**2 + (variance - mean**2) ** 2)  # of the variance, to first order
    return mean, math.sqrt(min(max(variance, noise, 1e-4), 1.0))


def _fit_moments(
    client: Client, columns: Mapping[str, Sequence[tuple[OutputColumn, float, float]]], rows: float, noise: EncoderNoise
) -> dict[str, NumberSummary | None]:
    asked = {
        alias: {
            "columns": [column.name for column, _, _ in listed],
            "lows": np.array([low for _, low, _ in listed]),
            "highs": np.array([high for _, _, high in listed]),
            "multiplier": noise.multipliers[alias],
        }
        for alias, listed in columns.items()
    }
    replies = client.ask(MOMENTS, asked).read()
    found: dict[str, NumberSummary | None] = {}
    for alias, listed in columns.items():
        sums = np.sum([reply["sums"] for reply in replies[alias]], axis=0)
        sigma = math.sqrt(3.0 * len(replies[alias])) * noise.multipliers[alias]
        for (column, low, high), (count, total, squares) in zip(listed, sums, strict=True):
            noise.use(alias)
            mean, spread = mean_and_spread(count, total, squares, sigma)
            half = (high - low) / 2
            found[column.name] = summary_of(rows, low + half * (1 + mean), half * spread, low, high)
    return found
