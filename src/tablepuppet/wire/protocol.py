"""Requests and replies as messages that travel, in the words of one version of the protocol.

A party and its caller must speak the same version. Whatever the version, a message is a list that begins with its
number, and an error is [number, class, text]: so both ends can say which of them is older.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from tablepuppet import errors
from tablepuppet.errors import PartyError, PrivacyError, TablePuppetError, plain_text
from tablepuppet.party.openings import StaleNonceError
from tablepuppet.party.request import UNDECLARED, Declared, Reply, Request, Step, Verb
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.plan import Scan
from tablepuppet.versions import PROTOCOL

VERSION = PROTOCOL
MOST_NAME = 4096  # letters of a table's or column's name, or its type


def request_message(request: Request) -> Any:
    """A request as plain values and arrays."""
    steps = [[step.op, step.table, step.arguments] for step in request.steps]
    return [VERSION, request.verb, request.session, request.sequence, request.arguments, steps]


class VersionError(PartyError):
    """Party and caller speak different versions of the protocol; ``callers`` is that of the caller."""

    def __init__(self, party: str, partys: int, callers: int):
        older, upgrades = ("party", "its operator") if partys < callers else ("caller", "the caller")
        super().__init__(
            f"party {party!r} speaks version {partys} of the protocol, its caller version {callers}: the {older} is "
            f"too old, and {upgrades} must upgrade tablepuppet (tablepuppet --version prints both numbers)"
        )
        self.callers = callers


def read_version(message: Any, party: str) -> None:
    """VersionError unless a request to the party is one of this version; PartyError if it has none."""
    found = message[0] if isinstance(message, list) and message else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise PartyError(f"party {party!r}: the request has no version of the protocol that can be read")
    if found != VERSION:
        raise VersionError(party, VERSION, found)


SessionName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]*\Z", max_length=64)]
Nonce = Annotated[str, Meta(pattern=r"\A[0-9a-f]*\Z", max_length=64)]


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    verb: Verb
    session: SessionName
    sequence: int
    arguments: dict[str, Any]
    steps: list[tuple[str, str, dict[str, Any]]]


class _Opening(msgspec.Struct, forbid_unknown_fields=True):
    scans: tuple[Scan, ...]
    wire: Literal["float32", "float64"]
    nonces: Annotated[tuple[Nonce, ...], Meta(max_length=10_000)] = ()
    job: Declared = UNDECLARED
    nonce: str | None = None  # the party's own, in its journal; a caller's is not regarded


# msgspec learns of a type when it first meets it, and crashes where two threads let it do so at once. So it does here.
for _type in (_Head, _Opening, list[Shard], Nonce | None):
    msgspec.msgpack.Decoder(_type)


def read_request(message: Any, party: str) -> Request:
    """The request to a party in a message; PartyError if there is none."""
    read_version(message, party)
    try:
        head = msgspec.convert(message, _Head)
        arguments = head.arguments
        if head.verb == "open":
            opening = msgspec.convert(arguments, _Opening)
            arguments = {
                "scans": opening.scans, "wire": opening.wire, "nonces": opening.nonces, "nonce": opening.nonce,
                "job": opening.job,
            }  # fmt: skip
    except msgspec.ValidationError as error:
        raise PartyError(f"the request is not one of {', '.join(get_args(Verb))} as they should be: {error}") from None
    if head.verb in ("describe", "close") and (arguments or head.steps):
        raise PartyError(f"{head.verb} takes neither arguments nor steps")
    return Request(head.verb, head.session, arguments, tuple(Step(*step) for step in head.steps), head.sequence)


def reply_message(reply: Reply) -> Any:
    """A reply as plain values and arrays."""
    return [VERSION, "ok", reply]


def error_message(error: TablePuppetError) -> Any:
    """An error as plain values; its text holds no value of a row."""
    if isinstance(error, VersionError):
        return [error.callers, PartyError.__name__, str(error)]  # so that the caller can read it
    return [VERSION, type(error).__name__, str(error)]


class LostError(PartyError):
    """The party does not answer; the same request may fare better later."""


class UnfitError(PartyError):
    """A certificate does not fit; with another one the same request may be answered."""


class AwayError(LostError):
    """The party cannot reach its database; with it, the same request may be answered."""


class BusyError(LostError):
    """The party has as many sessions as it allows, no room, or is stopping; the request is sent again."""


_ERRORS: dict[str, type[TablePuppetError]] = {
    name: kind
    for name, kind in [
        *vars(errors).items(),
        *((each.__name__, each) for each in (BusyError, AwayError, StaleNonceError)),
    ]
    if isinstance(kind, type) and issubclass(kind, TablePuppetError)
}


def _published(described: dict[str, Any], party: str) -> list[Shard]:
    """The tables that a party publishes; PartyError for what no party of ours would."""
    try:
        shards = msgspec.convert(described["tables"], list[Shard])
    except PrivacyError as error:  # of what was spent of a budget
        raise PartyError(f"party {party!r} publishes a budget that cannot be: {error}; ask its operator") from None
    for shard in shards:
        texts = [shard.name, *shard.columns, *shard.columns.values(), *shard.public]
        named = all(text.isprintable() and 0 < len(text) <= MOST_NAME for text in texts)
        if not named or not 0 <= shard.rows < 2**31 or not 0 <= (shard.max_rounds or 0) < 2**31:
            raise PartyError(
                f"party {party!r} publishes a table with an impossible number of rows or replies, or a name that is "
                f"empty, too long or has characters that cannot be printed ({plain_text(shard.name, 40)}); ask its "
                "operator"
            )
    if not isinstance(described["key"], str):
        raise TypeError
    return shards


def read_reply(message: Any, request: Request, party: str) -> Reply:
    """The reply in a message; raises the error if it holds one."""
    strange = PartyError(f"party {party!r} answers in a way that cannot be understood; is it of the same version?")
    if not isinstance(message, list) or len(message) != 3 or not isinstance(message[0], int):
        raise strange
    if message[0] != VERSION:
        raise VersionError(party, message[0], VERSION)
    _, outcome, content = message
    if outcome != "ok":
        words = plain_text(str(content)) if isinstance(content, str) else ""
        raise _ERRORS.get(str(outcome), PartyError)(words if party in words else f"party {party!r}: {words}")
    parts = len(request.steps) + (request.verb != "run")
    if not isinstance(content, list) or len(content) != parts or not all(isinstance(part, dict) for part in content):
        raise strange
    try:
        if request.verb == "describe":
            nonce = msgspec.convert(content[0].get("nonce"), Nonce | None)
            return [content[0] | {"tables": _published(content[0], party), "nonce": nonce}]
        return content
    except (msgspec.ValidationError, TypeError, LookupError):
        raise strange from None
