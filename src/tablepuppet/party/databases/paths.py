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
