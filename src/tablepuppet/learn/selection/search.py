"""`GridSearch` and `RandomSearch`: find the settings of a learner with the best scores in cross-validation.

All candidates use the same folds: tables are read, joined and encoded once for all of them. Linear models that differ
in ``l2`` only share labels and Gram matrices, and each starts from the solution before it. Their folds are fitted in
step, so that they share trips. The best candidate is then fitted on the whole relation. With a folder, every score is
stored when it is known, and a search that was stopped continues from there.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone

from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.learners.linear import LinearLearner
from tablepuppet.learn.learners.not_fitted import NotFittedError
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.learn.loss.named_metrics import check as check_metrics
from tablepuppet.learn.loss.named_metrics import is_error
from tablepuppet.learn.private.checks import approved_epsilons, check_together
from tablepuppet.learn.selection.folds import (
    CONSTANT,
    Fold,
    Folding,
    Results,
    constant_of,
    measure_along_l2,
    measured,
    need_learner,
    of_test,
)
from tablepuppet.learn.selection.search_prep import (
    PREP,
    PreparedFolds,
    check_pipelines,
    check_prep,
    for_people,
    is_of_prep,
    pipeline_of,
    plain,
    prepared,
)
from tablepuppet.learn.selection.search_scores import SearchScores, draw
from tablepuppet.learn.settings import check_whole
from tablepuppet.learn.solve.schedule import counts_replies
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline
from tablepuppet.privacy.noise_plan import TableCosts, added
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import one_run
from tablepuppet.runs.figures import metric_name, metrics_line, setting_text
from tablepuppet.spelling import class_checked, names_checked, setting_meant, shows
from tablepuppet.sql.plan import Plan
from tablepuppet.wire.in_step import in_step

MEASURES = {True: ("accuracy", "auc", "log_loss"), False: ("rmse", "r2")}  # of learners of classes, of numbers
LEFT_BY_FIT = ("best_params_", "best_score_", "best_model_", "results_", "metric_")
MOST = 10_000  # candidates
KEPT = 3  # one of this number of candidates continues, with this many times the rows
FEWEST = 200  # rows of the table that is dealt to folds: fewer say too little of a candidate
ROWS_IN_STEP = 10_000_000  # joined rows of folds that are fitted at a time: each takes memory
_COMPARED = 1e-5  # the delta at which costs of candidates are compared
Settings = dict[str, Any]


@dataclass(frozen=True)
class Rung:
    """A stage of a search: how many candidates are left, and on which share of the rows they learn."""

    candidates: int
    share: float


@shows(
    "candidates", "evaluate", "fit", "folder", "folds", "get_params", "grid", "groups", "halving", "learner", "metric",
    "plot", "predict", "seed", "set_params", "settings", "stratified", "time",
)  # fmt: skip
class Search(BaseEstimator):  # type: ignore[misc]
    """What searches have in common: candidates, folds, scores, the best one."""

    learner: Learner
    folds: int
    seed: int
    groups: str | None
    stratified: bool
    time: str | None
    metric: str | None
    folder: str | Path | None
    best_model_: Learner

    @abstractmethod
    def _candidates(self) -> list[Settings]:
        """The settings to try."""

    @property
    @abstractmethod
    def _given(self) -> Mapping[str, Any]:
        """The values to try by setting, as they were given."""

    def _rungs(self, candidates: int, rows: int) -> list[Rung]:
        """The stages, the last one on all rows."""
        return [Rung(candidates, 1.0)]

    @names_checked
    @one_run()
    def fit(self, relation: Relation) -> Self:
        """Fit candidates on every fold, and the best one on all rows."""
        need_relation(relation, "fit")
        candidates = self.check()
        check_pipelines(candidates, relation)
        folder = None if self.folder is None else Path(self.folder)
        scores = SearchScores(folder, partial(self._described, candidates, relation))
        folding = Folding(
            relation, self.folds, self.seed, groups=self.groups, stratified=self.stratified, time=self.time
        )
        rungs = self._rungs(len(candidates), folding.rows)
        if self.privacy is not None and not scores.has_any:
            taken = {alias: table.rows for alias, table in relation.client.tables.items()}
            costs = self._planned_costs(relation.plan, taken, relation.max_categories, relation.prep)
            check_together("search", costs, relation.funds(), relation.approved, self.privacy.delta)
        fits = sum(rung.candidates for rung in rungs) * self.folds
        learner = type(self.learner).__name__
        what = f"{learner}: trying {len(candidates)} settings on {self.folds} folds"
        done = relation.events.progress("search", what, fits)

        def report(number: int, place: int, fold: int, found: Mapping[str, float]) -> None:
            score = of_test(found)
            name = self._metric(list(score))
            line = metrics_line({name: score[name]}, constant_of([found]))
            text = f"{self._named(candidates[place])}, fold {fold}: {line}"
            done(number, text, candidate=place, fold=fold)

        scores.report = report
        left, rows = list(range(len(candidates))), dict[int, Settings]()
        for rung in rungs:
            left = left[: rung.candidates]
            self._measure(folding, rung.share, candidates, left, scores)
            found = {place: self._row(candidates[place], rung.share, scores.of(place, rung.share)) for place in left}
            left = self._ordered(found)
            before = {place: row for place, row in rows.items() if place not in found}
            rows = {place: found[place] for place in left} | before
        best = left[0]
        self.best_params_, self.best_score_ = candidates[best], float(rows[best][f"mean_test_{self.metric_}"])
        constant = constant_of(scores.of(best, rungs[-1].share))
        self.results_ = Results(f"{len(rows)} settings by {metric_name(self.metric_)}", list(rows.values()), constant)
        score = metrics_line({self.metric_: self.best_score_}, constant)
        message = f"{learner}: the best of {len(rows)} settings is {self._named(self.best_params_)}: {score} on folds"
        relation.events.emit("info", "searched", message, best=plain(self.best_params_), score=self.best_score_)
        best_rows = prepared(relation, pipeline_of(self.best_params_, relation.prep))
        self.best_model_ = self._with(self.best_params_).fit(best_rows)
        return self

    def check(self) -> list[Settings]:
        """The candidates; LearnError if one cannot be, or the metric, before anything is asked."""
        need_learner(self.learner, _kind(self))
        if self.metric is not None:
            if str(self.metric).endswith("_by_class"):
                raise LearnError(f"{_kind(self)}: {self.metric!r} is several figures; a search goes by one")
            check_metrics([self.metric], np.arange(2) if self.learner.learns_classes else None, None)
        known = sorted(self.learner.get_params())
        for name in self._given:
            if name not in known and not is_of_prep(name):
                raise LearnError(f"{_kind(self)}: {name!r} is no setting of the learner{setting_meant(name, known)}")
        candidates = self._candidates()
        for settings in candidates:
            self._with(settings).check_settings()
            check_prep(settings)
        return candidates

    @property
    def privacy(self) -> Privacy | None:
        """That of the learner, which each of its fits promises for itself."""
        return self.learner.privacy

    def planned_epsilons(self, plan: Plan, max_categories: int, prep: Pipeline = DEFAULT) -> dict[str, float]:
        """The most that all fits of the search spend on a table, by party, for operators who approve it."""
        if self.privacy is None or plan.query.label is None:
            return self.learner.planned_epsilons(plan, max_categories, prep)
        rows = {alias: table.rows for alias, table in plan.tables.items()}
        return approved_epsilons(self._planned_costs(plan, rows, max_categories, prep), self.privacy.delta)

    def _planned_costs(self, plan: Plan, rows: Mapping[str, int], max_categories: int, prep: Pipeline) -> TableCosts:
        """Of each stage as many fits as folds, with the candidates that cost most, and the last fit on all rows.

        Noisy labels cost once, however often they are asked for.
        """
        candidates, label = self.check(), plan.query.label
        assert label is not None, "a search has one"

        def costs(share: float, predictions: int) -> list[tuple[TableCosts, TableCosts]]:
            learned = {**rows, label.alias: max(1, round(share * rows[label.alias]))}
            found = [
                self._with(each).planned_costs(plan, learned, max_categories, pipeline_of(each, prep), predictions)
                for each in candidates
            ]
            return sorted(found, key=lambda each: -_most(each[0]))

        last = costs(1.0, max(1, self.learner.predictions_to_come))
        labels = {tuple(sorted(labels.items(), key=lambda each: each[0])) for _, labels in last}
        spent: list[TableCosts] = [last[0][0], *map(dict, labels)]
        for rung in self._rungs(len(candidates), rows[label.alias]):
            of_folds = costs(rung.share * (1 - 1 / self.folds), 2)[: rung.candidates]  # both sides are measured
            spent += [features for features, _ in of_folds] * self.folds
        return added(spent)

    def _with(self, settings: Mapping[str, Any]) -> Learner:
        own = {name: value for name, value in settings.items() if not is_of_prep(name)}
        found: Learner = clone(self.learner).set_params(**own)
        return found

    def _described(self, candidates: Sequence[Settings], relation: Relation) -> dict[str, Any]:
        """What a search is about: one that goes on must be the same."""
        return {
            "search": type(self).__name__, "learner": type(self.learner).__name__,
            "candidates": [
                _plain_settings(self._with(settings))
                | plain({name: value for name, value in settings.items() if is_of_prep(name)})
                for settings in candidates
            ],
            "prep": relation.prep.plain(),
            "folds": self.folds, "seed": self.seed, "groups": self.groups, "stratified": self.stratified,
            "time": self.time,
            "columns": [f"{column.qualified} {column.type}" for column in relation.query.outputs],
            "rows": len(relation),
        } | ({} if self._measures is None else {"measures": self._measures})  # fmt: skip

    def _measure(
        self,
        folding: Folding,
        share: float,
        candidates: Sequence[Settings],
        places: Sequence[int],
        scores: SearchScores,
    ) -> None:
        """Fit and measure candidates on every fold, as far as that is not known."""
        if all(scores.has(place, share, number) for place in places for number in range(self.folds)):
            return
        sides = folding.sides(share)
        by_pipeline, train = PreparedFolds(sides), sides[0][0]
        at_a_time = 1 if counts_replies(train.plan) else max(1, ROWS_IN_STEP // len(train))
        for together in self._together(candidates, places):
            folds = by_pipeline.of(candidates[together[0]])

            def measure(number: int, together: Sequence[int] = together, folds: Sequence[Fold] = folds) -> None:
                new = [place for place in together if not scores.has(place, share, number)]
                self._measure_fold(folds[number], number, [(place, candidates[place]) for place in new], share, scores)

            works = [partial(measure, number) for number in range(self.folds)]
            size = at_a_time if len(together) > 1 else 1
            for start in range(0, len(works), size):
                in_step(train.client.outbox, works[start : start + size])

    def _measure_fold(
        self, fold: Fold, number: int, new: Sequence[tuple[int, Settings]], share: float, scores: SearchScores
    ) -> None:
        """Fit and measure candidates on one fold: a single one, or some that differ in ``l2`` only."""
        if not new:
            return
        learner: Any = self._with(new[0][1])
        if len(new) == 1:
            with one_run(self._named(new[0][1])):
                found = measured(learner, fold, number, self._measures)
            scores.put(new[0][0], share, number, found)
            return
        by_l2: dict[float, list[int]] = {}  # a value may be listed twice
        for place, settings in new:
            by_l2.setdefault(settings["l2"], []).append(place)

        def put(l2: float, found: dict[str, float]) -> None:
            for place in by_l2[l2]:
                scores.put(place, share, number, found)

        measure_along_l2(learner, sorted(by_l2, reverse=True), fold, number, put)

    def _together(self, candidates: Sequence[Settings], places: Sequence[int]) -> Iterator[list[int]]:
        """Candidates that are fitted one from another: linear models that differ in ``l2`` only; others alone."""
        groups: list[tuple[Settings, list[int]]] = []
        for place in places:
            settings = {name: value for name, value in candidates[place].items() if name != "l2"}
            learner = self._with(candidates[place])
            joins = "l2" in candidates[place] and isinstance(learner, LinearLearner) and learner.goes_along_l2()
            joins = joins and self._measures is None
            known = next((listed for others, listed in groups if joins and others == settings), None)
            if known is None:
                groups.append((settings if joins else {"alone": place}, [place]))
            else:
                known.append(place)
        yield from (listed for _, listed in groups)

    def _row(self, settings: Settings, share: float, scores: Sequence[Mapping[str, float]]) -> Settings:
        """One candidate: its settings, means and deviations over folds, and the time it took."""
        row = self._shown(settings)
        for name in scores[0]:
            if name.startswith(CONSTANT):
                continue
            values = np.array([each[name] for each in scores])
            if name == "seconds":
                row[name] = float(values.sum())
                continue
            row[f"mean_{name}"] = float(values.mean())
            if name.startswith("test_"):
                row[f"std_{name}"] = float(values.std())
        return row

    @property
    def _measures(self) -> list[str] | None:
        """What is measured on every fold; None: what `evaluate` measures by itself."""
        usual = MEASURES[self.learner.learns_classes]
        return None if self.metric is None or self.metric in usual else [*usual, self.metric]

    def _metric(self, measures: Sequence[str]) -> str:
        """What candidates are compared by."""
        usual = "accuracy" if "accuracy" in measures else "r2"
        return self.metric or (usual if usual in measures else measures[0])

    def _named(self, settings: Settings) -> str:
        """A candidate, for people."""
        return ", ".join(f"{name} = {setting_text(value)}" for name, value in self._shown(settings).items())

    def _shown(self, settings: Settings) -> Settings:
        listed = self._given.get(PREP, ())
        return for_people(settings, listed if _is_list(listed) else ())

    def _ordered(self, rows: Mapping[int, Settings]) -> list[int]:
        """Candidates, the best first, of equal ones the first; sets ``metric_``."""
        some = next(iter(rows.values()))
        metric = self._metric([name.removeprefix("mean_test_") for name in some if name.startswith("mean_test_")])
        self.metric_, sign = metric, 1.0 if is_error(metric) else -1.0
        places = sorted(rows)
        scores = np.array([sign * rows[place][f"mean_test_{metric}"] for place in places])
        if np.isnan(scores).all():
            raise LearnError(
                f"{_kind(self)}: {metric} cannot be measured on every fold, as one has too few rows, or no row of some "
                "class; take fewer folds, stratified=True, or another metric"
            )
        order = np.argsort(np.where(np.isnan(scores), np.inf, scores), kind="stable")
        return [places[each] for each in order.tolist()]

    def predict(self, relation: Relation, **settings: Any) -> Any:
        """Predictions of the best model."""
        return self.best_model_.predict(relation, **settings)

    def evaluate(self, relation: Relation) -> Metrics:
        """Metrics of the best model."""
        return self.best_model_.evaluate(relation)

    @names_checked
    def plot(self, path: str | Path) -> None:
        """Draw the score of every candidate by each setting, with its deviation over folds, into a picture."""
        searched = [name for name in self.results_.column_names if name in self.best_params_]
        draw(list(self.results_), searched, self.metric_, Path(path), self.results_.constant.get(self.metric_))

    def __getattr__(self, name: str) -> Any:
        if name in LEFT_BY_FIT:
            raise NotFittedError(f"this {_kind(self)} is not fitted yet: call fit with a relation first")
        raise AttributeError(f"{_kind(self)!r} object has no attribute {name!r}", name=name, obj=self)


def _most(costs: TableCosts) -> float:
    return max((cost.epsilon(_COMPARED) for cost in costs.values()), default=0.0)


def _kind(search: Search) -> str:
    return type(search).__name__


def _is_list(values: Any) -> bool:
    return not isinstance(values, str) and isinstance(values, Sequence | np.ndarray) and len(values) > 0


@class_checked
class GridSearch(Search):
    """Tries every combination of settings: ``tp.GridSearch(learner, {"l2": [1e-6, 1e-3]}, folds=5).fit(rel)``.

    After `fit`: ``best_params_``, ``best_score_``, ``best_model_`` (fitted on the whole relation), and ``results_``, a
    table with one row per candidate, the best first. ``metric`` is one of those that the learner's `evaluate` measures;
    accuracy or r2 if none is named. With ``folder`` a search that was stopped goes on where it was.
    """

    def __init__(
        self, learner: Learner, grid: Mapping[str, Sequence[Any]], folds: int = 5, seed: int = 0,
        groups: str | None = None, stratified: bool = False, metric: str | None = None,
        folder: str | Path | None = None, time: str | None = None,
    ):  # fmt: skip
        self.learner, self.grid, self.folds, self.seed = learner, grid, folds, seed
        self.groups, self.stratified, self.metric, self.folder, self.time = groups, stratified, metric, folder, time

    @property
    def _given(self) -> Mapping[str, Sequence[Any]]:
        return self.grid

    def _candidates(self) -> list[Settings]:
        for name, values in self.grid.items():
            if not _is_list(values):
                raise LearnError(f"GridSearch: give a list of values to try for {name!r}, such as [1e-6, 1e-3]")
        found = math.prod(len(values) for values in self.grid.values())
        if found > MOST:
            raise LearnError(f"GridSearch: {found:,} combinations are more than {MOST:,}; try fewer values")
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


@class_checked
class RandomSearch(Search):
    """Tries random settings: ``tp.RandomSearch(learner, {"l2": scipy.stats.loguniform(1e-6, 1)}, candidates=20)``.

    Each setting has a list of values or a distribution of SciPy. With ``halving`` all candidates learn from a small
    share of the rows first; the best third goes on with three times as many, and so on up to all rows, as long as a
    share has 200 rows. What `fit` leaves is as in `GridSearch`; ``results_`` also has the ``share`` of the rows that a
    candidate's scores are from, those of all rows first.
    """

    def __init__(
        self, learner: Learner, settings: Mapping[str, Any], candidates: int = 20, folds: int = 5, halving: bool = True,
        seed: int = 0, groups: str | None = None, stratified: bool = False, metric: str | None = None,
        folder: str | Path | None = None, time: str | None = None,
    ):  # fmt: skip
        self.learner, self.settings, self.candidates, self.folds = learner, settings, candidates, folds
        self.halving, self.seed, self.groups, self.stratified = halving, seed, groups, stratified
        self.metric, self.folder, self.time = metric, folder, time

    @property
    def _given(self) -> Mapping[str, Any]:
        return self.settings

    def _candidates(self) -> list[Settings]:
        """Distinct settings, drawn one after another; fewer if there are not enough."""
        for name, values in self.settings.items():
            if not _is_list(values) and not hasattr(values, "rvs"):
                raise LearnError(
                    f"RandomSearch: give a list of values for {name!r}, or a distribution, such as "
                    "scipy.stats.loguniform(1e-6, 1)"
                )
        check_whole("RandomSearch: candidates", self.candidates, 1, MOST)
        if not self.settings:
            raise LearnError("RandomSearch: there is no setting to try")
        rng = np.random.default_rng(self.seed)
        if all(_is_list(values) for values in self.settings.values()):
            return self._from_lists(rng)
        return [{name: _drawn(values, rng) for name, values in self.settings.items()} for _ in range(self.candidates)]

    def _from_lists(self, rng: np.random.Generator) -> list[Settings]:
        """Combinations of listed values, each at most once."""
        lengths = [len(values) for values in self.settings.values()]
        drawn = rng.choice(math.prod(lengths), min(self.candidates, math.prod(lengths)), replace=False)
        places = np.stack(np.unravel_index(drawn, lengths), axis=1)
        return [
            {name: values[at] for (name, values), at in zip(self.settings.items(), each, strict=True)}
            for each in places.tolist()
        ]

    def _rungs(self, candidates: int, rows: int) -> list[Rung]:
        found, share = [Rung(candidates, 1.0)], 1.0
        while self.halving and found[-1].candidates > KEPT and share / KEPT * rows >= FEWEST:
            found.append(Rung(math.ceil(found[-1].candidates / KEPT), 1.0))
            share /= KEPT
        return [Rung(rung.candidates, float(KEPT) ** (place + 1 - len(found))) for place, rung in enumerate(found)]

    def _row(self, settings: Settings, share: float, scores: Sequence[Mapping[str, float]]) -> Settings:
        return {**self._shown(settings), "share": share, **super()._row({}, share, scores)}


def _drawn(values: Any, rng: np.random.Generator) -> Any:
    """One value of a list or a distribution, as a plain Python object."""
    found = values[int(rng.integers(len(values)))] if _is_list(values) else values.rvs(random_state=rng)
    return found.item() if isinstance(found, np.generic) else found


def _plain_settings(learner: Learner) -> dict[str, Any]:
    """The settings as a file stores them, and weights of classes, which saved models have not."""
    weights = learner.get_params(deep=False).get("class_weight")
    named = {"class_weight": sorted(map(repr, weights.items()))} if isinstance(weights, Mapping) else {}
    return learner.plain_settings() | named
