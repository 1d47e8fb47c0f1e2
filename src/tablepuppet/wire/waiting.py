"""Reports early that the coordinator waits for a party, so that users see something before the timeout.

Input: failures of the tries of one request. Output: one message, with the address and the reason, at the second
failure, since a first one is often mended by trying again; or after some seconds if a party that has not answered yet
stays silent. It names nothing but the party and the network's own words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from urllib.parse import urlsplit

SOON = 5.0  # seconds in which a party that is there answers its first request
_PLAIN = {
    "Connection refused": "connection refused",
    "Deadline Exceeded": "no answer",
    "Timeout occurred": "no answer",
    "DNS resolution failed": "its host name is not found",
    "Domain name not found": "its host name is not found",
}


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
