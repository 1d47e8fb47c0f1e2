"""Any torch module as the model of a table, or as a network over embeddings: its parameters are one flat array.

Parameters are sent, stored and added over shards as float64 arrays. The module's buffers, such as the running means of
batch norm, follow after the trainable parameters. Torch (the extra ``deep``) is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.errors import LearnError
from tablepuppet.learn.tables.dense import rows_as_matrix
from tablepuppet.learn.tables.model import BatchSums, Forward, Hiding, TableModel, check_size
from tablepuppet.learn.threads import need_torch, one_thread, seeded
from tablepuppet.prep.encode.encoded_table import EncodedTable

if TYPE_CHECKING:
    from torch import Tensor, nn


class FlatModule:
    """A module that computes with the parameters of a flat array instead of its own."""

    counted_elsewhere: ClassVar[bool] = True  # its room was checked when it was made, and it does not grow

    def __init__(self, module: nn.Module, *, double: bool = False):
        torch = need_torch()
        self.dtype = torch.float64 if double else torch.float32
        self.module = module.to(self.dtype)
        self._trained = {name: tensor.shape for name, tensor in module.named_parameters()}
        self._buffers = {name: tensor.shape for name, tensor in module.named_buffers() if tensor.is_floating_point()}
        self._sizes = [shape.numel() for shape in (*self._trained.values(), *self._buffers.values())]
        self.trained = sum(self._sizes[: len(self._trained)])
        self.size = sum(self._sizes)
        self._last: dict[str, Tensor] = {}
        check_size((self.size,))  # again: of a module of the operator's own it was not known before

    def first(self) -> Array:
        """The parameters that the module was built with."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        parts = [named[name].detach().numpy().ravel() for name in (*self._trained, *self._buffers)]
        return np.concatenate([np.zeros(0), *parts]).astype(np.float64)

    def tensor(self, theta: Array, *, training: bool = False) -> Tensor:
        """The flat parameters as a tensor; in ``training``, one that gradients are computed for."""
        if theta.shape != (self.size,):
            raise LearnError(f"parameters of shape {theta.shape} do not fit: {self.size:,} are needed")
        own = theta if theta.flags.writeable else theta.copy()  # torch warns of arrays as the wire delivers them
        found: Tensor = need_torch().from_numpy(own).to(self.dtype)
        if training:
            found = found.clone() if found.data_ptr() == theta.ctypes.data else found
            found.requires_grad_()
        return found

    def __call__(self, flat: Tensor, *inputs: Any, training: bool = False, **named: Any) -> Any:
        """The module's output with the parameters ``flat``, of `tensor`; `after` has what it makes of its buffers."""
        torch = need_torch()
        self.module.train(training)
        parts = dict(zip((*self._trained, *self._buffers), torch.split(flat, self._sizes), strict=True))
        values: dict[str, Tensor] = {name: parts[name].view(shape) for name, shape in self._trained.items()}
        self._last = {name: parts[name].detach().clone().view(shape) for name, shape in self._buffers.items()}
        return torch.func.functional_call(self.module, values | self._last, inputs, named)

    def after(self, theta: Array) -> Array:
        """The parameters with the buffers that the last call left."""
        if not self._buffers:
            return theta
        return np.concatenate([theta[: self.trained], *(part.numpy().ravel() for part in self._last.values())])

    def named(self, theta: Array) -> dict[str, Array]:
        """The parameters by name."""
        shapes = {**self._trained, **self._buffers}
        cuts = np.cumsum(self._sizes)[:-1]
        return {
            name: part.reshape(tuple(shape))
            for (name, shape), part in zip(shapes.items(), np.split(theta, cuts), strict=True)
        }

    def flat(self, named: Mapping[str, Array]) -> Array:
        """The flat array of parameters by name."""
        return np.concatenate([np.zeros(0), *(np.ravel(named[name]) for name in (*self._trained, *self._buffers))])


class TorchTable(TableModel):
    """A torch module over a table with ``width`` encoded columns, which takes (rows, width) and sees rows one by one.

    ``spec`` is a `Bottom`, ``build`` makes the module with torch's own first parameters, ``cells`` are the numbers per
    row that its forward pass holds in memory, ``work`` the multiplications of one, if they are not its parameters.
    """

    def __init__(
        self, spec: Any, width: int, alias: str, cells: int, build: Callable[[], nn.Module], work: int | None = None
    ):
        self._work = work
        self.spec, self.width, self.alias, self.cells, self._build = spec, width, alias, cells, build
        check_size(spec.theta_shape(width))
        self.flat = self._built(0, alias)
        self.number: type[np.floating[Any]] = np.float64 if spec.double else np.float32

    def _built(self, seed: int, alias: str) -> FlatModule:
        return FlatModule(seeded(seed, alias, self._build), double=self.spec.double)

    @property
    def shape(self) -> tuple[int, ...]:
        """One vector, with buffers."""
        return (self.flat.size,)

    @property
    def multiplications(self) -> int:
        """How many a forward pass of one row takes, about."""
        return self.size if self._work is None else self._work

    @property
    def trained(self) -> int:
        """The number of parameters without buffers."""
        return self.flat.trained

    def start(self, seed: int, alias: str, numbers: int) -> Array:
        """First parameters, as torch draws them, from the seed and the alias."""
        return self._built(seed, alias).first()

    def after(self, theta: Array) -> Array:
        """The parameters with the buffers that the last forward pass left."""
        return self.flat.after(theta)

    def rows(self, table: EncodedTable, counts: NDArray[Any] | None = None, hiding: Hiding | None = None) -> Any:
        """Encoded rows as a tensor, categories as 0 and 1."""
        return need_torch().from_numpy(rows_as_matrix(super().rows(table), self.number))

    def forward(self, theta: Array, rows: Any, sums: BatchSums | None = None) -> Forward:
        """The embeddings of rows in training; the graph is kept for the backward pass."""
        return self._forward(theta, rows, rows)

    def _forward(self, theta: Array, seen: Any, rows: Tensor, **named: Any) -> Forward:
        """The embeddings of ``rows``, which are ``seen`` with what else the module takes by name."""
        torch = need_torch()
        with one_thread(torch):
            flat = self.flat.tensor(theta, training=True)
            outputs = self.flat(flat, rows, **named, training=True)

        def gradient(given: Floats) -> Array:
            with one_thread(torch):
                outputs.backward(torch.from_numpy(np.ascontiguousarray(given)).to(outputs.dtype))
            return np.zeros(len(flat)) if flat.grad is None else flat.grad.numpy().astype(np.float64)

        return Forward(outputs.detach().numpy(), seen, gradient)

    def predict(self, theta: Array, table: EncodedTable) -> Floats:
        """The embeddings of rows after training."""
        torch = need_torch()
        found = self.empty(len(table.dense)).astype(self.number, copy=False)
        with one_thread(torch), torch.no_grad():
            flat = self.flat.tensor(theta)
            for part in self.chunks(len(found)):
                matrix = torch.from_numpy(rows_as_matrix(table.repeated(part), self.number))
                found[part] = self.flat(flat, matrix).numpy()
        return found
