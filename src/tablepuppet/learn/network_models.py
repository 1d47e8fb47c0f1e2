"""The neural-network learners: one small network per table, their scores added (Eq. 2). They need torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from sklearn.utils.validation import check_is_fitted

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.descent import Round
from tablepuppet.learn.estimator import BATCH_SIZE, SINGLE_PRECISION_TOL, Array, Learner
from tablepuppet.learn.feature_promise import FeaturePromise
from tablepuppet.learn.losses import Loss
from tablepuppet.learn.network_admm import Inner, descend_by_sharing
from tablepuppet.learn.network_lbfgs import descend_full_batch
from tablepuppet.learn.networks import NetworkModel
from tablepuppet.learn.noisy_descent import PRIVATE_SOLVER, solve_by_steps
from tablepuppet.learn.row_gradients import need_opacus
from tablepuppet.learn.saved_model import SavedModel
from tablepuppet.learn.settings import Solver
from tablepuppet.learn.sgd import Stochastic, descend_by_batches
from tablepuppet.learn.step_promise import StepPromise, sampling_of
from tablepuppet.learn.stored import Stored
from tablepuppet.learn.table_network import TableNetwork, need_torch
from tablepuppet.learn.tasks import Classifier, Regressor
from tablepuppet.learn.units import in_units, out_of_units
from tablepuppet.learn.validation import Watched
from tablepuppet.learn.watch import Watch
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.events import Event
from tablepuppet.sql.query import OutputColumn
from tablepuppet.wire.engine import Engine

if TYPE_CHECKING:
    from tablepuppet.relation import Relation

AUTO_LR, ROUNDS = 0.1, 100


class NetworkLearner(Learner):
    """A sum over tables of small networks."""

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (16,),
        solver: Solver = "auto",
        rounds: int | Literal["auto"] = "auto",
        batch_size: int = BATCH_SIZE,
        lr: float | Literal["auto"] = "auto",
        momentum: float = 0.9,
        l2: float = 1e-6,
        rho: float | Literal["auto"] = "auto",
        inner_rounds: int | Literal["auto"] = "auto",
        inner_rho: float | Literal["auto"] = "auto",
        local_steps: int = 20,
        tol: float = 1e-6,
        patience: int = 5,
        reduce: bool = True,
        seed: int = 0,
        privacy: Privacy | None = None,
        label_correction: bool = False,
        callbacks: Iterable[Callable[[Event], None]] = (),
    ):
        self.hidden = hidden
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
    def coefs_(self) -> dict[str, list[Array]]:
        """By table: weights and bias of each hidden layer, then the weights of the output, which has no bias."""
        check_is_fitted(self, "model_")
        found = {}
        for alias, theta in self.model_.parameters().items():
            network = TableNetwork.over(len(self.encoding_.names(alias)), self.hidden, len(self.intercept_))
            found[alias] = [part for layer in network.layers(theta) for part in layer if part is not None]
        return found

    def saved(self, stored: Stored, engine: Engine, wire: str, outputs: int) -> SavedModel:
        """A model with these parameters, for predictions only."""
        shape = {"hidden": list(self.hidden), "outputs": outputs}
        return SavedModel("network", self.encoding_, stored, engine, wire, outputs, shape)

    def _fewest_trips(self, relation: Relation) -> Solver:
        """ADMM, one trip a round; where tables have several shards it needs two as L-BFGS does, which never rises.

        With noise on features, the better one of those that can have it.
        """
        if self.promise_ is not None:
            return PRIVATE_SOLVER
        features = {column.alias for column in relation.query.features}
        return "lbfgs" if any(len(relation.client.shards(alias)) > 1 for alias in features) else "admm"

    def _new_promise(
        self, privacy: Privacy, columns: tuple[OutputColumn, ...], categorical: frozenset[str], rounds: int | None,
        rows: Mapping[str, int],
    ) -> FeaturePromise:  # fmt: skip
        samplings = sampling_of(self.batch_size, BATCH_SIZE, rows)
        return StepPromise(privacy, columns, categorical, rounds, self.local_steps, samplings)

    @property
    def most_rounds(self) -> int:
        """How many rounds, or epochs, there may be."""
        return ROUNDS if isinstance(self.rounds, str) and self.promise_ is None else super().most_rounds

    def _check_private(self) -> None:
        if self.solver == "lbfgs":
            raise PrivacyError("solver='lbfgs' of networks has no private form; use 'auto', 'sgd' or 'admm'")
        if not isinstance(self.inner_rounds, str):
            raise PrivacyError("inner_rounds: consensus tells parameters without noise; leave it at 'auto'")
        if not self.reduce:
            raise PrivacyError("reduce=False tells a row as often as it is joined, without noise; leave it at True")
        need_opacus()

    def _train(self, relation: Relation, loss: Loss, watch: Watch) -> tuple[Watched, Array]:
        if isinstance(self.promise_, StepPromise):
            return solve_by_steps(self, relation, loss, watch, self.promise_, self.hidden)
        loss, unit = in_units(loss)
        model = NetworkModel(
            relation.client, self.encoding_, relation.wire, loss.outputs, self.hidden, self.l2, self.seed, unit,
            relation.client.new_name(),
        )  # fmt: skip
        report = watch.of(model)
        return model, unit * self._solve(model, loss, relation.wire, lambda done: report(out_of_units(done, unit)))

    def _solve(self, model: NetworkModel, loss: Loss, wire: str, report: Callable[[Round], bool]) -> Array:
        tol = max(self.tol, SINGLE_PRECISION_TOL) if wire == "float32" else self.tol
        if self.solver_ == "sgd":
            steps = Stochastic(model, self.momentum)
            return descend_by_batches(steps, loss, self._rates(), self.batch_size, self.seed, report)
        if self.solver_ == "admm":
            inner = Inner(
                self.local_steps, 1 if isinstance(self.inner_rounds, str) else self.inner_rounds, self.inner_rho
            )
            intercept, self.converged_ = descend_by_sharing(model, loss, self.rho, inner, self.most_rounds, tol, report)
        else:
            intercept, self.converged_ = descend_full_batch(model, loss, self.most_rounds, tol, report)
        return intercept

    def _rates(self) -> list[float]:
        """Learning rates by epoch: down to nothing on a line."""
        lr = AUTO_LR if isinstance(self.lr, str) else self.lr
        rounds = self.most_rounds
        return [lr * (1 - epoch / rounds) for epoch in range(rounds)]

    def check_settings(self) -> None:
        """LearnError if a setting is none that can be, or torch is not there."""
        super().check_settings()
        layers = self.hidden if isinstance(self.hidden, Sequence) and not isinstance(self.hidden, str) else [None]
        if not all(isinstance(size, Integral) and size >= 1 for size in layers):
            raise LearnError(f"hidden gives the width of each hidden layer, as in hidden=(16,), not {self.hidden!r}")
        need_torch()


class MLPRegressor(Regressor, NetworkLearner):
    """Regression by a sum over tables of small networks; l2 and lr are in units of the label's standard deviation."""


class MLPClassifier(Classifier, NetworkLearner):
    """Classification of two or more classes by a sum over tables of small networks."""
