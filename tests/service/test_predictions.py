"""Predictions of parties that are processes: with ids, taken home, and the names of categories for their owner."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tablepuppet as tp
from tablepuppet.party.request import Request, Step
from tests.operators.shop import SQL, items, orders
from tests.service.processes import Services, run_command

JOB = f"""
federation = "federation.toml"
sql = "{SQL}"
label = "returned"
output = "run"
[learner]
kind = "LogisticRegression"
[split]
test = 0.0
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A store that takes predictions home, a supplier that lets it, and a model trained from the command line."""
    folder = tmp_path_factory.mktemp("services")
    services = Services(folder, {"store": {"orders": orders()}, "supplier": {"items": items()}})
    store, supplier = (services.parties[name].file for name in ("store", "supplier"))
    place = '[tables.orders]\npredictions = { keys = ["order_id"], file = "home.parquet" }'
    text = store.read_text().replace("[tables.orders]\n", f"{place}\n")
    store.write_text(text.replace("order_id = [", 'order_id = ["id", '))
    supplier.write_text(supplier.read_text().replace("[tables.items]\n", '[tables.items]\ndeliver = ["store"]\n'))
    (folder / "job.toml").write_text(JOB)
    with services:
        services.write_federation()
        trained = run_command("train", str(folder / "job.toml"))
        assert trained.returncode == 0, trained.stderr
        yield services


def test_ids_on_the_command_line(services: Services) -> None:
    """With services a prediction is beside the ids that were asked for, and a query need not select the label."""
    sql = SQL.replace(", o.returned", "") + " WHERE o.gift"
    run = str(services.folder / "run")
    done = run_command("predict", run, "--id", "o.order_id", "--sql", sql)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(rows[0]) == ["o.order_id", "prediction", "probability=no", "probability=yes"]
    assert sorted(int(row["o.order_id"]) for row in rows) == [
        row["order_id"] for row in orders().to_pylist() if row["gift"]
    ]
    plain = run_command("predict", run, "--json")
    assert set(json.loads(plain.stdout)[0]) == {"row", "prediction", "probability=no", "probability=yes"}
    refused = run_command("predict", run, "--id", "i.item_id")
    assert refused.returncode == 1
    assert "column 'item_id': may not be used as id" in " ".join(refused.stderr.split())
    needs = run_command("evaluate", run, "--sql", sql)
    assert needs.returncode == 1
    assert "does not select the label 'returned', which evaluate needs" in " ".join(needs.stderr.split())


def test_taken_home_once(services: Services) -> None:
    """A delivery whose answer is asked for again, after its party was killed, is not written again."""
    fed = services.federation()
    rel = fed.sql(SQL, label="returned")
    model = tp.load(services.folder / "run" / "model", fed)
    receipt = model.predict(rel, deliver_to="store")
    home = services.folder / "home.parquet"
    assert set(pq.read_table(home)["run"].to_pylist()) == {receipt["run"]}
    before = home.stat()
    services.parties["store"].kill()
    services.parties["store"].start()
    last = rel.client.outbox._sent["store"]
    again = Request("run", rel.client.session, {}, (Step("deliver.begin", "o", {"view": rel.client.view}),), last)
    assert fed.engine.call("store", again)[-1]["run"] == receipt["run"]
    assert (home.stat().st_ino, home.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_delivering_on_the_command_line(services: Services) -> None:
    """A receipt is printed, for people and for programs; a party that is no receiver is refused in one line."""
    run = str(services.folder / "run")
    told = run_command("predict", run, "--deliver-to", "store")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("120 predictions delivered to store.orders as run ")
    receipt = json.loads(run_command("predict", run, "--deliver-to", "store.o", "--combine", "mean", "--json").stdout)
    assert receipt["written"] == 120
    refused = run_command("predict", run, "--deliver-to", "supplier", "--combine", "mean")
    assert refused.returncode == 1
    assert "its operator has named no place" in " ".join(refused.stderr.split())


def test_the_owner_reads_the_names(services: Services) -> None:
    """The codes of a kept model are texts for the party's operator, and digests for everybody else."""
    file = str(services.parties["supplier"].file)
    facts = json.loads((services.folder / "run" / "model" / "model.json").read_text())
    assert facts["category_names"] == {}
    found = json.loads(run_command("party", "names", file, facts["saved"], "--json").stdout)
    assert [(row["caller"], row["table"], row["column"], row["code"]) for row in found] == [
        ("analyst", "items", "i.kind", code) for code in range(3)
    ]
    weights = dict.fromkeys(items()["kind"].to_pylist(), 0)
    kinds = items()["kind"].to_pylist()
    for item in orders()["item_id"].to_pylist():
        weights[kinds[item]] += 1
    assert [weights[row["name"]] for row in found] == sorted(weights.values(), reverse=True)  # most frequent first
    shown = run_command("party", "names", file)
    assert "kind2" in shown.stdout
    unknown = run_command("party", "names", file, "nothing")
    assert unknown.returncode == 1
    assert "keeps no model or part 'nothing'" in " ".join(unknown.stderr.split())
    assert not any(b"kind2" in path.read_bytes() for path in Path(services.folder / "run").rglob("*") if path.is_file())
