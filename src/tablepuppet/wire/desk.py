"""The desk of a party's service: each request is computed once, and its reply is stored before it is sent. A repeated
request gets the stored reply.

The requests of a caller's session have numbers. The next number is computed; the last one again is answered from
store; any other is refused. With a `Journal` the session outlives the process: a party that was killed computes its
requests anew when the caller comes back, and is then in the same state as before.

What is refused here, before the party sees it, is in the party's audit log like what the party refuses.
"""

from __future__ import annotations

import errno
import logging
import secrets
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from tablepuppet.errors import PartyError, PrivacyError, TablePuppetError, plain_text
from tablepuppet.party.audit import DISK, Outcome
from tablepuppet.party.config import Limits
from tablepuppet.party.database import UnavailableError
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.request import Reply, Request
from tablepuppet.party.service import Party
from tablepuppet.wire.codec import Encoded, encode
from tablepuppet.wire.journal import Journal, Key, Written
from tablepuppet.wire.message_file import DamagedError
from tablepuppet.wire.protocol import AwayError, BusyError, error_message, reply_message

log = logging.getLogger("tablepuppet.party")


MEMORY = "memory"  # what has run out where the process gets no more of it
LEFT = 60.0  # seconds after which a session may have been left by whoever opened it
RETURN = 10.0  # seconds in which a caller whose connection broke asks again
Gone = Callable[[], bool]  # whether whoever made a call has gone away


def may_pass(error: TablePuppetError) -> bool:
    """Whether a request was refused for want of the machine's memory or disk: it may fare better later."""
    return isinstance(error, PartyError) and error.limit in (DISK, MEMORY)


def _busy(error: TablePuppetError) -> BusyError:
    """A refusal as one after which the caller tries again until its timeout."""
    return BusyError(f"{error}; try again", limit=getattr(error, "limit", ""))


def _is_for_memory(error: Exception) -> bool:
    """Whether the process got no more memory, threads or descriptors."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


@dataclass
class Line:
    """One caller's session: where it stands, and the last reply."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    done: int = -1  # the number of the last request that was computed
    reply: Encoded | None = None
    used: float = field(default_factory=time.monotonic)
    calls: list[Gone] = field(default_factory=list)  # that are answered now, or wait for that
    seen: float = field(default_factory=time.monotonic)  # when somebody last waited for a reply

    def is_abandoned(self) -> bool:
        """Whether nobody has waited for a reply for some time; whoever lost the connection asks again."""
        if any(not is_gone() for is_gone in tuple(self.calls)):
            self.seen = time.monotonic()
        return time.monotonic() - self.seen > RETURN


class Session(msgspec.Struct, frozen=True):
    """An open session, as an operator sees it."""

    caller: str
    session: str
    tables: list[str]
    requests: int  # that were answered
    silent: float  # seconds since the last one


class Desk:
    """Answers callers; computing is left to the party. ``log`` receives sessions that begin and end."""

    def __init__(
        self,
        party: Party,
        limits: Limits,
        journal: Journal | None = None,
        log: Callable[[str, str, str], None] = lambda caller, session, what: None,
    ):
        self.party, self.limits, self.journal, self.log = party, limits, journal, log
        self._lines: dict[Key, Line] = {}
        self._calls: Counter[str] = Counter()  # that are answered now, by caller
        self._lock = threading.Lock()
        self._closing = False

    def answer(self, caller: str, request: Request, is_gone: Gone = lambda: False) -> Encoded:
        """The reply to a request, or the error it met, as it travels; nobody waits for it if the caller ``is_gone``."""
        try:
            with self._one_call(caller, request):
                match request.verb:
                    case "describe":
                        return self._answer(request, caller, is_abandoned=is_gone)
                    case "close":
                        self.close((caller, request.session), "closed")
                        return encode(reply_message([{}]))
                    case _:
                        return self._in_line((caller, request.session), request, is_gone)
        except TablePuppetError as error:
            later = may_pass(error) and not isinstance(error, BusyError)  # nothing was computed, or it was taken back
            return encode(error_message(_busy(error) if later else error))

    @contextmanager
    def _one_call(self, caller: str, request: Request) -> Iterator[None]:
        """Answer so many requests of a caller at the same time: each has a thread, and what it computes with."""
        with self._lock:
            free = self._calls[caller] < self.limits.calls_per_caller or request.verb == "close"
            self._calls[caller] += free
        if not free:
            error = BusyError(
                f"party {self.party.name!r} is busy: it answers {self.limits.calls_per_caller} requests of one caller "
                "at once (limits.calls_per_caller); try again",
                limit="calls_per_caller",
            )
            self.party.note_refusal(caller, request.session, request.verb, error)
            raise error
        try:
            yield
        finally:
            with self._lock:
                self._calls[caller] -= 1
                if not self._calls[caller]:
                    del self._calls[caller]

    def _in_line(self, key: Key, request: Request, is_gone: Gone) -> Encoded:
        try:
            line = self._line(key, request)
        except TablePuppetError as error:
            self.party.note_refusal(*key, request.verb, error)
            raise
        line.calls.append(is_gone)
        try:
            with line.lock:
                if self._lines.get(key) is line:
                    line.seen = time.monotonic()
                    return self._next_in(line, key, request)
        finally:
            line.calls.remove(is_gone)
        return self._in_line(key, request, is_gone)  # the session was freed meanwhile, and may come back

    def _next_in(self, line: Line, key: Key, request: Request) -> Encoded:
        """The reply to a request of a session that nobody else changes now."""
        line.used = time.monotonic()
        if request.sequence == line.done and line.reply is not None:
            return line.reply
        if request.verb == "open":  # written down with the request, so that noise can be drawn again
            request = msgspec.structs.replace(request, arguments={**request.arguments, "nonce": secrets.token_hex(16)})
        try:
            start = self._accept(key, line, request)
            line.reply = None  # whoever sends the next request has it
            self.party.hold_reply(*key, 0)
            line.reply = self._computed(key, request, start=start, is_abandoned=line.is_abandoned)
        except TablePuppetError as error:
            if request.verb == "open" and line.done < 0:  # nothing was opened: the caller may try again
                if may_pass(error):
                    self.party.give_back_opening(*key)
                self.close(key, "refused")
            raise
        if request.verb == "open":
            self.party.settle_opening(*key)
        line.done, line.used = request.sequence, time.monotonic()
        return line.reply

    def _accept(self, key: Key, line: Line, request: Request) -> int:
        """Write down the next request of a line, and say where; PartyError if it is not the next, or that fails."""
        try:
            if request.sequence != line.done + 1:
                raise PartyError(
                    f"party {self.party.name!r}: request {request.sequence} of this session came after request "
                    f"{line.done}; one was lost, came twice or overtook another. This run cannot go on: start "
                    "the run again"
                )
            return self.journal.add(key, request) if self.journal is not None else 0
        except TablePuppetError as error:
            self.party.note_refusal(*key, request.verb, error)
            raise

    def _computed(
        self,
        key: Key,
        request: Request,
        outcome: Outcome = "ok",
        *,
        start: int | None = None,
        again: bool = False,
        is_abandoned: Gone | None = None,
    ) -> Encoded:
        """The reply, or an error that belongs to this request and is stored like a reply.

        ``start`` is where the request was just written down: of one that is refused, no more is kept than was answered.
        """
        replies: Reply = []
        try:
            encoded = self._answer(request, key[0], outcome, replies, again=again, is_abandoned=is_abandoned)
            if not again:
                self.party.hold_reply(*key, encoded.nbytes)
        except TablePuppetError as error:
            if request.verb == "open":
                raise
            if may_pass(error) and self.journal is not None:
                self._take_back(key, start, error)
            refusal = error_message(error)
            if self.journal is not None and start is not None:
                self._write_refusal(key, start, request, len(replies), refusal)
            return encode(refusal)
        if request.verb == "open" and self.journal is not None:
            self._compare(key)
        return encoded

    def _take_back(self, key: Key, start: int | None, error: TablePuppetError) -> NoReturn:
        """Let a request that the machine had no room for be asked again, as if it had never come.

        Some of its steps may have been computed: the session is freed, and comes back from the journal without them.
        """
        assert self.journal is not None, "it was written down"
        if start is not None:
            self.journal.take_back(key, start)
        self.close(key, "put away", forget=False)
        raise _busy(error) from error

    def _write_refusal(self, key: Key, start: int, request: Request, done: int, refusal: Any) -> None:
        """Write a refusal down, or end the session: what was refused must not be computed after a restart."""
        assert self.journal is not None, "it was written down"
        try:
            self.journal.refuse(key, start, request, done, refusal)
        except PartyError:
            self.close(key, "lost")
            raise

    def _answer(
        self,
        request: Request,
        caller: str,
        outcome: Outcome = "ok",
        replies: Reply | None = None,
        *,
        again: bool = False,
        is_abandoned: Gone | None = None,
    ) -> Encoded:
        made = None
        if self.journal is not None and request.verb == "open":
            made = self.journal.releases((caller, request.session))
        try:
            reply = self.party.answer(
                caller, request, outcome, replies, again=again, made=made, is_abandoned=is_abandoned
            )
            return encode(reply_message(reply))
        except UnavailableError as error:  # it may name host, port, user or path
            reference = secrets.token_hex(2)
            log.error("database not available, reference %s: %s", reference, plain_text(str(error)))
            raise AwayError(
                f"party {self.party.name!r}: database not available, reference {reference}; try again later, or ask "
                "its operator, who finds the reason in the party's log under this reference"
            ) from None
        except TablePuppetError:
            raise
        except Exception as error:  # whatever it says may quote a row: only its kind is sent
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error("%s at %s:%s", type(error).__name__, place.filename, place.lineno)
            raise PartyError(
                f"party {self.party.name!r} failed on {request.verb} ({type(error).__name__}); its log says where",
                limit=MEMORY if _is_for_memory(error) else "",
            ) from None

    def _compare(self, key: Key) -> None:
        """A session that comes back must find the rows that it left."""
        assert self.journal is not None, "only a journal brings sessions back"
        now = self.party.fingerprint(key[1], key[0])
        if self.journal.seal(key, now) != now:
            raise PartyError(
                f"party {self.party.name!r}: its data, its secrets or the rules of its columns have changed since this "
                "session began; start the run again"
            )

    def _line(self, key: Key, request: Request) -> Line:
        self.expire()
        if key not in self._lines:
            self._put_away(key[0])
        with self._lock:
            if self._closing:
                raise BusyError(f"party {self.party.name!r} is stopping; try again when it is back")
            if key in self._lines:
                return self._lines[key]
            if request.verb == "open" and not self._is_written_down(key):
                self._check_room(key[0])
                self._lines[key] = Line()
                self.log(*key, "opened")
                return self._lines[key]
        return self._restored(key, request.sequence)

    def _is_written_down(self, key: Key) -> bool:
        """Whether the session began before: then `open` asks for the reply that it had, and begins no other."""
        return self.journal is not None and self.journal.has(key)

    def _put_away(self, caller: str) -> None:
        """If a caller has as many sessions as it may, free those that it has not used for a minute.

        A script that was killed leaves its sessions open. One that is used again comes back from the journal.
        """
        if self.journal is None:
            return
        limit = time.monotonic() - LEFT
        with self._lock:
            mine = {key: line for key, line in self._lines.items() if key[0] == caller}
            if len(mine) < self.limits.sessions_per_caller:
                return
            left = [key for key, line in mine.items() if line.used < limit and not line.lock.locked()]
        for key in left:
            self.close(key, "put away", forget=False)

    def _check_room(self, caller: str) -> None:
        mine = sum(1 for owner, _ in self._lines if owner == caller)
        limit = "sessions" if len(self._lines) >= self.limits.sessions else ""
        limit = limit or ("sessions_per_caller" if mine >= self.limits.sessions_per_caller else "")
        if limit:
            used = [line.used for (owner, _), line in self._lines.items() if owner == caller]
            oldest = max(0.0, min(used) + self.limits.idle - time.monotonic()) if used else 0.0
            mine_end = f"; of yours, one ends in {oldest:,.0f} s if it is not used (limits.idle)" if used else ""
            raise BusyError(
                f"party {self.party.name!r} is busy: it has as many sessions as it allows (limits.{limit}){mine_end}; "
                "try again",
                limit=limit,
            )

    def _restored(self, key: Key, asked: int) -> Line:
        """The line of a session that this process does not know, from its journal.

        Only the reply to the request that is ``asked`` for leaves; of others, none is kept.
        """
        if self.journal is None or not self._is_written_down(key):
            raise PartyError(
                f"party {self.party.name!r} knows no such session: it was closed, was silent for too long, or its "
                "party was restarted without a state_dir; open the relation again, and let its operator set "
                "state_dir so that a restart does no harm"
            )
        with self._lock:
            known = self._lines.get(key)
            if known is not None:
                return known
            self._check_room(key[0])
            line = self._lines[key] = Line()
            line.lock.acquire()
        try:
            for written in self.journal.read(key):
                number = written.request.sequence
                reply = self._again(key, written, leaves=number == asked)
                line.done, line.reply = number, reply if number == asked else None
            if line.reply is not None:
                line.reply = self._held(key, line.reply)
            self.log(*key, "restored")
            return line
        except BaseException as error:
            begins = asked == 0 and not isinstance(error, BusyError)  # `open` may begin it anew
            self.close(key, "not restored", forget=begins or isinstance(error, DamagedError))
            raise
        finally:
            line.lock.release()

    def _again(self, key: Key, written: Written, *, leaves: bool) -> Encoded:
        """The reply to a request on record, computed again.

        One that was answered must be answered again: if it is not, the session does not come back. What hinders it may
        pass, so the caller may try again. If the reply ``leaves``, the party may have been killed before it had one.
        """
        if written.refusal is not None:
            self._replayed(key, written.request)
            return encode(written.refusal)
        if leaves:
            return self._computed(key, written.request, again=True)
        return self._replayed(key, written.request)

    def _replayed(self, key: Key, request: Request) -> Encoded:
        try:
            encoded = self._answer(request, key[0], "restored", again=True)
        except PrivacyError:  # the policy has changed
            raise
        except TablePuppetError as error:
            why = f"party {self.party.name!r} cannot bring this session back now: {error}"
            raise BusyError(why, limit=getattr(error, "limit", "")) from error
        if request.verb == "open":
            self._compare(key)
        return encoded

    def _held(self, key: Key, reply: Encoded) -> Encoded:
        """A reply that is kept until the next request; where there is no room for it, the error that says so."""
        try:
            self.party.hold_reply(*key, reply.nbytes)
            return reply
        except PartyError as error:
            return encode(error_message(error))

    def measure(self, metrics: Metrics) -> None:
        """Have metrics read which sessions and calls there are, and the bytes of their journals."""
        metrics.gauge("sessions", "Sessions that are open.", self._open_sessions, "caller")
        metrics.gauge("calls", "Requests that are answered now.", self._open_calls, "caller")
        if self.journal is not None:
            text = "Bytes of stored requests of sessions."
            metrics.gauge("journal_bytes", text, self._journal_bytes, "caller")

    def _open_sessions(self) -> list[tuple[tuple[str], float]]:
        with self._lock:
            return [((caller,), 1.0) for caller, _ in self._lines]

    def _journal_bytes(self) -> list[tuple[tuple[str], float]]:
        return [] if self.journal is None else self.journal.sizes(self.party.callers)

    def _open_calls(self) -> list[tuple[tuple[str], float]]:
        with self._lock:
            return [((caller,), calls) for caller, calls in self._calls.items()]

    def close(self, key: Key, why: str, *, forget: bool = True) -> None:
        """Free a session; its journal too unless it may come back."""
        with self._lock:
            known = self._lines.pop(key, None)
        self.party.close(*key)
        if forget and self.journal is not None:
            self.journal.drop(key)
        if known is not None:
            self.log(*key, why)

    def sessions(self) -> list[Session]:
        """The sessions that are open, the one that was silent longest first."""
        now = time.monotonic()
        with self._lock:
            lines = sorted(self._lines.items(), key=lambda each: each[1].used)
        return [
            Session(*key, self.party.tables_of(*key), line.done + 1, round(now - line.used, 1)) for key, line in lines
        ]

    def end(self, session: str) -> list[Session]:
        """End the sessions whose name begins so, for good; those that were ended."""
        ended = [each for each in self.sessions() if each.session.startswith(session)]
        for each in ended:
            self.close((each.caller, each.session), "ended")
        return ended

    def put_away(self, tables: frozenset[str]) -> int:
        """Free the sessions over some of these tables (in lower case); with a journal they come back. How many it were.

        Their running requests are finished first. What a session that opens now is over is known when it is open.
        """
        with self._lock:
            lines = [(key, line) for key, line in self._lines.items() if line.done < 0 or self._is_over(key, tables)]
        freed = 0
        for key, line in lines:
            with line.lock:
                if self._lines.get(key) is line and self._is_over(key, tables):
                    self.close(key, "put away", forget=False)
                    freed += 1
        return freed

    def _is_over(self, key: Key, tables: frozenset[str]) -> bool:
        """Whether a session has read some of these tables."""
        return not tables.isdisjoint(map(str.lower, self.party.tables_of(*key)))

    def expire(self) -> None:
        """Free sessions that were silent for too long."""
        limit = time.monotonic() - self.limits.idle
        with self._lock:
            silent = [key for key, line in self._lines.items() if line.used < limit and not line.lock.locked()]
        for key in silent:
            self.party.reached("idle")
            self.close(key, "expired", forget=False)
        if self.journal is not None:
            with suppress(OSError):  # no descriptor is left, say: there is another time
                for _ in range(self.journal.expire(self.limits.resume_window)):
                    self.party.reached("resume_window")

    def stop(self) -> None:
        """Take no more requests, and free all sessions; those with a journal may come back."""
        with self._lock:
            self._closing = True
            keys = list(self._lines)
        for key in keys:
            self.close(key, "stopped", forget=False)
