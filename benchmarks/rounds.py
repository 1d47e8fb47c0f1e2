"""Rounds over the wire by the code of two checkouts, a few of each in turn.

Run with ``python -m benchmarks.rounds FOLDER``: FOLDER is a checkout of the code before. A round takes milliseconds. On
a shared machine the same code may take half as long again a minute later, which `benchmarks.pairs` would take for a
difference. So both sides are started first, each with its parties, and asked for twenty rounds at a time: those of
`benchmarks.wire`, each of its own checkout. Writes ``benchmarks/results/rounds.json``: the median over turns of the
ratio of their medians. Above 1 the code of this checkout is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("bare", "ours", "ours with state_dir")
TURNS = 25
ROUNDS = {1: 20, 10_000: 20, 1_000_000: 5}  # of a turn, by numbers each way


def answer() -> None:
    """One side: start parties, then measure as many rounds as each line of standard input asks for."""
    from benchmarks import mapping, parties, wire  # of the checkout that runs

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        urls = wire.write_small(folder / "small")
        work = {"bare": stack.enter_context(wire.bare_round(folder / "bare"))}
        for side in SIDES[1:]:
            ports = stack.enter_context(parties.serving(folder / side, urls, state=side != "ours"))
            work[side] = wire.our_round(wire.federation(folder / side, ports, wire="float64"))
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            side, size, rounds = json.loads(line)
            work[side](size)  # the first one wakes the parties, or connects to them
            times = [mapping.seconds(partial(work[side], size)) for _ in range(rounds)]
            print(json.dumps(median(times)), flush=True)


@contextmanager
def started(checkout: Path) -> Iterator[subprocess.Popen[str]]:
    """A side over the code of a checkout, ready to be asked."""
    environment = dict(os.environ) | {"PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
    command = [sys.executable, __file__, "--answer"]
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as side:
        read(side)
        yield side


def read(side: subprocess.Popen[str]) -> Any:
    """The next line of a side."""
    assert side.stdout is not None
    line = side.stdout.readline()
    if not line:
        raise SystemExit("a side has ended; its error is above")
    return json.loads(line)


def ask(side: subprocess.Popen[str], what: str, size: int) -> float:
    """The median seconds of a turn."""
    assert side.stdin is not None
    side.stdin.write(json.dumps([what, size, ROUNDS[size]]) + "\n")
    side.stdin.flush()
    return float(read(side))


def compare(before: Path, turns: int) -> dict[str, Any]:
    """The median ratio of turns by size and kind of round, and milliseconds of both."""
    found = {}
    with started(before) as theirs, started(ROOT) as ours:
        for size in ROUNDS:
            for what in SIDES:
                pairs = []
                for turn in range(turns):  # who begins alternates
                    first, second = (theirs, ours) if turn % 2 else (ours, theirs)
                    took = {side: ask(side, what, size) for side in (first, second)}
                    pairs.append((took[theirs], took[ours]))
                ratio = median(mine / other for other, mine in pairs)
                line = {"ratio": ratio, "before, ms": 1000 * median(other for other, _ in pairs)}
                found[f"{size}: {what}"] = line | {"now, ms": 1000 * median(mine for _, mine in pairs)}
                print(f"{ratio:6.2f}  {size}: {what}", flush=True)
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the code to compare with")
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    found = compare(given.before.resolve(), given.turns)
    (ROOT / "benchmarks" / "results" / "rounds.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    answer() if sys.argv[1:] == ["--answer"] else main()
