"""``python -m benchmarks.fuzz --minutes 60 --seed 0``: ask parties what a hostile analyst would, and count the answers.

Kinds of sessions take turns. Tables that demand noise, in two neighbouring worlds: nothing but the noisy values may
differ, whichever op is asked, nor the class of time, and nothing that is kept may tell of them over another table. Work
is counted in calls of functions in some sessions, and in seconds in all; a suspect is one only if it is found again,
three times, in the same session run anew. Tables that demand nothing:
there may be no error but those of `errors.py`, no value in one, and no reply or memory without bound. Tables that pool
small groups: no statistic may depend on them, nor on which few rows share values, or lie far from others (planned.py).
Ends with exit code 1 at the first finding, with the seed that repeats it. ``--holes`` takes guards out, one after the
other (holes.py), and ends with exit code 1 if sessions do not find one.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tablepuppet.party.ops import REGISTRY, Op
from tablepuppet.party.policy import ColumnRule, Level, Policy, TableRule, Use
from tablepuppet.party.release import BY_ROW, Release

from . import planned
from .arguments import Maker, Shapes
from .holes import HOLES
from .worlds import (
    CANARY,
    FEATURES,
    FEW,
    LABELS,
    LEAST,
    Query,
    Seen,
    World,
    difference,
    few_cells,
    few_together,
    neighbour,
    pooling,
    prepare,
    prepare_pooled,
    random_table,
    size_of,
    slower,
    strict,
)

MOST_REPLY = 1 << 26  # bytes, of tables of a few rows
REQUESTS = 40  # of a session, after those that begin it
OF_A_HOLE = 30  # sessions that may be needed until an open hole is found
WARM = 10  # sessions of each kind before memory is looked at
ROWS = (0, 1, 2, 5, 5, 8, 8, 8)  # of a table: where there are few, samples of them are mostly empty
SINGLE_ROWS = BY_ROW | Release.IDS | Release.LABELS
COUNTED = 3  # calls of functions are counted in every third session
CONFIRMED = 3  # runs of a session that find the same request slower
OTHER_SHAPES = 5  # requests of each private op that are earlier ones with an array of another shape


Run = Callable[[Path, int, Counter[tuple[str, str]]], None]


class FoundError(Exception):
    """Something that a promise does not hold for."""


class SuspectError(Exception):
    """A request whose time may depend on a cell."""


def run_private(folder: Path, seed: int, counts: Counter[tuple[str, str]], requests: int = REQUESTS) -> None:
    """One session in two neighbouring worlds; `FoundError` if they can be told apart."""
    rng = np.random.default_rng([seed, 1])
    rows, labels = int(rng.choice(ROWS)), bool(rng.random() < 0.3)
    cells = random_table(rng, rows)
    query = Query.drawn(seed, grouped=False)
    both = {"a": cells, "b": neighbour(rng, cells, labels)}
    worlds = [World(folder / name, each, strict(), query=query) for name, each in both.items()]
    for world in worlds:
        world.counts_calls = seed % COUNTED == 0
    _compare_all("open", {}, [world.open() for world in worlds], labels, counts)
    maker, begin = prepare(worlds, rng)
    begin = _known(begin)
    private = [op for op in _ops() if op.private]
    begin += [(op.name, given) for op in private for given in maker.of_each_kind(op)]
    again = [op for op in private for _ in range(OTHER_SHAPES)]
    for number in range(len(begin) + len(again) + requests):
        if number < len(begin):
            name, given = begin[number]
        elif number < len(begin) + len(again):
            op = again[number - len(begin)]
            name, given = op.name, maker.again(op)
        else:
            op = private[int(rng.integers(len(private)))] if rng.random() < 0.8 else _any(rng)
            name, given = op.name, maker.arguments(op)
        seen = [world.ask(name, given, number) for world in worlds]
        maker.note(REGISTRY[name], given, seen[0].error is None)
        _compare_all(name, given, seen, labels, counts)


def run_open(folder: Path, seed: int, counts: Counter[tuple[str, str]], requests: int = REQUESTS) -> None:
    """One session with a table that demands nothing; `FoundError` if an op crashes, or answers without bound."""
    rng = np.random.default_rng([seed, 2])
    cells = _mild(random_table(rng, int(rng.choice([0, 1, 8]))))
    world = World(folder / "c", cells, Policy(), query=Query.drawn(seed))
    opened = world.open()
    if opened.error is not None:
        counts["open", opened.error[0]] += 1
        return  # an expression fails on a row, which is told where nothing is demanded
    maker, begin = prepare([world], rng)
    begin = _known(begin)
    for number in range(len(begin) + requests):
        op = REGISTRY[begin[number][0]] if number < len(begin) else _any(rng)
        given = begin[number][1] if number < len(begin) else maker.arguments(op)
        seen = world.ask(op.name, given, number)
        maker.note(op, given, seen.error is None)
        _check(op.name, given, seen, counts)


def run_pooled(folder: Path, seed: int, counts: Counter[tuple[str, str]], requests: int = REQUESTS) -> None:
    """One session with a table that pools small groups, and one with the same table without the cells of such groups;
    `FoundError` if a statistic of columns tells which it is.
    """
    rng = np.random.default_rng([seed, 3])
    policy, outputs = pooling(rng), {name: name for name in (*FEATURES, *LABELS)}
    query = Query.drawn(seed)
    worlds = [World(folder / str(n), cells, policy, outputs, query) for n, cells in enumerate(few_cells(rng))]
    rows = worlds[0].rows
    families = {"z": "number", "t": "text", "d": "date"}
    maker = Maker(rng, Shapes(rows, list(outputs), ["x", "z", "d"], ["t"], list(LABELS), families))
    few = np.repeat(np.arange(FEW, dtype=np.int32), LEAST)  # many rows to count, few different ones
    views: list[tuple[np.ndarray | None, int]] = [(None, rows), (few, len(few))]
    chosen, maker.shapes.rows = views[int(rng.random() < 0.3)]
    used = {"view": "v", "chosen": chosen, "counts": rng.integers(1, 4, maker.shapes.rows)}
    for world in worlds:
        assert world.open().error is None
        assert world.ask("rows.use", used).error is None
    begin = _known(prepare_pooled(worlds[0], maker, rng))
    statistics = [op for op in _ops() if op.columns and op.private is not True and op.name != "encode.build"]
    others = [op for op in _ops() if not op.columns and op.private is not True]
    for number in range(len(begin) + requests):
        chosen_of = statistics if rng.random() < 0.5 else others
        op = REGISTRY[begin[number][0]] if number < len(begin) else chosen_of[int(rng.integers(len(chosen_of)))]
        given = begin[number][1] if number < len(begin) else maker.arguments(op)
        if op.is_private(given) or (op.releases & SINGLE_ROWS and str(given.get("encoding")) == "e1"):
            continue  # noise hides one row, not a few; rows to predict are as they are, each by itself
        seen = [world.ask(op.name, given, number) for world in worlds]
        maker.note(op, given, seen[0].error is None)
        _compare(op.name, given, seen, False, counts)


def run_together(folder: Path, seed: int, counts: Counter[tuple[str, str]]) -> None:
    """Crosstabs and cells of two tables that differ only in which few rows are together; `FoundError` if they tell."""
    rng = np.random.default_rng([seed, 4])
    rules = {name: ColumnRule(Use.FEATURE, Level.AGGREGATE) for name in (*FEATURES, *LABELS)}
    policy = Policy(others=replace(pooling(rng).others or TableRule(), columns={**rules, "id": ColumnRule(Use.KEY)}))
    outputs = {name: name for name in rules}
    query = Query.drawn(seed)
    worlds = [World(folder / str(n), cells, policy, outputs, query) for n, cells in enumerate(few_together(rng))]
    none = np.zeros((0, 16), np.uint8)
    pair = {"columns": ["t", "y"], "families": ["text", "text"], "blinding": "b", "most": 9}
    bucket = {"columns": ["x"], "places": np.zeros(1, np.int32), "depth": 0, "prefixes": np.zeros(1, np.uint64)}
    for world in worlds:
        assert world.open().error is None
        used = {"view": "v", "chosen": None, "counts": np.ones(world.rows, np.int64)}
        assert world.ask("rows.use", used).error is None
    crosstab = pair | {"first_pool": none, "second_pool": none}
    for op, given in (("statistics.crosstab", crosstab), ("statistics.buckets", bucket)):
        _compare(op, given, [world.ask(op, {"view": "v", **given}) for world in worlds], False, counts)


def _known(asked: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Without requests of ops that tests leave out."""
    return [each for each in asked if each[0] in REGISTRY]


def _any(rng: np.random.Generator) -> Any:
    return _ops()[int(rng.integers(len(REGISTRY)))]


def _ops() -> list[Op]:
    """All ops in the order of their names, whatever was imported first."""
    return [REGISTRY[name] for name in sorted(REGISTRY)]


def _mild(cells: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """No number that an expression of the session fails on."""
    return cells | {"z": [None if cell is None else abs(cell) % 2 for cell in cells["z"]]}


def _compare(
    op: str, given: Mapping[str, Any], seen: list[Seen], labels: bool, counts: Counter[tuple[str, str]]
) -> None:
    for each in seen:
        _check(op, given, each, counts)
    found = difference(op, seen, labels)
    if found:
        raise FoundError(f"op {op!r}: neighbours differ in {found}; arguments {given!r:.2000}")


def _compare_all(
    op: str, given: Mapping[str, Any], seen: list[Seen], labels: bool, counts: Counter[tuple[str, str]]
) -> None:
    """Also the class of time, where noise is demanded."""
    _compare(op, given, seen, labels, counts)
    found = slower(seen)
    if found:
        raise SuspectError(f"op {op!r}: neighbours differ in {found}; arguments {given!r:.2000}")


def _check(op: str, given: Mapping[str, Any], seen: Seen, counts: Counter[tuple[str, str]]) -> None:
    counts[op, "answered" if seen.error is None else seen.error[0]] += 1
    if seen.error is not None and (CANARY in seen.error[1] or len(seen.error[1]) > 10_000):
        raise FoundError(f"op {op!r}: an error quotes a value; arguments {given!r:.2000}")
    if seen.failed or (seen.charges and seen.error is not None and "do not fit" in seen.error[1]):
        raise FoundError(
            f"op {op!r}: it fails after it was charged, {seen.failed or seen.error}; arguments {given!r:.2000}"
        )
    if size_of(seen.reply) > MOST_REPLY:
        raise FoundError(f"op {op!r}: a reply of {size_of(seen.reply):,} bytes; arguments {given!r:.2000}")


def run_planned(folder: Path, seed: int, counts: Counter[tuple[str, str]]) -> None:
    """Planned requests for what few rows have together; see planned.py."""
    planned.run_planned(folder, seed, counts, _compare)


def run_kept(folder: Path, seed: int, counts: Counter[tuple[str, str]]) -> None:
    """Planned requests for what was kept of a table that demands noise; see planned.py."""
    planned.run_kept(folder, seed, counts, _compare_all)


KINDS = (run_private, run_open, run_pooled, run_together, run_planned, run_kept)  # of sessions


def fuzz(
    seed: int, sessions: int | None = None, seconds: float | None = None, kinds: Sequence[Run] = KINDS
) -> Counter[tuple[str, str]]:
    """Sessions of each kind until there were so many, or time is over; how often each op ended how."""
    counts: Counter[tuple[str, str]] = Counter()
    start, number = time.monotonic(), 0
    while (sessions is None or number < sessions) and (seconds is None or time.monotonic() - start < seconds):
        for run in kinds:
            try:
                _run_confirmed(run, seed + number, counts)
            except Exception as error:
                raise FoundError(f"{run.__name__} of seed {seed + number}: {error}") from error
        number += 1
    counts["sessions", "run"] = len(kinds) * number
    return counts


def _run_confirmed(run: Run, seed: int, counts: Counter[tuple[str, str]]) -> None:
    """A session, and the same once more wherever a request was slower; an error if it is so each time."""
    suspects: Counter[str] = Counter()
    while True:
        with tempfile.TemporaryDirectory(prefix="tablepuppet-fuzz-") as folder:
            try:
                return run(Path(folder), seed, counts)
            except SuspectError as error:
                suspects[str(error)] += 1
                if suspects[str(error)] == CONFIRMED:
                    raise


def find(name: str, seed: int, sessions: int = OF_A_HOLE) -> str:
    """What sessions find while a hole is open; empty if they find nothing."""
    hole = HOLES[name]
    with hole.opened():
        try:
            fuzz(seed, sessions=sessions, kinds=[kind for kind in KINDS if kind.__name__ == hole.kind])
        except FoundError as error:
            return str(error)
    return ""


def find_holes(seed: int) -> None:
    """Open every hole; `FoundError` if one is not found."""
    for name in HOLES:
        found = find(name, seed)
        if not found:
            raise FoundError(f"nothing in {OF_A_HOLE} sessions of {HOLES[name].kind}, though open: {name}")
        print(f"{name:50} {found:.100}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--holes", action="store_true", help="take guards out, and find what they guard")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if asked.holes:
        find_holes(asked.seed)
        return
    fuzz(asked.seed, sessions=WARM)  # what is loaded when it is first used is no growth
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = fuzz(asked.seed, seconds=60 * asked.minutes)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for (op, how), often in sorted(counts.items()):
        print(f"{op:28} {how:16} {often:>12,}")
    print(f"seed {asked.seed}, {sum(counts.values()):,} requests, nothing found; memory grew by {grown:,.0f} MB")


if __name__ == "__main__":
    try:
        main()
    except FoundError as error:
        sys.exit(f"found: {error}")
