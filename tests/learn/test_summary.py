"""`model.summary()`: the same coefficients, errors and tests as statsmodels has on the materialised join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm

import tablepuppet as tp
from tablepuppet.algebra.linalg.design import Design
from tests.party.policed import audit_lines, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import federation

SQL = "SELECT o.price, o.km, o.kind, i.weight, o.{} FROM orders o JOIN items i ON o.item = i.item"
ROWS, ITEMS = 400, 25
NOISY = tp.Privacy(label_epsilon=5.0, label_classes=(0.0, 1.0), feature_epsilon=5.0, prediction_epsilon=5.0)


def tables() -> dict[str, dict[str, pa.Table]]:
    """Prices in tens of thousands, kinds whose most frequent is ``a``, and labels of numbers, two and three classes."""
    rng, row = np.random.default_rng(3), np.arange(ROWS)
    price, km, weight = rng.normal(35_990, 9_000, ROWS), rng.gamma(2.0, 3.0, ROWS), rng.normal(5, 2, ITEMS)
    kind = np.array(["a", "b", "c"])[np.searchsorted([0.5, 0.88], rng.random(ROWS))]
    score = (price - 35_990) / 9_000 - 0.2 * km + (kind == "b") - 0.3 * weight[row % ITEMS]
    three = np.argmax(np.stack([score, np.zeros(ROWS), -score], 1) + rng.gumbel(size=(ROWS, 3)), axis=1)
    orders = {
        "item": row % ITEMS, "price": price, "km": km, "kind": kind, "paid": 100 * score + rng.normal(size=ROWS),
        "two": score + rng.logistic(size=ROWS) > 0, "three": np.array(["x", "y", "z"])[three],
    }  # fmt: skip
    return {
        "store": {"orders": pa.table(orders)},
        "shop": {"items": pa.table({"item": np.arange(ITEMS), "weight": weight})},
    }


def joined(parties: dict[str, dict[str, pa.Table]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(features with an intercept and one column per kind but ``a``, all orders), of the materialised join."""
    orders, items = parties["store"]["orders"].to_pandas(), parties["shop"]["items"].to_pandas()
    both = orders.merge(items, on="item")
    kinds = {f"o.kind={code}": (both["kind"] == name) * 1.0 for code, name in ((1, "b"), (2, "c"))}
    design = {"intercept": 1.0, "o.price": both["price"], "o.km": both["km"], **kinds, "i.weight": both["weight"]}
    return pd.DataFrame(design), both


def refuse(*_: Any) -> None:
    raise tp.PrivacyError("table 'items' releases no Gram matrix")


def compare(found: pd.DataFrame, expected: Any, names: list[str]) -> None:
    found, rel = found.set_index("name").loc[names], 1e-6
    np.testing.assert_allclose(found["coef"], expected.params, rtol=rel)
    np.testing.assert_allclose(found["std_err"], expected.bse, rtol=rel)
    np.testing.assert_allclose(found["statistic"], expected.tvalues, rtol=rel)
    np.testing.assert_allclose(found["p_value"], expected.pvalues, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(found[["low", "high"]], expected.conf_int(), rtol=1e-5)


def test_least_squares(tmp_path: Path) -> None:
    """Coefficients in own units, errors, t, p and intervals are those of OLS, to 1e-6; per std, times the deviation."""
    parties = tables()
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("paid"), label="paid")
    model = tp.LinearRegression(l2=1e-12, tol=0.0).fit(relation)
    design, both = joined(parties)
    found = model.summary().to_pandas()
    compare(found, sm.OLS(both["paid"], design).fit(), list(design))
    by_name = found.set_index("name")
    assert by_name.loc["o.price", "standardised"] == pytest.approx(
        by_name.loc["o.price", "coef"] * both["price"].std(ddof=0)
    )
    assert by_name.loc["o.price", "standardised"] == pytest.approx(float(model.coef_["o.price"]))
    assert "odds_ratio" not in found
    assert by_name["standardised"].isna().tolist() == [name.startswith(("o.kind", "inter")) for name in by_name.index]


def test_two_classes(tmp_path: Path) -> None:
    """Those of Logit; the odds ratio is that of one unit."""
    parties = tables()
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("two"), label="two")
    design, both = joined(parties)
    found = tp.LogisticRegression(l2=1e-12, tol=1e-15, rounds=400).fit(relation).summary()
    compare(found.to_pandas(), sm.Logit(both["two"].astype(float), design).fit(disp=0, tol=1e-12), list(design))
    by_name = found.to_pandas().set_index("name")
    np.testing.assert_allclose(by_name["odds_ratio"][1:], np.exp(by_name["coef"][1:]))
    assert np.isnan(by_name["odds_ratio"].iloc[0])
    text = " ".join(str(found).split())
    assert "odds ratio" in text
    assert "True against False" in text


def test_several_classes(tmp_path: Path) -> None:
    """Those of MNLogit: every class against the first."""
    parties = tables()
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("three"), label="three")
    design, both = joined(parties)
    expected = sm.MNLogit(both["three"], design).fit(disp=0, method="newton", maxiter=100)
    found = tp.LogisticRegression(l2=1e-12, tol=1e-15, rounds=400).fit(relation).summary().to_pandas()
    assert found["class"].unique().tolist() == ["y", "z"]
    for place, name in enumerate(["y", "z"]):
        mine = found[found["class"] == name].set_index("name").loc[list(design)]
        np.testing.assert_allclose(mine["coef"], expected.params[place], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mine["std_err"], expected.bse[place], rtol=1e-5)


def test_missing_categories_have_a_line(tmp_path: Path) -> None:
    """Rows without a category are compared with the first one too, as OLS with a column for them."""
    parties = tables()
    orders = parties["store"]["orders"]
    kinds = [None if row % 7 == 0 else kind for row, kind in enumerate(orders["kind"].to_pylist())]
    place = orders.column_names.index("kind")
    parties["store"]["orders"] = orders.set_column(place, "kind", pa.array(kinds))
    relation = federation(tmp_path, parties, wire="float64").sql(SQL.format("paid"), label="paid")
    design, both = joined(parties)
    design["o.kind missing"] = both["kind"].isna() * 1.0
    found = tp.LinearRegression(l2=1e-12, tol=0.0).fit(relation).summary().to_pandas()
    compare(found, sm.OLS(both["paid"], design).fit(), list(design))


def test_where_there_are_no_standard_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are coefficients, and the summary says why: a party refuses the Gram matrix, the model was fitted with
    privacy, or it was loaded and has no relation yet."""
    fed = federation(tmp_path, tables(), wire="float64")
    relation = fed.sql(SQL.format("paid"), label="paid")
    model = tp.LinearRegression().fit(relation)
    expected = model.summary().to_pandas()
    model.save(tmp_path / "model")
    loaded = tp.load(tmp_path / "model", fed)
    without = loaded.summary()
    assert without.to_pandas()["std_err"].isna().all()
    assert "No standard errors: a loaded model has no rows of its own" in " ".join(str(without).split())
    pd.testing.assert_frame_equal(loaded.summary(relation).to_pandas(), expected)
    with monkeypatch.context() as patched:
        patched.setattr(Design, "gram", refuse)
        refused = model.summary()
    assert "No standard errors: table 'items' releases no Gram matrix" in " ".join(str(refused).split())
    assert refused.to_pandas()["std_err"].isna().all()
    np.testing.assert_allclose(refused.to_pandas()["coef"], expected["coef"])
    privacy = tp.Privacy(label_epsilon=5.0, label_bounds=(-500.0, 500.0))
    noisy = tp.LinearRegression(privacy=privacy).fit(relation)
    assert "No standard errors: the model was fitted with privacy" in " ".join(str(noisy.summary()).split())


def test_how_it_reads(tmp_path: Path) -> None:
    """Units, the category that others are compared with and numbers as people write them, in text and in a notebook;
    it is in `dir`."""
    relation = federation(tmp_path, tables(), wire="float64").sql(SQL.format("paid"), label="paid")
    model = tp.LinearRegression().fit(relation)
    assert "summary" in dir(model)
    text = " ".join(str(model.summary()).split())
    assert "coef: per unit of a column; per std: per standard deviation" in text
    assert "Categories are compared with o.kind=0 (a)" in text
    assert "o.kind=1 (b)" in text
    assert "e+" not in text
    assert "<table" in model.summary()._repr_html_()


@pytest.mark.parametrize(
    ("settings", "privacy", "why"),
    [
        ({"table": "matrix = true"}, None, ""),
        ({}, None, "policy rule matrix"),
        ({"table": "matrix = true", "limits": "max_matrix_columns = 1"}, None, "policy rule max_matrix_columns"),
        ({"table": "matrix = true", "more": "[tables.cards.budget]\nrequire_dp = true"}, NOISY, "fitted with privacy"),
    ],
)
def test_a_policy_decides_whether_there_are_standard_errors(
    tmp_path: Path, settings: dict[str, str], privacy: tp.Privacy | None, why: str
) -> None:
    """Over a real party file a model has its coefficients, and says which rule keeps the errors from it; no product of
    the rows that only the errors need has left then.
    """
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, top='state_dir = "state"\naudit_log = "audit.jsonl"', **settings)
    relation = policed(open_party(file)).sql("SELECT credit, open, region, fraud FROM cards", label="fraud")
    model = tp.LogisticRegression(l2=0.1, rounds=5, privacy=privacy).fit(relation)
    before = len(audit_lines(tmp_path))
    found = model.summary()
    assert found.to_pandas()["coef"].notna().all()
    assert found.to_pandas()["std_err"].isna().all() == bool(why)
    text = " ".join(str(found).split())
    assert ("No standard errors" in text) == bool(why)
    assert why in text
    released = [line for line in audit_lines(tmp_path)[before:] if "GRAM" in str(line) and not line.get("rule")]
    assert bool(released) == (not why)
