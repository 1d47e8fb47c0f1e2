"""The same trees by XGBoost, LightGBM and scikit-learn on a pooled frame: two threads, our depth, rate and penalty."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score, root_mean_squared_error

import tablepuppet as tp

THREADS = 2


@dataclass(frozen=True)
class Size:
    """The same for all."""

    rounds: int = 100
    depth: int = 6
    rate: float = 0.1
    l2: float = 1.0


Predict = Callable[[Any], Any]


def ours(size: Size, *, is_flag: bool, **more: Any) -> Any:
    """Our learner."""
    made = tp.GradientBoostingClassifier if is_flag else tp.GradientBoostingRegressor
    return made(
        max_iter=size.rounds, max_depth=size.depth, max_leaf_nodes=None, learning_rate=size.rate,
        l2_regularization=size.l2, early_stopping=False, **more,
    )  # fmt: skip


def xgboost(size: Size, columns: Any, labels: Any, *, is_flag: bool) -> Predict:
    """XGBoost's histograms, categories by sorted gradients."""
    import xgboost as library

    data = library.QuantileDMatrix(columns, labels, enable_categorical=True, nthread=THREADS)
    settings = {
        "max_depth": size.depth, "eta": size.rate, "lambda": size.l2, "tree_method": "hist", "nthread": THREADS,
        "objective": "binary:logistic" if is_flag else "reg:squarederror",
    }  # fmt: skip
    booster = library.train(settings, data, size.rounds)
    return lambda frame: booster.predict(library.DMatrix(frame, enable_categorical=True, nthread=THREADS))


def lightgbm(size: Size, columns: Any, labels: Any, *, is_flag: bool) -> Predict:
    """LightGBM."""
    import lightgbm as library

    settings = {
        "max_depth": size.depth, "num_leaves": 2**size.depth, "learning_rate": size.rate, "lambda_l2": size.l2,
        "num_threads": THREADS, "objective": "binary" if is_flag else "regression", "verbose": -1,
    }  # fmt: skip
    booster = library.train(settings, library.Dataset(columns, labels), size.rounds)
    return lambda frame: booster.predict(frame)


def scikit_learn(size: Size, columns: Any, labels: Any, *, is_flag: bool) -> Predict:
    """scikit-learn's histograms, which take at most 255 categories."""
    made = HistGradientBoostingClassifier if is_flag else HistGradientBoostingRegressor
    model = made(
        max_iter=size.rounds, max_depth=size.depth, max_leaf_nodes=None, learning_rate=size.rate,
        l2_regularization=size.l2, early_stopping=False, categorical_features="from_dtype",
    ).fit(columns, labels)  # fmt: skip
    return lambda frame: model.predict_proba(frame)[:, 1] if is_flag else model.predict(frame)


RIVALS = {
    name: train
    for name, train in (("xgboost", xgboost), ("lightgbm", lightgbm), ("scikit_learn", scikit_learn))
    if name == "scikit_learn" or importlib.util.find_spec(name)
}


def metric(labels: Any, predicted: Any, *, is_flag: bool) -> float:
    """AUC or RMSE."""
    return float(roc_auc_score(labels, predicted) if is_flag else root_mean_squared_error(labels, predicted))
