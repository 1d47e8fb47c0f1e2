"""RFL-SGD: mini-batches of joined rows, with duplicates reduced inside each batch (solver="sgd"; Eq. 10-13, 17-19).

A batch contains some base rows of every table, perhaps several times. One value per distinct base row is sent, so
traffic grows with the distinct rows of a batch. The step for one batch and the predictions for the next share a trip; a
table with several shards needs one more, to add its shards' gradients (Eq. 17).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.linear.ridge import ConditionedRates, ridge_of
from tablepuppet.learn.loss.divergence import Divergence
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.parameters import TableParameters, parameters_of
from tablepuppet.mapping.table_mapping import Floats, ShardRows, TableMapping
from tablepuppet.operators.batches import Batch, Places, batches
from tablepuppet.operators.client import Pending, Replies
from tablepuppet.operators.joined_rows import SCORES
from tablepuppet.operators.lou import Instead
from tablepuppet.operators.secure_sum import Bounds
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import NEXT_IMAGE, PER_OUTPUT, SQUARE, Numbers
from tablepuppet.prep.encode import encoded

Array = NDArray[np.float64]


@op(
    "sgd.step",
    asked="`sgd`",
    releases=Release.PREDICTIONS,
    returns={"image": NEXT_IMAGE, "square": SQUARE, "centre": Numbers((PER_OUTPUT,))},
)
def step(
    table: LocalTable, view: str, encoding: str, model: str,
    places: Places, rows: Array, next_places: Places, lr: float, momentum: float, l2: float,
    curvature: float | None = None, damping: float = 0.0,
) -> Values:  # fmt: skip
    """Take a step with one batch (Eq. 12, 13), then return predictions for the rows of the next batch.

    With a ``curvature`` the step is preconditioned; then the mean prediction over joined rows is returned too: the
    intercept absorbs it.
    """
    part, data = parameters_of(table, model), encoded(table, view, encoding)
    part.noisy = False
    wide = rows.astype(np.float64)
    if len(places):
        sums = part.model.pull_back(part.theta, data.rows(places), wide)
        take_step(part, sums, wide.sum(axis=0), lr, momentum, l2, curvature, damping)
    image = part.model.predict(part.theta, data.rows(next_places)).astype(table.wire)
    centre = np.zeros(1) if curvature is None else ridge_of(part).centre(part.theta)
    return {"image": image, "square": part.square, "centre": centre}


def take_step(
    part: TableParameters, sums: Array, total: Array, lr: float, momentum: float, l2: float,
    curvature: float | None = None, damping: float = 0.0,
) -> None:  # fmt: skip
    """One step of a table's parameters, preconditioned if there is a curvature."""
    if curvature is None:
        part.descend(sums, lr, momentum, l2)
    else:
        rates = ConditionedRates(lr, momentum, l2, curvature, damping)
        part.theta = ridge_of(part).descended(part.theta, sums, total, rates)


@dataclass(frozen=True)
class Conditioned:
    """How steps are preconditioned (`Ridge.descended`): one learning rate then fits all columns."""

    curvature: float  # a bound of the loss's second derivative by one score
    damping: float

    def intercept_rate(self, lr: float) -> float:
        """The learning rate of the intercept: that of a column of ones."""
        return lr / (self.curvature * (1 + lr * self.damping))


class Steps(Protocol):
    """An object that takes the steps of batches."""

    mapping: TableMapping
    tables: list[str]
    secured: list[str]  # tables whose shards mask their sums
    momentum: float
    conditioned: Conditioned | None
    penalty: float  # l2 / 2 times the squared norm of the parameters of the last predictions
    centre: Array  # (outputs,): mean prediction that the intercept must absorb

    def exchange(
        self, batch: Batch | None, row_gradients: Array | None, following: Batch | None, lr: float
    ) -> Mapping[str, Floats]:
        """Take the step of ``batch``; return the predictions for the ``following`` batch."""
        ...


class Stochastic:
    """The coordinator's side: asks for predictions of a batch, sends the gradient of the loss by them."""

    def __init__(self, model: FederatedModel, momentum: float, conditioned: Conditioned | None = None):
        self.model, self.momentum, self.conditioned = model, momentum, conditioned
        self.mapping, self.tables = model.loj.mapping, model.tables
        self.secured = [alias for alias in model.together if alias in model.lou.client.secured.parties]
        self.penalty, self.centre = 0.0, np.zeros(model.outputs)
        self._last_predictions: dict[str, Array] = {}  # by table: the last prediction of every base row
        self._numbers: dict[str, dict[str, Any]] = {}  # by table: its squared norm and its mean prediction

    def exchange(
        self, batch: Batch | None, row_gradients: Array | None, following: Batch | None, lr: float
    ) -> dict[str, Floats]:
        """Take the step of ``batch``; return the predictions for the ``following`` batch.

        The parameters of a lost table do not change, and the gradient of a lost shard is left out. Their last
        predictions are used again, or zeros.
        """
        model = self.model

        def as_before(alias: str, shard: ShardRows) -> dict[str, Any]:
            image = self._known(alias)[shard.slice][_within(following, alias, shard.slice)]
            known = self._numbers.get(alias, {"square": 0.0})
            if model.lou.client.outbox.when_lost.stand_in == "zeros":  # their mean is zero too
                known = {"square": known["square"]}
            return {**known, "image": image}

        sums = (
            {} if batch is None or row_gradients is None else {a: batch.scatter(a, row_gradients) for a in self.tables}
        )
        rates: dict[str, Any] = {"lr": lr, "momentum": self.momentum, "l2": model.l2}
        if self.conditioned is not None:
            rates |= {"curvature": self.conditioned.curvature, "damping": self.conditioned.damping}
        alone = self._ask(
            "sgd.step", model.alone,
            lambda alias, part: self._sums(batch, sums, alias, part)
            | {"next_places": _within(following, alias, part), "model": model.name, **rates},
            as_before,
        )  # fmt: skip
        if batch is not None and row_gradients is not None:
            replies = self._ask(
                "model.gradient", model.together,
                lambda alias, part: self._sums(batch, sums, alias, part) | self._shared_theta(alias),
                lambda alias, _: {"sums": np.zeros_like(model.shared[alias].theta)},
                lambda alias: model.gradient_bound(alias, sums[alias]),
            ).read()  # fmt: skip
            for alias, part in model.shared.items():
                take_step(part, model.lou.add(replies[alias], "sums"), row_gradients.sum(axis=0), **rates)
        if following is None:
            self._learn_numbers(alone.read())
            return {}
        together = self._ask(
            "model.apply", model.together,
            lambda alias, part: {"places": _within(following, alias, part), **self._shared_theta(alias)},
            as_before,
        )  # fmt: skip
        replies = alone.read()
        found = model.joined(replies, model.alone) | model.joined(together.read(), model.together)
        self._learn_numbers(replies)
        if model.lou.client.outbox.when_lost.stand_in == "cache":
            for alias, values in found.items():
                self._known(alias)[following.places[alias]] = values
        return found

    def _shared_theta(self, alias: str) -> dict[str, Any]:
        """The argument with the parameters that are sent to the shards of a table."""
        return {"spec": self.model.spec, "theta": self.model.shared[alias].theta}

    def _learn_numbers(self, alone: Replies) -> None:
        """Update the penalty and the mean prediction from the replies."""
        model = self.model
        for alias in model.alone:
            reply = alone[alias][0]
            self._numbers[alias] = {name: reply[name] for name in ("square", "centre") if name in reply}
        squares = sum(float(numbers["square"]) for numbers in self._numbers.values())
        squares += sum(part.square for part in model.shared.values())
        self.penalty = 0.5 * model.l2 * squares
        if self.conditioned is not None:
            centres = [numbers.get("centre", np.zeros(model.outputs)) for numbers in self._numbers.values()]
            centres += [ridge_of(part).centre(part.theta) for part in model.shared.values()]
            self.centre = np.sum([np.zeros(model.outputs), *centres], axis=0)

    def _known(self, alias: str) -> Array:
        """The last prediction of every base row of a table; zeros where there is none."""
        if alias not in self._last_predictions:
            rows, outputs = self.mapping.tables[alias].rows, self.model.outputs
            self._last_predictions[alias] = np.zeros(rows if outputs == 1 else (rows, outputs))
        return self._last_predictions[alias]

    def _ask(
        self, name: str, aliases: list[str], arguments: Callable[[str, slice], dict[str, Any]], instead: Instead,
        bounds: Bounds | None = None,
    ) -> Pending:  # fmt: skip
        model, chosen = self.model, set(aliases)
        return model.lou.client.ask(
            name,
            lambda a, shard: arguments(a, shard.slice) | {"encoding": model.encoding.id} if a in chosen else None,
            instead,
            bounds,
        )

    def _sums(self, batch: Batch | None, sums: Mapping[str, Array], alias: str, part: slice) -> dict[str, Any]:
        """The arguments for a shard: its rows in the batch, and the gradients by their predictions."""
        here = np.zeros(0, np.int32) if batch is None else batch.places[alias]
        mine = (here >= part.start) & (here < part.stop)
        wire = self.model.lou.wire
        rows = sums[alias][mine].astype(wire) if alias in sums else np.zeros(0, wire)
        return {"places": here[mine] - np.int32(part.start), "rows": rows}


def _within(batch: Batch | None, alias: str, part: slice) -> Places:
    """The base rows of a batch that a shard holds, counted from its start."""
    places = np.zeros(0, np.int32) if batch is None else batch.places[alias]
    return np.asarray(places[(places >= part.start) & (places < part.stop)] - np.int32(part.start))


def falling(lr: float, epochs: int) -> list[float]:
    """Learning rates by epoch: they fall to zero along half a cosine."""
    return [0.5 * lr * (1 + math.cos(math.pi * (epoch + 0.5) / epochs)) for epoch in range(epochs)]


def descend_by_batches(
    steps: Steps, loss: JoinedLoss, rates: Sequence[float], size: int, seed: int, report: Callable[[Round], bool]
) -> Array:
    """Mini-batch SGD with one epoch for each learning rate; return the intercept.

    The loss of a round is the mean over its batches, each measured before its step; so is the penalty.
    """
    free, velocity, rows = loss.best_constant(), np.zeros(loss.outputs), loss.rows
    intercept: Array = free
    total = penalty = 0.0
    divergence = Divergence(loss)
    rows.reserve(SCORES)
    upcoming = _epochs(steps, size, seed, len(rates))
    batch: Batch | None
    epoch, batch, is_last = next(upcoming)
    predictions = steps.exchange(None, None, batch, rates[0])
    while batch is not None:
        number, following, ends = next(upcoming, (epoch, None, True))
        lr, scores = rates[epoch - 1], batch.gather(predictions, intercept)
        rows.put(SCORES, batch.rows, scores)
        here = loss.pointwise.evaluate(scores, rows.labels_of(batch.rows))
        total += here.value
        divergence.check(epoch, total)
        penalty += steps.penalty * len(batch.rows)
        row_gradients = here.gradient / len(batch.rows)
        inside, outside = (1.0, lr) if steps.conditioned is None else (steps.conditioned.intercept_rate(lr), 1.0)
        velocity = steps.momentum * velocity + inside * row_gradients.sum(axis=0)
        free = free - outside * velocity
        predictions = steps.exchange(batch, row_gradients, following, lr)
        intercept = free - steps.centre
        if is_last:
            if report(Round(epoch, (total + penalty) / len(rows), total / len(rows), intercept, converged=False)):
                break
            total = penalty = 0.0
        epoch, batch, is_last = number, following, ends
    return intercept


def _epochs(steps: Steps, size: int, seed: int, epochs: int) -> Iterator[tuple[int, Batch, bool]]:
    """The batches of all epochs: (number of the epoch, the batch, whether it is the epoch's last)."""
    for epoch in range(1, epochs + 1):
        order = batches(steps.mapping, steps.tables, size, seed, epoch, steps.secured)
        batch = next(order)
        for following in order:
            yield epoch, batch, False
            batch = following
        yield epoch, batch, True
