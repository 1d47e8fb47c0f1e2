"""Programs on real keys, skew and missing values: scikit-learn's and statsmodels' on the joined table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, enet_path

import tablepuppet as tp
from benchmarks.data import DATA, is_there

MOVIES = "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres m USING (movie_id)"
STAYS = "FROM icustays i JOIN admissions a USING (hadm_id) JOIN patients p ON a.subject_id = p.subject_id"


def relation(name: str, select: str, label: str) -> tp.Relation:
    if not is_there(name):
        pytest.skip(f"{name} is not here")
    return tp.Federation({"owner": f"parquet://{DATA / name}"}, wire="float64").sql(f"SELECT {select}", label=label)


def without_firsts(x: Any, cells: Any) -> Any:
    """[1, X] without the first column of each category group."""
    kept = [place for place in range(x.shape[1]) if place not in x.first_categories]
    return sm.add_constant(cells[:, kept])


def test_movielens() -> None:
    """Nearly two million joined rows: components, clusters, least squares and lazy statistics, to 1e-6."""
    rel = relation("movielens-1m", f"u.age, u.gender, u.occupation, m.year, m.genre, r.rating {MOVIES}", "rating")
    x: Any = rel.matrix()
    cells, y = np.asarray(x @ np.eye(x.shape[1])), rel.label()
    found, known = tp.linalg.pca(x, components=5), PCA(5, svd_solver="covariance_eigh").fit(cells)
    np.testing.assert_allclose(found.explained_variance, known.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(np.abs(found.components), np.abs(known.components_), atol=1e-5)
    bent: Any = np.maximum(x - x.mean(axis=0), 0) ** 2
    np.testing.assert_allclose(bent.mean(axis=0), (np.maximum(cells - cells.mean(axis=0), 0) ** 2).mean(axis=0), 1e-8)
    np.testing.assert_allclose(x.var(axis=0), cells.var(axis=0), atol=1e-9)
    clusters = tp.linalg.kmeans(x, k=4, runs=1, max_iter=10)
    from_there = KMeans(4, init=clusters.centres, n_init=1, max_iter=1, tol=0).fit(cells)
    assert clusters.inertia == pytest.approx(from_there.inertia_, rel=0.05)  # which has made one more round
    model, ols = tp.linalg.lm(x, y), sm.OLS(y, without_firsts(x, cells)).fit()
    np.testing.assert_allclose(model.estimates.values, ols.params, atol=1e-6)
    np.testing.assert_allclose(model.estimates.errors, ols.bse, rtol=1e-6)
    weights = (y - y.min() + 1)[:, None]
    np.testing.assert_allclose(x.T @ (weights * x), cells.T @ (weights * cells), rtol=1e-8, atol=1e-4)


def test_mimic() -> None:
    """Stays in intensive care, with missing values: regressions, classes and a lasso path."""
    rel = relation(
        "mimic-iii-demo", f"i.los, a.admission_type, a.insurance, p.gender, a.hospital_expire_flag {STAYS}", "los"
    )
    x: Any = rel.matrix()
    cells, y = np.asarray(x @ np.eye(x.shape[1])), rel.label()
    full = without_firsts(x, cells)
    model, ols = tp.linalg.lm(x, y), sm.OLS(y, full).fit()
    np.testing.assert_allclose(model.estimates.values, ols.params, atol=1e-8)
    np.testing.assert_allclose(model.estimates.p_values, ols.pvalues, atol=1e-8)
    gamma = sm.GLM(y, full, family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-12)
    np.testing.assert_allclose(tp.linalg.glm(x, y, family="gamma").estimates.values, gamma.params, atol=1e-5)
    long = y > np.median(y)
    logistic = tp.linalg.multilogreg(x, long, l2=0.01)
    pooled = LogisticRegression(C=1 / (0.01 * len(y)), tol=1e-8, max_iter=1000).fit(cells, long)
    np.testing.assert_allclose(np.asarray(logistic.coef, float).ravel(), pooled.coef_.ravel(), atol=1e-4)
    path = tp.linalg.lasso(x, y, alphas=10)
    _, coefs, _ = enet_path(cells - cells.mean(axis=0), y - y.mean(), l1_ratio=1.0, alphas=path.alphas, tol=1e-10)
    np.testing.assert_allclose(path.coefs, coefs.T, atol=1e-5)
