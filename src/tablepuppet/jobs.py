"""Jobs: a TOML file that says what to train on what, and the run folder that comes of it.

A run folder (`run_folder.RunFolder`) holds ``job.toml`` as it was, ``history.json``, ``metrics.json`` and ``model``;
`predict` and `evaluate` start from it. While a run is under way it holds ``record``, from which `resume` goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tablepuppet.cli.output import typed
from tablepuppet.errors import ConfigError, LearnError, PartyError, TablePuppetError
from tablepuppet.federation import Federation, Planned
from tablepuppet.learn.learners import LEARNERS, load
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.learn.private.checks import check_budget, funds_of
from tablepuppet.learn.private.fit_plan import Planning
from tablepuppet.learn.selection.search import GridSearch, RandomSearch
from tablepuppet.learn.selection.search_prep import PREP, plain
from tablepuppet.learn.settings import SettingError
from tablepuppet.operators.ids import find_fields
from tablepuppet.party.request import Request
from tablepuppet.party.settings_file import read_settings
from tablepuppet.prep.columns.dividing import check_dividing
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline
from tablepuppet.relation import Relation, check_split
from tablepuppet.run_folder import JOB, RunFolder, is_full
from tablepuppet.runs import interrupts
from tablepuppet.runs.event_file import EventFile, Outcome, sayable
from tablepuppet.runs.events import Reader
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.plan import Plan
from tablepuppet.wire.engine import try_all
from tablepuppet.wire.protocol import LostError, UnfitError
from tablepuppet.wire.record import Record
from tablepuppet.wire.traffic import communication_seconds


class Split(msgspec.Struct, forbid_unknown_fields=True):
    """What is held out: for testing, and of what is left for stopping early; as `Relation.split` takes it.

    Validation rows are drawn by the same groups or classes; with ``after``, from the rows before.
    """

    test: float = 0.15
    validation: float = 0.0
    seed: int = 7
    by: str | None = None
    stratify: bool = False
    after: Any = None  # a date, a datetime or a number

    def check(self, plan: Plan) -> None:
        """Raise unless rows can be held out so, as far as the catalog shows."""
        for share in (self.test, self.validation):
            check_split(share, self.seed, self.by, self.stratify, self.after)
        check_dividing(plan, self.by, self.stratify, self.after)

    @property
    def has_test(self) -> bool:
        """Whether rows are held out for testing."""
        return self.after is not None or self.test != 0

    def test_side(self, relation: Relation) -> tuple[Relation, Relation]:
        """(the other rows, those for testing)."""
        return relation.split(self.test, self.seed, self.by, self.stratify, self.after)

    def validation_side(self, relation: Relation) -> tuple[Relation, Relation]:
        """(the other rows, those for stopping early)."""
        by = self.by if self.after is None else None
        return relation.split(self.validation, self.seed, by, self.stratify)


class Between(msgspec.Struct, forbid_unknown_fields=True):
    """Numbers to draw from: evenly, or evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    def distribution(self, name: str) -> Any:
        """The distribution of SciPy; ConfigError unless there is one."""
        from scipy.stats import loguniform, uniform

        if not (-np.inf < self.low < self.high < np.inf) or (self.log and self.low <= 0):
            raise ConfigError(f"[search.settings] {name}: low must be below high, and above 0 with log = true")
        return loguniform(self.low, self.high) if self.log else uniform(self.low, self.high - self.low)


class SearchSection(msgspec.Struct, forbid_unknown_fields=True):
    """Which settings of the learner a job tries, by cross-validation on the rows that it learns from."""

    settings: dict[str, list[Any] | Between]
    kind: Literal["grid", "random"] = "grid"
    candidates: int = 20
    folds: int = 5
    halving: bool = True
    seed: int = 0
    groups: str | None = None
    stratified: bool = False
    time: str | None = None
    metric: str | None = None

    def of(self, learner: Learner) -> GridSearch | RandomSearch:
        """The search; ConfigError or LearnError if it cannot be."""
        settings = {name: self._values(learner, name) for name in self.settings}
        folding: dict[str, Any] = {
            "folds": self.folds, "seed": self.seed, "groups": self.groups, "stratified": self.stratified,
            "time": self.time, "metric": self.metric,
        }  # fmt: skip
        if self.kind == "random":
            return RandomSearch(learner, settings, self.candidates, halving=self.halving, **folding)
        return GridSearch(learner, settings, **folding)

    def _values(self, learner: Learner, name: str) -> Any:
        """The values to try of a setting."""
        given = self.settings[name]
        if isinstance(given, list):
            return [_pipeline(each) if name == PREP else learner.of_file(name, each) for each in given]
        if self.kind == "grid":
            raise ConfigError(f'[search.settings] {name}: a grid needs a list of values; or set kind = "random"')
        return given.distribution(name)


def _pipeline(given: Any) -> Pipeline | None:
    """A pipeline to try, as a job file writes it."""
    if given == "default":
        return None
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ConfigError('[search.settings] prep: each pipeline is a list of steps, or "default"')
    return Pipeline.of_plain(given)


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


@dataclass(frozen=True)
class OtherQuery:
    """A query beside that of a job: SQL, or the job's own where there is none, and values of parameters."""

    sql: str | None = None
    params: dict[str, Any] = field(default_factory=dict)


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
    prep: list[dict[str, Any]] = []
    search: SearchSection | None = None
    params: dict[str, Any] = {}
    purpose: str = ""

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline of its steps; None if it has none. ConfigError if one is wrong."""
        return Pipeline.of_plain(self.prep) if self.prep else None

    def plan(self, federation: Federation, other: OtherQuery | None = None) -> Planned:
        """What parties would read for the job, or for another query with its features."""
        sql, params = (other.sql, other.params) if other is not None else (None, {})
        return federation.plan(
            sql or self.sql, self.label, categorical=self.categorical, drop=self.drop,
            max_categories=self.max_categories, prep=self.pipeline, params=self.params | params,
            where_selected=sql is not None,
        )  # fmt: skip

    def check(self, learner: Learner, plan: Plan) -> Planning:
        """Raise unless the job can be trained, as far as the catalog shows: no party reads for it.

        How it is planned, with as many rows as the catalog has.
        """
        split = self.split or Split(test=0.0)
        split.check(plan)
        learner.check_plan(plan, validated=split.validation != 0)
        rows = {alias: table.rows for alias, table in plan.tables.items()}
        label = plan.query.label
        if label is not None:
            left = (1.0 if split.after is not None else 1 - split.test) * (1 - split.validation)
            rows[label.alias] = round(rows[label.alias] * left)
        learner.predictions_to_come = 1 + split.has_test + (split.validation != 0)  # `train` measures each side
        planning = learner.check_rounds(plan, rows, self.max_categories, self.pipeline or DEFAULT)
        if learner._promise is None or not learner._promise.is_sampled:  # else costs depend on the rows that take part
            check_budget(planning, funds_of(plan))
        return planning


def read_job(path: Path) -> Job:
    """The job of a file; ConfigError that names the file and the field if it is wrong."""
    return read_settings(path, "job file", Job)


def make_learner(settings: dict[str, Any]) -> Learner:
    """The learner a job names, with its settings."""
    kind, rest = settings.get("kind"), {name: value for name, value in settings.items() if name != "kind"}
    if kind is None:
        raise ConfigError(f"[learner] does not say which learner: set kind, one of {', '.join(LEARNERS)}")
    if kind not in LEARNERS:
        raise ConfigError(f"learner kind {kind!r} is not known{did_you_mean(str(kind), LEARNERS)}")
    try:
        found: Learner = LEARNERS[kind].of_plain(rest)
    except SettingError as error:
        raise ConfigError(str(error)) from error
    found.check_settings()
    return found


class Run:
    """A job and its folder."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        base: Path,
        reader: Reader,
        record: Record | None = None,
        events: EventFile | None = None,
    ):
        self.job, self._folder, self.folder = job, folder, folder.path
        self._abandoned: Sequence[str] = ()  # sessions of the run that this one replaces
        self._events = events
        self.federation = Federation.load(
            base / job.federation,
            purpose=job.purpose,
            record=record,
            callbacks=[reader] if events is None else [reader, events],
        )

    @classmethod
    def of_job(cls, path: Path, reader: Reader) -> Run:
        """A new run of a job file."""
        job = read_job(path)
        return cls(job, RunFolder(path.parent / job.output), path.parent, reader)

    @classmethod
    def to_train(cls, path: Path, reader: Reader, *, overwrite: bool = False) -> Run:
        """A new run of a job file, recorded from its first question on.

        Raises ConfigError, before a party is asked, if the folder has a run and ``overwrite`` does not allow to replace
        it, or cannot be written.
        """
        job = read_job(path)
        learner = make_learner(job.learner)
        if job.search is not None:
            if job.split is not None and job.split.validation:
                raise ConfigError("[search] measures on folds: leave validation out of [split]")
            job.search.of(learner).check()
        _ = job.pipeline
        folder = RunFolder(path.parent / job.output)
        with folder.begun(path, overwrite=overwrite) as (record, abandoned):
            run = cls(job, folder, path.parent, reader, record, folder.events(_facts(job, path)))
        run._abandoned = abandoned
        return run

    @classmethod
    def to_resume(cls, path: Path, reader: Reader) -> Run:
        """The run that was stopped or broke off and left a folder."""
        folder = RunFolder(path)
        record = folder.resumed()
        base = folder.base(folder.record)  # first: it finds a job that is damaged
        job = read_job(folder.record / JOB)
        return cls(job, folder, base, reader, record, folder.events(_facts(job, base / JOB, resumed=True)))

    @classmethod
    def of_folder(cls, path: Path, reader: Reader) -> Run:
        """The finished run that left a folder."""
        folder = RunFolder(path)
        folder.check_finished()
        base = folder.base(path)
        return cls(read_job(path / JOB), folder, base, reader)

    def relation(
        self,
        other: OtherQuery | None = None,
        learner: Learner | None = None,
        *,
        needs_label: bool = True,
        ids: Sequence[str] | None = None,
    ) -> Relation:
        """The job's relation, or another with the same features; LearnError if it has no label where one is needed.

        A ``learner`` that does not promise what a party demands, and ``ids`` that no table has, are refused before a
        party reads.
        """
        job = self.job
        planned = job.plan(self.federation, other)
        if needs_label and planned.plan.query.label is None:
            raise LearnError(
                f"the query does not select the label {job.label!r}, which evaluate needs; predict does not"
            )
        if ids:
            find_fields(planned.plan, ids)
        if learner is not None:
            job.check(learner, planned.plan)
        used = make_learner(job.learner) if learner is None else learner
        search = None if learner is None or job.search is None else job.search.of(learner)
        return self.federation.open(planned, search or used)

    def sides(self, learner: Learner | None = None) -> Sides:
        """The job's relation, split; LearnError if a side is empty, and for a ``learner`` that is to be trained
        PrivacyError if a party would refuse one, having too few rows in it.
        """
        split, train = self.job.split or Split(test=0.0), self.relation(learner=learner)
        test = validation = None
        if split.has_test:
            train, test = split.test_side(train)
        if split.validation != 0:
            train, validation = split.validation_side(train)
        sides = Sides(train, validation, test)
        for name, side in sides.named().items():
            less, more = "hold out less, or check the query with explain", "hold out more, or nothing"
            advice = less if name == "train" else more
            if not len(side):
                raise LearnError(f"the {name} side of the split is empty; {advice}")
            if learner is not None:  # before it is trained, not when it is measured
                side.check_enough(f"the {name} side of the split", advice)
        return sides

    def train(self) -> dict[str, Any]:
        """Fit, measure on the test side, write the run folder; the metrics.

        If the run is stopped, or a party elsewhere is lost, the record stays and parties keep their sessions, so that
        `resume` can go on. Databases in this process are read again then.
        """
        try:
            result = self._train()
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt) or interrupts.received() is not None
            goes_on = isinstance(error, LostError | UnfitError) or is_full(
                error
            )  # else it would end the same way again
            if not stopped and not (goes_on and self.federation.has_services):
                self._end("failed", str(error) if isinstance(error, TablePuppetError) else type(error).__name__)
                if not is_full(error):
                    self._folder.keep_events()
                self._folder.forget()
                raise
            self._end("stopped", str(error) if isinstance(error, TablePuppetError) else "stopped by its user")
            self.federation.engine.keep_open = True
            self._folder.leave()
            how = "goes on from here" if self.federation.has_services else "starts it again"
            way = f"`{typed('resume', self.folder)}` {how}{self._folder.way_back}"
            if not stopped:
                if is_full(error):
                    raise ConfigError(f"{error}; make room, then {way}") from error
                raise PartyError(f"{error}; {way}") from error
            error.add_note(way)
            raise
        self._end("finished", metrics=plain(result["metrics"]))
        self._folder.keep_events()
        self._folder.forget()
        return result

    def _end(self, outcome: Outcome, message: str = "", **fields: Any) -> None:
        """Say in the file of events how the run ended."""
        if self._events is not None:
            self._events.end(outcome, message, **fields)

    def _close_abandoned(self) -> None:
        """Tell parties elsewhere that nobody comes back to a run that is replaced; who is gone has nothing to free."""
        engine = self.federation.engine
        services = [party for party in engine.parties if engine.is_service(party)]
        for session in self._abandoned:
            with suppress(TablePuppetError):
                try_all(engine, [(party, Request("close", session)) for party in services])

    def _train(self) -> dict[str, Any]:
        self._close_abandoned()
        learner = make_learner(self.job.learner)
        sides = self.sides(learner)
        searched: dict[str, Any] = {}
        if self.job.search is None:
            learner.fit(sides.train, sides.validation)
        else:
            search = self.job.search.of(learner).fit(sides.train)
            learner = search.best_model_
            searched = {"best": plain(search.best_params_), "score": search.best_score_, "metric": search.metric_}
            searched["results"], searched["constant"] = list(search.results_), search.results_.constant
        metrics = {name: learner.evaluate(side) for name, side in sides.named().items()}
        written: dict[str, Any] = {"history.json": learner.history_, "metrics.json": metrics}
        if searched:
            written["search.json"] = searched
        self._folder.write(written, learner.save)
        return {"metrics": metrics} | ({"search": searched} if searched else {}) | _ending(learner)

    def bench(self) -> dict[str, Any]:
        """Fit, and return what it cost, from the catalog on; nothing is written."""
        learner, traffic, start = make_learner(self.job.learner), self.federation.engine.traffic, time.perf_counter()
        sides = self.sides(learner)
        learner.fit(sides.train, sides.validation)
        cost = {"seconds": time.perf_counter() - start, "bytes": traffic.bytes, "trips": traffic.trips}
        return _ending(learner) | cost | {"communication_seconds": communication_seconds(traffic.trips, traffic.bytes)}

    def model(self) -> Learner:
        """The trained model."""
        found: Learner = load(self.folder / "model", self.federation)
        return found

    def evaluate(self, other: OtherQuery | None, *, at_party: bool = False) -> tuple[str, Metrics]:
        """(what was measured on, metrics): the test side, the train side if there is none, or another query."""
        if other is not None:
            return "query", self.model().evaluate(self.relation(other), at_party=at_party)
        sides = self.sides()
        name, chosen = ("train", sides.train) if sides.test is None else ("test", sides.test)
        return name, self.model().evaluate(chosen, at_party=at_party)

    def predict(self, other: OtherQuery | None, ids: list[str] | None = None) -> pa.Table:
        """Predictions for every joined row, beside columns to know it by, else beside where it comes from."""
        relation, model = self.relation(other, needs_label=False, ids=ids), self.model()
        if ids:
            return model.predict(relation, ids=ids).to_arrow()
        return model.predictions(relation).table(self._places(relation)).to_arrow()

    def deliver(self, other: OtherQuery | None, to: str, combine: Literal["mean"] | None) -> dict[str, Any]:
        """Let a party write predictions about its rows; its receipt."""
        relation, model = self.relation(other, needs_label=False), self.model()
        return model.predict(relation, deliver_to=to, combine=combine)

    def _places(self, relation: Relation) -> pa.Table:
        """Where joined rows come from; only their number where a party keeps that to itself."""
        if self.federation.has_services:
            return pa.table({"row": np.arange(len(relation))})
        return relation.rows()


def _facts(job: Job, path: Path, *, resumed: bool = False) -> dict[str, Any]:
    """What the first line of a run's events says of it."""
    settings = sayable({name: value for name, value in job.learner.items() if name != "kind"})
    learner = {"learner": job.learner.get("kind"), "settings": settings, "label": job.label}
    return {"job": path.name, **learner, "purpose": job.purpose, "searches": job.search is not None, "resumed": resumed}


def _ending(learner: Learner) -> dict[str, Any]:
    """How learning ended, for programs."""
    return {
        "rounds": len(learner.history_),
        "best_round": learner.best_round_,
        "converged": learner.converged_,
        "stopped": learner.stopped_,
        "noise": learner._promise is not None,
    }
