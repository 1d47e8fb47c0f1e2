"""`Federation`: settings, federation files, traffic, and errors that say what and where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.federation import PartyEntry
from tests.relations import collect_garbage, federation, warnings_of, write_party
from tests.wire.services import Certificates

untyped: Any = tp  # for calls that mypy would not let pass
ROWS = {"t": pa.table({"k": [1, 2], "x": [0.5, 1.5], "c": ["a", "b"]})}


@pytest.mark.parametrize(
    ("parties", "settings", "message"),
    [
        ({}, {}, "at least one party"),
        ({"": "duckdb:///x"}, {}, "party name ''"),
        ({"a b": "duckdb:///x"}, {}, "party name 'a b'"),
        ({"a.b": "duckdb:///x"}, {}, "use letters, digits, _ and -"),
        ({"_-": "duckdb:///x"}, {}, "party name '_-'"),
        ({1: "duckdb:///x"}, {}, "party name 1"),
        (["duckdb:///x"], {}, "are a dict of name and database URL, such as .*, not list"),
        ("duckdb:///x", {}, "a dict of name and database URL, such as .*, not str"),
        ({"a": Path("x.duckdb")}, {}, "party 'a': the database must be a URL as text, such as 'duckdb:///shop.db'"),
        (
            {"a": {"t": 3}},
            {},
            "party 'a': table 't' is a pandas or Polars DataFrame, an Arrow table, or a dict of columns, not int",
        ),
        (
            {"a": {"t": {"x": [1, "canary"]}}},
            {},
            "party 'a': table 't': column 'x' does not become an Arrow column; give",
        ),
        ({"a": {"t": {"x": [1], "X": [2]}}}, {}, "table 't': it needs columns with different names; SQL ignores case"),
        ({"a": {3: {"x": [1]}}}, {}, "party 'a': tables have names, such as"),
        ({"a": "duckdb:///x"}, {"wire": "float16"}, "wire='float16' must be one of float32, float64"),
        (
            {"a": "duckdb:///x"},
            {"on_party_lost": "panic"},
            "on_party_lost='panic' must be one of fail, wait, cache, zeros",
        ),
        ({"a": "duckdb:///x"}, {"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"a": "duckdb:///x"}, {"timeout": float("nan")}, "timeout"),
        ({"a": "duckdb:///x"}, {"timeout": "soon"}, "timeout must be a number of seconds above 0, not 'soon'"),
        ({"a": "duckdb:///x"}, {"memory_limit": -1}, "memory_limit"),
        ({"a": "duckdb:///x"}, {"memory_limit": "1GB"}, "memory_limit"),
        ({"a": "oracle://host/db"}, {}, "(?i)party 'a': no database of kind 'oracle'; known: duckdb:///path"),
        ({"a": "https://host:8815"}, {}, r"no database of kind 'https'; known: .*, grpc\+tls://host:port"),
        ({"a": "data/x.duckdb"}, {}, "(?i)party 'a': the database must be a URL"),
        ({"a": "duckdb://"}, {}, "(?i)party 'a': duckdb needs a path"),
        ({"a": "grpc+tls://bank:8815"}, {}, r"(?i)party 'a': grpc\+tls needs a certificate"),
    ],
)
def test_bad_settings(parties: Any, settings: dict[str, Any], message: str) -> None:
    """What cannot be is a ConfigError at construction that says what is allowed; nothing is opened."""
    with pytest.raises(tp.ConfigError, match=message):
        tp.Federation(parties, **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rel: rel.split(test_size=0.2), "split has no argument 'test_size'; here it is 'test'"),
        (
            lambda _: untyped.LinearRegression(max_iter=9),
            "LinearRegression has no setting 'max_iter'; here it is 'rounds'",
        ),
        (
            lambda _: untyped.Privacy(epsilon=1.0),
            "Privacy has no argument 'epsilon'; did you mean 'label_epsilon' or 'feature_epsilon' or "
            "'prediction_epsilon'?",
        ),
        (
            lambda _: untyped.Federation({"a": "csv:///x"}, timeot=3),
            "Federation has no argument 'timeot'; did you mean 'timeout'?",
        ),
        (
            lambda _: untyped.Federation(party={"a": "csv:///x"}),
            "Federation has no argument 'party'; did you mean 'parties' or 'on_party_lost'?",
        ),
        (
            lambda _: untyped.Federation({"a": "csv:///x"}).sql("SELECT x FROM t", lable="x"),
            "sql has no argument 'lable'; did you mean 'label'?",
        ),
        (
            lambda rel: untyped.LinearRegression().fit(rel, validate=rel),
            "fit has no argument 'validate'; did you mean 'validation'?",
        ),
        (
            lambda rel: untyped.LinearRegression().predict(rel, id=["k"]),
            "predict has no argument 'id'; did you mean 'ids'?",
        ),
        (
            lambda rel: untyped.LinearRegression().evaluate(rel, party=True),
            "evaluate has no argument 'party'; did you mean 'at_party'?",
        ),
    ],
)
def test_misspelt_arguments(tmp_path: Path, call: Any, message: str) -> None:
    """An argument that there is not is an error of ours, and Python's TypeError, that says what was meant."""
    relation = federation(tmp_path, {"p0": ROWS}).sql("SELECT x, k FROM t", label="k")
    with pytest.raises(TypeError) as told:
        call(relation)
    assert isinstance(told.value, tp.TablePuppetError)
    assert str(told.value) == message


def test_files_of_tls(tmp_path: Path) -> None:
    """A dict does as well as tp.Tls; what is no such thing is told how it is written."""
    certificates = Certificates(tmp_path / "certs")
    cert, key, ca = certificates.files("analyst", "analyst")
    place = {"a": "grpc+tls://localhost:1"}
    tls: dict[str, str | Path] = {"cert": cert, "key": Path(key), "ca": ca}
    assert tp.Federation(place, tls=tls).has_services
    assert tp.Federation(place, tls=tp.Tls(cert, key, ca)).has_services
    for wrong, message in (
        ({"cert": cert, "key": key}, r"tls lacks ca: tls takes three files, as tp\.Tls\(cert="),
        (tls | {"certificate": cert}, "tls has no file 'certificate': tls takes three files"),
        (cert, "or a dict of these, not str"),
        (None, r"needs a certificate; give the federation tls=\{'cert'"),
        (tls | {"cert": "no.crt"}, r"cannot read tls\.cert 'no\.crt'"),
    ):
        with pytest.raises(tp.ConfigError, match=message):
            untyped.Federation(place, tls=wrong)


def test_an_empty_catalog_gives_a_hint(tmp_path: Path) -> None:
    """A party without tables is a warning that says where to look; so does SQL over none."""
    (tmp_path / "empty").mkdir()
    events: list[tp.Event] = []
    fed = tp.Federation({"shop": f"parquet:///{tmp_path}/empty"}, callbacks=[events.append])
    assert fed.catalog().names == []
    [event] = events
    assert (event.kind, event.name, event.fields) == ("warning", "catalog.empty", {"party": "shop"})
    assert "party 'shop' publishes no table: look whether its URL leads to the right" in event.message
    with pytest.raises(tp.QueryError, match="no party publishes a table 't'; none publishes any table"):
        fed.sql("SELECT x FROM t")


def test_a_view_that_aggregates_beside_other_shards_is_a_warning(tmp_path: Path) -> None:
    """Each shard sums up its own rows: the catalog and every query say so; one shard alone is nothing to warn of."""
    for party in ("east", "west"):
        with duckdb.connect(str(tmp_path / f"{party}.duckdb")) as connection:
            connection.execute("CREATE TABLE orders AS SELECT i % 3 AS customer, i AS price FROM range(9) t(i)")
            select = "SELECT customer, sum(price)::BIGINT AS total FROM orders GROUP BY customer"
            connection.execute(f"CREATE VIEW totals AS {select}; CREATE VIEW {party}_only AS FROM totals")
    urls = {party: f"duckdb:///{tmp_path}/{party}.duckdb" for party in ("east", "west")}
    fed = tp.Federation(urls)
    warned = warnings_of(fed)
    fed.catalog()
    fed.sql("SELECT total FROM totals")
    assert [(event.name, event.fields) for event in warned] == [("catalog.partly_aggregated", {"table": "totals"})] * 2
    assert "sums up that party's own rows only" in warned[0].message
    for sql in ("SELECT total FROM east.totals", "SELECT total FROM west_only", "SELECT price FROM orders"):
        fed.sql(sql)
    assert len(warned) == 2


def test_missing_database(tmp_path: Path) -> None:
    """A database that is not there is found missing when it is first asked, by party and path, and is not created."""
    for url in (f"duckdb:///{tmp_path}/no.duckdb", f"sqlite:///{tmp_path}/no.db", f"parquet:///{tmp_path}/no"):
        fed = tp.Federation({"shop": url})
        for ask in (fed.catalog, lambda fed=fed: fed.sql("SELECT x FROM t")):
            with pytest.raises(tp.PartyError, match=rf"(?i)party 'shop': .*missing.*{re.escape(str(tmp_path))}"):
                ask()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("most", [0, -1, 2.5, "many"])
def test_bad_max_categories(tmp_path: Path, most: Any) -> None:
    """`max_categories` is a whole number of at least 1."""
    with pytest.raises(tp.ConfigError, match="max_categories must be"):
        federation(tmp_path, {"p0": ROWS}).sql("SELECT x FROM t", max_categories=most)


def test_repr_names_the_parties() -> None:
    """A federation prints as its parties, without their URLs, which may hold passwords."""
    fed = tp.Federation({"store": "duckdb:///x", "bank": "postgresql://user:s3cret@host/db"})
    assert repr(fed) == "<Federation: store, bank>"


# Federation files


def load(folder: Path, text: str, **options: Any) -> tp.Federation:
    file = folder / "federation.toml"
    file.write_text(text)
    return tp.Federation.load(file, **options)


def test_load_reads_settings_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, levels and databases come from the file; relative paths start at its folder, absolute ones do not."""
    (tmp_path / "data").mkdir()
    write_party(tmp_path / "data", "p0", ROWS)
    write_party(tmp_path, "away", ROWS, "duckdb")
    monkeypatch.chdir("/")
    events: list[tp.Event] = []
    fed = load(
        tmp_path,
        f"""
        wire = "float64"
        timeout = 5
        on_party_lost = "wait"
        memory_limit = 1_000_000
        [parties]
        near = "parquet:///data/p0"
        [parties.away]
        url = "duckdb:///{tmp_path}/away.duckdb"
        levels = {{ "t.x" = "aggregate" }}
        """,
        callbacks=[events.append],
    )
    assert (fed.wire, fed.timeout, fed.on_party_lost) == ("float64", 5.0, "wait")
    relation = fed.sql("SELECT x, k FROM t")
    assert len(relation) == 4
    assert relation.describe().to_arrow()["min"].to_pylist() == [None, 1.0]
    assert events
    assert fed.catalog().parties == ["near", "away"]


def test_relative_paths_never_start_where_python_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the same name in the working folder is not taken for a missing one in the federation's folder."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    write_party(elsewhere, "p0", ROWS)
    monkeypatch.chdir(elsewhere)
    fed = load(here, '[parties]\nnear = "parquet:///p0"\n')
    with pytest.raises(tp.PartyError, match=re.escape(str(here / "p0"))):
        fed.catalog()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[parties", "end of document"),
        ("wire = 'float32'", "parties is missing"),
        ("parties = 3", "parties: it must be a section"),
        ("[parties]\na = 3", "parties.a: it must be a text or a section"),
        ("[parties.a]\nlevels = {}", "parties.a: url is missing"),
        ("[parties.a]\nurl = 'duckdb:///x'\nlevel = {}", "unknown field 'parties.a.level'; did you mean 'levels'\\?"),
        ("[parties.a]\nurl = 'duckdb:///x'\nlevels = { t = 'secret' }", "level of 't': 'secret' must be one of"),
        ("[parties.a]\nurl = 'duckdb:///x'\nbounds = { t = [0, 1] }", "of 't': name a column, as table.column"),
        ("[parties.a]\nurl = 'duckdb:///x'\nbounds = { 't.x' = [1, 0] }", "the lower one first"),
        ("[parties.a]\nurl = 'grpc://x:1'\nbounds = { 't.x' = [0, 1] }", "in its own party file"),
        ("wires = 'float32'\n[parties]\na = 'duckdb:///x'", "unknown field 'wires'; did you mean 'wire'\\?"),
        ("wire = 'float16'\n[parties]\na = 'duckdb:///x'", "wire: it must be one of float32, float64"),
        ("timeout = 'soon'\n[parties]\na = 'duckdb:///x'", "timeout: it must be a number, not a text"),
        ("timeout = -1\n[parties]\na = 'duckdb:///x'", "timeout"),
        ("[parties]\n", "at least one party"),
        ("[parties]\na = 'oracle://x'", "(?i)party 'a': no database of kind 'oracle'"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    """A mistake in a federation file is a ConfigError that names the file and the field."""
    with pytest.raises(tp.ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert "federation.toml" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are not text are ConfigErrors with the path."""
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("missing.toml", "bytes.toml", "."):
        with pytest.raises(tp.ConfigError, match=re.escape(str(tmp_path))):
            tp.Federation.load(tmp_path / name)


# Traffic and events


def test_traffic_grows(tmp_path: Path) -> None:
    """Traffic has both directions of every release, and its figures never shrink."""
    fed = federation(tmp_path, {"p0": ROWS, "p1": ROWS})
    assert fed.traffic == []
    before: dict[tuple[str, str, str], tuple[int, int]] = {}
    relation = None
    for step in range(5):
        if step == 0:
            fed.catalog()
        elif step == 1:
            relation = fed.sql("SELECT a.x, b.c FROM t a JOIN t b USING (k)")
        elif step == 2:
            assert len(relation or ()) == 8
        elif step == 3 and relation is not None:
            relation.describe()
        else:
            relation = None
            collect_garbage()
        now = {(e["party"], e["direction"], e["release"]): (e["bytes"], e["messages"]) for e in fed.traffic}
        assert all(now[key][0] > 0 and now[key] >= figures for key, figures in before.items())
        assert {(p, r) for p, d, r in now if d == "up"} == {(p, r) for p, d, r in now if d == "down"}
        grown = sum(messages for _, messages in now.values()) - sum(messages for _, messages in before.values())
        assert grown > 0 or step == 2  # the keys came when the tables were opened: joining them sends nothing
        before = now
    assert {party for party, _, _ in before} == {"p0", "p1"}


def test_events_reach_every_reader(tmp_path: Path) -> None:
    """Readers given at construction and later get every event, until they are taken away."""
    first: list[tp.Event] = []
    second: list[tp.Event] = []
    fed = federation(tmp_path, {"p0": ROWS}, callbacks=[first.append])
    stop = fed.events.subscribe(second.append)
    len(fed.sql("SELECT x FROM t"))
    assert first
    assert first == second
    stop()
    size = len(second)
    len(fed.sql("SELECT x FROM t"))
    assert len(first) > len(second) == size
    assert not warnings_of(fed)


def test_two_parties_may_share_a_file(tmp_path: Path) -> None:
    """Two names for one database are two parties, each with a shard."""
    for kind in ("duckdb", "parquet"):
        url = write_party(tmp_path, f"shared_{kind}", ROWS, kind)
        fed = tp.Federation({"p0": url, "p1": url})
        for _ in range(3):
            assert len(fed.sql("SELECT x FROM t")) == 4


def test_catalog_errors_name_what_differs(tmp_path: Path) -> None:
    """Shards that disagree in a type are a CatalogError with table, column, types and parties."""
    fed = federation(tmp_path, {"p0": ROWS, "p1": {"t": pa.table({"k": ["1"], "x": [0.5], "c": ["a"]})}})
    with pytest.raises(tp.CatalogError, match=r"'t' differ in column 'k': BIGINT at party 'p0', VARCHAR at party 'p1'"):
        fed.catalog()
    assert len(fed.sql("SELECT x FROM p0.t")) == 2


def test_levels_must_name_what_is_published(tmp_path: Path) -> None:
    """A misspelled level is refused: it would leave the column it means public."""
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    entry = PartyEntry(f"duckdb:///{tmp_path / 'a.duckdb'}", {"t.xx": "aggregate"})
    with pytest.raises(tp.ConfigError, match=r"party 'a': levels, bounds or categories name 't.xx'"):
        tp.Federation({"a": entry}).catalog()


def test_bounds_and_categories_of_a_federation_file(tmp_path: Path) -> None:
    """Columns with bounds or categories cost encoders nothing under feature privacy, and keep their table's level."""
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT i / 500 AS x, 'b' AS c, i / 1000 AS y FROM range(1000) r(i)")
    text = """
        [parties.a]
        url = "duckdb:///a.duckdb"
        levels = { t = "aggregate" }
        bounds = { "T.x" = [0, 2] }
        categories = { "t.c" = ["a", "b"] }
    """
    relation = load(tmp_path, text).sql("SELECT x, c, y FROM t", label="y")
    assert relation.describe().to_arrow()["min"].to_pylist()[0] is None
    model = tp.LinearRegression(privacy=tp.Privacy(feature_epsilon=1.0)).fit(relation)
    assert model._promise is not None
    assert not model._promise.encoders.used
    encoder = model.encoding_.numbers["t"][0]
    assert (encoder.mean, round(encoder.scale, 3)) == (1.0, 0.577)
    assert len(model.encoding_.categories["t"][0].digests) == 2
