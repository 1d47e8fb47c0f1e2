"""What a party stores of saved models: its parameters, in files of its ``state_dir``, separate for each caller.

A part is written atomically, is on disk before the caller gets its reply, and never changes: a model that is saved
again gets a new part, and the old one is deleted when the caller confirms the new one. So if a process dies in between,
the caller's folder still names existing parts. A file contains no row.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PartyError
from tablepuppet.party.arguments import one_of
from tablepuppet.party.metrics import OTHER
from tablepuppet.party.origins import Origins, Reached
from tablepuppet.sql.plan import Scan
from tablepuppet.store.files import DamagedFileError, read_checked, sync_folder, write_checked

FOLDER = "models"
Family = TypeVar("Family", bound=msgspec.Struct)


class KeptCategories(msgspec.Struct, frozen=True):
    """The categories of one output of the scan: digests of 16 bytes in the order of codes."""

    output: str
    family: str
    data: bytes

    @property
    def digests(self) -> NDArray[np.uint8]:
        """The digests, (codes, 16)."""
        return np.frombuffer(self.data, np.uint8).reshape(-1, 16)


class KeptPart(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one table of a saved model."""

    model: str
    part: str
    scan: Scan  # the table use that it is for
    data: bytes  # float64
    shape: tuple[int, ...]
    spec: msgspec.Raw  # what the parameters are of, as learners say it
    origins: Origins  # all that it is computed from
    encoding: str = ""  # the secret that categories are blinded under
    categories: tuple[KeptCategories, ...] = ()
    salt: bytes  # without it a fingerprint would reveal whether a guess of the parameters is right

    @classmethod
    def of(cls, model: str, part: str, scan: Scan, theta: NDArray[np.float64], spec: msgspec.Struct) -> KeptPart:
        """A part to keep."""
        data, salt = np.ascontiguousarray(theta, np.float64).tobytes(), secrets.token_bytes(16)
        raw = msgspec.Raw(msgspec.msgpack.encode(spec))
        return cls(model=model, part=part, scan=scan, data=data, shape=theta.shape, spec=raw, origins=(), salt=salt)

    def spec_of(self, family: type[Family]) -> Family | None:
        """What the parameters are of, if it is a Struct of the family."""
        try:
            return cast(Family, msgspec.msgpack.decode(self.spec, type=one_of(family)))
        except msgspec.ValidationError:
            return None

    @property
    def theta(self) -> NDArray[np.float64]:
        """The parameters."""
        return np.frombuffer(self.data, np.float64).reshape(self.shape)


_PART = msgspec.msgpack.Decoder(KeptPart)


class Shelf:
    """The parts that one caller has at a party; ``folder`` is None where nothing outlives the process."""

    def __init__(self, party: str, folder: Path | None = None, most: int | None = None, most_bytes: int | None = None):
        self._party, self._folder, self._most, self._most_bytes = party, folder, most, most_bytes
        self._lock = threading.Lock()
        for draft in self._files("*/*.new"):  # of a process that died
            draft.unlink(missing_ok=True)

    @property
    def keeps(self) -> bool:
        """Whether parts can be kept here."""
        return self._folder is not None

    def watched(self, reached: Callable[[], Reached]) -> WatchedShelf:
        """The shelf for an op; ``reached`` says what it has got hold of."""
        return WatchedShelf(self, reached)

    def put(self, kept: KeptPart) -> str:
        """Store a part, unless it exists, and return its fingerprint. Raises PartyError if there is no room."""
        with self._lock:
            path = self._file(kept.model, kept.part, kept.scan.alias)
            if not path.exists():
                self._check_room(path.parent, file_name(kept.part), len(kept.data))
                self._write(path, kept)
            return self._read(path)[1]

    def get(self, part: str, alias: str) -> KeptPart | None:
        """The part for one table; None if there is none. PartyError if it is damaged."""
        path = next(self._files(f"*/{file_name(part)}.{file_name(alias)}.part"), None)
        return None if path is None else self._read(path)[0]

    def all(self, part: str) -> list[tuple[KeptPart, str]]:
        """The part for every table that it has one for, each with its fingerprint."""
        return [self._read(path) for path in self._files(f"*/{file_name(part)}.*.part")]

    def keep_only(self, model: str, part: str) -> None:
        """Delete all parts of a model except one; "": delete all."""
        with self._lock:
            for path in self._files(f"{file_name(model)}/*"):
                if path.name.partition(".")[0] != file_name(part):
                    path.unlink(missing_ok=True)
            if self._folder is not None:
                with suppress(OSError):  # it is not empty, or not there
                    (self._folder / file_name(model)).rmdir()

    def _files(self, pattern: str) -> Iterator[Path]:
        return iter(()) if self._folder is None else iter(sorted(self._folder.glob(pattern)))

    def _file(self, model: str, part: str, alias: str) -> Path:
        assert self._folder is not None, "who has no folder keeps nothing"
        return self._folder / file_name(model) / f"{file_name(part)}.{file_name(alias)}.part"

    def _check_room(self, model: Path, part: str, size: int) -> None:
        files = list(self._files("*/*.part"))
        known = {path.name.partition(".")[0] for path in files}
        replaces = any(path.parent == model for path in files)  # its old part stays until it settles
        if self._most is not None and part not in known and len(known) - replaces >= self._most:
            raise PartyError(
                f"party {self._party!r} keeps {len(known)} saved models for this caller, as many as it allows: remove "
                "one with tablepuppet.forget, save over one, or ask its operator to raise limits.max_models",
                limit="max_models",
            )
        held = sum(path.stat().st_size for path in files)
        if self._most_bytes is not None and held + size > self._most_bytes:
            raise PartyError(
                f"party {self._party!r} keeps {held:,} bytes of saved models for this caller, and {size:,} more would "
                f"exceed the {self._most_bytes:,} that it allows (limits.kept_bytes): remove a model with "
                "tablepuppet.forget, or ask its operator",
                limit="kept_bytes",
            )

    def _read(self, path: Path) -> tuple[KeptPart, str]:
        try:
            return _read_file(path)
        except (OSError, DamagedFileError) as error:
            raise PartyError(
                f"party {self._party!r} cannot read its part of this model: its file {path.name!r} is damaged, or "
                "another version of tablepuppet wrote it; its operator can restore state_dir, or fit and save the "
                "model again"
            ) from error

    def _write(self, path: Path, kept: KeptPart) -> None:
        content = msgspec.msgpack.encode(kept)
        try:
            for folder in (*path.parents[1:3][::-1], path.parent):  # parents=True would give those above another mode
                folder.mkdir(exist_ok=True, mode=0o700)
            write_checked(path, content)
            for folder in path.parents[1:3]:
                sync_folder(folder)
        except OSError as error:
            raise PartyError(
                f"party {self._party!r} cannot keep its part of the model ({error.strerror}); its operator must make "
                "room, then save again",
                limit="disk",
            ) from error


class WatchedShelf:
    """A shelf as an op sees it: the op has the origins of what it reads, and what it stores gets them."""

    def __init__(self, shelf: Shelf, reached: Callable[[], Reached]):
        self._shelf, self._reached = shelf, reached

    @property
    def keeps(self) -> bool:
        """Whether parts can be kept here."""
        return self._shelf.keeps

    def put(self, kept: KeptPart) -> str:
        """Store a part, unless it exists, and return its fingerprint; see `Shelf.put`."""
        return self._shelf.put(msgspec.structs.replace(kept, origins=self._reached().origins))

    def get(self, part: str, alias: str) -> KeptPart | None:
        """The part for one table; PrivacyError unless all that it comes from allows the op."""
        kept = self._shelf.get(part, alias)
        if kept is not None:
            self._reached().kept(kept.origins)
        return kept

    def all(self, part: str) -> list[tuple[KeptPart, str]]:
        """The part for every table that it has one for, each with its fingerprint; refused as by `get`."""
        found = self._shelf.all(part)
        for kept, _ in found:
            self._reached().kept(kept.origins)
        return found

    def keep_only(self, model: str, part: str) -> None:
        """Delete all parts of a model except one; "": delete all."""
        self._shelf.keep_only(model, part)


def _read_file(path: Path) -> tuple[KeptPart, str]:
    """A part and its fingerprint. Raises DamagedFileError, and OSError."""
    content = read_checked(path)
    try:
        return _PART.decode(content), hashlib.sha256(content).hexdigest()
    except msgspec.MsgspecError as error:  # of another version
        raise DamagedFileError(path) from error


def seal_parts(folder: Path) -> None:
    """Write parts of a version that put the bare digest before them as they are written now."""
    for path in folder.glob("*/*/*.part"):
        data = path.read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            write_checked(path, data[32:])


def all_kept(state_dir: Path, callers: Iterable[str]) -> list[tuple[str, KeptPart]]:
    """Every part that a party keeps, with its caller: "" for one that is not among those. Nothing is changed.

    Raises DamagedFileError.
    """
    names = {file_name(caller): caller for caller in callers}
    found = []
    for path in sorted((state_dir / FOLDER).glob("*/*/*.part")):
        with suppress(FileNotFoundError):  # removed just now
            found.append((names.get(path.parents[1].name, ""), _read_file(path)[0]))
    return found


class Shelves:
    """The shelves of all callers of one party."""

    def __init__(self, party: str, state_dir: Path | None, most: int | None = None, most_bytes: int | None = None):
        self._party, self._limits = party, (most, most_bytes)
        self._folder = None if state_dir is None else state_dir / FOLDER
        if self._folder is not None:
            close_folders(self._folder)
        self._known: dict[str, Shelf] = {}
        self._lock = threading.Lock()

    @property
    def keeps(self) -> bool:
        """Whether anything can be kept here."""
        return self._folder is not None

    def sizes(self, callers: Iterable[str]) -> list[tuple[tuple[str], float]]:
        """Bytes of each of these callers that has some; of all others as `OTHER`."""
        names = {file_name(caller): caller for caller in callers}
        found: Counter[str] = Counter()
        for path in () if self._folder is None else self._folder.glob("*/*/*.part"):
            with suppress(FileNotFoundError):  # removed just now
                found[names.get(path.parents[1].name, OTHER)] += path.stat().st_size
        return [((name,), size) for name, size in found.items()]

    def of(self, caller: str) -> Shelf:
        """The shelf of one caller; nobody else can reach it."""
        with self._lock:
            if caller not in self._known:
                folder = None if self._folder is None else self._folder / file_name(caller)
                self._known[caller] = Shelf(self._party, folder, *self._limits)
            return self._known[caller]


def close_folders(folder: Path) -> None:
    """Give only the owner access to a folder and its subfolders, whatever their mode was."""
    for each in (folder, *(path for path in folder.glob("**/") if not path.is_symlink())):
        with suppress(OSError):  # it is not there, or somebody else's
            if each.stat().st_mode & 0o077:
                each.chmod(0o700)


def file_name(name: str) -> str:
    """A name that a caller chose, as the name of a file: a hash, so that it cannot be a path."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]
