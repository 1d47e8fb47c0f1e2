"""The policy: what a party file does not allow does not leave, whoever asks and however."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.config import PartyFile
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.policy import EVERY_USE, LEVELS, USES, ColumnRule, Level, Policy, TableRule, Use
from tablepuppet.party.release import Release
from tablepuppet.party.service import Party
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.parse import parse
from tablepuppet.sql.plan import Scan, plan
from tablepuppet.sql.query import Comparison
from tests.party.policed import CANARY, COLUMNS, PIN, RARE, audit_lines, cards, federation, open_party, write_file

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "policy.md"


def scans(party: Party, sql: str, label: str | None = None) -> tuple[Scan, ...]:
    """The plan of a query over what the analyst may see."""
    catalog = Catalog(party.describe("analyst"))
    return plan(parse(sql, catalog, label), catalog).scans


def opened(party: Party, sql: str, label: str | None = None, rows: int = 60) -> Party:
    """The party with a session ``s`` in which ``rows`` rows of a query take part as view ``v``."""
    party.open("analyst", "s", scans(party, sql, label))
    use = {"view": "v", "chosen": np.arange(rows, dtype=np.int32), "counts": np.ones(rows, np.int64)}
    party.run("analyst", "s", "rows.use", "cards", use)
    return party


def with_private(folder: Path, sql: str, label: str | None = None) -> Party:
    """A party with a session that selects ``secret`` though its level is private, which `open` would refuse."""
    party = opened(open_party(write_file(folder, columns=COLUMNS.replace('"private"', '"aggregate"'))), sql, label)
    rules = PartyFile.load(write_file(folder)).policy().table("cards")
    assert rules is not None
    table = party.table("s", "cards", "analyst")
    outputs = {
        name: dataclasses.replace(output, rule=rule)
        for name, output in table.grant.outputs.items()
        if (rule := rules.expression(output.columns)) is not None
    }
    table.grant = dataclasses.replace(table.grant, rules=rules, outputs=outputs)
    return party


def test_the_table_of_levels_is_that_of_the_code() -> None:
    """docs/policy.md lists the releases of every level and of every use as the code has them."""
    text = DOCUMENT.read_text(encoding="utf-8")
    marks = [LEVELS[level] for level in Level] + [USES[use] for use in Use]
    for release in Release:
        cells = " | ".join("yes" if release in mark else "" for mark in marks)
        assert re.sub(r" +", " ", f"| {release.name} | {cells} |") in re.sub(r" +", " ", text), release


def test_an_expression_has_the_strictest_level_and_the_fewest_uses() -> None:
    """Rules go by table or column, in any case; the columns of an expression decide together."""
    policy = Policy.from_names({"Cards.Limit": "Aggregate", "staff": "aggregate", "cards.pin": "private"}, "p0")
    table, staff = policy.table("CARDS"), policy.table("staff")
    assert table
    assert staff
    for columns, level in (
        (["name"], Level.PUBLIC),
        (["name", "LIMIT"], Level.AGGREGATE),
        (["limit", "pin"], Level.PRIVATE),
    ):
        uses = EVERY_USE if level is Level.PUBLIC else EVERY_USE & ~Use.ID  # what is not public is no id
        assert table.expression(columns) == ColumnRule(uses, level)
    assert staff.expression(["anything"]) == staff.expression([]) == ColumnRule(EVERY_USE & ~Use.ID, Level.AGGREGATE)
    rules = TableRule({"a": ColumnRule(Use.KEY | Use.FEATURE), "b": ColumnRule(Use.FEATURE, Level.PRIVATE)}, None)
    assert rules.expression(["A", "b"]) == ColumnRule(Use.FEATURE, Level.PRIVATE)
    assert rules.expression(["a", "c"]) is None
    with pytest.raises(
        tp.ConfigError, match=r"'p0', level of 'a.b': 'secret' must be one of public, aggregate, private"
    ):
        Policy.from_names({"a.b": "secret"}, "p0")


def test_every_op_declares_the_columns_it_is_asked_for() -> None:
    """An argument that names columns is one that the guard looks at; labels leave label columns only."""
    import tablepuppet.cli.commands  # noqa: F401 - loads every op

    for op in REGISTRY.values():
        named = {"column", "columns", "categories"} & set(inspect.signature(op.function).parameters)
        assert named == {*op.columns, *op.fields}, op.name
        assert Release.LABELS not in op.releases or op.use is Use.LABEL, op.name


def test_a_policed_party_trains_the_same_model(tmp_path: Path) -> None:
    """Within the policy nothing changes: coefficients are those over the same rows without one."""
    sql = "SELECT region, credit, fraud FROM cards WHERE day < 6"
    policed = tp.LogisticRegression().fit(federation(open_party(write_file(tmp_path))).sql(sql, label="fraud"))
    free = tp.LogisticRegression().fit(tp.Federation({"bank": f"parquet:///{tmp_path}/bank"}).sql(sql, label="fraud"))
    assert policed.coef_.keys() == free.coef_.keys()  # equally frequent categories come in the order of their digests
    assert sorted(policed.coef_.values()) == pytest.approx(sorted(free.coef_.values()), rel=1e-3, abs=1e-4)


def test_what_is_not_named_is_hidden(tmp_path: Path) -> None:
    """Tables and columns that the file does not name are not in the catalog, and cannot be asked for by name."""
    party = open_party(write_file(tmp_path))
    [shard] = party.describe("analyst")
    assert shard.name == "cards"
    assert "pin" not in shard.columns
    [scan] = scans(party, "SELECT credit FROM cards")
    for forged in (
        dataclasses.replace(scan, columns={"pin": "DOUBLE"}, outputs={"credit": "pin"}),
        dataclasses.replace(scan, columns={"pin": "DOUBLE", "credit": "DOUBLE"}),
        dataclasses.replace(scan, columns={"nowhere": "DOUBLE"}, outputs={"credit": "nowhere"}),
    ):
        with pytest.raises(tp.PrivacyError, match=r"table 'cards', column '\w+': is not published .*rule columns"):
            party.open("analyst", "s", [forged])
    for table in ("staff", "nowhere"):
        with pytest.raises(tp.PrivacyError, match=f"table '{table}': is not published to caller 'analyst'"):
            party.open("analyst", "s", [dataclasses.replace(scan, table=table)])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT credit FROM cards WHERE credit > 3", r"column 'credit': may not be used as filter; its uses: feature"),
        ("SELECT a.credit FROM cards a JOIN cards b ON a.card = b.day", r"column 'day': may not be used as key"),
        ("SELECT day FROM cards", r"column 'day': may not be used as label or feature; its uses: filter"),
        ("SELECT CASE WHEN day > 3 THEN credit END AS x FROM cards", r"column 'day': may not be used as label or feat"),
        ("SELECT credit + fraud AS x FROM cards", r"columns 'credit', 'fraud': have no use as label or feature in com"),
        ("SELECT credit FROM cards WHERE day + card > 3", r"column 'card': may not be used as filter"),
    ],
)
def test_uses_are_held_at_open(tmp_path: Path, sql: str, message: str) -> None:
    """A filter, a join and a SELECT list use only columns that have the use, whatever expression they stand in."""
    with pytest.raises(tp.PrivacyError, match=rf"party 'bank', table 'cards', {message}.*\(policy rule uses\)"):
        federation(open_party(write_file(tmp_path))).sql(sql)
    [denied] = [line for line in audit_lines(tmp_path) if line["outcome"] != "ok"]
    assert (denied["verb"], denied["tables"], denied["outcome"], denied["rule"]) == (
        "open",
        ["cards"],
        "denied",
        "uses",
    )


@pytest.mark.parametrize(
    "expression",
    [
        "secret",
        "credit + secret",
        "CASE WHEN card = 7 THEN substr(repeat('a', 9000), 1, CAST(secret AS INTEGER)) ELSE '' END",
    ],
)
def test_a_private_column_is_not_selected(tmp_path: Path, expression: str) -> None:
    """Nothing is evaluated with it but filters and keys: how long that takes, or how large it is, would tell of it."""
    columns = COLUMNS.replace('card = "key"', 'card = ["key", "feature"]')
    fed = federation(open_party(write_file(tmp_path, columns=columns)))
    with pytest.raises(tp.PrivacyError, match=r"column 'secret': at level private it may be joined.*rule level"):
        fed.sql(f"SELECT {expression} AS x, credit FROM cards")
    assert len(fed.sql("SELECT credit FROM cards WHERE secret > 0")) == 60


def test_a_forged_push_down_is_refused(tmp_path: Path) -> None:
    """A comparison for the source database must follow from the filter that is checked and counted."""
    party = open_party(write_file(tmp_path))
    [scan] = scans(party, "SELECT credit FROM cards WHERE day > 3")
    party.open("analyst", "s", [scan])
    for pushed, filters in (
        ((Comparison("credit", ">", (0,)),), scan.filters),
        ((Comparison("day", ">", (5,)),), scan.filters),
        (scan.pushed, ("",)),
    ):
        with pytest.raises(tp.PartyError, match="pushes what its filter does not say"):
            party.open("analyst", "s", [dataclasses.replace(scan, pushed=pushed, filters=filters)])


def test_callers(tmp_path: Path) -> None:
    """Only callers of the list get an answer, and only those of a table's own list see the table."""
    more = '[tables.staff]\nallow = ["auditor"]\ncolumns.card = "key"'
    party = open_party(write_file(tmp_path, more=more))
    assert [shard.name for shard in party.describe("analyst")] == ["cards"]
    assert [shard.name for shard in party.describe("auditor")] == ["cards", "staff"]
    found = scans(party, "SELECT credit FROM cards")
    party.open("analyst", "s", found)
    for call in (
        lambda: party.describe("eve"),
        lambda: party.open("eve", "t", found),
        lambda: party.run("eve", "s", "keys.blind", "cards", {}),
    ):
        with pytest.raises(tp.PrivacyError, match=r"party 'bank': caller 'eve' is not allowed \(policy rule allow\)"):
            call()
    with pytest.raises(tp.PrivacyError, match=r"table 'staff': is not published to caller 'analyst'"):
        party.open("analyst", "t", [dataclasses.replace(found[0], table="staff")])


@pytest.mark.parametrize(
    ("op", "arguments", "message"),
    [
        ("statistics.numbers", {"columns": ["credit", "secret"]}, r"column 'secret': as .* at level private .*level"),
        ("statistics.numbers", {"columns": ["mixed"]}, r"column 'secret': .* does not release STATISTICS .*level"),
        ("label.numbers", {"column": "credit"}, r"column 'credit': may not be used as label; .*rule uses"),
        ("label.numbers", {"column": "secret"}, r"column 'secret': .* does not release LABELS .*rule level"),
        (
            "encode.build",
            {"columns": ["credit", "fraud"], "categories": []},
            r"column 'fraud': may not be used as feature",
        ),
        ("encode.build", {"columns": [], "categories": [("fraud", "number")]}, r"column 'fraud': may not be used as f"),
        ("matrix.gram", {"encoding": "e", "joined_rows": 60}, r"column 'secret': .* does not release GRAM"),
        (
            "model.apply",
            {"encoding": "e", "spec": Linear(1), "theta": np.ones(1)},
            r"column 'secret': .* not release PREDICTIONS",
        ),
    ],
)
def test_releases_are_held_at_every_op(tmp_path: Path, op: str, arguments: dict[str, Any], message: str) -> None:
    """An op tells no more of a column than its uses and level release; an expression is its strictest column."""
    sql = "SELECT credit, secret, credit + secret AS mixed, fraud FROM cards"
    party = with_private(tmp_path, sql, "fraud")
    with pytest.raises(tp.PrivacyError, match=rf"party 'bank', table 'cards', {message}"):
        party.run("analyst", "s", op, "cards", {"view": "v", **arguments})
    line = audit_lines(tmp_path)[-1]
    assert (line["op"], line["outcome"], line["releases"], line["bytes"]) == (op, "denied", [], 0)


@pytest.mark.parametrize(
    "columns", [{"secret": 1}, None, 7, [["credit", 1], 7], np.array(["secret"]), [["secret"], []]]
)
def test_columns_cannot_be_named_in_disguise(tmp_path: Path, columns: Any) -> None:
    """What is no list of names is refused, though a function might make something of it."""
    party = with_private(tmp_path, "SELECT credit, secret FROM cards")
    with pytest.raises(tp.TablePuppetError):
        party.run("analyst", "s", "statistics.numbers", "cards", {"view": "v", "columns": columns})
    with pytest.raises(tp.PartyError, match="'nowhere' is not a selected column"):
        party.run("analyst", "s", "statistics.numbers", "cards", {"view": "v", "columns": ["nowhere"]})


def test_extremes_are_told_of_public_columns_only(tmp_path: Path) -> None:
    """At level aggregate a column has sums, at level public also its least and greatest value."""
    fed = federation(open_party(write_file(tmp_path)))
    told = fed.sql("SELECT credit, open FROM cards").describe().to_arrow().to_pylist()
    assert [row["mean"] is not None for row in told] == [True, True]
    assert [row["max"] for row in told] == [None, 59 * 1.5]


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    """A relation in which some, but fewer than min_rows, different rows take part gets no answer."""
    party = open_party(write_file(tmp_path, table="min_rows = 20"))
    opened(party, "SELECT credit FROM cards", rows=20)
    nothing = {"view": "w", "chosen": np.zeros(0, np.int32), "counts": np.zeros(0, np.int64)}
    party.run("analyst", "s", "rows.use", "cards", nothing)
    for row_ids, counts in (
        (np.arange(19), np.ones(19, np.int64)),
        (np.repeat(np.arange(10), 6), np.ones(60, np.int64)),
    ):
        with pytest.raises(tp.PrivacyError, match=r"fewer than 20 of its rows take part .*policy rule min_rows"):
            party.run("analyst", "s", "rows.use", "cards", {"view": "x", "chosen": row_ids, "counts": counts})
        with pytest.raises(tp.PrivacyError, match=r"fewer than 20 of its rows take part .*policy rule min_rows"):
            party.run("analyst", "s", "statistics.numbers", "cards", {"view": "x", "columns": ["credit"]})
    with pytest.raises(tp.PartyError, match="no rows are announced for relation 'y'"):
        party.run("analyst", "s", "statistics.numbers", "cards", {"view": "y", "columns": ["credit"]})


@pytest.mark.parametrize(
    ("row_ids", "counts", "message"),
    [
        (np.arange(3.0), np.ones(3, np.int64), "'chosen' is not of the kind"),
        (np.arange(3), [1, 1, 1], "'counts' is not of the kind"),
        (np.array([0, 60]), np.ones(2, np.int64), "below 60"),
        (np.array([-1, 5]), np.ones(2, np.int64), "below 60"),
        (np.arange(60), np.full(60, -1), "at least 1"),
        (np.arange(60), np.eye(1, 60, dtype=np.int64)[0] * 1000, "at least 1"),
        (np.arange(60), np.full(60, 2**62), "at least 1"),
        (np.arange(60), np.ones(59, np.int64), "60 row ids and 59 counts"),
        (np.full(9, 255, np.uint8), np.ones(59, np.int64), "60 row ids and 59 counts"),  # bits
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, row_ids: Any, counts: Any, message: str) -> None:
    """Row ids outside of the snapshot, and counts that count nothing, are errors."""
    party = opened(open_party(write_file(tmp_path)), "SELECT credit FROM cards")
    with pytest.raises(tp.PartyError, match=message):
        party.run("analyst", "s", "rows.use", "cards", {"view": "x", "chosen": row_ids, "counts": counts})


def test_small_groups_count_as_missing(tmp_path: Path) -> None:
    """A category that two rows have is no category, a column that four rows have a value of is empty."""
    fed = federation(open_party(write_file(tmp_path)))
    relation = fed.sql("SELECT town, few, credit, fraud FROM cards", label="fraud")
    town, few, *_ = relation.describe().to_arrow().to_pylist()
    assert (town["distinct"], town["missing"]) == (2, 2)
    assert (few["count"], few["missing"], few["mean"]) == (0, 60, None)
    names = tp.LogisticRegression().fit(relation).coef_
    assert sorted(names) == ["cards.credit", "cards.town=0", "cards.town=1"]
    told = federation(open_party(write_file(tmp_path, table="min_group = 2"))).sql("SELECT town, few FROM cards")
    assert [row["missing"] for row in told.describe().to_arrow().to_pylist()] == [0, 56]


def test_rare_numbers_are_counted(tmp_path: Path) -> None:
    """A whole number that few rows have is no missing number; how many distinct ones there are is then not told."""
    columns = f'{COLUMNS}number = "feature"'
    write_file(tmp_path)
    table = cards().append_column("number", pa.array([None, None, *range(2, 60)]))
    pyarrow.parquet.write_table(table, tmp_path / "bank" / "cards.parquet")
    relation = federation(open_party(write_file(tmp_path, columns=columns))).sql("SELECT number FROM cards")
    [told] = relation.describe().to_arrow().to_pylist()
    assert (told["count"], told["missing"], told["distinct"], told["mean"]) == (58, 2, None, 30.5)


def test_a_known_category_is_known_in_few_rows(tmp_path: Path) -> None:
    """A model's categories are found again in rows too few to be told of: its predictions do not change."""
    fed = federation(open_party(write_file(tmp_path, table="min_rows = 3", limits="max_filters = 30")))
    model = tp.LinearRegression().fit(fed.sql("SELECT region, fraud FROM cards", label="fraud"))
    everywhere = model.predict(fed.sql("SELECT region, fraud FROM cards", label="fraud"))
    few = model.predict(fed.sql("SELECT region, fraud FROM cards WHERE day = 6", label="fraud"))
    assert len(few) == 8
    assert set(np.round(few, 5)) <= set(np.round(everywhere, 5))


def test_distinct_filters_are_counted_over_restarts(tmp_path: Path) -> None:
    """A caller gets so many different filters per table; the same one again is free, others have their own."""
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, limits="max_filters = 3", top='state_dir = "state"')
    ask = "SELECT credit FROM cards WHERE day > {}".format
    for day in (1, 2, 1, 2):
        federation(open_party(file)).sql(ask(day))
    federation(open_party(file)).sql("SELECT credit FROM cards")
    federation(open_party(file)).sql("SELECT a.credit FROM cards a JOIN cards b USING (card)")
    federation(open_party(file)).sql(ask(4))
    for sql in (ask(3), f"{ask(1)} AND region = '{CANARY}'"):
        with pytest.raises(tp.PrivacyError, match=r"caller 'analyst' has used 3 distinct filters.*rule max_filters"):
            federation(open_party(file)).sql(sql)
    federation(open_party(file), "auditor").sql(ask(3))
    federation(open_party(file)).sql(ask(2))
    assert CANARY not in (tmp_path / "state" / "used.json").read_text()


def test_distinct_expressions_are_counted(tmp_path: Path) -> None:
    """An expression over features may fail on the rows it does not fit, and so tell of them: they are counted too."""
    party = open_party(write_file(tmp_path, limits="max_expressions = 2"))
    fed = federation(party)
    fed.sql("SELECT credit, credit + 1 AS a, credit * 2 AS b FROM cards")
    fed.sql("SELECT credit + 1 AS z, region FROM cards")
    with pytest.raises(tp.PrivacyError, match=r"has used 2 distinct expressions.*policy rule max_expressions"):
        fed.sql("SELECT CASE WHEN credit > 5 THEN 1 ELSE 0 END AS x FROM cards")


def test_what_is_used_must_be_storable(tmp_path: Path) -> None:
    """A filter that cannot be remembered is not allowed; a file that cannot be read stops the start."""
    (tmp_path / "state").mkdir()
    party = open_party(write_file(tmp_path, top='state_dir = "state"'))
    used = tmp_path / "state" / "used.json"
    used.unlink(missing_ok=True)
    (used / "in the way").mkdir(parents=True)
    with pytest.raises(tp.PartyError, match="cannot store what callers have used"):
        federation(party).sql("SELECT credit FROM cards WHERE day > 3")
    federation(party).sql("SELECT credit FROM cards")
    shutil.rmtree(used)
    used.write_text("{")
    with pytest.raises(tp.ConfigError, match=r"used\.json.* is damaged or cannot be read: `tablepuppet party restore`"):
        open_party(tmp_path / "party.toml")


def test_rounds_of_a_session_are_counted(tmp_path: Path) -> None:
    """Replies that could be solved for rows come so often per session; a new session begins anew."""
    party = open_party(write_file(tmp_path, limits="max_prediction_rounds = 4"))
    relation = federation(party).sql("SELECT credit, region, fraud FROM cards", label="fraud")
    model = tp.LogisticRegression(rounds=1).fit(relation)
    for _ in range(3):
        model.predict(relation)
    with pytest.raises(
        tp.PrivacyError, match=r"table 'cards': the session has had its 4 rounds.*max_prediction_rounds"
    ):
        model.predict(relation)
    asked = [line["op"] for line in audit_lines(tmp_path) if line["outcome"] == "ok"]
    assert sum(REGISTRY[op].releases in (Release.PREDICTIONS, Release.PARAMETERS) for op in asked if op) == 4
    relation.describe()
    again = federation(party).sql("SELECT credit, fraud FROM cards", label="fraud")
    tp.LinearRegression(rounds=1).fit(again)


def test_no_refusal_holds_a_value(tmp_path: Path) -> None:
    """Neither the rare category nor the hidden number is in an error or in the audit log."""
    party = open_party(write_file(tmp_path, table="min_rows = 40"))
    fed, said = federation(party), []
    for sql, label in (
        ("SELECT town, few, secret, fraud FROM cards", "fraud"),
        (f"SELECT credit FROM cards WHERE credit > {PIN}", None),
        (f"SELECT credit FROM cards WHERE region = '{CANARY}' AND town = 'x'", None),
        ("SELECT credit, fraud FROM cards WHERE day = 3", "fraud"),
        ("SELECT CAST(town AS INTEGER) AS x FROM cards", None),
    ):
        with pytest.raises(tp.TablePuppetError) as caught:
            tp.LogisticRegression().fit(fed.sql(sql, label=label))
        said.append(str(caught.value))
    told = "\n".join(said) + (tmp_path / "audit.jsonl").read_text()
    assert not [word for word in (RARE, CANARY, str(PIN)[:8]) if word in told]
