"""Encodings: how columns become the numbers that a learner uses, at the party that owns them.

An `Encoding` is a fitted pipeline: steps for each table (specs.py), then a mean and a scale for each number and the
digests of categories for each text (pipelines/pipeline.py fits one). The coordinator holds these numbers and digests;
the values and the encoded table stay at the party.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tablepuppet.errors import LearnError, PartyError
from tablepuppet.operators.client import Client
from tablepuppet.party.allowance import check_memory
from tablepuppet.party.arguments import Means, Scales
from tablepuppet.party.blind import named_key
from tablepuppet.party.local_table import LocalTable, RelationRows
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Use
from tablepuppet.party.release import Release
from tablepuppet.pieces import pieces
from tablepuppet.prep.columns.category_names import CategoryNames, Coded
from tablepuppet.prep.columns.selected import is_public
from tablepuppet.prep.columns.statistics import KeyFamily, key_family
from tablepuppet.prep.encode.encoded_table import EncodedTable, KnownCategories, SealedTable
from tablepuppet.prep.encode.frame import Frame
from tablepuppet.prep.encode.program import Shapes, check_steps, inverse, read_frame, run, to_predict
from tablepuppet.prep.encode.specs import FittedStep
from tablepuppet.runs.events import Events
from tablepuppet.spelling import did_you_mean
from tablepuppet.sql.query import OutputColumn

BLOCK = 1 << 16  # numbers that are encoded before they are written into rows
FARTHEST = 1e6  # scales off the mean: private encoders take what lies further as that far


@dataclass(frozen=True)
class NumberEncoder:
    """value -> (value - mean) / scale; a missing value is the mean.

    Over the joined rows that it was fitted on, the result has the mean ``centre``, the mean square ``square`` and the
    standard deviation ``spread``.
    """

    column: OutputColumn
    mean: float
    scale: float
    centre: float = 0.0
    square: float = 1.0
    spread: float = 1.0

    @property
    def offset(self) -> float:
        """What is subtracted before columns are multiplied with each other: the centre, if it is beyond the spread.

        It is rounded to half a spread, as a multiple of a power of two: so the difference is exact.
        """
        if abs(self.centre) <= self.spread or not self.spread:
            return self.centre if not self.spread else 0.0
        unit = math.ldexp(0.5, math.frexp(self.spread)[1])  # the largest power of two that is not above the spread
        return round(self.centre / unit) * unit

    @property
    def centred_square(self) -> float:
        """The mean square of the result less its offset."""
        return self.spread**2 if self.offset else self.square

    @property
    def names(self) -> list[str]:
        """The name of its encoded column."""
        return [self.column.qualified]


@dataclass(frozen=True)
class CategoryEncoder:
    """One 0/1 column per category, the most frequent first; a missing or unknown category is all zeros.

    Codes after those of the digests, such as that of pooled categories or of bins, have a text in ``more``.
    """

    column: OutputColumn
    digests: NDArray[np.uint8]  # by code
    shares: tuple[float, ...] = ()  # of the joined rows, by code; a loaded model has none
    more: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.digests) + len(self.more)

    @property
    def names(self) -> list[str]:
        """The names of its encoded columns."""
        return [f"{self.column.qualified}={code}" for code in range(self.size)]


@dataclass(frozen=True)
class TableSteps:
    """What a party does with columns of a table before they are encoded, and the columns that it reads for that."""

    numbers: tuple[OutputColumn, ...] = ()
    categories: tuple[tuple[OutputColumn, NDArray[np.uint8]], ...] = ()  # with the digests that have codes
    steps: tuple[FittedStep, ...] = ()

    @property
    def columns(self) -> list[OutputColumn]:
        return [*self.numbers, *(column for column, _ in self.categories)]


@dataclass(frozen=True)
class Encoding:
    """The fitted pipeline of a relation, kept with the model. ``id`` names the secret by which categories are blinded,
    ``key`` is a mark of the blinding key that parties derived it from.

    ``steps`` are those of tables that have any: others are encoded as they are. ``private`` encoders accept every
    number, since an error would reveal that there is an unknown one. ``described`` are the pipeline's steps for people.
    """

    id: str
    key: str
    numbers: Mapping[str, tuple[NumberEncoder, ...]]  # by alias
    categories: Mapping[str, tuple[CategoryEncoder, ...]]
    private: bool = False
    steps: Mapping[str, TableSteps] = field(default_factory=dict)
    described: tuple[str, ...] = ()
    iv_: Mapping[str, float] = field(default_factory=dict)  # information values of columns that `WOE` has encoded

    def to_predict(self) -> Encoding:
        """The encoding for rows that were not learned from."""
        tables = {alias: replace(table, steps=to_predict(table.steps)) for alias, table in self.steps.items()}
        return replace(self, steps=tables)

    def names(self, alias: str) -> list[str]:
        """Encoded columns of a table: numbers, then categories."""
        encoders: list[NumberEncoder | CategoryEncoder] = [*self.numbers[alias], *self.categories[alias]]
        return [name for encoder in encoders for name in encoder.names]

    def columns(self, alias: str) -> int:
        return len(self.numbers[alias]) + len(self.categories[alias])

    def table(self, alias: str) -> TableSteps:
        """What a table's party reads, and does before it encodes."""
        if alias in self.steps:
            return self.steps[alias]
        categories = tuple((each.column, each.digests) for each in self.categories[alias])
        return TableSteps(tuple(each.column for each in self.numbers[alias]), categories)

    @property
    def encoded(self) -> list[OutputColumn]:
        """The selected columns that it reads."""
        return [column for alias in self.numbers for column in self.table(alias).columns]

    @property
    def has_categories(self) -> bool:
        """Whether it reads categories, which parties recognise by their digests."""
        return any(self.table(alias).categories for alias in self.numbers)

    def kept(self, columns: Iterable[OutputColumn]) -> list[OutputColumn]:
        """The columns that it reads; the others were left out when it was fitted."""
        encoded = {(each.alias, each.name) for each in self.encoded}
        return [column for column in columns if (column.alias, column.name) in encoded]

    def means(self, alias: str) -> NDArray[np.float64]:
        """The means of a table's encoded columns over the joined rows that the encoders were fitted on."""
        centres = [encoder.centre for encoder in self.numbers[alias]]
        return np.array(centres + [share for encoder in self.categories[alias] for share in encoder.shares])

    def squares(self, alias: str) -> NDArray[np.float64]:
        """The mean squares of these columns."""
        squares = [encoder.square for encoder in self.numbers[alias]]
        return np.array(squares + [share for encoder in self.categories[alias] for share in encoder.shares])

    def offsets(self, alias: str) -> NDArray[np.float64]:
        """What is subtracted from a table's columns of numbers before they are multiplied with each other."""
        return np.array([encoder.offset for encoder in self.numbers[alias]], np.float64)

    def spreads(self, alias: str) -> NDArray[np.float64]:
        """The standard deviations of a table's columns of numbers, 1 for a constant."""
        return np.array([encoder.spread or 1.0 for encoder in self.numbers[alias]], np.float64)

    def largest_square(self, alias: str) -> float:
        """The largest mean square of a column: 1 if all are standardised."""
        return max([1.0, *(encoder.square for encoder in self.numbers[alias])])

    def largest(self, alias: str) -> float:
        """The largest root mean square of a column: 1 if all are standardised."""
        return math.sqrt(self.largest_square(alias))

    def inverse(self, name: str, values: ArrayLike) -> NDArray[np.float64]:
        """Values of an encoded column of numbers in the units of the column that it was made of.

        Scaling, logarithms and powers are undone; what clipping or filling has changed stays changed. Raises LearnError
        for a column that is made of several, or of categories.
        """
        for alias, listed in self.numbers.items():
            for encoder in listed:
                if name in (encoder.column.qualified, encoder.column.name):
                    steps = self.table(alias).steps
                    return inverse(steps, encoder.column.name, np.asarray(values, float) * encoder.scale + encoder.mean)
        known = [each for alias in self.numbers for each in self.names(alias)]
        if name in known:
            raise LearnError(f"column {name!r} is one category of several: it has no inverse")
        raise LearnError(f"{name!r} is no encoded column{did_you_mean(name, known)}")


def drop_column(column: OutputColumn, reason: str, events: Events) -> None:
    """Tell that a column is no feature."""
    message = f"column {column.qualified} {reason}; it is left out"
    events.emit("warning", "column.dropped", message, column=column.qualified, reason=reason)


def encoder_names(client: Client, encoding: Encoding) -> dict[str, list[str | None]]:
    """What the categories of public columns are called, by ``alias.column`` in the order of codes."""
    encoders = [each for listed in encoding.categories.values() for each in listed]
    public = [each for each in encoders if len(each.digests) and is_public(client.plan, each.column)]
    names = CategoryNames(client, [Coded(each.column, encoding.id, each.digests) for each in public]).read()
    found = {each.column.qualified: [*known, *each.more] for each, known in zip(public, names, strict=True)}
    return found | {each.column.qualified: list(each.more) for each in encoders if not len(each.digests)}


def apply_encoding(client: Client, encoding: Encoding, *, learned: bool = False) -> None:
    """Let parties encode their rows of a relation, if they have not; the result stays there under the encoding's id.

    ``learned``: it was fitted to the statistics of these rows, which are encoded as these statistics have them.
    LearnError if a party would not recognise the categories of a loaded model.
    """
    if encoding.id in client.encodings:
        return
    _check_categories(client, encoding)
    arguments = {}
    for alias, numbers_ in encoding.numbers.items():
        client.widths[alias, encoding.id] = len(encoding.names(alias))
        arguments[alias] = {
            "encoding": encoding.id,
            "means": np.array([encoder.mean for encoder in numbers_]),
            "scales": np.array([encoder.scale for encoder in numbers_]),
            "private": encoding.private,
            **({"learned": True} if learned else {}),
            **read_arguments(encoding.table(alias)),
        }
    client.ask("encode.build", arguments)
    client.encodings.add(encoding.id)


def _check_categories(client: Client, encoding: Encoding) -> None:
    """LearnError unless all parties blind categories as those did that the encoding was fitted with.

    They do if they have the same blinding key. If not, a party in this process may have the secret from a saved model.
    And if columns of categories are computed as they were: digests of another expression are others.
    """
    computed = {column.name: column.expression for column in client.plan.query.outputs}
    for alias in encoding.numbers:
        for column, _ in encoding.table(alias).categories:
            here = computed.get(column.name, column.expression)
            if named_key(here) != named_key(column.expression):
                fitted = column.expression
                raise LearnError(
                    f"no category of column {column.qualified!r} would be recognised: it is {here!r} in this query, "
                    f"and was {fitted!r} where the model was fitted; select {fitted} AS {column.name}"
                )
    for alias in encoding.numbers if encoding.key != client.key else ():
        for shard in client.shards(alias) if encoding.table(alias).categories else ():
            known = client.engine.capabilities(shard.party).category_secrets
            if known is None or not known.knows_categories(encoding.id, encoding.key):
                raise LearnError(
                    f"party {shard.party!r} would recognise no category of table {alias!r}: this model blinds them "
                    "under another blinding key than that of this federation, and services keep to theirs. Fit and "
                    "save the model again over this federation, or open the one that it was fitted over"
                )


def read_arguments(table: TableSteps) -> dict[str, Any]:
    """The columns that an op reads, and the steps that it runs over them."""
    found: dict[str, Any] = {
        "columns": [column.name for column in table.numbers],
        "categories": [(column.name, key_family(column)) for column, _ in table.categories],
        **{f"digests{place}": digests for place, (_, digests) in enumerate(table.categories)},
    }
    return found | ({"steps": list(table.steps)} if table.steps else {})


@dataclass(frozen=True)
class EncodedShard:
    """What ``encode.build`` keeps at a party: encoded rows, the rows they are, and whether they may get noise.

    ``private`` ones are of any numbers, none further than `FARTHEST` from the mean, and null records are all zeros.
    Rows to predict, and rows for noise, are encoded each by itself; ``summed`` are the same rows for ops that release
    sums over them without noise, or keep something of them: as statistics have them, without what ``min_group`` hides.
    """

    data: SealedTable
    view: RelationRows
    private: bool
    summed: SealedTable | None = None  # as ``data``


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
    learned: bool = False,
    steps: Sequence[FittedStep] = (),
    **digests: NDArray[np.uint8],
) -> Values:
    """Run ``steps`` over the rows of a relation, encode them, and keep them for the learner's ops.

    ``digests`` are the known categories. There is a mean and a scale for each column of numbers that the steps leave.
    Rows of a table whose policy demands noise are encoded for noise, whatever the caller says. What steps make of a row
    depends on its own cells and on arguments only, and null records are all zeros after them: so a row's part of what
    noise is added to is bounded as without steps. Without noise, rows that a model learns from (``learned``) are as
    statistics have them: what ``min_group`` hides then depends on other rows too.
    """
    private, named = private or table.must_hide, [*columns, *(name for name, _ in categories)]
    frame, shapes = read_frame(
        table, "encode.build", view, encoding, columns, categories, steps, digests, private, learned
    )
    if means.shape != (len(shapes.numbers),) or scales.shape != means.shape:
        raise PartyError(f"party {table.grant.party!r}: encode.build needs a mean and a scale for each of its columns")
    rows = len(table.view(view).row_ids)
    check_memory(rows * (8 * len(shapes.numbers) + 4 * len(shapes.coded)))
    check_steps(steps, frame)
    lists = tuple(
        KnownCategories(name, kind, listed)
        for name, (kind, listed) in frame.categories.items()
        if name in shapes.coded and name in shapes.listed and len(listed)
    )
    codes = tuple(np.empty(0, np.int32) for _ in shapes.coded)
    empty = EncodedTable(np.empty((0, len(shapes.numbers))), codes, tuple(shapes.coded.values()), lists)

    def encoded_in(frame: Frame) -> SealedTable:
        compute = partial(_rows_of, frame, shapes, steps, means, scales, named, empty)
        return SealedTable(rows, empty, compute, table.snapshot.look)

    data = encoded_in(frame)
    if not private:
        data.open()
    is_hidden = not (frame.learned or table.must_hide) and table.grant.rules.min_group > 1
    summed = encoded_in(replace(frame, learned=True, private=False)) if is_hidden else None
    table.state[f"{view}/{encoding}"] = EncodedShard(data, table.view(view), private, summed)
    return {}


def _rows_of(
    frame: Frame, shapes: Shapes, steps: Sequence[FittedStep], means: Means, scales: Scales, named: Sequence[str],
    empty: EncodedTable,
) -> EncodedTable:  # fmt: skip
    """The rows as ``encode.build`` encodes them."""
    table, view, private = frame.table, frame.view, frame.private
    run(steps, frame)
    rows = len(table.view(view).row_ids)
    dense, names = np.empty((rows, len(shapes.numbers))), shapes.numbers
    for part in pieces(len(names), max(rows, 1), BLOCK):
        block = np.empty((part.stop - part.start, rows))  # rows of ``dense`` are written a few columns at a time
        for line, name, mean, scale in zip(block, names[part], means[part], scales[part], strict=True):
            column = frame.number(name)
            values, present = column.values, column.present
            if private:
                present = present & np.isfinite(values)
            with np.errstate(over="ignore", invalid="ignore"):
                np.subtract(values, mean, out=line)
                line /= scale
            if not present.all():
                line[~present] = 0.0
            frame.drop(name)
        dense[:, part] = block.T
    coded = [frame.coded(name).codes for name in shapes.coded]
    if private:
        np.clip(dense, -FARTHEST, FARTHEST, out=dense)
        nulls = table.null_rows(named, view)
        dense[nulls] = 0.0
        coded = [np.where(nulls, np.int32(-1), codes) for codes in coded]
    return EncodedTable(dense, tuple(coded), empty.sizes, empty.known)


def encoded(table: LocalTable, view: str, encoding: str) -> EncodedTable:
    """The encoded rows of a relation, for an op."""
    return sealed(table, view, encoding).open()


def sealed(table: LocalTable, view: str, encoding: str) -> SealedTable:
    """The encoded rows for an op that needs their sizes only; `open` gives the numbers."""
    found = _encoded(table, view, encoding)
    return found.data if found.summed is None or table.is_by_row else found.summed


def encoded_for_noise(table: LocalTable, view: str, encoding: str) -> SealedTable:
    """The encoded rows for what leaves with noise: each once, null records all zeros; refused if not encoded so."""
    found = _encoded(table, view, encoding)
    table.rows_once(view)
    if not found.private:
        raise table.grant.refusal("require_dp", "its rows were not encoded for noise; fit the model again")
    return found.data


def _encoded(table: LocalTable, view: str, encoding: str) -> EncodedShard:
    found = table.state.get(f"{view}/{encoding}")
    if not isinstance(found, EncodedShard) or found.view is not table.view(view):  # rows may be announced again
        raise PartyError(f"party {table.grant.party!r} has not encoded the rows of this relation; fit the model again")
    return found
