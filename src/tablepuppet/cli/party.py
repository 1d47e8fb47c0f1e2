"""The commands of a party's operator: ``tablepuppet party``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tablepuppet.cli.app import App
from tablepuppet.cli.complaint import complain
from tablepuppet.cli.output import JsonOption, print_json, print_text, results_console
from tablepuppet.errors import ConfigError
from tablepuppet.runs.figures import number, seconds

if TYPE_CHECKING:  # a command loads what it needs
    from collections.abc import Sequence

    from rich.console import Console

    from tablepuppet.party.approval import Listed
    from tablepuppet.party.ledger import Budget
    from tablepuppet.party.outlook import Outlook, QueryReport
    from tablepuppet.party.policy import Embeddings
    from tablepuppet.party.report import ColumnReport, PartyReport, TableReport
    from tablepuppet.runs.table_view import Align

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
            help="With --as: whether the caller could open this query over the party's tables, or a .sql file."
        ),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what the file says otherwise than the party that is being served.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check everything a party file needs, and print what the party would publish, to whom, with which releases."""
    import msgspec

    from tablepuppet.party.report import inspect

    if sql is not None and caller is None:
        raise ConfigError("--sql goes with --as: say who would ask, such as --as analyst")
    if diff:
        if caller is not None:
            raise ConfigError("--diff compares files, for all callers: leave out --as")
        _print_difference(file, as_json)
        return
    found = inspect(file)
    if caller is not None:
        _print_outlook(file, found, caller, sql, as_json)
        return
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _show(found, results_console())
        for text in found.warnings:
            complain(f"warning: {text}", "yellow")
        for text in found.problems:
            complain(f"error: {text}", "red")
        print_text(_verdict(found))
    if found.problems:
        raise typer.Exit(1)


def _print_difference(file: Path, as_json: bool) -> None:
    import msgspec

    from tablepuppet.party.config import PartyFile
    from tablepuppet.party.difference import differences, plain_settings
    from tablepuppet.wire.control import served_settings
    from tablepuppet.wire.reload import AT_ONCE

    settings = PartyFile.load(file)
    found = differences(served_settings(settings), plain_settings(settings))
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for each in found:
        print_text(str(each))
    later = sorted({name for each in found if (name := each.setting.partition(".")[0]) not in AT_ONCE})
    if not found:
        print_text(f"Verdict: party {settings.name} is served as the file says.")
        return
    restart = f"; of {', '.join(later)}, a restart" if later else ""
    print_text(f"Verdict: {_counted(len(found), 'difference')}: SIGHUP makes the party read its file again{restart}.")


def _print_outlook(file: Path, report: PartyReport, caller: str, sql: str | None, as_json: bool) -> None:
    import msgspec

    from tablepuppet.cli.output import sql_text
    from tablepuppet.party.outlook import outlook

    found = outlook(file, report, caller, None if sql is None else sql_text(sql))
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _show_outlook(found)
    if report.problems or (found.query is not None and not found.query.accepted):
        for text in report.problems:
            complain(f"error: {text}", "red")
        raise typer.Exit(1)


def _show_outlook(found: Outlook) -> None:
    screen, caller = results_console(), found.caller
    if not found.admitted:
        print_text(f"{caller} is not in allow: it is refused, and learns no name of a table.")
    for table in found.tables:
        _show_table(table, screen)
    if found.needs_purpose and found.tables:
        print_text(f"{caller} must give a purpose.")
    if found.needs_approval:
        print_text(f"you approve each job of {caller} over {', '.join(found.needs_approval)} first (party approve).")
    if found.budgets:
        rows = [
            [each.table, each.caller or "(everybody)", number(each.spent), *map(_bound, (each.budget, each.left))]
            for each in found.budgets
        ]
        _print_table(screen, "privacy budgets", _sides("table caller", "spent budget left"), rows)
    if found.limits:
        rows = [[each.table, each.limit, str(each.used), str(each.most)] for each in found.limits]
        _print_table(screen, f"what {caller} has used of limits", _sides("table limit", "used most"), rows)
    if found.query is not None:
        _show_query(found.query, screen)


def _bound(value: float | None) -> str:
    return "unbounded" if value is None else number(value)


def _show_query(query: QueryReport, screen: Console) -> None:
    for text in query.reads:
        print_text(f"would read: {text}")
    if query.selected:
        heads = ("selected", "of columns", "uses", "level", "releases")
        rows = [
            [each.name, ", ".join(each.columns), ", ".join(each.uses), each.level, ", ".join(each.releases)]
            for each in query.selected
        ]
        _print_table(screen, "", dict.fromkeys(heads, "left"), rows)
    if query.accepted:
        print_text("Verdict: the query would be accepted; each op is checked again, by the releases above.")
    else:
        print_text(f"Verdict: the query would be refused by {query.rule}: {query.reason}")


def _verdict(report: PartyReport) -> str:
    """Whether the party can start, in one line."""
    from tablepuppet.party.policy import ANONYMOUS

    warned = f", {_counted(len(report.warnings), 'warning')}" if report.warnings else ""
    if report.problems:
        return f"Verdict: the party cannot start: {_counted(len(report.problems), 'error')}{warned}."
    tables = _counted(len(report.tables), "table")
    callers = [name for name in report.callers if report.tls or name == ANONYMOUS]
    whom = _counted(len(callers), "caller") if callers else "nobody"
    return f"Verdict: the party can start, and publishes {tables} to {whom}{warned}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@party.command()
def serve(file: FileArgument, as_json: JsonOption = False) -> None:
    """Serve a party until it is stopped (Ctrl-C, SIGTERM). Logs one line for each session.

    SIGHUP makes it read its file again: callers, tables, rules and certificates change without a restart. With --json,
    the log is JSON lines too.
    """
    import tablepuppet.learn.party_ops  # noqa: F401 - registers the learners' ops
    from tablepuppet.party.config import PartyFile
    from tablepuppet.runs.json_lines import JsonLines
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

    found = ask(PartyFile.load(file), end)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    if end is not None:
        print_text(f"Ended: {_counted(len(found), 'session')}.")
    rows = [
        [each.session, each.caller, ", ".join(each.tables), f"{each.requests:,}", seconds(each.silent)]
        for each in found
    ]
    _print_table(results_console(), "", _sides("session caller tables", "requests silent"), rows)


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
        sides = _sides("time caller what tables", "rows bytes", "releases outcome purpose")
        _print_table(results_console(), "", sides, rows)
        for text in found.notes:
            complain(f"note: {text}", "yellow")
        for text in found.problems:
            complain(f"error: {text}", "red")
        print_text(found.verdict)
    if found.problems:
        raise typer.Exit(1)


@party.command()
def jobs(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print the jobs that wait for your approval, and those that you have approved or refused.

    They are of tables whose policy says require_approval.
    """
    from tablepuppet.party.approval import list_jobs

    _print_jobs(list_jobs(_state_of(file)[0]), as_json)


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
    _print_jobs(list_jobs(folder) if job is None else [decide(folder, job, until, deny=deny)], as_json)


def _print_jobs(found: Sequence[Listed], as_json: bool) -> None:
    import msgspec

    from tablepuppet.party.approval import SHORT, epsilon_text

    if as_json:
        print_json([msgspec.to_builtins(each.job) | {"state": each.state, "until": each.until} for each in found])
        return
    if not found:
        print_text("No job was asked for.")
    for each in found:
        job, until = each.job, "" if each.until is None else f" until {each.until[:16].replace('T', ' ')} UTC"
        print_text(
            f"{job.id[:SHORT]} {each.state}{until}; asked by {job.caller} at {job.asked[:16].replace('T', ' ')} UTC"
        )
        print_text(f"  purpose: {job.purpose or '(none was given)'}")
        print_text(f"  learner: {job.work}; epsilon: {epsilon_text(job)}")
        for text in job.sql:
            print_text(f"  {text}")


@party.command()
def budget(file: FileArgument, as_json: JsonOption = False) -> None:
    """Print what was spent of each table's privacy budget, by everybody and by caller, and what is left."""
    import msgspec

    from tablepuppet.party.report import spent

    accounts = spent(file)
    if as_json:
        print_json([msgspec.to_builtins(each) | {"caller": each.caller or None} for each in accounts])
        return
    sides = _sides("table caller", "spent budget left delta")
    rows = []
    for each in accounts:
        bounds = ["unbounded" if value is None else number(value) for value in (each.budget, each.left)]
        rows.append([each.table, each.caller or "(everybody)", number(each.spent), *bounds, f"{each.delta:g}"])
    _print_table(results_console(), "", sides, rows)


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
    print_text(f"{into}: {_counted(len(made.files), 'file')} of party {name}, as of {made.made} UTC. Keep it secret.")


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
    print_text(f"{folder}: {_counted(len(found.files), 'file')} of party {name}, as of {found.made} UTC.")
    complain(
        "warning: what was charged to privacy budgets after that is forgotten, and could be spent again, though it was "
        "released; lower the budgets by it if something was",
        "yellow",
    )


def _state_of(file: Path) -> tuple[Path, str]:
    """The state folder of a party file, and the party's name."""
    from tablepuppet.party.config import PartyFile

    settings = PartyFile.load(file)
    if settings.state_dir is None:
        raise ConfigError(f"party file {str(file)!r}: it names no state_dir, so there is nothing to keep")
    return Path(settings.state_dir), settings.name


def _print_table(screen: Console, title: str, sides: dict[str, Align], rows: Sequence[Sequence[str]]) -> None:
    from tablepuppet.runs.table_view import TableView
    from tablepuppet.runs.wide_table import WideTable

    screen.print(WideTable(TableView(title, sides, rows).rich()))


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
    _print_table(results_console(), "", _sides("caller model table column", "code", "name"), rows)


def _show(report: PartyReport, screen: Console) -> None:
    how = "mutual TLS" if report.tls else "no TLS"
    callers = ", ".join(report.callers) or "nobody"
    print_text(f"party {report.party} at {report.listen} ({how}); callers: {callers}; protocol {report.protocol}")
    if report.metrics is not None:
        print_text(f"metrics at {report.metrics}")
    for table in report.tables:
        print_text("")
        _show_table(table, screen)
    if report.tables:
        print_text("")


def _show_table(table: TableReport, screen: Console) -> None:
    common = [name for name in table.columns[0].releases if all(name in each.releases for each in table.columns)]
    title = f"{table.name}: {table.rows:,} rows, to {', '.join(table.callers) or 'nobody'}"
    rows = [
        [
            ", ".join(each.name for each in alike),
            ", ".join(alike[0].uses),
            alike[0].level,
            _further(alike[0], common),
        ]
        for alike in _grouped(table.columns)
    ]
    heads = ("columns", "uses", "level", "further releases" if common else "releases")
    _print_table(screen, title, dict.fromkeys(heads, "left"), rows)
    for text in [*([f"every column releases {', '.join(common)}"] if common else []), *_rules(table)]:
        print_text(f"  {text}")


def _grouped(columns: Sequence[ColumnReport]) -> list[list[ColumnReport]]:
    """Columns with the same uses, level and releases, in the order of the first of each group."""
    found: dict[tuple[object, ...], list[ColumnReport]] = {}
    for column in columns:
        found.setdefault((tuple(column.uses), column.level, tuple(column.releases)), []).append(column)
    return list(found.values())


def _further(column: ColumnReport, common: Sequence[str]) -> str:
    return ", ".join(name for name in column.releases if name not in common) or "-"


def _rules(table: TableReport) -> list[str]:
    """What holds for the table as a whole."""
    secure = "; sums leave within a sum over shards only" if table.secure_sum else ""
    chosen = "; callers may multiply it with vectors of their choice" if table.matrix else ""
    passed = "; means of its labels may reach other parties" if table.label_means else ""
    found = [f"at least {table.min_rows} rows, groups of at least {table.min_group} rows{secure}{chosen}{passed}"]
    found += [f"expressions that may be joined by: {'; '.join(table.keys)}"] if table.keys else []
    found += [_embeddings(table.embeddings)] if table.embeddings is not None else []
    return [*found, f"privacy budget: {_budget(table.budget)}", *_deliveries(table)]


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
