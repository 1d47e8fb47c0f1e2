"""NAT: targets, their assignment, the steps, and what a row adds where there is noise."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablepuppet.learn.split.nat import (
    NatSettings,
    NatTraining,
    assigned,
    derivatives,
    principal_components,
    targets_of,
)
from tablepuppet.learn.tables.dense import Dense, DenseRows, Matrix, Mlp
from tablepuppet.prep.encode.encoded_table import EncodedTable

torch: Any = pytest.importorskip("torch")


def network(*sizes: int, activation: Any = torch.nn.ReLU, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    layers: list[Any] = []
    for into, out in pairwise(sizes):
        layers += [torch.nn.Linear(into, out), activation()]
    return torch.nn.Sequential(*layers[:-1])


def training(rows: np.ndarray, outputs: int, seed: int = 0, **settings: Any) -> NatTraining:
    targets = targets_of(np.arange(len(rows)), outputs, seed)
    table, matrix = Mlp((16,), outputs, "relu", False).over(rows.shape[1]), Matrix(rows.astype(np.float32))
    theta = table.start(0, "t", rows.shape[1])
    return NatTraining(table, theta, matrix.__getitem__, targets, NatSettings(**settings), seed)


def test_targets_are_uniform_on_the_unit_sphere() -> None:
    """Length 1, mean zero, covariance I / d."""
    targets = targets_of(np.arange(40_000), 4, seed=3)
    np.testing.assert_allclose(np.linalg.norm(targets, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(targets.T @ targets / len(targets), np.eye(4) / 4, atol=0.02)


@given(st.lists(st.integers(0, 200), unique=True, min_size=1), st.integers(1, 5), st.integers(0, 9))
def test_a_target_depends_on_its_row_alone(ids: list[int], outputs: int, seed: int) -> None:
    """The target of a row is the same whatever other rows take part."""
    both = targets_of(np.array(ids), outputs, seed)
    for place, row in enumerate(ids):
        np.testing.assert_array_equal(both[place], targets_of(np.array([row]), outputs, seed)[0])


@given(st.integers(1, 6), st.integers(0, 1000))
def test_the_assignment_is_optimal(rows: int, seed: int) -> None:
    """No permutation of targets within the batch has a larger sum, ties and negative numbers included."""
    agreement = np.random.default_rng(seed).integers(-3, 4, (rows, rows)) / 3
    found = assigned(agreement)
    assert sorted(found) == list(range(rows))
    best = max(sum(agreement[row, column] for row, column in enumerate(each)) for each in permutations(range(rows)))
    assert agreement[np.arange(rows), found].sum() == pytest.approx(best)


def test_each_batch_of_an_assigning_epoch_ends_optimally_assigned() -> None:
    """The targets of a batch are a permutation of those it had, and no exchange of two rows would lower its loss."""
    rows = np.random.default_rng(0).standard_normal((96, 5))
    work = training(rows, 3, batch_size=32)
    before, steps = work.targets.copy(), []
    inner = work._step

    def watched(places: Any, assigns: bool) -> float:
        outputs = work.network.forward(work.theta, work.rows(places)).outputs
        value = inner(places, assigns)
        steps.append((outputs / np.linalg.norm(outputs, axis=1, keepdims=True), places))
        unit, targets = steps[-1][0], work.targets[places]
        agreement = unit @ targets.T
        assert agreement.trace() >= agreement[np.arange(len(places)), assigned(agreement)].sum() - 1e-4
        return value

    work._step = watched  # type: ignore[method-assign]
    work.train(1)
    assert len(steps) == 3
    assert {tuple(each) for each in work.targets.tolist()} == {tuple(each) for each in before.tolist()}
    assert (work.targets != before).any()


def test_targets_stay_between_assignments() -> None:
    """With assign_every=3 only epochs 0 and 3 exchange targets."""
    work = training(np.random.default_rng(0).standard_normal((64, 5)), 3, batch_size=16, assign_every=3)
    found = [work.targets.copy()]
    for _ in range(4):
        work.train(1)
        found.append(work.targets.copy())
    assert [bool((a != b).any()) for a, b in pairwise(found)] == [True, False, False, True]


def test_the_derivative_is_that_of_autograd() -> None:
    """1/2 |h / |h| - c|^2 by h, to single precision; an output of zero has a finite one."""
    rng = np.random.default_rng(1)
    outputs, targets = rng.standard_normal((7, 4)), targets_of(np.arange(7), 4, 0).astype(np.float64)
    point = torch.tensor(outputs, requires_grad=True)
    value = 0.5 * ((torch.nn.functional.normalize(point) - torch.from_numpy(targets)) ** 2).sum(dim=1)
    value.sum().backward()
    losses, slopes = derivatives(outputs, targets)
    np.testing.assert_allclose(losses, value.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(slopes, point.grad.numpy(), atol=1e-6)
    np.testing.assert_array_equal(derivatives(np.zeros((2, 4)), targets[:2])[1], -targets[:2])


@pytest.mark.parametrize(("activation", "layer"), [("relu", torch.nn.ReLU), ("tanh", torch.nn.Tanh)])
def test_gradients_of_layers_are_those_of_autograd(activation: Any, layer: Any) -> None:
    """By all parameters, and by the output of the first layer, from which those by the inputs follow."""
    rng = np.random.default_rng(6)
    module, given = network(7, 5, 4, 2, activation=layer).double(), rng.standard_normal((12, 2))
    theta = np.concatenate([each.detach().numpy().ravel() for each in module.parameters()])
    rows = torch.tensor(rng.standard_normal((12, 7)), requires_grad=True)
    expected = module(rows)
    expected.backward(torch.from_numpy(given))
    passed = Dense((7, 5, 4, 2), activation).forward(theta, Matrix(rows.detach().numpy()))
    np.testing.assert_allclose(passed.outputs, expected.detach().numpy(), atol=1e-12)
    gradient, slopes = passed.backward(given)
    by_theta = np.concatenate([part.grad.numpy().ravel() for part in module.parameters()])
    np.testing.assert_allclose(gradient, by_theta, atol=1e-12)
    np.testing.assert_allclose(slopes @ passed.layers[0][0].T, rows.grad.numpy(), atol=1e-12)


def test_training_lowers_the_loss_and_is_the_same_in_pieces() -> None:
    """Ten epochs are 3 + 7 epochs, to the last bit, and rows spread over the sphere."""
    rows = np.random.default_rng(5).standard_normal((300, 6))
    whole, pieces = training(rows, 3), training(rows, 3)
    losses = whole.train(10)
    assert losses == pieces.train(3) + pieces.train(7)
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_array_equal(whole.theta, pieces.theta)


def test_no_rows_and_one_row_train() -> None:
    """A table may have few rows in a relation."""
    assert training(np.zeros((0, 3)), 2).train(2) == [0.0, 0.0]
    assert len(training(np.ones((1, 3)), 2, batch_size=64).train(2)) == 2


def test_components_are_those_of_the_joined_table() -> None:
    """With rows weighted by counts: the PCA of scikit-learn on rows that are repeated, whitened, up to signs."""
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(2)
    rows, counts = rng.standard_normal((50, 5)) @ rng.standard_normal((5, 5)), rng.integers(0, 4, 50)
    joined = np.repeat(rows, counts, axis=0)
    joined, rows = joined - joined.mean(axis=0), rows - joined.mean(axis=0)
    found = principal_components(rows.T @ (counts[:, None] * rows) / counts.sum(), 3)
    # scikit-learn divides by one row less
    expected = PCA(3, whiten=True).fit_transform(joined) * np.sqrt(len(joined) / (len(joined) - 1))
    np.testing.assert_allclose(np.abs(joined @ found), np.abs(expected), atol=1e-9)
    assert (found[np.abs(found).argmax(axis=0), range(3)] > 0).all()


def test_components_that_a_table_does_not_have_are_zero() -> None:
    """Two columns, of which one is constant, and four components."""
    found = principal_components(np.diag([4.0, 0.0]), 4)
    np.testing.assert_array_equal(found, [[0.5, 0, 0, 0], [0, 0, 0, 0]])


def encoded(rng: np.random.Generator, rows: int) -> EncodedTable:
    dense, codes = rng.standard_normal((rows, 4)), rng.integers(-1, 3, rows).astype(np.int32)
    dense[0], codes[0] = 0.0, -1  # a null record
    return EncodedTable(dense, (codes,), (3,))


@pytest.mark.parametrize(("activation", "layer"), [("relu", torch.nn.ReLU), ("tanh", torch.nn.Tanh)])
def test_clipped_sums_are_those_of_autograd_row_by_row(activation: Any, layer: Any) -> None:
    """Each row's gradient by autograd, clipped and added up; a null record adds nothing."""
    rng = np.random.default_rng(4)
    table, row_gradients = encoded(rng, 12), rng.standard_normal((12, 2))
    module = network(7, 5, 4, 2, activation=layer).double()
    theta = np.concatenate([each.detach().numpy().ravel() for each in module.parameters()])
    rows = DenseRows(Dense((7, 5, 4, 2), activation))
    inputs = torch.from_numpy(table.matrix())
    np.testing.assert_allclose(rows.predict(theta, table), module(inputs).detach().numpy(), atol=1e-12)
    expected = np.zeros(len(theta))
    for row in range(1, 12):
        module.zero_grad()
        module(inputs[row : row + 1]).backward(torch.from_numpy(row_gradients[row : row + 1]))
        each = np.concatenate([part.grad.numpy().ravel() for part in module.parameters()])
        expected += each * min(1.0, 0.7 / np.linalg.norm(each))
    np.testing.assert_allclose(rows.clipped_sums(theta, table, row_gradients, 0.7), expected, atol=1e-10)


def _largest_change(assigns: bool) -> float:
    """By how much the sum of clipped gradients changes at most when one row of 32 becomes a null record."""
    rng = np.random.default_rng(7)
    table = EncodedTable(rng.standard_normal((32, 6)), (), ())
    rows, clip = DenseRows(Dense((6, 16, 2))), 1.0
    parts = [part.detach().numpy().ravel() for part in network(6, 16, 2).parameters()]
    theta = 0.3 * np.concatenate(parts).astype(np.float64)  # short outputs: every row is clipped
    targets = targets_of(np.arange(32), 2, 1).astype(np.float64)

    def sums(data: EncodedTable) -> np.ndarray:
        outputs = rows.predict(theta, data)
        unit = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
        own = targets[assigned(unit @ targets.T)] if assigns else targets
        return rows.clipped_sums(theta, data, np.asarray(derivatives(outputs, own)[1]), clip)

    whole, changes = sums(table), []
    for row in range(32):
        dense = table.dense.copy()
        dense[row] = 0.0
        changes.append(float(np.linalg.norm(sums(EncodedTable(dense, (), ())) - whole)))
    return max(changes)


def test_a_row_with_a_target_of_its_own_changes_a_sum_by_the_clipping_bound_at_most() -> None:
    """The audit of FedOnce-L1: it holds for own targets, and finds that assignment within a batch breaks the bound."""
    assert _largest_change(assigns=False) <= 1.0 + 1e-9
    assert _largest_change(assigns=True) > 1.2
