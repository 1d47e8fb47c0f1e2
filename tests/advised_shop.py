"""Two parties of one process, and their join in pandas: what the cases of `tests/advice.py` ask about."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tablepuppet as tp

FROM = "FROM orders o JOIN items i USING (item)"
USUAL = "o.price, o.quantity, o.city, i.weight, i.brand, o.cost"


class Shop:
    """Orders of a store and items of a maker."""

    def __init__(self, folder: Path):
        self.folder, draw, number = folder, np.random.default_rng(0), np.arange(120)
        self.orders = pd.DataFrame(
            {
                "item": number % 12,
                "id": number,
                "price": np.exp(draw.normal(size=120)),
                "quantity": 1 + number % 5,
                "day": (pd.Timestamp("2024-01-01") + pd.to_timedelta(number % 40, unit="D")).date,
                "city": np.array(["Bonn", "Paris", "Rome"])[number % 3],
                "note": [f"note {each}" for each in number],
                "odd": np.where(number == 7, np.inf, draw.normal(size=120)),
                "gap": pd.array(np.where(number % 4 == 0, np.nan, number / 2), "Float64"),
                "same": 1.0,
                "huge": draw.normal(size=120) * 1e200,
                "late": (number % 3 == 0) ^ (draw.random(120) < 0.2),
                "kind": np.array(["a", "b", "c"])[number * 7 % 3],
                "cost": 3 * draw.normal(size=120) + number % 5,
            }
        )
        brands = np.array(["x", "y"])[np.arange(12) % 2]
        items = pd.DataFrame({"item": np.arange(12), "weight": draw.normal(size=12), "brand": brands})
        self.joined = self.orders.merge(items, on="item")
        tables: dict[str, Any] = {"store": {"orders": self.orders}, "maker": {"items": items}}
        self.fed = tp.Federation(tables, verbose=False)

    def sql(self, columns: str = USUAL, label: str | None = "cost", more: str = "", **settings: Any) -> tp.Relation:
        """Some columns of the join."""
        return self.fed.sql(f"SELECT {columns} {FROM} {more}", label=label, **settings)

    @cached_property
    def rel(self) -> tp.Relation:
        """The usual columns."""
        return self.sql()

    @cached_property
    def x(self) -> Any:
        """Their matrix."""
        return self.rel.matrix()

    @cached_property
    def y(self) -> Any:
        """Their label."""
        return self.rel.label()

    @cached_property
    def cells(self) -> Any:
        """The matrix, as NumPy has it."""
        return self.x @ np.eye(self.x.shape[1])
