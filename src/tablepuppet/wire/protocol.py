"""Requests and replies as messages that travel, in the words of one version of the protocol."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from tablepuppet import errors
from tablepuppet.errors import PartyError, TablePuppetError
from tablepuppet.party.request import Reply, Request, Step, Verb
from tablepuppet.sql.catalog import Shard
from tablepuppet.sql.plan import Scan

VERSION = 1


def request_message(request: Request) -> Any:
    """A request as plain values and arrays."""
    steps = [[step.op, step.table, step.arguments] for step in request.steps]
    return [VERSION, request.verb, request.session, request.sequence, request.arguments, steps]


def read_version(message: Any) -> None:
    """PartyError unless the message is one of this version."""
    found = message[0] if isinstance(message, list) and message else None
    if found != VERSION:
        told = f"version {found}" if isinstance(found, int) else "no version that can be read"
        raise PartyError(
            f"the request has {told} of the protocol, this party speaks version {VERSION}; "
            "install the same version of tablepuppet on both sides"
        )


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    verb: Verb
    session: str
    sequence: int
    arguments: dict[str, Any]
    steps: list[tuple[str, str, dict[str, Any]]]


class _Opening(msgspec.Struct, forbid_unknown_fields=True):
    scans: tuple[Scan, ...]
    wire: Literal["float32", "float64"]
    nonce: str | None = None  # the party's own, in its journal; a caller's is not regarded


# msgspec learns of a type when it first meets it, and crashes where two threads let it do so at once. So it does here.
for _type in (_Head, _Opening, list[Shard]):
    msgspec.msgpack.Decoder(_type)


def read_request(message: Any) -> Request:
    """The request that a message tells; PartyError if it tells none."""
    read_version(message)
    try:
        head = msgspec.convert(message, _Head)
        arguments = head.arguments
        if head.verb == "open":
            opening = msgspec.convert(arguments, _Opening)
            arguments = {"scans": opening.scans, "wire": opening.wire, "nonce": opening.nonce}
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
    return [VERSION, type(error).__name__, str(error)]


class LostError(PartyError):
    """The party does not answer; the same request may fare better later."""


class BusyError(LostError):
    """The party has as many sessions as it allows, or is stopping; try again."""


_ERRORS: dict[str, type[TablePuppetError]] = {
    name: kind
    for name, kind in [*vars(errors).items(), ("BusyError", BusyError)]
    if isinstance(kind, type) and issubclass(kind, TablePuppetError)
}


def read_reply(message: Any, request: Request, party: str) -> Reply:
    """The reply that a message tells; raises the error that it tells."""
    strange = PartyError(f"party {party!r} answers in a way that cannot be understood; is it of the same version?")
    if not isinstance(message, list) or len(message) != 3 or message[0] != VERSION:
        raise strange
    _, outcome, told = message
    if outcome != "ok":
        raise _ERRORS.get(str(outcome), PartyError)(str(told))
    try:
        if request.verb == "describe":
            return [told[0] | {"tables": msgspec.convert(told[0]["tables"], list[Shard])}]
        return list(told)
    except (msgspec.ValidationError, TypeError, LookupError):
        raise strange from None
