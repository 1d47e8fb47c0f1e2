"""Canaries with all privacy on: what one shard holds, and what it adds up, is in nothing that leaves it or is kept."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.party.secure_table import SecureTable, Wanted
from tablepuppet.wire.record import Record
from tests.relations import Message, federation, record_wire, round_as_services
from tests.service.processes import Services
from tests.service.test_private_features import kept
from tests.test_canary import Net, assert_unseen

ROWS, OWNERS = 300, ("owner0", "owner1", "owner2")
CELLS = 48151623.4208 + np.arange(ROWS)  # of owner1
LABELS = np.sin(np.arange(ROWS) + 0.4815)
SQL = "SELECT cell, word, y FROM t"
SECURE = tp.Privacy(secure_sum=True)
EVERYTHING = tp.Privacy(
    feature_epsilon=40.0, prediction_epsilon=40.0, label_epsilon=8.0, label_bounds=(-1.0, 1.0), secure_sum=True
)


def shards() -> dict[str, dict[str, pa.Table]]:
    """Three shards of one table; that of owner1 holds what must not be seen."""
    row, found = np.arange(ROWS), {}
    for number, owner in enumerate(OWNERS):
        own = owner == "owner1"
        words = [f"{'canary-кана' if own else 'word'}-{i % 2}" for i in row]
        cells = CELLS if own else 48151000.5 + 1000 * np.cos(row * (number + 1))
        found[owner] = {"t": pa.table({"cell": cells, "word": words, "y": LABELS if own else np.cos(row + number)})}
    return found


def traces(numbers: Iterable[float]) -> Mapping[str, list[bytes]]:
    """What a number would look like in a message or a file: four bytes of it would be there by chance."""
    return {repr(x): [struct.pack("<d", x), struct.pack(">d", x), repr(x).encode()] for x in map(float, numbers)}


def assert_no_narrow_cells(messages: Iterable[Message]) -> None:
    """No array of float32, which rows travel in, has a number as large as the planted ones."""
    arrays = [value for m in messages for part in (m.request.arguments, m.reply or {}) for value in part.values()]
    narrow = [array for array in arrays if isinstance(array, np.ndarray) and array.dtype == np.float32]
    assert narrow
    assert max(float(np.abs(array).max(initial=0.0)) for array in narrow) < CELLS[0]


@pytest.fixture(autouse=True)
def narrow_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows travel in single precision, as between processes."""
    round_as_services(monkeypatch)


PLANTED = {**traces(CELLS), **traces(LABELS), "a category": [b"canary-", "кана".encode()]}


@pytest.fixture
def own_sums(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What owner1 adds up from now on, before it is masked: as float64 and at the scale it is told, entry by entry."""
    found: list[bytes] = []
    masked = SecureTable.masked

    def noting(table: SecureTable, op: str, wanted: Wanted, values: Mapping[str, Any]) -> dict[str, Any]:
        if table.party == "owner1":
            for name, value in values.items():
                found.extend(_entries(np.ravel(np.asarray(value, np.float64)), wanted.bits[name]))
        return masked(table, op, wanted, values)

    monkeypatch.setattr(SecureTable, "masked", noting)
    return found


def _entries(values: np.ndarray[Any, np.dtype[np.float64]], bits: int) -> Iterator[bytes]:
    for value in values[np.abs(np.ldexp(values, bits)) > 2.0**32]:  # shorter ones may be there by chance
        yield value.tobytes()
        yield np.rint(np.ldexp(value, bits)).astype(np.int64).tobytes()


@pytest.mark.parametrize(
    ("privacy", "settings"),
    [
        (EVERYTHING, {"rounds": 6}),
        (EVERYTHING, {"solver": "sgd", "rounds": 3}),
        (SECURE, {}),
        (SECURE, {"inner_rounds": 2}),
        (SECURE, {"solver": "sgd", "rounds": 1, "batch_size": 100}),
    ],
)
def test_messages_and_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own_sums: list[bytes],
    privacy: tp.Privacy, settings: dict[str, Any],
) -> None:  # fmt: skip
    """No message of either direction, no log, no event and no model holds an entry of what a shard adds up; with noise
    on everything, no cell and no label either.
    """
    caplog.set_level("DEBUG")
    fed = federation(tmp_path, shards())
    net = Net(record_wire(monkeypatch))
    fed.events.subscribe(net.events.append)
    relation = fed.sql(SQL, label="y")
    model = tp.LinearRegression(privacy=privacy, **settings).fit(relation)
    net.texts += [str(model.privacy_), str(dict(model.privacy_)), str(model.coef_), str(model.history_), caplog.text]
    caught = net.catch()
    assert own_sums
    assert_unseen(caught, {"a sum of one shard": own_sums})
    if privacy is EVERYTHING:
        assert_unseen(caught, PLANTED)
        assert_no_narrow_cells(net.messages)


def test_the_net_holds_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_sums: list[bytes]) -> None:
    """The search would find them: masks that are nothing let the sums of a shard be seen."""
    monkeypatch.setattr("tablepuppet.party.secure_table.Masks.masked", lambda masks, words, purpose: words)
    fed = federation(tmp_path, shards())
    net = Net(record_wire(monkeypatch))
    tp.LinearRegression(privacy=SECURE).fit(fed.sql(SQL, label="y"))
    with pytest.raises(AssertionError, match="a sum of one shard is seen"):
        assert_unseen(net.catch(), {"a sum of one shard": own_sums})


def test_what_processes_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties that demand noise and secure sums: nothing planted is in messages, audit logs, logs, journals and ledgers
    of parties, nor in the coordinator's record and its model.
    """
    demands = "secure_sum = true\nbudget = { require_dp = true, delta = 1e-5 }"
    peers = f"peers = {list(OWNERS)}".replace("'", '"')
    with Services(tmp_path, shards(), peers, demands) as services:
        (tmp_path / "record").mkdir()
        net = Net(record_wire(monkeypatch))
        fed = services.federation(record=Record(tmp_path / "record"), callbacks=[net.events.append])
        relation = fed.sql(SQL, label="y")
        assert net.try_(lambda: tp.LinearRegression().fit(relation))
        model = tp.LinearRegression(privacy=EVERYTHING).fit(relation)
        net.texts += [str(model.privacy_), str(dict(model.privacy_)), str(model.coef_), str(model.evaluate(relation))]
        model.save(tmp_path / "model")
        written = kept(services)  # sessions are open: their journals are there
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"owner1.jsonl", "owner1.log", "ledger.sqlite", "owner1.replies", "model.json"} <= names
    assert any(message.request.op == "model.gradient" for message in net.messages)
    assert b"secure.confirm" in written
    assert_unseen(written + net.catch(), PLANTED)
    assert_no_narrow_cells(net.messages)
