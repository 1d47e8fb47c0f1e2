"""Rows that a party will refuse, as too few take part (``min_rows``), are refused before the work and not after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.jobs import Run
from tablepuppet.party.policy import ColumnRule, Policy, TableRule
from tablepuppet.runs.event_file import FAILED
from tablepuppet.wire.flight_server import FlightServer
from tests.relations import write_party
from tests.wire.services import calling, served

LEAST = 30
BEFORE = {"describe", "open", "keys.blind", "rows.use", "rows.sample", "close"}  # what is asked before a fit


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FlightServer]]:
    """A table of 200 rows, of which no fewer than 30 may be used."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    table = pa.table({"x": x, "day": np.arange(200), "y": x + rng.normal(size=200)})
    url = write_party(tmp_path_factory.mktemp("party"), "bank", {"t": table})
    with served({"bank": url}, policy=Policy(others=TableRule(min_rows=LEAST, others=ColumnRule()))) as found:
        yield found


def opened(servers: dict[str, FlightServer]) -> tuple[tp.Relation, list[tp.Event]]:
    """A relation, and its events from now on, with every op that is asked for."""
    events: list[tp.Event] = []
    fed = calling(servers)
    fed.events.subscribe(events.append, trips=True)
    return fed.sql("SELECT x, day, y FROM t", label="y"), events


def ops(events: list[tp.Event]) -> set[str]:
    return {op for event in events if event.name == "trip" for op in event.fields["ops"]}


def job(folder: Path, servers: dict[str, FlightServer], text: str) -> tuple[Run, list[tp.Event]]:
    (folder / "federation.toml").write_text(f'[parties]\nbank = "grpc://127.0.0.1:{servers["bank"].port}"\n')
    (folder / "job.toml").write_text(
        'federation = "federation.toml"\nsql = "SELECT x, day, y FROM t"\nlabel = "y"\noutput = "run"\n'
        f'[learner]\nkind = "LinearRegression"\n{text}'
    )
    events: list[tp.Event] = []
    run = Run.to_train(folder / "job.toml", lambda event: None)
    run.federation.events.subscribe(events.append, trips=True)
    return run, events


@pytest.mark.parametrize(
    ("text", "side", "mended"),
    [
        ("[split]\ntest = 0.1", "test", "[split]\ntest = 0.15"),
        ("[split]\ntest = 0.9", "train", "[split]\ntest = 0.5"),
        ("[split]\ntest = 0.2\nvalidation = 0.1", "validation", "[split]\ntest = 0.2\nvalidation = 0.2"),
        ("[split]\nby = 'day'\nafter = 180", "test", "[split]\nby = 'day'\nafter = 160"),
    ],
)
def test_a_job_is_refused_before_it_is_trained(
    tmp_path: Path, servers: dict[str, FlightServer], text: str, side: str, mended: str
) -> None:
    """Whichever side is too small: nothing was asked that a fit asks, and no record is left; with more rows it runs."""
    run, events = job(tmp_path, servers, text)
    advice = "hold out less, or check the query with explain" if side == "train" else "hold out more, or nothing"
    with pytest.raises(
        tp.PrivacyError,
        match=rf"the {side} side of the split has \d+ rows of table 't' at party 'bank', which refuses fewer than 30 "
        rf"\(policy rule min_rows\); {advice}",
    ):
        run.train()
    assert ops(events) <= BEFORE | {"columns.numbers", "label.numbers"}  # a split by time asks for times
    assert [path.name for path in (tmp_path / "run").iterdir()] == [FAILED]  # how it failed, for the monitor
    assert job(tmp_path, servers, mended)[0].train()["metrics"]


def test_folds_are_refused_before_the_first_fit(servers: dict[str, FlightServer]) -> None:
    """Of `cross_validate` and of searches; fewer folds have enough rows."""
    grid = {"l2": [0.1, 1.0]}
    learner = tp.LinearRegression()
    tried: list[Any] = [
        lambda rel, folds: tp.cross_validate(learner, rel, folds=folds),
        lambda rel, folds: tp.GridSearch(learner, grid, folds=folds).fit(rel),
        lambda rel, folds: tp.RandomSearch(learner, grid, candidates=2, folds=folds).fit(rel),
    ]
    for each in tried:
        relation, events = opened(servers)
        with pytest.raises(
            tp.PrivacyError, match=r"fold 0 of 8 has 25 rows of table 't' .* min_rows\); fewer folds have more rows"
        ):
            each(relation, 8)
        assert ops(events) <= BEFORE
        assert each(relation, 5) is not None


def test_by_time_the_first_fold_learns_from_too_few(servers: dict[str, FlightServer]) -> None:
    """What a fold learns from is looked at too."""
    relation, _ = opened(servers)
    with pytest.raises(tp.PrivacyError, match=r"what fold 0 of 6 learns from has 2\d rows|fold 0 of 6 has 2\d rows"):
        tp.cross_validate(tp.LinearRegression(), relation, folds=6, time="day")


def test_split_warns(servers: dict[str, FlightServer]) -> None:
    """Somebody who splits by hand knows before the fit, too."""
    relation, events = opened(servers)
    _, test = relation.split(0.1)
    [warned] = [event for event in events if event.name == "split.few"]
    assert (
        "split: the test side has 20 rows of table 't' at party 'bank', which refuses fewer than 30" in warned.message
    )
    with pytest.raises(tp.PrivacyError, match="min_rows"):
        test.describe()
    relation.split(0.3)
    assert sum(event.name == "split.few" for event in events) == 1
