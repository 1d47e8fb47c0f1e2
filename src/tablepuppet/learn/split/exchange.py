"""The coordinator's half of split learning: gradients of one batch go down, embeddings of the next come up.

One trip a batch; a table with several shards needs one more, to add the gradients of its shards (Eq. 17). What travels
is one embedding for each distinct base row of a batch, and the gradient by it, summed over its joined rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.split.model import SplitModel
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.batches import Batch, Places
from tablepuppet.operators.client import Pending
from tablepuppet.operators.lou import Instead

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Numbered:
    """A batch, and its number in the run."""

    number: int
    batch: Batch

    def within(self, alias: str, part: slice) -> Places:
        """The base rows of the batch that a shard holds, counted from its start."""
        places = self.batch.places[alias]
        return np.asarray(places[self.mine(alias, part)] - np.int32(part.start), np.int32)

    def mine(self, alias: str, part: slice) -> NDArray[np.bool_]:
        """Which of the batch's base rows of a table a shard holds."""
        places = self.batch.places[alias]
        return np.asarray((places >= part.start) & (places < part.stop))

    def counts(self, alias: str) -> Places:
        """How often each of its base rows is joined in the batch."""
        found = np.bincount(self.batch.index[alias], minlength=len(self.batch.places[alias]))
        return found.astype(np.int32)


class Exchange:
    """Takes the steps of batches at the tables in ``aliases``."""

    def __init__(self, model: SplitModel, aliases: list[str] | None = None):
        self.model = model
        chosen = model.tables if aliases is None else aliases
        self.alone = [alias for alias in model.alone if alias in chosen]
        self.together = [alias for alias in model.together if alias in chosen]
        self._last: dict[str, Floats] = {}  # by table: the last embedding of every base row

    @property
    def tables(self) -> list[str]:
        """The tables that learn."""
        return [*self.alone, *self.together]

    def __call__(
        self, done: Numbered | None, gradients: Mapping[str, Floats], following: Numbered | None, lr: float
    ) -> dict[str, Floats]:
        """Take the steps of the batch that is ``done``; return the embeddings of the ``following`` one, by alias.

        The network of a lost table does not change. Its last embeddings are used again, or zeros.
        """
        model = self.model
        rates = {"lr": lr, "l2": model.l2}

        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            if alias not in self.alone:
                return None
            found: dict[str, Any] = {"encoding": model.encoding.id, "model": model.name, **rates}
            found |= {"batch": -1, "rows": np.zeros(0, model.lou.wire)}
            found |= {"next_batch": -1, "next_places": np.zeros(0, np.int32), "next_counts": np.zeros(0, np.int32)}
            if done is not None:
                found |= {"batch": done.number, "rows": model.on_wire(gradients[alias])}
            if following is not None:
                places, counts = following.batch.places[alias], following.counts(alias)
                found |= {"next_batch": following.number, "next_places": places, "next_counts": counts}
            return found

        alone = model.lou.client.ask("split.step", arguments, self._as_before(following))
        if done is not None and self.together:
            self._step_together(done, gradients, lr)
        if following is None:
            alone.read()
            return {}
        together = self._apply(following)
        replies, applied = alone.read(), together.read()
        found = {alias: model.lou.concatenate(replies[alias], "image") for alias in self.alone}
        found |= {alias: model.lou.concatenate(applied[alias], "image") for alias in self.together}
        if model.lou.client.outbox.when_lost.stand_in == "cache":
            for alias, values in found.items():
                self._known(alias)[following.batch.places[alias]] = values
        return {alias: values[:, None] if values.ndim == 1 else values for alias, values in found.items()}

    def _step_together(self, done: Numbered, gradients: Mapping[str, Floats], lr: float) -> None:
        """Add up the gradients of shards and take the steps of their tables."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            if alias not in self.together:
                return None
            mine = done.mine(alias, shard.slice)
            return {
                **model.sent(alias),
                "places": done.within(alias, shard.slice),
                "rows": model.on_wire(gradients[alias][mine]),
            }

        def nothing(alias: str, shard: ShardRows) -> dict[str, Any]:
            return {"sums": np.zeros_like(model.shared[alias].theta)}

        replies = model.lou.client.ask("split.gradient", arguments, nothing).read()
        for alias in self.together:
            model.step_shared(alias, model.lou.add(replies[alias], "sums"), lr)

    def _apply(self, following: Numbered) -> Pending:
        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            if alias not in self.together:
                return None
            return {**self.model.sent(alias), "places": following.within(alias, shard.slice)}

        return self.model.lou.client.ask("split.apply", arguments, self._as_before(following))

    def _as_before(self, following: Numbered | None) -> Instead:
        def as_before(alias: str, shard: ShardRows) -> dict[str, Any]:
            places = np.zeros(0, np.int32) if following is None else following.within(alias, shard.slice)
            return {"image": self._known(alias)[shard.slice][places]}

        return as_before

    def _known(self, alias: str) -> Floats:
        """The last embedding of every base row of a table; zeros where there is none."""
        if alias not in self._last:
            rows, width = self.model.rows(alias), self.model.spec_of(alias).outputs
            self._last[alias] = np.zeros(rows if width == 1 else (rows, width), self.model.lou.wire)
        return self._last[alias]
