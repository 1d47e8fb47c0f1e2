"""EXPLAIN: the whole text, for one SELECT and for a union.

Like the other golden files, ``golden/explain.md`` is written anew with TABLEPUPPET_REGENERATE=1.
"""

from __future__ import annotations

import pytest

from tablepuppet.runs.figures import readable
from tablepuppet.sql.explain import WIDTH, JoinSizes, ShardSize, explain
from tablepuppet.sql.plan import plan
from tests.sql.example import CATALOG
from tests.sql.test_golden import GOLDEN, Case, check, read

CASES = [pytest.param(case, id=case.title) for case in read(GOLDEN / "explain.md")]


def explained(case: Case, local: frozenset[str] = frozenset()) -> str:
    """EXPLAIN of a case, with made-up sizes: of each shard a half is read, of that a quarter takes part."""
    found = plan(case.parse(), CATALOG)
    rows = {(s.party, alias): s.rows for alias, table in found.tables.items() for s in table.shards}
    shards = {key: ShardSize(count // 2, count // 8) for key, count in rows.items()}
    return explain(found, JoinSizes(2_101_815, 25_221_780, shards, 4), local)


@pytest.mark.parametrize("case", CASES)
def test_explain_is_this_text(case: Case) -> None:
    """The tree, the bytes of a round and the advice are those in the file."""
    check(case, explained(case))


@pytest.mark.parametrize("case", CASES)
def test_explain_fits_a_terminal(case: Case) -> None:
    """No line is wider than WIDTH, and no tree line hangs in the air."""
    for line in explained(case).splitlines():
        assert len(line) <= WIDTH
        assert line == line.rstrip()


def test_parties_of_this_process_need_no_network() -> None:
    """Where all parties are local, EXPLAIN says that nothing crosses a network."""
    [case] = [case for case in read(GOLDEN / "explain.md") if case.title == "One table"]
    assert explained(case, frozenset({"geo"})).endswith("all parties are in this process: nothing crosses a network.")
    assert "in this process" not in explained(case)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (31_234_567, "31.2 MB"), (5e13, "50 TB")]
)
def test_sizes_are_readable(size: float, text: str) -> None:
    """Three digits and a unit."""
    assert readable(size) == text
