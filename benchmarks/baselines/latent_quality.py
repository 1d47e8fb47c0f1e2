"""How good latent vectors are: the evaluation of TabVFL's Figure 4, with six learners of scikit-learn on them.

As in the paper, latent vectors of all rows, those of training included, are split at random into 70 % to learn from and
30 % to measure on. `held_out` learns from the rows of training only, and measures on rows that no step has seen.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

Latent = NDArray[Any]
Labels = NDArray[Any]


def downstream(seed: int) -> dict[str, Any]:
    """The six learners by name, with their defaults; HistGradientBoosting stands for XGBoost."""
    return {
        "logistic regression": LogisticRegression(max_iter=1_000),
        "decision tree": DecisionTreeClassifier(random_state=seed),
        "random forest": RandomForestClassifier(random_state=seed),
        "MLP": MLPClassifier(random_state=seed),
        "gradient boosting": HistGradientBoostingClassifier(random_state=seed),
        "linear SVM": LinearSVC(random_state=seed),
    }


def mixed(latent: Latent, labels: Labels, seed: int = 0) -> dict[str, float]:
    """Weighted F1 of each learner and their mean, by the paper's split of all rows."""
    learn, test, known, truth = train_test_split(latent, labels, test_size=0.3, random_state=seed)
    return _measured(learn, test, known, truth, seed)


def held_out(
    latent: Latent, labels: Labels, trained: NDArray[np.bool_], unseen: NDArray[np.bool_], seed: int = 0
) -> dict[str, float]:
    """The same, from rows of training to rows that were not seen in training."""
    return _measured(latent[trained], latent[unseen], labels[trained], labels[unseen], seed)


def _measured(learn: Latent, test: Latent, learn_labels: Labels, truth: Labels, seed: int) -> dict[str, float]:
    scores = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, learner in downstream(seed).items():
            found = learner.fit(learn, learn_labels).predict(test)
            scores[name] = float(f1_score(truth, found, average="weighted"))
    return {**scores, "mean": float(np.mean(list(scores.values())))}
