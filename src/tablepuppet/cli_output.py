"""What all commands share: the flag for programs, and JSON on standard output."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


def print_json(value: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(plain(value), indent=2, default=str))


def plain(value: Any) -> Any:
    """The value as JSON knows it: a number that is none is null."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
