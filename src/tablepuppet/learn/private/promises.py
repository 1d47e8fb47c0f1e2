"""Creates the feature promise of a fit, and reads that of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tablepuppet.errors import PrivacyError
from tablepuppet.learn.noise.plan import FeatureNoise, StepNoise
from tablepuppet.learn.private.encoder_promise import EncoderPromise, EncoderReleases, known_columns, statistics_of
from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.step_promise import StepPromise, sampling_of
from tablepuppet.learn.private.sum_promise import SumPromise
from tablepuppet.learn.solve.solvers import Stepping
from tablepuppet.prep.private_encode import EncoderNoise
from tablepuppet.privacy.settings import Privacy
from tablepuppet.sql.plan import Plan


def new_promise(
    privacy: Privacy, plan: Plan, rounds: int | None, rows: Mapping[str, int], steps: Stepping | None
) -> FeaturePromise:
    """The promise for ``rows`` rows by table; with ``steps``, for noisy steps with these settings."""
    query = plan.query
    statistics = _of_encoders(privacy, statistics_of(query.features, query.categorical, known_columns(plan)))
    if steps is None:
        return SumPromise(privacy, statistics, rounds)
    return StepPromise(privacy, statistics, rounds, steps.local_steps, sampling_of(steps.batch_size, rows))


def _of_encoders(privacy: Privacy, tables: Mapping[str, EncoderReleases]) -> EncoderPromise:
    if privacy.feature_epsilon is None:
        raise PrivacyError("prediction_epsilon is about predictions only: set feature_epsilon too")
    return EncoderPromise(privacy.feature_epsilon, privacy.delta, tables)


def read_promise(kept: Mapping[str, Any]) -> FeaturePromise:
    """The promise that `FeaturePromise.to_keep` stored, with its counts: later predictions are added to them."""
    privacy = Privacy.of_settings(kept["privacy"])
    statistics = _of_encoders(privacy, {alias: EncoderReleases(**each) for alias, each in kept["tables"].items()})
    statistics.noise = EncoderNoise(**kept["encoders"])
    steps = kept.get("steps")
    if steps is None:
        sums = SumPromise(privacy, statistics, kept["rounds"])
        sums.noise = FeatureNoise(**kept["noise"])
        return sums
    found = StepPromise(privacy, statistics, kept["rounds"], steps["local_steps"], steps["samplings"])
    found.steps, found._slack = StepNoise(**kept["noise"]), steps["slack"]
    return found
