"""docs/sql.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tablepuppet.sql.expression import FORMS, FUNCTIONS
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import plan
from tests.sql.example import CATALOG

TEXT = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
EXAMPLES = re.findall(r"```sql\n(.*?)\n```", TEXT, re.DOTALL)


@pytest.mark.parametrize("sql", EXAMPLES)
def test_examples_are_planned(sql: str) -> None:
    """Every example of the page becomes a plan."""
    plan(parse(sql, CATALOG), CATALOG)


def test_every_function_is_listed() -> None:
    """The page lists the functions that an expression may call, and no other."""
    listed = re.findall(r"`([a-z0-9_]+)`", TEXT.partition("**Numbers:**")[2])
    assert sorted(listed) == sorted(FUNCTIONS | FORMS)
