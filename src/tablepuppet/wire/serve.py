"""A party as a process of its own, from its party file to its end: `tablepuppet party serve`.

Logs one line when a session begins or ends, notifies the service manager when it is ready, and stops on SIGTERM, SIGINT
and SIGHUP: no new request is taken, running ones are finished, sessions are freed. If the party file names an address
for metrics, they are served there (metrics_page.py).
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from prometheus_client import disable_created_metrics

from tablepuppet.errors import plain_text
from tablepuppet.party.audit import AuditLog, check_log
from tablepuppet.party.blinding_key import read_blinding_key
from tablepuppet.party.config import PartyFile
from tablepuppet.party.databases.sandbox import remove_spilled
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.published import open_deliveries, open_published
from tablepuppet.party.service import Party
from tablepuppet.party.state import SECRET_BYTES, SESSIONS, State
from tablepuppet.party.tls_files import TlsFiles, read_tls_files
from tablepuppet.privacy.signed_keys import Identity
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.doorkeeper import Doorkeeper
from tablepuppet.wire.flight_server import FlightServer, ServerTls
from tablepuppet.wire.journal import Journal
from tablepuppet.wire.metrics_page import PATH, MetricsPage
from tablepuppet.wire.signals import Signals

log = logging.getLogger("tablepuppet.party")
CHECK = 1.0  # seconds between looks for silent sessions and connections


def start(settings: PartyFile, metrics: Metrics | None = None) -> FlightServer:
    """The service of a party file, listening; ConfigError or PartyError if something it needs is not there.

    ``metrics`` count what it does.
    """
    key = read_blinding_key(Path(settings.blinding_key))
    tls = None if settings.tls is None else read_tls_files(settings.tls)
    check_log(Path(settings.audit_log))
    state = None if settings.state_dir is None else State(Path(settings.state_dir), settings.name)
    try:
        server = _served(settings, state, key, tls, metrics)
    except BaseException:
        if state is not None:
            state.close()
        raise
    server.state = state
    return server


def _served(
    settings: PartyFile, state: State | None, key: bytes, tls: TlsFiles | None, metrics: Metrics | None
) -> FlightServer:
    folder = None if state is None else state.folder
    database = open_published(settings)
    database.tables()  # a database that cannot be read is known now
    party = Party(
        settings.name,
        database,
        key,
        settings.policy(),
        secrets.token_bytes(SECRET_BYTES) if state is None else state.row_secret,
        AuditLog(Path(settings.audit_log), metrics),
        folder,
        settings.limits.snapshot_ttl,
        _identity(tls),
        open_deliveries(settings),
    )
    journal = None if folder is None else Journal(folder / SESSIONS, settings.name, settings.limits.journal_bytes)
    desk = Desk(party, settings.limits, journal, partial(_log_session, metrics=metrics))
    if metrics is not None:
        party.measure(metrics)
        desk.measure(metrics, settings.allow)
    server_tls = None if tls is None else ServerTls(tls.certificate, tls.key, tls.authorities)
    return FlightServer(desk, settings.listen, server_tls, insecure=settings.insecure)


def serve(settings: PartyFile, ready: Callable[[str], None]) -> None:
    """Serve until a signal asks to stop; ``ready`` receives the address once requests are answered."""
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    metrics = metrics_of(settings)
    remove_spilled()
    server = start(settings, metrics)
    limits, party = settings.limits, server.desk.party
    door = Doorkeeper(
        server.port, limits.connections, limits.connections_per_caller, limits.connect_seconds, party.reached
    )
    server.enter = door.enter
    page = None if metrics is None else _page(settings, metrics, door)
    host = settings.listen.rpartition(":")[0]
    ready(f"{'grpc' if settings.tls is None else 'grpc+tls'}://{host}:{server.port}")
    _notify("READY=1")
    _watch(server, door, signals)
    _notify("STOPPING=1")
    server.desk.stop()
    server.shutdown()
    door.close()
    if server.state is not None:
        server.state.close()
    if page is not None:
        page.close()


def metrics_of(settings: PartyFile) -> Metrics | None:
    """Metrics for a party, if its file says where to serve them."""
    if settings.metrics is None:
        return None
    disable_created_metrics()  # type: ignore[no-untyped-call] # this process serves one party: a second number for every counter helps nobody
    return Metrics(settings.name, settings.policy(), msgspec.structs.asdict(settings.limits))


def _page(settings: PartyFile, metrics: Metrics, door: Doorkeeper) -> MetricsPage:
    assert settings.metrics_address is not None, "there are metrics"
    metrics.gauge("connections", "Connections that are open.", lambda: [((), door.open)])
    page = MetricsPage(metrics.registry, *settings.metrics_address)
    log.info("metrics are at http://%s:%s%s", settings.metrics_address[0], page.port, PATH)
    return page


def _watch(server: FlightServer, door: Doorkeeper, signals: Signals) -> None:
    """Look after connections and silent sessions until the end, whatever the machine runs out of."""
    failed = ""
    while signals.wait(CHECK) is None:
        try:
            door.sweep()
            server.desk.expire()
            failed = ""
        except Exception as error:  # the party must not end: it is logged once, and tried again
            if failed != type(error).__name__:
                failed = type(error).__name__
                log.error("cannot clean up sessions now (%s); the party continues", failed)


def _identity(tls: TlsFiles | None) -> Callable[[], Identity] | None:
    if tls is None:
        return None
    identity = Identity(tls.certificate, tls.key, tls.authorities)
    return lambda: identity


def _log_session(caller: str, session: str, what: str, metrics: Metrics | None = None) -> None:
    if metrics is not None:
        metrics.session(what)
    log.info("session %s of %s: %s", plain_text(session, 9), plain_text(caller, 64), what)


def _notify(state: str) -> None:
    """Tell systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(state.encode())
