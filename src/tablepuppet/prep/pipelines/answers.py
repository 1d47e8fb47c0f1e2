"""Asks parties the questions of a fit (needs.py): all that can be asked at once, in one trip.

Values at ranks may take up to seven trips: distributions are cut only around these ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

import tablepuppet.prep.pipelines.derived  # noqa: F401 - registers the parties' half
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.prep.columns.category_names import CategoryNames, Coded
from tablepuppet.prep.columns.ids import NumberIds
from tablepuppet.prep.columns.statistics import CategoryStatistics, NumberStatistics, merge_numbers
from tablepuppet.prep.encode.encode import TableSteps, read_arguments
from tablepuppet.prep.explore.distribution import Distribution, Distributions
from tablepuppet.prep.pipelines.label_sums import AskedLabels, read_codes
from tablepuppet.prep.pipelines.needs import (
    AfterSteps,
    Categories,
    Cells,
    LabelSumsAfter,
    Later,
    Names,
    Question,
    RankValues,
    Sums,
    questions_of,
)

Q = TypeVar("Q", bound=Question[Any])


class Answers(Protocol):
    """Whatever answers questions."""

    ids: frozenset[str]  # columns of numbers that look like ids, among those whose sums were asked for

    def answer(self, questions: Sequence[Question[Any]]) -> None:
        """Answer questions whose inputs are known."""


def answer_all(values: Sequence[Later[Any]], answers: Answers) -> None:
    """Compute values, and answer the questions that they are made of, trip by trip.

    An error is that of the first value that has one. What is asked about a column ends when it is left out.
    """
    questions = questions_of(values)
    for trip in range(max((each.trip for each in values), default=0) + 1):
        for value in values:
            if value.trip == trip:
                value.settle()
        asked = [each for each in questions if each.trip == trip + 1]
        for each in asked:
            each.settle()  # it is lost if one of its inputs is
        if any(each.lost is None for each in asked):
            answers.answer([each for each in asked if each.lost is None])


class AskedAnswers:
    """Answers from parties."""

    def __init__(self, client: Client, blinding: str):
        self._client, self._blinding = client, blinding
        self.ids: frozenset[str] = frozenset()
        self._cells: list[Distributions] = []
        self._labels: AskedLabels | None = None

    def answer(self, questions: Sequence[Question[Any]]) -> None:
        """One trip, and as many more as ranks need."""
        client = self._client

        def only(kind: type[Q]) -> list[Q]:
            return [each for each in questions if isinstance(each, kind)]

        numbers = [each.column for each in only(Sums)]
        sums, ids = NumberStatistics(client, numbers), NumberIds(client, numbers)
        lists = [
            CategoryStatistics(client, each.column, self._blinding, each.most, ties=True) for each in only(Categories)
        ]
        if only(Cells):
            self._cells.append(Distributions(client, [each.column for each in only(Cells)]))
        asked = [(listed, self._ask(listed)) for listed in merged(only(AfterSteps))]
        self._ask_labels(only(LabelSumsAfter))
        texts = CategoryNames(client, [Coded(each.column, self._blinding, each.digests.get()) for each in only(Names)])
        self._refine(only(RankValues))
        for each, found in zip(only(Categories), lists, strict=True):
            each.answer(found.read())
        known = sums.read()
        for number in only(Sums):
            number.answer(known[number.column.name])
        self.ids |= ids.read()
        for cells in only(Cells):
            cells.answer(self._cells[-1].read()[cells.column.name])
        for listed, pending in asked:
            self._read(listed, pending.read()[listed[0].column.alias])
        for named, names in zip(only(Names), texts.read(), strict=True):
            named.answer(names)

    def _ask(self, listed: Sequence[AfterSteps[Any]]) -> Pending:
        """Ask the shards of a table."""
        alias, tables = listed[0].column.alias, [each.table() for each in listed]
        table = TableSteps(
            tuple(column for each in tables for column in each.numbers),
            tuple(column for each in tables for column in each.categories),
            tuple(step for each in tables for step in each.steps),
        )
        names = [each.column.name for each in listed]
        given = {"blinding": self._blinding, "wanted": names, **read_arguments(table)}
        return self._client.ask(listed[0].op, {alias: given})

    def _ask_labels(self, wanted: Sequence[LabelSumsAfter]) -> None:
        label = self._client.plan.query.label
        for each in wanted:
            assert label is not None, "policies and labels were checked"
            self._labels = self._labels or AskedLabels(self._client, label)
            self._labels.deal(each.column.alias, each.folds)

    def _read(self, listed: Sequence[AfterSteps[Any]], replies: Sequence[Mapping[str, Any]]) -> None:
        numbers = codes = 0  # columns of numbers and codes that were read so far
        for place, each in enumerate(listed):
            size = each.size
            if size is None:
                each.answer(merge_numbers([reply["sums"][numbers] for reply in replies]))
                numbers += 1
            elif isinstance(each, LabelSumsAfter):
                assert self._labels is not None, "they were asked for with the codes"
                column = read_codes(self._client, each.column.alias, replies, place, size)
                each.answer(self._labels.of(column, each.folds))
            else:
                part = slice(codes, codes + size)
                each.answer(np.sum([reply["weights"][part] for reply in replies], axis=0))
                codes += size

    def _refine(self, wanted: Sequence[RankValues]) -> None:
        """Cut cells until the values at all ranks are known."""
        by_column: dict[str, list[float]] = {}
        for each in wanted:
            column, known = each.cells.column, each.cells.get()
            by_column.setdefault(column.name, []).extend(each.ranks.get())
            if not all(0 <= rank < known.total for rank in each.ranks.get()):
                raise LearnError(
                    f"column {column.qualified} has too few rows with a value for quantiles, or other ones in its "
                    f"histogram than in its sums {self._client.owners(column.alias)}"
                )

        def cells(known: Distribution) -> Iterable[int]:
            return known.open_around(by_column.get(known.column.name, ()))

        for distributions in self._cells if by_column else ():
            distributions.refine(cells)
        for each in wanted:
            ranks = each.ranks.get()
            each.answer(dict(zip(ranks, each.cells.get().values(ranks)[0].tolist(), strict=True)))


def merged(questions: Iterable[AfterSteps[Any]]) -> list[list[AfterSteps[Any]]]:
    """Questions that one request can ask: of one table, about different columns."""
    groups: list[tuple[set[str], list[AfterSteps[Any]]]] = []
    for each in questions:
        table = each.table()
        names = {each.column.name, *(step.writes for step in table.steps), *(column.name for column in table.columns)}
        for taken, listed in groups:
            if (listed[0].op, listed[0].column.alias) == (each.op, each.column.alias) and not taken & names:
                taken |= names
                listed.append(each)
                break
        else:
            groups.append((names, [each]))
    return [listed for _, listed in groups]
