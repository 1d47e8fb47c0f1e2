"""What the model of a table is, as a Struct that is sent to parties, stored and shown: two families of them.

A model of another kind is another Struct of its family, with a tag of its own, in the file of the model: ops that take
a family take all its members, and nothing else has to know them. Bottom networks, which torch computes (learn/split),
are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tablepuppet.party.arguments import Layers, Name, Some, SomeOrNone


class TableSpec(msgspec.Struct, frozen=True):
    """What the model of a table is: a Struct with a tag that is sent to parties, stored and shown."""

    @property
    def outputs(self) -> int:
        """Numbers per row: scores, or the width of an embedding."""
        raise NotImplementedError

    def theta_shape(self, width: int) -> tuple[int, ...] | None:
        """The shape of the parameters of a table with ``width`` encoded columns; None if it is not known here."""
        raise NotImplementedError


class Spec(TableSpec, frozen=True):
    """A model whose outputs are scores, one per number or class: released as PREDICTIONS.

    Each kind is a Struct of this family beside the model that it is `over` a table (tables/linear.py,
    tables/network.py); an op that takes a `Spec` takes them all.
    """

    def theta_shape(self, width: int) -> tuple[int, ...]:
        """The shape of the parameters of a table with ``width`` encoded columns."""
        raise NotImplementedError

    def over(self, width: int) -> Any:
        """The `TableModel` of a table with ``width`` encoded columns; LearnError if it is too large."""
        raise NotImplementedError


OWN_FIELDS = ("double", "pixels", "units", "part", "categories")  # fields of bottom networks that users do not give
FIELD_NAMES = {"outputs": "embedding"}  # fields of bottom networks by the names that users give


class Bottom(TableSpec, frozen=True):
    """The network of a table below that of the coordinator, whose outputs are embeddings: released as EMBEDDINGS.

    It is shown as `tp.bottom` makes it.
    """

    @property
    def double(self) -> bool:
        """Whether it is computed in double precision."""
        raise NotImplementedError

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if name not in OWN_FIELDS]
        given = ", ".join(f"{FIELD_NAMES.get(name, name)}={getattr(self, name)!r}" for name in names)
        return f"tp.bottom.{self.__struct_config__.tag}({given})"


class Mlp(Bottom, frozen=True, tag_field="kind", tag="mlp"):
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


class Cnn(Bottom, frozen=True, tag_field="kind", tag="cnn"):
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


class TabNet(Bottom, frozen=True, tag_field="kind", tag="tabnet"):
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


class Registered(Bottom, frozen=True, tag_field="kind", tag="registered"):
    """A torch module that the party's operator has registered under a name; the name is all that travels."""

    name: Name
    outputs: Some
    double: bool

    def theta_shape(self, width: int) -> None:
        """Only who has the module knows."""
        return None
