"""A party as a process of its own, from its party file to its end: `tablepuppet party serve`.

Logs one line when a session begins or ends, tells the service manager when it is ready, and stops on SIGTERM and
SIGINT: no new request is taken, running ones are finished, sessions are freed.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tablepuppet.errors import ConfigError
from tablepuppet.party.audit import AuditLog
from tablepuppet.party.blinding_key import read_blinding_key
from tablepuppet.party.config import PartyFile
from tablepuppet.party.published import open_published
from tablepuppet.party.service import Party
from tablepuppet.party.tls_files import TlsFiles, read_tls_files
from tablepuppet.privacy.private_file import read_private_file, write_new_file
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.flight_server import FlightServer, ServerTls
from tablepuppet.wire.journal import Journal

log = logging.getLogger("tablepuppet.party")
LONGEST_CHECK = 30.0  # seconds between looks for silent sessions


def start(settings: PartyFile) -> FlightServer:
    """The service of a party file, listening; ConfigError or PartyError if something it needs is not there."""
    key = read_blinding_key(Path(settings.blinding_key))
    tls = None if settings.tls is None else read_tls_files(settings.tls)
    state = None if settings.state_dir is None else _made(Path(settings.state_dir))
    database = open_published(settings)
    database.tables()  # a database that cannot be read is known now
    party = Party(
        settings.name,
        database,
        key,
        settings.policy(),
        _row_secret(state),
        AuditLog(Path(settings.audit_log)),
        state,
        settings.limits.snapshot_ttl,
        _identity(tls),
    )
    journal = None if state is None else Journal(state / "sessions", settings.name)
    desk = Desk(party, settings.limits, journal, _told)
    server_tls = None if tls is None else ServerTls(tls.certificate, tls.key, tls.authorities)
    return FlightServer(desk, settings.listen, server_tls, insecure=settings.insecure)


def serve(settings: PartyFile, ready: Callable[[str], None]) -> None:
    """Serve until a signal asks to stop; ``ready`` is told the address once requests are answered."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = start(settings)
    host = settings.listen.rpartition(":")[0]
    ready(f"{'grpc' if settings.tls is None else 'grpc+tls'}://{host}:{server.port}")
    _notify("READY=1")
    while not stop.wait(min(LONGEST_CHECK, max(0.1, settings.limits.idle / 4))):
        server.desk.expire()
    _notify("STOPPING=1")
    server.desk.stop()
    server.shutdown()


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"state_dir: cannot make {str(folder)!r}: {error.strerror}") from error
    return folder


def _identity(tls: TlsFiles | None) -> Callable[[], Identity] | None:
    if tls is None:
        return None
    identity = Identity(tls.certificate, tls.key, tls.authorities)
    return lambda: identity


def _row_secret(state: Path | None) -> bytes:
    """What orders row ids: the same after a restart if there is a state folder."""
    if state is None:
        return secrets.token_bytes(32)
    path = state / "row_secret"
    if not path.exists():
        write_new_file(path, secrets.token_bytes(32), "the secret order of rows")
    return read_private_file(path, "the secret order of rows")


def _told(caller: str, session: str, what: str) -> None:
    log.info("session %s of %s: %s", session[:8], caller, what)


def _notify(state: str) -> None:
    """Tell systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(state.encode())
