"""A bank behind a party file, and a federation that calls it as one caller or another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tablepuppet.party.audit import AuditLog
from tablepuppet.party.config import PartyFile
from tablepuppet.party.published import open_published
from tablepuppet.party.service import Party
from tests.relations import in_process, write_party

ROWS = 60
CANARY = "canary-кана́рейка"
RARE = f"{CANARY}-town"
PIN = 48151623.4208

COLUMNS = """
card = "key"
day = "filter"
region = ["feature", "filter"]
town = "feature"
credit = "feature"
few = "feature"
open = { uses = ["feature"], level = "public" }
secret = { uses = ["key", "filter", "feature", "label"], level = "private" }
fraud = "label"
"""


def cards() -> pa.Table:
    """Sixty cards, with a town that two of them have, a column that four have a value of, and a hidden pin."""
    row = np.arange(ROWS)
    return pa.table(
        {
            "card": row,
            "day": row % 7,
            "region": [f"region{i % 3}" for i in row],
            "town": [RARE if i < 2 else f"town{i % 2}" for i in row],
            "credit": np.round(np.sin(row) * 1000) + 0.25,
            "few": [PIN + i if i < 4 else None for i in row.tolist()],
            "open": row * 1.5,
            "secret": row * 2.5 + PIN,
            "fraud": (row * 37 % 100 > 40).astype(np.float64),
            "pin": row + PIN,
        }
    )


def write_file(
    folder: Path, limits: str = "", table: str = "", columns: str = COLUMNS, top: str = "", more: str = ""
) -> Path:
    """A party file over the cards, with settings added at every place."""
    if not (folder / "bank").exists():
        write_party(folder, "bank", {"cards": cards(), "staff": pa.table({"name": [CANARY], "card": [1]})})
    file = folder / "party.toml"
    file.write_text(
        f'name = "bank"\nlisten = "127.0.0.1:8815"\ndatabase = "parquet:///bank"\nblinding_key = "blinding.key"\n'
        f'allow = ["analyst", "auditor"]\n{top}\n[limits]\n{limits}\n[tables.cards]\n{table}\n'
        f"[tables.cards.columns]\n{columns}\n{more}\n"
    )
    return file


def limit(party: Party, **limits: float | None) -> None:
    """Give a party that is open other limits."""
    policy = party._guard.policy
    party._guard.policy = replace(policy, limits=msgspec.structs.replace(policy.limits, **limits))


def open_party(file: Path) -> Party:
    """The party of a file, as a daemon would make it."""
    settings = PartyFile.load(file)
    state = Path(settings.state_dir) if settings.state_dir else None
    return Party(
        settings.name,
        open_published(settings),
        b"the key that all parties share..",
        settings.policy(),
        row_secret=b"row secret",
        audit=AuditLog(Path(settings.audit_log), state=state, with_text=settings.audit_text),
        state_dir=state,
    )


def federation(party: Party, caller: str = "analyst") -> tp.Federation:
    """A federation of one party, as a caller sees it."""
    fed = tp.Federation({party.name: "parquet:///unused"})
    fed.engine = in_process({party.name: party}, caller)
    return fed


def audit_lines(folder: Path) -> list[dict[str, Any]]:
    """What the audit log says."""
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
