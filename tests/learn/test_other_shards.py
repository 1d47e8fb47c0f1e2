"""Loaded models over tables that have gained or lost a shard, or whose party has another name now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.party.blind import new_blinding_key, read_blinding_key
from tablepuppet.party.policy import LEVELS, Level
from tablepuppet.party.release import Release
from tests.relations import write_party
from tests.wire.services import calling, served

SQL = "SELECT s.c, s.x, i.g, s.y FROM sales s JOIN items i ON s.item = i.item"
KINDS: dict[str, Callable[[tp.Relation], Any]] = {
    "linear": lambda relation: tp.LinearRegression(l2=1e-9).fit(relation),
    "prepared": lambda relation: tp.LinearRegression(l2=1e-6).fit(
        relation.with_prep(tp.prep.Pipeline([tp.prep.Hash(16, columns=["c"]), tp.prep.TargetEncode(columns=["g"])]))
    ),
    "mlp": lambda relation: tp.MLPRegressor(rounds=3, seed=1).fit(relation),
    "split": lambda relation: tp.SplitNNRegressor(epochs=2, seed=1).fit(relation),
    "fedonce": lambda relation: tp.FedOnceRegressor(epochs=2, seed=1).fit(relation),
    "lm": lambda relation: tp.linalg.lm(relation.matrix(), relation.label()),
}


def sales(seed: int, rows: int = 120) -> pa.Table:
    draw = np.random.default_rng(seed)
    c, x, item = draw.choice(list("abcdef"), rows), draw.normal(size=rows), draw.integers(0, 8, rows)
    paid = x + np.array([ord(each) % 7 for each in c]) + 3.0 * (item % 2)
    return pa.table({"item": item, "c": c, "x": x, "y": paid})


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two shards of sales, items, and both shards in one database."""
    folder, parts = tmp_path_factory.mktemp("parties"), [sales(0), sales(1)]
    items = pa.table({"item": np.arange(8), "g": ["even", "odd"] * 4})
    tables = {"p0": {"sales": parts[0]}, "p1": {"sales": parts[1]}, "items": {"items": items}}
    tables["all"] = {"sales": pa.concat_tables(parts)}
    return {name: write_party(folder, name, listed) for name, listed in tables.items()}


def chosen(urls: dict[str, str], *names: str) -> dict[str, str]:
    return {name: urls[name] for name in (*names, "items")}


def predicted(model: Any, fed: tp.Federation) -> NDArray[np.float64]:
    """Predictions in an order that does not depend on shards or row ids."""
    return np.sort(model.predict(fed.sql(SQL, label="y")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_more_or_less(urls: dict[str, str], tmp_path: Path, kind: str) -> None:
    """Predictions over shards that did not train are those over the same rows in one database; so are those over one
    shard of two, and over a party with another name.
    """
    fed = tp.Federation(chosen(urls, "p0"), wire="float64")
    KINDS[kind](fed.sql(SQL, label="y")).save(tmp_path / "one")
    found = []
    for parties in (chosen(urls, "p0", "p1"), chosen(urls, "all")):
        fed = tp.Federation(parties, wire="float64")
        model = tp.load(tmp_path / "one", fed)
        found.append(predicted(model, fed))
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    if kind in ("linear", "lm"):
        truth = np.concatenate([sales(seed)["y"].to_numpy() for seed in (0, 1)])
        np.testing.assert_allclose(found[0], np.sort(truth), atol=1e-4)
    both = tp.Federation(chosen(urls, "p0", "p1"), wire="float64")
    KINDS[kind](both.sql(SQL, label="y")).save(tmp_path / "two")
    found = []
    for parties in (chosen(urls, "p1"), {"renamed": urls["p1"], "goods": urls["items"]}):
        fed = tp.Federation(parties, wire="float64")
        model = tp.load(tmp_path / "two", fed)
        model.save(tmp_path / "again")
        found += [predicted(model, fed), predicted(tp.load(tmp_path / "again", fed), fed)]
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=1e-9)
    if kind in ("linear", "lm"):
        np.testing.assert_allclose(found[0], np.sort(sales(1)["y"].to_numpy()), atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "split"])
def test_services(urls: dict[str, str], tmp_path: Path, kind: str) -> None:
    """A service that did not train gets the parameters of the one that keeps them, and recognises categories by the key
    that all services have; so does a database in this process that has this key, and a service with another name.
    """
    new_blinding_key(tmp_path / "key")
    key = read_blinding_key(tmp_path / "key")
    with served(urls, state=tmp_path / "state", key=key) as servers:
        fed = calling({name: servers[name] for name in ("p0", "items")}, wire="float64")
        model = KINDS[kind](fed.sql(SQL, label="y"))
        model.save(tmp_path / "model")
        one = predicted(model, fed)
        url = {name: f"grpc://127.0.0.1:{server.port}" for name, server in servers.items()}
        settings: dict[str, Any] = {"wire": "float64", "key_file": tmp_path / "key"}
        found = []
        for parties in (
            chosen(url, "p0", "p1"), {**chosen(url, "p0"), "p1": urls["p1"]}, {"p2": url["p0"], **chosen(url, "p1")},
        ):  # fmt: skip
            fed = tp.Federation(parties, **settings)
            found.append(predicted(tp.load(tmp_path / "model", fed), fed))
        for each in found[1:]:
            np.testing.assert_allclose(each, found[0], atol=1e-9)
        renamed = tp.Federation({"goods": url["items"], "shop": url["p0"]}, wire="float64")
        loaded = tp.load(tmp_path / "model", renamed)
        loaded.save(tmp_path / "again")
        for each in (loaded, tp.load(tmp_path / "again", renamed)):
            np.testing.assert_allclose(predicted(each, renamed), one, atol=1e-9)
        with pytest.raises(tp.LearnError, match=r"needs party '\w+', which keeps its part for table '[si]'.*no other"):
            tp.load(tmp_path / "model", tp.Federation({"p1": url["p1"]}))


def test_parameters_that_may_not_leave(urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a table has gained a shard and its first party releases no parameters, that is what the error says."""
    monkeypatch.setitem(LEVELS, Level.PUBLIC, ~Release.PARAMETERS)
    with served(chosen(urls, "p0", "p1"), state=tmp_path / "state") as servers:
        fed = calling({name: servers[name] for name in ("p0", "items")})
        KINDS["linear"](fed.sql(SQL, label="y")).save(tmp_path / "model")
        more = calling(servers)
        loaded = tp.load(tmp_path / "model", more)
        with pytest.raises(
            tp.PrivacyError, match=r"(?s)does not release PARAMETERS.*other shards of table 's'.*fit it again"
        ):
            loaded.predict(more.sql(SQL, label="y"))


def test_services_with_another_key(urls: dict[str, str], tmp_path: Path) -> None:
    """Services that would recognise no category say so: of a model that was fitted in one process, and after their key
    was replaced. A model without categories is used as before.
    """
    parties, plain = chosen(urls, "p0"), "SELECT x, y FROM sales"
    here = tp.Federation(parties)
    KINDS["linear"](here.sql(SQL, label="y")).save(tmp_path / "here")
    KINDS["lm"](here.sql(SQL, label="y")).save(tmp_path / "lm")
    KINDS["linear"](here.sql(plain, label="y")).save(tmp_path / "plain")
    with served(parties, state=tmp_path / "state") as servers:
        fed = calling(servers)
        KINDS["linear"](fed.sql(SQL, label="y")).save(tmp_path / "kept")
        assert np.isfinite(tp.load(tmp_path / "plain", fed).predict(fed.sql(plain, label="y"))).all()
    with served(parties, state=tmp_path / "state", key=b"z" * 32) as servers:
        fed = calling(servers)
        for name in ("here", "lm", "kept"):
            model = tp.load(tmp_path / name, fed)
            with pytest.raises(tp.LearnError, match=r"party '\w+' would recognise no category of table '[si]'"):
                model.predict(fed.sql(SQL, label="y"))
