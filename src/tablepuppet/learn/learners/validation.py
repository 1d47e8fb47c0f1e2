"""Early stopping: a model is measured on validation rows, and its best parameters are kept.

Scoring the validation rows takes one trip per round. Whoever holds parameters also stores their best values: the
parties, and the coordinator for the intercept and for tables with several shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.relation import Relation
from tablepuppet.sql.query import OutputColumn
from tablepuppet.store.parts import Model


class Watched(Model, Protocol):
    """A model that is being learned."""

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Score the rows of a relation, without the intercept; with ``learning``, also while parties are lost."""
        ...

    def keep(self) -> None:
        """Store a copy of the current parameters."""
        ...

    def restore(self) -> None:
        """Return to the stored copy of the parameters."""
        ...


HELD_OUT = 0.1  # of the rows of the label's table, where a learner holds rows out by itself
FEWEST_ROWS = 100  # of the label's table: a tenth of fewer rows is too small to validate on
OWN_PATIENCE = 20  # rounds at least: these rows may be few, and the loss of networks has plateaus


@dataclass
class Validation:
    """The rows to measure on, and the best round so far."""

    client: Client
    loss: JoinedLoss
    patience: int
    own: bool = False  # whether the learner held these rows out by itself
    best_round: int = field(default=0, init=False)
    best_loss: float = field(default=np.inf, init=False)
    best_intercept: Array = field(default_factory=lambda: np.zeros(0), init=False)

    def measure(self, model: Watched, done: Round) -> float:
        """The mean validation loss after a round; store the parameters if it is the best so far."""
        model.score(self.client, self.loss.rows, learning=True)
        add_intercept(self.loss.rows, done.intercept, "the validation relation" if np.isfinite(done.loss) else None)
        value = self.loss.evaluate()
        if not self.best_round or value < self.best_loss:
            self.best_round, self.best_intercept = done.number, done.intercept
            self.best_loss = value if np.isfinite(value) else np.inf
            model.keep()
        return value

    def is_enough(self, done: Round) -> bool:
        """Whether the loss has not fallen for ``patience`` rounds."""
        return done.number - self.best_round >= self.patience


def add_intercept(rows: JoinedRows, intercept: Array, where: str | None) -> None:
    """Add the intercept to scores; LearnError naming ``where`` they are, unless that is None, if one is not finite."""
    finite = rows.each(_add, intercept)
    if where is not None and not all(finite):
        raise LearnError(f"{where} has feature values that are not finite (NaN or infinity); filter them in WHERE")


def _add(block: Block, intercept: Array) -> bool:
    """Add the intercept to the scores; return whether all are finite."""
    scores = block[SCORES]
    scores += intercept
    return bool(np.isfinite(scores).all())


class CannotHoldOutError(LearnError):
    """Rows cannot be held out of this relation: train on all of them."""


@contextmanager
def needed_to_hold_out() -> Iterator[None]:
    """CannotHoldOutError if a party refuses the split or so few rows, or if one side of the split lacks a class."""
    try:
        yield
    except (LearnError, PrivacyError) as error:
        raise CannotHoldOutError(str(error)) from error


def check_alike(relation: Relation, validation: Relation) -> None:
    """LearnError unless ``validation`` has rows with the columns and the label of ``relation``, at its parties."""
    if validation.client.engine is not relation.client.engine:
        raise LearnError("the validation relation is of another federation than the relation to learn from")
    learned, there = relation.query, validation.query
    if there.label != learned.label:
        raise LearnError(
            f"the validation relation needs the label of the relation to learn from, {_name(learned.label)}, "
            f"but has {_name(there.label)}"
        )
    different = sorted({column.qualified for column in set(learned.features) ^ set(there.features)})
    if different:
        raise LearnError(
            f"the validation relation must select the same columns as the relation to learn from; "
            f"these are missing, added or computed otherwise: {', '.join(different)}"
        )
    if not len(validation):
        raise LearnError("the validation relation has no joined rows; check its filters with explain()")


def _name(label: OutputColumn | None) -> str:
    return f"{label.qualified} ({label.expression})" if label else "none"
