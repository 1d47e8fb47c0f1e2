"""The statistics of a relation, as its methods: each is computed by a file of this folder, and named here.

Input: names of columns, and settings. Output: results that show themselves as tables. Where a statistic has a form with
noise, ``privacy`` asks for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tablepuppet.operators.client import Client
from tablepuppet.prep.explore.correlation import ColumnMatrix, correlation, covariance
from tablepuppet.prep.explore.crosstab import Crosstab, crosstab
from tablepuppet.prep.explore.describe import Description, describe
from tablepuppet.prep.explore.groups import GroupMeans, group_means
from tablepuppet.prep.explore.histograms import Histogram, histogram
from tablepuppet.prep.explore.noisy_statistics import NoiseRequest
from tablepuppet.prep.explore.outliers import FoundOutliers, outlier_by_iqr, outlier_by_sd
from tablepuppet.prep.explore.profile import profile
from tablepuppet.prep.explore.profile_page import Profile
from tablepuppet.prep.explore.quantiles import Quantiles, quantile
from tablepuppet.privacy.funds import PartysFunds
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.events import Events
from tablepuppet.spelling import names_checked, shows


@shows(
    "correlation", "covariance", "crosstab", "describe", "group_means", "histogram", "outlier_by_iqr", "outlier_by_sd",
    "profile", "quantile",
)  # fmt: skip
class Statistics(ABC):
    """What is computed over the joined rows of a relation without learning from them."""

    @property
    @abstractmethod
    def client(self) -> Client:
        """The way to the shards."""

    @property
    @abstractmethod
    def events(self) -> Events:
        """Where events are emitted."""

    @property
    @abstractmethod
    def max_categories(self) -> int:
        """Categories of a column that may be counted."""

    @abstractmethod
    def funds(self) -> PartysFunds:
        """What is left of privacy budgets now."""

    @names_checked
    def describe(
        self,
        columns: Sequence[str] | None = None,
        *,
        privacy: Privacy | None = None,
        bounds: Mapping[str, Any] | None = None,
        max_times: int | None = None,
    ) -> Description:
        """Statistics of every selected column over the joined rows, computed at the parties.

        With ``privacy=tp.Privacy(feature_epsilon=...)``: count, mean, standard deviation and quartiles of features with
        noise. ``bounds`` gives numbers between which values are expected, such as ``{"age": (0, 120)}``, where policies
        do not; a row counts as often as it is joined, and at most ``max_times`` times.
        """
        noise = NoiseRequest.of("describe", privacy, bounds, max_times, self.funds)
        return describe(self.client, columns, self.events, noise)

    @names_checked
    def quantile(
        self,
        q: float | Sequence[float] = 0.5,
        columns: Sequence[str] | None = None,
        *,
        privacy: Privacy | None = None,
        bounds: Mapping[str, Any] | None = None,
        max_times: int | None = None,
    ) -> Quantiles:
        """Quantiles of numeric columns over the joined rows, as NumPy's ``linear``; exact of public columns.

        With ``privacy`` they are estimated from noisy histograms between ``bounds``, as for `describe`.
        """
        noise = NoiseRequest.of("quantile", privacy, bounds, max_times, self.funds)
        return quantile(self.client, q, columns, self.events, noise)

    @names_checked
    def histogram(
        self,
        column: str,
        bins: int = 50,
        *,
        privacy: Privacy | None = None,
        bounds: Sequence[Any] | NDArray[Any] | None = None,
        max_times: int | None = None,
    ) -> Histogram:
        """How the values of a numeric column are spread over the joined rows, as `numpy.histogram`.

        With ``privacy`` counts have noise, and bins lie between ``bounds``, such as ``(0, 120)``; a value beyond is in
        the first or last bin.
        """
        given = None if bounds is None else {column: bounds}
        noise = NoiseRequest.of("histogram", privacy, given, max_times, self.funds)
        return histogram(self.client, column, bins, self.events, noise)

    @names_checked
    def outlier_by_iqr(self, columns: Sequence[str] | None = None, k: float = 1.5) -> FoundOutliers:
        """How many joined rows lie more than ``k`` interquartile ranges beyond a quartile, by numeric column."""
        return outlier_by_iqr(self.client, columns, k)

    @names_checked
    def outlier_by_sd(self, columns: Sequence[str] | None = None, k: float = 3.0) -> FoundOutliers:
        """How many joined rows lie more than ``k`` standard deviations from the mean, by numeric column."""
        return outlier_by_sd(self.client, columns, k)

    @names_checked
    def correlation(self, columns: Sequence[str] | None = None, across: bool = True) -> ColumnMatrix:
        """Pearson's correlation of each pair of numeric columns; without ``across`` of pairs in one table only."""
        return correlation(self.client, columns, across, self.events)

    @names_checked
    def covariance(self, columns: Sequence[str] | None = None, across: bool = True) -> ColumnMatrix:
        """The covariance (ddof 1) of each pair of numeric columns; without ``across`` of pairs in one table only."""
        return covariance(self.client, columns, across)

    @names_checked
    def crosstab(self, a: str, b: str) -> Crosstab:
        """Joined rows by the categories of two columns, with chi-squared, Cramér's V and mutual information."""
        return crosstab(self.client, a, b, self.max_categories)

    @names_checked
    def group_means(self, column: str, by: str) -> GroupMeans:
        """Count, mean and standard deviation of a numeric column for each category of another column."""
        return group_means(self.client, column, by, self.max_categories)

    @names_checked
    def profile(
        self,
        columns: Sequence[str] | None = None,
        *,
        privacy: Privacy | None = None,
        bounds: Mapping[str, Any] | None = None,
        max_times: int | None = None,
    ) -> Profile:
        """All at once: histograms, missing values, correlations and warnings; a page by ``.save("page.html")``.

        With ``privacy``, only what has a form with noise, as for `describe`.
        """
        noise = NoiseRequest.of("profile", privacy, bounds, max_times, self.funds)
        return profile(self.client, columns, self.max_categories, self.events, noise)
