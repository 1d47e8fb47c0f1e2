"""The operator's page of one party: who asked what, what left, what was refused by which rule, budgets, sessions.

Input: a party file; from it the audit log, the ledger, the party's own socket and metrics, all of this machine. It is a
program of its own: the analyst's pages read none of this, and this page reads no run.
"""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tablepuppet.errors import ConfigError, TablePuppetError
from tablepuppet.monitor.audit_state import AuditState, Tally, csv_lines, used_up
from tablepuppet.monitor.markup import Markup, joined, link, table, tag
from tablepuppet.monitor.pages import framed, new_app, page
from tablepuppet.party.config import PartyFile
from tablepuppet.party.report import first_charges, spent
from tablepuppet.runs.figures import number, readable, seconds
from tablepuppet.wire.control import ask

if TYPE_CHECKING:
    from fastapi import FastAPI

PAGES = {"": "Requests", "party": "Budgets and sessions"}
SHOWN = 100  # lines and rows of tables
MOST = 5_000_000  # bytes of a page of metrics
GAUGES = {
    "tablepuppet_memory_bytes": "memory of sessions", "process_resident_memory_bytes": "memory of the process",
    "process_cpu_seconds_total": "processor time", "tablepuppet_journal_bytes": "journal",
    "tablepuppet_connections": "connections", "tablepuppet_database_up": "database answers",
    "process_open_fds": "open files",
}  # fmt: skip


def sentence(state: AuditState, name: str, caller: str, day: str) -> Markup:
    """Who asked, how much left, and whether something was refused; refusals of today are for the operator."""
    sums = state.sums(caller, day)
    if not sums:
        where = f" of {caller}" if caller else ""
        return tag(
            "h1", f"{name}: no request{where} is in the audit log{f' since {day}' if day else ''}.", cls="sentence"
        )
    whole = Tally()
    for each in sums.values():
        whole.merge(each)
    callers = f"{len(sums)} caller{'' if len(sums) == 1 else 's'}"
    refused = f"{whole.refused:,} refused" if whole.refused else "none refused"
    text = f"{name}: {whole.requests:,} requests of {callers}, {refused}; {readable(whole.bytes)} went out"
    return tag("h1", text, cls="sentence", id_="sentence")


def callers_table(state: AuditState, caller: str, day: str) -> Markup | None:
    """Requests by caller."""
    sums = sorted(state.sums(caller, day).items(), key=lambda each: -each[1].requests)
    if not sums and not (caller or day):
        return tag(
            "p", "Requests show up here as callers make them; tablepuppet party check says who may.", cls="empty"
        )
    if not sums:
        return tag(
            "p", "Choose another caller or an earlier day, or see ", link("all requests", "./"), ".", cls="empty"
        )
    rows = [
        [
            link(who or "(nobody)", f"./?{urlencode({'caller': who, 'day': day})}", id_=f"caller-{who}"),
            each.last[:19].replace("T", " "),
            f"{each.requests:,}",
            tag("span", f"{each.refused:,}", cls="strong" if each.refused else None),
            readable(each.bytes),
        ]
        for who, each in sums[:SHOWN]
    ]
    return table("Who asked", ["caller", "last (UTC)", "requests", "refused", "went out"], rows, 3)


def releases_table(state: AuditState, caller: str, day: str) -> Markup | None:
    """What left: by kind, table and caller."""
    rows = [
        (release, tables, who, times, size)
        for who, each in state.sums(caller, day).items()
        for (release, tables), (times, size) in each.releases.items()
    ]
    rows.sort(key=lambda row: -row[4])
    shown = [
        [release.lower().replace("_", " "), tables, who, f"{times:,}", readable(size)]
        for release, tables, who, times, size in rows[:SHOWN]
    ]
    heads = ["release", "tables", "caller", "requests", "bytes"]
    caption = "What left, by kind, table and caller; a reply of several kinds counts for each"
    return tag("section", tag("h2", "Releases"), table(caption, heads, shown, 2)) if shown else None


def refusals(state: AuditState, caller: str, day: str) -> Markup | None:
    """What was refused, by which rule, and the newest of it."""
    rules: dict[tuple[str, str], int] = {}
    for who, each in state.sums(caller, day).items():
        for rule, times in each.rules.items():
            rules[rule, who] = rules.get((rule, who), 0) + times
    if not rules and not state.sums(caller, day):
        return None
    if not rules:
        return tag("section", tag("h2", "Refused"), tag("p", "Nothing was refused.", cls="empty"))
    rows = [
        [rule, who, f"{times:,}"] for (rule, who), times in sorted(rules.items(), key=lambda each: -each[1])[:SHOWN]
    ]
    newest = [each for _, each in zip(range(20), state.lines(caller, day, refused=True), strict=False)]
    return tag(
        "section",
        tag("h2", "Refused"),
        table("By rule and caller", ["rule", "caller", "times"], rows, 1),
        table("The newest refusals", HEADS, [_cells(each) for each in newest]),
    )


HEADS = ["time (UTC)", "caller", "what", "tables", "rows", "bytes", "releases", "outcome", "purpose"]


def _cells(line: Any) -> list[object]:
    cells: list[object] = list(line.cells)
    if line.outcome in ("denied", "failed"):
        cells[7] = tag("span", cells[7], cls="strong")
    return cells


def newest_lines(state: AuditState, caller: str, day: str) -> Markup | None:
    """The newest lines of the log."""
    lines = [each for _, each in zip(range(SHOWN), state.lines(caller, day), strict=False)]
    if not lines:
        return None
    text = urlencode({"caller": caller, "day": day})
    export = tag("p", link("Export these requests as CSV", f"audit.csv?{text}", id_="export"))
    return tag("section", tag("h2", "Requests"), export, table("The newest requests", HEADS, map(_cells, lines)))


def choose(state: AuditState, caller: str, day: str) -> Markup:
    """Choose a caller and a first day."""
    options = [
        tag("option", name or "all callers", value=name, selected="selected" if name == caller else None)
        for name in ("", *state.callers[:500])
    ]
    return tag(
        "form",
        tag("label", "caller ", tag("select", options, name="caller", id_="choose-caller")),
        " ",
        tag("label", "from day ", tag("input", type="date", name="day", value=day, id_="choose-day")),
        " ",
        tag("button", "Show", type="submit"),
        " ",
        link("all", "./", id_="all"),
        method="get",
        action="./",
    )


def budgets(path: Path, settings: PartyFile) -> Markup:
    """What was spent, what is left, and until when at this pace."""
    try:
        accounts, since = spent(path), first_charges(settings)
    except ConfigError as error:
        return tag("section", tag("h2", "Privacy budgets"), tag("p", str(error), cls="empty"))
    now, rows = datetime.now(UTC), list[list[object]]()
    for each in accounts:
        left = "unbounded" if each.left is None else number(each.left)
        began = since.get(each.table.lower(), "")
        until = "" if each.left is None or not began else used_up(each.left, each.spent, began, now)
        few = each.left is not None and each.budget is not None and each.left < 0.1 * each.budget
        rows.append(
            [
                each.table,
                each.caller or "(everybody)",
                until,
                number(each.spent),
                "unbounded" if each.budget is None else number(each.budget),
                tag("span", left, cls="needs" if few else None),
            ]
        )
    heads = ["table", "caller", "used up at this pace", "spent", "budget", "left"]
    return tag("section", tag("h2", "Privacy budgets"), table("Epsilon by table and caller", heads, rows, 3))


def sessions(settings: PartyFile) -> Markup:
    """The open sessions of the party, if it is being served."""
    if not settings.state_dir:
        text = "Set state_dir in the party file to see its open sessions here."
        return tag("section", tag("h2", "Sessions"), tag("p", text, cls="empty"))
    try:
        found = ask(settings)
    except TablePuppetError as error:
        return tag("section", tag("h2", "Sessions"), tag("p", str(error), cls="needs"))
    rows = [
        [each.session[:12], each.caller, ", ".join(each.tables), f"{each.requests:,}", seconds(each.silent)]
        for each in found
    ]
    heads = ["session", "caller", "tables", "requests", "silent"]
    body = table(f"{len(rows)} open", heads, rows, 2) if rows else tag("p", "No session is open.", cls="empty")
    return tag("section", tag("h2", "Sessions"), body)


def resources(settings: PartyFile) -> Markup:
    """Memory, files and limits, from the party's metrics, and room on its disk."""
    rows = [[name, value] for name, value in gauges(settings).items()]
    folder = Path(settings.state_dir) if settings.state_dir else Path(settings.audit_log).parent
    try:
        usage = shutil.disk_usage(folder)
        rows.append([f"free on the disk of {folder}", f"{readable(usage.free)} of {readable(usage.total)}"])
        rows.append(["audit log", readable(Path(settings.audit_log).stat().st_size)])
    except OSError as error:
        rows.append(["disk", error.strerror or "cannot be read"])
    note = None
    if settings.metrics_address is None:
        note = tag(
            "p", "Set metrics = 9464 in the party file to see its memory, connections and limits here.", cls="empty"
        )
    return tag("section", tag("h2", "Memory and disk"), note, table("Now", ["what", "figure"], rows))


def gauges(settings: PartyFile) -> dict[str, str]:
    """What the party's own metrics say now; empty if it has none, or does not answer."""
    from prometheus_client.parser import text_string_to_metric_families

    if settings.metrics_address is None:
        return {}
    host, port = settings.metrics_address
    try:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        with urllib.request.urlopen(address, timeout=3) as reply:
            text = reply.read(MOST).decode("utf-8", "replace")
        families = list(text_string_to_metric_families(text))
    except (OSError, ValueError) as error:
        return {"metrics": f"do not answer ({type(error).__name__})"}
    found: dict[str, str] = {}
    for family in families:
        for each in family.samples:
            if each.name in GAUGES:
                labels = f" ({', '.join(filter(None, each.labels.values()))})" if any(each.labels.values()) else ""
                found[GAUGES[each.name] + labels] = _figure(each.name, each.value)
            elif each.name == "tablepuppet_limit_reached_total" and each.value:
                found[f"limit {each.labels.get('limit', '')} ran out"] = f"{each.value:,.0f} times"
    return found


def _figure(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return readable(value)
    if name.endswith("seconds_total"):
        return seconds(value)
    return ("yes" if value else "no") if name.endswith("_up") else number(value)


def operator_app(path: Path) -> FastAPI:
    """The application; ConfigError if the party file is wrong, or without the extra ``monitor``."""
    settings = PartyFile.load(path)
    from starlette.responses import StreamingResponse

    state = AuditState(Path(settings.audit_log))
    ui, app = new_app(
        f"Party {settings.name}", {"/audit.csv": lambda query: _export(StreamingResponse, settings, query)}
    )
    title = f"Party {settings.name}"

    def looked() -> AuditState:
        state.look()
        return state

    @page(ui, "/", title)
    def requests(caller: str = "", day: str = "") -> None:
        with framed(ui, PAGES, "", title) as live:
            live.html(lambda: sentence(looked(), settings.name, caller, day))
            ui.html(choose(looked(), caller, day), sanitize=False)
            parts: list[Callable[[AuditState, str, str], Markup | None]]
            parts = [callers_table, refusals, releases_table, newest_lines]
            for part in parts:
                live.html(lambda part=part: part(state, caller, day))  # type: ignore[misc]

    @page(ui, "/party", title)
    def party() -> None:
        with framed(ui, PAGES, "party", title) as live:
            live.html(lambda: tag("h1", f"{settings.name} at {settings.listen}"))
            live.slow_html(lambda: budgets(path, settings))
            live.slow_html(lambda: joined([sessions(settings), resources(settings)]))

    return app


def _export(response: Any, settings: PartyFile, query: Mapping[str, str]) -> Any:
    """The requests of a caller from a day on, as a file."""
    lines = csv_lines(Path(settings.audit_log), query.get("caller", ""), query.get("day", ""))
    headers = {"Content-Disposition": f'attachment; filename="{settings.name}-audit.csv"'}
    return response(lines, media_type="text/csv; charset=utf-8", headers=headers)
