"""Columns and labels far from zero for their spread: programs find what NumPy finds on the materialised join.

In one process, and over services whose row arrays travel as float32: columns are centred before they are multiplied or
sent, so neither their means nor the wire's precision change a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet import prep
from tests.relations import Parties, federation, write_party
from tests.wire.services import calling, served

Array = NDArray[np.float64]
SQL = "SELECT o.a, o.b, i.c, i.d, i.e, o.y FROM orders o JOIN items i ON o.item = i.id"
COLUMNS = ["o.a", "o.b", "i.c", "i.d", "i.e"]
OWN = prep.Pipeline([prep.Impute()])  # in the units of the columns
SOLVERS: list[Any] = ["gram", "cg", "lsmr"]
WAYS = ["one process", "services"]
MEANS = [1e6, 1e9]


@dataclass
class Shop:
    """Orders in two shards joined with items: what parties have, and the columns of the join less what was added."""

    parties: Parties
    columns: Array  # (joined rows, 5), missing values are the mean; column j has ``means[j]`` more at the parties
    label: Array  # the same, ``mean`` more
    means: Array
    mean: float

    @contextmanager
    def opened(self, way: str, folder: Path, pipeline: Any = OWN) -> Iterator[Any]:
        """The relation."""
        if way == "one process":
            yield federation(folder, self.parties).sql(SQL, label="y", prep=pipeline)
            return
        urls = {name: write_party(folder, name, tables) for name, tables in self.parties.items()}
        with served(urls) as servers:
            yield calling(servers, wire="float32").sql(SQL, label="y", prep=pipeline)

    def units(self, values: Array) -> Array:
        """Coefficients by column, in standard deviations of label and column."""
        return np.asarray(values * self.columns.std(axis=0) / self.label.std())


def shop(mean: float, label: float | None = None, near: float = 0.3, rows: int = 400, seed: int = 0) -> Shop:
    """A shop whose columns have a mean of ``mean`` spreads, in part; ``near`` is how far b is from a."""
    rng, items = np.random.default_rng(seed), 40
    a = np.round(rng.normal(size=rows), 2)
    b = np.round(a + near * rng.normal(size=rows), 6 if near < 0.1 else 2)
    c, d = np.round(rng.normal(size=(2, items)), 2)
    d = np.round((d + c) * 1e3)
    e = rng.integers(0, 9, items).astype(float)
    item = rng.integers(0, items, rows)
    y = np.round(a - 2 * b + c[item] + 1e-3 * d[item] + 0.1 * e[item] + rng.normal(size=rows), 2)
    missing = rng.random(rows) < 0.1
    means, of_label = np.array([mean, -mean, mean, 1e3 * mean, 0.0]), mean if label is None else label
    joined = np.column_stack([a, b, c[item], d[item], e[item]])
    joined[missing, 0] = joined[~missing, 0].mean()
    tables = {}
    for name, part in (("north", slice(0, 150)), ("south", slice(150, None))):
        mine = pa.array(a[part] + mean, mask=missing[part])
        orders = {"item": item[part], "a": mine, "b": b[part] - mean, "y": y[part] + of_label}
        tables[name] = {"orders": pa.table(orders)}
    tables["store"] = {"items": pa.table({"id": np.arange(items), "c": c + mean, "d": d + 1e3 * mean, "e": e})}
    return Shop(tables, joined, y, means, of_label)


def least_squares(columns: Array, label: Array) -> tuple[Array, Array, float]:
    """(slopes, their standard errors, the residual squares), by an orthogonal factorisation in double precision."""
    centred, left = columns - columns.mean(axis=0), label - label.mean()
    scale = centred.std(axis=0)
    q, r = np.linalg.qr(centred / scale)
    slopes = np.linalg.solve(r, q.T @ left)
    squares = float(np.sum((left - centred / scale @ slopes) ** 2))
    inverse = np.linalg.inv(r)
    variances = (inverse**2).sum(axis=1) * squares / (len(label) - columns.shape[1] - 1)
    return slopes / scale, np.sqrt(variances) / scale, squares


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mean", MEANS)
def test_variances(mean: float, way: str, tmp_path: Path) -> None:
    """Variances, deviations, norms and sums of columns, of rows and of everything; also after they are scaled."""
    known = shop(mean)
    columns = known.columns
    with known.opened(way, tmp_path) as relation:
        x = relation.matrix()
        assert x.columns == COLUMNS
        for array, scale in ((x, 1.0), (x * 1e-3 + 5.0, 1e-3)):
            np.testing.assert_allclose(array.std(axis=0, ddof=1), scale * columns.std(axis=0, ddof=1), rtol=1e-6)
            np.testing.assert_allclose(array.var(axis=0), (scale * columns).var(axis=0), rtol=1e-6)
        np.testing.assert_allclose(x.means, columns.mean(axis=0) + known.means, rtol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(x - x.means, axis=0) / 20, columns.std(axis=0), rtol=1e-6)
        np.testing.assert_allclose(x.std(), (columns + known.means).std(), rtol=1e-9)
        rows = x[:, [0, 2]].std(axis=1)  # two columns with one mean
        np.testing.assert_allclose(np.sort(rows), np.sort(columns[:, [0, 2]].std(axis=1)), atol=2e-6)
        squared = np.square(x[:, [4]] + 1e4)  # a function of columns has no encoder that knows its mean
        np.testing.assert_allclose(squared.std(axis=0), ((columns[:, 4] + 1e4) ** 2).std(), rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mean", MEANS)
def test_correlations_and_components(mean: float, way: str, tmp_path: Path) -> None:
    """`cor` and `pca` are those of columns about zero."""
    known = shop(mean)
    with known.opened(way, tmp_path) as relation:
        x = relation.matrix()
        np.testing.assert_allclose(tp.linalg.cor(x), np.corrcoef(known.columns.T), atol=1e-6)
        found = tp.linalg.pca(x[:, [0, 1, 2]], components=3)
        three = known.columns[:, :3]
        values, vectors = np.linalg.eigh(np.cov(three.T))
        np.testing.assert_allclose(found.explained_variance, values[::-1], rtol=1e-6)
        np.testing.assert_allclose(np.abs(found.components @ vectors[:, ::-1]), np.eye(3), atol=1e-6)
        np.testing.assert_allclose(found.transform(x[:, [0, 1, 2]]).std(axis=0, ddof=1) ** 2, values[::-1], rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("mean", "label"), [(0.0, 1e6), (1e6, 0.0), (1e9, 1e9)])
def test_least_squares(mean: float, label: float, way: str, tmp_path: Path) -> None:
    """`lm` by every solver: coefficients, their errors and R2 are those of an orthogonal factorisation, to 1e-6."""
    known = shop(mean, label)
    slopes, errors, squares = least_squares(known.columns, known.label)
    with known.opened(way, tmp_path) as relation:
        x, y = relation.matrix(), relation.label()
        fits = [tp.linalg.lm(x, y, solver=solver) for solver in SOLVERS]
    for fit in fits:
        np.testing.assert_allclose(known.units(np.asarray(fit.coef)), known.units(slopes), atol=1e-6)
        np.testing.assert_allclose(fit.estimates.errors[1:], errors, rtol=1e-5)
        assert fit.residual_squares == pytest.approx(squares, rel=1e-6)
        predicted = fit.intercept + np.asarray(fit.coef) @ (known.columns.mean(axis=0) + known.means)
        assert predicted == pytest.approx(known.label.mean() + label, rel=1e-11, abs=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_columns_that_nearly_depend_on_each_other(way: str, tmp_path: Path) -> None:
    """Two columns with a correlation of 1 - 5e-7, far from zero, are no dependent ones, and have their coefficients."""
    known = shop(1e3, near=1e-3)
    slopes, errors, squares = least_squares(known.columns, known.label)
    with known.opened(way, tmp_path) as relation:
        x, y = relation.matrix(), relation.label()
        fits = [tp.linalg.lm(x, y, solver=solver) for solver in SOLVERS]
    for fit in fits:
        np.testing.assert_allclose(np.asarray(fit.coef), slopes, rtol=1e-6, atol=1e-6 * np.abs(slopes).max())
        np.testing.assert_allclose(fit.estimates.errors[1:], errors, rtol=1e-5)
        assert fit.residual_squares == pytest.approx(squares, rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mean", MEANS)
def test_penalties_and_selection(mean: float, way: str, tmp_path: Path) -> None:
    """`lasso` in the units of its columns fulfils the conditions of its minimum; `steplm` ends at least squares."""
    known = shop(mean)
    with known.opened(way, tmp_path) as relation:
        x, y = relation.matrix(), relation.label()
        path, steps = tp.linalg.lasso(x, y, alphas=[0.3, 0.03]), tp.linalg.steplm(x, y)
    centred = known.columns - known.columns.mean(axis=0)
    for alpha, coef in zip(path.alphas, path.coefs, strict=True):
        left = known.label - known.label.mean() - centred @ coef
        weights = centred.T @ left / len(left)
        scale = centred.std(axis=0)
        assert np.all(np.abs(weights) <= alpha + 1e-5 * scale)
        np.testing.assert_allclose((weights / scale)[coef != 0], (alpha * np.sign(coef) / scale)[coef != 0], atol=1e-5)
    assert np.any(path.coefs != 0)
    chosen = [COLUMNS.index(name) for name in steps.selected]
    slopes, _, squares = least_squares(known.columns[:, chosen], known.label)
    np.testing.assert_allclose(np.asarray(steps.coef)[chosen], slopes, rtol=1e-5)
    assert steps.residual_squares == pytest.approx(squares, rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mean", [1e9])
def test_generalised_models(mean: float, way: str, tmp_path: Path) -> None:
    """`glm`, `l2svm` and `multilogreg`: derivatives of the loss on the materialised join are zero, to 1e-6."""
    known = shop(mean, label=0.0)
    centred = known.columns - known.columns.mean(axis=0)
    spreads = centred.std(axis=0)
    classes = known.label > np.median(known.label)
    with known.opened(way, tmp_path) as relation:
        x, y = relation.matrix(), relation.label()
        is_second = y > np.median(known.label)
        line = tp.linalg.glm(x, y + 1e9)
        curve = tp.linalg.glm(x, is_second.astype(float), family="binomial")
        machine = tp.linalg.l2svm(x, is_second, l2=1e-2)
        chances = tp.linalg.multilogreg(x, is_second, l2=1e-2)
        assert machine.accuracy == pytest.approx(np.mean(machine.predict(x) == is_second), abs=1e-2)
    slopes, errors, _ = least_squares(known.columns, known.label)
    np.testing.assert_allclose(known.units(np.asarray(line.coef)), known.units(slopes), atol=1e-6)
    np.testing.assert_allclose(line.estimates.errors[1:], errors, rtol=1e-5)

    def scores(fit: Any) -> Array:
        about = fit.intercept + np.asarray(fit.coef) @ (known.columns.mean(axis=0) + known.means)
        return np.asarray(about + centred @ np.asarray(fit.coef))

    signs = np.where(classes, 1.0, -1.0)
    coarse = 3e-6 if mean else 1e-6  # the intercept has the digits that the mean leaves
    for fit, l2 in ((curve, 0.0), (machine, 1e-2), (chances, 1e-2)):
        found = scores(fit)
        slope = -signs * np.maximum(1 - signs * found, 0) if fit is machine else 1 / (1 + np.exp(-found)) - classes
        gradient = centred.T @ slope / len(slope) + l2 * np.asarray(fit.coef)
        np.testing.assert_allclose(gradient / spreads, 0, atol=coarse)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mean", [1e9])
def test_clusters(mean: float, way: str, tmp_path: Path) -> None:
    """k-means far from zero finds clusters whose centres are the means of their rows, and their inertia."""
    known = shop(mean)
    with known.opened(way, tmp_path) as relation:
        x = relation.matrix()[:, [0, 1, 2]]
        found = tp.linalg.kmeans(x, k=4, runs=3, max_iter=100)
        assert np.array_equal(found.predict(x), found.labels)
    columns = known.columns[:, :3]
    centres = found.centres - known.means[:3]
    distances = np.sum((columns[:, None] - centres) ** 2, axis=2)
    assert found.inertia == pytest.approx(distances.min(axis=1).sum(), rel=1e-6)
    nearest = distances.argmin(axis=1)
    means = np.array([columns[nearest == place].mean(axis=0) for place in range(4)])
    np.testing.assert_allclose(centres, means, atol=2e-6)


@pytest.mark.parametrize("way", WAYS)
def test_standardised_columns_of_a_far_label(way: str, tmp_path: Path) -> None:
    """With the usual preparation, a label a billion spreads from zero has the coefficients of one about zero."""
    known = shop(1e9)
    scaled = (known.columns - known.columns.mean(axis=0)) / known.columns.std(axis=0)
    slopes, errors, squares = least_squares(scaled, known.label)
    with known.opened(way, tmp_path, None) as relation:
        fit = tp.linalg.lm(relation.matrix(), relation.label())
    np.testing.assert_allclose(np.asarray(fit.coef), slopes, atol=1e-6)
    np.testing.assert_allclose(fit.estimates.errors[1:], errors, rtol=1e-6)
    assert fit.r2 == pytest.approx(1 - squares / (len(known.label) * known.label.var()))
