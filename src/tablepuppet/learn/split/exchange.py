"""The steps of split learning: gradients of one batch go down, embeddings of the next come up.

One trip a batch; a table with several shards needs one more, to add the gradients of its shards (Eq. 17). What travels
is one embedding for each distinct base row of a batch, and the gradient by it, summed over its joined rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats, Places
from tablepuppet.learn.split.model import SplitModel
from tablepuppet.learn.split.ops import ASKED, BatchNumber, Embedded, check_counts, in_training, shaped, wide
from tablepuppet.learn.split.tabnet_table import TabNet
from tablepuppet.learn.tables.model import BatchSums, Bottom, Hiding
from tablepuppet.learn.tables.narrow import Bits, Narrow
from tablepuppet.learn.tables.parameters import Adam, TableParameters, parameters_of
from tablepuppet.learn.tables.steps import NOTHING, BatchGradients, Facts, RowGradients, Update, Updates, step, taken
from tablepuppet.mapping.batches import Batch, no_rows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Pending
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.party.arguments import Bound, NotNegative
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OUTPUTS
from tablepuppet.prep.encode.encode import encoded

SHOWN, WHOLE = slice(2), slice(2, 4)  # of the sums over a batch: of cells as the network is shown them, and of all


@step("split.step", asked=ASKED, releases=Release.EMBEDDINGS, returns={"outputs": Embedded(("next_places", OUTPUTS))})
@dataclass(frozen=True)
class AdamStep(Update):
    """The step of a batch at a table's network; then embeddings of the next batch.

    Batches have numbers: a party that was away while others went on takes no step for a batch it has not computed.
    """

    lr: NotNegative
    l2: NotNegative
    batch: BatchNumber
    next_batch: BatchNumber
    anew: bool = False  # whether the optimiser forgets what it remembers of earlier batches

    def run(
        self, table: LocalTable, view: str, encoding: str, model: str, rows: Array | Bits, next_places: Places,
        next_counts: Places | None = None, hiding: Hiding | None = None, unit: Bound = 1.0, wire: Narrow | None = None,
    ) -> Values:  # fmt: skip
        """At the party that holds the parameters, from ``rows``, the gradient by embeddings, summed over joined rows.

        ``next_counts``: how often each row of the next batch is joined in it, for batch norm. ``hiding``: its cells
        that are hidden from the network, in pretraining. ``rows`` are in units of ``unit``; ``wire``: the precision of
        embeddings, if it is not that of the session.
        """
        data = encoded(table, view, encoding)
        part = parameters_of(table, model, Bottom)
        if self.anew:
            part.memory = None
        network, training = part.model, in_training(part)
        check_counts(next_counts, next_places)
        given, chosen = wide(rows), data.rows(next_places)
        table.count_embeddings(view, network.spec.outputs, next_places)
        if self.batch >= 0 and training.batch == self.batch and training.forward is not None:
            gradient = training.forward.backward(given * unit)
            gradient += 0.0 if training.rebuilt is None else training.rebuilt
            self._descend(part, training.adam, gradient)
        training.batch, training.forward, training.rebuilt = self.next_batch, None, None
        training.view, training.places = view, next_places
        if not len(next_places):
            return {"outputs": shaped(np.zeros((0, network.spec.outputs)), wire or table.wire)}
        training.forward = network.forward(part.theta, network.rows(chosen, next_counts, hiding))
        part.theta = network.after(part.theta)
        return {"outputs": shaped(training.forward.outputs, wire or table.wire)}

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        """With the gradient by the parameters; none before the first batch."""
        if self.anew:
            part.memory = None
        if sums is not NOTHING:
            self._descend(part, in_training(part).adam, sums)
        return {}

    def _descend(self, part: TableParameters, adam: Adam, gradient: Array) -> None:
        part.theta = adam.stepped(part.theta, gradient, self.lr, self.l2, part.model.trained)

    def shown(self, part: TableParameters) -> dict[str, Any]:
        """Embeddings with the new parameters."""
        return {"theta": part.theta}


@dataclass(frozen=True)
class EmbeddingGradients(BatchGradients):
    """Gradients by the embeddings of one batch's base rows, by table."""

    exchange: Exchange

    def sent(self, lou: LearningOverUnion, alias: str, shard: ShardRows) -> dict[str, Any]:
        """Those of the rows that a shard holds, with what it hides and normalises by."""
        given = self.exchange.model.on_wire(self.values[alias][self.done.mine(alias, shard.slice)])
        places = {"places": self.done.within(alias, shard.slice)}
        return {**self.exchange.shown(self.done, alias, shard), **places, **given}

    def held(self, lou: LearningOverUnion, alias: str, shard: ShardRows) -> dict[str, Any]:
        """Those of all rows of the batch, which the party remembers, and the rows of the next."""
        model = self.exchange.model
        found = {"rows": np.zeros(0, lou.wire)} if self.is_empty else model.on_wire(self.values[alias])
        found["next_places"] = self.following.places[alias]
        if not self.shows:
            return found
        if isinstance(model.spec_of(alias), TabNet):
            found["next_counts"] = self.following.counts(alias)
        return found | self.exchange.hiding(self.following, alias, shard)

    def shown(self, alias: str, shard: ShardRows) -> dict[str, Any]:
        """The rows of the next batch, with what a shard hides and normalises by."""
        return {**self.exchange.shown(self.following, alias, shard), **super().shown(alias, shard)}


class Exchange:
    """Takes the steps of batches at the tables in ``aliases``.

    With ``hide`` above 0, tables hide such a share of their cells from their networks, drawn from the seed. With
    ``anew``, their optimisers begin anew.
    """

    def __init__(
        self, model: SplitModel, aliases: list[str] | None = None, hide: float = 0.0, seed: int = 0, anew: bool = False
    ):
        self.model, self.hide, self.seed, self._anew = model, hide, seed % 2**53, anew
        self.tables = [alias for alias in model.tables if aliases is None or alias in aliases]  # those that learn
        self.parts = {alias: part for alias, part in model.shared.items() if alias in self.tables}
        self._normed = [alias for alias in self.parts if isinstance(model.spec_of(alias), TabNet)]
        widths = {alias: (model.spec_of(alias).outputs,) for alias in self.tables}
        self.last = model.lou.last_values(widths)
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
        rows = EmbeddingGradients(gradients, done or nothing, following or nothing, self)
        update = AdamStep(lr, model.l2, rows.done.number, rows.following.number, self._anew)
        self._anew = False
        model.over = self
        found = model.step(dict.fromkeys(self.tables, update), rows, self._as_before(rows.following))
        if following is None:
            return {}
        self.missed = {alias: np.ones(len(following.places[alias]), bool) for alias in found.still}
        for alias, gone in found.missed.items():
            if any(gone):
                shards = zip(model.lou.client.shards(alias), gone, strict=True)
                sizes = [np.full(following.mine(alias, shard.slice).sum(), missed) for shard, missed in shards]
                self.missed[alias] = np.concatenate(sizes)
        self.last.keep(following, found.predictions)
        return found.predictions

    @property
    def lou(self) -> LearningOverUnion:
        """How shards are asked."""
        return self.model.lou

    def step(self, updates: Updates, rows: RowGradients | None) -> dict[str, Facts]:
        """Add up the gradients of shards and take the steps of their tables; the sums of batch norm travel along."""
        assert isinstance(rows, EmbeddingGradients), "`__call__` makes them"
        normed, sums = self._ask_moments(rows.following) if rows.shows else None, dict[str, tuple[Array, Array]]()
        if self.parts and not rows.is_empty:
            replies = self.lou.ask(
                "model.gradient", self.parts, by_alias=self.model.sent_shared(),
                by_shard=lambda alias, shard: rows.sent(self.lou, alias, shard),
                instead=lambda alias, _: {"sums": np.zeros_like(self.parts[alias].theta)},
            ).read()  # fmt: skip
            for alias in self.parts:
                sums[alias] = self.lou.add(replies[alias], "sums") + self.rebuilt.pop(alias, 0.0), NOTHING
        facts = taken(updates, self.parts, sums)
        if normed is not None:
            self._note_moments(rows.following, normed)
        return facts

    def _as_before(self, batch: Batch) -> Instead:
        """The substitute for embeddings of a lost shard in a batch."""
        return lambda alias, shard: {"outputs": self.last.at(batch, alias, shard)}

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
