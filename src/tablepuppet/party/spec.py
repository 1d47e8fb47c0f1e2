"""The kind of a table's model as a Struct that is sent to parties, stored and shown; learn/tables/ computes with it.

A model of another kind is another Struct here, with its class there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tablepuppet.party.arguments import Layers, Name, Some, SomeOrNone


class Linear(msgspec.Struct, frozen=True, tag_field="kind", tag="linear"):
    """Predictions T theta, of a table's encoded rows T; no intercept."""

    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The shape of the parameters of a table with ``width`` encoded columns."""
        return (width,) if self.outputs == 1 else (width, self.outputs)


class Network(msgspec.Struct, frozen=True, tag_field="kind", tag="network"):
    """Tanh layers of the widths ``hidden``, then a linear output without bias."""

    hidden: Layers
    outputs: Some

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The same; the parameters of all layers are one vector."""
        sizes = (width, *self.hidden, self.outputs)
        return (sum((into + 1) * out for into, out in pairwise(sizes)) - self.outputs,)


Spec = Linear | Network
"""Models whose outputs are scores, one per number or class: released as PREDICTIONS."""


OWN_FIELDS = ("double", "pixels", "units", "part", "categories")  # fields of bottom networks that users do not give
FIELD_NAMES = {"outputs": "embedding"}  # fields of bottom networks by the names that users give


class BottomNetwork(msgspec.Struct, frozen=True):
    """The network of a table below that of the coordinator; it is shown as `tp.bottom` makes it."""

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name not in OWN_FIELDS]
        given = ", ".join(f"{FIELD_NAMES.get(name, name)}={getattr(self, name)!r}" for name in names)
        return f"tp.bottom.{self.__struct_config__.tag}({given})"


class Mlp(BottomNetwork, frozen=True, tag_field="kind", tag="mlp"):
    """Layers of the widths ``hidden``, each followed by the activation, then a linear layer to the embedding."""

    hidden: Layers
    outputs: Some
    activation: Literal["relu", "tanh"]
    double: bool  # computed in double precision

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The same as for a network; every layer has a bias."""
        return (sum((into + 1) * out for into, out in pairwise((width, *self.hidden, self.outputs))),)


Side = Annotated[int, Meta(ge=1, le=1_000)]
Pixels = Sequence[Annotated[int, Meta(ge=0, le=2**31)]]
Units = Sequence[Annotated[float, Meta(ge=0.0, le=1e100)]]


class Cnn(BottomNetwork, frozen=True, tag_field="kind", tag="cnn"):
    """Convolutions of ``kernel`` by ``kernel`` over an image of ``shape``, then a linear layer to the embedding.

    Layers of the widths ``hidden``, each followed by ReLU, are between them.

    ``shape`` is (channels, height, width). Each convolution keeps height and width, and is followed by ReLU and by the
    maximum over squares of two by two. ``pixels`` says which pixel each column is, and ``units`` what it is multiplied
    by; pixels that no column is are zero. If they are empty, columns are all pixels in their order.
    """

    shape: tuple[Side, Side, Side]
    channels: Layers
    kernel: Annotated[int, Meta(ge=1, le=15)]
    outputs: Some
    double: bool
    pixels: Pixels = ()
    units: Units = ()
    hidden: Layers = ()

    @property
    def left(self) -> tuple[int, int]:
        """Height and width after all convolutions."""
        halved = 2 ** len(self.channels)
        return self.shape[1] // halved, self.shape[2] // halved

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The same; the number of columns is that of the image, and ``width`` is not used."""
        filters = (self.shape[0], *self.channels)
        convolutions = sum((into * self.kernel**2 + 1) * out for into, out in pairwise(filters))
        widths = (filters[-1] * math.prod(self.left), *self.hidden, self.outputs)
        return (convolutions + sum((into + 1) * out for into, out in pairwise(widths)),)


CategoryCounts = Annotated[Sequence[Some], Meta(max_length=10_000)]
"""How many categories each categorical column has."""


class TabNet(BottomNetwork, frozen=True, tag_field="kind", tag="tabnet"):
    """Batch norm over the columns, then a linear layer: the guest's part of TabVFL (papers: TabVFL, Fig. 3).

    With ``part`` above 0, another layer reconstructs the columns from ``part`` numbers, in pretraining. ``categories``
    are the last encoded columns: cells of one categorical column are hidden together.
    """

    outputs: Some
    part: SomeOrNone
    categories: CategoryCounts
    double: bool

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The same: scale, shift, both layers; then the running mean and variance of each column."""
        return (2 * width + (width + 1) * self.outputs + self.part * width + 2 * width,)


class Hiding(msgspec.Struct, frozen=True):
    """Random cells that a table hides from its network: a ``share`` of all, drawn from the seed and the batch.

    ``offset``: how many base rows of the batch other shards of the table hold, before those of this one.
    """

    share: Annotated[float, Meta(ge=0.0, le=1.0)]
    seed: Annotated[int, Meta(ge=0, le=2**53)]
    batch: Annotated[int, Meta(ge=0, le=2**53)]
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0


class Registered(BottomNetwork, frozen=True, tag_field="kind", tag="registered"):
    """A torch module that the party's operator has registered under a name; the name is all that travels."""

    name: Name
    outputs: Some
    double: bool

    def theta_shape(self, width: int) -> None:
        """Only who has the module knows."""
        return None


Bottom = Mlp | Cnn | TabNet | Registered
"""Networks whose outputs are embeddings for a network at the coordinator: released as EMBEDDINGS."""
AnySpec = Spec | Bottom
