"""The relation as a matrix: lazy expressions are NumPy's, programs those of SciPy, statsmodels and scikit-learn.

The dense matrix is the encoded one, in float64. Where a mean is a billion times the spread, or one column a million
times another, the other library gets centred and scaled columns: it is the truth that is wanted, not its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import statsmodels.api as sm
from scipy.optimize import minimize
from sklearn.cluster import KMeans
from sklearn.linear_model import enet_path

import tablepuppet as tp
from tablepuppet import prep

from .optimum import centred, condition, logistic, mean_loss
from .report import Report
from .scenes import Array, Random, Star, exact, nullable, number, text
from .tolerances import COEFFICIENT, CONDITION, OBJECTIVE, PROGRAM, SPREAD, WIRE, shift


def run(rng: Random, folder: Path, report: Report) -> None:
    """One matrix: some expressions, and one program."""
    scene = _scene(rng)
    steps = None if rng.random() < 0.4 else prep.Pipeline([])
    wire: Any = str(rng.choice(["float32", "float64"]))
    services = bool(rng.random() < 0.25)
    urls, asked = scene.urls(folder / "databases"), scene.sql(scene.columns(), "y")
    truth = tp.Federation(urls, wire="float64").sql(asked, label="y", prep=steps)
    dense = exact(truth)
    if len(dense) < 20:
        return
    with ExitStack() as stack:
        fed = stack.enter_context(scene.served(urls, wire=wire)) if services else tp.Federation(urls, wire=wire)
        relation = fed.sql(asked, label="y", prep=steps)
        X, y = relation.matrix(), relation.label()
        if services:  # rows come in another order there
            dense = exact(relation) if wire == "float64" else np.zeros((0, 0))
        place, units = "services" if services else "one process", "default" if steps is None else "own units"
        where = f"{wire}, {place}, {units}, {X.shape}"
        if len(dense):
            for _ in range(4):
                _expression(rng, report, X, dense, where, WIRE["float64"])
        elif services:
            dense, y = exact(truth), truth.label()
            with report.asking("columns of X", where):
                _columns(report, X, dense, where, WIRE[wire])
            return
        program = PROGRAMS[int(rng.integers(len(PROGRAMS)))]
        program(rng, report, X, dense, np.asarray(y, float), where)


def _scene(rng: Random) -> Star:
    """Numbers of any mean and scale, sometimes a category, and a label of the rows."""
    rows, items = int(rng.integers(60, 400)), int(rng.integers(10, 40))
    far = float(rng.choice([0.5, 3.0, 6.0, 9.0]))
    facts: dict[str, Any] = {
        f"f{n}": nullable(number(rng, rows, far=far, missing=False)) for n in range(rng.integers(1, 4))
    }
    tables = {"f": facts}
    if rng.random() < 0.6:
        facts["ka"] = pa.array(rng.integers(0, items, rows))
        tables["a"] = {"ka": pa.array(np.arange(items))}
        tables["a"] |= {
            f"a{n}": nullable(number(rng, items, far=far, missing=False)) for n in range(rng.integers(1, 3))
        }
    if rng.random() < 0.3:
        facts["f9"] = pa.array(text(rng, rows, missing=False), pa.string())
    far_label = 10 ** rng.uniform(0, 9) if rng.random() < 0.4 else 0.0
    noise = rng.normal(size=rows)
    for name in [each for each in facts if each[1:].isdigit() and each != "f9"]:
        values = np.asarray(facts[name].to_numpy(zero_copy_only=False))
        spread = float(np.std(values - values[0]))
        noise = noise + (rng.normal() * (values - values[0]) / spread if spread else 0.0)
    facts["y"] = pa.array(noise + far_label)
    return Star(
        {name: pa.table(cells) for name, cells in tables.items()}, {name: int(rng.integers(1, 3)) for name in tables}
    )


# Expressions


def _columns(report: Report, X: Any, dense: Array, where: str, rounded: float = 0.0) -> None:
    """Sums over columns: their error is measured by the spread, also beside a large mean."""
    means, deviations, variances = (np.asarray(each) for each in (X.mean(axis=0), X.std(axis=0), X.var(axis=0)))
    for place, values in enumerate(dense.T):
        what, off = f"{X.columns[place]}, {where}", shift(values)
        less = (values - values[0]).astype(np.longdouble)
        spread = float(less.std())
        mean = float(values[0] + less.mean())
        edge = 8 * np.spacing(abs(mean)) + rounded * np.abs(values).max()
        report.close("X.mean(axis=0)", means[place], mean, off * spread + edge, what)
        report.close("X.std(axis=0)", deviations[place], spread, off * spread + edge, what)
        report.close(
            "X.var(axis=0)",
            variances[place],
            spread**2,
            2 * off * spread**2 + 2 * edge * spread + edge**2,
            what,
        )


def _expression(rng: Random, report: Report, X: Any, dense: Array, where: str, within: float) -> None:
    rows, width = dense.shape
    v, u, w = rng.normal(size=(width,)), rng.normal(size=(rows,)), rng.random((rows,))
    cols = rng.permutation(width)[: rng.integers(1, width + 1)]
    row = dense.mean(axis=0)
    absolute = np.abs(dense)
    listed: list[tuple[str, Callable[[Any], Any], Any]] = [  # the last: the sum of absolute terms
        ("X @ v", lambda A: A @ v, absolute @ np.abs(v)),
        ("X.T @ u", lambda A: A.T @ u, absolute.T @ np.abs(u)),
        ("X.T @ X", lambda A: A.T @ A, absolute.T @ absolute),
        ("X.T @ (w * X)", lambda A: A.T @ (w[:, None] * A), absolute.T @ (w[:, None] * absolute)),
        ("X[:, cols] @ v", lambda A: A[:, cols] @ v[: len(cols)], absolute[:, cols] @ np.abs(v[: len(cols)])),
        ("(X - row) @ v", lambda A: (A - row) @ v, (absolute + np.abs(row)) @ np.abs(v)),
        ("sum(axis=0)", lambda A: A.sum(axis=0), absolute.sum(axis=0)),
        ("sum(axis=1)", lambda A: A.sum(axis=1), absolute.sum(axis=1)),
        ("norm(axis=0)", lambda A: np.linalg.norm(A, axis=0), np.linalg.norm(dense, axis=0)),
        ("norm(axis=1)", lambda A: np.linalg.norm(A, axis=1), np.linalg.norm(dense, axis=1)),
        ("max(axis=1)", lambda A: A.max(axis=1), absolute.max(axis=1)),
        ("min(axis=0)", lambda A: A.min(axis=0), absolute.max(axis=0)),
        ("tanh(X) @ v", lambda A: np.tanh(A) @ v, np.full(rows, np.abs(v).sum())),
        ("X.T @ tanh(X)", lambda A: A.T @ np.tanh(A), absolute.T @ np.ones_like(absolute)),
        ("maximum(X, 0)", lambda A: np.maximum(A, 0).sum(axis=0), absolute.sum(axis=0)),
        ("X > 0", lambda A: (A > 0).mean(axis=0), np.ones(width)),
        ("X ** 2", lambda A: (A**2).sum(axis=0), (absolute**2).sum(axis=0)),
        ("log1p(abs(X))", lambda A: np.log1p(np.abs(A)).sum(axis=0), np.log1p(absolute).sum(axis=0)),
        ("count_nonzero", lambda A: np.count_nonzero(A, axis=0), np.ones(width)),
        ("argmax(axis=1)", lambda A: A.argmax(axis=1), np.ones(rows)),
    ]
    if rng.random() < 0.3:
        with report.asking("columns of X", where):
            _columns(report, X, dense, where)
        return
    name, ask, scale = listed[int(rng.integers(len(listed)))]
    with report.asking(name, where):
        ours, truth = np.asarray(ask(X)), np.asarray(ask(dense))
        if name.startswith("arg"):  # of equal numbers the first
            ours, truth = dense[np.arange(rows), ours], dense[np.arange(rows), truth]
            scale = absolute.max(axis=1)
        report.close(f"matrix: {name}", ours, truth, within * scale, where)


# Programs


def _lm(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    """Least squares: residuals, and coefficients in standard errors."""
    solver: Any = str(rng.choice(["gram", "cg", "lsmr"]))
    where = f"lm by {solver}, {where}, label mean / spread {abs(y.mean()) / np.std(y - y[0]):.1e}"
    less, means = centred(dense)
    has_text = any("=" in name for name in X.columns)
    if condition(dense) > CONDITION or (np.ptp(less, axis=0) == 0).any():
        return
    with report.asking("lm", where):
        model = tp.linalg.lm(X, y, solver=solver)
        right = y - y[0]
        right = right - right.mean()
        lengths = np.sqrt((less**2).sum(axis=0))
        units = less / lengths
        best = np.linalg.lstsq(units, right, rcond=1e-13)[0]
        least = float(np.sum((right - units @ best) ** 2))
        coef = np.asarray(model.coef, float)
        offset = model.intercept + float(means @ coef) - (y[0] + (y - y[0]).mean())
        reached = float(np.sum((right - less @ coef - offset) ** 2))
        whole = float(right @ right)
        report.that(
            "lm: residuals", reached <= least * (1 + OBJECTIVE) + 1e-10 * whole,
            f"{where}: residual sum of squares {reached:.9g}, {least:.9g} is possible, {whole:.9g} without columns",
        )  # fmt: skip
        report.close("lm: r2", model.r2, 1 - least / whole, OBJECTIVE, where)
        if not has_text:
            freedom = len(y) - dense.shape[1] - 1
            errors = np.sqrt(least / freedom * np.diag(np.linalg.inv(units.T @ units))) / lengths
            report.close(
                "lm: coefficients", coef, best / lengths, COEFFICIENT * errors + SPREAD * np.abs(best / lengths), where
            )
            report.close(
                "lm: standard errors", model.estimates.errors[-len(coef) :], errors, COEFFICIENT * errors, where
            )


def _glm(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    """Generalised linear models: deviance and standard errors as statsmodels has them, of scaled columns."""
    family: Any = str(rng.choice(["poisson", "binomial", "gamma", "gaussian"]))
    where = f"glm {family}, {where}"
    less, _ = centred(dense)
    spread = less.std(axis=0)
    if condition(dense) > 1e3 or (spread == 0).any() or any("=" in name for name in X.columns):
        return
    units = less / spread
    drive = np.clip(units @ rng.normal(size=units.shape[1]) * 0.4, -3, 3)
    label = {
        "poisson": lambda: rng.poisson(np.exp(drive)).astype(float),
        "binomial": lambda: (rng.random(len(drive)) < 1 / (1 + np.exp(-drive))).astype(float),
        "gamma": lambda: np.exp(drive) * rng.gamma(2.0, 0.5, len(drive)),
        "gaussian": lambda: drive + rng.normal(size=len(drive)),
    }[family]()
    families = {
        "poisson": sm.families.Poisson(), "binomial": sm.families.Binomial(), "gaussian": sm.families.Gaussian(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
    }  # fmt: skip
    theirs = sm.GLM(label, sm.add_constant(units), family=families[family]).fit(tol=1e-13, maxiter=200)
    if not np.isfinite(theirs.deviance) or np.abs(theirs.params).max() > 20:
        return  # classes that can be told apart
    with report.asking("glm", where):
        ours = tp.linalg.glm(X, label, family=family, link="log" if family == "gamma" else None)
        report.close("glm: deviance", ours.deviance, theirs.deviance, OBJECTIVE * theirs.null_deviance, where)
        coef = np.asarray(ours.coef, float) * spread
        report.close("glm: coefficients", coef, theirs.params[1:], 10 * COEFFICIENT * theirs.bse[1:], where)
        errors = np.asarray(ours.estimates.errors)[-len(coef) :] * spread
        report.close("glm: standard errors", errors, theirs.bse[1:], 10 * COEFFICIENT * theirs.bse[1:], where)


def _lasso(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    """The path's objective is as low as scikit-learn's."""
    less, _ = centred(dense)
    if condition(dense) > 1e3:
        return
    right = y - y[0] - (y - y[0]).mean()
    where = f"lasso, {where}"
    with report.asking("lasso", where):
        path = tp.linalg.lasso(X, y, alphas=8)
        alphas, coefs, _ = enet_path(less, right, l1_ratio=1.0, alphas=8, tol=1e-12, max_iter=20_000)
        report.close("lasso: penalties", path.alphas, alphas, OBJECTIVE * alphas, where)

        def objectives(found: Array) -> Array:
            errors = ((right[:, None] - less @ found.T) ** 2).mean(axis=0) / 2
            return np.asarray(errors + alphas * np.abs(found).sum(axis=1))

        ours, theirs = objectives(path.coefs), objectives(coefs.T)
        report.that("lasso: objective", bool((ours <= theirs * (1 + OBJECTIVE)).all()), f"{where}: {ours} for {theirs}")


def _pca(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    less, _ = centred(dense)
    with report.asking("pca", where):
        ours = tp.linalg.pca(X)
        truth = np.linalg.svd(less, compute_uv=False) ** 2 / (len(less) - 1)
        off = max(map(shift, dense.T))
        report.close(
            "pca: explained variance",
            ours.explained_variance,
            truth[: len(ours.explained_variance)],
            off * truth[0],
            where,
        )
        along = less @ np.asarray(ours.components).T
        report.close("pca: components", along.var(axis=0, ddof=1), truth[: along.shape[1]], off * truth[0], where)


def _cor(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    less, _ = centred(dense)
    lengths = np.sqrt((less**2).sum(axis=0))
    with report.asking("cor", where):
        ours = np.asarray(tp.linalg.cor(X))
        with np.errstate(invalid="ignore"):
            truth = (less.T @ less) / np.outer(lengths, lengths)
        report.close("cor", ours, truth, max(map(shift, dense.T)), where)


def _multilogreg(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    """The objective against the optimum."""
    classes = int(rng.integers(2, 4))
    label = np.searchsorted(np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]), y)
    where = f"multilogreg of {classes} classes, {where}"
    if len(np.unique(label)) < classes or condition(dense) > 1e4:
        return
    less, means = centred(dense)
    with report.asking("multilogreg", where, may_refuse=True):
        model = tp.linalg.multilogreg(X, label, l2=1e-4)
        coef = np.asarray(model.coef, float).reshape(dense.shape[1], -1)
        scores = less @ coef + (means @ coef + np.atleast_1d(model.intercept))
        loss = mean_loss(scores[:, 0] if classes == 2 else scores, label, classes)
        reached = loss + 0.5e-4 * float(np.sum(coef**2))
        best = logistic(dense, label, classes, 1e-4)
        report.that("multilogreg", reached <= best * (1 + PROGRAM), f"{where}: {reached} for {best}")


def _l2svm(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    """No step of SciPy's L-BFGS from its solution gains anything."""
    label, l2 = np.where(y > np.median(y), 1, -1), 1e-3
    less, means = centred(dense)
    lengths = np.maximum(np.sqrt((less**2).mean(axis=0)), 1e-300)
    where = f"l2svm, {where}"

    def value(point: Array) -> tuple[float, Array]:
        gap = np.maximum(0.0, 1 - label * (less @ (point[:-1] / lengths) + point[-1]))
        slope = -(label * gap) / len(label)
        theta = point[:-1] / lengths
        slopes = np.append((less.T @ slope + l2 * theta) / lengths, slope.sum())
        return float(np.mean(gap**2) / 2 + l2 / 2 * theta @ theta), slopes

    with report.asking("l2svm", where, may_refuse=True):
        model = tp.linalg.l2svm(X, label, l2=l2)
        coef = np.asarray(model.coef, float)
        point = np.append(coef * lengths, model.intercept + means @ coef)
        best = min(minimize(value, start, jac=True, options={"maxiter": 2000}).fun for start in (point, 0 * point))
        report.that("l2svm", value(point)[0] <= best * (1 + PROGRAM), f"{where}: {value(point)[0]} for {best}")


def _kmeans(rng: Random, report: Report, X: Any, dense: Array, y: Array, where: str) -> None:
    """Centres are means, inertia is that of the labels, and about as low as scikit-learn's."""
    k = int(rng.integers(2, 5))
    less, _ = centred(dense)
    where = f"kmeans of {k}, {where}"
    with report.asking("kmeans", where):
        model = tp.linalg.kmeans(X, k=k, runs=10, max_iter=100, seed=1)
        centres = np.array([less[model.labels == each].mean(axis=0) for each in range(k)])
        inertia = float(((less - centres[model.labels]) ** 2).sum())
        theirs = KMeans(k, n_init=10, random_state=0).fit(less).inertia_
        whole = float((less**2).sum())
        off = max(map(shift, dense.T))
        report.close("kmeans: inertia", model.inertia, inertia, (OBJECTIVE + off) * whole, where)
        report.that(
            "kmeans: quality", inertia <= 1.2 * theirs + (OBJECTIVE + off) * whole, f"{where}: {inertia} for {theirs}"
        )


PROGRAMS = (_lm, _lm, _lm, _glm, _lasso, _pca, _cor, _multilogreg, _l2svm, _kmeans)
