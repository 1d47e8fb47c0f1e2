"""`slice_finder`: the parts of the joined rows that a model predicts worst, such as ``kind = b, price >= 10``.

The coordinator has the errors of joined rows. For every column it asks for one number per base row: the code of a
category (by digest), or a number, which it puts into bins (release COLUMNS). Tables must allow this
(``cross_statistics``). A reported slice has at least the policies' ``min_group`` distinct base rows in the tables of
its columns and in the label's table. The same holds for the rows of every larger slice that are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.learner import Learner, label_of
from tablepuppet.learn.selection.slice_lattice import Found, Lattice, Pair, Scoring
from tablepuppet.learn.settings import check_whole
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.category_names import Coded, ask_public_names
from tablepuppet.prep.columns.selected import check_across, check_without_noise, find_column, is_category, is_date
from tablepuppet.prep.columns.sent_columns import SentCategories, SentColumns
from tablepuppet.prep.columns.values import as_date, shown_date
from tablepuppet.prep.explore.distribution import Distributions
from tablepuppet.prep.explore.pooled import check_number
from tablepuppet.prep.explore.quantiles import quantiles_of
from tablepuppet.relation import Relation
from tablepuppet.runs.figures import shown
from tablepuppet.runs.table_view import TableResult, TableView
from tablepuppet.spelling import did_you_mean, names_checked
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

STEP = "slice_finder"
MOST_BINS = 1000
ROUNDED = ".6g"
SMALLEST, SHARE = 32, 0.01  # joined rows of a slice, whichever is more


@dataclass(frozen=True)
class Slice:
    """Joined rows that a model predicts badly: what they have in common, by column, and how badly."""

    conditions: dict[str, str]
    size: int
    mean_error: float
    score: float

    def __str__(self) -> str:
        return ", ".join(f"{column} {condition}" for column, condition in self.conditions.items())


class Slices(TableResult):
    """The worst slices, the highest score first; ``mean_error`` and ``rows`` are those of the whole relation."""

    def __init__(self, slices: Sequence[Slice], kind: str, rows: int, mean_error: float):
        self.slices, self.kind, self.rows, self.mean_error = list(slices), kind, rows, mean_error

    def __len__(self) -> int:
        return len(self.slices)

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    def __getitem__(self, place: int) -> Slice:
        return self.slices[place]

    def to_arrow(self) -> pa.Table:
        """One row per slice."""
        return pa.table(
            {
                "slice": pa.array([str(each) for each in self], pa.string()),
                "size": pa.array([each.size for each in self], pa.int64()),
                "mean_error": pa.array([each.mean_error for each in self], pa.float64()),
                "score": pa.array([each.score for each in self], pa.float64()),
            }
        )

    def table_view(self) -> TableView:
        named = {"wrong": "share of wrong classes", "log_loss": "log loss"}.get(self.kind, f"{self.kind} error")
        title = f"Worst slices of {self.rows:,} joined rows; {named} {shown(self.mean_error)} in all"
        rows = [[str(each), f"{each.size:,}", shown(each.mean_error), shown(each.score)] for each in self]
        return TableView(title, {"slice": "left", "size": "right", "mean error": "right", "score": "right"}, rows)


@names_checked
def slice_finder(
    model: Learner,
    relation: Relation,
    columns: Sequence[str] | None = None,
    k: int = 10,
    max_columns: int = 3,
    min_size: int | None = None,
    alpha: float = 0.95,
    bins: int = 10,
    error: str | None = None,
) -> Slices:
    """The ``k`` worst-predicted slices of up to ``max_columns`` columns: a table with slice, size, mean error, score.

    Texts, booleans and columns that are listed as categorical are slices by value, other numbers by ``bins`` of about
    equally many rows. ``columns`` are all features if none are named, without texts of too many values. A slice has
    ``min_size`` joined rows or more (32, or 1 % if that is more); ``alpha`` from 0 to 1 weighs its error against its
    size. ``error`` is ``squared`` or ``absolute`` of regressors, ``wrong`` or ``log_loss`` of classifiers.
    """
    need_relation(relation, STEP)
    kind = _checked_kind(model, error)
    _check_settings(k, max_columns, min_size, alpha, bins)
    model.check_relation(relation, STEP)
    label = label_of(relation)
    listed = _columns(relation, columns)
    check_without_noise(relation.plan, listed, STEP)
    check_across(relation.plan, listed, STEP)
    done = relation.events.progress("slices", f"{type(model).__name__}: looking for slices it predicts badly", 1)
    sliced = SlicedColumns(relation, listed, bins, named=columns is not None)
    errors = model.row_errors(relation, kind)
    found, total = sliced.read(), float(errors.sum())
    if not np.isfinite(total):
        raise LearnError(f"{STEP}: errors are too large to be added up; learn the label in a larger unit")
    least = max([min_size or max(SMALLEST, round(SHARE * len(errors))), 1])
    scoring = Scoring(len(errors), total, float(alpha), least)
    best = _lattice(relation.client, label, found, errors).worst(k, scoring, max_columns) if total else []
    conditions = _Conditions(relation.client, found, best)
    done(1)
    return Slices([conditions.slice(each) for each in best], kind, len(errors), total / len(errors))


def _checked_kind(model: Any, error: str | None) -> str:
    if not isinstance(model, Learner):
        raise LearnError(f"{STEP} takes a learner that was fitted, not a {type(model).__name__}")
    if error is not None and error not in model.error_kinds:
        raise LearnError(f"{STEP}: {error!r} is no error of a joined row{did_you_mean(str(error), model.error_kinds)}")
    return error or model.error_kinds[0]


def _check_settings(k: Any, max_columns: Any, min_size: Any, alpha: Any, bins: Any) -> None:
    check_whole(f"{STEP}: k", k, 1)
    check_whole(f"{STEP}: max_columns", max_columns, 1)
    check_whole(f"{STEP}: min_size", 1 if min_size is None else min_size, 1)
    check_whole(f"{STEP}: bins", bins, 2, MOST_BINS)
    if not isinstance(alpha, Real) or isinstance(alpha, bool) or not 0 < float(alpha) <= 1:
        raise LearnError(f"{STEP}: alpha is a number above 0, up to 1, not {alpha!r}")


def _columns(relation: Relation, names: Sequence[str] | None) -> list[OutputColumn]:
    """The columns to slice by; LearnError if there are none."""
    if names is None:
        found = list(relation.query.features)
    elif isinstance(names, str):
        raise LearnError(f"{STEP}: columns is a list of names, such as columns=[{names!r}]")
    else:
        found = list(dict.fromkeys(find_column(relation.plan, name, STEP) for name in names))
    if not found:
        raise LearnError(f"{STEP}: there is no column to slice by")
    return found


@dataclass(frozen=True)
class Sliced:
    """A column cut into slices: the number of its slice for every joined row."""

    column: OutputColumn
    codes: NDArray[np.integer]
    size: int  # the last slice are rows without a value
    least: int  # the policy's min_group
    categories: SentCategories | None
    edges: NDArray[np.float64] | None  # of bins


class SlicedColumns:
    """Columns as slices: asked for when made, all in the same trips."""

    def __init__(self, relation: Relation, columns: Sequence[OutputColumn], bins: int, named: bool):
        self._client, self._most, self._named = relation.client, relation.max_categories, named
        categorical = relation.query.categorical
        self._columns, self._categories = list(columns), [c for c in columns if _is_category(c, categorical)]
        self._numeric = [column for column in columns if column not in self._categories]
        self._sent = SentColumns(self._client)
        self._sent.ask_codes(self._categories)
        self._sent.ask_numbers(self._numeric)
        self._shares = (np.arange(1, bins) / bins).tolist()
        self._distributions = Distributions(self._client, self._numeric)

    def read(self) -> list[Sliced]:
        """Column by column."""
        cuts, found = quantiles_of(self._distributions, self._shares), []
        for column in self._columns:
            if column in self._numeric:
                sent = self._sent.numbers(column)
                edges = _edges([each.value for each in cuts[column.name]])
                places = np.where(np.isnan(sent.values), len(edges) + 1, np.searchsorted(edges, sent.values, "right"))
                found.append(self._sliced(column, places, len(edges) + 2, sent.least, None, edges))
                continue
            coded = self._sent.codes(column)
            if self._named:
                check_number(column, len(coded.digests), self._most, STEP)
            if len(coded.digests) <= self._most:
                found.append(self._sliced(column, coded.codes, len(coded.digests) + 1, coded.least, coded, None))
        return found

    def _sliced(
        self, column: OutputColumn, places: NDArray[np.integer], size: int, least: int,
        categories: SentCategories | None, edges: NDArray[np.float64] | None,
    ) -> Sliced:  # fmt: skip
        codes = self._client.rows.taken(column.alias, places.astype(np.int32))
        return Sliced(column, codes, size, least, categories, edges)


def _edges(cuts: Sequence[float]) -> NDArray[np.float64]:
    """Where bins begin, rounded, so that a slice's words name its very rows."""
    return np.unique([float(f"{cut:{ROUNDED}}") for cut in cuts if np.isfinite(cut)])


def _is_category(column: OutputColumn, categorical: frozenset[str]) -> bool:
    return is_category(column, categorical) or family(column.type) is Family.BOOLEAN


def _lattice(client: Client, label: OutputColumn, sliced: Sequence[Sliced], errors: NDArray[np.float64]) -> Lattice:
    aliases = list(dict.fromkeys([label.alias, *(each.column.alias for each in sliced)]))
    tables = [client.rows.taken(alias, np.arange(client.tables[alias].rows)) for alias in aliases]
    owner = [aliases.index(each.column.alias) for each in sliced]
    least = max((each.least for each in sliced), default=0)
    return Lattice([each.codes for each in sliced], [each.size for each in sliced], errors, tables, owner, least)


class _Conditions:
    """What slices are called: names of categories are asked for where their column is public."""

    def __init__(self, client: Client, sliced: Sequence[Sliced], best: Sequence[Found]):
        self._sliced = sliced
        used = {column for each in best for column, _ in each.pairs}
        coded = {place: sent for place in used if (sent := sliced[place].categories) is not None}
        self._ranks = {place: _ranks(sliced[place]) for place in coded}
        named = [Coded(sent.column, sent.blinding, sent.digests) for sent in coded.values()]
        self._names = ask_public_names(client, named).by_column()

    def slice(self, found: Found) -> Slice:
        conditions = {self._sliced[pair[0]].column.name: self._condition(pair) for pair in found.pairs}
        return Slice(conditions, found.counts.size, found.counts.error / found.counts.size, found.score)

    def _condition(self, pair: Pair) -> str:
        place, value = pair
        each = self._sliced[place]
        if value == each.size - 1:
            return "is missing" if each.least <= 1 or each.categories is None else "is missing or rare"
        if each.edges is not None:
            from_ = [f">= {self._edge(each, value - 1)}"] if value else []
            return " and ".join([*from_, *([f"< {self._edge(each, value)}"] if value < len(each.edges) else [])])
        name = self._names.get(each.column.name, [None] * each.size)[value]
        return f"= {name}" if name is not None else f"= category {self._ranks[place][value]}"

    def _edge(self, each: Sliced, place: int) -> str:
        assert each.edges is not None
        value = float(each.edges[place])
        date = as_date(value) if is_date(each.column) else None
        return shown_date(date, family(each.column.type)) if date else f"{value:{ROUNDED}}"


def _ranks(sliced: Sliced) -> NDArray[np.int64]:
    """Categories by number, the most frequent first, as in a crosstab."""
    counts = np.bincount(sliced.codes, minlength=sliced.size)[:-1]
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return ranks
