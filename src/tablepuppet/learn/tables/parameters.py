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
from tablepuppet.learn.tables.model import Bottom, Spec, TableModel, TableSpec, model_of
from tablepuppet.party.local_table import LocalTable

Memory = TypeVar("Memory")


@runtime_checkable
class KnowsSize(Protocol):
    """A solver's memory that knows the usual size of predictions, from noisy values only."""

    def bound(self, theta: Array) -> float:
        """The clipping bound of noisy predictions."""
        ...


@dataclass
class Adam:
    """The memory of Adam: running means of gradients and of their squares."""

    mean: Array
    square: Array
    steps: int = 0
    first: float = 0.9
    second: float = 0.999
    floor: float = 1e-8

    @classmethod
    def over(cls, size: int) -> Adam:
        """The memory before the first step."""
        return cls(np.zeros(size), np.zeros(size))

    def stepped(self, theta: Array, gradient: Array, lr: float, l2: float, trained: int) -> Array:
        """The parameters after a step; ``l2`` times them is added to the gradient of the ``trained`` ones.

        Buffers, behind them, have no gradient and stay.
        """
        self.steps += 1
        penalised = gradient[:trained] + l2 * theta[:trained]
        self.mean[:trained] += (1 - self.first) * (penalised - self.mean[:trained])
        self.square[:trained] += (1 - self.second) * (penalised**2 - self.square[:trained])
        rate = lr * np.sqrt(1 - self.second**self.steps) / (1 - self.first**self.steps)
        floor = self.floor * np.sqrt(1 - self.second**self.steps)
        moved = theta.copy()
        moved[:trained] -= rate * self.mean[:trained] / (np.sqrt(self.square[:trained]) + floor)
        return moved


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


def first_parameters(model: TableModel, seed: int, alias: str, numbers: int, *, zero: bool = False) -> TableParameters:
    """The first parameters of a table; with ``zero``, outputs are zero, so the start reveals nothing.

    They do not depend on the rows.
    """
    theta = model.start(seed, alias, numbers)
    return TableParameters(model, model.rescaled(theta, 0.0) if zero else theta)


def hold_parameters(table: LocalTable, model: str, part: TableParameters) -> None:
    """Store the party's parameters of a model; PrivacyError if the table may only be used in secure sums."""
    _check_alone(table)
    table.models[f"{model}/{table.snapshot.scan.alias}"] = part


def _check_alone(table: LocalTable) -> None:
    if table.must_mask:
        raise table.secure.refusal("what is learned from its rows leaves only within a sum over three or more shards")


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


def parameters_of(
    table: LocalTable, model: str, family: type[TableSpec] = Spec, width: int | None = None
) -> TableParameters:
    """The parameters of a model whose outputs are scores, or embeddings (`Bottom`), of which more is demanded.

    With ``width``, that of the table's encoded columns, those that the party has stored serve too, if the model was
    loaded. PartyError if there are none.
    """
    alias = table.snapshot.scan.alias
    is_kept = width is not None and f"{model}/{alias}" not in table.models
    if is_kept and (kept := table.shelf.get(model, alias)) is not None:
        spec = kept.spec_of(family)
        part = None if spec is None or width is None else TableParameters(model_of(spec, width, alias), kept.theta)
    else:
        part = held_parameters(table, model)
    if part is None or not isinstance(part.model.spec, family):
        has, needed = ("scores", "embeddings") if family is Bottom else ("embeddings", "scores")
        raise PartyError(f"party {table.grant.party!r}: this model has {has}, not {needed}")
    return part


def noisy_parameters(table: LocalTable, model: str, family: type[TableSpec] = Spec) -> TableParameters:
    """`parameters_of` for noisy releases: PrivacyError unless the parameters come from noisy values only."""
    part = parameters_of(table, model, family)
    table.check_noisy()
    return part


def shard_memory(table: LocalTable, name: str, kind: type[Memory]) -> Memory:
    """What a shard remembers of a model whose parameters the coordinator holds; PartyError if it has not begun it."""
    found = table.state.get(name)
    if not isinstance(found, kind):
        raise PartyError(f"party {table.grant.party!r} has not started this model; fit it again")
    return found


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
