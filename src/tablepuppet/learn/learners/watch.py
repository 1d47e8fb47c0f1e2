"""Turns the rounds of a solver into history and events, and decides when to stop.

To stop early, a model is measured on validation rows, and its best parameters are kept. Scoring these rows takes one
trip per round. Whoever holds parameters also stores their best values: the parties, and the coordinator for the
intercept and for tables with several shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.planner import Planner
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.schedule import RULE, Allowed
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client
from tablepuppet.relation import Relation
from tablepuppet.runs.events import RoundRecord
from tablepuppet.runs.figures import metric, metric_name, readable
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


CONVERGED, EARLY, USED_UP, LOST, STUCK = "converged", "early stop", "rounds used up", "party lost", "no step gains"
DONE = "done"  # all rounds that were asked for, of a learner that goes to no optimum
CLOSE_BY = "near the optimum"  # of sgd: its rounds are used up, and more would gain next to nothing
STATES = {
    CONVERGED: "converged", EARLY: "stopped early", USED_UP: "not converged", LOST: "nothing to gain without the lost",
    STUCK: "not converged", CLOSE_BY: CLOSE_BY, DONE: DONE,
}  # fmt: skip


def counted(rounds: int) -> str:
    """So many rounds.

    >>> counted(1), counted(1200)
    ('1 round', '1,200 rounds')
    """
    return "1 round" if rounds == 1 else f"{rounds:,} rounds"


class Watch:
    """Records every round of a learner; ``validation`` holds the rows for early stopping.

    ``prepared`` is called after the first round, since preparation is a separate stage of the progress.
    """

    def __init__(
        self,
        learner: Planner,
        relation: Relation,
        loss: JoinedLoss,
        validation: Validation | None,
        prepared: Callable[[int], None],
    ):
        self.learner, self.relation, self.loss, self.validation = learner, relation, loss, validation
        self.prepared = prepared
        self._stopped = USED_UP
        self.is_near = False  # whether the last round is known to be near the optimum, though it has not converged
        self.restart()

    def restart(self) -> None:
        """Count what the next round costs from now on."""
        self._before, self._since = self.relation.client.engine.traffic.sums(), time.perf_counter()

    def cost(self) -> dict[str, Any]:
        """Seconds, bytes and messages since the last call."""
        before, since = self._before, self._since
        self.restart()
        costs = {name: total - before[name] for name, total in self._before.items()}
        return {"seconds": self._since - since, **costs}

    def of(self, model: Watched) -> Callable[[Round], bool]:
        """The function that a solver calls after each round of this model; it returns True to stop."""
        return lambda done: self._round(model, done)

    def _round(self, model: Watched, done: Round) -> bool:
        validation_loss, validation_metric = self._held_out(model, done)
        cost = self.cost()
        record = RoundRecord(
            round=done.number,
            loss=done.loss,
            objective=done.objective,
            metric=self.learner.metric(self.loss, done.loss),
            validation_loss=validation_loss,
            validation_metric=validation_metric,
            epsilon=self.learner.epsilon_so_far,
            solver=self.learner.solver_,
            converged=done.converged,
            lost=self._lost(),
            **cost,
        )
        if not self.learner.history_:
            self.prepared(1)
        self.learner.history_.append(record.to_dict())
        self._emit_round(record)
        if self.validation is not None and self.validation.is_enough(done):
            self._stopped = EARLY
        elif done.is_stuck and self.learner._promise is None:
            self._stopped = STUCK
        return self._stopped == EARLY

    def _lost(self) -> list[str]:
        """Parties that were lost in this round."""
        outboxes = {self.relation.client.outbox}
        if self.validation is not None:
            outboxes.add(self.validation.client.outbox)
        return sorted(set().union(*(outbox.take_missed() for outbox in outboxes)))

    def _held_out(self, model: Watched, done: Round) -> tuple[float | None, float | None]:
        """Loss and metric of the model on the validation rows."""
        if self.validation is None:
            return None, None
        value = self.validation.measure(model, done)
        return value, self.learner.metric(self.validation.loss, value)

    def _emit_round(self, record: RoundRecord) -> None:
        name = self.learner.metric_name
        said = [f"round {record.round}", f"loss {metric('loss', record.loss)}"]
        said.append(f"{metric_name(name)} {metric(name, record.metric)}")
        if record.validation_loss is not None:
            said.append(f"validation loss {metric('loss', record.validation_loss)}")
        if record.lost:
            said.append(f"without {', '.join(record.lost)}")
        message = " · ".join([*said, readable(record.bytes_up + record.bytes_down)])
        fields = record.to_dict() | {"done": record.round, "total": self.learner.most_rounds}
        self.learner.emit(self.relation, "progress", "fit", message, fields)

    def _ending(self) -> str:
        """How learning ended. With noise the number of rounds is fixed before the first, so nothing converges."""
        learner, rounds = self.learner, counted(len(self.learner.history_))
        if learner._promise is None or learner.stopped_ in (EARLY, LOST):
            return f"{STATES[learner.stopped_]} after {rounds}"
        if learner.stopped_ == CONVERGED:
            return f"done after {rounds} with noise: a further one would change nothing"
        return f"done after the {rounds} that its noise was planned for"

    def _limit(self) -> Allowed | None:
        """The limit of a party that allows no further round; None if more could be set."""
        schedule = self.learner._schedule
        return schedule.tightest if schedule.is_full or len(self.learner.history_) < schedule.rounds else None

    def _short_of(self, lost: list[str]) -> str:
        """What stopped learning before the optimum, and what to do about it."""
        learner, rounds = self.learner, len(self.learner.history_)
        by = "" if learner.solver_ is None else f" by {learner.solver_}"
        short = f"{type(learner).__name__}{by} stopped short of the optimum after {counted(rounds)}"
        if learner.stopped_ == LOST:
            return f"{short}: it ended without {', '.join(lost)}; fit again when all parties answer"
        if learner.stopped_ == STUCK:
            return (
                f"{short}: no step lowers the objective in double precision, as where columns are nearly equal; select "
                "their difference instead of one of them"
            )
        limit = self._limit()
        if limit is None:
            return f"{short}: {learner.more_rounds_by(rounds)}"
        where = f"party {limit.party!r} gives {limit.limit:,} replies of table {limit.table!r} to a session"
        ways = ["open the relation again, which begins a new session"] if limit.used else []
        ways += [*learner.fewer_replies_by(), f"ask the party's operator (policy rule {RULE})"]
        return f"{short}: {where}, and more rounds would need more; {', or '.join(ways)}"

    @property
    def ends_with_last_round(self) -> bool:
        """Whether no earlier round was better on the validation rows."""
        return self.validation is None or self.validation.best_round == len(self.learner.history_)

    def end(self, model: Watched, intercept: NDArray[np.float64]) -> NDArray[np.float64]:
        """Called when the solver is done: restore the best round, report how it ended, return the intercept."""
        learner, rounds = self.learner, len(self.learner.history_)
        lost = sorted(self.relation.client.outbox.lost)
        own = self.validation is not None and self.validation.own
        if own and self._stopped == EARLY:
            learner.converged_ = True  # the validation loss no longer falls
        if lost and (learner.converged_ or (self._stopped in (USED_UP, STUCK) and rounds < learner.most_rounds)):
            learner.converged_, self._stopped = False, LOST
        elif self.is_near and self._stopped == USED_UP:
            self._stopped = CLOSE_BY
        elif self._stopped == USED_UP and not learner.seeks_optimum and rounds == learner.most_rounds:
            self._stopped = DONE
        learner.stopped_ = CONVERGED if learner.converged_ else self._stopped
        learner.best_round_ = rounds
        for entry in learner.history_[-1:]:
            entry["converged"] = learner.converged_  # sgd knows it after its last round
        message = f"{type(learner).__name__}: {self._ending()}"
        if self.validation is not None and not self.ends_with_last_round:
            learner.best_round_, intercept = self.validation.best_round, self.validation.best_intercept
            model.restore()
            rows = "the rows held out" if own else "the validation rows"
            message += f"; the parameters are those of round {learner.best_round_}, the best on {rows}"
        if lost:
            message += f"; lost: {', '.join(lost)}"
        fields = {"converged": learner.converged_, "stopped": learner.stopped_, "rounds": rounds, "lost": lost}
        fields |= {"best_round": learner.best_round_, "solver": learner.solver_}
        self.learner.emit(self.relation, "info", "fitted", message, fields)
        if learner.stopped_ in (LOST, STUCK) or (learner.stopped_ == USED_UP and learner._promise is None):
            limit = None if learner.stopped_ == STUCK else self._limit()  # with noise, rounds are planned, and used up
            fields = {"rounds": rounds, "solver": learner.solver_, "limited_by": None if limit is None else limit.party}
            self.learner.emit(self.relation, "warning", "fit.short", self._short_of(lost), fields)
        return intercept
