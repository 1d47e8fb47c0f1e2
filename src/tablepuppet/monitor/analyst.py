"""The analyst's pages: overview, runs, parties, channels, timeline, data. NiceGUI sends what changes to the browser.

Input: run folders, and perhaps a federation file. The pages read files of events; parties are asked what they publish
when the monitor starts and when somebody presses the button, and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tablepuppet.errors import TablePuppetError
from tablepuppet.monitor import charts, overview_page, run_page
from tablepuppet.monitor.markup import Markup, joined, link, tag
from tablepuppet.monitor.overview_page import Asked
from tablepuppet.monitor.pages import Live, framed, new_app, page
from tablepuppet.monitor.run_files import Run, Runs
from tablepuppet.monitor.run_state import Fit, PartyState

if TYPE_CHECKING:
    from fastapi import FastAPI

PAGES = {"": "Overview", "infrastructure": "Infrastructure", "data": "Data"}
SHOWN = 20  # runs whose events are read whole for the pages about parties
SIDE_BY_SIDE = 8
FEW = 12  # tiles of the first screen, and those of parties that do not answer
BARS = 2000  # of a timeline


class Known:
    """What the pages show: the runs, and what parties said."""

    def __init__(self, places: Sequence[Path], federation: Path | None):
        self.runs, self.federation, self.asked = Runs(places), federation, Asked()
        self._at, self._list = -1.0, list[Run]()
        self._heard_at, self._heard = -1.0, dict[str, PartyState]()

    def look(self) -> list[Run]:
        """All runs; files are looked at no more than twice a second, however many pages are open."""
        if time.monotonic() - self._at > 0.5:
            self._list, self._at = self.runs.look(), time.monotonic()
        return self._list

    def newest(self) -> Run | None:
        """The run that the first screen is about: one that goes on, else the last."""
        runs = self.look()
        return self.runs.run(runs[0].key) if runs else None

    def heard(self) -> dict[str, PartyState]:
        """What the newest runs know of parties."""
        if time.monotonic() - self._heard_at > 0.5:
            found = self.look()[:SHOWN]
            for run in found:
                run.look(whole=True)
            self._heard, self._heard_at = overview_page.heard(found), time.monotonic()
        return self._heard

    def ask(self) -> None:
        """Ask the parties of the federation file what they publish."""
        if self.federation is None:
            return
        from tablepuppet.federation import Federation

        places: dict[str, str] = {}
        try:
            federation = Federation.load(self.federation, verbose=False)
            places = dict(federation._places)
            catalog = federation.catalog()
            problems = {name: str(error) for name, error in catalog.refusals.items()}
            self.asked = Asked(places, catalog, problems, time.time())
        except TablePuppetError as error:
            self.asked = Asked(places, None, {"": str(error), **dict.fromkeys(places, str(error))}, time.time())


def analyst_app(places: Sequence[Path], federation: Path | None) -> FastAPI:
    """The application; ConfigError without the extra ``monitor``."""
    ui, app = new_app("TablePuppet monitor")
    known = Known(places, federation)
    threading.Thread(target=known.ask, name="catalog", daemon=True).start()

    def found(key: str) -> Callable[[], Run] | None:
        """The run with a name of addresses, read anew with each call."""
        known.look()
        run = known.runs.run(key)
        if run is None:
            return None

        def looked() -> Run:
            run.look(whole=True)
            return run

        return looked

    @page(ui, "/", "Overview")
    def overview(words: str = "", page: int = 0) -> None:
        with framed(ui, PAGES, "") as live:
            if not words and not page:
                live.html(lambda: _first_screen(known))
                live.chart(
                    lambda: charts.curve(_main(known.newest()), "loss"), "loss by round, beside that of a constant"
                )
                live.html(lambda: _below_the_curve(known))
            ui.html(joined([tag("h2", "Runs"), _search(words)]), sanitize=False)
            live.html(lambda: overview_page.counts(known.look()))
            live.html(lambda: overview_page.runs_table(known.look(), words, page) if known.look() else None)

    @page(ui, "/run/{key}", "Run")
    def one_run(key: str, fit: str = "") -> None:
        with framed(ui, PAGES, None) as live:
            run = found(key)
            _run_parts(live, run, fit) if run else live.html(_gone)

    @page(ui, "/run/{key}/timeline", "Timeline")
    def timeline(key: str) -> None:
        with framed(ui, PAGES, None) as live:
            run = found(key)
            _timeline_parts(live, run) if run else live.html(_gone)

    @page(ui, "/compare", "Side by side")
    def compare() -> None:
        keys = ui.context.client.request.query_params.getlist("run")[:SIDE_BY_SIDE]
        with framed(ui, PAGES, None) as live:
            runs = [run for key in keys if (run := found(key)) is not None]
            live.html(lambda: tag("h1", "Runs side by side"))
            if not runs:
                live.html(
                    lambda: tag("p", "Choose runs in the ", link("overview", "./"), ", then compare them.", cls="empty")
                )
                return
            live.html(lambda: run_page.compared([run() for run in runs]))
            live.chart(
                lambda: charts.beside([(run().name, run().state) for run in runs]), "losses of the runs by round"
            )

    @page(ui, "/infrastructure", "Infrastructure")
    def infrastructure() -> None:
        with framed(ui, PAGES, "infrastructure") as live:
            live.html(lambda: tag("h1", "Parties and their channels"))
            live.html(lambda: overview_page.graph(known.heard(), known.asked.places))
            live.html(
                lambda: overview_page.parties_table(known.heard(), known.asked, overview_page.live_runs(known.look()))
            )
            _ask_button(ui, known)
            live.html(lambda: overview_page.coordinators(known.look()))
            live.html(lambda: overview_page.heavy_hitters(known.heard()))

    def party_page(title: Markup, read: Callable[[], PartyState], live: Live) -> None:
        live.html(lambda: title)
        live.html(lambda: overview_page.party_facts(read(), known.asked))
        live.chart(lambda: charts.over_time(read()), "bytes by minute")
        live.chart(lambda: charts.sizes(read()), "sizes of replies")
        live.html(lambda: overview_page.heavy_hitters({read().name: read()}))

    @page(ui, "/party/{name}", "Party")
    def party(name: str) -> None:
        with framed(ui, PAGES, None) as live:
            party_page(tag("h1", f"Party {name}"), lambda: known.heard().get(name, PartyState(name)), live)

    @page(ui, "/channel/{name}", "Channel")
    def channel(name: str) -> None:
        with framed(ui, PAGES, None) as live:
            title = tag("h1", f"Channel between the coordinator and {name}")
            party_page(title, lambda: known.heard().get(name, PartyState(name)), live)

    @page(ui, "/run/{key}/party/{name}", "Party")
    def party_of_run(key: str, name: str) -> None:
        with framed(ui, PAGES, None) as live:
            run = found(key)
            if run is None:
                live.html(_gone)
                return
            title = tag("h1", f"Party {name} in ", link(run().name, f"run/{key}"))
            party_page(title, lambda: run().state.parties.get(name, PartyState(name)), live)

    @page(ui, "/data", "Data")
    def data() -> None:
        with framed(ui, PAGES, "data") as live:
            live.html(lambda: tag("h1", "What parties publish"))
            live.html(lambda: overview_page.catalog_tables(known.asked))
            _ask_button(ui, known)

    return app


def _main(run: Run | None) -> Fit | None:
    return None if run is None else run.state.main


def _first_screen(known: Known) -> Markup:
    run = known.newest()
    if run is None:
        return overview_page.nothing_here([str(each) for each in known.runs.places])
    return joined([tag("h1", link(run.name, f"run/{run.key}", id_="newest")), run_page.headline(run)])


def _below_the_curve(known: Known) -> Markup | None:
    run = known.newest()
    if run is None:
        return None
    return joined([run_page.tiles(run, FEW), tag("h2", "Warnings"), run_page.warnings(run), run_page.stages(run)])


def _run_parts(live: Live, run: Callable[[], Run], fit: str) -> None:
    """The page of a run, or of one fit of a search."""

    def chosen() -> Fit | None:
        state = run().state
        return state.fits.get(fit) if fit else state.main

    key = run().key
    live.html(lambda: tag("h1", run().name, f": {part.part}" if fit and (part := chosen()) is not None else None))
    if fit:
        live.html(lambda: tag("p", link("back to the whole run", f"run/{key}")))
    else:
        live.html(lambda: run_page.headline(run()))
    live.chart(lambda: charts.curve(chosen(), "loss"), "loss by round, beside that of a constant")
    live.chart(lambda: charts.curve(chosen(), "metric"), "metric by round, beside that of a constant")
    live.html(lambda: run_page.rounds_table(chosen()))
    if fit:
        return
    live.html(lambda: run_page.tiles(run()))
    live.html(lambda: joined([tag("h2", "Warnings"), run_page.warnings(run()), run_page.stages(run())]))
    live.html(lambda: tag("p", link("Timeline of its requests", f"run/{key}/timeline")))
    live.html(lambda: joined(part for _, part in run_page.before_times(run())))
    live.chart(lambda: charts.times(run().state), "seconds of each round by party, and of the coordinator", tall=True)
    live.html(lambda: joined(part for _, part in run_page.after_times(run())))


def _timeline_parts(live: Live, run: Callable[[], Run]) -> None:
    text = (
        "The last requests: a lane per party, a bar per request, as long as it took. Requests of one trip begin "
        "together. Red got no answer. Zoom with the bar below the chart."
    )
    live.html(lambda: joined([tag("h1", "Timeline of ", link(run().name, f"run/{run().key}")), tag("p", text)]))
    live.chart(lambda: charts.timeline(list(run().state.trips)[-BARS:]), "requests by party over time", tall=True)
    live.html(lambda: run_page.ops_table(run().state) or tag("p", "No party was asked yet.", cls="empty"))


def _search(words: str) -> Markup:
    field = tag(
        "input", type="search", name="words", value=words, id_="words", aria_label="words in name, status or learner"
    )
    return tag(
        "form",
        field,
        " ",
        tag("button", "Find", type="submit"),
        " ",
        link("all", "./", id_="all"),
        method="get",
        action="./",
    )


def _gone() -> Markup:
    return tag(
        "p", "This run is not here any more: its folder was moved or removed. ", link("All runs", "./"), cls="empty"
    )


def _ask_button(ui: Any, known: Known) -> None:
    if known.federation is None:
        return

    async def ask() -> None:
        await asyncio.get_running_loop().run_in_executor(None, known.ask)

    ui.button("Ask the parties again", on_click=ask, color=None).props("no-caps unelevated")
