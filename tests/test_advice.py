"""What errors of federations, jobs, runs, services and commands advise works, and returns what was asked for."""

from __future__ import annotations

import base64
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from benchmarks.baselines.fedonce import linear_combine
from tablepuppet.cli.output import check_output
from tablepuppet.cli.privacy import noise_of
from tablepuppet.federation import PartyEntry
from tablepuppet.jobs import Run, make_learner
from tablepuppet.party.blind import FORMAT
from tablepuppet.party.config import Limits
from tablepuppet.party.databases.urls import open_database
from tablepuppet.party.policy import TableRule
from tablepuppet.party.service import Party
from tablepuppet.store.files import read_private_file, write_new_file
from tablepuppet.wire.desk import Desk
from tablepuppet.wire.flight_server import FlightServer
from tests.advice import SOURCE, Advice, check_all_are_tried, said
from tests.advised_shop import FROM, Shop
from tests.command_line import tablepuppet
from tests.learn.materialised import shop as shards
from tests.operators import shop as delivering
from tests.relations import party_of, write_party
from tests.small_job import SQL, write_job
from tests.wire.losing import losing
from tests.wire.services import KEY, Certificates, calling, served

ELSEWHERE = {"algebra", "learn", "party", "prep", "privacy", "privacy_plan.py", "relation.py", "spelling.py", "sql"}
"""Rooms that have a `test_advice.py` of their own."""
SECURE = tp.Privacy(secure_sum=True)


def private(shop: Shop, mend: Callable[[Path], Any]) -> bool:
    path = shop.folder / "private"
    path.write_bytes(b"secret")
    path.chmod(0o644)
    mend(path)
    return read_private_file(path, "key") == b"secret"


def new_file(shop: Shop, name: str, mend: Callable[[Path], Any] = lambda _: None) -> bool:
    (shop.folder / "taken").write_bytes(b"old")
    mend(shop.folder / "taken")
    write_new_file(shop.folder / name, b"new", "key")
    return (shop.folder / name).read_bytes() == b"new"


def place(shop: Shop) -> Path:
    """A new folder."""
    return Path(tempfile.mkdtemp(dir=shop.folder))


def joins(fed: tp.Federation) -> bool:
    return len(fed.sql(f"SELECT o.price, i.weight {FROM}")) == 120


def split_url(shop: Shop) -> dict[str, str]:
    """The store and the maker as databases."""
    folder = place(shop)
    items = shop.joined[["item", "weight"]].drop_duplicates()
    tables = {"store": {"orders": shop.orders[["item", "price", "cost"]]}, "maker": {"items": items}}
    return {
        name: write_party(folder, name, {each: pa.Table.from_pandas(rows, preserve_index=False)})
        for name, held in tables.items()
        for each, rows in held.items()
    }


def half_served(shop: Shop, *, keyed: bool) -> bool:
    """The store is a service, the maker a database of this process."""
    urls = split_url(shop)
    file = place(shop) / "blinding.key"
    file.write_text(f"{FORMAT} {base64.b64encode(KEY).decode()}\n")
    file.chmod(0o600)
    with served({"store": urls["store"]}) as servers:
        parties = {"store": f"grpc://127.0.0.1:{servers['store'].port}", "maker": urls["maker"]}
        return joins(tp.Federation(parties, key_file=file if keyed else None, verbose=False))


def two_services(shop: Shop, key: bytes) -> bool:
    urls = split_url(shop)
    with served({"store": urls["store"]}) as one, served({"maker": urls["maker"]}, key=key) as two:
        return joins(calling(one | two, verbose=False))


def ran(shop: Shop, *commands: str, swap: str = "", more: str = "", federation: str = "") -> Path:
    """Commands over a small job; what the first that fails says is the error."""
    folder = write_job(place(shop))
    job = folder / "job.toml"
    old, _, new = swap.partition("=>")
    job.write_text(job.read_text().replace(old, new) + more)
    if federation:
        (folder / "federation.toml").write_text(federation)
    for command in commands:
        if command.startswith("job:"):
            old, _, new = command.removeprefix("job:").partition("=>")
            job.write_text(job.read_text().replace(old, new))
        elif command.startswith("mkdir:"):
            (folder / command.removeprefix("mkdir:")).mkdir(parents=True)
        elif command.startswith("rmdir:"):
            (folder / command.removeprefix("rmdir:")).rmdir()
        elif (found := tablepuppet(folder, *command.split("|"))).returncode:
            said(" ".join(found.stderr.split()))
    return folder


def way_back(shop: Shop, *, removed: bool) -> bool:
    """A finished run, and one that would replace it but broke off."""
    folder = ran(shop, "train|job.toml")
    run = Run.to_train(folder / "job.toml", lambda _: None, overwrite=True)
    run._folder.leave()
    if removed:
        shutil.rmtree(run._folder.record)
    Run.of_folder(folder / "runs" / "returns", lambda _: None)
    return True


@contextmanager
def half_served_job(shop: Shop) -> Iterator[Path]:
    """The folder of a small job: its store is a service, its supplier a database of this process."""
    folder, file = write_job(place(shop)), place(shop) / "blinding.key"
    file.write_text(f"{FORMAT} {base64.b64encode(KEY).decode()}\n")
    file.chmod(0o600)
    with served({"store": f"duckdb:///{folder}/store.duckdb"}) as servers:
        parties = f'store = "grpc://127.0.0.1:{servers["store"].port}"\nsupplier = "parquet:///supplier"'
        (folder / "federation.toml").write_text(f'key_file = "{file}"\n[parties]\n{parties}\n')
        yield folder


def resumed(shop: Shop, *, anew: bool) -> bool:
    """A run that is stopped, and goes on after a database of this process has changed."""

    def stop(event: tp.Event) -> None:
        if event.name == "fit":
            raise KeyboardInterrupt

    with half_served_job(shop) as folder:
        with pytest.raises(KeyboardInterrupt):
            Run.to_train(folder / "job.toml", stop).train()
        with duckdb.connect() as connection:
            rows = "SELECT i AS item_id, i * 0.5 AS weight FROM range(12) t(i)"
            connection.execute(f"COPY ({rows}) TO '{folder}/supplier/items.parquet'")
        run = Run.to_resume(folder / "runs/returns", lambda _: None)
        if anew:
            with pytest.raises(tp.LearnError, match="Train it again"):
                run.train()
            run = Run.to_train(folder / "job.toml", lambda _: None)
        return bool(run.train()["metrics"])


def out_of_room(shop: Shop, *, freed: bool) -> bool:
    """A run whose disk is full while answers are recorded."""
    with half_served_job(shop) as folder:
        run, most = Run.to_train(folder / "job.toml", lambda _: None), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, most[1]))
        try:
            with (
                pytest.raises(tp.ConfigError, match=r"resume \S+runs/returns` goes on from here")
                if freed
                else nullcontext()
            ):
                run.train()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        return bool(Run.to_resume(folder / "runs/returns", lambda _: None).train()["metrics"])


def lacking(shop: Shop, command: str) -> Path:
    """A run, then a query without its label."""
    return ran(shop, "train|job.toml", f"{command}|runs/returns|--sql|{SQL.replace(', o.returned', '')}")


def delivered(shop: Shop, more: str = "") -> bool:
    """Predictions of a run, which the store takes home."""
    federation = (
        '[parties]\nsupplier = "parquet:///supplier"\n[parties.store]\nurl = "duckdb:///store.duckdb"\n'
        '[parties.store.predictions.orders]\nkeys = ["order_id"]\nfile = "home.csv"\n'
    )
    folder = ran(shop, "train|job.toml", f"predict|runs/returns|--deliver-to|store{more}", federation=federation)
    return len((folder / "home.csv").read_text().splitlines()) == 401


def home(shop: Shop, to: str, **asked: Any) -> Any:
    """Predictions for a store, or for the supplier of its items, that take them home."""
    keys = "predictions = {{ keys = ['{}'], file = 'home.csv' }}\ndeliver = ['store', 'supplier']"
    fed = delivering.shop(place(shop), keys.format("order_id"), keys.format("item_id"))
    rel = fed.sql(delivering.SQL, label="returned")
    return tp.LogisticRegression().fit(rel).predict(rel, deliver_to=to, **asked)["written"]


def typed(shop: Shop, second: str) -> bool:
    """Ids of two shards, whose moments are of one type or of two."""
    folder = place(shop)
    for name, type_ in (("one", "TIMESTAMP"), ("two", second)):
        with duckdb.connect(folder / f"{name}.duckdb") as connection:
            moment = f"('2024-01-0' || (i + 1))::{type_}"
            connection.execute(
                f"CREATE TABLE t AS SELECT {moment} AS id, i * 1.0 AS a, i * 2.0 AS b FROM range(9) x(i)"
            )
    fed = tp.Federation({name: f"duckdb:///{folder}/{name}.duckdb" for name in ("one", "two")}, verbose=False)
    rel = fed.sql("SELECT a, b FROM t", label="b")
    return len(tp.LinearRegression().fit(rel).predict(rel, ids=["id"])) == 18


def journalled(shop: Shop, *, freed: bool) -> bool:
    """One relation more than the service has room to write down."""
    with served(split_url(shop), state=place(shop)) as servers:
        journal = servers["store"].desk.journal
        assert journal is not None
        journal._most = 30_000
        fed, held = calling(servers, verbose=False), []
        for _ in range(9):
            held.append(fed.sql(f"SELECT o.price, i.weight {FROM}"))
            if freed:
                held.clear()
        return joins(fed)


def stood_in(shop: Shop, mode: Any, privacy: tp.Privacy | None = SECURE) -> Any:
    """A fit over three parties, all part of a sum."""
    folder = place(shop)
    urls = {name: write_party(folder, name, tables) for name, tables in shards(3, together=True).items()}
    fed, _ = losing(urls, on_party_lost=mode)
    rel = fed.sql("SELECT o.price, i.weight, o.paid FROM orders o JOIN items i USING (item_id)", label="paid")
    return tp.LinearRegression(privacy=privacy).fit(rel).converged_


def summed(shop: Shop, shards: int, privacy: tp.Privacy | None = SECURE, *, demanded: bool = False) -> Any:
    """A fit over so many shards in this process, whose coefficient does not depend on how it is summed."""
    row = np.arange(30.0)
    parties = {f"p{n}": {"t": {"a": list(row + n), "b": list(3 * row + n % 2)}} for n in range(shards)}
    fed = tp.Federation(parties, verbose=False)
    for name in parties if demanded else ():
        guard = party_of(fed.engine, name)._guard
        guard.policy = replace(guard.policy, others=TableRule(secure_sum=True))
    rel = fed.sql("SELECT a, b FROM t", label="b")
    return tp.LinearRegression(privacy=privacy).fit(rel).converged_


def half_summed(shop: Shop, privacy: tp.Privacy | None = SECURE) -> Any:
    """Three shards, of which one is a service."""
    row, folder = np.arange(30.0), place(shop)
    urls = {f"p{n}": write_party(folder, f"p{n}", {"t": pa.table({"a": row + n, "b": 3 * row})}) for n in range(3)}
    file = folder / "blinding.key"
    file.write_text(f"{FORMAT} {base64.b64encode(KEY).decode()}\n")
    file.chmod(0o600)
    with served({"p0": urls["p0"]}) as servers:
        parties = urls | {"p0": f"grpc://127.0.0.1:{servers['p0'].port}"}
        rel = tp.Federation(parties, key_file=file, verbose=False).sql("SELECT a, b FROM t", label="b")
        return tp.LinearRegression(privacy=privacy).fit(rel).converged_


def listening(shop: Shop, listen: str = "127.0.0.1:0", *, tls: bool = False) -> bool:
    party = Party("store", open_database("store", split_url(shop)["store"]), KEY)
    certificates = Certificates(place(shop)).server("store") if tls else None
    server = FlightServer(Desk(party, Limits()), listen, certificates)
    server.shutdown()
    return bool(server.port)


def at_a_port(shop: Shop, *, other: bool) -> bool:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        return listening(shop, "127.0.0.1:0" if other else f"127.0.0.1:{taken.getsockname()[1]}")


def with_tls(shop: Shop, *, given: bool) -> bool:
    certificates = Certificates(place(shop))
    with served(split_url(shop), certificates) as servers:
        parties = {name: f"grpc+tls://127.0.0.1:{server.port}" for name, server in servers.items()}
        paths = dict(zip(("cert", "key", "ca"), certificates.files("analyst", "analyst"), strict=True))
        return joins(tp.Federation(parties, tls=tp.Tls(**paths) if given else None, verbose=False))


def identified(shop: Shop, identity: str) -> bool:
    """The join, where the store has another name than in its certificate."""
    certificates = Certificates(place(shop))
    with served(split_url(shop), certificates) as servers:
        parties: dict[str, Any] = {name: f"grpc+tls://127.0.0.1:{server.port}" for name, server in servers.items()}
        parties["branch"] = PartyEntry(parties.pop("store"), identity=identity)
        return joins(tp.Federation(parties, tls=certificates.client("analyst"), verbose=False))


def limited(shop: Shop, more: str = "") -> int:
    """The rows of a join, where few bytes are allowed for it."""
    fed = tp.Federation(split_url(shop), memory_limit=500, verbose=False)
    return len(fed.sql(f"SELECT o.price, i.weight {FROM} {more}"))


def pooled(task: str = "regression") -> Any:
    return linear_combine(task)


def loaded(shop: Shop, name: str) -> bool:
    model = tp.LinearRegression().fit(shop.rel)
    model.save(shop.folder / "saved")
    return bool(np.allclose(tp.load(shop.folder / name, shop.fed).predict(shop.rel), model.predict(shop.rel)))


GRID = "\n[search]\nfolds = 2\n{}\n[search.settings]\nl2 = {}\n"
RANGE = "{ low = 1e-6, high = 1.0, log = true }"
SPLIT = "\n[split]\ntest = {}\n"
CASES = [
    Advice(
        "name and database URL, such as ",
        lambda _: tp.Federation({}),
        lambda shop: joins(tp.Federation(split_url(shop), verbose=False)),
    ),
    Advice(
        "two parties have the same name except for case, which SQL ignores; rename one",
        lambda shop: tp.Federation({"store": split_url(shop)["store"], "Store": split_url(shop)["maker"]}),
        lambda shop: joins(tp.Federation({"store": split_url(shop)["store"], "b": split_url(shop)["maker"]})),
    ),
    Advice(
        "joins with services elsewhere: give key_file, the ",
        partial(half_served, keyed=False),
        lambda shop: half_served(shop, keyed=True) and two_services(shop, KEY),
    ),
    Advice(
        "blind under different keys, so nothing would join; give all parties ",
        partial(two_services, key=b"x" * 32),
        partial(two_services, key=KEY),
    ),
    Advice(
        ": use letters, digits, _ and -, so that SQL can say ",
        lambda shop: tp.Federation({"my store": split_url(shop)["store"]}),
        lambda shop: joins(tp.Federation({"my-store_1": split_url(shop)["store"], "m": split_url(shop)["maker"]})),
    ),
    Advice(
        "[learner] does not say which learner: set kind, one of ",
        lambda _: make_learner({"l2": 1.0}),
        lambda _: make_learner({"kind": "LinearRegression", "l2": 1.0}),
    ),
    Advice(
        ": a grid needs a list of values; or set kind = ",
        lambda shop: ran(shop, "train|job.toml", more=GRID.format("", RANGE)),
        lambda shop: [
            ran(shop, "train|job.toml", more=GRID.format(kind, values))
            for kind, values in (("", "[1e-6, 1e-3]"), ("kind = 'random'\ncandidates = 2", RANGE))
        ],
    ),
    Advice(
        "which evaluate needs; predict does not",
        lambda shop: lacking(shop, "evaluate"),
        lambda shop: lacking(shop, "predict"),
    ),
    Advice(
        "[search] measures on folds: leave validation out of [split]",
        lambda shop: ran(
            shop, "train|job.toml", more=SPLIT.format("0.2\nvalidation = 0.2") + GRID.format("", "[1e-6]")
        ),
        lambda shop: ran(shop, "train|job.toml", more=SPLIT.format("0.2") + GRID.format("", "[1e-6]")),
    ),
    Advice(
        "hold out less, or check the query with explain",
        lambda shop: ran(shop, "train|job.toml", more=SPLIT.format("0.9999")),
        lambda shop: ran(shop, "train|job.toml", more=SPLIT.format("0.5")),
    ),
    Advice(
        "hold out more, or nothing",
        lambda shop: ran(shop, "train|job.toml", more=SPLIT.format("0.0001")),
        lambda shop: [ran(shop, "train|job.toml", more=SPLIT.format("0.2")), ran(shop, "train|job.toml")],
    ),
    Advice(
        "; filter rows, join on a more selective key, or ", limited, lambda shop: limited(shop, "WHERE o.price > 5") > 0
    ),
    Advice("; name one of ", partial(home, to="nobody"), lambda shop: home(shop, "store.o") == 120),
    Advice(
        "pass combine='mean' (`--combine mean` on the ",
        partial(home, to="supplier"),
        lambda shop: home(shop, "supplier", combine="mean") == 11,
    ),
    Advice(
        "; name the table's alias too",
        lambda shop: tp.LinearRegression().fit(shop.rel).predict(shop.rel, ids=["item"]),
        lambda shop: len(tp.LinearRegression().fit(shop.rel).predict(shop.rel, ids=["o.item", "i.item"])) == 120,
    ),
    Advice(
        "in different types; publish a view that ",
        partial(typed, second="TIMESTAMPTZ"),
        partial(typed, second="TIMESTAMP"),
    ),
    Advice(
        "or more: add a shard, or learn without secure_sum",
        partial(summed, shards=2),
        lambda shop: summed(shop, 3) and summed(shop, 2, None),
    ),
    Advice(
        "`tablepuppet party serve` publish it, or learn without secure_sum",
        half_summed,
        partial(half_summed, privacy=None),
    ),
    Advice(
        "is not a run folder: it has no ",
        lambda shop: ran(shop, "mkdir:runs/returns", "evaluate|runs/returns"),
        lambda shop: ran(shop, "train|job.toml", "evaluate|runs/returns"),
    ),
    Advice(
        "`--overwrite` replaces it, or name another output in the job file",
        lambda shop: ran(shop, "train|job.toml", "train|job.toml"),
        lambda shop: [
            ran(shop, "train|job.toml", "train|job.toml|--overwrite"),
            ran(shop, "train|job.toml", "job:runs/returns=>runs/more", "train|job.toml"),
        ],
    ),
    Advice(
        ". The finished run from before is still there: remove the folder ",
        partial(way_back, removed=False),
        partial(way_back, removed=True),
    ),
    Advice(
        "something else than before; was the job changed, a database in this process, the version of tablepuppet, ",
        partial(resumed, anew=False),
        partial(resumed, anew=True),
    ),
    Advice("; make room, then ", partial(out_of_room, freed=False), partial(out_of_room, freed=True)),
    Advice(
        "is in the way of the run's own files; remove it",
        lambda shop: ran(shop, "mkdir:runs/returns/metrics.json", "train|job.toml"),
        lambda shop: ran(shop, "mkdir:runs/returns/metrics.json", "rmdir:runs/returns/metrics.json", "train|job.toml"),
    ),
    Advice(
        "make room, or name another output in the ",
        lambda shop: ran(shop, "train|job.toml", swap="runs/returns=>job.toml/run"),
        lambda shop: ran(shop, "train|job.toml", swap="runs/returns=>another/run"),
    ),
    *(
        Advice(
            f"{what}: give the folder that model.save(folder) wrote",
            partial(loaded, name=name),
            partial(loaded, name="saved"),
        )
        for what, name in (("does not exist", "nowhere"), ("is no saved model", "."))
    ),
    Advice(
        "; name an address of this machine under listen, or 0.0.0.0 for all",
        partial(listening, listen="192.0.2.1:0", tls=True),
        lambda shop: listening(shop, "127.0.0.1:0") and listening(shop, "0.0.0.0:0", tls=True),
    ),
    Advice(
        "so it needs TLS; give ",
        partial(listening, listen="0.0.0.0:0"),
        lambda shop: listening(shop, "0.0.0.0:0", tls=True) and listening(shop, "127.0.0.1:0"),
    ),
    Advice(
        "stop it, or name another port under listen", partial(at_a_port, other=False), partial(at_a_port, other=True)
    ),
    Advice(
        "grpc+tls needs a certificate; give the federation tls=",
        partial(with_tls, given=False),
        partial(with_tls, given=True),
    ),
    Advice("leave out --output and --id", partial(delivered, more="|--output|x.csv"), delivered),
    Advice(
        ": write a column and two values, such as age=0..120",
        lambda _: noise_of(1.0, None, ["age:0-120"], None),
        lambda _: noise_of(1.0, None, ["age=0..120"], None)["bounds"] == {"age": (0.0, 120.0)},
    ),
    Advice(
        "are for noise: give --epsilon too",
        lambda _: noise_of(None, None, ["age=0..120"], None),
        lambda _: noise_of(1.0, None, ["age=0..120"], None),
    ),
    Advice(
        ": name a file that ends in .parquet or .csv",
        lambda shop: check_output(shop.folder / "x.json"),
        lambda shop: list(map(check_output, (shop.folder / "x.parquet", shop.folder / "x.csv"))),
    ),
    Advice(
        "; name a file in a folder that exists and may be written",
        lambda shop: check_output(shop.folder / "nowhere" / "x.csv"),
        lambda shop: check_output(shop.folder / "x.csv"),
    ),
    Advice(
        "this Centralized is not fitted yet: call fit before ",
        lambda shop: pooled().predict(shop.rel),
        lambda shop: pooled().fit(shop.rel).predict(shop.rel).shape == (120,),
    ),
    Advice("; then set its identity in the ", partial(identified, identity=""), partial(identified, identity="store")),
    Advice(
        "; remove one of them",
        lambda _: tp.Federation({"bank": "grpc://localhost:1", "shop": "grpc://localhost:1"}),
        lambda _: tp.Federation({"bank": "grpc://localhost:1"}),
    ),
    Advice("; del relations you no longer ", partial(journalled, freed=False), partial(journalled, freed=True)),
    Advice(
        "over three or more shards, and the table has ",
        partial(summed, shards=2, demanded=True),
        partial(summed, shards=3, demanded=True),
    ),
    Advice(
        " cannot be kept with secure sums: ",
        partial(stood_in, mode="cache"),
        lambda shop: stood_in(shop, "wait") and stood_in(shop, "fail") and stood_in(shop, "cache", None),
    ),
    Advice(
        "run chmod 600 on it",
        partial(private, mend=lambda _: None),
        partial(private, mend=lambda path: path.chmod(0o600)),
    ),
    Advice(
        "exists and is kept: choose another path or move it away",
        partial(new_file, name="taken"),
        lambda shop: new_file(shop, "free") and new_file(shop, "taken", lambda path: path.rename(shop.folder / "old")),
    ),
    Advice(
        "exists and is not a saved model; choose another name",
        lambda shop: tp.LinearRegression().fit(shop.rel).save(shop.folder),
        lambda shop: tp.LinearRegression().fit(shop.rel).save(shop.folder / "unused"),
    ),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_works(shop: Shop, case: Advice) -> None:
    """What was refused is done then."""
    case.follow(shop)


NO_REFUSAL = "no refusal"
PAGE = "a sentence of a page, not a refusal"
OTHERS = {
    "train the job again, with --overwrite": "followed in tests/test_run_folder.py",
    "so this run cannot go on from it: train it again, with --overwrite": "followed in tests/test_run_folder.py",
    "write NAME=VALUE, such as --param since=2024-01-01": "followed in tests/test_cli.py",
    "lower the budgets by it if something was": NO_REFUSAL,
    "--end: name a session, or the first letters of one": "ended in tests/service/test_reload.py",
    "--sql goes with --as: say who would ask": "followed in tests/party/test_outlook.py",
    "--diff compares files, for all callers: leave out --as": "followed in tests/service/test_approval.py",
    "--until and --deny are for a job: name it too": "followed in tests/service/test_approval.py",
    "--until is for an approval: leave it out with --deny": "followed in tests/service/test_approval.py",
    "Analysts: train and predict": NO_REFUSAL,
    "{}; run folder: {}": NO_REFUSAL,
    "{}, round {} kept": NO_REFUSAL,
    "give it to nobody else": NO_REFUSAL,
    "SELECT f.month": "SQL, not a refusal",
    "Learn whether a flight will be late": NO_REFUSAL,
    'name = "{name}"': "a party file, not a refusal",
    "name each column once": "an analyst's own request: this package asks for each once",
    "this user may not listen at port": "root, who may run tests, may listen at every port",
    "this federation does not have them: add them to it": "needs services that keep parts of models",
    "say whose certificate it is: add --party": "issued in tests/test_cli_keys.py",
    "name one federation file, and run folders": "refused and followed in tests/monitor/test_pages.py",
    "name a federation file, a run folder or a folder with runs": "refused and followed in tests/monitor/test_pages.py",
    "cannot be listened at ({}): name another with --port": "refused and followed in tests/monitor/test_pages.py",
    "another program keeps its events in": "followed in tests/test_callbacks.py",
    ", then compare them.": PAGE,
    "No party is known yet": PAGE,
    "List the column in categorical": PAGE,
    "Correct what the error names": PAGE,
    "round {} of at most {}": PAGE,
}


def test_every_advice_is_tried() -> None:
    """An error of any module that has no such test of its own has a case, or it is said why not."""
    rooms = [path.name for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"]
    check_all_are_tried([name for name in rooms if name not in ELSEWHERE], CASES, OTHERS)
