"""Rows against a hostile analyst: their order, small groups of them, and whether an expression fails on one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.blind import blind
from tablepuppet.party.snapshot import EvaluationError
from tests.party.policed import audit_lines, federation, open_party
from tests.relations import federation as in_process
from tests.wire.hostile import Attacker, accounts, digests_of, keyed, write_bank

EVERY = np.arange(60)
ONCE = np.ones(60, np.int64)
VALUES = "SELECT amount FROM cards"


@pytest.fixture
def attacker(tmp_path: Path) -> Attacker:
    return Attacker(write_bank(tmp_path))


def order_of(who: Attacker, session: str, sql: str = VALUES) -> list[int]:
    """The place in the source of every row id, as only the party knows it."""
    who.open(session, who.scan(sql))
    snapshot = who.desk.party.table(session, "cards", who.caller).snapshot
    return [int(place) for place in snapshot.position(EVERY)]


# Row ids


def test_row_ids_differ_by_caller_and_data(attacker: Attacker, tmp_path: Path) -> None:
    """One caller on unchanged data finds the same row ids, also after a restart; other callers or data have others."""
    first = order_of(attacker, "s")
    attacker.restart()
    assert order_of(attacker, "t") == first
    orders = [first, order_of(Attacker(attacker.file, "auditor", attacker.desk), "s"), sorted(first)]
    changed = accounts().set_column(3, "amount", pa.array(EVERY * 1.5 + (EVERY == 7)))
    pyarrow.parquet.write_table(changed, tmp_path / "bank" / "cards.parquet")
    orders.append(order_of(attacker, "u"))
    for number, order in enumerate(orders):
        assert sorted(order) == EVERY.tolist()
        assert all(np.mean(np.equal(order, other)) < 0.2 for other in orders[:number])


# Splits


def ask_order(who: Attacker, session: str, bit: int) -> np.ndarray[Any, Any]:
    """One bit of every row's place, by row id."""
    reply = who.run(session, "rows.sample", view="v", ranks=np.flatnonzero(EVERY >> bit & 1))
    return np.unpackbits(reply["chosen"], count=60).astype(bool)


def test_splits_are_counted(tmp_path: Path) -> None:
    """The order of the source was told in log2(n) requests; each choice counts, over sessions and restarts."""
    attacker = Attacker(write_bank(tmp_path, limits="max_splits = 3"))
    order = order_of(attacker, "s")
    attacker.use("s", "v", EVERY, ONCE)
    for bit in (0, 1, 2, 1, 0):
        assert np.array_equal(ask_order(attacker, "s", bit), np.array(order) >> bit & 1)
    with pytest.raises(tp.PrivacyError, match=r"'cards': caller 'analyst' has used 3 distinct splits.*rule max_splits"):
        ask_order(attacker, "s", 3)
    attacker.restart()
    attacker.open("t", attacker.scan("SELECT code FROM cards"))  # the same rows under other row ids
    attacker.use("t", "v", EVERY, ONCE)
    ask_order(attacker, "t", 2)
    for ranks in (np.zeros(0, np.int64), EVERY):  # tells nothing
        attacker.run("t", "rows.sample", view="v", ranks=ranks)
    attacker.use("t", "w", EVERY[:30], ONCE[:30])  # other rows: another choice
    for view, ranks in (("v", EVERY[:30]), ("w", EVERY[:1]), ("w", EVERY[:15])):
        with pytest.raises(tp.PrivacyError, match="max_splits"):
            attacker.run("t", "rows.sample", view=view, ranks=ranks)
    assert audit_lines(tmp_path)[-1]["rule"] == "max_splits"
    other = Attacker(attacker.file, "auditor", attacker.desk)
    other.open("s", other.scan(VALUES))
    other.use("s", "v", EVERY, ONCE)
    ask_order(other, "s", 3)


def test_splits_within_classes_are_counted(tmp_path: Path) -> None:
    """Ranks within classes count as any other, by the classes too; how a session numbers these does not matter."""
    attacker = Attacker(write_bank(tmp_path, limits="max_splits = 2"))
    order = np.array(order_of(attacker, "s"))
    attacker.use("s", "v", EVERY, ONCE)
    for classes in (EVERY % 3, 2 - EVERY % 3):
        sizes = np.bincount(classes)
        firsts = np.cumsum(sizes) - sizes
        reply = attacker.run("s", "rows.sample", view="v", ranks=firsts, classes=classes)
        chosen = np.flatnonzero(np.unpackbits(reply["chosen"], count=60))
        assert {int(order[row]) for row in chosen} == {int(order[classes == each].min()) for each in range(3)}
    attacker.run("s", "rows.sample", view="v", ranks=EVERY[:1], classes=EVERY // 30)
    for other in (EVERY // 2, EVERY // 30):
        with pytest.raises(tp.PrivacyError, match="max_splits"):
            attacker.run("s", "rows.sample", view="v", ranks=EVERY[:2], classes=other)
    for wrong in (EVERY[:59], EVERY.reshape(2, 30), EVERY + 0.5):
        with pytest.raises(tp.PartyError, match=r"a class for each of the 60 rows|classes"):
            attacker.run("s", "rows.sample", view="v", ranks=EVERY[:1], classes=wrong)


def test_copies_of_rows_are_splits_of_their_own(tmp_path: Path) -> None:
    """Rows listed six times showed, by six ranks for each place, their whole order in one split."""
    attacker = Attacker(write_bank(tmp_path, limits="max_splits = 5"))
    attacker.open("s", attacker.scan(VALUES))
    attacker.use("s", "v", np.repeat(EVERY, 6), np.ones(360, np.int64))
    bits = EVERY[:, None] >> np.arange(6) & 1  # (places, copies)
    with pytest.raises(tp.PrivacyError, match="max_splits"):
        attacker.run("s", "rows.sample", view="v", ranks=np.flatnonzero(bits))


def test_one_copy_of_rows_is_one_split(tmp_path: Path) -> None:
    """Copies that no rank can choose tell nothing: folds of rows that are listed often count as those of others."""
    attacker = Attacker(write_bank(tmp_path, limits="max_splits = 5"))
    attacker.open("s", attacker.scan(VALUES))
    attacker.use("s", "v", np.repeat(EVERY, 6), np.ones(360, np.int64))
    again = np.tile(np.arange(6) > 0, 60).astype(np.int64)
    for bit in range(5):
        attacker.run("s", "rows.sample", view="v", ranks=np.flatnonzero(EVERY >> bit & 1), classes=again)
    with pytest.raises(tp.PrivacyError, match="max_splits"):
        attacker.run("s", "rows.sample", view="v", ranks=np.flatnonzero(EVERY >> 5 & 1), classes=again)


def test_folds_of_a_step_are_splits(tmp_path: Path) -> None:
    """A step whose numbers are by fold told the folds of all rows, so a part of their order, and counted as nothing."""
    attacker = Attacker(write_bank(tmp_path, limits="max_splits = 4"))
    order = np.array(order_of(attacker, "s", "SELECT code FROM cards"))
    attacker.use("s", "v", EVERY, ONCE)

    def fold_of_rows(seed: int, shuffle: bool = True) -> Any:
        lookup = {"kind": "lookup", "column": "code", "values": [], "other": 0.0, "missing": 0.0}
        numbers = {"values": [], "other": np.arange(12.0).tolist(), "missing": [0.0] * 12, "full": lookup}
        step = {"kind": "fold_lookup", "column": "code", "folds": 12, "seed": seed, "shuffle": shuffle} | numbers
        read = {"columns": [], "categories": [("code", "text")], "digests0": np.zeros((0, 16), np.uint8)}
        encoders = {"means": np.zeros(1), "scales": np.ones(1), "steps": [step]}
        attacker.run("s", "encode.build", view="v", encoding="e", **read, **encoders)
        return attacker.run("s", "model.apply", view="v", encoding="e", spec=Linear(1), theta=np.ones(1))["outputs"]

    for _ in range(2):  # the same folds again cost nothing
        assert np.array_equal(fold_of_rows(0, shuffle=False), order // 5)
    for bit in range(4):  # nor does asking for them plainly
        chosen = attacker.run("s", "rows.sample", view="v", ranks=np.flatnonzero(EVERY // 5 >> bit & 1))["chosen"]
        assert np.array_equal(np.unpackbits(chosen, count=60), order // 5 >> bit & 1)
    with pytest.raises(tp.PrivacyError, match="max_splits"):
        fold_of_rows(1)


def test_honest_splits_repeat_for_nothing(tmp_path: Path) -> None:
    """One seed and share count once, whatever is selected; a table that has got more rows has a new allowance."""
    file = write_bank(tmp_path, limits="max_splits = 1")
    for select in ("amount", "code", "amount + 1 AS more"):
        fed = federation(open_party(file))
        assert len(fed.sql(f"SELECT {select}, fraud FROM cards", label="fraud").split(0.5, seed=3)[1]) == 30
    with pytest.raises(tp.PrivacyError, match="max_splits"):
        fed.sql(VALUES).split(0.5, seed=4)
    pyarrow.parquet.write_table(accounts(61), tmp_path / "bank" / "cards.parquet")
    fed.sql(VALUES).split(0.5, seed=4)


# Small groups


def test_rows_that_are_joined_no_time_are_refused(attacker: Attacker) -> None:
    """One row, or all rows, with a count of 0 passed min_rows, and the row was learned of."""
    attacker.open("s", attacker.scan(VALUES))
    for row_ids, counts in (([7], [0]), (EVERY, 0 * ONCE), (EVERY, np.eye(1, 60, 7, dtype=np.int64)[0])):
        with pytest.raises(tp.PartyError, match="counts must be at least 1"):
            attacker.use("s", "v", np.array(row_ids), np.array(counts))
    with pytest.raises(tp.PrivacyError, match=r"fewer than 10 of its rows take part .*rule min_rows"):
        attacker.use("s", "v", np.full(60, 7), ONCE)


def test_a_row_that_is_listed_often_is_one_row(tmp_path: Path) -> None:
    """A row listed five times is no group of five: its number is told as missing, its category not at all."""
    rows = accounts().set_column(3, "amount", pa.array([1234.5 if i == 7 else None for i in range(60)]))
    attacker = Attacker(write_bank(tmp_path, rows))
    row = order_of(attacker, "s", "SELECT amount, code FROM cards").index(7)
    attacker.use("s", "v", np.r_[EVERY, np.full(40, row)], np.ones(100, np.int64))
    [sums] = attacker.run("s", "statistics.numbers", view="v", columns=["amount"])["sums"]
    assert sums[0] == 0
    assert np.isnan(sums[1])
    asked = {"column": "code", "family": "text", "blinding": "b", "most": None}
    told = attacker.run("s", "statistics.categories", view="v", **asked)
    assert (told["distinct"], told["missing"], len(told["digests"])) == (0, 100.0, 0)


def test_unreduced_relations_still_have_groups(tmp_path: Path) -> None:
    """Where a learner lists rows as often as they are joined, groups of different rows are told as before."""
    file = write_bank(tmp_path, accounts().set_column(2, "code", pa.array(["u", "v"] * 30)))
    fed = federation(open_party(file))
    relation = fed.sql("SELECT a.code, a.amount FROM cards a JOIN cards b ON a.id = b.other")
    both = [each.describe().to_arrow().to_pydict() for each in (relation, relation.without_reduction())]
    assert both[0] == both[1]
    assert both[0]["distinct"][0] == 2


# Failing expressions

FAILING = """
CAST(id AS UTINYINT); id::TINYINT + 1; CAST(CAST(id AS VARCHAR) AS DATE); 9223372036854775000 + id
chr(CAST(id AS INTEGER)); strptime(CAST(id AS VARCHAR), '%d'); make_date(CAST(id AS INTEGER), 1, 1)
factorial(CAST(id AS INTEGER)); CASE WHEN id > 255 THEN CAST(code AS INTEGER) ELSE 0 END
date_part(code, DATE '2024-01-01'); id > CAST(code AS INTEGER)
"""


@pytest.mark.parametrize("text", [text.strip() for text in FAILING.strip().replace("\n", ";").split(";")])
def test_expressions_do_not_fail_on_values(tmp_path: Path, text: str) -> None:
    """Whether an id is above 255 decides about no error, in the SELECT list or in a filter: such values are NULL."""
    told = []
    for largest in (200, 2_000_000_000):
        folder = tmp_path / str(largest)
        folder.mkdir()
        columns = 'id = ["key", "feature", "filter"]\ncode = ["key", "feature", "filter"]'
        file = write_bank(folder, accounts(largest=largest))
        file.write_text(file.read_text().partition("[tables.cards.columns]")[0] + "[tables.cards.columns]\n" + columns)
        attacker = Attacker(file)
        scan = attacker.scan(f"SELECT {text} AS x FROM cards WHERE (({text}) IS NULL) OR TRUE")
        attacker.open("s", scan)
        told.append(attacker.desk.party.table("s", "cards", "analyst").snapshot.rows)
        assert not (folder / "state" / "used.json").read_text().count("failures")
    assert told == [60, 60]


@pytest.mark.parametrize("kind", ["UTINYINT", "SMALLINT", "DECIMAL(5,2)", "DATE", "VARCHAR", "DECIMAL", "BIGINT[]", ""])
def test_columns_are_read_as_published(attacker: Attacker, kind: str) -> None:
    """A column is read as its own type or one that holds it: reading ids as UTINYINT failed if one is above 255."""
    for scan in (
        attacker.scan(columns={"id": kind}),
        attacker.scan(columns={"id": kind}, outputs={}, **keyed(("L", "id"))),
    ):
        with pytest.raises(tp.PartyError, match="column 'id' is BIGINT and cannot be read as"):
            attacker.open(f"s{len(scan.keys)}", scan)
    reply = attacker.open("t", attacker.scan(columns={"id": "HUGEINT"}, **keyed(("L", "id"))))
    assert len(set(digests_of(reply, 0))) == 60


def test_what_fails_all_the_same_is_counted(tmp_path: Path) -> None:
    """DuckDB casts a text within IN where nothing catches it: the error says the same always, and comes so often."""
    attacker = Attacker(write_bank(tmp_path, limits="max_failures = 2"))
    for number, text in enumerate(("code IN (1, 2)", "code IN (1, 2)", "code IN (3, 4)")):
        with pytest.raises(tp.PartyError, match=r"over table 'cards' fails on its rows; use TRY_CAST, or filter"):
            attacker.open(f"s{number}", attacker.scan(f"SELECT ({text}) AS x FROM cards"))
    assert {line["rule"] for line in audit_lines(tmp_path) if line["outcome"] == "failed"} == {EvaluationError.__name__}
    attacker.restart()
    for number, sql in enumerate(("SELECT id + 1 AS x FROM cards", "SELECT id FROM cards WHERE amount > 3")):
        with pytest.raises(tp.PrivacyError, match=r"have failed on its rows 2 times.*rule max_failures"):
            attacker.open(f"t{number}", attacker.scan(sql))
    attacker.open("u", attacker.scan())
    Attacker(attacker.file, "auditor", attacker.desk).open("u", attacker.scan("SELECT id + 1 AS x FROM cards"))


def test_what_no_row_decides_is_not_counted(attacker: Attacker, tmp_path: Path) -> None:
    """An expression that cannot be evaluated over any rows tells of none: the error says what DuckDB calls it."""
    with pytest.raises(tp.PartyError, match=r"cannot be evaluated \(InvalidInputException\)"):
        attacker.open("s", attacker.scan("SELECT code FROM cards", outputs={"x": "regexp_matches(code, '(')"}))
    assert "failures" not in (tmp_path / "state" / "used.json").read_text()


def test_in_ones_own_process_a_failure_is_an_error(tmp_path: Path) -> None:
    """An analyst whose own database has a value that does not fit is told so, with the expression and no value."""
    fed = in_process(tmp_path, {"p0": {"t": accounts(largest=300)}})
    for sql, named in (
        ("SELECT CAST(id AS UTINYINT) AS x FROM t", "CAST(id AS UTINYINT)"),
        ("SELECT id FROM t WHERE CAST(id AS UTINYINT) > 3", "CAST(id AS UTINYINT) > 3"),
        ("SELECT id FROM t WHERE id > 'abc'", "id > 'abc'"),
    ):
        told = rf"{re.escape(named)}\)? over table 't' fails on its rows \(ConversionException\); use TRY_CAST"
        with pytest.raises(tp.PartyError, match=told) as found:
            fed.sql(sql)
        assert "300" not in str(found.value)


# What was added later


def test_next_to_no_noise_is_no_way_around_small_groups(tmp_path: Path) -> None:
    """Without a budget a caller may take as little noise as 1e-6: three values, the number of rows below any value, and
    a category of three rows, listed or not, were told by it.
    """
    rows = accounts().set_column(3, "amount", pa.array([1234.5 if i < 3 else None for i in range(60)]))
    rows = rows.set_column(2, "code", pa.array(["few" if i < 3 else "many" for i in range(60)]))
    attacker = Attacker(write_bank(tmp_path, rows))
    attacker.open("s", attacker.scan("SELECT amount, code, id FROM cards"))
    attacker.use("s", "v", EVERY, ONCE)
    asked: dict[str, Any] = {"view": "v", "multiplier": 1e-6}
    edges = {"lows": np.full(2, -1e6), "highs": np.full(2, 1e6)}
    for op, given in (("private.ranges", {}), ("private.moments", edges), ("private.bins", {**edges, "bins": 4})):
        with pytest.raises(tp.PrivacyError, match="only with noise of half a row's part or more"):
            attacker.run("s", op, columns=["amount", "id"], **asked, **given)
        told = attacker.run("s", op, view="v", multiplier=0.5, columns=["amount", "id"], **given)
        assert told["sums" if op == "private.moments" else "counts"][1].any()
    told = attacker.run("s", "private.categories", column="code", family="text", blinding="b", **asked)
    assert told["distinct"] == 1
    assert np.rint(told["weights"]).tolist() == [57.0]


def test_listed_categories_are_counted_in_groups_only(tmp_path: Path) -> None:
    """Those of fewer rows than ``min_group`` count as none, and next to no noise is refused."""
    rows = accounts().set_column(2, "code", pa.array(["few" if i < 3 else "many" for i in range(60)]))
    file = write_bank(tmp_path, rows)
    listed = 'code = { uses = ["feature"], categories = ["few", "many", "none"] }'
    file.write_text(file.read_text().replace('code = ["key", "feature", "filter"]', listed))
    attacker = Attacker(file)
    attacker.open("s", attacker.scan("SELECT code FROM cards", keys=()))
    attacker.use("s", "v", EVERY, ONCE)
    asked: dict[str, Any] = {"view": "v", "column": "code", "family": "text", "blinding": "b", "counted": True}
    with pytest.raises(tp.PrivacyError, match="only with noise of half a row's part or more"):
        attacker.run("s", "private.categories", multiplier=1e-6, **asked)
    counts = attacker.run("s", "private.categories", multiplier=0.5, **asked)["weights"]
    assert sorted(np.flatnonzero(counts).tolist()) == [int(np.argmax(counts))]
    assert counts.max() == pytest.approx(57, abs=5)


def test_a_name_of_one_row_is_not_told(tmp_path: Path) -> None:
    """Whoever knows the digest of a rare category, and lists its row often, does not learn what it is called."""
    attacker = Attacker(write_bank(tmp_path))
    public = 'code = { uses = ["feature"], level = "public" }'
    attacker.file.write_text(attacker.file.read_text().replace('code = ["key", "feature", "filter"]', public))
    attacker.restart()
    row = order_of(attacker, "s", "SELECT code FROM cards").index(7)
    table = attacker.desk.party.table("s", "cards", "analyst")
    known = blind([pa.chunked_array([["C7"]])], ["text"], table.category_key("b", "code")).digests
    attacker.use("s", "v", np.r_[EVERY, np.full(40, row)], np.ones(100, np.int64))
    asked = {"column": "code", "family": "text", "blinding": "b", "digests": known}
    assert attacker.run("s", "categories.names", view="v", **asked)["names"] == []


def test_a_part_of_another_table_takes_no_sums_away(tmp_path: Path) -> None:
    """A model begun at a table without secure sums is not learned at one that demands them, where sums are masked."""
    more = '[tables.plain]\nsql = "SELECT * FROM cards"\ncolumns.amount = "feature"'
    attacker = Attacker(write_bank(tmp_path, more=more))
    guard = attacker.desk.party._guard
    strict = dataclasses.replace(guard.policy.tables["cards"], secure_sum=True)
    guard.policy = dataclasses.replace(guard.policy, tables={**guard.policy.tables, "cards": strict})
    build = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
    for session, sql in (("plain", "SELECT amount FROM plain AS cards"), ("strict", VALUES)):
        attacker.open(session, attacker.scan(sql))
        attacker.use(session, "v", EVERY, ONCE)
        attacker.run(session, "encode.build", view="v", encoding="e", **build)
    names = {"view": "v", "encoding": "e", "model": "m"}
    attacker.run("plain", "model.start", **names, spec=Linear(1), seed=0)
    step: dict[str, Any] = {"places": np.arange(1), "next_places": np.zeros(0, np.int64), "rows": np.ones(1)}
    step |= {"lr": 1.0, "momentum": 0.0, "l2": 0.0}
    with pytest.raises(tp.PrivacyError, match=r"'cards'.*only within a sum.*rule secure_sum"):
        attacker.run("strict", "sgd.step", **names, **step)
    attacker.run("plain", "sgd.step", **names, **step)
