"""Encoders: columns become the numbers a learner works on, at the party that owns them.

Fitted over joined rows and all shards: numbers are filled with the mean and standardised, text becomes one 0/1
column per category. The coordinator holds means, scales and the digests of categories; the values and the
encoded table stay at the party.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.mapping.digests import number_digests
from tablepuppet.mapping.table_mapping import ShardRows
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_memory
from tablepuppet.party.arguments import Means, Scales, fits
from tablepuppet.party.blind import blind
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.prep.category_names import CategoryNames, Coded
from tablepuppet.prep.encoded_table import EncodedTable, KnownCategories
from tablepuppet.prep.selected import is_public
from tablepuppet.prep.statistics import (
    CategoryStatistics,
    CategorySummary,
    KeyFamily,
    NumberStatistics,
    NumberSummary,
    check_family,
    key_family,
)
from tablepuppet.prep.values import numbers
from tablepuppet.runs.events import Events
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

ID_ROWS, ID_SHARE = 50, 0.95  # text with so many distinct values for its base rows is an id, no category
ID_HELP = f"{ID_SHARE:.0%} or more of its rows have a value of their own; list it in categorical to keep it"
SIZE = 16  # bytes of a digest
FARTHEST = 1e6  # scales off the mean: private encoders take what lies further as that far


@dataclass(frozen=True)
class NumberEncoder:
    """value -> (value - mean) / scale; a missing value is the mean."""

    column: OutputColumn
    mean: float
    scale: float

    @property
    def names(self) -> list[str]:
        """The name of its encoded column."""
        return [self.column.qualified]


@dataclass(frozen=True)
class CategoryEncoder:
    """One 0/1 column per category, the most frequent first; a missing or unknown category is all zeros."""

    column: OutputColumn
    digests: NDArray[np.uint8]  # by code
    shares: tuple[float, ...] = ()  # of the joined rows, by code; a loaded model has none

    @property
    def names(self) -> list[str]:
        """The names of its encoded columns."""
        return [f"{self.column.qualified}={code}" for code in range(len(self.digests))]


@dataclass(frozen=True)
class Encoding:
    """The encoders of a relation, kept with the model. ``id`` names the secret that categories are blinded under.

    ``private`` ones take every number: else an error would tell that there is a strange one.
    """

    id: str
    numbers: Mapping[str, tuple[NumberEncoder, ...]]  # by alias
    categories: Mapping[str, tuple[CategoryEncoder, ...]]
    private: bool = False

    def names(self, alias: str) -> list[str]:
        """Encoded columns of a table: numbers, then categories."""
        encoders: list[NumberEncoder | CategoryEncoder] = [*self.numbers[alias], *self.categories[alias]]
        return [name for encoder in encoders for name in encoder.names]

    def columns(self, alias: str) -> int:
        """Columns of a table that are encoded."""
        return len(self.numbers[alias]) + len(self.categories[alias])

    @property
    def encoded(self) -> list[OutputColumn]:
        """The columns that have an encoder."""
        return [each.column for part in (self.numbers, self.categories) for listed in part.values() for each in listed]

    def kept(self, columns: Iterable[OutputColumn]) -> list[OutputColumn]:
        """Those of the columns that have an encoder: the rest was left out when it was fitted."""
        encoded = {(each.alias, each.name) for each in self.encoded}
        return [column for column in columns if (column.alias, column.name) in encoded]

    def means(self, alias: str) -> NDArray[np.float64]:
        """The means of a table's encoded columns over the joined rows that the encoders were fitted on."""
        shares = [share for encoder in self.categories[alias] for share in encoder.shares]
        return np.array([0.0] * len(self.numbers[alias]) + shares)

    def squares(self, alias: str) -> NDArray[np.float64]:
        """The mean squares of these columns: numbers are standardised, the others are 0 or 1."""
        return np.maximum(self.means(alias), np.arange(len(self.names(alias))) < len(self.numbers[alias]))


def fit_encoding(
    client: Client, columns: Sequence[OutputColumn], categorical: frozenset[str], max_categories: int, events: Events
) -> Encoding:
    """Encoders for ``columns`` over the joined rows of a relation, applied at the parties.

    Constant and empty columns, and text that looks like an id or has too many categories, are left out with a warning
    event; an id that is listed in ``categorical`` is kept. Raises LearnError for values that are not finite, or too
    large to be squared.
    """
    identity = client.new_name()
    is_category = {c.name: c.name in categorical or family(c.type) in (Family.TEXT, Family.UUID) for c in columns}
    asked_numbers = NumberStatistics(client, [column for column in columns if not is_category[column.name]])
    asked = {
        column.name: CategoryStatistics(client, column, identity, max_categories)
        for column in columns
        if is_category[column.name]
    }
    summaries = asked_numbers.read()
    found: dict[str, tuple[list[NumberEncoder], list[CategoryEncoder]]] = {a: ([], []) for a in client.mapping.tables}
    for column in columns:
        if is_category[column.name]:
            summary = asked[column.name].read()
            if column.name not in categorical and is_id(summary.distinct, client.mapping.tables[column.alias].rows):
                drop_column(column, f"looks like an id: {ID_HELP}", events)
                continue
            encoder = _fit_category(column, summary, max_categories, len(client.mapping), events)
            found[column.alias][1].extend([encoder] if encoder else [])
            continue
        found[column.alias][0].extend(_fit_number(client, column, summaries[column.name], events))
    encoding = Encoding(
        identity,
        {alias: tuple(parts[0]) for alias, parts in found.items()},
        {alias: tuple(parts[1]) for alias, parts in found.items()},
    )
    build_encoding(client, encoding)
    return encoding


def is_id(distinct: int, rows: int) -> bool:
    """Whether text with so many distinct values in the base rows that take part names rows rather than kinds of them.

    >>> is_id(200, 200), is_id(49, 49), is_id(90, 100)
    (True, False, False)
    """
    return rows >= ID_ROWS and distinct >= ID_SHARE * rows


def _fit_number(client: Client, column: OutputColumn, summary: NumberSummary, events: Events) -> list[NumberEncoder]:
    named, told_by = f"column {column.qualified}", client.owners(column.alias)
    if summary.not_finite:
        raise LearnError(
            f"{named} has values that are not finite (NaN or infinity) in {round(summary.not_finite):,} joined rows; "
            f"filter them, or make them NULL with CASE {told_by}"
        )
    if not summary.count or summary.squares == 0.0:
        drop_column(column, "is empty" if not summary.count else "has one value only", events)
        return []
    if not (math.isfinite(summary.squares) and fits(np.array([summary.mean]), Means)):
        raise LearnError(
            f"{named} has values so large that their squares overflow; divide it in SELECT, or filter them {told_by}"
        )
    if not fits(np.array([summary.filled_std]), Scales):
        raise LearnError(
            f"{named} has values that differ by next to nothing, or by too much to be squared; multiply or divide it "
            f"in SELECT, or leave it out {told_by}"
        )
    return [NumberEncoder(column, summary.mean, summary.filled_std)]


def _fit_category(
    column: OutputColumn, summary: CategorySummary, most: int, joined_rows: int, events: Events
) -> CategoryEncoder | None:
    if summary.distinct > most:
        reason = f"has {summary.distinct:,} or more categories; raise max_categories ({most}) or use an expression"
        drop_column(column, reason, events)
        return None
    if summary.distinct == 0 or (summary.distinct == 1 and not summary.missing):
        drop_column(column, "has one value only" if summary.distinct else "is empty", events)
        return None
    order = np.lexsort((np.arange(summary.distinct), -summary.weights))
    return CategoryEncoder(column, summary.digests[order], tuple((summary.weights[order] / joined_rows).tolist()))


def drop_column(column: OutputColumn, reason: str, events: Events) -> None:
    """Tell that a column is no feature."""
    message = f"column {column.qualified} {reason}; it is left out"
    events.emit("warning", "column.dropped", message, column=column.qualified, reason=reason)


def encoder_names(client: Client, encoding: Encoding) -> dict[str, list[str | None]]:
    """What the categories of public columns are called, by ``alias.column`` in the order of codes."""
    encoders = [each for listed in encoding.categories.values() for each in listed]
    public = [each for each in encoders if is_public(client.plan, each.column)]
    names = CategoryNames(client, [Coded(each.column, encoding.id, each.digests) for each in public]).read()
    return {each.column.qualified: told for each, told in zip(public, names, strict=True)}


def apply_encoding(client: Client, encoding: Encoding) -> None:
    """Let every party encode its rows of another relation; the result stays there under the encoding's id."""
    if encoding.id in client.encodings:
        return
    build_encoding(client, encoding)


def build_encoding(client: Client, encoding: Encoding) -> None:
    """Let parties encode their rows of tables that were fitted; the result stays there under the encoding's id."""

    def arguments(alias: str, _: ShardRows) -> Mapping[str, Any] | None:
        if alias not in encoding.numbers:
            return None
        kept, categories = encoding.numbers[alias], encoding.categories[alias]
        return {
            "encoding": encoding.id,
            "columns": [encoder.column.name for encoder in kept],
            "means": np.array([encoder.mean for encoder in kept]),
            "scales": np.array([encoder.scale for encoder in kept]),
            "private": encoding.private,
            "categories": [(encoder.column.name, key_family(encoder.column)) for encoder in categories],
            **{f"digests{i}": encoder.digests for i, encoder in enumerate(categories)},
        }

    client.ask("encode.build", arguments)
    client.encodings.add(encoding.id)


def codes_of(digests: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The code of each digest among the known ones; -1 where it is new.

    PartyError if two known ones are equal: codes of new ones would then depend on each other.
    """
    (numbers_known, numbers_here), _ = number_digests([known, digests])
    if len(known) and numbers_known.max() + 1 < len(known):
        raise PartyError("a category is listed twice")
    return np.where(numbers_here < len(known), numbers_here, -1).astype(np.int32)


def within_bounds(values: NDArray[np.float64], bounds: tuple[float, float] | None) -> NDArray[np.float64]:
    """Values clipped to the policy's bounds, where it has some."""
    return values if bounds is None else np.clip(values, *bounds)


@dataclass(frozen=True)
class Encoded:
    """What ``encode.build`` keeps at a party: encoded rows, the rows they are, and whether they may get noise.

    ``private`` ones are of any numbers, none further than `FARTHEST` from the mean, and null records are all zeros.
    """

    data: EncodedTable
    view: RelationRows
    private: bool


@op(
    "encode.build",
    asked="encoders",
    releases=Release.COUNTS,
    columns=("columns", "categories"),
    use=Use.FEATURE,
    returns={},
)
def build(
    table: LocalTable,
    view: str,
    encoding: str,
    columns: Sequence[str],
    means: Means,
    scales: Scales,
    categories: Sequence[tuple[str, KeyFamily]],
    private: bool = False,
    **digests: NDArray[np.uint8],
) -> Values:
    """Encode the rows of a relation and keep them for the learner's ops; ``digests`` are the known categories.

    Rows of a table whose policy demands noise are encoded for noise, whatever the caller says.
    """
    _check_build(table, columns, means, scales, categories, digests)
    private, named = private or table.must_hide, [*columns, *(name for name, _ in categories)]
    rows = len(table.view(view).row_ids)
    check_memory(rows * (8 * len(columns) + 4 * len(categories)))
    dense = np.empty((rows, len(columns)))
    for place, name in enumerate(columns):
        values, present = numbers(table.column(name, view))
        if private:
            present = present & np.isfinite(values)
            values = within_bounds(values, table.grant.outputs[name].rule.bounds)
        with np.errstate(over="ignore", invalid="ignore"):
            dense[:, place] = np.where(present, (values - means[place]) / scales[place], 0.0)
    known = [digests[f"digests{place}"] for place in range(len(categories))]
    coded = []
    for (name, kind), codes in zip(categories, known, strict=True):
        blinded = blind([table.column(name, view)], [kind], table.category_key(encoding, name))
        coded.append(np.append(codes_of(blinded.digests, codes), np.int32(-1))[blinded.codes])
    if private:
        np.clip(dense, -FARTHEST, FARTHEST, out=dense)
        nulls = table.null_rows(named, view)
        dense[nulls] = 0.0
        coded = [np.where(nulls, np.int32(-1), codes) for codes in coded]
    lists = tuple(KnownCategories(*each, listed) for each, listed in zip(categories, known, strict=True))
    data = EncodedTable(dense, tuple(coded), tuple(map(len, known)), lists)
    table.state[f"{view}/{encoding}"] = Encoded(data, table.view(view), private)
    return {}


def _check_build(
    table: LocalTable, columns: Sequence[str], means: NDArray[np.float64], scales: NDArray[np.float64],
    categories: Sequence[tuple[str, str]], digests: Mapping[str, NDArray[np.uint8]],
) -> None:  # fmt: skip
    """PartyError unless arrays are as many as columns, and columns of types that can be encoded so."""
    where = f"party {table.grant.party!r}: encode.build"
    if means.shape != (len(columns),) or scales.shape != means.shape:
        raise PartyError(f"{where} needs a mean and a scale for each of its columns")
    if set(digests) != {f"digests{place}" for place in range(len(categories))}:
        raise PartyError(f"{where} needs digests for each of its categories")
    if any(each.ndim != 2 or each.shape[1] != SIZE for each in digests.values()):
        raise PartyError(f"{where} needs digests of {SIZE} bytes")
    for name, kind in categories:
        check_family(table, name, kind)
