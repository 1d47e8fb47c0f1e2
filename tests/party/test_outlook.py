"""``party check --as`` and ``--diff``: what one caller could learn and ask for, and what a file changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.cli.party import approve, check
from tablepuppet.party.blind import new_blinding_key
from tablepuppet.party.config import PartyFile, differences, plain_settings
from tablepuppet.party.outlook import Outlook, QueryReport, outlook, stated_table
from tablepuppet.party.report import inspect
from tests.command_line import tablepuppet
from tests.party.policed import CANARY, COLUMNS, federation, open_party, write_file


def look(file: Path, caller: str = "analyst", sql: str | None = None) -> Outlook:
    """What a caller could learn."""
    return outlook(file, inspect(file), caller, sql)


def tried(file: Path, sql: str, caller: str = "analyst") -> QueryReport:
    """Whether a caller could open a query."""
    found = look(file, caller, sql).query
    assert found is not None
    return found


def test_a_caller_sees_its_tables_only(tmp_path: Path) -> None:
    """Tables by caller, with uses, levels and releases; a stranger has none."""
    more = '[tables.big]\nsql = "SELECT card FROM cards WHERE credit > 0"\nallow = ["auditor"]\ncolumns.card = "key"'
    file = write_file(tmp_path, more=more, top="require_purpose = true")
    assert [table.name for table in look(file).tables] == ["cards"]
    assert [table.name for table in look(file, "auditor").tables] == ["cards", "big"]
    stranger = look(file, "eve")
    assert (stranger.admitted, stranger.tables, stranger.limits, look(file).needs_purpose) == (False, [], [], True)
    columns = {column.name: column for column in look(file).tables[0].columns}
    assert "LABELS" in columns["fraud"].releases


@pytest.mark.parametrize(
    ("sql", "caller", "rule"),
    [
        ("SELECT credit FROM cards WHERE credit > 1", "analyst", "uses"),
        ("SELECT secret FROM cards", "analyst", "level"),
        ("SELECT pin FROM cards", "analyst", "QueryError"),
        ("SELECT credit FROM cards WHERE day < 3", "eve", "allow"),
    ],
)
def test_a_query_is_refused_by_the_rule_that_would_refuse_it(tmp_path: Path, sql: str, caller: str, rule: str) -> None:
    """The same rule as when the caller opens it."""
    found = tried(write_file(tmp_path), sql, caller)
    assert (found.accepted, found.rule) == (False, rule)
    if rule != "QueryError":
        with pytest.raises(tp.PrivacyError) as refused:
            federation(open_party(tmp_path / "party.toml"), caller).sql(sql)
        assert str(refused.value) == found.reason


def test_a_query_that_would_be_accepted_shows_what_it_releases(tmp_path: Path) -> None:
    """By selected expression; nothing is counted by asking."""
    (tmp_path / "state").mkdir()
    file = write_file(tmp_path, limits="max_filters = 1", top='state_dir = "state"', table="require_approval = true")
    for _ in range(2):
        found = tried(file, "SELECT credit + open AS x, town FROM cards WHERE day < 3")
    assert found.accepted
    assert {each.name: (each.columns, each.level) for each in found.selected} == {
        "x": (["credit", "open"], "aggregate"),
        "town": (["town"], "aggregate"),
    }
    assert look(file).needs_approval == ["cards"]
    assert not (tmp_path / "state" / "used.json").exists()
    assert not (tmp_path / "state" / "jobs_asked.json").exists()


@pytest.mark.parametrize(
    ("sql", "rule", "reads"),
    [
        ("SELECT town, price FROM cards JOIN shop.sold s ON s.id = card WHERE s.day > 5 AND cards.day < 3", "",
         "SELECT town FROM cards AS cards WHERE (day < 3) JOINED BY card"),
        ("SELECT town, s.* FROM cards JOIN sold s ON s.day = cards.day", "uses",
         'SELECT town FROM cards AS cards JOINED BY day'),
        ("SELECT price FROM cards JOIN sold s ON s.id = card AND s.day = cards.day WHERE credit > 1", "uses",
         'SELECT nothing FROM cards AS cards WHERE (credit > 1) JOINED BY card, day'),
        ("SELECT price FROM sold JOIN bank.cards ON id = card UNION ALL SELECT price FROM sold CROSS JOIN cards", "",
         "SELECT nothing FROM cards AS cards JOINED BY card"),
        ("SELECT price FROM sold WHERE price > 3", "", None),
        ("SELECT prise FROM cards JOIN sold s ON s.id = card", "QueryError", None),
    ],
)  # fmt: skip
def test_a_query_with_tables_of_others_is_judged_for_its_own_part(
    tmp_path: Path, sql: str, rule: str, reads: str | None
) -> None:
    """By the columns and types that the operator states; what others would say of their part is not looked at."""
    others = ["shop.sold(id BIGINT, price DECIMAL(8, 2), day INT)"]
    found = outlook(write_file(tmp_path), inspect(tmp_path / "party.toml"), "analyst", sql, others).query
    assert found is not None
    assert (found.accepted, found.rule) == (not rule, rule), found.reason
    assert found.reads == ([] if reads is None else [reads])
    assert {column for each in found.selected for column in each.columns} <= {"town"}


@pytest.mark.parametrize(
    "text", ["sold", "sold(id)", "sold(id BIGINT) AS SELECT 1", "sold(id NOTYPE)", "", "a b(c INT)", "a(b INT, B TEXT)"]
)
def test_tables_of_others_are_names_and_types(text: str) -> None:
    """Anything else is an error that shows how to write them."""
    with pytest.raises(tp.ConfigError, match=r"as in --with 'shop\.orders\(customer_id BIGINT"):
        stated_table(text)


def test_what_is_left_of_limits_and_budgets(tmp_path: Path) -> None:
    """A filter that was used counts, and a further one is refused as the party would."""
    (tmp_path / "state").mkdir()
    budget = "budget = { epsilon = 4.0, epsilon_per_caller = 1.5, require_dp = false }"
    file = write_file(tmp_path, limits="max_filters = 1", top='state_dir = "state"', table=budget)
    federation(open_party(file)).sql("SELECT credit FROM cards WHERE day < 3")
    used = {each.limit: (each.used, each.most) for each in look(file).limits}
    assert used["max_filters"] == (1, 1)
    assert used["max_splits"] == (0, 50)
    assert [(each.caller, each.spent, each.left) for each in look(file).budgets] == [
        ("", 0.0, 4.0),
        ("analyst", 0.0, 1.5),
    ]
    assert tried(file, "SELECT credit FROM cards WHERE day < 3").accepted
    assert tried(file, "SELECT credit FROM cards WHERE day < 4").rule == "max_filters"


def test_the_commands_of_an_operator(tmp_path: Path) -> None:
    """As people and programs see them; a refused query ends with 1, and so does a misuse."""
    new_blinding_key(tmp_path / "blinding.key")
    file = write_file(tmp_path)
    shown = tablepuppet(tmp_path, "party", "check", "party.toml", "--as", "analyst", "--sql", "SELECT town FROM cards")
    assert (shown.returncode, "would accept the query" in shown.stdout) == (0, True), shown.stderr
    assert "would read: SELECT town FROM cards AS cards" in shown.stdout
    assert CANARY not in shown.stdout
    refused = tablepuppet(
        tmp_path, "party", "check", "party.toml", "--as", "analyst", "--sql", "SELECT secret FROM cards", "--json"
    )
    assert (refused.returncode, json.loads(refused.stdout)["query"]["rule"]) == (1, "level")
    joined = "SELECT town FROM cards JOIN another USING (card)"
    beyond = tablepuppet(tmp_path, "party", "check", "party.toml", "--as", "analyst", "--sql", joined)
    assert (beyond.returncode, "if --with says what columns it has" in beyond.stdout) == (1, True), beyond.stdout
    told = ("--with", "shop.another(card BIGINT, price DOUBLE)")
    known = tablepuppet(tmp_path, "party", "check", "party.toml", "--as", "analyst", "--sql", joined, *told)
    assert (known.returncode, "FROM cards AS cards JOINED BY card" in known.stdout) == (0, True), known.stdout
    dated = ("--sql", "SELECT town FROM cards WHERE day < $before", "--param", "before=3")
    given = tablepuppet(tmp_path, "party", "check", "party.toml", "--as", "analyst", *dated)
    assert (given.returncode, "WHERE (day < 3)" in given.stdout) == (0, True), given.stdout
    misused = tablepuppet(tmp_path, "party", "check", "party.toml", "--sql", "SELECT town FROM cards")
    assert (misused.returncode, "--sql goes with --as" in misused.stderr) == (1, True)
    with pytest.raises(tp.ConfigError, match="--with goes with --sql"):
        check(file, caller="analyst", others=["sold(id BIGINT)"])
    with pytest.raises(tp.ConfigError, match="--param goes with --sql"):
        check(file, caller="analyst", param=["before=3"])
    with pytest.raises(tp.ConfigError, match="--diff compares files"):
        check(file, caller="analyst", diff=True)
    with pytest.raises(tp.ConfigError, match="--until and --deny are for a job"):
        approve(file, deny=True)
    with pytest.raises(tp.ConfigError, match="--until is for an approval"):
        approve(file, "3f", until="2999-01-01", deny=True)
    empty = tablepuppet(tmp_path, "party", "audit", "party.toml")
    assert (empty.returncode, "no line" in empty.stdout) == (0, True), empty.stderr
    nowhere = tablepuppet(tmp_path, "party", "jobs", "party.toml")
    assert (nowhere.returncode, "names no state_dir" in nowhere.stderr) == (1, True)


def test_differences_of_files(tmp_path: Path) -> None:
    """Tables, columns, callers, limits; of a database only that it is another."""
    before = plain_settings(PartyFile.load(write_file(tmp_path)))
    columns = 'card = "key"\nday = ["filter", "feature"]\nzip = "feature"'
    file = write_file(tmp_path, limits="max_filters = 3", columns=columns, top='peers = ["shop"]')
    file.write_text(
        file.read_text().replace("parquet:///bank", "parquet:///secret-place").replace('"auditor"', '"eve"')
    )
    found = {(each.kind, each.setting) for each in differences(before, plain_settings(PartyFile.load(file)))}
    assert {
        ("added", "allow"), ("removed", "allow"), ("changed", "database"), ("changed", "limits.max_filters"),
        ("added", "peers"), ("added", "tables.cards.columns.zip"), ("removed", "tables.cards.columns.town"),
        ("added", "tables.cards.columns.day.uses"),
    } <= found  # fmt: skip
    assert all("secret-place" not in str(each) for each in differences(before, plain_settings(PartyFile.load(file))))
    in_full = COLUMNS.replace('town = "feature"', 'town = { uses = ["feature"], level = "aggregate" }')
    assert in_full != COLUMNS
    assert differences(before, plain_settings(PartyFile.load(write_file(tmp_path, columns=in_full)))) == []
    other = COLUMNS.replace('town = "feature"', 'town = { uses = ["feature"], level = "private" }')
    [change] = differences(before, plain_settings(PartyFile.load(write_file(tmp_path, columns=other))))
    assert str(change) == "changed: tables.cards.columns.town.level: 'aggregate' is served, the file says 'private'"
