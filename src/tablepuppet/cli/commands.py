"""The commands: ``tablepuppet COMMAND --help`` describes each.

Results go to stdout, progress and errors to stderr. `cli.main` runs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tablepuppet.cli.app import LEARN, LOOK, OPERATE, App
from tablepuppet.cli.keys import certs, keys
from tablepuppet.cli.output import (
    JsonOption,
    ParamOption,
    Screen,
    check_output,
    param_values,
    print_json,
    print_table,
    sql_text,
    write_output,
)
from tablepuppet.cli.party import party
from tablepuppet.cli.privacy import BoundsOption, DeltaOption, EpsilonOption, TimesOption, noise_of, privacy
from tablepuppet.errors import ConfigError
from tablepuppet.runs.figures import metric_name, seconds
from tablepuppet.versions import PROTOCOL, VERSION

if TYPE_CHECKING:  # databases and scikit-learn take a second each to load: a command loads what it needs
    from tablepuppet.federation import Federation
    from tablepuppet.jobs import OtherQuery, Run
    from tablepuppet.learn.loss.measures import Metrics
    from tablepuppet.learn.selection.folds import Results
    from tablepuppet.privacy.settings import Privacy
    from tablepuppet.relation import Relation
    from tablepuppet.runs.progress import ProgressReader

BEST = 5  # candidates of a search that are shown
app = App(add_completion=False, pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tablepuppet {VERSION}, version {PROTOCOL} of the protocol")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Machine learning over SQL joins and unions of tables that stay in their owners' databases."""


app.add_typer(privacy, name="privacy", rich_help_panel=LEARN)
app.add_typer(party, name="party", rich_help_panel=OPERATE)
app.add_typer(certs, name="certs", rich_help_panel=OPERATE)
app.add_typer(keys, name="keys", rich_help_panel=OPERATE)

FederationArgument = Annotated[
    Path, typer.Argument(help="The federation file (TOML): names of parties and their database URLs.")
]
SqlArgument = Annotated[str, typer.Argument(help="The SQL, or the path of a file that ends in .sql.")]
LabelOption = Annotated[str | None, typer.Option(help="The selected column to learn.")]
CategoricalOption = Annotated[
    list[str] | None, typer.Option(help="A column of numbers to treat as categories; may repeat.")
]
DropOption = Annotated[list[str] | None, typer.Option(help="A selected column to leave out; may repeat.")]


@app.command(rich_help_panel=LOOK)
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demonstration keeps its databases.")] = Path(
        "tablepuppet-demo"
    ),
    parties: Annotated[bool, typer.Option("--parties", help="Every owner is a process, called by mutual TLS.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print all columns, the whole plan and all statistics.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show all steps on real data: flights, aircraft and weather in four databases of four owners."""
    with Screen() as screen:
        if not as_json:
            screen.text("Will a flight arrive late?")  # it takes seconds to load what answers it

        from tablepuppet.demo import run_demo  # its data is an extra: the other commands do without

        run_demo(folder, screen, as_json=as_json, parties=parties, verbose=verbose)


@app.command(rich_help_panel=LOOK)
def catalog(federation: FederationArgument, as_json: JsonOption = False) -> None:
    """List the tables of a federation: shards, columns, types, row counts."""
    with Screen() as screen:
        found = _federation(federation, screen.reader).catalog()
        screen.json(found.to_arrow().to_pylist()) if as_json else screen.print(found)


@app.command(rich_help_panel=LOOK)
def explain(
    federation: FederationArgument,
    sql: SqlArgument,
    label: LabelOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    param: ParamOption = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Also print what reading and joining took: trips, bytes and seconds.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the plan of a query: scans, filters, keys, joined rows, bytes per training round."""
    with Screen() as screen:
        relation = _relation(federation, sql, label, categorical, drop, param, screen.reader)
        text = relation.explain(analyze=analyze)
        screen.json(_summary(relation) | {"plan": text}) if as_json else screen.text(text)


@app.command(rich_help_panel=LOOK)
def describe(
    federation: FederationArgument,
    sql: SqlArgument,
    label: LabelOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    param: ParamOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    bounds: BoundsOption = None,
    max_times: TimesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print statistics of a query's joined rows, computed where the rows are."""
    with Screen() as screen:
        noise = noise_of(epsilon, delta, bounds, max_times)
        relation = _relation(federation, sql, label, categorical, drop, param, screen.reader, noise.get("privacy"))
        found = relation.describe(**noise)
        screen.json(found.to_arrow().to_pylist()) if as_json else screen.print(found)


@app.command(rich_help_panel=LOOK)
def profile(
    federation: FederationArgument,
    sql: SqlArgument,
    label: LabelOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    param: ParamOption = None,
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("profile.html"),
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    bounds: BoundsOption = None,
    max_times: TimesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a page about a query's joined rows: histograms, missing values, correlations, warnings."""
    with Screen() as screen:
        noise = noise_of(epsilon, delta, bounds, max_times)
        relation = _relation(federation, sql, label, categorical, drop, param, screen.reader, noise.get("privacy"))
        found = relation.profile(**noise)
        place = found.save(output)
        if as_json:
            screen.json({"page": str(place), "warnings": found.table_view().rows})
        else:
            screen.print(found)
            screen.text(f"written: {place}")


JobArgument = Annotated[
    Path, typer.Argument(help="The job file (TOML): federation, SQL, label, learner, split, output.")
]
RunArgument = Annotated[Path, typer.Argument(help="The run folder that `train` wrote.")]
OtherSql = Annotated[str | None, typer.Option("--sql", help="Another query with the same columns, or a .sql file.")]


@app.command(rich_help_panel=LEARN)
def train(
    job: JobArgument,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the run folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train the learner of a job file and write its run folder."""
    with Screen() as screen:
        run = _runs().to_train(job, screen.reader, overwrite=overwrite)
        _print_result(screen, run.train() | {"run": str(run.folder)}, as_json)


@app.command(rich_help_panel=LEARN)
def resume(run: RunArgument, as_json: JsonOption = False) -> None:
    """Continue a run that was stopped or interrupted. Parties elsewhere are not asked again for earlier answers."""
    with Screen() as screen:
        result = _runs().to_resume(run, screen.reader).train()
        _print_result(screen, result | {"run": str(run)}, as_json)


def _runs() -> type[Run]:
    """Jobs need scikit-learn, which takes a second to load: other commands do without."""
    from tablepuppet.jobs import Run

    return Run


def _print_result(screen: Screen, result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        screen.json(result)
        return
    if "search" in result:
        screen.print(_best(**{name: result["search"][name] for name in ("results", "metric", "constant")}))
    _print_metrics(screen, result["metrics"])
    screen.text(f"{_ending(result)}; run folder: {result['run']}")


def _best(results: list[dict[str, Any]], metric: str, constant: dict[str, float]) -> Results:
    """The best candidates of a search: their settings, metrics on the folds held out, and seconds."""
    from tablepuppet.learn.selection.folds import Results

    left_out = [
        name for name in results[0] if name.startswith(("mean_train_", "std_")) and name != f"std_test_{metric}"
    ]
    heads = {name: name.removeprefix("mean_test_").replace("std_test_", "std_") for name in results[0]}
    shown = [{heads[name]: row[name] for name in row if name not in left_out} for row in results[:BEST]]
    every = f"{len(results)} settings"
    how = f"The best {len(shown)} of {every}" if len(shown) < len(results) else every
    return Results(f"{how}, by mean {metric_name(metric)} of the folds held out", shown, constant)


@app.command(rich_help_panel=LEARN)
def bench(job: JobArgument, as_json: JsonOption = False) -> None:
    """Train the learner of a job file and print what it cost, here and over slow networks. Writes nothing."""
    with Screen() as screen:
        result = _runs().of_job(job, screen.reader).bench()
        if as_json:
            screen.json(result)
            return
        screen.text(f"{_ending(result)}, {seconds(result['seconds'])}")
        screen.text(f"{result['trips']} trips, {result['bytes']:,} bytes")
        for line, duration in result["communication_seconds"].items():
            screen.text(f"communication {line}: {seconds(duration)}")


@app.command(rich_help_panel=LEARN)
def evaluate(
    run: RunArgument,
    sql: OtherSql = None,
    param: ParamOption = None,
    at_party: Annotated[
        bool, typer.Option("--at-party", help="The label's party measures on its true labels; only metrics leave it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model on the rows its job held out, or on another query."""
    with Screen() as screen:
        found = _runs().of_folder(run, screen.reader)
        name, metrics = found.evaluate(_other(sql, param), at_party=at_party)
        screen.json(metrics) if as_json else _print_metrics(screen, {name: metrics})


@app.command(rich_help_panel=LEARN)
def predict(
    run: RunArgument,
    output: Annotated[
        Path | None, typer.Option(help="A .parquet or .csv file; standard output as CSV if absent.")
    ] = None,
    sql: OtherSql = None,
    param: ParamOption = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="A column to identify rows by, as alias.column; selected or not; may repeat."),
    ] = None,
    deliver_to: Annotated[
        str | None,
        typer.Option(help="A party that writes predictions beside its own keys; party.table if it has several."),
    ] = None,
    combine: Annotated[
        str | None,
        typer.Option(help="Write `--combine mean` to average the predictions of a row that is joined several times."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict every joined row, beside the columns of --id, and print the table or write it to a file.

    Without --id a row is known by its number; if all parties are opened in
    this process, by its places in their sources. With --deliver-to a party
    takes the predictions home, and a receipt is printed. The query of --sql
    needs the features that were learned from, not the label.
    """
    query = _other(sql, param)
    if deliver_to is not None:
        _deliver(run, query, deliver_to, combine, alone=not (output or ids), as_json=as_json)
        return
    if combine is not None:
        raise ConfigError("--combine goes with --deliver-to: without it every joined row has its own prediction")
    if output is not None:
        check_output(output)
    with Screen() as screen:
        table = _runs().of_folder(run, screen.reader).predict(query, ids)
    if output is not None:
        write_output(table, output)
        typer.echo(f"{len(table):,} predictions in {output}", err=True)
    elif as_json:
        print_json(table.to_pylist())
    else:
        print_table(table)


def _deliver(run: Path, query: OtherQuery | None, to: str, combine: str | None, *, alone: bool, as_json: bool) -> None:
    """Let a party take predictions home, and print its receipt."""
    if not alone:
        raise ConfigError("--deliver-to writes at the party: leave out --output and --id")
    if combine not in (None, "mean"):
        raise ConfigError(
            f"--combine {combine} is not known: `--combine mean` averages the predictions of a row that is joined "
            "several times, and there is no other way yet"
        )
    with Screen() as screen:
        receipt = _runs().of_folder(run, screen.reader).deliver(query, to, "mean" if combine else None)
        if as_json:
            screen.json(receipt)
            return
        screen.text(
            f"{receipt['written']:,} predictions delivered to {receipt['party']}.{receipt['table']} as run "
            f"{receipt['run']}; {receipt['without']:,} rows that were read there have none"
        )


def _ending(result: dict[str, Any]) -> str:
    """How learning ended, for people."""
    rounds, best, how = result["rounds"], result["best_round"], result["stopped"]
    if result["noise"] and how in ("converged", "rounds used up"):
        how = "done, with noise,"  # which leaves no optimum to converge to
    how = {"rounds used up": "not converged", "no step gains": "not converged", "early stop": "stopped early"}.get(
        how, how
    )
    text = f"{how} after {rounds} round{'' if rounds == 1 else 's'}"
    return text if best == rounds else f"{text}, round {best} kept"


def _print_metrics(screen: Screen, metrics: dict[str, Metrics]) -> None:
    for side, values in metrics.items():
        screen.text(f"{side}: {values}")


def _federation(file: Path, reader: ProgressReader) -> Federation:
    from tablepuppet.federation import Federation

    return Federation.load(file, callbacks=[reader])


def _relation(
    federation: Path,
    sql: str,
    label: str | None,
    categorical: list[str] | None,
    drop: list[str] | None,
    param: list[str] | None,
    reader: ProgressReader,
    privacy: Privacy | None = None,
) -> Relation:
    loaded = _federation(federation, reader)
    return loaded.sql(
        sql_text(sql), label, categorical=categorical or (), drop=drop or (), params=param_values(param),
        privacy=privacy,
    )  # fmt: skip


def _other(sql: str | None, param: list[str] | None) -> OtherQuery | None:
    """The query that --sql and --param ask for; None: that of the job."""
    from tablepuppet.jobs import OtherQuery

    return OtherQuery(sql_text(sql) if sql else None, param_values(param)) if sql or param else None


def _summary(relation: Relation) -> dict[str, Any]:
    """A relation in figures, for programs."""
    tables = [
        {
            "alias": alias,
            "table": relation.plan.tables[alias].name,
            "rows": relation.plan.tables[alias].rows,
            "shards": {shard.party: len(shard.row_ids) for shard in mapped.shards},
        }
        for alias, mapped in relation.client.tables.items()
    ]
    label = relation.query.label
    return {
        "joined_rows": len(relation),
        "columns": relation.columns,
        "label": label.name if label else None,
        "mapping_bytes": relation.joined_rows.nbytes,
        "tables": tables,
    }


@app.command(rich_help_panel=LOOK)
def monitor(
    what: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A federation file, and run folders or folders with runs; the working directory if there are none.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Where to listen on this machine; 0 takes a free port.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Show runs as they go, and those that have ended, as pages for a browser; prints one line, their address.

    Needs the extra `monitor`. The address holds a token, and works on this machine only.
    """
    from tablepuppet.monitor.analyst import analyst_app
    from tablepuppet.monitor.door import serve

    given = what or []
    for path in given:
        if not path.exists():
            raise ConfigError(
                f"{str(path)!r} does not exist: name a federation file, a run folder or a folder with runs"
            )
    files = [path for path in given if path.is_file()]
    if len(files) > 1:
        raise ConfigError("name one federation file, and run folders")
    folders = [path for path in given if path.is_dir()] or [path.parent for path in files] or [Path()]
    serve(analyst_app(folders, files[0] if files else None), port, open_browser=not no_open, what="monitor")
