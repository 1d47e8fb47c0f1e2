"""A column of values in the form in which it is sent: a type, an array, and for text the length of each value.

Input: an Arrow column of numbers, texts, dates, timestamps, decimals or booleans, with NULLs. Output: plain values and
NumPy arrays; the receiver checks them against the rows it asked for before it builds a column. UUIDs and decimals are
sent as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.sql.types import Family, family

_NUMBERS: Mapping[str, tuple[Any, str]] = {
    **{str(kind): (kind, str(np.dtype(kind.to_pandas_dtype()))) for kind in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float32(), pa.float64(),
    )},
    str(pa.bool_()): (pa.bool_(), "uint8"),
    str(pa.date32()): (pa.date32(), "int32"),
}  # fmt: skip
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(UTC))?\]")  # instants are read in UTC
DAYS = (str(pa.date32()),)
TIMES = tuple(str(pa.timestamp(unit, zone)) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC"))
_SECONDS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
_FIRST, _LAST = (datetime.fromisoformat(day).toordinal() - 719163 for day in ("0001-01-01", "9999-12-31"))
_DECIMAL = re.compile(r"decimal128\((\d{1,2}), (\d{1,2})\)")


def sent_column(column: pa.ChunkedArray, suffix: str = "") -> dict[str, Any]:
    """The column as values of a reply, whose names end in ``suffix``.

    >>> sent_column(pa.chunked_array([["a", None, "bc"]]))["lengths"].tolist()
    [1, 0, 2]
    """
    kind = column.type
    reply: dict[str, Any] = {f"type{suffix}": str(kind)}
    if column.null_count:
        reply[f"valid{suffix}"] = np.packbits(column.is_valid().to_numpy())
    if pa.types.is_decimal128(kind) or pa.types.is_string(kind):
        lengths, data = _text(column)
        return reply | {f"lengths{suffix}": lengths, f"data{suffix}": data}
    whole = {"bool": pa.uint8(), "date32[day]": pa.int32()}.get(str(kind))
    if pa.types.is_timestamp(kind):
        whole = pa.int64()
    elif str(kind) not in _NUMBERS:
        raise PartyError(f"a column of {kind} cannot be sent")
    plain = column if whole is None else column.cast(whole)
    filled = plain.fill_null(0) if plain.null_count else plain
    return reply | {f"data{suffix}": np.ascontiguousarray(filled.to_numpy())}


def _text(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Lengths in bytes, and all texts in UTF-8 one after the other."""
    texts = column.cast(pa.large_string()).fill_null("").combine_chunks()
    texts = texts if isinstance(texts, pa.Array) else pa.concat_arrays(texts.chunks)
    if not len(texts):
        return np.zeros(0, np.int32), np.zeros(0, np.uint8)
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    held = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return np.diff(ends).astype(np.int32), held[ends[0] : ends[-1]]


def in_calendar(values: NDArray[np.integer], kind: str) -> bool:
    """Whether all values of a date's or timestamp's type are of the years 1 to 9999, which Python knows.

    >>> in_calendar(np.array([0, 2932896]), "date32[day]"), in_calendar(np.array([2**62]), "timestamp[us]")
    (True, False)
    """
    match = _TIMESTAMP.fullmatch(kind)
    a_day = _SECONDS[match[1]] * 86400 if match else 1
    return not len(values) or bool(_FIRST * a_day <= int(values.min()) and int(values.max()) < (_LAST + 1) * a_day)


_PUBLISHED = {
    Family.TEXT: (pa.types.is_string,), Family.UUID: (pa.types.is_string,), Family.BOOLEAN: (pa.types.is_boolean,),
    Family.DATE: (pa.types.is_date,), Family.TIMESTAMP: (pa.types.is_timestamp,),
    **dict.fromkeys(
        (Family.INTEGER, Family.DECIMAL, Family.FLOAT), (pa.types.is_integer, pa.types.is_decimal, pa.types.is_floating)
    ),
}  # fmt: skip
"""The types in which values of a family travel."""


def read_column(reply: Mapping[str, Any], rows: int, where: str, type_name: str, suffix: str = "") -> pa.Array:
    """The column in a reply; PartyError, beginning with ``where``, unless it has this number of rows, and is of the
    type that its table publishes.
    """
    kind, data, lengths, valid = (reply.get(f"{name}{suffix}") for name in ("type", "data", "lengths", "valid"))
    missing = _missing(valid, rows)
    if isinstance(kind, str) and isinstance(data, np.ndarray) and data.ndim == 1 and missing is not False:
        found = _numbers(kind, data, rows, missing) if lengths is None else _texts(kind, data, lengths, rows, missing)
        if found is not None and any(is_kind(found.type) for is_kind in _PUBLISHED.get(family(type_name), ())):
            return found
    raise PartyError(
        f"{where} answers with something that is no column of {rows:,} values of the type that it publishes, or with "
        "dates that are not of the years 1 to 9999: cast those to text in a view"
    )


def _missing(valid: Any, rows: int) -> NDArray[np.bool_] | bool | None:
    """Which values are NULL; None: none is, False: that cannot be read."""
    if valid is None:
        return None
    if not isinstance(valid, np.ndarray) or valid.dtype != np.uint8 or valid.shape != (-(-rows // 8),):
        return False
    return ~np.unpackbits(valid, count=rows).astype(bool)


def _numbers(kind: str, data: NDArray[Any], rows: int, missing: Any) -> pa.Array | None:
    type_, dtype = _NUMBERS.get(kind, (None, ""))
    if match := _TIMESTAMP.fullmatch(kind):
        type_, dtype = pa.timestamp(match[1], match[2]), "int64"
    if type_ is None or str(data.dtype) != dtype or len(data) != rows:
        return None
    if pa.types.is_temporal(type_) and not in_calendar(data, kind):
        return None
    if pa.types.is_boolean(type_):
        return pa.array(data.astype(bool), mask=missing)
    return pa.array(data, mask=missing).view(type_) if pa.types.is_temporal(type_) else pa.array(data, mask=missing)


def _texts(kind: str, data: NDArray[Any], lengths: Any, rows: int, missing: Any) -> pa.Array | None:
    whole = isinstance(lengths, np.ndarray) and lengths.dtype == np.int32 and lengths.shape == (rows,)
    if not whole or data.dtype != np.uint8 or (rows and lengths.min() < 0):
        return None
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if ends[-1] != len(data):
        return None
    bits = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    texts = pa.Array.from_buffers(
        pa.large_string(), rows, [bits, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    )
    match = _DECIMAL.fullmatch(kind)
    try:
        texts.validate(full=True)  # that it is UTF-8
        if match:
            return texts.cast(pa.decimal128(int(match[1]), int(match[2])))
        return texts.cast(pa.string()) if kind == "string" else None
    except (pa.ArrowInvalid, ValueError):
        return None
