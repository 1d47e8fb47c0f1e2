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
    parts = [(find_op(step.op).releases, (step.op, step.table), step.arguments) for step in request.steps]
    if request.verb != "run":
        release = Release.SCHEMA if request.verb == "describe" else Release.COUNTS
        parts.insert(0, (release, (request.verb, request.session), request.arguments))
    down = up = 0
    for number, ((release, header, arguments), values) in enumerate(zip(parts, reply, strict=True), start=1):
        messages, sent, received = int(number == len(parts)), size_of(header, arguments), size_of((), values)
        traffic.add(party, "down", release.label, sent, messages)
        traffic.add(party, "up", release.label, received, messages)
        down, up = down + sent, up + received
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
