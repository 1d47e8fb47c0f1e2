"""What a federation makes of replies that no party of this version would send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request
from tablepuppet.wire.codec import ARRAY, ArrayHeader, encode
from tablepuppet.wire.flight_engine import RemoteParty
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
        (encode([VERSION + 1, "ok", []]).header, "is it of the same version"),
        (encode([VERSION, "ok", None]).header, "is it of the same version"),
        (encode([VERSION, "ok", [{}]]).header, "is it of the same version"),
        (encode([VERSION, "ok", [{"tables": [1]}]]).header, "is it of the same version"),
        (encode([VERSION, "other", "some words"]).header, "some words"),
    ],
)
def test_a_strange_reply_is_an_error_that_names_the_party(frame: bytes, words: str) -> None:
    """Damaged, absurd or of another version: one clear error, no traceback of a library."""
    with Liar(frame) as server:
        party = RemoteParty("bank", f"grpc://127.0.0.1:{server.port}", None, timeout=0.2)
        with pytest.raises(tp.PartyError, match=words) as caught:
            party.call(Request("describe"))
        assert "bank" in str(caught.value) or words == "some words"
