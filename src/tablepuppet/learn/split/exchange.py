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

from tablepuppet.learn.split.model import SplitModel, images
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.batches import Batch, Places
from tablepuppet.operators.client import Pending
from tablepuppet.operators.lou import Instead
from tablepuppet.party.spec import Hiding, TabNet

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


@dataclass(frozen=True)
class TableSums:
    """Sums over the joined rows of a batch, over all shards of a table that answered: (4, width)."""

    joined: int
    sums: Array

    @property
    def shown(self) -> Array:
        """Of values and squares, as the network is shown them."""
        return self.sums[:2]

    @property
    def whole(self) -> Array:
        """Of values and squares, hidden ones too."""
        return self.sums[2:]


class Exchange:
    """Takes the steps of batches at the tables in ``aliases``.

    With ``hide`` above 0, tables hide such a share of their cells from their networks, drawn from the seed.
    """

    def __init__(self, model: SplitModel, aliases: list[str] | None = None, hide: float = 0.0, seed: int = 0):
        self.model, self.hide, self.seed = model, hide, seed % 2**53
        chosen = model.tables if aliases is None else aliases
        self.alone = [alias for alias in model.alone if alias in chosen]
        self.together = [alias for alias in model.together if alias in chosen]
        self._last: dict[str, Floats] = {}  # by table: the last embedding of every base row
        self.sums: dict[str, TableSums] = {}  # of the batch under way, of tables whose batch norm is over shards
        self.rebuilt: dict[str, Array] = {}  # gradients of reconstruction errors in the batch under way, over shards
        self.missed: dict[str, NDArray[np.bool_]] = {}  # base rows of the batch that substitutes stand in for

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
            found: dict[str, Any] = {"encoding": model.encoding.id, "model": model.name, **rates, **model.precision}
            found |= {"batch": -1, "rows": np.zeros(0, model.lou.wire)}
            found |= {"next_batch": -1, "next_places": np.zeros(0, np.int32)}
            if done is not None:
                found |= {"batch": done.number, **model.on_wire(gradients[alias])}
            if following is not None:
                found |= {"next_batch": following.number, "next_places": following.batch.places[alias]}
                if isinstance(model.spec_of(alias), TabNet):
                    found["next_counts"] = following.counts(alias)
                found |= self.hiding(following, alias, shard)
            return found

        alone = model.lou.client.ask("split.step", arguments, self._as_before(following))
        normed = None if following is None else self._moments(following)  # travels with the sums of gradients
        if done is not None and self.together:
            self._step_together(done, gradients, lr)
        if following is None or normed is None:
            alone.read()
            return {}
        self._note(following, normed)
        together = self._apply(following)
        replies, applied = alone.read(), together.read()
        self.missed = {}
        for pending, aliases in ((alone, self.alone), (together, self.together)):
            for alias in aliases:
                flags = pending.missed(alias)
                if any(flags):
                    shards = zip(model.lou.client.shards(alias), flags, strict=True)
                    parts = [np.full(following.mine(alias, s.slice).sum(), missed) for s, missed in shards]
                    self.missed[alias] = np.concatenate(parts)
        found = {alias: images(replies[alias]) for alias in self.alone}
        found |= {alias: images(applied[alias]) for alias in self.together}
        if model.lou.client.outbox.when_lost.stand_in == "cache":
            for alias, values in found.items():
                self._known(alias)[following.batch.places[alias]] = values
        return found

    def _step_together(self, done: Numbered, gradients: Mapping[str, Floats], lr: float) -> None:
        """Add up the gradients of shards and take the steps of their tables."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            if alias not in self.together:
                return None
            mine = done.mine(alias, shard.slice)
            return {
                **model.sent(alias),
                **self.shown(done, alias, shard),
                "places": done.within(alias, shard.slice),
                **model.on_wire(gradients[alias][mine]),
            }

        def nothing(alias: str, shard: ShardRows) -> dict[str, Any]:
            return {"sums": np.zeros_like(model.shared[alias].theta)}

        replies = model.lou.client.ask("split.gradient", arguments, nothing).read()
        for alias in self.together:
            rebuilt = self.rebuilt.pop(alias, 0.0)
            model.step_shared(alias, model.lou.add(replies[alias], "sums") + rebuilt, lr)

    def _apply(self, following: Numbered) -> Pending:
        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            if alias not in self.together:
                return None
            shown = self.shown(following, alias, shard)
            places = following.within(alias, shard.slice)
            return {**self.model.sent(alias), **shown, **self.model.precision, "places": places}

        return self.model.lou.client.ask("split.apply", arguments, self._as_before(following))

    # Batch norm over shards, and hidden cells

    def hiding(self, batch: Numbered, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The argument with the cells of a batch that a shard hides; none if nothing is hidden."""
        if not self.hide:
            return {}
        before = int(np.searchsorted(batch.batch.places[alias], shard.slice.start))
        return {"hiding": Hiding(self.hide, self.seed, batch.number, before)}

    def shown(self, batch: Numbered, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The arguments of a shard with what it hides and what it normalises by."""
        found = self.hiding(batch, alias, shard)
        if alias in self.sums:
            found |= {"sums": self.sums[alias].shown, "joined": self.sums[alias].joined}
        return found

    def _moments(self, following: Numbered) -> Pending:
        """Ask for the sums that batch norm needs, of tables with several shards."""

        def arguments(alias: str, shard: ShardRows) -> Mapping[str, Any] | None:
            spec = self.model.spec_of(alias) if alias in self.together else None
            if not isinstance(spec, TabNet):
                return None
            found = {"encoding": self.model.encoding.id, "spec": spec, **self.hiding(following, alias, shard)}
            counts = following.counts(alias)[following.mine(alias, shard.slice)]
            return found | {"places": following.within(alias, shard.slice), "counts": counts}

        def nothing(alias: str, shard: ShardRows) -> dict[str, Any]:
            return {"sums": np.zeros((4, self.model.width(alias)))}

        return self.model.lou.client.ask("split.moments", arguments, nothing)

    def _note(self, following: Numbered, normed: Pending) -> None:
        """Add up the sums of shards; running means and variances of tables follow."""
        self.sums = {}
        asked = [alias for alias in self.together if isinstance(self.model.spec_of(alias), TabNet)]
        for alias, replies in (normed.read() if asked else {}).items():
            if alias not in asked:
                continue
            counts = following.counts(alias)
            shards = zip(self.model.lou.client.shards(alias), normed.missed(alias), strict=True)
            joined = sum(
                int(counts[following.mine(alias, shard.slice)].sum()) for shard, missed in shards if not missed
            )
            self.sums[alias] = TableSums(max(joined, 2), self.model.lou.add(replies, "sums"))
            self.model.note_moments(alias, self.sums[alias].joined, self.sums[alias].shown)

    def _as_before(self, following: Numbered | None) -> Instead:
        def as_before(alias: str, shard: ShardRows) -> dict[str, Any]:
            places = np.zeros(0, np.int32) if following is None else following.within(alias, shard.slice)
            return {"image": self._known(alias)[shard.slice][places]}

        return as_before

    def _known(self, alias: str) -> Floats:
        """The last embedding of every base row of a table; zeros where there is none."""
        if alias not in self._last:
            rows, width = self.model.rows(alias), self.model.spec_of(alias).outputs
            self._last[alias] = np.zeros((rows, width), self.model.lou.wire)
        return self._last[alias]
