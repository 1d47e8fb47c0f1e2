"""TabNet, divided as in Figure 3 of TabVFL: what a guest computes, what the coordinator computes, and the losses.

A guest (a table with features) has a batch norm over its encoded columns and a fully connected layer with as many
outputs as columns. The coordinator has the rest of TabNet's encoder, its decoder without the last layer, and the final
mapping. In pretraining a guest hides random cells of its rows from the network, and reconstructs them with its own
layer from its part of the decoder's output.

In a join, a base row can be in several joined rows of a batch. A guest still computes it once:

- batch norm weights each base row by how often it is joined in the batch, so it equals that of the joined rows;
- the mask of hidden cells is drawn per base row, and is the same for all its joined rows;
- a base row is reconstructed once, from the mean of the decoder's outputs at its joined rows; its error counts as often
  as it is joined.

If every base row is joined once, this is exactly the paper. Inputs and outputs are tensors; nothing here is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pytorch_tabnet.tab_network import TabNetDecoder, TabNetEncoder, initialize_non_glu
from torch import Tensor
from torch.nn import Identity, Linear, Module, Parameter

from tablepuppet.errors import LearnError
from tablepuppet.learn.split.bottoms import NORM_MOMENTUM

NORM_FLOOR = 1e-5  # added to variances, as TabNet's first batch norm does
FEWEST_HIDDEN = 1e-9  # of a row without hidden cells


@dataclass(frozen=True)
class TabNetShape:
    """The sizes of TabNet; names and defaults follow pytorch-tabnet: ``latent`` is n_d, ``attention`` n_a."""

    latent: int = 16
    attention: int = 16
    steps: int = 3
    gamma: float = 1.3
    independent: int = 2
    shared: int = 2
    momentum: float = 0.02
    virtual_batch: int = 128


@dataclass(frozen=True)
class BatchMoments:
    """Sums over the joined rows of a batch, by column; those of several shards are added."""

    rows: float
    sums: Tensor
    squares: Tensor

    @classmethod
    def of(cls, columns: Tensor, counts: Tensor) -> BatchMoments:
        """For base rows with the number of times each is joined."""
        weights, wide = counts.double(), columns.double()
        return cls(float(weights.sum()), weights @ wide, weights @ wide**2)

    @property
    def mean(self) -> Tensor:
        """By column."""
        return self.sums / self.rows

    @property
    def variance(self) -> Tensor:
        """By column, ddof 0."""
        return (self.squares / self.rows - self.mean**2).clamp(min=0)

    @property
    def unbiased(self) -> Tensor:
        """By column, ddof 1; LearnError for a batch of one row, which has none."""
        if self.rows < 2:
            raise LearnError("a batch of one joined row has no variance for batch norm: choose a larger batch_size")
        return self.variance * (self.rows / (self.rows - 1))


class WeightedBatchNorm(Module):
    """Batch norm with the moments of joined rows. Its input has no parameters, so moments have no gradient."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = Parameter(torch.ones(width)), Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, columns: Tensor, moments: BatchMoments | None) -> Tensor:
        """Normalised columns; by what has been seen so far unless there are ``moments`` of this batch."""
        mean, variance = self.running_mean, self.running_var
        if moments is not None:
            mean, variance = moments.mean.to(columns.dtype), moments.variance.to(columns.dtype)
            with torch.no_grad():
                self.running_mean.add_(mean - self.running_mean, alpha=NORM_MOMENTUM)
                self.running_var.add_(moments.unbiased.to(columns.dtype) - self.running_var, alpha=NORM_MOMENTUM)
        return (columns - mean) / torch.sqrt(variance + NORM_FLOOR) * self.weight + self.bias


class Guest(Module):
    """What one table computes: ``width`` encoded columns to embeddings, and back from ``part`` numbers, if any.

    The mixing layer starts as a random rotation: embeddings vary as much as columns, and none is a column.
    """

    def __init__(self, width: int, outputs: int, part: int = 0):
        super().__init__()
        self.norm = WeightedBatchNorm(width)
        self.mix = Linear(width, outputs)
        torch.nn.init.orthogonal_(self.mix.weight)
        torch.nn.init.zeros_(self.mix.bias)
        if part:
            self.rebuild = Linear(part, width, bias=False)
            initialize_non_glu(self.rebuild, part, width)

    def forward(
        self, columns: Tensor, counts: Tensor | None = None, mask: Tensor | None = None,
        moments: BatchMoments | None = None, decoded: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Embeddings of base rows that are joined ``counts`` times in a batch; with ``decoded``, `error` instead.

        ``moments``: those of the columns as they are shown to the network, over all shards; of the whole columns if
        there is ``decoded``. If absent, those of the rows at hand.
        """
        weights = torch.ones(len(columns)) if counts is None else counts
        if decoded is not None:
            hiding = torch.ones_like(columns) if mask is None else mask
            return self.error(decoded, columns, hiding, weights, moments or BatchMoments.of(columns, weights))
        shown = columns if mask is None else hidden(columns, mask)
        return self.embed(shown, (moments or BatchMoments.of(shown, weights)) if self.training else None)

    def embed(self, shown: Tensor, moments: BatchMoments | None) -> Tensor:
        """(base rows, outputs): what the coordinator gets."""
        return self.mix(self.norm(shown, moments))  # type: ignore[no-any-return]

    def error(self, decoded: Tensor, columns: Tensor, mask: Tensor, counts: Tensor, moments: BatchMoments) -> Tensor:
        """What these base rows add to the reconstruction error of the batch.

        ``decoded`` (base rows, part) are means over joined rows, ``moments`` those of the whole columns. As
        pytorch-tabnet's UnsupervisedLoss: squared errors at hidden cells, divided by the column's variance in the batch
        and by how many cells the row hides. A column that does not vary in the batch is divided by 1; there, a mean
        could be negative.
        """
        spread = moments.unbiased.to(columns.dtype)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        errors = ((self.rebuild(decoded) - columns) * mask) ** 2 @ (1 / spread)  # (base rows,)
        share = errors / (mask.sum(dim=1) + FEWEST_HIDDEN)
        error: Tensor = (counts.to(share.dtype) @ share) / moments.rows
        return error


def hidden(columns: Tensor, mask: Tensor) -> Tensor:
    """The columns with zeros where the mask is 1."""
    return (1 - mask) * columns


def latent_parts(latent: int, guests: Sequence[str]) -> list[int]:
    """How many of the decoder's outputs each guest gets, as equal as can be; LearnError if one would get none."""
    if latent < len(guests):
        raise LearnError(
            f"latent={latent} is below the number of tables with features, {len(guests)} "
            f"({', '.join(guests)}): each reconstructs its columns from a part of it; choose latent={len(guests)} or "
            "more"
        )
    whole, rest = divmod(latent, len(guests))
    return [whole + (place < rest) for place in range(len(guests))]


class PartialEncoder(Module):
    """TabNet's encoder without its first batch norm, over the embeddings of all guests side by side."""

    def __init__(self, width: int, shape: TabNetShape):
        super().__init__()
        self.inner = TabNetEncoder(
            input_dim=width, output_dim=width, n_d=shape.latent, n_a=shape.attention, n_steps=shape.steps,
            gamma=shape.gamma, n_independent=shape.independent, n_shared=shape.shared,
            virtual_batch_size=shape.virtual_batch, momentum=shape.momentum,
        )  # fmt: skip
        self.inner.initial_bn = Identity()

    def forward(self, embeddings: Tensor, prior: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """(the output of each step (joined rows, latent), the sparsity of attention: its negative entropy).

        ``prior`` is 0 where a cell was hidden, so that no attention goes there.
        """
        self._match(embeddings)
        steps, sparsity = self.inner(embeddings, prior)
        return steps, sparsity

    def attention(self, embeddings: Tensor) -> Tensor:
        """(joined rows, width): how much of the latent vector comes through each embedding."""
        self._match(embeddings)
        explained, _ = self.inner.forward_masks(embeddings)
        return explained  # type: ignore[no-any-return]

    def _match(self, embeddings: Tensor) -> None:
        """Its matrix of groups is no parameter, so it does not follow the precision of the others by itself."""
        self.inner.group_attention_matrix = self.inner.group_attention_matrix.to(embeddings.dtype)


class PartialDecoder(Module):
    """TabNet's decoder without its last layer, which is split over the guests."""

    def __init__(self, shape: TabNetShape):
        super().__init__()
        self.inner = TabNetDecoder(
            input_dim=1, n_d=shape.latent, n_steps=shape.steps, n_independent=1, n_shared=1,
            virtual_batch_size=shape.virtual_batch, momentum=shape.momentum,
        )  # fmt: skip
        self.inner.reconstruction_layer = Identity()

    def forward(self, steps: list[Tensor]) -> Tensor:
        """(joined rows, latent), to be cut into `latent_parts`."""
        return self.inner(steps)  # type: ignore[no-any-return]


def latent_of(steps: list[Tensor]) -> Tensor:
    """The latent vector of each joined row: the sum of all steps."""
    return torch.stack(steps).sum(dim=0)


def final_mapping(latent: int, outputs: int, bias: Tensor | None = None) -> Linear:
    """From latent vectors to scores. TabNet has no bias there; ours begins at the best constant."""
    layer = Linear(latent, outputs, bias=bias is not None)
    initialize_non_glu(layer, latent, outputs)
    if bias is not None:
        with torch.no_grad():
            layer.bias.copy_(bias)
    return layer


class PretrainingTop(Module):
    """The coordinator's part in pretraining: encoder and decoder over the embeddings of tables side by side."""

    def __init__(self, widths: Mapping[str, int], shape: TabNetShape):
        super().__init__()
        self.aliases = list(widths)
        self.encoder, self.decoder = PartialEncoder(sum(widths.values()), shape), PartialDecoder(shape)

    def forward(self, embeddings: Mapping[str, Tensor], prior: Mapping[str, Tensor]) -> Tensor:
        """(joined rows, latent); ``prior`` is 0 at embeddings that get no attention."""
        steps, _ = self.encoder(_beside(embeddings, self.aliases), _beside(prior, self.aliases))
        return self.decoder(steps)  # type: ignore[no-any-return]


class FinetuningTop(Module):
    """The coordinator's part afterwards: encoder and final mapping; the term of sparsity is added to the loss."""

    def __init__(self, widths: Mapping[str, int], shape: TabNetShape, constant: Tensor, sparsity: float):
        super().__init__()
        self.aliases, self.sparsity = list(widths), sparsity
        self.encoder = PartialEncoder(sum(widths.values()), shape)
        self.final = final_mapping(shape.latent, len(constant), constant)

    def forward(
        self, embeddings: Mapping[str, Tensor], wanted: Literal["scores", "latent", "attention"] = "scores"
    ) -> Any:
        """(Scores, what is added to the loss); or latent vectors; or the attention at each embedding."""
        given = _beside(embeddings, self.aliases)
        if wanted == "attention":
            return self.encoder.attention(given)
        steps, sparsity = self.encoder(given)
        latent = latent_of(steps)
        return latent if wanted == "latent" else (self.final(latent), -self.sparsity * sparsity)


def _beside(values: Mapping[str, Tensor], aliases: Sequence[str]) -> Tensor:
    return torch.cat([values[alias] for alias in aliases], dim=1)


def mean_at_base_rows(values: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    """Means over the joined rows of each base row; ``index`` says which one a joined row has."""
    sums = torch.zeros(len(counts), values.shape[1], dtype=values.dtype).index_add(0, index, values)
    return sums / counts.to(values.dtype)[:, None]
