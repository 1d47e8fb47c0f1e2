"""What a learner has once it is fitted, and what is saved of it; the learners themselves are in learners/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.promise import Uses
from tablepuppet.learn.private.report import PrivacyReport
from tablepuppet.learn.tables.saved import SavedModel
from tablepuppet.learn.tables.stored import Model, Stored
from tablepuppet.prep.encode import Encoding
from tablepuppet.privacy.settings import Privacy
from tablepuppet.wire.engine import Engine


class Fitted(Protocol):
    """A fitted learner."""

    privacy: Privacy | None
    encoding_: Encoding
    model_: Model
    intercept_: NDArray[np.float64]
    engine_: Engine
    relation_columns_: Sequence[tuple[str, str, str]]
    n_features_in_: int
    parties_: tuple[str, ...]
    uses_: Uses
    promise_: FeaturePromise | None
    privacy_: PrivacyReport
    history_: list[dict[str, Any]]
    solver_: str
    converged_: bool
    stopped_: str
    best_round_: int
    _category_names: dict[str, list[str | None]] | None

    @property
    def categories_(self) -> dict[str, list[str | None]]:
        """Names of categories that may be told."""
        ...

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings that it was made with."""
        ...

    def saved(self, stored: Stored, engine: Engine, wire: str, outputs: int) -> SavedModel:
        """A model with these parameters, for predictions only."""
        ...


class Connected(Protocol):
    """A federation, as far as models need it."""

    @property
    def engine(self) -> Engine:
        """The way to the parties."""
        ...

    @property
    def wire(self) -> str:
        """Precision of row arrays on the wire."""
        ...
