"""The parts of pages about all runs as HTML: the list of runs, the parties, the graph of channels, the catalog.

Input: runs, and the catalog of a federation that was asked for it. Output: `Markup`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from tablepuppet.monitor.markup import Markup, ago, joined, link, table, tag
from tablepuppet.monitor.run_files import Run, process_figures
from tablepuppet.monitor.run_state import PartyState
from tablepuppet.monitor.sentences import last_metric, progress, to_go
from tablepuppet.runs.figures import readable, seconds, shown_time

if TYPE_CHECKING:
    from tablepuppet.sql.catalog import Catalog

PAGE = 50  # runs of a page
WIDTH, LETTERS = 640, 20  # of the graph, and of a name in it
NEEDS_YOU = ("waiting", "failed", "stopped", "died")


@dataclass
class Asked:
    """What parties of a federation said when they were asked what they publish."""

    places: Mapping[str, str] = field(default_factory=dict)  # where each is, in words
    catalog: Catalog | None = None
    problems: Mapping[str, str] = field(default_factory=dict)  # by party; "" for all
    at: float = 0.0


def runs_table(runs: Sequence[Run], words: str = "", page: int = 0) -> Markup:
    """A page of runs; those with these words in name, status or learner."""
    wanted = [run for run in runs if _matches(run, words)]
    if not wanted:
        text = f"No run has {words!r} in its name or status." if words else "No runs are here yet."
        return tag("p", text, cls="empty")
    pages = -(-len(wanted) // PAGE)
    page = min(max(page, 0), pages - 1)
    rows: list[list[object]] = []
    for run in wanted[page * PAGE : (page + 1) * PAGE]:
        status = "resumable" if run.resumable else run.status
        rows.append(
            [
                joined(
                    [
                        tag("input", type="checkbox", name="run", value=run.key, id_=f"pick-{run.key}",
                            aria_label=f"compare {run.name}"),
                        " ",
                        link(run.name, f"run/{run.key}", id_=f"run-{run.key}"),
                    ]
                ),
                tag("span", status, cls="status needs" if run.status in NEEDS_YOU else "status"),
                str(run.state.facts.get("learner") or ""),
                progress(run),
                to_go(run),
                last_metric(run),
                ago(run.state.begun),
            ]
        )  # fmt: skip
    more = f"{len(wanted):,} run{'' if len(wanted) == 1 else 's'}" + (
        f", page {page + 1} of {pages}" if pages > 1 else ""
    )
    heads = ["run", "status", "learner", "progress", "to go", "metric", "began"]
    links = [
        link(text, f"?words={quote(words)}&page={at}", id_=f"page-{text}")
        for text, at in (("newer", page - 1), ("older", page + 1))
        if 0 <= at < pages
    ]
    nav = tag("p", [joined([each, " "]) for each in links]) if links else None
    button = tag("button", "Compare the chosen runs", type="submit", id_="compare")
    return tag("form", table(more, heads, rows), nav, button, action="compare", method="get")


def _matches(run: Run, words: str) -> bool:
    text = (
        f"{run.name} {run.status} {'resumable' if run.resumable else ''} {run.state.facts.get('learner', '')}".lower()
    )
    return all(word in text for word in words.lower().split())


def counts(runs: Sequence[Run]) -> Markup:
    """How many runs there are of each status."""
    found: dict[str, int] = {}
    for run in runs:
        name = "resumable" if run.resumable else run.status
        found[name] = found.get(name, 0) + 1
    if not found:
        return Markup("")
    links = [
        link(f"{count:,} {name}", f"?words={quote(name)}", id_=f"only-{name}") for name, count in sorted(found.items())
    ]
    return tag(
        "p", [joined([each, " · " if at < len(links) - 1 else ""]) for at, each in enumerate(links)], cls="counts"
    )


def nothing_here(places: Sequence[str]) -> Markup:
    """What to do where there is no run."""
    return tag(
        "section",
        tag("h1", "No runs are here yet.", cls="sentence"),
        tag("p", f"Looked in: {', '.join(places)}. Runs show up by themselves when they begin:"),
        tag("pre", "tablepuppet train job.toml"),
        tag("p", "or in a program of yours:"),
        tag("pre", 'fed = tp.Federation(..., callbacks=[tp.callbacks.Keep("runs/mine")])'),
    )


def heard(runs: Sequence[Run]) -> dict[str, PartyState]:
    """What runs know of each party: the newest status, all trips and bytes."""
    found: dict[str, PartyState] = {}
    for run in runs:
        for name, party in run.state.parties.items():
            total = found.setdefault(name, PartyState(name))
            if party.heard >= total.heard:
                live = run.status in ("running", "waiting")
                total.status = party.status if live or party.status == "lost" or not party.trips else "answering"
                total.heard, total.last_seconds = party.heard, party.last_seconds
            total.trips, total.lost = total.trips + party.trips, total.lost + party.lost
            total.seconds += party.seconds
            total.bytes_up, total.bytes_down = total.bytes_up + party.bytes_up, total.bytes_down + party.bytes_down
            for op, (count, spent) in party.ops.items():
                before = total.ops.get(op, (0, 0.0))
                total.ops[op] = (before[0] + count, before[1] + spent)
            for release, size in party.released.items():
                total.released[release] = total.released.get(release, 0) + size
            for power, count in party.sizes.items():
                total.sizes[power] = total.sizes.get(power, 0) + count
            for minute, size in party.over_time.items():
                total.over_time[minute] = total.over_time.get(minute, 0) + size
    return found


def parties_table(parties: Mapping[str, PartyState], asked: Asked, live: Mapping[str, int]) -> Markup:
    """Parties: whether they answer, when they were last heard, how many runs use them now."""
    names = sorted({*parties, *asked.places})
    if not names:
        return tag("p", "No party is known yet: give the federation file to the monitor, or begin a run.", cls="empty")
    rows: list[list[object]] = []
    for name in names:
        party, problem = parties.get(name, PartyState(name)), asked.problems.get(name, "")
        answered = asked.catalog is not None and not problem and name in asked.places
        status = "silent" if problem else ("answering" if answered and asked.at > party.heard else party.status)
        bad = status in ("silent", "lost")
        rows.append(
            [
                link(name, f"party/{quote(name, safe='')}", id_=f"party-{name}"),
                tag("span", status, cls="status needs" if bad else "status"),
                asked.places.get(name, ""),
                ago(max(party.heard, asked.at if answered else 0.0)),
                str(live.get(name, 0)),
                f"{party.trips:,}",
                readable(party.bytes_up),
                readable(party.bytes_down),
                problem,
            ]
        )
    heads = ["party", "status", "where", "last heard", "live runs", "trips", "up", "down", "what it said"]
    return table(f"{len(names)} parties", heads, rows)


def graph(parties: Mapping[str, PartyState], places: Mapping[str, str]) -> Markup:
    """The coordinator between its parties; a channel is as thick as its traffic, and leads to its page."""
    names = sorted({*parties, *places})
    if not names:
        return Markup("")
    lines = -(-len(names) // 2)
    gap = 44 if lines <= 6 else 24
    height, middle = max(120, gap * lines), WIDTH / 2
    most = max([party.bytes_up + party.bytes_down for party in parties.values()] + [1])
    edges, nodes = [], []
    for at, name in enumerate(names):
        is_left, beside = at < lines, lines if at < lines else len(names) - lines
        x, y = (170 if is_left else WIDTH - 170), height / 2 + gap * (at % lines - (beside - 1) / 2)
        party = parties.get(name, PartyState(name))
        bad, named = "bad" if party.status in ("silent", "lost") else None, quote(name, safe="")
        width = 1 + 0.3 * gap * math.sqrt((party.bytes_up + party.bytes_down) / most)
        text = f"{name}: {readable(party.bytes_up)} up, {readable(party.bytes_down)} down, {party.trips:,} trips"
        line = tag("path", d=f"M{middle:g} {height / 2:g}L{x:g} {y:g}", stroke_width=f"{width:.1f}", cls=bad)
        label = f"channel to {name}"
        edge = joined([tag("title", text), line])
        edges.append(link(edge, f"channel/{named}", aria_label=label, id_=f"edge-{name}"))
        dot = tag("circle", cx=f"{x:g}", cy=f"{y:g}", r=gap / 4, cls=bad)
        shown = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        anchor, to = ("end", x - 16) if is_left else ("start", x + 16)
        written = tag("text", shown, x=f"{to:g}", y=f"{y + 4.5:g}", text_anchor=anchor)
        node = joined([tag("title", name), dot, written])
        nodes.append(link(node, f"party/{named}", aria_label=f"party {name}", id_=f"node-{name}"))
    centre = [
        tag("circle", cx=f"{middle:g}", cy=f"{height / 2:g}", r=14, cls="coordinator"),
        tag("text", "coordinator", x=f"{middle:g}", y=f"{height / 2 + 32:g}", text_anchor="middle"),
    ]
    return tag(
        "svg", edges, nodes, centre, viewBox=f"0 -12 {WIDTH} {height + 40}", role="group",
        aria_label="the coordinator and its parties", cls="graph",
    )  # fmt: skip


def catalog_tables(asked: Asked) -> Markup:
    """The catalog: tables and columns with types and what they may be used for."""
    if asked.catalog is None:
        text = (
            asked.problems.get("")
            or "Give the federation file to the monitor to see what is published: tablepuppet monitor federation.toml"
        )
        return tag("p", text, cls="empty")
    found = []
    for shown in sorted(asked.catalog.tables(), key=lambda each: each.name):
        name = shown.name
        rows = []
        for column, kind in shown.columns.items():
            public = all(column in shard.public for shard in shown.shards)
            noise = any(shard.require_dp for shard in shown.shards)
            level = "public" if public else "with noise only" if noise else "as the policy of its party says"
            bounds = next((shard.bounds[column] for shard in shown.shards if column in shard.bounds), None)
            rows.append([column, kind, level, "" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}"])
        owners = ", ".join(f"{shard.party} ({shard.counted} rows)" for shard in shown.shards)
        found.append(
            tag(
                "section",
                tag("h2", name),
                tag("p", owners),
                table(f"Columns of {name}", ["column", "type", "level", "bounds"], rows),
            )
        )
    return joined(found) if found else tag("p", "Its parties publish no table.", cls="empty")


def live_runs(runs: Sequence[Run]) -> dict[str, int]:
    """How many runs use each party now."""
    found: dict[str, int] = {}
    for run in runs:
        if run.status in ("running", "waiting"):
            for name in run.state.parties:
                found[name] = found.get(name, 0) + 1
    return found


def party_facts(party: PartyState, asked: Asked) -> Markup:
    """One party in figures."""
    rows = [
        ["status", party.status],
        ["where", asked.places.get(party.name, "not known")],
        ["trips", f"{party.trips:,}, {party.lost:,} without an answer"],
        ["seconds from requests to answers", seconds(party.seconds)],
        ["bytes up", readable(party.bytes_up)],
        ["bytes down", readable(party.bytes_down)],
        ["last heard", ago(party.heard)],
    ]
    rows += [
        [f"released: {release.lower().replace('|', ', ').replace('_', ' ')}", readable(size)]
        for release, size in sorted(party.released.items())
    ]
    problem = asked.problems.get(party.name)
    said = tag("pre", problem, cls="warning needs") if problem else None
    return joined([said, table(party.name, ["what", "figure"], rows)])


def heavy_hitters(parties: Mapping[str, PartyState]) -> Markup:
    """Ops by time, the longest first."""
    rows = [(op, name, count, spent) for name, each in parties.items() for op, (count, spent) in each.ops.items()]
    rows.sort(key=lambda row: -row[3])
    if not rows:
        return tag("p", "No op has run yet.", cls="empty")
    shown = [
        [op, name, f"{count:,}", shown_time(spent), shown_time(spent / max(1, count))]
        for op, name, count, spent in rows[:40]
    ]
    return tag(
        "section",
        tag("h2", "Ops by time"),
        table("Several ops of one request count for the last", ["op", "party", "times", "time", "each"], shown, 3),
    )


def coordinators(runs: Sequence[Run]) -> Markup:
    """The processes that learn now, with their memory and processor time."""
    rows = []
    for run in runs:
        if run.status in ("running", "waiting") and isinstance(run.state.facts.get("pid"), int):
            memory, processor = process_figures(run.state.facts["pid"])
            rows.append(
                [link(run.name, f"run/{run.key}", id_=f"at-{run.key}"), str(run.state.facts["pid"]), memory, processor]
            )
    if not rows:
        return tag("section", tag("h2", "Coordinators"), tag("p", "No run goes on now.", cls="empty"))
    heads = ["run", "process", "memory", "processor time"]
    return tag("section", tag("h2", "Coordinators"), table("Processes of this machine that learn now", heads, rows, 2))
