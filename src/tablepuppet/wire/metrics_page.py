"""The metrics of a party as a page: ``GET /metrics`` at an address of the operator's choice, for Prometheus.

``GET /healthz`` answers 200 if the party can do its work, else 503 and why in a few words.

Plain HTTP, in a few threads of its own: whoever connects gets the page within some seconds or is hung up on, so that
it takes neither descriptors nor threads from callers of the party. There is nothing else behind the address.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tablepuppet.errors import ConfigError
from tablepuppet.versions import PROTOCOL, VERSION

PATH, HEALTH = "/metrics", "/healthz"
AT_ONCE = 4  # pages that are sent at the same time; others are hung up on
PATIENCE = 10.0  # seconds for one page, from the first byte of the question to the last of the answer


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
