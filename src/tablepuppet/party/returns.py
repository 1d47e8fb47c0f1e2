"""What an op returns, declared with the op: the kinds of values that a reply may hold. The coordinator trusts no party.

Input: a reply, the step that was asked, and what the coordinator knows of the shard. Output: nothing, or one error that
names the party, the table and the op. A length is a number, the name of an
argument that is this number or is as long, the name of another value of the reply, or one of the words below. No number
is without a bound: where none is declared, it is `LARGEST`, as for arguments. An op with another rule declares another
kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tablepuppet.arrays import are_within
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.party.arguments import LARGEST, LONGEST
from tablepuppet.party.release import Release
from tablepuppet.sql.plan import Scan

ROWS = "rows"  # of the shard in the relation
JOINED = "joined rows"  # that these rows are in
BITS = "bits of rows"  # bytes that hold one bit for each row
WIDTH = "width"  # encoded columns
OUTPUTS = "outputs"  # no length if there is one output
PER_OUTPUT = "one per output"  # or one for all
PARAMETERS = "parameters"  # the shape of a table's parameters
ROWS_ASKED = "rows asked for"  # those at `places` if that is given, else all
ANY = "any"
MOST = 1 << 31  # of any length
LARGEST_SQUARE = 1e250  # a square, or a sum of such
Length = int | str
Bound = float | str  # a number, or one of ROWS and JOINED


class Wrong(Exception):  # noqa: N818 - becomes an error that names the party
    """What is wrong with a value of a reply."""


class NotFinite(Exception):  # noqa: N818 - becomes an error that names the party
    """A value that must be finite is not: data and settings may be the reason, not only the party."""


@dataclass(frozen=True)
class Asked:
    """A step as the coordinator asked it, and what it knows: None where it does not."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    joined: int | None = None
    width: int | None = None
    outputs: int | None = None
    shape_of: Callable[[int], tuple[int, ...] | None] | None = None  # parameters, of a table of some width
    type: str = ""  # of the column that the step names

    def check_shape(self, value: np.ndarray[Any, Any], lengths: Sequence[Length], reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless an array has one of the shapes that these lengths allow; None allows any length."""
        shapes: list[tuple[int | None, ...]] = [()]
        for length in lengths:
            ends = self._known.get(length) or self._given(length, reply)
            if len(ends) == 1 and len(shapes) == 1:
                shapes = [shapes[0] + ends[0]]
            else:
                shapes = [shape + end for shape in shapes for end in ends]
        if value.shape in shapes:
            return
        for shape in shapes:
            if len(shape) == value.ndim and all(
                found <= MOST if length is None else found == length
                for found, length in zip(value.shape, shape, strict=True)
            ):
                return
        wanted = " or ".join(str(tuple(ANY if length is None else length for length in shape)) for shape in shapes)
        raise Wrong(f"has shape {value.shape}, not {wanted}")

    def bound(self, bound: Bound | None) -> float | None:
        """A bound as a number; None if there is none."""
        if isinstance(bound, str):
            return {ROWS: self.rows, JOINED: self.joined}[bound]
        return bound

    def _given(self, length: Length, reply: Mapping[str, Any]) -> list[tuple[int | None, ...]]:
        """What a number, or the name of an argument or of a value of the reply, adds to a shape."""
        if isinstance(length, int):
            return [(length,)]
        if length == PARAMETERS:
            shape = None if self.shape_of is None or self.width is None else self.shape_of(self.width)
            return [(None,), (None, None)] if shape is None else [shape]
        given = self.arguments.get(length, reply.get(length))
        if isinstance(given, np.ndarray) and length in self.arguments and length not in LISTS:
            return [given.shape]  # the same shape as an argument
        if isinstance(given, int) and not isinstance(given, bool) and length in self.arguments:
            return [(given,)]
        sized = isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim)
        return [(len(given) if sized else None,)]

    @cached_property
    def _known(self) -> dict[Length, list[tuple[int | None, ...]]]:
        """What each word for a length may add to a shape."""
        places = self.arguments.get("places")
        return {
            ROWS: [(self.rows,)],
            ROWS_ASKED: [(self.rows if places is None else len(places),)],
            BITS: [(None if self.rows is None else -(-self.rows // 8),)],
            WIDTH: [(self.width,)],
            OUTPUTS: [(), (None,)] if self.outputs is None else [() if self.outputs == 1 else (self.outputs,)],
            PER_OUTPUT: [(1,), (self.outputs,)],
            ANY: [(None,)],
        }


LISTS = ("places", "next_places", "ranks")  # arguments that are lists of rows: their length counts


class Returned(Protocol):
    """One value of a reply."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` or `NotFinite` unless the value is one that was asked for."""
        ...


@dataclass(frozen=True)
class Numbers:
    """An array of numbers from ``least`` to ``most``; unless they are ``finite``, NaN and infinity are allowed."""

    lengths: tuple[Length, ...]
    kinds: str = "f"
    finite: bool = True
    least: float | None = None
    most: Bound | None = None
    size: float = LARGEST  # no number that is finite is larger
    or_none: bool = False  # or an array of no numbers
    places_in: str = ""  # an argument: the numbers are places in it

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` or `NotFinite` unless it is such an array."""
        if not isinstance(value, np.ndarray) or value.dtype.kind not in self.kinds:
            raise Wrong("is no array of the kind of numbers that was asked for")
        if self.or_none and value.shape == (0,):
            return
        asked.check_shape(value, self.lengths, reply)
        if self.finite and value.dtype.kind == "f" and not are_within(value, self.size):
            raise NotFinite
        most = asked.bound(self.most) if isinstance(self.most, str) else self.most
        if self.places_in:
            most = len(asked.arguments[self.places_in]) - 1
        if self.least is not None and (value < self.least).any():
            raise Wrong(f"has numbers below {self.least:g}")
        if most is not None and (value > most).any():
            raise Wrong(f"has numbers above {most:g}")


@dataclass(frozen=True)
class Words:
    """An array of words of 64 bits, masked."""

    lengths: tuple[Length, ...]

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        if not isinstance(value, np.ndarray) or value.dtype != np.uint64:
            raise Wrong("is no array of masked words")
        asked.check_shape(value, self.lengths, reply)


@dataclass(frozen=True)
class Products:
    """Inner products of some vectors, two or more, with each other: none is larger than lengths allow.

    Before the last of them may be others, at most as many as the argument ``known`` says: columns, but not rows.
    """

    known: str = ""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` or `NotFinite` unless it is such an array."""
        Numbers((ANY, ANY), size=LARGEST_SQUARE).check(value, asked, reply)
        most = int(asked.arguments.get(self.known, 0)) if self.known else 0
        if len(value) < 2 or not 0 <= value.shape[1] - len(value) <= most:
            raise Wrong(f"has shape {value.shape}, which inner products have not")
        own = np.delete(value, np.s_[len(value) - 1 : -1], axis=1).astype(np.float64)
        squares = np.diag(own)
        if (squares < 0).any():
            raise Wrong("has squares below 0")
        lengths = np.sqrt(squares)
        if (np.abs(own) > np.outer(lengths, lengths) * (1 + 1e-6) + 1e-300).any():
            raise Wrong("has inner products that no vectors have")


@dataclass(frozen=True)
class Bytes:
    """An array of bytes, such as bits of rows; with ``ones`` as many bits are set as that argument is long."""

    lengths: tuple[Length, ...]
    ones: str = ""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
            raise Wrong("is no array of bytes")
        asked.check_shape(value, self.lengths, reply)
        if self.ones and np.count_nonzero(np.unpackbits(value, count=asked.rows)) != len(asked.arguments[self.ones]):
            raise Wrong("does not choose as many rows as were asked for")


@dataclass(frozen=True)
class Digests:
    """Digests of 16 bytes, strictly increasing, so without duplicates."""

    most: Bound = MOST

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        Bytes((ANY, 16)).check(value, asked, reply)
        most = asked.bound(self.most)
        if most is not None and len(value) > most:
            raise Wrong(f"has more than {most:,} digests")
        halves = np.ascontiguousarray(value).view(">u8")
        high, low = halves[:, 0], halves[:, 1]
        if not ((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))).all():
            raise Wrong("has digests twice, or not in their order")


@dataclass(frozen=True)
class Codes:
    """A whole number per row, below the length of another value plus ``more``; ``or_none``: none if that is empty."""

    of: str
    more: int = 0
    or_none: bool = False

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is such an array."""
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise Wrong("is no array of whole numbers")
        if self.or_none and not len(reply[self.of]):
            asked.check_shape(value, (0,), reply)
            return
        asked.check_shape(value, (ROWS,), reply)
        if len(value) and (value.min() < 0 or value.max() >= len(reply[self.of]) + self.more):
            raise Wrong(f"has numbers that {self.of} has no place for")


@dataclass(frozen=True)
class Plain:
    """A number from ``least`` to ``most``, true or false, or bytes."""

    kind: type
    least: float | None = None
    most: Bound | None = None
    size: float = LARGEST

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` or `NotFinite` unless it is one."""
        kinds: Any = (int, float, np.integer, np.floating) if self.kind is float else self.kind
        if not isinstance(value, kinds) or (self.kind is not bool and isinstance(value, bool)):
            raise Wrong("is not of the kind that was asked for")
        if self.kind is bytes and len(value) > LONGEST[bytes]:
            raise Wrong(f"is longer than {LONGEST[bytes]:,} bytes")
        if self.kind not in (int, float):
            return
        most = asked.bound(self.most) if isinstance(self.most, str) else self.most
        if self.least is not None and value < self.least:
            raise Wrong(f"is below {self.least:g}")
        if most is not None and value > most:
            raise Wrong(f"is above {most:,}")
        if not abs(value) <= self.size:  # nor is it NaN
            raise NotFinite


@dataclass(frozen=True)
class Word:
    """A text of letters, digits and the like: a name or a fingerprint."""

    pattern: str = r"[\w.-]{1,200}"

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is one."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise Wrong("is no such name")


@dataclass(frozen=True)
class ByName:
    """A mapping of names to values of one kind."""

    each: Returned

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is one."""
        if not isinstance(value, Mapping):
            raise Wrong("is no mapping of names to values")
        for name, each in value.items():
            Texts(LONGEST[str]).check([name], asked, reply)
            self.each.check(each, asked, reply)


@dataclass(frozen=True)
class Texts:
    """A list of texts, each with at most this number of letters."""

    letters: int

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it is one."""
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Wrong("is no list of texts")
        if any(len(each) > self.letters or not is_unicode(each) for each in value):
            raise Wrong(f"has texts of more than {self.letters:,} letters, or half a letter")


def is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, and so can be written as UTF-8."""
    return text.isprintable() or not any("\ud800" <= letter <= "\udfff" for letter in text)


@dataclass(frozen=True)
class Exactly:
    """A value that the coordinator sent, which must come back unchanged."""

    value: Any

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """Raise `Wrong` unless it comes back as it was."""
        if not _is_same(value, self.value):
            raise Wrong("is not what was asked for")


@dataclass(frozen=True)
class ColumnPart:
    """A part of a column of values, which `sent_column.py` holds against the rows when it is read."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """It is checked with the other parts."""


@dataclass(frozen=True)
class Resting:
    """A value that says what it rests on; tables with a ``min_group`` release no statistic that does not."""

    value: Returned

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        """As the value itself."""
        self.value.check(value, asked, reply)


@dataclass(frozen=True)
class OfGroups(Resting):
    """It rests on groups of rows: the op returns it as `Grouped` (groups.py), and none of these may be small."""


@dataclass(frozen=True)
class OfNoCell(Resting):
    """It follows from arguments, sizes and settings alone."""


@dataclass(frozen=True)
class OfRows(Resting):
    """It follows from numbers of single rows, which the policy must allow to leave as this release."""

    release: Release


Returns = Mapping[str, Returned]
"""The values of a reply by name; `EACH` stands for names that are not known before."""
EACH = "*"

# What several ops return.
ROW_OUTPUTS = Numbers((ROWS, OUTPUTS))
ASKED_OUTPUTS = Numbers((ROWS_ASKED, OUTPUTS))
NEXT_OUTPUTS = Numbers(("next_places", OUTPUTS))
THETA = Numbers((PARAMETERS,))
PRODUCTS = Products()
SQUARE = Plain(float, 0.0, size=LARGEST_SQUARE)


def _is_same(value: Any, known: Any) -> bool:
    """Whether a plain value equals another; an array equals none."""
    if isinstance(known, Mapping):
        same = isinstance(value, Mapping) and value.keys() == known.keys()
        return same and all(_is_same(value[name], each) for name, each in known.items())
    return type(value) is type(known) and bool(value == known)


# A whole reply.


def check_reply(party: str, where: str, op: str, returns: Returns | None, reply: Any, asked: Asked) -> None:
    """Raise PartyError, or LearnError where only numbers are not finite, unless a reply is one that was asked for.

    It must have exactly the names of ``returns``, and each value must be what is declared there.
    """
    name = ""
    try:
        if not isinstance(reply, Mapping):
            raise Wrong("is no mapping of names to values")
        if returns is None:
            return
        if EACH in returns:
            returns = dict.fromkeys(reply, returns[EACH])
        elif reply.keys() != returns.keys():
            raise Wrong(f"does not hold {', '.join(sorted(returns)) or 'nothing'}")
        for name, returned in returns.items():
            try:
                returned.check(reply[name], asked, reply)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # it cannot even be compared
                raise Wrong("does not fit the rest of it") from None
    except Wrong as wrong:
        what = f"{name!r} of its reply" if name else "its reply"
        raise PartyError(
            f"party {party!r}, {where}: op {op!r}: {what} {wrong}; the reply is not used: ask the party's "
            "operator, and whether it runs the same version of tablepuppet"
        ) from None
    except NotFinite:
        raise LearnError(
            f"party {party!r}, {where}: op {op!r}: {name!r} of its reply has numbers that are not finite, or that are "
            "huge; if features are NaN or infinite, filter them in WHERE; if learning diverges, take smaller steps; "
            "else ask its operator"
        ) from None


def masked(returns: Returns, bits: Any) -> Returns:
    """What an op returns where shards mask its sums; ``bits`` are the scales that were sent to them."""
    plain = {name: each.value if isinstance(each, Resting) else each for name, each in returns.items()}
    lengths = {name: each.lengths if isinstance(each, Numbers) else () for name, each in plain.items()}
    return {"bits": Exactly(bits), **{name: Words(length) for name, length in lengths.items()}}


def keys_returned(scan: Scan, reply: Any) -> Returns:
    """What ``keys.blind`` returns of a scan; for filters that every row passes it returns nothing."""
    found: dict[str, Returned] = {}
    for number in range(len(scan.keys)):
        found |= {f"digests{number}": Digests(ROWS), f"codes{number}": Codes(f"digests{number}", more=1)}
    found |= {f"holds{number}": Bytes((BITS,)) for number in range(len(scan.conditions))}
    names = [f"passes{number}" for number in range(len(scan.filters))]
    return found | {name: Bytes((BITS,)) for name in names if isinstance(reply, Mapping) and name in reply}
