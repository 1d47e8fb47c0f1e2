"""What a party does while trees grow: sums of gradients by bin, the best splits of its own table, and its bits of rows.

A table with one shard (``trees.split``) answers with the gain of its best split of each node, and a bit for each of its
rows in that node: which side it would go to. Sums, thresholds and categories stay. A shard of a table with several
(``trees.sums``) answers with the sums, which the coordinator adds up; it picks splits and asks for bits
(``trees.apply``). The coordinator's half is grow.py.

Nodes have numbers that are unique within a tree under way. Of two siblings only the smaller one is summed: the other is
its parent minus that. Rows of the other are those of the parent, without the smaller's where no row is joined twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.learn.tables.parameters import TableParameters, hold_parameters, parameters_of
from tablepuppet.learn.trees.cells import BinnedRows, bins_of, cells_of
from tablepuppet.learn.trees.histogram import histograms
from tablepuppet.learn.trees.splits import (
    HEAD,
    ROWS,
    Count,
    Limits,
    Split,
    SplitRule,
    Splits,
    SplitTable,
    TreeSpec,
    best_split,
    goes_left,
    stored,
)
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import LARGEST, Within
from tablepuppet.party.groups import Grouped
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OUTPUTS, Bytes, Numbers, OfGroups
from tablepuppet.party.returns import ROWS as OF_ROWS

_TASKS = ("Regressor", "Classifier")
add_work([f"{family}{task}" for family in ("GradientBoosting", "RandomForest") for task in _TASKS], "trees")

Whole = NDArray[np.integer]
Row = Annotated[NDArray[np.float64], Within(dimensions=(2,))]
MOST_NODES = 1 << 14  # of one request


@dataclass(frozen=True)
class Asked:
    """The nodes that a request sums, and the sums of their base rows: entries by node, ``sizes`` of each.

    ``places`` are base rows, those of each node in order and once, None: all. ``counts`` are joined rows of entries,
    None: one each. ``rows`` are (entries, 2), gradient and Hessian, or (entries, 1) where a Hessian is the number of
    joined rows.
    """

    party: str
    built: Whole
    parents: Whole  # -1 of a root
    siblings: Whole  # -1 of a root
    sizes: Whole
    rows: Array
    places: Whole | None
    counts: Whole | None

    def check(self, bins: NDArray[np.uint8]) -> None:
        """PartyError unless everything fits."""
        nodes = len(self.built)
        lists = (self.built, self.parents, self.siblings, self.sizes)
        fits = nodes <= MOST_NODES and all(each.shape == (nodes,) for each in lists)
        fits = fits and not (nodes and min(int(self.sizes.min()), int(self.built.min())) < 0)
        entries = int(self.sizes.astype(object).sum()) if fits else -1
        fits = fits and self.rows.ndim == 2 and self.rows.shape in ((entries, 1), (entries, 2))
        if fits and self.places is None:
            fits = nodes == 1 and entries == len(bins)
        elif fits and self.places is not None:
            fits = self.places.shape == (entries,)
            fits = fits and not (entries and not 0 <= self.places.min() <= self.places.max() < len(bins))
            if fits:  # a row that is listed twice in a node would count as two of a group
                in_order = np.repeat(np.arange(nodes), self.sizes) * len(bins) + self.places
                fits = bool((np.diff(in_order) > 0).all())
        if fits and self.counts is not None:
            fits = self.counts.shape == (entries,) and not (entries and self.counts.min() < 0)
        if not fits:
            raise PartyError(f"party {self.party!r}: nodes, rows and sums of trees do not fit each other")

    def places_of(self, rows: int) -> list[Whole]:
        """The base rows of each node."""
        if self.places is None:
            return [np.arange(rows, dtype=np.int32)]
        return np.split(self.places, np.cumsum(self.sizes)[:-1]) if len(self.built) else []

    def sums(self, table: BinnedRows, *, with_rows: bool) -> Array:
        """(nodes, columns, bins, sums): see splits.py."""
        width, nodes = table.binned.missing + 1, len(self.built)
        kinds = ROWS + 1 if with_rows else ROWS
        check_memory(8 * nodes * table.binned.columns * width * kinds)
        places = np.arange(len(table.bins), dtype=np.int32) if self.places is None else self.places
        counts = np.ones(len(places)) if self.counts is None else self.counts
        kept = [*self.rows.T, counts, *([table.view.firsts[places]] if with_rows else [])]
        values = np.stack(kept, axis=1, dtype=np.float64, casting="unsafe")
        found = histograms(table.bins, places, self.sizes, values, width)
        return found if self.rows.shape[1] == 2 else found[..., [0, 1, *range(1, kinds - 1)]]


@dataclass
class Growing:
    """What a party remembers of trees under way, by node."""

    sums: dict[int, Array] = field(default_factory=dict)
    rows: dict[int, Whole] = field(default_factory=dict)
    splits: dict[int, Split] = field(default_factory=dict)


@op("trees.start", asked="trees", releases=Release.COUNTS, returns={})
def start(table: LocalTable, view: str, encoding: str, model: str) -> Values:
    """Begin a model of trees at a table with one shard, without a split."""
    words = bins_of(table, view, encoding).binned.words
    spec = Splits(0, words)
    hold_parameters(table, model, TableParameters(SplitTable(spec), np.zeros((0, HEAD + words)), Growing()))
    return {}


@op(
    "trees.split",
    asked="trees",
    releases=Release.GRADIENT_SUMS | Release.PREDICTIONS,
    returns={
        "gains": Numbers(("evaluated",), least=0.0),
        "columns": Numbers(("evaluated",), "i", least=-1),
        "left": Bytes(("bytes",)),
    },
)
def split(
    table: LocalTable, view: str, encoding: str, model: str, rule: SplitRule, built: Whole, parents: Whole,
    siblings: Whole, sizes: Whole, rows: Row, evaluated: Count, bytes: Count, places: Whole | None = None,
    counts: Whole | None = None, allowed: NDArray[np.uint8] | None = None, signs: Whole | None = None,
    ranges: Array | None = None,
) -> Values:  # fmt: skip
    """The best split of each node by this table's columns: its gain, its column, and which rows would go left.

    Nodes are answered in their order, each before its sibling. ``allowed`` are (nodes answered, columns), ``signs`` of
    columns, ``ranges`` (nodes answered, 2): see `Limits`.
    """
    data = bins_of(table, view, encoding)
    asked = Asked(table.grant.party, built, parents, siblings, sizes, rows, places, counts)
    asked.check(data.bins)
    part = parameters_of(table, model, TreeSpec)
    growing, min_group = part.remembered(Growing), table.grant.rules.min_group
    nodes = len(built) + int(np.count_nonzero(siblings >= 0))
    if evaluated != nodes or not _fit(data.binned.columns, nodes, allowed, signs, ranges):
        raise PartyError(f"party {table.grant.party!r}: nodes and limits of trees do not fit each other")
    check_reply(bytes)
    if any(
        sibling >= 0 and parent not in growing.sums
        for parent, sibling in zip(parents.tolist(), siblings.tolist(), strict=True)
    ):
        return _no_split(nodes, bytes)  # the party was away: it takes part again in the next tree
    sums = asked.sums(data, with_rows=min_group > 1)
    once, made = data.view.is_each_joined_once, dict[int, tuple[Array, Whole]]()
    for node, parent, sibling, own, at in zip(
        built.tolist(), parents.tolist(), siblings.tolist(), sums, asked.places_of(len(data.bins)), strict=True
    ):
        made[node] = own, at
        if sibling >= 0:
            others = growing.rows[parent]
            made[sibling] = growing.sums[parent] - own, without(others, at, len(data.bins)) if once else others
    found = {
        node: _best(own, data, rule, min_group, _limits(place, allowed, signs, ranges))
        for place, (node, (own, _)) in enumerate(made.items())
    }
    left = [np.packbits(found[node].left[_bins_at(data, found[node].column, at)]) for node, (_, at) in made.items()]
    if len(found) != nodes or sum(map(len, left)) != bytes:
        raise PartyError(
            f"party {table.grant.party!r}: nodes of trees, or their rows, are not those that were asked for"
        )
    for parent in parents.tolist():
        growing.sums.pop(parent, None)  # both children are known
    growing.sums |= {node: own for node, (own, _) in made.items()}
    growing.rows |= {node: at for node, (_, at) in made.items()}
    growing.splits |= found
    return {
        "gains": np.array([each.gain for each in found.values()]),
        "columns": np.array([each.column for each in found.values()], np.int32),
        "left": np.concatenate([np.zeros(0, np.uint8), *left]),
    }


def without(rows: Whole, others: Whole, size: int) -> Whole:
    """Rows that are not among the others; all are below ``size``."""
    kept = np.ones(size, bool)
    kept[others] = False
    return rows[kept[rows]]


def _no_split(nodes: int, bytes: int) -> Values:
    columns = np.full(nodes, -1, np.int32)
    return {"gains": np.zeros(nodes), "columns": columns, "left": np.zeros(bytes, np.uint8)}


def _best(sums: Array, data: BinnedRows, rule: SplitRule, min_group: int, limits: Limits) -> Split:
    check_time()
    nothing = Split(0.0, -1, np.zeros(data.binned.missing + 1, bool))
    if not data.binned.columns:
        return nothing
    found = best_split(sums, data.binned.is_category, rule, min_group, limits)
    return found if np.isfinite(found.gain) and found.gain <= LARGEST else nothing


def _bins_at(data: BinnedRows, column: int, at: Whole) -> NDArray[np.uint8]:
    """The bins of some rows; without a column nothing is said of them."""
    return data.bins[:, column][at] if column >= 0 else np.zeros(len(at), np.uint8)


def _fit(
    columns: int, nodes: int, allowed: NDArray[np.uint8] | None, signs: Whole | None, ranges: Array | None
) -> bool:
    shapes = ((allowed, (nodes, columns)), (signs, (columns,)), (ranges, (nodes, 2)))
    return all(each is None or each.shape == shape for each, shape in shapes)


def _limits(node: int, allowed: NDArray[np.uint8] | None, signs: Whole | None, ranges: Array | None) -> Limits:
    low, high = (-np.inf, np.inf) if ranges is None else (float(ranges[node].min()), float(ranges[node].max()))
    return Limits(None if allowed is None else allowed[node] > 0, None if signs is None else np.sign(signs), low, high)


@op("trees.keep", asked="trees", releases=Release.COUNTS, returns={})
def keep(table: LocalTable, view: str, encoding: str, model: str, nodes: Whole, first: Count) -> Values:
    """Add the splits of some nodes to the model, in this order, and forget all nodes: their trees are done.

    They follow the ``first`` splits: those after it are of rounds that were given up.
    """
    data, part = bins_of(table, view, encoding), parameters_of(table, model, TreeSpec)
    growing = part.remembered(Growing)
    listed: list[int] = nodes.ravel().tolist()
    if nodes.ndim != 1 or len(listed) > MOST_NODES or any(node not in growing.splits for node in listed):
        raise PartyError(f"party {table.grant.party!r}: these nodes of trees are not known here")
    splits = [growing.splits[node] for node in listed]
    if any(each.column < 0 for each in splits):
        raise PartyError(f"party {table.grant.party!r}: these nodes of trees have no split here")
    if first > len(part.theta):
        raise PartyError(f"party {table.grant.party!r}: trees have {len(part.theta)} splits here, not {first}")
    part.theta = np.concatenate([part.theta[:first], stored(splits, data.binned)])
    part.model = SplitTable(Splits(len(part.theta), data.binned.words))
    part.memory = Growing()
    return {}


@op(
    "trees.sums",
    asked="trees, of tables with several shards",
    releases=Release.GRADIENT_SUMS | Release.HISTOGRAMS,
    summed=("sums",),
    returns={"sums": OfGroups(Numbers(("cells", ROWS)))},
)
def node_sums(
    table: LocalTable, view: str, encoding: str, built: Whole, sizes: Whole, rows: Row, cells: Count,
    places: Whole | None = None, counts: Whole | None = None,
) -> Values:  # fmt: skip
    """Sums of gradients, Hessians and joined rows by node, column and bin: (nodes x columns x bins, 3).

    Where small groups are hidden, neighbouring bins of fewer base rows are added up in the last of them.
    """
    data, min_group = bins_of(table, view, encoding), table.grant.rules.min_group
    none = np.full(len(built), -1)
    asked = Asked(table.grant.party, built, none, none, sizes, rows, places, counts)
    asked.check(data.bins)
    if cells != len(built) * data.binned.columns * (data.binned.missing + 1):
        raise PartyError(f"party {table.grant.party!r}: sums of trees have another size than was asked for")
    check_reply(8 * cells * ROWS)
    sums = asked.sums(data, with_rows=min_group > 1)
    groups: NDArray[np.int64] | int = 0
    if min_group > 1:
        sums = pooled(sums, min_group)
        groups = sums[..., ROWS].astype(np.int64)
    return {"sums": Grouped(np.ascontiguousarray(sums[..., :ROWS]).reshape(-1, ROWS), groups)}


def pooled(sums: Array, min_group: int) -> Array:
    """Histograms whose cells rest on no row or on ``min_group`` different ones: cells of fewer are added to the next.

    What is left at the end, and few rows without a value, are added to the last cell that is large enough; a column
    without any has no sums.
    """
    found, run = np.zeros_like(sums), np.zeros_like(sums[:, :, 0])
    last = np.full(run.shape[:2], -1)
    bins = sums.shape[2]
    for place in range(bins):
        small = sums[:, :, place, ROWS] < min_group
        if place == bins - 1:  # rows without a value are no neighbours of the greatest number
            run = run + np.where(small[..., None], sums[:, :, place], 0.0)
            found[:, :, place] = np.where(small[..., None], 0.0, sums[:, :, place])
            last = np.where((last < 0) & ~small & (sums[:, :, place, ROWS] > 0), place, last)
            break
        run = run + sums[:, :, place]
        enough = run[..., ROWS] >= min_group
        found[:, :, place] = np.where(enough[..., None], run, 0.0)
        run = np.where(enough[..., None], 0.0, run)
        last = np.where(enough, place, last)
    nodes, columns = np.nonzero((last >= 0) & (run[..., ROWS] > 0))
    found[nodes, columns, last[nodes, columns]] += run[nodes, columns]
    return found


# Bits of rows


@op(
    "trees.predict",
    asked="`predict`, `evaluate`, validation of trees",
    releases=Release.PREDICTIONS,
    returns={"outputs": Bytes((OF_ROWS, OUTPUTS))},
)
def predict(table: LocalTable, view: str, encoding: str, model: str, first: Count = 0) -> Values:
    """A bit for each row and split of the party's own model, from the split ``first`` on: whether the row goes left."""
    cells, theta = cells_of(table, view, encoding), parameters_of(table, model, TreeSpec, 0).theta
    return {"outputs": _bits(table, theta[min(first, len(theta)) :], cells.numbers, cells.codes)}


@op(
    "trees.apply",
    asked="trees, of tables with several shards",
    releases=Release.PREDICTIONS,
    returns={"outputs": Bytes((OF_ROWS, OUTPUTS))},
)
def apply(table: LocalTable, view: str, encoding: str, spec: TreeSpec, theta: Array) -> Values:
    """A bit for each row and split that the coordinator sends."""
    cells = cells_of(table, view, encoding)
    if theta.shape != spec.theta_shape(0) or theta.shape[1] < HEAD:
        raise PartyError(f"party {table.grant.party!r}: splits of shape {theta.shape} do not fit")
    return {"outputs": _bits(table, theta, cells.numbers, cells.codes)}


def _bits(table: LocalTable, theta: Array, numbers: Array, codes: Sequence[NDArray[np.int32]]) -> NDArray[np.uint8]:
    """Packed bits of rows, of shape (rows,) if they take one byte."""
    columns, are_codes = theta[:, 0], theta[:, 3] != 0
    known = (columns >= np.where(are_codes, numbers.shape[1], 0)) & (columns == np.floor(columns))
    known &= columns < np.where(are_codes, numbers.shape[1] + len(codes), numbers.shape[1])
    words = theta[:, HEAD:]
    if not known.all() or ((words < 0) | (words >= 2.0**32) | (words != np.floor(words))).any():
        raise PartyError(f"party {table.grant.party!r}: a split is by no column of this table")
    check_memory(len(numbers) * len(theta))
    check_reply(len(numbers) * -(-len(theta) // 8))
    found = np.concatenate([np.zeros((len(numbers), 0), np.uint8), *_parts(theta, numbers, codes)], axis=1)
    return found[:, 0] if found.shape[1] == 1 else found


def _parts(theta: Array, numbers: Array, codes: Sequence[NDArray[np.int32]]) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, len(theta), 64):  # whole bytes at a time
        check_time()
        yield goes_left(theta[first : first + 64], numbers, codes)
