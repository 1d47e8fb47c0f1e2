"""Parties that change their replies: all that a coordinator asks, and all that may stand in a reply instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.errors import TablePuppetError
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.delivery import Deliveries, PredictionsEntry
from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import Party
from tablepuppet.privacy.signed_keys import TrialAuthority
from tablepuppet.wire.codec import decode, encode
from tablepuppet.wire.engine import Transport
from tablepuppet.wire.protocol import error_message, read_reply, read_request, reply_message, request_message
from tests.relations import write_party

Lie = Callable[[Any], Any]
ORDERS, ITEMS = 60, 12
MOST_CALLS = 2000  # of one use: several times as many as any has


class Liar(Transport):
    """A party elsewhere, as `FlightTransport` would call it; the reply to one op is changed, each time it comes.

    Both ways go over the codec, so that errors and values are those that arrive.
    """

    def __init__(self, party: Party, seen: dict[str, tuple[str, Any]]):
        self.party, self.seen, self.calls = party, seen, 0
        self.lies: dict[str, Lie] = {}

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The reply, changed."""
        self.calls += 1
        assert self.calls < MOST_CALLS, "the coordinator does not come to an end"
        try:
            arrived = read_request(decode(encode(request_message(request))), "bank")
            message = decode(encode(reply_message(self.party.answer("analyst", arrived))))
        except TablePuppetError as error:
            message = decode(encode(error_message(error)))
        if message[1] == "ok":
            names = [] if request.verb == "run" else [f"verb {request.verb}"]
            names += [step.op for step in request.steps]
            for place, (name, part) in enumerate(zip(names, message[2], strict=True)):
                self.seen.setdefault(name, (self.party.name, part))
                if name in self.lies:
                    message[2][place] = self.lies[name](part)
        return read_reply(message, request, self.party.name)


def tables() -> dict[str, dict[str, pa.Table]]:
    """Orders of one store, visits of three, and the items of both."""
    rng, row = np.random.default_rng(0), np.arange(ORDERS)
    orders = {
        "item": row % ITEMS, "price": rng.normal(size=ORDERS), "code": [f"c{i % 4}" for i in row],
        "day": pa.array(row % 30, pa.int32()).cast(pa.date32()), "returned": row % 2, "paid": rng.normal(size=ORDERS),
    }  # fmt: skip
    items = {"item": np.arange(ITEMS), "size": np.arange(ITEMS) % 5.0, "kind": ["a", "b", "c"] * (ITEMS // 3)}
    found = {"store": {"orders": pa.table(orders)}, "shop": {"items": pa.table(items)}}
    for name in ("east", "west", "north"):
        visits = {key: orders[key] for key in ("item", "price", "code", "returned", "paid")}
        found[name] = {"visits": pa.table(visits).slice(0, 40)}
    return found


class World:
    """The parties, which outlive federations: every use has a federation of its own."""

    def __init__(self, folder: Path):
        self.folder, self.uses, trial = folder, 0, TrialAuthority()
        self.parties = {}
        for name, published in tables().items():
            database = open_database(name, write_party(folder, name, published))
            target = PredictionsEntry(keys=["item"], file=str(folder / f"{name}-predictions.parquet"))
            (folder / f"{name}-state").mkdir()
            self.parties[name] = Party(
                name, database, b"k" * 32, row_secret=name.encode(), state_dir=folder / f"{name}-state",
                identity=partial(trial.identity, name),
                deliveries=Deliveries(name, {"orders": target}, database),
            )  # fmt: skip

    def federation(self, lies: Mapping[tuple[str, str], Lie]) -> tuple[tp.Federation, dict[str, tuple[str, Any]]]:
        """A federation some of whose parties lie, by party and op; and what it will see of replies, by op."""
        urls = {name: f"grpc://127.0.0.1:{port}" for port, name in enumerate(self.parties, 1)}
        fed = tp.Federation(urls, wire="float64")
        seen: dict[str, tuple[str, Any]] = {}
        for name, party in self.parties.items():
            liar = Liar(party, seen)
            liar.lies = {op: lie for (who, op), lie in lies.items() if who == name}
            fed.engine.transports[name] = liar
        return fed, seen

    def use(self, name: str, lies: Mapping[tuple[str, str], Lie]) -> dict[str, tuple[str, Any]]:
        """Do what a use does; what was seen."""
        self.uses += 1
        fed, seen = self.federation(lies)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            USES[name](fed, self.folder / f"model{self.uses}")
        return seen


ONE = "SELECT o.price, o.code, i.size, i.kind, o.{} FROM orders o JOIN items i USING (item)"
SEVERAL = "SELECT v.price, v.code, i.size, v.{} FROM visits v JOIN items i USING (item)"
VISITED = "SELECT o.price, v.price AS paid_before, v.code, o.{} FROM orders o JOIN visits v USING (item)"
NETWORK: Any = tp.MLPClassifier
ONCE: Any = tp.FedOnceClassifier
CLASSES = tp.Privacy(label_epsilon=4.0, label_classes=(0, 1))
NUMBERS = tp.Privacy(label_epsilon=4.0, label_bounds=(-3.0, 3.0))
NOISY = tp.Privacy(feature_epsilon=60.0, prediction_epsilon=60.0, delta=1e-3)
FEATURES = tp.Privacy(feature_epsilon=60.0, delta=1e-3)


def described(fed: tp.Federation, folder: Path) -> None:
    fed.catalog()
    relation = fed.sql("SELECT o.price, o.code, o.day, i.kind FROM orders o JOIN items i USING (item) WHERE i.size < 4")
    found = relation.describe()
    assert "\x1b" not in str(found) + found._repr_html_() + str(relation.explain())
    visits = fed.sql("SELECT v.price, v.code FROM visits v WHERE v.price > 0 UNION ALL SELECT price, code FROM visits")
    str(visits.describe())


def explored(fed: tp.Federation, folder: Path) -> None:
    relation = fed.sql(ONE.format("returned"), label="returned")
    found = [
        relation.quantile([0.1, 0.5]), relation.histogram("price", 5), relation.correlation(),
        relation.crosstab("code", "returned"), relation.crosstab("code", "kind"),
        relation.group_means("price", "code"), relation.group_means("price", "kind"),
    ]  # fmt: skip
    visits = fed.sql(SEVERAL.format("returned"), label="returned")
    found += [visits.quantile(0.5), visits.crosstab("code", "returned"), visits.group_means("price", "code")]
    assert "\x1b" not in "".join(str(each) + each._repr_html_() for each in found)


def with_noise(fed: tp.Federation, folder: Path) -> None:
    bounds = {"price": (-3, 3), "size": (0, 9), "paid": (-3, 3)}
    asked: dict[str, Any] = {"privacy": FEATURES, "bounds": bounds}
    for sql in (ONE.format("paid"), SEVERAL.format("paid")):
        relation = fed.sql(sql)
        found: list[Any] = [relation.describe(**asked), relation.quantile(0.5, ["price"], **asked)]
        found.append(relation.profile(**asked))
        assert "\x1b" not in "".join(str(each) + each._repr_html_() for each in found)


def prepared(fed: tp.Federation, folder: Path) -> None:
    steps = [
        tp.prep.Outliers("iqr", "null", columns=["price"]), tp.prep.Impute("median"),
        tp.prep.Bin(2, "height", columns=["size"]), tp.prep.Polynomial(columns=["price"]), tp.prep.MinMax(),
        tp.prep.OneHot(max_categories=2),
    ]  # fmt: skip
    for sql in (ONE, SEVERAL):
        relation = fed.sql(sql.format("paid"), label="paid", prep=tp.prep.Pipeline(steps))
        tp.LinearRegression(rounds=2).fit(relation).predict(relation)
    labelled = [
        tp.prep.Bin(2, columns=["size"]),
        tp.prep.TargetEncode(columns=["code", "kind"]),
        tp.prep.WOE(columns=["size"]),
    ]
    relation = fed.sql(ONE.format("returned"), label="returned", prep=tp.prep.Pipeline(labelled))
    str(tp.LogisticRegression(rounds=2).fit(relation).encoding_.iv_)


def whole_way(fed: tp.Federation, folder: Path) -> None:
    train, test = fed.sql(ONE.format("returned"), label="returned").split(0.4)
    model = tp.LogisticRegression(rounds=2, l2=0.1).fit(train, validation=test)
    repr(model.coef_)
    model.evaluate(test)
    model.evaluate(test, at_party=True)
    str(model.predict(test, ids=["o.item", "o.day", "i.kind"]))
    model.predict(test, deliver_to="store")
    model.save(folder)
    loaded = tp.load(folder, fed)
    loaded.predict(test)
    repr(loaded.coef_)
    loaded.save(folder.with_suffix(".again"))
    tp.forget(folder, fed)


def fitted(learner: Any, sql: str, label: str) -> Callable[[tp.Federation, Path], None]:
    def use(fed: tp.Federation, folder: Path) -> None:
        relation = fed.sql(sql, label=label)
        model = learner().fit(relation)
        model.evaluate(relation)
        if hasattr(model, "coef_"):
            repr(model.coef_)
        model._model.parameters()
        model.save(folder)
        loaded = tp.load(folder, fed)
        loaded.predict(relation)
        loaded._model.parameters()

    return use


def at_party(fed: tp.Federation, folder: Path) -> None:
    relation = fed.sql(ONE.format("paid"), label="paid")
    tp.LinearRegression(rounds=2, l2=0.1).fit(relation).evaluate(relation, at_party=True)


def restored(fed: tp.Federation, folder: Path) -> None:
    train, test = fed.sql(ONE.format("paid"), label="paid").split(0.5)
    model = tp.MLPRegressor(hidden=(2,), solver="sgd", lr=0.3, rounds=6, patience=5)
    model.fit(train, validation=test).predict(test)


def dated(fed: tp.Federation, folder: Path) -> None:
    relation = fed.sql("SELECT o.price, o.day FROM orders o WHERE o.day < '1970-01-04'", label="day")
    tp.LogisticRegression(rounds=2).fit(relation).evaluate(relation)


def multiplied(fed: tp.Federation, folder: Path) -> None:
    for sql in (ONE.format("paid"), SEVERAL.format("paid")):
        relation = fed.sql(sql)
        matrix = relation.matrix(plan="heuristic")
        matrix.times(np.ones((matrix.shape[1], 2)))
        matrix.transposed_times(np.ones(matrix.shape[0]))
        matrix.column_sums()
        matrix.gram()
        matrix.gram(np.ones(matrix.shape[0]))
        matrix.std(axis=0)
        matrix.max(axis=1)
        matrix.argmin(axis=1)
        relation.matrix(plan="collect").column_sums()
    far = fed.sql(ONE.format("paid"), prep=tp.prep.Pipeline([tp.prep.Map("x + 1000", columns=["price"])]))
    far.matrix(plan="heuristic").std(axis=0)
    kept: Any = fed.sql("SELECT v.price, v.code FROM visits v").matrix(plan="parties")
    tp.linalg.kmeans(kept, k=2, runs=1, max_iter=1)
    vectors = kept @ np.ones((kept.shape[1], 2))
    vectors.sum(axis=0)
    kept.T @ vectors
    np.asarray(vectors)


def searched(fed: tp.Federation, folder: Path) -> None:
    relation = fed.sql("SELECT o.code, i.kind, o.returned FROM orders o JOIN items i USING (item)", label="returned")
    tp.GridSearch(tp.LogisticRegression(rounds=2), {"l2": [0.1, 1.0]}, folds=2).fit(relation)


def boosted(sql: str) -> Callable[[tp.Federation, Path], None]:
    def use(fed: tp.Federation, folder: Path) -> None:
        train, test = fed.sql(sql.format("paid"), label="paid").split(0.3)
        model = tp.GradientBoostingRegressor(max_iter=3, min_samples_leaf=2, max_leaf_nodes=4)
        model.fit(train, validation=test).evaluate(test)
        model._model.parameters()
        model.save(folder)
        tp.load(folder, fed).predict(test)

    return use


USES: dict[str, Callable[[tp.Federation, Path], None]] = {
    "describe": described,
    "explore": explored,
    "noisy statistics": with_noise,
    "prepare": prepared,
    "whole way": whole_way,
    "at party": at_party,
    "dates": dated,
    "best round": restored,
    "matrix": multiplied,
    "search": searched,
    "union": fitted(partial(tp.LinearRegression, rounds=2), SEVERAL.format("paid"), "paid"),
    "consensus": fitted(
        partial(tp.LogisticRegression, rounds=2, inner_rounds=2), SEVERAL.format("returned"), "returned"
    ),
    "secure": fitted(
        partial(tp.LogisticRegression, rounds=2, privacy=tp.Privacy(secure_sum=True)),
        SEVERAL.format("returned"),
        "returned",
    ),
    "sgd": fitted(partial(tp.LogisticRegression, solver="sgd", rounds=2), ONE.format("code"), "code"),
    "sgd of shards": fitted(partial(tp.LinearRegression, solver="sgd", rounds=2), SEVERAL.format("paid"), "paid"),
    **{
        f"network {solver} of {name}": fitted(
            partial(NETWORK, hidden=(2,), solver=solver, rounds=2, **more), sql.format("returned"), "returned"
        )
        for solver, more in (("lbfgs", {}), ("admm", {"local_steps": 2}), ("sgd", {}))
        for name, sql in (("one", ONE), ("several", SEVERAL))
    },
    **{
        f"networks across {name}": fitted(
            partial(tp.SplitNNClassifier, bottom=tp.bottom.mlp((2,), 2), top=(2,), epochs=2),
            sql.format("returned"),
            "returned",
        )
        for name, sql in (("one", ONE), ("several", SEVERAL))
    },
    **{
        f"one message of {name}": fitted(
            partial(ONCE, embedding=2, top=(2,), epochs=2, guest_epochs=2, method=method),
            sql.format("returned"),
            "returned",
        )
        for name, sql, method in (("one", ONE, "nat"), ("several", VISITED, "nat"), ("components", VISITED, "pca"))
    },
    **{
        f"one message with noise, {name}": fitted(
            partial(tp.FedOnceClassifier, bottom=tp.bottom.mlp((2,)), embedding=2, top=(2,), epochs=1, privacy=privacy),
            sql.format("returned"),
            "returned",
        )
        for name, privacy, sql in (("parameters", FEATURES, ONE), ("all", NOISY, ONE), ("several", FEATURES, VISITED))
    },
    **{
        f"TabVFL across {name}": fitted(
            partial(tp.TabVFLClassifier, latent=3, steps=1, pretrain_epochs=1, epochs=1, batch_size=1000),
            sql.format("returned"),
            "returned",
        )
        for name, sql in (("one", ONE), ("several", SEVERAL))
    },
    **{f"trees of {name}": boosted(sql) for name, sql in (("one", ONE), ("several", SEVERAL))},
    "noisy classes": fitted(
        partial(tp.LogisticRegression, rounds=2, privacy=CLASSES), ONE.format("returned"), "returned"
    ),
    "noisy numbers": fitted(partial(tp.LinearRegression, rounds=2, privacy=NUMBERS), ONE.format("paid"), "paid"),
    **{
        f"{name} of {shards}": fitted(partial(learner, privacy=privacy, **settings), sql.format("paid"), "paid")
        for shards, sql in (("one", ONE), ("several", SEVERAL))
        for name, learner, privacy, settings in (
            ("private features", tp.LinearRegression, FEATURES, {"rounds": 2}),
            ("private predictions", tp.LinearRegression, NOISY, {"rounds": 2}),
            ("private steps", tp.LinearRegression, FEATURES, {"rounds": 2, "solver": "sgd", "local_steps": 2}),
            ("private network", tp.MLPRegressor, NOISY, {"rounds": 2, "hidden": (2,), "local_steps": 2}),
        )
    },
}


def values_instead(value: Any, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """What a hostile party may put in the place of a value: of another kind, shape, size or range."""
    strange = [
        None, True, -1, 0, 2**31, 2**63 - 1, -(2**63), 1e308, -1e308, 1e99, 5e-324, float("nan"), float("inf"), "",
        "x\x1b[2J", "9" * 5000, b"", b"\0" * 100, [], [None], [[1], {}], [1, "a", None], {}, {"a": {"b": [1]}},
        np.zeros(0), np.zeros((3, 0, 2)), np.zeros((2, 2), np.uint8), np.full(7, np.nan), np.array(3.0),
    ]  # fmt: skip
    yield from ((f"{each!r:.30}", each) for each in strange)
    if isinstance(value, np.ndarray):
        yield from arrays_instead(value, rng)
    elif isinstance(value, bool | str | bytes):
        yield "twice", value * 2
    elif isinstance(value, int | float):
        yield from ((f"{value} {each:+}", type(value)(value + each)) for each in (-1, 1, 1000))
        yield from ((f"{value} times {each}", value * each) for each in (-1, 0, 1e6, 1e90))
    elif isinstance(value, list):
        yield from (("short", value[:-1]), ("twice", value * 2), ("mixed", [*value[:-1], None]))
        alike: list[Any] = [0, 1.5, "\x1b[2J", float("nan"), [], 2**63]
        yield from ((f"all {each!r}", [each] * len(value)) for each in alike)
    elif isinstance(value, dict):
        same: list[Any] = [0, "", "\x1b", [], 10**6, -1]
        yield from ((f"each {each!r}", dict.fromkeys(value, each)) for each in same)


def arrays_instead(value: Any, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Other arrays: like the one in its place, but for one thing."""
    yield "a list", value.tolist()
    yield "short", value[:-1]
    yield "long", np.concatenate([value, value])
    yield "flat", value.ravel()
    yield "deep", value[..., None]
    yield "turned", value.T
    for kind in (np.float32, np.int64, np.uint8, np.uint64, np.bool_):
        yield f"of {np.dtype(kind)}", np.nan_to_num(value).astype(kind)
    yield "shuffled", rng.permutation(value)
    yield "all alike", np.full_like(value, value.flat[0] if value.size else 0)
    yield "zeros", np.zeros_like(value)
    if value.dtype.kind == "f":
        for factor in (-1.0, 1e-300, 1e3, 1e30, 1e90, 1e99, 1e300, np.inf, np.nan):
            with np.errstate(all="ignore"):
                yield f"times {factor}", value * factor
        for number in (-1.0, 1e99, -1e99, 1e308, np.inf, np.nan):
            changed = value.copy()
            changed[tuple(slice(0, 1) for _ in value.shape)] = number
            yield f"once {number}", changed
        for column in range(value.shape[1] if value.ndim == 2 and value.shape[1] <= 10 else 0):
            for number in (-1.0, 0.0, 1e99, 1e300, np.nan):
                changed = value.copy()
                changed[:, column] = number
                yield f"column {column} {number}", changed
    if value.dtype.kind in "iu":
        for number in (-1, 1, 100, 2**31):
            with np.errstate(all="ignore"):
                yield f"plus {number}", (value.astype(np.int64) + number).astype(value.dtype)
                yield f"all {number}", np.full_like(value, np.int64(number).astype(value.dtype))


def lies_about(part: Mapping[str, Any], rng: np.random.Generator) -> Iterator[tuple[str, Lie]]:
    """All lies about a reply that looks like this one."""
    wholes: list[Any] = [None, [], 3, {}, {"other": 1}, {"a": {"b": 1}}]
    for whole in wholes:
        yield f"is {whole!r}", partial(_is, whole)
    yield "has more", lambda told: {**told, "more": 1}
    yield "has much more", lambda told: {**told, **{f"m{i}": i for i in range(5000)}}
    for name, value in part.items():
        yield f"without {name}", partial(_without, name)
        for how, _ in values_instead(value, rng):
            yield f"{name}: {how}", partial(_with, name, how)


def _is(whole: Any, told: Any) -> Any:
    return whole


def _without(name: str, told: Mapping[str, Any]) -> Any:
    return {each: value for each, value in told.items() if each != name}


def _with(name: str, how: str, told: Mapping[str, Any]) -> Any:
    """The reply of the moment with a value changed in the same way; as it is where that cannot be."""
    if name not in told:
        return told
    instead = values_instead(told[name], np.random.default_rng(0))
    return {**told, name: next((value for other, value in instead if other == how), told[name])}
