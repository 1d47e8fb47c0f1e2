"""The plan: only what is used is read, and only plain comparisons go to the source database."""

from __future__ import annotations

import pytest

from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import BranchScan, Plan, conjuncts, plan, pushable
from tablepuppet.sql.query import Comparison
from tests.sql.example import CATALOG

TYPES = {
    "i": "BIGINT",
    "x": "DOUBLE",
    "f": "FLOAT",
    "d": "DECIMAL(8,2)",
    "s": "VARCHAR",
    "day": "DATE",
    "ts": "TIMESTAMP",
    "b": "BOOLEAN",
    "uu": "UUID",
    "two words": "INTEGER",
}


def planned(sql: str, label: str | None = None, drop: tuple[str, ...] = ()) -> Plan:
    """The plan of a SQL text over the shared catalog."""
    return plan(parse(sql, CATALOG, label, drop=drop), CATALOG)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("i = 3", [Comparison("i", "=", (3,))]),
        ("3 < i", [Comparison("i", ">", (3,))]),
        ("-2.5 >= x", [Comparison("x", "<=", (-2.5,))]),
        ("i <> 1e3", [Comparison("i", "<>", (1000.0,))]),
        ("i IN (1, 2)", [Comparison("i", "in", (1, 2))]),
        ("i BETWEEN 1 AND 2", [Comparison("i", ">=", (1,)), Comparison("i", "<=", (2,))]),
        ("s = 'it''s'", [Comparison("s", "=", ("it's",))]),
        ("s IN ('a', 'b')", [Comparison("s", "in", ("a", "b"))]),
        ("s IS NULL", [Comparison("s", "is null")]),
        ("day >= DATE '2024-02-29'", [Comparison("day", ">=", ("2024-02-29",))]),
        ("day IN ('2024-01-01', DATE '2024-01-02')", [Comparison("day", "in", ("2024-01-01", "2024-01-02"))]),
        ("x IS NOT NULL", [Comparison("x", "is not null")]),
        ("\"two words\" = 1 AND (s <> 'x')", [Comparison("two words", "=", (1,)), Comparison("s", "<>", ("x",))]),
    ],
)
def test_plain_comparisons_are_pushed(predicate: str, expected: list[Comparison]) -> None:
    """Comparisons of whole numbers, doubles, days and exact text go to the source database."""
    assert pushable(predicate, TYPES) == tuple(expected)
    assert all(plain for _, plain in conjuncts(predicate, TYPES))


@pytest.mark.parametrize(
    "predicate",
    """
    s < 'm'
    s BETWEEN 'a' AND 'b'
    s LIKE 'a%'
    s = 5
    i = '5'
    i IN (1, 'a')
    i IN (1, NULL)
    NOT i IN (1, 2)
    i = NULL
    f = 0.5
    d > 1
    day >= '24-1-1'
    day = CAST('2023-02-29' AS DATE)
    day IS NULL
    s = CAST('2024-01-01' AS DATE)
    ts < CAST('2024-01-01 00:00:00' AS TIMESTAMP)
    b
    b = TRUE
    NOT b
    uu = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
    i + 1 = 3
    i = x
    i = 1 OR i = 2
    lower(s) = 'a'
    s IS DISTINCT FROM 'a'
    x IS NOT DISTINCT FROM 1
    NOT i IS TRUE
    """.strip().splitlines(),
)
def test_everything_else_is_left_to_the_party(predicate: str) -> None:
    """The order of text, decimals, dates, casts and all that databases disagree about stays with DuckDB."""
    assert pushable(predicate, TYPES) == ()
    assert conjuncts(predicate, TYPES) == ((predicate.strip(), False),)


def test_half_of_a_between_may_be_pushed() -> None:
    """Each end of BETWEEN is pushed if it is plain; the party checks the whole."""
    assert pushable("i BETWEEN 1 AND x", TYPES) == (Comparison("i", ">=", (1,)),)
    assert conjuncts("i BETWEEN 1 AND x", TYPES) == (("i BETWEEN 1 AND x", False),)


def test_only_used_columns_are_read() -> None:
    """A scan reads the columns of outputs, filters and keys, each once, with the vertical table's types."""
    found = planned(
        "SELECT o.price, upper(o.note) AS loud FROM orders o JOIN cards c "
        "ON o.card_id = c.card_id AND lower(c.holder) = lower(o.user) WHERE o.note <> '' AND c.opened > '2020-01-01'"
    )
    orders, east, west = found.scans
    assert list(orders.columns) == ["price", "note", "card_id", "user"]
    assert east.columns == west.columns == {"opened": "DATE", "card_id": "VARCHAR", "holder": "VARCHAR"}
    assert found.parties == ("store", "bank_east", "bank_west")
    assert found.of_party("bank_east") == (east,)
    assert found.of_alias("c") == (east, west)


def test_dropped_columns_are_not_read() -> None:
    """``drop`` and EXCLUDE take columns out of the scan."""
    [scan] = planned("SELECT * EXCLUDE (src) FROM edges", drop=("dst", "kind")).scans
    assert list(scan.columns) == ["weight"]


def test_the_label_travels_with_the_outputs() -> None:
    """The label is an output of its table like any other."""
    [scan] = planned("SELECT price > 3 AS dear, quantity FROM orders", label="dear").scans
    assert scan.outputs == {"dear": "price > 3", "quantity": "quantity"}


def test_a_filter_of_one_branch_only_is_not_pushed() -> None:
    """The source must keep what any branch needs."""
    [scan] = planned("SELECT price FROM orders WHERE quantity = 1 UNION ALL SELECT price FROM orders").scans
    assert scan.filters == ("(quantity = 1)", "")
    assert scan.pushed == ()
    assert scan.branches == (BranchScan(0, ()), BranchScan(1, ()))


def test_a_shard_that_one_branch_reads_has_that_filter_pushed() -> None:
    """Branches that name other shards do not count."""
    east, west = planned(
        "SELECT credit_limit FROM bank_east.cards WHERE credit_limit > 1 UNION ALL "
        "SELECT credit_limit FROM bank_west.cards WHERE credit_limit > 2"
    ).scans
    assert (east.pushed, east.branches) == ((Comparison("credit_limit", ">", (1,)),), (BranchScan(0, ()), None))
    assert (west.pushed, west.branches) == ((Comparison("credit_limit", ">", (2,)),), (None, BranchScan(0, ())))


def test_branches_share_the_keys_they_have_in_common() -> None:
    """The same key under other aliases, order and join order is blinded once."""
    found = planned(
        "SELECT a.weight FROM edges a JOIN edges b ON a.src = b.dst AND a.kind = b.kind UNION ALL "
        "SELECT z.weight FROM edges z JOIN edges y ON y.kind = z.kind AND z.src = y.dst"
    )
    for scan in found.scans:
        assert len(scan.keys) == 1
        assert scan.branches == (BranchScan(0, (0,)), BranchScan(0, (0,)))


def test_the_parts_of_a_composite_key_stand_in_the_same_order_everywhere() -> None:
    """All tables of a key name its parts in one order, and derive its secret from one label."""
    first, second = planned("SELECT a.weight FROM edges a JOIN edges b ON b.kind = a.kind AND a.src = b.dst").scans
    assert (first.keys[0].expressions, second.keys[0].expressions) == (("kind", "src"), ("kind", "dst"))
    assert first.keys[0].label == second.keys[0].label
    assert first.keys[0].families == second.keys[0].families == ("text", "number")
