"""The learners, in scikit-learn's manner: `fit` over a relation does the work, what was learned ends in `_`.

Every module of this folder is loaded, so that a class in it that is decorated with `learner` can be named by jobs and
loaded from folders.
"""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import cast

from tablepuppet.learn import party_ops
from tablepuppet.learn.learners.learner import Learner
from tablepuppet.learn.registry import LEARNERS
from tablepuppet.learn.store import model_file
from tablepuppet.learn.store.fitted import Connected
from tablepuppet.learn.store.model_file import forget

OPS = party_ops.MODULES  # registered, for parties in this process
MODULES = tuple(import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
__all__ = ["LEARNERS", "forget", "load"]


def load(path: str | Path, federation: Connected) -> Learner:
    """The learner that `save` wrote, ready to predict over relations of ``federation``.

    Raises LearnError if a party is missing, or no longer keeps its part of the model.
    """
    return cast(Learner, model_file.load(path, federation))
