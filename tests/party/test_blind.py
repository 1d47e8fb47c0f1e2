"""Blinded values: equal values meet whatever type and database they come from, and nothing else does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tablepuppet as tp
from tablepuppet.party.blind import Blinded, blind, canonical, derive_key

KEY = bytes(range(32))


def blinded(values: Sequence[Any], type_: Any, family: str, key: bytes = KEY) -> Blinded:
    return blind([pa.chunked_array([pa.array(values, type_)])], [family], key)


def digests(values: Sequence[Any], type_: Any, family: str) -> list[bytes | None]:
    """The digest of each row; None for NULL."""
    found = blinded(values, type_, family)
    return [None if code == len(found.digests) else found.digests[code].tobytes() for code in found.codes.tolist()]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def test_numbers_of_all_types_meet() -> None:
    """A whole number has one digest in every integer width and as a decimal of any scale."""
    values = [0, 1, 100, None, 7]
    expected = digests(values, pa.int64(), "number")
    assert len(set(expected)) == 5
    for type_ in [*INTEGERS, pa.decimal128(10, 0), pa.decimal128(10, 2), pa.decimal128(38, 30)]:
        assert digests(values, type_, "number") == expected


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 2**63 - 1),
        (pa.int64(), -(2**63)),
        (pa.uint64(), 2**64 - 1),
        (pa.uint64(), 2**63),
        (pa.int8(), -128),
        (pa.int16(), 32767),
        (pa.decimal128(38, 0), 10**38 - 1),
    ],
)
def test_extreme_numbers(type_: Any, value: int) -> None:
    """The extremes of every integer type are told apart from their neighbours, and meet themselves as decimals."""
    near = value - 1 if value > 0 else value + 1
    found = digests([value, near, None, value], type_, "number")
    assert found[0] == found[3]
    assert len(set(found)) == 3
    assert found[2] is None
    assert found[0] == digests([Decimal(value)], pa.decimal128(38, 0), "number")[0]


def test_decimals_differ_by_value_not_by_scale() -> None:
    """2.5 is 2.500, not 25, 0.25 or -2.5; 0.00 is 0."""
    one = digests([Decimal("2.5"), Decimal("0"), Decimal("-2.5"), Decimal("100")], pa.decimal128(5, 1), "number")
    two = digests([Decimal("2.5"), Decimal("0"), Decimal("-2.5"), Decimal("100")], pa.decimal128(20, 6), "number")
    assert one == two
    others = digests([Decimal("25"), Decimal("0.25"), Decimal("1"), Decimal("10")], pa.decimal128(8, 2), "number")
    assert not set(one) & set(others)


def test_timestamps_meet_in_utc() -> None:
    """One moment has one digest, whatever its unit, and with a time zone as the same moment of UTC."""
    moments = [datetime(1969, 12, 31, 23, 59, 59), datetime(1970, 1, 1), datetime(2024, 2, 29, 12, 30), None]
    expected = digests(moments, pa.timestamp("us"), "timestamp")
    assert len(set(expected)) == 4
    for unit in ("s", "ms", "ns"):
        assert digests(moments, pa.timestamp(unit), "timestamp") == expected
    here = timezone(timedelta(hours=5, minutes=30))
    local = [moment and moment.replace(tzinfo=UTC).astimezone(here) for moment in moments]
    for zone in ("UTC", "Asia/Kolkata"):
        assert digests(local, pa.timestamp("us", zone), "timestamp") == expected


def test_nanoseconds_are_not_rounded() -> None:
    """Moments a nanosecond apart differ, also before 1970; a whole microsecond meets its coarser self."""
    values = [0, 1, 999, 1000, -1, -1000, 1_700_000_000_123_456_789]
    found = digests(values, pa.timestamp("ns"), "timestamp")
    assert len(set(found)) == len(values)
    assert [found[0], found[3], found[5]] == digests([0, 1, -1], pa.timestamp("us"), "timestamp")


def test_text_is_exact() -> None:
    """Case, blanks, accents by composition, emoji, NUL and the empty text are all different texts."""
    texts = ["", " ", "a", "A", "a ", "é", "e\u0301", "😀", "a\0", "a\0b", "1", "true", "1970-01-01", None]
    found = digests(texts, pa.string(), "text")
    assert len(set(found)) == len(texts)
    assert digests(texts, pa.large_string(), "text") == found
    dictionary = pa.chunked_array([pa.array(texts).dictionary_encode()])
    coded = blind([dictionary], ["text"], KEY)
    assert [None if c == len(coded.digests) else coded.digests[c].tobytes() for c in coded.codes.tolist()] == found


def test_other_families() -> None:
    """Dates, booleans and UUIDs are distinct values; values of different families never meet."""
    days = digests([date(1970, 1, 1), date(9999, 12, 31), date(1, 1, 1), None], pa.date32(), "date")
    assert len(set(days)) == 4
    flags = digests([True, False, None], pa.bool_(), "boolean")
    assert len(set(flags)) == 3
    identities = [str(uuid.UUID(int=n)) for n in (1, 2)]
    assert digests(identities, pa.string(), "uuid") != digests(identities, pa.string(), "text")
    assert not set(digests(["1", "true", "0"], pa.string(), "text")) & set(digests([1, 0], pa.int64(), "number"))


def test_parts_of_composite_keys_are_not_run_together() -> None:
    """("a", "bc") is not ("ab", "c"), nor are texts that imitate the lengths in between; ("", "x") is not ("x", "")."""
    pairs = [
        ("a", "bc"),
        ("ab", "c"),
        ("", "abc"),
        ("abc", ""),
        ("1:a", "b"),
        ("a", "1:b"),
        ("at1:b", "c"),
        ("a", "bt1:c"),
        ("a\0b", "c"),
        ("a", "b\0c"),
        ("a\0", "bc"),
    ]
    columns = [pa.array([pair[i] for pair in pairs]) for i in range(2)]
    found = blind([pa.chunked_array([column]) for column in columns], ["text", "text"], KEY)
    assert len({found.digests[code].tobytes() for code in found.codes}) == len(pairs)
    assert len(set(canonical(columns, ["text", "text"]).to_pylist())) == len(pairs)


@pytest.mark.parametrize(
    ("family", "values"),
    [
        *(("number", pa.array([0, 1, 100, 127], type_)) for type_ in INTEGERS),
        ("number", pa.array([-(2**63), -1, 2**63 - 1])),
        ("number", pa.array([2**64 - 1], pa.uint64())),
        ("boolean", pa.array([True, False])),
        ("text", pa.array(["", "a", "é", "x" * 999, "a\0b", "12:"])),
        ("uuid", pa.array(["c56a4180-65aa-42ec-a945-5fd21dec0538"], pa.large_string())),
    ],
)
def test_arrow_writes_what_sql_writes(family: str, values: pa.Array) -> None:
    """Parties of every version give a value the same digest: lengths are of bytes, values as SQL casts them to text."""
    with duckdb.connect() as database:
        database.register("given", pa.table({"it": values}))
        sql = "SELECT ? || strlen(CAST(it AS VARCHAR)) || ':' || CAST(it AS VARCHAR) FROM given"
        expected = [text for (text,) in database.execute(sql, [family[0]]).fetchall()]
    assert canonical([values], [family]).to_pylist() == expected


_FAMILIES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "number": (pa.int64(), st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))),
    "text": (pa.string(), st.text(max_size=3)),
    "date": (pa.date32(), st.dates()),
    "boolean": (pa.bool_(), st.booleans()),
    "timestamp": (pa.timestamp("us"), st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2200, 1, 1))),
}


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.data())
def test_digests_are_equal_exactly_where_keys_are(data: st.DataObject) -> None:
    """Of random keys of one to three columns, equal ones have one digest, others not; a NULL in any part has none."""
    families = data.draw(st.lists(st.sampled_from(list(_FAMILIES)), min_size=1, max_size=3))
    cells = st.tuples(*(st.one_of(st.none(), _FAMILIES[family][1]) for family in families))
    rows = data.draw(st.lists(cells, max_size=25))
    rows += data.draw(st.lists(st.sampled_from(rows), max_size=10)) if rows else []
    columns = []
    for place, family in enumerate(families):
        array = pa.array([row[place] for row in rows], _FAMILIES[family][0])
        middle = len(rows) // 2
        columns.append(pa.chunked_array([array[:middle], array[middle:]]))
    found = blind(columns, families, KEY)
    keys = [None if None in row else row for row in rows]
    codes = found.codes.tolist()
    assert {code for code, key in zip(codes, keys, strict=True) if key is None} <= {len(found.digests)}
    meaning: dict[int, Any] = {}
    for code, key in zip(codes, keys, strict=True):
        if key is not None:
            assert code < len(found.digests)
            assert meaning.setdefault(code, key) == key
    assert len(meaning) == len(set(meaning.values())) == len(found.digests)
    check_form(found)


def check_form(found: Blinded) -> None:
    """Digests are distinct and in digest order, codes of the narrowest type."""
    as_bytes = [digest.tobytes() for digest in found.digests]
    assert as_bytes == sorted(set(as_bytes))
    assert found.codes.dtype == np.min_scalar_type(len(found.digests))


@pytest.mark.parametrize(("distinct", "width"), [(0, 1), (1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_codes_are_narrow(distinct: int, width: int) -> None:
    """A code takes one byte up to 255 distinct values, two up to 65,535, then four: one code is NULL."""
    found = blinded([None, *range(distinct)], pa.int64(), "number")
    check_form(found)
    assert found.codes.itemsize == width
    assert found.codes[0] == distinct
    assert sorted(found.codes[1:].tolist()) == list(range(distinct))


def test_codes_do_not_follow_the_values() -> None:
    """Sorted values get codes in an order that the secret decides."""
    values = list(range(1000))
    first = blinded(values, pa.int64(), "number").codes.tolist()
    second = blinded(values, pa.int64(), "number", bytes(32)).codes.tolist()
    assert first != values
    assert first != second
    assert abs(float(np.corrcoef(values, first)[0, 1])) < 0.2
    assert abs(float(np.corrcoef(second, first)[0, 1])) < 0.2


def test_runs_and_classes_cannot_be_linked() -> None:
    """The same values in another run, another class of columns or under another secret have no digest in common."""
    keys = [
        derive_key(derive_key(secret, "run", run), "join key", label)
        for secret in (b"secret", b"other")
        for run in ("run", "run2")
        for label in ("a(x) = b(x)", "a(y) = b(y)")
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)
    told = [{digest.tobytes() for digest in blinded(range(50), pa.int64(), "number", key).digests} for key in keys]
    assert len(set().union(*told)) == 50 * len(keys)


def test_fields_of_a_digest_key_are_not_run_together() -> None:
    """("a\\0b", "c") has another key than ("a", "b\\0c"); so have fields that imitate a length, and other purposes."""
    fields = [("a\0b", "c"), ("a", "b\0c"), ("a", "b", "c"), ("abc",), ("ab", "c"), ("a", "bc"), ("abc", ""), ()]
    fields += [("", "abc"), ("a\0\0\0\0\0\0\0\1b", "c")]
    keys = {derive_key(b"secret", purpose, *each) for each in fields for purpose in ("run", "category")}
    assert len(keys) == 2 * len(fields)


@pytest.mark.parametrize(
    ("values", "family"),
    [(["2024-01-01"], "timestamp"), (["7"], "number"), ([7], "text"), ([7], "date"), ([7.5], "number"), ([7], "float")],
)
def test_a_family_is_that_of_the_column(values: list[Any], family: str) -> None:
    """Values are written in no other family's form: a cast there could fail on some of them, which would tell of it."""
    with pytest.raises(tp.PartyError, match="cannot be blinded as"):
        blind([pa.chunked_array([values])], [family], KEY)
    for families in ([], ["number", "number"]):
        with pytest.raises(tp.PartyError, match="one family for each"):
            blind([pa.chunked_array([[1]])], families, KEY)


def test_nothing_has_no_digest() -> None:
    """A column without rows, or of NULLs only, of any type, gives no digest and no error."""
    for family, (type_, _) in _FAMILIES.items():
        for values in ([], [None, None]):
            found = blinded(values, type_, family)
            assert found.digests.shape == (0, 16)
            assert found.codes.tolist() == [0] * len(values)
    empty = pa.chunked_array([], pa.int64())
    assert len(blind([empty, empty], ["number", "number"], KEY).codes) == 0
