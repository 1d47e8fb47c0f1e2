"""The picture of a search: the score of every candidate by each setting, with its deviation over folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from tablepuppet.learn.learners.picture import check_kind, new_figure, write
from tablepuppet.runs.figures import metric as metric_text
from tablepuppet.runs.figures import metric_name

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
