"""Sums of gradients by node, column and bin: SciPy's product, which trees take, NumPy's bincount, Numba."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tablepuppet.learn.trees.histogram import histograms

ROWS, COLUMNS, NODES, ENTRIES, BINS = 100_000, 25, 32, 500_000, 256


def kernels() -> dict[str, float]:
    """Nanoseconds of one processor for each entry and column, the least of three; and seconds to compile with Numba."""
    rng = np.random.default_rng(0)
    bins = rng.integers(0, BINS - 1, (ROWS, COLUMNS)).astype(np.uint8)
    sizes = np.bincount(rng.integers(0, NODES, ENTRIES), minlength=NODES)
    rows = np.concatenate([np.sort(rng.integers(0, ROWS, size)) for size in sizes])
    values = rng.normal(size=(ENTRIES, 3))
    ways: dict[str, Callable[[], Any]] = {
        "scipy": lambda: histograms(bins, rows, sizes, values, BINS),
        "bincount": lambda: _bincount(bins, rows, sizes, values),
    }
    found: dict[str, float] = {}
    try:
        from numba import njit
    except ImportError:
        print("Numba is not installed")
    else:
        loop = njit(nogil=True)(_loop)
        found["numba_compiles"] = _seconds(lambda: loop(bins, rows, sizes, values, np.zeros((NODES, COLUMNS, BINS, 3))))
        ways["numba"] = lambda: loop(bins, rows, sizes, values, np.zeros((NODES, COLUMNS, BINS, 3)))
    wanted = ways["scipy"]()
    for name, way in ways.items():
        np.testing.assert_allclose(way(), wanted, atol=1e-9)
        found[name] = min(_seconds(way) for _ in range(3)) / ENTRIES / COLUMNS * 1e9
    return found


def _seconds(work: Callable[[], Any]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def _bincount(bins: Any, rows: Any, sizes: Any, values: Any) -> Any:
    at = np.repeat(np.arange(NODES) * BINS, sizes)
    found = np.empty((NODES, COLUMNS, BINS, 3))
    for column in range(COLUMNS):
        codes = bins[:, column][rows] + at
        for kind in range(3):
            counted = np.bincount(codes, values[:, kind], NODES * BINS)
            found[:, column, :, kind] = counted.reshape(NODES, BINS)
    return found


def _loop(bins: Any, rows: Any, sizes: Any, values: Any, sums: Any) -> Any:
    entry = 0
    for node in range(len(sizes)):
        for _ in range(sizes[node]):
            row = rows[entry]
            for column in range(bins.shape[1]):
                cell = sums[node, column, bins[row, column]]
                cell[0] += values[entry, 0]
                cell[1] += values[entry, 1]
                cell[2] += values[entry, 2]
            entry += 1
    return sums
