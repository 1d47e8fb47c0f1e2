"""What all learners share, in scikit-learn's manner: `fit` does the work, what it learned ends in `_`.

The story of `fit`: encoders are fitted over the joined rows and applied at the parties; labels are asked for; a
solver runs rounds of gather, loss, scatter; the parameters stay with the parties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.noise_warning import warn_of_noise
from tablepuppet.learn.learners.predictions import Predictions
from tablepuppet.learn.learners.settings import Solver, check_fitted, check_names, check_ranges
from tablepuppet.learn.learners.validation import Validation, Watched, check_alike
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.private.budget_check import check_budget
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.planned_releases import Planning, known_columns
from tablepuppet.learn.private.promise import (
    Uses,
    check_demanded,
    check_label_apart,
    check_sums_demanded,
    check_supported,
    known_otherwise,
    promised,
)
from tablepuppet.learn.solve.allowance import VALIDATION, Allowance, Costs
from tablepuppet.learn.solve.schedule import Schedule, Usual, epochs_that_fit, rounds_that_fit
from tablepuppet.learn.store.model_file import save
from tablepuppet.learn.tables.saved import SavedModel
from tablepuppet.learn.tables.stored import Model, Stored
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.delivery import Delivery
from tablepuppet.operators.ids import joined_ids
from tablepuppet.operators.rosters import make_rosters
from tablepuppet.party.spec import Spec
from tablepuppet.prep.encode import Encoding, apply_encoding, encoder_names
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Event
from tablepuppet.runs.table_view import Records
from tablepuppet.spelling import names_checked
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn, Query
from tablepuppet.sql.types import Family, family
from tablepuppet.wire.engine import Engine

Array = NDArray[np.float64]
PRIVATE_BATCH = 10_000  # rows of a table in the sample of a noisy step
AUTO_ROUNDS = 300  # at most: solvers but sgd stop when they have converged
DRAWN = "best_round_ classes_ converged_ intercept_ n_features_in_ parties_ solver_ stopped_".split()
SINGLE_PRECISION_TOL = 1e-8  # what float32 on the wire can still tell: below it, steps are of rounding errors


def is_text(type_: str) -> bool:
    """Whether a column of this type is one of categories, unless it is said."""
    return family(type_) in (Family.TEXT, Family.UUID)


class Learner(BaseEstimator, ABC):  # type: ignore[misc]
    """Learns over a relation. Subclasses say what is learned (tasks.py) and by which model (their `_train`)."""

    solver: Solver
    rounds: int | Literal["auto"]
    batch_size: int | Literal["auto"]
    momentum: float | Literal["auto"]
    lr: float | Literal["auto"]
    l2: float
    inner_rounds: int | Literal["auto"]
    patience: int
    reduce: bool
    privacy: Privacy | None
    label_correction: bool
    callbacks: Iterable[Callable[[Event], None]]
    stopped_: str
    best_round_: int
    evaluated_on_: str
    promise_: FeaturePromise | None = None
    relation_: Relation
    _category_names: dict[str, list[str | None]] | None = None
    schedule_: Schedule
    predictions_to_come: int = 0  # after the fit: parties' budgets must allow these too
    learns_classes: ClassVar[bool] = False
    usual: ClassVar[Usual]  # of sgd
    usual_rounds: ClassVar[int] = AUTO_ROUNDS  # of other solvers
    usual_momentum: ClassVar[float] = 0.0
    metric_name = "metric"

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """A learner; SettingError, by the name that the caller wrote, for an argument that it does not have."""
        check_names(cls.__name__, values, settings, cls._get_param_names())
        made: Self = super().__new__(cls)
        return made

    @names_checked
    def fit(self, relation: Relation, validation: Relation | None = None) -> Self:
        """Learn from a relation with a label.

        The model is measured on the ``validation`` relation after every round. Learning stops when its loss there has
        not fallen for ``patience`` rounds, and the parameters of the best round are kept. If it fails, the learner is
        as it was before.
        """
        before = dict(self.__dict__)
        try:
            return self._fit(relation, validation)
        except BaseException:
            self.__dict__ = before
            raise

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
        self.promise_ = self._feature_promise(relation)
        self._choose_solver({alias: len(relation.client.shards(alias)) for alias in self._tables(relation.query)})
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
        self._check_features(relation)
        loss = self._prepare(relation.client, label, asked)
        self.converged_ = False
        self.history_: list[dict[str, Any]] = Records()
        held_out = None
        if validation is not None and asked_also is not None:
            client = validation.client
            apply_encoding(client, self.encoding_)
            held_out = Validation(client, self._held_out(client, label, asked_also), self.patience)
        watch = Watch(self, relation, loss, held_out, prepared)
        model, intercept = self._train(relation, loss, watch)
        self.settle(relation, self.encoding_, model, watch.end(model, intercept))
        if self.privacy is not None:
            warn_of_noise(self, self.privacy, relation, loss, held_out)
        loss.rows.drop()
        return self

    def _check_features(self, relation: Relation) -> None:
        """Warn if nothing is left to learn from. Where noise hides all columns, a warning at the end says so."""
        if self.promise_ is None and not self.encoding_.kept(relation.query.features):
            none = "the query selects no column but the label"
            why = f"all of {', '.join(relation.columns)} were left out" if relation.columns else none
            message = f"no feature is left to learn from ({why}): the model will predict a constant"
            relation.events.emit("warning", "features.none", message)

    def _secure_sums(self, relation: Relation) -> None:
        """Let shards of one table mask their sums."""
        secured = make_rosters(relation.client, dict.fromkeys(column.alias for column in relation.query.features))
        message = f"tables {', '.join(secured)} reach the coordinator as a sum over their shards only"
        if not secured:
            message = (
                "secure_sum does nothing here: no table with features has several shards, so what a table computes "
                "reaches the coordinator by itself"
            )
        relation.events.emit("info" if secured else "warning", "secured", message, tables=secured)

    def settle(self, relation: Relation, encoding: Encoding, model: Model, intercept: Array) -> None:
        """Keep what was learned."""
        self.encoding_, self.model_, self.intercept_ = encoding, model, intercept
        self.relation_columns_ = [(c.alias, c.name, c.type) for c in encoding.kept(relation.query.features)]
        self.n_features_in_ = len(self.relation_columns_)
        self.parties_ = relation.plan.parties
        self.engine_ = relation.client.engine
        self.uses_ = Uses.of(relation.plan, self.privacy, relation.client.secured.parties)
        self.privacy_ = promised(self.uses_, self.privacy, self.promise_)
        self._category_names = None
        self.relation_ = relation  # the parameters stay with its parties for as long as its session does

    @property
    def categories_(self) -> dict[str, list[str | None]]:
        """What the codes of ``coef_`` mean: names of categories in the order of codes, by ``alias.column``.

        Of columns that are public at every party that has them, and of encoders without noise; others are not there.
        """
        check_fitted(self)
        if self._category_names is None:
            self._category_names = (
                {} if self.encoding_.private else encoder_names(self.relation_.client, self.encoding_)
            )
        return {column: list(names) for column, names in self._category_names.items()}

    def _feature_promise(self, relation: Relation) -> FeaturePromise | None:
        """What may be told of features; None without feature privacy. PrivacyError where it cannot be kept."""
        if self.privacy is None or not self.privacy.is_feature_private:
            return None
        rows = {column.alias: relation.mapping.tables[column.alias].rows for column in relation.query.features}
        for count in rows.values():
            self.privacy.check_rows(count)
        return self.promise_for(relation.plan, rows, self.privacy)

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The same, for so many rows by table that take part."""
        if privacy is None or not privacy.is_feature_private:
            return None
        self._check_private()
        query, rounds = plan.query, None if isinstance(self.rounds, str) else self.rounds
        features = tuple(query.features)
        return self._new_promise(privacy, features, query.categorical, rounds, rows, known_columns(plan))

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

    def _new_promise(
        self, privacy: Privacy, columns: tuple[OutputColumn, ...], categorical: frozenset[str], rounds: int | None,
        rows: Mapping[str, int], known: frozenset[str],
    ) -> FeaturePromise:  # fmt: skip
        """The promise that suits the solver; ``rows`` of each table, columns that policies describe are ``known``."""
        return FeaturePromise(privacy, columns, categorical, rounds, known=known)

    @property
    def epsilon_so_far(self) -> float | None:
        """What the rounds until now have cost, given messages; that of labels without feature privacy, None without."""
        if self.promise_ is not None:
            return max(map(self.promise_.so_far, self.promise_.planned), default=0.0)
        return None if self.privacy is None else self.privacy.label_epsilon

    def check_validation(self) -> None:
        """PrivacyError if measuring after every round would need noise that is not planned for."""
        if self.privacy is not None and self.privacy.prediction_epsilon is not None:
            raise PrivacyError(
                "validation needs predictions after every round, which would all need noise under prediction_epsilon; "
                "fit without validation"
            )

    @abstractmethod
    def _check_private(self) -> None:
        """PrivacyError unless the settings allow noise on features."""

    @abstractmethod
    def _ask_labels(self, client: Client, label: OutputColumn) -> Pending:
        """Ask for labels of the kind that is learned."""

    @abstractmethod
    def _prepare(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        """The loss over the rows that are learned from."""

    @abstractmethod
    def _held_out(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        """The loss over rows that are not learned from."""

    @abstractmethod
    def metric(self, loss: JoinedLoss, value: float) -> float:
        """The metric of the rows' scores, whose mean loss is ``value``."""

    @property
    def most_rounds(self) -> int:
        """How many rounds, or epochs, there may be."""
        return self.schedule_.rounds if self.promise_ is None else self.promise_.rounds

    def plan_rounds(self, rows: int, allowed: Callable[[int], Allowance]) -> None:
        """Decide on rounds and batches over so many joined rows; PrivacyError if parties do not allow them.

        ``allowed`` is what they allow with so many batches in an epoch.
        """
        told: dict[str, object] = {"solver": self.solver_, "rounds": self.rounds}
        if self.promise_ is not None:
            self.promise_ = self.promise_.within(allowed(1).most_rounds())
            allowed(1).check(self.promise_.rounds, told, "lower local_steps")
            self.schedule_ = Schedule(self.promise_.rounds, rows)
        elif self.solver_ == "sgd":
            told["batch_size"] = self.batch_size
            self.schedule_ = epochs_that_fit(rows, self.rounds, self.batch_size, self.usual, allowed, told)
        else:
            rounds = rounds_that_fit(self.rounds, self.usual_rounds, allowed(1), told, self._fewer_replies())
            most = allowed(1).most_rounds()
            self.schedule_ = Schedule(rounds, rows, None if most is None else 2 * max(most, rounds))

    @property
    def plain_momentum(self) -> float:
        """That of steps with one learning rate for all columns."""
        return self.usual_momentum if isinstance(self.momentum, str) else self.momentum

    def _fewer_replies(self) -> str:
        """What else would need fewer replies in a round."""
        return "" if isinstance(self.inner_rounds, str) else "lower inner_rounds"

    def _allowance(self, relation: Relation, validation: Relation | None, batches: int) -> Allowance:
        """What parties allow, with so many batches in an epoch."""
        aliases = self._tables(relation.query)
        asked: list[tuple[Client, Iterable[str], Costs]] = [(relation.client, aliases, self._costs(batches))]
        if validation is not None:
            asked.append((validation.client, aliases, VALIDATION))
        return Allowance(asked)

    @abstractmethod
    def _costs(self, batches: int) -> Costs:
        """The replies that parties count towards their limits, of the solver with so many batches in an epoch."""

    def _choose_solver(self, shards: Mapping[str, int]) -> None:
        """``shards`` that take part, by table."""
        self.solver_ = self._fewest_trips(shards) if self.solver == "auto" else self.solver

    def _fewest_trips(self, shards: Mapping[str, int]) -> Solver:
        """The solver that "auto" picks."""
        return "lbfgs"

    @staticmethod
    def _tables(query: Query) -> list[str]:
        """Aliases of tables with features."""
        return list(dict.fromkeys(column.alias for column in query.features))

    @abstractmethod
    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        """Run the solver: (the model, its intercept); says in ``converged_`` whether it came to an end."""

    @abstractmethod
    def spec(self, outputs: int) -> Spec:
        """What each table's model is."""

    def saved(self, stored: Stored, engine: Engine, wire: str, outputs: int) -> SavedModel:
        """A model with these parameters, for predictions only."""
        return SavedModel(self.spec(outputs), self.encoding_, stored, engine, wire)

    @abstractmethod
    def predictions(self, relation: Relation) -> Predictions:
        """What is predicted for every joined row; parties are asked once."""

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
        self._check_relation(relation, "predict")
        if deliver_to is None and combine is not None:
            raise LearnError("combine is for deliver_to: joined rows have one prediction each")
        if deliver_to is not None:
            if ids is not None:
                raise LearnError("give ids or deliver_to: predictions that are delivered are known by the party's keys")
            features = dict.fromkeys(alias for alias, _, _ in self.relation_columns_)
            delivery = Delivery.asked(relation.client, deliver_to, combine, features)
            found = self.predictions(relation)
            return delivery.send(found.values, found.classes)
        beside = None if ids is None else joined_ids(relation.client, ids)  # before predictions, which may cost
        found = self.predictions(relation)
        return found.labels if beside is None else found.table(beside)

    @abstractmethod
    def evaluate(self, relation: Relation, *, at_party: bool = False) -> dict[str, float]:
        """Metrics over the joined rows."""

    def check_settings(self) -> None:
        """LearnError if a setting is none that can be."""
        check_ranges(self.get_params(deep=False))
        check_supported(self.privacy)
        if self.label_correction and (self.privacy is None or not self.privacy.is_label_private):
            raise LearnError("label_correction is for labels with noise: set privacy=tp.Privacy(label_epsilon=...) too")

    def check_plan(self, plan: Plan, *, validated: bool = False) -> None:
        """Raise unless a plan can be learned from, as far as its parties' catalog tells: nothing is asked for it."""
        check_demanded(plan, self.privacy)
        check_label_apart(plan, self.privacy)
        check_sums_demanded(plan, self.privacy)
        if validated:
            self.check_validation()
        self.check_label(plan)

    def check_rounds(self, plan: Plan, rows: Mapping[str, int], max_categories: int) -> Planning:
        """How a fit over so many rows by table is planned; PrivacyError if parties do not allow its rounds.

        How many batches fit is only known with the joined rows.
        """
        self.promise_ = self.promise_for(plan, {alias: rows[alias] for alias in self._tables(plan.query)}, self.privacy)
        self._choose_solver({alias: len(plan.tables[alias].shards) for alias in self._tables(plan.query)})
        allowance = Allowance.of_plan(plan, self._costs(1))
        if self.promise_ is not None or self.solver_ != "sgd":
            self.plan_rounds(max(rows.values()), lambda _: allowance)
        return Planning(self, plan, rows, max_categories, self.predictions_to_come, allowance.most_rounds())

    @abstractmethod
    def check_label(self, plan: Plan) -> None:
        """Raise LearnError or PrivacyError if the label of a plan cannot be learned, by what parties publish."""

    def check_promise(self, relation: Relation) -> None:
        """PrivacyError unless what is promised is what the relation's parties demand, and the query lets it be kept."""
        check_demanded(relation.plan, self.privacy)
        check_label_apart(relation.plan, self.privacy)
        for known in known_otherwise(relation.plan, self.privacy):
            relation.events.emit("warning", "privacy.known", f"{known} Leave it out there if it is to be protected.")

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

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """What scikit-learn's drawing in a notebook lists: only what is known here.

        By itself it would read every property, and ``coef_`` asks parties for parameters: a policy may refuse that,
        and noise may cost epsilon.
        """
        known = {name: value for name, value in vars(self).items() if name in DRAWN}
        return BaseEstimator._get_fitted_attr_html(SimpleNamespace(**known), doc_link)

    def save(self, path: str | Path) -> None:
        """Write the model as a folder; `tablepuppet.load` reads it."""
        check_fitted(self)
        save(self, path)

    def _scores(self, relation: Relation) -> Array:
        """Scores of every joined row, in the order of ``rows()``."""
        self._check_relation(relation, "predict")
        client = relation.client
        done = relation.events.progress("predict", f"{type(self).__name__}: predicting", 1)
        apply_encoding(client, self.encoding_)
        try:
            scores = self.model_.scores(client)
            done(1)
        finally:
            if self.promise_ is not None:  # predictions have cost something, also those that got lost
                self.privacy_ = promised(self.uses_, self.promise_.privacy, self.promise_)
        if not np.isfinite(scores).all():
            raise LearnError(
                "the relation has feature values that are not finite (NaN or infinity); filter them in WHERE"
            )
        return scores + (self.intercept_[0] if scores.ndim == 1 else self.intercept_)

    def _check_relation(self, relation: Relation, verb: str) -> None:
        """Raise LearnError or PrivacyError unless the model can predict over a relation."""
        check_fitted(self)
        need_relation(relation, verb)
        if relation.client.engine is not self.engine_:
            raise LearnError("this relation is of another federation than the one the model was fitted in")
        self._check_columns(relation)
        if self.promise_ is None and self.privacy is not None and self.privacy.prediction_epsilon is not None:
            raise PrivacyError(
                "predictions of this model cannot have noise, as it was not fitted so: fit it over a relation with "
                "privacy=tp.Privacy(feature_epsilon=..., prediction_epsilon=...)"
            )

    def _check_columns(self, relation: Relation) -> None:
        """LearnError unless the relation has the columns that the model was fitted on, of the same kind."""
        types = {(column.alias, column.name): column.type for column in relation.query.features}
        missing = [f"{alias}.{name}" for alias, name, _ in self.relation_columns_ if (alias, name) not in types]
        if missing:
            raise LearnError(
                f"the relation lacks columns the model was fitted on: {', '.join(missing)}. A query to predict over "
                "selects them by the same names, from tables with the same aliases as in the fit"
            )
        for alias, name, type_ in self.relation_columns_:
            now = types[alias, name]
            if is_text(now) != is_text(type_):
                raise LearnError(f"column {alias}.{name} is {now} here; the model was fitted on {type_}")


def need_relation(relation: object, verb: str) -> None:
    """LearnError unless it is a relation."""
    if not hasattr(relation, "fit_encoding"):  # a DataFrame has a query
        raise LearnError(
            f"{verb} takes a relation, as fed.sql(...) makes one, not {type(relation).__name__}: the rows stay in "
            "their databases"
        )


def label_of(relation: Relation) -> OutputColumn:
    """The label column of a relation that can be learned from or measured on; LearnError if there is none."""
    if relation.query.label is None:
        raise LearnError("the relation has no label; name one: fed.sql(..., label='column')")
    if not len(relation):
        raise LearnError("the relation has no joined rows; check the join keys and filters with explain()")
    return relation.query.label
