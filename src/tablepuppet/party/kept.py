"""What a party keeps of saved models: its parameters, in files of its ``state_dir``, each caller's apart.

A part is written whole or not at all, is on disk before the caller hears of it, and never changes: a model that is
saved again gets a new part, and the old one goes when the caller has settled on the new. So whoever dies in between,
the caller's folder names parts that are there. A file holds no row.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.privacy.private_file import sync_folder
from tablepuppet.sql.plan import Scan

_DIGEST = 32  # bytes of SHA-256, before the content


class KeptPart(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one table of a saved model."""

    model: str
    part: str
    scan: Scan  # what it was learned from: whether parameters may leave is decided by the policy of the day
    data: bytes  # float64
    shape: tuple[int, ...]
    sizes: tuple[int, ...]  # of the layers, if it is a network
    noisy: bool = False  # whether all that it is made of had noise
    salt: bytes  # without it a fingerprint would tell whether a guess of the parameters is right

    @classmethod
    def of(
        cls, model: str, part: str, scan: Scan, theta: NDArray[np.float64], sizes: tuple[int, ...], *, noisy: bool
    ) -> KeptPart:
        """A part to keep."""
        data, salt = np.ascontiguousarray(theta, np.float64).tobytes(), secrets.token_bytes(16)
        return cls(model=model, part=part, scan=scan, data=data, shape=theta.shape, sizes=sizes, noisy=noisy, salt=salt)

    @property
    def theta(self) -> NDArray[np.float64]:
        """The parameters."""
        return np.frombuffer(self.data, np.float64).reshape(self.shape)


_PART = msgspec.msgpack.Decoder(KeptPart)


class Shelf:
    """The parts that one caller has at a party; ``folder`` is None where nothing outlives the process."""

    def __init__(self, party: str, folder: Path | None = None, most: int | None = None):
        self._party, self._folder, self._most = party, folder, most
        self._lock = threading.Lock()
        for draft in self._files("*/*.new"):  # of a process that died
            draft.unlink(missing_ok=True)

    @property
    def keeps(self) -> bool:
        """Whether parts can be kept here."""
        return self._folder is not None

    def put(self, kept: KeptPart) -> str:
        """Keep a part; its fingerprint. One that is there stays as it is. PartyError if there is no room."""
        with self._lock:
            path = self._file(kept.model, kept.part, kept.scan.alias)
            if not path.exists():
                self._check_room(_hash(kept.part))
                self._write(path, kept)
            return self._read(path)[1]

    def get(self, part: str, alias: str) -> KeptPart | None:
        """The part for one table; None if there is none. PartyError if it is damaged."""
        path = next(self._files(f"*/{_hash(part)}.{_hash(alias)}.part"), None)
        return None if path is None else self._read(path)[0]

    def all(self, part: str) -> list[tuple[KeptPart, str]]:
        """The part for every table that it has one for, each with its fingerprint."""
        return [self._read(path) for path in self._files(f"*/{_hash(part)}.*.part")]

    def settle(self, model: str, part: str) -> None:
        """Forget all parts of a model but one; "" is none."""
        with self._lock:
            for path in self._files(f"{_hash(model)}/*"):
                if path.name.partition(".")[0] != _hash(part):
                    path.unlink(missing_ok=True)
            if self._folder is not None:
                with suppress(OSError):  # it is not empty, or not there
                    (self._folder / _hash(model)).rmdir()

    def _files(self, pattern: str) -> Iterator[Path]:
        return iter(()) if self._folder is None else iter(sorted(self._folder.glob(pattern)))

    def _file(self, model: str, part: str, alias: str) -> Path:
        assert self._folder is not None, "who has no folder keeps nothing"
        return self._folder / _hash(model) / f"{_hash(part)}.{_hash(alias)}.part"

    def _check_room(self, part: str) -> None:
        known = {path.name.partition(".")[0] for path in self._files("*/*.part")}
        if self._most is not None and part not in known and len(known) >= self._most:
            raise PartyError(
                f"party {self._party!r} keeps {len(known)} saved models for this caller, as many as it allows: remove "
                "one with tablepuppet.forget, save over one, or ask its operator to raise limits.max_models"
            )

    def _read(self, path: Path) -> tuple[KeptPart, str]:
        try:
            content = path.read_bytes()
            if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                return _PART.decode(content[_DIGEST:]), content[:_DIGEST].hex()
        except (OSError, msgspec.MsgspecError):
            pass
        raise PartyError(
            f"party {self._party!r} cannot read its part of this model: its file is damaged; its operator can restore "
            "state_dir, or fit and save the model again"
        ) from None

    def _write(self, path: Path, kept: KeptPart) -> None:
        content, draft = msgspec.msgpack.encode(kept), path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                stream.write(hashlib.sha256(content).digest() + content)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(path)
            for folder in (path.parent, *path.parents[1:3]):
                sync_folder(folder)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise PartyError(
                f"party {self._party!r} cannot keep its part of the model ({error.strerror}); its operator must make "
                "room, then save again"
            ) from error


class Shelves:
    """The shelves of all callers of one party."""

    def __init__(self, party: str, state_dir: Path | None, most: int | None):
        self._party, self._most = party, most
        self._folder = None if state_dir is None else state_dir / "models"
        self._known: dict[str, Shelf] = {}
        self._lock = threading.Lock()

    def of(self, caller: str) -> Shelf:
        """The shelf of one caller; nobody else can reach it."""
        with self._lock:
            if caller not in self._known:
                folder = None if self._folder is None else self._folder / _hash(caller)
                self._known[caller] = Shelf(self._party, folder, self._most)
            return self._known[caller]


def _hash(name: str) -> str:
    """A name of the caller's as one of a file."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]
