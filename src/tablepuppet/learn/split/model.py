"""The coordinator's side of a model with a bottom network for each table and one top network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.split.bottoms import NORM_MOMENTUM
from tablepuppet.learn.split.ops import wide
from tablepuppet.learn.split.tabnet_table import TabNetTable
from tablepuppet.learn.split.top import Top
from tablepuppet.learn.tables.holders import Holders, TableOutputs
from tablepuppet.learn.tables.model import Bottom
from tablepuppet.learn.tables.narrow import Narrow, narrowed
from tablepuppet.learn.tables.saved import Saved
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.lou import Instead
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.store.parts import Stored
from tablepuppet.wire.engine import Engine

Embeddings = Mapping[str, Floats]
"""By alias: (base rows, width)."""


class TableEmbeddings(TableOutputs):
    """Tables whose outputs are embeddings, from which a top network computes scores."""

    held_op, sent_op = "split.embed", "split.apply"
    specs: Mapping[str, Bottom]
    top: Top
    unit: float
    narrow: Narrow | None = None  # the precision of embeddings and gradients by them, if not that of the relation
    absent: frozenset[str] = frozenset()  # tables that took no part in training: their embeddings are zeros

    def spec_of(self, alias: str) -> Bottom:
        """The bottom network of a table."""
        return self.specs[alias]

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        return self.top.outputs

    @property
    def precision(self) -> dict[str, Any]:
        """The argument that asks for embeddings in another precision."""
        return {} if self.narrow is None else {"wire": self.narrow}

    def embeddings(
        self, client: Client, aliases: Iterable[str] | None = None, instead: Instead | None = None
    ) -> dict[str, Floats]:
        """The embeddings of all base rows of a relation, by alias; of all tables, or some."""
        return self.ask_outputs(client, self.tables if aliases is None else aliases, instead)()

    def ask_outputs(
        self, client: Client, aliases: Iterable[str], instead: Instead | None = None
    ) -> Callable[[], dict[str, Floats]]:
        """Ask for the embeddings of tables that are not absent."""
        listed = list(aliases)
        read = super().ask_outputs(client, [alias for alias in listed if alias not in self.absent], instead)
        return lambda: read() | {alias: self.zeros(client, alias) for alias in listed if alias in self.absent}

    def zeros(self, client: Client, alias: str) -> Floats:
        """Zero embeddings of all base rows of a table."""
        return np.zeros((client.tables[alias].rows, self.spec_of(alias).outputs), self.wire)

    def joined(self, replies: Replies, aliases: Iterable[str]) -> dict[str, Floats]:
        """The embeddings in replies, (rows, width) by table."""
        return {alias: embeddings_in(replies[alias]) for alias in aliases}


class SplitModel(TableEmbeddings, Holders):
    """Bottom networks by alias, and the top network, ``top``."""

    def __init__(
        self, client: Client, encoding: Encoding, wire: str, specs: Mapping[str, Bottom], l2: float, unit: float = 1.0
    ):
        super().__init__(client, encoding, wire, unit)
        self.specs, self.l2 = specs, l2

    @property
    def unit_of_outputs(self) -> float:
        """Embeddings have none: the top network's scores are multiplied by the unit."""
        return 1.0

    def note_moments(self, alias: str, joined: int, sums: Array) -> None:
        """Move the running mean and variance of a table's batch norm, as its module does where one party has it."""
        part = self._shared[alias]
        assert isinstance(part.model, TabNetTable), "no other network asks for them"
        flat = part.model.flat
        named = flat.named(part.theta)
        mean = sums[0] / joined
        variance = np.maximum(sums[1] / joined - mean**2, 0.0) * joined / (joined - 1)
        moved = {"norm.running_mean": mean, "norm.running_var": variance}
        named |= {name: named[name] + NORM_MOMENTUM * (value - named[name]) for name, value in moved.items()}
        part.theta = flat.flat(named)

    def on_wire(self, gradients: Floats) -> dict[str, Any]:
        """The arguments with gradients by embeddings as they travel: in float16, in units of the largest."""
        found = gradients[:, 0] if gradients.ndim == 2 and gradients.shape[1] == 1 else gradients
        if self.narrow != "float16":
            return {"rows": narrowed(found, self.narrow or self.lou.wire)}
        unit = min(max(float(np.abs(found).max(initial=0.0)), 1e-60), 1e60)
        return {"rows": narrowed(found.astype(np.float64) / unit, self.narrow), "unit": unit}

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the scores of a relation's rows, from their embeddings."""
        found = self.embeddings(client, self.tables, self.instead(client) if learning else None)
        top_scores(self.top, found, rows, self.unit)

    def keep(self) -> None:
        """Store a copy of all parameters."""
        super().keep()
        self.top.keep()

    def restore(self) -> None:
        """Return to the stored copy of all parameters."""
        super().restore()
        self.top.restore()


class SavedSplitModel(TableEmbeddings, Saved):
    """A loaded model: bottom networks that the coordinator holds or parties have stored, and the top network."""

    def __init__(
        self, specs: Mapping[str, Bottom], top: Top, encoding: Encoding, stored: Stored, engine: Engine, wire: str,
        unit: float,
    ):  # fmt: skip
        super().__init__(encoding, stored, engine, wire)
        self.specs, self.top, self.unit = specs, top, unit

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the scores of a relation's rows, from their embeddings."""
        top_scores(self.top, self.embeddings(client), rows, self.unit)


def embeddings_in(replies: Sequence[Mapping[str, Any]]) -> Floats:
    """The embeddings of a table from those of its shards, (rows, width)."""
    parts = [wide(reply["outputs"]) for reply in replies]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


CHUNK = 1 << 13  # joined rows at a time: their embeddings and the layers over them stay in the cache


def top_scores(top: Top, embeddings: Embeddings, rows: JoinedRows, unit: float) -> None:
    """Write the scores of all joined rows into a column."""
    rows.reserve(SCORES)
    rows.one_by_one(CHUNK, _top_scores, top, embeddings, unit)


def _top_scores(block: Block, top: Top, embeddings: Embeddings, unit: float) -> None:
    found = top.scores({alias: block.taken(alias, values) for alias, values in embeddings.items()})
    block.stored[SCORES][:] = unit * (found if found.ndim == 1 else found.T)
