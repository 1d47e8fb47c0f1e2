"""Callbacks for other tools, and events that a program keeps."""

from __future__ import annotations

import logging
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.runs.event_file import read_events

TABLES = {"shop": {"items": {"weight": [0.5, 1.5, 2.5, 3.0] * 10, "price": [1.0, 3.0, 5.0, 6.0] * 10}}}
SQL = "SELECT weight, price FROM items"


def test_a_program_keeps_its_events(tmp_path: Path) -> None:
    """All of them, fits and trips too; a folder that another program writes is refused, one of an old run is not."""
    keep = tp.callbacks.Keep(tmp_path / "mine")
    fed = tp.Federation(TABLES, callbacks=[keep])
    tp.LinearRegression().fit(fed.sql(SQL, label="price"))
    names = {event.name for event in read_events(tmp_path / "mine" / "events.jsonl")}
    assert {"run.begins", "opened", "trip", "fit.begins", "fit", "fitted"} <= names
    with pytest.raises(tp.ConfigError, match="another program keeps its events"):
        tp.callbacks.Keep(tmp_path / "mine")
    tp.callbacks.Keep(tmp_path / "other")
    keep._file.end("finished")
    tp.callbacks.Keep(tmp_path / "mine")


def test_classes_and_weights_are_in_no_event() -> None:
    """Settings that name classes of a label are left out of what events say of a learner."""
    found: list[tp.Event] = []
    fed = tp.Federation({"shop": {"items": {"weight": [0.5, 1.5] * 30, "kind": ["canary-a", "canary-b"] * 30}}})
    privacy = tp.Privacy(label_epsilon=5.0, label_classes=("canary-a", "canary-b"))
    learner = tp.LogisticRegression(privacy=privacy, callbacks=[found.append])
    learner.fit(fed.sql("SELECT weight, kind FROM items", label="kind"))
    [begins] = [event for event in found if event.name == "fit.begins"]
    assert begins.fields["settings"]["privacy"]["label_epsilon"] == 5.0
    assert "canary" not in str(found)


def test_mlflow_has_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, the loss of every round beside that of a constant, and the model folder."""
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file:{tmp_path}/mlruns"
    fed = tp.Federation(TABLES)
    callback = tp.callbacks.MLflow("prices", tracking_uri=uri)
    model = tp.LinearRegression(l2=0.01, callbacks=[callback]).fit(fed.sql(SQL, label="price"))
    client = tracking.MlflowClient(uri)
    [run] = client.search_runs([client.get_experiment_by_name("prices").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["setting.l2"] == "0.01"
    losses = [each.value for each in client.get_metric_history(run.info.run_id, "loss")]
    assert losses == pytest.approx([each["loss"] for each in model.history_])
    assert "model/model.json" in [each.path for each in client.list_artifacts(run.info.run_id, "model")]


class Unreachable:
    """An MLflow whose server does not answer."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError("no server")


def test_mlflow_that_is_not_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Not installed is an error at once; a server that does not answer ends no fit, and is warned of once."""
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(tp.ConfigError, match="pip install mlflow"):
        tp.callbacks.MLflow()
    callback = tp.callbacks.MLflow.__new__(tp.callbacks.MLflow)
    callback.__dict__.update(_client=Unreachable(), _experiment=None, _runs={}, _has_failed=False, _log_model=True)
    caplog.set_level(logging.WARNING)
    tp.LinearRegression(callbacks=[callback]).fit(tp.Federation(TABLES).sql(SQL, label="price"))
    assert caplog.text.count("MLflow: not all of this fit is logged") == 1


def test_prometheus_reads_a_fit() -> None:
    """Rounds, trips and bytes are those of the fit; a port that is taken is refused, and values of rows are nowhere."""
    metrics = tp.callbacks.Prometheus(0)
    fed = tp.Federation({"shop": {"items": {"weight": [0.5, 1.5] * 30, "kind": ["canary-a", "canary-b"] * 30}}})
    fed.events.subscribe(metrics, trips=True)
    model = tp.LogisticRegression().fit(fed.sql("SELECT weight, kind FROM items", label="kind"))
    metrics(tp.Event("warning", "party.lost", "party 'shop' is lost", {"party": "shop"}))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as reply:
        page = reply.read().decode()
    assert f"tablepuppet_coordinator_rounds_total {len(model.history_)}.0" in page
    assert 'fits_total{learner="LogisticRegression",stopped="' in page
    assert 'bytes_total{party="shop",way="up"}' in page
    assert 'party_lost{party="shop"} 1.0' in page
    assert "canary" not in page
    with pytest.raises(tp.ConfigError, match=r"metrics: cannot listen at '127.0.0.1', port \d+"):
        tp.callbacks.Prometheus(metrics.port)
    metrics.close()
