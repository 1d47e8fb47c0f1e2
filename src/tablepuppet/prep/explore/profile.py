"""`relation.profile()`: an overview of the joined rows: every column, how columns depend on each other, and warnings.

Input: the statistics of this package, each if policies allow it. Output: a `Profile`, which a notebook shows and `save`
writes as one self-contained page (profile_page.py). It contains values of public columns only. With a `Privacy`, most
of it is computed from the releases of the description; lists of categories are asked for in addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.arrays import Array
from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.category_names import CategoryNames, Coded, ask_public_names
from tablepuppet.prep.columns.ids import NumberIds, about_id
from tablepuppet.prep.columns.selected import (
    check_without_noise,
    find_category,
    find_columns,
    is_category,
    is_number,
    is_public,
    sends_across,
)  # fmt: skip
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import CategoryStatistics, CategorySummary, NumberStatistics
from tablepuppet.prep.explore.beside_label import Related, beside_label
from tablepuppet.prep.explore.correlation import ColumnMatrix, all_withheld, correlation
from tablepuppet.prep.explore.crosstab import Crosstab, count_pairs
from tablepuppet.prep.explore.describe import LEFT_OUT, Description, NoisyColumn, describe_exactly
from tablepuppet.prep.explore.groups import sums_by_group
from tablepuppet.prep.explore.histograms import Histogram, has_bins, histograms
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, noisy_features
from tablepuppet.prep.explore.pooled import label_categories
from tablepuppet.prep.explore.profile_page import Against, CategoryBars, Profile, Warned
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import UNKNOWN, WITHHELD
from tablepuppet.sql.query import OutputColumn, Query
from tablepuppet.sql.types import Family, family

BINS, NOISY_BINS = 30, 32
SHOWN = 8  # categories with bars
MUCH_MISSING, SKEWED, RARE, LEAKS, FENCE = 0.2, 2.0, 0.01, 0.95, 3.0
FEW = 10  # different values up to which a number's tail is no matter
SAME = 1 - 1e-9  # correlation from which two columns are one
FEW_CLASSES = 20  # different whole numbers up to which a label counts as classes
LEFT_OUT_OF_PAGE = {
    "min, max": LEFT_OUT["min, max"],
    "distinct": "a single row can add a category",
    "skew, kurtosis": LEFT_OUT["skew, kurtosis"],
    "correlations": "pairs of columns have no form with noise here",
    "columns that predict the label": "labels have noise by label_epsilon, in a fit",
    "names of categories": "they are values; categories are numbered by frequency",
}  # with noise
Row = dict[str, Any]


def profile(
    client: Client, names: Sequence[str] | None, max_categories: int, events: Events, noise: NoiseRequest | None = None
) -> Profile:
    """Ask for everything that a profile of the named columns, or of all, shows; with noise, of features."""
    if noise is not None:
        return _with_noise(client, names, events, noise)
    query = client.plan.query
    if names is not None:
        chosen = find_columns(client.plan, names, "profile")
        query = replace(query, outputs=chosen, label=query.label if query.label in chosen else None)
    return _exactly(client, query, max_categories, events)


def _with_noise(client: Client, names: Sequence[str] | None, events: Events, noise: NoiseRequest) -> Profile:
    """Noisy counts, means, quartiles, histograms and frequent categories only."""
    query, columns = client.plan.query, noisy_features(client, names, "profile")
    asked = NoisyStatistics(client, noise, "profile")
    wanted = NoisyColumn.all_of(asked, columns)
    texts = [column for column in columns if is_category(column, query.categorical) and not is_number(column)]
    frequent = {column: asked.categories(column) for column in texts}
    spent = asked.ask(events)
    rows, drawn, bars = [each.row() for each in wanted], dict[str, Histogram](), dict[str, CategoryBars]()
    for row, each in zip(rows, wanted, strict=True):
        if each.distribution is not None and not (found := each.distribution()).is_hidden:
            edges, counts, sigma = found.merged(NOISY_BINS)
            missing = row["missing"]
            drawn[row["column"]] = Histogram(each.column, edges, counts, missing, exact=False, noise=sigma, spent=spent)
    for column, read in frequent.items():
        counts = np.maximum(read(), 0.0)
        largest = counts[counts > 0][:SHOWN]
        if len(largest):
            listed = label_categories([None] * len(largest))
            bars[column.name] = CategoryBars(listed, largest.tolist(), float(counts.sum()))
    left_out = "; ".join(f"{what} ({why})" for what, why in LEFT_OUT_OF_PAGE.items())
    return Profile(
        query.sql, len(client.rows), Description(rows, spent), drawn, bars, None, list(_noisy_warnings(rows)),
        f"All numbers have noise: {spent}. Left out: {left_out}.", spent,
    )  # fmt: skip


def _noisy_warnings(rows: Sequence[Row]) -> Iterator[Warned]:
    """What noisy numbers show beyond doubt."""
    for row in rows:
        name, total, noise = row["column"], row["count"] + row["missing"], 2 * row["count_noise"]
        if row["missing"] - noise > MUCH_MISSING * total:
            yield Warned(name, "missing", f"is missing in about {row['missing'] / total:.0%} of the joined rows")
        elif row["count"] < noise:
            yield Warned(name, "hidden", "noise hides it: use more rows, a larger epsilon or fewer columns")


def _exactly(client: Client, query: Query, max_categories: int, events: Events) -> Profile:
    columns, joined = query.outputs, len(client.rows)
    known = NumberStatistics(client, [column for column in columns if is_number(column)], shape=True)
    sent, ids = SentColumns(client), NumberIds(client, _numbers(query))
    asked = {
        column.name: CategoryStatistics(client, column, client.new_name(), max_categories, ties=True)
        for column in columns
        if is_category(column, query.categorical)
    }
    description = describe_exactly(client, columns, query.categorical, events, known)
    rows: dict[str, Row] = {row["column"]: row for row in description.to_arrow().to_pylist()}
    numbers = [
        c for c in columns if is_number(c) and c.name not in query.categorical and rows[c.name]["std"] is not None
    ]
    finite = [c for c in numbers if np.isfinite(rows[c.name]["std"]) and abs(rows[c.name]["mean"]) < 1e150]
    counted = {name: each.read() for name, each in asked.items()}
    names = _ask_names(client, asked, counted)
    compared = _Compared.all_of(client, query, rows)
    for each in compared:
        each.ask(client, sent)
    summaries = known.read()
    cut = [c for c in finite if not is_public(client.plan, c) or has_bins(c, summaries[c.name], BINS)]
    drawn = histograms(client, cut, BINS, known, fits_whole=True)
    bars = _bars(asked, counted, names)
    varied = [c for c in finite if rows[c.name]["std"] > 0]
    correlations = _correlations(client, varied, events, known, sent)
    warnings = [each for column in columns for each in _column_warnings(rows[column.name], drawn, joined)]
    warnings += [Warned(c.name, "unique", about_id(c)) for c in _numbers(query) if c.name in ids.read()]
    warnings += list(_duplicate_warnings(query, correlations))
    warnings += list(_category_warnings(counted, max_categories))
    related = list(_related(client, compared, correlations, max_categories, sent))
    warnings += list(_label_warnings(related))
    label = None if query.label is None else query.label.name
    against = _without_numbers(client, query) | beside_label(client, related)
    return Profile(query.sql, joined, description, drawn, bars, correlations, warnings, label=label, against=against)


def _without_numbers(client: Client, query: Query) -> dict[str, Against]:
    """What is said of features that cannot be compared with the label: whether policies withhold it."""
    if query.label is None:
        return {}
    alias = query.label.alias
    sent = {
        each.alias: each.alias == alias or sends_across(client.plan, (each.alias, alias)) for each in query.features
    }
    return {each.name: Against(UNKNOWN if sent[each.alias] else WITHHELD) for each in query.features}


def _most_frequent(found: CategorySummary) -> NDArray[np.intp]:
    """Their places; of public columns, equally frequent ones have the same order in every profile."""
    ties = found.ties if len(found.ties) else np.zeros(len(found.weights), np.uint64)
    return np.lexsort((ties, -found.weights))[:SHOWN]


def _ask_names(
    client: Client, asked: Mapping[str, CategoryStatistics], counted: Mapping[str, CategorySummary]
) -> CategoryNames:
    """Ask for the names of the most frequent categories of public columns."""
    frequent = {name: found.digests[_most_frequent(found)] for name, found in counted.items()}
    return ask_public_names(client, [Coded(each.column, each.blinding, frequent[name]) for name, each in asked.items()])


def _bars(
    asked: Mapping[str, CategoryStatistics], counted: Mapping[str, CategorySummary], names: CategoryNames
) -> dict[str, CategoryBars]:
    """The most frequent categories, by name where it is known."""
    texts, bars = names.by_column(), {}
    for name, found in counted.items():
        if len(found.digests):
            places = _most_frequent(found)
            lines = label_categories(texts.get(name, [None] * len(places)))
            bars[name] = CategoryBars(lines, found.weights[places].tolist(), float(found.weights.sum()))
    return bars


def _correlations(
    client: Client, columns: Sequence[OutputColumn], events: Events, known: NumberStatistics, sent: SentColumns
) -> ColumnMatrix | None:
    """Of pairs in one table only, where tables do not allow more; None where there are none."""
    if len(columns) < 2:
        return None
    across = sends_across(client.plan, {column.alias for column in columns})
    try:
        return correlation(client, [column.name for column in columns], across, events, "profile", known, sent)
    except (PrivacyError, LearnError) as error:
        events.emit("warning", "profile.part", f"the profile has no correlations: {error}", part="correlation")
        return all_withheld([column.name for column in columns]) if isinstance(error, PrivacyError) else None


def _column_warnings(row: Row, histograms: Mapping[str, Histogram], joined: int) -> Iterator[Warned]:
    name, count = row["column"], row["count"]
    if not count:
        yield Warned(name, "empty", "no joined row has a value")
        return
    if row["distinct"] == 1 or row["std"] == 0.0:
        yield Warned(name, "constant", "has one value only")
    if row["missing"] > MUCH_MISSING * joined:
        yield Warned(name, "missing", f"is missing in {row['missing'] / joined:.0%} of the joined rows")
    varied = row["distinct"] is None or row["distinct"] > FEW
    if varied and row["skew"] is not None and abs(row["skew"]) > SKEWED:
        side, advice = ("right", "; a logarithm may help") if row["skew"] > 0 else ("left", "")
        yield Warned(name, "skewed", f"has a long tail to the {side} (skew {row['skew']:.1f}){advice}")
    if name in histograms and None not in (row["q25"], row["q75"]):
        far = _beyond(histograms[name], row["q25"], row["q75"])
        if far > 0:
            yield Warned(
                name, "outliers", f"at least {far / count:.2%} of the values lie {FENCE:g} IQR beyond a quartile"
            )


def _beyond(found: Histogram, low: float, high: float) -> float:
    """Joined rows in bins completely beyond the fences; 0 if half of the column is one value."""
    width = high - low
    if not width > 0:
        return 0.0
    outside = (found.edges[1:] < low - FENCE * width) | (found.edges[:-1] > high + FENCE * width)
    return float(found.counts[outside].sum())


def _numbers(query: Query) -> list[OutputColumn]:
    """The features that are numbers, and not taken as categories."""
    return [column for column in query.features if is_number(column) and column.name not in query.categorical]


def _duplicate_warnings(query: Query, correlations: ColumnMatrix | None) -> Iterator[Warned]:
    """Numbers that are a multiple of another one, with a constant added: each once, beside the first such column."""
    if correlations is None:
        return
    features = {column.name for column in query.features}
    places = [place for place, name in enumerate(correlations.columns) if name in features]
    same = np.abs(correlations.values[np.ix_(places, places)]) > SAME
    for late in range(1, len(places)):
        early = np.flatnonzero(same[late, :late])
        if len(early):
            first = correlations.columns[places[early[0]]]
            yield Warned(correlations.columns[places[late]], "duplicate", f"is {first}, or {first} in other units")


def _category_warnings(counted: Mapping[str, CategorySummary], most: int) -> Iterator[Warned]:
    for name, found in counted.items():
        if found.distinct > most:
            yield Warned(name, "high cardinality", f"has {found.distinct:,} categories or more; learners take {most}")
            continue
        rare = found.weights < RARE * max(found.weights.sum(), 1.0)
        if rare.any():
            share = found.weights[rare].sum() / found.weights.sum()
            few = f"{np.count_nonzero(rare):,} of {found.distinct:,} categories"
            message = f"{few} have less than {RARE:.0%} of the rows each, {share:.1%} together"
            yield Warned(name, "rare categories", message)


def _is_few(column: OutputColumn, rows: Mapping[str, Row], few: int = FEW) -> bool:
    """Whether a column has few whole numbers, or booleans, each of which has a bar."""
    distinct = rows[column.name]["distinct"]
    is_whole = family(column.type) in (Family.INTEGER, Family.BOOLEAN)
    return is_whole and distinct is not None and distinct <= few


@dataclass(frozen=True)
class _Compared:
    """A feature and the label, and whether each counts as categories."""

    column: OutputColumn
    label: OutputColumn
    is_category: bool
    is_class: bool

    @classmethod
    def all_of(cls, client: Client, query: Query, rows: Mapping[str, Row]) -> list[_Compared]:
        """The features that may be compared with the label: of another table only if both send their columns."""
        label = query.label
        if label is None or not rows[label.name]["count"]:
            return []
        is_class = not is_number(label) or label.name in query.categorical or _is_few(label, rows, FEW_CLASSES)
        return [
            cls(column, label, is_category(column, query.categorical) or _is_few(column, rows), is_class)
            for column in query.features
            if column.alias == label.alias or sends_across(client.plan, (column.alias, label.alias))
        ]

    def ask(self, client: Client, sent: SentColumns) -> None:
        """Ask for columns of two tables, so that all are sent in one trip; nothing if they cannot be compared."""
        pair = (self.column, self.label)
        coded = [each for each, is_coded in zip(pair, (self.is_category, self.is_class), strict=True) if is_coded]
        if self.column.alias == self.label.alias or not coded:
            return
        with suppress(PrivacyError, LearnError):
            check_without_noise(client.plan, pair, "profile")
            for each in coded:
                find_category(client.plan, each.name, "profile")
            sent.ask_codes(coded)
            sent.ask_numbers([each for each in pair if each not in coded])


def _label_warnings(related: Sequence[Related]) -> Iterator[Warned]:
    """Features that predict the label almost perfectly: usually they were made from it, or are known only after it."""
    for each in related:
        if each.strength > LEAKS:
            message = f"{each.measure} with {each.label.name} is {each.strength:.3f}"
            yield Warned(each.column.name, "tells the label", message)


def _related(
    client: Client, compared: Sequence[_Compared], correlations: ColumnMatrix | None, most: int, sent: SentColumns
) -> Iterator[Related]:
    """How each feature and the label depend on each other, from 0 to 1, where it can be known."""
    for each in compared:
        try:
            yield _relate(client, each, correlations, most, sent)
        except (PrivacyError, LearnError) as error:  # not allowed, or too many categories
            yield Related(each.column, each.label, withheld=isinstance(error, PrivacyError))


def _relate(
    client: Client, each: _Compared, correlations: ColumnMatrix | None, most: int, sent: SentColumns
) -> Related:
    """How one feature and the label depend on each other; PrivacyError or LearnError if parties refuse it."""
    column, label = each.column.name, each.label.name
    if each.is_category and each.is_class:
        pairs = count_pairs(client, column, label, most, sent)
        strength = Crosstab((column, label), [], [], pairs.counts).cramers_v
        return Related(each.column, each.label, "Cramér's V", strength, pairs)
    if each.is_category or each.is_class:
        number, by = (label, column) if each.is_category else (column, label)
        groups = sums_by_group(client, number, by, most, sent)
        return Related(each.column, each.label, "correlation ratio", _ratio(groups.sums), groups)
    if correlations is None or not {column, label} <= set(correlations.columns):
        return Related(each.column, each.label)
    strength, withheld = abs(correlations[column, label]), correlations.is_withheld(column, label)
    return Related(each.column, each.label, "correlation", strength, withheld=withheld)


def _ratio(sums: Array) -> float:
    """The square root of the share of a number's variance that is between groups; NaN if it has no variance."""
    counts, means, within = sums[sums[:, 0] > 0].T
    mean = float(counts @ means) / max(float(counts.sum()), 1.0)
    between = float(counts @ (means - mean) ** 2)
    total = between + float(within.sum())
    return float(np.sqrt(between / total)) if total > 0 else float("nan")
