"""A fault while a party recovers from another: the same answers in the end, or an error; never other answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet.learn.party_ops  # noqa: F401 - registers the ops that are asked for
from tablepuppet.errors import PartyError, TablePuppetError
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.ops import REGISTRY
from tablepuppet.party.readings import Readings
from tablepuppet.party.request import Request, Step
from tablepuppet.wire.protocol import BusyError
from tests.wire.hostile import Attacker, write_bank

ROWS = 60
Y = np.sin(np.arange(ROWS)) / ROWS


class Analyst(Attacker):
    """Fits a linear model step by step."""

    def ask(self, number: int, *steps: Step) -> Any:
        """A request with this number; asked again, it has the same."""
        return self.send(Request("run", "s", {}, steps, number))

    def begin(self) -> None:
        """Requests 0 to 2: the model has begun."""
        self.open("s", self.scan("SELECT amount FROM cards", keys=()))
        rows = {"view": "v", "chosen": np.arange(ROWS, dtype=np.int32), "counts": np.ones(ROWS, np.int32)}
        given = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
        self.ask(
            1, Step("rows.use", "cards", rows), Step("encode.build", "cards", {"view": "v", "encoding": "e", **given})
        )
        self.ask(2, Step("ridge.start", "cards", {**MODEL, "spec": Linear(1), "joined_rows": ROWS}))

    def turn(self, number: int) -> Any:
        """Two steps: one changes the model, the other depends on it."""
        mix = {"view": "v", "model": "m", "mix": np.array([0.5]), "memory": 5}
        turned = Step("ridge.direction", "cards", {**MODEL, "rows": Y, "l2": 1e-3, "curvature": 1.0})
        moved = () if number == 3 else (Step("ridge.advance", "cards", mix),)
        return self.ask(number, *moved, turned)[-1]["outputs"]


MODEL = {"view": "v", "encoding": "e", "model": "m"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The answers of a session without a fault."""
    analyst = Analyst(write_bank(tmp_path_factory.mktemp("bank")))
    analyst.begin()
    return [analyst.turn(number) for number in (3, 4, 5)]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception, int], None]:
    """Lets an op fail once, when it is asked the n-th time from now on."""

    def fail(op: str, error: Exception, time: int) -> None:
        left, found = [time], REGISTRY[op]

        def function(*values: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise error
            return found.function(*values, **named)

        broken = type(found)(function, found.name, asked=found.asked, releases=found.releases, returns=found.returns)
        broken.__dict__["parameters"] = found.parameters
        monkeypatch.setitem(REGISTRY, op, broken)

    return fail


NO_MEMORY, NO_DISK = MemoryError(), PartyError("no space left", limit="disk")


@pytest.mark.parametrize("error", [NO_MEMORY, NO_DISK, PartyError("too much", limit="memory_bytes"), RuntimeError()])
@pytest.mark.parametrize("op", ["encode.build", "ridge.start", "ridge.direction"])
def test_a_failure_while_a_session_comes_back(
    tmp_path: Path, undisturbed: list[Any], failing: Callable[..., None], op: str, error: Exception
) -> None:
    """It is not taken for an answer: the caller is told to try again, and then all is as it was."""
    analyst = Analyst(write_bank(tmp_path))
    analyst.begin()
    found = [analyst.turn(3), analyst.turn(4)]
    analyst.restart()
    failing(op, error, 1)
    with pytest.raises(BusyError, match="cannot bring this session back now"):
        analyst.turn(5)
    found.append(analyst.turn(5))
    np.testing.assert_array_equal(found, undisturbed)


def test_a_database_that_is_away_while_a_session_comes_back(
    tmp_path: Path, undisturbed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is kept, and the session comes back with its database."""
    analyst = Analyst(write_bank(tmp_path))
    analyst.begin()
    found = [analyst.turn(3)]
    analyst.restart()
    with monkeypatch.context() as patch:

        def locked(*_: Any) -> Any:
            raise PartyError("party 'bank': its database is locked by a writer")

        patch.setattr(Readings, "_snapshots", locked)
        with pytest.raises(BusyError, match="locked by a writer"):
            analyst.turn(4)
    found += [analyst.turn(4), analyst.turn(5)]
    np.testing.assert_array_equal(found, undisturbed)


@pytest.mark.parametrize("error", [NO_MEMORY, NO_DISK])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_machine_had_no_room_for_is_asked_again(
    tmp_path: Path, undisturbed: list[Any], failing: Callable[..., None], error: Exception, restarts: bool
) -> None:
    """A refusal for want of disk or memory is not final, and the steps before it are not taken twice."""
    analyst = Analyst(write_bank(tmp_path))
    analyst.begin()
    found = [analyst.turn(3)]
    failing("ridge.direction", error, 1)
    with pytest.raises(BusyError, match="try again"):
        analyst.turn(4)
    if restarts:
        analyst.restart()
    found += [analyst.turn(4), analyst.turn(5)]
    np.testing.assert_array_equal(found, undisturbed)


@pytest.mark.parametrize("place", [0.02, 0.11, 0.27, 0.41, 0.53, 0.68, 0.77, 0.86, 0.93, 0.999])
def test_a_flipped_bit_in_a_journal_is_never_an_answer(tmp_path: Path, undisturbed: list[Any], place: float) -> None:
    """The error names the file; or nothing of it was needed, and the answer is right."""
    analyst = Analyst(write_bank(tmp_path))
    analyst.begin()
    analyst.turn(3)
    analyst.turn(4)
    [journal] = (tmp_path / "sessions").glob("*/*.journal")
    content = bytearray(journal.read_bytes())
    content[int(place * len(content))] ^= 0b100
    journal.write_bytes(content)
    analyst.restart()
    with pytest.raises(TablePuppetError) as refused:
        analyst.turn(5)
    assert f"the file {journal.name!r} is damaged" in str(refused.value)
