"""What another package adds to TablePuppet, in one file: a party imports it before it serves, an analyst's program too.

Of each kind one: a table model with its learner, a head, a solver with its step, a holder, a statistic and the ops of
both, a step of a pipeline, a kind of database. As a program it learns from the federation file that it is given, and
prints what it found as JSON. It is never imported by tests: what it registers would be there for others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

import tablepuppet as tp
from tablepuppet.arrays import Array, Floats
from tablepuppet.learn.learners.network import NetworkLearner
from tablepuppet.learn.learners.tasks import Regressor
from tablepuppet.learn.loss.joined_loss import GRADIENT, JoinedLoss
from tablepuppet.learn.registry import learner
from tablepuppet.learn.rounds import Round
from tablepuppet.learn.settings import RATE, SWITCH, setting
from tablepuppet.learn.solve.own import OwnSolver
from tablepuppet.learn.solve.solvers import solver
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.learn.tables.linear import LinearTable
from tablepuppet.learn.tables.model import BatchSums, Forward, Spec
from tablepuppet.learn.tables.parameters import TableParameters
from tablepuppet.learn.tables.steps import Facts, RowGradients, Update, by_rows, step
from tablepuppet.mapping.joined_rows import Block, Column
from tablepuppet.operators.loj import SumHead
from tablepuppet.party.approval import add_work
from tablepuppet.party.arguments import List, NotNegative, Some
from tablepuppet.party.databases.files import Folder
from tablepuppet.party.databases.urls import Address, database
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROW_OUTPUTS, Numbers, OfNoCell, Plain
from tablepuppet.prep.encode.encode import sealed
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tablepuppet.prep.encode.specs import NumberFunction
from tablepuppet.prep.pipelines.draft import Draft
from tablepuppet.prep.pipelines.steps.step import PrepStep

# A table model, a head and their learner.


@dataclass(frozen=True)
class HalfSum(SumHead):
    """A score is half the sum of what tables predict."""

    def forward(self, block: Block, predictions: Any, out: Array) -> None:
        super().forward(block, predictions, out)
        out *= 0.5

    def backward(self, block: Block, alias: str, column: Column) -> Array:
        return 0.5 * super().backward(block, alias, column)


class Squares(Spec, frozen=True, tag_field="kind", tag="squares"):
    """The squares of a table's numbers, times parameters."""

    outputs: Some

    @property
    def adds_up(self) -> bool:
        return False

    @property
    def head(self) -> HalfSum:
        return HalfSum()

    def theta_shape(self, width: int) -> tuple[int, ...]:
        return (width,) if self.outputs == 1 else (width, self.outputs)

    def over(self, width: int, alias: str = "") -> SquaresTable:
        return SquaresTable(width, cast(Any, self))


@dataclass(frozen=True)
class SquaresTable(LinearTable):
    """What parties compute."""

    def forward(self, theta: Array, rows: EncodedTable, sums: BatchSums | None = None) -> Forward:
        return super().forward(theta, squared(rows))

    def predict(self, theta: Array, table: EncodedTable) -> Array:
        return super().predict(theta, squared(table))

    def gradient(self, theta: Array, table: EncodedTable, row_gradients: Floats) -> Array:
        return super().gradient(theta, squared(table), row_gradients)


def squared(table: EncodedTable) -> EncodedTable:
    return EncodedTable(table.dense**2, table.codes, table.sizes)


@learner
class SquaresRegressor(Regressor, NetworkLearner):
    """Least squares on squares."""

    def spec(self, outputs: int) -> Any:
        return Squares(outputs)


add_work(("SquaresRegressor",), "lbfgs", "another")

LR, ROUNDS = 0.2, 4

# A solver, with the step that it takes, and a holder that averages the parameters of shards.


@step("another.fall", by_rows, asked="`fall`", releases=Release.PREDICTIONS, returns={"outputs": ROW_OUTPUTS})
@dataclass(frozen=True)
class Step(Update):
    """A step along the gradient."""

    lr: NotNegative

    def take(self, part: TableParameters, sums: Array, total: Array) -> Facts:
        part.theta = part.theta - self.lr * sums
        return {}

    def shown(self, part: TableParameters) -> dict[str, Any]:
        return {"theta": part.theta}


@op("another.step", asked="`fall`", releases=Release.PARAMETERS, returns={"theta": Numbers(("theta",))})
def step_of_shard(table: LocalTable, view: str, encoding: str, theta: List, lr: NotNegative, rows: List) -> Values:
    """Parameters after a shard's own step from those that it was sent."""
    return {"theta": theta - lr * sealed(table, view, encoding).open().transposed_times(rows)}


@dataclass
class Averages:
    """Shards step by themselves, and the coordinator takes the mean of their parameters."""

    model: FederatedModel

    @property
    def parts(self) -> dict[str, TableParameters]:
        return dict(self.model.shared)

    def step(self, updates: Any, rows: RowGradients | None) -> dict[str, Facts]:
        model, lou = self.model, self.model.lou
        asked = lou.ask(
            "another.step", model.together, encoding=model.encoding.id,
            by_alias={
                alias: {"theta": self.parts[alias].theta, "lr": updates[alias].lr * lou.shards(alias)}
                for alias in model.together
            },
            by_shard=lambda alias, shard: {} if rows is None else rows.sent(lou, alias, shard),
        )  # fmt: skip
        replies = asked.read()
        for alias in model.together:
            self.parts[alias].theta = np.mean([each["theta"] for each in replies[alias]], axis=0)
        return {alias: {} for alias in model.together}


@solver
class Fall(OwnSolver):
    """Steps along the mean gradient over all joined rows."""

    name: ClassVar[str] = "fall"
    lr: float = setting(default=LR, kind=RATE, help="learning rate")
    averages: bool = setting(default=False, kind=SWITCH, help="shards step by themselves")

    def descend(
        self, model: FederatedModel, loss: JoinedLoss, rounds: int, tol: float, report: Callable[[Round], bool]
    ) -> tuple[Array, bool]:
        if self.averages:
            model.over = Averages(model)
        intercept, value = loss.best_constant(), 0.0
        model.predict(intercept)
        loss.evaluate()
        for number in range(1, rounds + 1):
            intercept = intercept - self.lr * loss.write_gradient()
            rows = RowGradients(model.loj.scatter(GRADIENT, model.tables))
            found = model.step(dict.fromkeys(model.tables, Step(self.lr)), rows, model.instead(model.lou.client))
            model.set_scores(found.predictions, intercept)
            value = loss.evaluate()
            if report(Round(number, value, value, intercept, False)):
                break
        return intercept, False


# A statistic, with its op.


@op("another.times", asked="`most_joined`", releases=Release.COUNTS, returns={"most": OfNoCell(Plain(int, 0))})
def times(table: LocalTable, view: str) -> Values:
    """How often the row that is joined most often is joined."""
    return {"most": int(table.view(view).counts.max(initial=0))}


def most_joined(relation: tp.Relation) -> dict[str, int]:
    """By table, how often its most frequent row is joined."""
    asked = relation.client.ask("another.times", {alias: {} for alias in relation.client.tables})
    return {alias: max(each["most"] for each in replies) for alias, replies in asked.read().items()}


# A step of a pipeline, with what parties do for it.


class Cubed(NumberFunction, frozen=True, tag="cubed"):
    """The third power."""

    def values(self, values: Array) -> Array:
        return values**3


@dataclass(frozen=True)
class Cube(PrepStep):
    """Numbers to the third power."""

    advice: ClassVar[str] = ""

    def declare(self, column: Any, draft: Draft) -> None:
        draft.apply(column, lambda: Cubed(column.name))


# A kind of database.


@database("another", is_file=True)
def opened(address: Address) -> Folder:
    """A folder of Parquet files."""
    return Folder(address.party, address.path, "parquet")


def main(federation: str, folder: str) -> dict[str, Any]:
    """What an analyst does with all of this."""
    fed = tp.Federation.load(federation, verbose=False)
    sql = "SELECT v.x, p.age, v.score FROM visits v JOIN people p ON v.person = p.id"
    relation = fed.sql(sql, label="score")
    squares = SquaresRegressor(solver="lbfgs", rounds=40, tol=1e-14, l2=0.0).fit(relation)
    squares.save(f"{folder}/squares")
    label, matrix = relation.label(), relation.matrix().times(np.eye(2))
    pooled = np.column_stack([matrix**2, np.ones(len(label))])
    best = pooled @ np.linalg.lstsq(pooled, label, rcond=None)[0]
    falls = {
        averages: tp.LinearRegression(solver=Fall(averages=averages), rounds=ROUNDS, l2=0.0)
        for averages in (False, True)
    }
    found = {averages: model.fit(relation).predict(relation) for averages, model in falls.items()}
    falls[True].save(f"{folder}/fall")
    by_hand = np.zeros(3)
    by_hand[2] = label.mean()
    columns = np.column_stack([matrix, np.ones(len(label))])
    for _ in range(ROUNDS):
        by_hand -= LR * columns.T @ (columns @ by_hand - label) / len(label)
    cubed = fed.sql(sql, label="score", prep=tp.prep.Pipeline([Cube(), tp.prep.Standardize()]))
    cubes = tp.LinearRegression(l2=0.0).fit(cubed)
    cubes.save(f"{folder}/cubes")
    third = np.column_stack([cubed.matrix().times(np.eye(2)), np.ones(len(label))])
    fitted = {"squares": (squares, relation), "fall": (falls[True], relation), "cubes": (cubes, cubed)}
    back = {name: tp.load(f"{folder}/{name}", fed) for name in fitted}
    return {
        "squares": float(np.abs(squares.predict(relation) - best).max()),
        "solver": float(np.abs(found[False] - columns @ by_hand).max()),
        "holder": float(np.abs(found[False] - found[True]).max()),
        "cubes": float(np.abs(cubes.predict(cubed) - third @ np.linalg.lstsq(third, label, rcond=None)[0]).max()),
        "skewed": float(np.abs(third[:, :2].mean(axis=0)).max()),
        "loaded": [
            float(np.abs(back[name].predict(rows) - model.predict(rows)).max())
            for name, (model, rows) in fitted.items()
        ],
        "settings": {name: str(model.get_params()["solver"]) for name, model in back.items()},
        "most": most_joined(relation),
        "joined": len(relation),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
