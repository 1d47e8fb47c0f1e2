"""`tp.bottom`: what the network of a table is, as a small value that travels; parties build the network from it.

tp.SplitNNClassifier(bottom=tp.bottom.mlp(hidden=(32,), embedding=8))
tp.SplitNNClassifier(bottom={"pictures": tp.bottom.cnn(shape=(14, 14)), "users": tp.bottom.mlp()})
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from tablepuppet.errors import ArgumentError, ConfigError, LearnError
from tablepuppet.learn.settings import Kind
from tablepuppet.learn.split.bottoms import Cnn, Registered, Side
from tablepuppet.learn.split.bottoms import register as register
from tablepuppet.learn.split.tabnet_table import TabNet
from tablepuppet.learn.tables.dense import Mlp
from tablepuppet.learn.tables.model import FIELD_NAMES, OWN_FIELDS, Bottom
from tablepuppet.party.arguments import Layers, described, fits
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.spelling import names_checked
from tablepuppet.sql.query import OutputColumn

__all__ = ["cnn", "mlp", "register", "registered", "tabnet"]


def __dir__() -> list[str]:
    return __all__


@names_checked
def mlp(hidden: Sequence[int] = (32,), embedding: int = 8, activation: Literal["relu", "tanh"] = "relu") -> Mlp:
    """Fully connected layers of the widths ``hidden``, then ``embedding`` outputs."""
    hidden = _listed(hidden)
    _check(Mlp, hidden=hidden, embedding=embedding, activation=activation)
    return Mlp(hidden, embedding, activation, False)


@names_checked
def cnn(
    shape: Sequence[int], channels: Sequence[int] = (16, 32), kernel: int = 3, embedding: int = 16,
    hidden: Sequence[int] = (),
) -> Cnn:  # fmt: skip
    """Convolutions over a table whose columns are the pixels of an image, row by row.

    ``shape`` is (height, width), or (channels, height, width). Each convolution is followed by ReLU and halves both.
    Fully connected layers of the widths ``hidden`` follow, each with ReLU, then ``embedding`` outputs.
    """
    sides, channels, hidden = _listed(shape), _listed(channels), _listed(hidden)
    if not (isinstance(sides, tuple) and len(sides) in (2, 3) and all(fits(side, Side) for side in sides)):
        raise LearnError(
            f"shape must be (height, width) or (channels, height, width), each {described(Side)}, not {shape!r}"
        )
    _check(Cnn, channels=channels, kernel=kernel, embedding=embedding, hidden=hidden)
    depth, height, width = sides if len(sides) == 3 else (1, *sides)
    return Cnn((depth, height, width), channels, kernel, embedding, False, hidden=hidden)


@names_checked
def tabnet(embedding: int = 8) -> TabNet:
    """Batch norm over the columns, then a linear layer, as TabVFL has at its guests."""
    _check(TabNet, embedding=embedding)
    return TabNet(embedding, 0, (), False)


@names_checked
def registered(name: str, embedding: int = 8) -> Registered:
    """A torch module that every party of the table has registered under a name (`register`)."""
    _check(Registered, name=name, embedding=embedding)
    return Registered(name, embedding, False)


def _listed(value: Any) -> Any:
    """Any list or array of numbers as a tuple; what is none stays, to be refused."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _check(spec: type[msgspec.Struct], **settings: Any) -> None:
    """Raise LearnError unless the settings of a network are what parties take."""
    types = {FIELD_NAMES.get(field.name, field.name): field.type for field in msgspec.structs.fields(spec)}
    for name, value in settings.items():
        if not fits(value, types[name]):
            like = ", as in (32,)" if types[name] is Layers else ""
            raise LearnError(f"{name} must be {described(types[name])}{like}, not {value!r}")


_KINDS: Mapping[str, Callable[..., Bottom]] = {"mlp": mlp, "cnn": cnn, "tabnet": tabnet, "registered": registered}


def on_pixels(spec: Cnn, alias: str, columns: Sequence[OutputColumn], encoding: Encoding) -> Cnn:
    """The same network for the columns of a table that have encoders, which leave out those with one value only.

    ``columns`` are the selected ones: the pixels, row by row. Encoders divide each column by its own deviation; the
    network undoes that, up to the mean deviation, since a pixel that is hardly ever dark would be the brightest.
    """
    size = math.prod(spec.shape)
    own, encoders = [column.name for column in columns if column.alias == alias], encoding.numbers[alias]
    if encoding.categories[alias] or len(own) != size:
        raise LearnError(
            f"the bottom network of table {alias!r} takes images of {' x '.join(map(str, spec.shape))} = {size:,} "
            f"columns, but the table has {len(own):,} in SELECT, of which {len(encoding.categories[alias]):,} are "
            "categories: select the pixels, row by row, or change shape"
        )
    places = {name: place for place, name in enumerate(own)}
    scales = np.array([encoder.scale for encoder in encoders])
    units = scales / scales.mean() if len(scales) else scales
    pixels = tuple(places[encoder.column.name] for encoder in encoders)
    return msgspec.structs.replace(spec, pixels=pixels, units=tuple(units.tolist()))


def checked(value: Any) -> bool:
    """Whether a setting is one of these, or a mapping of them by alias."""
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(name, str) and checked(each) for name, each in value.items())
    return isinstance(value, Bottom) and fits(value, type(value))


def _write(value: Bottom | Mapping[str, Bottom]) -> Any:
    if isinstance(value, Mapping):
        return {"tables": {alias: _write(each) for alias, each in value.items()}}
    found: dict[str, Any] = msgspec.to_builtins(value)
    return {FIELD_NAMES.get(name, name): each for name, each in found.items() if name not in OWN_FIELDS}


def _read(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("tables"), Mapping):
        return {alias: _read(each) for alias, each in value["tables"].items()}
    kinds = f"set kind to one of {', '.join(_KINDS)}"
    if not isinstance(value, Mapping):
        raise ConfigError(f"bottom must be a section, not {value!r}: {kinds}")
    if "kind" not in value and value and all(isinstance(each, Mapping) for each in value.values()):
        names = ", ".join(f"[learner.bottom.tables.{alias}]" for alias in value)
        raise ConfigError(f"bottom by alias has a section for each table under `tables`: {names}; in each {kinds}")
    if value.get("kind") not in _KINDS:
        raise ConfigError(
            f"bottom has kind {value.get('kind')!r}: {kinds}; or networks by alias: [learner.bottom.tables.o]"
        )
    try:
        return _KINDS[value["kind"]](**{name: each for name, each in value.items() if name != "kind"})
    except (TypeError, ArgumentError, LearnError) as error:
        raise ConfigError(f"bottom: {error}") from None


BOTTOM = Kind(
    "a bottom network, such as tp.bottom.mlp(hidden=(32,), embedding=8), or a dict of them by alias",
    checked,
    _write,
    _read,
)
