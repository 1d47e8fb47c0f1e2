"""The torch modules of bottom networks, by spec. They need torch, which is imported on first use.

A module takes the encoded columns of rows, (rows, width), and returns (rows, outputs). That of TabNet also takes what
its batch norm needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from tablepuppet.errors import LearnError
from tablepuppet.learn.specs import Bottom, Cnn, Mlp, Registered, TabNet
from tablepuppet.learn.tables.network import need_torch
from tablepuppet.spelling import did_you_mean

if TYPE_CHECKING:
    from torch import nn

ENTRY_POINTS = "tablepuppet.bottoms"
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


@singledispatch
def build(spec: Bottom, width: int, table: str) -> nn.Module:
    """The module of a spec for a table with ``width`` encoded columns, with torch's own first parameters."""
    raise NotImplementedError(f"no network is registered for {type(spec).__name__}")


@build.register(Mlp)
def _mlp(spec: Mlp, width: int, table: str) -> nn.Module:
    layers = linear_layers((width, *spec.hidden, spec.outputs), spec.activation)
    module: nn.Module = need_torch().nn.Sequential(*layers)
    return module


def linear_layers(sizes: Sequence[int], activation: Literal["relu", "tanh"] = "relu") -> list[nn.Module]:
    """Fully connected layers of these sizes, with the activation between them."""
    torch = need_torch()
    layers: list[Any] = []
    for into, out in pairwise(sizes):
        layers += [torch.nn.Linear(into, out), torch.nn.ReLU() if activation == "relu" else torch.nn.Tanh()]
    return layers[:-1]


@build.register(Cnn)
def _cnn(spec: Cnn, width: int, table: str) -> nn.Module:
    torch = need_torch()
    channels, height, across = spec.shape
    size = channels * height * across
    if len(spec.pixels or range(size)) != width or len(spec.units) != len(spec.pixels):
        raise LearnError(
            f"the bottom network of table {table!r} takes images of {channels} x {height} x {across} = {size:,} "
            f"columns, but the table has {width:,} encoded columns: select as many, all numbers, row by row, or change "
            "shape"
        )
    if spec.pixels and (max(spec.pixels) >= size or len(set(spec.pixels)) < len(spec.pixels)):
        raise LearnError(f"the bottom network of table {table!r}: a column is no pixel, or two are the same")
    if not all(spec.left):
        raise LearnError(
            f"the bottom network of table {table!r}: {len(spec.channels)} convolutions halve an image of {height} x "
            f"{across} to nothing: take fewer channels"
        )
    layers: list[Any] = [_placed(spec, size), torch.nn.Unflatten(1, spec.shape)]
    for into, out in pairwise((channels, *spec.channels)):
        layers += [torch.nn.Conv2d(into, out, spec.kernel, padding="same"), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    left = (channels, *spec.channels)[-1] * spec.left[0] * spec.left[1]
    layers += [torch.nn.Flatten(), *linear_layers((left, *spec.hidden, spec.outputs))]
    return torch.nn.Sequential(*layers)  # type: ignore[no-any-return]


def _placed(spec: Cnn, size: int) -> nn.Module:
    """A layer that puts columns where they are in the image; it has no parameters."""
    torch = need_torch()
    if not spec.pixels:
        return torch.nn.Identity()  # type: ignore[no-any-return]
    places, units = torch.tensor(spec.pixels), torch.tensor(spec.units, dtype=torch.float64)

    class Placed(torch.nn.Module):  # type: ignore[misc, name-defined]
        """Columns as pixels, in one unit."""

        def forward(self, rows: Any) -> Any:
            """The image of each row, flat."""
            return rows.new_zeros(len(rows), size).index_copy(1, places, rows * units.to(rows.dtype))

    module: nn.Module = Placed()
    return module


@build.register(TabNet)
def _tabnet(spec: TabNet, width: int, table: str) -> nn.Module:
    if sum(spec.categories) > width:
        raise LearnError(f"table {table!r} has {width:,} encoded columns, fewer than the categories of its network")
    need_tabnet()
    from tablepuppet.learn.split.tabnet import Guest

    return Guest(width, spec.outputs, spec.part)


def need_tabnet() -> None:
    """LearnError unless torch and pytorch-tabnet are installed."""
    need_torch()
    if find_spec("pytorch_tabnet") is None:
        raise LearnError("TabNet needs pytorch-tabnet: pip install 'tablepuppet[deep]'")


@build.register(Registered)
def _registered(spec: Registered, width: int, table: str) -> nn.Module:
    known = {**_installed(), **_REGISTERED}
    if spec.name not in known:
        raise LearnError(
            f"no bottom network {spec.name!r} is registered here{did_you_mean(spec.name, known)}: tp.bottom.register "
            f"it, or install a package with an entry point of that name in {ENTRY_POINTS}"
        )
    where = f"bottom network {spec.name!r}, which is registered here"
    try:
        made = known[spec.name](width, spec.outputs)
    except Exception as error:  # whatever an operator's own code raises
        raise LearnError(f"{where}, cannot be made of ({width}, {spec.outputs}): {type(error).__name__}") from error
    if not isinstance(made, need_torch().nn.Module):
        raise LearnError(f"{where}, is no torch module but {type(made).__name__}")
    return _checked(made, where, spec.outputs)


def _installed() -> Mapping[str, Factory]:
    """The modules of installed packages, loaded when they are used."""

    def load(point: Any) -> Factory:
        return lambda width, outputs: point.load()(width, outputs)

    return {point.name: load(point) for point in entry_points(group=ENTRY_POINTS)}


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
