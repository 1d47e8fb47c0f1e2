"""K-means over the joined rows: Lloyd's algorithm by two products a round.

    |x - c|^2 = |x|^2 - 2 (x c - |c|^2 / 2)        the nearest centre needs X C^T only
    c_j       = sum of the rows of cluster j / their number        X^T U, with U the 0/1 matrix of clusters

Runs go on side by side, so that ten of them take as many trips as one. A run begins as greedy k-means++ does, among
projections of the rows to a few random directions: no single row is asked for. Equal joined rows are one row with a
weight (`distinct.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.algebra.array import LazyArray
from tablepuppet.algebra.distinct import DistinctRows
from tablepuppet.algebra.linalg.linear_fit import Rows, matrix_of
from tablepuppet.algebra.linalg.program import check_whole, program
from tablepuppet.algebra.linalg.progress import Progress
from tablepuppet.algebra.linalg.saved import LinalgModel
from tablepuppet.algebra.nearest import Nearest
from tablepuppet.algebra.recipes import Preparation
from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.pieces import over_pieces

PROJECTIONS = 16  # directions in which first clusters are sought
COLUMN_LIMIT = "max_matrix_columns"  # the policy rule


@dataclass(frozen=True, repr=False)
class KMeans(LinalgModel):
    """Clusters of joined rows."""

    centres: Array  # (k, columns)
    labels: NDArray[np.intp]  # (joined rows,): the number of the nearest centre
    inertia: float  # the sum of squared distances of rows to their centres
    rounds: int
    columns: list[str]
    preparation: Preparation

    def predict(self, rows: Rows) -> NDArray[np.intp]:
        """The nearest centre of every row of a relation, or of its matrix; one trip."""
        return matrix_of(rows, self).ask_nearest(self.centres).labels().astype(np.intp)


@program
def kmeans(
    X: LazyArray, k: int = 8, runs: int = 10, max_iter: int = 20, seed: int = 0, folder: str | Path | None = None
) -> KMeans:
    """The best of several runs of k-means, by its inertia; at most two trips a round for all runs together.

    With a ``folder`` it goes on after a crash: its state is kept there after every round, with the cluster of every
    joined row.

    A run that meets a cluster with fewer rows than a party adds up (``min_rows``) ends, and is not the best.

    Raises LearnError for settings that are out of range, and PrivacyError if all runs end so, or where a party's policy
    does not allow so many vectors (``limits.max_matrix_columns``).
    """
    _check(X, k, runs, max_iter, seed)
    try:
        return _best_run(X, k, runs, max_iter, seed, folder)
    except PrivacyError as error:
        if error.rule != COLUMN_LIMIT:
            raise
        raise PrivacyError(  # a new session would not help
            f"kmeans: each round counts up to k={k} vectors in each of runs={runs}, for up to max_iter={max_iter} "
            f"rounds; take fewer runs, a smaller k or a smaller max_iter: {error}",
            rule=error.rule,
        ) from error


def _best_run(X: LazyArray, k: int, runs: int, max_iter: int, seed: int, folder: str | Path | None) -> KMeans:
    columns, offsets = X.centred()  # distances do not depend on it, their digits do
    squares = columns.ask_column_squares()
    progress = Progress(folder, "kmeans", X, k=k, runs=runs, seed=seed)
    state, rng, width = progress.read(), np.random.default_rng(seed), X.shape[1]
    directions = np.linalg.qr(rng.normal(size=(width, min(width, PROJECTIONS))))[0]
    rows = DistinctRows(columns, directions[:, :0] if state else directions, max(directions.shape[1], k))
    if state:
        found = [_Run.restored(rows, state, place) for place in range(runs)]
    else:
        found = [_Run(rows, labels, np.zeros((k, width))) for labels in _first_labels(rows, k, runs, rng)]
    for _ in range(max(run.rounds for run in found), max_iter):
        active = [run for run in found if not run.is_done and run.may_go_on()]
        if not any(run.is_done for run in found) and not active:
            raise PrivacyError(
                "kmeans: in every run a cluster has fewer rows of a party than its policy adds up; take a smaller k, "
                f"or more runs than {runs} (policy rule min_rows)",
                rule="min_rows",
            )
        means = [rows.ask_means(run.labels, k) for run in active]
        for run, each in zip(active, means, strict=True):
            run.move(each.read())
        asked = [rows.ask_nearest(run.centres) for run in active]
        for run, nearest in zip(active, asked, strict=True):
            run.assign(nearest)
        if folder is not None:
            progress.write(**_Run.state(found))
        if all(run.is_done or run.is_refused for run in found):
            break
    gains = [run.gain() for run in found]
    best = found[int(np.argmax(gains))]
    inertia = max(float(squares.read().sum()) - max(gains), 0.0)
    labels = rows.expanded(best.labels).astype(np.intp)
    return KMeans(best.centres + offsets, labels, inertia, best.rounds, list(X.columns), X.preparation)


def _check(matrix: LazyArray, k: int, runs: int, max_iter: int, seed: int) -> None:
    rows, width = matrix.shape
    if not width or not rows:
        raise LearnError(f"k-means needs rows and columns, and X has {rows:,} joined rows and {width:,} columns")
    for name, value, least, most in (
        ("k", k, 1, rows), ("runs", runs, 1, 10_000), ("max_iter", max_iter, 1, 1_000_000), ("seed", seed, 0, 1 << 63),
    ):  # fmt: skip
        check_whole("kmeans", name, value, least, most)


class _Run:
    """One run: its centres, and the clusters of all rows."""

    def __init__(self, rows: DistinctRows, labels: NDArray[np.integer], centres: Array):
        self._rows, self.labels, self.centres = rows, labels, centres
        self.rounds, self.is_done, self.is_refused = 0, False, False
        self._gain: float | None = None
        self._asked: Nearest | None = None

    @staticmethod
    def state(runs: Sequence[_Run]) -> dict[str, NDArray[Any]]:
        """What runs go on from, with the clusters of joined rows."""
        small = np.min_scalar_type(len(runs[0].centres))
        labels = [run._rows.expanded(run.labels) for run in runs]
        return {
            "labels": np.array(labels, small), "centres": np.array([run.centres for run in runs]),
            "rounds": np.array([run.rounds for run in runs]), "done": np.array([run.is_done for run in runs]),
            "refused": np.array([run.is_refused for run in runs]),
        }  # fmt: skip

    @classmethod
    def restored(cls, rows: DistinctRows, state: Mapping[str, NDArray[Any]], place: int) -> _Run:
        """One of the runs that have come so far."""
        found = cls(rows, rows.reduced(state["labels"][place]), state["centres"][place])
        found.rounds = int(state["rounds"][place])
        found.is_done = bool(state["done"][place])
        found.is_refused = "refused" in state and bool(state["refused"][place])
        return found

    def gain(self) -> float:
        """By how much the centres make the sum of squares smaller; a trip for a run that was restored as it ended."""
        if self.is_refused:
            return -np.inf
        if self.is_done:  # centres are the means of their rows
            return float(self._rows.sizes(self.labels, len(self.centres)) @ (self.centres**2).sum(axis=1))
        if self._gain is None:
            self._gain = 2 * (self._asked or self._rows.ask_nearest(self.centres)).gain(self.labels)
        return self._gain

    def may_go_on(self) -> bool:
        """Whether parties add up the rows of its clusters; else it has ended, without a result."""
        self.is_refused = self.is_refused or self._rows.has_few(self.labels, len(self.centres))
        return not self.is_refused

    def move(self, means: Array) -> None:
        """Move every centre to the mean of its rows, (k, columns); one without rows, NaN, stays where it is."""
        self.centres = np.where(np.isnan(means), self.centres, means)

    def assign(self, asked: Nearest) -> None:
        """Assign every row to its nearest centre; the run is over when none changes."""
        labels = asked.labels()
        self.is_done, self.labels, self.rounds = np.array_equal(labels, self.labels), labels, self.rounds + 1
        self._asked, self._gain = None if self.is_done else asked, None


def _first_labels(rows: DistinctRows, k: int, runs: int, rng: np.random.Generator) -> list[NDArray[np.integer]]:
    """The clusters that runs begin with: those of k-means++ among random projections of the rows; one trip."""
    points = rows.projected()  # (rows, projections)
    return [_spread(rows, points, k, rng) for _ in range(runs)]


def _spread(rows: DistinctRows, points: Array, k: int, rng: np.random.Generator) -> NDArray[np.integer]:
    """The nearest of k points, drawn one after the other by their squared distances from those before.

    Of the few that are drawn each time, the one that leaves the smallest sum of squared distances is taken ("greedy
    k-means++", as in scikit-learn). Single draws often end with two centres in one cluster, which Lloyd's rounds do not
    mend. Joined rows are drawn: equal ones are as likely together as they are one by one.
    """
    labels, norms = np.zeros(len(points), np.min_scalar_type(k)), np.einsum("ij,ij->i", points, points)
    nearest, weights = np.full(len(points), np.inf), rows.weights  # squared distances from the nearest centre

    def left(part: slice, places: NDArray[np.intp]) -> Array:
        """Squared distances of some points from the nearest centre, if it is one more, (places, points)."""
        found = norms[part] - 2 * (points[places] @ points[part].T) + norms[places, None]
        return np.asarray(np.clip(found, 0.0, nearest[part]))

    def total(part: slice) -> Array:
        found = left(part, places)
        return np.asarray(found.sum(axis=1) if weights is None else found @ weights[part])

    def take(part: slice) -> None:
        found = left(part, places)[0]
        labels[part][found < nearest[part]] = number
        nearest[part] = found

    places = np.array([rows.place(int(rng.integers(rows.joined)))])
    for number in range(k):
        if number:
            places = np.unique([rows.drawn(nearest, share) for share in rng.random(2 + int(np.log(k)))])
            sums = over_pieces(total, len(points), len(places))
            places = places[[np.argmin(sum(found for _, found in sums))]]
        over_pieces(take, len(points))
    return labels
