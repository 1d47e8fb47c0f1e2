"""The linear learners: regression, and classification of two or more classes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from tablepuppet.arrays import Array
from tablepuppet.errors import TablePuppetError
from tablepuppet.learn.learners.learner import label_of
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.solver_learner import SolverLearner
from tablepuppet.learn.learners.summary import CoefficientSummary, summarised
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.watch import Watch, Watched, add_intercept
from tablepuppet.learn.linear.consensus import CONSENSUS_TOL, Inner
from tablepuppet.learn.linear.descent import CHECKS, Descent, GradientRule, Rule, where_sgd_ended
from tablepuppet.learn.linear.model import LinearModel, by_column
from tablepuppet.learn.loss.joined_loss import JoinedLoss, around_mean
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.learn.private.descent import solve_by_steps
from tablepuppet.learn.private.feature_promise import StepPromise, SumPromise
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.admm import SharingRule
from tablepuppet.learn.solve.own import OwnSolver
from tablepuppet.learn.solve.schedule import Cost, Costs, RoundAllowance
from tablepuppet.learn.solve.sgd import Conditioned, Stochastic, descend_by_batches, falling
from tablepuppet.learn.solve.solvers import ADMM, SGD, chosen_solver
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.learn.threads import one_thread
from tablepuppet.mapping.merged import merged
from tablepuppet.prep.encode.alike import AlikeRows
from tablepuppet.prep.encode.encode import apply_encoding
from tablepuppet.relation import Relation
from tablepuppet.runs.events import one_run
from tablepuppet.runs.figures import setting_text
from tablepuppet.runs.table_view import NamedNumbers, Records
from tablepuppet.spelling import names_checked, shows

MOMENTUM, FASTEST = 0.9, 0.3  # of sgd; of a Newton step: a row far from all others is in one batch of an epoch
DAMPING = 0.3  # of steps along columns that few rows of a batch have, such as rare categories


class Measured(NamedTuple):
    """Metrics of a model with one value of ``l2``, on rows that it has learned from and on others."""

    l2: float
    train: Metrics
    test: Metrics


@shows("summary")
class LinearLearner(SolverLearner):
    """A linear model over a relation."""

    @property
    def coef_(self) -> dict[str, Array]:
        """Parameters by encoded column: ``alias.column``, or ``alias.column=code`` for a category."""
        check_fitted(self)
        classes = [f"class {each}" for each in getattr(self, "classes_", ())]
        heads = classes if len(classes) > 2 else ["coefficient"]
        asked = weakref.WeakMethod(self._meanings)  # a stored result must not keep a session open
        meanings = lambda: found() if (found := asked()) else {}  # noqa: E731
        return NamedNumbers(by_column(self.encoding_, self._model.parameters()), heads, meanings)

    @names_checked
    def summary(self, relation: Relation | None = None) -> CoefficientSummary:
        """Every coefficient in the unit of its column, with standard error, t or z, p and 95 % interval.

        ``standardised`` ones are per standard deviation; classifiers have odds ratios. Categories are compared with the
        first one, classes with the first class. Standard errors need the Gram matrix over ``relation``, by default the
        one that the model was fitted on: parties compute it as for ``rel.matrix()``. Where a policy or privacy forbids
        it, the summary has none, and says why. They hold for a small ``l2``: a penalty makes coefficients and errors
        smaller.
        """
        check_fitted(self)
        if relation is not None:
            self.check_relation(relation, "summary")
        return summarised(self, relation)

    def category_meanings(self) -> dict[str, list[str | None]]:
        """``categories_``; none if a party cannot be asked for them now."""
        with suppress(TablePuppetError):
            return self.categories_
        return {}

    def _meanings(self) -> dict[str, str]:
        """The names of categories by their names in ``coef_``."""
        listed = self.category_meanings().items()
        return {f"{column}={code}": name or "" for column, names in listed for code, name in enumerate(names)}

    def spec(self, outputs: int) -> Linear:
        """T theta."""
        return Linear(outputs)

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        promise, solver = self._promise, self.solving
        if isinstance(promise, StepPromise):
            return solve_by_steps(self, relation, loss, watch.of, promise, self.spec(loss.outputs))
        assert promise is None or isinstance(promise, SumPromise), "there are two kinds"
        inner = None if isinstance(solver.inner_rounds, str) else Inner(solver.inner_rounds, solver.inner_rho)
        noise = None if promise is None else promise.noise
        loss, mean = around_mean(loss)
        if isinstance(solver, OwnSolver):
            spec = self.spec(loss.outputs)
            table_model = FederatedModel(relation.client, loss.rows, self.encoding_, relation.wire, spec, self.l2)
            table_model.begin(self.seed)
            own_report = _with_mean(watch.of(table_model), mean)
            intercept, self.converged_ = solver.descend(table_model, loss, self.most_rounds, self.tol, own_report)
            return table_model, intercept + mean
        model = LinearModel(relation.client, loss.rows, self.encoding_, relation.wire, self.l2, inner, noise)
        report = _with_mean(watch.of(model), mean)
        if isinstance(solver, SGD):
            return model, self._solve_by_batches(model, loss, report, solver, watch) + mean
        gradient = GradientRule(loss)
        descent = Descent(model, loss, self._rule(model, loss, gradient), gradient)
        intercept, self.converged_ = descent.run(self.most_rounds, self._tolerance(), report)
        return model, intercept + mean

    def _tolerance(self) -> float:
        """What a round must gain, as a share of the objective."""
        if self._promise is not None:
            return self.tol
        return self.tol if self.solving.sums_shards else max(self.tol, CONSENSUS_TOL)

    def goes_along_l2(self) -> bool:
        """Whether `along_l2` can fit it: by one solver without noise, whose shards add up sums."""
        if self.asked_solver not in ("auto", "lbfgs") or self.privacy is not None:
            return False
        return chosen_solver(self.solver, "lbfgs", self._given_beside).sums_shards

    def along_l2(self, relation: Relation, values: Sequence[float], test: Relation) -> Iterator[Measured]:
        """Fit for one value of ``l2`` after another, measured on both relations; be that model until the next one.

        Labels, encoders, Gram matrices and their eigenvectors are those of the first. Joined rows that are equal for
        every model are merged. Each fit starts at the solution before it, with its steps, and ends by the same
        tolerance as a fit of its own.
        """
        assert self.goes_along_l2(), "its caller has asked"
        self.l2 = values[0]
        opened = self._open_fit(relation, None)
        apply_encoding(test.client, self.encoding_)
        asked = self._ask_labels(test.client, label_of(test))
        alike = [AlikeRows(client, self.encoding_) for client in (opened.relation.client, test.client)]
        labels = self._labels(test.client, label_of(test), asked, "in the fold to measure on")
        of_test = self._loss(test.client, labels)
        rows, held_out = (
            merged(loss.rows, each.read()) for loss, each in zip((opened.loss, of_test), alike, strict=True)
        )
        loss, mean = around_mean(replace(opened.loss, rows=rows))
        model = LinearModel(opened.relation.client, loss.rows, self.encoding_, relation.wire, self.l2)
        gradient = GradientRule(loss)
        with one_thread():
            descent = Descent(model, loss, gradient, gradient)
        try:
            for l2 in values:
                self.l2, self.converged_, self.history_ = l2, False, Records()
                model.penalise(l2)
                with one_run(f"l2 = {setting_text(l2)}"):
                    watch = Watch(self, opened.relation, loss, None, opened.prepared)
                    with one_thread():
                        intercept, self.converged_ = descent.run(
                            self.most_rounds, self._tolerance(), _with_mean(watch.of(model), mean)
                        )
                    intercept = intercept + mean
                    self._close_fit(watch, model, intercept)
                model.score(test.client, held_out)
                add_intercept(held_out, intercept, "the fold to measure on")
                # as in `evaluate`: training rows may be encoded by other numbers
                train = self.evaluate(relation) if relation.prep.leaves_out else self._measures(loss.rows)
                yield Measured(l2, train, self._measures(held_out))
        finally:
            rows.drop()

    def _solve_by_batches(
        self, model: LinearModel, loss: JoinedLoss, report: Callable[[Round], bool], solver: SGD, watch: Watch
    ) -> Array:
        rounds, size = self._schedule.rounds, self._schedule.batch_size
        model.start()
        if isinstance(solver.lr, str):
            momentum = MOMENTUM if isinstance(solver.momentum, str) else solver.momentum
            rest = 1 - momentum  # with momentum a step adds up to 1 / rest times its length
            rates = falling(min(rest, FASTEST), rounds)
            steps = Stochastic(model, momentum, Conditioned(loss.most_curvature, DAMPING / (rest * size)))
        else:
            rates = [solver.lr / (1 + epoch / 2) for epoch in range(rounds)]
            steps = Stochastic(model, self.plain_momentum)
        intercept = descend_by_batches(steps, loss, rates, size, self.seed, report)
        if len(self.history_) == rounds:
            costs = Costs(Cost(2, 1), Cost(2, solver.inner_trips + 1))
            allowed = RoundAllowance([(model.lou.client, model.tables, costs)]).most_rounds()
            checks = CHECKS if allowed is None else min(CHECKS, allowed)
            self.converged_, watch.is_near = where_sgd_ended(
                model, loss, intercept, checks, self._tolerance(), keeps=watch.ends_with_last_round
            )
        return intercept

    def _costs(self, batches: int) -> Costs:
        if isinstance(self._promise, StepPromise):
            return Costs(Cost(1, 1), Cost(1, self._promise.steps_of_round + 1))
        if isinstance(solver := self.solving, OwnSolver):
            return solver.costs
        inner = solver.inner_trips
        if self.solver_ != "sgd":
            return Costs(Cost(0, 1), Cost(0, inner + 1))
        return Costs(
            Cost(3, batches), Cost(inner + 3, 2 * batches)
        )  # a round at the end shows whether it has converged

    def _check_private(self) -> None:
        super()._check_private()

    def _rule(self, model: LinearModel, loss: JoinedLoss, gradient: GradientRule) -> Rule:
        """What tables are asked for in a round, by solver."""
        if self.solver_ == "lbfgs":
            return gradient
        assert self.solver_ == "admm", f"linear learners do not know {self.solver_!r}"
        solver = self.solving
        return SharingRule(loss, len(model.tables), solver.rho if isinstance(solver, ADMM) else "auto")


def _with_mean(report: Callable[[Round], bool], mean: float) -> Callable[[Round], bool]:
    """Report rounds of labels from which their mean was subtracted: the intercept has it."""
    return lambda done: report(replace(done, intercept=done.intercept + mean))


@learner
class LinearRegression(Regressor, LinearLearner):
    """Least squares with an L2 penalty: scikit-learn's Ridge with alpha = l2 * joined rows, over a relation."""


@learner
class LogisticRegression(Classifier, LinearLearner):
    """Logistic regression of two classes, softmax regression of more, over a relation.

    scikit-learn's LogisticRegression with C = 1 / (l2 * joined rows).
    """
