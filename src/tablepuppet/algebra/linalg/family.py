"""Families of generalised linear models: how the label spreads around its mean, and how the mean follows the scores.

mean     mu = h(eta)          h is the inverse of the link
variance dispersion * V(mu)
deviance sum of d(y, mu)      d is zero where mu = y
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit, logit, xlogy

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
