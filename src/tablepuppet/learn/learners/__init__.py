"""The learners, in scikit-learn's manner: `fit` over a relation does the work, what was learned ends in `_`."""

from pathlib import Path
from typing import cast

from tablepuppet.learn import party_ops
from tablepuppet.learn.learners.estimator import Learner
from tablepuppet.learn.learners.linear import LinearRegression, LogisticRegression
from tablepuppet.learn.learners.network import MLPClassifier, MLPRegressor
from tablepuppet.learn.registry import LEARNERS
from tablepuppet.learn.store import model_file
from tablepuppet.learn.store.fitted import Connected
from tablepuppet.learn.store.model_file import forget

OPS = party_ops.MODULES  # registered, for parties in this process
__all__ = ["LEARNERS", "LinearRegression", "LogisticRegression", "MLPClassifier", "MLPRegressor", "forget", "load"]


def load(path: str | Path, federation: Connected) -> Learner:
    """The learner that `save` wrote, ready to predict over relations of ``federation``.

    Raises LearnError if a party is missing, or no longer keeps its part of the model.
    """
    return cast(Learner, model_file.load(path, federation))
