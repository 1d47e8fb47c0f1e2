"""Generalised linear models by iteratively reweighted least squares.

    eta   = D b + offset                D = [1, X without the first column of each category group], standardised
    w     = h'(eta)^2 / V(mu)           weights
    u     = h'(eta) (y - mu) / V(mu)    slopes of the log-likelihood
    D^T diag(w) D step = D^T u          by conjugate gradients: products with X only

Steps that do not lower the deviance are halved. D step is known by then, so that needs no trip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit, xlogy

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.design import WIDEST, Design
from tablepuppet.algebra.linalg.estimates import Estimates
from tablepuppet.algebra.linalg.linear_fit import EstimatedFit, Rows, by_column, matrix_of
from tablepuppet.algebra.linalg.program import (
    check_choice,
    check_numbers,
    check_positive,
    check_rows,
    check_whole,
    program,
)
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError

FamilyName = Literal["gaussian", "binomial", "poisson", "gamma", "tweedie"]
LinkName = Literal["identity", "log", "logit", "inverse"]
SURE = float(np.finfo(np.float64).eps)  # a probability is no closer to 0 or 1: else it has no logit


@dataclass(frozen=True)
class Link:
    """A link function, its inverse, and the slope of the inverse by the scores."""

    name: str
    link: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    slope: Callable[[Array], Array]


LINKS = {
    each.name: each
    for each in (
        Link("identity", lambda mu: mu, lambda eta: eta, np.ones_like),
        Link("log", np.log, np.exp, np.exp),
        Link("logit", logit, lambda eta: np.clip(expit(eta), SURE, 1 - SURE), lambda eta: expit(eta) * expit(-eta)),
        Link("inverse", lambda mu: 1 / mu, lambda eta: 1 / eta, lambda eta: -1 / eta**2),
    )
}


@dataclass(frozen=True)
class GlmFamily:
    """A family of distributions; ``links`` are those it can have, the usual one first.

    Means lie between ``lowest`` and ``highest``, both excluded; labels may be equal to them if ``touches``.
    """

    name: str
    links: tuple[str, ...]
    variance: Callable[[Array], Array]
    deviance: Callable[[Array, Array], Array]
    lowest: float = -np.inf
    highest: float = np.inf
    touches: bool = True
    dispersion: float | None = None  # None: estimated

    def check(self, y: Array) -> None:
        """Raise LearnError for labels that cannot be of this family."""
        below, above = (y < self.lowest, y > self.highest) if self.touches else (y <= self.lowest, y >= self.highest)
        if below.any() or above.any():
            least = "from" if self.touches else "above"
            most = f" to {self.highest:g}" if np.isfinite(self.highest) else ""
            raise LearnError(f"glm: y of family {self.name!r} must be numbers {least} {self.lowest:g}{most}")

    def holds(self, mu: Array) -> bool:
        """Whether all of these can be means."""
        return bool(np.isfinite(mu).all() and (mu > self.lowest).all() and (mu < self.highest).all())


def find_family(name: str, power: float) -> GlmFamily:
    """A family by its name; LearnError if there is none. ``power`` is that of a tweedie family's variance."""
    found = {
        "gaussian": GlmFamily("gaussian", ("identity", "log"), np.ones_like, lambda y, mu: (y - mu) ** 2),
        "binomial": GlmFamily(
            "binomial", ("logit",), lambda mu: mu * (1 - mu), _binomial_deviance, 0.0, 1.0, dispersion=1.0
        ),
        "poisson": GlmFamily(
            "poisson", ("log", "identity"), lambda mu: mu, lambda y, mu: 2 * (xlogy(y, y / mu) - y + mu), 0.0,
            dispersion=1.0,
        ),
        "gamma": GlmFamily(
            "gamma", ("log", "inverse", "identity"), lambda mu: mu**2,
            lambda y, mu: 2 * ((y - mu) / mu - np.log(y / mu)), 0.0, touches=False,
        ),
        "tweedie": GlmFamily("tweedie", ("log",), lambda mu: mu**power, _tweedie_deviance(power), 0.0),
    }  # fmt: skip
    if name not in found:
        raise LearnError(f"glm: family is one of {', '.join(map(repr, found))}, not {name!r}")
    if name == "tweedie" and not 1 < power < 2:
        raise LearnError(
            f"glm: power of a tweedie family lies between 1 (poisson) and 2 (gamma), both excluded, not {power!r}"
        )
    return found[name]


def _binomial_deviance(y: Array, mu: Array) -> Array:
    return np.asarray(2 * (xlogy(y, y / mu) + xlogy(1 - y, (1 - y) / (1 - mu))))


def _tweedie_deviance(p: float) -> Callable[[Array, Array], Array]:
    return lambda y, mu: (
        2 * (y ** (2 - p) / ((1 - p) * (2 - p)) - y * mu ** (1 - p) / (1 - p) + mu ** (2 - p) / (2 - p))
    )


Solver = Literal["auto", "gram", "cg"]
SOLVERS: tuple[str, ...] = get_args(Solver)
HALVINGS = 30
SLACK = 1e-12  # by which rounding may raise a deviance
NOTHING: Array = np.zeros(())
SEPARATED = 1e-6  # of the null deviance: so little is left only if the columns separate the classes exactly


@dataclass(frozen=True, repr=False)
class GLM(EstimatedFit):
    """A generalised linear model."""

    _title: ClassVar[str] = "Generalised linear model"
    family: str
    link: str
    rows: int
    deviance: float
    null_deviance: float  # with an intercept only
    pearson: float  # the sum of (y - mu)^2 / V(mu)
    dispersion: float
    iterations: int

    def predict(self, rows: Rows, offset: ArrayLike | None = None) -> Array:
        """The predicted mean of every row of a relation, without an offset unless one is given; one trip."""
        matrix = matrix_of(rows, self)
        return LINKS[self.link].inverse(self.scores(matrix) + _offset(offset, matrix.shape[0]))

    def _facts(self) -> dict[str, object]:
        """The family, and how far means are from labels."""
        return {
            "family": self.family, "link": self.link, "observations": self.rows,
            "residual df": self.rows - len(self.estimates.names), "deviance": self.deviance,
            "null deviance": self.null_deviance, "Pearson chi2": self.pearson, "dispersion": self.dispersion,
            "iterations": self.iterations,
        }  # fmt: skip


@program
def glm(
    X: LazyArray,
    y: ArrayLike,
    family: FamilyName = "gaussian",
    link: LinkName | None = None,
    power: float = 1.5,
    offset: ArrayLike | None = None,
    solver: Solver = "auto",
    max_iter: int = 50,
    tol: float = 1e-12,
    folder: str | Path | None = None,
) -> GLM:
    """A generalised linear model of a label on the columns of X; ``offset``, (joined rows,), is added to the scores.

    Links are canonical, but for ``gamma`` and ``tweedie``: log. ``power`` is that of a tweedie family's variance.
    ``solver="gram"`` begins with the Gram matrix, which makes steps cheap. ``"cg"`` finds coefficients by products
    only, and standard errors are NaN where the Gram matrix is not to be had (`Design.variances`); ``"auto"`` takes it
    beyond 2,000 columns. With a ``folder`` it continues after a crash: its state is kept there after every step, with a
    score for every joined row.

    Raises LearnError for labels that the family cannot have, for columns that depend on each other, and if the deviance
    still changes by more than ``tol`` of itself after ``max_iter`` steps.
    """
    check_choice("glm", "solver", solver, SOLVERS)
    check_positive("glm", "tol", tol)
    check_whole("glm", "max_iter", max_iter)
    kind = find_family(family, power)
    if link is not None:
        check_choice(f"glm of family {family!r}", "link", link, kind.links)
    design, y = Design(X), check_numbers("glm", y, X.shape[0])
    check_rows("glm", *design.shape)
    kind.check(y)
    shift = _offset(offset, len(y))
    point = _null(_Point.at(kind, LINKS[link or kind.links[0]], y, shift), shift)
    null_deviance, by_gram = point.deviance, solver == "gram" or (solver == "auto" and design.shape[1] <= WIDEST)
    settings = {"family": family, "link": point.link.name, "power": power, "solver": solver}
    progress = Progress(folder, "glm", X, y, shift, **settings)
    state = progress.read()
    near = state.get("near") if state else None
    if by_gram and near is None:
        near = design.inverse(design.gram(), "glm")
    found = np.zeros(design.shape[1])
    found[0] = point.intercept

    def step(at: _Point) -> tuple[Array, Array]:
        if kind.name == "binomial" and at.deviance < SEPARATED * null_deviance:
            raise LearnError("glm: columns separate the two classes exactly, so that coefficients grow without end")
        moved = design.solve(design.transposed_times(at.slopes, exact=True), at.weights, near, tol=1e-9)
        return moved, design.times(moved, exact=True)

    def keep(total: Array, at: _Point, steps: int) -> None:
        progress.write(total=total, eta=at.eta, steps=steps, **({} if near is None else {"near": near}))

    begun = (state["total"], int(state["steps"])) if state else (np.zeros(design.shape[1]), 0)
    point = replace(point, eta=state["eta"]) if state else point
    moved, point, iterations = _climb(point, step, int(max_iter), tol, begun, keep)
    found = design.own_units(found + moved)
    left = len(y) - design.shape[1]
    dispersion = point.pearson / left if kind.dispersion is None else kind.dispersion
    if by_gram:
        variances = design.own_variances(design.inverse(design.gram(point.weights), "glm"))
    else:
        variances = design.variances(point.weights)
    return GLM(
        coef=by_column(X, design.expanded(found)),
        intercept=float(found[0]),
        preparation=X.preparation,
        family=family,
        link=point.link.name,
        estimates=Estimates(design.names, found, np.sqrt(dispersion * variances), math.inf),
        rows=len(y),
        deviance=point.deviance,
        null_deviance=null_deviance,
        pearson=point.pearson,
        dispersion=dispersion,
        iterations=iterations,
    )


@dataclass(frozen=True)
class _Point:
    """A model at some scores."""

    family: GlmFamily
    link: Link
    y: Array
    eta: Array
    intercept: float = 0.0  # of the null model

    @classmethod
    def at(cls, family: GlmFamily, link: Link, y: Array, offset: Array) -> _Point:
        """The mean label in every row, but for the offset."""
        mean = y.mean(keepdims=True)
        if not family.holds(mean):
            raise LearnError(f"glm: y is {mean[0]:g} in every row, which has no {link.name}")
        with np.errstate(all="ignore"):
            start = float(link.link(mean)[0] - offset.mean())
        if not np.isfinite(start):
            raise LearnError(f"glm: the mean of y is {mean[0]:g}, which has no {link.name}; take another link")
        return cls(family, link, y, offset + start, start)

    @property
    def mu(self) -> Array:
        with np.errstate(all="ignore"):
            return self.link.inverse(self.eta)

    @property
    def is_valid(self) -> bool:
        return self.family.holds(self.mu)

    @property
    def deviance(self) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(self.family.deviance(self.y, self.mu).sum())

    @property
    def weights(self) -> Array:
        return np.asarray(self.link.slope(self.eta) ** 2 / self.family.variance(self.mu))

    @property
    def slopes(self) -> Array:
        return np.asarray(self.link.slope(self.eta) * (self.y - self.mu) / self.family.variance(self.mu))

    @property
    def pearson(self) -> float:
        return float(np.sum((self.y - self.mu) ** 2 / self.family.variance(self.mu)))

    def moved(self, change: Array) -> _Point:
        return replace(self, eta=self.eta + change)


def _climb(
    point: _Point,
    step: Callable[[_Point], tuple[Array, Array]],
    max_iter: int,
    tol: float,
    begun: tuple[Array, int] = (NOTHING, 0),
    keep: Callable[[Array, _Point, int], None] = lambda *_: None,
) -> tuple[Array, _Point, int]:
    """(the sum of all steps, where they lead, how many they are), until the deviance stays as it is.

    ``step`` gives a change of coefficients, and what it changes in the scores. ``begun`` are the sum and the number of
    steps that were made before; ``keep`` is called with each.
    """
    if not point.is_valid:
        other = "give an offset that leaves" if point.link.name == "log" else "try link='log', or an offset that leaves"
        raise LearnError(f"glm: the mean label and this offset give means that the family cannot have; {other} them")
    total, steps = begun
    for number in range(min(steps, max_iter - 1) + 1, max_iter + 1):
        before, (change, product) = point.deviance, step(point)
        share = 1.0
        for _ in range(HALVINGS):
            trial = point.moved(share * product)
            if trial.is_valid and trial.deviance <= before + SLACK * abs(before):
                break
            share /= 2
        else:
            raise LearnError("glm: no step lowers the deviance; another link may fit")
        point, total = trial, np.asarray(total + share * change)
        keep(total, point, number)
        if abs(before - point.deviance) <= tol * (abs(point.deviance) + 0.1):
            return total, point, number
    raise LearnError(f"glm: the deviance still changes after {max_iter:,} steps; raise max_iter, or check the family")


def _null(point: _Point, offset: Array) -> _Point:
    """The best model with an intercept and nothing else; here, without a trip."""

    def step(at: _Point) -> tuple[Array, Array]:
        change = at.slopes.sum() / at.weights.sum()
        return np.array(change), np.full(len(offset), change)

    change, found, _ = _climb(point, step, 100, 1e-12)
    return replace(found, intercept=point.intercept + float(change))


def _offset(offset: ArrayLike | None, rows: int) -> Array:
    return np.zeros(rows) if offset is None else check_numbers("glm", offset, rows, "offset")
