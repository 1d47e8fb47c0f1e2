"""A hostile analyst: own requests, written by hand, through the codec to the desk of a bank with a party file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tablepuppet.party.config import Limits
from tablepuppet.party.request import Request, Step
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import KeySpec, Scan, plan
from tablepuppet.wire.codec import decode, encode
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.journal import Journal
from tablepuppet.wire.protocol import read_reply, read_request, request_message
from tests.party.policed import open_party, write_file
from tests.relations import write_party

COLUMNS = """
id = ["key", "feature"]
other = "key"
code = ["key", "feature", "filter"]
amount = ["feature", "filter"]
fraud = "label"
"""


def accounts(rows: int = 60, largest: int = 200) -> pa.Table:
    """Accounts in the order of their ids."""
    row = np.arange(rows)
    return pa.table(
        {
            "id": np.r_[row[:-1], largest],
            "other": row[::-1].copy(),
            "code": [f"C{i}" for i in row],
            "amount": row * 1.5,
            "fraud": (row % 2).astype(np.float64),
        }
    )


def write_bank(folder: Path, rows: pa.Table | None = None, **settings: str) -> Path:
    """A party file over accounts, under the name ``cards``, whose state outlives the party."""
    (folder / "state").mkdir(parents=True, exist_ok=True)
    if not (folder / "bank").exists():
        write_party(folder, "bank", {"cards": accounts() if rows is None else rows})
    return write_file(folder, columns=COLUMNS, top='state_dir = "state"', **settings)


class Attacker:
    """Speaks to the desk of a party as somebody with a good certificate; `restart` starts the party anew."""

    def __init__(self, file: Path, caller: str = "analyst", desk: Desk | None = None):
        self.file, self.caller = file, caller
        self.desk = desk or self._desk()
        self.sent: dict[str, int] = {}

    def _desk(self) -> Desk:
        return Desk(open_party(self.file), Limits(), Journal(self.file.parent / "sessions", "bank"))

    def restart(self) -> None:
        """End the party as kill -9 would, and start it again."""
        self.desk = self._desk()

    def send(self, request: Request) -> Any:
        """What comes back, after both ways over the codec; the party's error is raised."""
        travelled = read_request(decode(encode(request_message(request))), "bank")
        return read_reply(decode(self.desk.answer(self.caller, travelled)), request, "bank")

    def nonce(self) -> str:
        """A nonce of the party's."""
        return str(self.send(Request("describe"))[0]["nonce"])

    def scan(self, sql: str = "SELECT id FROM cards", **changed: Any) -> Scan:
        """A scan of the table, changed at will."""
        catalog = Catalog(self.send(Request("describe"))[0]["tables"])
        return dataclasses.replace(plan(parse(sql, catalog), catalog).scans[0], **changed)

    def open(self, session: str, scan: Scan, nonces: Sequence[str] | None = None) -> dict[str, Any]:
        """Open a session and have its keys blinded."""
        self.sent[session] = 0
        given = tuple([self.nonce()] if nonces is None else nonces)
        arguments = {"scans": (scan,), "wire": "float64", "nonces": given}
        return dict(self.send(Request("open", session, arguments, (Step("keys.blind", scan.alias),), 0))[1])

    def run(self, session: str, op: str, **arguments: Any) -> dict[str, Any]:
        """One op."""
        self.sent[session] += 1
        step = Step(op, "cards", arguments)
        return dict(self.send(Request("run", session, {}, (step,), self.sent[session]))[0])

    def use(self, session: str, view: str, row_ids: NDArray[np.integer], counts: NDArray[np.integer]) -> None:
        """Announce rows that take part."""
        self.run(session, "rows.use", view=view, chosen=row_ids.astype(np.int32), counts=counts)


def keyed(*keys: tuple[str, str], family: str = "number") -> dict[str, Any]:
    """The changes of a scan that has these keys, each a label and an expression."""
    return {"keys": tuple(KeySpec(label, (text,), (family,)) for label, text in keys)}


def digests_of(reply: dict[str, Any], number: int) -> list[bytes]:
    """The digest of every row by row id."""
    digests = reply[f"digests{number}"].view(np.uint8)
    return [digests[code].tobytes() if code < len(digests) else b"" for code in reply[f"codes{number}"]]
