"""The engine for parties elsewhere: one call per request over one kept connection, with a deadline for each.

A call that fails on the way is tried again with growing pauses until the federation's timeout; the party answers a
repeat from store. What a party itself refuses is an error at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from tablepuppet.errors import ConfigError, PartyError
from tablepuppet.party.request import Reply, Request
from tablepuppet.wire.codec import Encoded, decode_header, encode
from tablepuppet.wire.flight_server import REQUEST, frames_of
from tablepuppet.wire.hang_up import hangs_up
from tablepuppet.wire.protocol import BusyError, LostError, read_reply, request_message

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds
CLOSING = 3.0  # seconds to wait for a party that is told goodbye


@dataclass(frozen=True)
class ClientTls:
    """PEM texts: the caller's certificate and key, and the authority that parties' certificates come from."""

    certificate: bytes
    key: bytes
    authority: bytes


class RemoteParty:
    """A party behind a URL. With ``wait`` one that is silent is waited for, however long it takes."""

    def __init__(
        self,
        name: str,
        url: str,
        tls: ClientTls | None,
        timeout: float,
        *,
        wait: bool = False,
        silent: Callable[[str], None] = lambda _: None,
    ):
        self.name, self.url, self.timeout, self.wait, self._silent = name, url, timeout, wait, silent
        parts = urlsplit(url)
        if parts.port is None or not parts.hostname:
            raise ConfigError(f"party {name!r}: {url!r} needs a host and a port, such as grpc+tls://host:8815")
        if parts.scheme == "grpc+tls" and tls is None:
            raise ConfigError(f"party {name!r}: grpc+tls needs a certificate; give the federation tls=...")
        self._tls = tls if parts.scheme == "grpc+tls" else None
        self._connection: flight.FlightClient | None = None
        self._lock = threading.Lock()

    def call(self, request: Request, patience: float | None = None) -> Reply:
        """The reply to a request; LostError if the party stays silent for the whole timeout.

        With ``patience`` it is tried once, for at most so many seconds.
        """
        once, closing = patience is not None, request.verb == "close"
        timeout = min(self.timeout, CLOSING if closing else np.inf, np.inf if patience is None else patience)
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
                if time.monotonic() > deadline:
                    deadline = time.monotonic() + timeout
                    self._silent(f"party {self.name!r} is silent; waiting for it")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def take_back(self, losses: int) -> None:
        """There is no record of them."""

    def _exchange(self, message: Encoded, timeout: float) -> Any:
        """The message that answers a message. One that is all header takes a kind of call that costs less."""
        options = flight.FlightCallOptions(timeout=timeout)
        if not message.arrays:
            results = self._connected().do_action((REQUEST, message.header), options)
            return _read(result.body for result in results)
        writer, reader = self._connected().do_exchange(flight.FlightDescriptor.for_command(REQUEST), options)
        try:
            for frame in message.frames():
                writer.write_metadata(frame)
            writer.done_writing()
            return _read(frames_of(reader))
        finally:
            writer.close()

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._connection is None:
                tls: dict[str, Any] = {}
                if self._tls is not None:
                    tls = {
                        "tls_root_certs": self._tls.authority,
                        "cert_chain": self._tls.certificate,
                        "private_key": self._tls.key,
                    }
                self._connection = flight.FlightClient(self.url, **tls)
            return self._connection

    def _disconnect(self) -> None:
        with self._lock:
            old, self._connection = self._connection, None
        if old is not None:
            old.close()

    def _lost(self, error: Exception, timeout: float) -> PartyError:
        if isinstance(error, BusyError):
            return error
        reason = str(error).split(". ")[0].splitlines()[0].rpartition("last error: ")[2][:200]
        if not _worth_repeating(error):
            return PartyError(f"party {self.name!r} at {self.url} has no certificate that fits ({reason})")
        if self._refuses_us(error):
            reason = (
                f"{reason}: it can be reached, but seems to refuse the certificate of this federation, which may have "
                "expired, or come from an authority that is not in the party's tls.ca; ask its operator"
            )
        return LostError(f"party {self.name!r} at {self.url} does not answer within {timeout:g} s ({reason})")

    def _refuses_us(self, error: Exception) -> bool:
        """Whether the party is there, but closes connections while they begin."""
        text, parts = str(error), urlsplit(self.url)
        if self._tls is None or "failed to connect" not in text or "Socket closed" not in text:
            return False
        return hangs_up(parts.hostname or "", parts.port or 0, self._tls.authority)


def _read(frames: Iterator[pa.Buffer]) -> Any:
    """The message that frames make."""
    header = next(frames, None)
    if header is None:
        raise OSError("an empty reply")
    try:
        return decode_header(header).fill(frames)
    except (PartyError, ValueError, OverflowError, MemoryError) as error:  # no message: it was damaged on the way
        raise OSError(f"a reply cannot be read: {error}") from error


def _worth_repeating(error: Exception) -> bool:
    """Whether the same request may fare better later: not where certificates do not fit."""
    text = str(error)
    return not any(sign in text for sign in ("CERTIFICATE", "certificate", "SSL_ERROR", "Ssl handshake"))
