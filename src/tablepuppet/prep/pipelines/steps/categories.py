"""Steps for categories: `OneHot`, `Recode`, `Ordinal`, `Hash`. The coordinator knows categories as digests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Digests
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.columns.statistics import NO_DIGESTS, CategorySummary
from tablepuppet.prep.encode.specs import MOST_CODES, Hashed, Lookup, Other
from tablepuppet.prep.pipelines.draft import Codes, Column, Draft, Kind, Weights
from tablepuppet.prep.pipelines.moments import Moments
from tablepuppet.prep.pipelines.needs import Dropped, Later, given
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_whole, setting
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import KEY_LIKE, NUMERIC, family

MOST_LISTED = 10_000  # categories of a column whose rare ones are pooled


def by_frequency(found: CategorySummary) -> NDArray[np.intp]:
    """The order of codes: the most frequent first, equally frequent ones of public columns always alike."""
    return np.lexsort((found.ties if len(found.ties) else np.arange(found.distinct), -found.weights))


def list_categories(column: Column, draft: Draft, most: int | None) -> Later[Weights]:
    """Give every category of a column a code; joined rows by code.

    It is left out if it has none, or more than ``most`` (None: than a step may list).
    """
    _check_category(column, draft)
    if not column.is_listed:
        source, most = column.column, MOST_LISTED if most is None else most

        def listed(found: CategorySummary) -> tuple[Digests, Weights, float]:
            if found.distinct > most:
                raise Dropped(
                    source,
                    f"has {found.distinct:,} or more categories; raise max_categories ({most}) or use an expression",
                )
            if not found.distinct:
                raise Dropped(source, "is empty")
            order = by_frequency(found)
            return found.digests[order], found.weights[order], found.missing

        found = Later(listed, draft.categories(column, most))
        draft.need(column, found)
        column.is_listed, column.most_codes = True, draft.max_categories
        column.read_by, column.weights = Later(lambda found: found[0], found), Later(lambda found: found[1], found)
        column.codes = Later(lambda found: Codes(found[0], (), found[2]), found)
    assert column.weights is not None, "codes and their weights are found together"
    return column.weights


def _check_category(column: Column, draft: Draft) -> None:
    """LearnError unless values of a column can be counted as categories."""
    if family(column.column.type) not in KEY_LIKE:
        raise LearnError(
            f"{draft.step}: column {column.column.qualified} is {column.column.type}, which has no categories; CAST "
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

    def declare(self, column: Column, draft: Draft) -> None:
        pools = self.min_count is not None or self.max_categories is not None
        weights = list_categories(column, draft, None if pools else draft.max_categories)
        column.kind = "coded"
        if not pools:
            return
        self.need(not column.is_filled, "put it before Impute, or leave min_count and max_categories out")
        kept, name = Later(self._kept, weights), column.name

        def pooled(codes: Codes, kept: int) -> Codes:
            return codes if kept == codes.size else Codes(codes.digests[:kept], ("other",), codes.missing)

        column.codes = Later(pooled, column.codes, kept)
        column.read_by = Later(lambda codes: codes.digests, column.codes)
        column.weights = Later(
            lambda weights, kept: np.append(weights[:kept], weights[kept:].sum() if kept < len(weights) else []),
            weights, kept,
        )  # fmt: skip
        column.most_codes = min(column.most_codes, self.max_categories or column.most_codes)
        draft.emit(column, lambda weights, kept: Other(name) if kept < len(weights) else None, weights, kept)

    def _kept(self, weights: Weights) -> int:
        kept = len(weights) if self.min_count is None else int(np.count_nonzero(weights >= self.min_count))
        if self.max_categories is not None and kept + (kept < len(weights)) > self.max_categories:
            kept = self.max_categories - 1
        return kept


@dataclass(frozen=True)
class Recode(CategoryStep):
    """The code of a category as a number: 0 for the most frequent, and so on. A new category is missing."""

    def declare(self, column: Column, draft: Draft) -> None:
        weights, name = list_categories(column, draft, None), column.name
        numbers = self.numbers(column, draft, weights)
        draft.emit(column, lambda numbers: Lookup(name, numbers.tolist(), None, None), numbers)

        def moments(weights: Weights, numbers: Weights) -> Moments:
            count = float(weights.sum())
            mean = float(weights @ numbers) / count
            return Moments(draft.rows, count, mean, float(weights @ (numbers - mean) ** 2))

        known = Later(moments, weights, numbers) if draft.counts_all(column) else None
        draft.give_numbers(column, known, is_filled=False)

    def numbers(self, column: Column, draft: Draft, weights: Later[Weights]) -> Later[Weights]:
        """The number of each code."""
        return Later(lambda weights: np.argsort(np.argsort(-weights, kind="stable")).astype(np.float64), weights)


@dataclass(frozen=True)
class Ordinal(Recode):
    """The place of a category in the order of names, as scikit-learn's `OrdinalEncoder`: of public columns only."""

    advice: ClassVar[str] = "names of categories have none; use OneHot or Recode"

    def numbers(self, column: Column, draft: Draft, weights: Later[Weights]) -> Later[Weights]:
        """The place of each name among those that rows have; one that none has, such as a fill, is between two."""
        source = column.column
        if not is_public(draft.plan, source):
            owners = ", ".join(repr(each.party) for each in draft.plan.tables[column.alias].shards)
            raise PrivacyError(
                f"Ordinal: column {source.qualified} (party {owners}): its categories are not public, so their order "
                "is not known (policy rule level); use Recode, which numbers them by frequency",
                rule="level",
            )

        def numbers(weights: Weights, names: Sequence[str | None]) -> Weights:
            codes = sorted(range(len(names)), key=lambda code: name_order(source, names[code] or ""))
            is_used = weights[codes] > 0
            places = np.empty(len(codes))
            places[codes] = np.cumsum(is_used) - np.where(is_used, 1.0, 0.5)
            return places

        return Later(numbers, weights, draft.names(column))


def name_order(column: OutputColumn, name: str) -> tuple[int, Decimal, str]:
    """What sorts the names of a column's categories: numbers by value, all else as text. Equal for equal categories.

    >>> from tablepuppet.sql.query import OutputColumn
    >>> names = OutputColumn("n", "t", "", "INTEGER")
    >>> sorted(["10", "9", "none", "-1"], key=lambda name: name_order(names, name))
    ['-1', '9', '10', 'none']
    """
    if family(column.type) in NUMERIC:
        with suppress(InvalidOperation):
            number = Decimal(name)
            if not number.is_nan():
                return 0, number, ""
    return 1, Decimal(0), name


@dataclass(frozen=True)
class Hash(CategoryStep):
    """Categories in ``n`` columns of 0 and 1, by their digests; nothing is learned, and a new category has one too."""

    n: int = setting(32, f"a whole number from 2 to {MOST_CODES:,}", lambda n: is_whole(n, 2, MOST_CODES))

    def declare(self, column: Column, draft: Draft) -> None:
        _check_category(column, draft)
        self.need(not column.is_listed, "put it before Impute")
        draft.emit(column, Hashed, column.name, self.n)
        draft.give_codes(column, given(Codes(NO_DIGESTS, tuple(f"hash {code}" for code in range(self.n)))), self.n)
