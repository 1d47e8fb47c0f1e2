"""`Pipeline`: the steps by which columns become features, in order.

A pipeline contains settings only. Fitting it over the joined rows of a relation gives an `Encoding`, which is stored
with the model. After the last step, missing numbers get their mean, and remaining text becomes one column per category:
then every column of the relation is a feature. `DEFAULT` is used for a relation without a pipeline.

A fit takes as few trips as possible. All steps are declared first, which shows what they need (draft.py). Statistics of
the columns as they are read share one trip; refining quantiles takes at most seven more. A statistic that depends on
what an earlier step learned, and cannot be computed from sums and ranks (moments.py), takes one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tablepuppet.errors import ConfigError, LearnError, PrivacyError
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
from tablepuppet.prep.encode.program import Shapes, needed_for
from tablepuppet.prep.encode.specs import Drop, Fill, FittedStep, Scale
from tablepuppet.prep.pipelines import steps
from tablepuppet.prep.pipelines.draft import Column, Draft, Selector
from tablepuppet.prep.pipelines.needs import (
    Answers,
    AskedAnswers,
    Dropped,
    Later,
    Question,
    answer_all,
    most_trips,
    questions_of,
)
from tablepuppet.prep.pipelines.noisy_answers import EncoderNoise, NoisyAnswers
from tablepuppet.prep.pipelines.steps.categories import list_categories
from tablepuppet.prep.pipelines.steps.drops import DropConstant, drop_if_same
from tablepuppet.prep.pipelines.steps.impute import Impute
from tablepuppet.prep.pipelines.steps.labelled import LabelStep
from tablepuppet.prep.pipelines.steps.map import Map, with_maps
from tablepuppet.prep.pipelines.steps.scale import Standardize
from tablepuppet.prep.pipelines.steps.step import PrepStep
from tablepuppet.runs.events import Events
from tablepuppet.spelling import did_you_mean, hides, setting_meant
from tablepuppet.sql.plan import Plan
from tablepuppet.sql.query import OutputColumn, Query

STEPS: Mapping[str, type[PrepStep]] = {name: getattr(steps, name) for name in steps.__all__}


@hides("labelled", "leaves_out", "maps", "of_plain")
@dataclass(frozen=True)
class Pipeline:
    """Steps in order, for ``fed.sql(..., prep=Pipeline([...]))``.

    >>> print(Pipeline([Impute("median"), Standardize(columns=["price", "i.*"])]))
    Impute(strategy='median', fill=None, indicator=False)
    Standardize(columns=[price, i.*])
    """

    steps: Sequence[PrepStep]

    def __post_init__(self) -> None:
        listed = self.steps if isinstance(self.steps, Sequence) and not isinstance(self.steps, str) else [self.steps]
        for step in listed:
            if not isinstance(step, PrepStep):
                given = step.__name__ + ", which is a class" if isinstance(step, type) else type(step).__name__
                raise LearnError(f"a pipeline is a list of steps, such as [tp.prep.Impute('median')], not of {given}")
        object.__setattr__(self, "steps", tuple(listed))
        first = [isinstance(step, Map) for step in listed]
        if sorted(first, reverse=True) != first:
            raise LearnError("Map is evaluated where columns are read: put it before all other steps")

    @property
    def maps(self) -> list[Map]:
        """The steps that are evaluated where columns are read."""
        return [step for step in self.steps if isinstance(step, Map)]

    @property
    def labelled(self) -> list[LabelStep]:
        """The steps that learn from the label."""
        return [step for step in self.steps if isinstance(step, LabelStep)]

    @property
    def leaves_out(self) -> bool:
        """Whether rows to learn from are prepared by other numbers than rows to predict."""
        return any(step.leaves_out for step in self.labelled)

    def __iter__(self) -> Iterator[PrepStep]:
        return iter(self.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def declare(self, draft: Draft) -> None:
        for step in self.steps:
            draft.step = step.name
            columns = step.selected(draft)
            draft.used.append((step.name, [each.column for each in columns if each.is_source]))
            step.declare_all(columns, draft)

    @classmethod
    def of_plain(cls, entries: Sequence[Mapping[str, Any]]) -> Pipeline:
        """The pipeline that a job file describes: for each step its ``kind`` and settings."""
        return cls([_step(entry) for entry in entries])

    def plain(self) -> list[dict[str, Any]]:
        """As a job file writes it: see `of_plain`."""
        found = []
        for step in self.steps:
            given = {each.name: getattr(step, each.name) for each in fields(step)}
            columns = given.pop("columns")
            given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
            selected = {} if columns is None else {"columns": [str(each) for each in columns]}
            found.append({"kind": step.name, **{name: v for name, v in given.items() if v is not None}, **selected})
        return found


def _step(entry: Mapping[str, Any]) -> PrepStep:
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in STEPS:
        raise ConfigError(f"prep: kind {kind!r} is no step{did_you_mean(str(kind), STEPS)}")
    known = [each.name for each in fields(STEPS[kind])]
    given = {name: value for name, value in entry.items() if name != "kind"}
    for name in given:
        if name not in known:
            raise ConfigError(f"prep: {kind} has no setting {name!r}{setting_meant(name, known)}")
    try:
        return STEPS[kind](**given)
    except LearnError as error:
        raise ConfigError(f"prep: {error}") from error


numbers, texts, dates, booleans, flags = (
    Selector("number"), Selector("text"), Selector("date"), Selector("boolean"), Selector("flag"),
)  # fmt: skip
DEFAULT = Pipeline([DropConstant(columns=[numbers]), Impute("mean"), Standardize()])


def refuse_with_noise(pipeline: Pipeline) -> None:
    """PrivacyError for the first step that has no form with noise, with what to write instead."""
    for step in () if pipeline is DEFAULT else pipeline:
        if step.instead_of_noise:
            raise PrivacyError(
                f"prep, step {step.name}: it has no form with noise (feature_epsilon): {step.instead_of_noise}"
            )


def refuse_noisy_labels(pipeline: Pipeline) -> None:
    """PrivacyError for steps that learn from the label, under label privacy."""
    for step in pipeline.labelled:
        raise PrivacyError(
            f"prep, step {step.name}: it learns from true labels, and has no form with noise; with label_epsilon leave "
            "it out, or use OneHot"
        )


@dataclass(frozen=True)
class Foresight:
    """What the fit of a pipeline will ask, and the maximum number of trips."""

    questions: list[Question[Any]]
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
    """What the fit of a pipeline will ask; LearnError if a step does not fit its columns."""
    return _foresight(declared(pipeline, Draft(plan, max_categories)))


def _foresight(draft: Draft) -> Foresight:
    questions = questions_of(draft.settled)
    widths = dict.fromkeys((column.alias for column in draft.plan.query.features), 0)
    for column in draft.columns.values():
        widths[column.alias] += column.most_codes if column.kind == "coded" else 1
    return Foresight(questions, most_trips(questions), draft.used, list(dict.fromkeys(draft.labelled)), widths)


def selecting(pipeline: Pipeline, plan: Plan, max_categories: int) -> Query:
    """The query of a plan, with the expressions of a pipeline applied to its columns."""
    if not pipeline.maps:
        return plan.query
    return with_maps(plan.query, dict(plan.tables), pipeline.maps, Draft(plan, max_categories))


def declared(pipeline: Pipeline, draft: Draft) -> Draft:
    """All steps of a pipeline written down, and what makes features of the columns that they leave."""
    pipeline.declare(draft)
    draft.step = "OneHot"  # that text becomes
    for column in draft.columns.values():
        _finish(column, draft)
    return draft


def fit_encoding(
    client: Client, pipeline: Pipeline, max_categories: int, events: Events, noise: EncoderNoise | None = None
) -> Encoding:
    """A pipeline fitted over the joined rows of a relation, applied at the parties.

    Empty columns, and text that looks like an id or has too many categories, are left out with a warning event; so are
    constants by default. Numbers that look like ids are features, with a warning event. Raises LearnError for values
    that are not finite, or too large to be squared.

    With ``noise``, steps learn from policies or from noisy statistics, and columns that drown in noise are left out.
    """
    identity = client.new_name()
    if noise is None:
        draft = declared(pipeline, Draft(client.plan, max_categories, client))
        if pipeline is not DEFAULT:
            _foresight(draft).check_policies(client.plan)
        answers: Answers = AskedAnswers(client, identity)
    else:
        refuse_with_noise(pipeline)
        draft = declared(pipeline, Draft(client.plan, max_categories, client, is_noisy=True))
        answers = NoisyAnswers(client, identity, draft.rows, questions_of(draft.settled), noise)
    answer_all(draft.settled, answers)
    for column in draft.all:
        lost = column.alive.lost
        if lost is not None and lost.column == column.column:  # not one that it is made of
            drop_column(column.column, str(lost), events)
    live = {name: each for name, each in draft.columns.items() if each.alive.lost is None}
    for each in live.values():
        if each.is_source and each.kind == "number" and each.name in answers.ids:
            name = each.column.qualified  # it may be a measure, and is a feature all the same
            events.emit("warning", "column.id", f"column {name} {about_id(each.column)}", column=name)
    found = {alias: encoders(draft, live, alias) for alias in client.tables}
    encoding = Encoding(
        identity,
        client.key,
        {alias: numbers for alias, (numbers, _, _) in found.items()},
        {alias: categories for alias, (_, categories, _) in found.items()},
        private=noise is not None,
        steps={alias: table for alias, (_, _, table) in found.items() if table.steps},
        described=() if pipeline is DEFAULT else tuple(map(str, pipeline)),
        iv_={name: value.get() for name, value in draft.information.items() if value.lost is None},
    )
    apply_encoding(client, encoding, learned=noise is None)
    return encoding.to_predict()


def _finish(column: Column, draft: Draft) -> None:
    """Make a feature of a column that is left."""
    name, source = column.name, column.column
    if column.kind == "text":  # one column per category, unless it looks like an id, has too many, or is the same

        def groups(found: tuple[int, float]) -> None:
            if is_id(found[0], draft.base_rows(column.alias)):
                raise Dropped(source, f"looks like an id: {ID_HELP}")

        if not (column.is_listed or name in draft.plan.query.categorical):
            draft.check(column, groups, draft.distinct(column))
        drop_if_same(column, draft)
        list_categories(column, draft, draft.max_categories)
        column.kind = "coded"
    elif column.kind == "coded":
        draft.need(column, draft.weights(column))
    else:
        known = draft.usable(column)
        draft.need(column, known)
        column.moments = known
        if not column.is_filled:
            draft.emit(column, lambda known: Fill(name, known.mean), known)
            column.moments = Later(lambda known: known.filled(known.mean), known)


def encoders(
    draft: Draft, live: Mapping[str, Column], alias: str
) -> tuple[tuple[NumberEncoder, ...], tuple[CategoryEncoder, ...], TableSteps]:
    """The encoders of a table, and what its parties do before they use them."""
    live = {name: each for name, each in live.items() if each.alias == alias}
    steps = [each.get() for each in draft.program.get(alias, []) if each.lost is None]
    program: list[FittedStep] = needed_for([step for step in steps if step is not None], live)
    program, last = _fold(program, [name for name, each in live.items() if each.kind in ("number", "flag")])
    read = {*live, *(name for step in program for name in step.reads)}
    sources = [each for name, each in draft.sources.items() if name in read and each.alias == alias]
    table = TableSteps(
        tuple(each.column for each in sources if each.read_by is None),
        tuple((each.column, each.read_by.get()) for each in sources if each.read_by is not None),
        (*program, *(Drop(each.name) for each in sources if each.name not in live)),
    )
    sizes = {column.name: len(digests) for column, digests in table.categories}
    shapes = Shapes.of([column.name for column in table.numbers], sizes, table.steps)
    numbers = tuple(_number(live[name], *last[name]) for name in shapes.numbers)
    categories = []
    for name in shapes.coded:
        codes, weights = live[name].codes.get(), draft.weights(live[name]).get()
        shares = () if draft.is_noisy else tuple((weights / draft.rows).tolist())
        categories.append(CategoryEncoder(live[name].column, codes.digests, shares, codes.more))
    return numbers, tuple(categories), table


def _number(column: Column, mean: float, scale: float) -> NumberEncoder:
    assert column.moments is not None, "the fit is finished"
    moments = column.moments.get()
    return NumberEncoder(column.column, mean, scale, moments.mean, moments.square, moments.std)


def _fold(program: list[FittedStep], names: Iterable[str]) -> tuple[list[FittedStep], dict[str, tuple[float, float]]]:
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
