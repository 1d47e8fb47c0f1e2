"""The commands of a party's operator: ``tablepuppet party``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tablepuppet.cli_output import JsonOption, print_json
from tablepuppet.party.config import PartyFile
from tablepuppet.party.ledger import Budget
from tablepuppet.party.report import PartyReport, TableReport, inspect, spent

party = typer.Typer(help="Run a party beside its database, and see what it lets out.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="The party file (TOML): database, tables, columns, callers.")]


@party.command()
def check(file: FileArgument, as_json: JsonOption = False) -> None:
    """Try everything a party file needs, and print what it would publish, to whom, with which releases."""
    found = inspect(file)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _show(found, Console(width=None if sys.stdout.isatty() else 120, highlight=False))
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    for text in found.warnings if not as_json else ():
        errors.print(f"warning: {text}", style="yellow", markup=False)
    for text in found.problems if not as_json else ():
        errors.print(f"error: {text}", style="red", markup=False)
    if found.problems:
        raise typer.Exit(1)


@party.command()
def serve(file: FileArgument) -> None:
    """Serve a party until it is stopped (Ctrl-C, SIGTERM). Logs one line for each session."""
    import tablepuppet.learn.party_ops  # noqa: F401 - registers the learners' ops
    from tablepuppet.wire.serve import serve as serve_party

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("tablepuppet.party").addHandler(handler)
    logging.getLogger("tablepuppet.party").setLevel(logging.INFO)
    settings = PartyFile.load(file)
    serve_party(settings, lambda url: print(f"party {settings.name} is ready at {url}", flush=True))


@party.command()
def budget(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print what was spent of each table's privacy budget, by everybody and by caller, and what is left."""
    accounts = spent(file)
    if as_json:
        print_json([msgspec.to_builtins(each) | {"caller": each.caller or None} for each in accounts])
        return
    view = Table()
    for name in ("table", "caller", "spent", "budget", "left", "delta"):
        view.add_column(name, justify="left" if name in ("table", "caller") else "right")
    for each in accounts:
        bounds = ["unbounded" if value is None else f"{value:.4g}" for value in (each.budget, each.left)]
        view.add_row(each.table, each.caller or "(everybody)", f"{each.spent:.4g}", *bounds, f"{each.delta:g}")
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(view)


def _show(report: PartyReport, screen: Console) -> None:
    how = "mutual TLS" if report.tls else "no TLS"
    callers = ", ".join(report.callers) or "nobody"
    screen.print(f"party {report.party} at {report.listen} ({how}); callers: {callers}", markup=False)
    for table in report.tables:
        screen.print(_view(table))
        secure = "; sums leave within a sum over shards only" if table.secure_sum else ""
        rows = f"at least {table.min_rows} rows, groups of at least {table.min_group} rows"
        screen.print(f"  {rows}{secure}", markup=False)
        screen.print(f"  privacy budget: {_budget(table.budget)}\n", markup=False)


def _budget(found: Budget) -> str:
    whole = "unbounded" if found.epsilon is None else f"epsilon {found.epsilon:g} at delta {found.delta:g}"
    each = "" if found.epsilon_per_caller is None else f", {found.epsilon_per_caller:g} for each caller"
    return whole + each + ("; nothing is told without noise" if found.require_dp else "")


def _view(table: TableReport) -> Table:
    title = f"{table.name}: {table.rows:,} rows, to {', '.join(table.callers) or 'nobody'}"
    view = Table(title=title, title_justify="left")
    for name in ("column", "type", "uses", "level", "releases"):
        view.add_column(name)
    for column in table.columns:
        view.add_row(column.name, column.type, ", ".join(column.uses), column.level, ", ".join(column.releases))
    return view
