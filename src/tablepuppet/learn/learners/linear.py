"""The linear learners: regression, and classification of two or more classes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal

from tablepuppet.errors import PrivacyError, TablePuppetError
from tablepuppet.learn.learners.estimator import PRIVATE_BATCH, SINGLE_PRECISION_TOL, Array, Learner
from tablepuppet.learn.learners.settings import Solver, check_fitted
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.validation import Watched
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.linear.consensus import CONSENSUS_TOL, Inner
from tablepuppet.learn.linear.converged import has_converged
from tablepuppet.learn.linear.descent import Rule, descend
from tablepuppet.learn.linear.gradient_rule import GradientRule
from tablepuppet.learn.linear.model import LinearModel, by_column
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.private.descent import solve_by_steps
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.step_promise import StepPromise, sampling_of
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.admm import SharingRule
from tablepuppet.learn.solve.allowance import Cost, Costs
from tablepuppet.learn.solve.schedule import Usual
from tablepuppet.learn.solve.sgd import Conditioned, Stochastic, descend_by_batches, falling
from tablepuppet.learn.threads import one_thread
from tablepuppet.party.spec import Linear
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Event
from tablepuppet.runs.table_view import NamedNumbers
from tablepuppet.sql.query import OutputColumn

MOMENTUM, FASTEST = 0.9, 0.3  # of sgd; of a Newton step: a row far from all others is in one batch of an epoch
DAMPING = 0.3  # of steps whose columns the rows of a batch say little of


class LinearLearner(Learner):
    """A linear model over a relation."""

    usual = Usual(batches=5, epochs=40, long_epochs=20, steps=200)

    def __init__(
        self,
        *,
        solver: Solver = "auto",
        rounds: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        lr: float | Literal["auto"] = "auto",
        momentum: float | Literal["auto"] = "auto",
        l2: float = 1e-6,
        rho: float | Literal["auto"] = "auto",
        inner_rounds: int | Literal["auto"] = "auto",
        inner_rho: float | Literal["auto"] = "auto",
        local_steps: int = 20,
        tol: float = 1e-15,
        patience: int = 5,
        reduce: bool = True,
        seed: int = 0,
        privacy: Privacy | None = None,
        label_correction: bool = False,
        callbacks: Iterable[Callable[[Event], None]] = (),
    ):
        self.solver = solver
        self.rounds = rounds
        self.batch_size = batch_size
        self.lr = lr
        self.momentum = momentum
        self.l2 = l2
        self.rho = rho
        self.inner_rounds = inner_rounds
        self.inner_rho = inner_rho
        self.local_steps = local_steps
        self.tol = tol
        self.patience = patience
        self.reduce = reduce
        self.seed = seed
        self.privacy = privacy
        self.label_correction = label_correction
        self.callbacks = callbacks

    @property
    def coef_(self) -> dict[str, Array]:
        """Parameters by encoded column: ``alias.column``, or ``alias.column=code`` for a category."""
        check_fitted(self)
        classes = [f"class {each}" for each in getattr(self, "classes_", ())]
        heads = classes if len(classes) > 2 else ["coefficient"]
        asked = weakref.WeakMethod(self._meanings)  # numbers that are kept must not keep a session open
        meanings = lambda: found() if (found := asked()) else {}  # noqa: E731
        return NamedNumbers(by_column(self.encoding_, self.model_.parameters()), heads, meanings)

    def _meanings(self) -> dict[str, str]:
        """The names of categories by their names in ``coef_``; none if a party cannot be asked for them now."""
        with suppress(TablePuppetError):
            listed = self.categories_.items()
            return {f"{column}={code}": name or "" for column, names in listed for code, name in enumerate(names)}
        return {}

    def spec(self, outputs: int) -> Linear:
        """T theta."""
        return Linear(outputs)

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        with one_thread():  # parties, and pieces of the joined rows, are worked on at the same time
            return self._solve(relation, loss, watch)

    def _solve(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        client, wire = relation.client, relation.wire
        inner = None if isinstance(self.inner_rounds, str) else Inner(self.inner_rounds, self.inner_rho)
        if self.promise_ is not None:
            return self._solve_privately(relation, loss, watch, self.promise_)
        model = LinearModel(client, loss.rows, self.encoding_, wire, self.l2, inner)
        report = watch.of(model)
        if self.solver_ == "sgd":
            return model, self._solve_by_batches(model, loss, report)
        gradient = GradientRule(loss)
        rule: Rule = gradient if self.solver_ == "lbfgs" else SharingRule(loss, len(model.tables), self.rho)
        tol = max(self.tol, SINGLE_PRECISION_TOL if wire == "float32" else 0.0, CONSENSUS_TOL if inner else 0.0)
        intercept, self.converged_ = descend(model, loss, rule, gradient, self.most_rounds, tol, report)
        return model, intercept

    def _solve_by_batches(self, model: LinearModel, loss: JoinedLoss, report: Callable[[Round], bool]) -> Array:
        rounds, size = self.schedule_.rounds, self.schedule_.batch_size
        if isinstance(self.lr, str):
            momentum = MOMENTUM if isinstance(self.momentum, str) else self.momentum
            rest = 1 - momentum  # a step goes on for 1 / rest steps
            rates = falling(min(rest, FASTEST), rounds)
            steps = Stochastic(model, momentum, Conditioned(loss.most_curvature, DAMPING / (rest * size)))
        else:
            rates = [self.lr / (1 + epoch / 2) for epoch in range(rounds)]
            steps = Stochastic(model, self.plain_momentum)
        intercept = descend_by_batches(steps, loss, rates, size, self.seed, report)
        self.converged_ = len(self.history_) == rounds and has_converged(model, loss, intercept)
        return intercept

    def _costs(self, batches: int) -> Costs:
        if isinstance(self.promise_, StepPromise):
            return Costs(Cost(1, 1), Cost(1, self.promise_.steps_of_round + 1))
        inner = 1 if isinstance(self.inner_rounds, str) else self.inner_rounds
        if self.solver_ != "sgd":
            return Costs(Cost(0, 1), Cost(0, inner + 1))
        return Costs(Cost(3, batches), Cost(inner + 3, 2 * batches))  # after the last epoch one round looks back

    def _solve_privately(
        self, relation: Relation, loss: JoinedLoss, watch: Watch, promise: FeaturePromise
    ) -> tuple[Watched, Array]:
        if isinstance(promise, StepPromise):
            return solve_by_steps(self, relation, loss, watch.of, promise, self.spec(loss.outputs))
        model = LinearModel(relation.client, loss.rows, self.encoding_, relation.wire, self.l2, noise=promise.noise)
        gradient = GradientRule(loss)
        rule: Rule = gradient if self.solver_ == "lbfgs" else SharingRule(loss, len(model.tables), self.rho)
        intercept, self.converged_ = descend(model, loss, rule, gradient, promise.rounds, self.tol, watch.of(model))
        return model, intercept

    def _check_private(self) -> None:
        if not isinstance(self.inner_rounds, str):
            raise PrivacyError("inner_rounds: consensus tells parameters without noise; leave it at 'auto'")
        if not self.reduce:
            raise PrivacyError("reduce=False tells a row as often as it is joined, without noise; leave it at True")

    def _new_promise(
        self, privacy: Privacy, columns: tuple[OutputColumn, ...], categorical: frozenset[str], rounds: int | None,
        rows: Mapping[str, int], known: frozenset[str],
    ) -> FeaturePromise:  # fmt: skip
        if self.solver != "sgd":
            return super()._new_promise(privacy, columns, categorical, rounds, rows, known)
        samplings = sampling_of(self.batch_size, PRIVATE_BATCH, rows)
        return StepPromise(privacy, columns, categorical, rounds, self.local_steps, samplings, known=known)


@learner
class LinearRegression(Regressor, LinearLearner):
    """Least squares with an L2 penalty: scikit-learn's Ridge with alpha = l2 * joined rows, over a relation."""


@learner
class LogisticRegression(Classifier, LinearLearner):
    """Logistic regression of two classes, softmax regression of more, over a relation.

    scikit-learn's LogisticRegression with C = 1 / (l2 * joined rows).
    """
