"""Fits a pipeline under feature privacy: steps learn from what policies say about columns, or from noisy statistics.

Input: a pipeline and the noise of encoders. Output: an `Encoding` for noise; or, before anything is asked, a
PrivacyError that names a step that cannot be fitted with noise. The questions are those of encoders without a pipeline:
a range and sums for a number without bounds in the policy, a list for a text without categories there
(private_encode.py). The results of steps are scaled by bounds (program.py), which costs nothing. A step is a
function of a row's own cells, and after the last step parties set null records to zero: so sensitivities are the same
as without steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tablepuppet.errors import PrivacyError
from tablepuppet.operators.client import Client
from tablepuppet.prep.attempt import Attempt, Column, Dropped
from tablepuppet.prep.encode import Encoding, build_encoding, drop_column
from tablepuppet.prep.fit import PipelineSettings, encoders, finish, foresee
from tablepuppet.prep.known import Statistics, WantedColumn
from tablepuppet.prep.label_sums import Folds, LabelSums
from tablepuppet.prep.moments import Ranks
from tablepuppet.prep.pipeline import DEFAULT, Pipeline
from tablepuppet.prep.private_encode import (
    HIDDEN_RANGE,
    NO_CATEGORY,
    UNIFORM,
    EncoderNoise,
    NoisyTexts,
    fit_numbers,
    is_category,
)
from tablepuppet.prep.program import bounds_after
from tablepuppet.prep.statistics import CategorySummary, NumberSummary
from tablepuppet.prep.steps.bins import Bin
from tablepuppet.prep.steps.bounds import Clip, Outliers, Winsorize
from tablepuppet.prep.steps.categories import Hash, OneHot, Ordinal, Recode
from tablepuppet.prep.steps.curves import Log, Power
from tablepuppet.prep.steps.dates import DateParts
from tablepuppet.prep.steps.drops import DropConstant, DropMissing
from tablepuppet.prep.steps.impute import Impute
from tablepuppet.prep.steps.labelled import LabelStep
from tablepuppet.prep.steps.map import Map
from tablepuppet.prep.steps.products import Polynomial
from tablepuppet.prep.steps.scale import MinMax, Robust, Standardize
from tablepuppet.prep.steps.step import PrepStep
from tablepuppet.runs.events import Events
from tablepuppet.sql.query import OutputColumn


def refuse_with_noise(pipeline: Pipeline) -> None:
    """PrivacyError for the first step that has no form with noise, with what to write instead."""
    for step in () if pipeline is DEFAULT else pipeline:
        advice = _instead(step)
        if advice:
            raise PrivacyError(f"prep, step {step.name}: it has no form with noise (feature_epsilon): {advice}")


def _instead(step: PrepStep) -> str:
    """What to write instead of a step; nothing if it has a form with noise."""
    match step:
        case Bin(how="height"):
            return "use Bin(n, 'width'), which cuts between bounds"
        case Impute(strategy="median" | "mode"):
            return "use strategy 'mean', or 'constant' with fill"
        case Outliers(method="iqr"):
            return "use Outliers('sd', ...), or Clip with bounds that you know"
        case Robust():
            return "use Standardize or MinMax"
        case Winsorize():
            return "use Clip with bounds that you know"
        case Ordinal():
            return "names of categories have none; use OneHot or Recode"
        case DropConstant() | DropMissing():
            return "leave such columns out of SELECT"
        case LabelStep():
            return "it learns from true labels; use OneHot or Recode"
        case (
            Bin() | Clip() | DateParts() | Hash() | Impute() | Log() | Map() | MinMax() | OneHot() | Outliers()
            | Polynomial() | Power() | Recode() | Standardize()
        ):  # fmt: skip
            return ""
        case _:
            return "leave it out, or compute what you need in SELECT"


class NoisyKnown(Statistics):
    """Statistics from policies, or with noise; after steps, from bounds."""

    def __init__(
        self, client: Client, blinding: str, numbers: Sequence[OutputColumn], texts: Sequence[OutputColumn],
        noise: EncoderNoise,
    ):  # fmt: skip
        super().__init__()
        self.plan, self.rows, self._client = client.plan, float(max(len(client.mapping), 1)), client
        self._texts = NoisyTexts(client, texts, blinding, noise)
        self._numbers = fit_numbers(client, numbers, noise)

    def owners(self, alias: str) -> str:
        """The parties that own a table's rows, as the end of an error."""
        return self._client.owners(alias)

    def base_rows(self, alias: str) -> int:
        """0, so that no text counts as an id: the check would depend on the data."""
        return 0

    def number(self, column: OutputColumn) -> NumberSummary:
        """Of a column as it was read; it is left out if noise hides it. How many are missing is not known."""
        found = self._numbers[column.name]
        if found is None:
            raise Dropped(HIDDEN_RANGE)
        squares = self.rows * found.scale**2
        return NumberSummary(self.rows, found.mean, squares, 0.0, self.rows, found.low, found.high)

    def categories(self, column: OutputColumn, most: int | None) -> CategorySummary:
        """The categories that a policy lists, or that enough rows have; others count as missing."""
        found = self._texts.read(column)
        if not found.distinct:
            raise Dropped(NO_CATEGORY)
        return replace(found, missing=1.0)

    def mode(self, column: OutputColumn) -> float:
        """It has no form with noise, and steps that ask for it were refused."""
        raise PrivacyError(f"column {column.qualified}: its most frequent value has no form with noise")

    def label_sums(self, wanted: WantedColumn, folds: Folds) -> LabelSums:
        """They have no form with noise, and steps that ask for them were refused."""
        raise PrivacyError(f"column {wanted.name!r}: sums of the label have no form with noise")

    def names(self, column: OutputColumn, digests: NDArray[np.uint8]) -> list[str | None]:
        """They have no form with noise, and steps that ask for them were refused."""
        raise PrivacyError(f"column {column.qualified}: names of its categories have no form with noise")

    def derived(self, wanted: WantedColumn) -> Any:
        """After steps: from bounds, as if values were spread evenly between them; codes as if all were as frequent."""
        if wanted.size is not None:
            return np.full(wanted.size, self.rows / max(wanted.size, 1))
        sources = {column.name: self.number(column) for column in wanted.table.numbers}
        known = {name: (each.minimum, each.maximum) for name, each in sources.items()}
        low, high = bounds_after(wanted.table.steps, known)[wanted.name]
        squares = self.rows * ((high - low) / UNIFORM) ** 2
        return NumberSummary(self.rows, (low + high) / 2, squares, 0.0, self.rows, low, high)

    def fetch(self) -> None:
        """Nothing is ever wanted."""


class NoisyAttempt(Attempt):
    """One run of a pipeline, in which the ends of columns are their bounds."""

    def ranks(self, step: str, column: Column) -> Ranks:
        """The ends of a column; LearnError for any other quantile."""
        column.ranks = None  # those before earlier steps are not followed
        if column.is_source and not self.chain(column.name, column.alias).steps:
            return self.ends(step, column, self.statistics.number(column.column))
        return super().ranks(step, column)


def fit_private_pipeline(
    client: Client, settings: PipelineSettings, pipeline: Pipeline, events: Events, noise: EncoderNoise
) -> Encoding:
    """A pipeline fitted with noise, applied at the parties; columns that drown in noise are left out with a warning."""
    refuse_with_noise(pipeline)
    needs, identity = foresee(pipeline, client.plan, settings).needs, client.new_name()
    texts = [column for column, _ in needs.categories.values()]
    numbers = [column for column in settings.columns if not is_category(column, settings.categorical)]
    statistics = NoisyKnown(client, identity, numbers, texts, noise)
    attempt = NoisyAttempt(statistics, settings.columns, settings.categorical, settings.max_categories)
    pipeline.run(attempt)
    finish(attempt)
    for column, reason in attempt.dropped.values():
        drop_column(column.column, reason, events)
    found = {alias: encoders(attempt, alias) for alias in client.mapping.tables}
    encoding = Encoding(
        identity,
        {alias: numbers for alias, (numbers, _, _) in found.items()},
        {alias: tuple(replace(each, shares=()) for each in texts) for alias, (_, texts, _) in found.items()},
        private=True,
        steps={alias: table for alias, (_, _, table) in found.items() if table.steps},
        described=tuple(map(str, pipeline)),
    )
    build_encoding(client, encoding)
    return encoding
