"""The commands of a party's operator: ``tablepuppet party``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tablepuppet.cli.output import JsonOption, complain, print_json, results_console
from tablepuppet.party.category_report import category_names
from tablepuppet.party.config import PartyFile
from tablepuppet.party.ledger import Budget
from tablepuppet.party.policy import Embeddings
from tablepuppet.party.report import PartyReport, TableReport, inspect, spent
from tablepuppet.runs.table_view import Align, TableView
from tablepuppet.runs.wide_table import WideTable

party = typer.Typer(help="Run a party beside its database, and see what it releases.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="The party file (TOML): database, tables, columns, callers.")]


@party.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check everything a party file needs, and print what the party would publish, to whom, with which releases."""
    found = inspect(file)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _show(found, results_console())
        for text in found.warnings:
            complain(f"warning: {text}", "yellow")
        for text in found.problems:
            complain(f"error: {text}", "red")
    if found.problems:
        raise typer.Exit(1)


@party.command()
def serve(file: FileArgument, as_json: JsonOption = False) -> None:
    """Serve a party until it is stopped (Ctrl-C, SIGTERM). Logs one line for each session."""
    import tablepuppet.learn.party_ops  # noqa: F401 - registers the learners' ops
    from tablepuppet.wire.serve import serve as serve_party

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("tablepuppet.party").addHandler(handler)
    logging.getLogger("tablepuppet.party").setLevel(logging.INFO)
    settings = PartyFile.load(file)

    def ready(url: str) -> None:
        line = (
            json.dumps({"party": settings.name, "url": url}) if as_json else f"party {settings.name} is ready at {url}"
        )
        print(line, flush=True)

    serve_party(settings, ready)


@party.command()
def budget(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print what was spent of each table's privacy budget, by everybody and by caller, and what is left."""
    accounts = spent(file)
    if as_json:
        print_json([msgspec.to_builtins(each) | {"caller": each.caller or None} for each in accounts])
        return
    sides = _sides("table caller", "spent budget left delta")
    rows = []
    for each in accounts:
        bounds = ["unbounded" if value is None else f"{value:.4g}" for value in (each.budget, each.left)]
        rows.append([each.table, each.caller or "(everybody)", f"{each.spent:.4g}", *bounds, f"{each.delta:g}"])
    results_console().print(WideTable(TableView("", sides, rows).rich()))


def _sides(left: str, right: str = "", more: str = "") -> dict[str, Align]:
    """Columns by the side that they are aligned to."""
    names: list[tuple[str, Align]] = [(left, "left"), (right, "right"), (more, "left")]
    return {name: side for listed, side in names for name in listed.split()}


@party.command()
def names(
    file: FileArgument,
    model: Annotated[
        str | None, typer.Argument(help="A saved model, or a part of one, by its name in model.json.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the codes of categories mean in the models that this party stores parts of."""
    found = category_names(file, model)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    rows = []
    for each in found:
        text = "(no row has it now)" if each.name is None else each.name
        rows.append([each.caller or "(not in allow)", each.model, each.table, each.column, str(each.code), text])
    view = TableView("", _sides("caller model table column", "code", "name"), rows)
    results_console().print(WideTable(view.rich()))


def _show(report: PartyReport, screen: Console) -> None:
    how = "mutual TLS" if report.tls else "no TLS"
    callers = ", ".join(report.callers) or "nobody"
    screen.print(f"party {report.party} at {report.listen} ({how}); callers: {callers}", markup=False)
    if report.metrics is not None:
        screen.print(f"metrics at {report.metrics}", markup=False)
    for table in report.tables:
        screen.print(_view(table))
        secure = "; sums leave within a sum over shards only" if table.secure_sum else ""
        rows = f"at least {table.min_rows} rows, groups of at least {table.min_group} rows"
        chosen = "; callers may multiply it with vectors of their choice" if table.matrix else ""
        passed = "; means of its labels may reach other parties" if table.label_means else ""
        screen.print(f"  {rows}{secure}{chosen}{passed}", markup=False)
        if table.keys:
            screen.print(f"  expressions that may be joined by: {'; '.join(table.keys)}", markup=False)
        if table.embeddings is not None:
            screen.print(f"  {_embeddings(table.embeddings)}", markup=False)
        screen.print(f"  privacy budget: {_budget(table.budget)}", markup=False)
        for text in _deliveries(table):
            screen.print(f"  {text}", markup=False)
        screen.print()


def _embeddings(found: Embeddings) -> str:
    width = "" if found.max_width is None else f" of at most {found.max_width} numbers"
    times = "" if found.max_epochs is None else f", each row's at most {found.max_epochs} times in a session"
    return f"networks across parties may get embeddings{width} of its rows{times}"


def _budget(found: Budget) -> str:
    whole = "unbounded" if found.epsilon is None else f"epsilon {found.epsilon:g} at delta {found.delta:g}"
    each = "" if found.epsilon_per_caller is None else f", {found.epsilon_per_caller:g} for each caller"
    return whole + each + ("; nothing leaves without noise" if found.require_dp else "")


def _deliveries(table: TableReport) -> list[str]:
    found = [f"predictions made with it may go to {', '.join(table.deliver)}"] if table.deliver else []
    if table.predictions is not None:
        place = f"file {table.predictions.file}" if table.predictions.file else f"table {table.predictions.table}"
        found.append(f"predictions about it go to {place}, beside {', '.join(table.predictions.keys)}")
    return found


def _view(table: TableReport) -> WideTable:
    title = f"{table.name}: {table.rows:,} rows, to {', '.join(table.callers) or 'nobody'}"
    rows = [
        [each.name, each.type, ", ".join(each.uses), each.level, ", ".join(each.releases)] for each in table.columns
    ]
    return WideTable(TableView(title, _sides("column type uses level releases"), rows).rich())
