"""The commands about promises, before they are made: ``tablepuppet privacy``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tablepuppet.cli.output import JsonOption, print_json
from tablepuppet.runs.wide_table import WideTable

privacy = typer.Typer(
    help="Show what privacy will cost and how much noise there will be, before a fit.", no_args_is_help=True
)

JobArgument = Annotated[Path, typer.Argument(help="The job file (TOML): federation, SQL, label, learner with privacy.")]


@privacy.callback()
def _group() -> None:
    """Keep the command's name: a group of one would lose it."""


@privacy.command()
def plan(job: JobArgument, as_json: JsonOption = False) -> None:
    """Print what a job's fit will cost and which noise it will have. Parties are asked for their catalog only."""
    from tablepuppet.privacy_plan import plan_privacy  # it needs scikit-learn, which takes a second to load

    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    found = plan_privacy(job, lambda text: errors.print(text, markup=False))
    if as_json:
        print_json(found.to_dict())
        return
    screen = Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=False)
    screen.print(found.promise, markup=False)
    for view in found.tables():
        screen.print(WideTable(view.rich()))
    for note in found.notes:
        screen.print(note, markup=False)
    for text in found.warnings:
        errors.print(f"warning: {text}", style="yellow", markup=False)
