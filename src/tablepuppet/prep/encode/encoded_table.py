"""A party's rows of one relation as numbers, and the products that learners compute with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import take
from tablepuppet.errors import PartyError
from tablepuppet.party.allowance import check_memory, check_reply, check_time
from tablepuppet.pieces import pieces
from tablepuppet.privacy.clip import lengths_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_IN_GRAM = 1 << 14  # columns: the Gram matrix then takes 2 GiB
SMALL = 1 << 19  # multiplications of a product of matrices that BLAS makes without copying them first


@dataclass(frozen=True)
class KnownCategories:
    """The categories that one column was encoded by: digests in the order of codes."""

    column: str
    family: str
    digests: NDArray[np.uint8]


class SealedTable:
    """Encoded rows that nobody has looked at: their sizes are known, and they are computed when they are opened.

    ``look`` is called whenever they are: a table that demands noise is opened only where noise is added.
    """

    def __init__(self, rows: int, empty: EncodedTable, compute: Callable[[], EncodedTable], look: Callable[[], None]):
        self.rows, self.empty = rows, empty  # the same columns, without a row
        self._compute: Callable[[], EncodedTable] | None = compute
        self._look = look
        self._opened = empty

    @classmethod
    def of(cls, data: EncodedTable, look: Callable[[], None] = lambda: None) -> SealedTable:
        """Rows that are encoded already."""
        return cls(len(data.dense), replace(data.repeated(slice(0)), known=data.known), lambda: data, look)

    @property
    def width(self) -> int:
        return self.empty.width

    def open(self) -> EncodedTable:
        self._look()
        if self._compute is not None:
            self._opened, self._compute = self._compute(), None  # frees what it was computed from
        return self._opened


@dataclass(frozen=True)
class EncodedTable:
    """A party's rows of one relation as numbers. Categories stay codes: a 0/1 matrix would be mostly zeros."""

    dense: NDArray[np.float64]  # (rows, numbers)
    codes: tuple[NDArray[np.int32], ...]  # per category column, -1 for none
    sizes: tuple[int, ...]
    known: tuple[KnownCategories, ...] = ()

    @property
    def width(self) -> int:
        return int(self.dense.shape[1]) + sum(self.sizes)

    @property
    def columns(self) -> int:
        """Columns before they were encoded: a row of numbers about 1 and of categories has this as its squared norm."""
        return int(self.dense.shape[1]) + len(self.sizes)

    def norms(self) -> NDArray[np.float64]:
        """The length of every row; none vanishes or overflows."""
        categories = np.zeros(len(self.dense))
        for codes in self.codes:
            categories += codes >= 0
        return np.asarray(np.hypot(lengths_of(self.dense), np.sqrt(categories)))

    def rows(self, places: NDArray[np.integer] | slice) -> EncodedTable:
        """Only some of the rows; PartyError for places that are not theirs, or more than there are rows."""
        if not isinstance(places, slice):
            if places.ndim != 1 or (len(places) and (places.min() < 0 or places.max() >= len(self.dense))):
                raise PartyError(f"places of rows must be at least 0 and below {len(self.dense):,}")
            if len(places) > len(self.dense):  # a row that is named again and again takes memory each time
                raise PartyError(f"{len(places):,} places are more than the {len(self.dense):,} rows that take part")
        return self.repeated(places)

    def repeated(self, places: NDArray[np.integer] | slice) -> EncodedTable:
        """The rows at these places, each as often as it is named: for whoever made the places, no caller."""
        return EncodedTable(self.dense[places], tuple(codes[places] for codes in self.codes), self.sizes)

    def times(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """T theta: (width,) or (width, outputs) to one row of outputs per base row."""
        check_length("parameters", theta, self.width)
        check_reply(8 * len(self.dense) * math.prod(theta.shape[1:]))
        numbers = self.dense.shape[1]
        if theta.ndim == 1:
            product: NDArray[np.float64] = self.dense @ theta[:numbers]
            for codes, block in self._blocks(theta):
                product += take(np.append(block, 0.0), codes % (len(block) + 1))
            return product
        product = np.empty((len(self.dense), theta.shape[1]))
        blocks = [(codes, np.concatenate([block, np.zeros((1, len(block.T)))])) for codes, block in self._blocks(theta)]
        wide = max(theta.shape[1], 1)
        parts = pieces(len(product), wide) if blocks else pieces(len(product), wide * max(numbers, 1), SMALL)
        for part in parts:  # each stays in the cache until it is complete
            here = np.matmul(self.dense[part], theta[:numbers], out=product[part])
            for codes, known in blocks:
                here += known.take(codes[part] % len(known), 0, mode="clip")
        return product

    def transposed_times(self, values: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """T^T values: sums over base rows, one per encoded column and output; values may be of the wire's precision."""
        check_length("values", values, len(self.dense))
        check_reply(8 * self.width * math.prod(values.shape[1:]))
        found = np.zeros((self.width, *values.shape[1:]))
        for part in pieces(len(values), max(values[:1].size, 1), SMALL):  # each is widened by itself
            start, wide = self.dense.shape[1], values[part].astype(np.float64, copy=False)
            found[:start] += _transposed_product(self.dense[part], wide)
            for codes, size in zip(self.codes, self.sizes, strict=True):
                found[start : start + size] += sums_by_code(codes[part], size, wide)
                start += size
        return found

    def sums_by(self, labels: NDArray[np.integer], groups: int) -> NDArray[np.float64]:
        """The sums of each encoded column over the rows of each group, (width, groups), by numbers of groups."""
        check_reply(8 * self.width * groups)
        parts = [sums_by_code(labels.astype(np.int32), groups, self.dense).T]
        for codes, size in zip(self.codes, self.sizes, strict=True):
            pairs = (codes % (size + 1)).astype(np.int64) * groups + labels
            parts.append(np.bincount(pairs, minlength=(size + 1) * groups).reshape(-1, groups)[:-1].astype(np.float64))
        return np.concatenate(parts)

    def centred(self, centres: NDArray[np.float64]) -> EncodedTable:
        """The same rows, with a number subtracted from each column of numbers, (numbers,); categories stay codes."""
        if not centres.any():
            return self
        check_memory(self.dense.nbytes)
        return replace(self, dense=self.dense - centres)

    def gram(
        self, weights: NDArray[np.float64], centres: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:  # fmt: skip
        """T^T diag(weights) T; with ``centres``, (width,), of the columns less their centres.

        Numbers are centred before they are multiplied: the difference of two large products would be their rounding.
        """
        if centres is not None:
            check_length("centres", centres, self.width)
            numbers = self.dense.shape[1]
            data, of_codes = self.centred(centres[:numbers]), centres.copy()
            of_codes[:numbers] = 0.0  # of columns that are 0 or 1, where subtracting afterwards is exact enough
            crossed = np.outer(data.transposed_times(weights), of_codes)
            within = weights.sum() * np.outer(of_codes, of_codes)
            return np.asarray(data.gram(weights) - crossed - crossed.T + within)
        self.check_gram()
        numbers = self.dense.shape[1]
        gram = np.zeros((self.width, self.width))
        weighted = self.dense if np.all(weights == 1) else self.dense * weights[:, None]  # a copy costs as the product
        gram[:numbers, :numbers] = self.dense.T @ weighted
        starts = np.cumsum([numbers, *self.sizes])
        for i, (codes, size) in enumerate(zip(self.codes, self.sizes, strict=True)):
            here = slice(starts[i], starts[i] + size)
            gram[here, :numbers] = sums_by_code(codes, size, weighted)
            gram[:numbers, here] = gram[here, :numbers].T
            for j in range(i + 1):
                check_time()
                there = slice(starts[j], starts[j] + self.sizes[j])
                gram[here, there] = self._counts(i, j, weights)
                gram[there, here] = gram[here, there].T
        return gram

    def unrelated_gram(
        self, weights: NDArray[np.float64], centres: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:  # fmt: skip
        """`gram` as it would be if no column had to do with another one: it has squares of each column, and sums."""
        numbers, shift = self.dense.shape[1], np.zeros(self.width)
        if centres is not None:
            check_length("centres", centres, self.width)
            shift[numbers:] = centres[numbers:]
            return self.centred(centres[:numbers])._unrelated_gram(weights, shift)
        return self._unrelated_gram(weights, shift)

    def _unrelated_gram(self, weights: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
        self.check_gram()
        numbers, total = self.dense.shape[1], weights.sum()
        sums = self.transposed_times(weights)
        squares = sums + shift * (total * shift - 2 * sums)  # of columns that are 0 or 1
        squares[:numbers] = np.einsum("rc,rc,r->c", self.dense, self.dense, weights)
        sums = sums - total * shift
        found = np.outer(sums, sums) / max(total, 1.0)
        np.fill_diagonal(found, squares)
        return np.asarray(found)

    def products_of_rows(self) -> NDArray[np.float64]:
        """T T^T: of numbers, and for categories how many two rows have in common."""
        check_memory(2 * 8 * len(self.dense) ** 2)
        found: NDArray[np.float64] = self.dense @ self.dense.T
        for codes in self.codes:
            check_time()
            found += (codes[:, None] == codes) & (codes >= 0)
        return found

    def sparse_gram(self, weights: NDArray[np.float64]) -> csr_array:
        """T^T diag(weights) T, of which entries for categories that never meet are not stored."""
        from scipy.sparse import block_array, coo_array, csr_array, dia_array

        weighted = self.dense * weights[:, None]
        blocks = [[csr_array(self.dense.T @ weighted), *[None] * len(self.codes)]]
        for i, (codes, size) in enumerate(zip(self.codes, self.sizes, strict=True)):
            check_time()
            line = [csr_array(sums_by_code(codes, size, weighted))]
            blocks[0][i + 1] = line[0].T
            for j, others in enumerate(self.codes[:i]):
                both = (codes >= 0) & (others >= 0)
                pairs = coo_array((weights[both], (codes[both], others[both])), shape=(size, self.sizes[j])).tocsr()
                line.append(pairs)
                blocks[j + 1][i + 1] = pairs.T
            own = np.bincount(codes[codes >= 0], weights[codes >= 0], minlength=size)
            blocks.append([*line, dia_array((own[None], [0]), shape=(size, size)), *[None] * (len(self.codes) - i - 1)])
        return block_array(blocks, format="csr")

    def check_gram(self) -> None:
        """PartyError if there are too many columns for a Gram matrix."""
        if self.width > MOST_IN_GRAM:
            raise PartyError(
                f"a table of {self.width:,} encoded columns is too wide for a Gram matrix; at most {MOST_IN_GRAM:,} "
                "are allowed: leave out categories, or use solver='sgd'"
            )
        check_memory(3 * 8 * self.width**2)  # with its eigenvectors, and what these are found in

    def _counts(self, i: int, j: int, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """How often each category of one column occurs with each of another, weighted."""
        wide = self.sizes[j] + 1
        pairs = (self.codes[i] % (self.sizes[i] + 1)).astype(np.int64) * wide + self.codes[j] % wide
        counts = np.bincount(pairs, weights, minlength=(self.sizes[i] + 1) * wide)
        return counts.reshape(-1, wide)[:-1, :-1].astype(np.float64)

    def _blocks(self, theta: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        start = self.dense.shape[1]
        for codes, size in zip(self.codes, self.sizes, strict=True):
            yield codes, theta[start : start + size]
            start += size

    def matrix(self) -> NDArray[np.float64]:
        """The whole table as one dense matrix."""
        blocks = [self.dense]
        for codes, size in zip(self.codes, self.sizes, strict=True):
            blocks.append(np.eye(size + 1, size)[codes])  # the code -1 finds the last row, all zeros
        return np.concatenate(blocks, axis=1)


def _transposed_product(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """one^T two, where both are much longer than wide: a block of rows at a time, each a small product."""
    if two.ndim == 1 or two.shape[1] == 1:
        return np.asarray(one.T @ two)
    found = np.zeros((one.shape[1], two.shape[1]))
    for part in pieces(len(one), max(found.size, 1), SMALL):
        found += one[part].T @ two[part]
    return found


def check_length(what: str, values: NDArray[Any], length: int) -> None:
    """An array of another length would be used in part, and nobody would know."""
    if values.ndim not in (1, 2) or len(values) != length:
        raise PartyError(f"{what} of shape {values.shape} do not fit: {length:,} are needed")


def sums_by_code(codes: NDArray[np.int32], size: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of rows, (rows,) or (rows, columns), summed by code; the code -1 counts nowhere."""
    places = codes % (size + 1)  # -1 becomes the last place
    if values.ndim == 1:
        return np.bincount(places, values, minlength=size + 1)[:-1].astype(np.float64)
    from scipy.sparse import csc_array  # loaded when it is needed, as for all of a party

    rows = len(codes)  # a sparse product adds up all columns of a row at once
    ends = np.arange(rows + 1, dtype=np.int32)
    return np.asarray((csc_array((np.ones(rows), places, ends), shape=(size + 1, rows)) @ values)[:-1], np.float64)
