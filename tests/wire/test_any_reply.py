"""Whatever a party answers: the coordinator refuses it by an error that names the party, or has a result.

Every op that is registered is asked by one of the uses in liars.py, or the first test fails; so a new op is in here
without being listed. ``TABLEPUPPET_LIES`` says how many lies about each op are told all the way to a model;
`python -m tests.wire.test_any_reply` tells all of them.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tablepuppet.operators.client
import tablepuppet.session
import tablepuppet.store.parts
from tablepuppet.errors import TablePuppetError
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.returns import Resting, Wrong, check_reply
from tests.wire.liars import USES, Lie, World, lies_about

LIES = int(os.environ.get("TABLEPUPPET_LIES", "1"))
CHECKED_BY = (tablepuppet.operators.client, tablepuppet.session, tablepuppet.store.parts)
NOTHING = ("no party publishes a table", "no joined rows")  # what is so if a party says that it has nothing
BLAMELESS = ("party ", "parties ")  # an error names somebody


@dataclass(frozen=True)
class Asked:
    """A reply as it was checked, in a use."""

    use: str
    arguments: tuple[Any, ...]  # of check_reply

    @property
    def op(self) -> str:
        return str(self.arguments[2])

    @property
    def party(self) -> str:
        return str(self.arguments[0])

    def refusal_of(self, lie: Lie) -> str | None:
        """What the check says of the lie; None if it is believed. Anything but our errors is raised."""
        party, where, op, returns, reply, asked = self.arguments
        try:
            check_reply(party, where, op, returns, lie(reply), asked)
        except TablePuppetError as error:
            return str(error)
        return None


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="tablepuppet-liars-") as folder:
        yield World(Path(folder))


def replies_of(world: World, use: str) -> list[Asked]:
    """Every op's first reply in a use, as it is checked."""
    found: dict[str, Asked] = {}

    def recording(party: str, where: str, op: str, returns: Any, reply: Any, asked: Any) -> None:
        check_reply(party, where, op, returns, reply, asked)
        if reply:
            found.setdefault(op, Asked(use, (party, where, op, returns, reply, asked)))

    patches = [mock.patch.object(module, "check_reply", recording) for module in CHECKED_BY]
    with patches[0], patches[1], patches[2]:
        world.use(use, {})
    return list(found.values())


@pytest.fixture(scope="module")
def asked(world: World) -> list[Asked]:
    """Of every op, a reply in the first use that asks it."""
    found: dict[str, Asked] = {}
    for use in USES:
        found = {each.op: each for each in replies_of(world, use)} | found
    return list(found.values())


def test_every_op_is_asked(world: World, asked: list[Asked]) -> None:
    """A new op that answers with something must have a use in liars.py, or its replies would not be tried."""
    silent = {name for name, op in REGISTRY.items() if op.returns == {}}
    assert {each.op for each in asked} == REGISTRY.keys() - silent


def test_the_coordinator_knows_what_it_asks(asked: list[Asked]) -> None:
    """Of predictions it knows rows and outputs, of parameters the shape: no length is left to the party."""
    for each in asked:
        _, _, _, returns, reply, known = each.arguments
        for name in set(returns) & {"outputs", "theta"}:
            kind = returns[name].value if isinstance(returns[name], Resting) else returns[name]
            for axis, length in enumerate(reply[name].shape):
                longer = np.insert(reply[name], length, 0.0, axis)
                with pytest.raises(Wrong):
                    known.check_shape(longer, kind.lengths, {})
            with pytest.raises(Wrong):
                known.check_shape(reply[name][..., None, None], kind.lengths, {})


def test_a_lie_is_refused_or_believed(asked: list[Asked]) -> None:
    """No reply fails in any other way than by an error that names the party, whatever it holds; most are."""
    outcomes: Counter[bool] = Counter()
    for each in asked:
        for how, lie in lies_about(each.arguments[4], np.random.default_rng(0)):
            refusal = each.refusal_of(lie)
            outcomes[refusal is None] += 1
            assert refusal is None or (f"party {each.party!r}" in refusal and refusal.isprintable()), (each.op, how)
    assert outcomes[False] > 0.7 * outcomes.total() > 2000


def believed(asked: list[Asked]) -> dict[str, list[tuple[Asked, str, Lie]]]:
    """Lies that the check does not see, by op."""
    found: dict[str, list[tuple[Asked, str, Lie]]] = {}
    for each in asked:
        for how, lie in lies_about(each.arguments[4], np.random.default_rng(0)):
            if each.refusal_of(lie) is None:
                found.setdefault(each.op, []).append((each, how, lie))
    return found


def outcome_of(world: World, use: str, lies: Mapping[tuple[str, str], Lie]) -> str:
    """How a use ends: "result", or the text of an error of ours. Any other error is raised."""
    try:
        world.use(use, lies)
    except TablePuppetError as error:
        return str(error)
    return "result"


def test_what_is_believed_has_a_result_or_an_error(world: World, asked: list[Asked]) -> None:
    """A lie that could be true leads to a model, or to an error that names somebody; and to no endless work."""
    chosen = random.Random(7)
    for op, lies in sorted(believed(asked).items()):
        for each, how, lie in chosen.sample(lies, min(LIES, len(lies))):
            outcome = outcome_of(world, each.use, {(each.party, op): lie})
            assert outcome == "result" or any(word in outcome for word in BLAMELESS), (each.use, op, how, outcome)


@pytest.mark.parametrize("verb", ["verb describe", "verb open"])
def test_verbs(world: World, verb: str) -> None:
    """The same of catalogs and of rows that were read."""
    _, part = world.use("dates", {})[verb]
    lies = list(lies_about(part, np.random.default_rng(0)))
    for how, lie in random.Random(7).sample(lies, min(20 * LIES, len(lies))):
        outcome = outcome_of(world, "dates", {("store", verb): lie})
        assert outcome == "result" or any(words in outcome for words in ("'store'", *NOTHING)), (how, outcome)


def main() -> None:
    """Tell all lies; what ends in any other way is printed."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        wanted = sys.argv[1:] or list(USES)
        counts: Counter[str] = Counter()
        told: set[tuple[str, str]] = set()
        for use in wanted:
            for op, lies in believed(replies_of(world, use)).items():
                for each, how, lie in lies:
                    if (op, how) in told:
                        continue
                    told.add((op, how))
                    try:
                        outcome = outcome_of(world, each.use, {(each.party, op): lie})
                    except BaseException as error:
                        outcome = f"RAW {type(error).__name__}: {error}"
                        spot = error.__traceback__
                        while spot is not None and spot.tb_next is not None:
                            spot = spot.tb_next
                        if spot is not None:
                            outcome += f" at {spot.tb_frame.f_code.co_filename}:{spot.tb_lineno}"
                    named = f"{each.party!r}" in outcome
                    kind = (
                        "result" if outcome == "result" else "RAW" if "RAW" in outcome else "named" if named else "un"
                    )
                    counts[kind] += 1
                    if kind not in ("result", "named"):
                        print(kind, "|", use, "|", op, "|", how, "|", outcome[:250], flush=True)
            print(use, dict(counts), flush=True)


if __name__ == "__main__":
    main()
