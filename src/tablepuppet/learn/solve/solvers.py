"""The solvers by name, each with its own settings: ``solver="admm"``, or ``solver=tp.ADMM(rho=0.5)`` to set some.

A solver object has only settings; the algorithms are in `linear/`, `network/` and this folder. An `OwnSolver` (own.py)
has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from tablepuppet.errors import ConfigError, LearnError
from tablepuppet.learn.settings import COUNT, RATE, SHARE, Auto, Configured, Kind, Setting, or_auto, setting
from tablepuppet.spelling import did_you_mean, hides

SolverName = str
"""``"auto"``, or the name of a solver."""


@hides("check_settings", "declared", "inner_trips", "of_file", "of_plain", "plain_settings", "sums_shards")
class Solver(Configured):
    """A solver, and how shards of one table agree in it."""

    name: ClassVar[str]

    inner_rounds: int | Auto = setting(
        default="auto",
        kind=or_auto(COUNT),
        help="of tables with several shards: `'auto'` adds up exact sums; a number is that many rounds of consensus, "
        "without Gram matrices. Networks by `admm` always agree by consensus (`'auto'`: 1)",
    )
    inner_rho: float | Auto = setting(default="auto", kind=or_auto(RATE), help="penalty of consensus")

    @property
    def sums_shards(self) -> bool:
        """Whether shards of a table release sums instead of using consensus."""
        return isinstance(self.inner_rounds, str)

    @property
    def inner_trips(self) -> int:
        """Trips per round for adding up or agreeing among shards."""
        return 1 if isinstance(self.inner_rounds, str) else self.inner_rounds

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Solver) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        changed = {name: value for name, value in vars(self).items() if value != self.declared[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


class LBFGS(Solver):
    """L-BFGS over the relation; of linear models with squared loss, preconditioned conjugate gradients."""

    name = "lbfgs"


class Stepping(Solver):
    """Solvers that can take noisy steps, for feature privacy: on samples of ``batch_size`` rows of a table."""

    batch_size: int | Auto = setting(
        default="auto",
        kind=or_auto(COUNT),
        help="joined rows of a batch of `sgd`; of noisy steps, rows of a table in a sample",
    )
    lr: float | Auto = setting(
        default="auto",
        kind=or_auto(RATE),
        help="learning rate of `sgd` and of noisy steps. A number gives plain steps; with linear models epoch e then "
        "has `lr / (1 + (e - 1) / 2)`",
    )
    momentum: float | Auto = setting(
        default="auto",
        kind=or_auto(SHARE),
        help="of the same steps; `'auto'`: 0.9, or 0 for linear models with a number for `lr` or with noise",
    )
    local_steps: int = setting(
        default=20,
        kind=COUNT,
        help="steps that a party takes by itself in a round: of networks by `admm`, and of noisy steps",
    )


class SGD(Stepping):
    """Mini-batches of joined rows; ``rounds`` are epochs."""

    name = "sgd"


class ADMM(Stepping):
    """The sharing form of ADMM; of networks, each party minimises by ``local_steps`` of its own."""

    name = "admm"

    rho: float | Auto = setting(default="auto", kind=or_auto(RATE), help="penalty of `admm`")


SOLVERS: dict[str, type[Solver]] = {made.name: made for made in (ADMM, SGD, LBFGS)}
Class = TypeVar("Class", bound=type[Solver])


def solver(made: Class) -> Class:
    """Register a solver under its ``name``, which no other one has; a module that is loaded again replaces its own."""
    known = SOLVERS.get(made.name, made)
    assert known.__module__ == made.__module__, f"{known.__module__} has a solver of the name {made.name}"
    SOLVERS[made.name] = made
    return made


SHORT_FORMS: Mapping[str, Setting] = {name: each for made in SOLVERS.values() for name, each in made.declared.items()}


def _write(value: SolverName | Solver) -> Any:
    return {"kind": value.name, **value.plain_settings()} if isinstance(value, Solver) else value


def _read(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    kind = str(value.get("kind"))
    if kind not in SOLVERS:
        raise ConfigError(f"solver kind {kind!r} is none of {', '.join(SOLVERS)}{did_you_mean(kind, SOLVERS)}")
    return SOLVERS[kind].of_plain({name: each for name, each in value.items() if name != "kind"})


SOLVER = Kind(
    f"one of {', '.join(('auto', *SOLVERS))}, or an object with its settings, such as tp.ADMM(rho=0.5)",
    lambda value: value == "auto" or value in SOLVERS if isinstance(value, str) else isinstance(value, Solver),
    _write,
    _read,
    "{name}={value!r} is not known; use {allowed}",
)


def chosen_solver(given: SolverName | Solver, name: str, beside: Mapping[str, Any]) -> Solver:
    """The solver of this name, with its given settings; settings of other solvers are ignored.

    Raises LearnError if a setting is given both in a solver object and beside it.
    """
    if isinstance(given, Solver) and given.name == name:
        if beside:
            each = next(iter(beside))
            raise LearnError(f"{each} stands beside solver={given!r}: write {type(given).__name__}({each}=...)")
        return given
    made = SOLVERS[name]
    return made(**{each: value for each, value in beside.items() if each in made.declared})
