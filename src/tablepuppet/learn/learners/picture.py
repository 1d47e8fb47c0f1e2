"""Pictures with matplotlib, which is loaded when one is drawn: a figure that notebooks show, its file, and
that of a fit: loss and metric by round, of the rows learned from and of those held out, if there are some."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tablepuppet.errors import LearnError
from tablepuppet.runs.figures import metric as metric_text
from tablepuppet.runs.figures import metric_name
from tablepuppet.store.files import write_output_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KINDS = (".png", ".svg", ".pdf")
DOTS = 120  # per inch


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches; LearnError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LearnError("plot needs matplotlib: pip install 'tablepuppet[demo]', or matplotlib itself") from error

    class Shown(Figure):
        """A figure that a notebook shows, whatever its backend is."""

        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=DOTS)
            return out.getvalue()

    figure = Shown(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_kind(path: Path) -> None:
    """LearnError unless the file is of a kind that can be written."""
    if path.suffix.lower() not in KINDS:
        raise LearnError(f"plot writes {', '.join(KINDS)}; name such a file, not {str(path)!r}")


def write(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all; LearnError if the place cannot be written."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=DOTS)
    try:
        write_output_file(path, drawn.getvalue())
    except OSError as error:
        raise LearnError(f"{str(path)!r} cannot be written ({error.strerror})") from error


LEARNED, HELD_OUT, BEST, CONSTANT = "#1d4ed8", "#c2410c", "grey", "grey"
FEW = 40  # rounds up to which each has a dot


def draw_history(
    history: Sequence[Mapping[str, Any]],
    metric: str,
    title: str,
    best_round: int | None = None,
    constant: Mapping[str, float] = MappingProxyType({}),
) -> Figure:
    """Draw the rounds of a fit; ``best_round`` is the one whose parameters the model has, where that was chosen.

    ``constant`` has loss and metric of a model without features on the rows learned from, if they are known.
    """
    if not history:
        raise LearnError("plot: this model has no rounds to draw; its solver found the parameters in one step")
    figure = new_figure(9.2, 3.4)
    rounds = [row["round"] for row in history]
    drawn = {"loss": "loss"} if metric == "loss" else {"loss": "loss", "metric": metric_name(metric)}
    for axis, (key, name) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        lines = {key: ("rows learned from", LEARNED), f"validation_{key}": ("rows held out", HELD_OUT)}
        for each, (words, colour) in lines.items():
            values = [row.get(each) for row in history]
            if any(value is not None for value in values):
                known = [float("nan") if value is None else value for value in values]
                axis.plot(rounds, known, color=colour, label=words, marker="o" if len(rounds) <= FEW else "", ms=3)
        if best_round is not None and best_round in rounds:
            axis.axvline(best_round, color=BEST, linestyle=":", label=f"kept: round {best_round}")
        if key in constant:
            words = f"a constant: {metric_text(metric if key == 'metric' else key, constant[key])}"
            axis.axhline(constant[key], color=CONSTANT, linestyle="--", label=words)
        axis.set_xlabel("round")
        axis.set_ylabel(name)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    return figure
