"""Feature privacy of linear models: noise on what descent needs of a table, added by its party.

The Gram matrix never changes and is paid for once; the gradient is paid for in every round. Everything else that a
party computes from them, directions and parameters, costs nothing more. A row's part of a sum is clipped after all that
it is joined with was added up, so a row counts once however often it is joined:

    K = sum_r c_r^2 t_r t_r^T / n + noise             |c_r t_r|^2 <= columns of the table
    g = sum_r c_r t_r Y_r + noise                     |n c_r t_r Y_r| <= clip

n counts the table's rows. n Y_r is the gradient by a row's prediction as if every row were joined as often, so that
``clip`` means what it means for one table. A row of missing values is all zeros and adds exactly nothing, so that a
row replaced by it changes the sums by these bounds. K is not weighted by counts: it only has to point the way, since
the coordinator searches the loss itself along the directions.

Predictions T p are functions of the rows themselves. They leave without noise unless there is an ``image`` multiplier;
then each is clipped to twice the size that predictions have by K, which is already noisy, and gets noise of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.block import Curvature, RidgeBlock, new_noisy_block
from tablepuppet.learn.image_noise import ImageNoise, calmed
from tablepuppet.learn.linear import LinearModel, Sums
from tablepuppet.learn.part import Part, StoredPart, encoded, keep_part, part_of
from tablepuppet.learn.stored import KeptNoise
from tablepuppet.mapping.table_mapping import Floats
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.lou import Instead, LearningOverUnion
from tablepuppet.party.arguments import Positive, PositiveNumber, Some
from tablepuppet.party.ops import LocalTable, Values, op
from tablepuppet.party.release import Release
from tablepuppet.prep.encode import Encoding

if TYPE_CHECKING:
    from tablepuppet.learn.losses import Loss

Array = NDArray[np.float64]
LARGE = 2.0  # times the usual size of predictions: larger ones are clipped


def noisy_gram(table: LocalTable, view: str, encoding: str, table_rows: int, multiplier: float) -> Array:
    """K of one shard."""
    table.check_once(view)
    data = encoded(table, view, encoding)
    squares, most = data.norms() ** 2, float(data.columns)
    gram = data.gram(np.minimum(1.0, most / np.maximum(squares, 1e-300))) / table_rows
    upper = np.triu_indices(len(gram))
    gram[upper] = table.noisy(gram[upper], most / table_rows, multiplier, "gram")
    return np.asarray(np.triu(gram) + np.triu(gram, 1).T)


def noisy_sums(
    table: LocalTable, view: str, encoding: str, rows: Array, table_rows: int, clip: float, multiplier: float
) -> Array:
    """g of one shard."""
    table.check_once(view)
    data, wanted = encoded(table, view, encoding), rows.astype(np.float64) * table_rows
    lengths = np.abs(wanted) if wanted.ndim == 1 else np.linalg.norm(wanted, axis=1)
    kept = np.minimum(1.0, clip / np.maximum(lengths * data.norms(), 1e-300))
    sums = data.transposed_times(wanted * (kept if wanted.ndim == 1 else kept[:, None])) / table_rows
    return table.noisy(sums.ravel(), clip / table_rows, multiplier, "gradient").reshape(sums.shape)


def noisy_image(table: LocalTable, view: str, image: Array, bound: float, multiplier: float) -> Array:
    """Predictions of rows, clipped and with noise."""
    table.check_once(view)
    lengths = np.abs(image) if image.ndim == 1 else np.linalg.norm(image, axis=1)
    kept = np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
    clipped = image * (kept if image.ndim == 1 else kept[:, None])
    return table.noisy(clipped.ravel(), bound, multiplier, "predictions").reshape(image.shape).astype(table.wire)


@op("private.start", releases=Release.STATISTICS, private=True)
def start(
    table: LocalTable, view: str, encoding: str, model: str, outputs: Some, table_rows: Positive,
    multiplier: PositiveNumber,
) -> Values:  # fmt: skip
    """Begin a model at a table with one shard: everything but a bound of its noisy eigenvalues stays here."""
    gram = noisy_gram(table, view, encoding, table_rows, multiplier)
    block = new_noisy_block(gram, gram_noise(encoded(table, view, encoding).columns, table_rows, multiplier), outputs)
    keep_part(table, model, block)
    return {"largest": block.largest}


@op("private.gram", releases=Release.GRAM, private=True, summed=("gram",))
def gram(table: LocalTable, view: str, encoding: str, table_rows: Positive, multiplier: PositiveNumber) -> Values:
    """A shard's part of the noisy Gram matrix."""
    return {"gram": noisy_gram(table, view, encoding, table_rows, multiplier)}


@op("private.gradient", releases=Release.GRADIENT_SUMS, private=True, summed=("sums",))
def gradient(
    table: LocalTable, view: str, encoding: str, rows: Array, table_rows: Positive, clip: PositiveNumber,
    multiplier: PositiveNumber,
) -> Values:  # fmt: skip
    """A shard's part of the noisy gradient."""
    return {"sums": noisy_sums(table, view, encoding, rows, table_rows, clip, multiplier)}


def _turn(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, l2: float, curvature: Curvature,
    table_rows: int, clip: float, multiplier: float,
) -> tuple[RidgeBlock, Array]:  # fmt: skip
    """(the block with its new direction, T p)."""
    block: RidgeBlock = part_of(table, model)
    turned = block.turn(noisy_sums(table, view, encoding, rows, table_rows, clip, multiplier), l2, curvature)
    return block, encoded(table, view, encoding).times(turned)


@op("private.direction", releases=Release.PREDICTIONS)
def direction(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, l2: float, curvature: Curvature,
    table_rows: Positive, clip: PositiveNumber, multiplier: PositiveNumber,
) -> Values:  # fmt: skip
    """T p for a noisy direction, and its inner products with what is remembered. T p itself has no noise."""
    block, image = _turn(table, view, encoding, model, rows, l2, curvature, table_rows, clip, multiplier)
    return {"image": image.astype(table.wire), "products": block.products()}


@op("private.noisy_direction", releases=Release.PREDICTIONS, private=True)
def noisy_direction(
    table: LocalTable, view: str, encoding: str, model: str, rows: Array, l2: float, curvature: Curvature,
    table_rows: Positive, clip: PositiveNumber, multiplier: PositiveNumber, image_multiplier: PositiveNumber,
) -> Values:  # fmt: skip
    """The same with noise on T p too."""
    block, image = _turn(table, view, encoding, model, rows, l2, curvature, table_rows, clip, multiplier)
    bound = LARGE * usual_size(block, block.direction)
    told = {"products": block.products(), "noise": bound * image_multiplier}
    return {"image": noisy_image(table, view, image, bound, image_multiplier), **told}


@op("private.image", releases=Release.PREDICTIONS, private=True)
def image(
    table: LocalTable, view: str, encoding: str, theta: Array, bound: PositiveNumber, image_multiplier: PositiveNumber
) -> Values:
    """T theta with noise, for parameters that the coordinator holds."""
    found = encoded(table, view, encoding).times(theta)
    return {"image": noisy_image(table, view, found, bound, image_multiplier)}


@op("private.predict", releases=Release.PREDICTIONS, private=True)
def predict(table: LocalTable, view: str, encoding: str, model: str, image_multiplier: PositiveNumber) -> Values:
    """T theta with noise, for parameters that the party holds."""
    block: RidgeBlock = part_of(table, model)
    found = encoded(table, view, encoding).times(block.theta)
    return {"image": noisy_image(table, view, found, LARGE * usual_size(block, block.theta), image_multiplier)}


@op("private.parameters", releases=Release.PARAMETERS, private=True)
def parameters(table: LocalTable, view: str, model: str) -> Values:
    """The parameters of a table, which were made from noisy sums only: nothing more is spent."""
    block: RidgeBlock = part_of(table, model)
    check_noisy(table, block)
    return {"theta": block.theta}


@op("private.size", releases=Release.STATISTICS, private=True)
def size(table: LocalTable, view: str, model: str) -> Values:
    """The usual size of predictions, by noisy sums only: nothing more is spent."""
    block: RidgeBlock = part_of(table, model)
    check_noisy(table, block)
    return {"size": usual_size(block, block.theta)}


def check_noisy(table: LocalTable, part: Part | StoredPart) -> None:
    """PrivacyError unless all that the part is made of had noise."""
    if not part.noisy:
        raise PrivacyError(f"party {table.grant.party!r}: this model was not learned with noise", rule="require_dp")


def gram_noise(columns: int, table_rows: int, multiplier: float) -> float:
    """The noise in one number of a noisy Gram matrix."""
    return multiplier * columns / table_rows


def usual_size(block: RidgeBlock, theta: Array) -> float:
    """The root mean square of T theta by the noisy Gram matrix; above zero."""
    turned = block.vectors.T @ theta
    squares = block.values @ turned**2
    return float(np.sqrt(np.sum(squares))) or 1e-12


@dataclass
class FeatureNoise:
    """The multipliers of a fit, and how often each was used: all tables alike."""

    clip: float
    gram: float
    step: float
    image: float | None = None  # of predictions
    steps: int = 0
    images: int = 0


class NoisySums(Sums):
    """Tables with several shards: their noisy Gram matrices and gradients add up."""

    def __init__(
        self, lou: LearningOverUnion, encoding: Encoding, aliases: list[str], outputs: int, l2: float,
        noise: FeatureNoise,
    ):  # fmt: skip
        self.noise = noise
        self.lou, self.encoding, self.aliases, self.outputs, self.l2 = lou, encoding, aliases, outputs, l2
        self._grams = lou.ask(
            "private.gram", aliases, by_alias=_sizes(lou.client, aliases), encoding=encoding.id, multiplier=noise.gram,
            bounds=lambda alias: {"gram": encoding.columns(alias) * self._with_noise(alias, noise.gram)},
        )  # fmt: skip

    @cached_property
    def blocks(self) -> dict[str, RidgeBlock]:
        """By table."""
        found = {}
        for alias in self.aliases:
            rows, shards = self.lou.client.mapping.tables[alias].rows, self.lou.shards(alias)
            noise = gram_noise(self.encoding.columns(alias), rows, self.noise.gram) * math.sqrt(shards)
            found[alias] = new_noisy_block(self.lou.add(self._grams[alias], "gram"), noise, self.outputs)
        return found

    def _ask_sums(self, rows: Mapping[str, Floats]) -> Replies:
        return self.lou.ask(
            "private.gradient", self.aliases, rows, by_alias=_sizes(self.lou.client, self.aliases),
            encoding=self.encoding.id, clip=self.noise.clip, multiplier=self.noise.step,
            bounds=lambda alias: {"sums": self.noise.clip * self._with_noise(alias, self.noise.step)},
        )  # fmt: skip

    def _with_noise(self, alias: str, multiplier: float) -> float:
        """No noisy sum over a table's rows is larger, by what one row may add to it times its rows; almost surely."""
        return 1.0 + 10 * multiplier * self.lou.shards(alias) / self.lou.client.mapping.tables[alias].rows


def _sizes(client: Client, aliases: list[str]) -> dict[str, dict[str, int]]:
    return {alias: {"table_rows": client.mapping.tables[alias].rows} for alias in aliases}


class PrivateLinearModel(LinearModel):
    """The coordinator's side of a linear model whose parties add noise."""

    def __init__(
        self, client: Client, encoding: Encoding, wire: str, outputs: int, l2: float, model: str, noise: FeatureNoise
    ):
        self.noise = noise
        super().__init__(client, encoding, wire, outputs, l2, model)

    def _start(self) -> Replies:
        return self.lou.ask(
            "private.start", self.alone, by_alias=_sizes(self.lou.client, self.alone),
            encoding=self.encoding.id, model=self.model, outputs=self.outputs, multiplier=self.noise.gram,
        )  # fmt: skip

    def _new_union(self, inner: object) -> Sums:
        return NoisySums(self.lou, self.encoding, self.together, self.outputs, self.l2, self.noise)

    def _ask_directions(self, rows: Mapping[str, Floats], curvature: Curvature) -> Replies:
        self.noise.steps += 1
        self.noise.images += 1
        extra: dict[str, Any] = {} if self.noise.image is None else {"image_multiplier": self.noise.image}
        self._directions = self.lou.ask(
            "private.noisy_direction" if extra else "private.direction", self.alone, rows,
            by_alias=_sizes(self.lou.client, self.alone), encoding=self.encoding.id, model=self.model, l2=self.l2,
            curvature=curvature, clip=self.noise.clip, multiplier=self.noise.step, **extra,
        )  # fmt: skip
        return self._directions

    def image_noise(self, loss: Loss, scores: Array) -> ImageNoise | None:
        """What was added to the last direction's image; its size is known by the noisy Gram matrices."""
        if self.noise.image is None:
            return None
        found = {alias: float(self._directions[alias][0]["noise"]) for alias in self.alone}
        found |= {a: self.noise.image * self._bound(a, block.direction) for a, block in self.shared.items()}
        size = sum(deviation**2 for deviation in found.values()) / (LARGE * self.noise.image) ** 2
        return ImageNoise.of(self.loj, found, size, loss.gradient(scores))

    def _bound(self, alias: str, theta: Array) -> float:
        block = self.noisy_blocks.get(alias)
        return LARGE * (usual_size(block, theta) if block else float(np.linalg.norm(theta)) or 1e-12)

    @property
    def noisy_blocks(self) -> Mapping[str, RidgeBlock]:
        """Blocks of the tables in `together`."""
        assert isinstance(self._union, NoisySums), "made by _new_union"
        return self._union.blocks

    def _ask_told(self, lou: LearningOverUnion, thetas: Mapping[str, Array], instead: Instead | None) -> Replies:
        if self.noise.image is None:
            return super()._ask_told(lou, thetas, instead)
        told: dict[str, dict[str, Any]] = {}
        for alias, theta in thetas.items():
            told[alias] = {"theta": theta, "bound": self._bound(alias, theta)}
        return lou.ask(
            "private.image", told, by_alias=told, encoding=self.encoding.id, image_multiplier=self.noise.image
        )

    def _ask_held(self, lou: LearningOverUnion, aliases: list[str], instead: Instead | None) -> Replies:
        if self.noise.image is None:
            return super()._ask_held(lou, aliases, instead)
        self.noise.images += 1  # once for all tables; those of `_ask_told` are asked together with these
        return lou.ask(
            "private.predict", aliases, encoding=self.encoding.id, model=self.model, image_multiplier=self.noise.image
        )

    def _ask_parameters(self, aliases: list[str]) -> Replies:
        return self.lou.ask("private.parameters", aliases, model=self.model)

    def scores(self, client: Client, *, learning: bool = False) -> Array:
        """The sum over tables for the rows of a relation; of noisy predictions what is to be believed."""
        found = super().scores(client, learning=learning)
        return found if self.noise.image is None else calmed(found, self.mean, (LARGE * self.noise.image) ** 2)

    def noise_to_keep(self) -> KeptNoise | None:
        """As that of predictions now."""
        if self.noise.image is None:
            return None
        sizes = self.lou.ask("private.size", self.alone, model=self.model)
        bounds = {alias: LARGE * float(sizes[alias][0]["size"]) for alias in self.alone}
        bounds |= {alias: self._bound(alias, block.theta) for alias, block in self.shared.items()}
        return KeptNoise(self.noise.image, bounds, tuple(self.mean.tolist()), (LARGE * self.noise.image) ** 2)
