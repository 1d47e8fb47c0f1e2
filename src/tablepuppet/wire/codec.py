"""Messages as bytes: a msgpack header that names every array, then the arrays' own buffers. No pickle.

An array stands in the header as its type and shape; the buffers follow in the order of the header. Whoever reads a
header knows how many bytes will follow before any memory is taken for them. Small arrays stand in the header whole: a
frame of their own would cost more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import PartyError

ARRAY = 1  # msgpack extension: one array
MOST_SIZE = 1 << 48  # of an array in one direction
TYPES = {name: np.dtype(name) for name in "|b1 |i1 |u1 <i2 <u2 <i4 <u4 <i8 <u8 <f2 <f4 <f8".split()}
CHUNK = 1 << 20  # bytes of arrays in one frame
SMALL = 128 << 10  # bytes of arrays that stand in a header, in all


class ArrayHeader(msgspec.Struct, array_like=True, frozen=True):
    """How an array stands in a header."""

    dtype: str
    shape: tuple[int, ...]
    columns_first: bool  # Fortran order
    data: bytearray | None = None  # of a small array

    @property
    def nbytes(self) -> int:
        """Bytes of its buffer."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize

    def check(self) -> None:
        """PartyError if no array can look like this."""
        plain = self.dtype in TYPES and len(self.shape) <= 4
        if not plain or any(not 0 <= size < MOST_SIZE for size in self.shape):
            raise PartyError("a message names an array of a kind that does not travel")
        if self.data is not None and len(self.data) != self.nbytes:
            raise PartyError("a message holds an array that is not as long as its header says")


_ARRAY_HEADER = msgspec.msgpack.Decoder(ArrayHeader)


@dataclass(frozen=True)
class Encoded:
    """A message as bytes: the header, and the arrays it names."""

    header: bytes
    arrays: list[NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return len(self.header) + sum(array.nbytes for array in self.arrays)

    def frames(self) -> Iterator[pa.Buffer]:
        """The header, then all arrays in pieces."""
        yield pa.py_buffer(self.header)
        for array in self.arrays:
            whole = pa.py_buffer(_flat(array))
            for start in range(0, whole.size, CHUNK):
                yield whole.slice(start, min(CHUNK, whole.size - start))


def _flat(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array as they stand in memory."""
    return array.reshape(-1, order="A" if array.flags.f_contiguous else "C").view(np.uint8)


def encode(message: Any) -> Encoded:
    """A message of plain values, dataclasses and NumPy arrays."""
    arrays: list[NDArray[Any]] = []
    room = SMALL

    def hook(value: Any) -> Any:
        nonlocal room
        if isinstance(value, np.ndarray):
            solid = value if value.flags.c_contiguous or value.flags.f_contiguous else np.ascontiguousarray(value)
            data: Any = None
            if solid.nbytes <= room:
                room -= solid.nbytes
                data = _flat(solid).data
            else:
                arrays.append(solid)
            columns_first = solid.ndim > 1 and not solid.flags.c_contiguous
            header = ArrayHeader(solid.dtype.str, solid.shape, columns_first, data)
            return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(header))
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"a value of type {type(value).__name__} does not travel")

    return Encoded(msgspec.msgpack.encode(message, enc_hook=hook), arrays)


@dataclass
class Incoming:
    """A message whose header has arrived: its arrays are still empty."""

    message: Any
    headers: list[ArrayHeader] = field(default_factory=list)
    arrays: list[NDArray[Any]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of arrays that must follow."""
        return sum(header.nbytes for header in self.headers)

    def fill(self, frames: Iterator[pa.Buffer]) -> Any:
        """The whole message, once its arrays have come; PartyError if more or fewer bytes do."""
        if not self.headers:
            if next(frames, None) is not None:
                raise _too_long()
            return self.message
        found = [np.empty(header.nbytes, np.uint8) for header in self.headers]
        rest = memoryview(b"")
        for target in found:
            at = 0
            while at < len(target):
                if not len(rest):
                    rest = memoryview(next(frames, None) or _cut())
                size = min(len(rest), len(target) - at)
                target[at : at + size] = np.frombuffer(rest[:size], np.uint8)
                at, rest = at + size, rest[size:]
        if len(rest) or next(frames, None) is not None:
            raise _too_long()
        self.arrays += [_shaped(raw, header) for raw, header in zip(found, self.headers, strict=True)]
        return _placed(self.message, self.arrays)


def _too_long() -> PartyError:
    return PartyError("a message is longer than its header says")


def _cut() -> Any:
    raise PartyError("a message is shorter than its header says")


def _shaped(raw: NDArray[np.uint8], header: ArrayHeader) -> NDArray[Any]:
    return raw.view(TYPES[header.dtype]).reshape(header.shape, order="F" if header.columns_first else "C")


@dataclass(frozen=True)
class _Place:
    """Where an array will stand."""

    number: int


def _placed(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, _Place):
        return arrays[value.number]
    if isinstance(value, Mapping):
        return {name: _placed(each, arrays) for name, each in value.items()}
    if isinstance(value, list):
        return [_placed(each, arrays) for each in value]
    return value


def decode_header(header: bytes | pa.Buffer) -> Incoming:
    """What a header says; PartyError if it is none."""
    incoming = Incoming(None)

    def hook(code: int, data: memoryview) -> Any:
        if code != ARRAY:
            raise PartyError("a message holds a value of unknown kind")
        found = _ARRAY_HEADER.decode(data)
        found.check()
        if found.data is not None:
            return _shaped(np.frombuffer(found.data, np.uint8), found)
        incoming.headers.append(found)
        return _Place(len(incoming.headers) - 1)

    try:
        incoming.message = msgspec.msgpack.decode(header, ext_hook=hook)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, TypeError, ValueError) as error:
        raise PartyError(f"a message cannot be read ({type(error).__name__})") from None
    return incoming


def decode(encoded: Encoded) -> Any:
    """What `encode` made bytes of, as it would arrive elsewhere."""
    frames = encoded.frames()
    return decode_header(next(frames)).fill(frames)
