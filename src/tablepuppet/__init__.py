"""TablePuppet: machine learning over SQL joins and unions of tables that stay where they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tablepuppet.versions import VERSION

if TYPE_CHECKING:  # the same names as below, for editors and type checkers
    from tablepuppet import callbacks as callbacks
    from tablepuppet import prep as prep
    from tablepuppet.algebra import linalg as linalg
    from tablepuppet.errors import ApprovalError as ApprovalError
    from tablepuppet.errors import CatalogError as CatalogError
    from tablepuppet.errors import ConfigError as ConfigError
    from tablepuppet.errors import LearnError as LearnError
    from tablepuppet.errors import MappingError as MappingError
    from tablepuppet.errors import PartyError as PartyError
    from tablepuppet.errors import PrivacyError as PrivacyError
    from tablepuppet.errors import QueryError as QueryError
    from tablepuppet.errors import TablePuppetError as TablePuppetError
    from tablepuppet.federation import Federation as Federation
    from tablepuppet.federation import Tls as Tls
    from tablepuppet.learn.learners import forget as forget
    from tablepuppet.learn.learners import load as load
    from tablepuppet.learn.learners.fedonce import FedOnceClassifier as FedOnceClassifier
    from tablepuppet.learn.learners.fedonce import FedOnceRegressor as FedOnceRegressor
    from tablepuppet.learn.learners.forests import RandomForestClassifier as RandomForestClassifier
    from tablepuppet.learn.learners.forests import RandomForestRegressor as RandomForestRegressor
    from tablepuppet.learn.learners.linear import LinearRegression as LinearRegression
    from tablepuppet.learn.learners.linear import LogisticRegression as LogisticRegression
    from tablepuppet.learn.learners.network import MLPClassifier as MLPClassifier
    from tablepuppet.learn.learners.network import MLPRegressor as MLPRegressor
    from tablepuppet.learn.learners.split import SplitNNClassifier as SplitNNClassifier
    from tablepuppet.learn.learners.split import SplitNNRegressor as SplitNNRegressor
    from tablepuppet.learn.learners.tabvfl import TabVFLClassifier as TabVFLClassifier
    from tablepuppet.learn.learners.tabvfl import TabVFLRegressor as TabVFLRegressor
    from tablepuppet.learn.learners.trees import GradientBoostingClassifier as GradientBoostingClassifier
    from tablepuppet.learn.learners.trees import GradientBoostingRegressor as GradientBoostingRegressor
    from tablepuppet.learn.selection.drift import drift as drift
    from tablepuppet.learn.selection.folds import cross_validate as cross_validate
    from tablepuppet.learn.selection.search import GridSearch as GridSearch
    from tablepuppet.learn.selection.search import RandomSearch as RandomSearch
    from tablepuppet.learn.selection.slices import slice_finder as slice_finder
    from tablepuppet.learn.solve.solvers import ADMM as ADMM
    from tablepuppet.learn.solve.solvers import LBFGS as LBFGS
    from tablepuppet.learn.solve.solvers import SGD as SGD
    from tablepuppet.learn.split import bottom as bottom
    from tablepuppet.mapping.table_mapping import TableMapping as TableMapping
    from tablepuppet.privacy.settings import Privacy as Privacy
    from tablepuppet.relation import Relation as Relation
    from tablepuppet.runs.events import Event as Event
    from tablepuppet.sql.catalog import Catalog as Catalog


__version__ = VERSION

# Where public names are. Loaded when they are first used: databases and scikit-learn take a second each. The command
# line watches signals before that, and a party's service needs no scikit-learn at all.
_PUBLIC = {
    "errors": "ApprovalError CatalogError ConfigError LearnError MappingError PartyError PrivacyError QueryError "
    "TablePuppetError",
    "federation": "Federation Tls",
    "learn.learners": "forget load",
    "learn.selection.drift": "drift",
    "learn.selection.folds": "cross_validate",
    "learn.learners.linear": "LinearRegression LogisticRegression",
    "learn.learners.network": "MLPClassifier MLPRegressor",
    "learn.selection.search": "GridSearch RandomSearch",
    "learn.selection.slices": "slice_finder",
    "learn.learners.fedonce": "FedOnceClassifier FedOnceRegressor",
    "learn.learners.split": "SplitNNClassifier SplitNNRegressor",
    "learn.learners.tabvfl": "TabVFLClassifier TabVFLRegressor",
    "learn.learners.forests": "RandomForestClassifier RandomForestRegressor",
    "learn.learners.trees": "GradientBoostingClassifier GradientBoostingRegressor",
    "learn.solve.solvers": "ADMM LBFGS SGD",
    "mapping.table_mapping": "TableMapping",
    "privacy.settings": "Privacy",
    "relation": "Relation",
    "runs.events": "Event",
    "sql.catalog": "Catalog",
}
_MODULES = {"callbacks": "callbacks", "bottom": "learn.split.bottom", "linalg": "algebra.linalg", "prep": "prep"}
_PLACES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted([*_PLACES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tablepuppet.{_MODULES[name]}")
    if name not in _PLACES:
        raise AttributeError(f"module 'tablepuppet' has no attribute {name!r}")
    found = getattr(import_module(f"tablepuppet.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
