"""`Relation.label`: the labels of joined rows, as the raw rows have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tests.learn.materialised import JOIN, JoinedTable, shop
from tests.party.policed import ROWS, cards, open_party, write_file
from tests.party.policed import federation as policed
from tests.relations import federation, record_wire


@pytest.fixture(scope="module", params=[1, 3])
def parties(request: pytest.FixtureRequest) -> dict[str, dict[str, pa.Table]]:
    return shop(request.param, together=True)


@pytest.fixture(scope="module")
def fed(parties: dict[str, dict[str, pa.Table]], tmp_path_factory: pytest.TempPathFactory) -> tp.Federation:
    return federation(tmp_path_factory.mktemp("shop"), parties)


@pytest.mark.parametrize("label", ["paid", "quantity", "returned", "grade"])
def test_labels_are_those_of_the_raw_rows(fed: tp.Federation, parties: Any, label: str) -> None:
    """Numbers, booleans as 0 and 1, and classes of text; exactly, also for a part of the rows."""
    relation = fed.sql(f"SELECT i.weight, o.{label} {JOIN}", label=label)
    for part in (relation, relation.split(test=0.3)[1]):
        known = JoinedTable(part, parties).labels
        assert np.array_equal(part.label(), known)
        assert part.label().shape == (len(part),)
        assert part.label().dtype.kind == ("U" if label == "grade" else "f")


def test_labels_travel_once_per_base_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The join repeats them here; nothing as long as the joined rows travels."""
    parties = {
        "a": {"t": pa.table({"k": [1, 2] * 5, "y": np.arange(10.0) / 3})},
        "b": {"u": pa.table({"k": [1, 2] * 8, "x": np.arange(16.0)})},
    }
    relation = federation(tmp_path, parties).sql("SELECT t.y, u.x FROM t JOIN u USING (k)", label="y")
    messages = record_wire(monkeypatch)
    assert relation.label().shape == (80,)
    told = [value for m in messages for value in (m.reply or {}).values() if isinstance(value, np.ndarray)]
    assert max(map(len, told)) < 80


def test_no_label(fed: tp.Federation) -> None:
    """An error says how to name one; without rows there are none."""
    with pytest.raises(tp.LearnError, match=r"has no label: .*label='column'"):
        fed.sql(f"SELECT i.weight {JOIN}").label()
    assert fed.sql(f"SELECT i.weight, o.paid {JOIN} WHERE o.price > 1000", label="paid").label().shape == (0,)


def test_labels_that_are_missing(fed: tp.Federation) -> None:
    """An error says how to leave their rows out."""
    with pytest.raises(tp.LearnError, match=r"label i\.kind is NULL in .* add WHERE .* IS NOT NULL \(part"):
        fed.sql(f"SELECT i.weight, i.kind {JOIN}", label="kind").label()


def test_policies_release_labels_or_not(tmp_path: Path) -> None:
    """A column that is a label by the policy is released; one of level private is not."""
    fed = policed(open_party(write_file(tmp_path)))
    found = fed.sql("SELECT credit, fraud FROM cards", label="fraud").label()
    assert found.shape == (ROWS,)
    assert sorted(found) == sorted(cards()["fraud"].to_pylist())
    with pytest.raises(tp.PrivacyError, match="at level private it may be joined and filtered by"):
        fed.sql("SELECT credit, secret FROM cards", label="secret").label()
