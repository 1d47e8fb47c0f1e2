"""What a learner of a label decides before any party is asked: privacy promise, rounds, budgets.

Input: settings, a plan, what parties publish. Output: ``_promise`` and ``_schedule``, or an error.
What follows from a solver is in solver_learner.py: not all learners have one.
The fit itself is in learner.py, the only direct subclass: one class in two files, split where the first party is asked.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, cast

from sklearn.base import clone

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.learners.estimator import Estimator
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.private.checks import (
    MARGIN,
    approved_epsilons,
    check_budget,
    check_demanded,
    check_label_apart,
    check_sums_demanded,
    known_otherwise,
)
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.fit_plan import Planning
from tablepuppet.learn.solve.schedule import VALIDATION, Costs, RoundAllowance, Schedule
from tablepuppet.learn.tables.model import Spec
from tablepuppet.operators.client import Client
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline, refuse_noisy_labels, refuse_with_noise
from tablepuppet.privacy.funds import rounded_up
from tablepuppet.privacy.noise_plan import TableCosts, added
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import Query


class Planner(Estimator):
    """Plans a fit."""

    learns_classes: ClassVar[bool] = False
    seeks_optimum: ClassVar[bool] = True  # else it is done after its rounds
    metric_name: ClassVar[str] = "metric"
    reduce = True  # learners that can do without declare it as a setting; so too the next
    label_correction = False
    predictions_to_come = 0  # after the fit: parties' budgets must allow these too
    _schedule = cast(Schedule, None)  # until `plan_rounds`; without an annotation it is no setting
    _private_instead: ClassVar[str] = ""  # what to learn with under feature privacy, if this learner has no such form

    # What a subclass says

    @abstractmethod
    def _check_label(self, plan: Plan) -> None:
        """Raise LearnError or PrivacyError if the label cannot be learned, as far as the catalog shows."""

    @abstractmethod
    def metric(self, loss: JoinedLoss, value: float) -> float:
        """The metric of the current scores; ``value`` is their mean loss."""

    @abstractmethod
    def _constant_metric(self, loss: JoinedLoss, value: float) -> float:
        """The metric of the best constant scores; ``value`` is their mean loss."""

    @abstractmethod
    def spec(self, outputs: int) -> Spec:
        """The model of each table."""

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """The number of parameters of a table with ``width`` encoded columns, with which noise is compared."""
        return math.prod(self.spec(outputs).theta_shape(width))

    @abstractmethod
    def _costs(self, batches: int) -> Costs:
        """The number of replies that parties count towards their limits, with ``batches`` batches in an epoch."""

    @abstractmethod
    def plan_rounds(self, rows: int, allowed: Callable[[int], RoundAllowance]) -> None:
        """Set ``_schedule``, rounds and batches for ``rows`` joined rows; PrivacyError if parties do not allow them.

        ``allowed(batches)`` is what parties allow with this number of batches in an epoch.
        """

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The promise for features, with ``rows`` rows by table; None without feature privacy.

        By default, all releases that depend on features are without noise: PrivacyError.
        """
        if privacy is None or not privacy.is_feature_private:
            return None
        raise PrivacyError(f"{type(self).__name__} cannot be fitted with noise on features: leave feature_epsilon out")

    def _chosen_solver(self) -> str | None:
        """The name of the solver; None: it has none."""
        return None

    def more_rounds_by(self, rounds: int) -> str:
        """Advice to a user whose fit has stopped short of the optimum after so many rounds."""
        return "it needs more rounds"

    def fewer_replies_by(self) -> list[str]:
        """What to do where parties allow no more replies: settings that need fewer of them in a round."""
        return []

    # Settings and plans

    def check_plan(self, plan: Plan, *, validated: bool = False) -> None:
        """Raise unless a plan can be learned from, as far as the catalog shows; no party is asked."""
        check_demanded(plan, self.privacy, self._private_instead)
        check_label_apart(plan, self.privacy)
        check_sums_demanded(plan, self.privacy)
        if validated and self.privacy is not None and self.privacy.prediction_epsilon is not None:
            raise PrivacyError(
                "validation needs predictions after every round, which would all need noise under prediction_epsilon; "
                "fit without validation"
            )
        self._check_label(plan)

    def check_promise(self, relation: Relation) -> None:
        """PrivacyError unless the promise is what the parties demand, and the query allows to keep it."""
        check_demanded(relation.plan, self.privacy, self._private_instead)
        check_label_apart(relation.plan, self.privacy)
        if self._has_private_features:
            refuse_with_noise(relation.prep)
        if self.privacy is not None and self.privacy.is_label_private:
            refuse_noisy_labels(relation.prep)
        for known in known_otherwise(relation.plan, self.privacy):
            relation.events.emit("warning", "privacy.known", f"{known} Leave it out there if it is to be protected.")

    def check_rounds(
        self, plan: Plan, rows: Mapping[str, int], max_categories: int, prep: Pipeline = DEFAULT
    ) -> Planning:
        """Plan a fit over ``rows`` rows by table; PrivacyError if parties do not allow its rounds, or a step has no
        form with the noise that was asked for.

        The number of batches is decided later, when the number of joined rows is known.
        """
        tables = tables_of(plan.query)
        if self._has_private_features:
            refuse_with_noise(prep)
        self.solver_: str | None = self._chosen_solver()
        self._promise = self.promise_for(plan, {alias: rows[alias] for alias in tables}, self.privacy)
        allowance = RoundAllowance.of_plan(plan, self._costs(1))
        if self._promise is not None or self.solver_ != "sgd":
            self.plan_rounds(max(rows.values()), lambda _: allowance)
        return Planning(self, plan, rows, max_categories, self.predictions_to_come, allowance.most_rounds(), prep)

    def planned_epsilons(self, plan: Plan, max_categories: int, prep: Pipeline = DEFAULT) -> dict[str, float]:
        """The most that a fit, and predictions after it, spend on a table, by party, for operators who approve it."""
        if self.privacy is None:
            return {}
        if plan.query.label is None:  # a relation to predict
            return dict.fromkeys(plan.parties, rounded_up(MARGIN * (self.privacy.prediction_epsilon or 0.0)))
        rows = {alias: table.rows for alias, table in plan.tables.items()}
        features, labels = self.planned_costs(plan, rows, max_categories, prep, max(1, self.predictions_to_come))
        return approved_epsilons(added([features, labels]), self.privacy.delta)

    def planned_costs(
        self, plan: Plan, rows: Mapping[str, int], max_categories: int, prep: Pipeline, predictions: int
    ) -> tuple[TableCosts, TableCosts]:
        """The most that a fit with noise, and so many predictions after it, spend on features, and on labels."""
        assert self.privacy is not None, "without noise nothing is spent"
        planner = clone(self)  # planning leaves its traces
        planner.predictions_to_come = predictions
        planned = planner.check_rounds(plan, rows, max_categories, prep).fit(self.privacy)
        return planned.costs(labels=False), planned.costs(labels=True)

    @property
    def _has_private_features(self) -> bool:
        """Whether releases that depend on features have noise."""
        return self.privacy is not None and self.privacy.is_feature_private

    def _feature_promise(self, relation: Relation) -> FeaturePromise | None:
        """The promise for features; None without feature privacy. PrivacyError if it cannot be kept."""
        if self.privacy is None:
            return None
        rows = {alias: relation.client.tables[alias].rows for alias in tables_of(relation.query)}
        for count in rows.values():
            self.privacy.check_rows(count)
        return self.promise_for(relation.plan, rows, self.privacy)

    def _check_budget(self, relation: Relation, validation: Relation | None, *, labels_paid: bool = False) -> bool:
        """PrivacyError if the fit and later predictions would exceed the remaining budget of a party.

        Return whether the budget is enough only because the labels were released, and paid for, before.
        """
        if self.privacy is None or not any(s.funds for table in relation.plan.tables.values() for s in table.shards):
            return False
        most = None if self._promise is None else self._allowance(relation, validation, 1).most_rounds()
        rows = {alias: table.rows for alias, table in relation.client.tables.items()}
        to_come = self.predictions_to_come
        planning = Planning(self, relation.plan, rows, relation.max_categories, to_come, most, relation.prep)
        return check_budget(planning, relation.funds(), labels_paid=labels_paid)

    @property
    def most_rounds(self) -> int:
        """The largest number of rounds, or epochs."""
        return self._schedule.rounds if self._promise is None else self._promise.rounds

    def _allowance(self, relation: Relation, validation: Relation | None, batches: int) -> RoundAllowance:
        """What parties allow, with ``batches`` batches in an epoch."""
        aliases = tables_of(relation.query)
        asked: list[tuple[Client, Iterable[str], Costs]] = [(relation.client, aliases, self._costs(batches))]
        if validation is not None:
            asked.append((validation.client, aliases, VALIDATION))
        return RoundAllowance(asked)

    @property
    def epsilon_so_far(self) -> float | None:
        """The epsilon of the rounds so far, given messages; without feature privacy that of labels, or None."""
        if self._promise is not None:
            return self._promise.so_far
        return None if self.privacy is None else self.privacy.label_epsilon


def tables_of(query: Query) -> list[str]:
    """Aliases of tables with features."""
    return list(dict.fromkeys(column.alias for column in query.features))
