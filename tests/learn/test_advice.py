"""What errors of learners, searches and relations advise works, and where scikit-learn does the same, equals it."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import tablepuppet as tp
from tablepuppet.learn.loss.named_metrics import measure
from tablepuppet.learn.registry import LEARNERS, learner
from tests.advice import Advice, check_all_are_tried, said
from tests.advised_shop import Shop
from tests.operators import shop as delivering
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file

torch = pytest.importorskip("torch", reason="networks need the extra `deep`")
NOISY = tp.Privacy(feature_epsilon=50.0, delta=1e-6)
LABEL_NOISE = tp.Privacy(label_epsilon=2.0, label_bounds=(-9.0, 12.0))
STATE = 'state_dir = "state"'
LABELS_TOO = tp.Privacy(
    label_epsilon=2.0, label_classes=(0.0, 1.0), feature_epsilon=20.0, prediction_epsilon=20.0, delta=1e-4
)
PIXELS = "o.price, o.quantity, o.gap, o.cost"


def late(shop: Shop) -> tp.Relation:
    return shop.sql("o.price, o.quantity, o.late", "late")


def rare(shop: Shop) -> tp.Relation:
    return shop.sql("o.price, o.quantity, o.id < 3 AS rare", "rare")


def of(learner: Any, columns: str = "", more: str = "") -> Callable[[Shop], Any]:
    """A fit over the usual columns, or others."""
    return lambda shop: learner.fit(shop.sql(columns, more=more) if columns else shop.sql(more=more))


def standardised(shop: Shop, *names: str) -> Any:
    frame = shop.joined[list(names)]
    return (frame - frame.mean()) / frame.std(ddof=0)


def same(one: Any, other: Any) -> bool:
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return True


def penalised(shop: Shop) -> bool:
    C, rows = 0.5, 120
    found = tp.LogisticRegression(l2=1 / (C * rows)).fit(late(shop))
    known = LogisticRegression(C=C, tol=1e-10).fit(standardised(shop, "price", "quantity"), shop.joined.late)
    return same([each.item() for each in found.coef_.values()], known.coef_[0])


def ridge(shop: Shop) -> bool:
    found = tp.LinearRegression(l2=20.0 / 120).fit(shop.sql("o.price, o.quantity, o.cost"))
    known = Ridge(20.0).fit(standardised(shop, "price", "quantity"), shop.joined.cost)
    return same([each.item() for each in found.coef_.values()], known.coef_)


def log_odds(shop: Shop) -> bool:
    X, y = standardised(shop, "price", "quantity"), shop.joined.late
    model = tp.LogisticRegression(l2=1 / 120).fit(late(shop))
    p = model.predict_proba(late(shop))
    return same(
        np.sort(np.log(p[:, 1] / p[:, 0])), np.sort(LogisticRegression(tol=1e-10).fit(X, y).decision_function(X))
    )


def log_chances(shop: Shop) -> bool:
    X, y = standardised(shop, "price", "quantity"), shop.joined.late
    p = tp.LogisticRegression(l2=1 / 120).fit(late(shop)).predict_proba(late(shop))
    known = LogisticRegression(tol=1e-10).fit(X, y).predict_log_proba(X)
    return same(np.sort(np.log(p), axis=0), np.sort(known, axis=0))


def batches(rows: int, size: int) -> Advice:
    """TabVFL over some rows, by the size of batches that the error names."""

    def fit(shop: Shop, batch_size: Any) -> Any:
        learner = tp.TabVFLRegressor(latent=4, epochs=1, pretrain_epochs=0, batch_size=batch_size)
        return learner.fit(shop.sql(more=f"WHERE o.id < {rows}"))

    def instead(shop: Shop) -> Any:
        with pytest.raises(tp.LearnError) as caught:
            fit(shop, size)
        named = re.search(r"set batch_size to (\d+)", str(caught.value))
        assert named is not None
        return fit(shop, int(named[1])), fit(shop, "auto")

    return Advice("whose variance batch norm needs: set batch_size to", lambda shop: fit(shop, size), instead)


def saved(shop: Shop) -> bool:
    model = tp.LinearRegression().fit(shop.rel)
    model.save(shop.folder / "learned")
    return same(tp.load(shop.folder / "learned", shop.fed).predict(shop.rel), model.predict(shop.rel))


def cross_validated(shop: Shop, relation: tp.Relation, **settings: Any) -> Any:
    learner = tp.LogisticRegression() if relation.query.label and relation.query.label.name == "rare" else None
    return tp.cross_validate(learner or tp.LinearRegression(), relation, **settings)


def searched(shop: Shop, folder: str, *values: float) -> Any:
    return tp.GridSearch(tp.LinearRegression(), {"l2": list(values)}, folds=2, folder=shop.folder / folder).fit(
        shop.rel
    )


def auc(shop: Shop, **settings: Any) -> Any:
    rel, chosen = rare(shop), dict[str, Any](metric="auc", folds=20) | settings
    return tp.GridSearch(tp.LogisticRegression(), {"l2": [1.0]}, **chosen).fit(rel)


def images(shape: tuple[int, ...], columns: str = PIXELS, **settings: Any) -> Callable[[Shop], Any]:
    bottom: Any = tp.bottom.cnn(shape=shape, **settings)
    return lambda shop: tp.SplitNNRegressor(bottom=bottom, epochs=1).fit(shop.sql(columns))


def bank(shop: Shop, learner: Any, limits: str = "", table: str = "", top: str = "") -> Any:
    """A fit over a bank's cards, by its party file."""
    (shop.folder / "state").mkdir(exist_ok=True)
    party = open_party(write_file(shop.folder, limits, table, top=top))
    return learner.fit(policed(party).sql("SELECT credit, open, fraud FROM cards", label="fraud"))


def by_number(says: str, number: str, learner: Callable[[int], Any], first: int, **policy: str) -> Advice:
    """A setting that is too large for a policy, and the number that the error names for it."""

    def instead(shop: Shop) -> Any:
        with pytest.raises(tp.TablePuppetError) as caught:
            bank(shop, learner(first), **policy)
        named = re.search(number, str(caught.value))
        assert named is not None
        return bank(shop, learner(int(named[1])), **policy)

    return Advice(says, lambda shop: bank(shop, learner(first), **policy), instead)


def labelled(columns: str, learner: Any, **noise: Any) -> Callable[[Shop], Any]:
    """A fit with noise on the label of a bank, whose party file says this of columns."""

    def fit(shop: Shop) -> Any:
        party = open_party(write_file(shop.folder, columns=f'credit = "feature"\n{columns}'))
        rel = policed(party).sql("SELECT credit, fraud FROM cards", label="fraud")
        return learner(privacy=tp.Privacy(label_epsilon=2.0, **noise)).fit(rel)

    return fit


def home(shop: Shop, **asked: Any) -> Any:
    """Predictions for a store that takes them home."""
    folder = shop.folder / "home"
    folder.mkdir(exist_ok=True)
    keys = 'predictions = { keys = ["order_id"], file = "home.parquet" }'
    rel = delivering.shop(folder, keys, 'deliver = ["store"]').sql(delivering.SQL, label="returned")
    return tp.LogisticRegression().fit(rel).predict(rel, **asked)


def earlier(shop: Shop, name: str) -> bool:
    """Predictions beside those of an earlier model, which are a column of the table."""
    rows = {"a": [1.0, 2.0, 4.0], "b": [1.0, 3.0, 5.0], "prediction": [7.0, 8.0, 9.0]}
    rel = tp.Federation({"p": {"t": rows}}, verbose=False).sql("SELECT a, b FROM t", label="b")
    model = tp.LinearRegression().fit(rel)
    found = model.predict(rel, ids=[name])
    return same(found["prediction"], model.predict(rel)) and same(np.sort(found[name]), [7.0, 8.0, 9.0])


def prepared(shop: Shop, settings: dict[str, Any]) -> Any:
    """A search over pipelines; that of the relation has two steps of one kind."""
    rel = shop.sql(
        "o.price, o.quantity, o.cost",
        prep=tp.prep.Pipeline([tp.prep.Bin(columns=["price"]), tp.prep.Bin(columns=["quantity"])]),
    )
    return tp.GridSearch(tp.LinearRegression(), settings, folds=2).fit(rel).best_params_


def nearly_equal(shop: Shop, second: str) -> Any:
    """A model of two columns that differ by a ten millionth, which decides about the label."""
    rng = np.random.default_rng(0)
    one, apart, noise = rng.normal(size=(3, 300))
    rows = {"a": one, "b": one + 1e-7 * apart, "y": one + apart + 0.1 * noise}
    found: list[tp.Event] = []
    fed = tp.Federation({"p": {"t": rows}}, verbose=False, callbacks=[found.append])
    rel = fed.sql(f"SELECT a, {second}, y FROM t", label="y")
    model = tp.LinearRegression(l2=0.0).fit(rel)
    for event in found:
        if event.name == "fit.short":
            assert (model.stopped_, model.converged_) == ("no step gains", False)
            said(event.message)
    best = np.linalg.lstsq(np.c_[np.ones(300), one, (rows["b"] - one) * 1e7], rows["y"], rcond=None)[1]
    return same(model.evaluate(rel)["rmse"] ** 2 * 300, best)


def own_learner(shop: Shop, decorated: bool) -> bool:
    class Own(tp.LinearRegression):
        """A learner of the user's own."""

    try:
        model = (learner(Own) if decorated else Own)().fit(shop.rel)
        model.save(shop.folder / "own")
        return same(tp.load(shop.folder / "own", shop.fed).predict(shop.rel), model.predict(shop.rel))
    finally:
        LEARNERS.pop("Own", None)


def of_a_module(shop: Shop, imported: bool) -> bool:
    """A model of a class in a module of the user's own, loaded where this was not imported."""
    (shop.folder / "modular.py").write_text(
        "import tablepuppet as tp\nfrom tablepuppet.learn.registry import learner\n\n"
        "@learner\nclass Modular(tp.LinearRegression):\n    pass\n"
    )
    sys.path.insert(0, str(shop.folder))
    try:
        model = importlib.import_module("modular").Modular().fit(shop.rel)
        model.save(shop.folder / "modular")
        del sys.modules["modular"], LEARNERS["Modular"]
        if imported:
            importlib.import_module("modular")
        return same(tp.load(shop.folder / "modular", shop.fed).predict(shop.rel), model.predict(shop.rel))
    finally:
        sys.path.remove(str(shop.folder))
        sys.modules.pop("modular", None)
        LEARNERS.pop("Modular", None)


def summarised(shop: Shop, *rows: Any) -> Any:
    tp.LinearRegression(l2=0.0).fit(shop.rel).save(shop.folder / "summarised")
    return tp.load(shop.folder / "summarised", shop.fed).summary(*rows)


def registered(shop: Shop, *, here: bool) -> Any:
    if here:
        tp.bottom.register("straight", lambda width, outputs: torch.nn.Linear(width, outputs))
    return tp.SplitNNRegressor(bottom=tp.bottom.registered("straight", 2), epochs=1).fit(shop.rel)


BOUNDED = "fraud = { uses = ['label'], bounds = [0, 1] }"
SPLIT = tp.SplitNNClassifier
WIDTH = "embeddings = { max_width = 2, max_epochs = 100 }"
EPOCHS = "embeddings = { max_width = 64, max_epochs = 3 }"
DEMANDS = "budget = { epsilon = 100.0, delta = 1e-3, require_dp = true }"
CASES = [
    Advice(
        "their difference instead of one of them",
        partial(nearly_equal, second="b"),
        partial(nearly_equal, second="b - a AS apart"),
    ),
    by_number(
        "or less",
        r"set rounds=(\d+) or less",
        lambda rounds: tp.LogisticRegression(solver=tp.SGD(batch_size=20), rounds=rounds),
        500,
        limits="max_prediction_rounds = 30",
    ),
    by_number(
        "set embedding to so many",
        r"at most (\d+) numbers",
        lambda width: SPLIT(bottom=tp.bottom.mlp(hidden=(4,), embedding=width), epochs=1),
        8,
        table=WIDTH,
    ),
    by_number(
        "make batch_size larger than",
        r"set epochs to (\d+) or less",
        lambda epochs: SPLIT(bottom=tp.bottom.mlp(hidden=(4,), embedding=2), epochs=epochs),
        50,
        table=EPOCHS,
    ),
    Advice(
        "does not release EMBEDDINGS; use tp.MLP*",
        lambda shop: bank(shop, SPLIT(epochs=1)),
        lambda shop: bank(shop, tp.MLPClassifier(hidden=(2,), rounds=2)),
    ),
    Advice(
        "its policy demands differential privacy; learn with",
        lambda shop: bank(shop, tp.LogisticRegression(), "", DEMANDS, STATE),
        lambda shop: bank(shop, tp.LogisticRegression(privacy=LABELS_TOO), "", DEMANDS, STATE),
    ),
    Advice(
        "give by or stratify: groups and times stay together",
        lambda shop: rare(shop).split(by="quantity", stratify=True),
        lambda shop: [rare(shop).split(by="quantity"), rare(shop).split(stratify=True)],
    ),
    Advice(
        "bounds and max_times are for noise: set privacy=tp.Privacy(feature_epsilon=...) too",
        lambda shop: shop.sql("o.price", None).describe(bounds={"price": (0, 9)}),
        lambda shop: shop.sql("o.price", None).describe(bounds={"price": (0, 9)}, privacy=NOISY),
    ),
    Advice(
        "the query has no label: name a selected column",
        lambda shop: shop.sql(label=None).label(),
        lambda shop: same(np.sort(shop.sql(label="cost").label()), np.sort(shop.joined.cost)),
    ),
    Advice(
        "split: stratify needs a label: name a selected column",
        lambda shop: shop.sql("o.price, o.kind", None).split(stratify=True),
        lambda shop: sum(map(len, shop.sql("o.price, o.kind", "kind").split(stratify=True))) == 120,
    ),
    Advice(
        "shards send sums only: take plan=",
        lambda shop: shop.rel.matrix(plan="collect", secure_sum=True),
        lambda shop: [shop.rel.matrix(plan=plan) for plan in ("cost", "heuristic", "parties")],
    ),
    Advice("l2 = 1 / (C N) over N joined rows", lambda _: tp.LogisticRegression(C=0.5), penalised),
    Advice("l2 = alpha / N over N joined rows for Ridge", lambda _: tp.LinearRegression(alpha=20.0), ridge),
    Advice(
        "here it is 'candidates'",
        lambda _: tp.RandomSearch(tp.LinearRegression(), {"l2": [1.0]}, n_iter=2),  # type: ignore[call-arg]
        lambda shop: (
            len(
                tp.RandomSearch(tp.LinearRegression(), {"l2": [1.0, 2.0, 3.0]}, candidates=2, folds=2, halving=False)
                .fit(shop.rel)
                .results_.to_arrow()
            )
            == 2
        ),
    ),
    Advice("write np.log(p[:, 1] / p[:, 0])", lambda shop: tp.LogisticRegression().decision_function, log_odds),
    Advice(
        "write np.log(model.predict_proba(relation))", lambda _: tp.LogisticRegression().predict_log_proba, log_chances
    ),
    Advice(
        "write rel.crosstab(column, another), whose sums they are",
        lambda shop: shop.rel.value_counts(),
        lambda shop: same(
            np.sort(shop.rel.crosstab("city", "brand").counts.sum(axis=1)), np.sort(shop.joined.city.value_counts())
        ),
    ),
    Advice(
        "write rel.correlation()",
        lambda shop: shop.rel.corr(),
        lambda shop: same(shop.rel.correlation()["price", "cost"], shop.joined.price.corr(shop.joined.cost)),
    ),
    Advice(
        "write rel.covariance()",
        lambda shop: shop.rel.cov(),
        lambda shop: same(shop.rel.covariance()["price", "cost"], shop.joined.price.cov(shop.joined.cost)),
    ),
    Advice(
        "write rel.group_means(column, by)",
        lambda shop: shop.rel.groupby("city"),
        lambda shop: same(
            sorted(shop.rel.group_means("price", "city").to_arrow()["mean"].to_pylist()),
            sorted(shop.joined.groupby("city").price.mean()),
        ),
    ),
    Advice(
        "use a regressor, or make classes of it in SELECT, by CASE",
        of(tp.LogisticRegression()),
        lambda shop: [
            tp.LinearRegression().fit(shop.rel),
            tp.LogisticRegression().fit(shop.sql("o.price, CASE WHEN o.cost > 1 THEN 1 ELSE 0 END AS high", "high")),
        ],
    ),
    Advice(
        "name one: fed.sql(..., label='column')",
        lambda shop: tp.LinearRegression().fit(shop.sql(label=None)),
        lambda shop: tp.LinearRegression().fit(shop.sql(label="cost")),
    ),
    Advice(
        "use 'auto', 'sgd' or 'admm'",
        of(tp.MLPRegressor(hidden=(2,), solver="lbfgs", privacy=NOISY)),
        lambda shop: [
            tp.MLPRegressor(hidden=(2,), solver=solver, rounds=1, privacy=NOISY).fit(shop.rel)
            for solver in ("auto", "sgd", "admm")
        ],
    ),
    *(batches(rows, size) for rows, size in ((13, 3), (7, 2), (120, 7))),
    Advice(
        "choose latent={} or more".partition("{}")[0],
        of(tp.TabVFLRegressor(latent=1, epochs=1, pretrain_epochs=0)),
        of(tp.TabVFLRegressor(latent=2, epochs=1, pretrain_epochs=0)),
    ),
    Advice(
        "set rounds=1, or noise=0",
        of(tp.FedOnceRegressor(noise=0.1, rounds=2)),
        lambda shop: [
            tp.FedOnceRegressor(noise=noise, rounds=rounds).fit(shop.rel) for noise, rounds in ((0.1, 1), (0.0, 2))
        ],
    ),
    Advice(
        "use tp.MLPClassifier or tp.MLPRegressor (with noise also FedOnce)",
        of(tp.SplitNNRegressor(privacy=NOISY)),
        of(tp.MLPRegressor(hidden=(2,), rounds=1, privacy=NOISY)),
    ),
    Advice(
        "stands beside solver={}: write ".partition("{}")[0],
        of(tp.MLPRegressor(solver=tp.SGD(), batch_size=30)),
        of(tp.MLPRegressor(solver=tp.SGD(batch_size=30), rounds=2)),
    ),
    Advice(
        "set privacy=tp.Privacy(label_epsilon=...) too",
        lambda shop: tp.LogisticRegression(label_correction=True).fit(late(shop)),
        lambda shop: tp.LogisticRegression(
            label_correction=True, privacy=tp.Privacy(label_epsilon=2.0, label_classes=(False, True))
        ).fit(late(shop)),
    ),
    Advice(
        "without noise; leave it at True",
        of(tp.LinearRegression(reduce=False, privacy=NOISY)),
        of(tp.LinearRegression(reduce=True, privacy=NOISY)),
    ),
    Advice(
        "stratified: a class has {} rows, fewer than {} folds; take fewer folds".rpartition("{}")[2],
        lambda shop: cross_validated(shop, rare(shop), folds=5, stratified=True),
        lambda shop: cross_validated(shop, rare(shop), folds=3, stratified=True),
    ),
    Advice(
        "has too few different values for",
        lambda shop: cross_validated(shop, shop.sql("o.price, o.quantity, o.cost"), folds=8, time="quantity"),
        lambda shop: cross_validated(shop, shop.sql("o.price, o.quantity, o.cost"), folds=3, time="quantity"),
    ),
    Advice(
        "give groups or stratified or time",
        lambda shop: cross_validated(shop, rare(shop), folds=2, groups="quantity", stratified=True),
        lambda shop: cross_validated(shop, rare(shop), folds=2, stratified=True),
    ),
    Advice(
        "set feature_epsilon too, 1 is usual",
        of(tp.LinearRegression(privacy=tp.Privacy(prediction_epsilon=1.0))),
        of(tp.LinearRegression(privacy=tp.Privacy(prediction_epsilon=1.0, feature_epsilon=1.0))),
    ),
    Advice(
        "this tp.Privacy promises nothing: set label_epsilon",
        of(tp.LinearRegression(privacy=tp.Privacy())),
        lambda shop: [tp.LinearRegression(privacy=each).fit(shop.rel) for each in (LABEL_NOISE, NOISY, None)],
    ),
    Advice(
        "use so many or less, or leave it at its ",
        of(tp.MLPRegressor(hidden=(2,), solver=tp.SGD(batch_size=500), privacy=NOISY)),
        of(tp.MLPRegressor(hidden=(2,), solver=tp.SGD(batch_size=12), rounds=1, privacy=NOISY)),
    ),
    Advice(
        "that do not come from the data: give them",
        lambda shop: tp.LogisticRegression(privacy=tp.Privacy(label_epsilon=2.0)).fit(late(shop)),
        lambda shop: tp.LogisticRegression(privacy=tp.Privacy(label_epsilon=2.0, label_classes=(False, True))).fit(
            late(shop)
        ),
    ),
    Advice(
        "which would reveal it without noise; leave it out there",
        of(tp.LinearRegression(privacy=LABEL_NOISE), more="WHERE o.cost > 0"),
        of(tp.LinearRegression(privacy=LABEL_NOISE)),
    ),
    Advice(
        "give a list of values to try for",
        of(tp.GridSearch(tp.LinearRegression(), {"l2": 1.0}, folds=2)),  # type: ignore[dict-item]
        of(tp.GridSearch(tp.LinearRegression(), {"l2": [1.0]}, folds=2)),
    ),
    Advice(
        "RandomSearch: give a list of values for",
        of(tp.RandomSearch(tp.LinearRegression(), {"l2": 1.0}, folds=2)),
        of(tp.RandomSearch(tp.LinearRegression(), {"l2": [1.0]}, candidates=1, folds=2)),
    ),
    Advice(
        "take fewer folds, stratified=True, or another metric",
        auc,
        lambda shop: [auc(shop, folds=3, stratified=True), auc(shop, metric="log_loss")],
    ),
    Advice(
        "name another folder, or remove it",
        lambda shop: [searched(shop, "search", 1.0), searched(shop, "search", 2.0)],
        lambda shop: searched(shop, "another", 2.0),
    ),
    Advice(
        "lower lr, or leave it at 'auto'",
        of(tp.MLPRegressor(hidden=(2,), solver=tp.SGD(lr=1e6))),
        lambda shop: [
            tp.MLPRegressor(hidden=(2,), solver=solver, rounds=2).fit(shop.rel)
            for solver in (tp.SGD(lr=1e-3), tp.SGD())
        ],
    ),
    Advice(
        "Write model.save(folder) and tp.load(folder, fed)",
        lambda shop: pickle.dumps(tp.LinearRegression().fit(shop.rel)),
        saved,
    ),
    Advice(
        "select the pixels, row by row, or change shape",
        images((4, 4)),
        images((2, 2), "o.price, o.quantity, o.gap, o.id, o.cost", channels=(2,)),
    ),
    Advice(
        "to nothing: take fewer channels",
        images((2, 2), "o.price, o.quantity, o.gap, o.id, o.cost", channels=(2, 2, 2)),
        images((2, 2), "o.price, o.quantity, o.gap, o.id, o.cost", channels=(2,)),
    ),
    Advice(
        "call fit with a relation first",
        lambda shop: tp.LinearRegression().predict(shop.rel),
        lambda shop: tp.LinearRegression().fit(shop.rel).predict(shop.rel).shape == (120,),
    ),
    Advice(
        "the policy has other ",
        labelled(BOUNDED, tp.LinearRegression, label_bounds=(0.0, 2.0)),
        labelled(BOUNDED, tp.LinearRegression),
    ),
    Advice(
        "two of the label classes are the same value; list each once",
        labelled("fraud = 'label'", tp.LogisticRegression, label_classes=("0", "1", "1.0")),
        labelled("fraud = 'label'", tp.LogisticRegression, label_classes=(0.0, 1.0)),
    ),
    Advice(
        "which the label classes do not fit; list values of it",
        labelled("fraud = 'label'", tp.LogisticRegression, label_classes=("no", "yes")),
        labelled("fraud = 'label'", tp.LogisticRegression, label_classes=(0.0, 1.0)),
    ),
    Advice(
        "set prediction_epsilon (which is counted",
        of(tp.FedOnceRegressor(noise=0.1, privacy=NOISY)),
        of(tp.FedOnceRegressor(privacy=tp.Privacy(feature_epsilon=50.0, prediction_epsilon=5.0, delta=1e-6))),
    ),
    Advice(
        "; name such a file, not ",
        lambda shop: tp.LinearRegression().fit(shop.rel).plot(shop.folder / "fit.jpeg"),
        lambda shop: [
            tp.LinearRegression().fit(shop.rel).plot(shop.folder / f"fit.{kind}") for kind in ("png", "svg", "pdf")
        ],
    ),
    Advice(
        "give ids or deliver_to",
        lambda shop: home(shop, ids=["o.order_id"], deliver_to="store"),
        lambda shop: len(home(shop, ids=["o.order_id"])) == 120 and home(shop, deliver_to="store")["written"] == 120,
    ),
    Advice(
        "name the id's alias too",
        lambda shop: earlier(shop, "prediction"),
        lambda shop: earlier(shop, "t.prediction"),
    ),
    Advice(
        "prep: give pipelines to try",
        lambda shop: prepared(shop, {"prep": ["Bin"]}),
        lambda shop: prepared(shop, {"prep": [tp.prep.Pipeline([tp.prep.Bin(columns=["price"])])]}),
    ),
    Advice(
        "several; say which one by its place from 0",
        lambda shop: prepared(shop, {"prep__Bin__n": [3]}),
        lambda shop: prepared(shop, {"prep__0__n": [3]}) == {"prep__0__n": 3},
    ),
    Advice(
        "a loaded model has no rows of its own: give summary a relation",
        lambda shop: said(summarised(shop)),
        lambda shop: str(summarised(shop, shop.rel)) == str(tp.LinearRegression(l2=0.0).fit(shop.rel).summary()),
    ),
    Advice(
        "a round of lbfgs may need ",
        lambda shop: bank(shop, tp.MLPClassifier(hidden=(2,)), "max_prediction_rounds = 5"),
        lambda shop: bank(shop, tp.MLPClassifier(hidden=(2,), solver="admm"), "max_prediction_rounds = 5"),
    ),
    Advice(
        "metrics are not negated here: write ",
        lambda shop: tp.LogisticRegression().fit(late(shop)).evaluate(late(shop), metrics=["neg_log_loss"]),
        lambda shop: (
            dict(tp.LogisticRegression().fit(late(shop)).evaluate(late(shop), metrics=["log_loss"]))["log_loss"] > 0
        ),
    ),
    Advice(
        "is of two classes, and there are ",
        lambda _: measure(["f1"], np.arange(3), np.eye(3), np.arange(3), None),
        lambda _: measure(["f1_macro"], np.arange(3), np.eye(3), np.arange(3), None)["f1_macro"] == 1.0,
    ),
    Advice(
        "has its own metrics: leave out metrics and threshold, or at_party",
        lambda shop: tp.LogisticRegression().fit(late(shop)).evaluate(late(shop), metrics=["f1"], at_party=True),
        lambda shop: tp.LogisticRegression().fit(late(shop)).evaluate(late(shop), metrics=["f1"]),
    ),
    Advice(": tp.bottom.register it", partial(registered, here=False), partial(registered, here=True)),
    Advice(
        "decorate the class with @learner",
        partial(own_learner, decorated=False),
        partial(own_learner, decorated=True),
    ),
    Advice(
        "import the module that has the class",
        partial(of_a_module, imported=False),
        partial(of_a_module, imported=True),
    ),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_returns_what_was_asked_for(shop: Shop, case: Advice) -> None:
    """The same as scikit-learn and pandas return, where they do the same; else it works."""
    case.follow(shop)


PART = "a part of another text, whose case names it"
NOTHING_ASKED = "what it advises is to ask for less"
SERVICES = "needs services that keep parts of models"
OWN_REQUEST = "an analyst's own request, which this package does not write so"
TREES = "refused and followed in tests/learn/test_trees.py"
OTHERS = {
    "{}: remove it, and the search begins anew": "refused in tests/learn/test_search.py",
    "or of no class that the model knows; filter such rows in WHERE": "as labels that are missing, of prep",
    "{}: column {} {}; CAST it in SELECT": "as columns of statistics, of prep",
    "has NaN values; filter them in WHERE": "as columns of statistics, of prep",
    "has no private form yet: leave privacy at None": NOTHING_ASKED,
    "leave one of them out": NOTHING_ASKED,
    "has no joined rows; take fewer folds": "as stratified folds",
    "kept: round {}": "no refusal",
    "the relation has feature values that are not finite": "as columns of pipelines, of prep",
    "{} has feature values that are not finite": "as columns of pipelines, of prep",
    "cannot be fitted with noise on features: leave feature_epsilon out": NOTHING_ASKED,
    "cannot be written ({}); name another one": "a folder that the user may not write, which root may",
    "errors are too large to be added up; learn the label in a larger unit": "as labels that are too large, of prep",
    "take another solver": PART,
    "set {} above {}": "what a warning says after a fit, not a refusal",
    "warm_start goes on over the relation of the fit before": TREES,
    "warm_start: the model has {} rounds; set {} above that": TREES,
    "export: name the file .json": TREES,
    "lower max_leaf_nodes or max_depth": PART,
    "have no form with noise; leave feature_epsilon out": NOTHING_ASKED,
    "leave out the prep steps of its numbers, or write them in SELECT": "refused in tests/learn/test_trees.py",
    "set rounds above {}": "what a warning says after a fit, not a refusal",
    "set epochs above {}, or to 'auto'": "what a warning says after a fit, not a refusal",
    "inner_rounds: consensus releases parameters without noise": "as reduce=False",
    "make batch_size larger": PART,
    "set epochs to {} or less": PART,
    "select columns that are not constant": NOTHING_ASKED,
    "which batch norm needs: learn from more": NOTHING_ASKED,
    "TabVFL needs {}, as many as there are encoded columns: select fewer": "as embeddings that are too wide",
    "prediction_epsilon is about predictions only": "the same of promises that are written anew",
    "learn with privacy=tp.Privacy(secure_sum=True)": "needs three services",
    "is too small for {} steps: use more": "by how much depends on the accountant",
    "clip_norm={} cuts rows' gradients": "what a warning says after a fit, not a refusal",
    "is not known; use {allowed}": "names all that are known",
    "set kind to one of {}": "names all that are known",
    "select as many, all numbers, row by row, or change shape": "the same at a party",
    "choose a larger batch_size": "the same at a party",
    "nothing is known of the size of predictions: say a bound": OWN_REQUEST,
    "predict over that shard alone, or fit it again over all": SERVICES,
    "set method='nat', or ask its operator for matrix = true": "of shards that are services: tests of FedOnce",
    "write len(rel), rel.columns": "what it has instead has another form",
    "write it in SQL: fed.sql(...)": "what it has instead has another form",
}


def test_every_advice_is_tried() -> None:
    """An error of the package that advises something has a case, or it is said why not."""
    check_all_are_tried(["learn", "relation.py", "spelling.py"], CASES, OTHERS)
