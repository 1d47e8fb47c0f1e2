"""Target encoding and weight of evidence: scikit-learn's and pandas' on the joined table; who may have means of labels.

Tolerance: 1e-9 of the largest value of a column.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from sklearn.preprocessing import KBinsDiscretizer, TargetEncoder

import tablepuppet as tp
from benchmarks.data import DATA, is_there
from tablepuppet import prep
from tablepuppet.errors import PartyError
from tablepuppet.jobs import OtherQuery, Run
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import Policy, TableRule
from tablepuppet.party.service import HERE
from tablepuppet.prep.encode.frame import Frame
from tablepuppet.prep.encode.program import check_steps
from tablepuppet.prep.encode.specs import Cut, FoldLookup, Lookup, fold_numbers
from tablepuppet.prep.pipelines.label_sums import AskedLabels, ColumnCodes, Folds, fold_of_rows
from tablepuppet.prep.pipelines.pipeline import Pipeline
from tests.relations import Parties, federation, materialised, party_of, places, record_wire
from tests.small_job import write_job
from tests.wire.services import calling, served

SQL = "SELECT s.w, s.c, i.v, i.g, s.{label} FROM sales s JOIN items i USING (item)"
COLUMNS = {"w": "s", "c": "s", "v": "i", "g": "i", "y": "s", "b": "s"}
Floats = NDArray[np.float64]


MUCH: Any = "much"  # no smoothing


def shop(seed: int, rows: int = 150, items: int = 12, twice: bool = False) -> dict[str, dict[str, pa.Table]]:
    """Sales in two shards, whose labels depend on categories; items, of which some are there twice."""
    draw = np.random.default_rng(seed)

    def sales(size: int) -> pa.Table:
        item, kind = draw.integers(0, items, size), draw.choice(list("aaabbc"), size)
        y = (kind == "a") + item % 4 + draw.normal(size=size)
        return pa.table(
            {
                "item": item, "w": pa.array(draw.normal(size=size), mask=draw.random(size) < 0.1),
                "c": pa.array(kind, mask=draw.random(size) < 0.1), "y": y, "b": y > 2.0,
            }
        )  # fmt: skip

    number = np.concatenate([np.arange(items), np.arange(items // 3)]) if twice else np.arange(items)
    catalog = {"item": number, "v": draw.normal(size=len(number)), "g": [f"g{each}" for each in number % 4]}
    cut = max(1, rows // 3)
    return {"p0": {"sales": sales(cut)}, "p1": {"sales": sales(rows - cut)}, "p2": {"items": pa.table(catalog)}}


def features(relation: tp.Relation, like: Any = None) -> pd.DataFrame:
    """The encoded joined rows, to learn from or to predict."""
    matrix = relation.matrix() if like is None else relation.matrix(like=like)
    return pd.DataFrame(matrix @ np.eye(matrix.shape[1]), columns=matrix.columns)


def joined(relation: tp.Relation, parties: Parties) -> pd.DataFrame:
    return pd.DataFrame({name: materialised(relation, parties, alias, name) for name, alias in COLUMNS.items()})


def fold_by_row(relation: tp.Relation, alias: str, step: Any) -> NDArray[np.intp]:
    """The fold of every joined row, from the places of its base row in the shard."""
    number = list(relation.plan.tables).index(alias)
    rows = [each[number] for each in places(relation)]
    found = np.zeros(len(rows), np.intp)
    for party in {party for party, _ in rows}:
        here = np.array([owner == party for owner, _ in rows])
        ids = np.array([row for owner, row in rows if owner == party])
        found[here] = fold_numbers(ids, step.folds, step.seed, step.shuffle)
    return found


def check(found: pd.Series, expected: Any) -> None:
    size = float(np.abs(expected).max()) or 1.0
    np.testing.assert_allclose(found, np.asarray(expected, float).ravel(), atol=1e-9 * size)


def compare(parties: Parties, label: str, step: prep.TargetEncode) -> None:
    """Both columns, for rows to predict and rows to learn from, with scikit-learn's on the joined table."""
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), parties, wire="float64")
        relation = fed.sql(SQL.format(label=label), label=label, prep=prep.Pipeline([step]))
        frame = joined(relation, parties)
        matrix = relation.matrix()
        train, full = pd.DataFrame(matrix @ np.eye(4), columns=matrix.columns), features(relation, matrix)
        kind: Any = "binary" if frame[label].nunique() == 2 else "continuous"
        for name, alias in (("c", "s"), ("g", "i")):
            known = TargetEncoder(target_type=kind, smooth=step.smooth)
            values, labels = frame[[name]], frame[label].astype(float)
            check(full[f"{alias}.{name}"], known.fit(values, labels).transform(values))
            fold, expected = fold_by_row(relation, alias, step), np.zeros(len(frame))
            for number in range(step.folds):
                here = fold == number
                if here.any() and not here.all():
                    others = labels[~here]
                    y = others if kind == "continuous" or others.nunique() == 2 else None
                    if y is None:
                        return  # scikit-learn takes one class for something else
                    expected[here] = known.fit(values[~here], y).transform(values[here]).ravel()
                else:
                    expected[here] = labels.mean()
            check(train[f"{alias}.{name}"], full[f"{alias}.{name}"] if step.folds == 1 else expected)


@pytest.mark.parametrize("twice", [False, True], ids=["one item per sale", "several items per sale"])
@pytest.mark.parametrize("label", ["y", "b"])
@pytest.mark.parametrize(
    "step",
    [
        prep.TargetEncode(),
        prep.TargetEncode(folds=3, smooth=10.0, seed=4),
        prep.TargetEncode(folds=4, smooth=0, shuffle=False),
        prep.TargetEncode(folds=1, smooth=2),
    ],
    ids=str,
)
def test_target_encoding_is_that_of_scikit_learn(step: prep.TargetEncode, label: str, twice: bool) -> None:
    """Rows to predict get what `fit` learns of the joined table; rows to learn from what it learns of other folds."""
    compare(shop(7, twice=twice), label, step)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(12, 80),
    items=st.integers(1, 9),
    twice=st.booleans(),
    folds=st.integers(1, 6),
    smooth=st.one_of(st.just("auto"), st.floats(0, 50)),
)
def test_any_relation(seed: int, rows: int, items: int, twice: bool, folds: int, smooth: Any) -> None:
    """The same over random relations."""
    compare(shop(seed, rows, items, twice), "y", prep.TargetEncode(folds=folds, smooth=smooth, seed=seed))


def test_fit_transform(tmp_path: Path) -> None:
    """Over one table in one place, what rows to learn from get is scikit-learn's `fit_transform` by the same folds."""
    table = shop(3, 400)["p1"]["sales"]
    fed = federation(tmp_path, {"p0": {"sales": table}}, wire="float64")
    rel = fed.sql("SELECT c, w, y FROM sales", label="y", prep=prep.Pipeline([prep.TargetEncode(seed=5)]))
    frame = table.to_pandas()
    folds = KFold(5, shuffle=True, random_state=5)
    expected = TargetEncoder(target_type="continuous", cv=folds).fit_transform(frame[["c"]], frame["y"])
    check(features(rel)["sales.c"], expected[rel.rows()["sales.row"].to_numpy()])


def weights_of_evidence(values: pd.Series, label: pd.Series, smooth: float) -> tuple[pd.Series, float]:
    """(the weight of every row, the information value), by their definitions."""
    known = pd.Series(["(missing)" if pd.isna(each) else each for each in values])
    table = pd.crosstab(known, label.astype(int))
    shares = (table + smooth) / (table.sum() + 2 * smooth)
    weight = np.log(shares[1]) - np.log(shares[0])
    return known.map(weight), float(((shares[1] - shares[0]) * weight).sum())


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), twice=st.booleans(), smooth=st.sampled_from([0.5, 1.0, 20.0]))
def test_weight_of_evidence(seed: int, twice: bool, smooth: float) -> None:
    """Weights and information values of categories of both tables, and of bins, as pandas computes them."""
    parties = shop(seed, twice=twice)
    steps = [prep.Bin(3, columns=["w", "v"]), prep.WOE(smooth=smooth, columns=["c", "g", "w", "v"])]
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), parties, wire="float64")
        rel = fed.sql(SQL.format(label="b"), label="b", prep=prep.Pipeline(steps))
        frame, model = joined(rel, parties), tp.LogisticRegression().fit(rel)
        found = features(rel)
        for name in ("w", "v"):
            binned = KBinsDiscretizer(3, encode="ordinal", strategy="uniform")
            has = frame[name].notna()
            codes = binned.fit(frame.loc[has, [name]]).transform(frame.loc[has, [name]])[:, 0]
            bins = iter(codes)
            frame[name] = [f"bin {next(bins)}" if each else None for each in has]
        for name, alias in (("c", "s"), ("g", "i"), ("w", "s"), ("v", "i")):
            expected, value = weights_of_evidence(frame[name], frame["b"], smooth)
            check(found[f"{alias}.{name}"], expected)
            assert model.encoding_.iv_[f"{alias}.{name}"] == pytest.approx(value, rel=1e-9)
        assert f"information value of i.g: {model.encoding_.iv_['i.g']:.4g}" in rel.explain()


def test_a_model_keeps_what_it_learned(tmp_path: Path) -> None:
    """Rows to learn from are cross-fitted and standardised as such; predictions use the full encoding, also of rows
    that were learned from, and after the model was saved and loaded.
    """
    parties = shop(1)
    fed = federation(tmp_path, parties, wire="float64")
    steps = [prep.TargetEncode(columns=["c", "g"]), prep.Standardize()]
    rel = fed.sql(SQL.format(label="y"), label="y", prep=prep.Pipeline(steps))
    train, test = rel.split(test=0.3, seed=1)
    matrix = train.matrix()
    seen = matrix @ np.eye(4)
    np.testing.assert_allclose(seen.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(seen[:, 1:].std(axis=0), 1.0, atol=1e-9)  # the first has missing values
    full = features(train, matrix)
    assert abs(full["s.c"] - seen[:, 1]).max() > 1e-3
    model = tp.LinearRegression(tol=1e-14).fit(train)
    assert list(model.coef_) == ["s.w", "s.c", "i.v", "i.g"]
    coefficients = np.array([float(each) for each in model.coef_.values()])
    np.testing.assert_allclose(
        tp.linalg.lm(matrix, train.label()).coef["s.c"], model.coef_["s.c"], rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(model.predict(train), full @ coefficients + model.intercept_, atol=1e-8)
    before = model.predict(test)
    again = tp.LinearRegression(tol=1e-14).fit(train)  # predictions in between have changed nothing
    np.testing.assert_allclose(again.predict(test), before, atol=1e-9)
    model.save(tmp_path / "m")
    loaded = tp.load(tmp_path / "m", fed)
    np.testing.assert_array_equal(loaded.predict(test), before)
    assert all(not isinstance(step, FoldLookup) for table in loaded.encoding_.steps.values() for step in table.steps)
    with pytest.raises(tp.LearnError, match=r"column 'c' is made by steps that cannot be undone"):
        model.encoding_.inverse("s.c", [0.0])


def test_information_values_are_saved(tmp_path: Path) -> None:
    """With the model."""
    fed = federation(tmp_path, shop(1))
    rel = fed.sql(SQL.format(label="b"), label="b", prep=prep.Pipeline([prep.WOE()]))
    model = tp.LogisticRegression().fit(rel)
    assert set(model.encoding_.iv_) == {"s.c", "i.g"}
    model.save(tmp_path / "m")
    assert tp.load(tmp_path / "m", fed).encoding_.iv_ == model.encoding_.iv_


def test_folds_keep_labels_out(tmp_path: Path) -> None:
    """A category that says nothing, in many values: without folds a model believes it, with folds it does not."""
    draw = np.random.default_rng(0)
    table = pa.table({"c": [f"c{each}" for each in draw.integers(0, 150, 600)], "y": draw.normal(size=600)})
    fed = federation(tmp_path, {"p0": {"t": table}})
    found = {}
    for folds in (1, 5):
        steps = [prep.TargetEncode(folds=folds)]
        rel = fed.sql("SELECT c, y FROM t", label="y", prep=prep.Pipeline(steps), categorical=["c"])
        found[folds] = float(tp.LinearRegression().fit(rel).coef_["t.c"])
    assert found[1] > 0.9
    assert abs(found[5]) < 0.3


def test_a_search_shares_encoders(tmp_path: Path) -> None:
    """Candidates that go on from each other learn from cross-fitted rows too: each is what a fit of its own gives."""
    fed = federation(tmp_path, shop(2, 300), wire="float64")
    rel = fed.sql(SQL.format(label="b"), label="b", prep=prep.Pipeline([prep.TargetEncode(), prep.Standardize()]))
    values = [1e-4, 1e-2, 1.0]
    found = tp.GridSearch(tp.LogisticRegression(tol=1e-12), {"l2": values}, folds=3).fit(rel)
    scores = {row["l2"]: row["mean_test_log_loss"] for row in found.results_}
    for l2 in values:
        alone = tp.cross_validate(tp.LogisticRegression(l2=l2, tol=1e-12), rel, folds=3)
        assert scores[l2] == pytest.approx(float(alone["test_log_loss"].mean()), rel=1e-6)


def test_without_reduction(tmp_path: Path) -> None:
    """Rows that are listed as often as they are joined are dealt to folds as one row."""
    fed = federation(tmp_path, shop(4, twice=True), wire="float64")
    rel = fed.sql(SQL.format(label="y"), label="y", prep=prep.Pipeline([prep.TargetEncode()]))
    usual, plain = [tp.LinearRegression(reduce=each, tol=1e-14).fit(rel) for each in (True, False)]
    for name, value in usual.coef_.items():
        np.testing.assert_allclose(plain.coef_[name], value, atol=1e-6)


def test_over_services(tmp_path: Path) -> None:
    """Parties elsewhere learn, keep and apply the same numbers; rows have another order there, and so other folds."""
    parties = shop(8, 300)
    here = federation(tmp_path, parties, wire="float64")
    steps = [prep.Bin(3, columns=["v"]), prep.TargetEncode(columns=["c", "g"]), prep.WOE(columns=["v"])]
    with served({name: f"parquet://{tmp_path / name}" for name in parties}, state=tmp_path / "state") as servers:
        there = calling(servers, wire="float64")
        near, far = (fed.sql(SQL.format(label="b"), label="b", prep=prep.Pipeline(steps)) for fed in (here, there))
        models = [tp.LogisticRegression(rounds=5).fit(rel) for rel in (near, far)]
        assert models[0].encoding_.iv_ == pytest.approx(models[1].encoding_.iv_, rel=1e-9)
        for alias, column in (("s", "c"), ("i", "g")):
            told = [next(s for s in m.encoding_.steps[alias].steps if s.writes == column) for m in models]
            assert isinstance(told[0], Lookup)
            assert isinstance(told[1], Lookup)
            np.testing.assert_allclose(np.sort(told[0].values), np.sort(told[1].values), atol=1e-9)
            assert told[0].missing == pytest.approx(told[1].missing, abs=1e-9)
        models[1].save(tmp_path / "m")
        expected = models[1].predict_proba(far)
        np.testing.assert_allclose(tp.load(tmp_path / "m", there).predict_proba(far), expected, atol=1e-9)


def test_models_of_linalg_are_saved_with_their_categories(tmp_path: Path) -> None:
    """In another federation they know categories that became numbers."""
    parties = shop(9)
    fed = federation(tmp_path, parties, wire="float64")
    rel = fed.sql(SQL.format(label="y"), label="y", prep=prep.Pipeline([prep.TargetEncode()]))
    model = tp.linalg.lm(rel.matrix(), rel.label())
    expected = model.predict(rel)
    model.save(tmp_path / "m")
    other = tp.Federation({name: f"parquet://{tmp_path / name}" for name in parties}, wire="float64")
    again = other.sql(SQL.format(label="y"), label="y")
    np.testing.assert_allclose(tp.load(tmp_path / "m", other).predict(again), expected, atol=1e-9)


@pytest.mark.parametrize("hidden", [False, True])
def test_groups_are_large_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool) -> None:
    """Whatever reaches a party is of ``min_group`` different base rows or more in both tables, and so is each
    difference that it can make of that: a category, a category without a part of its folds, and what is left.
    """
    parties = shop(5, 200, items=60)
    if hidden:  # a category of few items
        items = parties["p2"]["items"]
        rare = ["rare" if place < 4 else each for place, each in enumerate(items["g"].to_pylist())]
        parties["p2"]["items"] = items.set_column(2, "g", pa.array(rare))
    fed = federation(tmp_path, parties, wire="float64")
    least = 6
    for name in ("p0", "p1", "p2"):
        party = party_of(fed.engine, name)
        party._guard.policy = Policy(others=TableRule(min_group=least))
    rel = fed.sql(SQL.format(label="y"), label="y", prep=prep.Pipeline([prep.TargetEncode(columns=["c", "g"])]))
    messages = record_wire(monkeypatch)
    tp.LinearRegression().fit(rel)
    sent = {
        step.column: step
        for message in messages
        if message.request.op == "encode.build"
        for step in message.request.arguments.get("steps", ())
        if isinstance(step, FoldLookup)
    }
    frame, prior = joined(rel, parties), joined(rel, parties)["y"].mean()
    told = np.array(list(zip(*places(rel), strict=True)), dtype=object)
    kinds = {"c": frame["c"], "g": frame["g"]}
    for name, alias in (("c", 0), ("g", 1)):
        step = sent[name]
        assert step.full.other == pytest.approx(prior)
        assert step.other == pytest.approx([prior] * 5)
        fold = fold_by_row(rel, "si"[alias], step)
        column = features(rel)[f"{'si'[alias]}.{name}"].to_numpy()
        kept = 0
        for category in kinds[name].dropna().unique():
            here = (kinds[name] == category).to_numpy()
            values = {number: set(np.round(column[here & (fold == number)], 12)) for number in range(5)}
            if all(each <= {round(prior, 12)} for each in values.values()):
                continue
            kept += 1
            parts: dict[float, NDArray[np.bool_]] = {}
            for number, each in values.items():
                if each:
                    mean = next(iter(each))
                    parts[mean] = parts.get(mean, np.zeros(len(here), bool)) | (here & (fold == number))
            for part in parts.values():
                for place in (0, 1):
                    assert len({tuple(row) for row in told[place][part]}) >= least
        assert kept
    rest = frame["g"].eq("rare") if hidden else None
    if rest is not None:
        found = features(rel)["i.g"].to_numpy()
        assert np.isclose(found[rest.to_numpy()], prior).all()
        for place in (0, 1):
            rows = {tuple(row) for row in told[place][np.isclose(found, prior)]}
            assert len(rows) >= least, "what is left would tell of the rare ones"


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(20, 120), items=st.integers(2, 40), twice=st.booleans(),
    folds=st.integers(1, 5), least=st.integers(2, 9), names=st.sampled_from(["c", "g", "v"]),
)  # fmt: skip
def test_no_group_is_small(seed: int, rows: int, items: int, twice: bool, folds: int, least: int, names: str) -> None:
    """Over random relations and sizes of groups: parts of a category's folds, and all that is pooled, have as many
    different base rows in the category's table and in the label's, or none.
    """
    parties = shop(seed, rows, items, twice)
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), parties)
        rel = fed.sql(SQL.format(label="y"), label="y")
        alias = "s" if names == "c" else "i"
        kinds = pd.Series([str(each)[:5] for each in materialised(rel, parties, alias, names)])
        code_of = {kind: code for code, kind in enumerate(sorted(kinds.unique()))}
        table = rel.mapping.tables[alias]
        codes = np.zeros(table.rows, np.int64)
        codes[table.index] = kinds.map(code_of)
        column = ColumnCodes(alias, codes, len(code_of), least)
        asked, deal = AskedLabels(rel.client, rel.query.label), Folds(folds, seed)  # type: ignore[arg-type]
        fold = fold_of_rows(rel.client, alias, deal)()
        parts = asked._parts(column, fold, folds)
        by_alias = dict(zip(rel.mapping.tables, zip(*places(rel), strict=True), strict=True))
        by_row, tables = fold[table.index], [by_alias[each] for each in {alias, "s"}]

        def different(chosen: NDArray[np.bool_]) -> list[int]:
            return [len({row for row, here in zip(each, chosen, strict=True) if here}) for each in tables]

        pooled = np.ones(len(kinds), bool)
        for kind, code in code_of.items():
            here = (kinds == kind).to_numpy()
            if parts[code]:
                pooled &= ~here
                for part in range(parts[code]):
                    assert all(not n or n >= least for n in different(here & (by_row % parts[code] == part)))
        assert pooled.all() or all(not n or n >= least for n in different(pooled))
        found = asked.of(column, deal)
        assert (found.counts[0] > 0).tolist() == [bool(parts[code]) for code in code_of.values()] + [False]


def policed(tmp_path: Path, **rules: TableRule) -> tp.Federation:
    """A shop whose parties have rules by table."""
    fed = federation(tmp_path, shop(6))
    for name in ("p0", "p1", "p2"):
        party_of(fed.engine, name)._guard.policy = Policy(tables=rules)
    return fed


@pytest.mark.parametrize("step", [prep.TargetEncode(columns=["g"]), prep.WOE(columns=["g"])], ids=["target", "woe"])
@pytest.mark.parametrize(
    ("rules", "message", "rule"),
    [
        (
            {"sales": TableRule(label_means=False)},
            r"step (TargetEncode|WOE): party 'p0', table 'sales', column 'b': means of the label by category of i.g "
            r"would reach party 'p2'.*policy rule label_means",
            "label_means",
        ),
        (
            {"items": TableRule(cross_statistics=False)},
            r"step (TargetEncode|WOE): party 'p2', table 'items', column 'g': learning from the label sends the "
            r"category of each row.*policy rule cross_statistics",
            "cross_statistics",
        ),
    ],
)
def test_policies_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any, rules: Any, message: str, rule: str
) -> None:
    """What a policy forbids is refused before anything is computed, and names column, step and rule."""
    fed = policed(tmp_path, **rules)
    rel = fed.sql(SQL.format(label="b"), label="b", prep=prep.Pipeline([step]))
    assert len(rel)
    messages = record_wire(monkeypatch)
    with pytest.raises(tp.PrivacyError, match=message) as told:
        tp.LogisticRegression().fit(rel)
    assert told.value.rule == rule
    assert not [each for each in messages if each.request.table]


def test_means_may_stay_at_home(tmp_path: Path) -> None:
    """Means of labels that no other party gets need no opt-in: of one table in one place."""
    table = shop(6)["p1"]["sales"]
    fed = federation(tmp_path, {"p0": {"sales": table}})
    party_of(fed.engine, "p0")._guard.policy = Policy(others=TableRule(label_means=False))
    rel = fed.sql("SELECT c, w, b FROM sales", label="b", prep=prep.Pipeline([prep.TargetEncode()]))
    assert tp.LogisticRegression().fit(rel).evaluate(rel)["auc"] > 0.5


def test_a_party_sends_no_codes_without_opt_in(tmp_path: Path) -> None:
    """Whatever a coordinator asks: without ``cross_statistics`` codes do not leave, nor under ``require_dp``."""
    for rules, rule in (
        (TableRule(cross_statistics=False), "cross_statistics"),
        (TableRule(budget=Budget(require_dp=True)), "require_dp"),
    ):
        (tmp_path / rule).mkdir()
        fed = policed(tmp_path / rule, items=rules)
        rel = fed.sql(SQL.format(label="b"), label="b")
        asked = {
            "blinding": "x", "columns": [], "categories": [("g", "text")], "wanted": ["g"],
            "digests0": np.zeros((1, 16), np.uint8),
        }  # fmt: skip
        with pytest.raises(tp.PrivacyError) as told:
            rel.client.ask_table("prep.codes", "i", asked)
        assert told.value.rule == rule


@pytest.mark.parametrize(
    "asked",
    [
        {"wanted": ["v"]},
        {"wanted": ["g", "g"]},
        {"wanted": ["w"]},
        {"steps": [Lookup("g", [1.0], 0.0, 0.0)]},
        {"steps": [FoldLookup("g", 3, 0, True, [0.0] * 2, [0.0] * 3, [0.0] * 3, Lookup("g", [1.0], 0.0, 0.0))]},
        {"digests0": np.zeros((2, 16), np.uint8)},
    ],
)
def test_strange_requests_are_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Columns that hold no codes or are not there, numbers that do not fit codes, categories that are listed twice."""
    rel = federation(tmp_path, shop(6)).sql(SQL.format(label="b"), label="b")
    given = {
        "blinding": "x", "columns": ["v"], "categories": [("g", "text")], "wanted": ["g"],
        "digests0": np.zeros((1, 16), np.uint8),
    }  # fmt: skip
    with pytest.raises(PartyError, match=r"prep\.codes|listed twice|not a selected column"):
        rel.client.ask_table("prep.codes", "i", given | asked)


def test_rare_codes_are_not_sent(tmp_path: Path) -> None:
    """A bin of fewer rows than ``min_group`` is sent as one that is not listed."""
    fed = policed(tmp_path, items=TableRule(min_group=5))
    rel = fed.sql(SQL.format(label="b"), label="b")
    values = np.sort(shop(6)["p2"]["items"]["v"].to_numpy())
    edges = [values[0] - 1, (values[1] + values[2]) / 2, values[-1] + 1]
    asked: dict[str, Any] = {
        "blinding": "x", "columns": ["v"], "categories": [], "wanted": ["v"], "steps": [Cut("v", edges)],
    }  # fmt: skip
    [reply] = rel.client.ask_table("prep.codes", "i", asked)
    assert sorted(reply["codes"][:, 0].tolist()) == [-1] * 2 + [1] * 10
    assert reply["least"] == 5


@pytest.mark.parametrize(
    ("make", "label", "message"),
    [
        (lambda: prep.TargetEncode(), None, r"step TargetEncode: it learns from the label, and the query has none"),
        (lambda: prep.WOE(), "y", r"WOE: the label needs two values"),
        (lambda: prep.TargetEncode(columns=["v"]), "y", r"TargetEncode: column i.v .* is a number"),
        (lambda: prep.TargetEncode(folds=0), "y", r"TargetEncode: folds is a whole number"),
        (lambda: prep.TargetEncode(folds=True), "y", r"TargetEncode: folds is a whole number"),
        (lambda: prep.TargetEncode(smooth=-1), "y", r"TargetEncode: smooth is 'auto', or a number from 0"),
        (lambda: prep.TargetEncode(smooth=float("nan")), "y", r"TargetEncode: smooth is 'auto', or a number from 0"),
        (lambda: prep.TargetEncode(smooth=MUCH), "y", r"TargetEncode: smooth is 'auto', or a number from 0"),
        (lambda: prep.TargetEncode(seed=-1), "y", r"TargetEncode: seed is a whole number"),
        (lambda: prep.TargetEncode(shuffle=MUCH), "y", r"TargetEncode: shuffle is True or False"),
        (lambda: prep.WOE(smooth="auto"), "b", r"WOE: smooth is a number from 0"),
        (lambda: prep.WOE(smooth=0, columns=["g"]), "w", r"WOE: .* only one of the label's values"),
    ],
)
def test_bad_input(tmp_path: Path, make: Any, label: str | None, message: str) -> None:
    """What a step cannot learn from is an error that says what is wrong."""
    parties = shop(6)
    table = parties["p1"]["sales"]
    alike = pa.array((table["item"].to_numpy() % 4 == 0).astype(np.float64))
    parties["p1"]["sales"] = table.set_column(1, "w", alike)
    del parties["p0"]
    fed = federation(tmp_path, parties)
    with pytest.raises(tp.LearnError, match=message):
        fed.sql(SQL.format(label=label or "y"), label=label, prep=prep.Pipeline([make()])).matrix()


def test_labels_that_do_not_fit(tmp_path: Path) -> None:
    """Three classes, one class, missing labels."""
    table = pa.table(
        {
            "c": list("aabb") * 5, "three": [f"k{each % 3}" for each in range(20)], "one": ["k"] * 20,
            "gaps": [None, 1.0] * 10,
        }
    )  # fmt: skip
    fed = federation(tmp_path, {"p0": {"t": table}})
    for label, message in (
        ("three", "label t.three has 3 classes, and its mean by category needs two"),
        ("one", "label t.one has one class only"),
        ("gaps", "label t.gaps is NULL in 10 rows"),
    ):
        rel = fed.sql(f"SELECT c, {label} FROM t", label=label, prep=prep.Pipeline([prep.TargetEncode()]))
        with pytest.raises(tp.LearnError, match=message):
            rel.matrix()


def test_under_privacy_it_is_refused(tmp_path: Path) -> None:
    """Means of true labels have no form with noise."""
    fed = federation(tmp_path, shop(6))
    rel = fed.sql(SQL.format(label="b"), label="b", prep=prep.Pipeline([prep.TargetEncode()]))
    for privacy, message in (
        (tp.Privacy(label_epsilon=1.0), r"step TargetEncode: it learns from true labels, and has no form with noise"),
        (
            tp.Privacy(feature_epsilon=1.0),
            r"step TargetEncode: it has no form with noise \(feature_epsilon\): it learns from true",
        ),
    ):
        with pytest.raises(tp.PrivacyError, match=message):
            tp.LogisticRegression(privacy=privacy).fit(rel)


def test_in_a_job_file(tmp_path: Path) -> None:
    """Steps that learn from the label are written and read like others; a job learns by them."""
    steps = [prep.TargetEncode(folds=3, smooth=2.0, columns=["kind"]), prep.WOE(columns=["x"])]
    pipeline = prep.Pipeline(steps)
    assert Pipeline.of_plain(pipeline.plain()) == pipeline
    with pytest.raises(tp.ConfigError, match=r"TargetEncode has no setting 'fold'; did you mean 'folds'\?"):
        Pipeline.of_plain([{"kind": "TargetEncode", "fold": 3}])
    job = write_job(tmp_path) / "job.toml"
    bins = '[[prep]]\nkind = "Bin"\nn = 4\ncolumns = ["weight", "price"]\n'
    target = '[[prep]]\nkind = "TargetEncode"\nfolds = 3\ncolumns = ["weight", "price"]\n'
    job.write_text(job.read_text() + bins + target)
    Run.to_train(job, lambda _: None).train()
    done = Run.of_folder(tmp_path / "runs" / "returns", lambda _: None)
    assert done.model().encoding_.described[1].startswith("TargetEncode(folds=3, smooth='auto'")
    unlabelled = "SELECT o.price, o.day, i.weight FROM orders o JOIN items i USING (item_id)"
    assert len(done.predict(OtherQuery(unlabelled))) == 400


@pytest.mark.parametrize("name", ["movielens-1m", "mimic-iii-demo"])
def test_real_tables(name: str) -> None:
    """Real keys, skew and missing values: encodings of scikit-learn and information values of pandas on the join."""
    if not is_there(name):
        pytest.skip(f"{name} is not here")

    def read(table: str) -> pd.DataFrame:
        return pd.read_parquet(DATA / name / f"{table}.parquet")

    fed = tp.Federation({"owner": f"parquet://{DATA / name}"}, wire="float64")
    if name == "movielens-1m":
        sql, label = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres m USING (movie_id)", "good"
        sql = f"SELECT u.occupation, m.genre, r.rating > 3 AS good {sql}"
        frame = read("ratings").merge(read("users"), on="user_id").merge(read("movies_genres"), on="movie_id")
        frame["good"] = frame["rating"] > 3
        columns = ["occupation", "genre"]
    else:
        sql, label = "FROM icustays i JOIN admissions a USING (hadm_id)", "hospital_expire_flag"
        sql = f"SELECT i.first_careunit, a.language, a.ethnicity, a.hospital_expire_flag {sql}"
        frame = read("icustays").merge(read("admissions").drop(columns=["row_id", "subject_id"]), on="hadm_id")
        columns = ["first_careunit", "language", "ethnicity"]
    encoders = {"target": prep.TargetEncode(), "woe": prep.WOE()}
    for kind, step in encoders.items():
        rel = fed.sql(sql, label=label, prep=prep.Pipeline([step]), categorical=columns[:1])
        assert len(rel) == len(frame)
        before = fed.engine.traffic.trips
        encoding = rel.fit_encoding()
        assert fed.engine.traffic.trips - before == 2
        for column in columns:
            [table] = [each for each in encoding.steps.values() if column in [name.name for name in each.columns]]
            [found] = [each for each in table.steps if isinstance(each, Lookup) and each.column == column]
            values = frame[column].astype(object).where(frame[column].notna(), None)
            if kind == "target":
                known = TargetEncoder(target_type="binary").fit(values.to_frame(), frame[label].astype(int))
                expected = known.encodings_[0]
            else:
                weights, value = weights_of_evidence(values.astype(object), frame[label], 0.5)
                expected = weights.groupby(values.fillna("(missing)").to_numpy()).first()
                [told] = [iv for each, iv in encoding.iv_.items() if each.endswith(f".{column}")]
                assert told == pytest.approx(value, rel=1e-9)
            told_values = [*found.values, *([found.missing] if frame[column].isna().any() else [])]
            np.testing.assert_allclose(np.sort(np.array(told_values, float)), np.sort(expected), atol=1e-9)


@pytest.mark.parametrize(
    ("steps", "error"),
    [([(40, 0)], "40 folds need 200 rows that take part"), ([(2, 0), (2, 1)], "must deal rows alike")],
)
def test_folds_single_out_no_few_rows(tmp_path: Path, steps: list[tuple[int, int]], error: str) -> None:
    """Numbers by fold are of the caller's choice: with a fold for each row, sums would tell its cells."""
    fed = federation(tmp_path, shop(5, 40, items=30), wire="float64")
    party = party_of(fed.engine, "p2")
    party._guard.policy = Policy(others=TableRule(min_group=5))
    rel = fed.sql(SQL.format(label="y"), label="y")
    made = [
        FoldLookup("g", folds, seed, False, [], [0.0] * folds, [0.0] * folds, Lookup("g", [], 0.0, 0.0))
        for folds, seed in steps
    ]
    rel.describe()  # announces its rows
    asked = Frame(party.table(rel.client.session, "i", HERE), rel.client.view, "b", {})
    with pytest.raises(tp.PartyError, match=error):
        check_steps(made, asked)
