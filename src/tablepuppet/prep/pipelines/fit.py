"""Fits a pipeline over the joined rows of a relation, in as few trips as possible.

Statistics of the columns as they are read share one trip; refining quantiles takes at most seven more. A statistic that
depends on what an earlier step learned, and cannot be computed from sums and ranks (moments.py), takes one more trip,
for all columns together. `foresee` computes the number of trips from a plan alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tablepuppet.errors import LearnError
from tablepuppet.operators.client import Client
from tablepuppet.prep.columns.ids import ID_HELP, about_id, is_id
from tablepuppet.prep.columns.selected import LABELLED, check_across, check_label_means, check_without_noise
from tablepuppet.prep.encode.encode import (
    CategoryEncoder,
    Encoding,
    NumberEncoder,
    TableSteps,
    apply_encoding,
    drop_column,
)
from tablepuppet.prep.encode.private_encode import EncoderNoise
from tablepuppet.prep.encode.program import Shapes, needed_for
from tablepuppet.prep.encode.specs import Drop, Fill, Scale, StepSpec
from tablepuppet.prep.pipelines.attempt import Attempt, Column, Dropped
from tablepuppet.prep.pipelines.known import MOST_TRIPS, Foreseen, Known, Needs, Statistics
from tablepuppet.prep.pipelines.noisy_known import NoisyKnown
from tablepuppet.prep.pipelines.pipeline import DEFAULT, Pipeline, refuse_with_noise
from tablepuppet.prep.pipelines.steps.categories import list_categories
from tablepuppet.prep.pipelines.steps.drops import drop_if_same
from tablepuppet.prep.pipelines.steps.map import with_maps
from tablepuppet.runs.events import Events
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn, Query


@dataclass(frozen=True)
class Foresight:
    """What the fit of a pipeline will ask: statistics of columns as they are read, and the maximum number of trips."""

    needs: Needs
    trips: int
    used: list[tuple[str, list[OutputColumn]]]  # by step, the selected columns that it works on
    labelled: list[tuple[str, OutputColumn]]  # by step, a column whose categories get means of the label
    widths: dict[str, int]  # encoded columns at most, by alias

    def lines(self, pipeline: Pipeline) -> list[str]:
        """For people: which steps change which columns, and the number of trips."""
        most = f"{self.trips} trip{'s' * (self.trips != 1)}"
        found = [f"Features are prepared by {len(pipeline.steps)} steps, fitted in at most {most}:"]
        for place, (step, (_, columns)) in enumerate(zip(pipeline, self.used, strict=True), 1):
            names = ", ".join(column.qualified for column in columns)
            found.append(f"  {place}. {step}{': ' if names else ''}{names}")
        return found

    def passed_on(self, plan: Plan) -> list[str]:
        """For people: which party gets means of whose labels, as the numbers of categories."""
        label, found = plan.query.label, []
        if label is None:
            return []
        for step, column in self.labelled:
            owners = {shard.party for shard in plan.tables[label.alias].shards}
            readers = [shard.party for shard in plan.tables[column.alias].shards if owners != {shard.party}]
            back = f", and means of {label.qualified} by category to party {', '.join(map(repr, readers))}"
            found.append(f"  {step} sends the category of each row of {column.qualified} here{back * bool(readers)}")
        return found

    def check_policies(self, plan: Plan) -> None:
        """Raise PrivacyError if policies forbid a step, LearnError if a step needs a label and there is none.

        A policy may release a step's columns only with noise, or may not allow that means of the label are sent.
        """
        for step, columns in self.used:
            check_without_noise(plan, columns, f"prep, step {step}")
        for step, column in self.labelled:
            label = plan.query.label
            if label is None:
                raise LearnError(
                    f"prep, step {step}: it learns from the label, and the query has none: name a selected column, "
                    "fed.sql(..., label='column')"
                )
            check_without_noise(plan, [label], f"prep, step {step}")
            check_label_means(plan, label, column, f"prep, step {step}")
            check_across(plan, [column], f"prep, step {step}", LABELLED)


def foresee(pipeline: Pipeline, plan: Plan, max_categories: int) -> Foresight:
    """Run a pipeline over numbers that are made up; LearnError if a step does not fit its columns."""
    statistics = Foreseen(plan)
    attempt = run_until_known(pipeline, statistics, max_categories)
    trips = 1 + statistics.trips + (MOST_TRIPS - 2) * statistics.refined
    widths = dict.fromkeys((column.alias for column in plan.query.features), 0)
    for column in attempt.columns.values():
        is_listed = column.kind == "text" or len(column.digests) > 0
        is_number = column.kind in ("number", "flag")
        widths[column.alias] += 1 if is_number else len(column.more) + is_listed * max_categories
    return Foresight(statistics.needs, trips, attempt.used, list(dict.fromkeys(attempt.labelled)), widths)


def selecting(pipeline: Pipeline, plan: Plan, max_categories: int) -> Query:
    """The query of a plan, with the expressions of a pipeline applied to its columns."""
    if not pipeline.maps:
        return plan.query
    return with_maps(plan.query, dict(plan.tables), pipeline.maps, Attempt(Foreseen(plan), max_categories))


def run_until_known(pipeline: Pipeline, statistics: Statistics, max_categories: int) -> Attempt:
    """Run all steps again and again, and ask for what is wanted in between, until nothing is."""
    while True:
        attempt = Attempt(statistics, max_categories)
        pipeline.run(attempt)
        finish(attempt)
        if not statistics.wanted:
            return attempt
        statistics.fetch()


def fit_encoding(
    client: Client, pipeline: Pipeline, max_categories: int, events: Events, noise: EncoderNoise | None = None
) -> Encoding:
    """A pipeline fitted over the joined rows of a relation, applied at the parties.

    Empty columns, and text that looks like an id or has too many categories, are left out with a warning event; so are
    constants by default. Numbers that look like ids are features, with a warning event. Raises LearnError for values
    that are not finite, or too large to be squared.

    With ``noise``, steps learn from policies or from noisy statistics, and columns that drown in noise are left out.
    """
    foreseen, identity = foresee(pipeline, client.plan, max_categories), client.new_name()
    if noise is None:
        if pipeline is not DEFAULT:
            foreseen.check_policies(client.plan)
        statistics: Statistics = Known(client, identity, foreseen.needs)
    else:
        refuse_with_noise(pipeline)
        texts = [column for column, _ in foreseen.needs.categories.values()]
        statistics = NoisyKnown(client, identity, texts, noise)
    attempt = run_until_known(pipeline, statistics, max_categories)
    order = {name: place for place, name in enumerate(attempt.sources)}
    for column, reason in sorted(attempt.dropped.values(), key=lambda each: order.get(each[0].name, len(order))):
        drop_column(column.column, reason, events)
    _warn_of_ids(attempt, events)
    found = {alias: encoders(attempt, alias) for alias in client.tables}
    encoding = Encoding(
        identity,
        client.key,
        {alias: numbers for alias, (numbers, _, _) in found.items()},
        {alias: categories for alias, (_, categories, _) in found.items()},
        private=noise is not None,
        steps={alias: table for alias, (_, _, table) in found.items() if table.steps},
        described=() if pipeline is DEFAULT else tuple(map(str, pipeline)),
        iv_=attempt.information,
    )
    apply_encoding(client, encoding, learned=noise is None)
    return encoding.to_predict()


def _warn_of_ids(attempt: Attempt, events: Events) -> None:
    """Tell of numbers that look like ids: they may be measures, and are features all the same."""
    found = attempt.statistics.ids()
    for each in attempt.columns.values():
        if each.is_source and each.kind == "number" and each.name in found:
            name = each.column.qualified
            events.emit("warning", "column.id", f"column {name} {about_id(each.column)}", column=name)


def finish(attempt: Attempt) -> None:
    """Make a feature of every column that is left."""
    attempt.step = "OneHot"  # that text becomes
    for column in list(attempt.columns.values()):
        attempt.fit(column, _finish_column)


def _finish_column(column: Column, attempt: Attempt) -> None:
    if column.kind == "text":
        _finish_text(column, attempt)
    elif column.kind == "coded":
        attempt.weights(column)
    else:
        known = attempt.usable(column)
        if not column.is_filled:
            attempt.emit(column, Fill(column.name, known.mean))
            column.moments, column.is_filled = known.filled(known.mean), True


def _finish_text(column: Column, attempt: Attempt) -> None:
    """One column per category, unless it looks like an id, has too many, or is the same everywhere."""
    statistics = attempt.statistics
    is_meant = len(column.digests) > 0 or column.name in statistics.plan.query.categorical
    if not is_meant and is_id(attempt.categories(column)[0], statistics.base_rows(column.alias)):
        raise Dropped(f"looks like an id: {ID_HELP}")
    drop_if_same(column, attempt)
    list_categories(column, attempt, attempt.max_categories)
    column.kind = "coded"


def encoders(attempt: Attempt, alias: str) -> tuple[tuple[NumberEncoder, ...], tuple[CategoryEncoder, ...], TableSteps]:
    """The encoders of a table, and what its parties do before they use them."""
    live = {name: each for name, each in attempt.columns.items() if each.alias == alias}
    program: list[StepSpec] = needed_for(attempt.program.get(alias, []), live)
    program, last = _fold(program, [name for name, each in live.items() if each.kind in ("number", "flag")])
    read = attempt.reading(alias, live, program).columns
    table = attempt.reading(alias, live, program + [Drop(each.name) for each in read if each.name not in live])
    sizes = {column.name: len(digests) for column, digests in table.categories}
    shapes = Shapes.of([column.name for column in table.numbers], sizes, table.steps)
    numbers = tuple(_number(live[name], *last[name]) for name in shapes.numbers)
    categories = tuple(_category(live[name], attempt.statistics) for name in shapes.coded)
    return numbers, categories, table


def _number(column: Column, mean: float, scale: float) -> NumberEncoder:
    assert column.moments is not None, "the fit is finished"
    moments = column.moments
    return NumberEncoder(column.column, mean, scale, moments.mean, moments.square, moments.std)


def _category(column: Column, statistics: Statistics) -> CategoryEncoder:
    assert column.weights is not None, "the fit is finished"
    shares = () if statistics.is_noisy else tuple((column.weights / statistics.rows).tolist())
    return CategoryEncoder(column.column, column.digests, shares, column.more)


def _fold(program: list[StepSpec], names: Iterable[str]) -> tuple[list[StepSpec], dict[str, tuple[float, float]]]:
    """Take the last scaling of columns out of the steps, with a fill by its centre: encoders do the same."""
    uses: dict[str, list[int]] = {}
    for place, step in enumerate(program):
        for name in {*step.reads, step.writes}:
            uses.setdefault(name, []).append(place)
    gone, scales = set[int](), dict[str, tuple[float, float]]()
    for name in names:
        own = uses.get(name, [])
        last, before = (program[own[-1]] if own else None), (program[own[-2]] if len(own) > 1 else None)
        scales[name] = 0.0, 1.0
        if isinstance(last, Scale):
            scales[name] = last.centre, last.scale
            gone.update(own[-2:] if isinstance(before, Fill) and before.value == last.centre else own[-1:])
    return [step for place, step in enumerate(program) if place not in gone], scales
