"""The state folder of a party: what must outlive its process, for one process at a time.

In it are the ledger of privacy budgets, the secret that orders rows, that of the audit log and where the log ends, what
callers have used of their limits, parts of saved models, and the journals of open sessions. Only the party and its
operator read it. A party starts with a folder only if nothing in it is lost or damaged; `party check` asks the same
questions and changes nothing. A backup holds all but the journals: it is a secret too, as the secret of rows is in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party import approval, audit_chain, counters, delivery, kept, ledger
from tablepuppet.party.counters import Counters
from tablepuppet.party.ledger import Ledger, charges, copy_of_ledger
from tablepuppet.store.files import (
    DamagedFileError,
    read_bare,
    read_checked,
    read_private_file,
    sealed,
    sync_folder,
    unsealed,
    write_checked,
    write_new_file,
)

SECRET, SESSIONS = "row_secret", "sessions"
SECRET_BYTES = 32
_MANIFEST, _STAGED = "manifest.json", ".restoring-"
_FORMAT = 1
_TRIES = 20  # looks at a folder that another command uses for a moment


class State:
    """The state folder of a party that is served: made, locked and checked. `close` lets another process at it."""

    def __init__(self, folder: Path, party: str):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"state_dir: cannot make {str(folder)!r}: {error.strerror}") from error
        self._lock: int | None = _locked(folder)
        try:
            check_state(folder)
            for unfinished in folder.glob(f"{_STAGED}*"):  # a restore that was killed before it changed anything
                shutil.rmtree(unfinished, ignore_errors=True)
            if not (folder / SECRET).exists():
                Ledger(folder / ledger.FILE, party)  # first: a secret without a ledger means that one was lost
                Counters(folder).write()
                write_new_file(folder / SECRET, sealed(secrets.token_bytes(SECRET_BYTES)), _SECRET)
            elif _is_bare(folder):
                _seal(folder, party)
            self.row_secret = _read_secret(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the folder."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


_SECRET = "the secret order of rows"


def check_state(folder: Path) -> None:
    """Raise ConfigError if a party cannot start with a state folder that exists. Nothing is changed."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"state_dir: {str(folder)!r} is not a writable folder ({error.strerror}); make it first"
        ) from error
    check_ledger(folder)
    audit_chain.check_chain(folder)
    approval.check_files(folder)
    bare = _is_bare(folder)
    if (folder / SECRET).exists() and not bare:
        _read_secret(folder)
        if not (folder / counters.FILE).exists():
            raise ConfigError(
                f"{str(folder / counters.FILE)!r}, which counts what callers have used, is lost, though a party has "
                f"served with {str(folder)!r}: {RESTORE}"
            )
    Counters(folder, bare=bare)
    delivery.read_record(folder / delivery.RECORD, read_bare if bare else read_checked)
    for name in (SESSIONS, kept.FOLDER):
        if (folder / name).exists() and not (folder / name).is_dir():
            raise ConfigError(f"state_dir: {str(folder / name)!r} is in the way of a folder of the party; remove it")


def _read_secret(folder: Path) -> bytes:
    """The secret; ConfigError unless it is as it was written."""
    path = folder / SECRET
    try:
        found = unsealed(read_private_file(path, _SECRET), path)
    except DamagedFileError as error:
        raise ConfigError(f"{_SECRET} {str(path)!r} is damaged: {RESTORE}") from error
    if len(found) != SECRET_BYTES:
        raise ConfigError(f"{_SECRET} {str(path)!r} has {len(found)} bytes instead of {SECRET_BYTES}: {RESTORE}")
    return found


def _is_bare(folder: Path) -> bool:
    """Whether a folder is of a version that wrote no digests: its secret is bare bytes.

    No flipped bit makes such a secret of one with a digest. The folder is taken as it is, once: from then on, what has
    no digest is damaged.
    """
    path = folder / SECRET
    return path.exists() and len(read_private_file(path, _SECRET)) == SECRET_BYTES


def _seal(folder: Path, party: str) -> None:
    """Write digests into a folder that has none; the secret's last, as it says that all others are there."""
    try:
        Ledger(folder / ledger.FILE, party)
        Counters(folder, bare=True).write()
        if (folder / delivery.RECORD).exists():
            delivery.write_record(folder / delivery.RECORD, delivery.read_record(folder / delivery.RECORD, read_bare))
        kept.seal_parts(folder / kept.FOLDER)
        write_checked(folder / SECRET, read_private_file(folder / SECRET, _SECRET))
    except (OSError, PartyError) as error:
        raise ConfigError(f"state_dir: {str(folder)!r} cannot be written: {error}") from error


def check_ledger(folder: Path) -> bool:
    """Whether a state folder has a ledger; ConfigError if it was lost, or is damaged: budgets would start anew."""
    path = folder / ledger.FILE
    has_served = (folder / SECRET).exists()
    if not has_served and (not path.exists() or not path.stat().st_size):
        return False
    if not path.exists():
        raise ConfigError(f"ledger {str(path)!r} is lost, though a party has served with {str(folder)!r}: {_NO_LEDGER}")
    try:
        copy_of_ledger(path)
    except ConfigError as error:
        raise ConfigError(f"{error}: {_NO_LEDGER}") from error
    return True


RESTORE = "`tablepuppet party restore` brings it back from a backup"
_NO_LEDGER = (
    f"what was spent of privacy budgets is not known. {RESTORE}. Without one, take all budgets as spent: publish "
    f"tables with a budget no more. To begin as a new party, which forgets what was spent, move "
    f"{SECRET} and the ledger away"
)


def _locked(folder: Path) -> int:
    """A lock on a folder, which ends with the process. ConfigError if another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not left:
                os.close(handle)
                raise ConfigError(
                    f"state_dir: {str(folder)!r} is in use by another process, which would count budgets and limits "
                    "apart from this one: stop that party first, or name another folder"
                ) from error
            time.sleep(0.05)
        else:
            break
    return handle


def is_in_use(folder: Path) -> bool:
    """Whether a party is served with this folder now."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


class Manifest(msgspec.Struct, frozen=True):
    """What a backup holds: SHA-256 of every file, by its path in the state folder."""

    format: int
    party: str
    made: str  # UTC
    files: dict[str, str]


def write_backup(folder: Path, party: str, file: Path) -> Manifest:
    """Copy what a party must not lose into one file, whole or not at all; the party may be served meanwhile.

    The ledger is copied last: nothing in the backup was released without a charge that is in it.
    """
    check_state(folder)
    if not (folder / SECRET).exists():
        raise ConfigError(f"state_dir: no party has been served with {str(folder)!r}; there is nothing to back up")
    digests: dict[str, str] = {}
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as beside:
            draft = Path(beside) / file.name
            with open(os.open(draft, os.O_RDWR | os.O_CREAT, 0o600), "w+b") as stream:
                with tarfile.open(fileobj=stream, mode="w") as tape:
                    for path in _files(folder):
                        with suppress(FileNotFoundError):  # a model that was forgotten just now
                            name = str(path.relative_to(folder))
                            digests[name] = _add(tape, name, path.read_bytes())
                    digests[ledger.FILE] = _add(tape, ledger.FILE, copy_of_ledger(folder / ledger.FILE))
                    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
                    manifest = Manifest(_FORMAT, party, made, digests)
                    listed = msgspec.json.encode(manifest)
                    _add(tape, _MANIFEST, hashlib.sha256(listed).digest() + listed)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(file)
            sync_folder(file.parent)
    except OSError as error:
        raise ConfigError(f"cannot write the backup {str(file)!r}: {error.strerror}") from error
    return manifest


def _files(folder: Path) -> list[Path]:
    """What a backup holds beside the ledger; the secret of rows first."""
    chain = (audit_chain.SECRET, audit_chain.HEAD)
    jobs = (approval.ASKED, approval.DECIDED)
    named = [folder / name for name in (SECRET, *chain, *jobs, counters.FILE, delivery.RECORD)]
    return [path for path in (*named, *sorted((folder / kept.FOLDER).glob("*/*/*.part"))) if path.exists()]


def _add(tape: tarfile.TarFile, name: str, content: bytes) -> str:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    tape.addfile(entry, io.BytesIO(content))
    return hashlib.sha256(content).hexdigest()


def restore_backup(folder: Path, party: str, file: Path, *, older: bool = False) -> Manifest:
    """Put a backup into a state folder that no party uses; all of it was checked before anything is replaced.

    Refused where the folder's ledger has charges, or its counts uses of limits, that the backup does not have, unless
    ``older``: they would be forgotten. Models that are not in the backup stay.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _locked(folder)
    except OSError as error:
        raise ConfigError(f"state_dir: cannot use {str(folder)!r}: {error.strerror}") from error
    try:
        with _unpacked(folder, file) as (staged, manifest):
            if manifest.party != party:
                raise ConfigError(f"the backup {str(file)!r} is of party {manifest.party!r}, not of {party!r}")
            if not older:
                _check_newer(folder, staged, manifest)
            _put(staged, folder, manifest)
    except OSError as error:
        if isinstance(error, IsADirectoryError | FileExistsError):
            raise ConfigError(
                f"cannot restore into {str(folder)!r}: {str(error.filename2 or error.filename)!r} is in the way; move "
                "it away, then restore again"
            ) from error
        raise ConfigError(
            f"cannot restore into {str(folder)!r} ({error.strerror}); make room, then restore again"
        ) from error
    finally:
        os.close(lock)
    return manifest


@contextmanager
def _unpacked(folder: Path, file: Path) -> Iterator[tuple[Path, Manifest]]:
    """The files of a backup, beside those that they replace; ConfigError if one is not as it was written."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=_STAGED) as staged:
        place = Path(staged)
        try:
            with tarfile.open(file, "r:") as tape:
                tape.extractall(place, filter="data")
            listed = (place / _MANIFEST).read_bytes()
            if hashlib.sha256(listed[32:]).digest() != listed[:32]:
                raise tarfile.TarError("another digest")
            manifest = msgspec.json.decode(listed[32:], type=Manifest)
            (place / _MANIFEST).unlink()
            found = {str(path.relative_to(place)): path for path in place.glob("**/*") if path.is_file()}
            digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()}
        except (tarfile.TarError, msgspec.MsgspecError, FileNotFoundError, EOFError) as error:
            raise ConfigError(f"{str(file)!r} is no backup of a party, or is damaged: take another one") from error
        if manifest.format != _FORMAT:
            raise ConfigError(f"the backup {str(file)!r} was written by another version of tablepuppet: use that one")
        if digests != manifest.files or not {SECRET, ledger.FILE} <= set(digests):
            raise ConfigError(f"the backup {str(file)!r} is damaged: take another one; nothing was restored")
        for path in found.values():
            path.chmod(0o600)
            with path.open("rb") as written:
                os.fsync(written.fileno())
        check_state(place)
        yield place, manifest


def _check_newer(folder: Path, staged: Path, manifest: Manifest) -> None:
    """Refuse to forget what the backup does not know of."""
    forgotten = []
    try:
        mine = charges(copy_of_ledger(folder / ledger.FILE))
        known = charges(copy_of_ledger(staged / ledger.FILE))
        count = sum(max(0, times - known.get(key, 0)) for key, times in mine.items())
        if count:
            tables = ", ".join(sorted({repr(key[0]) for key, times in mine.items() if times > known.get(key, 0)}))
            forgotten.append(f"{count:,} charges of privacy budgets (of {tables}), which could then be spent again")
    except ConfigError:
        pass  # lost or damaged: that is why a backup is needed
    with suppress(ConfigError):
        if Counters(folder, bare=_is_bare(folder)).has_more_than(Counters(staged, bare=_is_bare(staged))):
            forgotten.append("uses of limits such as max_filters, which callers would have again")
    if forgotten:
        raise ConfigError(
            f"the backup of {manifest.made} UTC is older than {str(folder)!r}: restoring it would forget "
            f"{' and '.join(forgotten)}. What was released stays known. Take a newer backup; if there is none, "
            "`--older` restores this one, and budgets should be lowered by what was spent since"
        )


def _put(staged: Path, folder: Path, manifest: Manifest) -> None:
    """Replace files one by one, the ledger last: with a secret and no ledger, a party does not start."""
    for name in sorted(manifest.files, key=lambda name: (name == ledger.FILE, name != SECRET)):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if name == ledger.FILE:
            Path(f"{target}-journal").unlink(missing_ok=True)  # of the ledger that is replaced
        (staged / name).replace(target)
        sync_folder(target.parent)
