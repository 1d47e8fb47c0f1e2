"""Emits an event if noise left a model that is no better than a constant.

Input: a fitted learner and its loss. Output: the event ``privacy.useless``, with advice (usefulness.py). It uses
released values only: no party is asked, and no epsilon is spent.
"""

from __future__ import annotations

from typing import Any, Protocol

from tablepuppet.learn.learners.watch import Validation
from tablepuppet.learn.loss.joined_loss import JoinedLoss, label_deviation
from tablepuppet.learn.noise.plan import StepNoise, believed
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.usefulness import (
    LITTLE,
    TableSize,
    help_for_clipping,
    help_for_features,
    help_for_labels,
    is_all_noise,
    is_useless,
    label_share,
    prediction_noise_ratio,
    searched_directions,
)
from tablepuppet.learn.tables.federated import FederatedModel
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Kind
from tablepuppet.store.parts import Storable

WEAK = "The noise is small beside what the rows show: the features themselves seem to say little about the label."


class NoisyLearner(Protocol):
    """A learner that was fitted with noise."""

    encoding_: Encoding
    _model: Storable
    _promise: FeaturePromise | None
    label_correction: bool
    history_: list[dict[str, Any]]
    best_round_: int

    def emit(self, relation: Relation, kind: Kind, name: str, message: str, fields: dict[str, Any]) -> None:
        """Send an event to the readers of the federation and of this learner."""
        ...

    def parameters_of(self, alias: str, width: int, outputs: int) -> int:
        """The number of parameters of a table with ``width`` encoded columns."""
        ...


def warn_of_noise(
    learner: NoisyLearner, privacy: Privacy, relation: Relation, loss: JoinedLoss, held_out: Validation | None
) -> None:
    """Emit the warning if there is noise and the model is useless, measured on validation rows if there are some."""
    if not (privacy.is_label_private or privacy.is_feature_private) or not learner.history_:
        return
    entry = learner.history_[learner.best_round_ - 1]
    measured, value = (loss, entry["loss"]) if held_out is None else (held_out.loss, entry["validation_loss"])
    measured.set_constant(loss.best_constant())
    constant = measured.evaluate()
    if constant <= 0:  # the label is constant
        return
    gained = left_by_noise(learner, loss, constant, 1 - value / constant)
    tables = table_sizes(learner, relation, loss.outputs)
    label = relation.query.label
    rows = relation.client.tables[label.alias].rows if label else len(relation)
    searched = 0.0 if held_out is not None else _searched(learner, privacy, tables)
    little = gained < LITTLE and not privacy.is_label_private
    if not (little or _is_luck(learner, privacy, tables, rows) or is_useless(loss, constant, gained, rows, searched)):
        return
    helps = _helps(learner, privacy, tables, rows, loss)
    where = "training" if held_out is None else "validation"
    by = f"by {max(gained, 0.0):.1%}{'' if little else ', as chance would'}"
    message = (
        f"with its noise the model is no better than a constant: on the {where} rows its predictions lower the loss of "
        f"the best constant {by}. {' '.join(helps or [WEAK])}"
    )
    fields = {"gained": gained, "rows": rows, "helps": helps}
    learner.emit(relation, "warning", "privacy.useless", message, fields)


def _is_luck(learner: NoisyLearner, privacy: Privacy, tables: dict[str, TableSize], rows: int) -> bool:
    """Whether there is so much noise that any gain of the model is chance."""
    if learner._promise is not None and is_all_noise(learner._promise, tables):
        return True
    parameters = sum(table.parameters for table in tables.values())
    return privacy.is_label_private and rows * label_share(privacy, _classes(learner)) < parameters


def left_by_noise(learner: NoisyLearner, loss: JoinedLoss, constant: float, gained: float) -> float:
    """The gain that is left once predictions have noise; the gain of the fit if they have none.

    Noisy predictions are shrunk towards their mean (noise/plan.py), which leaves a share of the gain without
    noise. The gain of noisy steps already includes the noise, that of noisy statistics does not.
    """
    promise = learner._promise
    noise = None if promise is None else prediction_noise_ratio(promise)
    if promise is None or noise is None:
        return gained
    model = learner._model
    if not (isinstance(model, FederatedModel) and isinstance(model.noise, StepNoise)):
        return gained * believed(1.0, noise**2)
    square = len(model.tables) * (model.noise.clip * noise * model.unit) ** 2
    without = gained + 0.5 * loss.most_curvature * square / constant
    return min(max(without, 0.0), 1.0) * believed(1.0, model.noise_ratio)


def _helps(
    learner: NoisyLearner, privacy: Privacy, tables: dict[str, TableSize], rows: int, loss: JoinedLoss
) -> list[str]:
    promise, found = learner._promise, []
    if promise is not None:
        found = help_for_features(promise, tables)
        columns = sum(learner.encoding_.columns(alias) for alias in tables)
        found += help_for_clipping(promise, label_deviation(loss.rows), columns) if loss.quadratic else []
    if privacy.is_label_private:
        parameters = sum(table.parameters for table in tables.values())
        found += help_for_labels(privacy, _classes(learner), rows, parameters)
    return found


def _classes(learner: NoisyLearner) -> int | None:
    return len(learner.classes_) if hasattr(learner, "classes_") else None


def _searched(learner: NoisyLearner, privacy: Privacy, tables: dict[str, TableSize]) -> float:
    """The number of directions in which a fit may follow chance; corrected noisy labels increase it."""
    found = float(sum(table.parameters for table in tables.values()))
    if learner._promise is not None:
        found = searched_directions(learner._promise, tables)
    return found / label_share(privacy, _classes(learner)) if learner.label_correction else found


def table_sizes(learner: NoisyLearner, relation: Relation, outputs: int) -> dict[str, TableSize]:
    """The size of each table with features, by alias: noise is compared with it."""
    encoding, found = learner.encoding_, {}
    for alias in dict.fromkeys(column.alias for column in relation.query.features):
        kept = {encoder.column.name for encoder in encoding.numbers[alias]}
        kept |= {encoder.column.name for encoder in encoding.categories[alias]}
        names = [column.name for column in relation.query.features if column.alias == alias]
        width = len(encoding.names(alias))
        shards = relation.client.shards(alias)
        found[alias] = TableSize(
            relation.plan.tables[alias].name,
            tuple(dict.fromkeys(shard.party for shard in shards)),
            relation.client.tables[alias].rows,
            learner.parameters_of(alias, width, outputs) if width else 0,
            max(len(shards), 1),
            tuple(name for name in names if name not in kept),
        )
    return found
