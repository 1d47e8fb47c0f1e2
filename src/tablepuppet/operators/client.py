"""The client operator: every shard of every table computes the same op on its own rows (Table 4).

The coordinator's side of `run`. It asks each shard that has a row in the relation, and checks the reply against what
the op declares. Whatever is asked before replies are read shares a trip. Where shards have a roster (secure_sum.py),
sums are asked for as masked words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import mark
from tablepuppet.errors import PrivacyError
from tablepuppet.mapping.joined_rows import JoinedRows
from tablepuppet.mapping.table_mapping import ShardRows, TableRows
from tablepuppet.party.ops import REGISTRY, SECURE, Op, find_op
from tablepuppet.party.request import Step
from tablepuppet.party.returns import Asked, check_reply, masked
from tablepuppet.privacy.secure_sum import scale_bits
from tablepuppet.sql.plan import Plan
from tablepuppet.wire.engine import Engine
from tablepuppet.wire.outbox import Answer, Outbox

Replies = dict[str, list[Mapping[str, Any]]]
"""By alias, one reply per shard that takes part."""

Arguments = Mapping[str, Mapping[str, Any]] | Callable[[str, ShardRows], Mapping[str, Any] | None]
"""Of an op: by alias, the same for all shards of a table; or of each shard, None to leave it out."""

Bounds = Callable[[str], Mapping[str, float]]
"""By alias: about how large each value of a reply can be, from what the coordinator knows."""


@dataclass
class SecureTables:
    """The tables of a session whose shards have a roster."""

    parties: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by alias
    _asked: Counter[str] = field(default_factory=Counter)

    def wanted(self, alias: str, parties: tuple[str, ...], bounds: Bounds) -> dict[str, Any]:
        """What shards of a table with a roster must be sent to mask their next sums."""
        self.check(alias, parties)
        self._asked[alias] += 1
        bits = {name: scale_bits(bound, len(parties)) for name, bound in bounds(alias).items()}
        return {"secure": {"number": self._asked[alias], "bits": bits}}

    def check(self, alias: str, parties: tuple[str, ...]) -> None:
        """PrivacyError unless the roster of a table has exactly these parties."""
        if self.parties[alias] != parties:
            raise PrivacyError(
                f"table {alias!r}: this session sums over the shards of {', '.join(self.parties[alias])}, and the "
                f"relation has rows of {', '.join(parties)}; another roster is a new run: open it with fed.sql"
            )


class TableSpec(Protocol):
    """What the model of a table is (learn/tables/model.py)."""

    @property
    def outputs(self) -> int:
        """Numbers per row."""
        ...

    def theta_shape(self, width: int) -> tuple[int, ...] | None:
        """The shape of the parameters of a table with ``width`` encoded columns; None if it is not known here."""
        ...


@dataclass(frozen=True)
class Pending:
    """Replies that shards have been asked for. Only `read` makes a trip."""

    answers: Mapping[str, list[Answer]]

    def read(self) -> Replies:
        """The replies, by alias. If they have not arrived, one trip sends all queued steps, also those of others."""
        found: Replies = {}
        for alias, answers in self.answers.items():
            replies = found[alias] = []
            for answer in answers:
                replies.append(answer.read() if answer.values is None else answer.values)
        return found

    def missed(self, alias: str) -> list[bool]:
        """For each reply that was read, whether it is a substitute because the party is lost."""
        return list(map(_IS_MISSED, self.answers[alias]))


_IS_MISSED = attrgetter("missed")


@dataclass
class Client:
    """Talks to the shards of one relation within one session."""

    engine: Engine
    outbox: Outbox
    view: str
    plan: Plan
    rows: JoinedRows
    rows_read: Mapping[tuple[str, str], int]  # (party, alias) -> rows of the snapshot
    key: str  # a mark of the blinding key of all parties
    secured: SecureTables = field(default_factory=SecureTables)  # of the session
    encodings: set[str] = field(default_factory=set, init=False)  # that shards have built over these rows
    widths: dict[tuple[str, str], int] = field(default_factory=dict, init=False)  # by alias and encoding
    models: dict[tuple[str, str], tuple[str, TableSpec]] = field(
        default_factory=dict, init=False
    )  # by name and alias: the encoding, and what the table's model is
    tables: Mapping[str, TableRows] = field(init=False)  # the rows of each table that take part
    _shards: Mapping[str, list[ShardRows]] = field(init=False)  # with at least one of these rows
    _announced: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.tables = self.rows.tables
        self._shards = {
            alias: [shard for shard in table.shards if len(shard.row_ids)] for alias, table in self.tables.items()
        }

    @property
    def session(self) -> str:
        """The session at the parties."""
        return self.outbox.session

    def new_name(self) -> str:
        """A name that nobody else uses, the same if the run is repeated."""
        return self.outbox.new_name()

    def shards(self, alias: str) -> list[ShardRows]:
        """The shards of a table with at least one row in the relation."""
        return self._shards[alias]

    def owners(self, alias: str) -> str:
        """The parties that own a table's rows in the relation, as the end of an error: "(party 'store')"."""
        names = [repr(shard.party) for shard in self.shards(alias)]
        return f"({'party' if len(names) == 1 else 'parties'} {', '.join(names)})"

    def missing_row(self, alias: str, shard: ShardRows) -> int | None:
        """The place, among a shard's rows in the relation, of the missing row of an outer join; None: no row has it."""
        scan = next(scan for scan in self.plan.of_alias(alias) if scan.party == shard.party)
        if not scan.missing:
            return None
        found = np.flatnonzero(shard.row_ids == self.rows_read[shard.party, alias] - 1)
        return int(found[0]) if len(found) else None

    def ask(
        self,
        op: str,
        arguments: Arguments,
        instead: Callable[[str, ShardRows], Mapping[str, Any]] | None = None,
        bounds: Bounds | None = None,
        only: Collection[str] | None = None,
    ) -> Pending:
        """Run ``op`` at the shards of the tables that ``arguments`` names, or for whose shards it returns some.

        ``instead`` returns the substitute for the reply of a shard whose party is lost. ``bounds`` are for an op
        whose replies are only added up: where a table's shards have a roster, they mask them. ``only`` these tables
        are asked.
        """
        if not self._announced:
            self._announced = True
            self.ask("rows.use", self._rows)
        answers: dict[str, list[Answer]] = {}
        for alias, shards in self._shards.items():
            answers[alias] = queued = []
            if only is not None and alias not in only:
                continue
            asked = []
            for shard in shards:
                given = arguments.get(alias) if isinstance(arguments, Mapping) else arguments(alias, shard)
                if given is not None:
                    asked.append((shard, given))
            if not asked:
                continue
            found, masked = REGISTRY.get(op) or find_op(op), dict[str, Any]()
            if bounds is not None and alias in self.secured.parties:
                masked = self.secured.wanted(alias, tuple(shard.party for shard, _ in asked), bounds)
            for shard, given in asked:
                step = Step(op, alias, {"view": self.view, **given, **masked})
                stand_in = None if instead is None else partial(instead, alias, shard)
                queued.append(self.outbox.ask(shard.party, step, stand_in, self._check(found, step, shard)))
        return Pending(answers)

    def ask_table(self, op: str, alias: str, arguments: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Run ``op`` at every shard of one table, with the same arguments, and read the replies."""
        return self.ask(op, {alias: arguments}).read()[alias]

    def _check(self, op: Op, step: Step, shard: ShardRows) -> Callable[[Mapping[str, Any]], None]:
        """A function that checks the reply to a step against the request, the shard and the model."""
        arguments = step.arguments
        encoding, spec = self.models.get((arguments.get("model", ""), step.table), ("", None))
        encoding, spec = arguments.get("encoding", encoding), arguments.get("spec", spec)
        if "spec" in arguments and "model" in arguments:
            self.models[arguments["model"], step.table] = encoding, spec
        returns = op.returns
        if returns is not None and SECURE in arguments:
            returns = masked(returns, arguments[SECURE]["bits"])
        asked = Asked(
            arguments,
            rows=len(shard.row_ids),
            joined=self._joined[step.table, shard.party],
            width=self.widths.get((step.table, encoding)),
            outputs=op.vectors(arguments) if spec is None else spec.outputs,
            shape_of=None if spec is None else spec.theta_shape,
            type=self._types.get(str(arguments.get("column")), ""),
        )
        where = f"table {self.plan.tables[step.table].name!r}"
        return partial(check_reply, shard.party, where, step.op, returns, asked=asked)

    @cached_property
    def _joined(self) -> dict[tuple[str, str], int]:
        """By alias and party: the joined rows that a shard's rows are in."""
        return {
            (alias, shard.party): int(table.counts[shard.slice].sum())
            for alias, table in self.tables.items()
            for shard in table.shards
        }

    @cached_property
    def _types(self) -> dict[str, str]:
        """The types of selected columns."""
        return {column.name: column.type for column in self.plan.query.outputs}

    def _rows(self, alias: str, shard: ShardRows) -> Mapping[str, Any]:
        """Which rows of a shard take part and how often: sent once, before the first op."""
        counts = self.tables[alias].counts[shard.slice]
        read = self.rows_read[shard.party, alias]
        narrow = counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
        return {"chosen": _chosen(shard.row_ids, read), "counts": narrow}


def _chosen(row_ids: NDArray[np.int32], read: int) -> NDArray[np.integer] | None:
    """None for all rows in order; else a bit for each row that was read, or row ids where those take fewer bytes."""
    rising = bool(np.all(row_ids[1:] > row_ids[:-1]))
    if rising and len(row_ids) == read:
        return None
    if not rising or row_ids.nbytes <= -(-read // 8):
        return row_ids
    return np.packbits(mark(read, row_ids))
