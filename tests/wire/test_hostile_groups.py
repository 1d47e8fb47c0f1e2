"""Careless ops and small groups: whatever an op forgets, no statistic of fewer rows than ``min_group`` leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet.learn.party_ops  # noqa: F401 - registers every op
from tablepuppet.errors import PrivacyError
from tablepuppet.learn.tables.linear import Linear
from tablepuppet.party.blind import blind
from tablepuppet.party.groups import OF_GROUPS, Grouped
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import REGISTRY, Op
from tablepuppet.party.release import Release
from tablepuppet.party.returns import OfGroups, OfNoCell, OfRows, Plain, Resting, Returns
from tests.relations import write_party
from tests.wire.hostile import Attacker, accounts, write_bank

ROWS = 60
NUMBER = Plain(float)


def bank(folder: Path, table: str = "min_group = 5") -> Attacker:
    """At a bank, with a session over amounts."""
    folder.mkdir(exist_ok=True)
    write_party(folder, "bank", {"cards": accounts()})
    attacker = Attacker(write_bank(folder, table=table))
    attacker.open("s", attacker.scan("SELECT cards.amount FROM cards", keys=()))
    attacker.use("s", "v", np.arange(ROWS), np.ones(ROWS, np.int32))
    return attacker


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Registers ops for a test."""
    before = dict(REGISTRY)

    def op(function: Callable[..., Any], returns: Returns | None, releases: Release = Release.STATISTICS) -> None:
        REGISTRY["careless"] = Op(function, "careless", asked="never", releases=releases, returns=returns)

    yield op
    REGISTRY.clear()
    REGISTRY.update(before)


def of_one_row(table: LocalTable) -> float:
    """A statistic of the first row that forgets ``min_group``."""
    return float(table.column("amount", "v")[0].as_py())


@pytest.mark.parametrize("release", OF_GROUPS)
@pytest.mark.parametrize("returns", [{"mean": NUMBER}, None, {"mean": NUMBER, "rows": OfNoCell(NUMBER)}])
def test_an_op_that_does_not_say_what_it_rests_on(
    tmp_path: Path, register: Callable[..., None], release: Release, returns: Returns | None
) -> None:
    """A careless op, without any change to it, is refused where small groups are hidden, before it sees a row."""
    seen = []

    def careless(table: LocalTable) -> dict[str, Any]:
        seen.append(of_one_row(table))
        return {"mean": seen[-1]}

    register(careless, returns, release)
    more = "\ncross_statistics = true"
    if release is not Release.CATEGORIES:  # which the level forbids already
        with pytest.raises(PrivacyError, match="does not say how many rows"):
            bank(tmp_path, "min_group = 5" + more).run("s", "careless")
        assert not seen
        assert bank(tmp_path / "free", "min_group = 0" + more).run("s", "careless") == {"mean": seen[0]}


@pytest.mark.parametrize("rows", [1, 4, np.array([[30, 0], [26, 4]]), None, ROWS + 1])
def test_an_op_that_says_it_and_publishes_a_small_group(
    tmp_path: Path, register: Callable[..., None], rows: Any
) -> None:
    """One small group among many, a value without its groups, or with more rows than there are: nothing leaves."""

    def careless(table: LocalTable) -> dict[str, Any]:
        value = of_one_row(table)
        return {"mean": value if rows is None else Grouped(value, rows), "other": Grouped(1.0, 60)}

    register(careless, {"mean": OfGroups(NUMBER), "other": OfGroups(NUMBER)})
    with pytest.raises(PrivacyError, match="fewer rows than a group must have"):
        bank(tmp_path).run("s", "careless")
    assert bank(tmp_path / "free", "min_group = 1").run("s", "careless")["other"] == 1.0


def test_groups_that_are_large_enough_leave(tmp_path: Path, register: Callable[..., None]) -> None:
    """Without how many rows they have: that stays at the party."""
    register(lambda table: {"mean": Grouped(2.0, np.array([0, 5, 55]))}, {"mean": OfGroups(NUMBER)})
    assert bank(tmp_path).run("s", "careless") == {"mean": 2.0}


def test_numbers_of_single_rows_are_those_that_the_policy_releases(
    tmp_path: Path, register: Callable[..., None]
) -> None:
    """An op that says that its values follow from single rows is allowed where such rows may leave, and only there."""
    for release, is_allowed in ((Release.PREDICTIONS, True), (Release.VALUES, False), (Release.LABELS, False)):
        register(lambda table: {"mean": 2.0}, {"mean": OfRows(NUMBER, release)})
        attacker = bank(tmp_path / release.label)
        if is_allowed:
            assert attacker.run("s", "careless") == {"mean": 2.0}
        else:
            with pytest.raises(PrivacyError, match=f"does not release {release.label}"):
                attacker.run("s", "careless")


def test_every_op_says_what_it_rests_on() -> None:
    """Each op of ours that releases statistics, without noise, declares it of each value."""
    for op in REGISTRY.values():
        if op.releases & OF_GROUPS and op.private is not True:
            assert op.returns is not None, op.name
            assert all(isinstance(each, Resting) for each in op.returns.values()), op.name


def test_digests_of_guessed_texts_are_those_of_no_other_column(tmp_path: Path) -> None:
    """A text that the caller writes into a CASE has another digest than the same text in a column, whatever the output
    is called: so no guess tells which row has it.
    """
    attacker = bank(tmp_path)
    told = {}
    for session, code in (("guess", "CASE WHEN amount IS NULL THEN code ELSE 'C7' END"), ("own", "code")):
        attacker.open(session, attacker.scan(f"SELECT {code} AS code FROM cards", keys=()))
        attacker.use(session, "v", np.arange(ROWS), np.ones(ROWS, np.int32))
        table = attacker.desk.party.table(session, "cards", "analyst")
        told[session] = blind([pa.chunked_array([["C7"]])], ["text"], table.category_key("e", "code")).digests
    asked = {"column": "code", "family": "text", "blinding": "e", "most": None}
    digests = attacker.run("guess", "statistics.categories", view="v", **asked)["digests"]
    assert digests.tolist() == told["guess"].tolist()
    for session, is_recognised in (("guess", False), ("own", True)):
        given = {"columns": [], "means": np.zeros(0), "scales": np.zeros(0), "categories": [("code", "text")]}
        attacker.run("own", "encode.build", view="v", encoding="e", **given, digests0=told[session])
        image = attacker.run("own", "model.apply", view="v", encoding="e", spec=Linear(1), theta=np.ones(1))["outputs"]
        assert image.any() == is_recognised
