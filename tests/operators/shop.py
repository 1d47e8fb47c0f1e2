"""A store and a supplier behind party files, as an analyst calls them: for predictions with ids, and that go home."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

import tablepuppet as tp
from tablepuppet.party.audit import AuditLog
from tablepuppet.party.config import PartyFile
from tablepuppet.party.published import open_deliveries, open_published
from tablepuppet.party.service import Party
from tests.relations import in_process, write_party

ORDERS, ITEMS = 120, 12
SQL = "SELECT o.price, i.weight, i.kind, o.returned FROM orders o JOIN items i USING (item_id)"
CANARY = "canary-order"


def orders() -> pa.Table:
    """Orders with an id of every type, NULLs among them."""
    row = np.arange(ORDERS)
    rng = np.random.default_rng(0)
    day, second = date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)
    return pa.table(
        {
            "order_id": row * 7 + 3,
            "item_id": row % (ITEMS - 1),
            "price": rng.normal(size=ORDERS),
            "code": [None if i % 5 == 0 else f"{CANARY}-é{i}" for i in row.tolist()],
            "small": pa.array([None if i % 7 == 0 else i for i in row.tolist()], pa.uint8()),
            "uuid": [str(UUID(int=i)) for i in row.tolist()],
            "day": [day + timedelta(days=i) for i in row.tolist()],
            "moment": pa.array([second + timedelta(seconds=i) for i in row.tolist()], pa.timestamp("us", "UTC")),
            "amount": pa.array([Decimal(i) / 100 for i in row.tolist()], pa.decimal128(12, 2)),
            "gift": (row % 3 == 0),
            "ratio": rng.normal(size=ORDERS),
            "returned": np.array(["no", "yes"])[row * 37 % 100 // 41 % 2],
        }
    )


def items() -> pa.Table:
    """Items of three kinds; the last is never ordered."""
    row = np.arange(ITEMS)
    return pa.table({"item_id": row, "weight": np.sin(row), "kind": [f"kind{i % 3}" for i in row]})


ORDER_COLUMNS = {
    "order_id": "id", "item_id": "key", "price": "feature", "returned": "label",
    **dict.fromkeys(("code", "small", "uuid", "day", "moment", "amount", "gift", "ratio"), "id"),
}  # fmt: skip
ITEM_COLUMNS: dict[str, Any] = {"item_id": "key", "weight": "feature", "kind": "feature"}


def party_file(
    folder: Path,
    name: str,
    tables: dict[str, pa.Table],
    columns: dict[str, Any],
    table: str = "",
    top: str = "",
    kind: str = "parquet",
) -> Path:
    """A party file over one table, with settings added for the table and at the top."""
    [(published, _)] = tables.items()
    place = folder / (f"{name}.duckdb" if kind == "duckdb" else name)
    url = f"{kind}:///{place}" if place.exists() else write_party(folder, name, tables, kind)
    listed = "\n".join(f"{column} = {json.dumps(uses)}" for column, uses in columns.items())
    listed = listed.replace('": ', '" = ').replace('"uses"', "uses").replace('"level"', "level")
    file = folder / f"{name}.toml"
    (folder / f"{name}-state").mkdir(exist_ok=True)
    file.write_text(
        f'name = "{name}"\nlisten = "127.0.0.1:0"\ndatabase = "{url}"\nblinding_key = "blinding.key"\n'
        f'allow = ["analyst"]\naudit_log = "{name}.jsonl"\nstate_dir = "{name}-state"\n{top}\n'
        f"[tables.{published}]\nmin_rows = 2\nmin_group = 2\n{table}\n[tables.{published}.columns]\n{listed}\n"
    )
    return file


def opened(file: Path) -> Party:
    """The party of a file, as a daemon would make it."""
    settings = PartyFile.load(file)
    assert settings.state_dir is not None
    return Party(
        settings.name,
        open_published(settings),
        b"the key that all parties share..",
        settings.policy(),
        row_secret=settings.name.encode(),
        audit=AuditLog(Path(settings.audit_log)),
        state_dir=Path(settings.state_dir),
        deliveries=open_deliveries(settings),
    )


def called(*parties: Party, caller: str = "analyst") -> tp.Federation:
    """A federation of parties, as a caller sees it."""
    fed = tp.Federation({party.name: "parquet:///unused" for party in parties})
    fed.engine = in_process({party.name: party for party in parties}, caller)
    return fed


def shop(
    folder: Path, store: str = "", supplier: str = "", kind: str = "parquet", columns: dict[str, Any] | None = None
) -> tp.Federation:
    """The store and the supplier, with settings added to the tables of either."""
    first = party_file(folder, "store", {"orders": orders()}, columns or ORDER_COLUMNS, store, kind=kind)
    second = party_file(folder, "supplier", {"items": items()}, ITEM_COLUMNS, supplier)
    return called(opened(first), opened(second))


def log(folder: Path, party: str) -> list[dict[str, Any]]:
    """What a party's audit log says."""
    return [json.loads(line) for line in (folder / f"{party}.jsonl").read_text().splitlines()]
