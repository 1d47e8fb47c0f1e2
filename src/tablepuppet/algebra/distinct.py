"""The different rows of a joined matrix, each with how many joined rows are equal to it: what k-means works on.

Parties are asked as little as a program of many rounds needs:

- A table of no more columns than one message has directions is asked for its cells, T_i I, once. They are fewer bytes
  than T_i V of such a message, and reveal no more. Products and sums are then computed here; sums are not if a policy
  has its party check how many rows they are over (``min_rows``). A table that sends sums only is not asked for cells.
- Joined rows whose base rows are alike in every table are one row with a weight (mapping/merged.py). Base rows are
  compared by their cells if these are here, else at their party (prep/encode/alike.py).

By the plans ``parties`` and ``heuristic`` every table computes at its parties, in every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.column_products import ColumnProducts
from tablepuppet.algebra.nearest import Nearest
from tablepuppet.algebra.products import Result, TableProducts
from tablepuppet.arrays import Array, Floats, Places, Scalar
from tablepuppet.mapping.merged import MergedRows, merge
from tablepuppet.pieces import over_pieces
from tablepuppet.prep.encode.alike import AlikeRows, first_of_each
from tablepuppet.prep.encode.encoded_table import EncodedTable

Labels = NDArray[np.integer[Any]]
KEEPING = ("cost", "collect")  # plans by which cells are kept here


class DistinctRows:
    """The different rows of an array. Products with first ``directions``, (d, p), are asked for when it is made.

    ``most`` is how many directions one message has: tables of no more columns are asked for their cells.
    """

    def __init__(self, array: ColumnProducts, directions: Array, most: int):
        self._array, self._all, self._directions = array, array.basis[0], directions
        products, placement = self._all, array.source.placement
        self._narrow = [
            a
            for a in products.tables
            if placement.plan in KEEPING and products.width(a) <= most and not placement.is_secured(a)
        ]
        wanted = self._by_table(directions) if directions.size else {}
        self._first = products.ask_outputs(wanted | {alias: np.eye(products.width(alias)) for alias in self._narrow})
        self._collected = {a: data for a in products.tables if (data := products.local(a)) is not None}
        others = [a for a in products.tables if a not in self._narrow and a not in self._collected]
        self._alike = AlikeRows(placement.client, array.source.encoding, others)

    def _by_table(self, columns: Array) -> dict[str, Array]:
        """V of A V by table."""
        directions = self._array.directions(columns)
        return {alias: directions[self._all.blocks[alias]] for alias in self._all.tables}

    @cached_property
    def _read(self) -> tuple[MergedRows | None, TableProducts, dict[str, Floats]]:
        """(equal rows, if there are many; products over these rows; first outputs, of tables without cells)."""
        outputs: dict[str, Floats] = self._first()
        merged = self._merged(outputs)
        cells = {alias: _cells(outputs.pop(alias)) for alias in self._narrow}
        if merged is None:
            return None, self._all.over(self._all.rows, {}, cells), outputs
        firsts = dict(merged.firsts)
        cells = {alias: each.repeated(firsts[alias]) for alias, each in cells.items()}
        return merged, self._all.over(merged.joined(), firsts, cells), outputs

    def _merged(self, outputs: Mapping[str, Floats]) -> MergedRows | None:
        alike = self._alike.read()
        if alike is None:
            return None
        for alias in self._all.tables:
            if alias not in alike:
                data = self._collected.get(alias)
                places = first_of_each(_cells(outputs[alias]) if data is None else data)
                if places is None:
                    return None
                alike[alias] = places
        return merge(self._all.rows, alike)

    def __len__(self) -> int:
        return self.products.shape[0]

    @property
    def products(self) -> TableProducts:
        """Products over these rows."""
        return self._read[1]

    @property
    def joined(self) -> int:
        """How many joined rows they are."""
        return self._array.shape[0]

    @property
    def weights(self) -> Array | None:
        """How many joined rows each is; None: one."""
        return None if self._read[0] is None else self._read[0].weights

    @property
    def _numbers(self) -> Places | None:
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
        _, products, first = self._read
        wanted = self._by_table(self._directions)
        outputs = first | {alias: cells.times(wanted[alias]) for alias, cells in products.cells.items()}
        first.clear()  # as long as their tables, and not needed again
        found = products.gathered(outputs, self._directions.shape[1], {})
        shift = self._array.shift @ self._directions
        return found + shift if shift.any() else found

    def ask_nearest(self, centres: Array) -> Nearest:
        """Ask for the nearest of some centres, (k, d), of every row."""
        moved = centres - self._array.shift  # as `ColumnProducts.ask_nearest`
        constants = -(moved**2).sum(axis=1) / 2
        return self.products.ask_nearest(self._array.directions(moved.T), constants, self.weights)

    def has_few(self, labels: Labels, groups: int) -> bool:
        """Whether some group has fewer rows of a shard than its party adds up (``min_rows``), and not none."""
        products, joined = self._all, self.expanded(labels)
        for alias in products.tables:
            table, least = products.rows.tables[alias], products.placement.min_rows(alias)
            if any(least.values()) and products.local(alias) is None:
                rows = products.rows.counts_by(alias, joined, groups) > 0
                sizes = np.array([rows[shard.slice].sum(axis=0) for shard in table.shards])
                if np.any((sizes > 0) & (sizes < np.array([[least[shard.party]] for shard in table.shards]))):
                    return True
        return False

    def sizes(self, labels: Labels, groups: int) -> Array:
        """How many joined rows each group has."""
        return np.bincount(labels, self.weights, groups).astype(np.float64)

    def ask_means(self, labels: Labels, groups: int) -> Result:
        """Ask for the means of the joined rows of each group, (groups, d), by numbers of groups; NaN if it has none."""
        products = self.products
        hidden = [
            a for a in products.tables if any(products.placement.min_rows(a).values())
        ]  # of which every row has to be counted
        others = [a for a in products.tables if a not in hidden]
        asked = [products.ask_sums_by(labels, groups, others, self.weights)]
        if hidden:
            asked.append(self._all.ask_sums_by(self.expanded(labels), groups, hidden))

        def finish() -> Array:
            sums = sum(part.read() for part in asked)
            sizes = self.sizes(labels, groups)
            return np.asarray((self._array.affine(np.asarray(sums), sizes) / np.where(sizes, sizes, np.nan)).T)

        return Result(finish)


def _cells(values: Floats) -> EncodedTable:
    """Cells as a table of numbers."""
    return EncodedTable(values.astype(np.float64), (), ())
