"""An exported model in Treelite, ONNX (regressors) and shap beside its own predictions and contributions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

import tablepuppet as tp
from tests.learn.materialised import shop
from tests.learn.test_trees import FEW, PLAIN, SELECT
from tests.relations import federation, materialised

Check = Callable[[Path, Any, Any, Any], float]


def libraries() -> dict[str, Any]:
    """The largest difference, of numbers, two classes and four."""
    found: dict[str, Any] = {}
    for label in ("paid", "returned", "grade"):
        found[label] = {}
        onnx = {"onnx": _onnx} if label == "paid" else {}  # onnxmltools reads no margins of classes
        for sql, checks in ((SELECT, {"treelite": _treelite}), (PLAIN, {"shap": _shap} | onnx)):
            with tempfile.TemporaryDirectory() as folder:
                parties = shop()
                relation = federation(Path(folder), parties, wire="float64").sql(sql.format(label), label=label)
                made: Any = tp.GradientBoostingRegressor if label == "paid" else tp.GradientBoostingClassifier
                model = made(**FEW).fit(relation)
                file = Path(folder) / "model.json"
                model.export(file)
                columns = []
                for name in xgboost.Booster(model_file=str(file)).feature_names or []:
                    values = materialised(relation, parties, *name.split("."))
                    codes = {text: code for code, text in enumerate(model.categories_.get(name, []))}
                    columns.append([np.nan if each is None else float(codes.get(each, each)) for each in values])
                for library, check in checks.items():
                    try:
                        found[label][library] = check(file, np.array(columns).T, model, relation)
                    except Exception as error:  # of a library that is not ours
                        found[label][library] = f"{type(error).__name__}: {error}"[:200]
    return found


def _own(model: Any, relation: tp.Relation) -> Any:
    found = model.predict_proba(relation) if hasattr(model, "classes_") else model.predict(relation)
    return found[:, 1] if found.ndim == 2 and found.shape[1] == 2 else found


def _treelite(file: Path, columns: Any, model: Any, relation: tp.Relation) -> float:
    import treelite

    own = _own(model, relation)
    theirs = treelite.gtil.predict(treelite.frontend.load_xgboost_model(str(file)), columns.astype(np.float32))
    return float(np.abs(theirs.reshape(own.shape) - own).max())


def _shap(file: Path, columns: Any, model: Any, relation: tp.Relation) -> float:
    import shap

    booster = xgboost.Booster(model_file=str(file))
    theirs = shap.TreeExplainer(booster, feature_perturbation="tree_path_dependent").shap_values(columns)
    own = model.contributions(relation, by="column")
    order = [model.contribution_names_.index(name) for name in booster.feature_names or []]
    return float(np.abs(theirs - own[:, order]).max())


def _onnx(file: Path, columns: Any, model: Any, relation: tp.Relation) -> float:
    import onnxruntime
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    booster = xgboost.Booster(model_file=str(file))
    booster.feature_names = booster.feature_types = None
    converted = convert_xgboost(booster, initial_types=[("x", FloatTensorType([None, columns.shape[1]]))])
    session = onnxruntime.InferenceSession(converted.SerializeToString())
    own, theirs = _own(model, relation), np.asarray(session.run(None, {"x": columns.astype(np.float32)})[-1])
    return float(np.abs(theirs.reshape(own.shape) - own).max())
