"""The table of releases in the docs is that of the op registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from tablepuppet.learn import release_table
from tablepuppet.party.ops import REGISTRY

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"


def test_the_docs_have_the_registry() -> None:
    """Who sees which release in which algorithm: the docs say what ops declare, line by line."""
    text = DOCUMENT.read_text(encoding="utf-8")
    inside = text.split("<!-- releases -->")[1].split("<!-- end of releases -->")[0].strip()
    assert inside == release_table.release_table(), "python -m tablepuppet.learn.release_table prints it anew"


def test_every_op_is_asked_for_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op is in one line of the table; a new one that is in none is an error."""
    names = [name for names in release_table.ASKED.values() for name in names]
    assert sorted(names) == sorted(REGISTRY)
    monkeypatch.setitem(REGISTRY, "new.op", REGISTRY["rows.use"])
    with pytest.raises(KeyError, match=r"say in ASKED when new\.op"):
        release_table.release_table()
