"""Wide tables: their Gram matrices are solved without eigenvectors, to the same solutions and the same models."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import OneHotEncoder

import tablepuppet as tp
from tablepuppet.learn.linear.wide_gram import WIDE, FewRows, wide_gram
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tests.relations import federation

Array = NDArray[np.float64]


def encoded(rng: np.random.Generator, rows: int, numbers: int, *sizes: int) -> EncodedTable:
    """Random numbers and categories; some rows have no category."""
    codes = tuple(rng.integers(-1, size, rows).astype(np.int32) for size in sizes)
    return EncodedTable(rng.normal(size=(rows, numbers)) + 3.0, codes, sizes)


@pytest.mark.parametrize("shape", [(3, 700), (2, 400, 300), (0, 600), (600,)])
@pytest.mark.parametrize("l2", [1e-6, 0.1])
def test_solutions_are_those_of_the_matrix(shape: tuple[int, ...], l2: float) -> None:
    """Of categories and numbers, one at a time or several with curvatures of their own."""
    rng = np.random.default_rng(0)
    data, counts = encoded(rng, 3_000, *shape), rng.integers(1, 4, 3_000).astype(np.float64)
    joined = counts.sum()
    means = data.transposed_times(counts) / joined
    wide = wide_gram(data, counts, joined, means)
    centred = data.gram(counts) / joined - np.outer(means, means)
    np.testing.assert_allclose(wide.centred(), centred, 0, 1e-12)
    gradient, curvatures = centred @ rng.normal(size=(data.width, 3)), np.array([1.0, 0.2, 0.03])
    found = wide.solve(gradient, curvatures, l2)
    assert found is not None
    for place, curvature in enumerate(curvatures):
        expected = np.linalg.solve(curvature * centred + l2 * np.eye(data.width), gradient[:, place])
        np.testing.assert_allclose(found[:, place], expected, 0, 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("rows", "shape"), [(300, (700,)), (120, (500, 30, 40)), (599, (600,))])
@pytest.mark.parametrize("l2", [1e-6, 0.1])
def test_few_rows_are_solved_through_their_products(
    rows: int, shape: tuple[int, ...], l2: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table with fewer rows than columns no Gram matrix is made, whatever the means; solutions are its own."""
    rng = np.random.default_rng(0)
    data, counts = encoded(rng, rows, *shape), rng.integers(1, 4, rows).astype(np.float64)
    data.dense[:, 0] *= 1e-3
    data.dense[:, 1] += 1e6
    joined = counts.sum()
    means = data.transposed_times(counts) / joined
    centred = data.gram(counts, means) / joined
    gradient, curvatures = centred @ rng.normal(size=(data.width, 3)), np.array([1.0, 0.2, 0.03])
    with monkeypatch.context() as patched:
        patched.setattr(EncodedTable, "gram", None)
        wide = wide_gram(data, counts, joined, means)
        assert isinstance(wide, FewRows)
        found = wide.solve(gradient, curvatures, l2)
        assert found is not None
        assert wide.solve(gradient, curvatures, 0.0) is None  # there is more than one
    np.testing.assert_allclose(wide.centred(), centred, 0, 1e-10)
    np.testing.assert_allclose(wide.diagonal, np.diag(centred), 1e-9, 1e-12)
    for place, curvature in enumerate(curvatures):
        left = curvature * (centred @ found[:, place]) + l2 * found[:, place] - gradient[:, place]
        assert np.linalg.norm(left) <= 1e-8 * np.linalg.norm(gradient[:, place])


@pytest.mark.parametrize("l2", [1e-4, 0.0])
def test_models_of_few_rows_are_those_of_the_join(tmp_path: Path, l2: float) -> None:
    """A linear model of 200 rows and 600 numbers has the predictions of scikit-learn, also without a penalty."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200, 600)) + 5.0
    y = x[:, :3].sum(axis=1) + rng.normal(size=200)
    names = [f"x{place}" for place in range(600)]
    table = pa.table({name: x[:, place] for place, name in enumerate(names)} | {"y": y})
    relation = federation(tmp_path, {"p": {"wide": table}}).sql(f"SELECT {', '.join(names)}, y FROM wide", label="y")
    model = tp.LinearRegression(l2=l2).fit(relation)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    expected = Ridge(alpha=l2 * 200).fit(scaled, y).predict(scaled) if l2 else y
    np.testing.assert_allclose(np.asarray(model.predict(relation)), expected, 0, 1e-7)


def test_dependent_tables_have_eigenvectors() -> None:
    """A narrow table is not solved by steps; of equal columns without a penalty there is no solution by steps."""
    rng = np.random.default_rng(0)
    column = rng.normal(size=(100, 1))
    twice = np.repeat(column, WIDE, axis=1)
    data = EncodedTable(twice, (), ())
    wide = wide_gram(data, np.ones(100), 100.0, twice.mean(axis=0))
    assert wide.solve(rng.normal(size=(WIDE, 1)), np.ones(1), 0.0) is None


def visits(shards: int) -> tuple[dict[str, dict[str, pa.Table]], csr_array, Array]:
    """800 places within 40 regions, both as text, with effects; (tables, the encoded matrix, labels)."""
    rng = np.random.default_rng(1)
    rows, places = 6_000, 800
    place = np.concatenate([np.arange(places), rng.integers(0, places, rows - places)])
    region, size = place % 40, rng.normal(size=rows)
    y = size + rng.normal(size=places)[place] + rng.normal(size=40)[region] + 0.3 * rng.normal(size=rows)
    names = {"place": [f"p{each}" for each in place.tolist()], "region": [f"r{each}" for each in region.tolist()]}
    table = pa.table({**names, "size": size, "y": y, "is_high": y > 0})
    cuts = np.linspace(0, rows, shards + 1).astype(int).tolist()
    parties = {f"p{i}": {"visits": table.slice(a, b - a)} for i, (a, b) in enumerate(pairwise(cuts))}
    texts = np.column_stack([np.array(each, object) for each in names.values()])
    scaled = (size - size.mean()) / size.std()
    return parties, csr_array(hstack([csr_array(scaled[:, None]), OneHotEncoder().fit_transform(texts)])), y


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("l2", [1e-3, 1e-6])
def test_models_are_those_of_the_join(tmp_path: Path, shards: int, l2: float) -> None:
    """A linear and a logistic model of nested categories have the predictions of scikit-learn."""
    parties, x, y = visits(shards)
    fed = federation(tmp_path, parties)
    relation = fed.sql("SELECT place, region, size, y FROM visits", label="y", max_categories=1_000)
    model = tp.LinearRegression(l2=l2).fit(relation)
    known = Ridge(alpha=l2 * len(y), solver="sparse_cg", tol=1e-12, max_iter=20_000).fit(x, y)
    np.testing.assert_allclose(np.asarray(model.predict(relation)), known.predict(x), 0, 2e-3)
    objective = np.mean((y - np.asarray(model.predict(relation))) ** 2)
    assert objective <= np.mean((y - known.predict(x)) ** 2) + 1e-5
    if l2 < 1e-3:
        return
    relation = fed.sql("SELECT place, region, size, is_high FROM visits", label="is_high", max_categories=1_000)
    high = tp.LogisticRegression(l2=l2).fit(relation)
    logistic = LogisticRegression(C=1 / (l2 * len(y)), tol=1e-8, max_iter=1_000).fit(x, y > 0)
    shares = np.asarray(high.predict_proba(relation))
    np.testing.assert_allclose(shares[:, -1] if shares.ndim == 2 else shares, logistic.predict_proba(x)[:, 1], 0, 2e-3)
