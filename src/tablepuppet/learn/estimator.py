"""What all learners share, in scikit-learn's manner: `fit` does the work, what it learned ends in `_`.

The story of `fit`: encoders are fitted over the joined rows and applied at the parties; labels are asked for; a
solver runs rounds of gather, loss, scatter; the parameters stay with the parties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.feature_promise import FeaturePromise
from tablepuppet.learn.losses import Loss
from tablepuppet.learn.promise import (
    Uses,
    check_demanded,
    check_label_apart,
    check_sums_demanded,
    check_supported,
    known_otherwise,
    promised,
)
from tablepuppet.learn.saved_model import SavedModel
from tablepuppet.learn.settings import Solver, check_ranges
from tablepuppet.learn.stored import Model, Stored
from tablepuppet.learn.validation import Validation, Watched, check_alike
from tablepuppet.learn.watch import Watch
from tablepuppet.operators.client import Client, Replies
from tablepuppet.operators.secure_sum import make_rosters
from tablepuppet.prep.encode import Encoding, apply_encoding
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.events import Event
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family
from tablepuppet.wire.engine import Engine

if TYPE_CHECKING:
    from tablepuppet.relation import Relation

Array = NDArray[np.float64]
BATCH_SIZE = 10_000
AUTO_ROUNDS, AUTO_EPOCHS = 300, 100  # at most: solvers but sgd stop when they have converged
SINGLE_PRECISION_TOL = 1e-8  # what float32 on the wire can still tell: below it, steps are of rounding errors


def is_text(type_: str) -> bool:
    """Whether a column of this type is one of categories, unless it is said."""
    return family(type_) in (Family.TEXT, Family.UUID)


class Learner(BaseEstimator, ABC):  # type: ignore[misc]
    """Learns over a relation. Subclasses say what is learned (tasks.py) and by which model (their `_train`)."""

    solver: Solver
    rounds: int | Literal["auto"]
    l2: float
    patience: int
    reduce: bool
    privacy: Privacy | None
    label_correction: bool
    callbacks: Iterable[Callable[[Event], None]]
    stopped_: str
    best_round_: int
    evaluated_on_: str
    promise_: FeaturePromise | None = None
    metric_name = "metric"

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
        for side in (relation, validation):
            if side is not None:
                self.check_promise(side)
        check_sums_demanded(relation.plan, self.privacy)
        if validation is not None:
            self._check_validation()
        label = label_of(relation)
        if validation is not None:
            check_alike(relation, validation)
        if not self.reduce:
            relation = relation.without_reduction()
            validation = None if validation is None else validation.without_reduction()
        if self.privacy is not None and self.privacy.secure_sum:
            self._secure_sums(relation)
        asked = self._ask_labels(relation.client, label)  # before statistics are read: both travel together
        asked_also = None if validation is None else self._ask_labels(validation.client, label)
        self.promise_ = self._feature_promise(relation)
        if self.promise_ is None:
            self.encoding_ = relation.fit_encoding()
        else:
            self.encoding_ = relation.fit_private_encoding(self.promise_.encoders)
        loss = self._prepare(relation.client, label, asked)
        self.solver_ = self._fewest_trips(relation) if self.solver == "auto" else self.solver
        self.converged_ = False
        self.history_: list[dict[str, Any]] = []
        held_out = None
        if validation is not None and asked_also is not None:
            client = validation.client
            apply_encoding(client, self.encoding_)
            held_out = Validation(client, self._held_out(client, label, asked_also), self.patience)
        watch = Watch(self, relation, loss, held_out)
        model, intercept = self._train(relation, loss, watch)
        self.settle(relation, self.encoding_, model, watch.end(model, intercept))
        return self

    def _secure_sums(self, relation: Relation) -> None:
        """Let shards of one table mask their sums."""
        secured = make_rosters(relation.client, dict.fromkeys(column.alias for column in relation.query.features))
        tables = f"tables {', '.join(secured)} reach" if secured else "no table has several shards: none need reach"
        message = f"{tables} the coordinator as a sum over their shards only"
        relation.events.emit("info", "secured", message, tables=secured)

    def settle(self, relation: Relation, encoding: Encoding, model: Model, intercept: Array) -> None:
        """Keep what was learned."""
        self.encoding_, self.model_, self.intercept_ = encoding, model, intercept
        self.relation_columns_ = [(column.alias, column.name, column.type) for column in relation.query.features]
        self.n_features_in_ = len(relation.columns)
        self.parties_ = relation.plan.parties
        self.engine_ = relation.client.engine
        self.uses_ = Uses.of(relation.plan, self.privacy)
        self.privacy_ = promised(self.uses_, self.privacy, self.promise_)
        self.relation_ = relation  # the parameters stay with its parties for as long as its session does

    def _feature_promise(self, relation: Relation) -> FeaturePromise | None:
        """What may be told of features; None without feature privacy. PrivacyError where it cannot be kept."""
        privacy, query = self.privacy, relation.query
        if privacy is None or not privacy.is_feature_private:
            return None
        self._check_private()
        rows = {column.alias: relation.mapping.tables[column.alias].rows for column in query.features}
        for count in rows.values():
            privacy.check_rows(count)
        rounds = None if isinstance(self.rounds, str) else self.rounds
        return self._new_promise(privacy, tuple(query.features), query.categorical, rounds, rows)

    def _new_promise(
        self, privacy: Privacy, columns: tuple[OutputColumn, ...], categorical: frozenset[str], rounds: int | None,
        rows: Mapping[str, int],
    ) -> FeaturePromise:  # fmt: skip
        """The promise that suits the solver; ``rows`` of each table."""
        return FeaturePromise(privacy, columns, categorical, rounds)

    @property
    def epsilon_so_far(self) -> float | None:
        """What the rounds until now have cost, given messages; that of labels without feature privacy, None without."""
        if self.promise_ is not None:
            return max(map(self.promise_.so_far, self.promise_.planned), default=0.0)
        return None if self.privacy is None else self.privacy.label_epsilon

    def _check_validation(self) -> None:
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
    def _ask_labels(self, client: Client, label: OutputColumn) -> Replies:
        """Ask for labels of the kind that is learned."""

    @abstractmethod
    def _prepare(self, client: Client, label: OutputColumn, asked: Replies) -> Loss:
        """The loss over the rows that are learned from."""

    @abstractmethod
    def _held_out(self, client: Client, label: OutputColumn, asked: Replies) -> Loss:
        """The loss over rows that are not learned from."""

    @abstractmethod
    def _metric(self, loss: Loss, value: float, scores: Array) -> float:
        """The metric of scores whose mean loss is ``value``."""

    @property
    def most_rounds(self) -> int:
        """How many rounds, or epochs, there may be."""
        if self.promise_ is not None:
            return self.promise_.rounds
        if not isinstance(self.rounds, str):
            return self.rounds
        return AUTO_EPOCHS if self.solver == "sgd" else AUTO_ROUNDS

    def _fewest_trips(self, relation: Relation) -> Solver:
        """The solver that "auto" picks."""
        return "lbfgs"

    @abstractmethod
    def _train(self, relation: Relation, loss: Loss, watch: Watch) -> tuple[Watched, Array]:
        """Run the solver: (the model, its intercept); says in ``converged_`` whether it came to an end."""

    @abstractmethod
    def saved(self, stored: Stored, engine: Engine, wire: str, outputs: int) -> SavedModel:
        """A model with these parameters, for predictions only."""

    @abstractmethod
    def predict(self, relation: Relation) -> NDArray[Any]:
        """A label for every joined row, in the order of ``rows()``."""

    @abstractmethod
    def evaluate(self, relation: Relation, *, at_party: bool = False) -> dict[str, float]:
        """Metrics over the joined rows."""

    def check_settings(self) -> None:
        """LearnError if a setting is none that can be."""
        check_ranges(self.get_params(deep=False))
        check_supported(self.privacy)
        if self.label_correction and (self.privacy is None or not self.privacy.is_label_private):
            raise LearnError("label_correction is for labels with noise: set privacy=tp.Privacy(label_epsilon=...) too")

    def check_promise(self, relation: Relation) -> None:
        """PrivacyError unless what is promised is what the relation's parties demand, and the query lets it be kept."""
        _need_relation(relation)
        check_demanded(relation.plan, self.privacy)
        check_label_apart(relation.plan, self.privacy)
        for known in known_otherwise(relation.plan, self.privacy):
            relation.events.emit("warning", "privacy.known", f"{known} Leave it out there if it is to be protected.")

    def _tell_measured_at_party(self) -> None:
        check_is_fitted(self, "model_")
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

    def save(self, path: str | Path) -> None:
        """Write the model as a folder; `tablepuppet.load` reads it."""
        from tablepuppet.learn.model_file import save  # it knows all learners

        check_is_fitted(self, "model_")
        save(self, path)

    def _scores(self, relation: Relation) -> Array:
        """Scores of every joined row, in the order of ``rows()``."""
        check_is_fitted(self, "model_")
        client = relation.client
        if client.engine is not self.engine_:
            raise LearnError("this relation is of another federation than the one the model was fitted in")
        self._check_columns(relation)
        if self.promise_ is None and self.privacy is not None and self.privacy.prediction_epsilon is not None:
            raise PrivacyError(
                "predictions of this model cannot have noise, as it was not fitted so: fit it over a relation with "
                "privacy=tp.Privacy(feature_epsilon=..., prediction_epsilon=...)"
            )
        apply_encoding(client, self.encoding_)
        try:
            scores = self.model_.scores(client)
        finally:
            if self.promise_ is not None:  # predictions have cost something, also those that got lost
                self.privacy_ = promised(self.uses_, self.promise_.privacy, self.promise_)
        if not np.isfinite(scores).all():
            raise LearnError(
                "the relation has feature values that are not finite (NaN or infinity); filter them in WHERE"
            )
        return scores + (self.intercept_[0] if scores.ndim == 1 else self.intercept_)

    def _check_columns(self, relation: Relation) -> None:
        """LearnError unless the relation has the columns that the model was fitted on, of the same kind."""
        types = {(column.alias, column.name): column.type for column in relation.query.features}
        missing = [f"{alias}.{name}" for alias, name, _ in self.relation_columns_ if (alias, name) not in types]
        if missing:
            raise LearnError(f"the relation lacks columns the model was fitted on: {', '.join(missing)}")
        for alias, name, type_ in self.relation_columns_:
            now = types[alias, name]
            if is_text(now) != is_text(type_):
                raise LearnError(f"column {alias}.{name} is {now} here; the model was fitted on {type_}")


def _need_relation(relation: object) -> None:
    if not hasattr(relation, "query"):
        raise LearnError(f"fit learns from a relation, as fed.sql(...) makes one, not from {type(relation).__name__}")


def label_of(relation: Relation) -> OutputColumn:
    """The label column of a relation that can be learned from or measured on; LearnError if there is none."""
    _need_relation(relation)
    if relation.query.label is None:
        raise LearnError("the relation has no label; name one: fed.sql(..., label='column')")
    if not len(relation):
        raise LearnError("the relation has no joined rows; check the join keys and filters with explain()")
    return relation.query.label
