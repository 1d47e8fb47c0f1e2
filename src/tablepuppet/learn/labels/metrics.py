"""Metrics that the label's party computes on its true labels; the labels do not leave the party.

For each row of the label's table, the coordinator sends sums over its joined rows: sums of scores and squared scores,
or per class the number of times it was predicted and the sum of its log probabilities. So no array as long as the
joined rows is sent. The party returns sums over all its rows. They have no noise: no epsilon holds for them, and a
table that demands differential privacy does not return them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.learn.labels.noisy import fitted_classes
from tablepuppet.learn.loss.measures import Metrics, constant_classes, constant_number
from tablepuppet.operators.client import Client
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Category, Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, LARGEST_SQUARE, Asked, Numbers, OfNoCell, OfRows, Plain, Wrong
from tablepuppet.prep.columns.values import numbers
from tablepuppet.sql.query import OutputColumn

LABEL_SUM = Plain(float, size=LARGEST_SQUARE)  # over labels, or over their squares


@dataclass(frozen=True)
class SquaredError:
    """A sum of squared errors: not negative, except for rounding errors."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` or `NotFinite` unless it is one."""
        for each in (value, reply["label_squares"]):
            LABEL_SUM.check(each, asked, reply)
        parts = float(asked.arguments["squares"].sum()) + reply["label_squares"]
        if reply["label_squares"] < 0 or value < -1e-9 * parts:
            raise Wrong("is below 0")


@dataclass(frozen=True)
class LogLikelihood:
    """The sum over rows of log probabilities; it must lie between the smallest and the largest possible sum."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is one."""
        LABEL_SUM.check(value, asked, reply)
        logs = asked.arguments["logs"]
        low, high = float(logs.min(axis=1).sum()), float(logs.max(axis=1).sum())
        if not low + 1e-9 * low - 1e-9 <= value <= high - 1e-9 * high + 1e-9:  # logs are negative
            raise Wrong("is no sum of the log probabilities that were asked about")


@dataclass(frozen=True)
class JoinedRowCount:
    """The number of joined rows, in total or per class."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless the total is the number that the coordinator knows."""
        if isinstance(value, np.ndarray):
            Numbers(("classes",), "iu", least=0, most=JOINED).check(value, asked, reply)
            value = int(value.sum())
        else:
            Plain(float, 0.0, JOINED).check(value, asked, reply)
        if value != asked.joined:
            raise Wrong("is not the number of joined rows")


@op(
    "label.errors",
    asked="`evaluate(rel, at_party=True)`",
    releases=Release.METRICS | Release.STATISTICS,
    columns=("column",),
    use=Use.LABEL,
    returns={
        "error": OfRows(SquaredError(), Release.LABELS),
        "labels": OfRows(LABEL_SUM, Release.LABELS),
        "label_squares": OfRows(LABEL_SUM, Release.LABELS),
        "rows": OfNoCell(JoinedRowCount()),
    },
)
def label_errors(
    table: LocalTable, view: str, column: str, sums: NDArray[np.floating], squares: NDArray[np.floating]
) -> Values:
    """The sum of squared errors over joined rows, and sums of labels, from each row's sums of scores and squares."""
    values, present = numbers(table.column(column, view))
    counts = table.view(view).counts
    _check_shape(table, sums, counts.shape)
    _check_shape(table, squares, counts.shape)
    if not present.all():
        raise _missing(table, column)
    error = squares.sum() - 2 * values @ sums + counts @ values**2
    found = {"error": error, "labels": counts @ values, "label_squares": counts @ values**2, "rows": counts.sum()}
    return {name: float(value) for name, value in found.items()}


@op(
    "label.hits",
    asked="`evaluate(rel, at_party=True)`",
    releases=Release.METRICS | Release.HISTOGRAMS,
    columns=("column",),
    use=Use.LABEL,
    returns={
        "right": OfRows(Plain(int, 0, JOINED), Release.LABELS),
        "log": OfRows(LogLikelihood(), Release.LABELS),
        "rows": OfRows(JoinedRowCount(), Release.LABELS),
        "areas": OfRows(Numbers(("classes",), finite=False, least=0.0, most=1.0, or_none=True), Release.LABELS),
    },
)
def label_hits(
    table: LocalTable,
    view: str,
    column: str,
    classes: Sequence[Category],
    guesses: NDArray[np.integer],
    logs: NDArray[np.floating],
) -> Values:
    """How many joined rows are predicted correctly, their summed log probability, and per class the rows and ROC area.

    ``guesses`` and ``logs`` are per row and class: the number of predictions, and the sum of log probabilities. Areas
    are computed only if every row is joined exactly once.
    """
    labels, counts = table.column(column, view), table.view(view).counts.astype(np.int64)
    _check_shape(table, guesses, (len(labels), len(classes)))
    _check_shape(table, logs, (len(labels), len(classes)))
    values = fitted_classes(tuple(classes), labels.type)
    codes = pc.index_in(labels.combine_chunks(), values).fill_null(-1).to_numpy(zero_copy_only=False)
    if (codes < 0).any():
        raise _missing(table, column)
    own = codes[:, None] == np.arange(len(classes))  # (rows, classes)
    areas = [_area(logs[:, place], own[:, place]) for place in range(len(classes))] if counts.max() == 1 else []
    return {
        "right": int(guesses[own].sum()),
        "log": float(logs[own].sum()),
        "rows": counts @ own,
        "areas": np.array(areas, np.float64),
    }


def _check_shape(table: LocalTable, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise PartyError(
            f"party {table.grant.party!r}: table {table.grant.table!r}: an array is not of the rows' length"
        )


def _missing(table: LocalTable, column: str) -> LearnError:
    where = f"party {table.grant.party!r}, table {table.grant.table!r}, label {column!r}"
    return LearnError(f"{where}: a label is missing, or of no class that the model knows; filter such rows in WHERE")


def _area(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """The area under the ROC curve, from ranks; NaN if all rows are positive or all are negative."""
    ones = int(positive.sum())
    if ones in (0, len(positive)):
        return float("nan")
    _, place, equal = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(equal) - (equal - 1) / 2  # equal scores share the mean of their ranks
    above = ranks[place[positive]].sum() - ones * (ones + 1) / 2
    return float(above / (ones * (len(positive) - ones)))


def regression_metrics(client: Client, label: OutputColumn, scores: Array) -> Metrics:
    """Root mean squared error and R2, from sums that the label's party computes."""
    sums = client.rows.sums(label.alias, scores)
    squares = client.rows.sums(label.alias, scores**2)
    asked = client.ask(
        "label.errors",
        lambda alias, shard: (
            {"column": label.name, "sums": sums[shard.slice], "squares": squares[shard.slice]}
            if alias == label.alias
            else None
        ),
    ).read()[label.alias]
    error, labels, squared, rows = (
        sum(reply[name] for reply in asked) for name in ("error", "labels", "label_squares", "rows")
    )
    spread = squared - labels**2 / rows
    error = max(error, 0.0)  # rounding
    found = {"rmse": float(np.sqrt(error / rows)), "r2": 1 - error / spread if spread > 0 else float("nan")}
    return Metrics(found, constant_number(rows, spread))


def class_metrics(client: Client, label: OutputColumn, classes: NDArray[Any], probability: Array) -> Metrics:
    """Accuracy, area under the ROC curve and log loss, from sums that the label's party computes.

    The area is NaN unless the label's table has one shard, whose rows are joined once each.
    """
    chosen = probability.argmax(axis=1)[:, None] == np.arange(len(classes))
    smallest = np.finfo(probability.dtype).eps  # as scikit-learn's log_loss
    logs = client.rows.sums(label.alias, np.log(np.clip(probability, smallest, 1 - smallest)))
    guesses = client.rows.sums(label.alias, chosen.astype(np.float64)).astype(np.int32)
    listed = [each if isinstance(each, str | int | float) else str(each) for each in pa.array(classes).to_pylist()]
    replies = client.ask(
        "label.hits",
        lambda alias, shard: {
            "column": label.name, "classes": listed, "guesses": guesses[shard.slice], "logs": logs[shard.slice],
        }
        if alias == label.alias
        else None,
    ).read()[label.alias]  # fmt: skip
    rows = sum(reply["rows"] for reply in replies)
    areas = replies[0]["areas"] if len(replies) == 1 and len(replies[0]["areas"]) else np.full(len(classes), np.nan)
    found = {
        "accuracy": float(sum(reply["right"] for reply in replies) / rows.sum()),
        "auc": float(areas[1] if len(classes) == 2 else areas.mean()),
        "log_loss": float(-sum(reply["log"] for reply in replies) / rows.sum()),
    }
    return Metrics(found, constant_classes(rows.astype(np.float64)))
