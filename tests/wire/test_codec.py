"""Messages as bytes: what goes in comes out, and nothing but a message is read."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tablepuppet as tp
from tablepuppet.party.request import Request, Step
from tablepuppet.wire.codec import ARRAY, CHUNK, SMALL, ArrayHeader, decode, decode_header, encode
from tablepuppet.wire.protocol import VERSION, read_reply, read_request, reply_message, request_message

KINDS = st.sampled_from([np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.float32, np.float64])


@given(arrays.arrays(KINDS, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)), st.booleans())
@settings(deadline=None)
def test_arrays_come_back(array: np.ndarray[Any, Any], columns_first: bool) -> None:
    """An array arrives with its values, type, shape and order."""
    sent = np.asfortranarray(array) if columns_first else array
    [arrived, number] = decode(encode([sent, 7]))
    assert arrived.dtype == sent.dtype
    assert arrived.shape == sent.shape
    assert np.array_equal(arrived, sent, equal_nan=sent.dtype.kind == "f")
    assert arrived.flags.f_contiguous == sent.flags.f_contiguous
    assert number == 7


def test_slices_and_large_arrays_come_back() -> None:
    """An array that is not solid in memory, and one longer than a frame, arrive whole, beside others."""
    long = np.arange(CHUNK // 4, dtype=np.float64)
    sent = {"every second": long[::2], "long": long, "nested": [{"deep": long[:3]}], "none": None, "text": "é"}
    arrived = decode(encode(sent))
    assert np.array_equal(arrived["every second"], long[::2])
    assert np.array_equal(arrived["long"], long)
    assert arrived["nested"][0]["deep"].tolist() == [0.0, 1.0, 2.0]
    assert (arrived["none"], arrived["text"]) == (None, "é")


def test_requests_and_replies_come_back() -> None:
    """A request and its reply survive the way."""
    request = Request("run", "s", {}, (Step("rows.use", "t", {"view": "v", "counts": np.arange(3)}),), 5)
    arrived = read_request(decode(encode(request_message(request))), "bank")
    assert (arrived.verb, arrived.session, arrived.sequence) == ("run", "s", 5)
    assert arrived.steps[0].op == "rows.use"
    assert arrived.steps[0].arguments["counts"].tolist() == [0, 1, 2]
    reply = read_reply(decode(encode(reply_message([{"x": np.ones(2)}]))), request, "p")
    assert reply[0]["x"].tolist() == [1.0, 1.0]


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    """Random bytes are an error that says so, never something else."""
    with contextlib.suppress(tp.PartyError):
        read_request(decode_header(noise).fill(iter(())), "bank")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    )
)
@settings(max_examples=100, deadline=None)
def test_other_messages_are_refused(message: Any) -> None:
    """Well-formed values that are no request are refused; one of another version is told so."""
    with pytest.raises(tp.PartyError):
        read_request(message, "bank")
    with pytest.raises(tp.PartyError):
        read_request([VERSION, message], "bank")
    with pytest.raises(tp.PartyError, match="version 99"):
        read_request([99, message], "bank")


@pytest.mark.parametrize(
    "header",
    [
        ArrayHeader("|O", (1,), False),
        ArrayHeader("<U4", (1,), False),
        ArrayHeader("<f8", (-1,), False),
        ArrayHeader("<f8", (1,) * 9, False),
        ArrayHeader(">f8", (1,), False),
    ],
)
def test_strange_arrays_are_refused(header: ArrayHeader) -> None:
    """Objects, texts, negative sizes and foreign byte orders are no arrays that travel."""
    with pytest.raises(tp.PartyError, match="kind that does not travel"):
        decode_header(msgspec.msgpack.encode(msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(header))))


def test_sizes_are_known_before_memory_is_taken() -> None:
    """A header tells how many bytes follow, however many it claims; too few or too many are refused."""
    huge = msgspec.msgpack.encode(ArrayHeader("<f8", (1 << 40, 1 << 20), False))
    assert decode_header(msgspec.msgpack.encode(msgspec.msgpack.Ext(ARRAY, huge))).nbytes == 1 << 63
    encoded = encode(np.ones(SMALL))
    for frames in ([b"12345678"], [b"1" * (8 * SMALL + 1)], []):
        with pytest.raises(tp.PartyError, match=r"(shorter|longer) than its header"):
            decode_header(encoded.header).fill(pa.py_buffer(frame) for frame in frames)


def test_small_arrays_travel_in_the_header() -> None:
    """Small arrays need no frame of their own, a larger one does; one that is not as long as it says is refused."""
    small, large = np.ones(4), np.ones(SMALL)
    assert len(list(encode([small, small]).frames())) == 1
    encoded = encode([small, large, small])
    assert [array.shape for array in encoded.arrays] == [large.shape]
    assert [array.shape for array in decode(encoded)] == [small.shape, large.shape, small.shape]
    lying = msgspec.msgpack.encode(ArrayHeader("<f8", (1 << 30,), False, bytearray(8)))
    with pytest.raises(tp.PartyError, match="not as long as its header says"):
        decode_header(msgspec.msgpack.encode(msgspec.msgpack.Ext(ARRAY, lying)))


def test_arrays_of_another_byte_order_do_not_arrive() -> None:
    """An array that is not in the order of the wire is refused, never read as other numbers."""
    with pytest.raises(tp.PartyError, match="kind that does not travel"):
        decode(encode(np.ones(3).astype(">f8")))


def test_arrays_that_came_can_be_written_to() -> None:
    """A small array and a large one are the reader's own."""
    for array in decode(encode([np.ones(4), np.ones(SMALL)])):
        array += 1.0
        assert array[0] == 2.0


def test_other_values_do_not_travel() -> None:
    """What is neither plain nor an array cannot be sent by accident."""
    with pytest.raises(TypeError, match="does not travel"):
        encode({"f": object()})
