"""The metrics of a party as a page: ``GET /metrics`` at an address of the operator's choice, for Prometheus.

``GET /healthz`` answers 200 if the party can do its work, else 503 and why in a few words; why the database does not
answer is in the log only.

Plain HTTP, in a few threads of its own: whoever connects gets the page within some seconds or is hung up on, so that
it takes neither descriptors nor threads from callers of the party. There is nothing else behind the address.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.party.allowance import Allowance, allowed
from tablepuppet.party.metrics import Metrics
from tablepuppet.party.policy import UNLIMITED
from tablepuppet.party.service import Party
from tablepuppet.versions import PROTOCOL, VERSION

log = logging.getLogger("tablepuppet.party")
FRESH = 5.0  # seconds for which an answer is not asked for again, however many look
SILENT = 2.0  # seconds after which a database that has not answered counts as down: a monitor waits for few
GIVEN_UP = msgspec.structs.replace(
    UNLIMITED, request_seconds=20.0
)  # a question to a database that hangs ends then, and is asked anew
PATH, HEALTH = "/metrics", "/healthz"
AT_ONCE = 4  # pages that are sent at the same time; others are hung up on
PATIENCE = 10.0  # seconds for one page, from the first byte of the question to the last of the answer


class Health:
    """Asks the database when somebody looks, at most once every few seconds, in a thread of its own.

    A database that is frozen answers nothing, not even no: who looks is not kept waiting for it.
    """

    def __init__(self, party: Party):
        self._party, self._lock = party, threading.Lock()
        self._began, self._answered = -FRESH, threading.Event()
        self._answered.set()
        self._seconds, self._up = 0.0, True

    def database(self) -> tuple[bool, float]:
        """Whether the database could be opened, and the seconds that this took, or has taken until now."""
        with self._lock:
            if self._answered.is_set() and time.monotonic() - self._began - self._seconds >= FRESH:
                threading.Thread(target=self._ask, name="health", daemon=True).start()
                self._answered.clear()
                self._began = time.monotonic()
        if not self._answered.wait(self._began + SILENT - time.monotonic()):
            with self._lock:
                if not self._answered.is_set():
                    self._heard(f"no answer for {SILENT:g} seconds")
                    self._seconds = time.monotonic() - self._began
        return self._up, self._seconds

    def _ask(self) -> None:
        problem = ""
        try:
            with allowed(Allowance(self._party.name, GIVEN_UP)):
                self._party.reach_database()
        except TablePuppetError as error:
            problem = str(error)
        except Exception as error:  # whatever it is, the next one must be able to ask
            problem = type(error).__name__
        with self._lock:
            self._heard(problem)
            self._seconds = time.monotonic() - self._began
            self._answered.set()

    def _heard(self, problem: str) -> None:
        """Note what is wrong with the database, or that nothing is; the log gets each change."""
        was, self._up = self._up, not problem
        if was and problem:
            log.error("the database does not answer: %s", problem)
        if self._up and not was:
            log.info("the database answers again")

    def measure(self, metrics: Metrics) -> None:
        """Have metrics read it."""
        up, seconds = "Whether the database can be opened now: 1 or 0.", "Seconds that opening the database took."
        metrics.gauge("database_up", up, lambda: [((), float(self.database()[0]))])
        metrics.gauge("database_seconds", seconds, lambda: [((), self.database()[1])])


class _Handler(BaseHTTPRequestHandler):
    """Answers one question."""

    server: MetricsPage
    server_version, sys_version = "tablepuppet", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """The page."""
        path, status = self.path.partition("?")[0], HTTPStatus.OK
        if path == PATH:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            content = encode(self.server.registry)
        elif path == HEALTH:
            problem, kind = self.server.problem(), "text/plain; charset=utf-8"
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            content = f"{problem or f'ok: tablepuppet {VERSION}, version {PROTOCOL} of the protocol'}\n".encode()
        else:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"The only pages are {PATH} and {HEALTH}.")
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged of readers: the log is for sessions."""


class MetricsPage(TCPServer):
    """Serves a registry at ``host`` and ``port`` until it is closed; port 0 takes a free one.

    Not an `HTTPServer`, which would ask the DNS for the name of this machine.
    """

    allow_reuse_address = True

    def __init__(self, registry: CollectorRegistry, host: str, port: int, problem: Callable[[], str] = str):
        self.problem = problem  # what is wrong now; nothing if all is well
        self.registry, self._free = registry, threading.BoundedSemaphore(AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(f"metrics: cannot listen at {host!r}, port {port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if one is free."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()
        except RuntimeError:  # the system has no more threads now
            self._free.release()
            raise

    def _answer(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(PATIENCE, _hang_up, (request,))
        end.daemon = True
        try:
            end.start()
            with suppress(OSError):  # the reader is gone
                self.finish_request(request, client_address)
        finally:
            end.cancel()
            self.shutdown_request(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that hangs up is not worth a line."""

    def close(self) -> None:
        """End the page."""
        self.shutdown()
        self.server_close()


def _hang_up(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
