"""Boosted trees over relations: split by split those of a plain reference on the materialised join."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import mean_pinball_loss
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import tablepuppet as tp
from tablepuppet.learn.trees.model import TreeModel
from tablepuppet.learn.trees.party import pooled
from tablepuppet.learn.trees.permuted import changes
from tablepuppet.learn.trees.splits import LEAST_CATEGORY, LEAST_HESSIAN, SMOOTH, SplitRule
from tablepuppet.learn.trees.tree import Tree
from tests.learn.materialised import JOIN, shop
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.relations import Parties, federation, materialised, record_wire, write_party
from tests.test_canary import assert_unseen, flat
from tests.wire.losing import losing
from tests.wire.services import calling, served

Array = NDArray[np.float64]
COLUMNS = ("o.price", "o.quantity", "i.weight", "i.height", "i.kind", "i.colour", "c.credit", "c.age")
SELECT = f"SELECT {', '.join(COLUMNS)}, o.{{0}} {JOIN}"
UNION = f"{SELECT} WHERE o.quantity > 2 UNION ALL {SELECT} WHERE o.price > 6"


class Reference:
    """The joined rows as columns, and the best gain of any node, by loops over columns and bins."""

    def __init__(self, relation: tp.Relation, parties: Parties, model: Any, bins: int):
        self.columns = {name: materialised(relation, parties, *name.split(".")) for name in COLUMNS}
        self.labels = np.array(materialised(relation, parties, "o", relation.query.label.name))  # type: ignore[union-attr]
        self.categories = {"i.kind", "i.colour"}
        self.cuts: dict[str, Array] = {}
        trees: TreeModel = model._model
        for name in COLUMNS:
            if name in self.categories:
                continue
            alias = name.split(".")[0]
            if alias in trees.binned:
                names = [each.column.qualified for each in model.encoding_.numbers[alias]]
                self.cuts[name] = trees.binned[alias].cuts[names.index(name)]
                continue
            values = np.sort([value for value in self.columns[name] if value is not None])
            distinct = np.unique(values)
            below = distinct[:-1]
            if len(distinct) > bins:
                wanted = np.quantile(values, np.arange(1, bins) / bins, method="inverted_cdf")
                below = np.intersect1d(wanted, distinct[:-1])
            after = distinct[np.searchsorted(distinct, below) + 1]
            self.cuts[name] = (below + after) / 2

    def best(self, name: str, inside: NDArray[np.bool_], slopes: Array, bends: Array, rule: SplitRule) -> float:
        """The largest gain by one column of the rows of a node."""
        values = [self.columns[name][row] for row in np.flatnonzero(inside)]
        sums = np.stack([slopes[inside], bends[inside], np.ones(len(values))])
        missing = np.array([value is None for value in values])
        groups: list[NDArray[np.bool_]] = []  # left sides, missing values apart
        if name in self.categories:
            found = {value: np.array([each == value for each in values]) for value in {*values} - {None}}
            kept = {value: mask for value, mask in found.items() if mask.sum() >= LEAST_CATEGORY}
            missing = ~np.logical_or.reduce([np.zeros(len(values), bool), *kept.values()])
            key = {value: sums[0, mask].sum() / (sums[1, mask].sum() + SMOOTH) for value, mask in kept.items()}
            order = sorted(kept, key=key.__getitem__)
            groups = [np.logical_or.reduce([kept[each] for each in order[: n + 1]]) for n in range(len(order))]
        else:
            numbers = np.array([np.nan if value is None else float(value) for value in values])
            groups = [numbers <= cut for cut in [*self.cuts[name], np.inf]]
        gain = -np.inf
        for group in groups:
            for left in (group, group | missing):
                sides = [sums[:, left].sum(axis=1), sums[:, ~left].sum(axis=1)]
                if all(side[2] >= rule.min_leaf and side[1] >= LEAST_HESSIAN for side in sides):
                    whole = sums.sum(axis=1)
                    parts = [side[0] ** 2 / (side[1] + rule.l2) for side in (*sides, whole)]
                    gain = max(gain, parts[0] + parts[1] - parts[2])
        return gain


def nodes_of(tree: Tree, model: Any, relation: tp.Relation) -> list[NDArray[np.bool_]]:
    """Which joined rows are in each node, by the bits that parties answer with."""
    bits, _ = model._model.bits(relation.client)()
    inside = [np.zeros(len(relation), bool) for _ in tree.tables]
    inside[0][:] = True
    for node in tree.inner:
        alias, split = model._model.aliases[tree.tables[node]], int(tree.splits[node])
        left = (bits[alias][:, split >> 3] >> (split & 7) & 1).astype(bool)
        at = relation.joined_rows.mapping.gather(alias, left)
        inside[tree.left[node]], inside[tree.right[node]] = inside[node] & at, inside[node] & ~at
    return inside


def check(model: Any, relation: tp.Relation, parties: Parties, rule: SplitRule, bins: int) -> None:
    """Every split has the largest gain of all columns and bins; the best nodes are split; leaves have their values."""
    known = Reference(relation, parties, model, bins)
    outputs, rate = len(model.intercept_), model.learning_rate
    scores = np.tile(model.intercept_, (len(relation), 1))
    for trees in model._model.forest:
        slopes, bends = derivatives(model, known.labels, scores)
        for output, tree in enumerate(trees):
            inside = nodes_of(tree, model, relation)
            best = [
                max(known.best(name, here, slopes[:, output], bends[:, output], rule) for name in COLUMNS)
                for here in inside
            ]
            depth = np.zeros(len(inside), int)
            for node in tree.inner:
                depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
                assert tree.gains[node] == pytest.approx(best[node], rel=1e-9)
            for node, here in enumerate(inside):
                assert tree.counts[node] == here.sum()
            parent = {int(child): int(n) for n in tree.inner for child in (tree.left[n], tree.right[n])}
            for leaf in tree.leaves:
                here = inside[leaf]
                value = -slopes[here, output].sum() / (bends[here, output].sum() + rule.l2)
                assert tree.values[leaf] == pytest.approx(rate * value, rel=1e-9, abs=1e-12)
                scores[here, output] += tree.values[leaf]
                if model.max_depth is None or depth[leaf] < model.max_depth:
                    later = tree.gains[[n for n in tree.inner if n > parent.get(int(leaf), -1)]]
                    full = model.max_leaf_nodes is not None and len(tree.leaves) == model.max_leaf_nodes
                    assert best[leaf] <= (later.min(initial=np.inf) if full else 0.0) + 1e-9
    np.testing.assert_allclose(model._scores(relation).reshape(scores.shape), scores, rtol=1e-9)
    assert outputs == scores.shape[1]


def derivatives(model: Any, labels: NDArray[Any], scores: Array) -> tuple[Array, Array]:
    """Gradient and Hessian of each row and score."""
    if not hasattr(model, "classes_"):
        return (scores[:, 0] - labels)[:, None], np.ones_like(scores)
    numbers = np.searchsorted(model.classes_, labels)
    chance = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    wanted = (numbers == 1)[:, None] if scores.shape[1] == 1 else np.eye(scores.shape[1])[numbers]
    return chance - wanted, chance * (1 - chance)


@pytest.mark.parametrize(
    ("shards", "sql", "label", "settings"),
    [
        (1, SELECT, "paid", {"max_leaf_nodes": 9}),
        (1, UNION, "grade", {"max_depth": 2}),
        (3, SELECT, "returned", {"max_leaf_nodes": 5, "l2_regularization": 2.0}),
        (3, UNION, "paid", {"max_leaf_nodes": None, "max_depth": 3}),
    ],
)
def test_trees_are_those_of_the_joined_table(
    tmp_path: Path, shards: int, sql: str, label: str, settings: dict[str, Any]
) -> None:
    """Over duplicates, shards, unions, missing values and categories, for numbers, two and several classes."""
    parties = shop(shards, together=shards > 1, orders=240)
    fed = federation(tmp_path, parties, wire="float64")
    relation = fed.sql(sql.format(label), label=label)
    made: Any = tp.GradientBoostingRegressor if label == "paid" else tp.GradientBoostingClassifier
    model = made(max_iter=3, max_bins=12, min_samples_leaf=7, **settings).fit(relation)
    check(model, relation, parties, SplitRule(settings.get("l2_regularization", 0.0), 7, 0.0), 12)
    importances = model.feature_importances_
    assert set(importances) == set(COLUMNS)
    assert sum(importances.values()) == pytest.approx(1.0)
    assert all(node["column"] is None or node["column"] in COLUMNS for tree in model.trees_ for node in tree)
    before = model.predict(relation)
    model.save(tmp_path / "model")
    again: Any = tp.load(tmp_path / "model", fed)
    np.testing.assert_array_equal(again.predict(relation), before)
    assert again.feature_importances_ == importances
    again.save(tmp_path / "again")
    assert tp.load(tmp_path / "again", fed).predict(relation).tolist() == before.tolist()


NUMBERS = ("o.price", "i.weight", "c.credit", "c.age")
PLAIN = f"SELECT {', '.join(NUMBERS)}, o.{{0}} {JOIN} WHERE o.price IS NOT NULL"
STATE = 'state_dir = "state"'
FEW: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 6, "min_samples_leaf": 15}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[tp.Federation, Parties]:
    parties = shop()
    return federation(tmp_path_factory.mktemp("shop"), parties, wire="float64"), parties


def joined(relation: tp.Relation, parties: Parties, label: str) -> tuple[Array, NDArray[Any]]:
    """The numbers of the joined rows, and their label."""
    columns = [materialised(relation, parties, *name.split(".")) for name in NUMBERS]
    return np.array(columns, float).T, np.array(materialised(relation, parties, "o", label))


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "absolute_error"},
        {"loss": "quantile", "quantile": 0.8},
        {"loss": "poisson"},
        {"loss": "gamma", "l2_regularization": 1.0},
        {"monotonic_cst": {"o.price": 1, "c.age": -1}},
        {"interaction_cst": [["price", "age"], ["i.weight"]]},
    ],
)
def test_regressors_are_those_of_scikit_learn(store: tuple[tp.Federation, Parties], settings: dict[str, Any]) -> None:
    """Every loss and constraint: the predictions of HistGradientBoosting on the joined table."""
    fed, parties = store
    relation = fed.sql(PLAIN.replace("o.{0}", "exp(o.paid) AS paid"), label="paid")
    table, labels = joined(relation, parties, "paid")
    model: Any = tp.GradientBoostingRegressor(**FEW, **settings).fit(relation)
    theirs = dict(settings)
    if "monotonic_cst" in settings:
        theirs["monotonic_cst"] = [1, 0, 0, -1]
    if "interaction_cst" in settings:
        theirs["interaction_cst"] = [{0, 3}, {1}]
    same = HistGradientBoostingRegressor(**FEW, **theirs, early_stopping=False).fit(table, np.exp(labels))
    found, expected = model.predict(relation), same.predict(table)
    if "loss" in settings and settings["loss"] in ("absolute_error", "quantile"):  # many splits gain the same
        part = settings.get("quantile", 0.5)
        both = [mean_pinball_loss(np.exp(labels), each, alpha=part) for each in (found, expected)]
        assert both[0] == pytest.approx(both[1], rel=0.05)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert model.stopped_ == "done"


@pytest.mark.parametrize(("label", "weight"), [("returned", {True: 3.0}), ("grade", None), ("grade", "balanced")])
def test_classifiers_are_those_of_scikit_learn(store: tuple[tp.Federation, Parties], label: str, weight: Any) -> None:
    """Two classes and four, with weights of classes and without."""
    fed, parties = store
    relation = fed.sql(PLAIN.format(label), label=label)
    table, labels = joined(relation, parties, label)
    model: Any = tp.GradientBoostingClassifier(**FEW, class_weight=weight).fit(relation)
    same = HistGradientBoostingClassifier(**FEW, class_weight=weight, early_stopping=False).fit(table, labels)
    if weight != "balanced":  # they weigh rows where they bin them too
        np.testing.assert_allclose(model.predict_proba(relation), same.predict_proba(table), atol=1e-5)
    assert model.evaluate(relation)["log_loss"] < model.evaluate(relation).constant["log_loss"]


def xgboost_of(model: Any, file: Path) -> xgboost.Booster:
    model.export(file)
    booster = xgboost.Booster()
    booster.load_model(str(file))
    return booster


@pytest.mark.parametrize("label", ["paid", "returned", "grade"])
def test_xgboost_loads_what_is_exported(store: tuple[tp.Federation, Parties], tmp_path: Path, label: str) -> None:
    """Numbers, missing values and categories by their codes: the same predictions."""
    fed, parties = store
    relation = fed.sql(SELECT.format(label), label=label)
    made: Any = tp.GradientBoostingRegressor if label == "paid" else tp.GradientBoostingClassifier
    model = made(**FEW).fit(relation)
    booster, columns = xgboost_of(model, tmp_path / "model.json"), []
    for name in booster.feature_names or []:
        values = materialised(relation, parties, *name.split("."))
        codes = {text: code for code, text in enumerate(model.categories_.get(name, []))}
        columns.append([np.nan if value is None else float(codes.get(value, value)) for value in values])
    matrix = xgboost.DMatrix(
        np.array(columns).T, feature_names=booster.feature_names, feature_types=booster.feature_types,
        enable_categorical=True,
    )  # fmt: skip
    ours = model.predict(relation) if label == "paid" else model.predict_proba(relation)
    theirs = booster.predict(matrix)
    np.testing.assert_allclose(theirs, ours[:, 1] if label == "returned" else ours, atol=1e-5)


def test_shapley_values_are_exact(store: tuple[tp.Federation, Parties], tmp_path: Path) -> None:
    """By column they are those of XGBoost for the exported model; they add up to the score, by table too."""
    fed, parties = store
    relation = fed.sql(PLAIN.format("paid"), label="paid")
    model: Any = tp.GradientBoostingRegressor(**FEW).fit(relation)
    by_column = model.contributions(relation, by="column")
    booster = xgboost_of(model, tmp_path / "model.json")
    order = [model.contribution_names_.index(name) for name in booster.feature_names or []]
    columns = [materialised(relation, parties, *name.split(".")) for name in booster.feature_names or []]
    matrix = xgboost.DMatrix(np.array(columns).T, feature_names=booster.feature_names)
    theirs = booster.predict(matrix, pred_contribs=True)
    np.testing.assert_allclose(by_column[:, [*order, -1]], theirs, atol=1e-5)
    by_table = model.contributions(relation)
    assert model.contribution_names_ == ["o", "i", "c", "base"]
    np.testing.assert_allclose(by_table.sum(axis=1), model.predict(relation))
    np.testing.assert_allclose(by_table[:, 2], by_column[:, [2, 3]].sum(axis=1))
    grades: Any = tp.GradientBoostingClassifier(**FEW).fit(fed.sql(PLAIN.format("grade"), label="grade"))
    parts = grades.contributions(relation)
    np.testing.assert_allclose(softmax(parts.sum(axis=1), axis=1), grades.predict_proba(relation))


@pytest.mark.parametrize("label", ["paid", "returned"])
def test_a_tree_of_a_forest_is_that_of_scikit_learn(store: tuple[tp.Federation, Parties], label: str) -> None:
    """One tree of all rows is a decision tree, of squared errors or Gini impurity; shares add up to 1."""
    fed, parties = store
    relation = fed.sql(PLAIN.format(label), label=label)
    table, labels = joined(relation, parties, label)
    settings: dict[str, Any] = {"max_depth": 4, "min_samples_leaf": 15}
    made: Any = tp.RandomForestRegressor if label == "paid" else tp.RandomForestClassifier
    one: Any = made(n_estimators=1, bootstrap=False, max_features=1.0, **settings).fit(relation)
    same: Any = (DecisionTreeRegressor if label == "paid" else DecisionTreeClassifier)(**settings).fit(table, labels)
    ask = "predict" if label == "paid" else "predict_proba"
    np.testing.assert_allclose(getattr(one, ask)(relation), getattr(same, ask)(table), atol=1e-9)


def test_forests(store: tuple[tp.Federation, Parties], tmp_path: Path) -> None:
    """They are means of trees of rows drawn with replacement; saved and explained as boosted trees are."""
    fed, _ = store
    for label in ("returned", "grade"):
        relation = fed.sql(PLAIN.format(label), label=label)
        train, test = relation.split(0.3)
        model: Any = tp.RandomForestClassifier(n_estimators=6, max_depth=5, class_weight="balanced", seed=1)
        model.fit(train, validation=test)
        last = model.history_[model.best_round_ - 1]
        assert model.evaluate(test)["accuracy"] == pytest.approx(last["validation_metric"])
        assert model.evaluate(train)["auc"] > 0.8
        shares = model.predict_proba(test)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        model.save(tmp_path / label)
        assert tp.load(tmp_path / label, fed).get_params()["class_weight"] == "balanced"
        again: Any = tp.load(tmp_path / label, fed)
        np.testing.assert_array_equal(again.predict_proba(test), shares)
        parts = model.contributions(test).sum(axis=1)
        parts = np.stack([1 - parts, parts], axis=1) if label == "returned" else parts / parts.sum(axis=1)[:, None]
        np.testing.assert_allclose(parts, shares, atol=1e-12)
    with pytest.raises(tp.LearnError, match=r"name the file \.json"):
        model.export(tmp_path / "model.ubj")
    with pytest.raises(tp.LearnError, match="no forest of shares"):
        model.export(tmp_path / "model.json")


def test_stages_and_permutations(store: tuple[tp.Federation, Parties], tmp_path: Path) -> None:
    """Metrics by round are those of the fit; a column changes places as it would in the joined table."""
    fed, parties = store
    relation = fed.sql(PLAIN.format("paid"), label="paid")
    model: Any = tp.GradientBoostingRegressor(**FEW).fit(relation)
    stages = model.staged_evaluate(relation)
    assert [each["rmse"] for each in stages] == pytest.approx([each["metric"] for each in model.history_])
    booster, order = xgboost_of(model, tmp_path / "model.json"), np.random.default_rng(0).permutation(len(relation))
    names = booster.feature_names or []
    matrix = np.array([materialised(relation, parties, *name.split(".")) for name in names])
    trees, before = model._model, model.predict(relation)
    for place, name in enumerate(names):
        moved = matrix.copy()
        moved[place] = moved[place][order]
        wanted = booster.predict(xgboost.DMatrix(moved.T, feature_names=names)) - before
        key = (trees.aliases.index(name[0]), model._columns_of(trees.aliases)[name[0]].index(name))
        found = changes(relation.client.rows, trees.final, trees.aliases, trees.all_bits(relation.client), key, order)
        np.testing.assert_allclose(found[:, 0], wanted, atol=1e-5)
    fallen = model.permutation_importances(relation, repeats=2)
    assert set(fallen) == set(model.importances("cover")) == set(model.feature_importances_)
    assert max(fallen, key=lambda name: fallen[name]) == max(model.feature_importances_, key=model.importances().get)
    for kind in ("importances", "tree"):
        model.plot(tmp_path / f"{kind}.svg", kind=kind)


def test_samples_stops_and_seeds(store: tuple[tp.Federation, Parties]) -> None:
    """Rows and columns drawn by a seed give one model; rows held out end a fit at its best round."""
    fed, _ = store
    relation = fed.sql(SELECT.format("paid"), label="paid")
    drawn = [
        tp.GradientBoostingRegressor(**FEW, subsample=0.5, max_features=0.4, seed=seed).fit(relation)
        for seed in (1, 1, 2)
    ]
    found = [model.predict(relation) for model in drawn]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])
    train, test = relation.split(0.3)
    model: Any = tp.GradientBoostingRegressor(max_iter=60, learning_rate=0.5, n_iter_no_change=4)
    model.fit(train, validation=test)
    losses = [entry["validation_loss"] for entry in model.history_]
    assert model.stopped_ == "early stop"
    assert model.best_round_ == len(losses) - 4 == int(np.argmin(losses)) + 1 == len(model._model.forest)
    assert losses[model.best_round_ - 1] == pytest.approx(0.5 * model.evaluate(test)["rmse"] ** 2)
    own = tp.GradientBoostingRegressor(max_iter=60, learning_rate=0.5, early_stopping=True, n_iter_no_change=4)
    assert own.fit(relation).best_round_ < len(own.history_) < 60


def test_a_fit_goes_on(store: tuple[tp.Federation, Parties]) -> None:
    """With `warm_start` two fits are one, also after an early stop and of forests; over other rows it is refused."""
    fed, _ = store
    relation = fed.sql(SELECT.format("returned"), label="returned")
    train, test = relation.split(0.3)
    kinds: list[tuple[Any, str]] = [
        (tp.GradientBoostingClassifier, "max_iter"), (tp.RandomForestClassifier, "n_estimators")
    ]  # fmt: skip
    for made, name in kinds:
        settings: dict[str, Any] = {"max_depth": 3, "seed": 3}
        whole: Any = made(**settings, **{name: 6}).fit(train, validation=test)
        model: Any = made(**settings, **{name: 3}, warm_start=True).fit(train, validation=test)
        model.set_params(**{name: 6}).fit(train, validation=test)
        np.testing.assert_allclose(model.predict_proba(test), whole.predict_proba(test), rtol=1e-12)
        assert [each["loss"] for each in model.history_] == pytest.approx([each["loss"] for each in whole.history_])
        with pytest.raises(tp.LearnError, match=f"set {name} above"):
            model.fit(train, validation=test)
        with pytest.raises(tp.LearnError, match="over the relation of the fit before"):
            model.set_params(**{name: 9}).fit(relation)


def test_one_trip_a_level(store: tuple[tp.Federation, Parties]) -> None:
    """Of tables with one shard; all classes share it, and nothing as long as the joined rows travels."""
    fed, _ = store
    for label in ("paid", "grade"):
        relation = fed.sql(SELECT.format(label), label=label)
        made: Any = tp.GradientBoostingRegressor if label == "paid" else tp.GradientBoostingClassifier
        model = made(max_iter=3, max_depth=3, early_stopping=False).fit(relation)
        assert [entry["messages"] for entry in model.history_[1:]] == [2 * 3 * 3] * 2  # both ways, parties, levels


def test_services_are_like_one_process(tmp_path: Path) -> None:
    """Over real connections: the same trees up to rounding; parties keep their splits when the model is saved."""
    parties = shop(orders=200)
    urls = {name: write_party(tmp_path, name, tables) for name, tables in parties.items()}
    here = tp.Federation(urls).sql(SELECT.format("paid"), label="paid")
    expected = tp.GradientBoostingRegressor(**FEW).fit(here).predict(here)
    with served(urls, state=tmp_path / "state") as servers:
        fed = calling(servers, wire="float64")
        relation = fed.sql(SELECT.format("paid"), label="paid")
        model = tp.GradientBoostingRegressor(**FEW).fit(relation)
        found = np.sort(model.predict(relation))
        np.testing.assert_allclose(found, np.sort(expected), rtol=1e-9)
        model.save(tmp_path / "model")
        again: Any = tp.load(tmp_path / "model", fed)
        np.testing.assert_allclose(np.sort(again.predict(relation)), found)
        assert not again._model.stored.thetas


@pytest.mark.parametrize("mode", ["zeros", "cache"])
def test_a_lost_party_splits_nothing(tmp_path: Path, mode: Any) -> None:
    """While it is lost trees grow without it, and with it again when it is back."""
    urls = {name: write_party(tmp_path, name, tables) for name, tables in shop(orders=200).items()}
    fed, parties = losing(urls, on_party_lost=mode)

    def act(event: tp.Event) -> None:
        if event.name == "fit" and event.fields["round"] in (2, 4):
            parties["supplier0"].lost = event.fields["round"] == 2

    relation = fed.sql(SELECT.format("paid"), label="paid")
    model: Any = tp.GradientBoostingRegressor(**FEW, callbacks=[act]).fit(relation)
    tables = [{node["table"] for node in tree} for tree in model.trees_]
    assert "i" in tables[0]
    assert not any("i" in tree for tree in tables[2:4])
    np.testing.assert_allclose(model.evaluate(relation)["rmse"], model.history_[-1]["metric"])


# Policies


def test_small_groups_have_no_split_of_their_own(tmp_path: Path) -> None:
    """Each side of a split has as many different rows as `min_group` says; so have cells of sums, with complements."""
    tables = {"people": pa.table({"id": range(40), "x": [*range(38), 500.0, None], "y": [*[0.0] * 37, 9.0, 9.0, 9.0]})}
    write_party(tmp_path, "bank", {"cards": tables["people"]})
    file = write_file(tmp_path, table="min_group = 5", columns='x = "feature"\ny = "label"')
    relation = policed(open_party(file)).sql("SELECT x, y FROM cards", label="y")
    model: Any = tp.GradientBoostingRegressor(max_iter=4, min_samples_leaf=1, early_stopping=False).fit(relation)
    tree = model._model.forest[0][0]
    assert len(tree.leaves) > 1
    assert min(tree.counts) >= 5
    rng = np.random.default_rng(0)
    sums = rng.integers(0, 4, (3, 4, 9, 1)) * np.ones(4)
    sums[0, 0] = sums[1, 1, :-1] = 0
    found = pooled(sums, 5)[..., 3]
    assert ((found == 0) | (found >= 5)).all()
    whole, kept = sums[..., 3].sum(axis=2), found.sum(axis=2)
    assert ((kept == whole) | ((kept == 0) & (whole < 5)) | (whole - kept < 5)).all()


def test_policies_and_limits(tmp_path: Path) -> None:
    """A table that demands noise is refused, as is noise; a limit of replies ends a fit in time and is named."""
    write_party(tmp_path, "bank", {"cards": pa.table({"x": np.arange(60.0), "fraud": np.arange(60) % 7 < 3})})
    sql, told = "SELECT x, fraud FROM cards", list[tp.Event]()
    columns = 'x = "feature"\nfraud = "label"'
    strict = policed(
        open_party(write_file(tmp_path, table="budget = { require_dp = true }", columns=columns, top=STATE))
    )
    model: Any = tp.GradientBoostingClassifier(min_samples_leaf=2, callbacks=[told.append], early_stopping=False)
    with pytest.raises(tp.PrivacyError, match="require_dp"):
        model.fit(strict.sql(sql, label="fraud"))
    few = policed(open_party(write_file(tmp_path, limits="max_prediction_rounds = 45", columns=columns)))
    relation = few.sql(sql, label="fraud")
    model.fit(relation)
    assert 1 < len(model.history_) < 100
    noisy = tp.GradientBoostingClassifier(privacy=tp.Privacy(feature_epsilon=1.0))
    with pytest.raises(tp.PrivacyError, match="no form with noise"):
        noisy.fit(relation)
    [short] = [event for event in told if event.name == "fit.short"]
    assert "party 'bank' gives 45 replies" in short.message
    model.evaluate(relation)


def test_secure_sums_give_the_same_trees(tmp_path: Path) -> None:
    """Sums by bin leave shards masked. Cuts of shards are of columns as they are selected."""
    fed = federation(tmp_path, shop(3, together=True), wire="float64")
    found = []
    for privacy in (None, tp.Privacy(secure_sum=True)):
        relation = fed.sql(SELECT.format("paid"), label="paid")
        found.append(tp.GradientBoostingRegressor(**FEW, privacy=privacy).fit(relation).predict(relation))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    steps = tp.prep.Pipeline([tp.prep.Impute("median")])
    with pytest.raises(tp.LearnError, match="write them in SELECT"):
        tp.GradientBoostingRegressor().fit(fed.sql(SELECT.format("paid"), label="paid", prep=steps))
    written = SELECT.replace("o.price", "coalesce(o.price, 5) AS price")
    tp.GradientBoostingRegressor(**FEW).fit(fed.sql(written.format("paid"), label="paid"))


def test_no_value_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither values of columns, nor cuts between them, nor categories leave a table with one shard."""
    price = [7105551.0625 + 0.5 * n + n * n / 64 for n in range(80)]
    table = {
        "price": price,
        "kind": [f"canary-{n % 4}" for n in range(80)],
        "y": [float(n % 4 + n // 40) for n in range(80)],
    }
    fed = federation(tmp_path, {"a": {"t": pa.table(table)}}, wire="float64")
    messages = record_wire(monkeypatch)
    relation = fed.sql("SELECT price, kind, y FROM t", label="y")
    model: Any = tp.GradientBoostingRegressor(max_iter=3, min_samples_leaf=5).fit(relation)
    assert {node["column"] for tree in model.trees_ for node in tree} == {"t.price", "t.kind", None}
    caught = b"\0".join(each for message in messages for each in flat((message.request, message.reply)))
    between = [(low + high) / 2 for low, high in itertools.pairwise(price)]
    planted = {str(each): [struct.pack(form, each) for form in ("<d", ">d", "<f")] for each in [*price[1:-1], *between]}
    assert_unseen(caught, planted | {"a category": [b"canary-"]})


def test_searches_steps_and_outer_joins(tmp_path: Path) -> None:
    """Trees are searched, follow a pipeline, and send rows that an outer join misses to a side of their own."""
    rows = range(200)
    tables = {
        "a": {"t": pa.table({"id": rows, "x": [n % 13 for n in rows], "y": [5.0 * (n % 3 < 1) + n % 2 for n in rows]})},
        "b": {"u": pa.table({"id": [n for n in rows if n % 3], "z": [float(n % 2) for n in rows if n % 3]})},
    }  # fmt: skip
    fed = federation(tmp_path, tables, wire="float64")
    sql = "SELECT t.x, u.z, t.y FROM t LEFT JOIN u ON t.id = u.id"
    relation = fed.sql(sql, label="y")
    search = tp.GridSearch(tp.GradientBoostingRegressor(max_iter=3), {"learning_rate": [0.1, 0.9]}, folds=2)
    assert search.fit(relation).best_params_ == {"learning_rate": 0.9}
    model = tp.RandomForestRegressor(n_estimators=1, bootstrap=False).fit(relation)
    assert model.evaluate(relation)["rmse"] < 0.55  # z is missing where 5 is added
    steps = tp.prep.Pipeline([tp.prep.Impute("median")])
    filled = tp.RandomForestRegressor(n_estimators=1, bootstrap=False).fit(fed.sql(sql, label="y", prep=steps))
    assert filled.evaluate(relation)["rmse"] > 1.0


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_bins": 256}, "max_bins must be a whole number from 2 to 255"),
        ({"max_depth": 0}, "max_depth must be"),
        ({"max_leaf_nodes": 1}, "max_leaf_nodes must be"),
        ({"loss": "quantile"}, "needs quantile"),
        ({"loss": "huber"}, "loss must be one of"),
        ({"loss": "poisson"}, "labels that are 0 or more"),
        ({"monotonic_cst": {"i.kind": 1}}, "has categories, which have no order"),
        ({"monotonic_cst": {"o.prise": 1}}, "did you mean"),
        ({"interaction_cst": [["nothing"]]}, "no column that the model learns from"),
        ({"subsample": 0.0}, "subsample must be"),
        ({"categorical_features": ["kind"]}, "named with the relation"),
    ],
)
def test_settings_that_cannot_be(
    store: tuple[tp.Federation, Parties], settings: Mapping[str, Any], message: str
) -> None:
    """Each is an error that says what would be allowed."""
    with pytest.raises(tp.LearnError, match=message):
        tp.GradientBoostingRegressor(**settings).fit(store[0].sql(SELECT.format("paid"), label="paid"))


def test_nothing_to_split(tmp_path: Path) -> None:
    """Constant and missing columns, too few rows, huge numbers: the obvious model."""
    table = pa.table({"x": [1.0] * 30, "z": [None] * 30, "e": [1e99, -1e99, *np.arange(28.0)], "y": np.arange(30.0)})
    fed = federation(tmp_path, {"a": {"t": table}})
    for columns, size in itertools.product(("x", "x, z", "e"), (1, 16)):
        relation = fed.sql(f"SELECT {columns}, y FROM t", label="y")
        model = tp.GradientBoostingRegressor(min_samples_leaf=size, max_iter=30).fit(relation)
        rmse = model.evaluate(relation)["rmse"]
        assert (rmse == pytest.approx(float(np.std(np.arange(30.0))))) == (columns != "e" or size == 16)
        assert np.isfinite(model.predict(relation)).all()
