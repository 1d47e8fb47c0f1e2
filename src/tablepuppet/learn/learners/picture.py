"""Pictures with matplotlib, which is loaded when one is drawn: a figure that notebooks show, and its file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from tablepuppet.errors import LearnError
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
