"""The learners, in scikit-learn's manner: `fit` over a relation does the work, what was learned ends in `_`.

Every module of this folder is loaded, so that a class in it that is decorated with `learner` can be named by jobs and
loaded from folders.
"""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from tablepuppet.algebra.linalg import saved
from tablepuppet.errors import ConfigError
from tablepuppet.learn import party_ops
from tablepuppet.learn.learners.estimator import restored
from tablepuppet.learn.registry import LEARNERS
from tablepuppet.store import models
from tablepuppet.store.models import Connected

OPS = party_ops.MODULES  # registered, for parties in this process
MODULES = tuple(import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
__all__ = ["LEARNERS", "forget", "load"]


def load(path: str | Path, federation: Connected) -> Any:
    """The learner, or the model of `tp.linalg`, that `save` wrote, ready to predict over relations of ``federation``.

    Raises LearnError if a party is missing, or no longer keeps its part of the model.
    """
    _check(path, federation, "load")
    found = models.read(path, federation.engine)
    with found.adopted():
        return restored(found, federation.wire) if "learner" in found.facts else saved.restored(found)


def forget(path: str | Path, federation: Connected) -> None:
    """Remove a saved model: let parties elsewhere forget their parts of it, then delete the folder.

    Raises PartyError, and changes nothing here, if one of them cannot be reached.
    """
    _check(path, federation, "forget")
    models.forget(path, federation.engine)


def _check(path: object, federation: object, verb: str) -> None:
    """ConfigError unless a folder and a federation were given."""
    if not isinstance(path, str | Path) or not hasattr(federation, "engine"):
        given = f"{type(path).__name__}, {type(federation).__name__}"
        raise ConfigError(f"tp.{verb} takes a folder and a federation, tp.{verb}('model', fed), not ({given})")
