"""Warnings and errors of the command line. It loads little: a command may be stopped while all else is being loaded."""

from __future__ import annotations

from tablepuppet.errors import without_controls


def complain(text: str, style: str) -> None:
    """Print a warning or an error on standard error: on a terminal in lines that fit, elsewhere as it is."""
    from rich.console import Console

    from tablepuppet.runs.fitted_text import fitted

    console, text = Console(stderr=True, highlight=False), without_controls(text)
    text = fitted(text, console.width) if console.is_terminal else text
    console.print(text, style=style, markup=False, soft_wrap=True)
