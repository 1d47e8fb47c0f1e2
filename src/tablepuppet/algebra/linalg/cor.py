"""Correlations of the columns of X over the joined rows."""

from __future__ import annotations

import numpy as np

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import Design, centred_gram
from tablepuppet.algebra.linalg.program import program
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError


@program
def cor(X: LazyArray) -> Array:
    """Pearson's correlations, (columns, columns), in the order of X.columns; one trip over one table, else two.

    NaN for a column with one value only in these rows. Raises LearnError for fewer than two joined rows.
    """
    rows = X.shape[0]
    if rows < 2:
        raise LearnError(f"cor: correlations need two joined rows or more, and X has {rows:,}")
    gram = Design(X, all_columns=True).gram()
    centred, squares = centred_gram(gram), np.diag(gram)[1:]
    spread = np.diag(centred)
    same = spread <= rows * np.finfo(np.float64).eps * np.maximum(squares, 1e-300)
    scale = np.sqrt(np.where(same, np.nan, spread))
    found: Array = np.clip(centred / np.outer(scale, scale), -1.0, 1.0)
    np.fill_diagonal(found, np.where(same, np.nan, 1.0))
    return found
