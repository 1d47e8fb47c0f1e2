"""Sums of gradients to which no row adds more than a bound: what differential privacy needs before noise is added.

Comes in: encoded rows, parameters, and for each row the derivative Y_r by its prediction, in which everything that it
is joined with is already added up. Goes out: the sum over rows of J_r^T Y_r, J_r the derivative of the prediction by
the parameters, each cut to length ``clip``. A null record, a row of missing values, adds exactly nothing.

Linear models need no gradients of single rows: |J_r^T Y_r| = |t_r| |Y_r|. For networks the lengths come from Opacus,
which finds them layer by layer, without a gradient per row ("ghost clipping"); it draws no noise here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError
from tablepuppet.learn.table_network import TableNetwork, need_torch
from tablepuppet.learn.threads import one_thread
from tablepuppet.prep.encoded_table import EncodedTable

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[np.float64]
NUMBERS = 1 << 22  # of encoded rows at a time, with 0/1 columns spelled out


class RowModel(Protocol):
    """A model whose gradients are bounded row by row."""

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """h: (rows,) for one output, else (rows, outputs)."""
        ...

    def lengths(self, theta: Array, table: EncodedTable, wanted: Array) -> Array:
        """|J_r^T Y_r| of every row."""
        ...

    def sums(self, theta: Array, table: EncodedTable, wanted: Array) -> Array:
        """The sum over rows of J_r^T Y_r."""
        ...


@dataclass(frozen=True)
class LinearRows:
    """h = T theta."""

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """T theta."""
        return table.times(theta)

    def lengths(self, theta: Array, table: EncodedTable, wanted: Array) -> Array:
        """In closed form."""
        return table.norms() * lengths_of(wanted)

    def sums(self, theta: Array, table: EncodedTable, wanted: Array) -> Array:
        """T^T Y."""
        return table.transposed_times(wanted)


@dataclass(frozen=True)
class NetworkRows:
    """h is a network."""

    network: TableNetwork

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        """By the network."""
        return self.network.predict(theta, table)

    def lengths(self, theta: Array, table: EncodedTable, wanted: Array) -> Array:
        """By Opacus, some rows at a time."""
        torch, rows = need_torch(), len(table.dense)
        found, size = np.empty(rows), max(1, NUMBERS // max(table.width, 1))
        with one_thread(torch):
            module = _module(self.network, theta)
            for start in range(0, rows, size):
                part = np.arange(start, min(start + size, rows))
                scores = module(torch.from_numpy(table.rows(part).matrix()).requires_grad_())  # as hooks expect
                scores.backward(torch.from_numpy(wanted[part].reshape(len(part), -1)))
                found[part] = module.get_norm_sample().numpy()
        return found

    def sums(self, theta: Array, table: EncodedTable, wanted: Array) -> Array:
        """h^T Y."""
        return self.network.pull_back(theta, table, lambda part, _: wanted[part])


def clipped_sums(model: RowModel, theta: Array, table: EncodedTable, wanted: Array, clip: float) -> Array:
    """The sum over rows of J_r^T Y_r, each cut to length ``clip``, those of null records to nothing."""
    if not len(table.dense):
        return np.zeros_like(theta)
    return model.sums(theta, table, by_row(wanted, kept_shares(model.lengths(theta, table, wanted), clip, table)))


def kept_shares(lengths: Array, clip: float, table: EncodedTable) -> Array:
    """What is kept of rows whose parts of a sum have these lengths; nothing of null records."""
    return np.where(table.norms() > 0, np.minimum(1.0, clip / np.maximum(lengths, 1e-300)), 0.0)


def lengths_of(values: Array) -> Array:
    """The length of every row of values."""
    return np.asarray(np.abs(values) if values.ndim == 1 else np.linalg.norm(values, axis=1))


def by_row(values: Array, factors: Array) -> Array:
    """Every row of values times its factor."""
    return np.asarray(values * (factors if values.ndim == 1 else factors[:, None]))


def need_opacus() -> Any:
    """The module opacus.grad_sample; LearnError if it is not installed."""
    try:
        from opacus import grad_sample
    except ImportError as error:
        raise LearnError("private neural networks need opacus: pip install 'tablepuppet[deep]'") from error
    return grad_sample


def _module(network: TableNetwork, theta: Array) -> Any:
    """The network as Opacus wants it."""
    torch, layers = need_torch(), network.layers(theta)
    parts: list[nn.Module] = []
    for (into, out), (weights, bias) in zip(pairwise(network.sizes), layers, strict=True):
        layer = torch.nn.Linear(into, out, bias=bias is not None, dtype=torch.float64)
        layer.weight = torch.nn.Parameter(torch.tensor(weights.T))
        if bias is not None:
            layer.bias = torch.nn.Parameter(torch.tensor(bias))
        parts += [layer, torch.nn.Tanh()]
    module = torch.nn.Sequential(*parts[:-1])
    return need_opacus().GradSampleModuleFastGradientClipping(module, loss_reduction="sum", use_ghost_clipping=True)
