"""Events of rounds and trips: typed, documented, and for readers that ask for them."""

from __future__ import annotations

import ast
import logging
import re
import threading
import time
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.runs.events import Events, Kind, RoundRecord, TripRecord, one_run
from tablepuppet.wire.engine import at_once
from tests.learn.materialised import ALL, JOIN, shop
from tests.relations import federation

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
PARTIES = {
    "p0": {"t": pa.table({"k": [1, 2, 2], "x": [0.5, 1.5, 2.5]})},
    "p1": {"u": pa.table({"k": [1, 2], "y": [1, 2]})},
}


def is_kind(node: ast.expr) -> bool:
    """Whether an argument is the kind of an event, or one of two."""
    if isinstance(node, ast.IfExp):
        return is_kind(node.body)
    return isinstance(node, ast.Constant) and node.value in get_args(Kind)


def emitted() -> set[str]:
    """The names of all events that the package emits."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in ("emit", "_emit", "progress"):
                continue
            kinds = (
                [0] if node.func.attr == "progress" else [at + 1 for at, each in enumerate(node.args) if is_kind(each)]
            )
            names = [node.args[at] for at in kinds if at < len(node.args)]
            found |= {str(name.value) for name in names if isinstance(name, ast.Constant)}
    return found


def documented(title: str) -> list[str]:
    """The fields that the docs list under a title."""
    section = DOCS.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_every_event_is_documented() -> None:
    """Each name that is emitted has a line in docs/events.md, and each line an event."""
    lines = set(re.findall(r"^\| \w+(?:, \w+)* \| `([\w.]+)` \|", DOCS, re.MULTILINE))
    assert {"fit", "trip", "party.lost"} <= lines
    assert emitted() == lines


def test_every_field_is_documented() -> None:
    """The docs list the fields of rounds and trips, in their order."""
    assert documented("A round") == list(RoundRecord.__struct_fields__)
    assert documented("A trip") == list(TripRecord.__struct_fields__)


def test_a_trip_is_an_event_for_each_party(tmp_path: Path) -> None:
    """With the number of the trip, the ops and the bytes that are metered; the sum of them is the traffic."""
    fed = federation(tmp_path, PARTIES)
    events: list[tp.Event] = []
    fed.events.subscribe(events.append, trips=True)
    relation = fed.sql("SELECT t.x, u.y FROM t JOIN u USING (k)")  # kept: the end of its session is metered too
    relation.describe()
    trips = [event for event in events if event.kind == "trip"]
    assert [(event.fields["trip"], event.fields["party"]) for event in trips] == [
        (1, "p0"), (1, "p1"), (2, "p0"), (2, "p1"), (3, "p0"), (3, "p1"),
    ]  # fmt: skip
    assert [event.fields["ops"] for event in trips[::2]] == [
        ("describe",), ("open", "keys.blind"),
        ("rows.use", "statistics.numbers", "statistics.buckets", "statistics.categories"),
    ]  # fmt: skip
    for event in trips:
        assert list(event.fields) == list(TripRecord.__struct_fields__)
        assert event.fields["answered"]
        assert event.fields["seconds"] > 0
    metered = {(entry["party"], entry["direction"]): 0 for entry in fed.traffic}
    for entry in fed.traffic:
        metered[entry["party"], entry["direction"]] += entry["bytes"]
    for (party, direction), size in metered.items():
        assert size == sum(e.fields[f"bytes_{direction}"] for e in trips if e.fields["party"] == party)


def test_a_call_that_fails_is_an_event_too(tmp_path: Path) -> None:
    """It says that there was no reply, and nothing of why: an error may be long."""
    fed = federation(tmp_path, PARTIES)
    events: list[tp.Event] = []
    fed.events.subscribe(events.append, trips=True)
    with pytest.raises(tp.PartyError):
        fed.sql("SELECT CAST(CAST(x AS VARCHAR) AS DATE) AS d FROM t")
    last = next(event for event in reversed(events) if event.kind == "trip")
    assert (last.fields["answered"], last.fields["bytes_up"], last.fields["bytes_down"]) == (False, 0, 0)
    assert last.message.startswith("party 'p0': open, keys.blind: no reply in")


def test_trips_go_to_those_who_ask(tmp_path: Path) -> None:
    """Other readers get all events but trips; a reader that is removed gets none."""
    others: list[tp.Event] = []
    fed = federation(tmp_path, PARTIES, callbacks=[others.append])
    mine: list[tp.Event] = []
    stop = fed.events.subscribe(mine.append, trips=True)
    len(fed.sql("SELECT x FROM t"))
    assert {event.kind for event in others} == {"progress", "info"}
    assert [event for event in mine if event.kind != "trip"] == others
    stop()
    size = len(mine)
    len(fed.sql("SELECT x FROM t"))
    assert len(mine) == size


def test_nothing_is_made_of_trips_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    """Only a reader of trips, or a log at DEBUG, wants them."""
    with caplog.at_level(logging.INFO, "tablepuppet"):
        events = Events([lambda _: None])
        assert not events.wants_trips
        stop = events.subscribe(lambda _: None, trips=True)
        assert events.wants_trips
        stop()
        assert not events.wants_trips
    with caplog.at_level(logging.DEBUG, "tablepuppet"):
        assert events.wants_trips


def test_a_round_is_made_once(tmp_path: Path) -> None:
    """The fields of its event are its entry in `history_`, which has those of the record."""
    relation = federation(tmp_path, shop(1)).sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
    rounds: list[tp.Event] = []
    model = tp.LogisticRegression(callbacks=[rounds.append], rounds=3, tol=0.0).fit(relation)
    fits = [dict(event.fields) for event in rounds if event.name == "fit"]
    assert [{name: fields[name] for name in RoundRecord.__struct_fields__} for fields in fits] == model.history_
    assert [(fields["done"], fields["total"]) for fields in fits] == [(1, 3), (2, 3), (3, 3)]


def test_events_of_two_fits_at_once_can_be_told_apart(tmp_path: Path) -> None:
    """All events of a fit, its trips too, have its id, random and new for each; what is outside of a fit has none."""
    fed = federation(tmp_path, shop(1))
    relations = [fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned") for _ in range(2)]
    everything: list[tp.Event] = []
    fed.events.subscribe(everything.append, trips=True)
    own: list[list[tp.Event]] = [[], []]
    both_learn = threading.Barrier(2)

    def fit(number: int) -> None:
        def wait(event: tp.Event) -> None:
            if event.name == "fit" and event.fields["round"] == 1:
                both_learn.wait(60)

        learner = tp.LogisticRegression(callbacks=[own[number].append, wait], rounds=number + 2, tol=0.0)
        learner.fit(relations[number])

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = [{event.run for event in events} for events in own]
    assert [len(found) for found in runs] == [1, 1]
    assert runs[0] != runs[1]
    for number, (run,) in enumerate(runs):
        assert re.fullmatch("[0-9a-f]{8}", str(run))
        mine = [event for event in everything if event.run == run]
        assert [event.fields["round"] for event in mine if event.name == "fit"] == list(range(1, number + 3))
        assert {"prepare", "fit", "fitted", "trip"} <= {event.name for event in mine}
    assert {event.run for event in everything} == {*runs[0], *runs[1]}
    len(fed.sql(f"SELECT {ALL} {JOIN}"))
    assert everything[-1].run is None
    before = len(everything)
    tp.LogisticRegression(rounds=1).fit(relations[0])
    assert len({event.run for event in everything[before:]} - runs[0]) == 1, "a second fit of a relation is a run too"


def test_an_event_has_its_time(tmp_path: Path) -> None:
    """Seconds since 1970, in the order in which events come; a callback gets the same event as a reader."""
    fed = federation(tmp_path, PARTIES)
    began, read, called = time.time(), list[tp.Event](), list[tp.Event]()
    fed.events.subscribe(read.append, trips=True)
    relation = fed.sql("SELECT t.x, u.y FROM t JOIN u USING (k)", label="y")
    tp.LinearRegression(callbacks=[called.append]).fit(relation)
    times = [event.time for event in read]
    assert began <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.time()
    assert called
    assert all(any(event is each for each in read) for event in called)


def test_runs_within_a_search(tmp_path: Path) -> None:
    """Each fit has an id that begins with the search's, also where folds share their trips; programs have one too."""
    fed = federation(tmp_path, shop(1))
    relation = fed.sql(f"SELECT {ALL}, o.returned {JOIN}", label="returned")
    events: list[tp.Event] = []
    fed.events.subscribe(events.append, trips=True)
    tp.GridSearch(tp.LogisticRegression(rounds=2), {"l2": [1e-6, 1e-3]}, folds=3).fit(relation)
    (search,) = {event.run for event in events if event.name == "search"}
    assert all(event.run is not None and event.run.startswith(str(search)) for event in events if event.kind == "trip")
    fitted = [event.run for event in events if event.name == "fitted"]
    assert len(set(fitted)) == len(fitted) == 2 * 3 + 1
    assert {str(run).split(".")[0] for run in fitted} == {search}
    fold = next(event for event in events if event.name == "fitted")
    assert fold.part in {f"fold {number}, l2 = 0.001" for number in range(3)}
    matrix = relation.matrix()
    events.clear()
    tp.linalg.pca(matrix, components=2)
    assert len({event.run for event in events}) == 1
    assert None not in {event.run for event in events}


def test_calls_of_other_threads_are_of_the_same_run() -> None:
    """Such as the warning that a party is silent, which the call of the party emits."""
    seen: list[tp.Event] = []
    events = Events([seen.append])
    with one_run():
        events.emit("info", "opened", "here")
        at_once([lambda: events.emit("warning", "party.silent", "there")] * 3)
    assert len(seen) == 4
    assert len({event.run for event in seen}) == 1
    assert seen[0].run is not None


def test_readers_are_functions(tmp_path: Path) -> None:
    """Whatever is no function is refused where it is given, not by the first event."""
    for wrong in (print, "print", [3]):
        with pytest.raises(tp.ConfigError, match="functions that take an event"):
            tp.Federation({"a": f"parquet:///{tmp_path}"}, callbacks=wrong)  # type: ignore[arg-type]
    with pytest.raises(tp.ConfigError, match="functions that take an event"):
        federation(tmp_path, PARTIES).events.subscribe(3)  # type: ignore[arg-type]
