"""The table of releases in the docs is that of the op registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tablepuppet.learn import release_table
from tablepuppet.party.ops import REGISTRY, op
from tablepuppet.party.release import Release

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"


def test_the_docs_have_the_registry() -> None:
    """Who sees which release in which algorithm: the docs say what ops declare, line by line."""
    text = DOCUMENT.read_text(encoding="utf-8")
    inside = text.split("<!-- releases -->")[1].split("<!-- end of releases -->")[0].strip()
    assert inside == release_table.release_table(), "python -m tablepuppet.learn.release_table prints it anew"


def test_every_op_is_asked_for_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op says when it is asked for where it is registered, and is in one line of the table; so is a new one."""
    assert all(found.asked for found in REGISTRY.values())
    with pytest.raises(TypeError, match="asked"):
        op("new.op", releases=Release.COUNTS)(dict)  # type: ignore[call-arg]
    monkeypatch.setitem(REGISTRY, "new.op", replace(REGISTRY["rows.use"], name="new.op", asked="a test"))
    lines = release_table.release_table().splitlines()
    assert "| a test | `new.op` | COUNTS | no |" in lines
    assert len(lines) == 2 + len(REGISTRY)
