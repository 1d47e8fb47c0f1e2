"""What an estimator has once it is fitted, and what is saved of it; the estimators themselves are in learners/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from tablepuppet.learn.private.feature_promise import FeaturePromise
from tablepuppet.learn.private.promise import Uses
from tablepuppet.learn.private.report import PrivacyReport
from tablepuppet.learn.tables.stored import Held, Storable, Stored
from tablepuppet.prep.encode import Encoding
from tablepuppet.relation import Relation
from tablepuppet.wire.engine import Engine


class Fitted(Protocol):
    """A fitted estimator; `facts`, `arrays`, `restore` and `saved` say what of it is saved, each class for itself."""

    encoding_: Encoding
    model_: Storable
    engine_: Engine
    relation_: Relation
    relation_columns_: Sequence[tuple[str, str, str]]  # alias, name, type
    n_features_in_: int
    parties_: tuple[str, ...]
    uses_: Uses
    promise_: FeaturePromise | None = None  # None without feature privacy
    privacy_: PrivacyReport
    _category_names: dict[str, list[str | None]] | None = None

    @property
    def categories_(self) -> dict[str, list[str | None]]:
        """Names of categories that may be told."""
        ...

    def plain_settings(self) -> dict[str, Any]:
        """The settings as a file has them."""
        ...

    def facts(self) -> dict[str, Any]:
        """What is saved beside settings, encoders and parameters, as JSON can have it."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays that are saved beside parameters."""
        return {}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back `facts` and `arrays`, when it is loaded."""

    def saved(self, stored: Stored, engine: Engine, wire: str) -> Storable:
        """The parameters of a model that is loaded: here those that the coordinator holds all by itself."""
        return Held(stored.thetas)


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
