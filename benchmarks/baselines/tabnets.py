"""The designs that TabVFL is compared with, on pooled rows that are matched one to one, and TabVFL itself on such rows.

Columns are cut into parts, one for each guest. All designs have the same budget and the same batches; they differ in
what a guest and the coordinator compute:

- ``ct``: central TabNet, one network over all columns;
- ``lt``: local TabNets, each guest pretrains a TabNet of its own on its part, whose latent vectors stand side by side.
  Finetuning trains the final mapping over them; encoders stay as they are, as in the code of TabVFL's authors;
- ``lt-tuned``: the same, but finetuning trains the encoders too. It is not among the designs of the paper's figures;
- ``tabvfl-le``: each guest has a whole encoder, whose steps are added up; decoder and reconstruction as in TabVFL;
- ``tabvfl``: the network of `learn/split/tabnet.py`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_tabnet.metrics import UnsupervisedLoss
from pytorch_tabnet.tab_network import TabNetDecoder, TabNetEncoder
from torch import Tensor
from torch.nn import Module, ModuleList

from tablepuppet.learn.solve.sgd import falling
from tablepuppet.learn.split.tabnet import (
    BatchMoments,
    Guest,
    PartialDecoder,
    PartialEncoder,
    TabNetShape,
    final_mapping,
    hidden,
    latent_of,
    latent_parts,
)
from tablepuppet.learn.threads import seeded

Design = Literal["ct", "lt", "lt-tuned", "tabvfl-le", "tabvfl"]
DESIGNS: tuple[Design, ...] = ("ct", "lt", "lt-tuned", "tabvfl-le", "tabvfl")
Numbers = NDArray[np.float32]
Labels = NDArray[np.int64]
Parts = list[Tensor]


@dataclass(frozen=True)
class DesignBudget:
    """What every design may use."""

    pretrain_epochs: int = 20
    epochs: int = 20
    batch_size: int = 512
    lr: float = 0.02
    patience: int = 10
    hide: float = 0.2
    sparsity: float = 1e-3
    seed: int = 0


@dataclass
class Trained:
    """A network after both phases, and the losses on validation rows by epoch."""

    network: DesignNetwork
    pretraining: list[float] = field(default_factory=list)
    finetuning: list[float] = field(default_factory=list)

    def latent(self, parts: Sequence[Numbers]) -> Numbers:
        """One latent vector per row."""
        self.network.eval()
        with torch.no_grad():
            found, _ = self.network.latent([torch.from_numpy(part) for part in parts])
        return np.asarray(found.numpy(), np.float32)


class DesignNetwork(Module, ABC):
    """A design: an error to pretrain with, and latent vectors to finetune. ``final`` maps them to scores."""

    def __init__(self, latent: int, classes: int):
        super().__init__()
        self.final = final_mapping(latent, classes)

    @abstractmethod
    def reconstruction(self, parts: Parts, masks: Parts) -> Tensor:
        """The error at hidden cells, summed over guests."""

    @abstractmethod
    def latent(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """(one latent vector per row, the sparsity of attention)."""

    def loss(self, parts: Parts, labels: Tensor, sparsity: float) -> Tensor:
        """Cross entropy and the weighted entropy of attention."""
        latent, found = self.latent(parts)
        return torch.nn.functional.cross_entropy(self.final(latent), labels) - sparsity * found


class Local(DesignNetwork):
    """An autoencoder for each part by itself. With one part of all columns, this is central TabNet (CT)."""

    def __init__(self, widths: Sequence[int], shape: TabNetShape, classes: int):
        super().__init__(shape.latent, classes)
        sizes = latent_parts(shape.latent, _names(widths))
        self.encoders = ModuleList(_encoder(width, size, shape) for width, size in zip(widths, sizes, strict=True))
        self.decoders = ModuleList(_decoder(width, size, shape) for width, size in zip(widths, sizes, strict=True))

    def reconstruction(self, parts: Parts, masks: Parts) -> Tensor:
        """Errors of autoencoders that have no parameters in common."""
        errors = []
        for encoder, decoder, columns, mask in zip(self.encoders, self.decoders, parts, masks, strict=True):
            steps, _ = encoder(hidden(columns, mask), prior=1 - mask)
            errors.append(UnsupervisedLoss(decoder(steps), columns, mask))
        return torch.stack(errors).sum()

    def latent(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """The guests' latent vectors side by side."""
        found = [encoder(columns) for encoder, columns in zip(self.encoders, parts, strict=True)]
        return torch.cat([latent_of(steps) for steps, _ in found], dim=1), _mean([sparsity for _, sparsity in found])


class Frozen(Local):
    """LT: latent vectors come of pretraining alone."""

    def latent(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """The same, without gradients; batch norm takes its running means and variances."""
        self.encoders.eval()
        with torch.no_grad():
            found, _ = super().latent(parts)
        return found, torch.zeros(())


class LocalEncoders(DesignNetwork):
    """TabVFL-LE: whole encoders at the guests, whose steps are added up for one decoder."""

    def __init__(self, widths: Sequence[int], shape: TabNetShape, classes: int):
        super().__init__(shape.latent, classes)
        self.sizes = latent_parts(shape.latent, _names(widths))
        self.encoders = ModuleList(_encoder(width, shape.latent, shape) for width in widths)
        self.decoder = PartialDecoder(shape)
        self.guests = _guests(widths, self.sizes)

    def reconstruction(self, parts: Parts, masks: Parts) -> Tensor:
        """Each guest reconstructs from its part of what the decoder makes of the sums."""
        steps, _ = self._summed([hidden(c, m) for c, m in zip(parts, masks, strict=True)], [1 - m for m in masks])
        return _errors(self.guests, self.decoder(steps), self.sizes, parts, masks)

    def latent(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """The sum of the guests' latent vectors."""
        steps, sparsity = self._summed(parts, [None] * len(parts))
        return latent_of(steps), sparsity

    def _summed(self, parts: Parts, priors: Sequence[Tensor | None]) -> tuple[list[Tensor], Tensor]:
        found = [encoder(c, prior=p) for encoder, c, p in zip(self.encoders, parts, priors, strict=True)]
        steps = [torch.stack(step).sum(dim=0) for step in zip(*(steps for steps, _ in found), strict=True)]
        return steps, _mean([sparsity for _, sparsity in found])


class Joint(DesignNetwork):
    """TabVFL on rows that are matched one to one."""

    def __init__(self, widths: Sequence[int], shape: TabNetShape, classes: int):
        super().__init__(shape.latent, classes)
        self.sizes = latent_parts(shape.latent, _names(widths))
        self.guests = _guests(widths, self.sizes)
        self.encoder, self.decoder = PartialEncoder(sum(widths), shape), PartialDecoder(shape)

    def reconstruction(self, parts: Parts, masks: Parts) -> Tensor:
        """Alg. 1."""
        sent = torch.cat([self._embed(g, c, m) for g, c, m in zip(self.guests, parts, masks, strict=True)], dim=1)
        steps, _ = self.encoder(sent, prior=1 - torch.cat(masks, dim=1))
        return _errors(self.guests, self.decoder(steps), self.sizes, parts, masks)

    def latent(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Alg. 2, up to the latent vector."""
        sent = torch.cat([self._embed(g, c, None) for g, c in zip(self.guests, parts, strict=True)], dim=1)
        steps, sparsity = self.encoder(sent)
        return latent_of(steps), sparsity

    def _embed(self, guest: Module, columns: Tensor, mask: Tensor | None) -> Tensor:
        shown = columns if mask is None else hidden(columns, mask)
        moments = BatchMoments.of(shown, torch.ones(len(shown))) if self.training else None
        assert isinstance(guest, Guest)
        return guest.embed(shown, moments)


def build(design: Design, widths: Sequence[int], shape: TabNetShape, classes: int, seed: int) -> DesignNetwork:
    """The network of a design, with first weights from the seed."""
    makers: dict[Design, type[Local] | type[LocalEncoders] | type[Joint]]
    makers = {"ct": Local, "lt": Frozen, "lt-tuned": Local, "tabvfl-le": LocalEncoders, "tabvfl": Joint}
    cuts = [sum(widths)] if design == "ct" else widths
    name = "lt" if design == "lt-tuned" else design  # both begin alike
    return cast(DesignNetwork, seeded(seed, name, lambda: makers[design](cuts, shape, classes)))


def cut(columns: Numbers, guests: int) -> list[Numbers]:
    """The columns in as many parts of equal size as there are guests, the first ones larger by one if it must be."""
    return [np.ascontiguousarray(part) for part in np.array_split(columns, guests, axis=1)]


def train(
    design: Design, parts: Sequence[Numbers], labels: Labels, validation: NDArray[np.bool_], shape: TabNetShape,
    budget: DesignBudget,
) -> Trained:  # fmt: skip
    """Pretrain and finetune on the rows that are not for ``validation``; keep the best epoch of each phase."""
    pooled = [np.ascontiguousarray(np.concatenate(parts, axis=1))] if design == "ct" else list(parts)
    rows = [torch.from_numpy(part) for part in pooled]
    network = build(design, [part.shape[1] for part in parts], shape, int(labels.max()) + 1, budget.seed)
    truth, held = torch.from_numpy(labels), torch.from_numpy(np.flatnonzero(validation))
    learning, trained = np.flatnonzero(~validation), Trained(network)
    seen, fixed = [part[held] for part in rows], _masks(len(held), rows, budget, -1)

    def reconstruction(chosen: Tensor, number: int) -> Tensor:
        masks = _masks(len(chosen), rows, budget, number)
        return network.reconstruction([part[chosen] for part in rows], masks)

    def supervised(chosen: Tensor, number: int) -> Tensor:
        return network.loss([part[chosen] for part in rows], truth[chosen], budget.sparsity)

    trained.pretraining = _descend(
        network, learning, budget, budget.pretrain_epochs, reconstruction, lambda: network.reconstruction(seen, fixed)
    )
    trained.finetuning = _descend(
        network, learning, budget, budget.epochs, supervised, lambda: network.loss(seen, truth[held], 0.0)
    )
    return trained


def _descend(
    network: DesignNetwork, rows: NDArray[np.intp], budget: DesignBudget, epochs: int,
    loss: Callable[[Tensor, int], Tensor], check: Callable[[], Tensor],
) -> list[float]:  # fmt: skip
    """Adam over batches until the validation loss has not improved for ``patience`` epochs; the best weights stay.

    The rate falls along half a cosine, as that of learners does.
    """
    optimiser = torch.optim.Adam(network.parameters(), lr=budget.lr)
    best, kept, losses, number = np.inf, copy.deepcopy(network.state_dict()), [], 0
    for epoch, rate in enumerate(falling(budget.lr, epochs)):
        optimiser.param_groups[0]["lr"] = rate
        network.train()
        for chosen in _batches(rows, budget, epoch):
            optimiser.zero_grad()
            loss(chosen, number).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            number += 1
        network.eval()
        with torch.no_grad():
            losses.append(float(check()))
        if losses[-1] < best:
            best, kept = losses[-1], copy.deepcopy(network.state_dict())
        if len(losses) - 1 - int(np.argmin(losses)) >= budget.patience:
            break
    network.load_state_dict(kept)
    return losses


def _batches(rows: NDArray[np.intp], budget: DesignBudget, epoch: int) -> Iterator[Tensor]:
    order = np.random.default_rng([budget.seed, epoch]).permutation(rows)
    for start in range(0, len(order), budget.batch_size):
        chosen = order[start : start + budget.batch_size]
        if len(chosen) > 1:  # batch norm
            yield torch.from_numpy(chosen)


def _masks(count: int, rows: Parts, budget: DesignBudget, number: int) -> Parts:
    rng = np.random.default_rng([budget.seed, number + 1])
    cells = [rng.random((count, part.shape[1]), dtype=np.float32) for part in rows]
    return [torch.from_numpy((each < budget.hide).astype(np.float32)) for each in cells]


def _errors(guests: ModuleList, decoded: Tensor, sizes: Sequence[int], parts: Parts, masks: Parts) -> Tensor:
    """Guests reconstruct from their parts of the decoder's output."""
    ends = list(accumulate(sizes))
    errors = []
    for guest, end, size, columns, mask in zip(guests, ends, sizes, parts, masks, strict=True):
        assert isinstance(guest, Guest)
        once = torch.ones(len(columns))
        errors.append(guest.error(decoded[:, end - size : end], columns, mask, once, BatchMoments.of(columns, once)))
    return torch.stack(errors).sum()


def _guests(widths: Sequence[int], sizes: Sequence[int]) -> ModuleList:
    return ModuleList(Guest(width, width, size) for width, size in zip(widths, sizes, strict=True))


def _names(widths: Sequence[int]) -> list[str]:
    return [f"guest {number}" for number in range(1, len(widths) + 1)]


def _encoder(width: int, latent: int, shape: TabNetShape) -> Module:
    encoder: Module = TabNetEncoder(
        input_dim=width, output_dim=width, n_d=latent, n_a=latent, n_steps=shape.steps, gamma=shape.gamma,
        n_independent=shape.independent, n_shared=shape.shared, virtual_batch_size=shape.virtual_batch,
        momentum=shape.momentum,
    )  # fmt: skip
    return encoder


def _decoder(width: int, latent: int, shape: TabNetShape) -> Module:
    decoder: Module = TabNetDecoder(
        width, n_d=latent, n_steps=shape.steps, n_independent=1, n_shared=1, virtual_batch_size=shape.virtual_batch,
        momentum=shape.momentum,
    )  # fmt: skip
    return decoder


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack([torch.as_tensor(value) for value in values]).mean()
