"""Predictions that go home to a party: computed by the coordinator, written by the party beside its own keys.

The coordinator asks the receiver whether its operator named a place, and every other party with features whether its
policy lets predictions made with them go to the receiver. Then it sends a prediction for each base row of
the receiver's shard. The reply is the number of rows written: no key, no path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import ROWS, Plain, Returns, Word

MOST_NAME = 200  # characters of names, and of a class
MOST_CLASSES = 1000
Class = str | int | float | bool
Classes = Annotated[Sequence[Class], Meta(min_length=2, max_length=MOST_CLASSES)]


@op("deliver.begin", asked="`predict(rel, deliver_to=...)`", releases=Release.COUNTS, returns={"party": Word()})
def begin(table: LocalTable, view: str) -> Values:
    """The party's name, if its operator configured a target for predictions about the table's rows."""
    table.deliveries.check(table.grant.table)
    return {"party": table.grant.party}


@op("deliver.permit", asked="`predict(rel, deliver_to=...)`", releases=Release.COUNTS, receiver="receiver", returns={})
def permit(table: LocalTable, view: str, receiver: str) -> Values:
    """Returns nothing; the guard refuses it if predictions from the table's features may not go to the receiver."""
    return {}


WRITTEN: Returns = {"run": Word(r"[0-9a-f]{16}"), "written": Plain(int, 0, ROWS), "without": Plain(int, 0, 2**31)}


@op("deliver.write", asked="`predict(rel, deliver_to=...)`", releases=Release.COUNTS, returns=WRITTEN)
def write(table: LocalTable, view: str, run: str, values: NDArray[np.float64], classes: Classes | None) -> Values:
    """Write a prediction for each row of a relation: a number, or the probability of each of some ``classes``.

    What was written under the same ``run`` before is not written again.
    """
    rows = table.view(view)
    _check(table, run, values, classes, len(rows.row_ids))
    if not rows.is_each_once:
        raise PartyError(f"party {table.grant.party!r}: a row is listed twice, and can have one prediction only")
    if table.is_repeat:
        return {}
    own = rows.row_ids != table.snapshot.missing_row  # the missing row is none of the table's
    places = table.snapshot.place(rows.row_ids[own])
    name = table.deliveries.write(table.caller, run, table.snapshot, places, _columns(values[own], classes))
    return {"run": name, "written": len(places), "without": table.snapshot.own_rows - len(places)}


def _check(
    table: LocalTable, run: str, values: NDArray[np.float64], classes: Sequence[Class] | None, rows: int
) -> None:
    """Raise PartyError unless the arguments are predictions for this number of rows."""
    shape = (rows,) if classes is None else (rows, len(classes))
    known = classes is None or (
        len({type(each) for each in classes}) == 1
        and len({str(each).lower() for each in classes}) == len(classes)
        and all(len(str(each)) <= MOST_NAME and str(each).isprintable() for each in classes)
    )
    if len(run) > MOST_NAME or values.shape != shape or not known or not np.isfinite(values).all():
        raise PartyError(
            f"party {table.grant.party!r}: a delivery has a finite number for each of {rows:,} rows, or for each of "
            f"up to {MOST_CLASSES} classes whose names differ, are of one type and have up to {MOST_NAME} letters"
        )


def _columns(values: NDArray[np.float64], classes: Sequence[Class] | None) -> pa.Table:
    if classes is None:
        return pa.table({"prediction": pa.array(values, pa.float64())})
    chosen = pa.array(list(classes)).take(pa.array(values.argmax(axis=1)))
    each = {f"probability={name}": np.ascontiguousarray(values[:, place]) for place, name in enumerate(classes)}
    return pa.table({"prediction": chosen, **each})


@dataclass(frozen=True)
class Delivery:
    """A delivery that all parties have agreed to."""

    client: Client
    alias: str
    shard: ShardRows
    run: str

    @classmethod
    def asked(cls, client: Client, to: str, combine: Literal["mean"] | None, features: Iterable[str]) -> Delivery:
        """A delivery to a party, or to one of its tables, of a model that has ``features`` in these tables.

        Raises LearnError if it cannot be, PrivacyError where a party does not allow it.
        """
        if combine not in (None, "mean"):
            raise LearnError(f"combine={combine!r} must be 'mean' or None")
        alias, shard = find_receiver(client, to)
        counts, missing = client.tables[alias].counts[shard.slice], client.missing_row(alias, shard)
        several = int(np.count_nonzero(counts > 1)) - (missing is not None and bool(counts[missing] > 1))
        if several and combine is None:
            raise LearnError(
                f"{several:,} of the {len(shard.row_ids):,} rows of {alias!r} at party {shard.party!r} are joined "
                "several times, and each can be delivered one prediction: pass combine='mean' (`--combine mean` on the "
                "command line) to average them"
            )
        begun = client.ask("deliver.begin", lambda name, each: {} if name == alias and each is shard else None)
        permit = {"receiver": str(begun.read()[alias][0]["party"])}
        asked = set(features)
        permits = client.ask(
            "deliver.permit", lambda name, each: permit if name in asked and each.party != shard.party else None
        )
        permits.read()
        return cls(client, alias, shard, client.new_name())

    def send(self, values: NDArray[np.float64], classes: NDArray[Any] | None) -> dict[str, Any]:
        """Send predictions of joined rows, averaged per base row; return the receiver's reply."""
        counts = self.client.tables[self.alias].counts[self.shard.slice]
        sums = self.client.rows.sums(self.alias, values)[self.shard.slice]
        means = sums / (counts if values.ndim == 1 else counts[:, None])
        sent = {"run": self.run, "values": np.ascontiguousarray(means), "classes": _plain(classes)}
        written = self.client.ask(
            "deliver.write", lambda name, each: sent if name == self.alias and each is self.shard else None
        )
        [reply] = written.read()[self.alias]
        table = self.client.plan.tables[self.alias].name
        figures = {name: int(reply[name]) for name in ("written", "without")}
        return {"party": self.shard.party, "table": table, "run": str(reply["run"]), **figures}


def _plain(classes: NDArray[Any] | None) -> list[Class] | None:
    """Classes as they are sent: dates as text."""
    if classes is None:
        return None
    listed = classes.tolist()
    plain = all(isinstance(each, str | int) or (isinstance(each, float) and math.isfinite(each)) for each in listed)
    return listed if plain else [str(each) for each in listed]


def find_receiver(client: Client, to: str) -> tuple[str, ShardRows]:
    """The table use and shard that ``party``, ``party.table`` or ``party.alias`` means; LearnError unless it is one."""
    if not isinstance(to, str):
        raise LearnError("deliver_to names a party, such as deliver_to='store'")
    shards = [(alias, shard) for alias in client.plan.tables for shard in client.tables[alias].shards]
    wanted = to.lower()
    named = [(alias, shard) for alias, shard in shards if wanted in _spellings(client, alias, shard)]
    chosen = named or [(alias, shard) for alias, shard in shards if shard.party.lower() == wanted]
    if len(chosen) != 1:
        known = chosen or shards
        names = ", ".join(dict.fromkeys(f"{shard.party}.{alias}" for alias, shard in known))
        reason = "holds several tables of the query" if chosen else "holds no table of the query"
        raise LearnError(f"deliver_to: {to!r} {reason}; name one of {names}")
    if not len(chosen[0][1].row_ids):
        raise LearnError(f"deliver_to: no row of {to!r} takes part in the relation")
    return chosen[0]


def _spellings(client: Client, alias: str, shard: ShardRows) -> set[str]:
    """How one table use of a party may be named, in lower case."""
    table = client.plan.tables[alias].name
    return {f"{shard.party}.{alias}".lower(), f"{shard.party}.{table}".lower()}
