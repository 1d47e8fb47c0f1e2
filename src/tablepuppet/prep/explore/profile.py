"""`relation.profile()`: an overview of the joined rows: every column, how columns depend on each other, and warnings.

Input: the statistics of this package, each if policies allow it. Output: a `Profile`, which a notebook shows and `save`
writes as one self-contained page (profile_page.py). It contains values of public columns only. With a `Privacy`, most
of it is computed from the releases of the description; lists of categories are asked for in addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import LearnError, PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.category_names import CategoryNames, Coded, ask_public_names
from tablepuppet.prep.columns.ids import NumberIds, about_id
from tablepuppet.prep.columns.selected import (
    find_columns,
    is_category,
    is_number,
    is_public,
    sends_across,
)  # fmt: skip
from tablepuppet.prep.columns.sent_columns import SentColumns
from tablepuppet.prep.columns.statistics import CategoryStatistics, CategorySummary, NumberStatistics
from tablepuppet.prep.explore.beside_label import FEW, Compared, beside_label
from tablepuppet.prep.explore.correlation import ColumnMatrix, all_withheld, correlation
from tablepuppet.prep.explore.describe import LEFT_OUT, Description, NoisyColumn, describe_exactly
from tablepuppet.prep.explore.histograms import Histogram, has_bins, histograms
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, noisy_features
from tablepuppet.prep.explore.pooled import label_categories
from tablepuppet.prep.explore.profile_page import Against, CategoryBars, Profile, Warned
from tablepuppet.runs.events import Events
from tablepuppet.runs.figures import UNKNOWN, WITHHELD
from tablepuppet.sql.query import OutputColumn, Query

Row = Mapping[str, Any]
BINS, NOISY_BINS = 30, 32
SHOWN = 8  # categories with bars
MUCH_MISSING, SKEWED, RARE, LEAKS, FENCE = 0.2, 2.0, 0.01, 0.95, 3.0
SAME = 1 - 1e-9  # correlation from which two columns are one
LEFT_OUT_OF_PAGE = {
    "min, max": LEFT_OUT["min, max"],
    "distinct": "a single row can add a category",
    "skew, kurtosis": LEFT_OUT["skew, kurtosis"],
    "correlations": "pairs of columns have no form with noise here",
    "columns that predict the label": "labels have noise by label_epsilon, in a fit",
    "names of categories": "they are values; categories are numbered by frequency",
}  # with noise


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
    frequent = {name: found.digests[_most_frequent(found)] for name, found in counted.items()}
    names = ask_public_names(
        client, [Coded(each.column, each.blinding, frequent[name]) for name, each in asked.items()]
    )
    compared = Compared.all_of(client, query, rows)
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
    related = [each.relate(client, correlations, max_categories, sent) for each in compared]
    for found in related:  # what predicts the label almost perfectly was mostly made from it, or is known only after it
        if found.strength > LEAKS:
            message = f"{found.measure} with {found.label.name} is {found.strength:.3f}"
            warnings.append(Warned(found.column.name, "tells the label", message))
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
