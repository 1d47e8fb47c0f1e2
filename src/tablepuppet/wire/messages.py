"""What a request and its reply are made of, and how large each part is.

A message has a part for every step it carries, and one for the verb unless that is `run`. The parts of a reply are
those of its request, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tablepuppet.party.ops import find_op
from tablepuppet.party.release import Release
from tablepuppet.party.request import Request
from tablepuppet.wire.traffic import Traffic


class CountedPart(msgspec.Struct, frozen=True):
    """One part of a request, for counting bytes: what its reply releases, its header, and its values."""

    release: Release
    header: tuple[str, ...]
    values: Mapping[str, Any]


def parts_of(request: Request) -> list[CountedPart]:
    """The parts of a request."""
    steps = [CountedPart(find_op(step.op).releases, (step.op, step.table), step.arguments) for step in request.steps]
    if request.verb == "run":
        return steps
    release = Release.SCHEMA if request.verb == "describe" else Release.COUNTS
    return [CountedPart(release, (request.verb, request.session), request.arguments), *steps]


class MessageSizes(NamedTuple):
    """Bytes of a request (down) and its reply (up)."""

    down: int
    up: int


NOTHING = MessageSizes(0, 0)


def names_of(request: Request) -> tuple[str, ...]:
    """The verb of a request unless that is `run`, and the names of its ops, each once."""
    verb = () if request.verb == "run" else (request.verb,)
    return tuple(dict.fromkeys((*verb, *(step.op for step in request.steps))))


def meter(traffic: Traffic, party: str, request: Request, reply: Sequence[Mapping[str, Any]]) -> MessageSizes:
    """Count a request and its reply, each part with its release; the message itself counts with the last part."""
    parts, down, up = parts_of(request), 0, 0
    for number, (part, values) in enumerate(zip(parts, reply, strict=True), start=1):
        messages = int(number == len(parts))
        sizes = MessageSizes(size_of(part.header, part.values), size_of((), values))
        traffic.add(party, "down", part.release.label, sizes.down, messages)
        traffic.add(party, "up", part.release.label, sizes.up, messages)
        down, up = down + sizes.down, up + sizes.up
    return MessageSizes(down, up)


def size_of(header: tuple[str, ...], values: Mapping[str, Any]) -> int:
    """Bytes of a part: its arrays as they are, the rest as a msgpack header."""
    arrays, plain = 0, {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays += value.nbytes
            plain[name] = (_name(value.dtype), value.shape)
        else:  # dataclasses as the plain values they travel as
            plain[name] = msgspec.to_builtins(value) if name in ("scans", "tables") else value
    return arrays + len(msgspec.msgpack.encode((header, plain), enc_hook=lambda _: None))


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)
