"""Predictions beside columns to know them by: which values, of which rows, and where a policy forbids it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tablepuppet.party.request import Request, Step
from tests.operators.shop import CANARY, ORDER_COLUMNS, SQL, items, log, orders, shop
from tests.relations import write_party
from tests.wire.services import calling, served

IDS = ["o.order_id", "code", "o.small", "o.uuid", "o.day", "o.moment", "o.amount", "o.gift", "o.ratio"]


def by_order() -> dict[int, dict[str, object]]:
    """The orders by their number."""
    return {row["order_id"]: row for row in orders().to_pylist()}


def check(table: pa.Table, names: list[str]) -> None:
    """Every row of a table of predictions holds the values of one order."""
    known = by_order()
    for row in table.to_pylist():
        order = known[row["o.order_id"]]
        assert [row[name] for name in names] == [order[name.removeprefix("o.")] for name in names]


def test_every_type_of_id(tmp_path: Path) -> None:
    """Numbers, texts, UUIDs, dates, timestamps, decimals, booleans and NULLs come as they are, beside predictions."""
    rel = shop(tmp_path).sql(SQL, label="returned")
    train, test = rel.split(0.3)
    model = tp.LogisticRegression().fit(train)
    table = model.predict(test, ids=IDS)
    assert table.column_names == [*IDS, "prediction", "probability=no", "probability=yes"]
    check(table, IDS)
    assert table["prediction"].to_pylist() == model.predict(test).tolist()
    assert np.array_equal(table["probability=yes"], model.predict_proba(test)[:, 1])
    assert table.schema.field("o.amount").type == pa.decimal128(12, 2)
    assert isinstance(model.predict(test), np.ndarray)


def test_ids_are_those_of_the_joined_rows(tmp_path: Path) -> None:
    """The prediction beside an order's id is what the formula gives for that order and its item."""
    fed = shop(tmp_path, columns={**ORDER_COLUMNS, "ratio": "label"})
    rel = fed.sql(SQL.replace("i.kind, ", "").replace("o.returned", "o.ratio"), label="ratio")
    table = tp.LinearRegression().fit(rel).predict(rel, ids=["o.order_id"])
    known, weights = by_order(), items()["weight"].to_numpy()
    joined = [known[order] for order in table["o.order_id"].to_pylist()]
    inputs = np.array([[1.0, row["price"], weights[row["item_id"]]] for row in joined])
    labels = np.array([row["ratio"] for row in joined])
    assert np.allclose(table["prediction"], inputs @ np.linalg.lstsq(inputs, labels)[0], atol=1e-4)


@pytest.mark.parametrize("services", [False, True], ids=["in process", "services"])
def test_shards_splits_and_saved_models(tmp_path: Path, services: bool) -> None:
    """Ids come right from two shards of different types, from a split, from services and from a loaded model."""
    first, second = orders().slice(0, 70), orders().slice(70)
    place = second.schema.get_field_index("order_id")
    second = second.set_column(place, "order_id", second["order_id"].cast(pa.int32()))
    urls = {
        "east": write_party(tmp_path, "east", {"orders": first}),
        "west": write_party(tmp_path, "west", {"orders": second}, "duckdb"),
        "supplier": write_party(tmp_path, "supplier", {"items": items()}),
    }
    with served(urls if services else {}, state=tmp_path / "state") as servers:
        fed = calling(servers) if services else tp.Federation(urls)
        rel = fed.sql(SQL.replace("o.returned", "o.ratio"), label="ratio")
        train, test = rel.split(0.4)
        model = tp.LinearRegression(reduce=not services).fit(train)
        table = model.predict(test, ids=IDS)
        check(table, IDS)
        assert len(table) == len(test)
        assert np.array_equal(table["prediction"], model.predict(test))
        model.save(tmp_path / "model")
        again = tp.load(tmp_path / "model", fed).predict(test, ids=["i.item_id", *IDS])
        check(again, IDS)
        items_of = {order: row["item_id"] for order, row in by_order().items()}
        assert [items_of[order] for order in again["o.order_id"].to_pylist()] == again["i.item_id"].to_pylist()
        assert np.allclose(again["prediction"], model.predict(test), atol=1e-6)


def test_sources_without_an_order_of_their_own(tmp_path: Path) -> None:
    """A view sorts by the columns that are read: reading ids too changes the order, and ids still come right."""
    path = tmp_path / "store.duckdb"
    with duckdb.connect(str(path)) as store:
        store.register("rows", orders())
        store.execute("CREATE TABLE stored AS FROM rows ORDER BY hash(order_id)")
        store.execute("CREATE VIEW orders AS SELECT order_id AS a_id, * FROM stored")
    fed = tp.Federation({"store": f"duckdb:///{path}", "supplier": write_party(tmp_path, "s", {"items": items()})})
    rel = fed.sql(SQL + " WHERE o.gift", label="returned")
    table = tp.LogisticRegression().fit(rel).predict(rel, ids=["a_id", "o.order_id", "o.price"])
    known = by_order()
    assert table["a_id"].to_pylist() == table["o.order_id"].to_pylist()
    assert [known[order]["price"] for order in table["o.order_id"].to_pylist()] == table["o.price"].to_pylist()
    assert sorted(table["a_id"].to_pylist()) == [order for order, row in known.items() if row["gift"]]


def test_a_table_that_has_changed(tmp_path: Path) -> None:
    """Rows that are not those that were read get no ids: the error says to open the relation again."""
    fed = shop(tmp_path)
    rel = fed.sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    changed = orders().set_column(2, "price", pa.array(np.zeros(len(orders()))))
    pq.write_table(changed, tmp_path / "store" / "orders.parquet")
    with pytest.raises(tp.PartyError, match="'orders' has changed since the relation was opened; open it again"):
        model.predict(rel, ids=["o.order_id"])
    assert len(model.predict(rel)) == len(rel)


def test_a_column_without_the_use(tmp_path: Path) -> None:
    """A feature, a key, or a column that is hidden is no id; the refusal names party, table, column and rule."""
    columns = {**ORDER_COLUMNS, "price": ["feature", "filter"], "day": {"uses": ["id"], "level": "private"}}
    del columns["ratio"]
    fed = shop(tmp_path, columns=columns)
    rel = fed.sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    refused = {
        "o.price": "party 'store', table 'orders', column 'price': may not be used as id; its uses: filter, feature",
        "i.item_id": "party 'supplier', table 'items', column 'item_id': may not be used as id",
        "o.day": "column 'day': as id at level private it does not release IDS",
    }
    for name, message in refused.items():
        with pytest.raises(tp.PrivacyError, match=message):
            model.predict(rel, ids=[name])
    with pytest.raises(tp.LearnError, match=r"no table of the query has a column 'o\.ratio'"):
        model.predict(rel, ids=["o.ratio"])
    lines = [line for line in log(tmp_path, "store") if line["op"] == "rows.ids"]
    assert [(line["outcome"], line["rule"]) for line in lines] == [("denied", "uses"), ("denied", "level")]
    model.predict(rel, ids=["code"])
    assert ("rows.ids", ["IDS"]) in [(line["op"], line["releases"]) for line in log(tmp_path, "store")]
    assert CANARY not in (tmp_path / "store.jsonl").read_text()
    assert {"IDS"} <= {entry["release"] for entry in fed.traffic}


def test_a_hidden_column_is_refused_at_the_party(tmp_path: Path) -> None:
    """A coordinator that asks past the catalog gets the same words for a hidden column and for none at all."""
    columns = {name: uses for name, uses in ORDER_COLUMNS.items() if name != "ratio"}
    fed = shop(tmp_path, columns=columns)
    rel = fed.sql(SQL, label="returned")
    client = rel.client
    client.ask("rows.use", client._rows).read()
    messages = []
    for name in ("ratio", "no_such"):
        step = Step("rows.ids", "o", {"view": client.view, "columns": [name]})
        with pytest.raises(tp.PrivacyError) as refused:
            fed.engine.call("store", Request("run", client.session, {}, (step,), 9))
        messages.append(str(refused.value).replace(name, "it"))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "columns", ["order_id", ["order_id", "ORDER_ID"], [["order_id"]], [3], None, ["order_id"] * 200]
)
def test_arguments_that_are_no_list_of_columns(tmp_path: Path, columns: object) -> None:
    """The op takes a list of names, each once, and nothing that only looks like one."""
    fed = shop(tmp_path)
    rel = fed.sql(SQL, label="returned")
    client = rel.client
    client.ask("rows.use", client._rows).read()
    step = Step("rows.ids", "o", {"view": client.view, "columns": columns})
    with pytest.raises(tp.PartyError):
        fed.engine.call("store", Request("run", client.session, {}, (step,), 9))


def test_a_table_that_demands_noise_tells_no_ids(tmp_path: Path) -> None:
    """Under require_dp a column with the use id is refused all the same."""
    fed = shop(tmp_path, store="budget.require_dp = true")
    rel = fed.sql(SQL, label="returned")
    client = rel.client
    with pytest.raises(tp.PrivacyError, match=r"does not release IDS, which has no form with noise.*require_dp"):
        client.ask("rows.ids", lambda alias, _: {"columns": ["order_id"]} if alias == "o" else None).read()


def test_in_process_databases(tmp_path: Path) -> None:
    """The analyst's own databases give ids of public columns, not of those that the federation file makes stricter."""
    store = write_party(tmp_path, "store", {"orders": orders()})
    supplier = write_party(tmp_path, "supplier", {"items": items()})
    fed = tp.Federation({"store": PartyEntry(store, levels={"orders.code": "aggregate"}), "supplier": supplier})
    rel = fed.sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    check(model.predict(rel, ids=["o.order_id"]), [])
    with pytest.raises(tp.PrivacyError, match="column 'code': may not be used as id"):
        model.predict(rel, ids=["code"])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["item_id"], "'item_id' may be o.item_id or i.item_id; name the table's alias too"),
        (["o.ordr_id"], "did you mean 'o.order_id'"),
        ("o.order_id", "ids is a list of columns"),
        ([], "at least one column"),
        (["order_id", "o.order_id"], "each once"),
        ([3], "ids is a list of columns"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, ids: object, message: str) -> None:
    """A name that is unknown, ambiguous or no name is a LearnError that says what to do."""
    rel = shop(tmp_path).sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    with pytest.raises(tp.LearnError, match=message):
        model.predict(rel, ids=ids)  # type: ignore[call-overload]


def test_what_is_no_relation(tmp_path: Path) -> None:
    """Predicting, measuring and stopping by something that is no relation is a LearnError that names its kind."""
    rel = shop(tmp_path).sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    frame = rel.describe().to_arrow().to_pandas()
    for verb in (model.predict, model.predict_proba, model.evaluate):
        with pytest.raises(tp.LearnError, match=f"{verb.__name__} takes a relation.*not DataFrame"):
            verb(frame)
    with pytest.raises(tp.LearnError, match=r"takes a relation.*not DataFrame"):
        model.evaluate(frame, at_party=True)
    with pytest.raises(tp.LearnError, match=r"fit\(validation=...\) takes a relation.*not DataFrame"):
        tp.LogisticRegression().fit(rel, validation=frame)
