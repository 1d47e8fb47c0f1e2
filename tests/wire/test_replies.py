"""What a federation makes of replies that no party of this version would send."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request, Step
from tablepuppet.wire.codec import ARRAY, SMALL, ArrayHeader, encode
from tablepuppet.wire.flight_server import frames_of
from tablepuppet.wire.flight_transport import MOST_FRAME, FlightTransport
from tablepuppet.wire.protocol import VERSION


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """A party that answers every request with the same frame."""

    def __init__(self, frame: bytes):
        super().__init__("grpc://127.0.0.1:0")
        self.frame = frame

    def do_action(self, context: Any, action: flight.Action) -> Iterator[pa.Buffer]:
        return iter((pa.py_buffer(self.frame),))


def holding(*shape: int) -> bytes:
    """A reply with an array of which nothing comes."""
    header = msgspec.msgpack.encode(ArrayHeader("<f8", shape, False))
    return msgspec.msgpack.encode([VERSION, "ok", [msgspec.msgpack.Ext(ARRAY, header)]])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\xc1", "a reply cannot be read"),
        (holding(10), "a message is shorter than its header says"),
        (holding(2**40 - 1, 2**40 - 1), "a reply cannot be read"),  # no memory has room for it
        (encode([VERSION + 1, "ok", []]).header, "its caller version .*: the caller is too old"),
        (encode([VERSION, "ok", None]).header, "is it of the same version"),
        (encode([VERSION, "ok", [{}]]).header, "is it of the same version"),
        (encode([VERSION, "ok", [{"tables": [1]}]]).header, "is it of the same version"),
        (encode([VERSION, "other", "some words"]).header, "some words"),
    ],
)
def test_a_strange_reply_is_an_error_that_names_the_party(frame: bytes, words: str) -> None:
    """Damaged, absurd or of another version: one clear error, no traceback of a library."""
    with Liar(frame) as server:
        party = FlightTransport("bank", f"grpc://127.0.0.1:{server.port}", None, timeout=0.2)
        with pytest.raises(tp.PartyError, match=words) as caught:
            party.call(Request("describe"))
        assert "bank" in str(caught.value) or words == "some words"


def deep(levels: int) -> bytes:
    """A reply of lists within lists, with an array at the bottom."""
    array = msgspec.msgpack.encode(msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(ArrayHeader("<f8", (1,), False))))
    return b"\x93" + bytes([VERSION]) + b"\xa2ok" + b"\x91" * levels + array


class Endless(flight.FlightServerBase):  # type: ignore[misc]
    """A party that answers with whatever frames it likes, or with data of Flight's own."""

    def __init__(self, frames: Any):
        super().__init__("grpc://127.0.0.1:0")
        self.frames = frames

    def do_action(self, context: Any, action: flight.Action) -> Iterator[pa.Buffer]:
        return map(pa.py_buffer, self.frames())

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(pa.schema([("x", pa.int64())]))
        while True:
            writer.write_batch(pa.record_batch({"x": [1]}))


LIST = b"\x93" + bytes([VERSION]) + b"\xa2ok\xdd"
ONE = np.zeros(1).tobytes()
STREAMS: dict[str, Any] = {
    "one huge frame": lambda: [bytes(3 * MOST_FRAME)],
    "millions of lists": lambda: [LIST + (2 * MOST_FRAME).to_bytes(4, "big") + b"\x90" * (2 * MOST_FRAME)],
    "no end": lambda: chain([encode([VERSION, "ok", [{"tables": [], "key": "k"}]]).header], repeat(bytes(1000))),
    "empty frames": lambda: repeat(b""),
    "an array and no end": lambda: chain([deep(2)], repeat(b"\0")),
    **{f"{levels} levels": lambda levels=levels: [deep(levels), ONE] for levels in (300, 500, 900, 5000)},
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_without_measure_is_an_error_that_names_the_party(stream: str) -> None:
    """Endless, huge or deep: what is read is bounded, and the error is one of ours."""
    with Endless(STREAMS[stream]) as server:
        party = FlightTransport("bank", f"grpc://127.0.0.1:{server.port}", None, timeout=2.0)
        with pytest.raises(tp.PartyError, match="'bank'"):
            party.call(Request("describe"))


def test_frames_of_another_kind_are_no_message() -> None:
    """Data that is no frame of ours ends a call: there might be no end to it."""
    reader = SimpleNamespace(read_chunk=lambda: SimpleNamespace(app_metadata=None, data=None))
    with pytest.raises(tp.PartyError, match="holds something else"):
        next(frames_of(reader))
    step = Step("model.predict", "t", {"rows": np.zeros(SMALL)})
    with Endless(None) as server:
        party = FlightTransport("bank", f"grpc://127.0.0.1:{server.port}", None, timeout=1.0)
        with pytest.raises(tp.PartyError, match="'bank'"):
            party.call(Request("run", "s", {}, (step,), 1))
