"""The coordinator's network: from embeddings of all tables to the scores of joined rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.tables.dense import Dense, Matrix, Passed, linear_layers
from tablepuppet.learn.tables.parameters import Adam
from tablepuppet.learn.tables.torch_table import FlatModule
from tablepuppet.learn.threads import need_torch, one_thread, seeded

if TYPE_CHECKING:
    from torch import Tensor, nn

SHORTEST = 1e-12  # embeddings are divided by their length, or by this if they are shorter


class Top(ABC):
    """A network over embeddings, with its parameters and their optimiser; ``flat`` is the network in torch.

    ``widths`` are those of embeddings by alias, in the order in which the first layer has them side by side.
    """

    _of_batch: ClassVar[tuple[str, ...]] = ()  # attributes that are left of the last batch

    def __init__(self, flat: FlatModule, widths: Mapping[str, int], outputs: int):
        self.flat, self.widths, self.outputs = flat, widths, outputs
        self.theta = flat.first()
        self.adam = Adam.over(flat.size)
        self.added = 0.0  # to the loss of the last batch, by the network itself
        self._kept: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What scores of joined rows need of it, which may be anywhere: not what is left of the last batch."""
        return {name: value for name, value in vars(self).items() if name not in {"adam", "_kept", *self._of_batch}}

    @abstractmethod
    def forward(self, embeddings: Mapping[str, Floats]) -> Floats:
        """The scores of the joined rows of a batch, (rows, outputs), from their embeddings by alias."""

    @abstractmethod
    def backward(self, gradient: Floats, wanted: Collection[str]) -> dict[str, Floats]:
        """From the gradient by scores, that by the embeddings of the ``wanted`` tables; `step` needs it too."""

    @abstractmethod
    def _gradient(self) -> Array:
        """The gradient by the parameters."""

    @abstractmethod
    def _applied(self, embeddings: Mapping[str, Floats]) -> Floats:
        """The scores of joined rows after training, (rows, outputs)."""

    def step(self, lr: float, l2: float) -> None:
        """Take the step of the last batch."""
        self.theta = self.adam.stepped(self.flat.after(self.theta), self._gradient(), lr, l2, self.flat.trained)

    def square(self) -> float:
        """|theta|^2 of the trained parameters."""
        return float(np.vdot(self.theta[: self.flat.trained], self.theta[: self.flat.trained]))

    def scores(self, embeddings: Mapping[str, Floats]) -> Array:
        """The scores of joined rows after training: (rows,) for one output, else (rows, outputs)."""
        scores = self._applied(embeddings).astype(np.float64)
        return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)

    def keep(self) -> None:
        """Store a copy of the parameters."""
        self._kept = self.theta

    def restore(self) -> None:
        """Return to the stored copy."""
        assert self._kept is not None, "nothing was kept"
        self.theta = self._kept


class TorchTop(Top):
    """A torch module over embeddings by alias.

    It returns the scores of joined rows, (rows, outputs), or a pair of them and a term that is added to the loss.
    """

    _of_batch = ("_flat", "_leaves", "_found")

    def __init__(self, module: nn.Module, widths: Mapping[str, int], outputs: int, *, double: bool = False):
        super().__init__(FlatModule(module, double=double), widths, outputs)
        self._flat: Tensor | None = None
        self._leaves: dict[str, Any] = {}
        self._found: Any = None

    def run(self, embeddings: Mapping[str, Tensor], *others: Any) -> Any:
        """What the module makes of tensors, in training; ``others`` are for the module. Autograd may go on from it."""
        self._flat = self.flat.tensor(self.theta, training=True)
        return self.flat(self._flat, embeddings, *others, training=True)

    def leaf(self, values: Floats) -> Any:
        """Embeddings as a tensor that gradients are computed for."""
        leaf = need_torch().from_numpy(np.ascontiguousarray(values)).to(self.flat.dtype)
        return (leaf.detach() if leaf.requires_grad else leaf).requires_grad_()

    def forward(self, embeddings: Mapping[str, Floats]) -> Floats:
        """The scores of the joined rows of a batch."""
        self._leaves = {alias: self.leaf(values) for alias, values in embeddings.items()}
        found = self.run(self._leaves)
        self._found = found if isinstance(found, tuple) else (found,)
        self.added = float(self._found[1].detach()) if len(self._found) > 1 else 0.0
        return np.asarray(self._found[0].detach().numpy())

    def backward(self, gradient: Floats, wanted: Collection[str]) -> dict[str, Floats]:
        """Gradients by embeddings, by autograd."""
        torch = need_torch()
        given = torch.from_numpy(np.ascontiguousarray(gradient)).to(self.flat.dtype)
        torch.autograd.backward(self._found, [given, None][: len(self._found)])
        return {alias: leaf.grad.numpy() for alias, leaf in self._leaves.items() if alias in wanted}

    def _gradient(self) -> Array:
        assert self._flat is not None, "forward comes first"
        assert self._flat.grad is not None, "so does backward"
        return np.asarray(self._flat.grad.numpy().astype(np.float64))

    def _applied(self, embeddings: Mapping[str, Floats]) -> Floats:
        torch = need_torch()
        with torch.no_grad():
            given = {alias: torch.from_numpy(values).to(self.flat.dtype) for alias, values in embeddings.items()}
            found = self.flat(self.flat.tensor(self.theta), given)
            return np.asarray((found[0] if isinstance(found, tuple) else found).numpy())


class SideBySide(Top):
    """Embeddings of tables side by side, then layers with ReLU, then scores; these begin at a ``constant``.

    Those of the tables in ``unit`` are divided by their length first.
    """

    _of_batch = ("_passed", "_given", "_theta_gradient")

    def __init__(
        self, widths: Mapping[str, int], hidden: Sequence[int], constant: Array, seed: int, *, double: bool = False,
        unit: Collection[str] = (),
    ):  # fmt: skip
        self.unit = unit
        self._dense = Dense((sum(widths.values()), *hidden, len(constant)))
        self._number = np.float64 if double else np.float32
        self._lengths: dict[str, Floats] = {}
        self._passed: Passed | None = None
        self._given: Floats = np.zeros(0)
        self._theta_gradient: Array | None = None
        with one_thread(need_torch()):
            super().__init__(FlatModule(seeded(seed, "", self._module), double=double), widths, len(constant))
        self.theta[-len(constant) :] = constant

    def _module(self) -> nn.Module:
        """The layers in torch, whose first parameters we take."""
        return need_torch().nn.Sequential(*linear_layers(self._dense.sizes))  # type: ignore[no-any-return]

    def forward(self, embeddings: Mapping[str, Floats]) -> Floats:
        """The scores of the joined rows of a batch."""
        self._given = self._beside(embeddings)
        self._passed = self._dense.forward(self.theta.astype(self._number), Matrix(self._given))
        return self._passed.outputs

    def backward(self, gradient: Floats, wanted: Collection[str]) -> dict[str, Floats]:
        """Gradients by embeddings; through the length l of x: by x = l u it is (g - (g . u) u) / l."""
        assert self._passed is not None, "forward comes first"
        self._theta_gradient, slopes = self._passed.backward(gradient.astype(self._number, copy=False))
        (weights, _), beside, start = self._passed.layers[0], self._given, 0
        found: dict[str, Floats] = {}
        for alias, width in self.widths.items():
            here = slice(start, start := start + width)
            if alias not in wanted:
                continue
            found[alias] = slopes @ weights[here].T  # (rows, width)
            if alias in self.unit:
                unit = beside[:, here]
                along = np.einsum("ij,ij->i", found[alias], unit)[:, None]
                found[alias] = (found[alias] - along * unit) / self._lengths[alias]
        return found

    def _gradient(self) -> Array:
        assert self._theta_gradient is not None, "backward comes first"
        return self._theta_gradient

    def _applied(self, embeddings: Mapping[str, Floats]) -> Floats:
        return self._dense.forward(self.theta.astype(self._number), Matrix(self._beside(embeddings))).outputs

    def _beside(self, embeddings: Mapping[str, Floats]) -> Floats:
        """(rows, sum of widths)."""
        found: NDArray[Any] = np.concatenate([embeddings[a] for a in self.widths], axis=1, dtype=self._number)
        start = 0
        for alias, width in self.widths.items():
            here = slice(start, start := start + width)
            if alias in self.unit:
                lengths = np.sqrt(np.einsum("ij,ij->i", found[:, here], found[:, here]))[:, None]
                self._lengths[alias] = np.maximum(lengths, SHORTEST)
                found[:, here] /= self._lengths[alias]
        return found
