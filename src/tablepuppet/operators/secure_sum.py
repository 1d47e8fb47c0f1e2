"""Secure sums at the coordinator: the shards of a table agree on a roster, and mask what is only added up.

The coordinator passes signed keys between shards (party/secure_table.py has the other half), adds masked words
(`LearningOverUnion.add`), and sees the sum over a table's shards only. A roster takes two trips; a third step needs no
reply and is sent with the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.privacy.secure_sum import FEWEST
from tablepuppet.sql.catalog import VerticalTable

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


def _check_places(client: Client, alias: str, parties: Sequence[str]) -> None:
    """PrivacyError if some shards of a table are in this process and others elsewhere: no authority vouches for all."""
    here = [party for party in parties if not client.engine.is_service(party)]
    if here and len(here) < len(parties):
        elsewhere = [party for party in parties if party not in here]
        raise PrivacyError(
            f"secure_sum: table {client.plan.tables[alias].name!r} has shards in this process ({', '.join(here)}) and "
            f"elsewhere ({', '.join(elsewhere)}). Parties elsewhere sum with those whose certificate they know, and a "
            "database in this process has none: let `tablepuppet party serve` publish it, or learn without secure_sum"
        )


def _check_stand_ins(client: Client, secured: set[str]) -> None:
    """Raise PrivacyError if lost replies shall be replaced, and no party that may be lost has a substitute."""
    mode = client.outbox.when_lost.stand_in
    elsewhere = set(filter(client.engine.is_service, client.plan.parties))
    if mode is not None and elsewhere and elsewhere <= secured:
        raise PrivacyError(
            f"on_party_lost={mode!r} cannot be kept with secure sums: {', '.join(sorted(elsewhere))} are part of one, "
            "and a sum without a party, beside one with it, would reveal what its shard holds. Use on_party_lost="
            '"wait" or "fail", or learn without secure_sum'
        )


def _exchange(client: Client, aliases: list[str]) -> None:
    if not aliases:
        return
    hellos = client.ask("secure.hello", {alias: {} for alias in aliases})
    keys = {
        alias: [(reply["certificates"], reply["public"], reply["signature"]) for reply in replies]
        for alias, replies in hellos.read().items()
        if alias in aliases
    }
    rosters = client.ask("secure.roster", {alias: {"hellos": each} for alias, each in keys.items()})
    replies = rosters.read()
    signed = {alias: [(reply["name"], reply["signature"]) for reply in replies[alias]] for alias in aliases}
    client.ask("secure.confirm", {alias: {"signatures": each} for alias, each in signed.items()})
