"""A solver's step, written once: what it does at the parameters of a table, and the op that does it at their party.

A solver writes a step as an `Update`. If a table has one shard, its party holds the parameters: there the update is an
op, whose arguments are the update's fields and those of the way in which it is `step`ped. If it has several, the
coordinator holds them, and takes the same update with what shards return: a sum of their gradients (`ShardSums`), or
what they agree on (`linear/consensus.py`, `network/admm.py`). Which of these it is, and who holds the parameters,
solvers do not ask.

Each kind of update is an op of its own, not an argument of one op: what it releases stands where it is registered, and
approvals, limits and the audit log of a party know it by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

import numpy as np

from tablepuppet.arrays import Array, Floats, Places
from tablepuppet.learn.tables.model import TableModel
from tablepuppet.learn.tables.noisy import noisy_gradient, noisy_predictions
from tablepuppet.learn.tables.parameters import (
    TableParameters,
    noisy_parameters,
    parameters_of,
    unchanged_if_refused,
)
from tablepuppet.mapping.batches import Batch
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Replies
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.arguments import PredictionNoise, SumNoise
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.prep.encode.encode import encoded_for_noise, sealed
from tablepuppet.prep.encode.encoded_table import SealedTable

NOTHING: Array = np.zeros(())
Facts = Mapping[str, Any]
"""What a reply to an update has beside predictions."""
ROUNDING = 1e-13  # share of the variance of predictions that rounding errors may be


@dataclass(frozen=True)
class Update:
    """What a solver does at the parameters of one table; its fields are the numbers that it does it with."""

    op: ClassVar[str]  # the op that does it at the party that holds them; set by `step`

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the op that are the update's own."""
        return {each.name: given for each in fields(self) if (given := getattr(self, each.name)) is not each.default}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """Do it, whoever holds the parameters; return what is released beside predictions.

        ``sums`` is the gradient by the parameters, ``total`` the sum over rows of the gradient by predictions. Both are
        `NOTHING` for an update without rows; a noisy gradient has no total.
        """
        raise NotImplementedError

    def at_party(self, part: TableParameters, rows: HeldRows) -> Facts:
        """Do it where the rows are; most updates need no more of them than the gradient."""
        return self.take(part, *rows.gradient(part))

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Which predictions are wanted afterwards: ``theta``, parameters or a direction, and how; empty: none."""
        return {}


@dataclass(frozen=True, kw_only=True)
class NoisyUpdate(Update):
    """One whose gradient may have ``noise``; predictions have some only if both are given."""

    noise: SumNoise | None = None
    prediction_noise: PredictionNoise | None = None


@dataclass(frozen=True)
class HeldRows:
    """The rows of a table at the party that holds its parameters, and what was sent for them."""

    table: LocalTable
    view: str
    data: SealedTable
    values: Array | None = None  # the gradient by predictions, of all rows or of those at `places`
    places: Places | None = None
    noise: SumNoise | None = None

    def gradient(self, part: TableParameters) -> tuple[Array, Array]:
        """The gradient by the parameters, and the sum over rows of that by predictions."""
        if self.values is None or (self.places is not None and not len(self.places)):
            return NOTHING, NOTHING
        if self.noise is not None:
            model = part.model.by_row
            return noisy_gradient(self.table, self.data, model, part.theta, self.values, self.noise), NOTHING
        wide, data = self.values.astype(np.float64), self.data.open()
        chosen = data if self.places is None else data.rows(self.places)
        return part.model.gradient(part.theta, chosen, wide), wide.sum(axis=0)

    def shown(
        self, part: TableParameters, wanted: Mapping[str, Any], noise: PredictionNoise | None = None,
        places: Places | None = None, *, exact: bool = False,
    ) -> Values:  # fmt: skip
        """The predictions that an update wants, as they leave."""
        if not wanted:
            return {}
        theta, centre = wanted["theta"], wanted.get("centre")
        bound = None if noise is None else part.bound_of(theta) if noise.bound is None else noise.bound
        return {
            "outputs": released(
                self.table, self.data, part.model, theta, noise, bound, places=places, centre=centre, exact=exact
            )
        }


# Ways in which an update is an op.


def by_itself(update: Update, table: LocalTable, view: str, model: str) -> Values:
    """It needs no rows, and wants no predictions."""
    return dict(update.take(parameters_of(table, model), NOTHING, NOTHING))


def for_predictions(update: Update, table: LocalTable, view: str, encoding: str, model: str) -> Values:
    """It needs no gradient; predictions of all rows follow."""
    rows, part = HeldRows(table, view, sealed(table, view, encoding)), parameters_of(table, model)
    return {**update.at_party(part, rows), **rows.shown(part, update.shown(part))}


def by_rows(update: Update, table: LocalTable, view: str, encoding: str, model: str, rows: Array) -> Values:
    """With the gradient by predictions of all rows."""
    part, held = parameters_of(table, model), HeldRows(table, view, sealed(table, view, encoding), rows)
    return {**update.at_party(part, held), **held.shown(part, update.shown(part))}


def by_batch(
    update: Update, table: LocalTable, view: str, encoding: str, model: str, places: Places, rows: Array,
    next_places: Places,
) -> Values:  # fmt: skip
    """With that of a batch, which may have none of the rows; predictions of the next batch follow."""
    part, held = parameters_of(table, model), HeldRows(table, view, sealed(table, view, encoding), rows, places)
    return {**update.at_party(part, held), **held.shown(part, update.shown(part), places=next_places)}


def by_rows_with_noise(
    update: NoisyUpdate, table: LocalTable, view: str, encoding: str, model: str, rows: Array, exact: bool = False
) -> Values:
    """With that of all rows, with or without noise; predictions are not rounded if they are ``exact``."""
    noise = update.noise
    if noise is None:
        part, data = parameters_of(table, model), sealed(table, view, encoding)
    else:
        part, data = noisy_parameters(table, model), encoded_for_noise(table, view, encoding)
    held = HeldRows(table, view, data, rows, noise=noise)
    with unchanged_if_refused(part):
        facts = update.at_party(part, held)
        shown_noise = None if noise is None else update.prediction_noise
        return {**held.shown(part, update.shown(part), shown_noise, exact=exact), **facts}


Kind = TypeVar("Kind", bound=type[Update])


def step(name: str, way: Callable[..., Values] | None = None, **declared: Any) -> Callable[[Kind], Kind]:
    """Register an update as the op ``name``, which takes it at the party that holds the parameters.

    The op's arguments are those of the ``way``, or of the update's own `run` if there is none, and the update's fields;
    ``declared`` is what an op declares (`Op`).
    """

    def register(kind: Kind) -> Kind:
        run = kind.run if way is None else way  # type: ignore[attr-defined]
        own, (_, first, *rest) = inspect.signature(kind).parameters, inspect.signature(run).parameters.values()

        def take(table: LocalTable, /, **given: Any) -> Values:
            update = kind(**{name: given.pop(name) for name in own if name in given})
            return dict(run(update, table, **given))

        named = [each.replace(kind=each.KEYWORD_ONLY) for each in (*rest, *own.values())]
        hints = get_type_hints(run, include_extras=True) | get_type_hints(kind, include_extras=True)
        take.__signature__ = inspect.Signature([first, *named])  # type: ignore[attr-defined]
        take.__annotations__ = {each.name: hints[each.name] for each in (first, *named)}
        take.__module__, take.__doc__ = kind.__module__, kind.__doc__
        op(name, **declared)(take)
        kind.op = name
        return kind

    return register


# Predictions as they leave.


def released(
    table: LocalTable, data: SealedTable, model: TableModel, theta: Array, noise: PredictionNoise | None,
    bound: float | None, *, places: Places | None = None, centre: Array | None = None, exact: bool = False,
) -> Floats:  # fmt: skip
    """Predictions of all rows or of those at ``places``, without their ``centre``; with noise, cut to the ``bound``."""
    if noise is not None:
        assert bound is not None, "its callers know"
        return noisy_predictions(table, data, model.by_row, theta, bound, noise.multiplier)
    with table.for_reply():
        rows = data.open()
        predictions = model.predict(theta, rows if places is None else rows.rows(places))
    if centre is not None:
        predictions -= centre if predictions.ndim == 2 else centre[0]
    return on_wire(predictions, table.wire, exact=exact)


def on_wire(predictions: Floats, wire: str, *, exact: bool) -> Floats:
    """Predictions in the precision of the wire.

    They stay in double precision if they are ``exact``, or if rounding would show in how much they differ: if their
    mean is large.
    """
    if exact or wire == "float64":
        return predictions
    rounded = predictions.astype(wire)
    spread = float(np.square(predictions - predictions.mean(axis=0)).sum()) if len(predictions) else 0.0
    return rounded if float(np.square(rounded - predictions).sum()) <= ROUNDING * spread else predictions


Updates = Mapping[str, Update]
"""By table that takes a step; all of one kind."""


@dataclass(frozen=True)
class RowGradients:
    """What tables are given for an update: the gradient of the loss by the predictions of all base rows, by table."""

    values: Mapping[str, Floats]

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows, and so no gradient."""
        return False

    @property
    def shows(self) -> bool:
        """Whether predictions are wanted, if the update has any."""
        return True

    @property
    def is_batch(self) -> bool:
        """Whether predictions are those of some rows: noise is for those of all."""
        return False

    def sent(self, lou: LearningOverUnion, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The arguments with which a shard computes its gradient, as they are rounded."""
        return {"rows": lou.sent(self.values[alias], shard)}

    def held(self, lou: LearningOverUnion, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The arguments of the update's op, at a party that holds the parameters."""
        return self.sent(lou, alias, shard)

    def shown(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The arguments with which a shard returns predictions afterwards."""
        return {}

    def total(self, lou: LearningOverUnion, alias: str, missed: list[bool]) -> Array:
        """The sum of what the shards of a table were sent; those that are lost are left out."""
        present = [shard for shard, gone in zip(lou.client.shards(alias), missed, strict=True) if not gone]
        parts = [self.sent(lou, alias, shard)["rows"].sum(axis=0, dtype=np.float64) for shard in present]
        return np.asarray(np.sum([np.zeros(self.values[alias].shape[1:]), *parts], axis=0))


@dataclass(frozen=True)
class BatchGradients(RowGradients):
    """Gradients by the predictions of one batch's base rows; predictions are those of the ``following`` batch."""

    done: Batch
    following: Batch

    @property
    def is_empty(self) -> bool:
        """Whether nothing is done yet."""
        return not len(self.done.rows)

    @property
    def shows(self) -> bool:
        """Whether a batch follows."""
        return bool(len(self.following.rows))

    @property
    def is_batch(self) -> bool:
        """Predictions are those of the following batch."""
        return True

    def sent(self, lou: LearningOverUnion, alias: str, shard: ShardRows) -> dict[str, Any]:
        """Those of the batch's rows that a shard holds."""
        rows = self.values[alias][self.done.mine(alias, shard.slice)].astype(lou.wire)
        return {"places": self.done.within(alias, shard.slice), "rows": rows}

    def held(self, lou: LearningOverUnion, alias: str, shard: ShardRows) -> dict[str, Any]:
        """Gradients of the batch, and the rows of the next, whose predictions are wanted."""
        return {**self.sent(lou, alias, shard), "next_places": self.following.within(alias, shard.slice)}

    def shown(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The rows whose predictions are wanted."""
        return {"places": self.following.within(alias, shard.slice)}


@dataclass(frozen=True)
class Stepped:
    """What tables returned for an update, whoever holds their parameters."""

    predictions: dict[str, Floats]  # by table, over its rows
    facts: dict[str, Facts]  # by table, without those that are ``still``
    still: frozenset[str]  # tables that took no step: their party is lost
    missed: Mapping[str, list[bool]]  # by table with several shards: whose predictions are substitutes

    def listed(self, fact: str) -> list[Any]:
        """One fact of every table that took the step."""
        return [facts[fact] for facts in self.facts.values()]


def taken(
    updates: Updates, parts: Mapping[str, TableParameters], found: Mapping[str, tuple[Array, Array]] | None = None
) -> dict[str, Facts]:
    """The facts of updates that the coordinator takes, by table: with the sums that were found, if there are any."""
    sums, stepping = found or {}, {alias: part for alias, part in parts.items() if alias in updates}
    return {a: updates[a].take(part, *sums.get(a, (NOTHING, NOTHING))) for a, part in stepping.items()}


class OverShards(Protocol):
    """How the coordinator takes updates of the tables whose parameters it holds."""

    @property
    def parts(self) -> dict[str, TableParameters]:
        """The parameters, by table."""
        ...

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """Take the updates of such tables; the facts of each. It makes the trips that it needs."""
        ...


@dataclass
class ShardSums:
    """Gradients of shards add up, then the coordinator takes the step (LoU, Eq. 17, 18).

    ``parts`` may be made with the first trip, by ``begin``. ``sent`` are the arguments with which a shard computes its
    gradient, ``bound`` about how large the entries of a sum of shape ``shape`` are, for secure sums. A lost shard is
    left out of the sum, unless ``noisy``: nothing stands in for noise.
    """

    lou: LearningOverUnion
    aliases: list[str]
    sent: Callable[[str], Mapping[str, Any]]
    shape: Callable[[str], tuple[int, ...]]
    bound: Callable[[str, Floats], float]
    noisy: bool = False
    begin: Callable[[], None] | None = None
    parts: dict[str, TableParameters] = field(default_factory=dict)

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """Add up the gradients of shards, and take updates with the sums."""
        if rows is None or rows.is_empty:
            return taken(updates, self.parts)
        asked = [alias for alias in self.aliases if alias in updates]
        found = self._sums(asked, rows) if asked else {}
        if self.begin is not None:
            self.begin()
        return taken(updates, self.parts, found)

    def _sums(self, aliases: list[str], rows: RowGradients) -> dict[str, tuple[Array, Array]]:
        """By table: the gradient by its parameters, and the sum of what was sent for it."""
        asked = self.lou.ask(
            "model.gradient", aliases, by_alias={alias: self.sent(alias) for alias in aliases},
            by_shard=lambda alias, shard: rows.sent(self.lou, alias, shard),
            instead=None if self.noisy else self._left_out,
            bounds=lambda alias: {"sums": self.bound(alias, rows.values[alias])},
        )  # fmt: skip
        replies: Replies = asked.read()
        return {
            alias: (self.lou.add(replies[alias], "sums"), rows.total(self.lou, alias, asked.missed(alias)))
            for alias in aliases
        }

    def _left_out(self, alias: str, _: ShardRows) -> dict[str, Array]:
        """The reply used for a lost shard: zero sums, so its rows are left out."""
        return {"sums": np.zeros(self.shape(alias))}
