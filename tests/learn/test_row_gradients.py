"""Gradients bounded row by row: they are those of autograd, no row adds more than its bound, null ones nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.learn.tables.dense import Dense, DenseRows, Network, NetworkTable
from tablepuppet.learn.tables.linear import LinearRows
from tablepuppet.learn.tables.model import RowModel
from tablepuppet.learn.tables.noisy import predicted
from tablepuppet.prep.encode.encoded_table import EncodedTable

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")

Array = NDArray[np.float64]
NUMBERS, SIZES = 2, (3, 2)
WIDTH = NUMBERS + sum(SIZES)


def table_of(rng: np.random.Generator, rows: int, nulls: int = 0) -> EncodedTable:
    """Random encoded rows; the last ones are null records."""
    dense = rng.normal(size=(rows, NUMBERS)) * np.exp(2 * rng.normal(size=(rows, 1)))
    codes = tuple(rng.integers(-1, size, rows).astype(np.int32) for size in SIZES)
    dense[rows - nulls :] = 0.0
    for column in codes:
        column[rows - nulls :] = -1
    return EncodedTable(dense, codes, SIZES)


def models(outputs: int, rng: np.random.Generator) -> list[tuple[RowModel, Array]]:
    """A linear model, a network with one hidden layer and one with two, each with parameters."""
    shape = (WIDTH,) if outputs == 1 else (WIDTH, outputs)
    found: list[tuple[RowModel, Array]] = [(LinearRows(), rng.normal(size=shape))]
    for hidden in ((4,), (4, 3)):
        network = Network(hidden, outputs).over(WIDTH)
        found.append((network.by_row, rng.normal(size=len(network.start(0, "t", NUMBERS)))))
    return found


def network_of(model: DenseRows) -> NetworkTable:
    _, *hidden, outputs = model.dense.sizes
    return Network(tuple(hidden), outputs).over(WIDTH)


def by_torch(model: DenseRows, theta: Any, table: EncodedTable) -> Any:
    """What the layers are, written down once more, in torch."""
    values, before = torch.from_numpy(table.matrix()), None
    for weights, bias in model.dense.layers(theta):
        values = (values if before is None else torch.tanh(values + before)) @ weights
        before = bias
    return values[:, 0] if values.shape[1] == 1 else values


def autograd(model: RowModel, theta: Array, table: EncodedTable, wanted: Array) -> Array:
    """The sum over rows of J_r^T Y_r, by torch where the model is a network."""
    if isinstance(model, DenseRows):
        point = torch.tensor(theta, requires_grad=True)
        by_torch(model, point, table).backward(torch.from_numpy(wanted))
        return np.asarray(point.grad.numpy())
    return table.transposed_times(wanted)


def row_gradients(model: RowModel, theta: Array, table: EncodedTable, wanted: Array) -> Array:
    """J_r^T Y_r of every row, each from a table of that row alone."""
    places = np.arange(len(table.dense))
    return np.stack([autograd(model, theta, table.rows(places[r : r + 1]), wanted[r : r + 1]).ravel() for r in places])


@pytest.mark.parametrize("outputs", [1, 3])
def test_sums_are_those_of_single_gradients_cut_to_the_bound(outputs: int) -> None:
    """Without making a gradient for any row, the sum is that of autograd's gradients, each cut to the bound."""
    rng = np.random.default_rng(1)
    table, wanted = table_of(rng, 40), rng.normal(size=40 if outputs == 1 else (40, outputs))
    for model, theta in models(outputs, rng):
        single = row_gradients(model, theta, table, wanted)
        single[table.norms() == 0] = 0.0
        clip = float(np.median(np.linalg.norm(single, axis=1)))
        cut = single * np.minimum(1, clip / np.maximum(np.linalg.norm(single, axis=1), 1e-300))[:, None]
        found = model.clipped_sums(theta, table, wanted, clip).ravel()
        np.testing.assert_allclose(found, cut.sum(axis=0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
def test_predictions_are_those_of_the_network(outputs: int) -> None:
    """Some rows at a time or all at once, they are what torch says."""
    rng = np.random.default_rng(2)
    table = table_of(rng, 50)
    for model, theta in models(outputs, rng)[1:]:
        assert isinstance(model, DenseRows)
        whole = network_of(model).predict(theta, table)
        expected = by_torch(model, torch.from_numpy(theta), table).numpy()
        np.testing.assert_allclose(whole, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(predicted(model, theta, table), whole, rtol=1e-12)
        np.testing.assert_allclose(model.predict(theta, table.rows(slice(3, 9))), whole[3:9], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-320, 1e-168, 1e100, 1e200, np.inf, np.nan])
def test_any_parameters(size: float) -> None:
    """Whatever parameters and wishes are, a row adds a finite part within the bound, and other rows are not touched."""
    rng = np.random.default_rng(5)
    for model, theta in models(1, rng):
        for wanted in (rng.normal(size=2) * size, rng.normal(size=2) / size if size else np.ones(2)):
            table = table_of(rng, 2)
            dense = table.dense.copy()
            dense[0], table.codes[0][0], table.codes[1][0] = 0.0, -1, -1
            alone = EncodedTable(dense, table.codes, SIZES)
            found = model.clipped_sums(theta * size, alone, wanted, 1.0)
            assert np.isfinite(found).all()
            assert np.linalg.norm(found) <= 1 + 1e-6


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), outputs=st.sampled_from([1, 3]), clip=st.sampled_from([1e-3, 0.5, 1.0, 50.0]))
def test_no_row_adds_more_than_the_bound(seed: int, outputs: int, clip: float) -> None:
    """With a row replaced by a null record, the sum of any model changes by no more than the bound."""
    rng = np.random.default_rng(seed)
    rows = 7
    table, wanted = table_of(rng, rows), 5 * rng.normal(size=rows if outputs == 1 else (rows, outputs))
    row = int(rng.integers(rows))
    dense, codes = table.dense.copy(), tuple(each.copy() for each in table.codes)
    dense[row] = 0.0
    for each in codes:
        each[row] = -1
    neighbour = EncodedTable(dense, codes, SIZES)
    for model, theta in models(outputs, rng):
        both = (model.clipped_sums(theta, each, wanted, clip) for each in (table, neighbour))
        assert np.linalg.norm(np.subtract(*both)) <= clip * (1 + 1e-9)


def test_what_is_within_the_bound_is_not_touched() -> None:
    """A large bound gives the gradient itself."""
    rng = np.random.default_rng(3)
    table, wanted = table_of(rng, 30), rng.normal(size=30)
    for model, theta in models(1, rng):
        np.testing.assert_allclose(
            model.clipped_sums(theta, table, wanted, 1e9).ravel(),
            autograd(model, theta, table, wanted).ravel(),
            rtol=1e-9,
            atol=1e-12,
        )


def test_null_records_add_nothing() -> None:
    """Not even to the biases of hidden layers, where the gradient of a network would not be zero."""
    rng = np.random.default_rng(4)
    table, wanted = table_of(rng, 5, nulls=5), rng.normal(size=5)
    for model, theta in models(1, rng):
        assert not model.clipped_sums(theta, table, wanted, 1.0).any()
    network, theta = models(1, rng)[1]
    assert autograd(network, theta, table, wanted).any()
    assert not network.clipped_sums(theta, table.rows(np.arange(0)), wanted[:0], 1.0).any()


@pytest.mark.parametrize("shape", [(5,), (7,), (10,), (8, 1), (9, 2)])
def test_parameters_of_another_shape_are_refused_by_their_shape(shape: tuple[int, ...]) -> None:
    """The error says how many parameters there are, before any layer is cut out of them."""
    for last_bias, needed in ((True, 9), (False, 8)):  # 2 x 2 weights, 2 biases, 2 x 1 weights, the last bias
        dense = Dense((2, 2, 1), by_output=False, last_bias=last_bias)
        assert dense.parameters == needed
        with pytest.raises(LearnError, match=rf"parameters of shape .* do not fit: {needed} are needed"):
            dense.layers(np.zeros(shape))
