"""The commands of a party's operator: ``tablepuppet party``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from tablepuppet.cli.app import App, complain
from tablepuppet.cli.output import JsonOption, ParamOption, param_values, print_json, print_text, results_console
from tablepuppet.cli.party_report import (
    counted,
    print_columns,
    print_difference,
    print_jobs,
    print_outlook,
    show_report,
    sides_of,
    verdict,
)
from tablepuppet.errors import ConfigError
from tablepuppet.runs.figures import number, seconds

party = App(help="Run a party beside its database, and see what it releases.")

FileArgument = Annotated[Path, typer.Argument(help="The party file (TOML): database, tables, columns, callers.")]


@party.command()
def check(
    file: FileArgument,
    caller: Annotated[
        str | None, typer.Option("--as", help="Print what this caller could learn and ask for, and what is left of it.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            help="With --as: whether the party would open its part of this query, or of the one in a .sql file."
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="A table of another party that --sql joins, such as 'orders(id BIGINT, price DOUBLE)'."
        ),
    ] = None,
    param: ParamOption = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what the file says otherwise than the party that is being served.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check everything a party file needs, and print what the party would publish, to whom, with which releases.

    Key columns of published tables are read, to warn of keys with few values. No other table is touched.
    """
    import msgspec

    from tablepuppet.party.report import inspect

    if sql is not None and caller is None:
        raise ConfigError("--sql goes with --as: say who would ask, such as --as analyst")
    if others and sql is None:
        raise ConfigError("--with goes with --sql: it says what tables of other parties a query joins")
    if param and sql is None:
        raise ConfigError("--param goes with --sql: it has the values of its parameters")
    if diff:
        if caller is not None:
            raise ConfigError("--diff compares files, for all callers: leave out --as")
        print_difference(file, as_json)
        return
    found = inspect(file)
    if caller is not None:
        print_outlook(file, found, caller, sql, others or [], param_values(param), as_json)
        return
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        show_report(found, results_console())
        for text in found.warnings:
            complain(f"warning: {text}", "yellow")
        for text in found.problems:
            complain(f"error: {text}", "red")
        print_text(verdict(found))
    if found.problems:
        raise typer.Exit(1)


@party.command()
def serve(file: FileArgument, as_json: JsonOption = False) -> None:
    """Serve a party until it is stopped (Ctrl-C, SIGTERM). Logs one line for each session.

    SIGHUP makes it read its file again: callers, tables, rules and certificates change without a restart. With --json,
    the log is JSON lines too.
    """
    import tablepuppet.learn.party_ops  # noqa: F401 - registers the learners' ops
    from tablepuppet.cli.output import JsonLines
    from tablepuppet.party.config import PartyFile
    from tablepuppet.wire.serve import serve as serve_party

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("tablepuppet.party").addHandler(handler)
    logging.getLogger("tablepuppet.party").setLevel(logging.INFO)
    settings = PartyFile.load(file)

    def ready(url: str) -> None:
        line = (
            json.dumps({"party": settings.name, "url": url}) if as_json else f"party {settings.name} is ready at {url}"
        )
        print(line, flush=True)

    serve_party(settings, ready, lambda: PartyFile.load(file))


@party.command()
def sessions(
    file: FileArgument,
    end: Annotated[str | None, typer.Option(help="End the session whose name begins so; it cannot be resumed.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the open sessions of a party that is being served, or end one of them."""
    import msgspec

    from tablepuppet.party.config import PartyFile
    from tablepuppet.wire.control import ask

    found = ask(PartyFile.load(file, None), end)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    if end is not None:
        print_text(f"Ended: {counted(len(found), 'session')}.")
    rows = [
        [each.session, each.caller, ", ".join(each.tables), f"{each.requests:,}", seconds(each.silent)]
        for each in found
    ]
    print_columns(results_console(), "", sides_of("session caller tables", "requests silent"), rows)


@party.command()
def audit(
    file: FileArgument,
    since: Annotated[
        str | None, typer.Option(help="Only lines from this day or moment on (UTC), such as 2026-01-31 or with T09:30.")
    ] = None,
    caller: Annotated[str | None, typer.Option(help="Only lines of this caller.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the audit log of a party, rotated files included, and whether lines were changed or are missing.

    Ends with 1 if they were. All lines are checked, whichever are printed.
    """
    import msgspec

    from tablepuppet.party.audit_report import read_audit

    found = read_audit(file, since, caller)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        rows = [each.cells for each in found.entries]
        sides = sides_of("time caller what tables", "rows bytes", "releases outcome purpose")
        print_columns(results_console(), "", sides, rows)
        for text in found.notes:
            complain(f"note: {text}", "yellow")
        for text in found.problems:
            complain(f"error: {text}", "red")
        print_text(found.verdict)
    if found.problems:
        raise typer.Exit(1)


@party.command()
def monitor(
    file: FileArgument,
    port: Annotated[int, typer.Option(help="Where to listen on this machine; 0 takes a free port.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Show who asked a party what, what left, what was refused, budgets and sessions, as pages for a browser.

    For the party's operator, on its machine; prints one line, the address, which holds a token. Needs the extra
    `monitor`.
    """
    from tablepuppet.monitor.door import serve as serve_pages
    from tablepuppet.monitor.operator import operator_app

    serve_pages(operator_app(file), port, open_browser=not no_open, what="party monitor")


@party.command()
def jobs(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print the jobs that wait for your approval, and those that you have approved or refused.

    They are of tables whose policy says require_approval.
    """
    from tablepuppet.party.approval import list_jobs

    print_jobs(list_jobs(_state_of(file)[0]), as_json)


@party.command()
def approve(
    file: FileArgument,
    job: Annotated[str | None, typer.Argument(help="The job, or the first letters of its name.")] = None,
    until: Annotated[
        str | None, typer.Option(help="The last day of the approval (UTC), such as 2026-12-31; 30 days if absent.")
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Refuse the job, or end its approval.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Approve a job, or refuse it; without a job, print those that wait. It takes effect at once, without a restart."""
    from tablepuppet.party.approval import decide, list_jobs

    if job is None and (deny or until is not None):
        raise ConfigError("--until and --deny are for a job: name it too; `tablepuppet party jobs` lists them")
    if deny and until is not None:
        raise ConfigError("--until is for an approval: leave it out with --deny")
    folder, _ = _state_of(file)
    print_jobs(list_jobs(folder) if job is None else [decide(folder, job, until, deny=deny)], as_json)


@party.command()
def budget(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print what was spent of each table's privacy budget, by everybody and by caller, and what is left."""
    import msgspec

    from tablepuppet.party.report import spent

    accounts = spent(file)
    if as_json:
        print_json([msgspec.to_builtins(each) | {"caller": each.caller or None} for each in accounts])
        return
    sides = sides_of("table caller", "spent budget left delta")
    rows = []
    for each in accounts:
        bounds = ["unbounded" if value is None else number(value) for value in (each.budget, each.left)]
        rows.append([each.table, each.caller or "(everybody)", number(each.spent), *bounds, f"{each.delta:g}"])
    print_columns(results_console(), "", sides, rows)


StateArgument = Annotated[Path, typer.Argument(help="The backup: a file that holds secrets, for you only.")]


@party.command()
def backup(file: FileArgument, into: StateArgument, as_json: JsonOption = False) -> None:
    """Copy what a party must not lose into one file: ledger, secret of rows, used limits, saved models.

    The party may be served meanwhile. Requests of open runs are not in it.
    """
    from tablepuppet.party.state import write_backup

    folder, name = _state_of(file)
    made = write_backup(folder, name, into)
    if as_json:
        print_json({"party": name, "backup": str(into), "made": made.made, "files": len(made.files)})
        return
    print_text(f"{into}: {counted(len(made.files), 'file')} of party {name}, as of {made.made} UTC. Keep it secret.")


@party.command()
def restore(
    file: FileArgument,
    source: StateArgument,
    older: Annotated[
        bool, typer.Option("--older", help="Restore it though charges would be forgotten: budget is given back.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a backup back into the state folder of a party that is stopped.

    What was charged after the backup is not in it, and could be spent again; so a backup that is older than the
    ledger in the folder is refused.
    """
    from tablepuppet.party.state import restore_backup

    folder, name = _state_of(file)
    found = restore_backup(folder, name, source, older=older)
    if as_json:
        print_json({"party": name, "state_dir": str(folder), "made": found.made, "files": len(found.files)})
        return
    print_text(f"{folder}: {counted(len(found.files), 'file')} of party {name}, as of {found.made} UTC.")
    complain(
        "warning: what was charged to privacy budgets after that is forgotten, and could be spent again, though it was "
        "released; lower the budgets by it if something was",
        "yellow",
    )


def _state_of(file: Path) -> tuple[Path, str]:
    """The state folder of a party file, and the party's name."""
    from tablepuppet.party.config import PartyFile

    settings = PartyFile.load(file, None)
    if settings.state_dir is None:
        raise ConfigError(f"party file {str(file)!r}: it names no state_dir, so there is nothing to keep")
    return Path(settings.state_dir), settings.name


@party.command()
def names(
    file: FileArgument,
    model: Annotated[
        str | None, typer.Argument(help="A saved model, or a part of one, by its name in model.json.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the codes of categories mean in the models that this party stores parts of."""
    import msgspec

    from tablepuppet.party.category_report import category_names

    found = category_names(file, model)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    rows = []
    for each in found:
        text = "(no row has it now)" if each.name is None else each.name
        rows.append([each.caller or "(not in allow)", each.model, each.table, each.column, str(each.code), text])
    print_columns(results_console(), "", sides_of("caller model table column", "code", "name"), rows)
