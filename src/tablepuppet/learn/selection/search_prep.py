"""Pipelines as settings of a search: ``"prep"`` lists whole ones, ``"prep__Bin__n"`` values of a step's setting.

The tables are read and joined once, whatever the pipelines; encoders are fitted once per pipeline and fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from tablepuppet.errors import LearnError
from tablepuppet.learn.selection.folds import Fold
from tablepuppet.prep.pipelines.pipeline import DEFAULT, STEPS, Pipeline
from tablepuppet.relation import Relation
from tablepuppet.spelling import did_you_mean

PREP = "prep"


def is_of_prep(name: str) -> bool:
    """Whether a setting is one of the pipeline, and not of the learner."""
    return name.split("__")[0] == PREP


def check_prep(settings: Mapping[str, Any]) -> None:
    """LearnError unless settings of the pipeline can be, as far as it is known without a relation."""
    if PREP in settings:
        pipeline_of(settings, DEFAULT)
    for name in settings:
        parts = name.split("__")
        if is_of_prep(name) and name != PREP and (len(parts) != 3 or not (parts[1].isdecimal() or parts[1] in STEPS)):
            raise LearnError(
                f"{name!r}: a setting of a step is written prep__Bin__n, with the kind of the step or its place from 0"
                f"{did_you_mean(parts[1], STEPS) if len(parts) > 1 else ''}"
            )


def pipeline_of(settings: Mapping[str, Any], base: Pipeline) -> Pipeline:
    """The pipeline of a candidate, ``base`` if it names none; LearnError if it has no such step or setting."""
    found = settings.get(PREP, base)
    found = DEFAULT if found is None else found
    if not isinstance(found, Pipeline):
        raise LearnError(f"prep: give pipelines to try, such as tp.prep.Pipeline([...]), not {type(found).__name__}")
    for name, value in settings.items():
        if is_of_prep(name) and name != PREP:
            found = _changed(found, name, value)
    return found


def check_pipelines(candidates: Sequence[Mapping[str, Any]], relation: Relation) -> None:
    """LearnError or PrivacyError unless the pipeline of every candidate fits a relation; no party is asked."""
    known = [relation.prep]
    for settings in candidates:
        pipeline = pipeline_of(settings, relation.prep)
        if pipeline not in known:
            relation.with_prep(pipeline).check_prep()
            known.append(pipeline)


def _changed(pipeline: Pipeline, name: str, value: Any) -> Pipeline:
    _, step, setting = name.split("__")
    kinds = [each.name for each in pipeline]
    places = [int(step)] if step.isdecimal() else [place for place, kind in enumerate(kinds) if kind == step]
    if len(places) != 1 or places[0] >= len(kinds):
        several = "several; say which one by its place from 0, as prep__0__n" if len(places) > 1 else "none"
        raise LearnError(f"{name!r}: of such steps the pipeline ({', '.join(kinds) or 'without steps'}) has {several}")
    steps, place = list(pipeline.steps), places[0]
    known = [each.name for each in fields(steps[place])]
    if setting not in known:
        raise LearnError(f"{name!r}: {kinds[place]} has no such setting{did_you_mean(setting, known)}")
    steps[place] = replace(steps[place], **{setting: value})
    return Pipeline(steps)


def for_people(settings: Mapping[str, Any], listed: Sequence[Any]) -> dict[str, Any]:
    """Settings for a table: a pipeline by the kinds of its steps, and its place among those listed if these are alike.

    >>> for_people({"prep": None, "l2": 0.1}, [None, Pipeline([])])
    {'prep': 'default', 'l2': 0.1}
    """
    if PREP not in settings:
        return dict(settings)
    texts, given = [_kinds(each) for each in listed], settings[PREP]
    text = _kinds(given)
    place = next((at for at, each in enumerate(listed) if each is given), 0)
    return {**settings, PREP: f"{text} ({place})" if texts.count(text) > 1 else text}


def _kinds(pipeline: Pipeline | None) -> str:
    if pipeline is None or pipeline is DEFAULT:
        return "default"
    return " | ".join(step.name for step in pipeline) or "no steps"


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for a file: pipelines as job files write them."""
    found = {name: value.plain() if isinstance(value, Pipeline) else value for name, value in settings.items()}
    return {name: "default" if name == PREP and value is None else value for name, value in found.items()}


class PreparedFolds:
    """Folds by pipeline, made when they are needed: all candidates with one pipeline share its encoders."""

    def __init__(self, folds: Sequence[Fold]):
        self._folds, self._base = folds, folds[0][0].prep
        self._known: list[tuple[Pipeline, list[Fold]]] = [(self._base, list(folds))]

    def of(self, settings: Mapping[str, Any]) -> list[Fold]:
        """The folds of a candidate."""
        pipeline = pipeline_of(settings, self._base)
        found = next((folds for known, folds in self._known if known == pipeline), None)
        if found is None:
            found = [(prepared(train, pipeline), test) for train, test in self._folds]
            self._known.append((pipeline, found))
        return found


def prepared(relation: Relation, pipeline: Pipeline) -> Relation:
    """The rows of a relation, by a pipeline."""
    return relation if pipeline == relation.prep else relation.with_prep(pipeline)
