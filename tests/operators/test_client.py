"""The client operator: ops run at the shards that take part, each told of its own rows."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.returns import OUTPUTS, PER_OUTPUT
from tests.relations import federation, record_wire

PARTIES = {
    "p0": {"t": pa.table({"k": [1, 1, 9, 2], "x": [0.5, 1.5, 2.5, 3.5]})},
    "p1": {"t": pa.table({"k": [1, 2], "x": [5.0, 6.0]})},
    "p2": {"t": pa.table({"k": [7, 8], "x": [5.0, 6.0]}), "u": pa.table({"k": [1] * 300 + [2], "y": range(301)})},
}
SQL = "SELECT t.x, u.y FROM t JOIN u USING (k)"


@pytest.fixture
def relation(tmp_path: Path) -> tp.Relation:
    return federation(tmp_path, PARTIES).sql(SQL)


def test_rows_are_announced_once(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first op every shard hears which of its rows take part and how often, in few bytes, and only once."""
    messages = record_wire(monkeypatch)
    relation.describe()
    relation.describe()
    told = {(m.party, m.request.table): m.request.arguments for m in messages if m.request.op == "rows.use"}
    assert sum(m.request.op == "rows.use" for m in messages) == len(told) == 3
    assert np.unpackbits(told["p0", "t"]["chosen"], count=4).tolist() == [1, 1, 0, 1]
    assert told["p0", "t"]["counts"].tolist() == [300, 300, 1]
    assert told["p1", "t"]["chosen"] is None  # all of them
    assert told["p0", "t"]["counts"].dtype == np.uint16
    assert told["p2", "u"]["counts"].dtype == np.uint8
    assert set(told["p2", "u"]["counts"].tolist()) == {2, 3}


def test_few_rows_are_told_by_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a bit for every row would take more bytes than the row ids, a shard hears these; either means the same."""
    parties = {"p": {"t": pa.table({"k": range(1000), "x": range(1000)}), "u": pa.table({"k": [7, 990], "y": [1, 2]})}}
    messages = record_wire(monkeypatch)
    told = federation(tmp_path, parties).sql(SQL).describe().to_arrow().to_pylist()
    chosen = [m.request.arguments["chosen"] for m in messages if (m.request.op, m.request.table) == ("rows.use", "t")]
    assert [ids.tolist() for ids in chosen] == [[7, 990]]
    assert [entry["mean"] for entry in told if entry["column"] == "x"] == [498.5]


def test_shards_without_rows_are_left_alone(relation: tp.Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of which no row joins is not asked again."""
    assert len(relation)
    messages = record_wire(monkeypatch)
    relation.describe()
    relation.split()
    assert ("p2", "t") not in {(message.party, message.request.table) for message in messages}
    assert [shard.party for shard in relation.client.shards("t")] == ["p0", "p1"]


def test_replies_come_by_table_and_shard(relation: tp.Relation) -> None:
    """`ask` runs an op where arguments are given, and answers by alias in the order of the shards."""
    seen = []

    def arguments(alias: str, shard: object) -> dict[str, object] | None:
        seen.append(alias)
        return {"columns": ["x"]} if alias == "t" else None

    replies = relation.client.ask("statistics.numbers", arguments).read()
    assert seen == ["t", "t", "u"]
    assert [len(replies["t"]), len(replies["u"])] == [2, 0]
    assert [float(reply["sums"][0, 0]) for reply in replies["t"]] == [601.0, 301.0]


def test_the_outputs_of_every_reply_are_known() -> None:
    """An op whose reply has a column per output says which argument chooses the vectors, or a model has told so."""
    for op in REGISTRY.values():
        lengths = [getattr(getattr(each, "value", each), "lengths", ()) for each in (op.returns or {}).values()]
        if any({OUTPUTS, PER_OUTPUT} & set(each) for each in lengths):
            assert {op.directions, "model", "spec"} & set(inspect.signature(op.function).parameters), op.name
