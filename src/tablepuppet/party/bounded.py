"""Limits on what a party holds in memory for a caller: how many objects, and how many bytes.

A `MemoryAccount` adds up the bytes of one caller, over all its sessions. An object belongs to a session and is freed
with it.
"""

from __future__ import annotations

import threading
from collections import UserDict
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tablepuppet.errors import PartyError
from tablepuppet.party.origins import Origins

SMALL = 64  # bytes that a plain value is counted as
MEMORY_BYTES = "memory_bytes"  # the limit that runs out


class MemoryAccount:
    """The bytes that one caller holds at a party; ``most`` is the limit, None if there is none."""

    def __init__(self, party: str = "", most: int | None = None):
        self._party, self._most = party, most
        self.sizes: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()
        self.total = 0

    def check(self, more: int) -> None:
        """Raise PartyError if the caller may not hold this many more bytes."""
        if self._most is not None and self.total + more > self._most:
            raise PartyError(  # how much there is may depend on rows
                f"party {self._party!r}: this caller would hold more than the {self._most:,} bytes in memory that the "
                "party allows (limits.memory_bytes); del relations and models that you no longer use, select less, or "
                "ask the party's operator",
                limit=MEMORY_BYTES,
            )

    def put(self, key: tuple[Any, ...], size: int) -> None:
        """Hold something, or hold it in another size; PartyError if there is no room, and then nothing changes."""
        with self._lock:
            old = self.sizes.get(key, 0)
            if size > old:
                self.check(size - old)
            self.sizes[key] = size
            self.total += size - old

    def drop(self, key: tuple[Any, ...]) -> None:
        """Hold something no longer."""
        with self._lock:
            self.total -= self.sizes.pop(key, 0)


class Bounded(UserDict[str, Any]):
    """A mapping that refuses a new name once it has ``most``, and bytes once the account is full.

    ``what`` says in words what it holds, and where.

    >>> held = Bounded("relations", "views", 1)
    >>> held["a"] = 1
    >>> held["a"] = 2
    >>> held["b"] = 1
    Traceback (most recent call last):
        ...
    tablepuppet.errors.PartyError: relations: there are 1, as many as the party allows (limits.views); del the ...
    """

    def __init__(self, what: str = "", limit: str = "", most: int | None = None, account: MemoryAccount | None = None):
        super().__init__()
        self._what, self._limit, self._most, self._account = what, limit, most, account or MemoryAccount()
        self._used: set[str] = set()  # since they were last measured
        self.origins: dict[str, Origins] = {}  # of what it holds

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        self._used.add(name)
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        if self._most is not None and name not in self.data and len(self.data) >= self._most:
            raise PartyError(
                f"{self._what}: there are {self._most}, as many as the party allows (limits.{self._limit}); del the "
                "relation and all that came of it, then go on with a new one of fed.sql, or ask the party's operator",
                limit=self._limit,
            )
        self._account.put((id(self), name), size_of(value))
        self.data[name] = value

    def __delitem__(self, name: str) -> None:
        del self.data[name]
        self.origins.pop(name, None)
        self._account.drop((id(self), name))

    def measure(self) -> None:
        """Count objects again that were used since the last call. If there is no room for one, it is freed, and
        PartyError raised.
        """
        used, self._used = self._used, set()
        for name in used & self.data.keys():
            key, size = (id(self), name), size_of(self.data[name])
            if self._account.sizes.get(key) == size:
                continue
            try:
                self._account.put(key, size)
            except PartyError:
                del self[name]
                raise


class Owned(UserDict[str, Any]):
    """All objects of a caller, as one session sees them; those that the session creates are freed when it ends."""

    def __init__(self, held: Bounded, owners: dict[str, str], session: str):
        self._held, self._owners, self._session = held, owners, session
        self.data = held  # type: ignore[assignment] # any mapping will do
        self.origins = held.origins

    def __setitem__(self, name: str, value: Any) -> None:
        self.data[name] = value
        self._owners[name] = self._session

    def __delitem__(self, name: str) -> None:
        del self.data[name]
        self._owners.pop(name, None)

    def measure(self) -> None:
        """Count what was used since again; see `Bounded.measure`."""
        self._held.measure()

    def close(self) -> None:
        """Free what the session has created."""
        for name in [name for name, owner in list(self._owners.items()) if owner == self._session]:
            self.pop(name, None)


_OURS = __name__.partition(".")[0] + "."
Way = Literal["small", "array", "text", "list", "dict", "ours"]


def size_of(value: Any) -> int:
    """Bytes of a value and all that it holds; this runs at every step, and types of values repeat."""
    total, pending, seen = 0, [value], set[int]()
    while pending:
        each = pending.pop()
        way = _WAYS[type(each)]
        if way == "small":
            total += SMALL
            continue
        if id(each) in seen:
            continue
        seen.add(id(each))
        if way == "array":
            total += SMALL + each.nbytes
        elif way == "text":
            total += SMALL + len(each)
        elif way == "list":
            total += SMALL
            pending += each
        elif way == "dict":
            total += SMALL
            pending += each.keys()
            pending += each.values()
        elif not getattr(each, "counted_elsewhere", False):
            total += SMALL
            pending += vars(each).values()
    return total


class _Ways(dict[type, Way]):
    """How values of a type are counted."""

    def __missing__(self, kind: type) -> Way:
        self[kind] = way = _way(kind)
        return way


_WAYS = _Ways()


def _way(kind: type) -> Way:
    if issubclass(kind, np.ndarray | pa.Table | pa.ChunkedArray):
        return "array"
    if issubclass(kind, bytes | str):
        return "text"
    if issubclass(kind, list | tuple):
        return "list"
    if issubclass(kind, dict):
        return "dict"
    # of this package, so that all their parts are known: not, say, modules of torch
    return "ours" if kind.__module__.startswith(_OURS) and kind.__dictoffset__ != 0 else "small"
