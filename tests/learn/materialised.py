"""The joined table that learners never see, built from the raw rows, and direct solves on it to compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.special import logsumexp as log_sum_exp

import tablepuppet as tp
from tablepuppet.sql.query import OutputColumn
from tests.relations import Parties, materialised

Array = NDArray[np.float64]


class JoinedTable:
    """The encoded features of a relation's joined rows, by our own encoders, in the order of `Relation.rows`.

    Columns of SELECT must be plain columns.
    """

    def __init__(self, relation: tp.Relation, parties: Parties):
        self.parties = parties
        columns = _raw(relation, parties)
        self.numbers: dict[str, tuple[float, float]] = {}
        self.categories: dict[str, list[Any]] = {}
        for column in relation.query.features:
            values = columns[column.qualified]
            if column.type == "VARCHAR" or column.name in relation.query.categorical:
                counts = Counter(value for value in values if value is not None)
                if len(counts) > 1 or (counts and None in values):
                    self.categories[column.qualified] = [value for value, _ in counts.most_common()]
                continue
            known = np.array([value for value in values if value is not None], float)
            if len(known) and np.ptp(known) > 0:
                filled = np.where([value is None for value in values], known.mean(), 0.0)  # missing: the mean
                filled[[value is not None for value in values]] = known
                self.numbers[column.qualified] = (float(known.mean()), float(filled.std()))
        self.matrix = self._encode(columns, len(relation))
        label = relation.query.label
        self.labels = np.array(materialised(relation, parties, label.alias, _source(label)) if label else [])

    @property
    def names(self) -> list[str]:
        """Encoded columns, as `coef_` names them."""
        coded = [f"{name}={code}" for name, values in self.categories.items() for code in range(len(values))]
        return [*self.numbers, *coded]

    def encode(self, relation: tp.Relation) -> Array:
        """The rows of another relation, by the encoders of this one."""
        return self._encode(_raw(relation, self.parties), len(relation))

    def _encode(self, columns: Mapping[str, list[Any]], rows: int) -> Array:
        parts: list[Array] = []
        for name, (mean, std) in self.numbers.items():
            values = np.array([mean if value is None else value for value in columns[name]], float)
            parts.append((values - mean) / std)
        for name, known in self.categories.items():
            parts += [np.array([value == category for value in columns[name]], float) for category in known]
        return np.stack(parts, axis=1) if parts else np.zeros((rows, 0))


def _raw(relation: tp.Relation, parties: Parties) -> dict[str, list[Any]]:
    return {c.qualified: materialised(relation, parties, c.alias, _source(c)) for c in relation.query.features}


def _source(column: OutputColumn) -> str:
    """The name of a plain column in its table."""
    return column.expression.split(".")[-1].strip('"')


@dataclass(frozen=True)
class Solution:
    """Parameters with the least objective on a joined table."""

    theta: Array  # (columns,) or (columns, classes)
    intercept: Array

    def scores(self, table: Array) -> Array:
        """X theta + intercept."""
        scores: Array = table @ self.theta + self.intercept
        return scores

    def probability(self, table: Array) -> Array:
        """(rows, classes)."""
        scores = self.scores(table)
        if scores.ndim == 1:
            return np.stack([1 - expit(scores), expit(scores)], axis=1)
        return np.asarray(softmax(scores, axis=1))


def ridge(table: Array, labels: Array, l2: float) -> Solution:
    """Least squares: half the mean squared error plus l2 / 2 |theta|^2, by a QR-based solve of the stacked system."""
    rows, width = table.shape
    centre, mean = table.mean(axis=0), labels.mean()
    stacked = np.concatenate([(table - centre) / np.sqrt(rows), np.sqrt(l2) * np.eye(width)])
    right = np.concatenate([(labels - mean) / np.sqrt(rows), np.zeros(width)])
    theta = np.linalg.lstsq(stacked, right, rcond=None)[0]
    return Solution(theta, np.array([mean - centre @ theta]))


def newton(table: Array, numbers: NDArray[np.integer[Any]], classes: int, l2: float) -> Solution:
    """Logistic (two classes) or softmax regression by Newton's method with halved steps, to rounding error."""
    rows = len(table)
    wide = np.concatenate([table, np.ones((rows, 1))], axis=1)
    outputs = 1 if classes == 2 else classes
    penalty = np.full(wide.shape[1], l2)
    penalty[-1] = 0.0
    wanted = (numbers == 1).astype(float)[:, None] if outputs == 1 else np.eye(classes)[numbers]
    point = np.zeros((wide.shape[1], outputs))
    value = objective(wide @ point, numbers, classes) + 0.5 * float(np.sum(penalty[:, None] * point**2))
    for _ in range(100):
        scores = wide @ point
        chance = expit(scores) if outputs == 1 else softmax(scores, axis=1)
        slope = wide.T @ (chance - wanted) / rows + penalty[:, None] * point
        bend = np.zeros((outputs, wide.shape[1], outputs, wide.shape[1]))
        for i in range(outputs):
            for j in range(i + 1):
                weight = chance[:, i] * ((i == j) - chance[:, j]) / rows
                bend[i, :, j, :] = bend[j, :, i, :] = wide.T @ (weight[:, None] * wide)
            bend[i, :, i, :] += np.diag(penalty)
        size = outputs * wide.shape[1]
        step = np.linalg.lstsq(bend.reshape(size, size), slope.T.ravel(), rcond=1e-14)[0].reshape(outputs, -1).T
        length = 1.0
        while length > 1e-10:
            moved = point - length * step
            reached = objective(wide @ moved, numbers, classes) + 0.5 * float(np.sum(penalty[:, None] * moved**2))
            if reached <= value:
                break
            length /= 2
        else:
            break
        point, gained, value = moved, value - reached, reached
        if gained <= 0 and np.abs(slope).max() < 1e-13:
            break
    theta = point[:-1]
    return Solution(theta[:, 0] if outputs == 1 else theta, point[-1])


def objective(scores: Array, labels: NDArray[Any], classes: int | None) -> float:
    """The mean loss: half the squared error for no classes, else the log loss of class numbers."""
    if classes is None:
        return 0.5 * float(np.mean((scores - labels) ** 2))
    if classes == 2:
        flat = scores.reshape(-1)
        return float(np.mean(np.logaddexp(0, flat) - labels * flat))
    return float(np.mean(log_sum_exp(scores, axis=1) - scores[np.arange(len(scores)), labels]))


# Relations to learn from


def shards_of(table: pa.Table, count: int) -> list[pa.Table]:
    """A table cut into shards of different sizes."""
    ends = [round(len(table) * (number / count) ** 1.3) for number in range(count + 1)]
    return [table.slice(start, end - start) for start, end in pairwise(ends)]


def shop(shards: int = 1, orders: int = 300, seed: int = 0, together: bool = False) -> dict[str, dict[str, pa.Table]]:
    """Orders of a store, items of a supplier, cards of a bank; each in some shards. Keys repeat and dangle.

    Parties hold one shard each; ``together``, party ``owner0`` holds the first of every table, and so on.

    ``kind`` has missing values, so that its 0/1 columns and the intercept are not collinear; ``colour`` has none.
    """
    rng = np.random.default_rng(seed)
    item, card = rng.integers(0, 32, orders), rng.integers(0, 18, orders)
    kinds, weight, limit = rng.choice(3, 30, p=[0.5, 0.3, 0.2]), rng.normal(size=30), rng.exponential(size=20)
    price, quantity = rng.normal(5, 2, orders), rng.integers(1, 6, orders)
    drive = 0.4 * (price - 5) + 0.5 * weight[item % 30] + 0.8 * (kinds[item % 30] == 0) - 0.4 * limit[card % 20]
    noisy = drive + rng.normal(size=orders)
    whole = {
        "store": pa.table(
            {
                "item_id": item,
                "card_id": card,
                "price": pa.array(price, mask=rng.random(orders) < 0.05),
                "quantity": quantity,
                "day": pa.array(rng.integers(19000, 19100, orders).astype(np.int32)).cast(pa.date32()),
                "paid": noisy,
                "returned": noisy > 0.3,
                "grade": pa.array(np.array(["bad", "fair", "good", "top"])[np.digitize(noisy, [-0.8, 0.2, 1.2])]),
            }
        ),
        "supplier": pa.table(
            {
                "item_id": np.arange(30),
                "weight": weight,
                "height": weight * 0.5 + rng.normal(size=30),
                "kind": pa.array([[None, "plain", "fancy"][k] for k in kinds]),
                "colour": pa.array(np.array(["red", "green", "blue"])[rng.choice(3, 30, p=[0.6, 0.3, 0.1])]),
            }
        ),
        "bank": pa.table({"card_id": np.arange(20), "credit": limit, "age": rng.normal(40, 9, 20)}),
    }
    names = {"store": "orders", "supplier": "items", "bank": "cards"}
    parties: dict[str, dict[str, pa.Table]] = {}
    for owner, table in whole.items():
        for number, part in enumerate(shards_of(table, shards)):
            parties.setdefault(f"{'owner' if together else owner}{number}", {})[names[owner]] = part
    return parties


JOIN = "FROM orders o JOIN items i ON o.item_id = i.item_id JOIN cards c ON o.card_id = c.card_id"
PLAIN = "o.price, o.quantity, i.weight, i.height, i.kind, c.credit, c.age"  # no collinear columns
ALL = f"{PLAIN}, i.colour"


def side_by_side(
    tables: int, columns: int, rows: int, correlation: float, seed: int = 0, classes: int | None = 2
) -> tuple[dict[str, dict[str, pa.Table]], str]:
    """(parties, SQL) of tables that match one to one, whose j-th columns have this correlation between tables."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, columns))
    parties: dict[str, dict[str, pa.Table]] = {}
    drive = np.zeros(rows)
    for number in range(tables):
        own = rng.normal(size=(rows, columns))
        values = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        drive += values @ rng.normal(size=columns) / np.sqrt(tables * columns)
        named = {f"x{column}": values[:, column] for column in range(columns)}
        parties[f"p{number}"] = {f"t{number}": pa.table({"id": np.arange(rows), **named})}
    noisy = drive + 0.5 * rng.normal(size=rows)
    label = noisy if classes is None else np.digitize(noisy, np.quantile(noisy, np.arange(1, classes) / classes))
    parties["p0"]["t0"] = parties["p0"]["t0"].append_column("y", pa.array(label))
    return parties, one_to_one(tables, columns)


def one_to_one(tables: int, columns: int) -> str:
    """SQL that joins t0, t1, ... by id and selects x0, x1, ... of each, and the label of t0."""
    selected = [f"t{table}.x{column}" for table in range(tables) for column in range(columns)]
    joins = "".join(f" JOIN t{table} ON t{table}.id = t0.id" for table in range(1, tables))
    return f"SELECT {', '.join([*selected, 't0.y'])} FROM t0{joins}"


def class_numbers(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.integer[Any]]]:
    """(sorted classes, the class number of every row)."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return classes, numbers


def theta_of(model: Any, names: Sequence[str]) -> Array:
    """The coefficients of a fitted learner as one array."""
    coefficients = model.coef_
    assert set(coefficients) == set(names)
    return np.array([coefficients[name] for name in names])


def solved(table: JoinedTable, l2: float, classes: int | None) -> tuple[Solution, float]:
    """(the best parameters, their objective) by a direct solve; None classes for regression."""
    if classes is None:
        labels = table.labels.astype(float)
        best = ridge(table.matrix, labels, l2)
    else:
        labels = class_numbers(table.labels)[1]
        best = newton(table.matrix, labels, classes, l2)
    value = objective(best.scores(table.matrix), labels, classes)
    return best, value + 0.5 * l2 * float(np.sum(best.theta**2))


def learner(classes: int | None, **settings: Any) -> Any:
    """The linear learner of a task."""
    return tp.LinearRegression(**settings) if classes is None else tp.LogisticRegression(**settings)


def predictions(model: Any, relation: tp.Relation) -> Array:
    """Numbers, or the probability of every class."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(relation))
    return np.asarray(model.predict(relation))


def expected(best: Solution, table: Array, classes: int | None) -> Array:
    """What `predictions` should be."""
    return best.scores(table) if classes is None else best.probability(table)
