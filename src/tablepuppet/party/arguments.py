"""Arguments of ops, checked against the types that the op's function declares.

A coordinator may send anything. Here a text must be a text, a number must lie within the limits of its annotation, and
an array must have the kind of numbers, the range and the dimensions that the op expects; each op checks lengths itself.
Values that belong together are a Struct, which travels as a mapping.
No type is without limits: what an annotation does not narrow has those of `LARGEST`, `LONGEST` and `MOST_ITEMS`. All of
this is decided by the arguments alone, before a row is read, so that a refusal reveals nothing about the rows.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from tablepuppet.arrays import are_within
from tablepuppet.errors import PartyError
from tablepuppet.privacy.accountant import LEAST_MULTIPLIER, MOST_MULTIPLIER

LARGEST = 1e100
"""The largest number of any argument: a product of two of them, and a sum of such products, is still finite."""
WHOLE = 2**63  # whole numbers are below it
LONGEST: Mapping[Any, int] = {str: 1 << 12, bytes: 1 << 16}  # characters, bytes
MOST_COLUMNS = 10_000  # of an array with two dimensions: one without rows takes no bytes, however wide it says it is
MOST_ITEMS = 1 << 16  # of a list


@dataclass(frozen=True)
class Within:
    """Limits of an array: every number is finite and from ``least`` to ``most``; how many dimensions it may have."""

    least: float = -LARGEST
    most: float = LARGEST
    dimensions: tuple[int, ...] = (1, 2)
    size: int | None = None  # numbers; None: as many as a message holds


Name = Annotated[str, Meta(pattern=r"[A-Za-z0-9_.:-]{1,200}")]
"""Of something that a caller keeps at a party: operators see it in lists."""
NoName = Literal[""]
Seed = Annotated[int, Meta(ge=0, le=2**64 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Some = Annotated[int, Meta(ge=1, le=10_000)]
"""How many of something that takes time or memory for each: outputs, units of a layer, steps."""
SomeOrNone = Annotated[int, Meta(ge=0, le=10_000)]
Layers = Annotated[Sequence[Some], Meta(max_length=16)]
"""The widths of hidden layers."""
Multiplier = Annotated[float, Meta(ge=LEAST_MULTIPLIER, le=MOST_MULTIPLIER)]
"""Of noise: its standard deviation divided by the sensitivity."""
Bound = Annotated[float, Meta(ge=1e-60, le=1e60)]
"""The length that a row's part of a release is cut to."""
Sampling = Annotated[float, Meta(ge=1e-9, le=1.0)]
"""The probability with which a row is in a sample."""
NotNegative = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Epsilon = Annotated[float, Meta(ge=1e-6, le=1e6)]
LEAST_SCALE, MOST_SCALE = 1e-155, 1e155  # squares of columns are ordinary numbers
Means = Annotated[NDArray[np.float64], Within(-MOST_SCALE, MOST_SCALE, (1,))]
Scales = Annotated[NDArray[np.float64], Within(LEAST_SCALE, MOST_SCALE, (1,))]
"""What values of columns are centred at and divided by."""
Rates = Annotated[NDArray[np.float64], Within(dimensions=(1,), size=10_000)]
"""Learning rates, one for each step."""
List = Annotated[NDArray[np.float64], Within(dimensions=(1,))]
"""An array of one dimension."""

_PLAIN: Mapping[Any, tuple[type, ...]] = {
    str: (str,), bytes: (bytes,), int: (int,), float: (int, float), bool: (bool,), NoneType: (NoneType,),
}  # fmt: skip
_WORDS = {NoneType: "nothing", str: "a text", bytes: "bytes", bool: "true or false"}


class Domain(NamedTuple):
    """The values that a declared type takes: whether it has one, and in words."""

    has: Callable[[Any], bool]
    words: str


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
    def _domains(self) -> dict[str, Domain]:
        return {name: domain_of(hint) for name, hint in self.hints.items()}

    @cached_property
    def _structs(self) -> dict[str, Any]:
        """The types of those parameters that are Structs, or one of several, or a list of such."""
        return {name: hint for name, hint in self.hints.items() if _has_struct(hint)}

    @cached_property
    def others(self) -> str | None:
        """The parameter for arguments that are not named (``**name``), if the function has one."""
        parameters = self._signature.parameters.values()
        return next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)

    @cached_property
    def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of arguments that must be given, and of those that may."""
        named = [p for p in list(self._signature.parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
        return frozenset(p.name for p in named if p.default is p.empty), frozenset(p.name for p in named)

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them; PartyError unless each is of its declared type."""
        self._check(arguments)
        structs = {
            name: msgspec.convert(value, one_of(self._structs[name]))
            for name, value in arguments.items()
            if name in self._structs and _holds_mapping(value)
        }
        return {**arguments, **structs}

    def _check(self, arguments: Mapping[str, Any]) -> None:
        needed, known = self.names
        if not needed <= arguments.keys() <= known:
            self._bind(arguments)
        for name, value in arguments.items():
            declared = name if name in known else self.others
            if declared is None or not self._domains[declared].has(value):
                takes = "" if declared is None else f": it takes {self._domains[declared].words}"
                raise PartyError(f"op {self.op!r}: argument {name!r} is not of the kind or size that it takes{takes}")

    def _bind(self, arguments: Mapping[str, Any]) -> None:
        """Say exactly what is wrong with the names, if anything is; that takes as long as all the rest."""
        try:
            self._signature.bind(None, **arguments)
        except TypeError as error:
            raise PartyError(f"op {self.op!r}: {error}") from error


def fits(value: Any, hint: Any) -> bool:
    """Whether a value that came over the wire is of a declared type.

    >>> fits([3, 4], Sequence[Some]), fits([3, 0], Sequence[Some]), fits(True, float), fits(1e300, float)
    (True, False, False, False)
    """
    return domain_of(hint).has(value)


def described(hint: Any) -> str:
    """What a declared type takes, in words.

    >>> described(Multiplier | None), described(Layers)
    ('a number from 1e-06 to 1e+06, or nothing', 'at most 16 of: a number from 1 to 10000')
    """
    return domain_of(hint).words


@lru_cache(1024)  # asked for with every column
def domain_of(hint: Any) -> Domain:
    """What a declared type takes."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(inner[0], inner[1])
    if origin is Literal:
        return Domain(lambda value: isinstance(value, str) and value in inner, f"one of {', '.join(map(repr, inner))}")
    if origin in (Union, UnionType):
        domains = [domain_of(each) for each in inner]
        words = ", or ".join(each.words for each in domains)
        return Domain(lambda value: any(each.has(value) for each in domains), words)
    if origin is np.ndarray:
        return Domain(_array(get_args(inner[1])[0], Within()), f"an array of finite numbers up to {LARGEST:g}")
    if origin is tuple:
        parts = [domain_of(each) for each in inner]
        return Domain(partial(_is_tuple, parts), f"a list of: {', '.join(part.words for part in parts)}")
    if origin is Sequence:
        item = domain_of(inner[0])
        return Domain(partial(_is_list, item, 0, MOST_ITEMS), f"a list of: {item.words}")
    if is_family(hint):
        return Domain(partial(_is_member, hint), ", or ".join(domain_of(each).words for each in members(hint)))
    if _is_struct(hint):
        return Domain(_struct(hint), f"{hint.__name__} with {', '.join(hint.__struct_fields__)}")
    if hint not in _PLAIN:
        raise TypeError(f"an op takes no {hint}: annotate it by Sequence, tuple, a Struct, an array or a plain type")
    return Domain(partial(_is_plain, hint), _WORDS.get(hint, f"a number up to {LARGEST:g}"))


def one_of(hint: Any) -> Any:
    """A type in which families of Structs are written out as unions of their members.

    >>> class Shape(Struct, tag_field="kind"): ...
    >>> class Dot(Shape, tag="dot"): ...
    >>> class Line(Shape, tag="line"): ...
    >>> one_of(Shape | None)
    typing.Union[tablepuppet.party.arguments.Dot, tablepuppet.party.arguments.Line, NoneType]
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(map(one_of, inner))]  # noqa: UP007 - of a tuple
    if origin is Sequence:
        return Sequence[one_of(inner[0])]  # type: ignore[misc]
    return Union[tuple(members(hint))] if is_family(hint) else hint  # noqa: UP007


def members(family: type[Struct]) -> list[type[Struct]]:
    """The Structs of a family: those below it with a tag of their own, ``kind``. More may be defined later."""
    found = []
    for each in family.__subclasses__():
        own = [each] if each.__struct_config__.tag not in (None, each.__name__) else []
        found += own + members(each)
    return found


_MEMBERS: dict[type, dict[str, type[Struct]]] = {}  # by family and tag, those that were asked for


def _is_member(family: type[Struct], value: Any) -> bool:
    """Whether a value is a Struct of the family, or a mapping with the tag and the fields of one."""
    known = _MEMBERS.setdefault(family, {})
    if isinstance(value, Struct):
        tag = value.__struct_config__.tag
    elif isinstance(value, Mapping):
        tag = value.get("kind")
    else:
        return False
    if not isinstance(tag, str):
        return False
    if tag not in known:
        known.update((str(each.__struct_config__.tag), each) for each in members(family))
    return tag in known and domain_of(known[tag]).has(value)


def is_family(hint: Any) -> bool:
    """Whether a type is a Struct without fields that others are made of: an argument may be any of those."""
    return _is_struct(hint) and not hint.__struct_fields__ and bool(hint.__subclasses__())


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _has_struct(hint: Any) -> bool:
    """Whether a type is a Struct, or one of several, or a list of such."""
    return _is_struct(hint) or any(map(_has_struct, get_args(hint)))


def _holds_mapping(value: Any) -> bool:
    """Whether a value that was checked is a Struct as it travels, or has one."""
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(_holds_mapping, value)))


def _struct(hint: type[Struct]) -> Callable[[Any], bool]:
    """A mapping with the fields of a Struct and its tag, or such a Struct itself."""
    config = hint.__struct_config__
    tag = {} if config.tag is None else {config.tag_field: config.tag}
    checks = {field.name: domain_of(field.type).has for field in msgspec.structs.fields(hint)}

    def check(value: Any) -> bool:
        if isinstance(value, Struct):
            return type(value) is hint and all(each(getattr(value, name)) for name, each in checks.items())
        return (
            isinstance(value, Mapping)
            and value.keys() == {*tag, *checks}
            and all(isinstance(value[name], str) and value[name] == said for name, said in tag.items())
            and all(each(value[name]) for name, each in checks.items())
        )

    return check


def _annotated(hint: Any, limits: Within | Meta) -> Domain:
    if isinstance(limits, Within):
        words = f"an array of finite numbers from {limits.least:g} to {limits.most:g}"
        return Domain(_array(get_args(get_args(hint)[1])[0], limits), words)
    if get_origin(hint) is Sequence:
        item, longest = domain_of(get_args(hint)[0]), limits.max_length or MOST_ITEMS
        return Domain(partial(_is_list, item, limits.min_length or 0, longest), f"at most {longest} of: {item.words}")
    if limits.pattern is not None:
        pattern = re.compile(limits.pattern)
        return Domain(
            lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None,
            f"a text such as {limits.pattern}",
        )
    plain, least, most = _PLAIN[hint], limits.ge, limits.le
    assert least is not None, "numbers have limits at both ends"
    assert most is not None, "numbers have limits at both ends"
    return Domain(
        lambda value: _is_of(plain, hint, value) and bool(least <= value <= most),
        f"a number from {least:g} to {most:g}",
    )


def _is_list(item: Domain, least: int, most: int, value: Any) -> bool:
    return isinstance(value, list | tuple) and least <= len(value) <= most and all(map(item.has, value))


def _is_tuple(parts: Sequence[Domain], value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == len(parts)
        and all(part.has(each) for part, each in zip(parts, value, strict=True))
    )


def _is_plain(hint: Any, value: Any) -> bool:
    if not _is_of(_PLAIN[hint], hint, value):
        return False
    if hint in (str, bytes):
        return len(value) <= LONGEST[hint]
    return hint in (bool, NoneType) or bool(abs(value) <= (LARGEST if hint is float else WHOLE))


def _is_of(kinds: tuple[type, ...], hint: Any, value: Any) -> bool:
    value = value.item() if isinstance(value, np.generic) else value  # as it travels
    plain = isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
    return plain and (not isinstance(value, float) or math.isfinite(value))


def _array(declared: Any, limits: Within) -> Callable[[Any], bool]:
    """Numbers of the same kind in any precision, within limits; bytes must be bytes."""
    number: Any = get_origin(declared) or declared
    kinds = "f" if issubclass(number, np.floating) else "iu"

    def check(value: Any) -> bool:
        if not isinstance(value, np.ndarray) or value.ndim not in limits.dimensions:
            return False
        if value.shape[1:] > (MOST_COLUMNS,) or (limits.size is not None and value.size > limits.size):
            return False
        if number is np.uint8 or kinds == "iu":
            return value.dtype == np.uint8 if number is np.uint8 else value.dtype.kind in kinds
        if value.dtype.kind in kinds and -limits.least == limits.most:
            return are_within(value, limits.most)
        # NaN fails both comparisons; a minimum and a maximum need no memory
        return value.dtype.kind in kinds and bool(
            not value.size or (float(value.min()) >= limits.least and float(value.max()) <= limits.most)
        )

    return check


# The noise of an op, as one of its arguments: an op that gets one is private. Each Struct holds the bound that a row's
# contribution is clipped to, and the noise multiplier: the standard deviation of the noise divided by that bound.


class GramNoise(Struct, frozen=True):
    """The noise of a Gram matrix over a table of ``table_rows`` rows; a row adds at most the number of columns."""

    table_rows: Positive
    multiplier: Multiplier


class SumNoise(Struct, frozen=True):
    """The noise of a gradient: a row adds at most ``clip`` to the sum over a table of ``table_rows`` rows."""

    table_rows: Positive
    clip: Bound
    multiplier: Multiplier


class SampleNoise(Struct, frozen=True):
    """The noise of a gradient over a sample that contains each row with probability ``sampling``."""

    table_rows: Positive
    clip: Bound
    multiplier: Multiplier
    sampling: Sampling


class PredictionNoise(Struct, frozen=True):
    """The noise of predictions: each is clipped to ``bound``; if None, to a bound from the noisy Gram matrix."""

    multiplier: Multiplier
    bound: Bound | None = None
