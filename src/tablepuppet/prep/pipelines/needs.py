"""What the fit of a pipeline needs, known before anybody is asked: questions, and what will be computed from answers.

A step reads no statistic. It makes `Later` values: functions of answers, and of what steps before it learn. So the
questions that a value is made of are its needs, and the number of trips that it takes to answer them follows: a
question about the result of a step waits for what that step learns. All that can be asked at
once is asked in one trip; values at ranks may take up to seven, as distributions are cut only around these ranks.
noisy_answers.py adds noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import tablepuppet.prep.pipelines.derived  # noqa: F401 - registers the parties' half
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.prep.columns.category_names import CategoryNames, Coded
from tablepuppet.prep.columns.ids import NumberIds
from tablepuppet.prep.columns.statistics import (
    CategoryStatistics,
    CategorySummary,
    NumberStatistics,
    NumberSummary,
    merge_numbers,
)
from tablepuppet.prep.encode.encode import TableSteps, read_arguments
from tablepuppet.prep.encode.specs import FittedStep
from tablepuppet.prep.explore.distribution import Distribution, Distributions
from tablepuppet.prep.pipelines.label_sums import AskedLabels, Folds, LabelSums, read_codes
from tablepuppet.sql.query import OutputColumn

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
MOST_CUTS = 7  # trips after the first until a value at a rank is known: cuts of 8 bits of a word of 64


class Dropped(Exception):  # noqa: N818 - a warning, no error
    """A column is no feature, for a reason."""

    def __init__(self, column: OutputColumn, reason: str):
        super().__init__(reason)
        self.column = column


class Later(Generic[T_co]):
    """A value that is computed once, after ``trip`` trips, when all ``inputs`` are there: its only arguments.

    An input that is no `Later` is known already. If the function raises `Dropped`, or an input is lost so, the value is
    ``lost``. A fit of a wide table has tens of thousands, which all live until its end: a function that is made for
    each of them, or a `partial`, costs as much again, above all to the garbage collector.

    >>> half = Later(lambda whole: whole / 2, given(3.0))
    >>> half.get()
    1.5
    """

    __slots__ = ("_compute", "_value", "inputs", "is_settled", "lost", "trip")

    def __init__(self, compute: Callable[..., T_co], *inputs: Any):
        self.inputs, self._compute, self.is_settled = inputs, compute, False
        self.lost: Dropped | None = None
        self.trip = 0
        for each in inputs:
            if isinstance(each, Later) and each.trip > self.trip:
                self.trip = each.trip

    def settle(self) -> None:
        if self.is_settled:
            return
        values = []
        for each in self.inputs:
            if not isinstance(each, Later):
                values.append(each)
                continue
            if not each.is_settled:
                each.settle()
                assert each.is_settled, "what it needs was asked for before"
            if each.lost is not None:
                self.is_settled, self.lost = True, each.lost
                return
            values.append(each._value)
        self._settle(values)

    def _settle(self, values: Sequence[Any]) -> None:
        try:
            self._value = self._compute(*values)
        except Dropped as error:
            self.lost = error.with_traceback(None)
        self.is_settled = True

    def get(self) -> T_co:
        """The value; raises `Dropped` if it is lost."""
        if not self.is_settled:
            self.settle()
        if self.lost is not None:
            raise self.lost
        assert self.is_settled, "what it needs was asked for before"
        return self._value


def given(value: T) -> Later[T]:
    """A value that is known already."""
    return Later(_itself, value)


def _itself(value: T) -> T:
    return value


class Question(Later[T]):
    """A value that parties are asked for in its trip, once its inputs are there."""

    def __init__(self, *inputs: Later[Any]):
        super().__init__(_itself, *inputs)
        self.trip += 1

    def _settle(self, values: Sequence[Any]) -> None:
        """It waits for an answer."""

    def answer(self, value: T) -> None:
        self._value, self.is_settled = value, True

    def drop(self, column: OutputColumn, reason: str) -> None:
        """There is no answer: the column is left out."""
        self.lost, self.is_settled = Dropped(column, reason), True


class OfColumn(Question[T]):
    """About a column as it is read."""

    def __init__(self, column: OutputColumn, *inputs: Later[Any]):
        super().__init__(*inputs)
        self.column = column


class Sums(OfColumn[NumberSummary]):
    """The sums of a column of numbers."""


class Cells(OfColumn[Distribution]):
    """The distribution of a column of numbers."""


class Categories(OfColumn[CategorySummary]):
    """The categories of a column, listed if there are at most ``most``."""

    most = 0


class RankValues(Question[Mapping[float, float]]):
    """The values at some ranks of a column as it is read."""

    def __init__(self, cells: Cells, ranks: Later[Sequence[float]]):
        super().__init__(cells, ranks)
        self.cells, self.ranks = cells, ranks


class Names(OfColumn[Sequence[str | None]]):
    """What categories of a public column are called, by their digests."""

    def __init__(self, column: OutputColumn, digests: Later[NDArray[np.uint8]]):
        super().__init__(column, digests)
        self.digests = digests


Source = tuple[OutputColumn, Later[NDArray[np.uint8]] | None]
"""A column that is read; if as categories, with the digests of those that have codes."""


class AfterSteps(Question[T]):
    """A statistic of a column after steps. ``size``: the number of its codes, if it has codes."""

    op: Literal["prep.sums", "prep.codes"] = "prep.sums"

    def __init__(
        self, column: OutputColumn, alive: Later[Any], sources: Sequence[Source],
        chain: Sequence[Later[FittedStep | None]], size: Later[int] | None = None,
    ):  # fmt: skip
        digests = [each for _, each in sources if each is not None]
        super().__init__(alive, *digests, *chain, *([] if size is None else [size]))
        self.column, self._sources, self._chain, self._size = column, sources, chain, size

    @property
    def size(self) -> int | None:
        """The number of codes; None of a column of numbers."""
        return None if self._size is None else self._size.get()

    def table(self) -> TableSteps:
        """What a party reads and does for it."""
        return TableSteps(
            tuple(column for column, digests in self._sources if digests is None),
            tuple((column, digests.get()) for column, digests in self._sources if digests is not None),
            tuple(step for each in self._chain if (step := each.get()) is not None),
        )


class SumsAfter(AfterSteps[NumberSummary]):
    """The sums of a column of numbers."""


class WeightsAfter(AfterSteps[NDArray[np.float64]]):
    """How many joined rows have each code."""


class LabelSumsAfter(AfterSteps[LabelSums]):
    """Sums of the label by code."""

    op = "prep.codes"

    def __init__(self, folds: Folds, *after: Any):
        super().__init__(*after)
        self.folds = folds


def questions_of(values: Iterable[Later[Any]]) -> list[Question[Any]]:
    """The questions that values are made of, each before those that wait for its answer."""
    found: list[Question[Any]] = []
    seen: set[Later[Any]] = set()

    def visit(listed: Iterable[Any]) -> None:
        for each in listed:
            if isinstance(each, Later) and each not in seen:
                seen.add(each)
                visit(each.inputs)
                if isinstance(each, Question):
                    found.append(each)

    visit(values)
    return found


def most_trips(questions: Sequence[Question[Any]]) -> int:
    """The trips that answer questions, at most: values at ranks may need more than one."""
    refined = {each.trip for each in questions if isinstance(each, RankValues)}
    return max((each.trip for each in questions), default=1) + (MOST_CUTS - 1) * len(refined)


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
