"""The joined matrix X of a relation, never built: the coordinator's half of its products (ops.py is the parties').

Let T_i (n_i x d_i) be the encoded rows of table i that take part, and S_i (N x n_i) the selection of a base row for
each joined row, which the mapping holds. Then

    X      = [S_1 T_1, ..., S_M T_M]
    X V    = sum_i S_i (T_i V_i)              tables multiply, the result is gathered to joined rows
    X^T U  = [T_i^T (S_i^T U)]_i              U is summed at base rows, tables multiply
    X^T X  = [T_i^T (S_i^T S_j) T_j]_ij       S_i^T S_j counts how often two base rows are joined with each other

Over the shards of a table T V concatenates and T^T U adds up. Nothing as long as the joined rows crosses the wire. What
is asked before a result is read shares a trip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array

import tablepuppet.algebra.ops  # noqa: F401 - registers the parties' half
from tablepuppet.algebra.operator import ProductOperator
from tablepuppet.algebra.preparation import Preparation
from tablepuppet.errors import LearnError
from tablepuppet.mapping.table_mapping import Floats, TableMapping
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.lou import LearningOverUnion
from tablepuppet.party.arguments import LARGEST
from tablepuppet.pieces import over_pieces
from tablepuppet.prep.encode import Encoding, apply_encoding

Array = NDArray[np.float64]
Number = TypeVar("Number", bound=np.floating[Any])


class Result:
    """An array that was asked for; the first `read` makes the trip, unless another result's has."""

    def __init__(self, finish: Callable[[], Array]):
        self._finish: Callable[[], Array] | None = finish
        self._found = np.empty(0)

    def read(self) -> Array:
        """The array."""
        if self._finish is not None:
            self._found = self._finish()
            self._finish = None  # and with it the replies, and what was asked
        return self._found


class RelationMatrix(ProductOperator):
    """X of a relation by an encoding: table after table, of each the numbers, then the categories.

    It is a SciPy `LinearOperator`: `X @ V`, `X.T @ U`, and what SciPy's solvers ask.

    ``owner`` is what keeps the session open for as long as the matrix is used.
    """

    def __init__(self, client: Client, encoding: Encoding, wire: str, owner: object = None):
        apply_encoding(client, encoding)
        self.encoding, self.wire, self._owner = encoding, wire, owner
        self.preparation = Preparation(encoding, client.engine)
        self._mapping, self._lou = client.mapping, LearningOverUnion(client, wire)
        names = {alias: encoding.names(alias) for alias in encoding.numbers if alias in client.mapping.tables}
        ends = np.cumsum([0, *map(len, names.values())]).tolist()
        self.blocks = {alias: slice(*ends) for alias, ends in zip(names, pairwise(ends), strict=True)}
        self.columns = [name for listed in names.values() for name in listed]
        super().__init__((len(client.mapping), len(self.columns)))
        self._selections: dict[str, Any] = {}  # S_i^T by table, sparse
        self._tables = [alias for alias, listed in names.items() if listed and client.shards(alias)]

    @property
    def first_categories(self) -> list[int]:
        """The places of the first column of each category group: with an intercept, all of a group are one too many."""
        found = []
        for alias, block in self.blocks.items():
            start = block.start + len(self.encoding.numbers[alias])
            for encoder in self.encoding.categories[alias]:
                found.append(start)
                start += len(encoder.names)
        return found

    def times(self, directions: ArrayLike) -> Array:
        """X V: (d,) to (N,), (d, k) to (N, k); one trip."""
        return self.ask_times(directions).read()

    def transposed_times(self, values: ArrayLike) -> Array:
        """X^T U: (N,) to (d,), (N, k) to (d, k); one trip."""
        return self.ask_transposed_times(values).read()

    def column_sums(self) -> Array:
        """The sum of every column over the joined rows, (d,); one trip."""
        return self.ask_column_sums().read()

    @property
    def means(self) -> Array:
        """The mean of every column over the joined rows, (d,); one trip. LearnError if there are no rows."""
        if not self.shape[0]:
            raise LearnError("a relation without joined rows has no means")
        return self.column_sums() / self.shape[0]

    def ask_times(self, directions: ArrayLike) -> Result:
        """Ask for X V; a table is sent those columns of V that are not zero for it."""
        wanted = _checked("V of X @ V", directions, self.shape[1], "columns")
        columns = _wide(wanted)  # (d, k)
        used = {alias: np.flatnonzero(columns[self.blocks[alias]].any(axis=0)) for alias in self._tables}
        used = {alias: places for alias, places in used.items() if len(places)}
        replies = self._ask_images({alias: columns[self.blocks[alias]][:, used[alias]] for alias in used})

        def finish() -> Array:
            found = np.zeros((self.shape[0], columns.shape[1]))  # (N, k)
            images = self._images(replies)

            def gather(part: slice) -> None:
                for alias, image in images.items():
                    table = self._mapping.tables[alias]
                    # mode="clip" skips the bounds check
                    here = image[part] if table.is_identity else image.take(table.index[part], 0, mode="clip")
                    if image.shape[1] == found.shape[1]:
                        found[part] += here
                    else:
                        found[part, used[alias]] += here

            over_pieces(gather, len(found), max(columns.shape[1], 1))
            return found[:, 0] if wanted.ndim == 1 else found

        return Result(finish)

    def ask_transposed_times(self, values: ArrayLike) -> Result:
        """Ask for X^T U; U must not change before the result is read."""
        wanted = _checked("U of X.T @ U", values, self.shape[0], "joined rows")
        columns = _wide(wanted)  # (N, k)
        asked = self._tables if columns.size else ()
        replies = self._ask_sums({alias: self._scattered(alias, columns) for alias in asked})

        def finish() -> Array:
            found = np.zeros((self.shape[1], columns.shape[1]))  # (d, k)
            for alias, sums in self._sums(replies).items():
                found[self.blocks[alias]] = sums
            return found[:, 0] if wanted.ndim == 1 else found

        return Result(finish)

    def ask_sums_by(self, labels: NDArray[np.integer], groups: int) -> Result:
        """Ask for the sums of columns over the joined rows of each group, (d, groups): X^T U for the 0/1 matrix U of
        ``labels``, (N,), numbers of groups. U is not built.
        """
        rows = {}
        for alias in self._tables:
            table = self._mapping.tables[alias]
            pairs = table.index * np.int64(groups) + labels
            counts = np.bincount(pairs, minlength=table.rows * groups)
            rows[alias] = counts.reshape(table.rows, groups).astype(np.float64)
        replies = self._ask_sums(rows)

        def finish() -> Array:
            found = np.zeros((self.shape[1], groups))
            for alias, sums in self._sums(replies).items():
                found[self.blocks[alias]] = sums
            return found

        return Result(finish)

    def ask_squared_norm(self) -> Result:
        """Ask for the sum of the squares of all numbers of X, (1,)."""
        replies = self._ask_grams()
        return Result(
            lambda: np.sum([[np.trace(gram) for gram in self._grams(replies).values()]], axis=1, dtype=np.float64)
        )

    def ask_column_sums(self) -> Result:
        """Ask for the sums of columns. No direction is chosen, so every table that lets statistics out answers."""
        replies = self._lou.ask(
            "matrix.column_sums",
            self._tables,
            bounds=lambda alias: {"sums": self.shape[0] * self.encoding.largest(alias)},
            encoding=self.encoding.id,
        )  # fmt: skip

        def finish() -> Array:
            found = np.zeros(self.shape[1])
            for alias, sums in self._sums(replies).items():
                found[self.blocks[alias]] = sums[:, 0]
            return found

        return Result(finish)

    def gram(self) -> Array:
        """X^T X, (d, d); one trip for one table, else two.

        A table computes its own block. Of two tables the one with fewer columns sends its encoded cells and the other
        multiplies: that moves least. So all tables but the widest send as many products as they have columns.
        """
        within = self._ask_grams()
        order = sorted(self._tables, key=self._width)
        sent = self._ask_images({alias: np.eye(self._width(alias)) for alias in order[:-1]})
        found = np.zeros((self.shape[1], self.shape[1]))
        for alias, gram in self._grams(within).items():
            found[self.blocks[alias], self.blocks[alias]] = gram
        cells = self._images(sent)
        met = {
            alias: np.concatenate([moved(self._mapping, other, alias, cells[other]) for other in order[:place]], axis=1)
            for place, alias in enumerate(order)
            if place
        }
        for alias, sums in self._sums(self._ask_sums(met)).items():
            others = np.concatenate([_places(self.blocks[other]) for other in order[: order.index(alias)]])
            found[self.blocks[alias], others] = sums
            found[others, self.blocks[alias]] = sums.T
        return found

    def _width(self, alias: str) -> int:
        return len(self.encoding.names(alias))

    def _scattered(self, alias: str, columns: Array) -> Array:
        """S_i^T U, (n_i, k)."""
        table = self._mapping.tables[alias]
        if columns.shape[1] == 1 or table.is_identity:
            return self._mapping.scatter_sum(alias, columns)
        if alias not in self._selections:  # several columns are summed much faster by a sparse product
            places = (table.index, np.arange(self.shape[0], dtype=np.int32))
            shape = (table.rows, self.shape[0])
            self._selections[alias] = coo_array((np.ones(self.shape[0]), places), shape=shape).tocsr()
        return np.asarray(self._selections[alias] @ columns)

    def _ask_grams(self) -> Pending:
        """Ask for T_i^T diag(w_i) T_i / N of all tables."""
        return self._lou.ask(
            "matrix.gram", self._tables, bounds=lambda alias: {"gram": self.encoding.largest_square(alias)},
            encoding=self.encoding.id, joined_rows=self.shape[0],
        )  # fmt: skip

    def _grams(self, pending: Pending) -> dict[str, Array]:
        """T_i^T diag(w_i) T_i by table."""
        replies = pending.read()
        return {alias: self._lou.add(replies[alias], "gram") * self.shape[0] for alias in self._tables}

    def _ask_images(self, directions: Mapping[str, Array]) -> Pending:
        """Ask for T_i V_i of some tables."""
        told = {alias: {"directions": _flat(each)} for alias, each in directions.items()}
        return self._lou.ask("matrix.times", told, by_alias=told, encoding=self.encoding.id)

    def _images(self, pending: Pending) -> dict[str, Floats]:
        """T_i V_i by table, (n_i, k)."""
        found = {alias: self._lou.concatenate(each, "image") for alias, each in pending.read().items() if each}
        return {alias: _wide(image) for alias, image in found.items()}

    def _ask_sums(self, rows: Mapping[str, Array]) -> Pending:
        """Ask for T_i^T U_i of some tables."""
        return self._lou.ask(
            "matrix.transposed_times", rows, {alias: _flat(each) for alias, each in rows.items()},
            bounds=lambda alias: {"sums": self._lou.bound(rows[alias]) * self.encoding.largest(alias)},
            encoding=self.encoding.id,
        )  # fmt: skip

    def _sums(self, pending: Pending) -> dict[str, Array]:
        """T_i^T U_i by table, (d_i, k)."""
        found = {alias: self._lou.add(each, "sums") for alias, each in pending.read().items() if each}
        return {alias: _wide(sums) for alias, sums in found.items()}


def moved(mapping: TableMapping, source: str, target: str, values: Floats) -> Array:
    """Values of one table's rows, (rows, k), summed at another's by how often they are joined: S_t^T S_s values."""
    here, there = mapping.tables[source], mapping.tables[target]
    if there.is_identity:
        return np.asarray(mapping.gather(source, values), np.float64)
    if here.is_identity:
        return mapping.scatter_sum(target, values)
    ones = np.ones(len(mapping), np.int32)
    counted = coo_array((ones, (there.index, here.index)), shape=(there.rows, here.rows)).tocsr()
    return np.asarray(counted @ values.astype(np.float64))


def _wide(values: NDArray[Number]) -> NDArray[Number]:
    """With two dimensions."""
    return values[:, None] if values.ndim == 1 else values


def _flat(values: Array) -> Array:
    """Without a second dimension of one: so ops take and answer a single vector."""
    return values[:, 0] if values.shape[1] == 1 else values


def _places(block: slice) -> NDArray[np.intp]:
    return np.arange(block.start, block.stop)


def _checked(what: str, given: ArrayLike, length: int, unit: str) -> Array:
    """Real, finite numbers of one or two dimensions; LearnError if they are others, or of another length."""
    try:
        values = np.asarray(given)
        if values.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise LearnError(f"{what} must be an array of real numbers") from None
    if values.ndim not in (1, 2) or len(values) != length:
        raise LearnError(f"{what} has shape {values.shape}, and X has {length:,} {unit}: ({length},) or ({length}, k)")
    values = values.astype(np.float64, copy=False)
    if not np.all(np.abs(values) <= LARGEST):  # nor NaN
        raise LearnError(f"{what} has numbers that are not finite, or above {LARGEST:g}")
    return values
