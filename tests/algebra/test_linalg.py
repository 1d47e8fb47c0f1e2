"""Programs over the joined matrix equal scikit-learn on the materialised join."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import cluster, decomposition

import tablepuppet as tp
from tests.learn.materialised import ALL, JOIN, Array, shop
from tests.party.policed import ROWS, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import federation, record_wire


@pytest.fixture(scope="module", params=[1, 3])
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    fed = federation(tmp_path_factory.mktemp("shop"), shop(request.param, together=True), wire="float64")
    return fed.sql(f"SELECT {ALL} {JOIN}").matrix()


@pytest.fixture(scope="module")
def dense(matrix: Any) -> Array:
    return np.asarray(matrix @ np.eye(matrix.shape[1]))


def test_components_are_scikit_learns(matrix: Any, dense: Array) -> None:
    """Variances agree to 1e-9, components to 1e-7 up to their sign, coordinates too."""
    found = tp.linalg.pca(matrix, components=4)
    known = decomposition.PCA(4, svd_solver="full").fit(dense)
    np.testing.assert_allclose(found.explained_variance, known.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(found.explained_variance_ratio, known.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(found.mean, known.mean_, atol=1e-9)
    signs = np.sign((found.components * known.components_).sum(axis=1))
    np.testing.assert_allclose(found.components, known.components_ * signs[:, None], atol=1e-7)
    np.testing.assert_allclose(found.transform(matrix), known.transform(dense) * signs, atol=1e-6)
    assert found.columns == matrix.columns
    assert np.all(np.take_along_axis(found.components, np.abs(found.components).argmax(1)[:, None], 1) > 0)


def test_components_take_two_trips(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of columns come with the first."""
    messages = record_wire(monkeypatch)
    tp.linalg.pca(matrix, components=2)
    assert max(Counter(message.party for message in messages if message.last).values()) == 2


@pytest.mark.parametrize("components", [0, -1, 12, 1.5, "2", True])
def test_components_that_there_are_not(matrix: Any, components: Any) -> None:
    """At most one per column."""
    with pytest.raises(tp.LearnError, match=r"components is a whole number from 1 to 11, since X has"):
        tp.linalg.pca(matrix, components)


@pytest.mark.parametrize("k", [1, 4])
def test_clusters_are_scikit_learns(matrix: Any, dense: Array, k: int) -> None:
    """Lloyd's algorithm ends where scikit-learn's stays, to 1e-9; the best of ten runs is about as good as theirs."""
    found = tp.linalg.kmeans(matrix, k=k, runs=10, max_iter=100, seed=0)
    assert found.centres.shape == (k, dense.shape[1])
    known = cluster.KMeans(k, init=found.centres, n_init=1, tol=0).fit(dense)
    np.testing.assert_allclose(known.cluster_centers_, found.centres, atol=1e-9)
    assert np.array_equal(known.labels_, found.labels)
    np.testing.assert_allclose(found.inertia, known.inertia_, rtol=1e-9)
    best = cluster.KMeans(k, n_init=10, random_state=0).fit(dense)
    assert found.inertia < 1.02 * best.inertia_
    assert np.array_equal(found.predict(matrix), found.labels)


@pytest.mark.parametrize("width", [2, 24])
def test_a_single_run_finds_clusters_that_lie_apart(tmp_path: Any, width: int) -> None:
    """Nine of ten runs begin with a row of each of eight clusters, also among projections of many columns."""
    rng = np.random.default_rng(0)
    corners = rng.choice([-9.0, 9.0], size=(8, width)) if width > 2 else 9.0 * np.argwhere(np.ones((4, 2)))
    dense = corners[np.arange(240) % 8] + rng.normal(size=(240, width))
    table = pa.table({f"x{place}": values for place, values in enumerate(dense.T)})
    fed = federation(tmp_path, {"p": {"t": table[:90]}, "q": {"t": table[90:]}})
    matrix = fed.sql("SELECT * FROM t", prep=tp.prep.Pipeline([])).matrix()
    best = ((dense - np.array([dense[place::8].mean(axis=0) for place in range(8)])[np.arange(240) % 8]) ** 2).sum()
    found = [tp.linalg.kmeans(matrix, k=8, runs=1, max_iter=100, seed=seed).inertia for seed in range(20)]
    assert np.mean(np.array(found) < 1.001 * best) >= 0.9, found


def test_runs_share_trips(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trips a round, and one to begin, however many runs there are; nothing as long as the joined rows travels."""
    messages = record_wire(monkeypatch)
    tp.linalg.kmeans(matrix, k=3, runs=5, max_iter=2)
    assert max(Counter(message.party for message in messages if message.last).values()) <= 5
    assert all(len(m.request.arguments["rows"]) <= 279 for m in messages if "rows" in m.request.arguments)


def test_one_seed_is_one_result(matrix: Any) -> None:
    """Another one may be another."""
    first, second = (tp.linalg.kmeans(matrix, k=3, runs=2, seed=5) for _ in range(2))
    assert np.array_equal(first.labels, second.labels)
    assert first.inertia == second.inertia


@pytest.mark.parametrize(
    "wrong", [{"k": 0}, {"k": 280}, {"k": 2.5}, {"runs": 0}, {"max_iter": 0}, {"k": None}, {"seed": -1}]
)
def test_settings_that_are_out_of_range(matrix: Any, wrong: dict[str, Any]) -> None:
    """Such as more clusters than rows."""
    with pytest.raises(tp.LearnError, match=rf"kmeans: {next(iter(wrong))} is a whole number from [01] to"):
        tp.linalg.kmeans(matrix, **wrong)


def test_rows_that_are_all_the_same(tmp_path: Any) -> None:
    """Fewer different rows than clusters: some clusters have no rows, and nothing is left to explain."""
    table = pa.table({"x": [1.0, 2.0] * 5, "y": [3.0, 1.0] * 5})
    matrix = federation(tmp_path, {"p": {"t": table}}, wire="float64").sql("SELECT x, y FROM t").matrix()
    found = tp.linalg.kmeans(matrix, k=4)
    assert found.inertia == pytest.approx(0.0, abs=1e-9)
    assert set(found.labels.tolist()) <= set(range(4))


def test_nothing_to_work_on(tmp_path: Any) -> None:
    """Without rows or columns there are no clusters."""
    fed = federation(tmp_path, {"p": {"t": pa.table({"x": [1.0, 2.0]})}})
    with pytest.raises(tp.LearnError, match="k-means needs rows and columns, and X has 0 joined rows"):
        tp.linalg.kmeans(fed.sql("SELECT x FROM t WHERE x > 5").matrix(), k=1)


def test_small_clusters_under_a_policy(tmp_path: Any) -> None:
    """A service tells no centre of fewer rows than its ``min_rows``; larger ones it does."""
    party = open_party(write_file(tmp_path, table="matrix = true\nmin_rows = 10"))
    matrix = policed(party).sql("SELECT credit, open FROM cards").matrix()
    assert tp.linalg.kmeans(matrix, k=2, runs=2).labels.shape == (ROWS,)
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        tp.linalg.kmeans(matrix, k=30, runs=1)
