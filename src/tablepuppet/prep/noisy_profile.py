"""`profile` with a `Privacy`: a page with noisy counts, means, quartiles, histograms and frequent categories only.

Most of it is computed from the releases of the description and costs nothing more; only the lists of categories are
asked for in addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tablepuppet.operators.client import Client
from tablepuppet.prep.crosstab import label_lines
from tablepuppet.prep.histograms import Histogram
from tablepuppet.prep.noisy_describe import (
    LEFT_OUT,
    NoisyDescription,
    description_rows,
    distributions_of,
    want_description,
)
from tablepuppet.prep.noisy_statistics import NoiseRequest, NoisyStatistics, noisy_features
from tablepuppet.prep.profile import MUCH_MISSING, SHOWN, Profile
from tablepuppet.prep.profile_page import CategoryBars, Warned
from tablepuppet.prep.selected import is_category, is_number
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
    want_description(client, asked, columns, bounds, "profile")
    for column in texts:
        asked.want_categories(column)
    spent = asked.ask(events)
    distributions, histograms, bars = distributions_of(asked, columns), {}, {}
    rows = description_rows(asked, columns, distributions)
    for row, column in zip(rows, columns, strict=True):
        if column.name in distributions and not distributions[column.name].is_hidden:
            edges, counts, sigma = distributions[column.name].merged(BINS)
            histograms[column.name] = Histogram(
                column, edges, counts, row["missing"], exact=False, noise=sigma, spent=spent
            )
    for column in texts:
        found = asked.categories(column)
        kept = found.counts > 0
        if kept.any():
            counts = found.counts[kept][:SHOWN]
            bars[column.name] = CategoryBars(
                label_lines(column, [None] * len(counts)), counts.tolist(), float(np.maximum(found.counts, 0.0).sum())
            )
    description = NoisyDescription(rows, columns, spent)
    left_out = "; ".join(f"{what} ({why})" for what, why in WITHOUT.items())
    note = f"All numbers have noise: {spent}. Left out: {left_out}."
    return Profile(query, len(client.mapping), description, histograms, bars, None, list(_warnings(rows)), note, spent)


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
