"""Relations of any size that are like real ones: joins with duplicates, correlated and skewed columns, rare
categories, shards; with labels of every kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import tablepuppet as tp

Array = NDArray[np.float64]
SQL = """
    SELECT f.a, f.b, f.channel, c.age, c.income, c.spent, c.town, p.price, p.weight, p.kind, f.{label}
    FROM facts f JOIN customers c USING (customer_id) JOIN products p USING (product_id)
"""
LABELS = {"regression": "amount", "binary": "bought", "rare": "fraud", "classes": "grade"}


@dataclass(frozen=True)
class Shape:
    """The size of a relation, and how many shards its customers have."""

    rows: int
    shards: int = 1
    often: int = 8  # facts of a customer; a product has five times as many
    curved: bool = False  # whether labels depend on columns otherwise than linearly


def write_synthetic(folder: Path, shape: Shape, seed: int = 0) -> dict[str, str]:
    """Facts, customers and products at a party each, customers in shards: URLs."""
    rng = np.random.default_rng(seed)
    customers, products = max(shape.rows // shape.often, 20), max(shape.rows // (5 * shape.often), 10)
    owner, item = rng.integers(0, customers, shape.rows), rng.zipf(1.6, shape.rows) % products
    age = rng.normal(45, 15, customers)
    income = np.exp(0.8 * rng.normal(size=customers) + age / 60)  # skewed
    people = {"age": age, "income": income, "spent": 0.6 * income + 0.1 * rng.normal(size=customers)}
    town = _category(rng, customers, 60)
    price = np.exp(rng.normal(size=products))
    goods = {"price": price, "weight": 2 * price + rng.normal(size=products)}
    kind = _category(rng, products, 12)
    a = rng.normal(size=shape.rows) + 0.02 * age[owner]  # correlated with a column of another table
    facts = {"a": a, "b": 0.95 * a + 0.3 * rng.normal(size=shape.rows)}
    channel = _category(rng, shape.rows, 5)
    bend: Callable[[Array], Array] = _curved if shape.curved else (lambda values: values)
    effects = [rng.normal(size=size) for size in (60, 12, 5)]
    score = bend(_standard(a)) - 0.7 * bend(_standard(facts["b"])) + bend(_standard(age))[owner]
    score += 0.5 * bend(_standard(np.log(income)))[owner] + 0.5 * bend(_standard(np.log(price)))[item]
    score += 0.5 * (effects[0][town][owner] + effects[1][kind][item] + effects[2][channel])
    labels = _labels(rng, _standard(score))
    return _write(
        folder, shape.shards,
        {**facts, "customer_id": owner, "product_id": item, "channel": _names("c", channel), **labels},
        {**people, "customer_id": np.arange(customers), "town": _names("t", town)},
        {**goods, "product_id": np.arange(products), "kind": _names("k", kind)},
    )  # fmt: skip


def synthetic(fed: tp.Federation, task: str) -> tp.Relation:
    """The relation of one task."""
    return fed.sql(SQL.format(label=LABELS[task]), label=LABELS[task])


def _labels(rng: np.random.Generator, score: Array) -> dict[str, Any]:
    def noise() -> Array:
        return np.asarray(rng.logistic(size=len(score)))

    steps = np.digitize(1.5 * score + noise(), [-2, 0, 2])
    return {
        "amount": 20 + 5 * (score + rng.normal(size=len(score))),
        "bought": 2 * score + noise() > 0,
        "fraud": 1.5 * score + noise() > 4,
        "grade": _names("g", steps),
    }


def _curved(values: Array) -> Array:
    return np.asarray(np.sin(1.5 * values) + 0.3 * values**2)


def _standard(values: Array) -> Array:
    return np.asarray((values - values.mean()) / values.std())


def _category(rng: np.random.Generator, rows: int, size: int) -> NDArray[np.int64]:
    """Codes of which few are frequent and many are rare."""
    share = 1 / np.arange(1, size + 1) ** 1.3
    return np.asarray(rng.choice(size, rows, p=share / share.sum()))


def _names(prefix: str, codes: NDArray[np.int64]) -> list[str]:
    return [f"{prefix}{code}" for code in codes.tolist()]


def _write(
    folder: Path, shards: int, facts: dict[str, Any], customers: dict[str, Any], products: dict[str, Any]
) -> dict[str, str]:
    urls = {}
    whole = pa.table(customers)
    size = -(-len(whole) // shards)
    parts = {f"customers{number}": whole.slice(number * size, size) for number in range(shards)}
    for party, table in {"facts": pa.table(facts), "products": pa.table(products), **parts}.items():
        (folder / party).mkdir(parents=True)
        pq.write_table(table, folder / party / f"{party.rstrip('0123456789')}.parquet")
        urls[party] = f"parquet:///{folder / party}"
    return urls
