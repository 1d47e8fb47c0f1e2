"""Predictions that a party takes home: what is written, once, whole, and only where every policy allows it."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.party.config import PartyFile
from tablepuppet.party.delivery import PredictionsEntry
from tablepuppet.party.request import Request, Step
from tests.operators.shop import CANARY, ORDER_COLUMNS, SQL, called, items, log, opened, orders, party_file, shop
from tests.relations import write_party

HOME = 'predictions = { keys = ["order_id", "code"], file = "home.parquet" }'
ALLOWED = 'deliver = ["store"]'


def fitted(fed: tp.Federation) -> tuple[Any, tp.Relation]:
    """A model, and rows to predict."""
    train, test = fed.sql(SQL, label="returned").split(0.3)
    return tp.LogisticRegression().fit(train), test


NUMBERS = itertools.count(1000)  # of requests: no two of a session have the same


def run(fed: tp.Federation, rel: tp.Relation, op: str, **arguments: Any) -> Any:
    """One op at the store, as a coordinator of its own making would ask for it."""
    step = Step(op, "o", {"view": rel.client.view, **arguments})
    return fed.engine.call("store", Request("run", rel.client.session, {}, (step,), next(NUMBERS)))[0]


def test_what_the_party_writes(tmp_path: Path) -> None:
    """The file holds the party's keys, published or not, beside what the model predicts; the analyst gets figures."""
    columns = {name: uses for name, uses in ORDER_COLUMNS.items() if name != "code"}  # a key that nobody may see
    fed = shop(tmp_path, HOME, ALLOWED, columns=columns)
    model, test = fitted(fed)
    receipt = model.predict(test, deliver_to="store")
    assert set(receipt) == {"party", "table", "run", "written", "without"}
    assert (receipt["party"], receipt["table"], receipt["written"]) == ("store", "orders", len(test))
    assert receipt["without"] == 120 - len(test)
    written = pq.read_table(tmp_path / "home.parquet")
    assert written.column_names == ["order_id", "code", "prediction", "probability=no", "probability=yes", "run"]
    expected = {row["o.order_id"]: row for row in model.predict(test, ids=["o.order_id"]).to_pylist()}
    codes = dict(zip(orders()["order_id"].to_pylist(), orders()["code"].to_pylist(), strict=True))
    assert written["order_id"].to_pylist() == sorted(expected)
    for row in written.to_pylist():
        wanted = expected[row["order_id"]]
        assert [row[name] for name in wanted if name != "o.order_id"] == list(wanted.values())[1:]
        assert (row["code"], row["run"]) == (codes[row["order_id"]], receipt["run"])
    assert stat.S_IMODE((tmp_path / "home.parquet").stat().st_mode) == 0o600
    assert CANARY not in str(receipt) + (tmp_path / "store.jsonl").read_text()
    assert [line["op"] for line in log(tmp_path, "store")].count("deliver.write") == 1


def test_rows_that_are_joined_several_times(tmp_path: Path) -> None:
    """Without combine they are an error, before any party is asked; with "mean" numbers are averaged per base row."""
    home = 'deliver = ["supplier"]\npredictions = { keys = ["item_id"], file = "items.csv" }'
    fed = shop(tmp_path, store=home.partition("\n")[0], supplier=home.partition("\n")[2])
    rel = fed.sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    lines = len(log(tmp_path, "supplier"))
    with pytest.raises(tp.LearnError, match="11 of the 11 rows of 'i' at party 'supplier' are joined several times"):
        model.predict(rel, deliver_to="supplier")
    assert len(log(tmp_path, "supplier")) == lines
    assert model.predict(rel, deliver_to="supplier", combine="mean")["written"] == 11
    written = pa_csv.read_csv(tmp_path / "items.csv")
    known = dict(zip(orders()["order_id"].to_pylist(), orders()["item_id"].to_pylist(), strict=True))
    table = model.predict(rel, ids=["o.order_id"])
    items_of = np.array([known[order] for order in table["o.order_id"].to_pylist()])
    for row in written.to_pylist():
        mean = table["probability=yes"].to_numpy()[items_of == row["item_id"]].mean()
        assert row["probability=yes"] == pytest.approx(mean, abs=1e-12)
        assert row["prediction"] == ("yes" if mean > 0.5 else "no")


def test_other_parties_must_name_the_receiver(tmp_path: Path) -> None:
    """A party with features that does not name the receiver refuses, before predictions; its log has the rule."""
    for supplier in ("", 'deliver = ["somebody"]'):
        fed = shop(tmp_path, HOME, supplier)
        model, test = fitted(fed)
        before = [line["op"] for line in log(tmp_path, "supplier")].count("model.predict")
        with pytest.raises(tp.PrivacyError, match=r"party 'supplier', table 'items'.*to party 'store' .*rule deliver"):
            model.predict(test, deliver_to="store")
        lines = log(tmp_path, "supplier")
        assert ("deliver.permit", "denied", "deliver") in [(x["op"], x["outcome"], x["rule"]) for x in lines]
        assert [line["op"] for line in lines].count("model.predict") == before
        assert not (tmp_path / "home.parquet").exists()


def test_the_whole_party_may_allow_it(tmp_path: Path) -> None:
    """``deliver`` of the party holds for tables that have none of their own."""
    first = party_file(tmp_path, "store", {"orders": orders()}, ORDER_COLUMNS, HOME)
    columns = {"item_id": "key", "weight": "feature", "kind": "feature"}
    second = party_file(tmp_path, "supplier", {"items": items()}, columns, top=ALLOWED)
    model, test = fitted(called(opened(first), opened(second)))
    assert model.predict(test, deliver_to="store.o")["written"] == len(test)
    assert PartyFile.load(second).policy().table("items").deliver == {"store"}  # type: ignore[union-attr]


def test_a_party_without_a_place(tmp_path: Path) -> None:
    """Where the operator named no place nothing is delivered: a refusal with a rule of its own."""
    model, test = fitted(shop(tmp_path, "", ALLOWED))
    with pytest.raises(tp.PrivacyError, match=r"its operator has named no place for predictions.*rule predictions"):
        model.predict(test, deliver_to="store")


def test_a_run_is_written_once(tmp_path: Path) -> None:
    """The same run again, after another delivery and after a restart too, changes nothing; another run replaces."""
    fed = shop(tmp_path, HOME, ALLOWED)
    rel = fed.sql(SQL, label="returned")
    rel.client.ask("rows.use", rel.client._rows).read()
    rows = len(rel.client.shards("o")[0].row_ids)

    def written() -> set[tuple[str, float]]:
        table = pq.read_table(tmp_path / "home.parquet")
        return set(zip(table["run"].to_pylist(), table["prediction"].to_pylist(), strict=True))

    first = run(fed, rel, "deliver.write", run="a", values=np.full(rows, 1.0), classes=None)
    again = run(fed, rel, "deliver.write", run="a", values=np.full(rows, 2.0), classes=None)
    assert first == again == {"run": first["run"], "written": 120, "without": 0}
    assert written() == {(first["run"], 1.0)}
    second = run(fed, rel, "deliver.write", run="b", values=np.full(rows, 3.0), classes=None)
    run(fed, rel, "deliver.write", run="a", values=np.full(rows, 4.0), classes=None)
    assert written() == {(second["run"], 3.0)}
    anew = called(opened(tmp_path / "store.toml"), opened(tmp_path / "supplier.toml"))
    rel = anew.sql(SQL, label="returned")
    rel.client.ask("rows.use", rel.client._rows).read()
    run(anew, rel, "deliver.write", run="a", values=np.full(rows, 5.0), classes=None)
    assert written() == {(second["run"], 3.0)}
    (tmp_path / "store-state" / "delivered.txt").unlink()  # as if killed between the file and the record of it
    anew = called(opened(tmp_path / "store.toml"), opened(tmp_path / "supplier.toml"))
    rel = anew.sql(SQL, label="returned")
    rel.client.ask("rows.use", rel.client._rows).read()
    run(anew, rel, "deliver.write", run="b", values=np.full(rows, 6.0), classes=None)
    assert written() == {(second["run"], 3.0)}


def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery that fails half way leaves the last one as it was, and no other file; the error holds no path."""
    fed = shop(tmp_path, HOME, ALLOWED)
    model, test = fitted(fed)
    model.predict(test, deliver_to="store")
    before, listed = (tmp_path / "home.parquet").read_bytes(), sorted(os.listdir(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tablepuppet.party.delivery.os.replace", full)
    with pytest.raises(tp.PartyError, match="No space left") as failed:
        model.predict(test, deliver_to="store")
    assert str(tmp_path) not in str(failed.value)
    assert (tmp_path / "home.parquet").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == listed
    monkeypatch.undo()
    os.chmod(tmp_path / "home.parquet", 0o640)
    model.predict(test, deliver_to="store")
    assert (tmp_path / "home.parquet").read_bytes() != before
    assert stat.S_IMODE((tmp_path / "home.parquet").stat().st_mode) == 0o640  # as its operator set it


@pytest.mark.parametrize("name", ["home.parquet", "home.csv"])
def test_what_no_delivery_wrote_is_not_written_over(tmp_path: Path, name: str) -> None:
    """Another file at the place is refused, before predictions are made, and stays."""
    fed = shop(tmp_path, HOME.replace("home.parquet", name), ALLOWED)
    if name.endswith("csv"):
        (tmp_path / name).write_text("order_id,amount\n1,2\n")
    else:
        pq.write_table(pa.table({"order_id": [1]}), tmp_path / name)
    before = (tmp_path / name).read_bytes()
    model, test = fitted(fed)
    with pytest.raises(tp.PartyError, match="another file stands there, which no delivery wrote"):
        model.predict(test, deliver_to="store")
    assert (tmp_path / name).read_bytes() == before


def test_arguments_that_are_no_predictions(tmp_path: Path) -> None:
    """The op refuses, by the arguments alone, what is not a finite number for each row or class, and writes nothing."""
    fed = shop(tmp_path, HOME, ALLOWED)
    rel = fed.sql(SQL, label="returned")
    rel.client.ask("rows.use", rel.client._rows).read()
    rows = len(rel.client.shards("o")[0].row_ids)
    good, both = np.zeros(rows), np.full((rows, 2), 0.5)
    bad: list[tuple[Any, Any, Any]] = [
        ("r", np.zeros(rows - 1), None), ("r", np.zeros((rows, 1)), None), ("r", good * np.nan, None),
        ("r", good + np.inf, None), ("r" * 1000, good, None), ("r", both, ["a"]), ("r", both, ["a", "A"]),
        ("r", both, ["a", 1]), ("r", both, ["a", "b" * 999]), ("r", both, ["a", "b\x1b[2J"]),
        ("r", both, ["a\n", "b"]), ("r", good.astype(np.int64), None), (3, good, None), ("r", both, "ab"),
        ("r", np.zeros((rows, 1001)), [str(i) for i in range(1001)]), ("r", both, [["a"], "b"]),
    ]  # fmt: skip
    for name, values, classes in bad:
        with pytest.raises(tp.PartyError):
            run(fed, rel, "deliver.write", run=name, values=values, classes=classes)
    twice = np.zeros(rows, np.int32)
    run(fed, rel, "rows.use", **{"view": "w", "chosen": np.append(twice[:1], np.arange(rows - 1)), "counts": twice + 1})
    with pytest.raises(tp.PartyError, match="listed twice"):
        run(fed, rel, "deliver.write", **{"view": "w", "run": "r", "values": good, "classes": None})
    assert not (tmp_path / "home.parquet").exists()
    with pytest.raises(tp.PrivacyError, match="to such a party"):
        run(fed, rel, "deliver.permit", receiver=3)
    assert run(fed, rel, "deliver.write", run="r", values=both, classes=[True, False])["written"] == rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"deliver_to": "nobody"}, "holds no table of the query; name one of store.o, supplier.i"),
        ({"deliver_to": 3}, "deliver_to names a party"),
        ({"deliver_to": "store", "combine": "median"}, "must be 'mean' or None"),
        ({"deliver_to": "store", "ids": ["o.order_id"]}, "give ids or deliver_to"),
        ({"combine": "mean"}, "combine is for deliver_to"),
    ],
)
def test_deliveries_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    """The error says what would be right."""
    model, test = fitted(shop(tmp_path, HOME, ALLOWED))
    with pytest.raises(tp.LearnError, match=message):
        model.predict(test, **arguments)


def test_shards_several_tables_and_self_joins(tmp_path: Path) -> None:
    """A party gets predictions about its own shard only; if it holds several tables, one must be named."""
    east = write_party(tmp_path, "east", {"orders": orders().slice(0, 50), "items": items()})
    west = write_party(tmp_path, "west", {"orders": orders().slice(50)})
    places = {
        name: PredictionsEntry(keys=["order_id"] if name == "orders" else ["item_id"], file=f"{tmp_path}/{name}.csv")
        for name in ("orders", "items")
    }
    fed = tp.Federation({"east": PartyEntry(east, predictions=places), "west": PartyEntry(west, predictions=places)})
    rel = fed.sql(SQL.replace("o.returned", "o.ratio"), label="ratio")
    model = tp.LinearRegression().fit(rel)
    with pytest.raises(tp.LearnError, match=r"'east' holds several tables of the query; name one of east\.o, east\.i"):
        model.predict(rel, deliver_to="east")
    expected = {row["o.order_id"]: row["prediction"] for row in model.predict(rel, ids=["o.order_id"]).to_pylist()}
    for to, some in (("west", orders().slice(50)), ("east.orders", orders().slice(0, 50)), ("East.O", None)):
        receipt = model.predict(rel, deliver_to=to)
        if some is not None:
            written = pa_csv.read_csv(tmp_path / "orders.csv")
            assert written["order_id"].to_pylist() == some["order_id"].to_pylist()
            assert written["prediction"].to_pylist() == [expected[order] for order in written["order_id"].to_pylist()]
            assert receipt["written"] == len(some)
    assert model.predict(rel, deliver_to="east.i", combine="mean")["written"] == 11


def test_noise_is_asked_for_once(tmp_path: Path, known_noise: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery of predictions with noise costs what one prediction costs."""
    store, supplier = (write_party(tmp_path, n, t) for n, t in (("s", {"orders": orders()}), ("i", {"items": items()})))
    place = {"orders": PredictionsEntry(keys=["order_id"], file=str(tmp_path / "home.csv"))}
    fed = tp.Federation({"store": PartyEntry(store, predictions=place), "supplier": supplier})
    rel = fed.sql(SQL.replace("i.kind, ", ""), label="returned")
    privacy = tp.Privacy(feature_epsilon=20.0, prediction_epsilon=20.0)
    model = tp.LogisticRegression(privacy=privacy).fit(rel)
    calls = itertools.count()
    fitted: Any = model._model
    asked = fitted.scores
    monkeypatch.setattr(fitted, "scores", lambda client: (next(calls), asked(client))[1])
    assert model.predict(rel, deliver_to="store")["written"] == 120
    assert next(calls) == 1


def test_federation_files_name_places(tmp_path: Path) -> None:
    """A database in the analyst's own process takes predictions home where the federation file names a place."""
    write_party(tmp_path, "store", {"orders": orders()})
    write_party(tmp_path, "supplier", {"items": items()})
    file = tmp_path / "federation.toml"
    text = (
        '[parties]\nsupplier = "parquet:///supplier"\n[parties.store]\nurl = "parquet:///store"\n'
        '[parties.store.predictions.orders]\nkeys = ["order_id"]\nfile = "home.csv"\n'
    )
    file.write_text(text)
    model, test = fitted(tp.Federation.load(file))
    model.predict(test, deliver_to="store")
    assert len(pa_csv.read_csv(tmp_path / "home.csv")) == len(test)
    file.write_text(text.replace("home.csv", "home.txt"))
    with pytest.raises(tp.ConfigError, match=r"predictions\.orders\.file: it must end in"):
        tp.Federation.load(file)
    file.write_text(text.replace("parquet:///store", "grpc://localhost:1"))
    with pytest.raises(tp.ConfigError, match="predictions in its own party file"):
        tp.Federation.load(file)
