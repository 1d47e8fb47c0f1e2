"""Columns as they travel: the same values arrive, and what is no such column is refused by whoever reads it."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tablepuppet.errors import PartyError
from tablepuppet.party.sent_column import read_column, sent_column
from tablepuppet.wire.codec import decode, encode

TYPES = {"bool": "BOOLEAN", "string": "VARCHAR", "date32[day]": "DATE"}
COLUMNS = [
    pa.array([1, None, -3], pa.int8()),
    pa.array([2**64 - 1, 0, None], pa.uint64()),
    pa.array([1.5, float("nan"), None]),
    pa.array([1.5, None, -0.0], pa.float32()),
    pa.array([True, False, None]),
    pa.array(["", None, "é\0'"]),
    pa.array([date(2024, 2, 29), None, date(1, 1, 1)]),
    pa.array([datetime(2024, 2, 29, 1, 2, 3, 4), None, datetime(1, 1, 1)], pa.timestamp("us")),
    pa.array([datetime(2024, 2, 29), None, None], pa.timestamp("ns", "UTC")),
    pa.array([Decimal("-0.05"), None, Decimal("123456.78")], pa.decimal128(38, 2)),
    pa.array([], pa.string()),
    pa.array([None, None], pa.int64()),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_the_same_arrives(column: pa.Array) -> None:
    """Through the codec and back, in one chunk or several, sliced or not: the type and every value is the same."""
    for given in (
        pa.chunked_array([column]),
        pa.chunked_array([column, column.slice(1)]),
        pa.chunked_array([column.slice(1)]),
    ):
        reply = decode(encode(sent_column(given, "7")))
        is_time = pa.types.is_timestamp(column.type)
        published = "TIMESTAMP" if is_time else TYPES.get(str(column.type), "DOUBLE")
        found = read_column(reply, len(given), "party 'p'", published, "7")
        assert found.type == given.type
        assert repr(found.to_pylist()) == repr(given.to_pylist())


def test_a_type_that_does_not_travel() -> None:
    """Lists and bytes are refused at the party."""
    with pytest.raises(PartyError, match="cannot be sent"):
        sent_column(pa.chunked_array([[b"x"]]))


TEXT = {"type": "string", "lengths": np.array([1, 2], np.int32), "data": np.frombuffer(b"abc", np.uint8)}
NUMBER = {"type": "int64", "data": np.array([1, 2])}


PUBLISHED = {"time": "TIMESTAMP", "date": "DATE", "stri": "VARCHAR", "deci": "DECIMAL(3,1)"}


@pytest.mark.parametrize(
    "reply",
    [
        {}, {**NUMBER, "data": np.array([1])}, {**NUMBER, "data": np.array([1.0, 2.0])}, {**NUMBER, "data": [1, 2]},
        {**NUMBER, "type": "int32"}, {**NUMBER, "type": "object"}, {**NUMBER, "type": 3},
        {**NUMBER, "data": np.array([[1, 2]])}, {**NUMBER, "valid": np.zeros(2, np.uint8)},
        {**NUMBER, "valid": [255]}, {**TEXT, "lengths": np.array([1, 1], np.int32)},
        {**TEXT, "lengths": np.array([5, -2], np.int32)}, {**TEXT, "lengths": np.array([3], np.int32)},
        {**TEXT, "data": np.frombuffer(b"a\xff\xfe", np.uint8)}, {**TEXT, "type": "decimal128(3, 1)"},
        {**TEXT, "type": "decimal128(99, 1)"}, {**TEXT, "type": "binary"},
        {**TEXT, "lengths": np.array([2**31 - 1, 2**31 - 1], np.int32)}, {**NUMBER, "type": "timestamp[us, tz=\x1b]"},
        {**NUMBER, "type": "timestamp[us, tz=Bogus/Zone]"}, {**NUMBER, "type": "timestamp[s, tz=+99:99]"},
        {**NUMBER, "type": "timestamp[us]", "data": np.array([0, 2**62])},
        {**NUMBER, "type": "timestamp[s]", "data": np.array([-(2**62), 0])},
        {**NUMBER, "type": "date32[day]", "data": np.array([0, 2**31 - 1], np.int32)},
    ],
)  # fmt: skip
def test_what_is_no_column(reply: dict[str, Any]) -> None:
    """A party that answers with other lengths, types or bytes is named; nothing of the answer is quoted."""
    with pytest.raises(PartyError, match="party 'p' answers with something that is no column of 2 values"):
        read_column(reply, 2, "party 'p'", PUBLISHED.get(str(reply.get("type"))[:4], "BIGINT"))


@pytest.mark.parametrize("published", ["DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP", "BLOB", "no type"])
def test_a_column_is_of_the_type_that_is_published(published: str) -> None:
    """Text does not come in the place of numbers or dates."""
    with pytest.raises(PartyError, match="of the type that it publishes"):
        read_column(TEXT, 2, "party 'p'", published)
    assert read_column(TEXT, 2, "party 'p'", "VARCHAR").to_pylist() == ["a", "bc"]
