"""Runs whose events tests write: by the same writer as those of a fit, without one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tablepuppet.runs.event_file import EVENTS, EventFile
from tablepuppet.runs.events import Events, RoundRecord, TripRecord, one_run

HOSTILE = "\"><img src=x onerror=alert(1)>'`${alert(1)}</script>"


def begin(folder: Path, name: str = EVENTS) -> tuple[EventFile, Events]:
    """A run that goes on in a folder; it ends with its file."""
    folder.mkdir()
    file = EventFile(folder / name, {"learner": "LogisticRegression", "label": "late", "settings": {"l2": 0.01}})
    return file, Events([file])


def learn(events: Events, parties: Sequence[str], rounds: int, part: tuple[str, ...] = ()) -> None:
    """The rounds of one fit, each with a trip to every party."""
    with ExitStack() as stack:
        for each in part or ("",):
            stack.enter_context(one_run(each))
        events.emit(
            "info", "fit.begins", "learns", learner="LogisticRegression", solver="lbfgs", rounds=400, rows=1000,
            metric="accuracy", constant={"loss": 0.691, "metric": 0.55}, epsilon=2.0,
            tables={f"t{at}": [party] for at, party in enumerate(parties)},
            budgets=[{"party": parties[0], "table": "cards", "whose": "all", "epsilon": 4.0, "left": 2.8}],
        )  # fmt: skip
        for number in range(1, rounds + 1):
            for party in parties:
                trip = TripRecord(
                    trip=number, party=party, ops=("ridge.direction",), bytes_up=900, bytes_down=100,
                    released={"PREDICTIONS": 900}, seconds=0.002, answered=True,
                )  # fmt: skip
                events.emit_trip(trip)
            record = RoundRecord(
                round=number, seconds=0.005, loss=0.5 + (rounds - number) / 10_000, objective=1.0, metric=0.7,
                epsilon=1.2 * number / rounds, solver="lbfgs", converged=False,
            )  # fmt: skip
            events.emit("progress", "fit", f"round {number}", done=number, total=400, **record.to_dict())
