"""URLs of database servers. They may hold a password: one that a driver would misread, and then quote, is refused."""

from __future__ import annotations

import re

from tablepuppet.errors import ConfigError

SHORT = 4  # letters of a password that may be a part of other words


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
