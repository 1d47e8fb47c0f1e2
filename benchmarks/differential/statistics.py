"""Statistics of joined rows: NumPy's, pandas' and SciPy's on the materialised join.

Moments are compared with those of 80-bit floats, centred first: pandas itself is off by more than we allow where a mean
is a billion times the spread.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.stats import chi2_contingency, ks_2samp
from sklearn.metrics import mutual_info_score

import tablepuppet as tp

from .report import Report
from .scenes import Array, Random, Star, drawn_columns, star, with_kinds
from .tolerances import SPREAD, shift


def run(rng: Random, folder: Path, report: Report) -> None:
    """One star: everything that can be asked of some columns."""
    scene = star(rng, rows=int(rng.choice([3, 40, 300])))
    if rng.random() < 0.4:
        _unlike_where_missing(rng, scene)
    scene = with_kinds(rng, scene)
    columns = drawn_columns(rng, scene)
    urls, text = scene.urls(folder / "databases"), scene.sql(columns)
    relation = tp.Federation(urls).sql(text)
    if not len(relation):
        return
    scene.check(report, relation, text)
    frame = scene.frame(relation)
    with ExitStack() as stack:
        here = rng.random() < 0.7
        if not here:
            wire = str(rng.choice(["float32", "float64"]))
            relation = stack.enter_context(scene.served(urls, wire=wire)).sql(text)
        _describe(report, scene, relation, frame)
        _quantiles(rng, report, scene, relation, frame)
        _pairs(report, scene, relation, frame)
        _tables(report, scene, relation, frame)
        if here:
            _drift(rng, report, scene, relation)


def _unlike_where_missing(rng: Random, scene: Star) -> None:
    """A pair of columns: where one is missing, the other is far off, so that a pair's rows are unlike all rows."""
    rows = len(scene.tables["f"])
    lost = rng.random(rows) < 0.3
    values = rng.normal(size=rows)
    pair = {
        "f8": np.where(lost, np.nan, values + rng.normal(size=rows)),
        "f9": np.where(lost, 10 ** rng.uniform(2, 9) * (1 + rng.random(rows)), values),
    }
    for name, cells in pair.items():
        scene.tables["f"] = scene.tables["f"].append_column(name, pa.array(cells, pa.float64(), from_pandas=True))


def moments(values: Array) -> dict[str, float]:
    """pandas' mean, std (ddof 1), skew and kurtosis, centred first, in 80-bit floats."""
    known = values[~np.isnan(values)].astype(np.longdouble)
    rows = len(known)
    if not rows:
        return dict.fromkeys(("mean", "std", "skew", "kurtosis"), np.nan)
    mean = known[0] + (known - known[0]).mean()
    centred = known - mean
    second, third, fourth = ((centred**power).sum() for power in (2, 3, 4))
    flat = bool(np.ptp(known) == 0)
    found = {
        "mean": mean,
        "std": np.sqrt(second / (rows - 1)) if rows > 1 else np.nan,
        "skew": np.nan,
        "kurtosis": np.nan,
    }
    if rows > 2 and not flat:
        found["skew"] = rows * np.sqrt(np.longdouble(rows - 1)) / (rows - 2) * third / second**1.5
    if rows > 3 and not flat:
        ratio = rows * (rows + 1) * (rows - 1) / ((rows - 2) * (rows - 3)) * fourth / second**2
        found["kurtosis"] = ratio - 3 * (rows - 1) ** 2 / ((rows - 2) * (rows - 3))
    return {name: float(value) for name, value in found.items()}


def _describe(report: Report, scene: Star, relation: tp.Relation, frame: pd.DataFrame) -> None:
    with report.asking("describe"):
        for row in relation.describe().to_arrow().to_pylist():
            name = row["column"]
            values = frame[name]
            known = values.dropna()
            report.equal("describe: count", row["count"], len(known), name)
            report.equal("describe: missing", row["missing"], len(values) - len(known), name)
            if row["distinct"] is not None:
                report.equal("describe: distinct", row["distinct"], known.nunique(), name)
            if values.dtype == object:
                counts = known.value_counts()
                if len(known):
                    report.close("describe: top share", row["top_share"], counts.iloc[0] / len(known), SPREAD, name)
                    report.that("describe: top", counts.get(row["top"], 0) == counts.iloc[0], f"{name}: {row['top']}")
                continue
            _numbers(report, name, row, values.to_numpy())


def _numbers(report: Report, name: str, row: dict[str, float | None], values: Array) -> None:
    """Moments and order statistics of one column."""
    known = values[~np.isnan(values)]
    truth, off = moments(values), shift(values)
    spread = truth["std"] if truth["std"] > 0 else 0.0
    edge = 4 * np.spacing(np.abs(known).max(initial=0.0))  # of float64, where all values are the same
    within = {"mean": spread * off + edge, "std": spread * off + edge, "skew": 10 * off, "kurtosis": 100 * off}
    size = f"{name} ({len(known)} values, mean / std {truth['mean'] / spread if spread else np.inf:.1e})"
    for what, most in within.items():
        ours = np.nan if row[what] is None else row[what]
        scale = max(1.0, abs(truth[what])) if what in ("skew", "kurtosis") else 1.0
        report.close(f"describe: {what}", ours, truth[what], most * scale, size)
    if len(known):
        for what, share in {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}.items():
            report.close(f"describe: {what}", row[what], np.quantile(known, share), 0.0, name)


def _quantiles(rng: Random, report: Report, scene: Star, relation: tp.Relation, frame: pd.DataFrame) -> None:
    numbers = [name for name in frame if frame[name].dtype != object and frame[name].notna().any()]
    if not numbers:
        return
    shares = sorted(rng.random(3).round(3).tolist())
    with report.asking("quantile"):
        found = relation.quantile(shares, columns=numbers)
        for name in numbers:
            truth = np.quantile(frame[name].dropna().to_numpy(), shares)
            decimal = pa.types.is_decimal(scene.rows(name[0]).schema.field(name).type)
            report.close(
                "quantile of DECIMAL" if decimal else "quantile", found[name], truth, 0.0, f"{name} at {shares}"
            )
    name, bins = str(rng.choice(numbers)), int(rng.integers(1, 30))
    values = frame[name].dropna().to_numpy()
    with report.asking("histogram", name):
        ours = relation.histogram(name, bins=bins)
        counts, edges = np.histogram(values, bins)
        report.close("histogram: edges", ours.edges, edges, 4 * np.spacing(np.abs(values).max()), name)
        report.close("histogram: counts", ours.counts, counts, 0.0, f"{name}, {bins} bins")
    with report.asking("outliers"):
        by_iqr, by_sd = relation.outlier_by_iqr(columns=numbers), relation.outlier_by_sd(columns=numbers, k=2.0)
        for name in numbers:
            known = frame[name].dropna().to_numpy()
            low, high = np.quantile(known, [0.25, 0.75])
            bounds = (low - 1.5 * (high - low), high + 1.5 * (high - low))
            edge = 4 * np.spacing(np.abs(known).max())
            report.close("outlier_by_iqr: bounds", (by_iqr[name].low, by_iqr[name].high), bounds, edge, name)
            beyond = np.count_nonzero((known < by_iqr[name].low) | (known > by_iqr[name].high))
            report.close("outlier_by_iqr: rows", by_iqr[name].outliers, beyond, 0.0, name)
            truth = moments(known)
            width = 2 * truth["std"] if len(known) > 1 else 0.0
            ends = (truth["mean"] - width, truth["mean"] + width)
            report.close(
                "outlier_by_sd: bounds", (by_sd[name].low, by_sd[name].high), ends, width * shift(known) + edge, name
            )


def _pairs(report: Report, scene: Star, relation: tp.Relation, frame: pd.DataFrame) -> None:
    """Correlations and covariances over the rows that have both values."""
    numbers = [name for name in frame if frame[name].dtype != object and frame[name].nunique() > 1]
    if len(numbers) < 2:
        return
    with report.asking("correlation"):
        correlation, covariance = relation.correlation(columns=numbers), relation.covariance(columns=numbers)
        for one, other in combinations(numbers, 2):
            both = frame[[one, other]].dropna().to_numpy()
            first, second = both.T
            spreads = [moments(side)["std"] for side in (first, second)]
            if len(both) < 2 or not all(spreads):
                continue  # what to say of a constant is a matter of taste
            centred = [(side - moments(side)["mean"]).astype(np.longdouble) for side in (first, second)]
            centred = [side - side.mean() for side in centred]
            truth = float((centred[0] * centred[1]).sum() / (len(both) - 1))
            off = shift(first) + shift(second)
            whole = [shift(frame[name].to_numpy()) for name in (one, other)]
            what = f"{one}, {other} ({len(both)} of {len(frame)} rows, shifts {whole[0]:.1e} {whole[1]:.1e})"
            report.close("covariance", covariance[one, other], truth, off * spreads[0] * spreads[1], what)
            report.close("correlation", correlation[one, other], truth / (spreads[0] * spreads[1]), off, what)


def _tables(report: Report, scene: Star, relation: tp.Relation, frame: pd.DataFrame) -> None:
    """Cross tables of categories, and means of numbers by them."""
    texts = [name for name in frame if frame[name].dtype == object and frame[name].notna().any()]
    numbers = [name for name in frame if frame[name].dtype != object and frame[name].notna().any()]
    for one, other in list(combinations(texts, 2))[:2]:
        with report.asking("crosstab", f"{one}, {other}"):
            ours = relation.crosstab(one, other)
            truth = pd.crosstab(frame[one], frame[other])
            counts = pd.DataFrame(ours.counts, ours.rows, ours.columns)
            filled = counts.loc[counts.sum(axis=1) > 0, counts.sum(axis=0) > 0]
            report.that("crosstab: counts", bool(_alike(filled, truth)), f"{one}, {other}")
            if min(truth.shape) > 1:
                known = frame[[one, other]].dropna()
                chi2 = chi2_contingency(truth, correction=False)
                report.close(
                    "crosstab: chi2", ours.chi2, chi2.statistic, SPREAD * max(1, chi2.statistic), f"{one}, {other}"
                )
                report.close("crosstab: p", ours.p_value, chi2.pvalue, SPREAD, f"{one}, {other}")
                nats = mutual_info_score(known[one], known[other])
                report.close("crosstab: mutual information", ours.mutual_information, nats, SPREAD, f"{one}, {other}")
    for number, by in list(product(numbers, texts))[:2]:
        with report.asking("group_means", f"{number} by {by}"):
            means = relation.group_means(number, by=by)
            expected = {
                group: moments(part.to_numpy()) for group, part in frame[[number, by]].dropna().groupby(by)[number]
            }
            found = {
                g: (c, m, s)
                for g, c, m, s in zip(means.groups, means.counts, means.means, means.stds, strict=True)
                if c
            }
            report.equal("group_means: groups", sorted(found), sorted(expected), f"{number} by {by}")
            values = frame[number].to_numpy()
            within = (moments(values)["std"] if len(values) > 1 else 0.0) * shift(values)
            for group in set(found) & set(expected):
                what = f"{number} by {by} = {group}"
                edge = 4 * np.spacing(np.abs(values[~np.isnan(values)]).max())
                report.close(
                    "group_means: mean", found[group][1], expected[group]["mean"], np.nan_to_num(within) + edge, what
                )
                report.close(
                    "group_means: std", found[group][2], expected[group]["std"], np.nan_to_num(within) + edge, what
                )


def _alike(ours: pd.DataFrame, truth: pd.DataFrame) -> bool:
    return (
        set(ours.index) == set(truth.index)
        and set(ours.columns) == set(truth.columns)
        and (ours.loc[truth.index, truth.columns].to_numpy() == truth.to_numpy()).all()
    )


def _drift(rng: Random, report: Report, scene: Star, relation: tp.Relation) -> None:
    """Two parts of the rows."""
    with report.asking("drift", may_refuse=True):
        parts = relation.split(test=0.4, seed=int(rng.integers(100)))
        if not all(map(len, parts)):
            return
        first, second = (scene.frame(part) for part in parts)
        for each in tp.drift(*parts):
            if first[each.column].dtype == object:
                continue
            here, there = first[each.column].dropna().to_numpy(), second[each.column].dropna().to_numpy()
            if len(here) and len(there):
                report.close("drift: ks", each.ks, ks_2samp(here, there).statistic, SPREAD, each.column)
                edges = np.unique(np.quantile(here, np.arange(1, 10) / 10))
                shares = [
                    np.append(np.bincount(np.searchsorted(edges, known, "right"), minlength=len(edges) + 1), lost)
                    for known, lost in ((here, len(first) - len(here)), (there, len(second) - len(there)))
                ]
                some = shares[0] + shares[1] > 0
                p, q = (np.maximum(share[some] / share.sum(), 1e-4) for share in shares)
                report.close("drift: psi", each.psi, np.sum((p - q) * np.log(p / q)), SPREAD, each.column)
