"""What ARCHITECTURE.md says of adding things: one file of another package is enough, over services too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests import warm
from tests.service.processes import Services

FILE = Path(__file__).with_name("another_package.py")
FOLDER = str(FILE.parent)
SERVE = f"import sys; sys.path.insert(0, {FOLDER!r}); import another_package; from tablepuppet.cli import main; main()"


def test_one_file_of_another_package_is_enough(tmp_path: Path) -> None:
    """A learner with its table model, a head, a solver, a holder, a statistic, a step, ops and a kind of database work
    over services with two shards, are saved and loaded, and stand in plans and audit logs by their names.
    """
    rng = np.random.default_rng(3)
    people = pa.table({"id": np.arange(20), "age": rng.normal(size=20)})
    person, x = rng.integers(0, 20, 60), rng.normal(size=60)
    visits = pa.table({"person": person, "x": x, "score": x**2 + people["age"].to_numpy()[person]})
    parties = {"bank0": {"visits": visits.slice(0, 25)}, "bank1": {"visits": visits.slice(25)}, "a": {"people": people}}
    services = Services(tmp_path, parties, of_tables="matrix = true", command=[sys.executable, "-c", SERVE])
    for party in services.parties.values():
        party.file.write_text(party.file.read_text().replace('database = "parquet:', 'database = "another:'))
    with services:
        federation = services.write_federation(wire="float64")
        done = warm.run([sys.executable, str(FILE), str(federation), str(tmp_path)], timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["squares"] < 1e-5
    assert found["solver"] < 1e-9
    assert found["holder"] < 1e-12
    assert found["cubes"] < 1e-6
    assert found["skewed"] < 1e-12
    assert max(found["loaded"]) < 1e-12
    assert found["settings"]["fall"] == "Fall(averages=True)"
    assert found["most"] == {"v": 1, "p": int(np.bincount(person).max())}
    logged = {step for name in parties for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()
              for step in [json.loads(line).get("op")]}  # fmt: skip
    assert {"another.fall", "another.step", "another.times"} <= logged
