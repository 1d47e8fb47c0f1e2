"""The command line, struck by a fault at an exact place of its work.

A party reads ``NAME.plan`` beside its party file; a line is "moment op fault", and is used once. The moments: a request
is in the journal and not computed (``written``), its reply is stored and not sent (``answered``), it is computed again
while a session comes back (``replay``). A coordinator reads the environment's ``STRUCK``: "n fault", before the n-th
request that it records. ``kill`` is kill -9; any other fault is asked for in ``NAME.wants``, and is there when that
file is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tablepuppet.cli import main
from tablepuppet.party.request import Reply, Request
from tablepuppet.wire.codec import Encoded
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.record import RecordedTransport

PATIENCE = 10.0  # seconds until a fault that was asked for is there


def strike(fault: str, wants: Path) -> None:
    """Be struck now."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    draft = wants.with_suffix(".draft")
    draft.write_text(fault)
    draft.replace(wants)
    until = time.monotonic() + PATIENCE
    while wants.exists() and time.monotonic() < until:
        time.sleep(0.005)


def strike_party(plan: Path) -> None:
    """Let a party follow a plan."""
    compute, answer = Desk._answer, Desk.answer

    def planned(request: Request, moment: str) -> None:
        lines = plan.read_text().splitlines() if plan.exists() else []
        if lines and request.verb in ("open", "run"):
            at, op, fault = lines[0].split()
            ops = {step.op for step in request.steps} | {request.verb}
            if at in (moment, "any") and (op == "any" or op in ops):
                plan.write_text("\n".join(lines[1:]))
                strike(fault, plan.with_suffix(".wants"))

    def computing(desk: Desk, request: Request, *rest: Any, **named: Any) -> Encoded:
        planned(request, "replay" if named.get("again") else "written")
        return compute(desk, request, *rest, **named)

    def answering(desk: Desk, caller: str, request: Request, *rest: Any, **named: Any) -> Encoded:
        reply = answer(desk, caller, request, *rest, **named)
        planned(request, "answered")
        return reply

    Desk._answer, Desk.answer = computing, answering  # type: ignore[method-assign, assignment]


def strike_coordinator(times: int, fault: str, wants: Path) -> None:
    """Strike a run before its n-th request."""
    call, seen = RecordedTransport.call, [0]

    def calling(transport: RecordedTransport, request: Request, patience: float | None = None) -> Reply:
        seen[0] += 1
        if seen[0] == times:
            strike(fault, wants)
        return call(transport, request, patience)

    RecordedTransport.call = calling  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    if "STRUCK" in os.environ:
        count, how = os.environ["STRUCK"].split()
        strike_coordinator(int(count), how, Path(os.environ["STRUCK_WANTS"]))
    strike_party(Path(sys.argv[-1]).with_suffix(".plan"))
    main()
