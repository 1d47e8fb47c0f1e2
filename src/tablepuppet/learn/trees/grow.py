"""Growing trees, level by level: the coordinator's half; the parties' half is party.py.

In each round there is one tree for each score; these grow together, so they share trips. Trees are grown best first, up
to ``max_leaves`` leaves, but all nodes of a level that may still be among the best are asked for at once. So a tree is
the same as if nodes were split one after another, and takes one trip a level instead of one a split. A level in which
the best split is one of a table with several shards takes a second trip, for the bits of its rows.

What a party is sent are sums over joined rows of gradient and Hessian, by base row and node. Of two siblings only the
smaller one is sent. Which node a joined row is in is a column of `JoinedRows`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Codes, Words
from tablepuppet.learn.trees.party import without
from tablepuppet.learn.trees.splits import (
    COUNT,
    GRADIENT,
    HESSIAN,
    LEAST_HESSIAN,
    TINY,
    Binned,
    Limits,
    Split,
    SplitRule,
    best_split,
    stored,
)
from tablepuppet.learn.trees.tree import Tree
from tablepuppet.mapping.joined_rows import Block, GroupedSums, JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Pending
from tablepuppet.operators.lou import LearningOverUnion

SLOPES, CURVATURES, NODES, GROUPS, SAMPLED = "tree gradient", "tree Hessian", "tree node", "tree group", "tree sample"
SLOTS = 63  # nodes whose sides fit one word
Ask = Callable[[Mapping[str, Array]], Mapping[str, NDArray[np.uint8]]]
"""Bits of base rows, (rows, bytes), for splits that the coordinator holds, by table."""


@dataclass(frozen=True)
class Growth:
    """How far trees grow."""

    rule: SplitRule
    max_leaves: int | None
    max_depth: int | None
    learning_rate: float
    is_constant: bool = False  # Hessians are all 1
    draw: Callable[[int, int], Mapping[str, NDArray[np.bool_]]] | None = None  # columns of a node, by table
    inside: Callable[[frozenset[tuple[str, int]]], Mapping[str, NDArray[np.bool_]]] | None = None  # below these columns
    signs: Mapping[str, NDArray[np.int8]] | None = None  # monotone constraints, by table and column


@dataclass
class Node:
    """A node of a tree under way."""

    number: int
    output: int
    depth: int
    sums: Array  # gradient, Hessian, joined rows
    path: frozenset[tuple[str, int]] = frozenset()  # columns above it
    low: float = -np.inf
    high: float = np.inf
    gain: float = 0.0
    alias: str = ""
    column: int = -1
    split: Split | None = None  # of a table with several shards
    left_rows: tuple[NDArray[np.integer] | None, NDArray[np.uint8]] | None = None  # of one with one: rows and bits
    children: tuple[Node, Node] | None = None


@dataclass
class Level:
    """What is asked at once: nodes that are summed, each with its parent and the sibling that is not."""

    built: list[Node]
    parents: list[Node | None]
    siblings: list[Node | None]

    @property
    def answered(self) -> list[Node]:
        """Nodes in the order of answers."""
        return [each for pair in zip(self.built, self.siblings, strict=True) for each in pair if each is not None]


@dataclass
class Grower:
    """Grows trees over joined rows whose gradient and Hessian are columns."""

    lou: LearningOverUnion
    rows: JoinedRows
    name: str
    encoding: str
    aliases: Sequence[str]  # of all tables that may split
    together: Mapping[str, Binned]  # tables with several shards
    widths: Mapping[str, int]  # columns by table
    growth: Growth
    ask_bits: Ask
    sampled: bool = False
    may_ask: Callable[[], bool] = lambda: True  # whether parties allow one more level
    trips: int = 0
    _nodes: list[Node] = field(default_factory=list)
    _sums: dict[str, dict[int, Array]] = field(default_factory=dict)
    _rows: dict[str, dict[int, NDArray[np.integer] | None]] = field(default_factory=dict)

    def grow(self, outputs: int, seed: int) -> tuple[list[list[Node]], list[Codes]]:
        """Grow a tree for each output. The nodes of each that are split, best first; and the leaf of every node."""
        self._nodes, self._seed = [], seed
        self._sums = {alias: {} for alias in self.together}
        self._rows = {alias: {} for alias in self.aliases}
        self.rows.reserve(NODES, outputs, dtype=np.int32)
        self.rows.each(_to_roots)
        totals = self._totals(0, outputs)
        roots = [self._new(output, 0, totals[output]) for output in range(outputs)]
        level: Level | None = Level(roots, [None] * outputs, [None] * outputs)
        while level is not None and level.built and (level.built == roots or self.may_ask()):
            self._evaluate(level)
            level = self._expanded([self._best_first(root) for root in roots])
        chosen = [self._best_first(root) for root in roots]
        return chosen, [self._leaves(root, inner) for root, inner in zip(roots, chosen, strict=True)]

    # Choosing

    def _new(self, output: int, depth: int, sums: Array) -> Node:
        node = Node(len(self._nodes), output, depth, sums)
        self._nodes.append(node)
        return node

    def _may_split(self, node: Node) -> bool:
        deep = self.growth.max_depth is not None and node.depth >= self.growth.max_depth
        least = max(self.growth.rule.min_leaf, 1)
        return not deep and node.sums[COUNT] >= 2 * least and node.sums[HESSIAN] >= 2 * LEAST_HESSIAN

    def _best_first(self, root: Node) -> list[Node]:
        """The nodes that are split if always that with the largest gain is: nodes not asked for yet gain nothing."""
        most = self.growth.max_leaves
        open_, found = [(-root.gain, root.number, root)], list[Node]()
        while open_ and (most is None or len(found) + 1 < most):
            gain, _, node = heapq.heappop(open_)
            if gain >= 0:
                break
            found.append(node)
            for child in node.children or ():
                heapq.heappush(open_, (-child.gain, child.number, child))
        return found

    def _leaves(self, root: Node, inner: Sequence[Node]) -> Codes:
        """For each node, the number of the leaf of the final tree that its rows are in; -1 for nodes of other trees."""
        split = {node.number for node in inner}
        found = np.full(len(self._nodes), -1, np.int32)

        def put(node: Node, leaf: int) -> None:
            stack = [(node, leaf)]
            while stack:
                each, above = stack.pop()
                own = above if above >= 0 or each.number in split else each.number
                found[each.number] = own
                stack += [(child, own) for child in each.children or ()]

        put(root, -1)
        return found

    # Asking

    def _evaluate(self, level: Level) -> None:
        """Find the best split of each node: one trip."""
        self.trips += 1
        answered = level.answered
        limits = {node.number: self._limits(node) for node in answered}
        sums = self._grouped(level)
        asked = {
            alias: self._ask_split(alias, level, sums[alias], limits)
            if alias not in self.together
            else self._ask_sums(alias, level, sums[alias])
            for alias in self.aliases
        }
        for alias, pending in asked.items():
            if alias in self.together:
                self._read_sums(alias, level, pending, limits)
            else:
                self._read_splits(alias, answered, pending)

    def _grouped(self, level: Level) -> dict[str, GroupedSums]:
        """By table, sums by base row and node, of all nodes that are built."""
        found: dict[str, list[GroupedSums]] = {alias: [] for alias in self.aliases}
        for output in dict.fromkeys(node.output for node in level.built):
            own = [node for node in level.built if node.output == output]
            groups = np.full(len(self._nodes), -1, np.int32)
            groups[[node.number for node in own]] = np.arange(len(own))
            self.rows.reserve(GROUPS, 1, dtype=np.int32)
            self.rows.each(_to_groups, output, groups)
            columns: list[Any] = [(SLOPES, output)]
            columns += [] if self.growth.is_constant and not self.sampled else [(CURVATURES, output)]
            columns += [(SAMPLED, 0)] if self.sampled else []
            grouped = self.rows.grouped((GROUPS, 0), len(own), columns)
            for alias, listed in found.items():
                listed.append(self.rows.sums_by(alias, grouped))
        return {alias: _together(listed) for alias, listed in found.items()}

    def _sent(self, alias: str, level: Level, sums: GroupedSums, shard: ShardRows) -> dict[str, Any]:
        """What a shard is sent of sums by its base rows."""
        inside = (sums.rows >= shard.slice.start) & (sums.rows < shard.slice.stop)
        part = slice(None) if inside.all() else inside
        groups = np.repeat(np.arange(len(level.built)), sums.sizes)[part]
        counts = None if sums.counts is None else sums.counts[part]
        values = sums.sums[part]
        if self.sampled:
            counts, values = np.rint(values[:, -1]).astype(np.int64), values[:, :-1]
        places = (sums.rows[part] - shard.slice.start).astype(np.int32)
        are_all = len(level.built) == 1 and len(places) == len(shard.row_ids)
        return {
            "encoding": self.encoding,
            "built": np.array([node.number for node in level.built], np.int32),
            "sizes": np.bincount(groups, minlength=len(level.built)).astype(np.int32),
            "rows": values.astype(self.lou.wire),
            "places": None if are_all else places,
            "counts": None if counts is None else _narrow(counts),
        }

    def _ask_split(self, alias: str, level: Level, sums: GroupedSums, limits: Mapping[int, dict[str, Any]]) -> Pending:
        """Ask the party of a table with one shard for its best splits."""
        answered, shard = level.answered, self.lou.client.shards(alias)[0]
        places = np.split((sums.rows - shard.slice.start).astype(np.int32), np.cumsum(sums.sizes)[:-1])
        known, once = self._rows[alias], bool((self.lou.client.tables[alias].counts == 1).all())
        for node, parent, sibling, own in zip(level.built, level.parents, level.siblings, places, strict=True):
            known[node.number] = own
            if sibling is not None and parent is not None:
                others = known[parent.number]
                assert others is not None, "parents come first"
                known[sibling.number] = without(others, own, len(shard.row_ids)) if once else others
        size = sum(-(-len(rows) // 8) for node in answered if (rows := known[node.number]) is not None)
        given = self._sent(alias, level, sums, shard) | {
            "model": self.name,
            "rule": self.growth.rule,
            "parents": np.array([-1 if each is None else each.number for each in level.parents], np.int32),
            "siblings": np.array([-1 if each is None else each.number for each in level.siblings], np.int32),
            "evaluated": len(answered),
            "bytes": size,
        }
        own_limits = [limits[node.number] for node in answered]
        if any("allowed" in each for each in own_limits):
            width = self.widths[alias]
            every = np.ones(width, np.uint8)
            given["allowed"] = np.array([each.get("allowed", {}).get(alias, every) for each in own_limits], np.uint8)
        if self.growth.signs is not None:
            given["signs"] = self.growth.signs[alias]
            given["ranges"] = np.clip([[node.low, node.high] for node in answered], -1e100, 1e100)
        nothing = {
            "gains": np.zeros(len(answered)), "columns": np.full(len(answered), -1, np.int32),
            "left": np.zeros(size, np.uint8),
        }  # fmt: skip
        return self.lou.ask("trees.split", [alias], by_alias={alias: given}, instead=lambda *_: nothing)

    def _ask_sums(self, alias: str, level: Level, sums: GroupedSums) -> Pending:
        """Ask the shards of a table for sums by bin."""
        binned = self.together[alias]
        cells = len(level.built) * binned.columns * (binned.missing + 1)
        largest = max(float(np.abs(sums.sums).sum(axis=0).max(initial=0.0)), float(len(self.rows)), 1.0)
        return self.lou.ask(
            "trees.sums", [alias], cells=cells, bounds=lambda _: {"sums": largest},
            by_shard=lambda _, shard: self._sent(alias, level, sums, shard),
        )  # fmt: skip

    def _limits(self, node: Node) -> dict[str, Any]:
        growth, found = self.growth, dict[str, NDArray[np.bool_]]()
        for narrowed in (
            None if growth.draw is None else growth.draw(self._seed, node.number),
            None if growth.inside is None else growth.inside(node.path),
        ):
            for alias, mask in ({} if narrowed is None else narrowed).items():
                found[alias] = found[alias] & mask if alias in found else mask
        return {"allowed": found} if found else {}

    # Reading

    def _read_splits(self, alias: str, answered: Sequence[Node], pending: Pending) -> None:
        [reply] = pending.read()[alias]
        start = 0
        for node, gain, column in zip(answered, reply["gains"], reply["columns"], strict=True):
            rows = self._rows[alias][node.number]
            size = 0 if rows is None else -(-len(rows) // 8)
            if column >= 0 and gain > node.gain and self._may_split(node):
                node.gain, node.alias, node.column, node.split = float(gain), alias, int(column), None
                node.left_rows = rows, reply["left"][start : start + size]
            start += size

    def _read_sums(self, alias: str, level: Level, pending: Pending, limits: Mapping[int, dict[str, Any]]) -> None:
        """Add up sums of shards, and find the best splits here."""
        binned, known = self.together[alias], self._sums[alias]
        sums = self.lou.add(pending.read()[alias], "sums")
        parts = sums.reshape(len(level.built), binned.columns, binned.missing + 1, -1)
        for node, parent, sibling, own in zip(level.built, level.parents, level.siblings, parts, strict=True):
            known[node.number] = own
            if sibling is not None and parent is not None:
                known[sibling.number] = known.pop(parent.number) - own
        signs = None if self.growth.signs is None else self.growth.signs[alias]
        for node in level.answered:
            allowed = limits[node.number].get("allowed", {}).get(alias)
            found = best_split(
                known[node.number], binned.is_category, self.growth.rule,
                limits=Limits(allowed, signs, node.low, node.high),
            )  # fmt: skip
            if found.column >= 0 and found.gain > node.gain and self._may_split(node):
                node.gain, node.alias, node.column, node.split = found.gain, alias, found.column, found

    # Splitting

    def _expanded(self, chosen: Sequence[Sequence[Node]]) -> Level | None:
        """Split the chosen nodes that are not yet; the level of their children, None if there is none."""
        fresh = [node for nodes in chosen for node in nodes if node.children is None]
        if not fresh:
            return None
        first = len(self._nodes)
        for node in fresh:
            left = self._new(node.output, node.depth + 1, np.zeros(3))
            node.children = left, self._new(node.output, node.depth + 1, np.zeros(3))
        sides = self._sides(fresh)
        for start in range(0, len(fresh), SLOTS):
            self._move(fresh[start : start + SLOTS], sides)
        totals = self._totals(first, len(fresh), every=2)
        level = Level([], [], [])
        for node, sums in zip(fresh, totals, strict=True):
            assert node.children is not None, "it was split just now"
            for child, own in zip(node.children, (sums, node.sums - sums), strict=True):
                child.sums, child.path = own, node.path | {(node.alias, node.column)}
            self._bound(node)
            small, large = sorted(node.children, key=lambda child: (child.sums[COUNT], child.number))
            if self._may_split(small) or self._may_split(large):
                level.built.append(small)
                level.parents.append(node)
                level.siblings.append(large)
        order = np.argsort([node.output for node in level.built], kind="stable")  # sums are by output
        for listed in (level.built, level.parents, level.siblings):
            listed[:] = [listed[place] for place in order]
        return level

    def _bound(self, node: Node) -> None:
        """Children of a split by a monotone column stay on their side of the middle of their values."""
        signs = self.growth.signs
        assert node.children is not None, "it was split just now"
        left, right = node.children
        left.low = right.low = node.low
        left.high = right.high = node.high
        sign = 0 if signs is None else int(signs[node.alias][node.column])
        if sign:
            middle = (self.value(left) + self.value(right)) / 2
            lower, upper = (left, right) if sign > 0 else (right, left)
            lower.high, upper.low = min(lower.high, middle), max(upper.low, middle)

    def value(self, node: Node) -> float:
        """The best score of a node, within its range, before the learning rate."""
        found = -node.sums[GRADIENT] / (node.sums[HESSIAN] + self.growth.rule.l2 + TINY)
        return float(np.clip(found, node.low, node.high))

    def _sides(self, fresh: Sequence[Node]) -> dict[int, NDArray[np.bool_]]:
        """By node, which base rows of its table go left."""
        asked = {alias: [node for node in fresh if node.alias == alias and node.split] for alias in self.together}
        asked = {alias: nodes for alias, nodes in asked.items() if nodes}
        found = {}
        if asked:
            self.trips += 1
            thetas = {a: stored([n.split for n in nodes if n.split], self.together[a]) for a, nodes in asked.items()}
            for alias, bits in self.ask_bits(thetas).items():
                for place, node in enumerate(asked[alias]):
                    found[node.number] = (bits[:, place >> 3] >> (place & 7) & 1).astype(bool)
        for node in fresh:
            if node.left_rows is not None and node.split is None:
                rows, bits = node.left_rows
                side = np.zeros(self.lou.client.tables[node.alias].rows, bool)
                assert rows is not None, "it was asked for"
                side[rows + self.lou.client.shards(node.alias)[0].slice.start] = np.unpackbits(bits, count=len(rows))
                found[node.number] = side
        return found

    def _move(self, nodes: Sequence[Node], sides: Mapping[int, NDArray[np.bool_]]) -> None:
        """Move joined rows to the children of these nodes."""
        for alias in dict.fromkeys(node.alias for node in nodes):
            words = np.zeros(self.lou.client.tables[alias].rows, np.uint64)
            slots = np.full(len(self._nodes), -1, np.int8)
            left = np.zeros(len(self._nodes), np.int32)
            for slot, node in enumerate(each for each in nodes if each.alias == alias):
                assert node.children is not None, "it was split just now"
                words |= sides[node.number].astype(np.uint64) << np.uint64(slot)
                slots[node.number], left[node.number] = slot, node.children[0].number
            outputs = sorted({node.output for node in nodes if node.alias == alias})
            self.rows.each(_to_children, alias, words[:, None], slots, left, outputs)

    def _totals(self, first: int, size: int, every: int = 1) -> Array:
        """The sums of so many nodes, from ``first`` on each, or each second, over rows to learn from: (nodes, 3)."""
        return np.asarray(self.rows.total(_node_totals, first, size, every, self.sampled))

    def keep(self, chosen: Sequence[Sequence[Node]], before: Callable[[str], int]) -> dict[str, list[Node]]:
        """Let the owners of splits keep those that the final trees have; by table, in the order of its splits.

        They follow so many that earlier rounds have of a table.
        """
        won = {alias: [n for nodes in chosen for n in nodes if n.alias == alias] for alias in self.aliases}
        alone = [alias for alias in self.aliases if alias not in self.together]
        given = {
            alias: {"nodes": np.array([node.number for node in won[alias]], np.int32), "first": before(alias)}
            for alias in alone
        }
        self.lou.ask("trees.keep", alone, by_alias=given, encoding=self.encoding, model=self.name)
        return won


def _together(listed: Sequence[GroupedSums]) -> GroupedSums:
    """Sums of outputs, one after the other."""
    if len(listed) == 1:
        return listed[0]
    counts = [each.counts for each in listed if each.counts is not None]
    return GroupedSums(
        np.concatenate([each.rows for each in listed]),
        np.concatenate([each.sizes for each in listed]),
        np.concatenate(counts) if counts else None,
        np.concatenate([each.sums for each in listed]),
    )


def _narrow(counts: NDArray[np.integer]) -> NDArray[np.integer]:
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))


def tree_of(inner: Sequence[Node], leaves: Codes, places: Mapping[int, int], values: Mapping[int, float],
            aliases: Sequence[str], own: Callable[[Node], float], nodes: Sequence[Node]) -> Tree:  # fmt: skip
    """The final tree, with ``places`` of its splits among those of their tables and ``values`` of its leaves."""
    listed = [*inner, *(nodes[number] for number in np.unique(leaves[leaves >= 0]))]
    order = {node.number: place for place, node in enumerate(listed)}
    split = len(inner)

    def of(make: Callable[[Node], float], empty: float = -1) -> list[float]:
        return [make(node) for node in inner] + [empty] * (len(listed) - split)

    def child(side: int) -> Callable[[Node], float]:
        def find(node: Node) -> float:
            assert node.children is not None, "it is split"
            return order[node.children[side].number]

        return find

    return Tree(
        np.array(of(lambda node: aliases.index(node.alias)), np.int32),
        np.array(of(lambda node: node.column), np.int32),
        np.array(of(lambda node: places[node.number]), np.int32),
        np.array(of(child(0)), np.int32),
        np.array(of(child(1)), np.int32),
        np.array([values[n.number] if n.number in values else own(n) for n in listed], np.float64),
        np.array([node.sums[COUNT] for node in listed], np.float64),
        np.array(of(lambda node: node.gain, 0.0), np.float64),
    )


# What is computed in a block of the joined rows


def _to_roots(block: Block) -> None:
    nodes = block.stored[NODES]
    nodes[:] = np.arange(len(nodes), dtype=np.int32)[:, None]


def _to_groups(block: Block, output: int, groups: Codes) -> None:
    np.take(groups, block.stored[NODES, output], out=block.stored[GROUPS, 0], mode="clip")


def _to_children(block: Block, alias: str, words: Words, slots: Codes, left: Codes, outputs: Sequence[int]) -> None:
    word = block.taken(alias, words)[:, 0]
    for output in outputs:
        nodes = block.stored[NODES, output]
        slot = slots.take(nodes)
        goes_left = word >> slot.astype(np.uint64) & np.uint64(1)  # of rows in other nodes this is nothing
        np.copyto(nodes, left.take(nodes) + 1 - goes_left.astype(np.int32), where=slot >= 0)


def _node_totals(block: Block, first: int, size: int, every: int, sampled: bool) -> Array:
    found = np.zeros((size, 3))
    for output in range(len(block.stored[NODES])):
        nodes = block.stored[NODES, output]
        fresh = np.flatnonzero(nodes >= first if every == 1 else (nodes >= first) & ((nodes - first) & 1 == 0))
        at = (nodes[fresh] - first) // every
        for kind, column in ((GRADIENT, SLOPES), (HESSIAN, CURVATURES)):
            found[:, kind] += np.bincount(at, block.stored[column, output][fresh], size)
        found[:, COUNT] += np.bincount(at, block.stored[SAMPLED, 0][fresh] if sampled else None, size)
    return found
