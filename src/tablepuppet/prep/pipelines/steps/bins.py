"""`Bin`: numbers become bins, of equal width or of equally many joined rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from tablepuppet.prep.columns.statistics import NO_DIGESTS
from tablepuppet.prep.encode.specs import MOST_CODES, Cut, Lookup
from tablepuppet.prep.pipelines.draft import Codes, Column, Draft, bounded
from tablepuppet.prep.pipelines.needs import Dropped, Later
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

    def declare(self, column: Column, draft: Draft) -> None:
        source, name = column.column, column.name

        def rising(values: Iterable[float]) -> list[float]:
            edges: list[float] = np.unique([bounded(each) for each in values]).tolist()
            if len(edges) < 2:
                raise Dropped(source, "has one value only")
            return edges

        edges: Later[list[float]]
        if self.how == "width":
            edges = Later(lambda ends: rising(np.linspace(ends[0], ends[1], self.n + 1).tolist()), draft.ends(column))
        else:
            edges = Later(rising, draft.quantiles(column, np.linspace(0.0, 1.0, self.n + 1).tolist()))
        draft.emit(column, Cut, name, edges)
        if self.encode == "ordinal":
            numbers = Later(lambda edges: np.arange(len(edges) - 1, dtype=np.float64).tolist(), edges)
            draft.emit(column, Lookup, name, numbers, None, None)
            draft.give_numbers(column, None, is_filled=column.is_filled)
        else:
            draft.give_codes(
                column, Later(lambda edges: Codes(NO_DIGESTS, tuple(map(_named, pairwise(edges)))), edges), self.n
            )


def _named(ends: tuple[float, float]) -> str:
    return f"{number(ends[0], 6)} to {number(ends[1], 6)}"
