"""The encoded rows of a relation that an op works on, as ``encode.build`` stored them at the party."""

from __future__ import annotations

from tablepuppet.errors import PartyError
from tablepuppet.party.local_table import LocalTable
from tablepuppet.prep.encode import EncodedShard
from tablepuppet.prep.encoded_table import EncodedTable


def encoded(table: LocalTable, view: str, encoding: str) -> EncodedTable:
    """The encoded rows of a relation."""
    return _encoded(table, view, encoding).data


def encoded_for_noise(table: LocalTable, view: str, encoding: str) -> EncodedTable:
    """The same for what leaves with noise: each row once, null records all zeros; refused by what was asked before."""
    found = _encoded(table, view, encoding)
    table.rows_once(view)
    if not found.private:
        raise table.grant.refusal("require_dp", "its rows were not encoded for noise; fit the model again")
    return found.data


def _encoded(table: LocalTable, view: str, encoding: str) -> EncodedShard:
    found = table.state.get(f"{view}/{encoding}")
    if not isinstance(found, EncodedShard) or found.view is not table.view(view):  # rows may be announced again
        raise PartyError(f"party {table.grant.party!r} has not encoded the rows of this relation; fit the model again")
    return found
