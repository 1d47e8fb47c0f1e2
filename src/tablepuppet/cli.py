"""The command line: ``tablepuppet COMMAND --help`` tells each.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 refused with a reason, 2 wrong usage.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tablepuppet.errors import TablePuppetError
from tablepuppet.federation import Federation
from tablepuppet.relation import Relation
from tablepuppet.runs.progress import ProgressReader

app = typer.Typer(
    help="Machine learning over SQL joins and unions of tables that stay in their owners' databases.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FederationArgument = Annotated[
    Path, typer.Argument(help="The federation file (TOML): names of parties and their database URLs.")
]
SqlArgument = Annotated[str, typer.Argument(help="The SQL, or the path of a file that ends in .sql.")]
LabelOption = Annotated[str | None, typer.Option(help="The selected column to learn.")]
CategoricalOption = Annotated[
    list[str] | None, typer.Option(help="A column of numbers to treat as categories; may repeat.")
]
DropOption = Annotated[list[str] | None, typer.Option(help="A selected column to leave out; may repeat.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demonstration keeps its databases.")] = Path(
        "tablepuppet-demo"
    ),
    as_json: JsonOption = False,
) -> None:
    """Show the whole way on real data: flights, aircraft and weather in four databases of four kinds of owner."""
    from tablepuppet.demo import run_demo  # its data is an extra: the other commands do without

    with _progress() as reader:
        run_demo(folder, reader, None if as_json else _screen(), _print_json if as_json else None)


@app.command()
def catalog(federation: FederationArgument, as_json: JsonOption = False) -> None:
    """List the tables of a federation: shards, columns, types, row counts."""
    with _progress() as reader:
        found = Federation.load(federation, callbacks=[reader]).catalog()
    _print_json(found.to_arrow().to_pylist()) if as_json else _screen().print(found)


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
    _print_json(_summary(relation) | {"plan": text}) if as_json else typer.echo(text)


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
    _print_json(found.to_arrow().to_pylist()) if as_json else _screen().print(found)


def _relation(
    federation: Path,
    sql: str,
    label: str | None,
    categorical: list[str] | None,
    drop: list[str] | None,
    reader: ProgressReader,
) -> Relation:
    text = Path(sql).read_text() if sql.endswith(".sql") and Path(sql).is_file() else sql
    loaded = Federation.load(federation, callbacks=[reader])
    return loaded.sql(text, label, categorical=categorical or (), drop=drop or ())


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


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


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


if __name__ == "__main__":
    main()
