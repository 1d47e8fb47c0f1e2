"""Numbers that identify rows are warned of wherever features are made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.relations import federation, warnings_of
from tests.wire.hostile import Attacker, accounts, write_bank

ROW = np.arange(120)
LONG = 2**60 + 100 * ROW  # float64 has one number for two or three of them


def warned(folder: Path, table: pa.Table, shards: int = 1, **settings: object) -> set[str]:
    """The columns that a fit over a table warns of as ids."""
    cut = [round(len(table) * place / shards) for place in range(shards + 1)]
    parties = {f"p{i}": {"t": table.slice(cut[i], cut[i + 1] - cut[i])} for i in range(shards)}
    folder.mkdir(exist_ok=True)
    fed = federation(folder, parties)
    told = warnings_of(fed)
    tp.LinearRegression(rounds=1).fit(fed.sql("SELECT * FROM t", label="y", **settings))  # type: ignore[arg-type]
    return {str(event.fields["column"]) for event in told if event.name == "column.id"}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_fit_warns_of_whole_numbers_that_differ_in_every_row(tmp_path: Path, shards: int) -> None:
    """Whatever their type and order; not of numbers that repeat, lack a value or have fractions, of dates, or of those
    that are categories.
    """
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": rng.permutation(7 * ROW),
            "real": rng.permutation(ROW).astype(float),
            "decimal": pa.array(ROW).cast(pa.decimal128(19, 0)),
            "long": LONG,
            "twice": np.r_[ROW[:-1], ROW[-2]],
            "gap": pa.array(ROW, mask=ROW == 3),
            "half": ROW / 2,
            "price": rng.normal(size=len(ROW)),
            "day": pa.array(ROW.astype("datetime64[D]")),
            "kind": ROW,
            "y": ROW,
        }
    )
    assert warned(tmp_path, table, shards, categorical=["kind"]) == {"t.id", "t.real", "t.decimal", "t.long"}


def test_few_rows_are_no_ids(tmp_path: Path) -> None:
    """Forty-nine different numbers may be a measure; a small shard beside a large one says nothing."""
    few = pa.table({"id": ROW[:49], "y": ROW[:49] % 3})
    assert warned(tmp_path / "few", few) == set()
    (tmp_path / "both").mkdir()
    parties = {"large": {"t": pa.table({"id": ROW, "y": ROW % 3})}, "small": {"t": few}}
    fed = federation(tmp_path / "both", parties)
    told = warnings_of(fed)
    fed.sql("SELECT id FROM t").matrix()
    assert [event.name for event in told] == ["column.id"]


def test_ids_count_in_their_own_table(tmp_path: Path) -> None:
    """A number that names the rows of its table is warned of however often these are joined, and in a matrix too; the
    columns that tables are joined by come with no star.
    """
    orders = np.arange(600)
    parties = {
        "shop": {"items": pa.table({"item": ROW[:60], "code": 3 * ROW[:60], "weight": np.sin(ROW[:60])})},
        "store": {"orders": pa.table({"number": orders, "item": orders % 60, "size": orders // 10})},
    }
    fed = federation(tmp_path, parties)
    told = warnings_of(fed)
    relation = fed.sql("SELECT * FROM orders o JOIN items i ON o.item = i.item")
    assert relation.columns == ["number", "size", "code", "weight"]
    relation.matrix()
    assert [event.fields["column"] for event in told] == ["o.number", "i.code"]
    assert "drop=['o.number']" in told[0].message
    told.clear()
    fed.sql("SELECT * FROM orders o JOIN items i ON o.item = i.item", drop=["number", "i.code"]).matrix()
    assert not told


def test_ids_take_no_trip_of_their_own(tmp_path: Path) -> None:
    """They are asked for with the sums that a fit needs, and not at all with noise."""
    fed = federation(tmp_path, {"p": {"t": pa.table({"id": ROW, "x": np.sin(ROW), "y": ROW % 2})}})
    trips: list[list[str]] = []

    def keep(event: tp.Event) -> None:
        if event.kind == "trip":
            trips.append(list(event.fields["ops"]))

    fed.events.subscribe(keep, trips=True)
    tp.LogisticRegression(rounds=2).fit(fed.sql("SELECT * FROM t", label="y"))
    assert [[op for op in ops if op.startswith("statistics.")] for ops in trips if "statistics.ids" in ops] == [
        ["statistics.numbers", "statistics.ids"]
    ]
    trips.clear()
    private = tp.Privacy(feature_epsilon=10.0)
    tp.LogisticRegression(rounds=2, privacy=private).fit(fed.sql("SELECT * FROM t", label="y"))
    assert trips
    assert not any("statistics.ids" in ops for ops in trips)


def test_a_service_says_it_of_many_rows_only(tmp_path: Path) -> None:
    """The answer is one bit per column that may be a feature, over 50 different rows or more, whatever is listed."""
    attacker = Attacker(write_bank(tmp_path, accounts(60)))
    attacker.open("s", attacker.scan("SELECT id, amount FROM cards", keys=()))
    for different, again, expected in ((60, [], True), (49, [], False), (49, [0], False), (50, [0], True)):
        view, rows = f"{different} {again}", np.r_[np.arange(different), again]
        attacker.use("s", view, rows, np.ones(len(rows), np.uint8))
        reply = attacker.run("s", "statistics.ids", view=view, columns=["id", "amount"])
        assert {name: values.tolist() for name, values in reply.items()} == {"ids": [expected, False]}
