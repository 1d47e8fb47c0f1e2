"""The command line, ended as if by kill -9 at an exact place of its work.

A party ends where the file beside its party file says, ``NAME.dies``: a line is a moment and an op, and is used once. A
coordinator ends before the step of a save that ``DIES_BEFORE`` names, or after as many events as ``DIES_AFTER`` says:
"fit 2".
"""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any

from tablepuppet.cli import main
from tablepuppet.party.request import Request
from tablepuppet.runs.events import Event
from tablepuppet.runs.progress import ProgressReader
from tablepuppet.wire.codec import Encoded
from tablepuppet.wire.desk import Desk

MOMENTS = ("written", "answered")
"""The request is in the journal and not computed; its reply is stored and not sent."""
SAVE = {
    "store": "learn.tables.federated.FederatedModel.store",
    "write": "store.folder.ModelFolder.write",
    "settle": "store.models.keep_only",
    "end": "store.folder.ModelFolder.end",
}
"""The steps of a save in their order, and where they are."""


def die() -> None:
    """No handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_planned(plan: Path, request: Request, moment: str) -> None:
    """End if the first line of the plan is this moment of this request."""
    lines = plan.read_text().splitlines() if plan.exists() else []
    if lines and lines[0] in {f"{moment} {step.op}" for step in request.steps}:
        plan.write_text("\n".join(lines[1:]))
        die()


def plan_party(plan: Path) -> None:
    """Let a party follow a plan."""
    compute, answer = Desk._answer, Desk.answer

    def computing(desk: Desk, request: Request, *rest: Any, **named: Any) -> Encoded:
        die_if_planned(plan, request, "written")
        return compute(desk, request, *rest, **named)

    def answering(desk: Desk, caller: str, request: Request, *rest: Any, **named: Any) -> Encoded:
        reply = answer(desk, caller, request, *rest, **named)
        die_if_planned(plan, request, "answered")
        return reply

    Desk._answer, Desk.answer = computing, answering  # type: ignore[method-assign, assignment]


def die_after(name: str, times: int) -> None:
    """End when so many events of a name have come."""
    read, seen = ProgressReader.__call__, [0]

    def reading(reader: ProgressReader, event: Event) -> None:
        read(reader, event)
        seen[0] += event.name == name
        if seen[0] == times:
            die()

    ProgressReader.__call__ = reading  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    if "DIES_AFTER" in os.environ:
        event, times = os.environ["DIES_AFTER"].split()
        die_after(event, int(times))
    if "DIES_BEFORE" in os.environ:
        place, _, step = SAVE[os.environ["DIES_BEFORE"]].rpartition(".")
        setattr(pkgutil.resolve_name(f"tablepuppet.{place}"), step, lambda *_: die())
    plan_party(Path(sys.argv[-1]).with_suffix(".dies"))
    main()
