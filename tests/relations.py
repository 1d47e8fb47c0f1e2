"""Random federations and queries, and DuckDB on the raw tables to compare with.

A `World` is what several parties publish. `worlds()` draws one together with a union of conjunctive queries over it;
`Oracle` answers the same SQL over the raw rows, each with its party and its place in the source.
"""

from __future__ import annotations

import atexit
import functools
import gc
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

import tablepuppet as tp
from tablepuppet.party.arguments import PredictionNoise
from tablepuppet.party.request import Reply, Request, Step
from tablepuppet.party.service import HERE, Party
from tablepuppet.session import Session, closer
from tablepuppet.wire.engine import Engine, InProcessTransport
from tablepuppet.wire.traffic import MessageSizes

Parties = Mapping[str, Mapping[str, pa.Table]]
Place = tuple[str, int]  # party, row in the source
Joined = tuple[Place, ...]  # one per table of FROM
KINDS = ("parquet", "arrow", "duckdb")


def collect_garbage() -> None:
    """Let sessions that nobody refers to be found and closed."""
    gc.collect()
    closer().wait()


def write_party(folder: Path, name: str, tables: Mapping[str, pa.Table], kind: str = "parquet") -> str:
    """The URL of a new database that holds ``tables``."""
    place = folder / name
    if kind == "duckdb":
        with duckdb.connect(f"{place}.duckdb") as connection:
            for table, rows in tables.items():
                connection.register("rows", rows)
                connection.execute(f'CREATE TABLE "{table}" AS FROM rows')
                connection.unregister("rows")
        return f"duckdb:///{place}.duckdb"
    place.mkdir()
    for table, rows in tables.items():
        if kind == "parquet":
            pyarrow.parquet.write_table(rows, place / f"{table}.parquet")
        else:
            pyarrow.feather.write_feather(rows, place / f"{table}.arrow")
    return f"{kind}:///{place}"


def federation(folder: Path, parties: Parties, kind: str = "parquet", **settings: Any) -> tp.Federation:
    """A federation of new databases."""
    urls = {name: write_party(folder, name, tables, kind) for name, tables in parties.items()}
    return tp.Federation(urls, **settings)


def in_process(parties: Mapping[str, Party], caller: str = HERE) -> Engine:
    """An engine of parties in this process, which are called in somebody's name."""
    return Engine({name: InProcessTransport(party, caller) for name, party in parties.items()})


def party_of(engine: Engine, name: str) -> Party:
    """A party in this process, for tests that look into it."""
    transport = engine.transports[name]
    assert isinstance(transport, InProcessTransport)
    return transport.party


def hide_order(fed: tp.Federation) -> None:
    """Let parties give row ids in a secret order, as they do where the coordinator is another process."""
    for name in fed.engine.parties:
        order_rows_by(party_of(fed.engine, name), f"the secret of {name}".encode())


def order_rows_by(party: Any, secret: bytes) -> None:
    """Let a party that has been built give row ids in the order of another secret."""
    party._row_secret = party._readings._row_secret = secret


@dataclass(frozen=True)
class Message:
    """One part of a request, and what came of it; a verb is told as a step without a table."""

    party: str
    request: Step
    reply: Mapping[str, Any] | None  # None: an error
    last: bool  # part of its request


_REPLACED: deque[Any] = deque(maxlen=8)


def keep(function: Any) -> None:
    """Keep a function alive that stands in for a method of a class, for a while after it was put back.

    Sessions close in a thread. CPython 3.11 replaces an attribute of a class, and frees what stood there, before it
    forgets the place: a thread that calls it at that moment would call a function that is gone.
    """
    _REPLACED.append(function)


def multipliers(arguments: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The noise that a party was asked for: that of sums, and that of predictions."""
    noise, beside = arguments.get("noise"), arguments.get("prediction_noise")
    if isinstance(noise, PredictionNoise):
        noise, beside = None, noise
    sums = arguments.get("multiplier") if noise is None else noise.multiplier
    return sums, None if beside is None else beside.multiplier


def record_wire(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Every message between coordinator and parties from now on, but for sessions of earlier tests that are closed."""
    messages: list[Message] = []
    measured = Engine.measured

    def recording(
        engine: Engine, party: str, request: Request, patience: float | None = None
    ) -> tuple[Reply, MessageSizes]:
        if request.verb == "close":
            return measured(engine, party, request, patience)
        verb = [] if request.verb == "run" else [Step(request.verb, "", request.arguments)]
        steps = [*verb, *request.steps]
        reply: Sequence[Mapping[str, Any] | None] = [None] * len(steps)
        try:
            found = measured(engine, party, request, patience)
            reply = found[0]
        finally:
            for number, (step, values) in enumerate(zip(steps, reply, strict=True), start=1):
                messages.append(Message(party, step, values, number == len(steps)))
        return found

    keep(recording)
    monkeypatch.setattr(Engine, "measured", recording)
    return messages


def round_as_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parties in this process round their values to the precision of the wire, as services do."""
    opened = Session._open

    def opening(session: Session) -> None:
        session.wire = session.settings.wire
        opened(session)

    monkeypatch.setattr(Session, "_open", opening)


def warnings_of(fed: tp.Federation) -> list[tp.Event]:
    """The warnings that a federation will emit from now on."""
    found: list[tp.Event] = []
    fed.events.subscribe(lambda event: found.append(event) if event.kind == "warning" else None)
    return found


class Oracle:
    """DuckDB over the raw tables: vertical tables as views over their shards, shards as ``party.table``."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        self._schemas: list[str] = []

    def load(self, parties: Parties) -> Oracle:
        """Forget everything and take these tables."""
        for view in self.connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            self.connection.execute(f'DROP VIEW main."{view[0]}"')
        for party in self._schemas:
            self.connection.execute(f"DROP SCHEMA {party} CASCADE")
        self._schemas = list(parties)
        shards: dict[str, list[str]] = {}
        for party, tables in parties.items():
            self.connection.execute(f"CREATE SCHEMA {party}")
            for table, rows in tables.items():
                numbered = rows.append_column("__row", pa.array(np.arange(len(rows), dtype=np.int64)))
                self.connection.register("numbered", numbered)
                self.connection.execute(f"CREATE TABLE {party}.{table} AS SELECT *, '{party}' AS __party FROM numbered")
                self.connection.unregister("numbered")
                shards.setdefault(table, []).append(f"SELECT * FROM {party}.{table}")
        for table, parts in shards.items():
            self.connection.execute(f"CREATE VIEW main.{table} AS {' UNION ALL BY NAME '.join(parts)}")
        return self

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer, in DuckDB's order."""
        return self.connection.execute(sql).fetchall()


@functools.cache
def oracle() -> Oracle:
    """One DuckDB for all examples: opening one is slow."""
    atexit.register(oracle.cache_clear)  # left open, DuckDB complains when Python ends
    return Oracle()


@dataclass(frozen=True)
class World:
    """What parties publish, and a query over it that is split into its parts."""

    parties: Parties
    kinds: tuple[str, ...]  # of database, one per party
    aliases: tuple[str, ...]
    select: str  # the SELECT list
    branches: tuple[str, ...]  # FROM and WHERE of each SELECT
    union: str
    hidden: bool = False  # whether parties hide the order of their rows, as remote ones do

    @property
    def sql(self) -> str:
        """The query as an analyst writes it."""
        return f"\n{self.union}\n".join(f"SELECT {self.select} {branch}" for branch in self.branches)

    def select_places(self, extra: Sequence[str] = ()) -> str:
        """The same query, selecting where rows stand, and other expressions after that."""
        places = [f'{alias}.__party AS "{alias}.party", {alias}.__row AS "{alias}.row"' for alias in self.aliases]
        items = ", ".join([*places, *extra])
        return f"\n{self.union}\n".join(f"SELECT {items} {branch}" for branch in self.branches)

    @contextmanager
    def urls(self) -> Iterator[dict[str, str]]:
        """Databases of these parties, for as long as the context lasts."""
        with tempfile.TemporaryDirectory() as folder:
            yield {
                name: write_party(Path(folder), name, tables, kind)
                for (name, tables), kind in zip(self.parties.items(), self.kinds, strict=True)
            }

    def relation(self, urls: Mapping[str, str]) -> tp.Relation:
        """The query over databases that `urls` wrote."""
        fed = tp.Federation(urls)
        if self.hidden:
            hide_order(fed)
        return fed.sql(self.sql)

    def expected(self) -> list[Joined]:
        """DuckDB's answer: for each joined row its place in every table."""
        flat = oracle().load(self.parties).rows(self.select_places())
        return [tuple((row[i], row[i + 1]) for i in range(0, len(row), 2)) for row in flat]


def places(relation: tp.Relation) -> list[Joined]:
    """`Relation.rows` as one tuple per joined row: the place of its row in every table."""
    columns = [column.to_pylist() for column in relation.rows().columns]
    pairs = [zip(columns[i], columns[i + 1], strict=True) for i in range(0, len(columns), 2)]
    return list(zip(*pairs, strict=True))


def materialised(relation: tp.Relation, parties: Parties, alias: str, column: str) -> list[Any]:
    """The raw values of a column for every joined row, in the order of `Relation.rows`."""
    table = relation.plan.tables[alias].name
    values = {party: tables[table][column].to_pylist() for party, tables in parties.items() if table in tables}
    number = list(relation.plan.tables).index(alias)
    return [values[party][row] for party, row in (joined[number] for joined in places(relation))]


def base_rows(relation: tp.Relation, alias: str) -> list[Place]:
    """The places of the rows of a table that take part, in the order of the mapping."""
    found = []
    for shard in relation.mapping.tables[alias].shards:
        party = party_of(relation._session.engine, shard.party)
        snapshot = party.table(relation._session.id, alias).snapshot
        found += [(shard.party, int(row)) for row in snapshot.position(shard.row_ids)]
    return found


def number_of(place: Place) -> float:
    """A different number for every place."""
    return float(int(place[0].lstrip("p") or 0) * 1000 + place[1] + 1)


def weight_of(combination: Joined, column: int = 0) -> float:
    """A number for a joined row that only depends on where its rows come from."""
    return float(np.sin(sum((i + 1) * number_of(place) for i, place in enumerate(combination)) + column))


def sums_by_place(combinations: Sequence[Joined], table: int, column: int) -> dict[Place, float]:
    """For each base row of one table, the sum of `weight_of` over the joined rows it is part of."""
    sums: Counter[Place] = Counter()
    for combination in combinations:
        sums[combination[table]] += weight_of(combination, column)  # type: ignore[assignment]
    return dict(sums)


# Random worlds

_KEYS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {  # domain -> types, values
    "integer": (
        (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()),
        (0, 1, 2, 100),
    ),
    "decimal": (
        (pa.decimal128(5, 2), pa.decimal128(9, 3), pa.decimal128(38, 4)),
        (Decimal("0"), Decimal("1"), Decimal("2"), Decimal("2.5"), Decimal("-7")),
    ),
    "text": ((pa.string(),), ("", "a", "A", "a ", "😀", "é", "e\u0301")),
    "date": ((pa.date32(),), (date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29))),
    "boolean": ((pa.bool_(),), (True, False)),
    "timestamp": (
        (pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("us", "UTC")),
        (datetime(1969, 12, 31, 23, 59, 59), datetime(1970, 1, 1), datetime(2024, 2, 29, 12, 0, 0)),
    ),
    "nanoseconds": (  # shards of them agree with each other only
        (pa.timestamp("ns"),),
        (datetime(1969, 12, 31, 23, 59, 59), datetime(1970, 1, 1), datetime(2024, 2, 29, 12, 0, 0)),
    ),
}
_JOINABLE = (("integer", "decimal"), ("text",), ("date",), ("boolean",), ("timestamp", "nanoseconds"))
_PREDICATES = (
    "{0}.x > 0",
    "{0}.x IS NULL",
    "{0}.c = 'u'",
    "{0}.c IN ('u', 'v') OR {0}.x < 1.5",
    "NOT ({0}.x BETWEEN 0 AND 1)",
    "{0}.k IS NOT NULL",
    "{0}.c LIKE 'w%'",
    "FALSE",
)
COLUMNS = ("k", "l", "m", "x", "c")
"""Columns of every random table: k and l of one domain, m of another, a float and a text."""


@st.composite
def worlds(draw: st.DrawFn, most_tables: int = 4, most_rows: int = 12, outer: bool = False) -> World:
    """Random parties with shards of random tables, and a random query; with outer joins if ``outer``."""
    domains = [draw(st.sampled_from(_JOINABLE)) for _ in range(2)]
    names = [f"p{i}" for i in range(draw(st.integers(1, 3)))]
    tables = [f"t{i}" for i in range(draw(st.integers(1, most_tables)))]
    parties: dict[str, dict[str, pa.Table]] = {name: {} for name in names}
    for table in tables:
        first, second = (draw(st.sampled_from(domain)) for domain in domains)
        owners = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        for owner in owners:
            parties[owner][table] = draw(_shards(first, second, most_rows))
    used = [draw(st.sampled_from(tables)) for _ in range(draw(st.integers(1, most_tables)))]
    uses = {f"a{i}": table for i, table in enumerate(used)}
    branches = [draw(_branches(uses, parties, outer)) for _ in range(draw(st.sampled_from([1, 1, 2, 3])))]
    select = ", ".join(f"{alias}.{column} AS {alias}_{column}" for alias in uses for column in COLUMNS)
    kinds = tuple(draw(st.sampled_from(["parquet", "parquet", "arrow", "arrow", "duckdb"])) for _ in names)
    union = draw(st.sampled_from(["UNION ALL", "UNION"]))
    return World(parties, kinds, tuple(uses), select, tuple(branches), union, draw(st.booleans()))


@st.composite
def _shards(draw: st.DrawFn, first: str, second: str, most_rows: int) -> pa.Table:
    size = draw(st.integers(0, most_rows))

    def column(type_: Any, values: Sequence[Any]) -> pa.Array:
        drawn = draw(st.lists(st.sampled_from([*values, None]), min_size=size, max_size=size))
        return pa.array(drawn, type_)

    def key(domain: str) -> pa.Array:
        types, values = _KEYS[domain]
        # few of the values in one shard: then there are duplicates and dangling rows
        some = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
        return column(draw(st.sampled_from(types)), some)

    return pa.table(
        {
            "k": key(first),
            "l": key(first),
            "m": key(second),
            "x": column(pa.float64(), [-1.5, 0.0, 0.25, 1e9, 3.0]),
            "c": column(pa.string(), ["u", "v", "w😀", ""]),
        }
    )


@st.composite
def _branches(draw: st.DrawFn, uses: Mapping[str, str], parties: Parties, outer: bool) -> str:
    """FROM and WHERE of one SELECT: joins that hang together, some of them cyclic, and filters."""
    aliases = list(uses)
    text = f"FROM {draw(_named(aliases[0], uses, parties))}"
    where: list[str] = []
    for number, alias in enumerate(aliases[1:], 1):
        table = draw(_named(alias, uses, parties))
        inner = ["on", "on", "on", "on", "comma", "comma", "cross"]
        style = draw(st.sampled_from(["on", "LEFT", "LEFT", "LEFT", "RIGHT", "FULL", "comma"] if outer else inner))
        if style == "cross":
            text += f" CROSS JOIN {table}"
            continue
        partners = draw(st.lists(st.sampled_from(aliases[:number]), min_size=1, max_size=2, unique=True))
        equalities = [draw(_equality(alias, other)) for other in partners for _ in range(draw(st.integers(1, 2)))]
        if style in ("on", "LEFT", "RIGHT", "FULL"):
            beside = draw(st.lists(st.sampled_from(aliases[: number + 1]), max_size=1)) if outer else []
            on = [*equalities, *(f"({draw(st.sampled_from(_PREDICATES)).format(each)})" for each in beside)]
            text += f" {style.replace('on', '')} JOIN {table} ON {' AND '.join(on)}"
        else:
            text += f" CROSS JOIN {table}"
            where += equalities
    for alias in aliases:
        if draw(st.integers(0, 3)) == 0:
            where.append(f"({draw(st.sampled_from(_PREDICATES)).format(alias)})")
    return f"{text} WHERE {' AND '.join(where)}" if where else text


@st.composite
def _named(draw: st.DrawFn, alias: str, uses: Mapping[str, str], parties: Parties) -> str:
    """A table of FROM: all shards, or only one of them."""
    table = uses[alias]
    owners = [party for party, tables in parties.items() if table in tables]
    party = draw(st.sampled_from([None, None, None, *owners]))
    return f"{table if party is None else f'{party}.{table}'} AS {alias}"


@st.composite
def _equality(draw: st.DrawFn, left: str, right: str) -> str:
    pairs = [("k", "k"), ("k", "l"), ("l", "k"), ("l", "l"), ("m", "m")]
    here, there = draw(st.sampled_from(pairs))
    return f"{left}.{here} = {right}.{there}"


def statistics(values: NDArray[Any], present: NDArray[np.bool_]) -> dict[str, float | None]:
    """Count, missing, mean, std (ddof 1) and extremes of a materialised column of numbers."""
    known = values[present].astype(np.longdouble)
    count = len(known)
    mean = known.mean() if count else np.longdouble(0)
    return {
        "count": count,
        "missing": len(values) - count,
        "mean": float(mean) if count else None,
        "std": float(np.sqrt(np.sum((known - mean) ** 2) / (count - 1))) if count > 1 else None,
        "min": float(known.min()) if count else None,
        "max": float(known.max()) if count else None,
    }
