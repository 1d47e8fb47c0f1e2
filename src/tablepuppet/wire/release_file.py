"""The releases with noise of one session, in a file beside its journal; see `party/release_log.py`.

Each is on disk before it leaves, so that a party which is killed never draws noise a second time for what was sent. All
releases of one size take the same bytes: how full a journal is reveals nothing of rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.wire.codec import Encoded, encode


class Messages(Protocol):
    """Files of messages, such as a `Journal` keeps."""

    def messages(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Every whole message of a file, and where it stands."""
        ...

    def message_at(self, path: Path, place: int) -> Any:
        """The message that stands there."""
        ...

    def append(self, path: Path, encoded: Encoded, *, sync: bool = False) -> int:
        """Add a message; PartyError if that is impossible."""
        ...


class ReleaseFile:
    """Noisy values by the names of releases."""

    def __init__(self, path: Path, journal: Messages):
        self._path, self._journal = path, journal

    @cached_property
    def _places(self) -> dict[bytes, int]:
        """Where in the file each release stands that was there at first; no later one is asked for by its name."""
        if not self._path.exists():
            return {}
        return {bytes(message[0]): place for place, message in self._journal.messages(self._path)}

    def get(self, name: str) -> NDArray[np.float64] | None:
        """What a release was; None if there was none of that name."""
        place = self._places.get(_hash(name))
        if place is None:
            return None
        _, shape, values = self._journal.message_at(self._path, place)
        size = tuple(int(length) for length in shape)
        return np.array(values[: math.prod(size)], np.float64).reshape(size)

    def put(self, name: str, values: NDArray[np.float64], size: int) -> None:
        """Write a release down as if it had ``size`` numbers; PartyError if that is impossible."""
        padded = np.zeros(max(size, values.size))
        padded[: values.size] = values.ravel()
        message = [_hash(name), np.array(values.shape, np.int64), padded]
        self._journal.append(self._path, encode(message), sync=True)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
