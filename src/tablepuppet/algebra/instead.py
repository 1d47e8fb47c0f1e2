"""What NumPy's arrays have and a `LazyArray` has not, since cells stay at parties: errors say what to write instead."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tablepuppet.errors import LearnError

KEYWORDS = {"where": True, "out": None, "casting": "same_kind", "order": "K", "subok": True, "dtype": None}
NEED_CELLS = frozenset(
    {name for name in dir(np.ndarray) if not name.startswith("_")} | {"toarray", "todense", "to_numpy"}
)
CELLS = "X @ np.eye(X.shape[1])"
"""All cells as an array of NumPy's, where parties send them."""
INSTEAD = {
    **dict.fromkeys(
        ("median", "quantile", "percentile", "nanmedian"),
        "needs cells in order, which are not here: write rel.quantile(0.5), or another share, in the units of the "
        f"data; or take it of {CELLS}, all cells",
    ),
    **dict.fromkeys(
        ("unique", "sort", "argsort", "bincount"),
        f"needs the cells, which are not here: take it of {CELLS}, all cells; rel.quantile has numbers in order",
    ),
    "cov": "is not built: write D = X - X.mean(axis=0), then D.T @ D / (len(X) - 1); rel.covariance() is that of the "
    "selected numbers",
    "corrcoef": "is not built: write tp.linalg.cor(X), for its columns",
    "svd": "needs all cells, which are not here: write scipy.sparse.linalg.svds(X, k=...)",
    "svdvals": "needs all cells, which are not here: write np.sqrt(np.linalg.svdvals(X.T @ X))",
    "matrix_rank": "needs all cells, which are not here: write np.linalg.matrix_rank(X.T @ X)",
    "pinv": "needs all cells, which are not here: write np.linalg.pinv(X.T @ X) @ (X.T @ y) for its product with y",
    "qr": "needs all cells, which are not here: write np.linalg.cholesky(X.T @ X).T for R, whose signs may differ",
    "lstsq": "needs all cells, which are not here: write scipy.sparse.linalg.lsqr(X, y)[0]; tp.linalg.lm(X, y) has an "
    "intercept too",
    "histogram": "is not built: write rel.histogram(column), whose edges are in the units of the data",
}


class NoArrayError(LearnError, AttributeError):
    """NumPy's arrays have this, but it needs cells; an AttributeError, so that `hasattr` is false."""


def check_settings(name: str, settings: dict[str, Any]) -> None:
    """LearnError for settings of a NumPy function other than those that X takes."""
    strange = {
        key for key, value in settings.items() if key not in ("axis", "keepdims") and not _is_default(key, value)
    }
    if strange == {"out"}:
        raise LearnError(f"X is not changed in place: write X = np.{name}(...), or X = X * 2 for X *= 2")
    if strange:
        raise LearnError(f"np.{name} of X takes no {', '.join(sorted(strange))}")


def _is_default(key: str, value: Any) -> bool:
    known = KEYWORDS.get(key, np._NoValue)
    return value is known or value is np._NoValue or (key == "where" and value is True)


def refuse(what: str, instead: str) -> NoReturn:
    """LearnError for what cannot be computed without the cells."""
    raise LearnError(
        f"{what} would need something as long as the joined rows at a party, or all cells here; write {instead}"
    )
