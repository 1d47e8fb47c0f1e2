"""Solvers of other files and packages: what a learner asks of a solver that it does not know.

Input: a model of tables, and the loss of joined rows. Output: the parameters that tables have then, and an intercept.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from tablepuppet.arrays import Array
from tablepuppet.learn.loss.joined_loss import JoinedLoss
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.solve.schedule import Cost, Costs
from tablepuppet.learn.solve.solvers import Solver
from tablepuppet.learn.tables.federated import FederatedModel


class OwnSolver(Solver):
    """A solver with its settings and its loop, decorated with `solver` (solvers.py).

    Every learner whose users choose a solver takes it: by ``name``, or as an object where it has settings of its own.
    ``costs`` are the replies of a table before the first round and in each, with one shard and with several.
    """

    costs: ClassVar[Costs] = Costs(Cost(1, 2), Cost(1, 2))

    @abstractmethod
    def descend(
        self, model: FederatedModel, loss: JoinedLoss, rounds: int, tol: float, report: Callable[[Round], bool]
    ) -> tuple[Array, bool]:
        """Learn in so many rounds at most: (the intercept, whether a round gained less than ``tol`` of the objective).

        Tables step by ``model.step(updates, rows)``, whoever holds their parameters; the gradient that they step with
        is ``RowGradients(model.loj.scatter(GRADIENT, model.tables))`` once the loss has written it. ``report`` gets
        each round, and returns whether to stop.
        """
