"""Jobs: a TOML file that says what to train on what, and the run folder that comes of it.

A run folder holds ``job.toml`` as it was, ``history.json``, ``metrics.json`` and ``model``; `predict` and `evaluate`
start from it. While a run is under way it holds ``record`` instead, from which `resume` goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.cli_output import plain
from tablepuppet.errors import ConfigError, LearnError, PartyError
from tablepuppet.federation import Federation
from tablepuppet.learn.estimator import Learner
from tablepuppet.learn.model_file import LEARNERS, load
from tablepuppet.learn.promise import check_demanded, check_sums_demanded
from tablepuppet.learn.tasks import Classifier
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Reader
from tablepuppet.wire.distance import communication_seconds
from tablepuppet.wire.record import Record

RECORD = "record"


class Split(msgspec.Struct, forbid_unknown_fields=True):
    """How much is held out: for testing, and of what is left for stopping early."""

    test: float = 0.15
    validation: float = 0.0
    seed: int = 7


@dataclass(frozen=True)
class Sides:
    """What a job learns from, stops early by, and is measured on; a side that it does not hold out is None."""

    train: Relation
    validation: Relation | None
    test: Relation | None

    def named(self) -> dict[str, Relation]:
        """The sides there are."""
        sides = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: side for name, side in sides.items() if side is not None}


class Job(msgspec.Struct, forbid_unknown_fields=True):
    """What a job file may say. Paths start at the file's folder."""

    federation: str
    sql: str
    label: str
    learner: dict[str, Any]
    output: str
    split: Split | None = msgspec.field(default_factory=Split)
    categorical: list[str] = []
    drop: list[str] = []
    max_categories: int = 256


def read_job(path: Path) -> Job:
    """The job of a file; ConfigError that names the file and the field if it is wrong."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Job)
    except OSError as error:
        raise ConfigError(f"cannot read job file {str(path)!r}: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"job file {str(path)!r}: {error}") from error


def make_learner(settings: dict[str, Any]) -> Learner:
    """The learner a job names, with its settings."""
    kind, rest = settings.get("kind"), {name: value for name, value in settings.items() if name != "kind"}
    if kind not in LEARNERS:
        raise ConfigError(f"learner kind {kind!r} is none of {', '.join(LEARNERS)}")
    known = [name for name in LEARNERS[kind]().get_params() if name != "callbacks"]
    unknown = [name for name in rest if name not in known]
    if unknown:
        raise ConfigError(f"{kind} has no setting {unknown[0]!r}; it has: {', '.join(known)}")
    if rest.get("privacy") is not None:
        if not isinstance(rest["privacy"], dict):
            raise ConfigError("learner privacy is a section: [learner.privacy], with label_epsilon and so on")
        rest["privacy"] = Privacy.of_settings(rest["privacy"])
    found = LEARNERS[kind](**rest)
    found.check_settings()
    return found


class Run:
    """A job and its folder."""

    def __init__(self, job: Job, folder: Path, base: Path, reader: Reader, record: Record | None = None):
        self.job, self.folder = job, folder
        self.federation = Federation.load(base / job.federation, record=record, callbacks=[reader])

    @classmethod
    def of_job(cls, path: Path, reader: Reader) -> Run:
        """A new run of a job file."""
        job = read_job(path)
        return cls(job, path.parent / job.output, path.parent, reader)

    @classmethod
    def to_train(cls, path: Path, reader: Reader) -> Run:
        """A new run of a job file, recorded from its first question on."""
        job = read_job(path)
        make_learner(job.learner)
        folder = path.parent / job.output
        kept = folder / RECORD
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True, mode=0o700)
        shutil.copyfile(path, kept / "job.toml")
        base = os.path.relpath(path.parent.resolve(), folder.resolve())
        (kept / "run.json").write_text(json.dumps({"base": base}))
        return cls(job, folder, path.parent, reader, Record(kept))

    @classmethod
    def to_resume(cls, folder: Path, reader: Reader) -> Run:
        """The run that broke off and left a folder."""
        kept = folder / RECORD
        if not (kept / "run.json").exists():
            state = "is finished" if (folder / "run.json").exists() else "is no run folder"
            raise ConfigError(f"{str(folder)!r} {state}: there is nothing to resume")
        base = (folder / json.loads((kept / "run.json").read_text())["base"]).resolve()
        return cls(read_job(kept / "job.toml"), folder, base, reader, Record(kept))

    @classmethod
    def of_folder(cls, folder: Path, reader: Reader) -> Run:
        """The run that left a folder."""
        if not (folder / "run.json").exists():
            raise ConfigError(f"{str(folder)!r} is no run folder: it has no run.json; train a job first")
        base = Path(json.loads((folder / "run.json").read_text())["base"])
        return cls(read_job(folder / "job.toml"), folder, (folder / base).resolve(), reader)

    def relation(self, sql: str | None = None, learner: Learner | None = None) -> Relation:
        """The job's relation, or another with the same columns.

        A ``learner`` that does not promise what a party demands is refused before a party reads.
        """
        job = self.job
        planned = self.federation.plan(
            sql or job.sql, job.label, categorical=job.categorical, drop=job.drop, max_categories=job.max_categories
        )
        if learner is not None:
            check_demanded(planned.plan, learner.privacy)
            check_sums_demanded(planned.plan, learner.privacy)
        return self.federation.open(planned)

    def sides(self, learner: Learner | None = None) -> Sides:
        """The job's relation, split; LearnError if a side is empty."""
        split, train = self.job.split, self.relation(learner=learner)
        test = validation = None
        if split is not None and split.test != 0:
            train, test = train.split(split.test, split.seed)
        if split is not None and split.validation != 0:
            train, validation = train.split(split.validation, split.seed)
        if not len(train):
            raise LearnError("the train side of the split is empty; hold out less, or check the query with explain")
        if validation is not None and not len(validation):
            raise LearnError("the validation side of the split is empty; hold out more, or nothing")
        if test is not None and not len(test):
            raise LearnError("the test side of the split is empty; hold out more, or nothing")
        return Sides(train, validation, test)

    def train(self) -> dict[str, Any]:
        """Fit, measure on the test side, write the run folder; the metrics.

        If a party elsewhere is lost, its peers keep their sessions and the record stays, so that `resume` can go on.
        """
        try:
            result = self._train()
        except PartyError as error:
            if not self.federation.has_services:
                self._forget()
                raise
            self.federation.engine.keep_open = True
            raise PartyError(f"{error}; `tablepuppet resume {self.folder}` goes on from here") from error
        except BaseException:
            self._forget()
            raise
        self._forget()
        return result

    def _forget(self) -> None:
        """Remove the record, and the folder if there is nothing else in it."""
        shutil.rmtree(self.folder / RECORD, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _train(self) -> dict[str, Any]:
        learner = make_learner(self.job.learner)
        sides = self.sides(learner)
        learner.fit(sides.train, sides.validation)
        metrics = {name: learner.evaluate(side) for name, side in sides.named().items()}
        (self.folder / "history.json").write_text(json.dumps(plain(learner.history_), indent=2))
        (self.folder / "metrics.json").write_text(json.dumps(plain(metrics), indent=2))
        learner.save(self.folder / "model")
        for name in ("job.toml", "run.json"):
            shutil.copyfile(self.folder / RECORD / name, self.folder / name)
        return {"metrics": metrics} | _ending(learner)

    def bench(self) -> dict[str, Any]:
        """Fit, and tell what it cost, from the catalog on; nothing is written."""
        learner, traffic, start = make_learner(self.job.learner), self.federation.engine.traffic, time.perf_counter()
        sides = self.sides(learner)
        learner.fit(sides.train, sides.validation)
        cost = {"seconds": time.perf_counter() - start, "bytes": traffic.bytes, "trips": traffic.trips}
        return _ending(learner) | cost | {"communication_seconds": communication_seconds(traffic.trips, traffic.bytes)}

    def model(self) -> Learner:
        """The trained model."""
        return load(self.folder / "model", self.federation)

    def evaluate(self, sql: str | None) -> tuple[str, dict[str, float]]:
        """(what was measured on, metrics): the test side, the train side if there is none, or another query."""
        if sql is not None:
            return "query", self.model().evaluate(self.relation(sql))
        sides = self.sides()
        name, chosen = ("train", sides.train) if sides.test is None else ("test", sides.test)
        return name, self.model().evaluate(chosen)

    def predict(self, sql: str | None) -> pa.Table:
        """Predictions for every joined row, beside where it comes from."""
        relation, model = self.relation(sql), self.model()
        table = self._places(relation)
        if not isinstance(model, Classifier):
            return table.append_column("prediction", pa.array(model.predict(relation)))
        probability = model.predict_proba(relation)  # asked for once: with noise, each time has its own and costs
        table = table.append_column("prediction", pa.array(model.classes_[probability.argmax(axis=1)]))
        for place, name in enumerate(model.classes_):
            table = table.append_column(f"probability={name}", pa.array(np.ascontiguousarray(probability[:, place])))
        return table

    def _places(self, relation: Relation) -> pa.Table:
        """Where joined rows come from; only their number where a party keeps that to itself."""
        if self.federation.has_services:
            return pa.table({"row": np.arange(len(relation))})
        return relation.rows()


def _ending(learner: Learner) -> dict[str, Any]:
    """How learning ended, for programs."""
    return {
        "rounds": len(learner.history_),
        "best_round": learner.best_round_,
        "converged": learner.converged_,
        "stopped": learner.stopped_,
    }
