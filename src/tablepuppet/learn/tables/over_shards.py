"""What tables are given for a solver's step (steps.py), and the coordinator's way to take it over several shards.

If a table has several shards, the coordinator holds the parameters. It takes an update with what shards return: a sum
of their gradients (`ShardSums`), or what they agree on (`linear/consensus.py`, `network/admm.py`). Which of these it
is, and whether a party holds the parameters instead, solvers do not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.steps import NOTHING, Facts, Update
from tablepuppet.mapping.batches import Batch
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Replies
from tablepuppet.operators.lou import LearningOverUnion

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
