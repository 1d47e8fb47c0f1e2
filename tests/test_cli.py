"""The command line, as a user meets it: real processes, real databases, exit codes, what goes where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import tablepuppet as tp
from tablepuppet.cli.output import check_output, typed
from tablepuppet.errors import ConfigError
from tablepuppet.jobs import Run
from tablepuppet.versions import PROTOCOL
from tests.command_line import tablepuppet
from tests.small_job import SQL, write_job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store, a supplier, a federation file and a job file."""
    return write_job(tmp_path)


def test_catalog_explain_describe(folder: Path) -> None:
    """Results go to standard output, progress to standard error; --json is for programs."""
    shown = tablepuppet(folder, "catalog", "federation.toml", fresh=True)
    assert shown.returncode == 0
    assert "orders" in shown.stdout
    rows = json.loads(tablepuppet(folder, "catalog", "federation.toml", "--json").stdout)
    assert {row["table"] for row in rows} == {"orders", "items"}
    (folder / "query.sql").write_text(SQL)
    plan = tablepuppet(folder, "explain", "federation.toml", "query.sql", "--label", "returned", fresh=True)
    assert "400 joined rows" in plan.stdout
    assert "joining blinded keys: done" in plan.stderr
    facts = json.loads(tablepuppet(folder, "explain", "federation.toml", SQL, "--json").stdout)
    assert facts["joined_rows"] == 400
    assert facts["columns"] == ["price", "day", "weight", "returned"]
    figures = json.loads(tablepuppet(folder, "describe", "federation.toml", SQL, "--json", fresh=True).stdout)
    assert [row["count"] for row in figures] == [400] * 4


def test_train_evaluate_predict(folder: Path) -> None:
    """A job leaves a run folder from which a model is measured and used in other processes."""
    trained = json.loads(tablepuppet(folder, "train", "job.toml", "--json", fresh=True).stdout)
    assert trained["converged"]
    run = folder / "runs" / "returns"
    assert {"job.toml", "history.json", "metrics.json", "model"} <= {path.name for path in run.iterdir()}
    measured = json.loads(tablepuppet(folder, "evaluate", "runs/returns", "--json", fresh=True).stdout)
    assert measured == pytest.approx(trained["metrics"]["test"])
    assert tablepuppet(folder, "evaluate", "runs/returns").stdout.startswith("test: accuracy")
    at_party = tablepuppet(folder, "evaluate", "runs/returns", "--at-party", "--json")
    assert json.loads(at_party.stdout) == pytest.approx(measured)
    other = tablepuppet(folder, "evaluate", "runs/returns", "--sql", SQL)
    assert other.stdout.startswith("query: accuracy"), other.stderr
    told = tablepuppet(folder, "predict", "runs/returns", "--output", "out.parquet", fresh=True)
    assert told.returncode == 0, told.stderr
    table = pq.read_table(folder / "out.parquet")
    assert len(table) == 400
    assert {"o.row", "i.party", "prediction", "probability=True"} <= set(table.column_names)
    right = [row["prediction"] == ((row["o.row"] * 37) % 100 > 40) for row in table.to_pylist()]
    assert sum(right) > 380


def test_parameters_of_commands_and_jobs(folder: Path) -> None:
    """--param and [params] are values of $names; predict takes other ones for the job's own query."""
    sql = f"{SQL} WHERE o.price < $most"
    facts = tablepuppet(folder, "explain", "federation.toml", sql, "--param", "most=5.0", "--json")
    assert 0 < json.loads(facts.stdout)["joined_rows"] < 400, facts.stderr
    wrong = tablepuppet(folder, "explain", "federation.toml", sql, "--param", "most")
    assert wrong.returncode != 0
    assert "write NAME=VALUE" in wrong.stderr
    job = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text(f"{job.replace(SQL, sql)}\n[params]\nmost = 1e9\n")
    assert sql in (folder / "job.toml").read_text()
    trained = tablepuppet(folder, "train", "job.toml", "--json")
    assert trained.returncode == 0, trained.stderr
    less = tablepuppet(folder, "predict", "runs/returns", "--param", "most=5.0", "--json")
    assert len(json.loads(less.stdout)) == json.loads(facts.stdout)["joined_rows"], less.stderr


def test_a_job_that_stops_early(folder: Path) -> None:
    """A share of the train side is held out for validation; metrics and history have it."""
    with (folder / "job.toml").open("a") as job:
        job.write("patience = 1\n[split]\ntest = 0.2\nvalidation = 0.25\n")
    trained = json.loads(tablepuppet(folder, "train", "job.toml", "--json").stdout)
    assert set(trained["metrics"]) == {"train", "validation", "test"}
    history = json.loads((folder / "runs" / "returns" / "history.json").read_text())
    best = min(history, key=lambda entry: entry["validation_loss"])
    assert trained["best_round"] == best["round"]
    assert trained["metrics"]["validation"]["log_loss"] == pytest.approx(best["validation_loss"], rel=1e-4)
    assert trained["rounds"] == len(history)
    shown = tablepuppet(folder, "train", "job.toml", "--overwrite")
    assert f"{trained['stopped']} after {trained['rounds']} rounds" in shown.stdout
    measured = json.loads(tablepuppet(folder, "evaluate", "runs/returns", "--json").stdout)
    assert measured == pytest.approx(trained["metrics"]["test"])


def test_a_metric_that_is_none(folder: Path) -> None:
    """An area under the curve where a class has no row is null in metrics.json, which stays valid JSON."""
    text = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text(f"{text}[split]\ntest = 0.0025\n")
    tablepuppet(folder, "train", "job.toml")
    written = (folder / "runs" / "returns" / "metrics.json").read_text()
    assert json.loads(written, parse_constant=pytest.fail)["test"]["auc"] is None


def test_an_empty_side_is_refused(folder: Path) -> None:
    """A share that leaves no rows for validation, or for training, is told."""
    text = (folder / "job.toml").read_text()
    for share, message in (("0.0001", "validation side of the split is empty"), ("1.0", "train side of the split")):
        (folder / "job.toml").write_text(f"{text}[split]\nvalidation = {share}\n")
        done = tablepuppet(folder, "train", "job.toml")
        assert done.returncode == 1
        assert message in done.stderr


def test_bench(folder: Path) -> None:
    """Rounds, seconds, bytes and trips of a job, and a latency per trip with bytes over bandwidth for two lines."""
    result = json.loads(tablepuppet(folder, "bench", "job.toml", "--json", fresh=True).stdout)
    assert result["converged"]
    assert result["seconds"] > 0
    assert result["trips"] == 4 + result["rounds"]  # catalog; tables and keys; split; statistics and labels; rounds
    for line, latency, speed in (("US-UK", 0.136, 0.42e9), ("US-US", 0.067, 1.15e9)):
        expected = result["trips"] * latency + result["bytes"] * 8 / speed
        assert result["communication_seconds"][line] == pytest.approx(expected)
    shown = tablepuppet(folder, "bench", "job.toml").stdout
    assert f"{result['trips']} trips" in shown
    assert "communication US-UK: " in shown
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "federation.toml", "SELECT pric FROM orders"), "did you mean 'price'?"),
        (("catalog", "missing.toml"), "cannot read federation file 'missing.toml'"),
        (("train", "federation.toml"), "job file 'federation.toml': "),
        (("evaluate", "supplier"), "is not a run folder"),
    ],
)
def test_a_refusal_is_one_message_and_exit_code_1(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    """Bad input ends in a readable error on standard error, without a traceback."""
    done = tablepuppet(folder, *arguments)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('name = "LinearRegression"', "[learner] does not say which learner: set kind, one of "),
        ('kind = "Oracle"', "learner kind 'Oracle' is not known; there are: "),
        ('kind = "LinearRegression"\nspeed = 3', "LinearRegression has no setting 'speed'"),
    ],
)
def test_a_job_with_a_wrong_learner_is_refused(folder: Path, line: str, message: str) -> None:
    """The error names what is wrong and what there is."""
    text = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text(text.split("[learner]")[0] + f"[learner]\n{line}\n")
    done = tablepuppet(folder, "train", "job.toml")
    assert done.returncode == 1
    assert message in done.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("label =", "lable = 3\nlabel =", "job file 'job.toml': unknown field 'lable'; did you mean 'label'?"),
        ("[learner]", "[split]\ntets = 0.1\n[learner]", "unknown field 'split.tets'; did you mean 'test'?"),
        ("l2 =", "l22 =", "LogisticRegression has no setting 'l22'; did you mean 'l2'?"),
        ('"LogisticRegression"', '"LogisticRegresion"', "did you mean 'LogisticRegression'?"),
        ("l2 = 0.01", "privacy = { label_epsilom = 1 }", "no setting 'label_epsilom'; did you mean 'label_epsilon'?"),
    ],
)
def test_a_misspelt_field_is_told_with_the_closest(folder: Path, old: str, new: str, message: str) -> None:
    """The error names the file, the place of the field and what was probably meant."""
    text = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text(text.replace(old, new))
    with pytest.raises(tp.TablePuppetError) as refused:
        Run.to_train(folder / "job.toml", lambda event: None)
    assert message in str(refused.value).replace(str(folder / "job.toml"), "job.toml")
    assert not (folder / "runs").exists()


def test_version(folder: Path) -> None:
    """The versions of the package and of the protocol, on standard output."""
    done = tablepuppet(folder, "--version", fresh=True)
    assert (done.returncode, done.stdout) == (0, f"tablepuppet {tp.__version__}, version {PROTOCOL} of the protocol\n")


@pytest.mark.parametrize(
    ("script", "path", "expected"),
    [
        ("bin/tablepuppet", "", "bin/tablepuppet catalog 'a b.toml'"),
        ("bin/tablepuppet", "bin", "tablepuppet catalog 'a b.toml'"),
        ("src/tablepuppet/__main__.py", "", "bin/python3 -m tablepuppet catalog 'a b.toml'"),
        ("src/tablepuppet/__main__.py", "bin", "python3 -m tablepuppet catalog 'a b.toml'"),
        ("-c", "", "tablepuppet catalog 'a b.toml'"),
    ],
)
def test_commands_are_told_as_they_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, path: str, expected: str
) -> None:
    """By name where the PATH leads to the program that runs, by its path where it does not."""
    (tmp_path / "bin").mkdir()
    for name in ("tablepuppet", "python3"):
        (tmp_path / "bin" / name).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / path}:/usr/bin" if path else "/usr/bin")
    monkeypatch.setattr("sys.argv", [script])
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python3"))
    assert typed("catalog", "a b.toml") == expected


@pytest.mark.parametrize("flag", ["", " --json"])
def test_a_reader_that_ends_first(folder: Path, flag: str) -> None:
    """A pipe that is closed ends a command quietly, with the exit code that the shell has of SIGPIPE."""
    command = f"{sys.executable} -m tablepuppet catalog federation.toml{flag} | true; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert (found.stdout, found.stderr) == ("141\n", "")


def test_wrong_usage_is_exit_code_2(folder: Path) -> None:
    """A missing argument is told with the usage."""
    assert tablepuppet(folder, "explain", fresh=True).returncode == 2
    assert tablepuppet(folder, "--help", fresh=True).returncode == 0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("missing/out.csv", "No such file or directory"),
        ("job.toml/out.parquet", "Not a directory"),
        ("folder.csv", "Is a directory"),
        ("out.txt", "ends in .parquet or .csv"),
    ],
)
def test_a_file_that_cannot_be_written_is_known_before_the_work(folder: Path, output: str, message: str) -> None:
    """`predict --output` fails in one line before a party is asked for anything."""
    (folder / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match=message):
        check_output(folder / output)
    done = tablepuppet(folder, "predict", "runs/missing", "--output", output)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_predictions_beside_ids_and_at_home(folder: Path) -> None:
    """A query for predictions needs no label; ids stand beside predictions; a party takes them home."""
    (folder / "federation.toml").write_text(
        '[parties]\nsupplier = "parquet:///supplier"\n[parties.store]\nurl = "duckdb:///store.duckdb"\n'
        '[parties.store.predictions.orders]\nkeys = ["order_id"]\ntable = "home"\n'
    )
    with (folder / "job.toml").open("a") as job:
        job.write("[split]\ntest = 0.0\n")
    text = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text('drop = ["day"]\n' + text)
    Run.to_train(folder / "job.toml", lambda event: None).train()
    sql = "SELECT o.price, i.weight FROM orders o JOIN items i USING (item_id) WHERE o.order_id < 10"
    done = tablepuppet(folder, "predict", "runs/returns", "--sql", sql, "--id", "order_id", "--output", "out.csv")
    assert done.returncode == 0, done.stderr
    table = pa_csv.read_csv(folder / "out.csv")
    assert table.column_names == ["order_id", "prediction", "probability=False", "probability=True"]
    assert table["order_id"].to_pylist() == list(range(10))
    told = tablepuppet(folder, "predict", "runs/returns", "--sql", sql, "--deliver-to", "store")
    assert told.stdout.startswith("10 predictions delivered to store.orders as run "), told.stderr
    with duckdb.connect(str(folder / "store.duckdb")) as store:
        assert store.execute("SELECT order_id, prediction FROM home").fetchall() == list(
            zip(table["order_id"].to_pylist(), table["prediction"].to_pylist(), strict=True)
        )
    for wrong, message in (
        (("--combine", "mean"), "--combine goes with --deliver-to"),
        (("--deliver-to", "store", "--id", "order_id"), "leave out --output and --id"),
        (("--deliver-to", "store", "--combine", "sum"), "`--combine mean` averages"),
        (("--deliver-to", "supplier"), "(`--combine mean` on the command line) to average them"),
    ):
        done = tablepuppet(folder, "predict", "runs/returns", *wrong)
        assert done.returncode == 1
        assert message in " ".join(done.stderr.split())
    needs = tablepuppet(folder, "evaluate", "runs/returns", "--sql", sql)
    assert "does not select the label 'returned', which evaluate needs" in " ".join(needs.stderr.split())


def test_predictions_with_noise_are_asked_for_once(folder: Path) -> None:
    """Classes and probabilities of one prediction agree, whatever noise it has: a second one would cost again."""
    with (folder / "job.toml").open("a") as job:
        job.write("[learner.privacy]\nfeature_epsilon = 20\nprediction_epsilon = 20\n")
    run, reader = folder / "runs" / "returns", lambda event: None
    Run.to_train(folder / "job.toml", reader).train()
    table = Run.of_folder(run, reader).predict(None)
    likely = table["probability=True"].to_numpy() > table["probability=False"].to_numpy()
    assert table["prediction"].to_pylist() == likely.tolist()
