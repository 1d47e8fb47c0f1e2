"""`Bin`: numbers become bins, of equal width or of equally many joined rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from tablepuppet.prep.encode.specs import MOST_CODES, Cut, Lookup
from tablepuppet.prep.pipelines.attempt import Attempt, Column, Dropped, bounded
from tablepuppet.prep.pipelines.steps.step import PrepStep, is_whole, setting
from tablepuppet.runs.figures import number

How = Literal["width", "height"]
Encode = Literal["onehot", "ordinal"]


@dataclass(frozen=True)
class Bin(PrepStep):
    """``n`` bins of equal width or height, as scikit-learn's `KBinsDiscretizer`; quantiles are NumPy's ``linear``.

    ``encode`` says whether a bin becomes a column of 0 and 1, or its number. Edges that are equal are one.
    """

    n: int = setting(5, "a whole number of at least 2", lambda n: is_whole(n, 2, MOST_CODES // 2))
    how: How = setting("width", "'width' or 'height'", get_args(How).__contains__)
    encode: Encode = setting("onehot", "'onehot' or 'ordinal'", get_args(Encode).__contains__)

    @property
    def instead_of_noise(self) -> str:
        """Bins of equal height."""
        return "use Bin(n, 'width'), which cuts between bounds" if self.how == "height" else ""

    def fit(self, column: Column, attempt: Attempt) -> None:
        """Learn the edges."""
        ranks = attempt.ranks(column)
        if self.how == "width":
            edges = np.linspace(ranks.least, ranks.most, self.n + 1)
        else:
            edges = np.array([ranks.quantile(share) for share in np.linspace(0.0, 1.0, self.n + 1).tolist()])
        edges = np.unique([bounded(each) for each in edges.tolist()])
        if len(edges) < 2:
            raise Dropped("has one value only")
        attempt.emit(column, Cut(column.name, edges.tolist()))
        if self.encode == "ordinal":
            numbers = np.arange(len(edges) - 1, dtype=np.float64).tolist()
            attempt.emit(column, Lookup(column.name, numbers, None, None))
            attempt.give_numbers(column, None, is_filled=column.is_filled)
            return
        column.kind, column.weights, column.moments, column.ranks = "coded", None, None, None
        column.more = tuple(f"{number(low, 6)} to {number(high, 6)}" for low, high in pairwise(edges.tolist()))
