"""The number of rounds of a fit and the size of its batches: from the settings, or chosen by "auto".

Each party publishes a limit of replies per session and table, which earlier replies of the session count towards;
databases in the analyst's own process have none. "auto" never needs more replies than are allowed; a setting that could
need more is a PrivacyError before the first round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.settings import Auto
from tablepuppet.learn.solve.solvers import SGD, Solver
from tablepuppet.operators.client import Client
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.plan import Plan

RESERVE = 20  # replies that "auto" leaves for calls after the fit: evaluate, predict, coef_
RULE = "max_prediction_rounds"


@dataclass(frozen=True)
class Cost:
    """Replies of one table: once, and in every round."""

    once: int
    each: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.once + other.once, self.each + other.each)

    def times(self, rounds: int) -> int:
        """The number of replies in ``rounds`` rounds."""
        return self.once + self.each * rounds


@dataclass(frozen=True)
class Costs:
    """Replies of a table with one shard, and of each shard of a table with several."""

    alone: Cost
    together: Cost

    def of(self, shards: int) -> Cost:
        """Those of each shard of a table with this number of shards."""
        return self.alone if shards == 1 else self.together


VALIDATION = Costs(Cost(0, 1), Cost(0, 1))


@dataclass(frozen=True)
class Allowed:
    """The limit of one party for one table of a session, and the replies that a solver needs."""

    party: str
    table: str
    limit: int
    used: int
    cost: Cost

    @property
    def left(self) -> int:
        """Replies that are left."""
        return self.limit - self.used

    def most_rounds(self, reserve: int = 0) -> int:
        """How many rounds fit."""
        return max(0, (self.left - reserve - self.cost.once) // max(self.cost.each, 1))


class RoundAllowance:
    """The limits of all parties of some relations; ``asked`` are clients with the replies needed of their tables."""

    def __init__(self, asked: Iterable[tuple[Client, Iterable[str], Costs]]):
        self.tables = _by_table(each for client, aliases, costs in asked for each in _allowed(client, aliases, costs))

    @classmethod
    def of_plan(cls, plan: Plan, costs: Costs) -> RoundAllowance:
        """The limits for a new session."""
        made = cls([])
        made.tables = _by_table(
            ("", Allowed(shard.party, shard.name, limit, 0, costs.of(len(plan.tables[alias].shards))))
            for alias, shard, limit in _limited(plan)
        )
        return made

    def most_rounds(self) -> int | None:
        """The largest number of rounds for "auto"; None if there is no limit."""
        if not self.tables:
            return None
        some = min(table.most_rounds(RESERVE) for table in self.tables)
        return some or min(1, *(table.most_rounds() for table in self.tables))

    def tightest(self) -> Allowed | None:
        """The table that allows the fewest rounds; None if there is no limit."""
        return min(self.tables, key=lambda table: table.most_rounds(), default=None)

    def left(self) -> int | None:
        """The smallest number of remaining replies over parties; None if there is no limit."""
        return min((table.left for table in self.tables), default=None)

    def check(self, rounds: int, settings: Mapping[str, object], advice: str, setting: str = "rounds") -> None:
        """PrivacyError if so many rounds could need more replies than a party allows; ``setting`` is their name."""
        for table in self.tables:
            need = table.cost.times(rounds)
            if need > table.left:
                count = f"{rounds:,} {setting}"
                raise PrivacyError(_refusal(table, need, count, setting, settings, advice), rule=RULE)


def counts_replies(plan: Plan) -> bool:
    """Whether a party limits the replies that a session gets of a table with features."""
    return any(True for _ in _limited(plan))


def _limited(plan: Plan) -> Iterator[tuple[str, Shard, int]]:
    """The shards of tables with features whose replies are limited: (alias, shard, limit)."""
    for alias in dict.fromkeys(column.alias for column in plan.query.features):
        for shard in plan.tables[alias].shards:
            if shard.max_rounds is not None:
                yield alias, shard, shard.max_rounds


def _by_table(found: Iterable[tuple[str, Allowed]]) -> list[Allowed]:
    """The limits by session, party and table: a table that is joined twice has the costs of all its uses."""
    tables: dict[tuple[str, str, str], Allowed] = {}
    for session, each in found:
        key = (session, each.party, each.table.lower())
        tables[key] = replace(each, cost=each.cost + tables[key].cost) if key in tables else each
    return list(tables.values())


def _allowed(client: Client, aliases: Iterable[str], costs: Costs) -> Iterator[tuple[str, Allowed]]:
    """The session, and the limits of the tables that a client asks."""
    plan, replies = client.plan, client.outbox.replies
    for alias in aliases:
        shards = client.shards(alias)
        names = {shard.party: shard for shard in plan.tables[alias].shards}
        for party in (shard.party for shard in shards):
            limit, table = names[party].max_rounds, names[party].name
            if limit is None:
                continue
            uses = [scan.alias for scan in plan.of_party(party) if scan.table.lower() == table.lower()]
            used = sum(replies[party, each] for each in uses)
            yield client.session, Allowed(party, table, limit, used, costs.of(len(shards)))


def _refusal(table: Allowed, need: int, count: str, setting: str, settings: Mapping[str, object], advice: str) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    used = f", of which {table.used:,} are used" if table.used else ""
    fits = table.most_rounds()
    ways = [f"set {setting}={fits} or less"] if fits else []
    ways += [advice] if advice else []
    ways += ["open the relation again, which begins a new session"] if table.used else []
    ways.append(f"ask the party's operator (policy rule {RULE})")
    return (
        f"party {table.party!r}, table {table.table!r}: a session gets {table.limit:,} replies{used}; {given} could "
        f"need {need:,} for {count}; {', or '.join(ways)}"
    )


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
