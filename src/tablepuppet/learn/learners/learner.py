"""Learners of a label. The story of `fit`: encoders are fitted over the joined rows and applied at the parties; labels
are asked for; a solver runs rounds of gather, loss, scatter; the parameters stay with the parties.

What is learned, a number or a class, is in tasks.py; by which model, in linear.py and network.py. A learner is made of
one of each, as scikit-learn's are of mixins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.estimator import Estimator, need_relation
from tablepuppet.learn.learners.noise_warning import warn_of_noise
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.predictions import Predictions, handed_out
from tablepuppet.learn.learners.validation import Validation, Watched, check_alike
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.loss.losses import Loss
from tablepuppet.learn.private.budget_check import check_budget
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.planned_releases import Planning
from tablepuppet.learn.private.promise import (
    check_demanded,
    check_label_apart,
    check_sums_demanded,
    known_otherwise,
    promised,
)
from tablepuppet.learn.private.promises import new_promise
from tablepuppet.learn.settings import COUNT, NUMBER, SWITCH, Auto, or_auto, setting
from tablepuppet.learn.solve.allowance import VALIDATION, Allowance, Costs
from tablepuppet.learn.solve.schedule import Schedule, Usual, schedule_of
from tablepuppet.learn.solve.solvers import SHORT_FORMS, SOLVER, Solver, SolverName, Stepping, chosen_solver
from tablepuppet.learn.tables.saved import SavedModel
from tablepuppet.learn.tables.stored import Model, Stored
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.rosters import make_rosters
from tablepuppet.party.spec import Spec
from tablepuppet.prep.encode import apply_encoding
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.table_view import Records
from tablepuppet.spelling import names_checked
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn, Query
from tablepuppet.wire.engine import Engine

Array = NDArray[np.float64]
AUTO_ROUNDS = 300  # at most: solvers but sgd stop when they have converged
SINGLE_PRECISION_TOL = 1e-8  # what float32 on the wire can still tell: below it, steps are of rounding errors


class Progress:
    """What a learner of a label has while it is fitted, and afterwards."""

    intercept_: Array
    solver_: Literal["admm", "sgd", "lbfgs"]
    schedule_: Schedule
    history_: list[dict[str, Any]]
    converged_: bool
    stopped_: str
    best_round_: int
    evaluated_on_: str
    predictions_to_come: int = 0  # after the fit: parties' budgets must allow these too


class Learner(Progress, Estimator):
    """Learns a label. Subclasses say what is learned (tasks.py) and by which model (``spec`` and ``_train``)."""

    beside = SHORT_FORMS
    learns_classes: ClassVar[bool] = False
    metric_name: ClassVar[str] = "metric"
    usual: ClassVar[Usual]  # of sgd
    usual_rounds: ClassVar[int] = AUTO_ROUNDS  # of other solvers
    usual_momentum: ClassVar[float] = 0.0  # of steps with one learning rate for all columns

    solver: SolverName | Solver = setting(
        default="auto", kind=SOLVER, help="how it is learned, see [solvers](learning.md#solvers)"
    )
    rounds: int | Auto = setting(
        default="auto",
        kind=or_auto(COUNT),
        help="rounds at most, or epochs of `sgd`; `'auto'` is fewer where [parties limit "
        "them](learning.md#limits-of-parties)",
    )
    l2: float = setting(
        default=1e-6,
        kind=NUMBER,
        help="l2 / 2 times the squared norm in encoded units, added to the mean loss, not on the intercept",
    )
    tol: float = setting(
        default=1e-15,
        kind=NUMBER,
        help='stop when a round gains less than `tol` times the objective (1e-8 at best with `wire="float32"`)',
    )
    patience: int = setting(
        default=5,
        kind=COUNT,
        help="with a `validation` relation: stop when its loss has not fallen for so many rounds",
    )
    reduce: bool = setting(
        default=True, kind=SWITCH, help="False: the same maths without the reduction of duplicates, as a baseline"
    )
    label_correction: bool = setting(
        default=False,
        kind=SWITCH,
        help="of classifiers with noisy labels: learn by an unbiased estimate of the loss on true labels, see "
        "[privacy.md](privacy.md)",
    )

    @names_checked
    def fit(self, relation: Relation, validation: Relation | None = None) -> Self:
        """Learn from a relation with a label.

        The model is measured on the ``validation`` relation after every round. Learning stops when its loss there has
        not fallen for ``patience`` rounds, and the parameters of the best round are kept. If it fails, the learner is
        as it was before.
        """
        with self.unchanged_if_it_fails():
            return self._fit(relation, validation)

    def _fit(self, relation: Relation, validation: Relation | None) -> Self:
        self.check_settings()
        need_relation(relation, "fit")
        if validation is not None:
            need_relation(validation, "fit(validation=...)")
        for side in (relation, validation):
            if side is not None:
                self.check_promise(side)
        self.check_plan(relation.plan, validated=validation is not None)
        label = label_of(relation)
        if validation is not None:
            check_alike(relation, validation)
        if not self.reduce:
            relation = relation.without_reduction()
            validation = None if validation is None else validation.without_reduction()
        if self.privacy is not None and self.privacy.secure_sum:
            self._secure_sums(relation)
        prepared = relation.events.progress("prepare", f"{type(self).__name__}: preparing labels and features", 1)
        self._choose_solver({alias: len(relation.client.shards(alias)) for alias in tables_of(relation.query)})
        self.promise_ = self._feature_promise(relation)
        self.plan_rounds(len(relation), partial(self._allowance, relation, validation))
        labels_first = self._check_budget(relation, validation)  # nothing is charged before
        asked = self._ask_labels(relation.client, label)  # before statistics are read: both travel together
        asked_also = None if validation is None else self._ask_labels(validation.client, label)
        if labels_first:
            asked.read()
            self._check_budget(relation, validation, labels_paid=True)
        if self.promise_ is None:
            self.encoding_ = relation.fit_encoding()
        else:
            self.encoding_ = relation.fit_private_encoding(self.promise_.encoders)
        self.check_features(relation)
        loss = self._prepare(relation.client, label, asked)
        self.converged_ = False
        self.history_ = Records()
        held_out = None
        if validation is not None and asked_also is not None:
            client = validation.client
            apply_encoding(client, self.encoding_)
            held_out = Validation(client, self._held_out(client, label, asked_also), self.patience)
        watch = Watch(self, relation, loss, held_out, prepared)
        model, intercept = self._train(relation, loss, watch)
        self.intercept_ = watch.end(model, intercept)
        self.settle(relation, self.encoding_, model)
        if self.privacy is not None:
            warn_of_noise(self, self.privacy, relation, loss, held_out)
        return self

    def _learn(self, relation: Relation) -> Model:
        raise AssertionError("`_fit` takes labels too")

    def _secure_sums(self, relation: Relation) -> None:
        """Let shards of one table mask their sums."""
        secured = make_rosters(relation.client, tables_of(relation.query))
        message = f"tables {', '.join(secured)} reach the coordinator as a sum over their shards only"
        if not secured:
            message = (
                "secure_sum does nothing here: no table with features has several shards, so what a table computes "
                "reaches the coordinator by itself"
            )
        relation.events.emit("info" if secured else "warning", "secured", message, tables=secured)

    # What a subclass says: of the label, and of the model

    @abstractmethod
    def check_label(self, plan: Plan) -> None:
        """Raise LearnError or PrivacyError if the label of a plan cannot be learned, by what parties publish."""

    @abstractmethod
    def _ask_labels(self, client: Client, label: OutputColumn) -> Replies:
        """Ask for labels of the kind that is learned."""

    @abstractmethod
    def _prepare(self, client: Client, label: OutputColumn, asked: Replies) -> Loss:
        """The loss over the rows that are learned from."""

    @abstractmethod
    def _held_out(self, client: Client, label: OutputColumn, asked: Replies) -> Loss:
        """The loss over rows that are not learned from."""

    @abstractmethod
    def metric(self, loss: Loss, value: float, scores: Array) -> float:
        """The metric of scores whose mean loss is ``value``."""

    @abstractmethod
    def predictions(self, relation: Relation) -> Predictions:
        """What is predicted for every joined row; parties are asked once."""

    @abstractmethod
    def evaluate(self, relation: Relation, *, at_party: bool = False) -> dict[str, float]:
        """Metrics over the joined rows."""

    @abstractmethod
    def spec(self, outputs: int) -> Spec:
        """What each table's model is."""

    @abstractmethod
    def _train(self, relation: Relation, loss: Loss, watch: Watch) -> tuple[Watched, Array]:
        """Run the solver: (the model, its intercept); says in ``converged_`` whether it came to an end."""

    @abstractmethod
    def _costs(self, batches: int) -> Costs:
        """The replies that parties count towards their limits, of the solver with so many batches in an epoch."""

    @abstractmethod
    def _check_private(self) -> None:
        """PrivacyError unless the settings allow noise on features."""

    def _takes_noisy_steps(self) -> bool:
        """Whether noise on features is that of steps, in place of that of sums."""
        return self.solver_ == "sgd"

    def _fewest_trips(self, shards: Mapping[str, int]) -> Literal["admm", "sgd", "lbfgs"]:
        """The solver that "auto" picks."""
        return "lbfgs"

    # Before a fit: solver, promise, rounds, budgets

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range."""
        super().check_settings()
        if isinstance(self.solver, Solver):
            chosen_solver(self.solver, self.solver.name, self.given_beside)
        if self.label_correction and (self.privacy is None or not self.privacy.is_label_private):
            raise LearnError("label_correction is for labels with noise: set privacy=tp.Privacy(label_epsilon=...) too")

    def check_plan(self, plan: Plan, *, validated: bool = False) -> None:
        """Raise unless a plan can be learned from, as far as its parties' catalog tells: nothing is asked for it."""
        check_demanded(plan, self.privacy)
        check_label_apart(plan, self.privacy)
        check_sums_demanded(plan, self.privacy)
        if validated and self.privacy is not None and self.privacy.prediction_epsilon is not None:
            raise PrivacyError(
                "validation needs predictions after every round, which would all need noise under prediction_epsilon; "
                "fit without validation"
            )
        self.check_label(plan)

    def check_promise(self, relation: Relation) -> None:
        """PrivacyError unless what is promised is what the relation's parties demand, and the query lets it be kept."""
        check_demanded(relation.plan, self.privacy)
        check_label_apart(relation.plan, self.privacy)
        for known in known_otherwise(relation.plan, self.privacy):
            relation.events.emit("warning", "privacy.known", f"{known} Leave it out there if it is to be protected.")

    def check_rounds(self, plan: Plan, rows: Mapping[str, int], max_categories: int) -> Planning:
        """How a fit over so many rows by table is planned; PrivacyError if parties do not allow its rounds.

        How many batches fit is only known with the joined rows.
        """
        tables = tables_of(plan.query)
        self._choose_solver({alias: len(plan.tables[alias].shards) for alias in tables})
        self.promise_ = self.promise_for(plan, {alias: rows[alias] for alias in tables}, self.privacy)
        allowance = Allowance.of_plan(plan, self._costs(1))
        if self.promise_ is not None or self.solver_ != "sgd":
            self.plan_rounds(max(rows.values()), lambda _: allowance)
        return Planning(self, plan, rows, max_categories, self.predictions_to_come, allowance.most_rounds())

    @property
    def asked_solver(self) -> SolverName:
        """The name of the solver that was asked for."""
        return self.solver.name if isinstance(self.solver, Solver) else self.solver

    def _choose_solver(self, shards: Mapping[str, int]) -> None:
        """``shards`` that take part, by table."""
        asked = self.asked_solver
        self.solver_ = self._fewest_trips(shards) if asked == "auto" else asked

    @property
    def solving(self) -> Solver:
        """The solver that was chosen, with its settings."""
        return chosen_solver(self.solver, self.solver_, self.given_beside)

    @property
    def plain_momentum(self) -> float:
        """That of steps with one learning rate for all columns."""
        solver = self.solving
        asked = solver.momentum if isinstance(solver, Stepping) else "auto"
        return self.usual_momentum if isinstance(asked, str) else asked

    @property
    def has_private_features(self) -> bool:
        """Whether what is learned from features has noise."""
        return self.privacy is not None and self.privacy.is_feature_private

    def _feature_promise(self, relation: Relation) -> FeaturePromise | None:
        """What may be told of features; None without feature privacy. PrivacyError where it cannot be kept."""
        if self.privacy is None:
            return None
        rows = {alias: relation.mapping.tables[alias].rows for alias in tables_of(relation.query)}
        for count in rows.values():
            self.privacy.check_rows(count)
        return self.promise_for(relation.plan, rows, self.privacy)

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The same, for so many rows by table that take part."""
        if privacy is None or not privacy.is_feature_private:
            return None
        self._check_private()
        rounds, solver = None if isinstance(self.rounds, str) else self.rounds, self.solving
        steps = solver if self._takes_noisy_steps() and isinstance(solver, Stepping) else None
        return new_promise(privacy, plan, rounds, rows, steps)

    def _check_budget(self, relation: Relation, validation: Relation | None, *, labels_paid: bool = False) -> bool:
        """PrivacyError if the fit, and predictions that are to come, would exceed what is left of a party's budget.

        Whether that depends on labels costing nothing, as they were told before. Rows are those that take part.
        """
        if self.privacy is None or not any(s.funds for table in relation.plan.tables.values() for s in table.shards):
            return False
        most = None if self.promise_ is None else self._allowance(relation, validation, 1).most_rounds()
        rows = {alias: table.rows for alias, table in relation.mapping.tables.items()}
        to_come = self.predictions_to_come
        planning = Planning(self, relation.plan, rows, relation.max_categories, to_come, most)
        return check_budget(self, planning, relation.funds(), labels_paid=labels_paid)

    def plan_rounds(self, rows: int, allowed: Callable[[int], Allowance]) -> None:
        """Decide on rounds and batches over so many joined rows; PrivacyError if parties do not allow them.

        ``allowed`` is what they allow with so many batches in an epoch.
        """
        if self.promise_ is None:
            self.schedule_ = schedule_of(self.solving, self.rounds, rows, self.usual, self.usual_rounds, allowed)
            return
        self.promise_ = self.promise_.within(allowed(1).most_rounds())
        told: dict[str, object] = {"solver": self.solver_, "rounds": self.rounds}
        allowed(1).check(self.promise_.rounds, told, "lower local_steps")
        self.schedule_ = Schedule(self.promise_.rounds, rows)

    @property
    def most_rounds(self) -> int:
        """How many rounds, or epochs, there may be."""
        return self.schedule_.rounds if self.promise_ is None else self.promise_.rounds

    def _allowance(self, relation: Relation, validation: Relation | None, batches: int) -> Allowance:
        """What parties allow, with so many batches in an epoch."""
        aliases = tables_of(relation.query)
        asked: list[tuple[Client, Iterable[str], Costs]] = [(relation.client, aliases, self._costs(batches))]
        if validation is not None:
            asked.append((validation.client, aliases, VALIDATION))
        return Allowance(asked)

    @property
    def epsilon_so_far(self) -> float | None:
        """What the rounds until now have cost, given messages; that of labels without feature privacy, None without."""
        if self.promise_ is not None:
            return self.promise_.most_so_far
        return None if self.privacy is None else self.privacy.label_epsilon

    # After a fit: predictions, saving

    @overload
    def predict(self, relation: Relation) -> NDArray[Any]: ...

    @overload
    def predict(self, relation: Relation, *, ids: Sequence[str]) -> pa.Table: ...

    @overload
    def predict(
        self, relation: Relation, *, deliver_to: str, combine: Literal["mean"] | None = None
    ) -> dict[str, Any]: ...

    @names_checked
    def predict(
        self,
        relation: Relation,
        *,
        ids: Sequence[str] | None = None,
        deliver_to: str | None = None,
        combine: Literal["mean"] | None = None,
    ) -> Any:
        """The predicted number, or the most probable class, of every joined row, in the order of ``rows()``.

        With ``ids``, an Arrow table: these columns of the query's tables, named as asked (``alias.column``, or
        ``column`` where one table only has it) and selected or not, then ``prediction``, and of classifiers
        ``probability=<class>``. Raises PrivacyError where a policy does not give a column the use ``id``.

        With ``deliver_to``, a party gets the predictions about its own rows and writes them beside its own keys, where
        its operator has named a place; every other party with features must allow it. Name ``party.table`` or
        ``party.alias`` if several of its tables take part. Where a row is joined several times, ``combine="mean"``
        averages numbers or probabilities. Returns a receipt: party, table, run, and the rows written and without one.
        """
        self.check_relation(relation, "predict")
        features = dict.fromkeys(alias for alias, _, _ in self.relation_columns_)
        return handed_out(self.predictions, relation, features, ids, deliver_to, combine)

    def _scores(self, relation: Relation) -> Array:
        """Scores of every joined row, in the order of ``rows()``."""
        self.check_relation(relation, "predict")
        client = relation.client
        done = relation.events.progress("predict", f"{type(self).__name__}: predicting", 1)
        apply_encoding(client, self.encoding_)
        try:
            scores = cast(Model, self.model_).scores(client)
            done(1)
        finally:
            if self.promise_ is not None:  # predictions have cost something, also those that got lost
                self.privacy_ = promised(self.uses_, self.promise_.privacy, self.promise_)
        if not np.isfinite(scores).all():
            raise LearnError(
                "the relation has feature values that are not finite (NaN or infinity); filter them in WHERE"
            )
        return scores + (self.intercept_[0] if scores.ndim == 1 else self.intercept_)

    def _tell_measured_at_party(self) -> None:
        check_fitted(self)
        self.evaluated_on_ = "true labels, at their party"

    def _tell_labels(self, relation: Relation) -> None:
        """Say in ``evaluated_on_``, and by an event if they have noise, which labels a metric was measured on."""
        noisy = self.privacy is not None and self.privacy.is_label_private
        self.evaluated_on_ = "noisy labels" if noisy else "labels"
        if noisy and self.privacy is not None:
            relation.events.emit(
                "warning", "labels.noisy",
                f"metrics are measured on labels with noise for epsilon {self.privacy.label_epsilon:g}; on true labels "
                "the model is likely better",
                epsilon=self.privacy.label_epsilon,
            )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """How the fit went."""
        return {
            "solver": self.solver_,
            "converged": self.converged_,
            "stopped": self.stopped_,
            "best_round": self.best_round_,
            "history": self.history_,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The intercept."""
        return {"intercept": self.intercept_}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Both."""
        self.intercept_ = arrays["intercept"]
        self.solver_, self.converged_, self.stopped_ = facts["solver"], facts["converged"], facts["stopped"]
        self.best_round_, self.history_ = facts["best_round"], Records(facts["history"])

    def saved(self, stored: Stored, engine: Engine, wire: str) -> SavedModel:
        """A model with these parameters, for predictions only."""
        model = SavedModel(self.spec(len(self.intercept_)), self.encoding_, stored, engine, wire)
        model.spent = None if self.promise_ is None else self.promise_.spent
        return model


def tables_of(query: Query) -> list[str]:
    """Aliases of tables with features."""
    return list(dict.fromkeys(column.alias for column in query.features))


def label_of(relation: Relation) -> OutputColumn:
    """The label column of a relation that can be learned from or measured on; LearnError if there is none."""
    if relation.query.label is None:
        raise LearnError("the relation has no label; name one: fed.sql(..., label='column')")
    if not len(relation):
        raise LearnError("the relation has no joined rows; check the join keys and filters with explain()")
    return relation.query.label
