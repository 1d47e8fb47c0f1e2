"""`Relation.split` by groups, classes and time, against the same on the materialised join."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablepuppet as tp
from tablepuppet.learn.selection.folds import Folding
from tests.party.policed import federation as policed
from tests.party.policed import open_party, write_file
from tests.relations import federation, places, record_wire

SQL = "SELECT o.price, o.code, o.day, o.at, o.hour, c.limit_, o.kind FROM orders o JOIN cards c ON o.card = c.id"
START = date(2024, 1, 1)
ROWS = 200


def orders() -> pa.Table:
    row = np.arange(ROWS)
    days = [START + timedelta(days=int(each)) for each in row * 7 % 100]
    return pa.table(
        {
            "card": row % 30, "price": np.sin(row), "code": row % 9, "day": days, "hour": row * 3 % 24,
            "at": [datetime(each.year, each.month, each.day, 6) for each in days],
            "kind": np.where(row % 10 == 0, "rare", "often"),
        }
    )  # fmt: skip


@pytest.fixture
def fed(tmp_path: Path) -> tp.Federation:
    table, cards = orders(), pa.table({"id": np.arange(30), "limit_": np.arange(30.0)})
    parties = {"east": {"orders": table.slice(0, 80)}, "west": {"orders": table.slice(80)}, "bank": {"cards": cards}}
    return federation(tmp_path, parties)


def column(side: tp.Relation, name: str) -> list[Any]:
    """The values of a column of orders in the joined rows of a side."""
    values = orders()[name].to_pylist()
    return [values[row + 80 * (owner == "west")] for (owner, row), _ in places(side)]


@pytest.mark.parametrize(("by", "name", "groups"), [("o.code", "code", 9), ("o.card", "card", 30), ("c", "card", 30)])
def test_groups_stay_together(fed: tp.Federation, by: str, name: str, groups: int) -> None:
    """By a selected column, by a join key that is not selected, and by the rows of a table: a share of the groups is
    held out, all their rows with them, of whatever shard; no row is lost.
    """
    relation = fed.sql(SQL, label="kind")
    train, test = relation.split(test=0.3, seed=1, by=by)
    assert not set(column(train, name)) & set(column(test, name))
    assert len(set(column(test, name))) == round(0.3 * groups)
    assert sorted(places(train) + places(test)) == sorted(places(relation))
    assert places(relation.split(test=0.3, seed=1, by=by)[1]) == places(test)
    assert places(relation.split(test=0.3, seed=2, by=by)[1]) != places(test)


def test_a_join_key_is_not_sent_again_as_a_column(fed: tp.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of a join key, selected or not, follow from the digests of the join."""
    for sql in (SQL, SQL.replace("o.price", "o.card")):
        relation = fed.sql(sql, label="kind")
        messages = record_wire(monkeypatch)
        relation.split(by="o.card")
        assert "columns.codes" not in [each.request.op for each in messages]


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_classes_keep_their_shares(fed: tp.Federation, share: float) -> None:
    """round(test * n) rows are held out, of each class within one row of its share."""
    _, test = fed.sql(SQL, label="kind").split(test=share, stratify=True)
    kinds = column(test, "kind")
    assert len(kinds) == round(share * ROWS)
    assert abs(kinds.count("rare") - share * 20) <= 1


@pytest.mark.parametrize(
    ("by", "after"),
    [
        ("o.day", START + timedelta(days=60)),
        ("at", datetime(2024, 3, 1, 6)),
        ("at", datetime(2024, 3, 1, 6, 0, 1)),
        ("hour", 12),
    ],
)
def test_later_rows_are_the_test_side(fed: tp.Federation, by: str, after: Any) -> None:
    """Rows from that date, time or number on, and no others; those at that very time too."""
    train, test = fed.sql(SQL, label="kind").split(after=after, by=by)
    name = by.removeprefix("o.")
    assert len(train)
    assert len(test)
    assert max(column(train, name)) < after <= min(column(test, name))
    assert len(train) + len(test) == ROWS


def test_times_of_another_zone(fed: tp.Federation) -> None:
    """A time with a zone is compared in UTC, as the column is."""
    relation = fed.sql(SQL, label="kind")
    aware = relation.split(after=datetime(2024, 3, 1, 6, tzinfo=UTC), by="at")[1]
    assert places(aware) == places(relation.split(after=datetime(2024, 3, 1, 6), by="at")[1])


def test_folds_of_time_learn_from_before(fed: tp.Federation) -> None:
    """Each fold is later than what it learns from, windows grow, and days are in one fold; searches have them too."""
    relation, before = fed.sql(SQL, label="price"), 0
    for train, test in Folding(relation, 4, 0, time="o.day").sides():
        assert max(column(train, "day")) < min(column(test, "day"))
        assert len(train) > before
        assert len(test) == pytest.approx(ROWS / 5, abs=2)
        before = len(train)
    learner = tp.LinearRegression(l2=0.1)
    alone = tp.cross_validate(learner, relation, folds=4, time="o.day")["test_rmse"].mean()
    search = tp.GridSearch(learner, {"l2": [0.1]}, folds=4, time="o.day", metric="rmse").fit(relation)
    assert search.best_score_ == pytest.approx(alone, abs=1e-9)


def test_groups_of_folds_may_be_keys_and_tables(fed: tp.Federation) -> None:
    """``groups`` of folds takes what ``by`` takes."""
    relation = fed.sql(SQL, label="kind")
    for groups in ("o.card", "c"):
        for train, test in Folding(relation, 3, 0, groups=groups).sides():
            assert not set(column(train, "card")) & set(column(test, "card"))


def test_what_cannot_be_split(fed: tp.Federation) -> None:
    """Errors say what would do."""
    relation = fed.sql(SQL, label="kind")
    for given, message in [
        ({"by": "o.cod"}, "no selected column, no column that tables are joined by.*'o.code'"),
        ({"by": 3}, "by is the name of a column"),
        ({"by": "code", "stratify": True}, "give by or stratify"),
        ({"stratify": "kind"}, "stratify is True or False"),
        ({"after": START}, "after needs the column"),
        ({"after": 3, "by": "day"}, "after is a date or datetime"),
        ({"after": START, "by": "hour"}, "after is a number"),
        ({"after": START, "by": "kind"}, "which is no number"),
    ]:
        with pytest.raises(tp.LearnError, match=message):
            relation.split(**given)  # type: ignore[arg-type]
    with pytest.raises(tp.LearnError, match="stratify needs a label"):
        fed.sql(SQL).split(stratify=True)
    with pytest.raises(tp.LearnError, match="give groups or stratified or time"):
        tp.cross_validate(tp.LogisticRegression(), relation, stratified=True, time="day")
    with pytest.raises(tp.LearnError, match="too few different values for 30 folds"):
        tp.cross_validate(tp.LogisticRegression(), relation, folds=30, time="hour")


def test_a_time_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """A row without a time is on neither side: the error says how many, and what to add."""
    table = pa.table({"day": [START, None, START], "x": [1.0, 2.0, 3.0]})
    relation = federation(tmp_path, {"p0": {"t": table}}).sql("SELECT day, x FROM t", label="x")
    with pytest.raises(tp.LearnError, match=r"no value in 1 rows; add WHERE t\.day IS NOT NULL"):
        relation.split(after=START, by="day")


def test_empty_sides_and_relations(fed: tp.Federation) -> None:
    """A time after all rows is a warning; a relation without rows splits into two empty ones in every way."""
    seen: list[tp.Event] = []
    fed.events.subscribe(seen.append)
    assert len(fed.sql(SQL, label="kind").split(after=date(2030, 1, 1), by="day")[1]) == 0
    assert [event.fields["side"] for event in seen if event.name == "split.empty"] == ["test"]
    nothing = fed.sql(f"{SQL} WHERE FALSE", label="kind")
    for given in ({"by": "code"}, {"stratify": True}, {"by": "day", "after": START}):
        assert [len(side) for side in nothing.split(**given)] == [0, 0]


def test_columns_are_sent_only_where_policies_allow(tmp_path: Path) -> None:
    """A column of groups or of times is sent by tables that say ``cross_statistics``; times can be filtered instead."""
    relation = policed(open_party(write_file(tmp_path))).sql("SELECT region, credit, fraud FROM cards", label="fraud")
    with pytest.raises(tp.PrivacyError, match=r"split: .*column 'region'.*rule cross_statistics"):
        relation.split(by="region")
    with pytest.raises(tp.PrivacyError, match=r"split: .*column 'credit'.*two queries.*rule cross_statistics"):
        relation.split(by="credit", after=1)
    with pytest.raises(tp.PrivacyError, match=r"time: .*column 'credit'.*rule cross_statistics"):
        tp.cross_validate(tp.LogisticRegression(), relation, time="credit")


def test_groups_of_a_join_key_release_what_the_join_has_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a policy forbids of columns: the digests are those of the opened session, byte by byte, and the
    choice of rows is counted as a split. Nothing else leaves, and other columns stay forbidden.
    """
    (tmp_path / "state").mkdir()
    noise, state = "[tables.cards.budget]\nrequire_dp = true", 'state_dir = "state"'
    fed = policed(open_party(write_file(tmp_path, top=state, more=noise, limits="max_splits = 1")))
    messages = record_wire(monkeypatch)
    relation = fed.sql("SELECT a.open, b.region FROM cards a JOIN cards b ON a.card = b.card")
    train, test = relation.split(test=0.5, by="a.card", seed=1)
    assert (len(train), len(test)) == (30, 30)
    digests = [each.reply for each in messages if (each.request.op, each.request.table) == ("keys.blind", "a")]
    assert len(digests) == 2
    assert digests[0] is not None
    assert digests[1] is not None
    assert set(digests[0]) == set(digests[1])
    assert all(np.array_equal(digests[0][name], digests[1][name]) for name in digests[0])
    asked = [each.request.op for each in messages]
    assert set(asked) == {"describe", "open", "keys.blind", "rows.use", "rows.sample"}
    assert asked.count("rows.sample") == 2
    with pytest.raises(tp.PrivacyError, match="rule require_dp"):
        relation.split(by="b.region")
    with pytest.raises(tp.PrivacyError, match="rule max_splits"):
        relation.split(test=0.5, by="a.card", seed=2)
