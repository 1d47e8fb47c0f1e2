"""Servers of databases: their URLs, and the few connections that a party has to them.

A URL may hold a password: one that a driver would misread, and then quote, is refused.
`connection_options` takes a MySQL URL apart: where the server is, who asks, and how the way there is protected.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakValueDictionary

from tablepuppet.errors import ConfigError
from tablepuppet.party.allowance import WATCH, check_time, current
from tablepuppet.party.database import UnavailableError

SHORT = 4  # letters of a password that may be a part of other words
_EXPECTED = "mysql://user:password@host:port/database"
_SILENCE = 600  # seconds without a byte after which a server counts as lost; a long sort is silent
_PARAMETERS = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")


def check_escapes(party: str, server: str, url: str) -> None:
    """Refuse a URL in which a character of a name, password or parameter should have been escaped.

    >>> check_escapes("bank", "PostgreSQL", "postgresql://user:pass@word@host/database")
    Traceback (most recent call last):
    tablepuppet.errors.ConfigError: Party 'bank': the PostgreSQL URL is malformed; in a user name, ...
    """
    rest = url.partition("://")[2]
    authority, *_ = re.split(r"[/?]", rest, maxsplit=1)
    unescaped = rest.count("@") > 1 or rest.count("@") != authority.count("@") or "#" in rest
    if unescaped or re.search(r"%(?![0-9A-Fa-f]{2})|%00|\s", rest):
        raise ConfigError(
            f"Party {party!r}: the {server} URL is malformed; in a user name, password or parameter "
            f"write @ as %40, / as %2F, # as %23, ? as %3F, % as %25 and a space as %20"
        )


def masked(reason: str, secret: str) -> str:
    """An error of a driver without a password. A short one is masked where it stands alone: it is a part of many words.

    >>> masked("port 1 failed: u:p@host", "p"), masked("role s3cret2", "s3cret")
    ('port 1 failed: u:***@host', 'role ***2')
    """
    if len(secret) >= SHORT or not secret:
        return reason.replace(secret, "***") if secret else reason
    return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", reason)


def check_hosts(party: str, server: str, url: str, expected: str) -> None:
    """Refuse a URL whose hosts, separated by commas, are not each a name or address with an optional port."""
    authority, *_ = re.split(r"[/?]", url.partition("://")[2], maxsplit=1)
    hosts = authority.rpartition("@")[2]
    if not all(re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", host) for host in hosts.split(",")):
        raise ConfigError(f"Party {party!r}: the {server} URL is malformed; expected {expected}")


def connection_options(party: str, url: str) -> dict[str, Any]:
    """The arguments for PyMySQL's ``connect``. A password that the URL does not hold is taken from ``MYSQL_PWD``.

    With ``ssl_ca`` the server's certificate and name are checked; without it TLS is used where the server offers it.

    >>> options = connection_options("bank", "mysql://me:a%40b@db.example/cards?ssl_ca=/etc/ca.pem")
    >>> options["host"], options["port"], options["database"], options["password"], options["ssl_verify_identity"]
    ('db.example', 3306, 'cards', b'a@b', True)
    """
    check_escapes(party, "MySQL", url)
    check_hosts(party, "MySQL", url, _EXPECTED)
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:  # it quotes what it could not read
        raise ConfigError(f"Party {party!r}: the MySQL URL is malformed; expected {_EXPECTED}") from None
    database = unquote(parts.path[1:])
    if not database or "," in parts.netloc.rpartition("@")[2]:
        raise ConfigError(f"Party {party!r}: a MySQL URL names one host and one database: {_EXPECTED}")
    password = unquote(parts.password) if parts.password is not None else os.environ.get("MYSQL_PWD", "")
    return {
        "user": unquote(parts.username) if parts.username else None,
        "password": password.encode(),  # PyMySQL would write a text as Latin-1
        "host": parts.hostname,
        "port": port,
        "database": database,
        "charset": "utf8mb4",
        "connect_timeout": 10,
        "read_timeout": _SILENCE,
        **_parameters(party, parts.query),
    }


def _parameters(party: str, query: str) -> dict[str, Any]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    if not set(given) <= set(_PARAMETERS):
        raise ConfigError(f"Party {party!r}: a parameter of a MySQL URL is one of {', '.join(_PARAMETERS)}")
    checked = {"ssl_verify_cert": True, "ssl_verify_identity": True} if "ssl_ca" in given else {}
    return {**given, **checked}


# How a party meets the server of its database: under a name, with few connections, and never longer than a request.
# Whatever reads one database in this process shares its connections, however often the party file is read again.


PATIENCE = 5.0  # seconds to wait for a connection outside of a request
GRACE = 1.0  # seconds after which the server ends by itself what a party should have ended


class AllInUseError(UnavailableError):
    """The server answers, but the party has as many connections to it as it may."""


class Connections:
    """As many connections to one server as a party may have open at once; None: any number."""

    def __init__(self, most: int | None):
        self.most = most
        self._free = None if most is None else threading.BoundedSemaphore(most)

    @contextmanager
    def one(self, party: str) -> Iterator[None]:
        """Wait for a connection that is free, for as long as the request may take."""
        if self._free is None:
            yield
            return
        until = math.inf if current() is not None else time.monotonic() + PATIENCE
        while not self._free.acquire(timeout=WATCH):
            check_time()
            if time.monotonic() > until:
                raise AllInUseError(
                    f"Party {party!r}: all of its {self.most} connections to the database are in use "
                    "(limits.database_connections); try again"
                )
        try:
            yield
        finally:
            self._free.release()


_shared: WeakValueDictionary[tuple[str, int | None], Connections] = WeakValueDictionary()
_lock = threading.Lock()


def connections_to(url: str, most: int | None) -> Connections:
    """The connections that all share who read the database of this URL."""
    with _lock:
        found = _shared.get((url, most))
        if found is None:
            found = _shared[url, most] = Connections(most)
        return found


def application(party: str) -> str:
    """The name under which a server's operator sees a party."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in party)
    return f"tablepuppet/{plain}"[:63]


def seconds_left() -> float | None:
    """The seconds after which the server ends a statement by itself; None: never."""
    allowance = current()
    return None if allowance is None or allowance.left is None else max(allowance.left, 0.0) + GRACE
