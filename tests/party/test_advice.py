"""What errors of party files and of parties advise works: the file is read, and what was asked for is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tablepuppet as tp
from tablepuppet.party.config import PartyFile
from tests.advice import Advice, check_all_are_tried
from tests.advised_shop import Shop
from tests.party.policed import COLUMNS, federation, open_party, write_file


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


MIXED = {"a": ["1", "2", "x"], "b": [1.0, 2.0, 3.0]}
STATE = 'state_dir = "state"'
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
        "use TRY_CAST, or filter the rows it does not fit",
        lambda shop: here(shop, {"a": ["1", "2", "x"], "b": [1.0, 2.0, 3.0]}).sql(
            "SELECT CAST(a AS INT) AS a, b FROM t"
        ),
        try_cast,
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
NOT_YET = "not tried yet"
OTHERS = {
    "its cells are seen only where noise is added": "refused in tests/wire/test_hostile_origins.py",
    "limits.expression_bytes); select less, filter": NOTHING_ASKED,
    "audit_log: {} is not a file that can be written": MACHINE,
    "open it again with fed.sql, and predict again": "refused in tests/operators/test_ids.py",
    "which cannot be sent; publish a SELECT that casts it": "refused in tests/party/test_sent_column.py",
    "copy it again from the party that made it": NOT_YET,
    "limits.memory_bytes); del relations and models": NOTHING_ASKED,
    "del what you no longer use, go on with a new relation of fed.sql": NOT_YET,
    "secure_sum: name [tls] files, and {} or more other parties under peers": "refused in tests/party/test_config.py",
    "restore it, or remove it to give every caller a new allowance": MACHINE,
    "is published; name one for predictions only": NOT_YET,
    "a database of files has no table to write to; name a file": "refused in tests/test_cli_party.py",
    "its operator can remove it, or name another": "refused in tests/party/databases/test_delivering.py",
    "INSERT INTO {}": "SQL, not a refusal",
    "write it again, or take it out of the folder": MACHINE,
    "are both table {}; rename one": "refused in tests/party/test_databases.py",
    "correct the value, or publish a view that casts the column": NOT_YET,
    "which cannot be read; publish a view that casts the column": NOT_YET,
    "a column cannot be called {}; publish a view that renames it": NOT_YET,
    "ask for the catalog again, or publish a view that casts it": "refused in tests/party/test_databases.py",
    "WHEN CAST(": "SQL, not a refusal",
    "another file stands there, which no delivery wrote; move it away": "refused in tests/operators/test_delivery.py",
    "keys: name one column or more, each once": "refused in tests/party/test_config.py",
    "is the name of a column that a delivery adds; rename it in sql": NOT_YET,
    "file: name one place, a file or a table": "refused in tests/party/test_config.py",
    "may not be multiplied with vectors of the caller's choice; use a learner": "tests/algebra/test_advice.py",
    "only with noise; set privacy=tp.Privacy(...)": "tests/learn/test_advice.py, by what the catalog says",
    "select plain columns without a filter": "refused in tests/wire/test_hostile_rows.py",
    "or take rel.matrix(secure_sum=True), over so many shards": "needs three services",
    "remove one with tablepuppet.forget, save over one": NOT_YET,
    "remove a model with tablepuppet.forget": "refused in tests/wire/test_limits.py",
    "its operator must make room, then save again": MACHINE,
    "CREATE TABLE charges": "SQL, not a refusal",
    "SELECT DISTINCT caller FROM releases": "SQL, not a refusal",
    "was written by another version of tablepuppet: use that one": MACHINE,
    "Restore an older copy of the file": MACHINE,
    "its operator must restore the file, or make room for it": MACHINE,
    "learn in fewer epochs or larger batches": "tests/learn/test_advice.py, by what the catalog says",
    "join keys are blinded under one nonce of this party": OWN_REQUEST,
    "a session opens once, and this name was used; take another": OWN_REQUEST,
    "name a column, as table.column": "refused in tests/test_federation.py",
    "write it in a simpler way, or create the view in the database itself": NOT_YET,
    "if features are NaN or infinite, filter them in WHERE": "tests/prep/test_advice.py",
    "Add [tls], or allow = ": NOT_YET,
    "is not a writable folder ({}); make it first": MACHINE,
    "cannot be read; cast it in sql, or leave it out": NOT_YET,
    "so its peers' sum would be revealed; leave it out": "needs three services",
    "add it to peers, or leave it out": "refused in tests/party/test_secure_table.py",
    "cast those to text in a view": NOT_YET,
    "select fewer of them, or let the party's operator compute them in a view": NOTHING_ASKED,
    "two have the same name except for case; rename one in sql": NOT_YET,
    "is not good today; issue a new one": "refused in tests/party/test_tls_files.py",
    "name the two files of one certificate": NOT_YET,
}


def test_every_advice_is_tried() -> None:
    """An error of the package that advises something has a case, or it is said why not, or where it is provoked."""
    check_all_are_tried(["party"], CASES, OTHERS)
