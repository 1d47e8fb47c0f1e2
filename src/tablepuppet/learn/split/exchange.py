"""The coordinator's half of split learning: gradients of one batch go down, embeddings of the next come up.

One trip a batch; a table with several shards needs one more, to add the gradients of its shards (Eq. 17). What travels
is one embedding for each distinct base row of a batch, and the gradient by it, summed over its joined rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.split.model import SplitModel, images
from tablepuppet.learn.split.table import BatchSums
from tablepuppet.mapping.table_mapping import Floats, ShardRows
from tablepuppet.operators.batches import Batch, LastValues, no_rows
from tablepuppet.operators.client import Pending
from tablepuppet.operators.lou import Instead
from tablepuppet.party.spec import Hiding, TabNet

Array = NDArray[np.float64]
SHOWN, WHOLE = slice(2), slice(2, 4)  # of the sums over a batch: of cells as the network is shown them, and of all


class Exchange:
    """Takes the steps of batches at the tables in ``aliases``.

    With ``hide`` above 0, tables hide such a share of their cells from their networks, drawn from the seed.
    """

    def __init__(self, model: SplitModel, aliases: list[str] | None = None, hide: float = 0.0, seed: int = 0):
        self.model, self.hide, self.seed = model, hide, seed % 2**53
        self.tables = [alias for alias in model.tables if aliases is None or alias in aliases]  # those that learn
        self.alone = [alias for alias in self.tables if alias in model.alone]
        self.together = [alias for alias in self.tables if alias in model.together]
        self._normed = [alias for alias in self.together if isinstance(model.spec_of(alias), TabNet)]
        widths = {alias: (model.spec_of(alias).outputs,) for alias in self.tables}
        self.last = LastValues(model.lou.client, widths, model.lou.wire)
        self.sums: dict[str, BatchSums] = {}  # of the batch under way, of tables whose batch norm is over shards
        self.rebuilt: dict[str, Array] = {}  # gradients of reconstruction errors in the batch under way, over shards
        self.missed: dict[str, NDArray[np.bool_]] = {}  # base rows of the batch that substitutes stand in for

    def __call__(
        self, done: Batch | None, gradients: Mapping[str, Floats], following: Batch | None, lr: float
    ) -> dict[str, Floats]:
        """Take the steps of the batch that is ``done``; return the embeddings of the ``following`` one, by alias.

        The network of a lost table does not change. Its last embeddings are used again, or zeros.
        """
        model, nothing = self.model, no_rows(self.tables)
        before, after = done or nothing, following or nothing
        as_before = self._as_before(after)

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
            found: dict[str, Any] = {"next_places": after.places[alias]}
            found |= {"rows": np.zeros(0, model.lou.wire)} if done is None else model.on_wire(gradients[alias])
            if following is not None and isinstance(model.spec_of(alias), TabNet):
                found["next_counts"] = following.counts(alias)
            return found if following is None else found | self.hiding(following, alias, shard)

        alone = model.lou.ask(
            "split.step", self.alone, by_shard=arguments, instead=as_before, batch=before.number,
            next_batch=after.number, lr=lr, l2=model.l2, **model.at_party, **model.precision,
        )  # fmt: skip
        normed = None if following is None else self._ask_moments(following)  # travels with the sums of gradients
        if done is not None and self.together:
            self._step_together(done, gradients, lr)
        if following is None or normed is None:
            alone.read()
            return {}
        self._note_moments(following, normed)
        together = model.lou.ask(
            "split.apply", self.together, by_alias=model.sent_shared(), instead=as_before, **model.precision,
            by_shard=lambda a, s: {**self.shown(following, a, s), "places": following.within(a, s.slice)},
        )  # fmt: skip
        found = {alias: images(replies) for alias, replies in alone.read().items() if alias in self.alone}
        found |= {alias: images(replies) for alias, replies in together.read().items() if alias in self.together}
        self.missed = {
            alias: self._missed_rows(following, pending, alias)
            for pending, aliases in ((alone, self.alone), (together, self.together))
            for alias in aliases
            if any(pending.missed(alias))
        }
        self.last.keep(following, found)
        return found

    def _missed_rows(self, batch: Batch, pending: Pending, alias: str) -> NDArray[np.bool_]:
        """Which base rows of a batch have substitutes, because their shard is lost."""
        shards = zip(self.model.lou.client.shards(alias), pending.missed(alias), strict=True)
        return np.concatenate([np.full(batch.mine(alias, shard.slice).sum(), missed) for shard, missed in shards])

    def _step_together(self, done: Batch, gradients: Mapping[str, Floats], lr: float) -> None:
        """Add up the gradients of shards and take the steps of their tables."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
            given = model.on_wire(gradients[alias][done.mine(alias, shard.slice)])
            return {**self.shown(done, alias, shard), "places": done.within(alias, shard.slice), **given}

        replies = model.lou.ask(
            "split.gradient", self.together, by_alias=model.sent_shared(), by_shard=arguments,
            instead=lambda alias, _: {"sums": np.zeros_like(model.shared[alias].theta)},
        ).read()  # fmt: skip
        for alias in self.together:
            rebuilt = self.rebuilt.pop(alias, 0.0)
            model.step_shared(alias, model.lou.add(replies[alias], "sums") + rebuilt, lr)

    def _as_before(self, batch: Batch) -> Instead:
        """The substitute for embeddings of a lost shard in a batch."""
        return lambda alias, shard: {"image": self.last.at(batch, alias, shard)}

    # Batch norm over shards, and hidden cells

    def hiding(self, batch: Batch, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The argument with the cells of a batch that a shard hides; none if nothing is hidden."""
        if not self.hide:
            return {}
        before = int(np.searchsorted(batch.places[alias], shard.slice.start))
        return {"hiding": Hiding(self.hide, self.seed, batch.number, before)}

    def shown(self, batch: Batch, alias: str, shard: ShardRows, part: slice = SHOWN) -> dict[str, Any]:
        """The arguments of a shard with what it hides and what it normalises by."""
        found = self.hiding(batch, alias, shard)
        if alias in self.sums:
            found |= {"sums": self.sums[alias].values[part], "joined": self.sums[alias].joined}
        return found

    def _ask_moments(self, following: Batch) -> Pending:
        """Ask for the sums that batch norm needs, of tables with several shards."""
        model = self.model

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
            found: dict[str, Any] = {"spec": model.spec_of(alias), **self.hiding(following, alias, shard)}
            counts = following.counts(alias)[following.mine(alias, shard.slice)]
            return found | {"places": following.within(alias, shard.slice), "counts": counts}

        return model.lou.ask(
            "split.moments", self._normed, by_shard=arguments, encoding=model.encoding.id,
            instead=lambda alias, _: {"sums": np.zeros((4, model.width(alias)))},
        )  # fmt: skip

    def _note_moments(self, following: Batch, normed: Pending) -> None:
        """Add up the sums of shards; running means and variances of tables follow."""
        replies, self.sums = normed.read(), {}
        for alias in self._normed:
            counts, shards = following.counts(alias), self.model.lou.client.shards(alias)
            present = [shard for shard, missed in zip(shards, normed.missed(alias), strict=True) if not missed]
            joined = sum(int(counts[following.mine(alias, shard.slice)].sum()) for shard in present)
            sums = BatchSums(max(joined, 2), self.model.lou.add(replies[alias], "sums"))
            self.sums[alias] = sums
            self.model.note_moments(alias, sums.joined, sums.values[SHOWN])
