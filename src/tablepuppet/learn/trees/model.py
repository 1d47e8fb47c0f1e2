"""A model of trees: the coordinator has structure and leaves, the tables' owners have splits; also one that was loaded.

Predictions are one trip: each party answers with a bit for each of its rows and splits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.tables.holders import Holders, TableOutputs
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.saved import Saved
from tablepuppet.learn.trees.cells import binned_over_shards, padded, read_cells
from tablepuppet.learn.trees.splits import HEAD, Binned, Splits, SplitTable
from tablepuppet.learn.trees.tree import Bits, Forest, Tree, add_scores
from tablepuppet.mapping.joined_rows import SCORES, Block, JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.store.parts import Stored
from tablepuppet.wire.engine import Engine

FIELDS = ("tables", "columns", "splits", "left", "right", "values", "counts", "gains")


class TreeOutputs(TableOutputs):
    """Bits of base rows, and the scores that follow; whoever holds the splits."""

    held_op, sent_op = "trees.predict", "trees.apply"
    forest: list[list[Tree]]  # by round, then by output
    aliases: Sequence[str]  # that trees count tables by
    words: Mapping[str, int]  # numbers that categories of a split take, by table
    is_mean: bool = False  # of a forest: scores are means of trees, not sums
    _outputs: int

    @property
    def outputs(self) -> int:
        """Scores per joined row."""
        return self._outputs

    @property
    def final(self) -> list[list[Tree]]:
        """The trees, with leaves whose sum is the score."""
        if not self.is_mean:
            return self.forest
        return [[replace(tree, values=tree.values / len(self.forest)) for tree in trees] for trees in self.forest]

    def splits_of(self, alias: str, rounds: int | None = None) -> int:
        """How many splits a table has in the first rounds; None: in all."""
        place, trees = self.aliases.index(alias), [tree for trees in self.forest[:rounds] for tree in trees]
        return sum(int(np.count_nonzero(tree.tables == place)) for tree in trees)

    def spec_of(self, alias: str) -> Splits:
        """What a table has of the trees that are asked for."""
        return Splits(self.splits_of(alias) - self._first.get(alias, 0), self.words[alias])

    _first: Mapping[str, int] = {}

    def ask_held(self, lou: LearningOverUnion, aliases: Iterable[str], instead: Instead | None) -> Pending:
        """Ask for bits by splits that parties hold."""
        firsts = {alias: {"first": self._first.get(alias, 0)} for alias in aliases}
        return lou.ask(self.held_op, firsts, by_alias=firsts, instead=instead, **self.at_party)

    def sent(self, thetas: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
        """By table, the splits that are sent."""
        found = {}
        for alias, theta in thetas.items():
            part = theta[self._first.get(alias, 0) : self.splits_of(alias)]
            spec = Splits(len(part), self.words[alias])
            found[alias] = {"encoding": self.encoding.id, "spec": spec, "theta": part}
        return found

    def bits(
        self, client: Client, instead: Instead | None = None, rounds: int = 0
    ) -> Callable[[], tuple[dict[str, NDArray[np.uint8]], dict[str, int]]]:
        """Ask for the bits of all rows by the splits of all rounds but the first ones; and where these begin."""
        firsts = {alias: self.splits_of(alias, rounds) if rounds else 0 for alias in self.aliases}
        self._first = firsts
        wanted = [alias for alias in self.tables if self.splits_of(alias) > firsts[alias]]
        try:
            asked = self.ask_outputs(client, wanted, instead)
        finally:
            self._first = {}

        def read() -> tuple[dict[str, NDArray[np.uint8]], dict[str, int]]:
            found = asked()
            return {alias: _square(found[alias]) for alias in wanted if alias in found}, firsts

        return read

    @abstractmethod
    def parameters(self) -> dict[str, Array]:
        """The splits of all tables, as `stored` writes them."""

    def all_bits(self, client: Client) -> Bits:
        """The bits of all rows of a relation: a trip."""
        read_cells(client, self.encoding)
        return self.bits(client)()[0]

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the scores of a relation's rows."""
        bits, firsts = self.all_bits(client), dict.fromkeys(self.aliases, 0)
        rows.reserve(SCORES)
        rows.each(_to_zero)
        add_scores(rows, self.final, self.aliases, bits, firsts)


@dataclass(frozen=True)
class Done:
    """What a fit that goes on needs of the one before."""

    constant: Array | None = None
    history: tuple[dict[str, Any], ...] = ()


class TreeModel(Holders, TreeOutputs):
    """Trees that are being learned."""

    def __init__(
        self, client: Client, rows: JoinedRows, encoding: Encoding, wire: str, max_bins: int, *, is_mean: bool = False
    ):
        super().__init__(client, encoding, wire)
        self.is_mean = is_mean
        self._outputs, self.forest, self.aliases = rows.outputs, [], self.tables
        read_cells(client, encoding, learned=True)
        self.lou.ask("trees.bin", self.alone, encoding=encoding.id, max_bins=max_bins)
        self.binned: Mapping[str, Binned] = binned_over_shards(client, encoding, self.together, max_bins)
        sizes = {alias: [min(each.size, max_bins) for each in encoding.categories[alias]] for alias in self.tables}
        blank = {alias: Binned((), tuple(listed), max_bins) for alias, listed in sizes.items()}
        self.words = {alias: each.words for alias, each in blank.items()}
        cuts = {alias: {"cuts": padded(each.cuts)} if each.cuts else {} for alias, each in self.binned.items()}
        self.lou.ask("trees.bin", self.together, by_alias=cuts, encoding=encoding.id, max_bins=max_bins)
        self.lou.ask("trees.start", self.alone, **self.at_party)
        for alias in self.together:
            spec = Splits(0, self.words[alias])
            empty = np.zeros((0, HEAD + self.words[alias]))
            self._shared[alias] = TableParameters(SplitTable(spec), empty)
        self._kept = 0
        self.done = Done()
        self._validated: tuple[JoinedRows, int] | None = None

    def table_model(self, alias: str) -> SplitTable:
        """Splits have no unit."""
        return SplitTable(self.spec_of(alias))

    def add(self, trees: list[Tree], splits: Mapping[str, Array]) -> None:
        """Add the trees of a round, and the splits of tables with several shards."""
        for alias, theta in splits.items():
            part = self._shared[alias]
            part.theta = np.concatenate([part.theta[: self.splits_of(alias)], theta])
            part.model = SplitTable(Splits(len(part.theta), self.words[alias]))
        self.forest.append(trees)

    def bits_of(self, thetas: Mapping[str, Array]) -> dict[str, NDArray[np.uint8]]:
        """The bits of the rows to learn from, by splits of tables with several shards: a trip."""
        given = {
            alias: {"encoding": self.encoding.id, "spec": Splits(len(theta), self.words[alias]), "theta": theta}
            for alias, theta in thetas.items()
        }
        replies = self.lou.ask(self.sent_op, given, by_alias=given).read()
        return {alias: _square(self.lou.concatenate(replies[alias], "outputs")) for alias in given}

    def score(self, client: Client, rows: JoinedRows, *, learning: bool = False) -> None:
        """Write the scores of a relation's rows; those of earlier rounds are remembered while it learns."""
        if not learning:
            super().score(client, rows)
            return
        done = 0 if self._validated is None or self._validated[0] is not rows else self._validated[1]
        if not done:
            read_cells(client, self.encoding)
            rows.reserve(BOOSTED)
            rows.each(_start)
        bits, firsts = self.bits(client, self.instead(client), done)()
        rows.reserve(SCORES)
        rows.each(_to_zero)
        add_scores(rows, self.forest[done:], self.aliases, bits, firsts)
        rows.each(_remember)
        if self.is_mean:
            rows.each(_divide, len(self.forest))
        self._validated = rows, len(self.forest)

    def nothing(self, alias: str, shard: ShardRows) -> Any:
        """All rows of a lost shard go right."""
        spec, rows = self.spec_of(alias), len(shard.row_ids)
        return np.zeros(rows if spec.outputs == 1 else (rows, spec.outputs), np.uint8)

    def instead(self, client: Client) -> Instead:
        """The substitute for bits of a lost shard; earlier ones would be of other splits."""
        zeros = {
            (alias, shard.party): self.nothing(alias, shard) for alias in self.tables for shard in client.shards(alias)
        }
        return lambda alias, shard: {"outputs": zeros[alias, shard.party]}

    def keep(self) -> None:
        """Remember how many rounds were the best."""
        super().keep()
        self._kept = len(self.forest)

    def restore(self) -> None:
        """Return to the rounds that were kept."""
        super().restore()
        self.forest = self.forest[: self._kept]

    def _thetas(self, aliases: Iterable[str]) -> dict[str, Array]:
        client, listed = self.lou.client, list(aliases)
        client.models |= {(self.name, alias): (self.encoding.id, self.spec_of(alias)) for alias in listed}
        return super()._thetas(listed)


class SavedTrees(Saved, TreeOutputs):
    """Trees that were loaded."""

    def __init__(
        self, forest: list[list[Tree]], aliases: Sequence[str], words: Mapping[str, int], outputs: int,
        encoding: Encoding, stored: Stored, engine: Engine, wire: str, *, is_mean: bool,
    ):  # fmt: skip
        Saved.__init__(self, encoding, stored, engine, wire)
        self.is_mean = is_mean
        self.forest, self.aliases, self.words, self._outputs = forest, aliases, words, outputs


def packed(forest: Forest) -> dict[str, NDArray[Any]]:
    """Trees as arrays that are saved."""
    trees = [tree for listed in forest for tree in listed]
    found = {f"trees/{name}": np.concatenate([getattr(tree, name) for tree in trees]) for name in FIELDS if trees}
    return found | {"trees/sizes": np.array([len(tree.tables) for tree in trees], np.int64)}


def unpacked(arrays: Mapping[str, NDArray[Any]], outputs: int) -> list[list[Tree]]:
    """The trees that `packed` has written."""
    ends = np.cumsum(arrays["trees/sizes"])[:-1]
    if not len(arrays["trees/sizes"]):
        return []
    parts = zip(*(np.split(arrays[f"trees/{name}"], ends) for name in FIELDS), strict=True)
    trees = [Tree(*each) for each in parts]
    return [trees[start : start + outputs] for start in range(0, len(trees), outputs)]


def _square(bits: Floats | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bits of rows, (rows, bytes)."""
    found = np.asarray(bits, np.uint8)
    return found[:, None] if found.ndim == 1 else found


BOOSTED = "scores of earlier rounds"


def _to_zero(block: Block) -> None:
    block.stored[SCORES][:] = 0.0


def _start(block: Block) -> None:
    block.stored[BOOSTED][:] = 0.0


def _remember(block: Block) -> None:
    block.stored[BOOSTED][:] += block.stored[SCORES]
    block.stored[SCORES][:] = block.stored[BOOSTED]


def _divide(block: Block, trees: int) -> None:
    block.stored[SCORES][:] /= trees
