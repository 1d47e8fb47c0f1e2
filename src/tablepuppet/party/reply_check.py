"""Checks replies against what ops declare (returns.py): the coordinator trusts no party.

Input: the reply to one step, the step, and what the coordinator knows of the shard that it asked. Output: nothing,
or one error that names the party, the table and the op.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.party.returns import (
    BITS,
    EACH,
    ROWS,
    Asked,
    Bytes,
    Codes,
    Digests,
    Exactly,
    NotFinite,
    Numbers,
    Resting,
    Returned,
    Returns,
    Words,
    Wrong,
)
from tablepuppet.sql.plan import Scan


def check_reply(party: str, where: str, op: str, returns: Returns | None, reply: Any, asked: Asked) -> None:
    """Raise PartyError, or LearnError where only numbers are not finite, unless a reply is one that was asked for."""
    name = ""
    try:
        if not isinstance(reply, Mapping):
            raise Wrong("is no mapping of names to values")
        for name, returned in declared(returns, reply).items():
            try:
                returned.check(reply[name], asked, reply)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # it cannot even be compared
                raise Wrong("does not fit the rest of it") from None
    except Wrong as wrong:
        what = f"{name!r} of its reply" if name else "its reply"
        raise PartyError(
            f"party {party!r}, {where}: op {op!r}: {what} {wrong}; the reply is not used: ask the party's "
            "operator, and whether it runs the same version of tablepuppet"
        ) from None
    except NotFinite:
        raise LearnError(
            f"party {party!r}, {where}: op {op!r}: {name!r} of its reply has numbers that are not finite, or that are "
            "huge; if features are NaN or infinite, filter them in WHERE; if learning diverges, take smaller steps; "
            "else ask its operator"
        ) from None


def masked(returns: Returns, bits: Any) -> Returns:
    """What an op returns where shards mask its sums; ``bits`` are the scales that were sent to them."""
    plain = {name: each.value if isinstance(each, Resting) else each for name, each in returns.items()}
    lengths = {name: each.lengths if isinstance(each, Numbers) else () for name, each in plain.items()}
    return {"bits": Exactly(bits), **{name: Words(length) for name, length in lengths.items()}}


def keys_returned(scan: Scan, reply: Any) -> Returns:
    """What ``keys.blind`` returns of a scan; for filters that every row passes it returns nothing."""
    found: dict[str, Returned] = {}
    for number in range(len(scan.keys)):
        found |= {f"digests{number}": Digests(ROWS), f"codes{number}": Codes(f"digests{number}", more=1)}
    found |= {f"holds{number}": Bytes((BITS,)) for number in range(len(scan.conditions))}
    names = [f"passes{number}" for number in range(len(scan.filters))]
    return found | {name: Bytes((BITS,)) for name in names if isinstance(reply, Mapping) and name in reply}


def declared(returns: Returns | None, reply: Mapping[str, Any]) -> Returns:
    """What each value of a reply must be; raises `Wrong` unless it has the names that it must have."""
    if returns is None:
        return {}
    if EACH in returns:
        return dict.fromkeys(reply, returns[EACH])
    if set(reply) != set(returns):
        raise Wrong(f"does not hold {', '.join(sorted(returns)) or 'nothing'}")
    return returns
