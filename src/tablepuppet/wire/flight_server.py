"""A party as an Arrow Flight service: one call per request, mutual TLS, the caller named by its certificate.

A request's header comes first and says how many bytes of arrays follow; what is too large is refused before it is read.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tablepuppet.errors import ConfigError, PartyError, PrivacyError, TablePuppetError
from tablepuppet.party.request import Request
from tablepuppet.wire.codec import decode_header, encode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.protocol import error_message, read_request, read_version

MOST_HEADER = 2 << 20  # bytes; as objects they may take a hundred times as many
REQUEST = "request"  # the name of all calls
ANONYMOUS = "anonymous"  # the caller where there is no TLS


@dataclass(frozen=True)
class ServerTls:
    """PEM texts: the party's certificate and key, and the authority that callers' certificates come from."""

    certificate: bytes
    key: bytes
    authority: bytes


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves a desk at ``host:port``; port 0 takes a free one."""

    def __init__(self, desk: Desk, listen: str, tls: ServerTls | None, *, insecure: bool = False):
        host, _, port = listen.rpartition(":")
        if tls is None and not insecure and not is_loopback(host):
            raise ConfigError(
                f"party {desk.party.name!r}: {listen!r} can be reached from other machines, so it needs TLS; give "
                "certificate, key and authority, or listen on 127.0.0.1"
            )
        scheme = "grpc" if tls is None else "grpc+tls"
        options: dict[str, Any] = {}
        if tls is not None:
            options = {
                "tls_certificates": [(tls.certificate, tls.key)],
                "verify_client": True,
                "root_certificates": tls.authority,
            }
        try:
            super().__init__(f"{scheme}://{host}:{int(port)}", **options)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"party {desk.party.name!r} cannot listen at {listen!r}: {reason}") from None
        self.desk, self._tls = desk, tls

    def do_exchange(self, context: Any, descriptor: Any, reader: flight.MetadataRecordBatchReader, writer: Any) -> None:
        """Read one request whose arrays follow its header, write one reply."""
        for frame in self._answered(context, frames_of(reader)):
            writer.write_metadata(frame)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[pa.Buffer]:
        """The reply to one request that is all header: most are, and such a call costs less."""
        return self._answered(context, iter((action.body,)))

    def _answered(self, context: Any, frames: Iterator[pa.Buffer]) -> Iterator[pa.Buffer]:
        """The frames of the reply to a request, or of the error it met."""
        try:
            reply = self.desk.answer(*self._asked(context, frames))
        except (TablePuppetError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            reply = encode(error_message(_told(error)))
            self._skip(frames)
        return reply.frames()

    def _skip(self, frames: Iterator[pa.Buffer]) -> None:
        """Let the rest of a refused request pass by: a caller that still writes would not hear why it is refused."""
        left = self.desk.limits.message_bytes
        while left > 0 and (frame := next(frames, None)) is not None:
            left -= frame.size

    def _asked(self, context: Any, frames: Iterator[pa.Buffer]) -> tuple[str, Request]:
        """Who calls, and what is asked: read only of those who may call."""
        caller = self._caller(context)
        try:
            self._check_caller(caller)
            return caller, self._read(frames)
        except TablePuppetError as error:  # the party itself does not see it
            self.desk.party.note_refusal(caller, "", "", error)
            raise

    def _caller(self, context: Any) -> str:
        name: str = ANONYMOUS if self._tls is None else context.peer_identity().decode(errors="replace")
        return name

    def _check_caller(self, name: str) -> None:
        if not name:
            raise PrivacyError(
                f"party {self.desk.party.name!r}: the certificate of the caller names nobody", rule="allow"
            )
        self.desk.party.admit(name)

    def _read(self, frames: Iterator[pa.Buffer]) -> Request:
        header = next(frames, None)
        if header is None:
            raise PartyError("the request is empty")
        most = self.desk.limits.message_bytes
        if header.size > min(MOST_HEADER, most):
            raise PartyError(f"the request's header has {header.size:,} bytes, more than a party reads")
        incoming = decode_header(header)
        read_version(incoming.message)
        if incoming.nbytes > most:
            raise PartyError(
                f"the request has {incoming.nbytes:,} bytes, more than the {most:,} that party "
                f"{self.desk.party.name!r} reads"
            )
        return read_request(incoming.fill(frames))


def _told(error: Exception) -> TablePuppetError:
    if isinstance(error, TablePuppetError):
        return error
    return PartyError(f"the request cannot be read ({type(error).__name__})")


def frames_of(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.Buffer]:
    """The frames that come, until there are no more."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.app_metadata is not None:
            yield chunk.app_metadata


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
