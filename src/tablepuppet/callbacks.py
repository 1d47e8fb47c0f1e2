"""Readers of events to give to a federation or a learner: ``tp.callbacks``.

Input: events. Output: files and records of other tools, for the analyst only; events hold no value of a row.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tablepuppet.errors import ConfigError
from tablepuppet.runs.event_file import EVENTS, EventFile, is_live
from tablepuppet.runs.events import Event, current_run

if TYPE_CHECKING:
    from tablepuppet.learn.learners.learner import Learner

_LOG = logging.getLogger("tablepuppet")
_MEASURES = ("loss", "objective", "metric", "validation_loss", "validation_metric", "seconds", "epsilon")
_BYTES = ("bytes_up", "bytes_down")


class Keep:
    """Keeps all events of a federation in a folder, for `tablepuppet monitor`, in this process and after it.

    `tablepuppet train` keeps those of a job in its run folder by itself. Raises ConfigError if the folder cannot be
    written, or another process keeps its events there.

    >>> import tempfile, tablepuppet as tp
    >>> folder = tempfile.mkdtemp()
    >>> fed = tp.Federation({"shop": {"items": {"weight": [0.5, 1.5]}}}, callbacks=[tp.callbacks.Keep(folder)])
    >>> relation = fed.sql("SELECT weight FROM items")
    >>> "opened" in (Path(folder) / "events.jsonl").read_text()
    True
    """

    reads_trips = True

    def __init__(self, folder: str | Path):
        path = Path(folder) / EVENTS
        if is_live(path):
            raise ConfigError(f"another program keeps its events in {str(folder)!r}: name another folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"events cannot be kept in {str(folder)!r}: {error.strerror}") from error
        self._file = EventFile(path, {})
        atexit.register(self._file.end, "finished")

    def __call__(self, event: Event) -> None:
        """Keep one event."""
        self._file(event)


class MLflow:
    """Logs fits to MLflow: settings as parameters, figures of every round as metrics, the model folder as an artefact.

    Give it to a learner: each fit is a run there, those of a search too. A federation's callbacks get no model. Needs
    ``mlflow``; it goes where MLflow is told to (``MLFLOW_TRACKING_URI``), or to ``tracking_uri``. Where MLflow cannot
    be reached the fit goes on, and the log says so once. Raises ConfigError if ``mlflow`` is not installed.
    """

    def __init__(self, experiment: str | None = None, *, tracking_uri: str | None = None, log_model: bool = True):
        try:
            tracking = importlib.import_module("mlflow.tracking")
        except ImportError as error:
            raise ConfigError("tp.callbacks.MLflow needs mlflow: pip install mlflow") from error
        self._client: Any = tracking.MlflowClient(tracking_uri)
        self._experiment, self._log_model = experiment, log_model
        self._runs: dict[str | None, str] = {}  # of MLflow, by ours
        self._lock, self._has_failed = threading.Lock(), False

    def __call__(self, event: Event) -> None:
        """Log one event."""
        if event.name == "fit.begins":
            self._try(lambda: self._begin(event))
        elif event.name == "fit" and event.run in self._runs:
            self._try(lambda: self._round(event))
        elif event.name == "fitted" and event.run in self._runs:
            self._try(lambda: self._end(event))

    def take_model(self, model: Learner) -> None:
        """Keep the model of the fit that ends here, and end its run."""
        run = self._runs.pop(current_run(), None)
        if run is None:
            return
        if self._log_model:
            self._try(lambda: self._keep(run, model))
        self._try(lambda: self._client.set_terminated(run))

    def _begin(self, event: Event) -> None:
        named = self._experiment
        known = None if named is None else self._client.get_experiment_by_name(named)
        if named is None:
            experiment = "0"
        else:
            experiment = known.experiment_id if known is not None else self._client.create_experiment(named)
        name = event.part or str(event.fields["learner"])
        run = self._client.create_run(experiment, run_name=name).info.run_id
        with self._lock:
            self._runs[event.run] = run
        facts = {name: event.fields[name] for name in ("learner", "solver", "rounds", "rows", "epsilon")}
        settings = {f"setting.{name}": value for name, value in event.fields["settings"].items()}
        for name, value in (facts | settings).items():
            if value is not None:
                self._client.log_param(run, name, str(value)[:500])
        for name, value in event.fields["constant"].items():
            self._client.log_metric(run, f"constant_{name}", float(value))

    def _round(self, event: Event) -> None:
        entities = importlib.import_module("mlflow.entities")
        fields, moment = event.fields, int(event.time * 1000)
        found = [
            entities.Metric(name, float(fields[name]), moment, int(fields["round"]))
            for name in (*_MEASURES, *_BYTES)
            if fields.get(name) is not None
        ]
        if found:
            self._client.log_batch(self._runs[event.run], metrics=found)

    def _end(self, event: Event) -> None:
        run = self._runs[event.run]
        for name in ("stopped", "best_round", "converged"):
            self._client.set_tag(run, name, str(event.fields[name]))

    def _keep(self, run: str, model: Learner) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            self._client.log_artifacts(run, str(Path(folder) / "model"), "model")

    def _try(self, work: Callable[[], object]) -> None:
        """What MLflow refuses, or cannot do, is no reason to end a fit."""
        try:
            work()
        except Exception as error:
            if not self._has_failed:
                _LOG.warning("MLflow: not all of this fit is logged: %s: %s", type(error).__name__, error)
            self._has_failed = True


class Prometheus:
    """Serves counters of a federation's fits for Prometheus, at ``http://127.0.0.1:PORT/metrics`` of this process.

    Rounds, losses, trips and bytes by party, warnings: what events hold, and nothing of a party's own metrics. Port 0
    takes a free one, `port` says which. Raises ConfigError if the port is taken.

    >>> import tablepuppet as tp
    >>> metrics = tp.callbacks.Prometheus(0)
    >>> fed = tp.Federation({"shop": {"items": {"weight": [0.5, 1.5]}}}, callbacks=[metrics])
    >>> relation = fed.sql("SELECT weight FROM items")
    >>> "tablepuppet_coordinator_trips_total" in metrics.text()
    True
    >>> metrics.close()
    """

    reads_trips = True

    def __init__(self, port: int = 9465, *, host: str = "127.0.0.1"):
        from prometheus_client import CollectorRegistry, Counter, Gauge

        from tablepuppet.wire.metrics_page import MetricsPage

        self._registry = CollectorRegistry(auto_describe=False)

        def metric(kind: Any, name: str, text: str, *labels: str) -> Any:
            return kind(f"tablepuppet_coordinator_{name}", text, labels, registry=self._registry)

        self._fits = metric(Counter, "fits", "Fits, by what they came to.", "learner", "stopped")
        self._rounds = metric(Counter, "rounds", "Rounds of fits that have ended.")
        self._round_seconds = metric(Counter, "round_seconds", "Seconds of these.")
        self._losses = metric(Gauge, "loss", "The loss of the last round.")
        self._trips = metric(Counter, "trips", "Calls of a party.", "party", "answered")
        self._trip_seconds = metric(Counter, "trip_seconds", "Seconds from requests to answers.", "party")
        self._bytes = metric(Counter, "bytes", "Bytes from a party (up) and to it (down).", "party", "way")
        self._warnings = metric(Counter, "warnings", "Warnings, by the name of the event.", "name")
        self._lost = metric(Gauge, "party_lost", "Whether a party is silent or lost: 1 or 0.", "party")
        self._learners: dict[str | None, str] = {}
        self._page = MetricsPage(self._registry, host, port)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._page.port

    def text(self) -> str:
        """The page as it is now."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    def close(self) -> None:
        """Serve no more."""
        self._page.close()

    def __call__(self, event: Event) -> None:
        """Count one event."""
        fields, party = event.fields, str(event.fields.get("party", ""))
        if event.kind == "trip":
            self._trips.labels(party, "yes" if fields["answered"] else "no").inc()
            self._trip_seconds.labels(party).inc(fields["seconds"])
            for way in ("up", "down"):
                self._bytes.labels(party, way).inc(fields[f"bytes_{way}"])
            self._lost.labels(party).set(0 if fields["answered"] else 1)
        elif event.kind == "warning":
            self._warnings.labels(event.name).inc()
            if event.name in ("party.silent", "party.lost"):
                self._lost.labels(party).set(1)
        elif event.name == "fit" and "loss" in fields:
            self._rounds.inc()
            self._round_seconds.inc(fields["seconds"])
            self._losses.set(fields["loss"])
        elif event.name == "fit.begins":
            self._learners[event.run] = str(fields["learner"])
        elif event.name == "fitted":
            self._fits.labels(self._learners.pop(event.run, ""), str(fields["stopped"])).inc()
