"""``tablepuppet party check``: the operator sees what would leave, and all mistakes, before anything listens."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import duckdb
import msgspec
import pytest

from tablepuppet.errors import ConfigError
from tablepuppet.party import report
from tablepuppet.party.blind import new_blinding_key
from tablepuppet.party.config import PartyFile
from tablepuppet.party.ledger import Budget, Ledger
from tablepuppet.party.report import inspect
from tablepuppet.privacy.accountant import Spending
from tablepuppet.privacy.certificates import issue, new_authority
from tablepuppet.wire.serve import start
from tests import warm
from tests.command_line import tablepuppet
from tests.party.policed import CANARY, write_file


def check(folder: Path, *options: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Check the party file of a folder in a process of its own."""
    return tablepuppet(folder, "party", "check", "party.toml", *options, fresh=fresh)


def new_key(folder: Path, mode: int = 0o600) -> None:
    """A blinding key with these permissions."""
    new_blinding_key(folder / "blinding.key")
    (folder / "blinding.key").chmod(mode)


def test_what_would_be_published(tmp_path: Path) -> None:
    """Tables, callers, uses, levels and releases are listed, for people and for programs; warnings are no failure."""
    new_key(tmp_path)
    more = '[tables.big]\nsql = "SELECT card FROM cards WHERE credit > 0"\nallow = ["auditor"]\ncolumns.card = "key"'
    write_file(tmp_path, more=more)
    shown = check(tmp_path, fresh=True)
    assert (shown.returncode, shown.stderr.count("error:")) == (0, 0), shown.stderr
    assert "cards: 60 rows, to analyst, auditor" in shown.stdout
    assert "warning: there is no state_dir" in shown.stderr
    assert "warning: there is no [tls], so every caller is 'anonymous', which allow does not name" in shown.stderr
    assert CANARY not in shown.stdout + shown.stderr
    found = json.loads(check(tmp_path, "--json").stdout)
    cards, big = found["tables"]
    assert big["callers"] == ["auditor"]
    assert 0 < big["rows"] < 60
    columns = {column["name"]: column for column in cards["columns"]}
    assert "pin" not in columns
    assert columns["card"] == {
        "name": "card", "type": "BIGINT", "uses": ["key"], "level": "aggregate",
        "releases": ["SCHEMA", "COUNTS", "KEY_DIGESTS"],
    }  # fmt: skip
    assert "LABELS" in columns["fraud"]["releases"]
    assert "LABELS" not in columns["credit"]["releases"]
    assert not {"EMBEDDINGS", "COLUMNS"} & set(columns["credit"]["releases"])  # what the table's own rules refuse
    write_file(tmp_path, table="embeddings = { max_width = 8, max_epochs = 9 }\ncross_statistics = true")
    [cards] = json.loads(check(tmp_path, "--json").stdout)["tables"]
    allowed = {column["name"]: set(column["releases"]) for column in cards["columns"]}
    assert {"EMBEDDINGS", "COLUMNS"} <= allowed["credit"]
    assert cards["embeddings"] == {"max_width": 8, "max_epochs": 9}
    assert "embeddings of at most 8 numbers of its rows, each row's at most 9 times" in check(tmp_path).stdout
    assert not found["problems"]


@pytest.mark.parametrize(("address", "is_open"), [("9464", False), ('"[::]:9464"', True)])
def test_where_metrics_would_be(tmp_path: Path, address: str, is_open: bool) -> None:
    """The address is shown; one that other machines reach is a warning."""
    new_key(tmp_path)
    write_file(tmp_path, top=f"metrics = {address}")
    shown = check(tmp_path)
    assert f"metrics at http://{'[::]' if is_open else '127.0.0.1'}:9464/metrics" in shown.stdout
    assert ("warning: metrics can be read from other machines" in shown.stderr) == is_open


def test_every_problem_is_told(tmp_path: Path) -> None:
    """A key that others can read, a missing state folder, a column that is not there: the exit code is 1."""
    new_key(tmp_path, 0o644)
    write_file(tmp_path, columns='nowhere = "key"', top='state_dir = "state"')
    shown = check(tmp_path)
    assert shown.returncode == 1
    assert "blinding.key' is open to other users" in shown.stderr
    assert "state_dir:" in shown.stderr
    assert "has no column 'nowhere'; it has: card, day" in shown.stderr
    assert len(json.loads(check(tmp_path, "--json").stdout)["problems"]) == 3


def test_names_that_are_not_there_are_told_of_every_table(tmp_path: Path) -> None:
    """Tables and columns that the database has not, all at once."""
    new_key(tmp_path)
    more = '[tables.crads.columns]\ncard = "key"\n[tables.staff.columns]\ncard = "key"\n'
    found = inspect(write_file(tmp_path, columns='nowhere = "key"\nneither = "key"\ncard = "key"', more=more))
    columns, table = found.problems
    assert "table 'cards' has no column 'nowhere', 'neither'; it has: " in columns
    assert "has no table 'crads'" in table
    assert [each.name for each in found.tables] == ["staff"]


def test_a_key_that_takes_too_long_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` ends, and says what it does not know."""
    monkeypatch.setattr(report, "PATIENCE", 0.5)
    new_key(tmp_path)
    with duckdb.connect(str(tmp_path / "bank.duckdb")) as bank:
        bank.sql("CREATE VIEW slow AS SELECT 1 AS k, 2 AS x FROM range(10000000) a, range(10000000) b")
    file = write_file(tmp_path)
    text = file.read_text().replace("parquet:///bank", "duckdb:///bank.duckdb")
    file.write_text(text.partition("[tables.cards]")[0] + '[tables.slow]\ncolumns.k = "key"\n')
    found = inspect(file)
    assert found.problems == []
    assert any("table slow, column k: reading it takes more than 0 s" in text for text in found.warnings)


@pytest.mark.parametrize("log", ["file/audit.jsonl", "folder", "nowhere/audit.jsonl", "/proc/audit.jsonl"])
def test_an_audit_log_that_cannot_be_written(tmp_path: Path, log: str) -> None:
    """It is tried, not guessed, so `check` finds it for every user; so does the party, before it listens."""
    new_key(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    write_file(tmp_path, top=f'audit_log = "{log}"')
    [problem] = inspect(tmp_path / "party.toml").problems
    assert problem.startswith(f"audit_log: {str(tmp_path / log)!r} is not a file that can be written (")
    with pytest.raises(ConfigError, match="audit_log"):
        start(PartyFile.load(tmp_path / "party.toml"))


def test_a_state_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in its place, or a folder of the system, is a problem; a check leaves no file behind."""
    new_key(tmp_path)
    (tmp_path / "state").mkdir()
    for state, problems in (("blinding.key", 1), ("/proc", 1), ("state", 0)):
        write_file(tmp_path, top=f'state_dir = "{state}"')
        found = inspect(tmp_path / "party.toml").problems
        assert ["state_dir: " in problem for problem in found] == [True] * problems
    assert not list((tmp_path / "state").iterdir())
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_check_does_not_advise_a_check(tmp_path: Path) -> None:
    """What callers are told to ask the operator for is not told to the operator who looks."""
    new_key(tmp_path)
    write_file(tmp_path, columns='nowhere = "key"')
    [problem] = inspect(tmp_path / "party.toml").problems
    assert "party check" not in problem
    assert "has no column 'nowhere'" in problem


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    """The error has the address, the reason and what to do."""
    new_key(tmp_path)
    write_file(tmp_path)
    settings = PartyFile.load(tmp_path / "party.toml")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            start(msgspec.structs.replace(settings, listen=f"127.0.0.1:{port}"))
    assert f"cannot listen at '127.0.0.1:{port}': another program listens at port {port} already" in str(refused.value)
    assert "name another port under listen" in str(refused.value)
    with pytest.raises(ConfigError, match=r"cannot listen at '192\.0\.2\.1:4000': .*; name an address of this machine"):
        start(msgspec.structs.replace(settings, listen="192.0.2.1:4000", insecure=True))


def test_a_file_that_is_no_party_file(tmp_path: Path) -> None:
    """One clear line, no traceback."""
    (tmp_path / "party.toml").write_text("name = 3")
    shown = check(tmp_path)
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: party file 'party.toml':")
    assert "Traceback" not in shown.stderr


def test_certificates_are_tried(tmp_path: Path) -> None:
    """A certificate without its key is a problem, another party's certificate a warning."""
    new_key(tmp_path)
    new_authority(tmp_path)
    issue(tmp_path, "shop")
    tls = 'tls = { cert = "shop.crt", key = "shop.key", ca = "ca.crt" }'
    write_file(tmp_path, top=tls)
    found = inspect(tmp_path / "party.toml")
    assert (found.tls, found.problems) == (True, [])
    assert "tls.cert belongs to 'shop', not to party 'bank': callers must expect that name" in found.warnings
    assert any("'tablepuppet certs issue shop --party'" in text for text in found.warnings)  # it is for both ends
    assert not any("ends in" in text for text in found.warnings)
    for name in ("shop.crt", "shop.key"):
        (tmp_path / name).unlink()
    issue(tmp_path, "shop", days=20)
    soon = "the certificate of this party ends in 19 days; issue a new one, then reload"
    assert soon in inspect(tmp_path / "party.toml").warnings
    write_file(tmp_path, top=tls.replace("shop.key", "nowhere.key"))
    [problem] = inspect(tmp_path / "party.toml").problems
    assert "nowhere.key' does not exist" in problem


def test_likely_mistakes_are_warnings(tmp_path: Path) -> None:
    """Too few rows for the policy's own minimum, and a private column to learn from, are told."""
    new_key(tmp_path)
    write_file(tmp_path, table="min_rows = 100")
    warnings = inspect(tmp_path / "party.toml").warnings
    assert "table cards: 60 rows, but min_rows is 100: it cannot be used" in warnings
    assert "table cards, column secret: a private column can be neither a label nor a feature" in warnings


def test_what_may_not_be_meant_is_a_warning(tmp_path: Path) -> None:
    """A policy that allows more than it seems to is told of, each with its table, column or file."""
    new_key(tmp_path)
    (tmp_path / "state").mkdir(mode=0o700)
    table = (
        "min_rows = 0\nmatrix = true\nbudget = { epsilon = 1.0, require_dp = false }\n"
        'deliver = ["east", "west", "north"]'
    )
    columns = 'card = "key"\nregion = "key"\nfraud = ["label", "feature"]\ncredit = ["label", "id"]'
    file = write_file(tmp_path, table=table, columns=columns, top='state_dir = "state"')
    file.chmod(0o644)
    warned = inspect(file).warnings
    assert warned[0].startswith("table cards: its budget binds nothing")
    for text in (
        "table cards: min_rows = 0",
        "table cards: matrix = true",
        "table cards: deliver names 3 parties",
        "column fraud: it is a label, whose values are released row by row, and also feature",
        "column credit: it is a label, whose values are released row by row, and also id",
        "column region: a key with ",
        f"{str(file)!r}: every user of this machine can read it",
    ):
        assert any(text in each for each in warned), text
    assert not any("column card: a key with" in each for each in warned)
    write_file(tmp_path, table="budget = { epsilon = 1.0 }", columns='card = "key"', top='state_dir = "state"').chmod(
        0o600
    )
    assert not any("chmod" in each or "binds nothing" in each for each in inspect(file).warnings)


def budget(folder: Path, *options: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """What was spent, by a process of its own."""
    return tablepuppet(folder, "party", "budget", "party.toml", *options, fresh=fresh)


def test_budgets_are_shown(tmp_path: Path) -> None:
    """What was spent and what is left, by everybody and by caller, for people and for programs; `check` has bounds."""
    new_key(tmp_path)
    (tmp_path / "state").mkdir()
    bounds = "budget = { epsilon = 4, epsilon_per_caller = 1.5, require_dp = true, delta = 0.1 }"
    write_file(tmp_path, table=bounds, top='state_dir = "state"')
    fresh = json.loads(budget(tmp_path, "--json").stdout)
    assert fresh == [{"table": "cards", "caller": None, "spent": 0.0, "budget": 4.0, "left": 4.0, "delta": 0.1}]
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
    ledger, rule = Ledger(tmp_path / "state" / "ledger.sqlite", "bank"), Budget(epsilon=4, delta=0.1)
    ledger.charge("cards", "analyst", Spending.of_pure(1.0), rule, purpose="labels")
    everybody, analyst = json.loads(budget(tmp_path, "--json").stdout)
    assert (everybody["caller"], analyst["caller"]) == (None, "analyst")
    assert 0.5 < analyst["spent"] == everybody["spent"] <= 1.0
    assert (everybody["left"], analyst["left"]) == (4.0 - everybody["spent"], 1.5 - analyst["spent"])
    shown = budget(tmp_path, fresh=True).stdout
    assert "(everybody)" in shown
    assert "analyst" in shown
    checked = check(tmp_path)
    assert "privacy budget: epsilon 4 at delta 0.1, 1.5 for each caller; nothing leaves without noise" in checked.stdout
    assert "warning: table cards: budget.delta is not below one over its rows" in checked.stderr
    assert "column region: as filter it is released without noise, though require_dp is set" in checked.stderr


def test_secure_sums_and_a_budget_are_shown(tmp_path: Path) -> None:
    """A table may demand both, and `check` tells of both."""
    new_key(tmp_path)
    new_authority(tmp_path)
    issue(tmp_path, "bank")
    (tmp_path / "state").mkdir()
    tls = 'tls = { cert = "bank.crt", key = "bank.key", ca = "ca.crt" }'
    top = f'state_dir = "state"\npeers = ["east", "west"]\n{tls}'
    write_file(tmp_path, table="secure_sum = true\nbudget = { epsilon = 4 }", top=top)
    shown = check(tmp_path).stdout
    assert "groups of at least 5 rows; sums leave within a sum over shards only" in shown
    assert "privacy budget: epsilon 4 at delta 1e-06" in shown
    [cards] = json.loads(check(tmp_path, "--json").stdout)["tables"]
    assert (cards["secure_sum"], cards["budget"]["epsilon"]) == (True, 4)
    columns = 'credit = { uses = ["feature", "value"], level = "public" }'
    write_file(tmp_path, table="secure_sum = true\ncross_statistics = true\nmatrix = true", columns=columns, top=top)
    warned = check(tmp_path).stderr
    assert "column credit: the use value has no effect: under secure_sum cells are refused" in warned
    assert "cross_statistics has no effect: under secure_sum columns are refused" in warned
    assert "matrix = true beside secure_sum: X @ V is no sum" in warned
    [cards] = json.loads(check(tmp_path, "--json").stdout)["tables"]
    assert not {"VALUES", "COLUMNS"} & set(cards["columns"][0]["releases"])


def test_named_keys_are_shown(tmp_path: Path) -> None:
    """Expressions that may be joined by stand below their table, and in the JSON."""
    write_file(tmp_path, table='keys = ["card // 10"]')
    new_key(tmp_path)
    done = check(tmp_path, "--json")
    [cards] = json.loads(done.stdout)["tables"]
    assert cards["keys"] == ['"card" // 10']
    assert 'joined by: "card" // 10' in check(tmp_path).stdout


def test_places_for_predictions_are_tried(tmp_path: Path) -> None:
    """A place that can be written is shown; one that cannot, and keys that are not there, are problems."""
    new_key(tmp_path)
    place = 'deliver = ["store"]\npredictions = { keys = ["pin"], file = "home.csv" }'
    write_file(tmp_path, table=place)
    shown = check(tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "predictions made with it may go to store" in shown.stdout
    assert "home.csv, beside pin" in " ".join(shown.stdout.split())
    assert json.loads(check(tmp_path, "--json").stdout)["tables"][0]["predictions"]["keys"] == ["pin"]
    wrong = {
        place.replace("home.csv", "missing/home.csv"): "its folder is not there",
        place.replace("home.csv", "blinding.csv"): "another file stands there, which no delivery wrote",
        place.replace("pin", "pan"): "has no column 'pan'",
        place.replace("file", "table").replace(".csv", ""): "a database of files has no table to write to",
        place.replace('file = "home.csv"', 'table = "cards"'): "table 'cards' is published",
    }
    (tmp_path / "blinding.csv").write_text("secret")
    for text, message in wrong.items():
        write_file(tmp_path, table=text)
        assert any(message in problem for problem in inspect(tmp_path / "party.toml").problems), message


def test_a_party_without_a_ledger(tmp_path: Path) -> None:
    """A party that keeps nothing has no budget to show, and says so."""
    new_key(tmp_path)
    write_file(tmp_path)
    shown = budget(tmp_path)
    assert shown.returncode == 1
    assert "names no state_dir" in shown.stderr


def test_a_program_reads_where_a_party_is(tmp_path: Path) -> None:
    """The first line of `serve --json` is JSON."""
    new_key(tmp_path)
    file = write_file(tmp_path)
    file.write_text(file.read_text().replace(":8815", ":0"))
    command = [sys.executable, "-m", "tablepuppet", "party", "serve", "party.toml", "--json"]
    process = warm.start(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert ready["party"] == "bank"
        assert ready["url"].startswith("grpc://127.0.0.1:")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60.0)
        process.close()
