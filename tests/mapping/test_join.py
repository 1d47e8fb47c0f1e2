"""The join of blinded keys, against every combination of rows tried one by one."""

from __future__ import annotations

import itertools
import resource
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tablepuppet.errors import MappingError
from tablepuppet.mapping.join import JoinBranch, ShardKeys, join
from tablepuppet.mapping.table_mapping import TableMapping

Key = int | None


def digest(value: int) -> NDArray[np.uint8]:
    """16 bytes that stand for a value."""
    return np.frombuffer(np.random.default_rng(value).bytes(16), np.uint8)


def shard(party: str, rows: int, keys: Mapping[str, Sequence[Key]]) -> ShardKeys:
    """What a party would tell of rows with these key values."""
    digests, codes = {}, {}
    for name, values in keys.items():
        distinct = sorted({value for value in values if value is not None}, key=lambda value: digest(value).tobytes())
        digests[name] = np.array([digest(value) for value in distinct], np.uint8).reshape(-1, 16)
        places = {value: place for place, value in enumerate(distinct)}
        narrow = np.min_scalar_type(len(distinct))
        codes[name] = np.array([places.get(value, len(distinct)) for value in values], narrow)  # type: ignore[arg-type]
    return ShardKeys(party, rows, digests, codes)


@dataclass(frozen=True)
class Case:
    """Tables as shards of rows, each row a value per key class; and branches over them."""

    shards: dict[str, list[list[dict[str, Key]]]]
    members: dict[str, frozenset[str]]
    branches: list[tuple[tuple[str, ...], dict[str, NDArray[np.bool_]]]]
    distinct: bool

    def mapping(self, memory_limit: int | None = None) -> TableMapping:
        tables = {}
        for alias, parts in self.shards.items():
            keys = [key for key, members in self.members.items() if alias in members]
            tables[alias] = [
                shard(f"p{i}", len(rows), {key: [row[key] for row in rows] for key in keys})
                for i, rows in enumerate(parts)
            ]
        branches = [
            JoinBranch({key: self.members[key] for key in keys}, {a: None if m.all() else m for a, m in rows.items()})
            for keys, rows in self.branches
        ]
        return join(tables, branches, self.distinct, memory_limit)

    def expected(self) -> list[tuple[int, ...]]:
        """All combinations of rows that agree, by trying them."""
        tables = {alias: [row for part in parts for row in part] for alias, parts in self.shards.items()}
        found = []
        for keys, chosen in self.branches:
            for combination in itertools.product(*(np.flatnonzero(chosen[alias]).tolist() for alias in tables)):
                rows = {alias: tables[alias][place] for alias, place in zip(tables, combination, strict=True)}
                values = [{rows[alias][key] for alias in self.members[key]} for key in keys]
                if all(len(value) == 1 and None not in value for value in values):
                    found.append(tuple(combination))
        return sorted(set(found)) if self.distinct else sorted(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    aliases = [f"t{i}" for i in range(draw(st.integers(1, 4)))]
    names = [f"key{i}" for i in range(draw(st.integers(0, 4)) if len(aliases) > 1 else 0)]
    members = {
        name: frozenset(draw(st.lists(st.sampled_from(aliases), min_size=2, max_size=4, unique=True))) for name in names
    }
    value = st.sampled_from([None, 0, 1, 2, 3, 4])
    row = st.fixed_dictionaries(dict.fromkeys(names, value))
    shards = {alias: draw(st.lists(st.lists(row, max_size=6), min_size=1, max_size=2)) for alias in aliases}
    branches = []
    for _ in range(draw(st.integers(1, 3))):
        keys = tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=4))) if names else ()
        rows = {}
        for alias, parts in shards.items():
            size = sum(map(len, parts))
            rows[alias] = np.array(
                draw(st.lists(st.sampled_from([True, True, False]), min_size=size, max_size=size)), bool
            )
        branches.append((keys, rows))
    return Case(shards, members, branches, draw(st.booleans()))


@settings(deadline=None, max_examples=250, derandomize=True)
@given(cases())
def test_join_finds_every_combination(case: Case) -> None:
    """Any keys over any tables, NULLs, several shards and branches: the rows are those that agree, each as often."""
    mapping = case.mapping()
    expected = case.expected()
    found = []
    for alias, table in mapping.tables.items():
        starts = np.cumsum([0, *(len(rows) for rows in case.shards[alias])])
        base = np.concatenate([s.row_ids + start for s, start in zip(table.shards, starts, strict=False)])
        assert len(set(base.tolist())) == len(base) == table.rows
        found.append(base[table.index].tolist())
        assert table.counts.sum() == len(mapping)
        assert (table.counts > 0).all()
    assert len(mapping) == len(expected)
    assert sorted(zip(*found, strict=True)) == expected
    sizes = {alias: sum(map(len, parts)) for alias, parts in case.shards.items()}
    order = sorted(sizes, key=lambda alias: -sizes[alias])
    if len(case.branches) > 1:  # a union is ordered by all its tables
        ordered = list(zip(*(mapping.tables[alias].index.tolist() for alias in order), strict=True))
        assert ordered == sorted(ordered)
    assert np.all(np.diff(mapping.tables[order[0]].index) >= 0)


def cross(rows: int) -> Case:
    """Two tables of which every row meets every row."""
    names = ["t0", "t1"]
    shards: dict[str, list[list[dict[str, Key]]]] = {name: [[{}] * rows] for name in names}
    return Case(shards, {}, [((), {name: np.ones(rows, bool) for name in names})], False)


def test_a_mapping_that_does_not_fit_is_refused_before_it_is_made() -> None:
    """A huge cross join is a MappingError with its size in rows and bytes, raised without taking the memory."""
    rows = 2_000_000
    tables = {name: [ShardKeys("p", rows, {}, {})] for name in ("a", "b")}
    branch = JoinBranch({}, {"a": None, "b": None})
    tracemalloc.start()
    with pytest.raises(MappingError, match=r"joining a and b gives 4,000,000,000,000 rows; their mapping takes 64 TB"):
        join(tables, [branch])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * rows


def test_many_to_many_is_refused_by_its_size() -> None:
    """A join in which both sides repeat their keys gives the number of joined rows in its error."""
    keys: dict[str, Sequence[Key]] = {"k": [1] * 30_000 + [2] * 10_000}
    tables = {name: [shard("p", 40_000, keys)] for name in ("a", "b")}
    branch = JoinBranch({"k": frozenset({"a", "b"})}, {"a": None, "b": None})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MappingError, match="1,000,000,000 rows"):
        join(tables, [branch], memory_limit=1 << 30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def test_memory_limit_is_respected() -> None:
    """The same join fits one limit and not a smaller one."""
    case = cross(100)
    assert len(case.mapping(memory_limit=10_000 * 4 * 4)) == 10_000
    with pytest.raises(MappingError, match="10,000 rows"):
        case.mapping(memory_limit=10_000 * 4 * 4 - 1)


def test_memory_limit_holds_for_unions() -> None:
    """Branches that fit one by one are refused when their union does not."""
    case = cross(100)
    both = Case(case.shards, case.members, case.branches * 3, False)
    with pytest.raises(MappingError, match="30,000 rows"):
        both.mapping(memory_limit=10_000 * 4 * 4 * 2)


def test_keys_of_many_classes_do_not_overflow() -> None:
    """Two tables that share many classes of many values each meet exactly where all agree."""
    rows, classes = 400, 8
    random = np.random.default_rng(5)
    values: dict[str, NDArray[np.int64]] = {f"key{i}": random.permutation(10_000)[:rows] for i in range(classes)}
    shuffled = random.permutation(rows)
    tables = {
        "a": [shard("p", rows, {name: column.tolist() for name, column in values.items()})],
        "b": [shard("q", rows, {name: column[shuffled].tolist() for name, column in values.items()})],
    }
    members = {name: frozenset({"a", "b"}) for name in values}
    mapping = join(tables, [JoinBranch(members, {"a": None, "b": None})])
    assert len(mapping) == rows
    index = mapping.tables["b"].index[np.argsort(mapping.tables["a"].index)]
    assert np.array_equal(shuffled[index], np.arange(rows))


def test_rows_that_join_nothing_have_no_place() -> None:
    """Dangling rows and NULL keys are gone from the mapping; the largest table is read in its order."""
    keys = frozenset({"a", "b"})
    tables = {
        "a": [shard("p", 5, {"k": [3, None, 1, 9, 1]})],
        "b": [shard("p", 2, {"k": [1, 4]}), shard("q", 2, {"k": [None, 3]})],
    }
    mapping = join(tables, [JoinBranch({"k": keys}, {"a": None, "b": None})])
    assert [s.row_ids.tolist() for s in mapping.tables["a"].shards] == [[0, 2, 4]]
    assert [s.row_ids.tolist() for s in mapping.tables["b"].shards] == [[0], [1]]
    assert mapping.tables["a"].index.tolist() == [0, 1, 2]
    assert mapping.tables["b"].index.tolist() == [1, 0, 0]
    assert Counter(mapping.counts("b").tolist()) == {1: 1, 2: 1}


def test_shards_with_interleaved_digests() -> None:
    """A shard whose first and last numbers look like the largest shard's, but no others, keeps its own codes."""
    first, second, third, fourth = sorted(range(4), key=lambda value: digest(value).tobytes())
    tables = {
        "a": [shard("p", 6, {"k": [first, third, first, third, first, third]})],
        "b": [shard("q", 4, {"k": [first, second, third, fourth]})],
    }
    mapping = join(tables, [JoinBranch({"k": frozenset({"a", "b"})}, {"a": None, "b": None})])
    assert [s.row_ids.tolist() for s in mapping.tables["b"].shards] == [[0, 2]]
    assert mapping.tables["b"].index.tolist() == [0, 1, 0, 1, 0, 1]
