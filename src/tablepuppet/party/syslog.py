"""Lines of the audit log for syslog: of this machine, or of another, where who owns this one cannot change them.

Lines are sent by a thread of their own, so that a syslog that does not answer holds up no request. The file of the
audit log is the record: what syslog does not take is not sent again, and the party's log warns of it.
"""

from __future__ import annotations

import logging
import queue
import threading
from logging.handlers import SysLogHandler

log = logging.getLogger("tablepuppet.party")
MOST = 10_000  # lines that wait


class _Handler(SysLogHandler):
    append_nul = False
    has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in the standard library
        self.has_failed = True


class Syslog:
    """Sends lines to an address, the path of a socket or host and port (UDP), until it is closed."""

    def __init__(self, address: str, party: str):
        self._address, self._party = address, party
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST)
        self._is_full = False  # since some line found no room, until none waits
        self._thread = threading.Thread(target=self._serve, name="syslog", daemon=True)
        self._thread.start()

    def send(self, line: bytes | None) -> None:
        """Send a line soon; if too many wait, it is dropped, and the party's log warns of it."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            if not self._is_full:
                log.warning(
                    "syslog at %s is too slow for the audit log: it misses lines, the file has them", self._address
                )
            self._is_full = True

    def close(self) -> None:
        """Send what waits, if that takes no longer than a moment."""
        self.send(None)
        self._thread.join(2.0)

    def _serve(self) -> None:
        handler, warned = None, False
        while (line := self._lines.get()) is not None:
            try:
                if handler is None:
                    handler = _Handler(_place(self._address), SysLogHandler.LOG_AUTHPRIV)
                    handler.ident = f"tablepuppet-{self._party}: "
                handler.has_failed = False
                handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, line.decode(), None, None))
                failed = handler.has_failed
            except OSError:  # a host that has no address, say
                failed = True
            if failed and not warned:
                log.warning("syslog at %s does not take lines of the audit log now; the file has them", self._address)
            if warned and not failed:
                log.info("syslog at %s takes lines of the audit log again", self._address)
            warned = failed
            self._is_full = self._is_full and not self._lines.empty()
        if handler is not None:
            handler.close()


def _place(address: str) -> str | tuple[str, int]:
    """What the standard library takes.

    >>> _place("logs.example:514"), _place("/dev/log")
    (('logs.example', 514), '/dev/log')
    """
    if address.startswith("/"):
        return address
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
