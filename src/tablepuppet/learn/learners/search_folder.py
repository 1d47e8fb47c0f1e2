"""The folder of a search: a description of the search, and the scores so far, in ``search.json``.

It contains settings and metrics, never a row. A different search, or one over other rows, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tablepuppet.errors import LearnError
from tablepuppet.privacy.private_file import write_atomically

FILE = "search.json"
FitKey = tuple[int, float, int]  # candidate, share of rows, fold


class SearchFolder:
    """A folder at a path, which may not be there yet; LearnError if another search is in it."""

    def __init__(self, path: Path, described: Mapping[str, Any]):
        self._file = path / FILE
        self._described = json.loads(json.dumps(described, default=str))
        known = self._content()
        if known is not None and known["search"] != self._described:
            changed = [name for name, value in self._described.items() if known["search"].get(name) != value]
            raise LearnError(
                f"{str(path)!r} has another search ({', '.join(changed)} differ): name another folder, or remove it"
            )

    def _content(self) -> dict[str, Any] | None:
        if not self._file.exists():
            return None
        try:
            found = json.loads(self._file.read_text())
            return {"search": dict(found["search"]), "scores": list(found["scores"])}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise LearnError(f"{str(self._file)!r} cannot be read: {type(error).__name__}") from error

    def read(self) -> dict[FitKey, dict[str, float]]:
        """The scores so far."""
        known = self._content() or {"scores": []}
        try:
            return {
                (int(place), float(share), int(fold)): {str(name): float(value) for name, value in scores.items()}
                for place, share, fold, scores in known["scores"]
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise LearnError(f"{str(self._file)!r} cannot be read: {type(error).__name__}") from error

    def write(self, scores: Mapping[FitKey, Mapping[str, float]]) -> None:
        """Replace the file atomically."""
        listed = [[*key, dict(values)] for key, values in sorted(scores.items())]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps({"search": self._described, "scores": listed}).encode(), 0o644)
        except OSError as error:
            raise LearnError(
                f"the folder {str(self._file.parent)!r} cannot be written ({error.strerror}); name another one"
            ) from error
