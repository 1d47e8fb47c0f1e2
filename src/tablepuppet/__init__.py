"""TablePuppet: machine learning over SQL joins and unions of tables that stay where they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tablepuppet.errors import (
    CatalogError,
    ConfigError,
    LearnError,
    MappingError,
    PartyError,
    PrivacyError,
    QueryError,
    TablePuppetError,
)
from tablepuppet.federation import Federation
from tablepuppet.mapping.table_mapping import TableMapping
from tablepuppet.privacy.settings import Privacy
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Event
from tablepuppet.sql.catalog import Catalog

if TYPE_CHECKING:
    from tablepuppet.learn.linear_models import LinearRegression, LogisticRegression
    from tablepuppet.learn.model_file import forget, load
    from tablepuppet.learn.network_models import MLPClassifier, MLPRegressor

__version__ = "0.1.0"

__all__ = [
    "Catalog",
    "CatalogError",
    "ConfigError",
    "Event",
    "Federation",
    "LearnError",
    "LinearRegression",
    "LogisticRegression",
    "MLPClassifier",
    "MLPRegressor",
    "MappingError",
    "PartyError",
    "Privacy",
    "PrivacyError",
    "QueryError",
    "Relation",
    "TableMapping",
    "TablePuppetError",
    "forget",
    "load",
]

_LEARNERS = {  # loaded when they are first used: scikit-learn takes a second, and a party's service needs none of it
    "LinearRegression": "linear_models",
    "LogisticRegression": "linear_models",
    "MLPClassifier": "network_models",
    "MLPRegressor": "network_models",
    "forget": "model_file",
    "load": "model_file",
}


def __getattr__(name: str) -> Any:
    if name not in _LEARNERS:
        raise AttributeError(f"module 'tablepuppet' has no attribute {name!r}")
    return getattr(import_module(f"tablepuppet.learn.{_LEARNERS[name]}"), name)
