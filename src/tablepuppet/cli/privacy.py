"""The commands about promises, before they are made: ``tablepuppet privacy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tablepuppet.cli.app import App
from tablepuppet.cli.complaint import complain
from tablepuppet.cli.output import JsonOption, print_json, results_console
from tablepuppet.runs.wide_table import WideTable

privacy = App(help="Show what privacy will cost and how much noise there will be, before a fit.")

JobArgument = Annotated[Path, typer.Argument(help="The job file (TOML): federation, SQL, label, learner with privacy.")]


@privacy.callback()
def _group() -> None:
    """Keep the command's name: a group of one would lose it."""


@privacy.command()
def plan(job: JobArgument, as_json: JsonOption = False) -> None:
    """Print what a job's fit will cost and which noise it will have. Parties are asked for their catalog only."""
    from tablepuppet.privacy_plan import plan_privacy  # it needs scikit-learn, which takes a second to load

    found = plan_privacy(job, lambda text: complain(text, "none"))
    if as_json:
        print_json(found.to_dict())
        return
    screen = results_console()
    screen.print(found.promise, markup=False)
    for view in found.tables():
        screen.print(WideTable(view.rich()))
    for note in found.notes:
        screen.print(note, markup=False)
    for text in found.warnings:
        complain(f"warning: {text}", "yellow")
