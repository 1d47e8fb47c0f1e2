"""`profile` with a `Privacy`: a page with noisy counts, means, quartiles, histograms and frequent categories only.

Most of it is computed from the releases of the description and costs nothing more; only the lists of categories are
asked for in addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.selected import is_category, is_number
from tablepuppet.prep.explore.histograms import Histogram
from tablepuppet.prep.explore.noisy_describe import LEFT_OUT, NoisyDescription, want_columns
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest, NoisyStatistics, noisy_features
from tablepuppet.prep.explore.pooled import label_categories
from tablepuppet.prep.explore.profile import MUCH_MISSING, SHOWN
from tablepuppet.prep.explore.profile_page import CategoryBars, Profile, Warned
from tablepuppet.runs.events import Events

BINS = 32
WITHOUT = {
    "min, max": LEFT_OUT["min, max"],
    "distinct": "a single row can add a category",
    "skew, kurtosis": LEFT_OUT["skew, kurtosis"],
    "correlations": "pairs of columns have no form with noise here",
    "columns that predict the label": "labels have noise by label_epsilon, in a fit",
    "names of categories": "they are values; categories are numbered by frequency",
}


def noisy_profile(
    client: Client, noise: NoiseRequest, names: Sequence[str] | None, bounds: Mapping[str, Any] | None, events: Events
) -> Profile:
    """Ask for everything that a profile shows with noise."""
    query = client.plan.query
    columns = noisy_features(client, names, "profile")
    texts = [column for column in columns if is_category(column, query.categorical) and not is_number(column)]
    asked = NoisyStatistics(client, noise, "profile")
    wanted = want_columns(client, asked, columns, bounds, "profile")
    frequent = {column: asked.categories(column) for column in texts}
    spent = asked.ask(events)
    rows, histograms, bars = [each.row() for each in wanted], {}, {}
    for row, each in zip(rows, wanted, strict=True):
        if each.distribution is not None and not (found := each.distribution()).is_hidden:
            edges, counts, sigma = found.merged(BINS)
            histograms[each.column.name] = Histogram(
                each.column, edges, counts, row["missing"], exact=False, noise=sigma, spent=spent
            )
    for column, read in frequent.items():
        counts = np.maximum(read(), 0.0)
        largest = counts[counts > 0][:SHOWN]
        if len(largest):
            names_ = label_categories(column, [None] * len(largest))
            bars[column.name] = CategoryBars(names_, largest.tolist(), float(counts.sum()))
    description = NoisyDescription(rows, spent)
    left_out = "; ".join(f"{what} ({why})" for what, why in WITHOUT.items())
    note = f"All numbers have noise: {spent}. Left out: {left_out}."
    return Profile(query.sql, len(client.rows), description, histograms, bars, None, list(_warnings(rows)), note, spent)


def _warnings(rows: Sequence[Mapping[str, Any]]) -> Iterator[Warned]:
    """What noisy numbers show beyond doubt."""
    for row in rows:
        total, noise = row["count"] + row["missing"], 2 * row["count_noise"]
        if row["missing"] - noise > MUCH_MISSING * total:
            yield Warned(
                row["column"], "missing", f"is missing in about {row['missing'] / total:.0%} of the joined rows"
            )
        elif row["count"] < noise:
            yield Warned(row["column"], "hidden", "noise hides it: use more rows, a larger epsilon or fewer columns")
