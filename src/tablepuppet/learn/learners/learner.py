"""Learners of a label. `fit` fits encoders over the joined rows and lets parties apply them; it asks for labels; then a
solver runs rounds of gather, loss and scatter. The parameters stay with the parties.

tasks.py defines the task (regression or classification), linear.py and network.py define the model. A learner inherits
from one of each, like scikit-learn's mixins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.estimator import need_relation
from tablepuppet.learn.learners.noise_warning import warn_of_noise
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.picture import check_kind, draw_history, write
from tablepuppet.learn.learners.planner import Planner, tables_of
from tablepuppet.learn.learners.predictions import Predictions, PredictionTable, handed_out
from tablepuppet.learn.learners.watch import (
    FEWEST_ROWS,
    HELD_OUT,
    OWN_PATIENCE,
    CannotHoldOutError,
    Validation,
    Watch,
    Watched,
    check_alike,
    counted,
    needed_to_hold_out,
)
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.learn.loss.named_metrics import check, measure
from tablepuppet.learn.private.checks import funds_of
from tablepuppet.learn.private.report import promised
from tablepuppet.learn.settings import COUNT, NUMBER, setting
from tablepuppet.learn.tables.saved import SavedModel
from tablepuppet.learn.threads import one_thread
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.operators.client import Client, Pending
from tablepuppet.operators.secure_sum import make_rosters
from tablepuppet.prep.encode.encode import apply_encoding
from tablepuppet.relation import Relation
from tablepuppet.runs.event_file import sayable
from tablepuppet.runs.events import one_run
from tablepuppet.runs.table_view import Records
from tablepuppet.spelling import names_checked
from tablepuppet.sql.query import OutputColumn
from tablepuppet.store.parts import Model, Stored
from tablepuppet.wire.engine import Engine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SINGLE_PRECISION_TOL = 1e-8  # with float32 on the wire, smaller steps are only rounding errors


class Learner(Planner):
    """Learns a label. Subclasses define the task (tasks.py) and the model (``spec`` and ``_train``)."""

    error_kinds: ClassVar[tuple[str, ...]] = ()  # of a joined row, the usual one first
    _own_patience: ClassVar[int] = OWN_PATIENCE  # rounds at least, on rows that the learner held out itself
    # Loss and metric without features on the rows of the fit; without an annotation it is no argument.
    _constant = cast("Mapping[str, float]", MappingProxyType({}))

    l2: float = setting(
        default=1e-6,
        kind=NUMBER,
        help="l2 / 2 times the squared norm in encoded units, added to the mean loss, not on the intercept",
    )
    patience: int = setting(
        default=5,
        kind=COUNT,
        help="with a `validation` relation: stop when its loss has not fallen for so many rounds",
    )

    @names_checked
    @one_run()
    def fit(self, relation: Relation, validation: Relation | None = None) -> Self:
        """Learn from a relation with a label.

        The model is measured on the ``validation`` relation after every round. Learning stops when its loss there has
        not fallen for ``patience`` rounds, and the parameters of the best round are kept. If this fails, the learner
        does not change.
        """
        with self._unchanged_if_it_fails(relation, validation):
            try:
                return self._handed(self._fit(relation, validation, may_hold_out=validation is None))
            except CannotHoldOutError as error:  # an error of the rows themselves comes again, and then by itself
                message = (
                    f"{type(self).__name__}: no rows can be held out to stop early by, so it learns from all: {error}"
                )
                self.emit(relation, "warning", "fit.whole", message, {"reason": str(error)})
            return self._handed(self._fit(relation, validation))

    def _handed(self, fitted: Self) -> Self:
        """Hand the model to callbacks that take one."""
        for callback in self.callbacks:
            take = getattr(callback, "take_model", None)
            if take is not None:
                take(fitted)
        return fitted

    def _fit(self, relation: Relation, validation: Relation | None, may_hold_out: bool = False) -> Self:
        with one_thread():  # parties, and pieces of the joined rows, are worked on at the same time
            watch = self._open_fit(relation, validation, may_hold_out)
            self._constant = self._without_features(watch.loss) if self.privacy is None else {}
            self._say_what_begins(watch.relation)
            model, intercept = self._train(watch.relation, watch.loss, watch)
            self._close_fit(watch, model, intercept)
            watch.loss.rows.drop()
        return self

    def _say_what_begins(self, relation: Relation) -> None:
        """Emit what is about to be learned, from what, and what a constant reaches, for readers of the rounds."""
        tables = relation.plan.tables
        fields = {
            "learner": type(self).__name__,
            "solver": self.solver_,
            "settings": sayable(self.plain_settings()),
            "rounds": self.most_rounds,
            "rows": len(relation),
            "metric": self.metric_name,
            "constant": dict(self._constant),
            "epsilon": None if self.privacy is None else self.privacy.feature_epsilon or self.privacy.label_epsilon,
            "tables": {alias: [shard.party for shard in table.shards] for alias, table in tables.items()},
            "budgets": [
                {"party": party, "table": table, "whose": each.whose, "epsilon": each.epsilon, "left": each.left}
                for (party, table), funds in funds_of(relation.plan).items()
                for each in funds
            ],
        }
        message = f"{type(self).__name__} learns from {len(relation):,} joined rows"
        self.emit(relation, "info", "fit.begins", message, fields)

    def _without_features(self, loss: JoinedLoss) -> dict[str, float]:
        """Loss and metric of the best constant scores."""
        value = loss.constant_value() / loss.rows.joined
        return {"loss": value, "metric": self._constant_metric(loss, value)}

    def _open_fit(self, relation: Relation, validation: Relation | None, may_hold_out: bool = False) -> Watch:
        """Check all that can be checked, then ask for labels and fit encoders. The result reads the rounds to come."""
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
        enough = relation.client.tables[label.alias].rows >= FEWEST_ROWS
        own = may_hold_out and enough and self._holds_out(relation)
        with needed_to_hold_out() if own else nullcontext():
            if own:
                relation, validation = relation.split(self.held_out, self.seed)
            return self._prepared(relation, validation, label, own)

    def _close_fit(self, watch: Watch, model: Watched, intercept: Array) -> None:
        """Store what a solver has come to."""
        self.intercept_ = watch.end(model, intercept)
        self.store_fit(watch.relation, self.encoding_, model)
        if self.privacy is not None:
            warn_of_noise(self, self.privacy, watch.relation, watch.loss, watch.validation)

    def _prepared(self, relation: Relation, validation: Relation | None, label: OutputColumn, own: bool) -> Watch:
        """Plan rounds, ask for labels and fit encoders; the rows to stop early by are the learner's ``own`` choice
        or the user's.
        """
        relation = relation.to_learn()
        if not self.reduce:
            relation = relation.without_reduction()
            validation = None if validation is None else validation.without_reduction()
        if self.privacy is not None and self.privacy.secure_sum:
            self._secure_sums(relation)
        prepared = relation.events.progress("prepare", f"{type(self).__name__}: preparing labels and features", 1)
        self.solver_ = self._chosen_solver()
        self._promise = self._feature_promise(relation)
        self.plan_rounds(len(relation), partial(self._allowance, relation, validation))
        labels_first = self._check_budget(relation, validation)  # before anything is charged
        asked = self._ask_labels(relation.client, label)  # before statistics are read: both travel together
        asked_also = None if validation is None else self._ask_labels(validation.client, label)
        if labels_first:
            asked.read()
            self._check_budget(relation, validation, labels_paid=True)
        if self._promise is None:
            self.encoding_ = relation.fit_encoding()
        else:
            self.encoding_ = relation.fit_private_encoding(self._promise.encoders)
        self._check_features(relation)
        loss = self._prepare(relation.client, label, asked)
        self.converged_ = False
        self.history_ = Records()
        held_out = None
        if validation is not None and asked_also is not None:
            client = validation.client
            apply_encoding(client, self.encoding_)
            patience = self._patient_for(own)
            labels = self._labels(client, label, asked_also, "in the validation relation")
            held_out = Validation(client, self._loss(client, labels), patience, own)
        return Watch(self, relation, loss, held_out, prepared)

    def _patient_for(self, own: bool) -> int:
        """Rounds without a lower loss of rows held out, the learner's ``own`` choice or the user's, after which it
        stops.
        """
        return max(self.patience, self._own_patience) if own else self.patience

    @property
    def held_out(self) -> float:
        """The share of the label table's rows that the learner holds out itself, if it does."""
        return HELD_OUT

    def _holds_out(self, relation: Relation) -> bool:
        """Whether the learner itself holds rows out, if there are enough and no validation relation is given."""
        return False

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
    def _ask_labels(self, client: Client, label: OutputColumn) -> Pending:
        """Ask for labels of the kind that this task needs."""

    @abstractmethod
    def _prepare(self, client: Client, label: OutputColumn, asked: Pending) -> JoinedLoss:
        """The loss over the training rows."""

    @abstractmethod
    def _labels(self, client: Client, label: OutputColumn, asked: Pending, where: str) -> NDArray[Any]:
        """Labels of rows that are not learned from, as the loss takes them; an error says ``where`` they are."""

    @abstractmethod
    def _loss(self, client: Client, labels: NDArray[Any]) -> JoinedLoss:
        """The loss over rows with these labels."""

    @abstractmethod
    def _predicted(self, scores: Array) -> Array:
        """What scores say: numbers (rows,), or probabilities (rows, classes)."""

    @abstractmethod
    def _measured(self, labels: NDArray[Any], predicted: Array) -> Metrics:
        """The metrics of predictions."""

    @abstractmethod
    def _measures(self, rows: JoinedRows) -> Metrics:
        """The metrics of `_measured`, for rows with labels and scores."""

    @abstractmethod
    def _measured_at_party(self, client: Client, label: OutputColumn, predicted: Array) -> Metrics:
        """The metrics of predictions, by the true labels of the label's party."""

    @abstractmethod
    def _errors(self, labels: NDArray[Any], predicted: Array, kind: str) -> Array:
        """The error of each prediction, one of ``error_kinds``."""

    @abstractmethod
    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        """Learn, call ``watch`` after each round and return (model, intercept); set ``converged_``."""

    # After a fit: predictions, saving

    @overload
    def predict(self, relation: Relation) -> NDArray[Any]: ...

    @overload
    def predict(self, relation: Relation, *, ids: Sequence[str]) -> PredictionTable: ...

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

        With ``ids``, a `PredictionTable`, which prints as a table and has what an Arrow table has: these columns of the
        query's tables, named as asked (``alias.column``, or ``column`` where one table only has it) and selected or
        not, then ``prediction``, and of classifiers ``probability=<class>``. Raises PrivacyError where a policy does
        not give a column the use ``id``.

        With ``deliver_to``, a party gets the predictions about its own rows and writes them beside its own keys, where
        its operator has named a place; every other party with features must allow it. Name ``party.table`` or
        ``party.alias`` if several of its tables take part. Where a row is joined several times, ``combine="mean"``
        averages numbers or probabilities. Returns a receipt: party, table, run, and the rows written and without one.
        """
        self.check_relation(relation, "predict")
        features = dict.fromkeys(alias for alias, _, _ in self._relation_columns)
        return handed_out(self.predictions, relation, features, ids, deliver_to, combine)

    def predictions(self, relation: Relation) -> Predictions:
        """The predictions for every joined row; each party is asked once."""
        return Predictions(self._predicted(self._scores(relation)), getattr(self, "classes_", None))

    @names_checked
    def evaluate(
        self,
        relation: Relation,
        *,
        metrics: Sequence[str] | None = None,
        threshold: float | None = None,
        at_party: bool = False,
    ) -> Metrics:
        """Metrics over the joined rows. Of regressors: root mean squared error and R2.

        Of classifiers: accuracy, area under the ROC curve (one against the rest for several classes), log loss. The
        area is NaN where a class has no row. With ``at_party`` the label's party measures on its true labels and
        returns only the metrics; these have no noise. The area is then also NaN if rows of its table are joined more
        than once, or if the table has several shards.

        ``metrics`` names others, as scikit-learn does: such as ``f1``, ``recall_by_class``, ``mean_absolute_error``. A
        row is taken for the second of two classes if its probability is above ``threshold``.

        The dict is printed, and shown in a notebook, beside ``constant``: the metrics of a model without features on
        the same labels, which predicts the shares of the classes, or the mean.
        """
        self.check_relation(relation, "evaluate")
        if metrics is not None or threshold is not None:
            return self._measured_by(relation, ["accuracy"] if metrics is None else metrics, threshold, at_party)
        if not at_party:
            return self._measured(*self._beside_labels(relation))
        self.evaluated_on_ = "true labels, at their party"
        predicted = self.predictions(relation).values
        return self._measured_at_party(relation.client, label_of(relation), predicted)

    def _measured_by(
        self, relation: Relation, names: Sequence[str], threshold: float | None, at_party: bool
    ) -> Metrics:
        """Metrics by their names; they are checked before labels are asked for."""
        if at_party:
            raise LearnError("the label's party has its own metrics: leave out metrics and threshold, or at_party")
        classes = self.classes_ if self.learns_classes else None
        check(names, classes, threshold)
        return measure(names, *self._beside_labels(relation), classes, threshold)

    @names_checked
    def score(self, relation: Relation) -> float:
        """The accuracy of a classifier, R2 of a regressor, over the joined rows."""
        return self.evaluate(relation)["accuracy" if self.learns_classes else "r2"]

    def row_errors(self, relation: Relation, kind: str) -> Array:
        """The error of every joined row, one of ``error_kinds``."""
        return self._errors(*self._beside_labels(relation), kind)

    def _beside_labels(self, relation: Relation) -> tuple[NDArray[Any], Array]:
        """(label, prediction) of every joined row; a prediction of a classifier is a probability for each class."""
        self.check_promise(relation)
        label = label_of(relation)
        asked = self._ask_labels(relation.client, label)
        predicted = self.predictions(relation).values
        labels = self._labels(relation.client, label, asked, "here")
        self._note_labels(relation)
        return labels, predicted

    def _scores(self, relation: Relation) -> Array:
        """Scores of every joined row, in the order of ``rows()``."""
        self.check_relation(relation, "predict")
        client = relation.client
        done = relation.events.progress("predict", f"{type(self).__name__}: predicting", 1)
        apply_encoding(client, self.encoding_)
        try:
            scores = cast(Model, self._model).scores(client)
            done(1)
        finally:
            if self._promise is not None:  # predictions cost epsilon even if their replies were lost
                self.privacy_ = promised(self._uses, self._promise.privacy, self._promise)
        if not np.isfinite(scores).all():
            raise LearnError(
                "the relation has feature values that are not finite (NaN or infinity); filter them in WHERE"
            )
        return scores + (self.intercept_[0] if scores.ndim == 1 else self.intercept_)

    def _note_labels(self, relation: Relation) -> None:
        """Store in ``evaluated_on_`` which labels a metric used; emit an event if these labels have noise."""
        noisy = self.privacy is not None and self.privacy.is_label_private
        self.evaluated_on_ = "noisy labels" if noisy else "labels"
        if noisy and self.privacy is not None:
            relation.events.emit(
                "warning", "labels.noisy",
                f"metrics are measured on labels with noise for epsilon {self.privacy.label_epsilon:g}; on true labels "
                "the model is likely better",
                epsilon=self.privacy.label_epsilon,
            )  # fmt: skip

    @names_checked
    def plot(self, path: str | Path | None = None) -> Figure | None:
        """Draw loss and metric by round, of rows held out too if there were some, and those of a constant: into a
        .png, .svg or .pdf file, or as a figure of matplotlib, which a notebook shows.
        """
        check_fitted(self)
        if path is not None:
            check_kind(Path(path))
        best = self.best_round_ if self.best_round_ < len(self.history_) else None
        title = f"{type(self).__name__}: {self.stopped_} after {counted(len(self.history_))}"
        figure = draw_history(self.history_, self.metric_name, title, best, self._constant)
        if path is None:
            return figure
        write(figure, Path(path))
        return None

    def facts(self) -> dict[str, Any]:
        """Facts of the fit to save, such as its history."""
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
        """Restore the facts and the intercept."""
        self.intercept_ = arrays["intercept"]
        self.solver_, self.converged_, self.stopped_ = facts["solver"], facts["converged"], facts["stopped"]
        self.best_round_, self.history_ = facts["best_round"], Records(facts["history"])

    def saved(self, stored: Stored, engine: Engine, wire: str) -> SavedModel:
        """A model with the stored parameters, for predictions only."""
        model = SavedModel(self.spec(len(self.intercept_)), self.encoding_, stored, engine, wire)
        model.spent = None if self._promise is None else self._promise.noise
        return model


def label_of(relation: Relation) -> OutputColumn:
    """The label column of a relation that can be learned from or measured on; LearnError if there is none."""
    if relation.query.label is None:
        raise LearnError("the relation has no label; name one: fed.sql(..., label='column')")
    if not len(relation):
        raise LearnError("the relation has no joined rows; check the join keys and filters with explain()")
    return relation.query.label
