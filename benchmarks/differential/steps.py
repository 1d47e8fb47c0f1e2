"""Random pipelines: the prepared matrix is what pandas and scikit-learn make of the materialised join.

Two shards of services that hide small groups cannot be compared with the join. There the facts are: what is
standardised has mean 0 and deviation 1, and a fit ends at the optimum of the matrix that the parties hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.preprocessing import KBinsDiscretizer, RobustScaler, TargetEncoder

import tablepuppet as tp
from tablepuppet import prep
from tablepuppet.party.policy import Policy, TableRule

from .optimum import least_squares, objective_of
from .report import Report
from .scenes import Array, Random, Star, nullable, number, star
from .tolerances import CONSTANT_OBJECTIVE, EPSILON, OBJECTIVE, SPREAD, shift

STEPS = 5  # of a pipeline, at most


def run(rng: Random, folder: Path, report: Report) -> None:
    """A pipeline in one process, or one over services with small groups."""
    if rng.random() < 0.75:
        _in_one_process(rng, folder, report)
    else:
        _small_groups(rng, folder, report)


class Left(Exception):  # noqa: N818 - no error: another step is drawn
    """A step whose result is a matter of taste, such as the mode of two categories with equally many rows."""


@dataclass
class Columns:
    """What a pipeline has made of the joined rows so far: numbers (NaN: missing) and texts (None: missing)."""

    numbers: dict[str, Array]
    texts: dict[str, Any]  # arrays of objects
    sorts: dict[str, Callable[[Any], Any]]  # how names of categories are put in order
    label: Array
    off: dict[str, float] = field(default_factory=dict)  # by which numbers may differ, as a share of their largest
    flags: set[str] = field(default_factory=set)
    coded: dict[str, Array] = field(default_factory=dict)  # bins, as 0/1 columns

    def keep(self, name: str, values: Array) -> None:
        """Numbers after a step; what float64 loses beside a large mean is lost from here on."""
        self.off[name] = max(self.off.get(name, SPREAD), shift(self.numbers[name]))
        self.numbers[name] = values


Applied = tuple[Any, Callable[[Columns], None]]


def _in_one_process(rng: Random, folder: Path, report: Report) -> None:
    scene = star(rng, rows=int(rng.choice([30, 120, 300])), far=6.0, label=True)
    rows = len(scene.tables["f"])
    codes = pa.array(rng.choice([-1, 2, 9, 10, 100], rows), pa.int64(), mask=rng.random(rows) < 0.1)
    scene.tables["f"] = scene.tables["f"].append_column("f8", codes).append_column("y", nullable(rng.normal(size=rows)))
    columns = [*scene.columns("number", "text")]
    categorical = ["f8"] if rng.random() < 0.5 else []
    fed = tp.Federation(scene.urls(folder / "databases"), wire="float64")
    asked = scene.sql(columns, "y")
    relation = fed.sql(asked, label="y", categorical=categorical)
    if len(relation) < 5:
        return
    scene.check(report, relation, asked)
    frame = scene.frame(relation)
    texts = [name for name in columns if frame[name].dtype == object or name in categorical]
    found = Columns(
        {name: frame[name].to_numpy() for name in columns if name not in texts},
        {name: _cells(frame[name]) for name in texts},
        {name: float if name in categorical else str for name in texts},
        frame["y"].to_numpy(),
    )
    chosen: list[Any] = []
    last = ""
    for _ in range(int(rng.integers(1, STEPS + 1))):
        step = _step(rng, found, last)
        if step is None:
            continue
        try:
            step[1](found)
        except Left:
            continue
        chosen.append(step[0])
        last = step[0].columns[0]
    shown = "; ".join(map(repr, chosen))
    _outliers_by_deviation(report, relation, frame, [name for name in columns if name not in texts])
    with report.asking("pipeline", shown, may_refuse=True):
        prepared = relation.with_prep(prep.Pipeline(chosen))
        matrix = prepared.matrix()
        _compare(report, found, matrix, {name: f"{name[0]}.{name}" for name in frame}, shown)


def _outliers_by_deviation(report: Report, relation: tp.Relation, frame: pd.DataFrame, numbers: list[str]) -> None:
    """`Outliers("sd")` flags the rows that `outlier_by_sd` counts."""
    for name in [each for each in numbers if frame[each].nunique() > 1][:1]:
        with report.asking("Outliers('sd')", name):
            step = prep.Outliers("sd", "flag", factor=1.0, columns=[name])
            matrix = relation.with_prep(prep.Pipeline([step])).matrix()
            flags = np.asarray(matrix[:, [f"{name[0]}.{name}_outlier"]].sum(axis=0))
            counted = relation.outlier_by_sd(columns=[name], k=1.0)[name].outliers
            report.close("Outliers('sd') and outlier_by_sd", flags.ravel()[0], counted, 0.0, name)


def _cells(values: pd.Series) -> Any:
    """Categories, as whole numbers where the column has numbers."""
    cells = [None if lost else cell for cell, lost in zip(values, values.isna(), strict=True)]
    return np.array([int(cell) if isinstance(cell, float) else cell for cell in cells], dtype=object)


# Steps, each with the same in pandas


def _step(rng: Random, now: Columns, last: str) -> Applied | None:
    """A step of a column that is there, most often that of the last step, and what it does to it."""
    numbers = [name for name in now.numbers if name not in now.flags and not np.isnan(now.numbers[name]).all()]
    texts = [name for name in now.texts if any(cell is not None for cell in now.texts[name])]
    if rng.random() < 0.7:
        numbers, texts = ([name for name in known if name == last] or known for known in (numbers, texts))
    choices = [
        (make, known) for makes, known in ((NUMBER_STEPS, numbers), (TEXT_STEPS, texts)) if known for make in makes
    ]
    if not choices:
        return None
    make, known = choices[int(rng.integers(len(choices)))]
    return make(rng, str(rng.choice(known)))


def _impute(rng: Random, name: str) -> Applied:
    strategy, indicator = str(rng.choice(["mean", "median", "constant"])), bool(rng.random() < 0.5)
    fill = 2.5 if strategy == "constant" else None

    def apply(now: Columns) -> None:
        values = now.numbers[name]
        lost = np.isnan(values)
        if indicator:
            now.numbers[f"{name}_missing"] = lost.astype(float)
            now.flags.add(f"{name}_missing")
        known = values[~lost]
        value = {"mean": _mean(known), "median": float(np.median(known)), "constant": 2.5}[strategy]
        now.keep(name, np.where(lost, value, values))

    return prep.Impute(strategy, fill=fill, indicator=indicator, columns=[name]), apply  # type: ignore[arg-type]


def _standardize(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        known = now.numbers[name][~np.isnan(now.numbers[name])]
        centred = now.numbers[name] - _mean(known)
        now.keep(name, centred / (np.sqrt(np.nanmean(centred**2)) if np.ptp(known) else 1.0))

    return prep.Standardize(columns=[name]), apply


def _minmax(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        values = now.numbers[name]
        now.keep(name, (values - np.nanmin(values)) / (np.nanmax(values) - np.nanmin(values) or 1.0))

    return prep.MinMax(columns=[name]), apply


def _robust(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        now.keep(name, RobustScaler().fit_transform(now.numbers[name][:, None])[:, 0])

    return prep.Robust(columns=[name]), apply


def _clip(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        now.keep(name, np.clip(now.numbers[name], -1.0, 1.5))

    return prep.Clip(-1.0, 1.5, columns=[name]), apply


def _winsorize(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        now.keep(name, np.clip(now.numbers[name], *np.nanquantile(now.numbers[name], [0.1, 0.9])))

    return prep.Winsorize(0.1, 0.9, columns=[name]), apply


def _outliers(rng: Random, name: str) -> Applied:
    action = str(rng.choice(["flag", "clip", "null"]))

    def apply(now: Columns) -> None:
        values = now.numbers[name]
        low, high = np.nanquantile(values, [0.25, 0.75])
        low, high = low - 1.5 * (high - low), high + 1.5 * (high - low)
        if action == "flag":
            now.numbers[f"{name}_outlier"] = ((values < low) | (values > high)).astype(float)
            now.flags.add(f"{name}_outlier")
        elif action == "clip":
            now.keep(name, np.clip(values, low, high))
        else:
            now.keep(name, np.where((values < low) | (values > high), np.nan, values))

    return prep.Outliers("iqr", action, columns=[name]), apply  # type: ignore[arg-type]


def _bin(rng: Random, name: str) -> Applied:
    how = str(rng.choice(["width", "height"]))

    def apply(now: Columns) -> None:
        values = now.numbers.pop(name)
        lost = np.isnan(values)
        strategy = "uniform" if how == "width" else "quantile"
        if np.ptp(values[~lost]) == 0:
            return  # left out
        cut = KBinsDiscretizer(4, encode="ordinal", strategy=strategy, quantile_method="linear", subsample=None)
        codes = np.full(len(values), np.nan)
        codes[~lost] = cut.fit_transform(values[~lost][:, None])[:, 0]
        now.numbers[name] = codes

    return prep.Bin(4, how, "ordinal", columns=[name]), apply  # type: ignore[arg-type]


def _log(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        raised = now.numbers[name] + 1.0
        now.keep(name, np.log(np.where(raised > 0, raised, np.nan)))

    return prep.Log(1.0, columns=[name]), apply


def _power(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        now.keep(name, np.sign(now.numbers[name]) * np.abs(now.numbers[name]) ** 0.5)

    return prep.Power(0.5, columns=[name]), apply


def _square(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        now.numbers[f"{name}^2"] = now.numbers[name] ** 2
        now.off[f"{name}^2"] = 4 * now.off.get(name, SPREAD)

    return prep.Polynomial(2, columns=[name]), apply


def _drop_missing(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        if name in now.numbers and np.isnan(now.numbers[name]).mean() > 0.1:
            del now.numbers[name]
        elif name in now.texts and np.mean([cell is None for cell in now.texts[name]]) > 0.1:
            del now.texts[name]

    return prep.DropMissing(0.1, columns=[name]), apply


def _drop_constant(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        if name in now.numbers and np.ptp(now.numbers[name][~np.isnan(now.numbers[name])]) == 0:
            del now.numbers[name]
        elif name in now.texts and len(set(now.texts[name])) == 1:
            del now.texts[name]

    return prep.DropConstant(columns=[name]), apply


def _fill_text(rng: Random, name: str) -> Applied:
    mode = bool(rng.random() < 0.4)
    fill = "b" if rng.random() < 0.5 else "new"

    def apply(now: Columns) -> None:
        cells = now.texts[name]
        if now.sorts[name] is float and not mode:
            raise Left
        counts = pd.Series([cell for cell in cells if cell is not None]).value_counts()
        value = counts.index[0] if mode else fill
        if mode and len(counts) > 1 and counts.iloc[0] == counts.iloc[1]:
            raise Left
        now.texts[name] = np.array([value if cell is None else cell for cell in cells], dtype=object)

    return prep.Impute("mode", columns=[name]) if mode else prep.Impute("constant", fill=fill, columns=[name]), apply


def _ordinal(rng: Random, name: str) -> Applied:
    def apply(now: Columns) -> None:
        cells = now.texts.pop(name)
        names = sorted({cell for cell in cells if cell is not None}, key=now.sorts[name])
        now.numbers[name] = np.array([np.nan if cell is None else names.index(cell) for cell in cells], float)

    return prep.Ordinal(columns=[name]), apply


def _target(rng: Random, name: str) -> Applied:
    smooth = 2.0 if rng.random() < 0.5 else "auto"

    def apply(now: Columns) -> None:
        cells = np.array(["(missing)" if cell is None else str(cell) for cell in now.texts.pop(name)], dtype=object)
        encoder = TargetEncoder(smooth=smooth, target_type="continuous")
        now.numbers[name] = encoder.fit(cells[:, None], now.label).transform(cells[:, None])[:, 0]

    return prep.TargetEncode(folds=1, smooth=smooth, columns=[name]), apply  # type: ignore[arg-type]


NUMBER_STEPS: Sequence[Callable[[Random, str], Applied]] = (
    _impute, _impute, _standardize, _minmax, _robust, _clip, _winsorize, _outliers, _bin, _log, _power, _square,
    _drop_missing, _drop_constant,
)  # fmt: skip
TEXT_STEPS: Sequence[Callable[[Random, str], Applied]] = (
    _fill_text, _fill_text, _ordinal, _target, _drop_missing, _drop_constant,
)  # fmt: skip


def _mean(known: Array) -> float:
    return float(known[0] + (known - known[0]).mean())


def _compare(report: Report, now: Columns, matrix: Any, aliases: dict[str, str], shown: str) -> None:
    """Columns by name: numbers that are left get their mean, texts a column for each category."""
    ours = dict(zip(matrix.columns, (matrix @ np.eye(matrix.shape[1])).T, strict=True))
    for name, values in now.numbers.items():
        qualified = f"{name[0]}.{name}"
        lost = np.isnan(values)
        if lost.all():
            continue
        filled = np.where(lost, _mean(values[~lost]), values)
        if qualified not in ours:
            report.that("pipeline: columns", False, f"{qualified} is not there; {shown}")
            continue
        within = (now.off.get(name, SPREAD) + 8 * EPSILON) * max(np.abs(filled).max(), np.finfo(float).tiny)
        report.close("pipeline: numbers", ours.pop(qualified), filled, within, f"{qualified} after {shown}")
    for name, cells in now.texts.items():
        qualified = f"{name[0]}.{name}"
        names = [str(each) for each in matrix.categories.get(qualified, [])]
        known = {str(cell) for cell in cells if cell is not None}
        block = {each: ours.pop(each) for each in list(ours) if each.startswith(f"{qualified}=")}
        if len(known) < 2 and not block:
            continue
        empty = [each for place, each in enumerate(names) if not block.get(f"{qualified}={place}", np.ones(1)).any()]
        listed = sorted(each for each in names if each in known or each not in empty)  # Impute's own may be empty
        report.equal("pipeline: categories", listed, sorted(known), f"{qualified} after {shown}")
        for place, category in enumerate(names):
            truth = np.array([cell is not None and str(cell) == category for cell in cells], float)
            found = block.get(f"{qualified}={place}", np.zeros(0))
            report.close("pipeline: categories", found, truth, 0.0, f"{qualified}={category} after {shown}")
    report.equal("pipeline: columns", sorted(ours), [], f"more than there should be after {shown}")


# Services that hide small groups


def _small_groups(rng: Random, folder: Path, report: Report) -> None:
    """Categories that one shard has often and the other rarely, and a label that depends on them."""
    rows = int(rng.integers(60, 200))
    words = [str(each) for each in rng.permutation(list("abcdefgh"))[: rng.integers(3, 8)]]
    cells: list[str | None] = []
    for _ in range(2):  # each shard has its own shares
        cells += [str(each) for each in rng.choice(words, rows // 2, p=rng.dirichlet(np.full(len(words), 0.4)))]
    cells = [None if lost else cell for cell, lost in zip(cells, rng.random(len(cells)) < 0.15, strict=True)]
    effects = dict(zip([*words, None], rng.normal(size=len(words) + 1), strict=True))
    label = np.array([effects[cell] for cell in cells]) + 0.2 * rng.normal(size=len(cells))
    table = pa.table({"f0": pa.array(cells, pa.string()), "f1": nullable(number(rng, len(cells), far=2.0)), "y": label})
    scene = Star({"f": table}, {"f": 2})
    policy = Policy(others=TableRule(min_group=int(rng.integers(2, 8))))
    first = (
        prep.Impute("mode", columns=["f0"]), prep.Impute("constant", fill="none", columns=["f0"]),
        prep.Recode(columns=["f0"]), prep.TargetEncode(folds=1, columns=["f0"]),
    )[int(rng.integers(4))]  # fmt: skip
    steps = [first, prep.Standardize()]
    with (
        scene.served(scene.urls(folder / "databases"), policy, wire="float64") as fed,
        report.asking("small groups", repr(first), may_refuse=True),
    ):
        relation = fed.sql(scene.sql(["f0", "f1"], "y"), label="y", prep=prep.Pipeline(steps))
        matrix = relation.matrix()
        held = matrix @ np.eye(matrix.shape[1])
        where = f"{first!r} over {len(cells)} rows, min_group {policy.others and policy.others.min_group}"
        if isinstance(first, prep.Recode | prep.TargetEncode):
            values = held[:, matrix.columns.index("f.f0")]
            report.close("small groups: mean", values.mean(), 0.0, 1e-9, where)
            report.that("small groups: deviation", values.std() <= 1 + 1e-9, f"{where}: {values.std()}")
        model = tp.LinearRegression().fit(relation)
        best = least_squares(held, relation.label(), model.l2)
        reached = objective_of(model, matrix.columns, held, relation.label())
        constant = 0.5 * float(np.var(label))
        above = reached - best
        within = OBJECTIVE * best + CONSTANT_OBJECTIVE * constant
        report.that(
            "small groups: converged", model.stopped_ != "converged" or above <= within,
            f"{where}: the objective is {reached:.9g}, {best:.9g} is possible",
        )  # fmt: skip
