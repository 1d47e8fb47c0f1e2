"""The coordinator's network: from embeddings of all tables, side by side, to the scores of joined rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.split.flat import Adam, FlatModule, seeded
from tablepuppet.learn.tables.network import need_torch
from tablepuppet.learn.threads import one_thread

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]


class Top:
    """A network over embeddings, with its parameters and their optimiser.

    ``module`` takes the embeddings of joined rows by alias and returns their scores, (rows, outputs), or a pair of them
    and a term that is added to the loss.
    """

    def __init__(self, module: nn.Module, outputs: int, *, double: bool = False):
        self.flat, self.outputs = FlatModule(module, double=double), outputs
        self.theta = self.flat.first()
        self.adam = Adam.over(self.flat.size)
        self.added = 0.0  # to the loss of the last batch, by the network itself
        self._kept: Array | None = None
        self._under_way: Tensor | None = None

    def forward(self, embeddings: Mapping[str, Tensor], *others: Any) -> tuple[Tensor, Tensor | None]:
        """(Scores, what is added to the loss) of the joined rows of a batch; ``others`` are for the module."""
        self._under_way = self.flat.tensor(self.theta, training=True)
        found = self.flat(self._under_way, embeddings, *others, training=True)
        scores, added = found if isinstance(found, tuple) else (found, None)
        return scores, added

    def backward(self, scores: Tensor, added: Tensor | None, gradient: Floats) -> None:
        """Compute all gradients from that by scores."""
        torch = need_torch()
        self.added = 0.0 if added is None else float(added.detach())
        wide = gradient[:, None] if gradient.ndim == 1 else gradient
        given = torch.from_numpy(np.ascontiguousarray(wide)).to(scores.dtype)
        torch.autograd.backward(
            [scores] if added is None else [scores, added], [given] if added is None else [given, None]
        )

    def step(self, lr: float, l2: float) -> None:
        """Take the step of the last batch."""
        assert self._under_way is not None, "forward comes first"
        assert self._under_way.grad is not None, "so does backward"
        gradient = self._under_way.grad.numpy().astype(np.float64)
        self.theta = self.adam.stepped(self.flat.after(self.theta), gradient, lr, l2, self.flat.trained)
        self._under_way = None

    def square(self) -> float:
        """|theta|^2 of the trained parameters."""
        return float(np.vdot(self.theta[: self.flat.trained], self.theta[: self.flat.trained]))

    def scores(self, embeddings: Mapping[str, Floats]) -> Array:
        """The scores of joined rows after training: (rows,) for one output, else (rows, outputs)."""
        torch = need_torch()
        with torch.no_grad():
            given = {alias: torch.from_numpy(values).to(self.flat.dtype) for alias, values in embeddings.items()}
            found = self.flat(self.flat.tensor(self.theta), given)
            scores = (found[0] if isinstance(found, tuple) else found).numpy().astype(np.float64)
        return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)

    def keep(self) -> None:
        """Store a copy of the parameters."""
        self._kept = self.theta

    def restore(self) -> None:
        """Return to the stored copy."""
        assert self._kept is not None, "nothing was kept"
        self.theta = self._kept


def side_by_side(
    widths: Mapping[str, int], hidden: Sequence[int], constant: Array, seed: int, *, double: bool = False,
    unit: Collection[str] = (),
) -> Top:  # fmt: skip
    """Embeddings of tables side by side, then layers with ReLU, then scores; these begin at a ``constant``.

    Those of the tables in ``unit`` are divided by their length first.
    """
    torch = need_torch()
    aliases = list(widths)

    class SideBySide(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A network over the embeddings of tables."""

        def __init__(self) -> None:
            super().__init__()
            layers: list[Any] = []
            for into, out in pairwise((sum(widths.values()), *hidden, len(constant))):
                layers += [torch.nn.Linear(into, out), torch.nn.ReLU()]
            self.layers = torch.nn.Sequential(*layers[:-1])
            with torch.no_grad():
                layers[-2].bias.copy_(torch.from_numpy(constant))

        def forward(self, embeddings: Mapping[str, Any]) -> Any:
            """The scores of joined rows."""
            return self.layers(torch.cat([self._of(alias, embeddings[alias]) for alias in aliases], dim=1))

        def _of(self, alias: str, values: Any) -> Any:
            return torch.nn.functional.normalize(values) if alias in unit else values

    with one_thread(torch):
        return Top(seeded(seed, "", SideBySide), len(constant), double=double)
