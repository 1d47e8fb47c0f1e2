"""Answers the questions of a fit under feature privacy: from what policies say about columns, or with noise.

What is asked is the same whatever the steps are: a range and sums for a number without bounds in the policy, a list
for a text without categories there (private_encode.py). The results of steps are scaled by bounds (`bounds_after`),
which costs nothing. A step is a function of a row's own cells, and after the last step parties set null records to
zero: so sensitivities are the same as without steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import is_category
from tablepuppet.prep.encode.private_encode import (
    EncoderNoise,
    ask_categories,
    fit_numbers,
    read_categories,
    spread_evenly,
)
from tablepuppet.prep.encode.program import bounds_after
from tablepuppet.prep.pipelines.needs import Categories, Question, Sums, SumsAfter, WeightsAfter

HIDDEN = "has no range that noise does not hide, or one value only"
RARE = "has no category that enough rows have"


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
        self._texts = {column.name: ask_categories(client, column, blinding, noise) for column in texts}
        self._numbers = fit_numbers(client, numbers, rows, noise)

    def answer(self, questions: Sequence[Question[Any]]) -> None:
        """From what parties were asked when this was made; nobody is asked again."""
        for each in questions:
            match each:
                case Sums():
                    known = self._numbers[each.column.name]
                    each.drop(each.column, HIDDEN) if known is None else each.answer(known)
                case Categories():
                    found = read_categories(self._texts[each.column.name], each.column, self._noise)
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

    def _spread(self, question: SumsAfter) -> None:
        """As if values were spread evenly between the bounds that follow from those of columns that are read."""
        table = question.table()
        read = {column.name: self._numbers[column.name] for column in table.numbers}
        known = {name: (found.minimum, found.maximum) for name, found in read.items() if found is not None}
        if len(known) < len(read):
            question.drop(question.column, HIDDEN)
        else:
            question.answer(spread_evenly(self._rows, *bounds_after(table.steps, known)[question.column.name]))
