"""The transport to a service: one Flight call per request over one kept connection, with a deadline for each.

A call that fails on the way is tried again with growing pauses until the federation's timeout; the party answers a
repeat from store. What a party itself refuses is an error at once. That a party is waited for is reported at the second
failure, or after some seconds of silence, by `Waiting`: the message names the party and the network's own words only.

A party that refuses a certificate closes the connection without a word; so does one that is gone, or a broken line.
`hangs_up` and `shown_by` distinguish them by a second connection, which shows no certificate, so that no key is needed,
and sends nothing. What they find is for error messages only.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from tablepuppet.errors import ConfigError, PartyError, plain_text
from tablepuppet.party.request import Reply, Request
from tablepuppet.pieces import available_memory
from tablepuppet.privacy.certificates import identity
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.runs import interrupts
from tablepuppet.runs.spans import HEADER, traceparent
from tablepuppet.wire.codec import CHUNK, Encoded, decode_header, encode
from tablepuppet.wire.engine import Transport
from tablepuppet.wire.flight_server import PROOF, REQUEST, frames_of
from tablepuppet.wire.protocol import BusyError, LostError, UnfitError, read_reply, request_message

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds
MOST_REPLY = 4 << 30  # bytes
MOST_REPLY_HEADER = 8 << 20  # bytes; as objects they may take a hundred times as many
MOST_FRAME = MOST_REPLY_HEADER + (64 << 10)  # bytes that are read at once, with what Flight adds
DAMAGED = (PartyError, ValueError, OverflowError, MemoryError, RecursionError)  # what reading no message raises
CLOSING = 3.0  # seconds to wait for a party whose session is closed
SOON = 5.0  # seconds in which a party that is there answers its first request
_PLAIN = {
    "Connection refused": "connection refused",
    "Deadline Exceeded": "no answer",
    "Timeout occurred": "no answer",
    "DNS resolution failed": "its host name is not found",
    "Domain name not found": "its host name is not found",
}
SECOND_LOOK = 3.0  # seconds for a second connection, which finds why the first one failed


@dataclass(frozen=True)
class ClientTls:
    """PEM texts: the caller's certificate and key, and the authority that parties' certificates come from."""

    certificate: bytes
    key: bytes
    authority: bytes

    def proof(self, party: str) -> bytes:
        """What shows a party, by a name in its certificate, that this certificate is the caller's own."""
        return Identity(self.certificate, self.key, self.authority).proof(party)


class FlightTransport(Transport):
    """The way to a service at a URL. With ``wait`` one that is silent is waited for, however long it takes.

    ``identity`` is the name that its certificate must have, by default the party's: TLS compares it on every
    connection, whatever the host of the URL is.
    """

    def __init__(
        self,
        name: str,
        url: str,
        tls: ClientTls | None,
        timeout: float,
        *,
        identity: str = "",
        wait: bool = False,
        silent: Callable[[str], None] = lambda _: None,
    ):
        self._identity = identity or name
        self.name, self.url, self.timeout, self.wait, self._silent = name, url, timeout, wait, silent
        parts = urlsplit(url)
        if parts.port is None or not parts.hostname:
            raise ConfigError(f"party {name!r}: {url!r} needs a host and a port, such as grpc+tls://host:8815")
        if parts.scheme == "grpc+tls" and tls is None:
            raise ConfigError(
                f"party {name!r}: grpc+tls needs a certificate; give the federation tls={{'cert': ..., "
                "'key': ..., 'ca': ...}, the files of the caller's certificate, its key and the parties' authority"
            )
        self._tls = tls if parts.scheme == "grpc+tls" else None
        self._headers = [] if self._tls is None else [(PROOF.encode(), self._tls.proof(self._identity))]
        self._connection: flight.FlightClient | None = None
        self._has_answered = False
        self._lock = threading.Lock()

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The reply to a request; LostError if the party stays silent for the whole timeout.

        With ``patience`` it is tried once, for at most so many seconds.
        """
        once, closing = patience is not None, request.verb == "close"
        timeout = min(self.timeout, CLOSING if closing else np.inf, np.inf if patience is None else patience)
        how_long = "until it answers" if self.wait else f"for up to {timeout:g} s"
        say = self._silent if not once and not closing else lambda _: None
        waiting = Waiting(say, self.name, self.url, how_long)
        with waiting if not self._has_answered else nullcontext():
            found = self._repeated(request, waiting, timeout, once=once, closing=closing)
        if request.verb == "describe" and self._tls is not None:
            shown = found[0].get("identity")
            if shown is not None and str(shown).lower() != self._identity.lower():
                raise self._another(str(shown))
        self._has_answered = True
        return found

    def _repeated(self, request: Request, waiting: Waiting, timeout: float, *, once: bool, closing: bool) -> Reply:
        """The reply to a request that is tried until the timeout."""
        message, deadline, pause = encode(request_message(request)), time.monotonic() + timeout, FIRST_PAUSE
        while True:
            try:
                left = timeout if self.wait else max(0.05, deadline - time.monotonic())
                return read_reply(self._exchange(message, left), request, self.name)
            except (pa.ArrowException, OSError, BusyError) as error:
                if not isinstance(error, BusyError):
                    self._disconnect()
                patient = (self.wait and not closing) or time.monotonic() + pause < deadline
                if once or not patient or not _worth_repeating(error):
                    raise self._lost(error, timeout) from None
                if interrupts.received() is not None and not closing:
                    raise PartyError(f"party {self.name!r} did not answer before the run was stopped") from None
                waiting.failed(error)
                if time.monotonic() > deadline:
                    deadline = time.monotonic() + timeout
                    self._silent(f"party {self.name!r} is silent; waiting for it")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _exchange(self, message: Encoded, timeout: float) -> Any:
        """The message that answers a message. One that is all header takes a kind of call that costs less."""
        trace = traceparent()
        headers = [*self._headers, (HEADER.encode(), trace.encode())] if trace else self._headers
        options = flight.FlightCallOptions(timeout=timeout, headers=headers)
        if not message.arrays:
            results = self._connected().do_action((REQUEST, message.header), options)
            return self._read(result.body for result in results)
        writer, reader = self._connected().do_exchange(flight.FlightDescriptor.for_command(REQUEST), options)
        try:
            for frame in message.frames():
                writer.write_metadata(frame)
            writer.done_writing()
            return self._read(frames_of(reader))
        finally:
            writer.close()

    def _read(self, frames: Iterator[pa.Buffer]) -> Any:
        """The message that frames make; PartyError if it is larger than any should be."""
        try:
            header = next(frames, None)
            if header is None:
                raise OSError("an empty reply")
            incoming = decode_header(header) if header.size <= MOST_REPLY_HEADER else None
            if incoming is not None and (
                incoming.nbytes <= CHUNK or incoming.nbytes <= min(MOST_REPLY, available_memory() // 2)
            ):
                return incoming.fill(frames)
        except DAMAGED as error:
            raise OSError(f"a reply cannot be read: {error}") from error
        raise PartyError(
            f"party {self.name!r}: a reply cannot be read: it claims to be larger than {MOST_REPLY:,} bytes, of which "
            f"{MOST_REPLY_HEADER:,} may be other than arrays, or than half of the memory that is free"
        )

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._connection is None:
                options: dict[str, Any] = {"generic_options": [("grpc.max_receive_message_length", MOST_FRAME)]}
                if self._tls is not None:
                    options |= {
                        "override_hostname": self._identity,
                        "tls_root_certs": self._tls.authority,
                        "cert_chain": self._tls.certificate,
                        "private_key": self._tls.key,
                    }
                self._connection = flight.FlightClient(self.url, **options)
            return self._connection

    def _disconnect(self) -> None:
        with self._lock:
            old, self._connection = self._connection, None
        if old is not None:
            old.close()

    def _lost(self, error: Exception, timeout: float) -> PartyError:
        if isinstance(error, BusyError):
            return error
        why = plain_text(reason(error), 200)
        if "is not in peer certificate" in str(error) and self._tls is not None:
            parts = urlsplit(self.url)
            return self._another(shown_by(parts.hostname or "", parts.port or 0, self._tls.authority))
        if not _worth_repeating(error):
            return UnfitError(f"party {self.name!r} at {self.url} has no certificate that fits ({why})")
        if self._tls is None and "Socket closed" in str(error):
            why += f"; if the party wants TLS, its URL is grpc+tls://{urlsplit(self.url).netloc}"
        if self._refuses_us(error):
            why = (
                f"{why}: it can be reached, but seems to refuse the certificate of this federation, which may have "
                "expired, or come from an authority that is not in the party's tls.ca; ask its operator"
            )
        return LostError(f"party {self.name!r} at {self.url} does not answer within {timeout:g} s ({why})")

    def _another(self, shown: str | None) -> UnfitError:
        """The error for a party whose certificate is that of another one."""
        whose = "nobody whom it names first" if shown is None else repr(plain_text(shown, 100))
        return UnfitError(
            f"party {self.name!r} at {self.url} shows the certificate of {whose}, not of {self._identity!r}: its URL "
            "leads to somebody else, or it has another name here than in its certificate; then set its identity in the "
            "federation to that name, if you know that it is the party's"
        )

    def _refuses_us(self, error: Exception) -> bool:
        """Whether the party is there, but closes connections while they begin."""
        text, parts = str(error), urlsplit(self.url)
        if self._tls is None or "failed to connect" not in text or "Socket closed" not in text:
            return False
        return hangs_up(parts.hostname or "", parts.port or 0, self._tls.authority)


def _worth_repeating(error: Exception) -> bool:
    """Whether the same request may fare better later: not where certificates do not fit."""
    text = str(error)
    return not any(sign in text for sign in ("CERTIFICATE", "certificate", "SSL_ERROR", "Ssl handshake"))


class Waiting:
    """One request that may have to wait; ``how_long`` says for how long. Use as a context if it is the first ever."""

    def __init__(self, say: Callable[[str], None], party: str, url: str, how_long: str):
        parts = urlsplit(url)
        self._say, self._how_long = say, how_long
        self._whom = f"party {party!r} at {parts.hostname}:{parts.port}"
        self._lock, self._failures, self._is_said = threading.Lock(), 0, False
        self._timer = threading.Timer(SOON, self._say_once, ["no answer yet"])
        self._timer.daemon = True

    def __enter__(self) -> Waiting:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def failed(self, error: Exception) -> None:
        """A try has failed, and another will be made."""
        self._failures += 1
        if self._failures > 1:
            self._say_once(reason(error))

    def _say_once(self, why: str) -> None:
        with self._lock:
            said, self._is_said = self._is_said, True
        if not said:
            self._say(f"waiting for {self._whom} ({why}), {self._how_long}")


def reason(error: Exception) -> str:
    """Why a request failed, in the network's words, or in plainer ones where there are some.

    >>> reason(OSError("failed to connect; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused (111). More"))
    'connection refused'
    """
    text = str(error)
    plain = (words for sign, words in _PLAIN.items() if sign in text)
    return next(plain, text.split(". ")[0].partition("\n")[0].rpartition("last error: ")[2][:200] or "no reason")


def hangs_up(host: str, port: int, authority: bytes) -> bool:
    """Whether a service proves to be of the ``authority`` (PEM), and then ends the connection of a nameless caller."""
    context = ssl.create_default_context(cadata=authority.decode())
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=SECOND_LOOK) as line,
            context.wrap_socket(line, server_hostname=host) as secured,
        ):
            return _is_ended(secured)
    except (OSError, ValueError):  # what cannot be reached, or is no such service
        return False


def shown_by(host: str, port: int, authority: bytes) -> str | None:
    """The owner of the certificate that a service of the ``authority`` (PEM) shows; None if it shows none that names
    its owner.
    """
    context = ssl.create_default_context(cadata=authority.decode())
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=SECOND_LOOK) as line,
            context.wrap_socket(line) as secured,
        ):
            return identity(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError, ConfigError):
        return None


def _is_ended(secured: ssl.SSLSocket) -> bool:
    """Whether the other side ends the connection, where a service that takes the caller would speak first."""
    try:
        return not secured.recv(1)
    except ConnectionResetError:
        return True
