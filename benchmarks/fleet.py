"""Run folders to look at the monitor with: many parties, many runs, hours of events, without a fit.

``python -m benchmarks.fleet FOLDER --parties 50 --runs 1000 --hours 5`` writes them, and prints how long the monitor
takes to list them and to read the longest. With ``--live`` the newest run goes on, a round a second, until Ctrl-C.
Names are hostile where a party, a table or an error could be; figures are made up from a seed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tablepuppet.monitor.run_files import Runs
from tablepuppet.runs.event_file import EVENTS, FAILED, EventFile, Outcome
from tablepuppet.runs.events import Event, RoundRecord, TripRecord

HOSTILE = ('"><img src=x onerror=alert(1)>', "a_party_with_a_name_that_has_no_end_" * 3, "бürö 東京", "' OR 1=1 --")
CONSTANT = 0.691
LEARNERS = ("LogisticRegression", "LinearRegression", "MLPClassifier", "GradientBoostingClassifier")


class Script:
    """Writes the events of one run at times of its own; none after ``until``."""

    def __init__(self, folder: Path, parties: Sequence[str], learner: str, begun: float, seed: int, name: str = EVENTS):
        self.parties, self.learner, self.now, self._draw = parties, learner, begun, random.Random(seed)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        facts = {"job": "job.toml", "learner": learner, "label": "late", "settings": {"l2": 0.01, "solver": "auto"}}
        self.file = EventFile(folder / name, facts, begun=begun)
        self._run, self._part, self._trips = f"{seed:08x}", "", 0

    def say(self, kind: str, name: str, message: str, **fields: object) -> None:
        """Write one event."""
        self.file(Event(kind, name, message, fields, self.now, self._run, self._part))  # type: ignore[arg-type]

    def trip(self, op: str, size: int, silent: Sequence[str] = (), scale: float = 0.01) -> None:
        """Ask all parties at once, for about ``scale`` seconds; the first is the slowest."""
        self._trips += 1
        spent = {
            party: scale * self._draw.lognormvariate(0.0, 0.4) * (1 + 2 * (not at))
            for at, party in enumerate(self.parties)
        }
        self.now += max(spent.values())
        for party, seconds in spent.items():
            answered = party not in silent
            trip = TripRecord(
                trip=self._trips, party=party, ops=(op,), bytes_up=size * answered, bytes_down=size // 8,
                released={"PREDICTIONS": size} if answered else {}, seconds=seconds, answered=answered,
            )  # fmt: skip
            self.say("trip", "trip", "", **trip.to_dict())

    def begin(self, rounds: int) -> None:
        """Open, join and prepare, each with a trip."""
        for stage, op in (("open", "open"), ("join", "keys.digests"), ("prepare", "statistics.sums")):
            self.say("progress", stage, stage, done=0, total=len(self.parties))
            self.trip(op, 20_000)
            self.say("progress", stage, stage, done=len(self.parties), total=len(self.parties))
        self.say(
            "info", "fit.begins", "learns", learner=self.learner, solver="lbfgs", rounds=rounds, rows=1_786_477,
            metric="accuracy", constant={"loss": CONSTANT, "metric": 0.55}, epsilon=2.0, settings={"l2": 0.01},
            tables={f"table_{at}": [party] for at, party in enumerate(self.parties)},
            budgets=[{"party": self.parties[0], "table": HOSTILE[0], "whose": "all", "epsilon": 4.0, "left": 2.8}],
        )  # fmt: skip

    def round(self, number: int, limit: int, pause: float, silent: Sequence[str] = ()) -> None:
        """One round: a trip, then what it came to."""
        began = self.now
        self.trip("ridge.direction", 9000, silent, 0.01 + pause / 5)
        self.now += max(0.0, began + pause - self.now)
        loss = 0.45 + (CONSTANT - 0.45) / (1 + number / 12) + self._draw.gauss(0, 0.001)
        record = RoundRecord(
            round=number, seconds=self.now - began, loss=loss, objective=loss + 0.01, metric=1.1 - loss,
            validation_loss=loss + 0.02, validation_metric=1.08 - loss, bytes_up=9000 * len(self.parties),
            bytes_down=1100 * len(self.parties), messages=len(self.parties), epsilon=2.0 * number / limit,
            solver="lbfgs", converged=False, lost=list(silent),
        )  # fmt: skip
        self.say("progress", "fit", f"round {number}", done=number, total=limit, **record.to_dict())

    def fit(self, rounds: int, *, pause: float = 0.0, part: str = "") -> None:
        """One whole fit, which may be of a search."""
        outer = self._run
        self._run, self._part = (f"{outer}.{abs(hash(part)) % 16**8:08x}", part) if part else (outer, "")
        self.begin(max(400, rounds))
        for number in range(1, rounds + 1):
            self.round(number, max(400, rounds), pause)
        self.say(
            "info", "fitted", f"learned in {rounds} rounds", converged=True, stopped="converged", rounds=rounds,
            best_round=rounds, solver="lbfgs", lost=[],
        )  # fmt: skip
        self._run, self._part = outer, ""

    def end(self, outcome: Outcome, message: str = "") -> None:
        """The run has ended."""
        metrics = {"train": {"accuracy": 0.78, "log_loss": 0.47}, "test": {"accuracy": 0.76, "log_loss": 0.5}}
        self.file.end(outcome, message, **({"metrics": metrics} if outcome == "finished" else {}))


def party_names(count: int) -> list[str]:
    """Names of parties, some of them hostile."""
    return [*HOSTILE[: max(0, min(4, count - 3))], *(f"hospital_{at:02}" for at in range(count))][:count]


def write_fleet(folder: Path, parties: int, runs: int, hours: float, seed: int = 0) -> Script:
    """Write ``runs`` runs; the last one goes on, and is returned. The first took ``hours``."""
    names, now = party_names(parties), time.time()
    draw = random.Random(seed)
    long = Script(folder / "hours", names, LEARNERS[0], now - 3600 * hours - 600, seed)
    long.fit(max(20, int(360 * hours)), pause=10.0)
    long.end("finished")
    search = Script(folder / "search", names[:3], "GridSearch of LogisticRegression", now - 500, seed + 1)
    for candidate in range(12):
        for fold in range(5):
            search.fit(8, part=f"l2 = {10.0 ** (candidate - 6):g}, fold {fold}")
    search.fit(30)
    search.end("finished")
    for at in range(runs - 3):
        outcome = ("finished",) * 17 + ("failed", "stopped", "died")
        ends = draw.choice(outcome)
        path = folder / f"2026-{at // 100:02}" / f"run_{at:04}"
        some = names[: 2 + at % 4]
        began, name = now - 3600 * hours * (1 - at / runs), FAILED if ends == "failed" else EVENTS
        script = Script(path, some, LEARNERS[at % 4], began, at + 2, name)
        if ends == "finished":
            script.fit(4 + at % 9)
        else:
            script.begin(400)
            script.round(1, 400, 0.1)
        if ends == "failed":
            script.end(
                "failed", f"party {some[-1]!r} refuses: policy rule min_rows: {HOSTILE[0]} has fewer than 50 rows"
            )
        elif ends == "stopped":
            script.end("stopped")
        elif ends == "finished":
            script.end("finished")
        script.file.close()
    live = Script(folder / "now", names, LEARNERS[0], now - 120, seed + 77)
    live.begin(400)
    for number in range(1, 53):
        live.round(number, 400, 1.5 if number < 50 else 0.0)
    live.now = now
    for party in (names[-1], names[0]):
        live.say("warning", "party.lost", f"party {party!r} is lost: no answer for 30 seconds", party=party)
    live.say(
        "warning", "column.id", f"column {HOSTILE[0]!r} is a different whole number in every row", column=HOSTILE[0]
    )
    return live


def main() -> None:
    """Write runs, and time what the monitor does with them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parties", type=int, default=50)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=5.0)
    parser.add_argument("--live", action="store_true", help="let the newest run go on, a round a second")
    given = parser.parse_args()
    live = write_fleet(given.folder, given.parties, given.runs, given.hours)
    runs = Runs([given.folder])
    for what, work in (
        ("list all runs", runs.look),
        ("list them again", runs.look),
        ("read the longest", lambda: runs.run(next(run.key for run in runs.look() if run.name == "hours"))),
    ):
        began = time.perf_counter()
        work()
        print(f"{what}: {time.perf_counter() - began:.3f} s", flush=True)
    with suppress(KeyboardInterrupt):
        number = 52
        while given.live and number < 400:
            number += 1
            time.sleep(1.0)
            live.now = time.time()
            live.round(number, 400, 0.0, silent=(live.parties[0], live.parties[-1]))
    live.file.close()


if __name__ == "__main__":
    main()
