"""Events on disk: what another process reads of a run that goes on, has finished, has failed or has died."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tablepuppet as tp
from tablepuppet.jobs import Run
from tablepuppet.runs.event_file import BEGINS, ENDS, EVENTS, FAILED, EventFile, EventTail, is_live, read_events
from tablepuppet.runs.events import Event, Events, RoundRecord, TripRecord
from tests import warm
from tests.small_job import write_job

WRITES = (
    "import sys, time, pathlib\n"
    "from tablepuppet.runs.event_file import EventFile\n"
    "from tablepuppet.runs.events import Event\n"
    "file = EventFile(pathlib.Path(sys.argv[1]), {})\n"
    "file(Event('info', 'joined', 'ready'))\n"
    "print('written', flush=True)\n"
    "time.sleep(600)\n"
)


def test_a_run_that_is_killed(tmp_path: Path) -> None:
    """While it goes on its file is live; after kill -9 all its lines are there, and no last one."""
    path = tmp_path / EVENTS
    process = warm.start([sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    tail = EventTail(path)
    assert [event.name for event in tail.read()] == [BEGINS, "joined"]
    assert is_live(path)
    process.kill()
    process.wait()
    process.close()
    assert not is_live(path)
    with path.open("ab") as file:
        file.write(b'{"time": 1.0, "kind": "in')  # it died within a line
    assert tail.read() == []
    with EventFile(path, {}):
        pass
    assert [event.name for event in read_events(path)] == [BEGINS, "joined", BEGINS, ENDS]


def test_a_run_of_any_length(tmp_path: Path) -> None:
    """A file has a largest size; thinned, it still has the last round, all bytes by party, and every warning."""
    path = tmp_path / EVENTS
    file, most = EventFile(path, {"job": "job.toml"}, most=60_000), 60_000
    events, tail = Events([file]), EventTail(path)
    events.emit("warning", "party.lost", "party 'a' is lost", party="a")
    for number in range(1, 1001):
        for party in ("a", "b"):
            events.emit_trip(
                TripRecord(
                    trip=number, party=party, ops=("linear.step",), bytes_up=7, bytes_down=5, seconds=0.25,
                    released={"PREDICTIONS": 7}, answered=True,
                )
            )  # fmt: skip
        record = RoundRecord(
            round=number, seconds=0.5, loss=1 / number, objective=1.0, metric=0.5, solver="lbfgs", converged=False
        )
        events.emit("progress", "fit", f"round {number}", done=number, total=1000, **record.to_dict())
        if number % 100 == 0:
            tail.read()
            assert path.stat().st_size <= most
    file.end("finished")
    found = read_events(path)
    assert [found[0].name, found[-1].name, found[-2].fields["round"]] == [BEGINS, ENDS, 1000]
    assert [event.fields["party"] for event in found if event.name == "party.lost"] == ["a"]
    trips = [event.fields for event in found if event.kind in ("trip", "trips")]
    for party in ("a", "b"):
        assert sum(each["bytes_up"] for each in trips if each["party"] == party) == 7000
        assert sum(each.get("trips", 1) for each in trips if each["party"] == party) == 1000
    assert 50 < len([event for event in found if event.name == "fit"]) < 900
    assert tail.again > 0


def test_a_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on without it, and the log says so once."""
    file = EventFile(tmp_path / "nothing" / EVENTS, {})
    file(Event("info", "joined", "ready"))
    file.end("finished")
    assert caplog.text.count("events cannot be kept") == 1


def test_train_keeps_its_events(tmp_path: Path) -> None:
    """Events are in the run folder: of the run that finished, and until then of the last one that failed."""
    folder = write_job(tmp_path)
    job = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text(job + "[split]\nvalidation = 0.0001\n")
    with pytest.raises(tp.LearnError, match="is empty"):
        Run.to_train(folder / "job.toml", lambda event: None).train()
    run = folder / "runs" / "returns"
    assert [path.name for path in run.iterdir()] == [FAILED]
    [*_, last] = read_events(run / FAILED)
    assert (last.name, last.fields["outcome"]) == (ENDS, "failed")
    assert "is empty" in last.message
    (folder / "job.toml").write_text(job)
    Run.to_train(folder / "job.toml", lambda event: None).train()
    assert not (run / FAILED).exists()
    events = read_events(run / EVENTS)
    assert (run / EVENTS).stat().st_mode & 0o077 == 0
    assert events[-1].fields["outcome"] == "finished"
    begins = next(event.fields for event in events if event.name == "fit.begins")
    rounds = [event.fields for event in events if event.name == "fit" and event.fields["done"]]
    assert begins["tables"] == {"o": ["store"], "i": ["supplier"]}
    assert rounds[-1]["loss"] < begins["constant"]["loss"]
    released = {name for event in events if event.kind == "trip" for name in event.fields["released"]}
    assert {"KEY_DIGESTS", "LABELS"} <= {each for name in released for each in name.split("|")}
