"""Regressions over the joined matrix equal NumPy's and scikit-learn's on the materialised join."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import tablepuppet as tp
from tablepuppet.party.config import Limits
from tablepuppet.party.policy import CallerLimits, Policy, TableRule
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.party.policed import COLUMNS, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import federation, record_wire
from tests.wire.services import calling, served


@pytest.fixture(scope="module", params=[1, 3])
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), shop(request.param, together=True), wire="float64")


@pytest.fixture(scope="module")
def relation(fed: tp.Federation) -> tp.Relation:
    return fed.sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")


@pytest.fixture(scope="module")
def matrix(relation: tp.Relation) -> Any:
    return relation.matrix()


def design(matrix: Any) -> tuple[Array, list[int]]:
    """([1, X] without first categories, their places in X)."""
    kept = [place for place, name in enumerate(matrix.columns) if not name.endswith("=0")]
    cells = matrix @ np.eye(matrix.shape[1])[:, kept]
    return np.column_stack([np.ones(len(cells)), cells]), kept


@pytest.mark.parametrize("solver", ["auto", "gram", "cg", "lsmr"])
def test_least_squares_is_numpys(relation: tp.Relation, matrix: Any, solver: Any) -> None:
    """Coefficients to 1e-8; standard errors, t, p, R2 and the criteria to 1e-8 of the textbook's formulas."""
    y, (full, kept) = relation.label(), design(matrix)
    model = tp.linalg.lm(matrix, y, solver=solver)
    rows, width = full.shape
    known = np.linalg.lstsq(full, y, rcond=None)[0]
    assert list(model.coef) == matrix.columns
    np.testing.assert_allclose(np.asarray(model.coef)[kept], known[1:], atol=1e-8)
    assert np.count_nonzero(model.coef) == len(kept)  # those left out are zero
    assert model.intercept == pytest.approx(known[0], abs=1e-8)
    squares = np.sum((y - full @ known) ** 2)
    total = np.sum((y - y.mean()) ** 2)
    assert model.r2 == pytest.approx(1 - squares / total)
    assert model.adjusted_r2 == pytest.approx(1 - squares / (rows - width) / (total / (rows - 1)))
    likelihood = stats.norm.logpdf(y, full @ known, np.sqrt(squares / rows)).sum()
    assert (model.aic, model.bic) == pytest.approx((2 * (width - likelihood), width * np.log(rows) - 2 * likelihood))
    np.testing.assert_allclose(model.predict(matrix), full @ known, atol=1e-8)
    errors = np.sqrt(squares / (rows - width) * np.diag(np.linalg.inv(full.T @ full)))
    np.testing.assert_allclose(model.estimates.errors, errors, rtol=1e-8)
    t = stats.t(rows - width)
    np.testing.assert_allclose(model.estimates.p_values, 2 * t.sf(np.abs(known / errors)), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(model.estimates.intervals[:, 1], known + t.ppf(0.975) * errors, rtol=1e-7)
    f = (total - squares) / (width - 1) / (squares / (rows - width))
    assert model.f_statistic == pytest.approx(f)


def test_lsmr_and_the_wire(tmp_path: Path) -> None:
    """At float32 it converges as far as products are exact; it has no folder."""
    relation = federation(tmp_path, shop(2), wire="float32").sql(f"SELECT {ALL}, o.paid {JOIN}", label="paid")
    x, y = relation.matrix(), relation.label()
    found, known = (np.asarray(tp.linalg.lm(x, y, solver=solver).coef) for solver in ("lsmr", "gram"))
    np.testing.assert_allclose(found, known, atol=1e-4 * np.abs(known).max())
    with pytest.raises(tp.LearnError, match="solver='lsmr' keeps no state in a folder"):
        tp.linalg.lm(x, y, solver="lsmr", folder=tmp_path / "run")


def test_summary_is_a_table(relation: tp.Relation, matrix: Any) -> None:
    """A line for each coefficient, with what statsmodels prints of it."""
    model = tp.linalg.lm(matrix, relation.label())
    text = str(model.summary())
    for word in ("R-squared", "F-statistic", "AIC", "std err", "P>|t|", "[0.025", "intercept", "o.price", "i.colour=1"):
        assert word in text
    assert "│ i.colour=0" not in text
    assert "i.kind=0, i.colour=0" in text  # what the others are compared with
    assert f"{model.coef['o.price']:.4f}" in text
    assert "<table" in model.summary()._repr_html_()


def test_trips_of_least_squares(relation: tp.Relation, matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two for the Gram matrix, with the sums, and one for the residuals."""
    y, messages = relation.label(), record_wire(monkeypatch)
    tp.linalg.lm(matrix, y)
    assert max(Counter(message.party for message in messages if message.last).values()) == 3


def test_predictions_for_another_relation(fed: tp.Federation, relation: tp.Relation, matrix: Any) -> None:
    """By the encoders of the fit, whatever the order of tables and columns; a matrix with other encoders is refused."""
    model = tp.linalg.lm(matrix, relation.label())
    turned = ", ".join(reversed(ALL.split(", ")))
    other = fed.sql(
        f"SELECT {turned} FROM cards c JOIN orders o ON o.card_id = c.card_id JOIN items i ON o.item_id = i.item_id "
        "WHERE o.quantity > 2"
    )
    like = other.matrix(like=matrix)
    assert like.columns == matrix.columns
    found = model.predict(other)
    np.testing.assert_allclose(found, model.predict(like), atol=1e-12)
    quantity = np.asarray(matrix @ np.eye(matrix.shape[1])[matrix.columns.index("o.quantity")])
    higher = quantity > sorted(set(quantity))[1]  # quantities from 1
    np.testing.assert_allclose(np.sort(found), np.sort(model.predict(matrix)[higher]), atol=1e-9)
    np.testing.assert_allclose(other.matrix(like=model) @ np.asarray(model.coef) + model.intercept, found, atol=1e-12)
    with pytest.raises(
        tp.LearnError, match=r"not made as those that the model was fitted on.*rel\.matrix\(like=model\)"
    ):
        model.predict(other.matrix())


def test_relations_that_a_model_does_not_fit(fed: tp.Federation, matrix: Any, tmp_path: Path) -> None:
    """Other columns, another federation, no relation at all."""
    model = tp.linalg.pca(matrix, 2)
    assert model.transform(fed.sql(f"SELECT {ALL} {JOIN} WHERE o.quantity > 3")).shape[1] == 2
    with pytest.raises(tp.LearnError, match=r"lacks columns .*: o\.price, .*c\.age"):
        model.transform(fed.sql("SELECT i.weight, i.height, i.kind, i.colour FROM items i"))
    with pytest.raises(tp.LearnError, match="another federation"):
        model.transform(federation(tmp_path, shop()).sql(f"SELECT {ALL} {JOIN}"))
    with pytest.raises(tp.LearnError, match="takes a relation or its matrix, not ndarray"):
        model.transform(np.ones((2, 2)))  # type: ignore[arg-type]


def test_singular_systems_name_their_columns(tmp_path: Path) -> None:
    """Columns of two tables that add up to a third, but not the others."""
    rng = np.random.default_rng(0)
    a, b, free = rng.normal(size=(3, 40))
    parties = {
        "p": {"t": pa.table({"k": np.arange(40), "a": a, "free": free, "y": a})},
        "q": {"u": pa.table({"k": np.arange(40), "b": b, "c": a + b})},
    }
    for wire in ("float64", "float32"):
        (tmp_path / wire).mkdir()
        fed = federation(tmp_path / wire, parties, wire=wire)
        relation = fed.sql("SELECT t.a, t.free, u.b, u.c, t.y FROM t JOIN u USING (k)", label="y")
        with pytest.raises(
            tp.LearnError, match=r"linearly in these rows: t\.a, u\.b, u\.c\. Leave 1 of them out: X\[:, col"
        ):
            tp.linalg.lm(relation.matrix(), relation.label())
        part = fed.sql("SELECT t.a, t.free, u.b, u.c, t.y FROM t JOIN u USING (k) WHERE k < 3", label="y")
        with pytest.raises(tp.LearnError, match="5 coefficients, intercept included, need more than 3 joined rows"):
            tp.linalg.lm(part.matrix(like=relation.matrix()), part.label())


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (np.ones(3), r"lm: y has shape \(3,\), and X has"),
        (np.ones((5, 2)), r"lm: y has shape \(5, 2\)"),
        (np.array(["a"]), "lm: y must be numbers"),
        (None, "lm: y has values that are not finite"),
    ],
)
def test_labels_that_do_not_fit(matrix: Any, label: Any, message: str) -> None:
    """Shape, text, NaN."""
    with pytest.raises(tp.LearnError, match=message):
        tp.linalg.lm(matrix, np.full(matrix.shape[0], np.nan) if label is None else label)
    with pytest.raises(tp.LearnError, match="lm: solver is one of 'auto', 'gram', 'cg', 'lsmr', not 'qr'"):
        tp.linalg.lm(matrix, np.ones(matrix.shape[0]), solver="qr")  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["cg", "lsmr"])
def test_errors_are_left_out_where_they_are_not_to_be_had(tmp_path: Path, solver: Any) -> None:
    """Coefficients by products all the same: with secure sums of two tables, and where columns depend on each other."""
    sql = f"SELECT {ALL}, o.paid {JOIN}"
    fed = federation(tmp_path, shop(3, together=True), wire="float64")
    relation = fed.sql(sql, label="paid")
    y, plain, secure = relation.label(), fed.sql(sql, label="paid").matrix(), relation.matrix(secure_sum=True)
    known, model = tp.linalg.lm(plain, y, solver=solver), tp.linalg.lm(secure, y, solver=solver)
    np.testing.assert_allclose(np.asarray(model.coef), np.asarray(known.coef), atol=1e-6)
    assert np.isnan(model.estimates.errors).all()
    assert "No standard errors" in str(model.summary())
    assert "numbers are standardised, categories 0 or 1" in " ".join(str(model.summary()).split())
    assert not np.isnan(known.estimates.errors).any()
    again = fed.sql("SELECT o.price, 2 * o.price + 1 AS again, o.paid FROM orders o", label="paid")
    twice, y = again.matrix(), again.label()
    assert np.isnan(tp.linalg.lm(twice, y, solver=solver).estimates.errors).all()
    with pytest.raises(tp.LearnError, match="depend on each other linearly"):
        tp.linalg.lm(twice, y)


@pytest.mark.parametrize("program", [tp.linalg.lm, tp.linalg.glm])
def test_columns_that_nearly_depend_on_each_other(program: Any) -> None:
    """Their difference tells as much, and is what a refusal advises; leaving one out would be another model."""
    rng = np.random.default_rng(0)
    one, apart, noise = rng.normal(size=(3, 300))
    rows = {"a": one, "b": one + 1e-7 * apart, "y": one + apart + 0.1 * noise}
    fed = tp.Federation({"p": {"t": rows}}, verbose=False)
    relation = fed.sql("SELECT a, b, y FROM t", label="y")
    with pytest.raises(tp.LearnError, match="if they only nearly do, select their difference instead of one of them"):
        program(relation.matrix(), relation.label())
    relation = fed.sql("SELECT a, b - a AS apart, y FROM t", label="y")
    X = np.c_[np.ones(300), one, (rows["b"] - one) * 1e7]
    best = X @ np.linalg.lstsq(X, rows["y"], rcond=None)[0]
    model = program(relation.matrix(), relation.label())
    np.testing.assert_allclose(model.predict(relation), best, atol=1e-6)


def test_limits_leave_errors_out(tmp_path: Path) -> None:
    """A Gram matrix that is larger than a party's replies may be does not cost the coefficients."""
    in_process = federation(tmp_path, {"bank": {"t": wide_table()}}, wire="float64")
    sql = f"SELECT {', '.join(f'x{number}' for number in range(60))}, y FROM t"
    policy = Policy(others=TableRule(matrix=True), limits=CallerLimits(reply_bytes=8 * 60 * 59))
    with served({"bank": f"parquet:///{tmp_path / 'bank'}"}, limits=Limits(), policy=policy) as servers:
        relation = calling(servers, wire="float64").sql(sql, label="y")
        model = tp.linalg.lm(relation.matrix(plan="heuristic"), relation.label(), solver="cg")
    whole = in_process.sql(sql, label="y")
    known = tp.linalg.lm(whole.matrix(), whole.label())
    np.testing.assert_allclose(np.asarray(model.coef), np.asarray(known.coef), atol=1e-5)
    assert np.isnan(model.estimates.errors).all()


def wide_table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({f"x{number}": rng.normal(size=200) for number in range(60)} | {"y": rng.normal(size=200)})


def test_least_squares_under_a_policy(tmp_path: Path) -> None:
    """A service whose table opts in answers; one that does not is named with its rule."""
    sql = "SELECT credit, open, fraud FROM cards"
    relation = policed(open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 10"))).sql(sql, label="fraud")
    assert tp.linalg.lm(relation.matrix(), relation.label()).estimates.errors.all()
    (tmp_path / "other").mkdir()
    closed = policed(open_party(write_file(tmp_path / "other", columns=COLUMNS))).sql(sql, label="fraud")
    with pytest.raises(tp.PrivacyError, match="matrix"):
        tp.linalg.lm(closed.matrix(), closed.label())
