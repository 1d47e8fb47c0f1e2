"""What all commands are made of: help that names who a command is for, and shows no type of a switch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tablepuppet.errors import without_controls

LOOK = "Analysts: look at data"
LEARN = "Analysts: train and predict"
OPERATE = "Operators of parties"


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    """Options of a help text: a switch has no type, and one that may repeat has that of a single value."""
    for param in params:
        if param.metavar is None and getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None and getattr(param, "multiple", False):
            param.metavar = "<str>"
    return params


class App(typer.Typer):
    """A set of commands."""

    def __init__(self, **settings: Any):
        super().__init__(cls=_Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """A command of this set; ``rich_help_panel`` says who it is for. Its docstring is its help."""

        def add(function: Any) -> Any:
            paragraphs = (inspect.getdoc(function) or "").split("\n\n")
            text = "\n\n".join(" ".join(each.split()) for each in paragraphs)  # lines break where the window ends
            return super(App, self).command(name, cls=_Command, help=text, **settings)(function)

        return add


def complain(text: str, style: str) -> None:
    """Print a warning or an error on standard error: on a terminal in lines that fit, elsewhere as it is."""
    from rich.console import Console

    from tablepuppet.runs.fitted_text import fitted

    console, text = Console(stderr=True, highlight=False), without_controls(text)
    text = fitted(text, console.width) if console.is_terminal else text
    console.print(text, style=style, markup=False, soft_wrap=True)
