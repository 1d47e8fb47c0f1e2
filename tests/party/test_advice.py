"""What errors of party files and of parties advise works: the file is read, and what was asked for is returned."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablepuppet as tp
from tablepuppet.party.blind import new_blinding_key, read_blinding_key
from tablepuppet.party.config import PartyFile, TlsPaths
from tablepuppet.party.policy import CallerLimits, Policy
from tablepuppet.party.report import inspect
from tablepuppet.party.tls_files import read_tls_files
from tablepuppet.privacy.certificates import Role, issue, new_authority
from tests.advice import Advice, check_all_are_tried, said
from tests.advised_shop import Shop
from tests.operators.shop import ORDER_COLUMNS, called, opened, orders, party_file
from tests.party.policed import COLUMNS, federation, open_party, write_file
from tests.wire.services import calling, served


def read(**settings: Any) -> Callable[[Shop], Any]:
    """A party file with these settings."""

    def load(shop: Shop) -> PartyFile:
        (shop.folder / "state").mkdir(exist_ok=True)
        file = write_file(shop.folder, **{name: text for name, text in settings.items() if name != "swap"})
        for old, new in settings.get("swap", {}).items():
            file.write_text(file.read_text().replace(old, new))
        return PartyFile.load(file)

    return load


def cards(shop: Shop, columns: str = "credit", label: str | None = None, **settings: str) -> tp.Relation:
    """Columns of a bank's cards, by its party file."""
    return federation(open_party(write_file(shop.folder, **settings))).sql(f"SELECT {columns} FROM cards", label=label)


def with_purpose(shop: Shop) -> tp.Relation:
    fed = federation(open_party(write_file(shop.folder, top="require_purpose = true")))
    fed.purpose = "fraud"
    return fed.sql("SELECT credit FROM cards")


def here(shop: Shop, table: Any) -> tp.Federation:
    return tp.Federation({"p": {"t": table}}, verbose=False)


def same_splits(shop: Shop) -> bool:
    rel = cards(shop, limits="max_splits = 1", top=STATE)
    return len(rel.split(seed=1)[0]) == len(rel.split(seed=1)[0])


def other_splits(shop: Shop) -> Any:
    rel = cards(shop, limits="max_splits = 1", top=STATE)
    return [rel.split(seed=seed) for seed in (1, 2)]


def try_cast(shop: Shop) -> bool:
    rel = here(shop, MIXED).sql("SELECT TRY_CAST(a AS INT) AS a, b FROM t")
    kept = here(shop, MIXED).sql("SELECT CAST(a AS INT) AS a, b FROM t WHERE a <> 'x'")
    return rel.describe().to_arrow()["missing"][0].as_py() == 1 and len(kept) == 2


def place(shop: Shop, name: str) -> Path:
    """A new folder."""
    return Path(tempfile.mkdtemp(dir=shop.folder, prefix=name))


def key_of(shop: Shop, mend: Callable[[Path, Path], Any]) -> bool:
    """The key of a second party, which was cut off when it was copied."""
    one, two = (place(shop, name) / "blinding.key" for name in ("one", "two"))
    new_blinding_key(one)
    two.write_text(one.read_text()[:-19])
    two.chmod(0o600)
    mend(one, two)
    return read_blinding_key(one) == read_blinding_key(two)


def new_key_for_all(one: Path, two: Path) -> None:
    one.unlink()
    new_blinding_key(one)
    shutil.copy(one, two)


def certified(shop: Shop, key: str = "bank.key", role: Role = "party", *, days_ago: int = 0) -> str:
    folder = place(shop, "certified")
    new_authority(folder)
    for name in ("bank", "shop"):
        issue(folder, name, role=role, start=datetime.now(UTC) - timedelta(days=days_ago), days=3)
    return read_tls_files(TlsPaths(*(str(folder / name) for name in ("bank.crt", key, "ca.crt"))), "party").name


def held(shop: Shop, limits: str, use: Callable[[tp.Relation, int], Any], *, mended: bool) -> Any:
    """The same done three times with what came of one relation, or the third time with what comes of a new one."""
    fed = federation(open_party(write_file(shop.folder, limits)))
    rel = fed.sql("SELECT credit, fraud FROM cards", label="fraud")
    kept = [use(rel, number) for number in range(2)]
    if mended:
        del rel, kept
        rel = fed.sql("SELECT credit, fraud FROM cards", label="fraud")
    return use(rel, 2)


def described(rel: tp.Relation, seed: int) -> Any:
    part = rel.split(0.5, seed=seed)[0]
    return part, part.describe()


def fitted(rel: tp.Relation, seed: int) -> Any:
    return tp.MLPClassifier(hidden=(2,), rounds=1, seed=seed).fit(rel)


def in_sqlite(shop: Shop, *statements: str) -> tp.Federation:
    file = place(shop, "sqlite") / "x.db"
    with sqlite3.connect(file) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return tp.Federation({"p": f"sqlite:///{file}"}, verbose=False)


def mean(fed: tp.Federation, column: str, table: str = "t") -> Any:
    """The mean of a column, and how often it is missing."""
    found = fed.sql(f"SELECT {column} AS x FROM {table}").describe().to_arrow()
    return found["mean"][0].as_py(), found["missing"][0].as_py()


def home(
    shop: Shop, keys: str, where: str, sql: str = "", kind: str = "duckdb", there: str = "", **settings: Any
) -> Any:
    """Predictions that a store takes home, where another file may stand."""
    folder = place(shop, "taken")
    if there:
        (folder / there).write_text("order_id,amount\n1,2\n")
    table = f"{sql}\npredictions = {{ keys = ['{keys}'], {where} }}"
    file = party_file(folder, "store", {"orders": orders()}, ORDER_COLUMNS | settings, table, kind=kind)
    if problems := [each for each in inspect(file).problems if "blinding key" not in each]:
        said(problems)
    rel = called(opened(file)).sql("SELECT price, returned FROM orders", label="returned")
    return tp.LogisticRegression().fit(rel).predict(rel, deliver_to="store")["written"] == 120


def in_table(shop: Shop, *, removed: bool = False, named: str = "home") -> bool:
    """Predictions that a store takes home into a table which other predictions had filled."""
    folder, file = place(shop, "table"), Path()
    for label, table in (("returned", "home"), ("price", named)):
        place_ = f"predictions = {{ keys = ['order_id'], table = '{table}' }}"
        columns = ORDER_COLUMNS | {"price": ["feature", "label"], "ratio": "feature"}
        file = party_file(folder, "store", {"orders": orders()}, columns, place_, kind="duckdb")
        if label == "price" and removed:
            with duckdb.connect(folder / "store.duckdb") as connection:
                connection.execute("DROP TABLE home")
        rel = called(opened(file)).sql(f"SELECT ratio, {label} FROM orders", label=label)
        learner: Any = tp.LogisticRegression() if label == "returned" else tp.LinearRegression()
        written = learner.fit(rel).predict(rel, deliver_to="store")["written"]
    return bool(written == 120)


def changed(shop: Shop, *, again: bool) -> bool:
    """Predictions beside ids of a table that changes after its relation was opened."""
    folder, sql = place(shop, "changed"), "SELECT a, b FROM t"
    with duckdb.connect(folder / "x.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT i AS id, i * 1.0 AS a, i * 2.0 AS b FROM range(9) x(i)")
    fed = tp.Federation({"p": f"duckdb:///{folder}/x.duckdb"}, verbose=False)
    rel = fed.sql(sql, label="b")
    model = tp.LinearRegression().fit(rel)
    with duckdb.connect(folder / "x.duckdb") as connection:
        connection.execute("INSERT INTO t VALUES (9, 9.0, 18.0)")
    found = model.predict(fed.sql(sql, label="b") if again else rel, ids=["id"])
    return sorted(found["id"].to_pylist()) == list(range(10))


def twice(shop: Shop, *, renamed: bool) -> int:
    """Two files of a folder that are one table."""
    folder = place(shop, "twice")
    rows = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    pq.write_table(rows, folder / "t.parquet")
    (folder / "t").mkdir()
    pq.write_table(rows, folder / "t" / "1.parquet")
    if renamed:
        (folder / "t").rename(folder / "u")
    return len(tp.Federation({"p": f"parquet:///{folder}"}, verbose=False).sql("SELECT a, b FROM t"))


def beside(shop: Shop, table: str) -> bool:
    """Predictions beside a column of lists, or of their texts."""
    folder = place(shop, "beside")
    with duckdb.connect(folder / "x.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT i * 1.0 AS a, i * 2.0 AS b, [i, i] AS pair FROM range(9) x(i)")
        connection.execute("CREATE VIEW cast_t AS SELECT * REPLACE (CAST(pair AS TEXT) AS pair) FROM t")
    rel = tp.Federation({"p": f"duckdb:///{folder}/x.duckdb"}, verbose=False).sql(
        f"SELECT a, b FROM {table}", label="b"
    )
    found = tp.LinearRegression().fit(rel).predict(rel, ids=["pair"])
    return sorted(found["pair"].to_pylist()) == [f"[{i}, {i}]" for i in range(9)]


def bounded(shop: Shop, column: str) -> bool:
    """A party of this process, whose owner says what values a column has."""
    file = place(shop, "bounded") / "federation.toml"
    with duckdb.connect(file.parent / "x.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT i * 0.1 AS a FROM range(9) x(i)")
    file.write_text(f"[parties.p]\nurl = 'duckdb:///x.duckdb'\nbounds = {{ '{column}' = [0, 1] }}\n")
    return len(tp.Federation.load(file, verbose=False).sql("SELECT a FROM t")) == 9


def kept(shop: Shop, last: str, mend: Callable[[Path, tp.Federation], Any] = lambda *_: None) -> bool:
    """A third model, at a service that keeps two."""
    folder, state = place(shop, "kept"), place(shop, "kept-state")
    policy = Policy(limits=CallerLimits(max_models=2))
    with served({"bank": f"parquet:///{write_file(shop.folder).parent}/bank"}, state=state, policy=policy) as servers:
        fed = calling(servers, verbose=False)
        rel = fed.sql("SELECT credit, fraud FROM cards", label="fraud")
        for name in ("first", "second"):
            tp.LogisticRegression(l2=3.0).fit(rel).save(folder / name)
        mend(folder, fed)
        model = tp.LogisticRegression().fit(rel)
        model.save(folder / last)
        return bool((tp.load(folder / last, fed).predict(rel) == model.predict(rel)).all())


ODD = "day NOT IN (1, 2) < true"


def in_view(shop: Shop, view: str = "cards", sql: str = "") -> bool:
    """A column of a SELECT over a database of DuckDB, in the party file or in the database itself."""
    folder = place(shop, "odd")
    write_file(folder)
    with duckdb.connect(folder / "bank.duckdb") as connection:
        connection.execute(f"CREATE TABLE cards AS FROM '{folder}/bank/cards.parquet'")
        connection.execute(f"CREATE VIEW odd AS SELECT card, {ODD} AS credit FROM cards")
        known = connection.sql("SELECT avg(credit::INT) FROM odd").fetchall()[0][0]
    file = write_file(folder, table=f'sql = "{sql}"' if sql else "", columns='credit = "feature"')
    text = (
        file.read_text().replace("parquet:///bank", "duckdb:///bank.duckdb").replace("tables.cards", f"tables.{view}")
    )
    file.write_text(text)
    fed = federation(open_party(file))
    return bool(mean(fed, "CAST(credit AS INT)", view)[0] == pytest.approx(known))


def warned(columns: str = 'credit = "feature"', mode: int = 0o600, **settings: Any) -> Callable[[Shop], Any]:
    """What a check of a party file warns of; nothing where it does as it was advised."""

    def check(shop: Shop) -> Any:
        folder = place(shop, "warned")
        (folder / "state").mkdir(mode=0o700)
        new_authority(folder)
        issue(folder, "bank", role="party")
        new_blinding_key(folder / "blinding.key")
        found = dict(settings)
        write_file(folder)
        with duckdb.connect(folder / "bank.duckdb") as connection:
            source = f"'{folder}/bank/cards.parquet'"
            connection.execute(f"CREATE TABLE cards AS SELECT *, TIME '12:00' AS noon FROM {source}")
            connection.execute("CREATE VIEW cast_cards AS SELECT * REPLACE (noon::TEXT AS noon) FROM cards")
        swap = {"parquet:///bank": "duckdb:///bank.duckdb", **found.pop("swap", {})}
        file = write_file(folder, **({"top": STATE, "columns": columns} | found))
        for old, new in swap.items():
            file.write_text(file.read_text().replace(old, new))
        for path in filter(Path.is_file, folder.rglob("*")):
            path.chmod(mode)
        report = inspect(file)
        return said(report.warnings + report.problems) if report.warnings + report.problems else report

    return check


def far(shop: Shop, column: str) -> bool:
    """Predictions beside days after the year 9999, which a party sends."""
    rows = "i AS a, 2.0 * i + i % 3 AS b, DATE '9999-12-30' + i::INT AS d, (DATE '9999-12-30' + i::INT)::TEXT AS text"
    folder = place(shop, "far")
    with duckdb.connect(folder / "far.duckdb") as connection:
        connection.execute(f"CREATE TABLE t AS SELECT {rows} FROM range(1, 9) x(i)")
    rel = tp.Federation({"p": f"duckdb:///{folder}/far.duckdb"}, verbose=False).sql("SELECT a, b FROM t", label="b")
    found = tp.LinearRegression().fit(rel).predict(rel, ids=[column])
    return len(set(found[f"t.{column}" if f"t.{column}" in found.column_names else column].to_pylist())) == 8


TLS = "[tls]\ncert = 'bank.crt'\nkey = 'bank.key'\nca = 'ca.crt'"
ALLOWED = {'allow = ["analyst", "auditor"]': 'allow = ["anonymous"]'}
NOON = 'credit = "feature"\nnoon = "feature"'
MIXED = {"a": ["1", "2", "x"], "b": [1.0, 2.0, 3.0]}
STATE = 'state_dir = "state"'
TYPED = ("CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (1), (2), (3)")
AS_TEXT = "CREATE VIEW v AS SELECT CAST(n AS TEXT) AS n FROM t"
BINARY = ("CREATE TABLE t (n BLOB)", "INSERT INTO t VALUES (x'31'), (x'32'), (x'33')")
PLACED = ("CREATE TABLE t (__position INTEGER)", "INSERT INTO t VALUES (1), (2), (3)")
FILES = {'listen = "127.0.0.1:8815"': 'listen = "0.0.0.0:8815"'}
CASES = [
    Advice(
        "listen at 127.0.0.1, or say insecure = true",
        read(swap=FILES),
        lambda shop: [read()(shop), read(swap=FILES, top="insecure = true")(shop)],
    ),
    Advice(
        "tables: none is published; name at least one as [tables.NAME]",
        read(columns="", swap={"[tables.cards]": "", "[tables.cards.columns]": ""}),
        read(),
    ),
    Advice(
        "tables: two have the same name except for case, which SQL ignores; rename one",
        read(more="[tables.CARDS]\n[tables.CARDS.columns]\ncard = 'key'"),
        read(more="[tables.staff]\n[tables.staff.columns]\ncard = 'key'"),
    ),
    Advice(
        "budget: name a state_dir too",
        read(table="budget = { epsilon = 1.0, delta = 1e-6 }"),
        read(table="budget = { epsilon = 1.0, delta = 1e-6 }", top=STATE),
    ),
    Advice(
        "bounds are for numbers and categories for classes; give one of them",
        read(columns='credit = { uses = ["feature"], bounds = [0, 1], categories = ["a", "b"] }'),
        lambda shop: [
            read(columns='credit = { uses = ["feature"], bounds = [0, 1] }')(shop),
            read(columns='region = { uses = ["feature"], categories = ["a", "b"] }')(shop),
        ],
    ),
    Advice(
        ".bounds: give two finite numbers, the lower one first",
        read(columns='credit = { uses = ["feature"], bounds = [1, 0] }'),
        read(columns='credit = { uses = ["feature"], bounds = [0, 1] }'),
    ),
    Advice(
        ".categories: name two or more, each once",
        read(columns='region = { uses = ["feature"], categories = ["a", "a"] }'),
        read(columns='region = { uses = ["feature"], categories = ["a", "b"] }'),
    ),
    Advice(
        "columns: name at least one column",
        read(columns=""),
        read(columns='credit = "feature"'),
    ),
    Advice(
        ".uses: name at least one of",
        read(columns='credit = []\nopen = "feature"'),
        lambda shop: [
            read(columns='credit = ["feature"]\nopen = "feature"')(shop),
            read(columns='open = "feature"')(shop),
        ],
    ),
    Advice(
        "name tables of the database only, unqualified",
        lambda shop: cards(shop, table="sql = 'SELECT * FROM main.cards'"),
        lambda shop: len(cards(shop, table="sql = 'SELECT * FROM cards'")) == 60,
    ),
    Advice(
        "join by a plain column",
        lambda shop: joined(shop, "lower(a.region) = lower(b.region)"),
        lambda shop: len(joined(shop, "a.card = b.card")) == 60,
    ),
    Advice(
        "does not release EMBEDDINGS",
        lambda shop: tp.SplitNNClassifier(epochs=1).fit(cards(shop, "credit, fraud", "fraud")),
        lambda shop: tp.MLPClassifier(hidden=(2,), rounds=1).fit(cards(shop, "credit, fraud", "fraud")),
    ),
    Advice("take a seed, share and folds that were used, over the same rows", other_splits, same_splits),
    Advice(
        "does not become an Arrow column; give all its values one type",
        lambda shop: here(shop, {"a": [1, "x"]}),
        lambda shop: len(here(shop, {"a": ["1", "x"], "b": [1.0, 2.0]}).sql("SELECT a, b FROM t")) == 2,
    ),
    Advice(
        ".require_approval: name a state_dir too: approvals are kept there",
        read(table="require_approval = true"),
        read(table="require_approval = true", top=STATE),
    ),
    Advice(
        "give a purpose, in the federation or job file, or as tp.Federation(..., purpose=...)",
        lambda shop: cards(shop, top="require_purpose = true"),
        lambda shop: len(with_purpose(shop)) > 0,
    ),
    Advice(
        "use TRY_CAST, or filter the rows it does not fit",
        lambda shop: here(shop, {"a": ["1", "2", "x"], "b": [1.0, 2.0, 3.0]}).sql(
            "SELECT CAST(a AS INT) AS a, b FROM t"
        ),
        try_cast,
    ),
    Advice(
        "copy it again from the party that made it",
        lambda shop: key_of(shop, lambda *_: None),
        lambda shop: key_of(shop, shutil.copy) and key_of(shop, new_key_for_all),
    ),
    Advice(
        "issue a new one with 'tablepuppet certs issue ",
        partial(certified, role="analyst"),
        lambda shop: certified(shop, role="party") == "bank",
    ),
    Advice(
        "; name the two files of one certificate",
        partial(certified, key="shop.key"),
        lambda shop: certified(shop, "bank.key") == "bank",
    ),
    *(
        Advice(
            "relation and all that came of it, then go on with a new one of fed.sql",
            partial(held, limits=limits, use=use, mended=False),
            partial(held, limits=limits, use=use, mended=True),
        )
        for limits, use in (("views = 3", described), ("fits = 2", fitted))
    ),
    Advice(
        "correct the value, or publish a view that casts the column",
        lambda shop: mean(in_sqlite(shop, *TYPED, "INSERT INTO t VALUES ('four')"), "n"),
        lambda shop: (
            [
                mean(in_sqlite(shop, *TYPED, "INSERT INTO t VALUES (4)"), "n") == (2.5, 0),
                mean(in_sqlite(shop, *TYPED, "INSERT INTO t VALUES ('four')", AS_TEXT), "TRY_CAST(n AS INT)", "v")
                == (2, 1),
            ]
            == [True, True]
        ),
    ),
    Advice(
        "which cannot be read; publish a view that casts the column",
        lambda shop: mean(in_sqlite(shop, *BINARY), "CASE WHEN n IS NULL THEN 0 ELSE 1 END"),
        lambda shop: mean(in_sqlite(shop, *BINARY, AS_TEXT), "CAST(n AS INT)", "v") == (2, 0),
    ),
    Advice(
        "; publish a view that renames it",
        lambda shop: mean(in_sqlite(shop, *PLACED), "__position"),
        lambda shop: (
            mean(in_sqlite(shop, *PLACED, "CREATE VIEW v AS SELECT __position AS n FROM t"), "n", "v") == (2, 0)
        ),
    ),
    Advice(
        "is published; name one for predictions only",
        lambda shop: home(shop, "order_id", "table = 'orders'"),
        lambda shop: home(shop, "order_id", "table = 'predictions'"),
    ),
    Advice(
        "is the name of a column that a delivery adds; rename it in sql",
        lambda shop: home(shop, "run", "file = 'home.csv'", "sql = 'SELECT *, order_id AS run FROM orders'"),
        lambda shop: home(shop, "number", "file = 'home.csv'", "sql = 'SELECT *, order_id AS number FROM orders'"),
    ),
    Advice(
        "one with tablepuppet.forget, save over one",
        lambda shop: kept(shop, "third"),
        lambda shop: kept(shop, "third", lambda folder, fed: tp.forget(folder / "first", fed)) and kept(shop, "first"),
    ),
    Advice(
        "write it in a simpler way, or ",
        lambda shop: in_view(shop, sql=f"SELECT card, {ODD} AS credit FROM cards"),
        lambda shop: (
            [
                in_view(shop, sql="SELECT card, (day NOT IN (1, 2)) < true AS credit FROM cards"),
                in_view(shop, "odd"),
            ]
            == [True, True]
        ),
    ),
    Advice(
        "there is no [tls], so every caller is ",
        warned(),
        lambda shop: [warned(swap=ALLOWED)(shop), warned(more=TLS)(shop)],
    ),
    Advice(
        "cannot be read; leave it out, or publish a view of the ",
        warned(swap=ALLOWED, columns=NOON),
        lambda shop: [
            warned(swap=ALLOWED | {"tables.cards": "tables.cast_cards"}, columns=NOON)(shop),
            warned(swap=ALLOWED, columns='credit = "feature"')(shop),
        ],
    ),
    Advice(
        "is not good today; issue a new one",
        partial(certified, key="bank.key", days_ago=9),
        partial(certified, key="bank.key"),
    ),
    Advice(
        "other parties under peers",
        read(table="secure_sum = true"),
        read(table="secure_sum = true", top="peers = ['east', 'west']", more=TLS),
    ),
    Advice(
        "keys: name one column or more, each once",
        read(table="predictions = { keys = ['card', 'CARD'], file = 'home.csv' }"),
        read(table="predictions = { keys = ['card'], file = 'home.csv' }"),
    ),
    Advice(
        "file: name one place, a file or a table",
        read(table="predictions = { keys = ['card'] }"),
        lambda shop: [
            read(table=f"predictions = {{ keys = ['card'], {where} }}")(shop)
            for where in ("file = 'home.csv'", "table = 'home'")
        ],
    ),
    Advice(
        "a database of files has no table to write to; name a file",
        partial(home, keys="order_id", where="table = 'home'", kind="parquet"),
        partial(home, keys="order_id", where="file = 'home.csv'", kind="parquet"),
    ),
    Advice(
        "another file stands there, which no delivery wrote; move it away",
        partial(home, keys="order_id", where="file = 'home.csv'", there="home.csv"),
        partial(home, keys="order_id", where="file = 'home.csv'", there="away.csv"),
    ),
    Advice(
        "operator can remove it, or name another",
        in_table,
        lambda shop: in_table(shop, removed=True) and in_table(shop, named="another"),
    ),
    Advice("are both table ", partial(twice, renamed=False), lambda shop: twice(shop, renamed=True) == 2),
    Advice("again with fed.sql, and predict again", partial(changed, again=False), partial(changed, again=True)),
    Advice("which cannot be sent; ", partial(beside, table="t"), partial(beside, table="cast_t")),
    Advice("name a column, as table.column", partial(bounded, column="t"), partial(bounded, column="t.a")),
    Advice(
        "its budget binds nothing",
        warned(swap=ALLOWED, table="budget = { epsilon = 1.0, require_dp = false }"),
        warned(swap=ALLOWED, table="budget = { epsilon = 1.0 }"),
    ),
    Advice(
        "name only the use that is meant",
        warned(swap=ALLOWED, columns='credit = ["label", "feature"]'),
        lambda shop: [warned(swap=ALLOWED, columns=f'credit = "{use}"')(shop) for use in ("label", "feature")],
    ),
    Advice(
        "run chmod o-rwx on it",
        warned(swap=ALLOWED, mode=0o604),
        warned(swap=ALLOWED, mode=0o604 & ~0o007),
    ),
    Advice("cast those to text in a view", partial(far, column="d"), partial(far, column="text")),
    Advice(
        "two have the same name except for case; rename one in sql",
        read(columns='credit = "feature"\nCredit = "feature"'),
        read(
            columns='credit = "feature"\nsecond = "feature"', table="sql = 'SELECT credit, open AS second FROM cards'"
        ),
    ),
]


def joined(shop: Shop, on: str) -> tp.Relation:
    columns = COLUMNS.replace('region = ["feature", "filter"]', 'region = ["feature", "filter", "key"]')
    fed = federation(open_party(write_file(shop.folder, columns=columns)))
    return fed.sql(f"SELECT a.credit, b.open FROM cards a JOIN cards b ON {on}")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_advised_works(shop: Shop, case: Advice) -> None:
    """The party file is read then, or what was asked for is returned."""
    case.follow(shop)


MACHINE = "needs a disk, a file or a server that fails"
NOTHING_ASKED = "what it advises is to ask for less"
OWN_REQUEST = "an analyst's own request, or one after a restart, which this package does not write so"
STATE_FILES = "refused in tests/party/test_state.py, which does what it says"
OTHERS = {
    "rows of a subquery over {} have no columns of the table": "refused and followed in tests/test_views.py",
    "name a table, its columns and their types, as in": "tried in tests/party/test_outlook.py",
    "so the job ends here; run the same command": "tests/party/test_approval.py does so",
    "the certificate of this party ends in": "a warning; a new one is issued in tests/service/test_reload.py",
    "call parties in this name": "a part of the warning of which the case is above",
    "which lists delivered predictions, is damaged or cannot be read": STATE_FILES,
    "the ledger %s is damaged: stop the party": "a line of the log, in tests/party/test_sealed_rows.py",
    "SELECT name FROM main.sqlite_master": "SQL, not a refusal",
    "or was changed while it was read; write it again": "refused in tests/party/databases/test_damaged_files.py",
    "what was spent of privacy budgets is not known": STATE_FILES,
    "restoring it would forget": STATE_FILES,
    "is in the way of a folder of the party": STATE_FILES,
    "make room, then restore again": STATE_FILES,
    "is in the way; move it away, then restore again": STATE_FILES,
    "the backup {} is damaged": STATE_FILES,
    "is no backup of a party, or is damaged": STATE_FILES,
    "is in use by another process": STATE_FILES,
    "which lists jobs and their approvals, is damaged": "followed in tests/party/test_approval.py",
    "is past; give a day to come, or `--deny` to end an approval": "followed in tests/party/test_approval.py",
    "--until {}: give a day or a moment": "followed in tests/party/test_approval.py",
    "too long for its operator to read; select and filter less": "followed in tests/party/test_approval.py",
    "or begin a new chain: move the audit log, {} and {} away": "followed in tests/party/test_audit_chain.py",
    "--since {}: give a day or a moment": "followed in tests/party/test_audit_chain.py",
    "its cells are seen only where noise is added": "refused in tests/wire/test_hostile_origins.py",
    "limits.expression_bytes); select less, filter": NOTHING_ASKED,
    "audit_log: {} is not a file that can be written": MACHINE,
    "limits.memory_bytes); del relations and models": NOTHING_ASKED,
    "INSERT INTO {}": "SQL, not a refusal",
    "write it again, or take it out of the folder": MACHINE,
    "ask for the catalog again, or publish a view that casts it": "refused in tests/party/test_databases.py",
    "WHEN CAST(": "SQL, not a refusal",
    "may not be multiplied with vectors of the caller's choice; use a learner": "tests/algebra/test_advice.py",
    "only with noise; set privacy=tp.Privacy(...)": "tests/learn/test_advice.py, by what the catalog says",
    "select plain columns without a filter": "refused in tests/wire/test_hostile_rows.py, which does what it says",
    "or take rel.matrix(secure_sum=True), over so many shards": "needs three services",
    "not the rows that these are made of; leave privacy out": "refused in tests/test_views.py, which does what it says",
    "remove a model with tablepuppet.forget": "refused in tests/wire/test_limits.py, which does what it says",
    "its operator must make room, then save again": MACHINE,
    "CREATE TABLE charges": "SQL, not a refusal",
    "EXPLAIN (FORMAT ": "SQL, not a refusal",
    "SELECT DISTINCT caller FROM releases": "SQL, not a refusal",
    "was written by another version of tablepuppet: use that one": MACHINE,
    "Restore an older copy of the file": MACHINE,
    "its operator must restore the file, or make room for it": MACHINE,
    "learn in fewer epochs or larger batches": "tests/learn/test_advice.py, by what the catalog says",
    "join keys are blinded under one nonce of this party": OWN_REQUEST,
    "a session opens once, and this name was used: the opening before did not end. ": OWN_REQUEST,
    "if features are NaN or infinite, filter them in WHERE": "tests/prep/test_advice.py",
    "is not a writable folder ({}); make it first": MACHINE,
    "so its peers' sum would be revealed; leave it out": "needs three services",
    "add it to peers, or leave it out": "refused in tests/party/test_secure_table.py",
    "select fewer of them, or let the party's operator compute them in a view": NOTHING_ASKED,
}


def test_every_advice_is_tried() -> None:
    """An error of the package that advises something has a case, or it is said why not, or where it is provoked."""
    check_all_are_tried(["party"], CASES, OTHERS)
