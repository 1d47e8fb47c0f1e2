"""Rosters: the coordinator passes signed keys between the shards of a table, which then mask their sums.

A roster takes two trips; a third step needs no reply and is sent with the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.operators.secure_sum import check_shards

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
    hellos = client.ask("secure.hello", lambda alias, _: {} if alias in aliases else None)
    keys = {
        alias: [(reply["certificates"], reply["public"], reply["signature"]) for reply in replies]
        for alias, replies in hellos.read().items()
        if alias in aliases
    }
    rosters = client.ask("secure.roster", lambda alias, _: {"hellos": keys[alias]} if alias in keys else None)
    replies = rosters.read()
    signed = {alias: [(reply["name"], reply["signature"]) for reply in replies[alias]] for alias in aliases}
    client.ask("secure.confirm", lambda alias, _: {"signatures": signed[alias]} if alias in signed else None)
