"""A party as an Arrow Flight service: one call per request, mutual TLS, the caller named by its certificate.

A request's header comes first and says how many bytes of arrays follow; what is too large is refused before it is read,
and so is what a caller sends beyond the bytes that all its requests may take together (`InFlight`).
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as flight

from tablepuppet.errors import ConfigError, PartyError, PrivacyError, TablePuppetError, plain_text
from tablepuppet.party.audit import calling_from
from tablepuppet.party.config import is_loopback
from tablepuppet.party.policy import ANONYMOUS
from tablepuppet.party.request import Request
from tablepuppet.party.state import State
from tablepuppet.party.tls_files import TlsFiles
from tablepuppet.privacy.certificates import hosts_of
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.runs.spans import HEADER, asked_with
from tablepuppet.wire.codec import CHUNK, decode_header, encode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.protocol import BusyError, error_message, read_request, read_version

MOST_HEADER = 2 << 20  # bytes; as objects they may take a hundred times as many
PROOF = "tablepuppet-caller-bin"  # the header of a call that shows who calls; gRPC takes bytes under such names
MOST_PROOF = 64 << 10  # bytes
CALLS = (flight.FlightMethod.DO_ACTION, flight.FlightMethod.DO_EXCHANGE)
REQUEST = "request"  # the name of all calls
AS_OBJECTS = 64  # bytes of memory that a byte of a header may take once it is read


@dataclass(frozen=True)
class ServerTls:
    """PEM texts: the party's certificate and key, and the authority that callers' certificates come from."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes

    @classmethod
    def of(cls, files: TlsFiles) -> ServerTls:
        """What the files of a party file hold."""
        return cls(files.certificate, files.key, files.authorities)

    @cached_property
    def identity(self) -> Identity:
        """What signs in the party's name."""
        return Identity(self.certificate, self.key, self.authority)


class _Shown(flight.ServerMiddleware):  # type: ignore[misc]
    """What was sent with one call: the proof of who calls, and the trace that it is of."""

    def __init__(self, proof: bytes, trace: str):
        self.proof, self.trace = proof, trace


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Admits the two kinds of Flight call that the protocol uses, and keeps the caller's proof; refuses all others."""

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Shown:
        """Keep the caller's proof; refuse every other call of Flight."""
        if info.method not in CALLS:
            raise flight.FlightUnauthorizedError("a party answers no other call than requests of tablepuppet")
        trace = str(next(iter(headers.get(HEADER, [])), ""))
        return _Shown(next(iter(headers.get(PROOF, [])), b""), trace)


class Callers:
    """Tells who calls a party: the first DNS name of a certificate that the caller proves to be its own.

    gRPC would take the common name of a certificate without names, and does not say that it did.
    """

    def __init__(self, tls: ServerTls):
        self._identity = tls.identity
        self._hosts = hosts_of(tls.certificate)
        self._known = lru_cache(1024)(self._named)

    def name(self, proof: bytes, peer: str) -> str:
        """The caller's name; PrivacyError unless it is the one that TLS knows, ``peer``."""
        if len(proof) > MOST_PROOF:
            raise PrivacyError("the caller shows more than a certificate", rule="allow")
        name = self._known(proof, int(time.time() // 3600))  # looked at again: it may have expired
        if name != peer:
            raise PrivacyError(
                f"the certificate that the caller shows, of {name!r}, is not that of its TLS", rule="allow"
            )
        return name

    def _named(self, proof: bytes, hour: int) -> str:
        return self._identity.caller(proof, self._hosts)


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves a desk at ``host:port``; port 0 takes a free one."""

    def __init__(self, desk: Desk, listen: str, tls: ServerTls | None, *, insecure: bool = False):
        host, _, port = listen.rpartition(":")
        if tls is None and not insecure and not is_loopback(host):
            raise ConfigError(
                f"party {desk.party.name!r}: {listen!r} can be reached from other machines, so it needs TLS; give "
                "certificate, key and authority, or listen on 127.0.0.1"
            )
        self.state: State | None = None  # the state folder that is locked while it serves
        scheme = "grpc" if tls is None else "grpc+tls"
        options: dict[str, Any] = {"middleware": {PROOF: _Gate()}}
        if tls is not None:
            options |= {
                "tls_certificates": [(tls.certificate, tls.key)],
                "verify_client": True,
                "root_certificates": tls.authority,
            }
        try:
            super().__init__(f"{scheme}://{host}:{int(port)}", **options)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = _why_not(host.strip("[]"), int(port)) or str(error).splitlines()[0]
            raise ConfigError(f"party {desk.party.name!r} cannot listen at {listen!r}: {reason}") from None
        self.tls, self._host, self._insecure = tls, host, insecure
        self.desk, self._in_flight = desk, InFlight(desk.party.name, desk.limits.message_bytes)
        self._callers = None if tls is None else Callers(tls)
        self.enter: Callable[[str, str], bool] = lambda peer, caller: True  # whether a caller may have this connection

    def again(self, tls: ServerTls | None) -> FlightServer:
        """A service with other certificates at the same port, of the same party; running requests are finished first.

        For a moment nobody listens: callers try again.
        """
        port = self.port
        self.shutdown()
        found = FlightServer(self.desk, f"{self._host}:{port}", tls, insecure=self._insecure)
        found.enter, found.state = self.enter, self.state
        return found

    def do_exchange(self, context: Any, descriptor: Any, reader: flight.MetadataRecordBatchReader, writer: Any) -> None:
        """Read one request whose arrays follow its header, write one reply."""
        for frame in self._answered(context, frames_of(reader)):
            writer.write_metadata(frame)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[pa.Buffer]:
        """The reply to one request that is all header: most are, and such a call costs less."""
        return self._answered(context, iter((action.body,)))

    def _answered(self, context: Any, frames: Iterator[pa.Buffer]) -> Iterator[pa.Buffer]:
        """The frames of the reply to a request, or of the error it met."""
        trace = context.get_middleware(PROOF).trace
        with ExitStack() as held, calling_from(_address(context.peer())), asked_with(trace):
            try:
                reply = self.desk.answer(*self._asked(context, frames, held), context.is_cancelled)
            except Exception as error:  # of whatever class: Flight would send its traceback
                reply = encode(error_message(_sendable(error)))
                self._skip(frames)
        return reply.frames()

    def _skip(self, frames: Iterator[pa.Buffer]) -> None:
        """Let the rest of a refused request pass by: a caller that still writes would not hear why it is refused."""
        left = self.desk.limits.message_bytes
        with suppress(PartyError):  # of a frame that is none
            while left > 0 and (frame := next(frames, None)) is not None:
                left -= frame.size + CHUNK // 100  # those without a byte come to an end too

    def _asked(self, context: Any, frames: Iterator[pa.Buffer], held: ExitStack) -> tuple[str, Request]:
        """Who calls, and what is asked: read only of those who may call. Its bytes count until ``held`` is left."""
        caller = self._caller(context)
        try:
            self._check_caller(context, caller)
            self._check_connection(context, caller)
            return caller, self._read(frames, caller, held)
        except Exception as error:  # of whatever class: the party itself does not see it, and its log must
            self.desk.party.note_refusal(caller, "", "", error)
            raise

    def _caller(self, context: Any) -> str:
        name: str = ANONYMOUS if self._callers is None else context.peer_identity().decode(errors="replace")
        return name

    def _check_caller(self, context: Any, name: str) -> None:
        """PrivacyError unless TLS and the certificate that is shown name the same caller, and the policy allows it."""
        self.desk.party.admit(name)
        if self._callers is None:
            return
        try:
            self._callers.name(context.get_middleware(PROOF).proof, name)
        except PrivacyError as error:
            raise PrivacyError(f"party {self.desk.party.name!r}: {error}", rule="allow") from None

    def _check_connection(self, context: Any, caller: str) -> None:
        if not self.enter(context.peer(), caller):
            raise BusyError(
                f"party {self.desk.party.name!r} is busy: caller {caller!r} has as many connections as it allows "
                "(limits.connections_per_caller); try again",
                limit="connections_per_caller",
            )

    def _read(self, frames: Iterator[pa.Buffer], caller: str, held: ExitStack) -> Request:
        header = next(frames, None)
        if header is None:
            raise PartyError("the request is empty")
        most = self.desk.limits.message_bytes
        if header.size > min(MOST_HEADER, most):
            raise PartyError(
                f"the request's header has {header.size:,} bytes, more than a party reads", limit="message_bytes"
            )
        grow = held.enter_context(self._in_flight.request(caller))
        grow(header.size * AS_OBJECTS)
        incoming = decode_header(header)
        read_version(incoming.message, self.desk.party.name)
        if incoming.nbytes > most:
            raise PartyError(
                f"the request has {incoming.nbytes:,} bytes, more than the {most:,} that party "
                f"{self.desk.party.name!r} reads",
                limit="message_bytes",
            )
        grow(incoming.nbytes)
        return read_request(incoming.fill(frames), self.desk.party.name)


@lru_cache(1024)
def _address(peer: str) -> str:
    """Host and port of the other end, from what gRPC calls it.

    >>> _address("ipv6:%5B::1%5D:5"), _address("ipv4:127.0.0.1:5")
    ('[::1]:5', '127.0.0.1:5')
    """
    return plain_text(unquote(peer).partition(":")[2], 100)


def _why_not(host: str, port: int) -> str:
    """Why an address cannot be listened at, found by trying: gRPC does not say; "" if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"another program listens at port {port} already; stop it, or name another port under listen"
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"this user may not listen at port {port}; name one above 1023 under listen"
        return f"{error.strerror}; name an address of this machine under listen, or 0.0.0.0 for all"
    return ""


def _sendable(error: Exception) -> TablePuppetError:
    if isinstance(error, TablePuppetError):
        return error
    return PartyError(f"the request cannot be read or answered ({type(error).__name__})")


def frames_of(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.Buffer]:
    """The frames that come, until there are no more."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.app_metadata is None:  # there is no end to those that hold nothing for us
            raise PartyError("a frame of a message holds something else")
        yield chunk.app_metadata


class InFlight:
    """Requests that are being read or answered; those of one caller take up to ``most`` bytes."""

    def __init__(self, party: str, most: int):
        self._party, self._most = party, most
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def request(self, caller: str) -> Iterator[Callable[[int], None]]:
        """One request: a function to call before so many bytes more of it are read.

        It raises BusyError if there is no room beside the caller's other requests; how large one may be is not
        decided here.
        """
        own = 0

        def grow(size: int) -> None:
            nonlocal own
            with self._lock:
                others = self._held[caller] - own
                if others and others + own + size > self._most:
                    raise BusyError(
                        f"party {self._party!r} is busy: the requests that caller {caller!r} sends at once have more "
                        f"than the {self._most:,} bytes that it reads (limits.message_bytes); try again",
                        limit="message_bytes",
                    )
                self._held[caller] += size
                own += size

        try:
            yield grow
        finally:
            with self._lock:
                self._held[caller] -= own
                if not self._held[caller]:
                    del self._held[caller]
