"""The relation as a matrix against a hostile analyst: few rows, secure sums, time, and arguments of odd kinds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
import tablepuppet.learn.party_ops
from tablepuppet.algebra.ops import largest_of_rows
from tablepuppet.party.allowance import Allowance, allowed
from tablepuppet.party.policy import CallerLimits
from tablepuppet.prep.encode.encoded_table import EncodedTable
from tests.wire.hostile import Attacker, accounts, write_bank

ROWS = 60
ALONE = 98765.25  # the one amount above 1,000
VIEW = {"view": "v", "encoding": "e"}
NONE = np.zeros(0, np.int64)


def opened(folder: Path, amounts: Any = None, **settings: str) -> Attacker:
    """An analyst with a session ``s``, whose rows of view ``v`` are encoded as they are."""
    values = np.r_[np.arange(ROWS - 1) * 1.5, ALONE] if amounts is None else amounts
    attacker = Attacker(write_bank(folder, accounts().set_column(3, "amount", pa.array(values)), **settings))
    attacker.open("s", attacker.scan("SELECT amount FROM cards", keys=()))
    attacker.run("s", "rows.use", view="v", chosen=None, counts=np.ones(ROWS, np.uint8))
    build = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
    attacker.run("s", "encode.build", **VIEW, **build)
    return attacker


@pytest.mark.parametrize("squared", [False, True])
def test_sums_of_columns_need_the_opt_in(tmp_path: Path, squared: bool) -> None:
    """The steps that columns are made by, and how often rows count, are the caller's choice."""
    with pytest.raises(tp.PrivacyError, match="policy rule matrix"):
        opened(tmp_path).run("s", "matrix.sums", **VIEW, squared=squared)
    (tmp_path / "other").mkdir()
    attacker = opened(tmp_path / "other", table="matrix = true")
    assert attacker.run("s", "matrix.sums", **VIEW, squared=squared)["sums"].shape == (1,)


def test_vectors_are_as_many_as_are_counted(tmp_path: Path) -> None:
    """However U is given: as numbers, as groups of rows, or by the name of a vector that the party keeps."""
    half = np.arange(ROWS) % 2
    two = np.stack([half, 1 - half], axis=1).astype(np.float64)
    wrong: list[tuple[Any, int, str]] = [
        (two, 1, "another number of columns"), (two[:, 0], 2, "another number of columns"),
        (np.zeros((ROWS, 0)), 1, "another number of columns"), ("k", 1, "another number of columns"),
        (half, 1, "below 1"), (half - 1, 2, "below 2"), ("none", 1, "keeps no vector"), (two[1:], 2, "do not fit"),
    ]  # fmt: skip
    attacker = opened(tmp_path, table="matrix = true")
    attacker.run("s", "matrix.keep_rows", view="v", into="k", rows=two)
    for by, vectors, refusal in wrong:
        with pytest.raises(tp.PartyError, match=refusal):
            attacker.run("s", "matrix.sums_by", **VIEW, by=by, vectors=vectors)
    for number, given in enumerate((two, half, "k")):
        (tmp_path / str(number)).mkdir()
        attacker = opened(tmp_path / str(number), table="matrix = true", limits="max_matrix_columns = 5")
        attacker.run("s", "matrix.keep_rows", view="v", into="k", rows=two)  # two of the five
        found = attacker.run("s", "matrix.sums_by", **VIEW, by=given, vectors=2)["sums"]
        assert found.shape == (1, 2)
        with pytest.raises(tp.PrivacyError, match="max_matrix_columns"):
            attacker.run("s", "matrix.sums_by", **VIEW, by=given, vectors=2)


def test_centres_fit_their_columns(tmp_path: Path) -> None:
    """A number for each column of numbers, under a name that is no encoding's; what is asked of it needs the opt-in."""
    attacker = opened(tmp_path, table="matrix = true")
    before = attacker.run("s", "matrix.sums", **VIEW)["sums"]
    for centres in (np.zeros(2), np.zeros(0)):
        with pytest.raises(tp.PartyError, match="centres of shape"):
            attacker.run("s", "matrix.centre", **VIEW, into="c", centres=centres)
        with pytest.raises(tp.PartyError, match="centres of shape"):
            attacker.run("s", "matrix.sums", **VIEW, squared=True, centres=centres)
    with pytest.raises(tp.PartyError, match="is the name of an encoding"):
        attacker.run("s", "matrix.centre", **VIEW, into=VIEW["encoding"], centres=np.ones(1))
    for _ in range(2):  # what was kept under the name is forgotten
        assert attacker.run("s", "matrix.centre", **VIEW, into="c", centres=np.ones(1)) == {}
    after = attacker.run("s", "matrix.sums", view=VIEW["view"], encoding="c")["sums"]
    assert after == pytest.approx(before - ROWS)
    (tmp_path / "other").mkdir()
    closed = opened(tmp_path / "other")
    closed.run("s", "matrix.centre", **VIEW, into="c", centres=np.ones(1))
    with pytest.raises(tp.PrivacyError, match="policy rule matrix"):
        closed.run("s", "matrix.sums", view=VIEW["view"], encoding="c")


def test_centres_of_a_gram_matrix_tell_no_more_than_means(tmp_path: Path) -> None:
    """Two of them tell the sum of a column; so do two encodings of it, whose means the caller has always chosen."""
    attacker = opened(tmp_path)
    about = attacker.run("s", "matrix.gram", **VIEW, joined_rows=1, centres=np.ones(1))["gram"]
    build = {"columns": ["amount"], "means": np.ones(1), "scales": np.ones(1), "categories": []}
    plain = attacker.run("s", "matrix.gram", **VIEW, joined_rows=1)["gram"]
    attacker.run("s", "encode.build", view="v", encoding="f", **build)
    assert about == pytest.approx(attacker.run("s", "matrix.gram", view="v", encoding="f", joined_rows=1)["gram"])
    assert (plain - about + ROWS)[0, 0] / 2 == pytest.approx(np.arange(ROWS - 1).sum() * 1.5 + ALONE)


def test_sums_of_columns_are_masked(tmp_path: Path) -> None:
    """With ``secure_sum`` a shard's sums, weighed at will, do not leave by themselves."""
    attacker = opened(tmp_path, table="matrix = true")
    table = attacker.desk.party.table("s", "cards", "analyst")
    rules = dataclasses.replace(table.grant.rules, secure_sum=True)
    object.__setattr__(table.grant, "rules", rules)
    with pytest.raises(tp.PrivacyError, match="policy rule secure_sum"):
        attacker.run("s", "matrix.sums", **VIEW)


def test_functions_of_few_rows_are_refused(tmp_path: Path) -> None:
    """As vectors that stay at parties are: a function that is zero but in one row would tell its number."""
    attacker = opened(tmp_path, table="matrix = true\nmin_rows = 10")
    one: dict[str, Any] = {**VIEW, "into": "f", "numbers": np.zeros(1, np.int64), "groups": NONE}
    above = [("greater", 0, -1), ("where", 1, 0)]
    with pytest.raises(tp.PrivacyError, match="policy rule min_rows"):
        attacker.run("s", "matrix.apply", **one, steps=above, constants=np.array([[1000.0]]))
    attacker.run("s", "matrix.apply", **one, steps=above, constants=np.array([[40.0]]))
    assert attacker.run("s", "matrix.sums", view="v", encoding="f")["sums"].shape == (1,)


@pytest.mark.parametrize("often", [1, 90])
def test_functions_that_few_rows_differ_by_are_refused(tmp_path: Path, often: int) -> None:
    """With 1 added, the function of one row was zero in none; the row is no crowd if it is listed often."""
    attacker = opened(tmp_path, table="matrix = true\nmin_rows = 10")
    table = attacker.desk.party.table("s", "cards", "analyst")
    ids = np.r_[np.arange(ROWS), np.full(often - 1, np.argmax(table.snapshot.position(np.arange(ROWS))))]
    attacker.use("s", "v", ids, np.ones(len(ids), np.uint8))
    build = {"columns": ["amount"], "means": np.zeros(1), "scales": np.ones(1), "categories": []}
    attacker.run("s", "encode.build", **VIEW, **build)
    one: dict[str, Any] = {**VIEW, "into": "f", "numbers": np.zeros(1, np.int64), "groups": NONE}
    above = [("greater", 0, -1), ("where", 1, 0), ("add", 2, -2)]
    with pytest.raises(tp.PrivacyError, match="policy rule min_rows"):
        attacker.run("s", "matrix.apply", **one, steps=above, constants=np.array([[1000.0], [1.0]]))
    for constants in ([[40.0], [1.0]], [[1e6], [1.0]]):  # many rows differ, or none
        attacker.run("s", "matrix.apply", **one, steps=above, constants=np.array(constants))


SCALED, ABOVE = ("multiply", 0, -2), ("greater", 0, -1)


@pytest.mark.parametrize(
    "steps",
    [
        [ABOVE, ("where", 1, 0), SCALED, ("add", 2, 3)],
        [SCALED, ABOVE, ("add", 1, 2)],
        [("maximum", 0, -1), SCALED, ("add", 1, 2)],
        [("subtract", 0, -1), ("multiply", 1, -3), ("tanh", 2, 0), SCALED, ("add", 3, 4)],
        [("divide", 0, -1), ("floor", 1, 0), SCALED, ("add", 2, 3)],
        [("subtract", 0, -1), ("log", 1, 0), ("equal", 2, 2), ("where", 3, 0), SCALED, ("add", 4, 5)],
        [("equal", 0, 0), ABOVE, ("subtract", 1, 2), SCALED, ("add", 3, 4)],
    ],
)
def test_a_small_multiple_of_the_column_hides_no_threshold(tmp_path: Path, steps: list[Any]) -> None:
    """With x / 10^12 added every row has a number of its own; which rows were above the threshold, few, is refused."""
    attacker = opened(tmp_path, table="matrix = true\nmin_rows = 10")
    one: dict[str, Any] = {**VIEW, "into": "f", "numbers": np.zeros(1, np.int64), "groups": NONE}
    with pytest.raises(tp.PrivacyError, match="policy rule min_rows"):
        attacker.run("s", "matrix.apply", **one, steps=steps, constants=np.array([[1000.0], [1e-12], [1e9]]))
    attacker.run("s", "matrix.apply", **one, steps=steps, constants=np.array([[40.0], [1e-12], [1e-3]]))


FILL = {"kind": "fill", "column": "amount", "value": 0.0}
SCALE = {"kind": "scale", "column": "amount", "centre": 1.0, "scale": 2.0}
WITHOUT = {"kind": "without", "column": "amount", "low": 1000.0, "high": 1e9}


@pytest.mark.parametrize("steps", [[], [FILL], [FILL, SCALE], [WITHOUT], [WITHOUT, FILL], [WITHOUT, SCALE, FILL]])
def test_values_that_few_rows_have_are_not_filled_and_summed(tmp_path: Path, steps: list[Any]) -> None:
    """A column of one value, as it is read or after a step, counts as one without any, also if a step then fills it."""
    one, none = [1234.5] + [None] * (ROWS - 1), pa.nulls(ROWS, pa.float64())
    asked = {"view": "v", "blinding": "b", "columns": ["amount"], "categories": [], "wanted": ["amount"]}
    found = []
    for name, amounts in {"one": None if WITHOUT in steps else one, "none": none}.items():
        attacker = opened(tmp_path / name, amounts)
        found.append(attacker.run("s", "prep.sums", **asked, steps=steps)["sums"])
    np.testing.assert_array_equal(*found)


def test_time_is_looked_at_between_columns() -> None:
    """Columns may be asked for many times: no loop over them is longer than the limit."""
    codes = tuple(np.zeros(3, np.int32) for _ in range(2))
    data = EncodedTable(np.ones((3, 1)), codes, (1, 1))
    with allowed(Allowance("bank", CallerLimits(request_seconds=0.0))):
        with pytest.raises(tp.PartyError, match="request_seconds"):
            largest_of_rows(data, np.zeros(2, np.int64), np.ones(2), np.ones(2))
        with pytest.raises(tp.PartyError, match="request_seconds"):
            data.gram(np.ones(3))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("matrix.apply", {"into": "f", "numbers": np.array(0), "groups": NONE, "steps": [("square", 0, 0)]}),
        ("matrix.sums", {"view": [1], "secure": {"number": 1, "bits": {"sums": 1}}}),
        ("matrix.sums", {"view": {"v": 1}, "secure": {"number": 1, "bits": {"sums": 1}}}),
    ],
)
def test_odd_kinds_are_refused_in_words(tmp_path: Path, op: str, arguments: dict[str, Any]) -> None:
    """Not by an exception of Python's, of which only the class would be told."""
    attacker = opened(tmp_path, table="matrix = true")
    with pytest.raises(tp.TablePuppetError) as caught:
        attacker.run("s", op, **VIEW | arguments)
    assert "Error)" not in str(caught.value)
