"""A party as a process of its own, from its party file to its end: `tablepuppet party serve`.

Logs one line when a session begins or ends, notifies the service manager when it is ready, and stops on SIGTERM and
SIGINT: no new request is taken, running ones are finished, sessions are freed. On SIGHUP it reads its file again
(reload.py), unless that says that its terminal is gone. If the party file names an address for metrics, they are served
there (metrics_page.py).
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec
from prometheus_client import disable_created_metrics

from tablepuppet.errors import TablePuppetError, plain_text
from tablepuppet.party.audit import AuditLog, check_log
from tablepuppet.party.blind import read_blinding_key
from tablepuppet.party.config import PartyFile
from tablepuppet.party.databases.sandbox import remove_spilled
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.published import open_deliveries, open_published
from tablepuppet.party.service import Party
from tablepuppet.party.state import SECRET_BYTES, SESSIONS, State
from tablepuppet.party.syslog import Syslog
from tablepuppet.party.tls_files import TlsFiles, ends_soon, expiry, read_tls_files
from tablepuppet.wire.control import Control
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.doorkeeper import Doorkeeper
from tablepuppet.wire.flight_server import FlightServer, ServerTls
from tablepuppet.wire.journal import Journal
from tablepuppet.wire.metrics_page import PATH, Health, MetricsPage
from tablepuppet.wire.reload import check_tables, reload

log = logging.getLogger("tablepuppet.party")
CHECK = 1.0  # seconds between looks for silent sessions and connections


def start(settings: PartyFile, metrics: Metrics | None = None) -> FlightServer:
    """The service of a party file, listening; ConfigError or PartyError if something it needs is not there.

    Its database may start later: what needs it is refused until then. ``metrics`` count what it does.
    """
    key = read_blinding_key(Path(settings.blinding_key))
    tls = None if settings.tls is None else read_tls_files(settings.tls, "party")
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
    server_tls = None if tls is None else ServerTls.of(tls)
    if tls is not None and tls.warning:
        log.warning("%s", tls.warning)
    database = open_published(settings)
    check_tables(database)
    party = Party(
        settings.name,
        database,
        key,
        settings.policy(),
        secrets.token_bytes(SECRET_BYTES) if state is None else state.row_secret,
        AuditLog(
            Path(settings.audit_log),
            metrics,
            folder,
            with_text=settings.audit_text,
            syslog=None if settings.syslog is None else Syslog(settings.syslog, settings.name),
        ),
        folder,
        settings.limits.snapshot_ttl,
        None if server_tls is None else lambda: server_tls.identity,
        open_deliveries(settings),
    )
    journal = None if folder is None else Journal(folder / SESSIONS, settings.name, settings.limits.journal_bytes)
    desk = Desk(party, settings.limits, journal, partial(_log_session, metrics=metrics))
    if metrics is not None:
        party.measure(metrics)
        desk.measure(metrics)
    return FlightServer(desk, settings.listen, server_tls, insecure=settings.insecure)


@dataclass
class Service:
    """A party that serves: its settings now, its listener, and what looks after both."""

    settings: PartyFile
    server: FlightServer
    door: Doorkeeper
    metrics: Metrics | None
    read_again: Callable[[], PartyFile]
    warned: str = ""  # the day on which the certificate was last warned of

    def reload(self) -> None:
        """Take over what the party file says now; if that cannot be, everything stays as it is.

        ConfigError if the new listener does not start: nobody can call any more, so the process must end.
        """
        try:
            tls, self.settings = reload(self.server, self.settings, self.read_again(), self.metrics)
        except TablePuppetError as error:
            log.error("the party file is not taken over, and everything stays as it was: %s", error)
            return
        if tls != self.server.tls:
            self.server = self.server.again(tls)
            self.warned = ""

    def look_after(self) -> None:
        """Clean up connections and silent sessions, and warn once a day of a certificate that ends soon."""
        self.door.sweep()
        self.server.desk.expire()
        today = datetime.now(UTC)
        if self.server.tls is not None and self.warned != (day := today.date().isoformat()):
            self.warned = day
            if warning := ends_soon(self.server.tls.certificate):
                log.warning("%s", warning)

    def measure(self, metrics: Metrics) -> Health:
        """Have metrics read how the service is; whoever asks for its health asks the same."""
        metrics.gauge("connections", "Connections that are open.", lambda: [((), self.door.open)])
        text = "The rules that hold now, by a hash: 1."
        metrics.gauge("policy_info", text, lambda: [((self.settings.policy_hash,), 1.0)], "hash")
        text = "When the certificate of the party ends, in seconds since 1970."
        metrics.gauge("certificate_expiry_seconds", text, self._expiry)
        text = "Bytes that are free where the party writes."
        metrics.gauge("free_disk_bytes", text, self._free, "folder")
        health = Health(self.server.desk.party)
        health.measure(metrics)
        return health

    def _expiry(self) -> list[tuple[tuple[()], float]]:
        return [] if self.server.tls is None else [((), expiry(self.server.tls.certificate).timestamp())]

    def _free(self) -> list[tuple[tuple[str], float]]:
        folders = {"audit_log": Path(self.settings.audit_log).parent}
        if self.settings.state_dir is not None:
            folders["state_dir"] = Path(self.settings.state_dir)
        return [((name,), float(shutil.disk_usage(folder).free)) for name, folder in folders.items()]


def serve(settings: PartyFile, ready: Callable[[str], None], read_again: Callable[[], PartyFile]) -> None:
    """Serve until a signal asks to stop; ``ready`` receives the address once requests are answered.

    ``read_again`` returns the party file as it is now.
    """
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, always=signal.SIGHUP)
    metrics = metrics_of(settings)
    remove_spilled()
    server = start(settings, metrics)
    limits, party = settings.limits, server.desk.party
    left = (lambda: None) if metrics is None else metrics.left
    door = Doorkeeper(
        server.port, limits.connections, limits.connections_per_caller, limits.connect_seconds, party.reached, left
    )
    server.enter = door.enter
    service = Service(settings, server, door, metrics, read_again)
    page = None if metrics is None else _page(service, metrics)
    host = settings.listen.rpartition(":")[0]
    ready(f"{'grpc' if settings.tls is None else 'grpc+tls'}://{host}:{server.port}")
    _notify("READY=1")
    log.info("policy %s", settings.policy_hash)
    control = None
    if settings.state_dir is not None:
        control = Control(Path(settings.state_dir), lambda: service.server.desk, lambda: service.settings)
    _watch(service, signals)
    if control is not None:
        control.close()
    _notify("STOPPING=1")
    service.server.desk.stop()
    service.server.shutdown()
    party.close_log()
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


def _page(service: Service, metrics: Metrics) -> MetricsPage:
    address, health = service.settings.metrics_address, service.measure(metrics)
    assert address is not None, "there are metrics"
    page = MetricsPage(
        metrics.registry, *address, lambda: "" if health.database()[0] else "the database does not answer"
    )
    log.info("metrics are at http://%s:%s%s", address[0], page.port, PATH)
    return page


def _watch(service: Service, signals: Signals) -> None:
    """Look after the service until the end, whatever the machine runs out of; read its file again when asked to."""
    failed, in_terminal = (
        "",
        _has_terminal() and signal.SIGHUP not in signals.ignored,
    )  # nohup: it outlives the terminal
    while (came := signals.wait(CHECK)) in (None, signal.SIGHUP):
        if came is not None:
            if in_terminal and not _has_terminal():
                return
            service.reload()
        try:
            service.look_after()
            failed = ""
        except Exception as error:  # the party must not end: it is logged once, and tried again
            if failed != type(error).__name__:
                failed = type(error).__name__
                log.error("cannot clean up sessions now (%s); the party continues", failed)


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) > 0
    except OSError:
        return False


def _log_session(caller: str, session: str, what: str, metrics: Metrics | None = None) -> None:
    if metrics is not None:
        metrics.session(what)
    named = {"session": plain_text(session, 9), "caller": plain_text(caller, 64)}
    log.info("session %s of %s: %s", *named.values(), what, extra={**named, "event": what})


def _notify(state: str) -> None:
    """Tell systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(state.encode())


class Signals:
    """The signals of a process that has taken them over; those that are ignored stay so, except for ``always``."""

    def __init__(self, *numbers: int, always: int | None = None):
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.ignored = {number for number in numbers if signal.getsignal(number) is signal.SIG_IGN}  # as under nohup
        for number in numbers:
            if number not in self.ignored or number == always:
                signal.signal(number, self._came)

    def _came(self, number: int, _: FrameType | None) -> None:
        with suppress(OSError):  # thousands that nobody has read yet: one more says nothing new
            self._theirs.send(bytes([number]))

    def wait(self, seconds: float) -> int | None:
        """The next signal's number, or None if none comes for so many seconds."""
        ready, _, _ = select.select([self._ours], [], [], seconds)
        return self._ours.recv(1)[0] if ready else None
