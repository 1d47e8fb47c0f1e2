"""Sums at base rows of several values of their joined rows at once: S_i^T U."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csc_array

from tablepuppet.mapping.table_mapping import Floats, MappedTable
from tablepuppet.pieces import pieces

Array = NDArray[np.float64]


class RowSums:
    """S_i^T as a sparse matrix, kept for one product after the other.

    Base rows are numbered as they first occur among the joined rows, so that what is added up next is mostly near what
    was before, and in the cache; the sums are put in the table's order in the end.
    """

    def __init__(self, table: MappedTable):
        rows, joined = table.rows, len(table.index)
        first = np.full(rows, joined, np.int32)
        first[table.index[::-1]] = np.arange(joined - 1, -1, -1, dtype=np.int32)  # what is written last is the first
        order = np.argsort(first, kind="stable")
        numbers = np.empty(rows, np.int32)
        numbers[order] = np.arange(rows, dtype=np.int32)
        self._numbers = None if np.array_equal(order, np.arange(rows)) else numbers
        index = table.index if self._numbers is None else numbers.take(table.index)
        ends = np.arange(joined + 1, dtype=np.int32)
        self._sums = csc_array((np.ones(joined), index, ends), shape=(rows, joined))

    def of(self, columns: Array, precision: DTypeLike = np.float64) -> Floats:
        """S_i^T U, (rows, k), added up in double precision and rounded in the end."""
        found = self._sums @ columns
        ordered: Floats = np.empty(found.shape, precision)
        with np.errstate(over="ignore"):  # its caller looks whether all are finite
            for part in pieces(len(ordered), max(columns.shape[1], 1)):
                here = found[part] if self._numbers is None else found.take(self._numbers[part], 0, mode="clip")
                ordered[part] = here
        return ordered
