"""The statistics that the fit of a pipeline already has, and those that it still needs.

A fit runs through all steps as far as statistics are known. A column whose statistics are missing waits, and the others
continue; then all missing statistics are asked for in one trip. So the number of trips is the length of the longest
chain of statistics that depend on each other. `Foreseen` returns made-up numbers: a fit with it checks a pipeline, and
counts trips, before any party is asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import tablepuppet.prep.derived  # noqa: F401 - registers the parties' half
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client, Pending
from tablepuppet.prep.category_names import CategoryNames, Coded
from tablepuppet.prep.distribution import Distribution, Distributions
from tablepuppet.prep.encode import TableSteps, read_arguments
from tablepuppet.prep.label_sums import AskedLabels, ColumnCodes, Folds, LabelSums, made_up_sums, read_codes
from tablepuppet.prep.moments import NotYetKnown
from tablepuppet.prep.ordered import values_of
from tablepuppet.prep.selected import is_public
from tablepuppet.prep.statistics import (
    NO_TIES,
    CategoryStatistics,
    CategorySummary,
    NumberStatistics,
    NumberSummary,
    merge_numbers,
)
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn

MOST_TRIPS = 8  # of quantiles: cuts of 8 bits of a word of 64


def stand_in(rank: float) -> float:
    """A plausible value at a rank: positive, and rising."""
    return 1.0 + rank / 100


@dataclass(frozen=True)
class WantedColumn:
    """A column after steps whose statistics are wanted; ``size`` is its number of codes, None of numbers."""

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
    def key(self) -> tuple[str, str, bytes]:
        """The same for the same question."""
        return self.alias, self.name, msgspec.msgpack.encode(list(self.table.steps))


@dataclass
class Needs:
    """Statistics of columns as they are read."""

    numbers: list[OutputColumn] = field(default_factory=list)
    categories: dict[str, tuple[OutputColumn, int | None]] = field(default_factory=dict)  # and of how many at most
    ranks: dict[str, OutputColumn] = field(default_factory=dict)


class Statistics(ABC):
    """What a fit may ask."""

    plan: Plan
    rows: float  # joined rows

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, float], float] = {}
        self._derived: dict[tuple[str, str, bytes], Any] = {}
        self._names: dict[str, list[str | None]] = {}
        self.wanted_ranks: dict[str, tuple[OutputColumn, set[float]]] = {}
        self.wanted: dict[tuple[str, str, bytes], WantedColumn] = {}
        self.wanted_names: dict[str, Coded] = {}
        self.wanted_codes: dict[tuple[str, str, bytes], WantedColumn] = {}

    def owners(self, alias: str) -> str:
        """The parties that own a table's rows, as the end of an error."""
        return ""

    @abstractmethod
    def base_rows(self, alias: str) -> int:
        """Rows of a table that take part."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is wanted."""
        return not (self.wanted_ranks or self.wanted or self.wanted_names or self.wanted_codes)

    @abstractmethod
    def number(self, column: OutputColumn) -> NumberSummary:
        """Of a column as it was read."""

    @abstractmethod
    def categories(self, column: OutputColumn, most: int | None) -> CategorySummary:
        """Of a column as it was read; digests of ``most`` categories."""

    @abstractmethod
    def mode(self, column: OutputColumn) -> float:
        """The most frequent number of a column as it was read, the lowest of several."""

    @abstractmethod
    def fetch(self) -> None:
        """Ask for whatever is wanted."""

    def rank(self, column: OutputColumn, rank: float) -> float:
        """The value at a rank of a column as it was read.

        If it is not known, it is wanted, and a placeholder is used: which ranks later steps need depends on
        counts, not on values, so all of them are wanted at once.
        """
        if (column.name, rank) not in self._ranks:
            self.wanted_ranks.setdefault(column.name, (column, set()))[1].add(rank)
            return stand_in(rank)
        return self._ranks[column.name, rank]

    @property
    def ranks_wanted(self) -> int:
        """How many order statistics are wanted: a step that has wanted one has placeholders."""
        return sum(len(ranks) for _, ranks in self.wanted_ranks.values())

    def derived(self, wanted: WantedColumn) -> Any:
        """Moments of a column after steps, or how many joined rows have each of its codes."""
        if wanted.key not in self._derived:
            self.wanted[wanted.key] = wanted
            raise NotYetKnown
        return self._derived[wanted.key]

    @abstractmethod
    def label_sums(self, wanted: WantedColumn, folds: Folds) -> LabelSums:
        """Sums of the label by the codes of a column after steps."""

    def names(self, column: OutputColumn, digests: NDArray[np.uint8]) -> list[str | None]:
        """What categories of a public column are called."""
        if column.name not in self._names:
            self.wanted_names[column.name] = Coded(column, "", digests)
            raise NotYetKnown
        return self._names[column.name]


class Known(Statistics):
    """Statistics from parties."""

    def __init__(self, client: Client, blinding: str, needs: Needs):
        super().__init__()
        self._client, self._blinding = client, blinding
        self.plan, self.rows = client.plan, float(len(client.mapping))
        self._numbers = NumberStatistics(client, needs.numbers)
        self._categories = {
            name: CategoryStatistics(client, column, blinding, most, ties=True)
            for name, (column, most) in needs.categories.items()
        }
        self._distributions = Distributions(client, needs.ranks.values()) if needs.ranks else None
        self._summaries: dict[str, NumberSummary] | None = None
        self._read: dict[str, CategorySummary] = {}
        self._codes: dict[tuple[str, str, bytes], ColumnCodes] = {}
        self._labels: AskedLabels | None = None
        self._label_sums: dict[tuple[tuple[str, str, bytes], Folds], LabelSums] = {}

    def owners(self, alias: str) -> str:
        """The parties that own a table's rows, as the end of an error."""
        return self._client.owners(alias)

    def base_rows(self, alias: str) -> int:
        """Rows of a table that take part."""
        return self._client.mapping.tables[alias].rows

    def number(self, column: OutputColumn) -> NumberSummary:
        """Of a column as it was read."""
        if self._summaries is None:
            self._summaries = self._numbers.read()
        return self._summaries[column.name]

    def categories(self, column: OutputColumn, most: int | None) -> CategorySummary:
        """Of a column as it was read."""
        if column.name not in self._read:
            self._read[column.name] = self._categories[column.name].read()
        return self._read[column.name]

    def mode(self, column: OutputColumn) -> float:
        """The most frequent number; LearnError where values are too many to be listed, or not public."""
        found = self._distribution(column)
        lows, highs, weights = found.all_cells()
        if not len(lows) or not is_public(self._client.plan, column) or (lows != highs).any():
            raise LearnError(
                f"Impute: column {column.qualified} is not public or has too many different numbers to find the most "
                f"frequent one; use strategy='median', or list it in categorical {self.owners(column.alias)}"
            )
        words, places = np.unique(lows, return_inverse=True)
        return float(values_of(words[[np.bincount(places, weights).argmax()]])[0])

    def label_sums(self, wanted: WantedColumn, folds: Folds) -> LabelSums:
        """Sums of the label by the codes of a column after steps."""
        if wanted.key not in self._codes:
            self.wanted_codes[wanted.key] = wanted
            raise NotYetKnown
        if (wanted.key, folds) not in self._label_sums:
            assert self._labels is not None, "they were asked for with the codes"
            self._label_sums[wanted.key, folds] = self._labels.of(self._codes[wanted.key], folds)
        return self._label_sums[wanted.key, folds]

    def _distribution(self, column: OutputColumn) -> Distribution:
        assert self._distributions is not None, "it was foreseen"
        return self._distributions.read()[column.name]

    def fetch(self) -> None:
        """Ask for whatever is wanted: one trip, and as many more as ranks need."""
        wanted, ranks, coded = list(self.wanted.values()), dict(self.wanted_ranks), list(self.wanted_names.values())
        codes, self.wanted_codes = list(self.wanted_codes.values()), {}
        self.wanted, self.wanted_ranks, self.wanted_names = {}, {}, {}
        asked = [(listed, self._ask("prep.sums", listed)) for listed in merged(wanted)]
        sent = [(listed, self._ask("prep.codes", listed)) for listed in merged(codes)]
        label = self.plan.query.label
        if sent and self._labels is None and label is not None:
            self._labels = AskedLabels(self._client, label)
        named = CategoryNames(self._client, [Coded(each.column, self._blinding, each.digests) for each in coded])
        if ranks:
            self._refine(ranks)
        for listed, pending in asked:
            self._store(listed, pending.read()[listed[0].alias])
        for listed, pending in sent:
            replies = pending.read()[listed[0].alias]
            for place, each in enumerate(listed):
                assert each.size is not None, "it has codes"
                self._codes[each.key] = read_codes(self._client, each.alias, replies, place, each.size)
        for each_coded, texts in zip(coded, named.read(), strict=True):
            self._names[each_coded.column.name] = texts

    def _ask(self, op: str, listed: Sequence[WantedColumn]) -> Pending:
        """Ask the shards of a table."""
        alias, tables = listed[0].alias, [each.table for each in listed]
        table = TableSteps(
            tuple(column for each in tables for column in each.numbers),
            tuple(column for each in tables for column in each.categories),
            tuple(step for each in tables for step in each.steps),
        )
        given = {"blinding": self._blinding, "wanted": [each.name for each in listed], **read_arguments(table)}
        return self._client.ask(op, lambda name, _: given if name == alias else None)

    def _store(self, listed: Sequence[WantedColumn], replies: Sequence[Mapping[str, Any]]) -> None:
        place = start = 0
        for each in listed:
            if each.size is None:
                self._derived[each.key] = merge_numbers([reply["sums"][place] for reply in replies])
                place += 1
            else:
                part = slice(start, start + each.size)
                self._derived[each.key] = np.sum([reply["weights"][part] for reply in replies], axis=0)
                start += each.size

    def _refine(self, wanted: Mapping[str, tuple[OutputColumn, set[float]]]) -> None:
        """Cut cells until all ranks are known."""
        assert self._distributions is not None, "it was foreseen"
        for name, (column, ranks) in wanted.items():
            if not 0 <= min(ranks) <= max(ranks) < self._distributions.read()[name].total:
                raise LearnError(
                    f"column {column.qualified} has too few rows with a value for quantiles, or other ones in its "
                    f"histogram than in its sums {self.owners(column.alias)}"
                )

        def cells(known: Distribution) -> Iterable[int]:
            for rank in wanted.get(known.column.name, (known.column, set()))[1]:
                low, high = known.around(rank)
                if low != high:
                    yield from known.open_cells(low, high)

        self._distributions.refine(cells)
        for name, known in self._distributions.read().items():
            if name in wanted:
                self._ranks |= {(name, rank): known.value(rank)[0] for rank in wanted[name][1]}


def merged(wanted: Iterable[WantedColumn]) -> list[list[WantedColumn]]:
    """Questions that one request can ask: of one table, about different columns."""
    groups: list[tuple[str, set[str], list[WantedColumn]]] = []
    for each in wanted:
        names = each.names
        for alias, taken, listed in groups:
            if alias == each.alias and not taken & names:
                taken |= names
                listed.append(each)
                break
        else:
            groups.append((each.alias, set(names), [each]))
    return [listed for _, _, listed in groups]


class Foreseen(Statistics):
    """Made-up but plausible statistics, and a list of what was wanted; no party is asked."""

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan, self.rows, self.needs, self.trips = plan, 1000.0, Needs(), 0
        self.refined = 0  # how often ranks were asked for
        self._coded: set[tuple[str, str, bytes]] = set()

    def base_rows(self, alias: str) -> int:
        """Many."""
        return round(self.rows)

    def number(self, column: OutputColumn) -> NumberSummary:
        """Numbers from 1 to 10, of which some are missing."""
        if column not in self.needs.numbers:
            self.needs.numbers.append(column)
        return NumberSummary(900.0, 5.0, 9000.0, 0.0, self.rows, 1.0, 10.0)

    def categories(self, column: OutputColumn, most: int | None) -> CategorySummary:
        """Two categories."""
        before = self.needs.categories.get(column.name, (column, 0))[1]
        more = None if before is None or most is None else max(before, most)
        self.needs.categories[column.name] = (column, more)
        digests = np.arange(32, dtype=np.uint8).reshape(2, 16)
        return CategorySummary(2, 500.0, 100.0, digests, np.array([500.0, 400.0]), digests[:1], NO_TIES)

    def mode(self, column: OutputColumn) -> float:
        """A number."""
        self.needs.ranks[column.name] = column
        return 2.0

    def label_sums(self, wanted: WantedColumn, folds: Folds) -> LabelSums:
        """Some, after a trip."""
        if wanted.key not in self._coded:
            self.wanted_codes[wanted.key] = wanted
            raise NotYetKnown
        return made_up_sums(wanted.size or 0, folds)

    def fetch(self) -> None:
        """Count a trip."""
        self.trips += 1
        self.refined += bool(self.wanted_ranks)
        for name, (column, ranks) in self.wanted_ranks.items():
            self.needs.ranks[name] = column
            self._ranks |= {(name, rank): stand_in(rank) for rank in ranks}
        for key, each in self.wanted.items():
            summary = NumberSummary(900.0, 0.5, 100.0, 0.0, self.rows, 0.0, 1.0)
            self._derived[key] = summary if each.size is None else np.full(each.size, 900.0 / each.size)
        for name, each_named in self.wanted_names.items():
            self._names[name] = [str(place) for place in range(len(each_named.digests))]
        self._coded |= self.wanted_codes.keys()
        self.wanted_codes = {}
        self.wanted, self.wanted_ranks, self.wanted_names = {}, {}, {}
