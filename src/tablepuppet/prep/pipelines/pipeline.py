"""`Pipeline`: the steps by which columns become features, in order.

A pipeline contains settings only. Fitting it over a relation (fit.py) gives an `Encoding`, which is stored with the
model. After the last step, missing numbers get their mean, and remaining text becomes one column per category: then
every column of the relation is a feature. `DEFAULT` is used for a relation without a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tablepuppet.errors import ConfigError, LearnError, PrivacyError
from tablepuppet.prep.pipelines import steps
from tablepuppet.prep.pipelines.draft import Draft, Selector
from tablepuppet.prep.pipelines.steps.drops import DropConstant
from tablepuppet.prep.pipelines.steps.impute import Impute
from tablepuppet.prep.pipelines.steps.labelled import LabelStep
from tablepuppet.prep.pipelines.steps.map import Map
from tablepuppet.prep.pipelines.steps.scale import Standardize
from tablepuppet.prep.pipelines.steps.step import PrepStep
from tablepuppet.spelling import did_you_mean, hides, setting_meant

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
