"""A federation in one process whose parties give bounds of numbers in their policies: encoders then cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

import tablepuppet as tp
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.policy import ColumnRule, Policy, TableRule
from tablepuppet.party.service import Party
from tests.relations import Parties, in_process, write_party

KEY = b"the key that all parties share.."


def bounded_federation(folder: Path, parties: Parties, rules: Mapping[str, ColumnRule]) -> tp.Federation:
    """``rules`` hold for columns of that name in every table."""
    folder.mkdir(exist_ok=True)
    urls = {name: write_party(folder, name, tables) for name, tables in parties.items()}
    policy = Policy(others=TableRule(dict(rules)))
    fed = tp.Federation(urls)
    fed.engine = in_process({name: Party(name, open_database(name, url), KEY, policy) for name, url in urls.items()})
    return fed


def column(*values: float | None) -> pa.Array:
    """Numbers, with or without NULLs."""
    return pa.array(values, pa.float64())
