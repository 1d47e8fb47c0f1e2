"""A table's part of a model: its parameters, and what a solver remembers beside them.

A party holds the part of a table with one shard, the coordinator that of a table with several; it is the same class. A
solver's memory is an object of its own (`linear/ridge.py`, `network/lbfgs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError, PrivacyError
from tablepuppet.learn.tables.model import TableModel, model_of
from tablepuppet.party.kept import KeptPart
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.spec import Spec
from tablepuppet.prep.encoded_table import EncodedTable

Array = NDArray[np.float64]
Memory = TypeVar("Memory")


@runtime_checkable
class KnowsSize(Protocol):
    """A solver's memory that knows how large predictions usually are, by what had noise."""

    def bound(self, theta: Array) -> float:
        """What noisy predictions are cut to."""
        ...


@dataclass
class TableParameters:
    """The parameters of one table."""

    model: TableModel
    theta: Array
    noisy: bool = False  # whether all that they are made of had noise: then they may be told
    memory: Any = None  # of a solver
    velocity: Array | None = None  # of SGD
    kept: tuple[Array, bool] | None = None  # parameters that were remembered, and whether they were noisy

    def descend(self, sums: Array, lr: float, momentum: float, l2: float) -> None:
        """One step of stochastic gradient descent (Eq. 13)."""
        before = 0.0 if self.velocity is None else momentum * self.velocity
        self.velocity = before + sums + l2 * self.theta
        self.theta = self.theta - lr * self.velocity

    @property
    def square(self) -> float:
        """|theta|^2."""
        return float(np.vdot(self.theta, self.theta))

    @property
    def bound(self) -> float:
        """What noisy predictions are cut to where the caller does not say."""
        if not isinstance(self.memory, KnowsSize):
            raise PartyError("nothing is known of the size of predictions: say a bound")
        return self.memory.bound(self.theta)

    def remembered(self, kind: type[Memory]) -> Memory:
        """The memory of a solver; PartyError if another solver has begun the model."""
        if not isinstance(self.memory, kind):
            raise PartyError("this model was started by another solver; fit it again")
        return self.memory


def first_parameters(
    spec: Spec, seed: int, alias: str, numbers: int, width: int, *, zero: bool = False
) -> TableParameters:
    """The first parameters of a table; ``zero``: such as predict zero, so that nothing is told before the first step.

    None is a function of its rows.
    """
    model = model_of(spec, width)
    theta = model.start(seed, alias, numbers)
    return TableParameters(model, model.rescaled(theta, 0.0) if zero else theta, noisy=zero)


def hold_parameters(table: LocalTable, model: str, part: TableParameters) -> None:
    """Keep the party's part of a model; PrivacyError where a shard may not learn by itself."""
    _check_alone(table)
    table.models[f"{model}/{table.snapshot.scan.alias}"] = part


def _check_alone(table: LocalTable) -> None:
    if table.must_mask:
        raise table.secure.refusal("what is learned from its rows leaves only within a sum over three or more shards")


def parameters_of(table: LocalTable, model: str) -> TableParameters:
    """The party's part of a model that is being learned, or was; PartyError if it has none.

    PrivacyError where a shard may not learn by itself: the part may have been begun at another table, which would
    release what is learned here.
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
    """The same for what leaves with noise: PrivacyError unless all that the part is made of had noise."""
    part = parameters_of(table, model)
    check_noisy(table.grant.party, part)
    return part


@contextmanager
def unchanged_if_refused(part: TableParameters) -> Iterator[None]:
    """Let a part be as it was if an op ends early: a party that is started anew does not run what was refused."""
    held = [part] if part.memory is None else [part, part.memory]
    before = [dict(vars(each)) for each in held]
    try:
        yield
    except BaseException:
        for each, values in zip(held, before, strict=True):
            vars(each).update(values)
        raise


def check_noisy(party: str, part: TableParameters | KeptPart) -> None:
    """PrivacyError unless all that the part is made of had noise."""
    if not part.noisy:
        raise PrivacyError(f"party {party!r}: this model was not learned with noise", rule="require_dp")


def parameters_for_predictions(table: LocalTable, model: str, data: EncodedTable) -> TableParameters:
    """The party's part of a model, from the shelf if the model was loaded."""
    alias = table.snapshot.scan.alias
    if f"{model}/{alias}" not in table.models and (kept := table.shelf.get(model, alias)):
        return TableParameters(model_of(kept.spec, data.width), kept.theta, kept.noisy)
    return parameters_of(table, model)
