"""The number of rounds of a fit and the size of its batches: from the settings, or chosen by "auto".

"auto" never needs more replies than the parties allow; a setting that could need more is refused before the first round
(allowance.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tablepuppet.learn.settings import Auto
from tablepuppet.learn.solve.allowance import Allowed, RoundAllowance
from tablepuppet.learn.solve.solvers import SGD, Solver

MOST_OF_A_ROUND = 4  # replies of a network's `lbfgs`: gradient, scores anew if a party was lost, a step, and back
BESIDE_A_ROUND = 2  # replies: the first predictions, and those of validation rows
FEWEST_ROWS = 64  # of a batch that "auto" makes, unless there are fewer


@dataclass(frozen=True)
class Usual:
    """What "auto" chooses if no party sets a limit."""

    batches: int  # of an epoch
    epochs: int
    long_epochs: int  # epochs if there are many joined rows
    steps: int  # smallest number of steps in total: with few epochs, batches are smaller
    many: int = 100_000  # joined rows

    def epochs_for(self, rows: int) -> int:
        """Epochs for this number of joined rows."""
        return self.epochs if rows <= self.many else self.long_epochs


@dataclass(frozen=True)
class Schedule:
    """The largest number of rounds, or epochs, and the joined rows of a batch."""

    rounds: int
    batch_size: int
    replies: int | None = None  # of a table, where a round may need more than usual
    tightest: Allowed | None = None  # the limit that allows the fewest rounds
    is_full: bool = False  # whether it allows no round more than these


def batches_of(rows: int, size: int) -> int:
    """Batches of an epoch."""
    return max(1, -(-rows // size))


def schedule_of(
    solver: Solver,
    rounds: int | Auto,
    rows: int,
    usual: Usual,
    usual_rounds: int,
    allowed: Callable[[int], RoundAllowance],
) -> Schedule:
    """The schedule for ``rows`` joined rows; ``allowed(batches)`` is what parties allow with this number of batches."""
    settings: dict[str, object] = {"solver": solver.name, "rounds": rounds}
    if isinstance(solver, SGD):
        settings["batch_size"] = solver.batch_size
        return epochs_that_fit(rows, rounds, solver.batch_size, usual, allowed, settings)
    allowance = allowed(1)
    planned = _within(usual_rounds, allowance) if isinstance(rounds, str) else rounds
    allowance.check(planned, settings, "" if solver.sums_shards else "lower inner_rounds")
    most, left = allowance.most_rounds(), allowance.left()
    if most is None or left is None:
        return Schedule(planned, rows)
    replies = max(2 * max(most, planned), min(MOST_OF_A_ROUND, left - BESIDE_A_ROUND))
    return Schedule(planned, rows, replies, allowance.tightest(), _is_full(planned, rounds, allowance))


def _within(usual: int, allowance: RoundAllowance) -> int:
    """The usual number of rounds, or fewer if parties allow fewer; at least one, which may then be refused."""
    most = allowance.most_rounds()
    return usual if most is None else max(1, min(usual, most))


def _is_full(planned: int, rounds: int | Auto, allowance: RoundAllowance) -> bool:
    """Whether parties allow no round more than planned; "auto" leaves some replies for what follows."""
    tightest, most = allowance.tightest(), allowance.most_rounds()
    if tightest is None or most is None:
        return False
    return planned >= (most if isinstance(rounds, str) else tightest.most_rounds())


def epochs_that_fit(
    rows: int, rounds: int | Auto, batch_size: int | Auto, usual: Usual, allowed: Callable[[int], RoundAllowance],
    settings: dict[str, object],
) -> Schedule:  # fmt: skip
    """Epochs and batch size of `sgd`; ``allowed(batches)`` is what parties allow with this number of batches."""
    size = _size(rows, rounds, usual, allowed) if isinstance(batch_size, str) else batch_size
    batches = batches_of(rows, size)
    allowance = allowed(batches)
    epochs_enough = min(usual.epochs_for(rows), max(10, math.ceil(2 * usual.steps / batches)))
    epochs = _within(epochs_enough, allowance) if isinstance(rounds, str) else rounds
    allowance.check(epochs, settings, f"make batch_size larger than {size:,}")
    is_full = _is_full(epochs, rounds, allowance)
    return Schedule(epochs, size, tightest=allowance.tightest(), is_full=is_full)


def _size(rows: int, rounds: int | Auto, usual: Usual, allowed: Callable[[int], RoundAllowance]) -> int:
    """The rows of a batch: larger batches if parties allow few replies."""
    epochs = usual.epochs_for(rows) if isinstance(rounds, str) else rounds
    batches = min(max(usual.batches, math.ceil(usual.steps / epochs)), max(1, rows // FEWEST_ROWS))
    while batches > 1:
        most = allowed(batches).most_rounds()
        if most is None or most >= epochs:
            break
        batches -= 1
    return batches_of(rows, batches)
