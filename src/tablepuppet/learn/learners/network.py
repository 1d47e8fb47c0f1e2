"""The neural-network learners: one small network per table, their scores added (Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.learner import SINGLE_PRECISION_TOL
from tablepuppet.learn.learners.not_fitted import check_fitted
from tablepuppet.learn.learners.solver_learner import SolverLearner
from tablepuppet.learn.learners.tasks import Classifier, Regressor
from tablepuppet.learn.learners.watch import Watch, Watched
from tablepuppet.learn.loss.joined_loss import JoinedLoss, in_units, out_of_units
from tablepuppet.learn.network.admm import InnerSettings, descend_by_sharing
from tablepuppet.learn.network.lbfgs import descend_full_batch
from tablepuppet.learn.private.descent import PRIVATE_SOLVER, solve_by_steps
from tablepuppet.learn.private.feature_promise import StepPromise
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import NUMBER, Kind, setting
from tablepuppet.learn.solve.own import OwnSolver
from tablepuppet.learn.solve.plateau import ended_flat
from tablepuppet.learn.solve.schedule import Cost, Costs, Usual
from tablepuppet.learn.solve.sgd import Stochastic, descend_by_batches
from tablepuppet.learn.solve.solvers import ADMM, SGD
from tablepuppet.learn.tables.dense import Network
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.party.arguments import Layers, described, fits
from tablepuppet.relation import Relation

AUTO_LR = 0.1
SMALL = 30_000  # joined rows: with fewer, a network overfits unless it is stopped early


def _are_layers(value: object) -> bool:
    layers = value if isinstance(value, Sequence) and not isinstance(value, str) else [None]
    return fits([int(size) if isinstance(size, Integral) else size for size in layers], Layers)


LAYERS = Kind(
    f"the width of each hidden layer, as in (16,), {described(Layers)}",
    _are_layers,
    read=lambda value: tuple(value) if isinstance(value, list) else value,
)


class NetworkLearner(SolverLearner):
    """A sum over tables of small networks."""

    usual = Usual(batches=20, epochs=40, long_epochs=20, steps=800)
    usual_rounds, usual_momentum = 400, 0.9

    hidden: Sequence[int] = setting(
        default=(16,), kind=LAYERS, help="widths of the hidden layers of each table's network"
    )
    tol: float = setting(default=1e-4, kind=NUMBER, help="stop when a round gains less than `tol` of the objective")

    @property
    def coefs_(self) -> dict[str, list[Array]]:
        """By table: weights and bias of each hidden layer, then the weights of the output, which has no bias."""
        check_fitted(self)
        found = {}
        for alias, theta in self._model.parameters().items():
            network = self.spec(len(self.intercept_)).over(len(self.encoding_.names(alias)))
            found[alias] = [part for layer in network.layers(theta) for part in layer if part is not None]
        return found

    def spec(self, outputs: int) -> Network:
        """Hidden layers, and an output for each score."""
        return Network(tuple(int(size) for size in self.hidden), outputs)

    def _usual_solver(self) -> str:
        """L-BFGS: on six of seven relations it takes the least time of the three to a given loss.

        ``python -m benchmarks.learning.network_solvers`` measures that; where few rows are joined often, ADMM may be
        ahead. With noise on features, the better of the solvers that support noise is chosen.
        """
        return PRIVATE_SOLVER if self._has_private_features else "lbfgs"

    def _holds_out(self, relation: Relation) -> bool:
        """True for small relations: there networks overfit long before their objective stops falling.

        Not if the user sets the number of rounds.
        """
        is_auto = isinstance(self.rounds, str) and self.asked_solver != "sgd"
        return self.privacy is None and is_auto and len(relation) <= SMALL

    def _takes_noisy_steps(self) -> bool:
        return True

    def _costs(self, batches: int) -> Costs:
        if isinstance(self._promise, StepPromise):
            return Costs(Cost(1, 1), Cost(1, self._promise.steps_of_round + 1))
        if isinstance(solver := self.solving, OwnSolver):
            return solver.costs
        if self.solver_ == "sgd":
            return Costs(Cost(1, batches), Cost(0, 2 * batches))
        if self.solver_ == "admm":
            return Costs(Cost(1, 1), Cost(1, self.solving.inner_trips + 1))
        return Costs(Cost(1, 2), Cost(1, 2))

    def _check_private(self) -> None:
        if self.solver_ == "lbfgs":
            raise PrivacyError("solver='lbfgs' of networks has no private form; use 'auto', 'sgd' or 'admm'")
        if not self.spec(1).adds_up:
            raise PrivacyError("models whose tables' predictions do not add up have no private form")
        super()._check_private()

    def _train(self, relation: Relation, loss: JoinedLoss, watch: Watch) -> tuple[Watched, Array]:
        if isinstance(self._promise, StepPromise):
            return solve_by_steps(self, relation, loss, watch.of, self._promise, self.spec(loss.outputs))
        spec = self.spec(loss.outputs)
        loss, unit = in_units(loss) if spec.adds_up else (loss, 1.0)
        model = FederatedModel(relation.client, loss.rows, self.encoding_, relation.wire, spec, self.l2, unit)
        model.begin(self.seed)
        report = watch.of(model)
        return model, unit * self._solve(model, loss, relation.wire, lambda done: report(out_of_units(done, unit)))

    def _solve(self, model: FederatedModel, loss: JoinedLoss, wire: str, report: Callable[[Round], bool]) -> Array:
        tol = max(self.tol, SINGLE_PRECISION_TOL) if wire == "float32" else self.tol
        solver = self.solving
        if isinstance(solver, OwnSolver):
            intercept, self.converged_ = solver.descend(model, loss, self.most_rounds, tol, report)
            return intercept
        if not model.spec.adds_up and self.solver_ != "lbfgs":
            raise LearnError(f"solver={self.solver_!r} adds up the predictions of tables, which this model does not")
        if self.solver_ == "sgd":
            steps = Stochastic(model, self.plain_momentum)
            intercept = descend_by_batches(steps, loss, self._rates(), self._schedule.batch_size, self.seed, report)
            self.converged_ = ended_flat(self.history_, self.most_rounds)
            return intercept
        if isinstance(solver, ADMM):
            inner = InnerSettings(solver.local_steps, solver.inner_trips, solver.inner_rho)
            intercept, self.converged_ = descend_by_sharing(
                model, loss, solver.rho, inner, self.most_rounds, tol, report
            )
        else:
            assert self.solver_ == "lbfgs", f"networks do not know {self.solver_!r}"
            intercept, self.converged_ = descend_full_batch(
                model, loss, self.most_rounds, tol, report, self._schedule.replies
            )
        return intercept

    def _rates(self) -> list[float]:
        """Learning rates by epoch: they fall linearly to zero."""
        solver = self.solving
        lr = solver.lr if isinstance(solver, SGD) and not isinstance(solver.lr, str) else AUTO_LR
        rounds = self.most_rounds
        return [lr * (1 - epoch / rounds) for epoch in range(rounds)]


@learner
class MLPRegressor(Regressor, NetworkLearner):
    """Regression by a sum over tables of small networks; l2 and lr are in units of the label's standard deviation.

    It cannot learn an interaction between columns of different tables: their predictions are only added. Unless
    ``solver`` says otherwise, it is learned by L-BFGS, with noise on features by noisy steps.
    """


@learner
class MLPClassifier(Classifier, NetworkLearner):
    """Classification of two or more classes by a sum over tables of small networks.

    It cannot learn an interaction between columns of different tables: their predictions are only added. Unless
    ``solver`` says otherwise, it is learned by L-BFGS, with noise on features by noisy steps.
    """
