"""A hostile analyst under `require_dp`: nothing but noisy values depends on cells, whatever is refused or restarted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tablepuppet.learn.party_ops  # noqa: F401 - registers the ops that are asked for
from tablepuppet.errors import PartyError, TablePuppetError
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.arguments import GramNoise, PredictionNoise, SampleNoise, SumNoise
from tablepuppet.party.request import Request, Step
from tablepuppet.wire import journal, message_file
from tablepuppet.wire.journal import Journal
from tests.party.policed import limit
from tests.wire.hostile import Attacker, write_bank

ROWS = 60
STRICT = "budget = { epsilon = %s, delta = 1e-6, require_dp = true }"


class Analyst(Attacker):
    """With rows announced and encoded in each session."""

    def begin(self, session: str, mean: float = 0.0) -> None:
        """Open a session with one column."""
        self.open(session, self.scan("SELECT amount FROM cards", keys=()))
        self.use(session, "v", np.arange(ROWS), np.ones(ROWS, np.int32))
        self.encode(session, mean)

    def encode(self, session: str, mean: float, scale: float = 1.0) -> None:
        """Encode it."""
        columns = [self.scan("SELECT amount FROM cards", keys=()).outputs]
        given = {"columns": list(columns[0]), "means": np.array([mean]), "scales": np.array([scale]), "categories": []}
        self.run(session, "encode.build", view="v", encoding="e", **given)

    def image(self, session: str, theta: float = 1.0) -> Any:
        """Noisy predictions."""
        given = {"spec": Linear(1), "theta": np.array([theta]), "noise": PredictionNoise(3.0, 100.0)}
        return self.run(session, "model.apply", view="v", encoding="e", **given)["outputs"]

    def again(self, session: str) -> Any:
        """The reply to the last request of a session, which got lost."""
        return self.send(Request("run", session, {}, (Step("rows.use", "cards", {}),), self.sent[session]))[0]

    @property
    def spent(self) -> float:
        """Epsilon of the table."""
        ledger = self.desk.party._ledger
        assert ledger is not None
        return ledger.spent("cards").epsilon(1e-6)


def analyst(folder: Path, epsilon: float = 50.0, **limits: Any) -> Analyst:
    """At a bank that demands noise."""
    told = "\n".join(f"{name} = {value}" for name, value in limits.items())
    return Analyst(write_bank(folder, table=STRICT % epsilon, limits=told))


def ask_direction(attacker: Analyst, rows: Any) -> str:
    """Why a noisy direction is refused that can pay for its gradient, not for its predictions."""
    given = {"rows": rows, "l2": 1.0, "curvature": 1.0}
    noise = {"noise": SumNoise(ROWS, 1.0, 6.0), "prediction_noise": PredictionNoise(1e-6)}
    with pytest.raises(TablePuppetError) as refused:
        attacker.run("s", "ridge.direction", view="v", encoding="e", model="m", **given, **noise)
    return str(refused.value)


@pytest.mark.parametrize("same", [True, False])
def test_a_refusal_does_not_compare(tmp_path: Path, same: bool) -> None:
    """An op that is refused after its first release keeps that one's name: the next request pays for its own, whether
    it would give the same values or others.
    """
    attacker = analyst(tmp_path, 1.0)
    attacker.begin("s", mean=0.0 if same else 512.0)
    given = {"spec": Linear(1), "joined_rows": ROWS, "noise": GramNoise(ROWS, 1e6)}
    attacker.run("s", "ridge.start", view="v", encoding="e", model="m", **given)
    told = [ask_direction(attacker, np.zeros(ROWS)), ask_direction(attacker, np.zeros(ROWS))]
    told.append(ask_direction(attacker, np.eye(ROWS)[0] * 1e-60 * (not same)))
    assert "would spend 550,000,000,135 in all" in told[0]
    assert "would spend 1.073 in all" in told[1]
    assert told[1] == told[2]
    assert attacker.spent == pytest.approx(0.7408, abs=1e-4)


@pytest.mark.parametrize("refused", ["budget", "time"])
def test_a_restart_goes_on_with_the_names_as_they_were(tmp_path: Path, refused: str) -> None:
    """Requests after one that was refused are sent as they were after a restart, at no cost, though what was refused
    would be allowed now; what comes then has noise of its own.
    """
    attacker = analyst(tmp_path, 3.0)
    attacker.begin("s")
    first = attacker.image("s")
    given: dict[str, Any] = {"view": "v", "encoding": "e", "spec": Linear(1), "theta": np.array([1.0])}
    if refused == "budget":
        steps = [Step("model.apply", "cards", {**given, "noise": PredictionNoise(m, 100.0)}) for m in (6.0, 1e-3)]
        attacker.sent["s"] += 1
        with pytest.raises(TablePuppetError, match="a budget of epsilon"):
            attacker.send(Request("run", "s", {}, tuple(steps), attacker.sent["s"]))
    else:
        limit(attacker.desk.party, request_seconds=-1.0)
        with pytest.raises(TablePuppetError, match="more than -1 s"):
            attacker.image("s")
        limit(attacker.desk.party, request_seconds=300.0)
    second, spent = attacker.image("s", 0.5), attacker.spent
    write_bank(tmp_path, table=STRICT % 1e9)
    for _ in range(2):
        attacker.restart()
        np.testing.assert_array_equal(attacker.again("s")["outputs"], second)
        assert attacker.spent == spent
    third = attacker.image("s", 0.5)
    assert np.abs(third - second).min() > 1e-9
    assert np.abs(first - second).min() > 1e-9
    assert attacker.spent > spent


def test_a_restart_does_not_compare(tmp_path: Path) -> None:
    """A session that uses the model of another session, which has changed since: it finds what it was sent, no error,
    no charge, whatever would come out now.
    """
    attacker = analyst(tmp_path)
    for session in ("models", "s"):
        attacker.begin(session)
    given: dict[str, Any] = {"view": "v", "encoding": "e", "model": "m"}
    begin = {"seed": 1, "spec": Linear(1), "zero": True}
    image = PredictionNoise(5.0, 1.0)
    noise = {"noise": SampleNoise(ROWS, 1.0, 5.0, 1.0), "prediction_noise": image}
    step = {"rows": np.ones(ROWS), "proximal": 0.0, "rates": np.ones(1), "momentum": 0.0, "l2": 0.0}
    attacker.run("models", "model.start", **given, **begin)
    attacker.run("models", "steps.descend", **given, **step, **noise)
    told = attacker.run("s", "model.predict", **given, noise=image)
    attacker.run("models", "model.start", **given, **begin)  # predicts zero
    spent = attacker.spent
    attacker.desk.close((attacker.caller, "s"), "expired", forget=False)  # as after a time without a request
    np.testing.assert_array_equal(attacker.again("s")["outputs"], told["outputs"])
    assert attacker.spent == spent


@pytest.mark.parametrize("after", ["charge", "release"])
def test_killed_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """A party that dies between the charge, the release on disk and the reply charges once and sends one release."""
    attacker = analyst(tmp_path)
    attacker.begin("s")
    attacker.image("s")
    found: list[Any] = []

    def dies(self: Journal, path: Path, encoded: Any, *, sync: bool = False) -> int:
        if not sync:
            return append(self, path, encoded)
        if after == "release":
            append(self, path, encoded, sync=sync)
        found.append(encoded.nbytes)
        raise KeyboardInterrupt

    append = Journal.append
    monkeypatch.setattr(Journal, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        attacker.image("s", 2.0)
    monkeypatch.undo()
    spent, told = attacker.spent, []
    for _ in range(2):
        attacker.restart()
        told.append(attacker.again("s")["outputs"])
        assert attacker.spent == spent
    np.testing.assert_array_equal(told[0], told[1])
    assert found


def test_a_refusal_that_cannot_be_written_ends_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was refused could be computed after a restart."""
    attacker = analyst(tmp_path)
    attacker.begin("s")

    written: list[Any] = []

    def full(*given: Any) -> None:
        """The request is written down, and fills the disk."""
        if written:
            raise OSError(28, "No space left on device")
        written.append(write(*given))

    write = message_file.write_all
    for module in (message_file, journal):
        monkeypatch.setattr(module, "write_all", full)
    with pytest.raises(PartyError, match=r"cannot write down a request \(No space left on device\)"):
        attacker.run("s", "model.apply", view="nowhere", encoding="e")
    monkeypatch.undo()
    with pytest.raises(PartyError, match="knows no such session"):
        attacker.image("s")


def test_releases_are_counted(tmp_path: Path) -> None:
    """One request asks for so many releases with noise and no more; the ledger does not grow with them."""
    attacker = analyst(tmp_path, releases_per_request=20)
    attacker.begin("s")
    given: dict[str, Any] = {"view": "v", "encoding": "e", "model": "m"}
    attacker.run("s", "model.start", **given, seed=0, spec=Linear(1), zero=True)
    noise = {"noise": SampleNoise(ROWS, 1.0, 1e3, 0.5), "prediction_noise": PredictionNoise(1e3, 1.0)}
    step: dict[str, Any] = {"rows": np.ones(ROWS), "proximal": 0.0, "momentum": 0.0, "l2": 0.0}
    with pytest.raises(PartyError, match=r"more than 20 releases with noise.*limits\.releases_per_request"):
        attacker.run("s", "steps.descend", **given, **step, **noise, rates=np.zeros(20))
    sizes = set()
    for _ in range(3):
        attacker.run("s", "steps.descend", **given, **step, **noise, rates=np.zeros(19))
        sizes.add((tmp_path / "state" / "ledger.sqlite").stat().st_size)
    assert len(sizes) == 1


def held(cell: int) -> str:
    """An expression that makes of one cell a text as long as it says."""
    return f"CASE WHEN id = {cell} THEN substr(repeat('a', 9000), 1, CAST(amount * 100 AS INTEGER)) ELSE '' END"


def opened(attacker: Analyst, session: str, expression: str) -> str:
    """What is told of a session over an expression: an error, or nothing."""
    try:
        attacker.open(session, attacker.scan(f"SELECT {expression} AS o FROM cards", keys=()))
    except TablePuppetError as error:
        return str(error)
    attacker.send(Request("close", session))
    return ""


@pytest.mark.parametrize("memory", [1_000, 100_000, 400_000, 2_000_000])
def test_memory_does_not_tell_of_texts(tmp_path: Path, memory: int) -> None:
    """Where noise is demanded, whether there is room for texts follows from what an expression may make of any row, and
    the refusal tells how much there may be, not how much there is.
    """
    attacker = analyst(tmp_path, memory_bytes=memory)
    told = {opened(attacker, f"s{cell}", held(cell)) for cell in (-1, 7, 59)}
    assert len(told) == 1
    assert ("limits.memory_bytes" in told.pop()) == (memory < 600_000)


def test_what_is_read_does_not_tell_of_texts(tmp_path: Path) -> None:
    """Nor does the memory in which one table is read."""
    attacker = analyst(tmp_path, expression_bytes=400_000)
    for length in ("5", "9000"):
        text = f"CASE WHEN amount >= 0 THEN substr(repeat('a', 9000), 1, {length}) END"
        assert "limits.expression_bytes" in opened(attacker, length, text)


def test_refusals_for_memory_are_counted(tmp_path: Path) -> None:
    """Where nothing is demanded, they follow from what was read, and count as queries that fail."""
    file = write_bank(tmp_path, limits="memory_bytes = 100_000\nmax_failures = 2")
    attacker, told = Analyst(file), []
    for number in range(4):
        told.append(opened(attacker, f"s{number}", f"repeat(code, {800 + number})"))
    assert ["limits.memory_bytes" in each for each in told] == [True, True, False, False]
    assert "have failed on its rows 2 times" in told[3]


def test_refusals_beside_other_things_are_counted(tmp_path: Path) -> None:
    """A query that is refused at other amounts of memory tells more each time; asked again as it was, it does not."""
    attacker = Analyst(write_bank(tmp_path, limits="memory_bytes = 100_000\nmax_failures = 3"))
    for _ in range(5):
        assert "limits.memory_bytes" in opened(attacker, "again", "repeat(code, 800)")
    told = []
    for number in range(4):
        attacker.begin(f"s{number}")
        told.append("limits.memory_bytes" in opened(attacker, f"o{number}", "repeat(code, 800)"))
    assert told == [True, True, False, False]


def test_failures_at_once_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many queries at once that fail, as many are evaluated as may fail; and all of those that do not fail."""
    attacker = Analyst(write_bank(tmp_path, limits="memory_bytes = 100_000\nmax_failures = 2"))
    scans = [attacker.scan(f"SELECT repeat(code, {800 + n}) AS o FROM cards", keys=()) for n in range(8)]
    plain = [attacker.scan(f"SELECT amount + {n} AS o FROM cards", keys=()) for n in range(8)]
    nonces = [attacker.nonce() for _ in range(16)]
    taken, told = attacker.desk.party._readings._taken, Counter[tuple[str, str]]()

    def slowly(*asked: Any) -> Any:
        time.sleep(0.05)
        return taken(*asked)

    monkeypatch.setattr(attacker.desk.party._readings, "_taken", slowly)

    def ask(number: int, kind: str, scan: Any) -> None:
        try:
            Analyst(attacker.file, desk=attacker.desk).open(f"{kind}{number}", scan, nonces=[nonces.pop()])
            told[kind, "opened"] += 1
        except TablePuppetError as error:
            told[kind, "memory" if "memory_bytes" in str(error) else "failures"] += 1

    for kind, listed in (("plain", plain), ("long", scans)):
        threads = [threading.Thread(target=ask, args=(number, kind, scan)) for number, scan in enumerate(listed)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == {("plain", "opened"): 8, ("long", "memory"): 2, ("long", "failures"): 6}
