"""`relation.histogram()`: the histogram of a column over joined rows.

For a public column the bins are those of `numpy.histogram`: equally wide between minimum and maximum, in two trips. For
other columns the extremes are not released: their bins are cells with enough rows each (distribution.py), and contain
about equally many rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PartyError
from tablepuppet.operators.client import Client
from tablepuppet.party.arguments import LARGEST, List
from tablepuppet.party.grant import refusal
from tablepuppet.party.groups import Grouped
from tablepuppet.party.local_table import LocalTable
from tablepuppet.party.ops import Values, op
from tablepuppet.party.policy import Level
from tablepuppet.party.release import Release
from tablepuppet.party.returns import JOINED, Asked, Numbers, OfGroups, Wrong
from tablepuppet.prep.columns.ordered import values_of
from tablepuppet.prep.columns.selected import check_without_noise, find_number, is_public
from tablepuppet.prep.columns.statistics import (
    MOST_BINS,
    AskedColumns,
    Bins,
    NumberStatistics,
    NumberSummary,
    present_numbers,
)
from tablepuppet.prep.columns.values import shown_value
from tablepuppet.prep.explore.distribution import Distribution, Distributions
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, Spent, noisy_features
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import number
from tablepuppet.runs.table_view import TableResult, TableView, aligned
from tablepuppet.sql.query import OutputColumn
from tablepuppet.sql.types import Family, family

BAR = 30  # letters of the longest bar
MOST_WHOLE = 2**52  # beyond it a float has no halves between whole numbers


@dataclass(frozen=True)
class BinCounts:
    """Joined rows by column and bin."""

    def check(self, value: Any, asked: Asked, reply: Mapping[str, Any]) -> None:
        Numbers(("columns", "bins"), least=0.0, most=JOINED).check(value, asked, reply)
        if asked.joined is not None and (value.sum(axis=1) > asked.joined).any():
            raise Wrong("has counts of more rows than are joined")


@op(
    "statistics.bins",
    asked="`describe`, `quantile`, `histogram`",
    releases=Release.STATISTICS | Release.HISTOGRAMS,
    columns=("columns",),
    returns={"counts": OfGroups(BinCounts())},
)
def count_bins(table: LocalTable, view: str, columns: Sequence[str], lows: List, highs: List, bins: Bins) -> Values:
    """Joined rows in equally wide bins of public columns: of any others, bins of a caller's choice could be cut until
    they reveal single values.
    """
    if lows.shape != (len(columns),) or highs.shape != lows.shape or not (lows < highs).all():
        raise PartyError(f"party {table.grant.party!r}: bins need a low and a higher number for each column")
    for name in columns:
        if table.level(name) is not Level.PUBLIC:
            reason = "is not public: its histogram has bins of the party's choice"
            raise refusal(table.grant.party, "level", reason, table.grant.table, [name])
    counts, groups = np.zeros((len(columns), bins)), np.zeros(len(columns), np.int64)
    for place, (name, low, high) in enumerate(zip(columns, lows, highs, strict=True)):
        values, weights, groups[place] = present_numbers(table, view, name)
        inside = np.isfinite(values)
        counts[place] = np.histogram(values[inside], bins, (float(low), float(high)), weights=weights[inside])[0]
    return {"counts": Grouped(counts, groups)}


@dataclass(frozen=True, repr=False, eq=False)
class Histogram(TableResult):
    """Joined rows by bins: ``counts[i]`` of ``edges[i]`` up to ``edges[i + 1]``, in the last bin including it.

    ``exact``: bins are equally wide and counts are those of `numpy.histogram`; else each bin has enough rows to be
    released, and if a table has several shards, rows are assumed to be evenly distributed in their bins. With a
    `Privacy` bins are equally wide, ``noise`` is the standard deviation of noise in every count, and ``spent`` what it
    has cost.
    """

    column: OutputColumn
    edges: Array
    counts: Array
    missing: int
    exact: bool
    noise: float = 0.0
    spent: Spent | None = None

    def to_arrow(self) -> pa.Table:
        """One row per bin: low, high, count."""
        return pa.table({"low": self.edges[:-1], "high": self.edges[1:], "count": self.counts})

    def table_view(self) -> TableView:
        """One row per bin, with a bar; of whole numbers one row per number, where no bin holds two of them."""
        by_value = self.by_value()
        counts = self.counts.tolist() if by_value is None else list(by_value.values())
        heads = ["from", "to"] if by_value is None else ["value"]
        named = self.ends() if by_value is None else [[value] for value in by_value]
        most = max([1.0, *counts])
        bars = [[f"{round(count):,}", "█" * round(BAR * max(count, 0.0) / most)] for count in counts]
        rows = [[*names, *bar] for names, bar in zip(named, bars, strict=True)]
        noise = f", each count ± {number(self.noise, 3)}; {self.spent}" if self.spent else ""
        return TableView(f"{self.column.name}{noise}", {**aligned([], [*heads, "joined rows"]), "": "left"}, rows)

    def ends(self, edges: Array | None = None) -> list[list[str]]:
        """From where to where each bin goes, as it is shown; of whole numbers, the least and the greatest in it."""
        edges = self.edges if edges is None else edges
        lows, highs = edges[:-1], edges[1:]
        if self.spent is None and family(self.column.type) is Family.INTEGER:
            lows, last = np.ceil(lows), np.floor(highs[-1:])
            highs = np.append(lows[1:] - 1, last)
        return [[self.label(low), self.label(high)] for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]

    def by_value(self) -> dict[str, float] | None:
        """Joined rows by value, if the column has whole numbers or booleans and no bin holds two of them."""
        kind = family(self.column.type)
        if not self.exact or kind not in (Family.INTEGER, Family.BOOLEAN) or not len(self.counts):
            return None
        lowest = np.ceil(self.edges[:-1])  # the whole number of a bin, if it has one
        after = np.append(lowest[1:], np.floor(self.edges[-1]) + 1)
        if (after - lowest > 1).any():
            return None
        some = self.counts > 0
        values = np.arange(lowest[some].min(), lowest[some].max() + 1) if some.any() else np.zeros(0)
        counts = np.bincount((lowest[some] - values[:1].sum()).astype(np.int64), self.counts[some], len(values))
        texts = ["false", "true"] if kind is Family.BOOLEAN else []
        names = [texts[int(value)] if texts else self.label(value) for value in values.tolist()]
        return dict(zip(names, counts.tolist(), strict=True))

    def label(self, value: float) -> str:
        """A value as it is shown."""
        return shown_value(value, family(self.column.type))


def histogram(client: Client, name: str, bins: int, events: Events, noise: NoiseRequest | None = None) -> Histogram:
    """The histogram of one column; with noise, in equally wide bins between bounds."""
    column, size = find_number(client.plan, name, "histogram"), checked_bins(bins)
    if noise is None:
        check_without_noise(client.plan, [column], "histogram")
        return histograms(client, [column], size)[column.name]
    noisy_features(client, [column.name], "histogram")
    asked = NoisyStatistics(client, noise, "histogram")
    pair = asked.bounds([column])[column.name]
    read = asked.bins(column, pair, size)
    spent, rows = asked.ask(events), asked.rows(column.alias)
    counts, sigma = read()
    missing = round(min(max(rows - float(counts.sum()), 0.0), rows))
    return Histogram(column, np.linspace(*pair, size + 1), counts, missing, exact=False, noise=sigma, spent=spent)


def checked_bins(bins: Any) -> int:
    """LearnError unless it is a number of bins."""
    if not isinstance(bins, Integral) or isinstance(bins, bool) or not 1 <= int(bins) <= MOST_BINS:
        raise LearnError(f"histogram: bins is a whole number from 1 to {MOST_BINS:,}, not {bins!r}")
    return int(bins)


def histograms(
    client: Client,
    columns: Sequence[OutputColumn],
    bins: int,
    numbers: NumberStatistics | None = None,
    *,
    fits_whole: bool = False,
) -> dict[str, Histogram]:
    """By column; ``numbers`` are statistics of the columns, if they were asked for before.

    Edges are NumPy's; with ``fits_whole``, those of public whole numbers are at halves, and there may be fewer.
    """
    bins = checked_bins(bins)
    public = [column for column in columns if is_public(client.plan, column)]
    asked = numbers or NumberStatistics(client, columns)
    cells = Distributions(client, [column for column in columns if column not in public])
    known = asked.read()
    found = _count(client, [column for column in public if known[column.name].count], known, bins, fits_whole)
    cells.refine(lambda each: np.flatnonzero(each.cells["weights"] * bins > each.total))
    for name, each in cells.read().items():
        found[name] = _of_cells(each, bins, known[name].missing)
    nothing = (np.zeros(0), np.zeros(0))
    for column in public:  # without a value it has no bins
        found.setdefault(column.name, Histogram(column, *nothing, known[column.name].missing, exact=True))
    return {column.name: found[column.name] for column in columns}


def _count(
    client: Client, columns: Sequence[OutputColumn], known: dict[str, NumberSummary], bins: int, fits_whole: bool
) -> dict[str, Histogram]:
    """Counts in equally wide bins between minimum and maximum, or around these (`_edges`)."""
    for column in columns:
        if known[column.name].not_finite:
            raise LearnError(f"histogram: column {column.name!r} has NaN or infinite values; filter them in WHERE")
        if (reason := _no_bins(column, known[column.name], bins, fits_whole)) is not None:
            raise LearnError(f"histogram: column {column.name!r} {reason}")
    edges = {column.name: _edges(column, known[column.name], bins, fits_whole) for column in columns}

    def ranges(listed: Sequence[OutputColumn]) -> dict[str, Any]:
        lows, highs = (np.array([edges[column.name][end] for column in listed]) for end in (0, -1))
        return {"lows": lows, "highs": highs, "bins": len(edges[listed[0].name]) - 1}

    by_bins: dict[int, list[OutputColumn]] = {}  # an op counts in as many bins for all its columns
    for column in columns:
        by_bins.setdefault(len(edges[column.name]), []).append(column)
    asked = [AskedColumns(client, "statistics.bins", listed, ranges) for listed in by_bins.values()]
    counts = {name: found for each in asked for name, found in each.read("counts").items()}
    drawn = {}
    for column in columns:
        ends, most = edges[column.name], known[column.name].maximum
        if ends[-1] > most + 1:  # the last bin of whole numbers has room for some beyond the greatest
            ends = np.append(ends[:-1], most + 0.5)
        missing = known[column.name].missing
        drawn[column.name] = Histogram(column, ends, np.sum(counts[column.name], axis=0), missing, exact=True)
    return drawn


def has_bins(column: OutputColumn, known: NumberSummary, bins: int) -> bool:
    """Whether the histogram of a public column can be asked for."""
    return not known.not_finite and (not known.count or _no_bins(column, known, bins, fits_whole=True) is None)


def _no_bins(column: OutputColumn, known: NumberSummary, bins: int, fits_whole: bool) -> str | None:
    """Why the range of a column's values cannot be cut into bins, and what to do; None if it can be."""
    if max(abs(known.minimum), abs(known.maximum)) > LARGEST:
        return f"has values beyond {LARGEST:g}; divide it by a number in SELECT, or filter them in WHERE"
    try:
        _edges(column, known, bins, fits_whole)
    except ValueError:  # bins would be narrower than numbers are apart
        return f"has too narrow a range for {bins:,} bins; shift it towards 0, or multiply it, in SELECT"
    return None


def _edges(column: OutputColumn, known: NumberSummary, bins: int, fits_whole: bool) -> Array:
    """Ends of equally wide bins. Those that fit whole numbers are at halves: each bin has as many different numbers.

    There are at most ``bins`` of these, and one per number where that is enough.
    """
    low, high = known.minimum, known.maximum
    if (
        not fits_whole
        or family(column.type) is not Family.INTEGER
        or max(abs(low), abs(high), high - low) >= MOST_WHOLE
    ):
        return np.asarray(np.histogram_bin_edges(np.array([low, high]), bins))
    numbers = round(high - low) + 1
    width = -(-numbers // bins)
    return np.asarray(low - 0.5 + width * np.arange(-(-numbers // width) + 1.0))


def _of_cells(known: Distribution, bins: int, missing: int) -> Histogram:
    """Bins that end where cells end, with at least their share of the rows each; of whole numbers, at halves."""
    if not known.total:
        return Histogram(known.column, np.zeros(0), np.zeros(0), missing, exact=False)
    low = int(known.cells["lows"].min())
    points, below = known.curve(low, known.highest)
    words = np.array([min(low + int(point), known.highest) for point in points], np.uint64)
    edges = values_of(words)
    if family(known.column.type) is Family.INTEGER:
        fits = np.abs(edges) < MOST_WHOLE
        edges[fits] = np.append(np.ceil(edges[:-1]) - 0.5, np.floor(edges[-1:]) + 0.5)[fits]
    kept = [0]
    for place in range(1, len(points)):
        if edges[place] != edges[kept[-1]] and below[place] - below[kept[-1]] >= known.total / bins:
            kept.append(place)
    kept[-1] = len(points) - 1 if len(kept) > 1 else kept[-1]
    kept = kept if len(kept) > 1 else [0, len(points) - 1]
    return Histogram(known.column, edges[kept], np.diff(below[kept]), missing, exact=False)
