"""Ops: everything that a party computes for a coordinator, each with its releases.

An op is a function over a `LocalTable` (local_table.py) with named arguments; arguments and results are plain values
and NumPy arrays. It declares its releases; the service checks them. An op is in the same file as the coordinator's half
of its algorithm.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Concatenate, ParamSpec

import numpy as np
from msgspec import Struct

from tablepuppet.errors import PartyError
from tablepuppet.party.arguments import Parameters
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Returns

log = logging.getLogger("tablepuppet.party")
Values = dict[str, Any]  # plain values and NumPy arrays by name
Declared = ParamSpec("Declared")  # what an op declares of itself
Function = Callable[..., Values]
SECURE = "secure"  # the argument that asks for a masked reply
RECONSTRUCTIBLE = Release.PREDICTIONS | Release.GRADIENT_SUMS | Release.PARAMETERS
"""Releases that allow reconstruction of rows after enough chosen queries: ``max_prediction_rounds`` counts them.

Embeddings are counted by row (`LocalTable.count_embeddings`)."""
MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What is raised where values do not fit each other, the rows or a model; want of memory or time is no such error."""


@dataclass(frozen=True)
class Op:
    """A registered op. What it declares is here, and nowhere else: `op` takes the same."""

    function: Function
    name: str
    _: KW_ONLY
    asked: str  # when a coordinator asks for it: the docs list that
    releases: Release
    # What each value of its reply is: the coordinator uses no other.
    returns: Returns | None = None
    # The arguments that name the outputs it works on; an op without any works on every feature.
    columns: tuple[str, ...] = ()
    # The arguments that name columns of the table itself, selected or not, if it works on such.
    fields: tuple[str, ...] = ()
    # A use of which those outputs must have at least one; None: what the releases are allowed for.
    use: Use | None = None
    # A private op adds noise to everything it releases, and charges for it before it reads a row, with
    # `LocalTable.noisy`. It is total: it is refused because of its arguments alone, or returns a release in which only
    # noisy values depend on rows. If names of arguments are here, the op is private when all of them are given; the
    # guard checks this before it runs.
    private: bool | tuple[str, ...] = False
    # Works on the caller's parts of saved models and needs no table; what it releases of the part named by its argument
    # ``part`` is checked against the policy of the tables that the part was learned from.
    on_shelf: bool = False
    # All values of its reply, if a coordinator needs no more of them than their sums over shards.
    summed: tuple[str, ...] = ()
    # The argument that names the party to which predictions made with the table's features will go.
    receiver: str = ""
    # The argument with vectors that the caller may choose at will, if it answers products with such: the table's policy
    # must allow them (``matrix``), and their columns are counted instead of replies.
    directions: str = ""

    def is_private(self, arguments: Mapping[str, Any]) -> bool:
        """Whether everything it releases has noise, with these arguments."""
        if isinstance(self.private, bool):
            return self.private
        given = [arguments.get(name) for name in self.private]  # anything else is refused by its type
        return all(value is True or isinstance(value, Mapping | Struct) for value in given)

    @cached_property
    def is_round(self) -> bool:
        """Whether ``max_prediction_rounds`` counts it; of an op with directions, columns are counted instead."""
        return bool(self.releases & RECONSTRUCTIBLE) and not self.directions

    def vectors(self, arguments: Mapping[str, Any]) -> int | None:
        """How many vectors the caller has chosen, which are the outputs of an op that no model belongs to."""
        given = arguments.get(self.directions)
        if isinstance(given, np.ndarray):
            return 1 if given.ndim == 1 else int(given.shape[1])
        return given if isinstance(given, int) else None

    def __call__(self, place: Any, arguments: Mapping[str, Any]) -> Values:
        """Run the op after checking that the arguments are those it takes.

        If arrays do not fit each other or the rows, the PartyError says only that.
        """
        read = self.parameters.read(arguments)
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                return self.function(place, **read)
        except MISFITS as error:
            log_misfit(f"op {self.name}", error)
            raise PartyError(
                f"op {self.name!r}: its arguments do not fit each other, the rows or the model ({type(error).__name__})"
            ) from None

    @cached_property
    def parameters(self) -> Parameters:
        """What the op takes."""
        return Parameters(self.name, self.function)


def log_misfit(where: str, error: Exception) -> None:
    """Tell the operator where in the code something did not fit; the error's text may hold values."""
    spot = traceback.extract_tb(error.__traceback__)[-1]
    log.error("%s: %s at %s:%s", where, type(error).__name__, spot.filename, spot.lineno)


REGISTRY: dict[str, Op] = {}


def _registering(
    make: Callable[Concatenate[Function, Declared], Op],
) -> Callable[Declared, Callable[[Function], Function]]:
    def op(*values: Declared.args, **named: Declared.kwargs) -> Callable[[Function], Function]:
        """Register a function as an op that releases only ``releases`` of ``columns``; see `Op`."""

        def register(function: Function) -> Function:
            made = make(function, *values, **named)
            assert made.name not in REGISTRY, f"two ops are called {made.name}"
            REGISTRY[made.name] = made
            return function

        return register

    return op


op = _registering(Op)


def find_op(name: str) -> Op:
    """The op of that name; PartyError if there is none."""
    if name not in REGISTRY:
        raise PartyError(f"there is no op {name!r}; is the party's version of tablepuppet the coordinator's?")
    return REGISTRY[name]
