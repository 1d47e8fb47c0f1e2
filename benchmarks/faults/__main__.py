"""``python -m benchmarks.faults --pairs 200 --seed 25``: break runs twice, and look at how they end.

Three parties are real processes with small disks, and `tablepuppet train` is another. Each case has a first fault and
one that strikes while the first is recovered from. It ends well if the run, resumed as its messages say, tells the same
metrics as one without faults, or if it ends in one clear error. A silent difference, a traceback, a hang, or a budget
of which less is spent than before is a finding: then the exit code is 1. Cases go on until both faults have struck in
as many as ``--pairs`` says. Results are written to ``--output``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tablepuppet.party.ledger import FILE, Ledger
from tests import warm
from tests.learn.materialised import ALL, JOIN, shop
from tests.service.processes import Services

from .machine import COMMAND, NOTHING, Disk, Machine, copied, damage

SQL = f"SELECT {ALL}, o.returned {JOIN}"
OPS = (
    "open",
    "keys.blind",
    "rows.use",
    "ridge.advance",
    "parts.store",
)  # in each phase of a run, one that is asked for
STATE = ("*.journal", "*.rows", "*.releases", "ledger.sqlite", "used.json", "row_secret", "*.part")
RECORD = ("*.replies", "sessions", "run.json", "job.toml")
REQUESTS = 30  # that a run asks of its parties, about
LONGEST = 150.0  # seconds of a command
LATE = 1000  # the exit code of one that took longer
RESUMES = 4
TIMEOUT = 10.0  # seconds that a run waits for a party
DATABASES = {"store0": "duckdb", "supplier0": "duckdb"}
PRIVATE = "\n[learner.privacy]\nfeature_epsilon = 8.0\n"


@dataclass
class Case:
    """A pair of faults, and how the run ended that they struck."""

    number: int
    first: str
    second: str
    party: str
    private: bool = False
    plan: list[str] = field(default_factory=list)
    restart: list[str] = field(default_factory=list)
    coordinator: str = ""  # before which request it is struck, and how
    before_resume: str = ""
    struck: list[str] = field(default_factory=list)
    ending: str = ""
    said: str = ""
    seconds: float = 0.0

    @property
    def is_struck_twice(self) -> bool:
        """Whether both faults struck: the second may come too late, or find no file to damage."""
        return sum(not each.endswith(NOTHING) for each in self.struck) > 1


def cases(draw: random.Random, parties: Sequence[str]) -> Iterator[Case]:
    """Pairs without end: every kind of first fault with every kind of second one, at drawn moments."""
    seconds = ["kill", "disk", "memory", "stop", "lock", "disk at restart", "kill of the coordinator"]
    seconds += [f"flip:{kind}" for kind in STATE] + ["cut:*.journal", "cut:ledger.sqlite", "cut:used.json"]
    at_party = [(first, second) for first in ("kill", "disk", "memory") for second in seconds]
    at_coordinator = [
        (f"{first} of the coordinator", second)
        for first in ("kill", "disk")
        for second in [*(f"flip:{kind}" for kind in RECORD), "cut:*.replies", "kill", "disk", "lock", "flip:*.journal"]
    ]
    number = 0
    while True:
        pairs = [*at_party, *at_coordinator]
        draw.shuffle(pairs)
        for first, second in pairs:
            case = Case(number, first, second, draw.choice(parties), private=draw.random() < 0.25)
            number += 1
            op = draw.choice(OPS) if not case.private else "any"
            moment, again = draw.choice(("written", "answered")), draw.choice(("any", "rows.use", "keys.blind"))
            if first.endswith("coordinator"):
                case.coordinator = f"{draw.randrange(2, REQUESTS)} {first.split()[0]}"
            else:
                case.plan.append(f"{moment} {op} {first}")
            dies = first == "kill"
            if second == "kill of the coordinator":
                case.coordinator = f"{draw.randrange(2, REQUESTS)} kill"
            elif ":" in second and first.endswith("coordinator") and second.split(":")[1] in RECORD:
                case.before_resume = second
            elif second == "disk at restart" or ":" in second or (second == "lock" and dies):
                if not dies:  # files are damaged while nobody has them
                    case.plan.append("any any kill")
                case.restart.append(second.removesuffix(" at restart"))
            else:
                when = (
                    f"{'replay' if dies else 'any'} {again}" if not first.endswith("coordinator") else f"{moment} {op}"
                )
                case.plan.append(f"{when} {second}")
            yield case


class Bench:
    """The parties, what they hold before a case, and what a run without faults tells."""

    def __init__(self, folder: Path, seed: random.Random):
        self.folder = folder
        limits = "[limits]\nsessions_per_caller = 1000\nsessions = 1000"  # of runs that were killed, some stay open
        budget = "budget = {epsilon = 1e6, require_dp = false}"
        tables = shop(1, orders=60)
        self.services = Services(folder, tables, limits, budget, COMMAND, DATABASES)
        self.machine = Machine(self.services, seed)
        self.runs = Disk(folder / "runs")
        for party in self.services.parties.values():
            party.start()
        self.machine.begin()
        self.expected = self._told(self._command("train", self._job("whole", private=False))[1])
        private = self._command("train", self._job("private", private=True))
        assert private[0] == 0, private[2]
        self.machine.end()
        self.pristine = {}
        for name, party in self.services.parties.items():
            party.end()
            self.pristine[name] = folder / f"{name}-pristine"
            self.pristine[name].mkdir()
            copied(party.state, self.pristine[name])
        self.spent = {name: self._spent(name) for name in self.services.parties}

    def close(self) -> None:
        """End all of it."""
        self.machine.close()
        self.runs.end()

    def _job(self, output: str, *, private: bool) -> str:
        federation = self.services.write_federation(wire="float64", timeout=TIMEOUT)
        path = self.folder / f"{output}.toml"
        path.write_text(
            f'federation = "{federation.name}"\nsql = """{SQL}"""\nlabel = "returned"\noutput = "runs/{output}"\n'
            f'[learner]\nkind = "LogisticRegression"\nrounds = 4\n{PRIVATE if private else ""}[split]\ntest = 0.2\n'
        )
        return str(path)

    def _command(self, *arguments: str, **env: str) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        process = warm.start(
            [*COMMAND, *arguments, "--json"], env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wants = Path(env.get("STRUCK_WANTS", self.folder / "nobody.wants"))
        until = time.monotonic() + LONGEST
        while process.poll() is None and time.monotonic() < until:
            if wants.exists():
                self.runs.fill(process.pid)
                self.machine.struck.append("disk coordinator")
                wants.unlink()
            time.sleep(0.02)
        late = process.poll() is None
        process.kill()
        out, errors = process.communicate(30.0)
        if not late and process.wait() == -signal.SIGKILL:
            self.machine.struck.append("end coordinator")
        return (LATE if late else process.wait()), out, errors

    @staticmethod
    def _told(out: str) -> Any:
        return json.loads(out)["metrics"]

    def _spent(self, name: str) -> float:
        table = {"store0": "orders", "supplier0": "items", "bank0": "cards"}[name]
        spent = Ledger(self.services.parties[name].state / FILE, name).spent(table)
        return float(sum(spent.gaussian) + spent.pure)

    def run(self, case: Case) -> None:
        """Let both faults strike a run, and say how it ended."""
        began = time.perf_counter()
        for name, party in self.services.parties.items():
            for suffix in (".plan", ".wants"):
                party.file.with_suffix(suffix).unlink(missing_ok=True)
            if name == case.party or not party.is_running():
                party.kill()
                copied(self.pristine[name], party.state)
                party.start()
        self.services.parties[case.party].file.with_suffix(".plan").write_text("\n".join(case.plan))
        self.machine.restart = {case.party: list(case.restart)} if case.restart else {}
        self.machine.struck, self.machine.problems = case.struck, {}
        logs = {name: (self.folder / f"{name}.log").stat().st_size for name in self.services.parties}
        self.machine.begin()
        try:
            self._run(case)
        finally:
            self.machine.end()
            shutil.rmtree(self.folder / "runs" / f"case{case.number}", ignore_errors=True)  # or its disk fills up
        self._judge_parties(case, logs)
        case.seconds = round(time.perf_counter() - began, 1)

    def _run(self, case: Case) -> None:
        output = f"case{case.number}"
        folder = self.folder / "runs" / output
        struck = {"STRUCK": case.coordinator, "STRUCK_WANTS": str(self.folder / "coordinator.wants")}
        code, out, said = self._command(
            "train", self._job(output, private=case.private), **(struck if case.coordinator else {})
        )
        for _ in range(RESUMES):
            self.runs.empty(None)
            if code in (0, LATE) or not (folder / "record" / "run.json").exists() or not self.machine.settle():
                break
            if case.before_resume:
                how, kind = case.before_resume.split(":")
                found = sorted((folder / "record").glob(kind))
                case.struck.append(damage(how, self.machine.draw.choice(found) if found else None, self.machine.draw))
                case.before_resume = ""
            code, out, said = self._command("resume", str(folder))
        case.said = " ".join(said.split())[-400:]
        if "Traceback" in said:
            case.ending = "TRACEBACK"
        elif code == LATE:
            case.ending = "HANG"
        elif code:
            case.ending = "error" if said.strip() else "NO WORD"
        else:
            case.ending = "same" if case.private or _is_same(self._told(out), self.expected) else "DIFFERENT"

    def _judge_parties(self, case: Case, logs: dict[str, int]) -> None:
        for name in self.services.parties:
            said = (self.folder / f"{name}.log").read_text(errors="replace")[logs[name] :]
            if "Traceback" in said:
                case.ending, case.said = "TRACEBACK", said[-2000:]
            if name in self.machine.problems:
                case.said += f" | {name}: {' '.join(self.machine.problems[name].split())[-300:]}"
                continue
            try:
                spent = self._spent(name)
            except Exception as error:  # damaged, and said so, or never looked at
                case.said += f" | {name}: {str(error)[-200:]}"
                continue
            if spent < self.spent[name] * (1 - 1e-9):
                case.ending = "BUDGET"


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_is_same(found[name], expected[name]) for name in expected)
    return (
        bool(np.allclose(found, expected, rtol=1e-9, atol=1e-12)) if isinstance(expected, float) else found == expected
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the exit code."""
    reads = argparse.ArgumentParser(description=__doc__)
    reads.add_argument("--pairs", type=int, default=200, help="cases in which both faults struck")
    reads.add_argument("--seed", type=int, default=25)
    reads.add_argument("--only", type=int, nargs="*", help="numbers of cases to repeat")
    reads.add_argument("--output", type=Path)
    given = reads.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # parties end, and disks are unmounted
    draw = random.Random(given.seed)
    done: list[Case] = []
    with suppress(SystemExit), tempfile.TemporaryDirectory(prefix="faults-") as folder:
        bench = Bench(Path(folder), random.Random(given.seed))
        try:
            for case in cases(draw, sorted(bench.services.parties)):
                if sum(each.is_struck_twice for each in done) >= given.pairs or (
                    given.only and case.number > max(given.only)
                ):
                    break
                if given.only and case.number not in given.only:
                    continue
                bench.machine.draw.seed(f"{given.seed} {case.number}")
                bench.run(case)
                done.append(case)
                print(
                    f"{case.number:4} {case.ending:9} {case.seconds:6.1f} s  {case.first} + {case.second} at "
                    f"{case.party}{' with noise' if case.private else ''}: "
                    f"{'; '.join(case.struck)}{'' if case.ending == 'same' else ' -> ' + case.said}",
                    flush=True,
                )
        finally:
            bench.close()
    twice = [case for case in done if case.is_struck_twice]
    found = Counter(case.ending for case in done)
    endings = {f"{case.ending}" for case in done}
    summary = {
        "seed": given.seed, "cases": len(done), "pairs": len(twice),
        "endings": {ending: sum(case.ending == ending for case in twice) for ending in sorted(endings)},
    }  # fmt: skip
    print(json.dumps(summary))
    if given.output is not None:
        given.output.write_text(json.dumps(summary | {"cases": [asdict(case) for case in done]}, indent=1))
    return int(any(ending.isupper() for ending in found))


if __name__ == "__main__":
    sys.exit(main())
