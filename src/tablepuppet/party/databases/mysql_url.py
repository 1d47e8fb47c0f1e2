"""A MySQL URL taken apart: where the server is, who asks, and how the way there is protected."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tablepuppet.errors import ConfigError
from tablepuppet.party.databases.server_urls import check_escapes, check_hosts

_EXPECTED = "mysql://user:password@host:port/database"
_SILENCE = 600  # seconds without a byte after which a server counts as lost; a long sort is silent
_PARAMETERS = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")


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
