"""Names of categories: told of public columns, to whoever may know, and of no others."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tests.operators.shop import ITEM_COLUMNS, ORDER_COLUMNS, SQL, called, items, log, opened, orders, party_file
from tests.relations import party_of, write_party


def federation(folder: Path, **supplier: Any) -> tp.Federation:
    """Two databases of the analyst's own."""
    store = write_party(folder, "store", {"orders": orders()})
    return tp.Federation(
        {"store": store, "supplier": PartyEntry(write_party(folder, "s", {"items": items()}), **supplier)}
    )


def policed(folder: Path, uses: Any, table: str = "") -> tp.Federation:
    """The supplier's kinds with a rule of their own."""
    first = party_file(folder, "store", {"orders": orders()}, ORDER_COLUMNS)
    second = party_file(folder, "supplier", {"items": items()}, {**ITEM_COLUMNS, "kind": uses}, table)
    return called(opened(first), opened(second))


def test_equally_frequent_categories_keep_their_order(tmp_path: Path) -> None:
    """Of public columns: in every fit, federation and shard alike. Of others nothing is sent to tell them by."""
    kinds = [f"kind{each}" for each in range(12)]
    orders_: list[list[str | None]] = []
    for number, shards in enumerate(([kinds], [kinds], [kinds[:5], kinds[5:]])):
        place = tmp_path / str(number)
        place.mkdir()
        urls = {
            f"p{at}": write_party(
                place, f"p{at}", {"t": pa.table({"c": part * 2, "y": [float(len(c)) for c in part * 2]})}
            )
            for at, part in enumerate(shards)
        }
        rel = tp.Federation(urls).sql("SELECT c, y FROM t", label="y", categorical=["c"])
        for _ in range(2):
            orders_.append(tp.LinearRegression().fit(rel).categories_["t.c"])
    assert all(each == orders_[0] for each in orders_)
    assert sorted(map(str, orders_[0])) == sorted(kinds)
    asked = {"column": "kind", "family": "text", "blinding": "b", "most": 100, "ties": True}
    for level, length in (("public", 3), ("aggregate", 0)):
        place = tmp_path / level
        place.mkdir()
        rel = policed(place, {"uses": ["feature"], "level": level}).sql(SQL)
        [reply] = rel.client.ask_table("statistics.categories", "i", asked)
        assert len(reply["ties"]) == (len(reply["digests"]) if length else 0)
        assert len(reply["digests"])


def test_names_in_the_order_of_codes(tmp_path: Path) -> None:
    """The weight of a code belongs to the category of that name, for the model and once it is loaded."""
    fed = federation(tmp_path)
    rel = fed.sql("SELECT i.weight, i.kind, year(o.day) AS y, o.ratio FROM orders o JOIN items i USING (item_id)",
                  label="ratio", categorical=["y"])  # fmt: skip
    model = tp.LinearRegression(l2=1e-3).fit(rel)
    assert set(model.categories_) == {"i.kind"}  # orders are of one year
    assert sorted(filter(None, model.categories_["i.kind"])) == ["kind0", "kind1", "kind2"]
    assert [name for name in model.coef_ if "=" in name] == ["i.kind=0", "i.kind=1", "i.kind=2"]
    kinds, known = items()["kind"].to_pylist(), {row["order_id"]: row["item_id"] for row in orders().to_pylist()}
    table = model.predict(rel, ids=["o.order_id", "i.weight"])
    for row in table.to_pylist():
        code = model.categories_["i.kind"].index(kinds[known[row["o.order_id"]]])
        [encoder] = model.encoding_.numbers["i"]
        score = (
            model.intercept_[0]
            + model.coef_[f"i.kind={code}"]
            + model.coef_["i.weight"] * ((row["i.weight"] - encoder.mean) / encoder.scale)
        )
        assert np.allclose(row["prediction"], score, atol=1e-4)
    html = model.coef_._repr_html_  # type: ignore[attr-defined]
    assert "kind1" in html()
    assert pickle.loads(pickle.dumps(model.coef_)).keys() == model.coef_.keys()
    model.save(tmp_path / "model")
    assert tp.load(tmp_path / "model", fed).categories_ == model.categories_


def test_shards_name_what_they_have(tmp_path: Path) -> None:
    """Categories that only one of two shards has are named too; numbers are named as they are written."""
    urls = {
        name: write_party(
            tmp_path, name, {"t": pa.table({"k": range(12), "c": text, "n": [1, 2] * 6, "y": [0.0, 1.0, 2.0] * 4})}
        )
        for name, text in (("east", ["a", "b"] * 6), ("west", ["b", "c", "ü"] * 4))
    }
    rel = tp.Federation(urls).sql("SELECT c, n, y FROM t", label="y", categorical=["n"])
    model = tp.LinearRegression().fit(rel)
    assert model.categories_["t.c"][0] == "b"
    assert sorted(map(str, model.categories_["t.c"])) == ["a", "b", "c", "ü"]
    assert sorted(map(str, model.categories_["t.n"])) == ["1", "2"]
    top = {row["column"]: row["top"] for row in rel.describe().to_arrow().to_pylist()}
    assert top["c"] == "b"
    assert top["n"] in ("1", "2")
    assert top["y"] is None


def test_columns_that_are_not_public(tmp_path: Path) -> None:
    """Categories of a column at level aggregate have no names, without an error; describe says that it is withheld."""
    rel = federation(tmp_path, levels={"items.kind": "aggregate"}).sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    assert model.categories_ == {}
    top = {row["column"]: row["top"] for row in rel.describe().to_arrow().to_pylist()}
    assert (top["kind"], top["returned"] in ("no", "yes")) == (None, True)
    assert str(rel.describe()).count("withheld") == 1


def test_a_policy_makes_names_public(tmp_path: Path) -> None:
    """With level public a service's categories have names, as a release of its own that the audit log shows."""
    fed = policed(tmp_path, {"uses": ["feature"], "level": "public"})
    rel = fed.sql(SQL, label="returned")
    model = tp.LogisticRegression().fit(rel)
    assert "CATEGORIES" not in {entry["release"] for entry in fed.traffic}
    assert sorted(map(str, model.categories_["i.kind"])) == ["kind0", "kind1", "kind2"]
    assert ["CATEGORIES"] in [line["releases"] for line in log(tmp_path, "supplier")]


@pytest.mark.parametrize(
    ("uses", "table", "rule"),
    [("feature", "", "level"), ({"uses": ["feature"], "level": "public"}, "budget.require_dp = true", "require_dp")],
)
def test_the_party_refuses(tmp_path: Path, uses: Any, table: str, rule: str) -> None:
    """A coordinator that asks for names of a column that is not public, or must have noise, is refused by the guard."""
    fed = policed(tmp_path, uses, table)
    rel = fed.sql(SQL, label="returned")
    asked = {"column": "kind", "family": "text", "blinding": "b", "digests": np.zeros((1, 16), np.uint8)}
    with pytest.raises(tp.PrivacyError, match=f"CATEGORIES.*rule {rule}"):
        rel.client.ask("categories.names", lambda alias, _: asked if alias == "i" else None).read()["i"]


def test_small_groups_have_no_name(tmp_path: Path) -> None:
    """A category with fewer rows than min_group is not named, even by its digest; wrong arguments are refused."""
    fed = policed(tmp_path, {"uses": ["feature"], "level": "public"}, "")
    rel = fed.sql(SQL, label="returned")
    told: dict[str, Any] = {"column": "kind", "family": "text", "blinding": "b", "most": None}
    digests = rel.client.ask("statistics.categories", lambda a, _: told if a == "i" else None).read()["i"][0]["digests"]
    local = party_of(fed.engine, "supplier")

    def names(**changed: Any) -> Any:
        asked = {"column": "kind", "family": "text", "blinding": "b", "digests": digests} | changed
        return rel.client.ask("categories.names", lambda alias, _: asked if alias == "i" else None).read()["i"][0]

    assert sorted(names()["names"]) == ["kind0", "kind1", "kind2"]
    assert names(digests=digests[:1])["places"].tolist() == [0]
    assert names(digests=digests ^ 1)["names"] == []
    assert names(digests=digests[:0])["names"] == []
    for changed in ({"digests": digests[:, :8]}, {"digests": digests[0]}, {"family": "number"}, {"family": "x"}):
        with pytest.raises(tp.PartyError):
            names(**changed)
    grant = local.table(rel.client.session, "i", "analyst").grant
    object.__setattr__(grant.rules, "min_group", 5)
    assert names()["names"] == []


def test_private_encoders_have_no_names(tmp_path: Path) -> None:
    """With feature privacy nothing more is asked of categories than what had noise."""
    rel = federation(tmp_path, categories={"items.kind": ("kind0", "kind1", "kind2")}).sql(SQL, label="returned")
    model = tp.LogisticRegression(privacy=tp.Privacy(feature_epsilon=50.0)).fit(rel)
    assert model.categories_ == {}
