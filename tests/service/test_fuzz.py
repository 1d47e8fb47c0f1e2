"""The port of a party under fire: whatever comes is answered with an error, and the party goes on.

A real process with a real party file. Requests are valid ones that were damaged: bytes, frames, sizes, and the
arguments of every op.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tablepuppet.learn.party_ops  # noqa: F401 - registers the ops that are fired at
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.request import Request, Step
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan
from tablepuppet.wire.codec import ARRAY, ArrayHeader, Encoded, decode_header, encode
from tablepuppet.wire.flight_server import frames_of
from tablepuppet.wire.flight_transport import FlightTransport
from tablepuppet.wire.protocol import _ERRORS, VERSION, request_message
from tests.service.processes import Services

ROWS = 40
QUICK = settings(
    max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MOST_GROWTH = 512 << 20  # bytes


class Target:
    """A party's process, and a session in which every kind of op has been used."""

    def __init__(self, services: Services):
        self.party = services.parties["store"]
        url, tls = f"grpc+tls://127.0.0.1:{self.party.port}", services.certificates.client("analyst").read()
        self.remote = FlightTransport("store", url, tls, 30.0)
        self.client = flight.FlightClient(
            url, tls_root_certs=tls.authority, cert_chain=tls.certificate, private_key=tls.key
        )
        catalog = Catalog(self.remote.call(Request("describe"))[0]["tables"])
        self.scans = plan(parse("SELECT x, kind, y FROM items", catalog), catalog).scans
        self.sequence, self.session = 0, "fuzz"
        self.remote.call(self.opening(self.session))
        for op, arguments in PREPARED:
            assert self.run(op, arguments)[1] == "ok", op
        self.memory = self.party.memory()

    def opening(self, session: str) -> Request:
        return Request("open", session, {"scans": self.scans, "wire": "float64"}, (Step("keys.blind", "items"),), 0)

    def run(self, op: str, arguments: Any) -> Any:
        self.sequence += 1
        step = Step(op, "items", arguments)
        return self.send(encode(request_message(Request("run", self.session, {}, (step,), self.sequence))))

    def send(self, message: Encoded) -> Any:
        return self.send_frames([frame.to_pybytes() for frame in message.frames()])

    def send_frames(self, frames: list[bytes]) -> Any:
        """What comes back: [version, outcome, words]."""
        options = flight.FlightCallOptions(timeout=30, headers=self.remote._headers)
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(b""), options)
        with writer:
            for frame in frames:
                writer.write_metadata(frame)
            writer.done_writing()
            incoming = frames_of(reader)
            return decode_header(next(incoming).to_pybytes()).fill(incoming)

    def send_header(self, header: bytes) -> Any:
        """The same for a request that is all header."""
        options = flight.FlightCallOptions(timeout=30, headers=self.remote._headers)
        results = self.client.do_action(("", header), options)
        incoming = (result.body for result in results)
        return decode_header(next(incoming)).fill(incoming)

    def check(self, answer: Any) -> None:
        """An answer of the protocol, an error of the tree unless it is one that succeeded, and a party that lives."""
        assert answer[0] == VERSION or "speaks version" in answer[2]
        assert answer[1] == "ok" or answer[1] in _ERRORS
        assert self.party.is_running()
        assert self.party.memory() - self.memory < MOST_GROWTH


NAMES = {"view": "v", "encoding": "e", "model": "m"}
PREPARED: list[tuple[str, dict[str, Any]]] = [
    ("rows.use", {"view": "v", "chosen": None, "counts": np.ones(ROWS, np.uint8)}),
    (
        "encode.build",
        {
            "view": "v", "encoding": "e", "columns": ["x"], "means": np.zeros(1), "scales": np.ones(1),
            "categories": [("kind", "text")], "digests0": np.arange(48, dtype=np.uint8).reshape(3, 16),
        },
    ),
    ("ridge.start", {**NAMES, "joined_rows": ROWS, "spec": Linear(1)}),
    ("ridge.shard", {**NAMES, "joined_rows": ROWS, "spec": Linear(1), "means": np.zeros(4)}),
]  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    rng = np.random.default_rng(0)
    items = pa.table({"x": rng.random(ROWS), "kind": rng.choice(["a", "b", "c"], ROWS), "y": rng.integers(0, 2, ROWS)})
    with Services(tmp_path_factory.mktemp("fuzz"), {"store": {"items": items}}) as services:
        yield Target(services)


VALID = [
    encode(request_message(Request("describe"))),
    encode(request_message(Request("close", "nobody"))),
    encode(request_message(Request("run", "fuzz", {}, (Step("model.predict", "items", NAMES),), 10**6))),
    encode([VERSION, "run", "fuzz", 10**6, {}, [["rows.use", "items", {"counts": np.ones(1 << 15)}]]]),
]


@given(st.data())
@QUICK
def test_damaged_bytes(target: Target, data: st.DataObject) -> None:
    """Flipped, cut, doubled, swapped and inserted bytes and frames get an error or an answer, never silence."""
    frames = [frame.to_pybytes() for frame in data.draw(st.sampled_from(VALID)).frames()]
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(frames) - 1))
        frame, at = frames[number], data.draw(st.integers(0, max(0, len(frames[number]) - 1)))
        match data.draw(st.sampled_from(["flip", "cut", "double", "drop", "insert"])):
            case "flip":
                frames[number] = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
            case "cut":
                frames[number] = frame[:at]
            case "double":
                frames.insert(number, frame)
            case "drop" if len(frames) > 1:
                del frames[number]
            case _:
                frames[number] = frame[:at] + data.draw(st.binary(max_size=9)) + frame[at:]
    # an empty frame ends a stream: what comes behind it may hide the answer from whoever still writes
    target.check(target.send_frames([frame for frame in frames if frame] or [b""]))
    target.check(target.send_header(frames[0]))


def _array(dtype: str, shape: tuple[int, ...], data: bytearray | None = None) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(ArrayHeader(dtype, shape, False, data)))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\x91" * 100_000 + b"\xc0", id="deep lists"),
        pytest.param(
            msgspec.msgpack.encode([VERSION, "run", "s", 1, {}, []])[:-1] + b"\x91" * 400 + b"\xc0", id="deep"
        ),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of four thousand million"),
        pytest.param(b"\xdd\x00\x1f\xff\xff" + b"\x80" * 0x1FFFFF, id="two million empty maps"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="four thousand million bytes"),
        pytest.param(msgspec.msgpack.encode(_array("<f8", (1 << 40, 1 << 40))), id="an array beyond all memory"),
        pytest.param(msgspec.msgpack.encode(_array("<f8", (1 << 63, 0))), id="an array of no bytes"),
        pytest.param(msgspec.msgpack.encode(_array("<f8", (1 << 27,))), id="a large array that does not come"),
        pytest.param(
            msgspec.msgpack.encode(_array("<f8", (1 << 27,), bytearray(b"few"))), id="a large array of few bytes"
        ),
        pytest.param(msgspec.msgpack.encode([_array("<f8", (1 << 20,))] * 10_000), id="many large arrays"),
        pytest.param(msgspec.msgpack.encode([VERSION, "run", "s", 2**64 - 1, {}, []]), id="a huge number"),
    ],
)
def test_claimed_sizes(target: Target, header: bytes) -> None:
    """A header that claims more than comes, or nests without end, is an error and takes no memory."""
    answer = target.send_frames([header])
    assert answer[1] in _ERRORS
    target.check(answer)


WHOLE = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([-1, 0, 1, ROWS, 10**9])
PLAIN = st.none() | st.booleans() | WHOLE | st.floats() | st.sampled_from(["", "v", "e", "m", "x", "kind", "\0"])
NUMBERS = st.sampled_from(["<f8", "<f4", "<i8", "<i4", "<u8", "|u1", "|i1", "|b1"])
SHAPES = st.sampled_from([(), (0,), (1,), (4,), (ROWS,), (ROWS + 1,), (3, 8), (3, 16), (ROWS, 2), (2, 0), (4, 1)])


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of right and wrong kinds, shapes and values."""
    kind, shape = np.dtype(draw(NUMBERS)), draw(SHAPES)
    fill = draw(st.sampled_from([0, 1, -1, ROWS, 2**31, np.nan, np.inf]))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.full(shape, fill).astype(kind)


ANYTHING = PLAIN | arrays() | st.lists(PLAIN | st.tuples(PLAIN, PLAIN), max_size=3) | st.dictionaries(st.text(), PLAIN)
GOOD = {
    "view": "v", "encoding": "e", "model": "m", "columns": ["x"], "column": "kind", "categories": [["kind", "text"]],
    "family": "text", "blinding": "e", "most": 5, "counts": np.ones(ROWS, np.uint8), "chosen": None,
    "ranks": np.arange(3), "means": np.zeros(1), "scales": np.ones(1), "digests": np.zeros((3, 16), np.uint8),
    "joined_rows": ROWS, "outputs": 1, "memory": 3, "steps": 2, "seed": 1, "hidden": [2], "l2": 0.1, "lr": 0.1,
    "momentum": 0.1, "proximal": 0.1, "inner_rho": 0.1, "curvature": 1.0, "rows": np.ones(ROWS), "theta": np.ones(4),
    "mix": np.ones(1), "places": np.arange(3, dtype=np.int32), "next_places": np.arange(3, dtype=np.int32),
    "agreed": np.zeros((4, 1)),
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(REGISTRY))
@given(st.data())
@settings(QUICK, max_examples=8)
def test_wrong_arguments_of_every_op(target: Target, op: str, data: st.DataObject) -> None:
    """Every op, told something else than it takes, answers with an error or a result, and the party goes on."""
    names = list(REGISTRY[op].parameters.hints)
    wrong = data.draw(st.sets(st.sampled_from(names), min_size=1)) if names else set()
    arguments = {name: data.draw(ANYTHING) if name in wrong else GOOD.get(name) for name in names}
    if data.draw(st.integers(0, 9)) == 0:
        arguments[data.draw(st.text(max_size=5))] = 1
    target.check(target.run(op, arguments))


def test_the_party_still_answers(target: Target) -> None:
    """After all that, a session can be opened and used."""
    [opened, _] = target.remote.call(target.opening("good"))
    assert opened["rows"] == {"items": ROWS}
    [sums] = target.remote.call(
        Request("run", "good", {}, (Step("rows.use", "items", PREPARED[0][1]),), 1),
    )
    assert sums == {}
    target.remote.call(Request("close", "good"))
