"""What one request may use of a party's machine: seconds, memory, bytes of its reply.

The service sets what a request is allowed. Code that takes long calls `check_time` between its steps; code that creates
something large calls `check_memory` or `check_reply` before; `count_release` counts releases with noise; and a database
that works for a caller is interrupted when the time is over, or nobody waits for the reply any more. Errors name the
limit, never the amount that was needed: that may depend on rows. Outside of a request, and in the analyst's own
process, there are no limits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

import duckdb

from tablepuppet.errors import PartyError
from tablepuppet.party.bounded import MemoryAccount
from tablepuppet.party.policy import UNLIMITED, CallerLimits

WATCH = 0.5  # seconds after which it is looked again whether somebody waits for the reply


class AbandonedError(PartyError):
    """Nobody waits for the reply any more."""


class TooMuchError(PartyError):
    """What is read takes too much memory; the error itself reveals something about the rows."""


@dataclass
class Allowance:
    """What one request of a party may use, and has used."""

    party: str
    limits: CallerLimits = UNLIMITED
    account: MemoryAccount = field(default_factory=MemoryAccount)  # what the caller holds in memory
    is_abandoned: Callable[[], bool] | None = None  # whether nobody waits for the reply; None: somebody does
    releases: int = field(default=0, init=False)  # with noise, so far
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        """Seconds that are left."""
        most = self.limits.request_seconds
        return None if most is None else self.began + most - time.monotonic()

    def check(self) -> None:
        """PartyError if the time is up, or nobody waits for the reply."""
        most = self.limits.request_seconds
        if most is not None and time.monotonic() > self.began + most:
            raise self.too_long()
        if self.is_abandoned is not None and self.is_abandoned():
            raise AbandonedError(f"party {self.party!r}: the caller went away before the request was answered")

    def too_long(self) -> PartyError:
        """The error for a request that took too long."""
        return PartyError(
            f"party {self.party!r}: the request takes more than {self.limits.request_seconds:g} s, the limit of the "
            "party (limits.request_seconds); ask for less at once, or ask the party's operator",
            limit="request_seconds",
        )

    def too_much(self, table: str = "") -> TooMuchError:
        """The error for expressions that need too much memory."""
        where = f"table {table!r}" if table else "its database"
        return TooMuchError(
            f"party {self.party!r}: what is read of {where} takes more than {self.limits.expression_bytes:,} bytes, "
            "the limit of the party (limits.expression_bytes); select less, filter, or ask the party's operator",
            limit="expression_bytes",
        )


_CURRENT: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowed(allowance: Allowance) -> Iterator[None]:
    """Code inside this context has the allowance; an error after the end of its time says so."""
    token = _CURRENT.set(allowance)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Allowance | None:
    """The allowance of the request that is computed in this thread."""
    return _CURRENT.get()


def check_time() -> None:
    """PartyError if the time of the request is up, or nobody waits for its reply."""
    allowance = _CURRENT.get()
    if allowance is not None:
        allowance.check()


def check_memory(size: int) -> None:
    """Raise PartyError if the caller may not hold this many more bytes; call it before they are allocated."""
    allowance = _CURRENT.get()
    if allowance is not None:
        allowance.account.check(size)


def check_reply(size: int) -> None:
    """Raise PartyError if a reply of this many bytes may not be sent; call it before it is computed."""
    allowance = _CURRENT.get()
    most = None if allowance is None else allowance.limits.reply_bytes
    if allowance is not None and most is not None and size > most:
        raise PartyError(
            f"party {allowance.party!r}: the reply would have more than the {most:,} bytes that the party sends at "
            "once (limits.reply_bytes); ask for less, or ask the party's operator",
            limit="reply_bytes",
        )


def count_release() -> None:
    """Count a release with noise; PartyError if the request has had as many as it may."""
    allowance = _CURRENT.get()
    if allowance is None:
        return
    most = allowance.limits.releases_per_request
    if most is not None and allowance.releases >= most:
        raise PartyError(
            f"party {allowance.party!r}: the request asks for more than {most:,} releases with noise, the limit of the "
            "party (limits.releases_per_request); ask for fewer steps or columns at once, or ask the party's operator",
            limit="releases_per_request",
        )
    allowance.releases += 1


@contextmanager
def interrupted_in_time(interrupt: Callable[[], object]) -> Iterator[None]:
    """Let a database work for as long as the request may take; whatever it raises after that is a PartyError.

    ``interrupt``, called in another thread, ends what the database does at that moment.
    """
    allowance = _CURRENT.get()
    if allowance is None:
        yield
        return
    check_time()
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(interrupt, allowance, done), daemon=True)
    watch.start()
    try:
        yield
    except Exception as error:
        check_time()
        if ran_out(error) and not isinstance(error, TooMuchError):
            raise allowance.too_much() from None
        raise
    finally:
        done.set()
        watch.join()  # nobody interrupts a connection that is closed


def ran_out(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, is a lack of memory."""
    while error is not None and not isinstance(error, duckdb.OutOfMemoryException | TooMuchError):
        error = error.__cause__ or error.__context__
    return error is not None


def _watch(interrupt: Callable[[], object], allowance: Allowance, done: threading.Event) -> None:
    """Once time is up, or nobody waits for the reply, end one statement after the other."""
    pause = threading.TIMEOUT_MAX if allowance.is_abandoned is None else WATCH
    while not done.wait(pause if allowance.left is None else min(max(allowance.left, 0.0), pause)):
        try:
            allowance.check()
        except PartyError:
            break
    while not done.is_set():
        with suppress(Exception):  # of whatever class: a connection that is lost does nothing any more
            interrupt()
        done.wait(WATCH)
