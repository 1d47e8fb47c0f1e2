"""What the monitor reads of runs, apart from any page: live, finished, failed and dead ones, many, and hostile ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import HOSTILE as FLEET_HOSTILE
from benchmarks.fleet import write_fleet
from tablepuppet.monitor import charts, overview_page, run_page
from tablepuppet.monitor.markup import joined
from tablepuppet.monitor.overview_page import Asked
from tablepuppet.monitor.run_files import Run, Runs
from tablepuppet.monitor.sentences import summary, what_to_do
from tablepuppet.runs.event_file import EVENTS, FAILED, EventFile
from tests.monitor.writing import HOSTILE, begin, learn


def only(folder: Path) -> Run:
    """The one run of a folder, all its events read."""
    runs = Runs([folder])
    [listed] = runs.look()
    found = runs.run(listed.key)
    assert found is not None
    return found


def whole_text(run: Run) -> str:
    """All parts of a run's page."""
    parts = [part for read in (run_page.before_times, run_page.after_times) for _, part in read(run)]
    return joined([run_page.headline(run), run_page.tiles(run), run_page.warnings(run), run_page.stages(run), *parts])


def test_a_live_run_in_one_sentence(tmp_path: Path) -> None:
    """Round, loss beside the constant, parties and epsilon; what comes later is read as it comes."""
    file, events = begin(tmp_path / "late")
    learn(events, ["a", "b", "c", "d"], 52)
    runs = Runs([tmp_path])
    run = runs.run(runs.look()[0].key)
    assert run is not None
    said = (
        "late: round 52 of at most 400, learning; loss 0.5000, constant 0.6910; 4 parties answering; epsilon 1.2 of 2"
    )
    assert summary(run) == (said, False)
    assert (run.status, what_to_do(run)) == ("running", "")
    events.emit("warning", "party.silent", "party 'b' is silent; waiting for it", party="b")
    run.look(whole=True)
    assert (run.status, summary(run).needs_you) == ("waiting", True)
    assert summary(run).text.startswith("late: waiting for b at round 52")
    events.emit("warning", "party.lost", "party 'b' is lost", party="b")
    run.look(whole=True)
    assert "3 parties answering, b lost" in summary(run).text
    file.close()
    run.look(whole=True)
    assert (run.status, summary(run).needs_you) == ("died", True)


@pytest.mark.parametrize(
    ("outcome", "name", "said"),
    [
        ("finished", EVENTS, "late: finished, done after 3 rounds; loss 0.5000, constant 0.6910; epsilon 1.2 of 2"),
        ("failed", FAILED, "late: failed: refused by rule epsilon; loss 0.5000"),
        ("stopped", EVENTS, "late: stopped at round 3; loss 0.5000"),
    ],
)
def test_runs_that_have_ended(tmp_path: Path, outcome: Any, name: str, said: str) -> None:
    """Each says how it ended; only what needs somebody is marked, and says what to do."""
    file, events = begin(tmp_path / "late", name)
    learn(events, ["a"], 3)
    file.end(outcome, "refused by rule epsilon\nmore" if outcome == "failed" else "")
    run = only(tmp_path)
    assert summary(run).text.startswith(said)
    assert summary(run).needs_you == bool(what_to_do(run)) == (outcome != "finished")


def test_a_run_folder_without_events(tmp_path: Path) -> None:
    """A run of an earlier version has its curve and its metrics."""
    (tmp_path / "old").mkdir()
    for name, content in (
        ("history.json", [{"round": 1, "loss": 0.5, "metric": 0.7, "seconds": 0.1}]),
        ("metrics.json", {"test": {"accuracy": 0.75}}),
        ("run.json", {}),
    ):
        (tmp_path / "old" / name).write_text(json.dumps(content))
    run = only(tmp_path)
    assert summary(run).text == "old: finished, done after 1 round; loss 0.5000"
    assert "accuracy 0.7500" in whole_text(run)
    (tmp_path / "old" / "history.json").write_text("no JSON")
    assert "cannot be read" in summary(only(tmp_path)).text


def test_many_runs(tmp_path: Path) -> None:
    """A thousand runs are listed by pages, found by words, and only their ends are read."""
    for number in range(1000):
        (tmp_path / f"r{number:04}").mkdir()
        file = EventFile(tmp_path / f"r{number:04}" / EVENTS, {"learner": "LinearRegression"})
        file.end("failed" if number == 7 else "finished", "its policy")
    runs = Runs([tmp_path])
    found = runs.look()
    assert len(found) == 1000
    assert not any(run.whole for run in found)
    assert "1,000 runs, page 2 of 20" in overview_page.runs_table(found, page=1)
    shown = overview_page.runs_table(found, words="failed linear")
    assert "1 run<" in shown
    assert "r0007" in shown
    assert "No run has" in overview_page.runs_table(found, words="<b>")
    assert "<b>" not in overview_page.runs_table(found, words="<b>")


def test_fifty_parties_for_hours(tmp_path: Path) -> None:
    """Parts of pages stay as small as a screen: tiles, lanes, cells; each party is in the graph, what is lost first."""
    live = write_fleet(tmp_path, parties=50, runs=12, hours=0.3)
    run = next(run for run in Runs([tmp_path]).look() if run.name == "now")
    run.look(whole=True)
    live.file.close()
    assert len(run.state.parties) == 50
    text, needs = summary(run)
    assert needs
    assert text.endswith(f"48 parties answering, {FLEET_HOSTILE[0]}, hospital_45 lost; epsilon 0.26 of 2")
    tiles = run_page.tiles(run, 12)
    assert tiles.count("<li") == 12
    assert tiles.index("hospital_45") < tiles.index("hospital_00")
    assert "and 38 more parties" in tiles
    graph = overview_page.graph(overview_page.heard([run]), {})
    assert graph.count("<circle") == 51
    assert len(set(re.findall(r'<text x="\S+" y="\S+"', graph))) == 51
    times = charts.times(run.state)
    assert len(times["series"][0]["data"]) <= charts.CELLS
    assert charts.height(times) > 51 * 14
    assert "<img" not in whole_text(run) + tiles + graph


def test_long_files_are_read_at_both_ends(tmp_path: Path) -> None:
    """An overview of a long run knows how it began, its last round and how it ended."""
    file, events = begin(tmp_path / "late")
    learn(events, ["a", "b"], 900)
    file.end("finished")
    assert (tmp_path / "late" / EVENTS).stat().st_size > 3 * 65_536
    [run] = Runs([tmp_path]).look()
    assert not run.whole
    assert summary(run).text.startswith("late: finished")
    assert run.state.facts["learner"] == "LogisticRegression"
    assert run.state.fits[next(iter(run.state.fits))].rounds[-1]["round"] == 900


def test_texts_of_others_are_texts(tmp_path: Path) -> None:
    """Names and errors that parties wrote stay text, in every part of every page; addresses hold them quoted."""
    file, events = begin(tmp_path / "late")
    learn(events, [HOSTILE, "b"], 3)
    events.emit("warning", "party.lost", f"{HOSTILE} is lost", party=HOSTILE)
    file.end("failed", HOSTILE)
    run = only(tmp_path)
    parties = overview_page.heard([run])
    asked = Asked({HOSTILE: HOSTILE}, None, {HOSTILE: HOSTILE, "": HOSTILE}, 1.0)
    texts = [
        whole_text(run),
        overview_page.graph(parties, asked.places),
        overview_page.parties_table(parties, asked, {}),
        overview_page.party_facts(parties[HOSTILE], asked),
        overview_page.catalog_tables(asked),
        overview_page.heavy_hitters(parties),
    ]
    for text in texts:
        assert "&lt;img" in text
        assert "<img" not in text
    assert charts.timeline(list(run.state.trips))["yAxis"]["data"][0] == HOSTILE
    assert charts.times(run.state)["series"][0]["data"]


def test_a_search_is_strips_of_folds(tmp_path: Path) -> None:
    """A strip for each candidate with a cell for each fold, which leads to its fit; the run has its own curve."""
    file, events = begin(tmp_path / "search")
    for l2 in ("0.1", "1"):
        for fold in range(3):
            learn(events, ["a"], 2, part=(f"l2 = {l2}", f"fold {fold}"))
    learn(events, ["a"], 4)
    file.end("finished")
    run = only(tmp_path)
    strips = str(run_page.strips(run))
    assert strips.count('class="cell"') == 6
    assert ">l2 = 0.1<" in strips
    assert run.state.main is not None
    assert len(run.state.main.rounds) == 4
    fit = run.state.parts[0]
    assert f"?fit={fit.run}" in strips
    assert charts.curve(fit, "loss")["series"][-1]["name"] == "constant"
