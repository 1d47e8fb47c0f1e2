"""The commands about promises before they are made, ``tablepuppet privacy``, and the options of commands that print
statistics with noise: how much noise, between which bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tablepuppet.cli.app import App, complain
from tablepuppet.cli.output import JsonOption, print_json, results_console
from tablepuppet.errors import LearnError
from tablepuppet.runs.fitted_text import WideTable

EpsilonOption = Annotated[
    float | None, typer.Option(help="Add noise, and promise this epsilon for the features of a row.")
]
DeltaOption = Annotated[float | None, typer.Option(help="With --epsilon: the delta of the promise; 1e-5 if absent.")]
BoundsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="With --epsilon: between what values of a column are expected, as age=0..120 or "
        "day=2020-01-01..2025-01-01; may repeat."
    ),
]
TimesOption = Annotated[
    int | None, typer.Option(help="With --epsilon: how often a row counts at most; as often as it is joined if absent.")
]
privacy = App(help="Show what privacy will cost and how much noise there will be, before a fit.")
JobArgument = Annotated[Path, typer.Argument(help="The job file (TOML): federation, SQL, label, learner with privacy.")]


def noise_of(
    epsilon: float | None, delta: float | None, bounds: Sequence[str] | None, max_times: int | None
) -> dict[str, Any]:
    """The arguments of a statistic with noise; none without ``epsilon``.

    >>> noise_of(1.0, 1e-5, ["age=0..120", "day=2020-01-01..2026-01-01"], None)["bounds"]
    {'age': (0.0, 120.0), 'day': ('2020-01-01', '2026-01-01')}
    """
    if epsilon is None:
        if bounds or max_times is not None or delta is not None:
            raise LearnError("--delta, --bounds and --max-times are for noise: give --epsilon too, such as --epsilon 1")
        return {}
    from tablepuppet.privacy.settings import Privacy  # loaded by commands that need it: `--help` is at once

    privacy = Privacy(feature_epsilon=epsilon, delta=1e-5 if delta is None else delta)
    return {"privacy": privacy, "bounds": dict(map(_pair, bounds or ())), "max_times": max_times}


def _pair(text: str) -> tuple[str, tuple[float | str, float | str]]:
    name, _, pair = text.rpartition("=")
    low, between, high = pair.partition("..")
    if not (name and between and low and high):
        raise LearnError(f"--bounds {text!r}: write a column and two values, such as age=0..120")
    return name, (_value(low), _value(high))


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


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
