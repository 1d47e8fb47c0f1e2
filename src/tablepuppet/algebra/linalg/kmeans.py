"""K-means over the joined rows: Lloyd's algorithm by two products a round.

    |x - c|^2 = |x|^2 - 2 (x c - |c|^2 / 2)        the nearest centre needs X C^T only
    c_j       = sum of the rows of cluster j / their number        X^T U, with U the 0/1 matrix of clusters

Runs go on side by side, so that ten of them take as many trips as one. A run begins as k-means++ does, among
projections of the rows to a few random directions: no single row is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.linalg.linear_fit import Rows, matrix_of
from tablepuppet.algebra.linalg.program import program
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.algebra.linalg.saved import SavedModel
from tablepuppet.algebra.nearest import Nearest
from tablepuppet.algebra.preparation import Preparation
from tablepuppet.errors import LearnError

Array = NDArray[np.float64]
PROJECTIONS = 16  # directions in which first clusters are sought


@dataclass(frozen=True)
class KMeans(SavedModel):
    """Clusters of joined rows."""

    centres: Array  # (k, columns)
    labels: NDArray[np.intp]  # (joined rows,): the number of the nearest centre
    inertia: float  # the sum of squared distances of rows to their centres
    rounds: int
    columns: list[str]
    preparation: Preparation = field(repr=False)

    def predict(self, rows: Rows) -> NDArray[np.intp]:
        """The nearest centre of every row of a relation, or of its matrix; one trip."""
        return matrix_of(rows, self).ask_nearest(self.centres).labels().astype(np.intp)


@program
def kmeans(
    matrix: LazyArray, k: int = 8, runs: int = 10, max_iter: int = 20, seed: int = 0, folder: str | Path | None = None
) -> KMeans:
    """The best of several runs of k-means, by its inertia; two trips a round for all runs together.

    With a ``folder`` it goes on after a crash: its state is kept there after every round, with the cluster of every
    joined row.

    Raises LearnError for settings that are out of range, and PrivacyError where a party's policy does not allow sums
    over as few rows as a cluster has there (``min_rows``).
    """
    _check(matrix, k, runs, max_iter)
    square = matrix.ask_squared_norm()
    progress = Progress(folder, "kmeans", matrix, k=k, runs=runs, seed=seed)
    if state := progress.read():
        found = [_Run.restored(matrix, state, place) for place in range(runs)]
    else:
        found = [_Run(matrix, k, labels) for labels in _first_labels(matrix, k, runs, np.random.default_rng(seed))]
    for _ in range(max(run.rounds for run in found), max_iter):
        active = [run for run in found if not run.is_done]
        sums = [matrix.ask_sums_by(run.labels, k) for run in active]
        for run, each in zip(active, sums, strict=True):
            run.move(each.read())
        asked = [matrix.ask_nearest(run.centres) for run in active]
        for run, nearest in zip(active, asked, strict=True):
            run.assign(nearest)
        progress.write(**_Run.state(found))
        if all(run.is_done for run in found):
            break
    gains = [run.gain(matrix) for run in found]
    best = found[int(np.argmax(gains))]
    inertia = max(float(square.read()[0]) - max(gains), 0.0)
    return KMeans(
        best.centres, best.labels.astype(np.intp), inertia, best.rounds, list(matrix.columns), matrix.preparation
    )


def _check(matrix: LazyArray, k: int, runs: int, max_iter: int) -> None:
    rows, width = matrix.shape
    if not width or not rows:
        raise LearnError(f"k-means needs rows and columns, and X has {rows:,} joined rows and {width:,} columns")
    for name, value, most in (("k", k, rows), ("runs", runs, 10_000), ("max_iter", max_iter, 1_000_000)):
        if not isinstance(value, Integral) or not 1 <= value <= most:
            raise LearnError(f"kmeans: {name} is a whole number from 1 to {most:,}, not {value!r}")


class _Run:
    """One run: its centres, and the clusters of all joined rows."""

    def __init__(self, matrix: LazyArray, k: int, labels: NDArray[np.integer]):
        self.labels, self.centres = labels, np.zeros((k, matrix.shape[1]))
        self.rounds, self.is_done = 0, False
        self._gain: float | None = None
        self._asked: Nearest | None = None

    @staticmethod
    def state(runs: Sequence[_Run]) -> dict[str, NDArray[Any]]:
        """What runs go on from."""
        small = np.min_scalar_type(len(runs[0].centres))
        return {
            "labels": np.array([run.labels for run in runs], small), "centres": np.array([run.centres for run in runs]),
            "rounds": np.array([run.rounds for run in runs]), "done": np.array([run.is_done for run in runs]),
        }  # fmt: skip

    @classmethod
    def restored(cls, matrix: LazyArray, state: Mapping[str, NDArray[Any]], place: int) -> _Run:
        """One of the runs that have come so far."""
        found = cls(matrix, len(state["centres"][place]), state["labels"][place])
        found.centres, found.rounds = state["centres"][place], int(state["rounds"][place])
        found.is_done = bool(state["done"][place])
        return found

    def gain(self, matrix: LazyArray) -> float:
        """By how much the centres make the sum of squares smaller; a trip for a run that was restored as it ended."""
        if self._gain is None:
            self._gain = 2 * (self._asked or matrix.ask_nearest(self.centres)).gain(self.labels)
        return self._gain

    def move(self, sums: Array) -> None:
        """Move every centre to the mean of its rows; one without rows stays where it is."""
        sizes = np.bincount(self.labels, minlength=len(self.centres))
        means = sums.T / np.maximum(sizes, 1)[:, None]  # (k, columns)
        self.centres = np.where(sizes[:, None] > 0, means, self.centres)

    def assign(self, asked: Nearest) -> None:
        """Assign every row to its nearest centre; the run is over when none changes."""
        labels = asked.labels()
        self.is_done, self.labels, self.rounds = np.array_equal(labels, self.labels), labels, self.rounds + 1
        self._asked, self._gain = (None, 2 * asked.gain(labels)) if self.is_done else (asked, None)


def _first_labels(matrix: LazyArray, k: int, runs: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    """The clusters that runs begin with: those of k-means++ among random projections of the rows; one trip."""
    width = matrix.shape[1]
    directions = np.linalg.qr(rng.normal(size=(width, min(width, PROJECTIONS))))[0]
    points = matrix.times(directions)  # (rows, projections)
    return [_spread(points, k, rng) for _ in range(runs)]


def _spread(points: Array, k: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """The nearest of k points that are drawn one after the other, each by its squared distance from those before it."""
    labels, norms = np.zeros(len(points), np.intp), np.einsum("ij,ij->i", points, points)

    def squares(place: int) -> Array:
        """Squared distances of all points from one of them."""
        return np.asarray(np.maximum(norms - 2 * (points @ points[place]) + norms[place], 0.0))

    distances = squares(int(rng.integers(len(points))))
    for number in range(1, k):
        sums = np.cumsum(distances)
        place = np.searchsorted(sums, rng.random() * sums[-1], side="right")
        found = squares(min(int(place), len(points) - 1))
        closer = found < distances
        labels[closer] = number
        distances = np.where(closer, found, distances)
    return labels
