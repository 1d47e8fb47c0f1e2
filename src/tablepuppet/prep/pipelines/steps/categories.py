"""Steps for categories: `OneHot`, `Recode`, `Ordinal`, `Hash`. The coordinator knows categories as digests."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.columns.statistics import CategorySummary
from tablepuppet.prep.encode.encode import NO_DIGESTS
from tablepuppet.prep.encode.specs import MOST_CODES, Hashed, Lookup, Other
from tablepuppet.prep.pipelines.attempt import Attempt, Column, Dropped, Kind
from tablepuppet.prep.pipelines.moments import Moments
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_whole, setting
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, family

MOST_LISTED = 10_000  # categories of a column whose rare ones are pooled


def by_frequency(found: CategorySummary) -> NDArray[np.intp]:
    """The order of codes: the most frequent first, equally frequent ones of public columns always alike."""
    return np.lexsort((found.ties if len(found.ties) else np.arange(found.distinct), -found.weights))


def list_categories(column: Column, attempt: Attempt, most: int | None) -> NDArray[np.float64]:
    """Give every category of a column a code; joined rows by code.

    It is left out if it has none, or more than ``most`` (None: than a step may list).
    """
    _check_category(column, attempt)
    if column.kind == "text" and not len(column.digests):
        most = MOST_LISTED if most is None else most
        found = attempt.statistics.categories(column.column, most)
        if found.distinct > most:
            raise Dropped(
                f"has {found.distinct:,} or more categories; raise max_categories ({most}) or use an expression"
            )
        if not found.distinct:
            raise Dropped("is empty")
        order = by_frequency(found)
        attempt.give_codes(column, found.digests[order])
        column.weights, column.missing = found.weights[order], found.missing
    assert column.weights is not None, "codes and their weights are found together"
    return column.weights.copy()


def _check_category(column: Column, attempt: Attempt) -> None:
    """LearnError unless values of a column can be counted as categories."""
    if family(column.column.type) not in KEY_LIKE:
        raise LearnError(
            f"{attempt.step}: column {column.column.qualified} is {column.column.type}, which has no categories; CAST "
            "or round it in SELECT"
        )


@dataclass(frozen=True)
class CategoryStep(PrepStep):
    """A step for categories, which has a form with noise."""

    takes: ClassVar[tuple[Kind, ...]] = ("text",)
    usual: ClassVar[tuple[Kind, ...]] = ("text",)
    advice: ClassVar[str] = ""


@dataclass(frozen=True)
class OneHot(CategoryStep):
    """One column of 0 and 1 per category, the most frequent first, as scikit-learn's `OneHotEncoder`.

    Categories with fewer than ``min_count`` joined rows, or beyond the ``max_categories`` most frequent, share one
    column, the last, with categories that were not there in the fit. Without either, a column with more categories than
    the relation's ``max_categories`` is left out. Missing is all zeros.
    """

    min_count: int | None = setting(None, "a whole number of at least 1", lambda count: is_whole(count, 1))
    max_categories: int | None = setting(None, "a whole number of at least 1", lambda most: is_whole(most, 1))

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Choose the categories that have columns of their own."""
        pools = self.min_count is not None or self.max_categories is not None
        weights = list_categories(column, attempt, None if pools else attempt.max_categories)
        column.kind = "coded"
        if not pools:
            return
        self.need(not column.is_filled, "put it before Impute, or leave min_count and max_categories out")
        kept = len(weights) if self.min_count is None else int(np.count_nonzero(weights >= self.min_count))
        if self.max_categories is not None and kept + (kept < len(weights)) > self.max_categories:
            kept = self.max_categories - 1
        if kept < len(weights):
            attempt.give_codes(column, column.digests[:kept], ("other",))
            column.weights = np.append(weights[:kept], weights[kept:].sum())
            attempt.emit(column, Other(column.name))


@dataclass(frozen=True)
class Recode(CategoryStep):
    """The code of a category as a number: 0 for the most frequent, and so on. A new category is missing."""

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Number the categories."""
        weights = list_categories(column, attempt, None)
        numbers = self.numbers(column, attempt)
        attempt.emit(column, Lookup(column.name, numbers.tolist(), None, None))
        moments = None
        if attempt.counts_all(column):
            count = float(weights.sum())
            mean = float(weights @ numbers) / count
            moments = Moments(attempt.statistics.rows, count, mean, float(weights @ (numbers - mean) ** 2))
        attempt.give_numbers(column, moments, is_filled=False)

    def numbers(self, column: Column, attempt: Attempt) -> NDArray[np.float64]:
        """The number of each code."""
        assert column.weights is not None, "they were listed"
        return _places(np.argsort(-column.weights, kind="stable"))


@dataclass(frozen=True)
class Ordinal(Recode):
    """The place of a category in the order of names, as scikit-learn's `OrdinalEncoder`: of public columns only."""

    advice: ClassVar[str] = "names of categories have none; use OneHot or Recode"

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Number the categories by name."""
        if not is_public(attempt.statistics.plan, column.column):
            owners = ", ".join(repr(each.party) for each in attempt.statistics.plan.tables[column.alias].shards)
            raise PrivacyError(
                f"Ordinal: column {column.column.qualified} (party {owners}): its categories are not public, so their "
                "order is not known (policy rule level); use Recode, which numbers them by frequency",
                rule="level",
            )
        super().fit(column, attempt)

    def numbers(self, column: Column, attempt: Attempt) -> NDArray[np.float64]:
        """The place of each name among those that rows have; one that none has, such as a fill, is between two."""
        assert column.weights is not None, "they were listed"
        names = [*attempt.statistics.names(column.column, column.digests), *column.more]
        codes = sorted(range(len(names)), key=lambda code: name_order(column, names[code] or ""))
        is_used = column.weights[codes] > 0
        places = np.empty(len(codes))
        places[codes] = np.cumsum(is_used) - np.where(is_used, 1.0, 0.5)
        return places


def name_order(column: Column, name: str) -> tuple[int, Decimal, str]:
    """What sorts the names of a column's categories: numbers by value, all else as text. Equal for equal categories.

    >>> from tablepuppet.sql.query import OutputColumn
    >>> names = OutputColumn("n", "t", "", "INTEGER")
    >>> sorted(["10", "9", "none", "-1"], key=lambda name: name_order(Column(names, "text", True), name))
    ['-1', '9', '10', 'none']
    """
    if family(column.column.type) in NUMERIC:
        with suppress(InvalidOperation):
            number = Decimal(name)
            if not number.is_nan():
                return 0, number, ""
    return 1, Decimal(0), name


def _places(order: ArrayLike) -> NDArray[np.float64]:
    """The place of each code in an order of codes."""
    return np.argsort(order).astype(np.float64)


@dataclass(frozen=True)
class Hash(CategoryStep):
    """Categories in ``n`` columns of 0 and 1, by their digests; nothing is learned, and a new category has one too."""

    n: int = setting(32, f"a whole number from 2 to {MOST_CODES:,}", lambda n: is_whole(n, 2, MOST_CODES))

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Nothing is learned."""
        _check_category(column, attempt)
        self.need(not len(column.digests), "put it before Impute")
        attempt.give_codes(column, NO_DIGESTS, tuple(f"hash {code}" for code in range(self.n)))
        column.kind, column.weights = "coded", None
        attempt.emit(column, Hashed(column.name, self.n))
