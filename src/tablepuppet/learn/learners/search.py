"""`GridSearch`: the settings of a learner that do best on folds which it has not learned from.

Every candidate learns from the same folds: tables are read, joined and encoded once for all of them. The best one is
then fitted on the whole relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone

from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.folds import Results, make_folds, measured
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.learners.not_fitted import NotFittedError
from tablepuppet.relation import Relation
from tablepuppet.spelling import did_you_mean, names_checked

LOWER_IS_BETTER = ("log_loss", "rmse")
MOST = 10_000  # candidates


class GridSearch(BaseEstimator):  # type: ignore[misc]
    """Tries every combination of settings: ``tp.GridSearch(learner, {"l2": [1e-6, 1e-3]}, folds=5).fit(rel)``.

    After `fit`: ``best_params_``, ``best_score_``, ``best_model_`` (fitted on the whole relation), and ``results_``, a
    table with one row per candidate, the best first. ``metric`` is one of those that the learner's `evaluate` gives;
    accuracy or r2 if none is named.
    """

    best_model_: Learner

    def __init__(
        self, learner: Learner, grid: Mapping[str, Sequence[Any]], folds: int = 5, seed: int = 0,
        groups: str | None = None, stratified: bool = False, metric: str | None = None,
    ):  # fmt: skip
        self.learner, self.grid, self.folds, self.seed = learner, grid, folds, seed
        self.groups, self.stratified, self.metric = groups, stratified, metric

    @names_checked
    def fit(self, relation: Relation) -> Self:
        """Fit every candidate on every fold, and the best one on all rows."""
        need_relation(relation, "fit")
        candidates = self._candidates()
        for settings in candidates:  # before anything is asked
            clone(self.learner).set_params(**settings).check_settings()
        folds = make_folds(relation, self.folds, self.seed, groups=self.groups, stratified=self.stratified)
        what = f"{type(self.learner).__name__}: trying {len(candidates)} settings on {len(folds)} folds"
        done = relation.events.progress("search", what, len(candidates) * len(folds))
        rows: list[dict[str, Any]] = []
        for settings in candidates:
            scores = []
            for number, fold in enumerate(folds):
                scores.append(measured(clone(self.learner).set_params(**settings), fold, number))
                done(len(rows) * len(folds) + len(scores))
            rows.append(self._row(settings, scores))
        self._choose(candidates, rows)
        self.best_model_ = clone(self.learner).set_params(**self.best_params_).fit(relation)
        return self

    def _candidates(self) -> list[dict[str, Any]]:
        known = sorted(self.learner.get_params(deep=False))
        for name, values in self.grid.items():
            if name not in known:
                raise LearnError(f"GridSearch: {name!r} is no setting of the learner{did_you_mean(name, known)}")
            if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
                raise LearnError(f"GridSearch: give a list of values to try for {name!r}, such as [1e-6, 1e-3]")
        found = [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        if len(found) > MOST:
            raise LearnError(f"GridSearch: {len(found):,} combinations are more than {MOST:,}; try fewer values")
        return found

    def _row(self, settings: Mapping[str, Any], scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """One candidate: its settings, means and deviations over folds, and the time it took."""
        row: dict[str, Any] = dict(settings)
        for name in scores[0]:
            values = np.array([each[name] for each in scores])
            if name == "seconds":
                row[name] = float(values.sum())
                continue
            row[f"mean_{name}"] = float(values.mean())
            if name.startswith("test_"):
                row[f"std_{name}"] = float(values.std())
        return row

    def _choose(self, candidates: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> None:
        measures = [name.removeprefix("mean_test_") for name in rows[0] if name.startswith("mean_test_")]
        usual = "accuracy" if "accuracy" in measures else "r2"
        metric = self.metric or (usual if usual in measures else measures[0])
        if metric not in measures:
            raise LearnError(f"GridSearch: the learner has no metric {metric!r}{did_you_mean(metric, measures)}")
        sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
        scores = np.array([sign * row[f"mean_test_{metric}"] for row in rows])
        order = np.argsort(np.where(np.isnan(scores), np.inf, scores), kind="stable")  # of equal ones the first
        self.metric_, self.best_params_ = metric, candidates[order[0]]
        self.best_score_ = float(rows[order[0]][f"mean_test_{metric}"])
        self.results_ = Results(f"{len(rows)} settings by {metric}", [rows[place] for place in order])

    def predict(self, relation: Relation, **settings: Any) -> Any:
        """Predictions of the best model."""
        return self._best.predict(relation, **settings)

    def evaluate(self, relation: Relation) -> dict[str, float]:
        """Metrics of the best model."""
        return dict(self._best.evaluate(relation))

    @property
    def _best(self) -> Learner:
        if not hasattr(self, "best_model_"):
            raise NotFittedError("this GridSearch is not fitted yet: call fit with a relation first")
        return self.best_model_
