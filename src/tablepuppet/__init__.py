"""TablePuppet: machine learning over SQL joins and unions of tables that stay where they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from tablepuppet.federation import Federation, Tls
    from tablepuppet.learn.learners import (
        LinearRegression,
        LogisticRegression,
        MLPClassifier,
        MLPRegressor,
        forget,
        load,
    )
    from tablepuppet.learn.learners.folds import cross_validate
    from tablepuppet.learn.learners.search import GridSearch
    from tablepuppet.mapping.table_mapping import TableMapping
    from tablepuppet.privacy.settings import Privacy
    from tablepuppet.relation import Relation
    from tablepuppet.runs.events import Event
    from tablepuppet.sql.catalog import Catalog

__version__ = "0.1.0"

# Loaded when they are first used: databases and scikit-learn take a second each. The command line watches signals
# before that, and a party's service needs no scikit-learn at all.
_PLACES = {
    **dict.fromkeys(
        (
            "CatalogError",
            "ConfigError",
            "LearnError",
            "MappingError",
            "PartyError",
            "PrivacyError",
            "QueryError",
            "TablePuppetError",
        ),
        "errors",
    ),
    **dict.fromkeys(("Federation", "Tls"), "federation"),
    **dict.fromkeys(
        ("LinearRegression", "LogisticRegression", "MLPClassifier", "MLPRegressor", "forget", "load"), "learn.learners"
    ),
    "Catalog": "sql.catalog",
    "GridSearch": "learn.learners.search",
    "cross_validate": "learn.learners.folds",
    "Event": "runs.events",
    "Privacy": "privacy.settings",
    "Relation": "relation",
    "TableMapping": "mapping.table_mapping",
}

__all__ = [
    "Catalog",
    "CatalogError",
    "ConfigError",
    "Event",
    "Federation",
    "GridSearch",
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
    "Tls",
    "cross_validate",
    "forget",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tablepuppet' has no attribute {name!r}")
    found = getattr(import_module(f"tablepuppet.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
