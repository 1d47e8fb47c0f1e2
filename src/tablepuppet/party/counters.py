"""How much of a party's limits each caller has used.

A filter together with digests reveals which rows pass it; a split reveals which rows are at some positions of the
source; a query that fails reveals that some row makes it fail. With many of these, a caller could find a value, or the
order of rows, by bisection. So the number of distinct ones is limited by caller and table. They are stored as hashes,
in a file of ``state_dir`` if there is one, so that a restart gives no new allowance. Rounds, and vectors that a caller
chose, are counted while their session is open.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.store.files import DamagedFileError, read_bare, read_facts, write_facts

FILE = "used.json"
_Used = dict[str, dict[str, dict[str, list[str]]]]  # kind -> caller -> table -> hashes


class Counters:
    """Distinct texts by kind, caller and table; rounds and columns by caller, session and table. For many threads.

    ``bare``: the file may be of a version that wrote no digest.
    """

    def __init__(self, state_dir: Path | None = None, *, bare: bool = False):
        self._file = None if state_dir is None else state_dir / FILE
        self._used = _read(self._file, bare=bare) if self._file else {}
        self._of_sessions: Counter[tuple[str, str, str, str]] = Counter()  # caller, session, table, kind
        self._lock = threading.Lock()

    @classmethod
    def seen(cls, state_dir: Path | None) -> Counters:
        """What was used as of now; what is used here is not written down."""
        found = cls(state_dir)
        found._file = None
        return found

    def use_texts(
        self, kind: str, caller: str, table: str, texts: Iterable[str], most: int | None, state: str = ""
    ) -> bool:
        """Remember texts; False, and nothing is remembered, if the caller would then have used more than ``most``.

        Those of another ``state`` of the table do not count any more, and are forgotten.
        """
        if most is None:
            return True
        with self._lock:
            known = [text for text in self._known(kind, caller, table) if text.startswith(state)]
            new = [text for each in dict.fromkeys(texts) if (text := state + _hash(each)) not in known]
            if len(known) + len(new) > most:
                return False
            if new:
                self._remember(kind, caller, table.lower(), [*known, *new])
            return True

    def used(self, kind: str, caller: str, table: str) -> int:
        """How many texts a caller has used."""
        with self._lock:
            return len(self._known(kind, caller, table))

    def has_more_than(self, other: Counters) -> bool:
        """Whether something was used here that is not known to the other."""
        return any(
            not set(texts) <= set(other._known(kind, caller, table))
            for kind, callers in self._used.items()
            for caller, tables in callers.items()
            for table, texts in tables.items()
        )

    def _known(self, kind: str, caller: str, table: str) -> list[str]:
        return self._used.get(kind, {}).get(caller, {}).get(table.lower(), [])

    def use(self, kind: str, caller: str, session: str, table: str, most: int | None, count: int = 1) -> bool:
        """Count rounds or columns; False, and nothing is counted, if a session would have more than ``most``."""
        if most is None:
            return True
        with self._lock:
            if self._of_sessions[caller, session, table.lower(), kind] + count > most:
                return False
            self._of_sessions[caller, session, table.lower(), kind] += count
            return True

    def forget_session(self, caller: str, session: str) -> None:
        """Free what is counted for a session that has ended."""
        with self._lock:
            for key in [key for key in self._of_sessions if key[:2] == (caller, session)]:
                del self._of_sessions[key]

    def write(self) -> None:
        """Write down what is known, whether or not there is a file; PartyError if that is impossible."""
        if self._file is not None:
            _write(self._file, self._used)

    def _remember(self, kind: str, caller: str, table: str, hashes: list[str]) -> None:
        """First in the file: what cannot be remembered is not allowed."""
        callers = self._used.get(kind, {})
        used = {**self._used, kind: {**callers, caller: {**callers.get(caller, {}), table: hashes}}}
        if self._file is not None:
            _write(self._file, used)
        self._used = used


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(file: Path, *, bare: bool) -> _Used:
    try:
        return msgspec.convert(read_facts(file)["used"], _Used)
    except FileNotFoundError:
        return {}
    except (OSError, DamagedFileError, LookupError, msgspec.ValidationError) as error:
        if bare:
            with suppress(OSError, msgspec.MsgspecError):
                return msgspec.json.decode(read_bare(file), type=_Used)
        raise _unreadable(file) from error


def _unreadable(file: Path) -> ConfigError:
    return ConfigError(
        f"{str(file)!r}, which counts what callers have used, is damaged or cannot be read: `tablepuppet party "
        "restore` brings it back from a backup"
    )


def _write(file: Path, used: _Used) -> None:
    """Replace the file; it is on disk before anything is answered."""
    try:
        write_facts(file, {"used": used})
    except OSError as error:
        raise PartyError(
            "the party cannot store what callers have used, so it refuses; its log informs the operator", limit="disk"
        ) from error
