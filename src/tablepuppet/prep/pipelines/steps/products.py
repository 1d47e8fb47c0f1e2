"""`Polynomial` and `Interactions`: products of numbers of one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import ClassVar

from tablepuppet.prep.encode.specs import Product
from tablepuppet.prep.pipelines.draft import Column, Draft
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_whole, setting

MOST_DEGREE = 5


@dataclass(frozen=True)
class Polynomial(PrepStep):
    """Powers and products up to ``degree``, as scikit-learn's `PolynomialFeatures` without a bias, within each table.

    New columns are called ``a^2`` and ``a*b``.
    """

    advice: ClassVar[str] = ""

    degree: int = setting(2, f"a whole number from 2 to {MOST_DEGREE}", lambda degree: is_whole(degree, 2, MOST_DEGREE))
    interaction_only: bool = False

    def declare_all(self, columns: Sequence[Column], draft: Draft) -> None:
        """Nothing is learned."""
        by_table: dict[str, list[Column]] = {}
        for column in columns:
            by_table.setdefault(column.alias, []).append(column)
        choose = combinations if self.interaction_only else combinations_with_replacement
        for listed in by_table.values():
            for degree in range(2, self.degree + 1):
                for factors in choose(listed, degree):
                    self._make(draft, factors)

    def _make(self, draft: Draft, factors: tuple[Column, ...]) -> None:
        powers: dict[str, int] = {}
        for each in factors:
            powers[each.name] = powers.get(each.name, 0) + 1
        name = "*".join(each if power == 1 else f"{each}^{power}" for each, power in powers.items())
        product = Product([each.name for each in factors], name)
        draft.make(factors, name, product, is_filled=all(each.is_filled for each in factors))


@dataclass(frozen=True)
class Interactions(Polynomial):
    """Products of different numbers of one table."""

    interaction_only: bool = True
