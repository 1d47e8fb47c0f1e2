"""The attributes of a fitted estimator, and what is saved of it; the estimators themselves are in learners/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.promise import Uses
from tablepuppet.learn.private.report import PrivacyReport
from tablepuppet.learn.tables.stored import Held, Storable, Stored
from tablepuppet.prep.encode.encode import Encoding
from tablepuppet.relation import Relation
from tablepuppet.wire.engine import Engine


class Fitted(Protocol):
    """A fitted estimator; each class defines what is saved of it by `facts`, `arrays`, `restore` and `saved`."""

    encoding_: Encoding
    _model: Storable
    _engine: Engine
    _relation: Relation
    _relation_columns: Sequence[tuple[str, str, str]]  # alias, name, type
    n_features_in_: int
    parties_: tuple[str, ...]
    _uses: Uses
    _promise: FeaturePromise | None = None  # None without feature privacy
    privacy_: PrivacyReport
    _category_names: dict[str, list[str | None]] | None = None

    @property
    def categories_(self) -> dict[str, list[str | None]]:
        """Names of public categories."""
        ...

    def plain_settings(self) -> dict[str, Any]:
        """The settings as a file stores them."""
        ...

    def facts(self) -> dict[str, Any]:
        """What is saved in addition to settings, encoders and parameters, as JSON values."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that are saved in addition to parameters."""
        return {}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore `facts` and `arrays` when a model is loaded."""

    def saved(self, stored: Stored, engine: Engine, wire: str) -> Storable:
        """The parameters of a loaded model; by default those that the coordinator holds."""
        return Held(stored.thetas)


class Connected(Protocol):
    """The part of a federation that models need."""

    @property
    def engine(self) -> Engine:
        """The engine that calls the parties."""
        ...

    @property
    def wire(self) -> str:
        """Precision of row arrays on the wire."""
        ...
