"""The command line: ``tablepuppet COMMAND --help`` tells each.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 refused with a reason, 2 wrong usage.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import typer
from rich.console import Console

from tablepuppet.cli_keys import certs, keys
from tablepuppet.cli_output import JsonOption, print_json
from tablepuppet.cli_party import party
from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.federation import Federation
from tablepuppet.relation import Relation
from tablepuppet.runs.progress import ProgressReader

if TYPE_CHECKING:
    from tablepuppet.jobs import Run

app = typer.Typer(
    help="Machine learning over SQL joins and unions of tables that stay in their owners' databases.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(certs, name="certs")
app.add_typer(keys, name="keys")
app.add_typer(party, name="party")

FederationArgument = Annotated[
    Path, typer.Argument(help="The federation file (TOML): names of parties and their database URLs.")
]
SqlArgument = Annotated[str, typer.Argument(help="The SQL, or the path of a file that ends in .sql.")]
LabelOption = Annotated[str | None, typer.Option(help="The selected column to learn.")]
CategoricalOption = Annotated[
    list[str] | None, typer.Option(help="A column of numbers to treat as categories; may repeat.")
]
DropOption = Annotated[list[str] | None, typer.Option(help="A selected column to leave out; may repeat.")]


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demonstration keeps its databases.")] = Path(
        "tablepuppet-demo"
    ),
    parties: Annotated[bool, typer.Option("--parties", help="Every owner is a process, called by mutual TLS.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the whole way on real data: flights, aircraft and weather in four databases of four kinds of owner."""
    from tablepuppet.demo import run_demo  # its data is an extra: the other commands do without

    with _progress() as reader:
        screen, report = (None, print_json) if as_json else (_screen(), None)
        run_demo(folder, reader, screen, report, parties=parties)


@app.command()
def catalog(federation: FederationArgument, as_json: JsonOption = False) -> None:
    """List the tables of a federation: shards, columns, types, row counts."""
    with _progress() as reader:
        found = Federation.load(federation, callbacks=[reader]).catalog()
    print_json(found.to_arrow().to_pylist()) if as_json else _screen().print(found)


@app.command()
def explain(
    federation: FederationArgument,
    sql: SqlArgument,
    label: LabelOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the plan of a query: scans, filters, keys, joined rows, bytes per training round."""
    with _progress() as reader:
        relation = _relation(federation, sql, label, categorical, drop, reader)
        text = relation.explain()
    print_json(_summary(relation) | {"plan": text}) if as_json else typer.echo(text)


@app.command()
def describe(
    federation: FederationArgument,
    sql: SqlArgument,
    label: LabelOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print statistics of a query's joined rows, computed where the rows are."""
    with _progress() as reader:
        relation = _relation(federation, sql, label, categorical, drop, reader)
        found = relation.describe()
    print_json(found.to_arrow().to_pylist()) if as_json else _screen().print(found)


JobArgument = Annotated[
    Path, typer.Argument(help="The job file (TOML): federation, SQL, label, learner, split, output.")
]
RunArgument = Annotated[Path, typer.Argument(help="The run folder that a training left.")]
OtherSql = Annotated[str | None, typer.Option("--sql", help="Another query with the same columns, or a .sql file.")]


@app.command()
def train(job: JobArgument, as_json: JsonOption = False) -> None:
    """Train the learner of a job file and write its run folder."""
    with _progress() as reader:
        run = _runs().to_train(job, reader)
        result = run.train() | {"run": str(run.folder)}
    _print_result(result, as_json)


@app.command()
def resume(run: RunArgument, as_json: JsonOption = False) -> None:
    """Go on with a run that broke off: what parties elsewhere have answered is not asked again."""
    with _progress() as reader:
        result = _runs().to_resume(run, reader).train() | {"run": str(run)}
    _print_result(result, as_json)


def _runs() -> type[Run]:
    """Jobs need scikit-learn, which takes a second to load: other commands do without."""
    from tablepuppet.jobs import Run

    return Run


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    _print_metrics(result["metrics"])
    typer.echo(f"{_ending(result)}; run folder: {result['run']}")


@app.command()
def bench(job: JobArgument, as_json: JsonOption = False) -> None:
    """Train the learner of a job file and tell what it cost, here and over long lines; writes nothing."""
    with _progress() as reader:
        result = _runs().of_job(job, reader).bench()
    if as_json:
        print_json(result)
        return
    typer.echo(f"{_ending(result)}, {result['seconds']:.3g} s")
    typer.echo(f"{result['trips']} trips, {result['bytes']:,} bytes")
    for line, seconds in result["communication_seconds"].items():
        typer.echo(f"communication {line}: {seconds:.3g} s")


@app.command()
def evaluate(run: RunArgument, sql: OtherSql = None, as_json: JsonOption = False) -> None:
    """Measure a trained model on the rows its job held out, or on another query."""
    with _progress() as reader:
        name, metrics = _runs().of_folder(run, reader).evaluate(_text(sql) if sql else None)
    print_json(metrics) if as_json else _print_metrics({name: metrics})


@app.command()
def predict(
    run: RunArgument,
    output: Annotated[
        Path | None, typer.Option(help="A .parquet or .csv file; standard output as CSV if absent.")
    ] = None,
    sql: OtherSql = None,
    as_json: JsonOption = False,
) -> None:
    """Predict every joined row, with the place in its source that it comes from."""
    if output is not None and (output.suffix not in (".parquet", ".csv") or not output.parent.is_dir()):
        raise ConfigError(
            f"cannot write {str(output)!r}: name a file in a folder that exists, ending in .parquet or .csv"
        )
    with _progress() as reader:
        table = _runs().of_folder(run, reader).predict(_text(sql) if sql else None)
    if output is not None:
        _write(table, output)
        typer.echo(f"{len(table):,} predictions in {output}", err=True)
    elif as_json:
        print_json(table.to_pylist())
    else:
        pa_csv.write_csv(table, sys.stdout.buffer)


def _write(table: pa.Table, output: Path) -> None:
    pa_parquet.write_table(table, output) if output.suffix == ".parquet" else pa_csv.write_csv(table, output)


def _ending(result: dict[str, Any]) -> str:
    """How learning ended, for people."""
    rounds, best = result["rounds"], result["best_round"]
    text = f"{result['stopped']} after {rounds} rounds"
    return text if best == rounds else f"{text}, round {best} kept"


def _print_metrics(metrics: dict[str, dict[str, float]]) -> None:
    for side, values in metrics.items():
        typer.echo(f"{side}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items()))


def _text(sql: str) -> str:
    """The SQL itself, or that of a file."""
    if not sql.endswith(".sql") or len(sql.split()) > 1:
        return sql
    try:
        return Path(sql).read_text()
    except OSError as error:
        raise ConfigError(f"cannot read SQL file {sql!r}: {error.strerror}") from error


def _relation(
    federation: Path,
    sql: str,
    label: str | None,
    categorical: list[str] | None,
    drop: list[str] | None,
    reader: ProgressReader,
) -> Relation:
    loaded = Federation.load(federation, callbacks=[reader])
    return loaded.sql(_text(sql), label, categorical=categorical or (), drop=drop or ())


def _summary(relation: Relation) -> dict[str, Any]:
    """A relation in figures, for programs."""
    tables = [
        {
            "alias": alias,
            "table": relation.plan.tables[alias].name,
            "rows": relation.plan.tables[alias].rows,
            "shards": {shard.party: len(shard.row_ids) for shard in mapped.shards},
        }
        for alias, mapped in relation.mapping.tables.items()
    ]
    label = relation.query.label
    return {
        "joined_rows": len(relation),
        "columns": relation.columns,
        "label": label.name if label else None,
        "mapping_bytes": relation.mapping.nbytes,
        "tables": tables,
    }


def _screen() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120, soft_wrap=False)


@contextlib.contextmanager
def _progress() -> Iterator[ProgressReader]:
    with ProgressReader() as reader:
        yield reader


def main() -> None:
    """Run the command line; errors of ours end in one readable message, not in a traceback."""
    logging.getLogger("tablepuppet").addHandler(logging.NullHandler())  # events are shown by the progress reader
    logging.getLogger("tablepuppet").propagate = False
    try:
        app()
    except TablePuppetError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
