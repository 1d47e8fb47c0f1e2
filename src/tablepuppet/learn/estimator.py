"""What all learners share, in scikit-learn's manner: `fit` does the work, what it learned ends in `_`.

The story of `fit`: encoders are fitted over the joined rows and applied at the parties; labels are asked for; a
solver runs rounds of gather, loss, scatter; the parameters stay with the parties.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.descent import Round
from tablepuppet.learn.losses import Loss
from tablepuppet.operators.client import Client, Replies
from tablepuppet.prep.encode import Encoding, apply_encoding
from tablepuppet.runs.events import Event
from tablepuppet.sql.query import OutputColumn

if TYPE_CHECKING:
    from tablepuppet.relation import Relation

Array = NDArray[np.float64]
Solver = Literal["auto", "admm", "sgd", "lbfgs"]
SOLVERS = ("auto", "admm", "sgd", "lbfgs")
SINGLE_PRECISION_TOL = 1e-10  # what float32 on the wire can still tell
PATIENCE = 5


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _is_number(value: Any, below: float = np.inf) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < below


def _is_rate(value: Any) -> bool:
    return value == "auto" if isinstance(value, str) else _is_number(value) and value > 0


RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("rounds", "batch_size", "local_steps"),
        ("a whole number, at least 1", lambda v: _is_whole(v, 1)),
    ),
    "inner_rounds": ("a whole number, at least 1", lambda v: _is_whole(v, 1)),
    **dict.fromkeys(("lr", "rho", "inner_rho"), ("'auto' or a number above 0", _is_rate)),
    **dict.fromkeys(("l2", "tol"), ("a number, 0 or more", _is_number)),
    "momentum": ("a number from 0 to below 1", lambda v: _is_number(v, 1.0)),
    "seed": ("a whole number, 0 or more", lambda v: _is_whole(v, 0)),
}

NOTHING_PROMISED: dict[str, Any] = {
    "epsilon": np.inf,
    "epsilon_given_messages": np.inf,
    "delta": None,
    "assumptions": "Nothing is promised: the model was fitted without differential privacy. Parties let out what "
    "docs/privacy.md lists, and the coordinator is trusted not to solve it for rows.",
}


class Model(Protocol):
    """What a fitted learner needs of its parameters, wherever they are."""

    def scores(self, client: Client) -> Array:
        """Scores over the rows of a relation, without the intercept."""
        ...

    def parameters(self) -> dict[str, Array]:
        """Parameters by table."""
        ...


class Learner(BaseEstimator):  # type: ignore[misc]
    """Learns over a relation. Subclasses say what is learned (tasks.py) and by which model (their `_train`)."""

    solver: Solver
    rounds: int
    l2: float
    reduce: bool
    privacy: None
    callbacks: Iterable[Callable[[Event], None]]
    metric_name = "metric"
    ranges = RANGES

    def fit(self, relation: Relation, validation: Relation | None = None) -> Self:
        """Learn from a relation with a label. A ``validation`` relation, to stop early by, is not supported yet."""
        if validation is not None:
            raise LearnError("stopping early by a validation relation is not supported yet; leave validation out")
        self._check_settings()
        label = label_of(relation)
        relation = relation if self.reduce else relation.without_reduction()
        asked = self._ask_labels(relation.client, label)  # before statistics are read: both travel together
        self.encoding_ = relation.fit_encoding()
        loss = self._prepare(relation.client, label, asked)
        self.solver_ = self._fewest_trips(relation) if self.solver == "auto" else self.solver
        self.converged_ = False
        self.history_: list[dict[str, Any]] = []
        model, intercept = self._train(relation, loss, _Watch(self, relation, loss))
        self.settle(relation, self.encoding_, model, intercept)
        state = "converged" if self.converged_ else "not converged"
        relation.events.emit(
            "info", "fitted", f"{type(self).__name__}: {state} after {len(self.history_)} rounds",
            converged=self.converged_, rounds=len(self.history_), solver=self.solver_,
        )  # fmt: skip
        return self

    def settle(self, relation: Relation, encoding: Encoding, model: Model, intercept: Array) -> None:
        """Keep what was learned."""
        self.encoding_, self.model_, self.intercept_ = encoding, model, intercept
        self.relation_columns_ = [(column.alias, column.name) for column in relation.query.features]
        self.n_features_in_ = len(relation.columns)
        self.engine_ = relation.client.engine
        self.privacy_ = dict(NOTHING_PROMISED)
        self.relation_ = relation  # the parameters stay with its parties for as long as its session does

    def _ask_labels(self, client: Client, label: OutputColumn) -> Replies:
        raise AssertionError("a subclass says what is learned")

    def _prepare(self, client: Client, label: OutputColumn, asked: Replies) -> Loss:
        raise AssertionError("a subclass says what is learned")

    def _metric(self, loss: float, scores: Array) -> float:
        raise AssertionError("a subclass says what is measured")

    def _fewest_trips(self, relation: Relation) -> Solver:
        """The solver that "auto" picks."""
        return "lbfgs"

    def _train(self, relation: Relation, loss: Loss, report: Callable[[Round], bool]) -> tuple[Model, Array]:
        """Run the solver: (the model, its intercept); says in ``converged_`` whether it came to an end."""
        raise AssertionError("a subclass says by which model")

    def told(self, thetas: Mapping[str, Array], wire: str, outputs: int) -> Model:
        """A model with these parameters by table, for predictions only."""
        raise AssertionError("a subclass says by which model")

    def predict(self, relation: Relation) -> NDArray[Any]:
        """A label for every joined row, in the order of ``rows()``."""
        raise AssertionError("a subclass says what is learned")

    def evaluate(self, relation: Relation) -> dict[str, float]:
        """Metrics over the joined rows."""
        raise AssertionError("a subclass says what is measured")

    def _check_settings(self) -> None:
        if self.solver not in SOLVERS:
            known = ", ".join(SOLVERS)
            raise LearnError(f"solver={self.solver!r} is not known; use one of {known}")
        for name, value in self.get_params(deep=False).items():
            allowed, fits = self.ranges.get(name, ("anything", lambda _: True))
            if not fits(value):
                raise LearnError(f"{name} must be {allowed}, not {value!r}")
        if self.privacy is not None:
            raise PrivacyError("differential privacy is not supported yet; leave privacy at None")

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
        columns = {(column.alias, column.name) for column in relation.query.features}
        missing = [f"{alias}.{name}" for alias, name in self.relation_columns_ if (alias, name) not in columns]
        if missing:
            raise LearnError(f"the relation lacks columns the model was fitted on: {', '.join(missing)}")
        apply_encoding(client, self.encoding_)
        scores = self.model_.scores(client)
        return scores + (self.intercept_[0] if scores.ndim == 1 else self.intercept_)


class _Watch:
    """Turns rounds into history and events."""

    def __init__(self, estimator: Learner, relation: Relation, loss: Loss):
        self.estimator, self.relation, self.loss = estimator, relation, loss
        self.before, self.since = self._traffic(), time.perf_counter()

    def _traffic(self) -> tuple[int, int, int]:
        entries = self.relation.client.engine.traffic.to_list()
        up = sum(entry["bytes"] for entry in entries if entry["direction"] == "up")
        down = sum(entry["bytes"] for entry in entries if entry["direction"] == "down")
        return up, down, sum(entry["messages"] for entry in entries)

    def __call__(self, done: Round) -> bool:
        traffic, now = self._traffic(), time.perf_counter()
        up, down, messages = (new - old for new, old in zip(traffic, self.before, strict=True))
        entry = {
            "round": done.number,
            "seconds": now - self.since,
            "loss": done.loss,
            "objective": done.objective,
            "metric": self.estimator._metric(done.loss, done.scores),
            "bytes_up": up,
            "bytes_down": down,
            "messages": messages,
            "epsilon": None,
            "solver": self.estimator.solver_,
            "converged": done.converged,
        }
        self.estimator.history_.append(entry)
        self.before, self.since = traffic, now
        total = self.estimator.rounds
        message = f"round {done.number}: loss {done.loss:.6g}, {self.estimator.metric_name} {entry['metric']:.4g}, "
        message += f"{(up + down) / 1e6:.3g} MB"
        self.relation.events.emit("progress", "fit", message, total=total, **(entry | {"done": done.number}))
        for callback in self.estimator.callbacks:
            callback(Event("progress", "fit", message, entry | {"done": done.number, "total": total}))
        return False


def label_of(relation: Relation) -> OutputColumn:
    """The label column of a relation that can be learned from; LearnError if there is none."""
    if relation.query.label is None:
        raise LearnError("the relation has no label; name one: fed.sql(..., label='column')")
    if not len(relation):
        raise LearnError(
            "the relation has no joined rows to learn from; check the join keys and filters with explain()"
        )
    return relation.query.label
