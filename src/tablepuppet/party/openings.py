"""Nonces and session names, each of which a party accepts once: no two sessions can blind keys in the same way.

A party sends a nonce with its catalog and gets it back with `open`, together with those of the other parties; the keys
of digests are derived from all of them. A party accepts its own nonce once, only from the caller that it sent it to,
and not together with another nonce of its own, which it recognises by a tag. So nobody can have the keys of two queries
blinded in the same way, even if other parties help.

Everything is in memory, and limited in size: after a restart a party knows no nonce, so none is accepted twice.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
import time
from collections.abc import Collection

from tablepuppet.errors import PrivacyError
from tablepuppet.party.grant import refusal

RECENT = 86400.0  # seconds for which a nonce may be used
MOST_NONCES = 256  # that a caller holds; with one more the oldest is forgotten
MOST_NAMES = 10_000  # of sessions that are remembered, by caller
_START = 32  # digits of a nonce before its tag, which is as long
Names = dict[bytes, float]  # what is remembered, and when it began


class StaleNonceError(PrivacyError):
    """A nonce, or the name of a session, is not accepted again, as after a restart, or where an `open` failed.

    With another name and the nonce of a new catalog the relation can be opened.
    """


class Openings:
    """Nonces that callers hold, and names of their sessions. For many threads."""

    def __init__(self, party: str):
        self._party, self._secret = party, secrets.token_bytes(32)
        self._nonces: dict[str, Names] = {}
        self._names: dict[str, Names] = {}
        self._unanswered: dict[tuple[str, str], list[bytes]] = {}  # nonces of openings, until they are settled
        self._lock = threading.Lock()

    def issue(self, caller: str) -> str:
        """A nonce for one `open` of this caller."""
        start = secrets.token_hex(_START // 2)
        nonce = start + self._tag(start)
        with self._lock:
            _add(self._nonces.setdefault(caller, {}), _mark(nonce), MOST_NONCES)
        return nonce

    def check(self, caller: str, session: str, nonces: Collection[str], *, blinds: bool) -> None:
        """Raise unless the caller may open a session of this name; one that ``blinds`` keys needs an own nonce."""
        with self._lock:
            self._check(caller, session, nonces, blinds=blinds)

    def use(self, caller: str, session: str, nonces: Collection[str], *, blinds: bool, again: bool) -> None:
        """Check, and remember that name and nonce are used up; a session that comes ``again`` has used them."""
        with self._lock:
            if not again:
                self._check(caller, session, nonces, blinds=blinds)
            held = self._nonces.get(caller, {})
            taken = [mark for mark in map(_mark, nonces) if held.pop(mark, None) is not None]
            _add(self._names.setdefault(caller, {}), _mark(session), MOST_NAMES)
            if not again:
                self._unanswered[caller, session] = taken

    def settle(self, caller: str, session: str) -> None:
        """An opening was answered, or ended for good: its name and nonce stay used up."""
        with self._lock:
            self._unanswered.pop((caller, session), None)

    def give_back(self, caller: str, session: str) -> None:
        """Let an opening come again that used up name and nonce, and that the machine had no room to answer.

        Nothing is given back of a name that was used before: then this opening has used up nothing.
        """
        with self._lock:
            taken = self._unanswered.pop((caller, session), None)
            if taken is None:
                return
            self._names.get(caller, {}).pop(_mark(session), None)
            for mark in taken:
                _add(self._nonces.setdefault(caller, {}), mark, MOST_NONCES)

    def _check(self, caller: str, session: str, nonces: Collection[str], *, blinds: bool) -> None:
        if _mark(session) in self._names.get(caller, {}):
            raise StaleNonceError(
                f"party {self._party!r}: a session opens once, and this name was used: the opening before did not end. "
                "Run it again; if it ends so again, its operator's log has the reason, such as a full disk",
                rule="nonce",
            )
        held, oldest = self._nonces.get(caller, {}), time.monotonic() - RECENT
        own = [nonce for nonce in nonces if hmac.compare_digest(nonce[_START:], self._tag(nonce[:_START]))]
        if blinds and not (len(own) == 1 and held.get(_mark(own[0]), -math.inf) > oldest):
            reason = (
                "join keys are blinded under one nonce of this party, which it gives with its catalog for one use; "
                "what came is used up, too old, or from before the party was started; run the query again"
            )
            raise StaleNonceError(str(refusal(self._party, "nonce", reason)), rule="nonce")

    def _tag(self, start: str) -> str:
        return hmac.digest(self._secret, start.encode(), "sha256").hex()[:_START]


def _mark(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def _add(names: Names, mark: bytes, most: int) -> None:
    names.pop(mark, None)  # it is the newest now
    names[mark] = time.monotonic()
    while len(names) > most:
        del names[next(iter(names))]
