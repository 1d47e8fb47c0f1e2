"""The base class of everything that learns from a relation, with or without a label: settings, columns, saving.

As in scikit-learn, the constructor only stores, `fit` does the work, and learned attributes end in `_`. A subclass
implements `_learn`. To be saved it also implements `facts`, `arrays` and `restore`, for what is not a setting or an
encoder. Learners of a label are in learner.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from tablepuppet.errors import ConfigError, LearnError, NotPickledError, PrivacyError
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.private.checks import check_demanded, check_supported
from tablepuppet.learn.private.feature_promise import FeaturePromise, read_promise
from tablepuppet.learn.private.report import PrivacyReport, Uses, promised, reported
from tablepuppet.learn.registry import LEARNERS
from tablepuppet.learn.settings import CALLBACKS, WHOLE, Configured, Kind, setting
from tablepuppet.prep.columns.selected import is_text
from tablepuppet.prep.encode.encode import Encoding, encoder_names
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Event, one_run
from tablepuppet.runs.events import Kind as EventKind
from tablepuppet.spelling import attributes_explained, names_checked, shows
from tablepuppet.sql.plan import Plan
from tablepuppet.store.models import Saved, save
from tablepuppet.store.parts import Held, Storable, Stored
from tablepuppet.wire.engine import Engine

DRAWN = "best_round_ classes_ converged_ intercept_ n_features_in_ parties_ solver_ stopped_".split()


ELSEWHERE = {  # what users of scikit-learn, Keras and torch try
    "test": "model.evaluate(relation) gives all metrics",
    **dict.fromkeys(("fit_predict", "train"), "model.fit(relation), then model.predict(relation)"),
    "predict_log_proba": "write np.log(model.predict_proba(relation)), of a classifier",
    "decision_function": "write np.log(p[:, 1] / p[:, 0]) of two classes, with p = model.predict_proba(relation)",
    **dict.fromkeys(
        ("n_iter_", "loss_curve_", "loss_", "history"),
        "model.history_ has the numbers of each round, as many as there were; model.plot() draws them",
    ),
    **dict.fromkeys(("feature_names_in_", "feature_names_"), "rel.columns has the names of a relation's features"),
    "coefs_": "model.coef_ of a linear model has its parameters by column",
    "feature_importances_": "model.coef_ of a linear model has its parameters by column; trees have importances",
    **dict.fromkeys(
        ("partial_fit", "warm_start"), "model.fit(relation) learns from all rows anew; trees go on with warm_start=True"
    ),
    **dict.fromkeys(
        ("state_dict", "dump", "save_model"), "model.save(folder) writes it, tp.load(folder, fed) reads it"
    ),
    "load": "tp.load(folder, fed) reads what model.save(folder) wrote",
}


def _write_privacy(privacy: Privacy | None) -> dict[str, Any] | None:
    return None if privacy is None else asdict(privacy)


def _read_privacy(settings: Any) -> Privacy | None:
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError("learner privacy is a section: [learner.privacy], with label_epsilon and so on")
    return None if settings is None else Privacy.of_settings(settings)


PRIVACY = Kind("a `tp.Privacy` or None", lambda _: True, _write_privacy, _read_privacy)  # `check_supported` tests it


@shows(
    "evaluate", "fit", "get_params", "plot", "predict", "predict_proba", "save", "score", "set_params", "transform",
)  # fmt: skip
@attributes_explained(ELSEWHERE)
class Estimator(Configured, BaseEstimator, ABC):  # type: ignore[misc]
    """Learns from a relation."""

    # What a fit may or may not have; without an annotation it is no setting.
    _promise = cast("FeaturePromise | None", None)  # None without feature privacy
    _category_names = cast("dict[str, list[str | None]] | None", None)

    seed: int = setting(default=0, kind=WHOLE, help="of first parameters and the order of batches")
    privacy: Privacy | None = setting(
        default=None,
        kind=PRIVACY,
        help="[labels with noise](privacy.md#label-privacy), [noise on what is learned from "
        "features](privacy.md#feature-privacy), [secure sums](privacy.md#secure-sums); what cannot be kept, or exceeds "
        "what is left of a party's budget, is a `PrivacyError` [before anything is charged](privacy.md#before-a-fit)",
    )
    callbacks: Iterable[Callable[[Event], None]] = setting(
        default=(), kind=CALLBACKS, help="readers of this learner's [events](events.md)", in_files=False
    )

    @names_checked
    @one_run()
    def fit(self, relation: Relation) -> Self:
        """Learn from a relation. If this fails, the learner does not change."""
        with self._unchanged_if_it_fails(relation):
            self.check_settings()
            need_relation(relation, "fit")
            self.check_plan(relation.plan)
            if not len(relation):
                raise LearnError("the relation has no joined rows; check the join keys and filters with explain()")
            relation = relation.to_learn()
            self.encoding_: Encoding = relation.fit_encoding()
            self._check_features(relation)
            self.store_fit(relation, self.encoding_, self._learn(relation))
        return self

    @contextmanager
    def _unchanged_if_it_fails(self, *relations: Any) -> Iterator[None]:
        """Restore what was learned before if the block raises an error, and send nothing more of what it has begun."""
        before = dict(self.__dict__)
        try:
            with ExitStack() as stack:
                for relation in relations:
                    if isinstance(relation, Relation):
                        stack.enter_context(relation.withdrawn_if_it_fails())
                yield
        except BaseException:
            self.__dict__ = before
            raise

    @abstractmethod
    def _learn(self, relation: Relation) -> Storable:
        """Learn from the rows of a relation, encoded by ``encoding_``; return the parameters."""

    def store_fit(self, relation: Relation, encoding: Encoding, model: Storable) -> None:
        """Store what was learned in the attributes that end in ``_``."""
        self.encoding_, self._model = encoding, model
        self._relation_columns: Sequence[tuple[str, str, str]] = [  # alias, name, type
            (c.alias, c.name, c.type) for c in encoding.kept(relation.query.features)
        ]
        self.n_features_in_: int = len(self._relation_columns)
        self.parties_: tuple[str, ...] = relation.plan.parties
        self._engine: Engine = relation.client.engine
        self._uses: Uses = Uses.of(relation.plan, self.privacy, relation.client.secured.parties)
        self.privacy_: PrivacyReport = promised(self._uses, self.privacy, self._promise)
        self._category_names = None
        self._relation: Relation = relation  # parties hold the parameters until its session ends

    # Before a fit

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range."""
        super().check_settings()
        check_supported(self.privacy)

    def check_plan(self, plan: Plan) -> None:
        """Raise unless a plan can be learned from, as far as the catalog shows; no party is asked."""
        if self.privacy is not None:
            raise PrivacyError(f"{type(self).__name__} has no private form yet: leave privacy at None")
        check_demanded(plan, None)

    def _check_features(self, relation: Relation) -> None:
        """Warn if there is no column to learn from. If noise hides all columns, the warning after the fit says so."""
        if self._promise is None and not self.encoding_.kept(relation.query.features):
            none = "the query selects no column but the label"
            why = f"all of {', '.join(relation.columns)} were left out" if relation.columns else none
            message = f"no feature is left to learn from ({why}): the model will predict a constant"
            relation.events.emit("warning", "features.none", message)

    def emit(self, relation: Relation, kind: EventKind, name: str, message: str, fields: dict[str, Any]) -> None:
        """Send an event to the readers of the federation and of this learner."""
        event = relation.events.emit(kind, name, message, **fields)
        for callback in self.callbacks:
            callback(event)

    # After a fit

    @property
    def categories_(self) -> dict[str, list[str | None]]:
        """What the codes of ``coef_`` mean: names of categories in the order of codes, by ``alias.column``.

        Only for columns that are public at every party, and only for encoders without noise.
        """
        check_fitted(self)
        if self._category_names is None:
            self._category_names = (
                {} if self.encoding_.private else encoder_names(self._relation.client, self.encoding_)
            )
        return {column: list(names) for column, names in self._category_names.items()}

    def check_relation(self, relation: Relation, verb: str) -> None:
        """Raise LearnError or PrivacyError unless the model can be used over a relation."""
        check_fitted(self)
        need_relation(relation, verb)
        if relation.client.engine is not self._engine:
            raise LearnError("this relation is of another federation than the one the model was fitted in")
        self._check_columns(relation)
        if self._promise is None and self.privacy is not None and self.privacy.prediction_epsilon is not None:
            raise PrivacyError(
                "predictions of this model cannot have noise, as it was not fitted so: fit it over a relation with "
                "privacy=tp.Privacy(feature_epsilon=..., prediction_epsilon=...)"
            )

    def _check_columns(self, relation: Relation) -> None:
        """LearnError unless the relation has the columns that the model was fitted on, of the same kind."""
        types = {(column.alias, column.name): column.type for column in relation.query.features}
        missing = [f"{alias}.{name}" for alias, name, _ in self._relation_columns if (alias, name) not in types]
        if missing:
            raise LearnError(
                f"the relation lacks columns the model was fitted on: {', '.join(missing)}. A query to predict over "
                "selects them by the same names, from tables with the same aliases as in the fit"
            )
        for alias, name, type_ in self._relation_columns:
            now = types[alias, name]
            if is_text(now) != is_text(type_):
                raise LearnError(f"column {alias}.{name} is {now} here; the model was fitted on {type_}")

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "_model"):
            raise NotPickledError(
                f"a fitted {type(self).__name__} cannot be pickled or copied: parties hold its parameters. Write "
                "model.save(folder) and tp.load(folder, fed); sklearn.base.clone(model) copies its settings"
            )
        return dict(super().__getstate__())

    def save(self, path: str | Path) -> None:
        """Write the model as a folder; `tablepuppet.load` reads it."""
        check_fitted(self)
        name = type(self).__name__
        registered = LEARNERS.get(name)
        if registered is not type(self):
            if registered is not None and registered.__module__ == type(self).__module__:
                raise LearnError(f"{name} was defined again since it was fitted: fit it again")
            raise LearnError(
                f"{name} could not be loaded again: decorate the class with @learner (tablepuppet.learn.registry)"
            )
        save(path, self._model, self.encoding_, self._engine, lambda: (self._facts(), self.arrays()))

    def _facts(self) -> dict[str, Any]:
        return {
            "learner": type(self).__name__,
            "settings": self.plain_settings(),
            "columns": self._relation_columns,
            "parties": self.parties_,
            "own": self.facts(),
            "category_names": self.categories_,
            "promise": self.privacy_,
            "uses": asdict(self._uses),
            "spent": None if self._promise is None else self._promise.to_keep(),
        }

    def facts(self) -> dict[str, Any]:
        """What is saved in addition to settings, encoders and parameters, as JSON values."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that are saved in addition to parameters."""
        return {}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore `facts` and `arrays` when a model is loaded."""

    def saved(self, stored: Stored, engine: Engine, wire: str) -> Storable:
        """The parameters of a loaded model; by default those that the coordinator holds."""
        return Held(stored.thetas)

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """The fitted attributes that scikit-learn shows in a notebook: only those stored in this process.

        The default would read every property, and ``coef_`` asks parties for parameters: a policy may refuse that, and
        noise may cost epsilon.
        """
        known = {name: value for name, value in vars(self).items() if name in DRAWN}
        return BaseEstimator._get_fitted_attr_html(SimpleNamespace(**known), doc_link)


def need_relation(relation: object, verb: str) -> None:
    """LearnError unless the argument is a relation."""
    if not hasattr(relation, "fit_encoding"):  # a DataFrame has a query
        raise LearnError(
            f"{verb} takes a relation, as fed.sql(...) makes one, not {type(relation).__name__}: the rows stay in "
            "their databases"
        )


def restored(saved: Saved, wire: str) -> Estimator:
    """The learner that was saved, ready to predict over relations of its federation."""
    facts, name = saved.facts, str(saved.facts["learner"])
    if name not in LEARNERS:
        raise LearnError(
            f"the model is a {name}, which is no learner of this version of tablepuppet: import the module "
            "that has the class, or install the version that saved it"
        )
    learner: Estimator = LEARNERS[name].of_plain(facts["settings"])
    learner.encoding_, learner._engine = saved.encoding, saved.engine
    learner._relation_columns = [(alias, name, type_) for alias, name, type_ in facts["columns"]]
    learner.n_features_in_, learner.parties_ = len(facts["columns"]), tuple(facts["parties"])
    learner._promise = None if facts["spent"] is None else read_promise(facts["spent"])
    learner._uses = msgspec.convert(facts["uses"], Uses)
    learner.privacy_ = reported(facts["promise"], learner._uses, learner.privacy, learner._promise)
    learner._category_names = facts["category_names"]
    learner.restore(facts["own"], saved.arrays)
    learner._model = learner.saved(saved.stored, saved.engine, wire)
    return learner
