"""The ops of secure sums, and the one place where sums over rows are masked before they leave a party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tablepuppet.party.groups import published
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import SECURE, Op, Values, op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import Plain, Word
from tablepuppet.party.secure_table import Wanted
from tablepuppet.privacy.signed_keys import Hello


@op(
    "secure.hello",
    asked="`secure_sum`",
    releases=Release.COUNTS,
    returns={"certificates": Plain(bytes), "public": Plain(bytes), "signature": Plain(bytes)},
)
def hello(table: LocalTable, view: str) -> Values:
    """A key for the exchange with other shards, signed by this party."""
    own = table.secure.hello()
    return {"certificates": own.certificates, "public": own.public, "signature": own.signature}


@op("secure.roster", asked="`secure_sum`", releases=Release.COUNTS, returns={"signature": Plain(bytes), "name": Word()})
def roster(table: LocalTable, view: str, hellos: Sequence[tuple[bytes, bytes, bytes]]) -> Values:
    """Take the keys of all shards, if certificates and policy allow; the party's signature of this roster."""
    return {"signature": table.secure.propose([Hello(*each) for each in hellos]), "name": table.secure.name}


@op("secure.confirm", asked="`secure_sum`", releases=Release.COUNTS, returns={})
def confirm(table: LocalTable, view: str, signatures: Sequence[tuple[str, bytes]]) -> Values:
    """Mask from now on, if all shards have signed the same roster."""
    table.secure.confirm(dict(signatures))
    return {}


def answered(found: Op, table: LocalTable, arguments: Mapping[str, Any]) -> Values:
    """The reply to an op, masked if it asks for that; the guard has refused sums that must be masked and are not."""
    if SECURE not in arguments:
        return published(found, table, arguments)
    wanted = Wanted.read(found.name, found.summed, arguments[SECURE])
    if not table.view(str(arguments.get("view", ""))).counts.any():  # a shard that adds nothing hides nobody
        raise table.secure.refusal("none of its rows take part, so its peers' sum would be revealed; leave it out")
    table.secure.begin(wanted)
    values = published(found, table, {name: value for name, value in arguments.items() if name != SECURE})
    return table.secure.masked(found.name, wanted, values)
