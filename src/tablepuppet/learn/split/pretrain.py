"""Pretraining of TabVFL, both halves (papers: TabVFL, Alg. 1): tables reconstruct cells that they hide.

Each batch takes two trips. In the first, gradients of the last batch are sent to the tables, which return embeddings of
this batch, with some cells hidden (exchange.py). In the second, each table gets its part of the decoder's output, the
mean over the joined rows of each base row, and returns its reconstruction error and the gradient by what it got. Tables
with several shards need one more trip, as in exchange.py.

If a table's party is lost, its last embeddings are used, with the mask of their batch, or zeros; nothing of the table
is reconstructed in that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats, Places
from tablepuppet.learn.solve.batches import run_batches
from tablepuppet.learn.split.exchange import WHOLE, Exchange
from tablepuppet.learn.split.ops import BatchNumber, Training, check_counts
from tablepuppet.learn.split.tabnet_table import TabNet, TabNetTable
from tablepuppet.learn.split.top import TorchTop
from tablepuppet.learn.tables.model import Hiding
from tablepuppet.learn.tables.ops import sent_model, sums_of
from tablepuppet.learn.tables.parameters import parameters_of
from tablepuppet.learn.threads import need_torch, one_thread
from tablepuppet.mapping.batches import Batch
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Pending
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import Positive
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import SQUARE, THETA, Numbers, OfRows
from tablepuppet.prep.encode.encode import encoded

add_work(("TabVFLRegressor", "TabVFLClassifier"), "split", "tabvfl")

ASKED = "TabVFL: pretraining"
GRADIENTS = Numbers(("decoded",))  # as long and wide as what was sent


# The party's half


@op(
    "tabvfl.error",
    asked=ASKED,
    releases=Release.EMBEDDINGS | Release.STATISTICS,
    returns={"outputs": OfRows(GRADIENTS, Release.EMBEDDINGS), "loss": OfRows(SQUARE, Release.EMBEDDINGS)},
)
def error(table: LocalTable, view: str, encoding: str, model: str, batch: BatchNumber, decoded: Array) -> Values:
    """The error with which the rows of the batch under way are reconstructed, and its gradient by ``decoded``.

    Zeros if it is not the batch that this party has computed embeddings for.
    """
    part = parameters_of(table, model, TabNet)
    assert isinstance(part.model, TabNetTable), "a spec of this family is no other"
    training = part.remembered(Training)
    if batch < 0 or training.batch != batch or training.forward is None:
        return {"outputs": np.zeros(decoded.shape, table.wire), "loss": 0.0}
    table.count_embeddings(training.view, _width(decoded), training.places)
    loss, gradients, training.rebuilt = part.model.error(part.theta, training.forward.seen, decoded)
    return {"outputs": gradients.astype(table.wire, copy=False), "loss": loss}


@op(
    "tabvfl.shard_error",
    asked=f"{ASKED} of tables with several shards",
    releases=Release.EMBEDDINGS | Release.STATISTICS | Release.GRADIENT_SUMS,
    returns={
        "outputs": OfRows(GRADIENTS, Release.EMBEDDINGS),
        "loss": OfRows(SQUARE, Release.EMBEDDINGS),
        "gradient": OfRows(THETA, Release.EMBEDDINGS),
    },
)
def shard_error(
    table: LocalTable, view: str, encoding: str, spec: TabNet, theta: Array, places: Places, counts: Places,
    decoded: Array, sums: Array, joined: Positive, hiding: Hiding,
) -> Values:  # fmt: skip
    """`error` for a shard, with parameters that the coordinator sends, and the gradient by these.

    ``sums`` are those of whole columns over the ``joined`` rows of the batch.
    """
    data = encoded(table, view, encoding)
    network = spec.over(data.width, table.snapshot.scan.alias)
    sent_model(table, spec, data.width, theta)
    check_counts(counts, places)
    chosen, known = data.rows(places), sums_of(sums, joined, data.width)
    table.count_embeddings(view, _width(decoded), places)
    loss, gradients, gradient = network.error(theta, network.rows(chosen, counts, hiding), decoded, known)
    return {"outputs": gradients.astype(table.wire, copy=False), "loss": loss, "gradient": gradient}


def _width(decoded: Array) -> int:
    return decoded.shape[1] if decoded.ndim == 2 else 1


# The coordinator's half


class Pretraining:
    """Trains encoder and decoder, in ``top``, and the tables' networks; ``parts``: who gets which decoder's outputs."""

    def __init__(self, exchange: Exchange, top: TorchTop, parts: Mapping[str, slice]):
        self.exchange, self.top, self.parts = exchange, top, parts
        self.model = exchange.model
        self._masks: dict[str, NDArray[np.bool_]] = {}  # by table: the last mask of every base row
        self._error = 0.0  # of all batches of the epoch

    def run(self, rates: Sequence[float], size: int, seed: int, report: Callable[[int, float], bool]) -> None:
        """Epochs of mini-batches, one for each rate, until ``report(epoch, error)`` says to stop."""
        rows = self.model.lou.client.rows

        def ends(epoch: int) -> bool:
            error, self._error = self._error / len(rows), 0.0
            return report(epoch, error)

        with one_thread(need_torch()):
            run_batches(self.exchange, self, rows, rates, size, seed, ends)

    def learn(self, batch: Batch, outputs: Mapping[str, Floats], lr: float) -> dict[str, Floats]:
        """The step of encoder and decoder for a batch; gradients by embeddings of distinct base rows."""
        torch = need_torch()
        top = self.top
        leaves = {alias: top.leaf(values) for alias, values in outputs.items()}
        index = {alias: torch.from_numpy(batch.base[alias]) for alias in leaves}
        gathered = {alias: leaf.index_select(0, index[alias]) for alias, leaf in leaves.items()}
        prior = {
            alias: torch.from_numpy(1.0 - mask[batch.base[alias]]).to(top.flat.dtype)
            for alias, mask in self._drawn(batch).items()
        }
        decoded = top.run(gathered, prior)
        means = {alias: self._mean(batch, alias, index[alias], decoded) for alias in self.parts}
        value, gradients = self._errors(batch, {alias: each.detach().numpy() for alias, each in means.items()})
        torch.autograd.backward(
            list(means.values()), [torch.from_numpy(gradients[alias]).to(top.flat.dtype) for alias in means]
        )
        self._error += value * len(batch.rows)
        top.step(lr, self.model.l2)
        return {alias: leaf.grad.numpy() for alias, leaf in leaves.items()}

    def _mean(self, batch: Batch, alias: str, index: Any, decoded: Any) -> Any:
        """A table's part of the decoder's output: for each base row, the mean over its joined rows."""
        from tablepuppet.learn.split.tabnet import mean_at_base_rows

        counts = need_torch().from_numpy(batch.counts(alias))
        return mean_at_base_rows(decoded[:, self.parts[alias]], index, counts)

    def _drawn(self, batch: Batch) -> dict[str, NDArray[np.bool_]]:
        """The mask of every base row by table; of rows whose embeddings are used again, the one they came with."""
        exchange, drawn = self.exchange, {}
        hiding = Hiding(exchange.hide, exchange.seed, batch.number)
        for alias in self.parts:
            spec, places = self.model.spec_of(alias), batch.places[alias]
            assert isinstance(spec, TabNet), "no other network reconstructs"
            mask = spec.mask(hiding, alias, len(places), self.model.width(alias)).astype(bool)
            if self.model.lou.client.outbox.when_lost.stand_in == "cache":
                known = self._masks.setdefault(alias, np.zeros((self.model.rows(alias), mask.shape[1]), bool))
                if alias in exchange.missed:
                    missed = exchange.missed[alias]
                    mask[missed] = known[places[missed]]
                known[places] = mask
            drawn[alias] = mask
        return drawn

    def _errors(self, batch: Batch, means: Mapping[str, Floats]) -> tuple[float, dict[str, Floats]]:
        """(The sum of errors, their gradients by the means) over all tables."""
        model, exchange, wire = self.model, self.exchange, self.model.lou.wire
        sent = {alias: each.astype(wire, copy=False) for alias, each in means.items()}
        asked = [alias for alias in self.parts if alias not in exchange.parts and alias not in exchange.missed]
        alone = model.lou.ask(
            "tabvfl.error", asked, by_alias={alias: {"decoded": sent[alias]} for alias in asked}, batch=batch.number,
            instead=lambda alias, _: {"outputs": np.zeros_like(sent[alias]), "loss": 0.0}, **model.at_party,
        )  # fmt: skip
        together = self._ask_together(batch, sent)
        replies = alone.read() | {a: each for a, each in together.read().items() if a in exchange.parts}
        value, gradients = 0.0, {alias: np.zeros(each.shape, wire) for alias, each in means.items()}
        for alias in (alias for alias in self.parts if replies[alias]):
            gradients[alias] = model.lou.concatenate(replies[alias], "outputs")
            value += sum(reply["loss"] for reply in replies[alias])
            if alias in exchange.parts:
                exchange.rebuilt[alias] = model.lou.add(replies[alias], "gradient")
        return value, gradients

    def _ask_together(self, batch: Batch, sent: Mapping[str, Floats]) -> Pending:
        """Ask the shards of tables that have several."""
        model, exchange = self.model, self.exchange

        def arguments(alias: str, shard: ShardRows) -> dict[str, Any]:
            mine = batch.mine(alias, shard.slice)
            found = exchange.shown(batch, alias, shard, WHOLE) | {"decoded": sent[alias][mine]}
            return found | {"places": batch.within(alias, shard.slice), "counts": batch.counts(alias)[mine]}

        def nothing(alias: str, shard: ShardRows) -> dict[str, Any]:
            decoded = sent[alias][batch.mine(alias, shard.slice)]
            theta = model.shared[alias].theta
            return {"outputs": np.zeros_like(decoded), "loss": 0.0, "gradient": np.zeros_like(theta)}

        return model.lou.ask(
            "tabvfl.shard_error", exchange.parts, by_alias=model.sent_shared(), by_shard=arguments, instead=nothing
        )
