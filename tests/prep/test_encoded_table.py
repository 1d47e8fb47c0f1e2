"""Products with an encoded table: those of the dense matrix, though categories stay codes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

import tablepuppet as tp
from tablepuppet.prep.encode.encoded_table import EncodedTable, sums_by_code


def table(rows: int, numbers: int, sizes: tuple[int, ...], seed: int = 0) -> EncodedTable:
    """Random numbers and codes, one code in five missing."""
    rng = np.random.default_rng(seed)
    codes = tuple(np.where(rng.random(rows) < 0.2, -1, rng.integers(0, size, rows)).astype(np.int32) for size in sizes)
    return EncodedTable(rng.normal(size=(rows, numbers)), codes, sizes)


def close(left: ArrayLike, right: ArrayLike) -> None:
    np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.integers(0, 30),
    st.integers(0, 4),
    st.lists(st.integers(1, 5), max_size=3).map(tuple),
    st.sampled_from([None, 1, 4]),
    st.integers(0, 99),
)
def test_products_are_those_of_the_matrix(
    rows: int, numbers: int, sizes: tuple[int, ...], outputs: int | None, seed: int
) -> None:
    """times, transposed_times, gram and rows, for any number of columns, outputs and rows, none included."""
    data, rng = table(rows, numbers, sizes, seed), np.random.default_rng(seed)
    matrix = data.matrix()
    assert matrix.shape == (rows, data.width) == (rows, numbers + sum(sizes))
    several = () if outputs is None else (outputs,)
    theta, values = rng.normal(size=(data.width, *several)), rng.normal(size=(rows, *several))
    weights = rng.integers(0, 9, rows).astype(float)
    close(data.times(theta), matrix @ theta)
    close(data.transposed_times(values), matrix.T @ values)
    close(data.gram(weights), matrix.T @ (weights[:, None] * matrix))
    centres = rng.normal(size=data.width)
    close(data.gram(weights, centres), (matrix - centres).T @ (weights[:, None] * (matrix - centres)))
    places = rng.integers(0, rows, 5) if rows else np.zeros(0, int)
    close(data.repeated(places).matrix(), matrix[places])


@pytest.mark.parametrize("mean", [0.0, 1e6, 1e9])
def test_a_gram_matrix_is_centred_before_it_is_multiplied(mean: float) -> None:
    """Columns a billion times as far from zero as from each other keep their variances, and those with categories."""
    data, weights = table(500, 3, (4,)), np.random.default_rng(1).integers(1, 9, 500).astype(float)
    far = replace(data, dense=np.round(data.dense, 3) + mean)
    matrix = np.column_stack([far.dense - mean, data.matrix()[:, 3:]])  # exact: so few digits fit beside the mean
    centres = np.average(matrix, axis=0, weights=weights)
    known = (matrix - centres).T @ (weights[:, None] * (matrix - centres))
    found = far.gram(weights, centres + np.repeat([mean, 0.0], [3, 4]))
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-6 * np.abs(known).max())


def test_a_missing_code_is_all_zeros() -> None:
    """The code -1 has no column: it adds nothing to products, sums and counts."""
    data = EncodedTable(np.zeros((3, 0)), (np.array([1, -1, 0], np.int32),), (2,))
    close(data.matrix(), [[0, 1], [0, 0], [1, 0]])
    close(data.times(np.array([10.0, 20.0])), [20, 0, 10])
    close(data.transposed_times(np.array([1.0, 2.0, 4.0])), [4, 1])
    close(data.gram(np.array([1.0, 2.0, 4.0])), [[4, 0], [0, 1]])


def test_only_missing_codes() -> None:
    """A column that is missing everywhere is zero everywhere."""
    data = EncodedTable(np.ones((4, 1)), (np.full(4, -1, np.int32),), (3,))
    close(data.times(np.arange(4.0)), np.zeros(4))
    close(data.gram(np.ones(4)), np.diag([4.0, 0, 0, 0]))


def test_sums_keep_every_category() -> None:
    """Categories that no row has are zeros, and stay in place."""
    codes = np.array([3, 1, 1, -1], np.int32)
    close(sums_by_code(codes, 5, np.array([1.0, 2.0, 3.0, 9.0])), [0, 5, 0, 1, 0])
    close(sums_by_code(codes, 5, np.ones((4, 2)))[:, 1], [0, 2, 0, 1, 0])


def test_other_lengths_are_refused() -> None:
    """Parameters, values and places that do not fit the table are an error, not a wrong answer."""
    data = table(5, 2, (3,))
    for theta in (np.zeros(4), np.zeros(6), np.zeros(())):
        with pytest.raises(tp.PartyError, match="parameters of shape"):
            data.times(theta)
    with pytest.raises(tp.PartyError, match="values of shape"):
        data.transposed_times(np.zeros(6))
    with pytest.raises(tp.PartyError, match="centres of shape"):
        data.gram(np.ones(5), np.zeros(2))
    for places in (np.array([5]), np.array([-1]), np.zeros((1, 1), int)):
        with pytest.raises(tp.PartyError, match="below 5"):
            data.rows(places)


def test_a_gram_matrix_has_bounds() -> None:
    """A table of so many columns that their Gram matrix would fill the memory is refused before it is made."""
    with pytest.raises(tp.PartyError, match="too wide"):
        EncodedTable(np.zeros((1, 0)), (np.zeros(1, np.int32),), (1 << 20,)).gram(np.ones(1))
