"""The statistics that the fit of a pipeline already has, and those that it still needs.

A fit runs through all steps as far as statistics are known. A column whose statistics are missing waits, and the others
continue; then all missing statistics are asked for in one trip. So the number of trips is the length of the longest
chain of statistics that depend on each other. `Foreseen` returns made-up numbers: a fit with it checks a pipeline, and
counts trips, before any party is asked. noisy_known.py has the statistics with noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

import tablepuppet.prep.pipelines.derived  # noqa: F401 - registers the parties' half
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.prep.columns.category_names import CategoryNames, Coded
from tablepuppet.prep.columns.ids import NumberIds
from tablepuppet.prep.columns.ordered import values_of
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.columns.statistics import (
    NO_TIES,
    CategoryStatistics,
    CategorySummary,
    NumberStatistics,
    NumberSummary,
    merge_numbers,
)
from tablepuppet.prep.encode.encode import TableSteps, read_arguments
from tablepuppet.prep.explore.distribution import Distribution, Distributions
from tablepuppet.prep.pipelines.label_sums import AskedLabels, Folds, LabelSums, made_up_sums, read_codes
from tablepuppet.prep.pipelines.moments import NotYetKnown
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn

MOST_TRIPS = 8  # of quantiles: cuts of 8 bits of a word of 64


def stand_in(rank: float) -> float:
    """A plausible value at a rank: positive, and rising."""
    return 1.0 + rank / 100


@dataclass(frozen=True)
class WantedSums:
    """The sums of a column as it was read."""

    column: OutputColumn


@dataclass(frozen=True)
class WantedCategories:
    """The categories of a column as it was read, listed if there are at most this many."""

    column: OutputColumn
    most: int


@dataclass(frozen=True)
class WantedCells:
    """The distribution of a column as it was read."""

    column: OutputColumn


@dataclass(frozen=True)
class WantedRank:
    """A value that is wanted: that at a rank of a column as it was read."""

    column: OutputColumn
    rank: float


@dataclass(frozen=True)
class WantedColumn:
    """A column after steps: its sums are wanted, or the code of each row; ``size`` is the number of codes, if any."""

    op: Literal["prep.sums", "prep.codes"]
    alias: str
    name: str
    table: TableSteps
    size: int | None

    @property
    def names(self) -> set[str]:
        """The columns that the question is about."""
        made = {step.writes for step in self.table.steps}
        return {self.name} | made | {column.name for column in self.table.columns}

    @property
    def key(self) -> Hashable:
        """The same for the same question."""
        return self.op, self.alias, self.name, msgspec.msgpack.encode(list(self.table.steps))


Question = WantedSums | WantedCategories | WantedCells | WantedRank | WantedColumn | Coded
Wanted = Mapping[Hashable, Question]


@dataclass
class Needs:
    """Statistics of columns as they are read, which a fit asks for in its first trip; others when it wants them."""

    numbers: dict[str, OutputColumn] = field(default_factory=dict)
    categories: dict[str, tuple[OutputColumn, int]] = field(default_factory=dict)  # and of how many at most
    ranks: dict[str, OutputColumn] = field(default_factory=dict)


class Statistics(ABC):
    """What a fit may ask. A statistic that is not known yet is ``wanted`` from then on, until `fetch`."""

    is_noisy: ClassVar[bool] = False  # of numbers in order only the ends are known, and counts are none
    is_made_up: ClassVar[bool] = False  # so nothing follows from its values
    rows: float  # joined rows

    def __init__(self, plan: Plan, owners: Callable[[str], str] = lambda _: "") -> None:
        self.plan = plan
        self.owners = owners  # of a table's rows, as the end of an error
        self.wanted: dict[Hashable, Question] = {}
        self.dealt: dict[tuple[str, Folds], None] = {}  # tables whose rows are in folds, in the order of steps
        self.placeholders = 0  # how often one was used for a value that is wanted
        self._found: dict[Hashable, Any] = {}

    def fetch(self) -> None:
        """Ask for whatever is wanted."""
        wanted, self.wanted = self.wanted, {}
        self._found |= self._answers(wanted)

    @abstractmethod
    def _answers(self, wanted: Wanted) -> dict[Hashable, Any]:
        """What is wanted, by the same keys."""

    def _look(self, key: Hashable, question: Question) -> Any:
        """A statistic that was asked for; else it is wanted."""
        if key not in self._found:
            self.wanted[key] = question
            raise NotYetKnown
        return self._found[key]

    @abstractmethod
    def base_rows(self, alias: str) -> int:
        """Rows of a table that take part."""

    def ids(self) -> frozenset[str]:
        """Columns of numbers that look like ids, as they were read; none where parties are not asked."""
        return frozenset()

    @abstractmethod
    def number(self, column: OutputColumn) -> NumberSummary:
        """Of a column as it was read."""

    @abstractmethod
    def categories(self, column: OutputColumn, most: int) -> CategorySummary:
        """Of a column as it was read; digests of ``most`` categories."""

    @abstractmethod
    def mode(self, column: OutputColumn) -> float:
        """The most frequent number of a column as it was read, the lowest of several."""

    def rank(self, column: OutputColumn, rank: float) -> float:
        """The value at a rank of a column as it was read.

        If it is not known, it is wanted, and a placeholder is used: which ranks later steps need depends on
        counts, not on values, so all of them are wanted at once.
        """
        try:
            return float(self._look((column.name, rank), WantedRank(column, rank)))
        except NotYetKnown:
            self.placeholders += 1
            return stand_in(rank)

    def derived(self, wanted: WantedColumn) -> Any:
        """Sums of a column after steps, or how many joined rows have each of its codes."""
        return self._look(wanted.key, wanted)

    def label_sums(self, wanted: WantedColumn, folds: Folds) -> LabelSums:
        """Sums of the label by the codes of a column after steps."""
        key = wanted.key, folds
        if key not in self._found:
            self.dealt.setdefault((wanted.alias, folds))
            self._found[key] = self._label_sums(self._look(wanted.key, wanted), folds)
        found: LabelSums = self._found[key]
        return found

    @abstractmethod
    def _label_sums(self, codes: Any, folds: Folds) -> LabelSums:
        """Sums of the label by codes that were found."""

    def names(self, column: OutputColumn, digests: NDArray[np.uint8]) -> list[str | None]:
        """What categories of a public column are called."""
        found: list[str | None] = self._look(column.name, Coded(column, "", digests))
        return found


class Known(Statistics):
    """Statistics from parties."""

    def __init__(self, client: Client, blinding: str, needs: Needs):
        super().__init__(client.plan, client.owners)
        self._client, self._blinding, self.rows = client, blinding, float(len(client.rows))
        self._numbers = NumberStatistics(client, needs.numbers.values())
        self._ids = NumberIds(client, needs.numbers.values())
        self._categories = {name: self._ask_categories(*each) for name, each in needs.categories.items()}
        self._cells = [Distributions(client, needs.ranks.values())] if needs.ranks else []
        self._summaries: dict[str, NumberSummary] | None = None
        self._read: dict[str, CategorySummary] = {}
        self._most = {name: most for name, (_, most) in needs.categories.items()}
        self._labels: AskedLabels | None = None

    def _ask_categories(self, column: OutputColumn, most: int) -> CategoryStatistics:
        return CategoryStatistics(self._client, column, self._blinding, most, ties=True)

    def base_rows(self, alias: str) -> int:
        """Rows of a table that take part."""
        return self._client.tables[alias].rows

    def ids(self) -> frozenset[str]:
        """Columns of numbers that look like ids, among those whose sums the first trip asked for."""
        return self._ids.read()

    def number(self, column: OutputColumn) -> NumberSummary:
        """Of a column as it was read."""
        if self._summaries is None:  # cached_property of Python 3.11 locks: fits that share trips would wait forever
            self._summaries = self._numbers.read()
        if column.name in self._summaries:
            return self._summaries[column.name]
        found: NumberSummary = self._look(("sums", column.name), WantedSums(column))
        return found

    def categories(self, column: OutputColumn, most: int) -> CategorySummary:
        """Of a column as it was read."""
        if column.name in self._categories and column.name not in self._read:
            self._read[column.name] = self._categories[column.name].read()
        known = self._read.get(column.name)
        if known is not None and (len(known.digests) == known.distinct or self._most[column.name] >= most):
            return known
        found: CategorySummary = self._look(("categories", column.name, most), WantedCategories(column, most))
        return found

    def _distribution(self, column: OutputColumn) -> Distribution:
        for each in self._cells:
            if column.name in each.read():
                return each.read()[column.name]
        found: Distribution = self._look(("cells", column.name), WantedCells(column))
        return found

    def mode(self, column: OutputColumn) -> float:
        """The most frequent number; LearnError where values are too many to be listed, or not public."""
        lows, highs, weights = self._distribution(column).all_cells()
        if not len(lows) or not is_public(self.plan, column) or (lows != highs).any():
            raise LearnError(
                f"Impute: column {column.qualified} is not public or has too many different numbers: its most frequent "
                "one is not to be had; use strategy='median', which fills with another number, or list it in "
                f"categorical {self.owners(column.alias)}"
            )
        words, places = np.unique(lows, return_inverse=True)
        return float(values_of(words[[np.bincount(places, weights).argmax()]])[0])

    def _label_sums(self, codes: Any, folds: Folds) -> LabelSums:
        assert self._labels is not None, "they were asked for with the codes"
        return self._labels.of(codes, folds)

    def _answers(self, wanted: Wanted) -> dict[Hashable, Any]:
        """One trip, and as many more as ranks need."""
        asked = [(listed, self._ask(listed)) for listed in merged(wanted.values())]
        ranks = [each for each in wanted.values() if isinstance(each, WantedRank)]
        self._ask_cells([*ranks, *(each for each in wanted.values() if isinstance(each, WantedCells))])
        sums = NumberStatistics(self._client, [e.column for e in wanted.values() if isinstance(e, WantedSums)])
        lists = {
            key: self._ask_categories(each.column, each.most)
            for key, each in wanted.items()
            if isinstance(each, WantedCategories)
        }
        label = self.plan.query.label
        if self._labels is None and label is not None and any(listed[0].op == "prep.codes" for listed, _ in asked):
            self._labels = AskedLabels(self._client, label)
        if self._labels is not None:
            for alias, folds in self.dealt:
                self._labels.deal(alias, folds)
        named = [each for each in wanted.values() if isinstance(each, Coded)]
        texts = CategoryNames(self._client, [Coded(each.column, self._blinding, each.digests) for each in named])
        found = self._refined(ranks)
        for listed, pending in asked:
            found |= self._read_columns(listed, pending.read()[listed[0].alias])
        found |= {("sums", name): known for name, known in sums.read().items()}
        found |= {key: each.read() for key, each in lists.items()}
        return found | {each.column.name: known for each, known in zip(named, texts.read(), strict=True)}

    def _ask_cells(self, wanted: Iterable[WantedRank | WantedCells]) -> None:
        """Ask for the distributions that nobody has foreseen."""
        known = {name for each in self._cells for name in each.read()}
        columns = {each.column.name: each.column for each in wanted if each.column.name not in known}
        if columns:
            self._cells.append(Distributions(self._client, columns.values()))

    def _ask(self, listed: Sequence[WantedColumn]) -> Pending:
        """Ask the shards of a table."""
        alias, tables = listed[0].alias, [each.table for each in listed]
        table = TableSteps(
            tuple(column for each in tables for column in each.numbers),
            tuple(column for each in tables for column in each.categories),
            tuple(step for each in tables for step in each.steps),
        )
        given = {"blinding": self._blinding, "wanted": [each.name for each in listed], **read_arguments(table)}
        return self._client.ask(listed[0].op, lambda name, _: given if name == alias else None)

    def _read_columns(
        self, listed: Sequence[WantedColumn], replies: Sequence[Mapping[str, Any]]
    ) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        numbers = codes = 0  # columns of numbers and codes that were read so far
        for place, each in enumerate(listed):
            if each.size is None:
                found[each.key] = merge_numbers([reply["sums"][numbers] for reply in replies])
                numbers += 1
            elif each.op == "prep.codes":
                found[each.key] = read_codes(self._client, each.alias, replies, place, each.size)
            else:
                part = slice(codes, codes + each.size)
                found[each.key] = np.sum([reply["weights"][part] for reply in replies], axis=0)
                codes += each.size
        return found

    def _refined(self, wanted: Sequence[WantedRank]) -> dict[Hashable, Any]:
        """Cut cells until all ranks are known."""
        if not wanted:
            return {}
        by_column: dict[str, list[float]] = {}
        for each in wanted:
            by_column.setdefault(each.column.name, []).append(each.rank)
            if not 0 <= each.rank < self._distribution(each.column).total:
                raise LearnError(
                    f"column {each.column.qualified} has too few rows with a value for quantiles, or other ones in its "
                    f"histogram than in its sums {self.owners(each.column.alias)}"
                )

        def cells(known: Distribution) -> Iterable[int]:
            return known.open_around(by_column.get(known.column.name, ()))

        for distributions in self._cells:
            distributions.refine(cells)
        return {
            (each.column.name, each.rank): self._distribution(each.column).values([each.rank])[0][0] for each in wanted
        }


def merged(wanted: Iterable[object]) -> list[list[WantedColumn]]:
    """Questions about columns that one request can ask: of one table, about different columns."""
    groups: list[tuple[set[str], list[WantedColumn]]] = []
    for each in wanted:
        if not isinstance(each, WantedColumn):
            continue
        names = each.names
        for taken, listed in groups:
            if (listed[0].op, listed[0].alias) == (each.op, each.alias) and not taken & names:
                taken |= names
                listed.append(each)
                break
        else:
            groups.append((set(names), [each]))
    return [listed for _, listed in groups]


class Foreseen(Statistics):
    """Made-up but plausible statistics, and a list of what was wanted; no party is asked.

    What it says is a guess: which statistics the first trip asks for, and how many trips follow. A fit whose columns
    are otherwise wants more, and asks for it.
    """

    rows = 1000.0
    is_made_up = True

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.needs, self.trips = Needs(), 0
        self.refined = 0  # how often ranks were asked for

    def base_rows(self, alias: str) -> int:
        """Many."""
        return round(self.rows)

    def number(self, column: OutputColumn) -> NumberSummary:
        """Numbers from 1 to 10, of which some are missing."""
        self.needs.numbers[column.name] = column
        ends = (1.0, 10.0) if is_public(self.plan, column) else (math.nan, math.nan)
        return NumberSummary(900.0, 5.0, 9000.0, 0.0, self.rows, *ends)

    def categories(self, column: OutputColumn, most: int) -> CategorySummary:
        """Two categories."""
        before = self.needs.categories.get(column.name, (column, 0))[1]
        self.needs.categories[column.name] = (column, max(before, most))
        digests = np.arange(32, dtype=np.uint8).reshape(2, 16)
        return CategorySummary(2, 500.0, 100.0, digests, np.array([500.0, 400.0]), digests[:1], NO_TIES)

    def mode(self, column: OutputColumn) -> float:
        """A number."""
        self.needs.ranks[column.name] = column
        return 2.0

    def _label_sums(self, codes: Any, folds: Folds) -> LabelSums:
        return made_up_sums(codes, folds)

    def _answers(self, wanted: Wanted) -> dict[Hashable, Any]:
        """Count a trip."""
        ranks = {each.column.name: each.column for each in wanted.values() if isinstance(each, WantedRank)}
        self.needs.ranks |= ranks
        self.trips, self.refined = self.trips + 1, self.refined + bool(ranks)
        return {key: self._made_up(each) for key, each in wanted.items()}

    def _made_up(self, wanted: Question) -> Any:
        match wanted:
            case WantedRank(rank=rank):
                return stand_in(rank)
            case Coded(digests=digests):
                return [str(place) for place in range(len(digests))]
            case WantedColumn(op="prep.codes", size=size):
                return size
            case WantedColumn(size=int(size)):
                return np.full(size, 900.0 / size)
            case _:  # steps may have made some missing
                return NumberSummary(800.0, 0.5, 100.0, 0.0, self.rows, 0.0, 1.0)
