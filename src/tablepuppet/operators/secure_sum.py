"""The coordinator's half of secure sums: it passes signed keys between the shards of a table, and adds masked words.

It sees the sum over a table's shards and nothing of one of them. Two trips make a roster; a third step, which nobody
waits for, travels with what is asked next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tablepuppet.errors import PrivacyError
from tablepuppet.privacy.secure_sum import FEWEST, scale_bits
from tablepuppet.sql.catalog import VerticalTable

if TYPE_CHECKING:
    from tablepuppet.operators.client import Client

Bounds = Callable[[str], Mapping[str, float]]
"""By alias: about how large each value of a reply can be, from what the coordinator knows."""


@dataclass
class SecureTables:
    """The tables of a session whose shards have a roster."""

    parties: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by alias
    _asked: Counter[str] = field(default_factory=Counter)

    def wanted(self, alias: str, parties: tuple[str, ...], bounds: Bounds | None) -> dict[str, Any]:
        """What shards must be told to mask their next sums; nothing if the table has no roster."""
        if bounds is None or alias not in self.parties:
            return {}
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


def check_shards(table: VerticalTable, parties: Sequence[str]) -> None:
    """PrivacyError if the shards of a table that take part are too few for a secure sum.

    One shard alone adds nothing up: it is learned from by itself, unless its party demands otherwise.
    """
    demanding = [shard.party for shard in table.shards if shard.secure_sum and shard.party in parties]
    if len(parties) >= FEWEST or (len(parties) < 2 and not demanding):
        return
    found = f"rows of {len(parties)} shards in the relation ({', '.join(parties)})"
    if demanding:
        raise PrivacyError(
            f"party {demanding[0]!r}, table {table.name!r}: its policy lets sums over its rows leave only within a sum "
            f"over three or more shards, and the table has {found}. Add shards, or leave out its columns (policy rule "
            "secure_sum)",
            rule="secure_sum",
        )
    raise PrivacyError(
        f"secure_sum: table {table.name!r} has {found}, and in a sum of two each knows the other's part. It takes "
        f"{FEWEST} or more: add a shard, or learn without secure_sum"
    )


_WITHOUT = (
    "Its shard of {!r} is part of a secure sum: doing the round again without it would unmask what it holds, so the "
    "session ends. Start a new run (fed.sql) when it is back, or with another roster, without its shard; "
    'on_party_lost="wait" waits for a party that is away for a while'
)


def make_rosters(client: Client, aliases: Iterable[str]) -> list[str]:
    """Let the shards of these tables agree to mask their sums; the tables that have several shards.

    PrivacyError if one of them has fewer shards than a sum can hide.
    """
    parties = {alias: tuple(shard.party for shard in client.shards(alias)) for alias in aliases}
    for alias, names in parties.items():
        check_shards(client.plan.tables[alias], names)
    sharded = {alias: names for alias, names in parties.items() if len(names) > 1}
    for alias, names in sharded.items():
        _check_places(client, alias, names)
        if alias in client.secured.parties:
            client.secured.check(alias, names)
    _check_stand_ins(client, {name for names in sharded.values() for name in names})
    _exchange(client, [alias for alias in sharded if alias not in client.secured.parties])
    client.secured.parties |= sharded
    client.outbox.needed |= {name: _WITHOUT.format(alias) for alias, names in sharded.items() for name in names}
    return list(sharded)


def _check_places(client: Client, alias: str, parties: Sequence[str]) -> None:
    """PrivacyError if some shards of a table are in this process and others elsewhere: no authority vouches for all."""
    here = [party for party in parties if client.engine.local(party) is not None]
    if here and len(here) < len(parties):
        elsewhere = [party for party in parties if party not in here]
        raise PrivacyError(
            f"secure_sum: table {client.plan.tables[alias].name!r} has shards in this process ({', '.join(here)}) and "
            f"elsewhere ({', '.join(elsewhere)}). Parties elsewhere sum with those whose certificate they know, and a "
            "database in this process has none: let `tablepuppet party serve` publish it, or learn without secure_sum"
        )


def _check_stand_ins(client: Client, secured: set[str]) -> None:
    """PrivacyError if something shall stand in for lost parties, and nothing can for any that may be lost."""
    mode = client.outbox.when_lost.stand_in
    elsewhere = {party for party in client.plan.parties if client.engine.local(party) is None}
    if mode is not None and elsewhere and elsewhere <= secured:
        raise PrivacyError(
            f"on_party_lost={mode!r} cannot be kept with secure sums: {', '.join(sorted(elsewhere))} are part of one, "
            "and a sum without a party, beside one with it, would tell what its shard holds. Use on_party_lost="
            '"wait" or "fail", or learn without secure_sum'
        )


def _exchange(client: Client, aliases: list[str]) -> None:
    if not aliases:
        return
    hellos = client.ask("secure.hello", lambda alias, _: {} if alias in aliases else None)
    told = {
        alias: [(reply["certificates"], reply["public"], reply["signature"]) for reply in hellos[alias]]
        for alias in aliases
    }
    rosters = client.ask("secure.roster", lambda alias, _: {"hellos": told[alias]} if alias in told else None)
    signed = {alias: [(reply["name"], reply["signature"]) for reply in rosters[alias]] for alias in aliases}
    client.ask("secure.confirm", lambda alias, _: {"signatures": signed[alias]} if alias in signed else None)
