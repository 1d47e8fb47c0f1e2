"""The command line, as a user meets it: real processes, real databases, exit codes, what goes where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from tablepuppet.jobs import Run

SQL = "SELECT o.price, o.day, i.weight, o.returned FROM orders o JOIN items i USING (item_id)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store, a supplier and a federation file."""
    with duckdb.connect(str(tmp_path / "store.duckdb")) as store:
        store.execute(
            "CREATE TABLE orders AS SELECT i AS order_id, i % 20 AS item_id, (i * 37) % 100 / 10.0 AS price, "
            "DATE '2024-01-01' + (i % 30)::INT AS day, (i * 37) % 100 > 40 AS returned FROM range(400) t(i)"
        )
        (tmp_path / "supplier").mkdir()
        store.execute(
            f"COPY (SELECT i AS item_id, i * 0.5 AS weight FROM range(25) t(i)) TO '{tmp_path}/supplier/items.parquet'"
        )
    (tmp_path / "federation.toml").write_text(
        '[parties]\nstore = "duckdb:///store.duckdb"\nsupplier = "parquet:///supplier"\n'
    )
    (tmp_path / "job.toml").write_text(
        f'federation = "federation.toml"\nsql = "{SQL}"\nlabel = "returned"\noutput = "runs/returns"\n'
        '[learner]\nkind = "LogisticRegression"\nl2 = 0.01\n'
    )
    return tmp_path


def tablepuppet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "tablepuppet", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_catalog_explain_describe(folder: Path) -> None:
    """Results go to standard output, progress to standard error; --json is for programs."""
    shown = tablepuppet(folder, "catalog", "federation.toml")
    assert shown.returncode == 0
    assert "orders" in shown.stdout
    rows = json.loads(tablepuppet(folder, "catalog", "federation.toml", "--json").stdout)
    assert {row["table"] for row in rows} == {"orders", "items"}
    (folder / "query.sql").write_text(SQL)
    plan = tablepuppet(folder, "explain", "federation.toml", "query.sql", "--label", "returned")
    assert "400 joined rows" in plan.stdout
    assert "joining blinded keys: done" in plan.stderr
    facts = json.loads(tablepuppet(folder, "explain", "federation.toml", SQL, "--json").stdout)
    assert facts["joined_rows"] == 400
    assert facts["columns"] == ["price", "day", "weight", "returned"]
    figures = json.loads(tablepuppet(folder, "describe", "federation.toml", SQL, "--json").stdout)
    assert [row["count"] for row in figures] == [400] * 4


def test_train_evaluate_predict(folder: Path) -> None:
    """A job leaves a run folder from which a model is measured and used in other processes."""
    trained = json.loads(tablepuppet(folder, "train", "job.toml", "--json").stdout)
    assert trained["converged"]
    run = folder / "runs" / "returns"
    assert {"job.toml", "history.json", "metrics.json", "model"} <= {path.name for path in run.iterdir()}
    measured = json.loads(tablepuppet(folder, "evaluate", "runs/returns", "--json").stdout)
    assert measured == pytest.approx(trained["metrics"]["test"])
    assert tablepuppet(folder, "evaluate", "runs/returns").stdout.startswith("test: accuracy")
    other = tablepuppet(folder, "evaluate", "runs/returns", "--sql", SQL)
    assert other.stdout.startswith("query: accuracy"), other.stderr
    told = tablepuppet(folder, "predict", "runs/returns", "--output", "out.parquet")
    assert told.returncode == 0, told.stderr
    table = pq.read_table(folder / "out.parquet")
    assert len(table) == 400
    assert {"o.row", "i.party", "prediction", "probability=True"} <= set(table.column_names)
    right = [row["prediction"] == ((row["o.row"] * 37) % 100 > 40) for row in table.to_pylist()]
    assert sum(right) > 380


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
    shown = tablepuppet(folder, "train", "job.toml")
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
    result = json.loads(tablepuppet(folder, "bench", "job.toml", "--json").stdout)
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
        (("evaluate", "supplier"), "is no run folder"),
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
        ('kind = "Oracle"', "learner kind 'Oracle' is none of"),
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


def test_wrong_usage_is_exit_code_2(folder: Path) -> None:
    """A missing argument is told with the usage."""
    assert tablepuppet(folder, "explain").returncode == 2
    assert tablepuppet(folder, "--help").returncode == 0


def test_predictions_with_noise_are_asked_for_once(folder: Path) -> None:
    """Classes and probabilities of one prediction agree, whatever noise it has: a second one would cost again."""
    with (folder / "job.toml").open("a") as job:
        job.write("[learner.privacy]\nfeature_epsilon = 20\nprediction_epsilon = 20\n")
    run, reader = folder / "runs" / "returns", lambda event: None
    Run.to_train(folder / "job.toml", reader).train()
    table = Run.of_folder(run, reader).predict(None)
    likely = table["probability=True"].to_numpy() > table["probability=False"].to_numpy()
    assert table["prediction"].to_pylist() == likely.tolist()
