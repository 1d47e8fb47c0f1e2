"""What all commands share: the flag for programs, and JSON on standard output."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


def print_json(value: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(value, indent=2, default=str))
