"""Commands fit the window: at 80 and 110 columns no line is too long and no word is broken; pipes get whole lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tablepuppet.party.blind import new_blinding_key
from tests.command_line import tablepuppet
from tests.small_job import SQL, write_job
from tests.terminal import on_terminal

WIDTHS = (80, 110)
LONG = (
    "SELECT o.price, o.day, o.made, o.city, i.weight, o.returned FROM orders o JOIN items i USING (item_id) "
    "WHERE o.price > 0.1 AND o.day >= DATE '2024-01-01' AND i.weight < 100"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose orders also have a year and a city."""
    made = write_job(tmp_path_factory.mktemp("window"))
    with duckdb.connect(str(made / "store.duckdb")) as store:
        store.execute("ALTER TABLE orders ADD COLUMN made INTEGER")
        store.execute("ALTER TABLE orders ADD COLUMN city VARCHAR")
        store.execute("UPDATE orders SET made = 1990 + order_id % 30, city = ['Bern', 'Oslo'][1 + order_id % 2]")
    return made


def screen(folder: Path, columns: int, *arguments: str) -> tuple[int, str]:
    """(exit code, what a terminal shows), none of whose lines is longer than it is wide."""
    code, shown = on_terminal([sys.executable, "-m", "tablepuppet", *arguments], columns, 60, folder)
    assert all(len(line) <= columns for line in shown.splitlines())
    assert "…" not in shown
    return code, shown


def words(text: str) -> list[str]:
    """Words, without what draws trees and tables."""
    return re.sub(r"[│├└─┃┏┳┓┡╇┩━┴┘]", " ", text).split()


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_plan_fits(folder: Path, columns: int) -> None:
    """Every word of the plan is on the screen as it is in a pipe, whole and in the same order."""
    arguments = ("explain", "federation.toml", LONG, "--label", "returned")
    code, shown = screen(folder, columns, *arguments)
    assert code == 0, shown
    plan = shown[shown.index("Relation:") :]  # a slow machine shows above it what took long
    assert words(plan) == words(tablepuppet(folder, *arguments).stdout)


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_error_fits(folder: Path, columns: int) -> None:
    """Its words are whole, and the carets are below what they underline, though the SQL is longer than a line."""
    sql = LONG.replace("i.weight < 100", "i.wait < 100")
    code, shown = on_terminal(
        [sys.executable, "-m", "tablepuppet", "explain", "federation.toml", sql], columns, 60, folder
    )
    piped = tablepuppet(folder, "explain", "federation.toml", sql).stderr.splitlines()
    *sentence, line, carets = shown.splitlines()
    assert code == 1
    assert " ".join(sentence) == piped[0]
    assert all(len(each) <= columns for each in shown.splitlines())
    assert line[carets.index("^") : carets.rindex("^") + 1] in ("i.wait", "wait")
    assert (line.count("…") > 0) == (columns < len(piped[1]))


@pytest.mark.parametrize("columns", WIDTHS)
def test_statistics_fit(folder: Path, columns: int) -> None:
    """Numbers are one table, categories another; a year is shown as a year."""
    code, shown = screen(folder, columns, "describe", "federation.toml", LONG)
    assert code == 0, shown
    numbers, categories = shown.split("Joined rows: categories")
    assert "Joined rows: numbers" in numbers
    assert re.search(r"│ made .*│ +1990 │", numbers)
    assert "│ city " in categories
    assert "made" not in categories
    assert "city" not in numbers


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_catalog_fits(folder: Path, columns: int) -> None:
    """Columns are grouped by their types: each type has one row."""
    code, shown = screen(folder, columns, "catalog", "federation.toml")
    assert code == 0, shown
    assert re.search(r"│ VARCHAR +│ city +│", shown)
    assert shown.count("BIGINT") == 2  # of orders and of items


@pytest.mark.parametrize("columns", WIDTHS)
def test_help_fits(folder: Path, columns: int) -> None:
    """Commands are in groups, for analysts and for operators, and no switch has a type."""
    code, shown = screen(folder, columns, "--help")
    assert code == 0
    places = [shown.index(text) for text in ("Analysts: look", "demo", "Analysts: train", "Operators", "party")]
    assert places == sorted(places)
    for command in ((), ("demo",), ("predict",), ("party",), ("party", "check"), ("certs", "issue")):
        _, shown = screen(folder, columns, *command, "--help")
        assert "bool" not in shown
        assert "list[" not in shown
        if command == ("predict",):  # lines break where the window ends, not where those of the source do
            assert ("are opened in this process, by" in shown) == (columns == 110)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_search_ends_with_the_best_five(folder: Path, columns: int) -> None:
    """On a terminal no fit is left running or stopped; the best settings are a table, metrics have four decimals."""
    search = "[search]\nfolds = 2\nsettings = { l2 = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1] }\n"
    job = folder / f"search{columns}.toml"
    job.write_text((folder / "job.toml").read_text().replace("runs/returns", f"runs/{columns}") + search)
    code, shown = screen(folder, columns, "train", job.name)
    assert code == 0, shown
    assert "✓ LogisticRegression: the best of 6 settings is l2 = " in " ".join(shown.split())
    assert "stopped" not in shown
    assert "The best 5 of 6 settings, by mean accuracy of the folds held out" in shown
    assert re.search(r"┃ +l2 ┃ accuracy ┃ std accuracy ┃ +AUC ┃ log loss ┃ seconds ┃", shown)  # in one line, at 80 too
    assert len(re.findall(r"│ +\d+\.\d │$", shown, re.MULTILINE)) == 5  # seconds
    figure = r"\d\.\d{4} \(constant \d\.\d{4}\)"
    assert re.search(rf"test: accuracy {figure}, AUC {figure},\slog loss {figure}", shown)  # no figure without its name
    assert json.loads((folder / f"runs/{columns}" / "search.json").read_text())["metric"] == "accuracy"


def test_a_search_in_a_pipe(folder: Path) -> None:
    """Each fit is a line with its settings, its fold and its score."""
    job = folder / "piped.toml"
    text = (folder / "job.toml").read_text().replace("runs/returns", "runs/piped")
    job.write_text(text + "[search]\nfolds = 2\nsettings = { l2 = [1e-6, 1e-1] }\n")
    done = tablepuppet(folder, "train", job.name)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^l2 = (\S+), fold (\d): accuracy \d\.\d{4} \(.*\((\d) of 4\)$", done.stderr, re.MULTILINE)
    assert sorted(each[:2] for each in found) == [(l2, fold) for l2 in ("0.1", "1e-06") for fold in "01"]
    assert [each[2] for each in found] == list("1234")
    assert "2 settings, by mean accuracy" in done.stdout


def test_an_unknown_id_is_found_before_anything_is_read(folder: Path) -> None:
    """`predict --id nope` ends when the catalog is known: no party has opened a table."""
    job = folder / "ids.toml"
    job.write_text((folder / "job.toml").read_text().replace("runs/returns", "runs/ids"))
    assert tablepuppet(folder, "train", job.name).returncode == 0
    done = tablepuppet(folder, "predict", "runs/ids", "--id", "nope")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ids: no table of the query has a column 'nope'")


def test_the_version_needs_no_database(folder: Path) -> None:
    """Nothing large is loaded for `--version` or `--help`: no database, no arrays, no scikit-learn."""
    code = (
        "import sys; from tablepuppet.cli import main; sys.argv = ['tablepuppet', sys.argv[1]]\n"
        "large = {'duckdb', 'numpy', 'pyarrow', 'sklearn', 'sqlglot'}\n"
        "try: main()\n"
        "finally: print(sorted(large & set(sys.modules)), file=sys.stderr)"
    )
    for flag in ("--version", "--help"):
        done = subprocess.run(
            [sys.executable, "-c", code, flag], capture_output=True, text=True, cwd=folder, check=False
        )
        assert (done.returncode, done.stderr) == (0, "[]\n")


def test_plain_lines_in_a_pipe(folder: Path) -> None:
    """An error that is longer than any window is one line, and so is the SQL below it."""
    done = tablepuppet(folder, "explain", "federation.toml", SQL.replace("o.price", "o.cost"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.parametrize("columns", [*WIDTHS, 200])
def test_a_check_of_a_party_fits(tmp_path: Path, columns: int) -> None:
    """Long names of columns cut nothing, an empty cell is a dash, and who cannot call is not counted."""
    with duckdb.connect(str(tmp_path / "bank.duckdb")) as bank:
        bank.execute("CREATE TABLE homes AS SELECT i AS home_id, 'a' AS household_type_description FROM range(50) t(i)")
    new_blinding_key(tmp_path / "blinding.key")
    (tmp_path / "party.toml").write_text(
        'name = "bank"\nlisten = "127.0.0.1:8815"\ndatabase = "duckdb:///bank.duckdb"\nallow = ["analyst"]\n'
        'blinding_key = "blinding.key"\n[tables.homes.columns]\nhome_id = "key"\n'
        'household_type_description = ["filter", "feature"]\n'
    )
    code, shown = screen(tmp_path, columns, "party", "check", "party.toml")
    assert code == 0, shown
    assert {"GRADIENT_SUMS,", "PARAMETERS,", "STATISTICS,", "METRICS"} <= set(words(shown))
    assert all(line[-1] in "┓┃┩│┘" for line in shown.splitlines() if line[:1] in set("┏┃┡│└"))
    assert re.search(r"│ home_id +│ key +│ aggregate │ - +│", shown)
    assert "publishes 1 table to nobody" in " ".join(shown.split())


def test_bounds_are_advised_as_they_are_typed(folder: Path) -> None:
    """An error of noise without bounds says how a command takes them, and that works."""
    arguments = ("describe", "federation.toml", "SELECT o.price, o.returned FROM orders o", "--epsilon", "5")
    refused = tablepuppet(folder, *arguments)
    [option] = re.findall(r"\(of a command: (--bounds \S+)\)", refused.stderr)
    done = tablepuppet(folder, *arguments, *option.replace("LOW", "0").replace("HIGH", "10").split())
    assert done.returncode == 0, done.stderr
