"""One run of a pipeline's steps over the columns of a relation, as far as statistics are known (known.py).

A column here is its name, its kind and its known statistics; it has no values. Steps read statistics and emit the
fitted steps that parties will run (specs.py). A column whose statistics are not known yet waits; the others continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.party.arguments import MOST_SCALE
from tablepuppet.prep.columns.selected import is_category, is_date
from tablepuppet.prep.columns.statistics import NumberSummary
from tablepuppet.prep.encode.encode import NO_DIGESTS, TableSteps
from tablepuppet.prep.encode.program import needed_for
from tablepuppet.prep.encode.specs import FARTHEST, Clipped, Exponent, Scale, StepSpec
from tablepuppet.prep.pipelines.known import Statistics, WantedColumn
from tablepuppet.prep.pipelines.label_sums import Folds, LabelSums
from tablepuppet.prep.pipelines.moments import Moments, NotYetKnown, Ranks
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

Kind = Literal["number", "flag", "text", "coded"]
SAID: dict[Kind, str] = {
    "number": "a number", "flag": "a flag of 0 and 1", "text": "categories", "coded": "encoded as categories already",
}  # fmt: skip


class Dropped(Exception):  # noqa: N818 - a warning, no error
    """A column is no feature, for a reason."""


@dataclass(frozen=True)
class Selector:
    """Columns of one type."""

    type: Literal["number", "text", "date", "boolean", "flag"]

    def __str__(self) -> str:
        return f"type:{self.type}"

    def takes(self, column: Column) -> bool:
        """Whether it is of the type, as the steps before have left it."""
        if self.type == "date":
            return column.kind == "number" and column.is_source and is_date(column.column)
        if self.type == "boolean":
            return column.is_source and family(column.column.type) is Family.BOOLEAN
        return column.kind == self.type


@dataclass
class Column:
    """A column between two steps."""

    column: OutputColumn  # the selected one, or what one that steps made is called
    kind: Kind
    is_source: bool
    was_text: bool = False  # it is read as categories
    moments: Moments | None = None  # None: not known without asking
    ranks: Callable[[], Ranks] | None = None  # None: its order is not known
    is_filled: bool = False  # nothing is missing
    read_by: NDArray[np.uint8] = field(default_factory=lambda: NO_DIGESTS)  # categories that have codes as it is read
    digests: NDArray[np.uint8] = field(default_factory=lambda: NO_DIGESTS)  # those that have codes now
    weights: NDArray[np.float64] | None = None  # joined rows by code; None: not known without asking
    more: tuple[str, ...] = ()  # codes after those of the digests
    missing: float = 0.0  # joined rows without a category
    waits: bool = False
    is_guessed: bool = False  # placeholders are used for values that are wanted

    @property
    def name(self) -> str:
        """What it is called."""
        return self.column.name

    @property
    def alias(self) -> str:
        """Of its table."""
        return self.column.alias

    @property
    def size(self) -> int:
        """How many codes there are."""
        return len(self.digests) + len(self.more)


class Attempt:
    """All columns, and the steps that were fitted so far."""

    def __init__(self, statistics: Statistics, max_categories: int):
        self.statistics, self.max_categories = statistics, max_categories
        self.step = ""  # the name of the step that runs
        self._placeholders = 0  # how many were used before the step that runs
        self.columns: dict[str, Column] = {}
        self.program: dict[str, list[StepSpec]] = {}
        self.dropped: dict[str, tuple[Column, str]] = {}  # with reasons
        self.sources: dict[str, Column] = {}
        self.used: list[tuple[str, list[OutputColumn]]] = []  # by step, the selected columns that it works on
        self.labelled: list[tuple[str, OutputColumn]] = []  # by step, a column whose categories get means of the label
        self.information: dict[str, float] = {}  # values of columns for the label, by ``alias.column``
        for column in statistics.plan.query.features:
            self._select(column)

    def _select(self, column: OutputColumn) -> None:
        is_text = is_category(column, self.statistics.plan.query.categorical)
        each = Column(column, "text" if is_text else "number", True, was_text=is_text)
        self.columns[column.name] = self.sources[column.name] = each
        self.program.setdefault(column.alias, [])
        if not is_text and not self.statistics.is_noisy:
            each.ranks = lambda: Ranks.of(self.statistics.number(column), partial(self.statistics.rank, column))

    def replace(self, column: OutputColumn, made: OutputColumn, *, keep: bool) -> None:
        """Select what an expression makes of a column."""
        if not keep:
            del self.columns[column.name], self.sources[column.name]
        self._select(made)

    # Finding columns

    def select(
        self, wanted: Sequence[str | Selector] | None, kinds: Sequence[Kind], usual: Sequence[Kind]
    ) -> list[Column]:
        """The columns that the step works on, in order: those ``wanted``, or all of the ``usual`` kinds.

        LearnError for a name that there is not, or of a column that is not of the ``kinds`` that the step takes.
        """
        if wanted is None:
            return [each for each in self.columns.values() if each.kind in usual]
        found: set[str] = set()
        for item in wanted:
            if isinstance(item, Selector):
                found |= {name for name, each in self.columns.items() if item.takes(each) and each.kind in kinds}
            else:
                found |= set(self._named(item, kinds))
        return [each for name, each in self.columns.items() if name in found]

    def _named(self, item: str, kinds: Sequence[Kind]) -> list[str]:
        exact = [name for name, each in self.columns.items() if item in (name, each.column.qualified)]
        for name in exact:
            kind = self.columns[name].kind
            if kind not in kinds and not self.columns[name].waits:
                help_ = "CAST it in SELECT, or make numbers of it by an earlier step" if "number" in kinds else ""
                help_ = help_ or "list it in categorical, or CAST it in SELECT"
                needed = " or ".join(dict.fromkeys(SAID[each] for each in kinds))
                raise LearnError(
                    f"{self.step}: column {self.columns[name].column.qualified} ({self.columns[name].column.type}) is "
                    f"{SAID[kind]}, and the step needs {needed}; {help_}"
                )
        if exact:
            return exact
        if any(letter in item for letter in "*?["):
            matching = [name for name, each in self.columns.items() if _matches(each, item)]
            if matching or self._may_be_gone(item):
                return [name for name in matching if self.columns[name].kind in kinds]
            raise LearnError(f"{self.step}: no column is like {item!r}{did_you_mean(item.strip('*?'), self.columns)}")
        if self._may_be_gone(item):
            return []
        raise LearnError(f"{self.step}: {item!r} is no column{did_you_mean(item, self.columns)}")

    def _may_be_gone(self, item: str) -> bool:
        """Whether a column may have been there, or may come, though it is not there now."""
        dropped = any(_matches(each, item) for each, _ in self.dropped.values())
        return dropped or any(each.waits for each in self.columns.values())

    def fit(self, column: Column, step: Callable[[Column, Attempt], None]) -> None:
        """Fit a step to a column, unless it waits.

        It waits if statistics of it are not known yet, and is left out if it turns out to be no feature.
        """
        if column.waits:
            return
        self._placeholders = self.statistics.placeholders
        try:
            step(column, self)
            column.is_guessed |= self.statistics.placeholders > self._placeholders
        except NotYetKnown:
            column.waits = True
        except Dropped as error:
            if self._is_unsure(column):
                column.waits = True
            else:
                del self.columns[column.name]
                self.dropped[column.name] = (column, str(error))

    def _is_unsure(self, column: Column) -> bool:
        """Whether statistics are made up, or placeholders: they need not fit each other, or a step."""
        guessed = column.is_guessed or self.statistics.placeholders > self._placeholders
        return guessed or self.statistics.is_made_up

    def refusal(self, column: Column, message: str) -> Exception:
        """The error for values that do not allow a step; a column waits if they are no values of the column."""
        return NotYetKnown() if self._is_unsure(column) else LearnError(message)

    def drop_for(self, reason: str) -> None:
        """Leave the column out that a step is fitted to; it stays if statistics are made up, with what follows it."""
        if not self.statistics.is_made_up:
            raise Dropped(reason)

    def hide(self, column: Column) -> None:
        """Replace a column by those that were made of it."""
        del self.columns[column.name]

    # What is known of columns

    def moments(self, column: Column) -> Moments:
        """Of a column of numbers; it is left out if it has none."""
        if column.moments is None:
            found = self._summary(column)
            if found.not_finite:
                raise self.refusal(
                    column,
                    f"column {column.column.qualified} has values that are not finite (NaN or infinity) in "
                    f"{round(found.not_finite):,} joined rows; filter them, or make them NULL with CASE "
                    f"{self.statistics.owners(column.alias)}",
                )
            column.moments = Moments.of(found)
        if not column.moments.count:
            raise Dropped("is empty")
        return column.moments

    def _summary(self, column: Column) -> NumberSummary:
        """The sums of a column of numbers, as steps have left it."""
        if self.is_unchanged(column):
            return self.statistics.number(column.column)
        return self.sums(column.alias, column.name, self.chain(column))

    def usable(self, column: Column) -> Moments:
        """The same; LearnError if numbers are too large to be squared."""
        found = self.moments(column)
        if not (math.isfinite(found.squares) and abs(found.mean) <= MOST_SCALE):
            raise self.refusal(
                column,
                f"column {column.column.qualified} has values so large that their squares overflow; divide it in "
                f"SELECT, or filter them {self.statistics.owners(column.alias)}",
            )
        return found

    def ranks(self, column: Column) -> Ranks:
        """The values of a column in order; only the ends where steps before have changed the order, or with noise."""
        self.moments(column)  # it may be empty
        if column.ranks is not None:
            return column.ranks()

        def unknown(_: float) -> float:
            raise LearnError(
                f"{self.step}: column {column.column.qualified} is made by an earlier step, and its quantiles are not "
                "known; put the step before that one, or name its columns, as columns=[...] "
                f"{self.statistics.owners(column.alias)}".rstrip()
            )

        return Ranks.of(self._summary(column), unknown)

    def is_unchanged(self, column: Column) -> bool:
        """Whether a column is as it was read."""
        return column.is_source and not self.chain(column).steps

    def chain(self, column: Column, *more: StepSpec) -> TableSteps:
        """The steps that a column depends on, and what they read."""
        steps = [*needed_for(self.program[column.alias], [column.name]), *more]
        return self.reading(column.alias, [column.name], steps)

    def reading(self, alias: str, names: Iterable[str], steps: Sequence[StepSpec]) -> TableSteps:
        """Steps of a table, with the selected columns that they or ``names`` refer to."""
        read = {*names, *(each for step in steps for each in step.reads)}
        names = read if len(read) < 2 else filter(read.__contains__, self.sources)  # one needs no order
        sources = [each for name in names if (each := self.sources.get(name)) and each.alias == alias]
        return TableSteps(
            tuple(each.column for each in sources if not each.was_text),
            tuple((each.column, each.read_by) for each in sources if each.was_text),
            tuple(steps),
        )

    def sums(self, alias: str, name: str, chain: TableSteps) -> NumberSummary:
        """The sums of a column of numbers after steps; it need not be one that is kept."""
        found: NumberSummary = self.statistics.derived(self._wanted("prep.sums", alias, name, chain, None))
        return found

    def categories(self, column: Column) -> tuple[int, float]:
        """(the number of categories of a text, the joined rows without one), as steps have left it.

        What a ``min_group`` hides is not filled: then parties count what is left.
        """
        if column.is_filled and not self.counts_all(column):
            wanted = self._wanted("prep.sums", column.alias, column.name, self.chain(column), column.size)
            weights = self.statistics.derived(wanted)
            return int(np.count_nonzero(weights)), self.statistics.rows - float(weights.sum())
        if column.weights is not None:
            return int(np.count_nonzero(column.weights)), column.missing
        found = self.statistics.categories(column.column, self.max_categories)
        return found.distinct, found.missing

    def counts_all(self, column: Column) -> bool:
        """Whether parties count every row of a category: those with a ``min_group`` leave small groups out.

        Then a sum over categories does not follow from their counts, and is asked for. With noise it is an estimate.
        """
        shards = self.statistics.plan.tables[column.alias].shards
        return self.statistics.is_noisy or all(shard.min_group <= 1 for shard in shards)

    def weights(self, column: Column) -> NDArray[np.float64]:
        """How many joined rows have each code."""
        if column.weights is None:
            wanted = self._wanted("prep.sums", column.alias, column.name, self.chain(column), column.size)
            column.weights = self.statistics.derived(wanted)
        return column.weights

    def label_sums(self, column: Column, folds: Folds) -> LabelSums:
        """Sums of the label by code."""
        self.labelled.append((self.step, column.column))
        wanted = self._wanted("prep.codes", column.alias, column.name, self.chain(column), column.size)
        return self.statistics.label_sums(wanted, folds)

    def _wanted(
        self, op: Literal["prep.sums", "prep.codes"], alias: str, name: str, chain: TableSteps, size: int | None
    ) -> WantedColumn:
        """A question about a column after steps; it waits if these contain placeholders."""
        read = {name, *(each for step in chain.steps for each in step.reads)}
        if any(each in self.columns and self.columns[each].is_guessed for each in read):
            raise NotYetKnown
        return WantedColumn(op, alias, name, chain, size)

    # What steps do

    def emit(self, column: Column, step: StepSpec) -> None:
        """Let parties run a step."""
        self.program[column.alias].append(step)

    def apply(self, column: Column, step: Clipped | Exponent | Scale) -> None:
        """Let parties apply a rising function, and follow the order of values through it."""
        inner = column.ranks
        self.emit(column, step)
        column.moments = None
        if inner is not None:
            column.ranks = lambda: inner().mapped(step.value)

    def make(self, like: Column, step: StepSpec, kind: Kind = "number", **known: object) -> None:
        """Let parties make a column in the table of another; LearnError if there is one of that name."""
        name = step.writes
        if name in self.columns or name in self.sources:
            raise LearnError(
                f"{self.step}: it would make a column {name!r}, which there is already; rename that in SELECT"
            )
        made = OutputColumn(name, like.alias, "", "DOUBLE")
        self.columns[name] = Column(made, kind, False, **known)  # type: ignore[arg-type]
        self.emit(like, step)

    def give_codes(self, column: Column, digests: NDArray[np.uint8], more: tuple[str, ...] = ()) -> None:
        """Give codes to categories of a column, as it is read, and to what else it may have."""
        column.read_by = column.digests = digests
        column.more = more

    def give_numbers(self, column: Column, moments: Moments | None, *, is_filled: bool) -> None:
        """Go on with numbers in place of codes."""
        column.kind, column.digests, column.more, column.weights = "number", NO_DIGESTS, (), None
        column.moments, column.ranks, column.is_filled = moments, None, is_filled


def _matches(column: Column, item: str) -> bool:
    """Whether a name or a pattern means a column."""
    return any(item == name or fnmatchcase(name, item) for name in (column.name, column.column.qualified))


def bounded(value: float) -> float:
    """A number that a step may hold."""
    return float(min(max(value, -FARTHEST), FARTHEST))
