"""The planned noisy releases of a fit: which table, how many, with which noise, at which cost.

Input: a learner, a plan, and how many rows take part. Output: `PlannedFit`: the promise, and rows of releases for
people and for programs. Costs are upper bounds of what parties will charge: noise may hide a column, and descent may
end early. It uses no row data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from tablepuppet.learn.labels.noisy import class_mechanism, kept
from tablepuppet.learn.noise.plan import GRAM
from tablepuppet.learn.private.feature_promise import STATISTICS, FeaturePromise, known_columns
from tablepuppet.learn.private.usefulness import TableSize
from tablepuppet.prep.columns.label import MOST_CLASSES
from tablepuppet.prep.columns.noisy_sums import POWERS
from tablepuppet.prep.columns.selected import is_category
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline, foresee
from tablepuppet.privacy.funds import label_mark
from tablepuppet.privacy.label import number_variance
from tablepuppet.privacy.noise_plan import PREDICTIONS, NoisyLabels, NoisyRelease, TableCosts, charges
from tablepuppet.privacy.settings import Privacy
from tablepuppet.runs.figures import number
from tablepuppet.sql.catalog import Shard, described
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn


class PlannedLearner(Protocol):
    """The part of a learner that a plan needs."""

    learns_classes: bool

    @property
    def privacy(self) -> Privacy | None:
        """The privacy that was asked for."""
        ...

    @property
    def _promise(self) -> FeaturePromise | None:
        """The promise for features."""
        ...

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """The number of parameters of a table with ``width`` encoded columns."""
        ...

    def promise_for(self, plan: Plan, rows: Mapping[str, int], privacy: Privacy | None) -> FeaturePromise | None:
        """The promise for features; ``rows`` is the number of rows by table that take part."""
        ...


@dataclass(frozen=True)
class PlannedFit:
    """What a fit will release, and the promise that it comes from; None without feature privacy."""

    promise: FeaturePromise | None
    sizes: Mapping[str, TableSize]  # by alias of a table with features; parameters are the fewest there can be
    features: tuple[NoisyRelease, ...] = ()
    labels: tuple[NoisyLabels, ...] = ()  # one at most
    label: str = ""  # the mark of its noisy labels in ledgers (privacy/funds.py); empty without noise

    @property
    def releases(self) -> tuple[NoisyLabels | NoisyRelease, ...]:
        """All of them."""
        return (*self.labels, *self.features)

    def costs(self, *, labels: bool) -> TableCosts:
        """Upper bound of the charge by party and table: for ``labels``, or for everything else."""
        return charges(self.labels if labels else self.features)


@dataclass(frozen=True)
class Planning:
    """The input of a plan: ``rows`` by alias, and the number of predictions after the fit."""

    learner: PlannedLearner
    plan: Plan
    rows: Mapping[str, int]
    max_categories: int = 256
    predictions: int = 0
    most_rounds: int | None = None  # that parties allow, where their number is left open
    prep: Pipeline = DEFAULT

    def fit(self, privacy: Privacy) -> PlannedFit:
        """Plan the fit with this privacy. It may take seconds if parties sample rows."""
        sizes = {alias: self._size(alias) for alias in dict.fromkeys(c.alias for c in self.plan.query.features)}
        promise = self.learner.promise_for(self.plan, {alias: self.rows[alias] for alias in sizes}, privacy)
        features: list[NoisyRelease] = []
        if promise is not None:
            promise = promise.within(self.most_rounds)
            promise.spend_all({alias: size.parameters for alias, size in sizes.items()}, self.predictions)
            features = [each for alias, size in sizes.items() for each in self._features(promise, alias, size)]
        labels = tuple(label_releases(privacy, self.plan, self.classes))
        return PlannedFit(promise, sizes, tuple(features), labels, self._label_mark(privacy))

    @property
    def classes(self) -> int | None:
        """The number of classes that the job or a policy lists; 2 if neither does. None for a regressor."""
        return self.listed_classes or 2 if self.learner.learns_classes else None

    @property
    def listed_classes(self) -> int | None:
        """How many classes the job or a policy lists; None if neither does."""
        privacy, label = self.learner.privacy, self.plan.query.label
        if privacy is not None and privacy.label_classes is not None:
            return len(privacy.label_classes)
        if label is None:
            return None
        listed = [described(label.expression, shard.categories) for shard in self.plan.tables[label.alias].shards]
        return max((len(each) for each in listed if each), default=None)

    def _label_mark(self, privacy: Privacy) -> str:
        label = self.plan.query.label
        if label is None or privacy.label_epsilon is None:
            return ""
        mechanism = class_mechanism(privacy) if self.learner.learns_classes else "laplace"
        return label_mark(label.expression, mechanism, privacy.label_epsilon)

    def _size(self, alias: str) -> TableSize:
        table, classes = self.plan.tables[alias], self.classes
        outputs = 1 if classes is None or classes == 2 else classes
        parameters = self.learner.parameters_of(alias, len(self._columns(alias)), outputs)
        return TableSize(table.name, table.parties, self.rows[alias], parameters, len(table.shards))

    def _columns(self, alias: str) -> list[OutputColumn]:
        return [column for column in self.plan.query.features if column.alias == alias]

    def _features(self, promise: FeaturePromise, alias: str, size: TableSize) -> Iterator[NoisyRelease]:
        """All releases of a table. Every released number adds a little to the cost: as many as there can be."""
        privacy, width = self.learner.privacy, foresee(self.prep, self.plan, self.max_categories).widths[alias]
        is_known = privacy is not None and privacy.is_label_private  # else labels say how many classes there are
        outputs = 1 if not self.learner.learns_classes else (self.classes or 1) if is_known else MOST_CLASSES
        rows = max(self.rows[alias], self.plan.tables[alias].rows)  # predictions may be for all of them
        numbers = {GRAM: width * (width + 1) // 2, PREDICTIONS: rows * outputs}
        parameters = self.learner.parameters_of(alias, width, outputs)
        for each in promise.releases(alias):
            if each.what == STATISTICS:
                yield from self._statistics(replace(each, table=size.name), rows)
                continue
            most = max(numbers.get(each.what, parameters), 1) * each.times
            yield replace(each, numbers=most, table=size.name, parties=size.parties)

    def _statistics(self, release: NoisyRelease, rows: int) -> Iterator[NoisyRelease]:
        """Encoders' statistics: parties whose policies describe the same columns together."""
        alike: dict[tuple[int, int, int], list[str]] = {}
        for shard in self.plan.tables[release.alias].shards:
            alike.setdefault(self._asked(release.alias, shard), []).append(shard.party)
        for (ranges, moments, lists), parties in alike.items():
            count, numbers = ranges + moments + lists, ranges * POWERS + moments * 3 + lists * max(rows, 1)
            if count:
                yield replace(release, times=count, lists=lists, numbers=numbers, parties=tuple(parties))

    def _asked(self, alias: str, shard: Shard) -> tuple[int, int, int]:
        """(ranges, moments, lists of categories) that one party is asked for with noise.

        Moments are asked of all parties where one of them gives no bounds.
        """
        found, known = Counter[str](), known_columns(self.plan)
        for column in self._columns(alias):
            if is_category(column, self.plan.query.categorical):
                found["lists"] += described(column.expression, shard.categories) is None
            else:
                found["ranges"] += described(column.expression, shard.bounds) is None
                found["moments"] += column.name not in known
        return found["ranges"], found["moments"], found["lists"]


def label_releases(privacy: Privacy, plan: Plan, classes: int | None) -> Iterator[NoisyLabels]:
    """The release of noisy labels; empty if labels have no noise. ``classes`` is for classifiers."""
    label = plan.query.label
    if privacy.label_epsilon is not None and label is not None:
        table = plan.tables[label.alias]
        yield NoisyLabels(table.name, table.parties, _label_noise(privacy, classes), privacy.label_epsilon)


def _label_noise(privacy: Privacy, classes: int | None) -> str:
    """What the noise does to a label, in words."""
    assert privacy.label_epsilon is not None, "asked where labels have noise"
    if classes is None:
        if privacy.label_bounds is None:
            return f"Laplace, of scale {number(1 / privacy.label_epsilon, 3)} times the width of the policy's bounds"
        low, high = privacy.label_bounds
        return f"Laplace, standard deviation {number(number_variance(privacy.label_epsilon, (low, high)) ** 0.5, 3)}"
    return f"the true class stays with probability {kept(privacy, classes):.1%}"
