"""Bottom networks of torch: convolutions, and modules of an operator's own. Connected layers are in tables/dense.py.

A module takes the encoded columns of rows, (rows, width), and returns (rows, outputs). Torch is imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from tablepuppet.errors import LearnError
from tablepuppet.learn.tables.dense import linear_layers
from tablepuppet.learn.tables.model import Bottom
from tablepuppet.learn.tables.torch_table import TorchTable
from tablepuppet.learn.threads import need_torch
from tablepuppet.party.arguments import Layers, Name, Some
from tablepuppet.spelling import did_you_mean

if TYPE_CHECKING:
    from torch import nn

NORM_MOMENTUM = 0.01  # of TabNet's first batch norm: how far running statistics move with a batch
ENTRY_POINTS = "tablepuppet.bottoms"
Side = Annotated[int, Meta(ge=1, le=1_000)]
Pixels = Sequence[Annotated[int, Meta(ge=0, le=2**31)]]
Units = Sequence[Annotated[float, Meta(ge=0.0, le=1e100)]]


class Cnn(Bottom, frozen=True, tag_field="kind", tag="cnn"):
    """Convolutions of ``kernel`` by ``kernel`` over a picture of ``shape``, then a linear layer to the embedding.

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
        """One vector; the number of columns is that of the pixels, and ``width`` is not used."""
        filters = (self.shape[0], *self.channels)
        convolutions = sum((into * self.kernel**2 + 1) * out for into, out in pairwise(filters))
        return (convolutions + sum((into + 1) * out for into, out in pairwise(self._widths)),)

    @property
    def _widths(self) -> tuple[int, ...]:
        """Of the layers after the convolutions."""
        return ((self.shape[0], *self.channels)[-1] * math.prod(self.left), *self.hidden, self.outputs)

    @property
    def multiplications(self) -> int:
        """Of one row, about."""
        filters, pixels = (self.shape[0], *self.channels), self.shape[1] * self.shape[2]
        layers = zip(filters, self.channels, strict=False)
        passes = [into * out * self.kernel**2 * pixels // 4**depth for depth, (into, out) in enumerate(layers)]
        return int(sum(passes) + sum(into * out for into, out in pairwise(self._widths)))

    def over(self, width: int, alias: str = "") -> TorchTable:
        """The network of a table whose ``width`` columns are pixels."""
        cells = 3 * (math.prod(self.shape[1:]) * max([self.shape[0], *self.channels]) + sum(self.hidden))
        return TorchTable(self, width, alias, cells, partial(self._build, width, alias), self.multiplications)

    def _build(self, width: int, table: str) -> nn.Module:
        torch = need_torch()
        channels, height, across = self.shape
        size = channels * height * across
        where = f"the bottom network of table {table!r}"
        if len(self.pixels or range(size)) != width or len(self.units) != len(self.pixels):
            raise LearnError(
                f"{where} takes images of {channels} x {height} x {across} = {size:,} columns, but the table has "
                f"{width:,} encoded columns: select as many, all numbers, row by row, or change shape"
            )
        if self.pixels and (max(self.pixels) >= size or len(set(self.pixels)) < len(self.pixels)):
            raise LearnError(f"{where}: a column is no pixel, or two are the same")
        if not all(self.left):
            raise LearnError(
                f"{where}: {len(self.channels)} convolutions halve an image of {height} x {across} to nothing: take "
                "fewer channels"
            )
        layers: list[Any] = [self._placed(size), torch.nn.Unflatten(1, self.shape)]
        for into, out in pairwise((channels, *self.channels)):
            layers += [torch.nn.Conv2d(into, out, self.kernel, padding="same"), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        layers += [torch.nn.Flatten(), *linear_layers(self._widths)]
        return torch.nn.Sequential(*layers)  # type: ignore[no-any-return]

    def _placed(self, size: int) -> nn.Module:
        """A layer that puts columns where they are in the picture; it has no parameters."""
        torch = need_torch()
        if not self.pixels:
            return torch.nn.Identity()  # type: ignore[no-any-return]
        places, units = torch.tensor(self.pixels), torch.tensor(self.units, dtype=torch.float64)

        class Placed(torch.nn.Module):  # type: ignore[misc, name-defined]
            """Columns as pixels, in one unit."""

            def forward(self, rows: Any) -> Any:
                """The picture of each row, flat."""
                return rows.new_zeros(len(rows), size).index_copy(1, places, rows * units.to(rows.dtype))

        module: nn.Module = Placed()
        return module


def need_tabnet() -> None:
    """LearnError unless torch and pytorch-tabnet are installed."""
    need_torch()
    if find_spec("pytorch_tabnet") is None:
        raise LearnError("TabNet needs pytorch-tabnet: pip install 'tablepuppet[deep]'")


# Modules of an operator's own.

Factory = Callable[[int, int], Any]
"""Makes a module from the number of encoded columns and that of outputs."""
_REGISTERED: dict[str, Factory] = {}


def register(name: str, factory: Factory) -> None:
    """Register a bottom network under a name, in this process: ``factory(width, outputs)`` makes a torch module.

    The module takes rows, (rows, width), and returns (rows, outputs). It must compute the same whenever it is given the
    same rows: no dropout. A party's service finds modules by the entry points ``tablepuppet.bottoms`` of the packages
    that its operator has installed.
    """
    if not isinstance(name, str) or not callable(factory):
        raise LearnError(
            "tp.bottom.register takes a name and a function of (width, outputs) that makes a torch module, not "
            f"{name!r} and {factory!r}"
        )
    _REGISTERED[name] = factory


class Registered(Bottom, frozen=True, tag_field="kind", tag="registered"):
    """A torch module that the party's operator has registered under a name; the name is all that travels."""

    name: Name
    outputs: Some
    double: bool

    def theta_shape(self, width: int) -> None:
        """Only who has the module knows."""
        return None

    def over(self, width: int, alias: str = "") -> TorchTable:
        """The module over a table with ``width`` encoded columns; LearnError if it is not registered here."""
        return TorchTable(self, width, alias, 16 * (width + self.outputs), partial(self._build, width))

    def _build(self, width: int) -> nn.Module:
        installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if self.name not in {**installed, **_REGISTERED}:
            raise LearnError(
                f"no bottom network {self.name!r} is registered here"
                f"{did_you_mean(self.name, {**installed, **_REGISTERED})}: tp.bottom.register it, or install a package "
                f"with an entry point of that name in {ENTRY_POINTS}"
            )
        where = f"bottom network {self.name!r}, which is registered here"
        try:
            made = (_REGISTERED.get(self.name) or installed[self.name].load())(width, self.outputs)
        except Exception as error:  # whatever an operator's own code raises
            raise LearnError(f"{where}, cannot be made of ({width}, {self.outputs}): {type(error).__name__}") from error
        if not isinstance(made, need_torch().nn.Module):
            raise LearnError(f"{where}, is no torch module but {type(made).__name__}")
        return _checked(made, where, self.outputs)


def _checked(inner: nn.Module, where: str, outputs: int) -> nn.Module:
    """Code of an operator's own: LearnError if it fails, or does not return ``outputs`` numbers for each row."""
    torch = need_torch()

    class Checked(torch.nn.Module):  # type: ignore[misc, name-defined]
        """A module whose outputs are checked."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, rows: Any) -> Any:
            """The outputs of rows."""
            try:
                found = self.inner(rows)
            except Exception as error:  # whatever an operator's own code raises
                raise LearnError(f"{where}, fails on rows: {type(error).__name__}") from error
            if found.shape != (len(rows), outputs):
                raise LearnError(f"{where}, returns {tuple(found.shape)} for {len(rows)} rows, not (rows, {outputs})")
            return found

    module: nn.Module = Checked()
    return module
