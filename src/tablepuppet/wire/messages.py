"""What travels between coordinator and party, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

Verb = Literal["describe", "open", "run", "close"]


@dataclass(frozen=True)
class Request:
    """One call of a party. ``arguments`` are plain values and NumPy arrays, never code."""

    verb: Verb
    session: str = ""
    op: str = ""
    table: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


def size_of(header: tuple[str, ...], values: Mapping[str, Any]) -> int:
    """Bytes of a message: its arrays as they are, the rest as a msgpack header."""
    arrays = sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
    plain = {
        name: (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }
    return arrays + len(msgspec.msgpack.encode((header, plain)))
