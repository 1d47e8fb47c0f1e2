"""The different rows of a joined matrix, each with how many joined rows are equal to it: what k-means works on.

Parties are asked as little as a program of many rounds needs:

- A table of no more columns than one message has directions is asked for its cells, T_i I, once. They are fewer bytes
  than T_i V of such a message, and reveal no more. Images and sums are then computed here; sums are not if a policy has
  its party check how many rows they are over (``min_rows``). A table that sends sums only is not asked for cells.
- Joined rows whose base rows are alike in every table are one row with a weight (operators/merged.py). Base rows are
  compared by their cells if these are here, else at their party (prep/alike.py).

By the plans ``parties`` and ``heuristic`` every table computes at its parties, in every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.column_products import ColumnProducts
from tablepuppet.algebra.nearest import Image, Nearest
from tablepuppet.algebra.placement import PricedStep
from tablepuppet.algebra.products import Result
from tablepuppet.arrays import Scalar
from tablepuppet.mapping.table_mapping import SCATTER_CHUNK, Floats, Index, MappedTable
from tablepuppet.operators.merged import MergedRows, merge
from tablepuppet.pieces import on_all_cores, over_pieces, pieces
from tablepuppet.prep.alike import AlikeRows, first_of_each
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]
KEEPING = ("cost", "collect")  # plans by which cells are kept here


@dataclass(frozen=True)
class DistinctTable:
    """A table's rows among which those of distinct rows are: all base rows, or the first of those that are alike."""

    index: Index | None  # the place of each distinct row among them; None: its own
    firsts: Index | None  # their places among base rows; None: all
    base_rows: int
    cells: EncodedTable | None  # of these rows

    @classmethod
    def of(cls, alias: str, table: MappedTable, merged: MergedRows | None, cells: Floats | None) -> DistinctTable:
        """A table of a relation; ``cells`` are those of its base rows."""
        if merged is None:
            index, firsts = None if table.is_identity else table.index, None
        else:
            index, firsts = merged.groups[alias], merged.firsts[alias]
        kept = None if cells is None else _cells(cells if firsts is None else cells[firsts])
        return cls(index, firsts, table.rows, kept)

    def chosen(self, image: Floats) -> Floats:
        """Numbers of base rows, (n_i, k), as numbers of these rows."""
        return image if self.firsts is None else image[self.firsts]

    def spread(self, values: Array) -> Array:
        """Numbers of these rows as numbers of base rows: 0 for those that others stand for."""
        found = np.zeros((self.base_rows, values.shape[1]))
        found[self.firsts] = values
        return found

    def counts_by(self, labels: Labels, groups: int, weights: Array | None) -> Array:
        """How often each of these rows is joined within each group, (rows, groups)."""
        rows = self.base_rows if self.firsts is None else len(self.firsts)
        index = np.arange(rows) if self.index is None else self.index

        def count(part: slice) -> NDArray[Any]:
            pairs = index[part].astype(np.intp) * groups + labels[part]
            return np.bincount(pairs, None if weights is None else weights[part], rows * groups)

        found = on_all_cores(count, pieces(len(labels), size=max(SCATTER_CHUNK, 4 * rows * groups)))
        return np.asarray(np.sum(found, axis=0), np.float64).reshape(rows, groups)

    def sums_by(self, labels: Labels, groups: int, weights: Array | None) -> Array:
        """Sums of cells over the joined rows of each group, (d_i, groups)."""
        assert self.cells is not None, "its caller has looked"
        if self.index is None and weights is None:
            return self.cells.sums_by(labels, groups)
        return self.cells.transposed_times(self.counts_by(labels, groups, weights))


class DistinctRows:
    """The different rows of an array. Products with first ``directions``, (d, p), are asked for when it is made.

    ``most`` is how many directions one message has: tables of no more columns are asked for their cells.
    """

    def __init__(self, array: ColumnProducts, directions: Array, most: int):
        self._array, self._products, self._directions = array, array.basis[0], directions
        products, placement = self._products, array.source.placement
        self._narrow = [
            a
            for a in products.tables
            if placement.plan in KEEPING and products.width(a) <= most and not placement.is_secured(a)
        ]
        wanted = self._by_table(directions) if directions.size else {}
        wanted |= {alias: np.eye(products.width(alias)) for alias in self._narrow}
        self._first = products.ask_images(wanted, PricedStep.times(_widths(wanted), products))
        self._collected = {a: data for a in products.tables if (data := products.local(a)) is not None}
        others = [a for a in products.tables if a not in self._narrow and a not in self._collected]
        self._alike = AlikeRows(placement.client, array.source.encoding, others)

    def _by_table(self, columns: Array) -> dict[str, Array]:
        """V of A V by table."""
        directions = self._array.directions(columns)
        return {alias: directions[self._products.blocks[alias]] for alias in self._products.tables}

    @cached_property
    def _read(self) -> tuple[MergedRows | None, dict[str, DistinctTable], dict[str, Floats]]:
        """(equal rows, if there are many; tables; images of the first directions, of tables without cells)."""
        images: dict[str, Floats] = self._first()
        merged, tables, narrow = self._merged(images), self._products.mapping.tables, self._narrow
        found = {
            a: DistinctTable.of(a, tables[a], merged, images.pop(a) if a in narrow else None)
            for a in self._products.tables
        }
        return merged, found, {alias: found[alias].chosen(image) for alias, image in images.items()}

    def _merged(self, images: Mapping[str, Floats]) -> MergedRows | None:
        alike = self._alike.read()
        if alike is None:
            return None
        for alias in self._products.tables:
            if alias not in alike:
                data = self._collected.get(alias)
                places = first_of_each(_cells(images[alias]) if data is None else data)
                if places is None:
                    return None
                alike[alias] = places
        return merge(self._products.mapping, alike)

    def __len__(self) -> int:
        return self.joined if self._read[0] is None else len(self._read[0])

    @property
    def joined(self) -> int:
        """How many joined rows they are."""
        return self._array.shape[0]

    @property
    def weights(self) -> Array | None:
        """How many joined rows each is; None: one."""
        return None if self._read[0] is None else self._read[0].weights

    @property
    def _numbers(self) -> Index | None:
        """The row that each joined row is; None: its own."""
        return None if self._read[0] is None else self._read[0].numbers

    def expanded(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of these rows as values of joined rows, (N,)."""
        return values if self._read[0] is None else self._read[0].expanded(values)

    def reduced(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of joined rows, the same for equal ones, as values of these rows."""
        numbers = self._numbers
        if numbers is None:
            return values
        found = np.empty(len(self), values.dtype)
        found[numbers] = values
        return found

    def place(self, joined_row: int) -> int:
        """The row that a joined row is."""
        return joined_row if self._numbers is None else int(self._numbers[joined_row])

    def drawn(self, chances: Array, share: float) -> int:
        """The row at which chances, added up over the joined rows in their order, come to a share of all.

        So a draw does not depend on which rows are merged.
        """
        numbers = self._numbers

        def chances_of(part: slice) -> Array:
            return chances[part] if numbers is None else chances.take(numbers[part], mode="clip")

        found = over_pieces(lambda part: float(chances_of(part).sum()), self.joined)
        sums = np.cumsum([total for _, total in found])
        place = min(int(np.searchsorted(sums, share * sums[-1], side="right")), len(found) - 1)
        part, total = found[place]
        within = np.cumsum(chances_of(part))
        rest = share * sums[-1] - (sums[place] - total)
        return self.place(part.start + min(int(np.searchsorted(within, rest, side="right")), len(within) - 1))

    def projected(self) -> Array:
        """A V for the first directions, (rows, p)."""
        _, tables, first = self._read
        found = np.tile(self._array.recipe.shift @ self._directions, (len(self), 1))
        images = []
        for alias, directions in self._by_table(self._directions).items():
            cells = tables[alias].cells
            images.append(Image(tables[alias].index, first.pop(alias) if cells is None else cells.times(directions)))

        def add(part: slice) -> None:
            for image in images:
                found[part] += image.of(part)

        over_pieces(add, len(found), max(found.shape[1], 1))
        return found

    def ask_nearest(self, centres: Array) -> Nearest:
        """Ask for the nearest of some centres, (k, d), of every row."""
        products, (_, tables, _), array = self._products, self._read, self._array
        wanted = self._by_table(centres.T)
        there = {alias: each for alias, each in wanted.items() if tables[alias].cells is None}
        replies = products.ask_images(there, PricedStep.times(_widths(there), products)) if there else dict

        def images() -> list[Image]:
            found = {alias: tables[alias].chosen(image) for alias, image in replies().items()}
            for alias, table in tables.items():
                if table.cells is not None:
                    found[alias] = table.cells.times(wanted[alias]).astype(array.wire)
            return [Image(tables[alias].index, image) for alias, image in found.items()]

        return Nearest(len(self), images, array.nearness(centres), self.weights)

    def has_few(self, labels: Labels, groups: int) -> bool:
        """Whether some group has fewer rows of a shard than its party adds up (``min_rows``), and not none."""
        products, joined = self._products, self.expanded(labels)
        for alias in products.tables:
            table, least = products.mapping.tables[alias], products.placement.min_rows_by_party(alias)
            if any(least.values()) and products.local(alias) is None:
                pairs = table.index.astype(np.intp) * groups + joined
                rows = (np.bincount(pairs, minlength=table.rows * groups) > 0).reshape(table.rows, groups)
                sizes = np.array([rows[shard.slice].sum(axis=0) for shard in table.shards])
                if np.any((sizes > 0) & (sizes < np.array([[least[shard.party]] for shard in table.shards]))):
                    return True
        return False

    def ask_means(self, labels: Labels, groups: int) -> Result:
        """Ask for the means of the joined rows of each group, (groups, d), by numbers of groups; NaN if it has none."""
        products, (_, tables, _), weights = self._products, self._read, self.weights
        hidden = [a for a in tables if products.placement.min_rows(a)]  # of which every row has to be counted
        here = [a for a, table in tables.items() if table.cells is not None and a not in hidden]
        each = [a for a, table in tables.items() if a not in here and (a in hidden or table.firsts is None)]
        some = {
            a: table.spread(table.counts_by(labels, groups, weights))
            for a, table in tables.items()
            if a not in here and a not in each
        }
        asked = [products.ask_sums_by(self.expanded(labels), groups, each)] if each else []
        asked += [products.ask_sums(some)] if some else []

        def finish() -> Array:
            sums = np.zeros((products.shape[1], groups))
            for part in asked:
                sums += part.read()
            for alias in here:
                sums[products.blocks[alias]] = tables[alias].sums_by(labels, groups, weights)
            sizes = np.bincount(labels, weights, groups).astype(np.float64)
            return np.asarray((self._array.affine(sums, sizes) / np.where(sizes, sizes, np.nan)).T)

        return Result(finish)


def _cells(values: Floats) -> EncodedTable:
    """Cells as a table of numbers."""
    return EncodedTable(values.astype(np.float64), (), ())


def _widths(directions: Mapping[str, Array]) -> dict[str, int]:
    return {alias: each.shape[1] for alias, each in directions.items()}
