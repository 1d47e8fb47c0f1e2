"""The database behind a URL: a kind of database is a file of this folder, which says there what its URLs begin with.

A file is imported when one of its URLs is opened: a driver is loaded only by a party that uses it. Kinds of other
packages are known once their module is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from tablepuppet.errors import ConfigError
from tablepuppet.party.database import Database

_MARK = re.compile(r"^@database\((.+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Address:
    """A database URL of a party, and what its settings say of connections."""

    party: str
    kind: str  # what the URL begins with, in small letters
    url: str
    most_connections: int | None = None  # that are open at once to a server

    @property
    def path(self) -> str:
        """What follows ``kind:///``: ``data/x`` is relative, ``/data/x`` absolute; ConfigError if nothing does."""
        rest = self.url.partition("://")[2]
        if not rest.startswith("/") or not rest[1:].strip("/"):
            raise ConfigError(
                f"Party {self.party!r}: {self.kind} needs a path after three slashes: {self.kind}:///relative/path or "
                f"{self.kind}:////full/path"
            )
        return rest[1:]


Opener = Callable[[Address], Database]


@dataclass(frozen=True)
class _Kind:
    open: Opener
    is_file: bool


_KINDS: dict[str, _Kind] = {}


def database(kind: str, *, is_file: bool = False) -> Callable[[Opener], Opener]:
    """Register a function that opens URLs which begin with ``kind://``; ``is_file``: a path follows."""

    def register(function: Opener) -> Opener:
        _KINDS[kind] = _Kind(function, is_file)
        return function

    return register


def open_database(party: str, url: str, *others: str, most_connections: int | None = None) -> Database:
    """The database behind ``url``; it is first opened when it is read. An error names ``others`` that there are too.

    ``most_connections`` are open at once to a server.

    >>> open_database("bank", "oracle://host/db")
    Traceback (most recent call last):
    tablepuppet.errors.ConfigError: Party 'bank': no database of kind 'oracle'; known: duckdb:///path, ...
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"Party {party!r}: the database must be a URL, one of: {_known()}")
    name = scheme.lower()
    kind = _kind(name)
    if kind is None:
        # Only a plain word is repeated: whatever else was typed there may be a password.
        named = f"no database of kind {name!r}" if name.isalnum() else "the URL has no scheme"
        raise ConfigError(f"Party {party!r}: {named}; known: {', '.join([_known(), *others])}")
    return kind.open(Address(party, name, url, most_connections))


def anchored(url: str, folder: Path) -> str:
    """The URL with a relative file path made absolute from ``folder``, the folder of a configuration file."""
    scheme, separator, path = url.partition(":///")
    kind = _kind(scheme.lower())
    if not separator or path.startswith("/") or (kind is not None and not kind.is_file):
        return url
    place = (folder / path).absolute()
    if not place.exists() and Path("/" + path).exists():  # duckdb:///tmp/x, where /tmp/x was meant
        place = Path("/" + path)
    return f"{scheme}:///{place}"


def _kind(name: str) -> _Kind | None:
    if name not in _KINDS and name in _modules():
        import_module(_modules()[name])
    return _KINDS.get(name)


@cache
def _modules() -> dict[str, str]:
    """By kind the module of this folder that opens it, without importing one."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        for marked in _MARK.findall(file.read_text(encoding="utf-8")):
            found[marked.split('"')[1]] = f"{__package__}.{file.stem}"
    return found


def _known() -> str:
    found = {name: _kind(name) for name in [*_modules(), *_KINDS]}
    files = [f"{name}:///path" for name, kind in found.items() if kind is not None and kind.is_file]
    servers = [f"{name}://user:password@host/database" for name in found if f"{name}:///path" not in files]
    return ", ".join(files + servers)
