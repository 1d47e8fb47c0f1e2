"""What the audit log costs: processor time of a round at a party with the log, with syslog too, and without.

Run with ``python -m benchmarks.audit``. Parties are in this process and answer an op that computes next to nothing, so
that what differs is the log: a line with its mark, its place in the chain, and the file. They take turns.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import benchmarks.wire  # noqa: F401 - registers benchmark.echo
from tablepuppet.party.audit import AuditLog
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.request import Request, Step
from tablepuppet.party.service import Party
from tablepuppet.party.syslog import Syslog
from tablepuppet.sql.plan import Scan

TURNS, ROUNDS = 15, 400
KINDS = ("without", "log", "log and syslog")


@contextmanager
def listener() -> Iterator[str]:
    """The address of a syslog that reads nothing: what does not fit is dropped by the system."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{found.getsockname()[1]}"


def party(folder: Path, kind: str, address: str) -> Party:
    """A party over a table of a hundred numbers, with a session ``s``."""
    folder.mkdir()
    pq.write_table(pa.table({"x": np.arange(100.0)}), folder / "t.parquet")
    syslog = Syslog(address, "bank") if kind == KINDS[2] else None
    audit = AuditLog(None if kind == KINDS[0] else folder / "audit.jsonl", state=folder, syslog=syslog)
    found = Party("bank", open_database("bank", f"parquet://{folder}"), b"k" * 32, row_secret=b"r", audit=audit)
    scan = Scan("bank", "t", "t", {"x": "DOUBLE"}, {"x": "x"}, ("",), (), (), ())
    nonce = found.answer("analyst", Request("describe"))[0]["nonce"]
    found.answer("analyst", Request("open", "s", {"scans": (scan,), "wire": "float64", "nonces": (nonce,)}, (), 0))
    return found


def turn(found: Party, first: int) -> float:
    """Processor seconds of a round, on average over some."""
    step = Step("benchmark.echo", "t", {"values": np.zeros(1)})
    start = time.process_time()
    for number in range(first, first + ROUNDS):
        found.answer("analyst", Request("run", "s", {}, (step,), number))
    return (time.process_time() - start) / ROUNDS


def main() -> None:
    """The command."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tablepuppet-audit-")))
        address = stack.enter_context(listener())
        parties = {kind: party(folder / str(place), kind, address) for place, kind in enumerate(KINDS)}
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(TURNS):
            for kind, found in parties.items():
                seconds[kind].append(turn(found, 1 + number * ROUNDS))
        for kind in KINDS:
            more = median(a - b for a, b in zip(seconds[kind], seconds["without"], strict=True))
            print(f"{kind:16} {1e6 * median(seconds[kind]):8.0f} us a round, {1e6 * more:6.0f} us more than without")
        lines = (folder / "1" / "audit.jsonl").read_bytes().splitlines()
        print(f"a line has {len(lines[-1]):,} bytes")
        for found in parties.values():
            found.close_log()


if __name__ == "__main__":
    main()
