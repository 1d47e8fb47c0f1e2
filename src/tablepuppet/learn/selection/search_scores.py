"""The scores of a search so far. With a folder they are in its ``search.json`` too, beside what the search is about.

The file contains settings and metrics, never a row. That of a different search, or of one over other rows, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tablepuppet.errors import LearnError
from tablepuppet.store.files import DamagedFileError, read_facts, write_facts

FILE = "search.json"
FitKey = tuple[int, float, int]  # candidate, share of rows, fold


class SearchScores:
    """Scores by candidate, share of rows and fold; LearnError if the folder has those of another search.

    ``report`` is called after each new score with their number, the candidate, the fold and the score.
    """

    def __init__(self, folder: Path | None, described: Callable[[], Mapping[str, Any]]):
        self._file = None if folder is None else folder / FILE
        self._described = {} if folder is None else json.loads(json.dumps(described(), default=str))
        self._found: dict[FitKey, dict[str, float]] = {}
        self.report: Callable[[int, int, int, Mapping[str, float]], None] = lambda *_: None
        if self._file is not None and self._file.exists():
            self._found = self._read(self._file)

    def _read(self, file: Path) -> dict[FitKey, dict[str, float]]:
        try:
            content = read_facts(file)
            search = dict(content["search"])
            found = {
                (int(place), float(share), int(fold)): {str(name): float(value) for name, value in scores.items()}
                for place, share, fold, scores in content["scores"]
            }
        except OSError as error:
            raise LearnError(f"{str(file)!r} cannot be read ({error.strerror})") from error
        except (DamagedFileError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise LearnError(f"{DamagedFileError(file)}: remove it, and the search begins anew") from error
        if search != self._described:
            changed = [name for name, value in self._described.items() if search.get(name) != value]
            raise LearnError(
                f"{str(file.parent)!r} has another search ({', '.join(changed)} differ): name another folder, or "
                "remove it"
            )
        return found

    @property
    def has_any(self) -> bool:
        """Whether something was measured before: the search goes on."""
        return bool(self._found)

    def has(self, place: int, share: float, fold: int) -> bool:
        """Whether a candidate was measured on a fold."""
        return (place, share, fold) in self._found

    def put(self, place: int, share: float, fold: int, scores: dict[str, float]) -> None:
        """Keep what was measured; the file is replaced atomically."""
        self._found[place, share, fold] = scores
        if self._file is not None:
            listed = [[*key, values] for key, values in sorted(self._found.items())]
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_facts(self._file, {"search": self._described, "scores": listed}, 0o644)
            except OSError as error:
                raise LearnError(
                    f"the folder {str(self._file.parent)!r} cannot be written ({error.strerror}); name another one"
                ) from error
        self.report(len(self._found), place, fold, scores)

    def of(self, place: int, share: float) -> list[dict[str, float]]:
        """Of one candidate, fold by fold."""
        return [scores for (at, of, _), scores in sorted(self._found.items()) if (at, of) == (place, share)]
