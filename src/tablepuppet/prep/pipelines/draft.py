"""A pipeline written down over the columns of a relation, before anybody is asked.

A `Column` is a name, a kind, and what will be known of it between two steps; it has no values. A step finds its columns
here, says what it needs of each, and what parties will do with it (`Draft.emit`): values that are computed later, from
answers (needs.py). So a draft shows which questions a fit asks, and in how many trips, and whether steps fit columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Digests
from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.party.arguments import MOST_SCALE
from tablepuppet.prep.columns.selected import is_category, is_date, is_public
from tablepuppet.prep.columns.statistics import NO_DIGESTS, NumberSummary
from tablepuppet.prep.encode.specs import FARTHEST, FittedStep, NumberFunction
from tablepuppet.prep.pipelines.label_sums import Folds, LabelSums
from tablepuppet.prep.pipelines.moments import AtRanks, Moments, Places, Ranks
from tablepuppet.prep.pipelines.needs import (
    Categories,
    Cells,
    Dropped,
    LabelSumsAfter,
    Later,
    Names,
    RankValues,
    Source,
    Sums,
    SumsAfter,
    WeightsAfter,
    given,
)
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

Kind = Literal["number", "flag", "text", "coded"]
SAID: dict[Kind, str] = {
    "number": "a number", "flag": "a flag of 0 and 1", "text": "categories", "coded": "encoded as categories already",
}  # fmt: skip
Weights = NDArray[np.float64]
START: Later[None] = given(None)  # of a column that nothing has happened to


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


@dataclass(frozen=True)
class Codes:
    """The codes of a column: those of categories, by digests, then those of ``more``; and the rows without one."""

    digests: Digests
    more: tuple[str, ...] = ()
    missing: float = 0.0

    @property
    def size(self) -> int:
        return len(self.digests) + len(self.more)


NO_CODES = given(Codes(NO_DIGESTS))


@dataclass(frozen=True)
class Order:
    """The order statistics of a column after steps; ``has_ends``: sums of the column as it was read have the ends."""

    cells: Cells
    has_ends: bool
    places: Later[Places]
    ranks: Later[Ranks]

    def mapped(self, function: Later[Callable[[float], float]]) -> Order:
        """After a rising function."""
        return replace(self, ranks=Later(Ranks.mapped, self.ranks, function))

    def filled(self, missing: Later[float], fill: Later[float]) -> Order:
        """With one more value, in this number of rows."""
        places = Later(Places.filled, self.places, missing)
        return replace(self, places=places, ranks=Later(Ranks.filled, self.ranks, missing, fill))

    def shortened(self, below: Later[float], count: Later[float]) -> Order:
        """Without the ``below`` lowest rows; ``count`` are left."""
        places = Later(Places.shortened, self.places, below, count)
        return replace(self, has_ends=False, places=places, ranks=Later(Ranks.shortened, self.ranks, below, count))


@dataclass
class Column:
    """A column between two steps."""

    column: OutputColumn  # the selected one, or what one that steps made is called
    kind: Kind
    is_source: bool
    reads: frozenset[str]  # the selected columns that it is made of
    checks: tuple[Later[Any], ...] = (START,)  # in the order of steps; the last is lost if it is left out
    chain: tuple[int, ...] = ()  # the steps of its table that it depends on, by their places in the program
    is_filled: bool = False  # nothing is missing
    moments: Later[Moments] | None = None  # None: they are asked for, if a step needs them
    order: Callable[[], Order] | None = None  # None: not known
    is_listed: bool = False  # its categories have codes
    most_codes: int = 0
    read_by: Later[Digests] | None = None  # the categories that have codes as it is read; None: it is read as numbers
    codes: Later[Codes] = NO_CODES
    weights: Later[Weights] | None = None  # joined rows by code; None: they are asked for, if a step needs them

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def alias(self) -> str:
        return self.column.alias

    @property
    def alive(self) -> Later[Any]:
        """Lost if the column is left out, by the steps so far."""
        return self.checks[-1]

    @property
    def is_unchanged(self) -> bool:
        """Whether it is as it was read."""
        return self.is_source and not self.chain


class Draft:
    """All columns, and what the steps so far have declared. Without a ``client`` it is not to be fitted."""

    def __init__(self, plan: Plan, max_categories: int, client: Client | None = None, *, is_noisy: bool = False):
        self.plan, self.max_categories, self._client = plan, max_categories, client
        self.is_noisy = is_noisy  # of numbers in order only the ends are known, and counts are none
        self.step = ""  # the name of the step that declares
        self.columns: dict[str, Column] = {}
        self.all: list[Column] = []  # those too that steps have replaced
        self.sources: dict[str, Column] = {}
        self.program: dict[str, list[Later[FittedStep | None]]] = {}  # by alias
        self.settled: list[Later[Any]] = []  # what a fit must know, in the order of steps
        self.used: list[tuple[str, list[OutputColumn]]] = []  # by step, the selected columns that it works on
        self.labelled: list[tuple[str, OutputColumn]] = []  # by step, a column whose categories get means of the label
        self.information: dict[str, Later[float]] = {}  # values of columns for the label, by ``alias.column``
        self._asked: dict[tuple[Any, ...], Any] = {}  # questions, each once
        for column in plan.query.features:
            self._select(column)

    @property
    def rows(self) -> float:
        assert self._client is not None, "nothing is computed without parties"
        rows = float(len(self._client.rows))
        return max(rows, 1.0) if self.is_noisy else rows

    def base_rows(self, alias: str) -> int:
        """Rows of a table that take part; with noise 0, so that no text counts as an id: that depends on the data."""
        assert self._client is not None, "nothing is computed without parties"
        return 0 if self.is_noisy else self._client.tables[alias].rows

    def owners(self, column: OutputColumn) -> str:
        """The parties that own a column's rows, as the end of an error."""
        return "" if self._client is None else self._client.owners(column.alias)

    def counts_all(self, column: Column) -> bool:
        """Whether parties count every row of a category: those with a ``min_group`` leave small groups out.

        Then a sum over categories does not follow from their counts, and is asked for. With noise it is an estimate.
        """
        return self.is_noisy or all(shard.min_group <= 1 for shard in self.plan.tables[column.alias].shards)

    def _select(self, column: OutputColumn) -> None:
        is_text = is_category(column, self.plan.query.categorical)
        each = Column(column, "text" if is_text else "number", True, frozenset([column.name]))
        self.columns[column.name] = self.sources[column.name] = each
        self.all.append(each)
        self.program.setdefault(column.alias, [])
        if is_text:
            each.read_by = given(NO_DIGESTS)
        elif not self.is_noisy:
            each.order = partial(Draft._order, self, column)

    def _order(self, column: OutputColumn) -> Order:
        sums = self._sums(column)
        return Order(self.cells(column), is_public(self.plan, column), Later(Places.of, sums), Later(Ranks.of, sums))

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
            if kind not in kinds:
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
            matching = [
                name
                for name, each in self.columns.items()
                if fnmatchcase(name, item) or fnmatchcase(each.column.qualified, item)
            ]
            if matching:
                return [name for name in matching if self.columns[name].kind in kinds]
            raise LearnError(f"{self.step}: no column is like {item!r}{did_you_mean(item.strip('*?'), self.columns)}")
        raise LearnError(f"{self.step}: {item!r} is no column{did_you_mean(item, self.columns)}")

    # What a step needs of a column

    def moments(self, column: Column) -> Later[Moments]:
        """Of a column of numbers; it is left out if it has none."""
        return Later(_not_empty, column.column, column.alive, self._moments(column))

    def _moments(self, column: Column) -> Later[Moments]:
        if column.moments is None:
            column.moments = Later(_finite, self, column.column, self.summary(column))
        return column.moments

    def usable(self, column: Column) -> Later[Moments]:
        """Moments of a column that a step scales; LearnError if numbers are too large to be squared."""
        return Later(_small, self, column.column, column.alive, self._moments(column))

    def ends(self, column: Column) -> Later[tuple[float, float]]:
        """The lowest and the highest value of a column of numbers; with noise its bounds."""
        known, order = self.moments(column), column.order() if column.order is not None else None
        unknown = self._quantiles_unknown(column)

        def ends(ranks: Ranks, values: AtRanks) -> tuple[float, float]:
            try:
                return ranks.ends(values)
            except KeyError:
                raise LearnError(unknown) from None

        nothing: Later[AtRanks] = given({})
        if order is None:
            ranks: Later[Ranks] = Later(lambda _, found: Ranks.of(found), known, self.summary(column))
            return Later(ends, ranks, nothing)
        values = nothing if order.has_ends else self._at_ranks(column, order, Places.for_ends)
        return Later(lambda _, ranks, values: ends(ranks, values), known, order.ranks, values)

    def quantiles(self, column: Column, shares: Sequence[float]) -> Later[list[float]]:
        """Quantiles of a column of numbers; LearnError where steps before have changed the order, or with noise."""
        if column.order is None:
            raise LearnError(self._quantiles_unknown(column))
        known, order = self.moments(column), column.order()
        return Later(
            lambda _, ranks, values: [ranks.quantile(share, values) for share in shares],
            known, order.ranks, self._at_ranks(column, order, lambda places: places.for_quantiles(shares)),
        )  # fmt: skip

    def _at_ranks(self, column: Column, order: Order, wanted: Callable[[Places], list[float]]) -> Later[AtRanks]:
        """The values that order statistics depend on: asked for as soon as counts are known, whatever steps learn."""
        alive = next(each for each in reversed(column.checks) if each.trip <= order.places.trip)
        return RankValues(order.cells, Later(lambda _, places: wanted(places), alive, order.places))

    def _quantiles_unknown(self, column: Column) -> str:
        return (
            f"{self.step}: column {column.column.qualified} is made by an earlier step, and its quantiles are not "
            f"known; put the step before that one, or name its columns, as columns=[...] {self.owners(column.column)}"
        ).rstrip()

    def cells(self, column: OutputColumn) -> Cells:
        """The distribution of a column of numbers as it was read."""
        found: Cells = self._once(("cells", column.name), lambda: Cells(column))
        return found

    def categories(self, column: Column, most: int) -> Categories:
        """The categories of a text as it was read, listed if there are at most ``most``."""
        found: Categories = self._once(("categories", column.name), lambda: Categories(column.column))
        found.most = max(found.most, most)
        return found

    def distinct(self, column: Column) -> Later[tuple[int, float]]:
        """(the number of categories of a text, the joined rows without one), as steps have left it.

        What a ``min_group`` hides is not filled: then parties count what is left.
        """
        if column.is_filled and not self.counts_all(column):
            left = self._weights_after(column)
            return Later(lambda left: (int(np.count_nonzero(left)), self.rows - float(left.sum())), left)
        if column.weights is not None:
            return Later(
                lambda _, weights, codes: (int(np.count_nonzero(weights)), codes.missing),
                column.alive, column.weights, column.codes,
            )  # fmt: skip
        found = self.categories(column, self.max_categories)
        return Later(lambda _, found: (found.distinct, found.missing), column.alive, found)

    def weights(self, column: Column) -> Later[Weights]:
        """How many joined rows have each code."""
        if column.weights is None:
            column.weights = self._weights_after(column)
        return column.weights

    def _weights_after(self, column: Column) -> WeightsAfter:
        size: Later[int] = Later(lambda codes: codes.size, column.codes)
        found: WeightsAfter = self._once(
            ("weights", column.name, column.chain),
            lambda: WeightsAfter(column.column, column.alive, self._sources(column), self._steps(column), size),
        )
        return found

    def names(self, column: Column) -> Later[list[str | None]]:
        """What the codes of a public column are called."""
        digests = Later(lambda _, codes: codes.digests, column.alive, column.codes)
        found: Names = self._once(("names", column.name), lambda: Names(column.column, digests))
        return Later(lambda names, codes: [*names, *codes.more], found, column.codes)

    def label_sums(self, column: Column, folds: Folds, size: Later[int]) -> Later[LabelSums]:
        """Sums of the label by code; ``size`` is the number of codes, which may be refused."""
        self.labelled.append((self.step, column.column))
        return LabelSumsAfter(folds, column.column, column.alive, self._sources(column), self._steps(column), size)

    def sums_with(self, column: Column, name: str, step: Later[FittedStep | None]) -> Later[NumberSummary]:
        """The sums of a column that one more step would make, without making it."""
        made, steps = replace(column.column, name=name), [*self._steps(column), step]
        return SumsAfter(made, column.alive, self._sources(column), steps)

    def summary(self, column: Column) -> Later[NumberSummary]:
        """The sums of a column of numbers, as steps have left it."""
        if column.is_unchanged:
            return self._sums(column.column)
        found: SumsAfter = self._once(
            ("sums", column.name, column.chain),
            lambda: SumsAfter(column.column, column.alive, self._sources(column), self._steps(column)),
        )
        return found

    def _sums(self, column: OutputColumn) -> Sums:
        found: Sums = self._once(("sums", column.name), lambda: Sums(column))
        return found

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self._asked:
            self._asked[key] = make()
        return self._asked[key]

    def _sources(self, column: Column) -> list[Source]:
        names = column.reads if len(column.reads) < 2 else filter(column.reads.__contains__, self.sources)
        return [(self.sources[name].column, self.sources[name].read_by) for name in names]

    def _steps(self, column: Column) -> list[Later[FittedStep | None]]:
        return [self.program[column.alias][place] for place in column.chain]

    # What a step does

    def check(self, column: Column, test: Callable[..., None], *inputs: Any) -> None:
        """Go on with a column only if a test of ``inputs`` passes: it may be left out, or an error."""
        column.checks = (*column.checks, Later(_if_alive, test, 1, column.alive, *inputs))
        self.settled.append(column.alive)

    def need(self, column: Column, *needed: Later[Any]) -> None:
        """Go on with a column only if these have values."""
        self.check(column, _any_value, *needed)

    def emit(self, column: Column, make: Callable[..., Any], *inputs: Any) -> Later[Any]:
        """Let parties change a column by the step that is made of ``inputs``; by none if it is None."""
        step = self._append([column], make, *inputs)
        column.chain = (*column.chain, len(self.program[column.alias]) - 1)
        column.checks = (*column.checks, step)
        return step

    def _append(self, columns: Sequence[Column], make: Callable[..., Any], *inputs: Any) -> Later[Any]:
        step = Later(_if_alive, make, len(columns), *[each.alive for each in columns], *inputs)
        self.program[columns[0].alias].append(step)
        self.settled.append(step)
        return step

    def apply(self, column: Column, make: Callable[..., NumberFunction], *inputs: Any) -> Later[NumberFunction]:
        """Let parties apply a rising function, and follow the order of values through it."""
        step = self.emit(column, make, *inputs)
        column.moments = None
        if column.order is not None:
            column.order = partial(_mapped, column.order, step)
        return step

    def make(
        self, columns: Sequence[Column], name: str, step: Later[FittedStep] | FittedStep, kind: Kind = "number",
        moments: Later[Moments] | None = None, *, is_filled: bool = False,
    ) -> None:  # fmt: skip
        """Let parties make a column of others of one table; LearnError if there is one of that name."""
        if name in self.columns or name in self.sources:
            raise LearnError(
                f"{self.step}: it would make a column {name!r}, which there is already; rename that in SELECT"
            )
        alias = columns[0].alias
        chain = sorted({place for each in columns for place in each.chain})
        made = Column(
            OutputColumn(name, alias, "", "DOUBLE"), kind, False,
            frozenset().union(*(each.reads for each in columns)),
            chain=(*chain, len(self.program[alias])), moments=moments, is_filled=is_filled,
        )  # fmt: skip
        made.checks = (self._append(columns, lambda step: step, step),)
        self.columns[name] = made
        self.all.append(made)

    def inform(self, column: Column, value: Later[float]) -> None:
        """Tell how much a column says of the label."""
        self.information[column.column.qualified] = value
        self.settled.append(value)

    def hide(self, column: Column) -> None:
        """Replace a column by those that were made of it."""
        del self.columns[column.name]

    def give_codes(self, column: Column, codes: Later[Codes], most: int) -> None:
        """Go on with codes in place of numbers or of categories, ``most`` at most."""
        column.kind, column.codes, column.most_codes = "coded", codes, most
        column.weights, column.moments, column.order = None, None, None

    def give_numbers(self, column: Column, moments: Later[Moments] | None, *, is_filled: bool) -> None:
        """Go on with numbers in place of codes."""
        column.kind, column.codes, column.weights, column.is_listed = "number", NO_CODES, None, False
        column.moments, column.order, column.is_filled = moments, None, is_filled


def _any_value(*_: object) -> None:
    """It is there."""


def _if_alive(make: Callable[..., Any], columns: int, *found: Any) -> Any:
    """What is made of the values after those that are lost with ``columns``."""
    return make(*found[columns:])


def _mapped(order: Callable[[], Order], step: Later[NumberFunction]) -> Order:
    return order().mapped(Later(lambda step: step.value, step))


def _finite(draft: Draft, column: OutputColumn, found: NumberSummary) -> Moments:
    if found.not_finite:
        raise LearnError(
            f"column {column.qualified} has values that are not finite (NaN or infinity) in "
            f"{round(found.not_finite):,} joined rows; filter them, or make them NULL with CASE "
            f"{draft.owners(column)}"
        )
    return Moments.of(found)


def _small(draft: Draft, column: OutputColumn, alive: object, found: Moments) -> Moments:
    _not_empty(column, alive, found)
    if not (math.isfinite(found.squares) and abs(found.mean) <= MOST_SCALE):
        raise LearnError(
            f"column {column.qualified} has values so large that their squares overflow; divide it in SELECT, or "
            f"filter them {draft.owners(column)}"
        )
    return found


def _not_empty(column: OutputColumn, _: object, found: Moments) -> Moments:
    if not found.count:
        raise Dropped(column, "is empty")
    return found


def bounded(value: float) -> float:
    """A number that a step may hold."""
    return float(min(max(value, -FARTHEST), FARTHEST))
