"""Learners with a solver that users choose: its settings, what "auto" chooses, and the rounds and noise that follow.

A learner that trains in one way only, as networks across parties do, is a `Learner` and has none of this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.learners.watch import Watch
from tablepuppet.learn.private.feature_promise import FeaturePromise, new_promise
from tablepuppet.learn.settings import COUNT, NUMBER, SWITCH, Auto, or_auto, setting
from tablepuppet.learn.solve.own import OwnSolver
from tablepuppet.learn.solve.schedule import RoundAllowance, Schedule, Usual, schedule_of
from tablepuppet.learn.solve.solvers import (
    SGD,
    SHORT_FORMS,
    SOLVER,
    SOLVERS,
    Solver,
    SolverName,
    Stepping,
    chosen_solver,
)
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.sql.plan import Plan

AUTO_ROUNDS = 300  # at most: all solvers except sgd stop when they converge


class SolverLearner(Learner):
    """Learns by one of the solvers of solve/solvers.py."""

    beside = SHORT_FORMS
    usual: ClassVar[Usual] = Usual(batches=5, epochs=40, long_epochs=20, steps=200)  # of sgd
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
    tol: float = setting(
        default=1e-15,
        kind=NUMBER,
        help="stop when the optimum is [near](learning.md#what-converged-means): tables promise to gain less than "
        "`tol` times the objective",
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

    # What a subclass says

    @abstractmethod
    def _check_private(self) -> None:
        """Raise PrivacyError unless all releases that depend on features can have noise.

        Each family says so itself; these are the rules for all.
        """
        if isinstance(self.solving, OwnSolver):
            raise PrivacyError(f"solver={self.solver_!r} has no private form; use 'auto', 'sgd' or 'admm'")
        if not self.solving.sums_shards:
            raise PrivacyError("inner_rounds: consensus releases parameters without noise; leave it at 'auto'")
        if not self.reduce:
            raise PrivacyError("reduce=False releases a row as often as it is joined, without noise; leave it at True")

    def _takes_noisy_steps(self) -> bool:
        """Whether feature privacy uses noisy steps instead of noisy sums."""
        return self.solver_ == "sgd"

    def _usual_solver(self) -> str:
        """The solver that "auto" chooses."""
        return "lbfgs"

    # The solver

    def check_settings(self) -> None:
        """Raise LearnError if a setting is out of range."""
        super().check_settings()
        if isinstance(self.solver, Solver):
            chosen_solver(self.solver, self.solver.name, self._given_beside)
        if self.label_correction and (self.privacy is None or not self.privacy.is_label_private):
            raise LearnError("label_correction is for labels with noise: set privacy=tp.Privacy(label_epsilon=...) too")

    def _open_fit(self, relation: Relation, validation: Relation | None, may_hold_out: bool = False) -> Watch:
        watch = super()._open_fit(relation, validation, may_hold_out)
        if unused := self._unused():
            given = ", ".join(f"{name}={value!r}" for name, value in unused.items())
            message = f"{type(self).__name__}: solver={self.solver!r} does not use {given}"
            self.emit(relation, "warning", "fit.unused", message, {"solver": self.solver_, "settings": list(unused)})
        return watch

    def _unused(self) -> dict[str, Any]:
        """Settings of other solvers than the one that was named; "auto" may choose any."""
        if self.asked_solver == "auto":
            return {}
        own = SOLVERS[self.asked_solver].declared
        given = {name: value for name, value in self._given_beside.items() if name not in own}
        return {name: value for name, value in given.items() if value != self.beside[name].default}

    @property
    def asked_solver(self) -> SolverName:
        """The name of the solver that was asked for."""
        return self.solver.name if isinstance(self.solver, Solver) else self.solver

    def _chosen_solver(self) -> str:
        asked = self.asked_solver
        return self._usual_solver() if asked == "auto" else asked

    @property
    def solving(self) -> Solver:
        """The solver that was chosen, with its settings."""
        assert self.solver_ is not None, "it is chosen first"
        return chosen_solver(self.solver, self.solver_, self._given_beside)

    @property
    def plain_momentum(self) -> float:
        """The momentum of steps that use one learning rate for all columns."""
        solver = self.solving
        asked = solver.momentum if isinstance(solver, Stepping) else "auto"
        return self.usual_momentum if isinstance(asked, str) else asked

    # Noise and rounds

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The promise for features, with ``rows`` rows by table; PrivacyError if it cannot be kept."""
        if privacy is None or not privacy.is_feature_private:
            return None
        self.solver_ = self._chosen_solver()
        self._check_private()
        rounds, solver = None if isinstance(self.rounds, str) else self.rounds, self.solving
        steps = solver if self._takes_noisy_steps() and isinstance(solver, Stepping) else None
        return new_promise(privacy, plan, rounds, rows, steps)

    def plan_rounds(self, rows: int, allowed: Callable[[int], RoundAllowance]) -> None:
        """Choose rounds and batches for ``rows`` joined rows; PrivacyError if parties do not allow them."""
        if self._promise is None:
            self._schedule = schedule_of(self.solving, self.rounds, rows, self.usual, self.usual_rounds, allowed)
            return
        self._promise = self._promise.within(allowed(1).most_rounds())
        settings: dict[str, object] = {"solver": self.solver_, "rounds": self.rounds}
        allowed(1).check(self._promise.rounds, settings, "lower local_steps")
        self._schedule = Schedule(self._promise.rounds, rows)

    def more_rounds_by(self, rounds: int) -> str:
        """Advice to a user whose fit has stopped short of the optimum after so many rounds."""
        advice, solver = f"set rounds above {rounds:,}", self.solving
        if isinstance(solver, SGD):
            advice += ", batch_size lower, or lr='auto'" if solver.lr != "auto" else " or batch_size lower"
        return f"{advice}, or take another solver"

    def fewer_replies_by(self) -> list[str]:
        """Settings that need fewer replies in a round, where parties allow no more."""
        larger = ["make batch_size larger"] if isinstance(self.solving, SGD) else []
        return [*larger, "take another solver"]
