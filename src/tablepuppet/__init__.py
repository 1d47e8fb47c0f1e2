"""TablePuppet: machine learning over SQL joins and unions of tables that stay where they are."""

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
from tablepuppet.learn.linear_models import LinearRegression, LogisticRegression
from tablepuppet.learn.model_file import load
from tablepuppet.learn.network_models import MLPClassifier, MLPRegressor
from tablepuppet.mapping.table_mapping import TableMapping
from tablepuppet.relation import Relation
from tablepuppet.runs.events import Event
from tablepuppet.sql.catalog import Catalog

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
    "PrivacyError",
    "QueryError",
    "Relation",
    "TableMapping",
    "TablePuppetError",
    "load",
]
