"""A torch module whose parameters are one flat array, and Adam over it: the same for parties and coordinator.

Parameters are sent, stored and added over shards as float64 arrays. The module's buffers, such as the running means of
batch norm, follow after the trainable parameters.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.tables.network import MOST_PARAMETERS, need_torch
from tablepuppet.party.allowance import check_memory

if TYPE_CHECKING:
    from torch import Tensor, nn

NORM_MOMENTUM = 0.01  # of TabNet's first batch norm: how far running statistics move with a batch
_BUILDING = threading.Lock()  # torch has one random state for the whole process


def seeded(seed: int, name: str, build: Callable[[], nn.Module]) -> nn.Module:
    """A module whose first parameters follow from a seed and a name; torch's own random state does not change."""
    torch = need_torch()
    with _BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.default_rng([seed, zlib.crc32(name.encode())]).integers(2**63)))
        return build()


def check_size(parameters: int) -> None:
    """LearnError or PartyError if a network of so many parameters is too large; to be asked before it is built."""
    if parameters > MOST_PARAMETERS:
        raise LearnError(f"a network has {parameters:,} parameters; at most {MOST_PARAMETERS:,} are allowed")
    check_memory(4 * 8 * parameters)  # with a gradient and the memory of Adam


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
        check_size(self.size)  # again: of a module of the operator's own it was not known before

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


@dataclass
class Adam:
    """The memory of Adam: running means of gradients and of their squares."""

    mean: Array
    square: Array
    steps: int = 0
    first: float = 0.9
    second: float = 0.999
    floor: float = 1e-8

    @classmethod
    def over(cls, size: int) -> Adam:
        """The memory before the first step."""
        return cls(np.zeros(size), np.zeros(size))

    def stepped(self, theta: Array, gradient: Array, lr: float, l2: float, trained: int) -> Array:
        """The parameters after a step; ``l2`` times them is added to the gradient of the ``trained`` ones.

        Buffers, behind them, have no gradient and stay.
        """
        self.steps += 1
        penalised = gradient[:trained] + l2 * theta[:trained]
        self.mean[:trained] += (1 - self.first) * (penalised - self.mean[:trained])
        self.square[:trained] += (1 - self.second) * (penalised**2 - self.square[:trained])
        rate = lr * np.sqrt(1 - self.second**self.steps) / (1 - self.first**self.steps)
        floor = self.floor * np.sqrt(1 - self.second**self.steps)
        moved = theta.copy()
        moved[:trained] -= rate * self.mean[:trained] / (np.sqrt(self.square[:trained]) + floor)
        return moved
