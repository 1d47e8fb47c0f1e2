"""The joined matrix as SciPy's solvers and NumPy's signs take it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg, eigsh, lobpcg, lsmr, svds

import tablepuppet as tp
from tests.learn.materialised import JOIN, PLAIN, Array, shop
from tests.relations import federation, record_wire


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Any:
    fed = federation(tmp_path_factory.mktemp("shop"), shop(2), wire="float64")
    return fed.sql(f"SELECT {PLAIN} {JOIN}").matrix()


@pytest.fixture(scope="module")
def dense(matrix: Any) -> Array:
    return np.asarray(matrix @ np.eye(matrix.shape[1]))


def test_signs(matrix: Any, dense: Array) -> None:
    """`@`, `.T`, `.H`, scaling, sums and products of operators are what they are of the array, to 1e-9."""
    rng = np.random.default_rng(0)
    rows, width = dense.shape
    assert isinstance(matrix, LinearOperator)
    assert aslinearoperator(matrix) is matrix
    assert (matrix.shape, matrix.dtype, matrix.T.shape) == ((rows, width), np.float64, (width, rows))
    assert matrix.T.T is matrix
    v, u, many, wide = (rng.normal(size=size) for size in (width, rows, (width, 3), (rows, 3)))
    centred = matrix - aslinearoperator(np.ones((rows, 1))) @ aslinearoperator(dense.mean(axis=0)[None])
    for found, expected in (
        (matrix @ v, dense @ v),
        (matrix @ v[:, None], dense @ v[:, None]),
        (matrix @ many, dense @ many),
        (matrix.T @ u, dense.T @ u),
        (matrix.H @ wide, dense.T @ wide),
        (u @ matrix, u @ dense),
        (v @ matrix.T, v @ dense.T),
        (matrix.matvec(v), dense @ v),
        (matrix.rmatvec(u), dense.T @ u),
        (matrix.matmat(many), dense @ many),
        (matrix.rmatmat(wide), dense.T @ wide),
        (matrix.T.rmatvec(v), dense @ v),
        ((2 * matrix) @ v, 2 * dense @ v),
        ((matrix / 2) @ v, dense @ v / 2),
        ((-matrix.T) @ u, -dense.T @ u),
        ((matrix @ aslinearoperator(many)) @ np.ones(3), dense @ many @ np.ones(3)),
        (centred @ v, (dense - dense.mean(axis=0)) @ v),
        (centred.T @ u, (dense - dense.mean(axis=0)).T @ u),
        (matrix.T @ matrix, dense.T @ dense),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_solvers(matrix: Any, dense: Array) -> None:
    """SciPy's solvers find what they find of the array: least squares, a linear system, singular and eigenvalues."""
    rng = np.random.default_rng(1)
    target = rng.normal(size=len(dense))
    expected = np.linalg.lstsq(dense, target, rcond=None)[0]
    np.testing.assert_allclose(lsmr(matrix, target, atol=1e-12, btol=1e-12)[0], expected, atol=1e-7)
    width = dense.shape[1]
    normal = LinearOperator((width, width), matvec=lambda v: matrix.T @ (matrix @ v), dtype=float)
    found, failed = cg(normal, matrix.T @ target, rtol=1e-12)
    assert not failed
    np.testing.assert_allclose(found, expected, atol=1e-7)
    singular = np.linalg.svd(dense, compute_uv=False)
    start = rng.normal(size=min(dense.shape))
    np.testing.assert_allclose(np.sort(svds(matrix, k=3, v0=start)[1])[::-1], singular[:3], rtol=1e-8)
    largest = eigsh(normal, k=2, v0=start, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(largest)[::-1], singular[:2] ** 2, rtol=1e-8)
    block = lobpcg(normal, rng.normal(size=(dense.shape[1], 1)), tol=1e-9, maxiter=200)[0]
    np.testing.assert_allclose(block, singular[:1] ** 2, rtol=1e-6)


def test_several_vectors_travel_together(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product with many vectors is one request to each party, by whatever sign."""
    messages = record_wire(monkeypatch)
    for operator in (matrix, matrix.T):
        messages.clear()
        operator @ np.ones((operator.shape[1], 5))
        assert set(Counter(message.party for message in messages if message.last).values()) == {1}


@pytest.mark.parametrize("sign", ["X.T * v", "v * X.T", "X.T ** 2"])
def test_elementwise_signs_of_operators_are_refused(matrix: Any, sign: str) -> None:
    """SciPy would multiply where NumPy works element by element: neither is done in silence."""
    with pytest.raises(tp.LearnError, match=r"would be elementwise.*write A @ other"):
        eval(sign, {"X": matrix, "v": np.ones(matrix.shape[1])})


def test_shapes_that_do_not_fit(matrix: Any) -> None:
    """By one sentence with both shapes, of the matrix and of its transpose."""
    with pytest.raises(tp.LearnError, match=r"V of X @ V has shape \(3,\), and X has"):
        matrix @ np.ones(3)
    with pytest.raises(tp.LearnError, match=r"U of X\.T @ U has shape \(3, 2\), and X has"):
        matrix.T @ np.ones((3, 2))
    with pytest.raises(tp.LearnError, match="real numbers"):
        matrix @ np.full(matrix.shape[1], "a")
