"""The parameters of one table's model, and the memory of the solver that trains them.

The party holds them if the table has one shard, the coordinator if it has several; the class is the same. A solver's
memory is a separate object (`linear/ridge.py`, `network/lbfgs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from tablepuppet.arrays import Array
from tablepuppet.errors import PartyError
from tablepuppet.learn.specs import Spec
from tablepuppet.learn.tables.model import TableModel
from tablepuppet.party.local_table import LocalTable

Memory = TypeVar("Memory")


@runtime_checkable
class KnowsSize(Protocol):
    """A solver's memory that knows the usual size of predictions, from noisy values only."""

    def bound(self, theta: Array) -> float:
        """The clipping bound of noisy predictions."""
        ...


@dataclass
class TableParameters:
    """The parameters of one table's model; variables of this class are called ``part``."""

    model: TableModel
    theta: Array
    memory: Any = None  # of a solver
    velocity: Array | None = None  # of SGD
    kept: Array | None = None  # stored copy of theta

    def descend(self, sums: Array, lr: float, momentum: float, l2: float) -> None:
        """One step of stochastic gradient descent (Eq. 13)."""
        before = 0.0 if self.velocity is None else momentum * self.velocity
        self.velocity = before + sums + l2 * self.theta
        self.theta = self.theta - lr * self.velocity

    @property
    def square(self) -> float:
        """|theta|^2."""
        return float(np.vdot(self.theta, self.theta))

    def bound_of(self, theta: Array) -> float:
        """The clipping bound of noisy predictions with some parameters, if the caller gives none."""
        if not isinstance(self.memory, KnowsSize):
            raise PartyError("nothing is known of the size of predictions: say a bound")
        return self.memory.bound(theta)

    def remembered(self, kind: type[Memory]) -> Memory:
        """The memory of a solver; PartyError if another solver began the model."""
        if not isinstance(self.memory, kind):
            raise PartyError("this model was started by another solver; fit it again")
        return self.memory


def first_parameters(
    spec: Spec, seed: int, alias: str, numbers: int, width: int, *, zero: bool = False
) -> TableParameters:
    """The first parameters of a table; with ``zero``, predictions are zero, so the start reveals nothing.

    They do not depend on the rows.
    """
    model = spec.over(width)
    theta = model.start(seed, alias, numbers)
    return TableParameters(model, model.rescaled(theta, 0.0) if zero else theta)


def hold_parameters(table: LocalTable, model: str, part: TableParameters) -> None:
    """Store the party's parameters of a model; PrivacyError if the table may only be used in secure sums."""
    _check_alone(table)
    table.models[f"{model}/{table.snapshot.scan.alias}"] = part


def _check_alone(table: LocalTable) -> None:
    if table.must_mask:
        raise table.secure.refusal("what is learned from its rows leaves only within a sum over three or more shards")


def parameters_of(table: LocalTable, model: str) -> TableParameters:
    """The parameters of a model whose outputs are scores; PartyError if there are none.

    Outputs of others are embeddings, of which more is demanded before they are released (learn/split/ops.py).
    """
    part = held_parameters(table, model)
    if not isinstance(part.model.spec, Spec):
        raise PartyError(f"party {table.grant.party!r}: this model has embeddings, not scores")
    return part


def held_parameters(table: LocalTable, model: str) -> TableParameters:
    """The parameters of any model that the party holds; PartyError if there are none.

    PrivacyError if the table may only be used in secure sums: the parameters may have been created at another table,
    which could then release what was learned here.
    """
    _check_alone(table)
    part = table.models.get(f"{model}/{table.snapshot.scan.alias}")
    if not isinstance(part, TableParameters):
        scan = table.snapshot.scan
        raise PartyError(
            f"party {scan.party!r} has no part of this model for {scan.alias!r}: if another was saved over it, load it "
            "again, else fit it again"
        )
    return part


def noisy_parameters(table: LocalTable, model: str) -> TableParameters:
    """The same for noisy releases: PrivacyError unless the parameters come from noisy values only."""
    part = parameters_of(table, model)
    table.check_noisy()
    return part


@contextmanager
def unchanged_if_refused(part: TableParameters) -> Iterator[None]:
    """Undo changes if an op raises: after a restart, a party does not repeat a refused op."""
    held = [part] if part.memory is None else [part, part.memory]
    before = [dict(vars(each)) for each in held]
    try:
        yield
    except BaseException:
        for each, values in zip(held, before, strict=True):
            vars(each).update(values)
        raise


def parameters_for_predictions(table: LocalTable, model: str, width: int) -> TableParameters:
    """The party's parameters of a model, from its stored parts if the model was loaded."""
    alias = table.snapshot.scan.alias
    if f"{model}/{alias}" not in table.models and (kept := table.shelf.get(model, alias)):
        spec = kept.spec_of(Spec)
        if spec is None:
            raise PartyError(f"party {table.grant.party!r}: this model has embeddings, not scores")
        return TableParameters(spec.over(width), kept.theta)
    return parameters_of(table, model)
