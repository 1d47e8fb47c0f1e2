"""The scores of a search so far, and their picture. With a folder they are in its ``search.json`` too, beside what the
search is about.

The file contains settings and metrics, never a row. That of a different search, or of one over other rows, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from tablepuppet.errors import LearnError
from tablepuppet.learn.learners.picture import check_kind, new_figure, write
from tablepuppet.runs.figures import metric as metric_text
from tablepuppet.runs.figures import metric_name
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


WIDE = 30  # times from the lowest to the highest value: above it, a setting has a logarithmic axis
BEST, OTHERS = "#c2410c", "#1d4ed8"


def draw(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str], metric: str, path: Path, constant: float | None
) -> None:
    """Write a picture; the first row is the best one. ``constant`` is the metric of a model without features."""
    check_kind(path)
    figure = new_figure(4.2 * len(settings) + 0.8, 3.6)
    axes = figure.subplots(1, len(settings), squeeze=False, sharey=True)[0]
    means, spread = [row[f"mean_test_{metric}"] for row in rows], [row[f"std_test_{metric}"] for row in rows]
    for place, (axis, name) in enumerate(zip(axes, settings, strict=True)):
        values = [row[name] for row in rows]
        along = _is_number(values)
        ends = values if along else sorted({str(value) for value in values})
        at = values if along else [ends.index(str(value)) for value in values]
        for number in range(len(rows) - 1, -1, -1):  # the best one last, above the others
            colour = OTHERS if number else BEST
            axis.errorbar(at[number], means[number], spread[number], fmt="o", color=colour, capsize=3, markersize=5)
        if along and min(values) > 0 and max(values) > WIDE * min(values):
            axis.set_xscale("log")
        if not along:
            axis.set_xticks(range(len(ends)), [end.replace(" | ", "\n") for end in ends])
            axis.margins(x=0.2)
        if constant is not None:
            axis.axhline(constant, color="grey", linestyle=":", label=f"constant {metric_text(metric, constant)}")
            axis.legend(fontsize=8)
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        if not place:
            axis.set_ylabel(f"{metric_name(metric)} on folds not learned from")
    figure.suptitle(f"{len(rows)} settings; the best in orange, bars: deviation over folds", fontsize=10)
    write(figure, path)


def _is_number(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Real) and not isinstance(value, bool) for value in values)
