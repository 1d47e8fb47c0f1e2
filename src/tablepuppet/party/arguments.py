"""What an op may be told: arguments held against the types that the op's function declares.

A coordinator may send anything. Here a text stays a text, a whole number lies within the bounds of its annotation, and
an array has the kind of numbers that the op expects; how long arrays must be, each op knows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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

Check = Callable[[Any], bool]
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
    def _checks(self) -> dict[str, Check]:
        return {name: checker(hint) for name, hint in self.hints.items()}

    @cached_property
    def _others(self) -> Check | None:
        """What holds arguments that are not named, where the function takes such."""
        parameters = self._signature.parameters.values()
        return next((self._checks[p.name] for p in parameters if p.kind is p.VAR_KEYWORD), None)

    @cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of arguments that must be given, and of those that may."""
        named = [p for p in list(self._signature.parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
        return frozenset(p.name for p in named if p.default is p.empty), frozenset(p.name for p in named)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """PartyError unless the arguments are those of the function, each of its declared type."""
        needed, known = self._names
        if not needed <= arguments.keys() <= known:
            self._bind(arguments)
        for name, value in arguments.items():
            check = self._checks.get(name, self._others)
            if check is None or not check(value):
                raise PartyError(f"op {self.op!r}: argument {name!r} is not of the kind or size that it takes")

    def _bind(self, arguments: Mapping[str, Any]) -> None:
        """Say exactly what is wrong with the names, if anything is; that takes as long as all the rest."""
        try:
            self._signature.bind(None, **arguments)
        except TypeError as error:
            raise PartyError(f"op {self.op!r}: {error}") from error


def fits(value: Any, hint: Any) -> bool:
    """Whether a value that came over the wire is of a declared type.

    >>> fits([3, 4], Sequence[Some]), fits([3, 0], Sequence[Some]), fits(True, float)
    (True, False, False)
    """
    return checker(hint)(value)


def checker(hint: Any) -> Check:
    """What tells whether a value is of a declared type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        plain, least, most = checker(inner[0]), inner[1].ge, inner[1].le
        return lambda value: plain(value) and least <= value <= most
    if origin in (Union, UnionType):
        any_of = [checker(each) for each in inner]
        return lambda value: any(check(value) for check in any_of)
    if origin is np.ndarray:
        return _array(get_args(inner[1])[0])
    if origin is tuple:
        each_of = [checker(each) for each in inner]
        return lambda value: (
            _is_list(value, len(inner)) and all(check(v) for check, v in zip(each_of, value, strict=True))
        )
    if origin is Sequence:
        item = checker(inner[0])
        return lambda value: _is_list(value) and all(map(item, value))
    return partial(_is_plain, hint)


def _is_list(value: Any, length: int | None = None) -> bool:
    return isinstance(value, list | tuple) and (length is None or len(value) == length)


def _is_plain(hint: Any, value: Any) -> bool:
    value = value.item() if isinstance(value, np.generic) else value  # as it travels
    plain = isinstance(value, _PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
    return plain and (not isinstance(value, float) or math.isfinite(value))


def _array(declared: Any) -> Check:
    """Numbers of the same kind in any precision; bytes must be bytes."""
    number: Any = get_origin(declared) or declared
    if number is np.uint8:
        return lambda value: isinstance(value, np.ndarray) and value.dtype == np.uint8
    kinds = "f" if issubclass(number, np.floating) else "iu"
    return lambda value: isinstance(value, np.ndarray) and value.dtype.kind in kinds
