"""What an op may be told: arguments held against the types that the op's function declares.

A coordinator may send anything. Here a text stays a text, a whole number lies within the bounds of its annotation, and
an array has the kind of numbers that the op expects; how long arrays must be, each op knows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Meta

from tablepuppet.errors import PartyError

Seed = Annotated[int, Meta(ge=0, le=2**64 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Some = Annotated[int, Meta(ge=1, le=10_000)]
"""How many of something that takes time or memory for each: outputs, units of a layer, steps."""
PositiveNumber = Annotated[float, Meta(ge=1e-300, le=1e300)]
SomeOrNone = Annotated[int, Meta(ge=0, le=10_000)]

_PLAIN: Mapping[Any, tuple[type, ...]] = {
    str: (str,), bytes: (bytes,), int: (int,), float: (int, float), bool: (bool,), NoneType: (NoneType,),
}  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """The parameters of an op's function, after the table."""

    op: str
    function: Callable[..., Any]

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The declared type of each parameter."""
        found = get_type_hints(self.function, include_extras=True)
        return {name: found[name] for name in list(self._signature.parameters)[1:]}

    @cached_property
    def _others(self) -> Any:
        """The type of arguments that are not named, where the function takes such."""
        return next((self.hints[p.name] for p in self._signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """PartyError unless the arguments are those of the function, each of its declared type."""
        try:
            self._signature.bind(None, **arguments)
        except TypeError as error:
            raise PartyError(f"op {self.op!r}: {error}") from error
        for name, value in arguments.items():
            if not fits(value, self.hints.get(name, self._others)):
                raise PartyError(f"op {self.op!r}: argument {name!r} is not of the kind or size that it takes")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value that came over the wire is of a declared type.

    >>> fits([3, 4], Sequence[Some]), fits([3, 0], Sequence[Some]), fits(True, float)
    (True, False, False)
    """
    origin, inner = get_origin(hint), get_args(hint)
    value = value.item() if isinstance(value, np.generic) else value  # as it travels
    if origin is Annotated:
        return fits(value, inner[0]) and inner[1].ge <= value <= inner[1].le
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _same_kind(value.dtype, get_args(inner[1])[0])
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(inner) and all(map(fits, value, inner))
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(fits(each, inner[0]) for each in value)
    plain = isinstance(value, _PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
    return plain and (not isinstance(value, float) or math.isfinite(value))


def _same_kind(found: np.dtype[Any], declared: Any) -> bool:
    """Numbers of the same kind in any precision; bytes must be bytes."""
    kind: Any = get_origin(declared) or declared
    if kind is np.uint8:
        return found == np.uint8
    return np.issubdtype(found, np.floating if issubclass(kind, np.floating) else np.integer)
