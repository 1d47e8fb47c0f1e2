"""The neural-network learners: one small network per table, their scores added (Eq. 2). They need torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Literal

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.estimator import PRIVATE_BATCH, SINGLE_PRECISION_TOL, Array, Learner
from tablepuppet.learn.learners.settings import Solver, check_fitted
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.validation import Watched
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.loss.units import in_units, out_of_units
from tablepuppet.learn.network.admm import Inner, descend_by_sharing
from tablepuppet.learn.network.lbfgs import descend_full_batch
from tablepuppet.learn.private.descent import PRIVATE_SOLVER, solve_by_steps
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.step_promise import StepPromise, sampling_of
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.allowance import Cost, Costs
from tablepuppet.learn.solve.schedule import Usual
from tablepuppet.learn.solve.sgd import Stochastic, descend_by_batches
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.network import NetworkTable, need_torch
from tablepuppet.party.arguments import Layers, described, fits
from tablepuppet.party.spec import Network
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Event
from tablepuppet.sql.query import OutputColumn

AUTO_LR = 0.1
FLAT = 0.01  # a share of the objective: sgd has converged if its last quarter of epochs gained less


class NetworkLearner(Learner):
    """A sum over tables of small networks."""

    usual = Usual(batches=20, epochs=40, long_epochs=20, steps=800)
    usual_rounds, usual_momentum = 400, 0.9

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (16,),
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
        tol: float = 1e-4,
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
        check_fitted(self)
        found = {}
        for alias, theta in self.model_.parameters().items():
            network = NetworkTable.over(len(self.encoding_.names(alias)), self.hidden, len(self.intercept_))
            found[alias] = [part for layer in network.layers(theta) for part in layer if part is not None]
        return found

    def spec(self, outputs: int) -> Network:
        """Hidden layers, and an output for each score."""
        return Network(tuple(int(size) for size in self.hidden), outputs)

    def _fewest_trips(self, shards: Mapping[str, int]) -> Solver:
        """ADMM, one trip a round; where tables have several shards it needs two as L-BFGS does, which never rises.

        With noise on features, the better one of those that can have it.
        """
        if self.promise_ is not None:
            return PRIVATE_SOLVER
        return "lbfgs" if any(count > 1 for count in shards.values()) else "admm"

    def _new_promise(
        self, privacy: Privacy, columns: tuple[OutputColumn, ...], categorical: frozenset[str], rounds: int | None,
        rows: Mapping[str, int], known: frozenset[str],
    ) -> FeaturePromise:  # fmt: skip
        samplings = sampling_of(self.batch_size, PRIVATE_BATCH, rows)
        return StepPromise(privacy, columns, categorical, rounds, self.local_steps, samplings, known=known)

    def _costs(self, batches: int) -> Costs:
        if isinstance(self.promise_, StepPromise):
            return Costs(Cost(1, 1), Cost(1, self.promise_.steps_of_round + 1))
        if self.solver_ == "sgd":
            return Costs(Cost(1, batches), Cost(0, 2 * batches))
        inner = 1 if isinstance(self.inner_rounds, str) else self.inner_rounds
        if self.solver_ == "admm":
            return Costs(Cost(1, 1), Cost(1, inner + 1))
        return Costs(Cost(1, 2), Cost(1, 2))

    def _check_private(self) -> None:
        if self.solver == "lbfgs":
            raise PrivacyError("solver='lbfgs' of networks has no private form; use 'auto', 'sgd' or 'admm'")
        if not isinstance(self.inner_rounds, str):
            raise PrivacyError("inner_rounds: consensus tells parameters without noise; leave it at 'auto'")
        if not self.reduce:
            raise PrivacyError("reduce=False tells a row as often as it is joined, without noise; leave it at True")

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        if isinstance(self.promise_, StepPromise):
            return solve_by_steps(self, relation, loss, watch.of, self.promise_, self.spec(loss.outputs))
        loss, unit = in_units(loss)
        spec = self.spec(loss.outputs)
        model = FederatedModel(relation.client, loss.rows, self.encoding_, relation.wire, spec, self.l2, unit)
        model.begin(self.seed)
        report = watch.of(model)
        return model, unit * self._solve(model, loss, relation.wire, lambda done: report(out_of_units(done, unit)))

    def _solve(self, model: FederatedModel, loss: JoinedLoss, wire: str, report: Callable[[Round], bool]) -> Array:
        tol = max(self.tol, SINGLE_PRECISION_TOL) if wire == "float32" else self.tol
        if self.solver_ == "sgd":
            steps = Stochastic(model, self.plain_momentum)
            intercept = descend_by_batches(steps, loss, self._rates(), self.schedule_.batch_size, self.seed, report)
            self.converged_ = self._is_flat()
            return intercept
        if self.solver_ == "admm":
            inner = Inner(
                self.local_steps, 1 if isinstance(self.inner_rounds, str) else self.inner_rounds, self.inner_rho
            )
            intercept, self.converged_ = descend_by_sharing(model, loss, self.rho, inner, self.most_rounds, tol, report)
        else:
            intercept, self.converged_ = descend_full_batch(
                model, loss, self.most_rounds, tol, report, self.schedule_.replies
            )
        return intercept

    def _is_flat(self) -> bool:
        """Whether the last quarter of the epochs gained little; rates that fall to nothing gain nothing at the end."""
        objectives = [entry["objective"] for entry in self.history_]
        last = len(objectives) // 4
        return (
            last > 0
            and len(objectives) == self.most_rounds
            and objectives[-1 - last] - objectives[-1] <= FLAT * abs(objectives[-1])
        )

    def _rates(self) -> list[float]:
        """Learning rates by epoch: down to nothing on a line."""
        lr = AUTO_LR if isinstance(self.lr, str) else self.lr
        rounds = self.most_rounds
        return [lr * (1 - epoch / rounds) for epoch in range(rounds)]

    def check_settings(self) -> None:
        """LearnError if a setting is none that can be, or torch is not there."""
        super().check_settings()
        layers = self.hidden if isinstance(self.hidden, Sequence) and not isinstance(self.hidden, str) else [None]
        if not fits([int(size) if isinstance(size, Integral) else size for size in layers], Layers):
            raise LearnError(
                f"hidden gives the width of each hidden layer, as in hidden=(16,), not {self.hidden!r}; it takes "
                f"{described(Layers)}"
            )
        need_torch()


@learner
class MLPRegressor(Regressor, NetworkLearner):
    """Regression by a sum over tables of small networks; l2 and lr are in units of the label's standard deviation.

    It cannot learn an interaction between columns of different tables: what tables say is only added up.
    """


@learner
class MLPClassifier(Classifier, NetworkLearner):
    """Classification of two or more classes by a sum over tables of small networks.

    It cannot learn an interaction between columns of different tables: what tables say is only added up.
    """
