"""Two faults at once, with real processes and disks that are full: the same result, or an error that says what it is.

`python -m benchmarks.faults` draws hundreds of such pairs; here is one of each kind.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import SQL, Bench, Case
from tests.service.processes import run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits other processes, and mounts disks")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("faults"), random.Random(0))
    try:
        yield made
    finally:
        made.close()


KILL = "written ridge.advance kill"
SAME = [
    Case(0, "kill", "kill during replay", "store0", plan=[KILL, "replay rows.use kill"]),
    Case(1, "kill", "disk full during replay", "bank0", plan=[KILL, "replay rows.use disk"]),
    Case(2, "kill", "database locked at restart", "store0", plan=[KILL], restart=["lock"]),
    Case(3, "disk full while it opens", "kill", "supplier0", plan=["written open disk", "any any kill"]),
]
DAMAGED = [
    Case(4, "kill", "a bit of its journal", "store0", plan=[KILL], restart=["flip:*.journal"]),
    Case(5, "kill", "a bit of its limits", "supplier0", plan=[KILL], restart=["cut:used.json"]),
    Case(6, "kill of the coordinator", "a bit", "bank0", coordinator="9 kill", before_resume="flip:*.replies"),
]


@pytest.mark.parametrize("case", SAME, ids=lambda case: f"{case.first}, {case.second}")
def test_a_fault_while_another_is_recovered_from(bench: Bench, case: Case) -> None:
    """The run tells the metrics of one without faults."""
    bench.run(case)
    assert case.is_struck_twice
    assert case.ending == "same", case.said


@pytest.mark.parametrize("case", DAMAGED, ids=lambda case: f"{case.first}, {case.second}")
def test_a_damaged_file_is_named(bench: Bench, case: Case) -> None:
    """It is never read as something else."""
    bench.run(case)
    assert case.is_struck_twice
    assert case.ending == "error", case.said
    assert any(name in case.said for name in (".journal'", "used.json'", ".replies'"))
    assert "damaged" in case.said


def test_a_party_restarted_between_catalog_and_open(bench: Bench) -> None:
    """Its nonce is no longer known: the relation is opened with another one, and nobody has to ask again."""
    for party in bench.services.parties.values():
        if not party.is_running():
            party.start()
    fed = bench.services.federation(timeout=20.0)
    planned = fed.plan(SQL, "returned")
    store = bench.services.parties["store0"]
    store.kill()
    store.start()
    found, expected = (fed.open(each) for each in (planned, fed.plan(SQL, "returned")))
    assert len(found) == len(expected)


def test_what_a_refusal_leaves_of_a_run(bench: Bench) -> None:
    """What can pass leaves a record, and `resume` goes on; what would be refused again leaves none."""
    job = bench._job("refused", private=False)
    folder = bench.folder / "runs" / "refused"
    for party in bench.services.parties.values():
        if not party.is_running():
            party.start()
    database = Path(bench.services.urls["store0"].removeprefix("duckdb:///"))
    aside = database.rename(database.with_suffix(".aside"))
    shown = run_command("train", job)
    aside.rename(database)
    said = " ".join(shown.stderr.split())
    assert shown.returncode == 1
    assert "database not available, reference" in said
    assert f"`tablepuppet resume {folder}` goes on from here" in said
    resumed = run_command("resume", str(folder), "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["metrics"] == bench.expected
    federation = bench.folder / "federation.toml"
    for mine, others in zip(*(bench.services.certificates.files(who) for who in ("analyst", "stranger")), strict=True):
        federation.write_text(federation.read_text().replace(str(mine), str(others)))
    shown = run_command("train", job, "--overwrite")
    assert shown.returncode == 1
    assert "resume" not in shown.stderr
    assert not (folder / "record").exists()
    assert (folder / "run.json").exists()  # the run from before
