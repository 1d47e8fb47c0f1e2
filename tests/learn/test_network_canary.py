"""Canaries with networks across parties: no cell, key or category of a table is in what travels, is told or is kept."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tests.relations import record_wire, write_party
from tests.test_canary import Net, assert_unseen

pytest.importorskip("pytorch_tabnet", reason="networks need the extra `deep`")

ROWS = 120
KEYS, CELLS = 7105551990313 + 7 * np.arange(ROWS), 48151623.4208 + np.arange(ROWS) % 31
NETWORK: dict[str, Any] = {"bottom": tp.bottom.mlp(hidden=(4,), embedding=3), "top": (4,), "batch_size": 40}
LEARNERS: dict[str, Callable[[], Any]] = {
    "SplitNN": lambda: tp.SplitNNClassifier(epochs=2, **NETWORK),
    "FedOnce": lambda: tp.FedOnceClassifier(epochs=2, guest_epochs=2, rounds=2, embedding=3, **NETWORK),
    "PCA": lambda: tp.FedOnceClassifier(epochs=2, method="pca", noise=0.1, embedding=3, **NETWORK),
    "TabVFL": lambda: tp.TabVFLClassifier(latent=4, steps=2, pretrain_epochs=2, epochs=2, batch_size=40),
}


def planted() -> dict[str, list[bytes]]:
    """What must not be seen: four bytes of a number would be there by chance."""
    numbers = {repr(x): [struct.pack("<d", x), struct.pack(">d", x), repr(x).encode()] for x in CELLS.tolist()}
    keys = {str(k): [struct.pack("<q", k), struct.pack("<d", k), str(k).encode()] for k in KEYS.tolist()}
    return {**numbers, **keys, "a category": [b"canary-", "кана".encode()]}


def federation(folder: Path) -> tp.Federation:
    """A host with the label and a guest, both with planted cells, keys and categories."""
    row = np.arange(ROWS)
    words = [f"canary-кана-{i % 3}" for i in row]
    host = pa.table({"k": KEYS, "cell": CELLS, "y": row % 5 > 1})
    guest = pa.table({"k": KEYS, "cell": CELLS[::-1].copy(), "word": words})
    tables = {"host": host, "guest": guest}
    parties = {}
    for name, rows in tables.items():
        levels = {f"{name}.{column}": "aggregate" for column in rows.column_names}
        parties[name] = PartyEntry(write_party(folder, name, {name: rows}), levels)
    return tp.Federation(parties)


@pytest.mark.parametrize("name", LEARNERS)
def test_nothing_planted_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in messages, events, logs, errors, histories, predictions or the saved model."""
    caplog.set_level("DEBUG")
    fed = federation(tmp_path)
    net = Net(record_wire(monkeypatch))
    fed.events.subscribe(net.events.append, trips=True)
    relation = fed.sql(
        "SELECT h.cell AS mine, g.cell AS theirs, g.word, h.y FROM host h JOIN guest g USING (k)", label="y"
    )
    model = LEARNERS[name]().fit(relation)
    net.texts += [repr(model), str(model.history_), str(model.evaluate(relation)), str(model.predict_proba(relation))]
    if name == "TabVFL":
        net.texts += [
            str(model.pretraining_),
            str(model.transform(relation)),
            str(model.explain(relation, by="column")),
        ]
    else:
        picture = tp.bottom.cnn(shape=(3, 3))
        assert net.try_(lambda: LEARNERS[name]().set_params(bottom=picture).fit(relation))
    assert net.try_(lambda: model.predict(fed.sql("SELECT h.cell AS mine, h.y FROM host h", label="y")))
    model.save(tmp_path / "model")
    net.texts += [caplog.text, *(str(record.__dict__) for record in caplog.records)]
    written = [path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert len(written) > 1
    assert any("split." in message.request.op for message in net.messages)
    assert_unseen(b"\0".join([net.catch(), *written]), planted())


def test_the_net_holds_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search would find cells: an op that returned them, instead of embeddings, is found out."""
    from tablepuppet.learn.tables.dense import MlpTable

    monkeypatch.setattr(MlpTable, "predict", lambda *_: np.stack([CELLS] * 3, axis=1))
    monkeypatch.setattr("tablepuppet.learn.split.ops.narrowed", lambda values, wire: values.astype(np.float64))
    net = Net(record_wire(monkeypatch))
    relation = federation(tmp_path).sql("SELECT h.cell, h.y FROM host h JOIN guest g USING (k)", label="y")
    LEARNERS["SplitNN"]().fit(relation).predict(relation)
    with pytest.raises(AssertionError, match="is seen"):
        assert_unseen(net.catch(), planted())
