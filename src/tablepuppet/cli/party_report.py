"""What the commands of a party's operator print: what a file publishes and to whom, what it changes, and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tablepuppet.cli.app import complain
from tablepuppet.cli.output import print_json, print_text, results_console
from tablepuppet.errors import QueryError, plain_text
from tablepuppet.runs.figures import number

if TYPE_CHECKING:  # a command loads what it needs
    from collections.abc import Mapping, Sequence
    from typing import Any

    from rich.console import Console

    from tablepuppet.party.approval import Listed
    from tablepuppet.party.ledger import Budget
    from tablepuppet.party.outlook import Outlook, QueryReport
    from tablepuppet.party.policy import Embeddings
    from tablepuppet.party.report import ColumnReport, PartyReport, TableReport
    from tablepuppet.runs.table_view import Align


def show_report(report: PartyReport, screen: Console) -> None:
    """Print what a party file publishes."""
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


def verdict(report: PartyReport) -> str:
    """Whether the party can start, in one line."""
    from tablepuppet.party.policy import ANONYMOUS

    warned = f", {counted(len(report.warnings), 'warning')}" if report.warnings else ""
    if report.problems:
        return f"Verdict: the party cannot start: {counted(len(report.problems), 'error')}{warned}."
    tables = counted(len(report.tables), "table")
    callers = [name for name in report.callers if report.tls or name == ANONYMOUS]
    whom = counted(len(callers), "caller") if callers else "nobody"
    return f"Verdict: the party can start, and publishes {tables} to {whom}{warned}."


def _show_table(table: TableReport, screen: Console) -> None:
    common = [name for name in table.columns[0].releases if all(name in each.releases for each in table.columns)]
    about = "about " if table.estimated else ""
    title = f"{table.name}: {about}{table.rows:,} rows, to {', '.join(table.callers) or 'nobody'}"
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
    print_columns(screen, title, dict.fromkeys(heads, "left"), rows)
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


def print_outlook(
    file: Path,
    report: PartyReport,
    caller: str,
    sql: str | None,
    others: Sequence[str],
    params: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Print what a caller could learn and ask for; ends with 1 if a query would be refused."""
    import msgspec

    from tablepuppet.cli.output import sql_text
    from tablepuppet.party.outlook import outlook

    found = outlook(file, report, caller, None if sql is None else sql_text(sql), others, params)
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
        print_columns(screen, "privacy budgets", sides_of("table caller", "spent budget left"), rows)
    if found.limits:
        rows = [[each.table, each.limit, str(each.used), str(each.most)] for each in found.limits]
        print_columns(screen, f"what {caller} has used of limits", sides_of("table limit", "used most"), rows)
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
        print_columns(screen, "", dict.fromkeys(heads, "left"), rows)
    if query.accepted and not query.reads:
        print_text("Verdict: the query reads nothing of this party.")
    elif query.accepted:
        print_text("Verdict: this party would accept the query; each op is checked again, by the releases above.")
    else:
        unread = query.rule == QueryError.__name__
        print_text(
            f"Verdict: the query {'has a mistake' if unread else f'would be refused by {query.rule}'}: {query.reason}"
        )
        if unread:
            print_text("A table of another party is known here if --with says what columns it has (--help).")


def print_difference(file: Path, as_json: bool) -> None:
    """Print what a party file says otherwise than the party that is being served."""
    import msgspec

    from tablepuppet.party.config import PartyFile, differences, plain_settings
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
    print_text(f"Verdict: {counted(len(found), 'difference')}: SIGHUP makes the party read its file again{restart}.")


def print_jobs(found: Sequence[Listed], as_json: bool) -> None:
    """Print jobs with all that an operator has to know to approve them."""
    import msgspec

    from tablepuppet.party.approval import MOST_TEXT, SHORT, epsilon_text

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
        print_text(f"  purpose: {plain_text(job.purpose) or '(none was given)'}")
        print_text(f"  learner: {job.work}; epsilon: {epsilon_text(job)}")
        for text in job.sql:
            print_text(f"  {plain_text(text, MOST_TEXT)}")  # in one line: callers wrote it


def print_columns(screen: Console, title: str, sides: dict[str, Align], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose columns are aligned to sides."""
    from tablepuppet.runs.fitted_text import WideTable
    from tablepuppet.runs.table_view import TableView

    screen.print(WideTable(TableView(title, sides, rows).rich()))


def sides_of(left: str, right: str = "", more: str = "") -> dict[str, Align]:
    """Columns by the side that they are aligned to."""
    names: list[tuple[str, Align]] = [(left, "left"), (right, "right"), (more, "left")]
    return {name: side for listed, side in names for name in listed.split()}


def counted(number: int, noun: str) -> str:
    """A number and what it counts."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
