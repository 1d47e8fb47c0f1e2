"""The party file: what it may say, what it means where it says nothing, and how it says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from typer.testing import CliRunner

import tablepuppet as tp
from tablepuppet.cli.commands import app
from tablepuppet.party.config import Limits, PartyFile, TlsPaths, is_loopback
from tablepuppet.party.delivery import PredictionsEntry
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import ColumnRule, Level, Use
from tablepuppet.party.report import spent
from tablepuppet.party.table_entry import ColumnEntry, TableEntry

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "policy.md"
SMALL = """
name = "bank"
listen = "127.0.0.1:8815"
database = "duckdb:///bank.duckdb"
blinding_key = "blinding.key"
allow = ["analyst"]
"""
TABLE = '[tables.cards.columns]\ncard_id = "key"\n'
WHOLE = """
name = "bank"
listen = "[::]:8815"
database = "postgresql://reader:${BANK_PASSWORD}@db.example/bank"
blinding_key = "keys/blinding.key"
allow = ["analyst", "auditor"]
audit_log = "/var/log/bank.jsonl"
state_dir = "state"

[tls]
cert = "bank.crt"
key = "bank.key"
ca = "ca.crt"

[limits]
sessions = 5
max_filters = 0
idle = 60

[tables.Cards]
allow = ["auditor"]
min_rows = 100
min_group = 0
columns.Card_Id = "key"
columns.day = ["filter", "key"]
columns.limit = { uses = ["feature"], level = "public" }

[tables.rich]
sql = "SELECT card_id FROM cards WHERE credit > 1000"
columns.card_id = ["key"]
"""
SECURE = "[tables.cards]\nsecure_sum = true\ncolumns.a = 'feature'\n"
KEYS = "[tls]\ncert = 'c'\nkey = 'k'\nca = 'a'\n"


def load(folder: Path, text: str, **environment: str) -> PartyFile:
    """The settings of a file with that text."""
    (folder / "party.toml").write_text(text)
    return PartyFile.load(folder / "party.toml", environment)


def test_a_whole_file(tmp_path: Path) -> None:
    """Every setting is read, paths start at the file's folder, the password comes from the environment, encoded."""
    found = load(tmp_path, WHOLE, BANK_PASSWORD="p@ss/word")
    assert found.address == ("::", 8815)
    assert found.database == "postgresql://reader:p%40ss%2Fword@db.example/bank"
    assert found.blinding_key == str(tmp_path / "keys" / "blinding.key")
    assert found.audit_log == "/var/log/bank.jsonl"
    assert found.state_dir == str(tmp_path / "state")
    assert found.tls == TlsPaths(*(str(tmp_path / name) for name in ("bank.crt", "bank.key", "ca.crt")))
    assert (found.limits.sessions, found.limits.max_filters, found.limits.idle) == (5, 0, 60.0)


def test_the_policy_of_a_file(tmp_path: Path) -> None:
    """Uses, levels, callers and limits become a policy; what is not named is hidden, and aggregate is the default."""
    policy = load(tmp_path, WHOLE, BANK_PASSWORD="").policy()
    assert policy.allow == frozenset({"analyst", "auditor"})
    assert (policy.limits.max_filters, policy.limits.max_prediction_rounds, policy.limits.max_expressions) == (
        0,
        1000,
        100,
    )
    table = policy.table("CARDS")
    assert table is not None
    assert (table.allow, table.min_rows, table.min_group) == (frozenset({"auditor"}), 100, 0)
    assert table.column("card_id") == ColumnRule(Use.KEY, Level.AGGREGATE)
    assert table.column("DAY") == ColumnRule(Use.KEY | Use.FILTER, Level.AGGREGATE)
    assert table.column("limit") == ColumnRule(Use.FEATURE, Level.PUBLIC)
    assert table.column("pin") is None
    assert policy.table("staff") is None


def test_a_small_file(tmp_path: Path) -> None:
    """Only name, address, database, key, callers and a table are required; the rest is strict."""
    found = load(tmp_path, SMALL + TABLE)
    assert found.database == f"duckdb:///{tmp_path}/bank.duckdb"
    assert found.audit_log == str(tmp_path / "audit.jsonl")
    assert (found.state_dir, found.tls, found.insecure) == (None, None, False)
    assert (found.tables["cards"].min_rows, found.tables["cards"].min_group) == (10, 5)
    assert found.limits == Limits()
    whole = load(tmp_path, (SMALL + TABLE).replace("duckdb:///bank.duckdb", "${URL}"), URL="postgresql://a:b@c/d")
    assert whole.database == "postgresql://a:b@c/d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "Invalid value"),
        (TABLE, "name is missing"),
        (SMALL, "tables: none is published"),
        (SMALL + "[tables]", "tables: none is published"),
        (SMALL + "tables = 3", "tables: it must be a section"),
        (SMALL + "colour = 3\n" + TABLE, "unknown field 'colour'; there are: name, listen"),
        (
            SMALL + "[tables.cards]\nminrows = 3\ncolumns.a = 'key'",
            "tables.cards: unknown field 'minrows'; did you mean 'min_rows'\\?",
        ),
        (SMALL + "[tables.cards]\n", "tables.cards: columns is missing"),
        (SMALL + "[tables.cards]\ncolumns = {}", "tables.cards.columns: name at least one"),
        (
            SMALL + "[tables.cards]\nmin_rows = -1\ncolumns.a = 'key'",
            r"tables.cards: min_rows: it must be a whole number >= 0",
        ),
        (
            SMALL + "[tables.cards]\ncolumns.a = 'keys'",
            "tables.cards.columns.a.uses: 'keys' must be one of key, filter, l",
        ),
        (SMALL + "[tables.cards]\ncolumns.a = []", "tables.cards.columns.a.uses: name at least one of key"),
        (SMALL + "[tables.cards]\ncolumns.a = 7", "tables.cards: columns.a: it must be a text or a section or a list"),
        (
            SMALL + "[tables.cards]\ncolumns.a = { uses = ['key'], level = 'secret' }",
            "tables.cards.columns.a.level: 'secret' must be one of public, aggregate, private",
        ),
        (SMALL + "[tables.cards]\ncolumns.a = 'key'\ncolumns.A = 'key'", "tables.cards.columns: two have the same"),
        (SMALL + TABLE + "[tables.CARDS]\ncolumns.a = 'key'", "tables: two have the same name"),
        (SMALL + "[tables.cards]\nallow = ['eve']\ncolumns.a = 'key'", "tables.cards.allow: 'eve' is not in the party"),
        (SMALL.replace('"bank"', '"the bank"') + TABLE, "name: 'the bank'"),
        (SMALL.replace("127.0.0.1:8815", "8815") + TABLE, "listen: '8815' must be host:port"),
        (SMALL.replace("127.0.0.1:8815", "localhost:99999") + TABLE, "listen: 'localhost:99999'"),
        (SMALL.replace("127.0.0.1:8815", "0.0.0.0:8815") + TABLE, "tls: without certificates"),
        (SMALL + "metrics = 99999\n" + TABLE, "metrics: 99999 must be a port or host:port"),
        (SMALL + "metrics = '9464'\n" + TABLE, "metrics: '9464' must be a port or host:port"),
        (SMALL + "metrics = 8815\n" + TABLE, "metrics: they need a port of their own"),
        (SMALL + TABLE + "[limits]\nsessions = 0", "limits.sessions: it must be"),
        (
            SMALL + "[tables.cards]\nembeddings = {max_width = 3}\ncolumns.a = 'key'",
            "embeddings: max_epochs is missing",
        ),
        (SMALL + TABLE + "[limits]\nviews = 'x'", "limits.views: it must be a whole number, not a text"),
        (SMALL + TABLE + "[tls]\ncert = 'a'", "tls: key is missing"),
        (SMALL + SECURE, r"tables.cards.secure_sum: name \[tls\] files, and 2 or more other parties under peers"),
        (SMALL + 'peers = ["a", "b"]\n' + SECURE, "tables.cards.secure_sum: name"),
        (SMALL + 'peers = ["a", "a", "bank"]\n' + SECURE + KEYS, "tables.cards.secure_sum: name"),
        (SMALL.replace("duckdb:///", "${NOWHERE}") + TABLE, "database: the environment variable NOWHERE is not set"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    """A mistake is a ConfigError that names the file and the field."""
    with pytest.raises(tp.ConfigError, match=rf"party file '.*party\.toml': .*{message}"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ('keys = ["a"]', "predictions.file: name one place, a file or a table"),
        ('keys = ["a"], file = "p.csv", table = "p"', "predictions.file: name one place, a file or a table"),
        ('keys = [], file = "p.csv"', "predictions.keys: name one column or more"),
        ('keys = ["a", "A"], file = "p.csv"', "predictions.keys: name one column or more, each once"),
        ('keys = ["Prediction"], file = "p.csv"', "predictions.keys: 'Prediction' is the name of a column that"),
        ('keys = ["a"], file = "p.txt"', "predictions.file: it must end in .parquet or .csv"),
        ('keys = ["a"], table = "x; DROP TABLE y"', "predictions.table: a name has letters, digits and _ only"),
        ('keys = ["a"], folder = "p"', "unknown field 'predictions.folder'"),
    ],
)
def test_places_for_predictions_that_cannot_be(tmp_path: Path, place: str, message: str) -> None:
    """A place for predictions is one file or one table, beside keys whose names do not collide."""
    text = f"{SMALL}[tables.cards]\npredictions = {{ {place} }}\ncolumns.card_id = 'key'\n"
    with pytest.raises(tp.ConfigError, match=re.escape(message)):
        load(tmp_path, text)
    good = SMALL + "[tables.cards]\npredictions = { keys = ['a'], file = 'p.csv' }\ncolumns.card_id = 'key'\n"
    assert load(tmp_path, good).targets()["cards"].file == str(tmp_path / "p.csv")


def test_peers_and_secure_sums(tmp_path: Path) -> None:
    """Peers are those to sum with, none unless they are named; a table may demand it."""
    policy = load(tmp_path, SMALL + 'peers = ["a", "b"]\n' + SECURE + KEYS).policy()
    assert policy.peers == frozenset({"a", "b"})
    table = policy.table("cards")
    assert table is not None
    assert table.secure_sum
    plain = load(tmp_path, SMALL + TABLE).policy()
    assert plain.peers == frozenset()


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(tp.ConfigError, match=r"cannot read party file '.*nowhere\.toml': No such file"):
        PartyFile.load(tmp_path / "nowhere.toml")


def test_no_error_repeats_a_password(tmp_path: Path) -> None:
    """The database's URL is never quoted, whatever is wrong with the file."""
    secret = "hunter2-canary"
    for text in (SMALL + "colour = 3\n" + TABLE, SMALL, SMALL + TABLE + "[limits]\nidle = 'x'", SMALL + "="):
        with pytest.raises(tp.ConfigError) as caught:
            load(tmp_path, text.replace("duckdb:///bank.duckdb", f"postgresql://a:{secret}@b/c"))
        assert secret not in str(caught.value)


def test_loopback() -> None:
    """Plaintext is for this machine only, or where the file says so."""
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "bank.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_insecure_is_said(tmp_path: Path) -> None:
    """A party listens in plaintext beyond this machine only if its file says so."""
    assert load(tmp_path, SMALL.replace("127.0.0.1", "0.0.0.0") + "insecure = true\n" + TABLE).tls is None


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        (PartyFile, ""),
        (TlsPaths, "tls."),
        (Limits, "limits."),
        (TableEntry, "tables.NAME."),
        (Budget, "tables.NAME.budget."),
        (PredictionsEntry, "tables.NAME.predictions."),
        (ColumnEntry, "tables.NAME.columns.COLUMN."),
    ],
)
def test_settings_are_documented(kind: Any, prefix: str) -> None:
    """docs/policy.md lists every setting with the default and the words that the code has."""
    text = re.sub(r" +", " ", DOCUMENT.read_text(encoding="utf-8"))
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        meta = next(part for part in hints[field.name].__metadata__[::-1] if part.description)
        row = re.sub(r" +", " ", f"| `{prefix}{field.name}` | {_default(field)} | {meta.description} |")
        assert row in text, row
    assert msgspec.structs.fields(ColumnEntry)[1].default == "aggregate"


def _default(field: Any) -> str:
    if field.default is msgspec.NODEFAULT or isinstance(field.default, msgspec.Struct):
        return "required" if field.default is msgspec.NODEFAULT else ""
    if field.default is None:
        return ""
    return f"`{msgspec.json.encode(field.default).decode()}`"


def test_where_metrics_are(tmp_path: Path) -> None:
    """Nowhere unless the file says so, on this machine if it names a port alone, else where it says."""
    found = []
    for line in ("", "metrics = 9464", 'metrics = "0.0.0.0:9464"', 'metrics = "[::1]:9464"'):
        (tmp_path / "party.toml").write_text(f"{SMALL}{line}\n{TABLE}")
        found.append(PartyFile.load(tmp_path / "party.toml").metrics_address)
    assert found == [None, ("127.0.0.1", 9464), ("0.0.0.0", 9464), ("::1", 9464)]


def test_every_typo_is_told(tmp_path: Path) -> None:
    """Unknown fields, wrong values and contradictions are listed all at once, each with its place."""
    text = SMALL.replace('listen = "', 'lisen = 3\nlisten = "') + "insecur = true\naudit_log = 5\n" + TABLE
    (tmp_path / "party.toml").write_text(text + '\n[tables.others]\nmin_row = 3\nmin_group = "x"\ncolumns.a = "key"\n')
    with pytest.raises(tp.ConfigError) as caught:
        PartyFile.load(tmp_path / "party.toml")
    for place in ("5 mistakes", "'lisen'", "'insecur'", "audit_log: ", "tables.others: unknown field 'min_row'",
                  "tables.others: min_group: "):  # fmt: skip
        assert place in str(caught.value)
    (tmp_path / "party.toml").write_text(f'{SMALL}{TABLE}\n[tables.others]\nmin_row = 3\ncolumns.a = "kye"\n')
    with pytest.raises(tp.ConfigError, match=r"(?s)2 mistakes:.*'min_row'.*columns\.a\.uses: 'kye'"):
        PartyFile.load(tmp_path / "party.toml")
    columns = '[tables.others]\ncolumns.a = "kye"\ncolumns.b = { uses = ["label"], level = "secret" }\n'
    (tmp_path / "party.toml").write_text(SMALL.replace('name = "', 'name = "a b') + TABLE + "\n" + columns)
    with pytest.raises(tp.ConfigError, match=r"(?s)3 mistakes:.*name: .*columns\.a\.uses: 'kye'.*columns\.b\.level"):
        PartyFile.load(tmp_path / "party.toml")


def test_commands_that_open_no_database_need_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is spent, what was asked and which jobs wait is seen without the variables of the database's URL."""
    monkeypatch.delenv("BANK_PASSWORD", raising=False)
    file = tmp_path / "party.toml"
    url = "mysql://me:${BANK_PASSWORD}@db/bank"
    file.write_text(SMALL.replace("duckdb:///bank.duckdb", url) + 'state_dir = "."\n' + TABLE)
    with pytest.raises(tp.ConfigError, match="BANK_PASSWORD is not set"):
        PartyFile.load(file)
    assert [account.table for account in spent(file)] == ["cards"]
    for command in ("jobs", "budget", "audit"):
        assert CliRunner().invoke(app, ["party", command, str(file)]).exit_code == 0
