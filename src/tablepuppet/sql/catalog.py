"""The `Catalog`: which party publishes which table, with columns, types and row counts; never rows.

Tables of one name at several parties are shards of one vertical table. They must agree in columns and
types; where they do not, the catalog keeps the reason and raises it when the table is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tablepuppet.errors import CatalogError, PrivacyError, TablePuppetError
from tablepuppet.privacy.funds import Funds
from tablepuppet.runs.figures import NOT_APPLICABLE, number
from tablepuppet.runs.table_view import Align, TableResult, TableView
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.expression import columns_of, is_column
from tablepuppet.sql.types import widest


@dataclass(frozen=True)
class Shard:
    """One party's part of a vertical table (the paper's horizontal table)."""

    party: str
    name: str  # as the party spells it
    columns: Mapping[str, str]
    rows: int
    require_dp: bool = False  # what is released of its cells must have noise
    secure_sum: bool = False  # sums over its rows leave only within a sum over shards
    max_rounds: int | None = None  # replies with predictions, gradient sums or parameters that a session gets of it
    public: tuple[str, ...] = ()  # columns of which ops may release everything, names of categories too
    funds: tuple[Funds, ...] = ()  # what the caller may still spend on noise; none: nothing is bounded
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # that the policy gives columns
    categories: Mapping[str, tuple[str | int | float | bool, ...]] = field(
        default_factory=dict
    )  # that it lists: those of labels; of others nothing but that it does
    cross_statistics: bool = False  # columns may be sent, one number per row, for statistics across tables
    embeddings: tuple[int | None, int | None] | None = None  # how wide, how often of one row; None: none are released
    matrix: bool = False  # callers may multiply it with vectors of their own choice
    values: tuple[str, ...] = ()  # columns whose cells may be collected as features
    label_means: bool = False  # means of its labels may reach other parties, as numbers that stand for categories
    min_group: int = 0  # rows that a group must have to be released
    min_rows: int = 0  # rows that a product with a caller's vector must weigh
    require_approval: bool = False  # its operator approves a job before anything of it is read
    aggregates: bool = False  # a view that makes one row of several: of the party's own rows only
    estimated: bool = False  # ``rows`` is about right: they were not counted

    @property
    def counted(self) -> str:
        """The number of rows, for people; with ``~`` where it is estimated."""
        return f"{'~' if self.estimated else ''}{self.rows:,}"

    @cached_property
    def public_names(self) -> frozenset[str]:
        """The public columns, in lower case."""
        return frozenset(name.lower() for name in self.public)


@dataclass(frozen=True)
class VerticalTable:
    """The union of all tables published under one name."""

    name: str
    columns: Mapping[str, str]  # name -> the type that holds the values of all shards
    shards: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        """Rows over all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def counted(self) -> str:
        """The number of rows over all shards, for people; with ``~`` where some are estimated."""
        return f"{'~' if any(shard.estimated for shard in self.shards) else ''}{self.rows:,}"

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties that publish a shard of it."""
        return tuple(dict.fromkeys(shard.party for shard in self.shards))

    @property
    def partly_aggregated(self) -> str | None:
        """What to know of a table in several shards of which one aggregates; None for all others."""
        summed = next((shard.party for shard in self.shards if shard.aggregates), None)
        if summed is None or len(self.shards) < 2:
            return None
        return (
            f"table {self.name!r} has {len(self.shards)} shards, and party {summed!r} publishes it as a view that "
            "aggregates: it sums up that party's own rows only, so that a group with rows at several parties is there "
            f"once for each, with a part. If groups are not apart, publish the rows, or use {summed}.{self.name} alone"
        )

    def find(self, column: str) -> str | None:
        """The catalog's spelling of a column name, which SQL compares without regard to case."""
        if column in self.columns:
            return column
        return self._spellings.get(column.lower())

    @cached_property
    def _spellings(self) -> dict[str, str]:
        """The first column that is so in lower case."""
        return {name.lower(): name for name in reversed(list(self.columns))}


class Catalog(TableResult):
    """Vertical tables by name, as all parties of a federation publish them.

    ``refusals`` are the errors of parties that did not say what they publish. One that does not allow this caller
    publishes nothing to it. Of any other it is not known: a table that is named without its party may have a shard
    there, and is refused with that party's error.
    """

    def __init__(self, shards: Iterable[Shard], refusals: Mapping[str, TablePuppetError] = MappingProxyType({})):
        self._refusals = dict(refusals)
        self._shards: dict[str, list[Shard]] = {}  # by the table's name in lower case
        self._agreed: dict[tuple[str, frozenset[str]], VerticalTable] = {}  # what `table` found, by name and parties
        for shard in shards:
            self._shards.setdefault(shard.name.lower(), []).append(shard)

    @property
    def refusals(self) -> dict[str, str]:
        """Why parties did not say what they publish, by party."""
        return {party: str(error) for party, error in self._refusals.items()}

    def check_answered(self, party: str | None) -> None:
        """Raise the error of a party that did not say what it publishes; without a party, that of any, unless it
        publishes nothing to this caller.
        """
        for name, error in self._refusals.items():
            if name.lower() == party.lower() if party is not None else not isinstance(error, PrivacyError):
                raise error

    @property
    def parties(self) -> list[str]:
        """Every party that publishes a table."""
        return list(dict.fromkeys(shard.party for shards in self._shards.values() for shard in shards))

    @property
    def names(self) -> list[str]:
        """Names of the vertical tables."""
        return [shards[0].name for shards in self._shards.values()]

    def tables_of(self, party: str) -> str:
        """The tables of one party, as a list for people."""
        shards = [shard for shards in self._shards.values() for shard in shards if shard.party == party]
        return ", ".join(f"{shard.name} ({shard.counted} rows)" for shard in shards)

    def table(self, name: str, parties: Collection[str | None] = (None,)) -> VerticalTable:
        """The vertical table of that name, over the parties named; None among them stands for all that have it.

        Raises CatalogError if it is unknown or its shards do not agree.
        """
        for party in parties:
            self.check_answered(party)
        published = self._shards.get(name.lower())
        if published is None:
            known = did_you_mean(name, self.names) if self.names else "; none publishes any table"
            refused = "".join(f"; {why}" for why in self.refusals.values())
            raise CatalogError(f"no party publishes a table {name!r}{known}{refused}")
        wanted = {shard.party for shard in published} if None in parties else set(filter(None, parties))
        known_as = name.lower(), frozenset(wanted)
        if known_as not in self._agreed:
            self._agreed[known_as] = self._agreed_table(name, published, wanted)
        return self._agreed[known_as]

    def _agreed_table(self, name: str, published: list[Shard], wanted: set[str]) -> VerticalTable:
        """The vertical table over the shards of some parties; CatalogError if one has none, or they do not agree."""
        shards = [shard for shard in published if shard.party in wanted]
        missing = wanted - {shard.party for shard in shards}
        if missing:
            known = ", ".join(shard.party for shard in published)
            raise CatalogError(f"party {min(missing)!r} publishes no table {name!r}; it is at: {known}")
        twice = next((shard.party for shard in shards if [s.party for s in shards].count(shard.party) > 1), None)
        if twice is not None:
            spellings = " and ".join(repr(shard.name) for shard in shards if shard.party == twice)
            raise CatalogError(f"party {twice!r} publishes {spellings}; SQL ignores case, so publish one of them only")
        spelled = _spellings(published)
        agreed = {spelled(column): kind for column, kind in _agreed_columns(shards).items()}
        order = {name: place for place, name in enumerate(published[0].columns)}  # whichever shards are named
        columns = dict(sorted(agreed.items(), key=lambda item: order.get(item[0], len(order))))
        return VerticalTable(published[0].name, columns, tuple(shards))

    def tables(self) -> list[VerticalTable]:
        """All that is published, by the parties that said so; CatalogError if the shards of one do not agree."""
        return [self.table(name, {shard.party for shard in shards}) for name, shards in self._shards.items()]

    def to_arrow(self) -> pa.Table:
        """One row per column of each shard: table, party, column, type, rows."""
        rows = [
            {"table": shards[0].name, "party": shard.party, "column": column, "type": type_name, "rows": shard.rows}
            for shards in self._shards.values()
            for shard in shards
            for column, type_name in shard.columns.items()
        ]
        text = [(name, pa.string()) for name in ("table", "party", "column", "type")]
        return pa.Table.from_pylist(rows, schema=pa.schema([*text, ("rows", pa.int64())]))

    def table_view(self) -> TableView:
        """Columns by type of each shard, for people; with what is left of privacy budgets, if there are such."""
        rows = []
        has_budgets = any(shard.funds for shards in self._shards.values() for shard in shards)
        for shards in self._shards.values():
            for index, shard in enumerate(shards):
                least = min((each.left for each in shard.funds), default=None)
                left = [NOT_APPLICABLE if least is None else number(least)] if has_budgets else []
                begin = ["" if index else shard.name, shard.party, shard.counted, *left]
                is_same = index > 0 and shard.columns == shards[0].columns
                for type_name, names in [("", ["the same"])] if is_same else _by_type(shard.columns).items():
                    rows.append([*begin, type_name, ", ".join(names)])
                    begin = [""] * len(begin)
        sides: dict[str, Align] = {"table": "left", "party": "left", "rows": "right"}
        sides |= {"epsilon left": "right"} if has_budgets else {}
        return TableView("Catalog", sides | {"type": "left", "columns": "left"}, rows)


def _by_type(columns: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of columns by their types.

    >>> _by_type({"id": "BIGINT", "name": "VARCHAR", "year": "BIGINT"})
    {'BIGINT': ['id', 'year'], 'VARCHAR': ['name']}
    """
    found: dict[str, list[str]] = {}
    for name, type_name in columns.items():
        found.setdefault(type_name, []).append(name)
    return found


def _spellings(shards: list[Shard]) -> Callable[[str], str]:
    """The spelling of the first shard that has a column: the same one, whichever shards a query names."""
    first: dict[str, tuple[Shard, str]] = {}
    for shard in shards:
        for name in shard.columns:
            first.setdefault(name.lower(), (shard, name))

    def spelled(column: str) -> str:
        shard, name = first[column.lower()]
        return column if column in shard.columns else name

    return spelled


def _agreed_columns(shards: list[Shard]) -> dict[str, str]:
    """Columns in the first shard's order and spelling, each with the type that holds all shards' values."""
    first = shards[0]
    names = {name.lower(): name for name in first.columns}
    types = {name: [type_name] for name, type_name in first.columns.items()}
    for shard in shards[1:]:
        lowered = {name.lower(): type_name for name, type_name in shard.columns.items()}
        for here, there, absent in ((first, shard, names.keys() - lowered), (shard, first, lowered.keys() - names)):
            if absent:
                raise CatalogError(
                    f"shards of table {first.name!r} differ: party {here.party!r} has column {sorted(absent)[0]!r}, "
                    f"party {there.party!r} has not; publish a view with the same columns, "
                    f"or name one shard in the SQL as {there.party}.{there.name}"
                )
        for lower, type_name in lowered.items():
            types[names[lower]].append(type_name)
    agreed: dict[str, str] = {}
    for name, found in types.items():
        agreement = widest(found)
        if agreement is None:
            typed = zip(found, shards, strict=True)
            one, two = next(pair for pair in combinations(typed, 2) if widest([pair[0][0], pair[1][0]]) is None)
            raise CatalogError(
                f"shards of table {first.name!r} differ in column {name!r}: {one[0]} at party {one[1].party!r}, "
                f"{two[0]} at party {two[1].party!r}; publish a view that casts one of them"
            )
        agreed[name] = agreement
    return agreed


def described(expression: str, known: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The policy's bounds or categories of an expression; None unless the expression is a single column."""
    if not known or not is_column(expression):
        return None
    column = columns_of(expression)[0].lower()
    return next((values for name, values in known.items() if name.lower() == column), None)
