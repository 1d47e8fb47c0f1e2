"""`model.summary()` of linear learners: coefficients in the units of their columns, with standard errors.

Input: parameters b, theta of the encoded columns X, as `coef_` has them, and the weighted Gram matrix of [1, X] over
the joined rows, which parties compute as for `rel.matrix()`, by the same policies. Output: contrasts C (b, theta), one
for each line, with the covariance

    C (G + N l2 P)^-1 C^T      G = [1, X]^T W [1, X], P = diag(0, 1, ..., 1)

times the variance of residuals for numbers; W = p (1 - p) for two classes, blocks p_k (1[k = l] - p_l) for more. A
contrast is a number's parameter in the unit of its column, a category's parameter less that of the first category, or,
of several classes, either of these less that of the first class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tablepuppet.algebra.linalg.design import INTERCEPT, LEAST, WIDEST, Design
from tablepuppet.algebra.linalg.estimates import Categories, Estimates, baselines, category_names, facts_view
from tablepuppet.algebra.recipes import Preparation, Recipe
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError, PrivacyError
from tablepuppet.learn.learners.predictions import Predictions
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.prep.encode.encode import Encoding, NumberEncoder
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.figures import NOT_APPLICABLE, number
from tablepuppet.runs.table_view import ArrowRows, ShownAsTables, TableView, aligned
from tablepuppet.wire.engine import Engine
from tablepuppet.wire.protocol import LostError

LITTLE = 0.01  # of a ratio: closer to 1, four digits say too little
SAME = 1e-9  # by which rounding may part numbers that are equal
NOISE = "the model was fitted with privacy, and a Gram matrix without noise would tell more than was promised"
NO_ROWS = "a loaded model has no rows of its own: give summary a relation"


class Summarised(Protocol):
    """A fitted linear learner."""

    @property
    def coef_(self) -> Mapping[str, Any]:
        """Parameters by encoded column."""

    encoding_: Encoding
    intercept_: Array
    _engine: Engine
    l2: float
    privacy: Privacy | None
    learns_classes: bool

    def evaluate(self, relation: Relation) -> Metrics:
        """Metrics over joined rows."""

    def predictions(self, relation: Relation) -> Predictions:
        """Numbers, or probabilities of classes."""

    def category_meanings(self) -> Categories:
        """Names of categories, by column."""


@dataclass(frozen=True)
class Contrasts:
    """Lines of a summary: names, and (lines, 1 + columns) which parameters each is made of, the intercept first.

    ``spreads`` are the standard deviations of numbers in own units, NaN for all else. ``prepared`` are numbers whose
    unit a pipeline has changed otherwise than by scaling.
    """

    names: list[str]
    weights: Array
    spreads: Array
    prepared: list[str]

    @classmethod
    def of(cls, encoding: Encoding, columns: Sequence[str], with_missing: Sequence[str]) -> Contrasts:
        """One for each number, and for each category but the first; ``with_missing`` are columns that lack some."""
        place = {name: 1 + at for at, name in enumerate(columns)}
        intercept, lines, spreads, prepared = np.zeros(1 + len(columns)), dict[str, Array](), [math.nan], list[str]()
        intercept[0] = 1.0
        for alias in encoding.numbers:
            for encoder in encoding.numbers[alias]:
                [name] = encoder.names
                (origin, unit), is_own = _unit(encoding, encoder)
                intercept[place[name]] -= origin / unit
                lines[name] = np.zeros(1 + len(columns))
                lines[name][place[name]] = 1 / unit
                spreads.append(abs(unit) * encoder.spread)
                prepared += [] if is_own else [name]
            for group in encoding.categories[alias]:
                if not group.names:
                    continue
                first, *others = group.names
                intercept[place[first]] += 1.0
                missing = f"{group.column.qualified} missing"
                for name in [*others, *([missing] if group.column.qualified in with_missing else [])]:
                    lines[name] = np.zeros(1 + len(columns))
                    lines[name][place[first]] = -1.0
                    if name in place:
                        lines[name][place[name]] = 1.0
                    spreads.append(math.nan)
        return cls([INTERCEPT, *lines], np.array([intercept, *lines.values()]), np.array(spreads), prepared)


def _unit(encoding: Encoding, encoder: NumberEncoder) -> tuple[tuple[float, float], bool]:
    """((o, u), whether in the column's own unit): its value is o + u times the encoded one.

    Where steps before the encoder are no scaling, it is in the unit that these have given it.
    """
    try:
        with np.errstate(all="ignore"):
            low, middle, high = encoding.inverse(encoder.column.qualified, [0.0, 1.0, 2.0]).tolist()
    except LearnError:
        return (encoder.mean, encoder.scale), False
    is_line = math.isfinite(high) and abs(high - 2 * middle + low) <= SAME * abs(high - low)
    return ((low, middle - low), True) if is_line and middle != low else ((encoder.mean, encoder.scale), False)


@dataclass(frozen=True)
class Fisher:
    """The Gram matrix of [1, X], weighted as above, (outputs * p, outputs * p), and what it is multiplied with."""

    gram: Array
    rows: int
    freedom: float
    variance: float = 1.0

    def errors(self, contrasts: Array, l2: float, outputs: int) -> Array:
        """The standard errors of contrasts; NaN where these rows do not identify one, and no penalty does."""
        penalty = np.tile(np.append(0.0, np.full(contrasts.shape[1] // outputs - 1, self.rows * l2)), outputs)
        matrix = self.gram + np.diag(penalty)
        scale = np.sqrt(np.diag(matrix))
        scale[scale == 0] = 1.0
        values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
        along = contrasts / scale @ vectors  # (lines, eigenvectors)
        null = values <= LEAST
        known = np.sum(along[:, null] ** 2, axis=1) <= SAME * np.sum(along**2, axis=1)
        variances = np.sum(along[:, ~null] ** 2 / values[~null], axis=1)
        return np.where(known, np.sqrt(self.variance * variances), np.nan)


class CoefficientSummary(ShownAsTables, ArrowRows):
    """What `summary()` of a linear learner returns: tables to read, and all numbers by `to_arrow`."""

    def __init__(self, facts: TableView, notes: str, names: Mapping[str, str], table: pa.Table, letter: str):
        self._facts, self._notes, self._known, self._table, self._letter = facts, notes, names, table, letter

    def to_arrow(self) -> pa.Table:
        """One row per coefficient, of several classes per class and coefficient; null is what there is not.

        ``coef`` with ``std_err``, ``low``, ``high`` is in the unit of the column, ``standardised`` is per standard
        deviation of a number; classifiers have an ``odds_ratio``, that of one unit.
        """
        return self._table

    def table_views(self) -> list[TableView]:
        """Facts of the fit, and a line for each coefficient."""
        letter = self._letter
        heads = {
            "coef": "coef", "std_err": "std err", "statistic": letter, "p_value": f"P>|{letter}|", "low": "[0.025",
            "high": "0.975]", "odds_ratio": "odds ratio", "standardised": "per std",
        }  # fmt: skip
        shown = {name: head for name, head in heads.items() if name in self._table.column_names}
        left = {"class": "class", "name": ""} if "class" in self._table.column_names else {"name": ""}
        rows = [
            [*(self._known.get(row[each], row[each]) for each in left), *(_cell(name, row[name]) for name in shown)]
            for row in self._table.to_pylist()
        ]
        return [self._facts, TableView(self._notes, aligned(left.values(), shown.values()), rows)]


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return NOT_APPLICABLE
    if name == "p_value":
        return f"{value:.3f}"
    return _ratio(value) if name == "odds_ratio" else number(value)


def _ratio(value: float) -> str:
    """A ratio, with two digits of how far it is from 1 where that is little: per unit of a large number it is.

    >>> _ratio(2.0531), _ratio(math.exp(-3.708e-05)), _ratio(1.0)
    ('2.053', '0.999963', '1')
    """
    apart = abs(value - 1)
    return f"{value:.{1 - math.floor(math.log10(apart))}f}" if SAME < apart < LITTLE else number(value)


def summarised(model: Summarised, relation: Relation | None) -> CoefficientSummary:
    """The summary of a fitted model, with standard errors over a relation, by default the one it was fitted on."""
    coef = model.coef_
    encoding, columns, outputs = model.encoding_, list(coef), len(np.atleast_1d(model.intercept_))
    parameters = np.concatenate(
        [np.reshape(model.intercept_, (1, outputs)), np.reshape(list(coef.values()), (-1, outputs))]
    )
    found, why = _fisher(model, relation or getattr(model, "_relation", None), outputs)
    lines = Contrasts.of(encoding, columns, [] if found is None else _with_missing(encoding, columns, found.gram))
    classes = [str(each) for each in getattr(model, "classes_", ())]
    several = outputs > 1
    against = np.eye(outputs)[1:] - np.eye(outputs)[:1] if several else np.eye(1)  # (lines of classes, outputs)
    values = np.ravel(against @ (lines.weights @ parameters).T)  # class after class
    contrasts = np.asarray(np.kron(against, lines.weights), np.float64)
    if found is None:
        errors, freedom = np.full(len(values), np.nan), math.inf
    else:
        errors, freedom = found.errors(contrasts, model.l2, outputs), found.freedom
    names = lines.names * len(against)
    estimates = Estimates(names, values, errors, freedom)
    intervals = estimates.intervals
    numbers: dict[str, Array] = {
        "coef": values, "std_err": errors, "statistic": estimates.statistics, "p_value": estimates.p_values,
        "low": intervals[:, 0], "high": intervals[:, 1],
    }  # fmt: skip
    if classes:
        with np.errstate(over="ignore"):
            numbers["odds_ratio"] = np.where(np.array(names) == INTERCEPT, np.nan, np.exp(values))
    numbers["standardised"] = values * np.tile(lines.spreads, len(against))
    listed = {"class": np.repeat(classes[1:], len(lines.names)).tolist()} if several else {}
    table = pa.table(
        listed | {"name": names} | {name: pa.array(each, from_pandas=True) for name, each in numbers.items()}
    )
    known = category_names(model.category_meanings())
    facts: dict[str, object] = {"observations": None if found is None else found.rows, "l2": model.l2}
    if classes:
        facts["classes"] = f"against {classes[0]}" if several else f"{classes[1]} against {classes[0]}"
    elif found is not None:
        facts["residual std"] = math.sqrt(found.variance)
    notes = [
        "coef: per unit of a column; per std: per standard deviation",
        baselines(columns, lines.names, known),
        f"In the unit that the pipeline gives: {', '.join(lines.prepared)}" if lines.prepared else "",
        f"No standard errors: {why}" if found is None else "",
    ]
    title = facts_view(type(model).__name__, {name: value for name, value in facts.items() if value is not None})
    letter = "z" if math.isinf(freedom) else "t"
    return CoefficientSummary(title, ". ".join(filter(None, notes)), known, table, letter)


def _fisher(model: Summarised, relation: Relation | None, outputs: int) -> tuple[Fisher | None, str]:
    """(the weighted Gram matrix over a relation, or None and why it is not to be had)."""
    if model.privacy is not None:
        return None, NOISE
    if relation is None:
        return None, NO_ROWS
    width = outputs * (1 + len(model.coef_))
    if width > WIDEST:
        return None, f"{width:,} parameters are more than {WIDEST:,}"
    try:
        recipe = Recipe.plain(len(model.coef_))
        like: Any = SimpleNamespace(preparation=Preparation(model.encoding_, model._engine, recipe))
        design = Design(relation.matrix(like=like), all_columns=True)
        rows = len(relation)
        if not model.learns_classes:
            squares = rows * model.evaluate(relation)["rmse"] ** 2
            gram = _in_units_of_x(design, design.gram())
            freedom = rows - _rank(gram)
            return (Fisher(gram, rows, freedom, squares / freedom), "") if freedom > 0 else (None, "too few rows")
        chances = model.predictions(relation).values  # (rows, classes)
        if outputs == 1:
            return Fisher(_in_units_of_x(design, design.gram(chances[:, 0] * chances[:, 1])), rows, math.inf), ""
        return Fisher(_of_classes(design, chances), rows, math.inf), ""
    except LostError:
        raise
    except (PrivacyError, PartyError, LearnError) as error:
        return None, str(error)


def _of_classes(design: Design, chances: Array) -> Array:
    """X^T diag(p_k (1[k = l] - p_l)) X in blocks k, l: those of one class follow from those of pairs."""
    classes, width = chances.shape[1], design.shape[1]
    found = np.zeros((classes, width, classes, width))
    for one, other in combinations(range(classes), 2):
        gram = _in_units_of_x(design, design.gram(chances[:, one] * chances[:, other]))
        found[one, :, other], found[other, :, one] = -gram, -gram
        found[one, :, one] += gram
        found[other, :, other] += gram
    return found.reshape(classes * width, classes * width)


def _in_units_of_x(design: Design, gram: Array) -> Array:
    """[1, X]^T W [1, X], by D^T W D: a column of X is its offset plus its scale times that of D."""
    turned = np.diag(np.append(1.0, design.scales))
    turned[0, 1:] = design.offsets
    return np.asarray(turned.T @ gram @ turned)


def _rank(gram: Array) -> int:
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1.0
    return int(np.sum(np.linalg.eigvalsh(gram / np.outer(scale, scale)) > LEAST))


def _with_missing(encoding: Encoding, columns: Sequence[str], gram: Array) -> list[str]:
    """Columns of categories that some rows do not have: their 0/1 columns do not add up to the intercept's."""
    sums, groups = (
        dict(zip(columns, gram[0, 1:], strict=False)),
        [each for listed in encoding.categories.values() for each in listed],
    )
    return [
        each.column.qualified for each in groups if sum(sums[name] for name in each.names) < gram[0, 0] * (1 - SAME)
    ]
