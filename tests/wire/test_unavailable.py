"""A database that cannot be reached: callers of a service get a reference, the operator's log the reason."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.errors import PartyError
from tests.wire.services import calling, served

HOST, USER = "canary-host", "canary_user"


def _urls(folder: Path, postgres_url: str) -> dict[str, tuple[str, str]]:
    """URLs of databases that are not there, and what of them the operator must see and no caller."""
    (folder / f"{HOST}.duckdb").write_text("no database")
    asked = postgres_url.replace("postgresql://postgres:", f"postgresql://{USER}:")
    return {
        "refused": (asked, USER),
        "silent": (f"postgresql://{USER}@127.0.0.1:1/{HOST}", "127.0.0.1"),
        "mysql": (f"mysql://{USER}@127.0.0.1:1/{HOST}", "127.0.0.1"),
        "sqlite": (f"sqlite:///{folder}/{HOST}.db", HOST),
        "duckdb": (f"duckdb:///{folder}/{HOST}.duckdb", HOST),
        "parquet": (f"parquet:///{folder}/{HOST}", HOST),
    }


@pytest.mark.parametrize("kind", ["refused", "silent", "mysql", "sqlite", "duckdb", "parquet"])
def test_callers_get_a_reference(
    kind: str, tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No host, port, user or path reaches a caller; all of it is in the log, under the reference that it got."""
    url, seen = _urls(tmp_path, postgres_url)[kind]
    with (
        caplog.at_level(logging.ERROR, "tablepuppet.party"),
        served({"bank": url}) as servers,
        pytest.raises(PartyError) as caught,
    ):
        calling(servers).sql("SELECT a FROM t")
    found = re.search(r"'bank': database not available, reference ([0-9a-f]{4});", str(caught.value))
    assert found is not None
    for secret in (HOST, USER, "127.0.0.1", str(tmp_path)):
        assert secret not in str(caught.value)
    [line] = [record.getMessage() for record in caplog.records if f"reference {found[1]}:" in record.getMessage()]
    assert seen in line


def test_in_process_parties_say_why(tmp_path: Path) -> None:
    """In the analyst's own process the reason is the error."""
    with pytest.raises(PartyError, match=HOST):
        tp.Federation({"bank": f"sqlite:///{tmp_path}/{HOST}.db"}).sql("SELECT a FROM t")
