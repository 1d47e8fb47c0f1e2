"""RFL-SGD: mini-batches of joined rows, with duplicates reduced inside each batch (solver="sgd"; Eq. 10-13, 17-19).

A batch touches some base rows of every table, each perhaps several times. Tables hear of each such row once: the bytes
of a batch follow its distinct base rows. The step for one batch and the predictions for the next share a trip; a table
with several shards needs one more, to add its shards' gradients (Eq. 17).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.block import Block
from tablepuppet.learn.descent import Round
from tablepuppet.learn.part import encoded, part_of
from tablepuppet.learn.placed import PlacedModel
from tablepuppet.mapping.table_mapping import Floats, ShardRows, TableMapping
from tablepuppet.operators.client import Replies
from tablepuppet.operators.lou import Instead
from tablepuppet.operators.secure_sum import Bounds
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.privacy.secure_sum import FEWEST

if TYPE_CHECKING:
    from tablepuppet.learn.losses import Loss

Array = NDArray[np.float64]
Places = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Some joined rows: for each table the distinct base rows they come from, and which each joined row means."""

    rows: NDArray[np.intp]
    places: Mapping[str, Places]  # distinct base rows, ascending
    index: Mapping[str, NDArray[np.intp]]  # joined row of the batch -> which of them

    def gather(self, predictions: Mapping[str, Floats], intercept: Array) -> Array:
        """Scores of the batch's joined rows."""
        outputs = len(intercept)
        scores = np.zeros(len(self.rows) if outputs == 1 else (len(self.rows), outputs)) + intercept
        for alias, values in predictions.items():
            scores += values[self.index[alias]]
        return scores

    def scatter(self, alias: str, values: Array) -> Array:
        """Values of joined rows summed at the distinct base rows (Eq. 10)."""
        sums = np.zeros((len(self.places[alias]), *values.shape[1:]))
        np.add.at(sums, self.index[alias], values)
        return sums


def batches(
    mapping: TableMapping, tables: list[str], size: int, seed: int, epoch: int, secured: Iterable[str] = ()
) -> Iterator[Batch]:
    """The joined rows in an order drawn from the seed and the epoch, ``size`` at a time.

    Of ``secured`` tables a batch has rows of three shards or more, or their sum would be that of one or two: it takes
    more rows until it has, and what is left over at the end goes with the last.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(mapping))
    owners = [mapping.tables[alias].owners[order] for alias in secured]
    start, ends = 0, []
    for end in [*range(size, len(order), size), len(order)]:
        if all(len(np.unique(owner[start:end])) >= FEWEST for owner in owners):
            ends.append(end)
            start = end
    for rows in np.split(order, ends[:-1]) if len(order) else ():
        found = {alias: np.unique(mapping.tables[alias].index[rows], return_inverse=True) for alias in tables}
        yield Batch(
            rows, {a: places for a, (places, _) in found.items()}, {a: index for a, (_, index) in found.items()}
        )


@op("linear.sgd", releases=Release.PREDICTIONS)
def sgd(
    table: LocalTable, view: str, encoding: str, model: str,
    places: Places, rows: Array, next_places: Places, lr: float, momentum: float, l2: float,
) -> Values:  # fmt: skip
    """One step from a batch (Eq. 12, 13), then predictions for the rows of the next."""
    block: Block = part_of(table, model)
    data = encoded(table, view, encoding)
    if len(places):
        block.descend(data.rows(places).transposed_times(rows.astype(np.float64)), lr, momentum, l2)
    image = data.rows(next_places).times(block.theta).astype(table.wire)
    return {"image": image, "square": float(np.vdot(block.theta, block.theta))}


@op("linear.sgd_gradient", releases=Release.GRADIENT_SUMS, summed=("sums",))
def sgd_gradient(table: LocalTable, view: str, encoding: str, places: Places, rows: Array) -> Values:
    """A shard's part of a batch's gradient (Eq. 18)."""
    return {"sums": encoded(table, view, encoding).rows(places).transposed_times(rows.astype(np.float64))}


@op("linear.sgd_image", releases=Release.PREDICTIONS)
def sgd_image(table: LocalTable, view: str, encoding: str, next_places: Places, theta: Array) -> Values:
    """Predictions of a shard's rows of the next batch, with the parameters that all shards share (Eq. 19)."""
    return {"image": encoded(table, view, encoding).rows(next_places).times(theta).astype(table.wire)}


class Steps(Protocol):
    """Whoever takes the steps that batches ask for."""

    mapping: TableMapping
    tables: list[str]
    secured: list[str]  # tables whose shards mask their sums
    momentum: float
    penalty: float  # l2 / 2 times the squared norm of the parameters that the last predictions are of

    def exchange(
        self, batch: Batch | None, wanted: Array | None, following: Batch | None, lr: float
    ) -> Mapping[str, Floats]:
        """Take the step that ``batch`` asks for; the predictions for the ``following`` batch."""
        ...


class Stochastic:
    """The coordinator's side: asks for predictions of a batch, sends what the loss wants of its rows."""

    def __init__(self, model: PlacedModel[Any], momentum: float):
        self.model, self.momentum = model, momentum
        self.mapping, self.tables = model.loj.mapping, model.tables
        self.secured = [alias for alias in model.together if alias in model.lou.client.secured.parties]
        self.penalty = 0.0
        self._told: dict[str, Array] = {}  # by table: the last prediction of every base row
        self._squares: dict[str, float] = {}  # by table: the squared norm of its parameters

    def exchange(
        self, batch: Batch | None, wanted: Array | None, following: Batch | None, lr: float
    ) -> dict[str, Floats]:
        """Take the step that ``batch`` asks for; the predictions for the ``following`` batch.

        A table whose party is lost stands still, and the gradient of a shard that is lost is left out. The last
        predictions of their rows stand in for new ones, or zeros.
        """
        model = self.model

        def as_before(alias: str, shard: ShardRows) -> dict[str, Any]:
            image = self._known(alias)[shard.slice][_within(following, alias, shard.slice)]
            return {"image": image, "square": self._squares.get(alias, 0.0)}

        sums = {} if batch is None or wanted is None else {a: batch.scatter(a, wanted) for a in self.tables}
        rates = {"lr": lr, "momentum": self.momentum, "l2": model.l2}
        alone = self._ask(
            "sgd", model.alone,
            lambda alias, part: self._sums(batch, sums, alias, part)
            | {"next_places": _within(following, alias, part), "model": model.model, **rates},
            as_before,
        )  # fmt: skip
        if batch is not None:
            replies = self._ask(
                "sgd_gradient", model.together,
                lambda alias, part: self._sums(batch, sums, alias, part) | model.for_gradient(alias),
                lambda alias, _: {"sums": np.zeros_like(model.shared[alias].theta)},
                lambda alias: model.gradient_bound(alias, sums[alias]),
            )  # fmt: skip
            for alias, part in model.shared.items():
                part.descend(model.lou.add(replies[alias], "sums"), **rates)
        if following is None:
            return {}
        together = self._ask(
            "sgd_image", model.together,
            lambda alias, part: {
                "next_places": _within(following, alias, part), "theta": model.shared[alias].theta, **model.shape
            },
            as_before,
        )  # fmt: skip
        found = model.joined(alone, model.alone) | model.joined(together, model.together)
        self._squares = {alias: alone[alias][0]["square"] for alias in model.alone}
        shared = sum(float(np.vdot(part.theta, part.theta)) for part in model.shared.values())
        self.penalty = 0.5 * model.l2 * (sum(self._squares.values()) + shared)
        if model.lou.client.outbox.when_lost.stand_in == "cache":
            for alias, values in found.items():
                self._known(alias)[following.places[alias]] = values
        return found

    def _known(self, alias: str) -> Array:
        """The last prediction of every base row of a table; zeros where there is none."""
        if alias not in self._told:
            rows, outputs = self.mapping.tables[alias].rows, self.model.outputs
            self._told[alias] = np.zeros(rows if outputs == 1 else (rows, outputs))
        return self._told[alias]

    def _ask(
        self, name: str, aliases: list[str], arguments: Callable[[str, slice], dict[str, Any]], instead: Instead,
        bounds: Bounds | None = None,
    ) -> Replies:  # fmt: skip
        model, chosen = self.model, set(aliases)
        return model.lou.client.ask(
            f"{model.family}.{name}",
            lambda a, shard: arguments(a, shard.slice) | {"encoding": model.encoding.id} if a in chosen else None,
            instead,
            bounds,
        )

    def _sums(self, batch: Batch | None, sums: Mapping[str, Array], alias: str, part: slice) -> dict[str, Any]:
        """What a shard hears of a batch: its rows in it, and what the loss wants of them."""
        here = np.zeros(0, np.int32) if batch is None else batch.places[alias]
        mine = (here >= part.start) & (here < part.stop)
        wire = self.model.lou.wire
        rows = sums[alias][mine].astype(wire) if alias in sums else np.zeros(0, wire)
        return {"places": here[mine] - np.int32(part.start), "rows": rows}


def _within(batch: Batch | None, alias: str, part: slice) -> Places:
    """The base rows of a batch that a shard holds, counted from its start."""
    places = np.zeros(0, np.int32) if batch is None else batch.places[alias]
    return np.asarray(places[(places >= part.start) & (places < part.stop)] - np.int32(part.start))


def descend_by_batches(
    steps: Steps, loss: Loss, rates: Sequence[float], size: int, seed: int, report: Callable[[Round], bool]
) -> Array:
    """Mini-batch SGD, an epoch for each learning rate; the intercept.

    The loss of a round is the mean over its batches as they came, and so is the penalty.
    """
    intercept, velocity, mapping = loss.best_constant(), np.zeros(loss.outputs), steps.mapping
    scores = np.zeros((len(mapping),) if loss.outputs == 1 else (len(mapping), loss.outputs))
    for epoch, lr in enumerate(rates, start=1):
        total = penalty = 0.0
        upcoming = batches(mapping, steps.tables, size, seed, epoch, steps.secured)
        batch = next(upcoming, None)
        predictions = steps.exchange(None, None, batch, lr)
        while batch is not None:
            following = next(upcoming, None)
            part = loss.at(batch.rows)
            here = batch.gather(predictions, intercept)
            scores[batch.rows] = here
            total += part.value(here) * len(batch.rows)
            penalty += steps.penalty * len(batch.rows)
            wanted = part.gradient(here)
            velocity = steps.momentum * velocity + wanted.sum(axis=0)
            intercept = intercept - lr * velocity
            predictions = steps.exchange(batch, wanted, following, lr)
            batch = following
        value, objective = total / len(mapping), (total + penalty) / len(mapping)
        if report(Round(epoch, objective, value, scores, intercept, converged=False)):
            break
    return intercept
