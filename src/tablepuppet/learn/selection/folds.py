"""`cross_validate`: for each fold, a learner is fitted on the other folds and measured on this one.

Folds divide the rows of the label's table, so that no row of it is used both for fitting and for measuring. Instead
they can divide the groups of a column, the rows of each class, or a time. All folds share the relation's session:
tables are read and joined once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import clone

from tablepuppet.arrays import mark
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.learner import Learner, label_of
from tablepuppet.learn.learners.linear import LinearLearner
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.learn.settings import check_whole
from tablepuppet.operators.dealing import dealt, dealt_to_groups
from tablepuppet.prep.columns.dividing import classes_of, groups_of, times_of
from tablepuppet.relation import Relation
from tablepuppet.runs.events import one_run
from tablepuppet.runs.figures import fixed, is_metric, metric, metric_name, metrics_line, shown
from tablepuppet.runs.table_view import TableResult, TableView, side
from tablepuppet.spelling import names_checked, unknown_key
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.in_step import own_clock

TEST = "test_"  # begins the names of metrics on the fold that is held out
CONSTANT = "constant_"  # those of a model without features there
Fold = tuple[Relation, Relation]  # to learn from, to measure on


class Results(TableResult):
    """Records with the same fields as a table: ``found["test_auc"]`` is a column, `to_arrow` all of them.

    ``constant`` are the metrics of a model without features on the rows that were held out, the mean over folds.
    """

    def __init__(
        self, title: str, rows: Sequence[Mapping[str, Any]], constant: Mapping[str, float] = MappingProxyType({})
    ):
        self._title, self._rows, self.constant = title, [dict(row) for row in rows], dict(constant)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self.column_names:
            raise unknown_key(self._title, column, self.column_names)
        return np.array([row[column] for row in self._rows])

    @property
    def column_names(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []

    def to_arrow(self) -> pa.Table:
        """One row per record; columns of which Arrow has no type, such as settings that are objects, are text."""
        return pa.table({name: _arrow([row[name] for row in self._rows]) for name in self.column_names})

    def table_view(self) -> TableView:
        sides = {metric_name(name): side([row[name] for row in self._rows]) for name in self.column_names}
        rows = [[_cell(name, value) for name, value in row.items()] for row in self._rows]
        known = metrics_line({name: value for name, value in self.constant.items() if self._has(name)})
        return TableView(f"{self._title}; a constant has {known}" if known else self._title, sides, rows)

    def _has(self, metric: str) -> bool:
        return any(name == metric or name.endswith(f"{TEST}{metric}") for name in self.column_names)


def _cell(name: str, value: Any) -> str:
    if name == "seconds":
        return fixed(value, 1)
    return metric(name, value) if is_metric(name) else shown(value)


def _arrow(values: list[Any]) -> pa.Array:
    """Values as a column.

    >>> _arrow(["auto", 64]).to_pylist()
    ['auto', '64']
    """
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([value if isinstance(value, str | None) else repr(value) for value in values])


@names_checked
@one_run()
def cross_validate(
    learner: Learner, relation: Relation, folds: int = 5, seed: int = 0, groups: str | None = None,
    stratified: bool = False, time: str | None = None, metrics: Sequence[str] | None = None,
) -> Results:  # fmt: skip
    """Metrics of a learner on each fold: a table with ``fold``, ``train_*`` and ``test_*`` of each metric, ``seconds``.

    ``groups`` names a column, or the alias of a table, as ``by`` of `Relation.split`: rows of one group are in one
    fold. ``stratified``: each class is dealt evenly to the folds. ``time`` names a selected date or number: each fold
    is measured on rows that are later than all that it learns from. ``metrics`` names those of `evaluate`. The learner
    itself is not fitted.
    """
    need_learner(learner, "cross_validate")
    parts = Folding(relation, folds, seed, groups=groups, stratified=stratified, time=time).sides()
    done = relation.events.progress("folds", f"{type(learner).__name__}: cross-validating", len(parts))
    scores = []
    for number, fold in enumerate(parts):
        found = measured(learner, fold, number, metrics)
        scores.append(found)
        done(len(scores), f"fold {number}: {metrics_line(of_test(found), constant_of([found]))}")
    rows = [
        {"fold": number, **{name: value for name, value in found.items() if not name.startswith(CONSTANT)}}
        for number, found in enumerate(scores)
    ]
    test = [of_test(found) for found in scores]
    means = {name: float(np.mean([each[name] for each in test])) for name in test[0]}
    what = f"{type(learner).__name__}, mean of {len(parts)} folds: {metrics_line(means, constant_of(scores))}"
    relation.events.emit("info", "validated", what, **means)
    return Results(f"{type(learner).__name__}, {len(parts)} folds", rows, constant_of(scores))


def need_learner(learner: object, verb: str) -> None:
    """LearnError unless the argument is a learner, not its class."""
    if isinstance(learner, type) or not hasattr(learner, "learns_classes"):
        made = f"{learner.__name__}()" if isinstance(learner, type) else "tp.LogisticRegression()"
        what = "the class" if isinstance(learner, type) else type(learner).__name__
        raise LearnError(f"{verb} takes a learner, such as {made}, not {what}")


def measured(learner: Learner, fold: Fold, number: int, metrics: Sequence[str] | None = None) -> dict[str, float]:
    """A new learner with the same settings, fitted and measured on both sides of a fold."""
    began = own_clock()
    with _named_fold(learner, number):
        model = clone(learner).fit(fold[0])
        train, test = (model.evaluate(side, metrics=metrics) for side in fold)
        return _scores(train, test, began)


def measure_along_l2(
    learner: LinearLearner,
    values: Sequence[float],
    fold: Fold,
    number: int,
    put: Callable[[float, dict[str, float]], None],
) -> None:
    """Call ``put`` with (l2, scores) of a new linear learner for each ``l2``, each fit going on from the one before."""
    with _named_fold(learner, number):
        began = own_clock()
        for l2, train, test in clone(learner).along_l2(fold[0], values, fold[1]):
            put(l2, _scores(train, test, began))
            began = own_clock()


def _scores(train: Metrics, test: Metrics, began: float) -> dict[str, float]:
    scores = {f"train_{name}": value for name, value in train.items()}
    scores |= {f"{TEST}{name}": value for name, value in test.items()}
    scores |= {f"{CONSTANT}{name}": value for name, value in test.constant.items()}
    return scores | {"seconds": own_clock() - began}


def constant_of(folds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a constant model on the folds that were held out, by their own names: the mean over folds."""
    names = [name for name in folds[0] if name.startswith(CONSTANT)]
    return {name.removeprefix(CONSTANT): float(np.mean([each[name] for each in folds])) for name in names}


def of_test(scores: Mapping[str, float]) -> dict[str, float]:
    """The metrics on the fold that was held out, by their own names."""
    return {name.removeprefix(TEST): value for name, value in scores.items() if name.startswith(TEST)}


@contextmanager
def _named_fold(learner: Learner, number: int) -> Iterator[None]:
    """One run for each fold, whose events say which it is; errors too."""
    try:
        with one_run(f"fold {number}"):
            yield
    except LearnError as error:
        hint = "; stratified=True deals every class to all folds" if learner.learns_classes else ""
        raise LearnError(f"fold {number}: {error}{hint}") from error


class Folding:
    """Which fold each row of a table is in, whose rows are dealt to folds; LearnError if there are too few of them."""

    def __init__(
        self, relation: Relation, folds: int, seed: int, *, groups: str | None = None, stratified: bool = False,
        time: str | None = None,
    ):  # fmt: skip
        need_relation(relation, "cross_validate")
        label = label_of(relation)
        check_whole("folds", folds, 2)
        check_whole("seed", seed, 0)
        if (groups is not None) + stratified + (time is not None) > 1:
            raise LearnError(
                "give groups or stratified or time: groups and times stay together, whatever their classes"
            )
        self._relation, self._folds, self._seed, rng = relation, folds, seed, np.random.default_rng(seed)
        self._is_time = time is not None  # each fold learns from those before it only
        if time is not None:
            self.alias, self._part_of = _by_time(relation, time, folds)
        elif groups is not None:
            self.alias, self._part_of = _by_groups(relation, groups, folds, rng)
        elif stratified:
            self.alias, self._part_of = _by_classes(relation, label, folds, rng)
        else:
            self.alias, self._part_of = _by_rows(relation, folds, rng)

    @property
    def rows(self) -> int:
        """Rows of the table that are dealt to folds."""
        return len(self._part_of)

    def sides(self, share: float = 1.0) -> list[Fold]:
        """(the rest, by time what is before it, a fold) for each fold.

        Of the rest a random ``share`` of the rows, the same of smaller shares.
        """
        kept = np.ones(self.rows, bool) if share >= 1 else self._drawn(share)
        found = []
        for number in range(self._folds):
            inside = self._part_of == number
            others = self._part_of < number if self._is_time else ~inside
            rest, test = self._relation.parted(self.alias, inside)
            is_rest = share >= 1 and not self._is_time
            train = rest if is_rest else self._relation.parted(self.alias, others & kept)[1]
            if not len(train) or not len(test):
                raise LearnError(f"fold {number} of {self._folds} has no joined rows; take fewer folds")
            test.check_enough(f"fold {number} of {self._folds}", "fewer folds have more rows each")
            train.check_enough(f"what fold {number} of {self._folds} learns from", "it needs a query with more rows")
            found.append((train.sharing_encoders(), test))
        return found

    def _drawn(self, share: float) -> NDArray[np.bool_]:
        """A share of the rows: the first ones of an order that the seed gives."""
        order = np.random.default_rng([self._seed, 1]).permutation(self.rows)[: round(share * self.rows)]
        return dealt(self._relation.client, self.alias, mark(self.rows, order)).astype(bool)


# Folds are dealt by the places of rows in their sources: the same in every process, and every day.


def _by_rows(relation: Relation, folds: int, rng: np.random.Generator) -> tuple[str, NDArray[np.int64]]:
    """Rows of the label's table."""
    rows = relation.client.tables[relation.split_table].rows
    if rows < folds:
        raise LearnError(f"the label's table has {rows:,} rows in the relation, fewer than {folds} folds")
    numbers = np.empty(rows, np.int64)
    for number, drawn in enumerate(np.array_split(rng.permutation(rows), folds)):
        numbers[drawn] = number
    return relation.split_table, dealt(relation.client, relation.split_table, numbers)


def _by_groups(relation: Relation, name: str, folds: int, rng: np.random.Generator) -> tuple[str, NDArray[np.int64]]:
    """Rows of a column's table, of which those with one value stay together; those without a value are one group."""
    alias, codes = groups_of(relation.client, name, "groups")
    groups = int(codes.max(initial=-1)) + 1
    if groups < folds:
        raise LearnError(f"groups: {name!r} has {groups} groups, fewer than {folds} folds")
    numbers = rng.permutation(np.arange(groups) % folds)
    return alias, dealt_to_groups(relation.client, alias, numbers, codes)


def _by_classes(
    relation: Relation, label: OutputColumn, folds: int, rng: np.random.Generator
) -> tuple[str, NDArray[np.int64]]:
    """Rows of the label's table, each class dealt evenly, in the order of class values."""
    alias, classes = classes_of(relation.client, label, "stratified")
    counts = np.bincount(classes)
    if counts.min() < folds:
        raise LearnError(f"stratified: a class has {counts.min():,} rows, fewer than {folds} folds; take fewer folds")
    numbers = np.arange(len(classes)) % folds  # a class goes on where the last one ended
    for part in np.split(numbers, np.cumsum(counts)[:-1]):
        rng.shuffle(part)
    return alias, dealt(relation.client, alias, numbers, classes)


def _by_time(relation: Relation, name: str, folds: int) -> tuple[str, NDArray[np.int64]]:
    """Rows of a column's table in folds + 1 parts of about equal size, one after another; the first is number -1.

    Rows of one time are in one part.
    """
    column, times = times_of(relation.client, name, "time")
    ends = np.sort(times)[np.arange(1, folds + 1) * len(times) // (folds + 1)] if len(times) else times
    parts = np.searchsorted(ends, times, side="right") - 1
    if len(np.unique(parts)) <= folds:
        raise LearnError(
            f"time: column {column.qualified} has too few different values for {folds} folds; take fewer folds"
        )
    return column.alias, parts
