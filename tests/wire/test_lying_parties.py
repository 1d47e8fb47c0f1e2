"""A party that answers with something else than what was asked is refused by one error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.request import Reply, Request
from tablepuppet.wire.codec import encode
from tablepuppet.wire.engine import Transport
from tablepuppet.wire.flight_transport import FlightTransport
from tablepuppet.wire.protocol import VERSION, read_reply
from tests.relations import write_party
from tests.wire.test_replies import Liar

Lie = Callable[[dict[str, Any]], Mapping[str, Any]]
ROWS = 1000
TABLES = {
    "store": {
        "orders": pa.table({"item": np.arange(ROWS) % 50, "price": np.arange(ROWS) % 7.0, "y": np.arange(ROWS) % 2})
    },
    "shop": {"items": pa.table({"item": np.arange(50), "size": np.arange(50) % 5.0, "kind": ["a", "b"] * 25})},
}  # fmt: skip
SQL = "SELECT o.price, i.size, i.kind, o.y FROM orders o JOIN items i USING (item)"


class LyingTransport(Transport):
    """The party at the end of a transport changes its reply to one op, or to ``open``."""

    def __init__(self, honest: Transport, lies: dict[str, Lie]):
        self._honest, self.lies, self.capabilities = honest, lies, honest.capabilities

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The reply, with a lie in it."""
        reply = self._honest.call(request, patience)
        names = [step.op for step in request.steps]
        names = names if request.verb == "run" else [request.verb, *names]
        return [self.lies[n](dict(part)) if n in self.lies else part for n, part in zip(names, reply, strict=True)]


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Callable[..., tp.Federation]]:
    def lying(**lies: Lie) -> tp.Federation:
        fed = tp.Federation({name: write_party(tmp_path, name, tables) for name, tables in TABLES.items()})
        told = {name.replace("_", ".", 1): lie for name, lie in lies.items()}
        fed.engine.transports["store"] = LyingTransport(fed.engine.transports["store"], told)
        return fed

    return lying  # type: ignore[return-value]


def changed(name: str, change: Callable[[Any], Any]) -> Lie:
    return lambda reply: {**reply, name: change(reply[name])}


def learned(fed: tp.Federation) -> None:
    relation = fed.sql(SQL, label="y")
    len(relation)
    tp.LogisticRegression(rounds=3).fit(relation)


@pytest.mark.parametrize("rows", [10**7, 2**40, -1, 1.5, True, None])
def test_rows_that_cannot_be(fed: Callable[..., tp.Federation], rows: Any) -> None:
    """A party that claims more rows than the catalog said, or no number of rows, is refused before room is made."""
    with pytest.raises(tp.PartyError, match=r"'store'.*'orders'"):
        learned(fed(open=changed("rows", lambda told: dict.fromkeys(told, rows))))


@pytest.mark.parametrize(
    "lie",
    [
        lambda reply: {},
        lambda reply: {**reply, "more": 1},
        changed("codes0", lambda codes: codes[:-1]),
        changed("codes0", lambda codes: codes.astype(np.int64) - 1),
        changed("codes0", lambda codes: codes.astype(np.int64) + 2),
        changed("codes0", lambda codes: codes.astype(np.float64)),
        changed("codes0", lambda codes: codes.tolist()),
        changed("digests0", lambda digests: digests[:, :8]),
        changed("digests0", lambda digests: digests.ravel()),
        changed("digests0", lambda digests: digests[:3]),
    ],
)
def test_keys_that_do_not_fit(fed: Callable[..., tp.Federation], lie: Lie) -> None:
    """Short, negative and too large codes, and digests of another size, do not reach the join."""
    with pytest.raises(tp.PartyError, match=r"party 'store', table 'orders': op 'keys\.blind'"):
        learned(fed(keys_blind=lie))


NOT_FINITE = tp.LearnError
LIES: list[tuple[str, Lie, type[tp.TablePuppetError]]] = [
    ("label_classes", changed("codes", lambda codes: codes[:-1]), tp.PartyError),
    ("label_classes", changed("codes", lambda codes: codes + 5), tp.PartyError),
    ("label_classes", changed("missing", lambda _: -1), tp.PartyError),
    ("label_classes", changed("classes", lambda _: "ab"), tp.PartyError),
    ("statistics_numbers", changed("sums", lambda sums: sums[:, :4]), tp.PartyError),
    ("statistics_numbers", changed("sums", lambda sums: -sums), tp.PartyError),
    ("ridge_direction", changed("outputs", lambda image: image[:-1]), tp.PartyError),
    ("ridge_direction", changed("outputs", lambda image: np.append(image, image)), tp.PartyError),
    ("ridge_direction", changed("outputs", lambda image: np.stack([image, image], axis=1)), tp.PartyError),
    ("ridge_direction", changed("outputs", lambda image: image.astype(np.int64)), tp.PartyError),
    ("ridge_direction", changed("outputs", lambda image: image * np.inf), NOT_FINITE),
    ("ridge_direction", lambda reply: {"outputs": reply["outputs"]}, tp.PartyError),
]


@pytest.mark.parametrize(("op", "lie", "kind"), LIES)
def test_replies_that_do_not_fit(
    fed: Callable[..., tp.Federation], op: str, lie: Lie, kind: type[tp.TablePuppetError]
) -> None:
    """Every reply has the shape, the kind of numbers and the counts that were asked for, and is finite."""
    with pytest.raises(kind, match=rf"party 'store', table 'orders': op '{op.replace('_', '[.]', 1)}'"):
        learned(fed(**{op: lie}))


def test_every_op_says_what_it_returns() -> None:
    """An op without declared returns would be believed; what keys.blind returns depends on the scan."""
    assert [name for name, op in REGISTRY.items() if op.returns is None] == ["keys.blind"]


def test_words_of_a_party_are_cut_and_cleaned() -> None:
    """Errors that a party sends are short, in one line, without controls of a terminal, and name the party."""
    message = [VERSION, "PartyError", "\x1b[2J\x07red\r\n" + "x" * 60_000_000]
    with pytest.raises(tp.PartyError) as caught:
        read_reply(message, Request("describe"), "bank")
    told = str(caught.value)
    assert told.isprintable()
    assert len(told) < 2100
    assert "'bank'" in told


@pytest.mark.parametrize(
    "told",
    [
        [{"tables": [], "key": ["k"]}],
        [{"tables": [["p", "t\x1b[2J", {"x": "DOUBLE"}, 5]], "key": "k"}],
        [{"tables": [{"party": "p", "name": "t\x1b[2J", "columns": {"x": "DOUBLE"}, "rows": 5}], "key": "k"}],
        [{"tables": [{"party": "p", "name": "t", "columns": {"x": "DOUBLE"}, "rows": -5}], "key": "k"}],
        [{"tables": [{"party": "p", "name": "t", "columns": {"x": "DOUBLE"}, "rows": 2**40}], "key": "k"}],
        [{"tables": [], "key": "k"}, {}],
        [["tables"]],
        [],
    ],
)
def test_catalogs_that_cannot_be(told: Any) -> None:
    """Tables with impossible numbers of rows, or names that would control a terminal, are refused."""
    with Liar(encode([VERSION, "ok", told]).header) as server:
        party = FlightTransport("bank", f"grpc://127.0.0.1:{server.port}", None, timeout=5.0)
        with pytest.raises(tp.PartyError, match="'bank'"):
            party.call(Request("describe"))
