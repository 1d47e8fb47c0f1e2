"""Gradients bounded row by row: lengths are those of autograd, no row adds more than its bound, null ones nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tablepuppet.learn.row_gradients import LinearRows, NetworkRows, RowModel, clipped_sums
from tablepuppet.learn.table_network import TableNetwork
from tablepuppet.prep.encoded_table import EncodedTable

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")
pytest.importorskip("opacus", reason="private networks need the extra `deep`")

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
        network = TableNetwork.over(WIDTH, hidden, outputs)
        found.append((NetworkRows(network), rng.normal(size=len(network.start(0, "t", NUMBERS)))))
    return found


def row_gradients(model: RowModel, theta: Array, table: EncodedTable, wanted: Array) -> Array:
    """J_r^T Y_r of every row, each from a table of that row alone."""
    places = np.arange(len(table.dense))
    return np.stack([model.sums(theta, table.rows(places[r : r + 1]), wanted[r : r + 1]).ravel() for r in places])


@pytest.mark.parametrize("outputs", [1, 3])
def test_lengths_are_those_of_single_gradients(outputs: int) -> None:
    """In closed form for linear models, by Opacus for networks, lengths are those of a gradient for each row."""
    rng = np.random.default_rng(1)
    table, wanted = table_of(rng, 40), rng.normal(size=40 if outputs == 1 else (40, outputs))
    for model, theta in models(outputs, rng):
        single = row_gradients(model, theta, table, wanted)
        np.testing.assert_allclose(model.lengths(theta, table, wanted), np.linalg.norm(single, axis=1), rtol=1e-10)


def test_lengths_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows are looked at together changes nothing."""
    rng = np.random.default_rng(2)
    table, wanted = table_of(rng, 50), rng.normal(size=50)
    model, theta = models(1, rng)[1]
    whole = model.lengths(theta, table, wanted)
    monkeypatch.setattr("tablepuppet.learn.row_gradients.NUMBERS", 8 * WIDTH)
    np.testing.assert_allclose(model.lengths(theta, table, wanted), whole, rtol=1e-12)


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
        both = (clipped_sums(model, theta, each, wanted, clip) for each in (table, neighbour))
        assert np.linalg.norm(np.subtract(*both)) <= clip * (1 + 1e-9)


def test_what_is_within_the_bound_is_not_touched() -> None:
    """A large bound gives the gradient itself."""
    rng = np.random.default_rng(3)
    table, wanted = table_of(rng, 30), rng.normal(size=30)
    for model, theta in models(1, rng):
        np.testing.assert_allclose(
            clipped_sums(model, theta, table, wanted, 1e9), model.sums(theta, table, wanted), rtol=1e-9, atol=1e-12
        )


def test_null_records_add_nothing() -> None:
    """Not even to the biases of hidden layers, where the gradient of a network would not be zero."""
    rng = np.random.default_rng(4)
    table, wanted = table_of(rng, 5, nulls=5), rng.normal(size=5)
    for model, theta in models(1, rng):
        assert not clipped_sums(model, theta, table, wanted, 1.0).any()
    network, theta = models(1, rng)[1]
    assert network.sums(theta, table, wanted).any()
    assert not clipped_sums(network, theta, table.rows(np.arange(0)), wanted[:0], 1.0).any()
