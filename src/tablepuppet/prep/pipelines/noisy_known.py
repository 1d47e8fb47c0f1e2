"""The statistics that a pipeline is fitted to under feature privacy: from what policies say about columns, or noisy.

The questions are the same whatever the steps are: a range and sums for a number without bounds in the policy, a list
for a text without categories there (private_encode.py). The results of steps are scaled by bounds (`bounds_after`),
which costs nothing. A step is a function of a row's own cells, and after the last step parties set null records to
zero: so sensitivities are the same as without steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import is_category
from tablepuppet.prep.columns.statistics import CategorySummary, NumberSummary
from tablepuppet.prep.encode.private_encode import (
    EncoderNoise,
    ask_categories,
    fit_numbers,
    read_categories,
    spread_evenly,
)
from tablepuppet.prep.encode.program import bounds_after
from tablepuppet.prep.pipelines.attempt import Dropped
from tablepuppet.prep.pipelines.known import Statistics, Wanted, WantedColumn
from tablepuppet.prep.pipelines.label_sums import Folds, LabelSums
from tablepuppet.sql.query import OutputColumn


class NoisyKnown(Statistics):
    """Statistics from policies, or with noise; after steps, from bounds."""

    is_noisy = True

    def __init__(self, client: Client, blinding: str, texts: Iterable[OutputColumn], noise: EncoderNoise):
        super().__init__(client.plan, client.owners)
        self.rows, query = float(max(len(client.rows), 1)), client.plan.query
        self._texts, self._noise = dict[str, CategorySummary](), noise
        self._asked = {column.name: ask_categories(client, column, blinding, noise) for column in texts}
        numbers = [column for column in query.features if not is_category(column, query.categorical)]
        self._numbers = fit_numbers(client, numbers, self.rows, noise)

    def base_rows(self, alias: str) -> int:
        """0, so that no text counts as an id: the check would depend on the data."""
        return 0

    def number(self, column: OutputColumn) -> NumberSummary:
        """Of a column as it was read; it is left out if noise hides it. How many are missing is not known."""
        found = self._numbers[column.name]
        if found is None:
            raise Dropped("has no range that noise does not hide, or one value only")
        return found

    def categories(self, column: OutputColumn, most: int) -> CategorySummary:
        """The categories that a policy lists, or that enough rows have; others count as missing."""
        if column.name not in self._texts:
            self._texts[column.name] = read_categories(self._asked[column.name], column, self._noise)
        if not self._texts[column.name].distinct:
            raise Dropped("has no category that enough rows have")
        return self._texts[column.name]

    def derived(self, wanted: WantedColumn) -> Any:
        """After steps: from bounds, as if values were spread evenly between them; codes as if all were as frequent."""
        if wanted.size is not None:
            return np.full(wanted.size, self.rows / max(wanted.size, 1))
        sources = {column.name: self.number(column) for column in wanted.table.numbers}
        known = {name: (each.minimum, each.maximum) for name, each in sources.items()}
        return spread_evenly(self.rows, *bounds_after(wanted.table.steps, known)[wanted.name])

    def _look(self, key: Hashable, question: Any) -> Any:
        raise PrivacyError("a statistic has no form with noise, and the steps that ask for it were not refused")

    def mode(self, column: OutputColumn) -> float:
        """It has no form with noise."""
        return float(self._look(column.name, column))

    def _label_sums(self, codes: Any, folds: Folds) -> LabelSums:
        raise AssertionError("no codes are known")

    def _answers(self, wanted: Wanted) -> dict[Hashable, Any]:
        return {}  # nothing is ever wanted
