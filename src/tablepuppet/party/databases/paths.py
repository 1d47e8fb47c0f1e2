"""Where a database that is a file or a folder lies. A missing one is never created."""

from __future__ import annotations

from pathlib import Path

from tablepuppet.party.database import UnavailableError


def existing(party: str, kind: str, path: str) -> Path:
    """The full path of the file or folder that a URL names.

    ``duckdb:///tmp/x`` is the relative ``tmp/x``, as in SQLAlchemy; when only ``/tmp/x`` exists, that was meant.
    """
    candidates = [Path(path)] if path.startswith("/") else [Path(path), Path("/" + path)]
    for candidate in candidates:
        if candidate.exists():
            return candidate.resolve()
    sought = " and ".join(str(candidate.absolute()) for candidate in candidates)
    raise UnavailableError(f"Party {party!r}: the {kind} database is missing (looked for {sought}); check its URL")


FileState = tuple[tuple[int, int, int] | None, ...]
"""Identity, size and time of the last change of some files."""


def state_of(*paths: Path) -> FileState:
    """What changes when one of these files does."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)
